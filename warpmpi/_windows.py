# SPDX-License-Identifier: BSD-3-Clause
"""Windows over GPU memory: the half of wm.Win that is in Python.

Beneath each is a window of MPI's over the ranks' host memory: it has the
group, the name, the attributes and the info object, and serves the ranks that
give host memory.
"""

from __future__ import annotations

import functools
import operator
from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from . import _core, _devices, _memory_kinds
from ._comm import _OF_GPUS, Comm, revoke_with
from ._staging.windows import STAGED, window_memory

if TYPE_CHECKING:
    from mpi4py.typing import BufSpec, TargetSpec

    from ._typing import StreamLike

# mpi4py's own, which install() replaces.
_stock = {
    name: vars(MPI.Win)[name]
    for name in ("Create", "Allocate", "Allocate_shared", "Create_dynamic")
}
_dup, _allreduce = MPI.Intracomm.Dup, MPI.Comm.Allreduce
_allgather = MPI.Comm.allgather
_free, _get_attr = MPI.Win.Free, MPI.Win.Get_attr

_KINDS = {"cuda", "cuda:device", "gpu"}
_KEY = "mpi_memory_alloc_kinds"


def _wants_gpu(info: MPI.Info) -> bool:
    """Tell whether an info object asks for GPU memory."""
    asked = info.Get(_KEY) if info != MPI.INFO_NULL else None
    return not _KINDS.isdisjoint((asked or "").replace(" ", "").split(","))


class _Making:
    """A window that is being made, on this rank."""

    def __init__(
        self, cls: type, name: str, unit: int, info: MPI.Info, comm: Any
    ) -> None:
        if isinstance(comm, MPI.Intercomm) or not isinstance(comm, MPI.Comm):
            raise TypeError(
                f"Win.{name}: comm is {type(comm).__name__}: give an "
                "MPI.Intracomm"
            )
        self.cls, self.name = cls, name
        self.unit, self.info, self.comm = unit, info, comm
        self.wants = False  # GPU memory, later
        self.memory: Any = None  # GPU array
        self.host: Any = None  # memory of the host
        self.size: int | None = None  # of host memory to allocate
        self.error: Exception | None = None

    def attempt(self, look: Callable[[], None]) -> None:
        """Keep an error of this rank, until all know of it."""
        try:
            if not isinstance(self.info, MPI.Info):
                raise TypeError(
                    f"Win.{self.name}: info is {type(self.info).__name__}: "
                    "give an MPI.Info"
                )
            self.unit = operator.index(self.unit)
            if not 0 < self.unit < 1 << 31:
                raise ValueError(
                    f"Win.{self.name}: disp_unit is {self.unit}: give the "
                    "bytes of a displacement, 1 or more"
                )
            look()
            if self.host is not None:
                self.check_host()
        except Exception as error:  # raised by `settle`
            self.error = error

    def check_host(self) -> None:
        """Raise unless the memory is writable, and of the host."""
        try:
            MPI.memory.frombuffer(self.host)
        except (TypeError, BufferError) as error:
            raise type(error)(
                f"Win.{self.name}: memory: {error}: give a GPU array, or a "
                "writable one of the host"
            ) from None

    def settle(self) -> bool:
        """Tell whether any rank gives GPU memory; raises if one failed."""
        wants = self.wants or self.memory is not None
        votes = array("i", [wants, self.error is not None])
        if type(self.comm) not in _OF_GPUS:  # else no rank has a GPU
            _allreduce(self.comm, MPI.IN_PLACE, [votes, MPI.INT], MPI.MAX)
            if votes[1]:
                self.fail()
        elif self.error is not None:
            raise self.error
        return bool(votes[0])

    def fail(self) -> None:
        """Raise this rank's error, or that of the first rank that has one."""
        error = self.error
        own = error and (isinstance(error, MemoryError), str(error))
        told = _allgather(self.comm, own)
        if error is not None:
            raise error
        rank, of_memory, text = next(
            (rank, *each) for rank, each in enumerate(told) if each
        )
        raise (MemoryError if of_memory else RuntimeError)(
            f"Win.{self.name}: rank {rank} of the communicator failed: {text}"
        )

    def stock(self, cls: type, *args: Any) -> Any:
        maker = _stock[self.name].__get__(None, cls)
        return maker(*args, info=self.info, comm=self.comm)

    def stock_or_ours(self, cls: type, *args: Any) -> Any:
        """Make a window of host memory: MPI's, or ours if MPI has none.

        Open MPI 4.1 has none under MPI_THREAD_MULTIPLE.
        """
        try:
            return self.stock(cls, *args)
        except MPI.Exception as error:
            none = error.Get_error_class() == MPI.ERR_WIN
            if not none or type(self.comm) in _OF_GPUS:
                raise
        return self.make()

    def allocate(self) -> None:
        if self.memory is None and self.size is not None:
            self.host = MPI.memory.allocate(self.size, clear=True)

    def make(self) -> Any:
        """Make a window of which some rank gives GPU memory; collective."""
        if self.name in ("Allocate", "Allocate_shared"):
            self.attempt(self.allocate)
            self.settle()
        own = Comm(_dup(self.comm))
        _core._follow_required(own, self.comm)
        name = self.comm.Get_name()
        own.Set_name(f"a window of {name}"[:60] if name else "a window")
        win = _beneath_of(_class_of(self.cls), self)
        given = self.memory
        if self.host is not None:
            given = MPI.memory.frombuffer(self.host)
        try:
            win._open(own, given, self.unit, self.name)
            revoke_with(self.comm, own)
        except BaseException:
            if win:
                _free(win)
            own.Free()
            raise
        return win


@functools.cache
def _class_of(cls: type) -> type:
    """The class of a window that a program makes by a class of MPI's."""
    if issubclass(cls, _core.Win):
        return cls
    if cls is MPI.Win:
        return _core.Win
    return type(cls.__name__, (cls, _core.Win), {"__doc__": cls.__doc__})


def _beneath_of(cls: type, making: _Making) -> Any:
    """Make MPI's own window, without memory.

    Open MPI 4.1 may have none but shared ones, and none between hosts.
    """
    create = _stock["Create"].__get__(None, cls)
    shared = _stock["Allocate_shared"].__get__(None, cls)
    info, comm = making.info, making.comm
    try:
        if making.name == "Create_dynamic":
            return making.stock(cls)
        return create(None, making.unit, info, comm)
    except MPI.Exception:
        pass
    try:
        return shared(0, making.unit, info, comm)
    except MPI.Exception:
        return cls()


def element_of(array: Any) -> bytes:
    """Return the bytes of a buffer of one element, also of GPU memory."""
    array = array[0] if isinstance(array, (list, tuple)) else array
    if not _core.is_on_device(array):
        buffer: Any = MPI.memory.frombuffer(array, readonly=True)
        return memoryview(buffer).tobytes()
    return bytes(_core.asarray(array).numpy().tobytes())


def create(
    cls: type,
    memory: Any,
    disp_unit: int = 1,
    info: MPI.Info = MPI.INFO_NULL,
    comm: Any = MPI.COMM_SELF,
) -> Any:
    """Make a window over arrays; of GPUs, of the host, or None. Collective.

    memory: a contiguous array, of a GPU or of the host, which others access
    and the window keeps. disp_unit: bytes of a displacement in the calls that
    access it. info, comm: as MPI. GPUs of the same host access GPU memory
    that CUDA IPC exports, as that of wm.empty() and of CuPy's pool; the engine
    of this rank serves other memory, and ranks of other hosts.

    If one rank fails, all raise: for memory that is not contiguous ValueError
    (BufferError, if it is host memory).
    """
    making = _Making(cls, "Create", disp_unit, info, comm)

    def look() -> None:
        if memory is None or memory is MPI.BOTTOM:
            return
        if _core.is_on_device(memory):
            making.memory = memory
        else:
            _core._settle(memory)
            making.host = window_memory(memory)

    making.attempt(look)
    if making.settle():
        return making.make()
    return making.stock_or_ours(cls, making.host, disp_unit)


def _allocating(name: str) -> Any:
    def allocate(
        cls: type,
        size: int,
        disp_unit: int = 1,
        info: MPI.Info = MPI.INFO_NULL,
        comm: Any = MPI.COMM_SELF,
    ) -> Any:
        """Make a window over new memory of size bytes. Collective.

        info: with mpi_memory_alloc_kinds "cuda" or "cuda:device" the memory
        is GPU memory, an array of bytes that tomemory() returns; else MPI
        allocates it. Other arguments and errors as Create, and on all ranks
        MemoryError if one is short of memory.
        """
        making = _Making(cls, name, disp_unit, info, comm)

        def look() -> None:
            if operator.index(size) < 0:
                raise ValueError(
                    f"Win.{name}: size is {size}: give 0 bytes or more"
                )
            if _wants_gpu(info):
                making.memory = _core.empty(size, "uint8")

        making.attempt(look)
        making.size = size
        if making.settle():
            return making.make()
        return making.stock_or_ours(cls, size, disp_unit)

    allocate.__name__ = name
    return allocate


def create_dynamic(
    cls: type, info: MPI.Info = MPI.INFO_NULL, comm: Any = MPI.COMM_SELF
) -> Any:
    """Make a window to which ranks attach arrays later. Collective.

    The displacement of a call is then an address, MPI.Get_address(array) of
    the rank that has attached the array, by Attach. info, comm: as MPI. If one
    rank fails, all raise: TypeError on that rank if info is no MPI.Info, and
    RuntimeError elsewhere.
    """
    making = _Making(cls, "Create_dynamic", 1, info, comm)
    making.wants = _devices.is_cuda_available()
    making.attempt(lambda: None)
    return making.make() if making.settle() else making.stock(cls)


allocate = _allocating("Allocate")
allocate_shared = _allocating("Allocate_shared")

_FLAVORS = {
    "Create": MPI.WIN_FLAVOR_CREATE,
    "Allocate": MPI.WIN_FLAVOR_ALLOCATE,
    "Allocate_shared": MPI.WIN_FLAVOR_SHARED,
    "Create_dynamic": MPI.WIN_FLAVOR_DYNAMIC,
}
_OURS = {
    MPI.WIN_BASE: lambda win: win.attrs[0],
    MPI.WIN_SIZE: lambda win: win.attrs[1],
    MPI.WIN_DISP_UNIT: lambda win: win.attrs[2],
    MPI.WIN_CREATE_FLAVOR: lambda win: win.flavor,
    MPI.WIN_MODEL: lambda win: win.model,
}


class _Mapped:
    """Memory of a rank that is mapped here, kept by its window."""

    def __init__(self, win: Any, address: int, nbytes: int) -> None:
        self._win = win
        self.__cuda_array_interface__ = {
            "data": (address, False),
            "shape": (nbytes,),
            "typestr": "|u1",
            "version": 3,
        }


def _is_ours(win: Any) -> bool:
    return win._made is not None


def _attachable(memory: Any) -> Any:
    """Give a GPU array, or the bytes of host memory."""
    if _core.is_on_device(memory):
        return memory
    try:
        return MPI.memory.frombuffer(window_memory(memory))
    except (TypeError, BufferError) as error:
        raise type(error)(
            f"memory: {error}: give a GPU array, or a writable one of the host"
        ) from None


class StreamWin:
    """The calls of a window, ordered on one stream.

    Made by win.on(stream). Calls return at once; the stream does their work,
    and waits for the streams of other ranks in Fence, Start and Wait. A stream
    that is being captured takes them into its graph. Arrays are GPU memory, or
    page-locked memory, which in a capture the program keeps. Locks are the
    window's own: the host waits for them.

    Arguments and errors are those of the window's calls of the same names.
    Besides, all raise RuntimeError after Free, and ValueError for a stream of
    another GPU. Those that move data raise ValueError for pageable memory, for
    arrays with gaps on this side in a capture, for updates of elements of more
    than 8 bytes or misaligned ones, and for memory of a rank that this process
    does not reach.
    """

    def __init__(self, win: Any, stream: StreamLike) -> None:
        if win._made is None:
            raise TypeError(
                "on(stream): the window is of host memory, or was freed; give "
                "GPU memory to Win.Create"
            )
        self._win, self._stream = win, stream
        self._on = win._comm.on(stream)  # raises what is wrong with the stream

    def __repr__(self) -> str:
        return f"<warpmpi.StreamWin of {self._win!r} on {self._stream!r}>"

    def Put(
        self,
        origin: BufSpec,
        target_rank: int,
        target: TargetSpec | None = None,
    ) -> None:
        """Write an array to the memory of a rank, as Win.Put."""
        args = origin, target_rank, target
        self._win._on_call(self._on, "Put", *args)

    def Get(
        self,
        origin: BufSpec,
        target_rank: int,
        target: TargetSpec | None = None,
    ) -> None:
        """Read the memory of a rank into an array, as Win.Get.

        Later work on the stream sees the data.
        """
        args = origin, target_rank, target
        self._win._on_call(self._on, "Get", *args)

    def Accumulate(
        self,
        origin: BufSpec,
        target_rank: int,
        target: TargetSpec | None = None,
        op: MPI.Op | None = None,
    ) -> None:
        """Combine the memory of a rank with an array, as Win.Accumulate."""
        args = origin, target_rank, target, op
        self._win._on_call(self._on, "Accumulate", *args)

    def Get_accumulate(
        self,
        origin: BufSpec | None,
        result: BufSpec,
        target_rank: int,
        target: TargetSpec | None = None,
        op: MPI.Op | None = None,
    ) -> None:
        """Do as Accumulate; result gets the elements as they were before."""
        args = origin, result, target_rank, target, op
        self._win._on_call(self._on, "Get_accumulate", *args)

    def Fetch_and_op(
        self,
        origin: BufSpec | None,
        result: BufSpec,
        target_rank: int,
        target_disp: int = 0,
        op: MPI.Op | None = None,
    ) -> None:
        """Do as Get_accumulate with one element, of 8 bytes at most."""
        args = origin, result, target_rank, target_disp, op
        self._win._on_call(self._on, "Fetch_and_op", *args)

    def Compare_and_swap(
        self,
        origin: BufSpec,
        compare: BufSpec,
        result: BufSpec,
        target_rank: int,
        target_disp: int = 0,
    ) -> None:
        """Replace one element if it equals compare.

        The three are arrays of one element, as of Win.Compare_and_swap.
        """
        args = origin, compare, result, target_rank, target_disp
        self._win._on_call(self._on, "Compare_and_swap", *args)

    def Fence(self, assertion: int = 0) -> None:
        """Let the stream wait for the streams of all ranks. Collective.

        It ends the calls of this rank on the stream and of `win` itself.
        assertion: MPI.MODE_NOSUCCEED counts, as in Win.Fence. The first Fence
        of a window on a stream waits on the host for all ranks, also in a
        capture. If Fence fails on one rank, that rank raises MPI.Exception
        (ERR_RMA_SYNC), as Win.Fence. The streams of the others do not wait for
        that rank's, unless they are captured: this call, the next, or a wait
        for the stream raises RuntimeError there.
        """
        self._win._on_sync(self._on, "Fence", assertion)

    def Post(self, group: MPI.Group, assertion: int = 0) -> None:
        """Let the ranks of a group access this rank's memory from now on.

        group, assertion: as of Win.Post. As Start, Complete and Wait, it
        raises RuntimeError for windows whose GPU memory not all ranks reach.
        """
        self._win._on_sync(self._on, "Post", group)

    def Start(self, group: MPI.Group, assertion: int = 0) -> None:
        """Let the stream wait until the ranks of a group have posted.

        group, assertion and errors: as of Post, but ERR_RMA_SYNC as Win.Start.
        """
        self._win._on_sync(self._on, "Start", group)

    def Complete(self) -> None:
        """Tell the ranks that were accessed, when the stream is here.

        Raises MPI.Exception (ERR_RMA_SYNC) without Start.
        """
        self._win._on_sync(self._on, "Complete", None)

    def Wait(self) -> None:
        """Let the stream wait until the ranks of Post have completed.

        Raises MPI.Exception (ERR_RMA_SYNC) without Post.
        """
        self._win._on_sync(self._on, "Wait", None)


class _Methods:
    def on(self: Any, stream: StreamLike) -> StreamWin:
        """Return the window's calls on a stream, also in CUDA graphs.

        stream: wm.Stream, a stream of CuPy, PyTorch, Warp or Numba, or a
        handle, of the GPU of this rank's memory. All ranks reach each other's
        memory within one host. Raises TypeError for a window of host memory
        and for what is no stream, ValueError for a number that is no handle
        and for the per-thread default stream.
        """
        return StreamWin(self, stream)

    def Free(self: Any) -> None:
        """Free the window. Collective.

        The arrays stay as they are. Raises MPI.Exception (ERR_RMA_SYNC) on
        all ranks, and frees nothing, if one rank has an epoch open.
        """
        comm = self._end()
        if self or comm is None:
            STAGED["Free"](self)
        if comm is not None:
            comm.Free()

    def free(self: Any) -> None:
        """Call Free unless the window is null."""
        if (self or self._made) and not MPI.Is_finalized():
            self.Free()

    def Attach(self: Any, memory: Any) -> None:
        """Attach an array to a window of Create_dynamic.

        memory: a contiguous array, of a GPU or of the host. The window keeps
        the array until Detach or Free. Local. Raises MPI.Exception:
        ERR_RMA_ATTACH if memory overlaps what is attached, ERR_RMA_FLAVOR for
        another window; ValueError for a GPU array that is not contiguous,
        TypeError or BufferError for what is no writable memory of the host,
        and MemoryError beyond 256 GPU arrays of a process.
        """
        if self._made is None:
            STAGED["Attach"](self, memory)
        else:
            self._attach(_attachable(memory), True)

    def Detach(self: Any, memory: Any) -> None:
        """Detach an array that was attached; no rank accesses it any more.

        memory: the array, or one that begins where it begins. Local. While a
        CUDA graph has calls of the window, the window keeps the array: until
        the first Attach, Detach or Free after the graph's end. Raises
        MPI.Exception: ERR_RMA_ATTACH if no attached array begins there, and
        other errors as Attach.
        """
        if self._made is None:
            STAGED["Detach"](self, memory)
        else:
            self._attach(_attachable(memory), False)

    def Get_attr(self: Any, keyval: int) -> Any:
        """Return the attribute of a key, or None."""
        if _is_ours(self) and keyval in _OURS:
            return _OURS[keyval](self)
        return _get_attr(self, keyval)

    @property
    def attrs(self: Any) -> tuple[int, int, int]:
        """Address, bytes and displacement unit of this rank's memory."""
        if not _is_ours(self):
            stock: Any = MPI.Win.attrs
            return stock.__get__(self)  # type: ignore[no-any-return]
        address, nbytes, unit, _ = self._part(self._comm.Get_rank())
        return address, nbytes, unit

    @property
    def flavor(self: Any) -> int:
        """How the window was made: MPI.WIN_FLAVOR_CREATE …."""
        stock: Any = MPI.Win.flavor
        if self._made is not None:
            return _FLAVORS[self._made]
        return stock.__get__(self)  # type: ignore[no-any-return]

    @property
    def model(self: Any) -> int:
        """The memory model: MPI.WIN_UNIFIED for GPU memory."""
        stock: Any = MPI.Win.model
        return MPI.WIN_UNIFIED if _is_ours(self) else stock.__get__(self)

    def Get_group(self: Any) -> MPI.Group:
        """Return the group of the ranks."""
        if self or self._made is None:
            return MPI.Win.Get_group(self)
        group: MPI.Group = self._comm.Get_group()
        return group

    def tomemory(self: Any) -> Any:
        """Return this rank's memory: its GPU array, or a buffer."""
        if not _is_ours(self):
            return MPI.Win.tomemory(self)
        none = MPI.memory.fromaddress(0, 0)
        return none if self._memory is None else self._memory

    def Shared_query(self: Any, rank: int) -> tuple[Any, int]:
        """Return the memory of a rank, and its displacement unit.

        Of any window but one of Create_dynamic, as in MPI 4.1. GPU memory is
        a wm.Array of bytes, mapped here, for the kernels and libraries of this
        process. It keeps the window; after Free it must not be used. rank:
        MPI.PROC_NULL is the first rank with memory. The unit is in bytes; a
        rank without memory has an empty array. Raises MPI.Exception:
        ERR_RMA_SHARED for memory that is not mapped here, or is the host's,
        ERR_RMA_FLAVOR for a window of Create_dynamic, ERR_RANK.
        """
        if self._made is None:
            return MPI.Win.Shared_query(self, rank)
        ranks = (
            range(self._comm.Get_size()) if rank == MPI.PROC_NULL else [rank]
        )
        for each in ranks:
            address, nbytes, unit, on_device = self._part(each)
            if nbytes > 0 or each == rank:
                break
        if self._made == "Create_dynamic":
            raise MPI.Exception(MPI.ERR_RMA_FLAVOR)
        if nbytes == 0:
            return _core.empty(0, "uint8"), unit
        if not on_device or not address:
            raise MPI.Exception(MPI.ERR_RMA_SHARED)
        return _core.asarray(_Mapped(self, address, nbytes)), unit

    Get_info = _memory_kinds.telling(MPI.Win.Get_info)


for _name, _value in vars(_Methods).items():
    if not _name.startswith("__"):
        setattr(_core.Win, _name, _value)

# Class methods of MPI.Win that make windows.
MAKERS: dict[str, Callable[..., Any]] = {
    "Create": create,
    "Allocate": allocate,
    "Allocate_shared": allocate_shared,
    "Create_dynamic": create_dynamic,
}
for _name, _call in MAKERS.items():
    setattr(_core.Win, _name, classmethod(_call))
# What C calls for MPI's own windows; GPU arrays are staged.
_core.Win._beneath = {  # type: ignore[attr-defined]
    name: STAGED.get(name, call)
    for name, call in vars(MPI.Win).items()
    if name[0].isupper()
}
_core._seal(_core.Win)
