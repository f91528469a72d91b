# SPDX-License-Identifier: BSD-3-Clause
"""What random collectives send, and what the reductions make of it.

Everything is a function of the seed, of the call and of the rank, so that
each rank knows what all others send. Sums and products are of numbers so
small that they are exact in every type and order.
"""

import functools

import numpy as np
from mpi4py import MPI

import warpmpi as wm

try:
    import ml_dtypes

    BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
except ImportError:
    BFLOAT16 = None

PAIRS = {
    "float int": ("f4", MPI.FLOAT_INT),
    "double int": ("f8", MPI.DOUBLE_INT),
    "long int": ("i8", MPI.LONG_INT),
    "short int": ("i2", MPI.SHORT_INT),
    "int int": ("i4", MPI.TWOINT),
}
SPREAD = 65_536  # how many bytes later what one sends may begin


class Element:
    """A type of elements: NumPy's, this package's and MPI's."""

    def __init__(self, name):
        self.name = name
        self.is_pair = name in PAIRS
        if self.is_pair:
            value, self.base = PAIRS[name]
            self.numpy = np.dtype([("v", value), ("i", "i4")], align=True)
        elif name == "bfloat16":
            self.numpy = BFLOAT16
            self.base = MPI.BYTE.Create_contiguous(2).Commit()
        else:
            self.numpy = np.dtype(name)
            self.base = MPI.Datatype.fromcode(self.numpy.char)
        self.width = self.numpy.itemsize
        self.kind = "pair" if self.is_pair else self.numpy.kind
        if name == "bfloat16":
            self.kind = "f"


def _has_float16():
    """Open MPI 4 gives mpi4py a handle that it does not know itself."""
    try:
        return MPI.Datatype.fromcode("e").Get_size() == 2
    except MPI.Exception:
        return False


NAMES = (
    """
    bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float32 float64
    complex64 complex128
""".split()
    + ["float16"] * _has_float16()
    + ["bfloat16"] * (BFLOAT16 is not None)
)


@functools.cache
def element(name):
    return Element(name)


def _logical(function):
    return lambda a, b: function(a != 0, b != 0).astype(a.dtype)


def _located(better):
    def fold(a, b):
        first = better(a["v"], b["v"])
        first |= (a["v"] == b["v"]) & (a["i"] < b["i"])
        return np.where(first, a, b)

    return fold


def _mixed(a, b):
    return (a + b + a * b).astype(a.dtype)


# name: (what it folds with, kinds of elements)
OPS = {
    "SUM": (np.add, "iufc"),
    "AVG": (np.add, "iufc"),  # wm.AVG; divided in the end
    "PROD": (np.multiply, "iufc"),
    "MIN": (np.minimum, "iuf"),
    "MAX": (np.maximum, "iuf"),
    "LAND": (_logical(np.logical_and), "iub"),
    "LOR": (_logical(np.logical_or), "iub"),
    "LXOR": (_logical(np.logical_xor), "iub"),
    "BAND": (np.bitwise_and, "iu"),
    "BOR": (np.bitwise_or, "iu"),
    "BXOR": (np.bitwise_xor, "iu"),
    "MINLOC": (_located(np.less), ("pair",)),
    "MAXLOC": (_located(np.greater), ("pair",)),
    "a user's": (_mixed, "iu"),
    "a user's first": (lambda a, b: a, "iufcb"),
    "a user's last": (lambda a, b: b, "iufcb"),
}


@functools.cache
def _compares_as_signed(dtype):
    """Open MPI 4.1 may, in the vectors of some processors."""
    if dtype != np.uint64:
        return False
    large, into = np.full(32, 1 << 63, dtype), np.ones(32, dtype)
    MPI.MAX.Reduce_local(large, into)
    return (into != large).any()


def ops_of(kind_element, averages):
    """Names of the ops that are defined for such elements; AVG if wanted."""
    names = [n for n, (_, kinds) in OPS.items() if kind_element.kind in kinds]
    if not averages and "AVG" in names:
        names.remove("AVG")
    if _compares_as_signed(kind_element.numpy):
        return [name for name in names if name not in ("MIN", "MAX")]
    return names


def _of_bytes(name):
    """An operation of MPI's for bfloat16, which it takes for bytes."""
    function = OPS[name][0]

    def compute(read, into, datatype):
        a, b = (np.frombuffer(x, BFLOAT16) for x in (read, into))
        b[:] = function(a, b)

    return compute


def operation(name):
    """An operation of MPI's, or wm.AVG."""
    return wm.AVG if name == "AVG" else getattr(MPI, name)


class Ops:
    """MPI's operations, and those from Python, made for one run.

    plain: MPI has none for bfloat16.
    """

    def __init__(self, plain):
        def mix(read, into, datatype):
            kind = np.dtype(datatype.tocode())
            a, b = np.frombuffer(read, kind), np.frombuffer(into, kind)
            b[:] = _mixed(a, b)

        def first(read, into, datatype):
            into[:] = read

        def last(read, into, datatype):
            pass

        self._made = {
            "a user's": MPI.Op.Create(mix, commute=True),
            "a user's first": MPI.Op.Create(first, commute=False),
            "a user's last": MPI.Op.Create(last, commute=False),
        }

        for op in ("SUM", "PROD", "MIN", "MAX") if plain else ():
            self._made["bfloat16", op] = MPI.Op.Create(_of_bytes(op), True)

    def of(self, name, kind_element):
        made = self._made.get((kind_element.name, name))
        return made or self._made.get(name) or operation(name)

    def free(self):
        for op in self._made.values():
            op.Free()


def _spread(table, kind):
    """256 of these, in which small indices have all of them."""
    return np.resize(np.array(table), 256).astype(kind)


@functools.cache
def table(name, op):
    """What the bytes of the payload stand for; None for themselves."""
    this = element(name)
    if op is None or op.startswith("a user's ") or op in ("BAND", "BOR"):
        return None
    if this.is_pair:
        draw = np.random.default_rng(7)
        values = np.zeros(256, this.numpy)
        values["v"] = draw.integers(-2, 3, 256)
        values["i"] = draw.integers(0, 4, 256)
        return values
    signed, kind = this.kind in "ifc", this.numpy
    if op in ("MIN", "MAX"):
        if this.kind == "f":
            return (np.arange(256) - 128).astype(kind) / kind.type(4)
        bits = np.random.default_rng(3).integers(0, 256, 256 * this.width)
        return bits.astype(np.uint8).view(kind)
    if op == "PROD" and this.kind == "c":
        return _spread([1, -1, 1j, 2, 1 + 1j, -1j], kind)
    if op == "PROD":
        # bfloat16 does not hold the product of six 3.
        last = 0.5 if this.kind == "f" else 3
        several = [1, -1, 2, 1, -1, 1, last] if signed else [1, 2, 3]
        return _spread(several, kind)
    if op in ("SUM", "AVG") and this.kind == "c":
        return _spread([1, -2j, 3, 1 + 1j, -1 - 2j, 0, 2], kind)
    if op in ("SUM", "AVG"):
        return _spread([-3, -2, -1, 0, 1, 2, 3] if signed else range(6), kind)
    if op == "BXOR":
        return None
    return _spread([0, 1, 2] if op == "a user's" else [0, 1, 5, 1, 2, 0], kind)


class Contents:
    """The bytes of every buffer that is sent."""

    def __init__(self, seed, size):
        draw = np.random.default_rng([seed, 0xC011])
        self.seed = seed
        self.payload = draw.integers(0, 256, size + SPREAD, np.uint8)

    def of(self, key, name, op, length):
        """So many elements, as they are in memory.

        key: what tells this buffer from all others, integers.
        """
        this, offset = element(name), self.seed
        for number in key:
            offset = (offset * 1_000_003 + number + 1) % 2_147_483_647
        offset %= SPREAD
        values = table(name, op)
        nbytes = length * this.width if values is None else length
        found = self.payload[offset : offset + nbytes]
        if found.size < nbytes:  # several long blocks
            found = np.resize(found, nbytes)
        if values is None:
            if this.kind == "b":
                found = found & 1
            return found
        return values[found].view(np.uint8)


def fold(name, op, contributions):
    """What a reduction makes of these, in their order: bytes of each."""
    this, function = element(name), OPS[op][0]
    with np.errstate(all="ignore"):
        made = functools.reduce(
            lambda a, b: function(a, b).astype(this.numpy, copy=False),
            (bytes_of.view(this.numpy) for bytes_of in contributions),
        )
    return _divided(made, len(contributions)) if op == "AVG" else made


def _divided(total, ranks):
    """Integers truncated; others times 1 / ranks, in float64."""
    if total.dtype.kind in "iu":
        exact = total.astype(object)
        return (np.sign(exact) * (abs(exact) // ranks)).astype(total.dtype)
    is_complex = total.dtype.kind == "c"
    numbers = total.view(total.real.dtype) if is_complex else total
    quotient = numbers.astype("f8") * (1 / ranks)
    if numbers.itemsize < 4:
        quotient = quotient.astype("f4")
    return quotient.astype(numbers.dtype).view(total.dtype)


def differs(name, found, right):
    """The first of elements that is not equal; None where all are.

    found, right: arrays of bytes. Both zeros are one, padding may be
    anything, and so is every true bool.
    """
    this = element(name)
    found, right = found.view(this.numpy), right.view(this.numpy)
    cell = f"V{this.width}"
    bad = found.view(cell) != right.view(cell)  # not so of the same NaN
    if this.is_pair:
        bad &= (found["v"] != right["v"]) | (found["i"] != right["i"])
    else:
        with np.errstate(invalid="ignore"):
            bad &= found != right
    return int(np.flatnonzero(bad)[0]) if bad.any() else None
