# SPDX-License-Identifier: BSD-3-Clause
"""A report as text for people and as JSON for programs."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator

from .finding import Finding, size_of
from .findings import status
from .job import Facts, Job, names
from .rules_data import plain, reach_of
from .rules_gpus import driver_needed

WIDTH, INDENT = 88, 12
WIDEST_MATRIX = 8  # ranks; of larger jobs the slowest pairs are shown
SLOWEST = 10
_ENDS = "from", "to"


# Whose memory an allocator's is.
_USERS = {
    "cudaMalloc": "wm.Array, CuPy, PyTorch, JAX",
    "cudaMallocAsync": "Warp, memory pools",
    "expandable segments": "PyTorch's, if set",
    "cudaMallocManaged": "managed memory",
}


def _line(title: str, text: str) -> str:
    """Write a text beside its title; its further lines are commands."""
    first, *commands = text.split("\n")
    written = textwrap.fill(
        first,
        WIDTH,
        initial_indent=title.ljust(INDENT),
        subsequent_indent=" " * INDENT,
        break_on_hyphens=False,
        break_long_words=False,
    )
    return "\n".join([written, *(" " * INDENT + each for each in commands)])


def _versions(job: Job) -> Iterator[str]:
    told = job.own.get("installation")
    if told is None:
        return
    core = job.get(0, "core", "version") or told["warpmpi"] or "unknown"
    packages = " ".join(
        f"{n} {v}," for n, v in sorted(told["packages"].items())
    )
    yield _line(
        "versions",
        f"warpmpi {core}, mpi4py {told['mpi4py'] or 'missing'}, NumPy "
        f"{told['numpy'] or 'missing'}, Python {told['python']}",
    )
    if packages:
        yield _line("", "installed: " + packages.rstrip(","))


def _mpi(job: Job) -> Iterator[str]:
    told = job.own.get("mpi", {})
    if "version" not in told:
        return
    level = told.get("thread_level", "unknown")
    yield _line(
        "MPI", f"{told['version']}, ABI {told['abi']}, thread level {level}"
    )
    yield _line("", f"{told['library']}: {told['why']}")
    core = job.get(0, "core", "library")
    if core:
        yield _line("", f"warpmpi's core for this ABI: {core}")
    if "size" not in told:
        return
    sizes = job.get(0, "environment", "sizes") or {}
    launcher = ", ".join(f"{n}={v}" for n, v in sizes.items()) or "no launcher"
    yield _line(
        "ranks", f"MPI says {told['size']}; the environment: {launcher}"
    )
    claims = {None: "says nothing", True: "says yes", False: "says no"}
    asked = told.get("cuda_aware")
    if asked is not None:
        works = "works" if asked.get("works") else "fails"
        if not asked.get("started"):
            works = "cannot be tried, as MPI does not start there"
        really = asked["crash"] or asked["how"]
        yield _line(
            "CUDA-aware",
            f"MPI {claims[told['says_cuda_aware']]}; a message of GPU memory "
            f"by MPI alone, in a child process, {works}: {really}",
        )
    ucx = job.get(0, "core", "ucx")
    if ucx:
        yield _line("UCX", ucx)


def _hosts(job: Job) -> Iterator[str]:
    for host, ranks in job.hosts():
        yield _line("host", f"{host}: {names(ranks)}")
        facts = job.ranks[ranks[0]]["host"]
        shm = facts["shm"]
        if shm["exists"]:
            told = (
                f"/dev/shm {size_of(shm['bytes'])}, {size_of(shm['free'])} "
                f"free, {shm['error'] or 'writable'}"
            )
        else:
            told = f"/dev/shm: {shm['error']}"
        limit = facts["memlock"]
        locked = "unlimited" if limit is None else size_of(limit)
        pinned = job.get(ranks[0], "driver", "pinned_error")
        if job.devices(ranks[0]):
            locked += f", page-locked allocation: {pinned or 'works'}"
        yield _line("", f"{told}; locked memory {locked}")
        cards = facts.get("cards") or []
        for card in cards:
            yield _line("", _card(card))
        for identity, (gpu, users) in job.gpus(ranks).items():
            *near, how = gpu.get("cards") or [""]
            beside = f"; nearest card: {', '.join(near)} ({how})"
            capability = ".".join(map(str, gpu["capability"]))
            ordinals = {job.get(rank, "core", "device") for rank in users}
            seen = ", ".join(f"cuda:{each}" for each in sorted(ordinals))
            use = f"{names(users)} as {seen}" if users else "no rank"
            yield _line(
                "",
                f"{identity} {gpu['name']}, compute capability {capability}, "
                f"{size_of(gpu['memory'])}: {use}{beside if near else ''}",
            )


def _card(card: Facts) -> str:
    speed = f", {card['gbits']:g} Gb/s" if card["gbits"] else ""
    node = "" if card["numa"] is None else f", NUMA node {card['numa']}"
    return f"network card {card['name']}: {card['kind']}{speed}{node}"


def _driver(job: Job) -> Iterator[str]:
    told = job.own.get("driver", {})
    version = told.get("version")
    if version is None:
        return
    needed = ".".join(map(str, driver_needed(job, 0)))
    kind = ", simulated: it has no speed" if told["simulated"] else ""
    yield _line(
        "driver",
        f"{told['library']}, CUDA {version[0]}.{version[1]} (needed: "
        f"{needed}){kind}",
    )
    travels = {
        True: "exported by CUDA IPC as it is",
        False: "copied first into memory that CUDA IPC exports",
        None: "cannot be allocated here",
    }
    memory = told.get("allocators", {})
    plain = memory.get("cudaMalloc", {}).get("exportable")
    for name, each in memory.items():
        way = travels[each["exportable"]]
        if plain is False:
            way = "staged through page-locked memory"
        title = "memory" if name == "cudaMalloc" else ""
        yield _line(title, f"{name} ({_USERS[name]}): {way}")


def _settings(job: Job) -> Iterator[str]:
    title = "settings"
    for name, value, ranks in job.settings():
        whom = "" if len(ranks) == job.size else f" ({names(ranks)})"
        yield _line(title, f"{name}={value}{whom}")
        title = ""


def _cell(row: Facts | None) -> str:
    if row is None:
        return "-"
    return (
        f"{row['transport']} {row['latency_us']:.1f} us {row['gbps']:.2f} GB/s"
    )


def _matrix(job: Job, memory: str) -> Iterator[str]:
    rows = [row for row in job.pairs if row["memory"] == memory]
    if not rows:
        return
    yield ""
    sizes = sorted({row["bytes"] for row in rows})
    large = " to ".join(map(size_of, dict.fromkeys((sizes[0], sizes[-1]))))
    yield f"{memory} arrays, from a rank (down) to a rank (across): transport,"
    yield f"latency of 8 B, bandwidth of {large}; the bytes are compared"
    cells = {(row["from"], row["to"]): row for row in rows}
    ranks = sorted({row["from"] for row in rows})
    if len(ranks) <= WIDEST_MATRIX:
        table = [["", *map(str, ranks)]]
        for a in ranks:
            line = [_cell(cells.get((a, b))) for b in ranks]
            table.append([str(a), *line])
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        for line in table:
            words = zip(line, widths, strict=True)
            yield "  ".join(w.rjust(n) for w, n in words).rstrip()
    else:
        yield f"the {SLOWEST} slowest of {len(rows)} (--json has all):"
        for row in sorted(rows, key=lambda row: float(row["gbps"]))[:SLOWEST]:
            yield f"  {row['from']} to {row['to']}: {_cell(row)}"
    told = {
        f'transport "{row["transport"]}": {plain(row["reason"])}'
        for row in rows
    }
    reached = {
        f"by {reach.link} such GPUs reach {reach.gbps:g} GB/s"
        + (f", {reach.latency_us:g} us" if reach.latency_us else "")
        + f" ({reach.source})"
        for row in rows
        if (reach := reach_of(job, row))
    }
    for text in (*sorted(told), *sorted(reached)):
        yield _line("", text)


def _between(job: Job) -> Iterator[str]:
    """Tell the best that hosts reach, by memory, and the card that did it."""
    best: dict[tuple[str, str, str], list[Facts]] = {}
    for row in filter(job.is_apart, job.pairs):
        one, other = (job.get(row[end], "host", "name") for end in _ENDS)
        best.setdefault((one, other, row["memory"]), []).append(row)
    if best:
        yield ""
        yield "between hosts, the best of their ranks: latency, bandwidth"
    told = []
    for (one, other, memory), rows in best.items():
        latency = min(row["latency_us"] for row in rows)
        fastest = max(rows, key=lambda row: float(row["gbps"]))
        card = f", by {fastest['card']}" if fastest.get("card") else ""
        text = (
            f"  {one} to {other}: {memory} arrays by transport "
            f'"{fastest["transport"]}", {latency:.1f} us '
            f"{fastest['gbps']:.2f} GB/s{card}"
        )
        told.append((fastest["gbps"], text))
    if len(told) > SLOWEST:
        yield f"the {SLOWEST} slowest of {len(told)} (--json has all):"
        told = sorted(told)[:SLOWEST]
    yield from (text for _, text in told)
    for found in job.libraries().values():
        title = found[min(found)]["title"]
        for text in dict.fromkeys(row["told"] for row in found.values()):
            ranks = [rank for rank in found if found[rank]["told"] == text]
            whom = "" if len(ranks) == job.size else f"{names(ranks)}: "
            yield _line(title, whom + text)
            title = ""
    engines = job.report.get("engines") or {}
    if best and engines:
        yield _line("", f"Allreduce of all ranks: by {', '.join(engines)}")


def text(job: Job, findings: list[Finding]) -> str:
    """Return the report for people."""
    hosts = job.hosts()
    lines = [
        f"warpmpi doctor: {job.size} rank{'s' * (job.size != 1)} on "
        f"{len(hosts)} host{'s' * (len(hosts) != 1)}",
        "",
    ]
    for part in (_versions, _mpi, _hosts, _driver, _settings):
        lines += part(job)
    for memory in ("host", "gpu"):
        lines += _matrix(job, memory)
    lines += _between(job)
    lines.append("")
    for each in findings:
        lines.append(_line(each.level, f"{each.name}: {each.text}"))
        lines.append(_line("  cure", each.cure))
    words = {0: "fine", 1: "warnings", 2: "broken"}
    lines.append(_line("result", words[status(findings)]))
    return "\n".join(lines)


def as_json(job: Job, findings: list[Finding]) -> str:
    """Return the report for programs: one object."""
    return json.dumps(
        {
            "status": status(findings),
            "findings": [each._asdict() for each in findings],
            **job.report,
        },
        indent=1,
    )
