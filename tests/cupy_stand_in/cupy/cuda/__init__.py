# SPDX-License-Identifier: BSD-3-Clause
"""The current device and stream of the stand-in for CuPy."""

import warpmpi as _wm

from . import runtime as runtime


class Device:
    """A device of the simulated driver; the rank's own where none is named."""

    def __init__(self, device=None):
        self.id = _wm.get_device().ordinal if device is None else device


class Stream:
    """The default stream, which is all that there is here."""

    ptr = 0

    def __cuda_stream__(self):
        return (0, self.ptr)

    def synchronize(self):
        _wm.Stream(cuda_stream=self).synchronize()


_null = Stream()


def get_current_stream():
    return _null
