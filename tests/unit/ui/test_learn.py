"""``--observe``: everything is reached and nothing secret is there to be lost."""

from __future__ import annotations

from membrane.policy.decide import Decider
from membrane.policy.load import Source, load
from membrane.policy.model import Allow, Connect, Policy
from membrane.ui.learn import observing


def policy_of(text: str) -> Policy:
    return load([Source("user", "p.yaml", text, "/")], presets={"default": ""}, home="/h").policy


def test_every_host_is_allowed_but_what_is_denied() -> None:
    policy = policy_of("allow: [a.example]\ndeny: [bad.example]\n")
    before, after = Decider(policy), Decider(observing(policy))
    assert not isinstance(before.decide(Connect("any.example", "", 443)), Allow)
    for port in (80, 443):
        verdict = after.decide(Connect("any.example", "", port))
        assert isinstance(verdict, Allow) and verdict.inspect
    other = after.decide(Connect("any.example", "", 5432))
    assert isinstance(other, Allow) and not other.inspect
    assert not isinstance(after.decide(Connect("bad.example", "", 443)), Allow)


def test_nothing_secret_is_handed_in() -> None:
    text = "env: {pass: [LC_ALL, DATABASE_URL], set: {SET: x, TERM: dumb}}\n"
    policy = policy_of(text)
    assert {rule.name for rule in policy.env} == {"LC_ALL", "DATABASE_URL", "SET", "TERM"}
    after = observing(policy)
    assert [(rule.name, rule.value) for rule in after.env] == [("TERM", "dumb")] and after.secrets == ()
    assert after.digest != policy.digest
