# SPDX-License-Identifier: BSD-3-Clause
"""Arrays in every kind of memory, from the driver itself where need be."""

import contextlib
import ctypes
import gc
import os
import time

import numpy as np

import warpmpi as wm


def driver():
    """The CUDA driver in use, real or simulated."""
    path = os.environ.get("WARPMPI_CUDA_DRIVER", "libcuda.so.1")
    return ctypes.CDLL(path)


def is_real():
    """Whether the GPUs are, rather than simulated."""
    return "WARPMPI_CUDA_DRIVER" not in os.environ


class Foreign:
    """GPU memory of another allocator, shown by __cuda_array_interface__."""

    def __init__(self, count, dtype, kind, stream=None, version=3):
        self.dtype = np.dtype(dtype)
        self.device = wm.get_device()
        self.cuda = driver()
        self.kind = kind
        self.stream = wm.Stream(self.device) if stream is None else stream
        pointer = ctypes.c_uint64()
        size = max(1, count * self.dtype.itemsize)
        with self.context():
            if kind == "pool":
                result = self.cuda.cuMemAllocAsync(
                    ctypes.byref(pointer),
                    ctypes.c_size_t(size),
                    ctypes.c_void_p(self.stream.cuda_stream),
                )
            elif kind == "managed":
                result = self.cuda.cuMemAllocManaged(
                    ctypes.byref(pointer), ctypes.c_size_t(size), 1
                )
            else:
                result = self.cuda.cuMemAlloc_v2(
                    ctypes.byref(pointer), ctypes.c_size_t(size)
                )
        assert result == 0, result
        self.stream.synchronize()
        self.pointer = pointer.value
        self.__cuda_array_interface__ = {
            "shape": (count,),
            "typestr": self.dtype.str,
            "data": (self.pointer, False),
            "version": version,
            "stream": self.stream.cuda_stream,
        }
        if version < 3:
            del self.__cuda_array_interface__["stream"]

    def context(self):
        return Current(self.device)

    def numpy(self):
        wm.synchronize_device(self.device)
        return wm.asarray(self).numpy()

    def assign(self, values):
        wm.asarray(self).assign(wm.array(values, device=self.device))

    def free(self):
        if self.pointer:
            wm.synchronize_device(self.device)
            with self.context():
                if self.kind == "pool":
                    self.cuda.cuMemFreeAsync(
                        ctypes.c_uint64(self.pointer),
                        ctypes.c_void_p(self.stream.cuda_stream),
                    )
                else:
                    self.cuda.cuMemFree_v2(ctypes.c_uint64(self.pointer))
            self.stream.synchronize()
            self.pointer = 0

    def __del__(self):
        self.free()


def blocks():
    """The blocks of GPU memory that this process uses."""
    return wm._core._memory_stats()["blocks"]


def are_freed(before):
    """Whether no more blocks than before are used, within five seconds."""
    until = time.monotonic() + 5
    while (held := blocks()) > before and time.monotonic() < until:
        gc.collect()
        time.sleep(0.01)
    return held <= before


@contextlib.contextmanager
def uncollected():
    """Nothing is collected: what another test left asks the driver, too."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def segment():
    """The number of the file that holds this process's segment."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            target = os.readlink(f"/proc/self/fd/{name}")
            if target == "/memfd:warpmpi (deleted)":
                return int(name)
    return None


class Gate:
    """What streams wait for. Nothing is collected while it is closed.

    To free memory is to wait for the device, in which they wait.
    """

    words = []  # a stream may look at its own long after it was opened

    def __init__(self):
        self.word = wm.zeros(1, np.uint32, device="cpu", pinned=True).numpy()
        self.words.append(self.word)
        gc.collect()
        gc.disable()

    def stop(self, stream):
        """What comes next on the stream waits."""
        with Current(stream.device):
            result = driver().cuStreamWaitValue32_v2(
                ctypes.c_void_p(stream.cuda_stream),
                ctypes.c_uint64(self.word.ctypes.data),
                ctypes.c_uint32(1),
                0,
            )
        assert result == 0, result

    def open(self):
        self.word[0] = 1
        gc.enable()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.open()


class Current:
    """Makes a device's primary context current, by the driver itself."""

    def __init__(self, device):
        self.ordinal = device.ordinal

    def __enter__(self):
        cuda = driver()
        context = ctypes.c_void_p()
        assert (
            cuda.cuDevicePrimaryCtxRetain(
                ctypes.byref(context), ctypes.c_int(self.ordinal)
            )
            == 0
        )
        assert cuda.cuCtxPushCurrent_v2(context) == 0
        self.cuda = cuda

    def __exit__(self, *exception):
        old = ctypes.c_void_p()
        self.cuda.cuCtxPopCurrent_v2(ctypes.byref(old))
        self.cuda.cuDevicePrimaryCtxRelease_v2(ctypes.c_int(self.ordinal))


class Tensor:
    """Bytes as elements of any type of DLPack's."""

    def __init__(self, values, code, bits):
        self.values = values  # uint8, of NumPy or of this package
        self.element = code, bits

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()

    def __dlpack__(self, stream=None, **words):
        if not isinstance(self.values, np.ndarray):
            words["stream"] = stream
        capsule = self.values.__dlpack__(**words)
        get = ctypes.pythonapi.PyCapsule_GetPointer
        get.restype, get.argtypes = (
            ctypes.c_void_p,
            (ctypes.py_object, ctypes.c_char_p),
        )
        if "max_version" in words:  # version, context, deleter and flags first
            tensor = get(capsule, b"dltensor_versioned") + 32
        else:
            tensor = get(capsule, b"dltensor")
        # data, device (8), ndim (4), code, bits, lanes; then shape
        code = ctypes.cast(tensor + 20, ctypes.POINTER(ctypes.c_uint8))
        code[0], code[1] = self.element
        shape = ctypes.cast(tensor + 24, ctypes.POINTER(ctypes.c_void_p))[0]
        shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
        shape[0] = len(self.values) * 8 // self.element[1]
        return capsule


class Copying:
    """An array of this package that exports a copy, and says so.

    asked not to: obliges, refuses, ignores the wish, or does not know it.
    """

    HABITS = ("obliges", "refuses", "ignores", "does not know")

    def __init__(self, array, habit):
        self.array = array
        self.habit = habit

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, *, max_version=None, stream=None, **words):
        if words and self.habit == "does not know":
            raise TypeError(f"__dlpack__() got an unexpected keyword {words}")
        if words.get("copy") is False and self.habit == "refuses":
            raise BufferError("only copies leave this house")
        shares = words.get("copy") is False and self.habit == "obliges"
        return self.array.__dlpack__(
            max_version=max_version, stream=stream, copy=not shares
        )


DEVICE_KINDS = ("device", "foreign", "pool", "managed")
HOST_KINDS = ("host", "pinned")
GPU_KINDS = DEVICE_KINDS if wm.is_cuda_available() else ()
KINDS = HOST_KINDS + GPU_KINDS


def make(kind, values):
    """A flat array of a kind with these values."""
    values = np.ascontiguousarray(values)
    if kind == "host":
        return values.copy()
    if kind == "pinned":
        if not wm.is_cuda_available():
            return values.copy()
        return wm.array(values, device="cpu", pinned=True)
    if kind == "device":
        return wm.array(values, device=wm.get_device())
    array = Foreign(values.size, values.dtype, kind)
    if values.size:
        array.assign(values)
    return array


def values_of(array):
    """What an array of any kind holds, as a NumPy array."""
    return array if isinstance(array, np.ndarray) else array.numpy()
