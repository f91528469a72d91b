# SPDX-License-Identifier: BSD-3-Clause
"""The process of a rank works step by step.

The supervisor starts it and hears of each step: this process may crash, hang
or be ended by MPI.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any

from . import facts, findings, network
from .job import Facts, Job

_REDUCED = 4096, 1 << 20  # bytes of the Allreduces that name their engines


class Teller:
    """Tells the supervisor, a line of JSON for each thing told."""

    def __init__(self, descriptor: int) -> None:
        self._file = os.fdopen(descriptor, "w")

    def tell(self, **what: Any) -> None:
        """Tell things by their names."""
        print(json.dumps(what), file=self._file, flush=True)

    def step(self, name: str) -> None:
        """Tell what begins now."""
        self.tell(step=name)

    def complete(self, report: Facts, status: int) -> None:
        """Tell all that is known, and wait until it has been printed."""
        self.tell(report=report, status=status)
        sys.stdin.read()

    def close(self) -> None:
        """End the pipe: nothing more is told."""
        self._file.close()


def _import_mpi(own: Facts) -> Any:
    """Import mpi4py.MPI without MPI_Init; return it, or None."""
    try:
        import mpi4py

        mpi4py.rc.initialize = False
        from mpi4py import MPI

        own["mpi"] = facts.of_mpi_library(MPI)
        return MPI
    except Exception as error:  # RuntimeError if there is no library
        missing = isinstance(error, ModuleNotFoundError) and error.name
        own["mpi"] = {
            "error": f"{type(error).__name__}: {error}",
            "no_mpi4py": missing == "mpi4py",
        }
    return None


def _begin_mpi(MPI: Any, own: Facts) -> None:
    """Initialize MPI as mpi4py does."""
    from mpi4py import rc

    if rc.threads:
        MPI.Init_thread(getattr(MPI, "THREAD_" + rc.thread_level.upper()))
    else:
        MPI.Init()
    own["mpi"].update(facts.of_mpi(MPI))


def _begin_core(own: Facts) -> Any:
    """Import warpmpi; return it, or None."""
    abis = facts.of_variants()
    namespace = sys.modules.pop("warpmpi")  # what `python -m warpmpi` left
    try:
        import numpy  # noqa: F401  # warpmpi does, with the first array

        import warpmpi

        own["core"] = {**facts.of_core(warpmpi), "abis": abis}
        return warpmpi
    except Exception as error:
        sys.modules["warpmpi"] = namespace  # else `from .` imports it again
        own["core"] = {
            "error": f"{type(error).__name__}: {error}",
            "abis": abis,
            **facts.of_sources(),
        }
    return None


def _ask_driver(own: Facts, limit: float) -> None:
    ordinal = own["core"].get("device") or 0
    own["driver"] = facts.of_child("driver", ordinal, limit)
    for gpu in own["driver"].get("devices") or []:
        gpu["cards"] = network.nearest(gpu["pci"], own["host"]["cards"])


def _ask_mpi(own: Facts, limit: float) -> None:
    """Ask if MPI really takes GPU memory."""
    from .aware import environment

    ordinal = own["core"].get("device")
    if ordinal is not None:
        told = facts.of_child("aware", ordinal, limit, environment())
        own["mpi"]["cuda_aware"] = told


def _make_comm(world: Any, wm: Any, own: Facts) -> Any:
    """Make a wm.Comm; return None if that fails, or wm is not everywhere."""
    if not all(world.allgather(wm is not None)):
        return None
    try:
        comm = wm.Comm(world)
        wm.require("")  # staged pairs are measured, too
        return comm
    except RuntimeError as error:  # on all ranks
        own["core"]["comm_error"] = str(error)
    finally:
        own["core"]["ucx"] = wm._core._ucx()
    return None


def _engines(comm: Any, wm: Any, own: Facts) -> dict[str, int]:
    """Return the engines that have served Allreduces of all ranks' arrays."""
    device = own["core"].get("device")
    if comm is None:
        return {}
    has_gpu = device is not None and not own["driver"]["crash"]
    place = f"cuda:{device}" if has_gpu else "cpu"
    arrays = [wm.zeros(n // 4, "float32", place) for n in _REDUCED]
    for _ in range(2):  # the first call of a kind sets up what it needs
        before = wm._core._coll_engines()
        for array in arrays:
            comm.Allreduce(array, array.copy())
    after = wm._core._coll_engines()
    grown = {name: count - before[name] for name, count in after.items()}
    return {name: count for name, count in grown.items() if count > 0}


def _move(
    world: Any, comm: Any, wm: Any, own: Facts, teller: Teller
) -> list[Facts]:
    """Move data between all pairs of ranks; return all rows on rank 0.

    comm: a wm.Comm, or None: MPI alone moves host arrays.
    """
    from . import pairs

    if comm is None:
        comm, wm = world, None
    core = own["core"]
    # A driver that has crashed a child is kept out of this process.
    has_gpu = core.get("device") is not None and not own["driver"]["crash"]
    host = pairs.Mover(world, comm, wm, None)
    rows = pairs.move(host, "host", list(range(world.size)), teller.step)
    told = world.allgather(has_gpu)
    with_gpus = [rank for rank, has in enumerate(told) if has]
    if wm is not None and with_gpus:
        gpu = pairs.Mover(world, comm, wm, f"cuda:{core.get('device')}")
        rows += pairs.move(gpu, "gpu", with_gpus, teller.step)
    return rows


def _is_of_hosts(world: Any, own: Facts) -> bool:
    """Return True if there are several hosts; collective."""
    return len(set(world.allgather(own["host"]["identity"]))) > 1


def _status(report: Facts) -> int:
    return findings.status(findings.find(Job(report)))


def _examine(report: Facts, teller: Teller, limit: float) -> None:
    own = report["ranks"][0]
    teller.step("reads the facts of its host")
    own["installation"] = facts.of_installation()
    own["environment"] = facts.of_environment()
    own["launcher"] = facts.of_launcher()
    own["host"] = facts.of_host()
    teller.step("imports mpi4py.MPI")
    MPI = _import_mpi(own)
    teller.tell(report=report)
    if MPI is not None:
        teller.step("MPI_Init")
        _begin_mpi(MPI, own)
    teller.step("imports warpmpi")
    wm = _begin_core(own)
    teller.tell(report=report)
    teller.step("asks the driver, in a child process")
    _ask_driver(own, limit)
    teller.tell(report=report)
    if MPI is None:
        teller.complete(report, _status(report))
        return
    teller.step("waits for the other ranks' facts")
    from . import pairs

    world = MPI.COMM_WORLD
    if world.size > 1:  # else each process of a strange launcher has rank 0
        teller.tell(rank=world.rank)
    if world.rank == 0:
        teller.step("sends GPU memory by MPI alone, in a child process")
        _ask_mpi(own, limit)
        teller.step("waits for the other ranks' facts")
    pairs.wait_for_all(world)
    if _is_of_hosts(world, own) and wm is not None:
        teller.step("looks for the libraries of engines")
        own["core"].update(facts.of_libraries(wm))
    teller.step("makes a wm.Comm")
    comm = _make_comm(world, wm, own)
    report["ranks"] = world.gather(own) or [own]
    teller.tell(report=report)
    report["pairs"] = _move(world, comm, wm, own, teller)
    teller.step("reduces arrays of all ranks")
    report["engines"] = _engines(comm, wm, own)
    teller.complete(report, world.bcast(_status(report)))
    pairs.wait_for_all(world)  # a launcher ends all if one rank has a status
    teller.step("MPI_Finalize")
    MPI.Finalize()


def run(descriptor: int, report: Facts, limit: float) -> None:
    """Examine this rank and, with the others, the job.

    descriptor: a pipe to the supervisor. limit: seconds of a step.
    """
    teller = Teller(descriptor)
    report["ranks"] = [{}]
    try:
        _examine(report, teller, 0.8 * limit)
    except BaseException as error:
        traceback.print_exc()
        teller.tell(failed=f"{type(error).__name__}: {error}")
        os._exit(2)  # MPI_Finalize would wait for the others
    teller.close()
