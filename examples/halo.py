# SPDX-License-Identifier: BSD-3-Clause
"""Heat in a plate: each rank has a block, and the ghosts around it.

    mpirun -n 4 python halo.py plate.png

Without a name it draws no picture, which needs matplotlib.
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

STEPS = 200
grid = wm.Grid((96, 128), MPI.COMM_WORLD, width=1)
old = xp.zeros(grid.local_shape)
rows = xp.asarray(grid.coords(old, 0)).reshape(-1, 1)
columns = xp.asarray(grid.coords(old, 1)).reshape(1, -1)
old[...] = 1.0 * ((rows - 47.5) ** 2 + (columns - 63.5) ** 2 < 400)  # a hot disc
new = old.copy()
for _ in range(STEPS):
    around = old[:-2, 1:-1] + old[2:, 1:-1] + old[1:-1, :-2] + old[1:-1, 2:]
    new[1:-1, 1:-1] = 0.5 * old[1:-1, 1:-1] + 0.125 * around
    grid.halo.exchange(new)  # behind the kernels above, without a wait
    old, new = new, old

plate = grid.gather(old, root=0)
if plate is not None:
    # The plate is alike in all four quarters, whichever rank computed them.
    assert abs(plate - plate[::-1]).max() < 1e-12
    assert abs(plate - plate[:, ::-1]).max() < 1e-12
    print(f"{STEPS} steps with {xp.__name__}: {plate.max():.4f} in the middle")
    if sys.argv[1:]:
        import matplotlib.image

        matplotlib.image.imsave(sys.argv[1], plate, cmap="inferno")
