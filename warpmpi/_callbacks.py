# SPDX-License-Identifier: BSD-3-Clause
"""Functions of the program that MPI calls with a communicator get ours.

mpi4py makes an object of its own types over the handle, to which GPU arrays
are host memory. What it makes of windows and files is what the program has.
"""

from __future__ import annotations

import functools
from typing import Any

from mpi4py import MPI

from . import _core
from ._comm import of_handle


def _getting_ours(function: Any) -> Any:
    """Make a function of the program get ours; give other values back."""
    if not callable(function):
        return function

    @functools.wraps(function)
    def call(comm: Any, *rest: Any) -> Any:
        return function(of_handle(comm), *rest)

    return call


def _creating(name: str) -> Any:
    """Make a class method, which takes functions, give them ours."""
    stock = vars(MPI.Comm)[name]

    @functools.wraps(getattr(MPI.Comm, name))
    def create(cls: type, *args: Any, **kwargs: Any) -> Any:
        values = {key: _getting_ours(value) for key, value in kwargs.items()}
        return stock.__get__(None, cls)(*map(_getting_ours, args), **values)

    return classmethod(create)


for _name in ("Create_errhandler", "Create_keyval"):
    _core._patch(MPI.Comm, _name, _creating(_name))
