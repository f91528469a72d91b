# SPDX-License-Identifier: BSD-3-Clause
"""Methods of wm.Array that messages and copies do not need."""

from __future__ import annotations

import contextlib
import math
import numbers
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from . import _core
from ._arrays import _unpickled
from ._extend import extends
from ._typing import DeviceLike, StreamLike

if TYPE_CHECKING:
    import numpy as np

# Values are shown up to this many, and not of a GPU's that cannot be read: a
# forked process of multiprocessing's tells its errors with what it was given.
_SHOWN = 1000

# Types of arrays have these attributes. We ask the type, because an attribute
# of an object may cost a wait for its stream.
_PROTOCOLS = """
    __cuda_array_interface__ __dlpack__ __array_interface__ __array__
""".split()


def _has_elements(thing: object) -> bool:
    """Tell whether NumPy would compare an array with it by elements."""
    return isinstance(thing, (numbers.Number, list, tuple)) or any(
        hasattr(type(thing), name) for name in _PROTOCOLS
    )


def _on_host(array: Any) -> np.ndarray[Any, Any]:
    """Give a view of an array on the host, a copy of one on a GPU."""
    import numpy as np

    dtype = array.dtype
    host = array.to("cpu", pinned=False) if array.device.is_cuda else array
    if dtype.isbuiltin == 1:
        return np.asarray(memoryview(host))
    # The buffer protocol has no letter for the types of ml_dtypes.
    word = f"uint{8 * array.itemsize}"
    words: Any = _core._view(host, host.shape, host.strides, word)
    return np.asarray(memoryview(words)).view(dtype)


def _completed(shape: tuple[int, ...], count: int) -> list[int]:
    """Replace a -1, and check that the number of elements stays."""
    extents = list(shape)
    if -1 in shape:
        at = shape.index(-1)
        extents[at] = 1
        known = math.prod(extents)
        extents[at] = count // known if known > 0 else -1
    if min(extents, default=0) < 0 or math.prod(extents) != count:
        raise ValueError(f"shape: {shape} does not fit {count} elements")
    return extents


def _row_major(shape: Sequence[int], stride: int) -> list[int]:
    strides = []
    for extent in reversed(shape):
        strides.append(stride)
        stride *= max(extent, 1)
    return strides[::-1]


def _divided(array: _core.Array, shape: list[int]) -> list[int] | None:
    """Strides for another shape of the same memory; None where it has none.

    Groups of old dimensions that are dense among themselves are divided anew.
    """
    strides = [0] * len(shape)
    new = [i for i, extent in enumerate(shape) if extent != 1]
    pairs = zip(array.shape, array.strides, strict=True)
    old = [(extent, stride) for extent, stride in pairs if extent != 1]
    while new:
        group = [new.pop(0)]
        wanted = shape[group[0]]
        count, stride = old.pop(0)
        while wanted != count:
            if wanted < count:
                group.append(new.pop(0))
                wanted *= shape[group[-1]]
                continue
            extent, inner = old.pop(0)
            if stride != extent * inner:
                return None
            count, stride = count * extent, inner
        for i in reversed(group):
            strides[i] = stride
            stride *= shape[i]
    return strides


# Operators as they are written, with {} for the array.
_BINARY = dict(
    zip(
        "lt le gt ge add sub mul truediv floordiv mod pow matmul".split(),
        "< <= > >= + - * / // % ** @".split(),
        strict=True,
    )
)
_UNARY = {"neg": "-{}", "abs": "abs({})"}

# With any other operand, its library may compute, as NumPy does.
_REFUSED = (bool, int, float, complex, list, tuple, type(None), _core.Array)


def _refuse(array: _core.Array, form: str) -> NoReturn:
    cure = f"`{form.format('x.numpy()')}`"
    if array.device.is_cuda:
        library = form.format("cupy.asarray(x)")
        cure = f"`{library}` (Warp, PyTorch, JAX alike), or {cure} on the host"
    raise TypeError(
        f"a wm.Array does not compute: use {cure}; to reduce over the ranks "
        "use Allreduce or Reduce, which begin with a capital letter"
    )


def _unary(form: str) -> Any:
    return lambda self: _refuse(self, form)


def _binary(form: str) -> Any:
    def call(self: Any, other: object, /) -> Any:
        if type(other) in _REFUSED or form[0] == "x":
            _refuse(self, form)
        return NotImplemented

    return call


def _without_arithmetic(part: type) -> type:
    """Give a class operators that tell where to compute."""
    calls = {name: _unary(form) for name, form in _UNARY.items()}
    for name, word in _BINARY.items():
        calls[name] = _binary("{} " + word + " y")
        if word[0] not in "<>":
            calls[f"r{name}"] = _binary("y " + word + " {}")
            calls[f"i{name}"] = _binary("x[...] = {} " + word + " y")
    for name, call in calls.items():
        call.__name__ = f"__{name}__"
        setattr(part, call.__name__, call)
    return part


@extends(_core.Array)
@_without_arithmetic
class _Methods:
    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(
            "wm.Array: use wm.array(data), wm.empty(shape), wm.zeros(shape) "
            "or wm.asarray(array)"
        )

    def __repr__(self: Any) -> str:
        import numpy as np

        text = f"shape={self.shape}"
        forked = self.device.is_cuda and _core._device_forked()
        host = None
        if self.size <= _SHOWN and not forked:
            with contextlib.suppress(TypeError):  # without ml_dtypes
                host = self.numpy()
        if host is not None:
            text = np.array2string(host, separator=", ", prefix="array(")
        name = _core._dtype_name(self)
        pinned = ", pinned=True" if self.pinned else ""
        return f"array({text}, dtype={name}, device={self.device}{pinned})"

    def numpy(self: Any) -> np.ndarray[Any, Any]:
        """The array as a numpy.ndarray.

        An array on the host shares its memory with the result. An array on a
        GPU is copied, and the result is read-only: what is written into it
        would not reach the GPU (use assign(), a[...] = value, or a copy of
        the result). Waits for pending work. Raises TypeError for bfloat16
        without the package ml_dtypes.
        """
        host = _on_host(self)
        if self.device.is_cuda:
            host.flags.writeable = False
        return host

    def __eq__(self: Any, other: object) -> bool:
        """Tell whether both are the same object.

        Raises TypeError for another array, a number or a sequence, of which
        NumPy would compare the elements.
        """
        if self is not other and _has_elements(other):
            raise TypeError(
                "== and != do not compare the elements of a wm.Array: use "
                "a.numpy() == b, or `a is b` to compare the objects"
            )
        return NotImplemented

    def __hash__(self: Any) -> int:
        return object.__hash__(self)

    def item(self: Any) -> Any:
        """The only element, as a Python scalar. Waits for the GPU.

        Raises ValueError for an array of any other size than 1.
        """
        if self.size != 1:
            raise ValueError(
                "only an array of one element is a scalar, this one has "
                f"{self.size}: compute with x.numpy(), or a library on the "
                "same memory"
            )
        return self.numpy().item()

    def __bool__(self: Any) -> bool:
        return bool(self.item())

    def __int__(self: Any) -> int:
        return int(self.item())

    def __float__(self: Any) -> float:
        return float(self.item())

    def __index__(self: Any) -> int:
        if self.size != 1:  # TypeError: bytes() and its like go on
            raise TypeError("only an array of one integer is an index")
        return operator.index(self.item())

    def reshape(self: Any, *shape: int | Sequence[int]) -> _core.Array:
        """A view of the same memory in another shape.

        shape: ints, or one tuple of them; one may be -1. Elements are taken
        in row-major order.

        Raises ValueError where the number of elements differs, or where no
        view can have that shape: use .copy().reshape(...) then.
        """
        given = shape[0] if len(shape) == 1 else shape
        extents = _completed(_core._extents(given, "shape"), self.size)
        strides: list[int] | None
        if self.is_contiguous:
            strides = _row_major(extents, self.itemsize)
        else:
            strides = _divided(self, extents)
        if strides is None:
            raise ValueError(
                "reshape: no view of this strided array has the new shape: "
                "use .copy().reshape(...)"
            )
        return _core._view(self, extents, strides)

    def transpose(self: Any, *axes: int | Sequence[int] | None) -> _core.Array:
        """A view with the dimensions in the order given, or reversed.

        axes: ints, or one tuple of them. Raises ValueError unless each is
        named once.
        """
        given: Any = axes[0] if len(axes) == 1 else axes
        if given is None or not axes:
            reverse: _core.Array = self.T
            return reverse
        named = [
            axis + self.ndim if axis < 0 else axis
            for axis in _core._extents(given, "axes")
        ]
        if sorted(named) != list(range(self.ndim)):
            raise ValueError(
                f"transpose: expected each of the {self.ndim} axes once"
            )
        shape, strides = self.shape, self.strides
        return _core._view(
            self, [shape[i] for i in named], [strides[i] for i in named]
        )

    def to_device(
        self: Any, device: DeviceLike, /, *, stream: StreamLike | None = None
    ) -> _core.Array:
        """The array on another device: to(), by the array API standard."""
        there: _core.Array = self.to(device, stream=stream)
        return there

    def __array__(
        self: Any, dtype: Any = None, copy: bool | None = None
    ) -> Any:
        """The array as a numpy.ndarray, see numpy().

        copy=True gives a copy that may be written; copy=False raises
        ValueError where a copy is needed.
        """
        if copy is False and self.device.is_cuda:
            raise ValueError(
                "copy: an array on a GPU needs a copy: give copy=True or None"
            )
        host = _on_host(self) if copy else self.numpy()
        if dtype is None:
            return host.copy() if copy and self.device.is_cpu else host
        same = host.astype(dtype, copy=bool(copy))
        if copy is False and same is not host:
            raise ValueError(
                "copy: another dtype needs a copy: give copy=True or None"
            )
        return same

    def __reduce__(self: Any) -> tuple[Any, ...]:
        """Pickle with the values; made on the device of the same name."""
        return _unpickled, (self.numpy(), str(self.device), self.pinned)
