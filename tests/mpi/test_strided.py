# SPDX-License-Identifier: BSD-3-Clause
"""Arrays that are not contiguous: their elements in C order, no others."""

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import ranks
import warpmpi as wm

SHAPE = (7, 24, 26)
GAP = 77  # what lies between the elements of a receive buffer

VIEWS = {
    "a column": np.s_[3, :, 5],
    "every third": np.s_[2, 1, ::3],
    "rows of few bytes": np.s_[1, :, 4:9],
    "rows of many bytes": np.s_[1, :, 2:24],
    "planes": np.s_[::2],
    "a box": np.s_[1:5, 3:20, 7:9],
    "a box with wide rows": np.s_[1:5, 3:20, 2:24],
    "backwards": np.s_[4, ::-1, 3],
    "rows backwards": np.s_[0, :, ::-1],
    "backwards twice": np.s_[::-2, 5, ::-1],
    "one element": np.s_[2:3, 4:5, 6],
    "none": np.s_[:, 3:3, ::2],
    "all": np.s_[...],
}
WAYS = ["host", "pinned"]
if wm.is_cuda_available():
    WAYS += ["device", "foreign", "pool", "managed", "dlpack"]


class Cai:
    """A view shown by the CUDA array interface."""

    def __init__(self, base, offset, shape, strides):
        self.base = base
        interface = base.__cuda_array_interface__
        self.__cuda_array_interface__ = {
            **interface,
            "data": (interface["data"][0] + offset, False),
            "shape": shape,
            "strides": strides,
        }


class Dlpack:
    """A view that knows DLPack alone."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class Memory:
    """Elements in some memory, and a view of them."""

    def __init__(self, way, values, index):
        values = np.ascontiguousarray(values)
        self.shape = values.shape
        kind = "device" if way == "dlpack" else way
        self.base = kinds.make(kind, values.reshape(-1))
        part = values[index]
        offset = part.ctypes.data - values.ctypes.data if part.size else 0
        if way == "host":
            self.view = self.base.reshape(self.shape)[index]
        elif way in ("foreign", "pool", "managed"):
            self.view = Cai(self.base, offset, part.shape, part.strides)
        else:
            self.view = self.base.reshape(self.shape)[index]
        if way == "dlpack":
            self.view = Dlpack(self.view)

    def values(self):
        return kinds.values_of(self.base).reshape(self.shape)


def numbers(seed, dtype="f4", shape=SHAPE):
    values = np.random.default_rng(seed).integers(0, 250, shape)
    return values.astype(dtype)


def around(comm):
    return (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size


def check(into, index, values):
    """The values are in the view, and nothing else has changed."""
    expected = np.full(into.shape, GAP, values.dtype)
    expected[index] = values
    np.testing.assert_array_equal(into.values(), expected)


def cross(comm, way_out, out, way_in, into, dtype="f4"):
    """A view of one kind goes round into a view of another."""
    right, left = around(comm)
    sent = Memory(way_out, numbers(comm.rank, dtype), out)
    received = Memory(way_in, np.full(SHAPE, GAP, dtype), into)
    status = MPI.Status()
    comm.Sendrecv(sent.view, right, 5, received.view, left, 5, status)
    values = numbers(left, dtype)[out]
    shape = numbers(0)[into].shape
    check(received, into, values.reshape(shape))
    assert status.Get_count(MPI.BYTE) == values.nbytes
    assert (status.source, status.tag) == (left, 5)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", VIEWS)
def test_a_view_into_a_like_view(comm, way, name):
    cross(comm, way, VIEWS[name], way, VIEWS[name])


@pytest.mark.parametrize("way_in", WAYS)
@pytest.mark.parametrize("way_out", WAYS)
def test_any_memory_into_any_other(comm, way_out, way_in):
    column, row = np.s_[3, :, 5], np.s_[2, 1, :24]
    cross(comm, way_out, column, way_in, row)
    cross(comm, way_out, row, way_in, column)
    cross(comm, way_out, column, way_in, np.s_[1, ::-1, 25])
    box = np.s_[1:7, 3:20, 2:24]
    cross(comm, way_out, box, way_in, np.s_[0:6, 20:3:-1, 0:22])


@pytest.mark.parametrize("dtype", ["u1", "f2", "f8", "c16"])
@pytest.mark.parametrize("way", WAYS[:3])
def test_elements_of_any_size(comm, way, dtype):
    for name in "a column", "a box", "rows of many bytes":
        cross(comm, way, VIEWS[name], way, VIEWS[name], dtype)


@pytest.mark.parametrize("way", WAYS)
def test_large_ones(comm, way):
    """More than a chunk, symmetric memory or a borrowed stream takes."""
    right, left = around(comm)
    shape, index = (1500, 2001), np.s_[:, ::2]
    sent = Memory(way, numbers(comm.rank, "f4", shape), index)
    received = Memory(way, np.full(shape, GAP, "f4"), index)
    comm.Sendrecv(sent.view, right, 0, received.view, left, 0)
    check(received, index, numbers(left, "f4", shape)[index])


@pytest.mark.parametrize("way", WAYS)
def test_a_shorter_message_leaves_the_rest_alone(comm, way):
    right, left = around(comm)
    index = np.s_[1:5, 3:20, 7:9]
    whole = numbers(0)[index]
    for size in 0, 1, 2, 3, 34, 35, 71, 102, 135, 136:
        values = np.arange(size, dtype="f4")
        into = Memory(way, np.full(SHAPE, GAP, "f4"), index)
        status = MPI.Status()
        comm.Sendrecv(values, right, 0, into.view, left, 0, status)
        expected = np.full(whole.size, GAP, "f4")
        expected[:size] = values
        check(into, index, expected.reshape(whole.shape))
        assert status.Get_count(MPI.FLOAT) == size


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", [0, 7, 3000, 300_000])
def test_a_longer_message_is_truncated(comm, way, size):
    right, left = around(comm)
    shape, index = (size, 2), np.s_[:, 1]
    into = Memory(way, np.full(shape, GAP, "f4"), index)
    request = comm.Isend(np.zeros(size + 1, "f4"), right, 3)
    with pytest.raises(MPI.Exception) as raised:
        comm.Recv(into.view, left, 3)
    assert raised.value.Get_error_class() == MPI.ERR_TRUNCATE
    request.Wait()
    if size == 7:
        assert (into.values()[:, 0] == GAP).all()
    comm.Sendrecv(np.ones(size, "f4"), right, 3, into.view, left, 3)
    check(into, index, np.ones(size, "f4"))


def broadcast(way, values):
    """Each of the values, three times."""
    if way in ("host", "pinned", "dlpack"):
        return np.broadcast_to(values[:, None], (values.size, 3))
    base = kinds.make(way, values)
    shape, strides = (values.size, 3), (values.itemsize, 0)
    return Cai(base, 0, shape, strides)


@pytest.mark.parametrize("way", WAYS)
def test_repeated_elements_are_sent_but_not_received(comm, way):
    right, left = around(comm)
    values, into = np.arange(10.0), np.zeros((10, 3))
    view = broadcast(way, values)
    comm.Sendrecv(view, right, 0, into, left, 0)
    assert (into == values[:, None]).all()
    if way != "host":
        return
    view = np.lib.stride_tricks.as_strided(np.zeros(3), (3, 4), (8, 0))
    for call in comm.Recv, comm.Irecv, comm.Recv_init:
        with pytest.raises(
            (BufferError, ValueError),
            match="buf: elements have the same address",
        ):
            call(view, left)


@pytest.mark.parametrize("way", WAYS)
def test_columns_of_fortran_arrays_go_in_c_order(comm, way):
    """The array itself is contiguous, and goes as it lies in memory."""
    right, left = around(comm)
    values = numbers(comm.rank)
    flat = np.zeros(values[0].size, "f4")
    turned = Memory(way, values, np.s_[0])
    if way in ("host", "device"):
        comm.Sendrecv(turned.view.T, right, 0, flat, left, 0)
        assert (flat == numbers(left)[0].ravel()).all()
        part = turned.view.T[1:5]
        flat = np.zeros(4 * 24, "f4")
        comm.Sendrecv(part, right, 0, flat, left, 0)
        assert (flat == numbers(left)[0].T[1:5].ravel()).all()


@pytest.mark.parametrize("way", WAYS)
def test_some_elements_of_a_column(comm, way):
    right, left = around(comm)
    index = np.s_[3, :, 5]
    sent = Memory(way, numbers(comm.rank), index)
    into = np.zeros(24, "f4")
    expected = numbers(left)[index]
    comm.Sendrecv([sent.view, 4], right, 0, into, left, 0)
    assert into[:5].tolist() == [*expected[:4], 0]
    comm.Sendrecv([sent.view, (3, 20), "f"], right, 0, into, left, 0)
    assert into[:3].tolist() == expected[20:23].tolist()
    comm.Sendrecv([sent.view, 24, 0, MPI.FLOAT], right, 0, into, left, 0)
    assert into.tolist() == expected.tolist()
    comm.Sendrecv([sent.view, MPI.BYTE], right, 0, into, left, 0)
    assert into.tolist() == expected.tolist()
    box = Memory(way, numbers(comm.rank), np.s_[1:3, 2:4, 5:7])
    pair = MPI.FLOAT.Create_vector(2, 1, 2).Commit()
    for wrong in (
        [sent.view, 25],
        [sent.view, (20, 5), MPI.FLOAT],
        [box.view, 4],
        [box.view, (4, 4)],
        [sent.view, 2, pair],
    ):
        with pytest.raises((BufferError, ValueError), match=r"^buf: "):
            comm.Send(wrong, right)
    pair.Free()
    comm.Sendrecv(box.view, right, 0, into, left, 0)


def write(memory, values, index):
    """By a copy that is only enqueued, where it can be."""
    if isinstance(memory.base, wm.Array):
        view = memory.base.reshape(memory.shape)[index]
        fresh = wm.array(values, device=view.device)
        view.assign(fresh, blocking=False)
    elif isinstance(memory.base, np.ndarray):
        memory.base.reshape(memory.shape)[index] = values
    else:
        full = memory.values().copy()
        full[index] = values
        memory.base.assign(full.reshape(-1))


@pytest.mark.parametrize("way", WAYS)
def test_messages_follow_what_writes_the_array(comm, way):
    right, left = around(comm)
    for index in np.s_[3, :, 5], np.s_[:, 2:22, 1:25]:
        sent = Memory(way, numbers(0), index)
        received = Memory(way, np.full(SHAPE, GAP, "f4"), index)
        for turn in range(4):
            write(sent, numbers(10 * turn + comm.rank)[index], index)
            request = comm.Irecv(received.view, left, turn)
            comm.Send(sent.view, right, turn)
            write(sent, numbers(99)[index], index)  # the array is ours again
            request.Wait()
            check(received, index, numbers(10 * turn + left)[index])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("stock", [True, False])
def test_requests(comm, way, stock):
    """Several at once, some of them contiguous, waited for by either."""
    right, left = around(comm)
    names = list(VIEWS)[:9]
    sent = [Memory(way, numbers(comm.rank), VIEWS[name]) for name in names]
    into = [
        Memory(way, np.full(SHAPE, GAP, "f4"), VIEWS[name]) for name in names
    ]
    plain = np.zeros(3)
    requests = [comm.Irecv(m.view, left, i) for i, m in enumerate(into)]
    requests.append(comm.Irecv(plain, left, 50))
    requests.append(comm.Isend(np.ones(3), right, 50))
    requests += [comm.Isend(m.view, right, i) for i, m in enumerate(sent)]
    (MPI if stock else wm).Request.Waitall(requests)
    assert (plain == 1).all()
    for memory, name in zip(into, names, strict=True):
        check(memory, VIEWS[name], numbers(left)[VIEWS[name]])


@pytest.mark.parametrize("way", WAYS)
def test_persistent_requests(comm, way):
    right, left = around(comm)
    names = "a column", "a box", "rows of many bytes"
    sent = [Memory(way, numbers(0), VIEWS[name]) for name in names]
    into = [
        Memory(way, np.full(SHAPE, GAP, "f4"), VIEWS[name]) for name in names
    ]
    requests = [comm.Recv_init(m.view, left, i) for i, m in enumerate(into)]
    requests += [comm.Send_init(m.view, right, i) for i, m in enumerate(sent)]
    for turn in range(3):
        for memory, name in zip(sent, names, strict=True):
            values = numbers(10 * turn + comm.rank)[VIEWS[name]]
            write(memory, values, VIEWS[name])
        wm.Prequest.Startall(requests)
        wm.Request.Waitall(requests)
        for memory, name in zip(into, names, strict=True):
            check(memory, VIEWS[name], numbers(10 * turn + left)[VIEWS[name]])
    for request in requests:
        request.Free()


@pytest.mark.parametrize("size", [8, 3000, 40_000, 600_000])
@pytest.mark.parametrize("way", WAYS[2:])
def test_on_a_stream(comm, way, size):
    """Behind what the stream wrote, before what it reads, no wait between."""
    right, left = around(comm)
    device = wm.get_device()
    stream = wm.Stream(device)
    channel = comm.on(stream)
    shape, index = (size, 3), np.s_[:, 1]
    sent = Memory(way, np.zeros(shape, "f4"), index)
    into = Memory(way, np.full(shape, GAP, "f4"), index)
    for turn in range(3):
        fresh = wm.array(numbers(turn + comm.rank, "f4", shape), device=device)
        result = wm.zeros(shape, "f4", device=device)
        flat = wm.asarray(sent.base).reshape(shape)
        flat.assign(fresh, blocking=False, stream=stream)
        requests = [
            channel.Irecv(into.view, left, turn),
            channel.Isend(sent.view, right, turn),
        ]
        wm.Request.Waitall(requests)
        received = wm.asarray(into.base).reshape(shape)
        result.assign(received, blocking=False, stream=stream)
        stream.synchronize()
        expected = np.full(shape, GAP, "f4")
        expected[index] = numbers(turn + left, "f4", shape)[index]
        np.testing.assert_array_equal(result.numpy(), expected)


@pytest.mark.ranks(2)
@pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU")
@pytest.mark.parametrize("size", [3000, 600_000])
def test_a_blocking_pair_on_streams_and_the_array_changes_at_once(comm, size):
    device = wm.get_device()
    stream = wm.Stream(device)
    channel = comm.on(stream)
    buffer = wm.zeros((size, 2), "f4", device=device)
    column = buffer[:, 1]
    for turn in range(4):
        if comm.rank == 0:
            fresh = wm.full((size, 2), turn + 1, "f4", device=device)
            buffer.assign(fresh, blocking=False, stream=stream)
            channel.Send(column, 1)
            buffer.fill_(99, blocking=False, stream=stream)
        elif comm.rank == 1:
            channel.Recv(column, 0)
            seen = wm.zeros((size, 2), "f4", device=device)
            seen.assign(buffer, blocking=False, stream=stream)
            stream.synchronize()
            assert (seen.numpy() == [0, turn + 1]).all()
    stream.synchronize()


@pytest.mark.skipif(
    len(wm.get_cuda_devices()) < 2, reason="needs two GPUs in one process"
)
@pytest.mark.parametrize("sides", [(0, 1), (1, 0), (1, 1)])
def test_memory_of_several_devices(comm, sides):
    right, left = around(comm)
    devices = wm.get_cuda_devices()
    index = np.s_[:, 3:9]
    values = numbers(comm.rank, "f4", (50, 11))
    sent = wm.array(values, device=devices[sides[0]])
    for stream in None, wm.Stream(devices[0]), wm.Stream(devices[1]):
        into = wm.full((50, 11), GAP, "f4", device=devices[sides[1]])
        channel = comm if stream is None else comm.on(stream)
        requests = [
            channel.Irecv(into[index], left),
            channel.Isend(sent[index], right),
        ]
        wm.Request.Waitall(requests)
        if stream is not None:
            stream.synchronize()
        expected = np.full((50, 11), GAP, "f4")
        expected[index] = numbers(left, "f4", (50, 11))[index]
        np.testing.assert_array_equal(into.numpy(), expected)


@pytest.mark.parametrize("way", WAYS)
def test_every_other_call(comm, way):
    right, left = around(comm)
    index = np.s_[1:5, 3:20, 7:9]
    values, expected = numbers(comm.rank), numbers(left)[index]
    sent = Memory(way, values, index)
    into = Memory(way, np.full(SHAPE, GAP, "f4"), index)
    comm.Attach_buffer(np.zeros(10_000 + MPI.BSEND_OVERHEAD, "u1"))
    for send in comm.Bsend, comm.Ibsend, comm.Isend, comm.Issend, comm.Irsend:
        request = comm.Irecv(into.view, left, 2)
        sending = send(sent.view, right, 2)
        request.Wait()
        if sending is not None:
            sending.Wait()
        check(into, index, expected)
        write(into, np.full(expected.shape, GAP, "f4"), index)
    comm.Detach_buffer()
    sending = comm.Isend(sent.view, right, 3)
    comm.Mprobe(left, 3).Recv(into.view)
    sending.Wait()
    check(into, index, expected)
    sending = comm.Isend(sent.view, right, 4)
    status = MPI.Status()
    comm.Probe(left, 4, status)
    assert status.Get_count(MPI.FLOAT) == expected.size
    comm.Recv(into.view, left, 4)
    sending.Wait()
    replaced = values.copy()
    for call in comm.Sendrecv_replace, comm.Isendrecv_replace:
        sent = Memory(way, values, index)
        request = call(sent.view, right, 5, left, 5)
        if request is not None:
            request.Wait()
        replaced[index] = expected
        np.testing.assert_array_equal(sent.values(), replaced)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("way", WAYS)
def test_blocking_sends_end_before_short_columns_are_received(comm, way):
    right, left = around(comm)
    sent = Memory(way, numbers(comm.rank), np.s_[3, :, 5])
    into = np.zeros(24, "f4")
    comm.Send(sent.view, right)
    write(sent, np.zeros(24, "f4"), np.s_[3, :, 5])
    comm.Recv(into, left)
    assert into.tolist() == numbers(left)[3, :, 5].tolist()


def test_the_null_process_and_nothing_at_all(comm):
    column = np.zeros((4, 2))[:, 0]
    comm.Send(column, MPI.PROC_NULL)
    comm.Recv(column, MPI.PROC_NULL)
    comm.Sendrecv(column[:0], comm.rank, 0, column, comm.rank, 0)
    assert (column == 0).all()


def test_reducing_a_column_of_host_memory_in_place(comm):
    values = np.full((4, 2), float(comm.rank))
    comm.Allreduce(MPI.IN_PLACE, values[:, 0])
    total = sum(range(comm.size))
    assert (values == [total, comm.rank]).all()


def test_broadcasting_a_column_of_host_memory(comm):
    values = np.full((40, 3), float(comm.rank))
    comm.Bcast(values[:, 1], 0)
    assert (values == [comm.rank, 0, comm.rank]).all()


@pytest.mark.programs
@pytest.mark.skipif(kinds.is_real(), reason="needs the simulated driver")
def test_no_room_for_a_group_of_blocks(tmp_path):
    """As on a part of a GPU with few multiprocessors."""
    program = """
        import ctypes, os
        from mpi4py import MPI
        import numpy as np, warpmpi as wm
        comm = wm.Comm(MPI.COMM_WORLD)
        driver = ctypes.CDLL(os.environ["WARPMPI_CUDA_DRIVER"])
        INVALID_CLUSTER_SIZE = 912
        grid = wm.zeros((4096, 3), "f4", device=wm.get_device())
        sent = np.arange(1, 4097, dtype="f4")
        for turn in range(2):
            column = grid[:, turn]
            if comm.rank == 0:
                column.assign(sent)
            wm.synchronize_device(wm.get_device())
            if turn == 0:
                driver.simcuda_fail(
                    b"LaunchKernel", ctypes.c_long(1), INVALID_CLUSTER_SIZE
                )
            if comm.rank == 0:
                comm.Send(column, 1)
            else:
                comm.Recv(column, 0)
                assert (column.numpy() == sent).all()
    """
    ranks.run_text(tmp_path, program)
