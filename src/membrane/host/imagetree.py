"""The tree that the layers of an image show together, as overlayfs shows it, read without a mount.

Theory of operation
-------------------
The layers are directories of our state, which only we write (``unpack``).  A name is what the uppermost layer has under
it; directories are one with those of the layers below, until a layer has a whiteout or another kind there, or says that
its directory is opaque (overlayfs.rst, "whiteouts and opaque directories").  Each step looks at one name with lstat(2):
a link of the image is data, and is only ever followed within the image (``Tree.find``).
"""

from __future__ import annotations

import errno
import os
import stat

from ..errors import HostError
from ..plan.model import ImageTree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal, TypeAlias

    Kind: TypeAlias = Literal["", "directory", "file", "link"]

MOST_TREES = 500  # trees of one view: each is a mount
MOST_NAMES = 10_000  # in a directory that is looked through
MOST_SOURCES = 800  # directories of all their layers: each is a descriptor while the view is built
MOST_LINKS = 40  # as the kernel follows them (path_resolution(7))
_OPAQUE = "user.overlay.opaque"


class BadImage(HostError):
    """The image cannot be used; nothing of it was kept that has not the right digest."""

    def __init__(self, cause: str, path: str, *fix: str) -> None:
        super().__init__("use the image", cause, target=path, fix=fix)


class Tree:
    """The tree of some layers.

    Args:
        layers: directories, the lowest first.
        empty: an empty directory, the lowest of all: overlayfs takes no single one.
    """

    def __init__(self, layers: Sequence[str], empty: str) -> None:
        top = tuple(reversed(layers))
        last = next((number for number, layer in enumerate(top) if _is_opaque(layer)), len(top))
        self._top = top[: last + 1]
        self.empty = empty
        self._known: dict[str, tuple[Kind, tuple[str, ...]]] = {}  # by path without links: most are asked of again

    def entry(self, above: Sequence[str], name: str) -> tuple[Kind, tuple[str, ...]]:
        """What ``name`` is in a directory: directories of layers, one file, or what a link says; "": nothing."""
        found: list[str] = []
        for layer in above:
            path = f"{layer}/{name}"
            try:
                mode = os.lstat(path).st_mode
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                if error.errno != errno.ENAMETOOLONG:
                    raise
                return "", ()  # a link or a configuration can say more than any directory has
            if stat.S_ISDIR(mode):
                found.append(path)
                if _is_opaque(path):
                    break
                continue
            if not found and stat.S_ISLNK(mode):
                return "link", (os.readlink(path),)
            if not found and stat.S_ISREG(mode):
                return "file", (path,)
            break  # a whiteout, or something that the directories above hide
        return ("directory", tuple(found)) if found else ("", ())

    def _at(self, path: str, above: Sequence[str], name: str) -> tuple[Kind, tuple[str, ...]]:
        found = self._known.get(path)
        if found is None:
            found = self._known[path] = self.entry(above, name)
        return found

    def find(self, path: str) -> tuple[str, Kind, tuple[str, ...]]:
        """What is at ``path`` of the image, links followed within it.

        Returns:
            The path without links, what it is, as ``entry`` says it; ``""`` for nothing and for a circle of links.
        """
        left = [part for part in reversed(path.split("/")) if part]
        way: list[tuple[str, tuple[str, ...]]] = [("", self._top)]
        links = 0
        while left:
            name = left.pop()
            if name == "..":
                del way[max(1, len(way) - 1) :]
            if name in (".", ".."):
                continue
            here = f"{way[-1][0]}/{name}"
            kind, sources = self._at(here, way[-1][1], name)
            if kind == "directory":
                way.append((here, sources))
            elif kind == "link":
                links += 1
                if links > MOST_LINKS:
                    return here, "", ()
                left += [part for part in reversed(sources[0].split("/")) if part]
                if sources[0].startswith("/"):
                    del way[1:]
            else:
                return (here, kind, sources) if not left else (here, "", ())
        return way[-1][0] or "/", "directory", way[-1][1]

    def trees(self, own: Sequence[str], whole: Sequence[str]) -> list[ImageTree]:
        """What a view shows of the image.

        Args:
            own: paths where the view has something else.
            whole: directories that are one tree whatever is below them.

        Raises:
            BadImage: one of ``whole`` is no directory; too many trees would be needed.
        """
        out: list[ImageTree] = []
        self._expand("", self._top, own, whole, out)
        count = sum(len(each.sources) for each in out)
        if count > MOST_SOURCES:
            cause = f"its layers are to be put together {count} times, of at most {MOST_SOURCES}"
            raise BadImage(cause, "/", "make an image with fewer layers (podman build --squash-all)")
        return out

    def _names(self, path: str, above: Sequence[str]) -> list[str]:
        found = set[str]()
        for layer in above:
            with os.scandir(layer) as entries:
                for entry in entries:
                    found.add(entry.name)
                    if len(found) > MOST_NAMES:
                        raise BadImage(f"its layers have more than {MOST_NAMES} names there", path or "/")
        return sorted(found)

    def _expand(
        self, path: str, above: tuple[str, ...], own: Sequence[str], whole: Sequence[str], out: list[ImageTree]
    ) -> None:
        for name in self._names(path, above):
            here = f"{path}/{name}"
            if here in own:
                continue
            kind, sources = self._at(here, above, name)
            if not kind:
                continue
            if len(out) >= MOST_TREES:
                raise BadImage(f"beside {path or '/'} it needs more than {MOST_TREES} mounts", here, "another place")
            if here in whole and kind != "directory":
                raise BadImage("it is no directory of the image", here)
            inner = here not in whole and any(each.startswith(f"{here}/") for each in own)
            if inner and kind == "directory":
                mode = stat.S_IMODE(os.lstat(sources[0]).st_mode) & 0o1777
                out.append(ImageTree(here, "expanded", (), mode))
                self._expand(here, sources, own, whole, out)
            elif not inner:
                out.append(ImageTree(here, kind, (*sources, self.empty) if kind == "directory" else sources))


def _is_opaque(path: str) -> bool:
    try:
        return os.getxattr(path, _OPAQUE, follow_symlinks=False) == b"y"
    except OSError:
        return False  # there is none
