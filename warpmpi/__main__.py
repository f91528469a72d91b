# SPDX-License-Identifier: BSD-3-Clause
"""Run a program of mpi4py's, unchanged, on GPU arrays.

    mpirun -n 2 python -m warpmpi script.py [argument ...]
    mpirun -n 2 python -m warpmpi -m module [argument ...]
    mpirun -n 2 python -m warpmpi -c 'program' [argument ...]
    mpirun -n 2 python -m warpmpi doctor [--help]
    mpirun -n 2 python -m warpmpi bench allreduce [--help]

When the program imports mpi4py.MPI, warpmpi.install() makes MPI.COMM_WORLD and
all communicators that are made from it take arrays of CuPy, Warp, PyTorch, JAX
and Numba, from GPU to GPU, on any MPI that mpi4py runs on. Calls of MPI.File
and MPI.Win take them, too, and windows may be over GPU memory. Nothing
else changes: settings that the program makes in mpi4py.rc before the import
are used, and the program may call MPI.Init() and MPI.Finalize() itself. An
uncaught exception on one rank ends all ranks, as with `python -m mpi4py`. The
others go on after sys.exit() on one rank, as without -m.

    doctor       examines MPI, hosts and GPUs, moves data between all ranks,
                 and says what is wrong (run a script of that name as ./doctor)
    bench        times messages and collectives, beside NCCL and MPI, and
                 checks them (run a script of that name as ./bench)
    --help, -h   this text
    --version    versions, MPI and its ABI, driver, kernels, GPUs, settings,
                 the source of the switch points, and what is missing; in a
                 program warpmpi.show_config()

Environment: WARPMPI_TRANSPORT=ipc, host, mpi or ucx selects the transport of
GPU memory; docs/environment.md lists the other variables.
"""

from __future__ import annotations

import importlib.util
import os
import pkgutil
import sys
from collections.abc import Sequence
from importlib.machinery import (
    BuiltinImporter,
    ModuleSpec,
    SourceFileLoader,
    SourcelessFileLoader,
)
from types import CodeType, ModuleType
from typing import Any


class Hook:
    """Installs as soon as the program has imported mpi4py.MPI.

    mpi4py reads mpi4py.rc and initializes MPI during that import.
    """

    def __init__(self) -> None:
        # The same again, wherever the program's folder has another one.
        self._package = sys.modules["warpmpi"].__spec__
        self._asking = False
        self._mpi: ModuleType | None = None

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Find the module, and call executed() after its execution."""
        spec = None
        if name == "warpmpi" and self._package is not None:
            spec = importlib.util.spec_from_loader(name, self._package.loader)
        elif name == "mpi4py.MPI" and not self._asking:
            self._asking = True
            try:
                spec = importlib.util.find_spec(name)
            finally:
                self._asking = False
        loader = spec.loader if spec is not None else None
        if loader is not None:
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                del loader.exec_module
                execute(module)
                self.executed(module)

            loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def executed(self, module: ModuleType) -> None:
        """Import this package, and install when it has been imported."""
        if module.__name__ == "warpmpi":
            module.install()
            if module.is_cuda_available():
                module._environment.answer()
            sys.meta_path.remove(self)
        else:
            self._mpi = module
            import warpmpi  # noqa: F401

    def tell_exit(self, status: Any) -> None:
        """Let the other ranks finish, as MPI_Finalize waits for them.

        If they wait for this rank instead, a report says so.
        """
        if self._mpi is None:
            return
        import warpmpi

        warpmpi._endings.note_status(status)
        if status not in (None, 0):
            warpmpi._core._raised(f"SystemExit: {status}")

    def set_abort_status(self, ending: BaseException) -> None:
        """Let all ranks end if this one ends by an exception."""
        from mpi4py import run

        if self._mpi is not None:  # Python forgets it where we have failed
            sys.modules.setdefault("mpi4py.MPI", self._mpi)
        run.set_abort_status(ending)


class Program:
    """The program of the command line runs here as `python` itself runs it.

    Its modules, the paths of its files and the classes that it pickles are
    the same.
    """

    def __init__(self, arguments: list[str]) -> None:
        first = arguments[0]
        sys.argv[:] = arguments
        self.spec: ModuleSpec | None = None
        self.facts: dict[str, Any] = {}
        self.loader: Any = BuiltinImporter
        self.code: CodeType
        if first == "-m":
            self._read_module(arguments[1])
        elif first == "-c":
            del sys.argv[1]
            self._read_text("<string>", arguments[1])
        elif first == "-":
            self._read_text("<stdin>", sys.stdin.read())
            self.facts = {"__file__": "<stdin>", "__cached__": None}
        elif os.path.isdir(first) or not self._is_file(first):
            self._read_folder(first)
        else:
            self._read_file(first)

    @staticmethod
    def _is_file(path: str) -> bool:
        """Tell a file of Python's from an archive of modules, or neither."""
        importer = pkgutil.get_importer(path)
        return importer is None or not hasattr(importer, "find_spec")

    @staticmethod
    def _search_first(folder: str) -> None:
        if not getattr(sys.flags, "safe_path", sys.flags.isolated):
            sys.path[0] = folder

    def _read_text(self, name: str, text: str) -> None:
        self._search_first("")
        self.code = compile(text, name, "exec", dont_inherit=True)

    def _read_file(self, path: str) -> None:
        full = os.path.join(os.getcwd(), path)
        kind = (
            SourcelessFileLoader if path.endswith(".pyc") else SourceFileLoader
        )
        self.loader = kind("__main__", full)
        self.facts = {"__file__": full, "__cached__": None}
        self._search_first(os.path.dirname(os.path.realpath(path)))
        if isinstance(self.loader, SourceFileLoader):
            try:
                text = self.loader.get_data(full)
            except OSError as error:
                print(
                    f"{sys.executable}: can't open file {full!r}: "
                    f"[Errno {error.errno}] {error.strerror}",
                    file=sys.stderr,
                )
                sys.exit(2)
            self.code = self.loader.source_to_code(text, full)
        else:
            self.code = self.loader.get_code("__main__")

    def _read_folder(self, path: str) -> None:
        full = os.path.abspath(path)
        sys.path[:1] = [full]
        importer: Any = pkgutil.get_importer(full)
        spec = importer.find_spec("__main__")
        if spec is None:
            sys.exit(f"{sys.executable}: can't find '__main__' in {path!r}")
        self._read_spec(spec)

    def _read_module(self, name: str) -> None:
        sys.argv[:2] = ["-m"]
        try:
            spec = importlib.util.find_spec(name)
            if (
                spec is not None
                and spec.submodule_search_locations is not None
            ):
                spec = importlib.util.find_spec(f"{name}.__main__")
        except (ImportError, ValueError) as error:
            sys.exit(f"{sys.executable}: {name}: {error}")
        if spec is None:
            sys.exit(f"{sys.executable}: No module named {name}")
        self._read_spec(spec)
        sys.argv[0] = spec.origin or name

    def _read_spec(self, spec: ModuleSpec) -> None:
        code = spec.loader.get_code(spec.name)  # type: ignore[union-attr]
        if code is None:
            sys.exit(f"{sys.executable}: No code object for {spec.name}")
        self.spec, self.loader, self.code = spec, spec.loader, code
        self.facts = {"__file__": spec.origin, "__cached__": spec.cached}

    def run(self) -> None:
        """Run the program as the module __main__, which stays in place."""
        module = sys.modules["__main__"] = ModuleType("__main__")
        package = self.spec.parent if self.spec is not None else None
        module.__spec__, module.__loader__ = self.spec, self.loader
        module.__package__ = package
        vars(module).update(self.facts, __builtins__=sys.modules["builtins"])
        exec(self.code, vars(module))


def main() -> None:
    """Run the program that the command line names."""
    # Before warpmpi, which may not be importable.
    from warpmpi import _about

    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        _about.show(__doc__.strip())
        sys.exit(0 if arguments else 2)
    if arguments[0] == "--version":
        sys.exit(_about.show_version())
    if arguments[0] == "doctor":
        from warpmpi import _doctor

        sys.exit(_doctor.main(arguments[1:]))
    if arguments[0] == "bench":
        from warpmpi import _bench

        sys.exit(_bench.main(arguments[1:]))
    hook = Hook()
    if not hasattr(sys.modules["warpmpi"], "install"):
        del sys.modules["warpmpi"]  # an empty namespace, which the import left
    if arguments[0].startswith("-") and arguments[0] not in ("-m", "-c", "-"):
        sys.exit(
            f"python -m warpmpi: no option {arguments[0]}: give a script, "
            "-m module or -c program (see --help)"
        )
    if arguments[0] in ("-m", "-c") and len(arguments) < 2:
        sys.exit(f"python -m warpmpi: {arguments[0]} needs an argument")
    sys.meta_path.insert(0, hook)
    try:
        if "mpi4py.MPI" in sys.modules:
            import warpmpi

            warpmpi.install()
        Program(arguments).run()
    except SystemExit as ending:
        hook.tell_exit(ending.code)
        raise
    except BaseException as ending:
        hook.set_abort_status(ending)
        raise


if __name__ == "__main__":
    main()
