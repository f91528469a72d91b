# SPDX-License-Identifier: BSD-3-Clause
"""Shared arrays: peers' memory, signals, waits and barriers."""

import gc
import importlib.util
import random
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import graphs
import kinds
import warpmpi as wm

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLE = ROOT / "examples" / "simple_ipc.py"

needs_gpu = pytest.mark.skipif(
    not wm.is_cuda_available(), reason="needs a GPU"
)


@pytest.fixture(params=["gpu", "cpu"])
def device(request):
    if request.param == "gpu" and not wm.is_cuda_available():
        pytest.skip("needs a GPU")
    return wm.get_device() if request.param == "gpu" else "cpu"


@pytest.fixture
def stream():
    return wm.Stream()


def pattern(rank, count):
    return (np.arange(count) * 7 + rank * 13).astype(np.uint8)


@needs_gpu
def test_every_byte_reaches_the_peer(comm, stream):
    """As NVIDIA's simpleIPC: each writes into the next one's array."""
    count = 1_000_003
    a = wm.shared_zeros(count, "uint8", comm=comm)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    a.barrier(stream)
    stream.synchronize()
    a.peer(right).assign(wm.array(pattern(comm.rank, count)))
    a.barrier(stream)
    stream.synchronize()
    assert (a.numpy() == pattern(left, count)).all()
    for rank in range(comm.size):
        before = (rank - 1) % comm.size
        assert (a.peer(rank).numpy() == pattern(before, count)).all()
    assert a.peer(comm.rank).ptr == a.ptr


@needs_gpu
def test_shapes_and_types_differ_by_rank(comm):
    types = ["float32", "int16", "complex128", "uint8"]
    shape = (comm.rank + 1, 3)
    a = wm.shared_zeros(shape, types[comm.rank % 4], comm=comm)
    assert a.shape == shape and a.dtype == types[comm.rank % 4]
    for rank in range(comm.size):
        peer = a.peer(rank)
        assert peer.shape == (rank + 1, 3)
        assert peer.dtype == types[rank % 4]
        assert not peer.numpy().any()
    table = a.pointers.numpy()
    assert table.dtype == np.int64
    assert list(table) == [a.peer(rank).ptr for rank in range(comm.size)]
    one = wm.shared_empty(() if comm.rank else 0, comm=comm)
    assert one.peer(0).size == 0 and one.peer(comm.size - 1).size in (0, 1)


@needs_gpu
def test_signals_order_streams(comm, stream):
    """Each round a rank writes to the right, and reads what came."""
    a = wm.shared_zeros(256, "int32", comm=comm, slots=2)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    a.barrier(stream)
    for turn in range(4):
        stream.synchronize()
        a.peer(right).fill_(100 * turn + comm.rank)
        a.signal(right, 0, stream=stream)
        a.wait(0, stream=stream)
        stream.synchronize()
        assert (a.numpy() == 100 * turn + left).all()
        a.signal(left, 1, 3, stream)  # the array may be written again
        a.wait(1, 1, stream)
        a.wait(1, 2, stream)


@needs_gpu
def test_a_wait_may_leave_the_value(comm, stream):
    a = wm.shared_empty(1, comm=comm)
    for rank in range(comm.size):
        a.signal(rank, 63, 2**40, stream)
    for consume in (False, False, True):
        a.wait(63, comm.size * 2**40, stream, consume=consume)
    stream.synchronize()
    comm.Barrier()
    a.signal(comm.rank, 63, 5, stream)
    a.wait(63, 5, stream)
    stream.synchronize()


@needs_gpu
def test_a_graph_signals_anew_in_each_replay(comm, stream):
    a = wm.shared_empty(1, comm=comm)
    right = (comm.rank + 1) % comm.size
    with graphs.capture(stream) as made:
        a.signal(right, 5, 2, stream)
        a.wait(5, 2, stream)
        a.barrier(stream)
    for _ in range(3):
        made[0].launch(stream)
        a.barrier(stream)  # of the same kind as the graph's
    stream.synchronize()
    made[0].free()


@needs_gpu
def test_a_graph_keeps_the_array(comm, stream):
    """Also if no object refers to it any more."""

    def count():
        for _ in range(3):
            wm.shared_empty(1, comm=comm)
        comm.Barrier()
        return wm.stats()["shared_bytes"] >> 20

    a = wm.shared_empty(8 << 20, "uint8", comm=comm)
    with graphs.capture(stream) as made:
        a.barrier(stream)
        a.signal((comm.rank + 1) % comm.size, 1, 4, stream)
        a.wait(1, 4, stream)
    del a
    assert count() == 8
    for _ in range(3):
        made[0].launch(stream)
    stream.synchronize()
    made[0].free()
    for _ in range(500):  # CUDA lets go of the array in a thread of its own
        if comm.allreduce(count()) == 0:
            return
        time.sleep(0.01)
    raise AssertionError(count())


@needs_gpu
def test_full_and_zeros_are_there_for_all(comm):
    a = wm.shared_full((3, 5), comm.rank + 0.5, comm=comm)
    b = wm.shared_zeros(7, "int8", comm=comm)
    for rank in range(comm.size):
        assert (a.peer(rank).numpy() == rank + 0.5).all()
        assert not b.peer(rank).numpy().any()


def test_bad_input_raises_on_all(comm, device):
    last = comm.rank == comm.size - 1
    cases = [
        (ValueError, "shape", {"shape": -1}),
        (TypeError, "shape", {"shape": "much"}),
        (TypeError, "", {"dtype": "object"}),
        (ValueError, "device", {"device": "cuda:99"}),
        (ValueError, "like", {"like": "tensorflow"}),
        (ValueError, "slots", {"slots": 0}),
        (TypeError, "slots", {"slots": 1.5}),
    ]
    good = {"shape": 3, "dtype": "float32", "device": device}
    for kind, text, wrong in cases:
        given = {**good, **(wrong if last else {})}
        with pytest.raises(kind if last else RuntimeError) as caught:
            wm.shared_empty(**given, comm=comm)
        assert text in str(caught.value)
        if not last:
            name = f"rank {comm.size - 1} failed in this collective: "
            assert f"shared_empty: {name}{kind.__name__}" in str(caught.value)
    if comm.size > 1:
        with pytest.raises(ValueError, match="slots: "):
            wm.shared_empty(**good, comm=comm, slots=3 + last)


def test_a_library_that_one_rank_lacks_raises_on_all(comm, monkeypatch):
    last = comm.rank == comm.size - 1
    for module in ("cupy", "torch", "warp"):
        monkeypatch.setitem(sys.modules, module, None if last else np)
        with pytest.raises((ImportError, RuntimeError), match=module):
            wm.shared_empty(1, comm=comm, device="cpu", like=module)


@needs_gpu
def test_slots_ranks_and_values_out_of_range(comm, stream):
    a = wm.shared_empty(1, comm=comm, slots=4)
    for name, call in (
        ("rank", lambda: a.signal(comm.size, 0, 1, stream)),
        ("rank", lambda: a.signal(-1, 0, 1, stream)),
        ("rank", lambda: a.peer(comm.size)),
        ("rank", lambda: a.peer(2**40)),
        ("rank", lambda: a.peer(-(2**70), readonly=True)),
        ("slot", lambda: a.signal(0, 4, 1, stream)),
        ("slot", lambda: a.wait(-1, 1, stream)),
        ("value", lambda: a.wait(0, 0, stream)),
        ("value", lambda: a.signal(0, 0, 2**48, stream)),
        ("value", lambda: a.signal(0, 0, 2**80, stream)),
    ):
        with pytest.raises(ValueError, match=rf"^{name}: "):
            call()
    with pytest.raises(TypeError, match=r"^slot: "):
        a.wait("0", 1, stream)
    assert a.peer(0) is a.peer(np.int64(0))
    for wrong in ("0", 0.0, []):
        with pytest.raises(TypeError, match=r"^rank: an int is needed, not"):
            a.peer(wrong)
    for number in (0, 3, -1, 2**70):
        with pytest.raises((ValueError, OverflowError)):
            a.barrier(number)
    with pytest.raises(TypeError, match=r"^stream: "):
        a.barrier("legacy")


@needs_gpu
def test_errors_say_the_numbers_that_were_given(comm, stream):
    a = wm.shared_empty(1, comm=comm)
    for given, text in (
        ((2**33, 0), "no rank 8589934592,"),
        ((0, -(2**33)), "no slot -8589934592,"),
        ((0, 0, -5), "value: -5 is not"),
        ((0, 0, 2**70), f"value: {2**70} is"),
    ):
        with pytest.raises(ValueError, match=text):
            a.signal(*given, stream=stream)
    with pytest.raises(ValueError, match="value: -5 is not"):
        a.wait(0, -5, stream)


@pytest.mark.skipif(len(wm.get_cuda_devices()) < 2, reason="needs two GPUs")
def test_a_stream_of_another_gpu_is_refused(comm):
    a = wm.shared_zeros(1, comm=comm)
    own = wm.get_device()
    other = next(each for each in wm.get_cuda_devices() if each != own)
    kept = wm.Stream(device=other)
    default = wm.Stream(device=other, cuda_stream=1)
    for stream in (kept, default, kept.cuda_stream):
        for call in (
            lambda given=stream: a.signal(0, 0, stream=given),
            lambda given=stream: a.wait(0, stream=given),
            lambda given=stream: a.barrier(given),
        ):
            with pytest.raises(ValueError, match=f"^stream: it is of {other}"):
                call()
    a.barrier()
    wm.synchronize()


@needs_gpu
def test_streams_are_given_as_objects_and_handles(comm, stream):
    a = wm.shared_empty(1, comm=comm)
    defaults = [wm.Stream(cuda_stream=number) for number in (0, 1, 2)]
    for given in (stream, stream.cuda_stream, None, *defaults):
        a.signal(comm.rank, 0, 2, given)
        a.wait(0, 2, given)
    wm.synchronize()
    # None waits for another. A GPU has 8 queues, which more streams share.
    streams = [wm.Stream() for _ in range(2 if kinds.is_real() else 9)]
    for slot, one in enumerate(streams):
        a.wait(slot, 1, one)
    for slot in reversed(range(len(streams))):
        a.signal(comm.rank, slot, 1, wm.Stream())
    for one in streams:
        one.synchronize()


@needs_gpu
def test_readonly_views_refuse_writes(comm):
    a = wm.shared_zeros(3, comm=comm)
    view = a.peer(comm.size - 1, readonly=True)
    assert view.__cuda_array_interface__["data"][1] is True
    with pytest.raises((BufferError, ValueError, TypeError)):
        view.fill_(1)


def test_ranks_drop_in_any_order(comm, device):
    """What a view shows stays right, and nothing is left at the end."""
    alike, own = random.Random(7), random.Random(comm.rank)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    kept = []
    stream = None if device == "cpu" else wm.Stream()
    for turn in range(12):
        count = alike.choice([0, 1, 1000, 600_000]) + comm.rank
        a = wm.shared_full(count, turn, "int32", comm=comm, device=device)
        kept.append([a.peer(left), a.peer(right), turn])
        a.signal(right, 0, 1, stream)
        a.wait(0, 1, stream)
        del a
        own.shuffle(kept)
        while len(kept) > own.randrange(1, 5):
            *views, value = kept.pop()
            assert all((view.numpy() == value).all() for view in views)
            del views
    if stream is not None:
        stream.synchronize()
    kept.clear()
    for _ in range(3):
        wm.shared_empty(1, comm=comm, device=device)
    assert wm.stats()["shared_arrays"] <= 3
    assert wm.stats()["shared_bytes"] < 100_000
    comm.Barrier()


def used():
    return wm._core._memory_stats()["device_bytes_used"]


@needs_gpu
def test_memory_comes_back_without_a_collective_free(comm):
    """Each drops when it likes; a view keeps the memory of all."""
    nbytes = 32 << 20
    gc.collect()
    wm.shared_empty(1, comm=comm)
    comm.Barrier()
    before = used()
    a = wm.shared_empty(nbytes, "uint8", comm=comm)
    assert used() >= before + nbytes
    view = a.peer((comm.rank + 1) % comm.size)
    del a
    wm.shared_empty(1, comm=comm)  # collects
    assert used() >= before + nbytes
    view.fill_(3)
    comm.Barrier()
    if comm.rank == 0:
        del view
        view = None
    wm.shared_empty(1, comm=comm)
    comm.Barrier()
    if comm.size > 1:  # others have a view
        assert used() >= before + nbytes
    del view
    for _ in range(2):  # what the first one tells, the second one knows
        wm.shared_empty(1, comm=comm)
    assert used() < before + nbytes
    comm.Barrier()


@needs_gpu
def test_arrays_outlive_their_communicator(comm, stream):
    dup = wm.Comm(comm.Dup())
    a = wm.shared_full(4, 5, comm=dup)
    b = a.peer((comm.rank + 1) % comm.size)
    comm.Barrier()
    dup.Free()
    assert (b.numpy() == 5).all()
    for call in (
        lambda: a.barrier(stream),
        lambda: a.signal(0, 0, 1, stream),
        lambda: a.wait(0, 1, stream),
    ):
        with pytest.raises(RuntimeError, match="was freed"):
            call()
    comm.Barrier()


@needs_gpu
@pytest.mark.skipif(kinds.is_real(), reason="would fill a GPU")
def test_without_memory_on_one_rank_all_raise(comm):
    last = comm.rank == comm.size - 1
    gc.collect()
    count = 300 << 20
    before = used() + (1 << 20)
    with pytest.raises(wm.OutOfMemoryError):
        wm.shared_empty((4 << 30) if last else count, "uint8", comm=comm)
    with pytest.raises(MemoryError):
        wm.shared_empty((4 << 30) if last else count, "uint8", comm=comm)
    assert used() < before
    wm.shared_empty(3, comm=comm)


def test_messages_take_shared_arrays(comm, device):
    a = wm.shared_full(5, comm.rank, comm=comm, device=device)
    b = wm.shared_zeros(5, comm=comm, device=device)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    comm.Sendrecv(a, right, recvbuf=b, source=left)
    assert (b.numpy() == left).all()
    comm.Allreduce(a, b)
    assert (b.numpy() == sum(range(comm.size))).all()


def test_what_it_is(comm, device):
    a = wm.shared_zeros((2, 3), "int32", comm=comm, device=device)
    assert isinstance(a, wm.SharedArray)
    assert "SharedArray" in repr(a) and len(a) == 2 and a.ndim == 2
    assert a.comm is comm and a.slots == 64 and a.nbytes == 24
    a[1, 2] = 5
    assert a[1].numpy()[2] == 5 and np.asarray(a).sum() == 5
    with pytest.raises(TypeError, match="shared_empty"):
        wm.SharedArray()
    with pytest.raises(AttributeError):
        a.nothing  # noqa: B018
    comm.Barrier()


def test_attributes_are_not_set(comm):
    a = wm.shared_empty(2, comm=comm, device="cpu")
    for name in ("shape", "slots", "anything"):
        with pytest.raises(AttributeError):
            setattr(a, name, 3)
    assert a.shape == (2,)


def test_no_type_means_what_it_does_for_arrays(comm):
    a = wm.shared_empty(2, None, comm=comm, device="cpu")
    b = wm.shared_full(2, 3, None, comm=comm, device="cpu")
    assert a.dtype == wm.empty(2, None, "cpu").dtype
    assert b.dtype == wm.full(2, 3, None, "cpu").dtype


def test_as_many_as_there_is_room_for_again_and_again(comm):
    """Those that were dropped make room at once."""
    kept = []
    try:
        while len(kept) < 2000:
            kept.append(wm.shared_empty(1, comm=comm, device="cpu", slots=1))
    except MemoryError as error:
        assert "drop some" in str(error)
    assert 500 < len(kept) < 2000
    for _ in range(5):
        kept[-20:] = []
        kept += [
            wm.shared_empty(1, comm=comm, device="cpu", slots=1)
            for _ in range(20)
        ]


def test_intercommunicators_are_refused(comm):
    if comm.size < 2:
        pytest.skip("needs two ranks")
    part = comm.Split(comm.rank % 2)
    inter = part.Create_intercomm(0, comm, 1 - comm.rank % 2)
    with pytest.raises(ValueError, match="intercommunicator"):
        wm.shared_empty(1, comm=inter)
    inter.Free()
    part.Free()


def test_ranks_without_a_gpu_share_memory(comm):
    """More than a segment has room for; any rank waits on the host."""
    count = 5 << 20
    a = wm.shared_zeros(count, "int64", comm=comm, device="cpu", like="numpy")
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    assert isinstance(a.array, np.ndarray) and a.device.is_cpu
    for turn in range(3):
        a.barrier()
        a.peer(right)[:] = np.arange(count) + 10 * turn + comm.rank
        a.signal(right, 7, 2)
        a.wait(7, 2, consume=False)
        a.wait(7, 2)
        assert (a.array == np.arange(count) + 10 * turn + left).all()
    assert not a.peer(right, readonly=True).numpy().flags.writeable
    table = a.pointers.numpy()
    assert [a.peer(r).ctypes.data for r in range(comm.size)] == list(table)
    with pytest.raises(ValueError, match=r"^stream: "):
        a.signal(0, 0, 1, 2)
    comm.Barrier()


@needs_gpu
def test_ranks_with_and_without_a_gpu_share_memory(comm, stream):
    """All of it is the host's then, page-locked for the GPUs."""
    on_gpu = comm.rank % 2 == 0
    device = wm.get_device() if on_gpu else "cpu"
    s = stream if on_gpu else None
    a = wm.shared_zeros(1000, "int32", comm=comm, device=device)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for turn in range(3):
        a.barrier(s)
        if on_gpu:
            stream.synchronize()
        a.peer(right)[...] = np.full(1000, 10 * turn + comm.rank, np.int32)
        a.signal(right, 3, 5, s)
        a.wait(3, 5, s)
        if on_gpu:
            stream.synchronize()
        assert (a.numpy() == 10 * turn + left).all()
    a.barrier(s)
    stream.synchronize()


@needs_gpu
def test_streams_of_a_rank_signal_one_slot_of_the_host_at_once(comm):
    """No signal is lost where a GPU adds to a counter in host memory."""
    first, count = comm.rank == 0, 2000
    device = wm.get_device() if first else "cpu"
    a = wm.shared_zeros(1, comm=comm, device=device)
    streams = [wm.Stream() for _ in range(4 if first else 0)]
    for _ in range(count):
        for stream in streams:
            for rank in range(comm.size):
                a.signal(rank, 3, 1, stream)
    for stream in streams:
        stream.synchronize()
    a.wait(3, 4 * count, streams[0] if first else None)
    for stream in streams[:1]:
        stream.synchronize()
    comm.Barrier()


def test_host_memory_comes_back(comm):
    def mapped():
        with open("/proc/self/maps") as file:
            return sum("memfd:warpmpi" in line for line in file)

    gc.collect()
    for _ in range(2):
        wm.shared_empty(1, comm=comm, device="cpu")
    before = mapped()
    kept = [wm.shared_empty(9, comm=comm, device="cpu") for _ in range(9)]
    assert mapped() >= before + 5 * comm.size  # a few were dropped meanwhile
    del kept
    for _ in range(2):
        wm.shared_empty(1, comm=comm, device="cpu")
    comm.Barrier()
    assert mapped() <= before + 4 * comm.size
    comm.Barrier()


def test_example_verifies_every_byte(comm, monkeypatch, capsys):
    """On the CPU; where there is CuPy, on GPUs as well."""
    spec = importlib.util.spec_from_file_location("simple_ipc", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    monkeypatch.setattr(sys, "argv", ["simple_ipc.py", "--count", "30001"])
    libraries = {example.array_library(), np}
    for library in libraries:
        monkeypatch.setattr(example, "array_library", lambda xp=library: xp)
        assert example.main() == 0
    told = capsys.readouterr().out
    times = len(libraries) if comm.rank == 0 else 0
    assert told.count("every byte is right") == times
    rounds = f"{comm.size - 1} x {4 * 30001} bytes into a peer"
    assert told.count(rounds) == (times if comm.size > 1 else 0)


def test_example_times_stores_into_peers_alone(comm, monkeypatch):
    """Each rank but our own once, between the looks at the clock."""
    spec = importlib.util.spec_from_file_location("simple_ipc", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    a = wm.shared_zeros(9, "int32", comm=comm, device="cpu", like="numpy")
    seen = []

    class Spy:
        def __init__(self):
            self.array, self.barrier = a.array, a.barrier

        def __len__(self):
            return len(a)

        def peer(self, rank):
            seen.append(rank)
            return a.peer(rank)

    monkeypatch.setattr(
        example.time, "perf_counter", lambda: seen.append("clock") or 0.0
    )
    rounds, _ = example.exchange(np, comm, Spy())
    others = [(comm.rank + i) % comm.size for i in range(1, comm.size)]
    assert seen == ["clock", *others, "clock"]
    assert rounds == comm.size - 1
    assert example.verify(np, comm, a)
