# SPDX-License-Identifier: BSD-3-Clause
# What _complete() of _comm.py puts into communicators: makers that give ours.
from collections.abc import Callable, Sequence
from typing import Any

from mpi4py import MPI
from typing_extensions import Self

from warpmpi._calls import _Averages
from warpmpi._comm import (
    Cartcomm,
    Comm,
    Distgraphcomm,
    Graphcomm,
    Intercomm,
)
from warpmpi._typing import OpLike

class _Makers(_Averages):
    def Clone(self) -> Self: ...
    def Dup(self, info: MPI.Info | None = None) -> Self: ...
    def Dup_with_info(self, info: MPI.Info) -> Self: ...
    def Idup(
        self, info: MPI.Info | None = None
    ) -> tuple[Self, MPI.Request]: ...
    def Idup_with_info(self, info: MPI.Info) -> tuple[Self, MPI.Request]: ...
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
