# SPDX-License-Identifier: BSD-3-Clause
"""The package's links, all made of the one address in pyproject.toml."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RELATIVE = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)\s]+)\)")


def address(root=ROOT):
    """The repository's address; "" while there is none."""
    text = (root / "pyproject.toml").read_text()
    return re.search(r'^repository = "(.*)"$', text, re.MULTILINE)[1]


def urls(repository):
    """The links beside the package's description."""
    if not repository:
        return {}
    return {
        "Source": repository,
        "Documentation": f"{repository}/blob/main/docs/guide.md",
        "Changelog": f"{repository}/blob/main/CHANGELOG.md",
    }


def description(repository, root=ROOT):
    """README as an index of packages shows it, where no file is beside it.

    Links and pictures are absolute. Without an address links are plain text,
    and pictures are left out.
    """

    def absolute(found):
        mark, words, path = found.groups()
        if not repository:
            return "" if mark else words
        kind = "raw" if mark else "blob"
        return f"{mark}[{words}]({repository}/{kind}/main/{path})"

    return RELATIVE.sub(absolute, (root / "README.md").read_text())
