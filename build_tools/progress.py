# SPDX-License-Identifier: BSD-3-Clause
"""Tells what a build does, also to those who start it by pip.

pip shows what a build prints only if it fails, or with `pip -v`: under pip a
terminal is told directly.
"""

from __future__ import annotations

import sys
import time

under_pip = False  # set by the backend
_BEGUN = time.monotonic()


def say(text: str) -> None:
    """Prints a line, with the seconds since the build began."""
    line = f"warpmpi: {text} [{time.monotonic() - _BEGUN:.0f} s]"
    print(line, flush=True)
    if not under_pip or sys.stdout.isatty():
        return
    try:
        with open("/dev/tty", "w") as terminal:
            terminal.write(f"\r\033[K  {line}\n")  # over pip's own line
    except OSError:
        pass  # no terminal
