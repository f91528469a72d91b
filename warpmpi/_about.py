# SPDX-License-Identifier: BSD-3-Clause
"""show_config() and `python -m warpmpi --version`: what is there.

Nothing here needs warpmpi's core, mpi4py or a driver to be there.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any, Literal, overload

from ._library import brief

_INDENT = 15
# The kernel module's, which has the number that nvidia-smi shows.
_NVIDIA = Path("/proc/driver/nvidia/version")
Config = dict[str, Any]


def show(text: str) -> None:
    """Print a text on stdout, whose reader may have left (`| head`)."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # Python writes what is left once more as it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _mpi() -> Config:
    """Return what the MPI says of itself, without MPI_Init."""
    from ._doctor import facts

    try:
        if "mpi4py.MPI" not in sys.modules:
            import mpi4py

            mpi4py.rc.initialize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        return {"error": brief(str(error))}
    told = facts.of_mpi_library(MPI)
    return {name: told[name] for name in ("version", "abi", "library")}


def _release() -> str | None:
    """Return the driver's own version; None where it is not to be read."""
    try:
        found = re.search(r"  (\d+(\.\d+)+) ", _NVIDIA.read_text())
    except OSError:
        return None
    return found[1] if found else None


def _cuda(warpmpi: Any) -> Config:
    from ._settings import TABLE

    *version, codes = warpmpi._core._kernels_cuda()
    driver = warpmpi.get_cuda_driver_version()
    told: Config = {
        "driver": driver and "{}.{}".format(*driver),
        "driver_release": _release(),
        "driver_library": os.environ.get("WARPMPI_CUDA_DRIVER")
        or TABLE["WARPMPI_CUDA_DRIVER"].default,
        "toolkit": "{}.{}".format(*version),
        "kernels": codes.split(),
        "error": None,
    }
    if not warpmpi.is_cuda_available():
        try:
            warpmpi.get_device("cuda")
        except (ValueError, RuntimeError) as error:
            text = str(error)  # the driver's is in brackets
            told["error"] = text.partition(" (")[2][:-1] or text
    return told


def _gpus(warpmpi: Any) -> list[Config]:
    return [
        {
            "name": device.name,
            "compute_capability": "{}.{}".format(
                *warpmpi._core._device_facts(device)[4:]
            ),
            "memory": device.total_memory,
            "uuid": device.uuid,
        }
        for device in warpmpi.get_cuda_devices()
    ]


def _settings(warpmpi: Any) -> dict[str, str]:
    """Return the settings that are set to something else than the default."""
    if warpmpi is None:  # then nobody knows which there are
        names = [name for name in os.environ if name.startswith("WARPMPI_")]
        return {name: os.environ[name] for name in sorted(names)}
    return {
        name: value
        for name, row in warpmpi._settings.TABLE.items()
        if (value := os.environ.get(name)) and value != row.default
    }


def _config(warpmpi: Any) -> Config:
    """Return what there is; warpmpi is None where it cannot be imported."""
    from ._doctor import facts

    told = facts.of_installation()
    config: Config = {
        "warpmpi": {
            "version": told["warpmpi"],
            "folder": str(Path(__file__).parent),
            "abis": facts.of_variants(),
        },
        "Python": {"version": told["python"], "path": told["executable"]},
        "NumPy": told["numpy"],
        "mpi4py": told["mpi4py"],
        "packages": told["packages"],
        "MPI": _mpi(),
        "settings": _settings(warpmpi),
    }
    if warpmpi is not None:
        config["warpmpi"]["version"] = warpmpi.__version__
        config["CUDA"] = _cuda(warpmpi)
        config["GPUs"] = _gpus(warpmpi)
        config["switch points"] = warpmpi._points.source()
    return config


def _of_cuda(cuda: Config, gpus: list[Config]) -> list[tuple[str, str]]:
    """Write the lines of the driver, the kernels and the GPUs."""
    driver = "none"
    if cuda["driver"]:
        release = cuda["driver_release"]
        driver = f"CUDA {cuda['driver']}" + (f", {release}" if release else "")
    rows = [
        ("driver", f"{driver} ({cuda['driver_library']})"),
        ("kernels", f"CUDA {cuda['toolkit']}: {' '.join(cuda['kernels'])}"),
    ]
    for number, gpu in enumerate(gpus):
        text = f"{gpu['name']}, compute capability {gpu['compute_capability']}"
        memory = f"{gpu['memory'] / (1 << 30):.0f} GiB"
        rows.append((f"GPU {number}", f"{text}, {memory}"))
    return rows if gpus else [*rows, ("GPUs", f"none: {cuda['error']}")]


def _text(config: Config) -> str:
    """Write a line for each fact."""
    own, mpi = config["warpmpi"], config["MPI"]
    packages = config["packages"].items()
    rows = [
        ("warpmpi", f"{own['version'] or 'unknown'} ({own['folder']})"),
        ("Python", "{version} ({path})".format(**config["Python"])),
        ("NumPy", config["NumPy"] or "missing"),
        ("mpi4py", config["mpi4py"] or "missing"),
        ("packages", ", ".join(f"{n} {v}" for n, v in packages) or "none"),
        ("MPI", f"none: {mpi['error']}" if "error" in mpi else mpi["version"]),
    ]
    if "error" not in mpi:
        rows.append(("", f"{mpi['library']}, ABI {mpi['abi']}"))
    if "CUDA" in config:
        rows += _of_cuda(config["CUDA"], config["GPUs"])
        rows.append(("switch points", config["switch points"]))
    set_to = config["settings"].items()
    rows.append(
        ("settings", " ".join(f"{n}={v}" for n, v in set_to) or "defaults")
    )
    return "\n".join(title.ljust(_INDENT) + text for title, text in rows)


@overload
def show_config(mode: Literal["stdout"] = "stdout") -> None: ...
@overload
def show_config(mode: Literal["dicts"]) -> Config: ...
def show_config(mode: str = "stdout") -> Config | None:
    """Print what this process runs on: versions, MPI, GPUs, settings.

    mode: ``"stdout"`` prints a line for each fact; ``"dicts"`` returns them,
    as dictionaries that JSON can write. The keys are warpmpi, Python, NumPy,
    mpi4py, packages (arrays, NCCL, MPI), MPI (version, abi, library), CUDA
    (driver, toolkit and kernels: the code that they are compiled to), GPUs,
    switch points, and settings: the environment variables of warpmpi that
    differ from their defaults. ``python -m warpmpi --version`` prints the
    same, also where warpmpi cannot be imported, such as without an MPI.
    No CUDA context is made. Raises ValueError (mode).
    """
    if mode not in ("stdout", "dicts"):
        raise ValueError(f"mode is {mode!r}: give 'stdout' or 'dicts'")
    config = _config(sys.modules["warpmpi"])
    if mode == "dicts":
        return config
    show(_text(config))
    return None


def show_version() -> str | None:
    """Show all versions; return why warpmpi cannot be imported, if so."""
    package: Any = None
    missing = None
    mpi_first = _mpi()  # before warpmpi, which would start MPI
    if not hasattr(sys.modules["warpmpi"], "install"):
        del sys.modules["warpmpi"]  # an empty namespace, which a start left
    try:
        import warpmpi as package
    except (ImportError, RuntimeError) as error:
        missing = (
            f"python -m warpmpi: warpmpi cannot be imported: {error} "
            "(`python -m warpmpi doctor` examines the installation)"
        )
    show(_text({**_config(package), "MPI": mpi_first}))
    return missing
