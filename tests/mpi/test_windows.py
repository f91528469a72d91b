# SPDX-License-Identifier: BSD-3-Clause
"""Windows over GPU memory, against a model that each rank computes."""

import ctypes
import os
import textwrap
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from mpi4py import MPI

import graphs
import kinds
import ranks
import warpmpi as wm
from cases import STAGED as INSTALLED
from warpmpi import _windows

pytestmark = pytest.mark.skipif(
    not wm.is_cuda_available(), reason="needs a GPU"
)
SEED = int(os.environ.get("WARPMPI_TEST_SEED", "1"))
FULL = os.environ.get("WARPMPI_TEST_FULL") == "1"
BYTES = 4096  # of a part
ORIGINS = ("host", "pinned", "device", "foreign", "pool", "managed")
SYNC = MPI.ERR_RMA_SYNC


@pytest.fixture
def comm(world):
    return wm.Comm(world)


def opened(comm, memory, unit=1):
    return wm.Win.Create(memory, unit, comm=comm)


def gpu_memory():
    return MPI.Info.Create({"mpi_memory_alloc_kinds": "cuda"})


def bytes_of(count, seed):
    return np.random.default_rng(seed).integers(0, 255, count, "uint8")


def wrong(error_class):
    """Expects an exception of a class of MPI's."""

    class Expected:
        def __enter__(self):
            return self

        def __exit__(self, kind, error, trace):
            assert kind is MPI.Exception, (kind, error)
            assert error.Get_error_class() == error_class, error
            return True

    return Expected()


def plan(size, seed):
    """Puts and gets of all ranks, each in its own share of each part."""
    random = np.random.default_rng(seed)
    share = BYTES // size
    calls = []
    for rank in range(size):
        for target in range(size):
            for _ in range(3):
                length = int(random.integers(0, share // 3))
                at = rank * share + int(random.integers(0, share - length))
                kind = ORIGINS[random.integers(len(ORIGINS))]
                data = bytes_of(length, random.integers(1 << 30))
                calls.append((rank, target, at, kind, data))
    return calls


def play(comm, win, model, seed):
    """Put by the plan; returns what is kept until the calls have ended."""
    kept = []
    for rank, target, at, kind, data in plan(comm.size, seed):
        model[target][at : at + data.size] = data
        if rank == comm.rank:
            origin = kinds.make(kind, data)
            win.Put(origin, target, at)
            kept.append(origin)
    return kept


def check(comm, win, model, memory, seed):
    """Get parts of all ranks into arrays of any kind."""
    assert np.array_equal(kinds.values_of(memory), model[comm.rank])
    random = np.random.default_rng([seed, comm.rank])
    gotten = []
    for _ in range(8):
        target = int(random.integers(comm.size))
        length = int(random.integers(0, BYTES))
        at = int(random.integers(0, BYTES - length))
        kind = ORIGINS[random.integers(len(ORIGINS))]
        array = kinds.make(kind, np.zeros(length, "uint8"))
        win.Get(array, target, at)
        gotten.append((array, model[target][at : at + length].copy()))
    return gotten


@pytest.mark.parametrize(
    "kind", ["device", "foreign", "pool", "managed", "mixed"]
)
@pytest.mark.parametrize("seed", range(20 if FULL else 4))
def test_random_puts_and_gets_between_fences(comm, kind, seed):
    seed += 1000 * SEED
    if kind == "mixed":
        kind = ("device", "host", "pinned", "managed")[comm.rank % 4]
    model = [np.zeros(BYTES, "uint8") for _ in range(comm.size)]
    memory = kinds.make(kind, model[comm.rank])
    win = opened(comm, memory)
    win.Fence()
    for epoch in range(3):
        kept = play(comm, win, model, 10 * seed + epoch)
        win.Fence()
        del kept
        gotten = check(comm, win, model, memory, seed)
        win.Fence()
        for array, expected in gotten:
            assert np.array_equal(kinds.values_of(array), expected)
    win.Free()


@pytest.mark.parametrize("kind", ["device", "pool"])
@pytest.mark.parametrize("held", ["lock", "lock_all"])
def test_puts_under_locks(comm, held, kind):
    model = [np.zeros(BYTES, "uint8") for _ in range(comm.size)]
    memory = kinds.make(kind, model[comm.rank])
    win = opened(comm, memory)
    for target in range(comm.size):
        if held == "lock":
            win.Lock(target, MPI.LOCK_SHARED)
        elif target == 0:
            win.Lock_all()
    kept = play(comm, win, model, SEED)
    for target in range(comm.size):
        if held == "lock":
            win.Unlock(target)
    if held == "lock_all":
        win.Flush_all()
        win.Unlock_all()
    del kept
    comm.Barrier()
    assert np.array_equal(memory.numpy(), model[comm.rank])
    win.Free()


def test_put_flush_get(comm):
    win = opened(comm, wm.zeros(16, "int64"), 8)
    other = (comm.rank + 1) % comm.size
    win.Lock_all()
    for value in range(10):
        win.Put(wm.full(1, value, "int64"), other, comm.rank)
        win.Flush(other)
        got = wm.zeros(1, "int64")
        win.Get(got, other, comm.rank)
        win.Flush_local(other)
        assert got.numpy()[0] == value
    win.Unlock_all()
    win.Free()


def test_later_puts_win(comm):
    """Calls to the same place are done in their order."""
    win = opened(comm, wm.zeros(4096, "float32"), 4)
    win.Fence()
    for value in range(40):
        count = 4096 if value % 3 == 0 else 4096 - value
        win.Put(wm.full(count, value, "float32"), comm.rank)
    win.Fence()
    last = wm.empty(4096, "float32")
    win.Get(last, comm.rank)
    win.Fence()
    values = last.numpy()
    assert values[0] == 39
    assert values[4095] == 39 if 39 % 3 == 0 else values[4095]
    win.Free()


TYPES = "int8 uint8 int16 uint16 int32 int64 uint64 float16 float32".split()
TYPES += ["float64", "complex64", "complex128"]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("kind", ["device", "host"])
def test_accumulate(comm, dtype, kind):
    count = 300
    win = opened(comm, wm.zeros(count, dtype), np.dtype(dtype).itemsize)
    part = np.arange(count - 7) % 5
    origin = kinds.make(kind, part.astype(dtype))
    win.Fence()
    for target in range(comm.size):
        win.Accumulate(origin, target, 7)
    win.Fence()
    expected = np.zeros(count, dtype)
    expected[7:] = part * comm.size
    assert np.array_equal(win.tomemory().numpy(), expected)
    win.Accumulate(origin, comm.rank, 7, MPI.REPLACE)
    win.Fence()
    assert np.array_equal(win.tomemory().numpy()[7:], part.astype(dtype))
    win.Free()


OPS = "SUM PROD MIN MAX BAND BOR BXOR LAND LOR LXOR".split()


@pytest.mark.parametrize("name", OPS)
def test_get_accumulate(comm, name):
    begin = np.arange(1, 65, dtype="int32")
    given = np.arange(64, dtype="int32") % 7
    win = opened(comm, wm.array(begin), 4)
    result = wm.zeros(64, "int32")
    win.Fence()
    op = getattr(MPI, name)
    win.Get_accumulate(wm.array(given), result, comm.rank, op=op)
    win.Fence()
    expected = begin.copy()
    op.Reduce_local(given, expected)
    assert np.array_equal(result.numpy(), begin)
    assert np.array_equal(win.tomemory().numpy(), expected)
    now = np.zeros(64, "int32")
    win.Get_accumulate(None, now, comm.rank, op=MPI.NO_OP)
    win.Fence()
    assert np.array_equal(now, expected)
    win.Free()


@pytest.mark.parametrize("kind", ["host", "device", "pinned"])
def test_numbers_drawn_from_a_counter(comm, kind):
    win = opened(comm, wm.zeros(1, "int64"), 8)
    one, drawn = kinds.make(kind, np.ones(1, "int64")), []
    win.Lock_all()
    for _ in range(25):
        number = kinds.make(kind, np.zeros(1, "int64"))
        win.Fetch_and_op(one, number, 0)
        win.Flush(0)
        drawn.append(int(kinds.values_of(number)[0]))
    win.Unlock_all()
    assert drawn == sorted(drawn)
    of_all = np.concatenate(comm.allgather(drawn))
    assert sorted(of_all) == list(range(25 * comm.size))
    win.Free()


@pytest.mark.parametrize("kind", ["host", "device"])
@pytest.mark.parametrize("window", ["device", "pool", "host"])
def test_compare_and_swap(comm, window, kind):
    """One rank alone finds the place free."""
    win = opened(comm, kinds.make(window, np.full(2, -1, "int32")), 4)
    mine = np.full(1, comm.rank, "int32")
    free = kinds.make(kind, np.full(1, -1, "int32"))
    found = np.zeros(1, "int32")
    comm.Barrier()
    win.Lock(0, MPI.LOCK_SHARED)
    win.Compare_and_swap(mine, free, found, 0, 1)
    win.Unlock(0)
    comm.Barrier()
    winner = wm.zeros(2, "int32")
    win.Lock(0, MPI.LOCK_SHARED)
    win.Get(winner, 0)
    win.Unlock(0)
    winner = winner.numpy()
    assert winner[0] == -1
    assert (found[0] == -1) == (winner[1] == comm.rank)
    assert found[0] in (-1, winner[1])
    win.Free()


@pytest.mark.ranks(2)
def test_compare_and_swap_off_its_size(comm):
    """No GPU swaps such an element at once; the CPU does."""
    win = opened(comm, wm.zeros(16, "uint8"), 1)
    new, old = np.full(1, 7, "int32"), np.full(1, 5, "int32")
    found = np.zeros(1, "int32")
    win.Lock_all()
    win.Compare_and_swap(new, old, found, 0, 2)
    win.Flush(0)
    assert found[0] == 0
    comm.Barrier()
    win.Compare_and_swap(new, found, old, 0, 2)
    win.Flush(0)
    assert sorted(comm.allgather(int(old[0]))) == [0] + [7] * (comm.size - 1)
    got = np.full(16, 1, "uint8")
    win.Get(got, 0)
    win.Unlock_all()
    assert got.tolist() == [0, 0, 7] + [0] * 13
    win.Free()


def test_exclusive_locks(comm):
    """A number that is read and written back in two calls."""
    win = opened(comm, wm.zeros(1, "int64"), 8)
    number = wm.zeros(1, "int64")
    for _ in range(20):
        win.Lock(0)
        win.Get(number, 0)
        win.Flush(0)
        number.assign(number.numpy() + 1)
        win.Put(number, 0)
        win.Unlock(0)
    comm.Barrier()
    win.Lock(0, MPI.LOCK_SHARED)
    win.Get(number, 0)
    win.Unlock(0)
    assert number.numpy()[0] == 20 * comm.size
    win.Free()


def in_threads(calls):
    """Each in a thread of its own; raises what one has raised."""
    with ThreadPoolExecutor(len(calls)) as pool:
        for each in [pool.submit(call) for call in calls]:
            each.result()


def test_threads_take_locks_at_once(comm):
    """One that waits for a lock holds up none that gives another back."""
    memory = wm.zeros(1, "int64")
    win = opened(comm, memory, 8)
    mine = [threading.Lock() for _ in range(comm.size)]

    def count(seed):
        value = np.zeros(1, "int64")
        for target in np.random.default_rng(seed).permutation(12) % comm.size:
            with mine[target]:
                win.Lock(int(target))
                win.Get(value, int(target))
                win.Flush(int(target))
                win.Put(value + 1, int(target))
                win.Unlock(int(target))

    in_threads([partial(count, 3 * comm.rank + i) for i in range(3)])
    comm.Barrier()
    per_thread = [list(range(12))[i :: comm.size] for i in range(comm.size)]
    expected = 3 * comm.size * len(per_thread[comm.rank])
    assert memory.numpy()[0] == expected
    win.Free()


def test_threads_start_and_post_at_once(comm):
    """Neither waits for what the other is to do."""
    memory, other = wm.zeros(1, "int64"), (comm.rank + 1) % comm.size
    left = (comm.rank - 1) % comm.size
    win = opened(comm, memory, 8)
    group = comm.Get_group()

    def access(value):
        win.Start(group.Incl([other]))
        win.Put(np.full(1, value), other)
        win.Complete()

    def expose():
        win.Post(group.Incl([left]))
        win.Wait()

    for value in range(20):
        in_threads([partial(access, value), expose])
        assert memory.numpy()[0] == value
    win.Free()


def test_post_start_complete_wait(comm):
    """Around a ring, several times, and then with oneself."""
    memory = wm.zeros(4, "int32")
    win = opened(comm, memory, 4)
    group = comm.Get_group()
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    for value in range(5):
        win.Post(group.Incl([left]))
        win.Start(group.Incl([right]))
        win.Put(wm.full(4, 10 * value + comm.rank, "int32"), right)
        win.Complete()
        assert win.Wait() is True
        assert np.all(memory.numpy() == 10 * value + left)
    win.Post(group.Incl([comm.rank]))
    win.Start(group.Incl([comm.rank]))
    assert not win.Test()
    win.Complete()
    while not win.Test():
        pass
    win.Free()


@pytest.mark.long
@pytest.mark.ranks(4)
def test_many_windows_with_epochs(comm):
    """More than have words for them, which all ranks together share."""
    memory = wm.zeros(4, "int32")
    windows = [opened(comm, memory, 4) for _ in range(260)]
    group, right = comm.Get_group(), (comm.rank + 1) % comm.size
    for win in (windows[0], windows[-1]):
        win.Post(group)
        win.Start(group)
        win.Put(wm.full(1, comm.rank + 1, "int32"), right, comm.rank)
        win.Complete()
        win.Wait()
        assert memory.numpy().sum() == (comm.rank - 1) % comm.size + 1
    for win in windows:
        win.Free()


LAYOUTS = {
    "vector": ("Create_vector", (3, 2, 5), [0, 1, 5, 6, 10, 11]),
    "indexed": ("Create_indexed", ([1, 3, 2], [0, 4, 9]), [0, 4, 5, 6, 9, 10]),
}


@pytest.mark.parametrize("name", list(LAYOUTS))
@pytest.mark.parametrize("kind", ["host", "device"])
def test_datatypes(comm, name, kind):
    """Gaps on either side stay as they are."""
    maker, arguments, at = LAYOUTS[name]
    made = getattr(MPI.INT32_T, maker)(*arguments).Commit()
    elements = np.arange(60, dtype="int32")
    places = np.full(60, -1, "int32")
    expected = places.copy()
    expected[at] = data = elements[at]

    memory = wm.array(places)
    win = opened(comm, memory, 4)
    win.Fence()
    win.Put(kinds.make(kind, data), comm.rank, [0, 1, made])
    win.Fence()
    assert np.array_equal(memory.numpy(), expected)
    win.Put([kinds.make(kind, elements), 1, made], comm.rank, [0, 1, made])
    win.Fence()
    assert np.array_equal(memory.numpy(), expected)
    into = kinds.make(kind, places)
    win.Get([into, 1, made], comm.rank, [0, 1, made])
    win.Fence()
    assert np.array_equal(kinds.values_of(into), expected)
    win.Accumulate(
        [kinds.make(kind, elements), 1, made], comm.rank, [0, 1, made]
    )
    win.Fence()
    twice = np.where(expected == -1, -1, 2 * expected)
    assert np.array_equal(memory.numpy(), twice)
    win.Free()
    made.Free()


def test_strided_arrays(comm):
    values = np.arange(64, dtype="float32").reshape(8, 8)
    memory = wm.zeros(16, "float32")
    win = opened(comm, memory, 4)
    win.Fence()
    win.Put(wm.array(values)[::2, ::2], comm.rank)
    win.Fence()
    assert np.array_equal(memory.numpy(), values[::2, ::2].ravel())
    into = wm.zeros((8, 8), "float32")
    win.Get(into[:, 3:5], comm.rank)
    win.Fence()
    assert np.array_equal(into.numpy()[:, 3:5].ravel(), memory.numpy())
    assert not into.numpy()[:, :3].any()
    win.Free()


def test_requests(comm):
    memory = wm.zeros(4, "int64")
    win = opened(comm, memory, 8)
    win.Lock_all()
    one = wm.full(4, 5, "int64")
    requests = [win.Rput(one, comm.rank), win.Raccumulate(one, comm.rank)]
    MPI.Request.Waitall(requests)
    got, before = np.zeros(4, "int64"), np.zeros(4, "int64")
    win.Rget(got, comm.rank).Wait()
    win.Rget_accumulate(one, before, comm.rank).Wait()
    win.Unlock_all()
    assert got.tolist() == before.tolist() == [10] * 4
    assert memory.numpy().tolist() == [15] * 4
    win.Free()


@pytest.mark.parametrize("end", ["Wait", "Test", "Flush"])
def test_requests_of_large_columns(comm, end):
    """The engine delivers them piece by piece; Flush ends them as well."""
    values = bytes_of(3 << 20, SEED).view("int32")
    win = opened(comm, wm.array(values), 4)
    columns = np.zeros((len(values), 2), "int32")
    before = np.zeros_like(values)
    win.Lock_all()
    requests = [
        win.Rget(columns[:, 1], comm.rank),
        win.Rget_accumulate(before, before, comm.rank, op=MPI.NO_OP),
    ]
    if end == "Flush":
        requests[0].Test()
        win.Flush(comm.rank)
        assert all(each.Test() for each in requests)
    for each in requests:
        while not (each.Test() if end == "Test" else each.Wait()):
            pass
    win.Unlock_all()
    assert np.array_equal(columns[:, 1], values)
    assert not np.any(columns[:, 0])
    assert np.array_equal(before, values)
    win.Free()


def counted_calls():
    """Return a function that counts the calls of a name of the driver."""
    counted = kinds.driver().simcuda_calls
    counted.restype = ctypes.c_long
    return counted


@pytest.mark.skipif(kinds.is_real(), reason="needs the simulated driver")
def test_a_request_of_few_bytes_costs_as_much_as_a_flush(comm):
    """A word in host memory tells the end: there is no event."""
    calls, other = counted_calls(), (comm.rank + 1) % comm.size
    one = wm.zeros(1, "int64")
    win = opened(comm, wm.zeros(8, "int64"), 8)
    win.Lock_all()
    for begin in (win.Rput, win.Rget, win.Raccumulate):
        begin(one, other).Wait()
        names = b"EventRecord", b"EventQuery", b"LaunchKernel"
        before = [calls(name) for name in names]
        for _ in range(3):
            begin(one, other).Wait()
        assert [calls(name) for name in names] == [
            *before[:2],
            before[2] + 3,
        ]
    win.Unlock_all()
    win.Free()


@pytest.mark.skipif(kinds.is_real(), reason="needs the simulated driver")
def test_a_column_is_one_update(comm):
    """However many elements of the target it has: one kernel."""
    launches = counted_calls()
    memory, column = wm.zeros((100, 100), "float32"), wm.ones(100, "float32")
    kind = MPI.FLOAT.Create_vector(100, 1, 100).Commit()
    win = opened(comm, memory, 4)
    counts = []
    win.Lock(comm.rank)
    for target in ([0, 100], [3, 1, kind], [5, 1, kind]):
        before = launches(b"LaunchKernel")
        win.Accumulate(column, comm.rank, target)
        win.Flush(comm.rank)
        counts.append(launches(b"LaunchKernel") - before)
    win.Unlock(comm.rank)
    assert counts[1:] == counts[:1] * 2
    assert np.all(
        memory.numpy()[:, 3:6:2] == 1 + (np.arange(100) == 0)[:, None]
    )
    assert memory.numpy().sum() == 300
    win.Free()
    kind.Free()


@pytest.mark.parametrize("kind", ["host", "device", "pinned", "foreign"])
def test_requests_do_not_wait(comm, kind):
    """Their work is behind a stream that another call lets go on."""
    memory, stream = wm.zeros(8, "int64"), wm.Stream()
    win = opened(comm, memory, 8)
    before = kinds.make(kind, np.zeros(8, "int64"))
    got = kinds.make(kind, np.zeros(8, "int64"))
    origin = kinds.Foreign(8, "int64", "foreign", stream)
    origin.assign(np.arange(8))
    win.Lock_all()
    with kinds.Gate() as gate:
        gate.stop(stream)
        requests = [
            win.Rput(origin, comm.rank),
            win.Rget_accumulate(origin, before, comm.rank),
            win.Rget(got, comm.rank),
        ]
        assert not any(each.Test() for each in requests)
        gate.open()
        requests[2].Wait()
    assert kinds.values_of(got).tolist() == list(range(0, 16, 2))
    with kinds.Gate() as gate:
        gate.stop(stream)
        requests.append(win.Raccumulate(origin, comm.rank))
        gate.open()
        win.Flush(comm.rank)
        assert all(each.Test() for each in requests)
    win.Unlock_all()
    assert kinds.values_of(before).tolist() == list(range(8))
    assert memory.numpy().tolist() == list(range(0, 24, 3))
    win.Free()


def test_allocated(comm):
    info = MPI.Info.Create()
    info.Set("mpi_memory_alloc_kinds", "cuda:device")
    win = wm.Win.Allocate(8 * (comm.rank + 1), 8, info, comm)
    assert isinstance(win, MPI.Win)
    assert win.Get_attr(MPI.WIN_SIZE) == 8 * (comm.rank + 1)
    assert win.Get_attr(MPI.WIN_DISP_UNIT) == 8
    assert win.flavor == MPI.WIN_FLAVOR_ALLOCATE
    assert wm.is_on_device(win.tomemory())
    win.Fence()
    last = comm.size - 1
    win.Put(wm.full(1, comm.rank, "int64"), last, comm.rank)
    win.Fence()
    if comm.rank == last:
        values = win.tomemory().numpy().view("int64")
        assert values.tolist() == list(range(comm.size))
    with wrong(MPI.ERR_RMA_RANGE):
        win.Put(wm.full(1, 1, "int64"), 0, 1)
    win.Free()
    info.Free()


def test_shared(comm):
    info = MPI.Info.Create()
    info.Set("mpi_memory_alloc_kinds", "cuda")
    win = wm.Win.Allocate_shared(64, 8, info, comm)
    other = (comm.rank + 1) % comm.size
    memory, unit = win.Shared_query(other)
    assert (memory.nbytes, unit) == (64, 8)
    win.Fence()
    memory[...] = comm.rank + 1
    win.Fence()
    assert np.all(win.tomemory().numpy() == (comm.rank - 1) % comm.size + 1)
    win.Free()
    info.Free()


def test_a_rank_without_memory_has_an_empty_array(comm):
    memory = wm.zeros(8, "uint8") if comm.rank else None
    for win in (
        opened(comm, memory),
        wm.Win.Allocate(8 * comm.rank, 1, gpu_memory(), comm),
    ):
        if comm.size > 1:
            part, unit = win.Shared_query(0)
            assert (part.shape, part.dtype, unit) == ((0,), "uint8", 1)
            assert win.Shared_query(MPI.PROC_NULL)[0].shape == (8,)
        win.Free()


def test_what_is_no_intracommunicator(comm):
    part = MPI.COMM_WORLD.Split(MPI.COMM_WORLD.rank % 2)
    if MPI.COMM_WORLD.size > 1:
        side = 1 - MPI.COMM_WORLD.rank % 2
        inter = part.Create_intercomm(0, MPI.COMM_WORLD, side)
        with pytest.raises(TypeError, match="comm is Intercomm"):
            wm.Win.Create(wm.zeros(4), 8, comm=inter)
        inter.Free()
    for wrong_one in (3, None):
        with pytest.raises(TypeError, match="comm is"):
            wm.Win.Create(wm.zeros(4), 8, comm=wrong_one)
    part.Free()


class Own(MPI.Win):
    """A program's window, of any memory."""

    def Put(self, origin, target_rank, target=None):
        self.puts = getattr(self, "puts", 0) + 1
        super().Put(origin, target_rank, target)


def test_a_class_of_the_program(comm):
    """One that derives from MPI.Win keeps its methods, after install()."""
    create = INSTALLED[MPI.Win, "Create"].__func__
    memory = wm.zeros(4)
    win = create(Own, memory, 8, comm=comm)
    assert isinstance(win, Own) and type(win).__name__ == "Own"
    win.Fence()
    win.Put(np.ones(4), comm.rank)
    win.Fence()
    assert win.puts == 1 and memory.numpy().tolist() == [1] * 4
    assert type(create(Own, memory, 8, comm=comm)) is type(win)
    win.Free()


def test_one_window_has_one_object(comm):
    class Named(wm.Win):
        pass

    win = opened(comm, wm.zeros(4, "int32"), 4)
    assert wm.Win(win) is win
    with pytest.raises(TypeError, match="Named"):
        Named(win)
    win.Free()
    assert wm.Win(win) == MPI.WIN_NULL
    named = Named.Create(wm.zeros(4, "int32"), 4, comm=comm)
    assert Named(named) is named
    named.Free()


def test_outside_of_an_epoch(comm):
    win = opened(comm, wm.zeros(4, "int32"), 4)
    array = wm.zeros(4, "int32")
    for call in (
        lambda: win.Put(array, comm.rank),
        lambda: win.Flush(comm.rank),
        lambda: win.Unlock(comm.rank),
        lambda: win.Unlock_all(),
        lambda: win.Complete(),
        lambda: win.Wait(),
    ):
        with wrong(SYNC):
            call()
    win.Lock(comm.rank)
    with wrong(SYNC):
        win.Lock(comm.rank)
    with wrong(SYNC):
        win.Lock_all()
    if comm.size > 1:
        with wrong(SYNC):
            win.Put(array, (comm.rank + 1) % comm.size)
    win.Unlock(comm.rank)
    win.Free()


@pytest.mark.parametrize("call", ["Fence", "Free"])
def test_collectives_under_a_lock_fail_on_all(comm, call):
    win = opened(comm, wm.zeros(4, "int32"), 4)
    if comm.rank == 0:
        win.Lock(0)
    with wrong(SYNC):
        getattr(win, call)()
    if comm.rank == 0:
        win.Unlock(0)
    win.Free()


def test_bad_arguments(comm):
    win = opened(comm, wm.zeros(4, "int32"), 4)
    array = wm.zeros(4, "int32")
    win.Fence()
    with wrong(MPI.ERR_RMA_RANGE):
        win.Put(array, comm.rank, 1)
    with wrong(MPI.ERR_RMA_RANGE):
        win.Put(array, comm.rank, -1)
    with wrong(MPI.ERR_RANK):
        win.Put(array, comm.size)
    with pytest.raises(ValueError, match="same size"):
        win.Put(array, comm.rank, [0, 3])
    with pytest.raises(TypeError, match="displacement"):
        win.Put(array, comm.rank, "here")
    with wrong(MPI.ERR_OP):
        win.Accumulate(wm.zeros(1, "float32"), comm.rank, op=MPI.BAND)
    with pytest.raises(ValueError, match="one element"):
        win.Fetch_and_op(array, array, comm.rank)
    one = np.zeros(1, "int32")
    win.Fetch_and_op(None, one, comm.rank, op=MPI.NO_OP)
    with wrong(MPI.ERR_OP):
        win.Accumulate(np.zeros(1, "g"), comm.rank, op=MPI.BAND)
    for origin, match in (
        (array, "one element"),
        (np.zeros(1, "int8"), "different sizes"),
    ):
        with pytest.raises(ValueError, match=match):
            win.Fetch_and_op(origin, one, comm.rank, op=MPI.NO_OP)
    win.Put(array, MPI.PROC_NULL)
    win.Fence()
    win.Free()


def test_arrays_without_a_hold(comm):
    """Windows keep the arrays of calls until these have ended."""
    memory = wm.zeros(1 << 16, "int32")
    win = opened(comm, memory, 4)
    win.Fence()
    for at in range(100):
        win.Put(wm.full(512, at, "int32"), comm.rank, 512 * at)
    win.Fence()
    expected = np.repeat(np.arange(100), 512)
    assert np.array_equal(memory.numpy()[: expected.size], expected)
    win.Free()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("installed", [False, True])
def test_mixed_memory(comm, installed):
    """Odd ranks give host memory, which their engines serve."""
    values = np.arange(32, dtype="int64") + 100 * comm.rank
    on_host = comm.rank % 2 == 1
    memory = values.copy() if on_host else wm.array(values)
    create = INSTALLED[MPI.Win, "Create"].__func__ if installed else None
    if installed:
        win = create(MPI.Win, memory, 8, comm=comm)
    else:
        win = wm.Win.Create(memory, 8, comm=comm)
    win.Fence()
    for target in range(comm.size):
        for kind, at in (("host", 0), ("device", 1)):
            number = kinds.make(kind, np.full(1, comm.rank, "int64"))
            win.Put(number, target, 2 * comm.rank + at)
    win.Fence()
    got = wm.zeros(32, "int64"), np.zeros(32, "int64")
    for target in range(comm.size):
        for array in got:
            win.Get(array, target)
            win.Fence()
            expected = np.arange(32) + 100 * target
            writers = np.repeat(np.arange(comm.size), 2)
            expected[: writers.size] = writers
            assert np.array_equal(kinds.values_of(array), expected)
    win.Fence(MPI.MODE_NOSUCCEED)
    one, old = wm.ones(1, "int64"), wm.zeros(1, "int64")
    for target in range(2):
        win.Lock(target)
        win.Fetch_and_op(one, old, target, 31)
        win.Unlock(target)
    comm.Barrier()
    win.Lock_all()
    for target in range(2):
        win.Get(got[0], target)
        win.Flush(target)
        assert got[0].numpy()[31] == 31 + 100 * target + comm.size
    win.Unlock_all()
    win.Free()


def test_no_memory(comm):
    """A rank may give none."""
    memory = wm.zeros(8, "uint8") if comm.rank == 0 else None
    win = opened(comm, memory)
    win.Fence()
    win.Put(wm.full(1, comm.rank, "uint8"), 0, comm.rank)
    win.Fence()
    if comm.rank == 0:
        assert memory.numpy()[: comm.size].tolist() == list(range(comm.size))
    elif comm.size > 1:
        with wrong(MPI.ERR_RMA_RANGE):
            win.Put(wm.full(1, 1, "uint8"), 1)
    win.Fence()
    win.Free()


def test_windows_of_the_host_stay_those_of_mpi(comm):
    create = INSTALLED[MPI.Win, "Create"].__func__
    stock = _windows._stock["Create"].__get__(None, MPI.Win)
    try:
        stock(np.zeros(8), 8, comm=comm).Free()
    except MPI.Exception as error:
        pytest.skip(f"MPI has no window: {error}")
    win = create(MPI.Win, np.zeros(8), 8, comm=comm)
    assert type(win) is MPI.Win
    win.Free()


@pytest.mark.programs
def test_the_work_queue():
    program = ranks.ROOT / "examples" / "work_queue.py"
    words = "--size 96 --tile 24 --depth 30".split()
    printed = ranks.run(program, *words, ranks=2)
    assert "16 tiles" in printed
    assert "every point right" in printed


def dynamic(comm):
    try:
        return wm.Win.Create_dynamic(comm=comm)
    except MPI.Exception as error:
        pytest.skip(f"no dynamic window: {error}")


def test_attached_arrays(comm):
    win = dynamic(comm)
    assert win.flavor == MPI.WIN_FLAVOR_DYNAMIC
    arrays = [wm.zeros(64, "int32"), wm.zeros(16, "int32")]
    for array in arrays:
        win.Attach(array)
    addresses = comm.allgather([each.ptr for each in arrays])
    win.Fence()
    for target, (first, second) in enumerate(addresses):
        number = wm.full(1, comm.rank + 1, "int32")
        win.Put(number, target, first + 4 * comm.rank)
        win.Accumulate(number, target, second + 60)
    win.Fence()
    count = comm.size
    assert arrays[0].numpy()[:count].tolist() == list(range(1, count + 1))
    assert arrays[1].numpy()[15] == count * (count + 1) // 2
    with wrong(MPI.ERR_RMA_RANGE):
        win.Put(wm.zeros(2, "int32"), comm.rank, addresses[comm.rank][1] + 60)
    win.Fence(MPI.MODE_NOSUCCEED)
    win.Detach(arrays[0])
    with wrong(MPI.ERR_RMA_ATTACH):
        win.Detach(arrays[0])
    again = wm.full(64, 7, "int32")
    win.Attach(again)
    addresses = comm.allgather(again.ptr)
    got = wm.zeros(64, "int32")
    other = (comm.rank + 1) % comm.size
    win.Lock(other, MPI.LOCK_SHARED)
    win.Get(got, other, addresses[other])
    win.Unlock(other)
    assert np.all(got.numpy() == 7)
    comm.Barrier()
    win.Free()


def test_too_many_attached_arrays(comm):
    """One more is refused, and can be attached later."""
    win, memory = dynamic(comm), wm.zeros(300 * 8, "uint8")
    arrays, attached = [memory[8 * i : 8 * i + 8] for i in range(300)], 0
    with pytest.raises(MemoryError, match="detach some"):
        for array in arrays:
            win.Attach(array)
            attached += 1
    win.Detach(arrays[0])
    win.Attach(arrays[attached])
    comm.Barrier()
    win.Free()


@pytest.mark.ranks(2)
def test_allocated_with_other_kinds(comm):
    """A rank that asks for no GPU memory has memory of the host."""
    info = MPI.Info.Create()
    if comm.rank == 0:
        info.Set("mpi_memory_alloc_kinds", "cuda")
    win = wm.Win.Allocate(16, 8, info, comm)
    win.Fence()
    win.Put(wm.zeros(2, "int64"), comm.rank)  # memory comes as it is
    win.Fence()
    for target in range(comm.size):
        win.Accumulate(wm.full(2, comm.rank + 1, "int64"), target)
    win.Fence()
    total = comm.size * (comm.size + 1) // 2
    memory = win.tomemory()
    assert wm.is_on_device(memory) == (comm.rank == 0)
    values = memory.numpy() if comm.rank == 0 else np.frombuffer(memory)
    assert values.view("int64").tolist() == [total] * 2
    win.Free()
    info.Free()


def test_attached_host_memory(comm):
    win = dynamic(comm)
    memory = np.zeros(8, "int64")
    win.Attach(memory)
    addresses = comm.allgather(MPI.Get_address(memory))
    win.Fence()
    other = (comm.rank + 1) % comm.size
    win.Put(wm.full(8, 3, "int64"), other, addresses[other])
    win.Fence()
    assert np.all(memory == 3)
    win.Detach(memory)
    win.Free()


@pytest.mark.programs
@pytest.mark.skipif(kinds.is_real(), reason="needs the simulated driver")
def test_gpus_without_a_link(tmp_path):
    """Each target has one that updates it: its own GPU."""
    text = """
        import warpmpi as wm
        from mpi4py import MPI

        comm = wm.Comm(MPI.COMM_WORLD)
        wm.set_device(comm.rank)
        memory = wm.zeros(100, "int32")
        win = wm.Win.Create(memory, 4, comm=comm)
        served = wm.stats()["served_operations"]
        win.Fence()
        win.Put(wm.full(50, 3, "int32"), 1 - comm.rank, 50)
        win.Accumulate(wm.ones(50, "int32"), 1 - comm.rank)
        win.Accumulate(wm.ones(50, "int32"), comm.rank)
        win.Fence()
        assert memory.numpy().tolist() == [2] * 50 + [3] * 50
        served = wm.stats()["served_operations"] - served
        win.Free()
        print("served", served)
    """
    printed = ranks.run_text(
        tmp_path, text, ranks=2, SIMCUDA_DEVICES="2", SIMCUDA_LINK="0"
    )
    assert printed.count("served 1") == 2
    printed = ranks.run_text(tmp_path, text, ranks=2, SIMCUDA_DEVICES="2")
    assert printed.count("served 0") == 2


@pytest.mark.programs
def test_a_window_that_was_never_freed(tmp_path):
    text = """
        import os
        os.dup2(1, 2)
        import warpmpi as wm
        from mpi4py import MPI

        win = wm.Win.Create(wm.zeros(4), 8, comm=MPI.COMM_WORLD)
    """
    printed = ranks.run_text(tmp_path, text, WARPMPI_CHECK="1")
    told = "of a window of MPI_COMM_WORLD (size 2): the window was never freed"
    assert printed.count(told) == 2


@pytest.mark.programs
def test_a_fence_on_a_stream_between_hosts(tmp_path):
    text = """
        import os
        rank = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"]
        os.environ["WARPMPI_HOST"] = f"host {rank}"
        import warpmpi as wm
        from mpi4py import MPI

        win = wm.Win.Create(wm.zeros(4), 8, comm=MPI.COMM_WORLD)
        try:
            win.on(wm.Stream()).Fence()
        except ValueError as error:
            assert "a Fence on a stream needs" in str(error), error
            print("refused")
        win.Free()
    """
    assert ranks.run_text(tmp_path, text).count("refused") == 2


@pytest.mark.programs
def test_between_hosts():
    """The engines of the other host's ranks serve."""
    chosen = "locks or requests or datatypes or mixed or post_start"
    ranks.run_tests_between_hosts(__file__, "-k", chosen, timeout=200)


@pytest.mark.programs
def test_threads_take_locks_between_hosts():
    ranks.run_tests_between_hosts(__file__, "-k", "locks_at_once", count=3)


def test_on_a_stream(comm):
    """Fences, updates and gets that the host does not wait for."""
    memory = wm.zeros(64, "int64")
    win = opened(comm, memory, 8)
    stream = wm.Stream()
    on = win.on(stream)
    other = (comm.rank + 1) % comm.size
    got = wm.zeros(64, "int64")
    on.Fence()
    for value in range(1, 6):
        on.Put(wm.full(32, value + comm.rank, "int64"), other)
        on.Accumulate(wm.full(32, value, "int64"), other, 32)
        on.Fence()
        on.Get(got, other)
        on.Fence()
    expected = [5 + comm.rank] * 32 + [15] * 32
    assert got.numpy().tolist() == expected
    left = (comm.rank - 1) % comm.size
    assert memory.numpy().tolist() == [5 + left] * 32 + [15] * 32
    with pytest.raises(ValueError, match="page-locked"):
        on.Put(np.zeros(1, "int64"), other)
    win.Fence()
    win.Free()


@pytest.mark.skipif(
    len(wm.get_cuda_devices()) < 2, reason="needs two GPUs in a process"
)
def test_a_stream_of_another_gpu_is_refused(comm):
    """Each call says so, and Fence fails on all ranks."""
    win = opened(comm, wm.zeros(64, "int64"), 8)
    own = wm.get_device()
    other = next(each for each in wm.get_cuda_devices() if each != own)
    on, group = win.on(wm.Stream(device=other)), comm.Get_group()
    for _ in range(2):
        if comm.rank == 0:
            with pytest.raises(ValueError, match=r"^stream: it is of cuda:"):
                on.Fence()
        else:
            stream = wm.Stream()
            with pytest.raises(RuntimeError, match="rank 0 failed"):
                win.on(stream).Fence()
                stream.synchronize()
    for call in (
        lambda: on.Post(group),
        lambda: on.Start(group),
        lambda: on.Put(wm.zeros(8, "int64"), comm.rank),
    ):
        with pytest.raises(ValueError, match=r"^stream: it is of cuda:"):
            call()
        win.on(wm.Stream()).Fence()
    win.Fence()
    win.Free()


def test_strided_page_locked_arrays_follow_their_stream(comm):
    """A get on the stream fills one before a put there reads it."""
    begin = np.arange(16) + 100 * comm.rank
    memory, stream = wm.array(begin), wm.Stream()
    win = opened(comm, memory, 8)
    on, other = win.on(stream), (comm.rank + 1) % comm.size
    source = kinds.make("pinned", np.zeros(16, "int64"))
    into = kinds.make("pinned", np.zeros(16, "int64"))
    on.Fence()
    on.Get(source, comm.rank)
    on.Fence()
    on.Put(source[::2], other)
    on.Fence()
    on.Get(into[1::2], comm.rank, [0, 8])
    stream.synchronize()
    left = (comm.rank - 1) % comm.size
    assert into.numpy()[1::2].tolist() == [
        2 * i + 100 * left for i in range(8)
    ]
    win.Fence()
    win.Free()


@pytest.mark.parametrize("ends", ["fence", "complete"])
def test_a_stream_tells_the_end_of_calls_without_one(comm, ends):
    """They are done when others may look, and begin after the stream."""
    memory, stream = wm.zeros(1 << 16, "int64"), wm.Stream()
    win = opened(comm, memory, 8)
    on, all_ranks = win.on(stream), comm.Get_group()
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    on.Fence()
    for value in range(1, 5):
        if ends == "complete":
            on.Post(all_ranks.Incl([left]))
            on.Start(all_ranks.Incl([right]))
        win.Put(wm.full(1 << 16, value, "int64"), right)
        if ends == "complete":
            on.Complete()
            on.Wait()
        else:
            on.Fence()
        assert np.all(memory.numpy() == value)
        on.Fence()
    on.Fence(MPI.MODE_NOSUCCEED)
    with wrong(SYNC):
        win.Put(memory, right)
    win.Free()


@pytest.mark.parametrize("why", ["epoch", "argument"])
def test_a_fence_on_a_stream_that_fails_on_one_rank(comm, why):
    """The streams of the others go on, and so does the window."""
    memory, stream = wm.zeros(16, "int32"), wm.Stream()
    win = opened(comm, memory, 4)
    on, nobody = win.on(stream), comm.Get_group().Incl([])
    on.Fence()
    stream.synchronize()
    if comm.rank > 0:
        with pytest.raises(RuntimeError, match="rank 0 failed"):
            on.Fence()
            stream.synchronize()
    elif why == "epoch":
        on.Post(nobody)
        with wrong(SYNC):
            on.Fence()
        on.Wait()
    else:
        with pytest.raises(TypeError, match="assertion"):
            on.Fence("none")
    on.Fence()
    on.Put(wm.full(16, comm.rank, "int32"), (comm.rank + 1) % comm.size)
    on.Fence()
    assert np.all(memory.numpy() == (comm.rank - 1) % comm.size)
    win.Fence()
    win.Free()


def test_post_and_start_on_a_stream(comm):
    memory = wm.zeros(16, "int32")
    win = opened(comm, memory, 4)
    stream = wm.Stream()
    on, group = win.on(stream), comm.Get_group()
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    for value in range(6):
        on.Post(group.Incl([left]))
        on.Start(group.Incl([right]))
        on.Put(wm.full(16, 10 * value + comm.rank, "int32"), right)
        on.Complete()
        on.Wait()
        assert np.all(memory.numpy() == 10 * value + left)
    with wrong(SYNC):
        on.Complete()
    win.Free()


def test_epochs_in_a_capture_that_has_failed(comm):
    """They raise, change nothing, and can be called again."""
    memory, stream = wm.zeros(16, "int32"), wm.Stream()
    win = opened(comm, memory, 4)
    on, group = win.on(stream), comm.Get_group()
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    begin = [
        lambda: on.Post(group.Incl([left])),
        lambda: on.Start(group.Incl([right])),
    ]
    end = [on.Complete, on.Wait]
    for calls in begin, end:
        with graphs.spoilt(stream):
            for call in calls:
                with pytest.raises(RuntimeError, match="capture"):
                    call()
        if calls is begin:
            on.Fence()
        for call in calls:
            call()
        if calls is begin:
            on.Put(wm.full(16, comm.rank, "int32"), right)
    assert np.all(memory.numpy() == left)
    on.Fence()
    win.Fence()
    win.Free()


def test_in_a_graph(comm):
    """Replays read and write the same arrays."""
    memory, source = wm.zeros(64, "int64"), wm.zeros(32, "int64")
    got = wm.zeros(64, "int64")
    win = opened(comm, memory, 8)
    stream = wm.Stream()
    on = win.on(stream)
    other = (comm.rank + 1) % comm.size
    on.Fence()  # the first makes what streams need
    stream.synchronize()
    with graphs.capture(stream) as made:
        on.Put(source, other)
        on.Accumulate(source, other, 32)
        on.Fence()
        on.Get(got, other)
        on.Fence()
    total = 0
    for value in range(1, 6):
        source.assign(np.full(32, value))
        wm.synchronize_device(wm.get_device())
        made[0].launch(stream)
        stream.synchronize()
        total += value
        expected = [value] * 32 + [total] * 32
        assert got.numpy().tolist() == memory.numpy().tolist() == expected
        comm.Barrier()
    with graphs.capture(stream) as wrong_ones:
        with pytest.raises(ValueError, match="gaps"):
            on.Put(wm.zeros((8, 8), "int64")[:, ::2], other)
        on.Put(source, other)
    wrong_ones[0].free()
    made[0].free()
    win.Fence()
    win.Free()


def test_the_first_fence_on_a_stream_in_a_graph(comm):
    memory, source = wm.zeros(4), wm.ones(4)
    win, stream = opened(comm, memory, 8), wm.Stream()
    on = win.on(stream)
    with graphs.capture(stream) as made:
        on.Fence()
        on.Accumulate(source, (comm.rank + 1) % comm.size)
        on.Fence()
    for _ in range(3):
        made[0].launch(stream)
    stream.synchronize()
    assert memory.numpy().tolist() == [3] * 4
    made[0].free()
    win.Fence()
    win.Free()


class Given:
    """Memory that tells how long a window keeps it."""

    def __init__(self, array):
        self.array = array
        self.__cuda_array_interface__ = array.__cuda_array_interface__


@pytest.mark.parametrize("calls", ["put", "fence", "post"])
def test_a_graph_keeps_its_window(comm, calls):
    """Also the other ranks' memory, until no rank has such a graph."""
    stream, source = wm.Stream(), wm.full(32, comm.rank, "int64")
    given = Given(wm.zeros(32, "int64"))
    kept, memory = weakref.ref(given), given.array
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    group = comm.Get_group()

    def begin(on):
        on.Fence()
        stream.synchronize()

    def play(on):
        if calls == "post":
            on.Post(group.Incl([left]))
            on.Start(group.Incl([right]))
        if calls != "put" or comm.rank == 0:
            on.Put(source, right)
        if calls == "fence":
            on.Fence()
        elif calls == "post":
            on.Complete()
            on.Wait()

    win = opened(comm, given, 8)
    on = win.on(stream)
    begin(on)
    with graphs.capture(stream) as made:
        play(on)
    del given
    win.Fence(MPI.MODE_NOSUCCEED)
    win.Free()
    assert kept() is not None
    for value in range(1, 4):
        again = opened(comm, wm.zeros(32, "int64"), 8)  # has other words
        begin(again.on(stream))
        play(again.on(stream))
        again.Fence(MPI.MODE_NOSUCCEED)
        again.Free()
        source.assign(np.full(32, 10 * value + comm.rank))
        wm.synchronize_device(wm.get_device())
        made[0].launch(stream)
        stream.synchronize()
        comm.Barrier()
        puts = calls != "put" or left == 0
        expected = 10 * value + left if puts else 0
        assert (memory.numpy() == expected).all()
        assert kept() is not None
        comm.Barrier()
    made[0].free()
    while comm.allreduce(kept() is not None):  # a thread of the driver tells
        opened(comm, wm.zeros(1), 8).Free()


@pytest.mark.parametrize("frees", [False, True])
def test_a_graph_keeps_detached_memory(comm, frees):
    """Its calls write there, and not into what is attached instead."""
    stream, source = wm.Stream(), wm.full(32, comm.rank, "int64")
    given, other = Given(wm.zeros(32, "int64")), wm.zeros(32, "int64")
    kept, memory = weakref.ref(given), given.array
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    win = dynamic(comm)
    win.Attach(given)
    addresses = comm.allgather(memory.ptr)
    win.Fence()
    on = win.on(stream)
    with graphs.capture(stream) as made:
        on.Put(source, right, addresses[right])
    comm.Barrier()
    win.Detach(given)
    del given
    assert kept() is not None
    win.Attach(other)
    addresses = comm.allgather(other.ptr)
    win.Put(wm.full(32, 100 + comm.rank, "int64"), right, addresses[right])
    win.Fence(MPI.MODE_NOSUCCEED)
    if frees:
        win.Free()
    made[0].launch(stream)
    stream.synchronize()
    comm.Barrier()
    assert (memory.numpy() == left).all()
    assert (other.numpy() == 100 + left).all()
    assert kept() is not None
    comm.Barrier()
    made[0].free()
    while comm.allreduce(kept() is not None):  # a thread of the driver tells
        if frees:
            opened(comm, wm.zeros(1), 8).Free()
        else:
            win.Detach(other)
            win.Attach(other)
    if not frees:
        win.Free()


def test_a_window_without_graphs_ends_at_once(comm):
    given = Given(wm.zeros(32, "int64"))
    kept = weakref.ref(given)
    win = opened(comm, given, 8)
    del given
    on = win.on(wm.Stream())
    on.Fence()
    on.Put(wm.zeros(8, "int64"), comm.rank)
    win.Fence(MPI.MODE_NOSUCCEED)
    assert kept() is not None
    win.Free()
    assert kept() is None


def test_calls_that_a_capture_does_not_take(comm):
    """They name win.on(stream), and the capture goes on."""
    memory, stream = wm.zeros(16, "int32"), wm.Stream()

    class Written:  # on the stream, as other libraries tell
        __cuda_array_interface__ = {
            **memory.__cuda_array_interface__,
            "stream": stream.cuda_stream,
        }

    win, origin = opened(comm, Written(), 4), Written()
    win.on(stream).Fence()
    stream.synchronize()
    other = win.on(wm.Stream())
    with graphs.capture(stream) as made:
        for call in (
            lambda: win.Put(origin, comm.rank),
            lambda: win.Rget(origin, comm.rank),
            win.Fence,
            win.Sync,
            lambda: other.Put(origin, comm.rank),
            other.Fence,
        ):
            with pytest.raises(RuntimeError, match=r"win\.on\(stream\)"):
                call()
    made[0].free()
    win.Fence()
    win.Free()


def test_sizes_that_wrap(comm):
    """None is within the window, however large the product is."""
    win = opened(comm, wm.zeros(16, "int32"), 4)
    other = (comm.rank + 1) % comm.size
    vector = MPI.INT32_T.Create_vector(2, 1, 3).Commit()
    far = [
        MPI.INT32_T.Create_resized(0, extent).Commit()
        for extent in (2**62, 2**62 + 4, -(2**62))
    ]
    four, ten = wm.zeros(4, "int32"), wm.zeros(10, "int32")
    win.Fence()
    with pytest.raises(ValueError, match="same size"):
        win.Put(four, other, [0, 2**61 + 2, vector])
    with pytest.raises(ValueError, match="same size"):
        win.Put(ten, other, [0, 2**62 + 10, MPI.INT32_T])
    for each in far:
        with wrong(MPI.ERR_RMA_RANGE):
            win.Put(four, other, [0, 4, each])
    with pytest.raises(OverflowError, match="displacement"):
        win.Put(four, other, 2**64)
    with wrong(MPI.ERR_RMA_RANGE):
        win.Put(four, other, 2**62)
    win.Fence()
    win.Free()
    for each in (vector, *far):
        each.Free()


def test_types_that_differ(comm):
    win = opened(comm, wm.zeros(16, "int32"), 4)
    win.Fence()
    for array, target in (
        (wm.ones(2, "float32"), [0, 2, MPI.INT32_T]),
        (wm.ones(2, "int32"), [0, 1, MPI.DOUBLE]),
    ):
        with wrong(MPI.ERR_TYPE):
            win.Accumulate(array, comm.rank, target)
    win.Fence()
    win.Free()


def read_only():
    array = np.zeros(4)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    "arguments",
    [
        (read_only,),
        (lambda: [1, 2],),
        (lambda: "text",),
        (lambda: wm.zeros(4), -4),
        (lambda: wm.zeros(4), 0),
        (lambda: wm.zeros(4), 2**40),
        (lambda: wm.zeros(4), "4"),
        (lambda: wm.zeros(4), 4, "info"),
        (lambda: wm.zeros((4, 4))[:, 0],),
    ],
    ids=str,
)
@pytest.mark.ranks(2)
def test_one_rank_gives_what_is_no_window(comm, arguments):
    """All raise; nobody waits."""
    memory, *others = arguments
    if comm.rank > 0:
        memory, others = (lambda: wm.zeros(4)), [4]
    others += [8, MPI.INFO_NULL][len(others) :]
    errors = TypeError, ValueError, BufferError, RuntimeError
    with pytest.raises(errors, match="rank 0" if comm.rank else None):
        wm.Win.Create(memory(), *others, comm)


@pytest.mark.parametrize("kind", ["cuda", "mpi"])
@pytest.mark.ranks(2)
def test_too_much_memory_on_one_rank(comm, kind):
    """All ranks are told by the same error; of the host's memory, too."""
    last = comm.rank == 1
    kinds_asked = kind if last else "cuda"
    info = MPI.Info.Create({"mpi_memory_alloc_kinds": kinds_asked})
    with pytest.raises(MemoryError, match=None if last else "rank 1 "):
        wm.Win.Allocate(1 << 50 if last else 16, 1, info, comm)
    info.Free()


def test_page_locked_memory_of_a_capture_on_one_rank(comm):
    """No window is made of memory that a captured stream writes."""
    stream = wm.Stream()
    memory = kinds.make("pinned", np.zeros(4))

    class Written:
        __array_interface__ = memory.__array_interface__
        __cuda_array_interface__ = {
            **memory.__array_interface__,
            "stream": stream.cuda_stream,
            "version": 3,
        }

    given = Written() if comm.rank == 0 else np.zeros(4)
    with (
        graphs.capture(stream) as made,
        pytest.raises(RuntimeError, match="captur"),
    ):
        wm.Win.Create(given, 8, comm=comm)
    made[0].free()


@pytest.mark.parametrize("words", [("none",), (0, 0)])
def test_arguments_of_fence_on_one_rank(comm, words):
    """All raise, and the window stays."""
    win = opened(comm, wm.zeros(4, "int32"), 4)
    if comm.rank == 0:
        with pytest.raises(TypeError, match=r"assertion|Fence"):
            win.Fence(*words)
    else:
        with pytest.raises(RuntimeError, match="rank 0"):
            win.Fence()
    win.Fence()
    win.Free()


def test_what_is_not_attached(comm):
    win = wm.Win.Create_dynamic(comm=comm)
    for wrong_one in (None, [1], read_only()):
        with pytest.raises((TypeError, BufferError), match=r"^memory: "):
            win.Attach(wrong_one)
    win.Free()


def test_each_of_many_windows_has_words_for_post(comm):
    if comm.size != 4:
        pytest.skip("needs four ranks")
    memory, group = wm.zeros(1), comm.Get_group()
    windows = [wm.Win.Create(memory, comm=comm) for _ in range(260)]
    windows[-1].Post(group)
    windows[-1].Start(group)
    windows[-1].Complete()
    windows[-1].Wait()
    for window in windows:
        window.Free()
    group.Free()


def test_calls_without_a_last_fence(comm):
    """Free raises on all, and the window stays."""
    win = opened(comm, wm.zeros(4, "int32"), 4)
    win.Fence()
    if comm.rank == 0:
        win.Put(wm.ones(4, "int32"), 0)
    with wrong(SYNC):
        win.Free()
    win.Fence()
    assert comm.rank > 0 or win.tomemory().numpy().all()
    win.Free()


def test_error_handlers(comm):
    win, told = opened(comm, wm.zeros(4, "int32"), 4), []
    handler = MPI.Win.Create_errhandler(
        lambda window, code: told.append(MPI.Get_error_class(code))
    )
    win.Set_errhandler(handler)
    with wrong(SYNC):
        win.Put(wm.zeros(4, "int32"), comm.rank)
    with wrong(SYNC):
        win.Unlock(comm.rank)
    assert told == [SYNC, SYNC]
    win.Set_errhandler(MPI.ERRORS_RETURN)
    handler.Free()
    win.Free()


@pytest.mark.programs
@pytest.mark.parametrize("call", ["Lock", "Win.Free"])
def test_a_wait_reports_itself(tmp_path, call):
    text = """
        import sys
        import warpmpi as wm
        from mpi4py import MPI

        comm = wm.Comm(MPI.COMM_WORLD)
        win = wm.Win.Create(wm.zeros(4), 8, comm=comm)
        path, call = sys.argv[1:]
        if comm.rank == 0 and call == "Lock":
            win.Lock(0)
        comm.Barrier()
        if comm.rank == 0:
            while f"{call} has waited" not in open(path).read():
                pass
        elif call == "Lock":
            win.Lock(0)
        if call == "Lock":
            win.Unlock(0)
        win.Free()
        print("freed")
    """
    path = tmp_path / "said"
    path.touch()
    script = tmp_path / "waits.py"
    script.write_text(
        f"import os; os.dup2(os.open({str(path)!r}, os.O_WRONLY | "
        "os.O_APPEND), 2)\n" + textwrap.dedent(text)
    )
    printed = ranks.run(
        *(script, path, call), ranks=2, WARPMPI_HANG_SECONDS="0.2"
    )
    assert printed.count("freed") == 2
    assert f"{call} has waited" in path.read_text()
    assert "of a window of MPI_COMM_WORLD (size 2)" in path.read_text()
    assert "for the other ranks" in path.read_text()
