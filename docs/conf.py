# SPDX-License-Identifier: BSD-3-Clause
"""The documentation site: `make docs` writes it into build/docs."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent)]

import mpi4py  # noqa: E402

mpi4py.rc.initialize = False  # no job is needed to read docstrings
# Nor a GPU: the text is alike on all machines.
os.environ.setdefault("WARPMPI_CUDA_DRIVER", "/no/driver")

import warpmpi  # noqa: E402

project = "warpmpi"
author = "warpmpi developers"
release = version = warpmpi.__version__

extensions = [
    "myst_parser",
    "sphinx_copybutton",
    "api",
    "repository",
]
# Links into the documents of others, whose lists of names the build fetches.
if os.environ.get("DOCS_ONLINE"):
    extensions.append("sphinx.ext.intersphinx")
    intersphinx_mapping = {
        "python": ("https://docs.python.org/3", None),
        "numpy": ("https://numpy.org/doc/stable", None),
        "mpi4py": ("https://mpi4py.readthedocs.io/en/stable", None),
    }
exclude_patterns = ["_ext"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
html_theme = "pydata_sphinx_theme"
html_title = f"warpmpi {release}"
html_show_copyright = False
html_favicon = "_static/icon.svg"
html_context = {"default_mode": "auto"}  # light or dark, as the browser is
html_meta_text = warpmpi.__doc__
html_theme_options = {
    "show_nav_level": 1,
    "show_toc_level": 2,
    "navigation_with_keys": True,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": [],
    "footer_end": [],
}
html_static_path = ["_static"]
html_css_files = ["site.css"]
highlight_language = "none"  # of blocks that name none
html_sidebars = {"**": ["sidebar-nav-bs"]}
# The button copies the commands of a console, without prompts and output.
copybutton_prompt_text = r"\$ |>>> "
copybutton_prompt_is_regexp = True
add_module_names = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 72
toc_object_entries_show_parents = "hide"
