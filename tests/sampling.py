# SPDX-License-Identifier: BSD-3-Clause
"""WARPMPI_TEST_EVERY=n runs one in n of a test's parameters."""

import os
import zlib

EVERY = int(os.environ.get("WARPMPI_TEST_EVERY", "1"))


def choose(config, items, every=lambda item: EVERY):
    """Deselects the others, from one on that the test's name decides.

    Of each test at least one stays; `every` tells n of the first of a test.
    """
    tests = {}
    for index, item in enumerate(items):
        name = getattr(item, "originalname", item.name)
        tests.setdefault((item.path.stem, name), []).append(index)
    kept = set()
    for name, its in tests.items():
        n = every(items[its[0]])
        first = zlib.crc32(repr((name, n)).encode()) % min(n, len(its))
        kept.update(its[first::n])
    others = [each for i, each in enumerate(items) if i not in kept]
    items[:] = [each for i, each in enumerate(items) if i in kept]
    config.hook.pytest_deselected(items=others)
