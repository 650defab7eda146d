"""Keys that open what is closed, and those of masked credentials: read, widening, refused where they cannot hold."""

from __future__ import annotations

from typing import Any

import pytest

from membrane.errors import PolicyError
from membrane.plan import hosttree
from membrane.plan.build import build
from membrane.plan.model import FoundFile, HostFacts
from membrane.policy import codec
from membrane.policy.decide import decide
from membrane.policy.load import Result, Source, load
from membrane.policy.model import (
    Allow,
    Connect,
    MaskRule,
    PathAccess,
    PathRule,
    Policy,
    SecretRule,
    SigningRule,
    SocketAccess,
)

FACTS = HostFacts(1000, 1000, "u", False, "/home/u", "/home/u/.membrane", "/home/u/w", "box", ())
SECRETS = (
    "secrets:\n"
    "  - {name: ID, from: env, to: [s.test], header: '*'}\n"
    "  - {name: KEY, from: env, to: [s.test], header: '*'}\n"
)


def read(text: str, level: Any = "user") -> Result:
    return load([Source(level, "f.yaml", text, "/dir")], presets={"default": ""}, home="/home/u")


def policy(text: str) -> Policy:
    made = read(text).policy
    assert codec.restore(codec.dump(made)) == made
    return made


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("view: host\nfiles: unconfined\n", "open_files"),
        ("view: host\nunix_sockets: all\n", "open_sockets"),
        ("git_config: writable\n", "open_git_config"),
        ("user_namespaces: allowed\n", "user_namespaces"),
    ],
)
def test_what_opens_is_a_key_of_its_own_and_widens(text: str, field: str) -> None:
    assert getattr(policy(text), field) and not getattr(Policy(), field)
    assert any(each.line for each in read(text, "project").widening)
    build(policy(text).replace(file_base="/home/u/w"), FACTS)


def test_hard_links_are_warned_of_or_refused_and_a_project_may_only_refuse() -> None:
    assert Policy().hard_links == policy("hard_links: warn\n").hard_links == "warn"
    assert policy("hard_links: refuse\n").hard_links == "refuse"
    assert not read("hard_links: refuse\n", "project").widening
    with pytest.raises(PolicyError, match="refuse, warn"):
        policy("hard_links: allow\n")


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("files: unconfined\n", "add view: host"),
        ("unix_sockets: all\n", "opens those of the host's tree"),
        ("view: host\nfiles: open\n", "expected"),
        ("view: host\nunix_sockets: every\n", "expected"),
        ("git_config: open\n", "protected, writable"),
        ("user_namespaces: true\n", "refused, allowed"),
        ("masks: [{file: /x}]\n", '"to"'),
        ("masks: [{to: [a.test]}]\n", '"file"'),
        ("masks: [{file: /x, env: Y, to: [a.test]}]\n", '"env"'),
        ("masks: [{file: x, to: [a.test]}]\n", "absolute"),
        ("masks: [{file: /x, to: ['*.com']}]\n", "*.com"),
        ("masks: [{file: /x, to: ['**']}]\n", "hosts that are named"),
        ("masks: [{file: /x, to: [a.test], extract: abc}]\n", "group"),
        ("masks: [{file: /x, to: [a.test], claims: [a]}]\n", "decode: jwt"),
        ("masks: [{file: /x, to: [a.test], unmatched: show}]\n", "error, deny, warn"),
        ("masks: [{file: /x, to: [a.test], more: 1}]\n", "more"),
        ("signing: [{key_id: ID}]\n", "secret"),
    ],
)
def test_mistakes_are_named(text: str, cause: str) -> None:
    with pytest.raises(PolicyError) as caught:
        policy(text)
    assert cause in "\n".join(caught.value.lines()), caught.value.lines()


def test_masks_and_signing() -> None:
    made = policy(
        "masks:\n"
        "  - {file: ~/.netrc, to: ['*.a.test', b.test], extract: 'x (\\S+)', duplicates: true, unmatched: deny}\n"
        "  - {env: URL, to: [a.test], decode: jwt, claims: [key]}\n"
        f"signing: [{{key_id: ID, secret: KEY}}]\n{SECRETS}"
    )
    one, two = made.masks
    assert one == MaskRule(
        "file:/home/u/.netrc", ("*.a.test", "b.test"), one.origin, r"x (\S+)", duplicates=True, unmatched="deny"
    )
    assert two == MaskRule("env:URL", ("a.test",), two.origin, "", "jwt", ("key",))
    assert [(pair.key_id, pair.secret) for pair in made.signing] == [("ID", "KEY")]
    assert [secret.header for secret in made.secrets] == ["*", "*"]
    assert {each.key for each in read(SECRETS + "masks: [{env: A, to: [a.test]}]\n", "project").widening} == {
        *("secrets", "masks"),
    }
    with pytest.raises(PolicyError, match="not in the view"):
        build(made, FACTS)
    build(made.replace(view="host"), FACTS)


def test_hosts_of_masks_are_inspected() -> None:
    made = policy("allow: ['*.a.test', b.test]\nmasks: [{env: A, to: ['*.a.test']}]\n")
    for name, inspected in (("x.a.test", True), ("y.x.a.test", True), ("b.test", False)):
        verdict = decide(made, Connect(name, "", 443))
        assert isinstance(verdict, Allow) and verdict.inspect is inspected
    verdict = decide(made, Connect("x.a.test", "", 22))
    assert isinstance(verdict, Allow) and not verdict.inspect


def test_a_key_that_signs_is_of_two_secrets_of_any_field() -> None:
    made = policy(SECRETS)
    pair = SigningRule("ID", "KEY", made.secrets[0].origin)
    build(made.replace(signing=(pair,)), FACTS)
    for secrets in (made.secrets[:1], (made.secrets[0], made.secrets[1].replace(header="authorization: {}"))):
        with pytest.raises(PolicyError, match="signing"):
            build(made.replace(signing=(pair,), secrets=secrets), FACTS)


def test_a_wildcard_is_for_secrets_of_any_field_alone() -> None:
    origin = policy(SECRETS).secrets[0].origin
    for header, taken in (("*", True), ("authorization: Bearer {}", False)):
        made = Policy(secrets=(SecretRule("A", "env:A", ("*.a.test",), header, origin),))
        if taken:
            build(made, FACTS)
            continue
        with pytest.raises(PolicyError, match="not one host"):
            build(made, FACTS)


def test_beside_open_files_no_rule_is_left_unbound() -> None:
    made = policy("view: host\nfiles: unconfined\n").replace(file_base="/home/u/w")
    facts = FACTS.replace(files=(FoundFile("allow-write", "/", "/", True), FoundFile("deny-read", "/k", "/k", False)))
    plan = build(made, facts)
    assert any(getattr(op, "target", "") == "/k" for op in plan.mounts)
    assert isinstance(decide(made, PathAccess("/etc/x", "write")), Allow)
    assert hosttree.guarded(made, facts) == []
    origin = made.file_rules[0].origin if made.file_rules else None
    assert origin is not None
    with pytest.raises(PolicyError, match="no rule about files is held"):
        build(made.replace(paths=(PathRule(".env", origin, "hide"),)), facts)
    for text in ("deny_write: [a]", "deny_read: ['*.pem']", "allow_write: [a]"):
        other = policy(f"view: host\nfiles: {{{text}}}\n").file_rules or ()
        with pytest.raises(PolicyError, match="no rule about files is held"):
            build(made.replace(file_rules=(*(made.file_rules or ()), *other)), facts)


def test_open_sockets_are_allowed_where_no_adapter_speaks() -> None:
    made = policy("view: host\nunix_sockets: all\n")
    assert isinstance(decide(made, SocketAccess("/run/x")), Allow)
    assert not isinstance(decide(made, SocketAccess("/run/x", "sign")), Allow)
    assert not isinstance(decide(Policy(), SocketAccess("/run/x")), Allow)


def test_devices_are_named_widen_and_are_kept_once() -> None:
    assert [rule.name for rule in policy("devices: [gpu, kvm, fuse]\n").devices] == ["gpu", "kvm", "fuse"]
    assert [each.key for each in read("devices: [kvm]\n", "project").widening] == ["devices"]
    again = load(
        [Source("user", "f.yaml", "devices: [kvm]\n", "/dir")],
        presets={"default": ""},
        options={"devices": ("kvm", "gpu")},
    ).policy
    assert [(rule.name, rule.origin.level) for rule in again.devices] == [("kvm", "user"), ("gpu", "command line")]
    with pytest.raises(PolicyError, match="expected gpu, kvm, fuse"):
        policy("devices: [/dev/sda]\n")
    with pytest.raises(PolicyError, match=r"--device 'gpus'.*did you mean"):
        load([], presets={"default": ""}, options={"devices": ("gpus",)})
