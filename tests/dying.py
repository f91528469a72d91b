# SPDX-License-Identifier: BSD-3-Clause
"""Ranks of which one dies, and the others hear of it."""

import os
import shutil
import textwrap

import pytest
from mpi4py import MPI

import ranks

# Open MPI 5 has ULFM built in; others' launchers end all ranks.
needs_ulfm = pytest.mark.skipif(
    not MPI.Get_library_version().startswith("Open MPI v5")
    or not (os.environ.get("WARPMPI_TEST_MPIRUN") or shutil.which("mpirun")),
    reason="needs Open MPI 5",
)

START = """
import contextlib, ctypes, faulthandler, os, signal, sys, threading, time
import numpy as np
from mpi4py import MPI
import cases, graphs, kinds
import warpmpi as wm

faulthandler.dump_traceback_later({seconds}, exit=True)
"""
END = """
os._exit(0)  # where one has died Open MPI's own end hangs now and then
"""


def run_text(
    folder, text, *words, flags=("--with-ft", "ulfm"), timeout=80, **options
):
    """ranks.run_text() of a program that begins with START and ends with END.

    It prints where its threads are 15 seconds before the timeout. Settings of
    the simulated driver skip the test on another one.
    """
    simulated = any(name.startswith("SIMCUDA_") for name in options)
    if simulated and "WARPMPI_CUDA_DRIVER" not in os.environ:
        pytest.skip("needs the simulated driver")
    text = START.format(seconds=timeout - 15) + textwrap.dedent(text) + END
    return ranks.run_text(
        folder,
        text,
        *words,
        flags=flags,
        died=True,
        timeout=timeout,
        **options,
    )
