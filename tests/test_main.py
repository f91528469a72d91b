# SPDX-License-Identifier: BSD-3-Clause
"""`python -m warpmpi` runs a program as `python` itself does."""

import json
import os
import platform
import py_compile
import re
import shutil
import subprocess
import sys
import zipfile

import pytest

import ranks
import warpmpi as wm

FACTS = """
import os, pickle, sys

class Class:
    pass

for name, value in sorted(globals().items()):
    if name.startswith("__") and name not in ("__annotations__",):
        told = type(value).__name__
        if isinstance(value, (str, type(None))):
            told = value
        print(name, told)
print(sys.argv, sys.path[0])
print(__spec__ and (__spec__.name, __spec__.origin, __spec__.parent))
print(vars(sys.modules["__main__"]) is globals())
assert type(pickle.loads(pickle.dumps(Class()))) is Class
"""


@pytest.fixture
def folder(tmp_path):
    """Programs of all kinds."""
    (tmp_path / "program.py").write_text(FACTS)
    py_compile.compile(str(tmp_path / "program.py"), tmp_path / "code.pyc")
    for name in "package", "package/inner", "directory":
        (tmp_path / name).mkdir()
        shutil.copy(tmp_path / "program.py", tmp_path / name / "__main__.py")
        shutil.copy(tmp_path / "program.py", tmp_path / name / "module.py")
        if name != "directory":
            (tmp_path / name / "__init__.py").touch()
    shutil.copy(tmp_path / "program.py", tmp_path / "basic")
    (tmp_path / "directory/link.py").symlink_to("../program.py")
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.write(tmp_path / "program.py", "__main__.py")
    return tmp_path


def ask(folder, *words):
    """What a Python started with these words prints, and its exit status."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=ranks.clean_environment(PYTHONPATH=str(ranks.ROOT)),
        input=FACTS,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stdout, done.stderr.splitlines()[-1:], done.returncode


@pytest.mark.parametrize("flags", [[], ["-P"]], ids=["", "safe path"])
@pytest.mark.parametrize(
    "program",
    [
        "program.py",
        "./program.py",
        "{folder}/program.py",
        "directory/link.py",
        "code.pyc",
        "basic",
        "directory",
        "archive.zip",
        "-m package",
        "-m package.inner.module",
        "-",
        "-c import_sys;print(__name__,sys.argv,sys.path[0],__package__)",
    ],
)
def test_a_program_sees_what_it_would_see(folder, program, flags):
    if flags and (program.startswith("-m") or sys.version_info < (3, 11)):
        pytest.skip("its folder is not searched, or there is no such flag")
    words = [
        word.replace("import_", "import ").format(folder=folder)
        for word in program.split()
    ]
    plain = ask(folder, *flags, *words, "one", "two")
    assert plain[2] == 0 and plain[0]
    assert ask(folder, *flags, "-m", "warpmpi", *words, "one", "two") == plain


@pytest.mark.parametrize(
    "program", ["nothing.py", "-m nothing", "-m package.nothing", "package/in"]
)
def test_what_is_not_there(folder, program):
    words = program.split()
    assert ask(folder, "-m", "warpmpi", *words) == ask(folder, *words)


def test_a_process_that_it_starts_again(folder):
    """By __file__, from another folder, as programs that spawn do."""
    (folder / "starter.py").write_text(
        "import os, subprocess, sys\n"
        "if len(sys.argv) > 1:\n"
        "    print('child')\n"
        "else:\n"
        "    os.chdir('/')\n"
        "    subprocess.run([sys.executable, __file__, 'child'], check=True)\n"
    )
    assert ask(folder, "-m", "warpmpi", "starter.py")[0] == "child\n"


def test_a_class_of_the_program_in_a_pool(folder):
    (folder / "pool.py").write_text(
        "import multiprocessing\n"
        "class Class:\n"
        "    value = 7\n"
        "def ask(one):\n"
        "    return one.value\n"
        "if __name__ == '__main__':\n"
        "    context = multiprocessing.get_context('spawn')\n"
        "    with context.Pool(1) as pool:\n"
        "        print(pool.map(ask, [Class()]))\n"
    )
    assert ask(folder, "-m", "warpmpi", "pool.py")[0] == "[7]\n"


def about(*flags, reader=True, **environment):
    """What --version prints and says, and its exit status."""
    child = subprocess.Popen(
        [sys.executable, *flags, "-m", "warpmpi", "--version"],
        env=ranks.clean_environment(
            **{"PYTHONPATH": str(ranks.ROOT), **environment}
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    if not reader:
        child.stdout.close()
    with child:
        printed = child.stdout.read() if reader else ""
        errors = child.stderr.read()
    return printed, errors, child.returncode


def test_the_version():
    printed, errors, status = about()
    assert (errors, status) == ("", 0)
    told = dict(line.split(maxsplit=1) for line in printed.splitlines())
    assert set(told) >= {"warpmpi", "NumPy", "MPI", "driver", "kernels"}
    assert told["Python"].startswith(f"{platform.python_version()} (")
    assert told["settings"] != "defaults"  # those of the tests


CONFIG = """
import json, warpmpi, sys
told = warpmpi.show_config(mode="dicts")
json.dump(told, sys.stdout)
assert not warpmpi._core._device_active(warpmpi.get_device())
"""


def test_the_configuration_as_dictionaries(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", CONFIG],
        env=ranks.clean_environment(
            PYTHONPATH=str(ranks.ROOT),
            WARPMPI_HOST="elsewhere",
            WARPMPI_EAGER_LIMIT="65536",
        ),
        capture_output=True,
        text=True,
        check=True,
    )
    told = json.loads(done.stdout)
    assert told["settings"]["WARPMPI_HOST"] == "elsewhere"
    assert "WARPMPI_EAGER_LIMIT" not in told["settings"]  # its default
    assert told["MPI"]["abi"] in told["warpmpi"]["abis"]
    assert told["CUDA"]["kernels"][-1] == "PTX"
    assert len(told["GPUs"]) == wm.get_cuda_device_count()
    for gpu in told["GPUs"]:
        assert re.fullmatch(r"\d+\.\d", gpu["compute_capability"])
        assert gpu["memory"] > 0 and gpu["uuid"].startswith("GPU-")


def test_the_configuration_is_printed(capsys):
    assert wm.show_config() is None
    printed = capsys.readouterr().out
    assert printed.startswith("warpmpi        ") and "\nNumPy " in printed
    with pytest.raises(ValueError, match="mode is 'yaml': give 'stdout'"):
        wm.show_config("yaml")


def test_the_version_does_not_start_mpi(tmp_path):
    """It needs no launcher, and waits for no network."""
    (tmp_path / "sitecustomize.py").write_text(
        "import atexit, sys\n"
        "@atexit.register\n"
        "def tell():\n"
        "    print(sys.modules['mpi4py.MPI'].Is_initialized())\n"
    )
    path = os.pathsep.join([str(tmp_path), str(ranks.ROOT)])
    assert about(PYTHONPATH=path)[0].splitlines()[-1] == "False"


def test_the_version_where_the_reader_leaves():
    assert about(reader=False) == ("", "", 0)


def test_the_version_without_a_gpu(tmp_path):
    driver = str(tmp_path / "none.so")
    printed, _, status = about(WARPMPI_CUDA_DRIVER=driver)
    assert status == 0
    assert re.search(r"\nGPUs +none: no CUDA driver: ", printed)
    assert re.search(r"\ndriver +none \(.*none.so", printed)


@pytest.mark.parametrize(
    ("missing", "told"),
    [
        ("mpi4py", "warpmpi needs mpi4py: `pip install mpi4py`"),
        ("mpi4py.MPI", "mpi4py cannot load an MPI library (no luck): install"),
    ],
)
def test_the_version_without_an_mpi(tmp_path, missing, told):
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {missing!r}:\n"
        "            error = ImportError if '.' in name else "
        "ModuleNotFoundError\n"
        "            raise error('no luck', name=name)\n"
        "sys.meta_path.insert(0, Refuse())\n"
    )
    path = os.pathsep.join([str(tmp_path), str(ranks.ROOT)])
    printed, errors, status = about(PYTHONPATH=path)
    assert status == 1 and "Traceback" not in errors
    assert re.search(rf"\nPython +{platform.python_version()} ", printed)
    assert re.search(r"\nMPI +none: no luck\n", printed)
    assert f"warpmpi cannot be imported: {told}" in errors
