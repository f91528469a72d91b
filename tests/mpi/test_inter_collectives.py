# SPDX-License-Identifier: BSD-3-Clause
"""Every collective between two groups takes GPU memory, in each direction."""

import numpy as np
import pytest
from mpi4py import MPI

import cases
import kinds
import warpmpi as wm
from cases import FORMS, MOVES, MPICH, ROOTED, TABLE, VARYING, perform

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
NAMES = [name for name in cases.OF_ALL if name not in cases.INTRA_ONLY]


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
        row = TABLE[name]
        several = [form in VARYING for form in (row.sends, row.receives)]
        if several[0]:
            given = turned(given)
        if several[1]:
            want = turned(want)
        at_root = root is not None and root[0] == groups.side
        is_root = at_root and mine[root[1]] == me
        sends = root is None or (is_root if row.from_root else not at_root)
        receives = root is None or (not at_root if row.from_root else is_root)
        if row.from_root and receives:
            source = others[root[1]]
            want = value(source, me if row.sends else 0)
        self.sent = make(given) if sends else None
        self.into = make(np.full(want.size, EMPTY)) if receives else None
        self.want = want if receives else None
        args = [self.sent, self.into]
        for k, array in enumerate(args):
            if array is not None and several[k]:
                args[k] = parts(array, others, name)
        if row.arguments[0] == "buf":
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
        row = TABLE[name]
        if name in MOVES:
            given, want = value(me), value(0)
            if row.sends:
                given = joined(value(me, other) for other in others)
            if row.receives:
                to = me if row.sends else 0
                want = joined(value(other, to) for other in others)
            return given, want
        if name.startswith("Reduce_scatter"):
            # As many elements in both groups: a block for each of a pair.
            count = EACH * len(mine) * len(others)
            share = count // len(mine)
            at = share * mine.index(me)
            every = np.arange(float(count))
            sent = every + 100.0 * me
            want = len(others) * every + 100.0 * sum(others)
            return sent, want[at : at + share]
        return value(me), sum(value(other) for other in others)


def counts():
    """Collectives that went from GPU to GPU, and those through the host."""
    now = wm.stats()
    return np.array([now["ipc_collectives"], now["staged_collectives"]])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", FORMS)
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
        perform(inter, name, form, *case.args, starts=2)
        after = counts()
        if alone:
            inter.Free()
        used = case.sent is not None or case.into is not None
        on_gpus = world.allreduce(has_gpu or not used, op=MPI.LAND)
        turns = 2 if form == "_init" else 1
        direct = turns if on_gpus else 0
        staged = turns if has_gpu and used and not on_gpus else 0
        assert (after - before).tolist() == [direct, staged]
        if case.want is not None:
            got = kinds.values_of(case.into)
            np.testing.assert_array_equal(got, case.want)


@pytest.fixture
def direct():
    """Each collective of the test goes from GPU to GPU, and none is staged."""
    before = counts()
    calls = []
    yield calls.append
    gone, staged = counts() - before
    assert (gone, staged) == (len(calls), 0)


def full(count, value):
    return kinds.make("device", np.full(count, float(value)))


def root_of(groups, side, index):
    """The root as each rank is to name it."""
    if groups.side != side:
        return index
    return MPI.ROOT if groups.mine[index] == groups.world else MPI.PROC_NULL


@pytest.mark.parametrize("side", [0, 1])
def test_a_long_bcast(groups, direct, side):
    """Each takes a part, and gives it to the others of its group."""
    count = 400_000
    root = root_of(groups, side, 0)
    array = full(count, groups.world if root == MPI.ROOT else EMPTY)
    groups.inter.Bcast(array, root)
    direct("Bcast")
    values = kinds.values_of(array)
    if groups.side != side:
        assert (values == groups.others[0]).all()
    elif root == MPI.PROC_NULL:
        assert (values == EMPTY).all()


@pytest.mark.parametrize("count", [100_000, 400_001])
def test_a_long_allreduce(groups, direct, count):
    sent, into = full(count, groups.world + 1), full(count, EMPTY)
    groups.inter.Allreduce(sent, into)
    direct("Allreduce")
    total = sum(other + 1 for other in groups.others)
    assert (kinds.values_of(into) == total).all()


def test_a_long_allreduce_into_gaps(groups, direct):
    """Nobody can write it for another: all read."""
    count = 500_000
    sent, into = full(count, groups.world + 1), full(2 * count, EMPTY)
    groups.inter.Allreduce(sent, into[::2], MPI.MAX)
    direct("Allreduce")
    values = kinds.values_of(into)
    assert (values[::2] == max(groups.others) + 1).all()
    assert (values[1::2] == EMPTY).all()


def test_onto_what_is_sent(groups, direct):
    """Between groups nothing is in place; what is sent is read first."""
    count = EACH * len(groups.others)
    array = full(count, groups.world)
    if len(groups.mine) != len(groups.others):
        pytest.skip("one sends more than it receives")
    groups.inter.Alltoall(array, array)
    direct("Alltoall")
    want = joined(np.full(EACH, float(other)) for other in groups.others)
    np.testing.assert_array_equal(kinds.values_of(array), want)


@pytest.mark.parametrize("form", FORMS)
def test_datatypes_with_gaps(groups, direct, form):
    """Every second element, out of one and into the other."""
    others = len(groups.others)
    pair = MPI.DOUBLE.Create_vector(2, 1, 2).Create_resized(0, 32).Commit()
    sent = full(4, groups.world)
    into = full(4 * others, EMPTY)
    sides = [sent, 1, pair], [into, 1, pair]
    perform(groups.inter, "Allgather", form, *sides, starts=2)
    values = np.arange(4.0 * others) + 100 * groups.world
    parted = kinds.make("device", values)
    mixed = full(4 * others, EMPTY)
    at = [32 * (others - 1 - each) for each in range(others)]
    ones = [1] * others
    args = [[array, ones, at, [pair] * others] for array in (parted, mixed)]
    perform(groups.inter, "Alltoallw", form, *args, starts=2)
    for _ in range(4 if form == "_init" else 2):
        direct("twice")
    got = kinds.values_of(into).reshape(others, 2, 2)
    assert (got[:, :, 0] == np.array(groups.others)[:, None]).all()
    assert (got[:, :, 1] == EMPTY).all()
    got = kinds.values_of(mixed).reshape(others, 2, 2)[::-1]
    mine = len(groups.mine)
    block = 4 * (mine - 1 - groups.mine.index(groups.world))
    for each, other in zip(got, groups.others, strict=True):
        assert each[:, 0].tolist() == [100 * other + block + k for k in (0, 2)]
        assert (each[:, 1] == EMPTY).all()


def test_groups_may_exchange_different_counts(groups, direct):
    """Each of the first group gives one element, of the second two."""
    give, take = (1, 2) if groups.side == 0 else (2, 1)
    sent = full(give, groups.world)
    into = full(take * len(groups.others), EMPTY)
    groups.inter.Allgather(sent, into)
    direct("Allgather")
    want = np.repeat(np.array(groups.others, float), take)
    np.testing.assert_array_equal(kinds.values_of(into), want)


def test_host_arrays(groups):
    """Short ones meet where the agreement does, long ones are MPI's."""
    for count in (1, 10, 10_000):
        sent = np.full(count, groups.world + 1.0)
        into = np.zeros(count)
        before = counts()
        groups.inter.Allreduce(sent, into)
        assert (into == sum(other + 1 for other in groups.others)).all()
        root = root_of(groups, 0, 0)
        groups.inter.Bcast(sent, root)
        if groups.side == 1:
            assert (sent == groups.others[0] + 1).all()
        assert (counts() == before).all()


def all_raise(world, kind, words, call):
    """Whoever takes part hears of it, and the communicator serves again."""
    with pytest.raises(kind, match=words):
        call()
    world.Barrier()


@pytest.mark.parametrize("memory", kinds.GPU_KINDS[:1])
def test_what_ranks_must_agree_on(world, groups, memory):
    inter, others = groups.inter, len(groups.others)
    first = groups.side == 0
    array, into, one = (
        kinds.make(memory, np.zeros(count)) for count in (8, 8 * others, 8)
    )
    all_raise(
        world,
        TypeError,
        "the ranks are in different collectives, Allgather and Alltoall",
        lambda: (
            inter.Allgather(array, into)
            if first
            else inter.Alltoall(into, kinds.make(memory, into))
        ),
    )
    all_raise(
        world,
        MPI.Exception,
        "the ranks give different roots: give MPI.ROOT on the root",
        lambda: inter.Bcast(array, MPI.PROC_NULL),
    )
    all_raise(
        world,
        MPI.Exception,
        "the ranks give different roots",
        lambda: inter.Reduce(array, one, root=0),
    )
    all_raise(
        world,
        MPI.Exception,
        "gives another op than rank 0",
        lambda: inter.Allreduce(array, one, MPI.MAX if first else MPI.MIN),
    )
    half = kinds.make(memory, np.zeros(4))
    all_raise(
        world,
        MPI.Exception,
        "rank 0.* gives (32|64) bytes, rank .* gives",
        lambda: (
            inter.Allreduce(half, kinds.make(memory, np.zeros(4)))
            if first
            else inter.Allreduce(array, one)
        ),
    )
    narrow = kinds.make(memory, np.zeros(8, np.float32))
    all_raise(
        world,
        TypeError,
        "another element type",
        lambda: (
            inter.Allreduce(narrow, kinds.make(memory, np.zeros(8, "f4")))
            if first
            else inter.Allreduce(array, one)
        ),
    )


def test_a_block_that_is_not_expected(world, groups):
    """Who sees it tells it, as do all."""
    inter, others = groups.inter, len(groups.others)
    sent = full(2 if groups.side == 0 else 1, 0)
    into = full(others, EMPTY)
    words = (
        "rank 0 sends (16|8) bytes to rank . of the other group, which "
        "expects (16|8): give the same counts"
    )
    all_raise(world, MPI.Exception, words, lambda: inter.Allgather(sent, into))


def test_none_is_on_a_stream(groups):
    stream = wm.Stream(wm.get_device())
    with pytest.raises(ValueError, match=r"without on\(stream\)"):
        groups.inter.on(stream).Barrier()


def test_nothing_is_in_place(groups):
    array = full(4, 0)
    with pytest.raises((MPI.Exception, TypeError, ValueError)):
        groups.inter.Allreduce(MPI.IN_PLACE, array)


def test_many_come_and_go(world, groups):
    """Each has a slot of barriers, which is given back."""
    for turn in range(100):
        inter = groups.inter.Dup()
        into = full(1, EMPTY)
        before = counts()
        request = inter.Iallreduce(full(1, groups.world + turn), into)
        if turn % 2 == 0:
            request.Wait()
        inter.Free()
        request.Wait()
        assert (counts() - before).tolist() == [1, 0]
        total = sum(other + turn for other in groups.others)
        assert kinds.values_of(into) == [total]
