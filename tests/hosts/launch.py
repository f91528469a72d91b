# SPDX-License-Identifier: BSD-3-Clause
"""Runs an MPI program on several hosts, which are namespaces of this machine.

    python tests/hosts/launch.py --ranks 1 2 1 -- python script.py …

--ranks: of each host, so there are three here. A host has PID, IPC, UTS,
network and mount namespaces of its own, a /dev/shm of 64 MiB, and a TMPDIR;
one that has no GPU is named by --no-gpu. The hosts share a bridge, the
files, the boot id and the numbers of processes, which begin at 1 in each.
The launcher runs on a further host, so that any may vanish: --kill 1
--when FILE ends host 1 as soon as there is such a file, and the job when the
file is gone again.

The MPI is that of build_tools/mpirun.py: Open MPI 5 or MPICH. Needs root, or
user namespaces, and `ip` of iproute2; `--missing` says what lacks. Nothing
is left behind, however it ends: all is in namespaces that end with this
process.
"""

import argparse
import ctypes
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "build_tools"), str(ROOT / "tests")]

import mpirun  # noqa: E402
import ranks  # noqa: E402

# Unless they are set. Open MPI's HAN loses bytes in Gather and Allgather whose
# two datatypes have different gaps, as tests/random_collectives.py --plain
# shows, and its Allreduce ends without an error where a host has died. MPICH
# by UCX hangs in receives from any source. Both are so in plain mpi4py.
SETTINGS = {"OMPI_MCA_coll": "^han", "MPIR_CVAR_CH4_NETMOD": "ofi"}
NETWORK = "10.77.0"
HEAD = "head", f"{NETWORK}.254"  # where the launcher is
SHM = "size=64m"
PATIENCE = 20  # seconds in which all hosts must be there
UNSHARE = [
    *("unshare", "--net", "--mount", "--pid", "--ipc", "--uts"),
    *("--fork", "--kill-child"),
]
# What launchers call in the place of ssh: [options] HOST command…
AGENT = """#!/bin/sh
while case $1 in -*) ;; *) false ;; esac; do shift; done
folder={folder}/$1
shift
. "$folder/environment"
nsenter --target "$(cat "$folder/pid")" --all -- /bin/sh -c "$*" && exit
status=$?
[ ! -e "$folder/lost" ] || exec sleep infinity  # ssh would not know it either
exit $status
"""
# What starts each rank: a launcher may have replaced its host's environment.
START = """#!/bin/sh
. {folder}/$(uname -n)/environment
exec "$@"
"""


def name_of(host):
    return f"host-{host}"


def ip(*lines):
    """Runs commands of `ip`, a line each."""
    text = "".join(f"{line}\n" for line in lines)
    subprocess.run(["ip", "-batch", "-"], input=text, text=True, check=True)


def mount(kind, where, options=""):
    libc = ctypes.CDLL(None, use_errno=True)
    words = (word.encode() for word in (kind, str(where), kind))
    if libc.mount(*words, 0, options.encode() or None):
        number = ctypes.get_errno()
        raise OSError(number, f"mount {kind}: {os.strerror(number)}")


def bind(path, where):
    """Lays a file over another one."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(str(path).encode(), where.encode(), None, 4096, None):
        number = ctypes.get_errno()
        raise OSError(number, f"bind {where}: {os.strerror(number)}")


# --- a host: the first process of its namespaces --------------------------


def be_host(folder, number):
    """Stays until it is killed, and all of the host with it."""
    # /proc is still that of the head, in whose numbers it says who we are.
    pid = os.readlink("/proc/self")
    socket.sethostname(name_of(number))
    mount("proc", "/proc")
    mount("tmpfs", "/dev/shm", SHM)
    bind(folder / "hosts", "/etc/hosts")
    (folder / name_of(number) / "pid").write_text(pid)
    print("made", flush=True)
    sys.stdin.readline()  # the head has plugged eth0 in
    ip(
        "link set lo up",
        f"addr add {NETWORK}.{number + 1}/24 dev eth0",
        "link set eth0 up",
    )
    print("up", flush=True)
    while True:  # it reaps orphans, as init does
        try:
            os.wait()
        except ChildProcessError:
            time.sleep(0.1)


# --- the head, which makes the hosts ----------------------------------------


class Hosts:
    """The hosts, while this process is the first of the head's namespaces."""

    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.count = len(options.ranks)
        self.made = []

    def start(self):
        socket.sethostname(HEAD[0])
        names = ["127.0.0.1 localhost", f"{HEAD[1]} {HEAD[0]}"]
        for host in range(self.count):
            names.append(f"{NETWORK}.{host + 1} {name_of(host)}")
            self.describe(host)
        (self.folder / "hosts").write_text("\n".join([*names, ""]))
        bind(self.folder / "hosts", "/etc/hosts")
        for name, text in ("agent", AGENT), ("start", START):
            script = self.folder / name
            script.write_text(text.format(folder=self.folder))
            script.chmod(0o755)
        ip(
            "link set lo up",
            "link add hosts type bridge",
            f"addr add {HEAD[1]}/24 dev hosts",
            "link set hosts up",
        )
        signal.alarm(PATIENCE)
        self.made = [self.make(host) for host in range(self.count)]
        for child in self.made:
            self.hear(child, "made")
        for host in range(self.count):
            ip(
                f"link add port{host} type veth peer name eth0 "
                f"netns {self.pid(host)}",
                f"link set port{host} master hosts",
                f"link set port{host} up",
            )
        for child in self.made:
            child.stdin.write("go\n")
            child.stdin.flush()
        for child in self.made:
            self.hear(child, "up")
        signal.alarm(0)

    def describe(self, host):
        """Its folder, with what its processes have in their environment."""
        folder = self.folder / name_of(host)
        (folder / "tmp").mkdir(parents=True)
        values = {"TMPDIR": str(folder / "tmp")}
        if host in self.options.no_gpu:
            values["SIMCUDA_DEVICES"] = "0"
        for told in self.options.env:
            number, _, assignment = told.partition(":")
            name, _, value = assignment.partition("=")
            if int(number) == host:
                values[name] = value
        (folder / "environment").write_text(
            "".join(
                f"export {name}={shlex.quote(value)}\n"
                for name, value in values.items()
            )
        )

    def make(self, host):
        words = [*UNSHARE, sys.executable, __file__, "--host", str(host)]
        return subprocess.Popen(
            [*words, str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def hear(self, child, word):
        told = child.stdout.readline().strip()
        if told != word:
            raise RuntimeError(f"a host ended before it was {word}")

    def pid(self, host):
        return int((self.folder / name_of(host) / "pid").read_text())

    def kill(self, host):
        """Ends a host; the launcher, which would end the job, hears nothing.

        The other hosts do: their connections break.
        """
        (self.folder / name_of(host) / "lost").touch()
        for name in "all", "hosts":
            Path(f"/proc/sys/net/ipv4/conf/{name}/rp_filter").write_text("1")
        ip(f"route add blackhole {NETWORK}.{host + 1}")
        os.kill(self.pid(host), signal.SIGKILL)

    def watch(self, launcher):
        """Ends a host when there is the file of --when, and all without it."""
        when = Path(self.options.when)
        while not when.exists():
            time.sleep(0.02)
        self.kill(self.options.kill)
        while when.exists():
            time.sleep(0.02)
        launcher.kill()

    def command(self):
        """The launcher's words, and what to add to the environment."""
        counts, agent = self.options.ranks, str(self.folder / "agent")
        words, added = mpirun.launcher(2 * sum(counts))
        added["TMPDIR"] = str(self.folder)
        listed = ",".join(
            f"{name_of(host)}:{count}" for host, count in enumerate(counts)
        )
        if is_open_mpi(words):
            words += ["--prtemca", "plm", "ssh"]
            words += ["--prtemca", "plm_ssh_agent", agent]
            words += ["--mca", "pml", "ob1", "--host", listed]
            if self.options.ft:
                words += ["--with-ft", "ulfm"]
        else:
            words += ["-launcher", "ssh", "-launcher-exec", agent]
            words += ["-hosts", listed]
        words += ["-n", str(sum(counts)), str(self.folder / "start")]
        words += self.options.program
        return words, added

    def run(self):
        words, added = self.command()
        kept = ranks.clean_environment(**added)
        environment = {**SETTINGS, **kept}
        # Its hosts are not those of the launcher that may have started us.
        environment.pop("PRTE_MCA_rmaps_default_mapping_policy", None)
        environment.pop("WARPMPI_TEST_MPIRUN", None)
        launcher = subprocess.Popen(words, env=environment)
        if self.options.when:
            watch = threading.Thread(target=self.watch, args=[launcher])
            watch.daemon = True
            watch.start()
        return launcher.wait()


def is_open_mpi(words):
    return "--map-by" in words  # as mpirun.launcher() has told


def be_head(options):
    """Runs the program; the exit status is the launcher's."""
    mount("proc", "/proc")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    hosts = Hosts(options, Path(options.folder))
    hosts.start()
    return hosts.run() if options.program else 0


# --- outside --------------------------------------------------------------


def outer():
    """The command that makes the head's namespaces, and ends with us."""
    user = [] if os.geteuid() == 0 else ["--map-root-user"]
    return ["setpriv", "--pdeathsig", "KILL", *UNSHARE, *user]


def missing():
    """Why there can be no hosts here, in words; empty if there can be."""
    for program in "setpriv", "unshare", "nsenter", "ip":
        if shutil.which(program) is None:
            package = "iproute2" if program == "ip" else "util-linux"
            return f"no `{program}`: install {package}"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        told = subprocess.run(
            [*outer(), sys.executable, __file__, "--folder", folder],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    if told.returncode:
        lines = told.stdout.strip().splitlines()[-1:]
        return f"no namespaces, or no bridge between them: {lines}"
    return ""


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--ranks", type=int, nargs="+", default=[2, 2], help="of each host")
    add("--no-gpu", type=int, nargs="+", default=[], metavar="HOST")
    add("--env", action="append", default=[], metavar="HOST:NAME=VALUE")
    add("--ft", action="store_true", help="with ULFM (Open MPI)")
    add("--kill", type=int, default=0, metavar="HOST")
    add("--when", default="", metavar="FILE")
    add("--missing", action="store_true", help="what lacks here, and ends")
    add("--folder", default="", help=argparse.SUPPRESS)  # of the head
    add("program", nargs="*")
    options = parser.parse_args()
    if options.folder:
        return be_head(options)  # without a program it only makes the hosts
    lacks = missing()
    if options.missing:
        print(lacks)
        return 0
    if lacks:
        sys.exit(f"warpmpi: {lacks}")
    with tempfile.TemporaryDirectory(
        prefix="warpmpi-hosts-", ignore_cleanup_errors=True
    ) as folder:
        words = [*outer(), sys.executable, __file__, "--folder", folder]
        child = subprocess.Popen([*words, *sys.argv[1:]])
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        try:
            return child.wait()
        finally:
            child.kill()
            child.wait()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--host"]:
        be_host(Path(sys.argv[3]), int(sys.argv[2]))
    sys.exit(main())
