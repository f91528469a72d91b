# SPDX-License-Identifier: BSD-3-Clause
"""No call of mpi4py's that takes a buffer is forgotten."""

import inspect
import re

import pytest
from mpi4py import MPI

from warpmpi import _staging
from warpmpi._comm import _HOST_ONLY, _POINT_TO_POINT
from warpmpi._install import CLASS_CALLS
from warpmpi._staging import collectives, table

# Pickled objects, with a buffer for the bytes; and those of a message.
MESSAGES = {"Recv", "Irecv", "recv", "irecv", "sendrecv", *_POINT_TO_POINT}
KINDS = [
    *(MPI.Comm, MPI.Intracomm, MPI.Topocomm, MPI.Cartcomm, MPI.Graphcomm),
    *(MPI.Distgraphcomm, MPI.Intercomm, MPI.File, MPI.Win, MPI.Op),
    *(MPI.Datatype, MPI.Session),
]


def parameters(method):
    """The text of a method's parameters and their types."""
    try:
        return str(inspect.signature(method)).split(" -> ")[0]
    except (TypeError, ValueError):
        return (method.__doc__ or "").partition(" -> ")[0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_with_a_buffer_is_in_one_of_the_lists(kind):
    is_comm = issubclass(kind, MPI.Comm)
    lists = [
        set(_staging.comm_calls(kind)) if is_comm else set(),
        MESSAGES if is_comm else set(),
        set(_HOST_ONLY) if is_comm else set(),
        {name for owner, name, _ in CLASS_CALLS if owner is kind},
    ]
    for name in vars(kind):
        text = parameters(getattr(kind, name))
        if not name.startswith("_") and re.search(r": '?Buf", text):
            assert sum(name in each for each in lists) == 1, (name, text)


@pytest.mark.parametrize(
    "row",
    [row for _, row, _, _ in collectives._forms()],
    ids=lambda row: row.name,
)
def test_parameters_are_where_the_table_says(row):
    kind = next(kind for kind in KINDS if hasattr(kind, row.name))
    names = list(inspect.signature(getattr(kind, row.name)).parameters)
    for name, position in row.positions.items():
        assert names[1 + position] == name


@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        (MPI.File, table.FILE),
        (MPI.Win, table.WINDOW),
        (MPI.Datatype, table.DATATYPE),
        (MPI.Op, table.OP),
    ],
)
def test_parameters_of_other_calls_are_too(kind, rows):
    for row in table.rows_of(rows):
        names = list(inspect.signature(getattr(kind, row.name)).parameters)
        for name, position in row.positions.items():
            assert names[1 + position] == name
