# SPDX-License-Identifier: BSD-3-Clause
"""What is measured: counters by peer, times of calls, NVTX ranges."""

import sys
import threading
import types

import numpy as np
import pytest
from mpi4py import MPI

import cases
import ranks
import warpmpi as wm

gpu = pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU")


def exchange(comm, array, into):
    """To the next rank, from the one before."""
    size, rank = comm.size, comm.rank
    requests = [
        comm.Irecv(into, (rank - 1) % size),
        comm.Isend(array, (rank + 1) % size),
    ]
    wm.Request.Waitall(requests)


@gpu
@pytest.mark.ranks(2)
def test_mappings_are_counted_by_peer(comm):
    if not cases.is_direct(comm):
        pytest.skip("GPUs that do not reach each other map nothing")
    array = wm.zeros(3_000_000, np.uint8, device=wm.get_device())
    into = wm.zeros(3_000_000, np.uint8, device=wm.get_device())
    wm.reset_stats()
    for _ in range(3):
        exchange(comm, array, into)
    counts = wm.stats(peers=comm)
    assert list(counts) == list(range(comm.size))
    total = wm.stats()
    for name in counts[0]:
        if name in total:
            assert sum(each[name] for each in counts.values()) == total[name]
    assert not any(counts[comm.rank].values())
    other = counts[(comm.rank - 1) % comm.size]
    assert other["mappings_opened"] + other["mappings_hit"] >= 2
    assert other["mappings_open"] >= 1
    assert other["mapped_bytes"] >= 3_000_000
    lines = str(counts).splitlines()
    assert lines[0].split()[0] == "rank"
    assert len(lines) == 1 + comm.size
    wm.reset_stats()
    again = wm.stats(peers=comm)[(comm.rank - 1) % comm.size]
    assert again["mappings_opened"] == again["mapping_microseconds"] == 0
    assert again["mapped_bytes"] == other["mapped_bytes"]


@gpu
@pytest.mark.ranks(2)
def test_calls_of_windows_are_counted_by_target(comm):
    memory = wm.zeros(1000, np.uint8, device=wm.get_device())
    target = (comm.rank + 1) % comm.size
    win = wm.Win.Create(memory, comm=comm)
    wm.reset_stats()
    win.Fence()
    for size in (1, 100, 899):
        win.Put(wm.ones(size, np.uint8, device=wm.get_device()), target)
    win.Fence()
    for rank, counts in wm.stats(peers=comm).items():
        found = counts["window_calls"], counts["window_bytes"]
        assert found == ((3, 1000) if rank == target else (0, 0))
    win.Free()


@gpu
@pytest.mark.ranks(2)
def test_halos_are_counted_by_neighbour(comm):
    if not cases.is_direct(comm):
        pytest.skip("halos go by messages")
    cart = comm.Create_cart([comm.size, 1], periods=[True, True])
    halo = wm.Halo(cart)
    field = wm.zeros((6, 7), "f4", device=wm.get_device())
    halo.exchange(field)
    wm.reset_stats()
    for _ in range(3):
        halo.exchange(field)
    total = wm.stats()
    counts = wm.stats(peers=cart)
    own = counts[comm.rank]
    assert own["halo_exchanges"] == own["halo_bytes"] == 0
    other = counts[(comm.rank + 1) % comm.size]
    assert other["halo_exchanges"] == total["halo_exchanges"] == 3
    faces = 2 if comm.size == 2 else 1  # west and east, of 5 points
    assert other["halo_bytes"] == 3 * 4 * 5 * faces
    of_all = sum(each["halo_bytes"] for each in counts.values())
    assert total["halo_bytes"] == of_all + 3 * 4 * 4 * 2  # south and north
    halo.free()


@pytest.mark.ranks(2)
def test_counters_of_no_communicator_of_ours(comm):
    with pytest.raises(RuntimeError, match=r"wm\.Comm\(comm\)"):
        wm.stats(peers=MPI.COMM_SELF.Dup())


@pytest.mark.ranks(2)
def test_calls_are_timed(comm):
    array, into = wm.ones(1000), wm.zeros(1000)
    with wm.profile() as calls:
        for _ in range(5):
            exchange(comm, array, into)
        comm.Allreduce(array, into)
        comm.allreduce(1)
    exchange(comm, array, into)
    assert calls["Comm.Isend"].calls == calls["Comm.Irecv"].calls == 5
    assert calls["Request.Waitall"].calls == 5
    assert calls["Comm.Allreduce"].calls == 1
    for took in calls.values():
        assert 0 < took.longest <= took.microseconds
        assert took.mean == took.microseconds / took.calls
    assert calls.stats["sent_messages"] >= 5
    first = str(calls).splitlines()[1].split()[0]
    assert calls[first].microseconds == max(
        took.microseconds for took in calls.values()
    )


# Calls that are MPI's own, as no rank has a GPU.
OF_HOSTS = """
    from mpi4py import MPI
    import warpmpi as wm

    comm, one = wm.Comm(MPI.COMM_WORLD), wm.ones(1)
    with wm.profile() as calls:
        comm.Sendrecv(one, comm.rank, recvbuf=wm.zeros(1), source=comm.rank)
        comm.Dup().Barrier()
    comm.Barrier()
    assert sorted(calls) == ["Comm.Barrier", "Comm.Dup", "Comm.Sendrecv"]
    assert all(took.calls == 1 for took in calls.values())
"""


@pytest.mark.programs
def test_calls_without_gpus_are_timed(tmp_path):
    no_gpu = {"WARPMPI_CUDA_DRIVER": "", "CUDA_VISIBLE_DEVICES": ""}
    ranks.run_text(tmp_path, OF_HOSTS, ranks=1, **no_gpu)


@pytest.mark.ranks(2)
def test_halos_and_windows_are_timed(comm):
    device = wm.get_device()
    halo = wm.Halo(comm.Create_cart([comm.size], periods=[True]))
    field = wm.zeros(10, device=device)
    plan = halo.plan(field)
    win = wm.Win.Create(field, comm=comm)
    with wm.profile() as calls:
        halo.exchange(field)
        plan()
        plan()
        win.Fence()
        win.Put(wm.ones(1, device=device), comm.rank)
        win.Fence()
    plan()
    win.Free()
    halo.free()
    assert calls["Halo.exchange"].calls == calls["Win.Put"].calls == 1
    assert calls["HaloPlan()"].calls == calls["Win.Fence"].calls == 2


@pytest.mark.ranks(2)
def test_methods_are_as_before_after_a_block(comm):
    kinds = wm.Comm, wm.Request, wm.Win, wm.Halo
    before = {kind: dict(vars(kind)) for kind in kinds}
    with pytest.raises(MPI.Exception), wm.profile() as calls:
        comm.Send(wm.ones(1), comm.size + 1)
    assert calls["Comm.Send"].calls == 1
    for kind, names in before.items():
        for name, value in names.items():
            assert vars(kind)[name] is value, name
    inner = wm.profile()
    with wm.profile(), pytest.raises(RuntimeError, match="another block"):
        inner.__enter__()
    with wm.profile():
        pass


@pytest.mark.ranks(2)
def test_threads_are_timed_alike(comm):
    def probe():
        for _ in range(20):
            comm.Iprobe(comm.rank)

    with wm.profile() as calls:
        threads = [threading.Thread(target=probe) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert calls["Comm.Iprobe"].calls == 40


@pytest.mark.ranks(2)
def test_calls_are_nvtx_ranges(comm, monkeypatch):
    seen = []
    fake = types.ModuleType("nvtx")
    fake.push_range = seen.append
    fake.pop_range = lambda: seen.append(None)
    monkeypatch.setitem(sys.modules, "nvtx", fake)
    with wm.profile(nvtx=True):
        comm.Barrier()
        with pytest.raises(MPI.Exception):
            comm.Send(wm.ones(1), comm.size + 1)
    assert seen == ["Comm.Barrier", None, "Comm.Send", None]


def test_no_package_makes_ranges(monkeypatch):
    for name in ("nvtx", "cupy.cuda.nvtx", "torch.cuda.nvtx"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match="pip install nvtx"):
        wm.profile(nvtx=True)
