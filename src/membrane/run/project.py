"""Which project file counts for a workspace, and what its relative paths and patterns mean there.

Theory of operation
-------------------
It is the nearest ``.membrane.yaml``, in the workspace or above it: what a project hides stays hidden for who starts
further down, and no repository or directory that a command made there changes that.  Its relative paths start from
where it is, and its patterns are moved (``policy.files.moved``).
"""

from __future__ import annotations

import os

from ..errors import HostError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..policy.model import MountRule, PathRule, Policy, SocketRule

PROJECT_FILE = ".membrane.yaml"


def here() -> str:
    """The current directory, resolved, or "/" where there is none any more: that is in no workspace."""
    try:
        return os.getcwd()
    except OSError:
        return "/"


def current() -> str:
    """The current directory, resolved, as the workspace.

    Raises:
        HostError: it is gone.
    """
    try:
        return os.getcwd()
    except OSError as error:
        tried, fix = "use the current directory as the workspace", "cd into a directory that exists"
        raise HostError(tried, error.strerror or "", fix=(fix,)) from None


def beside(name: str) -> str:
    """The directory whose runs ``name`` of a record counts: ``@last`` is the last one *here*.

    Raises:
        HostError: the name counts from here, and here is gone.
    """
    return current() if name.startswith("@") else here()


def project_place(workspace: str) -> tuple[str, str]:
    """The directory whose project file counts for ``workspace``, and what to warn about.

    Without a file anywhere it is the workspace.  A file above that is another user's, who could not write the
    workspace, does not count (as git's ``safe.directory``): else who can write ``/tmp`` would stop every run below it.
    """
    path = workspace
    while not os.path.lexists(f"{path}/{PROJECT_FILE}"):
        if path == "/":
            return workspace, ""
        path = os.path.dirname(path)
    if path == workspace:
        return workspace, ""
    file = f"{path.rstrip('/')}/{PROJECT_FILE}"
    try:
        others = {os.lstat(each).st_uid for each in (path, file)} - {0, os.geteuid(), os.stat(workspace).st_uid}
    except OSError:
        return workspace, ""
    if others:
        fix = f"cd {path}, or copy what holds here to {workspace}/{PROJECT_FILE}"
        return workspace, f"{file} is another user's and does not hold in {workspace}: {fix}"
    return path, ""


def in_workspace(policy: Policy, workspace: str, place: str = "") -> Policy:
    """``policy`` with the paths of its mounts and sockets made absolute: a decision knows no directory.

    Args:
        place: where the project file is, if that is not ``workspace``.
    """
    if place not in ("", workspace):
        import hashlib
        from itertools import groupby

        from ..policy.files import moved

        names = workspace[len(place.rstrip("/")) + 1 :].split("/")
        paths: list[PathRule] = []
        for ours, rules in groupby(policy.paths, key=lambda rule: rule.origin.level == "project"):
            batch = [*rules]
            paths += moved(batch, names) if ours else batch
        policy = policy.replace(
            paths=tuple(paths), digest=hashlib.sha256(os.fsencode(f"{place}\0{workspace}\0{policy.digest}")).hexdigest()
        )
    if not policy.mounts and not policy.unix_sockets:
        return policy
    from ..plan.mounts import absolute

    def start(rule: MountRule | SocketRule) -> str:
        return place if place and rule.origin.level == "project" else workspace

    return policy.replace(
        mounts=tuple(
            rule if rule.git_root else rule.replace(path=absolute(rule.path, start(rule))) for rule in policy.mounts
        ),
        unix_sockets=tuple(rule.replace(path=absolute(rule.path, start(rule))) for rule in policy.unix_sockets),
    )
