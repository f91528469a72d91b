# SPDX-License-Identifier: BSD-3-Clause
"""A program of mpi4py that knows nothing of warpmpi: matrix times vector, by rows.

mpirun -n 4 python unchanged.py                # NumPy, and plain mpi4py
mpirun -n 4 python -m warpmpi unchanged.py     # CuPy's arrays, if there is a GPU
"""

import os

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
xp = np
if os.environ.get("MPI_CUDA_AWARE"):  # what such programs ask; `-m warpmpi` says yes
    try:
        import cupy as xp

        xp.cuda.Device(comm.rank % xp.cuda.runtime.getDeviceCount()).use()
    except ImportError:
        pass

rows = 4
size = rows * comm.size
first = rows * comm.rank
matrix = xp.asarray(np.arange(first * size, (first + rows) * size, dtype=float).reshape(rows, size))
mine = xp.full(rows, 1.0 + comm.rank)  # this rank's part of the vector
vector, product = xp.empty(size), xp.empty(size)

comm.Allgather(mine, vector)
comm.Allgather(matrix @ vector, product)

whole = np.arange(size * size, dtype=float).reshape(size, size)
expected = whole @ np.repeat(np.arange(1.0, comm.size + 1), rows)
assert np.allclose(product if xp is np else product.get(), expected)
if comm.rank == 0:
    print(f"{size} x {size} with {xp.__name__}: right")
