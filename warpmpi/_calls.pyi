# SPDX-License-Identifier: BSD-3-Clause
# Written by build_tools/stubs.py from the tables of the sources: do not edit.
from collections.abc import Sequence

from mpi4py import MPI
from mpi4py.typing import BufSpec, BufSpecB, BufSpecV, BufSpecW, InPlace

from warpmpi._comm import _Communicator
from warpmpi._core import PartitionedRequest, Prequest, Request
from warpmpi._typing import OpLike

class _Messages:
    def Send(self, buf: BufSpec, dest: int, tag: int = 0) -> None: ...
    def Ssend(self, buf: BufSpec, dest: int, tag: int = 0) -> None: ...
    def Rsend(self, buf: BufSpec, dest: int, tag: int = 0) -> None: ...
    def Bsend(self, buf: BufSpec, dest: int, tag: int = 0) -> None: ...
    def Isend(self, buf: BufSpec, dest: int, tag: int = 0) -> Request: ...
    def Issend(self, buf: BufSpec, dest: int, tag: int = 0) -> Request: ...
    def Irsend(self, buf: BufSpec, dest: int, tag: int = 0) -> Request: ...
    def Ibsend(self, buf: BufSpec, dest: int, tag: int = 0) -> Request: ...
    def Recv(
        self,
        buf: BufSpec,
        source: int = ...,
        tag: int = ...,
        status: MPI.Status | None = None,
    ) -> None: ...
    def Irecv(
        self, buf: BufSpec, source: int = ..., tag: int = ...
    ) -> Request: ...
    def Send_init(self, buf: BufSpec, dest: int, tag: int = 0) -> Prequest: ...
    def Ssend_init(
        self, buf: BufSpec, dest: int, tag: int = 0
    ) -> Prequest: ...
    def Rsend_init(
        self, buf: BufSpec, dest: int, tag: int = 0
    ) -> Prequest: ...
    def Bsend_init(
        self, buf: BufSpec, dest: int, tag: int = 0
    ) -> Prequest: ...
    def Recv_init(
        self, buf: BufSpec, source: int = ..., tag: int = ...
    ) -> Prequest: ...
    def Psend_init(
        self,
        buf: BufSpec,
        partitions: int,
        dest: int,
        tag: int = 0,
        info: MPI.Info | None = None,
    ) -> PartitionedRequest: ...
    def Precv_init(
        self,
        buf: BufSpec,
        partitions: int,
        source: int = ...,
        tag: int = ...,
        info: MPI.Info | None = None,
    ) -> PartitionedRequest: ...
    def Sendrecv(
        self,
        sendbuf: BufSpec,
        dest: int,
        sendtag: int = 0,
        recvbuf: BufSpec | None = None,
        source: int = ...,
        recvtag: int = ...,
        status: MPI.Status | None = None,
    ) -> None: ...
    def Sendrecv_replace(
        self,
        buf: BufSpec,
        dest: int,
        sendtag: int = 0,
        source: int = ...,
        recvtag: int = ...,
        status: MPI.Status | None = None,
    ) -> None: ...
    def Isendrecv(
        self,
        sendbuf: BufSpec,
        dest: int,
        sendtag: int = 0,
        recvbuf: BufSpec | None = None,
        source: int = ...,
        recvtag: int = ...,
    ) -> Request: ...
    def Isendrecv_replace(
        self,
        buf: BufSpec,
        dest: int,
        sendtag: int = 0,
        source: int = ...,
        recvtag: int = ...,
    ) -> Request: ...

class _Collectives:
    def Barrier(self) -> None: ...
    def Bcast(self, buf: BufSpec, root: int = 0) -> None: ...
    def Allreduce(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: OpLike = ...
    ) -> None: ...
    def Gather(
        self,
        sendbuf: BufSpec | InPlace,
        recvbuf: BufSpecB | None,
        root: int = 0,
    ) -> None: ...
    def Gatherv(
        self,
        sendbuf: BufSpec | InPlace,
        recvbuf: BufSpecV | None,
        root: int = 0,
    ) -> None: ...
    def Scatter(
        self,
        sendbuf: BufSpecB | None,
        recvbuf: BufSpec | InPlace,
        root: int = 0,
    ) -> None: ...
    def Scatterv(
        self,
        sendbuf: BufSpecV | None,
        recvbuf: BufSpec | InPlace,
        root: int = 0,
    ) -> None: ...
    def Allgather(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecB
    ) -> None: ...
    def Allgatherv(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecV
    ) -> None: ...
    def Alltoall(
        self, sendbuf: BufSpecB | InPlace, recvbuf: BufSpecB
    ) -> None: ...
    def Alltoallv(
        self, sendbuf: BufSpecV | InPlace, recvbuf: BufSpecV
    ) -> None: ...
    def Alltoallw(
        self, sendbuf: BufSpecW | InPlace, recvbuf: BufSpecW
    ) -> None: ...
    def Neighbor_allgather(
        self, sendbuf: BufSpec, recvbuf: BufSpecB
    ) -> None: ...
    def Neighbor_allgatherv(
        self, sendbuf: BufSpec, recvbuf: BufSpecV
    ) -> None: ...
    def Neighbor_alltoall(
        self, sendbuf: BufSpecB, recvbuf: BufSpecB
    ) -> None: ...
    def Neighbor_alltoallv(
        self, sendbuf: BufSpecV, recvbuf: BufSpecV
    ) -> None: ...
    def Neighbor_alltoallw(
        self, sendbuf: BufSpecW, recvbuf: BufSpecW
    ) -> None: ...
    def Reduce(
        self,
        sendbuf: BufSpec | InPlace,
        recvbuf: BufSpec | None,
        op: OpLike = ...,
        root: int = 0,
    ) -> None: ...
    def Reduce_scatter_block(
        self, sendbuf: BufSpecB | InPlace, recvbuf: BufSpec, op: OpLike = ...
    ) -> None: ...
    def Reduce_scatter(
        self,
        sendbuf: BufSpec | InPlace,
        recvbuf: BufSpec,
        recvcounts: Sequence[int],
        op: OpLike = ...,
    ) -> None: ...
    def Scan(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: MPI.Op = ...
    ) -> None: ...
    def Exscan(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: MPI.Op = ...
    ) -> None: ...
    def Ibarrier(self) -> Request: ...
    def Ibcast(self, buf: BufSpec, root: int = 0) -> Request: ...
    def Iallreduce(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: OpLike = ...
    ) -> Request: ...
    def Igather(
        self,
        sendbuf: BufSpec | InPlace,
        recvbuf: BufSpecB | None,
        root: int = 0,
    ) -> Request: ...
    def Igatherv(
        self,
        sendbuf: BufSpec | InPlace,
        recvbuf: BufSpecV | None,
        root: int = 0,
    ) -> Request: ...
    def Iscatter(
        self,
        sendbuf: BufSpecB | None,
        recvbuf: BufSpec | InPlace,
        root: int = 0,
    ) -> Request: ...
    def Iscatterv(
        self,
        sendbuf: BufSpecV | None,
        recvbuf: BufSpec | InPlace,
        root: int = 0,
    ) -> Request: ...
    def Iallgather(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecB
    ) -> Request: ...
    def Iallgatherv(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecV
    ) -> Request: ...
    def Ialltoall(
        self, sendbuf: BufSpecB | InPlace, recvbuf: BufSpecB
    ) -> Request: ...
    def Ialltoallv(
        self, sendbuf: BufSpecV | InPlace, recvbuf: BufSpecV
    ) -> Request: ...
    def Ialltoallw(
        self, sendbuf: BufSpecW | InPlace, recvbuf: BufSpecW
    ) -> Request: ...
    def Ineighbor_allgather(
        self, sendbuf: BufSpec, recvbuf: BufSpecB
    ) -> Request: ...
    def Ineighbor_allgatherv(
        self, sendbuf: BufSpec, recvbuf: BufSpecV
    ) -> Request: ...
    def Ineighbor_alltoall(
        self, sendbuf: BufSpecB, recvbuf: BufSpecB
    ) -> Request: ...
    def Ineighbor_alltoallv(
        self, sendbuf: BufSpecV, recvbuf: BufSpecV
    ) -> Request: ...
    def Ineighbor_alltoallw(
        self, sendbuf: BufSpecW, recvbuf: BufSpecW
    ) -> Request: ...
    def Ireduce(
        self,
        sendbuf: BufSpec | InPlace,
        recvbuf: BufSpec | None,
        op: OpLike = ...,
        root: int = 0,
    ) -> Request: ...
    def Ireduce_scatter_block(
        self, sendbuf: BufSpecB | InPlace, recvbuf: BufSpec, op: OpLike = ...
    ) -> Request: ...
    def Ireduce_scatter(
        self,
        sendbuf: BufSpec | InPlace,
        recvbuf: BufSpec,
        recvcounts: Sequence[int],
        op: OpLike = ...,
    ) -> Request: ...
    def Iscan(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: MPI.Op = ...
    ) -> Request: ...
    def Iexscan(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: MPI.Op = ...
    ) -> Request: ...

class _Averages(_Communicator):
    def Allreduce(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: OpLike = ...
    ) -> None: ...
    def Reduce(
        self,
        sendbuf: BufSpec | InPlace,
        recvbuf: BufSpec | None,
        op: OpLike = ...,
        root: int = 0,
    ) -> None: ...
    def Reduce_scatter_block(
        self,
        sendbuf: BufSpecB | InPlace,
        recvbuf: BufSpec | BufSpecB,
        op: OpLike = ...,
    ) -> None: ...
    def Reduce_scatter(
        self,
        sendbuf: BufSpec | InPlace,
        recvbuf: BufSpec,
        recvcounts: Sequence[int] | None = None,
        op: OpLike = ...,
    ) -> None: ...
    def Iallreduce(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: OpLike = ...
    ) -> MPI.Request: ...
    def Ireduce(
        self,
        sendbuf: BufSpec | InPlace,
        recvbuf: BufSpec | None,
        op: OpLike = ...,
        root: int = 0,
    ) -> MPI.Request: ...
    def Ireduce_scatter_block(
        self,
        sendbuf: BufSpecB | InPlace,
        recvbuf: BufSpec | BufSpecB,
        op: OpLike = ...,
    ) -> MPI.Request: ...
    def Ireduce_scatter(
        self,
        sendbuf: BufSpec | InPlace,
        recvbuf: BufSpec,
        recvcounts: Sequence[int] | None = None,
        op: OpLike = ...,
    ) -> MPI.Request: ...
    def Allreduce_init(
        self,
        sendbuf: BufSpec | InPlace,
        recvbuf: BufSpec,
        op: OpLike = ...,
        info: MPI.Info = ...,
    ) -> MPI.Prequest: ...
    def Reduce_init(
        self,
        sendbuf: BufSpec | InPlace,
        recvbuf: BufSpec | None,
        op: OpLike = ...,
        root: int = 0,
        info: MPI.Info = ...,
    ) -> MPI.Prequest: ...
    def Reduce_scatter_block_init(
        self,
        sendbuf: BufSpecB | InPlace,
        recvbuf: BufSpec | BufSpecB,
        op: OpLike = ...,
        info: MPI.Info = ...,
    ) -> MPI.Prequest: ...
    def Reduce_scatter_init(
        self,
        sendbuf: BufSpec | InPlace,
        recvbuf: BufSpec,
        recvcounts: Sequence[int] | None = None,
        op: OpLike = ...,
        info: MPI.Info = ...,
    ) -> MPI.Prequest: ...
