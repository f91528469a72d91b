# SPDX-License-Identifier: BSD-3-Clause
"""Types of arguments that name a device, a stream or an event."""

from typing import Any, Protocol, TypeAlias

from warpmpi._core import Device, Stream

__all__ = ["ArrayLike", "DTypeLike", "DeviceLike", "StreamLike"]


class _CudaStream(Protocol):
    """The CUDA stream protocol."""

    def __cuda_stream__(self) -> tuple[int, int]: ...


# A wm.Device, "cpu", "cuda", "cuda:1", an ordinal, a device of Warp, Torch or
# CuPy, or None for the current one.
DeviceLike: TypeAlias = Device | str | int | Any | None

# A wm.Stream, an object with __cuda_stream__, a stream of CuPy, Torch, Warp or
# Numba, or a handle.
StreamLike: TypeAlias = Stream | _CudaStream | int | Any

# A wm.Array, or whatever has __cuda_array_interface__, __dlpack__ or the
# buffer protocol: arrays of CuPy, Warp, PyTorch, JAX, Numba, NumPy.
ArrayLike: TypeAlias = Any

# A NumPy dtype, what numpy.dtype() takes, a name such as "bfloat16", or a
# scalar type of Warp, PyTorch or JAX.
DTypeLike: TypeAlias = Any
