# SPDX-License-Identifier: BSD-3-Clause
"""`python -m warpmpi doctor` on several ranks, whole and broken ones."""

import json
import os
import subprocess

import pytest

import ranks

SIMULATED = os.environ.get("WARPMPI_CUDA_DRIVER")
pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(not SIMULATED, reason="needs the simulated driver"),
]
DOCTOR = "-m", "warpmpi", "doctor", "--json"


def doctor(*words, **options):
    """The report of rank 0, after a run that ended with its status."""
    told = json.loads(ranks.run(*DOCTOR, *words, **options))
    assert told["status"] == options.get("status", 0), told["findings"]
    return told


def names(told):
    return {each["name"] for each in told["findings"]}


def each_rank(folder, text):
    """A command that runs a line of shell for each rank before Python."""
    script = folder / "rank.sh"
    script.write_text(
        "#!/bin/sh\nr=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}\n"
        f'{text}\nexec "$@"\n'
    )
    script.chmod(0o755)
    return [str(script)]


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("devices", [1, 2, 4])
def test_ranks_and_devices(size, devices):
    told = doctor(
        "--expect-ranks",
        size,
        "--expect-hosts",
        1,
        ranks=size,
        SIMCUDA_DEVICES=str(devices),
    )
    assert names(told) == (
        {"more-ranks-than-gpus"} if size > devices else set()
    )
    used = [each["core"]["device"] for each in told["ranks"]]
    assert used == [rank % devices for rank in range(size)]
    pairs = {(a, b) for a in range(size) for b in range(size) if a != b}
    for memory, transport in ("host", "mpi"), ("gpu", "ipc"):
        rows = [row for row in told["pairs"] if row["memory"] == memory]
        assert {(row["from"], row["to"]) for row in rows} == pairs
        assert len(rows) == len(pairs)
        for row in rows:
            assert row["transport"] == transport and row["wrong"] == 0
            assert row["gbps"] > 0 and row["latency_us"] > 0


@pytest.mark.parametrize("setting", ["SIMCUDA_PEER", "SIMCUDA_IPC"])
def test_gpus_that_do_not_reach_each_other(setting):
    """Also where calls that stage raise: the doctor measures them."""
    told = doctor(status=1, WARPMPI_REQUIRE="gpu", **{setting: "0"})
    assert names(told) == {"staged"}
    gpu = [row for row in told["pairs"] if row["memory"] == "gpu"]
    assert {row["transport"] for row in gpu} == {"host"}
    assert all("staged through page-locked" in row["reason"] for row in gpu)
    exports = told["ranks"][0]["driver"]["allocators"]["cudaMalloc"]
    assert exports["exportable"] is (setting != "SIMCUDA_IPC")


def test_ranks_that_share_a_gpu_by_accident():
    told = doctor(wrapper=["env", "OMPI_COMM_WORLD_LOCAL_RANK=0"], status=1)
    assert names(told) == {"shared-gpu"}


def test_ranks_that_see_their_own_gpu_alone(tmp_path):
    command = each_rank(tmp_path, "export SIMCUDA_FIRST=$r SIMCUDA_DEVICES=1")
    told = doctor(wrapper=command)
    assert names(told) == {"hidden-gpus"}
    assert (
        told["findings"][0]["level"] == "note"
    )  # CUDA IPC works all the same
    told = doctor(wrapper=command, status=1, SIMCUDA_IPC="0")
    assert names(told) == {"hidden-gpus"}


def test_hosts(tmp_path):
    command = each_rank(tmp_path, "export WARPMPI_HOST=h$r")
    told = doctor("--expect-hosts", 2, wrapper=command)
    assert names(told) == set()
    assert {row["transport"] for row in told["pairs"]} == {"mpi", "host"}
    assert names(doctor("--expect-hosts", 2, status=2)) == {"hosts"}


@pytest.mark.parametrize(
    ("name", "status", "level"),
    [("WARPMPI_CHECK", 2, "broken"), ("WARPMPI_EAGER_LIMIT", 0, "note")],
)
def test_a_setting_that_differs(tmp_path, name, status, level):
    command = each_rank(tmp_path, f"test $r = 1 && export {name}=1")
    told = doctor(wrapper=command, status=status)
    (finding,) = told["findings"]
    assert (finding["name"], finding["level"]) == ("settings", level)
    assert f"{name} " in finding["text"] and "1 on rank 1" in finding["text"]


def test_old_settings_of_open_mpi():
    from mpi4py import MPI

    vendor, version = MPI.get_vendor()
    if vendor != "Open MPI" or version[0] < 5:
        pytest.skip("for Open MPI 5 and later")
    told = doctor(status=1, OMPI_MCA_orte_default_hostfile="/etc/hosts")
    assert names(told) == {"orte"}


def test_expandable_segments():
    setting = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    assert names(doctor(status=1, **setting)) == {"expandable-segments"}


def test_the_launcher_is_known():
    told = doctor()["ranks"]
    for each in told:
        launcher = each["launcher"]
        assert launcher["starter"]["owner"] in (
            each["mpi"]["vendor"],
            "Slurm",
        )
        assert launcher["local_size"] in (2, None)
        assert not launcher["own_namespace"]


def test_mps():
    told = doctor(SIMCUDA_MPS="1", SIMCUDA_DEVICES="1")
    assert names(told) == {"mps", "more-ranks-than-gpus"}


def test_a_forced_transport_shows_in_the_routes():
    told = doctor(WARPMPI_TRANSPORT="host")
    gpu = [row for row in told["pairs"] if row["memory"] == "gpu"]
    assert {row["transport"] for row in gpu} == {"host"}
    assert all("WARPMPI_TRANSPORT selects it" in row["reason"] for row in gpu)


def test_a_transport_that_does_not_work():
    told = doctor(status=2, WARPMPI_TRANSPORT="tcp")
    assert names(told) == {"no-comm"}
    assert {row["memory"] for row in told["pairs"]} == {"host"}
    assert all("by mpi4py alone" in row["reason"] for row in told["pairs"])


def test_without_a_gpu():
    told = doctor(status=2, SIMCUDA_DEVICES="0")
    assert names(told) == {"no-driver"}
    assert {row["memory"] for row in told["pairs"]} == {"host"}
    assert all("no rank" in row["reason"] for row in told["pairs"])


MEDDLE = """
import os, signal, sys

def hook(event, args):
    name = "OMPI_COMM_WORLD_RANK" if "PMIX_RANK" in os.environ else "PMI_RANK"
    if event == EVENT and MODULE in args[0] and os.environ.get(name) == "1":
        ACTION

sys.addaudithook(hook)
"""


def meddle(folder, action, event="import", module="warpmpi._doctor.pairs"):
    text = MEDDLE.replace("ACTION", action).replace("EVENT", repr(event))
    text = text.replace("MODULE", repr(module))
    (folder / "sitecustomize.py").write_text(text)
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(ranks.ROOT)])}


@pytest.mark.parametrize(
    "action",
    [
        "os.kill(os.getpid(), signal.SIGKILL)",
        "os._exit(0)",
        "signal.pause()",
        "raise ValueError('sunk')",
    ],
)
def test_a_rank_that_ends_or_hangs(tmp_path, action):
    """The others say where they stand, and rank 0 what it knows."""
    changes = meddle(tmp_path, action)
    told = doctor("--timeout", "4", status=2, ranks=3, **changes)
    assert "ended" in names(told)
    assert told["ended"]["step"] == "waits for the other ranks' facts"
    assert "no progress for 4 s" in told["ended"]["how"]
    assert told["ranks"][0]["mpi"]["size"] == 3


def test_wrong_bytes(tmp_path):
    """Rank 1's are another pattern than it should send."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "class Wrong:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'warpmpi._doctor.rank':\n"
        "            sys.meta_path.remove(self)\n"
        "            from warpmpi._doctor import pairs\n"
        "            right = pairs.pattern\n"
        "            def wrong(rank, nbytes):\n"
        "                given = right(rank, nbytes)\n"
        "                given[5] ^= rank == 1\n"
        "                return given\n"
        "            pairs.pattern = wrong\n"
        "if '1' in (os.environ.get('OMPI_COMM_WORLD_RANK'),\n"
        "           os.environ.get('PMI_RANK')):\n"
        "    sys.meta_path.insert(0, Wrong())\n"
    )
    path = os.pathsep.join([str(tmp_path), str(ranks.ROOT)])
    told = doctor(status=2, PYTHONPATH=path)
    assert names(told) == {"wrong-bytes"}
    wrong = [row for row in told["pairs"] if row["wrong"]]
    assert {(row["from"], row["to"]) for row in wrong} == {(1, 0)}
    assert {row["memory"] for row in wrong} == {"host", "gpu"}


def test_a_rank_without_the_core(tmp_path):
    """MPI alone moves host arrays, and the report comes all the same."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'warpmpi._comm':\n"
        "            raise ImportError('not here')\n"
        "if '1' in (os.environ.get('OMPI_COMM_WORLD_RANK'),\n"
        "           os.environ.get('PMI_RANK')):\n"
        "    sys.meta_path.insert(0, Refuse())\n"
    )
    path = os.pathsep.join([str(tmp_path), str(ranks.ROOT)])
    told = doctor(status=2, PYTHONPATH=path)
    assert "no-warpmpi" in names(told)
    assert {row["memory"] for row in told["pairs"]} == {"host"}
    assert all("by mpi4py alone" in row["reason"] for row in told["pairs"])


def unshare(*flags):
    """The command; skips where namespaces are not permitted."""
    command = ["unshare", *flags]
    if subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip("unshare is not permitted here")
    return command


# Open MPI's shared memory fails where processes have the same number.
BY_TCP = {"OMPI_MCA_btl": "tcp,self", "OMPI_MCA_pml": "ob1"}


def test_private_pid_namespaces(tmp_path):
    command = unshare("--pid", "--fork", "--mount-proc")
    apart = f"mkdir {tmp_path}/$r; export TMPDIR={tmp_path}/$r"
    command = each_rank(tmp_path, apart) + command
    told = doctor(wrapper=command, status=1, **BY_TCP)
    assert "pid-namespaces" in names(told)
    gpu = [row for row in told["pairs"] if row["memory"] == "gpu"]
    assert all("PID namespace" in row["reason"] for row in gpu)


def test_a_pid_namespace_for_each_rank():
    """MPI crashes or hangs there, and the reason is told once."""
    command = unshare("--pid", "--fork", "--mount-proc")
    words = *DOCTOR, "--timeout", "6"
    told = json.loads(ranks.run(*words, wrapper=command, died=True))
    assert told["ranks"][0]["launcher"]["own_namespace"]
    (level,) = (
        each["level"]
        for each in told["findings"]
        if each["name"] == "pid-namespaces"
    )
    # Some MPIs may do without shared memory.
    assert level == ("broken" if told["ended"] else "warning")
    assert "ended" not in names(told)


def test_a_pid_namespace_for_all_ranks(monkeypatch):
    """A container that the launcher is in is as good as none."""
    words = unshare("--pid", "--fork", "--mount-proc")
    launch, extra = ranks.mpirun.launcher(2)
    monkeypatch.setenv("WARPMPI_TEST_MPIRUN", " ".join(words + launch))
    told = doctor(**extra)
    assert names(told) == set()
    assert not any(r["launcher"]["own_namespace"] for r in told["ranks"])


def test_a_small_private_shm(tmp_path):
    script = tmp_path / "shm.sh"
    script.write_text(
        '#!/bin/sh\nmount -t tmpfs -o size=4m none /dev/shm\nexec "$@"\n'
    )
    script.chmod(0o755)
    command = [*unshare("--mount"), str(script)]
    told = doctor(wrapper=command, status=1, **BY_TCP)
    assert {"small-shm", "private-shm"} <= names(told)
