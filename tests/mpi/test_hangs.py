# SPDX-License-Identifier: BSD-3-Clause
"""Who waits for whom is said on stderr, and why where it can be seen."""

import json

import pytest
from mpi4py import MPI

import ranks
import warpmpi as wm

pytestmark = pytest.mark.programs

SECONDS = "2"  # of which half is a peer's to answer, on a busy machine, too
NO_GPU = {"WARPMPI_CUDA_DRIVER": "", "CUDA_VISIBLE_DEVICES": ""}
# Every program ends by itself: what hangs is released as soon as all that is
# to be told has been, in one line of any rank, or after a while.
BEGIN = """
    import json, os, signal, sys, threading, time
    sys.stderr = os.fdopen(os.dup(2), "w")
    os.dup2(os.open(os.environ["TOLD"], os.O_WRONLY | os.O_APPEND), 2)
    import numpy as np
    from mpi4py import MPI
    import warpmpi as wm

    plain = MPI.COMM_WORLD
    array, other = np.zeros(1000), np.zeros(1000)
    WANTED = json.loads(os.environ["WANTED"])
    LATE = 20 if WANTED else 1

    def until_told():
        end, told = time.monotonic() + LATE, False
        while not told and time.monotonic() < end:
            time.sleep(0.05)
            with open(os.environ["TOLD"]) as file:
                lines = file.readlines() if WANTED else []
            told = any(all(each in line for each in WANTED) for line in lines)

    def release(call, args):
        until_told()
        call(*args)

    def later(call, *args):
        thread = threading.Thread(target=release, args=(call, args))
        thread.start()
        return thread

    if sys.argv[1] != "wrap":
        comm = wm.Comm(plain)
"""

SEND_FIRST = """
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    thread = later(comm.Recv, other, left)
    comm.Ssend(array, right, 3)
    thread.join()
"""
SENDS_FIRST = (
    ": Ssend has waited ",
    " s for rank 1 to receive a message with tag 3 (8000 bytes, "
    "float64); rank 1: Ssend has waited ",
)

HANGS = {
    "tags": (
        """
        if comm.rank == 0:
            comm.Isend(array, 1, 5)
            later(comm.Send, array, 1, 7)
            comm.Recv(other, 1, 9)
        else:
            comm.Recv(other, 0, 7)
            comm.Recv(other, 0, 5)
            comm.Send(array, 0, 9)
        """,
        (
            "rank 1 of MPI_COMM_WORLD (size 2): Recv has waited ",
            " s for a message from rank 0 with tag 7 (8000 bytes, float64); "
            "1 message has come with another source or tag: from rank 0 with "
            "tag 5 (8000 bytes): do the tags differ?; rank 0: Recv has "
            "waited ",
            " s for a message from rank 1 with tag 9 (8000 bytes, float64) "
            "on MPI_COMM_WORLD",
        ),
    ),
    "source": (
        """
        if comm.rank == 2:
            later(comm.Send, array, 1, 7).join()
        elif comm.rank == 0:
            comm.Send(array[:1], 1, 7)
        else:
            comm.Recv(other, 2, 7)
            comm.Recv(other, 0, 7)
        """,
        (
            "Recv has waited ",
            "1 message has come with another source or tag: from rank 0 with "
            "tag 7 (8 bytes): is the source another rank?; rank 2 is in no "
            "blocking call of warpmpi",
        ),
    ),
    "collective": (
        """
        if comm.rank == 0:
            comm.Barrier()
        else:
            later(comm.Send, array, 1, 3)
            comm.Recv(other, 1, 3)
            comm.Barrier()
        """,
        (
            "rank 0 of MPI_COMM_WORLD (size 2): Barrier has waited ",
            " s for the other ranks; rank 1 is in another call: Recv has "
            "waited ",
        ),
    ),
    "finalize": (
        """
        if comm.rank == 0:
            later(comm.Send, array, 0, 3)
            comm.Recv(other, MPI.ANY_SOURCE)
        """,
        (
            "Recv has waited ",
            " s for a message from any rank with any tag (8000 bytes, "
            "float64); rank 1 is in MPI_Finalize",
        ),
    ),
    "not wrapped": (
        """
        if comm.rank == 0:
            sent = plain.Isend(array, 1, 5)
            later(comm.Send, array, 1, 5).join()
            sent.Wait()
        else:
            comm.Recv(other, 0, 5)
            plain.Recv(other, 0, 5)
        """,
        (
            "Recv has waited ",
            "a message from rank 0 with tag 5 has come that was not sent by "
            "a wm.Comm: do all ranks use a wm.Comm? (if C code sent the "
            "message: set WARPMPI_HOST_MESSAGES=mpi)",
        ),
    ),
    "wrap": (
        """
        if plain.rank == 1:
            until_told()
        wm.Comm(plain)
        """,
        (
            "rank 0 of MPI_COMM_WORLD (size 2): wm.Comm has waited ",
            " s for the other ranks: do all ranks make this wm.Comm?",
        ),
    ),
    "both send": (
        SEND_FIRST,
        (
            *SENDS_FIRST,
            ": both ranks send first: use Sendrecv or Isend",
        ),
    ),
    "ring of sends": (
        SEND_FIRST,
        (
            *SENDS_FIRST,
            ": all 3 ranks of a ring send first: use Sendrecv or Isend",
        ),
    ),
    "both receive": (
        """
        peer = 1 - comm.rank
        thread = later(comm.Send, array, peer)
        wm.Request.Waitall([comm.Irecv(other, peer)])
        thread.join()
        """,
        (
            ": Waitall has waited ",
            "for a message from rank 1 with any tag (8000 bytes)",
            ": do both ranks receive before they send?",
        ),
    ),
    "communicators": (
        """
        peer, halo = 1 - comm.rank, comm.Dup()
        halo.Set_name("halo")
        mine, its = (halo, comm) if comm.rank == 0 else (comm, halo)
        thread = later(its.Send, array, peer)
        mine.Recv(other, peer)
        thread.join()
        halo.Free()
        """,
        (
            "rank 1 of MPI_COMM_WORLD (size 2): Recv has waited ",
            "rank 0: Recv has waited ",
            " on halo: the two calls are on different communicators",
        ),
    ),
    "probe": (
        """
        later(comm.Send, array, comm.rank, 4)
        comm.Mprobe(tag=4).Recv(other)
        """,
        (": Mprobe has waited ", "for a message from any rank with tag 4"),
    ),
    "objects": (
        """
        thread = later(comm.send, 1, 1 - comm.rank, 4)
        assert comm.recv() == 1
        thread.join()
        """,
        (": recv has waited ", "for a message from any rank with any tag"),
    ),
    "any of several": (
        """
        thread = later(comm.Send, array, 1 - comm.rank, 4)
        wm.Request.Waitany([comm.Irecv(other, 1 - comm.rank, 4)])
        thread.join()
        """,
        (": Waitany has waited ", "for a message from rank 0 with tag 4"),
    ),
}
THREE = "source", "ring of sends"


def run(
    tmp_path,
    body,
    *words,
    wanted=(),
    seconds=SECONDS,
    count=2,
    first=(),
    **more,
):
    """What the program printed, and then all that was told on stderr."""
    told = tmp_path / "told"
    told.touch()
    script = tmp_path / "program.py"
    # Both are indented, each in its own way.
    script.write_text(
        ranks.textwrap.dedent(BEGIN) + ranks.textwrap.dedent(body)
    )
    printed = ranks.run(
        *first,
        script,
        *words,
        ranks=count,
        WARPMPI_HANG_SECONDS=seconds,
        TOLD=str(told),
        WANTED=json.dumps(wanted),
        **more,
    )
    return printed + told.read_text()


def says(tmp_path, told, *program, **options):
    """run(), of which one line on stderr tells all of that."""
    printed = run(tmp_path, *program, wanted=told, **options)
    lines = [line for line in printed.splitlines() if "warpmpi: " in line]
    assert any(all(part in line for part in told) for line in lines), printed
    return printed


def test_a_limit_that_becomes_shorter(tmp_path):
    """The thread that watches may sleep for the former limit then."""
    body = """
        os.environ["WARPMPI_HANG_SECONDS"] = "0.5"
        with open(os.environ["TOLD"]) as file:
            assert file.read() == ""
        other_one = plain.Dup()
        if plain.rank == 1:
            until_told()
        wm.Comm(other_one)
    """
    wanted = ("rank 0 of ", "wm.Comm has waited 0.5 s")
    printed = run(tmp_path, body, "shorter", wanted=wanted, seconds="60")
    assert all(part in printed for part in wanted), printed


@pytest.mark.parametrize("name", HANGS)
def test_a_long_wait_says_who_waits_for_whom(tmp_path, name):
    body, told = HANGS[name]
    count = 3 if name in THREE else 2
    printed = says(tmp_path, told, body, name, count=count)
    assert ("of a ring" in printed) == (name == "ring of sends"), printed


@pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU")
@pytest.mark.parametrize("hosts", [1, 2])
def test_a_lock_of_a_window_says_who_waits(tmp_path, hosts):
    body = f"""
        os.environ["WARPMPI_HOST"] = f"host {{plain.rank % {hosts}}}"
        comm = wm.Comm(plain)
        win = wm.Win.Create(wm.zeros(4), 8, comm=comm)
        if comm.rank == 0:
            win.Lock(0)
        comm.Barrier()
        if comm.rank == 0:
            later(win.Unlock, 0).join()
        else:
            win.Lock(0)
            win.Unlock(0)
        win.Free()
    """
    served = "for rank 0 to perform Lock of a window" if hosts == 2 else ""
    wanted = (": Lock has waited ", served)
    printed = run(tmp_path, body, "wrap", wanted=wanted)
    assert all(part in printed for part in wanted), printed


# A message of a graph, as the text of a test goes on.
MESSAGE = """
        import graphs
        stream = wm.Stream(wm.get_device())
        a = wm.ones({size}, device=wm.get_device("cuda"))
        with graphs.capture(stream) as captured:
            if comm.rank == 1:
                comm.on(stream).Send(a, 0, {sent})
            else:
                comm.on(stream).Recv(a, 1, {received})
"""


@pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU")
@pytest.mark.parametrize("size", [10, 100_000])
def test_a_graph_that_waits_says_for_whom(tmp_path, size):
    """Rank 1 launches its graph when that has been told."""
    body = (
        MESSAGE.format(size=size, sent=4, received=4)
        + """
        if comm.rank == 1:
            until_told()
        captured[0].launch(stream)
        stream.synchronize()
    """
    )
    told = (
        "rank 0 of MPI_COMM_WORLD (size 2): a CUDA graph has waited ",
        " s for a message from rank 1 with tag 4: has that rank launched",
    )
    says(tmp_path, told, body, "")


@pytest.mark.long
@pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU")
def test_a_graph_that_goes_on_slowly_is_not_told(tmp_path):
    """Each replay waits, and all together for longer than the limit."""
    body = (
        MESSAGE.format(size=10, sent=4, received=4)
        + """
        end = time.monotonic() + 2 * float(os.environ["WARPMPI_HANG_SECONDS"])
        while plain.bcast(time.monotonic() < end):
            if comm.rank == 1:
                time.sleep(0.3)
            captured[0].launch(stream)
            stream.synchronize()
    """
    )
    printed = run(tmp_path, body, "")
    assert "a CUDA graph has waited" not in printed


CAPTURED = {  # by each algorithm, and by streams that wait
    "LL": "Allreduce(MPI.IN_PLACE, a[:10])",
    "LL128": "Allreduce(MPI.IN_PLACE, a[:100_000])",
    "Simple": "Allreduce(MPI.IN_PLACE, a)",
    "streams": "Barrier()",
}


@pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU")
@pytest.mark.parametrize("how", CAPTURED)
def test_a_collective_of_a_graph_says_for_whom(tmp_path, how):
    """Rank 1 launches its graph when that has been told."""
    body = f"""
        import graphs
        stream = wm.Stream(wm.get_device())
        a = wm.ones(8_000_000, "int32", device=wm.get_device("cuda"))
        with graphs.capture(stream) as captured:
            comm.on(stream).{CAPTURED[how]}
        captured[0].launch(stream)
        stream.synchronize()  # this time all come, and nothing is told
        if comm.rank == 1:
            until_told()
        captured[0].launch(stream)
        stream.synchronize()
    """
    told = (
        "rank 0 of MPI_COMM_WORLD (size 2): a collective of a CUDA graph has "
        "waited ",
        " s for rank 1: has that rank launched as many graphs",
    )
    assert "for rank 0" not in says(tmp_path, told, body, "")


@pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU")
def test_a_call_that_waits_is_no_graph(tmp_path):
    """Also after as many calls as are counted in 16 bits."""
    body = """
        import graphs
        stream = wm.Stream(wm.get_device())
        channel = comm.on(stream)
        a = wm.ones(10, "int32", device=wm.get_device("cuda"))
        with graphs.capture(stream) as captured:
            channel.Allreduce(MPI.IN_PLACE, a)
        captured[0].launch(stream)
        for call in range(65535):
            channel.Bcast(a)
            if call % 500 == 0:
                stream.synchronize()
        stream.synchronize()
        comm.Barrier()
        if comm.rank == 0:
            channel.Allreduce(MPI.IN_PLACE, a)
            for tag in 8, 9:
                comm.Recv(other, 1, tag)
        else:
            for tag in 8, 9:
                WANTED = [f"with tag {tag}"]
                until_told()
                comm.Send(other, 0, tag)
            channel.Allreduce(MPI.IN_PLACE, a)
        stream.synchronize()
    """
    printed = run(tmp_path, body, "", wanted=("with tag 9",))
    assert "with tag 9" in printed
    assert "CUDA graph has waited" not in printed


@pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU")
def test_a_graph_whose_tags_differ_says_so(tmp_path):
    """Rank 1 captures the right one when that has been told."""
    body = (
        MESSAGE.format(size=10, sent=6, received=5)
        + """
        if comm.rank == 0:
            captured[0].launch(stream)
        else:
            until_told()
            with graphs.capture(stream) as right:
                comm.on(stream).Send(a, 0, 5)
            right[0].launch(stream)
        stream.synchronize()
    """
    )
    told = (
        "rank 0 of MPI_COMM_WORLD (size 2): a CUDA graph has waited ",
        " s for a message from rank 1 with tag 5, which the other rank has "
        "not captured; a captured message has come from rank 1 with tag 6: ",
    )
    says(tmp_path, told, body, "")


# Calls that one rank never makes; how the line begins to name them.
ALONE = {
    "Allreduce": "comm.Allreduce(make(3), make(3))",
    "Bcast": "comm.Bcast(make(3), 1)",
    "Barrier": "comm.Barrier()",
    "allreduce": "comm.allreduce(1)",
    "bcast": "comm.bcast(1, 1)",
    "Allreduce_init": "comm.Allreduce_init(make(3), make(3)).Free()",
}


@pytest.mark.parametrize("kind", ["gpu", "host", "no gpu"])
@pytest.mark.parametrize("call", ALONE)
def test_a_checked_collective_says_who_is_missing(tmp_path, call, kind):
    if call == "Allreduce_init" and not hasattr(MPI.Comm, call):
        pytest.skip("needs MPI 4")
    if kind == "gpu" and not wm.is_cuda_available():
        pytest.skip("needs a GPU")
    driver = NO_GPU if kind == "no gpu" else {}
    body = f"""
        if {kind == "gpu"}:
            make = lambda n: wm.ones(n, device=wm.get_device("cuda"))
        else:
            make = np.ones
        if comm.rank == 1:
            later(comm.Send, array, 1, 3)
            comm.Recv(other, 1, 3)
        {ALONE[call]}
    """
    told = (
        f"rank 0 of MPI_COMM_WORLD (size 2): {call} has waited ",
        "for the other ranks; rank 1 is in another call: Recv has waited ",
    )
    says(tmp_path, told, body, "", WARPMPI_CHECK="1", **driver)


@pytest.mark.parametrize("driver", [{}, NO_GPU], ids=["any", "no gpu"])
@pytest.mark.parametrize("name", [n for n in HANGS if n != "finalize"])
def test_a_checked_wait_says_who_waits_for_whom(tmp_path, name, driver):
    body, told = HANGS[name]
    count = 3 if name in THREE else 2
    more = {"WARPMPI_CHECK": "1", **driver}
    says(tmp_path, told, body, name, count=count, **more)


# Waits inside MPI, on communicators without GPUs; Dup on any.
INSIDE = {
    "Recv": """
        later(comm.Send, array, peer)
        comm.Recv(other, peer)
    """,
    "Ssend": """
        later(comm.Recv, other, peer)
        comm.Ssend(array, peer)
    """,
    "recv": """
        later(comm.send, 1, peer)
        comm.recv(source=peer)
    """,
    "Wait": """
        later(comm.Send, array, peer)
        request = comm.Irecv(other, peer)
        request.Wait()
    """,
    "Waitall": """
        later(comm.Send, array, peer)
        MPI.Request.Waitall([comm.Irecv(other, peer)])
    """,
    "Allreduce": """
        if comm.rank == 1:
            until_told()
        comm.Allreduce(array, other)
    """,
    "Dup": """
        if comm.rank == 1:
            until_told()
        comm.Dup().Free()
    """,
}


@pytest.mark.parametrize("name", [*INSIDE, "Dup with GPUs"])
def test_a_long_wait_inside_mpi_says_where_the_program_is(tmp_path, name):
    call, _, gpus = name.partition(" ")
    driver = {} if gpus else NO_GPU
    body = "\npeer = 1 - comm.rank\n" + ranks.textwrap.dedent(INSIDE[call])
    told = (
        f"rank 0 of MPI_COMM_WORLD (size 2): {call} has waited ",
        " s inside MPI (",
        "program.py, line ",
        "SIGUSR1 tells where the other ranks are; WARPMPI_CHECK=1",
    )
    printed = says(tmp_path, told, body, name, **driver)
    if call in ("Allreduce", "Dup"):  # rank 1 is in none of MPI's
        assert "warpmpi: rank 1" not in printed


NO_HANG = {
    "messages": "comm.Sendrecv(array, peer, 0, other, peer, 0)",
    "requests": """
        request = comm.Irecv(other, peer)
        comm.Send(array, peer)
        request.Wait()
    """,
    "Python": "sum(range(1000))",
    "NumPy": "np.ones((500, 500)) @ np.ones((500, 500))",
    "sleep": "time.sleep(0.5)",
}


@pytest.mark.parametrize("name", NO_HANG)
def test_a_program_that_goes_on_waits_for_nobody(tmp_path, name):
    steps = ranks.textwrap.indent(
        ranks.textwrap.dedent(NO_HANG[name]), " " * 4
    )
    body = f"""
peer, array, other = 1 - comm.rank, np.zeros(1), np.zeros(1)
on, end = np.ones(1), time.monotonic() + 4
while on[0]:
{steps}
    if name != "sleep":
        on[0] = time.monotonic() < end
        comm.Bcast(on)
    else:
        time.sleep(3.5)
        on[0] = 0
print("gone on")
    """
    body = f"name = {name!r}\n" + body
    printed = run(tmp_path, body, name, seconds="1", **NO_GPU)
    assert printed.count("gone on") == 2
    assert "warpmpi:" not in printed


# A signal in a job without GPUs: what rank 0 does meanwhile, and says.
ASKED = {
    "inside": ("comm.Recv(other, 1)", ": Recv is inside MPI (", "line "),
    "none": (
        "until_told(); comm.Recv(other, 1)",
        " is in no blocking call of warpmpi: it is at ",
        "in until_told",
    ),
}


@pytest.mark.parametrize("how", ["comm", "install", "-m warpmpi"])
@pytest.mark.parametrize("name", ASKED)
def test_a_signal_has_it_said_without_gpus(tmp_path, name, how):
    call, *told = ASKED[name]
    told = ["rank 0 of MPI_COMM_WORLD (size 2)", *told]
    first = {"comm": "", "install": "wm.install()\ncomm = MPI.COMM_WORLD\n"}
    body = (
        first.get(how, "comm = MPI.COMM_WORLD\n")
        + f"""
if comm.rank == 0:
    kill = threading.Timer(1, os.kill, (os.getpid(), signal.SIGUSR1))
    kill.start()
    {call}
else:
    until_told()
    comm.Send(array, 0)
print("done")
"""
    )
    flags = ("-m", "warpmpi") if how == "-m warpmpi" else ()
    word = "comm" if how == "comm" else "wrap"
    printed = run(
        tmp_path, body, word, wanted=told, seconds="60", first=flags, **NO_GPU
    )
    assert printed.count("done") == 2
    lines = [line for line in printed.splitlines() if "warpmpi:" in line]
    assert len(lines) == 1, printed
    assert all(part in lines[0] for part in told), printed


RAISED = """
    if plain.rank == 1:
        raise ValueError("no grid\\udcff.dat\\nin this folder")

    def end():
        until_told()
        os._exit(3)

    threading.Thread(target=end).start()
"""
TOLD_THERE = (
    ": Recv has waited ",
    "; rank 1 raised ValueError: no grid\\udcff.dat in this folder, and is in "
    "MPI_Finalize",
)
TOLD_HERE = (
    "rank 1 of MPI_COMM_WORLD (size 2): this rank raised ValueError: no "
    "grid\\udcff.dat in this folder; MPI_Finalize has waited ",
    "`python -m warpmpi`",
)


@pytest.mark.parametrize(
    ("call", "told", "driver"),
    [
        ("comm.Recv(wm.zeros(3), 1)", TOLD_THERE, {}),
        ("comm.Recv(wm.zeros(3), 1)", TOLD_HERE, {}),
        ("plain.Barrier()", TOLD_HERE, {}),
        ("comm.Barrier()", TOLD_HERE, {"WARPMPI_CUDA_DRIVER": "/none"}),
    ],
)
def test_an_exception_of_a_rank_is_told_to_the_others(
    tmp_path, call, told, driver
):
    if told is TOLD_THERE and not wm.is_cuda_available():
        pytest.skip("needs a GPU")
    body = ranks.textwrap.dedent(RAISED) + call
    says(tmp_path, told, body, "raise", died=True, **driver)


def test_an_exception_on_all_ranks_tells_no_wait(tmp_path):
    # Ranks do not come together on a busy machine, though they do not wait.
    body = "plain.Barrier(); raise ValueError('on all')"
    printed = run(tmp_path, body, "raise", seconds="10", died=True)
    assert "waited" not in printed


def test_what_has_come_is_still_received_in_order(tmp_path):
    """Looking at what does not match takes nothing from any receive."""
    body = """
        if comm.rank == 0:
            sent = [
                comm.Isend(np.full(1 + 300 * n, n), 1, n % 3) for n in range(9)
            ]
            later(comm.Send, array, 1, 7).join()
            wm.Request.Waitall(sent)
        else:
            comm.Recv(other, 0, 7)
            status, seen = MPI.Status(), []
            while len(seen) < 9:
                into = np.full(3000, -1)
                tag = MPI.ANY_TAG if len(seen) < 6 else 8 - len(seen)
                comm.Recv(into, 0, tag, status)
                count = status.Get_count(MPI.INT64_T)
                assert (into[:count] == into[0]).all()
                assert count == 1 + 300 * into[0], (count, into[0])
                seen.append((int(into[0]), status.tag))
            numbers = [*range(6), 8, 7, 6]
            assert seen == [(n, n % 3) for n in numbers], seen
            print("received")
        """
    told = "4 or more messages have come with another source or tag"
    printed = run(tmp_path, body, "order", wanted=[told])
    assert told in printed
    assert "received" in printed


@pytest.mark.parametrize("seconds", ["0", "30"])
def test_nothing_is_said_before_its_time(tmp_path, seconds):
    printed = run(tmp_path, HANGS["tags"][0], "tags", seconds=seconds)
    assert "warpmpi:" not in printed


@pytest.mark.parametrize("call", ["Detach_buffer", "Flush_buffer"])
@pytest.mark.parametrize("owner", ["comm", "wm"])
def test_a_wait_for_buffered_messages_has_its_name(tmp_path, call, owner):
    if not wm.is_cuda_available():
        pytest.skip("needs a GPU")
    body = f"""
        from warpmpi import _buffered
        wm.{call} = _buffered.FUNCTIONS["{call}"]
        wm.Attach_buffer = _buffered.FUNCTIONS["Attach_buffer"]
        {owner}.Attach_buffer(bytearray(1_000_000))
        if comm.rank == 0:
            comm.Bsend(wm.ones(100_000), 0, 3)
            late = later(comm.Recv, wm.empty(100_000), 0, 3)
            {owner}.{call}()
            late.join()
    """
    told = f": {call} has waited "
    printed = run(tmp_path, body, "buffer", wanted=[told])
    assert told in printed, printed


def test_a_barrier_tells_of_a_collective_of_host_memory(tmp_path):
    """MPI does it, and no rank waits before it: no preflight can tell."""
    if not wm.is_cuda_available():
        pytest.skip("needs a GPU")
    body = """
        if comm.rank == 0:
            later(plain.Abort, 1)
            comm.Barrier()
        else:
            comm.Allreduce(array, other)
        """
    told = (
        "rank 0 of MPI_COMM_WORLD (size 2): Barrier has waited ",
        " s for the other ranks; rank 1 is in a collective of host memory: do "
        "all ranks make the same calls in the same order? WARPMPI_CHECK=1",
    )
    says(tmp_path, told, body, "host", died=True)


def test_threads_that_make_communicators_are_all_told(tmp_path):
    """Open MPI 5 does not always finish both, so that the program aborts."""
    if not wm.is_cuda_available():
        pytest.skip("needs a GPU")
    body = """
        both = plain.Dup(), plain.Dup()
        for each, name in zip(both, ("first", "second")):
            each.Set_name(name)
        if plain.rank == 0:
            makers = [
                threading.Thread(target=wm.Comm, args=(each,)) for each in both
            ]
            for maker in makers:
                maker.start()
                time.sleep(0.1)
            for maker in makers:
                maker.join()
        else:
            until_told()
            plain.Abort(1)
        """
    told = (
        "rank 0 of first (size 2): wm.Comm has waited ",
        " s for the other ranks: do all ranks make this wm.Comm?; 2 threads "
        "of this rank have made communicators at the same time, after which "
        "Open MPI 5 may hang: make them in one thread at a time",
    )
    says(tmp_path, told, body, "wrap", died=True)


def test_a_wait_in_which_something_moves_is_no_hang(tmp_path):
    body = """
        if comm.rank == 0:
            begun = time.monotonic()
            while time.monotonic() - begun < 3:
                time.sleep(0.1)
                comm.Send(array, 1)
            comm.Send(array, 1, 1)
        else:
            status = MPI.Status()
            while status.tag != 1:
                comm.Recv(other, 0, status=status)
        """
    assert "has waited" not in run(tmp_path, body, "moves", seconds="2")


def test_a_wrong_number_of_seconds_raises_on_all_ranks(tmp_path):
    body = """
        try:
            wm.Comm(plain)
        except RuntimeError as error:
            print("refused:", error)
        """
    printed = run(tmp_path, body, "wrap", seconds="soon")
    assert printed.count("refused:") == 2
    assert "WARPMPI_HANG_SECONDS=soon is not a number of seconds" in printed


def test_a_wrong_number_of_seconds_is_warned_of_without_gpus(tmp_path):
    body = """
        import warnings
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            wm.Comm(plain)
        for each in told:
            print("warned:", each.category.__name__, each.message)
        """
    printed = run(tmp_path, body, "wrap", seconds="soon", **NO_GPU)
    wrong = "warned: RuntimeWarning WARPMPI_HANG_SECONDS=soon is not a number"
    assert printed.count(wrong) == 2, printed


SIGNAL = """
    how = sys.argv[1]
    if how == "own":  # set before, or after: the program's own is called
        signal.signal(signal.SIGUSR1, lambda *_: print("own", flush=True))
    if how == "wait":
        thread = threading.Timer(1, os.kill, (os.getpid(), signal.SIGUSR1))
        thread.start()
        later(comm.Send, array, comm.rank, 2)
        comm.Recv(other, comm.rank, 2)
    else:
        pending = comm.Irecv(other, 0, 6) if how == "pending" else None
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(1)
        if pending:
            comm.Send(array, 0, 6)
            pending.Wait()
"""


@pytest.mark.parametrize(
    "how, told",
    [
        ("wait", "Recv has waited 1"),
        ("pending", "under way: a receive from rank 0 with tag 6 (8000 "),
        ("idle", "rank 0 of MPI_COMM_WORLD (size 1) is in no blocking call"),
    ],
)
def test_a_signal_has_it_said_at_once(tmp_path, how, told):
    if how == "pending" and MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        pytest.skip("needs the progress thread")
    printed = run(tmp_path, SIGNAL, how, wanted=[told], seconds="60", count=1)
    assert printed.count("warpmpi:") == 1, printed
    assert told in printed


def test_a_signal_has_it_said_while_a_comm_is_made(tmp_path):
    """The thread answers for the main one, which is inside MPI."""
    body = """
        if plain.rank == 1:
            until_told()
        else:
            ask = os.kill, (os.getpid(), signal.SIGUSR1)
            threading.Timer(1, *ask).start()
        wm.Comm(plain)
    """
    told = ["rank 0 of MPI_COMM_WORLD (size 2): wm.Comm waits for the other "]
    printed = run(tmp_path, body, "wrap", wanted=told, seconds="60")
    assert printed.count("warpmpi:") == 1, printed
    assert told[0] in printed


def test_the_signal_stays_the_programs(tmp_path):
    printed = run(tmp_path, SIGNAL, "own", seconds="60", count=1)
    assert printed == "own\n"


def test_the_signal_stays_the_programs_without_gpus(tmp_path):
    printed = run(tmp_path, SIGNAL, "own", seconds="60", **NO_GPU)
    assert printed == "own\n" * 2


@pytest.mark.forks
@pytest.mark.parametrize("driver", [{}, NO_GPU])
@pytest.mark.parametrize("seconds", ["0", "60"])
def test_the_signal_ends_a_child_as_ever(tmp_path, seconds, driver):
    body = """
        pid = os.fork()
        if pid == 0:
            time.sleep(20)
            os._exit(0)
        time.sleep(0.5)
        os.kill(pid, signal.SIGUSR1)
        print(os.waitpid(pid, 0)[1] == signal.SIGUSR1)
        """
    printed = run(tmp_path, body, "child", seconds=seconds, **driver)
    assert printed == "True\n" * 2


GIVEN_UP = {
    "finalize": (
        """
        sent = wm.zeros(1000, np.float64, device=wm.get_device())
        if comm.rank == 0:
            comm.Isend(sent, 1, 3)
        """,
        "rank 0 of MPI_COMM_WORLD (size 2): MPI_Finalize has waited ",
    ),
    "free": (
        """
        sent = wm.zeros(1000, np.float64, device=wm.get_device())
        halo = comm.Dup()
        halo.Set_name("halo")
        if comm.rank == 0:
            halo.Isend(sent, 1, 3)
        halo.Free()
        """,
        "rank 0 of halo (size 2): MPI_Comm_free has waited ",
    ),
}


@pytest.mark.parametrize("name", GIVEN_UP)
def test_a_message_that_nobody_receives_is_named_at_the_end(tmp_path, name):
    if not wm.is_cuda_available():
        pytest.skip("needs a GPU")
    body, told = GIVEN_UP[name]
    printed = run(tmp_path, body, name, seconds="0")
    what = " s for rank 1 to receive a message with tag 3 (8000 bytes)"
    lines = [line for line in printed.splitlines() if told in line]
    assert len(lines) == 1, printed
    assert f"{what}, and gives up" in lines[0]
    assert printed.count("gives up") == 1, printed  # nor waits for it again


LEFT = """
    if how == "message" and comm.rank == 0:
        for number in range(13):
            comm.Send(array[:number], 1, 5)
    elif how == "request" and comm.rank == 0:
        kept = comm.Irecv(other, 1, 8)
        comm.Isend(array[:1], 0, 9)  # dropped at once
        comm.Recv(other, 0, 9)
        comm.Attach_buffer(bytearray(10_000))
        comm.Ibsend(array[:1], 0, 3)
        comm.Recv(other, 0, 3)
        part = comm.Psend_init(array[:2], 2, 1, 4)
        part.Start()
        part.Pready(0)
    elif how == "communicator":
        halo = comm.Dup()
        halo.Set_name("halo")
    elif how == "nothing":
        halo = comm.Split(comm.rank)
        halo.Isend(array[:1], 0, 9).Wait()
        halo.Recv(other, 0, 9)
        wm.Request.Waitall([comm.Isend(array[:9], 1 - comm.rank)])
        MPI.Request.Waitall([comm.Irecv(other, 1 - comm.rank)])
        again = comm.Send_init(array[:9], 1 - comm.rank, 4)
        again.Start()
        comm.Recv(other, 1 - comm.rank, 4)
        again.Wait()
        assert comm.sendrecv(1, 1 - comm.rank) == 1
        comm.bcast(2)
        halo.Free()
"""
TOLD = {
    "message": [
        "rank 1 of MPI_COMM_WORLD (size 2): a message was never received: "
        f"from rank 0 with tag 5 ({n} bytes)"
        for n in range(16, 80, 8)
    ]
    + ["and 3 more messages were never received"],
    "request": [
        "rank 0 of MPI_COMM_WORLD (size 2): a request was never waited for: "
        "a receive from rank 1 with tag 8 (8000 bytes)",
        "rank 0 of MPI_COMM_WORLD (size 2): a request was never waited for: "
        "a send to rank 0 with tag 9 (8 bytes)",
        "rank 0 of MPI_COMM_WORLD (size 2): a request was never waited for: "
        "a send to rank 0 with tag 3 (8 bytes)",
        "rank 0 of MPI_COMM_WORLD (size 2): a request was never waited for: "
        "a send to rank 1 with tag 4",
    ],
    "communicator": [
        f"rank {n} of halo (size 2): the communicator was never freed"
        for n in (0, 1)
    ],
    "nothing": [],
}
LINES = {"message": 11, "request": 4, "communicator": 2, "nothing": 0}


@pytest.mark.parametrize("name", TOLD)
def test_what_is_left_at_the_end_is_listed(tmp_path, name):
    if name == "nothing" and MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        pytest.skip("MPI.Request.Waitall needs the progress thread")
    body = f"how = {name!r}\n" + ranks.textwrap.dedent(LEFT)
    printed = run(tmp_path, body, name, WARPMPI_CHECK="1")
    assert printed.count("warpmpi:") == LINES[name], printed
    for told in TOLD[name]:
        assert f"warpmpi: {told}\n" in printed, printed


@pytest.mark.parametrize("name", TOLD)
def test_nothing_is_listed_without_being_asked(tmp_path, name):
    body = f"how = {name!r}\n" + ranks.textwrap.dedent(LEFT)
    assert "warpmpi:" not in run(tmp_path, body, name, WARPMPI_CHECK="0")


def test_an_exchange_of_a_halo_that_a_rank_does_not_make(tmp_path):
    """On the host it waits as any call, and in a plan its kernel does."""
    if not wm.is_cuda_available():
        pytest.skip("needs a GPU")
    body = """
        halo = wm.Halo(plain.Create_cart([2], [True]))
        u, stream = wm.ones(10), wm.Stream(wm.get_device())
        plan = halo.plan(u)
        wm.synchronize_device(stream.device)
        if sys.argv[1] == "plan":
            later(plan, stream).join() if comm.rank == 1 else plan(stream)
            stream.synchronize()
        elif comm.rank == 1:
            later(getattr(halo, sys.argv[1]), u).join()
        else:
            getattr(halo, sys.argv[1])(u)
        halo.free()
    """
    for name, wanted in (
        ("plan", ("an exchange of a wm.Halo has not ended for ", "neighbour")),
        ("exchange", ("Halo.exchange has waited ",)),
        ("reduce", ("Halo.reduce has waited ",)),
    ):
        says(tmp_path, wanted, body, name)
