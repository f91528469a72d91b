# SPDX-License-Identifier: BSD-3-Clause
"""The link by UCX, on its double (tests/simucx) over the simulated driver."""

import pytest

import compiled
import ranks
import ucx_double
from ucx_double import BEGIN, DOUBLE, needs_failures, run, run_unasked

pytestmark = ucx_double.MARKS


ALL = """
    for size in (0, 1, 4097, 300_000, 9_000_001):
        for kinds in ("hd", "dh") if size > 1e6 else ("hh", "hd", "dh", "dd"):
            exchange(comm, *kinds, size)
    told, stats = wm.transport(comm, other), wm.stats()
    assert told.name == "ucx", told
    assert stats["ucx_messages"] == 12, stats
    assert stats["ucx_bytes"] == 2 + 4 * 304_097 + 2 * 9_000_001, stats
    assert stats["staged_bytes"] <= 1, stats

    def strided(kind):
        return make(kind, np.arange(900_000, dtype=np.int32).reshape(300, -1))

    for ours in "hd":
        for theirs in "hd":
            out = strided(ours)
            into = make(theirs, np.zeros((300, 3000), np.int32))
            comm.Sendrecv(out[:, :2000], other, 0, into[:, 500:2500], other, 0)
            came = bytes_of(into)
            assert (came[:, 500:2500] == bytes_of(out)[:, :2000]).all()
            assert not came[:, :500].any() and not came[:, 2500:].any()

    second = comm.Dup()
    array = make("d", np.full(1_000_000, comm.rank, np.uint8))
    into = [make("d", np.zeros(1_000_000, np.uint8)) for _ in range(4)]
    requests = [c.Irecv(each, other, tag) for c, tag, each in zip(
        (comm, second, comm, second), (1, 1, 2, 2), into)]
    requests += [comm.Issend(array, other, 2), second.Isend(array, other, 2),
                 comm.Isend(array, other, 1), second.Isend(array, other, 1)]
    second.Free()
    wm.Request.Waitall(requests)
    assert all((each.numpy() == other).all() for each in into)
    came = comm.sendrecv({"array": array}, other, source=other)["array"]
    assert (came.numpy() == other).all()
    for _ in range(2):  # persistent, and a probe of unknown size
        out = comm.Send_init(array, other)
        out.Start()
        status = MPI.Status()
        comm.Probe(other, 0, status)
        comm.Recv(into[0][: status.Get_count(MPI.BYTE)], other)
        out.Wait()
    request = comm.Isend(array, comm.rank)
    comm.Recv(into[0], comm.rank)
    request.Wait()
    try:  # too long a message is discarded
        comm.Sendrecv(array, other, 5, into[0][:10], other, 5)
    except MPI.Exception as error:
        assert error.Get_error_class() == MPI.ERR_TRUNCATE
    many = make("d", np.full(64 << 20 | 5, comm.rank, np.uint8))
    if comm.rank == 0:  # two chunks
        comm.Send(many, 1)
    else:
        comm.Recv(many, 0)
        assert not many.numpy().any()
    assert double.simucx_live(b"endpoints") == 1
    print("right", flush=True)
"""


def test_messages_of_all_forms_go_by_ucx(tmp_path):
    """Its double ends a process that leaves a request or an endpoint."""
    printed = run(tmp_path, BEGIN + ALL)
    assert printed.count("right") == 2, printed


REFUSED = """
    from mpi4py import MPI
    import warpmpi as wm

    for _ in range(2):
        try:
            wm.Comm(MPI.COMM_WORLD)
        except RuntimeError as error:
            print(error, flush=True)
"""


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({"SIMUCX_VERSION": "1.16.0"}, "UCX 1.16.0 is too old: put UCX 1.17"),
        pytest.param(
            {"SIMUCX_CUDA": "0"},
            "UCX 1.18.0 lacks CUDA: put UCX 1.17",
            marks=pytest.mark.long,
        ),
        (
            {"SIMUCX_FAIL": "init:-1", "SIMUCX_FAIL_RANK": "1"},
            "ucp_init of UCX 1.18.0 fails (Input/output error)",
        ),
    ],
    ids=["too old", "without CUDA", "fails on one rank"],
)
def test_what_is_missing_is_said_on_all_ranks(tmp_path, environment, told):
    printed = run(tmp_path, REFUSED, **environment)
    assert printed.count(f"WARPMPI_TRANSPORT=ucx: {told}") == 4, printed


def test_a_pair_that_cannot_connect_uses_mpi_and_says_why(tmp_path):
    text = """
    exchange(comm, "d", "d", 300_000)
    told, stats = wm.transport(comm, other), wm.stats()
    print(told.name, stats["ucx_messages"], told.reason, flush=True)
    """
    printed = run(
        tmp_path,
        BEGIN + text,
        apart=True,
        SIMUCX_FAIL="ep_create:1:-6",
    )
    told = "host 0 UCX cannot connect to the peer: Destination is unreachable"
    assert printed.count(told) == 2, printed


def test_a_link_that_one_process_lacks_is_not_used(tmp_path):
    text = """
    exchange(comm, "d", "d", 300_000)
    told = wm.transport(comm, other)
    print(told.name, told.reason, flush=True)
    """
    failing = {"SIMUCX_FAIL": "init:-1", "SIMUCX_FAIL_RANK": "1"}
    printed = run_unasked(tmp_path, BEGIN + text, **failing)
    assert printed.count("host not both processes use UCX") == 1, printed


UNASKED = """
    exchange(comm, "d", "d", 300_000)
    exchange(comm, "h", "h", 300_000)
    stats = wm.stats()
    print(wm.transport(comm, other).name, stats["ucx_messages"],
          stats["mpi_messages"], stats["staged_bytes"], flush=True)
"""


@pytest.mark.parametrize("transports", ["tcp", "tcp,rc_mlx5"])
def test_unasked_it_serves_between_hosts_with_rdma(tmp_path, transports):
    """For GPU memory alone, and if MPI does not take that."""
    printed = run_unasked(tmp_path, BEGIN + UNASKED, transports)
    told = "ucx 1 1 0" if "rc" in transports else "host 0 1 600000"
    assert printed.count(told) == 2, printed


@pytest.mark.parametrize(
    ("transports", "scheme", "asked"),
    [("tcp", None, 1), ("tcp", "am", 0), ("tcp,rc_mlx5", None, 0)],
)
def test_puts_are_pipelined_without_rdma(tmp_path, transports, scheme, asked):
    """Unless the user has named a scheme of rendezvous."""
    text = (
        BEGIN
        + """
    print("asked", double.simucx_calls(b"RNDV_SCHEME=put_ppln"), flush=True)
    """
    )
    named = {} if scheme is None else {"UCX_RNDV_SCHEME": scheme}
    printed = run(tmp_path, text, SIMUCX_TRANSPORTS=transports, **named)
    assert printed.count(f"asked {asked}") == 2, printed


REQUIRED = """
    import ctypes
    from mpi4py import MPI
    ctypes.CDLL("libucp.so.0")  # as a library of the program may have done
    import warpmpi as wm

    comm, array = wm.Comm(MPI.COMM_WORLD), wm.ones(100_000)
    wm.require("gpu")
    try:
        comm.Send(array, 1) if comm.rank == 0 else comm.Recv(array, 0)
    except wm.StagingError as error:
        print("raised", error, flush=True)
"""


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({"SIMUCX_VERSION": "1.16.0"}, "UCX 1.16.0 is too old: put UCX 1.17"),
        ({}, "it has no transport with RDMA: set WARPMPI_TRANSPORT=ucx"),
        ({"WARPMPI_TRANSPORT": "ipc"}, "WARPMPI_TRANSPORT does not select it"),
    ],
    ids=["too old", "without RDMA", "ruled out"],
)
def test_a_refusal_to_stage_names_the_links_that_could_serve(
    tmp_path, environment, told
):
    printed = run(
        tmp_path,
        REQUIRED,
        apart=True,
        **{"WARPMPI_TRANSPORT": "", **environment},
    )
    told = f"the peer is on another host, and no link carries it (ucx: {told}"
    assert printed.count(told) == 2, printed
    assert printed.count("raised") == 2
    assert "; mpi: " in printed
    assert "let one of these serve, or send a copy in host memory" in printed


FREED = """
    def turn(size):
        array = wm.empty(size, "u1", device=device)[:300_000]
        request = comm.Isend(array, other)
        comm.Recv(wm.empty(size, "u1", device=device)[:300_000], other)
        request.Wait()

    large = device.total_memory // 8
    for _ in range(3):
        turn(large)  # more than is kept
        turn(300_000)
        turn(300_000)
    made = double.simucx_calls(b"mem_map")
    turn(300_000)
    assert double.simucx_calls(b"mem_map") == made  # kept
    assert double.simucx_calls(b"late") == 0  # unmapped before it is freed
    print("mapped", made > 2, double.simucx_live(b"mappings") < made,
          flush=True)
"""


def test_registrations_are_kept_until_the_memory_is_freed(tmp_path):
    printed = run(tmp_path, BEGIN + FREED, SIMUCX_TRANSPORTS="rc_mlx5")
    assert printed.count("mapped True True") == 2, printed


@pytest.mark.long
def test_the_doctor_tells_which_ucx_serves():
    printed = ranks.run("-m", "warpmpi", "doctor", **DOUBLE)
    told = " ".join(printed.split())
    assert "UCX UCX 1.18.0, " in told, printed
    assert "transports: tcp/sim0" in told, printed
    assert "ucx " in told.split("GPU arrays")[-1], printed


LEAVES = """
    exchange(comm, "d", "h", 300_000)
    time.sleep(0.3 * comm.rank)
    MPI.Finalize()
    print("left", double.simucx_live(b"endpoints") <= 1,
          double.simucx_live(b"contexts"), flush=True)
"""


def test_ranks_leave_one_after_the_other(tmp_path):
    """The last finds connections that have ended, and must not use them."""
    printed = run(tmp_path, BEGIN + LEAVES)
    assert printed.count("left True 0") == 2, printed


@needs_failures
def test_a_revoked_communicator_in_a_chunk(tmp_path):
    """The receive goes on until the sender has told that nothing comes."""
    text = """
    revoked = wm.Comm(MPI.COMM_WORLD.Dup())
    revoked.Set_errhandler(MPI.ERRORS_RETURN)
    array = make("d", np.full(60_000_000, comm.rank + 1, np.uint8))
    begun = revoked.Irecv if comm.rank else revoked.Isend
    request = begun(array, other)
    counted = b"tag_recv_nbx" if comm.rank else b"piece"
    try:  # a slow sender hears of it before its first piece
        while double.simucx_calls(counted) < 1:
            request.Test()
        if comm.rank == 1:
            revoked.Revoke()
        request.Wait()
    except MPI.Exception as error:
        name = MPI.Get_error_string(error.Get_error_class())
        assert "REVOKED" in name, name
    before = bytes_of(array).copy()
    time.sleep(0.1)
    assert (bytes_of(array) == before).all()
    exchange(comm, "d", "d", 300_000)
    print("goes on", flush=True)
    """
    flags = "--with-ft", "ulfm"
    printed = run(tmp_path, BEGIN + text, flags=flags)
    assert printed.count("goes on") == 2, printed


DIES = """
    MPI.COMM_WORLD.Set_errhandler(MPI.ERRORS_RETURN)
    comm.Set_errhandler(MPI.ERRORS_RETURN)
    array = make({kind!r}, np.zeros(9_000_000, np.uint8))
    if comm.rank == 1 and {sender}:
        double.simucx_fail(b"piece", 30, 137)
    if comm.rank == 1 and not {sender} and not {both}:
        request = comm.Irecv(array, 0)
        while double.simucx_calls(b"tag_recv_nbx") < 1:
            request.Test()
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    try:
        if {both}:
            comm.Send(array, other)
        elif (comm.rank == 1) == {sender}:
            comm.Send(array, other)
        else:
            comm.Recv(array, other)
    except MPI.Exception as error:
        name = MPI.Get_error_string(error.Get_error_class())
        before = bytes_of(array).copy()
        for _ in range(20):
            time.sleep(0.01)
            comm.Iprobe(0)
        assert (bytes_of(array) == before).all()
        assert wm.transport(comm, other).name != "ucx"
        print("told", "PROC_FAILED" in name, time.monotonic() - began < 10,
              flush=True)
    os._exit(0)
"""


@needs_failures
@pytest.mark.parametrize("kind", ["h", "d"])
@pytest.mark.parametrize("sender", [True, False])
def test_a_peer_that_dies_in_a_chunk(tmp_path, kind, sender):
    printed = run(
        tmp_path,
        BEGIN + DIES.format(kind=kind, sender=sender, both=False),
        flags=("--with-ft", "ulfm"),
        died=True,
    )
    assert "told True True" in printed, printed


@needs_failures
def test_a_peer_that_dies_while_both_send(tmp_path):
    """The engine alone makes the progress of MPI that tells of the death."""
    text = """
    if comm.rank == 1:
        import threading

        kill = lambda: os.kill(os.getpid(), signal.SIGKILL)
        threading.Timer(0.5, kill).start()
    """
    printed = run(
        tmp_path,
        BEGIN + text + DIES.format(kind="h", sender=False, both=True),
        flags=("--with-ft", "ulfm"),
        died=True,
    )
    assert "told True True" in printed, printed


LOOKS = """
    #define _GNU_SOURCE
    #include <dlfcn.h>
    #include <string.h>

    int looks;

    void *
    dlopen(const char *name, int mode)
    {
        void *(*next)(const char *, int);
        *(void **)&next = dlsym(RTLD_NEXT, "dlopen");
        looks += name != NULL && strcmp(name, "libucp.so.0") == 0;
        return next(name, mode);
    }
"""


def test_communicators_look_for_ucx_once(tmp_path):
    """Unless another library was loaded meanwhile."""
    printed = ranks.run_text(
        tmp_path,
        """
        import ctypes
        from mpi4py import MPI
        import warpmpi as wm

        looks = ctypes.c_int.in_dll(ctypes.CDLL(None), "looks")
        comm = wm.Comm(MPI.COMM_SELF)
        comm.Dup().Free()
        before = looks.value
        for _ in range(3):
            comm.Dup().Free()
        print("looks", before > 0, looks.value - before)
        """,
        ranks=0,
        LD_PRELOAD=compiled.library(tmp_path, LOOKS),
    )
    assert "looks True 0" in printed, printed
