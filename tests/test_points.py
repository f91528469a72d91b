# SPDX-License-Identifier: BSD-3-Clause
"""The file of switch points, and the table that it goes into."""

import json
import os
import subprocess
import sys

import pytest

import warpmpi as wm
from warpmpi import _core, _points

ROW = {
    "compute_capability": 9,
    "nvlink": True,
    "ranks": 4,
    **dict.fromkeys(_points.NAMES, 77),
}
CODE = "import warpmpi; print(warpmpi._points.source())"


def write(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"switch_points": [ROW]}))


def imported(**environment):
    """What an import prints, and says on stderr."""
    left_out = {"WARPMPI_TUNED", "XDG_CACHE_HOME"}
    kept = {k: v for k, v in os.environ.items() if k not in left_out}
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


def test_the_file_is_in_the_users_cache(tmp_path):
    path = tmp_path / "warpmpi" / "tuned.json"
    write(path)
    assert imported(XDG_CACHE_HOME=str(tmp_path)) == (str(path), "")
    path = tmp_path / ".cache" / "warpmpi" / "tuned.json"
    write(path)
    assert imported(HOME=str(tmp_path)) == (str(path), "")


def test_none_is_normal(tmp_path):
    (tmp_path / "file").touch()
    for place in tmp_path, tmp_path / "file":
        said = imported(XDG_CACHE_HOME=str(place))
        assert said == ("built in", "")


def test_the_variable_names_another_or_none(tmp_path):
    path = tmp_path / "site.json"
    write(path)
    assert imported(WARPMPI_TUNED=str(path)) == (str(path), "")
    assert imported(WARPMPI_TUNED="", HOME=str(tmp_path)) == ("built in", "")
    source, told = imported(WARPMPI_TUNED=f"{path}.not")
    assert source == "built in"
    assert f"{path}.not cannot be used" in told
    assert "unset WARPMPI_TUNED, or see the guide" in told


BROKEN = {
    "nothing": "",
    "no text": b"\xff\xfe\x00",
    "no JSON": "{",
    "a deep one": "[" * 100_000,
    "another thing": "[]",
    "no list": '{"switch_points": 7}',
    "no row": '{"switch_points": [7]}',
    "a row too many": json.dumps({"switch_points": [ROW] * 65}),
}
CHANGES = {
    "a name more": {"speed": 1},
    "negative": {"lines": -1},
    "beyond": {"lines": 2**63},
    "no number": {"wide": "1"},
    "a fraction": {"wide": 0.5},
    "true": {"parts": True},
    "one": {"nvlink": 1},
    "3 ranks": {"ranks": 3},
}
for _name, _change in CHANGES.items():
    BROKEN[_name] = json.dumps({"switch_points": [{**ROW, **_change}]})


@pytest.mark.parametrize("name", list(BROKEN))
def test_a_broken_one_is_named_with_the_cure(tmp_path, name):
    path = tmp_path / "warpmpi" / "tuned.json"
    path.parent.mkdir()
    text = BROKEN[name]
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    source, told = imported(XDG_CACHE_HOME=str(tmp_path))
    assert source == "built in"
    assert told.startswith("<string>:1: RuntimeWarning: ")  # who imports
    assert f"{path} cannot be used" in told
    assert "delete it, or see the guide" in told


def test_a_pipe_is_named_with_the_cure(tmp_path):
    """Nobody writes into it: to open it must not wait."""
    path = tmp_path / "tuned.json"
    os.mkfifo(path)
    source, told = imported(WARPMPI_TUNED=str(path))
    assert source == "built in"
    assert f"{path} cannot be used" in told
    assert "the file is not a regular file; unset WARPMPI_TUNED" in told


def test_a_long_one_is_not_read(tmp_path):
    path = tmp_path / "tuned.json"
    path.write_bytes(b" " * (_points.MOST_BYTES + 1))
    with pytest.raises(ValueError, match="longer than 1048576 bytes"):
        _points.read(str(path))
    endless = "/dev/zero"
    with pytest.raises(ValueError, match="not a regular file"):
        _points.read(endless)


@pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU")
class TestTable:
    @pytest.fixture(autouse=True)
    def built_in(self):
        _core._set_points([])
        yield
        _core._set_points([])

    def find(self, linked=True, ranks=2):
        return _core._points(wm.get_device("cuda:0"), linked, ranks)

    def test_it_has_the_names_of_the_file(self):
        assert tuple(self.find()) == _points.NAMES

    def test_what_is_built_in(self):
        for ranks in 2, 3, 8, 64:
            with_link, without = (
                self.find(True, ranks),
                self.find(False, ranks),
            )
            lines = 16384 if ranks == 2 else 65536
            assert [*with_link.values()][:2] == [lines, 4 << 20]
            assert [*without.values()][:2] == [32768, 0]

    @pytest.mark.parametrize(
        ("ranks", "fitting"), [(2, [2]), (4, [3, 4]), (64, [5, 8, 64])]
    )
    def test_a_row_is_of_its_number_of_ranks(self, ranks, fitting):
        _core._set_points([(0, True, ranks, 1, 2, 3, 4, 5, 6)])
        for number in 2, 3, 4, 5, 8, 64:
            found = self.find(True, number)["lines"]
            other = 16384 if number == 2 else 65536
            assert found == (1 if number in fitting else other)
            assert self.find(False, number)["lines"] == 32768

    def test_a_row_is_of_its_architecture(self):
        major = _core._device_facts(wm.get_device("cuda:0"))[4]
        rows = [
            (major + 1, True, 0, 9, 9, 9, 9, 9, 9),
            (major, True, 0, 1, 2, 3, 4, 5, 6),
            (0, True, 0, 8, 8, 8, 8, 8, 8),
        ]
        _core._set_points(rows)
        assert list(self.find().values()) == [1, 2, 3, 4, 5, 6]
        _core._set_points(rows[2:])
        assert self.find()["lines"] == 8
        _core._set_points(rows[:1])
        assert self.find()["lines"] == 16384

    def test_too_many(self):
        row = (0, True, 0, 1, 2, 3, 4, 5, 6)
        _core._set_points([row] * 64)
        with pytest.raises(ValueError, match="65 rows"):
            _core._set_points([row] * 65)
        assert self.find()["lines"] == 1
