# SPDX-License-Identifier: BSD-3-Clause
"""Programs unchanged: wm.install() and python -m warpmpi."""

import os
import subprocess
import sys
import textwrap

import pytest
from mpi4py import MPI

import ranks
import warpmpi as wm

pytestmark = pytest.mark.programs

# A program that knows nothing of warpmpi, on arrays of another library.
PROGRAM = """
    import sys
    from mpi4py import MPI
    import numpy as np
    comm = MPI.COMM_WORLD
    other = comm.size - 1 - comm.rank
    half = comm.Split(comm.rank % 2, comm.rank)
    mirror = half.size - 1 - half.rank
    for each, peer in (comm, other), (comm.Dup(), other), (half, mirror):
        into = np.zeros(1000)
        request = each.Irecv(into, peer)
        each.Send(np.full(1000, 3.0), peer)
        MPI.Request.Waitall([request])
        assert (into == 3).all()
    first = MPI.COMM_SELF.Send_init(np.ones(2), 0)
    into = np.zeros(2)
    second = MPI.COMM_SELF.Recv_init(into, 0)
    MPI.Prequest.Startall([first, second])
    MPI.Request.Waitall([first, second])
    assert (into == 1).all()
    sent = comm.isend({"a": 7}, other)
    assert comm.recv(source=other) == {"a": 7}
    sent.wait()
    assert isinstance(comm, MPI.Intracomm)
    assert comm == MPI.COMM_WORLD
    assert type(MPI.Intracomm.Split(comm, 0)) is type(comm)
    print(type(comm).__module__, type(half).__name__, *sys.argv[1:])
"""


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_script_unchanged(tmp_path, count):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(PROGRAM))
    printed = ranks.run("-m", "warpmpi", script, "one", "two", ranks=count)
    assert printed.split("\n")[:-1] == ["warpmpi Comm one two"] * count


def test_a_module_and_a_command(tmp_path):
    (tmp_path / "program.py").write_text(
        "from mpi4py import MPI\nprint(type(MPI.COMM_WORLD), __name__)\n"
    )
    wanted = "<class 'warpmpi.Comm'> __main__\n"
    path = f"{tmp_path}:{ranks.ROOT}"
    assert (
        ranks.run("-m", "warpmpi", "-m", "program", ranks=1, PYTHONPATH=path)
        == wanted
    )
    text = (tmp_path / "program.py").read_text()
    assert ranks.run("-m", "warpmpi", "-c", text, ranks=1) == wanted


def test_install_twice_and_what_was_made_before(tmp_path):
    program = """
        from mpi4py import MPI
        kept = [MPI.COMM_WORLD]
        import warpmpi as wm
        wm.install()
        world, (before,) = MPI.COMM_WORLD, kept
        wm.install()
        assert MPI.COMM_WORLD is world
        assert isinstance(world, wm.Comm) and not isinstance(before, wm.Comm)
        assert before == world
        parent = MPI.Comm.Get_parent()
        assert parent == MPI.COMM_NULL
        message = before.Isend(b"abc", before.rank)
        into = bytearray(3)
        before.Mprobe().Recv(into)
        message.Wait()
        assert into == b"abc"
    """
    ranks.run_text(tmp_path, program, ranks=2)


needs_gpu = pytest.mark.skipif(
    not wm.is_cuda_available(), reason="needs a GPU"
)


# What is asked by programs that want a CUDA-aware MPI.
ASKS = """
    import os
    names = [
        "OMPI_MCA_opal_cuda_support", "MPI_CUDA_AWARE", "MV2_USE_CUDA",
        "PYLOPS_MPI_CUDA_AWARE", "FBPIC_ENABLE_GPUDIRECT",
    ]
    def asked():
        return [name for name in names if name in os.environ]
"""
# A process that was started tells what it sees.
CHILD = """
    import sys
    if len(sys.argv) > 1:
        from mpi4py import MPI
        parent = MPI.Comm.Get_parent()
        parent.send(asked(), 0)
        parent.Disconnect()
    else:
        print(asked())
"""


@needs_gpu
def test_the_environment_says_that_mpi_is_cuda_aware(tmp_path):
    program = """
        import ctypes, subprocess, sys
        from mpi4py import MPI
        assert asked() == names
        support = os.environ.get("OMPI_MCA_opal_cuda_support", "false")
        assert support.lower() == "true"
        assert os.environ["MPI_CUDA_AWARE"] == "0"  # set by the user
        assert int(os.getenv("PYLOPS_MPI_CUDA_AWARE", 0)) == 1

        child, environ = [sys.executable, sys.argv[1]], os.environ
        copies = environ.copy(), {**environ}, dict(environ, A="1")
        for given in (None, environ, *copies, environ | {"A": "1"}):
            seen = subprocess.check_output(child, env=given, text=True)
            assert seen.strip() == "['MPI_CUDA_AWARE']", (given, seen)
        inter = MPI.COMM_SELF.Spawn(child[0], [child[1], "spawned"])
        assert inter.recv(source=0) == ["MPI_CUDA_AWARE"]
        inter.Disconnect()
        getenv = ctypes.CDLL(None).getenv
        assert not any(getenv(name.encode()) for name in names[2:])

        os.environ["MV2_USE_CUDA"] = "0"
        assert os.environ.pop("MV2_USE_CUDA") == "0"
        assert os.environ.pop("FBPIC_ENABLE_GPUDIRECT", None) == "1"
        assert asked() == [names[0], names[1], names[3]]
    """
    child, script = tmp_path / "child.py", tmp_path / "script.py"
    asks = textwrap.dedent(ASKS)
    child.write_text(asks + textwrap.dedent(CHILD))
    script.write_text(asks + textwrap.dedent(program))
    words = "-m", "warpmpi", script, child
    ranks.run(*words, ranks=1, MPI_CUDA_AWARE="0")


@pytest.mark.parametrize("how", ["no GPU", "install"])
def test_the_environment_says_so_to_nobody_else(tmp_path, how):
    program = """
        from mpi4py import MPI
        import warpmpi
        warpmpi.install()
        assert asked() == []
    """
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(ASKS) + textwrap.dedent(program))
    begin = ("-m", "warpmpi") if how == "no GPU" else ()
    away = {"WARPMPI_CUDA_DRIVER": "/none"} if how == "no GPU" else {}
    ranks.run(*begin, script, ranks=1, **away)


def test_names_of_modules_become_ours(tmp_path):
    (tmp_path / "library.py").write_text(
        "from mpi4py import MPI\n"
        "from mpi4py.MPI import COMM_WORLD, COMM_SELF as itself\n"
        "Sendrecv, rank_of = COMM_WORLD.Sendrecv, itself.Get_rank\n"
        "plain = COMM_WORLD.Dup()\n"
    )
    program = """
        import warnings
        warnings.simplefilter("error")
        from mpi4py import MPI
        from mpi4py.MPI import COMM_WORLD as world
        import library, mpi4py.futures
        import warpmpi as wm
        wm.install()
        assert world is library.COMM_WORLD is MPI.COMM_WORLD
        assert isinstance(world, wm.Comm)
        assert library.itself is library.rank_of.__self__ is MPI.COMM_SELF
        assert type(library.plain) is MPI.Intracomm
        array = wm.ones(3)
        into = wm.zeros(3)
        library.Sendrecv(array, 1 - world.rank, recvbuf=into)
        assert (into.numpy() == 1).all()
    """
    path = f"{tmp_path}:{ranks.ROOT}"
    ranks.run_text(tmp_path, program, ranks=2, PYTHONPATH=path)


def test_modules_that_answer_by_code_are_not_asked(tmp_path):
    """Lazy ones are not loaded; one without containers is found, too."""
    (tmp_path / "lazy.py").write_text("raise ImportError('loaded')")
    program = f"""
        import importlib.util, sys, types
        sys.path.insert(0, {str(tmp_path)!r})
        spec = importlib.util.find_spec("lazy")
        spec.loader = importlib.util.LazyLoader(spec.loader)
        sys.modules["lazy"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["lazy"])
        class Refusing(types.ModuleType):
            def __getattribute__(self, name):
                raise RuntimeError(name)
        class Proxy:
            __getattribute__ = Refusing.__getattribute__
        sys.modules["refusing"] = Refusing("refusing")
        sys.modules["proxy"] = Proxy()
        from mpi4py import MPI
        few = sys.modules["few"] = types.ModuleType("few")
        few.comm = MPI.COMM_WORLD
        import warpmpi as wm
        wm.install()
        assert few.comm is MPI.COMM_WORLD and type(few.comm) is wm.Comm
    """
    ranks.run_text(tmp_path, program, ranks=1)


@needs_gpu
def test_a_method_that_is_held_elsewhere_is_warned_of(tmp_path):
    program = """
        import warnings
        from mpi4py import MPI
        class Halo:
            def __init__(self, comm):
                self.send = comm.Send
        halo, calls = Halo(MPI.COMM_WORLD), [MPI.COMM_SELF.Bcast]
        import warpmpi as wm
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            wm.install()
        told = sorted(str(each.message) for each in told)
        assert len(told) == 2, told
        assert "the method Bcast of mpi4py's communicator. It" in told[0]
        assert "the method Send of mpi4py's" in told[1]
        assert " as __main__.Halo.send. It gives GPU arrays" in told[1]
    """
    ranks.run_text(tmp_path, program, ranks=1)


def test_functions_of_classes_that_are_held_become_ours(tmp_path):
    program = """
        import sys, types
        from mpi4py import MPI
        few = sys.modules["few"] = types.ModuleType("few")
        few.send = MPI.Comm.Send
        few.reduce = MPI.Intracomm.Allreduce
        table = {"Recv": MPI.Comm.Recv, "more": [MPI.Comm.Bcast, {}]}
        table["more"][1]["itself"] = table
        class Calls:
            send, receive = MPI.Comm.Send, staticmethod(MPI.Comm.Recv)
            write = MPI.File.Write_at
            class Inner:
                dup = MPI.Intracomm.Dup
        class Mine(MPI.Intracomm):
            transmit = MPI.Comm.Send
        from mpi4py.MPI import Attach_buffer
        few.wait_all = MPI.Request.Waitall
        few.start_all = MPI.Prequest.Startall
        table["window"] = [MPI.Win.Create]
        deep = few.deep = []
        for _ in range(2 * sys.getrecursionlimit()):
            deep.append([])
            deep = deep[0]
        deep.append(MPI.Comm.Send)
        import warpmpi as wm
        wm.install()
        comm, mine = MPI.COMM_WORLD, Mine(MPI.COMM_WORLD)
        assert deep[0] is MPI.Comm.Send
        assert few.wait_all == MPI.Request.Waitall
        assert few.start_all == MPI.Prequest.Startall
        assert table["window"] == [MPI.Win.Create]
        assert few.send is MPI.Comm.Send is Calls.send
        assert mine.transmit.__func__ is MPI.Comm.Send
        assert few.reduce is MPI.Comm.Allreduce
        assert table["Recv"] is MPI.Comm.Recv is Calls.receive
        assert table["more"][0] is MPI.Comm.Bcast
        assert Calls.write is MPI.File.Write_at
        assert Calls.Inner.dup is MPI.Comm.Dup
        assert Attach_buffer is MPI.Attach_buffer
        def gpu(count, value=0.0):
            return wm.full(count, value, device=wm.get_device())
        for send in few.send, Calls.send, Mine.transmit:
            for receive in table["Recv"], Calls.receive:
                request = comm.Irecv(gpu(4), comm.rank, 1)
                send(comm, gpu(4, 3.0), comm.rank, 1)
                request.Wait()
                request = comm.Isend(gpu(4, 3.0), comm.rank)
                receive(comm, into := gpu(4), comm.rank)
                request.Wait()
                assert (into.numpy() == 3).all()
            into, peer = gpu(4), comm.rank
            give = comm.Send_init(gpu(4, 3.0), peer)
            pair = comm.Recv_init(into, peer), give
            few.start_all(pair)
            few.wait_all(pair)
            assert (into.numpy() == 3).all()
        few.reduce(comm, gpu(4, 1.0), total := gpu(4))
        table["more"][0](Calls.Inner.dup(comm), total, 0)
        assert (total.numpy() == comm.size).all()
    """
    ranks.run_text(tmp_path, program, ranks=2)


# Host code that uses an address: the program, and what is told.
FAULTS = {
    "plain": ("MPI.COMM_WORLD.Send(array, 0)", True),
    "stored": ("kept[0](array, 0)", True),
    "of the class": ("kept[1](MPI.COMM_WORLD, array, 0)", True),
    "other": ("ctypes.string_at(16)", False),
    "finalized": ("MPI.Finalize(); ctypes.string_at(array.ptr)", False),
    "signal": ("os.kill(os.getpid(), signal.SIGSEGV)", False),
}
# A library without any call of ours.
THEIRS = """
    import ctypes, os
    cuda = ctypes.CDLL(os.environ["WARPMPI_CUDA_DRIVER"])

    class Theirs:
        def __init__(self, count):
            context, ptr = ctypes.c_void_p(), ctypes.c_size_t()
            assert cuda.cuInit(0) == 0
            assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
            assert cuda.cuCtxSetCurrent(context) == 0
            assert cuda.cuMemAlloc_v2(ctypes.byref(ptr), 8 * count) == 0
            self.ptr = ptr.value
            self.__cuda_array_interface__ = {
                "shape": (count,), "typestr": "<f8", "version": 3,
                "data": (self.ptr, False),
            }
"""
# Whose array it is, what has begun before, and handlers set later.
ARRAYS = {
    "comm": "wm.Comm(MPI.COMM_WORLD); array = wm.ones(10, device='cuda')",
    "array": "array = wm.ones(10, device='cuda')",
    "view": "array = wm.asarray(Theirs(10))",
    "none": "array = Theirs(10)",
    "later": "faulthandler.enable(told); array = Theirs(10)",
    "twice": "faulthandler.disable(); faulthandler.enable(told); "
    "wm.Comm(MPI.COMM_WORLD); array = Theirs(10)",
}


@pytest.mark.skipif(
    "WARPMPI_CUDA_DRIVER" not in os.environ, reason="needs the simulator"
)
@pytest.mark.parametrize(
    "name, how",
    [(name, how) for name in FAULTS for how in ("array", "later")]
    + [("plain", how) for how in ARRAYS if how not in ("array", "later")],
)
def test_a_fault_at_a_gpu_address_is_explained(tmp_path, name, how):
    """The handlers from before get the fault as ever."""
    call, explained = FAULTS[name]
    if name == "finalized":
        call = "wm.Comm(MPI.COMM_WORLD); " + call
    program = f"""
        import faulthandler, signal
        from mpi4py import MPI
        told = os.open({str(tmp_path / "told")!r}, os.O_CREAT | os.O_WRONLY)
        os.dup2(told, 2)
        faulthandler.enable(told)
        kept = MPI.COMM_WORLD.Send, MPI.Comm.Send
        import warpmpi as wm
        {ARRAYS[how]}
        {call}
        print("alive")
    """
    printed = ranks.run_text(
        tmp_path, dedent(THEIRS, program), ranks=1, died=True
    )
    told = (tmp_path / "told").read_text()
    assert told.count("host code has used GPU memory") == explained, told
    assert told.count("Fatal Python error: Segmentation fault") == 1, told
    assert "alive" not in printed


@pytest.mark.skipif(
    "WARPMPI_CUDA_DRIVER" not in os.environ, reason="needs the simulator"
)
def test_a_fault_is_explained_where_mpi_begins_late(tmp_path):
    """MPI's own handler, which it sets only if there is none, stays."""
    program = f"""
        import os
        import mpi4py
        mpi4py.rc.initialize = False
        from mpi4py import MPI
        import warpmpi as wm
        array = wm.ones(10, device="cuda")
        told = os.open({str(tmp_path / "told")!r}, os.O_CREAT | os.O_WRONLY)
        os.dup2(told, 2)
        MPI.Init()
        print(MPI.Get_library_version(), flush=True)
        array = array[1:]
        MPI.COMM_WORLD.Send(array, 0)
    """
    printed = ranks.run_text(tmp_path, program, ranks=1, died=True)
    told = (tmp_path / "told").read_text()
    assert "host code has used GPU memory" in told, told
    if "Open MPI" in printed:
        assert "*** Process received signal ***" in told, told


def test_what_finds_a_communicator_by_its_name_or_handle(tmp_path):
    program = """
        import pickle
        from mpi4py import MPI
        from mpi4py.MPI import COMM_WORLD as before
        import warpmpi as wm
        plain = before.Dup()
        wm.install()
        for comm in (MPI.COMM_WORLD, MPI.COMM_SELF):
            assert pickle.loads(pickle.dumps(comm)) is comm
            again = pickle.loads(pickle.dumps(MPI.Intracomm(comm)))
            assert again == comm and type(again) is MPI.Intracomm
            for _ in range(2):
                comm.free()  # of a constant: nothing
            assert comm
        ring = MPI.COMM_WORLD.Create_cart([2])
        for comm in (MPI.COMM_WORLD, ring, ring.Split(0), plain):
            found = MPI.Comm.fromhandle(comm.handle)
            assert type(found) is type(comm) and found == comm
            assert type(MPI.Comm.f2py(comm.py2f())) is type(comm)
        try:
            pickle.dumps(ring)
        except ValueError:
            pass
        else:
            raise AssertionError("a communicator of this run was pickled")
        MPI.Comm.fromhandle(ring.handle).Barrier()
    """
    ranks.run_text(tmp_path, program, ranks=2)


# Objects over the handle of a communicator that the program makes itself.
HAND_MADE = """
    import numpy as np
    from mpi4py import MPI
    kept = [MPI.COMM_WORLD]
    import warpmpi as wm
    wm.install()
    (before,) = kept
    from mpi4py.util import pkl5
    world = MPI.COMM_WORLD
    size, other = world.size, world.size - 1 - world.rank

    class Mine(MPI.Intracomm):
        sent = 0
        def Send(self, buf, dest, tag=0):
            Mine.sent += 1
            super().Send(buf, dest, tag)

    def gpu(count, value=0.0):
        return wm.full(count, float(value), device="cuda")

    def exchange(comm, with_comm=None, make=gpu):
        into = make(4, 0)
        request = (with_comm or comm).Irecv(into, other)
        comm.Send(make(4, 3), other)
        MPI.Request.Waitall([request])
        assert (wm.asarray(into).numpy() == 3).all()

    def use(comm):
        exchange(comm)
        total, everything = gpu(4), gpu(4 * size)
        comm.Allreduce(gpu(4, 1), total)
        comm.Iallgather(total, everything).Wait()
        comm.Bcast(everything, size - 1)
        assert (everything.numpy() == size).all()
"""


@pytest.mark.parametrize("count", [1, 2])
def test_communicators_made_by_hand_take_gpu_arrays(tmp_path, count):
    program = """
        made = [Mine(world), MPI.Intracomm(world), MPI.Comm(world), before,
                pkl5.Intracomm(world), pkl5.Comm(world)]
        for comm in made:
            use(comm)
            for one, other_one in (comm, world), (world, comm):
                for make in gpu, np.full:
                    exchange(one, other_one, make)
        assert Mine.sent > 0
        MPI.Comm.Allreduce(world, gpu(4, 1), total := gpu(4))
        assert (total.numpy() == size).all()
        assert MPI.Comm.allgather(world, 7) == [7] * size
        objects = pkl5.Intracomm(world)
        request = objects.isend({"a": 7}, other)
        assert objects.mprobe(other).recv() == {"a": 7}
        request.wait()
        assert objects.bcast("text") == "text"
    """
    ranks.run_text(tmp_path, dedent(HAND_MADE, program), ranks=count)


def test_a_matched_message_is_received_by_copies_of_it(tmp_path):
    program = """
        for make in gpu, np.full:
            for receive in (
                lambda message, into: MPI.Message.Recv(message, into),
                lambda message, into: MPI.Message(message).Recv(into),
                lambda message, into: MPI.Message(message).Irecv(into).Wait(),
            ):
                request = world.Isend(make(4, 3), other)
                receive(world.Mprobe(other), into := make(4, 0))
                request.Wait()
                assert (wm.asarray(into).numpy() == 3).all()
        request = world.isend({"a": 7}, other)
        assert MPI.Message(world.mprobe(other)).recv() == {"a": 7}
        request.wait()
    """
    ranks.run_text(tmp_path, dedent(HAND_MADE, program))


def test_what_is_made_of_those_made_by_hand_takes_them_too(tmp_path):
    program = """
        mine = Mine(world)
        made = [mine.Dup(), mine.Clone(), mine.Split(0, world.rank),
                mine.Create(mine.Get_group()), mine.Idup()[0],
                MPI.Intracomm(world).Dup(), MPI.Comm(world).Split(0),
                pkl5.Intracomm(world).Dup(), pkl5.Comm(world).Dup(),
                mine.Create_cart([size], [True])]
        types = [type(comm) for comm in made]
        assert types[:5] == [Mine, Mine, wm.Comm, wm.Comm, Mine], types
        assert types[7:] == [pkl5.Intracomm, pkl5.Comm, wm.Cartcomm], types
        made.append(MPI.Cartcomm(made[-1]))
        for comm in made:
            use(comm)
        halo = gpu(8)
        made[-1].Neighbor_allgather(gpu(4, 5), halo)
        assert (halo.numpy() == 5).all()
        inter = world.Split(world.rank).Create_intercomm(0, world, other, 9)
        for comm in (MPI.Intercomm(inter), pkl5.Intercomm(inter)):
            into = gpu(4)
            comm.Sendrecv(gpu(4, 6), 0, 0, into, 0)
            assert (into.numpy() == 6).all()
            comm.Allreduce(gpu(4, 7), into)
            assert (into.numpy() == 7).all()
            use(comm.Merge(bool(world.rank)))
        for comm in made[:-1]:
            comm.Free()
    """
    ranks.run_text(tmp_path, dedent(HAND_MADE, program), ranks=2)


def test_functions_of_attributes_and_error_handlers_are_given_ours(tmp_path):
    program = """
        used = []
        def copy(comm, key, value):
            use(comm)
            used.append("copy")
            return value
        def delete(comm, key, value):
            exchange(comm, make=np.full)
            try:
                exchange(comm)
            except TypeError as error:
                assert "wm.Comm(comm)" in str(error)
            used.append("delete")
        def failed(comm, code):
            exchange(comm)
            used.append("failed")
        key = MPI.Comm.Create_keyval(copy, delete)
        comm = world.Dup()
        comm.Set_attr(key, 7)
        copied = comm.Dup()
        comm.Free()
        copied.Free()
        assert used == ["copy", "delete", "delete"], used
        comm = world.Dup()
        comm.Set_errhandler(MPI.Comm.Create_errhandler(failed))
        comm.Call_errhandler(MPI.ERR_OTHER)
        assert used[3:] == ["failed"], used
    """
    ranks.run_text(tmp_path, dedent(HAND_MADE, program), ranks=2)


def test_a_communicator_of_another_library_refuses_gpu_arrays(tmp_path):
    program = """
        from mpi4py import MPI
        import numpy as np
        plain = MPI.COMM_WORLD.Dup()
        import warpmpi as wm
        wm.install()
        array = wm.ones(4, device="cuda")
        for name, args in (
            ("Send", (array, 0)), ("Irecv", ([array, MPI.DOUBLE], 0)),
            ("Allreduce", (MPI.IN_PLACE, array)), ("Ibcast", (array,)),
            ("Scan", (array, array)),
        ):
            try:
                getattr(plain, name)(*args)
            except TypeError as error:
                assert f"{name}: a buffer is GPU memory" in str(error), error
                assert "wm.Comm(comm)" in str(error), error
            else:
                raise AssertionError(name)
        into = np.zeros(4)
        plain.Sendrecv(np.ones(4), plain.rank, 0, into, plain.rank, 0)
        assert into.all() and plain.allreduce(1) == plain.size
        derived = plain.Dup()
        assert type(derived) is MPI.Intracomm
        wm.Comm(plain)
        plain.Bcast(array)
    """
    ranks.run_text(tmp_path, program, ranks=2)


def test_sessions_take_host_arrays_and_beside_init_all(tmp_path):
    program = """
        import mpi4py
        mpi4py.rc.initialize = False
        from mpi4py import MPI
        import numpy as np
        import warpmpi as wm
        wm.install()
        try:
            session = MPI.Session.Init()
        except NotImplementedError:
            raise SystemExit
        group = session.Create_group("mpi://WORLD")
        comm = MPI.Intracomm.Create_from_group(group, "first")
        other, into = comm.size - 1 - comm.rank, np.zeros(3)
        request = comm.Irecv(into, other)
        comm.Send(np.ones(3), other)
        MPI.Request.Waitall([request])
        assert into.all() and comm.allreduce(1) == comm.size
        copy = comm.Dup()
        copy.Allreduce(MPI.IN_PLACE, into)
        assert (into == comm.size).all()
        copy.Free()
        array = wm.ones(3, device="cuda")
        for call, kind, text in (
            (lambda: comm.Send(array, other), TypeError, "wm.Comm(comm)"),
            (lambda: wm.Comm(comm), RuntimeError, "call MPI.Init() as well"),
        ):
            try:
                call()
            except kind as error:
                assert text in str(error), error
            else:
                raise AssertionError(text)
        comm.Free()
        MPI.Init()
        comm = MPI.Intracomm.Create_from_group(group, "second")
        assert type(comm) is wm.Comm
        comm.Allreduce(MPI.IN_PLACE, array)
        assert (array.numpy() == comm.size).all()
        comm.Free()
        group.Free()
        session.Finalize()
        MPI.COMM_WORLD.Barrier()
        MPI.Finalize()
    """
    ranks.run_text(tmp_path, program, ranks=2)


def test_any_memory_can_be_attached(tmp_path):
    program = """
        from mpi4py import MPI
        import numpy as np
        import warpmpi as wm
        wm.install()
        zeros = lambda n: wm.zeros(n, device=wm.get_device())
        for make in (bytearray, np.zeros, zeros):
            memory = make(2 * (8 + MPI.BSEND_OVERHEAD))
            MPI.Attach_buffer(memory)
            request = MPI.COMM_SELF.Irecv(into := bytearray(8), 0)
            MPI.COMM_SELF.Bsend(b"12345678", 0)
            request.Wait()
            assert into == b"12345678"
            back = MPI.Detach_buffer()
            assert MPI.Get_address(back) == MPI.Get_address(memory)
        try:
            MPI.Attach_buffer(3)
        except TypeError:
            MPI.Attach_buffer(bytearray(10))  # nothing was left attached
            MPI.Detach_buffer()
    """
    ranks.run_text(tmp_path, program, ranks=1)


def run_plain(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "warpmpi", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=ranks.clean_environment(),
        cwd=ranks.ROOT,
        check=False,
    )


def test_help_and_version():
    done = run_plain("--help")
    assert done.returncode == 0
    assert "python -m warpmpi script.py" in done.stdout
    assert run_plain().returncode == 2
    done = run_plain("--version")
    assert done.stdout.startswith("warpmpi ")
    assert "\nswitch points  built in\n" in done.stdout


@pytest.mark.parametrize("words", [("-x",), ("-m",), ("-c",)])
def test_a_wrong_command_line(words):
    done = run_plain(*words)
    assert done.returncode == 1
    assert (
        f"python -m warpmpi: {'no option ' if words == ('-x',) else ''}"
        in (done.stderr)
    )


def test_an_exception_on_one_rank_ends_all():
    program = """
from mpi4py import MPI
if MPI.COMM_WORLD.rank == 0:
    raise RuntimeError("on purpose")
MPI.COMM_WORLD.Recv(bytearray(1), 0)
"""
    with pytest.raises(AssertionError, match="on purpose"):
        ranks.run("-m", "warpmpi", "-c", program, ranks=2, timeout=60)


@pytest.mark.parametrize("words", [("-c",), ("-m", "warpmpi", "-c")])
@pytest.mark.parametrize("status", ["3", "'a text'"])
def test_after_sys_exit_the_others_finish(words, status):
    program = f"""
import sys
from mpi4py import MPI
comm = MPI.COMM_WORLD
if comm.rank == 0:
    comm.send("all that it has", 1)
    sys.exit({status})
assert comm.recv(source=0) == "all that it has"
COMM = MPI.COMM_SELF.Dup()
print(COMM.allreduce("one has finished"))
"""
    wanted = 3 if status == "3" else 1
    printed = ranks.run(*words, program, ranks=2, status=wanted)
    assert "one has finished" in printed


# What a program says of MPI itself, before it is as PROGRAM's are.
BEGINNINGS = {
    "thread level": """
        import mpi4py
        mpi4py.rc.thread_level = "serialized"
        from mpi4py import MPI
        assert MPI.Query_thread() == MPI.THREAD_SERIALIZED
    """,
    "no threads": """
        import mpi4py
        mpi4py.rc(threads=False)
        from mpi4py import MPI
        assert MPI.Query_thread() == MPI.THREAD_SINGLE
    """,
    "its own Init": """
        import mpi4py
        mpi4py.rc(initialize=False, finalize=True)
        from mpi4py import MPI
        from mpi4py.MPI import Init
        assert not MPI.Is_initialized()
        taken = MPI.COMM_WORLD
        Init()
        assert taken is MPI.COMM_WORLD
    """,
    "its own Init_thread and Finalize": """
        import mpi4py
        mpi4py.rc(initialize=False, finalize=False)
        from mpi4py import MPI
        level = MPI.Init_thread(MPI.THREAD_FUNNELED)
        assert level == MPI.Query_thread() == MPI.THREAD_FUNNELED
        import atexit
        atexit.register(MPI.Finalize)
    """,
    "this package first": """
        import warpmpi as wm
        from mpi4py import MPI
        wm.install()
    """,
    "a name of this package first": """
        from warpmpi import Comm
        from mpi4py import MPI
        assert type(MPI.COMM_WORLD) is Comm
    """,
}
EXCHANGE = """
    import numpy as np
    comm = MPI.COMM_WORLD
    assert type(comm).__module__ == "warpmpi", type(comm)
    into = np.zeros(10000)
    comm.Sendrecv(np.ones(10000), 1 - comm.rank, 0, into, 1 - comm.rank, 0)
    assert into.all()
    request = comm.Irecv(into, 1 - comm.rank)
    comm.Split(0).Barrier()
    comm.Send(into, 1 - comm.rank)
    request.Wait()
    print("exchanged")
"""


def dedent(*texts):
    return "".join(map(textwrap.dedent, texts))


@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_a_program_says_how_mpi_begins(tmp_path, beginning):
    script = tmp_path / "script.py"
    script.write_text(dedent(BEGINNINGS[beginning], EXCHANGE))
    assert ranks.run("-m", "warpmpi", script) == "exchanged\n" * 2


@pytest.mark.parametrize("init", ["Init()", "Init_thread()"])
def test_install_before_mpi_is_initialised(tmp_path, init):
    beginning = f"""
        import mpi4py
        mpi4py.rc.initialize = False
        from mpi4py import MPI
        import warpmpi as wm
        wm.install()
        wm.install()
        taken = MPI.COMM_WORLD
        try:
            taken.Send(bytearray(1), 0)
        except RuntimeError as error:
            assert "MPI is not initialized" in str(error)
        else:
            raise AssertionError("sent")
        MPI.{init}
        assert taken is MPI.COMM_WORLD
    """
    script = tmp_path / "script.py"
    script.write_text(dedent(beginning, EXCHANGE, "MPI.Finalize()"))
    assert ranks.run(script) == "exchanged\n" * 2


def test_another_library_initialises_mpi(tmp_path):
    beginning = """
        import ctypes, mpi4py
        mpi4py.rc.initialize = False
        from mpi4py import MPI
        import warpmpi as wm
        wm.install()
        words = open("/proc/self/maps").read().split()
        library = next(w for w in words if "/libmpi.so" in w)
        ctypes.CDLL(library).MPI_Init(None, None)
        try:
            MPI.COMM_WORLD.Send(bytearray(1), 0)
        except RuntimeError as error:
            assert "install()" in str(error)
        else:
            raise AssertionError("sent")
        wm.install()
    """
    script = tmp_path / "script.py"
    script.write_text(dedent(beginning, EXCHANGE, "MPI.Finalize()"))
    assert ranks.run(script) == "exchanged\n" * 2


def test_after_the_programs_own_finalize(tmp_path):
    program = """
        from mpi4py import MPI
        import numpy as np
        into = np.zeros(10)
        lost = MPI.COMM_WORLD.Irecv(into, 0)
        prequest = MPI.COMM_WORLD.Send_init(into, 0)
        taken = MPI.COMM_WORLD.Dup()
        MPI.Finalize()
        import warpmpi as wm
        wm.install()
        assert MPI.Is_finalized()
    """
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(program))
    ranks.run("-m", "warpmpi", script)


def test_a_program_that_has_no_use_for_mpi():
    program = """
import sys
assert "warpmpi" not in sys.modules and "mpi4py.MPI" not in sys.modules
"""
    ranks.run("-m", "warpmpi", "-c", program, ranks=0)


@pytest.mark.parametrize("first", ["from mpi4py import MPI", "import warpmpi"])
def test_what_cannot_be_installed_ends_all(first):
    """Nor does a program go on that takes the import for an optional one."""
    program = f"""
try:
    {first}
except ImportError:
    print("goes on")
"""
    with pytest.raises(AssertionError) as caught:
        ranks.run("-m", "warpmpi", "-c", program, WARPMPI_TRANSPORT="pigeon")
    assert "pigeon" in str(caught.value)
    assert "goes on" not in str(caught.value)


KINDS = """
    import os, tempfile
    from mpi4py import MPI
    import warpmpi as wm
    gpus = wm.is_cuda_available()
    key = "mpi_memory_alloc_kinds"
    CUDA = ["cuda", "cuda:device", "cuda:host", "cuda:managed", "gpu"]
    wanted = ["mpi", "system"] + CUDA * gpus
    def kinds(info):
        told = info[key].split(",")
        assert info.Get(key) == info[key]
        info.Free()
        return told
    mode = MPI.MODE_CREATE | MPI.MODE_RDWR | MPI.MODE_DELETE_ON_CLOSE
    def of(comm):
        path = os.path.join(tempfile.gettempdir(), "kinds")
        return (
            comm, comm.Dup(), comm.Split(0), comm.Create_cart([comm.size]),
            MPI.File.Open(comm, path, mode), MPI.Win.Allocate(8, comm=comm),
        )
"""


@pytest.mark.parametrize("driver", ["simulated", "none"])
def test_info_objects_name_the_kinds_of_memory(tmp_path, driver):
    program = """
        plain = MPI.COMM_SELF.Dup()
        comm = wm.Comm(MPI.COMM_WORLD)
        for each in (comm, comm.Dup(), comm.Split(comm.rank)):
            assert kinds(each.Get_info()) == wanted == kinds(each.info)
            each.Set_info(each.Get_info())
        assert MPI.COMM_WORLD.Get_info().Get(key) is None  # MPI's own
        env = dict(MPI.INFO_ENV.items())
        wm.install()
        comm = MPI.COMM_WORLD
        # Without GPUs the handle is known to MPI alone.
        hand_made = [MPI.Intracomm(comm)] if gpus else []
        for each in (*of(comm), *hand_made):
            assert kinds(each.Get_info()) == wanted == kinds(each.info), each
        session = MPI.Session.Init()
        assert kinds(session.Get_info()) == wanted
        session.Finalize()
        assert plain.Get_info().Get(key) is None
        assert kinds(MPI.INFO_ENV.Dup()) == wanted
        assert MPI.INFO_ENV[key].split(",") == wanted
        env[key] = ",".join(wanted)
        assert dict(MPI.INFO_ENV.items()) == env
        assert len(MPI.INFO_ENV) == len(env)
        assert key in MPI.INFO_ENV and "none" not in MPI.INFO_ENV
        own = MPI.Info.Create({"a": "b"})
        assert "a" in own and key not in own
        assert kinds(MPI.Info.Create_env()) == wanted
    """
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(KINDS) + textwrap.dedent(program))
    away = {"WARPMPI_CUDA_DRIVER": "/none"} if driver == "none" else {}
    ranks.run(script, **away)


@needs_gpu
def test_an_assertion_restricts_the_kinds_of_memory():
    from warpmpi import _memory_kinds

    def tell(**given):
        info = MPI.Info.Create()
        for name, value in given.items():
            info.Set(f"mpi_{name}memory_alloc_kinds", value)
        told = _memory_kinds.tell(info).Get("mpi_memory_alloc_kinds")
        info.Free()
        return told

    cuda = "cuda,cuda:device,cuda:host,cuda:managed"
    assert tell() == f"mpi,system,{cuda},gpu"
    assert tell(**{"": "system,rocm"}) == f"system,rocm,{cuda},gpu"
    assert tell(assert_="cuda:device,system") == "system,cuda:device"
    assert tell(assert_="cuda") == cuda
    assert tell(assert_="rocm") is None
