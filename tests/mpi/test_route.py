# SPDX-License-Identifier: BSD-3-Clause
"""WARPMPI_LOG=route: the row that serves a message, and why others do not."""

import re

import pytest

import kinds
import ranks
import warpmpi as wm

pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU"),
]

LINE = re.compile(
    r"^warpmpi: route: rank (\d) (sends|receives) (\d+) bytes (?:to|from) "
    r"rank (\d) with tag (\d+): ([\w ,-]+?)(?: \((.*)\))?$",
    re.MULTILINE,
)
MESSAGES = """
    import os
    os.dup2(1, 2)
    import numpy as np
    from mpi4py import MPI
    import kinds
    import warpmpi as wm

    SHORT, LONG = 64, 1 << 20
    comm = wm.Comm(MPI.COMM_WORLD)
    stream = wm.Stream()
    host = lambda count: np.zeros(count, np.uint8)
    gpu = lambda count: wm.array(host(count))
    foreign = lambda count: kinds.Foreign(count, np.uint8, "pool")
    column = lambda count: wm.array(np.zeros((count, 2), np.uint8))[:, 0]
    for tag, (make, count, on) in enumerate([
        (host, SHORT, comm),
        (host, LONG, comm),
        (gpu, SHORT, comm),
        (gpu, LONG, comm),
        (foreign, SHORT, comm),
        (foreign, LONG, comm),
        (column, SHORT, comm),
        (column, LONG, comm),
        (gpu, SHORT, comm.on(stream)),
        (gpu, LONG, comm.on(stream)),
    ]):
        array = make(count)
        if comm.rank == 0:
            on.Send(array, 1, tag)
        else:
            on.Recv(array, 0, tag)
        stream.synchronize()
    array, other = gpu(SHORT), gpu(SHORT)
    if comm.rank == 0:
        comm.Sendrecv(array, 0, 10, other, 0, 10)
    comm.Barrier()
"""


def routes(text):
    """The row and the reasons of each end, by its tag."""
    found = {"sends": {}, "receives": {}}
    for rank, what, nbytes, peer, tag, row, why in LINE.findall(text):
        tag = int(tag)
        ends = (rank, peer) if what == "sends" else (peer, rank)
        assert ends == (("0", "0") if tag == 10 else ("0", "1"))
        assert tag not in found[what], text
        assert nbytes == ("64" if tag in (0, 2, 4, 6, 8, 10) else "1048576")
        found[what][tag] = row, why
    return found


def test_each_end_names_its_row_and_why_others_are_not(tmp_path):
    found = routes(ranks.run_text(tmp_path, MESSAGES, WARPMPI_LOG="route"))
    rows = [found["sends"][tag][0] for tag in range(11)]
    assert rows == [
        "inline",
        "chunks",
        "plain offer",
        "plain offer",
        "device eager",
        "hand-off",
        "device eager",
        "packed, plain offer",
        "device eager",
        "plain offer",
        "self",
    ]
    assert found["sends"][0][1] == ""
    assert found["sends"][1][1] == (
        "not inline: longer than 4 KiB; not device eager: host memory; "
        "not self: another process; "
        "not plain offer, hand-off, staged: host memory"
    )
    assert found["sends"][5][1] == (
        "not inline: GPU memory; not device eager: longer than 64 KiB; "
        "not self: another process; "
        "not plain offer: CUDA IPC does not export the memory"
    )
    assert "device eager: the same process" in found["sends"][10][1]
    rows = [found["receives"][tag][0] for tag in range(11)]
    assert [re.sub(" by ipc", "", row) for row in rows] == [
        "inline",
        "chunks",
        "pull",
        "pull",
        "device eager",
        "pull",
        "device eager",
        "pull",
        "stream fetches",
        "stream copies",
        "pull by self",
    ]
    assert found["receives"][3][1].startswith("not pushed: ")
    assert found["receives"][9][1].endswith(
        "not stream fetches: the data is not in an eager LL buffer"
    )


def test_a_message_through_the_host_says_who_wanted_that(tmp_path):
    text = """
        import os
        os.dup2(1, 2)
        import numpy as np
        from mpi4py import MPI
        import warpmpi as wm

        comm = wm.Comm(MPI.COMM_WORLD)
        array = wm.array(np.zeros(1 << 20, np.uint8))
        if comm.rank == 0:
            comm.Send(array, 1)
        else:
            comm.Recv(array, 0)
    """
    settings = {"WARPMPI_LOG": "route", "WARPMPI_TRANSPORT": "host"}
    lines = LINE.findall(ranks.run_text(tmp_path, text, **settings))
    told = [(row, why) for _, what, *_, row, why in lines if what == "sends"]
    assert [row for row, _ in told] == ["staged", "staging ring"]
    assert "not plain offer, hand-off: WARPMPI_TRANSPORT=host" in told[0][1]
    assert told[1][1] == "not staged: the receiver asked to stage"
    (receiver,) = (row for _, what, *_, row, _ in lines if what == "receives")
    assert receiver == "pull by host"


@pytest.mark.skipif(kinds.is_real(), reason="the simulated driver is silent")
def test_nothing_is_told_unasked(tmp_path):
    assert ranks.run_text(tmp_path, MESSAGES, WARPMPI_LOG="") == ""


COLLECTIVES = """
    import os
    os.dup2(1, 2)
    import numpy as np
    from mpi4py import MPI
    import warpmpi as wm

    comm = wm.Comm(MPI.COMM_WORLD)
    host, gpu = np.zeros(16), wm.zeros(16, "float64")
    comm.Allreduce(MPI.IN_PLACE, gpu)
    comm.Iallreduce(MPI.IN_PLACE, gpu).Wait()
    comm.Bcast(host if comm.rank == 0 else gpu)
"""


# Rank 1's: the engine of each call, and why others do not serve.
ENGINES = {
    "": [
        ("Allreduce", "copies", ""),
        ("Allreduce", "copies", ""),
        ("Bcast", "mpi", "not copies, kernels: does not serve another rank"),
    ],
    "host": [
        ("Allreduce", "kernels", "not copies: does not serve this rank"),
        (
            "Bcast",
            "mpi",
            "not copies: does not serve this rank; "
            "not kernels: does not serve another rank",
        ),
    ],
}


@pytest.mark.parametrize("transport", ENGINES)
def test_each_collective_names_its_engine(tmp_path, transport):
    """A rank with host memory does not wait for the choice: it has no line."""
    text = ranks.run_text(
        tmp_path, COLLECTIVES, WARPMPI_LOG="route", WARPMPI_TRANSPORT=transport
    )
    found = re.findall(
        r"^warpmpi: route: rank (\d) of 2, (\w+) of 128 bytes: (\w+)"
        r"(?: \((.*)\))?$",
        text,
        re.MULTILINE,
    )
    # Engines between hosts, and toys.
    others = re.compile("not [a-z_, ]+: not for this communicator")
    found = [
        (
            rank,
            *row,
            "; ".join(
                part for part in why.split("; ") if not others.fullmatch(part)
            ),
        )
        for rank, *row, why in found
    ]
    assert [row[1:] for row in found if row[0] == "1"] == ENGINES[transport]
    assert [row[1:] for row in found if row[0] == "0"] == [
        row for row in ENGINES[transport] if row[0] != "Bcast"
    ]
