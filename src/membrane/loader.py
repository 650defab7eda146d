"""Loads our own modules at a start with three system calls each.

Theory of operation
-------------------
The import system asks every finder on ``sys.meta_path``, lists directories, and reads byte code through a file
object: for the 50 small modules of a run that costs more than their code.  ``install`` puts a finder for this package
in front.  It knows where the modules are, takes the byte code that belongs to the source as it is now (the rule of
PEP 552 for time stamps, as the import system applies it), and leaves everything else, a missing or stale cache first
of all, to the import system.  No other cache is kept and nothing is written here.
"""

from __future__ import annotations

import marshal
import posix
import sys
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import MAGIC_NUMBER, SourceFileLoader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType, ModuleType

_PACKAGE = __name__.rpartition(".")[0]
_TAG = sys.implementation.cache_tag


class _Loader(SourceFileLoader):
    """The import system's loader, which looks at the byte code by itself first."""

    def __init__(self, name: str, path: str, cached: str, stamp: bytes) -> None:
        super().__init__(name, path)
        self._cached, self._stamp = cached, stamp

    def get_code(self, fullname: str) -> CodeType | None:
        try:
            fd = posix.open(self._cached, posix.O_RDONLY | posix.O_CLOEXEC)
        except OSError:
            return super().get_code(fullname)
        try:
            data = posix.read(fd, posix.fstat(fd).st_size)
        finally:
            posix.close(fd)
        # PEP 552: magic number, flags (0: valid by time stamp), and the source's time and size
        if data[:16] != self._stamp:
            return super().get_code(fullname)
        code: CodeType = marshal.loads(memoryview(data)[16:])  # noqa: S302 - what the import system would do
        return code


class _Finder:
    """The entry of ``sys.meta_path``."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not name.startswith(_PACKAGE + ".") or not path:
            return None
        directory, leaf = path[0], name.rpartition(".")[2]
        package = False
        source = f"{directory}/{leaf}.py"
        try:
            status = posix.stat(source)
        except OSError:
            directory, leaf, package = f"{directory}/{leaf}", "__init__", True
            source = f"{directory}/__init__.py"
            try:
                status = posix.stat(source)
            except OSError:
                return None
        cached = f"{directory}/__pycache__/{leaf}.{_TAG}.pyc"
        stamp = MAGIC_NUMBER + bytes(4)
        for number in (int(status.st_mtime), status.st_size):
            stamp += (number & 0xFFFFFFFF).to_bytes(4, "little")
        spec = ModuleSpec(name, _Loader(name, source, cached, stamp), origin=source, is_package=package)
        if spec.submodule_search_locations is not None:
            spec.submodule_search_locations.append(directory)
        spec.has_location = True
        spec.cached = cached
        return spec


def install() -> None:
    """From now on modules of this package are found here first; for the program's own entry points."""
    if sys.flags.optimize == 0 and sys.pycache_prefix is None and _TAG is not None:
        sys.meta_path.insert(0, _Finder())
