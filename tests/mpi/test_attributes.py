# SPDX-License-Identifier: BSD-3-Clause
"""The program's attribute functions run where MPI says, and nowhere else.

A datatype's functions are called by its own Dup and Free, and not by messages
and other calls that take the datatype. They raise here, as a program's may.
"""

import os
import tempfile

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import warpmpi as wm
from cases import FORMS, Staged, begun, perform

N = 600


@pytest.fixture
def called():
    """The calls of the functions of `attribute`."""
    return []


@pytest.fixture
def attribute(called):
    def copy(*_):
        called.append("copy")
        raise RuntimeError("this attribute cannot be copied")

    def delete(*_):
        called.append("delete")

    key = MPI.Datatype.Create_keyval(copy, delete)
    yield lambda kind: kind.Set_attr(key, "mine") or kind
    MPI.Datatype.Free_keyval(key)


def odd(kind):
    """More uneven blocks than strides describe."""
    places = [4 * k + (k * k) % 3 for k in range(N // 4)]
    return kind.Create_indexed([1] * len(places), places).Commit()


def nested(kind):
    return MPI.Datatype.Create_struct([2, 1], [0, 64], [kind, MPI.DOUBLE])


def inside(attribute, make):
    """A datatype of types with the attribute."""
    inner = attribute(MPI.DOUBLE.Create_vector(2, 1, 2))
    made = make(inner).Commit()
    return made, inner


KINDS = {
    "vector": lambda attribute: (
        attribute(MPI.DOUBLE.Create_vector(9, 2, 4).Commit()),
    ),
    "odd": lambda attribute: (attribute(odd(MPI.DOUBLE)),),
    "nested": lambda attribute: inside(attribute, nested),
    "odd inside": lambda attribute: inside(attribute, odd),
}


@pytest.fixture(params=KINDS)
def kind(request, attribute, called):
    made = KINDS[request.param](attribute)
    yield made[0]
    assert called == []
    for each in made:
        each.Free()
    assert "copy" not in called  # Open MPI may keep it, undeleted


MEMORY = ["host", *kinds.GPU_KINDS[:1]]


def pair(memory):
    return (kinds.make(memory, np.full(4 * N, value)) for value in (7.0, 0.0))


@pytest.mark.parametrize("memory", MEMORY)
def test_messages(comm, kind, memory, called):
    a, b = pair(memory)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    sent, got = [a, 1, kind], [b, 1, kind]
    comm.Sendrecv(sent, right, 0, got, left, 0)
    requests = [comm.Irecv(got, left), comm.Isend(sent, right)]
    MPI.Request.Waitall(requests)
    requests = [comm.Recv_init(got, left), comm.Send_init(sent, right)]
    for _ in range(2):
        MPI.Prequest.Startall(requests)
        MPI.Request.Waitall(requests)
    for request in requests:
        request.Free()
    assert kinds.values_of(b).sum() == 7 * kind.Get_size() / 8


@pytest.mark.parametrize("memory", MEMORY)
@pytest.mark.parametrize("form", FORMS)
def test_collectives(comm, kind, memory, form):
    a, b = pair(memory)
    perform(comm, "Bcast", form, [a, 1, kind], 0, starts=2)
    n, one = comm.size, [1] * comm.size
    perform(
        comm,
        "Alltoallw",
        form,
        [a, one, [0] * n, [kind] * n],
        [b, one, [0] * n, [kind] * n],
        starts=2,
    )
    assert kinds.values_of(b).sum() == 7 * kind.Get_size() / 8


@pytest.mark.parametrize("memory", MEMORY)
def test_files_and_packing(comm, kind, memory):
    a, b = pair(memory)
    Staged(kind).Pack(a, bytearray(8 * 4 * N), 0, comm)
    mode = MPI.MODE_CREATE | MPI.MODE_RDWR | MPI.MODE_DELETE_ON_CLOSE
    path = os.path.join(
        tempfile.gettempdir(), f"attributes-{os.getpid()}-{comm.rank}"
    )
    file = MPI.File.Open(MPI.COMM_SELF, path, mode)
    Staged(file).Write_at(0, [a, 1, kind])
    Staged(file).Read_at(0, [b, 1, kind])
    file.Close()
    assert kinds.values_of(b).sum() == 7 * kind.Get_size() / 8


def test_a_persistent_call_refuses_what_is_not_committed(comm):
    kind = MPI.DOUBLE.Create_vector(2, 1, 2)
    with pytest.raises(MPI.Exception):
        begun(comm, "Bcast", "_init", [np.ones(9), 1, kind], 0).Start()
    kind.Free()
    comm.Bcast(np.ones(1))


def test_communicators(world):
    """One of ours, and a duplicate, copy an attribute as MPI does."""
    called = []
    key = MPI.Comm.Create_keyval(lambda *_: called.append("copy") or "copied")
    stock = world.Dup()
    stock.Set_attr(key, "mine")
    ours = wm.Comm(stock)
    ours.Allreduce(np.ones(3), np.ones(3))
    ours.send(ours.rank, (ours.rank + 1) % ours.size)
    ours.recv()
    assert called == []
    twin = ours.Dup()
    assert called == ["copy"]
    assert twin.Get_attr(key) == "copied"
    twin.Free()
    ours.Free()
    MPI.Comm.Free_keyval(key)
