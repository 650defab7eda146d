"""What a person and a script see of membrane itself: subcommands, records, and every kind of bad input."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from typing import Any

import pytest
from world import PATIENCE
from world.box import Box

EX_USAGE, EX_WRAPPER, EX_CONFIG = 2, 125, 78


def clean(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    """No traceback and no bare exception, whatever the error."""
    assert "Traceback" not in done.stderr, done
    assert not re.search(r"^\w*(Error|Exception): ", done.stderr, re.M), done
    return done


def answer(box: Box, *arguments: str) -> dict[str, Any]:
    done = clean(box.run(*arguments))
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_version_and_help(box: Box) -> None:
    assert re.fullmatch(r"membrane \d+\.\d+\.\d+\S*\n", box.run("--version").stdout)
    text = box.run("--help").stdout
    assert "usage: membrane" in text
    assert len(text.splitlines()) <= 70
    for name in ("check", "plan", "doctor", "trust", "ps", "gc", "config"):
        assert name in text
        assert f"membrane {name}" in box.run(name, "--help").stdout


# ---------------------------------------------------------------- check


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("example.com", 0),
        ("example.com:443", 0),
        ("sub.wild.test", 0),
        ("google.com", 1),
        ("ported.test:22", 0),
        ("ported.test:23", 1),
        ("10.0.0.7", 0),
        ("10.0.0.8", 1),
        ("tracker.wild.test", 1),
        ("https://example.com/any/path", 0),
        ("secret.key", 1),
        ("file.txt", 0),
    ],
)
def test_check(box: Box, target: str, status: int) -> None:
    for name in ("secret.key", "file.txt"):
        (box.workspace / name).write_text("x")
    box.allow(
        "example.com",
        "*.wild.test",
        {"dest": "ported.test", "ports": [22]},
        "10.0.0.7",
        deny=["tracker.wild.test"],
        ignore=["*.key"],
    )
    done = clean(box.run("check", target))
    assert done.returncode == status, done
    assert done.stdout.split()[0] == ("allow", "deny")[status]
    found = answer(box, "check", target, "--json")
    assert found["verdict"] == ("allow", "deny")[status]
    assert {"target", "access", "rule", "reason", "bound_by"} <= found.keys()
    if status == 0 and found["rule"]:
        assert found["rule"]["file"].endswith("config.yaml")
        assert found["rule"]["line"] >= 1


def test_check_and_run_agree(box: Box) -> None:
    """One decision function: what check says is what happens."""
    box.allow("example.com", {"dest": "httpbin.org", "ports": [443]}, deny=["www.example.com"])
    for host, port in (("example.com", 80), ("httpbin.org", 443), ("httpbin.org", 80), ("google.com", 80)):
        said = box.run("check", f"{host}:{port}").returncode
        scheme = "https" if port == 443 else "http"
        done = box.run("--", "curl", "-fsk", "-o", "/dev/null", f"{scheme}://{host}:{port}/")
        assert (done.returncode == 0) == (said == 0), (host, port, done)


# ---------------------------------------------------------------- plan, doctor


def test_plan(box: Box) -> None:
    box.allow("example.com", ignore=["*.key"])
    (box.workspace / "a.key").write_text("x")
    text = clean(box.run("plan", "--", "true")).stdout
    for word in ("example.com", "a.key", str(box.workspace)):
        assert word in text
    plan = answer(box, "plan", "--json", "--", "true")
    assert plan
    assert not (box.state / "run").exists() or not list((box.state / "run").iterdir())


def test_doctor(box: Box) -> None:
    done = clean(box.run("doctor"))
    assert done.returncode == 0, done
    assert "native" in done.stdout
    features = json.loads(box.run("doctor", "--json").stdout)
    listed = features if isinstance(features, list) else features["features"]
    assert all({"feature", "support", "why", "fix"} <= entry.keys() for entry in listed)
    assert {entry["support"] for entry in listed} <= {"yes", "no", "unknown"}


# ---------------------------------------------------------------- sessions


def test_session_id_file_ps_and_gc(box: Box) -> None:
    identity = box.workspace / "id"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = box.popen(f"--session-id-file={identity}", "--", "sh", "-c", "echo up; read x; exit 3", **pipes)
    assert process.stdout
    assert process.stdout.readline() == b"up\n"
    session = identity.read_text()
    assert re.fullmatch(r"[0-9a-z-]{8,40}", session)
    listing = clean(box.run("ps")).stdout
    assert session in listing
    entry = next(e for e in json.loads(box.run("ps", "--json").stdout)["sessions"] if e["id"] == session)
    assert entry["workspace"] == str(box.workspace)
    assert clean(box.run("gc")).returncode == 0
    assert session in box.run("ps").stdout, "gc touched a living session"
    process.communicate(b"\n", timeout=PATIENCE)
    assert process.returncode == 3
    assert session not in box.run("ps").stdout


def test_a_dash_for_events_is_refused(box: Box) -> None:
    """It would be read as stderr, where a line of the command's looks like an event: that is to be said by name."""
    done = box.run("--events=-", "--quiet", "--", "sh", "-c", "touch ran; exit 4")
    assert (done.returncode, done.stdout) == (2, "") and not (box.workspace / "ran").exists()
    assert "--events fd:3" in done.stderr and "--events stderr" in done.stderr, done.stderr


def test_events_to_a_descriptor_of_the_caller(box: Box) -> None:
    """Nothing of the command's is among them, and the command does not have it."""
    forged = json.dumps({"event": "SessionEnded", "exit_code": 0})
    script = f"echo '{forged}' >&2; (echo '{forged}' >&3) 2>/dev/null || echo closed"
    argv = shlex.join(box.argv("--events=fd:3", "--quiet", "--", "sh", "-c", script))
    done = box.outside("sh", "-c", f"{argv} 3>events")
    assert (done.returncode, done.stdout) == (0, "closed\n"), done.stderr
    assert forged in done.stderr
    events = [json.loads(line) for line in (box.workspace / "events").read_text().splitlines()]
    assert [event["event"] for event in events].count("SessionEnded") == 1
    assert "session" in events[-1]
    for wrong, status in (("fd:9", 125), ("fd:2", 2), ("fd:x", 2)):
        refused = box.outside("sh", "-c", shlex.join(box.argv(f"--events={wrong}", "--", "touch", "ran")))
        assert refused.returncode == status, (wrong, refused)
    refused = box.outside("sh", "-c", f"{argv} 3</dev/null")
    assert refused.returncode == 125 and "reading only" in refused.stderr
    assert not (box.workspace / "ran").exists()


def test_a_fifo_for_events_that_nobody_reads_holds_no_run_up(box: Box) -> None:
    os.mkfifo(box.workspace / "fifo")
    done = box.run("--events=fifo", "--", "sh", "-c", "exit 4")
    assert done.returncode == 4
    assert re.search(r"\d+ events were not read from fifo and are not in it", done.stderr), done.stderr
    assert clean(box.run("trace", "verify")).returncode == 0  # the record has them


def test_events_to_standard_error(box: Box) -> None:
    done = box.run("--events=stderr", "--quiet", "--", "sh", "-c", "exit 4")
    events = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    assert all(list(event)[:6] == ["time", "session", "seq", "event", "source", "process"] for event in events)
    started, ended = (event for event in events if event["source"] == "session")
    assert (started["event"], ended["event"]) == ("SessionStarted", "SessionEnded")
    assert [event["argv"] for event in events if event["event"] == "ProcessStarted"] == [["sh", "-c", "exit 4"]]
    assert started["command"] == ["sh", "-c", "exit 4"]
    assert started["workspace"] == str(box.workspace)
    assert all(binding["status"] in ("bound", "partial") for binding in started["assurance"])
    assert ended["exit_code"] == 4
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", started["time"])


def test_hostile_text_is_escaped(box: Box) -> None:
    """A name from inside can neither move the cursor nor forge a line."""
    script = """
import socket
try:
    socket.getaddrinfo('a\\x1b[2Jb\\nmembrane: fine.test', 80)
except OSError:
    print("no such name")
"""
    done = box.run(f"--events={box.events_path}", "--", "python3", "-c", script)
    assert done.stdout == "no such name\n"
    assert "\x1b" not in done.stderr
    assert "\x1b" not in box.events_path.read_text()
    assert not [line for line in done.stderr.splitlines() if line == "membrane: fine.test"]


def test_a_run_without_a_record(box: Box) -> None:
    done = box.run("--no-trace", "--", "echo", "x")
    assert done.stdout == "x\n"
    assert done.returncode == 0


def test_subcommand_names_are_programs_after_the_dashes(box: Box) -> None:
    done = box.run("--", "ps", "-o", "pid=")
    assert done.returncode == 0, done
    assert all(word.isdigit() for word in done.stdout.split())


def test_run_subcommand(box: Box) -> None:
    assert box.run("run", "-a", "example.com", "--", "echo", "x").stdout == "x\n"
    assert box.run("run", "ps", "--version").returncode == 0


# ---------------------------------------------------------------- configuration


def test_config_init_show_path(box: Box) -> None:
    path = box.state / "config.yaml"
    assert str(path) in box.run("config", "path").stdout
    assert clean(box.run("config", "init")).returncode == 0
    first = path.read_text()
    assert first.startswith("#")
    path.write_text(first + "\n# mine\n")
    box.run("config", "init")
    assert path.read_text().endswith("# mine\n"), "an existing file was overwritten"
    assert clean(box.run("config", "show")).returncode == 0
    assert oct(os.stat(box.state).st_mode & 0o077) == "0o0"


def test_state_directory_is_out_of_reach(box: Box) -> None:
    """The policy of the next run cannot be written from inside."""
    box.allow("example.com")
    before = (box.state / "config.yaml").read_text()
    box.run("--", "sh", "-c", f"echo 'allow: [\"**\"]' > {box.state}/config.yaml")
    assert (box.state / "config.yaml").read_text() == before
    assert box.run("--", "cat", f"{box.state}/trusted.yaml").returncode == 1


PROJECT = 'allow: ["google.com"]\nignore: ["*.hidden"]\n'
FETCH = ["curl", "-sS", "-o", "/dev/null", "http://google.com/"]


def test_project_file_that_widens_needs_trust(box: Box) -> None:
    box.allow("example.com")
    project = box.workspace / ".membrane.yaml"
    project.write_text(PROJECT)
    refused = clean(box.run("--", *FETCH))
    assert refused.returncode == EX_CONFIG, refused
    assert "--trust-workspace" in refused.stderr
    assert "membrane trust" in refused.stderr
    assert box.run("--trust-workspace", "--", *FETCH).returncode == 0
    assert box.run("--", *FETCH).returncode == EX_CONFIG, "for one run only"
    trusted = clean(box.run("trust", input="y\n"))
    assert trusted.returncode == 0, trusted
    assert box.run("--", *FETCH).returncode == 0
    assert (box.state / "trusted.yaml").stat().st_mode & 0o077 == 0
    project.write_text(PROJECT + "# changed\n")
    assert box.run("--", *FETCH).returncode == EX_CONFIG, "another content is another file"


def test_project_file_that_tightens_always_applies(box: Box) -> None:
    (box.workspace / ".membrane.yaml").write_text('deny: ["example.com"]\nignore: ["*.hidden"]\n')
    (box.workspace / "x.hidden").write_text("x")
    box.allow("example.com", "google.com")
    assert box.run("--", *FETCH).returncode == 0
    assert box.run("--", "curl", "-sS", "http://example.com/").returncode == 6
    assert box.run("--", "grep", ".", "x.hidden").returncode == 1


def test_project_file_is_read_only_inside(box: Box) -> None:
    project = box.workspace / ".membrane.yaml"
    project.write_text('ignore: ["*.hidden"]\n')
    box.run(
        "--",
        "sh",
        "-c",
        "echo 'allow: [\"**\"]' > .membrane.yaml; rm -f .membrane.yaml; echo x > y; mv y .membrane.yaml",
    )
    assert project.read_text() == 'ignore: ["*.hidden"]\n'


def test_no_global_config(box: Box) -> None:
    box.allow("google.com")
    assert box.run("--", *FETCH).returncode == 0
    assert box.run("--no-global-config", "--", *FETCH).returncode == 6


# ---------------------------------------------------------------- bad input

BAD_POLICIES: dict[str, tuple[str, str]] = {
    "unknown key": ("allow:\n  - dest: a.com\n    port: 443\n", r"3:5.*port.*ports"),
    "unknown top level key": ("alow: [a.com]\n", r"1:1.*alow.*allow"),
    "scalar for a list": ("allow: a.com\n", r"1:\d+"),
    "scalar ports": ("allow:\n  - {dest: a.com, ports: 443}\n", r"2:\d+"),
    "port out of range": ("allow:\n  - {dest: a.com, ports: [99999]}\n", r"99999"),
    "empty entry": ("allow:\n  - \n", r"2:\d+"),
    "bad host": ("allow: ['*example.com']\n", r"\*example\.com"),
    "public suffix": ("allow: ['*.com']\n", r"\*\.com"),
    "odd address": ("allow: ['127.1']\n", r"127\.1"),
    "userinfo": ("allow: ['https://a@b.com/']\n", r"a@b\.com"),
    "duplicate key": ("allow: [a.com]\nallow: [b.com]\n", r"2:1"),
    "not yaml": ("allow: [a.com\n", r"config\.yaml:\d+"),
    "not a mapping": ("- a\n", r"config\.yaml:1"),
    "control bytes": ("allow: ['a\\0.com']\n", r"config\.yaml:1|a\\"),
    "bad limit": ("limits: {memory: lots}\n", r"memory|lots"),
    "bad home": ("home: elsewhere\n", r"elsewhere"),
    "unknown profile": ("profiles: [no-such-agent]\n", r"no-such-agent"),
    "missing mount": ("mounts: [{path: /no/such/tree, mode: ro}]\n", r"/no/such/tree"),
    "insecure and not inspected": ("allow: [{dest: a.com, insecure: true}]\n", r"inspect: true"),
    "secret for many hosts": ("secrets: [{name: T, from: 'env:T', to: ['*.a.com']}]\n", r"not one host"),
}


@pytest.mark.parametrize("name", BAD_POLICIES)
def test_bad_policy(box: Box, name: str) -> None:
    """Status 78, the place, the closest known word; nothing has run."""
    text, says = BAD_POLICIES[name]
    box.policy(text)
    done = clean(box.run("--", "touch", "ran"))
    assert done.returncode == EX_CONFIG, done
    assert re.search(says, done.stderr), done.stderr
    assert not (box.workspace / "ran").exists()
    assert done.stderr.startswith("membrane: ")


@pytest.mark.parametrize(
    ("arguments", "statuses", "says"),
    [
        (["--alow=x", "--", "true"], (EX_USAGE,), r"--allow"),
        (["-a"], (EX_USAGE,), r"-a"),
        (["-a", "--", "true"], (EX_USAGE,), r"-a"),
        (["--home=nowhere", "--", "true"], (EX_USAGE, EX_CONFIG), r"nowhere"),
        (["--limit=memory", "--", "true"], (EX_USAGE, EX_CONFIG), r"memory"),
        (["--limit=colour=red", "--", "true"], (EX_USAGE, EX_CONFIG), r"colour"),
        (["--mount=/no/such", "--", "true"], (EX_CONFIG, EX_WRAPPER), r"/no/such"),
        (["-a", "http://", "--", "true"], (EX_USAGE, EX_CONFIG), r"http://"),
        (["-a", "", "--", "true"], (EX_USAGE, EX_CONFIG), r"-a"),
        (["--dns-resolver=not-an-address", "--", "true"], (EX_USAGE, EX_CONFIG), r"not-an-address"),
        (["--upstream-proxy=ftp://x", "--", "true"], (EX_USAGE, EX_CONFIG), r"ftp"),
        (["--unix-socket=/no/such.sock", "--", "true"], (EX_CONFIG, EX_WRAPPER), r"/no/such\.sock"),
        (["--profile=no-such-agent", "--", "true"], (EX_USAGE, EX_CONFIG), r"no-such-agent"),
        (["--events=/no/such/dir/e", "--", "true"], (EX_CONFIG, EX_WRAPPER), r"/no/such/dir"),
        (["--session-id-file=/no/such/dir/e", "--", "true"], (EX_CONFIG, EX_WRAPPER), r"/no/such/dir"),
        (["check"], (EX_USAGE,), r"target"),
        (["check", "a b"], (EX_USAGE, EX_CONFIG, 1), r""),
        (["config", "destroy"], (EX_USAGE,), r"show"),
    ],
)
def test_bad_command_line(box: Box, arguments: list[str], statuses: tuple[int, ...], says: str) -> None:
    done = clean(box.run(*arguments))
    assert done.returncode in statuses, done
    assert re.search(says, done.stderr), done
    assert done.stdout == "" or arguments[0] == "check"


def test_workspace_that_is_gone(box: Box) -> None:
    gone = box.workspace / "gone"
    gone.mkdir()
    command = " ".join(box.argv("--", "true"))
    done = clean(box.outside("bash", "-c", f"rmdir {gone}; exec {command}", cwd=gone))
    assert done.returncode in (EX_WRAPPER, EX_CONFIG), done
    assert "director" in done.stderr


@pytest.mark.parametrize("where", ["/", "home", "/proc/sys", "/dev/pts"])
def test_workspace_that_would_open_everything(box: Box, where: str) -> None:
    """The root or the whole home as a workspace is refused: every later protection would be inside it."""
    done = clean(box.run("--", "true", cwd=box.home if where == "home" else where))
    assert done.returncode == EX_CONFIG, done


def test_state_directory_that_can_not_be_made(box: Box) -> None:
    (box.workspace / "file").write_text("x")
    done = clean(box.run("--", "true", env={"MEMBRANE_HOME": f"{box.workspace}/file/state"}))
    assert done.returncode in (EX_WRAPPER, EX_CONFIG), done
    assert "file/state" in done.stderr


def test_unreadable_policy(box: Box) -> None:
    box.policy("")
    (box.state / "config.yaml").unlink()
    (box.state / "config.yaml").mkdir()
    done = clean(box.run("--", "true"))
    assert done.returncode in (EX_WRAPPER, EX_CONFIG), done
    assert "config.yaml" in done.stderr


def test_events_on_a_full_disk(box: Box) -> None:
    """The loss is said; the command is not confused with it."""
    done = clean(box.run("--events=/dev/full", "--", "echo", "x"))
    assert "No space left" in done.stderr
    assert done.returncode in (0, EX_WRAPPER)


@pytest.mark.parametrize("limit", ["-n 12", "-v 60000"])
def test_a_caller_short_of_resources(box: Box, limit: str) -> None:
    """It works or says what is missing; nothing half-started."""
    done = clean(box.outside("bash", "-c", f"ulimit {limit}; exec {' '.join(box.argv('--', 'echo', 'x'))}"))
    assert (done.stdout, done.returncode) == ("x\n", 0) or done.returncode == EX_WRAPPER, done
    assert done.returncode == 0 or done.stderr.startswith("membrane: "), done


def test_debug_shows_where(box: Box) -> None:
    box.policy("alow: [a.com]\n")
    assert "Traceback" in box.run("--debug", "--", "true").stderr


# ---------------------------------------------------------------- reset


def test_reset_asks(box: Box) -> None:
    """Piped answers are one for each question; homes and policy need a second yes that ``--yes`` does not give."""
    note = str(box.home / "note")
    box.run("--", "sh", "-c", "echo x > ~/note")
    for answer in ("", "n\n", "\n", "yy\n"):
        stays = clean(box.run("--reset=d", input=answer))
        assert stays.returncode == 1
        assert "nothing was removed" in stays.stderr, stays
    first_only = clean(box.run("--reset=d", input="y\n"))
    assert first_only.returncode == 0
    assert "kept" in first_only.stderr and "not made by membrane" not in first_only.stderr
    clean(box.run("--reset=d", "--yes"))
    assert box.run("--", "cat", note).returncode == 0
    with box.terminal("--reset=d") as terminal:
        for _ in range(2):
            terminal.expect(r"\[y/N\] ")
            terminal.send("y\r")
        assert terminal.wait() == 0
    assert box.run("--", "cat", note).returncode == 1
    box.run("--", "sh", "-c", "echo x > ~/note")
    assert clean(box.run("--reset", input="y\nyes\n")).returncode == 0
    assert box.run("--", "cat", note).returncode == 1


def test_reset_unknown_letter(box: Box) -> None:
    done = clean(box.run("--reset=x", "--yes"))
    assert done.returncode in (EX_USAGE, EX_CONFIG)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("chek", "check"), ("exce", "exec"), ("policy", "config show"), ("pslx", ""), ("uedo", ""), ("sh", "")],
)
def test_a_misspelled_subcommand_is_named(box: Box, typed: str, meant: str) -> None:
    done = box.run(typed, "-c", "exit 127")
    assert done.returncode == 127
    said = f"membrane: {typed}: no such program; did you mean membrane {meant}?\n"
    assert (said in done.stderr) == bool(meant)
    assert ("did you mean" in done.stderr) == bool(meant)


def test_a_subcommand_behind_options_is_told_where_it_belongs(box: Box) -> None:
    done = box.run("--no-presets", "check", "a.example")
    assert done.returncode == 127
    assert "membrane: check: no such program; the subcommand is the first word: membrane check ...\n" in done.stderr
    assert box.run("check", "--no-presets", "a.example").returncode == 1  # the control: it is that subcommand


# ---------------------------------------------------------------- Membrane's files


def test_a_file_of_membrane_runs_as_it_is(box: Box) -> None:
    data = box.home / "data"
    data.mkdir()
    (data / "f").write_text("from the mount\n")
    (box.workspace / "a.key").write_text("secret\n")
    args = f"args:\n- -e\n- MODE=set\n- -v\n- {data}:/data:ro\n- -m\n- 1g\n"
    text = f"dns_resolver:\nallow:\ndeny:\nsealed: ['*.key']\n{args}"
    box.policy(text)
    command = "echo $MODE; cat /data/f; echo x > /data/g; cat a.key"
    done = box.run("--", "sh", "-c", command)
    assert done.stdout == "set\nfrom the mount\n", done
    assert not (data / "g").exists()
    box.policy("allow:\n")
    assert "from the mount" not in box.run("--", "sh", "-c", command).stdout
    (box.workspace / ".membrane.yaml").write_text(text)
    refused = box.run("--", "sh", "-c", command)
    assert refused.returncode == EX_CONFIG, "a project's -v widens"
    assert refused.stdout == ""
    assert box.run("--trust-workspace", "--", "sh", "-c", command).stdout == "set\nfrom the mount\n"
