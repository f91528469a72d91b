# SPDX-License-Identifier: BSD-3-Clause
"""The buffers of MPI's calls: which are read, which are written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

# Parameters in their order, as far as they matter here. Of buffers: < is
# read, > is written in full, = may be written in part; /n holds one block for
# each rank (or neighbour), /v counts and displacements, /w types, too; only
# the root looks at one with @.
COLLECTIVES = """
    Bcast                >buf        root
    Gather               <sendbuf    >recvbuf/n@  root
    Gatherv              <sendbuf    >recvbuf/v@  root
    Scatter              <sendbuf/n@ >recvbuf     root
    Scatterv             <sendbuf/v@ >recvbuf     root
    Allgather            <sendbuf    >recvbuf/n
    Allgatherv           <sendbuf    >recvbuf/v
    Alltoall             <sendbuf/n  >recvbuf/n
    Alltoallv            <sendbuf/v  >recvbuf/v
    Alltoallw            <sendbuf/w  >recvbuf/w
    Reduce               <sendbuf    >recvbuf@    op root
    Allreduce            <sendbuf    >recvbuf     op
    Reduce_scatter_block <sendbuf/n  >recvbuf     op
    Reduce_scatter       <sendbuf    >recvbuf     recvcounts op
    Scan                 <sendbuf    >recvbuf     op
    Exscan               <sendbuf    =recvbuf     op
    Neighbor_allgather   <sendbuf    =recvbuf/n
    Neighbor_allgatherv  <sendbuf    =recvbuf/v
    Neighbor_alltoall    <sendbuf/n  =recvbuf/n
    Neighbor_alltoallv   <sendbuf/v  =recvbuf/v
    Neighbor_alltoallw   <sendbuf/w  =recvbuf/w
"""
MESSAGES = """
    Send              <buf
    Bsend             <buf
    Ssend             <buf
    Rsend             <buf
    Isend             <buf
    Ibsend            <buf
    Issend            <buf
    Irsend            <buf
    Recv              =buf
    Irecv             =buf
    Send_init         <buf
    Bsend_init        <buf
    Ssend_init        <buf
    Rsend_init        <buf
    Recv_init         =buf
    Sendrecv          <sendbuf dest sendtag =recvbuf
    Isendrecv         <sendbuf dest sendtag =recvbuf
    Sendrecv_replace  =buf
    Isendrecv_replace =buf
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
# These compute with the elements, and must know the element type.
REDUCTIONS = {
    "Reduce",
    "Allreduce",
    "Reduce_scatter_block",
    "Reduce_scatter",
    "Scan",
    "Exscan",
    "Accumulate",
    "Get_accumulate",
    "Fetch_and_op",
    "Reduce_local",
}
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
    form: str  # "", n, v or w
    at_root: bool


class Row(NamedTuple):
    """A call: its buffers, and where its other parameters are."""

    name: str
    buffers: tuple[Buffer, ...]
    positions: dict[str, int]


def rows_of(table: str) -> Iterator[Row]:
    """Give the calls of one of the tables."""
    for line in table.strip().splitlines():
        name, *parameters = line.split()
        buffers, positions = [], {}
        for position, parameter in enumerate(parameters):
            bare, _, form = parameter.strip("<>=@").partition("/")
            positions[bare] = position
            if parameter[0] in "<>=":
                buffers.append(
                    Buffer(
                        bare,
                        position,
                        parameter[0],
                        form,
                        parameter[-1] == "@",
                    )
                )
        yield Row(name, tuple(buffers), positions)
