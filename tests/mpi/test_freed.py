# SPDX-License-Identifier: BSD-3-Clause
"""MPI_Comm_free: what has begun goes on, and ends as ever."""

import time

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import ranks
import warpmpi as wm


def neighbours(comm):
    return (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size


def test_all(requests):
    while not wm.Request.Testall(requests):
        pass


test_all.__test__ = False
WAITS = {
    "Wait": lambda requests: [request.Wait() for request in requests],
    "Waitall": wm.Request.Waitall,
    "stock": MPI.Request.Waitall,
    "Testall": test_all,
}


def late(comm, after):
    """The others are in Free already, or past it."""
    if after and comm.rank == 0:
        time.sleep(0.1)


@pytest.mark.parametrize("end", ["Free", "Disconnect"])
@pytest.mark.parametrize("after", [True, False])
@pytest.mark.parametrize("kind", kinds.KINDS)
def test_what_has_begun_is_received(comm, kind, after, end, capfd):
    right, left = neighbours(comm)
    for size, wait in zip((10, 100_000, 800_000, 10), WAITS, strict=True):
        if wait == "stock" and MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            continue
        made = comm.Dup()
        into = kinds.make(kind, np.zeros(size, np.uint8))
        out = kinds.make(kind, np.full(size, comm.rank + 1, np.uint8))
        requests = [made.Irecv(into, left, 3)]
        late(comm, after)
        requests.append(made.Isend(out, right, 3))
        getattr(made, end)()
        assert made == MPI.COMM_NULL
        WAITS[wait](requests)
        assert "gives up" not in capfd.readouterr().err
        assert (kinds.values_of(into) == left + 1).all(), (size, wait)


@pytest.mark.parametrize("after", [True, False])
def test_an_object_is_received(comm, after, capfd):
    right, left = neighbours(comm)
    array = np.full(100_000, comm.rank)
    if wm.is_cuda_available():
        array = kinds.make("device", array)
    for plain in (True, False):
        made = comm.Dup()
        receiving = made.irecv(source=left)
        late(comm, after)
        sending = made.isend(comm.rank if plain else [array], right)
        made.Free()
        obj = receiving.wait()
        sending.wait()
        assert "gives up" not in capfd.readouterr().err
        if plain:
            assert obj == left
        else:
            assert type(obj[0]) is type(array)
            assert (kinds.values_of(obj[0]) == left).all()


@pytest.mark.parametrize("kind", kinds.KINDS[:1] + kinds.KINDS[-1:])
def test_persistent_requests_end(comm, kind):
    right, left = neighbours(comm)
    made = comm.Dup()
    into = kinds.make(kind, np.zeros(5000))
    out = kinds.make(kind, np.full(5000, comm.rank + 1.0))
    requests = [made.Recv_init(into, left, 3), made.Send_init(out, right, 3)]
    wm.Prequest.Startall(requests)
    made.Free()
    wm.Request.Waitall(requests)
    assert (kinds.values_of(into) == left + 1).all()
    for request in requests:
        request.Free()


MATCHED = [
    (kind, size, how)
    for kind in ("host", "device")
    for size in (10, 800_000)
    for how in ("Recv", "Irecv")
    if kind in kinds.KINDS
]


@pytest.fixture(scope="module")
def matched(comm):
    """Messages of a freed communicator: what is sent, of which request.

    All of one, as to free it is to wait some seconds for them.
    """
    right, left = neighbours(comm)
    made = comm.Dup()
    found = {}
    for tag, (kind, size, how) in enumerate(MATCHED):
        out = kinds.make(kind, np.full(size, comm.rank + tag, np.uint8))
        sending = made.Isend(out, right, tag)
        found[kind, size, how] = tag, sending, made.Mprobe(left, tag)
    made.Free()
    comm.Dup().Free()  # lets go of what nothing refers to
    yield found
    for (kind, size, _), (_, sending, message) in found.items():
        message.Recv(kinds.make(kind, np.zeros(size, np.uint8)))
        sending.Wait()


@pytest.mark.parametrize(("kind", "size", "how"), MATCHED)
def test_a_matched_message_is_received(comm, matched, kind, size, how):
    _, left = neighbours(comm)
    tag, sending, message = matched.pop((kind, size, how))
    into = kinds.make(kind, np.zeros(size, np.uint8))
    receiving = getattr(message, how)(into)
    if how == "Irecv":
        receiving.Wait()
    sending.Wait()
    assert (kinds.values_of(into) == left + tag).all()


@pytest.mark.parametrize("how", ["recv", "irecv"])
def test_a_matched_object_is_received(comm, how):
    right, left = neighbours(comm)
    array = np.full(100_000, comm.rank)
    if wm.is_cuda_available():
        array = kinds.make("device", array)
    made = comm.Dup()
    sending = made.isend([array], right)
    message = made.mprobe(left)
    made.Free()
    comm.Dup().Free()
    obj = message.recv() if how == "recv" else message.irecv().wait()
    sending.wait()
    assert type(obj[0]) is type(array)
    assert (kinds.values_of(obj[0]) == left).all()


@pytest.mark.parametrize("forms", [("Send", "Recv"), ("Psend", "Precv")])
@pytest.mark.parametrize("kind", kinds.KINDS)
def test_persistent_requests_start_again(comm, kind, forms):
    right, left = neighbours(comm)
    for size in (10, 800_000):
        made = comm.Dup()
        into = kinds.make(kind, np.zeros(size, np.uint8))
        out = kinds.make(kind, np.zeros(size, np.uint8))
        count = [2] if forms[0] == "Psend" else []
        sending = getattr(made, forms[0] + "_init")(out, *count, right, 3)
        receiving = getattr(made, forms[1] + "_init")(into, *count, left, 3)
        made.Free()
        for turn in range(3):
            comm.Dup().Free()
            wm.asarray(out).fill_(10 * turn + comm.rank)
            if turn == 0:
                receiving.Start()
                sending.Start()
            else:
                wm.Prequest.Startall([receiving, sending])
            if count:
                sending.Pready_range(0, 1)
            wm.Request.Waitall([receiving, sending])
            assert (kinds.values_of(into) == 10 * turn + left).all()
        sending.Free()
        receiving.Free()


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_partitions_become_ready(comm, kind):
    right, left = neighbours(comm)
    made = comm.Dup()
    into = kinds.make(kind, np.zeros(1000, np.uint8))
    out = kinds.make(kind, np.full(1000, comm.rank + 1, np.uint8))
    receiving = made.Precv_init(into, 1, left, 3)
    sending = made.Psend_init(out, 4, right, 3)
    wm.Prequest.Startall([receiving, sending])
    sending.Pready(2)
    made.Free()
    comm.Dup().Free()
    sending.Pready_list([0, 3])
    assert not sending.Test()
    sending.Pready(1)
    wm.Request.Waitall([receiving, sending])
    assert receiving.Parrived(0)
    assert (kinds.values_of(into) == left + 1).all()


def test_a_stream_is_that_of_before(comm):
    if not wm.is_cuda_available():
        pytest.skip("needs a GPU")
    right, left = neighbours(comm)
    made, stream = comm.Dup(), wm.Stream()
    into = kinds.make("device", np.zeros(1000, np.uint8))
    out = kinds.make("device", np.full(1000, comm.rank + 1, np.uint8))
    on = made.on(stream)
    requests = [on.Recv_init(into, left, 3), on.Send_init(out, right, 3)]
    made.Free()
    wm.Prequest.Startall(requests)
    wm.Request.Waitall(requests)
    stream.synchronize()
    assert (kinds.values_of(into) == left + 1).all()


def hold_message(made, other):
    sending = made.Isend(np.ones(3), other, 3)
    message = made.Mprobe(other, 3)
    return sending, message


def hold_failed(made, other):
    """A receive that was truncated, and that nobody waits for."""
    request = made.Irecv(np.zeros(1), other, 3)
    made.Send(np.ones(100), other, 3)
    while "complete" not in repr(request):
        made.Iprobe()
    return request


HOLDERS = {
    "failed": hold_failed,
    "Prequest": lambda made, other: [made.Send_init(np.zeros(3), other)],
    "Psend_init": lambda made, other: [made.Psend_init(bytes(4), 2, other)],
    "Message": hold_message,
    "received": lambda made, other: [
        each.Recv(np.zeros(3)) if isinstance(each, wm.Message) else each
        for each in hold_message(made, other)
    ],
}


def highest_number():
    """Of some that are made now: those that were freed come again."""
    made = [MPI.COMM_SELF.Dup() for _ in range(8)]
    number = max(each.py2f() for each in made)
    for each in made:
        each.Free()
    return number


@pytest.mark.parametrize("how", HOLDERS)
def test_communicators_go_with_the_last_that_holds_them(comm, how):
    """Each has two others behind it."""
    before = highest_number()
    for _ in range(30):
        made = comm.Dup()
        held = HOLDERS[how](made, comm.rank)
        made.Free()
        del held
    assert highest_number() < before + 20


def test_what_nobody_sends_can_be_cancelled(comm):
    made = comm.Dup()
    into = np.zeros(3)
    request = made.Irecv(into, comm.rank, 3)
    made.Free()
    assert not request.Test()
    request.Cancel()
    status = MPI.Status()
    request.Wait(status)
    assert status.Is_cancelled()


def test_communicators_with_requests_under_way_go(comm):
    """MPI has room for some thousands, and has none left where they stay."""
    right, left = neighbours(comm)
    into, out = np.zeros(10), np.full(10, 7.0)
    for _ in range(200):
        made = comm.Dup()
        requests = [made.Irecv(into, left), made.Isend(out, right)]
        made.Free()
        wm.Request.Waitall(requests)
    assert (into == 7).all()


FAILED = """
    import sys

    import numpy as np
    from mpi4py import MPI

    import warpmpi as wm

    comm = wm.Comm(MPI.COMM_WORLD)
    made = comm.Dup()
    me, long, short = made.rank, np.ones(100), np.zeros(1)
    if sys.argv[1] == "Isendrecv":
        failed = made.Isendrecv(long, me, 0, short, me, 0)
    elif sys.argv[1] == "Iallreduce":
        sent, into = wm.zeros(3 + me), wm.zeros(3 + me)
        failed = made.Iallreduce(sent, into)
    else:
        failed = made.Irecv(short, me, 0)
        made.Send(long, me, 0)
    while "complete" not in repr(failed):
        comm.Iprobe()  # this makes progress, and ends no request
    made.Free()
    for _ in range(2):
        comm.Dup().Free()  # lets go of what nothing refers to
    try:
        failed.Wait()
    except MPI.Exception as error:
        print("raised", error)
"""


@pytest.mark.programs
@pytest.mark.parametrize("begun", ["Irecv", "Isendrecv", "Iallreduce"])
def test_an_error_is_raised_when_nothing_is_under_way(tmp_path, begun):
    """Memory that was freed is overwritten, so that its use is seen."""
    if begun == "Iallreduce" and not wm.is_cuda_available():
        pytest.skip("needs a GPU")
    printed = ranks.run_text(
        tmp_path, FAILED, begun, ranks=2, MALLOC_PERTURB_="165"
    )
    assert printed.count("raised MPI_ERR_TRUNCATE") == 2, printed


LEFT = """
    import os

    import numpy as np
    from mpi4py import MPI

    import warpmpi as wm

    os.dup2(1, 2)
    made = wm.Comm(MPI.COMM_WORLD).Dup()
    made.Set_name("halo")
    kept = made.Irecv(np.zeros(1000), 0, 8)
    ended = made.Irecv(np.zeros(10), made.rank, 9)
    made.Send(np.ones(10), made.rank, 9)
    made.Free()
    ended.Wait()
"""


@pytest.mark.programs
def test_what_is_left_is_listed(tmp_path):
    printed = ranks.run_text(
        tmp_path, LEFT, "left", ranks=2, WARPMPI_CHECK="1"
    )
    for rank in range(2):
        told = (
            f"warpmpi: rank {rank} of halo (size 2): a request was never "
            "waited for: a receive from rank 0 with tag 8 (8000 bytes)\n"
        )
        assert told in printed, printed
    assert printed.count("warpmpi:") == 2, printed


LATE = """
    import sys, time

    import numpy as np
    from mpi4py import MPI

    import warpmpi as wm

    comm = wm.Comm(MPI.COMM_WORLD)
    made = comm.Dup()
    into = np.zeros(100_000)
    if comm.rank == 0:
        made.Isend(np.ones(100_000), 1, 3).Free()
    elif sys.argv[1] == "matched":
        message = made.Mprobe(0, 3)
    else:
        request = made.Recv_init(into, 0, 3)
    made.Free()
    if comm.rank == 1:
        time.sleep(7)  # rank 0 has given up to wait, and ends
        if sys.argv[1] == "matched":
            message.Recv(into)
        else:
            request.Start()
            request.Wait()
        print(f"received {into.sum():.0f}")
"""


@pytest.mark.programs
@pytest.mark.parametrize("how", ["matched", "persistent"])
def test_what_was_sent_is_received_when_its_sender_ends(tmp_path, how):
    printed = ranks.run_text(tmp_path, LATE, "late", how, ranks=2)
    assert "received 100000" in printed, printed


def test_its_barrier_row_is_kept_for_a_slow_rank(world):
    """What a rank that has not freed it asks for is there."""
    if world.size < 2:
        pytest.skip("needs 2 ranks")
    made = []

    def make():
        made.append(MPI.COMM_SELF.Dup())
        wm.Comm(made[-1])

    for _ in range(300 if world.rank == 0 else 0):  # all that there are
        make()
    while len(made) > 1:
        made.pop().Free()
    mpi = world.Dup()
    comm = wm.Comm(mpi)
    array = np.full(4, 7) if world.rank == 0 else wm.zeros(4, int)
    if world.rank == 0:
        comm.Ibcast(array).Wait()
        mpi.Free()
        for _ in range(300):
            make()
    world.Barrier()
    if world.rank > 0:
        comm.Ibcast(array).Wait()
        mpi.Free()
        assert array.numpy().tolist() == [7] * 4
    for each in made:
        each.Free()
    world.Barrier()


def test_barrier_rows_come_back(world):
    """One communicator after the other goes from GPU to GPU."""
    sent, into = wm.ones(3, np.float32), wm.zeros(3, np.float32)
    before = wm.stats()["ipc_collectives"]
    for _ in range(300):
        mpi = world.Dup()
        wm.Comm(mpi).Allreduce(sent, into)
        mpi.Free()
    assert wm.stats()["ipc_collectives"] - before == 300
