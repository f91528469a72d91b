# SPDX-License-Identifier: BSD-3-Clause
"""The current device and stream of the stand-in for CuPy."""

import warpmpi as _wm

from . import runtime as runtime


class Device:
    """A device of the simulated driver; the rank's own where none is named."""

    def __init__(self, device=None):
        self.id = _wm.get_device().ordinal if device is None else device

    def use(self):
        _wm.set_device(self.id)


class Stream:
    """The default stream, or one of its own, which can be captured."""

    def __init__(self, non_blocking=False):
        self._own = _wm.Stream() if non_blocking else None
        self.ptr = self._own.cuda_stream if non_blocking else 0

    def __cuda_stream__(self):
        return (0, self.ptr)

    def synchronize(self):
        (self._own or _wm.Stream(cuda_stream=self)).synchronize()

    def __enter__(self):
        self._before = _current[0]
        _current[0] = self

    def __exit__(self, *error):
        _current[0] = self._before

    def begin_capture(self):
        import graphs

        graphs.begin(self._own)

    def end_capture(self):
        import graphs

        result, graph = graphs.end(self._own)
        assert result == 0, result
        return _Graph(graphs.Graph(self._own.device, graph))


class _Graph:
    def __init__(self, graph):
        self._graph = graph

    def launch(self, stream):
        self._graph.launch(stream._own)


_current = [Stream()]


def get_current_stream():
    return _current[0]
