# SPDX-License-Identifier: BSD-3-Clause
"""Docstrings: what mpi4py's calls do with GPU arrays, beside mpi4py's text.

A call that takes or gives data has such a paragraph, and so has a call that
makes a communicator. The texts of collectives are made of the table's rows.
Other calls (Get_rank, Set_name) keep mpi4py's docstring. Texts are wrapped
here, because an import makes all of them.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._staging.table import Buffer, Row

_ARRAYS = """\
An array is a GPU array (wm, CuPy, PyTorch, JAX, Warp, Numba) or a host array.
Counts are in elements."""
_READ = """\
A GPU array is read after the work on its library's current stream."""
_READY = """\
When the call returns, sent arrays may be changed, and received data is
ready for every stream."""
_PENDING = """\
The wm.Request keeps the arrays: leave them unchanged until it has ended.
Received data is ready for every stream when Wait returns. Wait and Test
raise the errors that come later."""
_REPEATED = """\
Each Start of the wm.Prequest does the call once, with the present data of
the arrays; Wait ends it, and Free the request. The errors of a call are
raised by Start and Wait."""
_BY_GPUS = """\
If all ranks give GPU arrays and are on one host, data goes from GPU to GPU
on any MPI."""
_BY_NCCL = """\
Between hosts NCCL moves it, if it serves all ranks, and the data is not
short."""
_BY_HOST = """\
Otherwise MPI moves the data through page-locked host memory. Some ranks may
give GPU arrays, and others host arrays."""
_SAME = """\
From GPU to GPU the result is bitwise the same on all ranks, and each time."""
_RAISES = """\
Raises TypeError, ValueError or BufferError (an argument is no array, has no
element type of MPI's, or cannot be written), MPI.Exception (root, op, counts,
truncation, a buffer that is sent and received into), wm.CudaError and
MemoryError. If the GPU arrays of the ranks do not fit, all ranks raise."""

# The blocks of a buffer.
_FORMS = {
    "": "an array, or [array, count, datatype]",
    "n": """\
an array, or [array, count, datatype], with a block for each
{peer}, all of one size""",
    "v": """\
[array, counts] or [array, (counts, displacements)], with a
datatype at the end if need be: a block for each {peer}""",
    "w": """\
[array, (counts, displacements), datatypes]: a block and a
datatype for each {peer}; these displacements are in bytes""",
}
_OP = "op: one of MPI's or the program's operations{average}."
_COUNTS = "recvcounts: the number of elements that each rank receives."


_AGREED = f"""\
flag: an array of one C int, on a GPU or the host.
{_PENDING}"""


@functools.cache
def _rows() -> dict[str, Row]:
    from ._staging.table import collectives

    return {row.name: row for row in collectives()}


def _row_of(name: str) -> Row | None:
    """Give the row of a collective by the name of any of its forms."""
    rows, bare = _rows(), name.removesuffix("_init")
    return rows.get(bare) or rows.get(bare[1:].capitalize())


def _of_buffer(buffer: Buffer, row: Row, peer: str) -> str:
    """Describe a buffer, in a line or more."""
    sent, on_root = row.buffers[0], "root" in row.positions
    text = f"{buffer.name}: {_FORMS[buffer.form].format(peer=peer)}"
    if buffer.name == "buf":
        return f"{text}:\n  sent by the root, and received into elsewhere."
    if buffer.name == "recvbuf" and "op" in row.positions:
        parts = sent.form or "recvcounts" in row.positions
        share = "this rank's part of the result" if parts else "the result"
        text += f",\n  for {share}"
    if buffer.at_root:
        text += ".\n  The root alone needs it; other ranks may give None"
    where = " on the root" if on_root else ""
    if peer == "rank" and buffer.name == ("sendbuf", "recvbuf")[sent.at_root]:
        other = "recvbuf" if buffer is sent else "sendbuf"
        text += f".\n  MPI.IN_PLACE{where}: this rank's data is in {other}"
    return f"{text}."


@functools.cache
def of_collective(name: str) -> str:
    """Describe a collective in its blocking, nonblocking or _init form."""
    row = _row_of(name)
    if row is None:
        return _AGREED
    peer = "neighbor" if row.name.startswith("Neighbor") else "rank"
    lines = [_of_buffer(buffer, row, peer) for buffer in row.buffers]
    if "recvcounts" in row.positions:
        lines.append(_COUNTS)
    if "op" in row.positions:
        average = "" if "can" in row.name else ", or wm.AVG"
        lines.append(_OP.format(average=average))
    if "root" in row.positions:
        word = "sends" if row.buffers[0].at_root else "receives"
        word = "sends" if len(row.buffers) == 1 else word
        lines.append(f"root: the rank that {word}.")
    ended = _READY
    if name.endswith("_init"):
        ended = _REPEATED
    elif name != row.name:
        ended = _PENDING
    arguments = "\n".join([*lines, _ARRAYS])
    unknown = peer == "neighbor" or any(
        buffer.form in ("v", "w") for buffer in row.buffers
    )
    ways = [_BY_GPUS]
    if ended != _PENDING or not unknown or row.name == "Allgatherv":
        ways.append(_BY_NCCL)
    ways.append(_BY_HOST)
    if "op" in row.positions:
        ways.append(_SAME)
    way = "\n".join([*ways, _READ, ended])
    return f"{arguments}\n\n{way}\n\n{_RAISES}"


STAGED = f"""\
{_ARRAYS}
GPU arrays are copied through page-locked host memory. {_READ}
Raises TypeError or ValueError (a buffer), MPI.Exception, wm.CudaError and
MemoryError."""
WINDOW = f"""\
{STAGED}
A GPU array that is received into has its data after the Fence, Flush, Unlock
or Complete that ends the call, or after Wait of the request. wm.Win has the
calls of windows over GPU memory."""
LOCAL = f"""\
{_ARRAYS}
If both buffers are on one GPU, that GPU reduces them, else the host does.
{_READ}
Raises TypeError or ValueError (a buffer), MPI.Exception and wm.CudaError."""

_OBJECTS = """\
GPU arrays inside an object, at any depth, are not pickled: they travel from
GPU to GPU, and arrive as arrays of the same library on its current device.
Raises the exceptions of pickling, MPI.Exception, MemoryError, wm.CudaError."""
_OBJECTS_BY_HOST = """\
GPU arrays inside an object are copied through the host. Raises the exceptions
of pickling, and MPI.Exception."""
_REDUCED = f"""\
op: one of MPI's or the program's operations, called with two objects. reduce
and allreduce take wm.AVG, too. To reduce GPU arrays on the GPUs, use the call
of this name that begins with a capital letter.
{_OBJECTS_BY_HOST}"""
_ENDS = """\
Requests of GPU arrays, of host arrays and of mpi4py may be in one list. The
objects are what irecv received, with the GPU arrays in them. Raises the
errors of the messages."""
_PROBED = """\
comm: any communicator. The message may be of a GPU array or a host array,
which Recv of the returned message receives."""
_MAKES = """\
The new communicator takes GPU arrays as this one does."""
_MAKES_STRANGE = """\
The other program may not run warpmpi: the new communicator refuses GPU arrays
until all processes of both sides call wm.Intercomm(inter)."""

_TEXTS = {
    _OBJECTS: """
        send bsend ssend isend ibsend issend recv irecv sendrecv
        bcast gather scatter allgather alltoall""",
    _OBJECTS_BY_HOST: "neighbor_allgather neighbor_alltoall",
    _REDUCED: "reduce allreduce scan exscan",
    _ENDS: "waitall waitany waitsome testall testany testsome",
    _PROBED: "Probe Iprobe probe iprobe",
    _MAKES: """
        Clone Dup Dup_with_info Idup Idup_with_info Create Create_group Split
        Split_type Shrink Create_cart Create_graph Create_dist_graph
        Create_dist_graph_adjacent Create_intercomm Sub Merge""",
    _MAKES_STRANGE: "Spawn Spawn_multiple Accept Connect Join",
}
_OF = {name: text for text, names in _TEXTS.items() for name in names.split()}


@functools.cache  # one text for the types of all communicators
def extended(stock: str | None, text: str) -> str:
    """Add a text to a docstring."""
    first = (stock or "").rstrip()
    return f"{first}\n\n{text}" if first else text


def add(call: Any, name: str) -> None:
    """Add what a call that has no row does with GPU arrays, if anything."""
    text = _OF.get(name)
    if text is not None and text not in (call.__doc__ or ""):
        call.__doc__ = extended(call.__doc__, text)
