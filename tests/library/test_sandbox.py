"""``Sandbox`` and ``AsyncSandbox`` as programs use them: real namespaces, real sockets, as root and as a plain user.

One file of over 800 lines: both faces of one library, each thing that a program does with it once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from library_support import PATIENCE, descendants, describe, gone, until

from membrane import (
    DEVNULL,
    PIPE,
    AllowOnce,
    AllowSession,
    Answer,
    AsyncSandbox,
    Deny,
    Event,
    HostError,
    MembraneError,
    Policy,
    PolicyError,
    Question,
    Result,
    Sandbox,
)
from membrane.api import wire
from started import Started

CURL = ("curl", "-s", "-m", "30", "-o", "/dev/null", "-w", "%{http_code}")


class Maker:
    """Makes sandboxes with the test's environment and workspace."""

    def __init__(self, workspace: Path, environ: dict[str, str]) -> None:
        self.workspace, self.environ = workspace, environ

    def __call__(self, policy: Policy | None = None, **options: object) -> Sandbox:
        return Sandbox(
            Policy() if policy is None else policy,
            workspace=self.workspace,
            environ=self.environ,
            **options,  # type: ignore[arg-type]
        )

    def asynchronous(self, policy: Policy | None = None, **options: object) -> AsyncSandbox:
        return AsyncSandbox(
            Policy() if policy is None else policy,
            workspace=self.workspace,
            environ=self.environ,
            **options,  # type: ignore[arg-type]
        )


@pytest.fixture
def make(workspace: Path, environ: dict[str, str]) -> Maker:
    return Maker(workspace, environ)


def open_to(port: int) -> Policy:
    return Policy().allow(f"host.internal:{port}")


# ---------------------------------------------------------------- results


def test_output_errors_input_and_exit_status(make: Maker) -> None:
    with make() as sandbox:
        result = sandbox.run(["sh", "-c", "cat; echo oops >&2; exit 3"], input="words\n")
        assert (result.stdout, result.stderr, result.exit_code, result.signal) == ("words\n", "oops\n", 3, 0)
        assert result.duration > 0 and result.complete and not result.truncated
        assert sandbox.shell("echo $0 $((1 + 1))").stdout == "/bin/sh 2\n"
        assert sandbox.run(["cat"]).stdout == "", "no input is no input"
        killed = sandbox.shell("kill -SEGV $$")
        assert (killed.exit_code, killed.signal) == (128 + 11, 11)
        missing = sandbox.run(["no-such-program"])
        assert missing.exit_code == 127 and "command not found" in missing.stderr
        odd = sandbox.run(["printf", "%s", "\udcff"])
        assert odd.stdout_bytes == b"\xff" and odd.stdout == "\ufffd"


def test_big_input_and_bounded_output(make: Maker) -> None:
    data = os.urandom(1 << 20) * 4
    with make() as sandbox:
        assert sandbox.run(["cat"], input=data).stdout_bytes == data
        short = sandbox.run(["cat"], input=data, max_output=1000)
        assert short.stdout_bytes == data[:1000] and short.truncated and short.exit_code == 0
        assert sandbox.run(["true"], input=data).exit_code == 0, "it need not read"


def test_every_command_is_confined_and_read_back(make: Maker) -> None:
    with make() as sandbox:
        result = sandbox.shell("grep -E 'NoNewPrivs|Seccomp:|CapEff|CapBnd' /proc/self/status; ls /proc/self/fd")
        status = dict(line.split(":\t") for line in result.stdout.splitlines() if "\t" in line)
        assert status == {"CapEff": "0" * 16, "CapBnd": "0" * 16, "NoNewPrivs": "1", "Seccomp": "2"}
        # 0, 1, 2 and the directory that ls reads: nothing of ours is open.
        assert [line for line in result.stdout.splitlines() if "\t" not in line] == ["0", "1", "2", "3"]
        assert dict(result.assurance)["net namespace"].endswith("differs from the host's")
        assert dict(result.assurance)["CapBnd"] == f"/proc/PID/status CapBnd = {'0' * 16}"
        refused = sandbox.run(["unshare", "-m", "true"])
        assert refused.exit_code == 1 and "Operation not permitted" in refused.stderr


def test_variables_directory_and_mask(make: Maker, workspace: Path) -> None:
    (workspace / "below").mkdir()
    with make() as sandbox:
        result = sandbox.shell("echo $COLOUR; pwd; umask", env={"COLOUR": "red"}, cwd="below")
        assert result.stdout.splitlines()[:2] == ["red", str(workspace / "below")]
        mask = os.umask(0o022)
        os.umask(mask)
        assert int(result.stdout.split()[2], 8) == mask
        assert "COLOUR" not in sandbox.run(["env"]).stdout, "for one command only"
        with pytest.raises(HostError, match="cannot enter the directory /no/such: No such file or directory"):
            sandbox.run(["true"], cwd="/no/such")
        with pytest.raises(PolicyError, match="is no variable"):
            sandbox.run(["true"], env={"A=B": "c"})
        with pytest.raises(PolicyError, match="sequence of words"):
            sandbox.run("true")
        assert sandbox.run(["true"]).exit_code == 0, "and it goes on"


def test_changes_are_told(make: Maker, workspace: Path) -> None:
    (workspace / "old").write_text("x")
    with make() as sandbox:
        result = sandbox.shell("echo 1 > new; mkdir sub; mv old sub/moved; rm new; echo 2 > kept; true > /dev/null")
    changes = {Path(change.path).relative_to(workspace).as_posix(): change.what for change in result.changes}
    assert changes["kept"] == "written" and changes["old"] == "removed" and changes["new"] == "removed"
    assert changes["sub/moved"] == "written" and changes["sub"] == "created"
    assert not any(change.path.startswith("/dev") for change in result.changes)


# ---------------------------------------------------------------- one command and the next


def test_scratch_and_processes_end_with_a_command(make: Maker) -> None:
    with make() as sandbox:
        first = sandbox.shell("echo x > /tmp/mark; echo y > /dev/shm/mark; sleep 600 & cat /tmp/mark")
        assert first.stdout == "x\n"
        second = sandbox.shell("ls /tmp/mark /dev/shm/mark; echo /proc/[0-9]*")
        assert second.stdout.split() == ["/proc/1", "/proc/2"], "its keeper and itself"
        assert second.stderr.count("No such file") == 2


def test_persistent_keeps_scratch_and_processes(make: Maker) -> None:
    with make(persistent=True) as sandbox:
        first = sandbox.shell("echo x > /tmp/mark; sleep 600 > /dev/null 2>&1 & echo $!")
        pid = first.stdout.strip()
        assert sandbox.shell(f"cat /tmp/mark; kill -0 {pid} && echo alive").stdout.split() == ["x", "alive"]
        ended = sandbox.shell(f"kill {pid}; while kill -0 {pid} 2> /dev/null; do :; done; echo ended")
        assert ended.stdout == "ended\n"


def test_workspace_is_shared_by_the_commands(make: Maker, workspace: Path) -> None:
    with make() as sandbox:
        sandbox.shell("echo one > file")
        assert sandbox.run(["cat", "file"]).stdout == "one\n"
    assert (workspace / "file").read_text() == "one\n"


def test_file_rules_hold_for_every_command_and_for_new_names(make: Maker, workspace: Path) -> None:
    (workspace / "secret.key").write_text("hush")
    with make(Policy().hide("*.key").readonly("frozen")) as sandbox:
        assert sandbox.shell("cat secret.key; ! grep -q . secret.key").stdout == ""
        with sandbox.popen(
            ["sh", "-c", "echo ready; read x; cat later.key; echo $?"], stdin=PIPE, stdout=PIPE
        ) as process:
            assert process.stdout is not None and process.stdin is not None
            assert process.stdout.readline() == b"ready\n"
            (workspace / "later.key").write_text("hush as well")
            # In the view of a command that runs already, too.
            until(lambda: sandbox.shell("cat later.key").exit_code == 1, "the mask")
            until(lambda: _masked(process.pid, workspace / "later.key"), "the mask in a view of its own")
            process.stdin.write(b"\n")
            process.stdin.close()
            assert process.stdout.read() == b"1\n"
    assert (workspace / "later.key").read_text() == "hush as well"


def test_a_mask_that_comes_while_a_view_is_made_is_in_it(make: Maker, workspace: Path) -> None:
    """The view of the next command is made while this one runs; the hidden file is replaced just then."""
    random.seed(7)
    (workspace / "secret.key").write_text("hush")
    patient = "n=0; while grep -qs . secret.key; do n=$((n + 1)); [ $n -lt 600 ] || exit 9; sleep 0.05; done"
    with make(Policy().hide("*.key")) as sandbox:
        for number in range(40):
            with sandbox.popen(["true"], stdin=DEVNULL):
                time.sleep(random.uniform(0, 0.008))  # a moment among many: nothing is waited for
                (workspace / "next").write_text(f"hush {number}")
                os.replace(workspace / "next", workspace / "secret.key")
            assert sandbox.shell(patient).exit_code == 0, f"round {number}: it stays readable"


def _masked(pid: int, path: Path) -> bool:
    try:
        return f" {path} " in Path(f"/proc/{pid}/mountinfo").read_text()
    except OSError:
        return False


def timed_out(sandbox: Sandbox, command: str, began: Callable[[Result], bool]) -> Result:
    """A command that had begun before its time was over; on a busy machine that takes more time."""
    for seconds in (0.5, 5.0, 50.0):
        result = sandbox.shell(command, timeout=seconds)
        assert result.timed_out and result.exit_code == 124
        if began(result):
            return result
    raise AssertionError(f"it does not begin: {result}")


def test_timeout_kills_what_it_started(make: Maker, workspace: Path) -> None:
    with make() as sandbox:
        timed_out(sandbox, "sleep 600 & echo $$ > started; sleep 600", lambda _result: (workspace / "started").exists())
        assert sandbox.run(["true"]).exit_code == 0


def test_limits_time_is_of_each_command(make: Maker) -> None:
    policy = Policy.from_dict({"limits": {"time": "3s"}})
    with make(policy) as sandbox:
        assert sandbox.run(["sleep", "600"]).timed_out
        assert sandbox.run(["true"]).exit_code == 0


@pytest.mark.parametrize("persistent", [False, True])
def test_what_one_command_leaves_opens_nothing_for_the_next(make: Maker, workspace: Path, persistent: bool) -> None:
    """An agent with many commands prepares in one what another is to use: each is bound as the first was."""
    subprocess.run(["git", "init", "-q", str(workspace)], check=True, timeout=PATIENCE)
    (workspace / "secret.key").write_text("hush")
    prepare = "ln -s $PWD/secret.key /tmp/way; ln -s secret.key way; mkdir d; mv d .vscode; mkdir .idea; echo ok > made"
    use = "cat /tmp/way way secret.key; ln secret.key other; mv secret.key moved; echo x > .git/hooks/pre-commit; ls -a"
    with make(Policy().hide("*.key"), persistent=persistent) as sandbox:
        first, second = sandbox.shell(prepare), sandbox.shell(use)
        for name in (".vscode", ".idea"):
            assert name not in second.stdout.split(), second.stdout
        assert "made" in second.stdout.split(), "what is allowed works"
        assert "hush" not in first.stdout + second.stdout
        assert second.stderr.count("Invalid cross-device link") == second.stderr.count("resource busy") == 1, (
            second.stderr
        )
        assert {each.reason for each in first.denied} == {"protected name"}
        # A file of the same name in place of the hidden one, from outside, is hidden before long as well.
        (workspace / "next").write_text("hush again")
        os.replace(workspace / "next", workspace / "secret.key")
        until(lambda: sandbox.run(["grep", "-q", ".", "secret.key"]).exit_code == 1, "the mask")
    assert not (workspace / ".git" / "hooks" / "pre-commit").exists()
    assert (workspace / "secret.key").read_text() == "hush again"
    assert not {".vscode", ".idea", "moved", "other"} & set(os.listdir(workspace))


def test_a_stopped_keeper_does_not_save_a_persistent_command(make: Maker) -> None:
    """A command may signal the process that keeps it; its time is over all the same."""
    with make(persistent=True) as sandbox:
        timed_out(
            sandbox, "kill -STOP $PPID; echo stopped; sleep 600", lambda result: result.stdout.startswith("stopped")
        )
        assert sandbox.run(["true"]).exit_code == 0


SUBREAPER = """
import ctypes, os, sys, time
from membrane import Policy, Sandbox
sys.path.insert(0, {support!r})
from library_support import descendants, describe, gone
assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0  # PR_SET_CHILD_SUBREAPER, <linux/prctl.h>
made = set()
for _ in range(20):
    with Sandbox(Policy(), workspace={workspace!r}, persistent={persistent!r}) as sandbox:
        assert sandbox.run(["true"]).exit_code == 0
    made |= descendants(os.getpid())
deadline = time.monotonic() + 60
while (left := [pid for pid in made if not gone(pid)]) and time.monotonic() < deadline:
    time.sleep(0.01)
print(len(made), [describe(pid) for pid in left])
"""


@pytest.mark.parametrize("persistent", [False, True])
def test_every_process_ends_though_the_one_that_adopts_orphans_waits_for_none(
    workspace: Path, environ: dict[str, str], persistent: bool
) -> None:
    """As the first process of a container often is."""
    code = SUBREAPER.format(support=str(Path(__file__).parent), workspace=str(workspace), persistent=persistent)
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=2 * PATIENCE, check=False)
    count, _, left = done.stdout.strip().partition(" ")
    assert (done.returncode, left) == (0, "[]"), done
    assert int(count) >= 20  # the control: it did adopt


def test_terminals_of_other_commands_are_not_there(make: Maker) -> None:
    with make() as sandbox:
        first = "import os, pty; m, s = pty.openpty(); print(os.ttyname(s), flush=True); input()"
        with sandbox.popen(["/usr/bin/python3", "-c", first], stdin=PIPE, stdout=PIPE) as process:
            assert process.stdout is not None and process.stdin is not None
            assert process.stdout.readline() == b"/dev/pts/0\n"
            assert sandbox.shell("ls /dev/pts").stdout.split() == ["ptmx"]
            process.stdin.write(b"\n")


# ---------------------------------------------------------------- popen


def test_popen_streams_signals_and_wait(make: Maker) -> None:
    with make() as sandbox:
        script = "trap 'echo told; exit 9' TERM; echo up; while :; do sleep 0.05; done"
        with sandbox.popen(["sh", "-c", script], stdin=DEVNULL, stdout=PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"up\n"
            assert process.poll() is None and process.pid in descendants(os.getpid())
            with pytest.raises(TimeoutError):
                process.wait(timeout=0.05)
            process.terminate()
            assert process.stdout.readline() == b"told\n"
            assert process.wait().exit_code == 9 and process.poll() == 9
        with sandbox.popen(["sleep", "600"], stdin=DEVNULL, stdout=DEVNULL) as process:
            process.kill()
            assert process.wait().signal == signal.SIGKILL


def test_own_streams_are_passed_on(make: Maker, workspace: Path) -> None:
    with make() as sandbox, open(workspace / "out", "wb") as out:
        process = sandbox.popen(["echo", "into a file"], stdin=DEVNULL, stdout=out.fileno())
        assert process.wait().exit_code == 0
    assert (workspace / "out").read_text() == "into a file\n"


# ---------------------------------------------------------------- network


def test_refusals_are_told_each_time_and_what_is_allowed_works(make: Maker, port: int) -> None:
    with make(open_to(port)) as sandbox:
        allowed = sandbox.run([*CURL, f"http://host.internal:{port}/"])
        assert (allowed.stdout, allowed.denied) == ("200", ())
        for _ in range(2):
            refused = sandbox.run([*CURL, "http://other.test/"])
            assert refused.exit_code == 6, "curl: could not resolve host"
            assert {(each.kind, each.target, each.reason) for each in refused.denied} == {
                ("NameQuery", "other.test", "name not allowed")
            }
            assert refused.denied[0].hint == 'allow: ["other.test:443"]'
        stats = sandbox.stats()
        assert (stats.commands, stats.running) == (3, 0) and stats.refused >= 2 and stats.bytes_down > 0


def test_sandboxes_do_not_mix(make: Maker, port: int) -> None:
    url = f"http://host.internal:{port}/"
    with make(open_to(port)) as open_one, make() as closed_one:
        results: dict[str, list[str]] = {"open": [], "closed": []}

        def run(name: str, sandbox: Sandbox) -> None:
            results[name] += [sandbox.run([*CURL, url]).stdout for _ in range(5)]

        threads = [threading.Thread(target=run, args=each) for each in (("open", open_one), ("closed", closed_one))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results["open"] == ["200"] * 5 and "200" not in results["closed"]
        assert open_one.id != closed_one.id


def test_update_is_live_and_of_the_network_only(make: Maker, port: int) -> None:
    url = f"http://host.internal:{port}/"
    with make(Policy()) as sandbox:
        assert sandbox.run([*CURL, url]).stdout != "200"
        sandbox.update(open_to(port))
        assert sandbox.run([*CURL, url]).stdout == "200"
        sandbox.update(open_to(port).deny("host.internal"))
        assert sandbox.run([*CURL, url]).stdout != "200"
        with pytest.raises(PolicyError, match="something else than its network rules differs"):
            sandbox.update(Policy().hide("*.key"))
        with pytest.raises(PolicyError, match="inspection"):
            sandbox.update(Policy().allow("https://example.test/path"))
        assert sandbox.run([*CURL, url]).stdout != "200", "as before"


def test_a_held_secret_is_a_placeholder_inside(make: Maker) -> None:
    secret = {"name": "API_KEY", "from": "env", "to": ["https://api.example.test/"], "header": "x-api-key"}
    make.environ["API_KEY"] = "sk-the-real-one"
    with make(Policy.from_dict({"secrets": [secret]})) as sandbox:
        shown = sandbox.shell("echo $API_KEY").stdout.strip()
    assert shown and shown != "sk-the-real-one"


# ---------------------------------------------------------------- asking


@pytest.mark.parametrize(
    ("answers", "codes"),
    [
        ([AllowOnce, Deny], ["200", "refused"]),
        ([AllowSession], ["200", "200"]),
        ([Deny], ["refused", "refused"]),
    ],
)
def test_asking(make: Maker, port: int, answers: list[Answer], codes: list[str]) -> None:
    asked: list[Question] = []

    def on_ask(question: Question) -> Answer:
        asked.append(question)
        return answers[len(asked) - 1]

    with make(Policy(), on_ask=on_ask) as sandbox:
        got = [sandbox.run([*CURL, f"http://host.internal:{port}/"]) for _ in codes]
    assert ["200" if each.stdout == "200" else "refused" for each in got] == codes
    assert [(each.kind, each.host, each.port) for each in asked] == [("connection", "host.internal", port)] * len(
        answers
    )
    assert asked[0].process is not None and asked[0].process.name == "curl"
    assert asked[0].rule == f'allow: ["host.internal:{port}"]'


async def _late(_question: Question) -> Answer:
    await asyncio.sleep(PATIENCE)
    return AllowSession


def _raises(_question: Question) -> Answer:
    raise RuntimeError("no idea")


def _nonsense(_question: Question) -> Answer:
    return True  # type: ignore[return-value]


def _leaves(_question: Question) -> Answer:
    sys.exit(3)


def _interrupted(_question: Question) -> Answer:
    raise KeyboardInterrupt


async def _leaves_later(_question: Question) -> Answer:
    sys.exit(3)


@pytest.mark.parametrize("on_ask", [_late, _raises, _nonsense, _leaves, _interrupted, _leaves_later])
def test_a_bad_callback_is_a_no(make: Maker, port: int, on_ask: Callable[[Question], Answer]) -> None:
    with make(Policy(), on_ask=on_ask, ask_timeout=1.0) as sandbox:
        result = sandbox.run([*CURL, f"http://host.internal:{port}/"])
        assert result.stdout != "200"
        assert [(each.target, each.reason) for each in result.denied] == [(f"host.internal:{port}", "name not allowed")]


def test_others_go_on_while_one_is_asked_about(make: Maker, port: int) -> None:
    asked, answer = threading.Event(), threading.Event()

    def on_ask(_question: Question) -> Answer:
        asked.set()
        answer.wait(PATIENCE)
        return AllowOnce

    url = f"http://host.internal:{port}/"
    with (
        make(Policy(), on_ask=on_ask) as sandbox,
        sandbox.popen([*CURL, url], stdin=DEVNULL, stdout=PIPE) as waiting,
    ):
        assert asked.wait(PATIENCE)
        assert sandbox.run(["true"]).exit_code == 0
        assert waiting.poll() is None
        answer.set()
        assert waiting.stdout is not None and waiting.stdout.read() == b"200"


# ---------------------------------------------------------------- events


def test_events(make: Maker) -> None:
    seen: list[Event] = []
    with make(on_event=seen.append) as sandbox:
        stream = sandbox.events()
        sandbox.run(["sh", "-c", "/bin/echo marker-word"])
    streamed = list(stream)
    for events in (seen, streamed):
        programs = [event.data["argv"] for event in events if event.kind == "ProcessStarted"]
        assert ["/bin/echo", "marker-word"] in programs
        assert events[-1].kind == "SessionEnded"  # told after the caller has closed its side
        assert "EventsLost" not in [event.kind for event in events]
    assert {event.source for event in streamed} <= {"ebpf", "notify", "network", "session", "mount"}


def test_events_that_nobody_can_tell_any_more(make: Maker) -> None:
    """The control is above: a sandbox that is closed tells all, and says that nothing was lost."""
    seen: list[Event] = []
    with make(on_event=seen.append) as sandbox:
        core = sandbox._core._process
        assert core is not None
        stream = sandbox.events()
        sandbox.run(["true"])
        os.kill(core.pid, signal.SIGKILL)
        streamed = list(stream)
    for events in (seen, streamed):
        last = events[-1]
        assert (last.kind, last.data["count"]) == ("EventsLost", 0) and "told everything" in last.data["cause"]
        assert "SessionEnded" not in [event.kind for event in events]


@pytest.mark.parametrize("raised", [RuntimeError("no"), SystemExit(3), KeyboardInterrupt()])
def test_a_callback_that_raises_changes_nothing(make: Maker, raised: BaseException) -> None:
    """Nor ``sys.exit()``: it would end the thread that every caller waits for."""
    called: list[Event] = []

    def fails(event: Event) -> None:
        called.append(event)
        raise raised

    with make(on_event=fails) as sandbox:
        assert sandbox.run(["true"], on_event=fails).exit_code == 0
    assert called


def test_a_callback_may_end_a_program_of_asyncio(make: Maker) -> None:
    """There the loop is the program's own, and ``sys.exit()`` in it means what it always means; the sandbox closes."""
    seen: list[Event] = []

    def end(event: Event) -> None:
        seen.append(event)
        sys.exit(7)

    async def main() -> None:
        async with make.asynchronous(on_event=end) as sandbox:
            await sandbox.run(["true"])

    with pytest.raises(SystemExit) as ended:
        asyncio.run(main())
    assert ended.value.code == 7 and len(seen) == 1


def test_the_record_is_kept_and_names_the_commands(make: Maker, tmp_path: Path) -> None:
    with make() as sandbox:
        sandbox.run(["/bin/echo", "for the record"])
        name = sandbox.id
    shown = subprocess.run(
        [sys.executable, "-m", "membrane", "trace", "show", name],
        env=make.environ,
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    )
    assert "for the record" in shown.stdout
    assert f"[{Path(sys.argv[0]).name}]" in shown.stdout
    with make(record=False) as sandbox:
        sandbox.run(["true"])
        assert not (tmp_path / "state" / "trace" / sandbox.id).exists()


# ---------------------------------------------------------------- asyncio, threads, pytest


def test_async_core(make: Maker) -> None:
    async def use() -> None:
        async with make.asynchronous() as sandbox:
            results = await asyncio.gather(*(sandbox.run(["sh", "-c", f"exit {n}"]) for n in range(20)))
            assert [result.exit_code for result in results] == list(range(20))
            process = await sandbox.popen(["cat"], stdin=PIPE, stdout=PIPE)
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(b"over and out")
            process.stdin.close()
            assert await process.stdout.read() == b"over and out"
            assert (await process.wait()).exit_code == 0
            task = asyncio.create_task(sandbox.run(["sleep", "600"]))
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await sandbox.shell("echo $((6 * 7))")).stdout == "42\n"

    asyncio.run(use())


def test_sync_face_within_a_running_loop(make: Maker) -> None:
    async def use() -> str:
        with make() as sandbox:
            return sandbox.shell("echo inside").stdout

    assert asyncio.run(use()) == "inside\n"


def test_threads(make: Maker) -> None:
    with make() as sandbox:
        codes: list[int] = []
        threads = [
            threading.Thread(target=lambda n=n: codes.append(sandbox.run(["sh", "-c", f"exit {n}"]).exit_code))
            for n in range(40)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(codes) == list(range(40))
        assert sandbox.stats().commands == 40


def test_no_handler_and_no_child_of_the_caller_is_touched(make: Maker) -> None:
    before = {number: signal.getsignal(number) for number in range(1, 32) if number not in (9, 19)}
    with make() as sandbox:
        sandbox.run(["true"])
        assert {number: signal.getsignal(number) for number in before} == before
        assert not any(thread.name == "membrane" and not thread.daemon for thread in threading.enumerate())


# ---------------------------------------------------------------- wrap


def test_wrap_is_the_command_for_whoever_spawns_it(make: Maker, workspace: Path) -> None:
    with make() as sandbox:
        words = sandbox.wrap(["sh", "-c", "read x; echo got $x $WORD; pwd; exit 7"], env={"WORD": "w"})
        done = subprocess.run(words, input=b"in\n", capture_output=True, cwd=workspace, timeout=PATIENCE, check=False)
        assert (done.returncode, done.stdout) == (7, f"got in w\n{workspace}\n".encode()), done.stderr
        script = "trap 'echo told; exit 5' TERM; echo up; while :; do sleep 0.05; done"
        with Started(sandbox.wrap(["sh", "-c", script]), stdout=subprocess.PIPE, cwd=workspace) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"up\n"
            process.terminate()
            assert process.stdout.read() == b"told\n"
            assert process.wait(PATIENCE) == 5
        # Killed, it takes its command with it.
        with Started(sandbox.wrap(["sleep", "600"]), cwd=workspace) as process:
            until(lambda: sandbox.stats().running == 1, "the start of the command")
            process.kill()
            process.wait(PATIENCE)
            until(lambda: sandbox.stats().running == 0, "the end of the command")
        door = next(Path(word) for word in words if word.endswith(".sock"))
        assert door.stat().st_mode & 0o777 == 0o600 and door.parent.stat().st_mode & 0o777 == 0o700
        assert sandbox.shell(f"ls {door.parent}").exit_code != 0, "not in the view"
    late = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert late.returncode == 125 and "it works while the sandbox is open" in late.stderr


def test_nonsense_at_the_door_ends_nobody_else(make: Maker) -> None:
    with make() as sandbox:
        words = sandbox.wrap(["true"])
        door = next(word for word in words if word.endswith(".sock"))
        run = wire.TO_SUPERVISOR.encode(wire.Run(1, ("true",), "", {}, 18, ()))[0]
        others = [
            wire.TO_SUPERVISOR.encode(each)[0] for each in (wire.Update(1, b""), wire.Listen(1), wire.WantEvents())
        ]
        for message in (run[:1], run[:-1], run + b"\0", *others, b"\xff", b"\xff" * 100, b"R.{}", b"\x63"):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
                channel.connect(door)
                channel.settimeout(PATIENCE)
                channel.sendall(message)
                assert channel.recv(4096) == b"", "it was let go"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
            channel.connect(door)
            channel.settimeout(PATIENCE)
            channel.sendall(run)
            assert b"too many open files" in channel.recv(4096), "no streams came along"
        assert sandbox.run(["true"]).exit_code == 0


def test_wrap_with_a_long_state_directory(make: Maker, tmp_path: Path) -> None:
    make.environ["MEMBRANE_HOME"] = str(tmp_path / ("d" * 120))
    with make() as sandbox:
        words = sandbox.wrap(["sh", "-c", "exit 7"])
        assert subprocess.run(words, cwd=make.workspace, timeout=PATIENCE, check=False).returncode == 7


# ---------------------------------------------------------------- faults


def test_what_is_wrong_is_said(make: Maker, tmp_path: Path) -> None:
    with pytest.raises(HostError, match=r"cannot enter the workspace .*: No such file or directory"):
        Sandbox(Policy(), workspace=tmp_path / "absent", environ=make.environ).open()
    sandbox = make()
    with pytest.raises(HostError, match="it is not open"):
        sandbox.run(["true"])
    with sandbox, pytest.raises(MembraneError, match="opened before"):
        sandbox.open()
    with pytest.raises(HostError, match="it was closed") as told:
        sandbox.run(["true"])
    assert told.value.fix == ("make another one: with Sandbox(...) as sandbox:",)
    with pytest.raises(HostError, match="opened before"), sandbox:
        pass
    sandbox.close()


def test_what_fails_on_the_way_is_told_as_it_is(make: Maker) -> None:
    """Before the gateway is there: its end was looked for, and the error of that told instead."""
    secret = {"name": "API_KEY", "from": "env:NOWHERE", "to": ["https://api.example.com/"], "header": "x-api-key"}
    with pytest.raises(PolicyError, match="the variable NOWHERE is not set") as told:
        make(Policy.from_dict({"secrets": [secret]})).open()
    assert told.value.fix == ("export NOWHERE=VALUE",)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(MembraneError, match=str(port)):
            make(Policy.from_dict({"ports": {"expose": [f"3000:{port}"]}})).open()


def test_what_is_no_policy_and_no_command_is_named(make: Maker) -> None:
    with pytest.raises(PolicyError, match="not dict") as told:
        make({"allow": ["example.com"]})  # type: ignore[arg-type]
    assert "Policy.from_dict(DATA)" in told.value.fix
    with make() as sandbox:
        with pytest.raises(PolicyError, match="not dict"):
            sandbox.update({})  # type: ignore[arg-type]
        words: list[tuple[object, str]] = [
            ("echo hi", "not the text 'echo hi'"),
            ([], "without a word"),
            ([""], "the name of the program is empty"),
            (["sleep", 1], "1 is no word"),
            ([b"true"], "b'true' is no word"),
            (["echo", "a\0b"], "NUL"),
        ]
        for argv, cause in words:
            for use in (sandbox.run, sandbox.popen, sandbox.wrap):
                with pytest.raises(PolicyError, match=cause):
                    use(argv)  # type: ignore[operator]
        for env in ({"A=B": "1"}, {"": "1"}, {"A": "a\0b"}):
            for use in (sandbox.run, sandbox.popen, sandbox.wrap):
                with pytest.raises(PolicyError, match="is no variable"):
                    use(["true"], env=env)  # type: ignore[operator]
        assert sandbox.run([Path("/bin/echo"), "hi"]).stdout == "hi\n"


def test_another_event_loop_is_told_so(make: Maker) -> None:
    """What the sandbox says is read in the loop that opened it: to wait elsewhere would be to wait for ever."""
    sandbox = make.asynchronous()

    async def elsewhere() -> None:
        for use in (sandbox.run(["true"]), sandbox.stats(), sandbox.close()):
            with pytest.raises(HostError, match="another event loop opened it"):
                await use

    async def main() -> None:
        async with sandbox:
            await asyncio.to_thread(asyncio.run, elsewhere())
            assert (await sandbox.run(["true"])).exit_code == 0

    asyncio.run(main())


def test_the_end_of_the_supervisor_ends_everything_and_is_told(make: Maker) -> None:
    with make() as sandbox:
        process = sandbox.popen(["sleep", "600"], stdin=DEVNULL, stdout=DEVNULL)
        core = sandbox._core._process
        assert core is not None
        os.kill(core.pid, signal.SIGKILL)
        with pytest.raises(HostError, match="it is closed"):
            process.wait(PATIENCE)
        until(lambda: gone(process.pid), "the end of the command")


def test_gc_takes_away_what_a_killed_supervisor_left(make: Maker, tmp_path: Path) -> None:
    with make() as sandbox:
        words = sandbox.wrap(["true"])
        door = next(Path(word) for word in words if word.endswith(".sock"))
        core = sandbox._core._process
        assert core is not None and door.exists()
        os.kill(core.pid, signal.SIGKILL)
    gc = [sys.executable, "-P", "-m", "membrane", "gc"]
    said = subprocess.run(
        gc, env=make.environ, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert f"removed session record {sandbox.id}" in said.stdout
    assert not door.exists()


def test_close_ends_what_runs(make: Maker) -> None:
    with make() as sandbox:
        process = sandbox.popen(["sh", "-c", "trap '' TERM HUP INT; sleep 600"], stdin=DEVNULL, stdout=DEVNULL)
    assert gone(process.pid)


CALLER = """
    import sys
    from membrane import Policy, Sandbox
    with Sandbox(Policy(), workspace=sys.argv[1]) as sandbox:
        print("open", flush=True)
        while True:
            sandbox.shell("sleep 600 & sleep 0.01")
            print("ran", flush=True)
"""


@pytest.mark.parametrize("moment", [0.0, 0.02, 0.05, 0.1, 0.2, "open", "ran"])
def test_nothing_stays_when_the_caller_is_killed(make: Maker, workspace: Path, moment: float | str) -> None:
    program = textwrap.dedent(CALLER)
    with Started(
        [sys.executable, "-c", program, str(workspace)], env=make.environ, stdout=subprocess.PIPE, text=True
    ) as caller:
        assert caller.stdout is not None
        if isinstance(moment, str):
            while caller.stdout.readline().strip() != moment:
                pass
        else:
            until(lambda: descendants(caller.pid), "its supervisor")
            time.sleep(moment)  # a moment among many: nothing is waited for
        left = descendants(caller.pid)
        caller.kill()
        caller.wait()
        # Those that were forked after the look are in a pid namespace or die with their parent as well; the fixture
        # of this directory sees whoever is still a child of this process.
        until(lambda: all(gone(pid) for pid in left), f"the end of {left}")


CLINGING = """
import os, resource, signal, subprocess, time
for number in range(1, 32):
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_IGN)
for pid in (1, os.getppid()):
    for attempt in (
        lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE, (0, 0)),
        lambda: os.kill(pid, signal.SIGSTOP),
    ):
        try:
            attempt()
        except OSError:
            pass
subprocess.Popen(["sleep", "600"], start_new_session=True)
os.write(1, b"clings")
time.sleep(600)
"""


def _sleeping(caller: int) -> list[int]:
    """The processes below ``caller`` that are CLINGING's ``sleep 600``."""
    found = []
    for pid in descendants(caller):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if Path(f"/proc/{pid}/cmdline").read_bytes() == b"sleep\x00600\x00":
                found.append(pid)
    return found


HOLDING = """
import sys
from membrane import Policy, Sandbox
with Sandbox(Policy(), workspace=sys.argv[1], persistent=sys.argv[2] == "True") as sandbox:
    command = sandbox.popen(["/usr/bin/python3", "-c", sys.argv[3]], stdout=-1)
    print(command.stdout.read(6).decode(), flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("persistent", [False, True])
def test_a_command_that_stops_its_keepers_does_not_outlive_the_caller(
    make: Maker, workspace: Path, persistent: bool
) -> None:
    """It may stop what waits for it, and limit it, but not keep it from being killed."""
    argv = [sys.executable, "-c", HOLDING, str(workspace), str(persistent), CLINGING]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with Started(argv, env=make.environ, text=True, **pipes) as caller:  # type: ignore[call-overload]
        assert caller.stdout.readline() == "clings\n"
        # The control; execve(2) has closed what Popen waits for a moment before /proc shows the new arguments.
        until(lambda: len(_sleeping(caller.pid)) == 1, "the process that clings")
        left = descendants(caller.pid)
        caller.kill()
        caller.wait()
        until(
            lambda: all(gone(pid) for pid in left), lambda: f"the end of {[describe(p) for p in left if not gone(p)]}"
        )


def test_many_leave_nothing(make: Maker, tmp_path: Path) -> None:
    """The fixture compares processes, descriptors and mounts; here files and threads."""
    for _ in range(3):
        with make(record=False) as sandbox:
            sandbox.run(["true"])
    first = set((tmp_path / "state").rglob("*"))
    threads = threading.active_count()
    for _ in range(10):
        with make(record=False) as sandbox:
            sandbox.run(["true"])
    assert set((tmp_path / "state").rglob("*")) == first
    assert threading.active_count() <= threads
