"""workspace.protect: which names must not be written, where they stand, and what has to be pinned."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from membrane.plan.model import ScanHit
from membrane.policy.model import Origin, PathRule
from membrane.workspace import protect
from membrane.workspace.scan import ScanResult, rescan, scan


def make(root: Path, *paths: str) -> None:
    for path in paths:
        place = root / path
        if path.endswith("/"):
            place.mkdir(parents=True, exist_ok=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text("")


def repository(place: Path, config: str = "") -> None:
    make(place, "HEAD", "objects/", "refs/heads/", "hooks/pre-commit.sample", "info/exclude", "index")
    (place / "config").write_text(config)


def protected(result: ScanResult) -> set[str]:
    return {hit.path for hit in result.hits if hit.effect == "protect"}


@pytest.mark.parametrize("row", [row for row in protect.TREE_ROWS if not row.check], ids=lambda row: row.name)
@pytest.mark.parametrize("below", ["", "a/b/"])
def test_every_row_is_found_at_any_depth(tmp_path: Path, row: protect.Protected, below: str) -> None:
    name = below + row.name.replace("*", ".local")
    make(tmp_path, name)
    assert protected(scan(str(tmp_path), ())) == {name}
    assert row.reason


@pytest.mark.parametrize("row", [row for row in protect.TREE_ROWS if row.check], ids=lambda row: row.name)
def test_a_row_whose_content_decides_stays_writable_and_is_watched(tmp_path: Path, row: protect.Protected) -> None:
    make(tmp_path, f"a/{row.name}", f"b/{row.name}/file", f"node_modules/{row.name}")
    (tmp_path / row.name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / row.name).symlink_to("missing")
    found = scan(str(tmp_path), ())
    assert protected(found) == {row.name}, "only the link"
    watched = {hit[0] for entry in found.index.entries.values() for hit in entry[6] if hit[1] == "s"}
    assert watched == {f"a/{row.name}"}


def test_the_list_holds_at_least_that_of_sandbox_runtime(tmp_path: Path) -> None:
    names = (".gitconfig", ".gitmodules", ".bashrc", ".bash_profile", ".zshrc", ".zprofile", ".profile", ".ripgreprc",
             ".mcp.json", ".vscode/x", ".idea/x", ".claude/commands/x", ".claude/agents/x")  # fmt: skip
    make(tmp_path, *names)
    found = protected(scan(str(tmp_path), ()))
    assert len(found) == len(names)


def test_names_beside_the_protected_ones_stay_writable(tmp_path: Path) -> None:
    make(
        tmp_path, ".claude/other", ".claude/settingsx", ".config/app.toml", ".gemini/GEMINI.md",
        "hooks/x", "config", "info/attributes", "modules/a", "HEAD", ".github/workflows/ci.yml", ".gitignore",
        ".gitattributes", "package.json", ".npmrc", "settings.json", "commands/x", ".env",
    )  # fmt: skip
    assert scan(str(tmp_path), ()).hits == ()


@pytest.mark.parametrize(
    "name",
    [".GIT/config", ".Git/Config", ".g\u200cit/config", ".git\ufeff/config", ".git./config", ".git /config",
     "git~1/config", ".git::$INDEX_ALLOCATION/config", ".Claude/Settings.JSON", ".VSCODE", ".\uff56scode",
     ".v\u017fcode", ".bashRC", ".IDEA", ".Mcp.Json", ".envrc.", "\u200b.envrc"],
)  # fmt: skip
def test_spellings_that_some_file_system_takes_for_the_same_name(tmp_path: Path, name: str) -> None:
    make(tmp_path, name)
    assert protected(scan(str(tmp_path), ())) == {name}


def test_folding_keeps_different_names_apart() -> None:
    assert protect.fold("Straße") == protect.fold("STRASSE")
    assert protect.fold("é") == protect.fold("e\u0301")
    assert len({protect.fold(name) for name in (".git", ".gitx", "git", ".gi", ".", "", "..git")}) >= 5
    assert protect.fold("\udcff.git") != ".git"


def test_a_git_directory_is_protected_where_git_executes_and_open_where_it_works(tmp_path: Path) -> None:
    git = tmp_path / ".git"
    repository(git)
    make(git, "config.worktree", "info/attributes", "worktrees/w/HEAD", "worktrees/w/gitdir", "worktrees/w/commondir",
         "worktrees/w/config.worktree", "logs/HEAD", "refs/heads/config", "refs/heads/hooks", "objects/ab/commondir",
         "COMMIT_EDITMSG", "index", "packed-refs", "rebase-merge/git-rebase-todo")  # fmt: skip
    repository(git / "modules" / "libs" / "sub")
    assert protected(scan(str(tmp_path), ())) == {
        ".git/config",
        ".git/config.worktree",
        ".git/hooks",
        ".git/info/attributes",
        ".git/worktrees/w/gitdir",
        ".git/worktrees/w/commondir",
        ".git/worktrees/w/config.worktree",
        ".git/modules/libs/sub/config",
        ".git/modules/libs/sub/hooks",
    }


def test_submodules_named_like_protected_names_do_not_confuse(tmp_path: Path) -> None:
    repository(tmp_path / ".git" / "modules" / "hooks")
    repository(tmp_path / ".git" / "modules" / "config")
    assert protected(scan(str(tmp_path), ())) == {
        ".git/modules/hooks/hooks",
        ".git/modules/hooks/config",
        ".git/modules/config/hooks",
        ".git/modules/config/config",
    }


@pytest.mark.parametrize("link", ["modules", "info", "worktrees", "modules/sub", "worktrees/w", "hooks"])
def test_links_in_place_of_what_holds_protected_names_are_protected(tmp_path: Path, link: str) -> None:
    make(tmp_path, "elsewhere/", ".git/HEAD")
    place = tmp_path / ".git" / link
    place.parent.mkdir(exist_ok=True)
    os.symlink(tmp_path / "elsewhere", place)
    hits = {hit.path: hit.link for hit in scan(str(tmp_path), ()).hits}
    assert hits[f".git/{link}"] is True
    assert hits["elsewhere"] is False  # where it leads is protected as well


def test_the_git_directory_itself_is_pinned_against_mv(tmp_path: Path) -> None:
    """mv .git .g2; mkdir -p .git/hooks: bypass A of the study."""
    repository(tmp_path / ".git")
    assert ".git" in scan(str(tmp_path), ()).pins
    make(tmp_path / "bare" / "x", ".git/")  # even one that holds nothing protected yet
    assert scan(str(tmp_path), ()).pins == (".git", "bare", "bare/x", "bare/x/.git")


def test_every_ancestor_of_something_nested_is_pinned_shallow_first(tmp_path: Path) -> None:
    """mv a a9; mkdir -p a/b/.git/hooks: bypass C of the study."""
    repository(tmp_path / "a" / "b" / ".git")
    make(tmp_path, "c/d/.vscode/tasks.json", ".bashrc", "free/x")
    pins = scan(str(tmp_path), ()).pins
    assert set(pins) == {"a", "a/b", "a/b/.git", "c", "c/d"}
    for number, pin in enumerate(pins):
        parent = pin.rpartition("/")[0]
        assert not parent or parent in pins[:number]


def test_parents_of_hidden_names_are_pinned_only_where_a_new_name_would_end_the_match(tmp_path: Path) -> None:
    make(tmp_path, "config/deep/secret.yml")
    origin = Origin("library", "test")

    def pins(text: str, effect: str = "hide") -> tuple[str, ...]:
        return scan(str(tmp_path), (PathRule(text, origin, effect),)).pins  # type: ignore[arg-type]

    assert pins("secret.yml") == ()  # found again wherever the parent goes
    assert pins("**/secret.yml") == ()
    assert pins("config/deep/secret.yml") == ("config", "config/deep")
    assert pins("deep/*.yml") == ()  # matches nothing: anchored at the root
    assert pins("**/deep/*.yml") == ("config", "config/deep")
    assert pins("*.yml", "readonly") == ("config", "config/deep")


def test_pins_leave_out_what_is_bound_itself() -> None:
    hits = [ScanHit("a/b", "readonly", True), ScanHit("a/b/c/d", "protect", False)]
    assert protect.pins(hits) == ("a", "a/b/c")


def test_a_git_file_is_protected_and_its_directory_found(tmp_path: Path) -> None:
    repository(tmp_path / ".git")
    make(tmp_path, ".git/worktrees/wt/HEAD", ".git/worktrees/wt/commondir", "wt/file")
    (tmp_path / "wt" / ".git").write_text(f"gitdir: {tmp_path}/.git/worktrees/wt\n")
    found = protected(scan(str(tmp_path), ()))
    assert {"wt/.git", ".git/worktrees/wt/commondir", ".git/config", ".git/hooks"} <= found


def test_a_linked_git_directory_is_covered_as_a_link_and_where_it_leads(tmp_path: Path) -> None:
    """rm .git; mkdir -p .git/hooks: bypass F of the study."""
    root = tmp_path / "ws"
    repository(root / "store" / "realgit")
    os.symlink("store/realgit", root / ".git")
    result = scan(str(root), ())
    hits = {hit.path: (hit.directory, hit.link) for hit in result.hits}
    assert hits[".git"] == (False, True)
    assert hits["store/realgit"] == (True, False)
    assert hits["store/realgit/hooks"] == (True, False)
    assert "store" in result.pins


def test_every_link_of_a_chain_is_covered(tmp_path: Path) -> None:
    make(tmp_path, "dots/real/bashrc")
    os.symlink("real", tmp_path / "dots" / "alias")
    os.symlink("dots/alias/bashrc", tmp_path / ".bashrc")
    hits = {hit.path: hit.link for hit in scan(str(tmp_path), ()).hits}
    assert hits == {".bashrc": True, "dots/alias": True, "dots/real/bashrc": False}


@pytest.mark.parametrize("target", ["/etc/passwd", "../../outside", "/proc/self/root", ".bashrc", "~/x", "a/../../.."])
def test_links_that_lead_out_or_in_circles_add_nothing_outside(tmp_path: Path, target: str) -> None:
    root = tmp_path / "ws"
    make(root, "a/")
    os.symlink(target, root / ".bashrc")
    result = scan(str(root), ())
    assert {hit.path for hit in result.hits} <= {".bashrc"}
    assert all(not path.startswith("..") for path in result.index.missing)


def test_a_link_out_and_back_in_is_resolved(tmp_path: Path) -> None:
    root = tmp_path / "ws"
    make(root, "dots/bashrc")
    os.symlink("../ws/dots/bashrc", root / ".bashrc")
    os.symlink(f"{root}/dots", root / ".vscode")
    assert {"dots/bashrc", "dots"} <= protected(scan(str(root), ()))


def test_hooks_that_link_into_the_tree_protect_their_target(tmp_path: Path) -> None:
    repository(tmp_path / ".git")
    make(tmp_path, "scripts/pre-commit", "scripts/other")
    os.symlink("../../scripts/pre-commit", tmp_path / ".git" / "hooks" / "pre-commit")
    result = scan(str(tmp_path), ())
    assert "scripts/pre-commit" in protected(result)
    assert "scripts/other" not in protected(result)
    assert "scripts" in result.pins


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ("[core]\n\thooksPath = .githooks\n", {".githooks"}),
        ('[core]\n\thookspath = "./tools/hooks/"\n', {"tools/hooks"}),
        ("[include]\n\tpath = ../shared.gitconfig\n", {"shared.gitconfig"}),
        ('[includeIf "gitdir:~/x/"]\n\tpath = ../shared.gitconfig\n', {"shared.gitconfig"}),
        ("[core]\n\thooksPath = /usr/share/hooks\n", set()),
        ("[core]\n\thooksPath = ../outside\n", set()),
        ("[core]\n\thooksPath = ~/hooks\n", set()),
        ("[core\n\thooksPath = .githooks\n", set()),  # git refuses it
    ],
)
def test_what_the_configuration_names_is_protected(tmp_path: Path, config: str, expected: set[str]) -> None:
    root = tmp_path / "ws"
    repository(root / ".git", config)
    make(root, ".githooks/pre-commit", "tools/hooks/pre-push", "shared.gitconfig")
    found = protected(scan(str(root), ())) - {".git/config", ".git/hooks"}
    assert found == expected | {".githooks"}  # a name of the table: the user's own configuration may say it


def test_a_hooks_path_that_does_not_exist_yet_is_protected_when_it_appears(tmp_path: Path) -> None:
    repository(tmp_path / ".git", "[core]\n\thooksPath = tools/hooks\n")
    result = scan(str(tmp_path), ())
    assert result.index.missing == ("tools/hooks",)
    make(tmp_path, "tools/hooks/pre-commit")
    assert protected(rescan(result.index)) == {"tools/hooks"}


@pytest.mark.parametrize("package", sorted(protect.PACKAGES))
def test_published_packages_keep_their_editor_files_but_not_their_repositories(tmp_path: Path, package: str) -> None:
    repository(tmp_path / package / "dep" / ".git")
    make(tmp_path, f"{package}/dep/.vscode/tasks.json", f"{package}/dep/.envrc", ".vscode/tasks.json")
    assert protected(scan(str(tmp_path), ())) == {f"{package}/dep/.git/config", f"{package}/dep/.git/hooks", ".vscode"}


def test_bare_and_renamed_repositories_are_found_by_layout(tmp_path: Path) -> None:
    repository(tmp_path / "store.git")
    make(tmp_path, "by-commondir/HEAD", "by-commondir/commondir", "by-commondir/config", "not/HEAD", "not/config")
    assert protected(scan(str(tmp_path), ())) == {
        "store.git/config",
        "store.git/hooks",
        "by-commondir/commondir",
        "by-commondir/config",
    }


def test_planting_a_layout_takes_no_protection_and_no_mask_away(tmp_path: Path) -> None:
    """A session plants HEAD, objects and refs at the top; the next one must see all that it saw before."""
    hide = (PathRule("*.pem", Origin("library", "test"), "hide"),)
    make(tmp_path, ".vscode/x", "objects/key.pem", "modules/.idea/x", "worktrees/w/objects/k.pem", "info/.envrc",
         "refs/.git/config", "logs/a/.mcp.json", "a/.claude/settings.json")  # fmt: skip
    before = {(hit.path, hit.effect) for hit in scan(str(tmp_path), hide).hits}
    make(tmp_path, "HEAD", "commondir", "refs/", "objects/")
    after = {(hit.path, hit.effect) for hit in scan(str(tmp_path), hide).hits}
    assert before <= after


def test_hidden_names_moved_into_git_data_are_still_hidden(tmp_path: Path) -> None:
    hide = (PathRule(".env", Origin("library", "test"), "hide"),)
    make(tmp_path, "x/.git/objects/app/.env", "x/.git/refs/.env", "x/.git/lfs/.env")
    assert len([hit for hit in scan(str(tmp_path), hide).hits if hit.effect == "hide"]) == 3


def test_the_policy_of_the_next_run_is_always_protected(tmp_path: Path) -> None:
    make(tmp_path, ".membrane.yaml")
    assert protected(scan(str(tmp_path), ())) == {".membrane.yaml"}
