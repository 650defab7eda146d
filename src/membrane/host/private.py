"""Directories of our state: made where they are missing, and the caller's alone."""

from __future__ import annotations

import os

from ..errors import HostError


def make_private(path: str) -> None:
    """Make a directory of our state and what is missing above it, mode 0700.

    Raises:
        HostError: it cannot be made or belongs to another user.
    """
    try:
        _make_missing(path)
        details = os.stat(path)
    except OSError as error:
        raise HostError(
            "make membrane's state directory",
            error.strerror or "",
            target=path,
            fix=("set MEMBRANE_HOME to a directory that you can write",),
        ) from None
    if details.st_uid != os.geteuid():
        raise HostError(
            "use membrane's state directory",
            f"it belongs to uid {details.st_uid}",
            target=path,
            fix=("set MEMBRANE_HOME to a directory of your own",),
        )


def _make_missing(path: str) -> None:
    # Not os.makedirs: its mode is for the last directory only.
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    if parent != path:
        _make_missing(parent)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
