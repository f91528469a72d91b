# SPDX-License-Identifier: BSD-3-Clause
"""Requests by their handle: copies, mpi4py's own objects, and C.

A request is its handle: whoever has that can wait for it, start it and free
it, whatever has become of the object that the call returned.
"""

import ctypes
import gc
import pickle
import sys
import textwrap
import weakref

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import ranks
import warpmpi as wm

HAS_POINTERS = MPI._sizeof(MPI.Request) == 8  # for handles; MPICH has ints
IGNORE = 0 if HAS_POINTERS else 1  # MPI_STATUS_IGNORE

COPIES = {
    "copy": MPI.Request,
    "fromhandle": lambda r: MPI.Request.fromhandle(r.handle),
    "f2py": lambda r: MPI.Request.f2py(r.py2f()),
}
PERSISTENT = {
    "copy": MPI.Prequest,
    "fromhandle": lambda r: MPI.Prequest.fromhandle(r.handle),
    "f2py": lambda r: MPI.Prequest.f2py(r.py2f()),
}


@pytest.fixture(scope="module")
def c(comm):
    """MPI's own functions, as C calls them: with the address of a handle."""
    library = ctypes.CDLL(MPI.__file__)

    class Calls:
        def __getattr__(self, name):
            function = getattr(library, f"MPI_{name}")
            return lambda *args: function(*map(ctypes.c_void_p, args))

    return Calls()


def neighbours(comm):
    return (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size


def write(buffer, value):
    if isinstance(buffer, np.ndarray):
        buffer[:] = value
    else:
        wm.asarray(buffer).fill_(value)


def all_are(buffer, value):
    return (kinds.values_of(buffer) == value).all()


def wait(how, requests):
    if how == "Test":
        for request in requests:
            while not request.Test():
                pass
    elif how == "Waitany":
        seen = [wm.Request.Waitany(requests) for _ in requests]
        assert sorted(seen) == list(range(len(requests)))
    elif how == "Testall":
        while not wm.Request.Testall(requests):
            pass
    elif how in ("Waitall", "waitall"):
        getattr(wm.Request, how)(requests)
    else:
        for request in requests:
            getattr(request, how)()


@pytest.mark.parametrize(
    "how", ["Wait", "wait", "Test", "Waitall", "waitall", "Waitany", "Testall"]
)
@pytest.mark.parametrize("dropped", [True, False])
@pytest.mark.parametrize("copied", COPIES)
@pytest.mark.parametrize("kind", kinds.KINDS)
def test_a_copy_is_waited_for(comm, kind, copied, dropped, how):
    right, left = neighbours(comm)
    out = kinds.make(kind, np.full(5000, float(comm.rank)))
    into = kinds.make(kind, np.full(5000, -1.0))
    requests = [comm.Irecv(into, left, 3), comm.Isend(out, right, 3)]
    copies = [COPIES[copied](request) for request in requests]
    if dropped:
        del requests
        gc.collect()
    wait(how, copies)
    assert all_are(into, left)
    assert not any(copies)
    if not dropped:
        for request in requests:
            request.Wait()
        assert not any(requests)
    # What MPI uses for the next is none of the old one's.
    later = comm.Irecv(into, left, 4)
    if not dropped:
        del requests
    gc.collect()
    comm.Send(out, right, 4)
    later.Wait()


class Mine(MPI.Request):
    """A request class of a program's own."""


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_a_handle_outlives_its_object(comm, kind):
    right, left = neighbours(comm)
    out = kinds.make(kind, np.full(100_000, float(comm.rank)))
    into = kinds.make(kind, np.full(100_000, -1.0))
    mine = [Mine(comm.Irecv(into, left)), Mine(comm.Isend(out, right))]
    gc.collect()
    wm.Request.Waitall(mine)
    assert all_are(into, left)
    write(into, -1)
    handles = [comm.Irecv(into, left).handle, comm.Isend(out, right).handle]
    gc.collect()
    for handle in handles:
        MPI.Request.fromhandle(handle).Wait()
    assert all_are(into, left)
    total = kinds.make(kind, np.zeros(100_000))
    request = MPI.Request(comm.Iallreduce(out, total))
    gc.collect()
    request.Wait()
    assert all_are(total, sum(range(comm.size)))


def test_what_it_uses_is_kept_until_it_has_ended(comm):
    right, left = neighbours(comm)
    into = np.full(300_000, -1.0)
    gone = weakref.ref(into)
    handle = comm.Irecv(into, left).handle
    del into
    gc.collect()
    assert gone() is not None
    comm.Send(np.zeros(300_000), right)
    MPI.Request.fromhandle(handle).Wait()
    # Those that nobody has an object of are looked at now and then.
    for _ in range(200):
        handle = comm.Isend(np.zeros(1), right, 2).handle
        MPI.Request.fromhandle(handle).Wait()
        comm.Recv(np.zeros(1), left, 2)
    gc.collect()
    assert gone() is None


def test_a_copy_tells_status_and_object(comm):
    right, left = neighbours(comm)
    request = comm.Irecv(np.zeros(8), left, 5)
    comm.Send(np.zeros(3), right, 5)
    status = MPI.Status()
    MPI.Request(request).Wait(status)
    assert (status.source, status.tag) == (left, 5)
    assert status.Get_count(MPI.DOUBLE) == 3
    request = comm.irecv(source=left)
    comm.send({"from": comm.rank}, right)
    assert MPI.Request(request).wait() == {"from": left}
    handle = comm.irecv(source=left).handle
    gc.collect()
    comm.send("dropped", right)
    plain = MPI.Request.fromhandle(handle)
    assert wm.Request.waitall([plain]) == ["dropped"]
    assert not plain


def test_copies_are_cancelled_and_freed(comm):
    request = comm.Irecv(np.zeros(1), comm.rank, 99)
    MPI.Request(request).Cancel()
    status = MPI.Status()
    request.Wait(status)
    assert status.Is_cancelled()
    into = np.zeros(3)
    request = comm.Irecv(into, comm.rank, 98)
    plain = MPI.Request(request)
    plain.Free()
    assert not plain
    request.Wait()
    assert not request
    comm.Send(np.ones(3), comm.rank, 98)
    comm.Sendrecv(np.zeros(1), comm.rank, 97, np.zeros(1), comm.rank, 97)
    assert (into == 1).all()
    for request in comm.Irecv(into, comm.rank, 96), MPI.Request():
        if request:
            request.Cancel()
            request.Wait()
        with pytest.raises(MPI.Exception) as caught:
            request.Free()
        assert caught.value.Get_error_class() == MPI.ERR_REQUEST
        request.free()


@pytest.mark.parametrize("copied", PERSISTENT)
@pytest.mark.parametrize("kind", kinds.KINDS)
def test_copies_of_persistent_ones(comm, kind, copied):
    right, left = neighbours(comm)
    for size in (3, 100_000):
        out = kinds.make(kind, np.zeros(size))
        into = kinds.make(kind, np.full(size, -1.0))
        ours = [comm.Recv_init(into, left, 6), comm.Send_init(out, right, 6)]
        plain = [PERSISTENT[copied](request) for request in ours]
        for turn in range(4):
            status = MPI.Status()
            write(out, 10 * turn + comm.rank)
            started = plain if turn % 2 else ours
            waited = ours if turn in (0, 1) else plain
            if turn == 3:
                wm.Prequest.Startall(started)
            else:
                for request in started:
                    request.Start()
            waited[0].Wait(status)
            waited[1].Wait()
            assert (status.source, status.tag) == (left, 6)
            assert status.Get_count(MPI.DOUBLE) == size
            assert all_are(into, 10 * turn + left)
            assert all(plain) and all(ours)
            assert plain == ours
        for request in plain:
            request.Free()
        assert not any(plain) and not any(ours)
        for request in ours:
            with pytest.raises(MPI.Exception):
                request.Start()


def test_a_copy_of_one_under_way(comm):
    right, left = neighbours(comm)
    into = np.zeros(5)
    request = comm.Recv_init(into, left, 7)
    request.Start()
    plain = MPI.Prequest(request)
    comm.Send(np.full(5, 1.0 + comm.rank), right, 7)
    plain.Wait()
    assert (into == 1 + left).all()
    comm.Sendrecv(into[:0], right, 8, into[:0], left, 8)
    plain.Start()
    for each in plain, request:
        with pytest.raises(MPI.Exception):
            each.Start()  # nobody has sent anything
    del request
    gc.collect()
    comm.Sendrecv(into[:0], right, 8, into[:0], left, 8)
    comm.Send(np.full(5, 2.0 + comm.rank), right, 7)
    plain.Wait()
    assert (into == 2 + left).all()
    plain.Free()


def test_comparing_and_pickling(comm):
    request = comm.Recv_init(np.zeros(1), comm.rank, 8)
    other = comm.Recv_init(np.zeros(1), comm.rank, 8)
    assert request and request == request
    assert request != other and request != MPI.REQUEST_NULL
    assert request != MPI.REQUEST_NULL
    with pytest.raises(ValueError, match="pickle"):
        pickle.dumps(request)
    assert MPI.Prequest(request) == request
    with pytest.raises(ValueError, match="pickle"):
        pickle.dumps(request)
    for each in request, other:
        each.Free()
        assert each == MPI.REQUEST_NULL


@pytest.mark.parametrize("how", ["address", "values"])
@pytest.mark.parametrize("kind", kinds.KINDS)
def test_c_starts_and_waits(comm, c, kind, how):
    right, left = neighbours(comm)
    out = kinds.make(kind, np.zeros(5000))
    into = kinds.make(kind, np.full(5000, -1.0))
    ours = [comm.Recv_init(into, left, 9), comm.Send_init(out, right, 9)]
    values = np.array([request.handle for request in ours], np.uintp)
    if not HAS_POINTERS:
        values = values.astype(np.uint32)
    places = [MPI._addressof(request) for request in ours]
    for turn in range(6):
        write(out, 10 * turn + comm.rank)
        if kind != "numpy":
            wm.synchronize()  # as C must before it starts a message
        if how == "values":
            assert c.Startall(2, values.ctypes.data) == 0
        else:
            for place in places:
                assert c.Start(place) == 0
        if turn % 3 == 0:
            wm.Request.Waitall(ours)
        elif turn % 3 == 1:
            for request in ours:
                request.Wait()
        elif how == "values":
            assert c.Waitall(2, values.ctypes.data, IGNORE) == 0
        else:
            for place in places:
                assert c.Wait(place, IGNORE) == 0
        assert all_are(into, 10 * turn + left)
    for request in ours:
        request.Free()


@pytest.mark.parametrize("kind", kinds.KINDS)
@pytest.mark.parametrize("make", ["Allreduce_init", "Bcast_init"])
def test_c_starts_collectives(comm, c, kind, make):
    mine = kinds.make(kind, np.full(1000, 1.0 + comm.rank))
    total = kinds.make(kind, np.zeros(1000))
    args = (mine, total) if make == "Allreduce_init" else (mine, 0)
    try:
        request = getattr(comm, make)(*args)
    except NotImplementedError:
        pytest.skip("this MPI has no persistent collectives")
    place, plain = MPI._addressof(request), MPI.Prequest(request)
    for turn in range(3):
        write(total, 0)
        if kind != "numpy":
            wm.synchronize()
        if turn == 0:
            assert c.Start(place) == 0 and c.Wait(place, IGNORE) == 0
        elif turn == 1:
            plain.Start()
            plain.Wait()
        else:
            request.Start()
            plain.Wait()
        if make == "Allreduce_init":
            assert all_are(total, sum(range(1, comm.size + 1)))
        else:
            assert all_are(mine, 1)
    request.Free()


def test_freed_by_its_handle_when_it_goes(comm):
    """As programs do with persistent requests that they do not free."""
    right, left = neighbours(comm)

    def call_free(fromhandle, handle):
        fromhandle(handle).free()

    def freed_with_it(request):
        weakref.finalize(
            request, call_free, request.fromhandle, request.handle
        )
        return request

    for turn in range(10):
        into = np.zeros(100)
        requests = [
            freed_with_it(comm.Recv_init(into, left, 10)),
            freed_with_it(
                comm.Send_init(np.full(100, float(turn)), right, 10)
            ),
        ]
        wm.Prequest.Startall(requests)
        wm.Request.Waitall(requests)
        assert (into == turn).all()
        gone = [weakref.ref(request) for request in requests]
        if turn % 2:
            requests.append(requests)  # a cycle: the collector finds it
        del requests
        gc.collect()
        assert not any(each() for each in gone)


def test_freed_by_c_at_its_address(comm, c):
    """The object is null then, as one of mpi4py's: no Start finds it."""
    buffer = np.zeros(10)
    before = sys.getrefcount(buffer)
    request = comm.Send_init(buffer, comm.rank, 13)
    assert request.handle
    assert c.Request_free(MPI._addressof(request)) == 0
    assert not request and request == MPI.REQUEST_NULL
    for call in request.Start, request.Free:
        with pytest.raises(MPI.Exception) as caught:
            call()
        assert caught.value.Get_error_class() == MPI.ERR_REQUEST
    assert request.Wait()
    del request, call, caught
    gc.collect()
    assert sys.getrefcount(buffer) == before


def test_a_request_shown_while_others_end(comm, c):
    """To end what C has waited for may run Python code, which shows it too."""
    shown, request = [], None

    class Type(MPI.Datatype):
        def __del__(self):
            shown.append(request.handle)

    def receive():
        nonlocal request
        request = comm.Irecv([np.zeros(10), Type(MPI.DOUBLE)], comm.rank, 14)
        handle = request.handle
        comm.Send(np.zeros(10), comm.rank, 14)
        return handle

    for _ in range(1000):
        place = np.array([receive()], np.uintp)
        if shown:
            break
        request = None
        assert c.Wait(place.ctypes.data, IGNORE) == 0
    assert place[0] in shown
    plain = [MPI.COMM_SELF.Irecv(np.zeros(1), 0) for _ in range(3000)]
    assert not wm.Request.Testall(plain)  # each is looked for
    for each in plain:
        each.Cancel()
    wm.Request.Waitall([*plain, request])


def test_nothing_is_kept_of_what_was_freed(comm):
    buffer = np.zeros(10)
    before = sys.getrefcount(buffer)
    request = comm.Recv_init(buffer, comm.rank, 12)
    handle = request.handle
    del request
    gc.collect()
    assert sys.getrefcount(buffer) > before  # whoever has the handle
    plain = MPI.Prequest.fromhandle(handle)
    plain.Start()
    comm.Send(np.ones(10), comm.rank, 12)
    plain.Wait()
    assert (buffer == 1).all()
    plain.Free()
    gc.collect()
    assert sys.getrefcount(buffer) == before


INSTALLED = """
    import gc
    import numpy as np
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    other, into = 1 - comm.rank, np.zeros(10)
    Request, Prequest = MPI.Request, MPI.Prequest
    waits = {
        "Waitall": lambda q: Request.Waitall(q),
        "waitall": lambda q: Request.waitall(q),
        "Waitany": lambda q: [Request.Waitany(q) for _ in q],
        "waitany": lambda q: [Request.waitany(q) for _ in q],
        "Waitsome": lambda q: [Request.Waitsome(q) for _ in q],
        "Testall": lambda q: any(iter(lambda: Request.Testall(q), True)),
    }
    for wait in waits.values():
        into[:] = 0
        requests = [
            Request(comm.Irecv(into, other)),
            Request.fromhandle(comm.Isend(np.ones(10), other).handle),
        ]
        gc.collect()
        wait(requests)
        assert (into == 1).all() and not any(requests)
    request = comm.irecv(source=other)
    comm.send("object", other)
    assert Request.waitall([Request(request)]) == ["object"]
    requests = [
        Prequest(comm.Recv_init(into, other)),
        Prequest(comm.Send_init(np.full(10, 2.0), other)),
    ]
    gc.collect()
    for wait in waits.values():
        into[:] = 0
        Prequest.Startall(requests)
        wait(requests)
        assert (into == 2).all() and all(requests)
    for request in requests:
        request.Free()
    assert not any(requests)
"""


@pytest.mark.programs
def test_a_program_unchanged(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(INSTALLED))
    ranks.run("-m", "warpmpi", script)


FORKED = """
    import os
    import numpy as np
    from mpi4py import MPI
    import warpmpi as wm

    comm = wm.Comm(MPI.COMM_WORLD)
    request = comm.Irecv(np.zeros(1), 0, 5)
    persistent = comm.Recv_init(np.zeros(1), 0, 6)
    known = comm.Recv_init(np.zeros(1), 0, 7)
    assert known.handle
    child = os.fork()
    if child == 0:
        refused = 0
        for each in request, persistent, known:
            for call in each.Free, each.Cancel, each.Wait:
                try:
                    call()
                except RuntimeError as error:
                    refused += "forked child" in str(error)
        del request, persistent, known, each, call
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    request.Cancel()
    request.Wait()
    persistent.Free()
    known.Free()
"""


@pytest.mark.forks
@pytest.mark.programs
def test_a_forked_child_is_refused(tmp_path):
    ranks.run_text(tmp_path, FORKED, ranks=1)
