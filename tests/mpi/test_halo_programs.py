# SPDX-License-Identifier: BSD-3-Clause
"""Halo exchanges of more ranks than the suite has GPUs for."""

import pytest

import ranks
import warpmpi as wm

pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU"),
]

# Of three ranks in a row the first comes late. The second waits for it first,
# and reads the lines of the third afterwards.
IN_TURN = """
    import threading
    import numpy as np
    from mpi4py import MPI
    import warpmpi as wm

    world = MPI.COMM_WORLD
    cart = world.Create_cart([3])
    halo = wm.Halo(cart, shape=[6])
    stream = wm.Stream(wm.get_device())
    u, v = wm.full(6, float(cart.rank)), wm.zeros(5)
    wm.synchronize_device(stream.device)
    plans = [halo.plan(each) for each in (u, v, u)]
    world.Barrier()
    if cart.rank == 0:
        world.Recv(np.zeros(1), 2)
    for plan in plans:
        plan(stream)
    thread = threading.Thread(target=stream.synchronize)
    thread.start()
    if cart.rank == 2:
        # Who runs ahead does so meanwhile. Nothing tells that one waits.
        thread.join(0.3)
        world.Send(np.zeros(1), 0)
    thread.join()
    low, high = u.numpy()[[0, -1]]
    assert low == max(cart.rank - 1, 0) and high == min(cart.rank + 1, 2)
    halo.free()
    cart.Free()
    print("right", flush=True)
"""


def test_fields_without_ghosts_in_turn_with_others(tmp_path):
    """Nobody runs ahead, though such an exchange hears of no neighbour."""
    printed = ranks.run_text(
        tmp_path, IN_TURN, ranks=3, timeout=60, SIMCUDA_DEVICES="3"
    )
    assert printed.count("right") == 3, printed


# A plan does not ask the others, but with WARPMPI_CHECK.
PLANS = """
    from mpi4py import MPI
    import warpmpi as wm

    world = MPI.COMM_WORLD
    cart = world.Create_cart([2], periods=[True])
    halo = wm.Halo(cart)
    device = None if wm.is_cuda_available() else "cpu"
    u, v = (wm.full(6, float(cart.rank), device=device) for _ in range(2))
    plans = [halo.plan(each) for each in (u, v)]
    for _ in range(2):
        try:
            plans[cart.rank]()
        except RuntimeError as error:
            assert "other fields" in str(error), error
            print("told", flush=True)
        plans[1]()
        assert v.numpy()[0] == 1 - cart.rank
    halo.free()
    cart.Free()
"""


def test_plans_of_different_fields_are_found(tmp_path):
    printed = ranks.run_text(tmp_path, PLANS, ranks=2, WARPMPI_CHECK="1")
    assert printed.count("told") == 4, printed
