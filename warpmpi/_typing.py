# SPDX-License-Identifier: BSD-3-Clause
"""Types of arguments: arrays, elements, devices, streams, operations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    import numpy.typing as npt
    from mpi4py import MPI
    from mpi4py.typing import Buffer

    from warpmpi._core import Device, Stream, _Average

__all__ = ["ArrayLike", "DTypeLike", "DeviceLike", "OpLike", "StreamLike"]


class _CudaStream(Protocol):
    """The CUDA stream protocol."""

    def __cuda_stream__(self) -> tuple[int, int]: ...


class _TorchStream(Protocol):
    """A stream of PyTorch or Warp."""

    @property
    def cuda_stream(self) -> int | None: ...


class _CupyStream(Protocol):
    """A stream of CuPy."""

    @property
    def ptr(self) -> int: ...


class _NumbaStream(Protocol):
    """A stream of Numba."""

    @property
    def handle(self) -> object: ...


class _WarpDevice(Protocol):
    """A device of Warp."""

    @property
    def alias(self) -> str: ...


class _TorchDevice(Protocol):
    """A device of PyTorch."""

    @property
    def type(self) -> str: ...


class _CupyDevice(Protocol):
    """A device of CuPy."""

    @property
    def id(self) -> int: ...


class _WarpArray(Protocol):
    """A host array of Warp, which has nothing else."""

    @property
    def __array_interface__(self) -> dict[str, object]: ...


class _TorchType(Protocol):
    """An element type of PyTorch."""

    @property
    def is_floating_point(self) -> bool: ...
    @property
    def itemsize(self) -> int: ...


# A wm.Device, "cpu", "cuda", "cuda:1", an ordinal, a device of Warp, Torch or
# CuPy, or None for the current one.
DeviceLike: TypeAlias = (
    "Device | str | int | _WarpDevice | _TorchDevice | _CupyDevice | None"
)

# A wm.Stream, an object with __cuda_stream__, a stream of CuPy, Torch, Warp or
# Numba, or a handle.
StreamLike: TypeAlias = (
    "Stream | int | _CudaStream | _TorchStream | _CupyStream | _NumbaStream"
)

# A wm.Array, or whatever has __cuda_array_interface__, __dlpack__,
# __array_interface__ or the buffer protocol: arrays of CuPy, Warp, PyTorch,
# JAX, Numba, NumPy.
ArrayLike: TypeAlias = "Buffer | _WarpArray"

# A NumPy dtype, what numpy.dtype() takes, a name such as "bfloat16", or a
# scalar type of Warp, PyTorch or JAX.
DTypeLike: TypeAlias = "npt.DTypeLike | _TorchType"

# An operation of MPI, or wm.AVG.
OpLike: TypeAlias = "MPI.Op | _Average"
