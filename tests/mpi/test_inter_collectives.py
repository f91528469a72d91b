# SPDX-License-Identifier: BSD-3-Clause
"""Every collective between two groups takes GPU memory, in each direction."""

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import warpmpi as wm
from warpmpi._staging import table

pytestmark = [
    pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU"),
    pytest.mark.ranks(2),
]

EMPTY = -1.0
EACH = 3  # elements of a block

# Which ranks are in the first group.
GROUPS = {
    "even": lambda rank, size: rank % 2 == 0,
    "first": lambda rank, size: rank == 0,
    "but_last": lambda rank, size: rank < size - 1,
}
# Who has memory of a GPU.
KINDS = {
    "device": lambda rank: True,
    "even": lambda rank: rank % 2 == 0,
    "odd": lambda rank: rank % 2 == 1,
}
# MPI has none between groups, or they need a topology.
INTRA_ONLY = {"Scan", "Exscan"}
NAMES = [
    row.name
    for row in table.rows_of(table.COLLECTIVES)
    if row.name not in INTRA_ONLY and not row.name.startswith("Neighbor")
]
MPICH = MPI.get_vendor()[0] == "MPICH"
ROOTED = {"Bcast", "Gather", "Gatherv", "Scatter", "Scatterv", "Reduce"}


class Groups:
    """An intercommunicator, and the ranks of both sides."""

    def __init__(self, comm, is_first):
        size = comm.size
        sides = [
            [rank for rank in range(size) if is_first(rank, size) == first]
            for first in (True, False)
        ]
        first = is_first(comm.rank, size)
        self.side = 0 if first else 1
        self.mine, self.others = sides if first else sides[::-1]
        self.world = comm.rank
        local = comm.Split(self.side, comm.rank)
        self.inter = local.Create_intercomm(0, comm, self.others[0])
        local.Free()


@pytest.fixture(scope="module", params=GROUPS)
def groups(world, request):
    if world.size == 2 and request.param != "even":
        pytest.skip("the same groups as those of even and odd ranks")
    made = Groups(wm.Comm(world), GROUPS[request.param])
    yield made
    made.inter.Free()


def value(source, dest=0):
    """What a rank sends to another, or to all."""
    return np.full(EACH, 10.0 * (source + 1) + dest)


def joined(blocks, empty=0):
    parts = [*blocks]
    return np.concatenate(parts) if parts else np.zeros(empty)


def parts(array, ranks, name):
    """All blocks of a v- or a w-form, in other order than that of ranks."""
    count = len(ranks)
    at = [EACH * (count - 1 - each) for each in range(count)]
    if name == "Alltoallw":
        at, kind = [8 * each for each in at], [MPI.DOUBLE] * count
        return [array, [EACH] * count, at, kind]
    return [array, [EACH] * count, at, MPI.DOUBLE]


def turned(values):
    """What parts() says, with its blocks from the last on."""
    return values.reshape(-1, EACH)[::-1].ravel()


class Case:
    """What a rank gives, and must get; root: None, or (side, index)."""

    def __init__(self, groups, name, make, root):
        me, mine, others = groups.world, groups.mine, groups.others
        given, want = self.values(name, me, mine, others)
        varies = name.endswith(("v", "w"))
        several = {
            0: name in ("Scatterv", "Alltoallv", "Alltoallw"),
            1: varies and name != "Scatterv",
        }
        if varies and several[0]:
            given = turned(given)
        if varies and several[1]:
            want = turned(want)
        at_root = root is not None and root[0] == groups.side
        is_root = at_root and mine[root[1]] == me
        outward = name in ("Bcast", "Scatter", "Scatterv")
        sends = root is None or (is_root if outward else not at_root)
        receives = root is None or (not at_root if outward else is_root)
        if name in ("Bcast", "Scatter", "Scatterv") and receives:
            source = others[root[1]]
            want = value(source, 0 if name == "Bcast" else me)
        self.sent = make(given) if sends else None
        self.into = make(np.full(want.size, EMPTY)) if receives else None
        self.want = want if receives else None
        args = [self.sent, self.into]
        for k, array in enumerate(args):
            if array is not None and several[k]:
                args[k] = parts(array, others, name)
        if name == "Bcast":
            args = [self.sent if sends else self.into]
        if name == "Reduce_scatter":
            args.append([self.share(groups)] * len(mine))
        if root is not None:
            if not at_root:
                told = root[1]
            else:
                told = MPI.ROOT if is_root else MPI.PROC_NULL
            args += [MPI.SUM, told] if name == "Reduce" else [told]
        self.args = args

    @staticmethod
    def share(groups):
        return EACH * len(groups.others)

    @staticmethod
    def values(name, me, mine, others):
        total = sum(value(other) for other in others)
        if name in ("Scatter", "Scatterv"):
            return joined(value(me, other) for other in others), value(0)
        if name in ("Gather", "Gatherv", "Allgather", "Allgatherv"):
            return value(me), joined(value(other) for other in others)
        if name.startswith("Alltoall"):
            return (
                joined(value(me, other) for other in others),
                joined(value(other, me) for other in others),
            )
        if name in ("Reduce", "Allreduce"):
            return value(me), total
        if name.startswith("Reduce_scatter"):
            # As many elements in both groups: a block for each of a pair.
            count = EACH * len(mine) * len(others)
            share = count // len(mine)
            at = share * mine.index(me)
            every = np.arange(float(count))
            sent = every + 100.0 * me
            want = len(others) * every + 100.0 * sum(others)
            return sent, want[at : at + share]
        return value(me), value(0)


def counts():
    """Collectives that went from GPU to GPU, and those through the host."""
    now = wm.stats()
    return np.array([now["ipc_collectives"], now["staged_collectives"]])


def call(inter, name, form, args):
    """Make the call, twice where it is persistent."""
    if form == "":
        getattr(inter, name)(*args)
        return
    if form == "I":
        getattr(inter, "I" + name[0].lower() + name[1:])(*args).Wait()
        return
    try:
        request = getattr(inter, name + "_init")(*args)
    except NotImplementedError:
        pytest.skip("this MPI has no persistent collectives")
    for _ in range(2):
        request.Start()
        request.Wait()
    request.Free()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["", "I", "_init"])
@pytest.mark.parametrize("name", NAMES)
def test_between_groups(world, groups, name, form, kind):
    has_gpu = KINDS[kind](groups.world)
    roots = [None]
    if name in ROOTED:
        sides = [len(groups.mine), len(groups.others)]
        if groups.side == 1:
            sides.reverse()
        roots = [(side, i) for side in (0, 1) for i in range(sides[side])]
    if MPICH and form != "" and name == "Bcast":
        roots = [root for root in roots if root[1] == 0]  # else it sends junk
    for root in roots:
        case = Case(
            groups,
            name,
            lambda a: kinds.make("device" if has_gpu else "host", a),
            root,
        )
        # Open MPI loses count of these: the next one hangs.
        alone = form != "" and name in ("Bcast", "Reduce")
        inter = groups.inter.Dup() if alone else groups.inter
        before = counts()
        call(inter, name, form, case.args)
        after = counts()
        if alone:
            inter.Free()
        used = case.sent is not None or case.into is not None
        on_gpus = world.allreduce(has_gpu or not used, op=MPI.LAND)
        turns = 2 if form == "_init" else 1
        native = turns if on_gpus else 0
        staged = turns if has_gpu and used and not on_gpus else 0
        assert (after - before).tolist() == [native, staged]
        if case.want is not None:
            got = kinds.values_of(case.into)
            np.testing.assert_array_equal(got, case.want)
