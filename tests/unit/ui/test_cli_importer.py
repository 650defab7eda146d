"""Imported settings: the policy that is printed decides as the source does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from membrane.errors import HostError, PolicyError
from membrane.policy.decide import decide
from membrane.policy.files import anchored
from membrane.policy.load import Source, load
from membrane.policy.model import Allow, Connect, NameQuery, Origin, PathAccess, Policy
from membrane.srt import settings as srt
from membrane.ui import importer
from membrane.ui.options import UsageError

HOME = "/home/u"
SETTINGS: dict[str, Any] = {
    "network": {
        "allowedDomains": ["example.com", "*.github.com", "localhost:3000", "93.184.216.1:80", "[2001:db8::1]:443"],
        "deniedDomains": ["*:22", "ads.github.com"],
        "strictAllowlist": True,
    },
    "filesystem": {
        "denyRead": ["~/.ssh", "**/*.env", "/data"],
        "allowRead": ["/data/open"],
        "allowWrite": [".", "/out/**"],
        "denyWrite": ["./fixed"],
    },
    "allowPty": True,
}
QUESTIONS = [
    *(NameQuery(name) for name in ("example.com", "www.example.com", "api.github.com", "github.com", "ads.github.com")),
    *(Connect(name, "", port) for name in ("example.com", "api.github.com", "x.test") for port in (22, 443)),
    *(Connect("host.internal", "", port) for port in (3000, 3001)),
    *(Connect("", address, 80) for address in ("93.184.216.1", "93.184.216.2")),
    Connect("", "2001:db8::1", 443),
    *(
        PathAccess(path, operation)
        for path in (
            "a",
            "sub/x.env",
            "fixed/f",
            "/home/u/.ssh/id",
            "/data/x",
            "/data/open/x",
            "/out/a/b",
            "/etc/hosts",
        )
        for operation in ("read", "write")
    ),
]


def imported(tmp_path: Path, kind: str, text: str) -> tuple[str, Policy]:
    file = tmp_path / "settings"
    file.write_text(text)
    out = importer.convert_file(kind, str(file), {"HOME": HOME})
    policy = load([Source("user", "x.yaml", out)], presets={"default": ""}, home=HOME).policy
    return out, anchored(policy, "/w")


def test_srt_decides_like_the_source(tmp_path: Path) -> None:
    text, policy = imported(tmp_path, "srt", json.dumps(SETTINGS, indent=1))
    settings = srt.check(SETTINGS, "settings")
    source = srt.convert(settings, environ={}, home=HOME, base="/w").policy
    for question in QUESTIONS:
        one, two = decide(policy, question), decide(source, question)
        assert isinstance(one, Allow) is isinstance(two, Allow), question
    assert "# network.strictAllowlist: no equivalent here: true" in text
    assert "# allowPty: no equivalent here: true" in text
    assert any(line.strip().startswith('- "example.com"') and "allowedDomains:4" in line for line in text.splitlines())


def test_srt_what_has_no_equivalent_is_a_comment(tmp_path: Path) -> None:
    settings = json.loads(json.dumps(SETTINGS))
    settings["network"]["allowedDomains"] = ["*.co.uk", "localhost"]
    settings["filesystem"]["allowWrite"] = ["/"]
    text, policy = imported(tmp_path, "srt", json.dumps(settings))
    assert not policy.allow and not any(rule.effect == "allow-write" for rule in policy.file_rules or ())
    for word in ("'*.co.uk'", "'localhost'", "'/'"):
        assert any(line.startswith("#") and word in line for line in text.splitlines()), word


def test_srt_opens_what_the_source_opens(tmp_path: Path) -> None:
    settings = json.loads(json.dumps(SETTINGS))
    settings["network"] |= {"allowAllUnixSockets": True, "allowUnixSockets": ["./relative"]}
    settings["filesystem"] |= {"allowGitConfig": True}
    settings["allowNestedUserNamespaces"] = True
    text, policy = imported(tmp_path, "srt", json.dumps(settings))
    assert policy.open_sockets and policy.open_git_config and policy.user_namespaces and not policy.open_files
    assert (
        not policy.unix_sockets
        and "no equivalent here: true" not in text.replace("strictAllowlist", "", 1).split("#")[0]
    )
    settings["filesystem"]["disabled"] = True
    _text, policy = imported(tmp_path, "srt", json.dumps(settings))
    assert policy.open_files and [rule.path for rule in policy.file_rules or ()] == ["/"]
    assert isinstance(decide(policy, PathAccess("/etc/x", "write")), Allow)


def test_srt_credentials(tmp_path: Path) -> None:
    settings = json.loads(json.dumps(SETTINGS))
    settings["network"] |= {"allowedDomains": ["api.test.example.com", "*.amazonaws.com"], "tlsTerminate": {}}
    hosts = ["api.test.example.com"]
    settings["credentials"] = {
        "files": [
            {"path": "~/.netrc", "mode": "mask", "injectHosts": hosts, "extract": "password (\\S+)"},
            {"path": "~/.token", "mode": "mask", "injectHosts": hosts, "decode": "jwt", "maskClaims": ["key"]},
            {"path": "~/.hidden", "mode": "deny"},
        ],
        "envVars": [
            {"name": "URL", "mode": "mask", "injectHosts": hosts, "extract": ":(.+)@", "onExtractNoMatch": "deny"},
            {"name": "AWS_ACCESS_KEY_ID", "mode": "mask", "injectHosts": ["*.amazonaws.com"]},
            {"name": "AWS_SECRET_ACCESS_KEY", "mode": "mask", "injectHosts": ["*.amazonaws.com"]},
            {"name": "NOT_PASSED", "mode": "deny"},
        ],
    }
    environ = {"URL": "x", "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "NOT_PASSED": "x"}
    source = srt.convert(srt.check(settings, "settings"), environ=environ, home=HOME, base="/w").policy
    text, policy = imported(tmp_path, "srt", json.dumps(settings))
    nowhere = Origin("user", "")
    for field in ("masks", "secrets", "signing"):
        ours, theirs = ({rule.replace(origin=nowhere) for rule in getattr(each, field)} for each in (policy, source))
        assert ours == theirs and ours, (field, text)
    assert not isinstance(decide(policy, PathAccess(f"{HOME}/.hidden")), Allow)
    assert "NOT_PASSED" in text and "credentials: no equivalent" not in text


def test_claude(tmp_path: Path) -> None:
    settings = {
        "permissions": {
            "allow": ["WebFetch(domain:docs.rs)", "Bash(ls:*)"],
            "deny": ["Read(./.env)", "Read(~/.aws/**)", "Edit(./migrations/**)"],
            "additionalDirectories": ["../lib"],
        },
        "sandbox": {"enabled": True, "network": {"allowedDomains": ["pypi.org"]}},
        "model": "opus",
    }
    text, policy = imported(tmp_path, "claude", json.dumps(settings))
    assert [rule.host for rule in policy.allow] == ["pypi.org", "docs.rs"]
    assert {(rule.effect, rule.text) for rule in policy.paths} == {("hide", ".env"), ("readonly", "migrations/**")}
    assert [(rule.path, rule.mode) for rule in policy.mounts] == [("../lib", "rw")]
    assert "Bash(ls:*)" in text and "~/.aws" in text and "# model" in text


@pytest.mark.parametrize(
    ("text", "writable", "open_network"),
    [
        ('sandbox_mode = "read-only"', False, False),
        ('sandbox_mode = "workspace-write"', True, False),
        ('sandbox_mode = "workspace-write"\n[sandbox_workspace_write]\nnetwork_access = true', True, True),
    ],
)
def test_codex(tmp_path: Path, text: str, writable: bool, open_network: bool) -> None:
    _text, policy = imported(tmp_path, "codex", text)
    assert isinstance(decide(policy, PathAccess("a", "write")), Allow) is writable
    assert isinstance(decide(policy, Connect("example.com", "", 443)), Allow) is open_network
    assert isinstance(decide(policy, PathAccess("/etc/hosts")), Allow)


@pytest.mark.parametrize(
    ("kind", "text"),
    [("srt", "{"), ("srt", "{}"), ("claude", "[]"), ("claude", '{"permissions": 1}'), ("codex", "= 1")],
)
def test_malformed_settings(tmp_path: Path, kind: str, text: str) -> None:
    with pytest.raises(PolicyError):
        imported(tmp_path, kind, text)


def test_unknown_kind_and_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        importer.convert_file("other", str(tmp_path), {})
    with pytest.raises(HostError):
        importer.convert_file("srt", str(tmp_path / "absent"), {})


def test_a_file_of_membrane(tmp_path: Path) -> None:
    from membrane.policy.load import Source, load

    path = tmp_path / "config.yaml"
    path.write_text(
        "dns_resolver:\nsealed: ['*.bak']\nmounts: [{path: /srv/x}]\nallow: [a.example]\nargs: [-e, 'A=$SET']\n"
    )
    text = importer.convert_file("membrane", str(path), {"HOME": "/home/u", "SET": "1"})
    assert "# mounts: an entry without mode is read-only here" in text
    got = load([Source("user", "f", text)], presets={"default": "allow: [b.example]"}, environ={"SET": "1"}).policy
    assert [rule.text for rule in got.allow] == ["a.example"]
    assert [(rule.name, rule.value) for rule in got.env] == [("A", "1")]
    path.write_text("args: [--privileged]\n")
    with pytest.raises(PolicyError, match="'--privileged'"):
        importer.convert_file("membrane", str(path), {})


def test_cagent(tmp_path: Path) -> None:
    path = tmp_path / "cagent.yaml"
    path.write_text("hostnames:\n  - api.example\n  - '*.b.example'\ncidrs: [10.0.0.0/8]\nresolver: 1.1.1.1\n")
    text = importer.convert_file("cagent", str(path), {"HOME": "/home/me"})
    policy = load([Source("user", "u", text)], presets={}).policy
    assert [rule.text for rule in policy.allow] == ["api.example", "*.b.example", "10.0.0.0/8"]
    assert policy.dns_resolver == "1.1.1.1"
    path.write_text("hostnames: []\nhostname: [x]\n")
    with pytest.raises(PolicyError, match="hostname"):
        importer.convert_file("cagent", str(path), {"HOME": "/home/me"})
    path.write_text("")
    assert "presets: []" in importer.convert_file("cagent", str(path), {"HOME": "/home/me"})


def test_a_mistake_in_a_file_of_membrane_has_its_own_line(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("allow: []\nzzz: 1\n")
    with pytest.raises(PolicyError) as caught:
        importer.convert_file("membrane", str(path), {"HOME": HOME})
    assert caught.value.where == f"{path}:2:1"
    path.write_text("hostnames: [a.example]\n")
    with pytest.raises(PolicyError, match="membrane config import cagent FILE"):
        importer.convert_file("membrane", str(path), {"HOME": HOME})


@pytest.mark.parametrize(
    ("kind", "text"), [("srt", "{"), ("srt", "[]"), ("srt", "{}"), ("claude", "{"), ("codex", "=")]
)
def test_a_file_that_is_wrong_is_78_whatever_it_is_for(tmp_path: Path, kind: str, text: str) -> None:
    """``srt`` itself ends with 1 for its settings, as sandbox-runtime does."""
    file = tmp_path / "settings"
    file.write_text(text)
    with pytest.raises(PolicyError) as refused:
        importer.convert_file(kind, str(file), {"HOME": HOME})
    assert refused.value.exit_code == 78 and str(file) in refused.value.headline()
