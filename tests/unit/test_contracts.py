"""The contracts of imports: each breaks when its violation is planted, in a copy, and the tree as it is keeps all.

What import-linter cannot see, an import without an import statement and a clock behind a listed module, is looked for
in the text of the modules that the contract calls pure.
"""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
LAYERS, PURE, KERNEL, CIRCLES, SEAM = [contract["name"] for contract in CONTRACTS]
ALL = (LAYERS, PURE, KERNEL, CIRCLES, SEAM)
PACKAGE = ROOT / "src" / "membrane"

pytestmark = pytest.mark.needs_tool(str(Path(sys.executable).with_name("lint-imports")))


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what import-linter reads."""
    copy = tmp_path_factory.mktemp("tree")
    shutil.copytree(PACKAGE, copy / "src" / "membrane", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "scripts", copy / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    return copy


def broken(tree: Path) -> tuple[set[str], str]:
    """The contracts that the copy breaks, and what is said about them."""
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-logo", "--no-cache"],
        cwd=tree,
        env={"PYTHONPATH": str(tree / "src"), "COLUMNS": "1000", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    found = {name for name in ALL if f"{name} BROKEN" in done.stdout}
    kept = {name for name in ALL if f"{name} KEPT" in done.stdout}
    assert found | kept == set(ALL), done.stdout + done.stderr
    assert done.returncode == (1 if found else 0)
    return found, done.stdout


def planted(tree: Path, module: str, line: str) -> tuple[set[str], str]:
    """What breaks with ``line`` at the end of ``module`` (a path below the package)."""
    path = tree / "src" / "membrane" / module
    before = path.read_text()
    path.write_text(f"{before}\n\ndef _planted() -> None:\n    {line}\n")
    try:
        return broken(tree)
    finally:
        path.write_text(before)


def test_the_tree_keeps_every_contract(tree: Path) -> None:
    assert broken(tree)[0] == set()


@pytest.mark.parametrize(
    ("module", "line", "contract", "said"),
    [
        ("policy/decide.py", "import _socket", PURE, "membrane.policy.decide:"),
        ("policy/decide.py", "import posix, _thread", PURE, "imports _thread"),
        ("policy/hosts.py", "import time", PURE, "imports time"),
        ("value.py", "import _io", PURE, "imports _io"),
        ("events.py", "import os", PURE, "imports os"),
        ("plan/network.py", "import secrets", PURE, "imports secrets"),
        ("plan/build.py", "from ..host import facts", LAYERS, "membrane.host.facts"),
        ("gateway/http/sigv4.py", "from urllib.request import urlopen", PURE, "imports urllib"),
        ("gateway/http/sigv4.py", "import urllib.parse, urllib.request", PURE, "imports urllib"),
        ("gateway/http/requests.py", "from ..reactor import Reactor", PURE, "imports membrane.gateway.reactor"),
        ("record/joining.py", "import select", PURE, "imports select"),
        ("record/spans.py", "from _random import Random", PURE, "imports _random"),
        ("record/changes.py", "import importlib", PURE, "imports importlib"),
        ("run/masks.py", "import ctypes", KERNEL, "membrane.run.masks -> ctypes"),
        ("policy/decide.py", "import _ctypes", KERNEL, "membrane.policy.decide -> _ctypes"),
        ("run/registry.py", "import mmap", KERNEL, "membrane.run.registry -> mmap"),
        ("ui/cli.py", "from ..host import ffi", KERNEL, "membrane.ui.cli -> membrane.host.ffi"),
        (
            "run/session.py",
            "from ..host.readback import read_back",
            SEAM,
            "membrane.run.session -> membrane.host.readback",
        ),
        ("ui/learn.py", "from ..host import launch", SEAM, "membrane.ui.learn -> membrane.host.launch"),
        (
            "api/supervisor.py",
            "from ..backend import native",
            SEAM,
            "membrane.api.supervisor -> membrane.backend.native",
        ),
        ("srt/cli.py", "import membrane.host.spawner", SEAM, "membrane.srt.cli -> membrane.host.spawner"),
        ("srt/domains.py", "from .settings import check", CIRCLES, "No cycles are allowed in membrane.srt."),
        (
            "gateway/relay.py",
            "if TYPE_CHECKING: from .intercept import Inspector",
            CIRCLES,
            "No cycles are allowed in membrane.gateway.",
        ),
        (
            "gateway/http/requests.py",
            "if TYPE_CHECKING: from .credentials import Vault",
            CIRCLES,
            "No cycles are allowed in membrane.gateway.http.",
        ),
        ("backend/native.py", "from ..run import session", LAYERS, "membrane.backend.native -> membrane.run.session"),
        ("host/init.py", "from .spawner import spawner", CIRCLES, "init"),
        ("host/launcher.py", "from . import launch", CIRCLES, "launcher"),
        ("events.py", "from .run import event_log", LAYERS, "membrane.events -> membrane.run.event_log"),
    ],
)
def test_a_planted_import_breaks_its_contract(tree: Path, module: str, line: str, contract: str, said: str) -> None:
    found, text = planted(tree, module, line)
    assert contract in found
    assert said in text


def test_a_pure_module_that_does_not_exist_is_an_error(tree: Path) -> None:
    """Renamed, it would otherwise be judged by nobody."""
    path = tree / "pyproject.toml"
    before = path.read_text()
    path.write_text(before.replace('"membrane.gateway.sniff"', '"membrane.gateway.snuff"'))
    try:
        with pytest.raises(AssertionError, match=r"there is no module membrane\.gateway\.snuff"):
            broken(tree)
    finally:
        path.write_text(before)


def pure_files() -> Iterator[Path]:
    for name in CONTRACTS[1]["source_modules"]:
        path = PACKAGE / name.removeprefix("membrane.").replace(".", "/")
        yield from sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]


def impurities(text: str) -> list[str]:
    """Names through which a module does I/O, loads others or reads a clock, without importing what is forbidden."""
    hidden = {"open", "input", "print", "exec", "eval", "__import__", "__builtins__", "__loader__", "breakpoint"}
    clocks = {"now", "utcnow", "today", "fromtimestamp"}
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Name) and node.id in hidden:
            found.append(node.id)
        elif isinstance(node, ast.Attribute) and node.attr in clocks:
            found.append(f".{node.attr}")
    return found


def test_pure_modules_reach_nothing_without_an_import() -> None:
    files = list(pure_files())
    assert len(files) > 40
    assert {str(path): found for path in files if (found := impurities(path.read_text()))} == {}


@pytest.mark.parametrize("text", ["open('x')", "f = __import__", "datetime.now()", "eval(x)", "date.today()"])
def test_an_impurity_is_seen(text: str) -> None:
    assert impurities(text)
