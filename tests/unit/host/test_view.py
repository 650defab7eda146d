"""The view as the command finds it: built in a user and mount namespace of a child, asked from inside."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import stat
import subprocess
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from membrane.host import syscalls as sc
from membrane.host import view
from membrane.plan.devices import operations
from membrane.plan.model import Bind, DeviceFact, Devices, Directory, File, HostFacts, Mask, Overlay, Symlink, Tmpfs
from membrane.plan.mounts import MASK_SOURCE
from membrane.policy.model import DeviceRule, Origin, Policy

pytestmark = pytest.mark.needs_kernel("user namespaces")

HOME, WORK = "/home/dev", "/home/dev/project"


def inside(ops: tuple[object, ...], ask: Callable[[], Any], rows: tuple[tuple[str, str], ...] = ()) -> Any:
    """What ``ask`` returns in the view made of ``ops``, with ``rows`` bound in the workspace.

    The interpreter's own files may not be in the view: everything is imported before the fork.
    """
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read)
            uid, gid = os.geteuid(), os.getegid()
            sc.unshare(sc.CLONE_NEWUSER | sc.CLONE_NEWNS)
            for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
                Path("/proc/self", name).write_text(text)
            answer: object
            try:
                view.build(ops, {}, clone=True)  # type: ignore[arg-type]
                masks = view.Masks()
                for row in rows:
                    view.workspace_operation(masks, *row)
                masks.close()
                view.seal(ops)  # type: ignore[arg-type]
            except OSError as error:
                answer = ["failed", error.errno, str(error.filename)]
            else:
                sc.drop_capabilities()  # as the command: what its uid owns it may still change
                answer = ask()
        except BaseException:
            answer = ["broken", traceback.format_exc()]
        with os.fdopen(write, "w") as out:
            json.dump(answer, out)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as results:
        answer = json.load(results)
    os.waitpid(pid, 0)
    assert answer is None or not (isinstance(answer, list) and answer[:1] == ["broken"]), answer[1]
    return answer


def result(action: Callable[[], object]) -> str:
    """ "ok", or the name of the errno."""
    try:
        action()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "ok"


def touch(path: str) -> Callable[[], object]:
    return lambda: os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))


def read(path: str) -> Callable[[], object]:
    return lambda: os.close(os.open(path, os.O_RDONLY))


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """Host directories: a workspace, a home store, a read-only tree, and one that nobody names."""
    for name in ("work/src", "store", "tree/bin", "outside"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "work" / ".env").write_text("secret")
    (tmp_path / "work" / "plain").write_text("plain")
    (tmp_path / "tree" / "bin" / "tool").write_text("tool")
    return tmp_path


def plan(host: Path, *more: object) -> tuple[object, ...]:
    """The shape of a real plan: system, scratch, home, workspace, then ``more`` (masks)."""
    return (
        Bind("/usr", "/usr", make=True),
        Directory("/var"),
        Symlink("/bin", "/usr/bin"),
        Bind("/proc", "/proc", make=True),  # a new one needs a pid namespace
        Devices(),
        Tmpfs("/tmp", 0o1777),
        Tmpfs("/run", 0o755),
        Tmpfs(MASK_SOURCE, 0o755),
        Bind(f"{host}/store", HOME, writable=True, own=True, make=True),
        Bind(f"{host}/work", WORK, writable=True, own=True, make=True, origin="workspace"),
        *more,
    )


def test_only_what_is_named_is_there(host: Path) -> None:
    shown = inside(plan(host), lambda: [sorted(os.listdir("/")), os.listdir(WORK) != [], os.path.exists(str(host))])
    assert shown == [["bin", "dev", "home", "proc", "run", "tmp", "usr", "var"], True, False]


def test_host_trees_are_read_only_and_the_workspace_is_not(host: Path) -> None:
    answers = inside(
        plan(host, Bind(f"{host}/tree", "/tree", make=True)),
        lambda: [result(touch(path)) for path in (f"{WORK}/new", f"{HOME}/new", "/tmp/new", "/tree/new", "/new")],
    )
    assert answers == ["ok", "ok", "ok", "EROFS", "EROFS"]
    assert (host / "work" / "new").exists() and not (host / "tree" / "new").exists()


def test_every_mount_is_nosuid_and_nodev_but_the_device_nodes(host: Path) -> None:

    def flags() -> list[list[str]]:
        return [[where, str(os.statvfs(where).f_flag)] for where in ("/usr", HOME, WORK, "/tmp", "/run", "/dev", "/")]

    for where, flag in inside(plan(host), flags):
        assert int(flag) & os.ST_NOSUID and int(flag) & os.ST_NODEV, where
    assert (
        inside(plan(host), lambda: [result(read(f"/dev/{name}")) for name in ("null", "zero", "urandom")]) == ["ok"] * 3
    )


def test_a_device_node_can_be_written_and_its_mode_can_not(host: Path) -> None:
    """A root without ids of its own is uid 0 inside too, whom the nodes belong to."""
    shown = Bind("/dev/zero", "/dev/shown", writable=True, device=True, make=True)
    paths = [f"/dev/{name}" for name in view.DEVICE_NODES if name != "tty"] + ["/dev/shown"]

    def opened() -> list[list[object]]:
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC
        read_only = [bool(os.statvfs(path).f_flag & os.ST_RDONLY) for path in paths]
        return [[result(lambda path=path: os.close(os.open(path, flags))) for path in paths], read_only]

    assert inside(plan(host, shown), opened) == [["ok"] * len(paths), [True] * len(paths)]
    if os.geteuid() == 0:  # a node of our own
        os.mknod(host / "node", stat.S_IFCHR | 0o600, os.makedev(1, 3))
        own = shown.replace(source=str(host / "node"))
        change = lambda: result(lambda: os.chmod("/dev/shown", 0o666))  # noqa: E731
        assert inside(plan(host, own), change) == "EROFS" and os.stat(host / "node").st_mode & 0o777 == 0o600
        assert inside(plan(host, own.replace(device=False)), change) == "ok"  # the control
        assert os.stat(host / "node").st_mode & 0o777 == 0o666


def test_a_mask_can_be_neither_read_nor_written_nor_opened_up(host: Path) -> None:
    """Its file belongs to the command's uid: only the read-only mount keeps its mode."""

    def attempts() -> list[str]:
        path = f"{WORK}/.env"
        return [
            result(action)
            for action in (
                read(f"{WORK}/plain"),
                lambda: os.chmod(f"{WORK}/plain", 0o600),
                read(path),
                lambda: os.chmod(path, 0o644),
                lambda: os.truncate(path, 0),
                lambda: os.unlink(path),
                lambda: os.rename(path, f"{WORK}/other"),
            )
        ]

    wanted = ["ok", "ok", "EACCES", "EROFS", "EACCES", "EBUSY", "EBUSY"]
    assert inside(plan(host, Mask(f"{WORK}/.env", False)), attempts) == wanted
    for kind in ("Mask", "MaskName"):
        assert inside(plan(host), attempts, ((kind, f"{WORK}/.env"),)) == wanted
    assert (host / "work" / ".env").read_text() == "secret"


@pytest.mark.parametrize("kind", ["Empty", "EmptyName", "EmptyFile"])
def test_what_is_empty_can_be_read_and_nothing_else(host: Path, kind: str) -> None:
    (host / "work" / "vault").mkdir()
    (host / "work" / "vault" / "deep").write_text("secret")

    def attempts() -> list[Any]:
        path = f"{WORK}/.env"
        answers: list[Any] = [Path(path).read_text(), oct(os.stat(path).st_mode), os.listdir(f"{WORK}/vault")]
        return answers + [
            result(action)
            for action in (
                lambda: os.close(os.open(path, os.O_WRONLY)),
                lambda: os.chmod(path, 0o644),
                lambda: os.truncate(path, 0),
                lambda: os.unlink(path),
                lambda: os.link(path, f"{WORK}/other"),
                lambda: os.chdir(f"{WORK}/vault"),
                touch(f"{WORK}/vault/new"),
                read(f"{WORK}/vault/deep"),
                lambda: os.chmod(f"{MASK_SOURCE}/empty-file", 0o644),
            )
        ]

    rows = ((kind, f"{WORK}/.env"), (kind, f"{WORK}/vault"))
    refused = ["EACCES", "EROFS", "EACCES", "EBUSY", "EXDEV", "ok", "EROFS", "ENOENT", "EROFS"]
    assert inside(plan(host), attempts, rows) == ["", "0o100444", [], *refused]
    assert inside(plan(host), attempts)[0] == "secret"  # the control
    assert (host / "work" / "vault" / "deep").read_text() == "secret"


@pytest.mark.parametrize("said_directory", [True, False])
@pytest.mark.parametrize("name", [".env", "src"])
def test_a_mask_fits_what_is_there_whatever_the_plan_says(host: Path, name: str, said_directory: bool) -> None:
    (host / "work" / "src" / "hidden").write_text("x")
    ops = plan(host, Mask(f"{WORK}/{name}", said_directory))

    def look() -> list[Any]:
        mode = os.stat(f"{WORK}/{name}").st_mode
        return [mode & 0o777, result(read(f"{WORK}/src/hidden"))]

    mode, hidden = inside(ops, look)
    assert mode == 0
    assert (hidden == "ok") == (name != "src")


def test_a_mask_over_nothing_is_no_error(host: Path) -> None:
    assert inside(plan(host, Mask("/etc/nothing", False)), lambda: "built") == "built"


def test_a_file_is_bound_over_or_made(host: Path) -> None:
    ops = plan(
        host,
        Bind(f"{host}/tree", "/tree", make=True),
        File("/tree/bin/tool", b"ours", bind=True),
        File("/run/made/here", b"new"),
    )
    assert inside(ops, lambda: [Path("/tree/bin/tool").read_text(), Path("/run/made/here").read_text()]) == [
        "ours",
        "new",
    ]
    assert (host / "tree" / "bin" / "tool").read_text() == "tool"


def test_an_optional_tree_that_vanished_is_left_out_and_another_is_an_error(host: Path) -> None:
    gone = f"{host}/gone"
    assert inside(plan(host, Bind(gone, "/gone", make=True, optional=True)), lambda: os.path.exists("/gone")) is False
    assert inside(plan(host, Bind(gone, "/gone", make=True)), lambda: None)[:2] == ["failed", errno.ENOENT]


def test_without_make_no_mount_point_appears_in_a_host_tree(host: Path) -> None:
    ops = plan(host, Bind(f"{host}/tree", f"{WORK}/new", make=False))
    assert inside(ops, lambda: None)[:2] == ["failed", errno.ENOENT]
    assert not (host / "work" / "new").exists()


# ---------------------------------------------------------------- links that an earlier run left in the home store


def test_a_link_in_the_home_store_makes_nothing_on_the_host(host: Path) -> None:
    """The host's root is still in reach while the view is built (CVE-style: agent-made links decide mounts)."""
    (host / "store" / ".cargo").symlink_to(host / "outside")
    ops = plan(host, Bind(f"{host}/tree/bin", f"{HOME}/.cargo/bin", own=True, optional=True, make=True))
    assert inside(ops, lambda: os.path.islink(f"{HOME}/.cargo")) is True  # a toolchain: left out
    assert list((host / "outside").iterdir()) == []


def test_a_link_in_the_place_of_the_mount_point_itself_is_not_followed(host: Path) -> None:
    (host / "store" / ".claude").symlink_to(host / "outside")
    ops = plan(host, Bind(f"{host}/tree", f"{HOME}/.claude", writable=True, own=True, make=True))
    assert inside(ops, lambda: None)[:2] == ["failed", errno.ELOOP]
    assert list((host / "outside").iterdir()) == []


def test_a_link_above_the_workspace_in_the_home_store_is_an_error_and_makes_nothing(host: Path) -> None:
    (host / "store" / "all").symlink_to(host / "outside")
    ops = (*plan(host), Bind(f"{host}/work", f"{HOME}/all/new/project", writable=True, own=True, make=True))
    assert inside(ops, lambda: None)[:2] == ["failed", errno.ELOOP]
    assert list((host / "outside").iterdir()) == []


def test_a_dangling_link_in_the_home_store_makes_nothing_and_ends(host: Path) -> None:
    (host / "store" / ".cargo").symlink_to(host / "outside" / "absent")
    ops = plan(host, Bind(f"{host}/tree/bin", f"{HOME}/.cargo/bin", own=True, optional=True, make=True))
    assert inside(ops, lambda: "built") == "built"
    assert list((host / "outside").iterdir()) == []


# ---------------------------------------------------------------- inside the workspace


def test_a_pinned_directory_can_not_be_renamed_but_written(host: Path) -> None:
    def attempts() -> list[str]:
        return [
            result(lambda: os.rename(f"{WORK}/src", f"{WORK}/moved")),
            result(lambda: os.rmdir(f"{WORK}/src")),
            result(touch(f"{WORK}/src/new")),
        ]

    assert inside(plan(host), attempts)[0] == "ok"  # the control
    os.rename(host / "work" / "moved", host / "work" / "src")
    (host / "work" / "src" / "new").unlink(missing_ok=True)
    assert inside(plan(host), attempts, (("Pin", f"{WORK}/src"),)) == ["EBUSY", "EBUSY", "ok"]


def test_a_read_only_name_can_be_read_only(host: Path) -> None:
    def attempts() -> list[str]:
        path = f"{WORK}/plain"
        return [
            result(action)
            for action in (
                read(path),
                lambda: os.close(os.open(path, os.O_WRONLY)),
                lambda: os.chmod(path, 0o777),
                lambda: os.unlink(path),
                lambda: os.rename(path, path + "2"),
                lambda: os.link(path, f"{WORK}/second"),
            )
        ]

    answers = inside(plan(host), attempts, (("ReadOnly", f"{WORK}/plain"),))
    assert answers == ["ok", "EROFS", "EROFS", "EBUSY", "EBUSY", "EXDEV"]


def test_a_read_only_link_can_not_be_replaced_and_its_target_is_read_only(host: Path) -> None:
    (host / "work" / "link").symlink_to("plain")

    def attempts() -> list[str]:
        return [
            result(lambda: os.unlink(f"{WORK}/link")),
            result(lambda: os.close(os.open(f"{WORK}/link", os.O_WRONLY))),
            os.readlink(f"{WORK}/link"),
        ]

    assert inside(plan(host), attempts, (("ReadOnly", f"{WORK}/link"),)) == ["EBUSY", "EROFS", "plain"]


def test_a_masked_link_hides_what_it_leads_to(host: Path) -> None:
    (host / "work" / "link").symlink_to("plain")

    def look() -> list[Any]:
        return [os.stat(f"{WORK}/link").st_mode & 0o777, os.stat(f"{WORK}/plain").st_mode & 0o777]

    for kind in ("Mask", "MaskName"):  # the latter where the link has come since the scan
        assert inside(plan(host), look, ((kind, f"{WORK}/link"),)) == [0, 0]


def test_masks_of_files_and_directories_take_turns(host: Path) -> None:
    for name in ("one", "two"):
        (host / "work" / name).mkdir()
        (host / "work" / name / "file").write_text("x")
        (host / "work" / name / "directory").mkdir()
    names = ["one/file", "two/directory", "two/file", "one/directory"]

    def look() -> list[Any]:
        return [os.getcwd(), *(os.stat(f"{WORK}/{name}").st_mode & 0o777 for name in names)]

    assert inside(plan(host), look) == ["/", 0o644, 0o755, 0o644, 0o755]
    for kind in ("Mask", "MaskName"):
        assert inside(plan(host), look, tuple((kind, f"{WORK}/{name}") for name in names)) == ["/", 0, 0, 0, 0]


def test_a_mask_that_can_not_be_made_is_an_error_and_not_an_open_file(host: Path) -> None:
    ops = [op for op in plan(host) if getattr(op, "target", "") != MASK_SOURCE]
    ops.append(Directory(MASK_SOURCE))
    for kind in ("Mask", "MaskName"):
        answer = inside(tuple(ops), lambda: os.stat(f"{WORK}/.env").st_mode & 0o777, ((kind, f"{WORK}/.env"),))
        assert isinstance(answer, list) and answer[:2] == ["failed", errno.EIO]


@pytest.mark.parametrize("kind", ["Mask", "MaskName", "ReadOnly", "Pin"])
def test_a_name_that_vanished_is_no_error(host: Path, kind: str) -> None:
    rows = ((kind, f"{WORK}/gone"), (kind, f"{WORK}/plain/below"))
    assert inside(plan(host), lambda: "built", rows) == "built"


@pytest.mark.parametrize("kind", ["Mask", "MaskName", "ReadOnly", "Pin"])
def test_a_link_on_the_way_is_refused(host: Path, kind: str) -> None:
    """It was a directory when it was scanned: somebody swapped it."""
    (host / "work" / "real").mkdir()
    (host / "work" / "real" / ".env").write_text("x")
    (host / "work" / "swapped").symlink_to("real")
    answer = inside(plan(host), lambda: None, ((kind, f"{WORK}/swapped/.env"),))
    assert answer[:2] == ["failed", errno.ELOOP]


# ---------------------------------------------------------------- devices


def test_a_named_device_can_be_used_and_is_found_in_sysfs_by_its_number(host: Path) -> None:
    """/dev/zero in the place of a graphics card, as every machine has it."""
    number = "1:5"  # Documentation/admin-guide/devices.txt
    fact = DeviceFact("gpu", "/dev/zero", number, os.path.realpath(f"/sys/dev/char/{number}"))
    policy = Policy(devices=(DeviceRule("gpu", Origin("user", "c")),))
    facts = HostFacts(0, 0, "u", False, HOME, "/s", WORK, "box", (), devices=(fact,))
    ops = (*plan(host), Directory(MASK_SOURCE), *operations(policy, facts))

    def ask() -> list[object]:
        with open("/dev/zero", "rb") as zero:
            return [zero.read(2).hex(), os.path.basename(os.path.realpath("/sys/dev/char/1:5")), os.listdir("/sys/dev")]

    assert inside(ops, ask) == ["0000", "zero", ["char"]]
    nodev = tuple(op.replace(device=False) if isinstance(op, Bind) else op for op in ops)
    assert inside(nodev, lambda: result(read("/dev/zero"))) == "EACCES"  # the control: as every other tree is bound


# ---------------------------------------------------------------- overlays


@pytest.fixture
def layers(host: Path) -> Path:
    """Beside the workspace: a layer for changes, a frozen one, and one of whiteouts."""
    for name in ("top/upper", "top/work", "frozen", "masks/src"):
        (host / name).mkdir(parents=True)
    (host / "frozen" / "earlier").write_text("earlier")
    os.mknod(host / "masks" / ".env", 0o600 | stat.S_IFCHR, os.makedev(0, 0))
    return host


def reviewed(host: Path, **changes: object) -> tuple[object, ...]:
    """``plan`` with an overlay in the place of the workspace."""
    lowers = (f"{host}/frozen", f"{host}/masks", f"{host}/work")
    op = Overlay(WORK, lowers, f"{host}/top", make=True, own=True).replace(**changes)
    return tuple(op if isinstance(each, Bind) and each.target == WORK else each for each in plan(host))


@pytest.mark.parametrize("broken", ["no layer", "no upper", "mode"])
def test_where_no_overlay_can_be_made_the_lowest_tree_is_bound_read_only(layers: Path, broken: str) -> None:
    """With ``fallback``; without it the launch ends."""
    if broken == "no layer":
        shutil.rmtree(layers / "top")
    elif broken == "no upper":
        (layers / "top" / "upper").rmdir()
    else:
        (layers / "top" / "upper").rmdir()
        (layers / "top" / "upper").write_text("no directory")

    def ask() -> list[str]:
        return [Path(WORK, "plain").read_text(), result(lambda: Path(WORK, "plain").write_text("x"))]

    ops = reviewed(layers, lowers=(f"{layers}/work",), fallback=True)
    assert inside(ops, ask) == ["plain", "EROFS"]
    assert inside(reviewed(layers, lowers=(f"{layers}/work",)), ask)[0] == "failed"


def test_a_socket_of_the_host_in_a_tree_that_is_bound_instead_is_covered(layers: Path) -> None:
    """A read-only mount keeps nobody from connecting, and the plan cannot know which of the two is mounted."""

    def covering(ops: tuple[object, ...]) -> tuple[object, ...]:
        paths = (f"{WORK}/service", f"{WORK}/gone")
        return tuple(op.replace(covered=paths) if isinstance(op, Overlay) else op for op in ops)

    with socket.socket(socket.AF_UNIX) as service:
        service.bind(f"{layers}/work/service")
        service.listen()
        ops = reviewed(layers, lowers=(f"{layers}/work",), fallback=True)
        connect = lambda: result(lambda: socket.socket(socket.AF_UNIX).connect(f"{WORK}/service"))  # noqa: E731
        assert inside(ops, connect) == "ECONNREFUSED"  # an overlay has inodes of its own (net/unix, unix_find_bsd)
        renew(layers)
        assert inside(covering(ops), connect) in ("ECONNREFUSED", "EACCES")
        (layers / "top" / "upper").rmdir()
        assert inside(ops, connect) == "ok"  # the control
        assert inside(covering(ops), connect) in ("ECONNREFUSED", "EACCES")
        assert inside(covering(ops), lambda: stat.S_ISSOCK(os.stat(f"{WORK}/service").st_mode)) is False


def test_what_is_covered_in_an_overlay_stays_so_whatever_an_earlier_run_left_in_its_layer(layers: Path) -> None:
    (layers / "work" / "keys").mkdir()
    (layers / "work" / "keys" / "mine").write_text("secret")
    plain = reviewed(layers, lowers=(f"{layers}/work",))
    ops = tuple(op.replace(covered=(f"{WORK}/keys/mine",)) if isinstance(op, Overlay) else op for op in plain)

    def attempts() -> list[str]:
        moved = lambda: os.rename(f"{WORK}/keys", f"{WORK}/moved")  # noqa: E731
        asked = (moved, lambda: os.unlink(f"{WORK}/keys/mine"), lambda: os.rename(f"{WORK}/keys/mine", f"{WORK}/x"))
        return [result(ask) for ask in (*asked, read(f"{WORK}/keys/mine"))]

    assert inside(ops, attempts) == ["EXDEV", "EBUSY", "EBUSY", "EACCES"]
    renew(layers)
    assert inside(plain, attempts) == ["EXDEV", "ok", "ENOENT", "ENOENT"]  # the control: nothing was covered
    renew(layers)
    upper = layers / "top" / "upper"
    shutil.rmtree(upper)
    upper.mkdir()
    (upper / "keys").symlink_to(layers / "outside")
    assert inside(ops, lambda: [os.path.islink(f"{WORK}/keys"), result(read(f"{WORK}/keys/mine"))]) == [True, "ENOENT"]


def renew(layers: Path) -> None:
    """A new work directory: the kernel takes none that a volatile overlay has used."""
    subprocess.run(["chmod", "-R", "u+rwX", str(layers / "top" / "work")], check=True)
    shutil.rmtree(layers / "top" / "work")
    (layers / "top" / "work").mkdir()


def test_a_work_directory_of_a_volatile_overlay_is_used_once(layers: Path) -> None:
    """So that nothing is kept over files that the disk may never have got."""
    ops = reviewed(layers, lowers=(f"{layers}/work",))
    assert inside(ops, lambda: result(lambda: Path(WORK, "plain").write_text("x"))) == "ok"
    assert inside(ops, lambda: None)[0] == "failed"
    renew(layers)
    assert inside(ops, lambda: Path(WORK, "plain").read_text()) == "x"


def test_with_a_fallback_a_tree_that_is_gone_or_a_link_in_its_place_is_left_out(layers: Path) -> None:
    tool = Overlay(f"{HOME}/.cargo/bin", (f"{layers}/tree/bin",), f"{layers}/top", make=True, fallback=True)
    there = inside(plan(layers, tool), lambda: os.listdir(f"{HOME}/.cargo/bin"))
    assert there == os.listdir(layers / "tree" / "bin")  # the control
    gone = tool.replace(lowers=(f"{layers}/gone",))
    assert inside(plan(layers, gone), lambda: os.path.exists(f"{HOME}/.cargo/bin")) is True  # an empty mount point
    shutil.rmtree(layers / "store" / ".cargo")
    (layers / "store" / ".cargo").symlink_to(layers / "outside")
    assert inside(plan(layers, tool), lambda: os.path.islink(f"{HOME}/.cargo")) is True
    assert list((layers / "outside").iterdir()) == []


def test_what_is_written_to_an_overlay_stays_in_its_layer(layers: Path) -> None:
    def ask() -> list[str]:
        Path(WORK, "plain").write_text("changed")
        Path(WORK, "src", "new").write_text("new")
        os.unlink(f"{WORK}/earlier")
        return [Path(WORK, "plain").read_text(), result(read(f"{WORK}/earlier")), result(read(f"{WORK}/.env"))]

    assert inside(reviewed(layers), ask) == ["changed", "ENOENT", "ENOENT"]
    assert (layers / "work" / "plain").read_text() == "plain"
    assert os.listdir(layers / "work" / "src") == []
    upper = layers / "top" / "upper"
    assert (upper / "plain").read_text() == "changed"
    assert (upper / "src" / "new").read_text() == "new"
    gone = os.lstat(upper / "earlier")
    assert stat.S_ISCHR(gone.st_mode)
    assert gone.st_rdev == 0
    assert (layers / "frozen" / "earlier").read_text() == "earlier"
    # The control: the same on a bind is in the workspace.
    inside(plan(layers), lambda: Path(WORK, "plain").write_text("changed"))
    assert (layers / "work" / "plain").read_text() == "changed"


def test_an_overlay_without_a_layer_is_read_only(layers: Path) -> None:
    ask = lambda: [Path(WORK, "earlier").read_text(), result(touch(f"{WORK}/new"))]  # noqa: E731
    assert inside(reviewed(layers, layer=""), ask) == ["earlier", "EROFS"]


def test_nothing_of_an_overlay_is_in_the_view_beside_it(layers: Path) -> None:
    def ask() -> list[object]:
        table = Path("/proc/self/mountinfo").read_text()
        line = next(each for each in table.splitlines() if f" {WORK} " in each)
        return [table.count(" - overlay "), str(layers) in line, "nosuid,nodev" in line, sorted(os.listdir("/"))]

    mounts, named, safe, root = inside(reviewed(layers), ask)
    assert (mounts, named, safe) == (1, False, True)
    assert ".membrane" not in root


def test_an_overlay_in_the_hosts_own_view(layers: Path) -> None:
    """The new root is covered by the host's: the trees are attached in ours, below it."""
    work = str(layers / "work")
    ops = (Bind("/", "/"), Tmpfs("/run", 0o755), Tmpfs(MASK_SOURCE, 0o755), reviewed(layers)[-1].replace(target=work))  # type: ignore[attr-defined]

    def ask() -> list[object]:
        Path(work, "plain").write_text("changed")
        return [os.path.exists("/.membrane"), result(read(f"{work}/.env"))]

    assert inside(ops, ask) == [False, "ENOENT"]
    assert (layers / "work" / "plain").read_text() == "plain"


@pytest.mark.parametrize("broken", ["layer", "lowers"])
def test_an_overlay_that_cannot_be_made_is_an_error(layers: Path, broken: str) -> None:
    gone = f"{layers}/gone"
    ops = reviewed(layers, **{broken: gone if broken == "layer" else (gone,)})
    assert inside(ops, lambda: None) == ["failed", errno.ENOENT, gone]


def test_a_layer_without_its_directories_is_an_error_and_not_a_live_workspace(layers: Path) -> None:
    (layers / "top" / "work").rmdir()
    assert inside(reviewed(layers), lambda: None) == ["failed", errno.ENOENT, WORK]


def test_what_is_mounted_below_a_layer_is_refused(layers: Path) -> None:
    """In a namespace that was copied, mounts cannot be taken apart: what lies below them is never shown."""
    (layers / "work" / "src" / "secret").write_text("below the mount")
    ops = reviewed(layers)

    def nested() -> object:
        sc.unshare(sc.CLONE_NEWUSER | sc.CLONE_NEWNS)
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            Path("/proc/self", name).write_text(text)
        sc.mount("tmpfs", str(layers / "work" / "src"), "tmpfs", 0)
        return inside(ops, lambda: os.listdir(f"{WORK}/src"))

    uid, gid = os.geteuid(), os.getegid()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if nested() == ["failed", errno.EINVAL, str(layers / "work")] else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_hundred_layers(layers: Path) -> None:
    lowers = []
    for number in range(100):
        (layers / f"n{number}").mkdir()
        (layers / f"n{number}" / "which").write_text(str(number))
        lowers.append(f"{layers}/n{number}")
    ops = reviewed(layers, lowers=(*lowers, f"{layers}/work"))
    assert inside(ops, lambda: [Path(WORK, "which").read_text(), Path(WORK, "plain").read_text()]) == ["0", "plain"]
