# SPDX-License-Identifier: BSD-3-Clause
"""Devices, streams and events, and which of them are current."""

import ast
import ctypes
import gc
import os
import pickle
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest

import kinds
import warpmpi as wm

needs_cuda = pytest.mark.skipif(
    not wm.is_cuda_available(), reason="no CUDA device"
)
needs_two = pytest.mark.skipif(
    wm.get_cuda_device_count() < 2, reason="fewer than two CUDA devices"
)
LEGACY = 1
NO_DRIVER = {"WARPMPI_CUDA_DRIVER": "/nonexistent/libcuda.so.1"}


def fresh(code, **environment):
    """What a program of its own prints."""
    folder = str(Path(wm.__file__).resolve().parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", "import warpmpi as wm\n" + code],
        env={**os.environ, "PYTHONPATH": folder, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def contexts_after(code):
    """Of each device, whether a program of its own has its context then."""
    return ast.literal_eval(
        fresh(
            f"""
{code}
import ctypes, os
path = os.environ.get("WARPMPI_CUDA_DRIVER") or "libcuda.so.1"
cuda, found = ctypes.CDLL(path), []
for ordinal in range(wm.get_cuda_device_count()):
    flags, active = ctypes.c_uint(), ctypes.c_int(-1)
    assert not cuda.cuDevicePrimaryCtxGetState(
        ordinal, ctypes.byref(flags), ctypes.byref(active)
    )
    found.append(bool(active.value))
print(found)
"""
        )
    )


@pytest.fixture
def gate():
    with kinds.Gate() as gate:
        yield gate


@pytest.fixture(autouse=True)
def restore_current():
    yield
    wm.set_device(None)


# --- devices ------------------------------------------------------------


def test_cpu_is_a_device():
    cpu = wm.get_device("cpu")
    assert cpu.is_cpu and not cpu.is_cuda
    assert cpu.ordinal == -1 and cpu.alias == str(cpu) == "cpu"
    assert cpu.uuid is None and cpu.pci_bus_id is None
    assert 0 < cpu.free_memory <= cpu.total_memory
    assert cpu.name == "CPU"
    assert cpu is wm.get_device(-1) is wm.get_device(cpu)
    cpu.synchronize()


def test_devices_are_listed_cpu_first():
    devices = [wm.get_device("cpu"), *wm.get_cuda_devices()]
    assert devices[0] == "cpu"
    assert devices[1:] == wm.get_cuda_devices()
    assert len(devices) == 1 + wm.get_cuda_device_count()
    assert wm.is_cuda_available() == (len(devices) > 1)


def test_device_is_the_same_object_and_equal_to_its_name():
    for device in [wm.get_device("cpu"), *wm.get_cuda_devices()]:
        assert wm.get_device(str(device)) is device
        assert wm.get_device(device.ordinal) is device
        assert device == str(device) and str(device) == device
        assert device != "cuda:77" and device != 3 and device is not None
        assert {device: 1}[str(device)] == 1
        assert pickle.loads(pickle.dumps(device)) is device
        assert repr(device) == f"Device('{device}')"


def test_devices_cannot_be_made_or_changed():
    with pytest.raises(TypeError):
        wm.Device()
    with pytest.raises((TypeError, AttributeError)):
        wm.get_device("cpu").ordinal = 3
    with pytest.raises(TypeError):
        wm.Device.alias = None


@pytest.mark.parametrize(
    "ident", ["gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:99", 99, -2, 1 << 80]
)
def test_unknown_device_lists_the_valid_ones(ident):
    with pytest.raises(ValueError, match="unknown device") as caught:
        wm.get_device(ident)
    for device in [wm.get_device("cpu"), *wm.get_cuda_devices()]:
        assert f"'{device}'" in str(caught.value)


@pytest.mark.parametrize("ident", [1.5, True, b"cpu", [], object()])
def test_no_device_is_a_type_error(ident):
    with pytest.raises(TypeError, match="a device is"):
        wm.get_device(ident)


@needs_cuda
def test_facts_of_a_cuda_device():
    device = wm.get_device("cuda:0")
    assert device.is_cuda and not device.is_cpu
    assert device.name
    assert device.uuid.startswith("GPU-") and len(device.uuid) == 40
    assert device.pci_bus_id.count(":") == 2
    assert 0 < device.free_memory <= device.total_memory
    assert wm.get_cuda_driver_version() >= (12, 0)
    device.synchronize()


@needs_two
def test_devices_differ():
    one, two = wm.get_cuda_devices()[:2]
    assert one != two and hash(one) != hash(two) and one.uuid != two.uuid


@needs_cuda
def test_devices_of_other_libraries():
    class Torch:
        type, index = "cuda", 0

        def __str__(self):
            return "cuda:0"

    class Warp:
        alias = "cuda:0"

    class CuPy:
        id = 0

    for foreign in (Torch(), Warp(), CuPy()):
        assert wm.get_device(foreign) is wm.get_device("cuda:0")
    CuPy.id = 99
    with pytest.raises(ValueError, match="unknown device"):
        wm.get_device(CuPy())


def test_current_device_belongs_to_the_thread():
    default = wm.get_device()
    seen = []
    with wm.ScopedDevice("cpu") as scoped:
        assert scoped is wm.get_device() is wm.get_device("cpu")
        thread = threading.Thread(target=lambda: seen.append(wm.get_device()))
        thread.start()
        thread.join()
    assert seen == [default]
    assert wm.get_device() is default


def test_scopes_nest_and_restore_after_an_exception():
    default = wm.get_device()
    scope = wm.ScopedDevice("cpu")
    with pytest.raises(KeyError), scope, scope:
        raise KeyError
    assert wm.get_device() is default
    wm.set_device("cpu")
    assert wm.get_device() == "cpu"
    wm.set_device(None)
    assert wm.get_device() is default


@needs_two
def test_cuda_means_the_current_cuda_device():
    default = wm.get_device()
    with wm.ScopedDevice("cuda:1"):
        assert wm.get_device("cuda") == "cuda:1"
        with wm.ScopedDevice("cpu"):
            assert wm.get_device("cuda") is default


@needs_cuda
@pytest.mark.parametrize(
    "variable", ["OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"]
)
def test_default_device_is_that_of_the_local_rank(variable):
    count = wm.get_cuda_device_count()
    launcher = ("LOCAL_RANK", "LOCALRANKID", "LOCAL_ID", "LOCALID")
    for rank in (0, 1, 2 * count + 1):
        clean = {k: "" for k in os.environ if k.endswith(launcher)}
        clean[variable] = str(rank)
        printed = fresh("print(wm.get_device())", **clean)
        assert printed == f"cuda:{rank % count}"


@needs_cuda
def test_looking_at_devices_makes_no_context():
    code = """
for device in wm.get_cuda_devices():
    device.name, device.uuid, device.total_memory, device.pci_bus_id
wm.get_device(), wm.synchronize()
"""
    assert True not in contexts_after(code)


@needs_two
def test_using_a_device_makes_no_context_on_another():
    code = """
stream = wm.Stream("cuda:1")
stream.synchronize()
wm.synchronize()
"""
    assert contexts_after(code)[:2] == [False, True]


def test_a_driver_that_was_asked_for_and_is_none_is_told():
    done = subprocess.run(
        [sys.executable, "-c", "import warpmpi as wm; wm.zeros(3)"],
        env={**os.environ, **NO_DRIVER},
        capture_output=True,
        text=True,
        timeout=120,
    )
    told = "warpmpi: WARPMPI_CUDA_DRIVER: no CUDA driver: /nonexistent/"
    assert done.returncode == 0
    assert done.stderr.count(told) == 1, done.stderr


def test_a_driver_that_is_a_pipe_is_none(tmp_path):
    """Nobody writes into it: to open it must not wait."""
    path = tmp_path / "libcuda.so.1"
    os.mkfifo(path)
    done = subprocess.run(
        [sys.executable, "-c", "import warpmpi as wm; wm.zeros(3)"],
        env={**os.environ, "WARPMPI_CUDA_DRIVER": str(path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0
    assert f"no CUDA driver: {path} is not a regular file" in done.stderr


def test_without_a_driver_the_cpu_serves():
    code = """
cpu = wm.get_device("cpu")
print(wm.is_cuda_available(), wm.get_cuda_device_count(), [cpu])
print(wm.get_device(), wm.get_cuda_driver_version(), wm.get_cuda_devices())
wm.synchronize()
wm.synchronize_device()
for ident in ("cuda", "cuda:0", 0):
    try:
        wm.get_device(ident)
    except ValueError as error:
        print(error)
for make in (wm.Stream, wm.Event):
    try:
        make()
    except ValueError as error:
        print(error)
"""
    lines = fresh(code, **NO_DRIVER).splitlines()
    assert lines[0] == "False 0 [Device('cpu')]"
    assert lines[1] == "cpu None []"
    for line in lines[2:5]:
        assert "valid devices are 'cpu' (no CUDA driver:" in line
    for line in lines[5:]:
        assert "needs a CUDA device, not 'cpu'" in line
    assert len(lines) == 7


@needs_cuda
@pytest.mark.forks
def test_forked_child_is_told_so():
    code = """
import os, sys
stream = wm.Stream()
child = os.fork()
if child == 0:
    for use in (wm.synchronize_device, wm.Stream, stream.synchronize):
        try:
            use()
        except RuntimeError as error:
            assert "fork" in str(error)
        else:
            os._exit(1)
    del stream
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert fresh(code) == "0"


# --- errors -------------------------------------------------------------


def test_exception_classes():
    assert issubclass(wm.CudaError, RuntimeError)
    assert issubclass(wm.OutOfMemoryError, wm.CudaError)
    assert issubclass(wm.OutOfMemoryError, MemoryError)
    assert wm.CudaError("x").code is None and wm.CudaError("x").name is None


@needs_cuda
def test_cuda_error_tells_call_result_and_arguments():
    size = 2 * wm.get_device("cuda:0").total_memory
    with pytest.raises(wm.CudaError) as caught:
        wm.empty(size, "u1", "cuda:0")
    error = caught.value
    assert isinstance(error.code, int) and error.code > 0
    assert error.name.startswith("CUDA_ERROR_")
    assert error.name in str(error)
    assert "cuMemAlloc" in str(error) and "cuda:0" in str(error)


# --- streams ------------------------------------------------------------


@needs_cuda
def test_stream_of_a_device():
    for device in wm.get_cuda_devices():
        stream = wm.Stream(device)
        assert stream.device is device and stream.cuda_stream > 2
        assert stream.__cuda_stream__() == (0, stream.cuda_stream)
        assert stream.is_complete
        stream.synchronize()
        assert stream != wm.Stream(device)
    assert wm.Stream().device is wm.get_device("cuda")


@needs_cuda
def test_stream_needs_a_cuda_device():
    with pytest.raises(ValueError, match="CUDA device"):
        wm.Stream("cpu")
    with pytest.raises(ValueError, match="unknown device"):
        wm.Stream("cuda:99")
    with pytest.raises(TypeError):
        wm.Stream("cuda:0", "high")


@needs_cuda
def test_waiting_lets_other_threads_run(gate):
    stream = wm.Stream()
    event = wm.Event()
    gate.stop(stream)
    event.record(stream)
    waits = (
        stream.synchronize,
        event.synchronize,
        stream.device.synchronize,
        wm.synchronize,
    )
    threads = [threading.Thread(target=wait) for wait in waits]
    for thread in threads:
        thread.start()
    gate.open()  # never reached if one of them held the GIL
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


class Protocol:
    def __init__(self, handle):
        self.handle = handle

    def __cuda_stream__(self):
        return (0, self.handle)


class CuPy:
    def __init__(self, handle):
        self.ptr = handle


class Torch:
    def __init__(self, handle):
        self.cuda_stream = handle


class Numba:
    def __init__(self, handle):
        self.handle = ctypes.c_void_p(handle)


@needs_cuda
@pytest.mark.parametrize("wrap", [Protocol, CuPy, Torch, Numba, int])
def test_foreign_stream_is_taken_everywhere(wrap, gate):
    device = wm.get_cuda_devices()[-1]
    own = wm.Stream(device)
    foreign = wrap(own.cuda_stream)
    view = wm.Stream(cuda_stream=foreign)
    assert view == own and hash(view) == hash(own) and view.device is device
    gate.stop(own)
    event = wm.Event(device)
    event.record(foreign)
    assert not event.is_complete
    gate.open()
    view.synchronize()
    assert event.is_complete


@needs_cuda
def test_foreign_stream_is_kept_alive_by_its_view():
    own = wm.Stream()
    foreign = Protocol(own.cuda_stream)
    alive = weakref.ref(foreign)
    view = wm.Stream(cuda_stream=foreign)
    foreign.view = view  # a cycle, which the collector finds
    del foreign
    gc.collect()
    assert alive() is not None
    del view
    gc.collect()
    assert alive() is None
    own.synchronize()  # a view does not destroy what it views


@needs_cuda
@pytest.mark.parametrize("handle", [None, 0, 1, 2])
def test_default_streams(handle):
    device = wm.get_cuda_devices()[-1]
    stream = wm.Stream(device, cuda_stream=handle)
    assert stream.device is device
    assert stream.cuda_stream == (handle or LEGACY)
    stream.synchronize()
    assert stream.is_complete


@needs_cuda
@pytest.mark.parametrize("bad", ["stream", 1.5, True, object(), None])
def test_no_stream_is_a_type_error(bad):
    with pytest.raises(TypeError, match="stream: a stream is"):
        wm.Event().record(bad)


@needs_cuda
def test_broken_protocol_is_told():
    class Broken:
        def __cuda_stream__(self):
            return 5

    class Raising:
        def __cuda_stream__(self):
            raise KeyError("mine")

    class Other:
        def __init__(self, version):
            self.version = version

        def __cuda_stream__(self):
            return (self.version, 0)

    with pytest.raises(TypeError, match="version, handle"):
        wm.Stream(cuda_stream=Broken())
    for version in 7, -1, "0":
        with pytest.raises(ValueError, match=f"version {version!r} of"):
            wm.Stream(cuda_stream=Other(version))
    with pytest.raises(KeyError, match="mine"):
        wm.Stream(cuda_stream=Raising())


@needs_two
def test_stream_of_another_device_is_refused():
    stream = wm.Stream("cuda:1")
    with pytest.raises(ValueError, match="cuda:1, not cuda:0"):
        wm.Stream("cuda:0", cuda_stream=stream.cuda_stream)
    with pytest.raises(ValueError, match="cannot be recorded"):
        wm.Event("cuda:0").record(stream)


@needs_cuda
@pytest.mark.parametrize("library", ["torch", "cupy", "warp"])
def test_streams_and_devices_of_real_libraries(library, gate):
    module = pytest.importorskip(library, exc_type=ImportError)
    last = wm.get_cuda_device_count() - 1
    if library == "torch":
        if not module.cuda.is_available():
            pytest.skip("torch sees no CUDA device")
        device = module.device("cuda", last)
        with module.cuda.device(last):
            foreign = module.cuda.Stream()
            default = module.cuda.default_stream()
    elif library == "cupy":
        device = module.cuda.Device(last)
        with device:
            foreign = module.cuda.Stream(non_blocking=True)
            default = module.cuda.Stream.null
    else:
        if not module.is_cuda_available():
            pytest.skip("warp sees no CUDA device")
        device = module.get_device(f"cuda:{last}")
        foreign = module.Stream(device)
        default = module.Stream(device, cuda_stream=None)
    assert wm.get_device(device).ordinal == last
    view = wm.Stream(cuda_stream=foreign)
    assert view.device.ordinal == last
    if library != "cupy":  # whose null stream says no device
        assert wm.Stream(cuda_stream=default).device.ordinal == last
    gate.stop(view)
    event = wm.Event(view.device)
    event.record(foreign)
    assert not event.is_complete
    gate.open()
    event.synchronize()


# --- events -------------------------------------------------------------


@needs_cuda
def test_event_of_a_device():
    for device in wm.get_cuda_devices():
        event = wm.Event(device)
        assert event.device is device and event.cuda_event
        assert event.is_complete  # never recorded
        event.record(wm.Stream(device))
        event.synchronize()
        with pytest.raises(TypeError):
            event.record()
    with pytest.raises(ValueError, match="CUDA device"):
        wm.Event("cpu")
