# SPDX-License-Identifier: BSD-3-Clause
"""A ring: each rank sends its array to the next one, until all have come round.

mpirun -n 4 python ring.py
"""

from mpi4py import MPI

import warpmpi as wm

wm.install()
comm = MPI.COMM_WORLD
left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size

mine = wm.full(1_000_000, float(comm.rank))  # on this rank's GPU, or the CPU
theirs = wm.empty_like(mine)
seen = []
for _ in range(comm.size):
    comm.Sendrecv(mine, right, recvbuf=theirs, source=left)
    mine, theirs = theirs, mine
    seen.append(int(mine.numpy()[0]))

assert seen == [(comm.rank - 1 - step) % comm.size for step in range(comm.size)]
print(f"rank {comm.rank} on {mine.device} has seen {seen}")
