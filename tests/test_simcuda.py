# SPDX-License-Identifier: BSD-3-Clause
"""The simulated driver, one process: ordering, memory, kernels, failures."""

import ctypes as ct
import os
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "simcuda"))

from driver_calls import (
    ILLEGAL_ADDRESS,
    INTERPROCESS,
    INVALID_CONTEXT,
    INVALID_HANDLE,
    INVALID_VALUE,
    NOT_INITIALIZED,
    NOT_READY,
    OUT_OF_MEMORY,
    POISON,
    PROMPT,
    UNKNOWN,
    Driver,
    Handle,
    IpcHandle,
    Ptr,
    Size,
    driver_library,  # noqa: F401
    fresh,
    main,
)

# --- ordering -----------------------------------------------------------


@fresh
def test_missing_wait_reads_stale_bytes():
    d = Driver()
    a, b, one, two = d.alloc(64), d.alloc(64), d.stream(), d.stream()
    d.fill(a, 7, 64, one)
    d.copy(b, a, 64, two)
    d.wait(two)
    assert d.read(b) == bytes([POISON] * 4)
    assert d.read(a) == bytes([POISON] * 4)
    d.wait(one)
    assert d.read(a) == bytes([7] * 4)


@fresh
def test_stream_wait_demands_what_it_waits_for():
    d = Driver()
    a, b = d.alloc(64), d.alloc(64)
    one, two, three = d.stream(), d.stream(), d.stream()
    first, second = d.event(), d.event()
    d.fill(a, 7, 64, one)
    d("EventRecord", first, one)
    d.fill(a, 9, 64, one)  # after the event: not demanded
    d("StreamWaitEvent", two, first, 0)
    d.copy(b, a, 64, two)
    d("EventRecord", second, two)
    d("StreamWaitEvent", three, second, 0)
    d.wait(three)
    assert d.read(b) == bytes([7] * 4)
    assert d.read(a) == bytes([7] * 4)


@fresh(SIMCUDA_LAZY_US="300000")
def test_what_nobody_demands_runs_at_last():
    d = Driver()
    a, one = d.alloc(64), d.stream()
    start = time.monotonic()
    d.fill(a, 7, 64, one)
    while d.read(a) == bytes([POISON] * 4):
        time.sleep(0.001)
    assert time.monotonic() - start >= 0.3
    assert d.read(a) == bytes([7] * 4)


@fresh
def test_query_is_not_ready_first_and_then_is():
    d = Driver()
    a, one, event = d.alloc(64), d.stream(), d.event()
    d.fill(a, 7, 64, one)
    d("EventRecord", event, one)
    assert d.call("EventQuery", event) == NOT_READY
    start = time.monotonic()
    while d.call("EventQuery", event) == NOT_READY:
        time.sleep(0.001)
    assert time.monotonic() - start < PROMPT
    assert d.call("StreamQuery", one) == 0


@fresh(SIMCUDA_MODE="delay", SIMCUDA_DELAY_US="200000", SIMCUDA_SEED="3")
def test_delay_mode_runs_everything_later():
    d = Driver()
    a, one = d.alloc(64), d.stream()
    start = time.monotonic()
    for value in range(8):
        d.fill(a, value, 64, one)
    assert d.call("StreamQuery", one) == NOT_READY
    d.wait(one)
    assert time.monotonic() - start > 0.05
    assert d.read(a)[0] == 7


@fresh
def test_legacy_stream_orders_blocking_streams_only():
    d = Driver()
    a, b, c = d.alloc(64), d.alloc(64), d.alloc(64)
    blocking, free = d.stream(0), d.stream(1)
    d.fill(a, 7, 64, blocking)
    d.fill(b, 7, 64, free)
    d.copy(c, a, 64, None)
    d.wait(None)
    assert d.read(c)[0] == 7
    assert d.read(b)[0] == POISON
    d.fill(c, 1, 64, None)
    d.copy(a, c, 64, Handle(2))  # the per-thread stream is a blocking one
    d.wait(Handle(2))
    assert d.read(a)[0] == 1


@fresh
def test_pageable_sources_are_read_when_submitted_pinned_ones_when_run():
    d = Driver()
    a, one = d.alloc(64), d.stream()
    pageable = (ct.c_ubyte * 64)(*[7] * 64)
    d.copy(a, ct.addressof(pageable), 64, one)
    ct.memset(pageable, 1, 64)
    d.wait(one)
    assert d.read(a)[0] == 7
    pinned = d.pinned(64)
    ct.memset(pinned, 7, 64)
    d.copy(a, pinned, 64, one)
    ct.memset(pinned, 1, 64)
    d.wait(one)
    assert d.read(a)[0] == 1


@fresh
def test_copy_to_pageable_memory_is_complete_when_it_returns():
    d = Driver()
    a, one = d.alloc(64), d.stream()
    out = (ct.c_ubyte * 64)()
    d.fill(a, 7, 64, one)
    d.copy(ct.addressof(out), a, 64, one)
    assert bytes(out) == bytes([7] * 64)


@fresh
def test_copies_between_devices_and_2d():
    d = Driver()
    a, one = d.alloc(64), d.stream()
    d.fill(a, 7, 64, one)
    d.wait(one)
    d.use(1)
    b, two = d.alloc(64), d.stream()
    d.fill(b, 0, 64, two)
    rows = (ct.c_uint64 * 16)(
        4,
        0,
        2,
        0,
        a,
        0,
        8,  # x, y, device, host, pointer, array, pitch
        0,
        1,
        2,
        0,
        b,
        0,
        16,
        4,
        2,
    )
    d("Memcpy2DAsync", rows, two)
    d.wait(two)
    assert (
        d.read(b, 64).hex()
        == ("00" * 16 + "07" * 4 + "00" * 12)
        + ("07" * 4 + "00" * 12)
        + "00" * 16
    )


# --- words --------------------------------------------------------------


@fresh
def test_stream_waits_for_a_word_that_another_stream_writes():
    d = Driver()
    a, word, one, two = d.alloc(64), d.pinned(4), d.stream(), d.stream()
    ct.memset(word, 0, 4)
    d("StreamWaitValue32", one, Ptr(word), 5, 0)
    d.fill(a, 7, 64, one)
    assert d.call("StreamQuery", one) == NOT_READY
    time.sleep(0.2)
    assert d.call("StreamQuery", one) == NOT_READY
    d("StreamWriteValue32", two, Ptr(word), 6, 0)
    start = time.monotonic()
    d.wait(one)
    assert time.monotonic() - start < PROMPT  # the wait demanded the write
    assert d.read(a)[0] == 7


# --- memory -------------------------------------------------------------


@fresh
def test_host_access_to_device_memory_faults():
    d = Driver()
    a = d.alloc(64)
    if os.fork() == 0:
        ct.string_at(a, 1)
        os._exit(0)
    assert os.wait()[1] != 0


@fresh
def test_address_is_used_again_with_another_id():
    d = Driver()
    a = d.alloc(1 << 20)
    before = d.attributes(a, 7)
    d("MemFree", Ptr(a))
    assert d.attributes(a, 7, 2) == [0, 0]
    assert d.alloc(1 << 20) == a
    assert d.attributes(a, 7) != before


@fresh
def test_pointer_attributes_of_each_kind():
    d = Driver()
    context = d.use(1).value
    a, pinned = d.alloc(100), d.pinned(100)
    kind = (1, 2, 8, 9, 10, 11, 12, 13, 17)
    assert d.attributes(a + 5, *kind) == [context, 2, 0, 1, 1, a, 100, 1, 0]
    found = d.attributes(pinned + 5, *kind)
    assert found == [context, 1, 0, 1, 0, pinned, 100, 1, 0]
    pool = d.get(Ptr, "MemAllocAsync", Size(100), None).value
    found = d.attributes(pool, *kind)
    assert found[4] == 0 and found[8] != 0
    assert d.call("IpcGetMemHandle", IpcHandle(), Ptr(pool)) == INVALID_VALUE
    managed = d.get(Ptr, "MemAllocManaged", Size(100), 1).value
    assert d.attributes(managed, 2, 8, 10) == [2, 1, 0]
    ct.memset(managed, 0, 100)
    unknown = (ct.c_ubyte * 4)()
    found = d.attributes(ct.addressof(unknown), *kind)
    assert found == [None, 0, 0, -2, 0, 0, 0, 0, 0]


@fresh
def test_only_its_own_device_reaches_a_pool():
    d = Driver()
    d.use(0)
    pool = d.get(Ptr, "MemAllocAsync", Size(64), None).value
    plain = d.alloc(64)
    own, pinned = d.stream(), d.pinned(64)
    d.use(1)
    other, there = d.stream(), d.alloc(64)
    d.copy(there, plain, 64, other)  # the driver stages it

    def copies(dst, src, stream):
        return d.call("MemcpyAsync", Ptr(dst), Ptr(src), Size(64), stream)

    assert copies(pinned, pool, other) == INVALID_VALUE
    assert copies(pool, there, other) == INVALID_VALUE
    assert copies(there, pool, own) == INVALID_VALUE  # another's context
    fill = Ptr(pool), ct.c_ubyte(1), Size(64), other
    assert d.call("MemsetD8Async", *fill) == INVALID_VALUE
    d.use(0)
    assert copies(there, pool, own) == 0
    d.wait(own)


@fresh
def test_a_pool_is_opened_to_a_device():
    d = Driver()
    peer = d.use(0)
    pool = d.get(Ptr, "MemAllocAsync", Size(64), None).value
    d.use(1)
    d("CtxEnablePeerAccess", peer, 0)  # that opens no pool
    stream, there = d.stream(), d.alloc(64)
    copy = Ptr(there), Ptr(pool), Size(64), stream
    assert d.call("MemcpyAsync", *copy) == INVALID_VALUE
    owner = d.get(Handle, "DeviceGetDefaultMemPool", 0)
    # A CUmemAccessDesc: the type of the place, its number, the flags.
    for flags, result in (3, 0), (0, INVALID_VALUE):
        access = (ct.c_int * 3)(1, 1, flags)
        d("MemPoolSetAccess", owner, access, Size(1))
        assert d.call("MemcpyAsync", *copy) == result
    d.wait(stream)
    d("MemPoolSetAccess", owner, (ct.c_int * 3)(1, 1, 3), Size(1))
    d.launch("sim_fill_u8", stream, pool, 7, 64, 0)
    d.wait(stream)
    d("MemPoolSetAccess", owner, (ct.c_int * 3)(1, 1, 0), Size(1))
    d.launch("sim_fill_u8", stream, pool, 7, 64, 0)
    assert d.call("StreamSynchronize", stream) == ILLEGAL_ADDRESS


@fresh(SIMCUDA_MEMORY=str(1 << 20))
def test_memory_runs_out():
    d = Driver()
    a = d.alloc(1 << 19)
    assert d.call("MemAlloc", ct.byref(Ptr()), Size(1 << 20)) == OUT_OF_MEMORY
    free, total = Size(), Size()
    d("MemGetInfo", ct.byref(free), ct.byref(total))
    assert (free.value, total.value) == (1 << 19, 1 << 20)
    d("MemFree", Ptr(a))
    d.alloc(1 << 20)


@fresh
def test_who_frees_memory_waits_for_all_streams_of_the_device():
    """Launches of other threads wait for it. Allocations do not wait."""
    d = Driver()
    word, one, two = d.pinned(4), d.stream(), d.stream()
    device, host = Ptr(d.alloc(64)), Handle(d.pinned(64))
    filled = d.alloc(64)

    def free(name, memory):
        d.use(0)
        d(name, memory)

    def fill():
        d.use(0)
        d.fill(filled, 7, 64, two)

    for each in (("MemFree", device), ("MemFreeHost", host)):
        ct.memset(word, 0, 4)
        d("StreamWaitValue32", one, Ptr(word), 1, 0)
        freeing = threading.Thread(target=free, args=each)
        launching = threading.Thread(target=fill)
        freeing.start()
        d.alloc(64)
        d.pinned(64)
        time.sleep(0.1)
        launching.start()
        time.sleep(0.2)
        assert freeing.is_alive() and launching.is_alive()
        ct.memset(word, 1, 4)
        freeing.join()
        launching.join()


@fresh
def test_queued_use_of_freed_memory_is_a_sticky_illegal_address():
    d = Driver()
    a, b, one = d.alloc(64), d.alloc(64), d.stream()
    d.copy(b, a, 64, one)
    d("MemFree", Ptr(a))
    assert d.call("StreamSynchronize", one) == ILLEGAL_ADDRESS
    assert d.call("MemAlloc", ct.byref(Ptr()), Size(8)) == ILLEGAL_ADDRESS
    d.use(1)
    d.alloc(64)


@fresh
def test_copies_beyond_an_allocation_are_refused():
    d = Driver()
    a, one = d.alloc(64), d.stream()
    assert d.call("MemsetD8Async", Ptr(a), 0, Size(65), one) == INVALID_VALUE
    d("MemFree", Ptr(a))
    assert d.call("MemcpyAsync", Ptr(a), Ptr(a), Size(4), one) == INVALID_VALUE


# --- kernels ------------------------------------------------------------


@fresh
def test_kernels_use_device_addresses():
    d = Driver()
    a, one = d.alloc(1000), d.stream()
    d.launch("sim_fill_u8", one, a, 7, 999, 1000)
    d.wait(one)
    assert d.read(a, 1000) == bytes([7] * 999 + [POISON])
    if os.fork() == 0:
        ct.string_at(a, 1)  # closed again
        os._exit(0)
    assert os.wait()[1] != 0


@fresh
def test_kernel_on_a_wrong_address_is_an_illegal_address():
    d = Driver()
    a, one = d.alloc(64), d.stream()
    d("MemFree", Ptr(a))
    d.launch("sim_fill_u8", one, a, 7, 64, 0)
    assert d.call("StreamSynchronize", one) == ILLEGAL_ADDRESS
    assert d.call("StreamSynchronize", one) == ILLEGAL_ADDRESS


@fresh
def test_kernel_reaches_a_peer_only_once_enabled():
    d = Driver()
    a = d.alloc(64)
    zero = d.get(Handle, "CtxGetCurrent")
    d.use(1)
    one = d.stream()
    d("CtxEnablePeerAccess", zero, 0)
    d.launch("sim_fill_u8", one, a, 7, 64, 0)
    d.wait(one)
    assert d.read(a)[0] == 7
    b = d.alloc(64)
    d("CtxSetCurrent", zero)
    two = d.stream()
    d.launch("sim_fill_u8", two, b, 7, 64, 0)
    assert d.call("StreamSynchronize", two) == ILLEGAL_ADDRESS


# --- events -------------------------------------------------------------


@fresh
def test_event_flags_and_timing():
    d = Driver()
    assert d.call("EventCreate", ct.byref(Handle()), INTERPROCESS) == 1
    start, end, one = d.event(0), d.event(0), d.stream()
    d("EventRecord", start, one)
    d.launch("sim_fill_u8", one, d.alloc(64), 7, 64, 20000)
    d("EventRecord", end, one)
    d("EventSynchronize", end)
    assert 19 < d.get(ct.c_float, "EventElapsedTime", start, end).value < 2000
    assert d.call("EventSynchronize", Handle(12345)) == INVALID_HANDLE


# --- failures -----------------------------------------------------------


@fresh(SIMCUDA_FAIL="MemAlloc:2,cuStreamQuery:1:700")
def test_nth_call_fails():
    d = Driver()
    d.alloc(64)
    assert d.call("MemAlloc", ct.byref(Ptr()), Size(64)) == OUT_OF_MEMORY
    d.alloc(64)
    assert d.call("StreamQuery", None) == ILLEGAL_ADDRESS
    assert d.call("StreamQuery", None) == 0
    assert d.lib.simcuda_calls(b"MemAlloc") == 3
    d.lib.simcuda_fail(b"MemFree", ct.c_long(2), 0)
    assert d.call("MemFree", Ptr(0)) == 0
    assert d.call("MemFree", Ptr(0)) == UNKNOWN
    assert d.call("MemFree", Ptr(0)) == 0
    d.lib.simcuda_fail(b"MemFree", ct.c_long(1), 0)
    d.lib.simcuda_fail(None, ct.c_long(0), 0)
    assert d.call("MemFree", Ptr(0)) == 0


@fresh(SIMCUDA_FAIL_ANY="3", SIMCUDA_FAIL_RANK="1", OMPI_COMM_WORLD_RANK="1")
def test_nth_call_of_any_function_fails_on_one_rank():
    d = Driver()  # two calls after cuInit
    assert d.call("StreamQuery", None) == UNKNOWN
    assert d.call("StreamQuery", None) == 0


@fresh(SIMCUDA_FAIL_ANY="3", SIMCUDA_FAIL_RANK="0", OMPI_COMM_WORLD_RANK="1")
def test_other_ranks_do_not_fail():
    d = Driver()
    for _ in range(10):
        d("StreamQuery", None)


@fresh
def test_errors_are_those_of_the_real_driver():
    d = Driver(context=False)
    assert d.call("MemAlloc", ct.byref(Ptr()), Size(4)) == INVALID_CONTEXT
    assert d.call("DeviceGet", ct.byref(ct.c_int()), 2) == 101
    d.use(0)
    assert d.call("StreamSynchronize", Handle(99)) == INVALID_HANDLE
    assert d.call("MemFree", Ptr(99)) == INVALID_VALUE
    text = ct.c_char_p()
    d("GetErrorName", ILLEGAL_ADDRESS, ct.byref(text))
    assert text.value == b"CUDA_ERROR_ILLEGAL_ADDRESS"
    if os.fork() == 0:
        result = d.call("MemAlloc", ct.byref(Ptr()), Size(4))
        os._exit(result)
    assert os.WEXITSTATUS(os.wait()[1]) == NOT_INITIALIZED


@fresh
def test_live_counts():
    d = Driver()
    a, pinned, one, event = d.alloc(64), d.pinned(8), d.stream(), d.event()
    kinds = ("memory", "bytes", "pinned", "streams", "events")
    assert [d.live(k) for k in kinds] == [1, 64, 1, 1, 1]
    d("MemFree", Ptr(a))
    d("MemFreeHost", Handle(pinned))
    d("StreamDestroy", one)
    d("EventDestroy", event)
    assert [d.live(k) for k in kinds] == [0] * 5


if __name__ == "__main__":
    main(globals())
