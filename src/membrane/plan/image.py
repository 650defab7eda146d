"""``image``: the system trees of the view come from the layers of an OCI image, not from the host.

Theory of operation
-------------------
Each name at the top of the image is a tree of the view: a directory is one read-only overlay of that directory in every
layer that has it, so layers are never written and nothing of ours is in them.  Where the view has something of its own
further down (the home below /home, the workspace), the directories on the way are the view's, and what the image has
beside it are trees of their own.  What is the view's own at all times (/proc, /dev, /run, /tmp, home and workspace) the
image cannot have, whatever it holds there: a link of it is never on the way to them.

Of /etc our files come first, as names of a layer above the image's: whatever the image has under these names, a link
that leads elsewhere as well, is not looked at.

The command runs as ``docker run`` would run it, but for where it begins: a command of the caller's in the workspace,
which it is about, and the image's own in the directory that the image names.  The user that the image names is the
caller under that number: the kernel's ids stay what they are without an image, and only the map of the command's user
namespace gives them the image's (user_namespaces(7)), so it owns workspace, home and every file of the image, and needs
no subordinate ids.  Root is not had in this way, whose programs would count on rights that it lacks.  A volume is an
overlay over what the image has there, with a layer for one run (``run.layers``): that is a private directory, seeded
with the image's content.
"""

from __future__ import annotations

from ..errors import PolicyError
from .model import RESOLVER_V4, Bind, Directory, File, Layer, Overlay, RuleBinding, Symlink

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..policy.model import Policy
    from .model import HostFacts, ImageFacts, MountOp, SandboxPlan

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # of an image that names none, as engines have it
OWN = ("HOME", "PWD", "USER", "LOGNAME", "SHELL")  # variables that an image does not set
_NAMES = (
    "HUP INT QUIT ILL TRAP ABRT BUS FPE KILL USR1 SEGV USR2 PIPE ALRM TERM STKFLT CHLD CONT STOP TSTP TTIN TTOU URG"
)
_NAMES += " XCPU XFSZ VTALRM PROF WINCH IO PWR SYS"
SIGNALS = {name: number for number, name in enumerate(_NAMES.split(" "), 1)}  # signal(7), on the machines of ours
_FIRST_REAL_TIME, _LAST_SIGNAL = 34, 64
_MOST_SAID, _LONGEST_SAID = 8, 200  # volumes in the receipt, and characters of one
_FILES = ("resolv.conf", "hosts", "hostname", "passwd", "group")  # of /etc
_RESOLV_CONF = f"nameserver {RESOLVER_V4}\noptions timeout:5 attempts:2\n".encode()


def refuse(policy: Policy, facts: HostFacts) -> None:
    """Stop a run that asks for an image where it could not hold.

    Raises:
        PolicyError: with the reason and what to do instead.
    """
    if not policy.image:
        if policy.platform:
            cause = "a platform is that of an image"
            raise PolicyError("bind a rule", f"platform: {policy.platform}: {cause}", where="policy", fix=("--image",))
        return
    if policy.view == "host" or policy.file_rules is not None:
        raise _unbound(policy, "view: host and rules of files speak of this machine's trees", "use view: project")
    if facts.image is not None and facts.image.foreign:
        cause = f"it is made for {facts.image.foreign}, and this machine has no interpreter for programs of that"
        fix = "apt install qemu-user-static   # where binfmt_misc is there; with the flag F"
        raise _unbound(policy, cause, fix, "leave --platform out")
    if facts.image is None:
        raise _unbound(policy, "it is not in membrane's state yet", f"membrane image pull {policy.image}")


def _unbound(policy: Policy, cause: str, *fix: str) -> PolicyError:
    return PolicyError("bind a rule", f"image: {policy.image}: {cause}", where="policy", fix=fix)


def operations(
    image: ImageFacts, facts: HostFacts, names: tuple[str, ...] = (), *, layered: bool = False
) -> list[MountOp]:
    """The system trees; ``etc`` gives our files in them.

    Args:
        names: as of ``etc``.
        layered: each is below a layer that can be written (``system``).
    """
    origin = f"image {image.reference}"
    ops: list[MountOp] = []
    shown = {tree.path for tree in image.trees}
    for tree in image.trees:
        if tree.kind == "directory" and layered:
            from . import system

            ops.append(system.image_tree(tree.path, tree.sources, facts, *_own(tree.path, image, facts, names)))
        elif tree.kind == "directory":
            ops.append(Overlay(tree.path, tree.sources, make=True, own=True, origin=origin))
        elif tree.kind == "expanded":
            ops.append(Directory(tree.path, tree.mode))
        elif tree.kind == "link":
            ops.append(Symlink(tree.path, tree.sources[0]))
        else:
            ops.append(Bind(tree.sources[0], tree.path, own=True, make=True, origin=origin))
    if layered:
        from . import system

        missing = [path for path in ("/etc", system.VAR) if path not in shown]
        ops += [system.image_tree(path, (), facts, *_own(path, image, facts, names)) for path in missing]
        return ops
    for path in ("/etc", "/var", "/var/lib", "/var/cache", "/var/log"):
        above = path.rpartition("/")[0]
        if path not in shown and (not above or above not in shown or _is_ours(image, above)):
            ops.append(Directory(path))
    return ops


def _own(
    path: str, image: ImageFacts, facts: HostFacts, names: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[tuple[str, bytes], ...]]:
    """Below a layer over ``path``: empty files that are bound over, and files that the command can replace."""
    if path != "/etc":
        return (), ()
    return (*names, *_FILES[:3]), (("passwd", passwd(image, facts, None)), ("group", group(image, facts, None)))


def etc(policy: Policy, image: ImageFacts, facts: HostFacts, names: tuple[str, ...]) -> list[MountOp]:
    """Our files in /etc, before those of the image; after what is private to the view is there.

    Args:
        names: files below /etc that are filled later.
    """
    layered = policy.system != "read-only"  # ``operations`` has made places for them
    own = user(policy, image, facts)
    ops: list[MountOp] = [] if layered else [Layer("/etc", (*names, *_FILES))]
    hosts = f"127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n127.0.1.1 {facts.hostname}\n"
    users = () if layered else (("passwd", passwd(image, facts, own)), ("group", group(image, facts, own)))
    for name, content in (
        ("resolv.conf", _RESOLV_CONF),
        ("hosts", hosts.encode()),
        ("hostname", f"{facts.hostname}\n".encode()),
        *users,
    ):
        ops.append(File(f"/etc/{name}", content, bind=True))
    return ops


def volumes(image: ImageFacts, facts: HostFacts) -> list[MountOp]:
    """Its volumes; none where no layer can be had.

    With a layer over the system what the image has is writable, and kept as long as that is; only those are made of
    which it has nothing.
    """
    if facts.system is not None:
        from . import system

        return [system.image_tree(each.path, (), facts) for each in image.volumes if len(each.sources) == 1]
    if not facts.layers:
        return []
    return [
        Overlay(
            each.path,
            each.sources,
            f"{facts.layers}/volume-{number}",
            make=True,
            own=True,
            origin=f"image {image.reference}: volume",
        )
        for number, each in enumerate(image.volumes)
    ]


def _some(paths: list[str]) -> str:
    more = f" and {len(paths) - _MOST_SAID} more" if len(paths) > _MOST_SAID else ""
    return ", ".join(path[:_LONGEST_SAID] for path in paths[:_MOST_SAID]) + more


def stop_signal(image: ImageFacts) -> int:
    """The number of the signal that the image wants for its end: a name of signal(7), ``RTMIN+N`` or a number; 0: none
    that there is."""
    name, _, more = image.stop.upper().removeprefix("SIG").partition("+")
    if name == "RTMIN":
        number = _FIRST_REAL_TIME + _number(more or "0") if _number(more or "0") >= 0 else 0
    else:
        number = SIGNALS.get(image.stop.upper().removeprefix("SIG") or "TERM", _number(image.stop))
    return number if 0 < number <= _LAST_SIGNAL else 0


def who(image: ImageFacts) -> tuple[int, int] | None:
    """The ids of the image's user by its own passwd(5) and group(5), as ``docker run`` takes them; None: it has none.

    Both files are data of a stranger: nothing is looked up by the machine's own database.
    """
    name, _, group_name = (image.user or "0").partition(":")
    uid, gid = _number(name), 0
    for row in image.passwd.split(b"\n"):
        fields = row.split(b":")
        if len(fields) > 3 and (fields[0] == name.encode() or (uid >= 0 and _number_of(fields[2]) == uid)):
            uid, gid = _number_of(fields[2]), _number_of(fields[3])
            break
    if group_name:
        gid = _number(group_name)
        rows = (row.split(b":") for row in image.group.split(b"\n"))
        gid = next((_number_of(x[2]) for x in rows if len(x) > 2 and x[0] == group_name.encode()), gid)
    return (uid, gid) if uid >= 0 and gid >= 0 else None


def other_groups(image: ImageFacts) -> list[str]:
    """The groups of its group(5) that ``docker run`` gives the image's user beside its own: none where it names one.

    They are not set.  All files of the image belong to its user and group, so they open nothing of it, and under their
    numbers the machine may have groups whose files are in the workspace.
    """
    name, mark, _group = image.user.partition(":")
    number = _number(name)
    known = _named(image.passwd, number) if number >= 0 else name
    if not known or mark:
        return []
    rows = (row.split(b":") for row in image.group.split(b"\n"))
    members = ((row[0].decode("utf-8", "replace"), row[3].strip().split(b",")) for row in rows if len(row) > 3)
    return [group for group, names in members if known.encode() in names]


def user(policy: Policy, image: ImageFacts, facts: HostFacts) -> tuple[int, int] | None:
    """The ids under which the command knows the caller's, as the image names them; None: it knows them as they are.

    Not root's for another caller: one id has no rights over others, which programs of uid 0 take for granted.  With a
    layer over the system and with ``containers: nested`` the command is root, and that is said (``bindings``).
    """
    ids = who(image) if image.user else None
    if ids in (None, (facts.uid, facts.gid)) or policy.system != "read-only" or policy.containers == "nested":
        return None
    return None if ids is not None and not ids[0] and facts.uid else ids


def _number(text: str) -> int:
    """An id, or -1."""
    number = int(text) if text.isascii() and text.isdecimal() and len(text) <= 10 else -1
    return number if number < (1 << 32) - 1 else -1


def _number_of(field: bytes) -> int:
    return _number(field.decode("utf-8", "replace"))


def begun(plan: SandboxPlan, image: ImageFacts) -> SandboxPlan:
    """The plan of the image's own command, which begins where the image says."""
    new = [each.path for each in image.volumes if len(each.sources) == 1]
    made = [op.target for op in plan.mounts if isinstance(op, Overlay)]
    if not image.begins or (image.begins in new and image.begins not in made):
        return plan
    environment = tuple((name, image.begins if name == "PWD" else value) for name, value in plan.environment)
    return plan.replace(cwd=image.begins, environment=environment)


def _is_ours(image: ImageFacts, path: str) -> bool:
    return any(tree.path == path and tree.kind == "expanded" for tree in image.trees)


def _name(image: ImageFacts, facts: HostFacts, own: tuple[int, int] | None) -> str:
    """The name of who runs the command, if it can stand in passwd(5): the image's for its user, else the caller's; that
    of uid 0 is what every program looks for."""
    if _ids(facts, own)[0] == 0:
        return "root"
    if own is not None and (known := _named(image.passwd, own[0])):
        return known
    return facts.user if _is_plain(facts.user) and facts.uid else "user"


def _is_plain(name: str) -> bool:
    return name.isascii() and name.replace("-", "").replace("_", "").replace(".", "").isalnum()


def _named(file: bytes, number: int) -> str:
    """The first name of an id in passwd(5) or group(5) of the image; empty: none that is plain."""
    rows = (row.split(b":") for row in file.split(b"\n"))
    name = next((row[0] for row in rows if len(row) > 2 and _number_of(row[2]) == number), b"")
    text = name.decode("ascii", "replace")
    return text if _is_plain(text) else ""


def _ids(facts: HostFacts, own: tuple[int, int] | None) -> tuple[int, int]:
    """As whom the command runs: with a layer over the system as root."""
    return own or (facts.uid, facts.gid) if facts.system is None else (0, 0)


def passwd(image: ImageFacts, facts: HostFacts, own: tuple[int, int] | None) -> bytes:
    """The image's passwd(5) with who runs the command in it, first: no other line has that name or number.

    Its home is the sandbox's, which can be written, as ``HOME`` says: programs that ask passwd(5) (ssh, Java) and those
    that ask the variable have to find the same.

    Args:
        own: as ``user`` gives it.
    """
    name = _name(image, facts, own)
    home = facts.home if ":" not in facts.home and facts.home.isprintable() else "/"
    uid, gid = _ids(facts, own)
    line = f"{name}:x:{uid}:{gid}:{name}:{home}:{image.shell}\n"
    return _with(image.passwd, line, name, uid)


def group(image: ImageFacts, facts: HostFacts, own: tuple[int, int] | None) -> bytes:
    """The image's group(5) with the group of who runs the command in it, by the same rule."""
    _uid, gid = _ids(facts, own)
    known = _named(image.group, gid) if own is not None else ""
    name = known or _name(image, facts, own)
    return _with(image.group, f"{name}:x:{gid}:\n", name, gid)


def _with(file: bytes, line: str, name: str, number: int) -> bytes:
    out = [line.encode("utf-8", "surrogateescape")]
    for other in file.split(b"\n"):
        fields = other.split(b":")
        if len(fields) > 2 and fields[0] != name.encode() and fields[2] != str(number).encode():
            out.append(other + b"\n")
    return b"".join(out)


def environment(policy: Policy, facts: HostFacts, given: dict[str, str]) -> dict[str, str]:
    """The variables of the image of ``facts`` over those that a run passes by itself.

    Args:
        given: of the caller, as the policy passes them.
    """
    image = facts.image
    assert image is not None
    explicit = {rule.name for rule in policy.env if rule.value is None}
    own = user(policy, image, facts)
    if own is not None:
        name = _name(image, facts, own)
        given = {**given, **{each: name for each in ("USER", "LOGNAME") if each not in explicit}}
    out = {name: value for name, value in given.items() if name in explicit or name not in ("PATH", "SHELL")}
    for row in image.environ:
        name, _, value = row.partition("=")
        if name and name not in explicit and name not in OWN and not name.startswith("MEMBRANE"):
            out[name] = value
    out.setdefault("PATH", PATH)
    out.setdefault("SHELL", image.shell)
    return out


def argv(image: ImageFacts, command: tuple[str, ...]) -> tuple[str, ...]:
    """What is run for ``command``, as ``docker run`` has it: the entry point before it, the image's own without one."""
    return (*image.entrypoint, *(command or image.command)) or (image.shell,)


def bindings(policy: Policy, image: ImageFacts | None, facts: HostFacts) -> list[RuleBinding]:
    """What the image is, and where it is used otherwise than it says."""
    if image is None:
        return []
    what = "read-only overlay" if policy.system == "read-only" else "overlay, below a layer,"
    how = (image.digest, f"{what} of {image.layers} layers", "set-user-ID bits and devices dropped")
    out = [RuleBinding(f"image: {policy.image}", "policy", how)]
    if image.entrypoint:
        out.append(RuleBinding("image: entry point", image.reference, (" ".join(image.entrypoint),)))
    ids, own, (uid, gid) = who(image), user(policy, image, facts), _ids(facts, None)
    if own is not None:
        said = f"{image.user}: uid {own[0]} and gid {own[1]}, which are the caller's outside and own its files"
        out.append(RuleBinding("image: user", image.reference, (said,)))
        if others := other_groups(image):
            said = f"{_some(others)}: not set, as all files of the image are its user's here"
            out.append(RuleBinding("image: other groups of its user", image.reference, (said,), "partial"))
    elif image.user and (ids is None or ids[0] != uid):
        known = "whom its passwd(5) does not know" if ids is None else f"uid {ids[0]} and gid {ids[1]}"
        here = f"here as uid {uid} and gid {gid}, which own its files"
        said = f"its commands run as {image.user} ({known}) elsewhere; {here}"
        out.append(RuleBinding("image: user", image.reference, (said,), "partial"))
    if image.directory and image.begins:
        said = f"its own command begins in {image.begins}, one that is given in the workspace"
        out.append(RuleBinding("image: working directory", image.reference, (said,)))
    elif image.directory:
        said = f"its own command begins in {image.directory} elsewhere; here in the workspace"
        out.append(RuleBinding("image: working directory", image.reference, (said,), "partial"))
    made = volumes(image, facts) if facts.system is None else image.volumes
    if made:
        kept = "a layer that is removed at the end" if facts.system is None else "the layer over the system"
        said = f"{_some([each.path for each in image.volumes])}: over what the image has there, in {kept}"
        out.append(RuleBinding("image: volumes", image.reference, (said,)))
    lacking = [*image.refused, *(each.path for each in image.volumes if not made)]
    if lacking:
        said = f"{_some(lacking)}: no directory of their own here, as what is there is not the image's to give"
        if not image.refused:
            said = f"{_some(lacking)}: read-only, as membrane's state is on a file system that takes no layers"
        out.append(RuleBinding("image: volume", image.reference, (said,), "partial"))
    if image.stop and not stop_signal(image):
        said = f"its signal {image.stop} is none of signal(7); SIGTERM is SIGTERM"
        out.append(RuleBinding("image: stop signal", image.reference, (said,), "partial"))
    elif image.stop:
        out.append(RuleBinding("image: stop signal", image.reference, (f"{image.stop} for SIGTERM",)))
    return out
