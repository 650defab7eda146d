"""Policy + what the caller's machine has -> the container that carries a whole run (``backend: docker`` or ``podman``).

Theory of operation
-------------------
Where the kernel is not ours the native boundary runs in a container, the supervisor and all: this says with which
options ``docker run`` (or ``podman run``) makes it, as data, and refuses what a container cannot carry.  The options
are a closed list, to which a policy adds bounds and labels only (``policy.dockerargs``): no capability (root keeps
SETFCAP, without which it may not map its own uid, user_namespaces(7)), no new privileges, the profile and the
uncovered /proc of ``docs/containers.md``, a read-only root.  Of the host it has the workspace, what the policy mounts,
and Membrane's own state, each at its own path; never a socket of an engine.  Other unix sockets and ports of the host's
loopback are streams to the half outside (``ui.pipe``), which has the list of them; in the container pid 1 listens where
they are.  Nothing is published: exposed ports are such streams as well, so other containers of its network find nothing
that listens.  The container confines the supervisor; the command is confined by the native boundary in it.

Options: https://docs.docker.com/reference/cli/docker/container/run/, podman-run(1).
"""

from __future__ import annotations

from ..errors import PolicyError
from ..value import Value
from .hardening import PASSED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Literal

    from ..policy.model import Policy

IMAGE = "membrane-carrier"
LABEL = "membrane.state"  # on each container: the directory whose ``gc`` may remove it
MODULE = "membrane.ui.carried"
HOST_INTERNAL = "host.internal"
# Beside what passes to every command: what the supervisor itself reads, and not the caller's programs.
_SUPERVISOR = ("XDG_CONFIG_HOME", "SSH_AUTH_SOCK")
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_NOT_CARRIED = ("PATH", "SHELL", "HOME")  # the image's own
MOST_PORTS = 256  # of the host's loopback
_EMPTY = ("/tmp", "/run", "/var/run")  # noqa: S108 - a private tmpfs of the container, or a link to one
# To leave a container that runs on, as these clients have it, would end the run; docker has no word for none, and holds
# the first key of a sequence back until the next one comes (moby/term, proxy.go).  Its own, ctrl-p, is every shell's.
_DETACH = {"podman": "", "docker": ",".join(("ctrl-@", "ctrl-^") * 4)}
_OF_THE_IMAGE = ("bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "proc", "sbin", "sys", "usr")


class Tree(Value):
    """A directory or a file of the host that the container shows at the same path."""

    path: str  # absolute, without links
    mode: Literal["ro", "rw"]


class Surroundings(Value):
    """What the container has to know of the caller's machine."""

    workspace: str  # absolute, without links, as the next two
    state: str
    home: str
    uid: int
    gid: int
    engine: str  # docker or podman
    name: str  # of the container
    profile: str  # path of the seccomp profile
    trees: tuple[Tree, ...] = ()  # beside the workspace and the state
    sockets: tuple[str, ...] = ()  # where pid 1 listens
    terminal: bool = False
    path: str = ""  # PATH of what runs beside the command; empty: the image names none


def refuse(policy: Policy) -> None:
    """Stop a run with a rule that would not mean the same in a container.

    Raises:
        PolicyError: names the rule.
    """
    wanted = (
        (
            policy.view == "host" or policy.file_rules is not None,
            "view: host, or files",
            "the host's tree is not there",
        ),
        (policy.containers != "none", "containers: nested", "it would need rights that are not given to it"),
        (policy.system != "read-only", f"system: {policy.system}", "it has no ids but one for a layer's files"),
        (bool(policy.image), "image", "the container's own image has the system trees"),
        (bool(policy.devices), "devices", "no device of the host is given to it"),
        (bool(policy.socket_proxy), "a proxy behind a unix socket", "no socket of the host is there"),
    )
    for is_there, what, why in wanted:
        if is_there:
            raise _unbound(policy.backend, what, why)
    for rule in policy.allow:
        if rule.kind == "host" and rule.host == HOST_INTERNAL and any(each.protocol != "tcp" for each in rule.ports):
            what, why = f'allow "{rule.text}"', "datagrams do not go through its pipe"
            raise _unbound(policy.backend, what, why, str(rule.origin))
    if len(loopback(policy)) > MOST_PORTS:
        what = f"more than {MOST_PORTS} ports of {HOST_INTERNAL}"
        raise _unbound(policy.backend, what, "it has a listener for each")


def loopback(policy: Policy) -> tuple[int, ...]:
    """The ports of the host's loopback that a rule opens, at most one more than ``MOST_PORTS``."""
    out = {rule.outside for rule in policy.connect}
    for rule in policy.allow:
        if rule.kind == "host" and rule.host == HOST_INTERNAL:
            for ports in rule.ports:
                out.update(range(ports.first, min(ports.last, ports.first + MOST_PORTS) + 1))
    return tuple(sorted(out)[: MOST_PORTS + 1])


def _unbound(engine: str, what: str, why: str, where: str = "") -> PolicyError:
    cause = f"backend {engine} does not carry {what}: {why}"
    return PolicyError("bind a rule", cause, where=where, fix=("leave it out, or use the native backend",))


def carried(policy: Policy) -> Policy:
    """``policy`` as it holds in the container, where the values of secrets are given (``run.secrets.given``)."""
    secrets = tuple(rule.replace(source=f"given:{number}") for number, rule in enumerate(policy.secrets))
    return policy.replace(secrets=secrets)


def environment(policy: Policy, environ: Mapping[str, str]) -> dict[str, str]:
    """The caller's variables that go into the container, by the pipe: those that the policy passes or reads."""
    patterns = [*PASSED, *_SUPERVISOR, *(rule.name for rule in policy.env if rule.value is None)]
    patterns += [mask.source.removeprefix("env:") for mask in policy.masks if mask.source.startswith("env:")]
    if policy.upstream_proxy == "env":
        patterns += [*_PROXIES, *map(str.lower, _PROXIES)]
    exact = {pattern for pattern in patterns if not pattern.endswith("*")}
    starts = tuple(pattern[:-1] for pattern in patterns if pattern.endswith("*"))
    return {
        name: value
        for name, value in environ.items()
        if name not in _NOT_CARRIED and (name in exact or name.startswith(starts))
    }


def options(policy: Policy, around: Surroundings) -> tuple[str, ...]:
    """The words after ``docker run``; none of them holds a value of the caller's environment or a secret."""
    podman = around.engine == "podman"
    # Podman gives a tmpfs to the container's user by U, docker by its number; the uncovered /proc has two names.
    own = "U" if podman else f"uid={around.uid},gid={around.gid}"
    uncovered = "unmask=ALL" if podman else "systempaths=unconfined"
    words = [
        *("--rm", f"--name={around.name}", f"--label={LABEL}={around.state}", "--pull=never", "--interactive"),
        *(terminal(around.engine) if around.terminal else ()),
        # What the command says is its caller's, and in no log of the engine or the machine.  A check of the image's
        # would run beside the sandbox.
        *("--log-driver=none", "--no-healthcheck"),
        f"--security-opt=seccomp={around.profile}",
        *(f"--security-opt={uncovered}", "--security-opt=no-new-privileges", "--cap-drop=ALL"),
        # Of a plain user podman makes a user namespace, in which he is himself.
        *(("--userns=keep-id",) if podman and around.uid else ()),
        *(("--cap-add=SETFCAP",) if around.uid == 0 else ()),
        *("--read-only", "--tmpfs=/tmp:exec,mode=1777", f"--tmpfs=/run:{own},mode=0700"),
        # The supervisor's program and its libraries are looked up before it runs: not where a command writes.
        *(f"--user={around.uid}:{around.gid}", "--workdir=/"),
        *(f"--env=HOME={around.home}", f"--env=MEMBRANE_HOME={around.state}"),
        *((f"--env=PATH={around.path}",) if around.path else ()),
    ]
    trees = [Tree(around.workspace, "rw"), Tree(around.state, "rw"), *around.trees]
    if all(tree.path != around.home for tree in trees) and around.home != "/":
        words.append(f"--tmpfs={around.home}:{own},mode=0755")
    words += [f"--tmpfs={path}:{own},mode=0700" for path in _places(around, trees)]
    words += [f"--mount={_mount(tree)}" for tree in _in_order(trees)]
    words += [rule.text for rule in policy.carrier_options]
    return (*words, "--entrypoint=python3", IMAGE, "-I", "-m", MODULE, "carry", around.name)


def terminal(engine: str) -> tuple[str, str]:
    """Options of ``run`` and ``exec`` for a terminal whose every key is the command's."""
    return "--tty", f"--detach-keys={_DETACH[engine]}"


def _places(around: Surroundings, trees: Iterable[Tree]) -> list[str]:
    """Directories that a socket needs, and that are in no empty tree already.

    Raises:
        PolicyError: the place belongs to the image, or is in a tree of the host that the container shows.
    """
    out: dict[str, None] = {}
    for path in around.sockets:
        directory = path.rpartition("/")[0]
        what = f"unix_sockets {path}"
        if any(f"{path}/".startswith(f"{tree.path}/") for tree in trees):
            raise _unbound(around.engine, what, "it is in a tree that the container shows")
        parts = directory.split("/")[1:]
        if (len(parts) < 2 and directory not in _EMPTY) or parts[0] in _OF_THE_IMAGE:
            raise _unbound(around.engine, what, "its directory belongs to the image")
        if not f"{path}/".startswith((*(f"{each}/" for each in _EMPTY), f"{around.home.rstrip('/')}/")):
            out[directory] = None
    return list(out)


def _in_order(trees: Iterable[Tree]) -> list[Tree]:
    """Outer ones first; of one path the first."""
    return sorted(
        {tree.path: tree for tree in reversed(list(trees))}.values(), key=lambda tree: (tree.path.count("/"), tree.path)
    )


def _mount(tree: Tree) -> str:
    """One line of RFC 4180, as ``--mount`` reads it."""
    fields = ["type=bind", f"source={tree.path}", f"target={tree.path}", *(("readonly",) if tree.mode == "ro" else ())]
    return ",".join('"' + field.replace('"', '""') + '"' if set(field) & set(',"\r\n') else field for field in fields)
