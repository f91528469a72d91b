# SPDX-License-Identifier: BSD-3-Clause
"""wm.Grid: a global array of points, cut into a block for each rank."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from warpmpi import _core
from warpmpi._comm import Cartcomm
from warpmpi._halo import DIMS, Halo, read_width, settle

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt


class Grid:
    """A grid of points over all ranks of a communicator.

    shape: the points of the whole grid, in one to three dimensions. comm: an
    MPI.Comm, of which a cartesian one is made, as is by MPI.Compute_dims, or
    by `dims`, with a 0 where MPI chooses. periods: a bool, or one for each
    dimension. width, corners: those of wm.Halo. Blocks differ by one point at
    most; the first ranks have the larger ones. Collective. Raises on all ranks
    if one gives a wrong argument: ValueError for a shape that has not one to
    three dimensions, or fewer points than ranks in one, for a width of more
    points than the smallest block, and for periods or dims of another length;
    TypeError for a shape that is none. Raises TypeError for a comm that is no
    MPI.Comm.
    """

    def __init__(
        self,
        shape: Sequence[int],
        comm: MPI.Comm,
        periods: bool | Sequence[bool] = False,
        width: Any = 1,
        *,
        corners: bool = False,
        dims: Sequence[int] | None = None,
    ) -> None:
        if not isinstance(comm, MPI.Comm):
            raise TypeError(
                f"comm: give an MPI.Comm, not {type(comm).__name__}"
            )
        wrong = None
        try:
            self._read(shape, comm.Get_size(), periods, width, dims)
        except Exception as error:  # raised by `settle`
            wrong = error
        settle(comm, wrong)
        plain = MPI.Intracomm(comm).Create_cart(
            self._dims, periods=self._periods
        )
        self._plain = plain
        self._coords = tuple(plain.Get_coords(plain.rank))
        self._blocks = tuple(
            _block(points, ranks, at)
            for points, ranks, at in zip(
                self._shape, self._dims, self._coords, strict=True
            )
        )
        self._local_shape = tuple(
            low + end - begin + high
            for (begin, end), (low, high) in zip(
                self._blocks, self._width, strict=True
            )
        )
        try:
            self._halo = Halo(
                Cartcomm(plain), width, corners, shape=self._local_shape
            )
        except BaseException:
            plain.Free()
            raise

    def _read(
        self,
        shape: Any,
        size: int,
        periods: Any,
        width: Any,
        dims: Sequence[int] | None,
    ) -> None:
        try:
            self._shape = tuple(map(operator.index, shape))
        except TypeError:
            raise TypeError(
                f"shape: {shape!r} is not the shape of a grid: give an int "
                "for each dimension"
            ) from None
        ndim = len(self._shape)
        if not 1 <= ndim <= DIMS:
            raise ValueError(
                f"shape: {self._shape} has {ndim} dimensions, and a grid 1 to "
                f"{DIMS}"
            )
        if isinstance(periods, (bool, int)):
            periods = [bool(periods)] * ndim
        if len(periods) != ndim or (dims is not None and len(dims) != ndim):
            raise ValueError(
                f"periods, dims: give one for each dimension of {self._shape}"
            )
        given = [0] * ndim if dims is None else list(dims)
        self._periods = tuple(map(bool, periods))
        self._dims = tuple(MPI.Compute_dims(size, given))
        self._width = read_width(width, ndim)
        for points, ranks in zip(self._shape, self._dims, strict=True):
            if points < ranks:
                raise ValueError(
                    f"shape: {self._shape} has fewer points than the "
                    f"{self._dims} ranks: use fewer ranks, or other dims"
                )
        if any(
            points // ranks < max(each)
            for points, ranks, each in zip(
                self._shape, self._dims, self._width, strict=True
            )
        ):
            raise ValueError(
                f"width: {width!r} is more than the points of the smallest "
                f"block of {self._shape} over {self._dims} ranks: use fewer "
                "ranks, or a smaller width"
            )

    @property
    def cart(self) -> MPI.Comm:
        """The cartesian communicator, a wm.Cartcomm."""
        return self._halo.comm

    @property
    def halo(self) -> Halo:
        """The wm.Halo of arrays of local_shape, and of staggered ones."""
        return self._halo

    @property
    def shape(self) -> tuple[int, ...]:
        """The points of the whole grid."""
        return self._shape

    @property
    def dims(self) -> tuple[int, ...]:
        """The number of ranks in each dimension."""
        return self._dims

    @property
    def coordinates(self) -> tuple[int, ...]:
        """The coordinates of this rank."""
        return self._coords

    @property
    def local_shape(self) -> tuple[int, ...]:
        """The shape of this rank's block, ghosts included."""
        return self._local_shape

    @property
    def slices(self) -> tuple[slice, ...]:
        """The index, in an array of local_shape, of the rank's own points."""
        return tuple(
            slice(low, low + end - begin)
            for (begin, end), (low, _) in zip(
                self._blocks, self._width, strict=True
            )
        )

    @property
    def global_slices(self) -> tuple[slice, ...]:
        """The index, in the whole grid, of the rank's own points."""
        return tuple(slice(begin, end) for begin, end in self._blocks)

    def coords(self, u: Any, dim: int) -> npt.NDArray[np.float64]:
        """Return the global coordinates of an array's points in a dimension.

        They are a NumPy array with an entry for each point of `u`, ghosts
        included, in units of the distance of points, 0 for the first point
        of the grid. Ghosts of a periodic dimension count on beyond the grid.
        An array with a point more or less than the block is staggered: its
        points lie half way between. That is the rule of
        ImplicitGlobalGrid.jl. Local. Raises ValueError for another shape, and
        IndexError for a dimension that the grid does not have.
        """
        points = self._points_of(u)[dim]
        begin, low = self._blocks[dim][0], self._width[dim][0]
        shift = (self._local_shape[dim] - points) / 2
        return np.arange(points, dtype=np.float64) + (begin - low + shift)

    def gather(self, u: Any, root: int = 0) -> npt.NDArray[Any] | None:
        """Return the whole grid on the root, a NumPy array; None elsewhere.

        u: an array of local_shape, of any library, whose further dimensions
        are parts of an element. root: a rank of the grid's communicator.
        Collective. Raises ValueError on all ranks if one gives another shape,
        and MPI.Exception (ERR_ROOT) for a root that is no rank.
        """
        shape = tuple(getattr(u, "shape", ()))
        wrong = None
        if shape[: len(self._shape)] != self._local_shape:
            wrong = ValueError(
                f"u: its shape {shape} is not that of the block, "
                f"{self._local_shape}"
            )
        settle(self._plain, wrong)
        own = _core.asarray(u)[self.slices].numpy()
        own = np.ascontiguousarray(own)
        blocks = self._plain.gather((self.global_slices, own), root)
        if blocks is None:
            return None
        whole = np.empty(
            self._shape + own.shape[len(self._shape) :], own.dtype
        )
        for where, block in blocks:
            whole[where] = block
        return whole

    def _points_of(self, u: Any) -> tuple[int, ...]:
        ndim = len(self._shape)
        points = tuple(u.shape)[:ndim]
        if len(points) < ndim or any(
            abs(one - other) > 1
            for one, other in zip(points, self._local_shape, strict=True)
        ):
            raise ValueError(
                f"u: its shape {tuple(u.shape)} is not that of the block, "
                f"{self._local_shape}, nor staggered by one"
            )
        return points

    def free(self) -> None:
        """Free the halo and the communicator; collective."""
        self._halo.free()
        self._plain.Free()

    def __repr__(self) -> str:
        return (
            f"<warpmpi.Grid {self._shape} over {self._dims} ranks, "
            f"block {self._local_shape} at {self._coords}>"
        )


def _block(points: int, ranks: int, at: int) -> tuple[int, int]:
    """The first point of a rank's block, and the one behind its last."""
    least, more = divmod(points, ranks)
    begin = at * least + min(at, more)
    return begin, begin + least + (at < more)
