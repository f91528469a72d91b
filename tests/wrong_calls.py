# SPDX-License-Identifier: BSD-3-Clause
"""Collectives with an argument that MPI, mpi4py or an array refuses.

WRONG makes a right call of cases.py wrong. Plain mpi4py refuses each of these
calls, in every form, before any other rank could know of it.
"""

from mpi4py import MPI

from cases import REDUCTIONS, ROOTED, TABLE

COLUMN = MPI.DOUBLE.Create_vector(2, 1, 2)  # not committed


class Raising:
    """An array whose interfaces raise an error when they are asked for."""

    def __init__(self, error):
        self.error = error

    @property
    def __cuda_array_interface__(self):
        raise self.error("an interface raises")

    def __dlpack__(self, **_):
        raise self.error("an interface raises")

    def __dlpack_device__(self):
        return 2, 0


def _replaced(name):
    def make(value):
        def change(case, args, kwargs):
            at = case.row.arguments.index(name)
            args[at:] = []
            kwargs[name] = value
            for other in case.row.arguments[at + 1 :]:
                kwargs[other] = dict(
                    zip(case.row.arguments, case.args, strict=False)
                )[other]

        return change

    return make


def _buffer(make):
    """Changes the first buffer that matters on this rank."""

    def change(case, args, kwargs):
        for at in range(2):
            value = args[at]
            if value is not None and value is not MPI.IN_PLACE:
                array = value[0] if isinstance(value, list) else value
                args[at] = make(array)
                return

    return change


def _same(case, args, kwargs):
    args[1] = args[0]
    if "scatter" in case.name:
        args[1] = [args[0], 1, MPI.DOUBLE]


def _more(case, args, kwargs):
    args += [None] * 6


def _unknown(case, args, kwargs):
    kwargs["nonsense"] = 1


# Open MPI does not look at the memory of others, nor at Scatter's types.
ALIASED = ("Allreduce", "Reduce_scatter_block", "Reduce_scatter")
# MPICH's Reduce ends the job at a null type.
TYPED = [name for name in TABLE if "catter" not in name or "_" in name]
ERRORS = (
    RuntimeError,
    MemoryError,
    KeyError,
    OverflowError,
    KeyboardInterrupt,
)

_root, _op = _replaced("root"), _replaced("op")

# What is wrong, and for which calls this serves.
WRONG = {
    "a root": (_root(99), ROOTED),
    "a root below 0": (_root(-9), ROOTED),
    "a root of no int": (_root(2**40), ROOTED),
    "a root of text": (_root("zero"), ROOTED),
    "no op": (_op(MPI.OP_NULL), REDUCTIONS),
    "an op of windows": (_op(MPI.REPLACE), REDUCTIONS),
    "an op of bits": (_op(MPI.BAND), REDUCTIONS),
    "an op of text": (_op("sum"), REDUCTIONS),
    "one memory": (_same, ALIASED),
    "no code": (_buffer(lambda x: [x, "no such code"]), TABLE),
    "no type": (
        _buffer(lambda x: [x, 1, MPI.DATATYPE_NULL]),
        [name for name in TYPED if name != "Reduce"],
    ),
    "a new type": (_buffer(lambda x: [x, 1, COLUMN]), TYPED),
    "fewer than none": (_buffer(lambda x: [x, -1, MPI.DOUBLE]), TABLE),
    "no buffer": (_buffer(lambda x: object()), TABLE),
    "text": (_buffer(lambda x: "text"), TABLE),
    "more than all": (_more, TABLE),
    "an unknown name": (_unknown, TABLE),
    **{
        f"an array with {error.__name__}": (
            _buffer(lambda x, error=error: Raising(error)),
            TABLE,
        )
        for error in ERRORS
    },
}


def wrong_for(name):
    return [what for what, (_, names) in WRONG.items() if name in names]


def make_wrong(case, what):
    """The arguments of a call that is refused."""
    args, kwargs = list(case.args), {}
    WRONG[what][0](case, args, kwargs)
    return args, kwargs
