# SPDX-License-Identifier: BSD-3-Clause
"""The measurements of `bench`, row after row, on all ranks."""

from __future__ import annotations

import faulthandler
import functools
import importlib.util
import json
import os
import socket
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from . import nccl, report
from . import options as choices
from .ops import LeftOut, Op
from .timing import Timed, alternate, ratios, spread, together
from .ways import RIVALS, Ours, Rank, graph_calls

BUDGET = 0.02  # seconds of a turn
_PACKAGES = {
    "cupy": "CuPy: `pip install cupy-cuda13x`",
    "torch": "PyTorch: `pip install torch`",
}
_MESSAGES = "Send", "Isend", "Sendrecv"
_SHARED_GPU = "NCCL_MULTI_RANK_GPU_ENABLE"


class WrongOption(Exception):
    """What an option asks for and a rank does not have."""


def _check(options: Any, rank: Rank) -> None:
    """Refuse what this rank cannot do. WrongOption."""
    world, cuda = rank.world, rank.device.is_cuda
    where = f"rank {world.rank} has none ({rank.device.name})"
    if not cuda and options.mode != "synced":
        raise WrongOption(
            f"argument --{options.mode}: needs GPUs, and {where}"
        )
    for rival in {"nccl", "staged"} & set(options.against):
        if not cuda:
            cure = "compare with mpi"
            raise WrongOption(
                f"argument --against {rival}: is for arrays on GPUs, and "
                f"{where}: {cure}"
            )
    if options.root >= world.size:
        raise WrongOption(
            f"argument -r: there is no rank {options.root} of {world.size}"
        )
    pairs = {"pingpong", "bandwidth"} & set(options.names)
    if pairs and world.size < 2:
        raise WrongOption(
            f"{min(pairs)} needs two ranks: `mpirun -n 2 python -m warpmpi "
            "bench ...`"
        )
    if world.rank == 0:
        _check_files(options)


def _check_files(options: Any) -> None:
    for name in ("json", "plot"):
        file = getattr(options, name)
        if file and not os.access(Path(file).absolute().parent, os.W_OK):
            raise WrongOption(
                f"argument --{name}: {file}: the folder is not there, or "
                "cannot be written"
            )
    if options.plot and importlib.util.find_spec("matplotlib") is None:
        raise WrongOption(
            "argument --plot: needs matplotlib: `pip install matplotlib`"
        )


def _check_package(kind: str, wm: Any) -> None:
    """Refuse arrays of what is not there. WrongOption."""
    if kind in _PACKAGES and importlib.util.find_spec(kind) is None:
        raise WrongOption(f"argument --array {kind}: needs {_PACKAGES[kind]}")
    if kind == "cupy" and not wm.is_cuda_available():
        raise WrongOption("argument --array cupy: there is no GPU")


def _check_mpi(rank: Rank) -> None:
    """Refuse GPU arrays that MPI would crash on. WrongOption."""
    from .._doctor import aware, facts

    if rank.world.rank or not rank.device.is_cuda:
        return
    place = rank.device.ordinal
    told = facts.of_child("aware", place, 60.0, aware.environment())
    if not told.get("works"):
        how = told["crash"] or told.get("how")
        raise WrongOption(
            "argument --against mpi: this MPI takes no GPU arrays (a process "
            f"that sent one to itself: {how}): compare with staged, or give "
            "--array numpy"
        )


def _nccl_host() -> str:
    """Return what NCCL takes for this rank's host."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    text = boot.read_text() if boot.exists() else ""
    return os.environ.get("NCCL_HOSTID") or socket.gethostname() + text


def _check_nccl(rank: Rank) -> None:
    """Refuse what would let ranks wait for others in NCCL. WrongOption."""
    place = _nccl_host(), rank.device.uuid
    places = rank.world.allgather(place)
    others = [k for k, each in enumerate(places) if each == place]
    if len(others) > 1 and os.environ.get(_SHARED_GPU) != "1":
        raise WrongOption(
            f"argument --against nccl: NCCL refuses ranks {others[0]} and "
            f"{others[1]} on one GPU: give each rank a GPU, or each an "
            f"NCCL_HOSTID, or, under MPS, set {_SHARED_GPU}=1"
        )
    try:
        nccl.load()
    except OSError as error:
        raise WrongOption(
            f"argument --against nccl: {error}: install one (`pip install "
            "nvidia-nccl-cu13`), or name it in WARPMPI_BENCH_NCCL"
        ) from None


def _open_rival(name: str, rank: Rank) -> Any:
    try:
        return RIVALS[name][0](rank)
    except (OSError, RuntimeError) as error:
        raise WrongOption(f"argument --against {name}: {error}") from None


class Bench:
    """All ways, size after size."""

    def __init__(self, options: Any, rank: Rank) -> None:
        self.options, self.rank, self.world = options, rank, rank.world
        self.ways: dict[str, Any] = {"warpmpi": Ours(rank)}
        self.rows: list[dict[str, Any]] = []

    def open_rivals(self) -> None:
        """Open the other libraries, one after the other. WrongOption."""
        for name in self.options.against:
            step = functools.partial(_open_rival, name, self.rank)
            self.ways[name] = agreed(self.world, step)

    def _counters(self, op: Op) -> Counter[str]:
        """Return the bytes of each transport, or the calls of each engine."""
        wm = self.rank.wm
        if op.name not in _MESSAGES:
            return Counter(wm._core._coll_engines())
        stats = wm.stats()
        links = wm._core._links()
        return Counter({each: stats[f"{each}_bytes"] for each in links})

    def _served(self, before: Counter[str], op: Op) -> str:
        """Return the engine, or the transport, that served a call."""
        grown = self._counters(op)
        grown.subtract(before)
        every = self.world.allgather(grown)
        most = {name: max(each[name] for each in every) for name in grown}
        if op.name in _MESSAGES:
            names = sorted(most, key=most.__getitem__, reverse=True)
        else:  # an engine that calls others stands before them
            names = list(most)
        return next(filter(most.get, names), "mpi")

    def _ready(self, impl: str, op: Op, n: int) -> Timed:
        """Make one way's call. LeftOut."""
        rank, mode = self.rank, self.options.mode
        way = self.ways[impl]
        call = way.call(op, n, mode)
        calls = graph_calls(op, n, rank.world.size) if mode == "graph" else 1
        wait = (lambda: None) if mode == "synced" else way.wait
        timed = Timed(impl, mode, call, wait, calls * op.calls(n))
        rank.clear()
        return timed

    def _checked(self, timed: Timed, op: Op, n: int) -> int | None:
        """Call it once; return the wrong elements, None if not asked for."""
        timed.play(1)
        if not self.options.check:
            return None
        got = self.ways[timed.impl].received()
        return op.wrong(got, *self.rank.at, n)

    def measure(self, name: str, op: Op, n: int) -> dict[str, Any]:
        """Time a row; what one library cannot do is left out."""
        give_up_after(self.options.timeout)
        rank, size = self.rank, self.world.size
        nbytes = op.nbytes(n, size)
        row: dict[str, Any] = {
            "name": name,
            "size": nbytes,
            "count": n,
            "type": op.kind,
            "redop": op.op if op.reduces else "none",
            "root": op.root if op.rooted else -1,
            "mode": self.options.mode,
            "array": self.options.array,
            "rivals": {},
        }
        alone = len(self.ways) == 1
        step = functools.partial(rank.prepare, op, n, alone)
        _, error = together(self.world, step)
        if error:
            return {**row, "failed": error}
        chosen, wrong = [], {}
        for impl in self.ways:
            before, bad = self._counters(op), None
            make = functools.partial(self._ready, impl, op, n)
            timed, error = together(self.world, make)
            if not error:  # the buffers of all ranks are clear
                check = functools.partial(self._checked, timed, op, n)
                bad, error = together(self.world, check)
            if impl == "warpmpi":
                row["by"] = self._served(before, op)
            if error and impl == "warpmpi":
                return {**row, "failed": error.removeprefix("LeftOut: ")}
            if error:
                why = error.removeprefix(f"{LeftOut.__name__}: ")
                row["rivals"][impl] = {"left_out": why}
                continue
            every = self.world.allgather(bad)
            wrong[impl] = None if None in every else sum(every)
            chosen.append(timed)
        asked = self.options
        alternate(
            self.world,
            chosen,
            BUDGET,
            asked.turns,
            asked.iters or 0,
            asked.warmup_iters,
        )
        for timed in chosen:
            timed.free()
        return {**row, **self._figures(op, nbytes, chosen, wrong, row)}

    def _figures(
        self,
        op: Op,
        nbytes: int,
        chosen: list[Timed],
        wrong: dict[str, int | None],
        row: dict[str, Any],
    ) -> dict[str, Any]:
        """Return the figures of a row: the median, least and most of turns."""
        share = op.share(self.world.size) if op.share else None

        def of(timed: Timed) -> dict[str, Any]:
            times = sorted(timed.samples)
            us = spread(times)[0]
            rate = nbytes / us / 1e3 if nbytes else None
            return {
                "us": us,
                "us_min": times[0],
                "us_max": times[-1],
                "algbw": rate,
                "busbw": rate and share and rate * share,
                "wrong": wrong[timed.impl],
                "rounds": timed.rounds,
                "samples": timed.samples,
            }

        ours, *others = chosen
        rivals = dict(row["rivals"])
        for other in others:
            middle, low, high = spread(ratios(ours.samples, other.samples))
            told = {"ratio": middle, "ratio_low": low, "ratio_high": high}
            rivals[other.impl] = {**of(other), **told}
        return {**of(ours), "rivals": rivals}

    def run(self) -> None:
        """Time all rows, and show them as they come."""
        from .._about import show

        table = report.Table(self.options.against)
        first, size = self.world.rank == 0, self.world.size
        last = ""
        for name, op in self.options.ops:
            if first and name != last:
                show(table.titles(name))
            last = name
            counts = [op.count(b, size) for b in choices.sizes(self.options)]
            for n in dict.fromkeys(counts):
                row = self.measure(name, op, n)
                self.rows.append(row)
                if first:
                    show(table.row(row))
                if "failed" in row:
                    break
        if first:
            show(report.closing(self.rows, self.options.against))

    def status(self) -> int:
        """Return 1 if a row failed, or any data was wrong."""
        bad = any(
            "failed" in row
            or row["wrong"]
            or any(each.get("wrong") for each in row["rivals"].values())
            for row in self.rows
        )
        return int(self.world.bcast(bad))

    def close(self) -> None:
        """Close the other libraries."""
        self.world.Barrier()
        for way in self.ways.values():
            way.close()


def give_up_after(seconds: int) -> None:
    """End this rank, and so all, if it is still in one row by then.

    Libraries may wait for ranks that have failed. What they wait in is shown.
    """
    if sys.stderr is not None:
        faulthandler.dump_traceback_later(seconds, exit=True)


def agreed(world: Any, step: Any) -> Any:
    """Return the step's result. WrongOption on all ranks if one raises it."""
    found = error = None
    try:
        found = step()
    except WrongOption as why:
        error = str(why)
    errors = [each for each in world.allgather(error) if each]
    if errors:
        raise WrongOption(errors[0])
    return found


def run(options: Any, world: Any, wm: Any) -> tuple[int, str | None]:
    """Time what the options ask for; return the status, and what is wrong."""
    from .._about import show

    try:
        check = functools.partial(_check_package, options.array, wm)
        agreed(world, check)
        rank = Rank(world, wm, options.array)
        agreed(world, functools.partial(_check, options, rank))
        for rival, test in (("mpi", _check_mpi), ("nccl", _check_nccl)):
            if rival in options.against:
                agreed(world, functools.partial(test, rank))
        give_up_after(options.timeout)
        bench = Bench(options, rank)
        bench.open_rivals()
    except WrongOption as why:
        return 2, str(why)
    places = world.allgather(report.of_rank(rank))
    told = report.header(options, rank, places)
    if world.rank == 0:
        show(report.introduction(told))
    bench.run()
    bench.close()
    faulthandler.cancel_dump_traceback_later()
    status = bench.status()
    try:
        if world.rank == 0:
            _write(options, told, bench.rows)
    except (OSError, ValueError) as why:  # matplotlib's
        return 2, f"the results could not be written: {why}"
    return status, None


def _write(options: Any, told: dict[str, Any], rows: list[Any]) -> None:
    if options.json:
        text = json.dumps({"header": told, "rows": rows}, indent=1)
        Path(options.json).write_text(text + "\n")
    if options.plot:
        from .plot import draw

        draw(told, rows, options.plot)
