# SPDX-License-Identifier: BSD-3-Clause
"""Errors of MPI's classes go to the communicator's error handler."""

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import ranks
import warpmpi as wm
from cases import FORMS, REDUCTIONS, ROOTED, TABLE, Case, called

KINDS = ("host", "device")
IS_MPICH = "MPICH" in MPI.Get_library_version()
BAD = 99  # neither a rank nor a root
HEARD = []  # by the handler, class by class; mpi4py takes 32 in all


def _hear(comm, code):
    comm.Sendrecv(np.ones(1), comm.rank, 5, np.zeros(1), comm.rank, 5)
    HEARD.append((MPI.Get_error_class(code), comm.handle))


@pytest.fixture(scope="module")
def handler():
    """An error handler, which uses the communicator that it is given."""
    return MPI.Comm.Create_errhandler(_hear)


@pytest.fixture
def handled(world, handler):
    """A communicator of one rank with that handler."""
    comm = wm.Comm(world).Split(world.rank)
    comm.Set_errhandler(handler)
    HEARD.clear()
    yield comm
    comm.Free()


def array(kind, count=4):
    return kinds.make(kind, np.ones(count))


POINT_TO_POINT = """
    Send Ssend Rsend Bsend Isend Issend Irsend Ibsend Send_init Ssend_init
    Rsend_init Bsend_init Recv Irecv Recv_init Sendrecv_replace
    Isendrecv_replace
""".split()
OBJECTS = "send bsend ssend isend ibsend issend".split()
PROBES = "Probe Iprobe Mprobe Improbe probe iprobe mprobe improbe".split()


def refused(call, comm, wanted):
    """Its handler hears of it once, and then the call raises it.

    MPICH's own calls may tell it twice, and then succeed.
    """
    HEARD.clear()
    raised = None
    try:
        call()
    except MPI.Exception as error:
        raised = error.Get_error_class()
    assert raised == wanted or (raised is None and IS_MPICH)
    assert {(wanted, comm.handle)} == set(HEARD)
    assert len(HEARD) == 1 or IS_MPICH


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", POINT_TO_POINT)
def test_a_bad_rank_or_tag_of_a_message(handled, name, kind):
    call = getattr(handled, name)
    refused(lambda: call(array(kind), BAD), handled, MPI.ERR_RANK)
    refused(lambda: call(array(kind), 0, -7), handled, MPI.ERR_TAG)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["Sendrecv", "Isendrecv"])
def test_a_bad_rank_of_an_exchange(handled, name, kind):
    call, one, other = getattr(handled, name), array(kind), array(kind)
    refused(lambda: call(one, BAD, 0, other, 0), handled, MPI.ERR_RANK)
    refused(lambda: call(one, 0, 0, other, BAD), handled, MPI.ERR_RANK)


@pytest.mark.parametrize("name", OBJECTS)
def test_a_bad_rank_of_an_object(handled, name):
    refused(lambda: getattr(handled, name)(7, BAD), handled, MPI.ERR_RANK)


def test_a_bad_rank_to_receive_objects_from(handled):
    refused(lambda: handled.recv(source=BAD), handled, MPI.ERR_RANK)
    refused(lambda: handled.irecv(source=BAD), handled, MPI.ERR_RANK)
    refused(lambda: handled.sendrecv(1, BAD, source=0), handled, MPI.ERR_RANK)


@pytest.mark.parametrize("name", PROBES)
def test_a_bad_rank_of_a_probe(handled, name):
    refused(lambda: getattr(handled, name)(BAD), handled, MPI.ERR_RANK)


@pytest.mark.parametrize("kind", KINDS)
def test_a_truncated_receive(handled, kind):
    sent, short = array(kind), array(kind, 1)

    def receive(how):
        request = handled.Isend(sent, 0)
        try:
            how()
        finally:
            request.Wait()

    refused(
        lambda: receive(lambda: handled.Recv(short, 0)),
        handled,
        MPI.ERR_TRUNCATE,
    )
    refused(
        lambda: receive(lambda: handled.Mprobe(0).Recv(short)),
        handled,
        MPI.ERR_TRUNCATE,
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "wait",
    ["Waitall", "Waitany", "Waitsome", "Testall", "Testany", "Testsome"],
)
def test_a_request_of_a_truncated_receive(handled, wait, kind):
    request = handled.Irecv(array(kind, 1), 0)
    handled.Send(array(kind), 0)

    def end():
        while request:
            getattr(wm.Request, wait)([request])

    refused(end, handled, MPI.ERR_TRUNCATE)


def test_a_request_tells_no_handler_of_the_world(handled, world, handler):
    before = world.Get_errhandler()
    world.Set_errhandler(handler)
    try:
        request = handled.Irecv(np.zeros(1), 0)
        handled.Send(np.ones(2), 0)
        refused(request.Wait, handled, MPI.ERR_TRUNCATE)
    finally:
        world.Set_errhandler(before)


def refused_collective(comm, name, form, kind, wanted, **bad):
    args = Case(comm, name, lambda values: kinds.make(kind, values)).args
    for k, argument in enumerate(TABLE[name].arguments):
        args[k] = bad.get(argument, args[k])
    refused(lambda: getattr(comm, called(name, form))(*args), comm, wanted)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", FORMS[:2])
@pytest.mark.parametrize("name", ROOTED)
def test_a_bad_root(handled, name, form, kind):
    refused_collective(handled, name, form, kind, MPI.ERR_ROOT, root=BAD)


@pytest.mark.parametrize("name", "bcast gather scatter".split())
def test_a_bad_root_of_objects(handled, name):
    call = getattr(handled, name)
    refused(lambda: call([1], root=BAD), handled, MPI.ERR_ROOT)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", FORMS[:2])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_a_bad_operation(handled, name, form, kind):
    bad = {"op": MPI.OP_NULL}
    refused_collective(handled, name, form, kind, MPI.ERR_OP, **bad)


def test_a_stream_of_it(handled):
    if not wm.is_cuda_available():
        pytest.skip("needs a GPU")
    bound = handled.on(wm.Stream())
    refused(lambda: bound.Send(wm.ones(4), BAD), handled, MPI.ERR_RANK)


def test_errors_that_are_pythons_are_not_told(handled):
    with pytest.raises(TypeError):
        handled.Send(object(), 0)
    with pytest.raises(ValueError, match="count"):
        handled.Send([np.ones(4), -1, MPI.DOUBLE], 0)
    assert HEARD == []


@pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU")
@pytest.mark.ranks(2)
def test_a_handler_of_one_rank_hears_of_what_all_raise(world, handler):
    comm = wm.Comm(world).Dup()
    if comm.rank == 0:
        comm.Set_errhandler(handler)
    HEARD.clear()
    with pytest.raises(MPI.Exception):
        comm.Bcast(wm.zeros(4 + comm.rank), 0)
    assert len(HEARD) == (comm.rank == 0)
    comm.Barrier()
    comm.Free()


ENDING = """
    import sys
    import numpy as np
    from mpi4py import MPI
    import warpmpi as wm
    comm = wm.Comm(MPI.COMM_WORLD).Dup()
    comm.Set_errhandler(getattr(MPI, sys.argv[1]))
    if "win" in sys.argv[2]:
        win = wm.Win.Create(wm.zeros(4), 8, comm=comm)
        win.Set_errhandler(getattr(MPI, sys.argv[1]))
    if comm.rank == 0:
        try:
            eval(sys.argv[2])
        except MPI.Exception:
            print("caught", flush=True)
    comm.Recv(np.zeros(1), comm.size - 1 - comm.rank)
"""
SHORT = "comm.Irecv(np.zeros(1), 0), comm.Send(np.ones(2), 0)"


@pytest.mark.programs
@pytest.mark.parametrize("handler", ["ERRORS_ARE_FATAL", "ERRORS_ABORT"])
@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("comm.Send(np.zeros(1), 99)", "dest=99 is not a rank"),
        ("comm.bcast(1, 99)", ""),
        (f"wm.Request.Waitall([({SHORT})[0]])", "message truncated"),
        ("win.Unlock(0)", "has not locked the target"),
    ],
)
def test_a_handler_ends_the_job_and_says_why(tmp_path, handler, call, text):
    if handler == "ERRORS_ABORT" and MPI.Get_version() < (4, 0):
        pytest.skip("this MPI does not have it")
    if "win" in call and not wm.is_cuda_available():
        pytest.skip("needs a GPU")
    with pytest.raises(AssertionError) as caught:
        ranks.run_text(tmp_path, ENDING, handler, call, timeout=60)
    assert text in str(caught.value)
    assert not str(caught.value).startswith("caught")


MAKERS = {
    "Split": lambda comm: comm.Split(comm.rank),
    "Create_cart": lambda comm: comm.Split(comm.rank).Create_cart([1], [True]),
    "Create_graph": lambda comm: comm.Split(comm.rank).Create_graph([1], [0]),
    "Create_dist_graph_adjacent": lambda comm: comm.Split(
        comm.rank
    ).Create_dist_graph_adjacent([0], [0]),
    "Create_intercomm": lambda comm: comm.Split(comm.rank).Create_intercomm(
        0, comm, comm.size - 1 - comm.rank, 7
    ),
}


def _exchange(comm):
    """Exchange GPU arrays with itself, or with the other group."""
    into = kinds.make("device", np.zeros(4))
    peer = 0 if comm.Is_inter() else comm.rank
    comm.Sendrecv(kinds.make("device", np.ones(4)), peer, 5, into, peer, 5)
    assert (kinds.values_of(into) == 1).all()


@pytest.mark.parametrize("name", MAKERS)
def test_functions_of_the_program_get_a_wm_comm(world, name):
    """Handlers, and what copies and deletes attributes; without install()."""
    if name == "Create_intercomm" and world.size != 2:
        pytest.skip("needs two ranks")
    heard = []

    def hear(comm, *rest):
        heard.append((type(comm), comm == made))
        _exchange(comm)
        return NotImplemented  # of an attribute: no copy

    made = MAKERS[name](wm.Comm(world))
    handler = MPI.Comm.Create_errhandler(hear)
    made.Set_errhandler(handler)
    for kind in KINDS:
        with pytest.raises(MPI.Exception):
            made.Send(array(kind), BAD)
    keyval = MPI.Comm.Create_keyval(copy_fn=hear, delete_fn=hear)
    made.Set_attr(keyval, "attribute")
    made.Dup().Free()
    made.Delete_attr(keyval)
    assert heard == [(type(made), True)] * 4
    handler.Free()
    MPI.Comm.Free_keyval(keyval)
    made.Free()
