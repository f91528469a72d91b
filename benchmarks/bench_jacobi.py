# SPDX-License-Identifier: BSD-3-Clause
"""examples/jacobi.py, the rows of its halos sent in different ways.

    python bench_jacobi.py [--ranks N] [--quick] [--launches N] [--impl NAME ...] [--out PREFIX]

The kernels, the streams and the overlap are the example's own in all of them.
Writes PREFIX.jsonl, PREFIX.png and PREFIX.log, and prints a table. Each way is
checked against one device on a small grid, and by its norm on the large ones.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import harness
import numpy as np

EXAMPLES = harness.HERE.parent / "examples"
ONE, ONE_CUPY = "one-gpu", "cupy-one-gpu"
UP, DOWN = 1, 2  # tags
RANK = "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"


class Staged:
    """The calls of a communicator, staged by hand through pinned memory."""

    def __init__(self, world: Any, device: Any):
        import warp as wp

        self.wp, self.world, self.device = wp, world, device
        self.rank, self.size = world.rank, world.size
        self.Barrier, self.allreduce = world.Barrier, world.allreduce
        self.buffers: dict[int, tuple[Any, ...]] = {}

    def staging(self, count: int) -> tuple[Any, ...]:
        """Two pinned rows, as Warp's arrays and as NumPy's."""
        if count not in self.buffers:
            out, into = (
                self.wp.empty(
                    count, dtype=self.wp.float32, device="cpu", pinned=self.device.is_cuda
                )
                for _ in range(2)
            )
            self.buffers[count] = out, into, out.numpy(), into.numpy()
        return self.buffers[count]

    def Sendrecv(self, sendbuf: Any, dest: int, *, recvbuf: Any, source: int) -> None:
        out, into, out_host, into_host = self.staging(sendbuf.size)
        self.wp.copy(out, sendbuf)
        if self.device.is_cuda:
            self.wp.synchronize_stream(self.device.stream)
        self.world.Sendrecv(out_host, dest, recvbuf=into_host, source=source)
        self.wp.copy(recvbuf, into)

    def Allreduce(self, sendbuf: Any, recvbuf: Any) -> None:
        total = np.empty(sendbuf.shape, np.float64)
        self.world.Allreduce(sendbuf.numpy(), total)
        recvbuf.assign(total)


class CudaAware(Staged):
    """The calls of a CUDA-aware MPI, whose pointers are looked up only once."""

    def memory(self, array: Any) -> list[Any]:
        from mpi4py import MPI

        if array.ptr not in self.buffers:
            kind = MPI.DOUBLE if array.dtype is self.wp.float64 else MPI.FLOAT
            nbytes = array.size * kind.Get_size()
            self.buffers[array.ptr] = MPI.buffer.fromaddress(array.ptr, nbytes), kind
        return list(self.buffers[array.ptr])

    def Sendrecv(self, sendbuf: Any, dest: int, *, recvbuf: Any, source: int) -> None:
        self.wp.synchronize_stream(self.device.stream)
        into = self.memory(recvbuf)
        self.world.Sendrecv(self.memory(sendbuf), dest, recvbuf=into, source=source)

    def Allreduce(self, sendbuf: Any, recvbuf: Any) -> None:
        self.wp.synchronize_stream(self.device.stream)
        self.world.Allreduce(self.memory(sendbuf), self.memory(recvbuf))


def connect_none(solver: Any) -> None:
    """Make no halo."""


def plan_rows(solver: Any, step: Any) -> None:
    """Take an iteration's rows."""
    fresh, last = step.fresh, solver.rows
    step.upper_halo, step.first_row = fresh[0], fresh[1]
    step.last_row, step.lower_halo = fresh[last], fresh[last + 1]
    solver.up = (solver.comm.rank - 1) % solver.comm.size


def alone(solver: Any, step: Any) -> None:
    """One device has both rows."""
    import warp as wp

    wp.copy(step.lower_halo, step.first_row)
    wp.copy(step.upper_halo, step.last_row)
    solver.interior.wait(solver.edge)


def plan_persistent(solver: Any, step: Any) -> None:
    """Make the messages; on the example's stream for `on_stream`."""
    plan_rows(solver, step)
    comm, up, down = solver.comm, solver.up, solver.down
    if solver.on_stream and solver.edge.stream:
        comm = comm.on(solver.edge.stream)
    step.requests = [
        comm.Send_init(step.first_row, up, UP),
        comm.Send_init(step.last_row, down, DOWN),
        comm.Recv_init(step.lower_halo, down, UP),
        comm.Recv_init(step.upper_halo, up, DOWN),
    ]


def persistent(solver: Any, step: Any) -> None:
    """The rows are there when Waitall returns, or on the stream."""
    import warpmpi as wm

    wm.Prequest.Startall(step.requests)
    wm.Request.Waitall(step.requests)
    solver.interior.wait(solver.edge)


def begin(solver: Any, step: Any) -> list[Any]:
    comm, up, down = solver.comm, solver.up, solver.down
    return [
        comm.Isend(step.first_row, up, UP),
        comm.Isend(step.last_row, down, DOWN),
        comm.Irecv(step.lower_halo, down, UP),
        comm.Irecv(step.upper_halo, up, DOWN),
    ]


def nonblocking(solver: Any, step: Any) -> None:
    """Two Isend, two Irecv."""
    import warpmpi as wm

    wm.Request.Waitall(begin(solver, step))


def waitall(solver: Any, step: Any) -> None:
    """The same, waited for by mpi4py's own Waitall."""
    from mpi4py import MPI

    MPI.Request.Waitall(begin(solver, step))


def blocking(solver: Any, step: Any) -> None:
    """Two blocking Sendrecv, one direction after the other."""
    comm, up, down = solver.comm, solver.up, solver.down
    comm.Sendrecv(step.first_row, up, recvbuf=step.lower_halo, source=down)
    comm.Sendrecv(step.last_row, down, recvbuf=step.upper_halo, source=up)


def capture(solver: Any, many: int) -> Any:
    """A CUDA graph of so many iterations, the first one of an even number."""
    import warp as wp

    iterate = super(type(solver), solver).iterate
    with wp.ScopedCapture(stream=solver.edge.stream, force_module_load=False) as captured:
        solver.interior.wait(solver.edge)
        for number in range(many):
            iterate(solver.steps[number % 2])
        solver.edge.wait(solver.interior)
    return captured.graph


def run_graphs(
    solver: Any, niter: int, nccheck: int, report: Any = lambda *_: None
) -> tuple[int, float]:
    """What is between two norms is a graph, behind the one that makes the number even."""
    many = nccheck - 2 if solver.edge.stream and nccheck % 2 == 0 else 0
    solver.number = solver.made = 0  # iterations asked for, and given to the GPU
    solver.graph = getattr(solver, "graph", None)
    solver.many, solver.graphs = many, range(2, niter - many + 1, nccheck) if many > 0 else ()
    return super(type(solver), solver).run(niter, nccheck, report)


def iterate_by_graphs(solver: Any, step: Any) -> None:
    """The first iteration of a graph has all of them made."""
    import warp as wp

    number = solver.number
    solver.number += 1
    if number < solver.made:
        return
    if number in solver.graphs:
        solver.graph = solver.graph or capture(solver, solver.many)
        solver.edge.wait(solver.interior)  # a graph waits for its own stream alone
        wp.capture_launch(solver.graph)
        solver.interior.wait(solver.edge)
        solver.made = number + solver.many
    else:
        super(type(solver), solver).iterate(step)


# name: what differs from the example, and the caption
WAYS = {
    ONE: "one GPU, no messages",
    "warpmpi": "warpmpi, as the example",
    "warpmpi-graph": "warpmpi, a CUDA graph between two norms",
    "warpmpi-stream": "warpmpi, persistent messages on the stream",
    "warpmpi-persistent": "warpmpi, persistent messages",
    "warpmpi-isend": "warpmpi, Isend and Irecv",
    "warpmpi-waitall": "warpmpi, MPI's Waitall",
    "warpmpi-sendrecv": "warpmpi, two Sendrecv",
    "warpmpi-host": "warpmpi, through the host",
    "staged": "mpi4py, staged by hand",
    "cuda-aware-mpi": "CUDA-aware Open MPI",
    "cuda-aware-mpi-pool": "CUDA-aware Open MPI, pool memory",
    ONE_CUPY: "one GPU, kernels of CuPy",
    "cupy": "warpmpi, kernels of CuPy",
    "cupy-graph": "warpmpi, kernels of CuPy, a CUDA graph between two norms",
    "nvidia-nccl": "NVIDIA, nccl",
    "nvidia-nccl-overlap": "NVIDIA, nccl_overlap",
    "nvidia-nccl-graphs": "NVIDIA, nccl_graphs",
    "nvidia-multi-threaded-p2p": "NVIDIA, multi_threaded_p2p",
    "nvidia-multi-threaded-p2p-opt": "NVIDIA, multi_threaded_p2p_opt",
    "nvidia-multi-threaded-copy-overlap": "NVIDIA, multi_threaded_copy_overlap",
}
NVIDIA = "WARPMPI_BENCH_NVIDIA_JACOBI"


def example(way: str) -> Any:
    """The example as a module; the rivals' ranks never load warpmpi."""
    if way.startswith("cupy"):
        import jacobi_cupy

        return jacobi_cupy
    if not way.startswith("warpmpi"):
        sys.modules["warpmpi"] = types.ModuleType("warpmpi")
    sys.path.insert(0, str(EXAMPLES))
    import jacobi

    return jacobi


def solver_class(jacobi: Any, way: str) -> Any:
    """The example's solver, exchanging rows this way."""
    if jacobi.__name__ == "jacobi_cupy":
        return type("Solver", (jacobi.Solver,), {"graphs": way == "cupy-graph"})
    own: dict[str, Any] = {"connect": connect_none, "plan": plan_rows}
    exchanges = {ONE: alone, "warpmpi-isend": nonblocking, "warpmpi-waitall": waitall}
    if way in ("warpmpi", "warpmpi-host"):
        own = {}
    elif way == "warpmpi-graph":
        own = {"run": run_graphs, "iterate": iterate_by_graphs}
    elif way in ("warpmpi-stream", "warpmpi-persistent"):
        own |= {"on_stream": way == "warpmpi-stream"}
        own |= {"plan": plan_persistent, "exchange": persistent}
    else:
        own["exchange"] = exchanges.get(way, blocking)
    return type("Solver", (jacobi.Solver,), own)


def communicator(way: str, device: Any) -> Any:
    from mpi4py import MPI

    if way.startswith(("warpmpi", "cupy")):
        import warpmpi as wm

        return wm.Comm(MPI.COMM_WORLD)
    kinds = {"staged": Staged, "cuda-aware-mpi": CudaAware, "cuda-aware-mpi-pool": CudaAware}
    return kinds[way](MPI.COMM_WORLD, device) if way in kinds else MPI.COMM_WORLD


def pick_device(way: str) -> Any:
    """This rank's GPU, the CPU where there is none."""
    from mpi4py import MPI
    from p2p_paths import cupy_on_own_gpu, local_rank

    if way.startswith("cupy"):
        import warpmpi as wm

        cupy_on_own_gpu(MPI.COMM_WORLD)
        return wm.get_device()
    import warp as wp

    wp.config.log_level = wp.LOG_WARNING
    gpus = wp.get_cuda_devices()
    device = gpus[local_rank(MPI.COMM_WORLD) % len(gpus)] if gpus else wp.get_device("cpu")
    if way == "cuda-aware-mpi" and device.is_cuda:
        wp.set_mempool_enabled(device, False)
    return device


def check(jacobi: Any, make: Any, comm: Any, device: Any) -> None:
    """Compare a small grid, unevenly shared out, with one device."""
    from mpi4py import MPI

    nx, ny, niter = 515, 517, 300
    reference = solver_class(jacobi, ONE)
    solvers = make(comm, nx, ny, device), reference(MPI.COMM_SELF, nx, ny, device)
    for solver in solvers:
        solver.reset()
        solver.run(niter, 100)
    first, rows = solvers[0].first, solvers[0].rows
    mine, expected = (
        each.solution.numpy() if hasattr(each.solution, "numpy") else each.solution.get()
        for each in solvers
    )
    mine, expected = mine[1:-1], expected[first : first + rows]
    worst = float(np.abs(mine - expected).max())
    if not worst <= jacobi.TOLERANCE:
        raise RuntimeError(f"wrong result: off by {worst}")


def work_nvidia(args: argparse.Namespace, variant: str) -> None:
    """In a rank: one of NVIDIA's programs, which checks its result, and one size."""
    program = Path(os.environ[NVIDIA], variant.replace("-", "_"), "jacobi")
    (n,) = args.sizes
    options = {"-nx": n, "-ny": n, "-niter": args.niter, "-nccheck": args.nccheck}
    words = [str(word) for option in options.items() for word in option]
    done = subprocess.run([program, *words, "-csv"], stdout=subprocess.PIPE, text=True)
    rank = next((os.environ[name] for name in RANK if name in os.environ), "0")
    if done.returncode:
        raise SystemExit(f"Error: exit status {done.returncode} of {program}")
    if rank != "0":
        return
    told = [line.split(",") for line in done.stdout.splitlines() if line.count(",") == 8]
    if len(told) != 1:
        raise SystemExit(f"Error: no figures of {program}: {done.stdout!r}")
    ranks, seconds, alone = int(told[0][5]), float(told[0][7]), float(told[0][8])
    record = measured(n, ranks, args.niter, args.nccheck, [seconds])
    record["speed_up"] = round(alone / seconds, 3)  # to its own run on one GPU
    record["efficiency"] = round(record["speed_up"] / ranks, 3)
    harness.append(args.results, record)


def measured(
    n: int, ranks: int, niter: int, nccheck: int, seconds: Sequence[float]
) -> dict[str, Any]:
    """A record of so many seconds for so many iterations."""
    us = [1e6 * each / niter for each in seconds]
    return {
        "op": "jacobi",
        "dtype": "float32",
        "bytes": 4 * n,  # of a message
        "ranks": ranks,
        "us": round(median(us), 3),  # of an iteration
        "us_min": round(min(us), 3),
        "us_max": round(max(us), 3),
        "GBps": round(8e-3 * (n - 2) ** 2 / median(us), 2),
        "nx": n,
        "ny": n,
        "niter": niter,
        "nccheck": nccheck,
        "seconds": round(median(seconds), 6),
        "repeats": len(seconds),
    }


def work(args: argparse.Namespace) -> None:
    """In a rank: one way, all sizes."""
    harness.give_up_after(args.timeout - 3)
    way = args.worker
    if way.startswith("nvidia-"):
        work_nvidia(args, way.removeprefix("nvidia-"))
        return
    jacobi = example(way)
    device = pick_device(way)
    comm = communicator(way, device)
    make = solver_class(jacobi, way)
    check(jacobi, make, comm, device)
    for n in args.sizes:
        solver = make(comm, n, n, device)
        runs = [
            solver.timed_run(args.niter, args.nccheck, lambda *_: None) for _ in range(args.repeats)
        ]
        seconds = [run[0] for run in runs]
        _, done, norm = runs[-1]
        record = {**measured(n, comm.size, done, args.nccheck, seconds), "norm": norm}
        if comm.rank == 0:
            harness.append(args.results, record)
        del solver
    if comm.rank == 0:
        harness.append(args.results, {"path": about(way, comm, device)})


def about(way: str, comm: Any, device: Any) -> Any:
    from p2p_paths import library_version

    said = {"mpi": library_version(), "device": device.alias}
    if way.startswith(("warpmpi", "cupy")):
        import warpmpi as wm

        said["version"] = wm.__version__
        said["stats"] = {name: count for name, count in wm.stats().items() if count}
    return said


def start(args: argparse.Namespace, way: str, results: str) -> None:
    """Start the ranks of one way."""
    mpirun, environ = None, {}
    if way.startswith("cuda-aware-mpi"):
        mpirun, environ = harness.cuda_aware_launcher()
    if way == "warpmpi-host":
        environ = {"WARPMPI_TRANSPORT": "host"}
    arguments = [__file__, "--worker", way, "--results", results]
    for name in ("timeout", "niter", "nccheck", "repeats"):
        arguments += [f"--{name}", str(getattr(args, name))]
    single = way in (ONE, ONE_CUPY) or way.startswith("nvidia-multi-threaded")
    launches = [args.sizes]
    if way.startswith("nvidia-"):
        if NVIDIA not in os.environ:
            raise RuntimeError(f"{NVIDIA} names no multi-gpu-programming-models")
        launches = [[n] for n in args.sizes for _ in range(args.repeats)]
    for sizes in launches:
        words = [*arguments, "--sizes", *map(str, sizes)]
        ranks = 1 if single else args.ranks
        harness.run_ranks(ranks, words, args.timeout, environ, mpirun, args.log)


Figures = dict[str, dict[int, dict[str, Any]]]


def figures(results: harness.Results) -> Figures:
    """The records by way and size, speed-up and efficiency added."""
    found: Figures = {}
    for record in results.records:
        if "us" in record:
            found.setdefault(record["impl"], {})[record["nx"]] = record
    for way, records in found.items():
        for n, record in records.items():
            if way.startswith("nvidia-"):
                continue
            alone = found.get(ONE_CUPY if way.startswith("cupy") else ONE, {}).get(n)
            if alone:
                record["speed_up"] = round(alone["us"] / record["us"], 3)
                record["efficiency"] = round(record["speed_up"] / record["ranks"], 3)
                if not math.isclose(record["norm"], alone["norm"], rel_tol=1e-6):
                    record["failed"] = f"norm {record['norm']}, one GPU {alone['norm']}"
    return found


def show(found: Figures, sizes: list[int]) -> None:
    for n in sizes:
        rows = []
        for way, records in found.items():
            if n not in records:
                continue
            record = records[n]
            rows.append(
                [
                    WAYS[way],
                    str(record["ranks"]),
                    f"{1e3 * record['seconds']:.1f}",
                    f"{record['us']:.1f}",
                    f"{record['us_min']:.1f}",
                    f"{record['us_max']:.1f}",
                    f"{record.get('speed_up', math.nan):.2f}",
                    f"{100 * record.get('efficiency', math.nan):.1f} %",
                    f"{record['GBps']:.0f}",
                ]
            )
        titles = [f"{n} x {n}", "ranks", "ms", "us/iteration", "least", "most"]
        print()
        harness.table([*titles, "speed-up", "efficiency", "GB/s"], rows)


def judge(found: Figures, results: harness.Results) -> None:
    """Print the goals for two GPUs and 1,000 iterations, and what was reached."""
    if len(results.header["gpus"]) < 2:
        print("\nThe goals are for two GPUs.")
        return
    way = "warpmpi" if "warpmpi" in found else "cupy"
    small, large = (found.get(way, {}).get(n) for n in (4096, 16384))
    print("\nGoals")
    ms = 1e-3 * small["us"] * 1000 if small else None
    text = "4096 x 4096, 1,000 iterations in at most 80 ms"
    harness.verdict(f"{text}: {ms:.1f}" if ms else text, ms <= 80 if ms else None)
    gain = small.get("speed_up") if small else None
    text = "and faster than one GPU"
    harness.verdict(f"{text}: {gain}" if gain else text, gain > 1 if gain else None)
    efficiency = large.get("efficiency") if large else None
    text = "16384 x 16384: efficiency at least 0.95"
    said = f"{text}: {efficiency}" if efficiency else text
    harness.verdict(said, efficiency >= 0.95 if efficiency else None)


def plot(found: Figures, sizes: list[int], results: harness.Results) -> None:
    """Time of an iteration, a panel a size."""
    try:
        from matplotlib import pyplot
    except ImportError:
        print("no picture: matplotlib is not installed")
        return
    figure, panels = pyplot.subplots(1, len(sizes), figsize=(6.5 * len(sizes), 4), squeeze=False)
    for axes, n in zip(panels[0], sizes, strict=True):
        records = {way: records[n] for way, records in found.items() if n in records}
        names = [WAYS[way] for way in records]
        values = [record["us"] for record in records.values()]
        colours = ["C0" if way.startswith("warpmpi") else "0.6" for way in records]
        axes.bar_label(axes.barh(names, values, color=colours), fmt="%.0f", padding=3)
        axes.invert_yaxis()
        axes.set(title=f"{n} x {n}", xlabel="us an iteration")
    gpus = results.header["gpus"]
    figure.suptitle(f"{', '.join(sorted(set(gpus))) or 'no GPU'}; {results.header['mpi']}")
    figure.tight_layout()
    figure.savefig(results.path(".png"), dpi=130, bbox_inches="tight")


def parse_arguments() -> argparse.Namespace:
    parser = harness.parser(__doc__.partition("\n")[0], WAYS)
    parser.add_argument("--ranks", type=int, default=2, help="of all but one-gpu (2)")
    parser.add_argument("--sizes", type=int, nargs="+", default=[4096, 16384], metavar="N")
    parser.add_argument("--niter", type=int, default=1000)
    parser.add_argument("--nccheck", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    args = harness.parse(parser)
    args.repeats = 1 if args.quick else args.repeats
    return args


def report(results: harness.Results) -> None:
    found, sizes = figures(results), results.args.sizes
    results.write()
    show(found, sizes)
    judge(found, results)
    plot(found, sizes, results)


if __name__ == "__main__":
    harness.run("jacobi", parse_arguments(), work, start, report)
