# SPDX-License-Identifier: BSD-3-Clause
"""A communicator is freed, or an array. NCCL, or warpmpi, then frees memory,
for which the driver waits until the GPU is idle. Meanwhile it launches
nothing, and it ends captures."""

import textwrap

import pytest

import kinds
import ranks
import simulated_nccl
import warpmpi as wm

pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU"),
]

START = """
import ctypes, time
import numpy as np
from mpi4py import MPI
import graphs
import warpmpi as wm

world, device = MPI.COMM_WORLD, wm.get_device()
freed, other = [wm.Comm(world.Dup()) for _ in range(2)]
stream = wm.Stream(device)

def ones(count):
    return wm.array(np.ones(count, "f4"), device=device)

def live():
    library = ctypes.CDLL("libnccl.so.2")
    return library.simnccl_live(b"communicators")

sent, got = ones(5000), ones(5000)
for each in freed, other:
    each.on(stream).Allreduce(sent, got)
stream.synchronize()
assert live() == 4
"""


def free(folder, text, **settings):
    ranks.run_text(
        folder,
        simulated_nccl.APART + START + textwrap.dedent(text),
        ranks=2,
        timeout=30,
        **simulated_nccl.faulty(folder, **settings),
    )


def test_a_stream_waits_for_a_rank_that_waits_for_this_one(tmp_path):
    free(
        tmp_path,
        """
        if rank == 0:
            other.on(stream).Allreduce(sent, got)
            freed.Free()
            world.send("freed", 1)
        else:
            freed.Free()
            world.recv(source=0)
            other.on(stream).Allreduce(sent, got)
        stream.synchronize()
        assert (np.asarray(got.to("cpu")) == 2).all()
        assert live() == 2
        """,
    )


def test_the_program_captures_meanwhile(tmp_path):
    free(
        tmp_path,
        """
        with graphs.capture(stream) as captured:
            freed.on(stream).Allreduce(sent, got)
        freed.Free()
        captured[0].free()
        with graphs.capture(stream) as captured:
            other.on(stream).Allreduce(sent, got)
            time.sleep(0.3)  # looks of the progress thread
        stream.synchronize()
        assert live() == 2
        captured[0].free()
        """,
    )


def test_an_array_is_freed(tmp_path):
    """More than is kept: it goes back to the driver when no stream waits."""
    free(
        tmp_path,
        """
        large = wm.empty(device.total_memory // 4, "u1", device=device)
        taken = device.free_memory
        if rank == 0:
            other.on(stream).Allreduce(sent, got)
            large = None
            world.send("freed", 1)
        else:
            world.recv(source=0)
            other.on(stream).Allreduce(sent, got)
        stream.synchronize()
        assert (np.asarray(got.to("cpu")) == 2).all()
        large = None
        wm.empty(1, device=device)
        assert device.free_memory > taken
        """,
    )


@pytest.mark.skipif(kinds.is_real(), reason="slows the driver's calls down")
def test_an_array_is_freed_as_calls_begin(tmp_path):
    """On both ranks, beside the other's call: none begins, or none is freed.

    Slow calls of the driver leave room for one between the question if a
    stream waits, and the freeing.
    """
    free(
        tmp_path,
        """
        import threading
        ended = threading.Event()

        def frees():
            while not ended.is_set():
                wm.empty(device.total_memory // 6, "u1", device=device)

        thread = threading.Thread(target=frees)
        thread.start()
        results = [ones(5000) for _ in range(2)]
        rows = list(zip([freed, other], results, [stream, wm.Stream(device)]))
        for turn in range(30):
            order = rows[:: 1 - 2 * ((rank + turn) % 2)]
            MPI.Request.Waitall([c.Iallreduce(sent, r) for c, r, _ in order])
            for comm, result, its in order:
                comm.on(its).Allreduce(sent, result)
        ended.set()
        thread.join()
        for comm, result, its in rows:
            its.synchronize()
            assert (np.asarray(result.to("cpu")) == 2).all()
        """,
        SIMCUDA_TOOL_US="100",
        SIMCUDA_MEMORY=str(64 << 20),
    )
