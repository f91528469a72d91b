# SPDX-License-Identifier: BSD-3-Clause
"""MPI.IN_PLACE where some ranks give GPU memory and others host memory."""

import pytest

import kinds
import warpmpi as wm
from cases import FORMS, IN_PLACE, MPICH, ROOTED, TABLE, Case, perform

# Above the pieces in which GPU memory is staged.
LARGE = 2_200_000
MIXES = [
    (5, {0}),
    (5, {1, 2}),
    (87_500, {0}),
    (87_500, {1}),
    (87_500, {0, 2, 3}),
    (LARGE, {1, 2}),
]


@pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU")
@pytest.mark.ranks(2)
@pytest.mark.parametrize(("n", "on_gpu"), MIXES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place_where_memory_differs(comm, name, form, n, on_gpu):
    if name == "Reduce_scatter" and MPICH:
        pytest.skip("MPICH copies a block over itself, and aborts")
    kind = "device" if comm.rank in on_gpu else "host"
    if n == LARGE and name not in ("Allreduce", "Reduce", "Scan"):
        n //= comm.size
    for root in {0, comm.size - 1} if name in ROOTED else {0}:
        case = Case(
            comm, name, lambda a: kinds.make(kind, a), root, True, each=n
        )
        perform(comm, name, form, *case.args)
        if case.at_root or not TABLE[name].to_root:
            case.check()
