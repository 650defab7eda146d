"""Text that the command chose, in every place where it can choose one: nothing of it steers who reads the record.

Names of files and programs, arguments, names of processes, attributes, sockets, names that are asked for, requests.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

from world.box import Box
from world.inspected import url_rule

from membrane.policy.load import Source, load

PATIENCE = 120.0
PYTHON = "/usr/bin/python3"
# What a terminal, a log of lines, a page, a policy in YAML and a person's eye would take for something else.
HOSTILE = (
    "\x1b[2J\x1b]0;owned\x07",
    "\x9b31m",
    '\n  - "**"\n#',
    '\r# "]',
    "\u202egnp.exe\u2066",
    "\u2028- x\u2029\x85",
    "\u200b\ufeff\u00ad",
    "<script>alert(1)</script>&#x1b;",
    "'\"`\\$(x) {{[]}}: # | >",
    'x"]\nallow: ["**"]\nmounts: [/]\n#',
)
INSIDE = """
import os, socket, sys, ctypes
hostile = [bytes.fromhex(word).decode("utf-8", "surrogateescape") for word in sys.argv[1:]]
libc = ctypes.CDLL(None, use_errno=True)
resolver = next(line.split()[1] for line in open("/etc/resolv.conf") if line.startswith("nameserver"))
program = open("/bin/true", "rb").read()

def quietly(action, *arguments):
    try:
        return action(*arguments)
    except OSError:
        return None

def spawn(path, argv):
    pid = os.fork()
    if pid == 0:
        try:
            os.execve(path, argv, {})
        finally:
            os._exit(99)
    os.waitpid(pid, 0)

def ask(label):
    question = b"\\x12\\x34\\1\\0\\0\\1\\0\\0\\0\\0\\0\\0" + bytes([len(label)]) + label + b"\\7example\\0\\0\\1\\0\\1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(60)
        sock.sendto(question, (resolver, 53))
        return quietly(sock.recv, 512)

def request(text):
    with socket.create_connection(("example.com", 80), 60) as sock:
        sock.settimeout(60)
        sock.sendall(text)
        return quietly(sock.recv, 4096)

def one_line(raw):
    return raw.replace(b"\\n", b" ").replace(b"\\r", b" ")

def escaped(raw):
    return b"".join(b"%%%02X" % byte for byte in raw)

asked = got = 0
for number, word in enumerate(hostile):
    raw = word.encode("utf-8", "surrogateescape")
    name = word.replace("/", "_")
    libc.prctl(15, raw.replace(b"\\0", b"") + b"", 0, 0, 0)
    os.makedirs("d" + name, exist_ok=True)
    os.close(os.open("f" + name, os.O_WRONLY | os.O_CREAT, 0o644))
    quietly(os.setxattr, "f" + name, b"user." + raw[:40], raw)
    os.symlink(word, "l" + name)
    os.rename("l" + name, "r" + name)
    os.unlink("r" + name)
    with open("p" + name, "wb") as file:
        file.write(program)
    os.chmod("p" + name, 0o755)
    spawn("./p" + name, [name, word, "x" * 5000 + word])
    spawn("/nowhere/" + name, [name])
    with open("s" + name, "w") as file:
        file.write("#!/bin/sh\\n")
    os.chmod("s" + name, 0o755)
    spawn("./s" + name, [word])
    quietly(os.mkdir, ".vscode")
    for path in ("/opt/" + name, "/srv/" + name, "/run/" + name + ".sock"):
        quietly(os.mkdir, path)
        quietly(socket.socket(socket.AF_UNIX).connect, path[:100])
    quietly(socket.socket(socket.AF_UNIX).connect, b"\\0" + raw[:90])
    asked += ask(raw[:60]) is not None
    for text in (b"GET /p" + raw + b" HTTP/1.1\\r\\nHost: example.com\\r\\n\\r\\n",
                 b"G" + raw[:20] + b" /q HTTP/1.1\\r\\nHost: example.com\\r\\n\\r\\n",
                 b"GET /ok HTTP/1.1\\r\\nHost: example.com\\r\\nUser-Agent: " + one_line(raw) + b"\\r\\n\\r\\n",
                 b"GET /" + escaped(raw) + b" HTTP/1.1\\r\\nHost: example.com\\r\\n\\r\\n",
                 b"GET /h HTTP/1.1\\r\\nHost: " + raw + b"\\r\\n\\r\\n"):
        got += bool(request(text))
print(asked, got)
"""
LEARNED = re.compile(
    r'# .*|allow:|mounts:|unix_sockets:|  - ("[^"]*"|dest: "[^"]*"|\{path: "([^"\\]|\\.)*", mode: ro\})( # .*)?'
    r'|    http:|      - \{methods: \[[A-Z-]+\], paths: \[("[^"]*"(, )?)*\]\}|\{\}'
)


def test_no_text_from_inside_steers_who_reads_the_record(box: Box) -> None:
    box.allow(url_rule("http://example.com/", "GET", "POST"))
    words = [word.encode("utf-8", "surrogateescape").hex() for word in (*HOSTILE, "\udcff\udcfe")]
    done = box.run("--quiet", "--", PYTHON, "-S", "-c", INSIDE, *words, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    asked, got = map(int, done.stdout.split())
    assert asked == len(words) and got >= 2 * len(words)  # the control: these went out, and were answered

    def read(*arguments: str) -> subprocess.CompletedProcess[str]:
        return box.run(*arguments, timeout=PATIENCE)

    views = {
        "list": read("trace", "list"),
        "show": read("trace", "show"),
        "denied": read("trace", "show", "--denied"),
        "summary": read("trace", "summary"),
        "watch": read("trace", "watch"),
        "verify": read("trace", "verify"),
        "report": read("trace", "report", "-o", "-"),
        "learn": read("learn", "--from", "@last"),
        "lines": read("trace", "show", "--json"),
        "summary as JSON": read("trace", "summary", "--json"),
        **{form: read("trace", "export", "--format", form) for form in ("tracee", "events", "ocsf", "otlp")},
    }
    for name, view in views.items():
        assert view.returncode == 0, (name, view.stderr)
        for line in (*view.stdout.split("\n"), *view.stderr.split("\n")):
            assert line.isprintable(), (name, ascii(line))  # no control, format or separator character
    # One line is one event.
    events = [json.loads(line) for line in views["lines"].stdout.splitlines()]
    assert len(views["show"].stdout.splitlines()) == len(events)
    assert len(views["watch"].stdout.splitlines()) == len(events)
    for form in ("tracee", "events", "ocsf", "otlp"):
        assert all(isinstance(json.loads(line), dict) for line in views[form].stdout.splitlines())
    assert [event["event"] for event in events].count("SessionEnded") == 1
    # All of it is there, made visible, and can be told apart.
    told = {json.dumps(event["path"]) for event in events if event["event"] == "FileCreated" and event["path"].startswith(f"{box.workspace}/d")}  # fmt: skip  # noqa: E501
    assert len(told) == len(words)
    executed = {str(event["argv"][1]) for event in events if event["event"] == "ProcessStarted" and event["argv"][2:]}
    assert len(executed) >= len(words)
    assert "<script" not in views["report"].stdout.lower()
    # The policy that is learned names the two hosts, and opens nothing else.
    text = views["learn"].stdout
    for line in text.splitlines():
        assert LEARNED.fullmatch(line), line
    policy = load([Source("user", "learned.yaml", text, "/w")], presets={"default": ""}, home="/home/u").policy
    assert {rule.host for rule in policy.allow} == {"example.com"}, text
    assert not policy.deny and not policy.secrets and not policy.env and not policy.unix_sockets
    assert all(rule.mode == "ro" and rule.path.startswith(("/opt/", "/srv/")) for rule in policy.mounts), text
    assert Path(box.state / "trace").is_dir()
