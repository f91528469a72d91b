# SPDX-License-Identifier: BSD-3-Clause
"""Every test ends with an agreement of all ranks about its outcome.

So a test that fails on one rank fails on all, and the ranks go on together.
A rank that does not come (it waits for a message that will not be sent) is
not waited for without end: after WARPMPI_TEST_TIMEOUT seconds every rank
prints the stacks of all its threads and the job ends, named by its test.
"""

import ctypes
import faulthandler
import os
import time

import pytest
from mpi4py import MPI

import kinds
import warpmpi as wm
from cases import is_direct, settle
from sampling import EVERY, choose

TIMEOUT = float(os.environ.get("WARPMPI_TEST_TIMEOUT", "90"))
# On real GPUs, and on demand, everything runs on any number of ranks.
FULL = "1" in map(os.environ.get, ("WARPMPI_TEST_FULL", "WARPMPI_TEST_GPU"))
# What these test is within a rank or between two, and tested by that number
# of them; a rank and itself take some.
PAIRS = {
    "test_arguments",
    "test_buffered",
    "test_busy_buffers",
    "test_counts",
    "test_datatypes",
    "test_eager",
    "test_elements",
    "test_errors",
    "test_exchange",
    "test_faults",
    "test_guide",
    "test_handles",
    "test_interrupts",
    "test_large_memory",
    "test_long_kernels",
    "test_device_eager",
    "test_matched",
    "test_objects",
    "test_partitioned",
    "test_persistent",
    "test_probe",
    "test_push",
    "test_regressions",
    "test_requests",
    "test_streams",
    "test_strided",
    "test_threads",
    "test_transport",
}
PATIENCE = 5.0  # before a rank that failed tells why, in case it is killed

_comm = MPI.COMM_WORLD.Dup()  # a plain one: what is tested is not used here
_reports = pytest.StashKey()


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "ranks(n): needs at least n ranks (skipped on fewer)"
    )
    config.addinivalue_line(
        "markers", "programs: starts programs; left out on more than one rank"
    )
    config.addinivalue_line("markers", "long: left out of a sample")
    config.stash[_reports] = {}


@pytest.fixture(scope="session")
def world():
    """The stock communicator of all ranks."""
    return MPI.COMM_WORLD


@pytest.fixture(scope="module")
def comm(world):
    """A wm.Comm of all ranks, unless the module has another one."""
    return wm.Comm(world)


@pytest.fixture
def fresh(comm):
    """A wm.Comm of its own, which has made no call and may become unusable."""
    plain = MPI.COMM_WORLD.Dup()
    yield wm.Comm(plain)
    plain.Free()


@pytest.fixture
def stream():
    return wm.Stream(wm.get_device())


@pytest.fixture(scope="session")
def windows_of_one_rank():
    """Skips where MPI has none, as Open MPI 4.1 at THREAD_MULTIPLE."""
    try:
        MPI.Win.Create(bytearray(8), 1, comm=MPI.COMM_SELF).Free()
    except MPI.Exception as error:
        pytest.skip(f"no window of one rank: {error}")


@pytest.fixture
def ipc(comm):
    """Skips, on all ranks, where the first two do not reach each other so."""
    told = wm.transport(comm, 1 - comm.rank) if comm.rank < 2 else None
    told = MPI.COMM_WORLD.allgather(told)[:2]
    if any(each.name != "ipc" for each in told):
        pytest.skip(f"no ipc here: {told}")


@pytest.fixture
def fail():
    """Makes a call of a name fail on this rank's simulated driver.

    That is the next one or the one that many calls later; -1: all; 0: none.
    """
    library = kinds.driver()
    library.simcuda_fail.argtypes = (
        ctypes.c_char_p,
        ctypes.c_long,
        ctypes.c_int,
    )
    with kinds.uncollected():
        yield lambda name, code=0, nth=1: library.simcuda_fail(
            name.encode(), nth, code
        )
    library.simcuda_fail(None, 0, 0)


def every(item):
    """A rank that is both of a pair runs a third."""
    pair = item.path.stem in PAIRS and not FULL
    alone = pair and _comm.size == 1 and "comm" in item.fixturenames
    return 3 if alone and EVERY == 1 else EVERY


def pytest_collection_modifyitems(config, items):
    come, dropped = [], []
    for item in items:
        pair = item.path.stem in PAIRS and not FULL
        most = 2 if pair else _comm.size
        long = item.get_closest_marker("long") and EVERY > 1
        programs = item.get_closest_marker("programs")
        if long or _comm.size > (1 if programs else most):
            dropped.append(item)
            continue
        for mark in item.iter_markers("ranks"):
            if _comm.size < mark.args[0]:
                reason = f"needs {mark.args[0]} ranks"
                item.add_marker(pytest.mark.skip(reason=reason))
        come.append(item)
    items[:] = come
    config.hook.pytest_deselected(items=dropped)
    choose(config, items, every)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    # A C thread of its own: it fires also where nobody releases the GIL.
    faulthandler.dump_traceback_later(TIMEOUT, exit=True, file=_stderr)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    failures = item.config.stash[_reports]
    if report.failed:
        failures.setdefault(item.nodeid, []).append(report.longreprtext)
    if report.when == "teardown":
        own = failures.pop(item.nodeid, [])
        for text in own:  # in case the job is ended by a later one
            said = [line for line in text.splitlines() if line[:2] == "E "]
            said = (said or text.splitlines())[:3]
            print(
                f"rank {_comm.rank}: {item.nodeid}",
                *said,
                sep="\n",
                file=_stderr,
                flush=True,
            )
        failed = _agree(item.nodeid, own)
        if failed and not own:
            report.outcome = "failed"
            report.longrepr = f"{item.nodeid} failed on rank {failed}"
    return report


def _agree(nodeid, own):
    """The other ranks on which the test failed, as text; empty if none."""
    mine = bytearray([bool(own)])
    everyone = bytearray(_comm.size)
    request = _comm.Iallgather([mine, MPI.BYTE], [everyone, MPI.BYTE])
    begun, told, pause = time.monotonic(), False, 0.0
    while not request.Test():
        if own and not told and time.monotonic() - begun > PATIENCE:
            print(
                f"rank {_comm.rank} waits for the others after {nodeid} "
                "failed here:",
                *own,
                sep="\n",
                file=_stderr,
                flush=True,
            )
            told = True
        time.sleep(pause)
        pause = min(0.01, pause + 0.0002)
    return ", ".join(str(rank) for rank, bad in enumerate(everyone) if bad)


# Not what pytest captures, which is lost when the process is killed.
_stderr = os.fdopen(int(os.environ.get("WARPMPI_TEST_STDERR", "2")), "w")


@pytest.fixture(scope="module")
def connected(world):
    """A wm.Comm of all, whose GPUs reach each other; else it skips."""
    comm = wm.Comm(world)
    if not is_direct(comm):
        pytest.skip("no CUDA IPC between all of them")
    settle(comm)
    return comm
