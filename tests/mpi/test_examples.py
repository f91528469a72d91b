# SPDX-License-Identifier: BSD-3-Clause
"""The examples check their own results, and say so, or what they lack."""

import importlib.util

import pytest

import pages
import ranks
import warpmpi as wm

EXAMPLES = ranks.ROOT / "examples"
pytestmark = pytest.mark.programs
CPU = {"WARPMPI_CUDA_DRIVER": "/no/driver"}  # Warp knows of no other


needs_warp = pytest.mark.skipif(
    importlib.util.find_spec("warp") is None, reason="needs Warp"
)

# What each prints last, and the words that run it.
SHORT = {
    "ring.py": "has seen",
    "halo.py": "in the middle",
    "kmeans.py": "points with",
    "average_gradients.py": "have the same weights, and the right ones",
    "pipeline.py": "went through",
    "gather_plot.py": " @@",
    "captured_graph.py": "10 launches",
    "unchanged.py": "right",
}


def words_of(name):
    unchanged = ["-m", "warpmpi"] if name == "unchanged.py" else []
    return [*unchanged, EXAMPLES / name]


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("name", sorted(SHORT.keys() - {"captured_graph.py"}))
def test_short_example_on_the_cpu(name, count):
    printed = ranks.run(*words_of(name), ranks=count, **CPU)
    assert SHORT[name] in printed
    assert "with cupy" not in printed


@pytest.mark.parametrize("name", sorted(SHORT))
def test_short_example_on_gpus(name):
    """With CuPy, or what stands for it on the simulated driver."""
    told = pages.with_cupy()
    if told is None:
        pytest.skip("needs CuPy")
    printed = ranks.run(*words_of(name), ranks=2, **told)
    assert SHORT[name] in printed
    assert "with numpy" not in printed


def test_program_of_mpi4py_runs_without_warpmpi():
    assert "right" in ranks.run(EXAMPLES / "unchanged.py", ranks=2)


def test_every_example_has_a_place_in_the_gallery():
    text = (ranks.ROOT / "docs" / "examples.md").read_text()
    for path in EXAMPLES.glob("*.py"):
        assert f"../examples/{path.name}" in text


LACKING = """
    import runpy, sys

    sys.modules["warp"] = sys.modules["cupy"] = None
    try:
        runpy.run_path(sys.argv.pop(1), run_name="__main__")
    except SystemExit as end:
        print("ended with", end, flush=True)
"""


def test_captured_graph_says_what_it_lacks(tmp_path):
    example = EXAMPLES / "captured_graph.py"
    printed = ranks.run_text(tmp_path, LACKING, example, ranks=1)
    assert "ended with captured_graph.py needs a GPU and CuPy" in printed


@pytest.mark.parametrize("name", ["jacobi.py", "heat3d.py"])
def test_without_warp_they_say_what_to_install(tmp_path, name):
    printed = ranks.run_text(tmp_path, LACKING, EXAMPLES / name, ranks=1)
    assert "pip install warp-lang" in printed


def test_simple_ipc_says_where_its_arrays_are_and_why(tmp_path):
    words = (EXAMPLES / "simple_ipc.py", "--count", 1001)
    printed = ranks.run_text(tmp_path, LACKING, *words, ranks=1)
    assert "1 rank, arrays of 0.0 MB in the memory of the host, as" in printed
    assert "there is no peer" in printed and "GB/s" not in printed
    assert "ended with 0" in printed
    lacks = "CuPy is not" if wm.is_cuda_available() else "no GPU"
    assert lacks in printed


@needs_warp
@pytest.mark.parametrize("count", [1, 2, 3])
def test_jacobi_is_correct(count):
    words = (EXAMPLES / "jacobi.py", "-nx", 65, "-ny", 67, "-niter", 60)
    printed = ranks.run(*words, ranks=count, **CPU)
    assert "largest difference to one rank 0: correct" in printed


@needs_warp
@pytest.mark.parametrize("count", [1, 2, 3])
def test_heat_is_correct(count):
    words = (EXAMPLES / "heat3d.py", "-n", 17, "-niter", 100)
    printed = ranks.run(*words, ranks=count, **CPU)
    assert ": correct" in printed


@needs_warp
@pytest.mark.parametrize(
    "words", [("jacobi.py", "-nx", 9, "-ny", 9), ("heat3d.py", "-n", 9)]
)
def test_they_draw_what_they_have_computed(words, tmp_path):
    pytest.importorskip("matplotlib")
    name, *sizes = words
    picture = tmp_path / "picture.png"
    sizes += ["-niter", 4, "--plot", picture]
    printed = ranks.run(EXAMPLES / name, *sizes, ranks=2, **CPU)
    assert f"picture in {picture}" in printed
    assert picture.read_bytes().startswith(b"\x89PNG")
