# SPDX-License-Identifier: BSD-3-Clause
"""Laplace's equation by Jacobi relaxation, on any number of GPUs.

    mpirun -n 2 python jacobi.py -nx 4096 -ny 4096 --plot solution.png    # GPUs
    mpirun -n 2 python jacobi.py -nx 512 -ny 512 -niter 200               # CPUs

The left and right columns of the grid are held at one period of a sine, top
and bottom are joined (periodic in y), and in every iteration each other point
becomes the mean of its four neighbours: the problem and the check of NVIDIA's
multi-gpu-programming-models, in the way of its `mpi_overlap` variant.

Each rank holds a block of rows, and above and below it a halo row: a copy of
the neighbour's nearest row. One iteration

    1. relaxes the first and the last row, on one stream,
    2. relaxes the rows between them, on another stream, and meanwhile
    3. exchanges the two new rows with the neighbours, GPU to GPU.

wm.Halo takes Warp's arrays as they are. Its one kernel is enqueued on the stream of
step 1: it stores the new rows into the neighbours' halos behind the kernel that
computes them, and what comes next on that stream finds the neighbours' rows. So the
CPU waits for a GPU only for a norm, or where rows have to go through host memory.
"""

import argparse
import functools
import math
import os
import sys
import time
from types import SimpleNamespace

import numpy as np
from mpi4py import MPI

import warpmpi as wm

try:
    import warp as wp
except ImportError:
    sys.exit(f"{__file__}: Warp is not there: pip install warp-lang")

TOLERANCE = 1e-8  # the norm that ends the iteration, the error that fails it
STRIP = 8  # rows of one column for each thread: their loads overlap
TWO_PI = wp.constant(wp.float64(2.0 * math.pi))
Field = wp.array2d(dtype=wp.float32)
Column = wp.types.vector(length=STRIP + 2, dtype=wp.float32)


@wp.kernel(enable_backward=False)
def relax_interior(old: Field, fresh: Field, last: int):
    """Relax the rows between row 1 and row `last`, STRIP of them a thread."""
    thread = wp.tid()
    nx = old.shape[1]
    i = 2 + thread // nx * STRIP
    j = thread % nx
    if j > 0 and j < nx - 1:
        column = Column()
        for k in range(STRIP + 2):
            column[k] = old[wp.min(i - 1 + k, last), j]
        relaxed = Column()
        for k in range(STRIP):
            row = wp.min(i + k, last)
            relaxed[k] = 0.25 * (old[row, j - 1] + old[row, j + 1] + column[k] + column[k + 2])
        for k in range(STRIP):
            if i + k < last:
                fresh[i + k, j] = relaxed[k]


@wp.kernel(enable_backward=False)
def relax_edges(old: Field, fresh: Field, last: int):
    """Relax row 1 and, launched over two rows, row `last`."""
    edge, j = wp.tid()
    i = wp.where(edge == 0, 1, last)
    if j > 0 and j < old.shape[1] - 1:
        fresh[i, j] = 0.25 * (old[i, j - 1] + old[i, j + 1] + old[i - 1, j] + old[i + 1, j])


@wp.kernel(enable_backward=False)
def add_squares(old: Field, fresh: Field, last: int, total: wp.array(dtype=wp.float64)):
    """Add up (fresh - old)^2 over rows 1 to `last`, with one atomic a block."""
    thread = wp.tid()
    nx = old.shape[1]
    i = 1 + thread // nx * STRIP
    j = thread % nx
    squares = wp.float32(0.0)
    for row in range(i, wp.min(i + STRIP, last + 1)):
        change = fresh[row, j] - old[row, j]
        squares += change * change
    wp.tile_atomic_add(total, wp.tile_sum(wp.tile(wp.float64(squares))))


@wp.kernel(enable_backward=False)
def set_columns(field: Field, first: int, ny: int):
    """Set the fixed columns; row 0 of the field is row `first` of the grid."""
    i = wp.tid()
    y = wp.float64(first + i) / wp.float64(ny - 1)
    field[i, 0] = wp.float32(wp.sin(TWO_PI * y))
    field[i, field.shape[1] - 1] = field[i, 0]


class Lane:
    """A stream and an event to wait for it; the CPU needs neither."""

    def __init__(self, device: wp.Device, priority: int = 0):
        self.stream = wp.Stream(device, priority) if device.is_cuda else None
        self.event = wp.Event(device) if device.is_cuda else None

    def launch(self, command: wp.Launch) -> None:
        command.launch(self.stream)

    def wait(self, other: "Lane") -> None:
        """Hold what is to come until what the other has now has ended."""
        if self.stream:
            self.stream.wait_stream(other.stream, other.event)


def share(ny: int, rank: int, size: int) -> tuple[int, int]:
    """The first grid row of a rank, and how many of the ny - 2 it has."""
    rows, longer = divmod(ny - 2, size)
    return 1 + rank * rows + min(rank, longer), rows + (rank < longer)


class Solver:
    """The rows of one rank, 1 to `rows` of two fields."""

    def __init__(self, comm: MPI.Intracomm, nx: int, ny: int, device: wp.Device):
        self.comm, self.nx, self.ny, self.device = comm, nx, ny, device
        self.first, self.rows = share(ny, comm.rank, comm.size)
        self.down = (comm.rank + 1) % comm.size
        self.edge, self.interior = Lane(device, priority=-1), Lane(device)
        shape = (self.rows + 2, nx)
        self.fields = a, b = [wp.zeros(shape, dtype=wp.float32, device=device) for _ in range(2)]
        self.squares, self.total = [wp.zeros(1, dtype=wp.float64, device=device) for _ in range(2)]
        self.connect()
        self.steps = self.prepare(a, b), self.prepare(b, a)

    def connect(self) -> None:
        """Join the ranks to a ring, along the fields' first dimension."""
        self.halo = wm.Halo(self.comm.Create_cart([self.comm.size], periods=[True]), width=1)

    def prepare(self, old: wp.array, fresh: wp.array) -> SimpleNamespace:
        """Record an iteration's launches, once for all."""
        record = functools.partial(wp.launch, device=self.device, record_cmd=True)
        nx, last = self.nx, self.rows
        strips = math.ceil(max(last - 2, 1) / STRIP)
        threads = math.ceil(math.ceil(last / STRIP) * nx / 256) * 256  # whole blocks add
        step = SimpleNamespace(
            relax_edges=record(relax_edges, (min(last, 2), nx), [old, fresh, last]),
            relax_interior=record(relax_interior, strips * nx, [old, fresh, last]),
            add_squares=record(add_squares, threads, [old, fresh, last, self.squares]),
            fresh=fresh,
        )
        self.plan(step)
        return step

    def plan(self, step: SimpleNamespace) -> None:
        """Make the exchange of the new rows, which every other iteration calls."""
        step.plan = self.halo.plan(step.fresh)

    def reset(self) -> None:
        for field in self.fields:
            field.zero_()
            columns = [field, self.first - 1, self.ny]
            wp.launch(set_columns, self.rows + 2, columns, device=self.device)
        wp.synchronize_device(self.device)

    def iterate(self, step: SimpleNamespace) -> None:
        # Both kernels read what the other wrote last time, and overwrite what it
        # read.
        self.edge.wait(self.interior)
        self.edge.launch(step.relax_edges)
        self.interior.launch(step.relax_interior)
        self.exchange(step)

    def exchange(self, step: SimpleNamespace) -> None:
        """The new rows to the neighbours' halos, and theirs to ours."""
        step.plan(stream=self.edge.stream)
        self.interior.wait(self.edge)

    def norm(self, step: SimpleNamespace) -> float:
        """The Euclidean norm of the change, over the whole grid."""
        self.squares.zero_()
        self.edge.wait(self.interior)
        self.edge.launch(step.add_squares)
        if self.comm.size == 1:
            return math.sqrt(self.squares.numpy()[0])
        self.comm.Allreduce(self.squares, self.total)
        return math.sqrt(self.total.numpy()[0])

    def run(self, niter: int, nccheck: int, report=lambda *_: None) -> tuple[int, float]:
        """Iterate; the iterations done, and the last norm, had every nccheck."""
        norm, done = math.inf, 0
        with wp.ScopedStream(self.edge.stream):  # it orders norm and copies, too
            while norm > TOLERANCE and done < niter:
                step = self.steps[done % 2]
                self.iterate(step)
                if done % nccheck == 0:
                    norm = self.norm(step)
                    report(self.comm.size, done, norm)
                done += 1
        wp.synchronize_device(self.device)
        self.solution = self.fields[done % 2]
        return done, norm

    def timed_run(self, niter: int, nccheck: int, report) -> tuple[float, int, float]:
        """Run from the start; the slowest rank's seconds, then run()'s results."""
        self.reset()
        # First launches load kernels, first messages map the neighbours' memory.
        self.run(min(niter, 100 if self.device.is_cuda else 2), nccheck)
        self.reset()
        self.comm.Barrier()
        start = time.perf_counter()
        done, norm = self.run(niter, nccheck, report)
        seconds = self.comm.allreduce(time.perf_counter() - start, op=MPI.MAX)
        report(self.comm.size, done, norm)
        return seconds, done, norm


def largest_difference(solver: Solver, reference: Solver | None) -> float:
    """To rank 0's reference, whose rows go to the other ranks' devices."""
    comm, mine = solver.comm, solver.solution[1:-1]
    if reference:
        for rank in range(1, comm.size):
            first, rows = share(solver.ny, rank, comm.size)
            comm.Send(reference.solution[first : first + rows], dest=rank)
        expected = reference.solution[1 : 1 + solver.rows]
    else:
        while not comm.Iprobe(source=0):
            time.sleep(0.01)  # rank 0 computes alone: its CPUs are left to it
        expected = wp.empty_like(mine)
        comm.Recv(expected, source=0)
    worst = np.abs(mine.numpy() - expected.numpy()).max()
    return comm.allreduce(float(worst if worst >= 0 else math.inf), op=MPI.MAX)  # not NaN


def plot(solver: Solver, path: str) -> None:
    """Draw the solution, thinned out to a thousand points a side."""
    thin = math.ceil(max(solver.nx, solver.ny) / 1000)
    mine = solver.solution.numpy()[1:-1]
    parts = solver.comm.gather(mine[-solver.first % thin :: thin, ::thin])
    if parts:
        from matplotlib import pyplot

        extent = (0, solver.nx, solver.ny, 0)
        pyplot.figure(figsize=(4.2, 3.2))
        pyplot.imshow(np.concatenate(parts), cmap="RdBu_r", extent=extent)
        pyplot.colorbar(label="solution")
        pyplot.savefig(path, dpi=120, bbox_inches="tight")
        print(f"picture in {path}")


def draw_bar(total: int, ranks: int, done: int, norm: float) -> None:
    bar = "#" * (40 * done // total)
    end = "\n" if done == total or norm <= TOLERANCE else ""
    line = f"\r{ranks} rank(s) [{bar:40}] {done}/{total} norm {norm:.2e} "
    print(line, end=end, file=sys.stderr, flush=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-nx", type=int, default=4096, help="points in x (4096)")
    parser.add_argument("-ny", type=int, default=4096, help="points in y (4096)")
    parser.add_argument("-niter", type=int, default=1000, help="iterations at most (1000)")
    parser.add_argument("-nccheck", type=int, default=100, help="a norm every so many (100)")
    parser.add_argument("--device", help="cpu or cuda:N; without it each rank takes a GPU")
    parser.add_argument("--plot", metavar="FILE", help="write a picture of the solution")
    parser.add_argument("--csv", action="store_true", help="print the figures as one line")
    parser.add_argument("--progress", action="store_true", help="a bar without a terminal too")
    args = parser.parse_args()
    if args.nx < 3 or args.ny < 2 + MPI.COMM_WORLD.size or min(args.niter, args.nccheck) < 1:
        parser.error("nx >= 3, ny >= 2 + ranks, niter >= 1 and nccheck >= 1, please")
    return args


def main() -> int:
    args = parse_arguments()
    wp.config.log_level = wp.LOG_WARNING
    comm = wm.Comm(MPI.COMM_WORLD)
    gpu = wm.is_cuda_available() and wp.is_cuda_available()
    device = wp.get_device(args.device or (wm.get_device().alias if gpu else "cpu"))
    root, n = comm.rank == 0, comm.size
    shown = root and (args.progress or sys.stderr.isatty())
    bar = functools.partial(draw_bar, args.niter) if shown else lambda *_: None
    solver = Solver(comm, args.nx, args.ny, device)
    seconds, done, norm = solver.timed_run(args.niter, args.nccheck, bar)
    reference = Solver(MPI.COMM_SELF, args.nx, args.ny, device) if root else None
    alone = reference.timed_run(args.niter, args.nccheck, bar)[0] if reference else math.nan
    # Whoever computes a point, its float32 is the same: NVIDIA allows 1e-8, here it is 0.
    difference = largest_difference(solver, reference)
    correct = difference <= TOLERANCE
    bandwidth = 8e-9 * (args.nx - 2) * (args.ny - 2) * done / seconds  # a read, a write
    if root and args.csv:
        print("warpmpi", args.nx, args.ny, done, args.nccheck, n, seconds, alone, sep=", ")
    elif root:
        print(f"""\
{args.ny} x {args.nx} points, {n} rank(s); rank 0 on {device}, {device.name}
rows travel by {wm.transport(comm, solver.down, solver.fields[0][0])}
{done} iterations; the last norm taken, every {args.nccheck}, {norm:.6g}
largest difference to one rank {difference:.2g}: {"correct" if correct else "WRONG"}
time {seconds:.4f} s, of one rank {alone:.4f} s: speed-up {alone / seconds:.2f}
efficiency {100 * alone / seconds / n:.1f} %, effective bandwidth {bandwidth:.1f} GB/s""")
        if not device.is_cuda:
            cores = len(os.sched_getaffinity(0))
            print(f"""no GPU: each rank computes on one of {cores} CPU core(s); speed-up and
efficiency are those of cores that share one memory, and say nothing of GPUs""")
    if args.plot:
        plot(solver, args.plot)
    return 0 if correct else 1


if __name__ == "__main__":
    sys.exit(main())
