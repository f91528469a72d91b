# SPDX-License-Identifier: BSD-3-Clause
"""Bad input gets a clear error, and the communicator stays usable."""

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import warpmpi as wm

needs_gpu = pytest.mark.skipif(
    not wm.is_cuda_available(), reason="needs a GPU"
)


@pytest.fixture(autouse=True)
def still_usable(comm):
    yield
    buffer = np.zeros(1)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    comm.Sendrecv(np.full(1, float(comm.rank)), right, 99, buffer, left, 99)
    assert buffer[0] == left


@pytest.mark.ranks(2)
@pytest.mark.parametrize("into", kinds.KINDS)
@pytest.mark.parametrize("source", kinds.KINDS)
@pytest.mark.parametrize("size", [100, 100_000, 9_000_000])
def test_a_short_buffer_truncates_and_the_sender_completes(
    comm, source, into, size
):
    if comm.rank == 0:
        comm.Send(kinds.make(source, np.ones(size, np.uint8)), 1)
    elif comm.rank == 1:
        buffer = kinds.make(into, np.zeros(size - 1, np.uint8))
        with pytest.raises(MPI.Exception) as caught:
            comm.Recv(buffer, 0)
        assert caught.value.Get_error_class() == MPI.ERR_TRUNCATE


@pytest.mark.ranks(2)
def test_truncation_reaches_a_stock_waitall(comm):
    if comm.rank == 0:
        comm.Send(np.ones(10), 1)
    elif comm.rank == 1:
        request = comm.Irecv(np.zeros(1), 0)
        with pytest.raises(MPI.Exception):
            MPI.Request.Waitall([request])


@pytest.mark.parametrize("rank", [-5, 1000])
def test_unknown_rank(comm, rank):
    with pytest.raises(MPI.Exception) as caught:
        comm.Send(np.zeros(1), rank)
    assert caught.value.Get_error_class() == MPI.ERR_RANK
    with pytest.raises(MPI.Exception) as caught:
        comm.Recv(np.zeros(1), rank)
    assert caught.value.Get_error_class() == MPI.ERR_RANK


@pytest.mark.parametrize("tag", [-7, 2**31 - 1])
def test_bad_tag(comm, tag):
    if tag > 0 and comm.Get_attr(MPI.TAG_UB) >= tag:
        tag = -2
    with pytest.raises(MPI.Exception) as caught:
        comm.Send(np.zeros(1), 0, tag)
    assert caught.value.Get_error_class() == MPI.ERR_TAG


@pytest.mark.parametrize(
    ("buffer", "error", "text"),
    [
        (object(), TypeError, "buf"),
        (3.5, TypeError, "buf"),
        (np.zeros(3, dtype=object), KeyError, "buf"),
        (np.zeros(3, dtype=">f8"), BufferError, "byte order"),
        ([np.zeros(3), 5, MPI.DOUBLE], ValueError, "fit"),
        ([np.zeros(3), -1, MPI.DOUBLE], ValueError, "count"),
        ([np.zeros(3), np.zeros(3)], TypeError, "buf: the count"),
        ([np.zeros(3), 1, 9, MPI.DOUBLE], ValueError, "displacement"),
        ([np.zeros(3), 1, 1, 1, 1], ValueError, "items"),
        ([np.zeros(3), 1, "no such type"], KeyError, "buf: MPI has no"),
        ([np.zeros(3), MPI.DATATYPE_NULL], ValueError, "DATATYPE_NULL"),
        ([np.zeros(3), 1, MPI.DATATYPE_NULL], MPI.Exception, "DATATYPE_NULL"),
    ],
)
def test_bad_buffers(comm, buffer, error, text):
    """The exception is of the class that mpi4py raises, the text ours."""
    with pytest.raises(error, match=text):
        comm.Send(buffer, 0)
    with pytest.raises(error):
        comm.Isend(buffer, 0)


def test_read_only_receive_buffer(comm):
    buffer = np.zeros(3)
    buffer.flags.writeable = False
    with pytest.raises((BufferError, ValueError), match="read-only"):
        comm.Recv(buffer, 0)
    with pytest.raises(TypeError):
        comm.Recv(3.0, 0)


@pytest.mark.parametrize("habit", kinds.Copying.HABITS)
@pytest.mark.parametrize("place", ["cpu", None])
def test_no_receive_writes_into_a_copy(comm, place, habit):
    """Which the array that exports it would not show."""
    x = wm.zeros(3, device=place or wm.get_device())
    copying = kinds.Copying(x, habit)
    ours, me = np.arange(3.0) + 1, comm.rank
    comm.Sendrecv(copying, me, 0, into := np.ones(3), me, 0)
    assert into.tolist() == [0, 0, 0]  # but it is sent
    alone = wm.Comm(MPI.COMM_SELF)

    def receive():
        request = comm.Isend(ours, me)
        try:
            comm.Recv(copying, me)
        except BufferError:
            comm.Recv(into, me)
            raise
        finally:
            request.Wait()

    def receive_elements():
        """Of a type that the array does not name itself."""
        request = comm.Isend(ours, me)
        try:
            comm.Recv([copying, 3, MPI.DOUBLE], me)
        except BufferError:
            comm.Recv(into, me)
            raise
        finally:
            request.Wait()

    calls = [
        receive,
        receive_elements,
        lambda: comm.Sendrecv(ours, me, 0, copying, me, 0),
        lambda: alone.Allreduce(ours, copying),
        lambda: alone.Iallreduce(ours, copying).Wait(),
        lambda: alone.Gather(ours, copying),
        lambda: alone.Alltoallw(
            [ours, ([3], [0]), [MPI.DOUBLE]],
            [copying, ([3], [0]), [MPI.DOUBLE]],
        ),
    ]
    for call in calls:
        x.fill_(0)
        if habit == "obliges":
            call()
            assert x.numpy().tolist() == ours.tolist()
        else:
            match = r"^(buf|recvbuf): Copying .*wm\.empty\(shape, dtype\)"
            with pytest.raises(BufferError, match=match):
                call()
    if place is None:  # as the root, nothing is written that would be missed
        alone.Bcast(copying)


def test_no_receive_writes_into_a_copy_of_elements_of_mpis(comm):
    """Of long double, say, which mpi4py reads."""

    class Long(kinds.Tensor):
        def __dlpack__(self, *, max_version=None, copy=None, stream=None):
            return super().__dlpack__(max_version=(1, 0), copy=True)

    x = Long(wm.zeros(32, "u1", device="cpu"), 2, 128)
    comm.Isend(x, comm.rank)
    comm.Recv(into := np.ones(2, np.longdouble), comm.rank)
    assert into.tolist() == [0, 0]
    with pytest.raises(BufferError, match="buf: Long exports only a copy"):
        comm.Recv(x, comm.rank)


class OnlyDLPack:
    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


@pytest.mark.parametrize("place", ["cpu", None])
def test_arrays_of_jax_are_no_receive_buffers(comm, place):
    """Immutable, though their DLPack of version 0 does not say so."""
    jax = type("ArrayImpl", (OnlyDLPack,), {"__module__": "jaxlib._jax"})
    buffer = jax(wm.ones(3, device=place or wm.get_device()))
    for receive in (comm.Recv, comm.Irecv):
        with pytest.raises(BufferError, match=r"wm\.empty\(shape, dtype\)"):
            receive(buffer, comm.rank)
    request = comm.Irecv(np.zeros(3), comm.rank)
    comm.Send(buffer, comm.rank)
    request.Wait()


@pytest.mark.parametrize("place", ["cpu", None])
def test_a_buffer_of_jaxs_callbacks_says_whether_it_is_written(comm, place):
    x = wm.zeros(3, device=place or wm.get_device())
    names = {"__module__": "jax.experimental.buffer_callback"}
    buffer = type("Buffer", (OnlyDLPack,), names)(x)
    buffer.writeable = True
    comm.Sendrecv(np.arange(3.0), comm.rank, 0, buffer, comm.rank, 0)
    assert x.numpy().tolist() == [0, 1, 2]
    buffer.writeable = False
    with pytest.raises(BufferError, match="read-only"):
        comm.Recv(buffer, comm.rank)
    comm.Sendrecv(buffer, comm.rank, 0, into := np.zeros(3), comm.rank, 0)
    assert into.tolist() == [0, 1, 2]


MEMORY = np.zeros(3)


class Shown:
    def __init__(self, **changes):
        self.__cuda_array_interface__ = {
            "shape": (3,),
            "typestr": "<f8",
            "data": (4096, False),
            "version": 3,
            **changes,
        }


class Packed:
    def __init__(self, device, capsule):
        self.device, self.capsule = device, capsule

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **options):
        return self.capsule


@pytest.mark.parametrize(
    "buffer",
    [
        Shown(shape=None),
        Shown(shape=(-1,)),
        Shown(shape=(1 << 62, 1 << 62)),
        Shown(typestr="f8"),
        Shown(typestr=">f8"),
        Shown(typestr="<f" + 21 * "9"),
        Shown(data=None),
        Shown(data=(4096,)),
        Shown(data=(4096, True)),
        Shown(strides=(8, 8)),
        Shown(strides=(0,)),
        Shown(version="3"),
        Shown(stream=0),
        Packed(None, None),
        Packed((1, 0), None),
        Packed((2, 99), None),
        Packed((77, 0), None),
    ],
    ids=lambda b: str(vars(b)).replace(" ", "")[-60:],
)
def test_malformed_receive_buffers(comm, buffer):
    if isinstance(buffer, Shown) and not wm.is_cuda_available():
        pytest.skip("needs a GPU")
    if isinstance(buffer, Shown):
        interface = buffer.__cuda_array_interface__
        if interface["data"] is not None:  # not what is wrong with it
            here = MEMORY.ctypes.data
            interface["data"] = (here, *interface["data"][1:])
    for receive in (comm.Recv, comm.Irecv):
        with pytest.raises((BufferError, TypeError, ValueError)):
            receive(buffer, comm.rank)


def test_wrong_argument_types(comm):
    for call in (
        lambda: comm.Send(np.zeros(1), "1"),
        lambda: comm.Send(np.zeros(1)),
        lambda: comm.Send(np.zeros(1), 0, 0, 0),
        lambda: comm.Send(np.zeros(1), 0, tga=1),
        lambda: comm.Send(np.zeros(1), 0, dest=0),
        lambda: comm.Recv(np.zeros(1), 0, 0, status=3),
    ):
        with pytest.raises(TypeError):
            call()


def test_an_unattached_communicator_says_so(world):
    class Careless(wm.CommMethods, MPI.Intracomm):
        pass

    comm = Careless(world.Dup())
    with pytest.raises(RuntimeError, match="not attached"):
        comm.Send(np.zeros(1), 0)
    comm.Free()


@needs_gpu
def test_gpu_memory_that_cannot_be_understood_is_not_handed_on(comm):
    class Odd:
        __cuda_array_interface__ = {"shape": "?"}

    with pytest.raises(KeyError, match="typestr"):
        comm.Allgather(Odd(), np.zeros(8))


def test_lower_case_calls_still_work(comm):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    assert comm.sendrecv({"rank": comm.rank}, right, source=left) == {
        "rank": left
    }
    assert comm.allreduce(1) == comm.size


def test_transport_of_no_rank(comm):
    with pytest.raises(ValueError, match="rank"):
        wm.transport(comm, comm.size)
