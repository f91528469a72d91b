# SPDX-License-Identifier: BSD-3-Clause
"""Communicators without GPUs: every call is MPI's own."""

import os
import platform
import re
import shutil
import subprocess
import sys
import textwrap

import pytest
from mpi4py import MPI

import ranks
import warpmpi as wm

# The package that the tests run with, not the one in the current folder.
INSTALLED = {"PYTHONSAFEPATH": "1"}
# No driver, whichever there is.
NO_GPU = {
    "WARPMPI_CUDA_DRIVER": "",
    "CUDA_VISIBLE_DEVICES": "",
    "WARPMPI_CHECK": "",
    **INSTALLED,
}
pytestmark = pytest.mark.programs


def run(text, *words, **environment):
    return ranks.run(
        *(*words, "-c", textwrap.dedent(text)), **{**NO_GPU, **environment}
    )


EXOTIC = """
    import numpy as np
    from mpi4py import MPI
    import warpmpi as wm
    wm.install()
    comm = MPI.COMM_WORLD
    me, size = comm.rank, comm.size
    to, source = (me + 1) % size, (me - 1) % size
    def array(value, shape=(4, 6)):
        return np.full(shape, value, {dtype!r})
    def check(into, value):
        assert (into[:, 1].astype("f8") == value).all(), into
        assert (into[:, [0, 2, 3, 4, 5]].astype("f8") == -1).all(), into
    import importlib.util
    if importlib.util.find_spec("ml_dtypes"):
        import ml_dtypes
    {body}
"""
BODIES = {
    "Sendrecv": "comm.Sendrecv(give, to, 0, into[:, 1], source, 0)",
    "Isend": """
        requests = comm.Irecv(into[:, 1], source), comm.Isend(give, to)
        MPI.Request.Waitall(requests)""",
    "Ssend": """
        request = comm.Irecv(into[:, 1], source, 3)
        comm.Ssend(give, to, 3)
        request.Wait()""",
    "wm.Request": """
        request = comm.Irecv(into[:, 1], source)
        wm.Request.Waitall([request, comm.Isend(give, to)])""",
    "Send_init": """
        get = comm.Recv_init(into[:, 1], source)
        put = comm.Send_init(give, to)
        for _ in range(3):
            MPI.Prequest.Startall([get, put])
            MPI.Request.Waitall([get, put])
        get.Free(), put.Free()""",
    "Sendrecv_replace": """
        into[:, 1] = give
        comm.Sendrecv_replace(into[:, 1], to, 0, source, 0)""",
    "Bcast": """
        into[:, 1] = give
        for root in range(size):
            got = array(-1)
            got[:, 1] = give
            comm.Bcast(got[:, 1], root)
            check(got, root + 1)
        into[:, 1] = source + 1""",
    "Alltoall": """
        many = array(-1, (size, 8))[:, ::2]
        comm.Alltoall(np.repeat(give[None, :4], size, 0), many)
        assert (many[source] == source + 1).all()
        into[:, 1] = source + 1""",
}


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "complex64"])
def test_arrays_that_mpi4py_refuses(dtype, body):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    text = f"""
into, wide = array(-1), array(-1)
wide[:, 4] = me + 1
give = wide[:, 4]
{textwrap.dedent(BODIES[body])}
check(into, source + 1)
"""
    text = textwrap.indent(text, "    ")
    run(EXOTIC.format(dtype=dtype, body=text.lstrip()))


@pytest.mark.parametrize(
    "body", [b for b in BODIES if b not in ("Bcast", "Alltoall")]
)
def test_elements_that_mpi4py_refuses(body):
    pytest.importorskip("ml_dtypes")
    text = f"""
into = array(-1, 6)
give = array(me + 1, 6)
{textwrap.dedent(BODIES[body]).replace("into[:, 1]", "into")}
assert (into.astype("f8") == source + 1).all(), into
"""
    text = textwrap.indent(text, "    ")
    run(EXOTIC.format(dtype="bfloat16", body=text.lstrip()))


@pytest.mark.parametrize("gpus", [False, True])
def test_what_nobody_can_read_is_mpi4pys(gpus):
    text = """
        import numpy as np
        import pytest
        from mpi4py import MPI
        plain = MPI.Intracomm(MPI.COMM_SELF)
        import warpmpi as wm
        comm = wm.Comm(MPI.COMM_SELF)

        class Shown:
            def __init__(self, **other):
                self.array = np.zeros(3)
                fields = {**self.array.__array_interface__, **other}
                self.__cuda_array_interface__ = {
                    key: value for key, value in fields.items() if value != 0
                }

        for other in (
            {"typestr": 0}, {"typestr": "<fX"}, {"data": 0}, {"data": ()},
            {"shape": 0}, {"shape": (-3,)}, {"mask": True},
        ):
            array = Shown(**other)
            for name in ("Bcast", "Isend", "Recv_init", "Allgather", "Iscan"):
                words = (array, 0) if name == "Isend" else (array,)
                if name[-1] in "rn" and name != "Isend":
                    words = (np.zeros(3), array)
                with pytest.raises(Exception) as theirs:
                    getattr(plain, name)(*words)
                with pytest.raises(theirs.type):
                    getattr(comm, name)(*words)
    """
    as_here = {name: os.environ.get(name, "") for name in NO_GPU}
    run(text, **(as_here if gpus else {}))


def test_buffers_of_no_message_are_mpi4pys():
    """Nobody looks at the buffer of a message with MPI.PROC_NULL."""
    body = """
        import numpy as np
        from mpi4py import MPI
        import warpmpi as wm
        comm, null = wm.Comm(MPI.COMM_WORLD), MPI.PROC_NULL
        for one in "text", 3.5, [1, 2, 3], {}, np.zeros(3, "M8[s]"):
            for name in "Send", "Ssend", "Recv":
                getattr(comm, name)(one, null)
            for name in "Isend", "Irecv":
                getattr(comm, name)(one, null).Wait()
            for name in "Send_init", "Recv_init":
                getattr(comm, name)(one, null).Free()
            comm.Sendrecv(one, null, 0, one, null)
            comm.Sendrecv_replace(one, null, source=null)
            comm.Irecv(into := np.zeros(3), comm.rank)
            comm.Sendrecv(np.ones(3), comm.rank, 0, one, null)
            for wrong in (
                lambda: comm.Sendrecv_replace(one, null, 0, comm.rank),
                lambda: comm.Recv(one, comm.rank),
            ):
                try:
                    wrong()
                except (TypeError, BufferError):
                    continue
                raise AssertionError(one)
    """
    run(body, ranks=1)


def test_a_receive_into_gaps_is_cancelled():
    run("""
        import numpy as np
        from mpi4py import MPI
        import warpmpi as wm
        comm = wm.Comm(MPI.COMM_WORLD)
        into = np.full(6, 7.0)
        once = comm.Irecv(into[::2], 0, 6)
        again = comm.Recv_init(into[::2], 0, 4)
        again.Start()
        for request in once, again:
            status = MPI.Status()
            request.Cancel()
            request.Wait(status)
            assert status.Is_cancelled()
        assert (into == 7).all()
    """)


def test_types_and_what_is_told():
    run("""
        import numpy as np
        from mpi4py import MPI
        import warpmpi as wm
        wm.install()
        comm = MPI.COMM_WORLD
        assert isinstance(comm, wm.Comm)
        other, request = comm.Idup()
        request.Wait()
        for made in comm.Dup(), comm.Split(comm.rank), other:
            assert isinstance(made, wm.Comm)
            made.Allreduce(np.ones(1), np.zeros(1))
            made.Free()
        assert isinstance(comm.Create_cart([comm.size]), wm.Cartcomm)
        assert wm.Comm(comm) == comm
        told = wm.transport(comm, 0)
        assert told.name == "mpi" and "no rank" in told.reason, told
        for call in (
            lambda: comm.on(1).Send(np.ones(1), 0),
            lambda: comm.on(1).Allreduce(np.ones(1), np.zeros(1)),
        ):
            try:
                call()
            except (RuntimeError, ValueError):
                pass
            else:
                raise AssertionError("it did not raise")
        half = comm.Split(comm.rank % 2)
        inter = half.Create_intercomm(0, comm, 1 - comm.rank % 2)
        assert isinstance(inter, wm.Intercomm)
        inter.Sendrecv(np.ones(1), 0, 0, np.zeros(1), 0)
        merged = inter.Merge()
        assert isinstance(merged, wm.Comm) and merged.size == comm.size
    """)


@pytest.mark.parametrize("size", [1, 2])
def test_a_periodic_dimension_that_is_narrow(size):
    """What MPI has wrong is ours still, and messages beside it are MPI's."""
    run(
        """
        import numpy as np
        from mpi4py import MPI
        import warpmpi as wm
        wm.install()
        world = MPI.COMM_WORLD
        cart = world.Create_cart([world.size], [True])
        other = (cart.rank + 1) % cart.size
        given = np.array([10 * cart.rank + 1, 10 * cart.rank + 2])
        wanted = [10 * other + 2, 10 * other + 1]
        for name in "Neighbor_alltoall", "Ineighbor_alltoall":
            got = np.zeros_like(given)
            request = getattr(cart, name)(given, got)
            if request is not None:
                request.Wait()
            assert got.tolist() == wanted, (name, got)
        request = cart.Neighbor_alltoall_init(given, got := 0 * given)
        request.Start()
        request.Wait()
        assert got.tolist() == wanted
        plain = MPI.Comm.Irecv(cart, got, other)
        MPI.COMM_WORLD.Barrier()
        cart.Send(given, other)
        plain.Wait()
        assert isinstance(cart.Dup(), wm.Cartcomm)
        assert isinstance(cart.Sub([True]), wm.Cartcomm)
        """,
        ranks=size,
    )


def test_one_process_without_us(tmp_path):
    """As a program in C is; nobody waits for it when warpmpi is imported."""
    script = tmp_path / "program.py"
    script.write_text(
        "import numpy as np\n"
        "from mpi4py import MPI\n"
        "comm = MPI.COMM_WORLD\n"
        "if comm.rank == 0:\n"
        "    import warpmpi\n"
        "    warpmpi.install()\n"
        "    comm = MPI.COMM_WORLD\n"
        "got = np.zeros(3)\n"
        "comm.Sendrecv(np.ones(3), 1 - comm.rank, 5, got, 1 - comm.rank)\n"
        "comm.Allreduce(np.ones(3), got)\n"
        "assert (got == 2).all()\n"
        "assert comm.bcast({1: 2}) == {1: 2}\n"
        "assert comm.Dup().allreduce(1) == 2\n"
    )
    if os.path.exists("/sys/module/nvidia"):
        pytest.skip("with a driver on the host the ranks ask each other")
    ranks.run(script, **NO_GPU)


FREED_TYPES = """
    import numpy as np
    from mpi4py import MPI
    import warpmpi as wm
    wm.install()

    def of(array):
        place = [array.size], [MPI.Get_address(array)], [MPI.DOUBLE]
        return MPI.Datatype.Create_struct(*place).Commit()

    for _ in range(50):
        a, b = np.ones(3), np.zeros(3)
        types = [of(a)], [of(b)]
        words = [[MPI.BOTTOM, ([1], [0]), each] for each in types]
        try:
            request = MPI.COMM_SELF.Alltoallw_init(*words)
        except NotImplementedError:
            break  # not in Open MPI 4.1
        for each in types:
            each[0].Free()
        others = [of(a) for _ in range(10)]
        request.Start()
        request.Wait()
        request.Free()
        assert (b == 1).all()
        for each in others:
            each.Free()
"""


def test_a_persistent_call_keeps_its_datatypes():
    run(FREED_TYPES)


C_AND_PYTHON = """
    import ctypes
    import numpy as np
    from mpi4py import MPI
    import warpmpi as wm
    wm.install()
    c = ctypes.CDLL(MPI.__file__)
    comm = MPI.COMM_WORLD
    kind = ctypes.c_int if MPI._sizeof(MPI.Comm) == 4 else ctypes.c_void_p
    handle = kind.from_address(MPI._addressof(comm))
    double = kind.from_address(MPI._addressof(MPI.DOUBLE))
    data = np.full(4, comm.rank + 1.0)
    got = np.zeros(4)
    at = ctypes.c_void_p(got.ctypes.data)
    where = ctypes.c_void_p(data.ctypes.data)
    status = ctypes.create_string_buffer(256)
    if comm.rank == 0:
        comm.Send(data, 1, 3)
        assert c.MPI_Recv(at, 4, double, 1, 4, handle, status) == 0
        assert (got == 2).all()
        assert c.MPI_Send(where, 4, double, 1, 5, handle) == 0
        comm.Bcast(data, 0)
        comm.Isend(data[::2], 1, 6).Wait()
    else:
        assert c.MPI_Recv(at, 4, double, 0, 3, handle, status) == 0
        assert (got == 1).all()
        comm.Isend(data, 0, 4).Wait()
        found = MPI.Status()
        comm.Probe(0, 5, found)
        assert found.Get_count(MPI.DOUBLE) == 4
        comm.Recv(got, 0, 5)
        assert c.MPI_Bcast(where, 4, double, 0, handle) == 0
        assert (data == 1).all()
        assert c.MPI_Recv(at, 2, double, 0, 6, handle, status) == 0
    assert comm.bcast({1: 2}) == {1: 2}
"""


def test_c_meets_python():
    """A library on the same communicator, as one by f2py is."""
    run(C_AND_PYTHON)


@pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU")
def test_c_meets_python_beside_gpus():
    """Where the program asks for that; GPU memory goes as ever."""
    beside = """
    mine, theirs = wm.full(5, float(comm.rank)), wm.zeros(5)
    other = 1 - comm.rank
    comm.Sendrecv(mine, other, 0, theirs, other, 0)
    assert (theirs.numpy() == other).all()
    comm.Allreduce(wm.ones(5), theirs)
    assert (theirs.numpy() == 2).all()
    """
    ranks.run(
        "-c",
        textwrap.dedent(C_AND_PYTHON + beside),
        WARPMPI_HOST_MESSAGES="mpi",
        **INSTALLED,
    )


@pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU")
def test_host_messages_are_set_alike():
    text = """
    import os
    rank = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"]
    os.environ["WARPMPI_HOST_MESSAGES"] = {how}
    from mpi4py import MPI
    import warpmpi as wm
    wm.Comm(MPI.COMM_WORLD)
    """
    for how, told in (
        ("'mpi' * int(rank)", "MESSAGES is unset on rank 0 and mpi on rank 1"),
        ("'pigeon'", "is not a known value"),
    ):
        with pytest.raises(AssertionError, match=told):
            ranks.run("-c", textwrap.dedent(text.format(how=how)), **INSTALLED)


def test_no_python_code_looks_at_plain_arrays():
    """Ours are host memory where no process has a GPU, as NumPy's are."""
    run(
        """
        import numpy as np
        from mpi4py import MPI
        import warpmpi as wm
        from warpmpi._staging import call

        call.Call.__init__ = None
        comm = wm.Comm(MPI.COMM_WORLD)
        me, size = comm.rank, comm.size
        right, left = (me + 1) % size, (me - 1) % size
        halo = wm.Halo(comm.Create_cart([size], periods=[True]))
        for make in wm.full, np.full:
            a, b = make(10, me, "float32"), make(10, -1, "float32")
            comm.Sendrecv(a, right, recvbuf=b, source=left)
            assert (np.asarray(b) == left).all()
            comm.Allreduce(a, b)
            assert (np.asarray(b) == sum(range(size))).all()
            halo.exchange(a)
            assert list(np.asarray(a)[[0, 1, -1]]) == [left, me, right]
        """
    )


def test_as_many_communicators_as_mpi_has():
    """Each is one of MPI's."""
    text = """
        from mpi4py import MPI
        comm, kept = MPI.COMM_WORLD, []
        assert type(comm).__module__ == {module!r}
        try:
            while len(kept) < 3000:
                kept.append(comm.Dup())
        except MPI.Exception:
            pass
        print(len(kept))
    """
    plain = run(text.format(module="mpi4py.MPI"), ranks=1)
    ours = run(text.format(module="warpmpi"), "-m", "warpmpi", ranks=1)
    assert ours == plain


def test_a_process_that_asks_for_checks_has_them():
    with pytest.raises(AssertionError, match="WARPMPI_CHECK"):
        run(
            """
            import numpy as np
            from mpi4py import MPI
            import warpmpi as wm
            wm.install()
            MPI.COMM_WORLD.Allreduce(np.ones(1 + MPI.COMM_WORLD.rank),
                                     np.ones(1 + MPI.COMM_WORLD.rank))
            """,
            WARPMPI_CHECK="1",
        )


def test_errors_are_mpi4pys():
    """Also after MPI was finalized, where MPI itself would end the job."""
    run("""
        import numpy as np
        from mpi4py import MPI
        import warpmpi as wm
        wm.install()
        comm = MPI.COMM_WORLD
        for call, kind in (
            (lambda: comm.Send(np.ones(1), 99), MPI.ERR_RANK),
            (lambda: comm.Send(np.ones(1), 0, -7), MPI.ERR_TAG),
            (lambda: comm.Bcast(np.ones(1), 99), MPI.ERR_ROOT),
        ):
            try:
                call()
            except MPI.Exception as error:
                assert error.Get_error_class() == kind, error
            else:
                raise AssertionError("it did not raise")
        freed = comm.Dup()
        freed.Free()
        try:
            freed.Send(np.ones(1), 0)
        except MPI.Exception as error:
            assert error.Get_error_class() == MPI.ERR_COMM
        MPI.Finalize()
        for call in (
            lambda: comm.Send(np.ones(1), 0),
            lambda: comm.send(1, 0),
            lambda: comm.Allreduce(np.ones(1), np.ones(1)),
            lambda: comm.Dup(),
        ):
            try:
                call()
            except RuntimeError as error:
                assert "finalized" in str(error)
            else:
                raise AssertionError("it did not raise")
    """)


CALLS = """
import ctypes, gc, sys
import numpy as np
from mpi4py import MPI

library = ctypes.CDLL(sys.argv[1])
comm = MPI.COMM_WORLD
me, size = comm.rank, comm.size
other, before = (me + 1) % size, (me - 1) % size
one, into = np.ones(4), np.zeros(4)
many, others = np.ones((size, 4)), np.zeros((size, 4))
cart = comm.Create_cart([size], [False])
request = comm.Recv_init(into, before, 9)
counts = [4] * size

def waited(request):
    MPI.Request.Waitall([comm.Isend(one, other), request()])

calls = dict(
    Sendrecv=lambda: comm.Sendrecv(one, other, 0, into, before),
    keywords=lambda: comm.Sendrecv(one, dest=other, recvbuf=into,
                                   source=before),
    typed=lambda: comm.Sendrecv([one, MPI.DOUBLE], other, 0, [into, 4],
                                before),
    Send=lambda: (comm.Send(one, other), comm.Recv(into, before)),
    Bytes=lambda: (comm.Send(bytearray(4), other),
                   comm.Recv(bytearray(4), before)),
    Isend=lambda: waited(lambda: comm.Irecv(into, before)),
    Wait=lambda: (comm.Isend(one, other).Wait(),
                  comm.Irecv(into, before).Wait()),
    persistent=lambda: (request.Start(), comm.Send(one, other, 9),
                        request.Wait()),
    send=lambda: (comm.send("object", other), comm.recv(source=before)),
    isend=lambda: (comm.isend("object", other).wait(),
                   comm.irecv(source=before).wait()),
    sendrecv=lambda: comm.sendrecv("object", other, source=before),
    Probe=lambda: (comm.Send(one, other), comm.Probe(before),
                   comm.Mprobe(before).Recv(into)),
    Barrier=comm.Barrier,
    Ibarrier=lambda: comm.Ibarrier().Wait(),
    bcast=lambda: comm.bcast("object"),
    gather=lambda: comm.gather("object"),
    scatter=lambda: comm.scatter(["object"] * size),
    allgather=lambda: comm.allgather("object"),
    alltoall=lambda: comm.alltoall(["object"] * size),
    reduce=lambda: comm.reduce(1),
    allreduce=lambda: comm.allreduce(1),
    scan=lambda: comm.scan(1),
    Bcast=lambda: comm.Bcast(one),
    Gather=lambda: comm.Gather(one, others if me == 0 else None),
    Gatherv=lambda: comm.Gatherv(one, [others, counts] if me == 0 else None),
    Scatter=lambda: comm.Scatter(many, into),
    Scatterv=lambda: comm.Scatterv([many, counts], into),
    Allgather=lambda: comm.Allgather(one, others),
    Allgatherv=lambda: comm.Allgatherv(one, [others, counts]),
    Alltoall=lambda: comm.Alltoall(many, others),
    Alltoallv=lambda: comm.Alltoallv([many, counts], [others, counts]),
    Reduce=lambda: comm.Reduce(one, into),
    Allreduce=lambda: comm.Allreduce(one, into),
    in_place=lambda: comm.Allreduce(MPI.IN_PLACE, into),
    Reduce_scatter=lambda: comm.Reduce_scatter(many, into, counts),
    Reduce_scatter_block=lambda: comm.Reduce_scatter_block(many, into),
    Scan=lambda: comm.Scan(one, into),
    Exscan=lambda: comm.Exscan(one, into),
    Iallreduce=lambda: comm.Iallreduce(one, into).Wait(),
    Igather=lambda: comm.Igather(one, others).Wait(),
    neighbours=lambda: cart.Neighbor_alltoall(np.ones(2), np.zeros(2)),
    Dup=lambda: comm.Dup().Free(),
    Split=lambda: comm.Split(0).Free(),
    Create_cart=lambda: comm.Create_cart([size]).Free(),
    Idup=lambda: [each() for each in
                  (lambda c, r: (r.Wait, c.Free))(*comm.Idup())],
)
gc.disable()
for name, call in calls.items():
    for count in range(3):  # what is looked up once is not counted
        comm.Barrier()
        library.forget()
        call()
        told = ctypes.create_string_buffer(1 << 16)
        library.tell(told, len(told))
    if me == 0:
        print(name, " ".join(sorted(told.value.decode().split())))
"""
COUNTER = """
#include <stdio.h>
#include <string.h>
static const char names[][64] = { %(names)s };
enum { COUNT = sizeof names / sizeof *names };
long wm_counts[COUNT];
%(calls)s
void forget(void) { memset(wm_counts, 0, sizeof wm_counts); }
void tell(char *text, int room) {
    for (int i = 0; i < COUNT; ++i)
        if (wm_counts[i] > 0) {
            int n = snprintf(text, room, "%%s:%%ld ", names[i], wm_counts[i]);
            text += n, room -= n;
        }
}
"""
# Any signature: it counts, and goes on to MPI with registers and stack as
# they are.
STEP = """
__asm__(".text\\n.globl MPI_%(name)s\\n.type MPI_%(name)s, @function\\n"
        "MPI_%(name)s:\\n"
        "movq wm_counts@GOTPCREL(%%rip), %%r11\\n"
        "lock incq %(at)d(%%r11)\\n"
        "jmp PMPI_%(name)s@PLT\\n");
"""


@pytest.fixture(scope="module")
def counter(tmp_path_factory):
    """A library that counts the calls of MPI before MPI gets them."""
    mpicc = os.environ.get("MPICC") or shutil.which(
        "mpicc",
        path=f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}",
    )
    if platform.machine() != "x86_64" or not mpicc:
        pytest.skip("needs x86-64 and MPI's compiler")
    symbols = subprocess.run(
        ["nm", "-D", "--undefined-only", MPI.__file__],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    names = sorted(set(re.findall(r" U MPI_(\w+)", symbols)))
    names = [
        n for n in names if n not in ("Wtime", "Wtick", "Abort", "Pcontrol")
    ]
    assert len(names) > 100
    folder = tmp_path_factory.mktemp("counter")
    source = folder / "counter.c"
    source.write_text(
        COUNTER
        % {
            "names": ", ".join(f'"{name}"' for name in names),
            "calls": "".join(
                STEP % {"name": name, "at": 8 * at}
                for at, name in enumerate(names)
            ),
        }
    )
    path = folder / "libcounter.so"
    subprocess.run([mpicc, "-shared", "-fPIC", source, "-o", path], check=True)
    return path


# These ask no other rank.
LOOKS = {"Comm_test_inter", "Topo_test", "Comm_get_attr", "Initialized"}
LOOKS |= {"Finalized", "Comm_rank", "Cartdim_get", "Cart_get", "Cart_shift"}
# Nor do these, which only a communicator beside GPUs needs.
KEEPS = {"Comm_size", "Comm_group", "Group_free", "Comm_get_name", "Test"}
KEEPS |= {"Comm_set_attr", "Comm_set_errhandler"}


def count_calls(folder, counter, count, without, **environment):
    """What each call asks MPI for, by its name: (plain, ours)."""
    script = folder / "calls.py"
    script.write_text(CALLS)
    told = {**environment, "LD_PRELOAD": str(counter)}
    printed = [
        ranks.run(*way, script, counter, ranks=count, **told)
        for way in ((), ("-m", "warpmpi"))
    ]
    plain, ours = (
        {
            name: {c for c in calls if c.split(":")[0] not in without}
            for name, *calls in map(str.split, text.splitlines())
        }
        for text in printed
    )
    assert len(plain) > 30 and plain["Bcast"]
    return plain, ours


@pytest.mark.parametrize("count", [2, 3])
def test_each_call_is_as_many_of_mpi(tmp_path, counter, count):
    plain, ours = count_calls(tmp_path, counter, count, LOOKS, **NO_GPU)
    assert ours == plain


# Two private ones, and who the ranks are.
BESIDE_GPUS = {
    "Dup": {"Comm_create:2", "Comm_dup:1"},
    "Split": {"Comm_create:2", "Comm_split:1"},
    "Create_cart": {"Comm_create:1", "Cart_create:2"},
}


@pytest.mark.parametrize("count", [2, 3])
def test_beside_gpus_collectives_are_as_many_of_mpi(tmp_path, counter, count):
    plain, ours = count_calls(
        tmp_path, counter, count, LOOKS | KEEPS, **INSTALLED
    )
    first = list(plain).index("bcast")
    steps = 2 * (count - 1).bit_length()
    for name in list(plain)[first:]:
        if name in BESIDE_GPUS:
            more = {f"Sendrecv:{steps}", "Comm_free:3"}
            plain[name] = BESIDE_GPUS[name] | more
        if name != "Idup":
            assert ours[name] == plain[name], name
