# SPDX-License-Identifier: BSD-3-Clause
"""Benchmarks run, and check what they time; figures are not looked at."""

import importlib
import json
import os
from pathlib import Path

import numpy as np
import pytest

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


def test_each_collective_is_measured(tmp_path, ops):
    out = tmp_path / "coll"
    told = os.environ.get("WARPMPI_TEST_MPIRUN")
    launcher = {"MPIRUN": told} if told else {}
    words = ("--quick", "--impl", "warpmpi", "--sizes", 8, 20000, "--out", out)
    ranks.run(BENCHMARKS / "bench_coll.py", *words, ranks=0, **launcher)
    lines = out.with_suffix(".jsonl").read_text().splitlines()
    header, *records = map(json.loads, lines)
    assert [each for each in records if "failed" in each] == []
    timed = [each["op"] for each in records if each.get("mode") == "synced"]
    labels = [each.label for each in ops]
    assert sorted(set(timed)) == sorted(labels)
    assert len(timed) == 2 * len(labels) - 1  # Barrier has no sizes
    assert "warpmpi" in header["paths"]


def test_wrong_data_are_seen(ops):
    for op in ops:
        n, place = op.count(100_000, 2), (1, 2)
        room = op.room(*place, n)
        if room is not None:
            given = np.full(room, -1, op.dtype)
            assert not op.is_right(given, *place, n), op.label
