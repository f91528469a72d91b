# SPDX-License-Identifier: BSD-3-Clause
"""Reductions, kernels and their host bodies, against NumPy.

The launcher and what is below it are a library of their own here, called by
ctypes; memory and streams are warpmpi's.
"""

import ctypes
import mmap
import os
import re
from pathlib import Path

import numpy as np
import pytest

import compiled
import warpmpi as wm

ROOT = Path(__file__).resolve().parent.parent
ml_dtypes = pytest.importorskip("ml_dtypes")

HEADER = (ROOT / "src/kernels/reduce.h").read_text()
OPS = re.findall(r"^    WM_REDUCE_([A-Z_]+),", HEADER.split("OPS")[0], re.M)
ROWS = dict(re.findall(r"X\(([A-Z]\w*), \w+, ([A-Z]+)\)", HEADER))
TYPES = list(ROWS)


def pair(value):
    fields = [("value", value), ("index", "i4")]
    return np.dtype(fields, align=True)


OTHERS = {
    "BFLOAT16": np.dtype(ml_dtypes.bfloat16),
    "FLOAT_INT": pair("f4"),
    "DOUBLE_INT": pair("f8"),
    "LONG_INT": pair("i8"),
    "INT_INT": pair("i4"),
    "SHORT_INT": pair("i2"),
}


def dtype_of(name):
    return OTHERS.get(name) or np.dtype(name.lower())


# What MPI allows (its table of reductions): bool is one of its logical types,
# and float16 and bfloat16 are to be had as float32 is. AVG is not MPI's.
ALL = {"SUM", "PROD", "MIN", "MAX", "AVG"}
LOGIC = {"LAND", "LOR", "LXOR"}
INTEGER = ALL | LOGIC | {"BAND", "BOR", "BXOR"}
ALLOWED = {
    "LOGICAL": LOGIC,
    "SIGNED": INTEGER,
    "UNSIGNED": INTEGER,
    "FLOAT": ALL,
    "COMPLEX": {"SUM", "PROD", "AVG"},
    "PAIR": {"MINLOC", "MAXLOC"},
}


def taken(name):
    return sorted(ALLOWED[ROWS[name]] | {"REPLACE", "NO_OP"})


PARTS = ("atomic", "dtype", "kernels", "layout", "reduce")  # of the layer


class Error(ctypes.Structure):
    _fields_ = [
        ("code", ctypes.c_int),
        ("detail", ctypes.c_int),
        ("text", ctypes.c_char * 500),
    ]


@pytest.fixture(scope="module")
def lib(tmp_path_factory):
    words = "-O1", "-shared", "-fPIC", "-ffp-contract=off"
    made = ctypes.CDLL(
        compiled.parts(
            tmp_path_factory.mktemp("reduce") / "lib.so",
            "src/cuda/*.c",
            *(f"src/array/{name}.c" for name in PARTS),
            words=words,
            kernels=True,
        )
    )
    made.wm_reduce_takes.restype = ctypes.c_bool
    made.wm_atomic_takes.restype = ctypes.c_bool
    made.wm_reduce_size.restype = ctypes.c_size_t
    error = Error()
    assert made.wm_driver_load(ctypes.byref(error)) == 0, error.text
    return made


def pointers(addresses):
    return (ctypes.c_void_p * len(addresses))(*addresses)


def launch(lib, name, op, dst, src, count, stream):
    error = Error()
    code = lib.wm_reduce_launch(
        0,
        TYPES.index(name),
        OPS.index(op),
        ctypes.c_void_p(dst),
        pointers(src),
        len(src),
        ctypes.c_size_t(count),
        ctypes.c_void_p(stream.cuda_stream),
        ctypes.byref(error),
    )
    return code, error.text.decode()


def compute(lib, name, op, dst, src, count):
    lib.wm_reduce_host(
        TYPES.index(name),
        OPS.index(op),
        ctypes.c_void_p(dst),
        pointers(src),
        len(src),
        ctypes.c_size_t(count),
    )


class Many(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("op", ctypes.c_int),
        ("dst", ctypes.c_void_p),
        ("sums", ctypes.c_void_p),
        ("sources", ctypes.c_void_p),
        ("each", ctypes.c_size_t),
        ("own", ctypes.c_int),
        ("its", ctypes.c_void_p),
        ("n", ctypes.c_int),
        ("divisor", ctypes.c_int),
        ("count", ctypes.c_size_t),
    ]


# --- what is right -----------------------------------------------------------


def product(a, b):
    """Of complex numbers, as it is written, which NumPy may fuse."""
    result = np.empty_like(a)
    result.real = a.real * b.real - a.imag * b.imag
    result.imag = a.real * b.imag + a.imag * b.real
    return result


def located(first, a, b):
    """Of pairs: `first` tells whether a value goes before another."""
    x, y = a["value"], b["value"]
    nan_x, nan_y = x != x, y != y
    equal = (x == y) | (nan_x & nan_y)
    lower = b["index"] < a["index"]
    after = first(y, x) | (nan_y & ~nan_x) | (equal & lower)
    return np.where(after, b, a)


def divided(total, n):
    """Integers truncated; others times 1 / n, in float64."""
    if total.dtype.kind in "iu":
        exact = total.astype(object)
        return (np.sign(exact) * (abs(exact) // n)).astype(total.dtype)
    parts = total.view(total.real.dtype)
    return (parts * np.float64(1 / n)).astype(parts.dtype).view(total.dtype)


STEPS = {
    "SUM": lambda a, b: a + b,
    "AVG": lambda a, b: a + b,
    "PROD": lambda a, b: product(a, b) if a.dtype.kind == "c" else a * b,
    "MIN": np.minimum,
    "MAX": np.maximum,
    "LAND": lambda a, b: np.logical_and(a, b).astype(a.dtype),
    "LOR": lambda a, b: np.logical_or(a, b).astype(a.dtype),
    "LXOR": lambda a, b: np.logical_xor(a, b).astype(a.dtype),
    "BAND": lambda a, b: a & b,
    "BOR": lambda a, b: a | b,
    "BXOR": lambda a, b: a ^ b,
    "MINLOC": lambda a, b: located(np.less, a, b),
    "MAXLOC": lambda a, b: located(np.greater, a, b),
    "REPLACE": lambda a, b: b,
    "NO_OP": lambda a, b: a,
}


def expected(op, arrays):
    """From left to right; 16-bit floats in float32, rounded at the end."""
    dtype = arrays[0].dtype
    if len(arrays) == 1 or op in ("REPLACE", "NO_OP"):
        return arrays[-1 if op == "REPLACE" else 0]
    narrow = dtype.itemsize == 2 and dtype.kind in "fV" and not dtype.names
    with np.errstate(all="ignore"):
        result, *others = (a.astype("f4") if narrow else a for a in arrays)
        for each in others:
            result = STEPS[op](result, each)
        if op == "AVG":
            result = divided(result, len(arrays))
        return result.astype(dtype)


def numbers(array):
    """As what can be compared: parts of complex numbers, values of pairs."""
    if array.dtype.kind == "c":
        return array.view(array.real.dtype)
    if array.dtype.names:
        return array["value"]
    return array.astype("f4") if array.dtype.itemsize == 2 else array


def check(op, result, wanted):
    """The same bits, but for those of a NaN, and of a zero's sign in MIN."""
    if result.dtype.names:
        assert np.array_equal(result["index"], wanted["index"])
    x, y = numbers(result), numbers(wanted)
    if x.dtype.kind != "f":
        assert np.array_equal(x, y)
        return
    assert np.array_equal(x, y, equal_nan=True)
    if op not in ("MIN", "MAX", "MINLOC", "MAXLOC"):
        some = ~np.isnan(x)
        assert np.array_equal(np.signbit(x[some]), np.signbit(y[some]))


# --- what is computed with ---------------------------------------------------


def plain_values(rng, dtype, count):
    if dtype.kind == "b":
        return rng.integers(0, 2, count).astype(bool)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        few = np.array([info.min, info.max, 0, 1, 2], dtype)
        some = rng.integers(info.min, info.max, count, dtype, endpoint=True)
        return np.where(rng.random(count) < 0.3, rng.choice(few, count), some)
    least = np.finfo("f4" if dtype.itemsize < 4 else dtype).smallest_subnormal
    few = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 65504.0, 1e30]
    few += [2.0**-24, 3 * 2.0**-25, 2.0**-14, -(2.0**-15), least]
    with np.errstate(all="ignore"):
        some = rng.standard_normal(count) * 2.0 ** rng.integers(-9, 9, count)
        rare = rng.random(count) < 0.05
        return np.where(rare, rng.choice(few, count), some).astype(dtype)


def values(rng, dtype, count):
    if dtype.names:
        made = np.zeros(count, dtype)
        value = dtype["value"]
        made["value"] = rng.integers(-3, 3, count)  # with equals
        if value.kind == "f":
            made["value"][rng.random(count) < 0.1] = np.nan
        made["index"] = rng.integers(-5, 5, count)
        return made
    if dtype.kind == "c":
        part = np.dtype(f"f{dtype.itemsize // 2}")
        return plain_values(rng, part, 2 * count).view(dtype)
    return plain_values(rng, dtype, count)


class Memory:
    """Sources, and a result, in one piece of memory, each so many bytes from
    a multiple of 64. What is around the result is looked at as well."""

    def __init__(self, arrays, shifts, in_place=None):
        self.dtype, self.count = arrays[0].dtype, len(arrays[0])
        room = (arrays[0].nbytes // 64 + 3) * 64
        places = [i * room + 64 + s for i, s in enumerate(shifts)]
        self.src = places[:-1]
        self.dst = places[-1] if in_place is None else self.src[in_place]
        rng = np.random.default_rng(7)
        self.before = rng.integers(0, 256, room * len(places), np.uint8)
        for place, each in zip(self.src, arrays, strict=True):
            self.before[place : place + each.nbytes] = each.view(np.uint8)
        self.nbytes = arrays[0].nbytes

    def addresses(self, base):
        return base + self.dst, [base + each for each in self.src]

    def result(self, after):
        around = after.copy()
        part = slice(self.dst, self.dst + self.nbytes)
        around[part] = self.before[part]
        assert np.array_equal(around, self.before)
        return after[part].view(self.dtype)


def on_device(lib, name, op, memory):
    stream = wm.Stream("cuda:0")
    array = wm.array(memory.before, device="cuda:0")
    wm.synchronize_device("cuda:0")
    base = array.__cuda_array_interface__["data"][0]
    assert base % 64 == 0
    dst, src = memory.addresses(base)
    code, text = launch(lib, name, op, dst, src, memory.count, stream)
    assert code == 0, text
    stream.synchronize()
    return memory.result(array.numpy())


def on_host(lib, name, op, memory):
    room = np.empty(memory.before.size + 64, np.uint8)
    skip = -room.ctypes.data % 64
    room = room[skip : skip + memory.before.size]
    room[:] = memory.before
    dst, src = memory.addresses(room.ctypes.data)
    compute(lib, name, op, dst, src, memory.count)
    return memory.result(room)


def shifts_of(kind, rng, size, places):
    """Bytes from a multiple of 64: of each source, and of the result."""
    if kind == "aligned":
        return [0] * places
    if kind == "alike":  # all can be brought to a multiple of 16
        return [int(rng.integers(1, 5)) * size % 64] * places
    if kind == "odd":
        return [int(rng.integers(0, 60)) | 1] * places
    step = size if kind == "unlike" else 1
    return [int(each) * step % 64 for each in rng.integers(0, 64, places)]


KINDS = ("aligned", "alike", "odd", "unlike", "any")


@pytest.mark.parametrize("where", [on_device, on_host])
@pytest.mark.parametrize("name", TYPES)
def test_it_computes_as_numpy_does(lib, name, where):
    dtype = dtype_of(name)
    rng = np.random.default_rng(TYPES.index(name))
    at = 0
    for op in taken(name):
        for n in (1, 2, 3, 5, 9):
            for count in (0, 1, 7, 1000, 4099):
                arrays = [values(rng, dtype, count) for _ in range(n)]
                kind = KINDS[(at + at // 5) % len(KINDS)]
                shifts = shifts_of(kind, rng, dtype.itemsize, n + 1)
                in_place = at // 3 % n if at % 3 == 0 else None
                memory = Memory(arrays, shifts, in_place)
                result = where(lib, name, op, memory)
                check(op, result, expected(op, arrays))
                at += 1


@pytest.mark.parametrize("name", TYPES)
def test_kernels_and_host_give_the_same_bits_however_often(lib, name):
    """Of many sources, in more turns than there are threads."""
    dtype = dtype_of(name)
    rng = np.random.default_rng(11)
    ops = {"LOGICAL": "LXOR", "PAIR": "MINLOC", "COMPLEX": "PROD"}
    op = ops.get(ROWS[name], "SUM")
    for n, count in ((64, 1003), (3, 70_001), (2, 70_000)):
        arrays = [values(rng, dtype, count) for _ in range(n)]
        memory = Memory(arrays, [0] * (n + 1))
        one, two = (on_device(lib, name, op, memory) for _ in range(2))
        check(op, one, expected(op, arrays))
        assert one.tobytes() == two.tobytes()
        host = on_host(lib, name, op, memory)
        check(op, host, one)
        if dtype.names:
            assert host.tobytes() == one.tobytes()  # padding, too


@pytest.mark.parametrize("where", [on_device, on_host])
@pytest.mark.parametrize("name", ["FLOAT16", "BFLOAT16"])
def test_half_precision_is_exact_and_rounded_once(lib, name, where):
    dtype = dtype_of(name)
    every = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    ones = np.ones(1 << 16, dtype)
    memory = Memory([every, ones], [0, 0, 0])
    check("PROD", where(lib, name, "PROD", memory), every)
    # Beside each a number that is about half of its last bit, or of several.
    finite = every[np.isfinite(every.astype("f4"))]
    with np.errstate(over="ignore"):
        after = np.nextafter(finite, dtype.type(np.inf)).astype("f8")
    last = np.nan_to_num(after - finite.astype("f8"), posinf=1)
    for part in (0.25, 0.5, 0.5001, 0.75, 1.5):
        arrays = [finite, (last * part).astype(dtype), finite[::-1].copy()]
        for op, count in (("SUM", 2), ("SUM", 3), ("PROD", 3)):
            memory = Memory(arrays[:count], [0] * (count + 1))
            result = where(lib, name, op, memory)
            wanted = expected(op, arrays[:count])
            check(op, result, wanted)


def test_a_copy_keeps_every_bit(lib):
    """Of a signalling NaN, too."""
    for name in ("FLOAT16", "BFLOAT16", "FLOAT32", "COMPLEX128"):
        dtype = dtype_of(name)
        rng = np.random.default_rng(3)
        bits = [rng.integers(0, 256, 1600, np.uint8) for _ in range(2)]
        for kind in KINDS:
            for op in ("REPLACE", "NO_OP"):
                shifts = shifts_of(kind, rng, dtype.itemsize, 3)
                memory = Memory([each.view(dtype) for each in bits], shifts)
                for where in (on_device, on_host):
                    result = where(lib, name, op, memory)
                    wanted = bits[1 if op == "REPLACE" else 0]
                    assert result.tobytes() == wanted.tobytes()


class Reduction(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("op", ctypes.c_int),
        ("dst", ctypes.c_void_p),
        ("targets", ctypes.c_int),
        ("src", ctypes.c_void_p),
        ("n", ctypes.c_int),
        ("count", ctypes.c_size_t),
        ("word", ctypes.c_void_p),
        ("value", ctypes.c_uint32),
        ("index", ctypes.c_uint32),
    ]


@pytest.mark.parametrize("name", ["FLOAT32", "FLOAT16", "INT32"])
@pytest.mark.parametrize("n, own", [(2, 1), (64, 63), (65, 64), (200, 150)])
def test_more_sources_than_a_kernel_takes(lib, name, n, own):
    """In their order; the result replaces one of them, which lies apart."""
    count, dtype = 1003, dtype_of(name)
    rows = np.random.default_rng(n).integers(-99, 99, (n, count)) / 8
    rows = rows.astype(dtype)
    room = wm.array(rows, device="cuda:0")
    apart = wm.array(rows[own], device="cuda:0")
    room[own].fill_(0)
    wm.synchronize_device("cuda:0")
    stream = wm.Stream("cuda:0")
    base = room.__cuda_array_interface__["data"][0]
    its = apart.__cuda_array_interface__["data"][0]
    for op, own_row in ("SUM", rows[own]), ("AVG", None):
        given = rows.copy()
        if own_row is None:  # the sum is its source now
            given[own] = apart.numpy()
        many = Many(
            type=TYPES.index(name),
            op=OPS.index(op),
            dst=its,
            sums=base + own * rows[0].nbytes,
            sources=base,
            each=rows[0].nbytes,
            own=own,
            its=its,
            n=n,
            divisor=0,
            count=count,
        )
        error = Error()
        code = lib.wm_reduce_many(
            0,
            ctypes.byref(many),
            ctypes.c_void_p(stream.cuda_stream),
            ctypes.byref(error),
        )
        assert code == 0, error.text
        stream.synchronize()
        wide = np.float32 if dtype.kind == "f" else dtype
        total, first = given[0].astype(wide), 1
        for number, row in enumerate(given[1:], 1):
            total = total + row.astype(wide)
            first += 1
            if first == 64 and number < n - 1:  # rounded after a round
                total, first = total.astype(dtype).astype(wide), 1
        if op == "AVG":
            whole = dtype.kind == "i"
            total = np.trunc(total / n) if whole else total / wide(n)
        want = total.astype(dtype)
        if op == "AVG" and dtype.kind == "f":
            assert np.allclose(apart.numpy(), want, rtol=1e-2)
        else:
            assert np.array_equal(apart.numpy(), want), (op, n)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["FLOAT64", "FLOAT16", "UINT8", "SHORT_INT"])
def test_several_targets_have_the_result(lib, name, kind):
    """A source among them; and the kernel tells when it has ended."""
    dtype = dtype_of(name)
    rng = np.random.default_rng(5)
    op = "MINLOC" if dtype.names else "SUM"
    stream = wm.Stream("cuda:0")
    word = wm.zeros(1, "u4", device="cpu", pinned=True).numpy()
    cases = (1, 9), (2, 1), (3, 1000), (5, 40_001)
    for turn, (n, count) in enumerate(cases):
        arrays = [values(rng, dtype, count) for _ in range(n)]
        room = (arrays[0].nbytes // 64 + 3) * 64
        shifts = shifts_of(kind, rng, dtype.itemsize, n + 2)
        places = [i * room + 64 + s for i, s in enumerate(shifts)]
        before = np.full(room * len(places), 0xEE, np.uint8)
        parts = [slice(p, p + arrays[0].nbytes) for p in places]
        for part, each in zip(parts, arrays, strict=False):
            before[part] = each.view(np.uint8)
        array = wm.array(before, device="cuda:0")
        wm.synchronize_device("cuda:0")
        base = array.__cuda_array_interface__["data"][0]
        src = pointers([base + p for p in places[:n]])
        dst = pointers([base + p for p in places[n - 1 :]])
        reduction = Reduction(
            type=TYPES.index(name),
            op=OPS.index(op),
            dst=ctypes.addressof(dst),
            targets=len(dst),
            src=ctypes.addressof(src),
            n=n,
            count=count,
            word=word.ctypes.data,
            value=turn + 1,
            index=3,
        )
        error = Error()
        code = lib.wm_reduce_enqueue(
            0,
            ctypes.byref(reduction),
            ctypes.c_void_p(stream.cuda_stream),
            ctypes.byref(error),
        )
        assert code == 0, error.text
        stream.synchronize()
        assert word[0] == turn + 1
        after = array.numpy()
        for part in parts[n - 1 :]:
            check(op, after[part].view(dtype), expected(op, arrays))
            before[part] = after[part]
        assert np.array_equal(after, before)


def test_sources_lie_in_memory_of_every_kind(lib):
    """This device's, the host's and, where there is one, a peer's."""
    n, gpu = 5000, "cuda:0"
    error = Error()
    arrays = [np.arange(n, dtype="f4") * (i + 1) for i in range(3)]
    peer = gpu
    if (
        wm.get_cuda_device_count() > 1
        and lib.wm_device_enable_peer(0, 1, ctypes.byref(error)) == 0
    ):
        peer = "cuda:1"
    kept = [wm.array(arrays[0], device=gpu), wm.array(arrays[1], device=peer)]
    host = wm.zeros(n, "f4", device="cpu", pinned=True).numpy()
    result = wm.zeros(n, "f4", device="cpu", pinned=True).numpy()
    host[:] = arrays[2]
    wm.synchronize()
    src = [a.__cuda_array_interface__["data"][0] for a in kept]
    stream = wm.Stream(gpu)
    for dst in (result.ctypes.data, src[0]):
        code, text = launch(
            lib, "FLOAT32", "SUM", dst, [*src, host.ctypes.data], n, stream
        )
        assert code == 0, text
        stream.synchronize()
    assert np.array_equal(result, sum(arrays))
    assert np.array_equal(kept[0].numpy(), sum(arrays))
    assert np.array_equal(kept[1].numpy(), arrays[1])


@pytest.mark.skipif(
    "WARPMPI_CUDA_DRIVER" not in os.environ, reason="needs the simulator"
)
@pytest.mark.parametrize("shift", [0, 1])
def test_nothing_is_read_behind_the_sources(lib, shift):
    """Behind which is what nobody may touch."""
    page = mmap.PAGESIZE
    guarded = mmap.mmap(-1, 2 * page)
    base = ctypes.addressof(ctypes.c_char.from_buffer(guarded))
    libc = ctypes.CDLL(None)
    assert libc.mprotect(ctypes.c_void_p(base + page), page, 0) == 0
    stream = wm.Stream("cuda:0")
    result = wm.zeros(page, "u1", device="cpu", pinned=True).numpy()
    for name in ("UINT8", "INT16", "FLOAT32", "COMPLEX128", "SHORT_INT"):
        size = dtype_of(name).itemsize
        op = "MINLOC" if ROWS[name] == "PAIR" else "SUM"
        for count in (1, 5, 64):
            src = base + page - count * size - shift
            dst = result.ctypes.data + src % 16
            for n in (1, 2, 3):
                code, text = launch(
                    lib, name, op, dst, [src] * n, count, stream
                )
                assert code == 0, text
                stream.synchronize()


@pytest.mark.parametrize("name", TYPES)
def test_what_is_taken_is_what_mpi_allows(lib, name):
    number = TYPES.index(name)
    assert lib.wm_reduce_size(number) == dtype_of(name).itemsize
    for i, op in enumerate(OPS):
        assert lib.wm_reduce_takes(number, i) == (op in taken(name)), op
    assert not lib.wm_reduce_takes(number, len(OPS))
    assert not lib.wm_reduce_takes(len(TYPES), OPS.index("SUM"))


class Strided(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("run", ctypes.c_int64),
        ("ndim", ctypes.c_int),
        ("shape", ctypes.c_int64 * 31),
        ("strides", ctypes.c_int64 * 31),
    ]


class Atomic(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("op", ctypes.c_int),
        ("dst", ctypes.c_void_p),
        ("gaps", ctypes.POINTER(Strided)),
        ("src", ctypes.c_void_p),
        ("compare", ctypes.c_void_p),
        ("fetched", ctypes.c_void_p),
        ("count", ctypes.c_size_t),
        ("word", ctypes.c_void_p),  # of the signal: none
        ("value", ctypes.c_uint32),
        ("index", ctypes.c_uint32),
    ]


def update(
    lib, name, op, stream, dst, src, compare=None, fetched=None, gaps=None
):
    """Arrays of bytes on the device; those that are None are left out.

    gaps: run, shape and strides of the target, which begins at dst.
    """

    def address(array):
        if array is None:
            return None
        return array.__cuda_array_interface__["data"][0]

    error = Error()
    size = dtype_of(name).itemsize
    places = [address(each) for each in (dst, src, compare, fetched)]
    if gaps is not None:
        run, shape, strides = gaps
        dims = [(ctypes.c_int64 * 31)(*each) for each in (shape, strides)]
        gaps = ctypes.pointer(Strided(places[0], run, len(shape), *dims))
        places[0] = None
    atomic = Atomic(
        TYPES.index(name),
        OPS.index(op),
        places[0],
        gaps,
        *places[1:],
        src.nbytes // size,
    )
    code = lib.wm_atomic_enqueue(
        0,
        ctypes.byref(atomic),
        ctypes.c_void_p(stream.cuda_stream),
        ctypes.byref(error),
    )
    return code, error.text.decode()


def hardware_sum(array):
    """Hardware that adds to memory takes subnormal numbers for zero."""
    return np.where(np.abs(array) < np.finfo("f4").tiny, np.float32(0), array)


def to_device(array):
    made = wm.array(array.view(np.uint8), device="cuda:0")
    wm.synchronize_device("cuda:0")
    return made


@pytest.mark.parametrize("name", TYPES)
def test_an_update_at_once(lib, name):
    """With what was there before, and where it was as expected alone."""
    dtype = dtype_of(name)
    rng = np.random.default_rng(5)
    stream = wm.Stream("cuda:0")
    for op in OPS:
        number = TYPES.index(name), OPS.index(op)
        possible = op in taken(name) and op != "AVG" and dtype.itemsize <= 8
        assert lib.wm_atomic_takes(*number) == possible
        for compares in (False, True) if possible else ():
            old, given = values(rng, dtype, 1003), values(rng, dtype, 1003)
            target, source = to_device(old), to_device(given)
            fetched = to_device(np.zeros(1003, dtype))
            there = rng.random(1003) < 0.5
            compare = old.view((np.uint8, dtype.itemsize)).copy()
            compare[~there] ^= 1
            code, text = update(
                lib,
                name,
                op,
                stream,
                target,
                source,
                to_device(compare.reshape(-1)) if compares else None,
                fetched,
            )
            assert code == 0, text
            stream.synchronize()
            result = target.numpy().view(dtype)
            wanted = expected(op, [old, given])
            if compares:
                wanted = np.where(there, wanted, old)
            elif (name, op) == ("FLOAT32", "SUM"):
                result, wanted = hardware_sum(result), hardware_sum(wanted)
            check(op, result, wanted)
            assert fetched.numpy().tobytes() == old.tobytes()


TWELVE = [2] * 12


@pytest.mark.parametrize("name", ["INT8", "FLOAT16", "FLOAT32", "INT64"])
@pytest.mark.parametrize("op", ["SUM", "MAX", "REPLACE"])
@pytest.mark.parametrize(
    ("run", "shape", "strides"),
    [
        (1, [100], [3]),
        (7, [], []),
        (2, [5, 9], [40, 4]),
        (3, [4, 5], [6, -40]),
        (2, [3, *TWELVE], [24576, *(6 << i for i in range(11, -1, -1))]),
    ],
    ids=str,
)
def test_an_update_with_gaps(lib, name, op, run, shape, strides):
    """Its elements are in the order of the dimensions."""
    dtype = dtype_of(name)
    rng = np.random.default_rng(6)
    places = np.zeros(1, int)
    for extent, stride in zip(shape, strides, strict=True):
        places = places[..., None] + stride * np.arange(extent)
    places = (places[..., None] + np.arange(run)).ravel()
    first = -min(places)
    old = values(rng, dtype, first + max(places) + 3)
    given = values(rng, dtype, places.size)
    target, fetched = to_device(old), to_device(np.zeros(places.size, dtype))
    stream, size = wm.Stream("cuda:0"), dtype.itemsize
    gaps = run * size, shape, [each * size for each in strides]
    calls = lib, name, op, stream, target[first * size :], to_device(given)
    code, text = update(*calls, None, None if op == "SUM" else fetched, gaps)
    assert code == 0, text
    stream.synchronize()
    wanted = old.copy()
    wanted[first + places] = expected(op, [old[first + places], given])
    result = target.numpy().view(dtype)
    if (name, op) == ("FLOAT32", "SUM"):
        result, wanted = hardware_sum(result), hardware_sum(wanted)
    check(op, result, wanted)
    if op != "SUM":
        assert fetched.numpy().tobytes() == old[first + places].tobytes()
    gaps = run * size, [*shape, 1], [*gaps[2], 1]
    code, text = update(*calls, None, None, gaps)
    assert (code == 0) == (size == 1), text
    stream.synchronize()


@pytest.mark.parametrize("name", ["UINT8", "INT16", "FLOAT16", "FLOAT64"])
def test_updates_of_several_streams_at_once(lib, name):
    dtype = dtype_of(name)
    streams = [wm.Stream("cuda:0") for _ in range(4)]
    target = to_device(np.zeros(4099, dtype))
    one = to_device(np.ones(4099, dtype))
    for _ in range(25):
        for stream in streams:
            assert update(lib, name, "SUM", stream, target, one)[0] == 0
    for stream in streams:
        stream.synchronize()
    assert np.all(target.numpy().view(dtype) == 100)


def test_an_update_that_no_gpu_does_is_an_error(lib):
    stream = wm.Stream("cuda:0")
    memory = to_device(np.zeros(64, np.uint8))
    code, text = update(lib, "COMPLEX128", "SUM", stream, memory, memory)
    assert code == -4
    assert "8 bytes at most" in text
    code, text = update(
        lib, "FLOAT32", "SUM", stream, memory[2:34], memory[32:]
    )
    assert code == -4
    assert "no multiple of the 4 bytes" in text


def test_what_is_not_taken_is_an_error(lib):
    stream = wm.Stream("cuda:0")
    for name, op, n in (
        ("FLOAT32", "SUM", 0),
        ("FLOAT32", "SUM", 65),
        ("FLOAT32", "BAND", 2),
        ("BOOL", "SUM", 2),
        ("SHORT_INT", "MIN", 2),
    ):
        code, text = launch(lib, name, op, 0, [0] * n, 1, stream)
        assert code == -4, text
        assert f"{n} sources" in text


def test_the_types_are_those_of_arrays_then_pairs():
    rows = (ROOT / "src/array/dtype.h").read_text()
    assert TYPES[: -len(OTHERS) + 1] == re.findall(r'X\(([A-Z]\w*), "', rows)
    assert len(OPS) == 15
