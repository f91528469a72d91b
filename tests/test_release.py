# SPDX-License-Identifier: BSD-3-Clause
"""One place for the version and one for the address; recipes that agree."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import warpmpi as wm

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "build_tools"))
import links  # noqa: E402

PROJECT = (ROOT / "pyproject.toml").read_text()
VERSION = re.search(r'^version = "(.+)"$', PROJECT, re.M)[1]
RECIPE = (ROOT / "recipe/meta.yaml").read_text()
DOCKER = (ROOT / "Dockerfile").read_text()
NAMED = [
    *("README.md", "CONTRIBUTING.md", "CITATION.cff", "Dockerfile"),
    *("Makefile", "setup.py", ".dockerignore"),
]
TEXTS = [ROOT / name for name in NAMED]
for _folder in ("recipe", "docs", "warpmpi", "build_tools", "examples"):
    TEXTS += [
        path
        for path in (ROOT / _folder).rglob("*")
        if path.suffix in (".md", ".py", ".pyi", ".yaml")
    ]


def test_the_version_is_stated_once():
    assert wm.__version__ == VERSION
    stated = [str(p) for p in TEXTS if VERSION in p.read_text()]
    assert stated == []
    assert PROJECT.count(f'"{VERSION}"') == 1


def test_the_changelog_begins_with_the_version():
    headings = re.findall(
        r"^## (\S+) \(", (ROOT / "CHANGELOG.md").read_text(), re.M
    )
    assert headings[0] == VERSION


def test_the_address_is_stated_once():
    address = re.search(r'^repository = "(.*)"$', PROJECT, re.M)[1]
    ours = address or r"https?://[^\s)\"'>]*/warpmpi\b"
    stated = [
        str(p)
        for p in TEXTS
        if (address and address in p.read_text())
        or (not address and re.search(ours, p.read_text()))
    ]
    assert stated == []


ADDRESSES = ["", "https://example.org/warpmpi"]


@pytest.mark.parametrize("address", ADDRESSES)
def test_the_links_are_made_of_the_address(tmp_path, address):
    made = re.sub(
        '^repository = ".*"', f'repository = "{address}"', PROJECT, flags=re.M
    )
    (tmp_path / "pyproject.toml").write_text(made)
    assert links.address(tmp_path) == address
    urls = links.urls(address)
    assert bool(urls) == bool(address)
    assert all(link.startswith(address) for link in urls.values())


@pytest.mark.parametrize("address", ADDRESSES)
def test_the_description_has_no_link_that_needs_the_tree(address):
    """On the page of an index README stands alone."""
    text = links.description(address)
    found = re.findall(r"(!?)\[[^\]]*\]\(([^)]+)\)", text)
    assert bool(found) == bool(address)
    for mark, link in found:
        assert link.startswith(f"{address}/{'raw' if mark else 'blob'}/main/")
        path = link.partition("/main/")[2].partition("#")[0]
        assert (ROOT / path).exists()
    assert "[Troubleshooting](" in text or "- Troubleshooting by" in text


def test_the_package_has_this_description():
    """As setup.py gives it, not as README is."""
    assert 'dynamic = ["readme", "urls"]' in PROJECT
    done = subprocess.run(
        [sys.executable, "setup.py", "--quiet", "--long-description"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    text = links.description(links.address())
    assert done.stdout.strip() == text.strip()


def requirements(text):
    """Names and least versions, of "mpi4py>=4.0" or "mpi4py >=4.0"."""
    return set(re.findall(r"\b(mpi4py|numpy|setuptools) ?>=([\d.]+)", text))


def test_the_conda_recipe_has_the_package_s_requirements():
    for needed in requirements(PROJECT.split("[project.optional")[0]):
        assert needed in requirements(RECIPE)
    assert requirements(RECIPE) <= requirements(PROJECT)
    variants = (ROOT / "recipe/conda_build_config.yaml").read_text()
    assert variants.split() == ["mpi:", "-", "mpich", "-", "openmpi"]
    assert RECIPE.count("- {{ mpi }}") == 2  # to build, and to run


def test_packages_of_one_mpi_are_built_for_it_alone():
    """And ask no registry for the mpi.h of others."""
    assert "    - WARPMPI_ABIS=installed\n" in RECIPE
    assert "    - WARPMPI_CUDA=installed\n" in RECIPE
    assert "WARPMPI_ABIS=installed" in DOCKER


def test_the_citation_has_what_the_format_requires():
    lines = (ROOT / "CITATION.cff").read_text().splitlines()
    keys = {line.partition(":")[0] for line in lines if line[0].isalpha()}
    assert {"cff-version", "message", "title", "authors"} <= keys
    license_of = re.search('^license = "(.+)"$', PROJECT, re.M)[1]
    assert f"license: {license_of}" in lines


def instructions():
    """The instructions of the Dockerfile, with their lines joined."""
    text = re.sub(r"^#.*\n", "", DOCKER, flags=re.M).replace("\\\n", " ")
    return [line.split(None, 1) for line in text.splitlines() if line.strip()]


def test_the_dockerfile_keeps_hadolint_s_rules():
    stages, lines = set(), instructions()
    for word, rest in lines:
        assert word in "ARG FROM RUN WORKDIR COPY ENV USER CMD".split(), word
        if word == "FROM":
            stages.update(re.findall(r" AS (\w+)", rest))
        if word == "ARG":
            assert re.search(r"=\w+:\d", rest), "a base has a tag"
        if word == "WORKDIR":
            assert rest.startswith("/")
        if word == "RUN" and "apt-get install" in rest:
            assert "-y --no-install-recommends" in rest
            assert rest.startswith("apt-get update")
            assert "rm -rf /var/lib/apt/lists/*" in rest
        if word == "RUN" and "pip install" in rest:
            assert "--no-cache-dir" in rest
        if word == "COPY":
            assert all(s in stages for s in re.findall(r"--from=(\w+)", rest))
    assert lines[-1][0] == "CMD"
    assert json.loads(lines[-1][1])
    assert [rest for word, rest in lines if word == "USER"][-1] != "root"


def test_the_image_gets_what_the_build_reads():
    kept = re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), re.M)
    assert all((ROOT / name).exists() for name in kept)
    wanted = (
        "build_tools src warpmpi pyproject.toml setup.py LICENSE README.md"
    )
    assert set(wanted.split()) <= set(kept)
