# SPDX-License-Identifier: BSD-3-Clause
"""The command line of `bench`: nccl-tests' options, and more."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from .ops import COLLECTIVES, MESSAGES, LeftOut, Op
from .ways import RIVALS

GROUPS = {
    "p2p": list(MESSAGES),
    "collectives": list(COLLECTIVES),
    "all": [*COLLECTIVES, *MESSAGES],
}
ARRAYS = "wm", "cupy", "torch", "numpy"
# nccl-tests' names of types, beside NumPy's.
_SHORT = {"half": "float16", "float": "float32", "double": "float64"}
_TYPES = [
    *"int8 uint8 int16 uint16 int32 uint32 int64 uint64".split(),
    *"float16 bfloat16 float32 float64 complex64 complex128".split(),
]
_OPS = "sum", "prod", "max", "min", "avg"
_AVERAGED = "Allreduce", "Reduce", "Reduce_scatter", "Reduce_scatter_block"
_EPILOG = f"""\
NAME: {", ".join(GROUPS["all"])}; p2p, collectives, all. SIZE: 8, 4K, 1M, 1G
are bytes. docs/bench.md tells what is timed, and how the columns are made.
"""


class BadOption(Exception):
    """What is wrong with the command line, and the cure."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BadOption(message)


def size(text: str) -> int:
    """Return the bytes of "8", "4K", "1.5M" or "1GiB"."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text, re.I)
    number = 0.0
    if found:
        power = " KMGT".index(found[2].upper() or " ")
        number = float(found[1]) * 1024**power
    if number < 1 or number != int(number) or number > 1 << 50:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no size: give bytes, as 8, 4K, 1M or 1G"
        )
    return int(number)


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(
                f"{text!r} is no whole number from {least} on"
            )
        return int(text)

    return number


def _words(known: Sequence[str]) -> Callable[[str], list[str]]:
    def words(text: str) -> list[str]:
        found = [_SHORT.get(word, word) for word in text.split(",") if word]
        wrong = [word for word in found if word not in known]
        if wrong or not found:
            raise argparse.ArgumentTypeError(
                f"{(wrong or [text])[0]!r} is none of {', '.join(known)}"
            )
        return list(dict.fromkeys(found))

    return words


def parser() -> argparse.ArgumentParser:
    """Return the parser, whose errors are BadOption."""
    made = _Parser(
        prog="python -m warpmpi bench",
        description="Time messages and collectives, beside other libraries.",
        epilog=_EPILOG,
        allow_abbrev=False,
    )
    add = made.add_argument
    whole, some = _at_least(1), _at_least(0)
    known = [*GROUPS, *GROUPS["all"]]
    add("names", metavar="NAME", nargs="+", type=_words(known))
    add("-b", "--minbytes", metavar="SIZE", type=size, help="the first (8)")
    add("-e", "--maxbytes", metavar="SIZE", type=size, help="the last (64M)")
    add(
        "-f",
        "--stepfactor",
        metavar="N",
        type=_at_least(2),
        help="to next (4)",
    )
    add("-i", "--stepbytes", metavar="SIZE", type=size, help="instead of -f")
    add(
        "-n",
        "--iters",
        metavar="N",
        type=whole,
        help="calls of a turn (20 ms)",
    )
    add("-w", "--warmup_iters", metavar="N", type=some, default=5, help="(5)")
    add("-c", "--check", type=int, choices=(0, 1), default=1, help="data (1)")
    add(
        "-d", "--datatype", metavar="TYPE", type=_words(_TYPES), help="(float)"
    )
    add("-o", "--op", metavar="OP", type=_words(_OPS), help="reduction (sum)")
    add("-r", "--root", metavar="RANK", type=some, default=0, help="(0)")
    add("-g", "--ngpus", metavar="1", type=whole, default=1, help="of a rank")
    add("--array", choices=ARRAYS, default="wm", help="whose arrays (wm)")
    add("--stream", action="store_true", help="calls of comm.on(stream)")
    add("--graph", action="store_true", help="the same in a CUDA graph")
    add("--against", metavar="NAME", type=_words(tuple(RIVALS)), default=[])
    add("-T", "--timeout", metavar="S", type=whole, default=300, help="(300)")
    add("--turns", metavar="N", type=whole, default=9, help="of each (9)")
    add("--json", metavar="FILE", help="write all samples and facts")
    add("--plot", metavar="FILE", help="draw .svg or .png (matplotlib)")
    return made


def parse(words: list[str]) -> argparse.Namespace:
    """Return the options. BadOption."""
    found = parser().parse_args(words)
    names = [name for each in found.names for name in each]
    every = [each for name in names for each in GROUPS.get(name, [name])]
    found.names = list(dict.fromkeys(every))
    if found.ngpus != 1:
        raise BadOption(
            "argument -g: a rank has one GPU: start a rank for each"
        )
    if found.stepfactor and found.stepbytes:
        raise BadOption("arguments -f and -i: give one of them")
    if found.stream and found.graph:
        raise BadOption("arguments --stream and --graph: give one of them")
    found.mode = "graph" if found.graph else "synced"
    found.mode = "stream" if found.stream else found.mode
    found.minbytes = found.minbytes or min(8, found.maxbytes or 8)
    found.maxbytes = found.maxbytes or max(64 << 20, found.minbytes)
    if found.maxbytes < found.minbytes:
        raise BadOption(
            f"argument -e: {found.maxbytes} bytes are less than the "
            f"{found.minbytes} of -b"
        )
    if found.plot and not found.plot.lower().endswith((".svg", ".png")):
        raise BadOption(
            "argument --plot: name a file that ends in .svg or .png"
        )
    found.datatype = found.datatype or ["float32"]
    found.ops = [*operations(found)]
    return found


def operations(found: argparse.Namespace) -> Iterator[tuple[str, Op]]:
    """Make what is to be timed, with its name. BadOption."""
    for name in found.names:
        make = {**COLLECTIVES, **MESSAGES}[name]
        kinds = found.datatype[:1] if name == "barrier" else found.datatype
        for kind in kinds:
            for op in (found.op or ["sum"]) if make().reduces else ["sum"]:
                try:
                    made = make(kind=kind, op=op, root=found.root)
                except LeftOut as why:
                    raise BadOption(f"argument -d: {why}") from None
                check_reduction(name, made)
                yield name, made


def check_reduction(name: str, op: Op) -> None:
    """Refuse what MPI cannot reduce. BadOption."""
    if op.op == "avg" and op.name not in _AVERAGED:
        raise BadOption(f"argument -o: {name} has no avg")
    if op.op == "avg" and op.dtype.kind in "iu":
        raise BadOption(
            f"argument -o: avg is of floating point, not {op.kind}"
        )
    if op.op in ("max", "min") and op.dtype.kind == "c":
        raise BadOption(f"argument -o: {op.op} is not of {op.kind}")


def sizes(found: Any) -> list[int]:
    """Return the bytes of all rows."""
    every, nbytes = [], found.minbytes
    while nbytes <= found.maxbytes:
        every.append(nbytes)
        if found.stepbytes:
            nbytes += found.stepbytes
        else:
            nbytes *= found.stepfactor or 4
    return every
