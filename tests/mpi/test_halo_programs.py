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
