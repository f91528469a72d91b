# SPDX-License-Identifier: BSD-3-Clause
"""Every test ends with an agreement of all ranks about its outcome.

So a test that fails on one rank fails on all, and the ranks go on together.
A rank that does not come (it waits for a message that will not be sent) is
not waited for without end: after WARPMPI_TEST_TIMEOUT seconds every rank
prints the stacks of all its threads and the job ends, named by its test.
"""

import faulthandler
import os
import time

import pytest
from mpi4py import MPI

TIMEOUT = float(os.environ.get("WARPMPI_TEST_TIMEOUT", "90"))
PATIENCE = 5.0  # before a rank that failed tells why, in case it is killed

_comm = MPI.COMM_WORLD.Dup()  # a plain one: what is tested is not used here
_reports = pytest.StashKey()


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "ranks(n): needs at least n ranks (skipped on fewer)"
    )
    config.stash[_reports] = {}


@pytest.fixture(scope="session")
def world():
    """The stock communicator of all ranks."""
    return MPI.COMM_WORLD


def pytest_collection_modifyitems(items):
    for item in items:
        for mark in item.iter_markers("ranks"):
            if _comm.size < mark.args[0]:
                reason = f"needs {mark.args[0]} ranks"
                item.add_marker(pytest.mark.skip(reason=reason))


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
