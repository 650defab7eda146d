"""Secrets that the command may use and not read: their values, and the placeholders that stand for them inside.

The command's environment holds random text of the same length and shape.  The value goes to the gateway
only, which puts it into requests to its destinations (``gateway.http.credentials``).  Errors name a secret, never show
it.

A file or a program is used only where no command can have chosen what it is (``sources``).

Keyrings are asked through the ``keyring`` library (https://pypi.org/project/keyring), an optional dependency that is
imported when a rule names one: it knows the Secret Service, KWallet and the others.
"""

from __future__ import annotations

import os
import sys

from ..errors import PolicyError
from . import sources

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from ..policy.model import Policy, SecretRule

given: list[bytes] = []  # values that were resolved outside of this container, for sources ``given:NUMBER``
_PATIENCE = 60.0  # seconds for a program that knows a secret; it may ask a person


def gather(policy: Policy, environ: Mapping[str, str], writable: Iterable[str]) -> list[list[Any]]:
    """What the gateway gets: name, value, placeholder, header and destinations of each secret.

    Args:
        writable: trees of the host that a command can write, or could in an earlier run.

    Raises:
        PolicyError: a value cannot be read, or not be used as one, or a command can write what it comes from.
    """
    from ..gateway.http.credentials import placeholder_for
    from ..policy.grammar import secret_destinations

    found: list[list[Any]] = []
    trees = sources.Trees(writable)
    for rule in policy.secrets:
        value = _value(rule, environ, trees)
        try:
            placeholder = placeholder_for(value, os.urandom)
        except ValueError as error:
            raise PolicyError("use the secret", f"{rule.name}: {error}", where=str(rule.origin)) from None
        parameter = rule.header.removeprefix("?")
        header = rule.header.partition(":")[0] if parameter == rule.header else f"query:{parameter}"
        found.append([rule.name, value, placeholder, header, [list(each) for each in secret_destinations(rule)]])
    return found


def values(policy: Policy, environ: Mapping[str, str], writable: Iterable[str]) -> list[bytes]:
    """The value of each secret, for a run that is carried elsewhere; arguments and errors as of ``gather``.

    Raises:
        PolicyError: besides, a file or a program on a system where nothing proves that no command chose it.
    """
    trees = None
    found = []
    for rule in policy.secrets:
        kind = rule.source.partition(":")[0]
        if kind in ("file", "command") and sys.platform != "linux":
            cause = f"{rule.name}: a secret from a {kind} needs Linux, which can prove that no command chose it"
            fix = ("from: env:NAME, or keyring:SERVICE/USER",)
            raise PolicyError("use the secret", cause, where=str(rule.origin), fix=fix)
        if trees is None:
            trees = sources.Trees(writable if sys.platform == "linux" else ())
        found.append(_value(rule, environ, trees))
    return found


def _value(rule: SecretRule, environ: Mapping[str, str], trees: sources.Trees) -> bytes:
    kind, _, where = rule.source.partition(":")
    if kind == "env":
        text = environ.get(where, "")
        if not text:
            raise _failed(rule, f"the variable {where} is not set", f"export {where}=VALUE")
        return text.encode("utf-8", "surrogateescape")
    if kind == "given":
        return given[int(where)]
    if kind == "file":
        return sources.read_value(where, trees, rule.name, str(rule.origin))
    if kind == "keyring":
        service, _, user = where.rpartition("/")
        return _from_keyring(rule, service, user)
    argv = where.split("\0")
    return _output(rule, argv, sources.Program(argv, trees, environ, rule.name, str(rule.origin)))


def _from_keyring(rule: SecretRule, service: str, user: str) -> bytes:
    """The password of ``user`` for ``service``.

    Raises:
        PolicyError: the library, a keyring that it can use, or such an entry is not there, or it is not shown.
    """
    instead = "name another source: env:NAME, file:PATH or {command: [PROGRAM, ARGUMENT]}"
    tried, place = "use the secret", str(rule.origin)
    try:
        import keyring
        from keyring.errors import NoKeyringError
    except ImportError:
        cause = f"{rule.name}: the keyring library is not installed"
        raise PolicyError(tried, cause, where=place, fix=("pip install 'membrane-sandbox[keyring]'", instead)) from None
    try:
        value: str | None = keyring.get_password(service, user)
    except NoKeyringError:
        cause = f"{rule.name}: there is no keyring that the keyring library can use"
        fix = ("see what there is with: keyring --list-backends", instead)
        raise PolicyError(tried, cause, where=place, fix=fix) from None
    except Exception as error:  # each backend has errors of its own
        raise _failed(rule, f"keyring {service}: {type(error).__name__}") from None
    if not value:
        raise _failed(rule, f"the keyring has no password of {user} for {service}")
    return value.encode("utf-8", "surrogateescape")


def _output(rule: SecretRule, argv: list[str], program: sources.Program) -> bytes:
    import subprocess

    try:
        done = subprocess.run(
            argv,
            executable=program.path,
            cwd="/",
            env=program.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=_PATIENCE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        cause = error.strerror if isinstance(error, OSError) else f"no answer within {_PATIENCE:.0f} s"
        raise _failed(rule, f"{argv[0]}: {cause}") from None
    if done.returncode:
        raise _failed(rule, f"{argv[0]} ended with status {done.returncode}")
    return done.stdout[: sources.LARGEST].strip()


def _failed(rule: SecretRule, cause: str, *fix: str) -> PolicyError:
    return sources.unreadable(rule.name, str(rule.origin), cause, *fix)
