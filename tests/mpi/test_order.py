# SPDX-License-Identifier: BSD-3-Clause
"""Which message a receive or a probe gets, by MPI's rules, at random.

The same as the program tests/random_order.py, whose model plain mpi4py shows
to be right. WARPMPI_TEST_SEED gives other plans, WARPMPI_TEST_FULL=1 more.
"""

import os

import pytest

import kinds
import random_order
import ranks
import warpmpi as wm

SEED = int(os.environ.get("WARPMPI_TEST_SEED", "1"))
FULL = os.environ.get("WARPMPI_TEST_FULL") == "1"
PROGRAM = ranks.ROOT / "tests" / "random_order.py"


@pytest.mark.parametrize("whose", ["stock", "host", "all"])
def test_what_comes_out(world, whose):
    comm = world if whose == "stock" else wm.Comm(world)
    used = kinds.KINDS if whose == "all" else ("host",)
    random_order.run(comm, SEED, 0, 200 if FULL else 10, used)


SETTINGS = {
    "two hosts": (["--apart", "2"], {}),
    "stops": (["--stops"], {}),
    "by the host": ([], {"WARPMPI_TRANSPORT": "host"}),
    "no thread": ([], {"MPI4PY_RC_THREAD_LEVEL": "serialized"}),
}


@pytest.mark.programs
@pytest.mark.skipif(kinds.is_real(), reason="needs the simulated driver")
@pytest.mark.parametrize("name", list(SETTINGS))
def test_what_comes_out_where(name):
    if name in ("stops", "by the host") and not FULL:
        pytest.skip("only with WARPMPI_TEST_FULL=1")
    words, environment = SETTINGS[name]
    count = 100 if FULL else 3
    printed = ranks.run(
        PROGRAM,
        *f"--seed {SEED} --plans {count} --patience 60".split(),
        *words,
        ranks=4 if name == "two hosts" else 2,
        timeout=580,
        PYTHONWARNINGS="ignore",
        SIMCUDA_LAZY_US="3000",
        **environment,
    )
    assert "every one right" in printed
    assert ("stopped 0 times" in printed) == (name != "stops"), printed
