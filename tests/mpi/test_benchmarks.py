# SPDX-License-Identifier: BSD-3-Clause
"""Benchmarks run, and check what they time; figures are not looked at."""

import importlib
import json
import os
from pathlib import Path

import numpy as np
import pytest

import kinds
import ranks

BENCHMARKS = Path(__file__).resolve().parent.parent.parent / "benchmarks"
pytestmark = pytest.mark.programs


def test_the_readme_s_plot_shows_the_records(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    plot_speed = importlib.import_module("plot_speed")
    assert plot_speed.PLOT.read_text() == plot_speed.svg()


@pytest.fixture
def ops(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("coll_ops").OPS


def records(program, out, *words):
    """The records of a benchmark, of which none failed; and its header."""
    told = os.environ.get("WARPMPI_TEST_MPIRUN")
    launcher = {"MPIRUN": told} if told else {}
    ranks.run(
        BENCHMARKS / program,
        "--quick",
        *words,
        "--out",
        out,
        ranks=0,
        **launcher,
    )
    lines = out.with_suffix(".jsonl").read_text().splitlines()
    header, *found = map(json.loads, lines)
    assert [each for each in found if "failed" in each] == []
    return header, found


def test_each_collective_is_measured(tmp_path, ops):
    words = ("--impl", "warpmpi", "--sizes", 8, 20000)
    header, found = records("bench_coll.py", tmp_path / "coll", *words)
    timed = [each["op"] for each in found if each.get("mode") == "synced"]
    labels = [each.label for each in ops]
    assert sorted(set(timed)) == sorted(labels)
    assert len(timed) == 2 * len(labels) - 1  # Barrier has no sizes
    assert "warpmpi" in header["paths"]


def use_nccl_s_double(monkeypatch):
    if not kinds.is_real():
        driver = Path(os.environ["WARPMPI_CUDA_DRIVER"])
        nccl = driver.parent.parent / "simnccl" / "libnccl.so.2"
        monkeypatch.setenv("WARPMPI_BENCH_NCCL", str(nccl))


def test_windows_of_nccl_are_measured(tmp_path, monkeypatch):
    use_nccl_s_double(monkeypatch)
    words = ("--impl", "nccl-windows", "--op", "Allreduce", "Allgather")
    _, found = records(
        "bench_coll.py", tmp_path / "windows", *words, "--sizes", 8, 20000
    )
    assert {(each["op"], each["mode"], each["bytes"]) for each in found} == {
        (op, mode, nbytes)
        for op in words[-2:]
        for mode in ("synced", "stream", "graph")
        for nbytes in (8, 20000)
    }


def test_builds_are_measured_in_turn(tmp_path):
    words = ("--before", BENCHMARKS.parent, "--array", "wm")
    ops = ("--op", "Barrier", "wm Irecv", "stream Bcast")
    header, found = records(
        "bench_builds.py", tmp_path / "builds", *words, *ops
    )
    assert {(each["impl"], each["op"]) for each in found} == {
        (build, op)
        for build in ("before", "after")
        for op in ("Barrier", "wm Irecv, Send, Wait", "stream Bcast")
    }
    assert header["paths"]["before"] == header["paths"]["after"]


def test_nvidia_s_solvers_are_measured(tmp_path, monkeypatch):
    program = tmp_path / "nccl_overlap" / "jacobi"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\necho nccl_overlap, $2, $4, $6, $8, 2, 1, 0.03, 0.05\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("WARPMPI_BENCH_NVIDIA_JACOBI", str(tmp_path))
    _, found = records(
        "bench_jacobi.py",
        tmp_path / "jacobi",
        *("--impl", "nvidia-nccl-overlap", "--sizes", 64, 128),
    )
    assert [(each["nx"], each["ranks"], each["us"]) for each in found] == [
        (64, 2, 30.0),
        (128, 2, 30.0),
    ]


def test_halos_are_measured(tmp_path):
    words = ("--impl", "warpmpi", "warpmpi-plan", "slices", "--corners")
    sizes = ("--points", 5, "--rows", 12, "--widths", 2)
    header, found = records("bench_halo.py", tmp_path / "halo", *words, *sizes)
    assert {each["case"] for each in found} == {
        "5x5x5, width 2",
        "5x5x5, width 2, corners",
        "6x12, width 1",
    }
    for impl in ("warpmpi", "warpmpi-plan"):
        timed = [
            each for each in found if each["impl"] == impl and "us" in each
        ]
        assert {each["mode"] for each in timed} >= {"synced", "stream"}
        assert header["paths"][impl]["stats"]["halo_exchanges"] > 0


def hosts_benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("bench_hosts")


def test_ranks_are_measured_as_hosts(tmp_path, monkeypatch):
    hosts = hosts_benchmark(monkeypatch)
    use_nccl_s_double(monkeypatch)
    words = ("--op", "Allreduce", "messages", "--sizes", 9000)
    header, found = records("bench_hosts.py", tmp_path / "hosts", *words)
    assert {"Allreduce", "messages"} == set(header["paths"])
    assert "another host" in header["paths"]["messages"]["transport"]
    rows = hosts.figures(found)
    for mode in hosts.MODES:
        row = rows["Allreduce", mode, 9000]
        assert {"nccl", "nccl-again"} <= set(row)
        if hosts.LOOPBACK.exists():  # it goes by TCP
            assert row["nccl"]["wire_bytes"] >= row["nccl"]["least_bytes"]
    for op in ("Allreduce", "Send", "Sendrecv"):
        row = rows[op, "synced", 9000]
        assert {"warpmpi", "nccl", "staged"} <= set(row)
        assert len(hosts.ratios(row["warpmpi"], row["staged"])) == 5


def test_goals_between_hosts_are_told(monkeypatch):
    hosts = hosts_benchmark(monkeypatch)
    records = [
        {"impl": impl, "op": op, "mode": "synced", "bytes": size}
        | {"ranks": 2, "samples": [time, 2 * time]}
        for op in (*hosts.GOALS, "Send", "Sendrecv")
        for size, factor in ((1024, 1.0), (1 << 20, 1.2))
        for impl, time in (
            ("warpmpi", 10 * factor),
            ("nccl", 10),
            ("staged", 15.0),
            ("ucx_perftest", 10),
        )
    ]
    found = hosts.figures(hosts.pooled(records))
    told = dict(hosts.asked(found, True))
    assert [text.split(":")[0] for text, holds in told.items() if holds] == [
        "Send 1 KiB",  # of ucx_perftest
        "Send 1 KiB",  # by hand
        "Sendrecv 1 KiB",
    ]
    assert len(told) == 4 + 4 + 2
    assert hosts.least("Allreduce", 1 << 20, 2, 4) == 2 << 20
    assert hosts.least("Alltoall", 1 << 20, 2, 4) == 2 << 20


def test_ucx_perftest_is_read(monkeypatch):
    hosts = hosts_benchmark(monkeypatch)
    final = "Final:  2000  3.10  3.21  3.25  315.11  313.9  322676  321437"
    named = "tag_lat/  2000  3.10  3.21  3.25  315.11  313.9  322676  321437"
    text = "+---+\n| Stage  | # iterations | 50.0%ile |\n{}\n"
    assert hosts.one_way(text.format(final)) == 3.25
    assert hosts.one_way(text.format(named)) == 3.25
    with pytest.raises(ValueError):
        hosts.one_way("[1234] UCX ERROR 50.0% of 7 are missing")


def test_windows_are_measured(tmp_path):
    words = ("--impl", "warpmpi", "warpmpi-host", "mpi4py", "--sizes", 8, 4096)
    _, found = records("bench_rma.py", tmp_path / "rma", *words)
    timed = {}
    for each in found:
        timed.setdefault(each["impl"], []).append((each["op"], each["bytes"]))
    assert timed["warpmpi"] == timed["warpmpi-host"] == timed["mpi4py"]
    for op in ("Put, Flush", "Get, Flush", "Accumulate, Flush", "Send"):
        assert {(op, 8), (op, 4096)} <= set(timed["warpmpi"])
    for op in ("Fence", "Lock, Unlock", "Fetch_and_op, Flush", "Barrier"):
        assert (op, 0) in timed["warpmpi"]


def test_what_is_asked_for_is_told(monkeypatch):
    """For each goal there are cases and ways."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    halo, rma = map(importlib.import_module, ("bench_halo", "bench_rma"))
    times = {(impl, mode): 2.0 for impl in halo.WAYS for mode in halo.MODES}
    for case in ("64x64x64", "512x512x512", "1024x4096"):
        lines = halo.asked({f"{case}, width 1": times})
        assert len(lines) >= 2
        for text, value, _ in lines:
            assert value == ("1.00" if " / " in text else "2.00")
    assert all(len(row) == 6 for row in rma.RATIOS)
    for _, impl, _, rival, _, _ in rma.RATIOS:
        assert {impl, rival or impl} <= set(rma.WAYS)


def test_wrong_ghosts_are_seen(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    halo_paths = importlib.import_module("halo_paths")
    case = halo_paths.Case((4, 3, 5), (1, 1, 1), (), 1, True)
    way = halo_paths.Way(None)
    way.expected = case.field([0, 0, 0])
    for _, where in case.ghosts():
        found = way.expected.copy()
        way.download = lambda found=found: found
        assert way.is_right(case)
        found[where].flat[-1] += 1
        assert not way.is_right(case)
    assert case.nbytes() == 4 * (6 * 5 * 7 - 4 * 3 * 5)


def test_wrong_data_are_seen(ops):
    for op in ops:
        n, place = op.count(100_000, 2), (1, 2)
        room = op.room(*place, n)
        if room is not None:
            given = np.full(room, -1, op.dtype)
            assert not op.is_right(given, *place, n), op.label
