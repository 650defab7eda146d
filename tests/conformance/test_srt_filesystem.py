"""Filesystem cases of sandbox-runtime's own tests: mandatory denies, carve-outs, links, globs, write roots."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from srt_box import SOCKET_CLIENT, SOCKET_SERVER, SrtBox, outcomes
from world import World

PROTECTED = [
    *(".gitconfig", ".gitmodules", ".bashrc", ".bash_profile", ".zshrc", ".zprofile", ".profile", ".ripgreprc"),
    *(".mcp.json", ".git/config", ".git/hooks/pre-commit", ".vscode/settings.json", ".idea/workspace.xml"),
    *(".claude/commands/a.md", ".claude/agents/a.md"),
]
ORDINARY = ["regular.txt", ".git/objects/x", ".git/refs/heads/main", ".git/COMMIT_EDITMSG", ".claude/other.txt"]
NESTED = ["sub/.bashrc", "sub/deep/er/.vscode/tasks.json", "a/b/c/repo/.git/hooks/post-checkout"]


@pytest.fixture(scope="module")
def shared(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SrtBox]:
    yield SrtBox(world, tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module")
def written(shared: SrtBox) -> dict[str, tuple[int, str]]:
    for name in (*PROTECTED, *ORDINARY, *NESTED):
        shared.written(*name.split("/"))
    shared.written(".git", "HEAD").write_text("ref: refs/heads/main\n")
    found = outcomes(shared, {name: f"echo MODIFIED > {name}" for name in (*PROTECTED, *ORDINARY, *NESTED)})
    found["after"] = (0, " ".join(sorted(os.listdir(shared.work))))
    return found


@pytest.mark.parametrize("name", PROTECTED)
def test_mandatory_deny(shared: SrtBox, written: dict[str, tuple[int, str]], name: str) -> None:
    assert written[name][0] != 0, written[name]
    assert (shared.work / name).read_text() == "ORIGINAL"


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_file_stays_writable(shared: SrtBox, written: dict[str, tuple[int, str]], name: str) -> None:
    assert written[name] == (0, "")
    assert (shared.work / name).read_text() == "MODIFIED\n"


@pytest.mark.ours
@pytest.mark.parametrize("name", NESTED)
def test_mandatory_deny_at_any_depth(shared: SrtBox, written: dict[str, tuple[int, str]], name: str) -> None:
    assert written[name][0] != 0 and (shared.work / name).read_text() == "ORIGINAL"


@pytest.mark.ours
def test_no_ghost_file_during_and_after_the_run(box: SrtBox) -> None:
    box.written("a.txt")
    assert box.shell("ls -A").stdout.split() == ["a.txt"]
    assert os.listdir(box.work) == ["a.txt"]


@pytest.fixture(scope="module")
def rules(world: World, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """One run under many rules."""
    box = SrtBox(world, tmp_path_factory.mktemp("rules"))
    for name in ("secret/key", "secret/open/readable", "secret/open/closed/no", "secret/write/w", "fixed/f", "free/f"):
        box.written(*name.split("/"))
    for name in ("top.env", "sub/deep/x.env", "sub/readme.txt", "file1", "file12", "lone"):
        box.written(*name.split("/"))
    for name in ("hidden/key", "hidden/open/readable", "shown", "both/f", "fixed2/key", "fixed2/other"):
        path = box.outside / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("ORIGINAL")
    (box.work / "link").symlink_to(box.outside)
    (box.work / "tosecret").symlink_to("secret/key")
    box.settings(
        files={
            "allowWrite": [".", str(box.outside / "fixed2"), str(box.outside / "hidden" / "write")],
            "denyRead": [
                *("./secret", "./secret/open/closed", "./lone", "**/*.env", "file?", str(box.outside / "hidden")),
                *(str(box.outside / "both"), str(box.outside / "fixed2" / "key")),
            ],
            "allowRead": ["./secret/open", ".", str(box.outside / "hidden" / "open")],
            "denyWrite": ["./fixed", "./lone", str(box.outside / "both"), str(box.outside / "fixed2" / "other")],
        }
    )
    out = box.outside
    return outcomes(
        box,
        {
            "denied directory is unreadable": "cat secret/key",
            "denied through a link": "cat tosecret",
            "carve-out is readable": "cat secret/open/readable",
            "sibling of a carve-out stays denied": "cat secret/write/w",
            "deny nested in allow is re-applied": "cat secret/open/closed/no",
            "file deny survives an allowed parent": "cat lone",
            "carve-out of denied tree is not writable": "echo x > secret/open/readable",
            "denyWrite inside allowWrite": "echo x > fixed/f",
            "rename of a denied-write directory": "mv fixed elsewhere",
            "rename of a denied directory": "mv secret elsewhere",
            "removal of a denied-write file": "rm -f fixed/f && test ! -e fixed/f",
            "sibling stays writable": "echo x > free/f",
            "glob in the root": "cat top.env",
            "glob deep": "cat sub/deep/x.env",
            "glob spares others": "cat sub/readme.txt",
            "question mark": "cat file1",
            "question mark is one character": "cat file12",
            "outside denied": f"cat {out}/hidden/key",
            "outside carve-out": f"cat {out}/hidden/open/readable",
            "outside readable by default": f"cat {out}/shown",
            "outside not writable": f"echo x > {out}/shown",
            "outside not writable through a link": "echo x > link/shown",
            "both denyRead and denyWrite": f"cat {out}/both/f",
            "denied file in another root": f"cat {out}/fixed2/key",
            "denied write in another root": f"echo x > {out}/fixed2/other",
            "hard link of a denied file": "ln lone lone2 && cat lone2",
            "hard link to the outside": f"ln {out}/shown here",
            "new name in a denied directory": "echo x > secret/new",
            "etc": "echo x > /etc/srt-was-here",
            "home": "echo x > ~/srt-was-here",
        },
    )


READABLE = {
    *("carve-out is readable", "glob spares others", "question mark is one character", "outside carve-out"),
    "outside readable by default",
}
REFUSED = [
    *("denied directory is unreadable", "denied through a link", "sibling of a carve-out stays denied"),
    *("deny nested in allow is re-applied", "file deny survives an allowed parent", "denyWrite inside allowWrite"),
    *("carve-out of denied tree is not writable", "rename of a denied-write directory", "rename of a denied directory"),
    *("removal of a denied-write file", "glob in the root", "glob deep", "question mark", "outside denied"),
    *("outside not writable", "outside not writable through a link", "both denyRead and denyWrite"),
    *("denied file in another root", "denied write in another root", "hard link of a denied file"),
    *("hard link to the outside", "etc", "home"),
]


@pytest.mark.parametrize("case", sorted(READABLE))
def test_readable(rules: dict[str, tuple[int, str]], case: str) -> None:
    assert rules[case] == (0, "ORIGINAL")


@pytest.mark.parametrize("case", REFUSED)
def test_refused(rules: dict[str, tuple[int, str]], case: str) -> None:
    status, text = rules[case]
    assert status != 0 and "ORIGINAL" not in text, (status, text)


@pytest.mark.ours
def test_write_into_a_denied_directory_fails_instead_of_being_lost(rules: dict[str, tuple[int, str]]) -> None:
    assert rules["new name in a denied directory"][0] != 0


def test_sibling_of_a_denied_write_is_writable(rules: dict[str, tuple[int, str]]) -> None:
    assert rules["sibling stays writable"] == (0, "")


def test_write_outside_says_read_only_file_system(box: SrtBox) -> None:
    done = box.shell(f"echo x > {box.outside}/f")
    assert done.returncode != 0 and "Read-only file system" in done.stderr
    assert not (box.outside / "f").exists()


def test_nothing_is_writable_by_default(box: SrtBox) -> None:
    box.settings(files={"allowWrite": []})
    done = box.shell("echo x > f; cat /etc/hostname > /dev/null && echo read")
    assert done.stdout == "read\n" and os.listdir(box.work) == []


def test_trailing_star_star_is_the_directory(box: SrtBox) -> None:
    box.settings(files={"allowWrite": [f"{box.outside}/**"]})
    assert box.shell(f"mkdir -p {box.outside}/a/b && echo x > {box.outside}/a/b/c").returncode == 0
    assert (box.outside / "a/b/c").read_text() == "x\n"


@pytest.mark.parametrize("target", ["/etc", "..", "/usr"])
def test_allow_write_of_a_link_that_leads_out_opens_nothing(box: SrtBox, target: str) -> None:
    (box.work / "link").symlink_to(target)
    before = sorted(os.listdir("/etc"))
    box.settings(files={"allowWrite": ["./link"]})
    done = box.shell("echo x > link/srt-was-here")
    assert done.returncode != 0
    assert sorted(os.listdir("/etc")) == before and not (box.work.parent / "srt-was-here").exists()


def test_list_order_does_not_matter(box: SrtBox) -> None:
    (box.outside / "d").mkdir()
    (box.outside / "d" / "f").write_text("ORIGINAL")
    deny = [str(box.outside), str(box.outside / "d" / "f")]
    for order in (deny, deny[::-1]):
        box.settings(files={"denyRead": order, "allowRead": [str(box.outside / "d")]})
        assert "ORIGINAL" not in box.shell(f"cat {box.outside}/d/f").stdout


@pytest.mark.ours
def test_glob_deny_holds_for_names_that_appear_later(box: SrtBox) -> None:
    """What the command could not read again it may not make; what somebody outside makes is masked."""
    box.settings(files={"denyRead": ["**/*.pem"]})
    assert box.shell("echo secret > other && echo secret > new.pem").returncode != 0
    assert (box.work / "other").exists() and not (box.work / "new.pem").exists()


@pytest.mark.ours
def test_missing_allow_write_is_said(box: SrtBox) -> None:
    box.settings(files={"allowWrite": [".", "./absent"]})
    done = box.shell("true")
    assert done.returncode == 0 and "nothing is writable there" in done.stderr and "./absent" in done.stderr


def test_worktree_pointer_file_stays(box: SrtBox) -> None:
    (box.work / ".git").write_text(f"gitdir: {box.outside}/repo/.git/worktrees/w\n")
    done = box.shell("echo 'gitdir: /evil' > .git")
    assert done.returncode != 0
    assert (box.work / ".git").read_text().startswith(f"gitdir: {box.outside}")


@pytest.mark.ours
def test_root_as_write_tree_is_an_error(box: SrtBox) -> None:
    box.settings(files={"allowWrite": ["/"]})
    done = box.shell("true")
    assert done.returncode == 78 and "opens the whole machine" in done.stderr


@pytest.mark.ours
def test_deny_read_of_the_root_with_carve_outs(box: SrtBox) -> None:
    opened = ["/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache"]
    opened = [path for path in opened if os.path.exists(path)]
    box.settings(files={"denyRead": ["/"], "allowRead": opened, "allowWrite": ["."]})
    (box.outside / "f").write_text("ORIGINAL")
    box.written("mine")
    done = box.shell(f"cat mine; ls /; cat {box.outside}/f")
    assert done.returncode != 0 and done.stdout.startswith("ORIGINAL"), done
    # What was opened, what every view has of its own, and where the workspace is; wherever the test has its files.
    expected = {path.split("/")[1] for path in (*opened, str(box.work))} | {"dev", "proc", "run", "sys", "tmp"}
    shown = set(done.stdout.removeprefix("ORIGINAL").split())
    assert {"usr", box.work.parts[1]} <= shown <= expected
    assert set(os.listdir("/")) - expected, "the control: the host has more"
    assert "ORIGINAL" not in done.stdout.removeprefix("ORIGINAL")


@pytest.mark.ours
def test_socket_of_the_host_is_reached_by_its_rule_only(box: SrtBox) -> None:
    script = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); print(s.recv(99).decode())"
    arguments = ("-s", str(box.settings_path), "python3", "-c", script, str(box.world.host_socket))
    refused = box.srt(*arguments)
    assert refused.returncode == 1 and "PermissionError" in refused.stderr
    box.settings({"allowUnixSockets": [str(box.world.host_socket)]})
    assert box.srt(*arguments).stdout.startswith("host unix socket")


@pytest.mark.ours
def test_listed_socket_opens_no_other(box: SrtBox) -> None:
    """Beside the listed one, in a readable directory and in the writable workspace."""
    directory = Path(tempfile.mkdtemp(prefix="mb-"))
    listed, other = f"{directory}/listed", f"{directory}/other"
    try:
        directory.chmod(0o755)
        command = ["/usr/bin/python3", "-c", SOCKET_SERVER, listed, other, "here"]
        server = box.world.popen(command, cwd=box.work, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            assert server.stdout is not None and server.stdout.readline() == b"up\n"
            connect = ["/usr/bin/python3", "-c", SOCKET_CLIENT, listed, other, "here"]
            assert box.world.run(connect, cwd=box.work).stdout.split() == ["ok", "ok", "ok"]
            arguments = ("-s", str(box.settings_path), *connect)
            refused = box.srt(*arguments)
            assert refused.stdout.split() == ["EPERM", "EPERM", "EPERM"], refused
            box.settings({"allowUnixSockets": [listed]})
            done = box.srt(*arguments)
            assert done.stdout.split() == ["ok", "EACCES", "EACCES"], done
        finally:
            server.communicate(timeout=60)
    finally:
        shutil.rmtree(directory)
