# SPDX-License-Identifier: BSD-3-Clause
"""Addresses: MPI.memory.fromaddress(address, nbytes), and MPI.BOTTOM.

Their bytes are those that counts, displacements and datatypes tell.
"""

import ctypes
import os
import tempfile

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import warpmpi as wm
from cases import FORMS, NAMES, Case, Staged, begun, settle

ALL = [kind for kind in kinds.KINDS if kind != "pinned"]
needs_gpu = pytest.mark.skipif(
    not wm.is_cuda_available(), reason="needs a GPU"
)


def pointer_of(array):
    shown = getattr(array, "__cuda_array_interface__", None)
    return shown["data"][0] if shown else MPI.Get_address(array)


@pytest.fixture(params=[0, 8])
def length(request):
    """What an address claims to have: a count tells."""
    return request.param


def address_of(array, nbytes=0):
    return MPI.memory.fromaddress(pointer_of(array), nbytes)


def made(kind, length, *values):
    arrays = [kinds.make(kind, np.asarray(each, "f8")) for each in values]
    return [*arrays, *(address_of(array, length) for array in arrays)]


@pytest.fixture
def strided():
    kind = MPI.DOUBLE.Create_vector(2, 1, 2).Commit()
    yield kind
    kind.Free()


@pytest.mark.parametrize("kind", ALL)
def test_a_count_tells_the_bytes_of_a_message(comm, kind, length, strided):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    values = np.arange(6.0) + comm.rank
    _kept, into, sent, received = made(kind, length, values, [0] * 6)
    comm.Sendrecv(
        [sent, 6, MPI.DOUBLE], right, 0, [received, 6, MPI.DOUBLE], left, 0
    )
    expected = np.arange(6.0) + left
    assert kinds.values_of(into).tolist() == expected.tolist()
    behind = MPI.memory.fromaddress(received.address + 16, 0)
    requests = [
        comm.Irecv([behind, 4, MPI.DOUBLE], left),
        comm.Isend([sent, 2, strided], right),
    ]
    MPI.Request.Waitall(requests)
    expected[2:] = np.array([0, 2, 3, 5]) + left
    assert kinds.values_of(into).tolist() == expected.tolist()


@pytest.mark.parametrize("kind", ALL)
def test_so_it_is_where_a_datatype_begins_in_front(comm, kind):
    into = kinds.make(kind, np.zeros(6))
    behind = MPI.memory.fromaddress(pointer_of(into) + 16, 0)
    front = MPI.DOUBLE.Create_hindexed([1, 1], [-16, 8]).Commit()
    me = comm.rank
    comm.Sendrecv(np.array([5.0, 6]), me, 0, [behind, 1, front], me, 0)
    assert kinds.values_of(into).tolist() == [5, 0, 0, 6, 0, 0]
    front.Free()


def test_without_a_count_there_are_no_bytes(comm):
    out, into = np.ones(3), np.zeros(3)
    address = address_of(out)
    status = MPI.Status()
    me = comm.rank
    comm.Sendrecv([address, MPI.DOUBLE], me, 0, into, me, 0, status)
    assert status.Get_elements(MPI.BYTE) == 0
    empty = MPI.memory.frombuffer(np.zeros(0))
    short = [address_of(out, 8), MPI.DOUBLE]
    comm.Sendrecv(short, me, 0, into, me, 0, status)
    assert into.tolist() == [1, 0, 0]
    assert status.Get_elements(MPI.BYTE) == 8
    for buffer in np.zeros(0), empty, MPI.memory():
        with pytest.raises(ValueError, match=r"buf: 2 elements .* do not fit"):
            comm.Send([buffer, 2, MPI.DOUBLE], me)
    backwards = MPI.DOUBLE.Create_vector(2, 1, -1).Commit()
    with pytest.raises(ValueError, match="before its start"):
        comm.Send([out, 1, backwards], me)
    comm.Sendrecv([out, 1, 1, backwards], me, 0, into, me, 0)
    assert into.tolist() == [out[1], out[0], 0]
    backwards.Free()


@needs_gpu
def test_a_gpus_allocation_is_not_left(comm):
    array = kinds.make("foreign", np.zeros(4))
    for length in 0, 32:
        with pytest.raises(ValueError, match=r"buf: .* the allocation"):
            comm.Send([address_of(array, length), 5, MPI.DOUBLE], comm.rank)


@needs_gpu
@pytest.mark.parametrize("kind", ["device", "foreign", "managed"])
def test_whoever_writes_a_gpus_address_is_waited_for(comm, kind):
    """Nobody names a stream for it."""
    array = kinds.make(kind, np.zeros(100_000, "u1"))
    fill = kinds.driver().cuMemsetD8Async
    stream, me = wm.Stream(wm.get_device()), comm.rank
    for value, buffer in enumerate(
        (
            MPI.memory.fromaddress(pointer_of(array), 100_000),
            [address_of(array), 100_000, MPI.BYTE],
        )
    ):
        with kinds.Current(wm.get_device()):
            fill(
                ctypes.c_uint64(pointer_of(array)),
                ctypes.c_ubyte(value + 1),
                ctypes.c_size_t(100_000),
                ctypes.c_void_p(stream.cuda_stream),
            )
        comm.Sendrecv(buffer, me, 0, into := np.zeros(100_000, "u1"), me, 0)
        assert (into == value + 1).all()


@pytest.mark.parametrize("kind", ALL)
def test_persistent_requests(comm, kind, length):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    values = np.arange(6.0) + comm.rank
    _kept, into, sent, received = made(kind, length, values, [0] * 6)
    requests = [
        comm.Send_init([sent, 6, MPI.DOUBLE], right),
        comm.Recv_init([received, 6, MPI.DOUBLE], left),
    ]
    for _ in range(2):
        wm.Prequest.Startall(requests)
        MPI.Request.Waitall(requests)
    assert kinds.values_of(into).tolist() == (np.arange(6.0) + left).tolist()
    for request in requests:
        request.Free()


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("form", ["blocking", "nonblocking", "persistent"])
def test_a_count_tells_the_bytes_of_a_collective(comm, kind, length, form):
    size, me = comm.size, comm.rank

    def call(name, *args):
        if form == "blocking":
            getattr(comm, name)(*args)
        elif form == "nonblocking":
            getattr(comm, f"I{name[0].lower()}{name[1:]}")(*args).Wait()
        else:
            request = getattr(comm, f"{name}_init")(*args)
            request.Start()
            request.Wait()
            request.Free()

    values = np.arange(4.0) + me
    _kept, into, sent, received = made(kind, length, values, [0] * 4 * size)
    every = [np.arange(4.0) + rank for rank in range(size)]
    block = [sent, 4, MPI.DOUBLE]
    places = [4 * (size - 1 - rank) for rank in range(size)]

    def got():
        return kinds.values_of(into).reshape(size, 4).tolist()

    call("Allgather", block, [received, 4, MPI.DOUBLE])
    assert got() == np.stack(every).tolist()
    call("Allgatherv", block, [received, [4] * size, places, MPI.DOUBLE])
    assert got() == np.stack(every[::-1]).tolist()
    # Of one rank Open MPI ignores the datatypes in host memory.
    if size > 1:
        apart = MPI.DOUBLE.Create_vector(2, 1, 3).Commit()
        offsets = [8 * at for at in places]
        call(
            "Alltoallw",
            [sent, ([2] * size, [8] * size), [MPI.DOUBLE] * size],
            [received, ([1] * size, offsets), [apart] * size],
        )
        expected = np.stack(every[::-1])
        expected[:, [0, 3]] = expected[:, [1, 2]]
        assert got() == expected.tolist()
        apart.Free()
    call("Allreduce", block, [received, 4, MPI.DOUBLE])
    assert got()[0] == np.sum(every, 0).tolist()
    call("Bcast", [received, 4, MPI.DOUBLE], 0)
    call("Reduce", block, [received, (4, 0), MPI.DOUBLE], MPI.MAX, 0)
    if me == 0:
        assert got()[0] == every[-1].tolist()
    call("Scatter", [received, 1, MPI.DOUBLE], [sent, 1, MPI.DOUBLE], 0)


@needs_gpu
@pytest.mark.parametrize("kind", ["device", "foreign"])
def test_on_a_stream(comm, kind, length):
    size, me = comm.size, comm.rank
    stream = wm.Stream(wm.get_device())
    channel = comm.on(stream)
    values = np.arange(4.0) + me
    _kept, into, sent, received = made(kind, length, values, [0] * 4 * size)
    places = [4 * (size - 1 - rank) for rank in range(size)]
    try:
        channel.Allgatherv(
            [sent, 4, MPI.DOUBLE],
            [received, [4] * size, places, MPI.DOUBLE],
        )
    except NotImplementedError as error:
        pytest.skip(str(error))
    stream.synchronize()
    expected = [[r, r + 1, r + 2, r + 3] for r in range(size)][::-1]
    assert kinds.values_of(into).reshape(size, 4).tolist() == expected


@needs_gpu
def test_varying_blocks_at_an_address_stay_on_the_gpus(connected):
    """Which know how long it is."""
    comm, size = connected, connected.size
    values = [comm.rank] * 4
    _kept, into, sent, received = made("device", 8, values, [0] * 4 * size)
    before = wm.stats()["staged_collectives"]
    comm.Allgatherv([sent, 4, MPI.DOUBLE], [received, [4] * size, MPI.DOUBLE])
    comm.Alltoallw(
        [sent, ([1] * size, [0] * size), [MPI.DOUBLE] * size],
        [received, ([1] * size, range(0, 32 * size, 32)), [MPI.DOUBLE] * size],
    )
    assert kinds.values_of(into)[::4].tolist() == list(range(size))
    if size > 1:
        assert wm.stats()["staged_collectives"] == before


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("head", [None, MPI.BOTTOM], ids=["None", "BOTTOM"])
def test_datatypes_lead_from_nowhere_to_the_memory(comm, kind, head):
    size, me = comm.size, comm.rank
    mine, into, *_ = made(kind, 0, np.arange(4.0) + me, [0] * 4 * size)
    sent, received = (
        MPI.DOUBLE.Create_hindexed([4], [pointer_of(array)])
        .Create_resized(0, 32)
        .Commit()
        for array in (mine, into)
    )
    expected = [[r, r + 1, r + 2, r + 3] for r in range(size)]

    def check(turn):
        got = kinds.values_of(into).reshape(size, 4).tolist()
        assert got == expected[::turn]

    order = list(range(size))
    comm.Allgatherv(
        [MPI.BOTTOM, 1, sent], [head, ([1] * size, order), received]
    )
    check(1)
    comm.Iallgatherv(
        [MPI.BOTTOM, 1, sent], [head, [1] * size, order[::-1], received]
    ).Wait()
    check(-1)
    offsets = [32 * at for at in order]
    comm.Alltoallw(
        [head, ([1] * size, [0] * size), [sent] * size],
        (head, [1] * size, offsets, [received] * size),
    )
    check(1)
    ring = comm.Create_dist_graph_adjacent(order, order)
    first = pointer_of(mine)
    ring.Neighbor_alltoallw(
        [head, ([4] * size, [first] * size), [MPI.DOUBLE] * size],
        [
            head,
            ([4] * size, [pointer_of(into) + at for at in offsets[::-1]]),
            [MPI.DOUBLE] * size,
        ],
    )
    check(-1)
    ring.Free()
    sent.Free()
    received.Free()


def test_none_is_no_memory_of_a_message(comm):
    """As mpi4py has it: MPI.BOTTOM is."""
    with pytest.raises(ValueError, match="buf"):
        comm.Send([None, 1, MPI.INT], comm.rank)


@pytest.mark.parametrize("kind", ALL)
def test_a_displacement_is_within_the_length(comm, kind):
    """As mpi4py has it: the count alone is believed."""
    array = kinds.make(kind, np.zeros(8))
    for length, displacement in ((0, 1), (8, 2)):
        where = address_of(array, length)
        with pytest.raises(ValueError, match="displacement"):
            comm.Irecv([where, (1, displacement), MPI.DOUBLE], comm.rank)


# --- addresses in GPU memory and elsewhere -----------------------------------


class Mixed(Case):
    """Each buffer is MPI.BOTTOM with a datatype that leads to several."""

    def spec(self, form, array, counts, at):
        n = len(counts)
        if form == "v":
            return [MPI.BOTTOM, [1] * n, [0] * n, self.datatype]
        if form == "w":
            return [MPI.BOTTOM, [1] * n, [0] * n, [self.datatype] * n]
        return [MPI.BOTTOM, 1, self.datatype]


def of_two(places):
    blocks = MPI.BYTE.Create_hindexed([8] * len(places), places)
    made = blocks.Create_contiguous(1)
    blocks.Free()
    return made


MIXES = {
    "GPU and host": lambda gpu, other, host: MPI.Datatype.Create_struct(
        [3, 2], [gpu, host], [MPI.DOUBLE, MPI.INT]
    ),
    "GPU and far host": lambda gpu, other, host: of_two([gpu, host]),
    "two of a GPU": lambda gpu, other, host: MPI.Datatype.Create_struct(
        [3, 2], [gpu, other], [MPI.DOUBLE, MPI.INT]
    ),
    "inside": lambda gpu, other, host: of_two([host, gpu]),
}


@pytest.fixture(params=MIXES)
def mixed(request):
    arrays = [kinds.make("foreign", np.ones(10)) for _ in range(2)]
    host = np.ones(1 << 20 if "far" in request.param else 10)
    kind = MIXES[request.param](*map(pointer_of, [*arrays, host])).Commit()
    yield kind
    kind.Free()


@pytest.fixture(scope="module")
def ring(world):
    made = wm.Comm(world).Create_cart([world.size], [world.size > 2])
    yield made
    made.Free()


@needs_gpu
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_collectives_refuse_a_mix(ring, mixed, name, form):
    Mixed.datatype = mixed
    case = Mixed(ring, name, np.array)
    with pytest.raises(ValueError, match=r"buf: .* several allocations"):
        begun(ring, name, form, *case.args)
    settle(ring)


@needs_gpu
def test_a_rank_alone_may_try_again(ring, mixed):
    if ring.rank == 0:
        for name in "Bcast", "Ibcast":
            with pytest.raises(ValueError, match="several allocations"):
                getattr(ring, name)([MPI.BOTTOM, 1, mixed], 0)
    value = kinds.make("device", np.full(3, ring.rank + 1.0))
    ring.Bcast(value)
    ring.Ibcast(value).Wait()
    assert (kinds.values_of(value) == 1).all()


CALLS_OF_ONE = {
    **{
        name: lambda comm, name, spec: getattr(comm, name)(spec, comm.rank)
        for name in (
            "Send",
            "Isend",
            "Recv",
            "Irecv",
            "Send_init",
            "Recv_init",
        )
    },
    "Sendrecv": lambda comm, _, spec: comm.Sendrecv(
        spec, comm.rank, 0, np.ones(3), comm.rank, 0
    ),
    "Put": lambda comm, name, spec: in_window(name, spec),
    "Get": lambda comm, name, spec: in_window(name, spec),
    "Rput": lambda comm, name, spec: in_window(name, spec),
    "Accumulate": lambda comm, name, spec: in_window(name, spec),
    "Write_at": lambda comm, name, spec: in_file(name, spec),
    "Read_at": lambda comm, name, spec: in_file(name, spec),
    "Write_at_all": lambda comm, name, spec: in_file(name, spec),
    "Iread_at": lambda comm, name, spec: in_file(name, spec),
    "Write_at_all_begin": lambda comm, name, spec: in_file(name, spec),
}


def in_window(name, spec):
    window = MPI.Win.Create(np.ones(99), 1, comm=MPI.COMM_SELF)
    window.Lock(0)
    try:
        getattr(Staged(window), name)(spec, 0)
    finally:
        window.Unlock(0)
        window.Free()


def in_file(name, spec):
    mode = MPI.MODE_CREATE | MPI.MODE_RDWR | MPI.MODE_DELETE_ON_CLOSE
    path = os.path.join(tempfile.gettempdir(), f"mixed-{os.getpid()}")
    file = MPI.File.Open(MPI.COMM_SELF, path, mode)
    try:
        getattr(Staged(file), name)(0, spec)
    finally:
        file.Close()


@needs_gpu
@pytest.mark.parametrize("name", CALLS_OF_ONE)
def test_other_calls_refuse_a_mix(request, comm, mixed, name):
    if name in ("Put", "Get", "Rput", "Accumulate"):
        request.getfixturevalue("windows_of_one_rank")
    with pytest.raises(ValueError, match="several allocations"):
        CALLS_OF_ONE[name](comm, name, [MPI.BOTTOM, 1, mixed])


@needs_gpu
@pytest.mark.parametrize("name", ["Gather", "Gatherv", "Gather_init"])
def test_what_only_the_root_uses_may_be_anything(comm, mixed, name):
    """Addresses that MPI does not look at."""
    spec = [MPI.BOTTOM, 1, mixed]
    if name == "Gatherv":
        spec = [MPI.BOTTOM, [1] * comm.size, [0] * comm.size, mixed]
    got = np.zeros(3 * comm.size)
    request = getattr(comm, name)(np.ones(3), spec if comm.rank else got)
    if name == "Gather_init":
        request.Start()
        request.Wait()
        request.Free()
    assert comm.rank or (got == 1).all()
