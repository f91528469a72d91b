# SPDX-License-Identifier: BSD-3-Clause
"""Random collectives that GPUs do by kernels which wait for each other.

    SIMCUDA_DEVICES=4 mpirun -n 4 python tests/random_kernels.py --seed 7 \\
        --collectives 100000 --seconds 60 --verbose

Such kernels serve where each rank has a GPU to itself: there short blocks go
by LL, longer ones by LL128 and Simple, and lengths are drawn
around all that one switches at; --points has them switch elsewhere, so that
short blocks go the ways of long ones. A batch of calls is made blocking, on
streams or in a graph which is replayed, on one of several communicators, and
each byte of what was sent and received is verified, with what lies around it.
All ranks make the same plan from the seed; which stream, which graph's pause
and where in memory is each rank's own choice. A failure tells how to see it
again.
"""

import random
import sys
import time

import numpy as np
from mpi4py import MPI

import graphs
import random_blocks as blocks
import random_ranks as lives
import random_values as values
import warpmpi as wm
from cases import NAMES as CALLS
from cases import REDUCED, REDUCTIONS, ROOTED, TABLE, called
from warpmpi import _core
from warpmpi._points import NAMES

EPOCH = 25  # batches on the same communicators
MOST = 6  # calls of a batch
FORMS = "blocking", "stream", "request", "graph"
EDGES = 0, 8, 16, 112, 128, 512, 4096, 16384, 65536, 262144, 1 << 20, 2 << 20
GUARD = 48  # bytes around what is given


class Wrong(AssertionError):
    """Memory that does not hold what it must."""


class View:
    """Elements of any address, as a foreign array shows them."""

    def __init__(self, memory, element, stream):
        self.memory = memory  # bytes
        self.__cuda_array_interface__ = {
            **memory.__cuda_array_interface__,
            "shape": (memory.size // element.width,),
            "typestr": element.numpy.str,
            "stream": stream.cuda_stream,
        }


class Piece:
    """Memory of this rank that a call is given, and what it must hold."""

    def __init__(self, element, cells, typed, lead, stream):
        width = element.width
        lead = lead * width if typed else lead
        self.element, self.typed = element, typed
        self.at = slice(lead, lead + cells.size)
        self.start = np.full(lead + cells.size + GUARD // width * width, 0xA5)
        self.start = self.start.astype(np.uint8)
        self.start[self.at] = cells
        self.right = self.start.copy()
        kind = element.numpy if typed else np.dtype("u1")
        self.memory = wm.array(self.start.view(kind), device=wm.get_device())
        size = kind.itemsize
        self.given = self.memory[self.at.start // size : self.at.stop // size]
        if not typed and not element.is_pair:
            self.given = View(self.given, element, stream)

    def restore(self):
        self.memory.assign(self.start.view(self.memory.dtype))

    def expect(self, cells, first=0, step=1):
        """What comes, from an element on."""
        width = self.element.width
        begin = self.at.start + first * width
        into = self.right[begin : begin + cells.size * step]
        into.reshape(-1, step, width)[:, 0] = cells.reshape(-1, width)

    def spec(self, parts=None):
        """As mpi4py takes it; parts: counts and places, maybe types."""
        base = self.element.base if self.element.is_pair else None
        words = [self.given, *(parts or [])]
        if base is not None:
            words.append(base)
        return words if len(words) > 1 else self.given

    def difference(self):
        found = self.memory.numpy().view(np.uint8)
        if np.array_equal(found, self.right):
            return None
        inside, right = found[self.at], self.right[self.at]
        bad = np.flatnonzero(found != self.right)
        text = (
            f"{len(bad)} wrong bytes, from {bad[0] - self.at.start} to "
            f"{bad[-1] - self.at.start} of {inside.size}"
        )
        around = np.delete(np.arange(found.size), np.r_[self.at])
        if np.array_equal(found[around], self.right[around]):
            at = values.differs(self.element.name, inside, right)
            return None if at is None else text
        return text + ", some around it"


class Call:
    """A collective: what all ranks have for it."""

    def __init__(self, runner, comm, draw, key):
        self.comm, self.key, self.runner = comm, key, runner
        self.rank, self.size = comm.rank, comm.size
        self.name = draw.choice(CALLS)
        near = runner.near[key[-1]]
        if self.name in blocks.NEAR and near is None:
            self.name = draw.choice(["Alltoallv", "Alltoallw"])
        reduces = self.name in REDUCTIONS
        names = [*values.NAMES, *(values.PAIRS if reduces else ())]
        self.element = values.element(draw.choice(names))
        self.op = None
        if reduces:
            ops = [
                op
                for op in values.ops_of(self.element, "can" not in self.name)
                if not op.startswith("a user's")
            ]
            self.op = draw.choice(ops)
        self.root = draw.randrange(self.size)
        fixed = self.name[-1] == "v" or self.name in blocks.NAMES
        self.in_place = not fixed and draw.random() < 0.35
        self.drawn_in_place = self.in_place  # by all ranks
        self.count = self.length(draw)
        self.counts = [
            [
                draw.choice([0, self.count, self.count // 2, self.count + 1])
                for _ in range(self.size)
            ]
            for _ in range(self.size)
        ]
        self.typed = not self.element.is_pair and (
            self.element.name == "bfloat16" or draw.random() < 0.7
        )
        self.pieces, self.blocks = {}, None
        if self.name in blocks.NAMES:
            table = near if self.name in blocks.NEAR else None
            self.blocks = blocks.Blocks(
                self.name,
                table or blocks.Complete(self.size),
                self.rank,
                self.count,
                draw,
            )
            self.blocks.lay(self, self.element.width)
        else:
            self.lay()

    def length(self, draw):
        """Elements of a block."""
        most = self.runner.options.max_bytes
        edges = [edge for edge in EDGES if edge <= most]
        weights = [1 / (1 + edge / 65536) for edge in edges]
        edge = draw.choices(edges, weights)[0]
        nbytes = edge + draw.choice([0, 0, -1, 1, 2, 7, 100])
        if draw.random() < 0.3:
            nbytes = draw.randrange(edge + 1)
        if draw.random() < 0.04:
            nbytes = draw.randrange(most + 1)
        if draw.random() < 0.3:  # parts of one length
            nbytes -= nbytes % (16 * self.runner.world.size)
        if "ll" in self.name and self.name not in ("Allreduce",):
            nbytes = nbytes // 2 if nbytes > 1 << 20 else nbytes
        return max(0, nbytes) // self.element.width

    def cells(self, rank, elements):
        """What a rank has."""
        key = (*self.key, rank)
        return self.runner.contents.of(
            key, self.element.name, self.op, elements
        )

    def fold(self, parts):
        if not parts:
            return None
        made = values.fold(self.element.name, self.op, parts)
        return np.ascontiguousarray(made).view(np.uint8)

    def piece(self, which, elements, cells=None):
        local, width = self.runner.local, self.element.width
        if cells is None:
            cells = np.full(elements * width, 0x5C, np.uint8)
        lead = local.randrange(GUARD) if local.random() < 0.6 else 0
        if not self.typed and local.random() < 0.5:
            lead *= width
        stream = self.runner.streams[0]
        made = Piece(self.element, cells, self.typed, lead, stream)
        self.pieces[which] = made
        return made

    def lay(self):
        name, rank, size, root = self.name, self.rank, self.size, self.root
        n, width, counts = self.count, self.element.width, self.counts[0]
        at_root = rank == root

        def block(cells, index, elements=n):
            first = index * elements * width
            return cells[first : first + elements * width]

        def side(which, elements, cells=None):
            return self.piece(which, elements, cells)

        if name == "Bcast":
            start = self.cells(root, n) if at_root else None
            side("recv", n, start).expect(self.cells(root, n))
        elif name in REDUCTIONS and "scatter" not in name:
            parts = [self.cells(k, n) for k in range(size)]
            made = self.fold(REDUCED[name](parts, rank))
            receives = not TABLE[name].to_root or at_root
            own = self.cells(rank, n)
            self.in_place = self.in_place and receives
            if not self.in_place:
                side("send", n, own)
            if receives:
                into = side("recv", n, own if self.in_place else None)
                if made is not None:
                    into.expect(made)
        elif name in REDUCTIONS:
            if name == "Reduce_scatter_block":
                counts = self.counts[0] = [n] * size
            total, first = sum(counts), sum(counts[:rank])
            parts = [
                self.cells(k, total)[first * width :][: counts[rank] * width]
                for k in range(size)
            ]
            own = self.cells(rank, total)
            if not self.in_place:
                side("send", total, own)
            into = (
                side("recv", total, own)
                if self.in_place
                else side("recv", counts[rank])
            )
            into.expect(self.fold(parts))
        elif name in ("Gather", "Allgather", "Gatherv", "Allgatherv"):
            if name[-1] != "v":
                counts = self.counts[0] = [n] * size
            receives = "All" in name or at_root
            self.in_place = self.in_place and receives
            gap = name[-1] == "v"
            self.places = [sum(counts[:k]) + k * gap for k in range(size)]
            if receives:
                into = side("recv", sum(counts) + size * gap)
                for k in range(size):
                    into.expect(self.cells(k, counts[k]), self.places[k])
                if self.in_place:
                    first = into.at.start + self.places[rank] * width
                    own = slice(first, first + counts[rank] * width)
                    into.start[own] = into.right[own]
                    into.restore()
            if not self.in_place:
                side("send", counts[rank], self.cells(rank, counts[rank]))
        elif name in ("Scatter", "Scatterv"):
            if name[-1] != "v":
                counts = self.counts[0] = [n] * size
            gap = name[-1] == "v"
            self.places = [sum(counts[:k]) + k * gap for k in range(size)]
            total = sum(counts) + size * gap
            whole = self.cells(root, total)
            self.in_place = self.in_place and at_root
            if at_root:
                side("send", total, whole)
            if not self.in_place:
                first = self.places[rank] * width
                into = side("recv", counts[rank])
                into.expect(whole[first : first + counts[rank] * width])
        elif name == "Alltoall":
            own = self.cells(rank, n * size)
            if not self.in_place:
                side("send", n * size, own)
            into = side("recv", n * size, own if self.in_place else None)
            for k in range(size):
                into.expect(block(self.cells(k, n * size), rank), k * n)
        else:
            raise LookupError(f"random_kernels.py: lay() knows no {name}")

    def arguments(self):
        name, pieces = self.name, self.pieces
        parts = {}
        if name in blocks.NAMES:
            for which in pieces:
                parts[which] = self.blocks.words(which, self.element.width)
        else:
            forms = {"send": TABLE[name].sends, "recv": TABLE[name].receives}
            for which, form in forms.items():
                if form == "v":
                    parts[which] = [(self.counts[0], self.places)]
        given = {
            which: piece.spec(parts.get(which))
            for which, piece in pieces.items()
        }
        if name == "Bcast":
            return [given["recv"], self.root]
        missing = MPI.IN_PLACE if self.in_place else None
        words = [given.get("send", missing), given.get("recv", missing)]
        if name == "Reduce_scatter":
            words.append(self.counts[0])
        if self.op is not None:
            words.append(values.operation(self.op))
        if name in ROOTED:
            words.append(self.root)
        return words

    def make(self, comm, nonblocking=False):
        name = called(self.name, "I" if nonblocking else "")
        made = getattr(comm, name)(*self.arguments())
        if self.blocks is not None:
            self.blocks.free()
        return made

    def verify(self):
        for which, piece in self.pieces.items():
            told = piece.difference()
            if told is not None:
                raise Wrong(f"{self}: {which}buf: {told}")

    def __str__(self):
        return (
            f"{self.name} {self.key[1:]} on rank {self.rank} of {self.size}, "
            f"{self.count} of {self.element.name}, op {self.op}, root "
            f"{self.root}, {'typed' if self.typed else 'at any address'}"
            + ", in place"
            * self.in_place
        )


class Runner:
    """One rank's part of a plan."""

    def __init__(self, world, options):
        self.options, self.world = options, world
        self.rank = world.rank
        self.plain = world.Dup()
        room = (options.max_bytes + 1024) * (world.size + 1)
        self.contents = values.Contents(options.seed, room)
        self.streams = [wm.Stream(wm.get_device()) for _ in range(2)]
        self.comms, self.where = [], "begins"
        self.seen = time.monotonic()
        self.count = 0

    def renew(self, draw):
        """Communicators of another epoch; collective."""
        for comm in self.comms:
            comm.Free()
        size = self.plain.size
        turned = self.plain.Split(0, size - self.rank)
        grid, graph = blocks.near(wm.Comm(self.plain), wm.Comm(turned), draw)
        turned.Free()
        self.comms = [wm.Comm(self.plain.Dup()), graph, grid]
        self.near = [None, blocks.Near(graph), blocks.Near(grid), None]
        if size > 2:
            few = self.rank != draw.randrange(size)
            part = self.plain.Split(0 if few else MPI.UNDEFINED)
            if part != MPI.COMM_NULL:
                self.comms.append(wm.Comm(part))

    def run(self, number):
        """A batch."""
        options = self.options
        if number % EPOCH == 0 or not self.comms:
            epoch = number // EPOCH
            self.renew(random.Random(f"{options.seed} epoch {epoch}"))
        draw = random.Random(f"{options.seed} {number}")
        own = f"{options.seed} {number} {self.rank}"
        self.local = random.Random(own)
        index = draw.choices(range(4), [4, 2, 2, 2])[0]
        form = draw.choice(options.forms)
        calls = draw.randrange(1, MOST + 1)
        if index >= len(self.comms):
            return
        comm = self.comms[index]
        made = []
        for k in range(calls):
            key = number, k, index
            made.append(
                Call(
                    self,
                    comm,
                    random.Random(f"{options.seed} {key}"),
                    key,
                )
            )
        self.where = f"{form}, batch {number}: " + "; ".join(map(str, made))
        getattr(self, form)(comm, made, draw)
        self.count += calls

    def blocking(self, comm, calls, draw):
        for call in calls:
            call.make(comm)
            call.verify()

    def stream(self, comm, calls, draw):
        for call in calls:
            stream = self.local.choice(self.streams)
            call.make(comm.on(stream))
            if self.local.random() < 0.1:
                stream.synchronize()
        self.settle(calls)

    def request(self, comm, calls, draw):
        requests = []
        for call in calls:
            channel = comm.on(self.local.choice(self.streams))
            requests.append(call.make(channel, True))
            if draw.random() < 0.2:  # a blocking one beside those
                beside = np.full(1, comm.rank)
                memory = wm.array(beside, device=wm.get_device())
                comm.Allreduce(MPI.IN_PLACE, memory)
                if memory.numpy() != comm.size * (comm.size - 1) // 2:
                    raise Wrong("a blocking Allreduce beside requests")
        MPI.Request.Waitall(requests)
        for call in calls:
            call.verify()

    def settle(self, calls):
        for stream in self.streams:
            stream.synchronize()
        for call in calls:
            call.verify()

    def graph(self, comm, calls, draw):
        stream = self.streams[0]
        channel = comm.on(stream)
        with graphs.capture(stream) as captured:
            for call in calls:
                call.make(channel)
        plain = wm.zeros(2000, "int64", device=wm.get_device())
        again = not any(call.drawn_in_place for call in calls)
        for turn in range(3):
            for call in calls:
                for piece in call.pieces.values():
                    piece.restore()
            for _ in range(1 + again):
                captured[0].launch(
                    self.local.choice(self.streams[: 2 - again])
                    if turn
                    else stream
                )
            if draw.random() < 0.5:
                plain.fill_(turn)
                comm.on(stream).Allreduce(MPI.IN_PLACE, plain)
                stream.synchronize()
                if (plain.numpy() != turn * comm.size).any():
                    raise Wrong("an Allreduce between replays")
            self.settle(calls)
        captured[0].free()


def run(world, argv=()):
    """The program on a communicator; how many collectives were made."""
    options = parse(argv)
    points = options.points
    _core._set_points(
        [(0, linked, 0, *points) for linked in (True, False)] if points else []
    )
    runner = Runner(world, options)
    if options.patience:
        lives.watch(runner, options.patience)
    began = told = time.monotonic()
    number = options.first
    while True:
        try:
            runner.run(number)
        except BaseException:
            print(
                f"rank {runner.rank}: {runner.where}\nagain: mpirun -n "
                f"{world.size} python tests/random_kernels.py "
                f"{' '.join(options.given)} --seed {options.seed} --first "
                f"{number} --collectives 1",
                file=sys.stderr,
                flush=True,
            )
            raise
        number += 1
        runner.seen = now = time.monotonic()
        late = options.seconds and now - began > options.seconds
        late = late or runner.count >= options.collectives
        if (number % 8 == 0 or options.collectives < 8) and (
            runner.plain.bcast(late)
        ):
            break
        if runner.rank == 0 and options.verbose and now - told > 10:
            told = now
            print(f"{runner.count} collectives, batch {number}", flush=True)
    runner.seen = float("inf")
    for comm in runner.comms:
        comm.Free()
    runner.plain.Free()
    _core._set_points([])
    return runner.count


def parse(argv):
    parser = lives.parser(__doc__)
    add = parser.add_argument
    add("--seed", type=int, default=1)
    add("--collectives", type=int, default=10_000, help="at least so many")
    add("--max-bytes", type=int, default=4 << 20, help="of a block, about")
    add("--seconds", type=float, default=0, help="stop after so many")
    add("--patience", type=float, default=120, help="seconds for a batch")
    add("--first", type=int, default=0, help="batch to begin with")
    add(
        "--points",
        type=int,
        nargs=len(NAMES),
        metavar="N",
        help=", ".join(NAMES),
    )
    add("--forms", nargs="*", choices=FORMS, default=FORMS)
    add("--verbose", action="store_true")
    return lives.parse(parser, argv, "--collectives")


def main():
    world = MPI.COMM_WORLD
    began = time.monotonic()
    count = run(world, sys.argv[1:])
    if world.rank == 0:
        print(
            f"{count} collectives, every byte right, on {world.size} ranks in "
            f"{time.monotonic() - began:.1f} s",
            flush=True,
        )


if __name__ == "__main__":
    lives.main(main)
