# SPDX-License-Identifier: BSD-3-Clause
"""Programs of tests/types under mypy and Pyright, as a user's editor has them.

Of right.py both find nothing wrong; of wrong.py the lines marked `# wrong`,
and no other. Run by `tests/run.py lint`; basedpyright is Pyright, installed
by pip alone.
"""

import json
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "types"
PROGRAMS = sorted(FOLDER.glob("*.py"))


def mypy():
    """Name and line of what mypy finds, in pairs."""
    words = ["mypy", "--strict", "--config-file=", "--no-error-summary"]
    done = run("-m", *words, "--no-pretty", "--show-absolute-path")
    if done.returncode not in (0, 1):
        sys.exit(done.stdout + done.stderr)
    found = re.findall(r"^(.+?):(\d+): error: (.+)", done.stdout, re.MULTILINE)
    return {(Path(path).name, int(line)): text for path, line, text in found}


def pyright():
    """Likewise of Pyright."""
    # It does not see what is installed editable.
    config = {
        "typeCheckingMode": "standard",
        "include": [str(FOLDER)],
        "extraPaths": [str(FOLDER.parent.parent)],
    }
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "pyrightconfig.json").write_text(json.dumps(config))
        words = ["--outputjson", "--pythonpath", sys.executable]
        done = run("-m", "basedpyright", "-p", folder, *words, programs=())
    if done.returncode not in (0, 1):
        sys.exit(done.stdout + done.stderr)
    return {
        (Path(each["file"]).name, each["range"]["start"]["line"] + 1): each[
            "message"
        ]
        for each in json.loads(done.stdout)["generalDiagnostics"]
        if each["severity"] == "error"
    }


def run(*words, programs=PROGRAMS):
    return subprocess.run(
        [sys.executable, *words, *map(str, programs)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def marked():
    """Name and line of what is to be found."""
    return {
        (path.name, number)
        for path in PROGRAMS
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if "# wrong" in line
    }


def main():
    """Says what differs, and exits with 1 where something does."""
    expected, bad = marked(), []
    with ThreadPoolExecutor() as pool:
        begun = [(each, pool.submit(each)) for each in (mypy, pyright)]
    for checker, result in begun:
        who, found = checker.__name__, result.result()
        bad += [
            f"{who} finds {name}:{line} wrong: {found[name, line]}"
            for name, line in sorted(found.keys() - expected)
        ]
        bad += [
            f"{who} finds nothing wrong with {name}:{line}"
            for name, line in sorted(expected - found.keys())
        ]
    print("\n".join(bad) or f"{len(expected)} lines found wrong, as marked")
    return 1 if bad or not expected else 0


if __name__ == "__main__":
    sys.exit(main())
