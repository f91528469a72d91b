# SPDX-License-Identifier: BSD-3-Clause
"""Texts of errors of MPI and mpi4py: the call, the argument and the cure."""

from __future__ import annotations

import re
from typing import Any

from mpi4py import MPI

from .. import _core
from .._host_data import has_buffer
from .table import Buffer, Row

_TEXTS = {
    MPI.ERR_OP: (
        "op: MPI does not compute this op with elements of this type; use an "
        "op that MPI has for them (MPI.SUM of numbers, MPI.LAND of bool; "
        "MPI.REPLACE and MPI.NO_OP are for windows), or convert the elements"
    ),
    MPI.ERR_TYPE: (
        "a datatype is MPI.DATATYPE_NULL, was freed, or Commit() was not "
        "called"
    ),
    MPI.ERR_COMM: "this communicator is MPI.COMM_NULL, or was freed",
    MPI.ERR_COUNT: "a count is negative, or does not fit a C int",
    MPI.ERR_TRUNCATE: (
        "a rank sends more than another rank receives: counts and datatypes "
        "of all ranks must fit; WARPMPI_CHECK=1 reports which do not"
    ),
    MPI.ERR_ARG: (
        "an argument is out of its range, or a buffer is both sent and "
        "received into: give MPI.IN_PLACE"
    ),
    MPI.ERR_BUFFER: (
        "a buffer is missing, or both sent and received into: give "
        "MPI.IN_PLACE"
    ),
}


def _of_rank(comm: Any, given: dict[str, Any]) -> str | None:
    """Name the rank that a communicator does not have."""
    inter = comm.Is_inter()
    size = comm.Get_remote_size() if inter else comm.Get_size()
    for name in ("dest", "source", "root"):
        rank = given.get(name, 0)
        others = (MPI.PROC_NULL, MPI.ROOT, MPI.ANY_SOURCE)
        if 0 <= rank < size or (rank in others and name != "root"):
            continue
        if inter and name == "root":
            return (
                f"root={rank}: a rank of the other group, MPI.ROOT or "
                "MPI.PROC_NULL is expected"
            )
        alone = (
            " (the communicator has one rank: was the program started "
            "without mpirun, or by the mpirun of another MPI?)"
        )
        return (
            f"{name}={rank} is not a rank of this communicator: use 0 to "
            f"{size - 1}{alone if size == 1 else ''}"
        )
    return None


def _of_tag(comm: Any, given: dict[str, Any]) -> str | None:
    most = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB)
    for name in ("tag", "sendtag", "recvtag"):
        if not 0 <= given.get(name, 0) <= most:
            return f"{name}={given[name]}: use 0 to {most}"
    return None


_ABOUT = {
    MPI.ERR_ROOT: _of_rank,
    MPI.ERR_RANK: _of_rank,
    MPI.ERR_TAG: _of_tag,
}


def add(
    error: MPI.Exception,
    call: str,
    row: Row,
    owner: Any,
    given: dict[str, Any],
) -> None:
    """Add a note to an error of a communicator's: call, cause and cure."""
    kind = error.Get_error_class()
    about = _ABOUT.get(kind)
    text = _TEXTS.get(kind) if about is None else about(owner, given)
    if kind in (MPI.ERR_ARG, MPI.ERR_BUFFER):
        text = _missing(call, row, owner, given) or text
    if text is not None and hasattr(error, "add_note"):  # Python 3.11
        error.add_note(f"{call}: {text}")


def refused(kind: int, text: str) -> MPI.Exception:
    """Make an error of ours of a class of MPI's, with its cause and cure."""
    error = MPI.Exception(kind)
    if hasattr(error, "add_note"):
        error.add_note(text)
    return error


def _type_of(value: Any) -> str | None:
    """Name the elements of a buffer, if they have a name."""
    listed = isinstance(value, (list, tuple))
    array, rest = (value[0], value[1:]) if listed else (value, ())
    kinds = [each for each in rest if isinstance(each, (str, MPI.Datatype))]
    if kinds:
        kind = kinds[0]
        if isinstance(kind, str):
            kind = MPI.Datatype.fromcode(kind)
        return _core._element(kind)[0]
    return _core._elements(array)[0]


def _name_types(
    error: ValueError, call: str, row: Row, given: dict[str, Any]
) -> None:
    """Name both types in an error of mpi4py's about buffers of two types."""
    if len(row.buffers) != 2:
        return
    first, second = (buffer.name for buffer in row.buffers)
    try:
        one, other = _type_of(given[first]), _type_of(given[second])
    except Exception:
        return  # not a buffer: mpi4py tells
    if one is not None and other is not None and one != other:
        error.args = (
            f"{call}: {first} is of {one}, and {second} of {other}: give both "
            "the same element type",
        )


# Names that beginners give to operations.
_OPERATIONS = {
    "MPI.SUM": ("sum", "add"),
    "MPI.MAX": ("max", "maximum"),
    "MPI.MIN": ("min", "minimum"),
    "MPI.PROD": ("prod", "multiply"),
    "wm.AVG": ("avg", "average", "mean"),
}
_PROTOCOLS = "__cuda_array_interface__", "__dlpack__", "__array_interface__"
_INTEGERS = {"dest", "source", "root", "tag", "sendtag", "recvtag"}


def wrong_op(op: Any) -> str:
    """Say what is expected in place of an operation that is none."""
    name = op if isinstance(op, str) else getattr(op, "__name__", None)
    cure = "one of MPI's, such as MPI.SUM"
    for known, names in _OPERATIONS.items():
        cure = known if str(name).lower() in names else cure
    given = type(op).__name__ if name is None else repr(name)
    return f"op: {given} is not an operation: give {cure}"


def _or_objects(call: str, what: str) -> str:
    """Name the call that takes objects and otherwise does the same."""
    name = call.removesuffix("_init").lower()
    if name in ("recv", "irecv"):
        return f", or call {name}() for an object"
    for each in (name, name[:-1], name[1:], name[1:-1]):
        if hasattr(MPI.Cartcomm, each):
            return f", or {what} to {each}()"
    return ""


def _is_array(value: Any) -> bool:
    shown = any(hasattr(value, name) for name in _PROTOCOLS)
    return shown or has_buffer(value)


def _is_read_only(value: Any) -> bool:
    try:
        return memoryview(value).readonly
    except (TypeError, BufferError, ValueError):
        return False


def _wrong_list(value: Any, form: str, call: str) -> str | None:
    """Say what is wrong with a list, or a tuple, as a buffer."""
    first = value[0] if value else ()
    or_objects = _or_objects(call, "the list")
    if not (first is None or first is MPI.BOTTOM or _is_array(first)):
        return (
            "a list or tuple is [array, count, datatype], and holds no data: "
            f"give numpy.array() of the numbers{or_objects}"
        )
    if len(value) == 1:
        return "a list is [array, count, datatype]: give the array itself"
    if any(isinstance(each, type) for each in value[1:]):
        return (
            "a list is [array, count, datatype]: give a datatype of MPI's, "
            "such as MPI.DOUBLE"
        )
    if not form and any(getattr(each, "ndim", 0) for each in value[1:]):
        return (
            f"a list is [array, count, datatype]: give one array{or_objects}"
        )
    return None


def _wrong_buffer(value: Any, buffer: Buffer, call: str) -> str | None:
    """Say what is wrong with an object as a buffer, if anything is."""
    if isinstance(value, (list, tuple)):
        return _wrong_list(value, buffer.form, call)
    kind = type(value).__name__
    if value is None or value is MPI.IN_PLACE:
        return None
    if not _is_array(value):
        or_objects = _or_objects(call, "the object")
        return f"{kind} is not an array: give an array{or_objects}"
    if buffer.role != "<" and _is_read_only(value):
        return f"{kind} is read-only: receive into a writable array"
    return None


def _is_root(owner: Any, given: dict[str, Any]) -> bool:
    root = given.get("root", 0)
    return bool(root in (owner.Get_rank(), MPI.ROOT))


def _missing(
    call: str, row: Row, owner: Any, given: dict[str, Any]
) -> str | None:
    """Name a buffer that is needed and is None, or was not given."""
    if "dest" in row.positions and "dest" not in given:
        return "dest: give the rank that receives"
    for buffer in row.buffers:
        if buffer.at_root and not _is_root(owner, given):
            continue
        value, first = given.get(buffer.name), row.buffers[0]
        whose = " on the root" if buffer.at_root else ""
        if buffer.name == "recvbuf" and not first.at_root:
            if value is MPI.IN_PLACE:
                return "recvbuf: MPI.IN_PLACE is for sendbuf: give an array"
            if value is None:
                return f"recvbuf: give an array for the result{whose}"
        elif value is MPI.IN_PLACE and buffer is first and first.at_root:
            return f"{buffer.name}: MPI.IN_PLACE is for recvbuf: give an array"
        elif value is None and (buffer.at_root or buffer.name != "sendbuf"):
            or_objects = _or_objects(call, "the object")
            return f"{buffer.name}: give an array{whose}{or_objects}"
    return None


def _wrong_argument(
    call: str, row: Row, owner: Any, given: dict[str, Any]
) -> str | None:
    """Say which argument is wrong, and the cure."""
    for buffer in sorted(row.buffers, key=lambda buffer: buffer.at_root):
        wrong = _wrong_buffer(given.get(buffer.name), buffer, call)
        if wrong is not None:
            return f"{buffer.name}: {wrong}"
    for name, value in given.items():
        number = hasattr(value, "__index__") or hasattr(value, "__int__")
        if name in _INTEGERS and (hasattr(value, "__len__") or not number):
            return f"{name}: expected an int, not {type(value).__name__}"
        if name in _INTEGERS and not -(2**31) <= int(value) < 2**31:
            return f"{name}={value} does not fit an int"
    status = given.get("status")
    if not (status is None or isinstance(status, MPI.Status)):
        kind = type(status).__name__
        return f"status: expected an MPI.Status, not {kind}"
    if not isinstance(given.get("op", MPI.SUM), MPI.Op):
        return wrong_op(given["op"])
    return _missing(call, row, owner, given)


def name_argument(
    error: Exception, call: str, row: Row, owner: Any, given: dict[str, Any]
) -> None:
    """Name the argument and the cure in an error that mpi4py raised.

    Our own errors begin with the argument's name.
    """
    text = str(error)
    if any(
        text.startswith((f"{each}:", f"{each}=")) for each in row.positions
    ):
        return
    wrong = _wrong_argument(call, row, owner, given)
    if wrong is None and re.match(r"expecting \d+ items, got \d+", text):
        wrong = f"{text}: give a count for each rank"
    if wrong is None and text.startswith("mismatch in send count"):
        wrong = f"{text}: give both buffers the same number of elements"
    if wrong is not None:
        error.args = (f"{call}: {wrong}",)
    elif isinstance(error, ValueError):
        _name_types(error, call, row, given)
