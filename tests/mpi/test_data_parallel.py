# SPDX-License-Identifier: BSD-3-Clause
"""examples/data_parallel.py: its gradients, steps, words and end."""

import importlib.util
import os
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import ranks
import warpmpi as wm

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAM = ROOT / "examples" / "data_parallel.py"
QUICK = "--samples 1024 --batch 32 --hidden 64 --epochs 4".split()


@pytest.fixture
def example(monkeypatch):
    """The example as a module."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    spec = importlib.util.spec_from_file_location("data_parallel", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def main(example, monkeypatch, capsys):
    """Runs it on the CPU; its status, and what it printed here."""
    monkeypatch.setattr(example, "array_library", lambda: np)

    def run(*words):
        monkeypatch.setattr(sys, "argv", [str(PROGRAM), *map(str, words)])
        try:
            status = example.main()
        except SystemExit as end:
            status = end.code
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def matplotlib(monkeypatch):
    """What matplotlib is to the example; it writes the names of the curves."""

    class Axes:
        xaxis = SimpleNamespace(
            get_major_locator=lambda: SimpleNamespace(set_params=dict)
        )
        set = legend = lambda self, **_: None

        def __init__(self):
            self.curves = []

        def plot(self, x, y, *_, label, **__):
            self.curves.append(f"{label} {len(x)} {len(y)}\n")

    class Figure:
        def subplots(self):
            self.axes = Axes()
            return self.axes

        def savefig(self, path, **_):
            if path.endswith(".doc"):
                raise ValueError("Format 'doc' is not supported")
            Path(path).write_text("".join(self.axes.curves))

    parent, figure = ModuleType("matplotlib"), ModuleType("matplotlib.figure")
    figure.Figure = Figure
    monkeypatch.setitem(sys.modules, "matplotlib", parent)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", figure)


def settings(**changes):
    few = {"samples": 8, "batch": 8, "hidden": [20, 20], "epochs": 1}
    return SimpleNamespace(**{**few, "seed": 3, **changes})


def test_the_gradients_are_those_of_the_loss(example):
    """In float64, along a random direction in each layer."""
    training = example.Training(np, settings(), 0)
    network = training.network
    network.reset(7)
    network.loss = np.zeros(())
    for layer in network.layers:
        layer.weights, layer.gradient = (
            np.zeros((2, *layer.weights.shape)) + layer.weights
        )
        layer.weights[-1] = np.linspace(-0.1, 0.1, layer.weights.shape[1])

    def run():
        """The loss of a batch of ten, eight of them here, and gradients."""
        network.loss.fill(0)
        layers = list(network.backward(training.images, training.targets, 10))
        assert layers == network.layers[::-1]
        return float(network.loss)

    rng = np.random.default_rng(0)
    for layer in network.layers:
        run()
        direction = 1e-6 * rng.standard_normal(layer.weights.shape)
        slope = (layer.gradient * direction).sum()
        values = []
        for _ in range(3):
            values.append(run())
            layer.weights += direction
        assert abs(slope) > 1e-8
        assert (values[2] - values[0]) / 2 == pytest.approx(slope, rel=1e-4)


@pytest.mark.parametrize("way", ["blocking", "overlapped"])
def test_a_step_is_that_of_all_ranks_images(example, world, way):
    """Some steps of all ranks, and of one network on what they have."""
    comm, args = wm.Comm(world), settings()
    mine = example.Training(np, args, comm.rank)
    everyone = [example.Training(np, args, each) for each in range(comm.size)]
    images = np.concatenate([each.images for each in everyone])
    targets = np.concatenate([each.targets for each in everyone])
    reference = everyone[0].network
    mine.network.reset(args.seed)
    reference.reset(args.seed)
    for _ in range(3):
        mine.step(getattr(example, way), comm, np.arange(args.batch))
        total = comm.size * args.batch
        example.alone(None, reference.backward(images, targets, total))
    for layer, expected in zip(
        mine.network.layers, reference.layers, strict=True
    ):
        np.testing.assert_allclose(
            layer.weights, expected.weights, rtol=1e-4, atol=1e-6
        )
        assert layer.weights.dtype == np.float32


def test_ranks_have_images_of_their_own(example):
    one, other = (example.Training(np, settings(), rank) for rank in (0, 1))
    again = example.Training(np, settings(), 0)
    assert np.array_equal(one.images, again.images)
    assert not np.array_equal(one.images, other.images)
    assert np.array_equal(one.targets.sum(axis=1), np.ones(8))


def test_it_learns_and_says_so_once(main, world):
    status, printed, errors = main(*QUICK, "--progress")
    assert status == 0
    if world.rank > 0:
        assert printed == errors == ""
        return
    where, *lines, last = printed.splitlines()
    assert where == f"{world.size} rank(s) on the CPU, with NumPy"
    names = ["alone", "blocking", "overlapped"]
    assert [line.split()[0] for line in lines] == names
    figures = r"\d+\.\d+ ms a step, +\d+ images/s, speed-up +\d+\.\d\d"
    for line in lines:
        assert re.fullmatch(rf"\w+ +{figures}, efficiency +\d+\.\d%", line), (
            line
        )
    accuracy = re.fullmatch(r"test accuracy (\d+\.\d)%.* PASSED", last)
    assert 70 < float(accuracy[1]) <= 100
    bars = re.findall(r"(\w+) +\[(#+) *\] (\d)/4 epochs", errors)
    assert [bar[0] for bar in bars] == [name for name in names for _ in "1234"]
    assert [len(bar[1]) for bar in bars[:4]] == [10, 20, 30, 40]


def test_no_bar_without_a_terminal(main):
    assert main(*QUICK)[::2] == (0, "")


def test_one_who_guesses_fails(example, main, monkeypatch, world):
    monkeypatch.setattr(example, "RATE", 0.0)
    status, printed, _ = main(*QUICK)
    assert status == 1
    assert printed.endswith("50% wanted: FAILED\n") == (world.rank == 0)


@pytest.mark.parametrize(
    "few",
    [
        ("--samples", 10, "--batch", 10, "--epochs", 1),
        ("--samples", 1000, "--batch", 1000, "--epochs", 5),
        ("--samples", 100, "--batch", 10, "--epochs", 50),
    ],
)
def test_nobody_learns_in_a_few_steps(main, world, few):
    status, printed, _ = main(*few, "--hidden", 16)
    assert status == 0
    told = "none wanted of so few images or steps: PASSED\n"
    assert printed.endswith(told) == (world.rank == 0)


@pytest.mark.ranks(2)
def test_weights_that_differ_are_seen(example, main, monkeypatch, world):
    """As if the sums of one way had been forgotten."""

    def overlapped(comm, backward):
        example.alone(comm, backward)

    monkeypatch.setattr(example, "overlapped", overlapped)
    status, printed, _ = main(*QUICK)
    assert status == 1
    if world.rank == 0:
        bad = [line for line in printed.splitlines() if "DIFFER" in line]
        assert [line.split()[0] for line in bad] == ["overlapped"]
        assert printed.endswith("FAILED\n")


def test_losses_are_drawn(main, matplotlib, world, tmp_path):
    path = world.bcast(tmp_path) / "losses.png"
    status, printed, _ = main(*QUICK, "--plot", path)
    assert status == 0
    if world.rank == 0:
        assert f"\npicture in {path}\n" in printed
        names = "alone", "blocking", "overlapped"
        assert path.read_text() == "".join(f"{name} 4 4\n" for name in names)


@pytest.mark.parametrize(
    "words, reason",
    [
        ("--epochs 0", "--epochs: '0' is no number from 1 to a million"),
        ("--batch 1e3", "--batch: '1e3' is no number"),
        ("--hidden 10 -3", "--hidden: '-3' is no number"),
        ("--hidden", "--hidden: expected at least one argument"),
        ("--samples 1000001", "--samples: '1000001' is no number"),
        ("--seed -1", "--seed: '-1' is no number from 0 to a million"),
        ("--batch 9 --samples 8", "--batch 9 is more than --samples 8"),
        ("--quickly", "unrecognized arguments: --quickly"),
        ("--plot losses", "--plot losses: what kind of picture?"),
        ("--plot losses.doc", "--plot losses.doc: Format 'doc' is not"),
        ("--plot /nowhere/losses.png", "No such file or directory"),
    ],
)
def test_what_cannot_be_is_refused(main, matplotlib, world, words, reason):
    status, printed, errors = main(*words.split())
    assert status == 2
    assert printed == ""
    if world.rank == 0:
        assert errors.startswith("data_parallel.py: ")
        assert reason in errors
        assert errors.count("\n") == 1
    else:
        assert errors == ""


def test_a_rank_without_memory_ends_all(example, main, monkeypatch, world):
    def network(*_):
        if world.rank == world.size - 1:
            raise MemoryError

    monkeypatch.setattr(example, "Network", network)
    status, printed, errors = main()
    assert (status, printed) == (2, "")
    assert errors.count("no memory for so many") == (world.rank == 0)


def test_no_matplotlib_is_said_before_the_run(main, monkeypatch, world):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    status, printed, errors = main("--plot", "losses.png")
    assert (status, printed) == (2, "")
    if world.rank == 0:
        assert errors.endswith(
            "--plot needs matplotlib: pip install matplotlib\n"
        )


# Where the GPUs reach each other, and where they do not.
SUMS = """
    import sys
    sys.path.insert(0, EXAMPLES)
    import data_parallel
    from mpi4py import MPI
    import warpmpi as wm

    comm, gradient = wm.Comm(MPI.COMM_WORLD), wm.ones(1000)
    for _ in range(3):
        channel = data_parallel.beside(comm, gradient)
        channel.Iallreduce(MPI.IN_PLACE, gradient).Wait()
    assert channel is not comm and comm.size == 2
    assert (gradient.numpy() == comm.size**3).all()
"""


@pytest.mark.programs
@pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU")
@pytest.mark.parametrize("transport", ["", "host"])
def test_sums_go_on_beside_the_work(tmp_path, transport):
    """Where GPUs do not reach each other as well."""
    text = SUMS.replace("EXAMPLES", repr(str(PROGRAM.parent)))
    ranks.run_text(tmp_path, text, timeout=60, WARPMPI_TRANSPORT=transport)


@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize("cupys", [True, False])
def test_cupy_is_taken_where_both_see_a_gpu(example, monkeypatch, ours, cupys):
    """And told which of them is this rank's."""
    used = []
    cupy = ModuleType("cupy")
    cupy.cuda = SimpleNamespace(
        is_available=lambda: cupys,
        Device=lambda n: SimpleNamespace(use=lambda: used.append(n)),
    )
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(example.wm, "is_cuda_available", lambda: ours)
    device = SimpleNamespace(ordinal=7)
    monkeypatch.setattr(example.wm, "get_device", lambda: device)
    both = ours and cupys
    assert example.array_library() is (cupy if both else np)
    assert used == ([7] if both else [])


def test_no_cupy_is_no_error(example, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert example.array_library() is np


@pytest.mark.programs
@pytest.mark.parametrize("size", [1, 2])
def test_the_program(size):
    gpu = os.environ.get("WARPMPI_TEST_GPU") == "1"
    gpu = gpu and importlib.util.find_spec("cupy") is not None
    hidden = {} if gpu else {"CUDA_VISIBLE_DEVICES": ""}
    printed = ranks.run(PROGRAM, *QUICK, ranks=size, **hidden)
    where = r"\d GPU\(s\), with CuPy" if gpu else "the CPU, with NumPy"
    assert re.match(rf"{size} rank\(s\) on {where}\n", printed), printed
    assert printed.endswith("PASSED\n")
