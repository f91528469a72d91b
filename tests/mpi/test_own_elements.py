# SPDX-License-Identifier: BSD-3-Clause
"""A count is of the elements that the user sees; a mask is not overlooked."""

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import warpmpi as wm

needs_gpu = pytest.mark.skipif(
    not wm.is_cuda_available(), reason="needs a GPU"
)
PLACES = ["host"] + (["device"] if wm.is_cuda_available() else [])


class WarpArray:
    """Like Warp's: elements of several numbers, which its interface shows."""

    def __init__(self, place, values, inner_ndim=1):
        self.memory = kinds.make(place, values)
        self.ndim = values.ndim - inner_ndim
        self.shape = values.shape[: self.ndim]
        self.device = self
        self.stream = self
        self.cuda_stream = None
        pointer = (
            self.memory.ptr if place == "device" else self.memory.ctypes.data
        )
        interface = {
            "data": (pointer, False),
            "shape": values.shape,
            "strides": values.strides,
            "typestr": values.dtype.str,
            "version": 2,
        }
        if place == "device":
            self.__cuda_array_interface__ = interface
        else:
            self.__array_interface__ = interface

    def __dlpack__(self, **asked):
        return self.memory.__dlpack__(**asked)

    def __dlpack_device__(self):
        return self.memory.__dlpack_device__()

    def values(self):
        wm.synchronize()
        return kinds.values_of(self.memory)


WarpArray.__name__ = WarpArray.__qualname__ = "array"
WarpArray.__module__ = "warp._src.types"


def vectors(place, count, first=0):
    numbers = np.arange(3.0 * count, dtype="f4") + first
    return WarpArray(place, numbers.reshape(count, 3))


def exchange(comm, sent, into):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    status = MPI.Status()
    request = comm.Irecv(into, left)
    comm.Send(sent, right)
    request.Wait(status)
    return status.Get_count(MPI.BYTE)


@pytest.mark.parametrize("place", PLACES)
def test_a_count_is_of_vectors(comm, place):
    sent, into = vectors(place, 4), vectors(place, 4, 100)
    assert exchange(comm, [sent, 2], [into, 2]) == 24
    assert into.values().ravel()[:6].tolist() == [0, 1, 2, 3, 4, 5]
    assert into.values().ravel()[6:].tolist() == list(range(106, 112))
    assert exchange(comm, sent, into) == 48


@pytest.mark.parametrize("place", PLACES)
def test_so_is_a_displacement(comm, place):
    sent, into = vectors(place, 4), np.zeros(12, "f4")
    assert exchange(comm, [sent, (2, 1)], into) == 24
    assert into[:6].tolist() == [3, 4, 5, 6, 7, 8]
    assert exchange(comm, [sent, (None, 3)], into) == 12
    assert into[:3].tolist() == [9, 10, 11]


@pytest.mark.parametrize("place", PLACES)
def test_a_datatype_counts_itself(comm, place):
    into = np.zeros(12, "f4")
    sent = vectors(place, 4)
    assert exchange(comm, [sent, 2, MPI.FLOAT], into) == 8
    assert exchange(comm, [sent, (2, 1), "f"], into) == 8
    assert into[:2].tolist() == [1, 2]


@pytest.mark.parametrize("place", PLACES)
def test_matrices(comm, place):
    numbers = np.arange(24.0).reshape(2, 3, 2, 2)
    sent, into = WarpArray(place, numbers, 2), np.zeros(24)
    assert exchange(comm, [sent, 5], into) == 5 * 4 * 8
    assert into[:20].tolist() == list(range(20))


def test_more_vectors_than_there_are(comm):
    for count in (5, 2**62):
        with pytest.raises(ValueError, match="of 12 bytes do not fit"):
            comm.Send([vectors("host", 4), count], 0)


@pytest.mark.parametrize("place", PLACES)
def test_every_other_vector(comm, place):
    sent, into = vectors(place, 4), np.zeros(12, "f4")
    name = (
        "__cuda_array_interface__"
        if place == "device"
        else ("__array_interface__")
    )
    interface = dict(getattr(sent, name), shape=(2, 3), strides=(24, 4))
    setattr(sent, name, interface)
    assert exchange(comm, [sent, (1, 1)], into) == 12
    assert into[:3].tolist() == [6, 7, 8]


@pytest.mark.parametrize("place", PLACES)
def test_persistent_and_partitioned(comm, place):
    sent, into = vectors(place, 4), np.zeros(12, "f4")
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    requests = [
        comm.Recv_init([into, 6], left),
        comm.Send_init([sent, 2], right),
    ]
    wm.Prequest.Startall(requests)
    wm.Request.Waitall(requests)
    assert into.tolist() == [0, 1, 2, 3, 4, 5] + [0] * 6
    sending = comm.Psend_init([sent, 2], 2, right)
    receiving = comm.Precv_init(into, 2, left, 0)
    receiving.Start()
    sending.Start()
    sending.Pready_range(0, 1)
    sending.Wait()
    receiving.Wait()
    assert into.tolist() == list(range(12))


@pytest.mark.parametrize("place", PLACES)
def test_our_collectives(comm, place):
    array = vectors(place, 4, 100 * comm.rank)
    comm.Bcast([array, 2])
    expected = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
    expected[6:] = [100 * comm.rank + each for each in expected[6:]]
    assert array.values().ravel().tolist() == expected
    total = vectors(place, 4)
    comm.Allreduce([vectors(place, 4), 2], [total, 2])
    expected = [comm.size * each for each in range(6)] + list(range(6, 12))
    assert total.values().ravel().tolist() == expected


@pytest.mark.parametrize("place", PLACES)
def test_collectives_of_mpi(comm, place):
    size = comm.size
    sent = vectors(place, 2 * size, 100 * comm.rank)
    into = vectors(place, 2 * size)
    comm.Alltoall([sent, 2], [into, 2])
    first = 6 * comm.rank
    expected = np.array(
        [np.arange(first, first + 6) + 100 * rank for rank in range(size)]
    )
    assert np.array_equal(into.values().ravel(), expected.ravel())
    # From the last to the first, one less to each.
    counts = [1] * size
    displs = [2 * rank for rank in reversed(range(size))]
    comm.Alltoallv([sent, (counts, displs)], [into, counts])
    first = 3 * displs[comm.rank]
    expected = [[first + i + 100 * rank for i in range(3)] for rank in
                range(size)]  # fmt: skip
    assert into.values().reshape(-1, 3)[:size].tolist() == expected
    comm.Allgatherv([sent, 1, None], [into, np.array(counts)])
    expected = [[100 * rank + i for i in range(3)] for rank in range(size)]
    assert into.values().reshape(-1, 3)[:size].tolist() == expected
    comm.Ialltoallv([sent, counts, MPI.FLOAT], [into, counts, "f"]).Wait()
    assert into.values().ravel()[:size].tolist() == [
        100 * rank + comm.rank for rank in range(size)
    ]
    total = vectors(place, 2)
    comm.Reduce([vectors(place, 2), 1], [total, 1])
    if comm.rank == 0:
        assert total.values().ravel().tolist() == [0, size, 2 * size, 3, 4, 5]


@pytest.mark.parametrize("place", [*PLACES, "mixed"])
def test_counts_of_what_mpi_takes_for_bytes(comm, place):
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    if place == "mixed":
        place = PLACES[comm.rank % len(PLACES)]
    device = "cpu" if place == "host" else wm.get_device()
    size, rank = comm.size, comm.rank

    def make(values):
        return wm.array(np.asarray(values, bfloat16), device=device)

    sent = make(np.arange(2 * size) + 10 * rank)
    into = make([-1] * (3 * size))
    comm.Allgather([sent, 2], [into, 2])
    expected = [10 * r + k for r in range(size) for k in range(2)]
    assert into.numpy().tolist() == expected + [-1] * size
    into.assign(make([-1] * (3 * size)))
    counts, displs = [1] * size, [3 * r + 1 for r in range(size)]
    comm.Ialltoallv(
        [sent, (counts, range(size))], [into, (counts, displs)]
    ).Wait()
    expected = [x for r in range(size) for x in (-1, 10 * r + rank, -1)]
    assert into.numpy().tolist() == expected
    comm.Gatherv([sent, 1], [into, counts] if rank == 0 else None)
    if rank == 0:
        expected[:size] = [10 * r for r in range(size)]
    assert into.numpy().tolist() == expected


@needs_gpu
def test_gpu_memory_is_refused_in_mpi4py_s_words(comm):
    array = wm.zeros(2 * comm.size)
    for wrong in ([array, [1] * comm.size, [0] * comm.size], [array, 1, 2]):
        with pytest.raises((TypeError, KeyError)) as theirs:
            comm.Allgatherv(np.zeros(2), [np.zeros(2 * comm.size), *wrong[1:]])
        with pytest.raises(theirs.type):
            comm.Allgatherv(np.zeros(2), wrong)


@pytest.mark.parametrize("place", PLACES)
def test_vectors_are_not_cut_where_no_counts_are(comm, place):
    size = comm.size
    sent = vectors(place, 2 * size + 1) if comm.rank == 0 else None
    into = np.zeros(9, "f4")
    for spelling in (sent, [sent, None]):
        count = 3 * (3 if comm.rank == 0 else 2)
        comm.Scatterv(
            spelling if comm.rank == 0 else None, [into, count, MPI.FLOAT]
        )
        first = 6 * comm.rank + 3 * (comm.rank > 0)
        assert into[:count].tolist() == list(range(first, first + count))


def test_what_mpi4py_does_not_understand_it_refuses(comm):
    array = vectors("host", 2 * comm.size)
    for wrong in ([array, 1.0], [array, (1, 2, 3)], [array, 1, object()]):
        with pytest.raises((TypeError, ValueError, KeyError)):
            comm.Alltoallv(wrong, np.zeros(6 * comm.size, "f4"))


def test_warp_itself(comm):
    warp = pytest.importorskip("warp")
    warp.config.quiet = True
    warp.init()
    sent = warp.array(np.arange(12.0).reshape(4, 3), dtype=warp.vec3)
    sent = sent.to("cpu")
    into = np.zeros(12, "f4")
    assert exchange(comm, [sent, 2], into) == 24

    @warp.struct
    class Pair:
        a: warp.float32
        b: warp.vec3

    pairs = warp.zeros(3, dtype=Pair, device="cpu")
    for buffer in (pairs, [pairs, 2], [pairs, MPI.BYTE]):
        with pytest.raises(TypeError, match=r"view\(wp.types.vector\(16, "):
            comm.Send(buffer, 0)
        with pytest.raises(TypeError, match="Warp structs"):
            comm.Allgather(buffer, np.zeros(100, "u1"))
    as_bytes = pairs.view(warp.types.vector(16, warp.uint8))
    assert exchange(comm, [as_bytes, 2], np.zeros(99, "u1")) == 32


@pytest.mark.parametrize("place", PLACES)
def test_structs_of_warp_are_told_how_to_be_sent(comm, place):
    array = WarpArray(place, np.zeros(48, "u1").reshape(3, 16))
    name = (
        "__cuda_array_interface__"
        if place == "device"
        else "__array_interface__"
    )
    shown = dict(getattr(array, name), shape=(3,), strides=(16,))
    setattr(array, name, dict(shown, typestr="|V16"))
    match = r"Warp structs of 16 bytes.*array.view\(wp.types.vector\(16, "
    for buffer in (array, [array, 2], [array, MPI.BYTE]):
        with pytest.raises(TypeError, match="buf: the elements are " + match):
            comm.Send(buffer, 0)
        with pytest.raises(TypeError, match="buf: the elements are " + match):
            comm.Recv(buffer, 0)
    with pytest.raises(TypeError, match="sendbuf: the elements are " + match):
        comm.Allgather(array, np.zeros(100, "u1"))


# --- masks ------------------------------------------------------------------

MASKED = r"masked array.*array.filled\(\), or array.data"


@pytest.mark.parametrize("mask", [True, False, [0, 1, 0]])
def test_hidden_values_are_not_sent(comm, mask):
    array = np.ma.array([1.0, 2.0, 3.0], mask=mask)
    for buffer in (array, [array, 1], [array, MPI.DOUBLE], array[::2]):
        with pytest.raises(TypeError, match="buf: .*" + MASKED):
            comm.Send(buffer, 0)
        with pytest.raises(TypeError, match="buf: .*" + MASKED):
            comm.Irecv(buffer, 0)
    with pytest.raises(TypeError, match="obj: .*" + MASKED):
        wm.asarray(array)


def test_nor_by_collectives(comm):
    array = np.ma.array([1.0, 2.0, 3.0], mask=[0, 1, 0])
    plain = np.zeros(3 * comm.size)
    with pytest.raises(TypeError, match="sendbuf: .*" + MASKED):
        comm.Allgather(array, plain)
    with pytest.raises(TypeError, match="sendbuf: .*" + MASKED):
        comm.Iallgatherv([array, 3], plain)
    own = wm.Comm(MPI.COMM_SELF)
    with pytest.raises(TypeError, match="recvbuf: .*" + MASKED):
        own.Reduce(plain[:3], array)
    with pytest.raises(TypeError, match="buf: .*" + MASKED):
        comm.Bcast(array)
    with pytest.raises(TypeError, match="sendbuf: .*" + MASKED):
        comm.Allreduce(array, plain[:3])


def test_what_a_mask_lacks_or_was_dealt_with_is_sent(comm):
    masked = np.ma.array([1.0, 2.0, 3.0], mask=[0, 1, 0], fill_value=7)
    plain = np.ma.array([1.0, 2.0, 3.0])
    into = np.ma.array(np.zeros(3))
    for sent, expected in [
        (masked.filled(), [1, 7, 3]),
        (masked.data, [1, 2, 3]),
        (plain, [1, 2, 3]),
    ]:
        exchange(comm, sent, into)
        assert into.tolist() == expected
        everything = np.ma.array(np.zeros(3 * comm.size))
        comm.Allgather(sent, everything)
        assert everything.tolist() == expected * comm.size
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    got = comm.sendrecv(masked, right, source=left)
    assert got.mask.tolist() == [False, True, False]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("form", ["", "I"])
def test_bfloat16_and_a_datatype_of_two_bytes_are_the_same(comm, place, form):
    """Where one rank gives both, Open MPI chose another way than others."""
    two = MPI.BYTE.Create_contiguous(2).Commit()
    call = getattr(comm, "Iallgatherv" if form else "Allgatherv")
    for number in (1, 50, 141, 1000, 5000):
        counts = [number] * comm.size
        mine = np.full(2 * number, comm.rank + 1, np.uint8)
        raw = kinds.make("host", np.zeros(2 * number * comm.size, np.uint8))
        into = wm.zeros(
            number * comm.size,
            "bfloat16",
            device="cpu" if place == "host" else wm.get_device(),
        )
        last = comm.rank == comm.size - 1
        given = [into, counts] if last else [raw, counts, two]
        request = call([mine, number, two], given)
        if form:
            request.Wait()
        found = into.numpy().view(np.uint8) if last else raw
        right = np.repeat(np.arange(comm.size) + 1, 2 * number)
        np.testing.assert_array_equal(found, right)
    two.Free()
