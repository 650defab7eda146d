"""F: a reviewed workspace from inside: no way to the host's tree but by the overlay, and none to what is hidden."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest
from escape_box import Box

from membrane.changes import store

pytestmark = pytest.mark.needs_kernel("overlayfs in a user namespace")
REVIEW = "--review=one"
SECRET, LIVE = "SECRET of the host", "LIVE of the host"
RULES = {"presets": [], "ignore": [".env", "secrets/", "*.key"], "readonly": ["*.ro"]}


@pytest.fixture
def reviewed(box: Box) -> Box:
    box.policy(**RULES)
    for name in (".env", "secrets/file", "sub/deep/a.key"):
        box.file(name, SECRET)
    for name in ("live", "sub/live", "fixed.ro"):
        box.file(name, LIVE)
    return box


def state_of(root: Path) -> dict[str, Any]:
    found = {}
    for path in sorted([root, *root.rglob("*")]):
        details = os.lstat(path)
        content = path.read_bytes() if stat.S_ISREG(details.st_mode) else b""
        found[str(path.relative_to(root))] = (details.st_mode, details.st_ino, details.st_ctime_ns, content)
    return found


# Every name by which a process can reach a directory: its own, those of the kernel's links, each mount.
ALIASES = """
HERE = os.getcwd()
held = os.open(".", os.O_RDONLY)
mounts = [line.split()[4] for line in open("/proc/self/mountinfo")]
pids = [each for each in os.listdir("/proc") if each.isdigit()]
roots = [f"/proc/{each}/root" for each in (*pids, "self", "thread-self")]
aliases = ["."] + [f"{root}{HERE}" for root in roots] + [f"/proc/{each}/cwd" for each in (*pids, "self")]
aliases += [f"/proc/self/fd/{held}", f"/proc/self/task/{os.getpid()}/cwd", *{"/", *mounts}, "/proc/1/cwd"]
aliases += [f"{each}/{up}{HERE}" for each in mounts for up in ("..", "../..")]
"""


@pytest.mark.parametrize("view", ["project", "host"])
def test_F90_no_alias_of_the_workspace_writes_the_host(reviewed: Box, view: str) -> None:
    script = (
        ALIASES
        + """
reached = 0
for number, alias in enumerate(aliases):
    for name in ("live", "sub/live"):
        try:
            fd = os.open(f"{alias}/{name}", os.O_WRONLY | os.O_TRUNC)
        except OSError:
            continue
        os.write(fd, b"evil"); os.close(fd); reached += 1
    try:
        open(f"{alias}/evil-{number}", "w").close()
        os.rename(f"{alias}/evil-{number}", f"{alias}/evil")
    except OSError:
        pass
attempt("unlink", lambda: os.unlink("live"))
attempt("chmod", lambda: os.chmod("sub", 0o777))
attempt("xattr", lambda: os.setxattr(".", b"user.evil", b"x"))
attempt("link", lambda: os.link("sub/live", "linked") or os.truncate("linked", 0))
say("reached", reached > 3)
"""
    )
    before = state_of(reviewed.workspace)
    assert reviewed.attack(script, REVIEW, f"--view={view}") == {
        **dict.fromkeys(("unlink", "chmod", "xattr", "link"), "ok"),
        "reached": True,
    }
    assert state_of(reviewed.workspace) == before
    # The control: in a live workspace the same script does all of it.
    reviewed.attack(script, "--live")
    assert not (reviewed.workspace / "live").exists()
    assert (reviewed.workspace / "sub" / "live").read_bytes() == b""


def test_F90_no_file_of_the_view_is_one_of_the_host_beside_the_overlay(reviewed: Box) -> None:
    """By content: what of the workspace stands anywhere in the view is below the workspace's own place."""
    script = """
HERE = os.getcwd()
found = []
for root, directories, names in os.walk("/"):
    directories[:] = [each for each in directories if os.path.join(root, each) not in ("/proc", "/sys", "/usr", "/etc")]
    for name in names:
        path = os.path.join(root, name)
        try:
            if not os.path.islink(path) and os.path.isfile(path) and 16 <= os.path.getsize(path) <= 18:
                text = open(path).read()
                if text.endswith(" of the host"):
                    found.append([path.removeprefix(HERE), text])
        except (OSError, UnicodeDecodeError):
            continue
say("found", sorted(found))
"""
    script += f'say("state", os.path.exists({str(reviewed.state / "changes")!r}))'
    expected = [["/fixed.ro", LIVE], ["/live", LIVE], ["/sub/live", LIVE]]
    assert reviewed.attack(script, REVIEW) == {"found": expected, "state": False}
    found = reviewed.control(script.replace('os.walk("/")', "os.walk(HERE)"))  # the control: the search finds secrets
    assert [text for _path, text in found["found"]].count(SECRET) == 3
    assert found["state"]


HIDDEN = (
    ALIASES
    + """
ATTRIBUTES = ("opaque", "redirect", "metacopy", "whiteout", "origin", "impure", "overlay.opaque", "overlay.redirect")
def anywhere(name):
    for alias in aliases:
        try:
            text = open(f"{alias}/{name}").read()
        except OSError:
            continue
        if "SECRET" in text:
            return alias
    return "hidden"
def all_hidden(when):
    say(when, [anywhere(each) for each in (".env", "secrets/file", "sub/deep/a.key")])
def quietly(action):
    try:
        action()
    except OSError:
        pass
all_hidden("at once")
# Take the whiteouts' names, and give them back.
for name in (".env", "sub/deep/a.key"):
    open(name, "w").close(); os.unlink(name)
say("listed", os.listdir("secrets")); os.rmdir("secrets")
os.mkdir("secrets"); say("own directory", os.listdir("secrets")); os.rmdir("secrets")
all_hidden("made and removed")
# Attributes that mean something to overlayfs, where they are let through.
for place in (".", "sub", "sub/deep", "live"):
    for name in ATTRIBUTES:
        for value in (b"y", b"/secrets", b"/.env", b"x", b""):
            for prefix in ("user.overlay.", "trusted.overlay.", "user.overlay.overlay."):
                quietly(lambda: os.setxattr(place, prefix + name, value))
quietly(lambda: os.mkdir("redirected"))
for value in (b"/secrets", b"secrets"):
    quietly(lambda: os.setxattr("redirected", "user.overlay.redirect", value))
all_hidden("attributes")
say("redirected", os.listdir("redirected"))
# Other ways to a name: renames of what is above, whiteouts of our own, exchange, handles.
quietly(lambda: os.rename("sub/deep", "sub/other"))
quietly(lambda: os.rename("sub", "elsewhere"))
quietly(exchange("sub", "redirected"))
quietly(lambda: os.mknod("own", 0o20600, os.makedev(0, 0)))
quietly(lambda: os.rename("own", ".env"))
quietly(lambda: syscall((316, 276), AT_FDCWD, b"live", AT_FDCWD, b"white", 4))  # RENAME_WHITEOUT
quietly(lambda: os.link(".env", "linked"))
all_hidden("renamed")
handle = ctypes.create_string_buffer(b"\\x80\\0\\0\\0" + b"\\0" * 132)
mount = ctypes.c_int()
attempt("handle", lambda: syscall((304, 265), ctypes.c_long(held), handle, ctypes.c_long(0x80000)))
"""
)


def test_F91_nothing_that_is_done_inside_shows_a_hidden_name_also_not_in_the_next_run(reviewed: Box) -> None:
    hidden = ["hidden"] * 3
    first = reviewed.attack(HIDDEN, REVIEW)
    expected = dict.fromkeys(("at once", "made and removed", "attributes", "renamed"), hidden)
    assert first == {**expected, "listed": [], "own directory": [], "redirected": [], "handle": "EPERM"}
    look = (
        HIDDEN.partition("# Take")[0]
        + 'say("listed", sorted(os.listdir("redirected")) if os.path.isdir("redirected") else [])'
    )
    for _ in range(2):
        assert reviewed.attack(look, REVIEW) == {"at once": hidden, "listed": []}
    assert "SECRET" in (reviewed.workspace / ".env").read_text()
    # The control: without the rules each of them is read.
    reviewed.policy(presets=[])
    assert reviewed.attack(look, "--review=two")["at once"] == [".", ".", "."]


def test_F92_attributes_of_a_layer_in_the_workspace_itself_open_nothing(reviewed: Box) -> None:
    """A command in a live run sets what overlayfs would obey in the lowest layer."""
    plant = """
os.mkdir("planted")
for name, value in (("redirect", b"/secrets"), ("metacopy", b""), ("opaque", b"x")):
    attempt(name, lambda: os.setxattr("planted", "user.overlay." + name, value))
open("file", "w").close()
attempt("file", lambda: os.setxattr("file", "user.overlay.redirect", b"/.env"))
attempt("copy", lambda: os.setxattr("file", "user.overlay.metacopy", b""))
"""
    assert set(reviewed.attack(plant, "--live").values()) == {"ok"}
    script = """
attempt("planted", lambda: os.listdir("planted") and "listed")
attempt("file", lambda: open("file").read() or "empty")
attempt("touch", lambda: open("file", "a").close())
attempt("again", lambda: open("file").read() or "empty")
"""
    for _ in range(2):
        found = reviewed.attack(script, REVIEW)
        assert found["planted"] in ("ok", [], "EIO", "EPERM", "ENOENT")
        assert "SECRET" not in str(found)


def test_F93_the_mounts_stay_as_they_are(reviewed: Box) -> None:
    script = """
HERE = os.getcwd().encode()
def mount(source, target, kind, flags, data=None):
    return lambda: syscall((165, 40), source, target, kind, flags, data or 0)
attempt("umount", lambda: syscall((166, 39), HERE, 2))
attempt("remount", mount(b"none", HERE, b"none", 32))
attempt("bind", mount(HERE, b"/tmp", b"none", 4096))
attempt("overlay", mount(b"overlay", b"/tmp", b"overlay", 0, b"lowerdir=/usr:" + HERE))
attempt("move", mount(HERE, b"/tmp", b"none", 8192))
attempt("tree", lambda: syscall(428, AT_FDCWD, HERE, 1))
attempt("namespaces", lambda: syscall((272, 97), 0x10020000))
attempt("chroot", lambda: os.chroot("."))
"""
    refused = reviewed.attack(script, REVIEW)
    assert set(refused.values()) <= {"EPERM", "ENOSYS"}
    assert len(refused) == 8


def test_F94_a_frozen_layer_is_never_written_again(reviewed: Box) -> None:
    script = """
for name in ("live", "new"):
    attempt(name, write(name, "%s"))
attempt("gone", lambda: os.path.exists("sub/live") and os.unlink("sub/live"))
attempt("directory", lambda: os.makedirs("made/deep", exist_ok=True))
"""
    assert set(reviewed.attack(script % "first", REVIEW).values()) <= {"ok", False}
    done = reviewed.run("true", options=(REVIEW, "-q"))
    assert done.returncode == 0
    with store.take(str(reviewed.state), "one", "a test") as held:
        held.checkpoint("first")
        frozen = Path(held.uppers[0])
    before = state_of(frozen)
    more = script % "second" + 'import shutil\nshutil.rmtree("made"); os.chmod("new", 0o600); os.mkdir("made")\n'
    reviewed.attack(more, REVIEW)
    assert state_of(frozen) == before
    assert (frozen / "new").read_text() == "first"


def test_F95_set_id_bits_and_devices_are_nothing_inside(reviewed: Box) -> None:
    script = """
import shutil
shutil.copy("/usr/bin/id", "id")
attempt("setuid", lambda: os.chmod("id", 0o4755))
attempt("device", lambda: os.mknod("null", 0o20666, os.makedev(1, 3)))
say("options", [line.split()[5] for line in open("/proc/self/mountinfo") if line.split()[4] == os.getcwd()][-1])
"""
    found = reviewed.attack(script, REVIEW)
    assert found["setuid"] in ("EPERM", "EACCES") and found["device"] in ("EPERM", "EACCES")
    assert {"nosuid", "nodev"} <= set(found["options"].split(","))


def test_F96_what_the_host_makes_under_a_pattern_stays_hidden_for_who_begins_later(reviewed: Box) -> None:
    """By the next run all of it is hidden by name, also in directories that are new."""
    assert reviewed.run("true", options=(REVIEW, "-q")).returncode == 0
    reviewed.file("fresh/late.key", SECRET)
    reviewed.file("late.key", SECRET)
    script = 'for name in ("fresh/late.key", "late.key", "live"): attempt(name, lambda: open(name).read() or "empty")'
    assert reviewed.attack(script, REVIEW) == {"fresh/late.key": "empty", "late.key": "empty", "live": LIVE}


def test_F97_another_name_of_a_hidden_file_is_hidden_too(reviewed: Box) -> None:
    os.link(reviewed.workspace / ".env", reviewed.workspace / "other")
    os.symlink("sub/secret", reviewed.workspace / "link.key")
    reviewed.file("sub/secret", SECRET)
    names = ("other", ".env", "sub/secret", "live")
    script = f'for name in {names!r}: attempt(name, lambda: open(name).read() or "empty")\n'
    assert reviewed.attack(script, REVIEW) == {
        "other": "EACCES",
        ".env": "empty",
        "sub/secret": "EACCES",
        "live": LIVE,
    }
    reviewed.policy(presets=[])
    assert set(reviewed.attack(script, "--review=two").values()) == {SECRET, LIVE}  # the control
