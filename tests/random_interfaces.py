# SPDX-License-Identifier: BSD-3-Clause
"""Calls with objects whose own code tells what they are, and does more.

    python tests/random_interfaces.py [calls] [seed]

What their code does: it raises, collects garbage, makes classes, calls the
communicator, changes what it has told. Whatever it does, a call returns or
raises an exception that says why, and no exception is lost or left behind.
"""

import contextlib
import gc
import random
import sys

import numpy as np
from mpi4py import MPI

import warpmpi as wm
from warpmpi._install import CLASS_CALLS

TYPES = [*(np.dtype(c).str for c in "?bhilBfdFDe"), "|S3", "|V4", "<M8[s]"]
TYPES += [">i4", "<U2", "|O", "<f16", "?", "", None, 3]
ERRORS = (TypeError, ValueError, BufferError, RuntimeError, MemoryError)
ERRORS += (AttributeError, KeyError, OverflowError, KeyboardInterrupt)
FOREIGN = (*ERRORS, GeneratorExit, wm.CudaError, MPI.Exception)
NUMBER = 24  # bytes of every array
INSTALLED = {(kind, name): call for kind, name, call in CLASS_CALLS}
PACK = INSTALLED[MPI.Datatype, "Pack"]
REDUCE_LOCAL = INSTALLED[MPI.Op, "Reduce_local"]


class Own(Exception):
    """What only the code of an object raises."""


class Code:
    """What the code of an object does, as it is asked."""

    def __init__(self, rng, inner):
        self.rng, self.inner = rng, inner
        self.depth = 0

    def run(self):
        """Does one thing; may raise."""
        luck = self.rng.random()
        if self.depth > 1 or luck < 0.45:
            return
        self.depth += 1
        try:
            if luck < 0.6:
                raise self.rng.choice([*ERRORS, Own])("by the code")
            if luck < 0.7:
                gc.collect(0)
            elif luck < 0.85:  # other types take the places of known ones
                for _ in range(self.rng.choice([1, 40])):
                    make_class()
            elif luck < 0.95:
                self.rng.choice(INNER)(self.inner)
            else:
                make_garbage(self)
        finally:
            self.depth -= 1


def make_class():
    kind = type("Kind", (), {"__cuda_array_interface__": {"shape": (0,)}})
    with contextlib.suppress(TypeError, ValueError):
        wm.asarray(kind())


def make_garbage(code):
    class Garbage:
        def __del__(self):
            code.run()

    one = Garbage()
    one.itself = one


INNER = [
    lambda comm: comm.Allreduce(np.ones(3), np.ones(3)),
    lambda comm: comm.Sendrecv(np.ones(3), 0, 0, np.ones(3), 0, 0),
    lambda comm: comm.Ibcast(np.ones(3)).Wait(),
    lambda comm: comm.bcast({"a": 1}),
    lambda comm: comm.Allreduce("no array", np.ones(3)),
]


class Number:
    def __init__(self, code, value):
        self.code, self.value = code, value

    def __index__(self):
        self.code.run()
        return self.value

    def __bool__(self):
        self.code.run()
        return bool(self.value)


class Odd:
    """An array whose interfaces are code."""

    def __init__(self, rng, code, address):
        self.rng, self.code, self.address = rng, code, address
        self.typestr = rng.choice(TYPES)
        self.version = rng.choice([3, 2, None, "3", -1])
        self.kinds = rng.choice([("cuda",), ("dlpack",), ("cuda", "dlpack")])
        self.made = {}

    def number(self, value):
        return self.rng.choice([value, value, Number(self.code, value)])

    @property
    def __cuda_array_interface__(self):
        if "cuda" not in self.kinds:
            raise AttributeError("__cuda_array_interface__")
        self.code.run()
        if self.rng.random() < 0.2:
            self.made.clear()  # what a reader holds
        try:
            each = np.dtype(self.typestr).itemsize or 1
        except TypeError:
            each = 1
        self.made = {
            "shape": (self.number(NUMBER // each),),
            "typestr": self.typestr,
            "data": (self.number(self.address), self.number(0)),
            "version": self.version,
        }
        if self.rng.random() < 0.2:
            del self.made[self.rng.choice(list(self.made))]
        return self.rng.choice([self.made] * 9 + [None])

    def __dlpack_device__(self):
        if "dlpack" not in self.kinds:
            raise AttributeError("__dlpack_device__")
        self.code.run()
        return self.rng.choice([(1, 0), (2, 0), (1,), (13, 0), None])

    @property
    def __dlpack__(self):
        if "dlpack" not in self.kinds:
            raise AttributeError("__dlpack__")
        self.code.run()
        return self.export

    def export(self, **words):
        self.code.run()
        array = np.frombuffer(memoryview(HOST)[:NUMBER], "f8")
        return array.__dlpack__(**words)


HOST = bytearray(4 * NUMBER)


class Calls:
    """Calls on a communicator of one rank."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.comm = wm.Comm(MPI.COMM_SELF.Dup())
        self.inner = wm.Comm(MPI.COMM_SELF.Dup())
        self.memory = None
        if wm.is_cuda_available():
            self.memory = wm.zeros(4 * NUMBER, dtype="u1")
        self.code = Code(self.rng, self.inner)

    def odd(self):
        address = np.frombuffer(HOST, "u1").ctypes.data
        if self.memory is not None and self.rng.random() < 0.5:
            address = self.memory.ptr
        array = Odd(self.rng, self.code, address)
        return self.rng.choice(
            [array, [array, MPI.BYTE], [array, Number(self.code, 3), "b"]]
        )

    def other(self):
        return self.rng.choice([bytearray(NUMBER), np.zeros(3), self.odd()])

    def one(self):
        """Makes one call; raises what must not be."""
        comm, one, other = self.comm, self.odd(), self.other()
        calls = [
            lambda: comm.Send(one, MPI.PROC_NULL),
            lambda: comm.Sendrecv(one, 0, 0, other, 0, 0),
            lambda: comm.Sendrecv(other, 0, 0, one, 0, 0),
            lambda: comm.Recv(one, MPI.PROC_NULL),
            lambda: comm.Send_init(one, 0),
            lambda: comm.Recv_init(one, 0),
            lambda: comm.Bcast(one),
            lambda: comm.Ibcast(one).Wait(),
            lambda: comm.Bcast_init(one),
            lambda: comm.Allreduce(one, other),
            lambda: comm.Iallreduce(other, one).Wait(),
            lambda: comm.Reduce(one, other, op=MPI.MAX),
            lambda: comm.Allgather(one, other),
            lambda: comm.Alltoallv(other, one),
            lambda: comm.Alltoallw(one, other),
            lambda: comm.Reduce_scatter(one, other, [Number(self.code, 3)]),
            lambda: PACK(MPI.BYTE, one, bytearray(99), 0, comm),
            lambda: REDUCE_LOCAL(MPI.SUM, one, other),
            lambda: wm.asarray(one),
            lambda: wm.empty(3).assign(one),
            lambda: wm.transport(comm, 0, one),
            lambda: comm.Psend_init(one, 1, 0),
        ]
        call = self.rng.choice(calls)
        try:
            call()
        except (*FOREIGN, Own, AssertionError, NotImplementedError):
            pass

    def run(self, number):
        for at in range(number):
            try:
                self.one()
            except SystemError as error:
                raise AssertionError(f"call {at}") from error
        gc.collect()


def main():
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    sys.unraisablehook = lambda told: None  # of garbage
    calls = Calls(seed)
    calls.run(number)
    print(f"{number} calls of seed {seed}")


if __name__ == "__main__":
    main()
