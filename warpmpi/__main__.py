# SPDX-License-Identifier: BSD-3-Clause
"""Run a program of mpi4py's, unchanged, on GPU arrays.

    mpirun -n 2 python -m warpmpi script.py [argument ...]
    mpirun -n 2 python -m warpmpi -m module [argument ...]
    mpirun -n 2 python -m warpmpi -c 'program' [argument ...]

Before the program begins, warpmpi.install() makes MPI.COMM_WORLD and all
communicators that are made from it take arrays of CuPy, Warp, PyTorch, JAX
and Numba, from GPU to GPU, on whatever MPI mpi4py runs; MPI's own requests,
files and windows learn of them, too. Nothing else changes. An exception that
nobody catches on one rank ends all ranks, as `python -m mpi4py` does.

    --help, -h   this text
    --version    the version of warpmpi, of mpi4py and of the MPI, and the GPUs

Environment: WARPMPI_TRANSPORT=ipc, host or mpi forces how GPU memory travels;
docs/guide.md tells of the others.
"""

import sys


def gpus() -> str:
    """How many there are, or why there is none."""
    import warpmpi

    count = warpmpi.get_cuda_device_count()
    version = warpmpi.get_cuda_driver_version()
    if count > 0 and version is not None:
        return f"GPUs: {count}, driver for CUDA {version[0]}.{version[1]}"
    try:
        warpmpi.get_cuda_device(0)
    except (ValueError, RuntimeError) as error:
        return f"GPUs: none: {error}"
    return "GPUs: none"


def main() -> None:
    """Install, then run the program that the command line names."""
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__.strip())
        sys.exit(0 if arguments else 2)
    import mpi4py
    from mpi4py import MPI, run

    import warpmpi

    if arguments[0] == "--version":
        print(f"warpmpi {warpmpi.__version__}, mpi4py {mpi4py.__version__}")
        print(MPI.Get_library_version().strip(" \n\0"))
        print(gpus())
        return
    if arguments[0].startswith("-") and arguments[0] not in ("-m", "-c", "-"):
        sys.exit(
            f"python -m warpmpi: no option {arguments[0]}: give a script, "
            "-m module or -c program (--help tells more)"
        )
    if arguments[0] in ("-m", "-c") and len(arguments) < 2:
        sys.exit(f"python -m warpmpi: {arguments[0]} needs an argument")
    try:
        warpmpi.install()
        run.run_command_line(arguments)
    except SystemExit as ending:
        run.set_abort_status(ending)
        raise
    except BaseException as error:
        run.set_abort_status(error)
        raise


if __name__ == "__main__":
    main()
