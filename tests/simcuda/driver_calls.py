# SPDX-License-Identifier: BSD-3-Clause
"""The driver API by ctypes, for the tests of the simulated driver itself.

A test is a function run in a fresh process, since a driver's state, its
sticky errors above all, belongs to the process.
"""

import ctypes as ct
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent

INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED = 1, 2, 3
INVALID_CONTEXT, PEER_UNSUPPORTED, INVALID_HANDLE = 201, 217, 400
NOT_READY, ILLEGAL_ADDRESS, NOT_SUPPORTED, UNKNOWN = 600, 700, 801, 999
DISABLE_TIMING, INTERPROCESS = 2, 4
POISON = 0xCD
PROMPT = 6

Ptr, Size, Handle = ct.c_uint64, ct.c_size_t, ct.c_void_p


class IpcHandle(ct.Structure):
    _fields_ = [("data", ct.c_char * 64)]

    def hex(self):
        return bytes(self).hex()

    @classmethod
    def of(cls, text):
        return cls.from_buffer_copy(bytes.fromhex(text))


class CudaError(Exception):
    pass


class Driver:
    """The driver API, with device 0 current unless `context` is false."""

    def __init__(self, device=0, context=True):
        self.lib = ct.CDLL(os.environ["WARPMPI_CUDA_DRIVER"])
        self.lib.simcuda_live.restype = ct.c_long
        self.lib.simcuda_calls.restype = ct.c_long
        self("Init", 0)
        if context:
            self.use(device)

    def call(self, name, *args):
        """Calls cu<name>, looked up as programs do; returns the result."""
        function = Handle()
        result = self.lib.cuGetProcAddress_v2(
            b"cu" + name.encode(), ct.byref(function), 13000, Size(0), None
        )
        assert result == 0, name
        return ct.CFUNCTYPE(ct.c_int)(function.value)(*args)

    def __call__(self, name, *args):
        result = self.call(name, *args)
        if result:
            raise CudaError(result, name)

    def get(self, kind, name, *args):
        out = kind()
        self(name, ct.byref(out), *args)
        return out

    def use(self, device):
        context = self.get(Handle, "DevicePrimaryCtxRetain", device)
        self("CtxSetCurrent", context)
        return context

    def alloc(self, size):
        return self.get(Ptr, "MemAlloc", Size(size)).value

    def pinned(self, size):
        return self.get(Handle, "MemHostAlloc", Size(size), 1).value

    def stream(self, flags=1):
        return self.get(Handle, "StreamCreateWithPriority", flags, 0)

    def event(self, flags=DISABLE_TIMING):
        return self.get(Handle, "EventCreate", flags)

    def copy(self, dst, src, size, stream):
        self("MemcpyAsync", Ptr(dst), Ptr(src), Size(size), stream)

    def fill(self, dst, value, size, stream):
        self("MemsetD8Async", Ptr(dst), ct.c_ubyte(value), Size(size), stream)

    def launch(self, name, stream, *params):
        image = self.get(Handle, "ModuleLoadData", b"any")
        kernel = self.get(Handle, "ModuleGetFunction", image, name.encode())
        values = (ct.c_uint64 * len(params))(*params)
        array = (Handle * 1)(ct.addressof(values))
        self("LaunchKernel", kernel, 2, 1, 1, 64, 1, 1, 0, stream, array, 0)

    def read(self, ptr, size=4):
        """Returns the bytes at `ptr`, ordered after no non-blocking stream."""
        out = (ct.c_ubyte * size)()
        self("MemcpyDtoH", out, Ptr(ptr), Size(size))
        return bytes(out)

    def attributes(self, ptr, *what):
        kinds = {
            1: Handle,
            2: ct.c_uint,
            3: Ptr,
            7: ct.c_uint64,
            8: ct.c_uint,
            9: ct.c_int,
            10: ct.c_uint,
            11: Ptr,
            12: Size,
            13: ct.c_uint,
            14: ct.c_uint64,
            17: ct.c_uint64,
        }
        data = [kinds[w]() for w in what]
        pointers = (Handle * len(what))(*map(ct.addressof, data))
        self(
            "PointerGetAttributes",
            len(what),
            (ct.c_int * len(what))(*what),
            pointers,
            Ptr(ptr),
        )
        return [d.value for d in data]

    def live(self, kind):
        return self.lib.simcuda_live(kind.encode())

    def wait(self, stream):
        self("StreamSynchronize", stream)


def peer(name, *args):
    """Starts a function of the test's file in another process."""
    return subprocess.Popen(
        [sys.executable, sys.argv[0], name, *map(str, args)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def tell(*words):
    print(*words, flush=True)


def ask(process, *words):
    """Sends a line, if there are words, and reads one."""
    if words:
        process.stdin.write(" ".join(map(str, words)) + "\n")
        process.stdin.flush()
    return process.stdout.readline().split()


@pytest.fixture(scope="session")
def driver_library(tmp_path_factory):
    path = os.environ.get("WARPMPI_CUDA_DRIVER")
    if path:
        return path
    out = tmp_path_factory.mktemp("simcuda")
    subprocess.run(["make", "-s", "-j2", "-C", HERE, f"OUT={out}"], check=True)
    return str(out / "libsimcuda.so")


def fresh(function=None, **env):
    """Makes a test of a function: a process of its own, with `env`.

    Operations that nobody demands run late: a result within PROMPT seconds
    was demanded, even on a busy machine.
    """
    if function is None:
        return lambda f: fresh(f, **env)

    def test(driver_library):
        full = {
            k: v for k, v in os.environ.items() if not k.startswith("SIMCUDA_")
        }
        full.update(SIMCUDA_LAZY_US=str(4 * PROMPT * 1_000_000))
        full.update(env, WARPMPI_CUDA_DRIVER=driver_library)
        file = function.__code__.co_filename
        done = subprocess.run(
            [sys.executable, file, function.__name__], env=full, timeout=60
        )
        assert done.returncode == 0

    test.__doc__ = function.__doc__
    test.body = function
    return test


def main(names):
    """Runs the function named on the command line of a test's file."""
    chosen = names[sys.argv[1]]
    getattr(chosen, "body", chosen)(*sys.argv[2:])
