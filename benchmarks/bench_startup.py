# SPDX-License-Identifier: BSD-3-Clause
"""What the library adds before the first message: seconds, and GPU memory.

    mpirun -n 2 python benchmarks/bench_startup.py

From after MPI's start, with CUDA's context already there, to the arrival of a
first message of 8 bytes from GPU to GPU: the import of warpmpi (mpi4py and
NumPy are loaded), the communicator, an array, the mapping of the peer's
memory. One JSON line a rank.
"""

import ctypes
import json
import os
import time

import numpy as np
from mpi4py import MPI


def make_context(ordinal: int) -> ctypes.CDLL:
    cuda = ctypes.CDLL(os.environ.get("WARPMPI_CUDA_DRIVER", "libcuda.so.1"))
    context = ctypes.c_void_p()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), ctypes.c_int(ordinal)) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    return cuda


def free_memory(cuda: ctypes.CDLL) -> int:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    return free.value


def main() -> None:
    world = MPI.COMM_WORLD
    devices = ctypes.c_int()
    cuda = make_context(0)
    cuda.cuDeviceGetCount(ctypes.byref(devices))
    ordinal = world.rank % devices.value
    cuda = make_context(ordinal)
    world.Barrier()
    before = free_memory(cuda)
    world.Barrier()
    start = time.perf_counter()

    import warpmpi as wm

    comm = wm.Comm(world)
    device = wm.get_device(f"cuda:{ordinal}")
    array = wm.full(1, comm.rank, np.int64, device=device)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    into = wm.zeros(1, np.int64, device=device)
    comm.Sendrecv(array, right, 0, into, left, 0)
    seconds = time.perf_counter() - start
    world.Barrier()
    taken = before - free_memory(cuda)
    assert into.numpy()[0] == left
    record = {
        "impl": "warpmpi",
        "op": "start-up",
        "rank": comm.rank,
        "ranks": comm.size,
        "seconds": round(seconds, 4),
        "gpu_mib": round(taken / 2**20, 1),
        "device": device.name,
        "transport": wm.transport(comm, right).name,
    }
    print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
