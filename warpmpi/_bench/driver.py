# SPDX-License-Identifier: BSD-3-Clause
"""Calls of CUDA's driver that benchmarks make, by ctypes."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_ulonglong, c_void_p
from functools import partial
from typing import Any

import numpy as np

RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED


class Driver:
    """The GPU of a process, whose context is the current one of this thread.

    local: the process's number on this host, from which its GPU follows.
    """

    def __init__(self, local: int):
        self.cuda = ctypes.CDLL(
            os.environ.get("WARPMPI_CUDA_DRIVER", "libcuda.so.1")
        )
        count, self.context = c_int(), c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGetCount", byref(count))
        self.count, self.local = count.value, local
        if not self.count:
            raise RuntimeError("there is no GPU")
        self.ordinal = local % self.count
        self.call(
            "cuDevicePrimaryCtxRetain",
            byref(self.context),
            c_int(self.ordinal),
        )
        self.make_current()

    def make_current(self) -> None:
        self.call("cuCtxSetCurrent", self.context)

    def call(self, name: str, *arguments: Any) -> None:
        result = getattr(self.cuda, name)(*arguments)
        if result:
            raise RuntimeError(f"{name} failed: {result}")

    def free(self) -> int:
        """Bytes of the GPU's memory that nobody has."""
        free, total = c_size_t(), c_size_t()
        self.call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value

    def pinned(self, nbytes: int) -> np.ndarray:
        """Page-locked host memory, until the process ends."""
        pointer = c_void_p()
        self.call(
            "cuMemHostAlloc", byref(pointer), c_size_t(max(1, nbytes)), 0
        )
        assert pointer.value is not None
        return np.ctypeslib.as_array(
            (ctypes.c_uint8 * nbytes).from_address(pointer.value)
        )

    def copier(
        self, into: int, source: int, nbytes: int, stream: int
    ) -> Callable[[], None]:
        """A copy between addresses of any memory, which only enqueues."""
        ends = c_void_p(into), c_void_p(source)
        return partial(
            self.call,
            "cuMemcpyAsync",
            *ends,
            c_size_t(nbytes),
            c_void_p(stream),
        )

    def captured(
        self, stream: int, call: Callable[[], Any], calls: int
    ) -> Graph:
        """So many calls that enqueue on a stream."""
        graph, handle = c_void_p(), c_void_p(stream)
        self.call("cuStreamBeginCapture_v2", handle, RELAXED)
        try:
            for _ in range(calls):
                call()
        finally:
            result = self.cuda.cuStreamEndCapture(handle, byref(graph))
        if result:
            raise RuntimeError(f"cuStreamEndCapture failed: {result}")
        return Graph(self, graph, handle)


class Graph:
    """What was captured; a call enqueues it."""

    def __init__(self, driver: Driver, graph: c_void_p, stream: c_void_p):
        self.driver, self.made = driver, c_void_p()
        driver.call(
            "cuGraphInstantiateWithFlags",
            byref(self.made),
            graph,
            c_ulonglong(0),
        )
        driver.call("cuGraphDestroy", graph)
        self.launch = partial(driver.call, "cuGraphLaunch", self.made, stream)

    def __call__(self) -> None:
        self.launch()

    def free(self) -> None:
        """Nothing of it runs any more."""
        self.driver.call("cuGraphExecDestroy", self.made)
