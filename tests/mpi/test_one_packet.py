# SPDX-License-Identifier: BSD-3-Clause
"""A short Send of GPU memory between hosts: header and payload in one packet.

Where the copy out of the GPU is late, the header goes first.
"""

import json
import os

import pytest

import compiled
import kinds
import ranks
import warpmpi as wm

pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU"),
]

BEGIN = """
    import ctypes, json, os, sys, threading, time
    from mpi4py import MPI
    import numpy as np
    import kinds, warpmpi as wm
    plain = MPI.COMM_WORLD
    rank, other = plain.rank, 1 - plain.rank
    os.environ["WARPMPI_HOST"] = f"host {rank}"
    comm = wm.Comm(plain)

    def filled(size, value=0, kind="device"):
        return kinds.make(kind, np.full(size, value, np.uint8))

    def late(size, value):
        # An array that is filled by work on its stream a moment later.
        array = filled(size, kind="pool")
        gate = kinds.Gate()
        gate.stop(array.stream)
        with array.context():
            assert kinds.driver().cuMemsetD8Async(
                ctypes.c_uint64(array.pointer),
                ctypes.c_ubyte(value),
                ctypes.c_size_t(size),
                ctypes.c_void_p(array.stream.cuda_stream),
            ) == 0
        threading.Timer(0.05, gate.open).start()
        return array
"""

COUNTS = """
    driver = kinds.driver()
    driver.simcuda_trace.restype = ctypes.c_char_p
    counted, copied_first = {}, []

    wanted = json.loads(sys.argv[1])

    def count(name, call, *buffers):
        # The bytes of each MPI_Isend of rank 0. The call is repeated: on a
        # busy machine a copy of the simulated GPU may be late.
        for turn in range(20):
            plain.Barrier()
            driver.simcuda_trace(1)
            call(*buffers)
            lines = driver.simcuda_trace(0).decode().splitlines()
            counted[name] = [
                int(after.split()[0])
                for line, after in zip(lines, lines[1:])
                if line == "MPI_Isend"
            ]
            if plain.bcast(turn > 1 and counted[name] == wanted[name]):
                break
        begun = "cuMemcpyAsync", "MPI_Isend"
        if next(filter(begun.__contains__, lines), None) == begun[0]:
            copied_first.append(name)

    def one_way(name, out, into, send=comm.Send):
        count(name, *((send, out, 1) if rank == 0 else (comm.Recv, into, 0)))

    for size in 1, 1000, 4096, 4097, 65536, 65537:
        one_way(f"Send of {size}", filled(size), filled(size))
    short = filled(1000), filled(1000)
    one_way("to host memory", short[0], np.zeros(1000, np.uint8))
    one_way("from host memory", np.zeros(1000, np.uint8), short[1])
    one_way("Isend", *short, lambda *to: comm.Isend(*to).Wait())
    one_way("Ssend", *short, comm.Ssend)
    one_way("gaps", filled(2000)[::2], short[1])
    one_way("late", *short, lambda _, to: comm.Send(late(1000, 1), to))
    count("Sendrecv", comm.Sendrecv, short[0], other, 3, short[1], other, 3)

    def exchange():
        comm.Send(short[0], other)
        comm.Recv(short[1], other)

    count("exchange", exchange)
    if rank == 0:
        print(json.dumps([counted, copied_first]))
"""

RIGHT = """
    def take(size, value, source=0, tag=MPI.ANY_TAG, room=None):
        into, status = filled(room or size), MPI.Status()
        comm.Recv(into, source, tag, status)
        assert status.Get_count(MPI.BYTE) == size, status.Get_count(MPI.BYTE)
        assert (kinds.values_of(into)[:size] == value).all()
        return status.source, status.tag

    def truncated(call):
        try:
            call()
        except MPI.Exception as error:
            assert error.Get_error_class() == MPI.ERR_TRUNCATE
        else:
            raise AssertionError("no error")

    # Long ones, late ones and short ones, in the order of their sends.
    if rank == 0:
        begun = comm.Isend(filled(1 << 20, 1), 1, 5)
        comm.Send(filled(16, 2), 1, 5)
        comm.Send(late(1000, 3), 1, 5)
        comm.Send(filled(1000, 4), 1, 5)
        comm.Send(np.full(1000, 5, np.uint8), 1, 5)
        begun.Wait()
        # The call ends by its receive, before its send has a payload.
        small = filled(10)
        truncated(
            lambda: comm.Sendrecv(late(1000, 6), 1, 5, small, 1, 5)
        )
        comm.Send(filled(1000, 7), 1, 5)
    else:
        comm.Send(filled(1000), 0, 5)
        sizes = [1 << 20, 16, *[1000] * 5]
        for value, size in enumerate(sizes, 1):
            assert take(size, value, room=1 << 20) == (0, 5)

    # Both send first.
    for size in 1, 4096:
        comm.Send(filled(size, rank), other, 6)
        assert take(size, other, MPI.ANY_SOURCE) == (other, 6)

    plain.Barrier()
    if rank == 0:
        for value in range(4):
            comm.Send(filled(1000, value), 1, value)
        plain.Barrier()
        comm.Send(filled(1000, 8), 1, 8)
        comm.Ssend(filled(1000, 9), 1, 9)
    else:
        status = MPI.Status()
        comm.Probe(MPI.ANY_SOURCE, 2, status)
        assert status.Get_count(MPI.BYTE) == 1000
        message = comm.Mprobe(MPI.ANY_SOURCE, 1, status)
        assert (status.source, status.Get_count(MPI.BYTE)) == (0, 1000)
        assert take(1000, 0, MPI.ANY_SOURCE) == (0, 0)
        truncated(lambda: comm.Recv(filled(999), 0, 2))
        assert take(1000, 3) == (0, 3)
        into = np.zeros(1000, np.uint8)
        message.Recv(into)
        assert (into == 1).all()
        request = comm.Irecv(filled(1000), MPI.ANY_SOURCE)
        request.Cancel()
        request.Wait()
        plain.Barrier()
        assert take(1000, 8, MPI.ANY_SOURCE) == (0, 8)
        assert take(1000, 9) == (0, 9)
"""


def run(folder, program, *words, **settings):
    return ranks.run_text(folder, BEGIN + program, *words, **settings)


def packets(folder, wanted, **settings):
    text = (ranks.ROOT / "tests" / "golden" / "mpi_calls.c").read_text()
    traced = compiled.library(folder, text)
    words = filter(None, [os.environ.get("LD_PRELOAD"), str(traced)])
    preload = " ".join(words)
    settings = {"SIMCUDA_MODE": "eager", "LD_PRELOAD": preload, **settings}
    return json.loads(run(folder, COUNTS, json.dumps(wanted), **settings))


HEADER = 32
TWO = [HEADER, 1000]
ONE = [HEADER + 1000]
EXPECTED = {
    "Send of 1": [HEADER + 1],
    "Send of 1000": ONE,
    "Send of 4096": [HEADER + 4096],
    "Send of 4097": [HEADER, 4097],
    "Send of 65536": [HEADER, 65536],
    "Send of 65537": [HEADER, 65537],
    "to host memory": ONE,
    "from host memory": ONE,
    "Isend": TWO,
    "Ssend": TWO,
    "gaps": TWO,
    "late": TWO,
    "Sendrecv": ONE,
    "exchange": ONE,
}


@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_messages_are_matched_in_order(tmp_path, mode):
    run(tmp_path, RIGHT, SIMCUDA_MODE=mode)


@pytest.mark.skipif(kinds.is_real(), reason="the simulated driver's trace")
def test_packets_are_counted(tmp_path):
    counted, copied_first = packets(tmp_path, EXPECTED)
    assert counted == EXPECTED
    waits = {"Send of 65537", "from host memory", "Isend", "Ssend", "gaps"}
    assert copied_first == [name for name in EXPECTED if name not in waits]


@pytest.mark.skipif(kinds.is_real(), reason="the simulated driver's trace")
def test_a_send_that_waits_for_its_receiver_tells_it_at_once(tmp_path):
    wanted = {"Send of 4096": [HEADER, 4096], "Send of 1000": TWO}
    wanted |= {"to host memory": TWO, "Sendrecv": TWO, "exchange": TWO}
    wanted = EXPECTED | wanted
    limit = {"WARPMPI_EAGER_LIMIT": "999"}
    counted, copied_first = packets(tmp_path, wanted, **limit)
    assert counted == wanted
    assert copied_first == ["Send of 1", "late"]  # which is filled by a copy


REFUSING = """
    #include <mpi.h>
    int refuses;
    int
    MPI_Isend(const void *buffer, int count, MPI_Datatype type, int rank,
              int tag, MPI_Comm comm, MPI_Request *request)
    {
        return refuses ? MPI_ERR_OTHER
                       : PMPI_Isend(buffer, count, type, rank, tag, comm,
                                    request);
    }
"""

REFUSED = """
    refuses = ctypes.c_int.in_dll(ctypes.CDLL(sys.argv[1]), "refuses")

    def held_by_refused(array):
        # The blocks of page-locked memory that such a send leaves behind.
        before = wm._core._memory_stats()["pinned_blocks"]
        refuses.value = 1
        try:
            comm.Send(array, other)
        except MPI.Exception as error:
            assert error.Get_error_class() == MPI.ERR_OTHER
        else:
            raise AssertionError("no error")
        refuses.value = 0
        return wm._core._memory_stats()["pinned_blocks"] - before

    for size in 4096, 65536:
        # On a busy machine the copy of a simulated GPU may be late.
        array, until = filled(size), time.monotonic() + 10
        while held_by_refused(array) > 0:
            assert time.monotonic() < until
            time.sleep(0.01)
        late = filled(size, kind="pool")
        with kinds.Gate() as gate:
            gate.stop(late.stream)
            assert held_by_refused(late) == 1  # the copy will write it
        late.stream.synchronize()
    comm.Sendrecv(filled(4096, rank), other, 3, array, other, 3)
    assert (kinds.values_of(array)[:4096] == other).all()
"""


def test_a_header_that_mpi_refuses(tmp_path):
    refusing = compiled.library(tmp_path, REFUSING)
    words = filter(None, [os.environ.get("LD_PRELOAD"), str(refusing)])
    run(tmp_path, REFUSED, refusing, LD_PRELOAD=" ".join(words))
