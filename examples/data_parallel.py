# SPDX-License-Identifier: BSD-3-Clause
"""Data-parallel training of a small network, on any number of GPUs.

    mpirun -n 2 python data_parallel.py --hidden 4096 4096 --batch 1024    # GPUs
    mpirun -n 2 python data_parallel.py --plot losses.png                  # CPUs

Every rank has the whole network, and images of its own. In each step it computes
the gradients of a batch of these; they are averaged over all ranks, which so take
the same step, that of the global batch, and keep the same weights.

The backward pass comes to the gradient of the last layer first. Its `Iallreduce`
begins at once, in place, and is under way while the gradients of the layers before
are computed, on GPUs on a stream of its own; only the update waits for it. To
compare, the same is done with one `Allreduce` after the other behind the backward
pass, and by each rank alone. The efficiency is the time of a step alone over its
time with the others: 100 % if nobody ever waits for a message.

CuPy computes where there are CuPy and a GPU, NumPy elsewhere, in the same lines.
CuPy's arrays go into MPI's calls as they are, and nothing is synchronized by hand:
the calls follow the work on CuPy's current stream. The CPU reads one number an
epoch, the loss.

The images are made here: ten patterns, shifted, in noise.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one core a rank; NumPy reads it at import

import argparse
import functools
import hashlib
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NoReturn

import numpy as np
from mpi4py import MPI

import warpmpi as wm

Array = Any  # CuPy's or NumPy's, of float32
CLASSES, SIDE, BLOCK = 10, 28, 4  # a pattern is 28 x 28 pixels, in blocks of 4 x 4
SHIFT, NOISE = 3, 0.8  # pixels at most; times a normal distribution, on greys of 0 to 1
TESTS = 1000  # images of each rank that it does not train with
RATE, MOMENTUM = 0.02, 0.9
LEARNT = 0.5  # test accuracy that tells learning from guessing, which gives 0.1
IMAGES, STEPS = 1000, 100  # of a rank; with fewer nobody expects that


class Layer:
    """A dense layer: weights, their last row the biases, and what training needs beside."""

    def __init__(self, xp: ModuleType, inputs: int, outputs: int):
        arrays = [xp.empty((inputs + 1, outputs), dtype=np.float32) for _ in range(3)]
        self.weights, self.gradient, self.velocity = arrays

    def update(self) -> None:
        self.velocity *= MOMENTUM
        self.velocity -= RATE * self.gradient
        self.weights += self.velocity


class Network:
    """Dense layers, ReLU between them, softmax cross entropy behind the last."""

    def __init__(self, xp: ModuleType, widths: list[int]):
        self.xp = xp
        self.layers = [Layer(xp, *pair) for pair in itertools.pairwise(widths)]
        self.loss = xp.zeros((), dtype=np.float32)  # added up until somebody zeroes it

    def reset(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        for layer in self.layers:
            weights = rng.standard_normal(layer.weights.shape, dtype=np.float32)
            weights *= math.sqrt(2 / (len(weights) - 1))
            weights[-1] = 0
            layer.weights[...] = self.xp.asarray(weights)
            layer.velocity.fill(0)

    def forward(self, x: Array) -> Array:
        for layer in self.layers:
            layer.input = x if layer is self.layers[0] else self.xp.maximum(x, 0)
            x = layer.input @ layer.weights[:-1] + layer.weights[-1]
        return x

    def backward(self, images: Array, targets: Array, total: int) -> Iterator[Layer]:
        """Give each layer once it has its gradient, of these images' share in `total`."""
        logs = self.forward(images)
        logs -= logs.max(axis=1, keepdims=True)
        logs -= self.xp.log(self.xp.exp(logs).sum(axis=1, keepdims=True))
        self.loss -= (targets * logs).sum() / total
        error = (self.xp.exp(logs) - targets) / total
        for layer in reversed(self.layers):
            layer.gradient[:-1] = layer.input.T @ error
            layer.gradient[-1] = error.sum(axis=0)
            yield layer
            if layer is not self.layers[0]:  # the images need no gradient
                error = (error @ layer.weights[:-1].T) * (layer.input > 0)


@functools.cache
def side_stream() -> wm.Stream | None:
    """A stream for sums, where the GPUs of all ranks reach each other; collective."""
    stream = wm.Stream()
    try:
        wm.Comm(MPI.COMM_WORLD).on(stream).Barrier()
    except (ValueError, wm.CudaError):  # on all ranks: they are on several hosts, say
        return None
    return stream


def beside(comm: MPI.Intracomm, array: Array) -> Any:
    """What sums an array beside the work on the current stream."""
    stream = side_stream() if wm.is_on_device(array) else None
    return comm if stream is None else comm.on(stream)


def overlapped(comm: MPI.Intracomm, backward: Iterator[Layer]) -> None:
    """A step whose sums are under way while the backward pass goes on."""
    begun = []
    for layer in backward:
        channel = beside(comm, layer.gradient)
        begun.append((layer, channel.Iallreduce(MPI.IN_PLACE, layer.gradient)))
    for layer, request in begun:
        request.Wait()
        layer.update()


def blocking(comm: MPI.Intracomm, backward: Iterator[Layer]) -> None:
    """A step that computes first, and then sums."""
    layers = list(backward)
    for layer in layers:
        comm.Allreduce(MPI.IN_PLACE, layer.gradient)
        layer.update()


def alone(comm: MPI.Intracomm, backward: Iterator[Layer]) -> None:
    """A step of one rank, which has nothing to sum."""
    for layer in list(backward):
        layer.update()


class Training:
    """A network, and the images of one rank."""

    def __init__(self, xp: ModuleType, args: argparse.Namespace, rank: int):
        blocks = np.random.default_rng(args.seed).random((CLASSES, SIDE // BLOCK, SIDE // BLOCK))
        patterns = blocks.repeat(BLOCK, axis=1).repeat(BLOCK, axis=2).astype(np.float32)
        self.args, self.seeds = args, [args.seed, 1 + rank]
        rng = np.random.default_rng(self.seeds)
        self.images, self.targets = map(xp.asarray, draw(rng, patterns, args.samples))
        self.tests, self.answers = map(xp.asarray, draw(rng, patterns, TESTS))
        self.network = Network(xp, [SIDE * SIDE, *args.hidden, CLASSES])

    def step(self, way: Callable, comm: MPI.Intracomm, part: Array) -> None:
        """A step on these of the rank's images, and as many on the other ranks."""
        images, targets = self.images[part], self.targets[part]
        way(comm, self.network.backward(images, targets, comm.size * len(part)))

    def run(self, way: Callable, comm: MPI.Intracomm, report: Callable) -> tuple:
        """Train from the start, all ranks at the same time.

        Returns the mean loss of each epoch, the seconds of a step, and whether all
        ranks then have the same weights, bit by bit.
        """
        args, network, xp, losses = self.args, self.network, self.network.xp, []
        steps = args.samples // args.batch
        network.reset(args.seed)
        self.step(way, comm, xp.arange(args.batch))  # compiles kernels, maps memory
        network.reset(args.seed)
        rng = np.random.default_rng(self.seeds)
        MPI.COMM_WORLD.Barrier()
        start = time.perf_counter()
        for epoch in range(args.epochs):
            network.loss.fill(0)
            order = xp.asarray(rng.permutation(args.samples))
            for i in range(steps):
                self.step(way, comm, order[i * args.batch : (i + 1) * args.batch])
            losses.append(comm.allreduce(float(network.loss)) / steps)
            report(way.__name__, args.epochs, epoch + 1, losses[-1])
        seconds = MPI.COMM_WORLD.allreduce(time.perf_counter() - start, op=MPI.MAX)
        weights = hashlib.sha256(b"".join(each.weights.tobytes() for each in network.layers))
        same = len(set(comm.allgather(weights.digest()))) == 1
        return losses, seconds / args.epochs / steps, same

    def is_long(self) -> bool:
        """Whether a network of the default widths learns in a run as long as this."""
        args = self.args
        steps = args.samples // args.batch * args.epochs
        return args.samples >= IMAGES and steps >= STEPS and steps * args.batch >= 4 * IMAGES

    def accuracy(self, comm: MPI.Intracomm) -> float:
        """How much of all ranks' test images the network knows."""
        known = self.network.forward(self.tests).argmax(axis=1) == self.answers.argmax(axis=1)
        return comm.allreduce(float(known.mean())) / comm.size


def draw(rng: np.random.Generator, patterns: np.ndarray, count: int) -> tuple[Any, Any]:
    """So many images, each a row, and for each a row with 1 at its class."""
    labels = rng.integers(CLASSES, size=count)
    rows, columns = (np.arange(SIDE) + rng.integers(-SHIFT, SHIFT + 1, (2, count, 1))) % SIDE
    images = patterns[labels[:, None, None], rows[:, :, None], columns[:, None, :]]
    images += NOISE * rng.standard_normal(images.shape, dtype=np.float32)
    return images.reshape(count, -1), np.eye(CLASSES, dtype=np.float32)[labels]


def array_library() -> ModuleType:
    """CuPy, on this rank's GPU, or NumPy."""
    try:
        import cupy
    except ImportError:
        return np
    if not (wm.is_cuda_available() and cupy.cuda.is_available()):
        return np
    cupy.cuda.Device(wm.get_device().ordinal).use()
    return cupy


def plot(path: str, curves: dict[str, list[float]]) -> None:
    from matplotlib.figure import Figure

    figure = Figure()
    axes = figure.subplots()
    for name, losses in curves.items():
        axes.plot(range(1, len(losses) + 1), losses, ".-", label=name, alpha=0.7)
    axes.set(xlabel="epoch", ylabel="mean loss", yscale="log")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend()
    figure.savefig(path, dpi=150, bbox_inches="tight")


def draw_bar(name: str, total: int, done: int, loss: float) -> None:
    bar = "#" * (40 * done // total)
    line = f"\r{name:10} [{bar:40}] {done}/{total} epochs, loss {loss:.4f} "
    print(line, end="\n" if done == total else "", file=sys.stderr, flush=True)


def refuse(trouble: str) -> NoReturn:
    """End all ranks, which all call it."""
    if MPI.COMM_WORLD.rank == 0:
        print(f"data_parallel.py: {trouble}", file=sys.stderr, flush=True)
    sys.exit(2)


def number(text: str, least: int = 1) -> int:
    if not text.isdecimal() or not least <= int(text) <= 10**6:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from {least} to a million")
    return int(text)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.error = refuse
    add = functools.partial(parser.add_argument, type=number)
    add("--epochs", default=5, help="passes over the images (5)")
    add("--samples", default=8192, help="images of each rank (8192)")
    add("--batch", default=128, help="images of each rank in a step (128)")
    add("--hidden", nargs="+", default=[512, 512], help="widths of hidden layers (512 512)")
    add("--seed", type=functools.partial(number, least=0), default=0, help="of the images (0)")
    parser.add_argument("--plot", metavar="FILE", help="write a picture of the losses")
    parser.add_argument("--progress", action="store_true", help="a bar without a terminal too")
    args = parser.parse_args()
    if args.batch > args.samples:
        refuse(f"--batch {args.batch} is more than --samples {args.samples}")
    if args.plot and not os.path.splitext(args.plot)[1]:
        refuse(f"--plot {args.plot}: what kind of picture? Name it {args.plot}.png, say")
    return args


def prepare(args: argparse.Namespace, comm: MPI.Intracomm, xp: ModuleType) -> Training:
    """Do what may fail on one rank alone: it then ends all of them."""
    trouble = ""
    try:
        training = Training(xp, args, comm.rank)
        if args.plot and comm.rank == 0:
            plot(args.plot, {"untrained": [math.log(CLASSES)]})
    except MemoryError:
        trouble = "no memory for so many --samples, or so wide --hidden layers"
    except ImportError:
        trouble = "--plot needs matplotlib: pip install matplotlib"
    except (OSError, ValueError) as error:
        trouble = f"--plot {args.plot}: {error}"
    for each in filter(None, comm.allgather(trouble)):
        refuse(each)
    return training


def main() -> int:
    args = parse_arguments()
    comm, xp = wm.Comm(MPI.COMM_WORLD), array_library()
    root, n = comm.rank == 0, comm.size
    say = functools.partial(print, flush=True) if root else lambda *_: None
    bar = draw_bar if root and (args.progress or sys.stderr.isatty()) else lambda *_: None
    training = prepare(args, comm, xp)
    gpus = set(comm.allgather(None if xp is np else wm.get_device().uuid)) - {None}
    say(f"{n} rank(s) on", f"{len(gpus)} GPU(s), with CuPy" if gpus else "the CPU, with NumPy")
    curves, correct, reference = {}, True, 0.0
    for way, among in (alone, MPI.COMM_SELF), (blocking, comm), (overlapped, comm):
        name = way.__name__
        curves[name], step, same = training.run(way, among, bar)
        reference = reference or step
        correct &= same
        say(
            f"{name:10} {1e3 * step:8.3f} ms a step, {among.size * args.batch / step:8.0f}"
            f" images/s, speed-up {among.size * reference / step:5.2f}, efficiency"
            f" {reference / step:6.1%}{'' if same else ', WEIGHTS DIFFER BETWEEN RANKS'}"
        )
    accuracy = training.accuracy(comm)
    wanted = f"{LEARNT:.0%} wanted"
    if training.is_long():
        correct &= accuracy >= LEARNT
    else:
        wanted = "none wanted of so few images or steps"
    if args.plot and root:
        plot(args.plot, curves)
        say(f"picture in {args.plot}")
    say(f"test accuracy {accuracy:.1%}, {wanted}: {'PASSED' if correct else 'FAILED'}")
    return 0 if correct else 1


if __name__ == "__main__":
    sys.exit(main())
