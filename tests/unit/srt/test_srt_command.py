"""srt.cli: options end where the command begins, settings are read or refused, the channel of settings, the log."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from membrane.errors import HostError, MembraneError, PolicyError
from membrane.events import AccessDenied
from membrane.policy.model import Policy
from membrane.srt import cli
from membrane.srt import settings as srt

EMPTY: dict[str, Any] = {
    "network": {"allowedDomains": [], "deniedDomains": []},
    "filesystem": {"denyRead": [], "allowWrite": [], "denyWrite": []},
}


def settings(*allowed: str, **more: Any) -> dict[str, Any]:
    return {**EMPTY, "network": {"allowedDomains": [*allowed], "deniedDomains": []}, **more}


# ---------------------------------------------------------------- the command line


def test_options_stop_at_the_first_word_that_is_none() -> None:
    found = cli.parse(["-d", "-s", "f", "ls", "-c", "x", "--settings", "y"])
    assert (found.debug, found.settings, found.line) == (True, "f", None)
    assert found.words == ("ls", "-c", "x", "--settings", "y")
    assert cli.parse(["--", "-c", "x"]).words == ("-c", "x")
    assert cli.parse(["-", "-c"]).words == ("-", "-c")


@pytest.mark.parametrize("words", [["-s", "f"], ["-sf"], ["-s=f"], ["--settings", "f"], ["--settings=f"]])
def test_spellings_of_a_value(words: list[str]) -> None:
    found = cli.parse([*words, "-cecho x", "--control-fd=7", "--violations", "log"])
    assert (found.settings, found.line, found.control, found.log) == ("f", "echo x", 7, "log")


@pytest.mark.parametrize(
    "words",
    [["-x"], ["--debug=1"], ["-s"], ["--control-fd"], ["-dx", "x"], ["-dc"]]
    + [["--control-fd", number] for number in ("2", "-1", "x", "", "\u00b2", "1234567")],
)
def test_what_is_no_option_ends_with_status_1(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(MembraneError) as caught:
        cli.parse(words)
    assert caught.value.exit_code == cli.INVALID
    assert cli.main(words) == cli.INVALID
    out, err = capfd.readouterr()
    assert out == "" and err.startswith("srt: ")


@pytest.mark.parametrize(
    ("words", "argv"),
    [
        (["-c", "echo $X"], ("bash", "-c", "echo $X")),
        (["echo a; b"], ("bash", "-c", "echo a; b")),
        (["tool", "a b"], ("tool", "a b")),
        (["./tool"], ("./tool",)),
        (["ulimit", "-n"], ("bash", "-c", '"$@"', "bash", "ulimit", "-n")),
    ],
)
def test_what_is_executed(words: list[str], argv: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "tool").touch(0o755)
    assert cli.command(cli.parse(words), f"/nonexistent:{tmp_path}") == argv


def test_flags_in_one_word() -> None:
    found = cli.parse(["-dc", "echo x"])
    assert found.debug and found.line == "echo x"
    assert cli.parse(["-dsf", "tool", "-dc"]).words == ("tool", "-dc") and cli.parse(["-dsf"]).settings == "f"


@pytest.mark.parametrize("words", [[], ["-c", " "], ["-c", "x", "y"], ["proxy"], ["windows-install"]])
def test_no_command(words: list[str]) -> None:
    with pytest.raises(MembraneError) as caught:
        cli.command(cli.parse(words), "/nonexistent")
    assert caught.value.exit_code == cli.INVALID


# ---------------------------------------------------------------- settings


def test_settings_are_those_named_or_the_users_or_the_built_in_ones(tmp_path: Path) -> None:
    assert cli.load(None, str(tmp_path)).file == "built-in settings of srt"
    own = tmp_path / ".srt-settings.json"
    own.write_text(json.dumps(settings()))
    assert cli.load(None, str(tmp_path)).file == str(own)
    with pytest.raises(MembraneError, match="Refusing to run with the built-in defaults"):
        cli.load(str(tmp_path / "none"), str(tmp_path))


def test_settings_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "s"
    file.write_bytes(b'{"\xff": 1}')
    for path, said in ((file, "it is not UTF-8"), (tmp_path, "Is a directory")):
        with pytest.raises(PolicyError, match=said):
            cli.load(str(path), "/")
    os.mkfifo(tmp_path / "fifo")  # without a writer: it is empty, and not waited for
    with pytest.raises(PolicyError):
        cli.load(str(tmp_path / "fifo"), "/")
    monkeypatch.setattr(cli, "_LONGEST_SETTINGS", 64)
    file.write_text(" " * 65)
    with pytest.raises(PolicyError, match="longer than 64 bytes"):
        cli.load(str(file), "/")


def test_the_temporary_directory_is_ours_or_a_private_one(tmp_path: Path) -> None:
    made = srt.convert(srt.check(settings(), "f"), environ={}, home="/home/u", base="/w")
    uid = os.getuid()
    assert cli.temporary(made.replace(temporary=str(tmp_path)), uid) == str(tmp_path)
    assert cli.temporary(made.replace(temporary=str(tmp_path)), uid + 1) == f"/run/user/{uid + 1}"
    (tmp_path / "file").touch()
    for path in ("/nonexistent/x", str(tmp_path / "file")):
        assert cli.temporary(made.replace(temporary=path), uid) == f"/run/user/{uid}"


# ---------------------------------------------------------------- while it runs


class Session:
    """What a channel of settings reaches."""

    class options:
        debug = False

    def __init__(self) -> None:
        self.policies: list[Policy] = []
        self.failure, self.signals = "", []
        self.refusal: Exception | None = None

    def update_network(self, policy: Policy) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.policies.append(policy)

    def end(self, number: int) -> None:
        self.signals.append(number)


Maker = Callable[..., cli.Control]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Maker]:
    made_all: list[cli.Control] = []
    opened: list[int] = []  # a channel that has ended forgets its own

    def control(*words: str, **more: Any) -> cli.Control:
        converted = srt.convert(srt.check(settings(**more), "f"), environ={}, home="/home/u", base="/w")
        made = cli.Control(cli.parse([*words, "make", "all"]), ("make", "all"), converted, "/home/u", "/w")
        made_all.append(made)
        opened.append(made.fd)
        return made

    yield control
    for fd in (*opened, *(each._log for each in made_all)):
        if fd >= 0:
            os.close(fd)


def pipe(make: Maker) -> tuple[cli.Control, int]:
    read, write = os.pipe()
    return make("--control-fd", str(read)), write


def names(session: Session) -> list[list[str]]:
    return [[rule.text for rule in policy.allow] for policy in session.policies]


def test_a_line_of_settings_holds_when_it_is_whole(make: Maker) -> None:
    control, write = pipe(make)
    session: Any = Session()
    line = json.dumps(settings("a.example")).encode()
    os.write(write, line[:20])
    control.readable(session)
    assert names(session) == []
    os.write(write, line[20:] + b"\n\n" + json.dumps(settings("b.example")).encode())
    control.readable(session)
    assert names(session) == [["a.example"]]
    control.readable(session)  # nothing there: not waited for
    os.close(write)
    control.readable(session)
    assert names(session) == [["a.example"], ["b.example"]] and control.fd == -1


def test_lines_that_are_no_settings_change_nothing_and_are_not_repeated(
    make: Maker, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "_LONGEST_SETTINGS", 200)
    control, write = pipe(make)
    session: Any = Session()
    hostile = (b'"geheim"', b"\xff geheim", b'{"network": "geheim"}', b"[" * 150)
    os.write(write, b"".join(line + b"\n" for line in hostile))
    control.readable(session)
    os.write(write, b"geheim" * 100)  # no end, and longer than settings may be
    control.readable(session)
    os.write(write, b"its end\n" + json.dumps(settings("a.example")).encode() + b"\n")
    control.readable(session)
    os.close(write)
    assert names(session) == [["a.example"]]
    err = capfd.readouterr().err
    assert "geheim" not in err and err.count("a line was left out: it is not valid") == len(hostile)
    assert err.count("a line is too long") == 1


def test_settings_that_cannot_hold_now_are_left_out(make: Maker, capfd: pytest.CaptureFixture[str]) -> None:
    control, write = pipe(make)
    session: Any = Session()
    session.refusal = HostError("x", "y")
    os.write(write, json.dumps(settings("a.example")).encode() + b"\n")
    os.close(write)
    control.readable(session)
    assert "it cannot be applied while the command runs" in capfd.readouterr().err
    assert session.signals == []


def test_the_channel_is_readable_and_not_the_commands(make: Maker) -> None:
    read, write = os.pipe()
    control = make("--control-fd", str(read))
    with pytest.raises(OSError):
        os.fstat(read)
    assert fcntl.fcntl(control.fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC and not os.get_blocking(control.fd)
    for fd, said in ((write, "cannot be read"), (999999, "Bad file descriptor")):
        with pytest.raises(MembraneError, match=said):
            make("--control-fd", str(fd))
    os.close(write)


def test_a_plain_file_is_a_channel_that_ends(make: Maker, tmp_path: Path) -> None:
    (tmp_path / "s").write_text(json.dumps(settings("a.example")) + "\n")
    control, session = make("--control-fd", str(os.open(tmp_path / "s", os.O_RDONLY))), Session()
    with select.epoll() as epoll:  # a file itself cannot be watched
        epoll.register(control.fd, select.EPOLLIN)
    for _ in range(2):
        control.readable(session)  # type: ignore[arg-type]
    assert names(session) == [["a.example"]] and control.fd == -1


def test_a_channel_that_fails_before_it_delivered_ends_the_run(make: Maker) -> None:
    control, session = make(), Session()
    control.fd = os.open("/", os.O_RDONLY)
    fd = control.fd
    control.readable(session)  # type: ignore[arg-type]
    os.close(fd)
    assert "before it delivered" in session.failure and session.signals == [cli.SIGTERM]


def denied(host: str, rule: str | None = None) -> AccessDenied:
    return AccessDenied({"kind": "Connect", "host": host, "address": "", "port": 443}, "not-listed", rule, None)


def test_refusals_are_lines_of_json_and_ignored_ones_are_not_written(make: Maker, tmp_path: Path) -> None:
    log = tmp_path / "log"
    control = make("--violations", str(log), ignoreViolations={"make": ["quiet.example"], "other": ["loud.example"]})
    control._reasons = {"bad.example": "we said no"}
    control.refused(denied("loud.example"))
    control.refused(denied("quiet.example"))
    control.refused(denied("bad.example", "bad.example (user settings.json)"))
    first, second = map(json.loads, log.read_text().splitlines())
    assert first["line"] == "deny network-outbound loud.example:443 (not-listed)"
    assert second["line"] == "deny network-outbound bad.example:443 (we said no)"
    assert base64.b64decode(first["encodedCommand"]) == b"make all" == first["command"].encode()
    assert log.stat().st_mode & 0o777 == 0o600


def test_a_log_that_cannot_be_written(make: Maker, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(MembraneError, match="cannot be written: Is a directory"):
        make("--violations", str(tmp_path))
    control = make("--violations", "/dev/full")
    for _ in range(2):
        control.refused(denied("a.example"))
    assert capfd.readouterr().err.count("further refusals are not written") == 1


@pytest.mark.parametrize(
    ("access", "line"),
    [
        ({"kind": "PathAccess", "operation": "read", "path": "/x"}, "deny file-read /x (r)"),
        ({"kind": "SocketAccess", "path": "/s"}, "deny unix-socket /s (r)"),
        ({"kind": "SystemCall", "name": "bpf"}, "deny bpf (r)"),
        ({"kind": "NameQuery", "name": "n.example"}, "deny network-outbound n.example (r)"),
        ({"kind": "Connect", "host": "", "address": "192.0.2.1", "port": 1}, "deny network-outbound 192.0.2.1:1 (r)"),
        (
            {"kind": "HttpRequest", "method": "GET", "scheme": "https", "host": "h", "port": 443, "path": "/p"},
            "deny http-request GET https://h:443/p (r)",
        ),
    ],
)
def test_the_words_of_a_refusal(access: dict[str, Any], line: str) -> None:
    assert cli.violation(AccessDenied(access, "r", None, None), {}) == line


def test_help_and_version_run_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help", "false"]) == 0
    assert capfd.readouterr().out == cli.USAGE
    assert cli.main(["-V"]) == 0
    assert capfd.readouterr().out.startswith("srt (membrane ")
