"""The case table of the tool that this one follows: 24 numbered groups, each case by its number.

A case is a policy, an action of an ordinary client, and what the client then sees.  The same action runs without
membrane as well, once for all of its cases, and must succeed: no refusal passes for the wrong reason.  ``http`` marks
the cases whose rule has a path or methods.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from world import names
from world.box import Box

H = "httpbin.org"
POSTS = "/anything/posts"
ABOUT = "/anything/about"
IP_OF_H = names.address(H)
IP_OF_GITHUB = names.address("github.com")

# As ssh(1) does: it says its own version and waits for the server's, which does not wait for it (RFC 4253 section 4.2).
READ_BANNER = """
import socket, sys
try:
    sock = socket.create_connection((sys.argv[1], 22), timeout=60)
    sock.sendall(b"SSH-2.0-Client_1.0\\r\\n")
    banner = sock.recv(64)
except ConnectionError as error:
    banner = type(error).__name__.encode()
print(banner)
sys.exit(0 if banner.startswith(b"SSH-2.0-") else 1)
"""
TWO_QUESTIONS = """
import socket, struct, sys
server = next(l.split()[1] for l in open("/etc/resolv.conf") if l.startswith("nameserver"))
name = b"\\x06github\\x03com\\x00" + struct.pack(">HH", 1, 1)
packet = struct.pack(">HHHHHH", 7, 0x100, 2, 0, 0, 0) + name + name
sock = socket.socket(socket.AF_INET6 if ":" in server else socket.AF_INET, socket.SOCK_DGRAM)
sock.settimeout(60)
sock.connect((server, 53))
sock.send(packet)
reply = sock.recv(4096)
print("rcode", reply[3] & 15, "answers", struct.unpack(">H", reply[6:8])[0])
"""


def curl(url: str, *options: str) -> list[str]:
    return ["curl", "-sS", "-m", "60", "-o", "/dev/null", "-w", "%{http_code}", *options, url]


def get(path: str = "/anything", host: str = H) -> list[str]:
    return curl(f"https://{host}{path}")


def post(path: str = "/anything", host: str = H) -> list[str]:
    return curl(f"https://{host}{path}", "-X", "POST", "-d", "a=b")


def by_address(path: str, *options: str) -> list[str]:
    """The origin's own address for its name: no query is made."""
    return curl(f"https://{H}{path}", "--resolve", f"{H}:443:{IP_OF_H}", *options)


def as_is(path: str) -> list[str]:
    return curl(f"https://{H}{path}", "--path-as-is")


def ssh(host: str = "github.com") -> list[str]:
    return ["python3", "-c", READ_BANNER, host]


def dig(name: str, *options: str) -> list[str]:
    return ["dig", "+tries=1", "+time=60", *options, name]


def rule(dest: str, *http: dict[str, list[str]], ports: list[Any] | None = None) -> dict[str, Any]:
    entry: dict[str, Any] = {"dest": dest}
    if http:
        entry["http"] = list(http)
    if ports:
        entry["ports"] = ports
    return entry


@dataclass(frozen=True)
class Case:
    """``see``: an HTTP status, ``any`` (any HTTP answer), ``refused`` (a reset, in or before TLS),
    ``exit N``, or ``status X`` of dig."""

    number: str
    allow: list[Any]
    action: list[str]
    see: str
    http: bool = False
    deny: list[Any] = field(default_factory=list)
    options: tuple[str, ...] = ()


GET_ONLY = {"methods": ["GET"]}
GET_POSTS = {"methods": ["GET"], "paths": [POSTS]}
GET_ABOUT = {"methods": ["GET"], "paths": [ABOUT]}
SUB = {"methods": ["GET"], "paths": ["on-the-money/"]}
U = f"https://{H}"
TWO = [rule(U, GET_POSTS, GET_ABOUT)]
PORTQUIZ = "https://portquiz.test:8443/allowed/"
GITHUB_HTTP = rule("github.com", GET_ONLY)

CASES = [
    Case("1A", [H], get(), "200"),
    Case("1B", [H], post(), "any"),
    Case("2A", [rule(f"{U}{POSTS}/")], get(f"{POSTS}/"), "200", http=True),
    Case("2B", [rule(f"{U}{POSTS}/")], get("/"), "403", http=True),
    Case("2C", [rule(f"{U}{POSTS}/")], post(f"{POSTS}/"), "any", http=True),
    Case("3A", [rule(U, GET_ONLY)], get(), "200", http=True),
    Case("3B", [rule(U, GET_ONLY)], post(), "403", http=True),
    Case("4A", [rule(f"{U}{POSTS}/", GET_ONLY)], get(f"{POSTS}/"), "200", http=True),
    Case("4B", [rule(f"{U}{POSTS}/", GET_ONLY)], get(f"{POSTS}/on-the-money/"), "200", http=True),
    Case("4C", [rule(f"{U}{POSTS}/", GET_ONLY)], post(f"{POSTS}/"), "403", http=True),
    Case("4D", [rule(f"{U}{POSTS}/", GET_ONLY)], get("/"), "403", http=True),
    Case("5A", [rule(U, GET_POSTS)], get(POSTS), "200", http=True),
    Case("5B", [rule(U, GET_POSTS)], get("/"), "403", http=True),
    Case("5C", [rule(U, GET_POSTS)], post(POSTS), "403", http=True),
    Case("6A", [rule(f"{U}{POSTS}/", SUB)], get(f"{POSTS}/on-the-money/"), "200", http=True),
    Case("6B", [rule(f"{U}{POSTS}/", SUB)], get("/"), "403", http=True),
    Case("7A", TWO, get(POSTS), "200", http=True),
    Case("7B", TWO, get(ABOUT), "200", http=True),
    Case("7C", TWO, get("/"), "403", http=True),
    Case("7D", TWO, post(POSTS), "403", http=True),
    Case("8A", [f"{U}{POSTS}", f"{U}{ABOUT}"], get(POSTS), "200", http=True),
    Case("8B", [f"{U}{POSTS}", f"{U}{ABOUT}"], get(ABOUT), "200", http=True),
    Case("8C", [f"{U}{POSTS}", f"{U}{ABOUT}"], get("/"), "403", http=True),
    Case("9A", [], get("/", "example.com"), "exit 6"),
    Case("10A", [], get(POSTS), "200", http=True, options=(f"--allow={U}{POSTS}",)),
    Case("10B", [], get("/"), "403", http=True, options=(f"--allow={U}{POSTS}",)),
    Case("10C", [], get(), "200", options=(f"--allow={H}",)),
    Case("11A", ["github.com"], dig("github.com"), "status NOERROR"),
    Case("11B", ["github.com"], dig("google.com"), "status NXDOMAIN"),
    Case("12A", [rule(U, GET_POSTS)], get(POSTS), "200", http=True),
    Case("12B", [rule(U, GET_POSTS)], get(f"{POSTS}/on-the-money/"), "200", http=True),
    Case("12C", [rule(U, GET_POSTS)], get(f"{POSTS}-evil"), "403", http=True),
    Case("13A", [rule(H, GET_POSTS)], get(POSTS), "200", http=True),
    Case("13B", [rule(H, GET_POSTS)], get("/"), "403", http=True),
    Case("13C", [rule(H, GET_POSTS)], post(POSTS), "403", http=True),
    Case("15A", [rule(IP_OF_H, GET_POSTS)], by_address(POSTS), "200", http=True),
    Case("15B", [rule(IP_OF_H, GET_POSTS)], by_address("/"), "403", http=True),
    Case("15C", [rule(IP_OF_H, GET_POSTS)], by_address(POSTS, "-X", "POST"), "403", http=True),
    Case("17B", [names.PUBLIC_DNS], get("/", names.PUBLIC_DNS), "any"),
    Case("17C", [rule(names.PUBLIC_DNS, ports=["53/udp"])], dig("httpbin.org", f"@{names.PUBLIC_DNS}"), "exit 0"),
    Case("18A", [rule(U, GET_POSTS)], as_is(f"{POSTS}/../../get"), "403", http=True),
    Case("18B", [rule(U, GET_POSTS)], as_is(f"{POSTS}/x/../../../get"), "403", http=True),
    Case("18C", [rule(U, GET_POSTS)], as_is(f"{POSTS}/%2e%2e/%2e%2e/get"), "403", http=True),
    Case("18D", [rule(U, GET_POSTS)], as_is(f"{POSTS}/%252e%252e/%252e%252e/get"), "403", http=True),
    Case("18E", [rule(U, GET_POSTS)], as_is(f"{POSTS}/normal"), "200", http=True),
    Case("19A", [GITHUB_HTTP], ssh(), "exit 1", http=True),
    Case("19B", ["github.com"], ssh(), "exit 0"),
    Case("19C", [GITHUB_HTTP, rule("github.com", ports=["22/tcp"])], ssh(), "exit 0", http=True),
    Case("20A", [rule(f"{U}{POSTS}", SUB)], get(f"{POSTS}/on-the-money/"), "200", http=True),
    Case("20B", [rule(f"{U}{POSTS}", SUB)], get(POSTS), "403", http=True),
    Case("20C", [rule(f"{U}{POSTS}", SUB)], post(POSTS), "403", http=True),
    Case("20D", [rule(f"{U}{POSTS}", SUB)], get("/"), "403", http=True),
    Case("21A", [rule(IP_OF_GITHUB, {"methods": ["GET"], "paths": ["/"]})], ssh(IP_OF_GITHUB), "exit 1", http=True),
    Case(
        "21B",
        [rule(IP_OF_GITHUB, {"methods": ["GET"], "paths": ["/"]})],
        curl("https://github.com/", "--resolve", f"github.com:443:{IP_OF_GITHUB}"),
        "200",
        http=True,
    ),
    Case("22A", [PORTQUIZ], get("/", "portquiz.test:8443"), "403", http=True),
    Case("22B", [PORTQUIZ], get("/allowed/", "portquiz.test:8443"), "any", http=True),
    Case("23A", ["*.httpbin.org"], get(), "exit 6"),
    Case("23B", ["*.github.com"], get("/", "api.github.com"), "200"),
    Case("23C", ["*.github.com"], get("/", "github.com"), "exit 6"),
    Case("24A", ["*"], get(), "200"),
    Case("24B", ["*"], get("/", "api.github.com"), "200"),
    Case("24C", [rule("*", ports=["443/tcp"])], ssh(), "exit 1"),
    Case("24D", [rule("*", ports=["443/tcp"])], get("/", "github.com"), "200"),
    # What the later version of that tool added, where it concerns hosts and ports:
    Case("32A", [H], get(), "exit 78", deny=[H]),  # the same file says both: a contradiction, not a policy
    Case("32B", ["**"], get(), "exit 6", deny=[H]),
    Case("32C", ["**"], get("/", "api.github.com"), "200", deny=[H]),
    Case("32D", ["api.github.com"], get("/", "api.github.com"), "exit 6", deny=["*.github.com"]),
    Case("32E", [H], get(), "exit 6", deny=["*"]),
    Case("33A", ["github.com"], ssh(), "exit 1", deny=[rule("github.com", ports=["22/tcp"])]),
    Case("33B", ["github.com"], get("/", "github.com"), "200", deny=[rule("github.com", ports=["22/tcp"])]),
    Case("33C", [names.PUBLIC_DNS], get("/", names.PUBLIC_DNS), "refused", deny=["8.8.8.0/24"]),
    Case("33D", [], get(), "exit 6", deny=[H], options=(f"--allow={H}",)),
    Case("33E", [H], get(), "exit 6", options=(f"--deny={H}",)),
    Case(
        "34A",
        [rule(names.PUBLIC_DNS, ports=["53/udp"])],
        dig("httpbin.org", f"@{names.PUBLIC_DNS}"),
        "exit 78",
        deny=[rule(names.PUBLIC_DNS, ports=["53/udp"])],
    ),
]


def seen(done: Any, see: str) -> bool:
    """Whether a client saw what ``see`` says."""
    kind, _, value = see.partition(" ")
    if kind == "exit":
        return bool(done.returncode == int(value))
    if kind == "refused":
        return done.returncode in (7, 35, 52, 56)
    if kind == "status":
        return done.returncode == 0 and f"status: {value}" in done.stdout
    code = done.stdout.strip()[-3:]
    if kind == "any":
        return code.isdigit() and code != "000"
    # A path that is refused for its form is a 400, one that a rule refuses a 403 (spec: "refused with 400").
    return code in ({"403", "400"} if kind == "403" else {kind})


_SUCCEEDED: set[tuple[str, ...]] = set()  # actions, without membrane, in the world of this process


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.number)
def test_case(box: Box, case: Case) -> None:
    if (*case.action,) not in _SUCCEEDED:
        without = box.outside(*case.action, env={"CURL_CA_BUNDLE": str(box.world.ca)})
        assert without.returncode == 0, f"positive control: {without}"
        _SUCCEEDED.add((*case.action,))
    box.allow(*case.allow, deny=case.deny)
    trust = [f"--extra-ca={box.world.ca}"] if case.http else box.tls
    done = box.run(*case.options, *trust, "--", *case.action)

    assert seen(done, case.see), done


def test_11c_a_tunnel_in_dns_labels(box: Box) -> None:
    """Data in a label reaches no resolver; the control shows that it would."""
    label = "c2VjcmV0LWRhdGE"
    box.outside(*dig(f"{label}-control.example.com"))
    assert box.world.questions(f"{label}-control.example.com")
    box.allow("github.com")
    done = box.run("--", *dig(f"{label}.example.com"))
    assert "status: NXDOMAIN" in done.stdout, done
    assert box.world.questions(f"{label}.example.com") == []


@pytest.mark.parametrize("number, allow", [("11D", ["github.com"]), ("17A", [names.PUBLIC_DNS])])
def test_a_foreign_resolver_is_never_reached(box: Box, number: str, allow: list[str]) -> None:
    """``dig @8.8.8.8`` gets nothing (exit 9), or our own answer: never 8.8.8.8's."""
    name = f"only-{number.lower()}.test"
    box.outside(*dig(name, f"@{names.PUBLIC_DNS}"))
    assert len(box.world.questions(name)) == 1
    box.allow(*allow)
    done = box.run("--", *dig(name, f"@{names.PUBLIC_DNS}"))
    assert done.returncode == 9 or "status: NXDOMAIN" in done.stdout, done
    assert len(box.world.questions(name)) == 1


def test_17c_reaches_the_server_itself(box: Box) -> None:
    """A name that only 8.8.8.8 knows, so that an answer of ours cannot pass for its own."""
    box.allow({"dest": names.PUBLIC_DNS, "ports": ["53/udp"]})
    done = box.run("--", *dig(names.SPLIT_NAME, "+short", f"@{names.PUBLIC_DNS}"))
    assert done.stdout.strip() == names.address("example.com"), done


@pytest.mark.parametrize(
    ("number", "policy", "script", "status"),
    [
        ("14A", {"ignore": ["secrets/"]}, "cat secrets/key.txt", 1),
        ("14B", {"readonly": ["secrets/"]}, "echo x > secrets/key.txt", 1),
        ("14B-read", {"readonly": ["secrets/"]}, "cat secrets/key.txt", 0),
        ("14C", {"readonly": ["config/"], "ignore": ["config/secrets.txt"]}, "grep text config/secrets.txt", 1),
        ("14C-other", {"readonly": ["config/"], "ignore": ["config/secrets.txt"]}, "cat config/app.txt", 0),
        ("14C-write", {"readonly": ["config/"], "ignore": ["config/secrets.txt"]}, "echo x > config/app.txt", 1),
    ],
)
def test_14_files(box: Box, number: str, policy: dict[str, list[str]], script: str, status: int) -> None:
    for path in ("secrets/key.txt", "config/secrets.txt", "config/app.txt"):
        (box.workspace / path).parent.mkdir(exist_ok=True)
        (box.workspace / path).write_text("text\n")
    assert box.outside("bash", "-c", script).returncode == 0
    box.allow(**policy)
    done = box.run("--", "bash", "-c", script)
    assert done.returncode == status, done


def test_16a_two_questions_in_one_packet(box: Box) -> None:
    """RFC 9619: one question; no answer may come from such a packet and nothing is asked upstream."""
    control = box.outside("python3", "-c", TWO_QUESTIONS)
    assert "rcode" in control.stdout, control
    before = len(box.world.questions("github.com"))
    box.allow("github.com")
    done = box.run("--", "python3", "-c", TWO_QUESTIONS)
    assert done.stdout.split()[1:] != ["0"], done
    assert done.stdout.split()[0] == "rcode", done
    assert int(done.stdout.split()[1]) in (1, 3), done
    assert done.stdout.split()[3] == "0", done
    assert len(box.world.questions("github.com")) == before


def test_workspace_and_home_have_the_names_of_its_containers(box: Box) -> None:
    """Links: whatever is hidden or read-only is so by each name, and nothing is left behind below one."""
    (box.workspace / ".env").write_text("KEY=secret\n")
    (box.workspace / "config").mkdir()
    script = """
    cd /workspace && touch made && cat .env && touch config/x
    echo mine > /home/agent/f && cat ~/f && cat /home/agent/.ssh/id_rsa
    rm /workspace /home/agent; mv /workspace /w; ls -d /workspace/ /home/agent/
    """
    done = box.run("--readonly", "config/", "--", "sh", "-c", script)
    assert done.stdout.split() == ["mine", "/home/agent/", "/workspace/"], done
    assert (box.workspace / "made").exists() and not (box.workspace / "config" / "x").exists()
    assert "secret" not in done.stdout and done.stderr.count("Read-only file system") >= 3
    refused = box.run("--mount", "/usr/share/doc:/workspace/doc", "--", "true")
    assert refused.returncode == 78 and "is in the workspace" in refused.stderr
    assert not (box.workspace / "doc").exists()


def test_start_and_attach_have_no_option_trace(box: Box) -> None:
    """Each session is recorded; the two commands are in test_detached.py."""
    for name in ("start", "attach"):
        done = box.run(name, "--trace")
        assert done.returncode == 2 and "unknown option --trace" in done.stderr, done


def test_the_trace_log_grows_while_the_command_runs(box: Box) -> None:
    """The command itself waits for a line of it: outside, beside the workspace."""
    log = box.workspace / "log.jsonl"
    box.allow("example.com:80")
    script = "curl -s -o /dev/null http://example.com/; until grep -q net_tcp_connect log.jsonl; do sleep 0.05; done"
    done = box.run("--trace-log", "log.jsonl", "--", "sh", "-c", script, timeout=60)
    assert done.returncode == 0, done
    events = [json.loads(line) for line in log.read_text().splitlines()]
    dialled = next(event for event in events if event["eventName"] == "net_tcp_connect")
    assert {each["name"]: each["value"] for each in dialled["args"]} == {
        "dst": names.address("example.com"), "dst_port": 80, "dst_dns": ["example.com"]
    }  # fmt: skip
    assert dialled["processName"] == "curl"
    asked = [event for event in events if event["eventName"] == "net_packet_dns"]
    assert asked and all(event["processName"] == "curl" for event in asked)
