# SPDX-License-Identifier: BSD-3-Clause
"""The CUDA driver by ctypes. Runs in a child process, which may crash.

It works where warpmpi._core cannot be imported, and asks for attributes that
the core has no use for.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import uuid
from collections.abc import Iterator
from typing import Any

from . import nvlink

COMPUTE_MODES = {0: "default", 2: "prohibited", 3: "exclusive process"}
TRIAL_BYTES = 32 << 20
# Numbers of cuda.h.
_CAPABILITY, _COMPUTE_MODE, _MPS = (75, 76), 20, 133
_P2P_ATOMICS, _PORTABLE, _GLOBAL, _READ_WRITE = 3, 1, 1, 3


class DriverError(Exception):
    """A call of the driver that failed."""


class Driver:
    """The library, initialized."""

    def __init__(self) -> None:
        self.path = os.environ.get("WARPMPI_CUDA_DRIVER") or "libcuda.so.1"
        self.library = ctypes.CDLL(self.path)

    def has(self, name: str) -> bool:
        """Tell if the driver has a function."""
        return hasattr(self.library, "cu" + name)

    def call(self, name: str, *args: Any) -> None:
        """Call cuName, in its newer form if there is one. DriverError."""
        full = f"cu{name}_v2" if self.has(name + "_v2") else "cu" + name
        function = getattr(self.library, full, None)
        if function is None:
            raise DriverError(f"the driver has no cu{name}: it is too old")
        result = function(*args)
        if result != 0:
            text = ctypes.c_char_p()
            self.library.cuGetErrorString(result, ctypes.byref(text))
            words = (text.value or b"unknown error").decode()
            raise DriverError(f"cu{name}: error {result}, {words}")

    def number(self, name: str, *args: Any) -> int:
        """Call a function that writes an int first."""
        value = ctypes.c_int()
        self.call(name, ctypes.byref(value), *args)
        return value.value

    @contextlib.contextmanager
    def context(self, ordinal: int) -> Iterator[None]:
        """Make the primary context of a device current."""
        context = ctypes.c_void_p()
        self.call("DevicePrimaryCtxRetain", ctypes.byref(context), ordinal)
        self.call("CtxPushCurrent", context)
        try:
            yield
        finally:
            self.call("CtxPopCurrent", ctypes.byref(context))
            self.call("DevicePrimaryCtxRelease", ordinal)

    def allocate(self, nbytes: int) -> ctypes.c_uint64:
        """Allocate as cudaMalloc does."""
        pointer = ctypes.c_uint64()
        size = ctypes.c_size_t(nbytes)
        self.call("MemAlloc", ctypes.byref(pointer), size)
        return pointer


def _uuid(driver: Driver, ordinal: int) -> str:
    """Return the UUID as nvidia-smi -L writes it.

    cuDeviceGetUuid gives the whole GPU's, cuDeviceGetUuid_v2 the MIG part's.
    """
    told = []
    for name in ("cuDeviceGetUuid", "cuDeviceGetUuid_v2"):
        raw = (ctypes.c_ubyte * 16)()
        function = getattr(driver.library, name, None)
        if function is not None and function(raw, ordinal) == 0:
            told.append(str(uuid.UUID(bytes=bytes(raw))))
    if not told:
        raise DriverError(f"cuDeviceGetUuid fails for device {ordinal}")
    return ("GPU-" if told[0] == told[-1] else "MIG-") + told[-1]


def _pci(driver: Driver, ordinal: int) -> str:
    pci = ctypes.create_string_buffer(32)
    driver.call("DeviceGetPCIBusId", pci, 32, ordinal)
    return pci.value.decode()


def _peers(driver: Driver, ordinal: int, count: int) -> list[dict[str, Any]]:
    peers = []
    links = nvlink.links(_uuid(driver, ordinal)) if count > 1 else {}
    for other in range(count):
        if other == ordinal:
            continue
        access = driver.number("DeviceCanAccessPeer", ordinal, other)
        atomics = driver.number(
            "DeviceGetP2PAttribute", _P2P_ATOMICS, ordinal, other
        )
        peers.append(
            {
                "ordinal": other,
                "uuid": _uuid(driver, other),
                "access": bool(access),
                "nvlink": bool(atomics),
                # None if that is not known.
                "links": links.get(nvlink.place(_pci(driver, other)))
                or links.get(nvlink.SWITCH),
            }
        )
    return peers


def _has_mps() -> bool:
    """Tell if there is a daemon of MPS, which the driver connects to."""
    folder = os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps"
    return os.path.exists(os.path.join(folder, "control"))


def _device(driver: Driver, ordinal: int, count: int) -> dict[str, Any]:
    name = ctypes.create_string_buffer(256)
    memory = ctypes.c_size_t()
    driver.call("DeviceGetName", name, 256, ordinal)
    driver.call("DeviceTotalMem", ctypes.byref(memory), ordinal)

    def attribute(number: int) -> int:
        return driver.number("DeviceGetAttribute", number, ordinal)

    try:
        mps = bool(attribute(_MPS))
    except DriverError:  # a driver before CUDA 12.4
        mps = _has_mps()
    identity = _uuid(driver, ordinal)
    product = name.value.decode(errors="replace")
    mode = attribute(_COMPUTE_MODE)
    return {
        "ordinal": ordinal,
        "name": product,
        "uuid": identity,
        "mig": identity.startswith("MIG-") or " MIG " in product,
        "mps": mps,
        "compute_mode": COMPUTE_MODES.get(mode, str(mode)),
        "capability": [attribute(number) for number in _CAPABILITY],
        "memory": memory.value,
        "pci": _pci(driver, ordinal),
        "peers": _peers(driver, ordinal, count),
    }


class _Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class _AllocationProp(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", _Location),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


class _AccessDesc(ctypes.Structure):
    _fields_ = [("location", _Location), ("flags", ctypes.c_int)]


def _virtual(driver: Driver, ordinal: int) -> ctypes.c_uint64:
    """Allocate as PyTorch's expandable segments do; the process frees it."""
    prop = _AllocationProp(type=1, location=_Location(1, ordinal))
    size, handle = ctypes.c_size_t(), ctypes.c_uint64()
    pointer, zero = ctypes.c_uint64(), ctypes.c_uint64(0)
    driver.call(
        "MemGetAllocationGranularity",
        ctypes.byref(size),
        ctypes.byref(prop),
        0,
    )
    driver.call(
        "MemCreate", ctypes.byref(handle), size, ctypes.byref(prop), zero
    )
    driver.call(
        "MemAddressReserve", ctypes.byref(pointer), size, zero, zero, zero
    )
    driver.call("MemMap", pointer, size, zero, handle, zero)
    access = _AccessDesc(_Location(1, ordinal), _READ_WRITE)
    one = ctypes.c_size_t(1)
    driver.call("MemSetAccess", pointer, size, ctypes.byref(access), one)
    return pointer


def _pool(driver: Driver, ordinal: int) -> ctypes.c_uint64:
    pointer, stream = ctypes.c_uint64(), ctypes.c_void_p()
    size = ctypes.c_size_t(TRIAL_BYTES)
    driver.call("MemAllocAsync", ctypes.byref(pointer), size, stream)
    driver.call("StreamSynchronize", stream)
    return pointer


def _managed(driver: Driver, ordinal: int) -> ctypes.c_uint64:
    pointer, size = ctypes.c_uint64(), ctypes.c_size_t(TRIAL_BYTES)
    driver.call("MemAllocManaged", ctypes.byref(pointer), size, _GLOBAL)
    return pointer


# Allocators and how the driver is asked for such memory.
ALLOCATORS = {
    "cudaMalloc": lambda driver, _: driver.allocate(TRIAL_BYTES),
    "cudaMallocAsync": _pool,
    "expandable segments": _virtual,
    "cudaMallocManaged": _managed,
}


def _exportable(driver: Driver, ordinal: int) -> dict[str, Any]:
    """Tell of each allocator if CUDA IPC exports its memory; or why not."""
    told: dict[str, Any] = {}
    for name, allocate in ALLOCATORS.items():
        handle = (ctypes.c_ubyte * 64)()
        try:
            pointer = allocate(driver, ordinal)
        except DriverError as error:
            told[name] = {"exportable": None, "error": str(error)}
            continue
        try:
            driver.call("IpcGetMemHandle", handle, pointer)
            told[name] = {"exportable": True, "error": None}
        except DriverError as error:
            told[name] = {"exportable": False, "error": str(error)}
    return told


def _pinned(driver: Driver) -> str | None:
    """Allocate page-locked memory; return why it fails."""
    pointer = ctypes.c_void_p()
    size = ctypes.c_size_t(TRIAL_BYTES)
    try:
        driver.call("MemHostAlloc", ctypes.byref(pointer), size, _PORTABLE)
    except DriverError as error:
        return str(error)
    return None


def facts(ordinal: int) -> dict[str, Any]:
    """Return what the driver says of its GPUs, and of one in particular."""
    told: dict[str, Any] = {"devices": [], "version": None, "error": None}
    try:
        driver = Driver()
        told["library"] = driver.path
        told["simulated"] = hasattr(driver.library, "simcuda_calls")
        version = driver.number("DriverGetVersion")
        told["version"] = [version // 1000, version % 1000 // 10]
        driver.call("Init", 0)
        count = driver.number("DeviceGetCount")
        told["devices"] = [_device(driver, i, count) for i in range(count)]
        if ordinal < count:
            with driver.context(ordinal):
                told["pinned_error"] = _pinned(driver)
                told["allocators"] = _exportable(driver, ordinal)
    except (OSError, DriverError) as error:
        told["error"] = str(error)
    return told
