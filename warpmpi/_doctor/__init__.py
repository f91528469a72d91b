# SPDX-License-Identifier: BSD-3-Clause
"""`python -m warpmpi doctor`: what is wrong with a job, and its cure.

Nothing here needs warpmpi's core, mpi4py or a driver to be there.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import signal
import sys
from typing import Any

from .._about import show

_PDEATHSIG = 1  # of prctl()
_EPILOG = """\
Examines the Python environment, MPI, the hosts, the driver and the GPUs, and
moves data between all pairs of ranks. Rank 0 prints the facts, and a cure for
each finding. Exit status, on all ranks: 0 fine, 1 warnings, 2 broken. A script
of the name doctor is run by `python -m warpmpi ./doctor`.
"""


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return number


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 < number < 1e6:
        raise argparse.ArgumentTypeError(
            f"{text} is no number of seconds between 0 and 1000000"
        )
    return number


def _parse(words: list[str]) -> Any:
    parser = argparse.ArgumentParser(
        prog="python -m warpmpi doctor",
        description=_EPILOG,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--json", action="store_true", help="print one JSON object")
    add("--plot", metavar="FILE", help="draw the bandwidths (matplotlib)")
    add("--expect-hosts", metavar="N", type=_count, help="hosts there must be")
    add("--expect-ranks", metavar="N", type=_count, help="ranks there must be")
    add(
        "--timeout",
        metavar="SECONDS",
        type=_seconds,
        default=60.0,
        help="a step that takes longer is a hang (60)",
    )
    add("--child", help=argparse.SUPPRESS)
    return parser.parse_args(words)


def main(words: list[str]) -> int:
    """Examine the job; return the exit status."""
    options = _parse(words)
    report = {
        "expect": {
            "hosts": options.expect_hosts,
            "ranks": options.expect_ranks,
        },
        "plot": options.plot,
        "ranks": [{}],
        "pairs": [],
        "engines": {},
        "ended": None,
    }
    if options.child:
        return _be_child(options.child, report, options.timeout)

    from . import findings
    from . import report as reports
    from .job import Job
    from .supervisor import Supervisor

    undrawn: list[str] = []

    def publish(one: Supervisor) -> None:
        if one.rank != 0:
            return
        job = Job(one.report)
        found = findings.find(job)
        write = reports.as_json if options.json else reports.text
        show(write(job, found))
        if options.plot and job.get(0, "installation", "matplotlib"):
            from .plot import draw

            try:
                draw(job, options.plot)
            except (OSError, ValueError) as error:
                undrawn.append(f"--plot {options.plot}: {error}")

    one = Supervisor(report, options.timeout, publish)
    one.run(words)
    for error in undrawn:
        print(f"warpmpi doctor: {error}", file=sys.stderr)
    if one.report["ended"]:
        if one.rank != 0 or one.complete:  # else the report says it
            text = findings.find(Job(one.report))[0].text
            print(f"warpmpi doctor: {text}", file=sys.stderr, flush=True)
        one.wait_for_others()
    return 2 if undrawn else one.status


def _be_child(what: str, report: dict[str, Any], limit: float) -> int:
    # The child of a process that has died ends, too.
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
    kind, _, number = what.partition(":")
    module = importlib.import_module(f".{kind}", __name__)
    if kind == "rank":
        module.run(int(number), report, limit)
    else:
        print(json.dumps({**module.facts(int(number)), "complete": True}))
    return 0
