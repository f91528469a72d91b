# SPDX-License-Identifier: BSD-3-Clause
"""A rank dies, and streams and graphs of the others wait for it."""

import pytest

import dying
import warpmpi as wm

pytestmark = [
    pytest.mark.programs,
    dying.needs_ulfm,
    pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU"),
]

# Calls of all ways, in an order of the number's: as they are, with requests,
# and in a graph, each with a communicator and a stream of their own. The last
# rank dies, or revokes all of them, before it gives its streams any, or once
# it has and they have not come there.
PROGRAM = """
    how, first = sys.argv[1], int(sys.argv[2])
    device, world = wm.get_device(), wm.Comm(MPI.COMM_WORLD)
    world.Set_errhandler(MPI.ERRORS_RETURN)
    last = world.rank == world.size - 1

    def sizes(count, name="allreduce"):
        a, b = (wm.ones(count, "float32") for _ in range(2))
        words = (a, b) if name == "allreduce" else (a, world.size - 1)
        return name, words

    # LL, LL128, this in parts, Simple.
    points = dict(lines=16384, wide=10**5, wide_parts=10**6, parts=10**6,
                  phase=3 << 20, meeting=2 << 20)
    wm._core._set_points([(0, True, 0, *points.values())])
    calls = [sizes(1), sizes(8000), sizes(100_000), sizes(4_000_000),
             ("barrier", ()), sizes(8000, "bcast"), sizes(100_000, "bcast"),
             sizes(1)]
    calls = calls[first:] + calls[:first]

    class Kind:
        def __init__(self, name):
            self.name, self.stream = name, wm.Stream(device)
            self.comm = wm.Comm(MPI.COMM_WORLD.Dup())
            self.comm.Set_errhandler(MPI.ERRORS_RETURN)
            self.channel, self.requests = self.comm.on(self.stream), []
            self.channel.Barrier()
            if name == "graph":
                with graphs.capture(self.stream) as made:
                    self.call()
                self.graph = made[0]
            self.give(2)
            self.stream.synchronize()
            del self.requests[:]

        def call(self):
            for name, words in calls:
                if self.name == "requests":
                    name = "i" + name
                done = getattr(self.channel, name.capitalize())(*words)
                if done is not None:
                    self.requests.append(done)

        def give(self, times):
            for _ in range(times):
                if self.name == "graph":
                    self.graph.launch(self.stream)
                else:
                    self.call()

        def meet(self, call):
            begun, name = time.monotonic(), "no error"
            try:
                call()
            except MPI.Exception as error:
                name = MPI.Get_error_string(error.Get_error_class())
                note = "".join(getattr(error, "__notes__", []))
                dead = f"rank {world.size - 1} has died"
                assert how == "revoked" or dead in note or (
                    sys.version_info < (3, 11)), note
            took = time.monotonic() - begun
            good = ("REVOKED" if how == "revoked" else "PROC_FAILED") in name
            assert good and took < 10, (self.name, name, took)

    all_kinds = [Kind("calls"), Kind("requests"), Kind("graph")]
    world.Barrier()
    if last:
        for kind in all_kinds if how == "inside" else []:
            kinds.Gate().stop(kind.stream)
            kind.give(2)
        time.sleep(0.5 if how == "inside" else 0)
        if how != "revoked":
            os.kill(os.getpid(), signal.SIGKILL)
        for kind in all_kinds:
            kind.comm.Revoke()
    begun = time.monotonic()
    for kind in all_kinds if not last else []:
        try:
            kind.give(2)
        except MPI.Exception:
            pass  # it has been heard of already
    for kind in all_kinds:
        kind.stream.synchronize()
        for request in kind.requests:
            kind.meet(request.Wait)
        kind.meet(kind.call)
        kind.comm.Free()
    print("told", flush=True)
    assert time.monotonic() - begun < 30, time.monotonic() - begun
    comm = world if how == "revoked" else world.Shrink()
    a, b = wm.ones(9, "int32"), wm.zeros(9, "int32")
    stream = wm.Stream(device)
    comm.on(stream).Allreduce(a, b)
    stream.synchronize()
    assert (b.numpy() == comm.size).all()
    print("again", flush=True)
    comm.Barrier()
"""


SETTINGS = (
    (2, {}),
    (4, {"SIMCUDA_DEVICES": "4"}),
    (4, {"SIMCUDA_DEVICES": "2"}),  # in pieces, as they share GPUs
    (2, {"SIMCUDA_IPC": "0"}),  # likewise, through host memory
)


@pytest.mark.parametrize(
    "how, first, size, settings",
    [
        ("before", 0, *SETTINGS[0]),
        ("before", 1, *SETTINGS[1]),
        ("before", 2, *SETTINGS[2]),
        ("before", 3, *SETTINGS[3]),
        ("inside", 1, *SETTINGS[0]),
        ("inside", 2, *SETTINGS[1]),
        ("inside", 3, *SETTINGS[2]),
        ("inside", 2, *SETTINGS[3]),
        ("inside", 0, *SETTINGS[1]),
        ("revoked", 2, *SETTINGS[1]),
        ("revoked", 1, *SETTINGS[2]),
    ],
)
def test_streams_and_graphs_go_on(tmp_path, how, first, size, settings):
    printed = dying.run_text(
        tmp_path,
        PROGRAM,
        how,
        first,
        ranks=size,
        timeout=120,
        **settings,
    )
    left = size if how == "revoked" else size - 1
    assert printed.count("told") == printed.count("again") == left, printed


# Messages of a graph, short and long, of which the last rank never does its
# part; for one, it has not even begun.
MESSAGES = """
    world = wm.Comm(MPI.COMM_WORLD)
    comm = wm.Comm(MPI.COMM_WORLD.Dup())
    comm.Set_errhandler(MPI.ERRORS_RETURN)
    stream, size = wm.Stream(wm.get_device()), int(sys.argv[1])
    a, b = wm.ones(size, "u1"), wm.zeros(size, "u1")
    other, channel = 1 - comm.rank, comm.on(stream)
    with graphs.capture(stream) as made:
        channel.Sendrecv(a, other, 0, b, other, 0)
        if comm.rank == 0:
            channel.Recv(b, other, 1)
    if comm.rank == 1:
        with graphs.capture(stream) as more:
            channel.Send(b, other, 1)
    if comm.rank == 0 or sys.argv[2] == "later":
        made[0].launch(stream)
    world.Barrier()
    if comm.rank == 1:
        stream.synchronize()
        os.kill(os.getpid(), signal.SIGKILL)
    begun = time.monotonic()
    try:
        stream.synchronize()
    except MPI.Exception as error:
        code = MPI.Get_error_string(error.Get_error_class())
        assert "PROC_FAILED" in code, code
        print("told", flush=True)
    assert time.monotonic() - begun < 30
    made[0].free()
"""


@pytest.mark.parametrize("when", ["later", "at once"])
@pytest.mark.parametrize("size", [100, 100_000])
def test_messages_in_graphs_end(tmp_path, size, when):
    printed = dying.run_text(
        tmp_path,
        MESSAGES,
        size,
        when,
    )
    assert printed.count("told") == 1
