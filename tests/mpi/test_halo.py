# SPDX-License-Identifier: BSD-3-Clause
"""Halo exchange: every ghost is what NumPy says, from global coordinates.

A point's value is the number of the global point that it is, or that it wraps
around to. Ghosts are -1 before an exchange, and those at the end of a grid
that is not periodic stay so.
"""

import contextlib
import ctypes
import gc
import itertools
import random
import threading

import numpy as np
import pytest
from mpi4py import MPI

import graphs
import kinds
import warpmpi as wm

RANKS = MPI.COMM_WORLD.size
GPU = wm.is_cuda_available()
KINDS = ["device", "host"] if GPU else ["host"]

ALL = -1  # calls of a driver function that fail

needs_gpu = pytest.mark.skipif(not GPU, reason="needs a GPU")


def dims_of(ndim):
    return MPI.Compute_dims(RANKS, ndim)


@pytest.fixture(params=["lines", "copies"])
def kernel(request, monkeypatch):
    """The kernel of short exchanges, or the other one."""
    if request.param == "copies":
        monkeypatch.setattr(World, "lines", 0)


class World:
    """A grid over all ranks: what each point of a block must hold."""

    lines = -1  # as is best (wm_halo_new)

    def __init__(self, dims, periods, own, width, corners, like=wm.zeros):
        plain = MPI.COMM_WORLD.Create_cart(dims, periods=periods)
        self.cart = wm.Comm(plain)
        self.plain = plain
        self.dims, self.periods = list(dims), list(periods)
        self.coords = plain.Get_coords(plain.rank)
        self.own, self.width = own, width
        self.corners = corners
        self.halo = wm.Halo(self.cart, width, corners, _lines=self.lines)

    def free(self):
        self.halo.free()
        self.plain.Free()

    def axis(self, d):
        """Of the points of a dimension: global index, ghost side, if any."""
        (low, high), own = self.width[d], self.own[d]
        ranks, at = self.dims[d], self.coords[d]
        index = np.arange(-low, own + high) + at * own
        side = np.zeros(len(index), int)
        side[:low], side[low + own :] = -1, 1
        there = (index >= 0) & (index < ranks * own)
        if self.periods[d]:
            there[:] = True
        return index % (ranks * own), side, there

    def shape(self):
        return tuple(
            low + own + high
            for own, (low, high) in zip(self.own, self.width, strict=True)
        )

    def arrays(self, seed=0):
        """The block before an exchange, and after it."""
        ndim = len(self.dims)
        axes = [self.axis(d) for d in range(ndim)]
        number = np.full(self.shape(), float(seed))
        ghosts = np.zeros(self.shape(), int)
        there = np.ones(self.shape(), bool)
        for d, (index, side, is_there) in enumerate(axes):
            to = [1] * ndim
            to[d] = -1
            extent = self.dims[d] * self.own[d]
            number = number * extent + index.reshape(to)
            # Beyond the end of the grid a point counts as one of the block.
            ghosts = ghosts + ((side != 0) & is_there).reshape(to)
            there = there & is_there.reshape(to)
        before = np.where((ghosts == 0) & there, number, -1.0)
        filled = there & (ghosts <= (ndim if self.corners else 1))
        return before, np.where(filled, number, -1.0)


def expected(world, seed=0):
    return world.arrays(seed)


CASES = [
    (ndim, periodic, corners)
    for ndim in (1, 2, 3)
    for periodic in (False, True)
    for corners in (False, True)
]


def check(world, array, after):
    got = array.numpy() if isinstance(array, wm.Array) else array
    np.testing.assert_array_equal(got, after)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ndim, periodic, corners", CASES)
def test_ghosts(kernel, ndim, periodic, corners, kind):
    world = World(
        dims_of(ndim),
        [periodic] * ndim,
        [4, 3, 5][:ndim],
        [(1, 1)] * ndim,
        corners,
    )
    before, after = world.arrays()
    u = wm.array(before, device=None if kind == "device" else "cpu")
    for _ in range(2):
        world.halo.exchange(u)
        check(world, u, after)
    world.free()


@needs_gpu
@pytest.mark.parametrize("periodic", [False, True])
@pytest.mark.parametrize(
    "width", [((2, 1), (0, 2)), ((1, 0), (3, 1))], ids=str
)
@pytest.mark.parametrize("own", [(3, 3), (4, 7)], ids=str)
def test_widths_differ_by_side(kernel, width, own, periodic):
    world = World(dims_of(2), [periodic] * 2, own, width, True)
    before, after = world.arrays()
    u = wm.array(before)
    world.halo.exchange(u)
    check(world, u, after)
    world.free()


@needs_gpu
@pytest.mark.parametrize(
    "dims", sorted(set(itertools.permutations((1, 1, RANKS))))
)
def test_a_periodic_dimension_of_few_ranks(dims):
    """West and east are told apart though one rank is both."""
    world = World(dims, [True] * 3, [1, 2, 1], [(1, 1)] * 3, True)
    before, after = world.arrays()
    u = wm.array(before)
    world.halo.exchange(u)
    check(world, u, after)
    world.free()


@needs_gpu
@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "complex128"])
def test_several_fields_in_a_graph_and_beside_it(kernel, dtype):
    """Replays, and calls on the stream, in turn."""
    world = World(dims_of(2), [True, False], [5, 4], [(1, 1)] * 2, True)
    stream = wm.Stream(wm.get_device())
    pairs = [world.arrays(seed) for seed in range(3)]
    fields = [wm.array(before.astype(dtype)) for before, _ in pairs]
    world.halo.exchange(*fields, stream=stream)
    with graphs.capture(stream) as made:
        world.halo.exchange(*fields, stream=stream)
    for turn in range(4):
        for field, (before, _) in zip(fields, pairs, strict=True):
            field.assign(before.astype(dtype))
        wm.synchronize_device(stream.device)
        if turn % 2:
            world.halo.exchange(*fields, stream=stream)
        else:
            made[0].launch(stream)
        stream.synchronize()
        for field, (_, after) in zip(fields, pairs, strict=True):
            check(world, field, after.astype(dtype))
    made[0].free()
    world.free()


@needs_gpu
def test_kernels_serve():
    """One exchange a call, and no message."""
    world = World(dims_of(2), [True] * 2, [4, 4], [(1, 1)] * 2, True)
    u = wm.array(world.arrays()[0])
    before = wm.stats()
    for _ in range(3):
        world.halo.exchange(u)
    now = wm.stats()
    assert now["halo_exchanges"] - before["halo_exchanges"] == 3
    edge = 4 * (6 * 6 - 4 * 4) * 8 // 4
    assert now["halo_bytes"] - before["halo_bytes"] == 3 * edge
    assert now["staged_halos"] == before["staged_halos"]
    assert now["sent_messages"] == before["sent_messages"]
    world.free()


@pytest.mark.parametrize(
    "kind, named",
    [(kind, False) for kind in KINDS] + [("device", True)] * GPU,
)
def test_start_and_finish(kind, named):
    world = World(dims_of(2), [True] * 2, [4, 4], [(1, 1)] * 2, True)
    before, after = world.arrays()
    u = wm.array(before, device=None if kind == "device" else "cpu")
    stream = wm.Stream(wm.get_device()) if named else None
    for _ in range(2):
        x = world.halo.start(u, stream=stream)
        x.finish()
        x.finish()
        if stream is not None:
            stream.synchronize()
        check(world, u, after)
    world.free()


@needs_gpu
@pytest.mark.parametrize("how", ["plan", "start"])
def test_many_in_a_graph(kernel, how):
    """A plan's first call may be captured; start() makes a branch."""
    world = World(dims_of(2), [True, False], [5, 4], [(1, 1)] * 2, True)
    stream = wm.Stream(wm.get_device())
    before, after = world.arrays()
    u = wm.array(before)
    wm.synchronize_device(stream.device)
    plan = world.halo.plan(u)
    with graphs.capture(stream) as made:
        for _ in range(20):
            if how == "plan":
                plan(stream=stream)
            else:
                world.halo.start(u, stream=stream).finish()
    for _ in range(3):
        made[0].launch(stream)
        stream.synchronize()
        check(world, u, after)
    plan(stream=stream)
    made[0].free()
    world.free()


@needs_gpu
def test_a_graph_keeps_fields_that_no_plan_has(kernel):
    world = World(dims_of(2), [True, False], [5, 4], [(1, 1)] * 2, True)
    stream = wm.Stream(wm.get_device())
    before, after = world.arrays()
    u, *others = (wm.array(before) for _ in range(20))
    world.halo.exchange(u)
    u.assign(before)
    wm.synchronize_device(stream.device)
    with graphs.capture(stream) as made:
        world.halo.exchange(u, stream=stream)
    for other in others:
        world.halo.exchange(other, stream=stream)
    for other in others:
        other.assign(before)
    wm.synchronize_device(stream.device)
    made[0].launch(stream)
    stream.synchronize()
    check(world, u, after)
    for other in others:
        np.testing.assert_array_equal(other.numpy(), before)
    made[0].free()
    world.free()


@needs_gpu
@pytest.mark.ranks(2)
@pytest.mark.skipif(kinds.is_real(), reason="needs the simulated driver")
def test_a_driver_error_is_no_end(kernel, fail):
    """What a halo frees is in use until its exchange has ended."""
    world = World(dims_of(1), [True], [200], [(1, 1)], False)
    before, after = world.arrays()
    u, stream = wm.array(before), wm.Stream(wm.get_device())
    wm.synchronize_device(stream.device)
    plan = world.halo.plan(u)
    world.plain.Barrier()
    if world.plain.rank == 1:
        world.plain.Recv(np.zeros(1), 0)
    plan(stream)
    if world.plain.rank == 0:
        fail("StreamCreateWithPriority")
        del plan, world.halo
        gc.collect()
        others = [wm.full(64 * n, -5.0) for n in range(1, 9)]
        for other in others:
            other.numpy()
        world.plain.Send(np.zeros(1), 1)
    stream.synchronize()
    check(world, u, after)
    world.plain.Free()


@needs_gpu
@pytest.mark.skipif(kinds.is_real(), reason="needs the simulated driver")
@pytest.mark.parametrize("lines", [0, 1 << 40])
def test_no_memory_is_left_for_lines(lines, fail, monkeypatch):
    """On one rank, and all copy. Later sets have lines, and share them."""
    monkeypatch.setattr(World, "lines", lines)
    world = World(dims_of(2), [True] * 2, [4, 4], [(1, 1)] * 2, True)
    before, after = world.arrays()
    parts = [np.arange(n << 14) for n in (1, 1, 1, 1, 2, 1)]
    fields = [wm.array(before[..., None] + each) for each in parts]
    wm.array(before).numpy()  # there is small memory
    found, made = [wm.stats()["halos_without_lines"]], []
    for turn, u in enumerate(fields):
        allocated = kinds.driver().simcuda_calls(b"MemAlloc")
        if turn == 0 and world.plain.rank == RANKS - 1:
            fail("MemAlloc", 2, ALL)
        world.halo.exchange(u)
        fail("MemAlloc", 0, 0)
        made.append(kinds.driver().simcuda_calls(b"MemAlloc") - allocated)
        found.append(wm.stats()["halos_without_lines"])
        wanted = after[..., None] + parts[turn]
        np.testing.assert_array_equal(u.numpy(), wanted)
    alone = 1 < RANKS <= wm.get_cuda_device_count()  # else no lines serve
    assert found[-1] == found[1] == found[0] + (alone and lines > 0)
    grown = made.pop(4)  # none, if memory of another test serves
    assert made[2:] == [0, 0, 0] and grown <= (alone and lines > 0)
    world.free()


@needs_gpu
@pytest.mark.parametrize("how", ["exchange", "plan", "start"])
def test_a_capture_that_fails_on_one_rank(kernel, how):
    """Its call raises, and meets nobody."""
    world = World(dims_of(2), [True, False], [5, 4], [(1, 1)] * 2, True)
    stream = wm.Stream(wm.get_device())
    before, after = world.arrays()
    u = wm.array(before)
    plan = world.halo.plan(u)
    calls = {
        "exchange": lambda: world.halo.exchange(u, stream=stream),
        "plan": lambda: plan(stream),
        "start": lambda: world.halo.start(u, stream=stream).finish(),
    }
    world.halo.exchange(u, stream=stream)
    stream.synchronize()
    if world.plain.rank == RANKS - 1:
        with (
            graphs.spoilt(stream),
            pytest.raises(RuntimeError, match="has failed: end the"),
        ):
            calls[how]()
    for _ in range(3):
        u.assign(before)
        wm.synchronize_device(stream.device)
        calls[how]()
        stream.synchronize()
        check(world, u, after)
    world.free()


@needs_gpu
@pytest.mark.parametrize("named", [True, False])
def test_nobody_meets_in_a_capture(kernel, named):
    """Where one rank gives wrong arguments, or captures alone, or first."""
    world = World(dims_of(1), [True], [4], [(1, 1)], False)
    before, after = world.arrays()
    u, v = (kinds.Foreign(6, "float64", "device") for _ in range(2))
    stream = u.stream
    name = {"stream": stream} if named else {}
    wrong = [("u", u), (), (np.zeros(6), u)] if named else [("u", u)]
    mistakes = (TypeError, ValueError, RuntimeError)
    world.halo.exchange(u)
    u.assign(before)
    wm.synchronize_device(u.device)
    with graphs.capture(stream) as made:
        for fields in wrong if world.plain.rank == 0 else ():
            for call in world.halo.exchange, world.halo.start:
                with pytest.raises(mistakes):
                    call(*fields, **name)
            with pytest.raises(mistakes):
                world.halo.reduce(*fields, **name)
        world.halo.exchange(u, **name)
        fresh = (u, v) if world.plain.rank == 0 else (u,)
        if fresh != (u,):
            with pytest.raises(RuntimeError, match="once before the capture"):
                world.halo.exchange(*fresh, **name)
        else:
            world.halo.exchange(*fresh, **name)
    made[0].free()
    with graphs.capture(stream) as made:
        world.halo.exchange(u, **name)
    made[0].launch(stream)
    stream.synchronize()
    check(world, u.numpy(), after)
    made[0].free()
    world.free()


@needs_gpu
@pytest.mark.parametrize("how", ["exchange", "start", "plan"])
def test_fields_of_several_streams_in_a_capture(kernel, how):
    """Which no argument names: the exchange is in the graph all the same."""
    world = World(dims_of(1), [True], [4], [(1, 1)], False)
    before, after = world.arrays()
    u, v = (kinds.Foreign(6, "float64", "device") for _ in range(2))
    w, source = wm.array(before), wm.array(before)
    got = [wm.zeros(6) for _ in range(2)]
    plan = world.halo.plan(w, u, v)
    wm.synchronize_device(u.device)
    calls = {
        "exchange": lambda: world.halo.exchange(w, u, v),
        "start": lambda: world.halo.start(w, u, v).finish(),
        "plan": plan,
    }
    with graphs.capture(u.stream) as made:
        copy(u.pointer, source.ptr, 48, u.stream)
        graphs.wait_for(v.stream, u.stream)
        copy(v.pointer, source.ptr, 48, v.stream)
        calls[how]()
        for field, result in zip((u, v), got, strict=True):
            copy(result.ptr, field.pointer, 48, field.stream)
        graphs.wait_for(u.stream, v.stream)
    check(world, w, before)  # not yet
    world.halo.free()  # which waits for no replay; the graph keeps the halo
    for _ in range(2):
        w.assign(before)
        wm.synchronize_device(u.device)
        made[0].launch(u.stream)
        u.stream.synchronize()
        for field in (w, *got):
            check(world, field, after)
            field.assign(before)
    world.plain.Free()
    made[0].free()


@needs_gpu
def test_an_exchange_beside_a_started_one_in_a_graph(kernel):
    """No stream of its fields is known, but ours is in the capture."""
    world = World(dims_of(1), [True], [4], [(1, 1)], False)
    before, after = world.arrays()
    u, v, stream = wm.array(before), wm.array(before), wm.Stream()
    for field in u, v:
        world.halo.plan(field)
    wm.synchronize_device(stream.device)
    with graphs.capture(stream) as made:
        begun = world.halo.start(u, stream=stream)
        world.halo.exchange(v)
        begun.finish()
    for field in u, v:
        check(world, field, before)
    made[0].launch(stream)
    stream.synchronize()
    for field in u, v:
        check(world, field, after)
    made[0].free()
    world.free()


@needs_gpu
def test_no_stream_is_known_in_a_capture():
    """A stream that the default stream is ordered with tells of it."""
    world = World(dims_of(1), [True], [4], [(1, 1)], False)
    before, after = world.arrays()
    u, device = wm.array(before), wm.get_device()
    world.halo.plan(u)
    wm.synchronize_device(device)
    halo = world.halo
    with graphs.blocking_stream(device) as stream:
        with graphs.capture(stream) as made:
            for call in halo.exchange, halo.start, halo.reduce:
                with pytest.raises(RuntimeError, match="give stream="):
                    call(u)
            halo.exchange(u, stream=stream)
        check(world, u, before)
        made[0].launch(stream)
        stream.synchronize()
        check(world, u, after)
        made[0].free()
    world.free()


@needs_gpu
def test_a_field_moves_on_one_rank():
    """The others learn of it; two places on one rank may take turns."""
    world = World(dims_of(2), [True] * 2, [4, 4], [(1, 1)] * 2, True)
    before, after = world.arrays()
    mine = [wm.array(before) for _ in range(3)]
    for turn in (0, 0, 1, 1, 0, 2, 2, 1):
        u = mine[turn if world.plain.rank == 0 else 0]
        for each in mine:
            each.assign(before)
        world.halo.exchange(u)
        check(world, u, after)
        others = [each for each in mine if each is not u]
        assert all((each.numpy() == before).all() for each in others)
    wm.synchronize_device(u.device)
    stream = wm.Stream(u.device)
    with graphs.capture(stream) as made:
        world.halo.exchange(u, stream=stream)
        if world.plain.rank == 0:  # the others would mean another one
            for other in (mine[0], mine[2]) if RANKS > 1 else ():
                with pytest.raises(RuntimeError, match="they are new"):
                    world.halo.exchange(other, stream=stream)
    u.assign(before)
    wm.synchronize_device(u.device)
    made[0].launch(stream)
    stream.synchronize()
    check(world, u, after)
    made[0].free()
    world.free()


@needs_gpu
def test_a_plan_outlives_what_moves_elsewhere():
    """Its fields are those of when it was made, on all ranks."""
    world = World(dims_of(1), [True], [4], [(1, 1)], False)
    before, after = world.arrays()
    mine = [wm.array(before) for _ in range(20)]
    plan = world.halo.plan(mine[0])
    for one in mine[1:]:
        world.halo.exchange(one if world.plain.rank == 0 else mine[0])
    for each in mine:
        each.assign(before)
    plan()
    check(world, mine[0], after)
    assert all((each.numpy() == before).all() for each in mine[1:])
    world.free()


def fails_everywhere(world, kind, text, *fields, halo=None):
    """Each rank raises, and names the argument."""
    with pytest.raises(kind, match=text):
        (halo or world.halo).exchange(*fields)


@pytest.mark.parametrize("kind", KINDS)
def test_errors_are_raised_on_all_ranks(kind):
    device = None if kind == "device" else "cpu"
    world = World(dims_of(2), [True] * 2, [4, 4], [(1, 1)] * 2, False)
    last = world.plain.rank == RANKS - 1
    before, after = world.arrays()
    u = wm.array(before, device=device)

    def other(shape, dtype="float64"):
        return wm.zeros(shape, dtype, device=device) if last else u

    world.halo.exchange(u)
    fails_everywhere(world, ValueError, r"fields\[0\].*dimensions", other(6))
    fails_everywhere(
        world, ValueError, r"fields\[0\]: dimension 1", other((6, 2))
    )
    fails_everywhere(world, TypeError, "fields", "u" if last else u)
    if RANKS > 1:
        fails_everywhere(world, TypeError, "float32", other((6, 6), "float32"))
        fails_everywhere(world, ValueError, "do not fit", other((6, 7)))
        fields = [u, wm.array(before, device=device)] if last else [u]
        fails_everywhere(world, ValueError, "same fields", *fields)
        for call in world.halo.plan, world.halo.reduce:
            with pytest.raises(ValueError, match=r"op: .* another call"):
                call(u) if last else world.halo.exchange(u)
    fails_everywhere(
        world, ValueError, r"shape=", *([u, wm.zeros((6, 7), device=device)])
    )
    world.halo.exchange(u)
    check(world, u, after)
    world.free()


@needs_gpu
@pytest.mark.skipif(wm.get_cuda_device_count() < 2, reason="needs two GPUs")
def test_a_stream_of_another_gpu_on_one_rank():
    """All raise, and the next exchange goes on."""
    world = World(dims_of(1), [True], [4], [(1, 1)], False)
    before, after = world.arrays()
    u = wm.array(before)
    ordinal = wm.get_device().ordinal
    if world.plain.rank == 0:
        ordinal = (ordinal + 1) % wm.get_cuda_device_count()
    stream = wm.Stream(f"cuda:{ordinal}")
    for _ in range(2):
        with pytest.raises(ValueError, match=r"stream: it is a stream of"):
            world.halo.exchange(u, stream=stream)
        world.halo.exchange(u)
    check(world, u, after)
    with pytest.raises(ValueError, match=r"stream: .* host memory"):
        world.halo.exchange(np.zeros(6), stream=wm.Stream(wm.get_device()))
    world.free()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("kind", KINDS)
def test_halos_that_ranks_make_differently(kind):
    plain = MPI.COMM_WORLD.Create_cart(dims_of(1), [True])
    first = plain.rank == 0
    u = wm.zeros(8, device=None if kind == "device" else "cpu")
    for halo in (wm.Halo(plain, 2 if first else 1), wm.Halo(plain, 1, first)):
        fails_everywhere(None, ValueError, "width, corners", u, halo=halo)
        halo.free()
    plain.Free()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("kind", KINDS)
def test_halos_that_ranks_mix_up(kind):
    plain = MPI.COMM_WORLD.Create_cart(dims_of(1), [True])
    halos = [wm.Halo(plain), wm.Halo(plain)]
    u = wm.zeros(8, device=None if kind == "device" else "cpu")
    for halo in halos:
        halo.exchange(u)
    mine = halos[plain.rank == 0]
    fails_everywhere(None, ValueError, "another wm.Halo", u, halo=mine)
    for halo in halos:
        halo.exchange(u)
        halo.free()
    plain.Free()


@pytest.mark.parametrize("kind", KINDS)
def test_fields_that_share_memory(kind):
    """But parts of elements of one array do not."""
    world = World(dims_of(1), [True], [4], [(1, 1)], False)
    before, after = world.arrays()
    u = wm.zeros((6, 2), device=None if kind == "device" else "cpu")
    u.assign(np.stack([before, before], 1))
    fails_everywhere(world, ValueError, "share memory", u, u)
    fails_everywhere(world, ValueError, "share memory", u[:, 0], u)
    world.halo.exchange(u[:, 0], u[:, 1])
    check(world, u, np.stack([after, after], 1))
    world.free()


@pytest.mark.parametrize("kind", KINDS)
def test_a_plan_stays_whatever_else_is_exchanged(kind):
    world = World(dims_of(1), [True], [4], [(1, 1)], False)
    before, after = world.arrays()
    device = None if kind == "device" else "cpu"
    u = wm.array(before, device=device)
    plan = world.halo.plan(u)
    for n in range(40):
        world.halo.exchange(wm.zeros((6, 1 + n % 20), "int8", device=device))
    plan()
    check(world, u, after)
    world.free()


@pytest.mark.parametrize("kind", KINDS)
def test_a_width_beyond_the_block(kind):
    world = World(dims_of(1), [True], [4], [(5, 1)], False)
    u = wm.zeros(world.shape(), device=None if kind == "device" else "cpu")
    fails_everywhere(
        world, ValueError, r"fields\[0\]: dimension 0 .* width", u
    )
    world.free()


def test_arguments():
    plain = MPI.COMM_WORLD.Create_cart(dims_of(2))
    with pytest.raises(TypeError, match="cart: give a cartesian"):
        wm.Halo(MPI.COMM_WORLD)
    with pytest.raises(TypeError, match=r"cart: it is MPI.COMM_NULL"):
        wm.Halo(MPI.COMM_NULL)
    for width in (-1, (1, 2, 3), ((1, -1), 1), "1", 1.0, 1 << 62, ((1,), 2)):
        with pytest.raises(ValueError, match="width"):
            wm.Halo(plain, width)
    with pytest.raises(ValueError, match="shape"):
        wm.Halo(plain, shape=(1, 2, 3))
    halo = wm.Halo(plain, (1, (2, 0)), corners=True)
    assert halo.width == ((1, 1), (2, 0)) and halo.corners
    assert repr(halo).startswith("<warpmpi.Halo of ")
    with pytest.raises(TypeError, match="no argument"):
        halo.exchange(np.zeros((4, 4)), streams=None)
    halo.free()
    with pytest.raises(RuntimeError, match="freed"):
        halo.exchange(np.zeros((4, 4)))
    plain.Free()


@needs_gpu
def test_a_plan_notices_that_a_field_has_moved():
    class Field:
        def __init__(self, array):
            self.array = array

        @property
        def __cuda_array_interface__(self):
            return self.array.__cuda_array_interface__

    world = World(dims_of(1), [True], [4], [(1, 1)], False)
    before, after = world.arrays()
    field = Field(wm.array(before))
    plan = world.halo.plan(field)
    plan()
    check(world, field.array, after)
    field.array = wm.array(before)
    with pytest.raises(RuntimeError, match=r"other memory.*make a new"):
        plan()
    world.free()


def reduced(world, operation):
    """What a block holds after a reduction of the numbers that arrays() has.

    Computed from all blocks: the value of a ghost goes to the point it is of.
    """
    before, _ = world.arrays()
    field = before + world.plain.rank + 1.0
    ndim = len(world.dims)
    all_fields = world.plain.allgather(field)
    all_coords = world.plain.allgather(tuple(world.coords))
    own = field.copy()
    axes = {}
    for coords in all_coords:
        there = World.__new__(World)
        there.__dict__ = dict(vars(world), coords=coords)
        axes[coords] = [there.axis(d) for d in range(ndim)]
    mine = axes[tuple(world.coords)]
    # Where a point of the grid lies in this block; beyond its ends likewise.
    for direction in itertools.product((-1, 0, 1), repeat=ndim):
        moves = sum(map(abs, direction))
        if moves == 0 or (moves > 1 and not world.corners):
            continue
        to = [c + s for c, s in zip(world.coords, direction, strict=True)]
        for d in range(ndim):
            if world.periods[d]:
                to[d] %= world.dims[d]
        if tuple(to) not in all_coords:
            continue
        theirs = all_fields[all_coords.index(tuple(to))]
        edge, ghosts = [], []
        for d, step in enumerate(direction):
            low, high = world.width[d]
            n = theirs.shape[d]
            if step == 0:
                side = mine[d][1]
                keep = ~((side != 0) & mine[d][2])
                edge.append(np.flatnonzero(keep))
                ghosts.append(np.flatnonzero(keep))
            elif step < 0:
                edge.append(np.arange(low, low + high))
                ghosts.append(np.arange(n - high, n))
            else:
                edge.append(np.arange(n - high - low, n - high))
                ghosts.append(np.arange(low))
        edge, ghosts = np.ix_(*edge), np.ix_(*ghosts)
        own[edge] = operation(own[edge], theirs[ghosts])
    return field, own


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "op, operation",
    [(MPI.SUM, np.add), (MPI.MAX, np.maximum)],
    ids=["sum", "max"],
)
@pytest.mark.parametrize("periodic, corners", [(True, True), (False, False)])
@pytest.mark.parametrize("own", [(4, 5), (1, 2)], ids=str)
def test_reduce(kind, op, operation, periodic, corners, own):
    world = World(dims_of(2), [periodic] * 2, own, [(1, 1)] * 2, corners)
    before, after = reduced(world, operation)
    fields = [
        wm.array(before, device=None if kind == "device" else "cpu")
        for _ in range(2)
    ]
    for _ in range(2):
        for u in fields:
            u.assign(before)
        world.halo.reduce(*fields, op=op)
        for u in fields:
            check(world, u, after)
    world.halo.exchange(fields[0])
    world.free()


@needs_gpu
def test_reduce_in_three_dimensions_in_a_graph():
    world = World(
        dims_of(3), [True] * 3, (2, 3, 2), [(1, 1), (0, 2), (1, 0)], True
    )
    before, after = reduced(world, np.add)
    u = wm.array(before)
    stream = wm.Stream(wm.get_device())
    world.halo.reduce(u, stream=stream)
    with graphs.capture(stream) as made:
        world.halo.reduce(u, stream=stream)
    stream.synchronize()
    for _ in range(2):
        u.assign(before)
        wm.synchronize_device(stream.device)
        made[0].launch(stream)
        stream.synchronize()
        check(world, u, after)
    made[0].free()
    world.free()


@pytest.mark.parametrize("kind", KINDS)
def test_operations_that_are_none(kind):
    world = World(dims_of(1), [True], [4], [(1, 1)], False)
    u = wm.zeros(world.shape(), device=None if kind == "device" else "cpu")
    with pytest.raises(TypeError, match=r"op: MPI does not reduce"):
        world.halo.reduce(u, op=MPI.BAND)
    with pytest.raises(ValueError, match="op: it reduces nothing"):
        world.halo.reduce(u, op=MPI.REPLACE)
    world.free()


@pytest.mark.parametrize("kind", KINDS)
def test_grid(kind):
    """Blocks of unequal size, coordinates, and the whole on one rank."""
    grid = wm.Grid((7, 9), MPI.COMM_WORLD, (True, False), (1, (2, 1)))
    assert grid.cart.size == RANKS and grid.dims == tuple(dims_of(2))
    x, y = (grid.coords(np.empty(grid.local_shape), d) for d in range(2))
    whole = np.arange(63.0).reshape(7, 9)
    mine = np.full(grid.local_shape, -1.0)
    mine[grid.slices] = whole[grid.global_slices]
    u = wm.array(mine, device=None if kind == "device" else "cpu")
    grid.halo.exchange(u)
    inside = (y >= 0) & (y < 9)
    rows = x.astype(int) % 7
    wanted = np.where(inside, whole[np.ix_(rows, y.astype(int) % 9)], -1)
    got = u.numpy()
    ghosts = np.ones((len(x), len(y)), int)
    ghosts[grid.slices[0]] -= 1
    outside = np.ones((len(x), len(y)), bool)
    outside[:, grid.slices[1]] = False
    corner = (ghosts == 1) & outside & inside
    np.testing.assert_array_equal(got[~corner], wanted[~corner])
    gathered = grid.gather(u)
    assert (gathered is None) == (MPI.COMM_WORLD.rank != 0)
    if gathered is not None:
        np.testing.assert_array_equal(gathered, whole)
    with pytest.raises(ValueError, match="u: its shape"):
        grid.coords(np.empty((2, 2)), 0)
    last = MPI.COMM_WORLD.rank == RANKS - 1
    told = "" if last else f"rank {RANKS - 1}: "
    with pytest.raises(ValueError, match=rf"^{told}u: its shape \(2, 2\) is"):
        grid.gather(np.empty((2, 2)) if last else u)
    grid.free()
    with pytest.raises(ValueError, match="fewer points"):
        wm.Grid((RANKS - 1,), MPI.COMM_WORLD)
    with pytest.raises(ValueError, match="width: 3 is more than"):
        wm.Grid((2 * RANKS,), MPI.COMM_WORLD, width=3)
    with pytest.raises(TypeError, match="shape: 10"):
        wm.Grid(10, MPI.COMM_WORLD)
    with pytest.raises(TypeError, match="comm: give"):
        wm.Grid((10,), None)


@pytest.mark.parametrize("kind", KINDS)
def test_staggered_fields(kind):
    """Points between those of the block: both ranks have the shared ones."""
    grid = wm.Grid(
        (4 * RANKS, 5), MPI.COMM_WORLD, (True, False), 1, dims=(0, 1)
    )
    n, m = grid.local_shape
    device = None if kind == "device" else "cpu"
    fields, wanted = [], []
    for more in (0, 1, -1):
        mine = np.full((n + more, m), -1.0)
        x = grid.coords(mine, 0) % (4 * RANKS)
        value = np.tile((x + 1)[:, None], (1, m))
        before = value.copy()
        if more >= 0:
            before[[0, -1]] = -1
        fields.append(wm.array(before, device=device))
        wanted.append(value)
    grid.halo.exchange(*fields)
    for field, after in zip(fields, wanted, strict=True):
        np.testing.assert_array_equal(field.numpy(), after)
    grid.free()


DTYPES = ["int8", "uint16", "float32", "int64", "complex128"]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", KINDS)
def test_random_fields(kernel, seed, kind):
    """Any layout: reordered and reversed dimensions, gaps, parts of elements.

    All ranks draw the same, but each lays its own arrays out.
    """
    common = random.Random(seed)
    mine = random.Random(seed * 100 + MPI.COMM_WORLD.rank)
    ndim = common.randint(1, 3)
    width = [(common.randint(0, 2), common.randint(0, 2)) for _ in range(ndim)]
    own = [max(1, *each) + common.randint(0, 3) for each in width]
    dims = MPI.Compute_dims(RANKS, ndim)
    common.shuffle(dims)
    periods = [common.random() < 0.6 for _ in range(ndim)]
    world = World(dims, periods, own, width, common.random() < 0.5)
    fields, wanted = [], []
    for number in range(common.randint(1, 4)):
        dtype = common.choice(DTYPES)
        inner = [common.randint(1, 3) for _ in range(common.randint(0, 2))]
        parts = np.arange(int(np.prod(inner))).reshape(inner)
        arrays = [
            (each.reshape(each.shape + (1,) * len(inner)) * 7 + parts)
            .astype("int64")
            .astype(dtype)
            for each in world.arrays(number)
        ]
        fields.append(laid_out(mine, arrays[0], kind))
        wanted.append(arrays[1])
    for _ in range(2):
        world.halo.exchange(*fields)
        for field, after in zip(fields, wanted, strict=True):
            np.testing.assert_array_equal(field.numpy(), after)
    world.free()


def laid_out(chosen, values, kind):
    """The values in a view of a larger array, in any order of memory."""
    order = list(range(values.ndim))
    chosen.shuffle(order)
    steps = [chosen.choice([1, 1, -1, 2]) for _ in order]
    before = [chosen.randint(0, 2) for _ in order]
    shape = [
        2 * b + abs(s) * values.shape[d]
        for d, s, b in zip(order, steps, before, strict=True)
    ]
    whole = wm.zeros(
        shape, values.dtype, device=None if kind == "device" else "cpu"
    )
    index = []
    for d, s, b in zip(order, steps, before, strict=True):
        n = values.shape[d]
        last = b + n - 1
        stop = b - 1 if b > 0 else None
        index.append(
            slice(last, stop, -1) if s < 0 else slice(b, b + s * n, s)
        )
    view = whole[tuple(index)].transpose(
        *[order.index(d) for d in range(values.ndim)]
    )
    view.assign(values)
    return view


def copy(dst, src, nbytes, stream):
    """By the driver, as another library does on a stream of its own."""
    with kinds.Current(stream.device):
        graphs.call(
            "cuMemcpyAsync",
            ctypes.c_uint64(dst),
            ctypes.c_uint64(src),
            ctypes.c_size_t(nbytes),
            graphs.handle(stream),
        )


@needs_gpu
@pytest.mark.parametrize("how", ["current", "named", "started", "planned"])
def test_the_producer_is_awaited(kernel, how):
    """The stream that is still to write a field, and the one that reads it."""
    world = World(dims_of(1), [True], [4], [(1, 1)], False)
    before, after = world.arrays()
    u = kinds.Foreign(6, "float64", "device")
    other = wm.Stream(u.device) if how == "named" else u.stream
    source, got = wm.array(before), wm.zeros(6)
    world.halo.exchange(u)
    plan = world.halo.plan(u)
    wm.synchronize_device(u.device)
    for _ in range(2):
        u.assign(np.full(6, -7.0))
        with kinds.Gate() as gate:
            gate.stop(u.stream)
            copy(u.pointer, source.ptr, 48, u.stream)
            if how == "started":
                world.halo.start(u).finish()
            elif how == "planned":
                plan()
            else:
                world.halo.exchange(
                    u, stream=other if how == "named" else None
                )
            copy(got.ptr, u.pointer, 48, other)
        other.synchronize()
        np.testing.assert_array_equal(got.numpy(), after)
    wm.synchronize_device(u.device)
    world.free()


@needs_gpu
def test_streams_in_turn(kernel):
    """An exchange on a stream comes behind the one before, on another."""
    world = World(dims_of(2), [True] * 2, [4, 4], [(1, 1)] * 2, True)
    before, after = world.arrays()
    u, v = wm.array(before), wm.array(before)
    plan = world.halo.plan(u, v)
    for turn in range(6):
        stream = wm.Stream(wm.get_device())
        if turn % 2:
            plan(stream)
        else:
            world.halo.exchange(u, v, stream=stream)
        if turn % 3 == 0:
            del stream  # its work goes on
            gc.collect()
    world.halo.exchange(u, v)
    check(world, u, after)
    check(world, v, after)
    world.free()


@needs_gpu
def test_a_halo_that_is_dropped_waits_for_nobody():
    """Though its exchange waits for a neighbour, which comes later."""
    world = World(dims_of(1), [True], [4], [(1, 1)], False)
    before, after = world.arrays()
    u = wm.array(before)
    plan = world.halo.plan(u)
    stream = wm.Stream(wm.get_device())
    wm.synchronize_device(stream.device)
    if world.plain.rank == 0:
        plan(stream)
        del plan, world.halo
        gc.collect()
    MPI.COMM_WORLD.Barrier()
    if world.plain.rank > 0:
        plan(stream)
        del plan, world.halo
    stream.synchronize()
    check(world, u, after)
    MPI.COMM_WORLD.Barrier()
    world.plain.Free()
    again = World(dims_of(1), [True], [4], [(1, 1)], False)  # frees the other
    again.halo.exchange(u)
    again.free()


@needs_gpu
@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_more_ghosts_than_lines_serve(ndim, monkeypatch):
    """Other kernels than those of short exchanges, in turn with these."""
    monkeypatch.setattr(World, "lines", 1 << 18)
    world = World(
        dims_of(ndim),
        [True, False, True][:ndim],
        [3, 4, 3][:ndim],
        [(1, 1), (1, 1), (1, 1)][:ndim],
        True,
    )
    before, after = world.arrays()
    parts = np.arange(20_000)
    u = wm.array(before[..., None] + parts * 1e-6)
    wanted = after[..., None] + parts * 1e-6
    unfilled = (after == -1) & (before == -1)
    wanted[unfilled] = (before[..., None] + parts * 1e-6)[unfilled]
    short, stream = wm.array(before), wm.Stream(wm.get_device())
    wm.synchronize_device(stream.device)
    plan = world.halo.plan(u)
    with graphs.capture(stream) as made:
        for _ in range(2):
            plan(stream)
            world.halo.plan(short)(stream)
    made[0].launch(stream)
    world.halo.exchange(u, stream=stream)
    world.halo.exchange(short, stream=stream)
    stream.synchronize()
    filled = (after != -1) | unfilled
    np.testing.assert_array_equal(u.numpy()[filled], wanted[filled])
    check(world, short, after)
    made[0].free()
    world.free()


@needs_gpu
def test_a_reduction_ends_after_its_sums():
    """What free() gives back is still written until then."""
    for _ in range(4):
        world = World(dims_of(1), [True], [200], [(1, 1)], False)
        before, after = reduced(world, np.add)
        u = wm.array(before)
        stream = wm.Stream(wm.get_device())
        world.halo.reduce(u, stream=stream)
        stream.synchronize()
        u.assign(before)
        wm.synchronize_device(stream.device)
        world.halo.reduce(u, stream=stream)
        world.halo.free()
        others = [wm.full(64 * n, -5.0) for n in range(1, 9)]
        for other in others:
            other.numpy()
        stream.synchronize()
        check(world, u, after)
        world.plain.Free()


@needs_gpu
@pytest.mark.parametrize("how", ["dropped", "freed"])
def test_a_graph_keeps_its_halo(kernel, how):
    world = World(dims_of(2), [True, False], [5, 4], [(1, 1)] * 2, True)
    stream = wm.Stream(wm.get_device())
    before, after = world.arrays()
    u = wm.array(before)
    wm.synchronize_device(stream.device)
    plan = world.halo.plan(u)
    with graphs.capture(stream) as made:
        for _ in range(2):
            plan(stream=stream)
    if how == "freed":
        world.halo.free()
    del plan, world.halo
    gc.collect()
    again = World(dims_of(2), [True] * 2, [5, 4], [(1, 1)] * 2, True)
    v = wm.array(before)
    for _ in range(2):
        u.assign(before)
        wm.synchronize_device(stream.device)
        made[0].launch(stream)
        again.halo.exchange(v)
        stream.synchronize()
        check(world, u, after)
    made[0].free()
    again.free()
    world.plain.Free()


@pytest.mark.ranks(2)
def test_arguments_that_one_rank_gets_wrong():
    plain = MPI.COMM_WORLD.Create_cart(dims_of(1), [True])
    last = plain.rank == RANKS - 1
    with pytest.raises(ValueError, match=r"width: .* is no width"):
        wm.Halo(plain, "1" if last else 1)
    with pytest.raises(ValueError, match="fewer points"):
        wm.Grid([1 if last else 100], plain)
    with pytest.raises(ValueError, match="width: 60 is more than"):
        wm.Grid([100], plain, width=60 if last else 1)
    plain.Free()


def test_halos_by_messages_share_a_communicator():
    """It ends with the user's: free() of a halo is local."""
    plain = MPI.COMM_WORLD.Create_cart(dims_of(1), [True])
    channels = []
    for _ in range(3):
        halo = wm.Halo(plain)
        halo.exchange(np.zeros(6))
        channels.append(halo._channel())
        halo.free()
    assert channels[0] is channels[1] is channels[2]
    plain.Free()
    assert channels[0] == MPI.COMM_NULL


@needs_gpu
def test_threads_take_turns():
    """Also where one frees the halo while others are in calls."""
    plain = MPI.COMM_SELF.Create_cart([1], [True])
    halo = wm.Halo(plain)
    fields = [[wm.zeros(n) for n in range(6, 30)] for _ in range(3)]
    begun = threading.Barrier(4)

    def work(mine):
        begun.wait()
        with contextlib.suppress(RuntimeError):  # freed
            for _ in range(20):
                for field in mine:
                    halo.exchange(field)

    threads = [threading.Thread(target=work, args=[f]) for f in fields]
    for thread in threads:
        thread.start()
    begun.wait()
    for each in fields[0]:
        halo.exchange(each)
    halo.free()
    for thread in threads:
        thread.join()
    plain.Free()
