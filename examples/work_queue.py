# SPDX-License-Identifier: BSD-3-Clause
"""A work queue without a master: ranks draw numbers from a counter in GPU memory.

    mpirun -n 4 python work_queue.py
    mpirun -n 4 python work_queue.py --size 2048 --tile 128 --depth 2000

The work is a picture of the Mandelbrot set, in tiles whose cost differs by orders
of magnitude. `Fetch_and_op` on a counter of rank 0 gives each rank the number of its
next tile; the rank computes the tile, and `Put` writes its rows into the picture in
rank 0's memory, as a datatype with gaps describes them there. Rank 0 works on tiles as
the others do: it serves nobody, as the GPUs of the others update its memory.

At the end rank 0 computes the picture alone, and compares every point.

CuPy computes where there are CuPy and a GPU, NumPy elsewhere, in the same lines.
"""

import argparse
import sys
import time
from types import ModuleType
from typing import Any

import numpy as np
from mpi4py import MPI

import warpmpi as wm

Array = Any  # CuPy's or NumPy's


def library() -> ModuleType:
    """CuPy if it computes on a GPU here, else NumPy."""
    try:
        import cupy

        if wm.is_cuda_available() and cupy.cuda.is_available():
            cupy.cuda.Device(wm.get_device().ordinal).use()
            return cupy
    except ImportError:
        pass
    return np


def tile_of(xp: ModuleType, number: int, words: argparse.Namespace) -> Array:
    """Steps until the points of a tile escape, as int32."""
    across = words.size // words.tile
    row, column = number // across * words.tile, number % across * words.tile
    scale = 3.0 / words.size
    real = -2.25 + scale * (column + xp.arange(words.tile))
    imaginary = -1.5 + scale * (row + xp.arange(words.tile))
    points = real[None, :] + 1j * imaginary[:, None]
    z = xp.zeros_like(points)
    steps = xp.zeros(points.shape, dtype=np.int32)
    for _ in range(words.depth):
        inside = z.real * z.real + z.imag * z.imag <= 4.0
        if not inside.any():
            break
        z = xp.where(inside, z * z + points, z)
        steps += inside
    return steps


def work(comm: MPI.Intracomm, xp: ModuleType, words: argparse.Namespace) -> tuple[wm.Array, int]:
    """Compute tiles until there are none; return the picture, and how many were ours."""
    across = words.size // words.tile
    shape = (words.size, words.size) if comm.rank == 0 else (0,)
    picture = wm.zeros(shape, "int32")  # on the GPU, where there is one
    counter = wm.zeros(1 if comm.rank == 0 else 0, "int64")
    drawn, one = np.zeros(1, np.int64), np.ones(1, np.int64)
    pixels = MPI.Win.Create(picture, 4, comm=comm)
    numbers = MPI.Win.Create(counter, 8, comm=comm)
    rows = MPI.INT32_T.Create_vector(words.tile, words.tile, words.size).Commit()
    done = 0
    pixels.Lock_all()
    numbers.Lock_all()
    while True:
        numbers.Fetch_and_op(one, drawn, 0)
        numbers.Flush(0)
        number = int(drawn[0])
        if number >= across * across:
            break
        at = (number // across * words.size + number % across) * words.tile
        pixels.Put(tile_of(xp, number, words), 0, [at, 1, rows])
        done += 1
    numbers.Unlock_all()
    pixels.Unlock_all()  # the tiles have arrived
    comm.Barrier()
    for window in (pixels, numbers):
        window.Free()
    rows.Free()
    return picture, done


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=512, help="points of a side")
    parser.add_argument("--tile", type=int, default=64, help="points of a tile's side")
    parser.add_argument("--depth", type=int, default=300, help="most steps of a point")
    words = parser.parse_args()
    if words.size % words.tile:
        parser.error("--tile must divide --size")
    wm.install()
    comm, xp = MPI.COMM_WORLD, library()
    comm.Barrier()
    begin = time.perf_counter()
    picture, done = work(comm, xp, words)
    seconds = time.perf_counter() - begin
    each = comm.gather(done)
    if comm.rank > 0:
        return 0
    across = words.size // words.tile
    print(f"{across * across} tiles with {xp.__name__} in {seconds:.3f} s; by rank: {each}")
    points, wrong = picture.numpy(), 0
    for number in range(across * across):
        row, column = (words.tile * k for k in divmod(number, across))
        part = points[row : row + words.tile, column : column + words.tile]
        wrong += int((part != wm.asarray(tile_of(xp, number, words)).numpy()).sum())
    print("every point right" if wrong == 0 else f"{wrong} points wrong")
    return int(wrong > 0 or sum(each) != across * across)


if __name__ == "__main__":
    sys.exit(main())
