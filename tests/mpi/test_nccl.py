# SPDX-License-Identifier: BSD-3-Clause
"""The engine "nccl": collectives between hosts that have one rank each."""

import textwrap

import pytest

import ranks
import simulated_nccl
import warpmpi as wm

pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU"),
]

START = """
import ctypes, sys, time
import numpy as np
from mpi4py import MPI
import graphs
import warpmpi as wm
from warpmpi import _core

comm = wm.Comm(MPI.COMM_WORLD)
size, device = comm.size, wm.get_device()

def served():
    return _core._coll_engines()["nccl"]

def ones(count, dtype="float32", value=None):
    values = np.full(count, rank + 1 if value is None else value, dtype)
    return wm.array(values, device=device)

def get(array):
    return np.asarray(array.to("cpu"))
"""


def apart(folder, text, *words, count=2, timeout=60, **environment):
    """Runs a program on ranks that are hosts."""
    return ranks.run_text(
        folder,
        simulated_nccl.APART + START + textwrap.dedent(text),
        *words,
        ranks=count,
        timeout=timeout,
        **simulated_nccl.environment(**environment),
    )


def test_random_calls_in_all_forms():
    """Also of arrays that are not a GPU's, on some ranks or on all."""
    printed = ranks.run(
        ranks.ROOT / "tests" / "random_collectives.py",
        *"--apart --collectives 150 --seed 3".split(),
        ranks=3,
        **simulated_nccl.environment(),
    )
    assert "every one right" in printed


def test_bits_are_those_of_the_order_of_ranks(tmp_path):
    """In every form and length; and no byte goes twice."""
    apart(
        tmp_path,
        """
        for count, dtype in (2000, "f4"), (100_003, "f4"), (48_000, "f8"):
            rows = [np.random.default_rng(r).random(count).astype(dtype)
                    for r in range(size)]
            expected = rows[0]
            for row in rows[1:]:
                expected = expected + row
            sent, got = wm.array(rows[rank]), wm.array(0 * rows[0])
            before = served()

            def check():
                assert np.array_equal(get(got), expected)
                got.fill_(0)

            comm.Allreduce(sent, got)
            check()
            comm.Iallreduce(sent, got).Wait()
            check()
            request = comm.Allreduce_init(sent, got)
            for _ in range(2):
                request.Start()
                request.Wait()
                check()
            request.Free()
            stream = wm.Stream(device)
            comm.on(stream).Allreduce(sent, got)
            stream.synchronize()
            check()
            comm.Reduce(sent, got if rank == 0 else None, root=0)
            if rank == 0:
                check()
            assert served() - before == 5, served()
        before = wm.stats()["nccl_bytes"]
        count = 3 * 4096 * size
        comm.Allreduce(ones(count), ones(count))
        assert wm.stats()["nccl_bytes"] - before == (
            2 * (size - 1) * 4 * count // size
        )
        """,
        count=3,
    )


def test_graphs_replay_and_outlive_their_communicator(tmp_path):
    apart(
        tmp_path,
        """
        other = wm.Comm(MPI.COMM_WORLD.Dup())
        stream = wm.Stream(device)
        sent, got = ones(50_000), ones(50_000)
        first, all = ones(3000), ones(3000 * size)
        with graphs.capture(stream) as made:  # the first call opens it
            other.on(stream).Allreduce(sent, got)
            other.on(stream).Allgather(first, all)
        for _ in range(200):
            made[0].launch(stream)
        stream.synchronize()
        total = size * (size + 1) // 2
        assert (get(got) == total).all()
        assert (get(all) == np.repeat(np.arange(size) + 1, 3000)).all()
        other.Free()
        wm.Comm(MPI.COMM_WORLD.Dup()).Free()  # drops what nobody uses
        sent.fill_(2)
        device.synchronize()
        made[0].launch(stream)
        stream.synchronize()
        assert (get(got) == 2 * size).all()
        made[0].free()
        comm.Barrier()
        """,
    )


def test_a_call_behind_one_whose_array_is_moved(tmp_path):
    """NCCL's calls start in the program's order, whatever they wait for."""
    apart(
        tmp_path,
        """
        count = 5000
        comm.Allreduce(ones(count), ones(count))
        host = np.full(count, rank + 1.0, "f4")
        got, into, other = np.zeros(count, "f4"), ones(count), ones(count)
        stream = wm.Stream(device)
        for i in range(3):
            sent = host if (rank + i) % 2 else ones(count)
            received = got if (rank + i) % 2 else into
            request = comm.Iallreduce(sent, received)
            comm.Allreduce(ones(count, value=5), other)
            assert (get(other) == 5 * size).all()
            second = comm.Iallreduce(sent, received)
            comm.on(stream).Allreduce(ones(count, value=7), other)
            stream.synchronize()
            assert (get(other) == 7 * size).all()
            MPI.Request.Waitall([request, second])
            total = size * (size + 1) // 2
            assert (np.asarray(received if (rank + i) % 2 else get(received))
                    == total).all()
        assert wm.stats()["moved_collectives"] > 0
        """,
    )
