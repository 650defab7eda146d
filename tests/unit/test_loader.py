"""The finder of our own modules gives what the import system would give, at any state of the cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import membrane.loader

PROGRAM = """
import json, sys
from pack import loader
if sys.argv[1] == "quick":
    loader.install()
import pack.one, pack.sub.two
try:
    import pack.missing
    missing = "found"
except ModuleNotFoundError as error:
    missing = error.name
modules = [pack.one, pack.sub, pack.sub.two]
print(json.dumps({
    "values": [pack.one.VALUE, pack.sub.two.VALUE], "missing": missing,
    "about": [[m.__name__, m.__package__, m.__file__, m.__cached__, m.__spec__.origin, m.__spec__.has_location,
               list(getattr(m, "__path__", []))] for m in modules],
    "quick": [type(m.__loader__).__module__ == "pack.loader" for m in modules],
}))
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    (tmp_path / "pack" / "sub").mkdir(parents=True)
    (tmp_path / "pack" / "__init__.py").touch()
    (tmp_path / "pack" / "sub" / "__init__.py").touch()
    (tmp_path / "pack" / "loader.py").write_text(Path(membrane.loader.__file__).read_text())
    (tmp_path / "pack" / "one.py").write_text("VALUE = 'first'\n")
    (tmp_path / "pack" / "sub" / "two.py").write_text("from ..one import VALUE as ONE\nVALUE = ONE * 2\n")
    return tmp_path


def run(package: Path, how: str, *options: str, write: bool = True) -> dict:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    environ["PYTHONPATH"] = str(package)
    argv = [sys.executable, *([] if write else ["-B"]), *options, "-c", PROGRAM, how]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=60, check=True)
    return dict(json.loads(done.stdout))


def test_modules_are_those_of_the_import_system(package: Path) -> None:
    plain = run(package, "plain")
    for _ in range(2):  # without byte code, and with it
        quick = run(package, "quick")
        assert quick.pop("quick") == [True] * 3
        assert {"quick": [False] * 3, **quick} == plain
    assert plain["values"] == ["first", "firstfirst"]
    assert plain["missing"] == "pack.missing"


def test_a_changed_source_is_taken_whatever_is_cached(package: Path) -> None:
    assert run(package, "quick")["values"][0] == "first"
    source = package / "pack" / "one.py"
    before = source.stat()
    source.write_text("VALUE = 'other one'\n")
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))  # its size tells
    assert run(package, "quick", write=False)["values"][0] == "other one"
    source.write_text("VALUE = 'first'\n".replace("first", "third"))
    os.utime(source, (before.st_atime, before.st_mtime + 10))  # its time tells
    assert run(package, "quick", write=False)["values"][0] == "third"


def test_byte_code_of_another_kind_is_left_to_the_import_system(package: Path) -> None:
    """Cut short, or made for another version: it is compiled again; ``-O`` has files of its own."""
    run(package, "quick")
    (cached,) = (package / "pack" / "__pycache__").glob("one.*.pyc")
    whole = cached.read_bytes()
    for data in (b"", whole[:8], b"\0" * 4 + whole[4:]):
        cached.write_bytes(data)
        assert run(package, "quick", write=False)["values"][0] == "first"
    optimized = run(package, "quick", "-O")
    assert optimized["quick"] == [False] * 3
    assert optimized["values"][0] == "first"
