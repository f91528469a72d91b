# SPDX-License-Identifier: BSD-3-Clause
"""Shared arrays: GPU memory of each rank that the kernels of all ranks use."""

from __future__ import annotations

import functools
import importlib
import math
import operator
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from . import _core
from ._typing import DeviceLike, DTypeLike, StreamLike

if TYPE_CHECKING:
    from mpi4py import MPI

SLOTS = 64
_MOST = 2**58  # elements, of 16 bytes at most


def _of_cupy(array: _core.Array, device: int) -> Any:
    import cupy as cp

    if device < 0:
        return array.numpy()
    # With the GPU that reaches the memory, which may be another's.
    memory = cp.cuda.UnownedMemory(
        array.ptr, max(array.nbytes, 1), array, device
    )
    pointer = cp.cuda.MemoryPointer(memory, 0)
    return cp.ndarray(array.shape, array.dtype, pointer)


def _of_torch(array: _core.Array, device: int) -> Any:
    import torch

    return torch.from_dlpack(array)


def _of_warp(array: _core.Array, device: int) -> Any:
    import warp as wp

    made = wp.array(
        ptr=array.ptr,
        dtype=wp.dtype_from_numpy(array.dtype),
        shape=array.shape,
        device="cpu" if device < 0 else f"cuda:{device}",
        copy=False,
    )
    made._shared = array  # it does not own the memory
    return made


def _of_numpy(array: _core.Array, device: int) -> Any:
    return array.numpy()


# Current streams, as handles: to read a foreign object takes longer. None is
# the legacy default stream, for which the libraries have 0.


def _stream_of_cupy() -> Callable[[int], StreamLike | None]:
    import cupy as cp

    def current(device: int) -> StreamLike | None:
        handle: int = cp.cuda.get_current_stream(device).ptr
        if handle in (1, 2):  # the legacy, or per-thread, default stream
            return _core.Stream(device, cuda_stream=handle)
        return handle or None

    return current


def _stream_of_torch() -> Callable[[int], StreamLike | None]:
    import torch

    current = torch.cuda.current_stream
    return lambda device: current(device).cuda_stream or None


def _stream_of_warp() -> Callable[[int], StreamLike | None]:
    import warp as wp

    def current(device: int) -> StreamLike | None:
        return wp.get_stream(f"cuda:{device}").cuda_stream or None

    return current


# By the library's name: its array of one of ours, and its current stream.
_LIBRARIES: dict[str, tuple[Callable[..., Any], Callable[..., Any] | None]]
_LIBRARIES = {
    "cupy": (_of_cupy, _stream_of_cupy),
    "numpy": (_of_numpy, None),
    "torch": (_of_torch, _stream_of_torch),
    "warp": (_of_warp, _stream_of_warp),
}


def _library(like: Any) -> str | None:
    """The name of a library, of its module, or of an array of it."""
    if like is None:
        return None
    name = like if isinstance(like, str) else getattr(like, "__name__", None)
    if not isinstance(name, str):
        name = type(like).__module__
    name = name.split(".")[0]
    if name not in _LIBRARIES:
        known = ", ".join(map(repr, _LIBRARIES))
        raise ValueError(f"like: {like!r} is none of {known}")
    return name


class SharedArray:
    """An array of this rank that the kernels of all ranks of a host use.

    Made by wm.shared_empty, shared_zeros and shared_full. It has what a
    wm.Array has: shape, dtype, device, ptr, __cuda_array_interface__,
    __dlpack__, indexing, numpy(), to(); CuPy, Warp, PyTorch, Numba and JAX
    take it, and so do messages.

    The array keeps its memory, and the peers', as long as it or any view of
    it is in use on any rank. Dropping it waits for nobody. It cannot be made
    by hand, nor pickled: both raise TypeError.
    """

    # So no attribute of the user's hides one of the array's.
    __slots__ = (
        "__weakref__",
        "_arrays",
        "_comm",
        "_library",
        "_memory",
        "_own",
        "_stream",
    )
    _memory: Any
    _comm: Any
    _library: str | None
    _own: _core.Array
    _arrays: dict[int, Any]  # by rank: what peer() has given
    _stream: Callable[[], Any] | None

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(
            "wm.SharedArray: use wm.shared_empty(shape, dtype, comm=comm), "
            "wm.shared_zeros or wm.shared_full"
        )

    @classmethod
    def _of(cls, memory: Any, comm: Any, library: str | None) -> SharedArray:
        self = object.__new__(cls)
        self._memory, self._comm, self._library = memory, comm, library
        self._own = memory._view(memory._rank, False)
        self._arrays = {}
        self._stream = None
        if library is not None and memory._device >= 0:
            current = _LIBRARIES[library][1]
            if current is not None:
                self._stream = functools.partial(current(), memory._device)
        return self

    # What a wm.Array has.

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") and name not in _FORWARDED:
            raise AttributeError(
                f"'SharedArray' object has no attribute {name!r}"
            )
        return getattr(self._own, name)

    @property
    def __cuda_array_interface__(self) -> Any:
        """CUDA array interface, version 3; AttributeError on the CPU."""
        own = self._own
        if own.device.is_cuda or self._memory._device < 0:
            return own.__cuda_array_interface__
        return {  # page-locked memory of the host, which the GPU reaches
            "shape": own.shape,
            "typestr": own.dtype.str,
            "data": (own.ptr, False),
            "version": 3,
        }

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self._own.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> Any:
        return self._own.__dlpack_device__()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self._own.__array__(dtype, copy)

    def __len__(self) -> int:
        return len(self._own)

    def __getitem__(self, key: Any) -> Any:
        return self._own[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._own[key] = value

    def __repr__(self) -> str:
        name = _core._dtype_name(self._own)
        return (
            f"<warpmpi.SharedArray of rank {self._memory._rank} of "
            f"{self._memory._size}, shape={self._own.shape}, dtype={name}, "
            f"device={self._own.device}>"
        )

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a SharedArray cannot be pickled: pickle its values, a.numpy()"
        )

    # What it has besides.

    @property
    def comm(self) -> MPI.Comm:
        """The communicator whose ranks share it."""
        return self._comm  # type: ignore[no-any-return]

    @property
    def array(self) -> Any:
        """The array of this rank: of the library `like`, else a wm.Array."""
        return self._peer(self._memory._rank)

    def _peer(self, rank: int) -> Any:
        found = self._arrays.get(rank)
        if found is None:
            found = self._own
            if rank != self._memory._rank:
                found = self._memory._view(rank, False)
            if self._library is not None:
                found = _LIBRARIES[self._library][0](
                    found, self._memory._device
                )
            self._arrays[rank] = found
        return found

    def peer(self, rank: int, readonly: bool = False) -> Any:
        """The array of a rank, in memory that this rank's kernels reach.

        Of the library `like` of shared_empty, else a wm.Array; with
        readonly=True always a wm.Array, which is read-only. It has the shape
        and dtype that the rank gave. Loads and stores go to the other GPU
        directly: order them by barrier(), or by signal() and wait(). Raises
        ValueError for a rank that is not there.
        """
        if readonly:
            return self._memory._view(rank, True)
        if type(rank) is not int:  # 1.0 is found where 1 is
            self._memory._view(rank, True)
            rank = operator.index(rank)
        return self._peer(rank)

    @property
    def pointers(self) -> _core.Array:
        """The addresses of all ranks' arrays, by rank, for kernels.

        A read-only int64 array of the communicator's size, in the memory of
        this rank's GPU.
        """
        return self._memory._table()  # type: ignore[no-any-return]

    @property
    def handle(self) -> int:
        """What the device functions of warpmpi/shared.cuh are given.

        The address of a structure in memory that this rank's GPU reaches.
        """
        return self._memory._handle  # type: ignore[no-any-return]

    @property
    def slots(self) -> int:
        """The number of slots that each rank has for signals."""
        return self._memory._slots  # type: ignore[no-any-return]

    def signal(
        self,
        rank: int,
        slot: int,
        value: int = 1,
        stream: StreamLike | None = None,
    ) -> None:
        """Add `value` to a slot of a rank, behind earlier work on the stream.

        Who has waited for the signal sees what that work, and all work that
        it waited for, has written, also into other ranks' arrays. stream: the
        current one of the library `like` unless given, else the legacy
        default stream; none on the CPU. Returns at once. It can be captured.

        Raises ValueError for a rank, slot or value (1 to 2**48 - 1) that
        is not there, and for a stream of another GPU, TypeError for what is
        no stream, MPI.Exception once a rank has died, RuntimeError once the
        communicator was freed, wm.CudaError.
        """
        if stream is None and self._stream is not None:
            stream = self._stream()
        self._memory._signal(rank, slot, value, stream)

    def wait(
        self,
        slot: int,
        value: int = 1,
        stream: StreamLike | None = None,
        *,
        consume: bool = True,
    ) -> None:
        """Hold the stream until a slot of this rank has `value`, and take it.

        The value is subtracted, so that each round, and each replay of a
        graph, waits for signals of its own. consume=False leaves it there.
        Give each rank that signals a slot of its own, unless any order will
        do. On the CPU the host waits. See signal() for the rest.
        """
        if stream is None and self._stream is not None:
            stream = self._stream()
        self._memory._wait(slot, value, consume, stream)

    def barrier(self, stream: StreamLike | None = None) -> None:
        """Hold the stream until the streams of all ranks have come here.

        Work behind it sees what all ranks have written before it. All ranks
        call it equally often. See signal() for the rest.
        """
        if stream is None and self._stream is not None:
            stream = self._stream()
        self._memory._barrier(stream)


# Attributes with such names that a wm.Array has; read by the type otherwise.
_FORWARDED = ("__array_interface__",)


def _refuse_slots(slots: Any) -> int:
    if isinstance(slots, bool) or not isinstance(slots, int):
        raise TypeError(f"slots: an int is needed, not {type(slots).__name__}")
    if not 1 <= slots <= 65536:
        raise ValueError(f"slots: {slots} is not one of 1 to 65536")
    return slots


def _check(
    shape: Any, dtype: Any, device: Any, like: Any, slots: Any, fill: Any
) -> tuple[Any, ...]:
    """Read the arguments, of which each may be wrong on one rank alone."""
    extents = _core._extents(shape, "shape")
    if min(extents, default=0) < 0:
        raise ValueError(f"shape: {tuple(extents)} has a negative extent")
    place = _core.get_device(device)
    if math.prod(extents) > _MOST:
        raise ValueError(f"shape: {tuple(extents)} is too large")
    library = _library(like)
    if library is not None:
        importlib.import_module(library)
    if library == "numpy" and place.is_cuda:
        raise ValueError(
            'like: NumPy has no arrays on a GPU: give device="cpu", or '
            "another library"
        )
    # Refuses what no array can be, and a value that is none of the type.
    if fill is None:
        one = _core.empty(1, dtype, "cpu")
    else:
        one = _core.full(1, fill, dtype, "cpu")
    return extents, one.dtype, place, library, _refuse_slots(slots)


def _text(failure: Exception | None) -> str | None:
    """What other ranks are told."""
    return None if failure is None else f"{type(failure).__name__}: {failure}"


def _make(
    call: str,
    comm: Any,
    shape: Any,
    dtype: Any,
    device: Any,
    like: Any,
    slots: Any,
    fill: Any = None,
) -> SharedArray:
    failure: Exception | None = None
    wish: tuple[Any, ...] = (0, "uint8", "cpu", None, 1)
    try:
        wish = _check(shape, dtype, device, like, slots, fill)
    except Exception as error:
        failure = error
    extents, kind, place, library, count = wish
    memory = _core._share(
        call, comm, extents, kind, place, count, _text(failure)
    )
    if failure is not None:
        raise failure
    if fill is None:
        return SharedArray._of(memory, comm, library)
    try:
        made = SharedArray._of(memory, comm, library)
        made._own.fill_(fill)
    except Exception as error:
        memory._arrive(_text(error))
        raise
    memory._arrive(None)
    return made


def shared_empty(
    shape: int | Sequence[int],
    dtype: DTypeLike | None = "float32",
    *,
    comm: MPI.Comm,
    device: DeviceLike | None = None,
    like: Any = None,
    slots: int = SLOTS,
) -> SharedArray:
    """A new array of each rank, which the kernels of all ranks can use.

    Collective over `comm`, whose ranks are on one host. shape, dtype, device
    and like may differ by rank. dtype: float32 unless given (wm.empty has
    float64). device: wm.get_device() unless given. Where a
    rank has no GPU, or GPUs do not reach each other, all arrays are in the
    host's memory. like: "cupy", "torch", "warp", "numpy", or the module:
    `a.array` and `a.peer(rank)` are that library's arrays. slots: counters
    for signals of each rank, 1 to 65536, alike on all ranks.

    If one rank fails, all raise: ValueError or TypeError for its argument on
    that rank, and RuntimeError elsewhere; wm.OutOfMemoryError on all if one
    is out of memory; ValueError for ranks of several hosts, for an
    intercommunicator, and for slots that differ; MPI.Exception if a rank has
    died.
    """
    return _make("shared_empty", comm, shape, dtype, device, like, slots)


def shared_zeros(
    shape: int | Sequence[int],
    dtype: DTypeLike | None = "float32",
    *,
    comm: MPI.Comm,
    device: DeviceLike | None = None,
    like: Any = None,
    slots: int = SLOTS,
) -> SharedArray:
    """A new array of zeros on each rank: see shared_empty()."""
    return _make("shared_zeros", comm, shape, dtype, device, like, slots)


def shared_full(
    shape: int | Sequence[int],
    fill_value: Any,
    dtype: DTypeLike | None = "float32",
    *,
    comm: MPI.Comm,
    device: DeviceLike | None = None,
    like: Any = None,
    slots: int = SLOTS,
) -> SharedArray:
    """A new array of one value on each rank: see shared_empty().

    The value may differ by rank. All ranks' arrays are filled when the call
    returns.
    """
    return _make(
        "shared_full", comm, shape, dtype, device, like, slots, fill_value
    )


def include_dir() -> str:
    """The folder of the headers for CUDA C and C++: warpmpi/shared.cuh."""
    return str(Path(__file__).parent / "include")
