# SPDX-License-Identifier: BSD-3-Clause
"""A rank dies, and kernels of halo exchanges of the others wait for it."""

import pytest

import dying
import warpmpi as wm

pytestmark = [
    pytest.mark.programs,
    dying.needs_ulfm,
    pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU"),
]

# The last rank dies, or revokes, before it replays; the others' graphs and
# plans wait for it. "freed": after all have freed the communicator.
PROGRAM = """
    how, world = sys.argv[1], MPI.COMM_WORLD
    world.Set_errhandler(MPI.ERRORS_RETURN)
    cart = world.Create_cart([world.size], periods=[True])
    cart.Set_errhandler(MPI.ERRORS_RETURN)
    halo = wm.Halo(cart)
    stream, u = wm.Stream(wm.get_device()), wm.ones(10)
    wm.synchronize_device(stream.device)
    plan = halo.plan(u)
    with graphs.capture(stream) as made:
        plan(stream)
    made[0].launch(stream)
    stream.synchronize()
    if how == "freed":
        cart.Free()
    world.Barrier()
    if world.rank == world.size - 1:
        time.sleep(0.3)
        if how != "revokes":
            os.kill(os.getpid(), signal.SIGKILL)
        halo.comm.Revoke()
    else:
        for _ in range(3):
            made[0].launch(stream)
            try:
                plan(stream)
            except (MPI.Exception, RuntimeError):
                pass  # it has been heard of already
    stream.synchronize()
    print("passed", flush=True)
    calls = lambda: plan(stream), lambda: halo.exchange(u)
    for call in calls if how != "freed" else ():
        name = ""
        while not name:
            try:
                call()
            except MPI.Exception as error:
                name = MPI.Get_error_string(error.Get_error_class())
        assert ("PROC_FAILED" if how == "dies" else "REVOKED") in name, name
    halo.free()
    print("told", flush=True)
    world.Shrink().Barrier()  # or the others may hear of this one's end
"""


@pytest.mark.parametrize("how", ["dies", "revokes", "freed"])
@pytest.mark.parametrize(
    "size, settings",
    [
        (2, {}),
        (3, {"SIMCUDA_DEVICES": "3"}),
        (3, {"SIMCUDA_DEVICES": "1"}),  # processes take turns
    ],
)
def test_graphs_and_plans_go_on(tmp_path, how, size, settings):
    printed = dying.run_text(
        tmp_path,
        PROGRAM,
        how,
        ranks=size,
        timeout=100,
        **settings,
    )
    left = size if how == "revokes" else size - 1
    assert printed.count("passed") == printed.count("told") == left, printed
