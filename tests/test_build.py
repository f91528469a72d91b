# SPDX-License-Identifier: BSD-3-Clause
"""The build compiles what changed, and says what it lacks; suites run once."""

import functools
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
import types
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "build_tools"), str(ROOT / "tests")]

import abi  # noqa: E402
import backend  # noqa: E402
import kernels  # noqa: E402
import objects  # noqa: E402
import progress  # noqa: E402
import pytest_main  # noqa: E402
import run  # noqa: E402
import sources  # noqa: E402
import toolchain  # noqa: E402

CC = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC"))


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Two sources of one name; one includes a header with a space in it."""
    for path, text in {
        "src/comm/a/way.c": '#include "a b.h"\nint a = B;\n',
        "src/comm/a/a b.h": '#include "c.h"\n#define B C\n',
        "src/comm/a/c.h": "#define C 1\n",
        "src/comm/b/way.c": "int b;\n",
        "maker": "",
    }.items():
        Path(tmp_path, path).parent.mkdir(parents=True, exist_ok=True)
        Path(tmp_path, path).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def compiled():
    """Which of the two was compiled just now."""
    result = []
    for source in ("src/comm/a/way.c", "src/comm/b/way.c"):
        if not objects.is_current("build", source, "maker"):
            objects.compile_one("build", source, CC)
            result.append(Path(source).parent.name)
    return result


def touch(path, text=None):
    time.sleep(0.02)  # more than a file's clock ticks
    Path(path).write_text(Path(path).read_text() if text is None else text)


def test_a_header_recompiles_exactly_what_includes_it(tree):
    assert compiled() == ["a", "b"]
    assert compiled() == []
    for header in ("src/comm/a/a b.h", "src/comm/a/c.h"):
        touch(header)
        assert compiled() == ["a"]
        assert compiled() == []
    touch("src/comm/b/way.c")
    assert compiled() == ["b"]
    touch("maker")
    assert compiled() == ["a", "b"]


def test_a_header_that_is_gone_is_no_longer_relied_on(tree):
    compiled()
    Path("src/comm/a/c.h").unlink()
    touch("src/comm/a/a b.h", "#define B 2\n")
    assert compiled() == ["a"]
    Path("src/comm/a/a b.h").unlink()
    with pytest.raises(toolchain.ToolchainError, match=r"way\.c"):
        compiled()


def test_what_is_saved_while_it_is_compiled_is_compiled_again(tree):
    slow = tree / "cc"
    slow.write_text(
        f'#!/bin/sh\n{shlex.join(CC)} "$@" && echo "int b;" >src/comm/b/way.c'
    )
    slow.chmod(0o755)
    source = "src/comm/b/way.c"
    objects.compile_one("build", source, [str(slow)])
    assert objects.object_of("build", source).is_file()
    assert not objects.is_current("build", source)


def test_a_failed_compilation_leaves_what_was(tree):
    compiled()
    before = objects.object_of("build", "src/comm/b/way.c").read_bytes()
    touch("src/comm/b/way.c", "no C\n")
    for _ in range(2):
        with pytest.raises(toolchain.ToolchainError, match="way"):
            compiled()
    made = objects.object_of("build", "src/comm/b/way.c")
    assert made.read_bytes() == before


def test_sources_lie_in_any_folder_of_a_layer(tmp_path):
    for path in (
        *("cuda/lock.c", "array/lock.c", "comm/protocol/lock.c", "comm/op.c"),
        *("python/core/a/b.c", "kernels/copy.cu", "comm/.#op.c", "comm/op.h"),
    ):
        Path(tmp_path, "src", path).parent.mkdir(parents=True, exist_ok=True)
        Path(tmp_path, "src", path).touch()
    assert sources.c_files(tmp_path) == [
        *("src/cuda/lock.c", "src/array/lock.c", "src/comm/op.c"),
        *("src/comm/protocol/lock.c", "src/python/core/a/b.c"),
    ]
    Path(tmp_path, "src/array/lock.c").unlink()
    with pytest.raises(
        toolchain.ToolchainError, match=r"src/array .*complete"
    ):
        sources.c_files(tmp_path)


CUDA = toolchain.find_cuda()


def test_lines_of_kernels_are_known_on_request_only(monkeypatch):
    monkeypatch.delenv("WARPMPI_LINEINFO", raising=False)
    assert "-lineinfo" not in kernels.options(CUDA, [90], False)
    monkeypatch.setenv("WARPMPI_LINEINFO", "1")
    assert "-lineinfo" in kernels.options(CUDA, [90], False)


def test_the_front_end_runs_once_but_for_clusters():
    options = kernels.options(CUDA, [75, 80, 90, 100], False)
    assert [o for o in options if o.startswith("-gencode")] == [
        "-gencode=arch=compute_75,code=[sm_75,sm_80,sm_90,sm_100,compute_75]"
    ]
    options = kernels.options(CUDA, [75, 80, 90, 100], True)
    assert [o for o in options if o.startswith("-gencode")] == [
        "-gencode=arch=compute_75,code=[sm_75,sm_80,compute_75]",
        "-gencode=arch=compute_90,code=[sm_90,sm_100,compute_90]",
    ]
    options = kernels.options(CUDA, [], True)
    assert "-gencode=arch=compute_75,code=compute_75" in options
    made = [f for f in sources.kernels(ROOT) if kernels.makes_clusters(f)]
    assert "src/kernels/eager_ll.cu" in made
    assert "src/kernels/simple.cu" not in made


def test_a_file_of_kernels_is_compiled_when_it_changes(tmp_path, monkeypatch):
    """And none that does not include what has changed."""
    compiled = []

    def compile_one(cuda, source, words, binary):
        compiled.append(Path(source).name)
        binary.write_text(source)

    monkeypatch.setattr(kernels, "_compile", compile_one)
    monkeypatch.setenv("WARPMPI_CUDA_ARCHS", "90")
    folder = tmp_path / "src" / "kernels"
    folder.mkdir(parents=True)
    (folder / "a.h").write_text("int a;\n")
    (folder / "b.h").write_text('#include "kernels/a.h"\n')
    (folder / "one.cu").write_text('#include "kernels/b.h"\n')
    (folder / "two.cu").write_text("int two;\n")
    files = [str(folder / "one.cu"), str(folder / "two.cu")]

    def build():
        compiled.clear()
        with ThreadPoolExecutor(2) as pool:
            kernels.begin(CUDA, files, str(tmp_path / "made"), pool)()
        return sorted(compiled)

    assert build() == ["one.cu", "two.cu"]
    assert build() == []
    (folder / "a.h").write_text("long a;\n")
    assert build() == ["one.cu"]
    monkeypatch.setenv("WARPMPI_CUDA_ARCHS", "80")
    assert build() == ["one.cu", "two.cu"]


def test_native_kernels_are_for_the_gpus_that_are_here(monkeypatch):
    monkeypatch.setenv("WARPMPI_CUDA_ARCHS", "native")
    known = [a for a in kernels.ARCHITECTURES if a >= 80]
    monkeypatch.setattr(kernels, "_known_to", lambda cuda: known)
    for here, wanted in (
        ([], []),
        ([90, 80, 90], [80, 90]),
        ([103, 89], [80, 100]),
        ([75], [75]),  # for nvcc to say
    ):
        monkeypatch.setattr(kernels, "gpus", lambda here=here: here)
        assert kernels.architectures(CUDA) == wanted


def test_the_driver_tells_what_gpus_are_here():
    import warpmpi as wm

    found = kernels.gpus()
    assert len(found) == len(wm.get_cuda_devices())
    assert all(50 <= each < 200 for each in found), found


def test_the_abi_is_read_from_mpi_h(tmp_path, monkeypatch):
    mpicc = tmp_path / "mpicc"
    mpicc.write_text(f"#!/bin/sh\necho gcc -I{tmp_path} -DMINE -lmpi\n")
    mpicc.chmod(0o755)
    monkeypatch.setenv("MPICC", str(mpicc))
    for macro, name in (
        ("OPEN_MPI", "openmpi"),
        ("MPICH_VERSION", "mpich"),
        ("I_MPI_VERSION", "mpich"),
        ("MPI_ABI_VERSION", "mpiabi"),
    ):
        (tmp_path / "mpi.h").write_text(
            f"#ifdef MINE\n#define {macro} 1\n#endif\n"
        )
        monkeypatch.setenv("WARPMPI_ABIS", "installed")
        [found] = abi.find(every=True)
        assert (found.name, found.include_dirs) == (name, [str(tmp_path)])
        monkeypatch.delenv("WARPMPI_ABIS")
        assert abi.find(every=False) == [found]
    (tmp_path / "mpi.h").write_text("#define LAM_MPI 1\n")
    with pytest.raises(toolchain.ToolchainError, match="neither Open MPI's"):
        abi.find(every=False)


def test_a_wheel_has_every_abi(monkeypatch):
    fetched = []
    here = abi.Abi("mpich", "mpicc", ["/mpich"])
    monkeypatch.setattr(abi, "_installed", lambda: here)
    monkeypatch.setattr(
        abi, "_fetch", lambda package, folder: fetched.append(package)
    )
    monkeypatch.setattr(abi, "FOLDER", "/nowhere")
    monkeypatch.delenv("WARPMPI_ABIS", raising=False)
    assert [each.name for each in abi.find(every=True)] == list(abi.PACKAGES)
    assert fetched == ["openmpi>=5,<6", "mpich>=5,<6"]
    monkeypatch.setenv("WARPMPI_ABIS", "mpich")
    assert abi.find(every=True) == [here]
    for wrong in ("mpi", "mpich installed"):
        monkeypatch.setenv("WARPMPI_ABIS", wrong)
        with pytest.raises(toolchain.ToolchainError, match="WARPMPI_ABIS is"):
            abi.find(every=True)


FAKE_PYTHON = """#!/bin/sh
case "$*" in
    *version_info*) echo VERSION ;;
    *" sdist "*)
        mkdir -p tree build/dist
        tar -czf build/dist/warpmpi-2.tar.gz tree ;;
    *" bdist_wheel "*) touch ../warpmpi-2-cpVERSION.whl ;;
esac
"""


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Runs the Makefile with Pythons that make empty distributions."""
    for name in ("Makefile", "pyproject.toml", "build_tools"):
        (tmp_path / name).symlink_to(ROOT / name)
    for name in ("PYTHON", "VENV", "MAKEFLAGS", "MAKELEVEL"):
        monkeypatch.delenv(name, raising=False)
    for path, version in {
        "python3.98": "3.98",
        "python3.99": "3.99",
        ".venv/bin/python": "3.98",
        ".venv-3.99/bin/python": "3.99",
    }.items():
        python = tmp_path / path
        python.parent.mkdir(parents=True, exist_ok=True)
        python.write_text(FAKE_PYTHON.replace("VERSION", version))
        python.chmod(0o755)
    for folder in tmp_path.glob(".venv*"):
        (folder / ".made").touch()
        (folder / ".build-tools").touch()

    def run(*words):
        done = subprocess.run(
            ["make", *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stdout + done.stderr

    run.folder = tmp_path
    return run


def test_a_wheel_is_for_the_python_that_is_asked_for(make):
    """And the wheels of others, which are in dist/ as well, stay."""
    for words, made in (
        ([], "warpmpi-2-cp3.98.whl"),
        (["PYTHON=./python3.99"], "warpmpi-2-cp3.99.whl"),
        (["PYTHON=./python3.98"], "warpmpi-2-cp3.98.whl"),
    ):
        status, told = make("wheel", *words)
        assert status == 0, told
        assert told.splitlines()[-1] == f"dist/{made}"
    assert sorted(os.listdir(make.folder / "dist")) == [
        *("warpmpi-2-cp3.98.whl", "warpmpi-2-cp3.99.whl"),
        "warpmpi-2.tar.gz",
    ]


def test_an_environment_of_another_python_is_refused(make):
    status, told = make("wheel", "PYTHON=./python3.99", "VENV=.venv")
    assert status != 0
    assert ".venv is of Python 3.98, and PYTHON is ./python3.99: set" in told
    status, told = make("wheel", "PYTHON=python3.97")
    assert status != 0
    assert "warpmpi: python3.97 does not run: install it" in told


UNSHARE = ["unshare", *["--map-root-user"] * (os.geteuid() != 0), "--mount"]


@pytest.mark.skipif(
    not shutil.which("unshare") or subprocess.call([*UNSHARE, "true"]) != 0,
    reason="no mount namespaces",
)
def test_ci_hides_the_mpi_of_the_machine(tmp_path):
    mpirun = tmp_path / "mpirun"
    mpirun.write_text("#!/bin/sh\necho seen\n")
    mpirun.chmod(0o755)
    done = subprocess.run(
        [ROOT / ".ci" / "without-mpi", "sh", "-c", "echo run; mpirun"],
        cwd=ROOT,
        env={**os.environ, "PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "run\n", done.stderr
    assert "seen" in subprocess.check_output([mpirun], text=True)


def test_a_line_tells_what_still_runs(capsys, monkeypatch):
    monkeypatch.setattr(progress, "SECONDS", 0.02)
    told = threading.Event()
    say = progress.say

    def says(text):
        say(text)
        told.set()

    monkeypatch.setattr(progress, "say", says)
    with progress.doing("making one"), progress.doing("making two"):
        assert told.wait(30)
    line = capsys.readouterr().out.splitlines()[0]
    assert re.fullmatch(
        r"warpmpi: still making one, making two \[\d+ s\]", line
    )
    command = [sys.executable, progress.__file__, "what", "sh", "-c", "exit 3"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    assert (done.returncode, done.stdout) == (3, "what\n")


PIP = """
import subprocess, sys
build = "import progress; progress.under_pip = True; progress.say('made')"
subprocess.run([sys.executable, "-c", build], stdout=subprocess.PIPE)
print("Successfully", file=sys.stderr)
"""


TAKE = """
import ctypes, os
parent = os.pidfd_open(os.getppid())
raise SystemExit(ctypes.CDLL(None).syscall(438, parent, 2, 0) < 0)
"""


def test_a_log_of_pip_has_the_lines_of_the_build(tmp_path):
    if subprocess.call([sys.executable, "-c", TAKE]) != 0:
        pytest.skip("no process may take its parent's descriptors")
    log = tmp_path / "log"
    with log.open("w") as file:
        subprocess.run(
            [sys.executable, "-c", PIP],
            env={**os.environ, "PYTHONPATH": str(ROOT / "build_tools")},
            stdin=subprocess.DEVNULL,
            stderr=file,
            start_new_session=True,  # no terminal
            check=True,
        )
    assert log.read_text() == "warpmpi: made [0 s]\nSuccessfully\n"


@pytest.fixture
def no_toolkit(monkeypatch):
    monkeypatch.setattr(toolchain, "_cuda_at", lambda nvcc: None)
    monkeypatch.setenv("WARPMPI_CUDA", "")
    return monkeypatch


def test_a_compiler_is_asked_for_where_none_is(no_toolkit):
    needs = backend.get_requires_for_build_wheel()
    assert set(toolchain.CUDA_WHEELS) <= set(needs)


def test_no_registry_is_asked_where_it_must_not_be(no_toolkit):
    no_toolkit.setenv("WARPMPI_CUDA", "installed")
    asked = (
        backend.get_requires_for_build_wheel,
        backend.get_requires_for_build_editable,
        lambda: backend.main([]),
    )
    cure = "set CUDA_HOME to it, or unset WARPMPI_CUDA"
    for ask in asked:
        with pytest.raises(SystemExit, match=cure):
            ask()
    with pytest.raises(toolchain.ToolchainError, match=cure):
        toolchain.find_cuda()


@pytest.mark.parametrize("choice", ["", "installed"])
def test_nothing_is_asked_for_where_a_toolkit_is(
    monkeypatch, tmp_path, choice
):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvcc").touch()
    found = toolchain.Cuda("nvcc", [], (13, 0), str(tmp_path))
    monkeypatch.setattr(toolchain, "_cuda_at", lambda nvcc: found)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setenv("WARPMPI_CUDA", choice)
    assert not set(toolchain.CUDA_WHEELS) & set(
        backend.get_requires_for_build_wheel()
    )


def test_formatters_of_a_commit_are_those_of_lint():
    project = (ROOT / "pyproject.toml").read_text()
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    pinned = re.findall(r"\b(?:ruff|clang-format)==[\d.]+", hooks)
    assert {each.split("==")[0] for each in pinned} == {"ruff", "clang-format"}
    for each in pinned:
        assert f'"{each}"' in project


def parts_of_a_suite(items, share, parts):
    """What the parts of a suite keep, and no part keeps and leaves out."""

    class Config:
        def getoption(self, name):
            return {"--part": part, "--share": share}[name]

        hook = types.SimpleNamespace(
            pytest_deselected=lambda items: left_out.extend(items)
        )

    kept = []
    for which in range(1, parts + 1):
        own, left_out, part = list(items), [], f"{which}/{parts}"
        pytest_main.Parts().pytest_collection_modifyitems(Config(), own)
        assert len(own) + len(left_out) == len(items)
        assert {*own, *left_out} == {*items}
        kept += own
    return kept


class Item:
    """A parameter of a test."""

    path = Path("test_any.py")

    def __init__(self, name, ranks=1):
        self.originalname, self.ranks = name, ranks

    def iter_markers(self, name):
        return [types.SimpleNamespace(args=(self.ranks,))]


def test_parts_of_a_suite_have_each_test_once():
    items = [Item(f"test_{i // 2}") for i in range(40)]
    for parts in (1, 2, 3):
        kept = parts_of_a_suite(items, 1, parts)
        assert len(kept) == len(items) and {*kept} == {*items}


def test_a_share_of_a_suite_has_all_parameters_of_a_test():
    items = [Item(f"test_{i // 2}") for i in range(400)]
    many = Item("test_of_many", 3)
    kept = parts_of_a_suite([*items, many], 4, 2)
    assert many in kept
    kept.remove(many)
    names = Counter(item.originalname for item in kept)
    assert set(names.values()) == {2}
    assert 25 < len(names) < 100


def test_suites_in_lanes_all_run_once(capsys):
    def suite(number, out):
        print(f"output {number}", file=out, flush=True)
        bad = ["why"] if number == 4 else []
        return Counter(passed=number, failed=len(bad)), bad

    suites = [(f"suite {n}", functools.partial(suite, n)) for n in range(9)]
    done = run.Lanes(suites).run()
    assert sum((counts for counts, _ in done), Counter())["passed"] == 36
    said = capsys.readouterr().out.splitlines()
    assert [line for line in said if line.startswith("output")] == ["output 4"]
    ends = [line.partition(" ") for line in said if line.startswith("[")]
    assert [number for number, _, _ in ends] == [
        f"[{n}/9]" for n in range(1, 10)
    ]
    assert sorted(text.partition(":")[0] for _, _, text in ends) == [
        title for title, _ in suites
    ]


def test_lanes_tell_how_many_tests_have_ended(capsys, monkeypatch, tmp_path):
    results = tmp_path / "rank0.jsonl"
    told = threading.Event()

    def suite(out):
        results.write_text("one\ntwo\n")
        run._results.add(results)
        assert told.wait(30)
        run._results.discard(results)
        return Counter(passed=2), []

    count = run.lines_of

    def lines_of(path):
        told.set()
        return count(path)

    monkeypatch.setattr(run, "lines_of", lines_of)
    monkeypatch.setattr(run.Lanes, "SECONDS", 0.01)
    run.Lanes([("one", suite)]).run()
    assert re.search(r"^ +\d+ s: 2 tests$", capsys.readouterr().out, re.M)


def test_a_suite_that_raises_ends_the_others(capsys):
    for error in (ZeroDivisionError, IndexError):

        def fail(out, error=error):
            print("said before", file=out, flush=True)
            raise error

        for others in (0, 3):
            ends = [("ends", lambda out: (Counter(), []))] * others
            with pytest.raises(error):
                run.Lanes([("fails", fail), *ends]).run()
            assert "said before" in capsys.readouterr().out


def test_a_failure_is_told_by_its_error_first():
    lines = [*map(str, range(40)), "E   wrong", *map(str, range(40, 50))]
    short = run.shortened(lines)
    assert short[0] == "E   wrong"
    assert short[-1] == "49"
    assert len(short) < 20


def test_starts_are_cheap_and_what_a_user_set_stays(monkeypatch):
    environment = {"PYTHONDONTWRITEBYTECODE": "1", "OMPI_MCA_btl": "self,sm"}
    monkeypatch.setattr(os, "environ", environment)
    run.make_starts_cheap()
    assert "PYTHONDONTWRITEBYTECODE" not in environment
    assert environment["PYTHONPYCACHEPREFIX"].startswith(str(ROOT / "build"))
    assert environment["OMPI_MCA_btl"] == "self,sm"
    environment.clear()
    run.make_starts_cheap()  # bytecode stays where Python has it
    assert environment.keys() == {
        "OPENBLAS_NUM_THREADS",
        "OMPI_MCA_btl",
        "WARPMPI_TUNED",
    }
