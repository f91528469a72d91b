# SPDX-License-Identifier: BSD-3-Clause
"""The n-th driver call of one rank fails, for one n after the other.

What must hold: each rank has the right data or an exception of ours; nobody
crashes or hangs; the communicator serves again; nothing stays taken. A seeded
sample of n, or every n with WARPMPI_TEST_FULL=1.
"""

import contextlib
import ctypes
import faulthandler
import gc
import os
import random
import threading
import time

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import ranks
import warpmpi as wm
from warpmpi import _core

pytestmark = pytest.mark.skipif(
    "WARPMPI_CUDA_DRIVER" not in os.environ
    or not hasattr(kinds.driver(), "simcuda_fail"),
    reason="needs the simulated driver",
)

FULL = os.environ.get("WARPMPI_TEST_FULL") == "1"
SEED = int(os.environ.get("WARPMPI_TEST_SEED", "1"))
SAMPLE = 4  # of n, for each scenario and failing rank
MOST = 150  # beyond it a rank only asks again whether a stream is idle
HANGS = 30.0  # seconds that no message takes
UNKNOWN = 999  # CUDA_ERROR_UNKNOWN
ERRORS = (wm.CudaError, MPI.Exception)  # OutOfMemoryError is a CudaError

SLOTS = 2048  # WM_SLOTS
SMALL, LARGE, RING = 1000, 1_000_000, 51_000_000
BOTH_WAYS = 5_000_000


def live():
    """What the driver holds for this process."""
    what = ("memory", "mappings", "streams", "events", "pinned", "registered")
    driver = kinds.driver()
    driver.simcuda_live.restype = ctypes.c_long
    return {name: driver.simcuda_live(name.encode()) for name in what}


def calls():
    driver = kinds.driver()
    driver.simcuda_calls.restype = ctypes.c_long
    return driver.simcuda_calls(None)


def arm(n):
    kinds.driver().simcuda_fail(None, ctypes.c_long(n), UNKNOWN)


def in_use():
    """What the library says is taken of its own pools."""
    gc.collect()
    stats = _core._memory_stats()
    used = "device_bytes_used", "pinned_bytes_used", "blocks", "pinned_blocks"
    return {key: stats[key] for key in used}


def at_rest():
    """The same, once the last messages have been let go of."""
    before, now = None, in_use()
    while now != before:
        time.sleep(0.02)
        before, now = now, in_use()
    return now


@contextlib.contextmanager
def guard(what):
    """Ends the job, saying what it was in, if the block takes too long."""

    def late():
        file = int(os.environ.get("WARPMPI_TEST_STDERR", "2"))
        os.write(file, f"rank {MPI.COMM_WORLD.rank} hangs: {what}\n".encode())
        faulthandler.dump_traceback(file)
        os._exit(70)

    timer = threading.Timer(HANGS, late)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def wait_for(condition, seconds=5.0):
    """Until it holds, or for so long and a few looks; what it was at last."""
    end, looks = time.monotonic() + seconds, 5
    while not (held := condition()) and (looks > 0 or time.monotonic() < end):
        looks -= 1
        time.sleep(0.002)
    return held


def pattern(size, seed):
    period = ((np.arange(251) + 7 * seed) % 251).astype("u1")
    return np.resize(period, size)


class Scenario:
    """One way of moving bytes from rank 0 to rank 1, tried many times."""

    both = False  # whether rank 0 receives as well
    collective = False
    grows = 4  # what pools may: what was busy when a call failed

    def __init__(self, comm, source, into, size):
        self.comm = comm
        self.size = size
        zeros = np.zeros(size, np.uint8)
        self.out = self.buffer = None
        if comm.rank == 0 or self.both:
            self.out = kinds.make(source, zeros)
        if comm.rank != 0 or self.both:
            self.buffer = kinds.make(into, zeros)

    def prepare(self, turn):
        self.tag = turn % 30000
        self.expected = pattern(self.size, turn)
        if self.out is not None:
            write(self.out, self.expected)
        if self.buffer is not None:
            write(self.buffer, np.full(self.size, 255, np.uint8))

    def receives(self):
        return self.buffer is not None

    def sends(self):
        return self.out is not None

    def other(self):
        return 1 - self.comm.rank

    def run(self):
        if self.comm.rank == 0:
            self.comm.Send(self.out, 1, self.tag)
        else:
            self.comm.Recv(self.buffer, 0, self.tag)

    def check(self):
        if self.receives():
            np.testing.assert_array_equal(
                kinds.values_of(self.buffer), self.expected
            )

    def check_late(self, received):
        """What was received instead of it, without gaps."""
        np.testing.assert_array_equal(received, self.expected)


def write(buffer, values):
    if isinstance(buffer, np.ndarray):
        buffer[:] = values
    else:
        wm.asarray(buffer).assign(
            wm.array(values, device=wm.asarray(buffer).device)
        )


class Exchange(Scenario):
    both = True

    def run(self):
        self.run_on(self.comm)

    def run_on(self, comm):
        comm.Sendrecv(
            self.out,
            self.other(),
            self.tag,
            self.buffer,
            self.other(),
            self.tag,
        )


class OnOneGPU(Scenario):
    """There and back on a GPU that both ranks use."""

    both = True

    def __init__(self, comm, source, into, size):
        super().__init__(comm, source, into, size)
        self.out, self.buffer = (
            wm.zeros(size, "u1", device="cuda:0") for _ in "ab"
        )

    def run(self):
        calls = [
            lambda: self.comm.Ssend(self.out, self.other(), self.tag),
            lambda: self.comm.Recv(self.buffer, self.other(), self.tag),
        ]
        error = None
        for call in calls if self.comm.rank == 0 else reversed(calls):
            try:
                call()
            except ERRORS as raised:
                error = raised
        if error is not None:
            raise error


class Requests(Scenario):
    both = True
    waitall = staticmethod(wm.Request.Waitall)

    def run(self):
        self.run_on(self.comm)

    def run_on(self, comm):
        """What can be begun is, for the peer's sake, and then waited for."""
        error, requests = None, []
        begin = (comm.Irecv, self.buffer), (comm.Isend, self.out)
        for call, buffer in begin:
            try:
                requests.append(call(buffer, self.other(), self.tag))
            except ERRORS as raised:
                error = raised
        try:
            self.waitall(requests)
        finally:
            # Waitall may raise at the first that failed, with others left.
            for request in requests:
                with contextlib.suppress(*ERRORS):
                    request.Wait()
        if error is not None:
            raise error


class StockRequests(Requests):
    waitall = staticmethod(MPI.Request.Waitall)


class Objects(Scenario):
    """Arrays inside a pickled object, received into new ones."""

    send = "send"
    grows = 12  # each array has events of its own

    def run(self):
        if self.comm.rank == 0:
            obj = {"first": self.out, "second": [self.out[: self.size // 2]]}
            sent = getattr(self.comm, self.send)(obj, 1, self.tag)
            if sent is not None:
                sent.wait()
        else:
            self.got = self.comm.recv(source=0, tag=self.tag)

    def check(self):
        if self.receives():
            got, half = self.got, self.size // 2
            self.got = None
            for array, wanted in (
                (got["first"], self.expected),
                (got["second"][0], self.expected[:half]),
            ):
                np.testing.assert_array_equal(array.numpy(), wanted)


class ObjectsBegun(Objects):
    send = "isend"


class ObjectCollective(Objects):
    """The same from rank 0 to all by a lower-case collective."""

    collective = True
    name = ""

    def run(self):
        comm, obj = self.comm, None
        if comm.rank == 0:
            obj = {"first": self.out, "second": [self.out[: self.size // 2]]}
        try:
            if self.name == "bcast":
                self.got = comm.bcast(obj)
            elif self.name == "gather":
                self.got = (comm.gather(obj, 1) or [None])[0]
            elif self.name == "scatter":
                self.got = comm.scatter([obj] * comm.size)
            elif self.name == "allgather":
                self.got = comm.allgather(obj)[0]
            else:
                self.got = comm.alltoall([obj] * comm.size)[0]
        except RuntimeError as error:
            if f"could not send its part of this {self.name}" in str(error):
                raise wm.CudaError(str(error)) from None
            raise


def collective_of_objects(name):
    return type(name, (ObjectCollective,), {"name": name})


class OnStream(Scenario):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.stream = wm.Stream(wm.get_device())
        self.channel = self.comm.on(self.stream)

    def run(self):
        if self.comm.rank == 0:
            self.channel.Send(self.out, 1, self.tag)
        else:
            self.channel.Recv(self.buffer, 0, self.tag)
        self.stream.synchronize()


class BothOnStream(OnStream):
    def run(self):
        self.run_on(self.channel)
        self.stream.synchronize()


class ExchangeOnStream(BothOnStream, Exchange):
    pass


class RequestsOnStream(BothOnStream, Requests):
    pass


class PersistentOnStream(OnStream):
    both = True

    def run(self):
        """What can be started is, for the peer's sake."""
        error = None
        init = self.channel.Recv_init, self.channel.Send_init
        pairs = zip(init, (self.buffer, self.out), strict=True)
        requests = [call(x, self.other(), self.tag) for call, x in pairs]
        for call in ("Start", "Wait"):
            for request in requests:
                try:
                    getattr(request, call)()
                except ERRORS as raised:
                    error = error or raised
        if error is not None:
            raise error
        self.stream.synchronize()


def every_other(flat):
    return flat.reshape(-1, 2)[:, 1]


class Strided(Scenario):
    """Every other byte of an array."""

    def __init__(self, comm, source, into, size):
        super().__init__(comm, source, into, 2 * size)
        self.size = size
        if self.out is not None:
            self.out = every_other(self.out)
        if self.buffer is not None:
            self.buffer = every_other(self.buffer)


class StridedExchange(Strided, Exchange):
    pass


class StridedRequests(Strided, Requests):
    pass


class StridedOnStream(Strided, OnStream):
    pass


class Typed(Scenario):
    """Triples of every four bytes, which only MPI can pack."""

    kind = MPI.BYTE.Create_indexed([1, 2], [1, 2]).Create_resized(0, 4)

    def __init__(self, comm, source, into, size):
        super().__init__(comm, source, into, size // 3 * 4)
        self.count = self.size // 4
        self.kind.Commit()

    def typed(self, array):
        return [array, self.count, self.kind]

    def run(self):
        if self.comm.rank == 0:
            self.comm.Send(self.typed(self.out), 1, self.tag)
        else:
            self.comm.Recv(self.typed(self.buffer), 0, self.tag)

    def check(self):
        if self.receives():
            values = kinds.values_of(self.buffer).reshape(-1, 4)
            expected = self.expected.reshape(-1, 4)
            np.testing.assert_array_equal(values[:, 1:], expected[:, 1:])
            assert (values[:, 0] == 255).all()

    def check_late(self, received):
        expected = self.expected.reshape(-1, 4)[:, 1:].reshape(-1)
        np.testing.assert_array_equal(received[: expected.size], expected)


class Bcast(Scenario):
    collective = True

    def run(self):
        self.comm.Bcast(self.out if self.sends() else self.buffer, 0)


class Allreduce(Scenario):
    both = collective = True

    def run(self):
        self.comm.Allreduce(self.out, self.buffer, MPI.MAX)


class Started(Allreduce):
    """A persistent one, made before anything fails."""

    def __init__(self, *args):
        super().__init__(*args)
        self.request = self.comm.Allreduce_init(self.out, self.buffer, MPI.MAX)

    def run(self):
        self.request.Start()
        self.request.Wait()


class Between(Allreduce):
    """Between the even ranks and the others."""

    def __init__(self, comm, *rest):
        super().__init__(comm, *rest)
        local = comm.Split(comm.rank % 2, comm.rank)
        self.comm = local.Create_intercomm(0, comm, 1 - comm.rank % 2)
        local.Free()


def attempt(scenario, plain, turn, culprit, n):
    """Once through it with the n-th call failing; how many calls it made.

    Both ranks raise if one of them has found something wrong.
    """
    what = f"{type(scenario).__name__} {scenario.size} rank {culprit} n {n}"
    wrong = None
    with guard(what):
        scenario.prepare(turn)
        plain.Barrier()
        before = calls()
        error = None
        if n and plain.rank == culprit:
            arm(n)
        try:
            scenario.run()
        except Exception as raised:
            error = raised.with_traceback(None)
        made = calls() - before
        arm(0)
        try:
            if error is None:
                scenario.check()
            elif not n or not isinstance(error, ERRORS):
                raise error
        except Exception as raised:
            wrong = f"rank {plain.rank}: {raised!r}"
        try:
            if not scenario.collective:
                settle(scenario, plain, error is not None)
        except Exception as raised:
            wrong = wrong or f"rank {plain.rank}: {raised!r}"
        wrong = [text for text in plain.allgather(wrong) if text]
        assert not wrong, (what, wrong)
    with guard(f"the exchange after {what}"):
        exchange(scenario, turn)
    return made


def settle(scenario, plain, failed):
    """Takes the messages that a receive failed before it could take them.

    Each rank says when its sends have ended; a rank whose receive failed
    receives, into host memory, until it has heard that.
    """
    token = np.zeros(1)
    told = plain.Isend(token, scenario.other(), 1)
    heard = plain.Irecv(np.zeros(1), scenario.other(), 1)
    rest = np.zeros(scenario.size, np.uint8)
    came = False
    if failed and scenario.receives():
        request = scenario.comm.Irecv(rest, scenario.other(), scenario.tag)
        try:
            while not heard.Test() and not came:
                came = request.Test()
                time.sleep(0.0002)
            # Its header may travel behind the word.
            came = came or wait_for(request.Test, 0.01)
            if not came:
                request.Cancel()
                request.Wait()
        except ERRORS:
            came = False
    heard.Wait()
    told.Wait()
    if came:
        scenario.check_late(rest)


def exchange(scenario, turn):
    """Both ways, host and GPU memory, undisturbed."""
    comm, tag = scenario.comm, 30001
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for kind in ("host", "device"):
        out = kinds.make(kind, np.full(700, (comm.rank + turn) % 99, "u1"))
        into = kinds.make(kind, np.zeros(700, "u1"))
        comm.Sendrecv(out, right, tag, into, left, tag)
        assert (kinds.values_of(into) == (left + turn) % 99).all()


def chosen(number, generator, size):
    """The n to try, of so many calls."""
    everything = range(
        1, min(number, MOST) + 3
    )  # polling makes their number vary
    sample = SAMPLE if size < RING else 1
    if FULL or len(everything) <= sample:
        return list(everything)
    return sorted(generator.sample(everything, sample))


def try_all(make, comm, plain, name):
    faulthandler.cancel_dump_traceback_later()  # a guard for each instead
    generator = random.Random(f"{SEED} {name}")
    scenario = make(comm)
    turn = 0
    for culprit in range(plain.size):
        for _ in range(3):  # what is opened once is open then
            turn += 1
            made = attempt(scenario, plain, turn, culprit, 0)
        number = plain.bcast(made, culprit)
        taken, held = in_use(), live()
        for n in chosen(number, generator, scenario.size):
            turn += 1
            attempt(scenario, plain, turn, culprit, n)
            left = wait_for_release(taken)
            left = [text for text in plain.allgather(left) if text]
            assert not left, (name, culprit, n, left)
        after = live()
        for kind, count in after.items():
            # Pools may have grown by what was busy when a call failed, and
            # freed blocks keep events until there are many of these.
            more = scenario.grows + (32 if kind == "events" else 0)
            assert count <= held[kind] + more, (kind, held, after)


def wait_for_release(taken):
    """What is in use although it was not before."""

    def released():  # a copy that was in use at first may have gone since
        now = in_use()
        return all(now[key] <= taken[key] for key in taken)

    if wait_for(released, 2.0):
        return None
    return f"rank {MPI.COMM_WORLD.rank}: {taken} became {in_use()}"


P2P = {
    "device_small": (Scenario, "device", "device", SMALL),
    "device_large": (Scenario, "device", "device", LARGE),
    "foreign": (Scenario, "foreign", "foreign", LARGE),
    "device_to_host_small": (Scenario, "device", "host", SMALL),
    "device_to_host_large": (Scenario, "device", "host", LARGE),
    "host_to_device_small": (Scenario, "host", "device", SMALL),
    "host_to_device_large": (Scenario, "host", "device", LARGE),
    "pool_small": (Scenario, "pool", "pool", SMALL),
    "pool_in_a_ring": (Scenario, "pool", "device", RING),
    "managed": (Scenario, "managed", "managed", LARGE),
    "sendrecv": (Exchange, "device", "device", LARGE),
    "sendrecv_large": (Exchange, "device", "device", BOTH_WAYS),
    "on_one_gpu": (OnOneGPU, "device", "device", LARGE),
    "requests": (Requests, "device", "device", LARGE),
    "stock_waitall": (StockRequests, "device", "device", LARGE),
    "requests_of_pool_memory": (Requests, "pool", "pool", SMALL),
    "objects_small": (Objects, "device", "device", SMALL),
    "objects_large": (Objects, "device", "device", LARGE),
    "objects_begun": (ObjectsBegun, "device", "device", LARGE),
    "on_stream_small": (OnStream, "device", "device", SMALL),
    "on_stream_large": (OnStream, "device", "device", LARGE),
    "on_stream_pool": (OnStream, "pool", "pool", SMALL),
    "on_stream_to_host": (OnStream, "device", "host", LARGE),
    "exchange_on_stream": (ExchangeOnStream, "device", "device", SMALL),
    "requests_on_stream": (RequestsOnStream, "device", "device", SMALL),
    "persistent_on_stream": (PersistentOnStream, "device", "device", SMALL),
    "strided_small": (Strided, "device", "device", SMALL),
    "strided_to_host": (Strided, "device", "host", LARGE),
    "host_to_strided": (Strided, "host", "device", LARGE),
    "strided_requests": (StridedRequests, "device", "device", LARGE),
    "strided_exchange": (StridedExchange, "device", "device", SMALL),
    "strided_on_stream": (StridedOnStream, "device", "device", SMALL),
    "strided_large_on_stream": (StridedOnStream, "device", "device", LARGE),
    "datatype": (Typed, "device", "device", SMALL),
}
COLLECTIVES = {
    "bcast": (Bcast, "device", "device", LARGE),
    "short_bcast": (Bcast, "device", "device", SMALL),
    "allreduce": (Allreduce, "device", "device", LARGE),
    "persistent": (Started, "device", "device", LARGE),
    "between": (Between, "device", "device", LARGE),
    **{
        f"objects_{name}": (
            collective_of_objects(name),
            "device",
            "device",
            SMALL if name == "gather" else LARGE,
        )
        for name in ("bcast", "gather", "scatter", "allgather", "alltoall")
    },
}


@pytest.fixture(scope="module")
def plain(world):
    """What the tests themselves speak over."""
    comm = world.Dup()
    yield comm
    comm.Free()


@pytest.mark.skipif(MPI.COMM_WORLD.size != 2, reason="between two ranks")
@pytest.mark.parametrize("name", list(P2P))
def test_faults_of_messages(comm, plain, name):
    kind, source, into, size = P2P[name]
    try_all(lambda c: kind(c, source, into, size), comm, plain, name)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", list(COLLECTIVES))
def test_faults_of_collectives(comm, plain, name):
    kind, source, into, size = COLLECTIVES[name]
    try_all(lambda c: kind(c, source, into, size), comm, plain, name)


@pytest.mark.skipif(MPI.COMM_WORLD.size != 2, reason="between two ranks")
def test_failed_sends_give_their_slots_back(comm, plain):
    """More of them fail than there are slots; the next is still offered."""
    array = kinds.make("foreign", np.ones(LARGE, np.uint8))
    driver = kinds.driver()
    failures = 0
    for _ in range(
        2 * SLOTS
    ):  # now and then the query of a pool's stream fails
        plain.Barrier()
        try:
            if comm.rank == 0:
                driver.simcuda_fail(b"StreamQuery", ctypes.c_long(1), UNKNOWN)
                comm.Send(array, 1)
            else:
                comm.Recv(array, 0)
        except wm.CudaError:
            failures += 1
        if failures > SLOTS:
            break
    assert failures > SLOTS
    before = wm.stats()["host_messages"]
    if comm.rank == 0:
        comm.Send(array, 1)
    else:
        comm.Recv(array, 0)
    told = wm.transport(comm, 1 - comm.rank, array)
    assert wm.stats()["host_messages"] == before, told


@pytest.mark.skipif(MPI.COMM_WORLD.size != 2, reason="between two ranks")
def test_the_receiver_hears_why_in_whole_words(comm, plain):
    array = kinds.make("strided", np.ones(LARGE, np.uint8))
    told = []
    for n in range(1, 25):
        text = None
        plain.Barrier()
        try:
            if comm.rank == 0:
                arm(n)
                comm.Send(array, 1)
            else:
                comm.Recv(array, 0)
        except wm.CudaError as error:
            text = str(error)
        arm(0)
        told += [plain.allgather(text)]
    told = [words for words in told if None not in words]
    assert told
    for why, heard in told:
        given = heard.partition("the sender, rank 0, failed: ")[2]
        begins, cut, after = given.partition(" ...")
        assert after == "" and len(given) < 184
        assert why.startswith(begins + " ") if cut else why == given, told
        assert len(why) > 159 or not cut, told


@pytest.mark.skipif(MPI.COMM_WORLD.size != 2, reason="between two ranks")
def test_the_kernel_of_an_exchange_is_not_launched(comm, plain):
    """Though the other rank's waits for it already, nobody waits for ever."""
    stream = wm.Stream(wm.get_device())
    sent, got = (wm.zeros(1000, device=wm.get_device()) for _ in range(2))
    words = sent, 1 - comm.rank, 0, got, 1 - comm.rank, 0
    channel, driver = comm.on(stream), kinds.driver()
    channel.Sendrecv(*words)
    driver.simcuda_fail_slowly(ctypes.c_long(20_000))
    for _ in range(3):
        plain.Barrier()
        if comm.rank == 0:
            driver.simcuda_fail(b"LaunchKernel", ctypes.c_long(1), UNKNOWN)
        with pytest.raises(wm.CudaError):
            channel.Sendrecv(*words)
        stream.synchronize()
        plain.Barrier()
        channel.Sendrecv(*words)
        stream.synchronize()


@pytest.mark.skipif(MPI.COMM_WORLD.size != 2, reason="between two ranks")
@pytest.mark.parametrize("kind", ["device", "strided"])
def test_a_stream_is_given_nothing_that_may_yet_fail(comm, plain, kind):
    """The sender fails when its header is on its way already."""
    array = kinds.make("device", np.ones(2 * LARGE, np.uint8))
    array = every_other(array) if kind == "strided" else array[:LARGE]
    stream = wm.Stream(wm.get_device())
    channel = comm.on(stream)
    function = b"StreamWriteValue32" if kind == "device" else b"LaunchKernel"
    driver = kinds.driver()
    driver.simcuda_fail_slowly(ctypes.c_long(20_000))
    for _ in range(5):
        plain.Barrier()
        if comm.rank == 0:
            if kind == "device":  # a busy stream promises
                array.fill_(1, stream=stream)
            driver.simcuda_fail(function, ctypes.c_long(1), UNKNOWN)
            with pytest.raises(wm.CudaError):
                channel.Send(array, 1)
        else:
            with pytest.raises(wm.CudaError, match="rank 0, failed"):
                channel.Recv(array, 0)
    driver.simcuda_fail(function, ctypes.c_long(0), UNKNOWN)
    driver.simcuda_fail_slowly(ctypes.c_long(0))


@pytest.mark.programs
def test_faults_of_the_host_transport(tmp_path):
    names = "device_small or device_large or on_stream_small"
    ranks.run(
        ranks.ROOT / "tests" / "pytest_main.py",
        tmp_path,
        "-q",
        "-p",
        "no:cacheprovider",
        "-x",
        "-k",
        f"faults_of_messages and ({names})",
        ranks.ROOT / "tests" / "mpi" / "test_faults.py",
        timeout=300,
        WARPMPI_TRANSPORT="host",
    )


# The sender's GPU has no room for a copy of half of the array.
NO_MEMORY = """
    import numpy as np
    from mpi4py import MPI
    import warpmpi as wm

    comm = wm.Comm(MPI.COMM_WORLD)
    comm.Attach_buffer(bytearray(1 << 24))
    SIZE = 8_000_000
    if comm.rank == 0:
        array = wm.ones(SIZE, np.uint8)
        begun = comm.Bsend_init(array, 1, 3)
    else:
        into = np.zeros(SIZE, np.uint8)
    calls = {
        "Bsend": lambda: comm.Bsend(array, 1, 3),
        "Ibsend": lambda: comm.Ibsend(array, 1, 3).Wait(),
        "Bsend_init": lambda: (begun.Start(), begun.Wait()),
        "send": lambda: comm.send([array[::2]], 1, 3),
        "ssend": lambda: comm.ssend([array[::2]], 1, 3),
        "isend": lambda: comm.isend([array[::2]], 1, 3).wait(),
        "bsend": lambda: comm.bsend([array], 1, 3),
    }
    for name, call in calls.items():
        comm.Barrier()
        try:
            if comm.rank == 0:
                call()
            elif "B" in name:
                comm.Recv(into, 0, 3)
            else:
                comm.recv(source=0, tag=3)
            print(name, "raised nothing", flush=True)
        except wm.CudaError as error:
            if comm.rank == 0:
                assert isinstance(error, wm.OutOfMemoryError)
            else:
                assert "rank 0, failed: allocating" in str(error), error
            print("told", flush=True)
    comm.Detach_buffer()
    # The numbers of what follows are the same on both ends.
    if comm.rank == 0:
        comm.send(array[:9], 1, 3)
    else:
        assert (comm.recv(source=0, tag=3).numpy() == 1).all()
"""


@pytest.mark.programs
def test_the_receiver_hears_of_a_copy_that_finds_no_memory(tmp_path):
    printed = ranks.run_text(tmp_path, NO_MEMORY, SIMCUDA_MEMORY="12000000")
    assert printed.split() == ["told"] * 14, printed
