# SPDX-License-Identifier: BSD-3-Clause
"""README and the pages of docs/, and the blocks in them."""

import importlib.util
import os
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INSIDE = {"docs/design.md"}  # of the sources
PAGES = ["README.md"]
PAGES += sorted(
    name
    for path in (ROOT / "docs").rglob("*.md")
    if (name := str(path.relative_to(ROOT))) not in INSIDE
)
BLOCK = re.compile(r"^```([^`\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page):
    """What follows its fence, text, and line of each block of a page."""
    text = (ROOT / page).read_text()
    for found in BLOCK.finditer(text):
        line = text.count("\n", 0, found.start(2)) + 1
        yield found[1].strip(), found[2], line


def libraries(program):
    """Those that the program cannot do without."""
    names = "warp|cupy|torch|heat|mpi4py_fft"
    return re.findall(rf"^(?:import|from) ({names})\b", program, re.M)


def with_cupy():
    """The environment of a program that uses CuPy; None: it cannot be.

    On the simulated driver a stand-in serves, where there is no CuPy.
    """
    if importlib.util.find_spec("cupy") is not None:
        return {}
    if not os.environ.get("WARPMPI_CUDA_DRIVER"):
        return None
    paths = [str(ROOT / "tests" / "cupy_stand_in"), str(ROOT / "tests")]
    before = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([*paths, *filter(None, [before])])}
