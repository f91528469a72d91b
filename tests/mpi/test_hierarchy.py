# SPDX-License-Identifier: BSD-3-Clause
"""An engine may make a call of collectives of its levels.

tests/toys/hierarchy_engine.c does, by a schedule: a Reduce_scatter in each
host, an Allreduce on each rail, an Allgatherv in each host. Builds with
WARPMPI_TOYS=1 have it, such as that of `make test-asan`.
"""

import ast

import pytest
from mpi4py import MPI

import kinds
import ranks
import warpmpi as wm
from warpmpi import _core

pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(
        "hierarchy" not in _core._coll_engines(),
        reason="the core was built without WARPMPI_TOYS=1",
    ),
    pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU"),
]

# The hosts of 4 ranks, and of 3, where one is alone on its host.
HOSTS = {"pairs": "0011", "mixed": "0101", "unequal": "001"}

BEGIN = """
    import os, random, sys, time
    import numpy as np
    from mpi4py import MPI
    rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
    os.environ["WARPMPI_HOST"] = "host " + sys.argv[1][rank]
    import warpmpi as wm
    from warpmpi import _core

    comm = wm.Comm(MPI.COMM_WORLD)
    COUNT = 5000

    def new(make=wm.array):
        values = np.arange(COUNT, dtype="float32")
        return make(values + rank), make(0 * values)

    def check(got):
        got = np.asarray(got.to("cpu") if hasattr(got, "to") else got)
        values = np.arange(COUNT, dtype="float32")
        assert np.array_equal(got, values * size + size * (size - 1) // 2)

    def allreduce():
        given, got = new()
        comm.Allreduce(given, got)
        check(got)
"""


def run(folder, program, hosts, *, mode="on", begin=BEGIN, **options):
    """What the ranks print."""
    return ranks.run_text(
        folder,
        begin + program,
        hosts,
        ranks=len(hosts),
        TOY_HIERARCHY=mode,
        **options,
    )


def engines(printed):
    """What each rank's engines have started."""
    return [
        ast.literal_eval(line.split(" ", 1)[1])
        for line in printed.splitlines()
        if line.startswith("engines ")
    ]


@pytest.mark.parametrize("hosts", HOSTS.values(), ids=HOSTS)
def test_calls_of_all_forms_meet_on_every_level(tmp_path, hosts):
    """Ranks come early or late, with any memory, and wait in any order."""
    program = """
    MAKERS = wm.array, wm.array, lambda values: values
    plan, mine = random.Random(1), random.Random(rank)
    allreduce()
    for turn in range(10):
        pending = []
        for _ in range(plan.randrange(1, 10)):
            given, got = new(mine.choice(MAKERS))
            time.sleep(mine.choice([0, 0, 0, 0.003]))
            form = plan.choice(["", "in_place", "I", "I", "init"])
            if form == "I":
                pending.append((comm.Iallreduce(given, got), given, got))
            elif form == "init":
                request = comm.Allreduce_init(given, got)
                request.Start()
                pending.append((request, given, got))
            elif form == "in_place":
                comm.Allreduce(MPI.IN_PLACE, given)
                check(given)
            else:
                comm.Allreduce(given, got)
                check(got)
        mine.shuffle(pending)
        for request, given, got in pending:
            request.Wait()
            check(got)
            if request:  # a persistent one
                request.Free()
    print("engines", _core._coll_engines())
"""
    found = engines(run(tmp_path, program, hosts))
    assert len({counts["hierarchy"] for counts in found}) == 1
    assert len(found) == len(hosts)
    for counts in found:
        assert counts["hierarchy"] > 20
        assert counts["copies"] > 10  # in the host, where both had GPU memory


def test_gpu_memory_moves_in_the_host_by_the_first_engine(tmp_path):
    """MPI reduces between hosts, and tells that nobody has failed."""
    program = """
    for _ in range(3):
        allreduce()
    print("engines", _core._coll_engines())
"""
    found = engines(run(tmp_path, program, HOSTS["pairs"]))
    assert {counts["copies"] for counts in found} == {6}
    assert {counts["mpi"] for counts in found} == {6}


def test_a_blocking_call_opens_the_engine_of_a_class_that_was_asked(tmp_path):
    """Nonblocking calls before have the first one that was open as they began.

    Averages open the ring of GPUs alone.
    """
    program = """
    comm.Allreduce(*new(), op=wm.AVG)

    def begin():
        given, got = new()
        return comm.Iallreduce(given, got), got

    def started():
        counts = _core._coll_engines()
        return counts["hierarchy"], counts["gpu_ring"]

    begun = [begin() for _ in range(3)]
    allreduce()  # waits for the answer, and opens the hierarchy
    begun.append(begin())
    for request, got in begun:
        request.Wait()
        check(got)
    assert started()[0] == 2, started()
    print("rings", started()[1])
"""
    printed = run(tmp_path, program, HOSTS["unequal"], TOY_RING="gpus")
    assert [line.split()[0] for line in printed.splitlines()] == ["rings"] * 3
    assert min(int(line.split()[1]) for line in printed.splitlines()) == 4


# Blocking and nonblocking calls in turn.
IN_TURN = """
    for _ in range(3):
        allreduce()
        given, got = new()
        comm.Iallreduce(given, got).Wait()
        check(got)
    print("engines", _core._coll_engines())
"""


def test_an_engine_that_is_open_on_a_level_does_its_calls(tmp_path):
    """Also between hosts, where nobody asks."""
    hosts = HOSTS["unequal"]
    found = engines(run(tmp_path, IN_TURN, hosts, TOY_RING="on"))
    # Rank 1, with nobody on its rail, asks as on one host.
    assert sorted(counts["ring"] for counts in found) == [0, 6, 6]
    assert {counts["mpi"] for counts in found} == {6}  # the verdicts


def test_kernels_that_are_open_in_a_host_do_its_tasks(tmp_path):
    """In blocking calls alone; for GPUs that do not reach each other."""
    program = """
    for _ in range(3):
        allreduce()
        given, got = new()
        comm.Iallreduce(given, got).Wait()
        check(got)
        comm.Allreduce(MPI.IN_PLACE, given)
        check(given)
    print("engines", _core._coll_engines())
"""
    found = engines(
        run(
            tmp_path,
            program,
            HOSTS["pairs"],
            mode="kernels",
            WARPMPI_TRANSPORT="host",
        )
    )
    assert {counts["hierarchy"] for counts in found} == {9}
    assert {counts["copies"] for counts in found} == {0}
    assert {counts["kernels"] for counts in found} == {2 * 6}


@pytest.mark.skipif(kinds.is_real(), reason="needs the simulated driver")
def test_a_task_of_kernels_that_fails_ends_on_all_ranks(tmp_path):
    """MPI does the next tasks of this host."""
    program = """
    import ctypes
    import kinds
    allreduce()
    given, got = new()
    if rank == 1:
        kinds.driver().simcuda_fail(b"LaunchKernel", ctypes.c_long(1), 999)
    try:
        comm.Allreduce(given, got)
        print("right", flush=True)
    except (RuntimeError, wm.CudaError):
        print("raised", flush=True)
    if rank == 1:
        kinds.driver().simcuda_fail(None, ctypes.c_long(0), 999)
    before = _core._coll_engines()["kernels"]
    for _ in range(2):
        allreduce()
    print("engines", dict(kernels=_core._coll_engines()["kernels"] - before))
"""
    printed = run(
        tmp_path,
        program,
        HOSTS["pairs"],
        mode="kernels",
        WARPMPI_TRANSPORT="host",
    )
    assert printed.count("raised") == 4, printed
    kernels = sorted(counts["kernels"] for counts in engines(printed))
    assert kernels == [0, 0, 4, 4]


def test_mpi_does_the_tasks_of_ranks_that_do_not_see_each_other(tmp_path):
    """A level has no barrier where ranks may not make their segments."""
    makes = "    comm = wm.Comm(MPI.COMM_WORLD)\n"
    limited = f"""
    import resource
    assert wm.is_cuda_available()  # the simulated driver makes files
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10240, before[1]))
{makes}
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
"""
    assert makes in BEGIN
    begin = BEGIN.replace(makes, limited)
    found = engines(run(tmp_path, IN_TURN, HOSTS["pairs"], begin=begin))
    for counts in found:
        assert counts["hierarchy"] == 6
        assert counts["copies"] == 0
        assert counts["mpi"] == 6 * 4


def test_mpi_does_the_calls_if_the_levels_do_not_open(tmp_path):
    program = """
    for _ in range(2):
        allreduce()
    print("engines", _core._coll_engines())
"""
    for counts in engines(
        run(tmp_path, program, HOSTS["pairs"], mode="unopened")
    ):
        assert counts["hierarchy"] == counts["copies"] == 0


@pytest.mark.parametrize("hosts", HOSTS.values(), ids=HOSTS)
@pytest.mark.parametrize("form", ["", "I"])
def test_a_failure_of_one_rank_is_raised_on_all(tmp_path, hosts, form):
    """Once, in the call in which it was; later ones are made."""
    program = f"""
    allreduce()
    given, got = new()
    try:
        if {form!r}:
            comm.Iallreduce(given, got).Wait()
        else:
            comm.Allreduce(given, got)
    except RuntimeError as error:
        print("told", rank, error, flush=True)
    allreduce()
"""
    printed = run(tmp_path, program, hosts, mode="dies")
    told = sorted(
        line for line in printed.splitlines() if line.startswith("told")
    )
    last = len(hosts) - 1
    assert [line.split()[1] for line in told] == [*map(str, range(last + 1))]
    assert told[last] == f"told {last} the hierarchy has died"
    for line in told[:last]:
        assert f"rank {last} failed in this collective: " in line, told


@pytest.mark.skipif(
    not MPI.Get_library_version().startswith("Open MPI v5"),
    reason="needs an MPI that tells of dead ranks",
)
@pytest.mark.parametrize("form", ["", "I"])
@pytest.mark.parametrize(
    "hosts, dead", [("001", 0), ("001", 1), ("001", 2), ("0101", 2)]
)
def test_a_dead_rank_ends_the_call_on_all_levels(tmp_path, hosts, dead, form):
    """Also where it is in no level of a rank that still waits."""
    program = f"""
    import signal
    MPI.COMM_WORLD.Set_errhandler(MPI.ERRORS_RETURN)
    allreduce()
    if rank == {dead}:
        os.kill(os.getpid(), signal.SIGKILL)
    given, got = new()
    try:
        if {form!r}:
            comm.Iallreduce(given, got).Wait()
        else:
            comm.Allreduce(given, got)
    except MPI.Exception as error:
        assert error.Get_error_class() == MPI.ERR_PROC_FAILED, error
        print("told", flush=True)
    os._exit(0)
"""
    printed = run(
        tmp_path,
        program,
        hosts,
        flags=("--with-ft", "ulfm"),
        died=True,
    )
    assert printed.split() == ["told"] * (len(hosts) - 1)


def test_levels_end_with_their_communicator(tmp_path):
    """Nothing is left: no slot of a barrier, no communicator of MPI's."""
    program = """
    world = comm
    for _ in range(300):  # there are 256 slots
        comm = world.Dup()
        allreduce()
        comm.Free()
    comm = world.Dup()
    allreduce()
    print("engines", _core._coll_engines())
"""
    for counts in engines(run(tmp_path, program, HOSTS["unequal"])):
        assert counts["hierarchy"] == 301
        assert counts["copies"] == 602


@pytest.mark.parametrize("ring", [{}, {"TOY_RING": "on"}], ids=["", "ring"])
@pytest.mark.parametrize("size", [4, 3])
def test_random_calls(size, ring):
    count = 6000 if kinds.is_real() else 500
    words = f"--calls Allreduce --comms world dup --collectives {count} "
    words += "--seed 1 --max-bytes 400000 --patience 0 --apart 2"
    program = ranks.ROOT / "tests" / "random_collectives.py"
    printed = ranks.run(
        program, *words.split(), ranks=size, TOY_HIERARCHY="on", **ring
    )
    assert "every one right" in printed


def test_levels_that_cannot_be_made(tmp_path):
    """MPI does the calls, and what was made of the levels is freed."""
    program = """
    for turn in range(2):
        comm = wm.Comm(MPI.COMM_WORLD.Dup())
        if rank == size - 1:
            os.environ["WARPMPI_TRANSPORT"] = "none of these"
        for form in range(2):
            allreduce()
        os.environ.pop("WARPMPI_TRANSPORT", None)
        comm.Free()
    print("engines", _core._coll_engines())
    """
    found = engines(
        run(tmp_path, program, HOSTS["pairs"], MALLOC_PERTURB_="165")
    )
    assert [each["hierarchy"] for each in found] == [0] * 4
