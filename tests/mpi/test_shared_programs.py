# SPDX-License-Identifier: BSD-3-Clause
"""Shared arrays in jobs of their own: several hosts, no GPU, long waits."""

import os
from pathlib import Path

import pytest

import kinds
import ranks
import warpmpi as wm

pytestmark = pytest.mark.programs

HOSTS = """
    import os
    rank = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"]
    os.environ["WARPMPI_HOST"] = f"host {int(rank) % 2}"
    from mpi4py import MPI
    import warpmpi as wm

    comm = wm.Comm(MPI.COMM_WORLD)
    for device in (None, "cpu"):
        try:
            wm.shared_empty(3, comm=comm, device=device)
        except ValueError as error:
            assert "Split_type(MPI.COMM_TYPE_SHARED)" in str(error)
        else:
            raise AssertionError("nobody raised")
    part = comm.Split(comm.rank % 2)
    a = wm.shared_full(2, comm.rank, comm=part)
    for other in range(part.size):
        assert (a.peer(other).numpy() == comm.rank % 2 + 2 * other).all()
    print("right", flush=True)
"""


def test_ranks_of_several_hosts_raise(tmp_path):
    printed = ranks.run_text(tmp_path, HOSTS, ranks=4)
    assert printed.count("right") == 4


WITHOUT = """
    import numpy as np
    from mpi4py import MPI
    import warpmpi as wm

    comm = MPI.COMM_WORLD
    for each in (comm, comm.Dup()):
        a = wm.shared_zeros(each.rank + 1, "float64", comm=each, like="numpy")
        right, left = (each.rank + 1) % each.size, (each.rank - 1) % each.size
        a.barrier()
        a.peer(right)[...] = each.rank
        a.signal(right, 0)
        a.wait(0)
        assert (a.array == left).all()
    b = wm.shared_full(3, comm.rank, "int32", comm=comm)
    comm.Sendrecv_replace(b, (comm.rank + 1) % comm.size)
    assert (b.numpy() == (comm.rank - 1) % comm.size).all()
    total = np.zeros(1)
    comm.Allreduce(np.ones(1), total)
    assert total[0] == comm.size and type(wm.Comm(comm)) is not MPI.Comm
    print("right", flush=True)
"""


def test_jobs_without_gpus(tmp_path):
    nothing = {"CUDA_VISIBLE_DEVICES": "", "WARPMPI_CUDA_DRIVER": ""}
    printed = ranks.run_text(tmp_path, WITHOUT, ranks=3, **nothing)
    assert printed.count("right") == 3


UNREACHED = """
    import numpy as np
    from mpi4py import MPI
    import graphs
    import warpmpi as wm

    comm = wm.Comm(MPI.COMM_WORLD)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    count, stream = 9 << 20, wm.Stream()
    a = wm.shared_zeros(count, "int32", comm=comm)
    assert a.pinned and not wm.shared_empty(1, comm=comm, device="cpu").pinned
    shown = a.__cuda_array_interface__
    assert shown["data"] == (a.ptr, False) and shown["shape"] == (count,)
    with graphs.capture(stream) as made:
        a.signal(right, 2, 9, stream)
        a.wait(2, 9, stream)
        a.barrier(stream)
    for turn in range(3):
        a.peer(right).assign(wm.full(count, 10 * turn + comm.rank, "int32"))
        made[0].launch(stream)
        stream.synchronize()
        assert (a.numpy() == 10 * turn + left).all()
        a.barrier(stream)
        stream.synchronize()
    print("right", flush=True)
"""


@pytest.mark.parametrize(
    "size, settings",
    [(2, {"SIMCUDA_IPC": "0"}), (3, {"SIMCUDA_PEER": "0"})],
)
def test_gpus_that_do_not_reach_each_other(tmp_path, size, settings):
    if "WARPMPI_CUDA_DRIVER" not in os.environ:
        pytest.skip("needs the simulated driver")
    printed = ranks.run_text(tmp_path, UNREACHED, ranks=size, **settings)
    assert printed.count("right") == size


# The driver refuses what making an array asks of it, on the last rank.
FAULTS = """
    import ctypes, faulthandler, os, sys
    from mpi4py import MPI
    import warpmpi as wm

    faulthandler.dump_traceback_later(60, exit=True)
    comm = wm.Comm(MPI.COMM_WORLD)
    last = comm.rank == comm.size - 1
    driver = ctypes.CDLL(os.environ["WARPMPI_CUDA_DRIVER"])
    driver.simcuda_fail.argtypes = ctypes.c_char_p, ctypes.c_long, ctypes.c_int
    names = sys.argv[1:]
    made = raised = 0
    for name in names * 2:
        # A rank without a GPU: memory of the host, which is page-locked.
        host = name == "MemHostRegister" and comm.rank == 0
        if last:
            driver.simcuda_fail(name.encode(), 1, 0)
        error = None
        try:
            a = wm.shared_full((17 << 20) + made, comm.rank, "uint8",
                               comm=comm, device="cpu" if host else None)
        except (wm.CudaError, RuntimeError) as caught:
            error = caught
        if last:
            driver.simcuda_fail(None, 0, 0)
        failed = set(MPI.COMM_WORLD.allgather(error is not None))
        assert len(failed) == 1, (name, failed, error)
        raised += error is not None
        made += error is None
        if error is None:
            for rank in range(comm.size):
                assert (a.peer(rank).numpy() == rank).all()
    assert made > 0 and raised > 0, (made, raised)
    print("told", flush=True)
"""


@pytest.mark.parametrize("size", [2, 3])
def test_one_rank_s_failure_is_known_to_all(tmp_path, size):
    """Either all have an array, which then is right, or all raise."""
    if "WARPMPI_CUDA_DRIVER" not in os.environ:
        pytest.skip("needs the simulated driver")
    names = """
        MemAlloc MemsetD8Async IpcGetMemHandle MemcpyAsync StreamSynchronize
        MemHostRegister DeviceGetP2PAttribute IpcOpenMemHandle
    """.split()
    printed = ranks.run_text(tmp_path, FAULTS, *names, ranks=size)
    assert printed.count("told") == size


LONG = """
    import os, sys, time
    from mpi4py import MPI
    import warpmpi as wm

    comm = wm.Comm(MPI.COMM_WORLD)
    told = sys.argv[1]
    if comm.rank == 0:
        file = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        kept = os.dup(2)
        os.dup2(file, 2)
    a, stream = wm.shared_empty(1, comm=comm), wm.Stream()
    if comm.rank == 0:
        a.wait(7, 3, stream)
        stream.synchronize()
        os.dup2(kept, 2)
        print("went on", flush=True)
    else:
        while not os.path.exists(told) or "a stream has" not in open(
            told
        ).read():
            time.sleep(0.05)
        a.signal(0, 7, 3, stream)
        stream.synchronize()
"""


@pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU")
def test_a_long_wait_on_a_stream_is_told(tmp_path):
    told = tmp_path / "told"
    printed = ranks.run_text(tmp_path, LONG, told, WARPMPI_HANG_SECONDS="0.5")
    assert "went on" in printed
    lines = told.read_text().splitlines()
    assert len([line for line in lines if "a stream has" in line]) == 1
    assert "rank 0 of MPI_COMM_WORLD (size 2)" in lines[0]
    assert "wait(slot=7, value=3)" in lines[0]


MEMORY = """
    import threading
    from mpi4py import MPI
    import warpmpi as wm

    world, own = wm.Comm(MPI.COMM_WORLD), wm.Comm(MPI.COMM_SELF)
    ended = False

    def keep_the_engine_busy():
        while not ended:
            own.Barrier()
            own.Iprobe()

    thread = threading.Thread(target=keep_the_engine_busy)
    thread.start()
    short = 0
    for _ in range(60):
        try:
            wm.shared_empty(9 << 20, "uint8", comm=world)
        except MemoryError:
            short += 1
    ended = True
    thread.join()
    assert short == 0, short
    print("had room", flush=True)
"""


@pytest.mark.skipif(
    not wm.is_cuda_available() or kinds.is_real(), reason="would fill a GPU"
)
def test_what_was_dropped_makes_room_at_once(tmp_path):
    """Also while another thread has the engine."""
    printed = ranks.run_text(
        tmp_path, MEMORY, ranks=2, SIMCUDA_MEMORY=str(16 << 20)
    )
    assert printed.count("had room") == 2


MET = """
    import os, sys
    from mpi4py import MPI
    import warpmpi as wm

    cart = wm.Comm(MPI.COMM_WORLD).Create_cart([2])
    wm.shared_zeros(3, comm=cart)
    halo = wm.Halo(cart)
    try:
        if cart.rank == 1 and sys.argv[1] == "halo":
            halo.exchange(wm.zeros(5))
        elif cart.rank == 1 and sys.argv[1] == "barrier":
            cart.Barrier()
        elif cart.rank == 1:
            wm.shared_full(3, 1, comm=cart)
        else:
            wm.shared_zeros(3, comm=cart)
    except (RuntimeError, TypeError) as error:
        open(sys.argv[2] + str(cart.rank), "w").write(str(error))
    MPI.COMM_WORLD.Barrier()
    os._exit(1)
"""


@pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    ("other", "name"),
    [
        ("halo", "an exchange of a halo"),
        ("barrier", "Barrier"),
        ("full", "is in another collective call"),
    ],
)
def test_another_collective_call_is_named_as_the_cause(tmp_path, other, name):
    told = tmp_path / "told"
    ranks.run_text(tmp_path, MET, other, told, ranks=2, died=True)
    for rank in range(2):
        text = Path(f"{told}{rank}").read_text()
        assert name in text
        assert "shared_" in text or "making of a shared array" in text
