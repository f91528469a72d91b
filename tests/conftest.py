# SPDX-License-Identifier: BSD-3-Clause
"""What every suite shares: the driver underneath, hypothesis, results.

The suites run on the simulated driver, two devices, lazy streams, unless
WARPMPI_TEST_GPU=1 (`make gpu-test`) leaves the real one in place. Whatever
is set in the environment already is left alone.
"""

import gc
import json
import os
from pathlib import Path

import pytest

import ranks
import sampling

ROOT = Path(__file__).resolve().parent.parent
SIMCUDA = ROOT / "build" / "simcuda" / "libsimcuda.so"

# Before anything imports warpmpi, or starts a process that does.
if os.environ.get("WARPMPI_TEST_GPU") != "1" and SIMCUDA.is_file():
    os.environ.setdefault("WARPMPI_CUDA_DRIVER", str(SIMCUDA))
    os.environ.setdefault("SIMCUDA_DEVICES", "2")
    os.environ.setdefault("SIMCUDA_MODE", "lazy")

# Nothing of what these test is instrumented.
if ranks.ASAN:
    collect_ignore = ["test_simcuda.py", "test_simcuda_ipc.py", "test_tree.py"]
    collect_ignore += ["test_build.py", "test_scale.py", "test_simnccl.py"]

# JAX would take most of a GPU, which other ranks and libraries are on.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

_WORST = {"passed": 0, "skipped": 1, "failed": 2}


def pytest_configure(config):
    config.addinivalue_line(
        "markers",
        "forks: forks a process that has threads; left out with ASan, where "
        "a child never gets a lock that another thread has in its malloc",
    )
    results = os.environ.get("WARPMPI_TEST_RESULTS")
    if results:
        config.pluginmanager.register(_Results(Path(results)))
    try:
        import hypothesis
    except ImportError:
        return
    # The same examples on every rank and every run; no time limit, since
    # other ranks may have the core.
    hypothesis.settings.register_profile(
        "warpmpi", derandomize=True, deadline=None, database=None
    )
    hypothesis.settings.load_profile("warpmpi")


def every(item):
    """All of the tree: it is read in seconds."""
    return 1 if item.path.stem == "test_tree" else sampling.EVERY


def pytest_collection_modifyitems(config, items):
    if not any(item.path.parent.name == "mpi" for item in items):
        sampling.choose(config, items, every)


def pytest_runtest_setup(item):
    if ranks.ASAN and item.get_closest_marker("forks"):
        pytest.skip("AddressSanitizer's malloc is not made for fork()")


def pytest_collection_finish(session):
    # All tests, and what they import, stay: nothing looks through them again.
    gc.collect()
    gc.freeze()


class _Results:
    """Keeps what tests/run.py sums up: each test's worst phase and words.

    A line for each, as soon as it has ended: the process may die in the next.
    """

    def __init__(self, path):
        self.path = path
        self.current = path.with_suffix(".current")
        self.outcome, self.text = "passed", ""

    def note(self, report):
        self.outcome = max(
            self.outcome, report.outcome, key=_WORST.__getitem__
        )
        if report.failed and not self.text:
            self.text = report.longreprtext

    def write(self, nodeid):
        with self.path.open("a") as file:
            file.write(json.dumps([nodeid, self.outcome, self.text]) + "\n")
        self.outcome, self.text = "passed", ""

    def pytest_runtest_logstart(self, nodeid, location):
        # Where a process was if it dies.
        self.current.write_text(nodeid)

    def pytest_collectreport(self, report):
        if not report.passed:
            self.note(report)
            self.write(report.nodeid)

    def pytest_runtest_logreport(self, report):
        self.note(report)

    def pytest_runtest_logfinish(self, nodeid, location):
        self.write(nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session, exitstatus):
        self.path.touch()
        self.current.unlink(missing_ok=True)
