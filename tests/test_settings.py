# SPDX-License-Identifier: BSD-3-Clause
"""Environment variables: their names, and values that are none."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import warpmpi as wm
from warpmpi import _core
from warpmpi._settings import NAMES, TABLE

ROOT = Path(__file__).resolve().parent.parent
# The pages of the guide, and those beside it, but of the sources.
GUIDE = "\n".join(
    path.read_text()
    for path in sorted(ROOT.glob("docs/*.md"))
    if path.name != "design.md"
)
PLACES = ("src", "warpmpi", "build_tools", "benchmarks", "tests", "examples")


def run(code, **environment):
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("WARPMPI_TRANSPRT", "TRANSPRT: is WARPMPI_TRANSPORT meant?"),
        ("WARPMPI_EAGERLIMIT", "EAGERLIMIT: is WARPMPI_EAGER_LIMIT meant?"),
        ("WARPMPI_ZZZ", "warpmpi knows no environment variable WARPMPI_ZZZ"),
    ],
)
def test_a_variable_that_there_is_not_is_named_once(name, told):
    code = "import warpmpi, warpmpi._settings, warnings; import warpmpi"
    _, errors = run(code, **{name: "1"})
    assert errors.count("RuntimeWarning") == 1
    assert told in errors
    assert errors.startswith("<string>:1: ")  # who imports


def test_those_that_there_are_are_not_named():
    given = dict.fromkeys(NAMES - set(os.environ), "")
    given.pop("WARPMPI_CUDA_DRIVER", None)
    _, errors = run("import warpmpi", WARPMPI="1", **given)
    assert errors == ""


def test_the_table_has_every_variable_that_is_read():
    read = re.compile(
        r"(?:getenv\(|environ(?:\.get\(|\.setdefault\(|\.pop\(|\[)|"
        r'environment\.get\()\s*"(WARPMPI_\w+)"'
    )
    paths = [ROOT / "setup.py"]
    for place in PLACES:
        paths += (ROOT / place).rglob("*.[ch]")
        paths += (ROOT / place).rglob("*.py")
    found = {(n, p) for p in paths for n in read.findall(p.read_text())}
    names = {name for name, _ in found}
    assert {"WARPMPI_HOST", "WARPMPI_TEST_GPU", "WARPMPI_WERROR"} <= names
    assert names <= NAMES
    told = set(re.findall(r"WARPMPI_[A-Z_]+", GUIDE))
    assert told <= NAMES
    for name, path in found:
        place = path.relative_to(ROOT).parts[0]
        assert place != "src", f"{name}: read it by a row of settings.h"
        if place == "warpmpi":
            assert name in told, path


def test_the_guide_has_the_rows_of_the_table():
    rows = [
        f"| `{name}` | {row.values} | {row.default} | {row.ranks} | "
        f"{row.help} |".replace("|  |", "| |")
        for name, row in TABLE.items()
    ]
    assert "\n".join(rows) in GUIDE


def test_an_empty_setting_is_an_unset_one():
    given = dict.fromkeys(TABLE.keys() - {"WARPMPI_TUNED"}, "")
    given["WARPMPI_CUDA_DRIVER"] = os.environ.get("WARPMPI_CUDA_DRIVER", "")
    code = (
        "import warpmpi as wm; from mpi4py import MPI; wm.Comm(MPI.COMM_SELF)"
    )
    assert run(code, **given) == ("", "")


# Links of a build for tests.
TOYS = {
    path.stem.removesuffix("_link")
    for path in ROOT.glob("tests/toys/*_link.c")
}


def test_the_guide_has_every_transport():
    known = set(_core._links()) - TOYS
    names = re.findall(r"^\| `(\w+)` \|.*\|.*\|$", GUIDE, re.MULTILINE)
    assert known <= set(names)
    told = wm.transport.__doc__
    assert {n for n in known if f"'{n}'" not in told} == set()


def test_the_guide_has_every_engine():
    toys = {
        name
        for path in ROOT.glob("tests/toys/*_engine.c")
        for name in re.findall(r"wm_(\w+)_engine = {", path.read_text())
    }
    known = set(_core._coll_engines()) - toys
    values = TABLE["WARPMPI_ENGINES"].values
    assert known <= set(re.findall(r"\w+", values))
    assert {n for n in known if f"'{n}'" not in wm.transport.__doc__} == set()


def test_the_guide_has_every_counter():
    missing = {name for name in wm.stats() if f"`{name}`" not in GUIDE}
    assert {
        name for name in missing if name.split("_")[0] not in TOYS
    } == set()


@pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU")
@pytest.mark.parametrize("value", ["abc", "-1", "1x"])
def test_a_local_rank_that_is_none_is_named(value):
    code = "import warpmpi as wm; wm.get_device(); print(wm.get_device())"
    name = "OMPI_COMM_WORLD_LOCAL_RANK"
    printed, errors = run(code, **{name: value})
    assert errors.count(f"warpmpi: {name}={value} is not a rank") == 1
    assert printed.startswith("cuda:")
