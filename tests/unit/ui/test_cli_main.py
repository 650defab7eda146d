"""``main``: from words to an exit status, and what is said on the way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import membrane
import membrane.host
from membrane.errors import HostError, InternalError, PolicyError
from membrane.plan import build
from membrane.plan.model import HostFacts, Mask, SandboxPlan, Support
from membrane.policy import grammar
from membrane.policy.model import EnvRule, Limits, Origin, PathRule, Policy
from membrane.policy.reading import Widening
from membrane.run import begin, installed, prepare, registry, session, settings
from membrane.run.prepare import RunOptions, RunRequest
from membrane.run.registry import SessionRecord
from membrane.ui import cli

SOURCE = str(Path(membrane.__file__).parents[1])
ORIGIN = Origin("user", "/home/me/.membrane/config.yaml", 3)
POLICY = Policy(
    allow=(grammar.host_rule("pypi.org", ORIGIN), grammar.host_rule("10.0.0.0/24", ORIGIN)),
    deny=(grammar.host_rule("*.tracker.example", ORIGIN, deny=True),),
    paths=(PathRule("*.pem", ORIGIN, "hide"),),
    env=(EnvRule("CI", None, ORIGIN), EnvRule("TOKEN", "the-secret", ORIGIN)),
    limits=Limits(memory=4 << 30, time=600),
    levels=("/home/me/.membrane/config.yaml",),
    digest="ab" * 32,
)


class World:
    """Stands in for the session and the settings; remembers what they were asked."""

    def __init__(self) -> None:
        self.outcome: Callable[[], int] = lambda: 0
        self.requests: list[RunRequest] = []
        self.options: list[tuple[Any, tuple[str, ...]]] = []  # what was typed, and the command
        self.policy = POLICY
        self.warnings: tuple[str, ...] = ()
        self.plan: SandboxPlan | None = None

    def run(self, request: RunRequest, hooks: object = None) -> int:
        assert hooks is None
        self.requests.append(request)
        return self.outcome()

    def load(self, given: Any, environ: Any, workspace: str, home: str, *, command: Any) -> settings.Loaded:
        assert os.path.isabs(workspace)
        assert os.path.isabs(home)
        self.options.append((given, command))
        return settings.Loaded(policy=self.policy, warnings=self.warnings)

    def make_plan(self, policy: Policy, command: tuple[str, ...], *, backend: object = None) -> SandboxPlan:
        assert self.plan is not None
        return self.plan


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> World:
    made = World()
    fake: Any = types.ModuleType("membrane.run.session")
    fake.run = made.run  # gets what ``begin`` returns
    fake.Hooks = session.Hooks
    monkeypatch.setitem(sys.modules, "membrane.run.session", fake)
    monkeypatch.setattr("membrane.run.session", fake, raising=False)  # where it was imported before
    monkeypatch.setattr(membrane, "session", fake, raising=False)
    monkeypatch.setattr(begin, "begin", lambda request: request())
    monkeypatch.setattr(prepare, "make_plan", made.make_plan)
    monkeypatch.setattr(installed, "VERSION", "1.2.3")
    monkeypatch.setattr(settings, "load_policy", made.load)
    monkeypatch.setattr(settings, "state_home", lambda environ: str(tmp_path / "state"))
    monkeypatch.setenv("HOME", "/home/me")
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return made


# ---------------------------------------------------------------- runs


def test_a_run_hands_over_what_was_typed(world: World) -> None:
    world.outcome = lambda: 37
    argv = ["-a", "h.example", "--home=shared", "--events", "e.jsonl", "-q", "--no-trace", "--debug", "--", "ls", "-a"]
    assert cli.main(argv) == 37
    [request] = world.requests
    assert request.command == ("ls", "-a")
    assert request.policy is POLICY
    assert request.options == RunOptions(events="e.jsonl", quiet=True, no_trace=True, debug=True)
    assert world.options == [
        ({"allow": ("h.example",), "home": "shared", "trace": "off"}, ("ls", "-a")),
    ]


def test_a_plain_run_says_nothing(world: World, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["true"]) == 0
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("terminal", [True, False])
def test_without_a_command_the_shell_is_started(terminal: bool, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "isatty", lambda fd: terminal)
    monkeypatch.setenv("SHELL", "/bin/sh")
    assert cli.main([]) == 0
    assert world.requests[0].command == (("/bin/sh", "-i") if terminal else ("/bin/sh",))


@pytest.mark.parametrize("chosen", ["", "sh", "/usr/sbin/nologin", "/bin/false", "/no/such/shell", "/etc/passwd"])
def test_a_shell_that_is_none_is_replaced(chosen: str) -> None:
    assert cli.shell({"SHELL": chosen}, False)[0] in ("/bin/bash", "/bin/sh")


def test_no_shell_at_all(monkeypatch: pytest.MonkeyPatch, world: World, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert cli.main([]) == 125
    assert capfd.readouterr().err.startswith("membrane: cannot find a shell: ")
    assert world.requests == []


def test_warnings_are_said_unless_quiet(world: World, capfd: pytest.CaptureFixture[str]) -> None:
    world.warnings = ('"**" allows any host',)
    cli.main(["true"])
    assert capfd.readouterr().err == 'membrane: warning: "**" allows any host\n'
    cli.main(["--quiet", "true"])
    assert capfd.readouterr().err == ""


# ---------------------------------------------------------------- errors


def _raise(error: BaseException) -> Callable[[], int]:
    def act() -> int:
        raise error

    return act


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (
            PolicyError(
                "read",
                'unknown key "port" in an allow entry; did you mean "ports"?',
                where=".membrane.yaml:4:5",
            ),
            78,
            'membrane: .membrane.yaml:4:5: unknown key "port" in an allow entry; did you mean "ports"?\n',
        ),
        (
            HostError("make a user namespace", "EPERM", fix=("sudo x", "membrane doctor")),
            125,
            "membrane: cannot make a user namespace: EPERM\n  try: sudo x\n  or:  membrane doctor\n",
        ),
        (InternalError("count", "one is two"), 125, "membrane: cannot count: one is two\n"),
        (
            OSError(28, "No space left on device", "/x"),
            125,
            "membrane: the system refused: No space left on device: /x\n  more: membrane --debug ...\n",
        ),
        (
            ZeroDivisionError("division by zero"),
            125,
            "membrane: internal error: ZeroDivisionError: division by zero\n  more: membrane --debug ...\n",
        ),
        (
            BrokenPipeError(32, "Broken pipe"),
            125,
            "membrane: cannot talk to the sandbox: a process of it has died\n  try: membrane --debug ...\n",
        ),
        (KeyboardInterrupt(), 130, ""),
        (
            PolicyError("read", "found \x1b[2J\u202e and \\ and \udcff"),
            78,
            "membrane: found \\u{1b}[2J\\u{202e} and \\ and \\xff\n",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_errors_become_lines_and_a_status(
    error: BaseException,
    status: int,
    said: str,
    world: World,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cli, "_silence_stdout", lambda: None)  # it would take away the descriptor of the test run
    world.outcome = _raise(error)
    assert cli.main(["true"]) == status
    assert capfd.readouterr() == ("", said)


@pytest.mark.parametrize("error", [PolicyError("x", "bad"), ZeroDivisionError("division by zero")])
def test_a_traceback_only_with_debug(error: Exception, world: World, capfd: pytest.CaptureFixture[str]) -> None:
    world.outcome = _raise(error)
    cli.main(["true"])
    assert "Traceback" not in capfd.readouterr().err
    cli.main(["--debug", "true"])
    assert "Traceback (most recent call last)" in capfd.readouterr().err
    cli.main(["true", "--debug"])
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--alow", "x"], "membrane: unknown option --alow; did you mean --allow?\n  try: membrane --help\n"),
        (["-a"], "membrane: option -a needs a value (HOST)\n"),
        (["--yes", "true"], "membrane: --yes goes with --reset\n"),
        (["--reset", "true"], "membrane: --reset runs no command\n  try: membrane --reset=c\n"),
        (
            ["--reset=cx"],
            "membrane: --reset does not know 'x'\n"
            "  try: c: dead sessions, i: caches, d: everything else below $MEMBRANE_HOME\n",
        ),
    ],
)
def test_usage_errors_start_nothing(
    argv: list[str], said: str, world: World, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(argv) == 2
    assert capfd.readouterr() == ("", said)
    assert world.requests == []


def test_a_directory_that_is_gone(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    for words in (["true"], ["plan"], ["check", "h"], ["diff"], ["apply"], ["undo"], ["trust"]):
        assert cli.main(words) == 125
        assert capfd.readouterr().err == (
            "membrane: cannot use the current directory as the workspace: No such file or directory\n"
            "  try: cd into a directory that exists\n"
        )


# ---------------------------------------------------------------- as a program


def program(*argv: str, **options: Any) -> subprocess.CompletedProcess[str]:
    environ = {"PYTHONPATH": SOURCE, "PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
    return subprocess.run(
        [sys.executable, "-m", "membrane", *argv], text=True, check=False, env=environ, timeout=60, **options
    )


def test_python_m_membrane() -> None:
    done = program("--help", capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: membrane ")


def test_a_reader_that_left_is_no_complaint() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = program("completion", "man", stdout=writer, stderr=subprocess.PIPE)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_full_disk_is_said_once() -> None:
    with open("/dev/full", "w") as full:
        done = program("completion", "man", stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 125
    said = "membrane: cannot write to standard output: No space left on device; what was printed is not whole\n"
    assert done.stderr == f"{said}  more: membrane --debug ...\n"


@pytest.mark.parametrize("closed", [1, 2])
def test_closed_streams(closed: int) -> None:
    script = f'exec "$0" -m membrane "$@" {closed}>&-'
    environ = {"PYTHONPATH": SOURCE, "PATH": os.environ["PATH"]}
    done = subprocess.run(
        ["/bin/sh", "-c", script, sys.executable, "--nonsense"],
        capture_output=True,
        text=True,
        check=False,
        env=environ,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("membrane: unknown option --nonsense") is (closed == 1)


def test_the_run_path_imports_nothing_slow() -> None:
    slow = "asyncio subprocess logging dataclasses typing enum re json argparse socket pathlib tempfile shutil inspect"
    code = (
        f"import sys; sys.path.insert(0, {SOURCE!r}); before = set(sys.modules)\n"
        "from membrane.ui import cli, options\n"
        "options.parse(['-a', 'h', '--', 'true'])\n"
        f"print(*sorted((set(sys.modules) - before) & set({slow!r}.split())))"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


# ---------------------------------------------------------------- subcommands


def test_version_and_help(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == "membrane 1.2.3\n"
    assert cli.main(["plan", "-h"]) == 0
    assert capsys.readouterr().out.startswith("usage: membrane plan ")


@pytest.mark.parametrize(("target", "status"), [("pypi.org", 0), ("evil.example", 1), ("./key.pem", 1), ("./x", 0)])
def test_check_exits_with_the_verdict(
    target: str, status: int, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["check", target]) == status
    assert capsys.readouterr().out.startswith("allow" if status == 0 else "deny")
    assert cli.main(["check", target, "--json"]) == status
    assert json.loads(capsys.readouterr().out)["verdict"] == ("allow" if status == 0 else "deny")


def test_check_lists_the_hosts_and_their_sources(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "--list"]) == 0
    rows = [line.split(None, 2) for line in capsys.readouterr().out.splitlines()]
    assert [row[:2] for row in rows] == [["allow", "pypi.org"], ["allow", "10.0.0.0/24"], ["deny", "*.tracker.example"]]
    assert rows[0][2] == "~/.membrane/config.yaml:3"
    assert cli.main(["check", "--list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert sorted(listed) == ["allow", "deny"]
    assert [rule["text"] for rule in listed["allow"]] == ["pypi.org", "10.0.0.0/24"]


def test_check_tells_that_a_run_would_stop(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.policy = POLICY.replace(view="host", home="ephemeral")
    assert cli.main(["check", "pypi.org"]) == 0
    assert capsys.readouterr().err.startswith("membrane: warning: a run would stop: ")


def _plan(workspace: str) -> SandboxPlan:
    facts = HostFacts(
        uid=1000,
        gid=1000,
        user="me",
        root=False,
        home="/home/me",
        state="/home/me/.membrane",
        workspace=workspace,
        hostname="box",
        environ=(("PATH", "/usr/bin"), ("CI", "1")),
        existing=frozenset({"/usr"}),
    )
    made = build.build(POLICY, facts)
    return made.replace(mounts=(*made.mounts, Mask(f"{workspace}/a.pem", False, "hide")))


def test_plan_sections(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.plan = _plan(os.getcwd())
    assert cli.main(["plan", "--events", "e.jsonl", "--", "make", "all"]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    sections = [line for line in lines if line and not line.startswith(" ")]
    assert sections == ["policy", "files", "network", "process", "record", "rules and what binds them"]
    assert "  level     ~/.membrane/config.yaml" in lines
    assert any(line.split() == ["hidden", f"{os.getcwd()}/a.pem", "hide"] for line in lines)
    assert any(line.split()[:4] == ["pypi.org", "any", "tcp", "passed"] or "pypi.org" in line for line in lines)
    assert "  command   make all" in lines
    assert "  events    e.jsonl" in lines
    assert "the-secret" not in out
    assert any(line.split()[0] == "seccomp" and int(line.split()[1]) > 50 for line in lines if line[2:3] == "s")
    assert any(line.startswith("  limits    memory 4295 MB, time 600 s") for line in lines)
    bound = lines[lines.index("rules and what binds them") + 1 :]
    assert any("allow pypi.org" in line and "DNS name" in line for line in bound)


def test_plan_json(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.plan = _plan(os.getcwd())
    assert cli.main(["plan", "--json", "true"]) == 0
    text = capsys.readouterr().out
    data = json.loads(text)
    assert data["files"]["mounts"][-1] == {
        "kind": "Mask",
        "target": f"{os.getcwd()}/a.pem",
        "directory": False,
        "origin": "hide",
        "link": True,
        "empty": False,
    }
    assert data["network"]["names"][0]["name"] == "pypi.org"
    assert data["network"]["networks"][0]["network"] == "10.0.0.0/24"
    assert {"PATH", "CI", "TOKEN"} <= set(data["process"]["environment"])
    assert "the-secret" not in text
    assert len(data["bindings"]) == len(world.plan.bindings if world.plan else ())


@pytest.mark.parametrize(("state", "status"), [("yes", 0), ("no", 1), ("unknown", 1)])
def test_doctor_exit(
    state: Any, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    probe: Any = types.ModuleType("membrane.host.probe")
    probe.features = lambda: [("native", "user namespaces", Support(state, "EPERM", "sudo x"))]
    monkeypatch.setitem(sys.modules, "membrane.host.probe", probe)
    monkeypatch.setattr(membrane.host, "probe", probe, raising=False)
    assert cli.main(["doctor"]) == status
    assert capsys.readouterr().out.startswith("native      ")
    assert cli.main(["doctor", "--json"]) == status
    assert json.loads(capsys.readouterr().out)["ready"] is (status == 0)


def test_trust_shows_what_it_widens(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    approved: list[tuple[str, str, settings.Review | None]] = []
    work = os.path.realpath(tmp_path / "work")
    review: settings.Review | None = settings.Review(
        path=f"{work}/.membrane.yaml", digest="d", widening=(Widening("allow", 3, '- "evil.example" \x1b[2J'),)
    )

    def trust(workspace: str, home: str, review: settings.Review | None = None) -> tuple[Widening, ...]:
        approved.append((workspace, home, review))
        if review is None:
            raise PolicyError("approve the project file", "there is no such file", where=".membrane.yaml")
        return review.widening

    monkeypatch.setattr(settings, "trust_project", trust)
    monkeypatch.setattr(settings, "review_project", lambda workspace, home: review)
    (tmp_path / "link").symlink_to(tmp_path / "work")
    assert cli.main(["trust", str(tmp_path / "link")]) == 0
    assert approved == [(work, str(tmp_path / "state"), review)]
    assert capsys.readouterr().out == (
        f"{work}/.membrane.yaml widens:\n"
        '      3  allow:         - "evil.example" \\u{1b}[2J\n'
        "trusted as it is now; a change needs a new approval\n"
    )
    review = settings.Review(f"{work}/.membrane.yaml", "d", ())
    assert cli.main(["trust"]) == 0
    assert capsys.readouterr().out.startswith(f"{work}/.membrane.yaml widens nothing\n")
    review = None
    assert cli.main(["trust"]) == 78
    assert cli.main(["trust", "/no/such/directory"]) == 125


def test_ps_and_gc(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ps"]) == 0
    assert capsys.readouterr().out == "no session is running\n"
    assert cli.main(["gc"]) == 0
    assert capsys.readouterr().out == "nothing to remove\n"
    record = SessionRecord(
        "0123abcd", os.getpid(), 1_700_000_000.25, "/home/me/w\x1b", ("make", "all"), "none", 3, 1_500_000, 0
    )
    living = registry.Run(str(tmp_path / "state"), record)
    try:
        assert cli.main(["ps"]) == 0
        header, row = capsys.readouterr().out.splitlines()
        assert header.split() == [
            "SESSION",
            "AGE",
            "WORKSPACE",
            "COMMAND",
            "TRACE",
            "REFUSED",
            "UP",
            "MB",
            "DOWN",
            "MB",
        ]
        cells = row.split()
        assert [*cells[:1], *cells[2:]] == ["0123abcd", "~/w\\u{1b}", "make", "all", "none", "3", "1.5", "0.0"]
        assert cli.main(["ps", "--json"]) == 0
        [data] = json.loads(capsys.readouterr().out)["sessions"]
        assert data["started"] == "2023-11-14T22:13:20.250Z"
        assert (data["id"], data["command"], data["bytes_up"]) == ("0123abcd", ["make", "all"], 1_500_000)
        assert data["ports"] == []
        living.update(record.replace(ports=("8000", "3000:13000")))
        assert cli.main(["ps"]) == 0
        header, row = capsys.readouterr().out.splitlines()
        assert header.endswith("PORTS")
        assert row.endswith("8000 3000:13000")
        assert cli.main(["gc", "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == {"removed": []}
    finally:
        living.close()


def test_gc_lists_what_it_removed(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "state" / "run").mkdir(parents=True)
    (tmp_path / "state" / "run" / "dead").touch()
    assert cli.main(["gc"]) == 0
    assert capsys.readouterr().out == "removed session record dead\n"


def test_config(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.main(["config", "show"]) == 0
    out = capsys.readouterr().out
    assert [line.split()[:2] for line in out.splitlines()][:4] == [
        ["allow", "pypi.org"],
        ["allow", "10.0.0.0/24"],
        ["deny", "*.tracker.example"],
        ["path", "ignore"],
    ]
    assert "~/.membrane/config.yaml:3" in out
    assert "the-secret" not in out
    assert cli.main(["config", "show", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["allow"][0]["text"] == "pypi.org"
    assert data["limits"]["time"] == 600
    assert "the-secret" not in json.dumps(data)

    assert cli.main(["config", "path"]) == 0
    assert f"user     (absent) {tmp_path}/state/config.yaml" in capsys.readouterr().out
    assert cli.main(["config", "path", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["user"] == {"path": f"{tmp_path}/state/config.yaml", "exists": False}

    written = [True, False]
    monkeypatch.setattr(settings, "write_config", lambda home: written.pop(0))
    assert cli.main(["config", "init"]) == 0
    assert capsys.readouterr().out == f"wrote {tmp_path}/state/config.yaml\n"
    assert cli.main(["config", "init"]) == 2
    said = capsys.readouterr().err
    assert f"{tmp_path}/state/config.yaml exists and is never overwritten" in said and "move it away" in said


def test_reset_of_dead_sessions(world: World, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "state" / "run").mkdir(parents=True)
    (tmp_path / "state" / "run" / "dead").touch()
    assert cli.main(["--reset=c", "--yes"]) == 0
    assert "membrane: removed session record dead\n" in capfd.readouterr().err
    assert world.requests == []
    assert list((tmp_path / "state" / "run").iterdir()) == []


@pytest.mark.parametrize(("answer", "status"), [("", 1), ("n\n", 1), ("no\ny\n", 1), ("y\n", 0)])
def test_reset_without_a_terminal_asks_its_input(tmp_path: Path, answer: str, status: int) -> None:
    state = tmp_path / "state"
    (state / "cache").mkdir(parents=True)
    environ = {"PYTHONPATH": SOURCE, "PATH": os.environ["PATH"], "MEMBRANE_HOME": str(state), "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "membrane", "--reset=i"],
        input=answer,
        capture_output=True,
        text=True,
        check=False,
        env=environ,
        cwd=tmp_path,
        start_new_session=True,
        timeout=60,
    )
    assert done.returncode == status, done.stderr
    assert (state / "cache").is_dir() == bool(status)
    assert done.stdout == ""


def test_a_module_of_the_workspace_is_not_run_outside(tmp_path: Path) -> None:
    """``python -m`` puts the current directory first; the control shows that the trap works."""
    (tmp_path / "json.py").write_text("import sys; sys.stdout.write('from the workspace'); from _json import *\n")
    package = str(Path(membrane.__file__).parents[1])  # found from any directory, installed or not
    environ = {**os.environ, "MEMBRANE_HOME": str(tmp_path / "state"), "PYTHONPATH": package}

    def output(*argv: str) -> str:
        done = subprocess.run(
            [sys.executable, *argv], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60, check=False
        )
        return done.stdout

    assert output("-c", "import json") == "from the workspace"
    for first in ([], ["-P"]):
        assert json.loads(output(*first, "-m", "membrane", "ps", "--json")) == {"sessions": []}
