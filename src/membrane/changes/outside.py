"""Programs of the host that run outside for us: git and the pager for a look or an apply, skopeo for an image.

Theory of operation
-------------------
A person's ``PATH`` often leads into the workspace (an activated virtual environment, ``node_modules/.bin``), where the
command writes: no program of it may run outside without being asked for.  So directories of ``PATH`` that are in the
workspace, or lead into it, are passed over, and so are relative ones, which depend on where one is.  A program that
looks for others itself gets a ``PATH`` without them.
"""

from __future__ import annotations

import os


def program(name: str, *roots: str) -> str | None:
    """The path of a program outside of ``roots``, trees that commands write (resolved); None: there is none.

    A name with a slash in it is judged as it is; relative it is none.
    """
    places = (os.path.dirname(name),) if "/" in name else os.get_exec_path()
    for directory in places:
        path = f"{directory}/{os.path.basename(name)}"
        if not directory.startswith("/") or not os.access(path, os.X_OK) or not os.path.isfile(path):
            continue
        places_of_it = os.path.realpath(directory), os.path.realpath(path)
        if not any(_is_within(each, root) for each in places_of_it for root in roots):
            return path
    return None


def search_path(*roots: str) -> str:
    """``PATH`` with the directories in which ``program`` looks, for a child that starts programs by name."""
    places = (place for place in os.get_exec_path() if place.startswith("/"))
    return os.pathsep.join(
        place for place in places if not any(_is_within(os.path.realpath(place), root) for root in roots)
    )


def _is_within(path: str, root: str) -> bool:
    return f"{path}/".startswith(f"{root.rstrip('/')}/") and bool(root.rstrip("/"))
