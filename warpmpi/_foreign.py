# SPDX-License-Identifier: BSD-3-Clause
"""Devices and streams of other libraries, by what they have; for the core."""

from __future__ import annotations

from typing import Any, NoReturn

from . import _core

_DEFAULTS = (0, 1, 2)  # streams that any device has


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def device_of(thing: Any) -> Any:
    """The name or ordinal of a device of Warp's, Torch's or CuPy's.

    TypeError where it is none.
    """
    for name in ("alias", "type", "id"):
        try:
            value = getattr(thing, name)
        except Exception:
            continue
        if name == "type" and isinstance(value, str):
            value = str(thing)  # torch.device gives "cuda:1" or "cpu"
        if isinstance(value, (str, int)):
            return value
        break
    raise TypeError(
        "a device is a wm.Device, a name such as 'cuda:0', an ordinal or "
        f"None, not {type(thing).__name__}"
    )


def unknown_device(given: Any, problem: str) -> NoReturn:
    """Raise ValueError, which tells of every valid device."""
    count = _core.get_cuda_device_count()
    valid = f"'cpu' ({problem})"
    if count > 0:
        names = ["cpu", "cuda", *(f"cuda:{i}" for i in range(count))]
        valid = ", ".join(map(repr, names))
    raise ValueError(f"unknown device {given!r}: valid devices are {valid}")


def _number(value: Any) -> int | None:
    """A handle: an int, or what has one as its value (ctypes.c_void_p)."""
    if not isinstance(value, int):
        if not hasattr(value, "value"):
            return None
        value = value.value
        if value is None:
            return 0  # ctypes' null pointer
    return value if _is_int(value) else None


def _handle(stream: Any) -> int | None:
    if isinstance(stream, int):
        return _number(stream)
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:  # older versions of it have an attribute
        pair = protocol() if callable(protocol) else protocol
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise TypeError("__cuda_stream__ did not return (version, handle)")
        if pair[0] != 0:
            raise ValueError(
                f"__cuda_stream__ returned version {pair[0]!r} of its "
                "protocol, and only version 0 is supported"
            )
        handle = _number(pair[1])
        if handle is None:
            raise TypeError("__cuda_stream__ returned no integer handle")
        return handle
    # Torch's and Warp's name, CuPy's, Numba's.
    for name in ("cuda_stream", "ptr", "handle"):
        if hasattr(stream, name):
            value = getattr(stream, name)
            # None: Warp's default stream
            handle = 0 if value is None else _number(value)
            if handle is not None:
                return handle
    return None


def _device_told(stream: Any) -> int:
    """The device that a default stream's object tells, or -1."""
    for path in (("device_id",), ("device_index",), ("device", "ordinal")):
        value = stream
        try:
            for name in path:
                value = getattr(value, name)
        except Exception:
            continue
        known = _is_int(value) and 0 <= value < _core.get_cuda_device_count()
        return value if known else -1
    return -1


def stream_of(stream: Any, argument: str) -> tuple[int, int]:
    """(handle, device or -1) of a stream; TypeError where it is none."""
    handle = _handle(stream)
    if handle is None:
        raise TypeError(
            f"{argument}: a stream is a wm.Stream, an object with "
            "__cuda_stream__, a stream of CuPy, Torch, Warp or Numba, or a "
            f"handle as an int, not {type(stream).__name__}"
        )
    return handle, _device_told(stream) if handle in _DEFAULTS else -1


def refuse_struct(array: Any, argument: str) -> None:
    """TypeError with the cure where the elements are a structure of Warp's."""
    for name in ("__cuda_array_interface__", "__array_interface__"):
        try:
            text = getattr(array, name)["typestr"]
            size = int(text[2:]) if text[:2] == "|V" else 0
        except Exception:
            continue
        if size:
            raise TypeError(
                f"{argument}: the elements are Warp structs of {size} bytes, "
                "which MPI has no type for: give "
                f"array.view(wp.types.vector({size}, wp.uint8)), or "
                "[array.numpy(), MPI.BYTE] on the host"
            )
