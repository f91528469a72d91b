# SPDX-License-Identifier: BSD-3-Clause
"""Jobs on several hosts, which are namespaces of this machine.

WARPMPI_TEST_SEED gives the random calls of a run that failed.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time

import pytest
from mpi4py import MPI

import dying
import ranks

LACKS = subprocess.run(
    [sys.executable, ranks.LAUNCH, "--missing"],
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
    check=True,
).stdout.strip()
pytestmark = [
    pytest.mark.skipif(bool(LACKS), reason=f"no hosts here: {LACKS}"),
    pytest.mark.skipif(
        "WARPMPI_CUDA_DRIVER" not in os.environ,
        reason="needs the simulated driver",
    ),
    pytest.mark.skipif(
        MPI.Get_library_version().startswith("Open MPI v4"),
        reason="launch.py knows Open MPI 5 and MPICH",
    ),
]

EVERYTHING = ranks.ROOT / "tests" / "hosts" / "everything.py"

# Each host says what it is.
WHO = """
import os
from mpi4py import MPI
comm = MPI.COMM_WORLD
shm = os.statvfs("/dev/shm")
with open("/proc/sys/kernel/random/boot_id") as file:
    boot = file.read().strip()
line = " ".join(map(str, (
    "is", comm.rank, os.uname().nodename, os.getpid(), boot,
    shm.f_blocks * shm.f_frsize >> 20, os.environ["TMPDIR"],
    os.environ["SIMCUDA_DEVICES"], os.readlink("/proc/self/ns/net"),
)))
os.write(1, (line + "\\n").encode())
"""


def run(program, hosts, *flags, **options):
    """What a job on hosts of so many ranks has printed."""
    return ranks.run(*program, hosts=hosts, flags=flags, **options)


def test_what_a_host_is():
    printed = run(("-c", WHO), (1, 2, 1), "--no-gpu", "2")
    lines = [line.split() for line in re.findall("is (.*)", printed)]
    lines.sort(key=lambda line: int(line[0]))
    numbers, names, pids, boots, shm, temporary, gpus, nets = zip(
        *lines, strict=True
    )
    assert numbers == ("0", "1", "2", "3")
    assert names == ("host-0", "host-1", "host-1", "host-2")
    assert len({pids[0], min(pids[1:3], key=int), pids[3]}) == 1
    assert len(set(boots)) == 1 and set(shm) == {"64"}
    assert len(set(temporary)) == len(set(nets)) == 3
    assert gpus == ("2", "2", "2", "0")


def everything(hosts, *flags):
    seed = os.environ.get("WARPMPI_TEST_SEED") or random.randrange(10**6)
    print(f"hosts {hosts}: WARPMPI_TEST_SEED={seed}")
    printed = run((EVERYTHING, "--seed", seed), hosts, *flags)
    assert "all right" in printed


def test_everything_on_two_hosts():
    everything((2, 2))


def test_everything_on_three_hosts_one_without_a_gpu():
    everything((1, 2, 1), "--no-gpu", "2")


VANISHES = """
    def blocked_by_the_dead(comm):
        given = wm.full(1000, 1, dtype="float32")
        yield "Allreduce", lambda: comm.Allreduce(MPI.IN_PLACE, given)
        yield "Recv", lambda: comm.Recv(wm.zeros(9), comm.size - 1, 5)
        yield "recv", lambda: comm.recv(None, comm.size - 1, 6)
        yield "allgather", lambda: comm.allgather(given)

    comm = wm.Comm(MPI.COMM_WORLD)
    comm.Set_errhandler(MPI.ERRORS_RETURN)
    comms = [comm.Dup() for _ in range(4)]
    for each in comms:
        each.Set_errhandler(MPI.ERRORS_RETURN)
        each.Allreduce(MPI.IN_PLACE, wm.zeros(10))
    comm.Barrier()
    if os.uname().nodename == "host-1":
        if comm.rank == comm.size - 1:
            time.sleep(0.5)
            open(sys.argv[1], "w").close()
        time.sleep(60)
    begun = time.monotonic()
    for each in comms:
        name, call = list(blocked_by_the_dead(each))[comms.index(each)]
        try:
            call()
        except MPI.Exception as error:
            told = MPI.Get_error_string(error.Get_error_class())
            assert "PROC_FAILED" in told or "REVOKED" in told, (name, told)
        else:
            raise AssertionError(f"{name} of the dead has ended")
    took = time.monotonic() - begun
    assert took < 10, took
    left = comm.Shrink()
    array = wm.full(1000, 1, dtype="float32")
    left.Allreduce(MPI.IN_PLACE, array)
    assert left.size == 2 and np.all(array.numpy() == 2)
    print("survived", flush=True)
    time.sleep(0.5)
    left.Barrier()
    if left.rank == 0:
        os.unlink(sys.argv[1])
    time.sleep(60)
"""


@dying.needs_ulfm
def test_a_host_that_vanishes(tmp_path):
    note = tmp_path / "dies"
    printed = dying.run_text(
        tmp_path,
        VANISHES,
        note,
        hosts=(2, 2),
        flags=("--ft", "--kill", "1", "--when", str(note)),
    )
    assert printed.count("survived") == 2


def test_the_doctor_between_hosts():
    words = "--env 0:WARPMPI_HOST=a --env 1:WARPMPI_HOST=b"
    words += " --env 1:NCCL_IB_DISABLE=1"
    doctor = "-m", "warpmpi", "doctor", "--json", "--expect-hosts", "2"
    # An installed warpmpi, not that of the tree.
    printed = run(doctor, (2, 1), *words.split(), PYTHONSAFEPATH="1")
    told = json.loads(printed)
    (finding,) = told["findings"]
    assert "NCCL_IB_DISABLE is not alike" in finding["text"]
    for row in told["pairs"]:
        apart = 2 in (row["from"], row["to"])
        assert row["card"] == ("eth0" if apart else ""), row
    assert told["engines"]
    cards = told["ranks"][2]["host"]["cards"]
    assert [card["name"] for card in cards] == ["eth0"]


def test_nothing_is_left_of_a_job_that_is_killed(tmp_path):
    """Its hosts end with it, whose processes no group has."""
    note = tmp_path / "pids"
    program = f"""
import os, time
from mpi4py import MPI
with open({str(note)!r}, "a") as file:
    file.write(os.readlink("/proc/self/ns/net") + "\\n")
time.sleep(100)
"""
    words = [sys.executable, ranks.LAUNCH, "--ranks", "1", "1", "--"]
    child = subprocess.Popen(
        [*words, sys.executable, "-c", program],
        env=ranks.clean_environment(TMPDIR=str(tmp_path)),
    )

    def spaces():
        return note.read_text().split() if note.exists() else []

    def waits(condition, seconds):
        end = time.monotonic() + seconds
        while not condition() and time.monotonic() < end:
            time.sleep(0.1)
        assert condition()

    waits(lambda: len(spaces()) == 2 or child.poll() is not None, 60)
    assert child.poll() is None
    assert alive(spaces())
    child.send_signal(signal.SIGKILL)
    child.wait()
    waits(lambda: not alive(spaces()), 20)


def alive(spaces):
    """Whether any process is in one of these network namespaces."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{pid}/ns/net") in spaces:
                return True
        except OSError:
            pass
    return False
