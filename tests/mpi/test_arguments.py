# SPDX-License-Identifier: BSD-3-Clause
"""Ranks, tags, roots and partitions are read as mpi4py reads them."""

import decimal
import fractions

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import warpmpi as wm

needs_gpu = pytest.mark.skipif(
    not wm.is_cuda_available(), reason="needs a GPU"
)


class HasInt:
    def __int__(self):
        return 0


class HasIndex:
    def __index__(self):
        return 0


class HasBoth(HasInt):
    def __index__(self):
        return 1000


# Each is 0 for mpi4py, but HasIndex, which it refuses.
NOUGHTS = [
    False,
    np.int8(0),
    np.float64(0),
    0.0,
    0.75,
    -0.75,
    np.float32(0.5),
    np.array(0.0),
    decimal.Decimal("0.5"),
    fractions.Fraction(1, 2),
    HasInt(),
    HasIndex(),
    HasBoth(),
]


@pytest.mark.parametrize("nought", NOUGHTS, ids=lambda value: repr(value)[:20])
def test_whatever_int_takes_is_a_rank_and_a_tag(nought):
    own = wm.Comm(MPI.COMM_SELF)
    sent, into = np.arange(3.0), np.zeros(3)
    request = own.Isend(sent, nought, nought)  # to itself: may wait for Recv
    own.Probe(nought, nought)
    own.Recv(into, nought, nought)
    request.Wait()
    assert into.tolist() == [0, 1, 2]
    own.Sendrecv(sent + 1, nought, nought, into, nought, nought)
    assert into.tolist() == [1, 2, 3]
    requests = [
        own.Send_init(sent, nought, nought),
        own.Recv_init(into, nought, nought),
    ]
    wm.Prequest.Startall(requests)
    wm.Request.Waitall(requests)
    assert into.tolist() == [0, 1, 2]
    request = own.isend("text", nought, nought)
    assert own.recv(None, nought, nought) == "text"
    request.wait()
    request = own.irecv(None, nought, nought)
    own.send("more", nought, nought)
    assert request.wait() == "more"
    assert own.sendrecv(1, nought, nought, None, nought, nought) == 1


@needs_gpu
@pytest.mark.parametrize("nought", NOUGHTS, ids=lambda value: repr(value)[:20])
def test_also_of_calls_with_arrays_of_a_gpu(comm, nought):
    own = wm.Comm(MPI.COMM_SELF)
    array = wm.array(np.arange(3.0))
    request = own.isend({"a": array}, nought, nought)
    assert own.recv(None, nought, nought)["a"].numpy().tolist() == [0, 1, 2]
    request.wait()
    if isinstance(nought, HasIndex) and not isinstance(nought, HasInt):
        return  # what follows is mpi4py's
    gathered = kinds.make("device", np.zeros(3 * comm.size))
    comm.Gather(array, gathered if comm.rank == 0 else None, nought)
    if comm.rank == 0:
        assert gathered.numpy().tolist() == [0, 1, 2] * comm.size
    there = wm.array(np.full(3, float(comm.rank + 7)))
    comm.Ibcast(there, nought).Wait()
    assert there.numpy().tolist() == [7] * 3


def test_partitions():
    own = wm.Comm(MPI.COMM_SELF)
    sent, into = np.arange(4.0), np.zeros(4)
    sending = own.Psend_init(sent, 2.0, 0.0, 3.5)
    receiving = own.Precv_init(into, 2, 0.0, 3.5)
    receiving.Start()
    sending.Start()
    sending.Pready(1.0)
    sending.Pready_range(0.0, 0.5)
    sending.Wait()
    receiving.Wait()
    assert receiving.Parrived(1.5)
    assert into.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("wrong", ["0", b"0", None, 0j, [0], object()])
def test_what_is_no_number_is_refused(comm, wrong):
    with pytest.raises(TypeError, match="dest: expected an int, not "):
        comm.Send(np.zeros(1), wrong)
    with pytest.raises(TypeError, match="tag: expected an int, not "):
        comm.Send(np.zeros(1), 0, wrong)
    with pytest.raises(TypeError, match="source: expected an int, not "):
        comm.Recv(np.zeros(1), wrong)
    with pytest.raises(TypeError, match="source: expected an int, not "):
        comm.recv(None, wrong)
    with pytest.raises(TypeError, match="dest: expected an int, not "):
        comm.send("text", wrong)


@pytest.mark.parametrize("much", [2**31, -(2**31) - 1, 2**70, 2.0**40])
def test_what_no_int_holds_is_refused(comm, much):
    with pytest.raises(OverflowError, match=r"dest=-?\d+ does not fit an int"):
        comm.Send(np.zeros(1), much)


@pytest.mark.parametrize(
    ("wrong", "error"), [(np.nan, ValueError), (np.inf, OverflowError)]
)
def test_what_is_no_finite_number_is_refused(comm, wrong, error):
    with pytest.raises(error, match="cannot convert float"):
        comm.Send(np.zeros(1), wrong)


# mpi4py's counts have an __index__.
@pytest.mark.parametrize("wrong", [1.0, np.float64(1), "1", HasInt()])
def test_a_count_is_an_integer(comm, wrong):
    array = np.zeros(3)
    for buffer in ([array, wrong, MPI.DOUBLE], [array, (1, wrong), "d"]):
        with pytest.raises(TypeError):
            comm.Send(buffer, 0)
        with pytest.raises(TypeError):
            comm.Recv(buffer, 0)


def test_what_is_missing_or_given_twice_is_named(comm):
    array = np.zeros(1)
    with pytest.raises(
        TypeError, match=r"Send\(\) missing required argument 'dest' \(pos 2\)"
    ):
        comm.Send(array)
    with pytest.raises(
        TypeError, match=r"Send\(\) got multiple values for argument 'dest'"
    ):
        comm.Send(array, 0, dest=0)


@pytest.mark.parametrize("given", [2**63, -(2**70)])
def test_a_count_that_does_not_fit_is_named(comm, given):
    array = np.zeros(3)
    with pytest.raises(OverflowError, match=f"buf: the count {given} does"):
        comm.Send([array, given], 0)
    with pytest.raises(OverflowError, match=f"the displacement {given} does"):
        comm.Send([array, (1, given), MPI.DOUBLE], 0)


@pytest.mark.parametrize("null", ["freed", "none", "COMM_NULL"])
def test_a_null_communicator_is_mpis_error(comm, null):
    """As mpi4py's, whose programs may catch it."""
    if null == "freed":
        other = comm.Dup()
        other.Free()
    else:
        other = wm.Comm(MPI.COMM_NULL if null == "COMM_NULL" else None)
    array = np.zeros(3)
    for call in (
        lambda: other.Send(array, 0),
        lambda: other.Irecv(array, 0),
        lambda: other.Recv_init(array, 0),
        lambda: other.Bcast(array),
        lambda: other.send(array, 0),
        lambda: other.Psend_init(array, 1, 0),
        other.Barrier,
        other.Iprobe,
        other.recv,
    ):
        with pytest.raises(MPI.Exception) as caught:
            call()
        assert caught.value.Get_error_class() == MPI.ERR_COMM
        if hasattr(caught.value, "__notes__"):  # Python 3.11
            assert "or was freed" in caught.value.__notes__[0]


@pytest.mark.parametrize("kind", ["m8[s]", "M8[D]", ">f8", "O"])
@pytest.mark.parametrize("name", ["Allreduce", "Iallreduce", "Reduce", "Scan"])
def test_elements_that_mpi4py_refuses_are_refused_as_there(world, name, kind):
    plain, ours = MPI.COMM_SELF.Dup(), wm.Comm(MPI.COMM_SELF.Dup())
    told = []
    for comm in (plain, ours):
        array = np.zeros(3, kind)
        with pytest.raises(Exception) as caught:
            getattr(comm, name)(array, array.copy())
        told.append(caught.type)
    assert told[0] is told[1]


@pytest.mark.parametrize("form", ["Reduce", "Ireduce", "Gather", "Gatherv"])
def test_what_the_root_alone_looks_at(comm, form):
    """mpi4py ignores it on other ranks, as they do not receive."""
    sent, into = np.ones(3), np.zeros(3 * comm.size)
    if "educe" in form:
        into = np.zeros(3)
    for odd in (np.zeros(3, "m8[s]"), "text", [1, 2, 3], object(), b"abc"):
        received = into if comm.rank == 0 else odd
        made = getattr(comm, form)(sent, received)
        if made is not None:
            made.Wait()
        if comm.rank == 0:
            assert (into == (comm.size if "educe" in form else 1)).all()


def test_a_graph_of_a_cartesian_communicator(comm):
    """Open MPI gives it the topology of its parent."""
    cart = comm.Create_cart([comm.size], [True])
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    made = cart.Create_dist_graph_adjacent([left], [right])
    other = cart.Create_dist_graph([comm.rank], [1], [right])
    for graph in (made, other):
        assert type(graph) is wm.Distgraphcomm
        assert graph.topology == MPI.DIST_GRAPH
        assert graph.inedges == [left]
        assert graph.outedges == [right]
        assert graph.allreduce(1) == comm.size
        into = np.zeros(1)
        graph.Neighbor_allgather(np.full(1, float(comm.rank)), into)
        assert into[0] == left
        graph.Free()
    cart.Free()
