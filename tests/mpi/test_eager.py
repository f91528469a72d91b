# SPDX-License-Identifier: BSD-3-Clause
"""Blocking sends up to the eager limit end before they are received."""

import os
import re
import signal
import threading
import time

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import ranks
import warpmpi as wm

LIMIT = 65536


@pytest.mark.parametrize("size", [1, 5000, LIMIT])
@pytest.mark.parametrize("kind", kinds.KINDS)
@pytest.mark.parametrize("into_kind", kinds.KINDS)
def test_all_send_before_anybody_receives(comm, kind, into_kind, size):
    if kind in kinds.HOST_KINDS and size > 3000:
        pytest.skip("MPI's own limit is another")
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    out = kinds.make(kind, np.zeros(size, np.uint8))
    for turn in range(3):
        wm.asarray(out).fill_(10 * turn + comm.rank)
        comm.Send(out, right, turn)
    wm.asarray(out).fill_(99)
    for turn in range(3):
        into = kinds.make(into_kind, np.zeros(size, np.uint8))
        comm.Recv(into, left, turn)
        assert (kinds.values_of(into) == 10 * turn + left).all()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("form", ["Ssend", "Send"])
def test_those_that_must_wait_do(comm, form):
    """Ssend always, Send above the limit."""
    if comm.rank > 1 or not wm.is_cuda_available():
        return
    size = 100 if form == "Ssend" else LIMIT + 1
    array = kinds.make("device", np.ones(size, np.uint8))
    if comm.rank == 0:
        getattr(comm, form)(array, 1)
        ended = time.monotonic()  # one clock, for one machine's ranks
        assert ended > comm.recv(None, 1)
    else:
        time.sleep(0.3)
        began = time.monotonic()
        comm.Recv(array, 0)
        comm.send(began, 0)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("into_kind", kinds.KINDS)
def test_a_message_that_nobody_looks_after(comm, into_kind):
    """The sender sleeps, its thread had nothing to do before: it wakes up."""
    if comm.rank > 1 or not wm.is_cuda_available():
        return
    values = np.arange(1000, dtype=np.uint8)
    array = kinds.make("device", values)
    into = kinds.make(into_kind, np.zeros(1000, np.uint8))
    time.sleep(0.1)
    if comm.rank == 0:
        comm.Send(array, 1)
        time.sleep(2)
    else:
        time.sleep(0.3)
        begun = time.monotonic()
        comm.Recv(into, 0)
        assert time.monotonic() - begun < 1.5
        np.testing.assert_array_equal(kinds.values_of(into), values)


@pytest.mark.ranks(2)
def test_truncation_of_what_was_copied(comm):
    if comm.rank > 1 or not wm.is_cuda_available():
        return
    array = kinds.make("device", np.ones(1000, np.uint8))
    if comm.rank == 0:
        comm.Send(array, 1)
        comm.Barrier() if comm.size == 2 else None
    else:
        comm.Barrier() if comm.size == 2 else None
        with pytest.raises(MPI.Exception) as caught:
            comm.Recv(kinds.make("device", np.zeros(10, np.uint8)), 0)
        assert caught.value.Get_error_class() == MPI.ERR_TRUNCATE


def run(folder, limit, program):
    return ranks.run_text(
        folder,
        program,
        **({} if limit is None else {"WARPMPI_EAGER_LIMIT": limit}),
    )


needs_gpu = pytest.mark.skipif(
    not wm.is_cuda_available(), reason="needs a GPU"
)

WAITS = """
    import time
    from mpi4py import MPI
    import numpy as np, warpmpi as wm
    comm = wm.Comm(MPI.COMM_WORLD)
    array = wm.array(np.ones({size}, "u1"), device="cuda:0")
    comm.Barrier()
    if comm.rank == 0:
        comm.Send(array, 1)
        MPI.COMM_WORLD.send(None, 1)
    else:
        end = time.monotonic() + ({waits} and 0.5 or 30)
        came = False
        while not came and time.monotonic() < end:
            came = MPI.COMM_WORLD.iprobe(0)
        print(not came)
        comm.Recv(array, 0)
        MPI.COMM_WORLD.recv(None, 0)
"""


@pytest.mark.programs
@needs_gpu
@pytest.mark.parametrize(
    ("limit", "size", "waits"),
    [("0", 1, True), ("1000000", 900_000, False), (None, 1000, False)],
)
def test_the_limit_is_settable(tmp_path, limit, size, waits):
    printed = run(tmp_path, limit, WAITS.format(size=size, waits=waits))
    assert printed.strip() == str(waits)


@pytest.mark.programs
@needs_gpu
@pytest.mark.parametrize("limit", ["lots", " -1", "+5", "1k"])
def test_a_limit_that_is_none(tmp_path, limit):
    name = re.escape(f"WARPMPI_EAGER_LIMIT={limit}")
    with pytest.raises(AssertionError, match=name):
        run(tmp_path, limit, WAITS.format(size=1, waits=True))


@pytest.mark.programs
@needs_gpu
def test_nothing_is_lost_when_the_sender_ends_first(tmp_path):
    """MPI_Finalize of the sender waits as long as the receiver may come."""
    program = """
        import time
        from mpi4py import MPI
        import numpy as np, warpmpi as wm
        comm = wm.Comm(MPI.COMM_WORLD)
        if comm.rank == 0:
            comm.Send(wm.full(1000, 7.0, device="cuda:0"), 1)
        else:
            time.sleep(6.5)
            into = wm.zeros(1000, device="cuda:0")
            comm.Recv(into, 0)
            assert (into.numpy() == 7).all()
    """
    run(tmp_path, None, program)


ENDS_FIRST = {
    "Bsend": """
        comm.Attach_buffer(bytearray(5 * size))
        comm.Bsend(wm.full(size, 7.0, "f4", device="cuda:0"), 1)
    """,
    "Bsend of host memory": """
        comm.Attach_buffer(bytearray(5 * size))
        comm.Bsend(np.full(size, 7.0, "f4"), 1)
    """,
    "Isend": "comm.Isend(np.full(size, 7.0, 'f4'), 1)",
    "send": "comm.send([wm.full(size, 7.0, 'f4', device='cuda:0')], 1)",
}


@pytest.mark.programs
@needs_gpu
@pytest.mark.parametrize("how", ENDS_FIRST)
def test_nothing_is_lost_on_another_host(tmp_path, how):
    """Whether that receiver is in MPI_Finalize cannot be seen."""
    program = """
        import os, sys, textwrap, time
        from mpi4py import MPI
        import numpy as np, warpmpi as wm
        os.environ["WARPMPI_HOST"] = f"host {MPI.COMM_WORLD.rank}"
        comm = wm.Comm(MPI.COMM_WORLD)
        size, how = 6 << 20, sys.argv[1]
        if comm.rank == 0:
            exec(textwrap.dedent(sys.argv[2]))
        else:
            time.sleep(7)
            into = wm.zeros(size, "f4", device="cuda:0")
            if how == "send":
                into = comm.recv(None, 0)[0]
            else:
                comm.Recv(into, 0)
            assert (into.numpy() == 7).all()
    """
    ranks.run_text(tmp_path, program, how, ENDS_FIRST[how], timeout=40)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("count", [100, 600])
def test_short_host_messages_to_a_rank_that_is_stopped(comm, count):
    """The first return at once; others when MPI has room for them."""
    if comm.rank > 1 or MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        return
    if comm.rank == 1:
        comm.send(os.getpid(), 0)
        comm.Recv(np.zeros(1), 0, 1)
        for number in range(count):
            into = np.zeros(700, np.int32)
            comm.Recv(into[: 100 + number], 0, 2)
            assert (into[: 100 + number] == number).all()
        return
    peer = comm.recv(None, 1)
    time.sleep(0.1)  # it has sent that, and MPI holds no lock of its own
    requests, out = [], np.zeros(700, np.int32)
    go_on = threading.Timer(5, os.kill, (peer, signal.SIGCONT))
    os.kill(peer, signal.SIGSTOP)
    go_on.start()
    comm.Isend(np.zeros(1), 1, 1).Wait()
    for number in range(count):
        out[:] = number
        if number < 50:
            comm.Send(out[: 100 + number], 1, 2)
        else:
            message = out[: 100 + number].copy()
            requests.append(comm.Isend(message, 1, 2))
    in_time = go_on.is_alive()
    go_on.cancel()
    os.kill(peer, signal.SIGCONT)
    MPI.Request.Waitall(requests)
    assert in_time
