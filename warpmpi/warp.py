# SPDX-License-Identifier: BSD-3-Clause
# mypy: disable-error-code="untyped-decorator"
"""Device functions of shared arrays for Warp's kernels.

    import warp as wp
    import warpmpi as wm
    import warpmpi.warp as wmw

    a = wm.shared_zeros(n, "float32", comm=comm, like="warp")

    @wp.kernel
    def step(a: wp.uint64, its: wp.array(dtype=float), right: int):
        its[0] = 1.0
        wmw.signal(a, right, 0, wp.uint64(1))
        wmw.wait(a, 0, wp.uint64(1))

    wp.launch(step, dim=1, inputs=[a.handle, a.peer(right), right])

Each function takes the handle of the array (`a.handle`), and is called by one
thread: that is a launch of one, or `if wp.tid() == 0:`. A signal publishes
the writes of its own thread. For those of a whole launch, signal from the
next kernel, or by `a.signal(right, 0)` on the stream. Slots and ranks are not
checked. A kernel that waits for a kernel of another rank needs both to run at
once: each rank has a GPU of its own, or MPS runs.

rank: 0 to a.comm.size - 1. slot: 0 to a.slots - 1. value: 1 to 2**48 - 1.
None of them raises an error.
"""

# Warp reads the decorators as they are written, and the types of parameters
# from the functions: annotations are no texts here.
from pathlib import Path

import warp as wp

_HEADER = Path(__file__).parent / "include" / "warpmpi" / "shared.cuh"


def _calling(call: str) -> str:
    """The body of a function that calls one of the header.

    A struct inside of the function holds the text of the header.
    """
    return (
        "#undef WARPMPI_SHARED_CUH\n#undef WM_SHARED_CALL\n"
        f"struct shared {{\n{_HEADER.read_text()}\n}};\n"
        "const shared::wm_shared_t *a = (const shared::wm_shared_t *)handle;\n"
        f"{call}\n"
    )


_ONCE = ";"  # a backward pass does not signal or wait again


@wp.func_native(
    _calling("shared::wm_shared_signal(a, rank, slot, value);"),
    replay_snippet=_ONCE,
)
def signal(handle: wp.uint64, rank: int, slot: int, value: wp.uint64) -> None:
    """Add `value` (1 to 2**48 - 1) to a slot of a rank.

    Behind this thread's writes.
    """


@wp.func_native(
    _calling("shared::wm_shared_wait(a, slot, value);"), replay_snippet=_ONCE
)
def wait(handle: wp.uint64, slot: int, value: wp.uint64) -> None:
    """Wait until a slot of this rank has `value`, and subtract it."""


@wp.func_native(
    _calling("shared::wm_shared_barrier(a);"), replay_snippet=_ONCE
)
def barrier(handle: wp.uint64) -> None:
    """Wait until all ranks have called it, equally often."""


@wp.func_native(_calling("return shared::wm_shared_peek(a, slot);"))
def peek(handle: wp.uint64, slot: int) -> wp.uint64:
    """The value of a slot of this rank: what wait() may still take."""


@wp.func_native(
    _calling("return (wp::uint64)shared::wm_shared_pointer(a, rank);")
)
def pointer(handle: wp.uint64, rank: int) -> wp.uint64:
    """The address of a rank's array, in memory that this GPU reaches.

    In bytes; never 0 for a rank of the array.
    """
