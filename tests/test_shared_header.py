# SPDX-License-Identifier: BSD-3-Clause
"""Signals between ranks are of system scope, which one GPU cannot show."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import warpmpi as wm

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "build_tools"))

import toolchain  # noqa: E402

CUDA = toolchain.find_system_cuda()
pytestmark = pytest.mark.skipif(CUDA is None, reason="needs nvcc")

ALL_CALLS = """
#include <warpmpi/shared.cuh>
extern "C" __global__ void calls(const wm_shared_t *a, wm_shared_word_t *to)
{
    wm_shared_signal(a, 1, 2, 3);
    wm_shared_wait(a, 2, 3);
    *to = wm_shared_peek(a, 1);
    wm_shared_barrier(a);
    wm_shared_barrier_block(a);
}
"""


def compiled(source, target, kind, include=None):
    """PTX, or code of a GPU, of a source."""
    folders = [str(include or wm.include_dir()), str(ROOT / "src")]
    words = [f"-I{folder}" for folder in folders]
    words += ["-std=c++17", "-O3", "-arch=sm_90", f"-{kind}"]
    subprocess.run(
        [CUDA.nvcc, *words, "-o", str(target), str(source)],
        check=True,
        stdin=subprocess.DEVNULL,
        env=dict(os.environ, CUDA_HOME=CUDA.home, LD_PRELOAD=""),
    )
    return target


@pytest.fixture(params=["of the header", "of our kernels"])
def source(request, tmp_path):
    if "kernels" in request.param:
        return ROOT / "src" / "kernels" / "peer_signal.cu"
    path = tmp_path / "calls.cu"
    path.write_text(ALL_CALLS)
    return path


def scopes(ptx):
    """Of each instruction by which ranks signal: its scope."""
    found = re.findall(
        r"\b((?:red|atom|fence)\.[\w.:]+"
        r"|(?:ld\.acquire|st\.release)[\w.:]*)",
        ptx,
    )
    kinds = {word.split(".")[0] for word in found}
    assert {"red", "ld"} <= kinds, kinds
    return {
        word: next((s for s in ("cta", "gpu", "sys") if s in word), "none")
        for word in found
    }


def test_each_signal_is_of_system_scope(source, tmp_path):
    ptx = compiled(source, tmp_path / "x.ptx", "ptx").read_text()
    assert set(scopes(ptx).values()) == {"sys"}
    released = [word for word in scopes(ptx) if "release" in word]
    assert any(word.startswith("red") for word in released)


def test_a_counter_is_added_to_at_once(source, tmp_path):
    """A rank's blocks and streams may signal one slot at the same time."""
    ptx = compiled(source, tmp_path / "x.ptx", "ptx").read_text()
    kinds = {word.split(".")[0] for word in scopes(ptx)}
    assert kinds <= {"red", "ld", "fence"}, kinds


def test_a_smaller_scope_is_noticed(source, tmp_path):
    """The test above fails if the header's scope is taken away."""
    header = Path(wm.include_dir(), "warpmpi", "shared.cuh").read_text()
    folder = tmp_path / "include" / "warpmpi"
    folder.mkdir(parents=True)
    for words in (".release.sys", ".acquire.sys"):
        smaller = header.replace(words, words.replace("sys", "gpu"))
        assert smaller != header
        (folder / "shared.cuh").write_text(smaller)
        target = tmp_path / "x.ptx"
        ptx = compiled(source, target, "ptx", folder.parent).read_text()
        assert "gpu" in scopes(ptx).values()


def disassembler():
    beside = Path(CUDA.nvcc).with_name("cuobjdump")
    return str(beside) if beside.exists() else shutil.which("cuobjdump")


def test_machine_code_has_the_scope(source, tmp_path):
    tool = disassembler()
    if tool is None:
        pytest.skip("needs cuobjdump")
    code = compiled(source, tmp_path / "x.cubin", "cubin")
    text = subprocess.run(
        [tool, "-sass", str(code)], capture_output=True, text=True, check=True
    ).stdout
    lines = [line for line in text.splitlines() if ";" in line]
    atomics = [
        line for line in lines if re.search(r"\b(?:REDG?|ATOMG?)\.", line)
    ]
    assert atomics
    assert all(".STRONG.SYS" in line for line in atomics), atomics
    fences = [line for line in lines if "MEMBAR" in line]
    assert fences and all(".SYS" in line for line in fences), fences
    strong = [line for line in lines if ".STRONG." in line]
    assert all(".STRONG.SYS" in line for line in strong), strong
