"""Finding, trusting and caching the policy files."""

from __future__ import annotations

import marshal
import os
import pty
import select
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from membrane.errors import HostError, PolicyError
from membrane.policy.model import Policy
from membrane.run import settings
from membrane.run.settings import Loaded, load_policy, review_project, trust_project, write_config


class Place:
    """A workspace and a state directory, whose files are older than the cache's margin."""

    def __init__(self, root: Path) -> None:
        self.workspace = root / "work"
        self.home = root / "state"
        self.workspace.mkdir()
        self.environ = {"HOME": str(root / "user"), "A": "/run/a"}

    @property
    def project(self) -> Path:
        return self.workspace / ".membrane.yaml"

    @property
    def config(self) -> Path:
        return self.home / "config.yaml"

    def user(self, text: str) -> None:
        self.home.mkdir(exist_ok=True)
        self.config.write_text(text)

    def load(self, *command: str, at: Path | None = None, **given: Any) -> Loaded:
        """What ``membrane OPTIONS -- COMMAND`` would load there, without a terminal to ask on."""
        places = str(at or self.workspace), str(self.home)
        return load_policy(given, self.environ, *places, command=command, interactive=False)

    def load_settled(self, **given: Any) -> Loaded:
        """Load when every file is old enough to be cached; the wait is for a clock, not for another process."""
        newest = max(
            (
                path.stat().st_ctime_ns
                for path in (self.config, self.project, self.home / "trusted.yaml")
                if path.exists()
            ),
            default=0,
        )
        while time.time_ns() - newest <= settings._SETTLED_NS:
            time.sleep(0.01)
        return self.load(**given)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def hosts(loaded: Loaded) -> list[str]:
    return [rule.text for rule in loaded.policy.allow if rule.origin.level != "built-in"]


# ---------------------------------------------------------------- files


def test_first_run_writes_the_template_and_never_again(place: Place) -> None:
    place.load()
    template = place.config.read_text()
    assert template.startswith("# Membrane")
    assert stat.S_IMODE(place.config.stat().st_mode) == 0o600
    assert stat.S_IMODE(place.home.stat().st_mode) == 0o700
    place.config.write_text("allow: [mine.example]")
    assert not write_config(str(place.home))
    assert hosts(place.load()) == ["mine.example"]
    assert place.config.read_text() == "allow: [mine.example]"
    assert [path.name for path in place.home.iterdir() if path.name not in ("cache", "config.yaml")] == []


def test_the_first_configuration_has_one_name_at_every_moment(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run beside this one refuses a file of two names, as link(2) makes it for a moment, and a kill for good."""

    def link(*_words: object, **_more: object) -> None:
        raise AssertionError("link(2)")

    monkeypatch.setattr(os, "link", link)
    home = place.home
    assert write_config(str(home))
    config = home / "config.yaml"
    assert os.listdir(home) == [config.name] and config.stat().st_nlink == 1
    config.write_text("deny: []\n")
    monkeypatch.setattr(os.path, "lexists", lambda _path: False)  # another run has made it since
    assert not write_config(str(home))
    assert config.read_text() == "deny: []\n" and os.listdir(home) == [config.name]


def test_dangling_link_is_not_replaced(place: Place) -> None:
    place.home.mkdir()
    place.config.symlink_to(place.home / "absent")
    with pytest.raises(HostError, match="ENOENT"):
        place.load()
    assert place.config.is_symlink()


def test_all_levels(place: Place) -> None:
    place.user("allow: [user.example]")
    place.project.write_text("deny: [project.example]\nignore: [x]")
    loaded = place.load(allow=("line.example",))
    assert hosts(loaded) == ["user.example", "line.example"]
    assert [str(rule.origin) for rule in loaded.policy.deny] == [f"project {place.project}:1"]
    assert loaded.policy.levels[-3:] == (str(place.config), str(place.project), "command line")


def test_files_can_be_left_out(place: Place) -> None:
    place.user("allow: [user.example]")
    place.project.write_text("deny: [project.example]")
    assert hosts(place.load(no_global_config=True)) == []
    assert place.load(no_project=True).policy.deny == ()
    assert place.load(no_presets=True, no_global_config=True, no_project=True).policy.allow == ()


@pytest.mark.parametrize("name", [".membraneignore", ".membrane/.membraneignore", ".membrane/config.yml"])
def test_a_file_that_another_version_read_is_named(place: Place, name: str) -> None:
    def said() -> list[str]:
        return [text for text in place.load().warnings if "is not read" in text]

    assert said() == []
    assert said() == [], "from the cache"
    path = place.workspace / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("*.pem\n")
    for _ in range(2):
        (warning,) = said()
        assert warning.startswith(f"{path} is not read; write ")
        assert warning.endswith(f" in {place.project}")
    assert not place.load(no_project=True).warnings
    path.unlink()
    assert said() == []


def test_in_a_directory_further_down_the_nearest_project_file_holds(place: Place) -> None:
    """Its patterns and paths are moved; a repository that was made there meanwhile changes nothing."""
    sub = place.workspace / "src" / "deep"
    sub.mkdir(parents=True)

    def policy() -> Policy:
        loaded = load_policy({}, place.environ, str(sub), str(place.home), interactive=False)
        assert loaded.warnings == ()
        return loaded.policy

    def project() -> list[str]:
        return [f"{rule.effect} {rule.text}" for rule in policy().paths if rule.origin.level == "project"]

    assert project() == []  # the control
    place.project.write_text("ignore: [secrets/, /src/deep/x, /other, 'src/*/y/']\nreadonly: ['src/**/z']\n")
    wanted = ["hide secrets/", "hide /x", "hide /y/", "readonly /**/z", "readonly /z"]
    assert project() == project() == wanted  # also from the cache
    for made in (place.workspace / ".git", sub / ".git"):
        made.mkdir()
        assert project() == wanted
    before = policy().digest
    (place.workspace / "src" / ".membrane.yaml").write_text("ignore: [/deep/own]")  # nearer
    assert project() == ["hide /own"]
    assert policy().digest != before
    (sub / ".membrane.yaml").write_text("ignore: [x]")
    assert project() == ["hide x"]


def test_a_rule_about_the_directory_itself_holds_for_all_of_it(place: Place) -> None:
    sub = place.workspace / "infra" / "prod"
    sub.mkdir(parents=True)
    place.project.write_text("readonly: [infra/, '!infra/prod/open']\n")
    given: dict[str, str | bool | tuple[str, ...]] = {"trust_workspace": True}
    loaded = load_policy(given, place.environ, str(sub), str(place.home), interactive=False)
    assert [rule.text for rule in loaded.policy.paths if rule.origin.level == "project"] == ["/*"]
    place.project.write_text("ignore: [infra/]\n")
    with pytest.raises(PolicyError, match="hides the directory that is to be the workspace"):
        load_policy({}, place.environ, str(sub), str(place.home), interactive=False)
    assert load_policy({"no_project": True}, place.environ, str(sub), str(place.home), interactive=False)


def test_what_was_approved_holds_further_down_too(place: Place) -> None:
    sub = place.workspace / "sub"
    sub.mkdir()
    place.project.write_text("allow: [project.example]\nmounts: [{path: shared}]\n")

    def load() -> Policy:
        return load_policy({}, place.environ, str(sub), str(place.home), interactive=False).policy

    with pytest.raises(PolicyError, match="is not approved"):
        load()
    trust_project(str(sub), str(place.home))
    policy = load()
    assert any(rule.host == "project.example" for rule in policy.allow)
    assert [rule.path for rule in policy.mounts] == [f"{place.workspace}/shared"]
    assert any(rule.host == "project.example" for rule in place.load().policy.allow)  # it is the same file


@pytest.mark.as_root
def test_a_file_of_another_user_above_does_not_hold(place: Place) -> None:
    sub = place.workspace / "sub"
    sub.mkdir()
    place.project.write_text("ignore: [x]")
    os.chown(place.project, 65534, 65534)
    (warning,) = load_policy({}, place.environ, str(sub), str(place.home), interactive=False).warnings
    assert warning.startswith(f"{place.project} is another user's") and f"cd {place.workspace}" in warning
    assert [rule for rule in place.load().policy.paths if rule.text == "x"]  # there it holds


def test_profile_by_command(place: Place) -> None:
    assert place.load("/usr/bin/claude", "-p").policy.profiles == ("claude",)
    assert place.load("claude", no_profile=True).policy.profiles == ()


def test_unwritable_home(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "work").mkdir()
    for home in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / "no" / "such"):
        with pytest.raises(HostError) as caught:
            load_policy({}, {"HOME": "/"}, str(tmp_path / "work"), str(home), interactive=False)
        assert str(home) in str(caught.value)
        assert any("MEMBRANE_HOME" in line for line in caught.value.lines())


def test_state_that_lies_in_the_workspace_is_not_made_there(place: Place, tmp_path: Path) -> None:
    inside = place.workspace / "state"
    with pytest.raises(PolicyError, match=r"own state .* overlap"):
        load_policy({}, place.environ, str(place.workspace), str(inside), interactive=False)
    assert not os.listdir(place.workspace)
    # Of the home directory as a workspace the plan says more; and what is there already is no trace of ours.
    home = {"HOME": str(place.workspace)}
    assert load_policy({}, home, str(place.workspace), str(inside), interactive=False).policy
    assert inside.is_dir()


@pytest.mark.as_user
def test_a_directory_of_somebody_else_is_not_to_be_taken_over(place: Place) -> None:
    """The way to open what a killed run left closed is for directories of one's own, or of one's subordinate ids."""
    with pytest.raises(HostError) as caught:
        load_policy({}, place.environ, "/root", str(place.home), interactive=False)
    text = "\n".join(caught.value.lines())
    assert "EACCES" in text and "unshare" not in text and "cd into a directory" in text, text
    place.workspace.chmod(0)
    try:
        with pytest.raises(HostError, match="EACCES") as caught:
            place.load()
        assert any("chmod u+rwx" in line for line in caught.value.lines())
    finally:
        place.workspace.chmod(0o700)


def test_missing_workspace(place: Place) -> None:
    place.workspace.rmdir()
    with pytest.raises(HostError, match="cannot open the workspace"):
        place.load()


def test_project_file_is_not_followed(place: Place, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere.yaml"
    elsewhere.write_text("deny: [a.com]")
    place.project.symlink_to(elsewhere)
    with pytest.raises(PolicyError, match="symbolic link"):
        place.load()


def test_project_file_must_be_a_file(place: Place) -> None:
    os.mkfifo(place.project)
    with pytest.raises(PolicyError, match="not a regular file"):
        place.load()
    place.project.unlink()
    place.project.mkdir()
    with pytest.raises(PolicyError, match="not a regular file"):
        place.load()


@pytest.mark.parametrize("name", ["project", "config"])
def test_file_is_bounded(place: Place, name: str) -> None:
    place.home.mkdir()
    path: Path = getattr(place, name)
    path.write_bytes(b"#" * (1 << 20))
    place.load()
    path.write_bytes(b"#" * ((1 << 20) + 1))
    with pytest.raises(PolicyError, match="larger than 1 MiB"):
        place.load()


def test_file_that_is_not_utf8(place: Place) -> None:
    place.project.write_bytes(b"# a\n# b\n# \xff\n")
    with pytest.raises(PolicyError) as caught:
        place.load()
    assert str(caught.value) == f"{place.project}:3:1: it is not UTF-8"


def test_error_names_the_file(place: Place) -> None:
    place.user("alow: []")
    with pytest.raises(PolicyError) as caught:
        place.load()
    assert str(caught.value).startswith(f"{place.config}:1:1: unknown key")


def test_workspace_with_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    odd = Place(tmp_path)
    odd.workspace = Path(os.fsdecode(os.fsencode(tmp_path) + b"/w\xff\n"))
    odd.workspace.mkdir()
    odd.project.write_text("allow: [a.com]")
    trust_project(str(odd.workspace), str(odd.home))
    assert hosts(odd.load()) == ["a.com"]


def test_state_home() -> None:
    assert settings.state_home({"HOME": "/h"}) == "/h/.membrane"
    assert settings.state_home({"HOME": "/h", "MEMBRANE_HOME": "/x/../y"}) == "/y"
    assert settings.state_home({}).endswith("/.membrane")


# ---------------------------------------------------------------- trust


def test_widening_stops_the_run_without_a_terminal(place: Place) -> None:
    place.project.write_text("ignore: [x]\nallow: [a.com]\n")
    with pytest.raises(PolicyError) as caught:
        place.load()
    assert caught.value.exit_code == 78
    assert caught.value.where == f"{place.project}:2:1"
    text = "\n".join(caught.value.lines())
    assert "membrane --trust-workspace" in text
    assert "membrane trust" in text


def test_trust_for_one_run(place: Place) -> None:
    place.project.write_text("allow: [a.com]")
    assert hosts(place.load_settled(trust_workspace=True)) == ["a.com"]
    with pytest.raises(PolicyError):
        place.load()


def test_trust_until_the_file_changes(place: Place) -> None:
    place.project.write_text("allow: [a.com]")
    (widening,) = trust_project(str(place.workspace), str(place.home))
    assert (widening.key, widening.line, widening.text) == ("allow", 1, "allow: [a.com]")
    store = place.home / "trusted.yaml"
    assert stat.S_IMODE(store.stat().st_mode) == 0o600
    for _ in range(2):
        loaded = place.load_settled()
        assert hosts(loaded) == ["a.com"]
        assert [each.text for each in loaded.widening] == ["allow: [a.com]"]
    assert loaded.cached
    place.project.write_text("allow: [b.com]")
    with pytest.raises(PolicyError):
        place.load()
    trust_project(str(place.workspace), str(place.home))
    assert store.read_text().count("sha256: ") == 1, "one approval per workspace"
    store.unlink()
    with pytest.raises(PolicyError):
        place.load()


def test_trust_is_bound_to_the_place(place: Place, tmp_path: Path) -> None:
    place.project.write_text("allow: [a.com]")
    trust_project(str(place.workspace), str(place.home))
    other = tmp_path / "other"
    place.workspace.rename(other)
    place.workspace.mkdir()
    assert hosts(place.load()) == []
    with pytest.raises(PolicyError):
        load_policy({}, place.environ, str(other), str(place.home), interactive=False)


def test_what_was_reviewed_is_what_is_approved(place: Place) -> None:
    place.project.write_text("allow: [a.com]")
    review = review_project(str(place.workspace), str(place.home))
    assert review is not None
    place.project.write_text("allow: [evil.example]")
    trust_project(str(place.workspace), str(place.home), review)
    with pytest.raises(PolicyError):
        place.load()


def test_nothing_to_trust(place: Place) -> None:
    with pytest.raises(PolicyError, match="there is no such file"):
        trust_project(str(place.workspace), str(place.home))


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "- x",
        "- {path: /w}",
        "- {path: /w, sha256: abc}",
        f"- {{path: /w, sha256: {'g' * 64}}}",
        f"- {{path: /w, sha256: {'A' * 64}}}",
        "- {path: /w, sha256: x, more: 1}",
        "{",
        "path: /w",
    ],
)
def test_malformed_store_fails_closed(place: Place, text: str) -> None:
    place.project.write_text("allow: [a.com]")
    trust_project(str(place.workspace), str(place.home))
    store = place.home / "trusted.yaml"
    good = store.read_text()
    store.write_text(f"{good}{text}\n")
    with pytest.raises(PolicyError) as caught:
        place.load()
    assert str(store) in caught.value.where


def test_store_that_others_can_use_fails_closed(place: Place) -> None:
    place.project.write_text("allow: [a.com]")
    trust_project(str(place.workspace), str(place.home))
    store = place.home / "trusted.yaml"
    store.chmod(0o640)
    with pytest.raises(PolicyError, match="nothing in it counts"):
        place.load()
    store.chmod(0o600)
    assert hosts(place.load()) == ["a.com"]


def test_malformed_store_does_not_matter_when_nothing_is_asked(place: Place) -> None:
    place.home.mkdir()
    (place.home / "trusted.yaml").write_text("{")
    place.load()


_ASK = """
import os, sys
sys.path[:0] = {path!r}
from membrane.errors import MembraneError
from membrane.run.settings import load_policy
try:
    loaded = load_policy({{}}, {{"HOME": "/"}}, {workspace!r}, {home!r})
except MembraneError as error:
    print("REFUSED", error.exit_code, flush=True)
else:
    print("ALLOWED", [rule.text for rule in loaded.policy.allow if rule.origin.level == "project"], flush=True)
"""


def on_a_terminal(place: Place, answer: bytes, typed_before: bytes = b"") -> str:
    """Run ``load_policy`` with a controlling terminal and answer its question; return all that was shown."""
    program = _ASK.format(path=sys.path, workspace=str(place.workspace), home=str(place.home))
    pid, fd = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", program])
    shown = b""
    try:
        if typed_before:
            os.write(fd, typed_before)
        answered = False
        while True:
            ready, _, _ = select.select([fd], [], [], 30)
            assert ready, f"no output for 30 s after {shown!r}"
            try:
                part = os.read(fd, 4096)
            except OSError:  # EIO: the other side is closed
                break
            if not part:
                break
            shown += part
            if b"[N]o:" in shown and not answered:
                os.write(fd, answer)
                answered = True
    finally:
        os.close(fd)
        os.waitpid(pid, 0)
    return shown.decode()


def test_answers_on_the_terminal(place: Place) -> None:
    place.project.write_text("deny: [x.com]\nallow:\n  - a.com\n  - b.com # \u202eevil\n")
    shown = on_a_terminal(place, b"n\n")
    assert "REFUSED 78" in shown
    assert "3  allow:" in shown
    assert "- a.com" in shown
    assert "\\u{202e}" in shown
    assert "\u202e" not in shown
    assert "x.com" not in shown, "what tightens is not asked about"
    assert "ALLOWED ['a.com', 'b.com']" in on_a_terminal(place, b"o\n")
    with pytest.raises(PolicyError):
        place.load()
    assert "REFUSED 78" in on_a_terminal(place, b"\n"), "no answer is no"
    assert "REFUSED 78" in on_a_terminal(place, b"n\n", typed_before=b"always\n"), "what was typed before is no answer"
    assert "ALLOWED" in on_a_terminal(place, b"always\n")
    assert hosts(place.load()) == ["a.com", "b.com"]


# ---------------------------------------------------------------- cache


def test_second_load_comes_from_the_cache(place: Place) -> None:
    place.user("allow: [a.com, '**']\nunix_sockets: [$A]")
    first = place.load_settled()
    second = place.load()
    assert (first.cached, second.cached) == (False, True)
    assert second.policy == first.policy
    assert second.warnings == first.warnings != ()
    (file,) = (place.home / "cache").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_fresh_files_are_not_cached(place: Place) -> None:
    place.user("allow: [a.com]")
    place.load()
    place.user("allow: [b.com]")  # the same size, perhaps in the same tick
    assert hosts(place.load()) == ["b.com"]


def test_every_input_of_the_cache_counts(place: Place) -> None:
    place.user("unix_sockets: [$A]\nallow: [a.com]")
    place.load_settled()
    assert place.load().cached

    assert not place.load(allow=("b.com",)).cached
    assert not place.load("claude").cached
    assert place.load().cached

    place.environ["A"] = "/run/b"
    changed = place.load()
    assert (changed.cached, changed.policy.unix_sockets[0].path) == (False, "/run/b")
    place.environ["A"] = "/run/a"

    place.project.write_text("deny: [p.com]")
    assert not place.load().cached
    assert place.load().policy.deny != ()
    place.project.unlink()
    assert place.load_settled().policy.deny == ()

    before = place.config.stat()
    place.config.write_text("unix_sockets: [$A]\nallow: [z.com]")
    os.utime(place.config, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert place.config.stat().st_size == before.st_size
    assert hosts(place.load()) == ["z.com"], "mtime can be set back, ctime cannot"


@pytest.mark.parametrize(
    "damage",
    ["mode", "link", "cut", "symlink", "directory", "empty", pytest.param("owner", marks=pytest.mark.as_root)],
)
def test_cache_file_that_is_not_ours_alone_is_not_used(place: Place, tmp_path: Path, damage: str) -> None:
    place.user("allow: [a.com]")
    place.load_settled()
    (file,) = (place.home / "cache").iterdir()
    data = file.read_bytes()
    if damage == "mode":
        file.chmod(0o620)
    elif damage == "link":
        os.link(file, tmp_path / "link")
    elif damage == "owner":
        os.chown(file, 65534, 0)
    elif damage == "cut":
        file.write_bytes(data[: len(data) // 2])
    elif damage == "symlink":
        moved = file.rename(tmp_path / "moved")
        file.symlink_to(moved)
    elif damage == "empty":
        file.write_bytes(b"")
    else:
        file.unlink()
        file.mkdir()
    loaded = place.load()
    assert not loaded.cached
    assert hosts(loaded) == ["a.com"]


def a_process(place: Place, package: Path, more: str = "") -> list[str]:
    """Load in an interpreter of its own, with the package at ``package``; the words that it prints."""
    program = (
        f"import sys\nsys.path[:0] = {[str(package), *sys.path]!r}\n"
        "from membrane.run.settings import load_policy\n"
        f"places = {place.environ!r}, {str(place.workspace)!r}, {str(place.home)!r}\n"
        f"{more}\n"
        "print(load_policy({}, *places, interactive=False).cached)\n"
        "print(*(name for name in sys.modules if name.startswith('membrane')))"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=True)
    return done.stdout.split()


def settle(path: Path) -> None:
    """Until a later change of ``path`` must show in its stamp: a clock, not another process."""
    while time.time_ns() - path.stat().st_ctime_ns <= 2 * settings._SETTLED_NS:
        time.sleep(0.01)


def copied(tmp_path: Path) -> Path:
    """A copy of the package, and the directory that it is imported from."""
    source = Path(settings.__file__).parents[1]
    shutil.copytree(source, tmp_path / "site/membrane", ignore=shutil.ignore_patterns("__pycache__", "*.o"))
    settle(tmp_path / "site/membrane")
    return tmp_path / "site"


def test_all_code_that_makes_a_policy_counts_for_its_cache(place: Place, tmp_path: Path) -> None:
    """Whoever edits one module alone, or installs another version of what reads policies, gets a new policy."""
    site = copied(tmp_path)
    place.user("allow: ['*.example.co.uk', 'b\u00fccher.example']\nunix_sockets: [/run/s]\n")
    settle(place.config)
    cached, *loaded = a_process(place, site)
    assert cached == "False"
    (file,) = (place.home / "cache").iterdir()
    stamps = dict(marshal.loads(file.read_bytes())[1])
    ours = {site / name.replace(".", "/") for name in loaded}
    ours = {path / "__init__.py" if path.is_dir() else path.with_suffix(".py") for path in ours}
    assert {site / f"membrane/{name}.py" for name in ("run/settings", "value", "policy/hosts", "plan/mounts")} <= ours
    assert ours <= {Path(path) for path in stamps}
    assert {"yaml", "idna", "publicsuffixlist"} <= {Path(path).parent.name for path in stamps}
    for path in (site / "membrane/plan/mounts.py", site / "membrane/policy/hosts.py"):
        assert a_process(place, site)[0] == "True"
        path.write_bytes(path.read_bytes())
        assert a_process(place, site)[0] == "False"
        settle(path)
        a_process(place, site)  # settled: from here on it is remembered again, if it was not by the one before
        assert a_process(place, site)[0] == "True"


def test_a_process_that_runs_replaced_code_caches_nothing(place: Place, tmp_path: Path) -> None:
    """Its policy is the old code's, and the stamps that it would write the new one's."""
    site = copied(tmp_path)
    place.user("allow: [a.com]")
    settle(place.config)
    replace = (
        f"import os, time\nos.utime({str(site / 'membrane/policy/codec.py')!r})\n"
        f"time.sleep({3 * settings._SETTLED_NS / 1e9})  # the files are settled; the code is not what runs\n"
    )
    assert a_process(place, site, replace)[0] == "False"
    assert a_process(place, site)[0] == "False", "the one before has written nothing"
    assert a_process(place, site)[0] == "True"


def test_cache_is_bounded(place: Place) -> None:
    """Each kind of file by itself, and what was used last stays: the indexes of many workspaces put out no policy."""
    cache = place.home / "cache"
    cache.mkdir(parents=True)
    most = settings._MOST_CACHED
    for number in range(most):
        for kind in ("policy-", "scan-"):
            path = cache / f"{kind}{number:08}"
            path.touch()
            os.utime(path, (number, number))
    (cache / "other").touch()
    place.user("allow: [a.com]\n")
    options = [{"allow": (f"{name}.com",)} for name in "bc"]
    for each in options:
        assert not place.load_settled(**each).cached
    assert [place.load(**each).cached for each in options] == [True, True]
    names = os.listdir(cache)
    for kind in ("policy-", "scan-"):
        left = sorted(name for name in names if name.startswith(kind))
        assert most // 2 <= len(left) <= most // 2 + 2 and f"{kind}{most - 1:08}" in left
        assert f"{kind}{0:08}" not in left
    assert "other" in names


def test_unwritable_cache_is_no_error(place: Place) -> None:
    place.user("")
    (place.home / "cache").write_text("not a directory")
    assert not place.load_settled().cached


def test_cache_hit_imports_nothing_heavy(place: Place) -> None:
    place.user("allow: [a.com]")
    place.load_settled()
    program = (
        f"import os, sys\nsys.path[:0] = {sys.path!r}\n"
        "from membrane.run.settings import load_policy\n"
        f"places = {place.environ!r}, {str(place.workspace)!r}, {str(place.home)!r}\n"
        "loaded = load_policy({}, *places, interactive=False)\n"
        "heavy = ('yaml', 're', 'ipaddress', 'idna', 'hashlib', 'typing', 'enum', 'socket', 'membrane.policy.load')\n"
        "print(loaded.cached, [name for name in heavy if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "True []"


def test_a_policy_or_trust_file_with_a_second_name_does_not_count(place: Place) -> None:
    """In a tree that the command can write, the other name is as good as this one."""
    place.config.parent.mkdir(parents=True, exist_ok=True)
    place.config.write_text("allow: [a.com]\n")
    assert "a.com" in hosts(place.load_settled())
    other = place.workspace / "innocent"
    other.hardlink_to(place.config)
    with pytest.raises(PolicyError, match="hard links"):
        place.load_settled()
    other.unlink()
    assert "a.com" in hosts(place.load_settled())


def test_in_the_state_directory_of_another_user_nothing_is_written(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root with the caller's HOME: what it left there would stop the caller's next run."""
    place.home.mkdir()
    owner = os.geteuid()
    monkeypatch.setattr(settings.os, "geteuid", lambda: owner + 1)
    with pytest.raises(HostError, match=f"it belongs to uid {owner}"):
        place.load()
    assert os.listdir(place.home) == []
    monkeypatch.undo()
    place.load()  # the control
    assert "config.yaml" in os.listdir(place.home)
