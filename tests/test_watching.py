# SPDX-License-Identifier: BSD-3-Clause
"""The call of MPI in which the main thread is, found in its byte code."""

import sys
import textwrap
import threading
import types

import pytest

from warpmpi import _watching

# Each waits in a lock, which stands for a communicator: the program, and the
# name that is told. `held` is such a lock, `self.comm` another name of it.
WAITS = {
    "held.acquire()": "acquire",
    "self.comm.acquire()": "acquire",
    "held.acquire(blocking=True)": "acquire",
    "held.acquire(*(True,))": "acquire",
    "held.acquire(True, -1 if self else 0)": "acquire",
    "str(held.acquire(bool(max(0, 1))))": "acquire",
    "comm = held; comm.acquire()": "acquire",
    "call = held.acquire; call()": "acquire",
    "for comm in [held]: comm.acquire(True)": "acquire",
    "with open('/dev/null') as file: held.acquire(bool(file))": "acquire",
    "table['comm'].Recv()": "Recv",
    "(table if self is None else table)['comm'].Recv(True)": "Recv",
}


@pytest.mark.parametrize("text", WAITS)
def test_the_call_of_a_frame_is_named(tmp_path, monkeypatch, text):
    held = threading.Lock()
    monkeypatch.setattr(_watching, "_KINDS", (type(held),))
    monkeypatch.setattr(_watching, "_names", lambda: {"Recv"})
    script = tmp_path / "program.py"
    script.write_text(
        "def wait(self, held, table):\n" + textwrap.indent(text, "    ") + "\n"
    )
    space = {}
    exec(compile(script.read_text(), str(script), "exec"), space)
    told = []

    def watch():
        while not told:
            line = _watching.tell(1, False)
            if line is not None and str(script) in line:
                told.append(line)
                held.release()

    held.acquire()
    thread = threading.Thread(target=watch)
    thread.start()
    box = types.SimpleNamespace(Recv=held.acquire)
    space["wait"](types.SimpleNamespace(comm=held), held, {"comm": box})
    thread.join()
    begin = f": {WAITS[text]} has waited 1 s inside MPI ({script}, line 2, in "
    assert told[0].startswith(begin), told


def test_other_calls_are_none_of_mpi():
    began, told = threading.Event(), []

    def watch():
        began.wait()
        told.extend(_watching.tell(1, asked) for asked in (False, True))
        lock.release()

    lock = threading.Lock()
    lock.acquire()
    thread = threading.Thread(target=watch)
    thread.start()
    began.set()
    lock.acquire()
    thread.join()
    assert told[0] is None
    assert " is in no blocking call of warpmpi: it is at " in told[1]


def test_without_columns_the_line_is_searched(monkeypatch):
    frame = sys._getframe()
    monkeypatch.setattr(_watching, "_start", lambda step: (None, None))
    paths = []
    paths.extend(_watching._paths(frame))
    assert ["paths", "extend"] in paths
    assert ["_watching", "_paths"] in paths
