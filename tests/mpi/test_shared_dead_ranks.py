# SPDX-License-Identifier: BSD-3-Clause
"""A rank dies, and streams, graphs and hosts of the others wait for it."""

import pytest

import dying
import warpmpi as wm

pytestmark = [
    pytest.mark.programs,
    dying.needs_ulfm,
    pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU"),
]

PROGRAM = """
    how = sys.argv[1]
    world = wm.Comm(MPI.COMM_WORLD)
    world.Set_errhandler(MPI.ERRORS_RETURN)
    last = world.rank == world.size - 1
    device = "cpu" if how == "cpu" else None
    stream = None if how == "cpu" else wm.Stream()
    a = wm.shared_full(5, world.rank, comm=world, device=device)
    view = a.peer(world.size - 1)
    if how == "graph":
        with graphs.capture(stream) as made:
            a.wait(3, 7, stream)
            a.barrier(stream)
    a.barrier(stream)
    if stream is not None:
        stream.synchronize()
    world.Barrier()
    if last:
        os.kill(os.getpid(), signal.SIGKILL)

    def raises(call):
        begun, name = time.monotonic(), "no error"
        try:
            call()
        except MPI.Exception as error:
            name = MPI.Get_error_string(error.Get_error_class())
        assert "PROC_FAILED" in name, name
        assert time.monotonic() - begun < 10

    if how == "graph":
        for _ in range(2):
            made[0].launch(stream)
        stream.synchronize()
    elif how == "stream":
        try:
            a.wait(1, 1, stream)
            a.barrier(stream)
        except MPI.Exception:
            pass  # it has been heard of already
        stream.synchronize()
    begun = time.monotonic()
    while how != "cpu" and time.monotonic() - begun < 10:
        try:
            a.signal(0, 0, 1, stream)
            time.sleep(0.01)
        except MPI.Exception:
            break
    raises(lambda: a.wait(0, 5, stream))
    raises(lambda: a.barrier(stream))
    assert (view.numpy() == world.size - 1).all()  # its memory stays
    print("told", flush=True)
    del a, view
    comm = world.Shrink()
    b = wm.shared_full(3, 1, comm=comm, device=device)
    b.barrier(stream)
    if stream is not None:
        stream.synchronize()
    print("again", flush=True)
    comm.Barrier()
"""


@pytest.mark.parametrize(
    "how, size, settings",
    [
        ("stream", 2, {}),
        ("stream", 4, {"SIMCUDA_DEVICES": "2"}),  # who share GPUs in turns
        ("graph", 3, {"SIMCUDA_DEVICES": "4"}),
        ("stream", 2, {"SIMCUDA_IPC": "0"}),  # through host memory
        ("cpu", 3, {}),
    ],
)
def test_waits_end(tmp_path, how, size, settings):
    printed = dying.run_text(
        tmp_path,
        PROGRAM,
        how,
        ranks=size,
        timeout=90,
        **settings,
    )
    assert printed.count("told") == printed.count("again") == size - 1, printed
