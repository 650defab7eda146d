"""``membrane config import``: settings of other tools -> a policy file with comments.

Theory of operation
-------------------
What is read becomes the same rules that a run under the source would have; each line says where it comes from, and
what has no equivalent is left as a comment, so nothing is dropped in silence.  The text is then read back by the
policy loader: what is printed is a policy.  Sources: sandbox-runtime (``srt``), Claude Code (``sandbox`` and
``permissions`` of its settings.json), Codex (``sandbox_mode`` and ``sandbox_workspace_write`` of config.toml).
"""

from __future__ import annotations

import json

from ..errors import HostError, PolicyError
from ..escaping import visible
from .options import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

_LONGEST = 4 << 20  # bytes
_KINDS = ("srt", "claude", "codex", "membrane", "cagent")
_LISTS = (
    ("denyRead", "deny_read"),
    ("allowRead", "allow_read"),
    ("allowWrite", "allow_write"),
    ("denyWrite", "deny_write"),
)


def convert_file(kind: str, path: str, environ: Mapping[str, str]) -> str:
    """The policy text for a settings file.

    Raises:
        UsageError: an unknown kind.
        HostError: the file cannot be read.
        PolicyError: it is not what the kind says.
    """
    if kind not in _KINDS:
        raise UsageError("import", f"{kind!r} is not one of {', '.join(_KINDS)}")
    try:
        with open(path, "rb") as file:
            data = file.read(_LONGEST + 1)
    except OSError as error:
        raise HostError("read the settings", error.strerror or "", target=path) from None
    if len(data) > _LONGEST:
        raise PolicyError("read the settings", f"longer than {_LONGEST} bytes", where=path)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise PolicyError("read the settings", "it is not UTF-8", where=path) from None
    if kind == "membrane":
        check(text, environ, path)  # a mistake has the line that it has there
    read = {"srt": _srt, "claude": _claude, "codex": _codex, "membrane": _membrane, "cagent": _cagent}[kind]
    try:
        out = read(text, path)
    except PolicyError as error:  # of ``srt``, whose own exit status for them is 1, as sandbox-runtime has it
        raise PolicyError(error.tried, error.cause, where=error.where, fix=error.fix) from None
    try:
        check(out, environ)
    except PolicyError as error:
        raise PolicyError(error.tried, error.cause, where=_place_of(error.where, out, path), fix=error.fix) from None
    return out


def _place_of(where: str, out: str, path: str) -> str:
    """Where in the settings a mistake is that was found in what was made of them: what its line says it is from."""
    line = where.split(":")[1] if where.count(":") == 2 else ""
    lines = out.splitlines()
    made = lines[int(line) - 1] if line.isdecimal() and 0 < int(line) <= len(lines) else ""
    origin = made.rpartition("  # ")[2] if "  # " in made else ""
    return f"{path}: {origin}" if origin else path


def check(text: str, environ: Mapping[str, str], name: str = "imported policy") -> None:
    """Read the text back; ``name``: what a mistake is said to be in.

    Raises:
        PolicyError: it is no policy.
    """
    from ..policy.load import Source, load

    load(
        [Source("user", name, text)],
        presets={"default": ""},
        environ=environ,
        home=environ.get("HOME", "/"),
    )


class _Text:
    """Lines of a policy file."""

    def __init__(self, kind: str, path: str, source: str) -> None:
        self._source = source
        self._lines = [f"# imported from {visible(path)} ({kind})", "presets: []"]

    def origin(self, key: str, entry: str) -> str:
        at = self._source.find(json.dumps(entry))
        line = f":{self._source.count(chr(10), 0, at) + 1}" if at >= 0 else ""
        return f"{key}{line}"

    def line(self, text: str) -> None:
        self._lines.append(text)

    def comment(self, key: str, why: str) -> None:
        self._lines.append(f"# {visible(key)}: {visible(why)}")

    def entry(self, value: str, key: str, indent: str = "  ", shown: str = "") -> None:
        quoted = json.dumps(value, ensure_ascii=False)
        self._lines.append(f"{indent}- {quoted}  # {visible(self.origin(key, shown or value))}")

    def items(self, name: str, values: Sequence[tuple[str, str]], indent: str = "") -> None:
        """A list of (value, key of the source)."""
        if values:
            self._lines.append(f"{indent}{name}:")
            for value, key in values:
                self.entry(value, key, indent + "  ")

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"


def _membrane(text: str, path: str) -> str:
    """A file of the Go program as it is: its keys are read here.  There no list is built in."""
    out = _Text("Membrane", path, text)
    if any(line.lstrip().startswith("mounts:") for line in text.splitlines()):
        out.comment("mounts", "an entry without mode is read-only here, and was writable there; write mode: rw")
    return out.text() + text


def _cagent(text: str, path: str) -> str:
    """``hostnames``, ``cidrs`` and ``resolver`` of cagent's YAML; each port was open there."""
    from ..policy import document

    out = _Text("cagent", path, text)
    tree = document.parse(text, path)
    found = {"hostnames": list[str](), "cidrs": list[str]()}
    if tree is not None:
        top = tree.mapping("a configuration of cagent")
        for key, values in found.items():
            if taken := top.take(key):
                values += [value for _, value in taken[1].sequence(key).strings(key)]
        if taken := top.take("resolver"):
            out.line(f"dns_resolver: {json.dumps(taken[1].scalar('resolver').string('resolver'))}  # resolver")
        top.finish("a configuration of cagent")
    out.items("allow", [(value, key) for key, values in found.items() for value in values])
    return out.text()


def _srt(text: str, path: str) -> str:
    from ..policy.files import trimmed
    from ..srt import settings as srt

    settings = srt.read(text, path)
    data = settings.data
    out = _Text("sandbox-runtime", path, text)
    network, files = data["network"], data["filesystem"]
    out.line("view: host  # the host's tree, read-only where nothing else is said")
    for name, key in (("allow", "allowedDomains"), ("deny", "deniedDomains")):
        _domains(out, name, key, network[key])
    disabled = bool(files.get("disabled"))
    lists = () if disabled else _LISTS
    if disabled:
        out.line("files: unconfined  # filesystem.disabled: the command may read and write what you may")
    else:
        hidden = any(item["mode"] == "deny" for item in data.get("credentials", {}).get("files", ()))
        out.line("files:" if hidden or any(files.get(key) for key, _name in _LISTS) else "files: {}")
    for key, name in lists:
        values = []
        for item in files.get(key, ()):
            entry = item if isinstance(item, str) else item["path"]
            if not isinstance(item, str) and item.get("literal") and any(char in entry for char in "*?["):
                out.comment(f"filesystem.{key}", f"{entry!r} as a literal name has no equivalent")
            elif key == "allowWrite" and trimmed(entry) == "/":
                out.comment(f"filesystem.{key}", "'/' would open the whole machine")
            else:
                values.append((entry, f"filesystem.{key}"))
        if key == "denyRead":
            values += [
                (item["path"], "credentials.files")
                for item in data.get("credentials", {}).get("files", ())
                if item["mode"] == "deny"
            ]
        out.items(name, values, "  ")
    if files.get("allowGitConfig") and not disabled:
        out.line("git_config: writable  # filesystem.allowGitConfig")
    if data.get("allowNestedUserNamespaces"):
        out.line("user_namespaces: allowed  # allowNestedUserNamespaces")
    named = network.get("allowUnixSockets", ())
    if network.get("allowAllUnixSockets"):
        out.line("unix_sockets: all  # network.allowAllUnixSockets: docker's socket is the whole machine")
        named = ()
    sockets = [entry for entry in named if entry.startswith(("/", "~"))]
    out.items("unix_sockets", [(entry.replace("$", "$$"), "network.allowUnixSockets") for entry in sockets])
    for entry in named:
        if entry not in sockets:
            out.comment("network.allowUnixSockets", f"{entry!r}: a socket needs an absolute path")
    parent = network.get("parentProxy", {})
    proxy = parent.get("https") or parent.get("http")
    if proxy:
        out.line(f"upstream_proxy: env  # network.parentProxy: set HTTPS_PROXY={visible(proxy)} for membrane itself")
    authorities = network.get("tlsTerminate", {}).get("extraCaCertPaths", ())
    out.items("extra_ca", [(file, "extraCaCertPaths") for file in authorities])
    out.comment("env", "sandbox-runtime passes every variable; name the needed ones: env: {pass: [NAME, PREFIX_*]}")
    done = {"allowedDomains", "deniedDomains", "allowUnixSockets", "allowAllUnixSockets", "parentProxy"}
    for key, value in network.items():
        if key not in done:
            out.comment(f"network.{key}", f"no equivalent here: {json.dumps(value)}")
    _credentials(out, data.get("credentials", {}), network, open_files=disabled)
    for key, value in data.items():
        if key not in ("network", "filesystem", "credentials", "allowNestedUserNamespaces"):
            out.comment(key, f"no equivalent here: {json.dumps(value)}")
    return out.text()


def _credentials(out: _Text, credentials: Mapping[str, Any], network: Mapping[str, Any], *, open_files: bool) -> None:
    """``secrets`` for whole variables, ``masks`` for files and for parts, ``signing`` for access keys."""
    from ..policy.grammar import destinations
    from ..policy.model import Malformed, MaskRule, Origin, SecretRule
    from ..srt import credentials as srt_credentials

    secrets: list[str] = []
    masks: list[str] = []
    whole: list[str] = []
    plaintext = bool(credentials.get("allowPlaintextInject"))
    for key, name in (("envVars", "name"), ("files", "path")):
        for item in credentials.get(key, ()):
            where = f"credentials.{key} {item[name]}"
            if item["mode"] == "deny":
                if key == "envVars":
                    out.comment(where, "no variable is passed that env does not name")
                elif open_files:
                    out.comment(where, "with files: unconfined nothing is hidden")
                continue
            to = srt_credentials.destinations(item, network, plaintext=plaintext)
            try:
                destinations(to, wildcards=True)
            except Malformed as error:
                out.comment(where, f"no equivalent: {error}")
                continue
            origin = Origin("user", "")
            made: SecretRule | MaskRule = (
                srt_credentials.variable(item, to, origin)
                if key == "envVars"
                else srt_credentials.file(item, item["path"], to, origin)
            )
            if isinstance(made, SecretRule):
                whole.append(made.name)
                row: dict[str, Any] = {"name": made.name, "from": "env", "to": list(to), "header": "*"}
                secrets.append(f"  - {json.dumps(row)}  # {visible(where)}")
                continue
            kind, _, source = made.source.partition(":")
            row = {kind: source.replace("$", "$$") if kind == "file" else source, "to": list(to)}
            row |= {"extract": made.extract} if made.extract else {}
            row |= {"decode": made.decode} if made.decode else {}
            row |= {"claims": list(made.claims)} if made.claims else {}
            row |= {"duplicates": True} if made.duplicates else {}
            row["unmatched"] = made.unmatched
            masks.append(f"  - {json.dumps(row)}  # {visible(where)}")
    rules, warnings = srt_credentials.signing(credentials, whole, Origin("user", ""))
    signing = [f"  - {json.dumps({'key_id': rule.key_id, 'secret': rule.secret})}" for rule in rules]
    for key, lines in (("secrets", secrets), ("masks", masks), ("signing", signing)):
        if lines:
            out.line("\n".join((f"{key}:", *lines)))
    for warning in warnings:
        out.comment("credentials", warning)


def _domains(out: _Text, name: str, key: str, entries: Sequence[str]) -> None:
    from ..policy import grammar
    from ..policy.model import Malformed, Origin
    from ..srt.domains import parse_domain

    values: list[tuple[str, str]] = []
    for entry in entries:
        kind, host, ports = parse_domain(entry, deny=name == "deny")
        port = f":{ports[0].first}" if ports else ""
        shown = f"[{host}]{port}" if ":" in host and port else host + port
        if kind == "any":
            shown = f"**{port}"
        elif kind == "wildcard":
            shown = f"*.{host}{port}"
        elif host == "localhost":
            shown = f"host.internal{port}"
        try:
            if host == "localhost" and not port and name == "allow":
                raise Malformed('"localhost" without a port: name the ports, as host.internal:PORT')
            grammar.host_rule(shown, Origin("user", ""), deny=name == "deny")
        except Malformed as error:
            out.comment(f"network.{key}", f"{entry!r} has no equivalent: {error}")
            continue
        values.append((shown, f"network.{key}"))
    out.items(name, values)


def _object(text: str, path: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except ValueError as error:
        raise PolicyError("read the settings", f"it is not JSON: {error}", where=path) from None
    if not isinstance(data, dict):
        raise PolicyError("read the settings", "expected an object", where=path)
    return data


def _strings(value: Any, path: str, key: str) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise PolicyError("read the settings", f"{key}: expected an array of strings", where=path)
    return value


def _section(data: Mapping[str, Any], key: str, path: str) -> dict[str, Any]:
    value = data.get(key, {})
    if not isinstance(value, dict):
        raise PolicyError("read the settings", f"{key}: expected an object", where=path)
    return value


def _claude(text: str, path: str) -> str:
    """Claude Code: ``sandbox.network``, ``sandbox.filesystem``, ``permissions`` of file tools and WebFetch."""
    from ..policy.model import Malformed
    from ..srt.domains import parse_domain

    data = _object(text, path)
    sandbox, permissions = _section(data, "sandbox", path), _section(data, "permissions", path)
    network, files = _section(sandbox, "network", path), _section(sandbox, "filesystem", path)
    out = _Text("Claude Code", path, text)
    hosts: dict[str, list[str]] = {"allow": _strings(network.get("allowedDomains"), path, "allowedDomains")}
    hosts["deny"] = _strings(network.get("deniedDomains"), path, "deniedDomains")
    hidden = [(entry, "sandbox.filesystem.denyRead") for entry in _strings(files.get("denyRead"), path, "denyRead")]
    fixed = [(entry, "sandbox.filesystem.denyWrite") for entry in _strings(files.get("denyWrite"), path, "denyWrite")]
    for effect in ("allow", "deny", "ask"):
        for rule in _strings(permissions.get(effect), path, f"permissions.{effect}"):
            tool, _, argument = rule.removesuffix(")").partition("(")
            if tool == "WebFetch" and argument.startswith("domain:") and effect != "ask":
                hosts[effect].append(argument.removeprefix("domain:"))
            elif tool == "Read" and effect == "deny" and argument:
                hidden.append((argument, "permissions.deny"))
            elif tool in ("Edit", "Write") and effect == "deny" and argument:
                fixed.append((argument, "permissions.deny"))
            else:
                out.comment(f"permissions.{effect}", f"{rule} is about the agent's own tools, not about what runs")
    for name in ("allow", "deny"):
        known = []
        for host in hosts[name]:
            try:
                parse_domain(host, deny=name == "deny")
                known.append(host)
            except Malformed as error:
                out.comment(f"{name} {host!r}", f"no equivalent: {error}")
        _domains(out, name, f"{name}edDomains", known)
    _patterns(out, "ignore", hidden)
    _patterns(out, "readonly", fixed)
    mounts = _strings(files.get("allowWrite"), path, "allowWrite")
    mounts += _strings(permissions.get("additionalDirectories"), path, "additionalDirectories")
    _mounts(out, mounts, "allowWrite or additionalDirectories")
    for key, value in data.items():
        if key not in ("sandbox", "permissions"):
            out.comment(key, f"not about the boundary: {json.dumps(value)[:200]}")
    for section, taken in ((sandbox, {"network", "filesystem"}), (network, {"allowedDomains", "deniedDomains"})):
        for key, value in section.items():
            if key not in taken:
                out.comment(f"sandbox {key}", f"no equivalent here: {json.dumps(value)[:200]}")
    return out.text()


def _patterns(out: _Text, name: str, entries: Sequence[tuple[str, str]]) -> None:
    """Paths below the workspace become gitignore patterns; others are not in the view anyway."""
    from ..policy.globs import Pattern
    from ..policy.model import Malformed

    values = []
    for entry, key in entries:
        if entry.startswith(("~", "//")) or (entry.startswith("/") and key.startswith("sandbox")):
            out.comment(key, f"{entry!r}: nothing of the home and of other trees is in the view, unless it is mounted")
            continue
        pattern = entry.removeprefix("./")
        try:
            Pattern(pattern)
        except Malformed as error:
            out.comment(key, f"{entry!r} has no equivalent: {error}")
            continue
        values.append((pattern, key))
    out.items(name, values)


def _mounts(out: _Text, paths: Sequence[str], key: str) -> None:
    from ..policy.files import is_glob, trimmed

    rows = []
    for entry in dict.fromkeys(paths):
        path = trimmed(entry)
        if path in (".", "./"):
            continue  # the workspace is writable
        if is_glob(path) or path == "/" or not path.startswith(("/", "~", "..")):
            why = "it would open everything" if path == "/" else "the workspace is writable as it is"
            out.comment(key, f"{entry!r}: {why}")
            continue
        rows.append(f"  - {{path: {json.dumps(path, ensure_ascii=False)}, mode: rw}}  # {visible(key)}")
    if rows:
        out.line("mounts:\n" + "\n".join(rows))


def _codex(text: str, path: str) -> str:
    """Codex: ``sandbox_mode`` and the table ``sandbox_workspace_write``."""
    import tomllib

    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PolicyError("read the settings", f"it is not TOML: {error}", where=path) from None
    out = _Text("Codex", path, text)
    mode = data.get("sandbox_mode", "read-only")
    writes = _section(data, "sandbox_workspace_write", path)
    if mode == "read-only":
        out.line("view: host  # Codex reads everywhere")
        out.line("files: {}  # sandbox_mode: read-only")
    elif mode == "workspace-write":
        out.line("view: host  # Codex reads everywhere")
        roots = [".", *_strings(writes.get("writable_roots"), path, "writable_roots")]
        out.line("files:")
        out.items("allow_write", [(root, "sandbox_workspace_write.writable_roots") for root in roots], "  ")
    else:
        out.comment("sandbox_mode", f"{mode!r} is no boundary; the default view of membrane holds")
    if writes.get("network_access"):
        out.line('allow: ["**"]  # sandbox_workspace_write.network_access')
    for key in ("exclude_slash_tmp", "exclude_tmpdir_env_var"):
        if key in writes:
            out.comment(key, "the host's temporary directory is read-only; TMPDIR is the sandbox's own")
    for key, value in data.items():
        if key not in ("sandbox_mode", "sandbox_workspace_write"):
            out.comment(key, f"not about the boundary: {json.dumps(value, default=str)[:200]}")
    return out.text()
