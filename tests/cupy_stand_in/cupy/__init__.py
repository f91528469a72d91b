# SPDX-License-Identifier: BSD-3-Clause
"""A stand-in for CuPy, as far as mpi4py's own tests and our examples use it.

Its arrays lie in memory of the simulated driver, where MPI faults as on a
GPU. They speak what CuPy's speak: attributes, the CUDA array interface with
the current stream, DLPack. What is computed is computed by NumPy on copies,
and single elements are NumPy's scalars where CuPy has arrays of none
dimensions. Nothing waits for the stream but what reads.
"""

import operator as _operator

import numpy as _np

import warpmpi as _wm

from . import cuda

__version__ = "14.0.0"


class _Memory:
    """Where an array begins."""

    def __init__(self, ptr):
        self.ptr = ptr


class ndarray:  # noqa: N801
    """An array of the simulated device that was current when it was made."""

    def __init__(self, array, dtype):
        self._array = array
        self.dtype = dtype  # our own lacks what is another name: "q" of "l"

    shape = property(lambda self: self._array.shape)
    strides = property(lambda self: self._array.strides)
    ndim = property(lambda self: self._array.ndim)
    size = property(lambda self: self._array.size)
    nbytes = property(lambda self: self._array.nbytes)
    itemsize = property(lambda self: self._array.itemsize)
    _c_contiguous = property(lambda self: self._array.is_contiguous)
    data = property(lambda self: _Memory(self._array.ptr))
    device = property(lambda self: cuda.Device(self._array.device.ordinal))
    T = property(lambda self: ndarray(self._array.T, self.dtype))

    @property
    def __cuda_array_interface__(self):
        interface = dict(self._array.__cuda_array_interface__)
        interface["stream"] = cuda.get_current_stream().ptr or 1
        return interface

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()

    def __dlpack__(self, **arguments):
        return self._array.__dlpack__(**arguments)

    def fill(self, value):
        if self.size:
            checked = _np.array(value, self.dtype)  # -1 is no unsigned value
            self._array.fill_(checked[()], blocking=False, stream=_stream())

    def get(self):
        if _stream().ptr:
            _stream().synchronize()  # graphs are launched there
        return self._array.numpy()

    def ravel(self):
        return ndarray(self._array.reshape(-1), self.dtype)

    def all(self):
        return ndarray(_wm.array(self.get().all(), "?"), _np.dtype("?"))

    def __len__(self):
        return len(self._array)

    def __iter__(self):
        return iter(self.get())

    def __getitem__(self, key):
        part = self._array[key]
        if part.ndim == 0 and key is not Ellipsis:
            return part.numpy()[()]
        return ndarray(part, self.dtype)

    def __setitem__(self, key, value):
        part = self._array[key]
        if isinstance(value, ndarray):
            value = value.get()
        value = _np.array(value, self.dtype)
        if part.size:
            value = _np.ascontiguousarray(_np.broadcast_to(value, part.shape))
            part.assign(value, stream=_stream())

    __hash__ = None

    def __bool__(self):
        return bool(self.get())

    def __float__(self):
        return float(self.get())

    def __getattr__(self, name):
        """NumPy's method of this name: `sum`, `reshape` …, on a copy."""
        if name[0] == "_" or not hasattr(_np.ndarray, name):
            raise AttributeError(name)
        return _by_numpy(
            lambda this, *a, **k: getattr(this, name)(*a, **k), self
        )


def _by_numpy(function, *bound):
    """What computes with copies of its arguments in NumPy's arrays."""

    def compute(*arguments, **options):
        values = map(asnumpy, (*bound, *arguments))
        return array(function(*values, **options))

    return compute


def _operators():
    """Those of Python for arrays, also in place and from the right."""

    def forward(function):
        return lambda self, other: _by_numpy(function)(self, other)

    def reverse(function):
        return lambda self, other: _by_numpy(function)(other, self)

    def in_place(function):
        def change(self, other):
            self[...] = _by_numpy(function)(self, other)
            return self

        return change

    for name in "add sub mul truediv pow matmul".split():
        function = getattr(_operator, name)
        setattr(ndarray, f"__{name}__", forward(function))
        setattr(ndarray, f"__r{name}__", reverse(function))
        setattr(ndarray, f"__i{name}__", in_place(function))
    for name in "eq ne lt le gt ge".split():
        setattr(ndarray, f"__{name}__", forward(getattr(_operator, name)))
    ndarray.__abs__ = lambda self: _by_numpy(abs)(self)


_operators()


def __getattr__(name):
    """NumPy's function of this name."""
    if name[0] == "_" or not callable(getattr(_np, name, None)):
        raise AttributeError(name)
    return _by_numpy(getattr(_np, name))


def _stream():
    return cuda.get_current_stream()


def _device():
    return f"cuda:{cuda.Device().id}"


def empty(shape, dtype=float):
    dtype = _np.dtype(dtype)
    if dtype.char in "gG":
        raise ValueError(f"Unsupported dtype {dtype}")
    if not isinstance(shape, tuple):
        shape = tuple(shape) if isinstance(shape, list) else (shape,)
    return ndarray(_wm.empty(shape, dtype, _device()), dtype)


def full(shape, value, dtype=None):
    made = empty(shape, dtype or _np.array(value).dtype)
    made.fill(value)
    return made


def zeros(shape, dtype=float):
    return full(shape, 0, dtype)


def ones(shape, dtype=float):
    return full(shape, 1, dtype)


def array(values, dtype=None):
    values = _np.array(asnumpy(values), dtype)
    made = empty(values.shape, dtype or values.dtype)
    made[...] = values
    return made


def asarray(values, dtype=None):
    if isinstance(values, ndarray) and dtype in (None, values.dtype):
        return values
    return array(values, dtype)


def asnumpy(values):
    return values.get() if isinstance(values, ndarray) else values
