# SPDX-License-Identifier: BSD-3-Clause
"""The simulated driver between processes: memory, events and words."""

import ctypes as ct
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "simcuda"))

from driver_calls import (
    DISABLE_TIMING,
    INTERPROCESS,
    INVALID_CONTEXT,
    NOT_READY,
    NOT_SUPPORTED,
    PEER_UNSUPPORTED,
    POISON,
    PROMPT,
    Driver,
    Handle,
    IpcHandle,
    Ptr,
    Size,
    ask,
    driver_library,  # noqa: F401
    fresh,
    main,
    peer,
    tell,
)


@fresh
def test_word_in_shared_memory_is_demanded_across_processes():
    with open(f"/dev/shm/simcuda-test-{os.getpid()}", "w+b") as file:
        os.unlink(file.name)
        os.ftruncate(file.fileno(), 4096)
        d = Driver()
        word = map_shared(file.fileno())
        d("MemHostRegister", Handle(word), Size(4096), 0)
        one = d.stream()
        other = peer("writer", os.getpid(), file.fileno())
        for value in (1, 2, 3):
            ask(other, value)
            start = time.monotonic()
            d("StreamWaitValue32", one, Ptr(word), value, 1)
            d.wait(one)
            assert time.monotonic() - start < PROMPT
        other.communicate()


def map_shared(fd):
    libc = ct.CDLL(None)
    libc.mmap.restype = Handle
    libc.mmap.argtypes = [
        Handle,
        Size,
        ct.c_int,
        ct.c_int,
        ct.c_int,
        ct.c_long,
    ]
    return libc.mmap(None, 4096, 3, 1, fd, 0)


def writer(pid, fd):
    d = Driver()
    word = map_shared(os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR))
    d("MemHostRegister", Handle(word), Size(4096), 0)
    one = d.stream()
    for line in sys.stdin:
        d("StreamWriteValue32", one, Ptr(word), int(line), 0)
        tell("submitted")


@fresh
def test_memory_of_another_process():
    other = peer("exporter")
    handle, base = ask(other)
    handle = IpcHandle.of(handle)
    d = Driver()
    a = d.get(Ptr, "IpcOpenMemHandle", handle, 1).value
    assert d.get(Ptr, "IpcOpenMemHandle", handle, 1).value == a
    assert d.live("mappings") == 1
    one = d.stream()
    d.fill(a + 4, 9, 4, one)
    d.launch("sim_add_u32", one, a, 1, 1, 0)
    d.wait(one)
    assert ask(other, "read") == ["08070707" + "09" * 4]
    # Freed over there, it stays taken until it is closed here.
    assert ask(other, "free") == [str(1 << 20)]
    assert ask(other, "again") == [base]
    late = d.call("IpcOpenMemHandle", ct.byref(Ptr()), handle, 1)
    assert late == 0  # still open here: counted, not opened again
    assert d.read(a) == bytes([8, 7, 7, 7])
    for _ in range(3):
        d("IpcCloseMemHandle", Ptr(a))
    assert d.live("mappings") == 0
    assert d.call("IpcOpenMemHandle", ct.byref(Ptr()), handle, 1) != 0
    assert ask(other, "info") == [str(1 << 20)]
    other.communicate()


def exporter():
    d = Driver()
    total = Size()

    def used():
        free = Size()
        d("MemGetInfo", ct.byref(free), ct.byref(total))
        return total.value - free.value

    a, one = d.alloc(1 << 20), d.stream()
    d.fill(a, 7, 1 << 20, one)
    d.wait(one)
    handle = d.get(IpcHandle, "IpcGetMemHandle", Ptr(a))
    own = d.call("IpcOpenMemHandle", ct.byref(Ptr()), handle, 1)
    assert own == INVALID_CONTEXT
    tell(handle.hex(), a)
    for line in sys.stdin:
        if line == "read\n":
            tell(d.read(a, 8).hex())
        elif line == "free\n":
            d("MemFree", Ptr(a))
            tell(used())
        elif line == "again\n":
            a = d.alloc(1 << 20)
            tell(a)
        else:
            tell(used())


def device_memory_held():
    """A line for each file of it that is open here, and each mapping."""
    held = Path("/proc/self/fd").iterdir()
    targets = [os.readlink(fd) for fd in held if fd.is_symlink()]
    mapped = Path("/proc/self/maps").read_text().splitlines()
    return sorted(use for use in targets + mapped if "simcuda-device" in use)


@fresh
def test_killed_exporters_memory_stays_readable_and_leaves_nothing():
    other = peer("exporter")
    handle = IpcHandle.of(ask(other)[0])
    d = Driver()
    before = device_memory_held()
    a = d.get(Ptr, "IpcOpenMemHandle", handle, 1).value
    other.kill()
    other.wait()
    assert d.read(a)[0] == 7
    d("IpcCloseMemHandle", Ptr(a))
    assert d.call("IpcOpenMemHandle", ct.byref(Ptr()), handle, 1) != 0
    assert device_memory_held() == before


@fresh
def test_killed_importer_releases_the_memory():
    d = Driver()
    a = d.alloc(1 << 20)
    handle = d.get(IpcHandle, "IpcGetMemHandle", Ptr(a))
    other = peer("importer", handle.hex())
    ask(other)
    d("MemFree", Ptr(a))
    free, total = Size(), Size()
    d("MemGetInfo", ct.byref(free), ct.byref(total))
    assert total.value - free.value == 1 << 20
    other.kill()
    other.wait()
    d("MemGetInfo", ct.byref(free), ct.byref(total))
    assert total.value == free.value


def importer(handle):
    d = Driver()
    d.get(Ptr, "IpcOpenMemHandle", IpcHandle.of(handle), 1)
    tell("open")
    sys.stdin.read()


@fresh
def test_event_of_another_process_is_demanded_there():
    other = peer("recorder")
    memory, event = ask(other)
    d = Driver()
    a = d.get(Ptr, "IpcOpenMemHandle", IpcHandle.of(memory), 1).value
    shared = d.get(Handle, "IpcOpenEventHandle", IpcHandle.of(event))
    assert d.call("EventQuery", shared) == 0  # never recorded
    one, b = d.stream(), d.alloc(64)

    def promptly():
        assert time.monotonic() - start < PROMPT

    ask(other, 1)
    assert d.read(a)[0] == POISON
    start = time.monotonic()
    assert d.call("EventQuery", shared) == NOT_READY
    while d.call("EventQuery", shared) == NOT_READY:
        time.sleep(0.001)
    promptly()
    assert d.read(a)[0] == 1
    ask(other, 2)
    start = time.monotonic()
    d("EventSynchronize", shared)
    promptly()
    assert d.read(a)[0] == 2
    ask(other, 3)
    start = time.monotonic()
    d("StreamWaitEvent", one, shared, 0)
    d.copy(b, a, 64, one)
    d.wait(one)
    promptly()
    assert d.read(b)[0] == 3
    # The importer may record it too.
    d.fill(b, 9, 64, one)
    d("EventRecord", shared, one)
    ask(other, 0)
    assert d.read(b)[0] == 9
    other.communicate()


def recorder():
    d = Driver()
    a, one = d.alloc(64), d.stream()
    shared = d.event(DISABLE_TIMING | INTERPROCESS)
    tell(
        d.get(IpcHandle, "IpcGetMemHandle", Ptr(a)).hex(),
        d.get(IpcHandle, "IpcGetEventHandle", shared).hex(),
    )
    for line in sys.stdin:
        if int(line) == 0:
            d("EventSynchronize", shared)
        else:
            d.fill(a, int(line), 64, one)
            d("EventRecord", shared, one)
        tell("submitted")


@fresh(SIMCUDA_PEER="0")
def test_peer_access_can_be_denied():
    other = peer("exporter")
    handle = IpcHandle.of(ask(other)[0])
    d = Driver()
    assert d.get(ct.c_int, "DeviceCanAccessPeer", 0, 1).value == 0
    a = d.alloc(64)
    d("IpcOpenMemHandle", ct.byref(Ptr()), handle, 1)
    d.use(1)
    refused = d.call("IpcOpenMemHandle", ct.byref(Ptr()), handle, 1)
    assert refused == PEER_UNSUPPORTED
    b, one = d.alloc(64), d.stream()
    d.copy(b, a, 64, one)
    d.wait(one)
    other.communicate()


@fresh(SIMCUDA_IPC="0")
def test_ipc_can_be_denied():
    d = Driver()
    a = d.alloc(64)
    assert d.call("IpcGetMemHandle", IpcHandle(), Ptr(a)) == NOT_SUPPORTED


if __name__ == "__main__":
    main(globals())
