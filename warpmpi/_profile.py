# SPDX-License-Identifier: BSD-3-Clause
"""Host times of calls, and NVTX ranges: the methods are wrapped meanwhile."""

from __future__ import annotations

import functools
import importlib
import threading
from collections.abc import Callable, Iterator
from time import perf_counter_ns
from types import TracebackType
from typing import Any, NamedTuple

import warpmpi as wm

from . import _comm, _core, _install

__all__ = ["CallTimes", "Profile", "profile"]

# Their methods are timed, and those of the classes of ours below them.
_TYPES = """
    Comm Cartcomm Graphcomm Distgraphcomm Intercomm StreamComm
    Request Prequest Message SharedArray Win StreamWin
    Halo HaloPlan HaloExchange
""".split()
_BOUND = "classmethod", "staticmethod"
# Modules whose first two functions here open and close a range.
_MARKERS = {
    "nvtx": ("push_range", "pop_range"),
    "cupy.cuda.nvtx": ("RangePush", "RangePop"),
    "torch.cuda.nvtx": ("range_push", "range_pop"),
}


class CallTimes(NamedTuple):
    """How often a method was called, and the host's microseconds."""

    calls: int
    microseconds: float
    longest: float

    @property
    def mean(self) -> float:
        """Microseconds of a call, on average."""
        return self.microseconds / self.calls


def _markers() -> tuple[Callable[[str], Any], Callable[[], Any]]:
    """Find a module that makes NVTX ranges."""
    for module, (push, pop) in _MARKERS.items():
        try:
            found = importlib.import_module(module)
        except ImportError:
            continue
        return getattr(found, push), getattr(found, pop)
    raise ImportError(
        "nvtx=True needs a package that makes NVTX ranges: `pip install nvtx`"
        " (CuPy and PyTorch can make them, too)"
    )


def _types() -> Iterator[tuple[str, type]]:
    """Give our communicating types, and their names."""
    for name in _TYPES:
        yield name, getattr(wm, name)
    for type_, of_hosts in _comm._OF_HOSTS.items():  # of jobs without GPUs
        yield type_.__name__, of_hosts


def _methods() -> Iterator[tuple[type, str, str]]:
    """Give the methods of these types: type, name, label."""
    seen = set()
    for public, type_ in _types():
        for kind in type_.__mro__:
            if kind in seen or not kind.__module__.startswith("warpmpi"):
                continue
            seen.add(kind)
            for name, value in vars(kind).items():
                bound = type(value).__name__.startswith(_BOUND)
                if not bound and not callable(value):
                    continue
                if name == "__call__":
                    yield kind, name, f"{public}()"
                elif not name.startswith("_"):
                    yield kind, name, f"{public}.{name}"
    if _install._installed:
        for kind, name, _ in _install.CLASS_CALLS:
            if name in vars(kind):
                yield kind, name, f"{kind.__name__}.{name}"


def _put(kind: type, name: str, value: Any) -> None:
    """Set an attribute of a class, of an immutable one too."""
    try:
        setattr(kind, name, value)
    except TypeError:
        _core._patch(kind, name, value)


class Profile(dict[str, CallTimes]):
    """The times of calls by name, printed as a table."""

    _open: Profile | None = None

    def __init__(self, *, nvtx: bool = False) -> None:
        super().__init__()
        self.stats: dict[str, int] = {}
        self._marks = _markers() if nvtx else None
        self._former: list[tuple[type, str, Any]] = []
        self._inside = threading.local()
        self._lock = threading.Lock()

    def __enter__(self) -> Profile:
        """Wrap the methods."""
        if Profile._open is not None:
            raise RuntimeError("wm.profile(): another block is open")
        Profile._open = self
        self.stats = dict(wm.stats())
        for kind, name, label in list(_methods()):
            former = vars(kind)[name]
            _put(kind, name, self._wrapped(former, label))
            self._former.append((kind, name, former))
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Put the methods back."""
        while self._former:
            _put(*self._former.pop())
        before = self.stats
        self.stats = {
            name: count - before[name] for name, count in wm.stats().items()
        }
        Profile._open = None

    def _wrapped(self, former: Any, label: str) -> Any:
        """Make the timed form of an attribute of a class."""
        if type(former).__name__ == "staticmethod":
            return staticmethod(self._timed(former.__func__, label))
        if type(former).__name__.startswith("classmethod"):

            def of_class(cls: type, *args: Any, **kwargs: Any) -> Any:
                return former.__get__(None, cls)(*args, **kwargs)

            return classmethod(self._timed(of_class, label))
        return self._timed(former, label)

    def _timed(self, call: Callable[..., Any], label: str) -> Any:
        inside, count, marks = self._inside, self._count, self._marks

        def timed(*args: Any, **kwargs: Any) -> Any:
            if getattr(inside, "call", False):
                return call(*args, **kwargs)
            inside.call = True
            if marks:
                marks[0](label)
            began = perf_counter_ns()
            try:
                return call(*args, **kwargs)
            finally:
                took = perf_counter_ns() - began
                if marks:
                    marks[1]()
                inside.call = False
                count(label, took * 1e-3)

        return functools.update_wrapper(timed, call, updated=())

    def _count(self, label: str, microseconds: float) -> None:
        with self._lock:
            calls, total, longest = self.get(label, (0, 0.0, 0.0))
            self[label] = CallTimes(
                calls + 1, total + microseconds, max(longest, microseconds)
            )

    def __str__(self) -> str:
        """Give a line for each method, the longest total first."""
        longest_first = sorted(
            self.items(), key=lambda item: -item[1].microseconds
        )
        rows: list[list[str]] = [["", "calls", "us", "us a call", "longest"]]
        for name, took in longest_first:
            figures = took.microseconds, took.mean, took.longest
            cells = [f"{us:,.1f}" for us in figures]
            rows.append([name, f"{took.calls:,}", *cells])
        first, *widths = (
            max(map(len, column)) for column in zip(*rows, strict=True)
        )
        return "\n".join(
            "  ".join(
                [
                    row[0].ljust(first),
                    *map(str.rjust, row[1:], widths),
                ]
            )
            for row in rows
        )


def profile(*, nvtx: bool = False) -> Profile:
    """Time the calls of communicators, requests, windows and halos.

    Within the ``with`` block, each call from the program on any thread is
    counted under its name (``"Comm.Send"``) with the microseconds that the
    host spent in it; a call inside a call of ours is not. ``print()`` shows
    a table, the longest total first. ``stats`` has the change of
    :func:`stats` over the block. Outside a block nothing is measured, and
    nothing is slower. Blocks do not nest.

    Args:
        nvtx: also make each call an NVTX range, which Nsight Systems shows;
            by the package nvtx, CuPy or PyTorch.

    Raises:
        ImportError: none of these packages is installed.
        RuntimeError: another block is open.
    """
    return Profile(nvtx=nvtx)
