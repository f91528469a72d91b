# SPDX-License-Identifier: BSD-3-Clause
"""What the programs of random messages have in common: their ranks' lives.

Ranks act as if on several hosts, are stopped and go on, and are watched.
"""

import argparse
import faulthandler
import os
import random
import select
import signal
import subprocess
import sys
import threading
import time

SPANS = 0.05, 0.5  # seconds in which a rank runs, or is stopped


def parser(text):
    """Of a program with that docstring."""
    return argparse.ArgumentParser(
        description=text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def parse(of, argv, counted):
    """Its options, and in `given` the words that are to be said again.

    counted: the option that tells how many there are to be.
    """
    options = of.parse_args(list(argv))
    options.given = list(argv)
    for name in "--seed", "--first", counted, "--seconds":
        if name in options.given:
            cut = options.given.index(name)
            del options.given[cut : cut + 2]
    return options


def options(add):
    """Those that all the programs have; add: a parser's add_argument."""
    add("--seconds", type=float, default=0, help="stop after so many")
    add("--patience", type=float, default=120, help="seconds for a part")
    add(
        "--apart",
        type=int,
        nargs="?",
        const=1,
        default=0,
        metavar="N",
        help="as if every N ranks (1) were on a host of their own",
    )
    add("--stops", action="store_true", help="ranks are stopped now and then")


def place(rank, apart):
    """Puts a rank where --apart has it, before its first communicator."""
    if apart:  # for NCCL ranks of one GPU are hosts each
        os.environ["WARPMPI_HOST"] = f"host {rank // apart}"
        os.environ["NCCL_HOSTID"] = f"host {rank}"


class Stops:
    """Stops this process at random times, for random spans, until closed."""

    def __init__(self, seed):
        self.helper = subprocess.Popen(
            [sys.executable, "-S", __file__, str(os.getpid()), seed],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def close(self):
        """Returns how often it was stopped."""
        told, _ = self.helper.communicate()
        return int(told)


def stop_and_go_on(process, seed):
    """The helper's work, until its input ends, with the process at last."""
    draw, count = random.Random(seed), 0
    while not select.select([0], [], [], draw.uniform(*SPANS))[0]:
        os.kill(process, signal.SIGSTOP)
        try:
            time.sleep(draw.uniform(*SPANS))
        finally:
            os.kill(process, signal.SIGCONT)
        count += 1
    print(count)


def watch(runner, patience):
    """Ends the program, saying where it was, when a part takes too long.

    runner: has a rank, when it was last seen, and where.
    """

    def look():
        while True:
            time.sleep(1)
            if time.monotonic() - runner.seen > patience:
                file = int(os.environ.get("WARPMPI_TEST_STDERR", "2"))
                told = f"rank {runner.rank} hangs: {runner.where}\n"
                os.write(file, told.encode())
                faulthandler.dump_traceback(file)
                time.sleep(10)  # the others tell, too
                os._exit(70)

    threading.Thread(target=look, daemon=True).start()


def main(program):
    """Runs a program; an error of one rank ends all."""
    from mpi4py import MPI

    try:
        program()
    except SystemExit as end:  # of all ranks: --help, or a wrong option
        if end.code:
            MPI.COMM_WORLD.Abort(end.code)
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
        MPI.COMM_WORLD.Abort(1)


if __name__ == "__main__":
    stop_and_go_on(int(sys.argv[1]), sys.argv[2])
