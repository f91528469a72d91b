# SPDX-License-Identifier: BSD-3-Clause
"""Writes warpmpi/_calls.pyi, the types of calls that tables describe.

    python build_tools/stubs.py [--check]

Message calls have the parameters of their docstrings (`calls.h` lists their
names), collectives those of `coll_table.h`; so the core must be built.
--check writes nothing, and exits with 1 if the file is another.
"""

import inspect
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PATH = ROOT / "warpmpi" / "_calls.pyi"
CALLS = ROOT / "src/python/comm/calls.h"

HEAD = """# SPDX-License-Identifier: BSD-3-Clause
# Written by build_tools/stubs.py from the tables of the sources: do not edit.
from collections.abc import Sequence

from mpi4py import MPI
from mpi4py.typing import BufSpec, BufSpecB, BufSpecV, BufSpecW, InPlace

from warpmpi._comm import _Communicator
from warpmpi._core import PartitionedRequest, Prequest, Request
from warpmpi._typing import OpLike
"""
# Of a parameter of a message, without and with None as its default.
TYPES = {"buf": "BufSpec", "sendbuf": "BufSpec", "recvbuf": "BufSpec"}
TYPES |= {"status": "MPI.Status", "info": "MPI.Info"}
FORMS = {"": "BufSpec", "n": "BufSpecB", "v": "BufSpecV", "w": "BufSpecW"}
# Results of a blocking, a nonblocking and a persistent call.
OURS = "None", "Request", "Prequest"
MPIS = "None", "MPI.Request", "MPI.Prequest"
WITHOUT_AVERAGE = "Scan", "Exscan"  # each rank reduces other ranks


def method(name, parameters, result):
    words = ", ".join(["self", *parameters])
    return f"    def {name}({words}) -> {result}: ...\n"


def message_parameter(parameter):
    """A parameter of a message call, typed by its name."""
    kind = TYPES.get(parameter.name, "int")
    if parameter.default is parameter.empty:
        return f"{parameter.name}: {kind}"
    if parameter.default is None:
        return f"{parameter.name}: {kind} | None = None"
    # MPI.ANY_SOURCE and MPI.ANY_TAG have no number that is sure.
    default = parameter.default if parameter.default == 0 else "..."
    return f"{parameter.name}: {kind} = {default}"


def message_calls(core):
    """Give the methods of a communicator and of a stream."""
    listed = CALLS.read_text().split("WM_PY_MESSAGE_CALLS(X)", 1)[1]
    names = re.findall(r"X\((\w+)\)", listed.split("\n\n", 1)[0])
    for name in names:
        signature = inspect.signature(getattr(core.CommMethods, name))
        given = list(signature.parameters.values())[1:]
        result = OURS[2] if name.endswith("_init") else OURS[name[0] == "I"]
        if "partitions" in signature.parameters:
            result = "PartitionedRequest"
        yield method(name, map(message_parameter, given), result)


def buffers(row):
    """The types of the buffers of a collective."""
    name, names, sends, receives, from_root, to_root, _ = row
    if "sendbuf" not in names:
        return {"buf": FORMS[sends]}
    sent, received = FORMS[sends], FORMS[receives]
    if from_root:  # others send nothing, and the root may be in place
        return {
            "sendbuf": f"{sent} | None",
            "recvbuf": f"{received} | InPlace",
        }
    if not name.startswith("Neighbor_"):
        sent += " | InPlace"
    return {"sendbuf": sent, "recvbuf": received + " | None" * to_root}


def parameters(row, averages, counts="Sequence[int]"):
    types = buffers(row)
    types |= {
        "op": f"{'OpLike' if averages else 'MPI.Op'} = ...",
        "root": "int = 0",
        "recvcounts": counts,
    }
    return [f"{name}: {types[name]}" for name in row[1]]


def stream_calls(core):
    """Give the collectives of a stream."""
    rows = [("Barrier", (), "", "", False, False, False)]
    rows += core._collectives()
    for begins in (False, True):
        for row in rows:
            name = "I" + row[0].lower() if begins else row[0]
            given = parameters(row, row[0] not in WITHOUT_AVERAGE)
            yield method(name, given, OURS[begins])


def averaging_calls(core):
    """Give the collectives that take wm.AVG beside what mpi4py's take."""
    rows = [row for row in core._collectives() if "op" in row[1]]
    for form in range(3):
        for row in rows:
            name = row[0]
            if name in WITHOUT_AVERAGE:
                continue
            given = parameters(row, True, "Sequence[int] | None = None")
            if name == "Reduce_scatter_block":
                given[1] += " | BufSpecB"  # as mpi4py
            if form == 2:
                given.append("info: MPI.Info = ...")
            name = (name, "I" + name.lower(), name + "_init")[form]
            yield method(name, given, MPIS[form])


def written():
    sys.path.insert(0, str(ROOT))
    import mpi4py

    mpi4py.rc.initialize = False  # the core needs no running MPI
    from warpmpi import _core

    text = HEAD
    for declared, calls in (
        ("class _Messages:", message_calls),
        ("class _Collectives:", stream_calls),
        ("class _Averages(_Communicator):", averaging_calls),
    ):
        text += f"\n{declared}\n{''.join(calls(_core))}"
    ruff = Path(sys.executable).with_name("ruff")
    program = str(ruff) if ruff.exists() else "ruff"
    return subprocess.run(
        [program, "format", "--stdin-filename", str(PATH), "-"],
        input=text,
        capture_output=True,
        check=True,
        text=True,
    ).stdout


def main():
    text = written()
    if "--check" not in sys.argv[1:]:
        PATH.write_text(text)
    elif not PATH.exists() or PATH.read_text() != text:
        sys.exit(
            "warpmpi/_calls.pyi is not what the tables of the sources give: "
            "run python build_tools/stubs.py"
        )


if __name__ == "__main__":
    main()
