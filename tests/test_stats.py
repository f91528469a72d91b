# SPDX-License-Identifier: BSD-3-Clause
"""The counters: a dict that prints as a table."""

import copy
import json
import pickle

import warpmpi as wm
from warpmpi._stats import Stats


def test_it_is_a_dict_of_ints():
    stats = wm.stats()
    assert isinstance(stats, dict)
    assert set(map(type, stats.values())) == {int}
    assert "ipc_bytes" in stats
    assert json.loads(json.dumps(stats)) == stats
    assert repr(stats) == repr(dict(stats))
    for same in pickle.loads(pickle.dumps(stats)), copy.deepcopy(stats):
        assert type(same) is dict
        assert same == stats


def test_it_prints_what_is_not_zero_with_units():
    stats = Stats(ipc_messages=12, ipc_bytes=96_000_000, mpi_bytes=0)
    stats["mappings_hit"] = 3
    assert str(stats).splitlines() == [
        "ipc_messages          12 messages",
        "ipc_bytes     96,000,000 bytes",
        "mappings_hit           3 mappings",
    ]
    assert str(Stats(dict.fromkeys(wm.stats(), 1)))  # all have a unit
    assert str(Stats(own=5)) == "own  5"
    assert str(Stats(mpi_bytes=0)) == "all counters are 0"
