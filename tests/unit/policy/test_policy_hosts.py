"""Canonical host names and addresses."""

from __future__ import annotations

import pytest

from membrane.policy.hosts import (
    MalformedHost,
    address_class,
    canonical_host,
    embedded_ipv4,
    format_address,
    is_public_suffix,
    judged_forms,
    parse_address,
    parse_network,
    wildcard_matches,
    wildcard_suffixes,
)
from membrane.policy.model import Malformed, Network

# ---------------------------------------------------------------- hosts


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        ("API.Example.com.", "api.example.com"),
        ("localhost", "localhost"),
        ("_dmarc.example.com", "_dmarc.example.com"),
        ("a" * 63 + ".example.com", "a" * 63 + ".example.com"),
        ("münchen.de", "xn--mnchen-3ya.de"),
        ("MÜNCHEN.DE.", "xn--mnchen-3ya.de"),
        ("faß.de", "xn--fa-hia.de"),  # UTS 46 non-transitional: not "fass.de"
        ("xn--mnchen-3ya.de", "xn--mnchen-3ya.de"),
        ("1.example", "1.example"),
        ("r3---sn-x.example.com", "r3---sn-x.example.com"),
    ],
)
def test_host_is_made_canonical(raw: str, name: str) -> None:
    assert canonical_host(raw) == name
    assert canonical_host(name) == name


@pytest.mark.parametrize(
    "raw",
    [
        "",
        ".",
        "a..b",
        "a.b..",
        ".a",
        "a" * 64 + ".com",
        ".".join(["a" * 50] * 6),
        "evil\0.allowed.com",
        "a b.com",
        " a.com",
        "a.com\n",
        "a%2ecom",
        "user@a.com",
        "a\\b.com",
        "a/b",
        "a:80",
        "[::1]",
        "-a.com",
        "a-.com",
        # addresses and what inet_aton(3) or a browser takes for one
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f.0.0.1",
        "0x7f000001",
        "0177.0.0.1",
        "1.2.3.4.5",
        "a.0x",
        "0",
        # other names in disguise
        "example。com",
        "exam\u200bple.com",
        "ｅxample.com",
        "a\u2024com",
        "\u0661.com",
        "\ud800.com",
    ],
)
def test_host_is_refused(raw: str) -> None:
    with pytest.raises(MalformedHost) as caught:
        canonical_host(raw)
    assert str(caught.value)


@pytest.mark.parametrize(
    ("name", "suffix", "matches"),
    [
        ("a.b.example.com", "example.com", True),
        ("a.example.com", "example.com", True),
        ("example.com", "example.com", False),
        ("notexample.com", "example.com", False),
        ("example.com.evil.org", "example.com", False),
        (".example.com", "example.com", False),
    ],
)
def test_wildcard_matches_at_a_label_boundary(name: str, suffix: str, matches: bool) -> None:
    assert wildcard_matches(suffix, name) is matches


def test_wildcard_suffixes_are_the_parents() -> None:
    assert list(wildcard_suffixes("a.b.example.com")) == ["b.example.com", "example.com", "com"]


@pytest.mark.parametrize("name", ["com", "co.uk", "zz"])
def test_public_suffix(name: str) -> None:
    assert is_public_suffix(name)


@pytest.mark.parametrize("name", ["github.io", "example.com", "internal", "test"])
def test_not_a_public_suffix(name: str) -> None:
    assert not is_public_suffix(name)


# ---------------------------------------------------------------- addresses


@pytest.mark.parametrize(
    "text",
    [
        "127.1",
        "0x7f.0.0.1",
        "0177.0.0.1",
        "127.0.0.01",
        "2130706433",
        "1.2.3",
        "1.2.3.4.5",
        "fe80::1%eth0",
        "::1:443x",
        "",
        "1.2.3.4 ",
        "١.2.3.4",
        "[::1]",
        "1::2::3",
        "::ffff:1.2.3",
        "12345::",
    ],
)
def test_address_literal_is_refused(text: str) -> None:
    with pytest.raises(Malformed):
        parse_address(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("1.2.3.4", "1.2.3.4"),
        ("2001:0DB8:0::0001", "2001:db8::1"),
        ("::ffff:1.2.3.4", "1.2.3.4"),
        ("::ffff:0102:0304", "1.2.3.4"),
        ("::", "::"),
    ],
)
def test_address_is_compared_by_value(text: str, shown: str) -> None:
    assert format_address(*parse_address(text)) == shown


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("8.8.8.8", "public"),
        ("2606:4700::1111", "public"),
        ("10.1.2.3", "private"),
        ("172.31.0.1", "private"),
        ("172.32.0.1", "public"),
        ("192.168.0.1", "private"),
        ("100.64.0.1", "private"),
        ("fd12::1", "private"),
        ("fec0::1", "private"),
        ("127.9.9.9", "loopback"),
        ("::1", "loopback"),
        ("169.254.1.1", "link-local"),
        ("fe80::1", "link-local"),
        ("169.254.169.254", "metadata"),
        ("169.254.170.2", "metadata"),
        ("100.100.100.200", "metadata"),
        ("168.63.129.16", "metadata"),
        ("fd00:ec2::254", "metadata"),
        ("224.0.0.251", "multicast"),
        ("ff02::1", "multicast"),
        ("0.0.0.0", "reserved"),
        ("255.255.255.255", "reserved"),
        ("198.18.0.1", "reserved"),
        ("203.0.113.1", "reserved"),
        ("::", "reserved"),
        ("2001:db8::1", "reserved"),
        ("2001::1", "reserved"),
        ("4000::1", "reserved"),
    ],
)
def test_address_class(text: str, kind: str) -> None:
    assert address_class(*parse_address(text)) == kind


@pytest.mark.parametrize(
    "text",
    [
        "::169.254.169.254",  # IPv4-compatible
        "::ffff:0:169.254.169.254",  # IPv4-translated
        "64:ff9b::169.254.169.254",  # NAT64
        "64:ff9b:1::169.254.169.254",  # local NAT64
        "2002:a9fe:a9fe::1",  # 6to4
        "2001:0:1:2:3:4:5601:5601",  # Teredo, inverted
        "2001:db8::5efe:169.254.169.254",  # ISATAP
        "2001:db8::200:5efe:a9fe:a9fe",
    ],
)
def test_embedded_ipv4_is_judged_too(text: str) -> None:
    version, value = parse_address(text)
    assert format_address(4, embedded_ipv4(value) or 0) == "169.254.169.254"
    assert [address_class(*form) for form in judged_forms(version, value)][-1] == "metadata"


def test_plain_ipv6_carries_nothing() -> None:
    assert judged_forms(*parse_address("2606:4700::1111")) == (parse_address("2606:4700::1111"),)
    assert embedded_ipv4(1) is None
    assert embedded_ipv4(0) is None


def test_network() -> None:
    network = parse_network("192.168.2.0/23")
    assert network == Network(4, 0xC0A80200, 23)
    assert parse_network("::ffff:10.0.0.0/104") == parse_network("10.0.0.0/8")
    assert parse_network("::/0") == Network(6, 0, 0)


@pytest.mark.parametrize("text", ["10.0.0.1/8", "10.0.0.0/33", "::/129", "10.0.0.0/", "10.0.0.0/08", "10.0.0.0/x"])
def test_network_is_refused(text: str) -> None:
    with pytest.raises(Malformed):
        parse_network(text)


@pytest.mark.parametrize(
    ("text", "hint"), [(".example.com", '"*.example.com"'), ("a.com,b.com", "an entry of its own")]
)
def test_a_name_that_is_nearly_one_says_what_to_write(text: str, hint: str) -> None:
    with pytest.raises(MalformedHost) as caught:
        canonical_host(text)
    assert hint in str(caught.value)
