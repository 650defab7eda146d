"""Settings of sandbox-runtime (``srt``) -> a policy.

Theory of operation
-------------------
``read`` checks a settings file against a table of every key of sandbox-runtime 0.0.8x: types, the grammar of domains,
unknown keys.  Unlike the original nothing is ignored in silence.  ``convert`` maps what was read to a ``Policy`` over
the host's tree (``files``) with proxies offered.  Three kinds of keys are left: those without a meaning on Linux make
one line of warning, those that only loosen what is not tight here are accepted, and those that this engine cannot
bind raise ``PolicyError``: the command does not run.

Paths are resolved here by their text only: ``~`` is the home, relative ones start from the working directory.
"""

from __future__ import annotations

from ..errors import PolicyError
from ..policy.files import every_file, file_rule, is_glob, place
from ..policy.hosts import HOST_INTERNAL
from ..policy.model import (
    EnvRule,
    FileRule,
    HostRule,
    Malformed,
    MaskRule,
    Origin,
    Policy,
    PortRange,
    SecretRule,
    SigningRule,
    SocketRule,
)
from ..value import Value
from .domains import ENTIRE, domain_rule, parse_domain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    from ..policy.model import FileEffect

INVALID = 1  # exit status of sandbox-runtime for settings that it does not take
DEFAULT_TMPDIR = "/tmp/claude"  # noqa: S108 - sandbox-runtime's own; used only where it exists
NOT_INHERITED = frozenset(
    f(name)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "FTP_PROXY", "GRPC_PROXY")
    for f in (str.upper, str.lower)
)


class SettingsError(PolicyError):
    """The settings file is not one of sandbox-runtime; exit status 1, as there."""

    exit_code = INVALID


class Settings(Value):
    """What a settings file says, checked."""

    file: str
    data: Mapping[str, Any]
    text: str = ""


class Converted(Value):
    """A policy made of settings."""

    policy: Policy
    warnings: tuple[str, ...]
    reasons: tuple[tuple[str, str], ...]  # (deniedDomains entry, the user's words)
    proxies: tuple[tuple[str, str], ...]  # variables that name the proxies to go through, outside
    ignored: tuple[tuple[str, tuple[str, ...]], ...]  # ignoreViolations
    temporary: str  # TMPDIR inside; empty: the caller's


DEFAULTS: dict[str, Any] = {
    "network": {"allowedDomains": [], "deniedDomains": []},
    "filesystem": {"denyRead": [], "allowWrite": [], "denyWrite": []},
}

# ---------------------------------------------------------------- the table

_STRINGS, _BOOL, _STRING, _ANY_OBJECT = ("strings",), ("bool",), ("string",), ("map",)
_PATHS = ("paths",)
_ABSOLUTE = ("absolute",)


def _integer(low: int, high: int) -> tuple[Any, ...]:
    return ("integer", low, high)


_HOSTS = ("domains", False)
_POLICY = ("choice", ("deny", "passthrough"))
_CREDENTIAL = {
    "mode": ("choice", ("deny", "mask")),
    "injectHosts": _HOSTS,
    "extract": _STRING,
    "decode": ("choice", ("jwt",)),
    "maskClaims": _STRINGS,
    "maskDuplicates": _BOOL,
    "onExtractNoMatch": ("choice", ("warn", "deny", "error")),
}
_NETWORK: dict[str, tuple[Any, ...]] = {
    "allowedDomains": _HOSTS,
    "deniedDomains": ("domains", True),
    "deniedDomainReasons": ("texts",),
    "strictAllowlist": _BOOL,
    "deniedResolvedAddresses": _STRINGS,
    "allowUnixSockets": _STRINGS,
    "allowAllUnixSockets": _BOOL,
    "allowLocalBinding": _BOOL,
    "allowMachLookup": _STRINGS,
    "httpProxyPort": _integer(1, 65535),
    "socksProxyPort": _integer(1, 65535),
    "mitmProxy": ("object", {"socketPath": _STRING, "domains": _HOSTS}, ("socketPath", "domains")),
    "parentProxy": ("object", {"http": _STRING, "https": _STRING, "noProxy": _STRING}, ()),
    "tlsTerminate": (
        "object",
        {
            "caCertPath": _STRING,
            "caKeyPath": _STRING,
            "excludeDomains": _HOSTS,
            "extraCaCertPaths": _STRINGS,
            "maxTunnels": _integer(1, 1 << 20),
            "handshakeTimeoutMs": _integer(1, 1 << 31),
        },
        (),
    ),
    "allowPlaintextHeaderSet": _BOOL,
    "stripResponseHeaders": _STRINGS,
    "refuseOpaqueTunnels": _BOOL,
    "requireHostMatch": _BOOL,
    "ambiguousRequestTarget": ("choice", ("refuse", "asSpelled", "normalize")),
}
_FILESYSTEM: dict[str, tuple[Any, ...]] = {
    "denyRead": _PATHS,
    "allowRead": _PATHS,
    "allowWrite": _PATHS,
    "denyWrite": _PATHS,
    "disabled": _BOOL,
    "allowGitConfig": _BOOL,
}
_TABLE: dict[str, tuple[Any, ...]] = {
    "network": ("object", _NETWORK, ("allowedDomains", "deniedDomains")),
    "filesystem": ("object", _FILESYSTEM, ("denyRead", "allowWrite", "denyWrite")),
    "ignoreViolations": ("lists",),
    "enableWeakerNestedSandbox": _BOOL,
    "enableWeakerNetworkIsolation": _BOOL,
    "allowNestedUserNamespaces": _BOOL,
    "allowAppleEvents": _BOOL,
    "allowPty": _BOOL,
    "mandatoryDenySearchDepth": _integer(1, 10),
    "ripgrep": ("object", {"command": _STRING, "args": _STRINGS, "argv0": _STRING}, ("command",)),
    "seccomp": ("object", {"applyPath": _STRING, "argv0": _STRING}, ()),
    "bwrapPath": _ABSOLUTE,
    "socatPath": _ABSOLUTE,
    "javaAgentJarPath": _ABSOLUTE,
    "git": ("object", {"safeDirectories": _STRINGS}, ()),
    "windows": _ANY_OBJECT,
    "credentials": (
        "object",
        {
            "files": ("objects", {"path": _STRING, **_CREDENTIAL}, ("path", "mode")),
            "envVars": ("objects", {"name": _STRING, **_CREDENTIAL}, ("name", "mode")),
            "awsPairs": (
                "objects",
                {"accessKeyIdVar": _STRING, "secretAccessKeyVar": _STRING, "sessionTokenVar": _STRING},
                ("accessKeyIdVar", "secretAccessKeyVar"),
            ),
            "sigv4": ("object", dict.fromkeys(("streaming", "presigned", "sigv4a"), _POLICY), ()),
            "allowPlaintextInject": _BOOL,
        },
        (),
    ),
}
# Keys that mean nothing on Linux, or nothing for this engine, and why.
_WITHOUT_EFFECT = {
    "enableWeakerNetworkIsolation": "it is for macOS",
    "allowAppleEvents": "it is for macOS",
    "allowPty": "it is for macOS; a terminal works here",
    "windows": "it is for Windows",
    "enableWeakerNestedSandbox": "no weaker mode is needed: /proc is the sandbox's own or the run stops",
    "ripgrep": "no ripgrep is used: every writable tree is watched at any depth",
    "mandatoryDenySearchDepth": "protected names are found at any depth",
    "seccomp": "no helper binary is used",
    "bwrapPath": "no bwrap is used",
    "socatPath": "no socat is used",
    "javaAgentJarPath": "no agent is needed: connections of the JVM are captured",
    "network.allowMachLookup": "it is for macOS",
    "network.tlsTerminate.maxTunnels": "the limits of the gateway hold",
    "network.tlsTerminate.handshakeTimeoutMs": "the limits of the gateway hold",
    "network.allowPlaintextHeaderSet": "it belongs to the filterRequest function of the library",
}


# ---------------------------------------------------------------- reading


class _Reader:
    """Collects what is wrong with a settings file."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def wrong(self, path: str, message: str) -> None:
        self.problems.append(f"{path or '(top level)'}: {message}")

    def object(self, path: str, value: Any, keys: Mapping[str, tuple[Any, ...]], required: Iterable[str]) -> None:
        if not isinstance(value, dict):
            self.wrong(path, "expected an object")
            return
        dot = f"{path}." if path else ""
        for key in required:
            if key not in value:
                self.wrong(f"{dot}{key}", "required")
        for key, inner in value.items():
            if key not in keys:
                from ..policy.document import closest

                self.wrong(f"{dot}{key}", f"unknown key{closest(key, keys)}")
            else:
                self.value(f"{dot}{key}", inner, keys[key])

    def value(self, path: str, value: Any, spec: tuple[Any, ...]) -> None:
        kind = spec[0]
        check: Callable[[str, Any, tuple[Any, ...]], None] | None = getattr(self, f"_{kind}", None)
        if kind == "object":
            self.object(path, value, spec[1], spec[2])
        elif kind == "objects":
            for index, item in enumerate(self._list(path, value)):
                self.object(f"{path}.{index}", item, spec[1], spec[2])
        elif check is not None:
            check(path, value, spec)

    def _list(self, path: str, value: Any) -> list[Any]:
        if isinstance(value, list):
            return value
        self.wrong(path, "expected an array")
        return []

    def _any(self, path: str, value: Any, spec: tuple[Any, ...]) -> None:
        """Looked at by ``convert``."""

    def _bool(self, path: str, value: Any, spec: tuple[Any, ...]) -> None:
        if not isinstance(value, bool):
            self.wrong(path, "expected true or false")

    def _string(self, path: str, value: Any, spec: tuple[Any, ...]) -> None:
        if not isinstance(value, str) or not value:
            self.wrong(path, "expected a string that is not empty")
        elif "\0" in value:
            self.wrong(path, "a string must not contain a NUL")

    def _absolute(self, path: str, value: Any, spec: tuple[Any, ...]) -> None:
        self._string(path, value, spec)
        if isinstance(value, str) and value and value[0] != "/":
            self.wrong(path, "expected an absolute path")

    def _strings(self, path: str, value: Any, spec: tuple[Any, ...]) -> None:
        for index, item in enumerate(self._list(path, value)):
            self._string(f"{path}.{index}", item, spec)

    def _paths(self, path: str, value: Any, spec: tuple[Any, ...]) -> None:
        for index, item in enumerate(self._list(path, value)):
            here = f"{path}.{index}"
            if isinstance(item, dict):
                self.object(here, item, {"path": _STRING, "literal": _BOOL}, ("path",))
                continue
            self._string(here, item, spec)
            deny = path.endswith(("denyRead", "denyWrite"))
            if deny and isinstance(item, str) and item.endswith("/") and is_glob(item):
                self.wrong(here, "a glob of a deny list must not end in a slash")

    def _integer(self, path: str, value: Any, spec: tuple[Any, ...]) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not spec[1] <= value <= spec[2]:
            self.wrong(path, f"expected a whole number from {spec[1]} to {spec[2]}")

    def _choice(self, path: str, value: Any, spec: tuple[Any, ...]) -> None:
        if value not in spec[1]:
            self.wrong(path, f"expected one of {', '.join(spec[1])}")

    def _map(self, path: str, value: Any, spec: tuple[Any, ...]) -> None:
        if not isinstance(value, dict):
            self.wrong(path, "expected an object")

    def _texts(self, path: str, value: Any, spec: tuple[Any, ...]) -> None:
        self._map(path, value, spec)
        for key, item in value.items() if isinstance(value, dict) else ():
            self._string(f"{path}.{key}", item, spec)

    def _lists(self, path: str, value: Any, spec: tuple[Any, ...]) -> None:
        self._map(path, value, spec)
        for key, item in value.items() if isinstance(value, dict) else ():
            self._strings(f"{path}.{key}", item, spec)

    def _domains(self, path: str, value: Any, spec: tuple[Any, ...]) -> None:
        for index, item in enumerate(self._list(path, value)):
            here = f"{path}.{index}"
            if not isinstance(item, str):
                self.wrong(here, "expected a string")
                continue
            try:
                parse_domain(item, deny=spec[1])
            except Malformed as error:
                self.wrong(here, f"{item!r} is not a domain entry: {error}")


def read(text: str, file: str) -> Settings:
    """Check the text of a settings file.

    Raises:
        SettingsError: it is empty, not JSON, or not what the table says; every problem is named.
    """
    import json

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _value in found]
        twice = next((key for key in keys if keys.count(key) > 1), None)
        if twice is not None:
            raise ValueError(f"the key {twice!r} is there twice in one object")
        return dict(found)

    def refused(name: str) -> Any:
        raise ValueError(f"{name} is not JSON")

    if not text.strip():
        raise SettingsError("read the settings", "it is empty", where=file)
    try:
        data = json.loads(text, object_pairs_hook=pairs, parse_constant=refused)
    except (ValueError, RecursionError) as error:
        raise SettingsError("read the settings", f"it is not JSON: {error}", where=file) from None
    return check(data, file, text)


def check(data: Any, file: str, text: str = "") -> Settings:
    """Check settings that were parsed already.

    Raises:
        SettingsError: see ``read``.
    """
    reader = _Reader()
    reader.object("", data, _TABLE, ("network", "filesystem"))
    if not reader.problems:
        _check_together(data, reader)
    if reader.problems:
        raise SettingsError("read the settings", "; ".join(reader.problems), where=file)
    return Settings(file, data, text)


def _check_together(data: Mapping[str, Any], reader: _Reader) -> None:
    """What no key can say alone."""
    network = data["network"]
    if "tlsTerminate" in network and "mitmProxy" in network:
        reader.wrong("network", "tlsTerminate and mitmProxy exclude each other")
    terminate = network.get("tlsTerminate", {})
    if ("caCertPath" in terminate) != ("caKeyPath" in terminate):
        reader.wrong("network.tlsTerminate", "caCertPath and caKeyPath go together")
    if "credentials" in data:
        from . import credentials

        for path, message in credentials.problems(data["credentials"], network):
            reader.wrong(path, message)


# ---------------------------------------------------------------- conversion


def default_write_paths(denied: Sequence[str], reopened: Sequence[str], home: str) -> tuple[str, ...]:
    """Sandbox-runtime's own writable paths, without those below the home that a ``denyRead`` covers.

    Args:
        denied: ``denyRead``, reopened: ``allowRead``; as written.
    """
    from ..policy.files import Covering

    nowhere = Origin("built-in", "sandbox-runtime")
    kept = [DEFAULT_TMPDIR]
    for name in (".npm/_logs", ".claude/debug"):
        path = f"{home}/{name}"
        deny = [place("deny-read", text, home, home, nowhere) for text in denied]
        if not Covering(deny).access(path)[0]:
            literal = [place("allow-read", text, home, home, nowhere) for text in reopened if not is_glob(text)]
            below = max((len(rule.path) for rule in deny if not rule.glob), default=0)
            if not any(len(rule.path) > below and Covering([rule, *deny]).access(path)[0] for rule in literal):
                continue
        kept.append(path)
    return tuple(kept)


class _Conversion:
    """Settings on the way to a policy."""

    def __init__(self, settings: Settings, environ: Mapping[str, str], home: str, base: str) -> None:
        self.settings, self.environ, self.home, self.base = settings, environ, home, base
        self.network: Mapping[str, Any] = settings.data["network"]
        self.filesystem: Mapping[str, Any] = settings.data["filesystem"]
        self.credentials: Mapping[str, Any] = settings.data.get("credentials", {})
        self.all_sockets = bool(self.network.get("allowAllUnixSockets"))
        self.open_files = bool(self.filesystem.get("disabled"))
        self.warnings: list[str] = []
        self.env: list[EnvRule] = []
        self.secrets: list[SecretRule] = []
        self.masks: list[MaskRule] = []

    def origin(self, entry: Any = "") -> Origin:
        text = self.settings.text
        line = 0
        if isinstance(entry, str) and entry and text:
            at = text.find(f'"{entry}"')
            line = text.count("\n", 0, at) + 1 if at >= 0 else 0
        return Origin("user", self.settings.file, line)

    def unbound(self, key: str, cause: str, *fix: str) -> PolicyError:
        origin = self.origin(key.rpartition(".")[2])
        where = f"{origin.file}:{origin.line}" if origin.line else origin.file
        return PolicyError("bind a setting", f"{key}: {cause}", where=where, fix=fix)

    def warn_without_effect(self) -> None:
        for key, why in _WITHOUT_EFFECT.items():
            found: Any = self.settings.data
            for part in key.split("."):
                found = found.get(part) if isinstance(found, dict) else None
            if found not in (None, False, []):
                self.warnings.append(f"{key} has no effect here: {why}")

    def warn_of_what_opens(self) -> None:
        """One line for each setting that leaves a way out of the boundary, by the command or by what runs later."""
        for given, text in (
            (
                self.all_sockets,
                "network.allowAllUnixSockets: every unix socket of this machine that you may use is open to the"
                " command; where docker's socket is one of them, that is the whole machine",
            ),
            (
                self.open_files,
                "filesystem.disabled: the command may read and write what you may, also what you run later, outside;"
                " only the network rules hold",
            ),
            (
                self.filesystem.get("allowGitConfig") and not self.open_files,
                "filesystem.allowGitConfig: git outside runs programs that .git/config names",
            ),
        ):
            if given:
                self.warnings.append(text)

    def refuse_what_cannot_be_bound(self) -> None:
        network = self.network
        if network.get("stripResponseHeaders"):
            raise self.unbound("network.stripResponseHeaders", "answers are passed on as they are")
        if network.get("ambiguousRequestTarget", "refuse") != "refuse":
            raise self.unbound("network.ambiguousRequestTarget", "an ambiguous target is always refused here")

    # ------------------------------------------------------------ network

    def allow(self) -> list[HostRule]:
        rules = [domain_rule(entry, self.origin(entry)) for entry in self.network["allowedDomains"]]
        if "httpProxyPort" in self.network or "socksProxyPort" in self.network:
            return [HostRule("**", self.origin("httpProxyPort"), "any")]  # that proxy decides, as in sandbox-runtime
        terminate = self.network.get("tlsTerminate")
        if terminate is None:
            return rules
        excluded = [parse_domain(entry)[:2] for entry in terminate.get("excludeDomains", ())]
        out: list[HostRule] = []
        for rule in rules:
            out += self._inspected(rule, excluded)
        return out

    def _inspected(self, rule: HostRule, excluded: Sequence[tuple[str, str]]) -> list[HostRule]:
        """TLS is terminated on port 443, or on the one port of the entry; other protocols pass, as in the original."""
        from ..policy.hosts import wildcard_suffixes

        if (rule.kind, rule.host) in excluded or rule.host == HOST_INTERNAL:
            return [rule]
        for kind, name in excluded:
            inside = name in (rule.host, *()) or rule.host in wildcard_suffixes(name)
            if rule.kind == "wildcard" and inside:
                raise self.unbound(
                    "network.tlsTerminate.excludeDomains",
                    f"{name} is admitted by {rule.text}, whose connections are all terminated",
                    f"write the hosts of {rule.text} one by one in allowedDomains",
                )
            if kind == "wildcard" and rule.kind == "host" and name in wildcard_suffixes(rule.host):
                return [rule]
        if rule.ports:
            return [rule.replace(inspect=rule.ports[0].first not in (22, 80))]
        others = (PortRange("tcp", 1, 442), PortRange("tcp", 444, ENTIRE))
        return [rule.replace(ports=(PortRange("tcp", 443, 443),), inspect=True), rule.replace(ports=others)]

    def deny(self) -> list[HostRule]:
        rules = [domain_rule(entry, self.origin(entry), deny=True) for entry in self.network["deniedDomains"]]
        from ..policy.hosts import parse_network

        for entry in self.network.get("deniedResolvedAddresses", ()):
            try:
                rules.append(HostRule(entry, self.origin(entry), "network", "", parse_network(entry)))
            except Malformed as error:
                raise SettingsError(
                    "read the settings",
                    f"network.deniedResolvedAddresses: {entry!r}: {error}",
                    where=self.settings.file,
                ) from None
        return rules

    def proxies(self) -> tuple[str, list[tuple[str, str]]]:
        """``upstream_proxy`` and the variables that it is read from."""
        network = self.network
        if "httpProxyPort" in network or "socksProxyPort" in network:
            if (
                "httpProxyPort" in network
                and network.get("socksProxyPort", network["httpProxyPort"]) != (network["httpProxyPort"])
            ):
                self.warnings.append("network.socksProxyPort is not used: everything goes through httpProxyPort")
            if "httpProxyPort" in network:
                return f"http://127.0.0.1:{network['httpProxyPort']}", []
            return f"socks5://127.0.0.1:{network['socksProxyPort']}", []
        parent = network.get("parentProxy", {})
        found = {name: self.environ.get(name) or self.environ.get(name.lower()) or "" for name in _PARENT.values()}
        found.update({_PARENT[key]: value for key, value in parent.items()})
        if parent.get("http") and parent.get("https") and parent["http"] != parent["https"]:
            raise self.unbound("network.parentProxy", "http and https name different proxies; one is used for all")
        proxy = found["HTTPS_PROXY"] or found["HTTP_PROXY"]
        if not proxy:
            return "", []
        if "://" not in proxy:
            proxy = f"http://{proxy}"
        if not parent and not proxy.startswith("http://"):
            return "", []  # sandbox-runtime ignores other schemes of its environment
        exceptions = ",".join(part for part in found["NO_PROXY"].replace(",", " ").split() if part)
        return "env", [("HTTPS_PROXY", proxy), ("HTTP_PROXY", proxy), ("NO_PROXY", exceptions)]

    def socket_proxy(self, files: Sequence[FileRule]) -> tuple[str, tuple[HostRule, ...]]:
        """``mitmProxy``: the path of its socket, and the hosts that go there."""
        from ..policy.files import Covering

        given = self.network.get("mitmProxy")
        if given is None:
            return "", ()
        where = self.origin(given["socketPath"])
        path = place("deny-read", {"path": given["socketPath"], "literal": True}, self.home, self.base, where).path
        if Covering(files).access(path)[1]:
            raise self.unbound("network.mitmProxy", f"{path} is where the command can put another socket")
        return path, tuple(domain_rule(entry, self.origin(entry)) for entry in given["domains"])

    def sockets(self) -> list[SocketRule]:
        rules = []
        for entry in self.network.get("allowUnixSockets", ()) if not self.all_sockets else ():
            rule = place("allow-write", {"path": entry, "literal": True}, self.home, self.base, self.origin(entry))
            rules.append(SocketRule(rule.path, rule.origin, optional=True))
        return rules

    # ------------------------------------------------------------ files, environment

    def files(self) -> list[FileRule]:
        if self.open_files:
            return [every_file(self.origin("disabled"))]
        out: list[FileRule] = []
        lists: tuple[tuple[FileEffect, str], ...] = (
            ("deny-read", "denyRead"),
            ("allow-read", "allowRead"),
            ("allow-write", "allowWrite"),
            ("deny-write", "denyWrite"),
        )
        for effect, key in lists:
            for entry in self.filesystem.get(key, ()):
                text = entry["path"] if isinstance(entry, dict) else entry
                try:
                    out.append(file_rule(effect, entry, self.home, self.base, self.origin(text)))
                except Malformed as error:
                    raise self.unbound(f"filesystem.{key}", f"{text!r}: {error}") from None
                if effect == "allow-write" and out[-1].path == "/":
                    raise self.unbound(
                        f"filesystem.{key}", f"{text!r} opens the whole machine", "name the trees that are needed"
                    )
        return out

    def defaults(self) -> list[FileRule]:
        denied = [text for text in self.filesystem["denyRead"] if isinstance(text, str)]
        reopened = [text for text in self.filesystem.get("allowRead", ()) if isinstance(text, str)]
        nowhere = Origin("built-in", "sandbox-runtime")
        paths = default_write_paths(denied, reopened, self.home)
        return [place("allow-write", {"path": path, "literal": True}, "/", "/", nowhere) for path in paths]

    def authority(self) -> tuple[tuple[str, str] | tuple[()], list[FileRule]]:
        """The authority to inspect with, and the rule that hides its key from the command."""
        terminate = self.network.get("tlsTerminate", {})
        if "caCertPath" not in terminate:
            return (), []
        paths = []
        for key in ("caCertPath", "caKeyPath"):
            entry = {"path": terminate[key], "literal": True}
            paths.append(place("deny-read", entry, self.home, self.base, self.origin(terminate[key])))
        return (paths[0].path, paths[1].path), [paths[1]]

    def take_credentials(self) -> list[FileRule]:
        """Variables that are not passed, secrets, and files that are hidden."""
        from . import credentials

        hidden = []
        plaintext = bool(self.credentials.get("allowPlaintextInject"))
        for item in self.credentials.get("files", ()):
            entry = {"path": item["path"], "literal": True}
            rule = place("deny-read", entry, self.home, self.base, self.origin(item["path"]))
            if item["mode"] == "deny":
                hidden.append(rule)
                continue
            to = credentials.destinations(item, self.network, plaintext=plaintext)
            self.masks.append(credentials.file(item, rule.path, to, rule.origin))
        without = set(NOT_INHERITED)
        for item in self.credentials.get("envVars", ()):
            name = item["name"]
            without.add(name)
            if item["mode"] == "deny":
                continue
            if not self.environ.get(name):
                continue
            to = credentials.destinations(item, self.network, plaintext=plaintext)
            made = credentials.variable(item, to, self.origin(name))
            if isinstance(made, SecretRule):
                self.secrets.append(made)
            else:
                self.masks.append(made)
        origin = Origin("built-in", "sandbox-runtime")
        self.env += [
            EnvRule(name, None, origin)
            for name in self.environ
            if name not in without and name.replace("_", "a").isalnum() and name.isascii()
        ]
        return hidden

    def signing(self) -> tuple[SigningRule, ...]:
        """The AWS access keys among the masked variables."""
        from . import credentials

        masked = [secret.name for secret in self.secrets]
        rules, warnings = credentials.signing(self.credentials, masked, self.origin("credentials"))
        self.warnings += warnings
        return rules

    def safe_directories(self, own: Origin) -> list[EnvRule]:
        """Git's ``safe.directory`` in the environment, behind what the caller has there: each one, and all below it.

        ``DIR/*`` is git's own from 2.46 on; an older one takes it for a name.
        """
        given = self.environ.get("GIT_CONFIG_COUNT", "")
        directories = self.settings.data.get("git", {}).get("safeDirectories", ())
        names = dict.fromkeys(each.rstrip("/") or "/" for each in directories if each)
        if not names or given == "0":  # the caller's word that nothing comes from the environment
            return []
        values = [value for name in names for value in (name, f"{name.rstrip('/')}/*")]
        first = int(given) if given.isascii() and given.isdigit() and len(given) < 6 else 0
        out = [EnvRule("GIT_CONFIG_COUNT", str(first + len(values)), own)]
        for number, value in enumerate(values, first):
            out += [
                EnvRule(f"GIT_CONFIG_KEY_{number}", "safe.directory", own),
                EnvRule(f"GIT_CONFIG_VALUE_{number}", value, own),
            ]
        return out

    def convert(self) -> Converted:
        self.warn_without_effect()
        self.warn_of_what_opens()
        self.refuse_what_cannot_be_bound()
        proxy, variables = self.proxies()
        files = self.files()
        authority, key = self.authority()
        hidden = [*self.take_credentials(), *key]
        own = Origin("built-in", "sandbox-runtime")
        chosen = self.environ.get("CLAUDE_CODE_TMPDIR") or self.environ.get("CLAUDE_TMPDIR") or ""
        temporary = chosen or DEFAULT_TMPDIR
        files += [*hidden, *(() if self.open_files else self.defaults())]
        if chosen and not self.open_files:
            files.append(place("allow-write", {"path": chosen, "literal": True}, self.home, self.base, own))
        self.env.append(EnvRule("SANDBOX_RUNTIME", "1", own))
        self.env += self.safe_directories(own)
        extra = self.network.get("tlsTerminate", {}).get("extraCaCertPaths", ())
        from ..policy.files import Covering

        if key and Covering(files).access(key[0].path)[0]:
            raise self.unbound("network.tlsTerminate.caKeyPath", "filesystem.allowRead opens it to the command")
        socket_proxy, socket_proxied = self.socket_proxy(files)
        signing = self.signing()
        policy = Policy(
            allow=tuple(self.allow()),
            deny=tuple(self.deny()),
            unix_sockets=tuple(self.sockets()),
            env=tuple(self.env),
            secrets=tuple(self.secrets),
            masks=tuple(self.masks),
            signing=signing,
            upstream_proxy=proxy,
            socket_proxy=socket_proxy,
            socket_proxied=socket_proxied,
            extra_ca=tuple(extra),
            authority=authority,
            view="host",
            file_rules=tuple(files),
            file_base=self.base,
            open_files=self.open_files,
            open_git_config=bool(self.filesystem.get("allowGitConfig")),
            open_sockets=self.all_sockets,
            user_namespaces=bool(self.settings.data.get("allowNestedUserNamespaces")),
            offer_proxy=True,
            levels=(self.settings.file,),
        )
        return Converted(
            policy,
            tuple(self.warnings),
            tuple(self.network.get("deniedDomainReasons", {}).items()),
            tuple(variables),
            tuple((key, tuple(value)) for key, value in self.settings.data.get("ignoreViolations", {}).items()),
            "" if self.open_files else temporary,
        )


_PARENT = {"http": "HTTP_PROXY", "https": "HTTPS_PROXY", "noProxy": "NO_PROXY"}


def convert(settings: Settings, *, environ: Mapping[str, str], home: str, base: str) -> Converted:
    """Make the policy of one run.

    Args:
        environ: the caller's variables; all but proxies and denied credentials are passed.
        home: the caller's home directory, resolved; base: the working directory, resolved.

    Raises:
        PolicyError: a setting cannot be bound by this engine.
    """
    return _Conversion(settings, environ, home, base).convert()
