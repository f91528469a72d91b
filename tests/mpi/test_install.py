# SPDX-License-Identifier: BSD-3-Clause
"""Programs unchanged: wm.install() and python -m warpmpi."""

import subprocess
import sys
import textwrap

import pytest

import ranks

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
        from mpi4py.MPI import COMM_WORLD as before
        import warpmpi as wm
        wm.install()
        world = MPI.COMM_WORLD
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
    assert "\nswitch points: built in\n" in done.stdout


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
