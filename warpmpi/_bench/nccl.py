# SPDX-License-Identifier: BSD-3-Clause
"""The calls of NCCL that benchmarks compare with, by ctypes."""

from __future__ import annotations

import ctypes
import functools
import glob
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

NAMED = "WARPMPI_BENCH_NCCL"
UNIQUE_ID_BYTES = 128
UINT8 = 1  # ncclUint8
FLOAT32 = 7  # ncclFloat32
SUM = 0  # ncclSum
TYPES = {
    name: number
    for number, name in enumerate(
        "int8 uint8 int32 uint32 int64 uint64 float16 float32 float64 "
        "bfloat16".split()
    )
}
OPS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * UNIQUE_ID_BYTES)]


def load() -> ctypes.CDLL:
    """Load $WARPMPI_BENCH_NCCL, that of the Python packages, or the system's.

    Raises OSError where there is none.
    """
    if os.environ.get(NAMED):
        return ctypes.CDLL(os.environ[NAMED])
    places = []
    for folder in sys.path:
        places += glob.glob(
            os.path.join(folder, "nvidia", "*", "lib", "libnccl.so.2")
        )
    for place in [*places, "libnccl.so.2"]:
        try:
            return ctypes.CDLL(place)
        except OSError:
            continue
    raise OSError("there is no libnccl.so.2")


class Communicator:
    """Ranks of `world`, one GPU each, the current one."""

    def __init__(self, world: Any) -> None:
        lib = load()
        lib.ncclGetErrorString.restype = ctypes.c_char_p
        lib.ncclGetErrorString.argtypes = [ctypes.c_int]
        lib.ncclCommInitRank.argtypes = [
            ctypes.POINTER(ctypes.c_void_p),
            ctypes.c_int,
            UniqueId,
            ctypes.c_int,
        ]
        for call in (lib.ncclSend, lib.ncclRecv):
            call.argtypes = [
                ctypes.c_void_p,  # buffer
                ctypes.c_size_t,  # count
                ctypes.c_int,  # type
                ctypes.c_int,  # peer
                ctypes.c_void_p,  # communicator
                ctypes.c_void_p,  # stream
            ]
        lib.ncclCommDestroy.argtypes = [ctypes.c_void_p]
        self.lib = lib
        version = ctypes.c_int()
        self.check(lib.ncclGetVersion(ctypes.byref(version)))
        self.version = version.value
        unique = UniqueId()
        if world.rank == 0:
            self.check(lib.ncclGetUniqueId(ctypes.byref(unique)))
        unique = UniqueId.from_buffer_copy(world.bcast(bytes(unique)))
        self.handle = ctypes.c_void_p()
        self.check(
            lib.ncclCommInitRank(
                ctypes.byref(self.handle), world.size, unique, world.rank
            )
        )

    def check(self, result: int) -> None:
        if result:
            raise RuntimeError(
                f"NCCL: {self.lib.ncclGetErrorString(result).decode()}"
            )

    def send(self, pointer: int, nbytes: int, peer: int, stream: int) -> None:
        self.check(
            self.lib.ncclSend(
                pointer, nbytes, UINT8, peer, self.handle, stream
            )
        )

    def recv(self, pointer: int, nbytes: int, peer: int, stream: int) -> None:
        self.check(
            self.lib.ncclRecv(
                pointer, nbytes, UINT8, peer, self.handle, stream
            )
        )

    def prepared(
        self, name: str, stream: ctypes.c_void_p, *arguments: Any
    ) -> Callable[[], int]:
        """Return a call that has nothing left to convert.

        Its arguments are ctypes' own objects. It returns NCCL's result.
        """
        return functools.partial(
            getattr(self.lib, name), *arguments, self.handle, stream
        )

    def checked(self, call: Callable[[], int]) -> Callable[[], None]:
        def run() -> None:
            result = call()
            if result:
                self.check(result)

        return run

    def grouped(
        self, calls: Sequence[Callable[[], int]]
    ) -> Callable[[], None]:
        """The calls as one group."""
        start, end = self.lib.ncclGroupStart, self.lib.ncclGroupEnd

        def run() -> None:
            results = [start(), *[call() for call in calls], end()]
            if any(results):
                self.check(max(results))

        return run

    def close(self) -> None:
        self.check(self.lib.ncclCommDestroy(self.handle))
