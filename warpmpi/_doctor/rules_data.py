# SPDX-License-Identifier: BSD-3-Clause
"""Rules: the memory of the hosts, and how data moves."""

from __future__ import annotations

import re
from collections.abc import Iterator

from .finding import BROKEN, NOTE, WARNING, Finding, Rule, size_of
from .job import Facts, Job, names
from .reach import Reach, expected
from .rules_gpus import is_hidden
from .rules_start import is_apart

_SLOW_CURES = {
    "NVLink": "look for links that are down (nvidia-smi nvlink -s), and for "
    "GPUs with fewer links between them (NV1 to NV18 in nvidia-smi topo -m); ",
    "PCIe": "look at nvidia-smi topo -m, for GPUs that share a PCIe switch, "
    "and at the link's width (nvidia-smi -q -d PCIE); ",
    "host memory": "bind each rank to the cores of its GPU's socket "
    "(nvidia-smi topo -m, mpirun --map-by numa); ",
}
_SLOWER = "GPU data is staged through page-locked memory"
# By a word of the reason why data is staged.
_STAGED_CURES = {
    "ulimit -f": "ulimit -f unlimited, before the ranks start",
    "(Permission denied)": "start all ranks of a host as one user, and let "
    "that user read /proc/PID/fd of its own processes",
}
_TOGETHER = (
    "start the ranks of a host in one container, or each with --pid=host "
    "--ipc=host (docker, podman)"
)
FORCED = "WARPMPI_TRANSPORT"
SHM_NEEDED = 16 << 20  # bytes of /dev/shm for each rank of a host
MEMLOCK_NEEDED = 64 << 20  # bytes; network cards register memory
SLOW = 0.5  # of what such GPUs reach
FASTER = 4.0  # a card that is idle, than the one that is used


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
                _TOGETHER,
            )


def _spaces(job: Job) -> Iterator[Finding]:
    for machine, ranks in job.machines():
        here = [
            each
            for _, each in job.hosts()
            if each[0] in ranks and not job.get(each[0], "host", "named")
        ]
        spaces = {job.get(each[0], "host", "pid_namespace") for each in here}
        if min(len(here), len(spaces)) > 1 and not is_apart(job):
            yield Finding(
                "pid-namespaces",
                WARNING,
                f"{machine}: the ranks of one machine have {len(spaces)} PID "
                "namespaces: they do not see each other's processes, and are "
                "hosts of their own, between which data take the network",
                _TOGETHER,
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


def _one_core(job: Job) -> Iterator[Finding]:
    for bound, ranks in job.values("host", "one_core").items():
        if bound and len(job.hosts()) > 1:
            yield Finding(
                "one-core",
                NOTE,
                f"{names(ranks)}: bound to one core each, which also the "
                "threads need that make progress between hosts",
                "mpirun --bind-to none, or --map-by slot:pe=4; "
                "srun --cpus-per-task=4",
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
                f"{row['to']}: {row['wrong']} bytes are wrong by transport "
                f'"{row["transport"]}"',
                "run with WARPMPI_TRANSPORT=host, which avoids CUDA IPC, and "
                "report this output to warpmpi's developers"
                if row["memory"] == "gpu"
                else "try another network of this MPI (Open MPI: --mca btl "
                "tcp,self --mca pml ob1), and test the host's memory",
            )


def _some(pairs: list[str]) -> str:
    more = f" and {len(pairs) - 4} more" if len(pairs) > 4 else ""
    return ", ".join(pairs[:4]) + more


def plain(reason: str) -> str:
    """Return the reason of a transport in words, without the driver's call."""
    reason = re.sub(r"mapping a peer's memory for cuda:\d+: ", "", reason)
    call = r"\bcu[A-Z]\w*\(.*?\) failed: CUDA_ERROR_\w+ \((.*?)\)"
    return re.sub(call, r"\1", reason)


def _cannot_export(job: Job, rank: int) -> bool:
    memory = job.get(rank, "driver", "allocators") or {}
    return memory.get("cudaMalloc", {}).get("exportable") is False


def _has_peer_access(job: Job, one: int, other: int) -> bool:
    own, theirs = job.device(one), job.device(other)
    return theirs is None or not any(
        peer["uuid"] == theirs["uuid"] and not peer["access"]
        for peer in (own["peers"] if own else [])
    )


def _why_staged(job: Job, row: Facts) -> tuple[str, str]:
    """Return why the data of a pair is staged, and the cure."""
    one, other, reason = row["from"], row["to"], plain(row["reason"])
    for rank in (one, other):
        if _cannot_export(job, rank):
            return (
                f"the driver denies CUDA IPC; {_SLOWER}",
                "ask for a host or a virtual machine whose driver permits "
                "CUDA IPC (some virtual GPUs and sandboxes do not). Without "
                "CUDA IPC all is right, but slower",
            )
    if not (
        _has_peer_access(job, one, other) and _has_peer_access(job, other, one)
    ):
        return (
            f"these GPUs have no peer access to each other; {_SLOWER}",
            "use GPUs that reach each other: nvidia-smi topo -p2p r shows "
            "them. Most GeForce cards reach none; between others the "
            "IOMMU or PCIe ACS may be in the way (settings of the BIOS and "
            "the kernel). Without peer access all is right, but slower",
        )
    for word, cure in _STAGED_CURES.items():
        if word in reason:
            return reason, cure
    return reason, _TOGETHER


def _staged(job: Job) -> Iterator[Finding]:
    forced = {v for name, v, _ in job.settings() if name == FORCED}
    staged = [
        row
        for row in job.pairs
        if row["memory"] == "gpu"
        and row["transport"] == "host"
        and not job.is_apart(row)
    ]
    if is_hidden(job):
        return  # that is why
    if staged and forced:
        yield Finding(
            "staged",
            NOTE,
            f"{FORCED}={min(forced)} stages the GPU arrays of one host "
            "through page-locked memory, without CUDA IPC",
            f"unset {FORCED}",
        )
        return
    told: dict[tuple[str, str], list[str]] = {}
    for row in staged:
        pair = f"{row['from']} to {row['to']}"
        told.setdefault(_why_staged(job, row), []).append(pair)
    for (why, cure), pairs in told.items():
        yield Finding(
            "staged",
            WARNING,
            f"GPU arrays of one host ({_some(pairs)}) go by "
            f'transport "host": {why}',
            cure,
        )


def _forbidden(job: Job) -> Iterator[Finding]:
    """Tell messages between hosts that raise, as they may not be staged."""
    pairs = [
        f"{row['from']} to {row['to']}"
        for row in filter(job.is_apart, job.pairs)
        if row["memory"] == "gpu" and "host" in row["transport"].split("+")
    ]
    if pairs and job.may_not_stage:
        yield Finding(
            "staged",
            WARNING,
            f"GPU arrays between hosts ({_some(pairs)}) go through host "
            "memory: with WARPMPI_REQUIRE=gpu such messages raise",
            "use an MPI that is built with CUDA, or install UCX 1.17 or newer "
            "with CUDA on a network with RDMA (pip install libucx-cu12 or "
            "-cu13); or unset WARPMPI_REQUIRE",
        )


def _slow_card(job: Job) -> Iterator[Finding]:
    """Tell if hosts exchange data by a card, and a far faster one is idle."""
    told: dict[tuple[str, str], list[str]] = {}
    for row in filter(job.is_apart, job.pairs):
        cards = job.get(row["from"], "host", "cards") or []
        speeds = {each["name"]: each["gbits"] or 0.0 for each in cards}
        used = speeds.get(row.get("card") or "", 0.0)
        fastest = max(speeds, key=speeds.__getitem__, default="")
        if used and speeds[fastest] >= FASTER * used:
            what = (
                f"{row['card']} ({used:g} Gb/s), and {fastest} "
                f"({speeds[fastest]:g} Gb/s)"
            )
            host = job.get(row["from"], "host", "name")
            hosts = told.setdefault((what, row["memory"]), [])
            hosts += [host] * (host not in hosts)
    for (what, memory), hosts in told.items():
        yield Finding(
            "slow-card",
            WARNING,
            f"{memory} arrays leave {_some(hosts)} by {what} is idle",
            "use an MPI that knows the fast card, as by UCX or libfabric, or "
            "name the card: --mca btl_tcp_if_include, UCX_NET_DEVICES, "
            "FI_TCP_IFACE",
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


def _no_library(job: Job) -> Iterator[Finding]:
    """Between hosts GPU arrays go by a library, or through host memory."""
    found = job.libraries()
    lacking = [
        rank
        for rank in range(job.size)
        if any(rank in rows for rows in found.values())
        and not any(
            rank in rows and rows[rank]["version"] for rows in found.values()
        )
    ]
    if not lacking:
        return
    rows = [found[engine][lacking[0]] for engine in found]
    told = [f"{row['title']} is {row['told']}" for row in rows]
    forbidden = "; WARPMPI_REQUIRE=gpu makes them raise"
    yield Finding(
        "no-library",
        WARNING if job.may_not_stage else NOTE,
        f"{names(lacking)}: {', '.join(told)}. Collectives of GPU "
        "arrays go between hosts through host memory, and none go on "
        "streams" + (forbidden if job.may_not_stage else ""),
        rows[0]["cure"],
    )


def _libraries(job: Job) -> Iterator[Finding]:
    """All hosts have one version of a library, but for its last number."""
    if job.simulated or not any(map(job.devices, range(job.size))):
        return
    yield from _no_library(job)
    for rows in job.libraries().values():
        told: dict[str, list[int]] = {}
        for rank, row in rows.items():
            if row["version"]:
                told.setdefault(row["told"], []).append(rank)
        versions = {rows[ranks[0]]["version"] for ranks in told.values()}
        if len({version.rpartition(".")[0] for version in versions}) > 1:
            row = rows[min(rows)]
            each = [f"{text} ({names(told[text])})" for text in told]
            yield Finding(
                "libraries",
                WARNING,
                f"{row['title']} differs, so it does not serve: "
                f"{'; '.join(each)}",
                row["cure"],
            )


def reach_of(job: Job, row: Facts) -> Reach | None:
    """Return what a row's GPUs should reach, None if that is not known."""
    one, other = job.device(row["from"]), job.device(row["to"])
    if row["memory"] != "gpu" or job.simulated or not one or not other:
        return None
    if job.is_apart(row):  # a network is between them
        return None
    return expected(one, other, row["transport"])


RULES: tuple[Rule, ...] = (
    _shm,
    _private,
    _spaces,
    _locked_memory,
    _one_core,
    _cuda_aware,
    _expandable,
    _bytes,
    _staged,
    _forbidden,
    _slow_card,
    _slow,
    _libraries,
)
