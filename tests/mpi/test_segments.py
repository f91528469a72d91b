# SPDX-License-Identifier: BSD-3-Clause
"""What stands where a peer's shared segment should be: it is left alone."""

import pytest

import ranks
import warpmpi as wm

# Rank 0's segment is made with its first communicator, of itself alone. Then
# something else gets the number of its file, as another process with the same
# number would have it in another PID namespace.
PROGRAM = """
    import os, sys, threading, time
    import numpy as np
    from mpi4py import MPI
    import kinds
    import warpmpi as wm

    how, folder = sys.argv[1:]
    alone = wm.Comm(MPI.COMM_SELF)
    opened = threading.Event()


    def wait_for_reader(path):
        os.open(path, os.O_WRONLY)
        opened.set()


    number, place = kinds.segment(), os.path.join(folder, "other")
    size = os.fstat(number).st_size
    if MPI.COMM_WORLD.rank == 0:
        head = os.pread(number, 24, 0)
        if how == "fifo":
            os.mkfifo(place)
            threading.Thread(target=wait_for_reader, args=[place]).start()
            other = os.open(place, os.O_PATH)
        elif how == "file":  # a copy of the head, under another name
            other = os.open(place, os.O_RDWR | os.O_CREAT)
            os.write(other, head)
            os.truncate(place, size)
        else:
            other = os.memfd_create("warpmpi")
            if how == "id":
                head = head[:-1] + bytes([head[-1] ^ 1])
            elif how == "magic":
                head = bytes([head[0] ^ 1]) + head[1:]
            os.write(other, head)
            os.truncate(other, size - 4096 * (how == "size"))
        os.dup2(other, number)

    comm = wm.Comm(MPI.COMM_WORLD)
    other = 1 - comm.rank
    told = wm.transport(comm, other)
    print(told.name == "host" or told, flush=True)
    if comm.rank == 1:
        print("not visible here" in told.reason or told, flush=True)
    for size in 1000, 1_000_000:
        out = wm.full(size, 7 + comm.rank, np.uint8)
        into = wm.zeros(size, np.uint8)
        comm.Sendrecv(out, other, recvbuf=into, source=other)
        assert (into.numpy() == 7 + other).all()
    if comm.rank == 0 and how == "fifo":
        print(not opened.is_set(), flush=True)
        os.close(os.open(place, os.O_RDONLY | os.O_NONBLOCK))
        assert opened.wait(10)
"""


@pytest.mark.programs
@pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU")
@pytest.mark.parametrize("how", ["fifo", "file", "id", "magic", "size"])
def test_what_is_no_segment_of_the_peer_is_left_alone(tmp_path, how):
    printed = ranks.run_text(tmp_path, PROGRAM, how, tmp_path)
    assert printed.split() == ["True"] * (4 if how == "fifo" else 3), printed
