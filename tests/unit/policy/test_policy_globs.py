"""gitignore patterns, compared with git."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest
import yaml

import membrane
from membrane.policy.globs import PatternError, compile_patterns

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


def test_the_preset_of_hidden_files_needs_no_regular_expression() -> None:
    """A start that lists a changed directory compiles it, and loading ``re`` takes 8 ms."""
    preset = Path(membrane.__file__).parent / "policy" / "presets" / "default.yaml"
    texts = yaml.safe_load(preset.read_text())["ignore"]
    program = (
        f"import sys; sys.path[:0] = {sys.path!r}; from membrane.policy.globs import compile_patterns\n"
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


def test_a_name_that_may_be_a_file_or_a_directory() -> None:
    """As asking for both, whatever takes what back."""
    chance = Random(1)
    parts = ("a", "b", "a*", "*b", "?", "a/", "!a", "!b/", "!*b", "a/b", "/a", "!/b", "**/a/", "b/")
    found = []
    for _ in range(5_000):
        compiled = compile_patterns([chance.choice(parts) for _ in range(chance.randint(1, 6))])
        path = "/".join(chance.choice("ab") for _ in range(chance.randint(1, 3)))
        name = path.rpartition("/")[2]
        both = compiled.match(name, path, False), compiled.match(name, path, True)
        assert compiled.match_either(name, path) == any(both)
        found.append(both)
    assert len(set(found)) == 4
