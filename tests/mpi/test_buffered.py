# SPDX-License-Identifier: BSD-3-Clause
"""Buffered sends: copies, which count against what was attached."""

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import ranks
import warpmpi as wm

SIZES = [0, 3, 5000, 300_000]


@pytest.fixture
def comm(world):
    made = wm.Comm(world.Dup())
    yield made
    made.Free()


def neighbours(comm):
    return (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", kinds.KINDS)
@pytest.mark.parametrize("form", ["Bsend", "Ibsend", "Bsend_init"])
def test_the_buffer_is_free_at_once(comm, kind, size, form):
    right, left = neighbours(comm)
    memory = bytearray(2 * (size + MPI.BSEND_OVERHEAD))
    comm.Attach_buffer(memory)
    out = kinds.make(kind, np.full(size, comm.rank + 1, np.uint8))
    into = kinds.make(kind, np.zeros(size, np.uint8))
    if form == "Bsend":
        comm.Bsend(out, right, 2)
    elif form == "Ibsend":
        comm.Ibsend(out, right, 2).Wait()
    else:
        request = comm.Bsend_init(out, right, 2)
        request.Start()
        request.Wait()
        request.Free()
    if size:
        wm.asarray(out).fill_(99)  # the message has the former values
    comm.Barrier()
    comm.Recv(into, left, 2)
    assert (kinds.values_of(into) == left + 1).all()
    assert comm.Detach_buffer() is memory


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_what_does_not_fit_is_refused(comm, kind):
    right, left = neighbours(comm)
    out = kinds.make(kind, np.ones(100_000, np.uint8))
    with pytest.raises(MPI.Exception) as caught:
        comm.Bsend(out, right)
    assert caught.value.Get_error_class() == MPI.ERR_BUFFER
    comm.Attach_buffer(bytearray(150_000))
    comm.Bsend(out, right)  # too large to leave before it is received
    with pytest.raises(MPI.Exception) as caught:
        comm.Bsend(out, right)
    assert caught.value.Get_error_class() == MPI.ERR_BUFFER
    with pytest.raises(MPI.Exception):
        comm.Attach_buffer(bytearray(10))
    flushed = comm.Iflush_buffer()
    comm.Barrier()
    comm.Recv(kinds.make(kind, np.zeros(100_000, np.uint8)), left)
    flushed.Wait()
    comm.Bsend(out, right)
    comm.Recv(kinds.make(kind, np.zeros(100_000, np.uint8)), left)
    comm.Flush_buffer()
    comm.Detach_buffer()
    with pytest.raises(MPI.Exception):
        comm.Detach_buffer()


def test_nobody_is_sent_to_without_a_buffer(comm):
    comm.Bsend(np.zeros(4), MPI.PROC_NULL)


@pytest.mark.programs
def test_a_buffer_of_the_process(tmp_path):
    program = """
        from mpi4py import MPI
        import numpy as np, warpmpi as wm
        wm.install()
        comm, plain = MPI.COMM_WORLD, MPI.Intracomm(MPI.COMM_WORLD)
        memory = bytearray(1000 + 2 * MPI.BSEND_OVERHEAD)
        MPI.Attach_buffer(memory)
        into = np.zeros(50)
        for each in comm, plain:
            each.Bsend(np.ones(50), comm.rank)
            each.Recv(into, comm.rank)
            assert (into == 1).all()
        try:
            comm.Bsend(np.ones(500), comm.rank)
        except MPI.Exception as error:
            assert error.Get_error_class() == MPI.ERR_BUFFER
        else:
            raise AssertionError
        assert len(MPI.Detach_buffer()) == len(memory)
    """
    ranks.run_text(tmp_path, program, ranks=1)
