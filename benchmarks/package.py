# SPDX-License-Identifier: BSD-3-Clause
"""What `python -m warpmpi bench` and the benchmarks share, as the package `_bench`.

It is loaded without warpmpi, whose import would start MPI, in processes that start ranks and
in ranks that measure other libraries.
"""

import importlib.util
import sys
from pathlib import Path

_FOLDER = Path(__file__).resolve().parent.parent / "warpmpi" / "_bench"
if "_bench" not in sys.modules:
    _spec = importlib.util.spec_from_file_location(
        "_bench", _FOLDER / "__init__.py", submodule_search_locations=[str(_FOLDER)]
    )
    assert _spec is not None and _spec.loader is not None
    sys.modules["_bench"] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules["_bench"])
