# SPDX-License-Identifier: BSD-3-Clause
"""Random operations on the memory of other ranks, by their engines.

    mpirun -n 4 python tests/random_targets.py --seed 1 --plans 1000

Each rank has a block in every rank's memory that no other rank touches. Its
operations there are in its own order, and what they fetch is known; another
block gets sums of all ranks. Arrays are in every kind of memory, and the
operations have gaps.
"""

import random
import sys
import time

import numpy as np
from mpi4py import MPI

import kinds
import random_ranks as lives
import warpmpi as wm
from warpmpi import _core

POST, COMPLETE = range(2)
PUT, GET, ACCUMULATE, FETCH, COMPARE = range(1, 6)
DTYPES = ["i1", "u2", "i4", "f4", "i8", "f8", "c8", "c16"]
BLOCKS = [10, 100, 3000, 60_000]  # elements of a rank's block
CALLS = 12  # of a rank, in a plan


class Target:
    """A window of an array on each rank; the engines do all calls."""

    def __init__(self, comm, array):
        self.array, self.unit = array, np.dtype(array.dtype).itemsize
        self.core = _core._target_expose(comm, array)

    def begin(
        self,
        kind,
        rank,
        at,
        origin=None,
        result=None,
        op=MPI.REPLACE,
        compare=None,
        parts=(),
        requested=True,
        nbytes=0,
    ):
        return _core._target_begin(
            self.core,
            kind,
            rank,
            at * self.unit,
            origin,
            result,
            op,
            compare,
            parts,
            requested,
            nbytes,
        )

    def do(self, *args, **kwargs):
        self.begin(*args, **kwargs).Wait()

    def flush(self, rank=-1):
        _core._target_flush(self.core, rank).Wait()

    def lock(self, rank, exclusive=True):
        _core._target_lock(self.core, rank, exclusive).Wait()

    def unlock(self, rank):
        _core._target_lock(self.core, rank, None).Wait()

    def tell(self, rank, what):
        _core._target_tell(self.core, rank, what)

    def hear(self, rank, what):
        _core._target_hear(self.core, rank, what).Wait()

    def close(self):
        _core._target_withdraw(self.core)

    def __enter__(self):
        return self

    def __exit__(self, kind, *rest):
        if kind is None:
            self.close()


def operations(dtype):
    some = ["SUM", "REPLACE", "NO_OP", "PROD"]
    if dtype[0] in "iu":
        some += ["MAX", "MIN", "BAND", "BXOR"]
    elif dtype[0] == "f":
        some += ["MAX", "MIN"]
    return some


def performed(op, target, given):
    """What elements become."""
    with np.errstate(all="ignore"):
        return {
            "SUM": lambda: target + given,
            "PROD": lambda: target * given,
            "REPLACE": lambda: given,
            "NO_OP": lambda: target,
            "MAX": lambda: np.maximum(target, given),
            "MIN": lambda: np.minimum(target, given),
            "BAND": lambda: target & given,
            "BXOR": lambda: target ^ given,
        }[op]()


def some_indices(draw, count, unit):
    """Elements of a block, and the parts that tell of them; none: no gaps."""
    length = draw.randint(1, count)
    first = draw.randint(0, count - length)
    if draw.random() < 0.5:
        return np.arange(first, first + length), ()
    run = draw.randint(1, length)
    stride = draw.randint(run, length)
    rows = min(200, 1 + (length - run) // stride)
    if draw.random() < 0.5:
        parts = [(0, run * unit, ((rows, stride * unit),))]
    else:  # each row is a part, the last first
        parts = [
            (row * stride * unit, run * unit, ())
            for row in reversed(range(rows))
        ]
    order = range(rows) if len(parts) < rows else reversed(range(rows))
    rows = [np.arange(run) + row * stride for row in order]
    return first + np.concatenate(rows), parts


class Plan:
    """What a rank does, in its block of each rank; all ranks know."""

    def __init__(self, seed, comm, rank):
        common = random.Random(seed)
        self.dtype = common.choice(DTYPES)
        self.block = common.choice(BLOCKS)
        self.draw = random.Random(f"{seed} {rank}")
        self.rank, self.size = rank, comm.size
        self.models = [
            np.zeros(self.block, self.dtype) for _ in range(self.size)
        ]
        self.sums = np.zeros((self.size, self.block), self.dtype)

    def values(self, count):
        given = [self.draw.randint(0, 3) for _ in range(min(count, 50))]
        return np.resize(np.array(given), count).astype(self.dtype)

    def calls(self):
        """Each with what it fetches, and its sums."""
        unit = np.dtype(self.dtype).itemsize
        for _ in range(CALLS):
            rank = self.draw.randrange(self.size)
            kind = self.draw.choice([PUT, GET, ACCUMULATE, FETCH])
            op = self.draw.choice(operations(self.dtype))
            op = op if kind in (ACCUMULATE, FETCH) else "REPLACE"
            at, parts = some_indices(self.draw, self.block, unit)
            given, model = self.values(len(at)), self.models[rank]
            before = model[at].copy()
            if kind != GET:
                model[at] = performed(op, before, given)
            begin = int(at.min()) + self.rank * self.block
            yield kind, rank, begin, given, before, op, parts
            if self.draw.random() < 0.3:
                self.sums[rank] += given[0]
                every = np.full(self.block, given[0], self.dtype)
                at = self.size * self.block
                yield ACCUMULATE, rank, at, every, None, "SUM", ()


class Run:
    def __init__(self, comm, seed, used):
        self.comm, self.used = comm, used
        self.plans = [Plan(seed, comm, rank) for rank in range(comm.size)]
        self.own = random.Random(f"{seed} {comm.rank} kinds")
        self.kept = []

    def make(self, values):
        return kinds.make(self.own.choice(self.used), values)

    def begin(self, target, kind, rank, at, given, before, op, parts):
        origin = result = None
        if kind in (PUT, ACCUMULATE) or (kind == FETCH and op != "NO_OP"):
            origin = self.make(given)
        if kind in (GET, FETCH):
            result = self.make(np.zeros_like(given))
        requested = self.own.random() < 0.5
        request = target.begin(
            kind,
            rank,
            at,
            origin,
            result,
            getattr(MPI, op),
            None,
            parts,
            requested,
        )
        self.kept.append((origin, result, before, requested and request))

    def all(self):
        mine = self.plans[self.comm.rank]
        size, block = mine.size, mine.block
        memory = self.make(np.zeros((size + 1) * block, mine.dtype))
        with Target(self.comm, memory) as target:
            for plan in self.plans:
                for call in plan.calls():
                    if plan is mine:
                        self.begin(target, *call)
            target.flush()
            for _, result, before, request in self.kept:
                if request:
                    request.Wait()
                if result is not None:
                    got = kinds.values_of(result)
                    np.testing.assert_array_equal(got, before)
            self.comm.Barrier()
            self.check(kinds.values_of(memory), mine.block)
            self.comm.Barrier()

    def check(self, got, block):
        for rank, plan in enumerate(self.plans):
            np.testing.assert_array_equal(
                got[rank * block : (rank + 1) * block],
                plan.models[self.comm.rank],
            )
        sums = sum(plan.sums[self.comm.rank] for plan in self.plans)
        np.testing.assert_array_equal(got[len(self.plans) * block :], sums)


def run(comm, seed, first, count, used=kinds.KINDS, watched=None):
    """Plans one after the other; collective."""
    for turn in range(first, first + count):
        if watched is not None:
            watched.seen = time.monotonic()
            watched.where = f"{comm.rank}: plan {turn} of seed {seed}"
        try:
            Run(comm, f"{seed} {turn}", used).all()
        except Exception as error:
            raise AssertionError(
                f"rank {comm.rank}: {error!r}\n  again: mpirun -n "
                f"{comm.size} python tests/random_targets.py --seed {seed} "
                f"--first {turn} --plans 1"
            ) from error


class Watched:
    def __init__(self, rank):
        self.rank, self.where = rank, "the beginning"
        self.seen = time.monotonic()


def parse(text, argv):
    parser = lives.parser(text)
    add = parser.add_argument
    add("--seed", type=int, default=1)
    add("--first", type=int, default=0, help="plan to begin with")
    add("--plans", type=int, default=100)
    lives.options(add)
    return parser.parse_args(argv)


def main(text, run):
    """Make the plans that the words of the command line ask for."""
    options, world = parse(text, sys.argv[1:]), MPI.COMM_WORLD
    lives.place(world.rank, options.apart)
    comm, watched = wm.Comm(world), Watched(world.rank)
    if options.patience:
        lives.watch(watched, options.patience)
    began, done = time.monotonic(), 0
    for turn in range(options.first, options.first + options.plans):
        over = time.monotonic() - began > options.seconds > 0
        if world.bcast(over):
            break
        run(comm, options.seed, turn, 1, watched=watched)
        done += 1
    watched.seen = float("inf")
    if world.rank == 0:
        print(f"{done} plans, every one right, on {world.size} ranks")


if __name__ == "__main__":
    lives.main(lambda: main(__doc__, run))
