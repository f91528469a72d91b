# SPDX-License-Identifier: BSD-3-Clause
"""Views and exports, there and back: owners' references and memory."""

import gc
import pickle
import sys

import numpy as np
from counts import stay_flat

import warpmpi as wm

DEVICE = wm.get_device()


class Cai:
    """Of another library, by its interface alone."""

    def __init__(self, array):
        self.__cuda_array_interface__ = array.__cuda_array_interface__
        self.array = array


class OnlyDLPack:
    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def refused(call, *arguments, **options):
    try:
        call(*arguments, **options)
    except (BufferError, TypeError, ValueError):
        return
    raise AssertionError(call)


KEPT = {
    "numpy": np.arange(1000.0),
    "bytes": bytearray(800),
    "host": wm.ones(1000, device="cpu"),
    "device": wm.ones(1000, device=DEVICE),
}


def turn(i):
    for owner in KEPT.values():
        view = wm.asarray(owner)
        assert wm.asarray(view) is view
        wm.from_dlpack(OnlyDLPack(view)).reshape(-1)
        wm.asarray(OnlyDLPack(view))
        view.__dlpack__(), view.__dlpack__(max_version=(1, 0))
        view.__dlpack__(copy=True), view.__dlpack_device__()
        if view.device.is_cuda:
            wm.asarray(Cai(view))[1:].transpose()
            view.to("cpu")
        else:
            np.from_dlpack(view)
            memoryview(view).release()
            np.asarray(view)
        pickle.loads(pickle.dumps(view[:3]))
        broken = Cai(KEPT["device"]) if DEVICE.is_cuda else object()
        if DEVICE.is_cuda:
            broken.__cuda_array_interface__["strides"] = ("x",)
        refused(wm.asarray, broken)
        refused(wm.asarray, object())
        refused(view.__dlpack__, stream="no stream")
        refused(view.__dlpack__, max_version=3)


gc.collect()
before = {name: sys.getrefcount(KEPT[name]) for name in KEPT}
stay_flat(turn, 1000)
gc.collect()
after = {name: sys.getrefcount(KEPT[name]) for name in KEPT}
assert before == after, (before, after)
