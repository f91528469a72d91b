# SPDX-License-Identifier: BSD-3-Clause
"""wm.Halo: the ghosts of arrays, filled with the neighbours' edges.

The calls that programs repeat are in C (src/python/rma/py_halo.c). Here are
the making of a halo, and the messages that serve where no kernel reaches the
neighbours' memory.
"""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from warpmpi import _core
from warpmpi._comm import Cartcomm, Comm

if TYPE_CHECKING:
    from collections.abc import Sequence

DIMS = 3  # most dimensions
DIRECTIONS = 27
MOST_WIDTH = 1 << 40

# Some types, such as float16, are none of MPI's.
UFUNCS = (
    (MPI.SUM, np.add),
    (MPI.PROD, np.multiply),
    (MPI.MIN, np.minimum),
    (MPI.MAX, np.maximum),
)

Box = tuple[slice, ...] | None
Copy = tuple[int, int, Box, Box]
Widths = tuple[tuple[int, int], ...]


def read_width(width: Any, ndim: int) -> Widths:
    """The widths by dimension and side, of an int or of one a dimension."""
    try:
        if isinstance(width, int) or hasattr(width, "__index__"):
            each = [width] * ndim
        else:
            each = list(width)
        pairs = [
            (one, one) if hasattr(one, "__index__") else tuple(one)
            for one in each
        ]
        widths = tuple(
            (operator.index(low), operator.index(high)) for low, high in pairs
        )
    except (TypeError, ValueError):
        widths = ()
    if len(widths) != ndim:
        raise ValueError(
            f"width: {width!r} is no width in {ndim} dimensions: give an int, "
            "or an int or (low, high) for each dimension"
        )
    if not all(0 <= one <= MOST_WIDTH for pair in widths for one in pair):
        raise ValueError(f"width: {width!r} is negative, or too large")
    return widths


def settle(comm: MPI.Comm, error: Exception | None) -> None:
    """Raise on all ranks if one has an error; collective."""
    texts = MPI.Comm.allgather(comm, None if error is None else str(error))
    if error is not None:
        raise error
    for rank, text in enumerate(texts):
        if text is not None:
            raise ValueError(f"rank {rank}: {text}")


def padded(values: Sequence[Any], rest: Any) -> tuple[Any, ...]:
    """As many values as C expects."""
    return (*values, *[rest] * (DIMS - len(values)))


def slices(box: tuple[int, ...] | None, ndim: int) -> Box:
    """The index of a box, of begins and extents."""
    return (
        None
        if box is None
        else tuple(
            slice(at, at + extent)
            for at, extent in zip(box[:ndim], box[DIMS:], strict=False)
        )
    )


@functools.cache
def _channel_key() -> int:
    def free(comm: MPI.Comm, key: int, channel: MPI.Comm) -> None:
        channel.Free()

    return MPI.Comm.Create_keyval(delete_fn=free)


class Halo(_core.HaloCalls):
    """The exchange of ghosts between the ranks of a cartesian communicator.

    cart: an MPI.Cartcomm of one to three dimensions, which are the first ones
    of the arrays. width: the number of ghosts on each side: an int, or for
    each dimension an int or (low, high). corners: the ghosts of diagonal
    neighbours are filled, too. shape: the shape of this rank's block, ghosts
    included; arrays may then be staggered, with one point more or less than
    the block. The call is collective. Raises TypeError for another
    communicator, and ValueError, on all ranks if one gives them, for widths
    or shapes that are none.
    """

    def __init__(
        self,
        cart: MPI.Cartcomm,
        width: Any = 1,
        corners: bool = False,
        *,
        shape: Sequence[int] | None = None,
        _lines: int = -1,  # as is best (halo_exchange.h)
    ) -> None:
        if isinstance(cart, MPI.Comm) and cart == MPI.COMM_NULL:
            raise TypeError(
                "cart: it is MPI.COMM_NULL, as this rank is not in the grid, "
                "or the communicator was freed"
            )
        if not isinstance(cart, MPI.Comm) or cart.Get_topology() != MPI.CART:
            raise TypeError(
                "cart: give a cartesian communicator, such as "
                f"comm.Create_cart(dims), not {type(cart).__name__}"
            )
        ours = isinstance(cart, Comm)
        self._comm = cart if ours else Cartcomm(cart)
        dims, periods, _ = MPI.Cartcomm(cart).Get_topo()
        ndim = len(dims)
        self._dims, self._periods = tuple(dims), tuple(map(bool, periods))
        wrong = None
        try:
            self._read(width, corners, shape)
        except Exception as error:  # raised by `settle`
            wrong = error
        settle(self._comm, wrong)
        low, high = zip(*self._width, strict=True)
        self._open(
            self._comm,
            self._comm.rank,
            ndim,
            padded(dims, 1),
            padded(self._periods, False),
            padded(low, 0),
            padded(high, 0),
            self._corners,
            None if self._shape is None else padded(self._shape, 1),
            _lines,
        )

    def _read(self, width: Any, corners: Any, shape: Any) -> None:
        ndim = len(self._dims)
        if not 1 <= ndim <= DIMS:
            raise ValueError(
                f"cart: it has {ndim} dimensions, and a halo 1 to {DIMS}"
            )
        if shape is not None:
            shape = tuple(map(operator.index, shape))
            if len(shape) != ndim:
                raise ValueError(
                    f"shape: {shape} is not the shape of a block in {ndim} "
                    "dimensions"
                )
        self._width = read_width(width, ndim)
        self._corners = bool(corners)
        self._found: dict[tuple[int, ...], list[Copy]] = {}  # by points
        self._shape: tuple[int, ...] | None = shape

    @property
    def comm(self) -> MPI.Comm:
        """The cartesian communicator, as a wm.Cartcomm."""
        return self._comm

    @property
    def width(self) -> Widths:
        """The number of ghosts, (low, high) for each dimension."""
        return self._width

    @property
    def corners(self) -> bool:
        """Tell whether diagonal neighbours exchange, too."""
        return self._corners

    def __repr__(self) -> str:
        return (
            f"<warpmpi.Halo of {' x '.join(map(str, self._dims))} ranks, "
            f"width {self._width}{', corners' if self._corners else ''}>"
        )

    def start(self, *fields: Any, stream: Any = None) -> HaloExchange:
        """Begin an exchange, and return it: finish() ends it.

        GPU arrays are exchanged beside later work on `stream`, or on the
        current stream of their library, which must not touch the edges and
        the ghosts until finish(). Arguments and errors are those of
        exchange(); one exchange of a halo is under way at a time. The result
        has one method, finish(stream=None).
        """
        begun = self._begin(*fields, stream=stream)
        requests = None
        if begun is NotImplemented:
            requests = self._send(fields, stream)
        return HaloExchange(self, fields, stream, requests)

    def plan(self, *fields: Any) -> HaloPlan:
        """Return the exchange of these fields, to be called often; collective.

        A plan keeps the fields. plan(stream=) is exchange() of them, and
        raises RuntimeError where a field has other memory than now. It is one
        kernel, and may be captured into a CUDA graph at its first call. Where
        messages are used (CPU arrays, several hosts), it does what exchange()
        does. Arguments and errors of plan() itself are those of exchange().
        """
        return HaloPlan(self, self._prepare(*fields), fields)

    def reduce(
        self, *fields: Any, op: MPI.Op = MPI.SUM, stream: Any = None
    ) -> None:
        """Reduce the ghosts of the fields into the neighbours' edges.

        It is the reverse of exchange(), for particles and finite elements: an
        element that is a ghost of other ranks becomes the result of `op` of
        its own value and theirs, in the order of the directions, so that the
        bits are the same in each run. Ghosts keep their values. Arguments,
        order and errors are those of exchange(); raises TypeError for an
        operation that MPI does not have for the elements.
        """
        if self._reduce(op, *fields, stream=stream) is NotImplemented:
            self._reduce_by_messages(fields, op)

    def _reduce_by_messages(self, fields: tuple[Any, ...], op: MPI.Op) -> None:
        views = [_core.asarray(field) for field in fields]
        plans = [self._copies_of(view.shape) for view in views]
        comm = self._channel()
        edges, requests, sent = [], [], []
        for index, (view, plan) in enumerate(zip(views, plans, strict=True)):
            for direction, neighbor, edge, ghosts in plan:
                tag = index * DIRECTIONS
                if edge is not None:
                    theirs = np.empty(view[edge].shape, view.dtype)
                    tag_back = tag + DIRECTIONS - 1 - direction
                    requests.append(comm.Irecv(theirs, neighbor, tag_back))
                    edges.append((view[edge], theirs))
                if ghosts is not None:
                    sent.append((view[ghosts], neighbor, tag + direction))
        requests += [comm.Isend(*each) for each in sent]
        _core.Request.Waitall(requests)
        for own, theirs in edges:
            value = np.array(own.numpy())
            compute = [ufunc for known, ufunc in UFUNCS if known == op]
            if compute:
                compute[0](value, theirs, out=value)
            else:
                op.Reduce_local(theirs, value)
            own.assign(value)
        self._count()

    def _channel(self) -> Any:
        """The communicator for messages of all halos of this one.

        It ends with the user's, as to end a communicator is collective.
        """
        found: Any = self._comm.Get_attr(_channel_key())
        if found is None:
            found = self._comm.Dup()
            self._comm.Set_attr(_channel_key(), found)
        _core._follow_required(found, self._comm)
        return found

    def _by_messages(self, fields: tuple[Any, ...], stream: Any) -> None:
        """Exchange what no kernel reaches, and CPU arrays."""
        _core.Request.Waitall(self._send(fields, stream))

    def _send(self, fields: tuple[Any, ...], stream: Any) -> list[MPI.Request]:
        views: list[Any] = [_core.asarray(field) for field in fields]
        plans = [self._copies_of(view.shape) for view in views]
        channel: Any = self._channel()
        if stream is not None and views[0].device.is_cuda:
            channel = channel.on(stream)
        views = [  # NumPy's arrays go to MPI at once
            field if type(field) is np.ndarray else view
            for field, view in zip(fields, views, strict=True)
        ]
        received, sent = [], []
        for index, (view, plan) in enumerate(zip(views, plans, strict=True)):
            for direction, neighbor, edge, ghosts in plan:
                tag = index * DIRECTIONS
                if ghosts is not None:
                    tag_back = tag + DIRECTIONS - 1 - direction
                    received.append((view[ghosts], neighbor, tag_back))
                if edge is not None:
                    sent.append((view[edge], neighbor, tag + direction))
        requests = [channel.Irecv(*each) for each in received]
        requests += [channel.Isend(*each) for each in sent]
        self._count()
        return requests

    def _copies_of(self, shape: tuple[int, ...]) -> list[Copy]:
        ndim = len(self._dims)
        points = shape[:ndim]
        if points not in self._found:
            block = points if self._shape is None else self._shape
            stagger = tuple(n - m for n, m in zip(points, block, strict=True))
            self._found[points] = [
                (direction, neighbor, slices(edge, ndim), slices(ghosts, ndim))
                for direction, neighbor, edge, ghosts in self._copies(
                    padded(points, 1), padded(stagger, 0)
                )
            ]
        return self._found[points]


class HaloExchange:
    """An exchange that wm.Halo.start has begun.

    It keeps the fields. finish() ends it.
    """

    def __init__(
        self,
        halo: Halo,
        fields: tuple[Any, ...],
        stream: Any,
        requests: list[MPI.Request] | None,
    ) -> None:
        self._halo, self._fields, self._stream = halo, fields, stream
        self._requests = requests
        self._ended = False

    def finish(self, stream: Any = None) -> None:
        """Order later work behind the exchange, which fills the ghosts.

        That is work on `stream`, on the stream of start(), or on the current
        stream of the fields' library. CPU arrays are filled at the return.
        A second call does nothing. Raises RuntimeError if the halo was freed,
        or a field has other memory than at start(), ValueError for a stream of
        another GPU, MPI.Exception for a message that failed.
        """
        if self._ended:
            return
        self._ended = True
        if self._requests is not None:
            _core.Request.Waitall(self._requests)
        else:
            stream = self._stream if stream is None else stream
            self._halo._end(*self._fields, stream=stream)


class HaloPlan:
    """The exchange of some fields, which wm.Halo.plan has made.

    It keeps the fields. plan(stream=None) exchanges them.
    """

    def __init__(
        self, halo: Halo, number: int, fields: tuple[Any, ...]
    ) -> None:
        self._fields = fields
        self._call = functools.partial(halo._replay, number, *fields)

    def __call__(self, stream: Any = None) -> None:
        """Exchange the fields on a stream.

        All ranks call it equally often. stream: as of wm.Halo.exchange. Raises
        RuntimeError if the halo was freed, or a field has other memory or
        another shape than when the plan was made, ValueError for a stream of
        another GPU, MPI.Exception once a rank has died, wm.CudaError.
        """
        self._call(stream=stream)

    @property
    def fields(self) -> tuple[Any, ...]:
        """The fields that were given to wm.Halo.plan, in their order."""
        return self._fields
