# SPDX-License-Identifier: BSD-3-Clause
"""Gradient averaging: each rank has data, all ranks have the same model.

    mpirun -n 4 python average_gradients.py

The mean of the gradients is one call with wm.AVG. data_parallel.py overlaps it with the
computation, for a network of several layers.
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
random = np.random.default_rng(comm.rank)
TRUE = np.linspace(-1.0, 1.0, 16)
inputs = random.normal(size=(1000, 16))
x, y = xp.asarray(inputs), xp.asarray(inputs @ TRUE)

weights = xp.zeros(16)
for _ in range(100):
    error = x @ weights - y
    gradient = x.T @ error / len(y)
    comm.Allreduce(MPI.IN_PLACE, gradient, op=wm.AVG)
    weights = weights - 0.5 * gradient

found = wm.asarray(weights).numpy()
assert np.allclose(found, TRUE)
assert all((other == found).all() for other in comm.allgather(found))
if comm.rank == 0:
    print(f"{comm.size} ranks with {xp.__name__} have the same weights, and the right ones")
