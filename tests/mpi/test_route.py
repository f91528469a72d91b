# SPDX-License-Identifier: BSD-3-Clause
"""WARPMPI_LOG=route: the row that serves a message, and why others do not."""

import re

import pytest

import ranks
import warpmpi as wm

pytestmark = pytest.mark.programs

LINE = re.compile(
    r"^warpmpi: route: rank (\d) (sends|receives) (\d+) bytes (?:to|from) "
    r"rank (\d) with tag (\d+): ([\w ]+?)(?: \((.*)\))?$",
    re.MULTILINE,
)
MESSAGES = """
    import os
    os.dup2(1, 2)
    import numpy as np
    from mpi4py import MPI
    import warpmpi as wm

    comm = wm.Comm(MPI.COMM_WORLD)
    for tag, (nbytes, kind) in enumerate([
        (8, "numpy"), (1 << 20, "numpy"), (1 << 20, "cuda"),
    ]):
        array = np.zeros(nbytes, np.uint8)
        if kind == "cuda":
            array = wm.array(array)
        if comm.rank == 0:
            comm.Send(array, 1, tag)
        else:
            comm.Recv(array, 0, tag)
    comm.Barrier()
"""


def routes(text):
    """The rows, by who and tag."""
    found = {}
    for rank, what, nbytes, peer, tag, row, why in LINE.findall(text):
        assert (rank, peer) == (("0", "1") if what == "sends" else ("1", "0"))
        assert (what, int(tag)) not in found, text
        found[what, int(tag)] = (int(nbytes), row, why)
    return found


needs_gpu = pytest.mark.skipif(
    not wm.is_cuda_available(), reason="needs a GPU"
)


@needs_gpu
def test_each_end_of_a_message_names_its_row(tmp_path):
    text = ranks.run_text(tmp_path, MESSAGES, WARPMPI_LOG="route")
    assert {each: row[:2] for each, row in routes(text).items()} == {
        ("sends", 0): (8, "inline"),
        ("receives", 0): (8, "inline"),
        ("sends", 1): (1 << 20, "chunks"),
        ("receives", 1): (1 << 20, "chunks"),
        ("sends", 2): (1 << 20, "plain offer"),
        ("receives", 2): (1 << 20, "pull"),
    }


@needs_gpu
def test_nothing_is_told_unasked(tmp_path):
    assert ranks.run_text(tmp_path, MESSAGES, WARPMPI_LOG="") == ""
