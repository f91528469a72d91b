# SPDX-License-Identifier: BSD-3-Clause
"""Collectives whose ranks have GPU memory and host memory in any mix."""

import random
import time

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import warpmpi as wm
from cases import CALLS, FORMS, MPICH, NAMES, ROOTED, TABLE, Case, id_of, steps

pytestmark = [
    pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU"),
    pytest.mark.ranks(2),
]


@pytest.fixture(scope="module")
def comm(world):
    ring = wm.Comm(world).Create_cart([world.size], [world.size > 2])
    yield ring
    ring.Free()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("name", "in_place"), CALLS, ids=id_of)
def test_every_mix(comm, name, in_place, form):
    """Each set of ranks has GPU arrays once, and the others host arrays."""
    for root in {0, comm.size - 1} if name in ROOTED else {0}:
        for mix in range(1 << comm.size):
            kind = "device" if mix >> comm.rank & 1 else "host"
            case = Case(
                comm, name, lambda a, k=kind: kinds.make(k, a), root, in_place
            )
            begin, end, free = steps(comm, name, form, *case.args)
            for scale in (1, 2):
                case.prepare(scale)
                begin()
                end()
                case.check(scale)
            free()


@pytest.mark.parametrize("name", NAMES)
def test_mixes_are_under_way_together(comm, name):
    """Nonblocking and persistent ones of all mixes at once."""
    began = []
    for mix in range(1 << min(comm.size, 3)):
        kind = "device" if mix >> comm.rank & 1 else "host"
        for form in FORMS[1:]:
            case = Case(comm, name, lambda a, k=kind: kinds.make(k, a))
            began.append((case, *steps(comm, name, form, *case.args)))
    for case, begin, _, _ in began:
        case.prepare(3)
        begin()
    for case, _, end, free in began[::-1]:
        end()
        case.check(3)
        free()


# MPICH waits itself, after some calls.
GIVEN = [
    name for name in ROOTED if not MPICH or name not in ("Bcast", "Reduce")
]


@pytest.mark.parametrize("kind", kinds.KINDS)
@pytest.mark.parametrize("name", GIVEN)
def test_who_only_gives_host_memory_does_not_wait(comm, name, kind):
    """The others come to the call when that rank has long left it."""
    gives = comm.size - 1
    own = "host" if comm.rank == gives else kind
    root = gives if TABLE[name].from_root else 0
    if comm.rank != gives:
        comm.Recv(np.zeros(1), gives, 5)
    for _ in range(3):
        case = Case(comm, name, lambda a: kinds.make(own, a), root)
        getattr(comm, name)(*case.args)
        case.check()
    for rank in range(gives):
        if comm.rank == gives:
            comm.Send(np.zeros(1), rank, 5)
    comm.Barrier()


@pytest.mark.parametrize("seed", range(4))
def test_ranks_that_change_their_minds(comm, seed):
    """Some calls are the GPUs', and ranks come to them at any time."""
    common = random.Random(seed)
    mine = random.Random(f"{seed} {comm.rank}")
    can_repeat = hasattr(comm, "Allreduce_init") and MPI.VERSION >= 4
    for turn in range(300):
        root, name = common.randrange(comm.size), common.choice("AABBDIW")
        direct = common.random() < 0.5
        kind = "device" if direct else mine.choice(["host", "device"])
        x = kinds.make(kind, np.full(8, float(comm.rank)))
        into = kinds.make(kind, np.zeros(8))
        if mine.random() < 0.05:
            time.sleep(0.002)
        if name == "A":
            comm.Allreduce(x, into)
            total = sum(range(comm.size))
            assert (kinds.values_of(into) == total).all(), turn
        elif name == "B":
            comm.Bcast(x, root)
            assert (kinds.values_of(x) == root).all(), turn
        elif name == "D":  # its slot is the next one's
            comm.Dup().Free()
        elif name == "I" and can_repeat:
            comm.Allreduce_init(x, into).Free()
        else:
            comm.Barrier()
