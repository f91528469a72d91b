# SPDX-License-Identifier: BSD-3-Clause
"""Counts of what a process holds, and that they stay where they are."""

import ctypes
import gc
import os
import sys
import time
import traceback

import warpmpi as wm
from warpmpi import _core

SIMULATED = "WARPMPI_CUDA_DRIVER" in os.environ
# What may come late and then stays: heaps, caches, pools of what was busy.
# Freed blocks keep the events they were freed with, at most 32.
SLACK = {"host memory": 1 << 20, "threads": 4, "streams": 4, "events": 36}


def simulated_counts():
    """What the simulated driver holds for this process."""
    driver = ctypes.CDLL(os.environ["WARPMPI_CUDA_DRIVER"])
    driver.simcuda_live.restype = ctypes.c_long
    kinds = "memory bytes pinned registered mappings streams events".split()
    return {kind: driver.simcuda_live(kind.encode()) for kind in kinds}


def host_bytes():
    """Anonymous memory that is resident: the heaps, not the devices."""
    gc.collect()
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return 0


def counts():
    """Everything that is counted, by name."""
    gc.collect()
    wm.synchronize()
    result = {
        "file descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "peer mappings": wm.stats()["mappings_open"],
        **_core._memory_stats(),
    }
    # How often was asked is no leak.
    del result["device_allocations"], result["pinned_allocations"]
    if SIMULATED:
        result |= simulated_counts()
    result["host memory"] = host_bytes()
    return result


def stay_flat(turn, rounds, warm_up=None):
    """Whether nothing is held after `rounds` turns that was not before."""
    for i in range(warm_up or rounds // 4):
        turn(i)
    before = counts()
    for i in range(rounds):
        turn(i)
    # The progress thread may let go of the last messages a little later.
    end = time.monotonic() + 2
    while grown := grown_since(before):
        if time.monotonic() > end:
            raise AssertionError(f"after {rounds} rounds: {grown}")
        time.sleep(0.01)


def grown_since(before):
    now = counts()
    return {
        name: (before[name], now[name])
        for name in before
        if now[name] > before[name] + SLACK.get(name, 0)
    }


def end(*raised):
    """At once, as other ranks would wait in MPI's finalisation for ever."""
    traceback.print_exception(*raised)
    sys.stderr.flush()
    os._exit(1)


sys.excepthook = end
