# SPDX-License-Identifier: BSD-3-Clause
"""`python -m warpmpi bench`: options, values, factors, the table."""

import re
from types import SimpleNamespace

import numpy as np
import pytest

import ranks
from warpmpi._bench import ops, options, plot, report, run, timing

MAKERS = {**ops.COLLECTIVES, **ops.MESSAGES}


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("8", 8),
        ("4K", 4096),
        ("1M", 1 << 20),
        ("1g", 1 << 30),
        ("1.5KiB", 1536),
    ],
)
def test_sizes_are_read(text, nbytes):
    assert options.size(text) == nbytes


def test_rows_have_the_sizes_asked_for():
    def of(*words):
        return options.sizes(options.parse(["bcast", *words]))

    assert of("-b", "8", "-e", "1K", "-f", "8") == [8, 64, 512]
    assert of("-b", "1K", "-e", "4K", "-i", "1K") == [1024, 2048, 3072, 4096]
    assert of("-b", "1G") == [1 << 30]
    assert of("-e", "4") == [4]
    assert of()[0] == 8 and of()[-1] <= 64 << 20


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("bcast -b 4Q", "argument -b/--minbytes: '4Q' is no size: give bytes"),
        ("bcast -b 0.3", "'0.3' is no size"),
        ("bcast -b 1K -e 8", "argument -e: 8 bytes are less than the 1024"),
        ("bcast -f 1", "argument -f/--stepfactor: '1' is no whole number"),
        ("bcast -f 2 -i 8", "arguments -f and -i: give one of them"),
        ("bcast -n 0", "argument -n/--iters: '0' is no whole number from 1"),
        ("bcast -c 2", "argument -c/--check"),
        ("bcast -g 2", "argument -g: a rank has one GPU"),
        ("bcast -d quad", "argument -d/--datatype: 'quad' is none of int8"),
        ("allreduce -o xor", "argument -o/--op: 'xor' is none of sum"),
        ("scan -o avg", "argument -o: scan has no avg"),
        ("allreduce -o avg -d int32", "avg is of floating point, not int32"),
        ("allreduce -o max -d complex64", "max is not of complex64"),
        ("broadcast", "argument NAME: 'broadcast' is none of p2p"),
        ("bcast --array jax", "argument --array: invalid choice: 'jax'"),
        ("bcast --against gloo", "argument --against: 'gloo' is none of nccl"),
        ("bcast --stream --graph", "arguments --stream and --graph"),
        ("bcast --plot a.pdf", "argument --plot: name a file that ends in"),
        ("-b 8", "NAME"),
    ],
)
def test_wrong_options_are_named(words, told):
    with pytest.raises(options.BadOption) as caught:
        options.parse(words.split())
    assert told in str(caught.value)


def test_operations_are_of_all_types_and_reductions():
    found = options.parse(["reduce,bcast", "-d", "half,int8", "-o", "sum,max"])
    made = [(name, op.kind, op.op) for name, op in found.ops]
    of_reduce = [
        ("reduce", kind, op)
        for kind in ("float16", "int8")
        for op in ("sum", "max")
    ]
    rest = [("bcast", "float16", "sum"), ("bcast", "int8", "sum")]
    assert made == of_reduce + rest
    assert set(MAKERS) == set(options.parse(["all"]).names)


def test_the_document_names_all_options():
    text = (ranks.ROOT / "docs/bench.md").read_text()
    for action in options.parser()._actions:
        for name in action.option_strings[:1]:
            assert name == "-h" or re.search(f"`{name}[` ]", text), name
    for name in (*options.GROUPS, *options.GROUPS["p2p"], "neighbor_alltoall"):
        assert f"`{name}`" in text
    for kind in options.ARRAYS:
        assert f"`{kind}`" in text


def test_bus_bandwidth_counts_what_passes_a_link():
    factors = {
        name: make().share and make().share(4) for name, make in MAKERS.items()
    }
    assert factors["allreduce"] == 1.5
    for name in ("allgather", "alltoallv", "reduce_scatter", "gather"):
        assert factors[name] == 0.75
    for name in ("bcast", "reduce", "sendrecv", "pingpong"):
        assert factors[name] == 1
    assert factors["barrier"] is None


def reduced(op, size, n, rank):
    """What a rank gets of a reduction, by NumPy, of all that is given."""
    given = np.stack([op.given(each, size, n) for each in range(size)])
    how = {"prod": np.prod, "max": np.max, "min": np.min}.get(op.op, np.sum)
    if op.layout in (ops.scan, ops.exscan):
        given = given[: rank + (op.layout is ops.scan)]
    if not len(given):
        return np.zeros(n, op.dtype)
    whole = how(given, axis=0) / (size if op.op == "avg" else 1)
    whole = whole.astype(op.dtype)
    send, recv = op.blocks(rank, size, n)
    if not op.split:
        return whole if recv else None
    start = sum(block.count for block in send[:rank])
    return whole[start : start + recv[0].count]


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("name", MAKERS)
def test_values_are_those_of_the_ranks(name, size):
    """By moving blocks, or by NumPy; one wrong element is counted."""
    op = MAKERS[name]()
    n = op.count(4000, size)
    if name == "barrier" or (size == 1 and name in ("pingpong", "bandwidth")):
        return
    given = [op.given(rank, size, n) for rank in range(size)]
    sent = {}
    if not op.reduces and name != "bcast":
        for rank in range(size):
            for peer, at, count in op.moves(rank, size, n)[0]:
                part = given[rank][at : at + count]
                sent.setdefault((rank, peer), []).append(part)
    for rank in range(size):
        room = op.room(rank, size, n)
        if room is None:
            continue
        got = np.zeros(room, op.dtype)
        if op.reduces:
            got[:] = reduced(op, size, n, rank)
        elif name == "bcast":
            got[:] = given[0]
        else:
            for peer, at, count in op.moves(rank, size, n)[1]:
                got[at : at + count] = sent[peer, rank].pop(0)
        assert op.wrong(got, rank, size, n) == 0
        got[-1] += 1
        first = name == "exscan" and rank == 0  # MPI leaves it undefined
        assert op.wrong(got, rank, size, n) == (0 if first else 1)
    assert not any(sent.values())


@pytest.mark.parametrize("kind", ["int8", "float16", "float32", "complex128"])
@pytest.mark.parametrize("op", ["sum", "prod", "max", "min", "avg"])
def test_all_types_and_reductions_are_checked(kind, op):
    if (op == "avg" and kind == "int8") or (
        op in ("max", "min") and kind[0] == "c"
    ):
        return
    made = ops.COLLECTIVES["allreduce"](kind=kind, op=op)
    got = reduced(made, 3, 5000, 0)
    assert made.wrong(got, 0, 3, 5000) == 0
    got[17] += 1
    assert made.wrong(got, 0, 3, 5000) == 1


def test_a_root_is_any_rank():
    for name in ("bcast", "gather", "scatterv", "reduce"):
        op = ops.COLLECTIVES[name](root=2)
        for rank in range(3):
            send, recv = op.blocks(rank, 3, 7)
            at_root = send if name in ("bcast", "scatterv") else recv
            assert bool(at_root) == (rank == 2)


def test_vectors_with_counts_are_as_long_as_the_others():
    for size in (2, 3, 4):
        for name in ("allgatherv", "alltoallv"):
            op = ops.COLLECTIVES[name]()
            room = op.room(1, size, 10)
            assert 4 * room[0] == op.nbytes(10, size) == 40 * size


def test_turns_give_ratios():
    assert timing.ratios([1.0, 4.0], [2.0, 2.0]) == [0.5, 2.0]
    assert timing.ratios([1.0], []) == []
    assert timing.spread([1, 2, 3, 4, 50]) == (3, 2, 4)


ROW = {
    "name": "bcast",
    "size": 8192,
    "count": 2048,
    "type": "float32",
    "redop": "none",
    "root": 0,
    "us": 12.345,
    "us_min": 9.0,
    "us_max": 1234.5,
    "algbw": 0.6636,
    "busbw": 0.6636,
    "wrong": 0,
    "by": "copies",
    "rivals": {
        "nccl": {"us": 24.69, "ratio": 0.5, "us_min": 20, "us_max": 30}
        | {"busbw": 0.3, "wrong": 3},
        "staged": {"left_out": "it has no calls on streams"},
    },
}


def test_the_table_lines_up():
    table = report.Table(["nccl", "staged"])
    titles, units = table.titles("bcast").splitlines()[-2:]
    row = table.row(ROW)
    assert len(row) == len(titles) == len(units)
    assert row.split()[:5] == ["8192", "2048", "float32", "none", "0"]
    assert row.split()[5:8] == ["12.35", "9.00", "1235"] or "12.3" in row
    assert row.split()[-4:] == ["24.69", "0.50", "-", "-"]
    failed = table.row({"size": 8, "failed": "MemoryError: no room"})
    assert failed.split() == ["8", "failed:", "MemoryError:", "no", "room"]
    closing = report.closing([ROW], ["nccl", "staged"])
    assert "served by: copies" in closing and "wrong elements: 3" in closing
    assert "staged left out: it has no calls on streams (bcast)" in closing


def rank_on(device, number=0, size=2):
    """What the checks look at of a rank."""
    world = SimpleNamespace(rank=number, size=size)
    place = SimpleNamespace(is_cuda=device != "CPU", name=device)
    return SimpleNamespace(world=world, device=place)


@pytest.mark.parametrize(
    ("words", "device", "told"),
    [
        ("bcast --graph", "CPU", "--graph: needs GPUs, and rank 1 has none"),
        ("bcast --against nccl", "CPU", "--against nccl: is for arrays on G"),
        ("bcast --against staged", "CPU", "--against staged: is for arrays"),
        ("bcast -r 2", "H200", "argument -r: there is no rank 2 of 2"),
    ],
)
def test_what_a_rank_cannot_do_is_told(words, device, told):
    with pytest.raises(run.WrongOption) as caught:
        run._check(options.parse(words.split()), rank_on(device, 1))
    assert told in str(caught.value)
    plain = options.parse(["bcast"])
    assert run._check(plain, rank_on(device, 1)) is None


def test_messages_need_two_ranks():
    with pytest.raises(run.WrongOption, match="bandwidth needs two ranks"):
        run._check(options.parse(["p2p"]), rank_on("H200", 0, 1))


def test_nccl_is_not_asked_for_two_ranks_on_a_gpu(monkeypatch):
    """Ranks with GPUs of their own would wait in it for these."""
    places = []
    device = SimpleNamespace(uuid="GPU-1")
    world = SimpleNamespace(allgather=lambda own: [*places, own])
    rank = SimpleNamespace(world=world, device=device)
    loads = []
    monkeypatch.setattr(run.nccl, "load", lambda: loads.append(1))
    monkeypatch.delenv(run._SHARED_GPU, raising=False)
    places += [("elsewhere", "GPU-1"), (run._nccl_host(), "GPU-2")]
    run._check_nccl(rank)
    places.append((run._nccl_host(), "GPU-1"))
    with pytest.raises(run.WrongOption, match="refuses ranks 2 and 3 on one"):
        run._check_nccl(rank)
    monkeypatch.setenv("NCCL_HOSTID", "mine")
    run._check_nccl(rank)
    monkeypatch.delenv("NCCL_HOSTID")
    monkeypatch.setenv(run._SHARED_GPU, "1")
    run._check_nccl(rank)
    assert len(loads) == 3


def test_files_are_looked_at_before_anything_is_timed(tmp_path, monkeypatch):
    here = SimpleNamespace(json=str(tmp_path / "no" / "x"), plot=None)
    with pytest.raises(run.WrongOption, match=r"argument --json: .*/no/x"):
        run._check_files(here)
    here = SimpleNamespace(json=None, plot=str(tmp_path / "x.svg"))
    monkeypatch.setattr(run.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(run.WrongOption, match="argument --plot: needs matp"):
        run._check_files(here)


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_a_plot(tmp_path, ending):
    pytest.importorskip("matplotlib")
    header = {"ranks": [{"name": "GPU"}], "mode": "synced", "simulated": True}
    file = tmp_path / f"plot.{ending}"
    plot.draw(header, [ROW, {**ROW, "size": 16384}], str(file))
    assert re.match(rb"<\?xml|\x89PNG", file.read_bytes())
