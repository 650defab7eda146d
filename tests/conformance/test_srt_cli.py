"""Command line cases of sandbox-runtime's own tests (cli, cli-config-loading, control-fd, cli-violations)."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from typing import Any

import pytest
from srt_box import SrtBox, srt_argv
from world import names

VALID = {
    "network": {"allowedDomains": [], "deniedDomains": []},
    "filesystem": {"denyRead": [], "allowWrite": ["."], "denyWrite": []},
}


@pytest.mark.parametrize(
    ("line", "output"),
    [
        ("echo hello", "hello\n"),
        ('echo "hello world"', "hello world\n"),
        ('echo \'{"key": "value"}\'', '{"key": "value"}\n'),
        ('echo \'{"a": {"b": [1, 2]}}\'', '{"a": {"b": [1, 2]}}\n'),
        ('echo "hello world" | wc -w', "2\n"),
        ("echo $(echo nested)", "nested\n"),
        ("false || echo other", "other\n"),
    ],
    ids=["simple", "verbatim", "json", "nested json", "pipe", "substitution", "or"],
)
def test_c(box: SrtBox, line: str, output: str) -> None:
    done = box.srt("-c", line)
    assert (done.returncode, done.stdout) == (0, output)


def test_c_expansion(box: SrtBox) -> None:
    assert box.srt("-c", "echo $HOME").stdout == f"{box.home}\n"


@pytest.mark.parametrize(
    ("words", "output"),
    [
        (["echo", "hello", "world"], "hello world\n"),
        (["echo", "-n", "no newline"], "no newline"),
        (["printf", "%s\\n", "hello world", "a b"], "hello world\na b\n"),
        (["printf", "%s", "$HOME;|&"], "$HOME;|&"),
    ],
    ids=["simple", "flags", "spaces", "metacharacters"],
)
def test_positional(box: SrtBox, words: list[str], output: str) -> None:
    done = box.srt(*words)
    assert (done.returncode, done.stdout) == (0, output)


@pytest.mark.ours
def test_sole_argument_with_white_space_is_a_shell_line(box: SrtBox) -> None:
    assert box.srt("echo one two | wc -w").stdout == "2\n"


@pytest.mark.ours
@pytest.mark.parametrize(
    "words",
    [
        ["python3", "-c", "print(1)"],
        ["ls", "-d", "."],
        ["python3", "--version"],
        ["du", "-s", "-h", "."],
        ["echo", "--control-fd", "5"],
        ["echo", "-s", "x", "--help", "-V"],
    ],
    ids=" ".join,
)
def test_flags_of_the_command_stay_its_own(box: SrtBox, words: list[str]) -> None:
    plain = box.world.run(words, cwd=box.work, env=box.environment())
    done = box.srt(*words)
    assert (done.returncode, done.stdout.split()[-1:]) == (0, plain.stdout.split()[-1:])
    assert "SandboxDebug" not in done.stderr


@pytest.mark.parametrize("arguments", [[], ["-d"], ["-c", ""]], ids=["nothing", "only options", "empty line"])
def test_no_command(box: SrtBox, arguments: list[str]) -> None:
    done = box.srt(*arguments)
    assert done.returncode == 1 and "No command specified" in done.stderr + done.stdout


@pytest.mark.ours
@pytest.mark.parametrize("arguments", [["--nope", "true"], ["-s"], ["--control-fd", "2", "true"]], ids=" ".join)
def test_unusable_options(box: SrtBox, arguments: list[str]) -> None:
    done = box.srt(*arguments)
    assert done.returncode == 1 and done.stderr.startswith("srt: ") and "Traceback" not in done.stderr


def test_explicit_settings_are_missing(box: SrtBox) -> None:
    done = box.srt("-s", str(box.directory / "absent.json"), "-c", "echo ran > ran")
    assert done.returncode == 1 and "does not exist" in done.stderr
    assert not (box.work / "ran").exists()


@pytest.mark.parametrize(
    "text",
    ["", "  \n", "{", "[]", "{}", json.dumps({**VALID, "network": {}}), json.dumps({**VALID, "network": 1})],
    ids=["empty", "blank", "bad JSON", "array", "nothing required", "lists missing", "wrong type"],
)
def test_explicit_settings_are_invalid(box: SrtBox, text: str) -> None:
    box.settings_path.write_text(text)
    done = box.shell("echo ran > ran")
    assert done.returncode == 1 and done.stderr and not (box.work / "ran").exists()


@pytest.mark.ours
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"filesystem": {**VALID["filesystem"], "denyReads": []}}, 'unknown key; did you mean "denyRead"?'),
        ({"netwrok": {}}, "unknown key"),
        ({"network": {"allowedDomains": ["*.com"], "deniedDomains": []}}, "network.allowedDomains.0"),
        ({"network": {"allowedDomains": "a.b", "deniedDomains": []}}, "expected an array"),
        ({"mandatoryDenySearchDepth": 11}, "from 1 to 10"),
        ({"bwrapPath": "bin/bwrap"}, "absolute"),
    ],
    ids=["typo", "unknown", "domain", "scalar", "depth", "relative"],
)
def test_every_key_is_checked(box: SrtBox, change: dict[str, Any], message: str) -> None:
    box.settings_path.write_text(json.dumps({**VALID, **change}))
    done = box.shell("echo ran")
    assert done.returncode == 1 and message in done.stderr and done.stdout == ""


@pytest.mark.ours
@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"network": {**VALID["network"], "mitmProxy": {"socketPath": "/x", "domains": []}}}, "network.mitmProxy"),
        ({"network": {**VALID["network"], "mitmProxy": {"socketPath": "./x", "domains": []}}}, "network.mitmProxy"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_can_not_be_bound_stops_the_run(box: SrtBox, change: dict[str, Any], key: str) -> None:
    box.settings_path.write_text(json.dumps({**VALID, **change}))
    done = box.shell("echo ran")
    assert done.returncode == 78 and key in done.stderr and done.stdout == ""


@pytest.mark.ours
def test_keys_without_a_meaning_here_make_one_line_each(box: SrtBox) -> None:
    box.settings_path.write_text(json.dumps({**VALID, "allowAppleEvents": True, "ripgrep": {"command": "rg"}}))
    done = box.shell("echo ran")
    assert done.stdout == "ran\n" and done.stderr.count("has no effect here") == len(done.stderr.splitlines()) == 2


def test_invalid_default_settings(box: SrtBox) -> None:
    (box.home / ".srt-settings.json").write_text("{")
    done = box.srt("-c", "echo ran")
    assert done.returncode == 1 and done.stdout == ""


def test_no_default_settings(box: SrtBox) -> None:
    done = box.srt("-c", "echo ran; echo x > f")
    assert done.stdout == "ran\n" and done.returncode != 0  # the defaults open no write


def test_default_settings_are_read(box: SrtBox) -> None:
    (box.home / ".srt-settings.json").write_text(json.dumps(VALID))
    assert box.srt("-c", "echo x > f").returncode == 0


@pytest.mark.parametrize("how", ["option", "variable"])
def test_debug(box: SrtBox, how: str) -> None:
    arguments = ["-d"] if how == "option" else []
    done = box.srt(*arguments, "echo", "x", env={"SRT_DEBUG": "1"} if how == "variable" else {})
    assert "[SandboxDebug]" in done.stderr and done.stdout == "x\n"
    assert "[SandboxDebug]" not in box.srt("echo", "x").stderr


@pytest.mark.parametrize("line", ["exit 0", "exit 1", "exit 42", "exit 127"])
def test_exit_status(box: SrtBox, line: str) -> None:
    assert box.srt("-c", line).returncode == int(line.split()[1])


def test_killed_by_a_signal_inside(box: SrtBox) -> None:
    assert box.srt("-c", "kill -TERM $$").returncode == 143


@pytest.mark.ours
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_srt_is_its_status(box: SrtBox, number: signal.Signals) -> None:
    with box.popen("-c", "echo up; exec sleep 60", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline() == b"up\n"
        # The world's entry program is our child and execs srt: the pid is srt's.
        os.kill(process.pid, number)
        process.communicate(timeout=60)
        assert process.returncode == 128 + number


# ---------------------------------------------------------------- control


class Channel:
    """srt with a control descriptor."""

    def __init__(self, box: SrtBox, line: str, *, first: bytes = b"") -> None:
        self.read, self.write = os.pipe()
        if first:
            os.write(self.write, first)
        argv = ["bash", "-c", f'exec "$@" 9<&{self.read}', "bash", *srt_argv()]
        argv += ["-s", str(box.settings_path), "--control-fd", "9", "-c", line]
        self.process = subprocess.Popen(
            box.world.argv(argv),
            cwd=box.work,
            env=box.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[self.read],
            start_new_session=True,
        )

    def send(self, settings: object) -> None:
        text = settings if isinstance(settings, str) else json.dumps(settings)
        os.write(self.write, text.encode() + b"\n")

    def end(self, timeout: float = 60) -> tuple[int, str, str]:
        try:
            out, err = self.process.communicate(timeout=timeout)
        finally:
            self.process.kill()
            self.process.wait()
            os.close(self.read)
            os.close(self.write)
        return self.process.returncode, out.decode(), err.decode()


def with_domains(*domains: str) -> dict[str, Any]:
    return {**VALID, "network": {"allowedDomains": list(domains), "deniedDomains": []}}


def _until(code: str) -> str:
    """Ask until the answer has this status; about 30 s at most."""
    ask = f"curl -s -m 10 -o /dev/null -w '%{{http_code}}' http://example.com:{names.LAN_PORT - 7920}/"
    return f'for i in $(seq 300); do test "$({ask})" = {code} && echo got {code} && break; sleep 0.1; done'


def test_control_line_opens_and_closes_live(box: SrtBox) -> None:
    channel = Channel(box, f"{_until('403')}; echo next; {_until('200')}; {_until('403')}")
    assert channel.process.stdout
    assert channel.process.stdout.readline() == b"got 403\n"
    channel.send(with_domains("example.com"))
    assert channel.process.stdout.readline() == b"next\n"
    assert channel.process.stdout.readline() == b"got 200\n"
    channel.send(with_domains())
    status, out, _err = channel.end()
    assert (status, out) == (0, "got 403\n")


def test_control_line_before_the_start_is_applied(box: SrtBox) -> None:
    channel = Channel(box, _until("200"), first=json.dumps(with_domains("example.com")).encode() + b"\n")
    assert channel.end()[:2] == (0, "got 200\n")


def test_bad_control_line_is_told_without_its_content(box: SrtBox) -> None:
    box.settings({"allowedDomains": ["example.com"]})
    channel = Channel(box, "read go; " + _until("200"), first=b'{"secret": hunter2\n\n   \n')
    assert channel.process.stdin
    deadline = time.monotonic() + 60
    told = b""
    while b"left out" not in told and b"gnor" not in told:
        assert channel.process.stderr and time.monotonic() < deadline, told
        if select.select([channel.process.stderr], [], [], 1)[0]:
            told += os.read(channel.process.stderr.fileno(), 4096)
    channel.process.stdin.write(b"go\n")
    channel.process.stdin.flush()
    status, out, err = channel.end()
    assert (status, out) == (0, "got 200\n")
    assert "hunter2" not in told.decode() + err


def test_control_channel_that_stays_open_does_not_hold_the_end(box: SrtBox) -> None:
    assert Channel(box, "echo done").end()[:2] == (0, "done\n")


def test_control_end_of_file_is_fine(box: SrtBox) -> None:
    line = f"exec {srt_argv()[0]} -s {box.settings_path} --control-fd 8 -- echo fine 8</dev/null"
    done = box.world.run(["bash", "-c", line], cwd=box.work, env=box.environment())
    assert (done.returncode, done.stdout) == (0, "fine\n")


def test_control_regular_file(box: SrtBox) -> None:
    lines = box.directory / "lines"
    lines.write_text(json.dumps(with_domains("example.com")) + "\n")
    line = f'exec {srt_argv()[0]} -s {box.settings_path} --control-fd 8 -c "$1" 8<{lines}'
    done = box.world.run(["bash", "-c", line, "bash", _until("200")], cwd=box.work, env=box.environment())
    assert (done.returncode, done.stdout) == (0, "got 200\n")


@pytest.mark.parametrize("redirection", ["8>&-", "8>/dev/null"], ids=["not open", "write only"])
def test_control_descriptor_that_can_not_be_read(box: SrtBox, redirection: str) -> None:
    line = f"exec {srt_argv()[0]} -s {box.settings_path} --control-fd 8 -- touch ran {redirection}"
    done = box.world.run(["bash", "-c", line], cwd=box.work, env=box.environment())
    assert done.returncode == 1 and "8" in done.stderr and not (box.work / "ran").exists()


def test_command_can_not_read_the_control_descriptor(box: SrtBox) -> None:
    channel = Channel(box, "cat <&9; ls /proc/self/fd", first=b"\n")
    _status, out, _err = channel.end()
    assert "allowedDomains" not in out


# ---------------------------------------------------------------- violations


@pytest.mark.ours
def test_violations_unwritable(box: SrtBox) -> None:
    done = box.srt("--violations", str(box.directory / "absent" / "v"), "-c", "echo ran")
    assert done.returncode == 1 and done.stdout == ""


@pytest.mark.ours
def test_violations_clean_run_is_an_empty_file(box: SrtBox) -> None:
    log = box.directory / "v"
    assert box.srt("--violations", str(log), "true").returncode == 0
    assert log.read_text() == "" and not list(box.directory.glob("v?*"))


@pytest.mark.ours
def test_violations_are_ignored_where_the_settings_say_so(box: SrtBox) -> None:
    log = box.directory / "v"
    box.settings(ignoreViolations={"*": ["google.com"]})
    line = "curl -s http://google.com/ http://github.com/ >/dev/null"
    box.srt("-s", str(box.settings_path), "--violations", str(log), "-c", line)
    lines = [json.loads(each)["line"] for each in log.read_text().splitlines()]
    lines = [line for line in lines if not line.startswith("deny socket (")]  # of AF_UNIX, by name services
    assert lines == ["deny network-outbound github.com:80 (name not allowed)"]


@pytest.mark.ours
def test_violations_hold_what_the_kernel_refused(box: SrtBox) -> None:
    """Reads, writes and removals, each once; the control: what was possible is not there."""
    log = box.directory / "v"
    (box.work / "secret").write_text("s")
    (box.work / "open").write_text("o")
    box.settings(filesystem={"denyRead": [str(box.work / "secret")], "allowWrite": [str(box.work)], "denyWrite": []})
    line = "cat secret; cat secret; cat open; touch new; touch /etc/new; rm /etc/hostname; true"
    done = box.srt("-s", str(box.settings_path), "--violations", str(log), "-c", line)
    assert done.returncode == 0, done
    lines = [json.loads(each)["line"] for each in log.read_text().splitlines()]
    for what in ("deny file-read secret (", "deny file-write /etc/new (", "deny file-write /etc/hostname ("):
        assert any(what in each or what.replace("read secret", f"read {box.work}/secret") in each for each in lines), (
            lines
        )
    assert not any(word in each for each in lines for word in ("open (", "/new (READ", f"{box.work}/new"))


@pytest.mark.ours
def test_violations_hold_sockets_that_were_refused(box: SrtBox) -> None:
    """Of every caller, with eBPF or without; the control: with ``allowAllUnixSockets`` there is none."""
    log = box.directory / "v"
    program = "import socket\ntry: socket.socket(socket.AF_UNIX); print('made')\nexcept OSError as e: print(e.errno)"
    for allowed, answer in ((False, "1\n"), (True, "made\n")):
        box.settings(network={"allowedDomains": [], "deniedDomains": [], "allowAllUnixSockets": allowed})
        done = box.srt("-s", str(box.settings_path), "--violations", str(log), "/usr/bin/python3", "-c", program)
        assert done.stdout == answer, done
        assert ("deny socket (EPERM)" in [json.loads(each)["line"] for each in log.read_text().splitlines()]) != allowed


@pytest.mark.ours
def test_srt_proxy_says_what_to_use(box: SrtBox) -> None:
    done = box.srt("proxy", "--listen", "127.0.0.1:0")
    assert done.returncode == 1 and "is not part of this srt" in done.stderr and "httpProxyPort" in done.stderr
    program = box.work / "proxy"
    program.write_text("#!/bin/sh\necho mine\n")
    program.chmod(0o755)
    assert box.srt("./proxy").stdout == "mine\n"
