# SPDX-License-Identifier: BSD-3-Clause
"""`python -m warpmpi bench` on two ranks; figures are not looked at."""

import json
import os

import pytest

import kinds
import ranks
import warpmpi as wm
from warpmpi._bench.options import GROUPS

pytestmark = pytest.mark.programs
needs_gpu = pytest.mark.skipif(
    not wm.is_cuda_available(), reason="needs a GPU"
)
LINKS = {"ipc", "ucx", "host"}  # as the GPUs allow
STAND_IN = ranks.ROOT / "tests" / "cupy_stand_in"
BENCH = "-m", "warpmpi", "bench"
SHORT = "-b 8 -e 8K -f 1000 --turns 2 -n 2 -w 1".split()
TOGETHER = "sh", "-c", '"$@" 2>&1', "sh"  # stderr with stdout


def nccl():
    """Where the rival is: the simulated one beside the simulated driver."""
    if kinds.is_real():
        return {}
    library = ranks.ROOT / "build" / "simnccl" / "libnccl.so.2"
    return {"WARPMPI_BENCH_NCCL": str(library), "NCCL_SOCKET_IFNAME": "lo"}


def rows(file, *words, **more):
    """What was measured, each row right; and the header."""
    printed = ranks.run(*BENCH, *words, *SHORT, "--json", file, **more)
    told = json.loads(file.read_text())
    for row in told["rows"]:
        assert "us" in row and row["us_min"] <= row["us"] <= row["us_max"], row
        assert row["wrong"] == 0
        for each in row["rivals"].values():
            assert each.get("wrong", 0) == 0
        assert str(row["size"]) in printed
    assert len(told["header"]["ranks"]) == 2
    return told["rows"], told["header"]


def of(found, name, rival):
    return [r["rivals"][rival] for r in found if r["name"] == name]


def served(found, messages=False):
    """Return the engines, or the transports, of all rows but barriers."""
    return {
        row["by"]
        for row in found
        if (row["name"] in GROUPS["p2p"]) == messages
        and row["name"] != "barrier"
    }


@needs_gpu
def test_every_operation_beside_others(tmp_path):
    """On real GPUs NCCL may refuse ranks that share one."""
    against = "staged" if kinds.is_real() else "nccl,staged"
    words = "all", "--against", against
    found, header = rows(tmp_path / "all.json", *words, **nccl())
    assert {row["name"] for row in found} == set(GROUPS["all"])
    assert served(found) <= {"copies", "kernels"}
    assert served(found, messages=True) <= LINKS
    for each in of(found, "alltoallv", "staged"):
        assert each["ratio_low"] <= each["ratio"] <= each["ratio_high"]
    if "nccl" in against:
        assert all("us" in each for each in of(found, "gatherv", "nccl"))
        (scan, _) = of(found, "scan", "nccl")
        assert scan["left_out"] == "this NCCL has no Scan"
        assert header["simulated"]


@needs_gpu
@pytest.mark.parametrize("mode", ["--stream", "--graph"])
def test_calls_on_a_stream_and_in_a_graph(tmp_path, mode):
    names = "allreduce,reduce_scatterv,neighbor_alltoall,barrier,p2p"
    more = nccl()
    against = ["--against", "nccl,staged"] if more else []
    if more:  # the simulated driver has a CuPy beside it
        paths = ranks.ROOT, ranks.ROOT / "tests", STAND_IN
        more["PYTHONPATH"] = os.pathsep.join(map(str, paths))
        against += ["--array", "cupy"]
    found, _ = rows(tmp_path / "x.json", names, mode, *against, **more)
    assert served(found) == {"kernels"}
    assert served(found, messages=True) <= LINKS
    for row in found:
        if against:
            left_out = row["rivals"]["staged"]["left_out"]
            assert left_out == "it has no calls on streams"


def test_host_arrays_beside_mpi(tmp_path):
    words = "allreduce,p2p", "--array", "numpy", "-d", "int32,double"
    file = tmp_path / "host.json"
    found, _ = rows(file, *words, "-o", "max,sum", "--against", "mpi")
    kinds_of = {(row["name"], row["type"], row["redop"]) for row in found}
    assert len(kinds_of) == 4 + 3 * 2
    assert all("us" in row["rivals"]["mpi"] for row in found)


def test_ranks_that_wait_for_one_give_up(tmp_path):
    """The last one stops in a call, as in a library that hangs."""
    text = """
    import sys, time
    from mpi4py import MPI
    import warpmpi._bench
    from warpmpi._bench import ways
    if MPI.COMM_WORLD.rank == 1:
        ways.Ours.synced = lambda *words: time.sleep(60)
    words = "barrier --array numpy -T 2".split()
    sys.exit(warpmpi._bench.main(words))
    """
    printed = ranks.run_text(tmp_path, text, wrapper=TOGETHER, died=True)
    assert "Timeout (0:00:02)!" in printed


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("allreduce -b 4Q", "argument -b/--minbytes: '4Q' is no size"),
        ("allreduce -r 2", "argument -r: there is no rank 2 of 2"),
        pytest.param(
            "bcast --against nccl", "none: cannot open", marks=needs_gpu
        ),
    ],
)
def test_wrong_options_are_told_once(words, told):
    printed = ranks.run(
        *BENCH,
        *words.split(),
        wrapper=TOGETHER,
        status=2,
        WARPMPI_BENCH_NCCL="/none",
        NCCL_MULTI_RANK_GPU_ENABLE="1",  # one GPU for both is told first
    )
    assert printed.count(told) == 1 and "Traceback" not in printed
