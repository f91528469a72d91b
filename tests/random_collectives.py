# SPDX-License-Identifier: BSD-3-Clause
"""Random collectives in every form and kind of memory; each byte is verified.

    mpirun -n 4 python tests/random_collectives.py --collectives 100000 \\
        --seed 7 --seconds 60 --verbose

All ranks make the same plan from the seed (random_calls.py), on communicators
of every kind (random_comms.py). What a rank sends is given by the seed, the
call and the rank (random_values.py), so that each knows what must come. It
is written by work on a stream that is not waited for, into memory of any kind
(random_buffers.py), in any layout (random_layouts.py), and spoilt or freed as
soon as the call has ended. What is received is looked at at once, or by what
comes next on its stream, and with everything around it when the batch has
ended. A wrong byte is told with its call, and how to see it again.

With --plain mpi4py's own communicators and host memory serve: what is wrong
then is MPI's.
"""

import os
import random
import sys
import tempfile
import time

import numpy as np
from mpi4py import MPI

import random_calls as calls
import random_ranks as lives
import random_values as values
import warpmpi as wm
from cases import called
from random_buffers import ROOM, Buffers
from random_comms import KINDS, Comms, names
from random_exchanges import AT_ROOT
from random_finish import finish
from random_layouts import Specifications

EPOCH = 40  # batches on the same communicators


class Wrong(AssertionError):
    """A buffer that does not hold what it must."""


class Call:
    """This rank's part of a step, through all its turns."""

    def __init__(self, step, place, exchange):
        self.step = step
        self.place = place
        self.exchange = exchange
        self.pieces = {}  # "send" or "recv": memory
        self.request = None
        self.ended = True
        self.given = None


class Runner:
    """One rank's part of a plan."""

    def __init__(self, world, options):
        self.options = options
        self.rank, self.size = world.rank, world.size
        self.wrap = (lambda comm: comm) if options.plain else wm.Comm
        self.plain = world.Dup()
        self.comm = self.wrap(world)
        self.plan = calls.Plan(
            options.seed,
            names(world.size, options.comms),
            options.max_bytes,
            _has_persistent(self.plain),
            options.calls,
            [
                {"blocking": "", "I": "I", "init": "_init"}[h]
                for h in options.forms or ()
            ],
            not options.plain,
        )
        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            self.plan.messages = False  # none moves in a call of MPI's own
        self.contents = values.Contents(options.seed, ROOM * options.max_bytes)
        chosen = ["host"] if options.plain else options.kinds
        self.buffers = Buffers(self.contents, options.max_bytes, chosen)
        self.ops = values.Ops(options.plain)
        self.specifications = Specifications()
        self.comms = self.epoch = None
        self.clocks = _clocks(self.plain)
        self.what = "begins"  # a call, or words
        self.seen = time.monotonic()
        self.collectives = self.bytes = 0

    def close(self):
        """Frees what was made; collective."""
        self.comms.free()
        self.specifications.free()
        self.ops.free()
        self.plain.Free()

    @property
    def where(self):
        """What it is in, in words."""
        call = self.what
        if isinstance(call, str):
            return call
        left = [
            f"not ended: {self.describe(other)}"
            for other in list(self.calls.values())
            if not other.ended
        ]
        return "\n  ".join([self.describe(call), *self.details(call), *left])

    # A batch

    def run(self, batch):
        """All of a batch that is this rank's."""
        epoch = batch.number // EPOCH
        if epoch != self.epoch:
            if self.comms is not None:
                self.comms.free()
            seed = f"{self.options.seed} {epoch}"
            self.comms, self.epoch = Comms(self.comm, seed, self.wrap), epoch
        self.batch = batch
        self.local = random.Random(
            f"{self.options.seed} {batch.number} {self.rank}"
        )
        self.pending, self.followed = [], []
        self.buffers.begin()
        self.calls = {}
        for message in batch.messages:
            self.exchange(message)
        for serial, (step, turn) in enumerate(batch.order):
            self.begin(step, turn, 1000 * batch.number + serial)
            if self.pending and self.local.random() < 0.15:
                self.local.shuffle(self.pending)
                cut = self.local.randrange(len(self.pending)) + 1
                self.end(self.pending[:cut])
        self.what = f"finishes batch {batch.number}"
        self.end(self.pending)
        for call in self.calls.values():
            if isinstance(call.request, MPI.Prequest):
                call.request.Free()
        self.verify()

    def end(self, items):
        items = list(items)
        self.pending = [x for x in self.pending if x not in items]
        finish(items, self.local)

    def exchange(self, message):
        """A message to another rank, under way during the whole batch."""
        place = self.comms.places[message.comm]
        size, me = len(place.ranks), place.me
        dest, source = (me + message.shift) % size, (me - message.shift) % size
        element = values.element("uint8")
        sent, into = (
            self.buffers.take(
                self.local.getrandbits(30), message.nbytes, element, self.local
            )
            for _ in "ab"
        )
        key = self.batch.number, message.bits
        sent.write(self.contents.of((*key, me), "uint8", None, sent.nbytes))
        into.write(0x11)
        comm = place.comm
        requests = [
            comm.Irecv([into.buffer(element)[0], MPI.BYTE], source, 5),
            comm.Isend([sent.buffer(element)[0], MPI.BYTE], dest, 5),
        ]

        def received(status):
            right = self.contents.of(
                (*key, source), "uint8", None, into.nbytes
            )
            into.image[:] = right
            if not np.array_equal(into.read(), right):
                self.wrong(None, f"a message came wrong: {message}")

        self.pending.append((requests[0], received))
        self.pending.append((requests[1], lambda status: None))

    # A call

    def begin(self, step, turn, serial):
        call = self.calls.get(step.number)
        if call is None:
            place = self.comms.places[step.comm]
            exchange = self.plan.exchange(
                self.batch.number, step, place.sizes, place.near, place.part
            )
            call = self.calls[step.number] = Call(step, place, exchange)
            self.take(call)
            call.given = self.arguments(call)
        if not call.ended:  # the turn before
            self.end([x for x in self.pending if x[0] is call.request])
        self.write(call, turn)
        call.ended = False
        self.what = call
        self.clocks[self.rank] = serial
        args, kwargs = call.given
        try:
            if turn == 0:
                method = getattr(call.place.comm, called(step.name, step.how))
                call.request = method(*args, **kwargs)
            if step.how == calls.PERSISTENT:
                self.start(call.request)
        except Exception:
            self.tell(call, f"raised in turn {turn}")
            raise
        last = turn == step.turns - 1
        if last:
            call.given = None
            if self.local.random() < 0.4 and "send" in call.pieces:
                call.pieces["send"].forget()
        if step.how == calls.BLOCKING:
            self.ended(call, turn, serial)
        else:
            item = call.request, lambda status: self.ended(call, turn, serial)
            self.pending.append(item)

    def start(self, request):
        if self.local.random() < 0.3:
            wm.Prequest.Startall([request])
        else:
            request.Start()

    def take(self, call):
        """Memory for what this rank gives."""
        exchange, me = call.exchange, call.place.me
        element = values.element(exchange.element)
        for k, which in enumerate(("send", "recv")):
            side = exchange.sides.get((me, which))
            if side is not None:
                bits = self.kind_bits(call, self.rank, k)
                nbytes = side.length * element.width
                piece = self.buffers.take(bits, nbytes, element, self.local)
                call.pieces[which] = piece

    def kind_bits(self, call, rank, k):
        return random.Random(f"{call.step.bits} {rank} {k}").getrandbits(30)

    def arguments(self, call):
        """What mpi4py's call is given."""
        exchange, place = call.exchange, call.place
        name, element = exchange.name, values.element(exchange.element)
        if name == "Barrier":
            return (), {}
        given = {}
        base, plain = element.base, self.options.plain
        if exchange.op and element.name == "bfloat16" and not plain:
            base = None
        for which, piece in call.pieces.items():
            buffer, typed = piece.buffer(element, base is None)
            side = exchange.sides[place.me, which]
            if self.may_be_strided(call, buffer, typed, side):
                given[which] = _strided(buffer, side.blocks)
                continue
            given[which] = self.specifications.make(
                buffer, typed, side, base, self.local
            )
        words = {}
        if name == "Bcast":
            words["buf"] = given.get("send", given.get("recv"))
        else:
            missing = None
            if exchange.in_place and not (
                name in AT_ROOT and exchange.root != (0, place.me)
            ):
                missing = MPI.IN_PLACE
            words["sendbuf"] = given.get("send", missing)
            words["recvbuf"] = given.get("recv", missing)
        if name == "Reduce_scatter":
            first = 0 if place.me < place.sizes[0] else place.sizes[0]
            size = place.sizes[0 if first == 0 else 1]
            words["recvcounts"] = exchange.counts[first : first + size]
        if exchange.op is not None:
            words["op"] = self.ops.of(exchange.op, element)
        if exchange.root is not None:
            words["root"] = self.root(call)
        if self.local.random() < 0.1:
            return (), words
        return tuple(words.values()), {}

    def may_be_strided(self, call, buffer, typed, side):
        """Whether an array with gaps can say what its datatype would."""
        on_host = isinstance(buffer, np.ndarray)
        return (
            isinstance(call.place.comm, wm.Comm)
            and typed
            and (
                call.step.name == "Bcast" and call.step.how == calls.BLOCKING
                if on_host
                else isinstance(buffer, wm.Array) and buffer.device.is_cuda
            )
            and side.form in ("", "n")
            and len(side.blocks) > 0
            and side.blocks[0].layout.name == "resized"
        )

    def root(self, call):
        group, rank = call.exchange.root
        place = call.place
        if len(place.sizes) == 1:
            return rank
        if (place.me >= place.sizes[0]) != bool(group):
            return rank
        own = place.me - place.sizes[0] * group
        return MPI.ROOT if own == rank else MPI.PROC_NULL

    # What is sent, and what must come

    def content(self, call, turn, index, which):
        """What is in anyone's buffer before the call."""
        step, exchange = call.step, call.exchange
        side = exchange.sides[index, which]
        key = (
            self.batch.number,
            step.number,
            turn,
            call.place.part,
            index,
            which == "recv",
        )
        op, name = exchange.op, exchange.element
        return self.contents.of(key, name, op, side.length)

    def write(self, call, turn):
        for which, piece in call.pieces.items():
            if which == "send" or call.exchange.in_place:
                piece.write(self.content(call, turn, call.place.me, which))

    def expect(self, call, turn):
        """Puts what must have come into the image of the receive buffer.

        Returns how many elements are of others.
        """
        came = 0
        exchange, me = call.exchange, call.place.me
        width = values.element(exchange.element).width
        side = exchange.sides[me, "recv"]
        image = call.pieces["recv"].image.view(f"V{width}")
        known = {}

        def cells(index, which):
            if (index, which) not in known:
                found = self.content(call, turn, index, which)
                known[index, which] = found.view(f"V{width}")
            return known[index, which]

        for source, which, a, index, b in exchange.moves:
            if index == me:
                sent = exchange.sides[source, which].blocks[a].places()
                into = side.blocks[b].places()
                image[into] = cells(source, which)[sent]
                came += len(into) * (source != me)
        if me in exchange.folds:
            who, begin, end = exchange.folds[me]
            parts = []
            for index in who:
                which = "send" if (index, "send") in exchange.sides else "recv"
                first = exchange.sides[index, which].blocks[0].first
                part = cells(index, which)[first + begin : first + end]
                parts.append(part.view(np.uint8))
            made = values.fold(exchange.element, exchange.op, parts)
            first = side.blocks[0].first
            image[first : first + end - begin] = made.view(f"V{width}")
            came += (end - begin) * (who != [me])
        return came

    def ended(self, call, turn, serial):
        """A turn has ended: is everything there?"""
        step, exchange = call.step, call.exchange
        call.ended, last = True, turn == step.turns - 1
        if exchange.name == "Barrier":
            place = call.place
            ranks, first = place.ranks, place.sizes[0]
            if len(place.sizes) == 2:  # it waits for the other group
                ranks = ranks[first:] if place.me < first else ranks[:first]
                if step.how != calls.BLOCKING:
                    ranks = []  # Open MPI's does not
            late = [r for r in ranks if self.clocks[r] < serial]
            if late:
                self.wrong(call, f"turn {turn}: {late} had not come")
        into = call.pieces.get("recv")
        if into is not None:
            if not self.expect(call, turn):
                into.settle()  # nobody else had to wait for the stream
            exact = not exchange.folds and not exchange.open_ends
            if not exact or not last or self.local.random() < 0.5:
                self.compare(call, turn, into, into.read(), into.image)
            elif into.follow():
                self.followed.append((call, turn, into, into.image.copy()))
        sent = call.pieces.get("send")
        if sent is not None and self.local.random() < 0.5:
            self.buffers.spoil(sent, self.local)
        self.collectives += 1
        self.bytes += into.nbytes if into is not None else 0

    def compare(self, call, turn, piece, found, right):
        """Byte by byte, or element by element where there was arithmetic."""
        if np.array_equal(found, right):
            return
        exchange = call.exchange
        width = values.element(exchange.element).width
        side = exchange.sides[call.place.me, "recv"]
        if exchange.folds or exchange.op:
            block = side.blocks[0]
            who = exchange.folds.get(call.place.me, ((), 0, 0))
            first = block.first
            end = first + who[2] - who[1]
            piece_of = slice(first * width, end * width)
            at = values.differs(
                exchange.element, found[piece_of], right[piece_of]
            )
            if at is None:
                right[piece_of] = found[piece_of]
            if exchange.open_ends:
                rest = slice(
                    end * width,
                    sum(b.number for b in side.blocks) * width + first * width,
                )
                right[rest] = found[rest]
            if np.array_equal(found, right):
                return
        bad = np.flatnonzero(found != right)
        element = values.element(exchange.element).numpy
        at = bad[0] // width
        cell = slice(at * width, (at + 1) * width)
        self.wrong(
            call,
            f"turn {turn}: {len(bad)} wrong bytes in recvbuf, of {len(found)},"
            f" the first in element {at}: {found[cell].view(element)} for "
            f"{right[cell].view(element)}, the last in {bad[-1] // width}",
        )

    def verify(self):
        """Every byte of the arenas."""
        self.what = f"verifies batch {self.batch.number}"
        for call, turn, piece, right in self.followed:
            self.compare(call, turn, piece, piece.followed(), right)
        found = self.buffers.difference()
        if not found:
            return
        arena, place, is_there, right = found
        told = (
            f"byte {place} of {arena.name} memory is {is_there}, not {right}"
        )
        for call in self.calls.values():
            for which, piece in call.pieces.items():
                if getattr(piece, "arena", None) is arena and (
                    piece.start <= place < piece.start + piece.nbytes
                ):
                    self.wrong(call, f"{told}, in its {which}buf")
        self.wrong(None, f"{told}, which is nobody's")

    # Words

    def describe(self, call, turn=None):
        step, exchange, place = call.step, call.exchange, call.place
        text = f"{called(step.name, step.how)} (batch "
        text += f"{self.batch.number}, step {step.number}"
        text += f", turn {turn}" * (turn is not None and step.turns > 1)
        text += f") on {step.comm}, ranks {place.ranks} in {place.sizes}"
        if exchange.name == "Barrier":
            return text
        text += f", of {exchange.element}"
        text += f", op {exchange.op}" * (exchange.op is not None)
        text += f", root {exchange.root}" * (exchange.root is not None)
        return text + ", in place" * exchange.in_place

    def details(self, call):
        """What each rank gives, a line each."""
        exchange = call.exchange
        for index, rank in enumerate(call.place.ranks):
            for k, which in enumerate(("send", "recv")):
                side = exchange.sides.get((index, which))
                if side is None:
                    continue
                bits = self.kind_bits(call, rank, k)
                kind = self.buffers.kinds[bits % len(self.buffers.kinds)]
                blocks = ", ".join(
                    f"{b.count} of {b.layout.name} at {b.first}"
                    for b in side.blocks
                )
                yield (
                    f"{index} {which}: {side.length} elements of {kind} "
                    f"memory: {blocks}"
                )

    def tell(self, call, what):
        told = [f"rank {self.rank}: {what}"]
        if call is not None:
            told += [self.describe(call), *self.details(call)]
        given = " ".join(self.options.given)
        told.append(
            f"again: mpirun -n {self.size} python "
            f"tests/random_collectives.py {given} --seed "
            f"{self.options.seed} --first {self.batch.number} --collectives 1"
        )
        text = "\n  ".join(told)
        print(text, file=sys.stderr, flush=True)
        return text

    def wrong(self, call, what):
        raise Wrong(self.tell(call, what))


def _strided(array, blocks):
    """The elements of blocks, as an array with gaps."""
    first, last = blocks[0], blocks[-1]
    end = last.first + last.count * last.layout.extent
    return array[first.first : end : first.layout.extent]


def _clocks(comm):
    """A number of each rank's, that all of a host see; collective."""
    name = None
    if comm.rank == 0:
        with tempfile.NamedTemporaryFile(delete=False) as file:
            file.write(np.full(comm.size, -1).tobytes())
            name = file.name
    name = comm.bcast(name)
    shared = np.memmap(name, np.int64, "r+")
    comm.Barrier()
    if comm.rank == 0:
        os.unlink(name)
    return shared


def _has_persistent(comm):
    """Whether this MPI has persistent collectives; collective."""
    try:
        comm.Barrier_init().Free()
    except NotImplementedError:
        return False
    return True


def run(world, argv=()):
    """The program on a communicator; how many collectives and bytes came."""
    options = parse(argv)
    runner = Runner(world, options)
    if options.patience:
        lives.watch(runner, options.patience)
    stops = options.stops and lives.Stops(f"{options.seed} {runner.rank}")
    began = told = time.monotonic()
    number, planned = options.first, 0
    while planned < options.collectives:
        batch = runner.plan.batch(number)
        runner.run(batch)
        planned += len(batch.order)
        number += 1
        runner.seen = now = time.monotonic()
        late = options.seconds and now - began > options.seconds
        if options.seconds and number % 8 == 0 and runner.plain.bcast(late):
            break
        if runner.rank == 0 and options.verbose and now - told > 10:
            told = now
            print(f"{planned} collectives, {now - began:.0f} s", flush=True)
    runner.seen = float("inf")
    if stops:
        stopped = runner.plain.allreduce(stops.close())
        if runner.rank == 0:
            print(f"stopped {stopped} times", flush=True)
    if runner.collectives != planned:
        raise Wrong(f"{runner.collectives} ended, {planned} were planned")
    nbytes = runner.plain.allreduce(runner.bytes)
    kinds = runner.buffers.kinds
    runner.close()
    return planned, nbytes, time.monotonic() - began, kinds


def parse(argv):
    parser = lives.parser(__doc__)
    add = parser.add_argument
    add("--seed", type=int, default=1)
    add("--collectives", type=int, default=10_000, help="at least so many")
    add("--max-bytes", type=int, default=4 << 20, help="of a buffer, about")
    lives.options(add)
    add("--first", type=int, default=0, help="batch to begin with")
    add("--kinds", nargs="*", help="kinds of memory (default: all there are)")
    add("--calls", nargs="*", help="names, as of blocking ones")
    add("--comms", nargs="*", help=f"of {', '.join(KINDS)}")
    add("--forms", nargs="*", choices=("blocking", "I", "init"))
    add("--plain", action="store_true", help="mpi4py itself, on the host")
    add("--verbose", action="store_true")
    return lives.parse(parser, argv, "--collectives")


def main():
    world, argv = MPI.COMM_WORLD, sys.argv[1:]
    lives.place(world.rank, parse(argv).apart)
    count, nbytes, seconds, kinds = run(world, argv)
    if world.rank == 0:
        print(
            f"{count} collectives, {nbytes} bytes, every one right, on "
            f"{world.size} ranks in {seconds:.1f} s; memory: "
            f"{', '.join(kinds)}",
            flush=True,
        )


if __name__ == "__main__":
    lives.main(main)
