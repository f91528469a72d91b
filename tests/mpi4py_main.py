# SPDX-License-Identifier: BSD-3-Clause
"""mpi4py's own tests on one rank, as tests/mpi4py_suite.py starts them.

    python -m warpmpi mpi4py_main.py DIR LIMIT MAIN [arguments of MAIN]

MAIN is test/main.py of mpi4py's source distribution, which is used as it is,
but for element types: CuPy's unsigned ones are left out, as the tests fill
arrays with -1, which NumPy 2 refuses for them; WARPMPI_TEST_EVERY=n has loops
over the types of an array take one in n. A rank prints into DIR/rankN.log and
writes what becomes of each test into DIR/rankN.tests. LIMIT: seconds for one
module; later all stacks are printed and the job ends.
"""

import contextlib
import faulthandler
import os
import runpy
import sys
import time
import unittest
import zlib
from pathlib import Path

from pytest_main import rank
from sampling import EVERY


class Journal:
    """What this rank tells of its tests, a line for each event."""

    def __init__(self, folder, limit):
        self.file = open(Path(folder, f"rank{rank()}.tests"), "w")  # noqa: SIM115
        self.limit = limit
        self.module = None

    def tell(self, event, test):
        """Write it at once: the process may die in what comes next."""
        name = getattr(test, "test_case", test).id()
        print(f"{time.monotonic():.3f}", event, name, file=self.file)
        self.file.flush()

    def begin(self, test):
        self.tell("begin", test)
        if test.__module__ != self.module:
            self.module = test.__module__
            # A C thread of its own: it fires also where the GIL is held.
            faulthandler.dump_traceback_later(self.limit, exit=True)

    def close(self):
        faulthandler.cancel_dump_traceback_later()
        print(f"{time.monotonic():.3f} end", file=self.file)
        self.file.close()


def telling(journal):
    """The class that prints unittest's results, which tells them too."""

    class Result(unittest.runner.TextTestResult):
        def startTest(self, test):
            journal.begin(test)
            super().startTest(test)

        def stopTest(self, test):
            journal.tell("stop", test)
            super().stopTest(test)

        def failed(self, test, err):
            journal.tell("failed", test)
            # unittest prints them at the end, which may not come.
            self.stream.writeln(self._exc_info_to_string(err, test))

        def addSubTest(self, test, subtest, err):
            super().addSubTest(test, subtest, err)
            if err is not None:
                self.failed(test, err)

        def addFailure(self, test, err):
            super().addFailure(test, err)
            self.failed(test, err)

        def addError(self, test, err):
            super().addError(test, err)
            self.failed(test, err)

        def addSkip(self, test, reason):
            super().addSkip(test, reason)
            journal.tell("skipped", test)

        def addUnexpectedSuccess(self, test):
            super().addUnexpectedSuccess(test)
            journal.tell("failed", test)

        def printErrors(self):
            pass  # they were printed as they came

    return Result


class Some(dict):
    """A map of element types of which loops over them see one in EVERY."""

    def __init__(self, types, first):
        super().__init__(types)
        self.some = list(types)[first % EVERY :: EVERY] or list(types)

    def __iter__(self):
        return iter(self.some)


def each_of(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from each_of(test)
        else:
            yield test


def half_of(suite):
    """Half of the tests, which their names decide: the same on all ranks.

    Of each module at least one.
    """
    modules = set()
    for test in each_of(suite):
        module = type(test).__module__
        even = zlib.crc32(test.id().encode()) % 2 == 0
        if even or module not in modules:
            modules.add(module)
            yield test


def choose_types():
    """Leaves out CuPy's unsigned types; others, and tests, as EVERY says."""
    create = unittest.TestProgram.createTests

    def create_tests(self, *arguments):
        import arrayimpl

        kind = getattr(arrayimpl, "GPUArrayCuPy", None)
        for code in arrayimpl.TypeMapUnsigned if kind else ():
            kind.TypeMap.pop(code, None)
        for i, kind in enumerate(arrayimpl.ArrayBackends):
            kind.TypeMap = Some(kind.TypeMap, i)
        create(self, *arguments)
        if EVERY > 1:
            self.test = unittest.TestSuite(half_of(self.test))

    unittest.TestProgram.createTests = create_tests


def main():
    folder, limit, path, *arguments = sys.argv[1:]
    log = os.open(
        os.path.join(folder, f"rank{rank()}.log"),
        os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND,
        0o644,
    )
    os.dup2(log, 1)
    os.dup2(log, 2)
    journal = Journal(folder, float(limit))
    unittest.runner.TextTestRunner.resultclass = telling(journal)
    choose_types()
    sys.argv[:] = [path, *arguments]
    sys.path[0] = os.path.dirname(path)
    # The outcomes tell; a status would make mpirun report every rank's.
    with contextlib.suppress(SystemExit):
        runpy.run_path(path, run_name="__main__")
    journal.close()


if __name__ == "__main__":
    main()
