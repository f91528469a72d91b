# SPDX-License-Identifier: BSD-3-Clause
"""NVIDIA's simpleIPC with shared arrays: each rank writes into the others' GPU memory.

    mpirun -n 4 python simple_ipc.py                  # GPUs, with CuPy
    mpirun -n 4 python simple_ipc.py --count 1000000  # CPUs, where there is none

Each rank has an array, and stores a pattern there. In each of the rounds that follow it stores
the pattern into the array of another rank: of the next one, of the one after that, and so on,
the last time of the rank before it. Stores go to the other GPU directly: `peer(rank)` is a CuPy
array over its memory. The barrier of the arrays holds the streams, not the host, until the
stores of a round are there. At the end each rank compares every byte of its array with the
pattern of the last rank that wrote there.

It prints the throughput of the stores into the arrays of other ranks, a barrier after each
round included, and the time that a signal takes to a neighbour's stream and back. Nothing is
freed together: each rank drops its array when it likes.
"""

import argparse
import sys
import time
from types import ModuleType
from typing import Any

import numpy as np
from mpi4py import MPI

import warpmpi as wm

TURNS = 200  # of the signal


def array_library() -> ModuleType:
    """CuPy where it is and has a GPU, which it then works on, else NumPy."""
    if not wm.is_cuda_available():
        return np
    try:
        import cupy
    except ImportError:
        return np
    if not cupy.cuda.is_available():
        return np
    cupy.cuda.Device(wm.get_device().ordinal).use()  # CuPy's own is GPU 0 on all ranks
    return cupy


def place(xp: ModuleType) -> str:
    """Where the arrays are, and why."""
    if xp is not np:
        return "in the memory of GPUs"
    if wm.is_cuda_available():
        return "in the memory of the host, as CuPy is not there or finds no GPU"
    return "in the memory of the host, as there is no GPU"


def synchronize(xp: ModuleType) -> None:
    if xp is not np:
        xp.cuda.get_current_stream().synchronize()


def pattern(xp: ModuleType, writer: int, count: int) -> Any:
    """What a rank writes: no two elements near each other are alike, nor two ranks' ones."""
    return xp.arange(count, dtype=np.int32) * np.int32(7) + np.int32(writer)


def exchange(xp: ModuleType, comm: MPI.Intracomm, a: wm.SharedArray) -> tuple[int, float]:
    """Store into the array of each rank in turn; give the rounds with a peer, and their seconds."""
    mine = pattern(xp, comm.rank, len(a))
    a.array[...] = mine
    a.barrier()
    synchronize(xp)
    begun, rounds = time.perf_counter(), 0
    for turn in range(1, comm.size):
        a.peer((comm.rank + turn) % comm.size)[...] = mine
        a.barrier()  # the next one to write there sees that we have
        rounds += 1
    synchronize(xp)
    return rounds, time.perf_counter() - begun


def verify(xp: ModuleType, comm: MPI.Intracomm, a: wm.SharedArray) -> bool:
    """Compare every element with what the rank after this one wrote last."""
    last = (comm.rank + 1) % comm.size
    right = bool((a.array == pattern(xp, last, len(a))).all())
    return bool(comm.allreduce(int(right), op=MPI.MIN))


def round_trip(xp: ModuleType, comm: MPI.Intracomm, a: wm.SharedArray) -> float:
    """Give the seconds of a signal to a neighbour's stream and back; 0: there is none."""
    partner = comm.rank ^ 1
    if partner < comm.size:
        for timed in (False, True):
            a.signal(partner, 0)  # both are there
            a.wait(0)
            synchronize(xp)
            begun = time.perf_counter()
            for _ in range(TURNS if timed else 1):
                if comm.rank < partner:
                    a.signal(partner, 1)
                    a.wait(1)
                else:
                    a.wait(1)
                    a.signal(partner, 1)
            synchronize(xp)
        return (time.perf_counter() - begun) / TURNS
    return 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--count", type=int, default=64 << 20, help="elements of 4 bytes a rank")
    count = parser.parse_args().count
    comm, xp = MPI.COMM_WORLD, array_library()
    device, like = ("cpu", "numpy") if xp is np else (None, "cupy")
    a = wm.shared_empty(count, "int32", comm=comm, device=device, like=like)
    exchange(xp, comm, a)
    rounds, seconds = exchange(xp, comm, a)
    right = verify(xp, comm, a)
    delay = round_trip(xp, comm, a)
    if comm.rank == 0:
        ranks = "1 rank" if comm.size == 1 else f"{comm.size} ranks"
        print(f"{ranks}, arrays of {a.nbytes / 1e6:.1f} MB {place(xp)}")
        if rounds > 0:
            rate = rounds * a.nbytes / seconds / 1e9
            print(
                f"{rounds} x {a.nbytes} bytes into a peer, each with a barrier: "
                f"{rate:.1f} GB/s a rank"
            )
            print(f"signal and back: {1e6 * delay:.1f} us")
        else:
            print("there is no peer: start it with mpirun -n 2")
        print("every byte is right" if right else "WRONG DATA")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
