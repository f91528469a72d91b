# SPDX-License-Identifier: BSD-3-Clause
"""Commands that README and the pages show print what they show.

A block marked `text` that begins with `$ ` is a session: commands, and what
they print. `…` stands for any text, and a line of it for any lines. Ranks
print in any order. With `cpu` after `text` the session is one without a GPU. A
program is the block marked `python` of the page that begins with its name.
"""

import importlib.util
import re
import shlex

import pytest

import pages
import ranks
import warpmpi as wm

pytestmark = pytest.mark.programs
CPU = {"WARPMPI_CUDA_DRIVER": "/no/driver"}


class Session:
    def __init__(self, page, kind, text, line):
        self.page, self.cpu = page, kind == "cpu"
        self.name = f"{page}:{line}"
        self.steps = []  # a command, and the lines that it prints
        for row in text.splitlines():
            if row.startswith("$ "):
                self.steps.append((row[2:], []))
            else:
                self.steps[-1][1].append(row)


def sessions():
    for page in pages.PAGES:
        for info, text, line in pages.blocks(page):
            if info.split()[:1] != ["text"] or "warpmpi doctor" in text:
                continue  # what the doctor says is of one machine
            if text.startswith("$ "):
                kind = [*info.split(), ""][1]
                yield Session(page, kind, text, line)


SESSIONS = list(sessions())


def programs_of(page):
    """By the name that the first line gives."""
    found = {}
    for info, text, _ in pages.blocks(page):
        if info == "python" and named(text):
            found[named(text)] = text
    return found


def parsed(command):
    """Ranks, settings and the words after `python`."""
    words = shlex.split(command)
    settings = {}
    while "=" in words[0]:
        key, _, value = words.pop(0).partition("=")
        settings[key] = value
    count = 0
    if words[0] == "mpirun":
        count = int(words[words.index("-n") + 1])
    return count, settings, words[words.index("python") + 1 :]


def pattern(line):
    """A line as a regular expression."""
    return ".*".join(map(re.escape, line.rstrip().split("…")))


def check(printed, shown, ordered):
    got = [line.rstrip() for line in printed.splitlines()]
    want = [line for line in shown if line]
    got = [line for line in got if line]
    if not ordered:
        got, want = sorted(got), sorted(want)
    text = "\n".join(
        "(?:.*\n)*.*" if line == "…" else pattern(line) for line in want
    )
    assert re.fullmatch(text, "\n".join(got)), printed


@pytest.mark.parametrize("session", SESSIONS, ids=lambda each: each.name)
def test_session_prints_what_the_page_shows(tmp_path, session):
    programs = programs_of(session.page)
    for name, text in programs.items():
        (tmp_path / name).write_text(text)
    if not session.cpu and wm.get_cuda_device_count() < 2:
        pytest.skip("the page shows what two GPUs give")
    for command, lines in session.steps:
        count, settings, words = parsed(command)
        text = programs.get(words[0], "")
        environment = {**settings, **(CPU if session.cpu else {})}
        for library in pages.libraries(text):
            if library == "cupy" and pages.with_cupy() is not None:
                environment |= pages.with_cupy()
            elif importlib.util.find_spec(library) is None:
                pytest.skip(f"{words[0]} needs {library}, which is missing")
        words = [tmp_path / w if w in programs else w for w in words]
        printed = ranks.run(*words, ranks=count, **environment)
        check(printed, lines, ordered=count == 0 or "…" in lines)


def named(text):
    found = re.match(r"# (\w+\.py)\b", text)
    return found[1] if found else ""


# Programs of CuPy whose run no page shows, by file and line.
NOT_SHOWN = [
    pytest.param(text, id=f"{page}:{line}")
    for page in pages.PAGES
    for info, text, line in pages.blocks(page)
    if info == "python" and "import cupy" in text
    if not any(
        named(text) in command.split()
        for session in SESSIONS
        if session.page == page
        for command, _ in session.steps
    )
]


@pytest.mark.parametrize("text", NOT_SHOWN)
def test_program_of_cupy_runs_on_the_stand_in(text, tmp_path):
    """With CuPy itself tests/mpi/test_guide.py runs it."""
    told = pages.with_cupy()
    if not told or wm.get_cuda_device_count() < 2:
        pytest.skip("needs the stand-in for CuPy, and two simulated GPUs")
    if "RawKernel" in text:
        pytest.skip("the stand-in compiles no kernels")
    ranks.run_text(tmp_path, text, ranks=2, **told)


def test_there_are_sessions():
    assert len(NOT_SHOWN) > 3
    assert len(SESSIONS) > 3
    assert any(each.cpu for each in SESSIONS)
