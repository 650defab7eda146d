"""What agents are told inside, and that they read it: files in /etc, Claude Code and Codex against stand-ins."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from test_claude import AGENT_PATIENCE, CLAUDE, CLAUDE_ENVIRONMENT, CODEX, new_results, options, path_with
from world.box import ROOT, Box, membrane_argv

GUIDE, IN_FORCE = "/etc/membrane/AGENTS.md", "/etc/membrane/config.yaml"
WRITES = f"""
for name in {GUIDE} {IN_FORCE} /etc/claude-code/CLAUDE.md /etc/codex/managed_config.toml; do
    test -s $name || echo empty $name
    (echo x >> $name) 2>/dev/null && echo written $name
    rm -f $name 2>/dev/null && echo removed $name
    chmod 666 $name 2>/dev/null && test -w $name && echo mode $name
    mv /etc/membrane /etc/other 2>/dev/null && echo moved
done
"""


def test_the_policy_in_force_is_told_and_cannot_be_changed(box: Box) -> None:
    box.allow(
        "example.com",
        {"dest": "https://api.github.com/repos", "http": [{"methods": ["GET"]}]},
        ignore=["private/"],
        secrets=[{"name": "TOKEN", "from": "env:SECRET_TOKEN", "to": ["https://api.github.com"]}],
        env={"set": {"CHOSEN": "value-of-chosen"}},
    )
    done = box.run("--", "sh", "-c", f"cat {GUIDE} {IN_FORCE}; {WRITES}")
    assert done.returncode in (0, 1), done
    assert "`example.com`, any TCP port" in done.stdout
    assert "`https://api.github.com/repos`, only `GET` of" in done.stdout
    assert "`private/`" in done.stdout and str(box.workspace) in done.stdout
    assert '- "example.com"' in done.stdout
    assert '{name: "TOKEN", from: "env", to: ["https://api.github.com"],' in done.stdout
    assert "host-secret" not in done.stdout and "SECRET_TOKEN" not in done.stdout
    assert "value-of-chosen" not in done.stdout
    for word in ("empty", "written", "removed", "mode", "moved"):
        assert f"\n{word} " not in done.stdout and not done.stdout.endswith(f"{word}\n")


def test_the_rest_of_etc_is_as_it_was(box: Box) -> None:
    """Also what is covered there, by rule and by right."""
    told = "cat /etc/passwd | md5sum; ls /etc/ssl/certs | md5sum; readlink /etc/mtab; cat /etc/shadow 2>&1 | md5sum"
    done = box.run("--", "sh", "-c", f"{told}; ls /etc")
    outside = box.outside("sh", "-c", f"{told}; ls /etc")
    inside, host = done.stdout.splitlines(), outside.stdout.splitlines()
    assert inside[:3] == host[:3]
    assert set(host[4:]) <= set(inside[4:]) <= {*host[4:], "membrane", "claude-code", "codex"}
    if not os.getuid():
        assert inside[3] != host[3], "root reads it outside"
    assert not os.path.exists(GUIDE), "nothing is left on the host"


def test_where_the_kernel_layers_no_file_system_the_names_are_joined(box: Box) -> None:
    """In a container something is mounted in /etc that a namespace of ours may not uncover."""
    me = f"--map-user={os.getuid()}" if os.getuid() else "--map-root-user"
    group = f"--map-group={os.getgid()}" if os.getuid() else "--map-root-user"
    script = 'mount --bind /etc/hostname /etc/hostname && exec setpriv --bounding-set=-all "$@"'
    asked = f"stat -f -c %T /etc; cat {GUIDE}; cat /etc/hostname; {WRITES} cat /etc/shadow; ls /etc/ssl/certs"
    around = ["unshare", "-Um", me, group, "--keep-caps", "sh", "-c", script, "sh"]
    done = box.outside(*around, *box.argv("--no-trace", "--", "sh", "-c", asked))
    assert done.stdout.startswith("tmpfs\n# You are inside Membrane"), done
    assert f"\n{os.uname().nodename}\n" in done.stdout
    assert "Permission denied" in done.stderr, "the shadow file stays covered"
    for word in ("empty", "written", "removed", "mode", "moved"):
        assert f"\n{word} " not in done.stdout


def test_the_first_part_is_the_users(box: Box) -> None:
    box.policy("")
    (box.state / "AGENTS.md").write_text("# House rules\n\nRun the linter.\n")
    done = box.run("--", "cat", GUIDE)
    assert done.stdout.startswith("# House rules\n\nRun the linter.\n\n## Files")
    (box.state / "AGENTS.md").unlink()
    (box.state / "AGENTS.md").mkdir()
    done = box.run("--", "cat", GUIDE)
    assert done.stdout.startswith("# You are inside Membrane")
    assert "AGENTS.md is left out" in done.stderr


@pytest.mark.needs_tool("claude")
def test_claude_code_reads_it(box: Box) -> None:
    before = len(box.world.model_calls(api="messages"))
    box.allow("messages.test:8787")
    environment = {**CLAUDE_ENVIRONMENT, "ANTHROPIC_BASE_URL": "http://messages.test:8787"}
    done = box.run(*options(environment), "--", *CLAUDE, env=path_with("claude"), timeout=AGENT_PATIENCE)
    assert done.returncode == 0, done
    calls = [call for call in box.world.model_calls(api="messages")[before:] if "Bash" in call["tools"]]
    assert calls and all(call["told"] for call in calls)


CODEX_AS_TYPED = tuple(word for word in CODEX if word != "--dangerously-bypass-approvals-and-sandbox")


@pytest.mark.needs_tool("codex")
def test_codex_reads_it_and_makes_no_sandbox_of_its_own(box: Box) -> None:
    """With its own one each command would fail: the kernel refuses it the namespaces (the control).

    By the policy that is there without a file nothing is refused that it does by itself.
    """
    box.policy("allow: [messages.test:8787]\n")
    key = options({"OPENAI_API_KEY": "not-a-key"})
    before = len(box.world.model_calls(api="responses"))
    arguments = [*key, *box.tls, f"--events={box.events_path}", "--", *CODEX_AS_TYPED]
    done = box.run(*arguments, env=path_with("codex"), timeout=AGENT_PATIENCE)
    assert done.returncode == 0, done
    assert {event["access"].get("name") for event in box.events("AccessDenied")} == {"example.com"}  # the stand-in's
    calls = box.world.model_calls(api="responses")[before:]
    assert calls and all(call["told"] for call in calls)
    first, second = new_results(box, "responses", before)
    assert str(box.workspace) in first and "curl=6" in second
    assert (box.workspace / "made.txt").read_text() == "hello\n"
    control = box.run("--", "codex", "sandbox", "true", env=path_with("codex"), timeout=AGENT_PATIENCE)
    assert control.returncode != 0, control


def test_a_membrane_inside_says_where_it_is(box: Box) -> None:
    """It is recognised by what only root could make outside; the variable decides nothing (the control)."""
    control = box.run("--no-trace", "--", "true", env={"MEMBRANE": "1", "MEMBRANE_SESSION": "x"})
    assert control.returncode == 0, control
    mounts = [f"--mount={path}:ro" for path in {str(ROOT), sys.prefix}]
    names = [membrane_argv()[0], str(Path(membrane_argv()[0]).with_name("srt"))]
    if len(membrane_argv()) > 1:
        names = [f"{sys.executable} {ROOT}/scripts/{name}" for name in ("membrane", "srt")]
    for name in names:
        done = box.run(*mounts, "--", "env", "-u", "MEMBRANE", "sh", "-c", f"echo {{}} > s; {name} true; echo $?")
        assert "125" in done.stdout, done
        assert "inside of another membrane, session" in done.stderr
        assert "try: run the command without it: here it is sandboxed already" in done.stderr
        assert "membrane setup container" not in done.stderr
    told = box.run(*mounts, "--", "sh", "-c", f"{names[0]} doctor").stdout
    assert "run the command without it: here it is sandboxed already" in told and "sudo sysctl" not in told, told


NEST = """
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
for flags in (0x10000000, 0x20000, 0x10020000, 0x40000000, 0x80):
    libc.unshare(flags)
    print(errno.errorcode[ctypes.get_errno()])
libc.syscall(CLONE, 0x10000011, 0, 0, 0, 0)
print(errno.errorcode[ctypes.get_errno()])
print(open("/proc/sys/user/max_user_namespaces").read().strip())
try:
    open("/proc/sys/user/max_user_namespaces", "w").write("9")
except OSError as error:
    print(errno.errorcode[error.errno])
os.waitpid(os.fork(), 0) if os.fork() else os._exit(0)
"""


def test_a_sandbox_inside_is_refused_and_told(box: Box) -> None:
    """Twice: by who tells it, and behind that by the kernel, whose limit the command cannot change."""
    script = NEST.replace("CLONE", {"x86_64": "56", "aarch64": "220"}[os.uname().machine])
    done = box.run(f"--events={box.events_path}", "--", "python3", "-c", script)
    assert done.stdout.split()[:7] == ["EPERM"] * 6 + ["0"], done
    assert done.stdout.split()[7] in ("EACCES", "EPERM", "EROFS")
    names = {event["access"].get("name") for event in box.events("AccessDenied")}
    assert {"unshare", "clone"} <= names
    silent = box.run("--no-trace", "--", "python3", "-c", script)
    assert silent.stdout.split()[:6] == ["EPERM"] * 6, "without a record the filter refuses"
    control = box.outside("unshare", "-U", "true")
    assert control.returncode == 0, control
