"""Masks of files without mounts: the supervisor opens a copy with placeholders, and nothing leads to the file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.needs_kernel("landlock"),
    pytest.mark.needs_kernel("landlock without TCP"),
]
VALUE = "abcdefghijklmnopqrstuvwxyz0123456789"
READS = ("read", "beside", "link", "directory", "dots", "inner")
BODY = """
import ctypes, errno, fcntl, json, os, struct
L = ctypes.CDLL(None, use_errno=True)
def outcome(action):
    try:
        told = action()
        return "ok" if told is None else told
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))
def read(path, flags=os.O_RDONLY, **more): return os.read(os.open(path, flags, **more), 200).decode()
def opened(): return "/proc/self/fd/%d" % os.open("token.json", os.O_RDONLY)
def copied(path): os.link("token.json", path); return read(path)
def moved(): os.rename("token.json", "free/t"); return read("free/t")
def replaced(): open("n", "w").close(); os.rename("n", "token.json"); return "replaced"
def by_path(): return read("/proc/self/fd/%d" % os.open("token.json", os.O_PATH))
def at(where): return read("token.json", dir_fd=os.open(where, os.O_PATH))
print(json.dumps({
    "read": outcome(lambda: read("token.json")),
    "beside": outcome(lambda: read("token.json", os.O_RDONLY | os.O_NOFOLLOW)),
    "link": outcome(lambda: (os.symlink("../token.json", "free/l"), read("free/l"))[1]),
    "directory": outcome(lambda: at(".")),
    "dots": outcome(lambda: read("free/../token.json")),
    "inner": outcome(lambda: read(INNER)),
    "as a directory": outcome(lambda: read("token.json", os.O_DIRECTORY)),
    "exclusive": outcome(lambda: os.open("token.json", os.O_CREAT | os.O_EXCL | os.O_RDWR)),
    "write": outcome(lambda: os.open("token.json", os.O_RDWR)),
    "cut": outcome(lambda: os.truncate("token.json", 0)),
    "opened again": outcome(lambda: os.open(opened(), os.O_RDWR)),
    "mode": outcome(lambda: os.chmod("token.json", 0o666)),
    "mode of it": outcome(lambda: os.fchmod(os.open("token.json", os.O_RDONLY), 0o666)),
    "hard link": outcome(lambda: copied("h")),
    "hard link below": outcome(lambda: copied("free/h")),
    "by path": outcome(by_path),
    "moved": outcome(moved),
    "removed": outcome(lambda: os.unlink("token.json")),
    "replaced": outcome(replaced),
    "place": outcome(lambda: os.listdir(os.path.dirname(os.environ["TMPDIR"]) + "/copies")),
}))
"""


def test_a_masked_file_is_its_copy_by_every_way(tmp_path: Path) -> None:
    work, home, trees = tmp_path / "w", tmp_path / "h", tmp_path / "read-only"
    for each in (work, work / "free", home, home / ".membrane", trees):
        each.mkdir()
    (home / ".membrane").chmod(0o700)
    files = (work / "token.json", trees / "token.json")
    masks = [
        {"file": str(each), "extract": '"token": "([a-z0-9]+)"', "to": ["https://api.example.com"]} for each in files
    ]
    config = {"masks": masks, "mounts": [{"path": str(trees)}]}
    (home / ".membrane" / "config.yaml").write_text(json.dumps(config))

    def run(*before: str) -> Any:
        for each in files:
            each.unlink(missing_ok=True)
            each.write_text(f'{{"token": "{VALUE}"}}')
            each.chmod(0o600)
        command = ["/usr/bin/python3", "-c", f"INNER = {str(files[1])!r}\n{BODY}"]
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(home), "LANG": "C.UTF-8", "TMPDIR": "/tmp/none"}
        done = subprocess.run(  # noqa: PLW1510
            [*before, *command], cwd=work, env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    found = run(sys.executable, "-m", "membrane", "-q", "--backend", "landlock", "--")
    kept = [each.read_text() for each in files]
    assert kept == [f'{{"token": "{VALUE}"}}'] * 2 and files[0].stat().st_mode & 0o777 == 0o600
    shown = {found[name] for name in READS}
    assert len(shown) == 1, found  # one value, one placeholder
    (text,) = shown
    assert VALUE not in json.dumps(found) and len(json.loads(text)["token"]) == len(VALUE)
    assert found["as a directory"] == "ENOTDIR" and found["exclusive"] == "EEXIST"
    refused = ("write", "cut", "opened again", "mode", "mode of it", "moved", "removed", "replaced", "by path", "place")
    assert {name: found[name] for name in refused} == dict.fromkeys(refused, "EACCES")
    assert {found["hard link"], found["hard link below"]} <= {"EACCES", "EXDEV"}
    assert not os.path.lexists(work / "h") and not os.path.lexists(work / "free" / "h")
    for name in ("n", "free/l"):
        (work / name).unlink(missing_ok=True)
    control = run()
    assert all(VALUE in control[name] for name in READS)
    assert {control[name] for name in ("cut", "mode", "mode of it", "replaced")} == {"ok", "replaced"}
