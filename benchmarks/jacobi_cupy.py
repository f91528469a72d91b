# SPDX-License-Identifier: BSD-3-Clause
"""The solver of examples/jacobi.py with CuPy: the same kernels in CUDA C++.

For machines without Warp. bench_jacobi.py measures it as "cupy", "cupy-graph" and
"cupy-one-gpu". It has the names of the example that the benchmark uses.
"""

from __future__ import annotations

import functools
import math
import time
from types import SimpleNamespace
from typing import Any

import cupy
import numpy as np
from mpi4py import MPI

import warpmpi as wm

TOLERANCE = 1e-8
STRIP = 8  # rows of one column for each thread: their loads overlap
THREADS = 256
KERNELS = r"""
extern "C" __global__ void
relax_interior(const float *__restrict__ old, float *__restrict__ fresh, int nx, int last)
{
    int i = 2 + blockIdx.y * STRIP, j = blockIdx.x * blockDim.x + threadIdx.x;
    if (j < 1 || j >= nx - 1)
        return;
    float column[STRIP + 2], relaxed[STRIP];
#pragma unroll
    for (int k = 0; k < STRIP + 2; k++)
        column[k] = old[(size_t)min(i - 1 + k, last) * nx + j];
#pragma unroll
    for (int k = 0; k < STRIP; k++) {
        const float *row = old + (size_t)min(i + k, last) * nx + j;
        relaxed[k] = 0.25f * (row[-1] + row[1] + column[k] + column[k + 2]);
    }
#pragma unroll
    for (int k = 0; k < STRIP; k++)
        if (i + k < last)
            fresh[(size_t)(i + k) * nx + j] = relaxed[k];
}

extern "C" __global__ void
relax_edges(const float *__restrict__ old, float *__restrict__ fresh, int nx, int last)
{
    int i = blockIdx.y ? last : 1, j = blockIdx.x * blockDim.x + threadIdx.x;
    if (j < 1 || j >= nx - 1)
        return;
    const float *at = old + (size_t)i * nx + j;
    fresh[(size_t)i * nx + j] = 0.25f * (at[-1] + at[1] + at[-nx] + at[nx]);
}

extern "C" __global__ void
add_squares(const float *__restrict__ old, const float *__restrict__ fresh, int nx, int last,
            double *total)
{
    int i = 1 + blockIdx.y * STRIP, j = blockIdx.x * blockDim.x + threadIdx.x;
    float squares = 0;
    for (int row = i; j < nx && row < min(i + STRIP, last + 1); row++) {
        float change = fresh[(size_t)row * nx + j] - old[(size_t)row * nx + j];
        squares += change * change;
    }
    double sum = squares;
    for (int lanes = 16; lanes; lanes /= 2)
        sum += __shfl_down_sync(~0u, sum, lanes);
    if (threadIdx.x % 32 == 0)
        atomicAdd(total, sum);
}

extern "C" __global__ void
set_columns(float *field, int nx, int rows, int first, int ny)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows)
        return;
    float value = sin(2 * 3.14159265358979323846 * (first + i) / (double)(ny - 1));
    field[(size_t)i * nx] = field[(size_t)i * nx + nx - 1] = value;
}
""".replace("STRIP", str(STRIP))


@functools.cache
def kernel(name: str) -> Any:
    """The kernel on the current device; without fused arithmetic, as Warp's."""
    return cupy.RawKernel(KERNELS, name, options=("--fmad=false",))


class Lane:
    """A stream and an event to wait for it."""

    def __init__(self, priority: int = 0):
        self.stream = cupy.cuda.Stream(non_blocking=True, priority=priority)
        self.event = cupy.cuda.Event(disable_timing=True)

    def wait(self, other: Lane) -> None:
        """Hold what is to come until what the other has now has ended."""
        other.event.record(other.stream)
        self.stream.wait_event(other.event)


def launch(lane: Lane, name: str, grid: tuple[int, ...], *arguments: Any) -> Any:
    """A launch, its arguments converted before."""
    numbers = [np.int32(each) if isinstance(each, int) else each for each in arguments]
    call = functools.partial(kernel(name), grid, (THREADS,), tuple(numbers))

    def run() -> None:
        with lane.stream:
            call()

    return run


class Solver:
    """The rows of one rank, 1 to `rows` of two fields."""

    graphs = False  # the iterations between two norms are one graph

    def __init__(self, comm: Any, nx: int, ny: int, device: Any):
        self.comm, self.nx, self.ny, self.device = comm, nx, ny, device
        rows, longer = divmod(ny - 2, comm.size)
        self.first = 1 + comm.rank * rows + min(comm.rank, longer)
        self.rows = rows + (comm.rank < longer)
        self.edge, self.interior = Lane(priority=-1), Lane()
        self.fields = [cupy.zeros((self.rows + 2, nx), np.float32) for _ in range(2)]
        self.squares, self.total = [cupy.zeros(1, np.float64) for _ in range(2)]
        if comm.size > 1:
            self.halo = wm.Halo(comm.Create_cart([comm.size], periods=[True]), width=1)
        a, b = self.fields
        self.steps = self.prepare(a, b), self.prepare(b, a)
        self.graph: Any = None
        cupy.cuda.Device().synchronize()

    def prepare(self, old: Any, fresh: Any) -> SimpleNamespace:
        nx, last = self.nx, self.rows
        columns = -(-nx // THREADS)
        strips = -(-max(last - 2, 1) // STRIP), -(-last // STRIP)
        step = SimpleNamespace(
            relax_edges=launch(
                self.edge, "relax_edges", (columns, min(last, 2)), old, fresh, nx, last
            ),
            relax_interior=launch(
                self.interior, "relax_interior", (columns, strips[0]), old, fresh, nx, last
            ),
            add_squares=launch(
                self.edge, "add_squares", (columns, strips[1]), old, fresh, nx, last, self.squares
            ),
        )
        if self.comm.size > 1:
            step.exchange = functools.partial(self.halo.plan(fresh), stream=self.edge.stream)
        else:
            step.exchange = functools.partial(self.copy, fresh)
        return step

    def copy(self, field: Any) -> None:
        """One device has both rows."""
        for to, source in ((0, self.rows), (self.rows + 1, 1)):
            ends = field[to].data.ptr, field[source].data.ptr, 4 * self.nx
            cupy.cuda.runtime.memcpyAsync(*ends, 3, self.edge.stream.ptr)  # device to device

    def reset(self) -> None:
        for field in self.fields:
            field.fill(0)
            words = field, *map(np.int32, (self.nx, self.rows + 2, self.first - 1, self.ny))
            kernel("set_columns")((-(-(self.rows + 2) // THREADS),), (THREADS,), words)
        cupy.cuda.Device().synchronize()

    def iterate(self, step: SimpleNamespace) -> None:
        self.edge.wait(self.interior)
        step.relax_edges()
        step.relax_interior()
        step.exchange()
        self.interior.wait(self.edge)

    def norm(self, step: SimpleNamespace) -> float:
        """The Euclidean norm of the change, over the whole grid."""
        with self.edge.stream:
            self.squares.fill(0)
            self.edge.wait(self.interior)
            step.add_squares()
            if self.comm.size == 1:
                return math.sqrt(self.squares.get()[0])
            self.comm.Allreduce(self.squares, self.total)
            return math.sqrt(self.total.get()[0])

    def capture(self, many: int) -> Any:
        self.edge.stream.begin_capture()
        self.interior.wait(self.edge)
        for number in range(many):
            self.iterate(self.steps[number % 2])
        self.edge.wait(self.interior)
        return self.edge.stream.end_capture()

    def replay(self, many: int) -> None:
        self.graph = self.graph or self.capture(many)
        self.edge.wait(self.interior)
        self.graph.launch(self.edge.stream)
        self.interior.wait(self.edge)

    def run(self, niter: int, nccheck: int, report: Any = None) -> tuple[int, float]:
        """Iterate; the iterations done, and the last norm, had every nccheck."""
        norm, done = math.inf, 0
        many = nccheck - 2 if self.graphs and nccheck % 2 == 0 else 0
        while norm > TOLERANCE and done < niter:
            if many and done % nccheck == 2 and done + many <= niter:
                self.replay(many)
                done += many
                continue
            step = self.steps[done % 2]
            self.iterate(step)
            if done % nccheck == 0:
                norm = self.norm(step)
            done += 1
        cupy.cuda.Device().synchronize()
        self.solution = self.fields[done % 2]
        return done, norm

    def timed_run(self, niter: int, nccheck: int, report: Any) -> tuple[float, int, float]:
        """Run from the start; the slowest rank's seconds, then run()'s results."""
        self.reset()
        self.run(min(niter, 100), nccheck)
        self.reset()
        self.comm.Barrier()
        start = time.perf_counter()
        done, norm = self.run(niter, nccheck)
        return self.comm.allreduce(time.perf_counter() - start, op=MPI.MAX), done, norm
