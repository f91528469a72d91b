# SPDX-License-Identifier: BSD-3-Clause
"""Collectives whose ranks have GPU memory and host memory in any mix."""

import random
import time

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import warpmpi as wm
from cases import NAMES, ROOTED, Case, takes_in_place

pytestmark = [
    pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU"),
    pytest.mark.ranks(2),
]


@pytest.fixture(scope="module")
def comm(world):
    ring = wm.Comm(world).Create_cart([world.size], [world.size > 2])
    yield ring
    ring.Free()


def blocking(comm, case):
    def begin():
        getattr(comm, case.name)(*case.args)

    return begin, lambda: None, lambda: None


def nonblocking(comm, case):
    name, requests = case.name, []

    def begin():
        call = getattr(comm, "I" + name[0].lower() + name[1:])
        requests.append(call(*case.args))

    return begin, lambda: requests.pop().Wait(), lambda: None


def persistent(comm, case):
    try:
        request = getattr(comm, case.name + "_init")(*case.args)
    except NotImplementedError:
        pytest.skip("this MPI has no persistent collectives")
    return request.Start, request.Wait, request.Free


FORMS = [blocking, nonblocking, persistent]
CALLS = [(name, False) for name in NAMES]
CALLS += [(name, True) for name in NAMES if takes_in_place(name)]


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    ("name", "in_place"),
    CALLS,
    ids=lambda value: {True: "in_place", False: "apart"}.get(value, value),
)
def test_every_mix(comm, name, in_place, form):
    """Each set of ranks has GPU arrays once, and the others host arrays."""
    for root in {0, comm.size - 1} if name in ROOTED else {0}:
        for mix in range(1 << comm.size):
            kind = "device" if mix >> comm.rank & 1 else "host"
            case = Case(
                comm, name, lambda a, k=kind: kinds.make(k, a), root, in_place
            )
            begin, end, free = form(comm, case)
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
        for form in (nonblocking, persistent):
            case = Case(comm, name, lambda a, k=kind: kinds.make(k, a))
            began.append((case, *form(comm, case)))
    for case, begin, _, _ in began:
        case.prepare(3)
        begin()
    for case, _, end, free in began[::-1]:
        end()
        case.check(3)
        free()


# Of 4 elements for each rank; the last rank is the one that gives.
GIVEN = {
    "Gather": lambda comm, make: comm.Gather(make(4), make(4 * comm.size)),
    "Reduce": lambda comm, make: comm.Reduce(make(4), make(4)),
    "Bcast": lambda comm, make: comm.Bcast(make(4), comm.size - 1),
    "Scatter": lambda comm, make: comm.Scatter(
        make(4 * comm.size), make(4), comm.size - 1
    ),
}


if MPI.get_vendor()[0] == "MPICH":  # whose own wait, after some calls
    del GIVEN["Bcast"], GIVEN["Reduce"]


@pytest.mark.parametrize("kind", kinds.KINDS)
@pytest.mark.parametrize("name", GIVEN)
def test_who_only_gives_host_memory_does_not_wait(comm, name, kind):
    """The others come to the call when that rank has long left it."""
    gives = comm.size - 1
    own = "host" if comm.rank == gives else kind

    def make(size):
        return kinds.make(own, np.ones(size))

    if comm.rank != gives:
        comm.Recv(np.zeros(1), gives, 5)
    for _ in range(3):
        GIVEN[name](comm, make)
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
