"""A policy as the text of one policy file (YAML).

Theory of operation
-------------------
``in_force`` is what agents inside read as data.  It goes through the rows of ``keys.KEYS``; the name by which a row is
read (``reading.Reader._NAME``) is also the name by which it is written (``write_NAME`` here), so that a key that can be
read and not written is found by ``tests/unit/policy/test_policy_keys.py``.  ``load`` makes the same rules from the
text: rules of presets and agent profiles stand in it like all others, and both lists of names are empty.

What the command must not know is not in it: values of variables that are set (an empty text stands for each), where a
secret comes from (``env``: inside, the variable of that name holds the placeholder), a password in the address of a
proxy; nor the digest of all that was read, by which a guess at one of these could be tried.

What has no effect is left out, since one file may not take back what it says (``contradictions``).  Two things no
single file can say: entries beside ``files: unconfined`` and beside ``unix_sockets: all``.

Texts may have been written by a project file: each is a quoted scalar on one line.  The whole is bounded: a key gets
at most half of the room that the keys before it left.  What has no room, is no Unicode text, or is a name too long for
a key is counted in a comment.

Not imported on the start-up path: the text is made while the view is.
"""

from __future__ import annotations

from ..escaping import escape
from . import grammar, keys
from .contradictions import hidden_anyway, mounted_at, refused, takes_back
from .model import Malformed, Policy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .keys import Key
    from .model import HostRule, MaskRule, MountRule, PathRule, RuleBudget, SecretRule, SocketRule

LARGEST = 256 << 10  # characters of the whole
_LONGEST_NAME = 1000
_NOTES = {
    "presets": "their rules are written out",
    "profiles": "their rules are written out",
    "env": "values that are set are left out",
    "secrets": "where they come from is left out",
}
_PERIODS = {seconds: name for name, seconds in grammar.PERIODS.items()}


class _Unwritable(ValueError):
    """A text that no YAML holds where it belongs."""


def in_force(policy: Policy) -> str:
    """The policy as a file that ``load`` reads, of at most ``LARGEST`` characters."""
    out = [
        "# The policy in force, without values of secrets and variables. Changes here change nothing.",
        *(f"# agent profile {escape(name[:100])}" for name in policy.profiles[:100]),
    ]
    room = LARGEST - sum(len(line) + 1 for line in out)
    for key in keys.KEYS:
        value = said(policy, key)
        if value is not None:
            lines = _lines(key.name, value, room // 2)
            if key.name in _NOTES:
                lines[0] += f"  # {_NOTES[key.name]}"
            room -= sum(len(line) + 1 for line in lines)
            out += lines
    return "\n".join((*out, ""))


def said(policy: Policy, key: Key) -> Any:
    """The value of a key: a text, number or boolean, or lists and dictionaries of them; None: it is left out."""
    write: Callable[[Policy, Key], Any] | None = globals().get(f"write_{key.read}")
    return None if write is None else write(policy, key)


# ---------------------------------------------------------------- keys, by how they are read


def write_presets(_policy: Policy, _key: Key) -> list[str]:
    """No list is read beside the rules of this text."""
    return []


def write_wanted(_policy: Policy, _key: Key) -> list[str]:
    """As presets."""
    return []


def write_hosts(policy: Policy, key: Key) -> list[Any] | None:
    rules: tuple[HostRule, ...] = getattr(policy, key.name)
    if key.name == "allow":
        denied = refused(policy.deny)
        rules = tuple(rule for rule in rules if takes_back(denied, rule) is None)
    return [_host(rule) for rule in rules] or None


def _host(rule: HostRule) -> Any:
    try:
        to = grammar.parse_destination(rule.text)
    except Malformed:  # no file says it: a rule of the library
        to = grammar.Destination(rule.kind)
    row: dict[str, Any] = {"dest": rule.text}
    if rule.ports[len(to.ports) :]:
        row["ports"] = keys.ports_text(rule.ports[len(to.ports) :]).split(",")
    given = [(item.methods, item.paths) for item in rule.http or ()]
    if given and given != [((), (to.path,))]:  # that is the path of the URL itself
        row["http"] = [_filled({"methods": list(methods), "paths": list(paths)}) for methods, paths in given]
    row |= _filled({"insecure": rule.insecure, "inspect": rule.inspect, "budget": _budget(rule.budget)})
    if rule.raw and not to.raw:
        row["protocol"] = "raw"
    return row if len(row) > 1 else rule.text


def _budget(budget: RuleBudget | None) -> dict[str, Any]:
    if budget is None:
        return {}
    rate = f"{budget.rate}/{_PERIODS[budget.period]}" if budget.rate else ""
    return _filled({"upload": budget.upload, "requests": budget.requests, "rate": rate})


def write_patterns(policy: Policy, key: Key) -> list[Any] | None:
    hidden = hidden_anyway(policy.paths) if key.name == "readonly" else {}
    return [
        _path(rule) for rule in policy.paths if keys.EFFECTS.get(rule.effect) == key.name and rule.text not in hidden
    ] or None


def _path(rule: PathRule) -> Any:
    more = _filled({"best_effort": rule.best_effort, "show": "names" if rule.show_names else ""})
    return {"pattern": rule.text, **more} if more else rule.text


def write_mounts(policy: Policy, _key: Key) -> list[Any] | None:
    last = {mounted_at(rule): rule for rule in policy.mounts}
    return [_mount(rule) for rule in policy.mounts if last[mounted_at(rule)] is rule] or None


def _mount(rule: MountRule) -> dict[str, Any]:
    if rule.git_root:
        return {"type": "git-root", "mode": rule.mode}
    return {"path": rule.path, "mode": rule.mode, **_filled({"target": rule.target})}


def write_files(policy: Policy, _key: Key) -> Any:
    if policy.open_files:
        return "unconfined"
    if policy.file_rules is None:
        return None
    out: dict[str, list[str]] = {}
    for rule in policy.file_rules:
        out.setdefault(rule.effect.replace("-", "_"), []).append(rule.text)
    return out


def write_args(policy: Policy, _key: Key) -> list[str] | None:
    """What does not become another key."""
    return [rule.text.replace("$", "$$") for rule in policy.carrier_options] or None


def write_sockets(policy: Policy, _key: Key) -> Any:
    if policy.open_sockets:
        return "all"
    return [_socket(rule) for rule in policy.unix_sockets] or None


def _socket(rule: SocketRule) -> Any:
    path, more = _without_variables(rule.path), _filled({"as": rule.adapter, "allow": list(rule.allow)})
    return {"path": path, **more} if more else path


def _without_variables(path: str) -> str:
    return path.replace("$", "$$")


def write_ports(policy: Policy, _key: Key) -> dict[str, Any] | None:
    return (
        _filled(
            {
                "expose": [f"{rule.inside}:{rule.outside}" for rule in policy.expose],
                "connect": [f"{rule.outside}:{rule.inside}" for rule in policy.connect],
            }
        )
        or None
    )


def write_env(policy: Policy, _key: Key) -> dict[str, Any] | None:
    """A variable that is set is set, whatever passes it as well."""
    given = dict.fromkeys((rule.name for rule in policy.env if rule.value is not None), "")
    passed = [rule.name for rule in policy.env if rule.value is None and rule.name not in given]
    return _filled({"pass": passed, "set": given}) or None


def write_devices(policy: Policy, _key: Key) -> list[str] | None:
    return [rule.name for rule in policy.devices] or None


def write_secret_rules(policy: Policy, _key: Key) -> list[Any] | None:
    return [_secret(rule) for rule in policy.secrets] or None


def _secret(rule: SecretRule) -> dict[str, Any]:
    where = {"query": rule.header[1:]} if rule.header[:1] == "?" else {"header": rule.header}
    return {"name": rule.name, "from": "env", "to": list(rule.to), **where}


def write_masks(policy: Policy, _key: Key) -> list[Any] | None:
    return [_mask(rule) for rule in policy.masks] or None


def _mask(rule: MaskRule) -> dict[str, Any]:
    kind, _, source = rule.source.partition(":")
    return {
        kind: _without_variables(source) if kind == "file" else source,
        "to": list(rule.to),
        **_filled({"extract": rule.extract, "decode": rule.decode, "claims": list(rule.claims)}),
        **_filled({"duplicates": rule.duplicates, "login": rule.login, "renew": list(rule.renew)}),
        **_filled({"replaced": rule.replaced}),
        "unmatched": rule.unmatched,
        "header": rule.header,
    }


def write_signing(policy: Policy, _key: Key) -> list[Any] | None:
    return [{"key_id": rule.key_id, "secret": rule.secret} for rule in policy.signing] or None


def write_limit_keys(policy: Policy, key: Key) -> dict[str, int] | None:
    return dict(keys.items(policy, key.fields[0])) or None


def write_trace_keys(policy: Policy, _key: Key) -> dict[str, Any]:
    return _filled({name: getattr(policy.trace, name) for name in policy.trace.field_names})


def write_extra_ca(policy: Policy, _key: Key) -> list[str] | None:
    return list(policy.extra_ca) or None


def write_ssl_insecure(policy: Policy, _key: Key) -> bool | None:
    return policy.ssl_insecure or None


def write_choice(policy: Policy, key: Key) -> str | None:
    """A flag is the widest choice or the tightest (``reading.chosen_value``)."""
    if key.name == "apply" and policy.workspace == "live":
        return None  # there are no changes to apply, and a file that says both is refused
    value: str | bool = getattr(policy, key.fields[0].name)
    return value if isinstance(value, str) else key.choices[-1 if value else 0]


def write_text(policy: Policy, key: Key) -> str | None:
    """An address without what is before its ``@``."""
    value: str = getattr(policy, key.fields[0].name)
    scheme, mark, rest = value.partition("://")
    return (f"{scheme}://{rest.rpartition('@')[2]}" if mark else value) or None


def write_image(policy: Policy, _key: Key) -> str | None:
    return policy.image or None


def _filled(values: dict[str, Any]) -> dict[str, Any]:
    """Those of the values that say something."""
    return {name: value for name, value in values.items() if value}


# ---------------------------------------------------------------- as YAML


def _lines(name: str, value: Any, room: int, indent: str = "") -> list[str]:
    """A key in block style, its rows in flow style; rows of more than ``room`` characters together are left out."""
    if not value or not isinstance(value, (list, dict)):
        return [f"{indent}{name}: {_flow(value)}"]
    inner = f"{indent}  "
    out: list[str] = []
    left = 0
    for item in value:
        try:
            if isinstance(value, dict):
                row = _lines(_name(item), value[item], room // 2, inner)
            else:
                row = [f"{inner}- {_flow(item)}"]
        except _Unwritable:
            row = []
        size = sum(len(line) + 1 for line in row)
        if row and size <= room:
            room -= size
            out += row
        else:
            left += 1
    more = [f"{inner}# and {left} more"] if left else []
    return [f"{indent}{name}:" if out else f"{indent}{name}: {'[]' if isinstance(value, list) else '{}'}", *out, *more]


def _flow(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_flow, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}: {_flow(item)}' for name, item in value.items())}}}"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int) else _quoted(value)


def _name(text: str) -> str:
    """A key: ``null`` would be none without quotes, and libyaml reads none of more than 1024 characters.

    Raises:
        _Unwritable: it is too long for one.
    """
    if len(text) > _LONGEST_NAME:
        raise _Unwritable
    return _quoted(text) if text.lower() == "null" else text


def _quoted(text: str) -> str:
    """A double-quoted scalar (YAML 1.2, 7.3.1).

    Raises:
        _Unwritable: half a surrogate pair, which stands for a byte of a file name and which no YAML holds.
    """
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise _Unwritable
    text = text.replace("\\", "\\\\").replace('"', '\\"')
    if not (text.isascii() and text.isprintable()):
        text = "".join(char if char == "\\" or escape(char) == char else f"\\U{ord(char):08X}" for char in text)
    return f'"{text}"'
