# SPDX-License-Identifier: BSD-3-Clause
"""An engine of collectives is one file and one row (tests/toys/ring_engine.c).

Builds with WARPMPI_TOYS=1 have it, such as that of `make test-asan`.
"""

import ast

import pytest
from mpi4py import MPI

import kinds
import ranks
import simulated_nccl
import warpmpi as wm
from warpmpi import _core

pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(
        "ring" not in _core._coll_engines(),
        reason="the core was built without WARPMPI_TOYS=1",
    ),
    pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU"),
]

# Rank 0 has what is first, rank 1 what is second.
CALLS = """
    import os, sys
    import numpy as np
    from mpi4py import MPI
    rank = MPI.COMM_WORLD.rank
    if "apart" in sys.argv:
        os.environ["WARPMPI_HOST"] = f"host {rank}"
    import warpmpi as wm
    from warpmpi import _core

    comm = wm.Comm(MPI.COMM_WORLD)
    MAKERS = {"gpu": wm.array, "numpy": lambda values: values}

    def check(pair, count, form="", dtype="float32"):
        make = MAKERS[pair[rank]]
        sent = make(np.arange(count).astype(dtype) + rank)
        got = make(np.zeros(count, dtype))
        if form == "in_place":
            comm.Allreduce(MPI.IN_PLACE, sent)
            got = sent
        elif form == "I":
            others = [make(np.zeros(count, dtype)) for _ in range(2)]
            MPI.Request.Waitall(
                [comm.Iallreduce(sent, into) for into in (got, *others)]
            )
        elif form == "init":
            request = comm.Allreduce_init(sent, got)
            for _ in range(3):
                request.Start()
                request.Wait()
            request.Free()
        else:
            comm.Allreduce(sent, got)
        got = np.asarray(got.to("cpu") if hasattr(got, "to") else got)
        expected = 2 * np.arange(count).astype(dtype) + 1
        assert np.array_equal(got, expected), (pair, count, form, got)
"""


def engines(folder, program, *words, **environment):
    """What each rank's engines have started; the program may print more."""
    if "apart" in words:  # where MPI does short calls, unless it is ruled out
        environment.setdefault("WARPMPI_ENGINES", simulated_nccl.ENGINES)
    text = CALLS + program + "    comm.Barrier()\n"
    text += '    print("engines", rank, _core._coll_engines())\n'
    printed = ranks.run_text(folder, text, *words, **environment)
    found = {}
    for line in printed.splitlines():
        if line.startswith("engines "):
            _, rank, counts = line.split(" ", 2)
            found[int(rank)] = ast.literal_eval(counts)
    assert sorted(found) == [0, 1], printed
    return found


@pytest.mark.parametrize("form", ["", "in_place", "I", "init"])
def test_it_does_the_calls(tmp_path, form):
    program = f"""
    check(("gpu", "gpu"), 10)  # opens it
    check(("gpu", "gpu"), 30_000, {form!r})
    check(("gpu", "gpu"), 5, {form!r}, "float64")
"""
    calls = {"I": 7, "init": 7}.get(form, 3)
    for counts in engines(tmp_path, program, TOY_RING="on").values():
        assert counts["ring"] == calls
        assert counts["copies"] == counts["mpi"] == 0


def test_a_rank_with_host_memory_waits_for_nobody(tmp_path):
    """MPI does the call, as ever; the ring is not asked."""
    program = """
    check(("numpy", "gpu"), 30_000)
    check(("gpu", "numpy"), 30_000, "I")
"""
    for counts in engines(tmp_path, program, TOY_RING="on").values():
        assert counts["ring"] == counts["copies"] == 0


def test_another_engine_does_the_calls_if_it_does_not_open(tmp_path):
    program = """
    for form in ("", "in_place", "I", "init"):
        check(("gpu", "gpu"), 30_000, form)
"""
    for counts in engines(tmp_path, program, TOY_RING="unopened").values():
        assert counts["ring"] == 0
        assert counts["copies"] >= 6
        assert counts["mpi"] == 0


def test_a_failure_in_a_step_is_raised_on_all_ranks(tmp_path):
    """Once; later calls are made."""
    program = """
    check(("gpu", "gpu"), 10)
    try:
        check(("gpu", "gpu"), 10)
    except RuntimeError as error:
        print(f"rank {rank}: {error}", flush=True)
    check(("gpu", "gpu"), 10)
    comm.Barrier()
    sys.stdout.flush()
"""
    text = CALLS + program
    printed = ranks.run_text(tmp_path, text, TOY_RING="dies")
    told = "the ring has died in a step"
    assert sorted(printed.splitlines()) == [
        f"rank 0: rank 1 failed in this collective: {told}",
        f"rank 1: {told}",
    ]


# The ring makes a blocking call of each one on a stream, and both count.
def test_a_capture_is_refused_by_name(tmp_path):
    program = """
    stream = wm.Stream()
    given, got = wm.zeros(100, "float32"), wm.zeros(100, "float32")
    comm.on(stream).Allreduce(given, got)  # not captured
    comm.on(stream).Bcast(given)  # the ring does no Bcast
    stream.synchronize()
    try:
        with graphs.capture(stream):
            comm.on(stream).Allreduce(given, got)
    except RuntimeError as error:
        assert 'engine "ring" cannot be captured' in str(error), error
    else:
        raise AssertionError("it was captured")
"""
    folder = str(ranks.ROOT / "tests")
    program = f"""
    sys.path.insert(0, {folder!r})
    import graphs
{program}"""
    found = engines(tmp_path, program, TOY_RING="on")
    assert [counts["ring"] for counts in found.values()] == [2, 2]


def test_a_wait_for_a_stream_raises_a_failure_of_any_engine(tmp_path):
    """Once."""
    program = """
    stream = wm.Stream()
    given, got = wm.zeros(100, "float32"), wm.zeros(100, "float32")
    for wait in stream.synchronize, wm.get_device().synchronize:
        comm.on(stream).Allreduce(given, got)
        try:
            wait()
            raise AssertionError("nobody was told")
        except RuntimeError as error:
            assert "the ring has failed on its stream" in str(error), error
        wait()
"""
    engines(tmp_path, program, TOY_RING="fails")


def test_on_a_stream_type_and_operation_choose_the_engine(tmp_path):
    """A rank with wrong arguments tells the others, whichever they use."""
    program = """
    stream = wm.Stream()
    given, got = wm.zeros(100, "float32"), wm.zeros(100, "float32")
    comm.on(stream).Allreduce(given, got, op=MPI.MAX)  # by kernels
    comm.on(stream).Allreduce(given, got)  # by the ring
    stream.synchronize()
    try:
        comm.on(stream).Allreduce(given, got[: 100 - rank])
        raise AssertionError("rank 1 has one element too few")
    except (RuntimeError, TypeError, ValueError):
        pass
    comm.on(stream).Allreduce(given, got)
    stream.synchronize()
"""
    found = engines(tmp_path, program, TOY_RING="sums")
    assert [counts["ring"] for counts in found.values()] == [4, 4]


def test_a_wrong_first_call_on_a_stream_opens_no_engine(tmp_path):
    """Nor does a rank wait for others, which use another engine."""
    program = """
    stream = wm.Stream()
    given, got = wm.ones(100, "float32"), wm.zeros(100, "float32")
    try:
        comm.on(stream).Allreduce(given, got[: 100 - rank])
        raise AssertionError("rank 1 has one element too few")
    except (RuntimeError, TypeError, ValueError):
        pass
    comm.on(stream).Allreduce(given, got, op=MPI.MAX)  # by kernels
    comm.on(stream).Allreduce(given, got)  # by the ring
    stream.synchronize()
    assert (np.asarray(got.to("cpu")) == 2).all()
"""
    found = engines(tmp_path, program, TOY_RING="sums")
    assert [counts["ring"] for counts in found.values()] == [2, 2]


def test_between_hosts_each_class_of_calls_has_its_engine(tmp_path):
    """The first call asks, also ranks with host memory; short calls do not."""
    program = """
    for pair in (("gpu", "gpu"), ("gpu", "numpy"), ("numpy", "numpy")):
        for form in ("", "in_place", "I"):
            check(pair, 10, form)  # by MPI
            check(pair, 30_000, form)
            check(pair, 30_000, form, "float64")
"""
    told = {"WARPMPI_ENGINES": simulated_nccl.ENGINES + ",mpi"}
    for counts in engines(
        tmp_path, program, "apart", TOY_RING="on", **told
    ).values():
        assert counts["ring"] == 3 * 2 * (1 + 1 + 3)


MIXED = """
    VALUES = (np.arange(30_000) % 1000).astype("int16")

    def mixed(form, dtype=MPI.SHORT):
        # Rank 0 has GPU arrays; rank 1 what no engine takes: memory of two
        # kinds, a datatype that arrays do not have.
        sent = VALUES + np.int16(rank)
        got = np.zeros(30_000, "int16")
        if rank == 0:
            sent, got = wm.array(sent), wm.array(got)
        elif form != "I":
            sent = wm.array(sent)
        if form == "I":
            comm.Iallreduce([sent, dtype], got).Wait()
        else:
            comm.Allreduce([sent, dtype], got)
        got = np.asarray(got.to("cpu") if hasattr(got, "to") else got)
        assert np.array_equal(got, 2 * VALUES + 1)
"""


def test_between_hosts_each_rank_asks_and_obeys(tmp_path):
    """Whatever its arguments are: else it would call MPI, and the others wait.

    A rank that the class's engine cannot serve moves its data.
    """
    program = (
        MIXED
        + """
    mixed("")  # asks: MPI does this class
    mixed("I")
    assert _core._coll_engines()["ring"] == 0
    check(("gpu", "numpy"), 30_000)  # another class: the ring's
    before = wm.stats()["moved_collectives"]
    check(("gpu", "numpy"), 30_000)
    assert wm.stats()["moved_collectives"] == before
"""
    )
    for counts in engines(tmp_path, program, "apart", TOY_RING="on").values():
        assert counts["ring"] == 2


def test_between_hosts_a_rank_moves_what_the_engine_cannot_take(tmp_path):
    program = (
        MIXED
        + """
    got = np.zeros_like(VALUES)
    comm.Allreduce(VALUES, got)  # asks: the ring does this class
    assert np.array_equal(got, 2 * VALUES)
    before = wm.stats()["moved_collectives"]
    for form in ("", "I", "", "I"):
        mixed(form)
    assert wm.stats()["moved_collectives"] - before == (0, 2)[rank]
"""
    )
    for counts in engines(tmp_path, program, "apart", TOY_RING="on").values():
        assert counts["ring"] == 5


@pytest.mark.long  # ranks start one after the other
def test_between_hosts_there_may_be_more_ranks_than_at_a_barrier(tmp_path):
    """An engine serves them; with counts by rank MPI does."""
    program = """
    import os
    import numpy as np
    from mpi4py import MPI
    rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
    os.environ["WARPMPI_HOST"] = f"host {rank > 0}"
    import warpmpi as wm
    from warpmpi import _core

    comm = wm.Comm(MPI.COMM_WORLD)
    given, got = wm.ones(30_000, "f4"), wm.zeros(30_000, "f4")
    comm.Allreduce(given, got)
    assert (got.numpy() == size).all()
    counts = [30 + each % 2 for each in range(size)]
    given, got = wm.ones(sum(counts), "i4"), wm.zeros(counts[rank], "i4")
    comm.Reduce_scatter(given, got, counts)
    assert (got.numpy() == size).all()
    got = wm.zeros(size, "i4")
    comm.Allgatherv(wm.full(1, rank, dtype="i4"), got)
    assert (got.numpy() == np.arange(size)).all()
    if rank == 0:
        print(_core._coll_engines()["ring"])
    """
    printed = ranks.run_text(
        tmp_path, program, ranks=66, timeout=300, TOY_RING="on"
    )
    assert printed.split() == ["1"]


def test_between_hosts_nonblocking_calls_need_not_ask(tmp_path):
    """All ranks know an open engine that takes all memory."""
    program = (
        MIXED
        + """
    check(("gpu", "numpy"), 30_000, "I")
    assert _core._coll_engines()["ring"] == 0  # it is not open
    check(("gpu", "numpy"), 2_000)  # opens it
    for pair in (("gpu", "numpy"), ("numpy", "gpu"), ("numpy", "numpy")):
        check(pair, 30_000, "I")
    mixed("I")
    # A rank with memory of two kinds moves its data.
    sent, got = VALUES + np.int16(rank), np.zeros(30_000, "int16")
    before = wm.stats()["moved_collectives"]
    comm.Iallreduce(wm.array(sent) if rank == 1 else sent, got).Wait()
    assert np.array_equal(got, 2 * VALUES + 1)
    assert wm.stats()["moved_collectives"] == before + rank
    mixed("")  # asks: MPI does this class from now on
    mixed("I")
"""
    )
    for counts in engines(tmp_path, program, "apart", TOY_RING="on").values():
        assert counts["ring"] == 1 + 3 * 3 + 1 + 1


ASKING = """
    def begin(pair, count, dtype="float32", wraps=lambda sent: sent):
        make = MAKERS[pair[rank]]
        sent = make(np.arange(count).astype(dtype) + rank)
        got = make(np.zeros(count, dtype))
        return comm.Iallreduce(wraps(sent), got), got

    def end(request, got):
        request.Wait()
        got = np.asarray(got.to("cpu") if hasattr(got, "to") else got)
        expected = 2 * np.arange(got.size).astype(got.dtype) + 1
        assert np.array_equal(got, expected), got

    def started():
        return _core._coll_engines()["gpu_ring"]
"""


def test_between_hosts_a_nonblocking_call_asks_for_its_class(tmp_path):
    """Ranks with host memory, too; all obey the answer."""
    program = (
        ASKING
        + """
    end(*begin(("gpu", "gpu"), 30_000))
    assert started() == 0  # it is not open
    check(("gpu", "gpu"), 2000)  # opens it
    asked = [begin(("gpu", "gpu"), 30_000) for _ in range(2)]
    asked += [begin(("numpy", "gpu"), 30_000, "int32") for _ in range(2)]
    asked += [begin(("gpu", "numpy"), 30_000)]
    for each in asked:
        end(*each)
    assert started() == 1 + 2 + 1
    assert wm.stats()["moved_collectives"] == rank
    check(("gpu", "gpu"), 30_000, dtype="int32")  # MPI's, as was answered
    check(("gpu", "gpu"), 30_000, "I", "int32")
    assert started() == 4
    check(("numpy", "gpu"), 30_000)  # the ring's
    assert started() == 5
"""
    )
    for counts in engines(
        tmp_path, program, "apart", TOY_RING="gpus"
    ).values():
        assert counts["gpu_ring"] == 5


def test_between_hosts_mpi_gets_what_asked_in_vain(tmp_path):
    """Also of a rank with gaps, or with memory of two kinds."""
    program = (
        ASKING
        + """
    check(("gpu", "gpu"), 2000)
    sent, got = np.zeros(60_000, "float32"), np.zeros(60_000, "float32")
    sent[::2] = np.arange(30_000) + rank
    turns = []
    for _ in range(2):
        if rank == 0:
            turns.append(begin(("gpu", "gpu"), 30_000))
        else:
            into = np.zeros(30_000, "float32")
            strided = wm.array(sent)[::2]
            turns.append((comm.Iallreduce(strided, into), into))
    for each in turns:
        end(*each)
    assert started() == 1
    assert wm.stats()["moved_collectives"] == 2 * rank
"""
    )
    for counts in engines(
        tmp_path, program, "apart", TOY_RING="gpus"
    ).values():
        assert counts["mpi"] == 2


def test_between_hosts_to_ask_waits_for_nobody(tmp_path):
    """Rank 1 begins its calls when rank 0 has begun all of its own."""
    program = (
        ASKING
        + """
    world = MPI.COMM_WORLD
    check(("gpu", "gpu"), 2000)
    if rank == 1:
        world.recv(source=0)
    classes = ("float32", "float64", "int32")
    begun = [begin(("gpu", "gpu"), 9000, dtype) for dtype in classes * 8]
    begun.append(begin(("gpu", "gpu"), 10))
    if rank == 0:
        world.send("begun", dest=1)
    check(("gpu", "gpu"), 9000, dtype="float64")  # waits for the answer
    for each in begun:
        end(*each)
    end(*begin(("gpu", "gpu"), 9000, "float64"))
    assert started() == 1 + 3 * 8 + 1 + 1 + 1
"""
    )
    engines(tmp_path, program, "apart", TOY_RING="gpus")


def test_between_hosts_a_persistent_call_asks_when_it_is_made(tmp_path):
    """Also a short one; later its array may be in other memory."""
    program = """
    for pair in (("gpu", "numpy"), ("gpu", "gpu")):
        check(pair, 10, "init")
        check(pair, 30_000, "init")
"""
    for counts in engines(tmp_path, program, "apart", TOY_RING="on").values():
        assert counts["ring"] == 2 * 2 * 3


def test_between_hosts_mpi_does_the_calls_if_it_does_not_open(tmp_path):
    program = """
    for form in ("", "in_place", "I", "init"):
        check(("gpu", "numpy"), 30_000, form)
"""
    for counts in engines(
        tmp_path, program, "apart", TOY_RING="unopened"
    ).values():
        assert counts["ring"] == counts["copies"] == 0


@pytest.mark.skipif(
    not MPI.Get_library_version().startswith("Open MPI v5"),
    reason="needs an MPI that tells of dead ranks",
)
@pytest.mark.parametrize(
    "place, ring, count",
    [
        ("one host", "on", 30_000),
        ("apart", "on", 30_000),
        ("apart", "gpus", 9000),
    ],
    ids=["one host", "apart", "asked"],
)
def test_a_dead_rank_ends_a_call(tmp_path, place, ring, count):
    program = """
    import signal
    MPI.COMM_WORLD.Set_errhandler(MPI.ERRORS_RETURN)
    check(("gpu", "gpu"), 30_000)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    count = int(sys.argv[2])
    given, got = wm.zeros(count, "float32"), wm.zeros(count, "float32")
    for call in (
        lambda: comm.Iallreduce(given, got).Wait(),
        lambda: comm.Allreduce(given, got),
        lambda: comm.Iallreduce(given, got).Wait(),
    ):
        try:
            call()
        except MPI.Exception as error:
            assert error.Get_error_class() == MPI.ERR_PROC_FAILED, error
            print("told", flush=True)
    os._exit(0)
"""
    printed = ranks.run_text(
        tmp_path,
        CALLS + program,
        place,
        str(count),
        flags=("--with-ft", "ulfm"),
        died=True,
        TOY_RING=ring,
    )
    assert printed.split() == ["told"] * 3


@pytest.mark.skipif(len(wm.get_cuda_devices()) < 2, reason="needs two GPUs")
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kind", ["pool", "foreign"])
@pytest.mark.parametrize("place", [[], ["apart"]], ids=["", "apart"])
def test_buffers_on_two_gpus(tmp_path, place, kind, stride):
    """The ring's own copies, and those of MPI's row that it begins."""
    program = """
    sys.path.insert(0, sys.argv[1])
    import kinds
    kind, stride = sys.argv[2], int(sys.argv[3])
    given, got = wm.get_cuda_devices()[:2]

    def make(device, values):
        with wm.ScopedDevice(device):
            array = wm.asarray(kinds.make(kind, np.repeat(values, stride)))
        return array[::stride]

    values = np.arange(3000, dtype="int32")
    for name in ("Allreduce", "Scan"):
        calls = comm.size if name == "Allreduce" else rank + 1
        expected = sum(values + other for other in range(calls))
        for turn in range(3):
            sent, into = make(given, values + rank), make(got, 0 * values)
            getattr(comm, name)(sent, into)
            assert np.array_equal(into.numpy(), expected), name
            given, got = got, given
"""
    words = [str(ranks.ROOT / "tests"), kind, str(stride), *place]
    for counts in engines(tmp_path, program, *words, TOY_RING="all").values():
        assert counts["ring"] == 6


@pytest.mark.parametrize("ring", ["on", "unopened", "gpus"])
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("place", ["", "--apart 1"])
def test_random_calls(seed, ring, place):
    count = 2000 if kinds.is_real() else 150
    words = f"--calls Allreduce --collectives {count} --seed {seed} "
    words += f"--max-bytes 60000 --patience 0 {place}"
    program = ranks.ROOT / "tests" / "random_collectives.py"
    printed = ranks.run(program, *words.split(), TOY_RING=ring)
    assert "every one right" in printed


@pytest.mark.parametrize("seed", [1, 2])
def test_random_calls_between_hosts(seed):
    """Of all kinds, so of all arguments that a rank reads for its class."""
    count = 1000 if kinds.is_real() else 200
    words = f"--collectives {count} --seed {seed} --forms blocking "
    words += "--max-bytes 600000 --patience 0 --apart 1"
    program = ranks.ROOT / "tests" / "random_collectives.py"
    printed = ranks.run(program, *words.split(), TOY_RING="all")
    assert "every one right" in printed
