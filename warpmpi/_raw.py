# SPDX-License-Identifier: BSD-3-Clause
"""Messages as mpi4py itself reads them; called by the core.

Elements that have no dtype here (long double, structures, text), by DLPack or
the CUDA array interface, and what mpi4py says of what nobody can send.
"""

from __future__ import annotations

from typing import Any

import numpy
from mpi4py import MPI

from . import _core

# Elements that arrays here have, too: where an interface of such was refused,
# it is: mpi4py looks less closely.
_OURS = "b1 i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8 c8 c16".split()

# DLPack's codes, as letters of array interfaces.
_KINDS = {0: "i", 1: "u", 2: "f", 5: "c", 6: "b"}


def items(value: Any, name: str) -> list[Any]:
    """Give the items of a sequence, which may be bytes in GPU memory."""
    if not isinstance(value, (list, tuple)):
        refuse_bytes(value, name)
    return list(value)


def has_bytes(value: Any) -> bool:
    """Return True if the host reads an object by the buffer protocol."""
    try:
        memoryview(value)
    except Exception:
        return False
    return True


def memory_of(value: Any) -> Any:
    """Return the memory of an array that says where it is; others as given."""
    names = "__cuda_array_interface__", "__dlpack__"
    known = isinstance(value, (numpy.ndarray, MPI.buffer))
    if known or not any(hasattr(type(value), name) for name in names):
        return value
    return MPI.buffer.frombuffer(value)


def refuse_bytes(value: Any, name: str) -> None:
    """Raise TypeError for GPU memory that the host would read."""
    if has_bytes(value) and _core.is_on_device(value):
        raise TypeError(
            f"{name}: the numbers lie in GPU memory, which the host cannot "
            "read: give a list, or a NumPy array"
        )


def _type_of(code: str | None) -> MPI.Datatype | None:
    try:
        return MPI.Datatype.fromcode(code) if code else None
    except Exception:
        return None


def _type_of_interface(code: str | None) -> MPI.Datatype | None:
    """Return the type of mpi4py's that NumPy's elements have as well.

    A short has another type than an integer of 16 bits.
    """
    if code is None:
        return None
    try:
        return _type_of(numpy.empty(0, code).data.format)
    except (TypeError, ValueError):
        return _type_of(code)


def _dlpack_code(array: Any) -> str | None:
    try:
        capsule = array.__dlpack__()
    except Exception:
        # An exporter of GPU memory may want to hear that there is no stream.
        try:
            capsule = array.__dlpack__(stream=-1)
        except Exception:
            return None
    number, bits, lanes = _core._dlpack_elements(capsule)
    kind = _KINDS.get(number)
    # 256 bits do not fit the field: two long doubles tell of a complex one.
    if kind == "f" and lanes == 2:
        return f"c{2 * bits // 8}"
    return f"{kind}{bits // 8}" if kind and lanes == 1 else None


def _interface_code(array: Any) -> str | None:
    """None in another byte order, which mpi4py does not take either."""
    try:
        text = array.__cuda_array_interface__["typestr"]
        return text[1:] if text[0] in "<|" else None
    except Exception:
        return None


def read(
    array: Any, typed: bool, writable: bool, known: bool = False
) -> tuple[MPI.buffer, MPI.Datatype | None]:
    """(mpi4py's buffer, datatype or None) of an array.

    typed: the datatype is given. known: the elements may be ours. Raises
    where mpi4py does not take it.
    """
    buffer = MPI.buffer.frombuffer(array, not writable)
    code = None
    if not hasattr(array, "__dlpack__"):
        code = _interface_code(array)
        if (code in _OURS and not known) or (code is None and not typed):
            raise BufferError("not understood")
    elif not typed:
        code = _dlpack_code(array)
    return buffer, None if typed else _type_of_interface(code)


def is_bytes(array: Any) -> bool:
    """Return True if mpi4py, given no datatype, takes elements for bytes."""
    try:
        if memoryview(array).contiguous:
            return False
    except TypeError:
        pass  # no buffer protocol
    except Exception:
        return False  # of dates, which mpi4py refuses as well
    try:
        MPI.buffer.frombuffer(array, True)
    except Exception:
        return False  # nor does it take the array
    dlpack = hasattr(array, "__dlpack__")
    code = _dlpack_code(array) if dlpack else _interface_code(array)
    return _type_of(code) is None


def _refusal_of_elements(array: Any) -> type | None:
    """The class of what mpi4py raises for them; None where it takes them."""
    try:
        code = memoryview(array).format or "B"
    except TypeError:
        shown = hasattr(array, "__cuda_array_interface__")
        return BufferError if shown and not _interface_code(array) else None
    except Exception:
        return None
    if code[0] in ">!":
        return BufferError
    known = _type_of(code[1:] if code[0] in "@<" else code)
    return KeyError if known is None else None


def class_of_refusal(
    error: BaseException, array: Any, writable: bool
) -> type | None:
    """Return the class that mpi4py raises for a refused array; None: ours.

    Programs that catch mpi4py's errors catch ours.
    """
    kind: type | None = None
    try:
        MPI.buffer.frombuffer(array, not writable)
    except Exception as refusal:
        builtin = type(refusal).__module__ == "builtins"  # not a library's
        # A number in a typestring that C cannot hold is no overflow here.
        if builtin and not isinstance(refusal, OverflowError):
            kind = type(refusal)
    if kind is None and isinstance(error, TypeError):
        kind = _refusal_of_elements(array)
    return None if kind is None or isinstance(error, kind) else kind
