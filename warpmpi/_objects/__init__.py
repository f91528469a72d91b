# SPDX-License-Identifier: BSD-3-Clause
"""mpi4py's lower-case calls: messages and collectives of pickled objects."""

from .collectives import ObjectCollectives
from .messages import ObjectMessages
from .requests import CLASS_CALLS

__all__ = ["CLASS_CALLS", "ObjectCollectives", "ObjectMessages"]
