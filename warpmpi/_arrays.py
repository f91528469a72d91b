# SPDX-License-Identifier: BSD-3-Clause
"""New arrays like others."""

from __future__ import annotations

from typing import Any

from warpmpi import _core
from warpmpi._core import Array
from warpmpi._typing import ArrayLike, DeviceLike, DTypeLike


def _place(
    a: ArrayLike, dtype: Any, device: Any, pinned: bool | None
) -> tuple[tuple[int, ...], dict[str, Any]]:
    like = _core.asarray(a)
    if device is None and not pinned:
        device = like.device
    if pinned is None:
        pinned = like.pinned and device == like.device
    options = {
        "dtype": like.dtype if dtype is None else dtype,
        "device": device,
        "pinned": pinned,
    }
    return like.shape, options


def empty_like(
    a: ArrayLike,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
    pinned: bool | None = None,
) -> Array:
    """A new contiguous array of the shape of `a`, its elements undefined.

    `a` is any array object. The element type, the device and whether host
    memory is pinned are taken from `a` unless given. Raises what empty() and
    asarray() raise.
    """
    shape, options = _place(a, dtype, device, pinned)
    return _core.empty(shape, **options)


def zeros_like(
    a: ArrayLike,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
    pinned: bool | None = None,
    blocking: bool = True,
) -> Array:
    """A new array of zeros of the shape of `a`; see empty_like()."""
    shape, options = _place(a, dtype, device, pinned)
    return _core.zeros(shape, blocking=blocking, **options)


def ones_like(
    a: ArrayLike,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
    pinned: bool | None = None,
    blocking: bool = True,
) -> Array:
    """A new array of ones of the shape of `a`; see empty_like()."""
    shape, options = _place(a, dtype, device, pinned)
    return _core.ones(shape, blocking=blocking, **options)


def full_like(
    a: ArrayLike,
    fill_value: complex,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
    pinned: bool | None = None,
    blocking: bool = True,
) -> Array:
    """A new array of the shape of `a`, filled with a value.

    The value is converted to the element type; see empty_like().
    """
    shape, options = _place(a, dtype, device, pinned)
    return _core.full(shape, fill_value, blocking=blocking, **options)
