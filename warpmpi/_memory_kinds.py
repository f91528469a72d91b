# SPDX-License-Identifier: BSD-3-Clause
"""Programs that ask MPI which kinds of memory it takes hear of CUDA's.

MPI 4.1 (section 12.4.3, Memory Allocation Info) gives the answer in the info
objects of communicators, windows, files and sessions, and in MPI.INFO_ENV.
MPI's own info objects stay as they are: C sees them, too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from mpi4py import MPI

from . import _devices

_KEY = "mpi_memory_alloc_kinds"
_ASSERTED = "mpi_assert_memory_alloc_kinds"
_HOST = "mpi,system"  # MPI's default
# The kinds of MPI's side document, "Memory Allocation Kinds", and one kind of
# our own: QuaTrEx looks for "gpu".
_CUDA = "cuda", "cuda:device", "cuda:host", "cuda:managed", "gpu"

_dup, _get = MPI.Info.Dup, MPI.Info.Get  # mpi4py's own


def tell(info: MPI.Info) -> MPI.Info:
    """Add the kinds to an info object that MPI gave to us; return the object.

    An assertion that MPI has accepted restricts the kinds.
    """
    told = _get(info, _KEY)
    kinds = (_HOST if told is None else told).split(",")
    if _devices.is_cuda_available():
        kinds += [kind for kind in _CUDA if kind not in kinds]
    asserted = _get(info, _ASSERTED)
    if asserted is not None:
        names = asserted.split(",")
        kinds = [
            kind
            for kind in kinds
            if any(f"{kind}:".startswith(f"{name}:") for name in names)
        ]
    if any(kinds):  # Open MPI refuses an empty value
        info.Set(_KEY, ",".join(kinds))
    return info


def telling(get_info: Callable[..., MPI.Info]) -> Any:
    """Make a call of mpi4py's that gives an info object tell the kinds."""

    @functools.wraps(get_info)
    def call(*args: Any, **kwargs: Any) -> MPI.Info:
        return tell(get_info(*args, **kwargs))

    return call


@functools.cache
def _environment() -> MPI.Info:
    """Return a copy of MPI.INFO_ENV that has the kinds."""
    return tell(_dup(MPI.INFO_ENV))


def _reading(stock: Callable[..., Any]) -> Any:
    """Make a method of info objects read the copy in MPI.INFO_ENV's place."""

    @functools.wraps(stock)
    def call(self: MPI.Info, *args: Any, **kwargs: Any) -> Any:
        info = _environment() if self == MPI.INFO_ENV else self
        return stock(info, *args, **kwargs)

    return call


def class_calls() -> Iterator[tuple[type, str, Any]]:
    """Give (type, name, replacement) of the calls that install() replaces."""
    for kind in (MPI.File, MPI.Win):
        yield kind, "Get_info", telling(kind.Get_info)
    of_session = MPI.Session.Get_info
    tells = telling(of_session)

    @functools.wraps(of_session)
    def get_info(self: MPI.Session) -> MPI.Info:
        # Only beside MPI.Init, a session's communicators take GPU arrays.
        return (tells if MPI.Is_initialized() else of_session)(self)

    yield MPI.Session, "Get_info", get_info
    for name in ("Dup", "Get", "Get_nkeys", "Get_nthkey", "__contains__"):
        yield MPI.Info, name, _reading(getattr(MPI.Info, name))
    if hasattr(MPI.Info, "Create_env"):
        create = vars(MPI.Info)["Create_env"]

        @functools.wraps(MPI.Info.Create_env)
        def create_env(cls: type, *args: Any, **kwargs: Any) -> MPI.Info:
            return tell(create.__get__(None, cls)(*args, **kwargs))

        yield MPI.Info, "Create_env", classmethod(create_env)
