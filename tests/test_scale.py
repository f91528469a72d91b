# SPDX-License-Identifier: BSD-3-Clause
"""The model of many hosts, and the simulation that asks the core's planner."""

import contextlib
import importlib
from pathlib import Path

import pytest

import toolchain

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def modules():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield tuple(
            map(importlib.import_module, ("model_hosts", "simulate_hosts"))
        )


@pytest.fixture(scope="module")
def planner(modules):
    try:
        made = modules[1].Planner()
    except (RuntimeError, toolchain.ToolchainError) as why:
        pytest.skip(str(why))
    with contextlib.closing(made):
        yield made


def test_hierarchies_of_the_core_s_plans_are_right(modules, planner):
    assert modules[1].check_data(planner) == []


def test_a_wrong_plan_is_seen(modules, planner):
    _, simulate = modules
    key = "reduce_scatter", 2, 24 * simulate.ELEMENT
    planner.plan(*key)
    spoilt = planner.known[key][:-1]
    planner.known[key], right = spoilt, planner.known[key]
    assert [each.split(",")[0] for each in simulate.check_data(planner)] == [
        "Allreduce"
    ]
    planner.known[key] = right


@pytest.mark.parametrize("hosts", [2, 3, 16, 64, 1024])
def test_the_model_is_what_messages_take(modules, planner, hosts):
    model, simulate = modules
    for nbytes in (64 << 10, 10_000_000, 256 << 20):
        for net in (model.FABRIC, model.LOOPBACK):
            off = dict(simulate.compare(planner, hosts, nbytes, net))
            assert {"direct", "gather", "ring"} <= set(off)
            # Blocks of whole elements differ a little in length.
            assert max(off.values()) < 0.01, off


def test_bytes_are_those_that_must_cross(modules, planner):
    model, simulate = modules
    one = simulate.allreduce(
        planner, model.Machine(), model.FABRIC, 16, 1 << 20, "direct"
    )
    assert one.total == 2 * 15 << 20
    assert one.out == (2 * 15 << 20) // 128


def test_ports_take_turns(modules):
    model, simulate = modules
    np = simulate.np
    net = model.Network("", latency=10, gap=1, rate=1)  # 1000 bytes a us
    ports = simulate.Ports(net, 3)
    both = np.array([0, 1]), np.array([2, 2])
    nbytes, ready = np.array([5000, 5000]), np.zeros(2)
    for source, target in zip(*both, strict=True):
        each = np.array([source]), np.array([target])
        end = ports.send(*each, nbytes[:1], ready[:1])
    assert end[0] == 10 + 5 + 5  # the second waits for the receiver's port
    assert ports.peers() == 2


def test_what_a_rank_keeps_is_told(modules, planner):
    """Structs may grow a little until the page is made again."""
    model, _ = modules
    for told, real in zip(model.Sizes(), planner.sizes(), strict=True):
        assert 0.5 < told / real < 2


def test_the_page_has_the_model_s_figures(modules):
    model, _ = modules
    page = model.PAGE.read_text()
    assert model.with_tables(page) == page
    for name in model.tables():
        assert page.count(f"<!-- table: {name} -->\n\n| ") == 1
    for name, svg in model.plots().items():
        assert (model.DOCS / name).read_text() == svg
        assert f"]({name})" in page
