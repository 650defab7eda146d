"""Build hook: compile the tracing programs into the package.

Theory of operation
-------------------
``src/membrane/bpf/trace.bpf.o`` is made from C by clang, or by the clang inside the ``ziglang`` package, which pip
fetches into the build environment when there is no clang.  The object is the same for every kernel (CO-RE) and is not
in git.  An editable install compiles it next to its source.  With no compiler at all the package is built without it,
and tracing says so.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NATIVE = os.path.join("src", "membrane", "bpf")
OBJECT = os.path.join(NATIVE, "trace.bpf.o")
FLAGS = ("-O2", "-g", "-Wall", "-Werror", "-c", "trace.bpf.c", "-o")
ZIGLANG = "ziglang==0.15.2"  # as in the extra "test": a rebuild must give the same instructions


def clang() -> list[str] | None:
    """The command of a clang that can make BPF, without its arguments."""
    program = shutil.which("clang")
    if program is None:
        return None
    targets = subprocess.run([program, "--print-targets"], capture_output=True, text=True, check=False).stdout
    return [program, "-target", "bpf"] if "bpfel" in targets else None


def compiler() -> list[str] | None:
    """clang, or what ziglang brings."""
    found = clang()
    if found is None and importlib.util.find_spec("ziglang") is not None:
        found = [sys.executable, "-m", "ziglang", "cc", "-target", "bpfel-freestanding"]
    return found


def compile_object(root: str, output: str) -> bool:
    """Compile into ``output``: whether there is a compiler.

    Raises:
        RuntimeError: the compiler refused the source.
    """
    command = compiler()
    if command is None:
        return False
    # In its directory and with its bare name: the object names no path of the machine that built it.
    directory = os.path.join(root, NATIVE)
    flags = [*FLAGS, os.path.abspath(output), "-fdebug-prefix-map=" + os.path.abspath(directory) + "=."]
    with tempfile.TemporaryDirectory() as cache:  # zig would keep one in the home of whoever installs
        environment = {**os.environ, "ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache}
        result = subprocess.run(
            [*command, *flags], cwd=directory, env=environment, capture_output=True, text=True, check=False
        )
    if result.returncode:
        raise RuntimeError(f"{' '.join(command)}: {result.stderr}")
    return True


class CustomBuildHook(BuildHookInterface[Any]):
    """Runs for wheels and editable installs."""

    def dependencies(self) -> list[str]:
        return [] if clang() else [ZIGLANG]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        output = os.path.join(self.root, OBJECT)
        partial = f"{output}.{os.getpid()}"
        try:
            if compile_object(self.root, partial):
                os.replace(partial, output)
            else:
                self.app.display_warning("no clang and no ziglang: built without tracing programs")
        finally:
            if os.path.exists(partial):
                os.unlink(partial)
        if os.path.exists(output):
            build_data["artifacts"].append(OBJECT)
