# SPDX-License-Identifier: BSD-3-Clause
"""Messages with MPI.PROC_NULL: no call looks at its buffer, as in mpi4py."""

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import warpmpi as wm
from warpmpi._install import CLASS_CALLS

NULL = MPI.PROC_NULL
INSTALLED = {(kind, name): call for kind, name, call in CLASS_CALLS}


def read_only():
    array = np.zeros(3)
    array.flags.writeable = False
    return array


def on_a_gpu():
    if not wm.is_cuda_available():
        pytest.skip("needs a GPU")
    return kinds.make("device", np.zeros(3))


BUFFERS = {
    "array": lambda: np.zeros(3),
    "device": on_a_gpu,
    "read-only": read_only,
    "bytes": lambda: b"abc",
    "None": lambda: None,
    "text": lambda: "text",
    "number": lambda: 3.5,
    "list": lambda: [1, 2, 3],
    "empty list": list,
    "long list": lambda: [np.zeros(3), 1, 2, 3, 4, 5],
    "dict": dict,
    "object": object,
    "objects": lambda: np.array([None]),
    "big-endian": lambda: np.zeros(3, ">f8"),
    "dates": lambda: np.zeros(3, "M8[s]"),
    "times": lambda: np.zeros(3, "m8[s]"),
    "structure": lambda: np.zeros(3, "f8, i4"),
    "gaps": lambda: np.zeros((4, 4))[:, ::2],
    "masked": lambda: np.ma.masked_array(np.zeros(3), [0, 1, 0]),
    "wrong code": lambda: [np.zeros(3), "no code"],
    "wrong count": lambda: [np.zeros(3), -1, MPI.DOUBLE],
    "null type": lambda: [np.zeros(3), 1, MPI.DATATYPE_NULL],
    "BOTTOM": lambda: MPI.BOTTOM,
    "IN_PLACE": lambda: MPI.IN_PLACE,
}
NAMES = """
    Send Bsend Ssend Rsend Isend Ibsend Issend Irsend Recv Irecv
    Send_init Bsend_init Ssend_init Rsend_init Recv_init
""".split()
FULL = np.zeros(1)  # the other buffer, of a message to this rank


def both(name, comm, one):
    """Sends to nobody, and receives from nobody."""
    return getattr(comm, name)(one, NULL, 0, one, NULL, 0)


CALLS = {
    name: lambda comm, one, name=name: getattr(comm, name)(one, NULL)
    for name in NAMES
}
CALLS |= {
    "Sendrecv": lambda comm, one: both("Sendrecv", comm, one),
    "Isendrecv": lambda comm, one: both("Isendrecv", comm, one),
    "Sendrecv_replace": lambda comm, one: comm.Sendrecv_replace(
        one, NULL, 0, NULL
    ),
    "Isendrecv_replace": lambda comm, one: comm.Isendrecv_replace(
        one, NULL, 0, NULL
    ),
    "Psend_init": lambda comm, one: comm.Psend_init(one, 1, NULL).Free(),
    "Precv_init": lambda comm, one: comm.Precv_init(one, 1, NULL).Free(),
    "Mrecv": lambda comm, one: comm.Mprobe(NULL).Recv(one),
    "Imrecv": lambda comm, one: comm.Mprobe(NULL).Irecv(one),
}


@pytest.fixture(scope="module")
def comms():
    return MPI.COMM_SELF.Dup(), wm.Comm(MPI.COMM_SELF.Dup())


def outcome(call):
    try:
        made = call()
    except Exception as error:
        return type(error).__name__
    if isinstance(made, MPI.Prequest):
        made.Start()
    if isinstance(made, MPI.Request):
        made.Wait()
        if isinstance(made, MPI.Prequest):
            made.Free()
    return "returned"


@pytest.mark.parametrize("buffer", BUFFERS)
@pytest.mark.parametrize("name", CALLS)
def test_nobody_looks_at_the_buffer(comms, name, buffer):
    plain, ours = comms
    one = BUFFERS[buffer]()
    if name[0] == "P" and (
        not hasattr(plain, name) or MPI.get_vendor()[0] == "MPICH"
    ):
        pytest.skip("no partitioned messages, or plain MPICH crashes")
    told = outcome(lambda: CALLS[name](plain, one))
    assert told in ("returned", "NotImplementedError")  # by MPI
    assert outcome(lambda: CALLS[name](ours, one)) == "returned"


@pytest.mark.parametrize("buffer", BUFFERS)
@pytest.mark.parametrize("name", ["Sendrecv", "Isendrecv"])
def test_one_of_both_buffers_matters(comms, name, buffer):
    """The other one is of a message that comes from this rank."""
    one = BUFFERS[buffer]()
    if outcome(lambda: CALLS[name](comms[0], one)) == "NotImplementedError":
        pytest.skip(f"this MPI has no {name}")
    for comm in comms:
        for tag in (1, 2):
            into, request = np.zeros(1), comm.Isend(np.ones(1), 0, tag)
            if tag == 1:
                made = getattr(comm, name)(one, NULL, 0, into, 0, tag)
            else:
                made = comm.Irecv(into, 0, tag)
                end = getattr(comm, name)(FULL + 2, NULL, 0, one, NULL, 0)
                if end is not None:
                    end.Wait()
            if made is not None:
                made.Wait()
            request.Wait()
            assert into[0] == 1


@pytest.mark.parametrize("buffer", ["array", "read-only", "bytes", "None"])
def test_a_buffer_that_is_replaced_is_written(comms, buffer):
    """Even if nobody sends."""
    told = []
    for comm in comms:
        request = comm.Irecv(np.zeros(9), 0, 4)
        one = BUFFERS[buffer]()
        told.append(outcome(lambda: comm.Sendrecv_replace(one, 0, 4, NULL)))  # noqa: B023
        if told[-1] != "returned":
            comm.Send(b"", 0, 4)
        request.Wait()
    assert told[0] == told[1]


@pytest.mark.usefixtures("windows_of_one_rank")
@pytest.mark.parametrize("buffer", BUFFERS)
def test_windows(buffer):
    """Calls of a window look at a datatype, as in mpi4py."""
    one = BUFFERS[buffer]()
    window = MPI.Win.Create(bytearray(8), comm=MPI.COMM_SELF)
    window.Fence()
    for name in ("Put", "Get", "Accumulate"):
        stock, installed = getattr(MPI.Win, name), INSTALLED[MPI.Win, name]
        told = [
            outcome(lambda: call(window, one, NULL))  # noqa: B023
            for call in (stock, installed)
        ]
        assert told[0] == told[1]
    window.Fence()
    window.Free()
