# SPDX-License-Identifier: BSD-3-Clause
"""The buffers of MPI's calls, and whether a call reads or writes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from .. import _core

# Parameters in their order, of files and windows the first. Of buffers: < is
# read, > is written in full, = may be written in part.
MESSAGES = """
    Send              <buf dest tag
    Bsend             <buf dest tag
    Ssend             <buf dest tag
    Rsend             <buf dest tag
    Isend             <buf dest tag
    Ibsend            <buf dest tag
    Issend            <buf dest tag
    Irsend            <buf dest tag
    Recv              =buf source tag status
    Irecv             =buf source tag
    Send_init         <buf dest tag
    Bsend_init        <buf dest tag
    Ssend_init        <buf dest tag
    Rsend_init        <buf dest tag
    Recv_init         =buf source tag
    Sendrecv          <sendbuf dest sendtag =recvbuf source recvtag status
    Isendrecv         <sendbuf dest sendtag =recvbuf source recvtag
    Sendrecv_replace  =buf dest sendtag source recvtag status
    Isendrecv_replace =buf dest sendtag source recvtag
"""
FILE = """
    Read           =buf
    Read_all       =buf
    Read_at        offset =buf
    Read_at_all    offset =buf
    Read_shared    =buf
    Read_ordered   =buf
    Write          <buf
    Write_all      <buf
    Write_at       offset <buf
    Write_at_all   offset <buf
    Write_shared   <buf
    Write_ordered  <buf
"""
WINDOW = """
    Put              <origin                   target_rank
    Get              >origin                   target_rank
    Accumulate       <origin                   target_rank
    Get_accumulate   <origin          >result  target_rank
    Fetch_and_op     <origin          >result  target_rank
    Compare_and_swap <origin <compare >result  target_rank
"""
DATATYPE = """
    Pack            <inbuf >outbuf position
    Unpack          <inbuf position >outbuf
    Pack_external   datarep <inbuf >outbuf position
    Unpack_external datarep <inbuf position >outbuf
"""
OP = """
    Reduce_local    <inbuf =inoutbuf
"""
AGREEMENT = """
    Iagree          =flag
"""


class Buffer(NamedTuple):
    """A parameter that is a buffer."""

    name: str
    position: int
    role: str  # <, > or =
    # Its blocks: "" one, n one for each rank or neighbour, v with counts and
    # displacements, w with datatypes, too.
    form: str = ""
    at_root: bool = False  # only the root looks at it


class Row(NamedTuple):
    """A call: its buffers, and the positions of all its parameters."""

    name: str
    buffers: tuple[Buffer, ...]
    positions: dict[str, int]

    def argument(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str,
        default: Any = None,
    ) -> Any:
        """Give an argument of a call by its name."""
        at = self.positions[name]
        return args[at] if at < len(args) else kwargs.get(name, default)

    def replaced(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str,
        value: Any,
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Give the arguments of a call with another value of that name."""
        at = self.positions[name]
        if at < len(args):
            return (*args[:at], value, *args[at + 1 :]), kwargs
        return args, {**kwargs, name: value}


def rows_of(table: str) -> Iterator[Row]:
    """Give the calls of one of the tables above."""
    for line in table.strip().splitlines():
        name, *parameters = line.split()
        names = [parameter.lstrip("<>=") for parameter in parameters]
        buffers = [
            Buffer(names[position], position, parameter[0])
            for position, parameter in enumerate(parameters)
            if parameter[0] in "<>="
        ]
        yield _row(name, buffers, names)


def _row(name: str, buffers: list[Buffer], names: Iterable[str]) -> Row:
    positions = {each: position for position, each in enumerate(names)}
    return Row(name, tuple(buffers), positions)


def collectives() -> Iterator[Row]:
    """Give the collectives, from the table of the C sources."""
    for name, names, sends, receives, out, into, part in _core._collectives():
        written = "=" if part else ">"
        if names[0] == "buf":
            buffers = [Buffer("buf", 0, written)]
        else:
            buffers = [
                Buffer("sendbuf", 0, "<", sends, out),
                Buffer("recvbuf", 1, written, receives, into),
            ]
        yield _row(name, buffers, names)


# These compute with the elements, and must know the element type.
REDUCTIONS = {
    *(row.name for row in collectives() if "op" in row.positions),
    *("Accumulate", "Get_accumulate", "Fetch_and_op", "Reduce_local"),
}
