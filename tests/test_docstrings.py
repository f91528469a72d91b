# SPDX-License-Identifier: BSD-3-Clause
"""Docstrings say what a call does with GPU arrays."""

import inspect
import re

import pytest
from mpi4py import MPI

import warpmpi as wm
from cases import TABLE

TYPES = {
    wm.Comm: MPI.Intracomm,
    wm.Cartcomm: MPI.Cartcomm,
    wm.Graphcomm: MPI.Graphcomm,
    wm.Distgraphcomm: MPI.Distgraphcomm,
    wm.Intercomm: MPI.Intercomm,
    wm.Request: MPI.Request,
    wm.Prequest: MPI.Prequest,
    wm.Message: MPI.Message,
    wm.StreamComm: MPI.Cartcomm,
}
# Attributes of a communicator: objects that no message carries.
ATTRIBUTES = {"Create_keyval", "Get_attr", "Set_attr"}


def moves_data(stock):
    """Tell by mpi4py's types if a call takes or gives a buffer or an object.

    The docstring has the types: the signature lacks them in some versions.
    """
    declared = (stock.__doc__ or "").strip().split("\n")[0]
    return re.search(r"\b(Buf\w*|Any)\b", declared) is not None


def calls_of(ours):
    stock = TYPES[ours]
    for name in dir(ours):
        of_mpi4py = getattr(stock, name, None)
        if name[0] == "_" or name in ATTRIBUTES or not callable(of_mpi4py):
            continue
        if moves_data(of_mpi4py):
            yield name


@pytest.mark.parametrize("ours", TYPES, ids=lambda ours: ours.__name__)
def test_calls_that_move_data_tell_of_gpu_arrays(ours):
    names = list(calls_of(ours))
    wrong = [
        name
        for name in names
        if not re.search(r"\bGPU\b", getattr(ours, name).__doc__ or "")
    ]
    assert not wrong
    for name in names:  # paragraphs, and indented lines below a text
        text = inspect.cleandoc(getattr(ours, name).__doc__)
        assert not re.search(r"\n \S|\n\n\n", text), name
    assert len(names) >= (50 if "omm" in ours.__name__ else 3)


def of_class(ours):
    """The types of communicators in jobs with GPUs and without."""
    from warpmpi import _comm

    return ours, _comm._OF_HOSTS[ours]


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("form", ["", "I", "_init"])
def test_collectives_describe_their_arguments_in_all_forms(name, form):
    call = f"I{name[0].lower()}{name[1:]}" if form == "I" else name
    call += "_init" * (form == "_init")
    for ours in of_class(wm.Cartcomm):
        method = getattr(ours, call)
        text = method.__doc__
        assert text.startswith(f"{call}(self, ")  # mpi4py's own first
        for argument in TABLE[name].arguments:
            assert f"\n{argument}: " in text, argument
        assert "Raises TypeError" in text and "wm.CudaError" in text
        wanted = {"": "When the call returns", "I": "wm.Request"}
        assert wanted.get(form, "wm.Prequest") in text
        assert max(map(len, text.split("\n")[1:])) < 80
        parameters = set(inspect.signature(method).parameters)
        assert parameters - {"info"} == {"self", *TABLE[name].arguments}


def test_what_a_collective_tells_depends_on_its_row():
    def told(name):
        return getattr(wm.Cartcomm, name).__doc__

    assert "wm.AVG" in told("Allreduce") and "wm.AVG" not in told("Scan")
    assert "IN_PLACE on the root" in told("Gather")
    assert "IN_PLACE: this" in told("Allreduce").replace("\n", " ")
    for name in ("Neighbor_alltoallw", "Bcast"):
        assert "IN_PLACE" not in told(name)
    assert "for each neighbor" in told("Neighbor_alltoallv")
    assert "in bytes" in told("Alltoallw")
    assert "other ranks may give None" in told("Scatter")
    assert "other ranks may give None" not in told("Allgather")


def test_makers_tell_what_the_new_communicator_takes():
    for name in ("Dup", "Split", "Create_cart", "Idup", "Create_intercomm"):
        assert "takes GPU arrays" in getattr(wm.Comm, name).__doc__
    for name in ("Spawn", "Connect"):
        assert "refuses GPU arrays" in getattr(wm.Comm, name).__doc__


def test_calls_that_no_library_does_between_hosts_are_told():
    """Nonblocking ones, of which no rank knows the others' lengths."""
    left = {
        name
        for name in calls_of(wm.Cartcomm)
        if "page-locked" in (text := getattr(wm.Cartcomm, name).__doc__)
        and "any MPI" in text
        and "NCCL" not in text
    }
    unknown = {"Igatherv", "Iscatterv", "Ialltoallv", "Ialltoallw"}
    assert {n for n in left if not n.startswith("Ineighbor")} == unknown
    assert len(left) == len(unknown) + 5
