# SPDX-License-Identifier: BSD-3-Clause
"""Gather and plot: ranks compute parts of a picture, rank 0 draws it.

    mpirun -n 4 python gather_plot.py julia.png

Without a name, or without matplotlib, it draws in letters.
"""

import importlib.util
import sys

from mpi4py import MPI

import warpmpi as wm

if wm.is_cuda_available() and importlib.util.find_spec("cupy"):
    import cupy as xp

    xp.cuda.Device(wm.get_device().ordinal).use()  # a GPU for each rank of a host
else:
    import numpy as xp

SIZE = 240


def steps_of(first, last):
    """How long the points of some rows of a Julia set stay inside."""
    rows = xp.arange(first, last)[:, None]
    z = (xp.arange(SIZE)[None, :] / SIZE - 0.5) * 3.2 + 1j * (rows / SIZE - 0.5) * 2.4
    steps = xp.zeros(z.shape)
    for _ in range(60):
        inside = abs(z) < 2.0
        z = xp.where(inside, z * z - 0.8 + 0.156j, z)
        steps += inside
    return steps


wm.install()
comm = MPI.COMM_WORLD
counts = [SIZE // comm.size + (rank < SIZE % comm.size) for rank in range(comm.size)]
first = sum(counts[: comm.rank])
steps = steps_of(first, first + counts[comm.rank])

# Rows of rank 0 first, then those of rank 1: counts are of elements.
whole = xp.empty((SIZE, SIZE)) if comm.rank == 0 else None
into = [whole, [count * SIZE for count in counts]] if comm.rank == 0 else None
comm.Gatherv(steps, into, root=0)

if comm.rank == 0:
    picture = wm.asarray(whole).numpy()
    assert (picture == wm.asarray(steps_of(0, SIZE)).numpy()).all()
    if sys.argv[1:] and importlib.util.find_spec("matplotlib"):
        import matplotlib.image

        matplotlib.image.imsave(sys.argv[1], picture, cmap="magma")
        print("wrote", sys.argv[1])
    else:
        for row in picture[::12, ::4]:
            print("".join(" .:-=+*#%@"[int(each) * 9 // 60] for each in row))
