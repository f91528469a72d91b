# SPDX-License-Identifier: BSD-3-Clause
"""Which path a message takes, and that the counters tell it."""

import ctypes
import os
import time
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import ranks
import warpmpi as wm

pytestmark = pytest.mark.skipif(
    not wm.is_cuda_available(), reason="needs a GPU"
)


HERE = Path(__file__).resolve().parent


def exchange(comm, kind, size):
    """Rank 0 sends to rank 1; the counters of both, as differences."""
    buffer = kinds.make(kind, np.zeros(size, np.uint8))
    before = wm.stats()
    if comm.rank == 0:
        comm.Ssend(buffer, 1)  # a Send may copy, and go on
    elif comm.rank == 1:
        comm.Recv(buffer, 0)
    after = wm.stats()
    return {key: after[key] - before[key] for key in after}


def forced():
    return os.environ.get("WARPMPI_TRANSPORT")


@pytest.mark.ranks(2)
@pytest.mark.parametrize("size", [8, 100_000, 9_000_000])
def test_gpu_to_gpu_never_touches_host_memory(comm, ipc, size):
    changes = exchange(comm, "device", size)
    assert changes["staged_bytes"] == 0
    assert changes["handed_off_bytes"] == 0
    if comm.rank == 1:
        assert changes["ipc_messages"] == 1
        assert changes["ipc_bytes"] == size


@pytest.mark.ranks(2)
def test_pool_memory_is_handed_off(comm, ipc):
    changes = exchange(comm, "pool", 200_000)
    assert changes["staged_bytes"] == 0
    assert changes["handed_off_bytes"] == (200_000 if comm.rank == 0 else 0)


@pytest.mark.ranks(2)
def test_a_mapping_is_opened_once(comm, ipc):
    array = wm.zeros(10_000_000, np.uint8, device=wm.get_device())
    if comm.rank == 0:
        for _ in range(5):
            comm.Send(array, 1)
    elif comm.rank == 1:
        before = wm.stats()
        for _ in range(5):
            comm.Recv(array, 0)
        after = wm.stats()
        assert after["mappings_opened"] - before["mappings_opened"] <= 1
        assert after["mappings_hit"] - before["mappings_hit"] >= 4


@pytest.mark.ranks(2)
def test_mappings_of_freed_memory_are_closed(comm):
    before = wm.stats()["mappings_open"]
    for _ in range(20):
        if comm.rank == 0:
            array = kinds.Foreign(5_000_000, np.uint8, "foreign")
            comm.Send(array, 1)
            array.free()
        elif comm.rank == 1:
            comm.Recv(np.zeros(5_000_000, np.uint8), 0)
    for _ in range(20):
        into = wm.zeros(5_000_000, np.uint8, device=wm.get_device())
        if comm.rank == 0:
            array = kinds.Foreign(5_000_000, np.uint8, "foreign")
            comm.Send(array, 1)
            array.free()
        elif comm.rank == 1:
            comm.Recv(into, 0)
    comm.Barrier()
    assert wm.stats()["mappings_open"] <= before + 1


@pytest.mark.ranks(2)
def test_memory_that_comes_back_at_the_same_address(comm, ipc):
    """The driver maps it only when what was there before is closed."""
    before = wm.stats()
    for turn in range(15):
        for size in (1, 1000, 4097, 300_000):
            array = kinds.make("foreign", np.full(size, turn, np.uint8))
            if comm.rank == 0:
                comm.Send(array, 1)
            elif comm.rank == 1:
                into = kinds.make("foreign", np.zeros(size, np.uint8))
                comm.Recv(into, 0)
                assert (into.numpy() == turn).all()
            del array
    assert wm.stats()["host_messages"] == before["host_messages"]


@pytest.mark.ranks(2)
def test_host_buffers_name_their_path(comm):
    """With that of a message from a GPU, which it really takes."""
    other = 1 - comm.rank if comm.rank < 2 else 0
    told = wm.transport(comm, other, np.zeros(1))
    assert told.name == "mpi"
    way = "mpi" if forced() == "mpi" else "host"
    how = {"mpi": "MPI delivers it", "host": "staged through page-locked"}
    counted = way + "_messages"
    assert f'GPU data takes transport "{way}": {how[way]}' in told.reason
    assert str(told) == f'transport "mpi": {told.reason}'
    changes = exchange(comm, "host", 8)
    if comm.rank == 1:
        assert changes["mpi_messages"] == 1
        before = wm.stats()[counted]
        comm.Recv(np.zeros(8, np.uint8), 0)
        assert wm.stats()[counted] == before + 1
    elif comm.rank == 0:
        comm.Send(kinds.make("device", np.zeros(8, np.uint8)), 1)


def test_to_oneself_in_host_memory(comm):
    told = wm.transport(comm, comm.rank, np.zeros(1))
    assert told.name == "mpi"
    assert 'GPU data takes transport "self": one copy' in told.reason


def test_to_oneself(comm):
    """Whatever WARPMPI_TRANSPORT asks for: no message to itself goes so."""
    assert wm.transport(comm, comm.rank).name == "self"


PROGRAM = """
    import sys
    import numpy as np
    from mpi4py import MPI
    import warpmpi as wm
    comm = wm.Comm(MPI.COMM_WORLD)
    device = wm.get_device()
    for size in (1, 5000, 300_000, 40_000_001):
        out = wm.array(np.arange(size, dtype=np.uint8), device=device)
        into = wm.zeros(size, np.uint8, device=device)
        other = 1 - comm.rank
        comm.Sendrecv(out, other, 0, into, other, 0)
        assert (into.numpy() == np.arange(size, dtype=np.uint8)).all()
        request = comm.Isend(out, comm.rank)
        comm.Recv(into, comm.rank)
        request.Wait()
    stats = wm.stats()
    print(wm.transport(comm, 1 - comm.rank).name,
          stats["host_messages"], stats["ipc_messages"],
          stats["mpi_messages"], stats["staged_bytes"],
          wm.transport(comm, comm.rank).name, stats["self_messages"],
          flush=True)
"""


@pytest.mark.programs
@pytest.mark.parametrize(
    "environment",
    [
        {"WARPMPI_TRANSPORT": "host"},
        {"SIMCUDA_PEER": "0"},
        {"SIMCUDA_IPC": "0"},
    ],
    ids=["asked for", "no peer access", "no IPC"],
)
def test_the_host_serves_where_ipc_cannot(tmp_path, environment):
    simulated = next(iter(environment)).startswith("SIMCUDA")
    if simulated and "WARPMPI_CUDA_DRIVER" not in os.environ:
        pytest.skip("needs the simulated driver")
    printed = ranks.run_text(tmp_path, PROGRAM, **environment)
    assert printed.count("host 4 0 0 ") == 2, printed
    assert printed.count(" self 4") == 2, printed


def hosts(folder):
    """A command after which each rank claims to be on a host of its own."""
    script = folder / "host.sh"
    script.write_text(
        "#!/bin/sh\nexport WARPMPI_HOST=h"
        '${OMPI_COMM_WORLD_RANK:-$PMI_RANK}\nexec "$@"\n'
    )
    script.chmod(0o755)
    return [str(script)]


@pytest.mark.programs
def test_hosts_that_share_no_memory(tmp_path):
    printed = ranks.run_text(tmp_path, PROGRAM, wrapper=hosts(tmp_path))
    assert printed.count("host 4 0 0 ") == 2, printed
    assert printed.count(" self 4") == 2, printed


@pytest.fixture
def cuda_aware():
    """A command and settings that pretend a CUDA-aware MPI."""
    driver = os.environ.get("WARPMPI_CUDA_DRIVER")
    if driver is None:
        pytest.skip("needs the simulated driver")
    return ["env", f"LD_PRELOAD={driver}"], {"SIMCUDA_OPEN": "1"}


@pytest.mark.programs
@pytest.mark.parametrize("asked", [True, False])
def test_a_cuda_aware_mpi_carries_device_memory(tmp_path, cuda_aware, asked):
    """Where it is asked to, and between hosts."""
    wrapper, environment = cuda_aware
    if asked:
        environment["WARPMPI_TRANSPORT"] = "mpi"
    else:
        wrapper = wrapper + hosts(tmp_path)
    printed = ranks.run_text(tmp_path, PROGRAM, wrapper=wrapper, **environment)
    assert printed.count("mpi 0 0 4 0") == 2, printed


@pytest.mark.programs
def test_messages_by_a_cuda_aware_mpi(tmp_path, cuda_aware):
    wrapper, environment = cuda_aware
    ranks.run(
        ranks.ROOT / "tests" / "pytest_main.py",
        tmp_path,
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "-k",
        "not needs_no_receiver",  # that is beyond MPI's eager limit
        *(
            ranks.ROOT / "tests" / "mpi" / f"test_{name}.py"
            for name in ("messages", "streams")
        ),
        timeout=85,
        wrapper=wrapper,
        WARPMPI_TRANSPORT="mpi",
        WARPMPI_TEST_EVERY="5",
        **environment,
    )


@pytest.mark.programs
@pytest.mark.parametrize("name", ["self", "IPC", "tcp"])
def test_no_transport(tmp_path, name):
    text = """
        from mpi4py import MPI
        import warpmpi as wm
        try:
            wm.Comm(MPI.COMM_WORLD)
        except RuntimeError as error:
            print(error)
    """
    printed = ranks.run_text(tmp_path, text, WARPMPI_TRANSPORT=name)
    told = f"WARPMPI_TRANSPORT={name} is not a transport"
    assert printed.count(told) == 2, printed


@pytest.mark.programs
def test_an_mpi_that_is_not_cuda_aware_is_refused(tmp_path):
    text = """
        from mpi4py import MPI
        import warpmpi as wm
        try:
            wm.Comm(MPI.COMM_WORLD)
        except RuntimeError as error:
            print(error)
    """
    try:
        aware = ctypes.CDLL(MPI.__file__).MPIX_Query_cuda_support()
    except AttributeError:
        pytest.skip("this MPI does not tell")
    if aware:
        pytest.skip("this MPI is CUDA-aware")
    printed = ranks.run_text(tmp_path, text, WARPMPI_TRANSPORT="mpi")
    assert printed.count("not CUDA-aware: unset WARPMPI_TRANSPORT") == 2


def free_while_a_stream_waits(comm):
    """Rank 0 frees what rank 1 has mapped, while a stream waits.

    How many mappings rank 1 had closed, before the barrier and after.
    """
    stream = wm.Stream()
    freed = kinds.make("foreign", np.full(5_000_000, 7, np.uint8))
    late = kinds.make("foreign", np.full(300_000, 5, np.uint8))
    before = after = 0
    comm.Barrier()  # closes what others left
    if comm.rank == 0:
        comm.Send(freed, 1)
        freed.free()
        with kinds.Gate() as gate:
            gate.stop(late.stream)
            request = comm.on(late.stream).Isend(late, 1)
            comm.Barrier()
        request.Wait()
    elif comm.rank == 1:
        comm.Recv(freed, 0)
        into = wm.zeros(300_000, np.uint8, device=wm.get_device())
        comm.on(stream).Recv(into, 0)
        before = wm.stats()["mappings_closed"]
        comm.Barrier()
        after = wm.stats()["mappings_closed"]
        assert (into.numpy() == 5).all()
    else:
        comm.Barrier()
    return before, after


@pytest.mark.ranks(2)
def test_nothing_is_closed_while_a_stream_waits(comm, ipc):
    """To close a mapping is to wait for the device, and for its message."""
    before, meanwhile = free_while_a_stream_waits(comm)
    for _ in range(3):
        comm.Barrier()
    if comm.rank == 1:
        assert meanwhile == before
        assert wm.stats()["mappings_closed"] > before


@pytest.mark.ranks(2)
@pytest.mark.skipif(
    MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="there is no thread"
)
def test_the_progress_thread_closes_nothing(comm, ipc):
    """A stream of the program's may wait for what it is about to do."""
    held = wm.Stream()
    last = kinds.make("foreign", np.full(400_000, 3, np.uint8))
    into = wm.zeros(400_000, np.uint8, device=wm.get_device())
    free_while_a_stream_waits(comm)  # so that it could not be closed
    MPI.COMM_WORLD.Barrier()
    if comm.rank == 0:
        comm.Send(last, 1)
    elif comm.rank == 1:
        before, came = wm.stats()["ipc_messages"], False
        with kinds.Gate() as gate:
            gate.stop(held)
            request = comm.Irecv(into, 0)
            end = time.monotonic() + 10
            while time.monotonic() < end and not came:
                time.sleep(0.001)
                came = wm.stats()["ipc_messages"] > before
        request.Wait()
        assert came
        assert (into.numpy() == 3).all()
    MPI.COMM_WORLD.Barrier()


@pytest.mark.programs
def test_a_limit_on_the_size_of_files(tmp_path):
    """Without a shared segment messages go as between hosts."""
    if not wm.is_cuda_available():
        pytest.skip("needs a GPU")
    program = """
        import resource
        from mpi4py import MPI
        import warpmpi as wm
        kind = resource.RLIMIT_FSIZE
        before = resource.getrlimit(kind)
        assert wm.is_cuda_available()  # the simulated driver makes files
        resource.setrlimit(kind, (10240, before[1]))
        comm = wm.Comm(MPI.COMM_WORLD)
        resource.setrlimit(kind, before)
        other = 1 - comm.rank
        told = wm.transport(comm, other)
        assert told.name != "ipc" and "ulimit -f" in told.reason, told
        for peer in (other, comm.rank):
            out = wm.full(1 << 20, 5.0, device="cuda:0")
            into = wm.zeros(1 << 20, device="cuda:0")
            comm.Sendrecv(out, peer, 0, into, peer, 0)
            assert (into.numpy() == 5).all()
    """
    ranks.run_text(tmp_path, program, timeout=40)


BESIDE = """
    import numpy as np
    import test_thresholds
    from mpi4py import MPI

    import warpmpi as wm

    SIZE, TAKERS = {size}, {takers}
    world, comm = MPI.COMM_WORLD, wm.Comm(MPI.COMM_WORLD)
    right = np.arange(SIZE + 1, dtype="u4").view("u1")[:SIZE]
    into = [wm.zeros(SIZE + 32, "u1") for _ in range(2)]

    givers = [rank for rank in range(comm.size) if rank not in TAKERS]

    def turn():
        if comm.rank in givers:
            array = wm.from_numpy(right + np.uint8(comm.rank))
            requests = [comm.Isend(array, rank) for rank in TAKERS]
            world.Barrier()
            return wm.Request.Waitall(requests)
        world.Barrier()
        parts = [array[16 : 16 + SIZE] for array in into]
        wm.Request.Waitall(list(map(comm.Irecv, parts, givers)))

    turn()
    world.Barrier()
    named, copies = test_thresholds.kernels(turn)
    moved = [name for name in named if name.startswith("wm_pull")]
    if comm.rank in TAKERS:
        assert bool(moved) == {by_kernels}, (named, copies)
        for giver, array in zip(givers, into, strict=True):
            whole = array.numpy()
            assert (whole[16 : 16 + SIZE] == right + np.uint8(giver)).all()
            assert not whole[:16].any() and not whole[16 + SIZE :].any()
    print("right")
"""


@pytest.mark.programs
@pytest.mark.skipif(kinds.is_real(), reason="the driver is to tell")
@pytest.mark.parametrize(
    ("size", "takers", "devices", "by_kernels"),
    [
        (5_000_001, (0,), 3, True),
        (3_000_000, (0,), 3, False),
        (5_000_001, (0, 2), 2, False),  # two take on one GPU
    ],
)
def test_long_ones_of_two_peers_go_beside_each_other(
    tmp_path, size, takers, devices, by_kernels
):
    printed = ranks.run_text(
        tmp_path,
        BESIDE.format(size=size, takers=takers, by_kernels=by_kernels),
        ranks=2 + len(takers),
        SIMCUDA_DEVICES=str(devices),
        PYTHONPATH=os.pathsep.join(
            [str(HERE), str(HERE.parent), str(ranks.ROOT)]
        ),
    )
    assert printed.count("right") == 2 + len(takers)


def test_the_engine_of_a_collective(comm):
    gpu, host = wm.zeros(1000), np.zeros(1000)
    name, reason = wm.transport(comm, "Allreduce", gpu)
    assert name == "copies" and reason
    told = wm.transport(comm, "Allreduce", host)
    assert told.name == "mpi"
    assert "not copies: it takes no host memory" in told.reason
    with pytest.raises(ValueError, match="is no collective"):
        wm.transport(comm, "Reduced", gpu)
