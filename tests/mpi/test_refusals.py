# SPDX-License-Identifier: BSD-3-Clause
"""A call that MPI or we refuse has not happened: the next ones pair."""

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import warpmpi as wm
from cases import FORMS, NAMES, NEIGHBORS, Case, called, perform
from wrong_calls import make_wrong, wrong_for

pytestmark = pytest.mark.ranks(2)

GPU = kinds.GPU_KINDS[:1]
# The memory of rank 0, and of the others.
MEMORY = [("host", "host"), *[(g, g) for g in GPU]]
MEMORY += [(g, "host") for g in GPU] + [("host", g) for g in GPU]
WHO = {
    "all": lambda comm: True,
    "the first": lambda comm: comm.rank == 0,
    "the last": lambda comm: comm.rank == comm.size - 1,
}


@pytest.fixture(scope="module")
def comms(world):
    made = wm.Comm(world).Dup()
    cart = made.Create_cart([made.size], [False])
    yield lambda name: cart if name in NEIGHBORS else made
    cart.Free()
    made.Free()


def refuse(comm, name, form, case, what):
    args, kwargs = make_wrong(case, what)
    with pytest.raises(BaseException) as raised:
        getattr(comm, called(name, form))(*args, **kwargs)
    assert not isinstance(raised.value, SystemError)


def summed(comm, kind, form):
    case = Case(comm, "Allreduce", lambda values: kinds.make(kind, values))
    perform(comm, "Allreduce", form, *case.args)
    case.check()


def gathered(comm):
    assert comm.allgather({comm.rank: 1}) == [
        {rank: 1} for rank in range(comm.size)
    ]


def duplicated(comm):
    other = comm.Dup()
    summed(other, kinds.KINDS[-1], "")
    other.Free()


# What ranks may do next: of whatever kind and memory.
NEXT = [
    lambda comm, kind: comm.Barrier(),
    lambda comm, kind: summed(comm, kind, ""),
    lambda comm, kind: summed(comm, kinds.KINDS[-1], ""),
    lambda comm, kind: summed(comm, kind, "I"),
    lambda comm, kind: summed(comm, kinds.KINDS[-1], "I"),
    lambda comm, kind: summed(comm, kinds.KINDS[-1], "_init"),
    lambda comm, kind: gathered(comm),
    lambda comm, kind: duplicated(comm),
    lambda comm, kind: comm.Ibarrier().Wait(),
]


@pytest.mark.parametrize("memory", MEMORY, ids="-".join)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("who", WHO)
def test_a_refused_call_has_not_happened(comms, name, form, memory, who):
    comm = comms(name)
    kind = memory[comm.rank > 0]
    for turn, what in enumerate(wrong_for(name)):
        case = Case(comm, name, lambda values: kinds.make(kind, values))
        if WHO[who](comm):
            refuse(comm, name, form, case, what)
        if turn % 2:
            NEXT[turn // 2 % len(NEXT)](comm, kind)
        perform(comm, name, form, *case.args)
        case.check()
        summed(comm, kinds.KINDS[-1], "")
        summed(comm, kinds.KINDS[-1], "I")
