# SPDX-License-Identifier: BSD-3-Clause
"""The simulated driver's captures and graphs, and what they forbid."""

import ctypes as ct
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "simcuda"))

from driver_calls import (
    INVALID_VALUE,
    Driver,
    Handle,
    Ptr,
    Size,
    driver_library,  # noqa: F401
    fresh,
    main,
)

UNSUPPORTED, INVALIDATED, MERGE, UNMATCHED, UNJOINED = range(900, 905)
ISOLATION, IMPLICIT, CAPTURED_EVENT, WRONG_THREAD = range(905, 909)
GLOBAL, THREAD_LOCAL, RELAXED = range(3)
BLOCKING, NON_BLOCKING = range(2)


class Graphs(Driver):
    def begin(self, stream, mode=GLOBAL):
        self("StreamBeginCapture", stream, mode)

    def end(self, stream):
        """The result, and what there is to launch."""
        graph, made = Handle(), Handle()
        result = self.call("StreamEndCapture", stream, ct.byref(graph))
        if result == 0:
            self("GraphInstantiateWithFlags", ct.byref(made), graph, Size(0))
            self("GraphDestroy", graph)
        return result, made

    def status(self, stream):
        status, number = ct.c_int(), ct.c_uint64()
        self(
            "StreamGetCaptureInfo",
            stream,
            ct.byref(status),
            ct.byref(number),
            None,
            None,
            None,
        )
        return status.value, number.value


@fresh
def test_a_graph_runs_when_it_is_launched_and_each_time():
    d = Graphs()
    a, b, one = d.alloc(64), d.alloc(64), d.stream()
    d.fill(a, 1, 64, one)
    d.fill(b, 1, 64, one)
    d.wait(one)
    d.begin(one, RELAXED)  # loads a module
    d.copy(b, a, 64, one)
    d.launch("sim_add_u32", one, a, 1, 16, 0)
    result, graph = d.end(one)
    assert result == 0
    d.wait(one)
    assert d.read(b, 1) == b"\1"
    for turn in range(3):
        d("GraphLaunch", graph, one)
        d.wait(one)
        assert (d.read(a, 1)[0], d.read(b, 1)[0]) == (turn + 2, turn + 1)
    assert d.live("graphs") == 1
    d("GraphExecDestroy", graph)
    assert d.live("graphs") == 0
    assert d.call("GraphLaunch", graph, one) == INVALID_VALUE


@fresh
def test_a_graph_reads_pageable_memory_when_it_runs():
    d = Graphs()
    a, one, host = d.alloc(4), d.stream(), (ct.c_ubyte * 4)(1, 2, 3, 4)
    d.begin(one)
    d.copy(a, ct.addressof(host), 4, one)
    graph = d.end(one)[1]
    host[0] = 9
    d("GraphLaunch", graph, one)
    d.wait(one)
    assert d.read(a) == bytes([9, 2, 3, 4])


@fresh
def test_words_in_a_graph_and_several_at_once():
    class Op(ct.Structure):
        _fields_ = [
            ("operation", ct.c_int),
            ("address", ct.c_uint64),
            ("value", ct.c_uint64),
            ("flags", ct.c_uint),
            ("rest", ct.c_uint64 * 2),
        ]

    assert ct.sizeof(Op) == 48
    d = Graphs()
    words = d.pinned(8)
    here = (ct.c_uint32 * 2).from_address(words)
    here[:] = 0, 0
    one, two = d.stream(), d.stream()
    wait, write = 1, 2
    ops = (Op * 3)(
        Op(write, words, 5), Op(wait, words + 4, 7), Op(write, words, 6)
    )
    d.begin(one)
    d("StreamBatchMemOp", one, 3, ops, 0)
    assert d.call("StreamBatchMemOp", one, 0, ops, 0) == INVALID_VALUE
    graph = d.end(one)[1]
    for _ in range(3):
        d("GraphLaunch", graph, one)
        assert d.call("StreamQuery", one) != 0
        while here[0] != 5:
            pass
        d("StreamWriteValue32", two, Ptr(words + 4), 7, 0)
        d.wait(one)
        assert list(here) == [6, 7]
        here[:] = 0, 0
    # Words of 64 bits, which a stream can only wait for.
    wait_long, greater = 4, 0
    here[:] = 5, 1
    for value in 1 << 32, (1 << 32) + 5:
        long = (Op * 1)(Op(wait_long, words, value, greater))
        d("StreamBatchMemOp", one, 1, long, 0)
        d.wait(one)
    long[0].value += 1
    d("StreamBatchMemOp", one, 1, long, 0)
    assert d.call("StreamQuery", one) != 0
    d("StreamWriteValue32", two, Ptr(words), 6, 0)
    d.wait(one)
    long[0].address += 4
    assert d.call("StreamBatchMemOp", one, 1, long, 0) == INVALID_VALUE


@fresh
def test_streams_join_a_capture_by_events():
    d = Graphs()
    a, b = d.alloc(64), d.alloc(64)
    one, two, event = d.stream(), d.stream(), d.event()
    d.begin(one)
    d.fill(a, 7, 64, one)
    d("EventRecord", event, one)
    d("StreamWaitEvent", two, event, 0)
    assert d.status(one) == d.status(two) and d.status(two)[0] == 1
    d.copy(b, a, 64, two)
    d("EventRecord", event, two)
    d("StreamWaitEvent", one, event, 0)
    result, graph = d.end(one)
    assert result == 0 and d.status(two)[0] == 0
    d("GraphLaunch", graph, one)
    d.wait(one)
    assert d.read(b) == bytes([7] * 4)


@fresh
def test_what_has_not_joined_again():
    d = Graphs()
    a, one, two, event = d.alloc(64), d.stream(), d.stream(), d.event()
    d.begin(one)
    d("EventRecord", event, one)
    d("StreamWaitEvent", two, event, 0)
    d.fill(a, 7, 64, two)
    assert d.end(one)[0] == UNJOINED
    assert d.status(two)[0] == 0


@fresh
def test_captures_are_apart():
    d = Graphs()
    one, two, outside, inside = d.stream(), d.stream(), d.event(), d.event()
    d("EventRecord", outside, one)
    d.begin(one)
    number = d.status(one)[1]
    assert d.call("StreamWaitEvent", one, outside, 0) == ISOLATION
    assert d.status(one)[0] == 2
    assert d.call("EventRecord", inside, one) == INVALIDATED
    assert d.end(one)[0] == INVALIDATED
    d.begin(one)
    d.begin(two)
    assert number not in (d.status(one)[1], d.status(two)[1])
    d("EventRecord", inside, one)
    assert d.call("StreamWaitEvent", two, inside, 0) == MERGE
    assert [d.end(each)[0] for each in (one, two)] == [INVALIDATED] * 2
    assert d.call("StreamWaitEvent", two, inside, 0) == CAPTURED_EVENT


@fresh
def test_nobody_waits_for_what_is_captured():
    d = Graphs()
    one, two, event = d.stream(), d.stream(), d.event()
    d("ThreadExchangeStreamCaptureMode", ct.byref(ct.c_int(RELAXED)))

    def forbidden(name, *args):
        d.begin(one, RELAXED)
        d("EventRecord", event, one)
        result = d.call(name, *args)
        assert d.end(one)[0] == INVALIDATED
        return result

    assert forbidden("StreamSynchronize", one) == UNSUPPORTED
    assert forbidden("StreamQuery", one) == UNSUPPORTED
    assert forbidden("CtxSynchronize") == UNSUPPORTED
    assert forbidden("EventQuery", event) == CAPTURED_EVENT
    assert forbidden("EventSynchronize", event) == CAPTURED_EVENT
    d.begin(one)
    d.wait(two)
    assert d.end(one)[0] == 0


@fresh
def test_what_might_wait_is_forbidden_but_in_relaxed_mode():
    d = Graphs()
    one = d.stream()

    def allocate():
        pointer = Ptr()
        return d.call("MemAlloc", ct.byref(pointer), Size(64))

    def elsewhere():
        results = []

        def run():
            d.use(0)
            results.append(allocate())

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        return results[0]

    for mode, here, there in (
        (GLOBAL, UNSUPPORTED, UNSUPPORTED),
        (THREAD_LOCAL, UNSUPPORTED, 0),
        (RELAXED, 0, 0),
    ):
        for call, wanted in (allocate, here), (elsewhere, there):
            d.begin(one, mode)
            assert call() == wanted
            assert d.end(one)[0] == (INVALIDATED if wanted else 0)
    d("ThreadExchangeStreamCaptureMode", ct.byref(ct.c_int(RELAXED)))
    d.begin(one, GLOBAL)
    assert allocate() == 0
    assert d.end(one)[0] == 0


@fresh
def test_memory_of_a_pool_is_not_freed_beside_a_capture():
    d = Graphs()
    one, pool = d.stream(), d.get(Ptr, "MemAllocAsync", Size(64), None)
    d.begin(one)
    assert d.call("MemFreeAsync", pool, None) == UNSUPPORTED
    assert d.end(one)[0] == INVALIDATED
    d("MemFreeAsync", pool, None)


@fresh
def test_the_legacy_stream_beside_a_blocking_one():
    d = Graphs()
    a, one, two = d.alloc(64), d.stream(BLOCKING), d.stream()
    for stream, wanted in (one, IMPLICIT), (two, 0):
        d.begin(stream)
        result = d.call("MemsetD8Async", Ptr(a), ct.c_ubyte(1), Size(4), None)
        assert result == wanted
        assert d.end(stream)[0] == (INVALIDATED if wanted else 0)
    assert d.call("StreamBeginCapture", None, RELAXED) == UNSUPPORTED


@fresh
def test_who_ends_a_capture():
    d = Graphs()
    one, two, event = d.stream(), d.stream(), d.event()
    d.begin(one)
    d("EventRecord", event, one)
    d("StreamWaitEvent", two, event, 0)
    assert d.end(two)[0] == UNMATCHED
    results = []

    def run():
        d.use(0)
        results.append(d.end(one)[0])

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert results == [WRONG_THREAD]
    d("EventRecord", event, two)
    d("StreamWaitEvent", one, event, 0)
    assert d.end(one)[0] == 0


@fresh
def test_a_user_object_calls_back_when_no_graph_has_it():
    d, called = Graphs(), []
    stream = d.stream()
    function = ct.CFUNCTYPE(None, ct.c_void_p)(called.append)
    status, number = ct.c_int(), ct.c_uint64()
    graph, made = Handle(), Handle()
    d.begin(stream)
    d(
        "StreamGetCaptureInfo",
        stream,
        ct.byref(status),
        ct.byref(number),
        ct.byref(graph),
        None,
        None,
    )
    d("UserObjectCreate", ct.byref(made), None, function, 1, 1)
    d("GraphRetainUserObject", graph, made, 1, 1)
    result, launched = d.end(stream)
    assert (result, called) == (0, [])
    d.begin(stream)
    assert d.call("GraphExecDestroy", launched) == UNSUPPORTED
    assert d.end(stream)[0] == INVALIDATED
    d("GraphExecDestroy", launched)
    until = time.monotonic() + 20
    while not called and time.monotonic() < until:
        time.sleep(0.001)
    assert called == [None]


if __name__ == "__main__":
    main(globals())
