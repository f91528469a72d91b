# SPDX-License-Identifier: BSD-3-Clause
"""Headers and shared words that are damaged: an error, nothing is reached."""

import json
import os
import struct

import pytest

import compiled
import ranks
import warpmpi as wm

pytestmark = pytest.mark.programs

# Stands before MPI, and damages the next header that a rank sends.
DAMAGE = r"""
    #include <mpi.h>
    #include <string.h>

    static int at = -1, bytes;
    static unsigned long long with;

    void
    damage(int offset, int length, unsigned long long value)
    {
        at = offset;
        bytes = length;
        with = value;
    }

    int
    MPI_Isend(const void *buffer, int count, MPI_Datatype type, int rank,
              int tag, MPI_Comm comm, MPI_Request *request)
    {
        static const unsigned char magic[] = {0x70, 0x77};
        if (at >= 0 && count >= 32 && memcmp(buffer, magic, 2) == 0) {
            memcpy((char *)buffer + at, &with, (size_t)bytes);
            at = -1;
        }
        return PMPI_Isend(buffer, count, type, rank, tag, comm, request);
    }
"""

PROGRAM = """
    import ctypes, os, sys
    import numpy as np
    from mpi4py import MPI
    import warpmpi as wm

    library, kind, size, heard, *damage = sys.argv[1:]
    comm, size = wm.Comm(MPI.COMM_WORLD), int(size)
    other = 1 - comm.rank
    device = wm.get_device() if kind == "device" else "cpu"
    array = wm.zeros(size, np.uint8, device=device)
    for _ in range(2):
        comm.Sendrecv(array, other, recvbuf=array, source=other)
    comm.Barrier()
    if comm.rank == 0:
        ctypes.CDLL(library).damage(
            *map(int, damage[:2]), ctypes.c_ulonglong(int(damage[2])))
        sending = comm.Isend(array, 1, 3)
        if heard == "True":
            try:
                sending.Wait()
            except wm.CudaError as error:
                assert "rank 1, failed: the header of" in str(error), error
                print("told", flush=True)
    else:
        into = wm.zeros(10 * size, np.uint8, device=device)
        before = wm.stats()["host_messages"]
        try:
            comm.Recv(into, 0, 3)
            assert heard == "None"
            assert wm.stats()["host_messages"] == before + 1
        except RuntimeError as error:
            assert "from rank 0 is damaged" in str(error), error
            print("told", flush=True)
    comm.Barrier()
    for _ in range(2):
        comm.Sendrecv(array, other, recvbuf=array, source=other)
    print("again", flush=True)
    comm.Barrier()
    os._exit(0)  # a payload that nobody takes has not ended
"""

# What, kind and size, the member's offset and format, its value, and whether
# the sender can hear of it; None: it goes through the host instead.
CASES = (
    ("kind", "host", 8, 2, "B", 9, False),
    ("bytes behind a header", "host", 3000, 8, "Q", 20_000, False),
    ("a synchronous send's tag", "host", 8, 20, "I", 2**32 - 1, False),
    ("no chunk", "host", 100_000, 16, "I", 0, False),
    ("a large chunk", "host", 100_000, 16, "I", 2**32 - 1, False),
    ("any tag", "host", 100_000, 4, "I", 2**32 - 1, False),
    ("slot", "device", 100_000, 32, "i", 2048, False),
    ("negative slot", "device", 100_000, 32, "i", -(2**31), False),
    ("no fragment", "device", 100_000, 56, "I", 0, True),
    ("fragments", "device", 100_000, 56, "I", 1000, True),
    ("no ring", "device", 100_000, 60, "I", 0, True),
    ("bytes a fragment", "device", 100_000, 48, "Q", 1, True),
    ("bytes of an eager LL buffer", "device", 100_000, 68, "I", 1, True),
    ("before its memory", "device", 100_000, 72, "Q", 0, None),
    ("behind its memory", "device", 100_000, 88, "Q", 99_999, None),
)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return compiled.library(tmp_path_factory.mktemp("damage"), DAMAGE)


@pytest.mark.parametrize(
    "kind, size, offset, form, value, heard",
    [case[1:] for case in CASES],
    ids=[case[0].replace(" ", "_") for case in CASES],
)
def test_a_damaged_header_is_refused(
    tmp_path, library, kind, size, offset, form, value, heard
):
    if kind == "device" and not wm.is_cuda_available():
        pytest.skip("needs a GPU")
    packed = struct.pack("=" + form, value)
    number = int.from_bytes(packed, "little")
    preloaded = os.environ.get("LD_PRELOAD", "")
    words = [library, kind, size, heard, offset, len(packed), number]
    printed = ranks.run_text(
        tmp_path,
        PROGRAM,
        *words,
        wrapper=("env", f"LD_PRELOAD={preloaded} {library}"),
        died=True,
    )
    told = ["told"] * {None: 0, False: 1, True: 2}[heard]
    assert sorted(printed.split()) == ["again"] * 2 + told, printed


# Nobody takes a step but in its own calls: rank 0 has staged when its slot is
# found, and is damaged before rank 1 looks.
STAGED = """
    import mmap, os, sys, time
    import mpi4py
    mpi4py.rc.thread_level = "single"
    import numpy as np
    from mpi4py import MPI
    import kinds
    import warpmpi as wm

    what, *damage = sys.argv[1:]
    comm = wm.Comm(MPI.COMM_WORLD)
    array = wm.zeros(1_000_000, np.uint8)
    PIECE = 131072  # bytes, of an eighth of that

    words = np.frombuffer(mmap.mmap(kinds.segment(), 0), np.uint32)

    def slot():
        '''Where the ring is valid, not failed, the first, of such pieces.'''
        row = words[: 1 << 19].reshape(-1, 16)
        found = (row[:, 2] == 1) & (row[:, 3] == 0) & (row[:, 4] == 0)
        (found,) = np.nonzero(found & (row[:, 6] == PIECE))
        return row[found[0]] if len(found) else None

    if comm.rank == 0:
        sending = comm.Isend(array, 1, 3)
        MPI.COMM_WORLD.Sendrecv(np.zeros(1), 1, 7, np.zeros(1), 1, 7)
        while slot() is None:
            sending.Test()
        row = slot()
        for place, value in zip(damage[::2], damage[1::2]):
            row[int(place)] = int(value)
    else:
        request = comm.Irecv(array, 0, 3)
        MPI.COMM_WORLD.Recv(np.zeros(1), 0, 7)
        for _ in range(100):  # until it has answered
            request.Test()
            time.sleep(0.002)
        MPI.COMM_WORLD.Send(np.zeros(1), 0, 7)
    MPI.COMM_WORLD.Barrier()
    try:
        sending.Wait() if comm.rank == 0 else request.Wait()
    except (wm.CudaError, RuntimeError) as error:
        assert f"{what} rank 0 is damaged" in str(error), error
        print("told", flush=True)
    comm.Sendrecv(array, 1 - comm.rank, recvbuf=array, source=1 - comm.rank)
"""


@pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    "damage",
    [(4, 4), (4, 2**31), (6, 0), (6, 2**31)],
    ids=["ring", "large_ring", "no_fragment", "large_fragment"],
)
def test_a_damaged_ring_is_refused(tmp_path, damage):
    printed = ranks.run_text(
        tmp_path,
        STAGED,
        "the shared segment of",
        *damage,
        WARPMPI_TRANSPORT="host",
    )
    assert printed.split() == ["told"] * 2, printed


@pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    "damage", [(6, 0), (5, 2**32 - 1)], ids=["no_chunk", "any_tag"]
)
def test_damaged_chunks_instead_of_a_ring_are_refused(tmp_path, damage):
    """The slot says that the payload goes by MPI."""
    printed = ranks.run_text(
        tmp_path,
        STAGED,
        "the header of a message from",
        *damage,
        *(4, 2**32 - 1),
        WARPMPI_TRANSPORT="host",
    )
    assert printed.split() == ["told"] * 2, printed


# Writes into what this rank publishes before a collective, once that is
# there, and the others are not there yet.
SAID = r"""
    #include <sched.h>

    #include "comm/coll/direct/preflight.h"
    #include "comm/coll/direct/direct.h"
    #include "comm/node/node.h"

    unsigned
    epochs(const char *memory)
    {
        const wm_segment_t *segment = (const wm_segment_t *)memory;
        return atomic_load(&segment->arrived[0]) / WM_BARRIER_STEPS;
    }

    void
    damage(char *memory, unsigned before, int member, long long value)
    {
        char *areas = memory + WM_EXCHANGE_AREAS_AT;
        wm_exchange_area_t *area = (wm_exchange_area_t *)areas;
        while (epochs(memory) == before)
            sched_yield();
        char *last = area->published[0][(before + 1) % 2];
        wm_preflight_values_t *maxima = (wm_preflight_values_t *)last;
        size_t behind = (sizeof *maxima + 15) / 16 * 16;
        wm_published_t *published = (wm_published_t *)(last + behind);
        switch (member) {
        case 1: maxima->values[1] = value; break; // the call
        case 2: published->sends.address = (uint64_t)value; break;
        case 3: published->sends.size = (uint64_t)value; break;
        case 4: published->gaps = (uint8_t)value; break;
        case 5: published->spans[1].at = (size_t)value; break;
        case 6: published->all.at = value; break;
        case 7: published->all.shape[0] = value; break;
        case 8: published->all.strides[0] = value; break;
        case 9: published->sends.base = (uint64_t)value; break;
        }
    }
"""

SPEAKER = """
    import ctypes, json, mmap, os, sys, threading
    import numpy as np
    from mpi4py import MPI
    import kinds
    import warpmpi as wm

    library, cases = ctypes.CDLL(sys.argv[1]), json.loads(sys.argv[2])
    comm, world = wm.Comm(MPI.COMM_WORLD), MPI.COMM_WORLD
    n = 12
    plain = wm.array(np.arange(2.0 * n) + 100 * comm.rank)
    wide = wm.array(np.arange(4.0 * n).reshape(n, 4))
    into = wm.zeros(2 * n)
    each = np.array([n, n]), np.array([0, n])
    calls = {
        "barrier": lambda: comm.Barrier(),
        "allgather": lambda: comm.Allgather(plain[:n], into),
        "allreduce": lambda: comm.Allreduce(plain, into),
        "alltoallv": lambda: comm.Alltoallv((plain, each), (into, each)),
        "strided": lambda: comm.Allgather(wide[:, 1], into),
    }

    held = mmap.mmap(kinds.segment(), 0)
    memory = ctypes.byref(ctypes.c_char.from_buffer(held))

    def speak(before, member, value):
        library.damage(memory, before, member, ctypes.c_longlong(value))
        world.Send(np.zeros(1), 1, 7)

    def attempt(call):
        try:
            calls[call]()
        except (RuntimeError, TypeError) as error:
            return str(error)
        return "done"

    for call, member, value in cases:
        assert attempt(call) == "done"
        comm.Barrier()
        world.Barrier()
        if comm.rank == 0:
            before = library.epochs(memory)
            speaker = threading.Thread(
                target=speak, args=(before, member, value))
            speaker.start()
        else:
            world.Recv(np.zeros(1), 0, 7)
        told = world.gather(attempt(call))
        if comm.rank == 0:
            speaker.join()
            print(json.dumps(told), flush=True)
"""


@pytest.fixture(scope="module")
def speaker(tmp_path_factory):
    folder = tmp_path_factory.mktemp("said")
    words = "-std=c11", '-DWM_VERSION="0"', *compiled.includes()
    return compiled.library(folder, SAID, *words)


SEGMENT = "the shared segment of rank 0 is damaged"
TOLD = "rank 1 failed in this collective: " + SEGMENT
OTHERS = (
    "the ranks are in different collectives, Barrier and another call among "
    "them, and this rank is in Barrier: all must make the same calls in the "
    "same order"
)

# The call, the member of SAID and its value, and what both ranks are told.
SPOKEN = (
    ("barrier", 1, 100, [OTHERS, OTHERS]),
    ("allgather", 2, 64, [TOLD, SEGMENT]),
    ("allgather", 3, 8, [TOLD, SEGMENT]),
    ("allreduce", 9, -64, [TOLD, SEGMENT]),
    ("allgather", 4, 3, [TOLD, SEGMENT]),
    ("alltoallv", 5, 2**40, [TOLD, SEGMENT]),
    ("alltoallv", 5, -8, [TOLD, SEGMENT]),
    ("strided", 6, -(2**40), [TOLD, SEGMENT]),
    ("strided", 6, 2**40, [TOLD, SEGMENT]),
    ("strided", 7, 2**40, [TOLD, SEGMENT]),
    ("strided", 7, 0, [TOLD, SEGMENT]),
    ("strided", 8, 2**62, [TOLD, SEGMENT]),
)


@pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU")
def test_damaged_words_before_a_collective_are_refused(tmp_path, speaker):
    """A wild number is an error on both ranks; the next call goes well."""
    cases = json.dumps([case[:3] for case in SPOKEN])
    printed = ranks.run_text(tmp_path, SPEAKER, speaker, cases)
    told = [json.loads(line) for line in printed.splitlines()]
    assert told == [case[3] for case in SPOKEN]
