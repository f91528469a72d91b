# SPDX-License-Identifier: BSD-3-Clause
"""A call that MPI or we refuse has not happened: the next ones pair."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import warpmpi as wm
from cases import (
    FORMS,
    NAMES,
    NEIGHBORS,
    Case,
    begun,
    called,
    counted,
    perform,
)
from warpmpi import _core
from warpmpi._staging import collectives
from wrong_calls import make_wrong, wrong_for

pytestmark = pytest.mark.ranks(2)


LACKING = collectives.lacks_persistent()
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


def streamed(comm):
    """On a stream, whose first call meets the ranks on the host."""
    if not GPU:
        return
    stream, sent, into = wm.Stream(), wm.ones(3), wm.zeros(3)
    comm.on(stream).Allreduce(sent, into)
    stream.synchronize()
    assert (into.numpy() == comm.size).all()


def partitioned(comm, kind):
    into = kinds.make(kind, np.zeros(4))
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    sent = kinds.make(kind, np.full(4, comm.rank + 1.0))
    for make in comm.Psend_init, comm.Precv_init:
        for wrong in (sent, 2, 99), (sent, 3, right), ("text", 2, right):
            with pytest.raises((MPI.Exception, TypeError, ValueError)):
                make(*wrong, 5)
    requests = [
        comm.Psend_init(sent, 2, right, 5),
        comm.Precv_init(into, 2, left, 5),
    ]
    wm.Prequest.Startall(requests)
    requests[0].Pready_range(0, 1)
    wm.Request.Waitall(requests)
    for request in requests:
        request.Free()
    assert (kinds.values_of(into) == left + 1).all()


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
    lambda comm, kind: streamed(comm),
]


@pytest.mark.parametrize("memory", MEMORY, ids="-".join)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("who", WHO)
def test_a_refused_call_has_not_happened(comms, name, form, memory, who):
    call_wrongly(comms(name), name, form, memory, who)


@pytest.mark.skipif(LACKING, reason="as above")
@pytest.mark.parametrize("memory", MEMORY, ids="-".join)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("who", WHO)
def test_refusals_of_an_mpi_without_persistent_collectives(
    comms, monkeypatch, name, memory, who
):
    """MPI hears of the call at Start, and judges its arguments before."""
    monkeypatch.setattr(collectives, "lacks_persistent", lambda: True)
    call_wrongly(comms(name), name, "_init", memory, who)


def call_wrongly(comm, name, form, memory, who):
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


@pytest.mark.parametrize("kind", ["host", *GPU])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_a_refused_call_waits_for_no_other_rank(comms, name, form, kind):
    comm = comms(name)
    for turn, what in enumerate(wrong_for(name)):
        case = Case(comm, name, lambda values: kinds.make(kind, values))
        alone = turn % comm.size
        if comm.rank == alone:
            refuse(comm, name, form, case, what)
        # The others enter no collective before.
        MPI.COMM_WORLD.bcast(what, alone)
        perform(comm, name, form, *case.args)
        case.check()


class RaisingOnce:
    """GPU memory whose interface raises when it is first asked for."""

    def __init__(self, array, error):
        self.array, self.errors = array, [error]

    @property
    def __cuda_array_interface__(self):
        if self.errors:
            raise self.errors.pop()("an interface raises")
        return self.array.__cuda_array_interface__


@pytest.mark.skipif(not GPU, reason="without a GPU nobody asks before mpi4py")
@pytest.mark.parametrize("error", [RuntimeError, MemoryError, OSError])
@pytest.mark.parametrize("form", FORMS)
def test_an_interface_that_raises_is_not_asked_again(comms, form, error):
    comm, into = comms("Allreduce"), wm.zeros(3)
    sent = RaisingOnce(wm.ones(3), error)
    if comm.rank == 0:
        with pytest.raises(error):
            getattr(comm, called("Allreduce", form))(sent, into)
    assert counted(lambda: summed(comm, GPU[0], form))[0] > 0


@pytest.mark.skipif(not GPU, reason="without GPUs they are MPI's")
@pytest.mark.parametrize("kind", ["host", *GPU])
def test_partitioned_messages_that_are_refused(comms, kind):
    for _ in range(3):
        partitioned(comms("Bcast"), kind)


@pytest.mark.skipif(not GPU, reason="without a GPU there is no stream")
@pytest.mark.parametrize("memory", MEMORY, ids="-".join)
def test_the_first_call_on_a_stream_after_a_refusal(comms, memory):
    for who in WHO.values():
        comm = comms("Bcast").Dup()
        if who(comm):
            with pytest.raises(MPI.Exception):
                comm.Bcast(kinds.make(memory[comm.rank > 0], np.ones(3)), 99)
        streamed(comm)
        summed(comm, "device", "")
        comm.Free()


@pytest.mark.parametrize("memory", MEMORY, ids="-".join)
def test_threads_are_refused_each_for_itself(comms, memory):
    """Each has a communicator, and its turn of wrong calls."""
    made = [comms("Bcast").Dup() for _ in range(3)]
    kind = memory[made[0].rank > 0]

    def work(number, comm):
        words = wrong_for("Allreduce")
        for turn in range(20):
            make = kinds.KINDS[-1] if turn % 3 else kind
            case = Case(
                comm,
                "Allreduce",
                lambda values, make=make: kinds.make(make, values),
            )
            form = FORMS[turn % 3]
            if (turn + number) % 3 != comm.rank:
                refuse(comm, "Allreduce", form, case, words[turn % len(words)])
            perform(comm, "Allreduce", form, *case.args)
            case.check()

    with ThreadPoolExecutor(len(made)) as pool:
        for future in [pool.submit(work, *each) for each in enumerate(made)]:
            future.result()
    for comm in made:
        comm.Free()


@pytest.mark.skipif(not GPU, reason="needs a GPU")
@pytest.mark.parametrize("form", ["", "I"])
def test_both_ends_are_told_what_one_expects(comms, form):
    comm = comms("Alltoallv")
    sent, into = ([wm.ones(9 * comm.size), [3] * comm.size] for _ in "ab")
    if comm.rank == 1:
        sent[1][0] = 1
    words = "rank 1 sends 8 bytes to rank 0, which expects 24: give the same"
    with pytest.raises(MPI.Exception) as raised:
        perform(comm, "Alltoallv", form, sent, into)
    assert raised.value.Get_error_class() == MPI.ERR_TRUNCATE
    if hasattr(raised.value, "__notes__"):
        assert words in raised.value.__notes__[0]
    summed(comm, "device", form)


@pytest.fixture(scope="module")
def ring(world):
    """Both neighbours of a rank are one rank, where there are two."""
    made = wm.Comm(world).Create_cart([world.size], [True])
    yield made
    made.Free()


@pytest.mark.parametrize("memory", MEMORY, ids="-".join)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NEIGHBORS)
@pytest.mark.parametrize("who", WHO)
def test_neighbours_that_are_refused(ring, name, form, memory, who):
    call_wrongly(ring, name, form, memory, who)


@pytest.mark.parametrize("memory", MEMORY, ids="-".join)
@pytest.mark.parametrize("first", ["host", *GPU])
def test_communicators_are_freed_after_a_refusal(world, memory, first):
    """Their slots serve others: more than there are of them."""
    comm = wm.Comm(world)
    kind = memory[comm.rank > 0]
    for turn in range(300 if first == memory[0] else 3):
        other = comm.Dup()
        array = kinds.make(kind, np.ones(3))
        if turn % 3 != comm.rank:
            with pytest.raises(MPI.Exception):
                other.Bcast(array, 99)
            with pytest.raises(MPI.Exception):
                other.Iallreduce(array, array)
        other.Free()
    other = comm.Dup()
    assert not GPU or counted(lambda: summed(other, "device", ""))[1] == 0
    other.Free()


class Fickle:
    """GPU memory whose interface raises an error when it is told to."""

    def __init__(self, array):
        self.array, self.error = array, None

    @property
    def __cuda_array_interface__(self):
        if self.error is not None:
            raise self.error("an interface raises")
        return self.array.__cuda_array_interface__


@pytest.mark.skipif(not GPU, reason="needs a GPU")
@pytest.mark.parametrize("error", [RuntimeError, MemoryError, KeyError])
@pytest.mark.parametrize("who", WHO)
def test_a_refused_start_has_not_happened(comms, error, who):
    comm = comms("Allreduce")
    sent, into = Fickle(wm.ones(5)), wm.zeros(5)
    request = comm.Allreduce_init(sent, into)
    for turn in range(6):
        if WHO[who](comm) and turn % 3:
            sent.error = error
            for _ in range(turn % 3):
                with pytest.raises((error, TypeError)):
                    request.Start()
            sent.error = None
        sent.array.fill_(turn + 1.0)
        request.Start()
        request.Wait()
        assert (into.numpy() == comm.size * (turn + 1)).all()
    request.Free()


@pytest.mark.parametrize("memory", MEMORY, ids="-".join)
@pytest.mark.parametrize("who", WHO)
def test_objects_that_are_refused(comms, memory, who):
    """None that reduces: mpi4py itself hangs after one that is refused."""
    comm = comms("bcast")
    array = kinds.make(memory[comm.rank > 0], np.arange(4.0))
    for call in (
        lambda: comm.bcast(array, 99),
        lambda: comm.gather(array, 2**40),
        lambda: comm.scatter([array] * comm.size, "zero"),
        lambda: comm.allgather(array, array),
    ):
        if WHO[who](comm):
            with pytest.raises((MPI.Exception, TypeError, OverflowError)):
                call()
        got = comm.allgather({"rank": comm.rank, "array": array})
        assert [each["rank"] for each in got] == list(range(comm.size))
        for each in got:
            assert (kinds.values_of(each["array"]) == np.arange(4.0)).all()
        assert comm.allreduce(1) == comm.size
        summed(comm, kinds.KINDS[-1], "")


@pytest.mark.skipif(not GPU, reason="needs a GPU")
@pytest.mark.skipif(LACKING, reason="MPI has none")
def test_a_staged_persistent_call_tells_what_is_wrong(comms):
    """One rank has host memory, so MPI makes the calls of all."""
    comm = comms("Allreduce")
    kind = "host" if comm.rank == 0 else "device"
    sent, into = (kinds.make(kind, np.ones(3)) for _ in "ab")
    request = comm.Allreduce_init(sent, into)
    if comm.rank == 0:
        comm.Barrier()
    request.Start()
    if comm.rank != 0:
        for call in request.Start, request.Free:
            with pytest.raises(MPI.Exception) as raised:
                call()
            assert_told(raised, f"{call.__name__}: the persistent Allreduce")
        comm.Barrier()
    request.Wait()
    assert (kinds.values_of(into) == comm.size).all()
    request.Free()
    if comm.rank != 0:
        with pytest.raises(MPI.Exception) as raised:
            request.Start()
        assert_told(raised, "Start: the persistent collective was freed")


def assert_told(raised, words):
    if hasattr(raised.value, "add_note"):
        assert words in raised.value.__notes__[0]


@pytest.mark.skipif(not GPU, reason="needs a GPU")
@pytest.mark.parametrize("wrong", [MPI.BAND, None], ids=["op", "memory"])
def test_a_call_behind_others_is_refused_at_once(comms, wrong):
    """MPI, which does the call later, would tell of it too late."""
    comm = comms("Allreduce")
    first, second = (
        [kinds.make(kind, np.ones(5)) for _ in "ab"]
        for kind in ("device", "host")
    )
    if comm.rank > 0:
        comm.Recv(np.zeros(1), 0)
    requests = [comm.Iallreduce(*first)]
    if comm.rank == 0:  # no other rank is in the first call
        for _ in range(2):
            with pytest.raises(MPI.Exception):
                if wrong is None:
                    comm.Iallreduce(second[0], second[0])
                else:
                    comm.Iallreduce(*second, wrong)
    requests.append(comm.Iallreduce(*second))
    for rank in range(1, comm.size if comm.rank == 0 else 0):
        comm.Send(np.zeros(1), rank)
    wm.Request.Waitall(requests)
    for _, into in (first, second):
        assert (kinds.values_of(into) == comm.size).all()
    summed(comm, "device", "I")


@pytest.mark.skipif(not GPU, reason="needs a GPU")
@pytest.mark.parametrize(
    "form",
    [
        "",
        pytest.param(
            "_init",
            marks=pytest.mark.skipif(LACKING, reason="Start takes the memory"),
        ),
    ],
)
@pytest.mark.parametrize("who", WHO)
def test_memory_runs_out_after_the_ranks_have_met(
    comms, monkeypatch, form, who
):
    """One rank has host memory, so the others need page-locked memory.

    A derived datatype, as the core itself makes the calls of MPI's own types.
    """
    comm = comms("Bcast")
    kind = "host" if comm.rank == 0 else "device"
    pairs = MPI.DOUBLE.Create_contiguous(2).Commit()
    array = kinds.make(kind, np.arange(4.0) * (comm.rank == 0))
    args = [array, 2, pairs], 0

    def full(*_):
        raise MemoryError("no page-locked memory")

    for _ in range(3):
        if WHO[who](comm) and kind != "host":
            with monkeypatch.context() as patch:
                patch.setattr(_core, "_stage", full)
                for _ in range(2):
                    with pytest.raises(MemoryError):
                        begun(comm, "Bcast", form, *args)
        perform(comm, "Bcast", form, *args)
        assert kinds.values_of(array).tolist() == [0, 1, 2, 3]
        comm.Barrier()
        summed(comm, "device", "_init")
    pairs.Free()


@pytest.mark.parametrize("memory", MEMORY, ids="-".join)
@pytest.mark.parametrize("begins", [False, True], ids=["at once", "begun"])
@pytest.mark.parametrize("name", ["Bcast", "Reduce"])
def test_rooted_calls_between_groups(comms, world, name, begins, memory):
    """A rank of the root's group has no buffer, whatever the others have."""
    half = comms("Bcast").Split(world.rank % 2)
    between = half.Create_intercomm(0, comms("Bcast"), 1 - world.rank % 2, 7)
    call = getattr(between, f"I{name.lower()}" if begins else name)
    gives, root = (name == "Reduce") == (world.rank % 2 == 1), 0
    if world.rank % 2 == 0:
        root = MPI.ROOT if between.rank == 0 else MPI.PROC_NULL
    for turn in range(9):
        x = kinds.make(memory[world.rank % 2], np.full(3, float(gives)))
        args = [x, MPI.SUM, root] if name == "Reduce" else [x, root]
        if name == "Reduce":
            args.insert(gives, None)
        if turn % 3 == 2 or turn % 3 == world.rank % 2:
            for wrong in (*args[:-1], 99), (*args[:-1], "zero"), (*args, 1):
                with pytest.raises((MPI.Exception, TypeError)):
                    call(*wrong)
        request = call(*args)
        if begins:
            request.Wait()
        if root != MPI.PROC_NULL and not gives:
            many = 1 if name == "Bcast" else between.Get_remote_size()
            assert (kinds.values_of(x) == many).all()
        if turn % 2:
            between.Barrier()
    between.Free()
    half.Free()


@pytest.mark.skipif(not GPU, reason="needs a GPU")
def test_a_barrier_does_not_wait_for_one_that_has_gone_on(comms):
    """A rank that declines may yet be refused and come; one call later not."""
    other = comms("Bcast").Dup()
    if comms("Bcast").rank == 1:
        for _ in range(2):  # of nothing, which sends no message
            other.Bcast(np.zeros(0), 1)
    else:
        words = "some ranks are in a collective of host memory"
        with pytest.raises(TypeError, match=words):
            other.Barrier()
    other.Free()
