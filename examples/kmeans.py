# SPDX-License-Identifier: BSD-3-Clause
"""k-means: points on all ranks, centres that all ranks have.

    mpirun -n 4 python kmeans.py

Each rank finds the nearest centre of its own points. The sums and counts of each centre
are added over the ranks, in one order, so that all ranks have the same centres, bit by bit.
"""

import importlib.util

import numpy as np
from mpi4py import MPI

import warpmpi as wm

if wm.is_cuda_available() and importlib.util.find_spec("cupy"):
    import cupy as xp

    xp.cuda.Device(wm.get_device().ordinal).use()  # a GPU for each rank of a host
else:
    import numpy as xp

wm.install()
comm = MPI.COMM_WORLD
TRUE = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0], [10.0, 10.0]])
random = np.random.default_rng(comm.rank)
points = xp.asarray(np.concatenate([random.normal(each, 1.0, (2500, 2)) for each in TRUE]))

centres = xp.asarray(TRUE + 2.0)  # a first guess
for _ in range(10):
    distances = ((points[:, None, :] - centres[None, :, :]) ** 2).sum(axis=2)
    nearest = distances.argmin(axis=1)
    mine = (nearest[:, None] == xp.arange(len(TRUE))[None, :]).astype(float)
    sums, counts = mine.T @ points, mine.sum(axis=0)
    comm.Allreduce(MPI.IN_PLACE, sums)
    comm.Allreduce(MPI.IN_PLACE, counts)
    centres = sums / counts[:, None]

found = wm.asarray(centres).numpy()
assert abs(found - TRUE).max() < 0.2
assert all((other == found).all() for other in comm.allgather(found))
if comm.rank == 0:
    print(f"{comm.size * len(points)} points with {xp.__name__}, centres near:")
    print(found.round())
