# SPDX-License-Identifier: BSD-3-Clause
"""Whatever an object says of itself: an array or an exception, no crash."""

import ctypes

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import warpmpi as wm

EXPECTED = (TypeError, ValueError, BufferError, wm.CudaError)

# Memory that any address among the fields may point to: what is accepted is
# read, so lengths are kept below its size by the addresses alone.
MEMORY = np.arange(4096, dtype="u1")
GPU = wm.array(MEMORY, device="cuda:0") if wm.is_cuda_available() else None
POINTERS = [MEMORY.ctypes.data]
if GPU is not None:
    POINTERS.append(GPU.ptr)

junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**65), 2**65)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5)
    | st.builds(object),
    lambda inner: (
        st.tuples(inner, inner)
        | st.lists(inner, max_size=4)
        | st.lists(inner, max_size=40).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=8,
)
typestr = (
    st.sampled_from(
        [np.dtype(c).str for c in "?bhilBHILefdFD"]
        + [">f4", "|V8", "<V2", "|O", "<U4", "<M8[s]", "=f4", "|f4", "<f3"]
    )
    | st.text(alphabet="<>=|fiucbV0123456789", max_size=6)
    | junk
)
extents = st.lists(
    st.integers(0, 3) | st.integers(-(2**63), 2**63 - 1), max_size=5
)
# Small enough to stay inside of MEMORY when it is accepted.
inside = st.lists(st.integers(0, 3), max_size=3)
steps = st.lists(st.integers(0, 64), min_size=3, max_size=3)


def sequence(ints):
    return ints.map(tuple) | ints | junk


class Object:
    """Shows the dictionary, and keeps nothing."""

    def __init__(self, name, fields):
        setattr(self, name, fields)


@st.composite
def interfaces(draw):
    """Mostly right ones, each field wrong or missing once in a while."""
    shape = tuple(draw(inside))
    right = {
        "shape": st.just(shape),
        "typestr": st.sampled_from(["<f4", "<i8", "|u1", "<c16", "|b1"]),
        "data": st.tuples(st.sampled_from(POINTERS), st.booleans()),
        "strides": st.none() | steps.map(lambda s: tuple(s[: len(shape)])),
        "version": st.integers(0, 4),
        "stream": st.none() | st.sampled_from([1, 2]),
        "mask": st.none(),
    }
    # Whatever cannot be told to be wrong has to be harmless: no address, and
    # no handle, of anything else.
    wrong = {
        "shape": sequence(extents.filter(lambda e: any(x < 0 for x in e)))
        | junk,
        "typestr": typestr,
        "data": junk | st.tuples(st.just(0) | st.none(), st.booleans()),
        "strides": junk,
        "version": junk,
        "stream": st.sampled_from([0, -1, "x", 2**64, 1.5, ()]),
        "mask": junk,
    }
    made = {}
    for name in right:
        luck = draw(st.integers(0, 9))
        if luck == 0:
            continue
        made[name] = draw(wrong[name] if luck == 1 else right[name])
    return made


def read(name, fields):
    try:
        array = wm.asarray(Object(name, fields))
    except EXPECTED as error:
        assert str(error)
        return
    assert array.numpy().shape == array.shape
    assert array.nbytes >= 0


@settings(max_examples=400)
@given(interfaces())
def test_cuda_array_interfaces(fields):
    read("__cuda_array_interface__", fields)


@settings(max_examples=200)
@given(interfaces())
def test_array_interfaces(fields):
    read("__array_interface__", fields)


@settings(max_examples=200)
@given(junk)
def test_interfaces_that_are_anything(fields):
    read("__cuda_array_interface__", fields)


@given(junk)
def test_objects_that_are_anything(thing):
    try:
        wm.asarray(thing)
    except EXPECTED as error:
        assert str(error).startswith("obj: ")


@settings(max_examples=400)
@given(typestr)
def test_typestrings_agree_with_numpy(text):
    fields = {"shape": (0,), "typestr": text, "data": (0, False), "version": 3}
    try:
        found = wm.asarray(Object("__cuda_array_interface__", fields)).dtype
    except (TypeError, ValueError):
        return
    assert found == np.dtype(text)


@settings(max_examples=200)
@given(typestr)
def test_dtypes_are_numpys_or_a_type_error(thing):
    try:
        found = wm.empty(0, dtype=thing, device="cpu").dtype
    except (TypeError, ValueError):
        return
    if thing is None:
        assert found == np.float64
    elif thing != "bfloat16":
        assert found == np.dtype(thing)


# --- DLPack ------------------------------------------------------------------


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Legacy(ctypes.Structure):
    _fields_ = [
        ("tensor", Tensor),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
    ]


class Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
NAMES = {Legacy: b"dltensor", Versioned: b"dltensor_versioned"}


class Exporter:
    """Hands out one capsule and counts its deletion."""

    def __init__(self, kind, device):
        self.managed = kind()
        self.device = device
        self.deleted = 0
        self.deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._delete)
        self.managed.deleter = self.deleter
        self.capsule = new_capsule(
            ctypes.addressof(self.managed), NAMES[kind], None
        )

    def _delete(self, pointer):
        assert pointer == ctypes.addressof(self.managed)
        self.deleted += 1

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **arguments):
        return self.capsule


@settings(max_examples=400)
@given(
    kind=st.sampled_from([Legacy, Versioned]),
    major=st.sampled_from([1, 1, 1, 1, 0, 2, 2**32 - 1]),
    shape=st.none() | inside | extents.filter(lambda e: any(x < 0 for x in e)),
    strides=st.none() | steps | st.just([2**62, -(2**63), 2**63 - 1]),
    ndim=st.sampled_from([None, None, None, -1, 33, 2**31 - 1]),
    dtype=st.tuples(
        st.integers(0, 17), st.sampled_from([8, 16, 32, 64, 128, 4, 0])
    ),
    lanes=st.sampled_from([1, 1, 1, 0, 4]),
    flags=st.integers(0, 7),
    device=st.tuples(st.sampled_from([1, 1, 1, 3, 4, 14, 99]), st.just(0)),
    null=st.booleans(),
)
def test_dlpack_tensors(
    kind, major, shape, strides, ndim, dtype, lanes, flags, device, null
):
    exporter = Exporter(kind, (1, 0))
    managed = exporter.managed
    if kind is Versioned:
        managed.major, managed.minor, managed.flags = major, 0, flags
    tensor = managed.tensor
    tensor.data = None if null else MEMORY.ctypes.data
    tensor.device_type, tensor.device_id = device
    tensor.ndim = len(shape or ()) if ndim is None else ndim
    tensor.code, tensor.bits = dtype
    tensor.lanes = lanes
    keep = [(ctypes.c_int64 * 64)(*(shape or ())), None]
    if shape is not None:
        tensor.shape = keep[0]
    if strides is not None:
        keep[1] = (ctypes.c_int64 * 64)(*strides)
        tensor.strides = keep[1]
    try:
        array = wm.asarray(exporter)
    except EXPECTED as error:
        assert str(error).startswith("obj: ")
    else:
        assert array.numpy().shape == tuple(shape or ())
        assert array.readonly == (kind is Versioned and bool(flags & 1))
        assert exporter.deleted == 0
        del array
    assert exporter.deleted == 1


@given(junk, junk)
def test_dlpack_methods_that_give_anything(device, capsule):
    class Wrong:
        def __dlpack_device__(self):
            return device

        def __dlpack__(self, **arguments):
            return capsule

    with pytest.raises(EXPECTED):
        wm.asarray(Wrong())


# --- the buffer protocol -----------------------------------------------------


@given(
    st.text(alphabet="@=<>!bBhHiIlLqQnNfdeZ?cgsPT{}:x0123456789", max_size=6)
)
def test_buffer_formats(text):
    try:
        view = memoryview(bytearray(64)).cast(text)
    except (ValueError, TypeError):
        return
    try:
        array = wm.asarray(view)
    except EXPECTED as error:
        assert str(error).startswith("obj: ")
    else:
        assert array.itemsize == view.itemsize
        assert array.nbytes == 64


@given(st.text(max_size=8) | junk, st.integers(0, 2))
def test_keys_that_are_anything(key, ndim):
    array = wm.zeros((3,) * ndim, device="cpu")
    try:
        assert array[key].device.is_cpu
    except IndexError as error:
        assert str(error)


@given(junk)
def test_shapes_that_are_anything(shape):
    def small(value):
        return not isinstance(value, int) or abs(value) < 100 or value > 2**60

    if not small(shape) or (
        isinstance(shape, (list, tuple)) and not all(map(small, shape))
    ):
        return
    try:
        wm.zeros(shape, "u1", device="cpu")
    except (*EXPECTED, OverflowError, MemoryError) as error:
        assert str(error)
