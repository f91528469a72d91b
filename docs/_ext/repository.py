# SPDX-License-Identifier: BSD-3-Clause
"""Files of the tree that are no pages: links to them, and two that are shown.

A link to `../NAME` leads to the repository, whose address pyproject.toml has.
Without one a file is a download, and a folder or a document is plain text.
A line `{include} ../NAME.md` in braces stands for the file, with its links.
Also writes llms.txt, a list of the pages in words for language models.
"""

import re
from pathlib import Path

from docutils import nodes

ROOT = Path(__file__).resolve().parent.parent.parent
ADDRESS = re.search(
    r'^repository = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.M
)[1]
INCLUDED = re.compile(r"^```\{include\} \.\./(\w+\.md)\n```$", re.M)
LINK = re.compile(r"(!?)\[([^\]]*)\]\((\.\./[^)#\s]+)(#[^)\s]*)?\)")


def included(found):
    """A document of the root, whose links are as seen from docs/."""
    text = (ROOT / found[1]).read_text()

    def seen(link):
        path = link[1]
        inside = path.startswith("docs/")
        return f"]({path[5:] if inside else '../' + path}{link[2] or ''})"

    return re.sub(r"\]\((?!http|#)([^)#\s]+)(#[^)\s]*)?\)", seen, text)


def linked(found):
    image, text, path, anchor = found.groups()
    target = path.removeprefix("../").rstrip("/")
    assert (ROOT / target).exists(), f"there is no {target}"
    page = ROOT / "docs" / target.lower()
    if page.is_file() and (ROOT / target).is_file():  # CONTRIBUTING.md
        return f"{image}[{text}]({target.lower()}{anchor or ''})"
    if ADDRESS:
        return f"{image}[{text}]({ADDRESS}/blob/main/{target}{anchor or ''})"
    if (ROOT / target).is_file() and not target.endswith(".md"):
        return found[0]
    return text


def read(app, page, source):
    text = INCLUDED.sub(included, source[0])
    depth = "../" * page.count("/")
    if depth:  # a page of a folder: as seen from docs/
        text = text.replace(f"]({depth}../", "](../")
    text = LINK.sub(linked, text)
    if depth:
        text = text.replace("](../", f"]({depth}../")
    source[0] = text


def summary(doctree):
    """The first paragraph that is no picture and in no table, in one line."""
    for node in doctree.findall(nodes.paragraph):
        if not isinstance(node[0], nodes.image) and not isinstance(
            node.parent, nodes.entry
        ):
            return " ".join(node.astext().split())
    return ""


def write_list(app, failure):
    if failure or app.builder.name != "html":
        return
    env = app.env
    lines = [f"# {app.config.project}", "", f"> {app.config.html_meta_text}"]
    lines += ["", "## Pages", ""]
    for page in pages(env, app.config.root_doc):
        title = env.titles[page].astext()
        words = summary(env.get_doctree(page))
        lines.append(f"- [{title}](_sources/{page}.md.txt): {words}")
    Path(app.outdir, "llms.txt").write_text("\n".join(lines) + "\n")


def pages(env, page):
    """All pages in the order of the tables of contents."""
    yield page
    for each in env.toctree_includes.get(page, []):
        yield from pages(env, each)


def setup(app):
    app.add_config_value("html_meta_text", "", "html")
    app.connect("source-read", read)
    app.connect("build-finished", write_list)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
