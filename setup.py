# SPDX-License-Identifier: BSD-3-Clause
"""Builds the core, once for each ABI of MPI, and the kernels.

warpmpi/_core.<abi>.<python>.so and warpmpi/_kernels.so, which those are linked
with; libmpi is in the process before them (warpmpi/_library.py). Everything
declarative is in pyproject.toml.

Environment: MPICC, CC, CFLAGS, CUDA_HOME as usual.

WARPMPI_ABIS        the ABIs: some of "openmpi mpich mpiabi", or `installed`,
                    that of this machine's mpicc, so that no registry is asked.
                    A wheel has all, what is built in place has the last
WARPMPI_CUDA        which CUDA compiler: a toolkit's folder; `registry`, the
                    registry's wheels; `installed`, what is there, so that no
                    registry is asked for one
WARPMPI_CUDA_ARCHS  what to compile the kernels for: "80 90", or `native`, the
                    machine's GPUs; without one, PTX for the driver to compile
WARPMPI_LINEINFO=1  the kernels and the core know their source lines, for
                    debuggers and profilers; they take twice the room, and the
                    core a third more time to compile
WARPMPI_KERNELS     a folder that keeps compiled kernels, for several trees
WARPMPI_WERROR=1    warnings are errors
WARPMPI_SANITIZE    address,undefined and the like instrument the C code
WARPMPI_TOYS=1      the core has the toys of tests/toys as well, for tests
"""

import hashlib
import os
import platform
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, __version__, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "build_tools"))

import abi  # noqa: E402
import kernels  # noqa: E402
import links  # noqa: E402
import objects  # noqa: E402
import progress  # noqa: E402
import sources  # noqa: E402
import toolchain  # noqa: E402

# What decides how a file is compiled, besides the flags.
MAKERS = ("setup.py", "build_tools/objects.py")
KERNELS = "warpmpi._kernels"
ON_GLIBC = platform.libc_ver()[0] == "glibc"
SANITIZE = [f"-fsanitize={os.environ.get('WARPMPI_SANITIZE')}"]
SANITIZE += ["-fno-omit-frame-pointer", "-fno-sanitize-recover=all"]
SANITIZE *= bool(os.environ.get("WARPMPI_SANITIZE"))
TOYS = os.environ.get("WARPMPI_TOYS") == "1"


def core(name):
    """The extension for an ABI; its file has a dot in place of the hyphen."""
    return f"warpmpi._core-{name}"


class BuildCore(build_ext):
    """Finds the toolchain, compiles in parallel and only what changed."""

    def get_ext_filename(self, fullname):
        # With its package, or without.
        if fullname in (KERNELS, KERNELS.rpartition(".")[2]):
            return fullname.replace(".", "/") + ".so"
        return super().get_ext_filename(fullname).replace("_core-", "_core.")

    def get_export_symbols(self, ext):
        return []

    def run(self):
        self.editable = self.inplace  # which setuptools hides meanwhile
        self.pending = []
        try:
            toolchain.check_python_headers()
            toolchain.check_compilers()
            self.abis = abi.find(every=not self.inplace)
            # The kernels first: the others are linked with them.
            names = [KERNELS, *(core(each.name) for each in self.abis)]
            self.extensions = [self._extension(name) for name in names]
            super().run()
        except toolchain.ToolchainError as error:
            # One sentence, not a traceback.
            sys.exit(f"\nwarpmpi: {error}\n")

    def _extension(self, name):
        extension = self.ext_map[name] = Extension(name, [])
        extension._full_name = name
        extension._needs_stub = extension._links_to_dynamic = False
        extension._file_name = self.get_ext_filename(name)
        return extension

    def build_extensions(self):
        cuda = toolchain.find_cuda()
        for each in self.abis:
            progress.say(f"building for the ABI {each.name} ({each.found})")
        # Setuptools builds what is editable in a new folder each time.
        self.base = "build/editable" if self.editable else self.build_temp
        # Where Python's own libraries lie matters to no extension.
        self.compiler.linker_so = [
            word
            for word in self.compiler.linker_so
            if not word.startswith(("-L", "-Wl,-rpath"))
        ]
        workers = self.parallel if isinstance(self.parallel, int) else None
        with ThreadPoolExecutor(workers or os.cpu_count()) as pool:
            # The kernels take the longest: first.
            folder = os.environ.get("WARPMPI_KERNELS", "build/kernels")
            wait = kernels.begin(cuda, sources.kernels(ROOT), folder, pool)
            # Below src/comm nothing knows of MPI.
            shared = self._objects(pool, cuda, None, sources.below_mpi(ROOT))
            above = sources.above_mpi(ROOT)
            above += sources.toys(ROOT) if TOYS else []
            rest = [
                self._objects(pool, cuda, each, above) for each in self.abis
            ]
            image = self._objects(pool, cuda, None, [wait()])
            for made in self.pending:
                made.result()
        # A wheel takes all of this folder, also what an earlier build left.
        for left in Path(self.build_lib, "warpmpi").glob("*.so"):
            left.unlink()
        self.force = True  # the objects decide what is new, not the sources
        self._link(self.extensions[0], image)
        for extension, own in zip(self.extensions[1:], rest, strict=True):
            self._link(extension, shared + own)

    def _objects(self, pool, cuda, each, files):
        """Compiles what is not current. Returns the paths of the objects."""
        words = self._command(cuda, each)
        # Builds that differ do not share objects: two MPIs, two sanitizers.
        key = hashlib.sha256(
            repr((words, sys.version, cuda.version)).encode()
            + toolchain.compiler_version(self.compiler.compiler_so).encode()
        ).hexdigest()[:12]
        folder = os.path.join(self.base, key)
        stale = [
            source
            for source in files
            if not objects.is_current(folder, source, *MAKERS)
        ]
        if len(stale) > 1:
            of = f" for {each.name}" if each else ""
            progress.say(f"compiling {len(stale)} C files{of}")

        def compile_one(source):
            command = list(words)
            if source.startswith("src/python/"):
                # Its feature macros must precede every other header.
                command += ["-DPY_SSIZE_T_CLEAN=", "-include", "Python.h"]
            objects.compile_one(folder, source, command)

        made = [pool.submit(compile_one, source) for source in stale]
        self.pending += made
        return [str(objects.object_of(folder, source)) for source in files]

    def _command(self, cuda, each):
        try:
            import mpi4py
            import numpy
        except ImportError as error:
            raise toolchain.ToolchainError(
                f"{error.name} is not installed, whose headers the build "
                f"needs: `pip install {error.name}`"
            ) from None
        version = self.distribution.get_version()
        # Two of GCC's misfire on the house style: outputs are written only on
        # success, and texts are cut to fixed buffers on purpose.
        words = [*self.compiler.compiler_so, "-std=c11", "-Wall", "-Wextra"]
        words += ["-Werror=implicit-function-declaration"]
        words += ["-Wno-maybe-uninitialized", "-Wno-format-truncation"]
        words += ["-Wno-unknown-warning-option"]
        # The kernels give the same bits (src/kernels/fold.h).
        words += ["-ffp-contract=off", "-fvisibility=hidden", "-fno-lto"]
        words += [f'-DWM_VERSION="{version}"', "-Isrc", "-Iwarpmpi/include"]
        # Others' headers are not ours to warn about. The ABI's come first:
        # beside Python.h of an environment another mpi.h may lie.
        system = [*cuda.include_dirs, *self.compiler.include_dirs]
        if each is not None:
            words += [*each.compile_args, *["-DWM_TOYS"] * TOYS]
            system[:0] = each.include_dirs
            system += [numpy.get_include(), mpi4py.get_include()]
        for path in system:
            words += ["-isystem", path]
        if os.environ.get("WARPMPI_WERROR") == "1":
            words.append("-Werror")
        words.append(
            "-g" if os.environ.get("WARPMPI_LINEINFO") == "1" else "-g0"
        )
        if SANITIZE:
            words += [*SANITIZE, "-g", "-O1"]
        elif ON_GLIBC and platform.machine() == "x86_64":
            words += ["-include", "cuda/glibc.h"]
        return words

    def _link(self, extension, made):
        folder = os.path.dirname(self.get_ext_fullpath(KERNELS))
        extension.extra_objects = made
        # Looked up at once: where a file was missing, the import fails.
        extension.extra_link_args = ["-pthread", "-Wl,-z,now", *SANITIZE]
        if extension.name == KERNELS:
            extension.extra_link_args.append("-Wl,-soname,_kernels.so")
        else:
            extension.extra_link_args += [
                os.path.join(folder, "_kernels.so"),
                "-Wl,-rpath,$ORIGIN",
            ]
        if not self.editable and not SANITIZE:
            extension.extra_link_args.append("-Wl,--strip-all")
        self.build_extension(extension)


class Wheel(bdist_wheel):
    """A wheel for every Linux that has the functions of glibc it needs."""

    def get_tag(self):
        python, own, system = super().get_tag()
        folder = Path(self.get_finalized_command("build").build_lib)
        libraries = list(folder.glob("warpmpi/*.so"))
        if not libraries or not ON_GLIBC:
            return python, own, system
        needed = [
            int(version)
            for library in libraries
            for version in re.findall(
                rb"\0GLIBC_2\.(\d+)", library.read_bytes()
            )
        ]
        machine = system.removeprefix("linux_")
        return python, own, f"manylinux_2_{max([28, *needed])}_{machine}"


if int(__version__.split(".")[0]) < 77:
    sys.exit(
        f"warpmpi: setuptools {__version__} cannot read pyproject.toml's "
        "licence: `pip install --upgrade 'setuptools>=77'`"
    )


setup(
    project_urls=links.urls(links.address()),
    long_description=links.description(links.address()),
    long_description_content_type="text/markdown",
    # What there is to build, the command finds.
    ext_modules=[Extension("warpmpi._core", [])],
    cmdclass={"build_ext": BuildCore, "bdist_wheel": Wheel},
)
