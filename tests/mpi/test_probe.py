# SPDX-License-Identifier: BSD-3-Clause
"""Probe and Iprobe: what could be received, before it is."""

import time

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import ranks
import warpmpi as wm


@pytest.mark.ranks(2)
@pytest.mark.parametrize("kind", kinds.KINDS)
@pytest.mark.parametrize("size", [0, 5, 5000, 300_000])
def test_a_receive_of_the_size_that_was_probed(comm, kind, size):
    if comm.rank == 0:
        values = np.arange(size, dtype=np.uint8)
        comm.Send(kinds.make(kind, values), 1, 3)
    elif comm.rank == 1:
        status = MPI.Status()
        assert comm.Probe(MPI.ANY_SOURCE, MPI.ANY_TAG, status) is True
        assert (status.source, status.tag) == (0, 3)
        assert status.Get_count(MPI.BYTE) == size
        buffer = kinds.make(kind, np.zeros(max(size, 1), np.uint8))
        comm.Recv([buffer, size, MPI.BYTE], status.source, status.tag)
        np.testing.assert_array_equal(
            kinds.values_of(buffer)[:size], np.arange(size, dtype=np.uint8)
        )


@pytest.mark.ranks(2)
def test_probed_messages_do_not_overtake(comm):
    """Those with one tag come in order, whether they were probed or not."""
    if comm.rank == 0:
        for value in range(6):
            comm.Send(np.full(2, value), 1, value % 2)
        comm.Send(np.zeros(1), 1, 9)
    elif comm.rank == 1:
        comm.Probe(0, 9)
        for value in (1, 0, 3, 2, 5, 4):
            if value % 3:
                assert comm.Iprobe(0, value % 2)
            buffer = np.zeros(2, int)
            source = (0, MPI.ANY_SOURCE)[value % 2]
            comm.Recv(buffer, source, value % 2)
            assert (buffer == value).all()
        comm.Recv(np.zeros(1), 0, MPI.ANY_TAG)


@pytest.mark.ranks(2)
def test_iprobe_until_something_comes(comm, world):
    if comm.rank == 1:
        status = MPI.Status()
        assert comm.Iprobe(status=status) is False
        world.Barrier()
        while not comm.Iprobe(0, 4, status):
            time.sleep(0)
        assert status.Get_count(MPI.DOUBLE) == 10
        assert comm.Iprobe(0, 4)
        assert not comm.Iprobe(0, 5)
        comm.Recv(np.zeros(10), 0, 4)
        assert not comm.Iprobe(0, 4)
    else:
        world.Barrier()
        if comm.rank == 0:
            comm.Send(np.zeros(10), 1, 4)


@pytest.mark.ranks(2)
def test_a_probed_message_may_be_too_long(comm):
    if comm.rank == 0:
        comm.Send(np.zeros(10), 1, 6)
    elif comm.rank == 1:
        comm.Probe(0, 6)
        with pytest.raises(MPI.Exception) as raised:
            comm.Recv(np.zeros(5), 0, 6)
        assert raised.value.Get_error_class() == MPI.ERR_TRUNCATE


def test_probing_the_null_process(comm):
    status = MPI.Status()
    assert comm.Probe(MPI.PROC_NULL, 3, status)
    assert (status.source, status.tag) == (MPI.PROC_NULL, MPI.ANY_TAG)
    assert status.Get_count(MPI.BYTE) == 0
    assert comm.Iprobe(MPI.PROC_NULL)


def test_probes_of_what_cannot_come(comm):
    for call in (comm.Probe, comm.Iprobe):
        with pytest.raises(MPI.Exception):
            call(comm.size)
        with pytest.raises(MPI.Exception):
            call(0, -5)
        with pytest.raises(TypeError):
            call("0")


@pytest.mark.ranks(2)
def test_random_order(comm):
    """Messages of all sizes, probed or not, by source and tag or wildcards."""
    generator = np.random.default_rng(7)
    count = 60
    sizes = generator.choice([1, 100, 5000, 70_000], count)
    tags = generator.integers(0, 3, count)
    kind = "pool" if wm.is_cuda_available() else "host"
    if comm.rank == 0:
        requests = []
        for k in range(count):
            array = kinds.make(kind, np.full(sizes[k], k, np.uint8))
            requests.append(comm.Isend(array, 1, int(tags[k])))
        wm.Request.Waitall(requests)
    elif comm.rank == 1:
        left = list(range(count))
        while left:
            tag = MPI.ANY_TAG
            if generator.random() < 0.5:
                tag = int(tags[generator.choice(left)])
            status = MPI.Status()
            size = 70_000
            how = generator.random()
            if how < 0.4:
                comm.Probe(0, tag, status)
                size = status.Get_count(MPI.BYTE)
            elif how < 0.7:  # of one that need not be the next
                comm.Probe(0, int(tags[generator.choice(left)]))
            elif how < 0.8:  # dropped: given back
                dropped = [
                    comm.Mprobe(0),
                    comm.Improbe(0, int(tags[left[-1]])),
                ]
                del dropped
            buffer = kinds.make(kind, np.zeros(size, np.uint8))
            comm.Recv(buffer, MPI.ANY_SOURCE, tag, status)
            expected = left[0]
            if tag != MPI.ANY_TAG:
                expected = next(k for k in left if tags[k] == tag)
            left.remove(expected)
            size = status.Get_count(MPI.BYTE)
            assert size == sizes[expected]
            assert (kinds.values_of(buffer)[:size] == expected).all()


@pytest.mark.parametrize("kind", kinds.KINDS)
@pytest.mark.parametrize("size", [0, 5, 5000, 300_000])
@pytest.mark.parametrize("matched", [False, True])
def test_a_synchronous_send_waits_for_more_than_a_probe(
    comm, kind, size, matched
):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    out = kinds.make(kind, np.full(size, 3, np.uint8))
    into = kinds.make(kind, np.zeros(size, np.uint8))
    sent = comm.Issend(out, right, 6)
    message = comm.Mprobe(left, 6) if matched else comm.Probe(left, 6)
    comm.Barrier()
    until = time.monotonic() + 0.02
    while time.monotonic() < until:
        assert not sent.Test()
    comm.Barrier()
    if matched:
        message.Recv(into)
    else:
        comm.Recv(into, left, 6)
    sent.Wait()
    assert (kinds.values_of(into) == 3).all()
    failing = comm.Issend(np.ones(9), right, 7)
    with pytest.raises(MPI.Exception):
        comm.Recv(np.zeros(1), left, 7)
    failing.Wait()


PROBES = {
    "Probe": lambda comm, tag: comm.Probe(0, tag),
    "Iprobe": lambda comm, tag: comm.Iprobe(0, tag),
    "Mprobe": lambda comm, tag: comm.Mprobe(0, tag),
}


def received(comm, how, kind):
    """Its value, of the next message with any tag."""
    status = MPI.Status()
    into = kinds.make(kind, np.zeros(3, np.uint8))
    if how == "Mprobe":
        comm.Mprobe(0, MPI.ANY_TAG).Recv(into, status)
    elif how == "Irecv":
        comm.Irecv(into, MPI.ANY_SOURCE, MPI.ANY_TAG).Wait(status)
    else:
        comm.Recv(into, 0, MPI.ANY_TAG, status)
    assert (kinds.values_of(into) == status.tag).all()
    return status.tag


@pytest.mark.ranks(2)
@pytest.mark.parametrize("kind", kinds.KINDS)
@pytest.mark.parametrize("how", ["Recv", "Irecv", "Mprobe"])
@pytest.mark.parametrize("probe", PROBES)
def test_a_probe_takes_no_message_out_of_its_turn(comm, probe, how, kind):
    tags = [3, 5, 4, 5, 3]
    if comm.rank == 0:
        for tag in tags:
            comm.Send(kinds.make(kind, np.full(3, tag, np.uint8)), 1, tag)
        comm.send("all", 1, 9)
    elif comm.rank == 1:
        assert comm.recv(None, 0, 9) == "all"
        kept = [PROBES[probe](comm, tag) for tag in (5, 4)]
        del kept  # dropped messages, of Mprobe
        kept = [PROBES[probe](comm, 5) for _ in range(2)]
        while kept:
            kept.pop()  # in the other order
        assert [received(comm, how, kind) for _ in tags] == tags


@pytest.mark.ranks(2)
def test_objects_come_in_their_turn_after_a_probe(comm):
    if comm.rank == 0:
        for tag in (3, 5, 4):
            comm.send(tag, 1, tag)
    elif comm.rank == 1:
        comm.Probe(0, 4)
        while not comm.Iprobe(0, 5):
            pass
        assert [comm.recv(source=0) for _ in range(3)] == [3, 5, 4]


ASLEEP = """
    import os, signal, time
    import numpy as np
    from mpi4py import MPI
    import warpmpi as wm

    comm = wm.Comm(MPI.COMM_WORLD)
    if comm.rank == 0:
        comm.send(os.getpid(), 1, 1)
        requests = [comm.Isend(np.full(4096, n, np.uint8), 1, n)
                    for n in (3, 5)]
        comm.recv(None, 1, 7)
        requests += [comm.Isend(np.full(4096, 9, np.uint8), 1, 9)]
        wm.Request.Waitall(requests)
    else:
        peer = comm.recv(None, 0, 1)
        time.sleep(0.5)
        os.kill(peer, signal.SIGSTOP)
        time.sleep(0.1)
        began = time.monotonic()
        for _ in range(3):
            comm.Iprobe(0, 5)
        into, other = np.zeros(4096, np.uint8), np.zeros(4096, np.uint8)
        requests = [comm.Irecv(other, 0, 5)]
        dropped = comm.Irecv(into, 0, 3)
        assert not comm.Iprobe(0, 9)
        print("looked", time.monotonic() - began < 2, flush=True)
        os.kill(peer, signal.SIGCONT)
        status = MPI.Status()
        dropped.Cancel()
        dropped.Wait(status)
        comm.send(None, 0, 7)
        wm.Request.Waitall(requests)
        assert (other == 5).all()
        values = [3, 9] if status.Is_cancelled() else [9]
        for value in values:
            comm.Recv(into, 0)
            assert (into == value).all(), into
        print("came", flush=True)
"""


@pytest.mark.programs
def test_probes_do_not_wait_for_a_sender_that_is_stopped(tmp_path):
    """MPI needs the sender for messages above its eager limit."""
    if MPI.Get_library_version().startswith("Open MPI v5"):
        flags = ["btl_sm_eager_limit 1024", "smsc ^cma,xpmem,knem"]
    elif MPI.Get_library_version().startswith("Open MPI v4"):
        flags = [
            "btl_vader_eager_limit 1024",
            "btl_vader_single_copy_mechanism none",
        ]
    else:
        pytest.skip("needs Open MPI's settings")
    flags = [word for flag in flags for word in ("--mca", *flag.split())]
    printed = ranks.run_text(tmp_path, ASLEEP, ranks=2, flags=flags)
    assert printed == "looked True\ncame\n"
