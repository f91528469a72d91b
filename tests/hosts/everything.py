# SPDX-License-Identifier: BSD-3-Clause
"""Random calls of all kinds between hosts, in one job.

    python tests/hosts/launch.py --ranks 2 2 -- \\
        python tests/hosts/everything.py --seed 7

What is a host comes first. Then random messages, collectives, and objects on
communicators that come and go. Each says how to see a failure again; the seed
is printed first.
"""

import argparse
import random
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import random_collectives
import random_messages
import random_ranks as lives
import warpmpi as wm

MOST_BYTES = 100_000
PATIENCE = 60  # seconds without an end of anything


def hosts_are_mpis(world):
    """Ranks of a host share memory, by MPI, its communicators and ours."""
    comm = wm.Comm(world)
    names = world.allgather(MPI.Get_processor_name())
    here = [r for r, name in enumerate(names) if name == names[world.rank]]
    for made in (world, comm):
        shared = made.Split_type(MPI.COMM_TYPE_SHARED)
        group = world.Get_group()
        theirs = shared.Get_group()
        ranks = theirs.Translate_ranks(list(range(theirs.size)), group)
        assert list(ranks) == here, (list(ranks), here)
        theirs.Free()
        group.Free()
        shared.Free()
    apart = [r for r in range(world.size) if r not in here]
    for rank in apart if wm.is_cuda_available() else ():
        told = wm.transport(comm, rank)
        assert "another PID namespace" in told.reason, told


def anything(draw, depth=0):
    """A picklable object, with arrays of the host and of GPUs inside."""
    kind = draw.randrange(6 if depth < 2 else 4)
    size = draw.choice((0, 1, 17, 1000, 20_000))
    if kind == 0:
        return draw.getrandbits(40)
    if kind == 1:
        return "x" * size
    array = np.full(size, draw.getrandbits(15), "f4")
    if kind == 2:
        return array
    if kind == 3:
        return wm.array(array)
    return [anything(draw, depth + 1) for _ in range(draw.randrange(4))]


def same(a, b):
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, wm.Array):
        return same(a.numpy(), b.numpy())
    if isinstance(a, np.ndarray):
        return np.array_equal(a, b)
    return a == b


def objects(comm, draw):
    """One call on objects, that of each rank made of what all have drawn."""
    size, me = comm.size, comm.rank
    seeds = [draw.getrandbits(30) for _ in range(size)]

    def made(*key):
        return anything(random.Random(f"{key}"))

    mine, root = made(seeds[me]), draw.randrange(size)
    which = draw.randrange(6)
    if which == 0:
        got, right = comm.bcast(mine, root), made(seeds[root])
    elif which == 1:
        got, right = comm.allgather(mine), [made(seed) for seed in seeds]
    elif which == 2:
        got = comm.gather(mine, root)
        right = [made(seed) for seed in seeds] if me == root else None
    elif which == 3:
        given = [made(seeds[root], to) for to in range(size)]
        got = comm.scatter(given if me == root else None, root)
        right = made(seeds[root], me)
    elif which == 4:
        got = comm.alltoall([made(seeds[me], to) for to in range(size)])
        right = [made(seed, me) for seed in seeds]
    else:
        step = draw.randrange(size)
        source = (me - step) % size
        request = comm.isend(mine, (me + step) % size, 3)
        got, right = comm.recv(None, source, 3), made(seeds[source])
        request.wait()
    assert same(got, right), (which, got, right)


def communicators(world, draw):
    """Dup, Split, a message on each, Free."""
    comm, seed = world.Dup(), draw.getrandbits(30)
    colours = [draw.randrange(2) for _ in range(world.size)]
    part = comm.Split(colours[comm.rank], comm.rank)
    for each in (comm, part):
        right, left = ((each.rank + k) % each.size for k in (1, -1))
        sent = wm.array(np.full(17_500, each.rank, "f4"))
        came = np.zeros(17_500, "f4")
        request = each.Isend(sent, right, 4)
        each.Recv(came, left, 4)
        request.Wait()
        assert np.all(came == left), (came, left)
        objects(each, random.Random(f"{seed} {each.size}"))
    part.Free()
    comm.Free()


class Lives:
    """What random_ranks.watch() looks at."""

    def __init__(self, rank):
        self.rank, self.seen, self.where = rank, time.monotonic(), "start"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--messages", type=int, default=200)
    parser.add_argument("--collectives", type=int, default=120)
    parser.add_argument("--communicators", type=int, default=10)
    options = parser.parse_args()
    world, seed = MPI.COMM_WORLD, options.seed
    if world.rank == 0:
        print(f"seed {seed}", flush=True)
    life = Lives(world.rank)
    lives.watch(life, PATIENCE)
    hosts_are_mpis(world)
    life.seen = float("inf")  # the programs watch themselves
    words = f"--seed {seed} --max-bytes {MOST_BYTES} --patience {PATIENCE}"
    messages = ["--messages", str(options.messages)]
    calls = ["--collectives", str(options.collectives)]
    if MPI.get_vendor()[0] == "MPICH":
        # Its persistent ones have errors of their own (--plain shows them).
        calls += ["--forms", "blocking", "I"]
    elif seed % 2:  # only Open MPI tells how many communicators are left
        messages += ["--freed"]
    random_messages.run(world, [*words.split(), *messages])
    random_collectives.run(world, [*words.split(), *calls])
    comm, draw = wm.Comm(world), random.Random(seed)
    for number in range(options.communicators):
        life.seen, life.where = time.monotonic(), f"communicator {number}"
        communicators(comm, draw)
    life.seen = float("inf")
    world.Barrier()
    if world.rank == 0:
        print("all right", flush=True)


if __name__ == "__main__":
    lives.main(main)
