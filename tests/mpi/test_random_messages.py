# SPDX-License-Identifier: BSD-3-Clause
"""Messages of all forms and kinds of memory at random, each byte verified.

The same as the program tests/random_messages.py, which says how to see a
failure again. WARPMPI_TEST_SEED gives others, WARPMPI_TEST_FULL=1 more.
"""

import os

import pytest
from mpi4py import MPI

import kinds
import random_messages
import ranks
from warpmpi import _core

SEED = int(os.environ.get("WARPMPI_TEST_SEED", "1"))
FULL = os.environ.get("WARPMPI_TEST_FULL") == "1"
PROGRAM = ranks.ROOT / "tests" / "random_messages.py"

pytestmark = pytest.mark.skipif(
    MPI.Query_thread() < MPI.THREAD_MULTIPLE,
    reason="uses the stock waits of mpi4py",
)


@pytest.mark.parametrize("seed", [SEED, SEED + 1])
def test_random_messages(world, seed):
    count = 10_000 if kinds.is_real() else 300
    size = 4 << 20 if kinds.is_real() else 100_000
    random_messages.run(
        world,
        f"--seed {seed} --messages {count} --max-bytes {size} "
        "--patience 0".split(),
    )


# What nobody demands runs a little sooner here, as there is so much of it.
SETTINGS = {
    "lazy": {},
    "delayed": {"SIMCUDA_MODE": "delay", "SIMCUDA_DELAY_US": "500"},
    "at once": {"SIMCUDA_MODE": "eager"},
    "without peer access": {"SIMCUDA_PEER": "0"},
    "without IPC": {"SIMCUDA_IPC": "0"},
    "by the host": {"WARPMPI_TRANSPORT": "host"},
    "by MPI": {"WARPMPI_TRANSPORT": "mpi", "SIMCUDA_OPEN": "1"},
    "by a file": {"WARPMPI_TRANSPORT": "file"},
    "by UCX": {"WARPMPI_TRANSPORT": "ucx", "OMPI_MCA_pml": "ob1"},
    "one GPU for all": {"SIMCUDA_DEVICES": "1"},
    "apart": {},
    "two hosts": {},
    "freed": {},
    "freed between hosts": {},
    "stops": {},
    "no thread": {"MPI4PY_RC_THREAD_LEVEL": "serialized"},
    "freed without a thread": {"MPI4PY_RC_THREAD_LEVEL": "funneled"},
}
LONG = "two hosts", "no thread"  # others have the most of it
WORDS = {
    "apart": "--apart",
    "two hosts": "--apart 2",
    "freed": "--freed",
    "freed between hosts": "--freed --apart 2",
    "stops": "--freed --stops",
    "freed without a thread": "--freed",
}


@pytest.mark.programs
@pytest.mark.skipif(kinds.is_real(), reason="needs the simulated driver")
@pytest.mark.parametrize("number", [2, 4])
@pytest.mark.parametrize("name", list(SETTINGS))
def test_random_messages_where(name, number):
    if name == "by a file" and "file" not in _core._links():
        pytest.skip("built without tests/toys")
    settings = dict(SETTINGS[name])
    if name == "by UCX":  # its double takes the place of MPI's own
        if not MPI.Get_library_version().startswith("Open MPI"):
            pytest.skip("this MPI may need UCX itself")
        settings["LD_LIBRARY_PATH"] = str(ranks.ROOT / "build" / "simucx")
    hosts = "--apart 2" in WORDS.get(name, "")
    if number == 2 and hosts:
        pytest.skip("both would be on one host")
    here = name not in LONG and (number == 2 or hosts or name == "lazy")
    if not here and not FULL:
        pytest.skip("only with WARPMPI_TEST_FULL=1")
    words = f"--seed {SEED + number} --max-bytes 300000 --patience 60".split()
    count = 200 if name == "stops" else 500 if name in WORDS else 1500
    words += ["--messages", str(33 * count if FULL else count)]
    words += WORDS.get(name, "").split()
    # The simulated driver says that MPI is CUDA-aware, then.
    preload = "LD_PRELOAD=" + os.environ.get("WARPMPI_CUDA_DRIVER", "")
    printed = ranks.run(
        PROGRAM,
        *words,
        ranks=number,
        timeout=580,
        wrapper=["env", preload] * (name == "by MPI"),
        PYTHONWARNINGS="ignore",
        SIMCUDA_LAZY_US="3000",
        **settings,
    )
    assert "every one right" in printed
    assert "stopped 0 times" not in printed
    assert "gives up" not in printed
