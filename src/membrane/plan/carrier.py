"""Policy + what the caller's machine has -> the container that carries a whole run (``backend: docker``).

Theory of operation
-------------------
Where the kernel is not ours the native boundary runs in a container, the supervisor and all: this says with which
options ``docker run`` makes it, as data, and refuses what a container cannot carry.  The options are a closed list and
nobody can add to it: no capability (root keeps SETFCAP, without which it may not map its own uid,
user_namespaces(7)), no new privileges, the profile and the uncovered /proc of ``docs/containers.md``, a read-only root.
Of the host it has the workspace, what the policy mounts, and Membrane's own state, each at its own path; never a
socket of an engine.  The container confines the supervisor; the command is confined by the native boundary in it.

Options: https://docs.docker.com/reference/cli/docker/container/run/
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
_SUPERVISOR = ("XDG_CONFIG_HOME",)
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_NOT_CARRIED = ("PATH", "SHELL", "HOME")  # the image's own


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
    name: str  # of the container
    profile: str  # path of the seccomp profile
    trees: tuple[Tree, ...] = ()  # beside the workspace and the state
    terminal: bool = False


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
        (bool(policy.connect), "ports: connect", "the host's loopback is not there"),
        (bool(policy.socket_proxy), "a proxy behind a unix socket", "no socket of the host is there"),
    )
    for is_there, what, why in wanted:
        if is_there:
            raise _unbound(what, why)
    for rule in policy.allow:
        if rule.kind == "host" and rule.host == HOST_INTERNAL:
            raise _unbound(f'allow "{rule.text}"', "its loopback is the container's, not yours", str(rule.origin))
    for socket in policy.unix_sockets:
        if not socket.optional:
            raise _unbound(f"unix_sockets {socket.path}", "no socket of the host is there", str(socket.origin))
    for mount in policy.mounts:
        if mount.git_root:
            raise _unbound("mounts: git-root", "start it in the root of the repository", str(mount.origin))
    for mask in policy.masks:
        if mask.source.startswith("file:") and not mask.login:
            raise _unbound(f"masks {mask.source}", "the file is not there; use a variable", str(mask.origin))


def _unbound(what: str, why: str, where: str = "") -> PolicyError:
    cause = f"backend docker does not carry {what}: {why}"
    return PolicyError("bind a rule", cause, where=where, fix=("leave it out, or use the native backend",))


def carried(policy: Policy) -> Policy:
    """``policy`` as it holds in the container, where the values of secrets are given (``run.secrets.given``)."""
    secrets = tuple(rule.replace(source=f"given:{number}") for number, rule in enumerate(policy.secrets))
    masks = tuple(mask for mask in policy.masks if not mask.login)
    return policy.replace(secrets=secrets, masks=masks, unix_sockets=(), state_shown=())


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
    own = f"uid={around.uid},gid={around.gid}"
    words = [
        *("--rm", f"--name={around.name}", f"--label={LABEL}={around.state}", "--pull=never", "--interactive"),
        *(("--tty",) if around.terminal else ()),
        f"--security-opt=seccomp={around.profile}",
        *("--security-opt=systempaths=unconfined", "--security-opt=no-new-privileges", "--cap-drop=ALL"),
        *(("--cap-add=SETFCAP",) if around.uid == 0 else ()),
        *("--read-only", "--tmpfs=/tmp:exec,mode=1777", f"--tmpfs=/run:{own},mode=0700"),
        *(f"--user={around.uid}:{around.gid}", f"--workdir={around.workspace}"),
        *(f"--env=HOME={around.home}", f"--env=MEMBRANE_HOME={around.state}"),
    ]
    trees = [Tree(around.workspace, "rw"), Tree(around.state, "rw"), *around.trees]
    if all(tree.path != around.home for tree in trees) and around.home != "/":
        words.append(f"--tmpfs={around.home}:{own},mode=0755")
    words += [f"--mount={_mount(tree)}" for tree in _in_order(trees)]
    words += [f"--publish=127.0.0.1:{rule.outside}:{rule.outside}" for rule in policy.expose]
    return (*words, "--entrypoint=python3", IMAGE, "-I", "-m", MODULE, "carry", around.name)


def _in_order(trees: Iterable[Tree]) -> list[Tree]:
    """Outer ones first; of one path the first."""
    return sorted(
        {tree.path: tree for tree in reversed(list(trees))}.values(), key=lambda tree: (tree.path.count("/"), tree.path)
    )


def _mount(tree: Tree) -> str:
    """One line of RFC 4180, as ``--mount`` reads it."""
    fields = ["type=bind", f"source={tree.path}", f"target={tree.path}", *(("readonly",) if tree.mode == "ro" else ())]
    return ",".join('"' + field.replace('"', '""') + '"' if set(field) & set(',"\r\n') else field for field in fields)
