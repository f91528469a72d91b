# SPDX-License-Identifier: BSD-3-Clause
"""The doctor's network cards, in a tree like /sys."""

import pytest

from warpmpi._doctor import network, report
from warpmpi._doctor.job import Job

LINE = "{:>6}: {:>8} 1 0 0 0 0 0 0 {:>8} 1 0 0 0 0 0 0"


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


@pytest.fixture
def root(tmp_path):
    """Two sockets, with a GPU and a card with RDMA each, and an interface."""
    lines = ["Inter-|   Receive", " face |bytes"]
    lines += [LINE.format("lo", 5, 5), LINE.format("eth0", 7, 1000)]
    write(tmp_path / "proc/net/dev", "\n".join(lines))
    write(tmp_path / "sys/class/net/eth0/speed", "25000")
    devices = tmp_path / "sys/devices"
    for node, bus in enumerate(("pci0000:16", "pci0000:97")):
        switch = devices / bus / f"0000:{bus[-2:]}:01.0"
        for kind, place in ("gpu", f"0000:{bus[-2:]}:02.0"), ("mlx", "b"):
            at = switch / (place if kind == "gpu" else f"0000:9{node}:00.0")
            write(at / "numa_node", node)
            if kind == "gpu":
                link = tmp_path / "sys/bus/pci/devices" / place
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(at)
                continue
            port = tmp_path / f"sys/class/infiniband/mlx5_{node}/ports/1"
            write(port / "state", "4: ACTIVE")
            write(port / "rate", "400 Gb/sec (4X NDR)")
            write(port / "counters/port_xmit_data", 100)
            (port.parents[1] / "device").symlink_to(at)
    return tmp_path


def test_cards(root):
    eth, *fast = network.cards(root)
    assert (eth["name"], eth["kind"], eth["gbits"]) == ("eth0", "TCP", 25)
    assert eth["numa"] is None and eth["pci"] == []
    assert [card["name"] for card in fast] == ["mlx5_0:1", "mlx5_1:1"]
    assert {card["gbits"] for card in fast} == {400}
    assert [card["numa"] for card in fast] == [0, 1]


def test_a_port_that_is_down_is_no_card(root):
    write(root / "sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN")
    names = [card["name"] for card in network.cards(root)]
    assert names == ["eth0", "mlx5_1:1"]


@pytest.mark.parametrize("bus", ["16", "97"])
def test_the_nearest_card(root, bus):
    cards = network.cards(root)
    told = network.nearest(f"0000:{bus}:02.0", cards, root)
    number = {"16": 0, "97": 1}[bus]
    assert told == [f"mlx5_{number}:1", "one PCIe switch"]
    assert network.nearest("0000:ff:02.0", cards, root) == []


def test_the_card_that_carries_messages(root):
    before = network.sent(root)
    assert before == {"eth0": 1000, "mlx5_0:1": 400, "mlx5_1:1": 400}
    assert network.carrier(before, before, 0) == ""
    fast = root / "sys/class/infiniband/mlx5_1/ports/1/counters"
    write(fast / "port_xmit_data", 1100)
    after = network.sent(root)
    assert network.carrier(before, after, 4000) == "mlx5_1:1"
    assert network.carrier(before, after, 9000) == ""
    lines = (root / "proc/net/dev").read_text().replace("1000", "9000")
    write(root / "proc/net/dev", lines)  # IP over the same card
    assert network.carrier(before, network.sent(root), 4000) == "eth0"


def test_a_host_without_all_that(tmp_path):
    assert network.cards(tmp_path) == [] and network.sent(tmp_path) == {}


def test_the_lines_between_hosts():
    def row(one, other, **changes):
        return {
            "from": one,
            "to": other,
            "memory": "host",
            "transport": "mpi",
            "reason": "so",
            "latency_us": 20.0,
            "gbps": 1.0,
            "bytes": 1,
            **changes,
        }

    hosts = ("a", "x"), ("b", "x"), ("b", "y")
    told = {
        "ranks": [
            {"host": {"name": n, "machine": n, "identity": f"{n} {p}"}}
            for n, p in hosts
        ],
        "pairs": [
            row(0, 1, latency_us=9.0),
            row(0, 2, gbps=3.0, card="eth0"),
            row(1, 2),
        ],
        "engines": {"hierarchy": 2},
    }
    lines = list(report._between(Job(told)))
    text = "\n".join(lines)
    assert 'a to b: host arrays by transport "mpi", 9.0 us 3.00 GB/s' in text
    assert "3.00 GB/s, by eth0" in text
    assert "b to b: host" in text  # containers of one machine
    assert "Allreduce of all ranks: by hierarchy" in text
    told["pairs"] = []
    assert list(report._between(Job(told))) == []
