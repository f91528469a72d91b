# SPDX-License-Identifier: BSD-3-Clause
"""GPU arrays inside pickled objects, library by library.

Each library has two functions. One looks at an array, and describes its memory
and its maker if it is in GPU memory. The other is the maker, which allocates
the array at the receiver. The sender imports no library that the program has
not imported.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from .. import _core


class Embedded(NamedTuple):
    """The memory that is sent for an array, and the maker of its copy."""

    buffer: Any  # contiguous, row by row
    make: Callable[..., tuple[Any, Callable[[], Any]]]
    arguments: tuple[Any, ...]


# The pickle itself has a call and its arguments, as __reduce__ gives.
Whole: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...]]
Look: TypeAlias = Callable[[Any], Embedded | Whole | None]

# A maker returns what is received into, and a call that gives the array once
# the data is there. It allocates on the library's current device.
Made = tuple[Any, Callable[[], Any]]


def _array(array: Any) -> Embedded | None:
    if not array.device.is_cuda:
        return None
    buffer = array if array.is_contiguous else array.copy()
    return Embedded(buffer, make_array, (array.shape, array.dtype))


def make_array(shape: tuple[int, ...], dtype: Any) -> Made:
    """Make a wm.Array on the current device."""
    array = _core.empty(shape, dtype)
    return array, lambda: array


def _cupy(array: Any) -> Embedded | None:
    buffer = array
    if not array.flags.c_contiguous:
        buffer = _core.asarray(array).copy()
    return Embedded(buffer, make_cupy, (array.shape, array.dtype))


def make_cupy(shape: tuple[int, ...], dtype: Any) -> Made:
    """Make a cupy.ndarray."""
    array = importlib.import_module("cupy").empty(shape, dtype)
    return array, lambda: array


def _numba(array: Any) -> Embedded | None:
    buffer = array
    if not array.is_c_contiguous():
        buffer = _core.asarray(array).copy()
    return Embedded(buffer, make_numba, (array.shape, array.dtype))


def make_numba(shape: tuple[int, ...], dtype: Any) -> Made:
    """Make a device array of Numba's."""
    array = importlib.import_module("numba.cuda").device_array(shape, dtype)
    return array, lambda: array


def _numba_of_host(array: Any) -> None:
    """Wait for the work on mapped or managed memory, which NumPy pickles."""
    _core._settle(array)


def _torch(tensor: Any) -> Embedded | None:
    torch = sys.modules["torch"]
    plain = (
        tensor.is_cuda
        and tensor.layout is torch.strided
        and not tensor.is_quantized
        and not tensor.__dict__
    )
    if not plain:
        return None
    dense = tensor.detach().resolve_conj().resolve_neg().contiguous()
    # Bytes stand for any element type.
    buffer = dense.reshape(-1).view(torch.uint8)
    arguments = (tuple(tensor.shape), tensor.dtype, tensor.requires_grad)
    return Embedded(buffer, make_torch, arguments)


def make_torch(shape: tuple[int, ...], dtype: Any, gradient: bool) -> Made:
    """Make a torch.Tensor on Torch's current GPU."""
    torch = importlib.import_module("torch")
    tensor = torch.empty(shape, dtype=dtype, device="cuda")
    buffer = tensor.reshape(-1).view(torch.uint8)
    return buffer, lambda: tensor.requires_grad_(gradient)


class _Bytes:
    """The memory of a contiguous array of Warp's, as bytes."""

    def __init__(self, array: Any) -> None:
        self.array = array  # kept
        size = array.shape[0] * array.strides[0]
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (array.ptr or 0, False),
            "version": 3,
            "stream": int(array.device.stream.cuda_stream or 1),
        }


def _warp(array: Any) -> Embedded | Whole:
    if not array.device.is_cuda:  # Warp itself cannot pickle it
        described = _describe_warp_type(array.dtype)
        return remake_warp, (array.numpy(), described, array.requires_grad)
    dense = array if array.is_contiguous else array.contiguous()
    arguments = (
        array.shape,
        _describe_warp_type(array.dtype),
        array.requires_grad,
    )
    return Embedded(_Bytes(dense), make_warp, arguments)


def _describe_warp_type(dtype: Any) -> Any:
    """Describe an element type, as Warp's own types cannot be pickled."""
    if not isinstance(dtype, type):  # a struct, by its name
        owner = getattr(dtype, "cls", dtype)
        name = (owner.__module__, owner.__qualname__)
        if _find(*name) is not dtype:
            raise TypeError(
                f"warp.array of the struct {name[1]}: the module {name[0]} "
                "has no struct of this name; define the struct at the top "
                "level of a module"
            )
        return ("struct", *name)
    kind = getattr(dtype, "_wp_generic_type_str_", None)
    if "<locals>" in dtype.__qualname__ and kind in _WARP_KINDS:
        known: Any = dtype
        return (kind, known._shape_, known._wp_scalar_type_)
    return dtype


_WARP_KINDS: dict[str, Callable[..., Any]] = {
    "vec_t": lambda types, shape, scalar: types.vector(shape[0], scalar),
    "mat_t": lambda types, shape, scalar: types.matrix(shape, scalar),
    "quat_t": lambda types, _, scalar: types.quaternion(scalar),
    "transform_t": lambda types, _, scalar: types.transformation(scalar),
}


def _find(module: str, name: str) -> Any:
    found: Any = importlib.import_module(module)
    for each in name.split("."):
        found = getattr(found, each, None)
    return found


def _warp_type(described: Any) -> Any:
    warp = importlib.import_module("warp")
    if not isinstance(described, tuple):
        return described
    kind, *rest = described
    if kind == "struct":
        return _find(*rest)
    return _WARP_KINDS[kind](warp.types, *rest)


def remake_warp(values: Any, dtype: Any, gradient: bool) -> Any:
    """Make a warp.array in host memory, with these values."""
    warp = importlib.import_module("warp")
    return warp.array(
        values,
        dtype=_warp_type(dtype),
        device="cpu",
        requires_grad=gradient,
    )


def make_warp(shape: tuple[int, ...], dtype: Any, gradient: bool) -> Made:
    """Make a warp.array on Warp's current device, which may be the CPU."""
    warp = importlib.import_module("warp")
    dtype = _warp_type(dtype)
    array = warp.empty(shape, dtype=dtype, requires_grad=gradient)
    if array.device.is_cuda:
        return _Bytes(array), lambda: array
    return array.numpy().reshape(-1).view("u1"), lambda: array


def _jax(array: Any) -> Embedded | None:
    devices = array.devices() if array.is_fully_addressable else ()
    if len(devices) != 1 or next(iter(devices)).platform not in (
        "gpu",
        "cuda",
    ):
        return None
    try:
        _core.empty((), array.dtype, "cpu")
    except TypeError:  # no element type of ours
        return None
    return Embedded(array, make_jax, (array.shape, array.dtype))


def make_jax(shape: tuple[int, ...], dtype: Any) -> Made:
    """Make a jax.Array on JAX's default GPU."""
    jax = importlib.import_module("jax")
    device = jax.config.jax_default_device
    if getattr(device, "platform", None) not in ("gpu", "cuda"):
        device = jax.local_devices(backend="gpu")[0]
    number = device.local_hardware_id
    array = _core.empty(shape, dtype, f"cuda:{number or 0}")
    return array, lambda: jax.dlpack.from_dlpack(array)


def is_failure(error: Exception) -> bool:
    """Return True if CUDA failed, or memory ran out."""
    torch = getattr(sys.modules.get("torch"), "OutOfMemoryError", ())
    return isinstance(error, (_core.CudaError, MemoryError, torch))


# By the module whose type it is, once the program has imported that.
_LIBRARIES: dict[str, dict[str, Look]] = {
    "cupy": {"ndarray": _cupy},
    "torch": {"Tensor": _torch},
    "warp": {"array": _warp},
    "numba.cuda.cudadrv.devicearray": {
        "DeviceNDArray": _numba,
        "MappedNDArray": _numba_of_host,
        "ManagedNDArray": _numba_of_host,
    },
    "jax._src.array": {"ArrayImpl": _jax},
}
_known: dict[type, Look] = {_core.Array: _array}
_unseen = dict(_LIBRARIES)


def known() -> dict[type, Look]:
    """Return the functions that look at arrays, by type.

    If a function returns None, the array is pickled in the usual way.
    """
    for module in [name for name in _unseen if name in sys.modules]:
        looks = _unseen[module]
        found = [getattr(sys.modules[module], name, None) for name in looks]
        kinds = [kind for kind in found if isinstance(kind, type)]
        if len(kinds) == len(looks):  # else it is being imported
            _known.update(zip(kinds, looks.values(), strict=True))
            _unseen.pop(module, None)
    return _known
