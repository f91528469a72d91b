# SPDX-License-Identifier: BSD-3-Clause
"""The process that the launcher starts. It never runs MPI or CUDA.

It starts the rank's process, hears of its steps, and lives on when that
process crashes, hangs, or is ended by the launcher.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from .facts import child_command, end_of, launcher_rank

GRACE = 3.0  # seconds
NEWS = 5.0  # seconds after which a line tells the step


class _Terminated(Exception):
    """The launcher ends the job."""


def _terminate(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Terminated


class Supervisor:
    """Watches over one rank's process; report is what that has found.

    status: with which the doctor ends, the same on all ranks. limit: seconds
    of a step. publish: is called once with this object, when the report is
    complete, or the process has ended before.
    """

    def __init__(
        self,
        report: dict[str, Any],
        limit: float,
        publish: Callable[[Supervisor], None],
    ) -> None:
        self.report, self.limit, self.publish = report, limit, publish
        self.step, self.since = "starts Python", time.monotonic()
        self.complete, self.status = False, 2
        self.failed = ""
        self.rank, self.alone = launcher_rank() or 0, launcher_rank() is None

    def _hear(self, line: str) -> None:
        told = json.loads(line)
        if "step" in told:
            self.step, self.since = told["step"], time.monotonic()
        self.report = told.get("report", self.report)
        if "rank" in told:
            self.rank, self.alone = told["rank"], False
        self.failed = told.get("failed", self.failed)
        if "status" in told:
            self.complete, self.status = True, told["status"]
            self.publish(self)

    def _tell_step(self) -> None:
        """Let the user see what takes long, from one rank."""
        if self.rank == 0:
            seconds = time.monotonic() - self.since
            print(
                f"warpmpi doctor: rank 0 is in the step {self.step!r} since "
                f"{seconds:.0f} s",
                file=sys.stderr,
                flush=True,
            )

    def _listen(self, child: Any, descriptor: int) -> bool:
        """Hear the rank until it ends; return False if it hangs.

        The rank's process goes on to MPI_Finalize once the report has been
        published.
        """
        rest, news = b"", time.monotonic() + NEWS
        while True:
            left = self.since + self.limit - time.monotonic()
            if left <= 0:
                return False
            wait = news - time.monotonic()
            if wait <= 0:
                self._tell_step()
                news, wait = news + NEWS, NEWS
            if not select.select([descriptor], [], [], min(left, wait))[0]:
                continue
            more = os.read(descriptor, 1 << 16)
            if not more:
                return True
            *lines, rest = (rest + more).split(b"\n")
            for line in lines:
                self._hear(line.decode())
            if self.complete:
                child.stdin.close()

    def _watch(self, child: subprocess.Popen[bytes], descriptor: int) -> str:
        """Return how the rank's process has ended; "" if all is well."""
        try:
            if not self._listen(child, descriptor):
                return f"it made no progress for {self.limit:g} s"
            status = child.wait(self.limit)
        except subprocess.TimeoutExpired:
            return f"it did not end within {self.limit:.0f} s"
        except (_Terminated, KeyboardInterrupt):
            self.alone = True  # nothing that is printed later is passed on
            if self.complete:  # another rank has ended before, with a status
                return ""
            return "the job was ended, by its user or after another rank"
        if self.failed:
            return self.failed
        return "" if status == 0 and self.complete else end_of(status)

    def run(self, words: list[str]) -> None:
        """Start the rank's process, and watch it until it has ended."""
        read, write = os.pipe()
        os.set_inheritable(write, True)
        signal.signal(signal.SIGTERM, _terminate)
        # Launchers hand descriptors to their ranks: they stay open.
        child = subprocess.Popen(
            child_command(f"rank:{write}", *words),
            close_fds=False,
            stdin=subprocess.PIPE,
            stdout=sys.stderr.fileno(),
        )
        os.close(write)
        try:
            how = self._watch(child, read)
        finally:
            child.kill()
        hung = time.monotonic() - self.since >= self.limit
        begun = "size" in self.report["ranks"][0].get("mpi", {})
        others_wait = not hung and (begun or self.rank != 0)
        self.patience = GRACE + (self.limit if others_wait else 0.0)
        if how:
            self.status = 2
            self.report["ended"] = {
                "rank": self.rank,
                "step": self.step,
                "seconds": round(time.monotonic() - self.since, 1),
                "how": how,
            }
        if not self.complete:
            self.publish(self)

    def wait_for_others(self) -> None:
        """Let ranks that wait for this one say where they stand.

        When one rank ends with an error, launchers end the others, and no
        longer pass on what they print.
        """
        if not self.alone:
            with contextlib.suppress(_Terminated):
                time.sleep(self.patience)
