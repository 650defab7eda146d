"""F: links and directories that choose what a mask covers, so that the masks after it cover nothing."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from escape_box import Box, inside, until

RULES = {"ignore": ["*.env"], "readonly": ["*.ro", "rodir/"]}
ANSWER = """
places = {"here": os.open(".", os.O_RDONLY), "sub": os.open("sub", os.O_RDONLY)}
def answer(line):
    return str(attempt("", lambda: os.close(os.open(line.split()[1], os.O_RDONLY, dir_fd=places[line.split()[0]]))))
"""


@pytest.mark.parametrize("target", ["/run/.membrane", "/run"])
def test_F42_a_link_of_an_earlier_run_uncovers_no_other_name(box: Box, target: str) -> None:
    """The masks are made of files below /run: a link that has that covered would leave the later ones unmade."""
    box.policy(**RULES)
    for name in ("0.env", "2.env", "sub/3.env", "control"):
        box.file(name, "SECRET")
    os.symlink(target, box.workspace / "1.env")
    names = ("control", "0.env", "1.env", "2.env", "sub/3.env")
    script = "".join(f"attempt({name!r}, read({name!r}))\n" for name in names)
    assert box.attack(script) == {name: "ok" if name == "control" else "empty" for name in names}


@pytest.mark.parametrize("link", ["x.env", ".vscode"])
def test_F42_a_link_to_the_root_does_not_divert_what_is_hidden_later(box: Box, link: str) -> None:
    """Whoever enters the mount namespace later starts at the topmost mount of its root."""
    box.policy(**RULES)
    (box.workspace / "sub").mkdir()
    os.symlink("/", box.workspace / link)
    with inside(box, ANSWER) as ask:
        assert ask("here late.env") == "ENOENT"
        for name in ("late", "late.env"):
            (box.workspace / name).write_text("SECRET")
        assert until(lambda: ask("here late.env"), "EACCES") == "EACCES"
        assert ask("here late") == "ok"


@pytest.mark.guard_alone
@pytest.mark.parametrize(
    ("link", "target", "place"),
    [
        ("x.env", ".", "here"),
        ("x.ro", ".", "here"),
        ("x.env", "sub", "sub"),
        ("x.ro", "sub", "sub"),
        ("x.ro", "/", "here"),
    ],
)
def test_F48_a_link_made_inside_stops_no_later_mask(box: Box, link: str, target: str, place: str) -> None:
    """Covered were what the link leads to, a command that is in there would see what appears there."""
    box.policy(**RULES)
    (box.workspace / "sub").mkdir()
    directory = box.workspace / ("sub" if place == "sub" else "")
    with inside(box, f"os.symlink({target!r}, {link!r})\n" + ANSWER) as ask:
        assert ask(f"{place} late.env") == "ENOENT"
        for name in ("late", "late.env"):
            (directory / name).write_text("SECRET")
        assert until(lambda: ask(f"{place} late.env"), "EACCES") == "EACCES"
        assert ask(f"{place} late") == "ok"


@pytest.mark.guard_alone
def test_F48_a_mask_reaches_whoever_is_below_a_read_only_mount(box: Box) -> None:
    """The command holds the directory open before it is bound onto itself."""
    box.policy(**RULES)
    script = """
os.mkdir("rodir"); places = {"rodir": os.open("rodir", os.O_RDONLY)}
say("bound", wait_for(lambda: " " + os.getcwd() + "/rodir " in open("/proc/self/mountinfo").read()))
def answer(line):
    if line == "bound":
        return _results["bound"]
    return str(attempt("", lambda: os.close(os.open(line, os.O_RDONLY, dir_fd=places["rodir"]))))
"""
    with inside(box, script) as ask:
        assert ask("bound") == "ok" and ask("late.env") == "ENOENT"
        for name in ("late", "late.env"):
            (box.workspace / "rodir" / name).write_text("SECRET")
        assert until(lambda: ask("late.env"), "EACCES") == "EACCES"
        assert ask("late") == "ok"


def test_F42_a_hidden_link_hides_what_it_leads_to(box: Box) -> None:
    """What the rules above leave alone: links of the start to files, and to directories below."""
    box.policy(**RULES)
    box.file("conf/real", "SECRET")
    box.file("sub/file", "SECRET")
    os.symlink("conf/real", box.workspace / "1.env")
    os.symlink("sub", box.workspace / "2.env")
    names = ("1.env", "conf/real", "2.env", "sub/file")
    found = box.attack("".join(f"attempt({name!r}, read({name!r}))\n" for name in names))
    assert found == {"1.env": "EACCES", "conf/real": "EACCES", "2.env": "EACCES", "sub/file": "EACCES"}


WALK = """
def answer(line):
    found = []
    for here, _directories, files in os.walk("."):
        for name in files:
            try:
                with open(os.path.join(here, name), "rb") as file:
                    found += [os.path.join(here, name)] if b"SECRET" in file.read() else []
            except OSError:
                pass
    return " ".join(found)
"""


@pytest.mark.guard_alone
@pytest.mark.parametrize(
    ("rule", "name"),
    [
        (".mcp.json", ".mcp.json"),
        ("*.kdbx", ".git/x.kdbx"),
        (".env", ".gemini/.env"),  # hidden by default
        (".vscode/", "sub/.vscode/deep/x"),
        ("/sub/.vscode/deep/x", "sub/.vscode/deep/x"),  # not by its new name
        (".gitmodules", ".gitmodules"),  # what is in it is benign: it keeps its name
    ],
)
def test_F146_a_name_that_is_hidden_and_protected_is_read_by_no_other_name(box: Box, rule: str, name: str) -> None:
    """What the host makes under it loses its name, and has none that a rule knows."""
    subprocess.run(["git", "init", "-q"], cwd=box.workspace, check=True)
    box.policy(ignore=[rule])
    (box.workspace / "sub").mkdir()
    content = "# SECRET\n"
    made = box.home / "made"
    made.mkdir()
    above, _, below = name.partition(".vscode/")
    (made / "deep").mkdir()
    (made / "deep/x").write_text(content)
    with inside(box, WALK) as ask:
        assert ask("") == ""
        (box.workspace / "plain").write_text(content)
        assert ask("") == "./plain"
        if below:
            os.rename(made, box.workspace / above / ".vscode")
        else:
            (box.workspace / name).parent.mkdir(exist_ok=True)
            (box.workspace / name).write_text(content)

        def seen() -> str:
            gone = name == ".gitmodules" or not (box.workspace / name).exists()
            return ask("") if gone else "not judged yet"

        assert until(seen, "./plain") == "./plain"
        assert until(seen, "./plain") == "./plain"


STREAM = """
def append():
    fd = os.open("/proc/self/fd/0", os.O_WRONLY | os.O_APPEND)
    os.write(fd, b"EVIL")
say("read", sys.stdin.readline())
attempt("append", append)
"""


@pytest.mark.parametrize("options", [(), ("--containers",), ("--review=one",), ("--backend=landlock",)])
def test_F147_a_file_that_is_stdin_is_no_way_past_the_view(box: Box, tmp_path: Path, options: tuple[str, ...]) -> None:
    """``/proc/self/fd/0`` opens it anew on the mount of the host, where nothing is read-only."""
    box.policy(readonly=["*.ro"], ignore=["*.env"])
    # ``ordinary`` is the control: a file that the command may write by its name.
    files = {name: box.file(name, f"first\nof {name}\n") for name in ("x.ro", "x.env", ".mcp.json", "ordinary")}
    files["outside"] = tmp_path / "outside"
    files["outside"].write_text("first\nof outside\n")
    written = {}
    for name, path in files.items():
        before = path.read_text()
        with path.open() as stream:
            os.lseek(stream.fileno(), len("first\n"), os.SEEK_SET)
            said = box.attack(STREAM, *options, stdin=stream)
        assert said["read"] == f"of {name}\n", said  # at the offset where the caller was
        written[name] = path.read_text() != before
    # On the host's mount root's files are another user's, but for the backend that has no ids of its own.
    ordinary = options != ("--review=one",) and (os.geteuid() != 0 or options == ("--backend=landlock",))
    assert written == {**dict.fromkeys(files, False), "ordinary": ordinary}
