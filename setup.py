# SPDX-License-Identifier: BSD-3-Clause
"""Builds warpmpi._core; everything declarative is in pyproject.toml.

Environment: MPICC, CC, CFLAGS, CUDA_HOME as usual.

WARPMPI_CUDA        which CUDA compiler: a toolkit's folder; `registry`, the
                    registry's wheels; `installed`, what is there, so that no
                    registry is asked for one
WARPMPI_CUDA_ARCHS  what to compile the kernels for: "80 90", or `native`, the
                    machine's GPUs, and the newest where there is none
WARPMPI_LINEINFO=1  the kernels know their source lines, for debuggers and
                    profilers; they take twice the room
WARPMPI_KERNELS     a folder that keeps compiled kernels, for several trees
WARPMPI_WERROR=1    warnings are errors
WARPMPI_SANITIZE    address,undefined and the like instrument the C code
"""

import hashlib
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, __version__, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "build_tools"))

import kernels  # noqa: E402
import objects  # noqa: E402
import sources  # noqa: E402
import toolchain  # noqa: E402

# What decides how a file is compiled, besides the flags.
MAKERS = ("setup.py", "build_tools/objects.py")


class BuildCore(build_ext):
    """Finds the toolchain, compiles in parallel and only what changed."""

    def run(self):
        self.editable = self.inplace  # which setuptools hides meanwhile
        try:
            super().run()
        except toolchain.ToolchainError as error:
            # One sentence, not a traceback.
            sys.exit(f"\nwarpmpi: {error}\n")

    def build_extension(self, ext):
        toolchain.check_python_headers()
        toolchain.check_compilers()
        mpi, cuda = toolchain.find_mpi(), toolchain.find_cuda()
        self._configure(ext, mpi, cuda)
        ext.extra_objects = self._compile(ext, cuda)
        ext.sources = []
        self.force = True  # the objects decide what is new, not the sources
        super().build_extension(ext)

    def _configure(self, ext, mpi, cuda):
        try:
            import mpi4py
            import numpy
        except ImportError as error:
            raise toolchain.ToolchainError(
                f"{error.name} is not installed, whose headers the build "
                f"needs: `pip install {error.name}`"
            ) from None
        version = self.distribution.get_version()
        ext.define_macros = [
            ("WM_VERSION", f'"{version}"'),
            ("WM_BUILD_MPI", f'"{mpi.mpicc}"'),
        ]
        ext.include_dirs = ["src"]
        system = [
            numpy.get_include(),
            mpi4py.get_include(),
            *mpi.include_dirs,
            *cuda.include_dirs,
        ]
        # Two of GCC's misfire on the house style: outputs are written only on
        # success, and texts are cut to fixed buffers on purpose.
        ext.extra_compile_args = [
            "-std=c11",
            "-Wall",
            "-Wextra",
            "-Werror=implicit-function-declaration",
        ]
        ext.extra_compile_args += [
            "-Wno-maybe-uninitialized",
            "-Wno-format-truncation",
            "-Wno-unknown-warning-option",
        ]
        # The kernels give the same bits (src/kernels/fold.h).
        ext.extra_compile_args.append("-ffp-contract=off")
        ext.extra_compile_args += ["-fvisibility=hidden", *mpi.compile_args]
        # Others' headers are not ours to warn about.
        for path in system:
            ext.extra_compile_args += ["-isystem", path]
        ext.library_dirs = mpi.library_dirs
        # Looked up at once: where a file was missing, the import fails.
        ext.extra_link_args = ["-pthread", "-Wl,-z,now", *mpi.link_args]
        if os.environ.get("WARPMPI_WERROR") == "1":
            ext.extra_compile_args.append("-Werror")
        sanitize = os.environ.get("WARPMPI_SANITIZE")
        if sanitize:
            flags = [f"-fsanitize={sanitize}", "-fno-omit-frame-pointer"]
            flags += ["-fno-sanitize-recover=all", "-g", "-O1"]
            ext.extra_compile_args += flags
            ext.extra_link_args += flags
        # Builds that differ do not share objects: two MPIs, two sanitizers.
        options = (
            ext.define_macros,
            ext.extra_compile_args,
            ext.extra_link_args,
            self.compiler.compiler_so,
            toolchain.compiler_version(self.compiler.compiler_so),
            sys.version,
            numpy.__version__,
            mpi4py.__version__,
            cuda.version,
        )
        key = hashlib.sha256(repr(options).encode()).hexdigest()[:12]
        # Setuptools builds what is editable in a new folder each time.
        folder = "build/editable" if self.editable else self.build_temp
        self.build_temp = os.path.join(folder, key)

    def _compile(self, ext, cuda):
        words = [*self.compiler.compiler_so]
        words += [f"-D{key}={value}" for key, value in ext.define_macros]
        words += [f"-I{path}" for path in ext.include_dirs]
        words += [f"-I{path}" for path in self.compiler.include_dirs]
        words += ext.extra_compile_args

        def compile_one(source):
            command = list(words)
            if source.startswith("src/python/"):
                # Its feature macros must precede every other header.
                command += ["-DPY_SSIZE_T_CLEAN=", "-include", "Python.h"]
            objects.compile_one(self.build_temp, source, command)

        def compile_kernels():
            folder = os.environ.get("WARPMPI_KERNELS", "build/kernels")
            image = kernels.build(cuda, sources.kernels(ROOT), folder)
            if not objects.is_current(self.build_temp, image, *MAKERS):
                # -fno-lto: which knows no symbols of asm.
                command = [*words, "-fno-lto"]
                objects.compile_one(self.build_temp, image, command)
            return image

        files = sources.c_files(ROOT)
        stale = [
            source
            for source in files
            if not objects.is_current(self.build_temp, source, *MAKERS)
        ]
        if stale:
            print(f"compiling {len(stale)} C files", flush=True)
        # The kernels take the longest: first.
        workers = self.parallel if isinstance(self.parallel, int) else None
        with ThreadPoolExecutor(workers or os.cpu_count()) as pool:
            image = pool.submit(compile_kernels)
            list(pool.map(compile_one, stale))
            files.append(image.result())
        return [str(objects.object_of(self.build_temp, f)) for f in files]


if int(__version__.split(".")[0]) < 77:
    sys.exit(
        f"warpmpi: setuptools {__version__} cannot read pyproject.toml's "
        "licence: `pip install --upgrade 'setuptools>=77'`"
    )
try:
    # As names: sdist takes them, the headers go by MANIFEST.in.
    files = sources.c_files(ROOT)
except toolchain.ToolchainError as error:
    sys.exit(f"warpmpi: {error}")


def links():
    """The package's links, of the address in pyproject.toml; {}: none yet."""
    text = (ROOT / "pyproject.toml").read_text()
    address = re.search(r'^repository = "(.*)"$', text, re.MULTILINE)[1]
    if not address:
        return {}
    return {
        "Source": address,
        "Documentation": f"{address}/blob/main/docs/guide.md",
        "Changelog": f"{address}/blob/main/CHANGELOG.md",
    }


setup(
    project_urls=links(),
    ext_modules=[Extension("warpmpi._core", files)],
    cmdclass={"build_ext": BuildCore},
)
