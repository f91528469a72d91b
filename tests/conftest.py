# SPDX-License-Identifier: BSD-3-Clause
"""What every suite shares: the driver underneath, hypothesis, results.

The suites run on the simulated driver, two devices, lazy streams, unless
WARPMPI_TEST_GPU=1 (`make gpu-test`) leaves the real one in place. Whatever
is set in the environment already is left alone.
"""

import json
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SIMCUDA = ROOT / "build" / "simcuda" / "libsimcuda.so"

# Before anything imports warpmpi, or starts a process that does.
if os.environ.get("WARPMPI_TEST_GPU") != "1" and SIMCUDA.is_file():
    os.environ.setdefault("WARPMPI_CUDA_DRIVER", str(SIMCUDA))
    os.environ.setdefault("SIMCUDA_DEVICES", "2")
    os.environ.setdefault("SIMCUDA_MODE", "lazy")

# JAX would take most of a GPU, which other ranks and libraries are on.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

_WORST = {"passed": 0, "skipped": 1, "failed": 2}


def pytest_configure(config):
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


class _Results:
    """Keeps what tests/run.py sums up: each test's worst phase and words."""

    def __init__(self, path):
        self.path = path
        self.outcomes = {}
        self.texts = {}

    def note(self, report):
        before = self.outcomes.get(report.nodeid, "passed")
        self.outcomes[report.nodeid] = max(
            before, report.outcome, key=_WORST.__getitem__
        )
        if report.failed:
            self.texts.setdefault(report.nodeid, report.longreprtext)

    def write(self):
        kept = {"outcomes": self.outcomes, "texts": self.texts}
        part = self.path.with_suffix(".part")  # it may die at any moment
        part.write_text(json.dumps(kept))
        part.replace(self.path)

    def pytest_runtest_logstart(self, nodeid, location):
        # Where a process was if it dies.
        self.path.with_suffix(".current").write_text(nodeid)

    def pytest_collectreport(self, report):
        if not report.passed:
            self.note(report)

    def pytest_runtest_logreport(self, report):
        self.note(report)

    def pytest_runtest_logfinish(self, nodeid, location):
        self.write()

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session, exitstatus):
        self.write()
        self.path.with_suffix(".current").unlink(missing_ok=True)
