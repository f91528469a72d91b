# SPDX-License-Identifier: BSD-3-Clause
"""Arrays of others are seen as they are, and ours are seen by others."""

import array as stdlib_array
import ctypes
import gc
import pathlib
import subprocess
import sys
import types
import weakref
from typing import ClassVar

import numpy as np
import pytest

import awaited
import kinds
import warpmpi as wm

ml_dtypes = pytest.importorskip("ml_dtypes")

GPU = "cuda:0" if wm.is_cuda_available() else None
needs_gpu = pytest.mark.skipif(GPU is None, reason="needs a GPU")
DTYPES = [
    *("bool", "int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
]


class Interface:
    """An object that has nothing but an array interface."""

    def __init__(self, keep=None, name="__cuda_array_interface__", **fields):
        self.keep = keep
        setattr(self, name, fields)


def shown(array, **changes):
    """A foreign object over the memory of one of our GPU arrays."""
    fields = {
        "shape": array.shape,
        "typestr": array.dtype.str,
        "data": (array.ptr, False),
        "strides": array.strides,
        "version": 3,
        "stream": 1,
    }
    fields.update(changes)
    fields = {k: v for k, v in fields.items() if v is not KeyError}
    return Interface(array, **fields)


class OnlyDLPack:
    """An object that has nothing but __dlpack__."""

    def __init__(self, array):
        self.array = array
        self.asked = []

    def __dlpack__(self, **arguments):
        self.asked.append(arguments)
        return self.array.__dlpack__(**arguments)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class OldDLPack(OnlyDLPack):
    def __dlpack__(self, stream=None):
        self.asked.append({"stream": stream})
        return self.array.__dlpack__(stream=stream)


def values(shape, dtype="float64"):
    return (np.arange(np.prod(shape)) % 99).reshape(shape).astype(dtype)


# --- host arrays of others --------------------------------------------------


@pytest.mark.parametrize("dtype", [*DTYPES, ml_dtypes.bfloat16], ids=str)
def test_numpy_arrays_are_viewed_without_a_copy(dtype):
    a = values((3, 4), dtype)
    b = wm.asarray(a)
    assert b.dtype == a.dtype
    assert b.device.is_cpu
    assert b.ptr == a.ctypes.data
    assert b.strides == a.strides
    a[1, 2] = 0
    assert np.array_equal(b.numpy(), a)
    assert wm.asarray(a[::-1, ::2]).strides == a[::-1, ::2].strides
    assert wm.asarray(a.T).shape == (4, 3)


@pytest.mark.parametrize(
    ("made", "dtype"),
    [
        (bytearray(b"abcd"), "uint8"),
        (memoryview(bytearray(8)).cast("d"), "float64"),
        (stdlib_array.array("i", [1, 2]), "int32"),
        (stdlib_array.array("L", [1, 2]), "uint64"),
        (np.zeros(3, "longlong"), "int64"),
        (np.zeros(3, "ulonglong"), "uint64"),
        ((ctypes.c_float * 3)(), "float32"),
        (np.array(5.0), "float64"),
    ],
)
def test_the_buffer_protocol_is_understood(made, dtype):
    b = wm.asarray(made)
    assert b.dtype == dtype
    assert not b.readonly
    assert b.numpy().tobytes() == bytes(memoryview(made))


@pytest.mark.parametrize("code", "?bBhHiIlLqQefdFD")
@pytest.mark.parametrize("count", [5, 5000])
def test_every_number_of_numpys_is_the_dtype_it_says(code, count):
    """Short and long, whole, as a view, and of a class of their own."""
    source = np.arange(2 * count).astype(code)
    for array in (
        source,
        source[1::2],
        source[::-1],
        source.reshape(2, count)[:, 1:].T,
        source[3:4].reshape(()),
        source[:0],
        np.rec.array(source),
        np.ma.masked_array(source)[2:],
    ):
        view = wm.asarray(array)
        assert view.dtype == array.dtype
        assert view.shape == array.shape
        assert view.device.is_cpu
        np.testing.assert_array_equal(view.numpy(), np.asarray(array))
        if array.size:
            assert view.ptr == array.ctypes.data


def test_numpys_own_refusals_are_kept():
    fixed = np.zeros(3)
    fixed.flags.writeable = False
    spread = np.broadcast_to(np.zeros(1), 3)
    for array in (fixed, spread):
        assert wm.asarray(array).readonly
    for dtype, text in ((">f8", "byte order"), ("U4", "not supported")):
        with pytest.raises(TypeError, match=text):
            wm.asarray(np.zeros(3, dtype))


def test_an_array_interface_alone_is_enough():
    a = values((3, 4), "i4")
    b = wm.asarray(
        Interface(a, "__array_interface__", **a.__array_interface__)
    )
    assert b.ptr == a.ctypes.data
    assert np.array_equal(b.numpy(), a)


def test_a_cuda_interface_over_host_memory_is_host_memory():
    a = values((3, 4), "f4")
    b = wm.asarray(Interface(a, **a.__array_interface__))
    assert b.device.is_cpu
    assert np.array_equal(b.numpy(), a)


def test_bytes_are_read_only():
    b = wm.asarray(b"abc")
    assert b.readonly
    assert b.numpy().tobytes() == b"abc"


@pytest.mark.parametrize(
    "bad",
    [
        [1, 2],
        3,
        "text",
        None,
        object(),
        np.zeros(2, ">f4"),
        np.zeros(2, ">c16"),
        np.zeros(2, "O"),
        np.zeros(2, "V8"),
        np.zeros(2, "U3"),
        np.zeros(2, "M8[s]"),
        np.zeros(2, "f16"),
        np.zeros(2, [("a", "f4")]),
        np.zeros(2, ml_dtypes.float8_e4m3fn),
        np.float32(1).dtype,
    ],
    ids=lambda bad: repr(bad)[:40],
)
def test_what_is_no_array_or_of_no_known_type_is_a_type_error(bad):
    with pytest.raises(TypeError, match=r"^obj: "):
        wm.asarray(bad)


def test_a_foreign_byte_order_is_named():
    with pytest.raises(TypeError, match="big-endian"):
        wm.asarray(np.zeros(2, ">f4"))
    with pytest.raises(TypeError, match="big-endian"):
        wm.asarray(
            Interface(shape=(1,), typestr=">f4", data=(0, 0), version=3)
        )
    assert wm.asarray(np.zeros(2, ">u1")).dtype == np.uint8


def test_views_keep_their_owner_and_no_longer_than_needed():
    a = np.zeros(5)
    alive = weakref.ref(a)
    b = wm.asarray(a)
    c = b[1:]
    del a, b
    gc.collect()
    assert alive() is not None
    del c
    gc.collect()
    assert alive() is None


# --- GPU arrays of others ---------------------------------------------------


@needs_gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"strides": None},
        {"strides": KeyError},
        {"stream": None},
        {"stream": KeyError},
        {"stream": 2},
        {"version": 2},
        {"version": 1, "stream": KeyError},
        {"version": 4, "descr": [("", "?")]},
    ],
    ids=repr,
)
def test_the_cuda_array_interface_is_understood(dtype, changes):
    a = wm.from_numpy(values((3, 4), dtype), device=GPU)
    b = wm.asarray(shown(a, **changes))
    assert b.device == a.device
    assert b.dtype == a.dtype
    assert b.ptr == a.ptr
    assert np.array_equal(b.numpy(), values((3, 4), dtype))
    b.fill_(1)
    assert np.all(a.numpy() == 1)


@needs_gpu
def test_a_readonly_interface_is_respected():
    a = wm.zeros(4, "f4", GPU)
    b = wm.asarray(shown(a, data=(a.ptr, True)))
    assert b.readonly
    with pytest.raises(BufferError, match="read-only"):
        b.fill_(1)
    assert b.__cuda_array_interface__["data"] == (a.ptr, True)
    with pytest.raises(BufferError, match="only by DLPack 1"):
        b.__dlpack__()
    assert wm.from_dlpack(b).readonly
    assert wm.from_dlpack(OnlyDLPack(b)).readonly


@needs_gpu
def test_empty_foreign_arrays_need_no_pointer():
    for pointer in (0, None):
        b = wm.asarray(
            Interface(
                shape=(3, 0),
                typestr="<f4",
                data=(pointer, False),
                version=3,
            )
        )
        assert b.shape == (3, 0)
        assert b.to(GPU).shape == (3, 0)


BAD = [
    ({"typestr": KeyError}, ValueError, "typestr"),
    ({"typestr": 7}, TypeError, "typestr"),
    ({"typestr": ">f4"}, TypeError, "big-endian"),
    ({"typestr": "|V8"}, TypeError, "V8"),
    ({"typestr": "|O"}, TypeError, "typestring|supported"),
    ({"typestr": ""}, TypeError, "typestring"),
    ({"typestr": "<f\x00"}, TypeError, "not a string|typestring|supported"),
    ({"typestr": "\ud800"}, TypeError, "not a string"),
    ({"data": KeyError}, ValueError, "data"),
    ({"data": 5}, TypeError, "read-only"),
    ({"data": (5,)}, TypeError, "read-only"),
    ({"data": (0, False)}, ValueError, "null"),
    ({"data": (None, False)}, ValueError, "null"),
    ({"data": (-5, False)}, ValueError, "address"),
    ({"data": (2**64, False)}, ValueError, "address"),
    ({"data": ("x", False)}, ValueError, "address"),
    ({"shape": KeyError}, ValueError, "shape"),
    ({"shape": 4}, TypeError, "shape"),
    ({"shape": (-1,), "strides": None}, ValueError, "negative"),
    ({"shape": (2**62, 2**62), "strides": None}, ValueError, "63 bits"),
    ({"shape": (1.5,), "strides": None}, ValueError, "shape"),
    ({"shape": (2**70,), "strides": None}, ValueError, "shape"),
    ({"shape": (1,) * 40, "strides": None}, ValueError, "40 dimensions"),
    ({"strides": (8,)}, ValueError, "strides"),
    ({"strides": (8, "x")}, ValueError, "strides"),
    ({"strides": 8}, TypeError, "strides"),
    ({"strides": (-(2**63), 8)}, ValueError, "63 bits"),
    ({"strides": (2**62, 8)}, ValueError, "63 bits|outside"),
    ({"strides": (2**40, 8)}, ValueError, "outside"),
    ({"strides": (-8, 8)}, ValueError, "outside"),
    ({"mask": object()}, ValueError, "masked"),
    ({"version": KeyError}, ValueError, "version"),
    ({"version": "3"}, ValueError, "version"),
    ({"version": -1}, ValueError, "version"),
    ({"stream": 0}, ValueError, "stream"),
    ({"stream": -1}, ValueError, "stream"),
    ({"stream": "x"}, ValueError, "stream"),
]


@needs_gpu
@pytest.mark.parametrize(("changes", "error", "text"), BAD, ids=repr)
def test_a_malformed_interface_is_told(changes, error, text):
    # Alone in its allocation, at the start.
    a = wm.zeros((2**18, 32), "f8", GPU)
    changes = {"shape": (3, 4), "strides": None, **changes}
    with pytest.raises(error, match=f"^obj: .*({text})"):
        wm.asarray(shown(a, **changes))


@pytest.mark.parametrize("value", [5, None, [], "x", ()])
def test_an_interface_that_is_no_dict_is_told(value):
    class Wrong:
        __cuda_array_interface__ = value

    with pytest.raises(TypeError, match=r"^obj: .*dict"):
        wm.asarray(Wrong())


def test_an_interface_that_raises_keeps_its_exception():
    class Raises:
        @property
        def __cuda_array_interface__(self):
            raise RuntimeError("requires grad")

    class Hides:
        @property
        def __cuda_array_interface__(self):
            raise AttributeError("on the host")

        __array_interface__ = np.zeros(3).__array_interface__

    with pytest.raises(RuntimeError, match="requires grad"):
        wm.asarray(Raises())
    assert wm.asarray(Hides()).shape == (3,)


@needs_gpu
@pytest.mark.parametrize("version", [2, 3])
def test_where_no_stream_is_named_a_handshake_is_tried(version):
    class Both(OnlyDLPack):
        @property
        def __cuda_array_interface__(self):
            return shown(
                self.array, version=version, stream=None
            ).__cuda_array_interface__

    a = wm.from_numpy(values(5), device=GPU)
    both = Both(a)
    assert np.array_equal(wm.array(both).numpy(), values(5))
    assert both.asked[0]["stream"] > 2

    both.__dlpack_device__ = None
    Both.__dlpack__ = None
    assert np.array_equal(wm.array(both).numpy(), values(5))


@needs_gpu
@pytest.mark.parametrize("cls", [OnlyDLPack, OldDLPack])
def test_dlpack_alone_is_enough(cls):
    for where in ("cpu", GPU):
        a = wm.from_numpy(values((3, 4), "f4"), device=where)
        foreign = cls(a)
        b = wm.asarray(foreign)
        assert b.ptr == a.ptr
        assert b.device == a.device
        assert np.array_equal(b.numpy(), values((3, 4), "f4"))
        assert wm.from_dlpack(foreign).ptr == a.ptr
        asked = foreign.asked[0].get("stream")
        assert (asked is None) == (where == "cpu")
        turned = wm.asarray(cls(a.T[::-1]))
        assert turned.strides == a.T[::-1].strides


@needs_gpu
def test_bfloat16_goes_by_dlpack():
    a = wm.array(values(4, ml_dtypes.bfloat16), device=GPU)
    assert not hasattr(a, "__cuda_array_interface__")
    b = wm.asarray(OnlyDLPack(a))
    assert b.dtype == ml_dtypes.bfloat16

    class Cupy(OnlyDLPack):
        @property
        def __cuda_array_interface__(self):
            return shown(self.array, typestr="<V2").__cuda_array_interface__

    assert wm.asarray(Cupy(a)).dtype == ml_dtypes.bfloat16


class TestDLPackThatIsWrong:
    class Base:
        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self, **arguments):
            return None

    @pytest.mark.parametrize(
        "device", [None, 5, (1,), ("a", 0), (1, 2**40), (2**40, 0), (1.5, 0)]
    )
    def test_device(self, device):
        class Wrong(self.Base):
            def __dlpack_device__(self):
                return device

        with pytest.raises(BufferError, match=r"^obj: .*__dlpack_device__"):
            wm.asarray(Wrong())

    @pytest.mark.parametrize("kind", [0, 4, 8, 10, 14, -1])
    def test_device_type(self, kind):
        class Wrong(self.Base):
            def __dlpack_device__(self):
                return (kind, 0)

        with pytest.raises(BufferError, match="device type"):
            wm.asarray(Wrong())

    def test_device_ordinal(self):
        class Wrong(self.Base):
            def __dlpack_device__(self):
                return (2, 63)

        with pytest.raises((ValueError, wm.CudaError)):
            wm.asarray(Wrong())

    @pytest.mark.parametrize("capsule", [None, 5, b"dltensor"])
    def test_capsule(self, capsule):
        class Wrong(self.Base):
            def __dlpack__(self, **arguments):
                return capsule

        with pytest.raises(BufferError, match="capsule"):
            wm.asarray(Wrong())

    def test_used_capsule(self):
        capsule = wm.zeros(3, device="cpu").__dlpack__(max_version=(1, 0))

        class Wrong(self.Base):
            def __dlpack__(self, **arguments):
                return capsule

        wm.asarray(Wrong())
        with pytest.raises(BufferError, match="unused"):
            wm.asarray(Wrong())

    def test_refusal_keeps_its_exception(self):
        class Wrong(self.Base):
            def __dlpack__(self, **arguments):
                raise RuntimeError("no")

        with pytest.raises(RuntimeError, match="no"):
            wm.asarray(Wrong())


def test_what_dlpack_owns_is_released_once():
    a = np.zeros(5)
    alive = weakref.ref(a)
    b = wm.asarray(OnlyDLPack(wm.asarray(a)))
    del a
    gc.collect()
    assert alive() is not None
    del b
    gc.collect()
    assert alive() is None


def test_capsule_lives_as_long_as_what_it_gave():
    """Some producers' tensors end with it, whatever the deleter says."""

    class Producer:
        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self, **arguments):
            return capsule

    for version in (None, (1, 0)):
        array = wm.zeros(3, device="cpu")
        capsule = array.__dlpack__(max_version=version)
        before = sys.getrefcount(capsule)
        view = wm.asarray(Producer())
        assert sys.getrefcount(capsule) == before + 1
        del view
        assert sys.getrefcount(capsule) == before


def test_from_dlpack_takes_dlpack_only():
    assert wm.from_dlpack(np.arange(3)).numpy().tolist() == [0, 1, 2]
    with pytest.raises(TypeError, match="__dlpack__"):
        wm.from_dlpack(b"abc")
    a = np.arange(3)
    assert wm.from_dlpack(a, copy=True).ptr != a.ctypes.data
    assert wm.from_dlpack(a, device="cpu", copy=False).ptr == a.ctypes.data


@pytest.mark.parametrize("habit", kinds.Copying.HABITS)
@pytest.mark.parametrize("where", ["cpu", pytest.param(GPU, marks=needs_gpu)])
def test_a_view_is_of_no_copy_that_the_object_does_not_show(where, habit):
    a = wm.from_numpy(values(3), device=where)
    copying = kinds.Copying(a, habit)
    assert wm.array(copying).numpy().tolist() == [0, 1, 2]
    assert wm.asarray(copying, copy=True).ptr != a.ptr
    assert wm.from_dlpack(copying, copy=True).ptr != a.ptr
    makers = [
        wm.asarray,
        lambda x: wm.asarray(x, copy=False),
        lambda x: wm.asarray(x, a.dtype),
        lambda x: wm.from_dlpack(x, copy=False),
    ]
    for make in makers:
        if habit == "obliges":
            view = make(copying)
            assert view.ptr == a.ptr
            assert not view.readonly
        else:
            with pytest.raises(BufferError, match=r"^(obj|x): Copying "):
                make(copying)
    view = wm.from_dlpack(copying)
    assert view.numpy().tolist() == [0, 1, 2]
    assert view.readonly == (habit != "obliges")


@needs_gpu
def test_the_interface_is_believed_rather_than_a_copy():
    a = wm.from_numpy(values(3), device=GPU)

    class Both(kinds.Copying):
        @property
        def __cuda_array_interface__(self):
            return shown(a, stream=None).__cuda_array_interface__

    for habit in kinds.Copying.HABITS:
        assert wm.asarray(Both(a, habit)).ptr == a.ptr


@needs_gpu
def test_from_dlpack_goes_to_another_device():
    a = np.arange(3)
    b = wm.from_dlpack(a, device=GPU)
    assert b.device == wm.get_device(GPU)
    with pytest.raises(ValueError, match="copy"):
        wm.from_dlpack(a, device=GPU, copy=False)


# --- DLPack's C exchange API ------------------------------------------------


Borrow = ctypes.PYFUNCTYPE(
    ctypes.c_int, ctypes.py_object, ctypes.POINTER(awaited.Tensor)
)
CurrentStream = ctypes.PYFUNCTYPE(
    ctypes.c_int,
    ctypes.c_int32,
    ctypes.c_int32,
    ctypes.POINTER(ctypes.c_void_p),
)


class Exchange(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint32 * 2),
        ("previous", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("from_object", ctypes.c_void_p),
        ("to_object", ctypes.c_void_p),
        ("borrow", Borrow),
        ("current_stream", CurrentStream),
    ]


class TorchLike:
    """What PyTorch looks like from 2.10 on, over one of our arrays."""

    streams: ClassVar = []

    def __init__(self, array, kind=None, code=None):
        self.array = array
        self.pointer = array.ptr
        size = array.itemsize
        self.shape = (ctypes.c_int64 * 8)(*array.shape)
        self.strides = (ctypes.c_int64 * 8)(
            *[s // size for s in array.strides]
        )
        self.kind = kind or array.__dlpack_device__()[0]
        code = code if code is not None else "iuf__c".index(array.dtype.kind)
        self.dtype = (ctypes.c_uint8 * 4)(code, size * 8, 1, 0)
        self.conjugated = self.negated = False

    def is_conj(self):
        return self.conjugated

    def is_neg(self):
        return self.negated

    @staticmethod
    def fill(tensor_object, out):
        tensor = out.contents
        tensor.data = tensor_object.pointer
        tensor.device[0] = tensor_object.kind
        tensor.device[1] = max(0, tensor_object.array.device.ordinal or 0)
        tensor.ndim = tensor_object.array.ndim
        tensor.dtype = tensor_object.dtype
        tensor.shape = tensor_object.shape
        tensor.strides = tensor_object.strides
        tensor.byte_offset = 0
        return 0

    @staticmethod
    def stream(kind, ordinal, out):
        TorchLike.streams.append((kind, ordinal))
        out[0] = None
        return 0


def _unused(*arguments):
    raise AssertionError("not to be called")


_UNUSED = ctypes.CFUNCTYPE(ctypes.c_int)(_unused)
_TABLE = Exchange(
    (1, 3),
    None,
    None,
    ctypes.cast(_UNUSED, ctypes.c_void_p),
    None,
    Borrow(TorchLike.fill),
    CurrentStream(TorchLike.stream),
)
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_NAME = b"dlpack_exchange_api"
TorchLike.__dlpack_c_exchange_api__ = _new_capsule(
    ctypes.addressof(_TABLE), _NAME, None
)


@pytest.mark.parametrize("where", ["cpu", pytest.param(GPU, marks=needs_gpu)])
def test_the_exchange_api_is_used(where):
    a = wm.from_numpy(values((3, 4), "f4"), device=where)
    TorchLike.streams.clear()
    tensor = TorchLike(a)
    b = wm.asarray(tensor)
    assert b.ptr == a.ptr
    assert b.shape == (3, 4)
    assert b.dtype == np.float32
    assert np.array_equal(b.numpy(), a.numpy())
    assert TorchLike.streams == ([] if where == "cpu" else [(2, 0)])
    alive = weakref.ref(tensor)
    del tensor
    assert alive() is not None
    del b
    assert alive() is None


@pytest.mark.parametrize("take", [wm.asarray, wm.from_dlpack])
def test_lazily_changed_tensors_are_refused(take):
    c = TorchLike(wm.zeros(3, "c8", "cpu"))
    take(c)
    c.conjugated = True
    with pytest.raises(BufferError, match="resolve_conj"):
        take(c)
    f = TorchLike(wm.zeros(6, "f4", "cpu")[::2])
    take(f)
    f.negated = True
    with pytest.raises(BufferError, match="resolve_neg"):
        take(f)


@needs_gpu
def test_a_pointer_that_cuda_does_not_know_is_told():
    a = TorchLike(wm.zeros(3, "f4", "cpu"), kind=2)
    with pytest.raises(wm.CudaError, match="does not know"):
        wm.asarray(a)


@needs_gpu
def test_memory_that_nobody_knows_is_told():
    """Host memory the interface for CUDA may show as well."""
    gone = shown(wm.zeros(8, "u1", GPU), data=(4096, False))
    with pytest.raises(wm.CudaError, match=r"^obj: .*freed"):
        wm.asarray(gone)
    host = wm.zeros(8, "u1", "cpu")
    fields = {"data": (host.ptr, False), "stream": None}
    assert wm.asarray(shown(host, **fields)).numpy().tolist() == [0] * 8


@pytest.mark.parametrize("code", [3, 4, 9, 255])
def test_exchanged_element_types_are_checked(code):
    with pytest.raises(TypeError, match=r"^obj: .*DLPack"):
        wm.asarray(TorchLike(wm.zeros(3, "f4", "cpu"), code=code))


# --- known producers --------------------------------------------------------


def test_warps_host_arrays_are_viewed():
    warp = pytest.importorskip("warp")
    warp.config.quiet = True
    warp.init()
    a = warp.array(values(6, "f4"), dtype=warp.float32, device="cpu")
    b = wm.asarray(a)
    assert b.ptr == a.ptr
    assert b.numpy().tolist() == list(range(6))
    v = warp.zeros(5, dtype=warp.vec3, device="cpu")
    assert wm.asarray(v).shape == (5, 3)
    assert wm.asarray(v).dtype == np.float32
    back = warp.from_dlpack(wm.array(values(3), device="cpu"))
    assert back.numpy().tolist() == [0, 1, 2]


def _in_module(name, cls):
    cls.__module__ = name
    return cls


@needs_gpu
def test_warps_stream_is_found_beside_its_interface():
    class WarpArray(Interface):
        asked = 0

        @property
        def device(self):
            self.asked += 1
            return self

        @property
        def stream(self):
            return self

        cuda_stream = None

    _in_module("warp._src.types", WarpArray)
    WarpArray.__name__ = "array"
    a = wm.from_numpy(values(5), device=GPU)
    interface = shown(a, version=2, stream=KeyError)
    w = WarpArray(a, **interface.__cuda_array_interface__)
    assert np.array_equal(wm.array(w).numpy(), values(5))
    assert w.asked == 1


def test_jax_arrays_are_read_only():
    cls = _in_module("jaxlib._jax", type("ArrayImpl", (OnlyDLPack,), {}))
    b = wm.asarray(cls(wm.from_numpy(values(3), device="cpu")))
    assert b.readonly
    assert b.numpy().tolist() == [0, 1, 2]


def test_a_type_that_is_only_called_like_numpys_is_not_read_as_one():
    for name in ("numpy.ndarray", "ndarray"):
        for base in (object, bytes):
            namesake = type(name, (base,), {"__module__": "numpy"})()
            with pytest.raises(TypeError, match="not an array"):
                wm.asarray(object.__new__(type(name, (), {})))
            assert not wm.is_on_device(namesake)
    derived = type("numpy.ndarray", (np.ndarray,), {})
    assert wm.asarray(values(3).view(derived)).numpy().tolist() == [0, 1, 2]


# --- ours, seen by others ---------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_host_arrays_have_the_buffer_protocol(dtype):
    a = wm.from_numpy(values((3, 4), dtype), device="cpu")
    m = memoryview(a)
    assert m.shape == (3, 4)
    assert m.strides == a.strides
    assert not m.readonly
    assert np.asarray(m).dtype == dtype
    assert bytes(a) == values((3, 4), dtype).tobytes()
    assert np.asarray(a).ctypes.data == a.ptr
    assert np.from_dlpack(a).ctypes.data == a.ptr
    assert not hasattr(a, "__cuda_array_interface__")
    assert a.__array_interface__["typestr"] == np.dtype(dtype).str
    turned = memoryview(a.T)
    assert turned.f_contiguous
    assert not turned.c_contiguous
    np.asarray(a)[0, 0] = 1
    assert a.numpy()[0, 0] == 1


def test_a_contiguous_buffer_is_refused_of_a_strided_array():
    a = wm.zeros((3, 4), device="cpu")[:, ::2]
    with pytest.raises(BufferError, match="contiguous"):
        np.frombuffer(a)
    assert memoryview(a).tolist() == [[0, 0]] * 3
    assert memoryview(wm.zeros((2, 0), device="cpu")).nbytes == 0
    assert memoryview(wm.zeros((), device="cpu")).tolist() == 0


@needs_gpu
def test_gpu_arrays_have_no_buffer_and_say_what_has():
    a = wm.zeros(3, device=GPU)
    with pytest.raises(BufferError, match=r"\.numpy\(\)"):
        memoryview(a)
    assert not hasattr(a, "__array_interface__")
    assert np.asarray(a).tolist() == [0, 0, 0]
    assert np.asarray(a, dtype="i4").dtype == np.int32
    with pytest.raises(ValueError, match="copy"):
        a.__array__(copy=False)


@needs_gpu
def test_the_cuda_array_interface_is_version_3():
    a = wm.zeros((3, 4), "f4", GPU)
    assert a.__cuda_array_interface__ == {
        "shape": (3, 4),
        "typestr": "<f4",
        "data": (a.ptr, False),
        "strides": None,
        "version": 3,
        "stream": None,
    }
    assert a.T.__cuda_array_interface__["strides"] == (4, 16)
    assert a[:0].__cuda_array_interface__["data"] == (0, False)
    assert a[:, ::-1].__cuda_array_interface__["data"] == (a.ptr + 12, False)


def test_array_dunder_follows_numpys_rules():
    a = wm.from_numpy(values(3, "i4"), device="cpu")
    assert a.__array__().ctypes.data == a.ptr
    assert a.__array__(copy=False).ctypes.data == a.ptr
    assert a.__array__(copy=True).ctypes.data != a.ptr
    assert a.__array__("f8").dtype == np.float64
    assert a.__array__("i4", copy=False).ctypes.data == a.ptr
    with pytest.raises(ValueError, match="copy"):
        a.__array__("f8", copy=False)
    assert np.array(a, copy=True).tolist() == [0, 1, 2]
    assert np.asarray(a, dtype="c16").tolist() == [0, 1, 2]


@pytest.mark.parametrize("where", ["cpu", pytest.param(GPU, marks=needs_gpu)])
def test_dlpack_device_and_arguments(where):
    a = wm.from_numpy(values((2, 3), "f4"), device=where)
    assert a.__dlpack_device__() == ((1, 0) if where == "cpu" else (2, 0))
    name = "dltensor"
    assert f'"{name}"' in repr(a.__dlpack__())
    assert f'"{name}"' in repr(a.__dlpack__(max_version=(0, 8)))
    for version in [(1, 0), (1, 5), (2, 0)]:
        capsule = a.__dlpack__(max_version=version)
        assert f'"{name}_versioned"' in repr(capsule)
    assert a.__dlpack__(stream=-1) is not None
    own = a.__dlpack_device__()
    assert a.__dlpack__(dl_device=own, copy=False) is not None
    assert a.__dlpack__(copy=True, max_version=(1, 0)) is not None
    with pytest.raises(TypeError):
        a.__dlpack__(1)
    with pytest.raises(TypeError, match="max_version"):
        a.__dlpack__(max_version=1)
    with pytest.raises(TypeError, match="dl_device"):
        a.__dlpack__(dl_device="cpu")
    with pytest.raises(BufferError, match="not supported"):
        a.__dlpack__(dl_device=(4, 0))
    with pytest.raises((TypeError, ValueError)):
        a.__dlpack__(stream="x")


@needs_gpu
def test_dlpack_streams_are_checked():
    a = wm.zeros(3, "f4", GPU)
    for stream in (None, -1, 1, 2, wm.Stream(GPU).cuda_stream):
        assert a.__dlpack__(stream=stream) is not None
    for stream in (0, -2):
        with pytest.raises(ValueError, match="stream"):
            a.__dlpack__(stream=stream)
    with pytest.raises(ValueError, match="stream"):
        a.to("cpu").__dlpack__(stream=1)


@needs_gpu
def test_dlpack_copies_to_another_device_unless_told_not_to():
    a = wm.from_numpy(values((2, 3), "f4"), device=GPU)

    class ToHost(OnlyDLPack):
        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self, **arguments):
            return self.array.__dlpack__(dl_device=(1, 0), **arguments)

    assert np.array_equal(np.from_dlpack(a, device="cpu"), a.numpy())
    assert np.array_equal(np.from_dlpack(ToHost(a)), a.numpy())
    with pytest.raises(BufferError, match="copy"):
        a.__dlpack__(dl_device=(1, 0), copy=False)


def test_dlpack_keeps_the_memory_and_unused_capsules_free_it():
    a = np.zeros(5)
    alive = weakref.ref(a)
    b = wm.asarray(a)
    for version in (None, (1, 0)):
        b.__dlpack__(max_version=version)  # nobody takes it
    c = np.from_dlpack(b)
    del a, b
    gc.collect()
    assert alive() is not None
    del c
    gc.collect()
    assert alive() is None


def test_readonly_goes_through_dlpack():
    a = np.zeros(3)
    a.flags.writeable = False
    b = wm.asarray(a)
    assert not np.from_dlpack(b).flags.writeable
    assert wm.from_dlpack(OnlyDLPack(b)).readonly
    with pytest.raises(BufferError):
        wm.asarray(OldDLPack(b))


def test_unaligned_strides_are_no_dlpack():
    raw = np.zeros(64, "u1")
    view = np.ndarray((3,), "<f4", raw.data, 1, (5,))
    with pytest.raises(BufferError, match=r"\.copy\(\)"):
        wm.asarray(view).__dlpack__()


def test_foreign_arrays_may_outlive_the_interpreter():
    code = (
        "import numpy as np, warpmpi as wm\n"
        "keep = [wm.asarray(np.zeros(9)), wm.zeros(9, device='cpu')]\n"
        "keep.append(np.from_dlpack(wm.asarray(np.zeros(9))))\n"
        "keep.append(keep)\n"
        "wm.keep = keep\n"
        "if wm.is_cuda_available():\n"
        "    keep.append(wm.zeros(9))\n"
        "    keep[-1].fill_(1, blocking=False)\n"
        "    keep.append(wm.zeros(9, pinned=True))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_another_numpy_than_was_built_for_is_refused():
    """What NumPy's own header checks: a table of another version is none."""
    code = (
        "import ctypes, sys, numpy as np, warpmpi as wm\n"
        "assert wm.asarray(bytearray(8)).nbytes == 8\n"
        "told = ctypes.CFUNCTYPE(ctypes.c_uint)(lambda: 0x7000000)\n"
        "table = (ctypes.c_void_p * 400)()\n"
        "table[0] = ctypes.cast(told, ctypes.c_void_p)\n"
        "make = ctypes.pythonapi.PyCapsule_New\n"
        "make.argtypes = [ctypes.c_void_p] * 3\n"
        "make.restype = ctypes.py_object\n"
        "core = getattr(np, '_core', None) or np.core\n"
        "core._multiarray_umath._ARRAY_API = make(table, None, None)\n"
        "for turn in range(2):\n"
        "    try:\n"
        "        wm.asarray(np.zeros(9))\n"
        "    except ImportError as error:\n"
        "        print(error)\n"
        "print(np.zeros(2).sum())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    *told, last = done.stdout.splitlines()
    assert last == "0.0"
    assert [line.partition("another NumPy")[1] for line in told] == [
        "another NumPy"
    ] * 2
    assert "ABI version" in done.stderr


@pytest.fixture
def cupy_like(monkeypatch):
    """Makes objects that have CuPy's attributes, and no array interface."""
    package, cuda = types.ModuleType("cupy"), types.ModuleType("cupy.cuda")
    package.cuda = cuda
    cuda.get_current_stream = lambda: types.SimpleNamespace(ptr=0)
    if "cupy" not in sys.modules:
        monkeypatch.setitem(sys.modules, "cupy", package)
        monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)

    def make(array, **changes):
        fields = {
            "data": types.SimpleNamespace(ptr=array.ptr),
            "dtype": array.dtype,
            "shape": array.shape,
            "strides": array.strides,
            "_c_contiguous": array.is_contiguous,
            "keep": array,
        }
        cls = _in_module("cupy", type("ndarray", (), {}))
        result = cls()
        vars(result).update({**fields, **changes})
        return result

    return make


@needs_gpu
def test_cupy_arrays_are_read_by_their_attributes(cupy_like):
    a = wm.array(np.arange(12, dtype="f4").reshape(3, 4), device=GPU)
    assert wm.asarray(cupy_like(a)).numpy().tolist() == a.numpy().tolist()
    part = a[:, ::2]
    view = wm.asarray(cupy_like(part))
    assert view.strides == part.strides
    assert view.numpy().tolist() == part.numpy().tolist()
    assert wm.asarray(cupy_like(a[:0])).shape == (0, 4)


@needs_gpu
def test_what_cupy_attributes_do_not_say_is_asked_for(cupy_like):
    """The array interface serves where they are not as expected."""
    a = wm.array(np.arange(12, dtype="f4"), device=GPU)
    odd = cupy_like(a, data=None)
    with pytest.raises(TypeError, match="not an array"):
        wm.asarray(odd)
    odd.__cuda_array_interface__ = shown(a).__cuda_array_interface__
    assert wm.asarray(odd).numpy().tolist() == a.numpy().tolist()


@needs_gpu
def test_an_interrupt_in_an_attribute_is_not_swallowed(cupy_like):
    class Data:
        @property
        def ptr(self):
            raise KeyboardInterrupt

    a = wm.array(np.arange(12, dtype="f4"), device=GPU)
    with pytest.raises(KeyboardInterrupt):
        wm.asarray(cupy_like(a, data=Data()))


@needs_gpu
def test_cupys_current_stream_comes_from_its_c_function():
    """And is waited for, as it is where Python alone tells it."""
    code = """
import ctypes, sys, threading, types
import warpmpi as wm, kinds

stream = wm.Stream(wm.get_device())
for name in "cupy", "cupy.cuda", "cupy_backends", "cupy_backends.cuda":
    sys.modules[name] = types.ModuleType(name)
module = types.ModuleType("cupy_backends.cuda.stream")
sys.modules["cupy_backends.cuda.stream"] = module
signature = sys.argv[1].encode()
current = ctypes.PYFUNCTYPE(ctypes.c_ssize_t)(lambda: stream.cuda_stream)
new = ctypes.pythonapi.PyCapsule_New
new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
new.restype = ctypes.py_object
address = ctypes.cast(current, ctypes.c_void_p)
module.__pyx_capi__ = {
    "get_current_stream_ptr": new(address, signature, None),
}
asked = []
sys.modules["cupy.cuda"].get_current_stream = lambda: (
    asked.append(1) or types.SimpleNamespace(ptr=stream.cuda_stream)
)

class ndarray:
    __module__ = "cupy"
    def __init__(self, array):
        self.data = types.SimpleNamespace(ptr=array.ptr)
        self.dtype, self.shape = array.dtype, array.shape
        self.strides, self._c_contiguous = array.strides, True
        self.keep = array

a = wm.zeros(4, "f4")
wm.synchronize()
with kinds.Gate() as gate:
    gate.stop(stream)
    reader = threading.Thread(target=wm.asarray(ndarray(a)).numpy)
    reader.start()
    reader.join(0.2)
    print(reader.is_alive(), len(asked))
reader.join()
"""
    for signature, asked in ("intptr_t (void)", 0), ("int (void)", 1):
        done = subprocess.run(
            [sys.executable, "-c", code, signature],
            capture_output=True,
            text=True,
            cwd=pathlib.Path(__file__).parent,
        )
        assert (done.stdout, done.stderr) == (f"True {asked}\n", "")
