# SPDX-License-Identifier: BSD-3-Clause
"""A new user's mistakes, and the words that the error must contain.

    mpirun -n 2 python tests/mistakes.py

All ranks make each mistake, on GPU arrays where there is a GPU. A line is
printed for each error that does not name the argument and the cure. The exit
status is 1 if there was one. tests/mpi/test_mistakes.py runs it.
"""

import sys

import numpy as np
from mpi4py import MPI

import warpmpi as wm

GPU = wm.is_cuda_available()

# Statements, and the words of the error. x and y are arrays of ten float64,
# `next` and `last` the ranks beside this one, `own` COMM_SELF, `s` a stream,
# `shared`, `win` and `halo` a shared array, a window and a halo.
MISTAKES = {
    # Arithmetic.
    "x + 1": ["does not compute", "x.numpy() + y", "Allreduce"],
    "1 + x": ["does not compute", "y + x.numpy()"],
    "x += 1": ["does not compute", "x[...] = x.numpy() + y"],
    "x / y": ["does not compute", "x.numpy() / y"],
    "-x": ["does not compute", "-x.numpy()"],
    "x < 1": ["does not compute", "x.numpy() < y"],
    "sum(x)": ["does not compute"],
    "x == y": ["a.numpy() == b"],
    "if x: pass": ["one element", "numpy()"],
    "float(x)": ["one element", "numpy()"],
    "x[[1, 2]]": ["index", "NumPy"],
    "x[20]": ["index 20 is out of bounds", "extent 10"],
    "x[:] = wm.ones(3)": ["source", "(3,)", "(10,)"],
    "x.reshape(3)": ["shape", "10 elements"],
    # Making arrays.
    "wm.zeros(-1)": ["shape", "negative extent -1"],
    "wm.empty('3')": ["shape", "int or a tuple", "str"],
    "wm.empty(2, 3)": ["dtype: 3", "shape", "tuple"],
    "wm.empty(3, device='gpu0')": ["'gpu0'", "'cpu'"],
    "wm.empty(3, device='cuda:77')": ["'cuda:77'", "'cpu'"],
    "wm.empty(3, 'flaot32')": ["dtype", "'flaot32'", "float32"],
    "wm.empty(3, object)": ["dtype", "not supported", "float16/32/64"],
    "wm.full(3, [1, 2, 3])": ["fill_value", "one scalar"],
    "wm.asarray([1, 2, 3])": ["obj", "list", "wm.array()"],
    "wm.Array([1, 2, 3])": ["wm.array(data)", "wm.empty(shape)"],
    "wm.SUM": ["MPI.SUM", "from mpi4py import MPI"],
    # Streams.
    "comm.on(0)": ["stream: 0", "wm.Stream()", "wm.set_device"],
    "comm.on(1)": ["stream: 1", "wm.Stream(cuda_stream=0)"],
    "comm.on('cuda:0')": ["stream", "wm.Stream", "str"],
    "comm.on(None)": ["stream", "wm.Stream", "NoneType"],
    # What is no array.
    "comm.Send([1, 2, 3], next)": ["buf", "numpy.array()", "send()"],
    "comm.Send([1.0], next)": ["buf", "numpy.array()", "send()"],
    "comm.Send([], next)": ["buf", "[array, count, datatype]"],
    "comm.Send([x, y], next)": ["buf", "[array, count, datatype]"],
    "comm.Send(5, next)": ["buf", "int is not an array", "send()"],
    "comm.Send('text', next)": ["buf", "str is not an array", "send()"],
    "comm.Send({'a': 1}, next)": ["buf", "dict is not an array", "send()"],
    "comm.Isend(5, next)": ["buf", "int is not an array", "send()"],
    "comm.Send_init(5, next)": ["buf", "int is not an array", "send()"],
    "comm.Recv(None, last)": ["buf", "give an array"],
    "comm.Recv(5, last)": ["buf", "int is not an array"],
    "comm.Recv(b'abc', last)": ["buf", "read-only", "writable"],
    "comm.Recv(np.broadcast_to(0.0, 9), last)": ["buf", "read-only"],
    "comm.Irecv([0] * 3, last)": ["buf", "numpy.array()"],
    "comm.Bcast([1, 2, 3])": ["buf", "numpy.array()", "bcast()"],
    "comm.Bcast(5)": ["buf", "int is not an array", "bcast()"],
    "comm.Bcast(None)": ["buf", "give an array", "bcast()"],
    "comm.Ibcast('text')": ["buf", "str is not an array", "bcast()"],
    "comm.Allreduce(1.0, y)": ["sendbuf", "float", "allreduce()"],
    "comm.Allreduce([1, 2], y)": ["sendbuf", "numpy.array()"],
    "comm.Allreduce(x)": ["recvbuf", "give an array for the result"],
    "comm.Allreduce(x, None)": ["recvbuf", "give an array"],
    "comm.Allreduce(x, MPI.IN_PLACE)": ["recvbuf", "for sendbuf"],
    "comm.Allreduce_init(x, 5)": ["recvbuf", "int is not an array"],
    "own.Gather(x, None)": ["recvbuf", "on the root"],
    "own.Reduce(x, None)": ["recvbuf", "on the root"],
    "own.Scatter(None, y)": ["sendbuf", "on the root"],
    "own.Scatterv(None, y)": ["sendbuf", "on the root"],
    "own.Scatterv(MPI.IN_PLACE, y)": ["sendbuf", "is for recvbuf"],
    "own.Iscatter(None, y)": ["sendbuf", "on the root"],
    "own.Scatterv_init(None, y)": ["sendbuf", "on the root"],
    "own.Bcast(None)": ["buf", "array"],
    "comm.Allgather(x, 5)": ["recvbuf", "int is not an array"],
    # Operations.
    "comm.Allreduce(x, y, 'sum')": ["op: 'sum'", "MPI.SUM"],
    "comm.Allreduce(x, y, op=max)": ["op: 'max'", "MPI.MAX"],
    "comm.Allreduce(x, y, np.add)": ["op: 'add'", "MPI.SUM"],
    "comm.Allreduce(x, y, op='mean')": ["op: 'mean'", "wm.AVG"],
    "comm.Reduce(x, y, 0)": ["op: int", "MPI.SUM"],
    "comm.Iallreduce(x, y, 'prod')": ["op: 'prod'", "MPI.PROD"],
    "comm.allreduce(x, 'sum')": ["op: 'sum'", "MPI.SUM"],
    "comm.allreduce(x, y)": ["op: Array", "MPI.SUM"],
    "comm.Allreduce(x, y, MPI.BAND)": ["op", "elements of this type"],
    # Counts and types.
    "comm.Allreduce(x, y[:5])": ["10", "5", "same number"],
    "comm.Allreduce(x, wm.zeros(10, 'f4'))": ["float64", "float32", "same"],
    "own.Gatherv(x, [y, [1] * 9])": ["9", "each rank"],
    "comm.Send([x, 1, V], next)": ["datatype", "Commit"],
    # Ranks and tags.
    "comm.Send(x)": ["dest"],
    "comm.Send(x, 99)": ["dest=99", "not a rank", "use 0 to"],
    "comm.Send(x, -5)": ["dest=-5", "not a rank", "use 0 to"],
    "comm.Send(x, '1')": ["dest", "int", "str"],
    "comm.Send(x, next, -3)": ["tag=-3", "use 0 to"],
    "comm.Send(x, next, 2**40)": ["tag=1099511627776", "does not fit an int"],
    "comm.Recv(y, MPI.Status())": ["source", "int", "Status"],
    "comm.Recv(y, last, 0, 5)": ["status", "MPI.Status", "int"],
    "comm.Sendrecv(x, next, source=last)": ["recvbuf", "give an array"],
    "comm.Bcast(x, 99)": ["root=99", "not a rank", "use 0 to"],
    "comm.Bcast(x, '0')": ["root", "int", "str"],
    # Communicators and requests.
    "freed.Send(x, 0)": ["freed"],
    "freed.Allreduce(x, y)": ["freed"],
    "wm.transport(MPI.COMM_NULL, 0)": ["not a wm.Comm", "wm.Comm(comm)"],
    "wm.Request.Waitall([5])": ["Request", "int"],
}
# The same with GPUs.
NO_STREAM = ["stream: ", " is no stream", "wm.Stream(cuda_stream=0)"]
WITH_GPUS = {
    "comm.Send([x, 20], next)": ["20", "80"],
    "comm.Sendrecv(x, next, y, last)": ["sendtag", "int", "Array"],
    "own.Allreduce([np.ones(10), np.float64], np.ones(10))": [
        *("sendbuf", "datatype of MPI's", "MPI.DOUBLE"),
    ],
    "wm.Request.Waitall(5)": ["requests", "list", "int"],
    "x < 2": ["cupy.asarray(x) < y"],
    "comm.on(s).Allreduce(x, y, 'sum')": ["op", "MPI.Op", "str"],
    "comm.on(s).Bcast(np.ones(9))": ["buf", "GPU memory", "on("],
    "comm.on(s).Allreduce(x[::2], y)": ["sendbuf", ".copy()"],
    "comm.on(s).Allreduce([1, 2], y)": ["sendbuf", "numpy.array()"],
    "shared.signal(0, 0, stream=0)": NO_STREAM,
    "shared.wait(0, stream=1)": NO_STREAM,
    "shared.barrier(2)": NO_STREAM,
    "win.on(0)": NO_STREAM,
    "halo.exchange(x, stream=1)": NO_STREAM,
    "x.assign(y, stream=0)": NO_STREAM,
    "wm.Event().record(-1)": NO_STREAM,
    "wm.Stream(cuda_stream=3)": ["cuda_stream: 3 is no", "wm.Stream()"],
    "memoryview(x)": ["GPU", ".numpy()"],
    "x.numpy()[0] = 1": ["read-only"],
}
# Things that look wrong and are right.
RIGHT = """
    MPI.Win.Create(x, comm=comm).Free()
    np.add(x, 1)
    x + np.ones(10)
    np.ones(10) + x
    x.numpy() + 1
    r = comm.Irecv(y, MPI.PROC_NULL); r.Wait(); r.Wait()
    comm.Send(x, MPI.PROC_NULL)
    comm.Sendrecv(x[::2], next, recvbuf=y[1::2], source=last)
    comm.Sendrecv(wm.ones(()), next, recvbuf=y[:1], source=last)
    comm.Isend(wm.ones(10), comm.rank, 5); comm.Recv(y, comm.rank, 5)
    comm.Allreduce(MPI.IN_PLACE, x)
    comm.Reduce(x, None if comm.rank else y)
    comm.allreduce(1, op=max)
    comm.allreduce(2.0, MPI.SUM)
"""


def tell(statement, space):
    """The error of a statement, with its notes; empty if there is none."""
    try:
        exec(statement, dict(space))
    except Exception as error:
        notes = getattr(error, "__notes__", [])
        return "\n".join([f"{type(error).__name__}: {error}", *notes])
    return ""


def main():
    """Make all mistakes; return the number of bad errors."""
    wm.install()
    comm = MPI.COMM_WORLD
    freed = comm.Dup()
    freed.Free()
    bad = 0
    vector = MPI.DOUBLE.Create_vector(2, 1, 5)
    names = {"comm": comm, "own": MPI.COMM_SELF, "freed": freed, "V": vector}
    names |= {"MPI": MPI, "np": np, "wm": wm}
    names["next"] = (comm.rank + 1) % comm.size
    names["last"] = (comm.rank - 1) % comm.size
    if GPU:
        MISTAKES.update(WITH_GPUS)
        names["s"] = wm.Stream()
        names["shared"] = wm.shared_empty(1, comm=comm)
        names["win"] = wm.Win.Create(wm.zeros(1), comm=comm)
        names["halo"] = wm.Halo(comm.Create_cart([comm.size]))
    right = {line.strip(): None for line in RIGHT.strip().splitlines()}
    for statement, words in {**MISTAKES, **right}.items():
        names.update(x=wm.ones(10), y=wm.zeros(10))
        text = tell(statement, names)
        missing = [word for word in words or () if word not in text]
        if missing or bool(text) != bool(words):
            print(f"{statement}: not in it {missing}: {text or 'no error'}")
            bad += 1
    return bad


if __name__ == "__main__":
    sys.exit(main() > 0)
