# SPDX-License-Identifier: BSD-3-Clause
"""The heat equation in three dimensions, with Warp, on any number of GPUs.

    mpirun -n 2 python heat3d.py -n 256              # GPUs
    mpirun -n 2 python heat3d.py -n 48 -niter 100    # CPUs

wm.Grid cuts a periodic cube of n^3 points into a block for each rank, and tells where
the block's points lie. A time step gives each point the mean of itself and its six
neighbours, so a block has ghosts: copies of the neighbours' nearest points. Before a
step one call fills them:

    plan = grid.halo.plan(u)    # once, with all ranks
    plan(stream=stream)         # one kernel, GPU to GPU

It takes Warp's arrays as they are, and a CUDA graph can hold it: here two time steps,
with their exchanges, are one graph, which the ranks then launch without a look at each
other. The start is 1 and a product of sines, which a step makes smaller by a factor that
is known, so each rank can check each of its points. `--plot FILE` draws a plane of it.
"""

import argparse
import math
import sys
import time

import numpy as np
from mpi4py import MPI

import warpmpi as wm

try:
    import warp as wp
except ImportError:
    sys.exit(f"{__file__}: Warp is not there: pip install warp-lang")

TOLERANCE = 1e-4  # of temperatures from 0 to 2: float32's rounding, step after step
SHARE = 1.0 / 7.0  # of a neighbour's value that reaches a point in a step
Field = wp.array3d(dtype=wp.float32)


@wp.kernel(enable_backward=False)
def step(old: Field, fresh: Field, share: wp.float32):
    """One time step of all points but the ghosts."""
    i, j, k = wp.tid()
    i, j, k = i + 1, j + 1, k + 1
    around = old[i - 1, j, k] + old[i + 1, j, k] + old[i, j - 1, k] + old[i, j + 1, k]
    around += old[i, j, k - 1] + old[i, j, k + 1]
    fresh[i, j, k] = old[i, j, k] + share * (around - 6.0 * old[i, j, k])


class Heat:
    """The block of one rank: two fields, which take turns."""

    def __init__(self, comm: MPI.Intracomm, n: int, device: wp.Device):
        self.device = device
        self.grid = wm.Grid((n, n, n), comm, periods=True, width=1)
        self.stream = wp.Stream(device) if device.is_cuda else None
        shape = self.grid.local_shape
        self.fields = [wp.zeros(shape, dtype=wp.float32, device=device) for _ in range(2)]
        sines = [
            np.sin(2 * math.pi * self.grid.coords(self.fields[0], dim) / n) for dim in range(3)
        ]
        self.mode = np.einsum("i,j,k->ijk", *sines)[self.grid.slices].astype(np.float32)
        self.factor = 1 - 12 * SHARE * math.sin(math.pi / n) ** 2  # of a step
        self.plans = [self.grid.halo.plan(field) for field in self.fields]
        self.graph = None

    def reset(self) -> None:
        host = np.zeros(self.grid.local_shape, np.float32)
        host[self.grid.slices] = 1 + self.mode
        self.fields[0].assign(host)
        wp.synchronize_device(self.device)

    def two_steps(self) -> None:
        """There and back: the result is in the first field."""
        for number in range(2):
            old, fresh = self.fields[number], self.fields[1 - number]
            self.plans[number](stream=self.stream)
            inside = [n - 2 for n in old.shape]
            wp.launch(step, inside, [old, fresh, SHARE], device=self.device, stream=self.stream)

    def run(self, pairs: int) -> None:
        """So many times two steps: the first by its calls, the others by a graph."""
        self.two_steps()
        if self.stream and not self.graph:
            with wp.ScopedCapture(stream=self.stream, force_module_load=False) as captured:
                self.two_steps()
            self.graph = captured.graph
        for _ in range(pairs - 1):
            if self.graph:
                wp.capture_launch(self.graph, stream=self.stream)
            else:
                self.two_steps()
        wp.synchronize_device(self.device)

    def error(self, steps: int) -> float:
        """How far the worst point of this rank is off."""
        found = self.fields[0].numpy()[self.grid.slices]
        worst = float(np.abs(found - 1 - self.factor**steps * self.mode).max())
        return worst if worst >= 0 else math.inf  # not NaN


def plot(heat: Heat, path: str) -> None:
    """Draw the plane where the sine of x is largest; rank 0 gathers the cube."""
    cube = heat.grid.gather(heat.fields[0], root=0)
    if cube is not None:
        from matplotlib import pyplot

        pyplot.figure(figsize=(4.2, 3.2))
        pyplot.imshow(cube[len(cube) // 4], cmap="inferno", vmin=0, vmax=2)
        pyplot.colorbar(label="temperature")
        pyplot.savefig(path, dpi=120, bbox_inches="tight")
        print(f"picture in {path}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-n", type=int, default=256, help="points a side (256)")
    parser.add_argument("-niter", type=int, default=1000, help="time steps, an even number (1000)")
    parser.add_argument("--device", help="cpu or cuda:N; without it each rank takes a GPU")
    parser.add_argument("--plot", metavar="FILE", help="write a picture of a plane")
    args = parser.parse_args()
    if args.n < max(2, MPI.COMM_WORLD.size) or args.niter < 4 or args.niter % 2:
        parser.error("n >= 2, n >= the number of ranks and an even niter >= 4, please")
    return args


def main() -> int:
    args = parse_arguments()
    wp.config.log_level = wp.LOG_WARNING
    comm = wm.Comm(MPI.COMM_WORLD)
    gpu = wm.is_cuda_available() and wp.is_cuda_available()
    device = wp.get_device(args.device or (wm.get_device().alias if gpu else "cpu"))
    heat = Heat(comm, args.n, device)
    heat.reset()
    heat.run(2)  # loads the kernel, maps the neighbours' memory, makes the graph
    heat.reset()
    comm.Barrier()
    start = time.perf_counter()
    heat.run(args.niter // 2)
    seconds = comm.allreduce(time.perf_counter() - start, op=MPI.MAX)
    worst = comm.allreduce(heat.error(args.niter), op=MPI.MAX)
    correct = worst <= TOLERANCE
    if comm.rank == 0:
        blocks = " x ".join(map(str, heat.grid.dims))
        rate = 8e-9 * args.n**3 * args.niter / seconds  # a read, a write
        print(f"""\
{args.n}^3 points in {blocks} block(s); rank 0 on {device}, {device.name}
{args.niter} time steps; largest error {worst:.2g}: {"correct" if correct else "WRONG"}
time {seconds:.4f} s, effective bandwidth {rate:.1f} GB/s""")
    if args.plot:
        plot(heat, args.plot)
    return 0 if correct else 1


if __name__ == "__main__":
    sys.exit(main())
