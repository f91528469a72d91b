# SPDX-License-Identifier: BSD-3-Clause
"""wm.Array does to memory of every kind what NumPy does to its own."""

import copy
import operator
import os
import pickle
import subprocess
import sys
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import warpmpi as wm

ml_dtypes = pytest.importorskip("ml_dtypes")

PLACES = ["cpu"]
if wm.is_cuda_available():
    PLACES += ["pinned"]
    PLACES += [f"cuda:{i}" for i in range(min(2, wm.get_cuda_device_count()))]
GPUS = [place for place in PLACES if place.startswith("cuda")]
DTYPES = [
    *("bool", "int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
    ml_dtypes.bfloat16,
]


def options(place):
    if place == "pinned":
        return {"device": "cpu", "pinned": True}
    return {"device": place}


@pytest.fixture(params=PLACES)
def place(request):
    return request.param


def values(shape, dtype="float64"):
    count = int(np.prod(shape))
    return (np.arange(count) % 251).reshape(shape).astype(dtype)


# --- made -------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (5,), (3, 4), (2, 0, 3)])
def test_from_numpy_gives_the_values_back(place, dtype, shape):
    a = values(shape, dtype)
    b = wm.from_numpy(a, **options(place))
    assert b.dtype == a.dtype
    assert b.shape == a.shape
    assert b.strides == a.strides or a.size == 0
    assert (b.ndim, b.size, b.nbytes) == (a.ndim, a.size, a.nbytes)
    assert b.itemsize == a.itemsize
    assert b.is_contiguous
    assert not b.readonly
    assert b.pinned is (place == "pinned")
    assert b.device == wm.get_device("cpu" if place == "pinned" else place)
    back = b.numpy()
    assert back.dtype == a.dtype
    assert back.shape == a.shape
    assert np.array_equal(back, a)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_zeros_ones_full_hold_their_value(place, dtype):
    for made, value in [
        (wm.zeros((3, 5), dtype, **options(place)), 0),
        (wm.ones((3, 5), dtype, **options(place)), 1),
        (wm.full((3, 5), 3, dtype, **options(place)), 3),
    ]:
        assert made.dtype == np.dtype(dtype)
        expected = np.full((3, 5), value).astype(dtype)
        assert np.array_equal(made.numpy(), expected)


def test_full_takes_numpys_type_of_its_value(place):
    assert wm.full(2, 1.5, **options(place)).dtype == np.float64
    assert wm.full(2, True, **options(place)).dtype == np.bool_
    assert wm.full(2, 1j, **options(place)).dtype == np.complex128
    value = np.float32(1.5)
    assert wm.full(2, value, **options(place)).dtype == np.float32
    with pytest.raises(ValueError, match="one scalar"):
        wm.full(2, [1, 2], **options(place))


def test_default_dtype_and_device_are_float64_and_the_current_device():
    assert wm.empty(3).dtype == np.float64
    assert wm.zeros(3).device == wm.get_device()
    assert wm.empty(3, pinned=False, device="cpu").device.is_cpu
    if GPUS:
        assert wm.empty(3, pinned=True).device.is_cpu


def test_like_makers_take_after_their_model(place):
    model = wm.zeros((2, 3), "float32", **options(place))
    for made, value in [
        (wm.zeros_like(model), 0),
        (wm.ones_like(model), 1),
        (wm.full_like(model, 7.9), np.float32(7.9)),
    ]:
        assert made.shape == (2, 3)
        assert made.dtype == np.float32
        assert made.device == model.device
        assert made.pinned == model.pinned
        assert np.all(made.numpy() == value)
    other = wm.empty_like(model, dtype="int8", device="cpu", pinned=False)
    assert other.dtype == np.int8
    assert other.device.is_cpu
    assert wm.empty_like(np.zeros((4, 1), "u2")).shape == (4, 1)


def test_array_takes_nested_lists_scalars_and_arrays(place):
    there = options(place)
    assert wm.array([[1, 2], [3, 4]], **there).dtype == np.int64
    assert wm.array([1.5], dtype="float16", **there).numpy() == [1.5]
    assert wm.array(3, **there).shape == ()
    assert wm.array(np.float32(2), **there).item() == 2
    assert wm.array([True, False], **there).dtype == np.bool_
    a = wm.array(values((3, 4)), **there)
    b = wm.array(a, **there)
    b.fill_(0)
    assert np.array_equal(a.numpy(), values((3, 4)))
    for dtype in (">f4", ">i8", ">c16"):
        big = values(5, dtype)
        assert np.array_equal(wm.array(big, **there).numpy(), big)
    assert wm.array(values(3, "i4"), "float32", **there).dtype == np.float32


@pytest.mark.parametrize(
    "bad", [object(), "text", ["text"], None, np.zeros(2, "M8[s]"), [None]]
)
def test_array_refuses_what_is_no_data(bad):
    with pytest.raises((TypeError, ValueError)):
        wm.array(bad, device="cpu")


@pytest.mark.parametrize(
    ("shape", "error"),
    [
        (-1, ValueError),
        ((2, -3), ValueError),
        ((2**40, 2**40), ValueError),
        ((1,) * 33, ValueError),
        (2.5, TypeError),
        ("3", TypeError),
        ((2**70,), OverflowError),
        (2**70, OverflowError),
    ],
)
def test_a_bad_shape_is_refused(shape, error):
    with pytest.raises(error, match="shape: "):
        wm.empty(shape, device="cpu")


@pytest.mark.parametrize("dtype", [object, str, "O", "M8[s]"])
def test_elements_that_are_not_supported_are_listed(dtype):
    with pytest.raises(TypeError, match="not supported: use bool, an int"):
        wm.empty(3, dtype, device="cpu")


def test_what_a_shape_raises_is_not_hidden():
    def shape():
        yield 1
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        wm.empty(shape(), device="cpu")


def test_a_shape_that_changes_while_it_is_read():
    class Clearing:
        def __index__(self):
            shape.clear()
            return 2

    for _ in range(50):
        shape = [Clearing(), 10**6 + 1, 3]
        assert wm.empty(shape, device="cpu").shape == (2, 10**6 + 1, 3)


@pytest.mark.parametrize("bad", ["M8[s]", "V8", "O", ">f4", "f16", "nope", 7])
def test_a_bad_dtype_is_refused(bad):
    with pytest.raises(TypeError, match="dtype: "):
        wm.empty(3, dtype=bad, device="cpu")


def test_dtypes_of_other_libraries_are_known_by_name():
    warp = pytest.importorskip("warp")
    assert wm.empty(1, warp.float32, device="cpu").dtype == np.float32
    assert wm.empty(1, "bfloat16", device="cpu").dtype == ml_dtypes.bfloat16

    class TorchLike:
        def __repr__(self):
            return "torch.bfloat16"

    made = wm.empty(1, TorchLike(), device="cpu")
    assert made.dtype == ml_dtypes.bfloat16


@pytest.mark.skipif(not GPUS, reason="needs a GPU")
def test_pinned_memory_of_a_gpu_is_refused():
    with pytest.raises(ValueError, match="pinned"):
        wm.empty(3, device=GPUS[0], pinned=True)


# --- indexed ----------------------------------------------------------------


@pytest.mark.parametrize(
    "key",
    [
        0,
        -1,
        np.int64(1),
        slice(None),
        slice(1, 3),
        slice(None, None, -1),
        slice(3, None, -2),
        slice(5, 2),
        ...,
        None,
        (1, 2),
        (slice(None), 2),
        (..., 1),
        (0, ..., 1),
        (None, slice(1, 2), None, ..., None),
        (slice(None, None, 2), slice(None, None, -3), slice(1, None)),
        (3, 4, 5),
        (),
    ],
    ids=repr,
)
def test_indexing_gives_the_view_that_numpy_gives(place, key):
    a = values((4, 5, 6))
    b = wm.from_numpy(a, **options(place))
    view = b[key]
    assert view.shape == a[key].shape
    assert np.array_equal(view.numpy(), a[key])
    a[key] = -1
    view.fill_(-1)
    assert np.array_equal(b.numpy(), a)


@given(data=st.data())
def test_any_basic_index_is_numpys(data):
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0))
    key = data.draw(
        hnp.basic_indices(shape, allow_newaxis=True, allow_ellipsis=True)
    )
    a = values(shape, "int16")
    for place in PLACES:
        b = wm.from_numpy(a, **options(place))
        assert np.array_equal(b[key].numpy(), a[key])
        assert b[key].shape == a[key].shape


@given(data=st.data())
def test_any_strided_assignment_is_numpys(data):
    dtype = data.draw(st.sampled_from(["u1", "u2", "f4", "f8", "c16"]))
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=4, max_side=9))
    to = data.draw(hnp.basic_indices(shape))
    axes = data.draw(st.permutations(range(len(shape))))
    flips = data.draw(
        st.tuples(*[st.sampled_from([slice(None), slice(None, None, -1)])] * 4)
    )
    here = data.draw(st.sampled_from(PLACES))
    there = data.draw(st.sampled_from(PLACES))
    target = np.zeros(shape, dtype)
    ours = wm.from_numpy(target, **options(here))
    wanted = target[to]
    source = values(wanted.T.shape if wanted.ndim else (), dtype) + 1
    source = np.asarray(source, dtype).T[flips[: wanted.ndim]]
    theirs = wm.from_numpy(source.T, **options(there)).T
    target[to] = source
    ours[to] = theirs
    assert np.array_equal(ours.numpy(), target)
    whole = wm.from_numpy(values(shape, dtype), **options(here))
    turned = values(shape, dtype).transpose(axes)
    assert np.array_equal(whole.transpose(axes).numpy(), turned)
    assert np.array_equal(whole.transpose(axes).copy().numpy(), turned)


@pytest.mark.parametrize(
    ("key", "error"),
    [
        (4, IndexError),
        (-5, IndexError),
        ((0, 0, 0, 0), IndexError),
        ((..., ...), IndexError),
        ([0, 1], IndexError),
        (True, IndexError),
        ("a", IndexError),
        (1.5, IndexError),
        (np.array([True]), IndexError),
        ((None,) * 33, IndexError),
        (2**70, IndexError),
    ],
    ids=repr,
)
def test_a_bad_index_is_refused(key, error):
    with pytest.raises(error):
        wm.zeros((4, 5, 6), device="cpu")[key]


def test_len_and_iteration_are_over_the_first_dimension(place):
    a = values((3, 2))
    b = wm.from_numpy(a, **options(place))
    assert len(b) == 3
    assert [row.numpy().tolist() for row in b] == a.tolist()
    with pytest.raises(TypeError):
        len(b[0, 0])
    with pytest.raises(TypeError):
        iter(b[0, 0])
    with pytest.raises(TypeError):
        del b[0]


def test_a_view_keeps_its_memory(place):
    view = wm.from_numpy(values(1000), **options(place))[500:]
    again = wm.zeros(1000, **options(place))
    assert np.array_equal(view.numpy(), values(1000)[500:])
    assert not again.numpy().any()


# --- reshaped ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "new"),
    [
        ((6,), (2, 3)),
        ((2, 3), -1),
        ((2, 3, 4), (3, -1, 2)),
        ((), (1, 1)),
        ((1,), ()),
        ((0, 3), (3, 0)),
        ((0, 3), (0, 5)),
    ],
)
def test_reshape_is_a_view(place, shape, new):
    a = values(shape)
    b = wm.from_numpy(a, **options(place))
    c = b.reshape(new)
    assert c.shape == a.reshape(new).shape
    assert np.array_equal(c.numpy(), a.reshape(new))
    c.fill_(9)
    assert np.all(b.numpy() == 9)
    if isinstance(new, tuple) and new:
        assert b.reshape(*new).shape == c.shape


NUMPY = tuple(int(part) for part in np.__version__.split(".")[:2])


@given(data=st.data())
def test_reshape_of_strided_arrays_is_numpys_or_refused(data):
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=4, max_side=4))
    axes = data.draw(st.permutations(range(len(shape))))
    a = values(shape).transpose(axes)
    b = wm.asarray(values(shape)).transpose(axes)
    count = a.size
    divisor = data.draw(
        st.sampled_from([d for d in range(1, count + 1) if count % d == 0])
    )
    new = (divisor, count // divisor)
    try:
        c = b.reshape(new)
    except ValueError:
        if NUMPY >= (2, 1):
            with pytest.raises(ValueError):
                np.reshape(a, new, copy=False)
        c = b.copy().reshape(new)
    assert np.array_equal(c.numpy(), a.reshape(new))


@pytest.mark.parametrize("new", [(4,), (-1, -1), (5, -1), (-2, -3), (0, -1)])
def test_reshape_refuses_what_does_not_fit(new):
    with pytest.raises(ValueError, match=r"shape: .* does not fit 6 elements"):
        wm.zeros((2, 3), device="cpu").reshape(new)


def test_transpose_is_a_view(place):
    a = values((2, 3, 4))
    b = wm.from_numpy(a, **options(place))
    assert np.array_equal(b.T.numpy(), a.T)
    assert b.T.strides == a.T.strides
    assert np.array_equal(b.transpose(1, 0, 2).numpy(), a.transpose(1, 0, 2))
    assert np.array_equal(b.transpose(-1, 0, 1).numpy(), a.transpose(2, 0, 1))
    assert not b.T.is_contiguous
    with pytest.raises(ValueError):
        b.transpose(0, 0, 1)
    with pytest.raises(ValueError):
        b.transpose(0, 1)


# --- moved ------------------------------------------------------------------


@pytest.mark.parametrize("there", PLACES)
def test_to_moves_and_returns_itself_where_it_is(place, there):
    a = values((4, 5))
    b = wm.from_numpy(a, **options(place))
    c = b.to(**options(there))
    # Pinned memory is the host's: it stays there unless told otherwise.
    assert (c is b) == (place == there or (place, there) == ("pinned", "cpu"))
    assert np.array_equal(c.numpy(), a)
    strided = b[::2, ::-1].to(**options(there))
    assert np.array_equal(strided.numpy(), a[::2, ::-1])
    assert np.array_equal(b.T.to(**options(there)).numpy(), a.T)


def test_numpy_shares_the_memory_of_host_arrays():
    b = wm.zeros(3, device="cpu")
    b.numpy()[1] = 5
    assert b[1].item() == 5
    a = np.zeros(3)
    wm.asarray(a)[2] = 7
    assert a[2] == 7


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("gpu", GPUS[:1])
def test_numpy_of_a_gpu_array_is_read_only(gpu, dtype):
    a = wm.ones(3, dtype, device=gpu)
    for host in a.numpy(), np.asarray(a):
        with pytest.raises(ValueError, match="read-only"):
            host[0] = 2
    for host in np.array(a), a.__array__(copy=True):
        host[0] = 2
    assert a.numpy()[0] == 1
    again = pickle.loads(pickle.dumps(a))
    again[0] = 2
    assert again.numpy()[0] == 2


def test_elements_are_not_compared_in_silence(place):
    a, b = wm.ones(3, **options(place)), wm.ones(3, **options(place))
    for other in b, b.numpy(), 1, np.float32(1), np.bool_(True), [1, 1, 1]:
        for compare in operator.eq, operator.ne:
            with pytest.raises(TypeError, match=r"use a\.numpy\(\) == b"):
                compare(a, other)
    assert (a.numpy() == a).all()  # NumPy compares
    itself = a
    assert a == itself and (a != itself) is False
    assert (a == "ones") is False and a != None  # noqa: E711
    assert None not in [a] and a in [a]
    assert {a: 1, b: 2}[b] == 2 and b in weakref.WeakSet([a, b])


def test_pinned_memory_without_a_gpu_is_plain():
    program = """
import warpmpi as wm
made = wm.zeros(3, pinned=True), wm.array([0.0], pinned=True)
made += wm.empty_like(made[0], pinned=True), made[0].to("cpu", pinned=True)
for a in made:
    a.zero_()
    assert a.device.is_cpu and not a.pinned and not a.numpy().any()
"""
    environ = {**os.environ, "WARPMPI_CUDA_DRIVER": "/nonexistent"}
    subprocess.run([sys.executable, "-c", program], check=True, env=environ)


def test_copy_is_independent(place):
    b = wm.from_numpy(values((4, 4)), **options(place))
    c = b.T.copy()
    assert c.is_contiguous
    assert (c.device, c.pinned) == (b.device, b.pinned)
    b.zero_()
    assert np.array_equal(c.numpy(), values((4, 4)).T)
    assert np.array_equal(copy.copy(c).numpy(), c.numpy())


@pytest.mark.parametrize("there", PLACES)
def test_assign_broadcasts_as_numpy_does(place, there):
    for shape in [(4, 5), (5,), (4, 1), (1, 5), (1,), (), (1, 4, 5)]:
        a, source = np.zeros((4, 5)), values(shape) + 1
        b = wm.from_numpy(a, **options(place))
        b.assign(wm.from_numpy(source, **options(there)))
        a[...] = source
        assert np.array_equal(b.numpy(), a), shape
    for shape in [(4,), (5, 4), (2, 4, 5), (0,)]:
        with pytest.raises(ValueError, match=r"broadcast to \(4, 5\)"):
            b.assign(wm.zeros(shape, **options(there)))


def test_assign_converts_host_data_and_nothing_else(place):
    b = wm.zeros((2, 3), "float32", **options(place))
    b[0] = [1, 2, 3]
    b[1] = np.array([4, 5, 6], "int16")
    b[1, 2] = 2**30
    assert b.numpy().tolist() == [[1, 2, 3], [4, 5, 2**30]]
    with pytest.raises(TypeError, match=r"convert|cast"):
        b.assign(wm.zeros(3, "complex64", **options(place)))
    with pytest.raises((TypeError, ValueError)):
        b[0] = "abc"
    with pytest.raises((TypeError, ValueError)):
        b[0] = object()


@pytest.mark.parametrize(
    ("to", "source"),
    [
        (slice(None), slice(None, None, -1)),
        (slice(1, None), slice(None, -1)),
        (slice(None, -1), slice(1, None)),
        (slice(None, None, 2), slice(1, None, 2)),
    ],
)
def test_overlapping_copies_read_before_they_write(place, to, source):
    a = values((10, 3))
    b = wm.from_numpy(a, **options(place))
    b[to].assign(b[source])
    a[to] = a[source].copy()
    assert np.array_equal(b.numpy(), a)


def test_overlapping_transpose_reads_before_it_writes(place):
    a = values((7, 7))
    b = wm.from_numpy(a, **options(place))
    b.assign(b.T)
    assert np.array_equal(b.numpy(), a.T)


@pytest.mark.parametrize("ndim", [9, 12, 16])
@pytest.mark.parametrize("there", PLACES)
def test_copies_of_many_dimensions(place, there, ndim):
    shape = (2,) * ndim
    a = values(shape, "uint16")
    # Every other dimension turned round: nothing can be merged.
    key = tuple(slice(None, None, -1 if i % 2 else 1) for i in range(ndim))
    b = wm.from_numpy(a, **options(place))[key].T
    c = wm.zeros(shape, "uint16", **options(there))
    c.assign(b)
    assert np.array_equal(c.numpy(), a[key].T)
    c.T.fill_(3)
    assert np.all(c.numpy() == 3)
    c[key].T.assign(a)
    assert np.array_equal(c[key].T.numpy(), a)


@pytest.mark.parametrize("there", PLACES)
@pytest.mark.parametrize(
    "key",
    [
        (slice(2, 5),),
        (slice(None), slice(2, 5)),
        (slice(None), slice(None), slice(3, 40)),
        (slice(1, 3), slice(2, 5), slice(3, 40)),
        (slice(None, None, 2), slice(None), slice(3, 40)),
        (slice(None), slice(None), slice(None, None, 3)),
        (slice(None), slice(None, None, 2), slice(0, 16)),
    ],
    ids=repr,
)
def test_rows_and_planes_are_copied_whole(place, there, key):
    for dtype in ("u1", "f4", "c16"):
        a = values((6, 7, 50), dtype)
        b = wm.from_numpy(a, **options(place))
        c = wm.zeros((6, 7, 50), dtype, **options(there))
        c[key].assign(b[key])
        expected = np.zeros_like(a)
        expected[key] = a[key]
        assert np.array_equal(c.numpy(), expected)
        d = b[key].to(**options(there))
        assert np.array_equal(d.numpy(), a[key])


def test_unaligned_views_are_copied(place):
    raw = wm.from_numpy(values(4 * 8 + 3, "u1"), **options(place))
    host = raw.numpy()

    class Shifted:
        def __init__(self, step):
            self.keep = raw
            base = {
                "shape": (3,),
                "typestr": "<f4",
                "data": (raw.ptr + 1, False),
                "strides": (step,),
                "version": 3,
            }
            if raw.device.is_cuda:
                self.__cuda_array_interface__ = base
            else:
                self.__array_interface__ = base

    for step in (4, 5, 8):
        words = [host[1 + i * step : 5 + i * step] for i in range(3)]
        expected = np.concatenate(words).view("f4")
        view = wm.asarray(Shifted(step))
        got = view.copy().numpy()
        assert got.tobytes() == expected.tobytes()
        view.fill_(1.5)
        assert view.numpy().tolist() == [1.5] * 3
        wm.asarray(raw).assign(host.copy())
        raw.assign(values(4 * 8 + 3, "u1"))


def test_empty_arrays_go_everywhere(place):
    for there in PLACES:
        a = wm.empty((3, 0, 2), **options(place))
        assert a.to(**options(there)).shape == (3, 0, 2)
        a.assign(wm.empty((3, 0, 2), **options(there)))
        a.fill_(1)
        a.zero_()
        assert a.copy().numpy().shape == (3, 0, 2)
        assert a.T[1:].shape == (1, 0, 3)
        assert a.reshape(0).nbytes == 0


def test_fill_takes_one_scalar_of_its_type(place):
    b = wm.zeros(5, "uint8", **options(place))
    b.fill_(200)
    assert b.numpy().tolist() == [200] * 5
    b[1:4:2] = 7
    assert b.numpy().tolist() == [200, 7, 200, 7, 200]
    with pytest.raises(OverflowError, match="value: ") as raised:
        b.fill_(256)
    assert isinstance(raised.value.__cause__, OverflowError)
    with pytest.raises(ValueError, match="scalar"):
        b.fill_([1, 2])
    with pytest.raises((TypeError, ValueError)):
        b.fill_("x")
    b.zero_()
    assert not b.numpy().any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_strided_fills(place, dtype):
    a = values((5, 6, 7), dtype)
    b = wm.from_numpy(a, **options(place))
    for key in [
        np.s_[1::2, ::-1, 3:],
        np.s_[:, 2],
        np.s_[..., 0],
        np.s_[2:4],
    ]:
        a[key] = 1
        b[key].fill_(1)
        assert np.array_equal(b.numpy(), a)


# --- as Python sees it ------------------------------------------------------


def test_one_element_is_a_scalar(place):
    b = wm.from_numpy(values(4, "int32"), **options(place))
    assert b[2].item() == 2
    assert int(b[3]) == 3
    assert operator.index(b[3]) == 3
    assert float(b[1]) == 1.0
    assert bool(b[1]) is True
    assert bool(b[0]) is False
    with pytest.raises(ValueError, match="one element"):
        bool(b)
    with pytest.raises(TypeError):
        operator.index(wm.ones(1, **options(place)))


def test_repr_shows_values_of_small_arrays(place):
    text = repr(wm.from_numpy(values((2, 2)), **options(place)))
    assert "[[0., 1.]" in text
    assert "float64" in text
    assert ("pinned=True" in text) == (place == "pinned")
    large = repr(wm.zeros((100, 100), **options(place)))
    assert "shape=(100, 100)" in large
    assert repr(wm.zeros(0, "bfloat16", **options(place)))


def test_pickled_with_values_and_place(place):
    a = values((3, 4), "float32")
    b = wm.from_numpy(a, **options(place))
    for protocol in (2, pickle.HIGHEST_PROTOCOL):
        c = pickle.loads(pickle.dumps(b[:, ::2], protocol))
        assert np.array_equal(c.numpy(), a[:, ::2])
        assert (c.device, c.pinned) == (b.device, b.pinned)


def test_arrays_cannot_be_made_or_changed_by_hand():
    with pytest.raises(TypeError):
        wm.Array()
    with pytest.raises(TypeError):
        wm.Array.x = 1
    with pytest.raises(AttributeError):
        wm.zeros(1, device="cpu").x = 1
    with pytest.raises(AttributeError):
        wm.zeros(1, device="cpu").shape = (1, 1)


def test_readonly_arrays_refuse_writes():
    a = np.zeros(4)
    a.flags.writeable = False
    b = wm.asarray(a)
    assert b.readonly
    assert b[1:].readonly
    for write in (
        lambda: b.fill_(1),
        lambda: b.zero_(),
        lambda: b.assign(a),
        lambda: b.__setitem__(0, 1),
    ):
        with pytest.raises(BufferError, match="read-only"):
            write()
    assert not b.copy().readonly
    assert not b.numpy().flags.writeable


@pytest.mark.parametrize("place", PLACES)
def test_asarray_copies_only_where_it_must(place):
    a = wm.array([1.0, 2.0, 3.0], **options(place))
    for same in (
        wm.asarray(a, "float64"),
        wm.asarray(a, device=a.device),
        wm.asarray(a, a.dtype, a.device, False),
    ):
        assert same is a
    copied = wm.asarray(a, copy=True)
    assert copied.ptr != a.ptr and copied.device is a.device
    assert copied.dtype == a.dtype and (copied.numpy() == [1, 2, 3]).all()
    host = wm.asarray(a, device="cpu")
    assert host.device.is_cpu and (host.numpy() == [1, 2, 3]).all()
    assert (host is a) == a.device.is_cpu
    if not a.device.is_cpu:
        with pytest.raises(ValueError, match="copy"):
            wm.asarray(a, device="cpu", copy=False)


def test_asarray_converts_host_data():
    a = np.arange(4)
    for source in (a, wm.asarray(a)):
        b = wm.asarray(source, dtype="float32")
        assert b.dtype == np.float32 and (b.numpy() == a).all()
        assert b.device.is_cpu
        with pytest.raises(ValueError, match="copy"):
            wm.asarray(source, "float32", copy=False)
    with pytest.raises(ValueError, match="unknown device"):
        wm.asarray(a, device="cuda:99")
    with pytest.raises(TypeError):
        wm.asarray(a, "no such type")


@pytest.mark.parametrize("place", PLACES)
def test_to_device_is_that_of_the_array_api(place):
    a = wm.array([1, 2], **options(place))
    assert a.to_device(a.device) is a
    assert a.to_device("cpu").numpy().tolist() == [1, 2]
    with pytest.raises(TypeError):
        a.to_device(device="cpu")
    if not a.device.is_cpu:
        stream = wm.Stream(a.device)
        b = a.to_device("cpu", stream=stream)
        stream.synchronize()
        assert b.numpy().tolist() == [1, 2]


def test_makers_take_dtype_and_device_in_one_order():
    a = np.arange(3)
    for make in (wm.array, wm.from_numpy, wm.asarray):
        b = make(a, "float32", "cpu")
        assert b.dtype == np.float32 and b.device.is_cpu
