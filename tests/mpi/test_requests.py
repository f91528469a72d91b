# SPDX-License-Identifier: BSD-3-Clause
"""Several requests in one call, ours and MPI's in any mix."""

import time

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import ranks
import warpmpi as wm

OURS_AND_STOCK = pytest.mark.parametrize(
    "request_type", [wm.Request, MPI.Request], ids=["ours", "stock"]
)


def begin(comm, world, kind):
    """Messages of both communicators; requests, and how to check."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    requests, got = [], []
    for k, each in enumerate((comm, world, comm, world)):
        size = 10 ** (k + 2)
        into = kinds.make(kind if each is comm else "host", np.zeros(size))
        values = np.full(size, 100.0 * k + comm.rank)
        out = kinds.make(kind if each is comm else "host", values)
        requests.append(each.Irecv(into, left, k))
        requests.append(each.Isend(out, right, k))
        got.append((into, 100.0 * k + left, out))

    def check():
        for into, value, _ in got:
            assert (kinds.values_of(into) == value).all()

    return requests, check


@OURS_AND_STOCK
@pytest.mark.parametrize("kind", kinds.KINDS)
def test_waitany_ends_each_once(comm, world, kind, request_type):
    requests, check = begin(comm, world, kind)
    status = MPI.Status()
    seen = [request_type.Waitany(requests, status) for _ in requests]
    assert sorted(seen) == list(range(len(requests)))
    assert request_type.Waitany(requests) == MPI.UNDEFINED
    assert not any(requests)
    check()


@OURS_AND_STOCK
@pytest.mark.parametrize("kind", kinds.KINDS)
def test_waitsome_until_none_is_left(comm, world, kind, request_type):
    requests, check = begin(comm, world, kind)
    seen = []
    while (indices := request_type.Waitsome(requests)) is not None:
        assert indices
        seen += indices
    assert sorted(seen) == list(range(len(requests)))
    check()


@OURS_AND_STOCK
@pytest.mark.parametrize("kind", kinds.KINDS)
@pytest.mark.parametrize("how", ["Testall", "Testany", "Testsome"])
def test_testing_until_all_have_ended(comm, world, kind, request_type, how):
    requests, check = begin(comm, world, kind)
    seen = []
    if how == "Testall":
        while not request_type.Testall(requests):
            pass
    elif how == "Testany":
        while True:
            index, flag = request_type.Testany(requests)
            if flag and index == MPI.UNDEFINED:
                break
            if flag:
                seen.append(index)
    else:
        while (indices := request_type.Testsome(requests)) is not None:
            seen += indices
    assert not any(requests)
    assert sorted(seen) == list(range(len(requests))) or how == "Testall"
    check()


@OURS_AND_STOCK
def test_statuses_of_a_mix(comm, world, request_type):
    requests, check = begin(comm, world, "host")
    statuses = [MPI.Status() for _ in requests]
    request_type.Waitall(requests, statuses)
    left = (comm.rank - 1) % comm.size
    for k in range(4):
        status = statuses[2 * k]
        assert (status.source, status.tag) == (left, k)
        assert status.Get_count(MPI.DOUBLE) == 10 ** (k + 2)
    check()


def test_looking_without_ending(comm, world):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    into = np.zeros(3)
    request = comm.Irecv(into, left)
    assert not request.Get_status()
    world.Barrier()
    comm.Send(np.full(3, 6.0), right)
    status = MPI.Status()
    while not request.Get_status(status):
        pass
    assert (status.source, status.Get_count(MPI.DOUBLE)) == (left, 3)
    assert request
    request.Wait()
    assert (into == 6).all()


def test_starting_a_mix(comm, world):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    requests, buffers = [], []
    for each in comm, world, comm:
        out, into = np.full(4, float(comm.rank)), np.zeros(4)
        requests.append(each.Send_init(out, right, 8))
        requests.append(each.Recv_init(into, left, 8))
        buffers.append((out, into))
    for turn in range(3):
        for out, _ in buffers:
            out[:] = comm.rank + 10 * turn
        wm.Prequest.Startall(requests)
        wm.Request.Waitall(requests)
        assert all(requests)
        assert requests[0] != MPI.REQUEST_NULL
        for _, into in buffers:
            assert (into == left + 10 * turn).all()
    for request in requests:
        request.Free()
        assert not request
    with pytest.raises(TypeError, match=r"requests\[0\]"):
        wm.Prequest.Startall([comm.Isend(np.zeros(1), MPI.PROC_NULL)])


@OURS_AND_STOCK
def test_a_cancelled_receive_ends(comm, request_type):
    request = comm.Irecv(np.zeros(1), tag=99)
    request.Cancel()
    status = MPI.Status()
    request_type.Waitany([request], status)
    assert status.Is_cancelled()


@pytest.mark.ranks(2)
@pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU")
@pytest.mark.parametrize("call", ["Wait", "Test"])
def test_mpis_own_messages_go_on_meanwhile(comm, world, call):
    """Who waits for one of ours is in MPI for its peers' others as well."""
    out, own = np.full(200_000, 5.0), np.zeros(200_000)
    array = kinds.make("device", np.full(300_000, 7, np.uint8))
    if comm.rank == 0:
        theirs = world.Irecv(own, 1)
        world.Barrier()
        request = comm.Isend(array, 1)
        while call == "Test" and not request.Test():
            pass
        request.Wait()
        theirs.Wait()
        assert (own == out).all()
    elif comm.rank == 1:
        world.Barrier()
        time.sleep(0.05)  # the other has given its header away
        world.Ssend(out, 0)
        comm.Recv(array, 0)
    else:
        world.Barrier()


# Without a thread of ours beside it: what came is found by who asks once.
ONE_OF_MANY = """
    import warnings
    import mpi4py
    mpi4py.rc.thread_level = "serialized"
    import numpy as np
    from mpi4py import MPI
    import warpmpi as wm

    warnings.simplefilter("ignore")
    comm, one = wm.Comm(MPI.COMM_WORLD), np.ones(1)
    others = [comm.Irecv(np.zeros(1), 0, 1000 + k) for k in range(100)]
    last = [comm.Irecv(np.zeros(1), 0, 1) for _ in range(3)]
    receive = comm.Precv_init(np.zeros(4), 2, 0, 3)
    send = comm.Psend_init(np.ones(4), 2, 0, 3)
    receive.Start()
    send.Start()
    for _ in last:
        comm.Send(one, 0, 1)
    send.Pready_range(0, 1)
    assert last[0].Test()
    assert wm.Request.Testall(last)
    assert receive.Parrived(1)
    for k in range(100):
        comm.Send(one, 0, 1000 + k)
    wm.Request.Waitall([*others, receive, send])
"""


@pytest.mark.programs
def test_a_test_looks_at_what_it_is_asked_for(tmp_path):
    ranks.run_text(tmp_path, ONE_OF_MANY, ranks=1)


# Nobody else advances what is looked at.
LOOKED_AT = """
    import sys, time, warnings
    import mpi4py
    mpi4py.rc.thread_level = "serialized"
    import numpy as np
    from mpi4py import MPI
    import warpmpi as wm

    warnings.simplefilter("ignore")
    name, kind, installed = sys.argv[1:]
    if installed == "installed":
        wm.install()
    calls = MPI.Request if installed == "installed" else wm.Request
    comm = wm.Comm(MPI.COMM_WORLD)
    device = wm.get_device() if kind == "device" else "cpu"
    out = wm.full(100_000, 7.0, device=device)
    into = wm.zeros(100_000, device=device)
    other, status = 1 - comm.rank, MPI.Status()
    requests = [comm.Irecv(into, other, 3), comm.Isend(out, other, 3)]
    look = {
        "Get_status": lambda: all([r.Get_status() for r in requests]),
        "all": lambda: calls.Get_status_all(requests),
        "any": lambda: calls.Get_status_any(requests[:1]) == (0, True),
        "some": lambda: calls.Get_status_some(requests) == [0, 1],
    }[name]
    end = time.monotonic() + 20
    while not look():
        assert time.monotonic() < end, "nothing moves"
    assert all(requests)
    assert requests[0].get_status(status)
    assert (status.source, status.tag) == (other, 3)
    assert status.Get_count(MPI.BYTE) == into.nbytes
    if name != "Get_status":
        assert calls.get_status_all(requests)
    wm.Request.Waitall(requests)
    assert (into.numpy() == 7).all()
"""


@pytest.mark.programs
@pytest.mark.parametrize("installed", ["installed", "not installed"])
@pytest.mark.parametrize("name", ["Get_status", "all", "any", "some"])
def test_a_look_that_leaves_the_request(tmp_path, name, installed):
    if name != "Get_status":
        try:
            MPI.Request.Get_status_all([])
        except (AttributeError, NotImplementedError):
            pytest.skip("needs MPI 4.1")
    kind = "device" if wm.is_cuda_available() else "host"
    ranks.run_text(tmp_path, LOOKED_AT, name, kind, installed, timeout=50)
