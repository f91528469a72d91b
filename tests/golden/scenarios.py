# SPDX-License-Identifier: BSD-3-Clause
"""Some seventy messages, and the driver and MPI calls that each end makes.

    mpirun -n 2 python scenarios.py FOLDER [--write] [SCENARIO ...]

FOLDER/SCENARIO.txt has the calls of both ranks in their order, without those
that only ask (queries, tests, probes, contexts) and those that make what is
kept (streams, events, mappings). The simulated driver serves, no progress
thread runs, and a message has gone twice before. Prints what differs; the two
ranks' races leave few variants, so a scenario has some tries, and the file of
one that comes out in two ways about as often has both, with "or" between.
--write writes the files anew.
"""

import ctypes
import sys
import time
from collections import Counter
from itertools import groupby
from pathlib import Path

import mpi4py

mpi4py.rc.thread_level = "serialized"
from mpi4py import MPI  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np  # noqa: E402

import kinds  # noqa: E402
import warpmpi as wm  # noqa: E402

KIB, MIB = 1 << 10, 1 << 20
PAUSE = 0.03  # the other end has begun, and waits; longer at later tries
TRIES = 12, 60  # to write, to compare
OR = "or\n"
LEFT_OUT = (
    "Query Get Ctx Device Capturing ThreadExchange Create Destroy IpcOpen"
)

plain = MPI.COMM_WORLD
rank = plain.rank


def column(nbytes):
    """Every fourth float of device memory."""
    array = wm.zeros((nbytes // 4, 4), "f4", device=wm.get_device())
    return array[:, 1]


def of_kind(kind):
    return lambda nbytes: kinds.make(kind, np.zeros(nbytes, np.uint8))


MEMORY = {
    "numpy": lambda nbytes: np.zeros(nbytes, np.uint8),
    "pinned": lambda n: wm.zeros(n, "u1", device="cpu", pinned=True),
    "device": lambda n: wm.zeros(n, "u1", device=wm.get_device()),
    "pool": of_kind("pool"),
    "foreign": of_kind("foreign"),
    "managed": of_kind("managed"),
    "column": column,
}


def blocking(comm, array):
    if rank == 0:
        comm.Send(array, 1, 3)
    else:
        comm.Recv(array, 0, 3)


def synchronous(comm, array):
    if rank == 0:
        comm.Ssend(array, 1, 3)
    else:
        comm.Recv(array, 0, 3)


def nonblocking(comm, array):
    begin = comm.Isend if rank == 0 else comm.Irecv
    begin(array, 1 - rank, 3).Wait()


def eight(comm, array):
    begin = comm.Isend if rank == 0 else comm.Irecv
    wm.Request.Waitall([begin(array, 1 - rank, 3) for _ in range(8)])


def buffered(comm, array):
    if rank == 0:
        comm.Attach_buffer(bytearray(array.nbytes + (1 << 16)))
        comm.Bsend(array, 1, 3)
        comm.Detach_buffer()
    else:
        comm.Recv(array, 0, 3)


def persistent(comm, array):
    make = comm.Send_init if rank == 0 else comm.Recv_init
    request = make(array, 1 - rank, 3)
    request.Start()
    request.Wait()
    request.Free()


def both_ways(comm, array):
    other = 1 - rank
    comm.Sendrecv(array[0], other, 3, array[1], other, 3)


def probed(comm, array):
    if rank == 0:
        comm.Send(array, 1, 3)
    else:
        comm.Mprobe(0, 3).Recv(array)


def pickled(comm, array):
    if rank == 0:
        comm.send({"a": array}, 1, 3)
    else:
        comm.recv(source=0, tag=3)


def on_stream(comm, array):
    stream = streams.setdefault(0, wm.Stream(wm.get_device()))
    blocking(comm.on(stream), array)
    stream.synchronize()


streams = {}


def table():
    """Name: form, kind of memory, bytes, and who comes late."""
    found = {}

    def add(form, kind, nbytes, late=1):
        unit, many = (MIB, "MiB") if nbytes >= MIB else (1, "B")
        unit, many = (KIB, "KiB") if KIB <= nbytes < MIB else (unit, many)
        words = [form.__name__, kind, f"{nbytes // unit}{many}"]
        name = "-".join([*words, *(["receiver-first"] if late == 0 else [])])
        found[name.replace("_", "-")] = form, kind, nbytes, late

    for nbytes in (8, 4 * KIB, 64 * KIB, MIB):
        add(blocking, "numpy", nbytes)
        add(blocking, "device", nbytes)
    for kind in ("pinned", "pool", "foreign", "managed", "column"):
        for nbytes in (8, 64 * KIB, 4 * MIB):
            add(blocking, kind, nbytes)
    add(blocking, "device", 48 * MIB)
    add(blocking, "pool", 24 * MIB)
    for kind in ("numpy", "device", "pool", "column"):
        for nbytes in (64, MIB):
            if (kind, nbytes) != ("device", 64):  # either end may be first
                add(blocking, kind, nbytes, late=0)
            add(nonblocking, kind, nbytes)
            add(on_stream, kind, nbytes)
    for form in (synchronous, persistent, probed, buffered):
        for nbytes in (64, MIB):
            add(form, "device", nbytes)
    add(pickled, "device", MIB)  # of a shorter one either end may be first
    add(nonblocking, "device", 64, late=0)
    add(nonblocking, "device", MIB, late=0)
    for kind in ("numpy", "device", "pool"):
        add(eight, kind, 8 * KIB)
        add(both_ways, kind, 64 * KIB)
    add(both_ways, "device", 4 * MIB)
    return found


def told(text):
    """The calls that do something, equal ones counted."""
    kept = []
    for line in text.splitlines():
        if line.startswith("  "):
            if kept[-1]:
                kept[-1] += f" {line.strip()}"
        elif line.startswith("cu") and any(map(line.count, LEFT_OUT.split())):
            kept.append("")
        else:
            kept.append(line)
    counted = [
        (line, len(list(same))) for line, same in groupby(filter(None, kept))
    ]
    return [
        f"{line} x{count}" if count > 1 else line for line, count in counted
    ]


def traced(driver, form, array, late, comm, pause):
    """Both ranks' calls, at rank 0."""
    wm.synchronize_device(wm.get_device())
    plain.Barrier()
    driver.simcuda_trace(1)
    if rank == late:
        time.sleep(pause)
    form(comm, array)
    plain.Barrier()
    calls = plain.gather(told(driver.simcuda_trace(0).decode()))
    lines = []
    for each, list_of in enumerate(calls or []):
        lines += [f"rank {each}", *(f"    {line}" for line in list_of)]
    return "\n".join(lines) + "\n"


def main():
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    write = "--write" in names
    names = [name for name in names if name != "--write"]
    driver = kinds.driver()
    driver.simcuda_trace.restype = ctypes.c_char_p
    comm = wm.Comm(plain)
    for name, (form, kind, nbytes, late) in table().items():
        if names and name not in names:
            continue
        path = folder / f"{name}.txt"
        array = MEMORY[kind](nbytes)
        if form is both_ways:
            array = array, MEMORY[kind](nbytes)
        seen = Counter()
        for turn in range(TRIES[not write]):
            # A busy machine may keep the other end from its core meanwhile.
            pause = PAUSE * (1 + turn // 6)
            text = traced(driver, form, array, late, comm, pause)
            seen[text] += turn > 1
            if plain.bcast(
                not write and turn > 1 and text in path.read_text().split(OR)
            ):
                break
        else:
            if rank == 0 and write:
                most = max(seen.values())
                common = (each for each in seen if 2 * seen[each] >= most)
                path.write_text(OR.join(common))
            elif rank == 0:
                print(f"{name}: expected\n{path.read_text()}came\n{text}")


if __name__ == "__main__":
    main()
