"""``Policy`` as programs use it: immutable, made from files, from data or from nothing, asked before it is bound.

It holds a ``policy.model.Policy``, the one that everything inside decides by; there is no second meaning of a rule.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING, Any, NoReturn

from ..errors import PolicyError
from ..policy import grammar
from ..policy.globs import Pattern
from ..policy.keys import OPTIONS
from ..policy.model import Allow, Malformed, Origin, PathRule
from ..policy.model import Policy as Rules
from ..run import settings
from ..value import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..policy.model import PathEffect

__all__ = ["Decision", "Policy"]


class Decision(Value):
    """What a policy says about one access.

    ``reason`` is one of ``docs/events.md``'s; ``rule`` is the rule that decided and where it was written; ``hint`` is
    the YAML that would allow it, or empty; ``inspected``: the connection is read as HTTP and each request decided.
    """

    allowed: bool
    reason: str
    rule: str = ""
    hint: str = ""
    inspected: bool = False


class Policy:
    """What commands may do.  ``Policy()`` allows no host; the workspace is writable, system trees are readable.

    Every method returns a new policy.

    Raises:
        PolicyError: a rule is wrong; with the place, what was found and what was expected.
    """

    __slots__ = ("_rules", "_warnings")

    def __init__(self) -> None:
        self._rules = Rules()
        self._warnings: tuple[str, ...] = ()

    @classmethod
    def load(
        cls,
        workspace: str | os.PathLike[str] = ".",
        *,
        command: Sequence[str] = (),
        trust_workspace: bool = False,
        environ: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Policy:
        """The policy that ``membrane -- COMMAND`` would use there: the user's, the project's, built-in presets.

        Args:
            workspace: directory of the project.
            command: chooses an agent profile by its first word.
            trust_workspace: let ``.membrane.yaml`` widen the policy; else one that does, and is not approved, raises.
            environ: variables for ``$MEMBRANE_HOME``, ``$HOME`` and those that rules name; None: ``os.environ``.
            options: as on the command line: ``allow``, ``deny``, ``ignore``, ``readonly``, ``mounts``, ``env``,
                ``limits``, ``presets`` (sequences of strings), ``home``, ``view``, ``profile``, ``no_presets``,
                ``no_project``, ``no_global_config``, ... (``policy.keys.OPTIONS``).
        """
        rows = {option.key: option for option in OPTIONS}
        given: dict[str, Any] = {"trust_workspace": trust_workspace}
        for name, value in options.items():
            if name not in rows:
                raise PolicyError("read the options", f"there is no option {name!r}")
            listed = rows[name].repeatable
            if listed and (isinstance(value, str) or not all(isinstance(each, str) for each in value)):
                raise PolicyError("read the options", f"{name} is a sequence of strings, not {value!r}")
            given[name] = tuple(value) if listed else value
        variables = os.environ if environ is None else environ
        place = os.path.realpath(workspace)
        home = settings.state_home(variables)
        loaded = settings.load_policy(given, variables, place, home, command=command, interactive=False)
        return cls._of(loaded.policy, loaded.warnings)

    @classmethod
    def from_dict(
        cls,
        data: Mapping[str, Any],
        *,
        workspace: str | os.PathLike[str] = ".",
        environ: Mapping[str, str] | None = None,
    ) -> Policy:
        """The policy of a file with this content (``docs/policy.md``); built-in presets only where it names them.

        Args:
            data: strings, numbers, booleans, lists and dictionaries, as in YAML.
            workspace: relative paths of mounts and sockets start there.
            environ: as in ``load``.
        """
        try:
            text = json.dumps({"presets": [], **data}, ensure_ascii=False, indent=1)
        except (TypeError, ValueError) as error:
            raise PolicyError("read a policy", f"it is not plain data: {error}", where="from_dict") from None
        variables = os.environ if environ is None else environ
        loaded = settings.read_data(text, os.path.realpath(workspace), variables)
        return cls._of(loaded.policy, loaded.warnings)

    @classmethod
    def _of(cls, rules: Rules, warnings: tuple[str, ...]) -> Policy:
        made = cls.__new__(cls)
        made._rules = rules
        made._warnings = warnings
        return made

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is doubtful in it, a line each."""
        return self._warnings

    @property
    def rules(self) -> Rules:
        """What it consists of (``membrane.policy.model``)."""
        return self._rules

    def allow(self, *hosts: str) -> Policy:
        """With these destinations allowed: host, host:port, ``*.domain``, IP, CIDR or URL."""
        origin = Origin("library", "Policy.allow")
        rules = tuple(_rule(text, "allow", lambda text: grammar.host_rule(text, origin)) for text in hosts)
        return self._with(("allow", *hosts), allow=(*self._rules.allow, *rules))

    def deny(self, *hosts: str) -> Policy:
        """With these destinations refused, whatever allows them."""
        origin = Origin("library", "Policy.deny")
        rules = tuple(_rule(text, "deny", lambda text: grammar.host_rule(text, origin, deny=True)) for text in hosts)
        return self._with(("deny", *hosts), deny=(*self._rules.deny, *rules))

    def hide(self, *patterns: str) -> Policy:
        """With the paths of the workspace that match (gitignore patterns) hidden."""
        return self._paths("hide", patterns)

    def readonly(self, *patterns: str) -> Policy:
        """With the paths of the workspace that match (gitignore patterns) read-only."""
        return self._paths("readonly", patterns)

    def _paths(self, effect: PathEffect, patterns: tuple[str, ...]) -> Policy:
        origin = Origin("library", f"Policy.{effect}")
        for text in patterns:
            _rule(text, effect, Pattern)
        rules = tuple(PathRule(text, origin, effect) for text in patterns)
        return self._with((effect, *patterns), paths=(*self._rules.paths, *rules))

    def _with(self, digested: tuple[str, ...], **fields: Any) -> Policy:
        if len(digested) == 1:
            return self
        digest = hashlib.sha256("\0".join((self._rules.digest, *digested)).encode("utf-8", "surrogateescape"))
        return self._of(self._rules.replace(digest=digest.hexdigest(), **fields), self._warnings)

    def decide(self, target: str, method: str = "", *, workspace: str | os.PathLike[str] = ".") -> Decision:
        """What would be said about one access, as ``membrane check``.

        Args:
            target: a host, host:port, URL, IP literal, path or unix socket.
            method: of HTTP for a URL (default GET), ``read`` or ``write`` for a path.
            workspace: relative paths start there.
        """
        from ..run.check import check
        from ..run.prepare import facts_for

        answer = check(target, method, self._rules, facts_for(self._rules, os.path.realpath(workspace)))
        verdict = answer.verdict
        allowed = isinstance(verdict, Allow)
        rule = getattr(verdict, "rule", None)
        shown = (
            f"{getattr(rule, 'text', None) or getattr(rule, 'path', '')} ({rule.origin})" if rule is not None else ""
        )
        inspected = isinstance(verdict, Allow) and verdict.inspect
        return Decision(allowed, verdict.reason, shown, getattr(verdict, "hint", ""), inspected)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Policy) and self._rules == other._rules

    def __hash__(self) -> int:
        return hash(self._rules)

    def __repr__(self) -> str:
        rules = self._rules
        return f"<Policy allow={len(rules.allow)} deny={len(rules.deny)} digest={rules.digest[:12] or 'empty'}>"


def _rule(text: str, what: str, make: Callable[[str], Any]) -> Any:
    try:
        return make(text)
    except (Malformed, TypeError, AttributeError) as error:
        _refuse(what, text, error)


def _refuse(what: str, text: object, error: Exception) -> NoReturn:
    cause = str(error) if isinstance(error, Malformed) else "it is not a string"
    raise PolicyError("make a rule", f"{what} {text!r}: {cause}") from None
