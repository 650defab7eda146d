"""Canonical hosts, addresses, paths, and gitignore patterns."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

import membrane
from membrane.policy.match import (
    Malformed,
    MalformedHost,
    MalformedPath,
    PatternError,
    address_class,
    canonical_host,
    canonical_path,
    canonical_path_pattern,
    compile_patterns,
    embedded_ipv4,
    format_address,
    is_public_suffix,
    judged_forms,
    parse_address,
    parse_network,
    path_matcher,
    split_query,
    wildcard_matches,
    wildcard_suffixes,
)
from membrane.policy.model import Network

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


# ---------------------------------------------------------------- HTTP paths


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        ("/", "/"),
        ("//", "/"),
        ("/v1", "/v1"),
        ("/v1/", "/v1/"),
        ("//v1///models", "/v1/models"),
        ("/v1/./x/../y", "/v1/y"),
        ("/v1/../admin", "/admin"),
        ("/v1/%2e%2e/admin", "/admin"),
        ("/v1/.%2E/admin", "/admin"),
        ("/a/b/..", "/a/"),
        ("/a/.", "/a/"),
        ("/%61%7e%5F", "/a~_"),
        ("/a%3ab%c3%a9", "/a%3Ab%C3%A9"),
        ("/.hidden/..x/...", "/.hidden/..x/..."),
        ("/a;b=c/d", "/a;b=c/d"),
        ("/100%25", "/100%25"),
        ("/*", "/*"),
    ],
)
def test_path_is_made_canonical(raw: str, path: str) -> None:
    assert canonical_path(raw) == path
    assert canonical_path(path) == path


@pytest.mark.parametrize(
    ("raw", "cause"),
    [
        ("", "begin"),
        ("*", "begin"),
        ("v1", "begin"),
        ("http://h/v1", "begin"),
        ("/v1/..%2fx", "slash"),
        ("/v1/..%5Cx", "backslash"),
        ("/v1\\..\\x", "\\"),
        ("/v1/%00", "NUL"),
        ("/v1/%252e%252e/x", "doubly"),
        ("/v1/%25%32%65/x", "doubly"),
        ("/v1/%252Fx", "doubly"),
        ("/v1/%25252e", "doubly"),
        ("/v1/%2", "hexadecimal"),
        ("/v1/%zz", "hexadecimal"),
        ("/v1/%u002e", "hexadecimal"),
        ("/v1/..;/x", "parameter"),
        ("/v1/.;a=b/x", "parameter"),
        ("/v1/%2e%2e%3b/x", "parameter"),
        ("/..", "above"),
        ("/a/../../b", "above"),
        ("/a#/../allowed", "'#'"),
        ("/private?x=/../v1/y", "'?'"),
        ("/a b", "' '"),
        ("/a\tb", "\\t"),
        ("/a\r\nb", "\\r"),
        ("/é", "ASCII"),
        ("/%c0%ae%c0%ae/x", "UTF-8"),
        ("/%ff", "UTF-8"),
        ("/a%ef%bc%8fb", "slash"),  # FULLWIDTH SOLIDUS
        ("/%ef%bc%8e%ef%bc%8e/x", "dot segment"),  # FULLWIDTH FULL STOP
        ("/" + "a" * 40000, "longer"),
    ],
)
def test_path_is_refused(raw: str, cause: str) -> None:
    with pytest.raises(MalformedPath, match=cause.replace("\\", "\\\\").replace("?", "\\?")):
        canonical_path(raw)


def test_query_is_split_off_before() -> None:
    assert split_query("/v1/messages?beta=true?x") == ("/v1/messages", "?beta=true?x")
    assert split_query("/v1") == ("/v1", "")


@pytest.mark.parametrize(
    ("pattern", "admitted", "refused"),
    [
        ("/v1/", ["/v1", "/v1/", "/v1/models", "/v1/a/b"], ["/v10", "/v1-evil", "/", "/V1", "/x/v1"]),
        ("/", ["/", "/x"], []),
        ("/a/*/b", ["/a/x/b", "/a/x/b/", "/a/x/b/c"], ["/a/b", "/a/x/y/b", "/a/x/bc", "/a//b"]),
        ("/a/*", ["/a/x", "/a/x/y"], ["/a", "/a/"]),
        ("/a/**/b", ["/a/b", "/a/x/b", "/a/x/y/b/z"], ["/a/bc", "/ab", "/b", "/a/xb"]),
        ("/a/**", ["/a", "/a/", "/a/x"], ["/ab"]),
        ("/**/x", ["/x", "/a/b/x", "/x/y"], ["/a/xx", "/ax"]),
        ("/v*/m", ["/v1/m", "/v/m"], ["/v1/x/m", "/w/m"]),
        ("/a*b*c", ["/abc", "/axbxc/d"], ["/acb", "/a/bc"]),
        ("/a.b", ["/a.b"], ["/axb"]),
    ],
)
def test_path_pattern(pattern: str, admitted: list[str], refused: list[str]) -> None:
    matches = path_matcher(canonical_path_pattern(pattern))
    assert [path for path in admitted if not matches(path)] == []
    assert [path for path in refused if matches(path)] == []


def test_path_pattern_with_half_a_wildcard_is_refused() -> None:
    with pytest.raises(MalformedPath, match="whole segment"):
        canonical_path_pattern("/a**b")


# ---------------------------------------------------------------- gitignore

NAMES = [".env", ".env.local", ".env.example", "id_rsa", "id_rsa.pub"]


@pytest.mark.parametrize(
    ("patterns", "hits", "misses"),
    [
        (["secrets/"], ["secrets/", "a/secrets/"], ["secrets", "xsecrets/"]),
        (["*.pem"], ["a.pem", ".pem", "x/y/a.pem", "d.pem/"], ["a.pem2"]),
        (["/build"], ["build", "build/"], ["a/build"]),
        (["doc/*.txt"], ["doc/a.txt"], ["doc/x/a.txt", "x/doc/a.txt"]),
        (["**/foo/bar"], ["foo/bar", "x/y/foo/bar"], ["foo/x/bar"]),
        (["a/**/b"], ["a/b", "a/x/y/b"], ["b", "xa/b"]),
        (["a/**"], ["a/x", "a/x/y"], ["a/"]),
        ([".env*", "!.env.example"], [".env", "x/.env.local"], [".env.example"]),
        (["!a", "a"], ["a"], []),
        (["[a-c]x", "[!0-9]y"], ["bx", "ay"], ["dx", "1y"]),
        (["[[:digit:]]z", "[]]w", "[\\]]v"], ["7z", "]w", "]v"], ["az"]),
        (["\\!a", "\\#b", "c\\ ", "\\*"], ["!a", "#b", "c ", "*"], ["a", "c", "x"]),
        (["d   "], ["d"], ["d   "]),
        (["a*b"], ["ab", "aab", "a\nb", "x/a*b"], ["a", "b", "abc", "ba"]),
        (["ab*bc"], ["abbc", "ab.bc"], ["abc"]),
        (["a*", "*b"], ["a", "ax", "b", "xb"], ["xa", "bx"]),
        (["*"], ["a", "a/b"], []),
        (["a?c"], ["abc", "a\udcffc", "aéc"], ["a/c", "ac"]),
        (["**"], ["a", "a/b"], []),
        (["x\ny"], ["x\ny"], ["x"]),
    ],
)
def test_patterns(patterns: list[str], hits: list[str], misses: list[str]) -> None:
    compiled = compile_patterns(patterns)

    def matches(path: str) -> bool:
        relpath = path.rstrip("/")
        return compiled.match(relpath.rpartition("/")[2], relpath, path.endswith("/"))

    assert [path for path in hits if not matches(path)] == []
    assert [path for path in misses if matches(path)] == []


@pytest.mark.parametrize(
    ("pattern", "hits", "misses"),
    [
        ("/a/b#", ["/a/b"], ["/a/b/", "/a/b/c", "/a/bc", "/a"]),
        ("/a/b/#", ["/a/b"], ["/a/b/", "/a/b/c"]),
        ("/#", ["/"], ["/a"]),
        ("/*/*/call#", ["/x/y/call"], ["/x/y/call/z", "/x/y/call/", "/x/call", "/w/x/y/call"]),
        ("/**/*.git/call#", ["/x.git/call", "/a/b/x.git/call"], ["/a/x.git/call/b.git/other", "/x/call", "/call"]),
        ("/a/**/b/**/c#", ["/a/b/c", "/a/b/b/c/c", "/a/x/b/y/c"], ["/a/b/c/d", "/a/c/b"]),
        ("/a%2Fb#", ["/a%2Fb"], ["/a%2Fb/c", "/a/b"]),
        ("/a$", ["/a$", "/a$/b"], ["/a"]),
    ],
)
def test_a_pattern_with_the_end_mark_admits_nothing_below(pattern: str, hits: list[str], misses: list[str]) -> None:
    canonical = canonical_path_pattern(pattern)
    assert canonical_path_pattern(canonical) == canonical
    admits = path_matcher(canonical)
    assert [path for path in hits if not admits(path)] == []
    assert [path for path in misses if admits(path)] == []


@pytest.mark.parametrize("pattern", ["/a##", "/a#b", "#", "/**#", "/a/**#"])
def test_an_end_mark_that_ends_nothing_is_refused(pattern: str) -> None:
    with pytest.raises(MalformedPath):
        canonical_path_pattern(pattern)


def test_the_preset_of_hidden_files_needs_no_regular_expression() -> None:
    """A start that lists a changed directory compiles it, and loading ``re`` takes 8 ms."""
    preset = Path(membrane.__file__).parent / "policy" / "presets" / "default.yaml"
    texts = yaml.safe_load(preset.read_text())["ignore"]
    program = (
        f"import sys; sys.path[:0] = {sys.path!r}; from membrane.policy.match import compile_patterns\n"
        f"hides = compile_patterns({texts!r}).match; matched = [hides(name, name, False) for name in {NAMES!r}]\n"
        "print(matched, 're' in sys.modules)\n"
        "compile_patterns(['a?']); print('re' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines() == ["[True, True, False, True, False] False", "True"]


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        " ",
        "/",
        "//",
        "!",
        "!/",
        "#comment",
        "a[",
        "a[b",
        "[z-a]",
        "[[:nope:]]",
        "a\\",
        "a//b",
        "./a",
        "a/../b",
        ".",
        "a\0b",
        "[a/b]",
        "a\\/b",
        "x" * 5000,
    ],
)
def test_pattern_that_never_matches_is_refused(pattern: str) -> None:
    with pytest.raises(PatternError):
        compile_patterns([pattern])


def test_patterns_by_name_do_not_need_the_path() -> None:
    assert compile_patterns(["*.pem", ".env", "secrets/"]).by_name
    assert not compile_patterns(["a/b"]).by_name


def test_agrees_with_git_check_ignore(tmp_path: Path) -> None:
    patterns = [
        ["*.b", "!a.b", "/x", "d/"],
        ["a/**/c", "**/e", "!a/e", "[!a]b", "f/*"],
        ["*a*b*", "a?", "\\*", "a\\ ", "**/d/**", "/**/q"],
        ["*", "!*/", "!*.b"],
        ["d/**/x.b", "!d/a/x.b", "d/*", "[[:alpha:]][a-c]"],
    ]
    names = ["a", "ab", "a.b", "x.b", "x", "c", "e", "q", "*", "a ", "aXb"]
    paths: list[tuple[str, bool]] = []
    directories = ["", "a/", "d/", "d/a/", "f/", "f/d/", "a/z/d/"]
    for directory in directories:
        (tmp_path / directory).mkdir(parents=True, exist_ok=True)
    for directory in directories:
        for name in names:
            path = directory + name
            if not (tmp_path / path).exists():
                (tmp_path / path).touch()
    for found in tmp_path.rglob("*"):
        paths.append((str(found.relative_to(tmp_path)), found.is_dir()))
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True, capture_output=True)
    question = "\0".join(path for path, _ in paths) + "\0"
    for rules in patterns:
        (tmp_path / ".git" / "info" / "exclude").write_text("\n".join(rules) + "\n")
        answer = subprocess.run(
            ["git", "-C", str(tmp_path), "check-ignore", "-z", "--stdin", "--no-index"],
            input=question.encode(),
            capture_output=True,
            check=False,
        )
        assert answer.returncode == 0, answer.stderr
        ignored = set(answer.stdout.decode().split("\0"))
        assert len(ignored) > 2, "the control: git ignores something"
        compiled = compile_patterns(rules)
        for path, is_dir in paths:
            parts = path.split("/")
            ours = any(
                compiled.match(parts[depth - 1], "/".join(parts[:depth]), is_dir or depth < len(parts))
                for depth in range(1, len(parts) + 1)
            )
            assert ours == (path in ignored), (rules, path)


@pytest.mark.parametrize(
    ("pattern", "relpath"),
    [("*a" * 60 + "b", "a" * 255), ("**/a/" * 40 + "b", "a/" * 1500 + "c"), ("**/*a*a*a*a/x", "aaaa/" * 800 + "y")],
)
def test_hostile_pattern_stays_linear(pattern: str, relpath: str) -> None:
    compiled = compile_patterns([pattern])
    start = time.process_time()
    assert not compiled.match(relpath.rpartition("/")[2], relpath, False)
    # Exponential or high polynomial backtracking would take hours; linear takes milliseconds.
    assert time.process_time() - start < 5


@pytest.mark.parametrize("pattern", ["/" + "*a" * 60 + "b", "/**/a" * 40 + "/b"])
def test_hostile_path_pattern_stays_linear(pattern: str) -> None:
    matches = path_matcher(canonical_path_pattern(pattern))
    start = time.process_time()
    assert not matches("/" + "a" * 5000)
    assert not matches("/a" * 2000)
    assert time.process_time() - start < 5
