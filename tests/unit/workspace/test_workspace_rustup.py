"""``rust-toolchain``: released toolchains are chosen, and no other is.

``tomllib`` says what TOML makes of a text; that rustup does as its page says was seen with rustup 1.29.
"""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from membrane.workspace.judge import judge
from membrane.workspace.rustup import LEADS, objection

WHOLE = """\
# which Rust
[toolchain]  # of this project
channel = "nightly-2024-01-01"
components = [
    "rustfmt", 'clippy',  # and
    "rust-analyzer",
]
targets = ["wasm32-unknown-unknown", "thumbv7em-none-eabihf"]
profile = "minimal"
"""
FINE = [
    *("stable", "beta\n", "nightly", "1.78.0\n", "1.78", "1.79.0-beta.2", "nightly-2024-01-01\r\n", " stable \n", ""),
    "stable-x86_64-unknown-linux-gnu\n",
    WHOLE,
    WHOLE.replace("\n", "\r\n"),
    '[toolchain]\nchannel = "1.78.0"\n',
    '[toolchain]\ncomponents = []\nchannel="stable"',
    "[toolchain]\n",
    "# nothing yet\n",
]
REFUSED = [
    *("/tmp/evil", "./evil\n", "../evil", "a/b", "~/evil", "mine\n", "stage1", "1.78.0-mine", "stable-mine", "..\\x"),
    '[toolchain]\npath = "evil"\n',
    '[toolchain]\nchannel = "stable"\npath = "/tmp/evil"\n',
    '[toolchain]\n"path" = "evil"\n',
    '[toolchain]\n"p\\u0061th" = "evil"\n',
    'toolchain.path = "evil"\n',
    'toolchain = { path = "evil" }\n',
    '["toolchain"]\npath = "evil"\n',
    '[[toolchain]]\npath = "evil"\n',
    '[toolchain]\nchannel = "mine"\n',
    '[toolchain]\nchannel = "../../evil"\n',
    '[toolchain]\nchannel = """stable"""\n',
    '[toolchain]\nchannel = "stable"\nchannel = "mine"\n',
    '[toolchain]\nchannel = ["stable"]\n',
    '[toolchain]\nprofile = """\n"""\npath = "evil"\n',
    '[toolchain]\ntargets = ["x"\n',
    '[toolchain]\ntargets = ["x" "y"]\n',
    '[toolchain]\n# \rpath = "evil"\n',
    '[toolchain]\rpath = "evil"\n',
    '[other]\nchannel = "stable"\n',
    "\ufeffstable\n",
    "\u0661.78.0",
    "[toolchain",
]


@pytest.mark.parametrize("text", FINE)
def test_a_released_toolchain_may_be_chosen(text: str) -> None:
    assert objection(text) == ""


@pytest.mark.parametrize("text", REFUSED)
def test_what_may_be_the_commands_own_toolchain_is_refused(text: str) -> None:
    assert objection(text)


def test_a_path_is_called_one() -> None:
    assert objection("/tmp/evil\n") == objection('[toolchain]\npath = "x"\n') == LEADS


_PIECES = st.sampled_from(
    [
        *("[toolchain]", "[", "]", "\n", " ", "=", ",", '"', "'", "'''", '"""', "#", "\\", "/", "\r", "\t"),
        *("path", "channel", "targets", "components", "profile", '"stable"', "'x'", '"path"', "stable", "{"),
        *('[toolchain]\nchannel = "stable"\n', '\npath = "x"\n', "\ntargets = [\"a\", 'b']\n", "# c\n"),
    ]
)


@given(st.lists(_PIECES, max_size=12).map("".join))
def test_what_is_let_be_means_no_more_to_toml(text: str) -> None:
    if objection(text):
        return
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return  # rustup stops at it
    assert found.keys() <= {"toolchain"}
    table = found.get("toolchain", {})
    assert table.keys() <= {"channel", "targets", "components", "profile"}
    assert re.fullmatch("stable", table.get("channel", "stable"))


@pytest.mark.parametrize("name", ["rust-toolchain", "rust-toolchain.toml", "a/Rust-Toolchain"])
def test_the_file_is_judged_by_what_it_holds(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    fd = os.open(tmp_path, os.O_PATH)
    try:
        path.write_text("stable\n")
        assert judge(fd, name) == ""
        path.write_text("/tmp/evil\n")
        assert judge(fd, name) == LEADS
        path.rename(tmp_path / "brought")
        assert judge(fd, name, "brought") == LEADS
        path.symlink_to(tmp_path / "brought")
        assert judge(fd, name) == "it is a symbolic link"
        path.unlink()
        path.mkdir()
        assert judge(fd, name) == "", "rustup reads no directory, as the repository of an action is called"
    finally:
        os.close(fd)
