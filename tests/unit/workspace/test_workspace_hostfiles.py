"""What file rules name on this machine: links, globs, and what opens nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from membrane.errors import PolicyError
from membrane.plan.model import FoundFile
from membrane.policy.model import FileRule, Origin
from membrane.workspace import hostfiles

ORIGIN = Origin("user", "p.yaml", 3)


def rule(effect: str, path: Path | str, glob: bool = False) -> FileRule:
    return FileRule(effect, str(path), str(path), ORIGIN, glob)  # type: ignore[arg-type]


def found(*rules: FileRule) -> list[tuple[str, str, str]]:
    return [(each.effect, each.path, each.source) for each in hostfiles.find(rules)[0]]


def test_a_denied_link_is_denied_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("x")
    (tmp_path / "link").symlink_to("real")
    real = str(tmp_path / "real")
    assert found(rule("deny-read", tmp_path / "link")) == [("deny-read", real, real)]


def test_a_link_that_may_be_read_is_opened_under_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("x")
    (tmp_path / "link").symlink_to("real")
    assert found(rule("allow-read", tmp_path / "link")) == [
        ("allow-read", str(tmp_path / "link"), str(tmp_path / "real"))
    ]


def test_a_link_that_may_be_written_chooses_no_other_tree(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "tree").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PolicyError) as refused:
        found(rule("allow-write", tmp_path / "tree"))
    assert "outside of its own tree" in refused.value.cause and refused.value.where == str(ORIGIN)
    (tmp_path / "own").mkdir()  # the control: no link
    assert found(rule("allow-write", tmp_path / "own"))


@pytest.mark.parametrize(
    ("path", "resolved", "inside"),
    [
        ("/a", "/a", True),
        ("/a", "/a/b", True),
        ("/a/", "/a", True),
        ("/tmp", "/private/tmp", True),
        ("/a", "/ab", False),
    ],
)
def test_the_boundary_of_a_link(path: str, resolved: str, inside: bool) -> None:
    assert hostfiles.stays_inside(path, resolved) is inside


def test_what_does_not_exist_opens_nothing_and_is_said(tmp_path: Path) -> None:
    files, warnings = hostfiles.find([rule("allow-write", tmp_path / "none"), rule("deny-read", tmp_path / "none")])
    assert files == ()
    assert [text for text in warnings if "nothing is writable there" in text] and len(warnings) == 1


def test_a_glob_finds_files_at_any_depth_and_opens_no_link(tmp_path: Path) -> None:
    for name in ("a/one.pem", "a/b/two.pem", "a/b/text"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "a" / "link.pem").symlink_to("b/text")
    (tmp_path / "a" / "loop").symlink_to("..")  # followed by nobody
    denied = {path for _effect, path, _source in found(rule("deny-read", tmp_path / "**" / "*.pem", True))}
    assert denied == {str(tmp_path / name) for name in ("a/one.pem", "a/b/two.pem", "a/b/text")}
    opened = {path for _effect, path, _source in found(rule("allow-read", tmp_path / "**" / "*.pem", True))}
    assert opened == {str(tmp_path / name) for name in ("a/one.pem", "a/b/two.pem")}


@pytest.mark.as_user
def test_below_a_directory_that_may_be_searched_and_not_listed(tmp_path: Path) -> None:
    """Mode 0711, as many a /home: no part of a pattern is lost there, and what is not found is said."""
    home = tmp_path / "home" / "me"
    for name in ("one.pem", "a/two.pem"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("x")
    below, across = rule("deny-read", home / "**" / "*.pem", True), rule("deny-read", tmp_path / "**" / "*.pem", True)
    both = {str(home / "one.pem"), str(home / "a" / "two.pem")}
    (tmp_path / "home").chmod(0o111)
    try:
        files, warnings = hostfiles.find([below])
        assert {each.path for each in files} == both and warnings == ()
        files, warnings = hostfiles.find([across], known=[str(home / "work")])
        assert {each.path for each in files} == both
        assert [f"{tmp_path}/home cannot be listed" in text for text in warnings] == [True]
        assert hostfiles.find([across])[0] == ()  # the control: the name in it is not known
    finally:
        (tmp_path / "home").chmod(0o700)


def test_denied_globs_in_writable_trees_are_the_guard_s(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "x.pem").write_text("x")
    (tmp_path / "y.pem").write_text("x")
    rules = rule("allow-write", tmp_path / "tree"), rule("deny-read", tmp_path / "**" / "*.pem", True)
    assert [path for effect, path, _source in found(*rules) if effect == "deny-read"] == [str(tmp_path / "y.pem")]


def test_a_glob_that_is_too_wide_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostfiles, "MOST_ENTRIES", 1_000)
    for number in range(100):
        (tmp_path / str(number)).touch()
    assert len(found(rule("deny-read", tmp_path / "*", True))) == 100
    for number in range(100, 2_000):
        (tmp_path / str(number)).touch()
    with pytest.raises(PolicyError, match="covers more than"):
        found(rule("deny-read", tmp_path / "*", True))


def test_a_second_path_to_something_hidden_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir" / "secret").write_text("x")
    (tmp_path / "link").symlink_to("dir")
    files, warnings = hostfiles.find(
        [rule("allow-read", tmp_path / "link"), rule("deny-read", tmp_path / "dir/secret")]
    )
    assert [each.effect for each in files] == ["deny-read"]
    assert "where something is hidden" in warnings[0]
    assert (
        FoundFile("allow-read", str(tmp_path / "link"), str(tmp_path / "dir"), True)
        in hostfiles.find([rule("allow-read", tmp_path / "link")])[0]
    )
