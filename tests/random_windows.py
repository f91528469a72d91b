# SPDX-License-Identifier: BSD-3-Clause
"""Random calls of windows, in all their epochs, on one host and on several.

    mpirun -n 4 python tests/random_windows.py --seed 1 --plans 1000 --apart 2

Each rank has a block in every rank's memory that no other rank touches. Its
calls there are done in its own order, and what they fetch is known; another
block gets sums of all ranks, and the last element counts them. Windows are of
GPU memory of every kind, and some ranks give host memory; datatypes of both
sides have gaps, and are freed at once.
"""

import random
import sys
import time

import numpy as np
from mpi4py import MPI

import kinds
import random_ranks as lives
import warpmpi as wm

TYPES = {
    "i1": MPI.INT8_T,
    "u2": MPI.UINT16_T,
    "i4": MPI.INT32_T,
    "f4": MPI.FLOAT,
    "i8": MPI.INT64_T,
    "f8": MPI.DOUBLE,
    "c8": MPI.C_FLOAT_COMPLEX,
    "c16": MPI.C_DOUBLE_COMPLEX,
}
BLOCKS = [10, 100, 3000, 40_000]  # elements of a rank's block
THREADED = MPI.Query_thread() == MPI.THREAD_MULTIPLE
# Without a thread, no rank of another host serves locks.
EPOCHS = ["fence", "post", *(["lock", "lock all"] if THREADED else [])]
CALLS = 6  # of a rank, in an epoch
ON_GPU = [kind for kind in kinds.KINDS if kind not in ("host", "pinned")]


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


class Block:
    """Some elements of a block, and how a call names them."""

    def __init__(self, draw, count):
        length = draw.randint(1, count)
        self.first = draw.randint(0, count - length)
        run = draw.randint(1, length)
        stride = draw.randint(run, length)
        rows = min(50, 1 + (length - run) // stride)
        self.how = draw.choice(["dense", "vector", "indexed", "one"])
        if self.how in ("dense", "one"):
            rows, run = 1, length if self.how == "dense" else 1
        self.vector = rows, run, stride
        starts = [row * stride for row in range(rows)]
        if self.how == "indexed":
            draw.shuffle(starts)
        self.starts, self.run = starts, run
        rows = [np.arange(run) + start for start in starts]
        self.indices = self.first + np.concatenate(rows)

    def target(self, begin, element):
        """The argument `target`, and the datatype to free."""
        if self.how in ("dense", "one"):
            return [begin + self.first, len(self.indices), element], None
        if self.how == "vector":
            made = element.Create_vector(*self.vector)
        else:
            made = element.Create_indexed(
                [self.run] * len(self.starts), self.starts
            )
        made.Commit()
        return [begin + self.first, 1, made], made


class Plan:
    """What a rank does, in its block of each rank; all ranks know."""

    def __init__(self, seed, size, rank):
        common = random.Random(seed)
        self.dtype = common.choice(list(TYPES))
        self.block = common.choice(BLOCKS)
        self.epochs = [common.choice(EPOCHS) for _ in range(3)]
        self.draw = random.Random(f"{seed} {rank}")
        self.rank, self.size = rank, size
        self.models = [np.zeros(self.block, self.dtype) for _ in range(size)]
        self.sums = np.zeros((size, self.block), self.dtype)
        self.drawn = 0

    def values(self, count):
        given = [self.draw.randint(0, 3) for _ in range(min(count, 50))]
        return np.resize(np.array(given), count).astype(self.dtype)

    def call(self):
        """A name, its block and values, what it fetches, and its operation."""
        draw = self.draw
        rank = draw.randrange(self.size)
        name = draw.choice(
            ["Put", "Get", "Accumulate", "Get_accumulate", "one"]
        )
        block = Block(draw, self.block)
        one = block.how == "one"
        if name == "one":
            name = "Fetch_and_op" if one else "Accumulate"
            if one and self.dtype[0] in "iu" and draw.random() < 0.5:
                name = "Compare_and_swap"
        op = draw.choice(operations(self.dtype))
        given, model = self.values(len(block.indices)), self.models[rank]
        before = model[block.indices].copy()
        compare = before + draw.randint(0, 1)
        if name in ("Put", "Compare_and_swap"):
            op = "REPLACE"
        if name == "Compare_and_swap" and compare != before:
            op = "NO_OP"
        if name != "Get":
            model[block.indices] = performed(op, before, given)
        return name, rank, block, given, before, op, compare

    def sum_up(self):
        """Adds a number to all elements of a rank's last block."""
        rank, value = self.draw.randrange(self.size), self.values(1)[0]
        self.sums[rank] += value
        return rank, np.full(self.block, value, self.dtype)


class Run:
    def __init__(self, comm, seed, used):
        self.comm, self.used = comm, used
        self.plans = [Plan(seed, comm.size, rank) for rank in range(comm.size)]
        self.mine = self.plans[comm.rank]
        self.own = random.Random(f"{seed} {comm.rank} kinds")
        self.kept, self.requests = [], []

    def make(self, values, some=None):
        return kinds.make(self.own.choice(some or self.used), values)

    def side(self, values, element):
        """An array for a call, and the argument; with gaps, some of them."""
        if self.own.random() < 0.7:
            array = self.make(values)
            return array, array, slice(None), None
        wide = np.zeros(2 * len(values), values.dtype)
        wide[::2] = values
        array = self.make(wide)
        made = element.Create_vector(len(values), 1, 2).Commit()
        return array, [array, 1, made], slice(0, None, 2), made

    def begin(self, win, name, rank, block, given, before, op, compare):
        element = TYPES[self.mine.dtype]
        requested = self.own.random() < 0.3 and name[0] not in "FC"
        call = getattr(win, "R" + name.lower() if requested else name)
        begin = self.mine.rank * self.mine.block
        target, made = block.target(begin, element)
        freed = [made]
        op = getattr(MPI, op)
        if name in ("Fetch_and_op", "Compare_and_swap"):
            origin, result = self.make(given), self.make(given * 0)
            where, at, into = slice(None), target[0], result
            if name == "Fetch_and_op":
                call(origin, result, rank, at, op)
            else:
                call(origin, self.make(compare), result, rank, at)
            self.keep(None, origin, result, where, before)
            return
        origin, told, where, made = self.side(given, element)
        freed.append(made)
        into = None
        if name == "Put":
            request = call(told, rank, target)
        elif name == "Get":
            request = call(told, rank, target)
            into = origin
        elif name == "Accumulate":
            request = call(told, rank, target, op)
        else:
            into, told_result, where, made = self.side(given * 0, element)
            freed.append(made)
            request = call(told, told_result, rank, target, op)
        for datatype in freed:
            if datatype is not None:
                datatype.Free()
        self.keep(requested and request, origin, into, where, before)

    def keep(self, request, origin, result, where, before):
        self.kept.append((origin, result, where, before))
        if request:
            self.requests.append(request)
            if self.own.random() < 0.5:
                request.Wait()
                self.requests.pop()

    def settle(self):
        """After the calls have ended."""
        MPI.Request.Waitall(self.requests)
        for _, result, where, before in self.kept:
            if result is not None:
                got = kinds.values_of(result)[where]
                np.testing.assert_array_equal(got, before)
        self.kept, self.requests = [], []

    def calls(self, win, planned):
        at = self.mine.size * self.mine.block
        for call in planned:
            if len(call) == 2:
                values = self.make(call[1])
                self.kept.append((values, None, None, None))
                win.Accumulate(values, call[0], at, MPI.SUM)
            else:
                self.begin(win, *call)

    def epoch(self, win, how, planned):
        everyone = self.comm.Get_group()
        if how == "fence":
            win.Fence()
            self.calls(win, planned)
            win.Fence(MPI.MODE_NOSUCCEED)
        elif how == "lock":
            for rank in range(self.comm.size):
                some = [each for each in planned if target_of(each) == rank]
                exclusive = self.own.random() < 0.5
                win.Lock(
                    rank, MPI.LOCK_EXCLUSIVE if exclusive else MPI.LOCK_SHARED
                )
                self.calls(win, some)
                if self.own.random() < 0.5:
                    win.Flush(rank)
                    self.settle()
                win.Unlock(rank)
        elif how == "lock all":
            win.Lock_all()
            self.calls(win, planned)
            win.Flush_all()
            self.settle()
            win.Unlock_all()
        else:
            win.Post(everyone)
            win.Start(everyone)
            self.calls(win, planned)
            win.Complete()
            if self.own.random() < 0.5:
                win.Wait()
            else:
                while not win.Test():
                    pass
        everyone.Free()
        self.settle()

    def count(self, win, at):
        """Each rank draws a number; none is drawn twice."""
        one, old = (self.make(np.full(1, n, self.mine.dtype)) for n in (1, 0))
        win.Lock_all()
        win.Fetch_and_op(one, old, 0, at, MPI.SUM)
        win.Unlock_all()
        drawn = self.comm.allgather(kinds.values_of(old)[0])
        assert sorted(map(int, map(np.real, drawn))) == list(
            range(self.comm.size)
        )

    def all(self):
        size, block = self.mine.size, self.mine.block
        unit = np.dtype(self.mine.dtype).itemsize
        some = ON_GPU if self.comm.rank == 0 else self.used
        memory = self.make(
            np.zeros((size + 1) * block + 1, self.mine.dtype),
            [kind for kind in some if kind in self.used] or ON_GPU,
        )
        win = wm.Win.Create(memory, unit, comm=self.comm)
        for turn in range(len(self.mine.epochs)):
            for plan in self.plans:
                planned = [plan.call() for _ in range(CALLS)]
                planned.insert(plan.draw.randrange(CALLS), plan.sum_up())
                if plan is self.mine:
                    mine = planned
            self.epoch(win, self.mine.epochs[turn], mine)
        self.comm.Barrier()
        if THREADED:
            self.count(win, (size + 1) * block)
        self.check(kinds.values_of(memory), block)
        win.Free()

    def check(self, got, block):
        mine = self.comm.rank
        for rank, plan in enumerate(self.plans):
            np.testing.assert_array_equal(
                got[rank * block : (rank + 1) * block], plan.models[mine]
            )
        sums = sum(plan.sums[mine] for plan in self.plans)
        np.testing.assert_array_equal(got[len(self.plans) * block : -1], sums)


def target_of(call):
    return call[0] if len(call) == 2 else call[1]


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
                f"{comm.size} python tests/random_windows.py --seed {seed} "
                f"--first {turn} --plans 1"
            ) from error


class Watched:
    def __init__(self, rank):
        self.rank, self.where = rank, "the beginning"
        self.seen = time.monotonic()


def parse(argv):
    parser = lives.parser(__doc__)
    add = parser.add_argument
    add("--seed", type=int, default=1)
    add("--first", type=int, default=0, help="plan to begin with")
    add("--plans", type=int, default=100)
    lives.options(add)
    return parser.parse_args(argv)


def main():
    """Make the plans that the words of the command line ask for."""
    options, world = parse(sys.argv[1:]), MPI.COMM_WORLD
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
    lives.main(main)
