# SPDX-License-Identifier: BSD-3-Clause
"""wm.require("gpu"): calls that would stage GPU memory raise, on all ranks."""

import textwrap
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import ranks
import simulated_nccl
import warpmpi as wm

pytestmark = pytest.mark.skipif(
    not wm.is_cuda_available(), reason="needs a GPU"
)
PROGRAM = Path(__file__).resolve().parent.parent / "required_calls.py"


@pytest.fixture
def required(comm):
    """A communicator of two ranks or more that refuses to stage."""
    ours = comm.Dup()
    wm.require("gpu", ours)
    yield ours
    ours.Free()


def refusal(call, *args):
    with pytest.raises(wm.StagingError) as caught:
        call(*args)
    return str(caught.value)


LAYOUTS = {
    "one host": ([], {}),
    "GPUs do not reach each other": ([], {"SIMCUDA_PEER": "0"}),
    "apart": (["--apart"], {}),
    "apart, with NCCL": (["--apart", "--nccl"], simulated_nccl.environment()),
}


@pytest.mark.ranks(1)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_call_raises_or_not_on_all_ranks(layout):
    """The table of required_calls.py."""
    words, settings = LAYOUTS[layout]
    if kinds.is_real() and "SIMCUDA_PEER" in settings:
        pytest.skip("GPUs that do not reach each other are simulated")
    if "--nccl" not in words:
        settings = {**settings, "WARPMPI_ENGINES": "hierarchy,copies,kernels"}
    told = ranks.run(PROGRAM, *words, SIMCUDA_DEVICES="2", **settings)
    assert told.count("ok") == 2


# Each process sees a GPU of its own, as with srun --gpus-per-task.
HIDDEN = """
import os
rank = os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK"))
os.environ["SIMCUDA_FIRST"] = rank
import warpmpi as wm
from mpi4py import MPI
comm = wm.Comm(MPI.COMM_WORLD)
wm.require("gpu")
array = wm.ones(100_000)
for call in (
    lambda: comm.Send(array, 1) if comm.rank == 0 else comm.Recv(array, 0),
    lambda: comm.Allreduce(array, wm.empty(100_000)),
    lambda: comm.on(wm.Stream()).Allreduce(array, wm.empty(100_000)),
):
    try:
        call()
    except wm.StagingError as error:
        print("raised", error)
"""


@pytest.mark.ranks(1)
@pytest.mark.skipif(kinds.is_real(), reason="hides a simulated GPU")
def test_a_gpu_that_is_hidden_is_told(tmp_path):
    told = ranks.run_text(
        tmp_path, HIDDEN, SIMCUDA_DEVICES="1", SIMCUDA_PEER="0"
    )
    assert told.count("raised GPU memory would be staged") == 6
    text = "does not see the sender's GPU: no srun --gpus-per-task, no CUDA_"
    assert told.count(text) == 2
    assert told.count("Allreduce: no engine but MPI serves all ranks") == 2
    text = "the GPUs of these ranks do not reach each other: see `python -m"
    assert told.count(text) == 2


@pytest.mark.ranks(1)
@pytest.mark.long
@pytest.mark.parametrize("apart", ["", "--apart", "--apart 2"])
def test_each_call_does_so_on_four_ranks(apart):
    told = ranks.run(
        PROGRAM,
        *apart.split(),
        ranks=4,
        SIMCUDA_DEVICES="4",
        WARPMPI_ENGINES="hierarchy,copies,kernels",
        timeout=160,
    )
    assert told.count("ok") == 4


@pytest.mark.ranks(2)
def test_the_setting_is_of_one_communicator(comm, required):
    if comm.rank == 0:
        comm.Ssend(wm.ones(8), 1)
        text = refusal(required.Ssend, wm.ones(8), 1)
        assert "the receive buffer is host memory: receive into" in text
        assert "(told by the receiver, rank 1)" in text
    elif comm.rank == 1:
        into = np.zeros(8)
        comm.Recv(into, 0)
        assert (into == 1).all()
        text = refusal(required.Recv, into, 0)
        assert 'WARPMPI_REQUIRE=gpu or wm.require("gpu") forbids' in text


@pytest.mark.ranks(2, 3)
def test_it_can_be_taken_back(required):
    buffers = wm.ones(8), np.zeros(8)
    refusal(required.Allreduce, *buffers)
    for nothing in ("", None):
        wm.require(nothing, required)
        required.Allreduce(*buffers)
        assert (buffers[1] == required.size).all()
        wm.require("gpu", required)
        assert refusal(required.Allreduce, *buffers)


@pytest.mark.ranks(2, 3)
def test_ranks_that_differ_are_named(required):
    last = required.size - 1
    given = "" if required.rank == last else "gpu"
    with pytest.raises(RuntimeError, match=f'"gpu" and rank {last} ""'):
        wm.require(given, required)
    with pytest.raises(ValueError, match="'cpu' is not known: give \"gpu\""):
        wm.require("cpu" if required.rank == last else "gpu", required)
    refusal(required.Allreduce, wm.ones(8), np.zeros(8))  # as it was


@pytest.mark.ranks(1)
def test_a_communicator_of_mpi4pys_is_refused():
    with pytest.raises(TypeError, match=r"make one with wm\.Comm\(comm\)"):
        wm.require("gpu", MPI.COMM_WORLD.Dup())


@pytest.mark.ranks(2)
def test_a_call_that_mpi_refuses_leaves_nothing_behind(required):
    """The next call has its number, and no data of an earlier one."""
    array, into = wm.full(8, required.rank + 1.0, "f8"), wm.zeros(8, "f8")
    refusal(required.Reduce, array, np.zeros(8) if not required.rank else None)
    if required.rank == 0:
        with pytest.raises((MPI.Exception, ValueError)):
            required.Allreduce(np.ones(8), np.zeros(3))
    required.Allreduce(np.ones(8), host := np.zeros(8))
    assert (host == required.size).all()
    for _ in range(3):
        required.Allreduce(array, into)
        assert (into.numpy() == sum(range(required.size + 1))).all()
        into[:] = 0.0
        if required.rank == 0:
            required.Send(array, 1)
        elif required.rank == 1:
            required.Recv(into, 0)
            assert (into.numpy() == 1).all()


def add(a, b, kind):
    np.frombuffer(b)[:] += np.frombuffer(a)


@pytest.mark.ranks(2)
def test_starts_of_a_call_that_mpi_does_raise_while_it_is_set(comm):
    """It was made before, and is made for other ranks nevertheless."""
    array, into = wm.ones(8, "f8"), wm.zeros(8, "f8")
    op = MPI.Op.Create(add, commute=True)
    request = comm.Allreduce_init(array, into, op)
    for what in ("", "gpu", ""):
        wm.require(what, comm)
        for _ in range(2):
            into[:] = 0.0
            request.Start()
            if what:
                assert "MPI did the call" in refusal(request.Wait)
            else:
                request.Wait()
                assert (into.numpy() == comm.size).all()
    request.Free()
    op.Free()


@pytest.mark.ranks(2)
def test_host_memory_asks_once(required):
    """From then on a rank that only sends runs ahead."""
    for _ in range(2):
        required.Bcast(np.ones(3))
    before = wm.stats()
    for turn in range(20):
        array = np.full(3, turn)
        required.Bcast(array)
        assert (array == turn).all()
    after = wm.stats()
    assert after["staged_collectives"] == before["staged_collectives"]
    if required.rank == 0:
        required.Bcast(np.ones(3))
        required.Send(np.ones(3), 1)
    else:
        if required.rank == 1:
            required.Recv(np.ones(3), 0)  # before this rank's Bcast
        required.Bcast(np.ones(3))


STARTS = """
import warpmpi as wm
from mpi4py import MPI
try:
    comm = wm.Comm(MPI.COMM_WORLD)
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.ranks(1)
@pytest.mark.skipif(kinds.is_real(), reason="needs the simulated NCCL")
@pytest.mark.parametrize("count", [1, 2])
def test_why_no_engine_serves_between_hosts_is_told(tmp_path, count):
    """Once it could not be opened, it is not asked any more."""
    code = f"""
    os.environ["WARPMPI_HOST"] = f"host {{rank // {count}}}"
    import warpmpi as wm
    from mpi4py import MPI
    comm, array = wm.Comm(MPI.COMM_WORLD), wm.ones(50_000)
    wm.require("gpu")
    for _ in range(2):
        try:
            comm.Allreduce(array, wm.empty(50_000))
        except wm.StagingError as error:
            print("raised", error)
    """
    told = ranks.run_text(
        tmp_path,
        simulated_nccl.APART + textwrap.dedent(code),
        ranks=2 * count,
        **simulated_nccl.environment(SIMNCCL_FAIL="CommInitRankConfig:-1:3"),
    )
    text = 'engine "nccl": ncclCommInitRankConfig failed: '
    assert told.count("raised") == told.count(text) == 4 * count, told
    text = "let it serve, or use a communicator of one host"
    assert told.count(text) == 4 * count, told


@pytest.mark.ranks(1)
def test_the_environment_sets_it(tmp_path):
    code = STARTS + (
        "try:\n"
        "    comm.Bcast(wm.ones(9) if comm.rank else bytearray(36))\n"
        "except wm.StagingError as error:\n"
        "    print('refused', error)\n"
    )
    told = ranks.run_text(tmp_path, code, WARPMPI_REQUIRE="gpu")
    assert told.count("refused GPU memory would be staged") == 2


@pytest.mark.ranks(1)
def test_other_values_of_the_environment_are_refused(tmp_path):
    told = ranks.run_text(tmp_path, STARTS, WARPMPI_REQUIRE="cpu")
    assert told.count("WARPMPI_REQUIRE=cpu is not a known value: ") == 2


@pytest.mark.ranks(1)
def test_ranks_whose_environments_differ_are_named(tmp_path):
    code = (
        "import os\n"
        "if os.environ.get('OMPI_COMM_WORLD_RANK', "
        "os.environ.get('PMI_RANK')) == '1':\n"
        "    os.environ['WARPMPI_REQUIRE'] = 'gpu'\n"
    ) + STARTS
    told = ranks.run_text(tmp_path, code)
    text = "WARPMPI_REQUIRE is unset on rank 0 and gpu on rank 1: set it"
    assert told.count(text) == 2
