# SPDX-License-Identifier: BSD-3-Clause
"""Which message a receive or a probe gets, by MPI's rules, at random.

    mpirun -n 4 python tests/random_order.py --seed 1 --plans 1000

Every rank sends to the next one and receives from the one before. A model of
the two queues that MPI has, of receives begun and of messages that came, says
what must come out.
"""

import random
import sys
import time

import numpy as np
from mpi4py import MPI

import kinds
import random_ranks as lives
import warpmpi as wm

TAGS = 4
STEPS = 150
SIZES = [1, 900, 1100, 20_000]  # of int32: in the header, behind it, and apart
LOOKS = ("Probe", "Iprobe", "drop")
TAKES = ("Recv", "recv_probed", "Mprobe", "Irecv")


def matches(wanted, tag):
    return wanted in (MPI.ANY_TAG, tag)


class Plan:
    """Steps, each (what, tag, number); for those that look, what they find."""

    def __init__(self, seed, count):
        self.draw = random.Random(seed)
        self.tags = []  # by message
        self.sizes = []
        self.steps = []
        self.come, self.begun = [], []  # messages; (receive, tag)
        self.gets = {}  # the message of each receive
        self.receives = 0
        for _ in range(count):
            self.draw.choice([self.send, self.look, self.take])()
        while self.begun:
            self.send(self.begun[0][1])
        while self.come:
            self.take()

    def send(self, tag=None):
        if tag in (None, MPI.ANY_TAG):
            tag = self.draw.randrange(TAGS)
        message = len(self.tags)
        self.tags.append(tag)
        self.sizes.append(self.draw.choice(SIZES))
        self.steps.append(("send", tag, message))
        for place, (receive, wanted) in enumerate(self.begun):
            if matches(wanted, tag):
                self.gets[receive] = message
                del self.begun[place]
                return
        self.come.append(message)

    def first(self, wanted):
        return next(m for m in self.come if matches(wanted, self.tags[m]))

    def tag_of_one(self):
        """Of one that has come, or the wildcard."""
        tag = self.tags[self.draw.choice(self.come)]
        return self.draw.choice([tag, MPI.ANY_TAG])

    def look(self):
        if self.come:
            tag = self.tag_of_one()
            what = self.draw.choice(LOOKS)
            self.steps.append((what, tag, self.first(tag)))

    def take(self):
        if not self.come:
            tag = self.draw.choice([MPI.ANY_TAG, *range(TAGS)])
            self.steps.append(("Irecv", tag, self.receives))
            self.begun.append((self.receives, tag))
        else:
            tag = self.tag_of_one()
            what = self.draw.choice(TAKES)
            self.steps.append((what, tag, self.receives))
            self.gets[self.receives] = self.first(tag)
            self.come.remove(self.first(tag))
        self.receives += 1


class Run:
    """A plan, carried out on a communicator."""

    def __init__(self, plan, comm, all_kinds, draw):
        self.plan, self.comm, self.kinds, self.draw = (
            plan,
            comm,
            all_kinds,
            draw,
        )
        self.right = (comm.rank + 1) % comm.size
        self.left = (comm.rank - 1) % comm.size
        self.sent, self.waiting = [], []

    def array(self, size, value):
        kind = self.draw.choice(self.kinds)
        return kinds.make(kind, np.full(size, value, np.int32))

    def source(self):
        return self.draw.choice([self.left, MPI.ANY_SOURCE])

    def check(self, receive, into, status):
        plan, message = self.plan, self.plan.gets[receive]
        assert status.Get_source() == self.left
        assert status.Get_tag() == plan.tags[message]
        size = plan.sizes[message]
        assert status.Get_count(MPI.INT32_T) == size
        assert (kinds.values_of(into)[:size] == message).all()

    def look(self, what, tag, message):
        status = MPI.Status()
        source = self.source()
        if what == "drop" and isinstance(self.comm, wm.Comm):
            self.comm.Mprobe(source, tag, status)  # it is given back
        elif what == "Iprobe":
            while not self.comm.Iprobe(source, tag, status):
                pass
        else:
            self.comm.Probe(source, tag, status)
        assert status.Get_tag() == self.plan.tags[message]
        assert status.Get_count(MPI.INT32_T) == self.plan.sizes[message]

    def take(self, what, tag, receive):
        status, source = MPI.Status(), self.source()
        into = self.array(max(SIZES), -1)
        if what == "Irecv":
            request = self.comm.Irecv(into, source, tag)
            self.waiting.append((receive, into, request))
            return
        if what == "Mprobe":
            self.comm.Mprobe(source, tag).Recv(into, status)
        else:
            if what == "recv_probed":
                self.comm.Probe(source, tag, status)
                assert tag in (MPI.ANY_TAG, status.tag)
                source, tag = status.source, status.tag
            self.comm.Recv(into, source, tag, status)
        self.check(receive, into, status)

    def step(self, what, tag, number):
        if what == "send":
            out = self.array(self.plan.sizes[number], number)
            self.sent.append(self.comm.Isend(out, self.right, tag))
        elif what in LOOKS:
            self.look(what, tag, number)
        else:
            self.take(what, tag, number)

    def all(self):
        for step in self.plan.steps:
            self.step(*step)
        for receive, into, request in self.waiting:
            status = MPI.Status()
            request.Wait(status)
            self.check(receive, into, status)
        for request in self.sent:
            request.Wait()
        assert not self.comm.Iprobe()


class Wrong(AssertionError):
    """A plan in which something else came out, and how to see it again."""


class Watched:
    """What a rank is at, for random_ranks.watch; what it has verified."""

    def __init__(self, rank):
        self.rank = rank
        self.seen = time.monotonic()
        self.where = "the beginning"
        self.plans = self.messages = self.steps = 0


def run(comm, seed, first, count, used=kinds.KINDS, watched=None):
    """Plans one after the other; collective. Until all are done, or told."""
    for turn in range(first, first + count):
        plan = Plan(f"{seed} {turn}", STEPS)
        own = random.Random(f"{seed} {turn} {comm.rank}")
        if watched is not None:
            watched.seen = time.monotonic()
            watched.where = f"{comm.rank}: plan {turn} of seed {seed}"
        try:
            Run(plan, comm, used, own).all()
        except Exception as error:
            raise Wrong(
                f"rank {comm.rank}: {error!r}\n  again: mpirun -n "
                f"{comm.size} python tests/random_order.py --seed {seed} "
                f"--first {turn} --plans 1"
            ) from error
        comm.Barrier()
        if watched is not None:
            watched.plans += 1
            watched.messages += len(plan.tags)
            watched.steps += len(plan.steps)


def parse(argv):
    parser = lives.parser(__doc__)
    add = parser.add_argument
    add("--seed", type=int, default=1)
    add("--first", type=int, default=0, help="plan to begin with")
    add("--plans", type=int, default=100)
    lives.options(add)
    return parser.parse_args(argv)


def main():
    options, world = parse(sys.argv[1:]), MPI.COMM_WORLD
    lives.place(world.rank, options.apart)
    comm, watched = wm.Comm(world), Watched(world.rank)
    if options.patience:
        lives.watch(watched, options.patience)
    stops = options.stops and lives.Stops(f"{options.seed} {world.rank}")
    began = time.monotonic()
    last = options.first + options.plans
    for turn in range(options.first, last):
        over = time.monotonic() - began > options.seconds > 0
        if world.bcast(over):
            break
        run(comm, options.seed, turn, 1, watched=watched)
    watched.seen = float("inf")
    stopped = world.allreduce(stops.close() if stops else 0)
    messages = world.allreduce(watched.messages)
    steps = world.allreduce(watched.steps)
    if world.rank == 0:
        print(
            f"{watched.plans} plans, {messages} messages, {steps} steps, "
            f"every one right, on {world.size} ranks in "
            f"{time.monotonic() - began:.1f} s, stopped {stopped} times",
            flush=True,
        )


if __name__ == "__main__":
    lives.main(main)
