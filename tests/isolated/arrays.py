# SPDX-License-Identifier: BSD-3-Clause
"""Arrays of every kind, made, copied, indexed and dropped."""

import numpy as np
from counts import stay_flat

import warpmpi as wm

DEVICE = wm.get_device()
OTHER = [wm.get_device("cpu"), *wm.get_cuda_devices()][-1]


def turn(i):
    size = 1 + i % 50 * 1000
    a = wm.zeros(size, "f4", device=DEVICE)
    b = wm.from_numpy(np.arange(size, dtype="f4"), device=DEVICE)
    a.assign(b)
    a[::2].fill_(1)
    views = [a[k : k + 10].reshape(-1) for k in range(0, 100, 10)]
    c = b.to(OTHER)
    d = wm.array(c, device="cpu", pinned=wm.is_cuda_available())
    assert d.numpy()[-1] == size - 1
    e = c.copy(blocking=False)
    str(a), repr(views[0]), a.T, hash(a.device)
    for bad in (
        lambda: a.reshape(-3),
        lambda: a["x"],
        lambda: a.assign(np.zeros((2, 3))),
        lambda: wm.empty(-1),
        lambda: wm.zeros(3, "no type"),
    ):
        try:
            bad()
        except (IndexError, TypeError, ValueError):
            pass
        else:
            raise AssertionError(bad)
    del e


stay_flat(turn, 600)
