# SPDX-License-Identifier: BSD-3-Clause
"""Programs unchanged: mpi4py's communicators become ours."""

from __future__ import annotations

import functools
import gc
import sys
import warnings
from collections.abc import Callable, Iterator
from types import MethodType, ModuleType
from typing import Any

from mpi4py import MPI

from . import (
    _buffered,
    _core,
    _memory_kinds,
    _objects,
    _staging,
    _windows,
    _workers,
)
from ._comm import (
    _OWNERS,
    MAKERS,
    Comm,
    _known,
    _ours,
    hand_made_calls,
    making,
)

_installed = False
_replaced: dict[int, tuple[Any, Any]] = {}  # by id: theirs, and ours
_LARGEST_TABLE = 1000  # of functions; what is larger holds data
_LOOKED_INTO = dict, list, staticmethod, MethodType
# Flags of types (Py_TPFLAGS_…).
_HEAP_TYPE, _IMMUTABLE = 1 << 9, 1 << 8
_waiting: list[Any] = []  # communicators that MPI.Init is to attach

# mpi4py's own, which pickle finds here by their names once others have them.
COMM_WORLD, COMM_SELF = MPI.COMM_WORLD, MPI.COMM_SELF


def _wrapping(call: Callable[..., Any], known: bool) -> Any:
    """Make a maker of communicators, of mpi4py's own, give ours."""

    @functools.wraps(call)
    def make(*args: Any, **kwargs: Any) -> Any:
        _core._check_running()
        made = call(*args, **kwargs)
        # Without MPI.Init, of a session, it stays mpi4py's.
        return _ours(made, known) if MPI.Is_initialized() else made

    return make


def _watch_sessions() -> None:
    """Learn of sessions, in which MPI runs without MPI.Init."""
    begin, finalize = vars(MPI.Session)["Init"], MPI.Session.Finalize

    @functools.wraps(MPI.Session.Init)
    def Init(cls: type, *args: Any, **kwargs: Any) -> MPI.Session:
        session: MPI.Session = begin.__get__(None, cls)(*args, **kwargs)
        _core._count_session(1)
        return session

    @functools.wraps(finalize)
    def Finalize(self: MPI.Session) -> None:
        finalize(self)
        _core._count_session(-1)

    _core._patch(MPI.Session, "Init", classmethod(Init))
    _core._patch(MPI.Session, "Finalize", Finalize)


def _looking_up(call: Callable[..., Any]) -> Any:
    """Make what finds a communicator by its handle find ours; local."""

    @functools.wraps(call)
    def find(*args: Any, **kwargs: Any) -> Any:
        return _known(call(*args, **kwargs))

    return find


# Calls of mpi4py's that belong to no communicator:
# (type, name, what takes its place).
CLASS_CALLS: list[tuple[type, str, Any]] = [
    (MPI.Prequest, "Startall", staticmethod(_core.Prequest.Startall)),
    *(
        (MPI.Request, name, staticmethod(getattr(_core.Request, name)))
        for name in (
            *("Waitall", "Waitany", "Waitsome"),
            *("Testall", "Testany", "Testsome"),
            *("Get_status_all", "Get_status_any", "Get_status_some"),
            *("get_status_all", "get_status_any", "get_status_some"),
        )
        if hasattr(MPI.Request, name)  # some since mpi4py 4.1
    ),
    *_staging.class_calls(),
    *_objects.CLASS_CALLS,
    *_memory_kinds.class_calls(),
    *(
        (MPI.Win, name, classmethod(call))
        for name, call in _windows.MAKERS.items()
    ),
]

# Class methods that make communicators without one of ours at hand.
_MAKERS = {
    MPI.Comm: ("Get_parent", "Join"),
    MPI.Intracomm: ("Create_from_group",),
    MPI.Intercomm: ("Create_from_groups",),
}


def _attach() -> None:
    """Attach both, once MPI runs; collective."""
    for comm in _waiting.copy():
        comm.__init__(comm)
        _waiting.remove(comm)


def _initializing(call: Callable[..., Any]) -> Any:
    """Make MPI.Init attach what was made before."""

    @functools.wraps(call)
    def initialize(*args: Any, **kwargs: Any) -> Any:
        result = call(*args, **kwargs)
        _attach()
        return result

    return initialize


def _make(comm: MPI.Intracomm) -> Any:
    """Give one of ours, which is attached later where MPI does not run yet."""
    if MPI.Is_initialized():
        return Comm(comm)
    ours: Any = Comm.__new__(Comm)
    _core._share_handle(ours, comm)
    _waiting.append(ours)
    return ours


def _patch(owner: Any, name: str, value: Any) -> None:
    """Put ours in the place of a function of mpi4py's, and remember both."""
    if isinstance(owner, type):
        former = _core._patch(owner, name, value)
    else:
        former = getattr(owner, name)
        setattr(owner, name, value)
    value = getattr(value, "__func__", value)
    while former is not None:  # and what it wraps: an import may have, too
        former = getattr(former, "__func__", former)
        _replaced[id(former)] = former, value
        former = getattr(former, "__wrapped__", None)


def _spaces_of_modules() -> Iterator[dict[str, Any]]:
    """Give the variables of each of the program's modules."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in ("mpi4py", "warpmpi") and issubclass(
            type(module), ModuleType
        ):
            # Without the module's own code, which may load it.
            yield object.__getattribute__(module, "__dict__")


def _replacement(value: Any) -> Any:
    """Give ours for a function of mpi4py's that was stored, or None."""
    if type(value) is MethodType and isinstance(value.__self__, type):
        theirs = id(value.__func__) in _replaced
        return getattr(value.__self__, value.__name__) if theirs else None
    static = type(value) is staticmethod
    found = _replaced.get(id(value.__func__ if static else value))
    if found is None:
        return None
    return staticmethod(found[1]) if static else found[1]


def _replace_functions(space: Any, seen: set[int]) -> None:
    """Put ours where a class, a dict or a list holds mpi4py's functions.

    Also in those that it holds: a list of these, as they may be deep.
    """
    spaces = [space]
    while spaces:
        space = spaces.pop()
        seen.add(id(space))
        inner: Any = vars(space) if isinstance(space, type) else space
        of_list = type(inner) is list
        values = list(inner if of_list else inner.values())
        if _replaced.keys().isdisjoint(map(id, values)) and not any(
            kind in _LOOKED_INTO or issubclass(kind, type)
            for kind in set(map(type, values))
        ):
            continue  # most of them
        for key, value in list(enumerate(inner) if of_list else inner.items()):
            new = _replacement(value)
            if new is None:
                if id(value) not in seen and _is_the_programs(value):
                    spaces.append(value)
            elif inner is space:
                space[key] = new
            else:
                type.__setattr__(space, key, new)


def _is_the_programs(value: Any) -> bool:
    """Tell a container that may be a table, or a class of the program's."""
    if type(value) in (dict, list):
        return len(value) <= _LARGEST_TABLE
    if not issubclass(type(value), type):
        return False
    module = str(type.__getattribute__(value, "__module__"))
    made = value.__flags__ & _HEAP_TYPE and not value.__flags__ & _IMMUTABLE
    return bool(made) and module.partition(".")[0] not in ("mpi4py", "warpmpi")


def _replace_stored(world: Any, itself: Any) -> list[MethodType]:
    """Put ours where modules of the program hold mpi4py's communicators.

    And the methods of ours where they hold methods of these, and the
    functions of ours where they, their classes, dicts or lists hold those of
    mpi4py's classes. Returns the methods that are held elsewhere.
    """
    ours = {id(COMM_WORLD): world, id(COMM_SELF): itself}
    seen: set[int] = set()
    for space in _spaces_of_modules():
        _replace_functions(space, seen)
        for key, value in list(space.items()):
            if id(value) in ours:
                space[key] = ours[id(value)]
            elif type(value) is MethodType and id(value.__self__) in ours:
                space[key] = getattr(ours[id(value.__self__)], value.__name__)
    value = None  # does not hold a method
    holders = gc.get_referrers(COMM_WORLD, COMM_SELF)
    return [each for each in holders if type(each) is MethodType]


def _holder_of(stored: MethodType) -> str:
    """Name an object that holds a method, as far as it can be found."""
    for holder in gc.get_referrers(stored):
        kind = type(holder)
        if isinstance(getattr(holder, "__dict__", None), dict):
            names = [n for n, value in vars(holder).items() if value is stored]
            if names:
                kind = holder if isinstance(holder, type) else kind
                return f" as {kind.__module__}.{kind.__qualname__}.{names[0]}"
    return ""


def _warn_of(stored: MethodType) -> None:
    """Warn of a method that passes GPU arrays to MPI as they are."""
    warnings.warn(
        f"wm.install(): the program has stored the method {stored.__name__} "
        f"of mpi4py's communicator{_holder_of(stored)}. It gives GPU arrays "
        "to MPI as host memory: import warpmpi and call wm.install() before "
        "the program stores it",
        RuntimeWarning,
        stacklevel=3,
    )


def install() -> None:
    """Make every communicator of this program one that takes GPU arrays.

    ``MPI.COMM_WORLD`` and ``MPI.COMM_SELF`` become wm.Comm's over the same
    handles, and with them all that is made from them; calls of mpi4py that
    belong to no communicator (``MPI.Prequest.Startall``, ``MPI.Request``'s
    waits, ``MPI.File``'s reads and writes …) take GPU arrays, and requests of
    either, too. Objects that the program makes by hand over a handle of ours
    (``MPI.Intracomm(comm)``, one of a class that derives from it) are served
    by ours; other communicators of mpi4py's refuse GPU arrays by TypeError.
    All ranks call it, while no message is under way. Where modules of the
    program hold ``MPI.COMM_WORLD``, ``MPI.COMM_SELF`` or a method of these,
    they get ours; a method that is held elsewhere is warned of, as it passes
    GPU arrays to MPI as they are. They, their classes, dicts and lists also
    get ours of functions such as ``MPI.Comm.Send`` and class methods such as
    ``MPI.Request.Waitall``.
    Collective over COMM_WORLD where MPI runs already;
    else ``MPI.Init`` and ``MPI.Init_thread`` of mpi4py do the rest, and where
    another library initializes MPI a second call does. Any other second call
    does nothing.

    Raises RuntimeError in a child of multiprocessing, and where MPI is
    finalized or ranks run different versions
    of this package, which ``MPI.Init`` raises if MPI did not run yet.
    """
    global _installed
    _workers.refuse("wm.install()")
    if _installed:
        if MPI.Is_initialized() and not MPI.Is_finalized():
            _attach()
        return
    world, itself = _make(MPI.COMM_WORLD), _make(MPI.COMM_SELF)
    for call in tuple(hand_made_calls()):
        _patch(*call)
    _watch_sessions()
    for kind, names in _MAKERS.items():
        for name in names:
            if hasattr(kind, name):
                made = _wrapping(getattr(kind, name), kind is MPI.Intracomm)
                _patch(kind, name, staticmethod(made))
    for name in ("fromhandle", "fromint", "f2py"):
        if hasattr(MPI.Comm, name):
            found = _looking_up(getattr(MPI.Comm, name))
            _patch(MPI.Comm, name, staticmethod(found))
    for kind in _OWNERS:
        for name in MAKERS:
            if name in vars(kind) and not isinstance(
                vars(kind)[name], classmethod
            ):
                _patch(kind, name, making(kind, name))
    for owner, name, call in CLASS_CALLS:
        _patch(owner, name, call)
    for name, function in _buffered.FUNCTIONS.items():
        if hasattr(MPI, name):
            _patch(MPI, name, function)
    for name in ("Init", "Init_thread"):
        _patch(MPI, name, _initializing(getattr(MPI, name)))
    setattr(MPI, "COMM_WORLD", world)  # noqa: B010
    setattr(MPI, "COMM_SELF", itself)  # noqa: B010
    stored = _replace_stored(world, itself)
    if stored and _core.get_cuda_device_count() > 0:
        for method in stored:
            _warn_of(method)
    _installed = True
