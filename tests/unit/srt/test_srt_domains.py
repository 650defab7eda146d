"""Entries of ``allowedDomains`` and ``deniedDomains``: what the grammar has, and what it refuses."""

from __future__ import annotations

import pytest

from membrane.policy.model import Malformed
from membrane.srt.domains import parse_domain

VALID = "example.com *.github.com *.github.io *.co.uk localhost [::1] [2001:db8::1]:443 127.0.0.1:3000 api.x.com:443"
REFUSED = "not-a-domain https://example.com *example.com *.com *. * ::1 a.com:0 a.com:99999 a.com/x a.com: *:22"


@pytest.mark.parametrize("text", VALID.split())
def test_domain_entry_is_valid(text: str) -> None:
    parse_domain(text)
    parse_domain(text, deny=True)


@pytest.mark.parametrize("text", [*REFUSED.split(), "", "a b.com", "a.com:08", "fe80::1%eth0", "[fe80::1%eth0]"])
def test_domain_entry_is_refused(text: str) -> None:
    with pytest.raises(Malformed):
        parse_domain(text)


@pytest.mark.parametrize("text", ["*", "*:22"])
def test_star_is_for_the_denied_list(text: str) -> None:
    assert parse_domain(text, deny=True)[0] == "any"
