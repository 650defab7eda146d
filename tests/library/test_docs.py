"""The snippets of docs/library.md, as they stand there."""

from __future__ import annotations

import asyncio
import concurrent.futures
import doctest
import os
import subprocess
from pathlib import Path

import pytest

import membrane

DOCS = Path(__file__).parents[2] / "docs"


def test_snippets_of_the_library(workspace: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "MEMBRANE_HOME"):
        monkeypatch.setitem(os.environ, name, environ[name])
    monkeypatch.chdir(workspace)
    (workspace / "server.pem").write_text("a key")
    names = {name: getattr(membrane, name) for name in membrane.__all__}
    text = (DOCS / "library.md").read_text().replace("```", "")
    test = doctest.DocTestParser().get_doctest(
        text,
        {**names, "workspace": workspace, "asyncio": asyncio, "concurrent": concurrent, "subprocess": subprocess},
        "library.md",
        None,
        0,
    )
    said: list[str] = []
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=said.append)
    assert result.attempted > 15 and not result.failed, "".join(said)
