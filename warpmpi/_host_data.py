# SPDX-License-Identifier: BSD-3-Clause
"""Data that is no array yet, as arrays of NumPy; called by the core."""

from __future__ import annotations

from typing import Any

import numpy as np


def host_array(data: Any, dtype: Any, argument: str) -> Any:
    """numpy.asarray(data), of the type where that is not None.

    What NumPy says of the value has the argument's name before it; what a
    class of the user's says stays as it is.
    """
    is_number = isinstance(data, complex) or any(
        hasattr(type(data), name)
        for name in ("__int__", "__float__", "__index__")
    )
    nested = isinstance(data, (list, tuple)) or is_number
    try:
        if dtype is None:
            return np.asarray(data)
        # Python numbers take the wanted type at once, so that none is rounded
        # on its way; arrays only what is safe enough for NumPy to do unasked.
        if nested and not hasattr(data, "dtype"):
            return np.asarray(data, dtype)
        return np.asarray(data).astype(dtype, casting="same_kind", copy=False)
    except (TypeError, ValueError, OverflowError) as error:
        if type(error) not in (TypeError, ValueError, OverflowError):
            raise
        raise type(error)(f"{argument}: {error}") from error


def has_buffer(data: Any) -> bool:
    """Tell a buffer, also one that refuses a plain request."""
    try:
        memoryview(data)
    except TypeError:
        return False
    except (BufferError, ValueError):
        pass
    return True


def native_array(data: Any, dtype: Any, name: str) -> Any:
    """Return an array that NumPy reads and our protocols do not, or None.

    That is, elements of another byte order, NumPy's scalars and their like.
    """
    has_type = hasattr(data, "dtype")
    if not (has_type or hasattr(data, "__array__") or has_buffer(data)):
        return None
    try:
        if dtype is None:
            dtype = data.dtype.newbyteorder("=")
        return host_array(data, dtype, name)
    except Exception:
        return None
