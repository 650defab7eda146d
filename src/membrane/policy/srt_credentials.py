"""The ``credentials`` of sandbox-runtime's settings -> rules of a policy.

Theory of operation
-------------------
``deny`` hides a file and does not pass a variable.  ``mask`` of a whole variable is a secret that may be in any header
field; of a part of one, or of a file, it is a ``MaskRule``.  A credential goes to ``injectHosts``, by default to the
allowed domains, and there where TLS is terminated: on port 443, or on the one port of an entry.  With
``allowPlaintextInject`` it goes to port 80 without TLS as well.
"""

from __future__ import annotations

from .match import Malformed, wildcard_matches
from .model import MaskRule, SecretRule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from .model import Origin

    Problem = tuple[str, str]

_PLAIN_PORTS = (22, 80)


def problems(credentials: Mapping[str, Any], network: Mapping[str, Any]) -> list[Problem]:
    """What is wrong with a section whose types were checked: (path, message)."""
    from .masking import compiled

    found: list[Problem] = []
    for key in ("files", "envVars"):
        for index, item in enumerate(credentials.get(key, ())):
            here = f"credentials.{key}.{index}"
            if key == "files" and item["path"].endswith("/") and item["mode"] == "mask":
                found.append((f"{here}.path", "a directory can not be masked"))
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
    return found


def _covered(entry: str, allowed: Sequence[str]) -> bool:
    """Does an allowed domain admit all that an entry of ``injectHosts`` names?"""
    from .srt import parse_domain

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
    from .srt import parse_domain

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
