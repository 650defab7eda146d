"""Credentials of sandbox-runtime's settings: what is wrong with them, where they go, and as which rule."""

from __future__ import annotations

from typing import Any

import pytest

from membrane.policy.model import MaskRule, Origin, SecretRule
from membrane.srt import credentials

ORIGIN = Origin("user", "settings.json")
NETWORK: dict[str, Any] = {"allowedDomains": ["api.test", "*.wide.test", "port.test:8443"], "tlsTerminate": {}}


def wrong(network: dict[str, Any] | None = None, **section: Any) -> list[str]:
    return [path for path, _message in credentials.problems(section, network or NETWORK)]


def test_what_is_wrong_is_named() -> None:
    good = {"name": "A", "mode": "mask"}
    assert wrong(envVars=[good], files=[{"path": "/x", "mode": "mask"}]) == []
    assert wrong({"allowedDomains": []}, envVars=[good]) == ["credentials.envVars.0"]
    assert wrong(files=[{"path": "/x/", "mode": "mask"}]) == ["credentials.files.0.path"]
    assert wrong(envVars=[{**good, "injectHosts": []}]) == ["credentials.envVars.0.injectHosts"]
    assert wrong(envVars=[{**good, "injectHosts": ["other.test"]}]) == ["credentials.envVars.0.injectHosts"]
    assert wrong(envVars=[{**good, "extract": "("}]) == ["credentials.envVars.0.extract"]
    assert wrong(envVars=[{**good, "maskClaims": ["x"]}]) == ["credentials.envVars.0.maskClaims"]
    pair = {"accessKeyIdVar": "A", "secretAccessKeyVar": "B"}
    assert wrong(envVars=[good], awsPairs=[pair]) == ["credentials.awsPairs.0.secretAccessKeyVar"]


@pytest.mark.parametrize(
    ("entry", "covered"),
    [("api.test", True), ("a.wide.test", True), ("*.wide.test", True), ("wide.test", False),
     ("port.test:8443", True), ("port.test:1", False)],
)  # fmt: skip
def test_an_entry_is_covered_by_an_allowed_domain(entry: str, covered: bool) -> None:
    assert (wrong(envVars=[{"name": "A", "mode": "mask", "injectHosts": [entry]}]) == []) is covered


def test_where_a_credential_goes() -> None:
    assert credentials.destinations({}, NETWORK, plaintext=False) == ("api.test", "*.wide.test", "port.test:8443")
    assert credentials.destinations({"injectHosts": ["api.test"]}, NETWORK, plaintext=True) == (
        "api.test",
        "http://api.test",
    )
    excluded = {**NETWORK, "tlsTerminate": {"excludeDomains": ["api.test"]}}
    assert credentials.destinations({}, excluded, plaintext=False) == ("*.wide.test", "port.test:8443")
    plain = {"allowedDomains": ["h.test:22", "h.test:80", "localhost"], "tlsTerminate": {}}
    assert credentials.destinations({}, plain, plaintext=False) == ()


def test_the_rules() -> None:
    whole = credentials.variable({"name": "A"}, ("api.test",), ORIGIN)
    assert isinstance(whole, SecretRule) and (whole.name, whole.source, whole.to) == ("A", "env:A", ("api.test",))
    part = credentials.variable({"name": "A", "extract": "k=(.*)"}, ("api.test",), ORIGIN)
    assert isinstance(part, MaskRule) and (part.source, part.extract) == ("env:A", "k=(.*)")
    file = credentials.file({"maskDuplicates": True}, "/x", ("api.test",), ORIGIN)
    assert (file.source, file.duplicates, file.unmatched) == ("file:/x", True, "warn")


def test_access_keys_are_signed_again_where_both_are_masked() -> None:
    both = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"]
    (rule,), warnings = credentials.signing({}, both, ORIGIN)
    assert (rule.key_id, rule.secret, warnings) == (*both, [])
    assert credentials.signing({}, both[:1], ORIGIN) == ((), [])
    rules, warnings = credentials.signing({}, both[1:], ORIGIN)
    assert rules == () and "signed with a placeholder" in warnings[0]
    own = {"accessKeyIdVar": "K", "secretAccessKeyVar": "S"}
    rules, _warnings = credentials.signing({"awsPairs": [own]}, ["K", "S", *both], ORIGIN)
    assert [(each.key_id, each.secret) for each in rules] == [("K", "S"), tuple(both)]
    _rules, warnings = credentials.signing({"sigv4": {"streaming": "passthrough"}}, both, ORIGIN)
    assert "passthrough has no effect here" in warnings[0]
