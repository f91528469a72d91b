# SPDX-License-Identifier: BSD-3-Clause
"""Builds warpmpi._core; everything declarative is in pyproject.toml.

Environment: MPICC, CC, CFLAGS, CUDA_HOME as usual; WARPMPI_CUDA=registry or
a folder chooses the CUDA toolkit; WARPMPI_CUDA_ARCHS="80 90" restricts the
kernels' architectures, WARPMPI_KERNELS is a folder that keeps them compiled
for builds of several trees; WARPMPI_WERROR=1 makes warnings errors;
WARPMPI_SANITIZE=address,undefined instruments.
"""

import hashlib
import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "build_tools"))

import kernels  # noqa: E402
import toolchain  # noqa: E402

# Every C file by name, floor by floor, ground floor first: a new file is
# added here (tests/test_tree.py compares).
SOURCES = [
    "src/cuda/block.c",
    "src/cuda/device.c",
    "src/cuda/driver.c",
    "src/cuda/error.c",
    "src/cuda/event.c",
    "src/cuda/heap.c",
    "src/cuda/lock.c",
    "src/cuda/pinned.c",
    "src/cuda/pointer.c",
    "src/cuda/stream.c",
    "src/cuda/word.c",
    "src/array/array.c",
    "src/array/copy.c",
    "src/array/dtype.c",
    "src/array/enqueue.c",
    "src/array/kernels.c",
    "src/array/layout.c",
    "src/array/mail.c",
    "src/array/order.c",
    "src/array/producer.c",
    "src/array/pull.c",
    "src/array/strided.c",
    "src/comm/agree.c",
    "src/comm/batch.c",
    "src/comm/bounds.c",
    "src/comm/buffered.c",
    "src/comm/cause.c",
    "src/comm/check.c",
    "src/comm/child.c",
    "src/comm/coll.c",
    "src/comm/comm.c",
    "src/comm/drain.c",
    "src/comm/eager.c",
    "src/comm/element.c",
    "src/comm/end.c",
    "src/comm/failure.c",
    "src/comm/hang.c",
    "src/comm/inline.c",
    "src/comm/leftovers.c",
    "src/comm/mailbox.c",
    "src/comm/mapping.c",
    "src/comm/message.c",
    "src/comm/node.c",
    "src/comm/offer.c",
    "src/comm/op.c",
    "src/comm/pack.c",
    "src/comm/partitioned.c",
    "src/comm/pattern.c",
    "src/comm/payload.c",
    "src/comm/pieces.c",
    "src/comm/place.c",
    "src/comm/poke.c",
    "src/comm/probing.c",
    "src/comm/progress.c",
    "src/comm/push.c",
    "src/comm/receive.c",
    "src/comm/report.c",
    "src/comm/request.c",
    "src/comm/send.c",
    "src/comm/staged.c",
    "src/comm/staging.c",
    "src/comm/slot.c",
    "src/comm/stash.c",
    "src/comm/stats.c",
    "src/comm/trail.c",
    "src/comm/transport.c",
    "src/comm/transport_host.c",
    "src/comm/transport_ipc.c",
    "src/comm/transport_mpi.c",
    "src/comm/watch.c",
    "src/python/arguments.c",
    "src/python/array.c",
    "src/python/array_copy.c",
    "src/python/array_data.c",
    "src/python/array_dlpack.c",
    "src/python/array_export.c",
    "src/python/array_index.c",
    "src/python/array_make.c",
    "src/python/array_shape.c",
    "src/python/buffer.c",
    "src/python/buffer_device.c",
    "src/python/buffered.c",
    "src/python/channel.c",
    "src/python/checked.c",
    "src/python/child.c",
    "src/python/collectives.c",
    "src/python/comm.c",
    "src/python/datatype.c",
    "src/python/device.c",
    "src/python/devices.c",
    "src/python/dtype.c",
    "src/python/elements.c",
    "src/python/event.c",
    "src/python/exchange.c",
    "src/python/matched.c",
    "src/python/module.c",
    "src/python/mpi.c",
    "src/python/objects.c",
    "src/python/owner.c",
    "src/python/partitioned.c",
    "src/python/parts.c",
    "src/python/passing.c",
    "src/python/patch.c",
    "src/python/prequest.c",
    "src/python/probe.c",
    "src/python/raw.c",
    "src/python/reduced.c",
    "src/python/request.c",
    "src/python/requests.c",
    "src/python/staged.c",
    "src/python/stats.c",
    "src/python/stream.c",
    "src/python/streams.c",
    "src/python/transport.c",
    "src/python/view.c",
    "src/python/view_buffer.c",
    "src/python/view_cai.c",
    "src/python/view_check.c",
    "src/python/view_dlpack.c",
    "src/python/view_known.c",
    "src/python/view_numpy.c",
]
KERNELS = [
    "src/kernels/copy.cu",
    "src/kernels/mail.cu",
    "src/kernels/pull.cu",
]


def _tree(pattern):
    return sorted(str(p.relative_to(ROOT)) for p in ROOT.glob(pattern))


class BuildCore(build_ext):
    """Finds the toolchain, compiles in parallel and only what changed."""

    def run(self):
        try:
            super().run()
        except toolchain.ToolchainError as error:
            # One sentence, not a traceback.
            sys.exit(f"\nwarpmpi: {error}\n")

    def build_extension(self, ext):
        missing = [f for f in SOURCES + KERNELS if not (ROOT / f).is_file()]
        if missing:
            raise toolchain.ToolchainError(
                f"{', '.join(missing)} is listed in setup.py but not there: "
                "restore it, or take a complete source tree"
            )
        toolchain.check_python_headers()
        toolchain.check_compilers()
        mpi, cuda = toolchain.find_mpi(), toolchain.find_cuda()
        self._configure(ext, mpi, cuda)
        objects = self._compile(ext, SOURCES, cuda)
        ext.sources, ext.extra_objects = [], objects
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
        ext.extra_compile_args += ["-fvisibility=hidden", *mpi.compile_args]
        # Others' headers are not ours to warn about.
        for path in system:
            ext.extra_compile_args += ["-isystem", path]
        ext.library_dirs = mpi.library_dirs
        ext.extra_link_args = ["-pthread", *mpi.link_args]
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
            sys.version,
        )
        key = hashlib.sha256(repr(options).encode()).hexdigest()[:12]
        self.build_temp = os.path.join(self.build_temp, key)

    def _compile(self, ext, sources, cuda):
        headers = [*_tree("src/**/*.h"), "setup.py"]
        newest = max(os.path.getmtime(path) for path in headers)

        def compile_one(source):
            name = source if source in SOURCES else os.path.basename(source)
            made = Path(self.build_temp, name).with_suffix(".o")
            newer = max(newest, os.path.getmtime(source))
            if made.is_file() and made.stat().st_mtime > newer:
                return str(made)
            made.parent.mkdir(parents=True, exist_ok=True)
            # Renamed when whole, so that an interrupted build leaves none.
            part = made.with_suffix(f".{os.getpid()}.o")
            macros = [f"-D{key}={value}" for key, value in ext.define_macros]
            includes = [f"-I{path}" for path in ext.include_dirs]
            includes += [f"-I{path}" for path in self.compiler.include_dirs]
            command = [*self.compiler.compiler_so, *macros, *includes]
            command += ["-c", source, "-o", str(part)]
            command += ext.extra_compile_args
            if source not in SOURCES:
                command.append("-fno-lto")  # which knows no symbols of asm
            if source.startswith("src/python/"):
                # Its feature macros must precede every other header.
                command += ["-DPY_SSIZE_T_CLEAN=", "-include", "Python.h"]
            if subprocess.call(command) != 0:
                raise CompileError(f"{shlex.join(command)} failed")
            part.replace(made)
            return str(made)

        def compile_kernels():
            folder = os.environ.get("WARPMPI_KERNELS", "build/kernels")
            headers = _tree("src/kernels/*.h")
            return compile_one(kernels.build(cuda, KERNELS, headers, folder))

        # The kernels take the longest: first.
        workers = self.parallel if isinstance(self.parallel, int) else None
        with ThreadPoolExecutor(workers or os.cpu_count()) as pool:
            image = pool.submit(compile_kernels)
            objects = list(pool.map(compile_one, sources))
            return [*objects, image.result()]


# Sources as a list of names: sdist takes them, the headers go by MANIFEST.in.
setup(
    license="BSD-3-Clause",
    ext_modules=[Extension("warpmpi._core", SOURCES)],
    cmdclass={"build_ext": BuildCore},
)
