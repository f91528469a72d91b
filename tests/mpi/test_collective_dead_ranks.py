# SPDX-License-Identifier: BSD-3-Clause
"""A rank dies before or inside the others' collectives of GPU memory."""

import os

import pytest

import dying

pytestmark = [
    pytest.mark.programs,
    dying.needs_ulfm,
    pytest.mark.skipif(
        "WARPMPI_CUDA_DRIVER" not in os.environ,
        reason="needs the simulated driver",
    ),
]

# All calls at once, each with a communicator and, where it blocks, a thread
# of its own. The last rank dies before it makes any, or inside all, as what
# it sends is never ready.
PROGRAM = """
    form, how, strict = sys.argv[1], sys.argv[2], sys.argv[3] == "strict"
    world = wm.Comm(MPI.COMM_WORLD)
    n, last = world.size, world.rank == world.size - 1
    stream = wm.Stream(wm.get_device())
    CASES = {}

    def fresh(name):
        if name.startswith("Neighbor"):
            made = world.Create_cart([n], [True])
        else:
            made = wm.Comm(MPI.COMM_WORLD.Dup())
        made.Set_errhandler(MPI.ERRORS_RETURN)
        return made

    def ready(name, comm):
        args = ()
        if name != "Barrier":
            root = n - 1 if cases.TABLE[name].from_root else 0
            CASES[name] = cases.Case(comm, name, cases.on_device, root,
                                     each=1000)
            args = CASES[name].args
        how_called = {"blocking": "", "nonblocking": "I"}.get(form, "_init")
        begin, wait, _ = cases.steps(comm, name, how_called, *args)
        def go():
            begin()
            wait()
        if form == "repeated":
            go()  # the next start begins as this one has gone
        return go

    def go(name, call):
        begun, told = time.monotonic(), "no error"
        try:
            call()
        except MPI.Exception as error:
            told = MPI.Get_error_string(error.Get_error_class())
        except Exception as error:
            told = repr(error)
        # Of two ranks each is the other's neighbour twice, which is MPI's.
        mpis = not strict or (n == 2 and name.startswith("Neighbor"))
        ends = mpis or (name == "Barrier" and how == "inside")
        if not ("PROC_FAILED" in told or (ends and told == "no error")
                or (mpis and "ERR_OTHER" in told)):
            wrong.append((name, told))
        took = time.monotonic() - begun
        if took > 10:
            wrong.append((name, took))

    wrong = []
    names = ["Barrier", *cases.NAMES]
    calls = {name: ready(name, fresh(name)) for name in names}
    threads = [threading.Thread(target=go, args=item, daemon=True)
               for item in calls.items()]
    world.Barrier()
    if last and how == "inside":
        kinds.Gate().stop(stream)
        for case in CASES.values():
            case.sent.fill_(1, stream=stream)
        for thread in threads:
            thread.start()
    if last:
        time.sleep(0.7)
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1.2 if how == "before" else 0)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("told" if not wrong else wrong, flush=True)
    time.sleep(1)
"""

HOST = {"SIMCUDA_IPC": "0"}  # MPI's own errors, and what it can end it does


WAYS = [
    ("before", 4, {}),
    ("inside", 2, {}),
    ("inside", 4, {}),
    ("inside", 2, HOST),
    ("waited", 4, HOST),
]


@pytest.mark.parametrize(
    "form, how, size, settings",
    [
        (form, *way)
        for form in ("blocking", "nonblocking", "persistent", "repeated")
        for way in WAYS
        if form != "repeated" or way[2] is not HOST
    ],
)
def test_all_hear_of_it(tmp_path, form, how, size, settings):
    printed = dying.run_text(
        tmp_path,
        PROGRAM,
        form,
        how,
        "lenient" if settings else "strict",
        ranks=size,
        timeout=100,
        **settings,
    )
    assert printed.split() == ["told"] * (size - 1), printed
