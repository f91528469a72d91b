# SPDX-License-Identifier: BSD-3-Clause
"""Recv meets send, recv meets Send; and element types under WARPMPI_CHECK."""

import pickle

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import ranks
import warpmpi as wm

SIZES = [1, 100_000]  # rides the header, or follows it


@pytest.fixture
def own():
    comm = wm.Comm(MPI.COMM_SELF)
    yield comm
    sending = comm.isend("still", 0, 9)
    assert comm.recv(None, 0, 9) == "still"
    sending.wait()


def receives(own, buffer):
    """Every form of a receive."""
    status = MPI.Status()
    yield lambda: own.Recv(buffer, 0)
    yield lambda: own.Irecv(buffer, 0).Wait()
    yield lambda: own.Mprobe(0, status=status).Recv(buffer)
    yield lambda: own.Mprobe(0, status=status).Irecv(buffer).Wait()

    def persistent():
        request = own.Recv_init(buffer, 0)
        request.Start()
        request.Wait()

    yield persistent

    def probed():
        own.Probe(0)
        own.Recv(buffer, 0)

    yield probed


@pytest.mark.parametrize("kind", kinds.KINDS)
@pytest.mark.parametrize("size", SIZES)
def test_numbers_are_not_received_of_an_object(own, kind, size):
    room = np.full(size + 100, 7.0)
    into = kinds.make(kind, room)
    for receive in receives(own, into):
        sending = own.isend("x" * size, 0, 3)
        with pytest.raises(TypeError, match=r"Recv met send: rank 0 .* recv"):
            receive()
        sending.wait()
        assert np.array_equal(kinds.values_of(into), room)
    sending = own.isend("x" * size, 0)
    with pytest.raises(TypeError, match="Recv met send"):
        own.Recv([into, MPI.DOUBLE], 0)
    sending.wait()


@pytest.mark.parametrize("size", SIZES)
def test_its_bytes_are(own, size):
    text = "x" * size
    count = len(MPI.pickle.dumps(text))
    spellings = [
        bytearray(count),
        np.zeros(count, "u1"),
        np.zeros(count, "i1"),
        [np.zeros(count), count, MPI.BYTE],
    ]
    for buffer in spellings:
        sending = own.isend(text, 0)
        status = MPI.Status()
        own.Probe(0, status=status)
        assert status.Get_count(MPI.BYTE) == count
        own.Recv(buffer, 0)
        sending.wait()
        array = buffer[0] if isinstance(buffer, list) else buffer
        assert pickle.loads(bytes(array)[:count]) == text


@pytest.mark.parametrize("size", SIZES)
def test_an_object_is_not_received_of_numbers(own, size):
    for receive in (
        lambda: own.recv(None, 0),
        lambda: own.irecv(None, 0).wait(),
        lambda: own.mprobe(0).recv(),
    ):
        sending = own.Isend(np.full(size, 0.5), 0)
        with pytest.raises(TypeError, match=r"recv met Send: .* by Recv"):
            receive()
        sending.Wait()


def test_a_pickle_that_was_sent_by_send_is_an_object(own):
    sending = own.Isend(pickle.dumps({"a": 1}), 0)
    assert own.recv(None, 0) == {"a": 1}
    sending.Wait()
    sending = own.Isend(b"", 0)
    assert own.recv(None, 0) is None
    sending.Wait()


def test_what_unpickling_itself_raises_stays(own):
    class Bad:
        def __reduce__(self):
            return int, ("no number",)

    sending = own.isend(Bad(), 0)
    with pytest.raises(ValueError, match="no number"):
        own.recv(None, 0)
    sending.wait()


CHECKED = """
    import numpy as np
    from mpi4py import MPI
    import warpmpi as wm
    comm = wm.Comm(MPI.COMM_WORLD)
    me = comm.rank
    kinds = ["cpu"] + (["cuda"] if wm.is_cuda_available() else [])
    for device in kinds:
        for count in (3, 100_000):
            into = wm.zeros(count + 2, "i4", device=device)
            forms = [
                lambda: comm.Recv(into, 0),
                lambda: comm.Irecv(into, 0).Wait(),
                lambda: comm.Mprobe(0).Recv(into),
                lambda: (comm.Probe(0), comm.Recv(into, 0)),
                lambda: comm.Recv([into, count, MPI.INT], 0),
            ]
            for form in forms:
                if me == 0:
                    comm.Send(wm.ones(count, "f4", device=device), 1)
                    continue
                try:
                    form()
                except TypeError as error:
                    text = str(error)
                    assert f"rank 0 sent {count} of float32" in text, text
                    assert "of int32" in text, text
                else:
                    raise SystemExit("not refused")
                assert not into.numpy().any()
            # What matches.
            for sent, received in [
                (np.ones(2, "i8"), np.zeros(4, "i8")),
                ([np.ones(2, "i8"), MPI.LONG], np.zeros(2, "i8")),
                ([np.ones(2, "f4"), MPI.BYTE], np.zeros(2, "f4")),
                (np.ones(2, "f4"), np.zeros(8, "u1")),
                (b"12345678", np.zeros(1)),
                (np.zeros(0), np.zeros(1, "i4")),
            ]:
                if me == 0:
                    comm.Send(sent, 1)
                else:
                    comm.Recv(received, 0)
            if me == 0:
                comm.send({"a": into}, 1)
            else:
                comm.recv(None, 0)
    print("checked")
"""


@pytest.mark.programs
def test_element_types_are_compared_where_that_is_asked_for(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("WARPMPI_CHECK", "1")
    done = ranks.run_text(tmp_path, CHECKED, ranks=2)
    assert done.count("checked") == 2


def test_else_they_are_not(own):
    into = np.zeros(1)
    sending = own.Isend(np.ones(2, "f4"), 0)
    own.Recv(into, 0)
    sending.Wait()
    assert into.view("f4").tolist() == [1, 1]
