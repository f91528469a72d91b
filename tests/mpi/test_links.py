# SPDX-License-Identifier: BSD-3-Clause
"""A link of tests/toys over files: what any link may rely on."""

import pytest
from mpi4py import MPI

import ranks
import warpmpi as wm
from warpmpi import _core

pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(
        "file" not in _core._links(), reason="built without tests/toys"
    ),
]

PROGRAM = """
    import numpy as np
    from mpi4py import MPI

    import warpmpi as wm

    comm = wm.Comm(MPI.COMM_WORLD)
    other, device = 1 - comm.rank, {device}

    def make(values):
        return values if device is None else wm.array(values, device=device)

    for size in (5000, 300_000, 9_000_001):
        sent = np.arange(size, dtype=np.uint8)
        into = make(np.zeros(size, np.uint8))
        comm.Sendrecv(make(sent), other, 0, into, other, 0)
        came = into if device is None else into.numpy()
        assert (came == sent).all()
        request = comm.Isend(make(sent), comm.rank)
        comm.Recv(into, comm.rank)
        request.Wait()
    stats, told = wm.stats(), wm.transport(comm, other, into)
    print(told.name, stats["file_messages"], stats["file_bytes"], told.reason,
          flush=True)
"""


@pytest.mark.parametrize("device", [None, '"cuda:0"'], ids=["host", "GPU"])
def test_a_link_carries_what_is_not_its_ranks_own(tmp_path, device):
    if device is not None and not wm.is_cuda_available():
        pytest.skip("needs a GPU")
    printed = ranks.run_text(
        tmp_path,
        PROGRAM.format(device=device),
        WARPMPI_TRANSPORT="file",
        TMPDIR=str(tmp_path),
    )
    assert printed.count("file 3 9305001") == 2, printed
    assert not list(tmp_path.glob("warpmpi-link-*"))  # closed


def test_a_link_that_was_asked_for_and_does_not_serve(tmp_path):
    printed = ranks.run_text(
        tmp_path,
        """
        from mpi4py import MPI
        import warpmpi as wm

        try:
            wm.Comm(MPI.COMM_WORLD)
        except RuntimeError as error:
            print(error, flush=True)
        """,
        WARPMPI_TRANSPORT="file",
        TOY_LINK_CLOSED="1",
    )
    told = "WARPMPI_TRANSPORT=file: it does not serve in this process: unset"
    assert printed.count(told) == 2, printed


def test_a_rank_that_cannot_connect(tmp_path):
    """Neither of the two uses the link, and both tell why."""
    text = "import os\nif os.environ.get('{}', '') == '1':\n    {}\n"
    refuses = "".join(
        text.format(name, "os.environ['TOY_LINK_REFUSES'] = '1'")
        for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK")
    )
    program = tmp_path / "program.py"
    program.write_text(
        refuses + ranks.textwrap.dedent(PROGRAM.format(device=None))
    )
    printed = ranks.run(
        program, WARPMPI_TRANSPORT="file", TMPDIR=str(tmp_path)
    )
    assert printed.count("mpi 0 0") == 2, printed


IDLE = """
    import glob, os, time
    from mpi4py import MPI

    import warpmpi as wm

    comm = wm.Comm(MPI.COMM_WORLD)
    assert MPI.Query_thread() == MPI.THREAD_MULTIPLE
    MPI.COMM_WORLD.Barrier()
    folders = sorted(glob.glob(os.environ["TMPDIR"] + "/warpmpi-link-*"))
    assert len(folders) == 2, folders
    ping = os.path.join(folders[MPI.COMM_WORLD.rank], "ping")
    for turn in range(50):  # the thread parks meanwhile
        open(ping + ".part", "w").close()
        os.rename(ping + ".part", ping)
        while os.path.exists(ping):
            time.sleep(0.001)
    MPI.COMM_WORLD.Barrier()
    print("seen", flush=True)
"""


def test_the_progress_thread_sleeps_until_a_link_has_work(tmp_path):
    """No operation is under way, so nobody but the descriptor wakes it."""
    printed = ranks.run_text(
        tmp_path, IDLE, WARPMPI_TRANSPORT="file", TMPDIR=str(tmp_path)
    )
    assert printed.count("seen") == 2, printed


FREED = """
    import glob, os
    from mpi4py import MPI

    import warpmpi as wm

    comm = wm.Comm(MPI.COMM_SELF)
    told = os.environ["TMPDIR"] + "/warpmpi-link-*/freed-*"
    device = wm.get_device("cuda:0")
    array = wm.empty(device.total_memory // 4, "u1", device=device)
    before = len(glob.glob(told))
    del array  # more than is kept
    print("told", len(glob.glob(told)) - before, flush=True)
"""


@pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU")
def test_a_link_is_told_of_memory_before_it_is_freed(tmp_path):
    printed = ranks.run_text(
        tmp_path,
        FREED,
        ranks=1,
        WARPMPI_TRANSPORT="file",
        TMPDIR=str(tmp_path),
    )
    assert "told 1" in printed, printed


DIES = """
    import os
    import numpy as np
    from mpi4py import MPI

    import warpmpi as wm

    MPI.COMM_WORLD.Set_errhandler(MPI.ERRORS_RETURN)
    comm = wm.Comm(MPI.COMM_WORLD)
    array = np.zeros(9_000_000, np.uint8)
    if comm.rank == 1:
        os.environ["TOY_LINK_DIES"] = "1"
        comm.Send(array, 0)
    try:
        comm.Recv(array, 1)
    except MPI.Exception as error:
        assert wm.stats()["file_messages"] == 1
        name = MPI.Get_error_string(error.Get_error_class())
        print("told", "PROC_FAILED" in name, name, flush=True)
    os._exit(0)
"""


@pytest.mark.skipif(
    not MPI.Get_library_version().startswith("Open MPI v5"),
    reason="needs Open MPI 5",
)
def test_a_peer_that_dies_between_two_chunks(tmp_path):
    """MPI has nothing under way with it: the engine asks, and tells all."""
    printed = ranks.run_text(
        tmp_path,
        DIES,
        flags=("--with-ft", "ulfm"),
        died=True,
        WARPMPI_TRANSPORT="file",
        TMPDIR=str(tmp_path),
    )
    assert "told True" in printed, printed
