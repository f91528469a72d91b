# SPDX-License-Identifier: BSD-3-Clause
"""New arrays: of data, like others, and from other libraries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from warpmpi import _core
from warpmpi._core import Array
from warpmpi._typing import ArrayLike, DeviceLike, DTypeLike


def ones(
    shape: int | Sequence[int],
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
    pinned: bool = False,
    blocking: bool = True,
) -> Array:
    """A new array of ones.

    shape: an int or a tuple of ints. dtype: float64 unless given. device:
    wm.get_device() unless given. pinned=True: page-locked host memory,
    plain without a GPU. blocking=False: the array may not be complete when
    the call returns; warpmpi orders later operations on it after the call.
    Raises ValueError for a bad shape or device, TypeError for a bad dtype,
    wm.OutOfMemoryError.
    """
    dtype = "float64" if dtype is None else dtype
    return _core.full(shape, 1, dtype, device, pinned, blocking)


def array(
    data: Any,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
    pinned: bool = False,
    blocking: bool = True,
) -> Array:
    """A new contiguous array with a copy of the data.

    data: nested lists and scalars, or any array object, on any device.
    dtype: that of the data unless given; only host data is converted. device:
    wm.get_device() unless given. pinned=True: page-locked host memory,
    plain without a GPU. blocking=False: the array may not be complete when
    the call returns; warpmpi orders later operations on it after the call.
    Raises ValueError for a bad shape or device, TypeError for a bad dtype,
    wm.OutOfMemoryError.
    """
    return _core._copied(data, dtype, device, pinned, blocking, "data")


def from_numpy(
    a: ArrayLike,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
    pinned: bool = False,
    blocking: bool = True,
) -> Array:
    """A new contiguous array with a copy of a NumPy array.

    See asarray() for a view of one. dtype: that of `a` unless given. device:
    wm.get_device() unless given. pinned=True: page-locked host memory,
    plain without a GPU. blocking=False: the array may not be complete when
    the call returns; warpmpi orders later operations on it after the call.
    Raises ValueError for a bad device, TypeError for a bad dtype,
    wm.OutOfMemoryError.
    """
    return _core._copied(a, dtype, device, pinned, blocking, "a")


def from_dlpack(
    x: Any,
    /,
    *,
    device: DeviceLike | None = None,
    copy: bool | None = None,
) -> Array:
    """A view of an object with __dlpack__, by the array API standard.

    Returns a copy if copy=True, or for another device. If the object only
    exports copies, returns a read-only array of such a copy, or raises
    BufferError for copy=False. Raises TypeError for an object without
    __dlpack__, BufferError if the object refuses, ValueError for copy=False
    and another device.
    """
    view = _core._view_of_dlpack(x, copy is False)
    place = view.device if device is None else _core.get_device(device)
    if place is view.device and copy is not True:
        return view
    if copy is False:
        raise ValueError(
            "copy: an array on another device needs a copy: give copy=True "
            "or None"
        )
    return _core._copied(view, None, place, False, True, "x")


def _converted(
    obj: Any, view: Array, dtype: Any, device: DeviceLike, copy: bool | None
) -> Array:
    """Give asarray(obj, …), whose view is there already."""
    name = _core._dtype_name
    other = dtype is not None and name(dtype) != name(view)
    place = view.device if device is None else _core.get_device(device)
    other = other or place is not view.device
    if not other and not copy:
        return _core.asarray(obj)
    if copy is not None and not copy:
        raise ValueError(
            "copy: another dtype or device needs a copy: give copy=True or "
            "None"
        )
    data = view if dtype is None else obj
    return _core._copied(data, dtype, place, False, True, "obj")


def _unpickled(data: Any, device: str, pinned: bool) -> Array:
    """The array that was pickled, on the device of that name."""
    place = _core.get_device(device)
    if not _core._device_forked():
        return _core._copied(data, None, place, pinned, True, "data")
    if place.is_cpu:  # page-locked is of no use here
        return _core._copied(data, None, place, False, True, "data")
    # A forked child has no GPU memory of its parent's: a look into the array
    # raises and says why. An exception here would end a worker of
    # multiprocessing's, and its parent would wait without an error.
    return _core._without_memory(data.shape, data.dtype, place)


def _like(
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
    shape, options = _like(a, dtype, device, pinned)
    return _core.empty(shape, **options)


def zeros_like(
    a: ArrayLike,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
    pinned: bool | None = None,
    blocking: bool = True,
) -> Array:
    """A new array of zeros of the shape of `a`; see empty_like()."""
    shape, options = _like(a, dtype, device, pinned)
    return _core.zeros(shape, blocking=blocking, **options)


def ones_like(
    a: ArrayLike,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
    pinned: bool | None = None,
    blocking: bool = True,
) -> Array:
    """A new array of ones of the shape of `a`; see empty_like()."""
    shape, options = _like(a, dtype, device, pinned)
    return ones(shape, blocking=blocking, **options)


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
    shape, options = _like(a, dtype, device, pinned)
    return _core.full(shape, fill_value, blocking=blocking, **options)
