# SPDX-License-Identifier: BSD-3-Clause
"""Shared libraries that a program may have: which copy is opened."""

import os
import subprocess

import pytest

import compiled

NAME = "libwarpmpi-test.so.7"


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """Run tests/c/library.c and return what it prints."""
    folder = tmp_path_factory.mktemp("library")
    program = compiled.parts(
        folder / "library", "tests/c/library.c", "src/cuda/library.c",
        "src/cuda/error.c",
    )  # fmt: skip

    def run(*words, name=NAME, function="answer", path=""):
        done = subprocess.run(
            [program, name, function, *map(str, words)],
            env={**os.environ, "LD_LIBRARY_PATH": str(path)},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return done.stdout.strip()

    return run


@pytest.fixture(scope="module")
def copies(tmp_path_factory):
    """Three copies of a library, whose answers are their numbers."""
    made = []
    for number, below in enumerate(("", "some/lib", "")):
        root = tmp_path_factory.mktemp("copy")
        (root / below).mkdir(parents=True, exist_ok=True)
        file = root / below / NAME
        source = root / "library.c"
        source.write_text(f"int answer(void) {{ return {number}; }}\n")
        subprocess.run(
            ["cc", "-shared", "-fPIC", f"-Wl,-soname,{NAME}", "-o", file,
             source],
            check=True,
        )  # fmt: skip
        made.append((root, file))
    return made


def test_a_loaded_copy_goes_before_the_loaders_and_that_before_a_package(
    opened, copies
):
    (path, first), (package, second), (_, loaded) = copies
    assert opened(package, loaded, path=path) == f"2 {loaded}"
    assert opened(package, path=path) == f"0 {first}"
    assert opened(f"relative:/nowhere:{package}:") == f"1 {second}"


def test_errors_say_what_is_missing_and_what_to_do(opened, copies):
    path = copies[0][0]
    text = opened("some:/nowhere")
    assert NAME in text and text.endswith("): install it")
    text = opened("", path=path, function="question")
    assert text == f"{path}/{NAME} lacks question: install it"


def test_a_package_that_does_not_load_is_named(opened, tmp_path):
    (tmp_path / "some/lib").mkdir(parents=True)
    (tmp_path / "some/lib" / NAME).write_text("no library")
    text = opened(tmp_path)
    assert f"{tmp_path}/some/lib/{NAME}" in text and "install it" in text
