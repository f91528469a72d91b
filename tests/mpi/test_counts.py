# SPDX-License-Identifier: BSD-3-Clause
"""More bytes, and more elements, than an int counts: WARPMPI_TEST_FULL=1."""

import os

import numpy as np
import pytest
from mpi4py import MPI

MANY = 2**31 + 7
ROOM = 3 * MANY  # sender's, receiver's, and a packed one of either


def available():
    with open("/proc/meminfo") as lines:
        for line in lines:
            if line.startswith("MemAvailable"):
                return 1024 * int(line.split()[1])
    return 0


pytestmark = [
    pytest.mark.skipif(
        os.environ.get("WARPMPI_TEST_FULL") != "1" or available() < 2 * ROOM,
        reason="needs WARPMPI_TEST_FULL=1 and 13 GB",
    ),
    pytest.mark.skipif(MPI.COMM_WORLD.size > 1, reason="to itself"),
]


def exchange(comm, sent, into, expected):
    status = MPI.Status()
    request = comm.Isend(sent, 0)
    comm.Recv(into, 0, 0, status)
    request.Wait()
    assert status.Get_elements(MPI.BYTE) == expected


def test_bytes(comm):
    sent, into = np.zeros(MANY, "u1"), np.empty(MANY, "u1")
    sent[[0, 2**31 - 1, 2**31, -1]] = 1, 2, 3, 4
    exchange(comm, sent, into, MANY)
    assert into[[0, 2**31 - 1, 2**31, -1]].tolist() == [1, 2, 3, 4]
    exchange(comm, [sent, MANY, MPI.BYTE], [into, MPI.BYTE], MANY)


def test_every_other_byte(comm):
    sent, into = np.zeros(2 * MANY, "u1"), np.empty(MANY, "u1")
    sent[[2, 2**32, -2]] = 1, 2, 3
    exchange(comm, sent[::2], into, MANY)
    assert into[[1, 2**31, -1]].tolist() == [1, 2, 3]


def test_elements_of_a_datatype_that_only_mpi_packs(comm):
    kind = MPI.BYTE.Create_indexed([1, 2], [0, 2]).Commit()  # 3 of 4
    count = MANY // 3 + 1
    sent, into = np.zeros(4 * count, "u1"), np.empty(3 * count, "u1")
    sent[[0, -2, -1]] = 1, 2, 3
    exchange(comm, [sent, count, kind], into, 3 * count)
    assert into[[0, -2, -1]].tolist() == [1, 2, 3]
    sent[:] = 0
    exchange(comm, into, [sent, count, kind], 3 * count)
    assert sent[[0, -2, -1]].tolist() == [1, 2, 3]
    kind.Free()


def test_elements_of_a_datatype_of_one_byte(comm):
    kind = MPI.BYTE.Dup()
    sent, into = np.zeros(MANY, "u1"), np.empty(MANY, "u1")
    sent[[0, 2**31, -1]] = 1, 2, 3
    exchange(comm, [sent, MANY, kind], [into, MANY, kind], MANY)
    assert into[[0, 2**31, -1]].tolist() == [1, 2, 3]
    kind.Free()


@pytest.mark.parametrize("gap", [0, 1])
def test_one_element_that_is_contiguous_but_for_its_element(comm, gap):
    """What programs make for an MPI that counts in int."""
    most, left = 2**31 - 1, 8
    element = MPI.BYTE.Create_resized(0, 1 + gap)
    rows = element.Create_vector(1, most, most)
    rest = element.Create_contiguous(left)
    places = [0, most * (1 + gap)]
    kind = MPI.Datatype.Create_struct([1, 1], places, [rows, rest]).Commit()
    sent = np.zeros(MANY * (1 + gap), "u1")
    into = np.empty(MANY, "u1")
    spread = sent[:: 1 + gap]
    spread[[0, most - 1, most, -1]] = 1, 2, 3, 4
    exchange(comm, [sent, 1, kind], into, MANY)
    assert into[[0, most - 1, most, -1]].tolist() == [1, 2, 3, 4]
    into[[0, most - 1, most, -1]] = 5, 6, 7, 8
    exchange(comm, into, [sent, 1, kind], MANY)
    assert spread[[0, most - 1, most, -1]].tolist() == [5, 6, 7, 8]
    kind.Free()


def test_one_element_of_uneven_pieces(comm):
    """MPI does not pack as many bytes, nor do they lie in strides."""
    lengths, places = [2**30, 3, 2**30 + 4], [8, 2**30 + 9, 2**30 + 100]
    kind = MPI.BYTE.Create_hindexed(lengths, places).Commit()
    sent, into = np.zeros(2**31 + 200, "u1"), np.empty(MANY, "u1")
    edges = [8, 2**30 + 7, 2**30 + 9, 2**30 + 11, 2**30 + 100, 2**31 + 103]
    found = [0, 2**30 - 1, 2**30, 2**30 + 2, 2**30 + 3, MANY - 1]
    sent[edges] = range(1, 7)
    exchange(comm, [sent, 1, kind], into, MANY)
    assert into[found].tolist() == [1, 2, 3, 4, 5, 6]
    assert np.count_nonzero(into) == 6
    into[found] = range(7, 13)
    exchange(comm, into, [sent, 1, kind], MANY)
    assert sent[edges].tolist() == [7, 8, 9, 10, 11, 12]
    assert np.count_nonzero(sent) == 6
    kind.Free()


def test_one_element_of_more(comm):
    """Its size is more than MPI's calls of before MPI 4 tell."""
    half = MPI.BYTE.Create_vector(2**30 + 5, 1, 2)
    kind = half.Create_hvector(2, 1, 2**31 + 16).Commit()
    sent = np.zeros(2**32 + 64, "u1")
    into = np.empty(2**31 + 10, "u1")
    sent[[0, 2**31 + 16, 2**32 + 24]] = 1, 2, 3
    exchange(comm, [sent, 1, kind], into, 2**31 + 10)
    assert into[[0, 2**30 + 5, -1]].tolist() == [1, 2, 3]
    kind.Free()
