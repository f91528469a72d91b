# SPDX-License-Identifier: BSD-3-Clause
"""Collectives of comm.on(stream): given to the stream, which meets the others.

What a rank has received is compared with what NumPy makes of all ranks' data.
"""

import gc
import os
import re
import time
from functools import partial

import numpy as np
import pytest
from mpi4py import MPI

import graphs
import kinds
import ranks
import warpmpi as wm
from stream_calls import CALLS, DTYPES, SIZES, Call

pytestmark = pytest.mark.skipif(
    not wm.is_cuda_available(), reason="needs a GPU"
)

RANKS = MPI.COMM_WORLD.size
TURNS = 2000 if os.environ.get("WARPMPI_TEST_FULL") else 40


@pytest.fixture(scope="module")
def comm(connected):
    return connected


@pytest.mark.skipif(kinds.is_real(), reason="counts the driver's calls")
def test_a_call_enters_its_device_once(comm, stream):
    count = kinds.driver().simcuda_calls
    sent, received = wm.ones(2, "f4"), wm.zeros(2, "f4")
    channel = comm.on(stream)
    channel.Allreduce(sent, received)  # opens what the calls need
    before = count(b"CtxPushCurrent_v2")
    channel.Allreduce(sent, received)
    # None where the program's context is the device's already.
    assert count(b"CtxPushCurrent_v2") - before <= 1
    stream.synchronize()


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
@pytest.mark.parametrize("kind", ["device", "foreign"])
def test_values(comm, stream, kind, call):
    """All sizes and types under way at once, then looked at."""
    channel, made = comm.on(stream), []
    sizes = SIZES if kind == "device" else SIZES[:-1]
    for turn, size in enumerate(sizes):
        dtype = DTYPES[turn]
        c = Call(comm, size, dtype, kind, turn % comm.size)
        made.append(call(c, channel))
    stream.synchronize()
    for result, size in zip(made, sizes, strict=True):
        out, wanted = result
        np.testing.assert_array_equal(
            kinds.values_of(out), wanted, err_msg=f"{size}"
        )


class Nonblocking:
    """The calls of a channel, by their nonblocking forms."""

    def __init__(self, channel):
        self.channel, self.requests = channel, []

    def __getattr__(self, name):
        begin = getattr(self.channel, "I" + name[0].lower() + name[1:])
        return lambda *args, **kwargs: self.requests.append(
            begin(*args, **kwargs)
        )


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_nonblocking(comm, stream, call):
    """A request keeps the arrays, and ends when the stream has passed."""
    channel, made = Nonblocking(comm.on(stream)), []
    for turn, size in enumerate(SIZES[:-1]):
        dtype = DTYPES[turn]
        c = Call(comm, size, dtype, "device", turn % comm.size)
        made.append(call(c, channel))
        gc.collect()
    MPI.Request.Waitall(channel.requests)
    assert stream.is_complete
    for result in made:
        np.testing.assert_array_equal(result[0].numpy(), result[1])


@pytest.mark.ranks(2)
def test_a_request_ends_when_the_others_have_come(comm, stream):
    channel = comm.on(stream)
    a = wm.ones(1000, "int32")
    request = channel.Ibarrier()
    request.Wait()
    if comm.rank == 0:
        request = channel.Iallreduce(MPI.IN_PLACE, a)
        assert not request.Test()
        MPI.COMM_WORLD.Barrier()
    else:
        MPI.COMM_WORLD.Barrier()
        request = channel.Iallreduce(MPI.IN_PLACE, a)
    request.Wait()
    assert (a.numpy() == comm.size).all()


def test_many_in_any_order(comm):
    """Short and long ones in turn, as the halves are."""
    generator = np.random.default_rng(7)  # alike on all ranks
    own = np.random.default_rng([8, comm.rank])  # a rank's own choices
    streams = [wm.Stream(wm.get_device()) for _ in range(2)]
    made = []
    for turn in range(TURNS):
        call = CALLS[generator.integers(len(CALLS))]
        size = int(generator.choice([1, 50, 3000, SIZES[-1]]))
        dtype = DTYPES[generator.integers(len(DTYPES))]
        if size == SIZES[-1]:
            dtype = "float32"
        root = int(generator.integers(comm.size))
        kind = kinds.DEVICE_KINDS[own.integers(len(kinds.DEVICE_KINDS))]
        stream = streams[own.integers(2)]
        c = Call(comm, size, dtype, kind, root)
        made.append((turn, call, call(c, comm.on(stream))))
        if turn % 20 == 19:
            for stream in streams:
                stream.synchronize()
            for number, each, result in made:
                values = kinds.values_of(result[0])
                assert (values == result[1]).all(), (number, each)
            made.clear()


def test_it_follows_the_stream_and_comes_before_what_follows(comm, stream):
    channel = comm.on(stream)
    size = 300_001
    a = wm.zeros(size, "float32", device=stream.device)
    out = wm.empty(size, "float32", device=stream.device)
    for turn in range(5):
        a.assign(np.full(size, turn + comm.rank, "float32"))
        channel.Allreduce(a, out)
        a.assign(np.full(size, 99, "float32"))  # ours know that they are read
        total = turn * comm.size + sum(range(comm.size))
        assert (out.numpy() == total).all()


@pytest.mark.parametrize("op", [MPI.REPLACE, MPI.NO_OP, MPI.OP_NULL])
def test_an_op_that_reduces_nothing_is_refused(comm, stream, op):
    channel = comm.on(stream)
    a, b = wm.ones(1000, "int16"), wm.zeros(1000, "int16")
    for name in "Allreduce", "Scan", "Exscan", "Reduce":
        with pytest.raises(
            MPI.Exception, match=r"op: MPI\.OP_NULL reduces"
        ) as told:
            getattr(channel, name)(a, b, op)
        assert told.value.Get_error_class() == MPI.ERR_OP
    channel.Allreduce(a, b)
    assert (b.numpy() == comm.size).all()


@pytest.mark.parametrize("name", ["Bcast", "Reduce", "Gather", "Scatter"])
@pytest.mark.parametrize("root", [-1, MPI.PROC_NULL, MPI.COMM_WORLD.size])
def test_a_root_that_is_none(fresh, stream, name, root):
    every = wm.ones(4 * fresh.size)
    buffers = (every,) if name == "Bcast" else (every, every[:4])
    words = f"root={root} is not a rank of this communicator: use 0 to "
    with pytest.raises(MPI.Exception, match=words) as told:
        getattr(fresh.on(stream), name)(*buffers, root=root)
    assert told.value.Get_error_class() == MPI.ERR_ROOT


def test_counts_that_do_not_fit_are_both_named(fresh, stream):
    channel, size = fresh.on(stream), fresh.size
    for count in 4 * size + 1, 5 * size, 0:
        words = rf"sendbuf has {count} elements, and recvbuf 4 for each of "
        with pytest.raises(ValueError, match=words + f"{size} ranks"):
            channel.Reduce_scatter_block(wm.ones(count), wm.zeros(4))
    with pytest.raises(ValueError, match=r"sendbuf has 3 .*recvbuf 4: give"):
        channel.Allreduce(wm.ones(3), wm.zeros(4))


class Nothing:
    """What a foreign library shows of an array without elements."""

    __cuda_array_interface__ = {
        "shape": (0,),
        "typestr": "<i8",
        "data": (0, False),
        "version": 3,
    }


def test_a_foreign_array_without_elements(comm, stream):
    channel, size, rank = comm.on(stream), comm.size, comm.rank
    counts = [0] * size  # the last gives to all, and takes from none
    a = wm.full(size, rank, "int64") if rank == size - 1 else Nothing()
    sent = [a, [1] * size if rank == size - 1 else counts]
    got = wm.zeros(1, "int64")
    channel.Alltoallv(sent, [got, [0] * (size - 1) + [1]])
    channel.Alltoallv([Nothing(), counts], [Nothing(), counts])
    stream.synchronize()
    assert got.numpy() == size - 1


def test_streams_in_turn(comm):
    """One communicator on several streams: one call after the other."""
    streams = [wm.Stream(wm.get_device()) for _ in range(3)]
    outs = []
    for turn in range(12):
        a = wm.array(np.full(1000 + turn, turn, "int32"))
        outs.append(wm.empty(1000 + turn, "int32"))
        comm.on(streams[turn % 3]).Allreduce(a, outs[-1])
    for stream in streams:
        stream.synchronize()
    for turn, out in enumerate(outs):
        assert (out.numpy() == turn * comm.size).all()


def test_an_array_on_one_stream_and_then_on_another(comm):
    """Who comes again on a stream waits for the others of the array alone."""
    streams = [wm.Stream(wm.get_device()) for _ in range(3)]
    a, copies = wm.ones(1000, "int64"), []
    for turn in [0, 0, 1, 0, 1, 1, 2, 0]:
        comm.on(streams[turn]).Allreduce(MPI.IN_PLACE, a)
        copies.append(wm.zeros(1000, "int64"))
        copies[-1].assign(a, stream=streams[turn - 1])
        total = wm.empty(1000, "int64")
        comm.on(streams[turn]).Allreduce(a, total)
        a.assign(total, stream=streams[turn - 2])
    for stream in reversed(streams):
        stream.synchronize()
    for turn, copy in enumerate(copies):
        assert (copy.numpy() == comm.size ** (2 * turn + 1)).all()


def test_either_array_may_go_first(comm, stream):
    """Both have one event, while there are not too many such."""
    channel, other, made = comm.on(stream), wm.Stream(stream.device), []
    for turn in range(100):
        a, b = wm.full(10, turn, "int32"), wm.zeros(10, "int32")
        channel.Allreduce(a, b)
        a.fill_(-1, blocking=False)
        made.append(wm.zeros(10, "int32"))
        made[-1].assign(b, stream=other)
        made.append(a if turn % 2 else b)
    other.synchronize()
    for turn in range(100):
        assert (made[2 * turn].numpy() == turn * comm.size).all()
    stream.synchronize()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("where", ["ours", "given away"])
def test_nobody_waits_on_the_host(comm, stream, where):
    """Rank 0's calls return before the others have made theirs."""
    channel = comm.on(stream)
    a, out = wm.ones(1000, "int32"), wm.zeros(1000, "int32")
    if where == "given away":  # who has them orders them by the stream
        assert a.ptr != out.ptr
    channel.Allreduce(a, out)
    stream.synchronize()
    if comm.rank == 0:
        for _ in range(3):
            channel.Allreduce(a, out)
        assert not stream.is_complete
        MPI.COMM_WORLD.Barrier()
    else:
        MPI.COMM_WORLD.Barrier()
        for _ in range(3):
            channel.Allreduce(a, out)
    stream.synchronize()
    assert (out.numpy() == comm.size).all()


def test_barrier(comm, stream):
    channel = comm.on(stream)
    for _ in range(5):
        channel.Barrier()
    stream.synchronize()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("where", ["called", "in a graph"])
def test_a_barrier_waits_for_a_late_rank(comm, world, stream, where):
    channel = comm.on(stream)
    meet = channel.Barrier
    meet()  # the first call waits on the host
    stream.synchronize()
    if where == "in a graph":
        with graphs.capture(stream) as captured:
            channel.Barrier()
        meet = partial(captured[0].launch, stream)
    for _ in range(2):
        world.Barrier()
        if world.rank == 0:
            for _ in range(100):  # nobody gets through meanwhile
                time.sleep(0.002)
                assert not world.Iprobe(MPI.ANY_SOURCE, 77)
        meet()
        stream.synchronize()
        if world.rank > 0:
            world.send(None, 0, 77)
        else:
            for other in range(1, world.size):
                world.recv(source=other, tag=77)
    if where == "in a graph":
        captured[0].free()


def test_nothing_is_left(comm):
    """Symmetric memory goes with its communicator."""
    for _ in range(3):
        gc.collect()
        plain = MPI.COMM_WORLD.Dup()
        own = wm.Comm(plain)
        before = kinds.blocks()
        stream = wm.Stream(wm.get_device())
        a = wm.ones(100, "int32")
        own.on(stream).Allreduce(MPI.IN_PLACE, a)
        stream.synchronize()
        plain.Free()
        del own, a, stream
        gc.collect()
        wm.Comm(MPI.COMM_SELF)  # what is not used goes now
        assert kinds.blocks() <= before


WRONG = {
    "host memory": (
        lambda ch: ch.Allreduce(np.ones(3), wm.zeros(3)),
        TypeError,
        r"sendbuf.*without\s+on\(stream\)",
    ),
    "sizes": (
        lambda ch: ch.Allreduce(wm.zeros(4, "int32"), wm.zeros(3, "int32")),
        ValueError,
        "Allreduce: sendbuf has 4 elements, and recvbuf 3",
    ),
    "root": (
        lambda ch: ch.Bcast(wm.zeros(4), root=99),
        MPI.Exception,
        "root=99 is not a rank of this communicator",
    ),
    "op": (
        lambda ch: ch.Allreduce(
            wm.zeros(3), wm.zeros(3), op=MPI.Op.Create(lambda a, b, t: None)
        ),
        TypeError,
        "op: GPUs do not compute this",
    ),
    "displacements": (
        lambda ch: ch.Allgatherv(wm.zeros(1), [wm.zeros(4), [1], [0]]),
        TypeError,
        r"datatype: \[0\] is not a datatype; give displacements with their "
        "counts",
    ),
    "gaps": (
        lambda ch: ch.Bcast(wm.zeros((4, 4))[:, 1]),
        Exception,
        "contiguous",
    ),
}


# How the other ranks hear that one was refused: what each of them calls.
def wait_for_an_event(comm, stream, a):
    event = wm.Event(stream.device)
    event.record(stream)
    event.synchronize()


HEAR = {
    "stream": lambda comm, stream, a: stream.synchronize(),
    "event": wait_for_an_event,
    "device": lambda comm, stream, a: wm.synchronize_device(stream.device),
    "numpy": lambda comm, stream, a: a.numpy(),
    "copy": lambda comm, stream, a: wm.empty(10, "int32").assign(a),
    "barrier": lambda comm, stream, a: comm.Barrier(),
    "allreduce": lambda comm, stream, a: comm.Allreduce(
        wm.ones(5), wm.ones(5)
    ),
    "gather": lambda comm, stream, a: comm.Allgather(
        wm.ones(1), wm.ones(comm.size)
    ),
    "call": lambda comm, stream, a: comm.on(stream).Barrier(),
}
ON_ALL = "barrier", "allreduce", "gather", "call"  # who was refused as well


def goes_again(comm, stream):
    """Calls of several lengths on a stream, with right values."""
    channel = comm.on(stream)
    for count in 10, 20_000, 400_000:
        a, b = wm.ones(count, "int32"), wm.zeros(count, "int32")
        channel.Allreduce(a, b)
        channel.Bcast(b, root=comm.size - 1)
        assert (b.numpy() == comm.size).all()


@pytest.mark.parametrize(
    "name, hears",
    [(name, "stream") for name in WRONG]
    + [(name, each) for name in ("gaps", "op") for each in HEAR],
)
def test_who_is_wrong_is_told_and_so_are_the_others(
    fresh, stream, name, hears
):
    """Each rank raises once, and then it is good again."""
    channel = fresh.on(stream)
    call, error, text = WRONG[name]
    a = wm.ones(10, "int32")
    channel.Allreduce(MPI.IN_PLACE, a)
    last = fresh.rank == fresh.size - 1
    if not last:
        channel.Allreduce(MPI.IN_PLACE, a)
    MPI.COMM_WORLD.Barrier()
    if last:
        with pytest.raises(error, match=text):
            call(channel)
    MPI.COMM_WORLD.Barrier()
    found = RuntimeError, "failed in a collective on a stream.*Allreduce"
    if name == "op":  # in which all must agree
        found = ValueError, "other counts, types, op or root.*Allreduce"
    if name == "op" and fresh.size == 1:
        pytest.skip("all are refused it")
    if not last:
        with pytest.raises(found[0], match=found[1]):
            HEAR[hears](fresh, stream, a)
    elif hears == "call" and fresh.size > 1:
        with pytest.raises(RuntimeError, match="before that rank knew"):
            HEAR[hears](fresh, stream, a)
    elif hears in ON_ALL:
        HEAR[hears](fresh, stream, a)
    fresh.Allreduce(MPI.IN_PLACE, a)  # which does not go by the stream
    goes_again(fresh, stream)


@pytest.mark.parametrize("name", list(WRONG))
def test_what_is_wrong_on_all_costs_nothing_more(fresh, stream, name):
    channel = fresh.on(stream)
    call, error, text = WRONG[name]
    a = wm.ones(10, "int32")
    channel.Allreduce(MPI.IN_PLACE, a)
    for _ in range(2):
        for _ in range(2):
            with pytest.raises(error, match=text):
                call(channel)
        goes_again(fresh, stream)
    channel.Iallreduce(MPI.IN_PLACE, a).Wait()
    assert (a.numpy() == fresh.size**2).all()


def test_what_all_are_refused_harms_nobody(fresh, stream):
    channel = fresh.on(stream)
    a = wm.ones(10, "int32")
    own = MPI.Op.Create(lambda a, b, t: None)
    for number in range(1, 4):
        channel.Allreduce(MPI.IN_PLACE, a)
        for call in channel.Allreduce, channel.Iallreduce, channel.Scan:
            with pytest.raises(TypeError, match="op: GPUs do not compute"):
                call(a, wm.zeros(10, "int32"), op=own)
        channel.Barrier()
        channel.Iallreduce(MPI.IN_PLACE, wm.ones(1_000_000)).Wait()
        assert (a.numpy() == fresh.size**number).all()
    own.Free()


@pytest.mark.parametrize("name", list(WRONG))
def test_the_first_one_raises_on_all_at_once(fresh, stream, name):
    channel = fresh.on(stream)
    call, error, text = WRONG[name]
    if fresh.rank == fresh.size - 1:
        with pytest.raises(error, match=text):
            call(channel)
    else:
        with pytest.raises(wm.CudaError, match="failed in this collective"):
            channel.Barrier()
    a = wm.ones(10, "int32")
    channel.Allreduce(MPI.IN_PLACE, a)
    assert (a.numpy() == fresh.size).all()


def raises_once(fresh, stream, call, late, error, text):
    """The ranks in `late` make a call after the others have.

    They raise in the call, the others in their next wait.
    """
    if not late:
        call()
    MPI.COMM_WORLD.Barrier()
    if late:
        with pytest.raises(error, match=text):
            call()
    MPI.COMM_WORLD.Barrier()
    if late:
        stream.synchronize()
    else:
        with pytest.raises(error, match=text):
            stream.synchronize()
    stream.synchronize()
    fresh.Barrier()
    goes_again(fresh, stream)


@pytest.mark.ranks(2)
def test_ranks_that_differ(fresh, stream):
    channel = fresh.on(stream)
    a, b = wm.ones(10, "int32"), wm.ones(10, "int32")
    channel.Allreduce(MPI.IN_PLACE, a)
    text = "called Bcast, this rank called Allreduce"
    if fresh.rank == 0:
        text = "called Allreduce, this rank called Bcast"
    raises_once(
        fresh,
        stream,
        lambda: (
            channel.Allreduce(MPI.IN_PLACE, b)
            if fresh.rank > 0
            else channel.Bcast(b)
        ),
        fresh.rank == 0,
        TypeError,
        text,
    )


def counted(count, size):
    """Calls of which all ranks must give the same count."""
    one, all_of = wm.ones(count, "int32"), wm.ones(count * size, "int32")
    return {
        "Reduce": (one, wm.zeros(count, "int32")),
        "Bcast": (one,),
        "Gather": (one, all_of),
        "Scatter": (all_of, one),
        "Allreduce": (one, wm.zeros(count, "int32")),
        "Alltoall": (all_of, wm.zeros(count * size, "int32")),
        "Scan": (one, wm.zeros(count, "int32")),
        "Reduce_scatter_block": (all_of, one),
    }


@pytest.mark.ranks(2)
@pytest.mark.parametrize("late", ["first", "last"])
@pytest.mark.parametrize("count", [1000, 100_000])
@pytest.mark.parametrize("name", list(counted(1, 1)))
def test_counts_that_differ(fresh, stream, name, count, late):
    """Whoever comes later raises in the call, the others when they wait."""
    channel = fresh.on(stream)
    other = fresh.rank == fresh.size - 1
    count -= count // 10 * other
    getattr(channel, name)(*counted(10, fresh.size)[name])
    comes_late = other if late == "last" else not other
    if late == "first" and fresh.size > 2:
        pytest.skip("those who come together may hear of it in their call")
    raises_once(
        fresh,
        stream,
        lambda: getattr(channel, name)(*counted(count, fresh.size)[name]),
        comes_late,
        ValueError,
        rf"other counts.* to {name}: its count is \d+ .*, "
        rf"this rank's {count} \(",
    )


@pytest.mark.ranks(2)
@pytest.mark.parametrize("ahead", [1, 5])
def test_counts_that_differ_from_who_is_ahead(fresh, stream, ahead):
    channel = fresh.on(stream)
    last = fresh.rank == fresh.size - 1
    a = wm.ones(9 if last else 10, "int32")
    channel.Barrier()
    text = "to Allreduce: its count is .*, this rank's"
    for _ in range(ahead) if not last else ():
        channel.Allreduce(MPI.IN_PLACE, a)
    MPI.COMM_WORLD.Barrier()
    for number in range(ahead) if last else ():
        with pytest.raises((ValueError, RuntimeError)) as caught:
            channel.Allreduce(MPI.IN_PLACE, a)
        told = "this rank's 9 (36 bytes)", "called it before that rank knew"
        assert told[number > 0] in str(caught.value)
    MPI.COMM_WORLD.Barrier()
    if not last:
        with pytest.raises(ValueError, match=text):
            stream.synchronize()
    goes_again(fresh, stream)


def some(count):
    return wm.ones(count, "int32")


# What ranks 0 and 1 give each other, and what they take: elements.
PAIRS = {
    "too few": ((30, 0), (0, 40)),
    "too many": ((40, 0), (0, 30)),
    "far too few": ((1_000_000, 0), (0, 3_000_000)),
    "far too many": ((3_000_000, 0), (0, 1_000_000)),
    "none": ((0, 0), (0, 3_000_000)),
    "all for nobody": ((3_000_000, 0), (0, 0)),
    "both too few": ((1_000_000, 10), (3_000_000, 3_000_000)),
}


@pytest.mark.ranks(2)
@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("name", list(PAIRS))
def test_pairs_that_differ(fresh, stream, name, begins):
    """They raise, once; those who are in no such pair hear of it."""
    gives, takes = PAIRS[name]
    size, rank = fresh.size, fresh.rank
    channel = fresh.on(stream)
    counts = np.zeros((2, size), int)
    if rank < 2:
        counts[:, 1 - rank] = gives[rank], takes[rank]
    both = [
        [some(3_000_000), (list(each), [0] * size), MPI.INT32_T]
        for each in counts
    ]
    right = [
        [some(2 * size), ([2] * size, [2 * i for i in range(size)])]
        for _ in range(2)
    ]
    for _ in range(2):
        channel.Alltoallv(*right)
    text = "differ: in \\w+ rank .* bytes, and this rank"
    raised = 0

    def differs(call, *arguments):
        nonlocal raised
        try:
            result = call(*arguments)
        except ValueError as error:
            assert re.search(text, str(error))
            raised += 1
        except RuntimeError as error:
            assert rank > 1 and re.search("rank [01] failed in", str(error))
            raised += 1
        else:
            return result

    if begins:
        request = differs(channel.Ialltoallv, *both)
        if request is not None:
            differs(request.Wait)
    else:
        differs(channel.Alltoallv, *both)
    if not raised:
        differs(stream.synchronize)
    MPI.COMM_WORLD.Barrier()
    if not raised:  # its stream had nothing to wait for
        differs(stream.synchronize)
    assert raised == 1
    goes_again(fresh, stream)


@pytest.mark.long
@pytest.mark.ranks(2)
def test_a_rank_is_far_ahead(fresh, stream):
    """It waits, but only in time for the words that count calls."""
    gpus = fresh.allgather(wm.get_device().uuid)
    if len(set(gpus)) < fresh.size:
        pytest.skip("ranks share a GPU, whose streams wait in each call")
    channel = fresh.on(stream)
    nothing, a, out = some(0), some(1000), some(1000)
    a.fill_(1)
    channel.Barrier()  # in which all meet
    stream.synchronize()
    MPI.COMM_WORLD.Barrier()
    if fresh.rank > 0:
        time.sleep(2)
    for _ in range(33_000):
        channel.Bcast(nothing)
    channel.Allreduce(a, out)
    assert (out.numpy() == fresh.size).all()


def gather_to_itself(channel, rank, size):
    root = rank if rank < 2 else 0
    channel.Gather(some(4), some(4 * size), root)


def scatter_other_counts(channel, rank, size):
    counts = [1_000_000] * size
    counts[rank % 2] = 3_000_000
    into = some(counts[rank])
    channel.Reduce_scatter(some(sum(counts)), into, recvcounts=counts)


def take_from_alltoall(channel, rank, size):
    counts, zeros = [1_000_000] * size, [0] * size
    give, take = some(1_000_000 * size), some(3_000_000)
    if rank == 1:
        counts = [3_000_000 * (other == 0) for other in range(size)]
        channel.Alltoallv([give, (zeros, zeros)], [take, (counts, zeros)])
    else:
        channel.Alltoall(give, some(1_000_000 * size))


AMISS = gather_to_itself, scatter_other_counts, take_from_alltoall


@pytest.mark.ranks(2)
@pytest.mark.parametrize("call", AMISS, ids=lambda call: call.__name__)
def test_ranks_that_wait_for_each_other(fresh, stream, call):
    """They are let go, and what came before is right."""
    channel = fresh.on(stream)
    a, out = some(1_000_000), some(1_000_000 * fresh.size)
    channel.Allgather(a, out)
    a.fill_(7, stream=stream)
    channel.Allgather(a, out)
    copy = wm.zeros(out.shape, "int32")
    copy.assign(out, stream=stream)
    errors = TypeError, ValueError, RuntimeError
    with pytest.raises(errors, match="on streams differ"):
        call(channel, fresh.rank, fresh.size)
        for _ in range(200):  # until all have come
            stream.synchronize()
            time.sleep(0.1)
    MPI.COMM_WORLD.Barrier()
    assert (copy.numpy() == 7).all()
    goes_again(fresh, stream)


@pytest.mark.ranks(2)
def test_who_is_far_ahead_is_let_go_as_well(fresh, stream):
    channel = fresh.on(stream)
    zeros, rank = [0] * fresh.size, fresh.rank
    give, take = list(zeros), list(zeros)
    if rank < 2:
        give[1 - rank], take[1 - rank] = 10, 3_000_000
    sent, into = some(3_000_000), some(3_000_000)
    some_other = wm.ones(fresh.size)
    channel.Allgather(wm.ones(1), some_other)
    if rank > 0:
        MPI.COMM_WORLD.Barrier()
    channel.Alltoallv([sent, (give, zeros)], [into, (take, zeros)])
    nothing = [sent, (zeros, zeros)], [into, (zeros, zeros)]
    if rank == 0:
        for _ in range(300):
            channel.Alltoallv(*nothing)
        MPI.COMM_WORLD.Barrier()
    with pytest.raises((ValueError, RuntimeError), match="on streams differ"):
        for _ in range(200):  # until all have come
            stream.synchronize()
            time.sleep(0.1)
    MPI.COMM_WORLD.Barrier()
    for _ in range(300) if rank > 0 else ():
        with pytest.raises(RuntimeError, match="before that rank knew of"):
            channel.Alltoallv(*nothing)
    goes_again(fresh, stream)


def test_an_array_of_another_gpu(fresh, stream):
    devices = [each for each in wm.get_cuda_devices() if each != stream.device]
    if not devices:
        pytest.skip("needs two GPUs")
    a = wm.ones(10, "int32", device=devices[0])
    with pytest.raises(ValueError, match="use a stream of the array's GPU"):
        fresh.on(stream).Allreduce(MPI.IN_PLACE, a)


def test_a_stream_of_another_gpu(fresh):
    devices = wm.get_cuda_devices()
    if len(devices) < 2:
        pytest.skip("needs two GPUs")
    for device in devices[:2]:
        a = wm.ones(10, "int32", device=device)
        channel = fresh.on(wm.Stream(device))
        if device is devices[0]:
            channel.Allreduce(MPI.IN_PLACE, a)
            continue
        with pytest.raises(ValueError, match="another communicator"):
            channel.Allreduce(MPI.IN_PLACE, a)


# Rank 1 alone may use the host only.
APART = """
    import os, sys
    from mpi4py import MPI
    if MPI.COMM_WORLD.rank == 1:
        os.environ["WARPMPI_TRANSPORT"] = "host"
    import warpmpi as wm

    comm = wm.Comm(MPI.COMM_WORLD)
    stream, a = wm.Stream(), wm.ones(5_000_000)
    comm.on(stream).Allreduce(MPI.IN_PLACE, a)
    stream.synchronize()
    assert (a.numpy() == 2).all()
    told = wm.stats()
    print(told["ipc_collectives"], told["staged_collectives"], flush=True)
"""


@pytest.mark.programs
def test_what_one_rank_cannot_reach_goes_through_host_memory(tmp_path):
    printed = ranks.run_text(tmp_path, APART, timeout=60)
    assert printed.splitlines() == ["0 1", "0 1"], printed
