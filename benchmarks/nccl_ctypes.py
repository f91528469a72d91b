# SPDX-License-Identifier: BSD-3-Clause
"""NCCL's calls, by ctypes: those of `python -m warpmpi bench`."""

import package  # noqa: F401  # makes _bench
from _bench.nccl import *  # noqa: F403
