# SPDX-License-Identifier: BSD-3-Clause
"""Collectives between hosts of several ranks: in each host, and by rails.

Hosts are told apart by WARPMPI_HOST. MPI exchanges on the rails, or NCCL where
it is found, or, in a build with WARPMPI_TOYS=1, a ring of GPUs
(tests/toys/ring_engine.c).
"""

import ast
import os

import pytest
from mpi4py import MPI

import compiled
import kinds
import ranks
import simulated_nccl
import warpmpi as wm
from warpmpi import _core

pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU"),
]
TOYS = pytest.mark.skipif(
    "gpu_ring" not in _core._coll_engines(),
    reason="the core was built without WARPMPI_TOYS=1",
)

# Without MPI the other engines do short calls, too.
BUT_NCCL = ",".join(
    name for name in _core._coll_engines() if name not in ("nccl", "mpi")
)

# The hosts of 4 ranks, and of 3, where one is alone on its host.
HOSTS = {"pairs": "0011", "mixed": "0110", "unequal": "001", "three": "0121"}

BEGIN = """
    import os, random, sys, time
    import numpy as np
    from mpi4py import MPI
    rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
    os.environ["WARPMPI_HOST"] = "host " + sys.argv[1][rank]
    os.environ["NCCL_HOSTID"] = f"host {rank}"  # may share a GPU
    import warpmpi as wm
    from warpmpi import _core

    comm = wm.Comm(MPI.COMM_WORLD)
    COUNT = 20000  # a vector of several steps

    def new(make=wm.array):
        values = np.arange(COUNT, dtype="float32")
        return make(values + rank), make(0 * values)

    def check(got):
        got = np.asarray(got.to("cpu") if hasattr(got, "to") else got)
        values = np.arange(COUNT, dtype="float32")
        assert np.array_equal(got, values * size + size * (size - 1) // 2)

    def allreduce():
        given, got = new()
        comm.Allreduce(given, got)
        check(got)
"""


def run(folder, program, hosts, *words, begin=BEGIN, nccl=False, **options):
    """What the ranks print. nccl: it may serve on the rails."""
    if nccl:
        options = simulated_nccl.environment(**options)
    else:
        options.setdefault("WARPMPI_ENGINES", BUT_NCCL)
    return ranks.run_text(
        folder, begin + program, hosts, *words, ranks=len(hosts), **options
    )


def engines(printed):
    """What each rank's engines have started."""
    return [
        ast.literal_eval(line.split(" ", 1)[1])
        for line in printed.splitlines()
        if line.startswith("engines ")
    ]


EVERY_CALL = """
    import graphs
    device = wm.get_device()
    stream = wm.Stream(device)
    FORMS = "", "I", "_init"
    KINDS = (
        "Allreduce", "Reduce", "Bcast", "Allgather", "Allgatherv", "Gather",
        "Scatter", "Reduce_scatter", "Reduce_scatter_block", "Alltoall",
    )
    # What NCCL does between all ranks.
    LEFT = "Gatherv", "Scatterv", "Alltoallv", "Scan", "Exscan"
    ROOTED = "Reduce", "Bcast", "Gather", "Scatter", "Gatherv", "Scatterv"

    def call(form, name, *args, **more):
        if form == "I":
            getattr(comm, "I" + name.lower())(*args, **more).Wait()
        elif form == "_init":
            request = getattr(comm, name + "_init")(*args, **more)
            for _ in range(2):
                request.Start()
                request.Wait()
            request.Free()
        elif form == "on":
            getattr(comm.on(stream), name)(*args, **more)
            stream.synchronize()
        elif form == "graph":
            # A capture does not open NCCL.
            comm.on(stream).Bcast(wm.zeros(9, device=device))
            if name in LEFT:
                comm.on(stream).Barrier()
            with graphs.capture(stream) as made:
                getattr(comm.on(stream), name)(*args, **more)
            for _ in range(3):
                made[0].launch(stream)
            stream.synchronize()
            made[0].free()
        else:
            getattr(comm, name)(*args, **more)

    def of(ranks, count):
        # A block of each rank, whose values tell it.
        line = np.arange(count) % 61
        return np.concatenate([line + 100 * rank for rank in ranks])

    def expect(name, root, count, counts):
        # What this rank sends, and what it gets.
        everyone = range(size)
        line, mine = of([0], count), of([rank], count)
        total = size * line + 100 * sum(everyone)
        wide = of(everyone, count) + rank
        blocks = of(everyone, count).reshape(size, count)
        if name == "Allreduce":
            return mine, total
        if name == "Reduce":
            return mine, total if rank == root else None
        if name == "Allgather":
            return mine, of(everyone, count)
        if name == "Allgatherv":
            its = [of([each], counts[each]) for each in everyone]
            return its[rank], np.concatenate(its)
        if name == "Gather":
            return mine, of(everyone, count) if rank == root else None
        if name == "Scatter":
            return of(everyone, count) if rank == root else None, mine
        if name == "Reduce_scatter_block":
            return wide, size * blocks[rank] + sum(everyone)
        if name == "Reduce_scatter":
            given = np.arange(sum(counts)) % 251
            at = sum(counts[:rank])
            its = given[at : at + counts[rank]]
            return given + rank, size * its + sum(everyone)
        if name in ("Scan", "Exscan"):
            ranks = range(rank + (name == "Scan"))
            return mine, len(ranks) * line + 100 * sum(ranks)
        return wide, np.concatenate([blocks[rank] + each for each in everyone])

    def expect_uneven(name, root, counts):
        # Likewise, with the counts of blocks: (send, recv, counts of each).
        lines = [of([each], counts[each]) for each in range(size)]
        all = np.concatenate(lines)
        if name == "Gatherv":
            return lines[rank], all if rank == root else None, None, counts
        if name == "Scatterv":
            return all if rank == root else None, lines[rank], counts, None
        # To each rank as many as that one has.
        given = all + 7 * rank
        got = [lines[rank] + 7 * each for each in range(size)]
        return given, np.concatenate(got), counts, [counts[rank]] * size

    def try_out(form, name, root, count, in_place=False):
        counts = [count + 500 * each for each in range(size)]
        as_array = lambda values: None if values is None else wm.array(
            values.astype("float32"), device=device
        )
        more = {"root": root} if root >= 0 else {}
        if name == "Bcast":
            got, want = as_array(of([rank], count)), of([root], count)
            call(form, name, got, **more)
        elif name in ("Gatherv", "Scatterv", "Alltoallv"):
            given, want, gives, takes = expect_uneven(name, root, counts)
            sent = as_array(given)
            got = as_array(None if want is None else 0 * want)
            call(
                form,
                name,
                [sent, gives] if gives and sent is not None else sent,
                [got, takes] if takes and got is not None else got,
                **more,
            )
        else:
            given, want = expect(name, root, count, counts)
            sent = as_array(given)
            got = as_array(None if want is None else 0 * want)
            if in_place:  # of an Allreduce
                sent, got = MPI.IN_PLACE, sent
            into = [got, counts] if name == "Allgatherv" else got
            last = [counts] if name == "Reduce_scatter" else []
            call(form, name, sent, into, *last, **more)
        if want is not None and (name != "Exscan" or rank > 0):
            found = np.asarray(got.to("cpu"))
            assert np.array_equal(found, want), (form, name, root, found, want)
"""


@pytest.mark.parametrize("nccl", [False, True], ids=["mpi", "nccl"])
@pytest.mark.parametrize("hosts", HOSTS.values(), ids=HOSTS)
def test_every_call_in_every_form(tmp_path, hosts, nccl):
    """From every root; short and long, where rails reduce in two ways."""
    program = """
    for form in FORMS:
        for name in KINDS:
            for root in range(size) if name in ROOTED else [-1]:
                try_out(form, name, root, 5003)
        if form != "_init":
            try_out(form, "Allreduce", -1, 5003, True)
        for name in LEFT if form == "" else ("Scan",):
            try_out(form, name, size - 1 if name in ROOTED else -1, 5003)
    for name in "Allreduce", "Reduce", "Bcast", "Reduce_scatter_block":
        root = size - 1 if name in ("Reduce", "Bcast") else -1
        try_out("", name, root, 80001)
    print("engines", _core._coll_engines())
"""
    found = engines(run(tmp_path, EVERY_CALL + program, hosts, nccl=nccl))
    calls = 4 * (6 + 4 * len(hosts)) + 2 + 4
    if len({*map(hosts.count, hosts)}) > 1:
        calls -= 4  # MPI does Alltoall where hosts have unequal numbers
    assert {counts["hierarchy"] for counts in found} == {calls}
    assert {counts["nccl"] > calls / 2 for counts in found} >= {nccl}


@pytest.mark.skipif(kinds.is_real(), reason="simulates a GPU a rank")
@pytest.mark.parametrize("hosts", ["0011", "001"])
def test_a_blocking_call_is_on_a_stream_where_rails_have_nccl(tmp_path, hosts):
    """Its kernels and NCCL's go onto one stream: no task is stepped."""
    program = """
    comm.Iallreduce(*new()).Wait()
    allreduce()
    before = wm.stats()["ipc_collectives"]
    request = comm.Iallreduce(*new())  # its tasks come before
    for _ in range(3):
        allreduce()
    request.Wait()
    found = _core._coll_engines()
    kernels = 6 if sys.argv[1].count(sys.argv[1][rank]) > 1 else 0
    assert wm.stats()["ipc_collectives"] - before >= kernels, wm.stats()
    print("engines", found)
"""
    found = engines(
        run(tmp_path, program, hosts, nccl=True, SIMCUDA_DEVICES="4")
    )
    # Tasks of the nonblocking calls alone.
    assert {counts["nccl"] <= 2 for counts in found} == {True}


@pytest.mark.parametrize("hosts", ["0110", "001", "0121"])
def test_calls_on_streams_and_in_graphs(tmp_path, hosts):
    """By the kernels of each host and NCCL, which no rank waits for."""
    program = """
    for form in "on", "graph":
        for name in KINDS + LEFT:
            for root in {0, size - 1} if name in ROOTED else [-1]:
                try_out(form, name, root, 5003)
    for name in "Allreduce", "Scan", "Exscan":
        try_out("on", name, -1, 80001)
    for name in "Reduce", "Bcast":
        try_out("on", name, size - 1, 80001)
    for name in "Allreduce", "Reduce", "Bcast":  # of equal parts
        try_out("on", name, size - 1 if name in ROOTED else -1, 80000)
    ring = comm.Create_cart([size], periods=[True])
    got = wm.zeros(200, "float32", device=device)
    sent = wm.full(100, float(rank), dtype="float32", device=device)
    ring.on(stream).Neighbor_allgather(sent, got)
    stream.synchronize()
    assert np.asarray(got.to("cpu"))[0] == (rank - 1) % size
    given, got = new()
    calls = _core._coll_engines()["hierarchy"]
    comm.on(stream).Iallreduce(given, got).Wait()
    check(got)
    comm.Allreduce(given, got)
    check(got)
    assert _core._coll_engines()["hierarchy"] == calls + 2
"""
    assert run(tmp_path, EVERY_CALL + program, hosts, nccl=True) == ""


@pytest.mark.skipif(kinds.is_real(), reason="counts the driver's calls")
def test_short_calls_on_streams_have_one_step_fewer(tmp_path):
    """Launches of a rank, calls of NCCL, and bytes that it gives a rail."""
    program = """
    trace = kinds.driver().simcuda_trace
    trace.restype = ctypes.c_char_p
    def count(name, count, root):
        stats = wm.stats()
        sent = wm.zeros(count, "float32", device=device)
        room = wm.zeros(count * size, "float32", device=device)
        got = room if name == "Allgather" else room[:count]
        channel = comm.on(stream)
        trace(1)
        if name == "Bcast":
            channel.Bcast(sent, root)
        elif name == "Reduce":
            channel.Reduce(sent, got if rank == root else None, root=root)
        else:
            getattr(channel, name)(sent, got)
        made = trace(0).decode()
        kernels = re.findall(r"  (wm_\\w+)", made)
        assert "Memcpy" not in made, made
        assert not any("simple" in each for each in kernels), kernels
        stream.synchronize()
        now = wm.stats()
        return (
            len(kernels),
            now["nccl_collectives"] - stats["nccl_collectives"],
            (now["rail_bytes"] - stats["rail_bytes"]) // 4,
        )

    comm.on(stream).Allreduce(*new())
    on_rail = rank % 2  # of the root, rank 1
    sends = rank < 2  # ranks of the root's host
    most = 8192  # twice 32 KiB leave a host
    for n, short in (256, True), (most, True), (most + 4, False):
        half = n // 2
        assert count("Allreduce", n, -1) == (
            (2, 1, n) if short else (3, 1, half))
        assert count("Bcast", n, 1) == (
            (1, on_rail, on_rail * sends * n) if short
            else (1 + sends, 1, half * sends))
        gives = not sends
        assert count("Reduce", n, 1) == (
            (1 + (on_rail and sends), on_rail, on_rail * gives * n) if short
            else (1 + 2 * sends, 1, gives * half))
        assert count("Allgather", n, -1) == (2, 1, n)
"""
    begin = BEGIN + EVERY_CALL + "    import ctypes, kinds, re\n"
    assert (
        run(
            tmp_path,
            program,
            "0011",
            begin=begin,
            nccl=True,
            SIMCUDA_DEVICES="4",
        )
        == ""
    )


SHARED = """
    import ctypes
    live = ctypes.CDLL("libnccl.so.2").simnccl_live
    os.environ["NCCL_HOSTID"] = os.environ["WARPMPI_HOST"]
    def told(name):
        return wm.transport(comm, name)

    opens = "the first such blocking call opens it"
    assert told("Allreduce") == ("hierarchy", opens)
    assert told("Scan").name == "nccl" and opens in told("Scan").reason
    allreduce()
    on_rail = live(b"communicators")  # with its parent
    if rank == 0:
        reason = "in this host by copies, between hosts by nccl"
        assert told("Allreduce").reason == reason, told("Allreduce")
    given, got = new()
    for _ in range(2):
        comm.Scan(given, got)
        values = np.arange(COUNT) * (rank + 1) + sum(range(rank + 1))
        assert np.array_equal(np.asarray(got.to("cpu")), values)
    try:
        comm.on(wm.Stream()).Scan(given, got)
    except RuntimeError as error:
        shared = "rank 0 and rank 1 use one GPU"
        assert shared in str(error), error
        assert shared in told("Scan").reason
        assert told("Scan").name == "mpi"
    counts = _core._coll_engines()
    print(on_rail, live(b"communicators") - on_rail, counts["nccl"] > 1)
"""


@pytest.mark.skipif(kinds.is_real(), reason="needs the simulated NCCL")
@pytest.mark.parametrize("gpus", [1, 2])
def test_nccl_has_all_ranks_only_if_it_can_and_must(tmp_path, gpus):
    """Ranks that share a GPU are found out before NCCL is asked."""
    printed = run(
        tmp_path, SHARED, "001", nccl=True, SIMCUDA_DEVICES=str(gpus)
    )
    its = "2 True" if gpus == 2 else "0 False"
    rows = sorted(printed.splitlines())
    assert [row.split()[0] for row in rows] == ["0", "2", "2"]
    assert [row.split(" ", 1)[1] for row in rows] == [its] * 3


def test_calls_on_streams_need_nccl(tmp_path):
    program = """
    allreduce()
    for _ in range(2):
        try:
            comm.on(wm.Stream()).Allreduce(*new())
            print("no error")
        except ValueError as error:
            told = 'between all hosts (engine "nccl": ', "one serves this"
            assert any(text in str(error) for text in told), error
            here = "in each host (one may serve" if rank < 2 else "(one serv"
            assert here in str(error), error
    try:
        comm.on(wm.Stream()).Barrier()
        print("no error")
    except ValueError as error:
        told = 'engine "hierarchy": it does no such calls; engine "nccl": '
        assert told in str(error), error
    allreduce()
"""
    assert run(tmp_path, program, HOSTS["unequal"]) == ""


# Raises what a call on a stream has led to, at the latest in a later call.
UNTIL_TOLD = """
    def until_told():
        stream = wm.Stream(wm.get_device())
        given, got = new(lambda values: wm.array(values, device=stream.device))
        begun = time.monotonic()
        try:
            while time.monotonic() - begun < 10:
                comm.on(stream).Allreduce(given, got)
                stream.synchronize()
        except (RuntimeError, ValueError, wm.CudaError) as error:
            print("told", flush=True)
"""


@pytest.mark.parametrize("hosts", ["0011", "001"])
def test_wrong_arguments_on_a_stream_are_told_to_all(tmp_path, hosts):
    program = """
    stream = wm.Stream(wm.get_device())
    given, got = new(lambda values: wm.array(values, device=stream.device))
    comm.on(stream).Allreduce(given, got)
    stream.synchronize()
    if rank == 0:
        try:
            comm.on(stream).Allreduce(given, got[1:])
        except ValueError:
            print("told", flush=True)
    else:
        until_told()
    MPI.COMM_WORLD.Barrier()
"""
    printed = run(tmp_path, UNTIL_TOLD + program, hosts, nccl=True)
    assert printed.split() == ["told"] * len(hosts)


@pytest.mark.skipif(
    not MPI.Get_library_version().startswith("Open MPI v5"),
    reason="needs an MPI that tells of dead ranks",
)
@pytest.mark.parametrize(
    "hosts, dead, call, count",
    [
        ("0011", 3, "Allreduce", 20000),
        pytest.param("0011", 3, "Allreduce", 500, marks=pytest.mark.long),
        ("0011", 3, "Reduce", 500),  # on no rail then
        ("001", 1, "Allreduce", 20000),
        ("001", 2, "Allreduce", 20000),
        ("001", 1, "Scan", 20000),
    ],
)
def test_a_dead_rank_ends_streams_on_all_levels(
    tmp_path, hosts, dead, call, count
):
    program = f"""
    import signal
    COUNT = {count}
    MPI.COMM_WORLD.Set_errhandler(MPI.ERRORS_RETURN)
    stream = wm.Stream(wm.get_device())
    given, got = new(lambda values: wm.array(values, device=stream.device))
    comm.on(stream).{call}(given, got)
    stream.synchronize()
    if rank == {dead}:
        os.kill(os.getpid(), signal.SIGKILL)
    until_told()
    os._exit(0)
"""
    printed = run(
        tmp_path,
        UNTIL_TOLD.replace("ValueError", "ValueError, MPI.Exception").replace(
            "Allreduce", call
        )
        + program,
        hosts,
        flags=("--with-ft", "ulfm"),
        died=True,
        nccl=True,
    )
    assert printed.split() == ["told"] * (len(hosts) - 1), printed


# Bytes that leave each rank by the fewest exchanges, for H hosts of r ranks.
COUNTED = """
    def count(name, root, count):
        before = wm.stats()["rail_bytes"]
        try_out("", name, root, count)
        return wm.stats()["rail_bytes"] - before

    N = 840000  # bytes of a vector, and of all blocks
    H, r, n = len({*sys.argv[1]}), sys.argv[1].count("0"), N // 4

    def near(got, want):
        assert abs(got - want) <= want / 100, (rank, got, want)

    near(count("Allreduce", -1, n), 2 * (H - 1) / H * N / r)
    near(count("Reduce_scatter_block", -1, n // size), (H - 1) / H * N / r)
    near(count("Allgather", -1, n // size), (H - 1) * N / size)
    near(count("Alltoall", -1, n // size), (H - 1) / H * N)
    host = sys.argv[1][rank]
    sends = host == sys.argv[1][0]  # the host of the root
    near(count("Bcast", 0, n), (H - 1) * N / r if sends else 0)
    near(count("Scatter", 0, n // size), (H - 1) / H * N / r if sends else 0)
    near(count("Gather", 0, n // size), 0 if sends else N / size)
    # Of several hosts each reduces a part.
    own = (H - 1) / H * N / r if H > 2 else 0
    near(count("Reduce", 0, n), own if sends else N / r)
"""


@pytest.mark.parametrize(
    ("hosts", "nccl"), [("0101", False), ("001122", False), ("0101", True)]
)
def test_no_byte_goes_to_another_host_more_often_than_it_must(
    tmp_path, hosts, nccl
):
    run(tmp_path, EVERY_CALL + COUNTED, hosts, nccl=nccl)


@pytest.mark.parametrize(
    ("hosts", "count"), [("01220", 50001), ("0110", 5001)]
)
def test_averages_and_sums_have_the_same_bits_everywhere(
    tmp_path, hosts, count
):
    """In the order of the ranks of each host, then of the hosts."""
    program = """
    N = int(sys.argv[2])
    def fold(parts, type_):
        result = parts[0]
        for part in parts[1:]:
            result = (result + part).astype(type_)
        return result

    hosts = sys.argv[1]
    for type_ in "float32", "float64", "float16":
        values = [
            np.random.default_rng(each).random(N).astype(type_)
            for each in range(size)
        ]
        sums = [
            fold([values[i] for i in range(size) if hosts[i] == host], type_)
            for host in dict.fromkeys(hosts)
        ]
        for _ in range(3):
            got = wm.zeros(N, type_)
            comm.Allreduce(wm.array(values[rank]), got)
            found = np.asarray(got.to("cpu"))
            if type_ != "float16":  # kernels round once a host
                assert np.array_equal(found, fold(sums, type_))
            bits = MPI.COMM_WORLD.allgather(found.tobytes())
            assert len({*bits}) == 1
    whole = np.arange(N, dtype="int32") + 7 * rank
    got = wm.zeros(N, "int32")
    comm.Allreduce(wm.array(whole), got, op=wm.AVG)
    want = (np.arange(N) * size + 7 * sum(range(size))) // size
    assert np.array_equal(np.asarray(got.to("cpu")), want)
    assert _core._coll_engines()["hierarchy"] == 10
"""
    run(tmp_path, program, hosts, str(count))


@pytest.mark.parametrize("hosts", HOSTS.values(), ids=HOSTS)
def test_calls_of_all_forms_meet_on_every_level(tmp_path, hosts):
    """Ranks come early or late, with any memory, and wait in any order."""
    program = """
    MAKERS = wm.array, wm.array, lambda values: values
    plan, mine = random.Random(1), random.Random(rank)
    allreduce()
    for turn in range(10):
        pending = []
        for _ in range(plan.randrange(1, 10)):
            given, got = new(mine.choice(MAKERS))
            time.sleep(mine.choice([0, 0, 0, 0.003]))
            form = plan.choice(["", "in_place", "I", "I", "init"])
            if form == "I":
                pending.append((comm.Iallreduce(given, got), given, got))
            elif form == "init":
                request = comm.Allreduce_init(given, got)
                request.Start()
                pending.append((request, given, got))
            elif form == "in_place":
                comm.Allreduce(MPI.IN_PLACE, given)
                check(given)
            else:
                comm.Allreduce(given, got)
                check(got)
        mine.shuffle(pending)
        for request, given, got in pending:
            request.Wait()
            check(got)
            if request:  # a persistent one
                request.Free()
    print("engines", _core._coll_engines())
"""
    found = engines(run(tmp_path, program, hosts))
    assert len({counts["hierarchy"] for counts in found}) == 1
    assert len(found) == len(hosts)
    for counts in found:
        assert counts["hierarchy"] > 20
    # In the hosts that have several ranks.
    assert max(counts["copies"] for counts in found) > 40


@pytest.mark.long
def test_gpu_memory_moves_in_the_host_by_the_first_engine(tmp_path):
    """MPI reduces between hosts, and tells that nobody has failed."""
    program = """
    for _ in range(3):
        allreduce()
    print("engines", _core._coll_engines())
"""
    found = engines(run(tmp_path, program, HOSTS["pairs"]))
    assert {counts["copies"] for counts in found} == {6}
    assert {counts["mpi"] for counts in found} == {6}  # and the verdicts


# Blocking and nonblocking calls in turn.
IN_TURN = """
    for _ in range(3):
        allreduce()
        given, got = new()
        comm.Iallreduce(given, got).Wait()
        check(got)
    print("engines", _core._coll_engines())
"""


@TOYS
def test_an_engine_that_is_open_on_a_rail_does_its_calls(tmp_path):
    """Where nobody asks. Rank 1 is on no rail."""
    hosts = HOSTS["unequal"]
    found = engines(run(tmp_path, IN_TURN, hosts, TOY_RING="gpus"))
    assert sorted(counts["gpu_ring"] for counts in found) == [0, 6, 6]
    assert {counts["mpi"] for counts in found} == {6}  # the verdicts


@TOYS
def test_each_task_has_the_first_engine_that_does_its_kind(tmp_path):
    """An engine of Allreduce alone keeps NCCL out of no other call."""
    program = """
    def started(form, name, root=-1):
        before = _core._coll_engines()
        try_out(form, name, root, 80001)  # on all rails
        after = _core._coll_engines()
        return [after[each] - before[each] for each in ("gpu_ring", "nccl")]

    try_out("", "Allgather", -1, 5003)  # opens both
    assert started("I", "Allreduce") == [1, 0]
    assert started("I", "Bcast", 0) == [0, 1]
    assert started("I", "Reduce_scatter_block") == [0, 1]
    assert started("on", "Allreduce") == [0, 0]
    reason = "in this host by copies, between hosts by gpu_ring and nccl"
    assert wm.transport(comm, "Allreduce").reason == reason
"""
    run(tmp_path, EVERY_CALL + program, "0011", nccl=True, TOY_RING="gpus")


@pytest.mark.long
def test_kernels_that_are_open_in_a_host_do_its_tasks(tmp_path):
    """In blocking calls alone; for GPUs that do not reach each other."""
    program = """
    for _ in range(3):
        allreduce()
        given, got = new()
        comm.Iallreduce(given, got).Wait()
        check(got)
        comm.Allreduce(MPI.IN_PLACE, given)
        check(given)
    print("engines", _core._coll_engines())
"""
    found = engines(
        run(
            tmp_path,
            program,
            HOSTS["pairs"],
            WARPMPI_TRANSPORT="host",
        )
    )
    assert {counts["hierarchy"] for counts in found} == {9}
    assert {counts["copies"] for counts in found} == {0}
    assert {counts["kernels"] for counts in found} == {2 * 6}


@pytest.mark.skipif(kinds.is_real(), reason="needs the simulated driver")
def test_a_task_of_kernels_that_fails_ends_on_all_ranks(tmp_path):
    """MPI does the next tasks of this host."""
    program = """
    import ctypes
    import kinds
    allreduce()
    given, got = new()
    if rank == 1:
        kinds.driver().simcuda_fail(b"LaunchKernel", ctypes.c_long(1), 999)
    try:
        comm.Allreduce(given, got)
        print("right", flush=True)
    except (RuntimeError, wm.CudaError):
        print("raised", flush=True)
    if rank == 1:
        kinds.driver().simcuda_fail(None, ctypes.c_long(0), 999)
    before = _core._coll_engines()["kernels"]
    for _ in range(2):
        allreduce()
    print("engines", dict(kernels=_core._coll_engines()["kernels"] - before))
"""
    printed = run(
        tmp_path,
        program,
        HOSTS["pairs"],
        WARPMPI_TRANSPORT="host",
    )
    assert printed.count("raised") == 4, printed
    kernels = sorted(counts["kernels"] for counts in engines(printed))
    assert kernels == [0, 0, 4, 4]


@pytest.mark.long
def test_mpi_does_the_tasks_of_ranks_that_do_not_see_each_other(tmp_path):
    """A level has no barrier where ranks may not make their segments."""
    makes = "    comm = wm.Comm(MPI.COMM_WORLD)\n"
    limited = f"""
    import resource
    assert wm.is_cuda_available()  # the simulated driver makes files
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10240, before[1]))
{makes}
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
"""
    assert makes in BEGIN
    begin = BEGIN.replace(makes, limited)
    found = engines(run(tmp_path, IN_TURN, HOSTS["pairs"], begin=begin))
    for counts in found:
        assert counts["hierarchy"] == 6
        assert counts["copies"] == 0
        assert counts["mpi"] == 6 * 4


@pytest.mark.skipif(kinds.is_real(), reason="needs the simulated driver")
@pytest.mark.parametrize("form", ["", "I"])
@pytest.mark.parametrize("call", ["MemAlloc", "LaunchKernel", "StreamQuery"])
def test_a_failure_of_one_rank_is_raised_on_all(tmp_path, form, call):
    """Once, in the call in which it was; later ones are made."""
    program = f"""
    import ctypes
    import kinds
    COUNT = 50000
    allreduce()
    COUNT = 3_000_000  # for which no memory of ours is left
    given, got = new()
    if rank == size - 1:
        kinds.driver().simcuda_fail(b"{call}", ctypes.c_long(-1), 2)
    try:
        if {form!r}:
            comm.Iallreduce(given, got).Wait()
        else:
            comm.Allreduce(given, got)
    except (RuntimeError, MemoryError, wm.CudaError) as error:
        print("told", rank, error, flush=True)
    if rank == size - 1:
        kinds.driver().simcuda_fail(None, ctypes.c_long(0), 0)
    COUNT = 50000
    allreduce()
"""
    printed = run(tmp_path, program, HOSTS["unequal"])
    told = sorted(
        line for line in printed.splitlines() if line.startswith("told")
    )
    assert [line.split()[1] for line in told] == ["0", "1", "2"], printed
    assert "another rank" not in told[2]
    for line in told[:2]:
        assert "rank 2 failed in this collective: " in line, told


FULL_HOST = """
    #define _GNU_SOURCE
    #include <dlfcn.h>
    #include <stddef.h>

    int fails, failed;
    extern void *__libc_calloc(size_t, size_t);

    // Spans between two hosts: ten, and maybe one for the head.
    void *calloc(size_t count, size_t size)
    {
        if (fails && size == 16 && (count == 10 || count == 11)) {
            ++failed;
            return NULL;
        }
        return __libc_calloc(count, size);
    }
"""


@pytest.mark.parametrize("nccl", [False, True])
def test_a_full_host_of_one_rank(tmp_path, nccl):
    """Calls that do not overlap need no more of it than was reserved."""
    library = compiled.library(tmp_path, FULL_HOST)
    program = """
    import ctypes
    library = ctypes.CDLL(sys.argv[2])
    allreduce()
    ctypes.c_int.in_dll(library, "fails").value = rank == size - 1
    for _ in range(3):
        allreduce()
        given, got = new()
        comm.Iallreduce(given, got).Wait()
        check(got)
        comm.Bcast(got)
    failed = ctypes.c_int.in_dll(library, "failed").value
    assert not failed, failed
    ctypes.c_int.in_dll(library, "fails").value = 0
"""
    preloaded = os.environ.get("LD_PRELOAD", "")
    run(
        tmp_path,
        program,
        "001",
        library,
        nccl=nccl,
        wrapper=("env", f"LD_PRELOAD={preloaded} {library}"),
    )


@pytest.mark.skipif(kinds.is_real(), reason="needs the simulated driver")
@pytest.mark.parametrize("hosts", ["001", "01"])
def test_a_full_gpu_of_one_rank_where_no_rank_can_tell(tmp_path, hosts):
    """On streams its memory between hosts is page-locked: all go on."""
    program = """
    import ctypes
    import graphs, kinds
    channel = comm.on(wm.Stream())

    def on_stream():
        given, got = new()
        channel.Allreduce(given, got)
        check(got)

    allreduce()
    on_stream()
    COUNT = 3_000_000  # for which no memory of ours is left
    (given, got), last = new(), rank == size - 1
    before = wm.stats()["staged_bytes"]
    if last:
        kinds.driver().simcuda_fail(b"MemAlloc", ctypes.c_long(-1), 2)
    comm.Allreduce(given, got)
    check(got)
    got.fill_(0)
    channel.Allreduce(given, got)
    check(got)
    with graphs.capture(stream := wm.Stream()) as captured:
        comm.on(stream).Allreduce(given, got)
    got.fill_(0)
    stream.synchronize()
    captured[0].launch(stream)
    stream.synchronize()
    check(got)
    captured[0].free()
    if last:
        kinds.driver().simcuda_fail(None, ctypes.c_long(0), 0)
    print("staged", last, wm.stats()["staged_bytes"] > before, flush=True)
    allreduce()
    on_stream()
"""
    printed = run(tmp_path, program, hosts, nccl=True)
    found = [line for line in printed.splitlines() if "staged" in line]
    others = ["staged False False"] * (len(hosts) - 1)
    assert sorted(found) == [*others, "staged True True"], printed


@pytest.mark.skipif(
    not MPI.Get_library_version().startswith("Open MPI v5"),
    reason="needs an MPI that tells of dead ranks",
)
@pytest.mark.parametrize("form", ["", "I"])
@pytest.mark.parametrize(
    "hosts, dead", [("001", 0), ("001", 1), ("001", 2), ("0101", 2)]
)
def test_a_dead_rank_ends_the_call_on_all_levels(tmp_path, hosts, dead, form):
    """Also where it is in no level of a rank that still waits."""
    program = f"""
    import signal
    MPI.COMM_WORLD.Set_errhandler(MPI.ERRORS_RETURN)
    allreduce()
    if rank == {dead}:
        os.kill(os.getpid(), signal.SIGKILL)
    given, got = new()
    try:
        if {form!r}:
            comm.Iallreduce(given, got).Wait()
        else:
            comm.Allreduce(given, got)
    except MPI.Exception as error:
        assert error.Get_error_class() == MPI.ERR_PROC_FAILED, error
        print("told", flush=True)
    os._exit(0)
"""
    printed = run(
        tmp_path,
        program,
        hosts,
        flags=("--with-ft", "ulfm"),
        died=True,
    )
    assert printed.split() == ["told"] * (len(hosts) - 1)


@pytest.mark.long
def test_levels_end_with_their_communicator(tmp_path):
    """Nothing is left: no slot of a barrier, no communicator of MPI's."""
    program = """
    world = comm
    for _ in range(300):  # there are 256 slots
        comm = world.Dup()
        allreduce()
        comm.Free()
    comm = world.Dup()
    allreduce()
    print("engines", _core._coll_engines())
"""
    found = engines(run(tmp_path, program, HOSTS["unequal"]))
    assert {counts["hierarchy"] for counts in found} == {301}
    assert sorted(counts["copies"] for counts in found) == [0, 602, 602]


@pytest.mark.parametrize(
    "size, settings",
    [
        (4, simulated_nccl.environment()),
        (3, simulated_nccl.environment(WARPMPI_ENGINES=BUT_NCCL)),
        pytest.param(
            3, simulated_nccl.environment(TOY_RING="gpus"), marks=TOYS
        ),
    ],
    ids=["nccl", "mpi", "ring"],
)
def test_random_calls(size, settings):
    """Of all kinds; MPI or NCCL does what the hierarchy leaves."""
    count = 6000 if kinds.is_real() else 300
    words = f"--comms world dup split --collectives {count} "
    words += "--seed 1 --max-bytes 200000 --patience 0 --apart 2"
    program = ranks.ROOT / "tests" / "random_collectives.py"
    printed = ranks.run(program, *words.split(), ranks=size, **settings)
    assert "every one right" in printed


@pytest.mark.long
def test_levels_that_cannot_be_made(tmp_path):
    """MPI does the calls, and what was made of the levels is freed."""
    program = """
    for turn in range(2):
        comm = wm.Comm(MPI.COMM_WORLD.Dup())
        if rank == size - 1:
            os.environ["WARPMPI_TRANSPORT"] = "none of these"
        for form in range(2):
            allreduce()
        os.environ.pop("WARPMPI_TRANSPORT", None)
        comm.Free()
    print("engines", _core._coll_engines())
    """
    found = engines(
        run(tmp_path, program, HOSTS["pairs"], MALLOC_PERTURB_="165")
    )
    assert [each["hierarchy"] for each in found] == [0] * 4


@pytest.mark.skipif(kinds.is_real(), reason="needs the simulated driver")
def test_calls_of_two_engines_on_two_streams_have_one_order(tmp_path):
    """Else the kernels of ranks may wait for each other."""
    program = """
    one, other = wm.Stream(wm.get_device()), wm.Stream(wm.get_device())
    given, got = new(lambda values: wm.array(values, device=one.device))
    into = wm.zeros(COUNT, "float32", device=one.device)
    for stream in one, other:
        comm.on(stream).Allreduce(given, got)
        comm.on(stream).Scan(given, into)
        stream.synchronize()
    if rank == 0:  # it comes late: nobody ends the Allreduce before
        time.sleep(0.5)
    comm.on(one).Allreduce(given, got)
    comm.on(other).Scan(given, into)
    other.synchronize()
    assert one.is_complete
    check(got)
    print("done", flush=True)
"""
    printed = run(
        tmp_path, program, "001", nccl=True, SIMCUDA_LAZY_US="2000000"
    )
    assert printed.split() == ["done"] * 3


def test_calls_on_streams_come_behind_nonblocking_ones(tmp_path):
    """Whose tasks may still be queued on the levels."""
    program = """
    stream = wm.Stream(wm.get_device())
    values = np.arange(1 << 16, dtype="float32")
    given, got = wm.array(values + rank), wm.array(0 * values)
    other, into = wm.array(2 * values + rank), wm.array(0 * values)
    for i in range(10):
        comm.on(stream).Allreduce(other, into)
        time.sleep(0.02 * (i % 3) * (rank == 0))
        request = comm.Iallreduce(given, got)
        comm.on(stream).Allreduce(other, into)
        stream.synchronize()
        request.Wait()
        ranks = size * (size - 1) // 2
        assert np.array_equal(got.numpy(), size * values + ranks), i
        assert np.array_equal(into.numpy(), 2 * size * values + ranks), i
    print("done", flush=True)
"""
    printed = run(tmp_path, program, HOSTS["unequal"], nccl=True)
    assert printed.split() == ["done"] * 3
