# SPDX-License-Identifier: BSD-3-Clause
"""Communicators that take GPU arrays: mpi4py's own, over the same handles."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from mpi4py import MPI

from . import _checking, _core, _docs, _memory_kinds, _staging, _workers
from ._buffered import BufferedSends
from ._objects import ObjectCollectives, ObjectMessages
from ._staging.averages import ranks_of

if TYPE_CHECKING:
    from typing_extensions import Self

# Calls of which a communicator of mpi4py's own is never given GPU memory.
_HOST_ONLY = ("Attach_buffer", "Psend_init", "Precv_init")

_POINT_TO_POINT = """
    Send Ssend Rsend Bsend Isend Issend Irsend Ibsend Recv Irecv
    Send_init Ssend_init Rsend_init Bsend_init Recv_init
    Sendrecv Sendrecv_replace Isendrecv Isendrecv_replace
""".split()


_merge = MPI.Intercomm.Merge  # mpi4py's own, which install() replaces


def _refuse_device(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    for value in (*args, *kwargs.values()):
        if _core.is_on_device(value):
            raise TypeError(
                f"{name}: GPU memory is not supported by this call yet; copy "
                "the array to the host first (numpy()), or use Send, Recv, "
                "Sendrecv, Isend, Irecv, Send_init or Recv_init of a wm.Comm, "
                "or a collective"
            )


def _host_only(base: type, name: str) -> Any:
    method = getattr(base, name)

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        _refuse_device(name, args, kwargs)
        return method(self, *args, **kwargs)

    return call


def _guard(cls: type, base: type) -> None:
    """Put the staged and the refusing forms of base's calls into cls."""
    calls = _staging.comm_calls(base)
    if not issubclass(cls, _Communicator):
        for name in _HOST_ONLY:
            if hasattr(base, name):
                calls[name] = _host_only(base, name)
    for name, call in calls.items():
        setattr(cls, name, call)


def _kind_of(comm: Any) -> type:
    """Give the type of ours that stands for a communicator of mpi4py's."""
    for kind, ours in _KINDS:
        if isinstance(comm, kind):
            return ours
    return Intercomm if comm.Is_inter() else Comm


def _ours(comm: Any, known: bool = True, parent: Any = None) -> Any:
    """Make a communicator that MPI has just made one of ours; collective.

    known: whether all of its processes run this package and are in the same
    call. parent: a communicator of ours that has them all.
    """
    if comm == MPI.COMM_NULL:
        return comm
    ours: Any = _kind_of(comm)
    if ours is Intercomm and not known:
        ours = _HostIntercomm
    if not isinstance(comm, ours):
        comm = ours.__new__(ours, comm)
    if hasattr(comm, "_begin"):
        comm._begin(parent)
    return comm


def warn_of_thread_level() -> None:
    """Say what would otherwise be seen as a hang, with the first GPU array."""
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        warnings.warn(
            "MPI runs below MPI_THREAD_MULTIPLE: a message moves only while "
            "both of its ranks are in calls of warpmpi, and without "
            "wm.install() MPI.Request.Waitall and the other waits of "
            "mpi4py's own never end on requests of a wm.Comm. Use "
            "wm.Request.Waitall, Wait or Test, or request the thread level "
            "before mpi4py.MPI is imported: "
            "mpi4py.rc.thread_level = 'multiple'",
            RuntimeWarning,
            stacklevel=2,
        )


def _showing(call: Any) -> Any:
    """Make what gives C a request give it one that C can start."""

    @functools.wraps(call)
    def give(arg: Any) -> Any:
        _core._show_handle(arg)
        return call(arg)

    return give


@functools.cache
def _guard_stock_calls() -> None:
    """Teach mpi4py's own calls what is ours, where they would err in silence.

    They read a handle alone: of an inactive wm.Prequest it is one of nothing,
    of a wm.Comm the user's. What is not ours goes to them as before.
    """
    startall = MPI.Prequest.Startall
    create = vars(MPI.Win)["Create"]  # a class method, of derived ones too

    @functools.wraps(startall)
    def start_all(requests: Any) -> None:
        requests = list(requests)
        if any(isinstance(each, _core.Prequest) for each in requests):
            _core.Prequest.Startall(requests)
        else:
            startall(requests)

    @functools.wraps(MPI.Win.Create)
    def create_window(cls: type, *args: Any, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values())
        if any(isinstance(each, _Communicator) for each in given):
            memory = _staging.window_memory
            args = tuple(map(memory, args))
            kwargs = {key: memory(each) for key, each in kwargs.items()}
        return create.__get__(None, cls)(*args, **kwargs)

    _core._guard_requests()
    for name in ("_addressof", "_handleof"):
        setattr(MPI, name, _showing(getattr(MPI, name)))
    _core._patch(MPI.Prequest, "Startall", staticmethod(start_all))
    _core._patch(MPI.Win, "Create", classmethod(create_window))


class _Communicator(
    BufferedSends, ObjectMessages, ObjectCollectives, _core.CommMethods
):
    """Methods of our communicators beside mpi4py's own."""

    def __new__(cls, comm: MPI.Comm | None = None) -> Self:
        """Wrap the handle of another communicator, or make a null one."""
        if comm is not None:
            _workers.refuse(f"wm.{cls.__name__}")
            _core._check_running()
        return super().__new__(cls, comm)  # type: ignore[call-arg]

    def __init__(self, comm: MPI.Comm | None = None) -> None:
        if self != MPI.COMM_NULL:
            _core._count_makers(1)  # for reports
            try:
                self._begin(None)
            finally:
                _core._count_makers(-1)

    def _begin(self, parent: MPI.Comm | None) -> None:
        """Attach what ours need, if they do; collective."""
        this: Any = self
        _core._watch()
        self._attach(parent)
        kind = type(this)
        if not _core._is_attached(this):
            this.__class__ = _OF_HOSTS.get(kind, kind)
            return
        this.__class__ = _OF_GPUS.get(kind, kind)
        _guard_stock_calls()

    def __repr__(self) -> str:
        this: Any = self
        kind = f"warpmpi.{type(self).__name__}"
        try:
            _core._check_running()
        except RuntimeError:
            return f"<{kind}, MPI does not run>"
        if self == MPI.COMM_NULL:
            return f"<{kind}, null or freed>"
        try:
            name = this.Get_name()
        except MPI.Exception:  # of a revoked one, if MPI asks the others
            name = ""
        text = f"{kind} {name!r}" if name else kind
        text += f" rank {this.Get_rank()} of {this.Get_size()}"
        if this.Is_inter():
            text += f", {this.Get_remote_size()} remote ranks"
        return f"<{text}>"

    def __reduce__(self) -> Any:
        """Pickle MPI.COMM_WORLD and COMM_SELF by their names."""
        name = _name_of(self)
        return (_named, (name,)) if name else super().__reduce__()

    Get_info = _memory_kinds.telling(MPI.Comm.Get_info)

    def free(self) -> None:
        """Free it unless it is MPI.COMM_WORLD or COMM_SELF."""
        if _name_of(self) is None:
            super().free()  # type: ignore[misc]


# Makers whose other group may be another program.
_STRANGE = ("Spawn", "Spawn_multiple", "Accept", "Connect", "Join")
# Makers of communicators with processes that the former has not.
_WIDER = ("Create_intercomm",)


def _name_of(comm: Any) -> str | None:
    """Tell which constant of mpi4py's it is, after install()."""
    names = ("COMM_WORLD", "COMM_SELF")
    return next((n for n in names if getattr(MPI, n) is comm), None)


def _named(name: str) -> Any:
    return getattr(MPI, name)


def _known(comm: Any) -> Any:
    """Give a handle's communicator as one of ours where it is one.

    In a job without GPUs each is: nothing is attached to it, and all calls
    are MPI's. An intercommunicator stays mpi4py's, as its suite wants it.
    """
    attached = _core._is_attached(comm)
    if isinstance(comm, MPI.Intercomm) or comm == MPI.COMM_NULL:
        return comm
    if not attached and type(MPI.COMM_WORLD) not in _OF_GPUS:
        return comm
    ours = _kind_of(comm)
    if isinstance(comm, ours):
        return comm
    ours = ours if attached else _OF_HOSTS[ours]
    return ours.__new__(ours, comm)


def of_handle(comm: Any) -> Any:
    """Give one of ours for any object of mpi4py's, if the handle is ours."""
    for name in ("COMM_WORLD", "COMM_SELF"):
        constant = getattr(MPI, name)
        if constant == comm and isinstance(constant, _Communicator):
            return constant
    if comm == MPI.COMM_NULL or not _core._is_attached(comm):
        return _known(comm)
    topologies = {
        MPI.CART: Cartcomm,
        MPI.GRAPH: Graphcomm,
        MPI.DIST_GRAPH: Distgraphcomm,
    }
    ours: Any = topologies.get(comm.Get_topology(), Comm)
    if comm.Is_inter():
        ours = Intercomm
    return comm if isinstance(comm, ours) else ours.__new__(ours, comm)


def _ours_of(comm: Any, name: str, made: Any) -> Any:
    """Make what a maker of that name has made one of ours; collective."""
    known = name not in _STRANGE and not isinstance(comm, _HostIntercomm)
    return _ours(made, known, None if name in _WIDER else comm)


def _made_by(base: type, name: str) -> Any:
    """Give mpi4py's maker, which makes a graph of what has no topology.

    Open MPI gives a distributed graph the topology of its parent instead.
    """
    method, split = getattr(base, name), MPI.Intracomm.Split
    if "dist_graph" not in name:
        return method

    @functools.wraps(method)
    def make(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.Get_topology() == MPI.UNDEFINED:
            return method(self, *args, **kwargs)
        flat = split(self, 0, self.Get_rank())
        try:
            return method(flat, *args, **kwargs)
        finally:
            flat.Free()

    return make


def _making(base: type, name: str) -> Any:
    method = _made_by(base, name)

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        _core._check_running()
        _core._count_makers(1)
        try:
            return _ours_of(self, name, method(self, *args, **kwargs))
        finally:
            _core._count_makers(-1)

    return call


def making(base: type, name: str) -> Any:
    """Make a maker of mpi4py's give ours of one of ours, however made.

    Of one that the program made by hand, of a class of its own, which has
    the handle of one of ours: what is of the program's class stays so.
    """
    method = _made_by(base, name)

    def of_hand_made(self: Any, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("Idup"):
            return _duplicating(method)(self, *args, **kwargs)
        made = method(self, *args, **kwargs)
        ours = _ours_of(self, name, made)
        return ours if type(made) in _OWNERS else made

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self, _Communicator):
            return getattr(_kind_of(self), name)(self, *args, **kwargs)
        if isinstance(self, MPI.Comm) and _core._is_attached(self):
            return of_hand_made(self, *args, **kwargs)
        return method(self, *args, **kwargs)

    return call


def _duplicating(stock: Any) -> Any:
    @functools.wraps(stock)
    def call(self: Any, info: Any = None) -> Any:
        """Duplicate; of a communicator with GPUs complete when it returns."""
        _core._check_running()
        if _core._is_attached(self) or isinstance(self, MPI.Topocomm):
            made = self.Dup() if info is None else self.Dup_with_info(info)
            return made, MPI.Request()
        made, request = stock(self) if info is None else stock(self, info)
        return _ours(made, parent=self), request

    return call


# Methods that give another communicator.
_ALIKE = """
    Clone Dup Dup_with_info Create Create_group Split Split_type Shrink
    Create_cart Create_graph Create_dist_graph_adjacent Create_dist_graph
    Create_intercomm Spawn Spawn_multiple Accept Connect Join Sub
""".split()
MAKERS = (*_ALIKE, "Merge", "Idup", "Idup_with_info")


# Nobody must begin these once MPI is finalized, nor in a forked child, which
# shares MPI's memory with its parent.
_WHILE_RUNNING = """
    Ibarrier reduce allreduce scan exscan
    neighbor_allgather neighbor_alltoall Free
""".split()

# These calls change the object that they are called on. An object that is not
# ours keeps mpi4py's own.
_ON_ITSELF = ("Free", "free")


def _while_running(method: Any) -> Any:
    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        _core._check_running()
        return method(self, *args, **kwargs)

    return call


@functools.cache
def _keyval() -> int:
    return MPI.Comm.Create_keyval()


def revoke_with(comm: Any, other: Any) -> None:
    """Have the revocation of a communicator revoke another one."""
    kept = [each for each in comm.Get_attr(_keyval()) or () if each]
    comm.Set_attr(_keyval(), [*kept, other])


def _revoking(method: Any) -> Any:
    @functools.wraps(method)
    def Revoke(self: Any) -> None:
        """Revoke it: pending and later calls on it fail on all ranks."""
        others = self.Get_attr(_keyval()) or ()
        method(self)
        self._revoke()
        for each in others:
            if each:
                each.Revoke()

    return Revoke


def _method_of(ours: type, name: str, stock: Any) -> Any:
    """Give a method of ours as it is in its type; None if it is the stock."""
    for kind in ours.__mro__:
        if name in vars(kind):
            method = vars(kind)[name]
            return None if method is stock else method
    return None


def _complete(cls: type, base: type) -> type:
    _guard(cls, base)
    for name in _WHILE_RUNNING:
        if hasattr(base, name):
            call = _staging.object_call(name, getattr(base, name))
            setattr(cls, name, _while_running(call))
    for name in _ALIKE:
        if hasattr(base, name):
            setattr(cls, name, _making(base, name))
    if issubclass(cls, _core.CommMethods):
        for name in ("Idup", "Idup_with_info"):
            setattr(cls, name, _duplicating(getattr(base, name)))
        if hasattr(base, "Revoke"):  # since mpi4py 4.1
            setattr(cls, "Revoke", _revoking(base.Revoke))  # noqa: B010
        _serve_host_only(cls, base)
    for name, call in vars(cls).items():
        _docs.add(call, name)
    return cls


# The classes of host-only communicators, by those of which they are; and back.
_OF_HOSTS: dict[type, type] = {}
_OF_GPUS: dict[type, type] = {}

# These makers give communicators of the object's own class.
_DUPLICATES = "Clone Dup Dup_with_info Idup Idup_with_info".split()


def _by_mpi(stock: Any) -> Any:
    never = False, "", False, None, None
    call = _core._Passing(stock, stock, None, (), *never, True)
    return functools.update_wrapper(call, stock)


def _serve_host_only(cls: type, base: type) -> None:
    """Leave the calls on communicators without GPUs to MPI.

    But for arrays that mpi4py does not understand, and the collectives of
    neighbours. A class of its own has mpi4py's methods, at no cost; objects
    of the program's own classes are told apart by each call.
    """
    collectives = _staging.comm_calls(base, mpis=True)
    staged = _staging.message_calls(base)
    own = {
        name: call
        for name, call in collectives.items()
        if "eighbor" not in name and not name.endswith("_init")
    }
    left = {*_ON_ITSELF, *MAKERS, *collectives, "Get_info"}
    for name, stock in inspect.getmembers(base, callable):
        method = _method_of(cls, name, stock)
        of_type = isinstance(method, (classmethod, staticmethod))
        if not (name[0] == "_" or name in left or method is None or of_type):
            call = _staging.object_call(name, stock)
            own[name] = staged.get(name) or _by_mpi(call)
            own[name].__doc__ = method.__doc__
            messages = name[0].isupper() and name != "Revoke"
            row = (base, cls, method)
            call = _core._Dispatch(own[name], (row,), messages)
            setattr(cls, name, functools.update_wrapper(call, method))
    if base in (MPI.Intracomm, MPI.Intercomm):
        own |= {name: _by_mpi(getattr(base, name)) for name in _DUPLICATES}
    own |= {name: _by_mpi(getattr(base, name)) for name in _ON_ITSELF[:1]}
    words = {"__slots__": (), "__doc__": cls.__doc__, **own}
    words |= {"__module__": "warpmpi", "__qualname__": cls.__qualname__}
    _OF_HOSTS[cls] = type(cls.__name__, (cls,), words)
    _OF_GPUS[_OF_HOSTS[cls]] = cls


if TYPE_CHECKING:
    from ._makers import CartMakers, InterMakers, IntraMakers
else:  # _complete() puts them in
    CartMakers = InterMakers = IntraMakers = _Communicator


class Comm(IntraMakers, MPI.Intracomm):
    """An intracommunicator whose messages may be GPU arrays.

    ``wm.Comm(MPI.COMM_WORLD)`` is an ``MPI.Intracomm`` over the same handle;
    all its ranks make it together. It takes arrays of CuPy, Warp, PyTorch,
    JAX, Numba and this package, on any device, and host arrays; ranks may
    differ in what they use. ``Dup``, ``Split``, ``Create_cart`` and the like
    return communicators of the same kind.

    Raises RuntimeError if ranks run different versions of this package, or
    MPI is not running.
    """


class Cartcomm(CartMakers, MPI.Cartcomm):
    """A Cartesian communicator whose messages may be GPU arrays."""


class Graphcomm(IntraMakers, MPI.Graphcomm):
    """A graph communicator whose messages may be GPU arrays."""


class Distgraphcomm(IntraMakers, MPI.Distgraphcomm):
    """A distributed graph communicator whose messages may be GPU arrays."""


class _HostComm(MPI.Intracomm):
    """A communicator of ranks that may not run warpmpi: refuses GPU arrays."""


class Intercomm(InterMakers, MPI.Intercomm):
    """An intercommunicator whose messages may be GPU arrays.

    ``Create_intercomm`` of a wm.Comm returns one. After Spawn, Accept, Connect
    and Join the other program may not run this package, and then cannot make
    such an intercommunicator: the intercommunicators of these calls refuse GPU
    arrays until both sides call ``wm.Intercomm(inter)``, which is collective
    over both groups.
    """

    def Merge(self, high: bool = False) -> Comm:
        """Merge both groups into one wm.Comm; collective over both."""
        merged: Comm = _ours(_merge(self, high), parent=self)
        return merged


class _HostIntercomm(MPI.Intercomm):
    """Like _HostComm, where a remote rank may not run warpmpi."""

    def Merge(self, high: bool = False) -> MPI.Intracomm:
        """Merge both groups; the result refuses GPU arrays as well."""
        return _HostComm(_merge(self, high))


for _cls, _base in (
    (Comm, MPI.Intracomm),
    (Cartcomm, MPI.Cartcomm),
    (Graphcomm, MPI.Graphcomm),
    (Distgraphcomm, MPI.Distgraphcomm),
    (Intercomm, MPI.Intercomm),
    (_HostIntercomm, MPI.Intercomm),
):
    _complete(_cls, _base)
_guard(_HostComm, MPI.Intracomm)
for _name in _POINT_TO_POINT:
    setattr(_HostIntercomm, _name, _host_only(MPI.Intercomm, _name))
    setattr(_HostComm, _name, _host_only(MPI.Intracomm, _name))
if _core._check_wanted():
    for _cls in (Comm, Cartcomm, Graphcomm, Distgraphcomm, Intercomm):
        for _name, _call in _checking.comm_calls(_cls):
            setattr(_cls, _name, _call)

_OWNERS = (
    *(MPI.Comm, MPI.Intracomm, MPI.Topocomm, MPI.Cartcomm, MPI.Graphcomm),
    *(MPI.Distgraphcomm, MPI.Intercomm),
)
_KINDS: tuple[tuple[type, type], ...] = (
    (MPI.Cartcomm, Cartcomm),
    (MPI.Distgraphcomm, Distgraphcomm),
    (MPI.Graphcomm, Graphcomm),
    (MPI.Intercomm, Intercomm),
    (MPI.Intracomm, Comm),
)


def hand_made_calls() -> Iterator[tuple[type, str, Any]]:
    """Give what takes the place of mpi4py's methods of communicators.

    A program may make objects of its own over the handle of one of ours:
    MPI.Intracomm(comm), one of a class that derives from it, or that which
    mpi4py hands to a function of the program. Ours serve them, too.
    """
    left = {*_ON_ITSELF, *MAKERS}
    for owner in _OWNERS:
        for name, stock in tuple(vars(owner).items()):
            if name.startswith("_") or name in left:
                continue
            rows = tuple(
                (kind, ours, _method_of(ours, name, stock))
                for kind, ours in _KINDS
                if issubclass(kind, owner)
            )
            if any(method is not None for _, _, method in rows):
                call = _core._Dispatch(stock, rows, False)
                yield owner, name, functools.update_wrapper(call, stock)


class Transport(NamedTuple):
    """The transport of a message, or the engine of a collective, and why."""

    name: str
    reason: str

    def __str__(self) -> str:
        """Give name and reason in one line."""
        return f'transport "{self.name}": {self.reason}'


def transport(
    comm: MPI.Comm, rank: int | str, buffer: Any = None
) -> Transport:
    """Tell which transport a message from ``rank`` takes into ``buffer``.

    rank: or the name of a collective, such as "Allreduce". Then the engine is
    told that does it, blocking, if all ranks give arrays like ``buffer``:
    'hierarchy', 'copies', 'kernels', 'nccl' or 'mpi'; and why those before it
    do not. This rank tells what it knows, and asks no other: MPI does the call
    if an engine that it opens fails, or another rank gives other memory.

    buffer: the array received into; without one, memory of the current device.
    Returns a Transport with ``name`` ('ipc', 'host', 'self', 'ucx', 'mpi') and
    ``reason``. The sender's memory is not known here: for a buffer in host
    memory the name is 'mpi', which is right for a message from host memory,
    and the reason says how a message from a GPU is delivered. Raises
    ValueError for a rank that the communicator does not have, TypeError for a
    communicator that is not a wm.Comm.
    """
    if not (hasattr(comm, "_transport") and hasattr(comm, "_engine")):
        kind = type(comm).__name__
        raise TypeError(
            f"comm: {kind} is not a wm.Comm: make one with wm.Comm(comm)"
        )
    if not _core._is_attached(comm) and comm != MPI.COMM_NULL:
        ranks = ranks_of(comm)
        if not isinstance(rank, str) and not 0 <= rank < ranks:
            raise ValueError(
                f"rank={rank} is not a rank of this communicator: use 0 to "
                f"{ranks - 1}"
            )
        return Transport(
            "mpi", "no rank of this communicator has a GPU; MPI delivers data"
        )
    told = comm._engine if isinstance(rank, str) else comm._transport
    return Transport(*told(rank, buffer))
