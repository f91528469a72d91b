# SPDX-License-Identifier: BSD-3-Clause
"""Elements that only MPI knows, in host memory: as plain mpi4py takes them."""

import ctypes

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import warpmpi as wm

PAIR = np.dtype([("value", "f8"), ("index", "i4")], align=True)
RECORD = np.dtype([("a", "i2"), ("b", "f8")])


class Complex32:
    """Host memory of elements that no buffer protocol knows, by DLPack."""

    def __init__(self, array):
        self.array = array.view(np.float32)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, stream=None):
        capsule = self.array.__dlpack__()
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype = ctypes.c_void_p
        pointer.argtypes = ctypes.py_object, ctypes.c_char_p
        code = pointer(capsule, b"dltensor") + 20
        ctypes.memmove(code, bytes([5]), 1)  # complex, of 32 bits
        return capsule


class Interface:
    """Host memory that speaks the CUDA array interface alone."""

    def __init__(self, array):
        self.__cuda_array_interface__ = dict(array.__array_interface__)


CASES = {
    "longdouble": (np.zeros(5, "g"), lambda a: a),
    "clongdouble": (np.zeros(5, "G"), lambda a: a),
    "no longdouble": (np.zeros(0, "g"), lambda a: a),
    "longdouble and count": (np.zeros(5, "g"), lambda a: [a, 3]),
    "ctypes": (np.zeros(5, "g"), (ctypes.c_longdouble * 5).from_buffer),
    "typed": (np.zeros(5, "g"), lambda a: [a, MPI.LONG_DOUBLE]),
    "wide character": (np.zeros(1, "U1"), lambda a: a),
    "text": (np.zeros(5, "U3"), lambda a: [a, MPI.WCHAR]),
    "bytes": (np.zeros(5, "S3"), lambda a: [a, "c"]),
    "void": (np.zeros(5, "V10"), lambda a: [a, MPI.BYTE]),
    "dates": (np.zeros(5, "M8[s]"), lambda a: [a, MPI.INT64_T]),
    "records": (np.zeros(5, RECORD), lambda a: [a, MPI.BYTE]),
    "columns": (np.zeros((2, 3), RECORD, "F"), lambda a: [a, MPI.BYTE]),
    "pairs": (np.zeros(5, PAIR), lambda a: [a, MPI.DOUBLE_INT]),
    "some pairs": (np.zeros(5, PAIR), lambda a: [a, (3, 1), MPI.DOUBLE_INT]),
    "pairs of ints": (np.zeros((5, 2), "i"), lambda a: [a, MPI.TWOINT]),
    "DLPack": (np.zeros(64, "b"), lambda a: [Complex32(a), MPI.BYTE]),
    "interface": (np.zeros(5, "G"), Interface),
    "interface and count": (np.zeros(5, "g"), lambda a: [Interface(a), 4]),
    "void interface": (np.zeros(5, "V10"), Interface),
    "other byte order": (np.zeros(5, ">i4"), lambda a: [a, MPI.INT]),
}


def content(array):
    return ctypes.string_at(array.ctypes.data, array.nbytes)


def exchange(comm, case):
    """A ring of messages, blocking and not, and a broadcast."""
    empty, specify = CASES[case]
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    sent, first, second = (empty.copy("A") for _ in range(3))
    for array in first, second:  # also between the elements
        ctypes.memset(array.ctypes.data, 0, array.nbytes)
    values = bytes((i + comm.rank) % 120 for i in range(sent.nbytes))
    ctypes.memmove(sent.ctypes.data, values, sent.nbytes)
    comm.Sendrecv(specify(sent), right, 0, specify(first), left, 0)
    request = comm.Irecv(specify(second), left, 1)
    comm.Isend(specify(sent), right, 1).Wait()
    request.Wait()
    comm.Bcast(specify(sent), 0)
    return content(first), content(second), content(sent)


@pytest.mark.parametrize("case", CASES)
def test_messages_as_of_plain_mpi4py(comm, world, case):
    assert exchange(comm, case) == exchange(world, case)


def test_statuses_count_elements(comm):
    status = MPI.Status()
    request = comm.Irecv(np.zeros(5, "g"), comm.rank)
    comm.Send(np.zeros(4, "g"), comm.rank)
    request.Wait(status)
    assert status.Get_count(MPI.LONG_DOUBLE) == 4


@pytest.mark.parametrize("size", [0, 1, 1000, 1_500_000])
def test_the_least_and_where_it_is(comm, size):
    mine = np.zeros(size, PAIR)
    mine["value"] = (np.arange(size) + comm.rank) % comm.size
    mine["index"] = comm.rank
    least = np.zeros(size, PAIR)
    kind = MPI.DOUBLE_INT
    comm.Allreduce([mine, kind], [least, kind], MPI.MINLOC)
    assert (least["value"] == 0).all()
    expected = -np.arange(size) % comm.size
    np.testing.assert_array_equal(least["index"], expected)
    comm.Allreduce(MPI.IN_PLACE, [mine, kind], MPI.MINLOC)
    np.testing.assert_array_equal(mine, least)


def test_reducing_long_doubles(comm):
    total = np.zeros(10, np.longdouble)
    comm.Allreduce(np.arange(10, dtype=np.longdouble), total)
    np.testing.assert_array_equal(total, np.arange(10) * comm.size)


@pytest.mark.parametrize("name", ["INT", "LONG", "UNSIGNED_CHAR", "LONG_LONG"])
def test_reducing_integers_by_the_name_of_c(comm, name):
    kind = getattr(MPI, name)
    mine = np.full(3, comm.rank, kind.typechar)
    most = np.zeros(3, kind.typechar)
    comm.Allreduce([mine, kind], most, MPI.MAX)
    assert (most == comm.size - 1).all()


def test_reducing_elements_with_gaps_by_an_own_operation(comm):
    def add(source, into, _):
        values = np.frombuffer(into, "i")
        values += np.frombuffer(source, "i")

    op = MPI.Op.Create(add, commute=True)
    kind = MPI.INT.Create_resized(0, 8).Commit()
    total = np.zeros(6, "i")
    comm.Allreduce([np.arange(6, dtype="i"), 3, kind], [total, 3, kind], op)
    assert total[::2].tolist() == [0, 2 * comm.size, 4 * comm.size]
    kind.Free()
    op.Free()


def test_a_datatype_that_reaches_past_its_buffer(comm):
    kind = MPI.DOUBLE.Create_vector(4, 1, 3).Commit()
    with pytest.raises(ValueError, match="fit"):
        comm.Send([np.zeros(9), 1, kind], comm.rank)
    kind.Free()


class Shown:
    """GPU memory of elements that this package does not know."""

    def __init__(self):
        self.array = kinds.make("device", np.zeros(32, np.uint8))
        self.__cuda_array_interface__ = {
            **self.array.__cuda_array_interface__,
            "shape": (2,),
            "typestr": "<f16",
        }


@pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU")
def test_gpu_memory_of_such_elements_is_refused(comm):
    for buffer in Shown(), [Shown(), MPI.LONG_DOUBLE]:
        with pytest.raises(TypeError, match="f16"):
            comm.Send(buffer, comm.rank)
    pairs = kinds.make("device", np.zeros(32, np.uint8))
    with pytest.raises(MPI.Exception, match="op: MPI does not compute this"):
        comm.Allreduce(MPI.IN_PLACE, [pairs, MPI.DOUBLE_INT])


def test_bottom_with_no_elements(comm):
    other = comm.size - 1 - comm.rank
    nothing = [MPI.BOTTOM, 0, MPI.INT]
    comm.Sendrecv(nothing, other, 0, [MPI.BOTTOM, "B"], other, 0)
    with pytest.raises(ValueError, match="no absolute addresses"):
        comm.Send([MPI.BOTTOM, 1, MPI.INT], other)


def test_more_elements_than_memory_has(comm):
    array = np.zeros(4, "u1")
    each = absolute([(MPI.Get_address(array), 4)])
    for count in 2**62, 2**62 + 1, 2**61:
        with pytest.raises(ValueError, match="beyond the address space"):
            comm.Send([MPI.BOTTOM, count, each], comm.rank)
    each.Free()


def absolute(blocks):
    """A datatype of so many bytes at each address."""
    addresses, lengths = zip(*blocks, strict=True)
    return MPI.BYTE.Create_hindexed(lengths, addresses).Commit()


def address_of(array):
    shown = getattr(array, "__cuda_array_interface__", None)
    return shown["data"][0] if shown else MPI.Get_address(array)


@pytest.mark.parametrize("kind", ["host", "pinned", *kinds.DEVICE_KINDS])
@pytest.mark.parametrize("size", [10, 100_000])
def test_absolute_addresses(comm, kind, size):
    """Over MPI.BOTTOM: one block, a strided one, and blocks here and there."""
    other = comm.size - 1 - comm.rank
    for blocks in (
        [(0, size)],
        [(8 * k, 3) for k in range(size // 8)],
        [(size // 2, 3), (0, size // 4), (size - 1, 1)],
    ):
        values = (np.arange(size) + comm.rank) % 251
        out = kinds.make(kind, values.astype("u1"))
        into = kinds.make(kind, np.full(size, 255, "u1"))
        types = [
            absolute([(address_of(array) + at, n) for at, n in blocks])
            for array in (out, into)
        ]
        comm.Sendrecv(
            [MPI.BOTTOM, 1, types[0]],
            other,
            0,
            [MPI.BOTTOM, 1, types[1]],
            other,
            0,
        )
        expected = np.full(size, 255)
        for at, n in blocks:
            expected[at : at + n] = (np.arange(at, at + n) + other) % 251
        np.testing.assert_array_equal(kinds.values_of(into), expected)
        comm.Bcast([MPI.BOTTOM, 1, types[1]])
        for at, n in blocks:
            expected[at : at + n] = (
                np.arange(at, at + n) + comm.size - 1
            ) % 251
        np.testing.assert_array_equal(kinds.values_of(into), expected)
        for each in types:
            each.Free()


def test_absolute_addresses_of_several_arrays(comm):
    other = comm.size - 1 - comm.rank
    out = [np.full(5, comm.rank + k, "u1") for k in range(3)]
    into = [np.zeros(5, "u1") for _ in range(3)]
    types = [
        absolute([(MPI.Get_address(array), 5) for array in arrays])
        for arrays in (out, into)
    ]
    sent = comm.Isend([MPI.BOTTOM, 1, types[0]], other)
    comm.Recv([MPI.BOTTOM, types[1].Get_size() // 15, types[1]], other)
    sent.Wait()
    assert [array[0] for array in into] == [other + k for k in range(3)]
    if wm.is_cuda_available():
        arrays = [kinds.make("foreign", array) for array in out]
        # Two of a GPU, and one of its between two of the host or the other
        # way round, as the address space has it.
        for some in (
            arrays,
            (out[0], arrays[0]),
            (out[0], arrays[0], np.zeros(1 << 22, "u1")),
        ):
            apart = absolute([(at, 1) for at in sorted(map(address_of, some))])
            with pytest.raises(ValueError, match="several allocations"):
                comm.Send([MPI.BOTTOM, 1, apart], other)
            apart.Free()
    for each in types:
        each.Free()


def test_datatype_that_goes_backwards_needs_a_count(comm):
    backwards = MPI.INT.Create_resized(0, -4).Commit()
    for given in (None, backwards), (0, 1, backwards):
        with pytest.raises(ValueError, match="extent"):
            comm.Send([np.zeros(5, "i"), *given], 0)
    backwards.Free()


def test_where_odd_elements_are_is_known():
    """Elements of no dtype of ours: their address tells, not a claim."""
    for array in (Interface(np.zeros(5, "g")), Complex32(np.zeros(64, "b"))):
        assert not wm.is_on_device(array)
    if wm.is_cuda_available():
        odd = Interface(np.zeros(5, "g"))
        memory = wm.zeros(80, "b", device="cuda:0")
        odd.__cuda_array_interface__["data"] = (memory.ptr, False)
        assert wm.is_on_device(odd)


KINDS = ["host", "pinned"]
if wm.is_cuda_available():
    KINDS += ["device", "foreign", "pool", "managed"]
SIZE, GAP = 4000, 7  # bytes; what lies between those of a receive buffer


def subarray(order):
    return MPI.SHORT.Create_subarray([9, 8, 7], [3, 4, 5], [2, 1, 1], order)


def structure(*parts):
    return MPI.Datatype.Create_struct(*zip(*parts, strict=True))


def large(element, count, most):
    """So many elements for who counts to `most`, as programs make it."""
    rows, left = divmod(count, most)
    extent = element.Get_extent()[1]
    return structure(
        (1, 0, element.Create_vector(rows, most, most)),
        (1, rows * most * extent, element.Create_contiguous(left)),
    )


def apart(element=MPI.INT, extent=8):
    return element.Create_resized(0, extent)


# How many, of what; those of the second group no kernel knows.
TYPES = {
    "contiguous": (3, lambda: MPI.INT.Create_contiguous(5)),
    "none": (0, lambda: MPI.INT.Create_vector(3, 1, 2)),
    "none of it": (3, lambda: MPI.INT.Create_contiguous(0)),
    "vector": (1, lambda: MPI.INT.Create_vector(9, 2, 5)),
    "vectors": (4, lambda: MPI.INT.Create_vector(9, 2, 5)),
    "wide vectors": (2, lambda: MPI.INT.Create_vector(4, 20, 30)),
    "backwards": (1, lambda: MPI.SHORT.Create_vector(3, 1, -2)),
    "hvector": (2, lambda: MPI.CHAR.Create_hvector(7, 3, 11)),
    "of vectors": (
        2,
        lambda: MPI.INT.Create_vector(3, 2, 4).Create_hvector(2, 1, 60),
    ),
    "column": (
        6,
        lambda: MPI.INT.Create_vector(8, 1, 6).Create_resized(0, 4),
    ),
    "indexed block": (2, lambda: MPI.INT.Create_indexed_block(2, [1, 4, 7])),
    "hindexed block": (2, lambda: MPI.INT.Create_hindexed_block(1, [8, 16])),
    "indexed": (3, lambda: MPI.INT.Create_indexed([2, 2], [1, 5])),
    "hindexed": (3, lambda: MPI.INT.Create_hindexed([1, 1], [40, 4])),
    "one block": (3, lambda: MPI.INT.Create_hindexed([3], [12])),
    "subarray": (1, lambda: subarray(MPI.ORDER_C)),
    "subarray of Fortran": (2, lambda: subarray(MPI.ORDER_FORTRAN)),
    "resized": (5, lambda: MPI.DOUBLE.Create_resized(-8, 24)),
    "dup": (2, lambda: MPI.INT.Create_vector(3, 1, 2).Dup()),
    "in steps backwards": (
        3,
        lambda: MPI.SHORT.Create_hindexed([1], [60]).Create_resized(0, -6),
    ),
    "pairs": (3, lambda: MPI.DOUBLE_INT),
    "contiguous in effect": (2, lambda: large(MPI.INT, 8, 3)),
    "blocks that go on": (3, lambda: MPI.INT.Create_indexed([1, 3], [0, 1])),
    "types that go on": (
        3,
        lambda: structure((2, 0, MPI.INT), (1, 8, MPI.DOUBLE)),
    ),
    "gaps that go on": (2, lambda: large(apart(), 8, 3)),
    "rows that go on": (1, lambda: large(apart(apart(), 40), 7, 3)),
    "one in front": (
        2,
        lambda: structure(
            (1, 4, apart()), (1, 12, apart().Create_contiguous(3))
        ),
    ),
    "types of one size": (
        3,
        lambda: structure((1, 0, MPI.INT), (1, 12, MPI.FLOAT)),
    ),
}
STAGED = {
    "uneven places": (2, lambda: MPI.INT.Create_indexed_block(1, [0, 2, 7])),
    "uneven blocks": (3, lambda: MPI.INT.Create_indexed([1, 3], [0, 2])),
    "structure": (
        4,
        lambda: structure((1, 0, MPI.CHAR), (2, 8, MPI.DOUBLE)),
    ),
    "of structures": (
        2,
        lambda: structure((1, 0, MPI.CHAR), (1, 4, MPI.INT)).Create_vector(
            3, 2, 4
        ),
    ),
    "behind its place": (
        3,
        lambda: structure((1, -4, MPI.INT), (1, 8, MPI.SHORT)),
    ),
}


def offsets(count, kind):
    """Where each byte lies that travels, as plain MPI sends it."""
    size, extent = kind.Get_size(), kind.Get_extent()[1]
    memory = np.zeros(3 * SIZE, "u1")
    places = np.zeros(count * size, "i4")
    for bit in range(14):
        memory[:] = np.arange(memory.size) >> bit & 1
        for i in range(count):
            packed = np.zeros(size + 1, "u1")
            # By an address: mpi4py knows no other way to reach in front of it.
            at = memory.ctypes.data + SIZE + i * extent
            of_mpi = [MPI.buffer.fromaddress(at, 1), 1, kind]
            MPI.COMM_SELF.Sendrecv(of_mpi, 0, 0, packed, 0)
            bits = packed[:size].astype("i4")
            places[i * size : (i + 1) * size] += bits << bit
    return places - SIZE


def typed(make):
    kind = make()
    return kind if kind.is_predefined else kind.Commit()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [*TYPES, *STAGED])
def test_datatypes_over_any_memory(comm, kind, name):
    """Into the same places, into bytes, and out of bytes."""
    count, make = {**TYPES, **STAGED}[name]
    datatype = typed(make)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    places = offsets(count, datatype)
    first = int(places.size > 0 and places.min() < 0)
    places += first * datatype.Get_extent()[1]
    mine, theirs = (
        np.random.default_rng(rank).integers(0, 99, SIZE).astype("u1")
        for rank in (comm.rank, left)
    )
    expected = np.full(SIZE, GAP, "u1")
    expected[places] = theirs[places]
    sent = kinds.make(kind, mine)
    into = kinds.make(kind, np.full(SIZE, GAP, "u1"))
    out_of = [sent, count, first, datatype]
    before = wm.stats()["staged_bytes"]
    status = MPI.Status()
    comm.Sendrecv(
        out_of, right, 1, [into, count, first, datatype], left, 1, status
    )
    np.testing.assert_array_equal(kinds.values_of(into), expected)
    assert status.Get_elements(MPI.BYTE) == places.size
    assert status.Get_count(datatype) == (count if places.size else 0)
    staged = wm.stats()["staged_bytes"] - before
    if kind == "device":
        whole = name in STAGED
        assert staged >= 2 * places.size if whole else staged == 0
    packed = np.zeros(places.size, "u1")
    requests = [comm.Irecv(packed, left, 2), comm.Isend(out_of, right, 2)]
    MPI.Request.Waitall(requests)
    np.testing.assert_array_equal(packed, theirs[places])
    into = kinds.make(kind, np.full(SIZE, GAP, "u1"))
    requests = [
        comm.Irecv([into, count, first, datatype], left, 3),
        comm.Isend(kinds.make(kind, mine[places]), right, 3),
    ]
    MPI.Request.Waitall(requests)
    np.testing.assert_array_equal(kinds.values_of(into), expected)
    if not datatype.is_predefined:
        datatype.Free()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["vectors", "structure", "uneven blocks"])
def test_part_of_what_a_datatype_has_room_for(comm, kind, name):
    """Also a message that ends inside of an element."""
    count, make = {**TYPES, **STAGED}[name]
    datatype = typed(make)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    places = offsets(count, datatype)
    for size in 0, 8, 17, places.size // 2, places.size - 1, places.size:
        values = np.arange(1, size + 1).astype("u1")
        into = kinds.make(kind, np.full(SIZE, GAP, "u1"))
        status = MPI.Status()
        comm.Sendrecv(
            values, right, 0, [into, count, datatype], left, 0, status
        )
        expected = np.full(SIZE, GAP, "u1")
        expected[places[:size]] = values
        np.testing.assert_array_equal(kinds.values_of(into), expected)
        assert status.Get_count(MPI.BYTE) == size
        each = datatype.Get_size()
        whole = size // each if size % each == 0 else MPI.UNDEFINED
        assert status.Get_count(datatype) == whole
    more = comm.Isend(np.zeros(places.size + 1, "u1"), right)
    with pytest.raises(MPI.Exception) as raised:
        comm.Recv([into, count, datatype], left)
    assert raised.value.Get_error_class() == MPI.ERR_TRUNCATE
    more.Wait()
    datatype.Free()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["vectors", "structure"])
def test_persistent_requests_of_datatypes(comm, kind, name):
    count, make = {**TYPES, **STAGED}[name]
    datatype = typed(make)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    places = offsets(count, datatype)
    sent = kinds.make(kind, np.zeros(SIZE, "u1"))
    into = kinds.make(kind, np.full(SIZE, GAP, "u1"))
    requests = [
        comm.Recv_init([into, count, datatype], left),
        comm.Send_init([sent, count, datatype], right),
    ]
    datatype.Free()
    for turn in range(3):
        fresh = np.full(SIZE, 10 * turn + comm.rank, "u1")
        if isinstance(sent, np.ndarray):
            sent[:] = fresh
        else:
            wm.asarray(sent).assign(fresh, blocking=False)
        wm.Prequest.Startall(requests)
        wm.Request.Waitall(requests)
        expected = np.full(SIZE, GAP, "u1")
        expected[places] = 10 * turn + left
        np.testing.assert_array_equal(kinds.values_of(into), expected)


@pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ["vectors", "structure"])
def test_datatypes_on_a_stream(comm, name):
    count, make = {**TYPES, **STAGED}[name]
    datatype = typed(make)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    places = offsets(count, datatype)
    stream = wm.Stream(wm.get_device())
    channel = comm.on(stream)
    sent, into = wm.zeros(SIZE, "u1"), wm.full(SIZE, GAP, "u1")
    for turn in range(3):
        fresh = wm.full(SIZE, 10 * turn + comm.rank, "u1")
        seen = wm.zeros(SIZE, "u1")
        sent.assign(fresh, blocking=False, stream=stream)
        requests = [
            channel.Irecv([into, count, datatype], left),
            channel.Isend([sent, count, datatype], right),
        ]
        wm.Request.Waitall(requests)
        seen.assign(into, blocking=False, stream=stream)
        stream.synchronize()
        expected = np.full(SIZE, GAP, "u1")
        expected[places] = 10 * turn + left
        np.testing.assert_array_equal(seen.numpy(), expected)
    datatype.Free()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_wrong_with_a_datatype_is_told(comm, kind):
    array = kinds.make(kind, np.zeros(64, "u1"))
    vector = MPI.INT.Create_vector(4, 1, 4)
    calls = comm.Send, comm.Isend, comm.Send_init
    for call in (*calls, comm.Recv, comm.Irecv, comm.Recv_init):
        with pytest.raises(MPI.Exception) as raised:
            call([array, 1, vector], comm.rank)
        assert raised.value.Get_error_class() == MPI.ERR_TYPE
    vector.Commit()
    far = MPI.INT.Create_hindexed([1], [64]).Commit()
    before = MPI.INT.Create_hindexed([1], [-4]).Commit()
    column = MPI.INT.Create_vector(4, 1, 4).Create_resized(0, 4).Commit()
    bad = [
        [array, 2, vector],
        [array, 1, 1, vector],
        [array, 1, 2, vector],
        [array, 5, column],
        [array, column],
        [array, 1, far],
        [array, 1, before],
        [array, 1 << 62, vector],
        [array, 1, 1 << 62, vector],
    ]
    for call in (*calls, comm.Recv, comm.Irecv, comm.Recv_init):
        for wrong in bad:
            with pytest.raises(ValueError, match=r"^buf: "):
                call(wrong, comm.rank)
    for freed in vector, far, before, column:
        freed.Free()
    with pytest.raises(MPI.Exception, match="DATATYPE_NULL") as told:
        comm.Send([array, 1, vector], comm.rank)
    assert told.value.Get_error_class() == MPI.ERR_TYPE
    request = comm.Isend([array, MPI.INT], comm.rank)
    comm.Recv(np.zeros(16, "i"), comm.rank)
    request.Wait()


@pytest.mark.parametrize("kind", KINDS)
def test_elements_on_top_of_each_other_are_only_sent(comm, kind):
    same = MPI.INT.Create_resized(0, 0).Commit()
    array = kinds.make(kind, np.arange(8, dtype="i"))
    into = np.zeros(3, "i")
    request = comm.Isend([array, 3, same], comm.rank)
    comm.Recv(into, comm.rank)
    request.Wait()
    with pytest.raises(
        ValueError, match="buf: elements have the same address"
    ):
        comm.Recv([array, 3, same], comm.rank)
    same.Free()
