# SPDX-License-Identifier: BSD-3-Clause
"""Communicators that take GPU arrays: mpi4py's own, over the same handles."""

from __future__ import annotations

import functools
import warnings
from typing import Any, NamedTuple

from mpi4py import MPI

from . import _core

# Messages of a wm.Comm travel on private communicators, where these would
# not find them: refused rather than left to wait for ever.
_NOT_YET = """
    Bsend Ibsend Sendrecv_replace Isendrecv Isendrecv_replace
    Mprobe Improbe
    Psend_init Precv_init Bsend_init
""".split()

# Calls of MPI's own that take buffers: none of them is ever handed memory of
# a GPU.
_HOST_ONLY = """
    Gather Gatherv Scatter Scatterv Allgather Allgatherv
    Alltoall Alltoallv Alltoallw Reduce Reduce_scatter_block Reduce_scatter
    Ibcast Igather Igatherv Iscatter Iscatterv Iallgather Iallgatherv
    Ialltoall Ialltoallv Ialltoallw Ireduce Iallreduce
    Ireduce_scatter_block Ireduce_scatter Bcast_init Gather_init Gatherv_init
    Scatter_init Scatterv_init Allgather_init Allgatherv_init Alltoall_init
    Alltoallv_init Alltoallw_init Reduce_init Allreduce_init
    Reduce_scatter_block_init Reduce_scatter_init
    Scan Exscan Iscan Iexscan Scan_init Exscan_init
    Neighbor_allgather Neighbor_allgatherv Neighbor_alltoall
    Neighbor_alltoallv Neighbor_alltoallw Ineighbor_allgather
    Ineighbor_allgatherv Ineighbor_alltoall Ineighbor_alltoallv
    Ineighbor_alltoallw Neighbor_allgather_init Neighbor_allgatherv_init
    Neighbor_alltoall_init Neighbor_alltoallv_init Neighbor_alltoallw_init
    Attach_buffer
""".split()

_POINT_TO_POINT = """
    Send Ssend Rsend Isend Issend Irsend Recv Irecv Sendrecv
    Send_init Ssend_init Rsend_init Recv_init
""".split()


def _refuse_device(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    for value in (*args, *kwargs.values()):
        if _core.is_on_device(value):
            raise TypeError(
                f"{name}: GPU memory is not supported by this call yet; copy "
                "it to the host first (numpy()), or use Send, Recv, "
                "Sendrecv, Isend, Irecv, Send_init, Recv_init, Bcast or "
                "Allreduce of a wm.Comm"
            )


def _host_only(base: type, name: str) -> Any:
    method = getattr(base, name)

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        _refuse_device(name, args, kwargs)
        return method(self, *args, **kwargs)

    return call


def _not_yet(base: type, name: str) -> Any:
    @functools.wraps(getattr(base, name))
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        _refuse_device(name, args, kwargs)
        raise NotImplementedError(
            f"{name} is not supported on a wm.Comm yet: it would not meet "
            "Send and Recv of a wm.Comm; use those, or the same call of the "
            "communicator of mpi4py that it was made from"
        )

    return call


def _guard(cls: type, base: type) -> None:
    """Put the refusing forms of base's calls into cls."""
    for name in _HOST_ONLY:
        if hasattr(base, name):
            setattr(cls, name, _host_only(base, name))


def _ours(comm: Any) -> Any:
    """Make a communicator that MPI has just made one of ours; collective."""
    if comm == MPI.COMM_NULL:
        return comm
    ours = next(
        (ours for kind, ours in _KINDS if isinstance(comm, kind)), None
    )
    if ours is None:
        return comm
    if not isinstance(comm, ours):
        comm = ours(comm)
    elif hasattr(comm, "_attach"):
        comm._attach()
    return comm


@functools.cache
def _warn_of_thread_level() -> None:
    """Say once what would otherwise be seen as a hang."""
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        warnings.warn(
            "MPI runs below MPI_THREAD_MULTIPLE: MPI.Request.Waitall and "
            "every other wait of mpi4py's own never ends on requests of a "
            "wm.Comm. Use wm.Request.Waitall, Wait or Test, or request the "
            "thread level before mpi4py.MPI is imported: "
            "mpi4py.rc.thread_level = 'multiple'",
            RuntimeWarning,
            stacklevel=3,
        )


class _Communicator(_core.CommMethods):
    """What every intracommunicator of ours has beside mpi4py's own."""

    def __new__(cls, comm: MPI.Comm | None = None) -> Any:
        """Make one over the handle of another, or a null one."""
        if comm is not None:
            cls._check_running()
        return super().__new__(cls, comm)  # type: ignore[call-arg]

    def __init__(self, comm: MPI.Comm | None = None) -> None:
        if self != MPI.COMM_NULL:
            _warn_of_thread_level()
            self._attach()


def _making(base: type, name: str) -> Any:
    method = getattr(base, name)

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        made = _ours(method(self, *args, **kwargs))
        if isinstance(made, Intercomm):
            known = isinstance(self, Intercomm) and self._both_ours
            made._both_ours = known or name == "Create_intercomm"
        return made

    return call


def _idup(self: Any, info: Any = None) -> Any:
    """Duplicate; complete when it returns, the request is a null one."""
    comm = self.Dup_with_info(info) if info is not None else self.Dup()
    return comm, MPI.Request()


_MAKERS = """
    Clone Dup Dup_with_info Create Create_group Split Split_type Shrink
    Create_cart Create_graph Create_dist_graph_adjacent Create_dist_graph
    Create_intercomm Spawn Spawn_multiple Accept Connect Join Sub
""".split()


def _complete(cls: type, base: type) -> type:
    _guard(cls, base)
    for name in _MAKERS:
        if hasattr(base, name):
            setattr(cls, name, _making(base, name))
    if issubclass(cls, _core.CommMethods):
        for name in _NOT_YET:
            setattr(cls, name, _not_yet(base, name))
        for name in ("Idup", "Idup_with_info"):
            setattr(cls, name, _idup)
    return cls


class Comm(_Communicator, MPI.Intracomm):
    """An intracommunicator whose messages may be GPU arrays.

    ``wm.Comm(MPI.COMM_WORLD)`` is a ``MPI.Intracomm`` over the same handle,
    made by all its ranks together. Arrays of CuPy, Warp, PyTorch, JAX, Numba
    and this package, on any device, and host arrays, in any mix over the
    ranks. ``Dup``, ``Split``, ``Create_cart`` … give the same kind.

    Raises RuntimeError where ranks run different versions of this package or
    MPI is not running.
    """


class Cartcomm(_Communicator, MPI.Cartcomm):
    """A Cartesian communicator whose messages may be GPU arrays."""


class Graphcomm(_Communicator, MPI.Graphcomm):
    """A graph communicator whose messages may be GPU arrays."""


class Distgraphcomm(_Communicator, MPI.Distgraphcomm):
    """A distributed graph communicator whose messages may be GPU arrays."""


class _HostComm(MPI.Intracomm):
    """Of ranks that may not run this package: refuses GPU arrays."""


class Intercomm(MPI.Intercomm):
    """An intercommunicator, which refuses GPU arrays with a TypeError."""

    # Whether the other group runs this package for certain: it has joined
    # in a Create_intercomm of ours.
    _both_ours = False

    def __init__(self, comm: MPI.Comm | None = None) -> None:
        self._both_ours = getattr(comm, "_both_ours", False)

    def Merge(self, high: bool = False) -> MPI.Intracomm:
        """Merge both groups into one communicator; collective over both.

        A wm.Comm where both groups have called Create_intercomm of wm.Comm's.
        After Spawn, Accept, Connect and Join the other program may not run
        this package, and could not take part in making one: the result is
        then one of mpi4py's that refuses GPU arrays with a TypeError.
        """
        merged = super().Merge(high)
        return _ours(merged) if self._both_ours else _HostComm(merged)


for _cls, _base in (
    (Comm, MPI.Intracomm),
    (Cartcomm, MPI.Cartcomm),
    (Graphcomm, MPI.Graphcomm),
    (Distgraphcomm, MPI.Distgraphcomm),
    (Intercomm, MPI.Intercomm),
):
    _complete(_cls, _base)
_guard(_HostComm, MPI.Intracomm)
for _name in (*_POINT_TO_POINT, *_NOT_YET, "Bcast", "Allreduce"):
    setattr(Intercomm, _name, _host_only(MPI.Intercomm, _name))
    setattr(_HostComm, _name, _host_only(MPI.Intracomm, _name))

_KINDS: tuple[tuple[type, type], ...] = (
    (MPI.Cartcomm, Cartcomm),
    (MPI.Distgraphcomm, Distgraphcomm),
    (MPI.Graphcomm, Graphcomm),
    (MPI.Intercomm, Intercomm),
    (MPI.Intracomm, Comm),
)


class Transport(NamedTuple):
    """How GPU memory travels between two ranks, and why that way."""

    name: str
    reason: str

    def __str__(self) -> str:
        """Give name and reason in one line."""
        return f"{self.name}: {self.reason}"


def transport(comm: Comm, rank: int, buffer: Any = None) -> Transport:
    """Tell which path a message from ``rank`` takes into ``buffer``.

    buffer: the array received into; without one, memory of the current
    device. Returns a Transport with ``name`` ('ipc', 'host', 'self', 'mpi')
    and ``reason``. Which memory the sender has is not known here: into host
    memory the name is 'mpi', that of a message from host memory, and the
    reason tells how one from a GPU comes. Raises ValueError for a rank the
    communicator lacks.
    """
    return Transport(*comm._transport(rank, buffer))
