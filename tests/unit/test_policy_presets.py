"""The preset files: they are valid, narrow, and do what their comments say."""

from __future__ import annotations

from pathlib import Path

import pytest

import membrane.policy
from membrane.policy.decide import decide
from membrane.policy.load import Source, load
from membrane.policy.model import Allow, NameQuery, PathAccess

DIRECTORY = Path(membrane.policy.__file__).parent / "presets"
PRESETS = {str(path.relative_to(DIRECTORY))[:-5]: path.read_text() for path in DIRECTORY.rglob("*.yaml")}
PROFILES = sorted(name.removeprefix("profiles/") for name in PRESETS if name.startswith("profiles/"))
AGENTS = ["aider", "amp", "claude", "codex", "cursor-agent", "gemini", "goose", "opencode"]
# Hosts where anybody can leave or fetch anything, resolvers, and telemetry: never in a preset.
EXFILTRATION = [
    "cloudflare-dns.com",
    "dns.google",
    "storage.googleapis.com",
    "sentry.io",
    "statsig.com",
    "statsig.anthropic.com",
    "gist.github.com",
    "upload.pypi.org",
    "s3.amazonaws.com",
    "sts.amazonaws.com",
]


@pytest.mark.parametrize("name", sorted(name for name in PRESETS if "/" not in name))
def test_preset_is_valid_and_narrow(name: str) -> None:
    result = load([Source("user", "u", f"presets: [{name}]")], presets=PRESETS)
    assert result.warnings == ()
    assert result.policy.allow
    for rule in result.policy.allow:
        assert rule.kind == "host", "no wildcards"
        assert rule.ports, "a port for every host"
        assert all(port.protocol == "tcp" and port.first == port.last for port in rule.ports)
        assert rule.host not in EXFILTRATION
    assert PRESETS[name].startswith("# "), "says why"


@pytest.mark.parametrize("name", PROFILES)
def test_profile_is_valid_and_narrow(name: str) -> None:
    result = load([Source("user", "u", "presets: []")], presets=PRESETS, command=name)
    policy = result.policy
    assert policy.profiles == (name,)
    assert policy.allow
    assert policy.state_dirs
    assert any(rule.value is None for rule in policy.env)
    assert all(rule.kind == "host" and rule.ports and rule.host not in EXFILTRATION for rule in policy.allow)
    assert PRESETS[f"profiles/{name}"].startswith("# "), "says why"


def test_the_promised_agents_are_there() -> None:
    assert PROFILES == AGENTS


@pytest.fixture(scope="module")
def default() -> object:
    return load([], presets=PRESETS).policy


@pytest.mark.parametrize(
    ("path", "visible"),
    [
        (".env", False),
        ("app/.env", False),
        (".env.local", False),
        (".env.production", False),
        (".env.example", True),
        ("app/.env.sample", True),
        (".env.template", True),
        (".env.test", True),
        (".envrc", True),
        ("environment", True),
        (".env/bin/python", True),  # a virtual environment of that name
        ("keys/id_ed25519", False),
        ("keys/id_ed25519.pub", True),
        (".netrc", False),
        ("tests/cert.pem", True),
        (".git/HEAD", True),
        (".npmrc", True),
    ],
)
def test_default_files(default: object, path: str, visible: bool) -> None:
    for operation in ("read", "write"):
        verdict = decide(default, PathAccess(path, operation))  # type: ignore[arg-type]
        assert isinstance(verdict, Allow) is visible


@pytest.mark.parametrize("name", ["pypi.org", "registry.npmjs.org", "github.com", "api.anthropic.com", "crates.io"])
def test_default_hosts(default: object, name: str) -> None:
    assert isinstance(decide(default, NameQuery(name)), Allow)  # type: ignore[arg-type]


def test_template_is_valid_as_it_is_and_with_every_line_in_force() -> None:
    template = (DIRECTORY / "config.template").read_text()
    plain = load([Source("user", "u", template)], presets=PRESETS).policy
    assert plain.replace(levels=(), digest="") == load([], presets=PRESETS).policy.replace(levels=(), digest="")
    lines = []
    for line in template.split("\n"):
        prose = line.startswith("# ") and line[2:3] != " "
        lines.append(line if prose or not line.startswith("#") else line[1:])
    full = load(
        [Source("user", "u", "\n".join(lines), "/d")], presets=PRESETS, environ={"SSH_AUTH_SOCK": "/run/a"}, home="/h"
    ).policy
    assert [rule.host for rule in full.deny] == ["tracker.example"]
    assert full.limits.pids == 2000
    assert full.unix_sockets[0].path == "/run/a"
