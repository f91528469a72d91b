# SPDX-License-Identifier: BSD-3-Clause
"""mpi4py on GPU memory: ordered arrays and GPU-to-GPU messages on any MPI."""

import sys as _sys
from typing import TYPE_CHECKING as _TYPE_CHECKING


def _is_begun() -> bool:
    """Tell whether this is for `python -m warpmpi`, to find its __main__."""
    if getattr(_sys, "argv", [])[:1] != ["-m"]:
        return False
    word = _sys.orig_argv[-len(_sys.argv)]
    return word == "warpmpi" or (word[0] == "-" and word.endswith("mwarpmpi"))


# Nothing is imported to begin a program, which may want to set mpi4py.rc
# first: __main__.py imports the package once more, whole.
if not _is_begun():
    from warpmpi import _library, _workers

    _workers.keep_mpi_out()  # the next line imports mpi4py.MPI
    _library.load_core()

    from warpmpi import (  # noqa: F401
        _array_methods,
        _callbacks,
        _device_facts,
        _endings,
        _environment,
        _stream_methods,
        _watching,
    )
    from warpmpi._about import show_config
    from warpmpi._arrays import (
        array,
        empty_like,
        from_dlpack,
        from_numpy,
        full_like,
        ones,
        ones_like,
        zeros_like,
    )
    from warpmpi._comm import (
        Cartcomm,
        Comm,
        Distgraphcomm,
        Graphcomm,
        Intercomm,
        Transport,
        transport,
    )
    from warpmpi._core import (
        Array,
        CommMethods,
        CudaError,
        Device,
        Event,
        Message,
        OutOfMemoryError,
        Prequest,
        Request,
        StagingError,
        Stream,
        StreamComm,
        Win,
        __version__,
        asarray,
        empty,
        full,
        get_cuda_device_count,
        get_cuda_driver_version,
        get_device,
        is_on_device,
        reset_stats,
        set_device,
        synchronize_device,
        zeros,
    )
    from warpmpi._devices import (
        get_cuda_devices,
        is_cuda_available,
        synchronize,
    )
    from warpmpi._grid import Grid
    from warpmpi._halo import Halo, HaloExchange, HaloPlan
    from warpmpi._install import install
    from warpmpi._points import load as load_points
    from warpmpi._profile import profile
    from warpmpi._require import require
    from warpmpi._scopes import ScopedDevice
    from warpmpi._settings import check_names
    from warpmpi._shared import (
        SharedArray,
        include_dir,
        shared_empty,
        shared_full,
        shared_zeros,
    )
    from warpmpi._staging.averages import AVG
    from warpmpi._stats import stats
    from warpmpi._windows import StreamWin

    check_names()
    load_points()
    del check_names, load_points

__all__ = [
    "AVG",
    "Array",
    "array",
    "asarray",
    "empty",
    "empty_like",
    "from_dlpack",
    "from_numpy",
    "full",
    "full_like",
    "ones",
    "ones_like",
    "zeros",
    "zeros_like",
    "SharedArray",
    "include_dir",
    "shared_empty",
    "shared_full",
    "shared_zeros",
    "Cartcomm",
    "Comm",
    "CommMethods",
    "Distgraphcomm",
    "Graphcomm",
    "Grid",
    "Halo",
    "HaloExchange",
    "HaloPlan",
    "Intercomm",
    "Message",
    "Prequest",
    "Request",
    "StreamComm",
    "StreamWin",
    "Transport",
    "Win",
    "install",
    "is_on_device",
    "profile",
    "require",
    "reset_stats",
    "show_config",
    "stats",
    "transport",
    "CudaError",
    "Device",
    "Event",
    "OutOfMemoryError",
    "ScopedDevice",
    "StagingError",
    "Stream",
    "__version__",
    "get_cuda_device_count",
    "get_cuda_devices",
    "get_cuda_driver_version",
    "get_device",
    "is_cuda_available",
    "set_device",
    "synchronize",
    "synchronize_device",
]

# help() and pickle name the package, where users find these objects.
for _thing in [globals().get(_name) for _name in __all__]:
    if getattr(_thing, "__module__", "").startswith("warpmpi."):
        _thing.__module__ = "warpmpi"


if not _TYPE_CHECKING:  # type checkers would believe in every name

    def __getattr__(name: str) -> object:
        text = f"module 'warpmpi' has no attribute {name!r}"
        mpi = _sys.modules.get("mpi4py.MPI")
        if name[:1].isupper() and hasattr(mpi, name):
            text += f": it is MPI.{name}, after `from mpi4py import MPI`"
        raise AttributeError(text)


def __dir__() -> list[str]:
    return sorted(__all__)
