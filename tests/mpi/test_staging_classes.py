# SPDX-License-Identifier: BSD-3-Clause
"""Files, windows, packing and Reduce_local on GPU memory."""

import os
import tempfile

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import warpmpi as wm
from cases import STAGED, Staged

pytestmark = pytest.mark.skipif(
    not wm.is_cuda_available(), reason="needs a GPU"
)
DEVICE = [kind for kind in kinds.KINDS if kind not in kinds.HOST_KINDS]


@pytest.fixture
def file(world):
    path = os.path.join(tempfile.gettempdir(), f"staging-{os.getpid()}")
    path = world.bcast(path)
    mode = MPI.MODE_CREATE | MPI.MODE_RDWR | MPI.MODE_DELETE_ON_CLOSE
    opened = MPI.File.Open(world, path, mode)
    opened.Set_view(0, MPI.DOUBLE)
    yield Staged(opened)
    opened.Close()


def pair(rank=0):
    """Something to write and something to read it into."""
    written = kinds.make(DEVICE[rank % len(DEVICE)], np.arange(4.0) + rank)
    read = kinds.make(DEVICE[(rank + 1) % len(DEVICE)], np.full(4, -1.0))
    return written, read


@pytest.mark.parametrize("form", ["", "_all"])
@pytest.mark.parametrize("nonblocking", [False, True])
def test_file_at_offsets(world, file, form, nonblocking):
    written, read = pair(world.rank)
    mine = 4 * world.rank
    prefix = "I" if nonblocking else ""
    write = getattr(file, f"{prefix}Write_at{form}".replace("IW", "Iw"))
    got = getattr(file, f"{prefix}Read_at{form}".replace("IR", "Ir"))
    status = MPI.Status()
    if nonblocking:
        write(mine, written).Wait()
        world.Barrier()
        got(mine, read).Wait(status)
    else:
        write(mine, written)
        world.Barrier()
        got(mine, read, status)
    assert (kinds.values_of(read) == kinds.values_of(written)).all()
    assert status.Get_count(MPI.DOUBLE) == 4


def test_reading_beyond_the_end_leaves_the_rest(world, file):
    written, read = pair(world.rank)
    file.Write_at_all(4 * world.rank, written)
    world.Barrier()
    status = MPI.Status()
    last = 4 * world.size - 2
    file.Read_at(last, read, status)  # Iread_at: Open MPI 5.0 never ends it
    assert status.Get_count(MPI.DOUBLE) == 2
    end = world.size - 1 + np.array([2.0, 3.0])
    assert list(kinds.values_of(read)) == [*end, -1, -1]
    requests = [file.Iread_at(last, [read, (1, 3), MPI.DOUBLE])]
    MPI.Request.Waitall(requests, [status])
    assert status.Get_count(MPI.DOUBLE) == 1
    assert list(kinds.values_of(read)) == [*end, -1, end[0]]


@pytest.mark.parametrize("form", ["_all", "_at_all", "_ordered"])
def test_split_calls(world, file, form):
    written, read = pair(world.rank)
    at = (4 * world.rank,) if "_at" in form else ()
    if form == "_all":
        file.Seek(4 * world.rank)
    getattr(file, f"Write{form}_begin")(*at, written)
    getattr(file, f"Write{form}_end")(written)
    world.Barrier()
    file.Seek(4 * world.rank)
    file.Seek_shared(0)
    getattr(file, f"Read{form}_begin")(*at, [read, 2, 1, MPI.DOUBLE])
    status = MPI.Status()
    getattr(file, f"Read{form}_end")([read, 2, 1, MPI.DOUBLE], status)
    assert status.Get_count(MPI.DOUBLE) == 2
    if form != "_ordered":
        expected = [-1, world.rank, world.rank + 1, -1]
        assert list(kinds.values_of(read)) == expected
    with pytest.raises(ValueError, match="no split call"):
        getattr(file, f"Read{form}_end")(read)


@pytest.mark.parametrize("name", ["", "_shared"])
@pytest.mark.parametrize("nonblocking", [False, True])
def test_individual_and_shared_pointers(world, file, name, nonblocking):
    values = kinds.make("device", np.full(3, 7.0))
    into = kinds.make("device", np.zeros(3))
    for call, buffer in ("Write", values), ("Read", into):
        file.Seek(0)
        file.Seek_shared(0)
        world.Barrier()
        if nonblocking:
            getattr(file, f"I{call.lower()}{name}")(buffer).Wait()
        else:
            getattr(file, call + name)(buffer)
        world.Barrier()
    assert (kinds.values_of(into) == 7).all()


@pytest.mark.parametrize("kind", ["host", "device"])
@pytest.mark.parametrize("way", ["nonblocking", "split", "collective"])
def test_files_beside_the_progress_thread(world, file, kind, way):
    """Open MPI's requests of files survive no second thread."""
    comm = wm.Comm(world)
    peer = comm.rank ^ 1 if comm.rank ^ 1 < comm.size else comm.rank
    late = comm.Irecv(np.zeros(1), peer)  # the thread looks for it
    written = kinds.make(kind, np.arange(3.0) + comm.rank)
    read = kinds.make(kind, np.zeros(3))
    status = MPI.Status()
    for _ in range(100):
        at = 4 * comm.rank
        if way == "collective":
            file.Write_at_all(at, written)
            file.Read_at_all(at, read, status)
        elif way == "split":
            file.Write_at_all_begin(at, written)
            file.Write_at_all_end(written)
            file.Read_at_all_begin(at, read)
            file.Read_at_all_end(read, status)
        else:
            file.Iwrite_at_all(at, written).Wait()
            file.Iread_at(at, read).Wait(status)
        assert status.Get_count(MPI.DOUBLE) == 3
    assert (kinds.values_of(read) == kinds.values_of(written)).all()
    comm.Send(np.ones(1), peer)
    late.Wait()


@pytest.mark.parametrize("kind", ["host", "device"])
def test_writes_in_the_order_of_ranks(world, file, kind):
    values = kinds.make(kind, np.full(2, world.rank + 1.0))
    file.Seek_shared(0)
    for _ in range(3):
        status = MPI.Status()
        file.Write_ordered(values, status)
        assert status.Get_count(MPI.DOUBLE) == 2
    world.Barrier()
    read = np.zeros(6 * world.size)
    file.Read_at(0, read)
    once = np.repeat(np.arange(world.size) + 1.0, 2)
    assert (read == np.tile(once, 3)).all()


def test_split_calls_out_of_turn(world, file):
    written = kinds.make("device", np.arange(3.0))
    other = kinds.make("device", np.zeros(3))
    file.Write_at_all_begin(4 * world.rank, np.ones(3))
    with pytest.raises(MPI.Exception) as raised:
        file.Write_at_all_begin(4 * world.rank, written)
    ours = "Open MPI" in MPI.Get_library_version()
    if ours:  # else the first one is MPI's own, and so is the error
        assert_told(raised, "call its _end method before another _begin")
    with pytest.raises(ValueError, match="no split call"):
        file.Write_at_all_end(other)
    file.Write_at_all_end(np.ones(3))
    file.Write_at_all_begin(4 * world.rank, written)
    with pytest.raises(MPI.Exception) as raised:
        file.Read_at_all_begin(4 * world.rank, np.ones(3))
    if ours:
        assert_told(raised, "call its _end method before another _begin")
    file.Write_at_all_end(written)
    if ours:
        with pytest.raises(MPI.Exception) as raised:
            file.Write_at_all_end(np.ones(3))
        assert_told(raised, "Write_at_all_end: no split call of this file")


def assert_told(raised, words):
    """An error of ours says what to do, where exceptions have notes."""
    if hasattr(raised.value, "add_note"):
        assert words in raised.value.__notes__[0]


@pytest.fixture
def window(world):
    memory = np.zeros(4 * world.size)
    try:
        made = MPI.Win.Create(memory, 8, comm=world)
    except (MPI.Exception, NotImplementedError):
        pytest.skip("this MPI has no windows here")
    staged = Staged(made)
    staged.memory = memory
    yield staged
    made.Free()


def test_put_and_get_between_fences(world, window):
    right = (world.rank + 1) % world.size
    values = kinds.make("device", np.full(4, world.rank + 1.0))
    into = kinds.make("pool", np.full(6, -1.0))
    window.Fence()
    window.Put(values, right, 4 * world.rank)
    values.fill_(9.0)  # its staging copy goes, not the array
    window.Fence()
    window.Get([into, (4, 1), MPI.DOUBLE], right, 4 * world.rank)
    assert (kinds.values_of(into) == -1).all()
    window.Fence()
    expected = [-1, *[world.rank + 1.0] * 4, -1]
    assert list(kinds.values_of(into)) == expected
    left = (world.rank - 1) % world.size
    assert (window.memory[4 * left : 4 * left + 4] == left + 1).all()


@pytest.mark.parametrize("end", ["Flush", "Flush_local", "Unlock"])
def test_one_ranks_calls_end_with_its_synchronization(world, window, end):
    window.memory[:] = 100.0 + world.rank
    world.Barrier()
    gets = []
    for rank in range(world.size):
        window.Lock(rank, MPI.LOCK_SHARED)
        into = kinds.make("device", np.zeros(1))
        window.Get(into, rank)
        gets.append(into)
    for rank, into in enumerate(gets):
        assert kinds.values_of(into)[0] == 0
        getattr(window, end)(rank)
        assert kinds.values_of(into)[0] == 100 + rank
    for rank in range(world.size):
        if end != "Unlock":
            window.Unlock(rank)
    world.Barrier()


def test_accumulate_and_its_kin(world, window):
    one = kinds.make("device", np.ones(1))
    before = kinds.make("device", np.full(1, -1.0))
    window.Lock_all()
    window.Accumulate(one, 0)
    window.Flush_all()
    world.Barrier()
    window.Fetch_and_op(np.zeros(1), before, 0, op=MPI.NO_OP)
    window.Flush_local_all()
    assert kinds.values_of(before)[0] == world.size
    world.Barrier()
    window.Get_accumulate(one, before, 0)
    window.Rput(kinds.make("device", np.full(1, 3.0)), world.rank, 1).Wait()
    window.Flush_all()
    assert world.size <= kinds.values_of(before)[0] < 2 * world.size
    MPI.Request.Waitall([window.Rget(before, world.rank, 1)])
    assert kinds.values_of(before)[0] == 3
    window.Raccumulate(one, world.rank, 1).Wait()
    window.Flush_all()
    window.Rget_accumulate(one, before, world.rank, 1).Wait()
    assert kinds.values_of(before)[0] == 4
    window.Unlock_all()
    window.Get(before, MPI.PROC_NULL)
    world.Barrier()


def test_compare_and_swap(world):
    made = MPI.Win.Allocate(8, 8, comm=world)
    np.asarray(made.tomemory()).view("i8")[:] = 5
    window = Staged(made)
    world.Barrier()
    new, old = (kinds.make("device", np.full(1, v, "i8")) for v in (6, 5))
    found = kinds.make("device", np.zeros(1, "i8"))
    window.Lock(world.rank)
    window.Compare_and_swap(new, old, found, world.rank)
    window.Unlock(world.rank)
    assert kinds.values_of(found)[0] == 5
    window.Lock(world.rank)
    window.Compare_and_swap(new, old, found, world.rank)
    window.Unlock(world.rank)
    assert kinds.values_of(found)[0] == 6
    made.Free()


def test_start_and_complete(world, window):
    group = world.Get_group().Incl([world.rank])
    into = kinds.make("device", np.zeros(2))
    window.memory[:2] = 5.0
    window.Post(group)
    window.Start(group)
    window.Get(into, world.rank)
    window.Complete()
    window.Wait()
    assert (kinds.values_of(into) == 5).all()
    group.Free()


def test_gpu_memory_is_no_window_of_mpi(world, window):
    array = kinds.make("device", np.zeros(4))
    create = STAGED[MPI.Win, "Create"].__get__(None, MPI.Win)
    ours = create(memory=array, comm=MPI.COMM_SELF)
    assert isinstance(ours, wm.Win)
    ours.Free()
    with pytest.raises(TypeError, match="takes host memory alone"):
        window.Attach(array)
    made = create(np.zeros(3), comm=MPI.COMM_SELF)
    assert type(made) is MPI.Win
    made.Free()


def test_pack_and_unpack(world):
    comm = MPI.COMM_SELF
    double = Staged(MPI.DOUBLE)
    values = kinds.make("device", np.arange(3.0))
    packed = kinds.make("device", np.full(60, 255, np.uint8))
    end = double.Pack(values, packed, 4, comm)
    assert end == 28
    got = kinds.values_of(packed)
    assert (got[4:28].view("f8") == np.arange(3.0)).all()
    assert (got[:4] == 255).all()
    assert (got[28:] == 255).all()
    into = kinds.make("device", np.zeros(3))
    assert double.Unpack(packed, 4, into, comm) == 28
    assert (kinds.values_of(into) == np.arange(3.0)).all()
    # Elements with gaps leave what is between them.
    apart = MPI.DOUBLE.Create_resized(0, 16).Commit()
    into = kinds.make("device", np.full(6, -1.0))
    Staged(apart).Unpack(packed, 4, into, comm)
    assert list(kinds.values_of(into)) == [0, -1, 1, -1, 2, -1]
    apart.Free()
    end = double.Pack_external("external32", values, packed, 0)
    assert double.Unpack_external("external32", packed, 0, into) > 0
    assert end == 24
    assert list(kinds.values_of(into)[:3]) == [0, 1, 2]


def test_reduce_local():
    total = kinds.make("device", np.arange(4.0))
    Staged(MPI.SUM).Reduce_local(np.full(2, 10.0), [total, (2, 1)])
    assert list(kinds.values_of(total)) == [0, 11, 12, 3]
    Staged(MPI.SUM).Reduce_local(total, total)
    assert list(kinds.values_of(total)) == [0, 22, 24, 6]


def test_each_call_is_counted():
    wm.reset_stats()
    total = kinds.make("device", np.arange(4.0))
    Staged(MPI.SUM).Reduce_local(np.ones(4), np.ones(4))
    assert wm.stats()["staged_calls"] == 0
    Staged(MPI.SUM).Reduce_local(np.ones(4), total)
    assert wm.stats()["staged_calls"] == 1
    assert wm.stats()["staged_bytes"] == 64


def test_addresses_in_gpu_memory(world):
    """MPI.BOTTOM with datatypes that lead there."""
    comm = wm.Comm(world)
    size = comm.size
    values = kinds.make("foreign", np.full(2 * size, comm.rank + 1.0))
    into = kinds.make("foreign", np.full(2 * size + 2, -1.0))
    first = MPI.DOUBLE.Create_hindexed_block(1, [values.pointer]).Commit()
    last = MPI.DOUBLE.Create_hindexed_block(1, [into.pointer + 8]).Commit()
    steps = [16 * rank for rank in range(size)]
    comm.Alltoallw(
        [MPI.BOTTOM, ([1] * size, steps), [first] * size],
        (MPI.BOTTOM, [1] * size, steps, [last] * size),
    )
    expected = np.full(2 * size + 2, -1.0)
    expected[1 : 1 + 2 * size : 2] = np.arange(size) + 1.0
    assert (kinds.values_of(into) == expected).all()
    gathered = np.zeros(size)
    comm.Iallgather([MPI.BOTTOM, 1, first], gathered).Wait()
    assert (gathered == np.arange(size) + 1.0).all()
    first.Free()
    last.Free()


@pytest.mark.parametrize("kind", kinds.DEVICE_KINDS)
@pytest.mark.parametrize("dtype", ["int8", "float32", "complex128"])
def test_reduce_local_stays_on_the_gpu(kind, dtype):
    a = kinds.make(kind, np.arange(1000).astype(dtype))
    b = kinds.make(kind, np.full(1000, 2, dtype))
    wm.reset_stats()
    Staged(MPI.PROD).Reduce_local(a, b)
    Staged(MPI.SUM).Reduce_local([a, 7], [b, 7])
    assert wm.stats()["staged_calls"] == 0
    right = np.arange(1000).astype(dtype) * np.array(2, dtype)
    right[:7] += np.arange(7).astype(dtype)
    np.testing.assert_array_equal(kinds.values_of(b), right)


def test_reduce_local_in_the_order_of_mpi():
    pair = np.dtype([("value", "f8"), ("index", "i4")], align=True)
    first, second = np.zeros(4, pair), np.zeros(4, pair)
    first["value"], second["value"] = [1, 2, 3, 4], [4, 2, 3, 1]
    first["index"], second["index"] = 5, [1, 2, 9, 4]
    a = kinds.make("device", first.view(np.uint8))
    b = kinds.make("device", second.view(np.uint8))
    wm.reset_stats()
    words = [a, MPI.DOUBLE_INT], [b, MPI.DOUBLE_INT]
    Staged(MPI.MINLOC).Reduce_local(*words)
    found = kinds.values_of(b).view(pair)
    assert found["value"].tolist() == [1, 2, 3, 1]
    assert found["index"].tolist() == [5, 2, 5, 4]
    assert wm.stats()["staged_calls"] == 0


def test_reduce_local_of_what_does_not_fit():
    a, b = (kinds.make("device", np.zeros(n)) for n in (3, 4))
    with pytest.raises(ValueError, match="mismatch"):
        Staged(MPI.SUM).Reduce_local(a, b)
    with pytest.raises(MPI.Exception):
        Staged(MPI.BAND).Reduce_local(a, kinds.make("device", np.zeros(3)))
