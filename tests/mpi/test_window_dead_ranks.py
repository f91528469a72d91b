# SPDX-License-Identifier: BSD-3-Clause
"""Streams in epochs of a window, when a rank dies or revokes."""

import pytest

import dying
import warpmpi as wm

pytestmark = [
    pytest.mark.programs,
    dying.needs_ulfm,
    pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU"),
]

# The last rank is posted to, and dies or revokes; the others' streams wait,
# or their hosts, for work behind these streams.
PROGRAM = """
    how, waits, world = *sys.argv[1:], MPI.COMM_WORLD
    failed = contextlib.suppress(MPI.Exception)
    world.Set_errhandler(MPI.ERRORS_RETURN)
    comm = wm.Comm(world)
    comm.Set_errhandler(MPI.ERRORS_RETURN)
    win, stream = wm.Win.Create(wm.zeros(4), 8, comm=comm), wm.Stream()
    last = world.size - 1
    on, group = win.on(stream), comm.Get_group().Incl([last])
    on.Fence()
    stream.synchronize()
    world.Barrier()
    if world.rank == last:
        time.sleep(0.3)
        if how == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        comm.Revoke()
    else:
        on.Post(group)
        on.Start(group)
        if waits == "stream":
            on.Complete()
            on.Wait()
        else:
            with failed:
                win.Complete()
            with failed:
                win.Wait()
    stream.synchronize()
    print("passed", flush=True)
    name = ""
    while not name:
        try:
            win.Fence()
        except MPI.Exception as error:
            name = MPI.Get_error_string(error.Get_error_class())
    assert ("PROC_FAILED" if how == "dies" else "REVOKED") in name, name
    print("told", flush=True)
    comm.Shrink().Barrier()  # or the others may hear of this one's end
"""


@pytest.mark.parametrize("how", ["dies", "revokes"])
@pytest.mark.parametrize(
    "waits, level", [("stream", "multiple"), ("host", "serialized")]
)
def test_streams_go_on(tmp_path, how, waits, level):
    printed = dying.run_text(
        tmp_path,
        PROGRAM,
        how,
        waits,
        ranks=3,
        timeout=100,
        MPI4PY_RC_THREAD_LEVEL=level,
    )
    left = 3 if how == "revokes" else 2
    assert printed.count("passed") == printed.count("told") == left, printed
