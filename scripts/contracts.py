"""A contract for import-linter: modules that import what is listed, and nothing else.

Theory of operation
-------------------
import-linter's own contracts list what is forbidden, and a module that nobody thought of (``_socket`` beside
``socket``) passes.  ``Only`` lists what is allowed: a new import of a pure module is refused until somebody has looked
at it and put it into ``pyproject.toml``.  It judges each import statement, not chains: what a listed module imports in
turn is that module's business.  A listed package covers its members.  Names that are bound without an import
(``open``, ``__import__``) and clocks of a listed module (``datetime.now``) are looked for by
``tests/unit/test_contracts.py``, which also breaks each contract on purpose.
"""

from __future__ import annotations

from typing import Any

from importlinter import Contract, ContractCheck, fields, output


class Only(Contract):
    """``source_modules`` and their members import each other, and ``allowed_modules`` with their members."""

    type_name = "only"

    source_modules: Any = fields.ListField(subfield=fields.StringField())
    allowed_modules: Any = fields.ListField(subfield=fields.StringField())

    def check(self, graph: Any, verbose: bool) -> ContractCheck:
        missing = [name for name in self.source_modules if name not in graph.modules]
        if missing:  # renamed, or misspelled: it would be judged by nobody
            raise ValueError(f"there is no module {', '.join(missing)}")
        allowed = (*self.source_modules, *self.allowed_modules)
        found = [
            (module, imported, detail["line_number"], detail["line_contents"])
            for module in sorted(graph.modules)
            if _covers(self.source_modules, module)
            for imported in sorted(graph.find_modules_directly_imported_by(module))
            if not _covers(allowed, imported)
            for detail in graph.get_import_details(importer=module, imported=imported)
            if not _names(self.allowed_modules, imported, detail["line_contents"])
        ]
        return ContractCheck(kept=not found, metadata={"found": found})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for module, imported, line, text in check.metadata["found"]:
            output.print_error(f"{module}:{line} imports {imported}, which is not listed: {text}")


def _covers(names: Any, module: str) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in names)


def _names(allowed: Any, package: str, text: str) -> bool:
    """Does the statement name a listed member of ``package``?  The graph knows packages of others as a whole only."""
    listed = [name for name in allowed if name.startswith(f"{package}.")]
    return any(text.startswith(f"from {name} import ") or text == f"import {name}" for name in listed)
