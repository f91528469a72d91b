# SPDX-License-Identifier: BSD-3-Clause
"""Tells what a build does, also to those who start it by pip.

    python progress.py "installing …" COMMAND …

says what the command does, and every few seconds that it still runs.

pip shows what a build prints only if it fails, or with `pip -v`: under pip its
own stderr, which is a terminal or a log, is told directly.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import TextIO

under_pip = False  # set by the backend
SECONDS = 10.0  # without a line; the next one tells what still runs
_PIDFD_GETFD = 438  # the same on all machines
_BEGUN = time.monotonic()

_lock = threading.Lock()
_running: list[str] = []
_said = _BEGUN


def _pips_stderr() -> TextIO | None:
    """The parent's, with its place in a file; else the terminal, or None."""
    try:
        pip = os.pidfd_open(os.getppid())
        found = ctypes.CDLL(None).syscall(_PIDFD_GETFD, pip, 2, 0)
        os.close(pip)
        return open(found if found >= 0 else "/dev/tty", "w")
    except OSError:
        return None


def say(text: str) -> None:
    """Prints a line, with the seconds since the build began."""
    global _said
    _said = time.monotonic()
    line = f"warpmpi: {text} [{_said - _BEGUN:.0f} s]"
    print(line, flush=True)
    if not under_pip or sys.stdout.isatty():
        return
    file = _pips_stderr()
    if file is not None:
        with contextlib.suppress(OSError), file:
            # Over pip's own line, where it turns a bar.
            file.write(f"\r\033[K  {line}\n" if file.isatty() else line + "\n")


@contextlib.contextmanager
def doing(what: str) -> Iterator[None]:
    """Lets a line tell of it, whenever SECONDS have passed without a line."""
    with _lock:
        _begin_to_tell()
        _running.append(what)
    try:
        yield
    finally:
        with _lock:
            _running.remove(what)


@functools.cache
def _begin_to_tell() -> None:
    threading.Thread(target=_tell, daemon=True).start()


def _tell() -> None:
    while True:
        time.sleep(SECONDS / 20)
        with _lock:
            if not _running or time.monotonic() - _said < SECONDS:
                continue
            more = len(_running) - 2
            text = "still " + ", ".join(_running[:2])
            say(text + (f" and {more} more" if more > 0 else ""))


def main(what: str, *command: str) -> int:
    """Runs the command; the exit status is the command's."""
    print(what, flush=True)
    with doing(what):
        return subprocess.call(command, close_fds=False)  # make's are for it


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
