"""A file that both the command and the host changed, merged in three ways by ``git merge-file``.

Theory of operation
-------------------
The three texts are what was there at the start (the copy that ``base`` keeps), what the host has now, and what the
command made.  Only a merge without conflicts counts: no file with markers is ever put in place.  git runs with an
empty environment in a private directory, on names of ours.
"""

from __future__ import annotations

LARGEST = 8 << 20  # bytes of each of the three
TIME = 20  # seconds


def merged(base: bytes, host: bytes, inside: bytes, *, root: str) -> bytes | None:
    """The text with the changes of both; None: they are in each other's way, it is no text, or there is no git.

    ``root``: the workspace, resolved: no git of it is run.
    """
    import subprocess
    import tempfile

    from .outside import program, search_path

    git = program("git", root)
    if (
        git is None
        or max(map(len, (base, host, inside))) > LARGEST
        or any(b"\0" in each for each in (base, host, inside))
    ):
        return None
    with tempfile.TemporaryDirectory(prefix="membrane-merge-") as place:
        for name, data in (("base", base), ("host", host), ("inside", inside)):
            with open(f"{place}/{name}", "wb") as file:
                file.write(data)
        environment = {
            "PATH": search_path(root),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_DIR": f"{place}/.none",
            "LC_ALL": "C",
        }
        try:
            done = subprocess.run(
                [git, "merge-file", "-p", "-q", "host", "base", "inside"],
                cwd=place, env=environment, capture_output=True, stdin=subprocess.DEVNULL, timeout=TIME, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return None
    return done.stdout if done.returncode == 0 else None
