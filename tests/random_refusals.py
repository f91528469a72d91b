# SPDX-License-Identifier: BSD-3-Clause
"""Random calls, any of which any rank makes wrongly at first.

    mpirun -n 4 python tests/random_refusals.py --steps 2000 --seed 7

All ranks make the same plan from the seed: communicators, calls in all forms,
each rank's kind of memory, and which rank gives a wrong argument how often
before the right ones (wrong_calls.py). A wrong call raises; what comes then is
as if it had not been made, so every right call is verified. Several threads do
so at once, each with its communicators.

With --plain mpi4py's own communicators and host memory serve: the same calls
are refused there, and the same ones right.
"""

import random
import sys
import threading
import time

import numpy as np
from mpi4py import MPI

import kinds
import random_ranks as lives
import warpmpi as wm
from cases import (
    FORMS,
    IN_PLACE,
    NAMES,
    NEIGHBORS,
    ROOTED,
    TABLE,
    Case,
    called,
)
from warpmpi._staging import collectives
from wrong_calls import Raising, make_wrong, wrong_for

BETWEEN = ["Allreduce", "Allgather", "Alltoall"]  # between two groups
# Open MPI does not see these if a call is in place.
UNSEEN = "one memory", "no type", "a new type", "fewer than none"
WRONG_MESSAGES = {
    "a rank": lambda x: (x, 99, 3),
    "a tag": lambda x: (x, 0, -9),
    "a rank of no int": lambda x: (x, 2**40, 3),
    "a type": lambda x: ([x, 1, MPI.DATATYPE_NULL], 0, 3),
    "a count": lambda x: ([x, -1, MPI.DOUBLE], 0, 3),
    "a buffer": lambda x: (object(), 0, 3),
    "an array": lambda x: (Raising(RuntimeError), 0, 3),
}


class Wrong(AssertionError):
    """A call that was refused, or not refused, or whose data is wrong."""


class Between:
    """A call between two groups, in the place of a Case."""

    def __init__(self, comm, name, make):
        self.name, self.row = name, TABLE[name]
        remote, mine = comm.Get_remote_size(), 1.0 + comm.rank
        sent = np.full(3 * (remote if name == "Alltoall" else 1), mine)
        blocks = [np.full(3, 1.0 + rank) for rank in range(remote)]
        summed = name == "Allreduce"
        self.want = sum(blocks) if summed else np.concatenate(blocks)
        self.into = make(np.zeros(self.want.size))
        self.args = [make(sent), self.into] + [MPI.SUM] * summed

    def check(self):
        np.testing.assert_array_equal(kinds.values_of(self.into), self.want)


class Runner:
    """One thread's part of a rank's calls, on communicators of its own."""

    def __init__(self, world, options, thread):
        self.options, self.thread = options, thread
        self.rank, self.size = world.rank, world.size
        # Threads that make communicators at the same time may hang.
        self.alone = options.threads == 1
        wrap = (lambda comm: comm) if options.plain else wm.Comm
        self.whole = wrap(world).Dup()
        half = self.whole.Split(world.rank % 2)
        self.comms = {
            "whole": self.whole,
            "half": half,
            "line": self.whole.Create_cart([world.size], [False]),
            "ring": self.whole.Create_cart([world.size], [True]),
        }
        if world.size > 1:
            first = 1 - world.rank % 2  # of the other group
            self.comms["between"] = half.Create_intercomm(
                0, self.whole, first, 7
            )
        self.kinds = ["host"] if options.plain else list(kinds.KINDS)
        self.draw = random.Random(f"{options.seed} {thread}")
        # On the host MPI makes them, if there are any.
        persistent = not collectives.lacks_persistent() or any(
            kind in kinds.GPU_KINDS for kind in self.kinds
        )
        self.forms = FORMS if self.alone and persistent else FORMS[:2]
        self.pending = []
        self.seen, self.where = time.monotonic(), "begins"
        self.refused = self.right = 0
        self.error = None

    def free(self):
        for comm in reversed(list(self.comms.values())):
            comm.Free()

    def run(self):
        try:
            for number in range(self.options.steps):
                self.step(number)
            self.finish()
        except BaseException as error:
            self.error = error
            raise

    # What all ranks draw alike

    def step(self, number):
        draw = self.draw
        key = draw.choice(list(self.comms))
        what = draw.random()
        self.where = f"step {number} of thread {self.thread} on {key}"
        self.seen = time.monotonic()
        # What each rank does wrongly, with which memory.
        bad = [
            [draw.random() for _ in range(draw.choice((0, 0, 0, 1, 1, 2)))]
            if draw.random() < self.options.wrong or draw.random() < 0.1
            else []
            for _ in range(self.size)
        ]
        if draw.random() < 0.2:  # the same at all
            bad = [bad[0]] * self.size
        memory = [[draw.random() for _ in range(3)] for _ in range(self.size)]
        self.memory = [
            self.kinds[int(each * len(self.kinds))]
            for each in memory[self.rank]
        ]
        mine, comm = bad[self.rank], self.comms[key]
        if what < 0.12:
            self.other(comm, draw.randrange(4), key)
        elif what < 0.22 and key != "between":
            self.exchange(comm, mine)
        else:
            self.collective(comm, key, mine)
        if draw.random() < 0.3:
            self.finish()

    def collective(self, comm, key, mine):
        draw = self.draw
        near = key in ("line", "ring")
        name = draw.choice(
            BETWEEN
            if key == "between"
            else NEIGHBORS
            if near and draw.random() < 0.7
            else [each for each in NAMES if each not in NEIGHBORS]
        )
        form = draw.choice(self.forms)
        in_place = name in IN_PLACE and draw.random() < 0.2
        root = draw.randrange(self.size if key != "half" else 1)
        starts = draw.randrange(1, 4)
        self.where += f": {called(name, form)}"

        def case(kind):
            if key == "between":
                return Between(comm, name, lambda x: kinds.make(kind, x))
            return Case(
                comm,
                name,
                lambda x: kinds.make(kind, x),
                root=root if name in ROOTED else 0,
                in_place=in_place and not near,
            )

        for chance, kind in zip(mine, self.memory, strict=False):
            self.refuse(comm, form, case(kind), chance)
        self.make(comm, form, case(self.memory[2]), starts)

    # What this rank does

    def refuse(self, comm, form, case, chance):
        words = wrong_for(case.name)
        if any(x is None or x is MPI.IN_PLACE for x in case.args):
            words = [word for word in words if word not in UNSEEN]
        elif isinstance(case, Between):  # MPICH does not see it there
            words = [word for word in words if word != "one memory"]
        what = words[int(chance * len(words))]
        args, kwargs = make_wrong(case, what)
        self.where += f", {what}"
        try:
            getattr(comm, called(case.name, form))(*args, **kwargs)
        except SystemError:
            raise
        except (Exception, KeyboardInterrupt):
            self.refused += 1
        else:
            raise Wrong(f"rank {self.rank} was not refused: {self.where}")

    def make(self, comm, form, case, starts):
        request = getattr(comm, called(case.name, form))(*case.args)
        if form == "I":
            self.pending.append((request, case))
        elif form == "_init":
            for _ in range(starts if not isinstance(case, Between) else 1):
                if isinstance(case, Case):
                    case.prepare(1)
                request.Start()
                request.Wait()
                case.check()
            request.Free()
        else:
            case.check()
        self.right += 1

    def finish(self):
        self.where += ", ends"
        self.draw.shuffle(self.pending)
        while self.pending:
            request, case = self.pending.pop()
            request.Wait()
            case.check()

    def exchange(self, comm, mine):
        """Messages between neighbours, of which a rank gets some wrong."""
        self.where += ": messages"
        size, me = comm.size, comm.rank
        array = kinds.make(self.memory[0], np.full(5, float(me)))
        into = kinds.make(self.memory[1], np.zeros(5))
        calls = "Send Isend Ssend Send_init Recv Irecv Recv_init".split()
        for chance in mine:
            what = list(WRONG_MESSAGES)[int(chance * len(WRONG_MESSAGES))]
            name = calls[int(chance * 1000) % len(calls)]
            self.where += f", {name} of {what}"
            try:
                getattr(comm, name)(*WRONG_MESSAGES[what](array))
            except Exception:
                self.refused += 1
            else:
                raise Wrong(f"rank {me} was not refused: {self.where}")
        comm.Sendrecv(array, (me + 1) % size, 3, into, (me - 1) % size, 3)
        if not (kinds.values_of(into) == (me - 1) % size).all():
            raise Wrong(f"{self.where}: {kinds.values_of(into)}")

    def other(self, comm, what, key):
        """Other calls of all ranks, between the ones that are refused."""
        self.where += f": other call {what}"
        if what == 0:
            comm.Barrier()
        elif what == 1:
            comm.Ibarrier().Wait()
        elif what == 2 and key != "between" and self.alone:
            other = comm.Dup()
            other.Barrier()
            other.Free()
        elif key != "between":
            ranks = comm.allgather({"rank": comm.rank})
            assert [each["rank"] for each in ranks] == list(range(comm.size))


class Threads:
    """The runners of this rank, for the watch of random_ranks.py."""

    def __init__(self, runners):
        self.rank, self.runners = runners[0].rank, runners

    @property
    def seen(self):
        return min(runner.seen for runner in self.runners)

    @property
    def where(self):
        return "; ".join(runner.where for runner in self.runners)


def run(world, argv=()):
    """The program on a communicator; how many were refused, and right."""
    options = parse(argv)
    runners = [Runner(world, options, i) for i in range(options.threads)]
    if options.patience:
        lives.watch(Threads(runners), options.patience)
    threads = [threading.Thread(target=each.run) for each in runners[1:]]
    for thread in threads:
        thread.start()
    runners[0].run()
    for each in runners:
        each.seen = float("inf") if each is runners[0] else each.seen
    for thread in threads:
        thread.join()
    for each in runners:
        each.seen = float("inf")
        if each.error is not None:
            raise each.error
        each.free()
    return sum(each.refused for each in runners), sum(
        each.right for each in runners
    )


def parse(argv):
    parser = lives.parser(__doc__)
    add = parser.add_argument
    add("--seed", type=int, default=1)
    add("--steps", type=int, default=1000, help="of each thread")
    add("--threads", type=int, default=1)
    add("--wrong", type=float, default=0.5, help="share of ranks that err")
    add("--plain", action="store_true", help="mpi4py itself, on the host")
    lives.options(add)
    return parser.parse_args(list(argv))


def main():
    world = MPI.COMM_WORLD
    lives.place(world.rank, parse(sys.argv[1:]).apart)
    refused, right = run(world, sys.argv[1:])
    refused, right = world.allreduce(refused), world.allreduce(right)
    if world.rank == 0:
        print(f"{refused} calls refused, {right} right", flush=True)


if __name__ == "__main__":
    lives.main(main)
