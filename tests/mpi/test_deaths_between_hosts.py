# SPDX-License-Identifier: BSD-3-Clause
"""A rank is killed in a phase of a call between hosts.

The others get an error in time, or have ended rightly before, shrink, and go
on. Each program has a list of phases, and loses a rank in each. A phase is a
form of the call, and the call of a library, counted from the begin of this
form, in which the process ends (its double has killed it), or a time in
microseconds. On real GPUs NCCL and UCX are real.
"""

import os
import textwrap

import pytest

import dying
import ranks
import simulated_nccl
import warpmpi as wm

pytestmark = [
    pytest.mark.programs,
    dying.needs_ulfm,
    pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU"),
]
SIMULATED = "WARPMPI_CUDA_DRIVER" in os.environ
simulated = pytest.mark.skipif(
    not SIMULATED, reason="needs the simulated driver"
)
real = pytest.mark.skipif(SIMULATED, reason="needs a GPU")

# Argument 1 has the host of each rank.
HOSTS = """
import os, sys
rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
os.environ["WARPMPI_HOST"] = "host " + sys.argv[1][rank]
os.environ["NCCL_HOSTID"] = f"host {rank}"
"""

PROGRAM = """
    KILLED = 137
    PATIENCE = 10
    device = wm.get_device()

    def end_in(name, microseconds, code):
        end = os.getpid(), signal.SIGKILL
        threading.Timer(microseconds / 1e6, os.kill, end).start()

    faults, live = {"time": end_in}, {}
    if "WARPMPI_CUDA_DRIVER" in os.environ:
        cuda = ctypes.CDLL(os.environ["WARPMPI_CUDA_DRIVER"])
        faults["cuda"] = cuda.simcuda_fail
    for name, file in ("nccl", "libnccl.so.2"), ("ucx", "libucp.so.0"):
        with contextlib.suppress(OSError, AttributeError):
            double = ctypes.CDLL(file)
            faults[name] = getattr(double, f"sim{name}_fail")
            live[name] = getattr(double, f"sim{name}_live")

    def ones(count):
        return wm.array(np.full(count, 1, "f4"), device=device)

    def get(array):
        return np.asarray(array.to("cpu"))

    class Form:
        warm = True  # the call was made before

        def __init__(self, comm):
            self.comm, self.sent, self.got = comm, ones(20_000), ones(20_000)
            self.start()

        def start(self):
            pass

        def free(self):
            pass

        def is_right(self):
            return (get(self.got) == self.comm.size).all()

    class Blocking(Form):
        def call(self):
            self.comm.Allreduce(self.sent, self.got)

    class Open(Blocking):
        warm = False

    class Nonblocking(Form):
        def start(self):
            Blocking.call(self)

        def call(self):
            self.comm.Iallreduce(self.sent, self.got).Wait()

    class Persistent(Form):
        def start(self):
            Blocking.call(self)
            self.request = self.comm.Allreduce_init(self.sent, self.got)

        def call(self):
            self.request.Start()
            self.request.Wait()

        def free(self):
            self.request.Free()

    class Stream(Form):
        def start(self):
            self.stream = wm.Stream(device)

        def call(self):
            self.comm.on(self.stream).Allreduce(self.sent, self.got)
            self.stream.synchronize()

    class Replay(Stream):
        def start(self):
            super().start()
            Stream.call(self)
            with graphs.capture(self.stream) as self.made:
                self.comm.on(self.stream).Allreduce(self.sent, self.got)

        def call(self):
            for _ in range(3):
                self.made[0].launch(self.stream)
            self.stream.synchronize()

        def free(self):
            self.made[0].free()

    class OpenStream(Stream):
        warm = False

    class Message(Form):
        # Both ways between each rank and its opposite.
        def start(self):
            self.sent, self.got = ones(500_000), ones(500_000)
            self.other = self.comm.size - 1 - self.comm.rank

        def call(self):
            self.comm.Sendrecv(self.sent, self.other, 0,
                               self.got, self.other, 0)

        def is_right(self):
            return (get(self.got) == 1).all()

    class First(Message):
        warm = False

    class Ireceived(Message):
        def call(self):
            requests = [self.comm.Irecv(self.got, self.other),
                        self.comm.Isend(self.sent, self.other)]
            wm.Request.Waitall(requests)

    class Started(Message):
        def start(self):
            super().start()
            self.requests = [self.comm.Recv_init(self.got, self.other),
                             self.comm.Send_init(self.sent, self.other)]

        def call(self):
            wm.Prequest.Startall(self.requests)
            wm.Request.Waitall(self.requests)

        def free(self):
            for request in self.requests:
                request.Free()

    class Freed(Message):  # with a communicator of its own
        def call(self):
            made = self.comm.Dup()
            made.Set_errhandler(MPI.ERRORS_RETURN)
            made.Sendrecv(self.sent, self.other, 0, self.got, self.other, 0)
            made.Free()

    def die(world, words):
        \"\"\"Returns what is wrong, and the ranks that are left.\"\"\"
        form, library, name, number, victim = words.split("/")
        comm = world.Dup()
        comm.Set_errhandler(MPI.ERRORS_RETURN)
        form = globals()[form](comm)
        for _ in range(2 * form.warm):
            form.call()
        wrong, told, dies = [], "", comm.rank == int(victim) % comm.size
        world.Barrier()
        if dies:
            faults[library](name.encode(), int(number), KILLED)
        begun = time.monotonic()
        try:
            for _ in range(100 if library == "time" else 1):
                form.call()
            if not form.is_right():
                wrong.append("ended with wrong data")
        except MPI.Exception as error:
            told = MPI.Get_error_string(error.Get_error_class())
            if "PROC_FAILED" not in told and "REVOKED" not in told:
                wrong.append(f"{told}: {error}")
        except Exception as error:
            wrong.append(f"{error!r} after {time.monotonic() - begun:.1f} s")
        took = time.monotonic() - begun
        if took > PATIENCE:
            wrong.append(f"{took:.1f} s")
        if dies:
            print("missed", words, told, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        left = world.Shrink()
        left.Set_errhandler(MPI.ERRORS_RETURN)
        if not any(left.allgather(told)):
            wrong.append("no rank was told")
        form.free()
        comm.Free()
        return wrong, left

    world, wrong = wm.Comm(MPI.COMM_WORLD), {}
    world.Set_errhandler(MPI.ERRORS_RETURN)
    for words in sys.argv[2:]:
        said, world = die(world, words)
        if said:
            wrong[words] = said
    last = Blocking(world)
    last.call()
    assert last.is_right()
    world.Barrier()
    world.Free()
    wm.Comm(MPI.COMM_SELF.Dup()).Free()  # drops what nobody uses
    until = time.monotonic() + PATIENCE  # the last graph's end is seen late
    while "nccl" in live and live["nccl"](b"communicators"):
        time.sleep(0.05)
        if time.monotonic() > until:
            wrong["left"] = live["nccl"](b"communicators")
            break
    print("wrong", wrong, flush=True)
    time.sleep(0.5)
"""


def die(folder, hosts, *phases, **environment):
    """Ranks on hosts, of which each phase loses one."""
    printed = dying.run_text(
        folder,
        HOSTS + textwrap.dedent(PROGRAM),
        hosts,
        *phases,
        ranks=len(hosts),
        **environment,
    )
    assert "missed" not in printed, printed
    assert printed.count("wrong {}") == len(hosts) - len(phases), printed


# Of three hosts, "001122", the last rank dies first, then carriers, and of
# two, "000111", a rank that shares its host.
COLLECTIVES = {
    "opened": ("001122", "Open/nccl/Meet/1/-1", "OpenStream/nccl/Meet/2/0",
               "Open/nccl/Post/3/0"),
    "agreed": ("001122", "Open/nccl/GetVersion/1/-1",
               "Open/nccl/GetUniqueId/1/0",
               "Open/nccl/CommInitRankConfig/1/-1"),
    "split": ("001122", "Open/nccl/CommSplit/1/-1",
              "Open/nccl/CommGetAsyncError/1/0",
              "OpenStream/nccl/CommSplit/1/0"),
    "warmed": ("001122", "Open/nccl/Send/1/-1", "Open/nccl/GroupEnd/1/0",
               "OpenStream/nccl/Post/1/0"),
    "in the host": ("000111", "Blocking/cuda/LaunchKernel/1/-1",
                    "Blocking/cuda/LaunchKernel/2/0",
                    "Blocking/cuda/LaunchKernel/3/-1"),
    "in other forms": ("000111", "Nonblocking/cuda/LaunchKernel/1/-1",
                       "Nonblocking/cuda/LaunchKernel/2/0",
                       "Persistent/cuda/LaunchKernel/3/-1"),
    "on the rail": ("001122", "Persistent/nccl/Post/1/-1",
                    "Nonblocking/nccl/GroupEnd/1/0",
                    "Blocking/nccl/Post/1/0"),
    "on a stream": ("000111", "Stream/cuda/LaunchKernel/1/-1",
                    "Stream/cuda/LaunchKernel/2/0",
                    "Stream/cuda/LaunchKernel/3/-1"),
    "on a stream's rail": ("001122", "Stream/nccl/Post/1/-1",
                           "Stream/nccl/GroupEnd/1/0",
                           "Stream/cuda/StreamSynchronize/1/0"),
    "in a replay": ("000111", "Replay/cuda/GraphLaunch/1/-1",
                    "Replay/cuda/GraphLaunch/2/0", "Replay/nccl/Post/2/-1"),
    "on a replay's rail": ("001122", "Replay/nccl/Post/1/-1",
                           "Replay/nccl/Post/3/0",
                           "Replay/cuda/StreamSynchronize/1/0"),
}  # fmt: skip
SAMPLE = "opened", "on a stream's rail"


def marked(table, sample):
    """The names of a table, all but the sample for long runs."""
    return [
        name if name in sample else pytest.param(name, marks=pytest.mark.long)
        for name in table
    ]


@simulated
@pytest.mark.parametrize("phases", marked(COLLECTIVES, SAMPLE))
def test_a_rank_dies_in_a_collective_by_nccl(tmp_path, phases):
    die(tmp_path, *COLLECTIVES[phases], **simulated_nccl.faulty(tmp_path))


REAL = {
    "opened": ("001122", "Open/nccl/CommInitRankConfig/1/-1",
               "Open/nccl/GetUniqueId/1/0", "OpenStream/nccl/CommSplit/1/0"),
    "warmed": ("001122", "Open/nccl/CommGetAsyncError/2/-1",
               "Open/nccl/*/9/0", "OpenStream/nccl/*/12/-1"),
    "in blocking calls": ("000111", "Blocking/time/us/0/-1",
                          "Blocking/time/us/1700/0", "Blocking/nccl/*/1/-1"),
    "in other forms": ("001122", "Nonblocking/time/us/700/-1",
                       "Persistent/time/us/2900/0", "Nonblocking/nccl/*/1/0"),
    "on a stream": ("001122", "Stream/nccl/*/1/-1", "Stream/time/us/1300/0",
                    "Stream/time/us/5100/-1"),
    "in a replay": ("001122", "Replay/time/us/0/-1", "Replay/time/us/3300/0",
                    "Replay/time/us/7100/-1"),
    "alone on a host": ("012", "Stream/time/us/900/-1",
                        "Replay/time/us/2100/0"),
}  # fmt: skip


@pytest.mark.parametrize(
    "phases", marked(REAL, ["on a stream"] if SIMULATED else REAL)
)
def test_a_rank_dies_in_a_counted_call_of_nccl(tmp_path, phases):
    """Of the real NCCL, where it is there."""
    environment = simulated_nccl.faulty(tmp_path, counted=True)
    die(tmp_path, *REAL[phases], **environment)


@simulated
@pytest.mark.long
@pytest.mark.parametrize("phases", ["in the host", "in other forms"])
def test_a_rank_dies_in_a_collective_by_mpi(tmp_path, phases):
    engines = "hierarchy,copies,kernels"
    die(tmp_path, *COLLECTIVES[phases], WARPMPI_ENGINES=engines)


# By UCX: while endpoints are made, in a rendezvous, and as it is flushed.
MESSAGES = {
    "connected": ("0011", "First/ucx/ep_create/1/-1",
                  "First/ucx/tag_recv_nbx/1/0"),
    "rendezvous": ("001122", "Message/ucx/piece/5/-1",
                   "Started/ucx/tag_recv_nbx/1/0",
                   "Ireceived/ucx/piece/20/-1"),
    "ends": ("001122", "Message/ucx/tag_send_nbx/1/-1",
             "Freed/ucx/tag_send_nbx/1/0", "Started/ucx/piece/1/-1"),
}  # fmt: skip


@simulated
@pytest.mark.parametrize("phases", marked(MESSAGES, ["connected"]))
def test_a_rank_dies_in_a_message_by_ucx(tmp_path, phases):
    die(
        tmp_path,
        *MESSAGES[phases],
        LD_LIBRARY_PATH=str(ranks.ROOT / "build" / "simucx"),
        OMPI_MCA_pml="ob1",
        WARPMPI_TRANSPORT="ucx",
    )


@real
def test_a_rank_dies_in_a_message_by_the_real_ucx(tmp_path):
    """While endpoints are made, and in messages of two forms."""
    die(
        tmp_path,
        "001122",
        "First/time/us/300/-1",
        "Message/time/us/4300/-1",
        "Started/time/us/9900/0",
        OMPI_MCA_pml="ob1",
        OMPI_MCA_osc="^ucx",
        UCX_TLS="tcp,cuda_copy",
        WARPMPI_TRANSPORT="ucx",
    )
