"""``python -m scripts.mutants``: break the lines that carry security, one at a time, and see which tests notice.

Theory of operation
-------------------
``mutants.toml`` names functions, and for each the quick tests that ought to notice when a line of it is wrong.  A
mutant is one small change of the text: a condition negated or one part of it left out, a ``not`` dropped, a comparison
turned round, a truth value returned as the other one, a statement (a refusal, a check that raises, a note that
something was lost) left out.  The tests run against a copy of the source in a temporary directory, first as it is and
then with one mutant at a time; the checkout is never written.  A mutant *survives* when its tests pass.

A survivor is a check that can be removed without anybody noticing: it gets a test, or, where no test can tell the
difference, a row in ``mutants.toml`` that says why.  A row names the change and not the line, so it outlives edits; a
row that fits no mutant any more is reported when everything was tried.

All work is bounded: ``--most`` mutants (drawn with ``--seed``), ``--minutes``, and for each run of the tests the
time that they took without a mutant, several times over.  A mutant that runs into that bound is noticed.

Exit status: 0, 1 when an unexplained mutant survived or a row of the data fits none, 2 when the tests fail without one.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, NoReturn

import hypothesis  # noqa: F401 - loaded here, once, for all runs
import pytest

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(__file__).with_suffix(".toml")
PATIENCE = 5.0  # a run may take so many times as long as without a mutant, and
GRACE = 10.0  # seconds more
WORDS = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.In: "in",
    ast.NotIn: "not in",
    ast.Is: "is",
    ast.IsNot: "is not",
}
OPPOSITE = {
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}


class Mutant(NamedTuple):
    """One change: the text from ``start`` to ``end`` (bytes of the file) becomes ``text``."""

    file: str  # below src/membrane
    function: str  # ``name`` or ``Class.name``
    line: int
    start: int
    end: int
    before: str  # on one line, as it is shown and named in the data
    text: str

    @property
    def change(self) -> str:
        """How the data names it: without white space that means nothing."""
        return f"{_one_line(self.before)} -> {_one_line(self.text)}"


def _one_line(text: str) -> str:
    return " ".join(text.split())


class Target(NamedTuple):
    """Functions of one file, and what should notice a change of them."""

    file: str
    functions: tuple[str, ...]  # empty: all of the file
    tests: tuple[str, ...]  # arguments of pytest


class _Finder(ast.NodeVisitor):
    """Collects the mutants of one function."""

    def __init__(self, file: str, function: str, source: bytes) -> None:
        self.file, self.function, self.source = file, function, source
        self.starts = [0]
        for line in source.split(b"\n"):
            self.starts.append(self.starts[-1] + len(line) + 1)
        self.found: list[Mutant] = []
        self.depth = 0

    def _at(self, node: ast.AST) -> tuple[int, int]:
        return (
            self.starts[node.lineno - 1] + node.col_offset,  # type: ignore[attr-defined]
            self.starts[node.end_lineno - 1] + node.end_col_offset,  # type: ignore[attr-defined]
        )

    def _text(self, node: ast.AST) -> str:
        start, end = self._at(node)
        return self.source[start:end].decode()

    def _add(self, node: ast.AST, text: str) -> None:
        start, end = self._at(node)
        line: int = node.lineno  # type: ignore[attr-defined]
        self.found.append(Mutant(self.file, self.function, line, start, end, self._text(node), text))

    def _condition(self, test: ast.expr) -> None:
        negated = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
        turned = isinstance(test, ast.Compare) and len(test.ops) == 1 and not _ordered(test.ops[0])
        if not negated and not turned:  # those two are tried as what they are
            self._add(test, f"(not ({self._text(test)}))")

    def visit_If(self, node: ast.If) -> None:
        self._condition(node.test)
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        if not isinstance(node.test, ast.Constant):
            self._condition(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._condition(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._condition(test)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        word = " and " if isinstance(node.op, ast.And) else " or "
        for left_out in node.values:
            kept = [f"({self._text(value)})" for value in node.values if value is not left_out]
            self._add(node, f"({word.join(kept)})")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._add(node, f"({self._text(node.operand)})")
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        values = [node.left, *node.comparators]
        for turned in range(len(node.ops)):
            words = [(OPPOSITE if at == turned else WORDS)[type(op)] for at, op in enumerate(node.ops)]
            parts = [self._text(values[0])]
            for word, value in zip(words, values[1:], strict=True):
                parts += [word, self._text(value)]
            self._add(node, f"({' '.join(parts)})")
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        value = node.value
        if isinstance(value, ast.Constant) and isinstance(value.value, bool):
            self._add(node, f"return {not value.value}")
        elif self.depth:
            self._add(node, "pass")
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        self._add(node, "pass")  # what it says is nobody's security

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, (ast.Call, ast.Await)):
            self._add(node, "pass")
            self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._add(node, "pass")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if isinstance(node.targets[0], (ast.Attribute, ast.Subscript)):  # without a name everything fails
            self._add(node, "pass")
        self.generic_visit(node)

    def visit_Continue(self, node: ast.Continue) -> None:
        self._add(node, "pass")

    def visit_Assert(self, node: ast.Assert) -> None:
        """For the type checker."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """A text."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.depth += 1  # a return of an inner function, or of a block, can be left out
        self.generic_visit(node)
        self.depth -= 1

    def body(self, function: ast.FunctionDef) -> list[Mutant]:
        """The mutants of one function, in order."""
        for statement in function.body:
            self.depth = int(not isinstance(statement, ast.Return))
            self.visit(statement)
        return self.found


def _ordered(op: ast.cmpop) -> bool:
    return isinstance(op, (ast.Lt, ast.LtE, ast.Gt, ast.GtE))


def functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Every function of a module and method of its classes, by the name that the data uses."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            for member in node.body:
                if isinstance(member, ast.FunctionDef):
                    yield f"{node.name}.{member.name}", member


def mutants_of(file: str, source: bytes, wanted: tuple[str, ...]) -> list[Mutant]:
    """The mutants of the named functions of one file; ``Class.*`` names all methods, nothing everything.

    Raises:
        LookupError: there is no such function.
    """
    known = dict(functions(ast.parse(source)))
    chosen = {
        name: node
        for name, node in known.items()
        if not wanted or name in wanted or f"{name.partition('.')[0]}.*" in wanted
    }
    for name in wanted:
        if not name.endswith(".*") and name not in known:
            raise LookupError(f"{file} has no function {name}")
    found: list[Mutant] = []
    for name, node in chosen.items():
        found += _Finder(file, name, source).body(node)
    return found


def applied(source: bytes, mutant: Mutant) -> bytes:
    """The file with the change."""
    return source[: mutant.start] + mutant.text.encode() + source[mutant.end :]


def read_data(text: str) -> tuple[list[Target], dict[tuple[str, str, str], str]]:
    """The targets, and the reason of each explained survivor by file, function and change."""
    data = tomllib.loads(text)
    targets = [Target(each["file"], tuple(each.get("functions", ())), tuple(each["tests"])) for each in data["target"]]
    reasons = {
        (each["file"], each["function"], _one_line(each["change"])): each["reason"]
        for each in data.get("equivalent", ())
    }
    return targets, reasons


class _Bench:
    """The copy, and runs of tests in it."""

    def __init__(self, directory: str) -> None:
        self.root = Path(directory)
        without = shutil.ignore_patterns("__pycache__", ".pytest_cache")
        for name in ("src", "tests", "scripts", "docs"):
            shutil.copytree(ROOT / name, self.root / name, ignore=without)
        for name in ("pyproject.toml", "README.md", "CHANGELOG.md"):
            shutil.copy(ROOT / name, self.root)
        self.environ = {**os.environ, "PYTHONPATH": str(self.root / "src")}
        self._took: dict[tuple[str, ...], float] = {}
        place = subprocess.run(
            [sys.executable, "-c", "import membrane; print(membrane.__file__)"],
            env=self.environ, cwd=self.root, capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        if not place.startswith(str(self.root)):
            raise RuntimeError(f"the tests would run {place}, not the copy")

    def path(self, file: str) -> Path:
        return self.root / "src/membrane" / file

    def run(self, tests: tuple[str, ...], seconds: float) -> tuple[int | None, str]:
        """Exit status of pytest (None: it took too long), and the end of what it said."""
        with tempfile.TemporaryFile() as said:
            pid = os.fork()  # pytest is loaded once, and nothing of the package
            if pid == 0:
                self._test(tests, said.fileno())
            pidfd = os.pidfd_open(pid)
            try:
                ended = select.select([pidfd], [], [], seconds)[0]
            finally:
                os.close(pidfd)
                try:
                    os.killpg(pid, signal.SIGKILL)  # and what a wrong check has left running
                except ProcessLookupError:
                    pass  # it has not come as far as to make its group, or nothing is left
                if not ended:
                    os.kill(pid, signal.SIGKILL)
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            said.seek(0)
            return status if ended else None, said.read()[-3000:].decode("utf-8", "replace")

    def _test(self, tests: tuple[str, ...], said: int) -> NoReturn:
        status = 70
        try:
            os.setsid()
            for fd in (1, 2):
                os.dup2(said, fd)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.chdir(self.root)
            os.environ.update(self.environ)
            sys.path[:0] = [str(self.root / "src"), str(self.root)]
            early = "ignore::pytest.PytestAssertRewriteWarning"  # hypothesis was loaded before pytest could rewrite it
            place = f"--basetemp={self.root}/places"  # what earlier runs of anybody left elsewhere is not looked at
            status = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-W", early, place, *tests]))
            sys.stdout.flush()
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(status)

    def baseline(self, tests: tuple[str, ...]) -> float:
        """Seconds that the tests take without a mutant; they pass.

        Raises:
            RuntimeError: they do not.
        """
        if tests not in self._took:
            begin = time.monotonic()
            status, said = self.run(tests, 300)
            if status != 0:
                raise RuntimeError(f"{' '.join(tests)} fails without a mutant:\n{said}")
            self._took[tests] = time.monotonic() - begin
        return self._took[tests]

    def survives(self, mutant: Mutant, tests: tuple[str, ...]) -> bool:
        """Do the tests pass with the change?"""
        path = self.path(mutant.file)
        source = path.read_bytes()
        seconds = self.baseline(tests) * PATIENCE + GRACE
        changed = applied(source, mutant)
        compile(changed, mutant.file, "exec")  # one that means nothing would be noticed by everything
        path.write_bytes(changed)
        try:
            self._forget(path)
            return self.run(tests, seconds)[0] == 0
        finally:
            path.write_bytes(source)
            self._forget(path)

    @staticmethod
    def _forget(path: Path) -> None:
        """Two changes of one second may have the same size: byte code is known by no more than that."""
        for cached in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            cached.unlink()


def main(argv: list[str] | None = None) -> int:
    """The command; see the head of this file."""
    parser = argparse.ArgumentParser(prog="python -m scripts.mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="print the mutants and run nothing")
    parser.add_argument("--only", default="", metavar="TEXT", help="those whose file:function holds TEXT")
    parser.add_argument("--most", type=int, default=10_000, metavar="N", help="at most so many, drawn at random")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the draw (default 0)")
    parser.add_argument("--minutes", type=float, default=25.0, metavar="M", help="stop after that (default 25)")
    options = parser.parse_args(argv)
    targets, reasons = read_data(DATA.read_text())
    drawn = [
        (mutant, target.tests)
        for target in targets
        for mutant in mutants_of(target.file, (ROOT / "src/membrane" / target.file).read_bytes(), target.functions)
        if options.only in f"{mutant.file}:{mutant.function}"
    ]
    everything = len(drawn) <= options.most and not options.only
    if len(drawn) > options.most:
        kept = set(random.Random(options.seed).sample(range(len(drawn)), options.most))  # noqa: S311
        drawn = [each for number, each in enumerate(drawn) if number in kept]
    if options.list:
        for mutant, tests in drawn:
            print(f"{mutant.file}:{mutant.line} {mutant.function}: {mutant.change}   [{' '.join(tests)}]")
        print(f"{len(drawn)} mutants")
        return 0
    end = time.monotonic() + options.minutes * 60
    tried, explained, survivors = 0, 0, []
    with tempfile.TemporaryDirectory(prefix="membrane-mutants-") as directory:
        bench = _Bench(directory)
        for mutant, tests in drawn:
            if time.monotonic() > end:
                everything = False
                print(f"stopped after {options.minutes:g} minutes: {len(drawn) - tried} were not tried")
                break
            if (mutant.file, mutant.function, mutant.change) in reasons:
                explained += 1
                continue
            tried += 1
            try:
                if bench.survives(mutant, tests):
                    survivors.append(mutant)
                    print(f"survived: {mutant.file}:{mutant.line} {mutant.function}: {mutant.change}", flush=True)
            except RuntimeError as error:
                print(error, file=sys.stderr)
                return 2
    print(f"{tried} tried, {tried - len(survivors)} noticed, {len(survivors)} survived; {explained} explained")
    known = {(mutant.file, mutant.function, mutant.change) for mutant, _tests in drawn}
    stale = [row for row in reasons if row not in known] if everything else []
    for file, function, change in stale:
        print(f"mutants.toml explains what is not there: {file} {function}: {change}")
    return 1 if survivors or stale else 0


if __name__ == "__main__":
    sys.exit(main())
