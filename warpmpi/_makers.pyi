# SPDX-License-Identifier: BSD-3-Clause
# What _complete() of _comm.py puts into communicators: makers that give ours.
from collections.abc import Callable, Sequence
from typing import Any

from mpi4py import MPI
from mpi4py.typing import BufSpec, BufSpecB, InPlace
from typing_extensions import Self

from warpmpi._comm import (
    Cartcomm,
    Comm,
    Distgraphcomm,
    Graphcomm,
    Intercomm,
    _Communicator,
)
from warpmpi._typing import OpLike

class _Makers(_Communicator):
    def Clone(self) -> Self: ...
    def Dup(self, info: MPI.Info | None = None) -> Self: ...
    def Dup_with_info(self, info: MPI.Info) -> Self: ...
    def Idup(
        self, info: MPI.Info | None = None
    ) -> tuple[Self, MPI.Request]: ...
    def Idup_with_info(self, info: MPI.Info) -> tuple[Self, MPI.Request]: ...

    # Also what averages; other collectives are mpi4py's.
    def Reduce(
        self,
        sendbuf: BufSpec | InPlace,
        recvbuf: BufSpec | None,
        op: OpLike = ...,
        root: int = 0,
    ) -> None: ...
    def Allreduce(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: OpLike = ...
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
    def Ireduce(
        self,
        sendbuf: BufSpec | InPlace,
        recvbuf: BufSpec | None,
        op: OpLike = ...,
        root: int = 0,
    ) -> MPI.Request: ...
    def Iallreduce(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: OpLike = ...
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
    def Reduce_init(
        self,
        sendbuf: BufSpec | InPlace,
        recvbuf: BufSpec | None,
        op: OpLike = ...,
        root: int = 0,
        info: MPI.Info = ...,
    ) -> MPI.Prequest: ...
    def Allreduce_init(
        self,
        sendbuf: BufSpec | InPlace,
        recvbuf: BufSpec,
        op: OpLike = ...,
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
    def reduce(
        self,
        sendobj: Any,
        op: OpLike | Callable[[Any, Any], Any] = ...,
        root: int = 0,
    ) -> Any | None: ...
    def allreduce(
        self, sendobj: Any, op: OpLike | Callable[[Any, Any], Any] = ...
    ) -> Any: ...

class IntraMakers(_Makers):
    def Create(self, group: MPI.Group) -> Comm: ...
    def Create_group(self, group: MPI.Group, tag: int = 0) -> Comm: ...
    def Split(self, color: int = 0, key: int = 0) -> Comm: ...
    def Split_type(
        self, split_type: int, key: int = 0, info: MPI.Info = ...
    ) -> Comm: ...
    def Shrink(self) -> Comm: ...
    def Create_cart(
        self,
        dims: Sequence[int],
        periods: Sequence[bool] | None = None,
        reorder: bool = False,
    ) -> Cartcomm: ...
    def Create_graph(
        self,
        index: Sequence[int],
        edges: Sequence[int],
        reorder: bool = False,
    ) -> Graphcomm: ...
    def Create_dist_graph_adjacent(
        self,
        sources: Sequence[int],
        destinations: Sequence[int],
        sourceweights: Sequence[int] | None = None,
        destweights: Sequence[int] | None = None,
        info: MPI.Info = ...,
        reorder: bool = False,
    ) -> Distgraphcomm: ...
    def Create_dist_graph(
        self,
        sources: Sequence[int],
        degrees: Sequence[int],
        destinations: Sequence[int],
        weights: Sequence[int] | None = None,
        info: MPI.Info = ...,
        reorder: bool = False,
    ) -> Distgraphcomm: ...
    def Create_intercomm(
        self,
        local_leader: int,
        peer_comm: MPI.Intracomm,
        remote_leader: int,
        tag: int = 0,
    ) -> Intercomm: ...

class CartMakers(IntraMakers):
    def Sub(self, remain_dims: Sequence[bool]) -> Cartcomm: ...

class InterMakers(_Makers):
    def Create(self, group: MPI.Group) -> Intercomm: ...
    def Split(self, color: int = 0, key: int = 0) -> Intercomm: ...
    def Split_type(
        self, split_type: int, key: int = 0, info: MPI.Info = ...
    ) -> Intercomm: ...
    def Shrink(self) -> Intercomm: ...
