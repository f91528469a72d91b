# SPDX-License-Identifier: BSD-3-Clause
"""The documentation site: what its pages must have, without building it."""

import re
from pathlib import Path

import warpmpi as wm

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES = sorted(DOCS.rglob("*.md"))


def name(page):
    return str(page.relative_to(DOCS).with_suffix(""))


def listed(page):
    """The pages that a page's tables of contents name."""
    tables = re.findall(
        r"^```\{toctree\}\n(.*?)^```", page.read_text(), re.M | re.S
    )
    folder = Path(name(page)).parent
    for table in tables:
        for line in table.splitlines():
            if line and line[0] != ":":
                yield str(folder / re.sub(r".*<(.*)>$", r"\1", line))


def test_every_public_name_is_in_the_reference_once():
    """The build of the site looks for the methods of classes."""
    named = []
    for page in DOCS.glob("api/*.md"):
        for block in re.findall(
            r"^\.\. api::\n\n((?:   .*\n)+)", page.read_text(), re.M
        ):
            named += [line.split()[0] for line in block.splitlines()]
    assert sorted(named) == sorted(wm.__all__)


def test_pictures_are_small_and_shown():
    text = "".join(page.read_text() for page in PAGES)
    pictures = [*DOCS.glob("*.png"), *DOCS.glob("*.svg")]
    assert pictures
    for picture in pictures:
        assert f"]({picture.name})" in text, "no page shows it"
        assert picture.stat().st_size < 60_000


def test_every_page_is_in_one_table_of_contents():
    tables = [each for page in PAGES for each in listed(page)]
    assert sorted(tables) == sorted(set(map(name, PAGES)) - {"index"})
