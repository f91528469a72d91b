# SPDX-License-Identifier: BSD-3-Clause
"""Rules: the driver and the GPUs, and which rank uses which."""

from __future__ import annotations

import re
from collections.abc import Iterator

from .finding import BROKEN, NOTE, WARNING, Finding, Rule
from .job import Facts, Job, names

# By the codes of the driver's errors.
_CURES = {
    802: "start the service nvidia-fabricmanager on that host",
    803: "restart that host: the library and the kernel module of its NVIDIA "
    "driver have different versions",
}
DRIVER_NEEDED = [12, 0]
_BY_TURNS = (
    "without NVIDIA MPS. They take turns on it, and wait for each other's "
    "turns: a blocking Allreduce of 8 bytes takes 277 us, with MPS 14 us (on "
    "one H200)"
)
_START_MPS = (
    ", or start MPS on that host before mpirun, as the user of the job; the "
    "last line ends MPS:\n"
    "export CUDA_MPS_PIPE_DIRECTORY=$(mktemp -d)\n"
    "export CUDA_MPS_LOG_DIRECTORY=$CUDA_MPS_PIPE_DIRECTORY\n"
    "nvidia-cuda-mps-control -d\n"
    "echo quit | nvidia-cuda-mps-control"
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
                _cure_of_sharing(job, min(shared.values())[0]),
            )
        else:
            chosen = "CUDA_VISIBLE_DEVICES" in {
                n for n, _, _ in job.settings()
            }
            yield Finding(
                "more-ranks-than-gpus",
                NOTE,
                f"{host}: there are more ranks than GPUs"
                + (" that CUDA_VISIBLE_DEVICES shows" if chosen else "")
                + f": {told}, "
                + ("by MPS" if mps else _BY_TURNS),
                "unset CUDA_VISIBLE_DEVICES, or " * chosen
                + "start one rank for each GPU"
                + ("" if mps else _START_MPS),
            )


def _cure_of_sharing(job: Job, rank: int) -> str:
    """Return the cure for ranks that have chosen the same GPU."""
    variable = job.get(rank, "launcher", "local_rank")
    if variable is None:
        return (
            "this launcher gives the ranks no number on their host: export "
            "LOCAL_RANK (0, 1, ...) for each in a script before Python, or "
            "let the program choose: wm.set_device()"
        )
    return (
        f"the GPU is that of {variable}: let the launcher set this variable, "
        "another number for each rank of a host, and no script"
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
            and row["transport"] not in ("ipc", "self")
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


def is_hidden(job: Job) -> bool:
    """Tell if data is staged because ranks do not see all GPUs."""
    return any(each.level == WARNING for each in _hidden_gpus(job))


def _sees_more(job: Job, rank: int) -> bool:
    """Tell if a rank sees more GPUs than Slurm has given to its step."""
    settings = job.get(rank, "environment", "settings") or {}
    given = settings.get("SLURM_GPUS_ON_NODE", "")
    if "CUDA_VISIBLE_DEVICES" in settings or not given.isdigit():
        return False
    return len(job.devices(rank)) > int(given)


def _unconfined(job: Job) -> Iterator[Finding]:
    for host, ranks in job.hosts():
        told = [rank for rank in ranks if _sees_more(job, rank)]
        if not told:
            continue
        settings = job.get(told[0], "environment", "settings")
        yield Finding(
            "unconfined-gpus",
            WARNING,
            f"{host}: SLURM_GPUS_ON_NODE={settings['SLURM_GPUS_ON_NODE']}, "
            f"but {len(job.devices(told[0]))} GPUs are visible to "
            f"{names(told)}, as CUDA_VISIBLE_DEVICES is not set: this job may "
            "take the GPUs of another one",
            "leave out --gpu-bind=none, and start with --gpus-per-node, or "
            "ask for all GPUs of the node",
        )


def _mig(what: str, gpu: Facts, users: list[int], ranks: list[int]) -> Finding:
    """Tell of a MIG instance; ranks outside of it are not reached by IPC."""
    whole = (
        f"nvidia-smi -i {gpu['pci']} -mig 0 (as root, while nobody uses it)"
    )
    if set(users) == set(ranks):
        return Finding(
            "mig",
            NOTE,
            f"{what} is a MIG instance, a part of a GPU: all ranks of this "
            "host use it, and reach each other by CUDA IPC",
            f"nothing, or use the whole GPU: {whole}",
        )
    return Finding(
        "mig",
        WARNING,
        f"{what} is a MIG instance, a part of a GPU: CUDA IPC does not reach "
        "another instance, and data to ranks there is staged through "
        "page-locked memory",
        f"use whole GPUs for jobs of several ranks: {whole}; or let all ranks "
        "of a host use one instance, by MPS: CUDA_VISIBLE_DEVICES=MIG-...",
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
                yield _mig(what, gpu, users, ranks)
            if gpu["mps"]:
                text = f"{what} is shared by NVIDIA MPS"
                cure = "nothing, or echo quit | nvidia-cuda-mps-control"
                yield Finding("mps", NOTE, text, cure)


RULES: tuple[Rule, ...] = (
    _driver,
    _core_gpu,
    _old_driver,
    _shared_gpus,
    _hidden_gpus,
    _unconfined,
    _modes,
)
