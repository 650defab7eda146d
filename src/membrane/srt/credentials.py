"""The ``credentials`` of sandbox-runtime's settings -> rules of a policy.

Theory of operation
-------------------
``deny`` hides a file and does not pass a variable.  ``mask`` of a whole variable is a secret that may be in any header
field; of a part of one, or of a file, it is a ``MaskRule``.  A credential goes to ``injectHosts``, by default to the
allowed domains, and there where TLS is terminated: on port 443, or on the one port of an entry.  With
``allowPlaintextInject`` it goes to port 80 without TLS as well.
"""

from __future__ import annotations

from ..policy.hosts import wildcard_matches
from ..policy.model import Malformed, MaskRule, SecretRule, SigningRule
from .domains import parse_domain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from ..policy.model import Origin

    Problem = tuple[str, str]

_PLAIN_PORTS = (22, 80)
_CONVENTIONAL = {
    "accessKeyIdVar": "AWS_ACCESS_KEY_ID",
    "secretAccessKeyVar": "AWS_SECRET_ACCESS_KEY",
    "sessionTokenVar": "AWS_SESSION_TOKEN",
}


def problems(credentials: Mapping[str, Any], network: Mapping[str, Any]) -> list[Problem]:
    """What is wrong with a section whose types were checked: (path, message)."""
    from ..policy.masking import compiled

    found: list[Problem] = []
    for key in ("files", "envVars"):
        for index, item in enumerate(credentials.get(key, ())):
            here = f"credentials.{key}.{index}"
            if key == "files" and item["path"].endswith("/") and item["mode"] == "mask":
                found.append((f"{here}.path", "a directory cannot be masked"))
            if item["mode"] == "mask":
                if "tlsTerminate" not in network:
                    found.append((here, "mode mask needs network.tlsTerminate"))
                if not item.get("injectHosts", True):
                    found.append((f"{here}.injectHosts", "it is empty"))
            if "extract" in item:
                try:
                    compiled(item["extract"])
                except Malformed as error:
                    found.append((f"{here}.extract", str(error)))
            if "maskClaims" in item and ("decode" not in item or not item["maskClaims"]):
                found.append((f"{here}.maskClaims", "it needs decode, and a name"))
            for entry in item.get("injectHosts", ()):
                if not _covered(entry, network["allowedDomains"]):
                    found.append((f"{here}.injectHosts", f"{entry!r} is not in network.allowedDomains"))
    variables = {item["name"]: item for item in credentials.get("envVars", ())}
    for index, pair in enumerate(credentials.get("awsPairs", ())):
        for key, name in pair.items():
            item = variables.get(name)
            if item is None or item["mode"] != "mask" or "extract" in item or "decode" in item:
                found.append((f"credentials.awsPairs.{index}.{key}", f"{name!r} is no variable that is masked whole"))
    return found


def signing(
    credentials: Mapping[str, Any], masked: Sequence[str], origin: Origin
) -> tuple[tuple[SigningRule, ...], list[str]]:
    """The access keys among the variables that are ``masked`` whole and set, and what is to be warned of."""
    pairs = [dict(pair) for pair in credentials.get("awsPairs", ())]
    claimed = {name for pair in pairs for name in pair.values()}
    if claimed.isdisjoint(_CONVENTIONAL.values()):
        pairs.append(_CONVENTIONAL)
    rules, warnings = [], []
    for pair in pairs:
        key_id, secret = pair["accessKeyIdVar"], pair["secretAccessKeyVar"]
        if key_id in masked and secret in masked:
            rules.append(SigningRule(key_id, secret, origin))
        elif secret in masked:
            warnings.append(f"{secret} is masked and {key_id} is not: requests are signed with a placeholder")
    for kind, what in credentials.get("sigv4", {}).items():
        if what == "passthrough" and rules:
            warnings.append(f"credentials.sigv4.{kind}: passthrough has no effect here: such requests are refused")
    return tuple(rules), warnings


def _covered(entry: str, allowed: Sequence[str]) -> bool:
    """Does an allowed domain admit all that an entry of ``injectHosts`` names?"""
    kind, name, ports = parse_domain(entry)
    for text in allowed:
        other, suffix, open_ports = parse_domain(text)
        if open_ports and ports and open_ports != ports:
            continue
        if (kind, name) == (other, suffix):
            return True
        if other == "wildcard" and kind in ("host", "wildcard") and wildcard_matches(suffix, name):
            return True
    return False


def destinations(item: Mapping[str, Any], network: Mapping[str, Any], *, plaintext: bool) -> tuple[str, ...]:
    """Where the credential of an entry goes, as in ``SecretRule.to``."""
    excluded = {parse_domain(entry)[:2] for entry in network["tlsTerminate"].get("excludeDomains", ())}
    out: list[str] = []
    for entry in item.get("injectHosts") or network["allowedDomains"]:
        kind, name, ports = parse_domain(entry)
        if (kind, name) in excluded or name == "localhost" or (ports and ports[0].first in _PLAIN_PORTS):
            continue  # no TLS is terminated there, so nothing could be put in
        host = f"*.{name}" if kind == "wildcard" else f"[{name}]" if ":" in name else name
        out.append(f"{host}:{ports[0].first}" if ports else host)
        if plaintext and not ports and kind == "host":
            out.append(f"http://{host}")
    return tuple(out)


def variable(item: Mapping[str, Any], to: tuple[str, ...], origin: Origin) -> SecretRule | MaskRule:
    """The rule of a masked variable."""
    if "extract" in item or "decode" in item:
        return _mask(item, f"env:{item['name']}", to, origin)
    return SecretRule(item["name"], f"env:{item['name']}", to, "*", origin)


def file(item: Mapping[str, Any], path: str, to: tuple[str, ...], origin: Origin) -> MaskRule:
    """The rule of a masked file."""
    return _mask(item, f"file:{path}", to, origin)


def _mask(item: Mapping[str, Any], source: str, to: tuple[str, ...], origin: Origin) -> MaskRule:
    return MaskRule(
        source,
        to,
        origin,
        item.get("extract", ""),
        item.get("decode", ""),
        tuple(item.get("maskClaims", ())),
        bool(item.get("maskDuplicates")),
        item.get("onExtractNoMatch", "warn"),
    )
