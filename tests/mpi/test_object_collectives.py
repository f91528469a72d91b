# SPDX-License-Identifier: BSD-3-Clause
"""Lower-case collectives: objects, GPU arrays inside, and who fails."""

import gc
import pickle
import random
import signal
import time

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import ranks
import warpmpi as wm
from warpmpi import _core
from warpmpi._objects import frames, libraries

gpu = pytest.mark.skipif(
    not wm.is_cuda_available(), reason="needs a GPU, or the simulated driver"
)


def refuse(*_):
    raise TypeError("no pickle of this")


class Stubborn:
    __reduce__ = __reduce_ex__ = refuse


CALLS = {
    "bcast": lambda comm, obj, root: comm.bcast(obj, root),
    "gather": lambda comm, obj, root: comm.gather(obj, root=root),
    "allgather": lambda comm, obj, root: comm.allgather(obj),
    "scatter": lambda comm, obj, root: comm.scatter([obj] * comm.size, root),
    "alltoall": lambda comm, obj, root: comm.alltoall([obj] * comm.size),
}


@pytest.mark.ranks(2)
@pytest.mark.parametrize("culprit", [0, MPI.COMM_WORLD.size - 1])
@pytest.mark.parametrize("name", CALLS)
def test_what_cannot_be_pickled_is_told_to_its_receivers(comm, name, culprit):
    root = comm.size - 1 - culprit if name == "gather" else culprit
    call = CALLS[name]
    obj = Stubborn() if comm.rank == culprit else comm.rank
    if comm.rank == culprit:
        with pytest.raises(TypeError, match="no pickle of this"):
            call(comm, obj, root)
    elif name == "gather" and comm.rank != root:
        assert call(comm, obj, root) is None
    else:
        told = f"rank {culprit} could not send its part of this {name}: Type"
        with pytest.raises(RuntimeError, match=told):
            call(comm, obj, root)
    assert comm.allgather(comm.rank) == list(range(comm.size))


@pytest.mark.ranks(2)
@pytest.mark.parametrize("length", [1, MPI.COMM_WORLD.size + 1])
@pytest.mark.parametrize("name", ["scatter", "alltoall"])
def test_a_list_of_the_wrong_length_is_told(comm, name, length):
    culprit = comm.size - 1
    items = [1] * (length if comm.rank == culprit else comm.size)
    rest = (culprit,) if name == "scatter" else ()
    error = ValueError if comm.rank == culprit else RuntimeError
    with pytest.raises(error):
        getattr(comm, name)(items, *rest)
    assert comm.bcast(comm.rank, 1) == 1


@pytest.mark.ranks(2)
def test_all_ranks_fail(comm):
    with pytest.raises(TypeError, match="no pickle of this"):
        comm.allgather(Stubborn())
    assert comm.alltoall([comm.rank] * comm.size) == list(range(comm.size))


@pytest.mark.ranks(2)
def test_what_cannot_be_unpickled_is_left_as_it_is(comm):
    class Bomb:
        def __reduce__(self):
            return int, ("no number",)

    with pytest.raises(ValueError, match="no number"):
        comm.bcast(Bomb() if comm.rank == 0 else None, 0)
    assert comm.scatter([3] * comm.size) == 3


# Any object, whose way depends on what it is.

OBJECTS = [
    None,
    True,
    7,
    2.5,
    1j,
    "text",
    b"bytes",
    (1, [2], b"3", 4, None),
    "long" * 100_000,
    list(range(200_000)),
    np.arange(100_000.0),
]


def moved(comm, name, root, make):
    """What a rank gets of make(source, dest), by (source, dest)."""
    me, everyone = comm.rank, range(comm.size)
    if name == "bcast":
        got = comm.bcast(make(root, 0) if me == root else "not read", root)
        return {(root, 0): got}
    if name == "gather":
        got = comm.gather(make(me, 0), root=root)
        if me != root:
            assert got is None
            return {}
        return {(source, 0): got[source] for source in everyone}
    if name == "scatter":
        each = [make(root, dest) for dest in everyone] if me == root else None
        return {(root, me): comm.scatter(each, root)}
    if name == "allgather":
        got = comm.allgather(make(me, 0))
        assert len(got) == comm.size
        return {(source, 0): got[source] for source in everyone}
    got = comm.alltoall([make(me, dest) for dest in everyone])
    assert len(got) == comm.size
    return {(source, me): got[source] for source in everyone}


@pytest.mark.parametrize("name", CALLS)
def test_any_object_of_the_host(comm, name):
    for i in range(len(OBJECTS)):

        def make(source, dest, i=i):
            return OBJECTS[(i + 3 * source + dest) % len(OBJECTS)]

        for root in range(comm.size):
            for where, got in moved(comm, name, root, make).items():
                wanted = make(*where)
                assert type(got) is type(wanted)
                if isinstance(wanted, np.ndarray):
                    assert np.array_equal(got, wanted)
                else:
                    assert got == wanted


def test_what_was_not_given_is_none(comm):
    assert comm.scatter(None) is None
    assert comm.alltoall(None) == [None] * comm.size
    with pytest.raises(MPI.Exception) as caught:
        comm.bcast(1, comm.size)
    assert caught.value.Get_error_class() == MPI.ERR_ROOT
    with pytest.raises(MPI.Exception) as caught:
        comm.gather([wm.zeros(3, device="cpu")], -7)
    assert caught.value.Get_error_class() == MPI.ERR_ROOT


@pytest.mark.parametrize("name", CALLS)
def test_a_pickler_of_the_users(comm, name):
    def dumps(obj, *_):
        if obj is Stubborn:
            raise TypeError("no pickle of this")
        return pickle.dumps(("mine", obj))

    def loads(data):
        return pickle.loads(data)

    MPI.pickle.__init__(dumps, loads)
    try:
        for where, got in moved(comm, name, 0, lambda *of: of).items():
            assert got == ("mine", where)
        if comm.size > 1 and name == "allgather":
            error = TypeError if comm.rank == 0 else RuntimeError
            with pytest.raises(error, match="no pickle of this"):
                comm.allgather(Stubborn if comm.rank == 0 else 1)
    finally:
        MPI.pickle.__init__()
    assert comm.allgather(1) == [1] * comm.size


@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", CALLS)
def test_interrupted_while_others_come_late(comm, name):
    """It takes part to the end, and then raises."""

    def stop(number, frame):
        raise TimeoutError

    def make(source, dest):
        array = wm.full(9, source, device=device)
        return {"array": array, "long": OBJECTS[-3]}

    if _core._check_wanted():
        pytest.skip("what the ranks say before a call is not finished")
    device = "cuda" if wm.is_cuda_available() else "cpu"
    comm.Barrier()
    late = comm.size - 1 if name in ("gather", "alltoall") else 0
    early = 0 if late else comm.size - 1
    root = early if name == "gather" else late
    if comm.rank == late:
        time.sleep(1)
    if comm.rank != early:
        for where, got in moved(comm, name, root, make).items():
            assert (got["array"].numpy() == where[0]).all()
    else:
        before = signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, 0.5)  # it has begun by then
        try:
            with pytest.raises(TimeoutError):
                moved(comm, name, root, make)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
    assert comm.allgather(comm.rank) == list(range(comm.size))


# GPU arrays inside.


def values(source, dest, number):
    return 1000.0 * number + 10 * source + dest


def nested(source, dest):
    """An object of arrays, and how many bytes of them travel."""
    a = wm.full((100, 7), values(source, dest, 1))
    grid = wm.from_numpy(np.arange(12.0).reshape(3, 4)).to("cuda")
    return {
        "a": a,
        "again": [a, (wm.full(400_000, values(source, dest, 2), "int32"),)],
        "empty": wm.zeros((0, 3)),
        "single": wm.full((), values(source, dest, 3)),
        "columns": grid[:, ::2],
        "turned": grid.T,
        "host": np.full(5, values(source, dest, 4)),
        "cpu": wm.full(2, values(source, dest, 5), device="cpu"),
    }


NESTED_BYTES = 8 * 700 + 4 * 400_000 + 8 + 8 * 6 + 8 * 12
NESTED_PARTS = 5


def check_nested(got, source, dest):
    def same(array, number):
        return (array.numpy() == values(source, dest, number)).all()

    assert set(got) == set(nested(0, 0))
    assert got["a"] is got["again"][0]
    assert got["a"].shape == (100, 7)
    assert same(got["a"], 1)
    (more,) = got["again"][1]
    assert more.dtype == np.int32
    assert same(more, 2)
    assert got["empty"].shape == (0, 3)
    assert got["single"].shape == ()
    assert same(got["single"], 3)
    grid = np.arange(12.0).reshape(3, 4)
    assert (got["columns"].numpy() == grid[:, ::2]).all()
    assert (got["turned"].numpy() == grid.T).all()
    assert (got["host"] == values(source, dest, 4)).all()
    assert got["cpu"].device.is_cpu
    assert same(got["cpu"], 5)
    for name in ("a", "empty", "single", "columns", "turned"):
        assert got[name].device == wm.get_device()


@gpu
@pytest.mark.parametrize("root", sorted({0, MPI.COMM_WORLD.size - 1}))
@pytest.mark.parametrize("name", CALLS)
def test_arrays_inside_an_object(comm, name, root):
    made = {}  # kept, to see that nobody gets the same memory

    def make(source, dest):
        made[source, dest] = nested(source, dest)
        return made[source, dest]

    wm.reset_stats()
    got = moved(comm, name, root, make)
    stats = wm.stats()
    for obj in made.values():
        obj["a"].fill_(-1.0)
    for where, obj in got.items():
        check_nested(obj, *where)
    assert stats["staged_bytes"] == 0
    assert stats["host_bytes"] == 0
    assert stats["mpi_bytes"] == 0
    own = sum(source == comm.rank for source, _ in got)
    assert stats["self_bytes"] == own * NESTED_BYTES
    if name == "bcast":
        assert stats["ipc_bytes"] == 0
        shared = NESTED_PARTS if comm.size > 1 else 0
        assert stats["ipc_collectives"] == shared
    else:
        assert stats["ipc_bytes"] == (len(got) - own) * NESTED_BYTES


@gpu
@pytest.mark.parametrize("name", CALLS)
def test_objects_of_all_kinds_in_one_call(comm, name):
    """Some with arrays, long pickles, both, or neither."""

    def make(source, dest):
        kind = (source + dest + turn) % 5
        array = wm.full(70_000, values(source, dest, 0))
        text = f"{source} {dest} " * 80_000
        return [
            None,
            text,
            {"array": array},
            [array, text],
            [wm.zeros((4, 0))],
        ][kind]

    for turn in range(5):
        root = turn % comm.size
        for (source, dest), got in moved(comm, name, root, make).items():
            kind = (source + dest + turn) % 5
            if kind == 2:
                array = got["array"]
            elif kind == 3:
                array, text = got
                assert text == make(source, dest)[1]
            elif kind == 4:
                assert got[0].shape == (4, 0)
                assert got[0].device.is_cuda
            else:
                assert got == make(source, dest)
            if kind in (2, 3):
                assert (array.numpy() == values(source, dest, 0)).all()


@gpu
@pytest.mark.parametrize("seed", range(3))
def test_random_objects(comm, seed):
    everyone = random.Random(seed)
    for turn in range(25):
        name = everyone.choice(list(CALLS))
        root = everyone.randrange(comm.size)
        keep = comm.irecv(source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG)

        def arrays(source, dest, turn=turn):
            chosen = random.Random(f"{seed} {turn} {source} {dest}")
            return [
                np.full(
                    chosen.choice([0, 1, 50, 9000, 300_000]),
                    chosen.random(),
                    chosen.choice(["f4", "f8", "i2", "u1"]),
                )
                for _ in range(chosen.randrange(5))
            ]

        def make(source, dest, arrays=arrays):
            chosen = random.Random(f"where {source} {dest}")
            return [
                wm.from_numpy(each).to(chosen.choice(["cuda", "cuda", "cpu"]))
                for each in arrays(source, dest)
            ]

        for where, got in moved(comm, name, root, make).items():
            for array, wanted in zip(got, arrays(*where), strict=True):
                assert array.dtype == wanted.dtype
                assert (array.numpy() == wanted).all()
        comm.isend(turn, (comm.rank + 1) % comm.size, turn).wait()
        assert keep.wait() == turn


@gpu
@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", CALLS)
def test_what_cannot_be_pickled_among_arrays(comm, name):
    """What others send goes nowhere, and nobody waits for it."""
    culprit = 1
    root = 0 if name == "gather" else culprit

    def make(source, dest):
        array = wm.full(300_000, source)
        return [array, Stubborn() if source == culprit else array]

    for _ in range(2):
        told = "no pickle of this"
        if comm.rank == culprit:
            with pytest.raises(TypeError, match=told):
                moved(comm, name, root, make)
        elif name == "gather" and comm.rank != root:
            moved(comm, name, root, make)
        else:
            with pytest.raises(RuntimeError, match=f"rank 1 .*{told}"):
                moved(comm, name, root, make)
    got = comm.allgather(wm.full(3, comm.rank))
    assert [int(each.numpy()[0]) for each in got] == list(range(comm.size))


class Refused:
    """One that a rank has no room for, or cannot even unpickle."""

    def __init__(self, rank, how):
        self.arguments = (rank, Unreadable(rank) if how == "unread" else how)


class Unreadable:
    def __init__(self, rank):
        self.rank = rank

    def __reduce__(self):
        return _read, (self.rank,)


def _read(rank):
    if rank == MPI.COMM_WORLD.rank:
        raise LookupError("not known here")
    return "read"


def _make_refused(rank, how):
    if rank == MPI.COMM_WORLD.rank:
        raise MemoryError("no room on purpose")
    array = wm.empty(300_000)
    return array, lambda: array


@pytest.fixture
def refused(monkeypatch):
    def look(each):
        part = libraries.Embedded
        return part(wm.full(300_000, 5.0), _make_refused, each.arguments)

    monkeypatch.setitem(libraries.known(), Refused, look)


@pytest.mark.ranks(2)
def test_no_memory_at_one_rank(comm, monkeypatch):
    """All hear of it before the bytes are broadcast."""
    nowhere = comm.size - 1

    def make_room(self, steps):
        raise MemoryError("no room on purpose")

    if comm.rank == nowhere:
        monkeypatch.setattr(frames.Incoming, "_make_room", make_room)
    error = MemoryError if comm.rank == nowhere else RuntimeError
    with pytest.raises(error, match=f"rank {nowhere}|on purpose"):
        comm.bcast(OBJECTS[-3] if comm.rank == 0 else None)
    assert comm.bcast(comm.rank) == 0


@gpu
@pytest.mark.ranks(2)
@pytest.mark.parametrize("how", ["unmade", "unread"])
@pytest.mark.parametrize("name", CALLS)
def test_no_room_at_one_rank(comm, refused, name, how):
    """It raises there; the others get theirs, and the next call serves."""
    nowhere = comm.size - 1
    error = MemoryError if how == "unmade" else LookupError
    comm.Barrier()
    gc.collect()
    before = kinds.blocks()

    def make(source, dest):
        return [wm.full(9, source), Refused(nowhere, how), wm.ones(50_000)]

    for root in range(comm.size):
        gets = name != "gather" or comm.rank == root
        if comm.rank == nowhere and gets:
            with pytest.raises(error):
                moved(comm, name, root, make)
        else:
            for where, got in moved(comm, name, root, make).items():
                assert (got[0].numpy() == where[0]).all()
                assert (got[1].numpy() == 5).all()
                assert (got[2].numpy() == 1).all()
                del got
        assert comm.bcast(wm.ones(2), root).size == 2
    assert kinds.are_freed(before)
    comm.Barrier()


@gpu
@pytest.mark.programs
def test_ranks_that_share_no_memory(tmp_path):
    program = """
        import os
        from mpi4py import MPI
        import warpmpi as wm
        os.environ["WARPMPI_HOST"] = f"host{MPI.COMM_WORLD.rank}"
        comm = wm.Comm(MPI.COMM_WORLD)
        rank, size = comm.rank, comm.size
        for n in 10, 3_000_000:
            array = wm.full(n, rank)
            for root in range(size):
                assert (comm.bcast([array], root)[0].numpy() == root).all()
                got = comm.gather({1: array}, root)
                for k, each in enumerate(got or []):
                    assert (each[1].numpy() == k).all()
                got = comm.scatter([array] * size, root)
                assert (got.numpy() == root).all()
            for call in comm.allgather, lambda a: comm.alltoall([a] * size):
                for k, each in enumerate(call(array)):
                    assert (each.numpy() == k).all()
    """
    ranks.run_text(tmp_path, program, ranks=3)


@gpu
@pytest.mark.programs
def test_a_program_unchanged(tmp_path):
    program = """
        from mpi4py import MPI
        import warpmpi as wm
        wm.install()
        comm = MPI.COMM_WORLD
        wm.reset_stats()
        got = comm.bcast({"a": wm.ones(1000)} if comm.rank == 1 else None, 1)
        assert (got["a"].numpy() == 1).all()
        got = comm.alltoall([wm.full(9, comm.rank)] * comm.size)
        assert [each.numpy()[0] for each in got] == list(range(comm.size))
        assert wm.stats()["staged_bytes"] == 0
        assert wm.stats()["ipc_messages"] > 0
    """
    ranks.run_text(tmp_path, program, ranks=2)
