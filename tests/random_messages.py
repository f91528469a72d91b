# SPDX-License-Identifier: BSD-3-Clause
"""Random messages in every form and kind of memory; each byte is verified.

    mpirun -n 4 python tests/random_messages.py --seed 1 --messages 1000000

All ranks make the same plan from the seed (random_plan.py). A message's bytes
are given by its number. What a rank sends is written by work on a stream that
is not waited for, and spoilt in the same way as soon as the send has ended;
what it receives is looked at at once, and with everything around it when the
batch has ended. A wrong byte is told with its message, and how to see it
again.

    mpirun -n 2 python tests/random_messages.py --freed --stops
    mpirun -n 4 python tests/random_messages.py --apart 2

With --freed each batch has communicators of its own, which are freed while
its messages are under way. Below MPI_THREAD_MULTIPLE nothing is waited for by
MPI's own calls, as those know nothing of copies.
"""

import random
import sys
import time

import numpy as np
from mpi4py import MPI

import random_memory as memory
import random_plan as plans
import random_ranks as lives
import warpmpi as wm
from random_finish import finish, loop

BATCHES = 64  # messages that begin at each rank between two ends
BUFFERED_LIMIT = 16_384  # bytes of a buffered send
ROOM = 16 << 20  # for those of a communicator
POSTED_FORMS = "Send Ssend Isend Issend Send_init Ssend_init".split()
READY_FORMS = "Rsend Irsend Rsend_init".split()
AWAITED_FORMS = "Isend Issend Send_init Ssend_init".split()
BUFFERED_FORMS = "Bsend Ibsend Bsend_init".split()
PLAIN_FORMS = "Send Ssend Isend Issend".split()


class Wrong(AssertionError):
    """A message that is not what was sent."""


def features(world):
    """Which calls there are already, of those that were not at first."""
    comm = wm.Comm(MPI.COMM_SELF)
    array, found = np.zeros(4), set()
    device = wm.get_device()

    def strided(make):
        table = make()
        request = comm.Isend(table[:, :1], 0)
        comm.Recv(table[:, 1:], 0)
        request.Wait()

    trials = {
        "mprobe": lambda: comm.Improbe(),
        "replace": lambda: comm.Sendrecv_replace(array, 0, 0, 0, 0),
        "isendrecv": lambda: comm.Isendrecv(
            array, 0, 0, array.copy(), 0, 0
        ).Wait(),
        "strided host": lambda: strided(lambda: np.zeros((2, 2), "u1")),
        "strided device": lambda: strided(
            lambda: wm.zeros((2, 2), "u1", device=device)
        ),
        "bsend": lambda: _try_buffered(comm),
    }
    for name, trial in trials.items():
        try:
            trial()
            found.add(name)
        except (NotImplementedError, ValueError, TypeError, AttributeError):
            pass
    everywhere = world.allgather(found)
    return set.intersection(*everywhere)


def _try_buffered(comm):
    comm.Attach_buffer(bytearray(1000 + MPI.BSEND_OVERHEAD))
    comm.Bsend(np.zeros(4), 0)
    comm.Recv(np.zeros(4), 0)
    comm.Detach_buffer()


class Landing:
    """Where a message is to be, and what is known of it."""

    __slots__ = "arena", "on_stream", "receive", "start", "status", "strided"

    def __init__(self, receive, arena, start, strided, on_stream):
        self.receive = receive
        self.arena = arena
        self.start = start
        self.strided = strided
        self.on_stream = on_stream
        self.status = None


class Runner:
    """One rank's part of a plan."""

    def __init__(self, world, options):
        self.world = world
        self.rank = world.rank
        self.options = options
        self.plan = plans.Plan(
            options.seed, world.size, options.max_bytes, options.inflight
        )
        self.comm = wm.Comm(world)
        self.no_thread = MPI.Query_thread() < MPI.THREAD_MULTIPLE
        self.plain = (self.comm if self.no_thread else world).Dup()
        self.features = set() if options.basic else features(world)
        if not options.freed:
            self.make_communicators()
        size = max(4 * options.max_bytes, 1 << 20)
        payload = memory.Payload(
            options.seed, options.max_bytes + memory.GAPS + plans.SPREAD
        )
        self.payload = payload
        self.out = memory.arenas(size, payload, options.kinds)
        self.into = memory.arenas(size, payload, options.kinds)
        self.messages = self.bytes = 0
        self.where = "the beginning"
        self.seen = time.monotonic()
        self.pending = []
        self.make_lasting()

    def make_communicators(self):
        """Those of all batches, or of one; collective."""
        self.pair = self.comm.Dup(), self.comm.Split(0, -self.rank)
        self.ring = self.comm.Create_cart([self.world.size], [True])
        self.objects = self.comm.Dup()
        if "bsend" in self.features:
            for comm in self.pair:
                comm.Attach_buffer(bytearray(ROOM))

    def communicators(self):
        return [*self.pair, self.ring, self.objects]

    def free_communicators(self, batch):
        """With all that is under way on them; some of it ends meanwhile."""
        shared = random.Random(batch.barrier)
        comms = self.communicators()
        shared.shuffle(comms)
        for comm in self.pair * ("bsend" in self.features):
            if self.local.random() < 0.5:
                self.pending.append((comm.Iflush_buffer(), lambda status: 0))
        for comm in comms:
            if self.local.random() < 0.3:
                self.local.shuffle(self.pending)
                cut = self.local.randrange(len(self.pending) + 1)
                some, self.pending = self.pending[:cut], self.pending[cut:]
                finish(some, self.local)
            self.where = f"{self.rank} frees in batch {batch.number}"
            # MPI's Disconnect waits inside MPI, where nothing of ours moves.
            if self.no_thread or shared.random() < 0.5:
                comm.Free()
            else:
                self.cancel(batch)  # it waits for what is under way
                comm.Disconnect()

    def close(self):
        """Frees what was made; collective."""
        for request, *_ in self.lasting:
            request.Free()
        for comm in self.lasting_ring, self.plain:
            comm.Free()
        if self.options.freed:
            return
        for comm in self.pair * ("bsend" in self.features):
            comm.Detach_buffer()
        for comm in self.communicators():
            comm.Free()

    def room(self):
        """The number of MPI's next communicator: whether some are left."""
        # Open MPI makes some of its own, and keeps them, in the first
        # collective of a communicator whose ranks are on several hosts: none
        # that lasts comes to it between two of these counts.
        lasting = [] if self.options.freed else self.communicators()
        for comm in self.world, self.plain, self.comm, *lasting:
            comm.Barrier()
            comm.bcast(0)
            comm.allreduce(0)
        self.comm.Dup().Free()  # with which those go that nobody uses
        made = self.world.Dup()
        number = made.py2f()
        made.Free()
        return number

    # Who is who

    def lane_comm(self, batch, lane):
        if lane in (plans.POSTED, plans.AWAITED):
            return self.pair[batch.swapped ^ (lane == plans.AWAITED)]
        return {plans.PLAIN: self.plain, plans.OBJECT: self.objects}.get(
            lane, self.ring
        )

    def rank_in(self, comm, rank):
        """A rank of the world, or back, in a communicator."""
        if comm is self.pair[1] and rank >= 0:
            return self.world.size - 1 - rank
        return rank

    def how_sent(self, batch, message):
        """Which arena, form, stream and specification; a pure function."""
        bits = message.sent
        arena = self.out[bits % len(self.out)]
        if message.lane == plans.PLAIN:
            arena, forms = self.out[0], PLAIN_FORMS
        elif message.lane == plans.POSTED:
            forms = POSTED_FORMS + READY_FORMS * batch.ready
        else:
            forms = AWAITED_FORMS
        if (
            "bsend" in self.features
            and message.lane in (plans.POSTED, plans.AWAITED)
            and message.size <= BUFFERED_LIMIT
            and bits % 7 == 0
        ):
            forms = BUFFERED_FORMS
        form = forms[(bits >> 10) % len(forms)]
        on_stream = arena.stream is not None and (bits >> 20) % 4 == 0
        if form.endswith("bsend_init") or form[-5:] in ("Bsend", "bsend"):
            on_stream = False
        strided = self.rows(arena, message.size, bits >> 24)
        if message.lane == plans.PLAIN:
            strided = None
        return arena, form, on_stream, strided, (bits >> 32) % 16

    def rows(self, arena, size, bits):
        """Rows and bytes of a row, where it is to be a strided array."""
        kind = "device" if isinstance(arena, memory.Device) else "host"
        if (
            f"strided {kind}" not in self.features
            or not arena.takes_strides
            or bits % 3
        ):
            return None
        rows = 2 + bits // 3 % 61
        while rows > 1 and size % rows:
            rows -= 1
        return (rows, size // rows) if rows > 1 and size else None

    def describe(self, batch, message):
        text = (
            f"message {message.number} (batch {batch.number}, "
            f"{message.lane}): {message.size} bytes from rank "
            f"{message.source} to {message.dest}, tag {message.tag}, payload "
            f"{message.offset}"
        )
        if message.lane in (plans.POSTED, plans.AWAITED, plans.PLAIN):
            arena, form, on_stream, strided, _ = self.how_sent(batch, message)
            text += f", {form} of {arena.name} memory"
            text += " on a stream" * on_stream
            text += f", {strided} of it" if strided else ""
        return text

    def wrong(self, batch, message, what, landing=None):
        told = [what]
        if message is not None:
            told.append(self.describe(batch, message))
        if landing is not None:
            ask = landing.receive
            told.append(
                f"asked for source {ask.source} tag {ask.tag} with room for "
                f"{ask.capacity} bytes in {landing.arena.name} memory at "
                f"{landing.start}"
                + " on a stream" * landing.on_stream
                + (f", {landing.strided} of it" if landing.strided else "")
            )
        given = " ".join(self.options.given)
        told.append(
            f"again: mpirun -n {self.world.size} python "
            f"tests/random_messages.py {given} --seed {self.options.seed} "
            f"--first {batch.number} --messages 1"
        )
        raise Wrong(f"rank {self.rank}: " + "\n  ".join(told))

    # Sending

    def place(self, arenas, index, nbytes):
        """An arena with room, the wanted one if it has, and where."""
        for step in range(len(arenas)):
            arena = arenas[(index + step) % len(arenas)]
            start = arena.take(nbytes, self.local)
            if start is not None:
                return arena, start
        raise MemoryError(f"the arenas have no room for {nbytes} bytes")

    def specification(self, arena, start, size, strided, bits):
        nbytes = memory.extent(strided) if strided else size
        buffer = arena.buffer(start, nbytes, strided)
        if strided or bits > 6:
            return buffer
        if bits == 1 and size % 8 == 0:
            return [buffer, size // 8, MPI.DOUBLE]
        if bits == 2 and isinstance(arena.memory, np.ndarray):
            return [arena.memory, size, start, MPI.BYTE]
        return (
            buffer,
            buffer,
            buffer,
            [buffer, MPI.BYTE],
            [buffer, size, MPI.BYTE],
            [buffer, (size, 0), MPI.BYTE],
            (buffer, "B"),
        )[bits]

    def begin_send(self, batch, message, comm):
        arena, form, on_stream, strided, spec = self.how_sent(batch, message)
        nbytes = memory.extent(strided) if strided else message.size
        dest = self.rank_in(comm, message.dest)
        if isinstance(arena, memory.Device) and spec == 15 and not strided:
            self.send_fresh(comm, form, arena, message, dest)
            return
        start = arena.take(nbytes, self.local)
        if start is None:
            arena, start = self.place(self.out, 0, message.size)
            on_stream, strided, nbytes = False, None, message.size
        arena.write(start, nbytes, message.offset, strided)
        buffer = self.specification(arena, start, message.size, strided, spec)
        caller = comm.on(arena.stream) if on_stream else comm
        self.where = f"{self.rank} sends " + self.describe(batch, message)
        result = getattr(caller, form)(buffer, dest, message.tag)

        def sent(status):
            if form.endswith("_init"):
                result.Free()
            if self.local.random() < 0.6:
                self.spoil(arena, start, nbytes)

        if form.endswith("_init"):
            result.Start()
        if result is None:
            sent(None)
        else:
            self.pending.append((result, sent))

    def send_fresh(self, comm, form, arena, message, dest):
        """From an array that is forgotten at once, perhaps its request too."""
        array = wm.empty(message.size, np.uint8, device=arena.device)
        source, _ = self.payload.on(arena.device, False)
        array.assign(
            source[message.offset : message.offset + message.size],
            blocking=False,
        )
        result = getattr(comm, form)(array, dest, message.tag)
        if form.endswith("_init"):
            result.Start()
            self.pending.append((result, lambda status: result.Free()))
        elif result is not None and self.local.random() < 0.5:
            self.pending.append((result, lambda status: None))

    def spoil(self, arena, start, nbytes):
        """What its owner does with a buffer that he has again."""
        arena.write(start, nbytes, self.local.randrange(plans.SPREAD))

    # Receiving

    def landing(self, receive, capacity=None):
        message, bits = receive.message, receive.bits
        nbytes = receive.capacity if capacity is None else capacity
        index = bits % len(self.into)
        arena, strided = self.into[index], None
        if message is not None and nbytes == message.size:
            strided = self.rows(arena, nbytes, bits >> 24)
        if message is not None and message.lane == plans.PLAIN:
            strided = None
        if strided:
            start = arena.take(memory.extent(strided), self.local)
            if start is None:
                strided = None
        if not strided:
            arena, start = self.place(self.into, index, nbytes)
        on_stream = arena.stream is not None and (bits >> 20) % 4 == 0
        buffer = self.specification(
            arena, start, nbytes, strided, (bits >> 32) % 16
        )
        landing = Landing(receive, arena, start, strided, on_stream)
        self.landings.append(landing)
        return landing, buffer

    def post(self, batch, lane, receive, comm):
        if lane == plans.PLAIN:
            # Open MPI may write beyond a buffer that is too short.
            receive.bits = 0
            receive.capacity = max(receive.capacity, receive.message.size)
        landing, buffer = self.landing(receive)
        caller = comm.on(landing.arena.stream) if landing.on_stream else comm
        source = self.rank_in(comm, receive.source)
        if lane != plans.PLAIN and (receive.bits >> 40) % 4 == 0:
            request = caller.Recv_init(buffer, source, receive.tag)
            request.Start()
        else:
            request = caller.Irecv(buffer, source, receive.tag)

        def landed(status):
            self.land(batch, comm, landing, status)
            if isinstance(request, MPI.Prequest):
                request.Free()

        if self.truncates(receive):
            self.alone.append((request, batch, landing))
        else:
            self.pending.append((request, landed))
        if receive.message is None:
            self.wild.append((comm, landing))

    def truncates(self, receive):
        message = receive.message
        return message is not None and message.size > receive.capacity

    def receive(self, batch, receive, comm):
        """By a call that blocks, perhaps after a probe."""
        source = self.rank_in(comm, receive.source)
        tag, bits = receive.tag, receive.bits
        form = (bits >> 40) % 8
        if form >= 6 and "mprobe" not in self.features:
            form -= 4
        status, found, capacity = MPI.Status(), None, None
        self.where = f"{self.rank} receives ({form}) {receive}"
        if form == 2:
            comm.Probe(source, tag, status)
        elif form == 3:
            loop(lambda: comm.Iprobe(source, tag, status))
        elif form == 6:
            found = comm.Mprobe(source, tag, status)
        elif form == 7:
            found = loop(lambda: comm.Improbe(source, tag, status))
        if form in (2, 3, 6, 7):
            count = status.Get_count(MPI.BYTE)
            if receive.message is None:
                capacity = count
            elif count != receive.message.size:
                self.wrong(
                    batch, receive.message, f"the probe told of {count} bytes"
                )
            source, tag = status.source, status.tag
        landing, buffer = self.landing(receive, capacity)
        on_stream = landing.on_stream and found is None
        landing.on_stream = on_stream
        caller = comm.on(landing.arena.stream) if on_stream else comm
        try:
            if form == 6:
                found.Recv(buffer, status)
            elif form == 7:
                found.Irecv(buffer).Wait(status)
            elif form in (4, 5):
                call = (caller.Irecv, caller.Recv_init)[form - 4]
                request = call(buffer, source, tag)
                if form == 5:
                    request.Start()
                request.Wait(status)
            else:
                caller.Recv(buffer, source, tag, status)
        except MPI.Exception as error:
            self.truncated(batch, landing, error)
            return
        if self.truncates(receive):
            self.wrong(batch, receive.message, "was not truncated", landing)
        self.land(batch, comm, landing, status)
        if receive.message is None:
            self.wild.append((comm, landing))

    def truncated(self, batch, landing, error):
        if (
            not self.truncates(landing.receive)
            or error.Get_error_class() != MPI.ERR_TRUNCATE
        ):
            message = landing.receive.message
            self.wrong(batch, message, f"raised {error}", landing)
        self.messages += 1
        self.unknown.append(landing)

    def land(self, batch, comm, landing, status):
        """A receive has ended: is everything there?"""
        message = landing.receive.message
        landing.status = status
        if landing.on_stream:
            size = message.size if message else status.Get_count(MPI.BYTE)
            if not landing.strided:
                landing.arena.follow(landing.start, size)
        if message is not None:
            self.settle(batch, comm, message, landing)

    def settle(self, batch, comm, message, landing):
        """It is known which message it was."""
        arena, start, strided = landing.arena, landing.start, landing.strided
        status, size = landing.status, message.size
        if status is not None:
            told = (
                self.rank_in(comm, status.source),
                status.tag,
                status.Get_count(MPI.BYTE),
                status.Get_elements(MPI.BYTE),
                status.Is_cancelled(),
            )
            if told != (message.source, message.tag, size, size, False):
                self.wrong(batch, message, f"the status has {told}", landing)
        nbytes = memory.extent(strided) if strided else size
        arena.expect(start, nbytes, message.offset, strided)
        if landing.on_stream:
            if not strided:
                self.followed.append((message, landing))
        elif self.local.random() < self.options.peek:
            self.compare(batch, message, landing, arena.read(start, nbytes))
        self.messages += 1
        self.bytes += size

    def compare(self, batch, message, landing, found):
        """Byte by byte, those of a message that has come."""
        start = landing.start
        right = landing.arena.image[start : start + len(found)]
        if not np.array_equal(found, right):
            bad = np.flatnonzero(found != right)
            self.wrong(
                batch,
                message,
                f"{len(bad)} wrong bytes, the first at {bad[0]}: "
                f"{found[bad[0]]} for {right[bad[0]]}, the last at {bad[-1]}",
                landing,
            )

    # The other lanes

    def make_partitioned(self, message, comm):
        """Both ends' requests meet in the order in which they are made."""
        bits, size = message.sent, message.size
        arena, start = self.place(self.out, bits % len(self.out), size)
        count = self.partitions(size, bits >> 8)
        request = comm.Psend_init(
            arena.buffer(start, size), count, message.dest, message.tag
        )
        request.Start()
        arena.write(start, size, message.offset)  # the last may, until ready

        def sent(status):
            request.Free()
            if self.local.random() < 0.6:
                self.spoil(arena, start, size)

        self.pending.append((request, sent))
        unready = list(range(count))
        self.local.shuffle(unready)
        self.unready.append((request, unready))

    def partitions(self, size, bits):
        """How many of one size a message has."""
        count = 1 + bits % 8
        while size % count:
            count -= 1
        return count

    def await_partitioned(self, batch, receive, comm):
        message, size = receive.message, receive.message.size
        arena, start = self.place(
            self.into, receive.bits % len(self.into), size
        )
        landing = Landing(receive, arena, start, None, False)
        self.landings.append(landing)
        request = comm.Precv_init(
            arena.buffer(start, size),
            self.partitions(size, receive.bits >> 8),
            message.source,
            message.tag,
        )
        request.Start()

        def landed(status):
            self.land(batch, comm, landing, status)
            request.Free()

        self.pending.append((request, landed))

    def make_ready(self):
        """The partitions of all, each after another's."""
        while self.unready:
            request, left = self.local.choice(self.unready)
            request.Pready(left.pop())
            if not left:
                self.unready.remove((request, left))

    def both_partitioned(self, batch):
        """What a rank sends and receives, in the order of their numbers."""
        steps = []
        for message in batch.by_lane[plans.PARTITIONED]:
            if message.source == self.rank:
                steps.append((self.make_partitioned, message, self.objects))
            if message.dest == self.rank:
                receive = plans.Receive(
                    message,
                    message.source,
                    message.tag,
                    message.size,
                    message.received,
                )
                words = batch, receive, self.objects
                steps.append((self.await_partitioned, *words))
        return steps

    def send_object(self, message, comm):
        piece = slice(message.offset, message.offset + message.size)
        content = self.payload.host[piece]
        if message.sent % 3 == 0:
            content = wm.array(content)
        elif message.sent % 3 == 1:
            content = content.tobytes()
        request = comm.isend(
            (message.number, content), message.dest, message.tag
        )
        self.pending.append((request, lambda status: None))

    def receive_object(self, batch, receive, comm):
        message = receive.message
        form = receive.bits % 3
        self.where = f"{self.rank} receives an object {receive}"
        if form == 1:
            comm.probe(receive.source, receive.tag)
        if form == 2:
            found = comm.mprobe(receive.source, receive.tag).recv()
        else:
            found = comm.recv(None, receive.source, receive.tag)
        number, content = found
        if isinstance(content, wm.Array):
            content = content.numpy()
        piece = slice(message.offset, message.offset + message.size)
        if (
            number != message.number
            or bytes(content) != self.payload.host[piece].tobytes()
        ):
            self.wrong(batch, message, f"came as object {number}")
        self.messages += 1
        self.bytes += message.size

    def turn_ring(self, batch, turn):
        mine, theirs = None, None
        for message in batch.by_lane[plans.RING]:
            if message.turn == turn and message.source == self.rank:
                mine = message
            if message.turn == turn and message.dest == self.rank:
                theirs = message
        form = plans.RING_FORMS[batch.forms[turn]]
        if form != "Sendrecv" and (
            not {"replace", "isendrecv"} <= self.features
        ):
            form = "Sendrecv"
        receive = plans.Receive(
            theirs, theirs.source, turn, theirs.size, theirs.received
        )
        landing, buffer = self.landing(receive)
        landing.on_stream = False
        arena, status = landing.arena, MPI.Status()
        to, source = mine.dest, theirs.source
        self.where = f"{self.rank}: {form} of turn {turn}"
        if "replace" in form:
            size = mine.size
            strided = landing.strided
            nbytes = memory.extent(strided) if strided else size
            arena.write(landing.start, nbytes, mine.offset, strided)
            words = buffer, to, turn, source, turn
        else:
            out, start = self.place(
                self.out, mine.sent % len(self.out), mine.size
            )
            out.write(start, mine.size, mine.offset)
            sent = self.specification(
                out, start, mine.size, None, (mine.sent >> 32) % 16
            )
            words = sent, to, turn, buffer, source, turn
        result = getattr(self.ring, form)(
            *words, *(() if form[0] == "I" else (status,))
        )
        if form[0] == "I":
            self.pending.append(
                (
                    result,
                    lambda status: self.land(
                        batch, self.ring, landing, status
                    ),
                )
            )
        else:
            self.land(batch, self.ring, landing, status)

    def make_lasting(self):
        """Persistent requests that serve in many batches."""
        self.local = random.Random(self.options.seed)
        self.lasting = []
        size = self.world.size
        ring = self.lasting_ring = self.comm.Create_cart([size], [True])
        right, left = (self.rank + 1) % size, (self.rank - 1) % size
        for turn, nbytes in enumerate(plans.LASTING_SIZES):
            nbytes = min(nbytes, self.options.max_bytes)
            for arenas, make, peer in (
                (self.out, ring.Send_init, right),
                (self.into, ring.Recv_init, left),
            ):
                arena, start = self.place(arenas, turn + 1, nbytes)
                request = make(arena.buffer(start, nbytes), peer, 100 + turn)
                self.lasting.append((request, arena, start, nbytes))
        self.base = {
            id(arena): arena.used for arena in (*self.out, *self.into)
        }

    def start_lasting(self, batch):
        mine = sorted(
            (m for m in batch.by_lane[plans.LASTING] if m.source == self.rank),
            key=lambda m: m.turn,
        )
        theirs = sorted(
            (m for m in batch.by_lane[plans.LASTING] if m.dest == self.rank),
            key=lambda m: m.turn,
        )
        requests = []
        for k, (request, arena, start, nbytes) in enumerate(self.lasting):
            turn = k // 2
            requests.append(request)
            if k % 2 == 0:
                arena.write(start, nbytes, mine[turn].offset)
                self.pending.append(
                    (
                        request,
                        lambda status, piece=(arena, start, nbytes): (
                            self.spoil(*piece)
                        ),
                    )
                )
            else:
                message = theirs[turn]
                receive = plans.Receive(
                    message, message.source, message.tag, nbytes, 0
                )
                landing = Landing(receive, arena, start, None, False)
                self.landings.append(landing)
                self.pending.append(
                    (
                        request,
                        lambda status, landing=landing: self.land(
                            batch, self.lasting_ring, landing, status
                        ),
                    )
                )
        self.local.shuffle(requests)
        if self.local.random() < 0.7:
            wm.Prequest.Startall(requests)
        else:
            for request in requests:
                request.Start()

    def nobody(self, batch, comm):
        """What is for nobody, and what nothing comes for."""
        arena, start = self.place(
            self.into, self.local.randrange(len(self.into)), 100
        )
        buffer, status = arena.buffer(start, 100), MPI.Status()
        form = self.local.randrange(5)
        if form == 0:
            comm.Send(buffer, MPI.PROC_NULL, 3)
        elif form == 1:
            comm.Recv(buffer, MPI.PROC_NULL, 3, status)
        elif form == 2:
            comm.Irecv(buffer, MPI.PROC_NULL).Wait(status)
        elif form == 3:
            comm.Probe(MPI.PROC_NULL, 3, status)
        else:
            comm.Isend(buffer, MPI.PROC_NULL).Wait()
        if form in (1, 2, 3) and (
            status.source != MPI.PROC_NULL or status.Get_count(MPI.BYTE)
        ):
            self.wrong(batch, None, f"nobody sent, by {form}: {status.source}")
        if comm.Iprobe(MPI.ANY_SOURCE, plans.NEVER):
            self.wrong(batch, None, "a probe found what nobody sent")

    def post_in_vain(self, comm):
        arena, start = self.place(
            self.into, self.local.randrange(len(self.into)), 1000
        )
        source = self.local.choice((MPI.ANY_SOURCE, 0, self.rank))
        buffer = arena.buffer(start, 1000)
        if self.local.random() < 0.3:
            request = comm.Recv_init(buffer, source, plans.NEVER)
            request.Start()
        else:
            request = comm.Irecv(buffer, source, plans.NEVER)
        self.vain.append(request)

    # A batch

    def run(self, batch):
        """All of a batch that is this rank's."""
        self.local = random.Random(
            f"{self.options.seed} {batch.number} {self.rank}"
        )
        self.pending, self.alone, self.wild = [], [], []
        self.unknown, self.followed, self.vain = [], [], []
        self.unready = []
        self.landings = []
        for arena in (*self.out, *self.into):
            arena.used = self.base[id(arena)]
        if self.options.freed:
            self.make_communicators()
        self.step(self.first_steps(batch))
        if batch.ready:
            self.where = f"{self.rank}: the barrier before ready sends"
            self.plain.Barrier()
        self.step(self.second_steps(batch))
        if self.options.freed:
            self.free_communicators(batch)
        self.where = f"{self.rank} finishes batch {batch.number}"
        self.finish(batch)
        flushes = "bsend" in self.features and not self.options.freed
        if flushes and self.local.random() < 0.5:
            self.where = f"{self.rank} flushes after {batch.number}"
            for comm in self.pair:
                comm.Flush_buffer()
        if any(batch.wild.values()):
            self.where = f"{self.rank}: the barrier after {batch.number}"
            barrier = (self.plain, self.comm)[batch.barrier % 2].Barrier
            barrier()
        self.verify(batch)

    def step(self, queues):
        """Each queue in its order, and all of them in any."""
        queues = [queue for queue in queues if queue]
        turns = [
            k for k, queue in enumerate(queues) for _ in range(len(queue))
        ]
        self.local.shuffle(turns)
        places = [iter(queue) for queue in queues]
        for k in turns:
            call, *arguments = next(places[k])
            call(*arguments)

    def sends(self, batch, lane):
        return [m for m in batch.by_lane[lane] if m.source == self.rank]

    def receives(self, batch, lane):
        mine = [m for m in batch.by_lane[lane] if m.dest == self.rank]
        return plans.receives(mine, batch.wild.get(lane, False), self.local)

    def first_steps(self, batch):
        posted = self.lane_comm(batch, plans.POSTED)
        awaited = self.lane_comm(batch, plans.AWAITED)
        vain = [posted, awaited] * (self.local.random() < 0.3)
        steps = [
            [
                (self.post, batch, plans.POSTED, receive, posted)
                for receive in self.receives(batch, plans.POSTED)
            ],
            [
                (self.begin_send, batch, message, awaited)
                for message in self.sends(batch, plans.AWAITED)
            ],
            [
                (self.post, batch, plans.PLAIN, receive, self.plain)
                for receive in self.receives(batch, plans.PLAIN)
            ],
            [
                (self.send_object, message, self.objects)
                for message in self.sends(batch, plans.OBJECT)
            ],
            [(self.post_in_vain, comm) for comm in vain],
            self.both_partitioned(batch),
        ]
        if batch.by_lane[plans.LASTING]:
            steps.append([(self.start_lasting, batch)])
        return steps

    def second_steps(self, batch):
        posted = self.lane_comm(batch, plans.POSTED)
        awaited = self.lane_comm(batch, plans.AWAITED)
        return [
            [
                (self.begin_send, batch, message, posted)
                for message in self.sends(batch, plans.POSTED)
            ],
            [
                (self.receive, batch, receive, awaited)
                for receive in self.receives(batch, plans.AWAITED)
            ],
            [
                (self.begin_send, batch, message, self.plain)
                for message in self.sends(batch, plans.PLAIN)
            ],
            [
                (self.receive_object, batch, receive, self.objects)
                for receive in self.receives(batch, plans.OBJECT)
            ],
            [(self.turn_ring, batch, turn) for turn in range(3)],
            [(self.nobody, batch, comm) for comm in (posted, awaited)],
            [(self.make_ready,)],
        ]

    def cancel(self, batch):
        """The receives for which nothing comes."""
        while self.vain:
            request = self.vain.pop()
            status = MPI.Status()
            request.Cancel()
            request.Wait(status)
            if not status.Is_cancelled():
                self.wrong(batch, None, "a receive in vain was not cancelled")

    def finish(self, batch):
        """Everything that was begun, in any order and by any call."""
        self.cancel(batch)
        finish(self.pending, self.local)
        for request, _, landing in self.alone:
            try:
                if self.local.random() < 0.5:
                    request.Wait()
                else:
                    loop(request.Test)
            except MPI.Exception as error:
                self.truncated(batch, landing, error)
            else:
                self.wrong(
                    batch,
                    landing.receive.message,
                    "was not truncated",
                    landing,
                )

    def verify(self, batch):
        """Which wild message came where, and every byte of the arenas."""
        self.where = f"{self.rank} verifies batch {batch.number}"
        left = {}
        for lane, wild in batch.wild.items():
            comm = self.lane_comm(batch, lane)
            for message in batch.by_lane[lane] if wild else ():
                if message.dest == self.rank:
                    key = id(comm), message.source, message.tag
                    left.setdefault(key, []).append(message)
        for comm, landing in self.wild:
            status = landing.status
            source = self.rank_in(comm, status.source)
            queue = left.get((id(comm), source, status.tag))
            if not queue:
                told = f"a message from {source}, tag {status.tag} too much"
                self.wrong(batch, None, told, landing)
            self.settle(batch, comm, queue.pop(0), landing)
        for message, landing in self.followed:
            found = landing.arena.followed(landing.start, message.size)
            self.compare(batch, message, landing, found)
        for arena in self.into:
            if arena.stream is not None:
                arena.stream.synchronize()
        for landing in self.unknown:
            landing.arena.forget(landing.start, landing.receive.capacity)
        for arena in self.into:
            found = arena.difference()
            if found:
                self.wrong_place(batch, arena, *found)

    def wrong_place(self, batch, arena, place, found, right):
        """Tells of the message that is there, or the last one before."""
        landing = max(
            (
                x
                for x in self.landings
                if x.arena is arena and x.start <= place
            ),
            key=lambda x: x.start,
            default=None,
        )
        self.wrong(
            batch,
            landing and landing.receive.message,
            f"byte {place} of {arena.name} memory is {found} and not {right}",
            landing,
        )


def run(world, argv=()):
    """The program on a communicator; how many messages and bytes came."""
    options = parse(argv)
    runner = Runner(world, options)
    if options.patience:
        lives.watch(runner, options.patience)
    stops = options.stops and lives.Stops(f"{options.seed} {runner.rank}")
    room = runner.room()
    began = told = time.monotonic()
    number, planned = options.first, 0
    while planned < options.messages:
        batch = runner.plan.batch(number)
        runner.run(batch)
        planned += len(batch.messages)
        number += 1
        runner.seen = now = time.monotonic()
        if options.seconds:
            runner.plain.Barrier()  # the copies of one may not have left
            over = world.bcast(now - began > options.seconds)
            if over:
                break
        if runner.rank == 0 and options.verbose and now - told > 10:
            told = now
            print(f"{planned} messages, {now - began:.0f} s", flush=True)
    runner.seen = float("inf")
    if stops:
        stopped = world.allreduce(stops.close())
        if runner.rank == 0:
            print(f"stopped {stopped} times", flush=True)
    messages = world.allreduce(runner.messages)
    nbytes = world.allreduce(runner.bytes)
    if messages != planned:
        raise Wrong(f"{messages} messages came, {planned} were planned")
    left = runner.room() - room
    if left > 0:
        raise Wrong(f"{left} communicators are left")
    runner.close()
    return messages, nbytes, time.monotonic() - began, runner


def parse(argv):
    parser = lives.parser(__doc__)
    add = parser.add_argument
    add("--seed", type=int, default=1)
    add("--messages", type=int, default=10_000, help="at least so many")
    add("--max-bytes", type=int, default=4 << 20, help="of a message")
    lives.options(add)
    add("--first", type=int, default=0, help="batch to begin with")
    add("--inflight", type=int, default=BATCHES, help="a rank and batch")
    add("--kinds", nargs="*", help="kinds of memory (default: all there are)")
    add("--peek", type=float, default=0.5, help="part looked at at once")
    add("--basic", action="store_true", help="without calls added later")
    add("--freed", action="store_true", help="with what is under way")
    add("--verbose", action="store_true")
    return lives.parse(parser, argv, "--messages")


def main():
    world, argv = MPI.COMM_WORLD, sys.argv[1:]
    lives.place(world.rank, parse(argv).apart)
    messages, nbytes, seconds, runner = run(world, argv)
    if world.rank == 0:
        print(
            f"{messages} messages, {nbytes} bytes, every one right, on "
            f"{world.size} ranks in {seconds:.1f} s; memory: "
            f"{', '.join(arena.name for arena in runner.into)}; calls: "
            f"{', '.join(sorted(runner.features)) or 'the first ones'}",
            flush=True,
        )


if __name__ == "__main__":
    lives.main(main)
