# SPDX-License-Identifier: BSD-3-Clause
"""Page-locked host memory of other libraries, with work that has not run."""

import ctypes

import numpy as np

import kinds
import warpmpi as wm

HOWS = (
    *("stream", "legacy", "thread", "unnamed", "older", "dlpack"),
    *("subclass", "view", "torch"),
)
# The handles of the default streams.
DEFAULTS = {"legacy": 1, "thread": 2}
ROUNDS = 40  # of slow copies on a real GPU, before the work that is awaited


def shown(how, memory, stream):
    """An object that shows page-locked memory, and its stream if it can."""
    if how == "dlpack":
        return Mapped(memory)
    if how == "torch":
        return LockedTorch(memory)
    interface = {
        "shape": memory.shape,
        "typestr": memory.dtype.str,
        "data": (memory.ctypes.data, False),
        "version": 2 if how == "older" else 3,
        "stream": None if how == "unnamed" else stream,
    }
    if how == "subclass":
        array = memory.view(Subclass)
        array.interface = interface
        return array
    return wm.asarray(Shown(interface)) if how == "view" else Shown(interface)


class Shown:
    def __init__(self, interface):
        self.__cuda_array_interface__ = interface


class Subclass(np.ndarray):
    """As Numba's arrays of mapped memory are."""

    @property
    def __cuda_array_interface__(self):
        return self.interface


class Mapped:
    """Shown by DLPack alone, as memory of CUDA's on the host."""

    def __init__(self, memory):
        self.memory = memory

    def __dlpack_device__(self):
        return 3, 0

    def __dlpack__(self, stream=None, **words):
        capsule = self.memory.__dlpack__(**words)
        get = ctypes.pythonapi.PyCapsule_GetPointer
        get.restype = ctypes.c_void_p
        get.argtypes = ctypes.py_object, ctypes.c_char_p
        if "max_version" in words:  # version, context, deleter, flags
            tensor = get(capsule, b"dltensor_versioned") + 32
        else:
            tensor = get(capsule, b"dltensor")
        ctypes.cast(tensor, ctypes.POINTER(ctypes.c_int32))[2] = 3
        return capsule


class Tensor(ctypes.Structure):
    """DLPack's."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_uint8 * 4),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Torch:
    """What PyTorch's tensors look like to DLPack's C exchange API.

    array: ours on a GPU, or NumPy's; kind: what DLPack calls its memory.
    """

    _streams = {}

    @classmethod
    def stream_of(cls, device):
        """The stream that is current there."""
        device = str(device)
        if device not in cls._streams:
            cls._streams[device] = wm.Stream(device)
        return cls._streams[device]

    def __init__(self, array, kind=2):
        self.keep = array
        self.shape = (ctypes.c_int64 * 1)(array.size)
        code = {"u": 1, "i": 0, "f": 2, "c": 5}[np.dtype(array.dtype).kind]
        self.tensor = Tensor(
            array.ctypes.data if kind != 2 else array.ptr,
            (kind, 0),
            1,
            (code, 8 * array.itemsize, 1, 0),
            self.shape,
            None,
            0,
        )

    @ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(Tensor))
    def borrow(tensor, out):  # noqa: N805
        out[0] = tensor.tensor
        return 0

    @ctypes.PYFUNCTYPE(
        ctypes.c_int,
        ctypes.c_int32,
        ctypes.c_int32,
        ctypes.POINTER(ctypes.c_void_p),
    )
    def stream(kind, ordinal, out):  # noqa: N805
        assert kind == 2
        out[0] = Torch.stream_of(f"cuda:{ordinal}").cuda_stream
        return 0

    # Version, previous, allocate, from_object, to_object, and these two.
    table = (ctypes.c_uint64 * 7)(
        1 | 3 << 32,
        *(0, 0, 1, 0),
        ctypes.cast(borrow, ctypes.c_void_p).value,
        ctypes.cast(stream, ctypes.c_void_p).value,
    )
    name = b"dlpack_exchange_api"  # the capsule points to it
    new_capsule = ctypes.pythonapi.PyCapsule_New
    new_capsule.restype = ctypes.py_object
    new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    __dlpack_c_exchange_api__ = new_capsule(
        ctypes.addressof(table), name, None
    )


class LockedTorch(Torch, Mapped):
    """Its tensor of page-locked memory, which the exchange calls the CPU's."""

    def __init__(self, memory):
        Torch.__init__(self, memory, 1)
        Mapped.__init__(self, memory)


class Awaited:
    """Page-locked memory whose values are still to come, on a stream.

    memory: the host's view of it. array: what a call gets.
    """

    def __init__(self, values, how, device=None):
        values = np.ascontiguousarray(values)
        self.device = wm.get_device() if device is None else device
        self.stream = (
            Torch.stream_of(self.device)
            if how == "torch"
            else wm.Stream(self.device)
        )
        self.memory = page_locked(values.size, values.dtype, self.device)
        self.handle = DEFAULTS.get(how, self.stream.cuda_stream)
        self.array = shown(how, self.memory, self.handle)
        self.sources = []

    def write(self, values):
        """Enqueue a write of these values; until it runs there are others."""
        values = np.asarray(values, self.memory.dtype)
        source = wm.array(values, device=self.device)
        self.sources.append(source)
        self.memory[...] = 55
        with kinds.Current(self.device):
            for _ in range(ROUNDS * kinds.is_real()):
                self.copy(*slow(self.device))
            self.copy(self.memory.ctypes.data, source.ptr, source.nbytes)

    def copy(self, to, source, nbytes):
        result = kinds.driver().cuMemcpyAsync(
            ctypes.c_uint64(to),
            ctypes.c_uint64(source),
            ctypes.c_size_t(nbytes),
            ctypes.c_void_p(self.handle),
        )
        assert result == 0, result

    def numpy(self):
        """What the host finds, without waiting."""
        return self.memory


_slow = {}


def slow(device):
    if device not in _slow:
        _slow[device] = wm.zeros(2 << 26, "u1", device=device)
    half = _slow[device].nbytes // 2
    return _slow[device].ptr, _slow[device].ptr + half, half


def page_locked(count, dtype, device):
    """Memory that is locked in the context of a device, which is in use."""
    dtype, pointer = np.dtype(dtype), ctypes.c_void_p()
    size = max(1, count * dtype.itemsize)
    with kinds.Current(device):
        result = kinds.driver().cuMemHostAlloc(
            ctypes.byref(pointer), ctypes.c_size_t(size), 3
        )
    assert result == 0, result
    kept = _Locked(pointer, device)
    memory = (ctypes.c_char * size).from_address(pointer.value)
    memory.kept = kept
    return np.frombuffer(memory, dtype, count)


class _Locked:
    def __init__(self, pointer, device):
        self.pointer, self.device = pointer, device

    def __del__(self):
        wm.synchronize_device(self.device)
        with kinds.Current(self.device):
            kinds.driver().cuMemFreeHost(self.pointer)
