"""Files and options in, one policy out.

Theory of operation
-------------------
``load`` takes the texts (``Source``), the preset files and the options; it reads no file itself.  Each level is read
into a ``_Level``; at the end the lists are concatenated in the order built-in, user, project, command line, so that a
preset pulled in by a project file cannot come after what the user wrote.  Scalars: the later level wins.

A key of a project file *widens* when it can let the run do more than the levels before it: those lines are returned as
``Widening`` and whoever calls decides whether they are approved.  Nothing is dropped in silence: either the whole file
holds, or the run does not start.

Every error is a ``PolicyError`` with file, line and column.

One file of over 800 lines: one method for each key of a policy, in the order of docs/policy.md.
"""

from __future__ import annotations

from ..errors import PolicyError
from ..value import Value
from . import document, grammar
from .document import Mapping, Scalar, closest
from .match import MOST_EXPRESSIONS, Malformed, Pattern
from .model import (
    EnvRule,
    HostRule,
    Limits,
    MaskRule,
    MountRule,
    Origin,
    PathRule,
    Policy,
    PortRange,
    PortRule,
    RuleBudget,
    SecretRule,
    SigningRule,
    SocketRule,
    TraceRule,
)
from .sockets import SERVICES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from collections.abc import Mapping as MappingOf
    from typing import Any, NoReturn, ParamSpec, TypeVar

    from .document import Node, Placed
    from .model import FileEffect, FileRule, Level, PathEffect

    T = TypeVar("T")
    P = ParamSpec("P")

DEFAULT_PRESETS = ("default",)
_ORDER: tuple[Level, ...] = ("built-in", "user", "project", "command line", "library")
_HOMES = ("ephemeral", "workspace", "shared")  # from the tightest to the widest
_VIEWS = ("project", "host")
_HARD_LINKS = ("refuse", "warn")
_WORKSPACES = ("review", "live")
NEW_CHANGE_SET = ":new"  # of --review without a name; no change set can be called that
_ALL, _UNCONFINED = "all", "unconfined"  # of unix_sockets, of files
_FILE_EFFECTS: dict[str, FileEffect] = {
    "deny_read": "deny-read",
    "allow_read": "allow-read",
    "allow_write": "allow-write",
    "deny_write": "deny-write",
}
_WIDE = {4: 8, 6: 16}  # a shorter prefix than this contains private ranges beside public ones


class Source(Value):
    """One file: its level, its path for messages, its text, and the directory that its relative paths start from."""

    level: Level
    file: str
    text: str
    directory: str = ""


class Widening(Value):
    """A place in a project file that lets the run do more."""

    key: str  # dotted, such as "allow" or "env.pass"
    line: int
    text: str  # the source lines without indentation, and the value where escapes hide it; not escaped


class Result(Value):
    """A policy and what has to be said about it."""

    policy: Policy
    warnings: tuple[str, ...]
    widening: tuple[Widening, ...]  # of the project file
    variables: tuple[tuple[str, str | None], ...]  # environment variables that the policy was made from


class _Level:
    """The lists of one level, in the order of its sources."""

    def __init__(self) -> None:
        self.allow: list[HostRule] = []
        self.deny: list[HostRule] = []
        self.paths: list[PathRule] = []
        self.mounts: list[MountRule] = []
        self.sockets: list[SocketRule] = []
        self.expose: list[PortRule] = []
        self.connect: list[PortRule] = []
        self.env: list[EnvRule] = []
        self.secrets: list[SecretRule] = []
        self.masks: list[MaskRule] = []
        self.signing: list[SigningRule] = []
        self.extra_ca: list[str] = []


def load(
    sources: Sequence[Source],
    *,
    presets: MappingOf[str, str],
    options: MappingOf[str, Any] | None = None,
    environ: MappingOf[str, str] | None = None,
    home: str = "",
    command: str = "",
) -> Result:
    """Make one policy.

    Args:
        sources: user and project files, in order of level.
        presets: name to text of every preset file; agent profiles are called ``profiles/NAME``.
        options: the command line's level: fields of ``settings.Options`` by name, those that were given.
        environ: the caller's variables, for ``$NAME`` in socket paths.
        home: the caller's home directory, for ``~``.
        command: the basename of the wrapped command, which chooses an agent profile.

    Raises:
        PolicyError: with the place, what was found, what was expected.
    """
    options = options or {}
    loader = _Loader(presets, environ or {}, home, bool(options.get("no_presets")))
    trees = [(source, document.parse(source.text, source.file)) for source in sources]
    wanted: Sequence[tuple[str, tuple[str, ...], Placed | None]] = [(name, (), None) for name in DEFAULT_PRESETS]
    for source, tree in trees:
        if source.level == "user" and isinstance(tree, Mapping) and "presets" in tree.pairs:
            wanted = document.named(tree.pairs["presets"][1], "presets")
    if not loader.no_presets:
        for name, arguments, place in wanted:
            loader.preset(name, place, arguments)
    if options.get("no_global_config"):
        loader.forget_hosts()
    for source, tree in trees:
        loader.source(source, tree)
    loader.options(options)
    if not options.get("no_profile"):
        loader.profiles(options.get("profile"), command)
    return loader.result(sources, options)


class _Loader:
    """Collects levels and scalars; one use."""

    def __init__(self, presets: MappingOf[str, str], environ: MappingOf[str, str], home: str, no_presets: bool) -> None:
        self.presets, self.environ, self.home = presets, environ, home
        self.levels: dict[Level, _Level] = {level: _Level() for level in _ORDER}
        self.scalars: dict[str, Any] = {}
        self.limits: dict[str, int] = {}
        self.trace: dict[str, Any] = {}
        self.wanted_profiles: list[str] = []
        self._expressions = 0  # patterns that take a regular expression, of all files
        self.profile_names: list[str] = []
        self.state: list[str] = []
        self.files: list[FileRule] = []
        self.has_files = False
        self.read: list[str] = []  # what was read, in order
        self.digested: list[str] = []
        self.seen: set[tuple[str, tuple[str, ...]]] = set()  # presets that were read, with their arguments
        self.instead: list[tuple[str, str]] = []  # presets that were read, and those they are meant instead of
        self.no_presets = no_presets
        self.no_hosts = False  # the agent profile that the command's name chooses opens none
        self.warnings: list[str] = []
        self.widening: list[Widening] = []
        self.variables: dict[str, str | None] = {}
        # Of the file that is being read:
        self.level: Level = "built-in"
        self.file = ""
        self.directory = ""
        self.lines: list[str] = []
        self.arguments: tuple[str, ...] = ()  # what "{repository}" in a path of the preset stands for

    # ------------------------------------------------------------ sources

    def preset(self, name: str, place: Placed | None, arguments: tuple[str, ...] = ()) -> None:
        """Read a preset file, and the presets it pulls in, unless it was read before."""
        if name not in self.presets or "/" in name:
            known = [each for each in self.presets if "/" not in each]
            _refuse(place, f'there is no preset "{name}"; known are {", ".join(known)}{closest(name, known)}')
        if (name, arguments) in self.seen:
            return
        self.seen.add((name, arguments))
        source = Source("built-in", f"preset {name}", self.presets[name])
        tree = document.parse(source.text, source.file)
        top = tree.mapping("a preset") if tree is not None else Mapping(source.file, 1, 1)
        taken, others = top.take("argument"), top.take("instead_of")
        if others:
            self.instead += [(name, other) for _, other in others[1].sequence("instead_of").strings("instead_of")]
        shape = taken[1].scalar("argument").string("argument") if taken else ""
        if bool(shape) != bool(arguments):
            needs = f"needs what it is for: {{{name}: [{shape}]}}" if shape else "is for nothing in particular"
            _refuse(place, f'the preset "{name}" {needs}')
        for text in arguments:
            try:
                grammar.check_repository(text, shape)
            except Malformed as error:
                _refuse(place, f'the preset "{name}": {error}')
        kept, self.arguments = self.arguments, arguments
        self.digested += arguments
        self._read(source, tree)
        self.arguments = kept

    def forget_hosts(self) -> None:
        """Keep of the default presets what protects, and none of the hosts that they open.

        A preset that is named later is read again, and in a project file widens.
        """
        self.levels["built-in"].allow.clear()
        self.seen.clear()
        self.instead.clear()
        self.no_hosts = True

    def source(self, source: Source, tree: Node | None) -> None:
        """Read a user or project file."""
        self._read(source, tree)

    def _read(self, source: Source, tree: Node | None) -> None:
        kept = self.level, self.file, self.directory, self.lines
        self.level, self.file, self.directory = source.level, source.file, source.directory
        self.lines = document.split_lines(source.text)
        if tree is None:
            tree = document.parse(source.text, source.file)
        self.read.append(source.file)
        self.digested += [source.level, source.file, source.text]
        if tree is not None:
            self._top(tree.mapping("a policy"))
        self.level, self.file, self.directory, self.lines = kept

    def profiles(self, forced: str | None, command: str) -> None:
        """Read the agent profiles: the forced one or the command's, then those that files name."""
        names = [name.removeprefix("profiles/") for name in self.presets if name.startswith("profiles/")]
        if forced is not None:
            if forced not in names:
                self._option(
                    "profile", forced, f"it does not exist; known are {', '.join(names)}{closest(forced, names)}"
                )
            self.wanted_profiles.insert(0, forced)
        chosen = ""
        if forced is None and command:
            for name in names:
                tree = document.parse(self.presets[f"profiles/{name}"], f"profile {name}")
                taken = tree.mapping("a profile").take("command") if tree is not None else None
                if taken and command in [text for _, text in taken[1].sequence("command").strings("command")]:
                    chosen = "" if name in self.wanted_profiles else name
                    self.wanted_profiles.insert(0, name)
                    break
        for name in self.wanted_profiles:
            if name not in self.profile_names:
                self.profile_names.append(name)
                before = len(self.levels["built-in"].allow)
                self._read(Source("built-in", f"profile {name}", self.presets[f"profiles/{name}"]), None)
                if self.no_hosts and name == chosen:
                    del self.levels["built-in"].allow[before:]

    # ------------------------------------------------------------ places

    def _origin(self, node: Placed) -> Origin:
        return Origin(self.level, self.file, node.line)

    def _widens(self, key: str, node: Placed) -> None:
        if self.level == "project":
            text = "\n".join(line.strip() for line in self.lines[node.line - 1 : node.last_line])
            if isinstance(node, Scalar) and node.text not in text:
                text += f"   = {node.text}"
            self.widening.append(Widening(key, node.line, text))

    @staticmethod
    def _checked(node: Placed, what: str, make: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Run a grammar function; its refusal gets the place of ``node``."""
        try:
            return make(*args, **named)
        except Malformed as error:
            node.refuse(f"{what}: {error}")

    def _option(self, name: str, value: str, cause: str) -> NoReturn:
        raise PolicyError("read the options", f"--{name} {value!r}: {cause}")

    # ------------------------------------------------------------ keys

    def _top(self, top: Mapping) -> None:
        for key, names, read in _KEYS:
            taken = top.take(*names)
            if taken and not (key in _MAY_BE_EMPTY and isinstance(taken[1], Scalar) and taken[1].null):
                getattr(self, f"_{read}")(key, taken[1])
        if self.file.startswith("profile "):
            top.take("command")  # read by ``profiles``
            taken = top.take("state")
            if taken:
                self._state(taken[1])
        top.finish("a policy")
        self._contradictions(top)

    def _presets(self, key: str, node: Node) -> None:
        for name, arguments, item in document.named(node, key):
            if (name, arguments) not in self.seen:
                self._widens(key, item)
            if self.level != "user" and not self.no_presets:  # the user's list was read first, as the built-in level
                self.preset(name, item, arguments)

    def _wanted(self, key: str, node: Node) -> None:
        known = [name.removeprefix("profiles/") for name in self.presets if name.startswith("profiles/")]
        for item, text in node.sequence(key).strings(key):
            if text not in known:
                item.refuse(f'there is no profile "{text}"; known are {", ".join(known)}{closest(text, known)}')
            self._widens(key, item)
            self.wanted_profiles.append(text)

    def _hosts(self, key: str, node: Node) -> None:
        rules = self.levels[self.level].allow if key == "allow" else self.levels[self.level].deny
        for item in node.sequence(key).items:
            rule = self._host_rule(key, item)
            if key == "allow":
                self._widens(key, item)
                self._warn_if_wide(rule)
            rules.append(rule)

    def _host_rule(self, key: str, node: Node) -> HostRule:
        origin, deny = self._origin(node), key == "deny"
        what = f"an entry of {key}"
        if isinstance(node, Scalar):
            text = node.string(what)
            return self._checked(node, f'"{text}"', grammar.host_rule, text, origin, deny=deny)
        entry = node.mapping(what)
        found = {
            name: entry.take(name) for name in ("dest", "ports", "http", "insecure", "inspect", "budget", "protocol")
        }
        entry.finish(what)
        given = {name: taken[1] for name, taken in found.items() if taken}
        if "dest" not in given:
            node.refuse(f'{what} has no "dest"')
        dest = given["dest"].scalar("dest")
        text = dest.string("dest")
        ports: list[PortRange] = []
        if "ports" in given:
            for item, port in self._filled("ports", given["ports"]):
                ports.append(self._checked(item, "ports", grammar.parse_port, port))
        http = [self._http_item(item) for item in self._some("http", given["http"])] if "http" in given else None
        flags = {name: name in given and given[name].scalar(name).boolean(name) for name in ("insecure", "inspect")}
        if deny and any(flags.values()):
            node.refuse('"insecure" and "inspect" have no meaning in a deny entry')
        if deny and "budget" in given:
            given["budget"].refuse('"budget" has no meaning in a deny entry')
        if "protocol" in given and given["protocol"].scalar("protocol").string("protocol") != "raw":
            given["protocol"].refuse('protocol is "raw" or left out')
        return self._checked(
            dest,
            f'"{text}"',
            grammar.host_rule,
            text,
            origin,
            deny=deny,
            ports=tuple(ports),
            http=None if http is None else tuple(http),
            budget=self._budget(given["budget"]) if "budget" in given else None,
            raw="protocol" in given,
            **flags,
        )

    def _budget(self, node: Node) -> RuleBudget:
        entry = node.mapping("budget")
        taken = {name: found[1] for name in ("upload", "requests", "rate") if (found := entry.take(name))}
        entry.finish("budget")
        if not taken:
            node.refuse('budget is empty; expected "upload", "requests" or "rate"')
        texts: dict[str, str] = {}
        for name, value in taken.items():
            texts[name] = value.scalar(f"budget.{name}").string(f"budget.{name}")
            self._checked(value, f"budget.{name}", grammar.parse_budget, **{name: texts[name]})
        return grammar.parse_budget(**texts)

    def _some(self, what: str, node: Node) -> list[Node]:
        """The items of a list that must not be empty: an empty constraint would be read as no constraint."""
        items = node.sequence(what).items
        if not items:
            node.refuse(f"{what} is an empty list, which admits nothing; remove it or add an item")
        return items

    def _filled(self, what: str, node: Node) -> list[tuple[Scalar, str]]:
        self._some(what, node)
        return list(node.sequence(what).strings(what))

    def _flag(self, entry: Mapping, name: str) -> bool:
        taken = entry.take(name)
        return taken[1].scalar(name).boolean(name) if taken else False

    def _http_item(self, node: Node) -> tuple[tuple[str, ...], tuple[str, ...]]:
        item = node.mapping("an entry of http")
        methods, paths = item.take("methods"), item.take("paths")
        item.finish("an entry of http")
        if not methods and not paths:
            node.refuse('an entry of http is empty; expected "methods" or "paths"')
        methods_text = self._filled("methods", methods[1]) if methods else []
        for scalar, text in methods_text:
            self._checked(scalar, f'"{text}"', grammar.parse_method, text)
        paths_text = self._filled("paths", paths[1]) if paths else []
        if self.arguments:
            paths_text = [
                (scalar, filled)
                for scalar, text in paths_text
                for filled in dict.fromkeys(
                    text.replace("{repository}", each).replace("{repository%2F}", each.replace("/", "%2F"))
                    for each in self.arguments
                )
            ]
        for scalar, text in paths_text:
            self._checked(scalar, f'"{text}"', grammar.join_path, "/", text)
        return tuple(text for _, text in methods_text), tuple(text for _, text in paths_text)

    def _warn_if_wide(self, rule: HostRule) -> None:
        if rule.kind == "any":
            self.warnings.append(f'{rule.origin}: "{rule.text}" lets the command reach every host')
        elif rule.network is not None and rule.network.prefix < _WIDE[rule.network.version]:
            self.warnings.append(f'{rule.origin}: "{rule.text}" also opens private ranges, to connections by address')

    def _patterns(self, key: str, node: Node) -> None:
        effect: PathEffect = "readonly" if key == "readonly" else "hide"
        for item in node.sequence(key).items:
            best_effort = show_names = False
            scalar: Node = item
            if isinstance(item, Mapping):
                taken = item.take("pattern", "path")
                best_effort = self._flag(item, "best_effort")
                shown = item.take("show") if effect == "hide" else None
                item.finish(f"an entry of {key}")
                if not taken:
                    item.refuse(f'an entry of {key} has no "pattern"')
                if shown:
                    shown[1].scalar("show").choice("show", ("names",))
                    show_names = True
                    self._widens(key, item)  # of what another level hides, something is shown
                scalar = taken[1]
            text = scalar.scalar(f"an entry of {key}").string(f"an entry of {key}")
            pattern = self._checked(scalar, f'the pattern "{text}"', Pattern, text)
            if pattern.negated:
                self._widens(key, item)  # it takes back what another level hides
            self._expressions += pattern.is_expression
            if self._expressions > MOST_EXPRESSIONS:
                item.refuse(f"there are more than {MOST_EXPRESSIONS} patterns with more than a name or one star")
            self.levels[self.level].paths.append(PathRule(text, self._origin(item), effect, best_effort, show_names))

    def _mounts(self, key: str, node: Node) -> None:
        for item in node.sequence(key).items:
            entry = item.mapping(f"an entry of {key}, such as {{path: ../lib, mode: ro}},")
            path, kind, mode, target = (entry.take(name) for name in ("path", "type", "mode", "target"))
            entry.finish(f"an entry of {key}")
            access: Any = mode[1].scalar("mode").choice("mode", ("ro", "rw")) if mode else "ro"
            self._widens(key, item)
            origin = self._origin(item)
            if kind:
                kind[1].scalar("type").choice("type", ("git-root",))
                if path or target:
                    item.refuse('"type: git-root" finds its own path; "path" and "target" do not belong to it')
                self.levels[self.level].mounts.append(MountRule("", access, origin, git_root=True))
                continue
            if not path:
                item.refuse(f'an entry of {key} needs "path" or "type: git-root"')
            source = path[1].scalar("path").string("path")
            at = target[1].scalar("target").string("target") if target else ""
            rule = self._checked(path[1], "path", grammar.mount_rule, source, at, access, origin, self.home)
            self.levels[self.level].mounts.append(rule)

    def _files(self, key: str, node: Node) -> None:
        """Rules over the host's tree; relative paths start from the workspace (``files.anchored``)."""
        from .files import every_file, file_rule

        self.has_files = True
        if isinstance(node, Scalar) and node.text == _UNCONFINED:
            self._widens(key, node)
            self.warnings.append(f"{self._origin(node)}: files: {_UNCONFINED}: only the caller's own rights hold")
            self.scalars["open_files"] = True
            self.files.append(every_file(self._origin(node)))
            return
        entry = node.mapping(key)
        for name, effect in _FILE_EFFECTS.items():
            taken = entry.take(name)
            for item, text in taken[1].sequence(name).strings(f"{key}.{name}") if taken else ():
                if effect.startswith("allow"):
                    self._widens(f"{key}.{name}", item)
                rule = self._checked(item, f"{key}.{name}", file_rule, effect, text, self.home, "", self._origin(item))
                if rule.path == "/" and effect == "allow-write":
                    item.refuse(f"{text!r} opens the whole machine; name the trees that are needed")
                self.files.append(rule)
        entry.finish(key)

    def _sockets(self, key: str, node: Node) -> None:
        if isinstance(node, Scalar) and node.text == _ALL:
            self._widens(key, node)
            self.warnings.append(f"{self._origin(node)}: unix_sockets: {_ALL}: docker's socket is the whole machine")
            self.scalars["open_sockets"] = True
            return
        for item in node.sequence(key).items:
            adapter = ""
            allow: tuple[str, ...] = ()
            scalar: Node = item
            if isinstance(item, Mapping):
                path, kind, rules = item.take("path"), item.take("as"), item.take("allow")
                item.finish(f"an entry of {key}")
                if not path:
                    item.refuse(f'an entry of {key} has no "path"')
                scalar = path[1]
                adapter = kind[1].scalar("as").choice("as", tuple(SERVICES)) if kind else ""
                allow = tuple(text for _, text in self._filled("allow", rules[1])) if rules else ()
                if allow and not adapter:
                    item.refuse('"allow" needs an adapter that understands it, such as "as: ssh-agent"')
            text = scalar.scalar(f"an entry of {key}").string(f"an entry of {key}")
            self._widens(key, item)
            place = self._checked(scalar, "the socket", self._socket_path, text)
            self.levels[self.level].sockets.append(SocketRule(place, self._origin(item), adapter, allow))

    def _socket_path(self, text: str) -> str:
        path = grammar.expand_home(self._expand(text), self.home)
        if not path.startswith("/"):
            raise Malformed(f"{path!r} is not an absolute path")
        return path

    def _expand(self, text: str) -> str:
        return grammar.expand_variables(text, self.environ, self.variables)

    def _ports(self, key: str, node: Node) -> None:
        entry = node.mapping(key)
        for name in ("expose", "connect"):
            taken = entry.take(name)
            if taken:
                rules = getattr(self.levels[self.level], name)
                for item, text in taken[1].sequence(name).strings(f"{key}.{name}"):
                    self._widens(f"{key}.{name}", item)
                    origin, expose = self._origin(item), name == "expose"
                    what = f"{key}.{name}"
                    rules.append(self._checked(item, what, grammar.parse_port_pair, text, origin, expose=expose))
        entry.finish(key)

    def _env(self, key: str, node: Node) -> None:
        entry = node.mapping(key)
        rules = self.levels[self.level].env
        taken = entry.take("pass")
        if taken:
            for item, text in taken[1].sequence("env.pass").strings("env.pass"):
                self._widens("env.pass", item)
                name = self._checked(item, "env.pass", grammar.parse_variable, text, pattern=True)
                rules.append(EnvRule(name, None, self._origin(item)))
        taken = entry.take("set")
        if taken:
            for text, (at, value) in taken[1].mapping("env.set").pairs.items():
                self._widens("env.set", at)
                name = self._checked(at, "env.set", grammar.parse_variable, text)
                scalar = value.scalar(f"env.set.{name}")
                if "\0" in scalar.text:
                    scalar.refuse(f"env.set.{name} contains a NUL")
                rules.append(EnvRule(name, scalar.text, self._origin(at)))
        entry.finish(key)

    def _limit_keys(self, key: str, node: Node) -> None:
        entry = node.mapping(key)
        for name, parse in grammar.LIMITS.items():
            taken = entry.take(name)
            if taken:
                text = taken[1].scalar(f"limits.{name}").string(f"limits.{name}")
                value = self._checked(taken[1], f"limits.{name}", parse, text)
                self._limit(name, value, f"limits.{name}", taken[1])
        entry.finish(key)

    def _limit(self, name: str, value: int, key: str, node: Node) -> None:
        before = self.limits.get(name, 0)
        if before and (not value or value > before):
            self._widens(key, node)
        self.limits[name] = value

    def _args(self, key: str, node: Node) -> None:
        self._docker_arguments(key, list(node.sequence(key).strings(key)))
        self._mounted_once()

    def _docker_arguments(self, key: str, words: Sequence[tuple[Scalar, str]]) -> None:
        """Arguments of ``docker run`` as the keys that say the same; each widens as that key does."""
        from . import dockerargs

        level, workspace = self.levels[self.level], "" if self.level == "user" else self.directory
        try:
            for item, kind, text in dockerargs.translate(words):
                origin, value = self._origin(item), self._checked(item, key, self._expand, text)
                if kind == "env":
                    self._widens(key, item)
                    level.env.append(self._checked(item, key, grammar.parse_env, value, origin))
                elif kind == "mount":
                    self._widens(key, item)
                    source, target, mode = self._checked(item, key, dockerargs.volume, value, workspace, self.home)
                    rule = self._checked(item, key, grammar.mount_rule, source, target, mode, origin, self.home)
                    level.mounts.append(rule)
                else:
                    name, value = dockerargs.limit(kind, value)
                    self._limit(name, self._checked(item, key, grammar.LIMITS[name], value), key, item)
        except dockerargs.Misplaced as error:
            assert isinstance(error.place, Scalar)
            error.place.refuse(f"{key}: {error}")

    def _secret_rules(self, key: str, node: Node) -> None:
        what = f"an entry of {key}"
        for item in node.sequence(key).items:
            entry = item.mapping(what)
            self._widens(key, item)
            found = {name: entry.take(name) for name in ("name", "from", "to", "header", "query")}
            entry.finish(what)
            nodes = {name: taken[1] for name, taken in found.items() if taken}
            for name in ("name", "from", "to"):
                if name not in nodes:
                    item.refuse(f'{what} has no "{name}"')
            name = nodes["name"].scalar("name").string("name")
            self._checked(nodes["name"], "name", grammar.parse_variable, name)
            to, header = [], "authorization: Bearer {}"
            for scalar, text in self._filled("to", nodes["to"]):
                self._checked(scalar, f'"{text}"', grammar.host_rule, text, self._origin(scalar))
                to.append(text)
            if "header" in nodes:
                text = nodes["header"].scalar("header").string("header")
                header = self._checked(nodes["header"], "header", grammar.parse_header, text)
            if "query" in nodes:
                if "header" in nodes:
                    item.refuse(f'{what} has "header" and "query"; expected one place')
                text = nodes["query"].scalar("query").string("query")
                header = self._checked(nodes["query"], "query", grammar.parse_parameter, text)
            source = self._secret_source(nodes["from"], name)
            self.levels[self.level].secrets.append(SecretRule(name, source, tuple(to), header, self._origin(item)))

    def _secret_source(self, node: Node, name: str) -> str:
        if isinstance(node, Scalar):
            return self._checked(node, "from", grammar.parse_secret_source, node.string("from"), name)
        entry = node.mapping("from")
        taken = entry.take("command")
        entry.finish("from")
        if not taken:
            node.refuse(f"from is {grammar.VALUE_SOURCES}")
        return "command:" + "\0".join(text for _, text in self._filled("command", taken[1]))

    def _masks(self, key: str, node: Node) -> None:
        from .masking import compiled

        what = f"an entry of {key}"
        for item in node.sequence(key).items:
            entry = item.mapping(what)
            self._widens(key, item)
            names = ("file", "env", "to", "extract", "decode", "claims", "duplicates", "unmatched", "header")
            found = {name: entry.take(name) for name in names}
            entry.finish(what)
            nodes = {name: taken[1] for name, taken in found.items() if taken}
            if ("file" in nodes) == ("env" in nodes) or "to" not in nodes:
                item.refuse(f'{what} needs "to", and one of "file" and "env"')
            kind = "file" if "file" in nodes else "env"
            text = nodes[kind].scalar(kind).string(kind)
            parse = self._socket_path if kind == "file" else grammar.parse_variable
            place = self._checked(nodes[kind], kind, parse, text)
            to = []
            for scalar, host in self._filled("to", nodes["to"]):
                self._checked(scalar, f'"{host}"', grammar.destinations, (host,), wildcards=True)
                to.append(host)
            extract = nodes["extract"].scalar("extract").string("extract") if "extract" in nodes else ""
            if extract:
                self._checked(nodes["extract"], "extract", compiled, extract)
            decode: Any = nodes["decode"].scalar("decode").choice("decode", ("jwt",)) if "decode" in nodes else ""
            claims = tuple(text for _, text in self._filled("claims", nodes["claims"])) if "claims" in nodes else ()
            if claims and not decode:
                item.refuse('"claims" are those of a token: it needs "decode: jwt"')
            duplicates = "duplicates" in nodes and nodes["duplicates"].scalar("duplicates").boolean("duplicates")
            unmatched: Any = "error"
            if "unmatched" in nodes:
                unmatched = nodes["unmatched"].scalar("unmatched").choice("unmatched", ("error", "deny", "warn"))
            header = "*"
            if "header" in nodes:
                text = nodes["header"].scalar("header").string("header")
                header = self._checked(nodes["header"], "header", grammar.parse_header, text)
                if header[0] != "*":
                    item.refuse('"header" of a mask is "* NAME": fields beside those that carry credentials')
            source, origin = f"{kind}:{place}", self._origin(item)
            self.levels[self.level].masks.append(
                MaskRule(source, tuple(to), origin, extract, decode, claims, duplicates, unmatched, header)
            )

    def _signing(self, key: str, node: Node) -> None:
        what = f"an entry of {key}"
        for item in node.sequence(key).items:
            entry = item.mapping(what)
            self._widens(key, item)
            found = {name: entry.take(name) for name in ("key_id", "secret")}
            entry.finish(what)
            names = [taken[1].scalar(name).string(name) if taken else "" for name, taken in found.items()]
            if not all(names):
                item.refuse(f'{what} is {{key_id: NAME, secret: NAME}}, two names of "secrets"')
            self.levels[self.level].signing.append(SigningRule(names[0], names[1], self._origin(item)))

    def _trace_keys(self, key: str, node: Node) -> None:
        entry = node.mapping(key)
        taken = entry.take("mode")
        if taken:
            mode = taken[1].scalar("trace.mode").choice("trace.mode", ("auto", "off", "full", "required"))
            if mode in ("auto", "off"):
                self._widens("trace.mode", taken[1])
            self.trace["mode"] = mode
        for name, parse in (("max_size", grammar.parse_size), ("keep", grammar.parse_count)):
            taken = entry.take(name)
            if taken:
                self._widens(f"trace.{name}", taken[1])
                text = taken[1].scalar(f"trace.{name}").string(f"trace.{name}")
                self.trace[name] = self._checked(taken[1], f"trace.{name}", parse, text)
        taken = entry.take("http")
        if taken:
            self.trace["http"] = taken[1].scalar("trace.http").choice("trace.http", ("path", "full"))
            if self.trace["http"] == "full":
                self._widens("trace.http", taken[1])  # it records queries, which may hold secrets
        entry.finish(key)

    def _extra_ca(self, key: str, node: Node) -> None:
        for item, text in node.sequence(key).strings(key):
            self._widens(key, item)
            path = self._checked(item, key, grammar.expand_home, text, self.home)
            self.levels[self.level].extra_ca.append(path if path.startswith("/") else f"{self.directory}/{path}")

    def _state(self, node: Node) -> None:
        for item, text in node.sequence("state").strings("state"):
            if text.startswith("/") or not {"", ".", ".."}.isdisjoint(text.removesuffix("/").split("/")):
                item.refuse(f"state {text!r} is not a path below the home directory")
            self.state.append(text)

    # ------------------------------------------------------------ scalars

    def _text(self, key: str, node: Node) -> None:
        text = node.scalar(key).string(key)
        parse = grammar.parse_resolver if key == "dns_resolver" else grammar.parse_proxy
        self._widens(key, node)
        self.scalars[key] = self._checked(node, key, parse, text)

    def _ssl_insecure(self, key: str, node: Node) -> None:
        value = node.scalar(key).boolean(key)
        if value:
            self._widens(key, node)
            self.warnings.append(f"{self._origin(node)}: ssl_insecure: no upstream certificate is verified")
        self.scalars[key] = value

    def _open(self, key: str, node: Node) -> None:
        known = ("protected", "writable") if key == "git_config" else ("refused", "allowed")
        given = node.scalar(key).choice(key, known) == known[1]
        if given:
            self._widens(key, node)
        self.scalars["open_git_config" if key == "git_config" else key] = given

    def _choice(self, key: str, node: Node) -> None:
        known = {"home": _HOMES, "view": _VIEWS, "hard_links": _HARD_LINKS, "workspace": _WORKSPACES}[key]
        value = node.scalar(key).choice(key, known)
        before = self.scalars.get(key, Policy.__dict__[key])
        if known.index(value) > known.index(before):
            self._widens(key, node)
        self.scalars[key] = value

    # ------------------------------------------------------------ contradictions

    def _contradictions(self, top: Mapping) -> None:
        """Refuse two entries of one file of which one takes back the other."""
        level = self.levels[self.level]

        def here(rules: Sequence[Any]) -> list[Any]:
            return [rule for rule in rules if rule.origin.file == self.file]

        def refuse(rule: Any, cause: str) -> NoReturn:
            raise PolicyError("read the policy", cause, where=f"{self.file}:{rule.origin.line}:1")

        def named(rule: HostRule) -> tuple[Any, ...]:
            return rule.kind, rule.host, rule.network

        allowed = {named(rule): rule for rule in here(level.allow)}
        for rule in here(level.deny):
            other = allowed.get(named(rule))
            if other is not None and rule.http is None and (not rule.ports or rule.ports == other.ports):
                refuse(rule, f'deny "{rule.text}" takes back all of allow "{other.text}" in line {other.origin.line}')
        hidden = {rule.text: rule.origin.line for rule in here(level.paths) if rule.effect == "hide"}
        for path in here(level.paths):
            if path.effect == "readonly" and path.text in hidden:
                refuse(path, f'the pattern "{path.text}" is readonly, and ignored in line {hidden[path.text]}')
        passed = {rule.name: rule.origin.line for rule in here(level.env) if rule.value is None}
        for env in here(level.env):
            if env.value is not None and env.name in passed:
                refuse(env, f"{env.name} is set, and passed in line {passed[env.name]}")
        self._mounted_once()

    def _mounted_once(self) -> None:
        """Refuse two mounts of one file, or of the command line, that differ in their mode only."""
        mounts: dict[tuple[str, str, bool], MountRule] = {}
        for mount in self.levels[self.level].mounts:
            if mount.origin.file != self.file:
                continue
            first = mounts.setdefault((mount.path, mount.target or mount.path, mount.git_root), mount)
            if first.mode != mount.mode:
                what = mount.path or "git-root"
                before = f"{first.mode} in line {first.origin.line}" if first.origin.line else f"{first.mode} as well"
                where = f"{self.file}:{mount.origin.line}:1" if mount.origin.line else self.file
                raise PolicyError("read the policy", f'"{what}" is mounted {mount.mode}, and {before}', where=where)

    # ------------------------------------------------------------ options

    def options(self, options: MappingOf[str, Any]) -> None:
        """Read the command line's level."""
        self.level, self.file, self.directory = "command line", "command line", options.get("directory", "")
        origin = Origin("command line", "command line")
        level = self.levels["command line"]
        if any(value for name, value in options.items() if name != "directory"):
            self.read.append("command line")
            self.digested += [f"{name}={value!r}" for name, value in sorted(options.items())]

        def each(field: str, name: str, make: Callable[[str], T]) -> list[T]:
            out = []
            for text in options.get(field, ()):
                try:
                    out.append(make(text))
                except Malformed as error:
                    self._option(name, text, str(error))
            return out

        for text in options.get("presets", ()):
            name, equals, arguments = text.partition("=")
            try:
                self.preset(name, None, tuple(arguments.split(",")) if equals else ())
            except PolicyError as error:
                self._option("preset", text, error.cause)
        level.allow += each("allow", "allow", lambda text: grammar.host_rule(text, origin))
        level.deny += each("deny", "deny", lambda text: grammar.host_rule(text, origin, deny=True))
        for rule in level.allow:
            self._warn_if_wide(rule)
        effects: tuple[tuple[str, PathEffect], ...] = (
            ("ignore", "hide"),
            ("sealed", "hide"),
            ("readonly", "readonly"),
        )
        for field, effect in effects:
            for pattern, text in zip(each(field, field, Pattern), options.get(field, ()), strict=True):
                assert isinstance(pattern, Pattern)
                level.paths.append(PathRule(text, origin, effect))
        level.mounts += each("mounts", "mount", lambda text: grammar.parse_mount(text, origin, self.home))
        level.env += each("env", "env", lambda text: grammar.parse_env(text, origin))
        self._docker_options(options.get("args", ()))
        self._mounted_once()
        level.expose += each("expose", "expose", lambda text: grammar.parse_port_pair(text, origin, expose=True))
        level.connect += each("connect", "connect", lambda text: grammar.parse_port_pair(text, origin, expose=False))
        level.sockets += [SocketRule(path, origin) for path in each("unix_sockets", "unix-socket", self._option_path)]
        level.extra_ca += each("extra_ca", "extra-ca", self._option_path)
        self.limits.update(each("limits", "limit", grammar.parse_limit))
        for key, parse in (("dns_resolver", grammar.parse_resolver), ("upstream_proxy", grammar.parse_proxy)):
            if options.get(key):
                try:
                    self.scalars[key] = parse(options[key])
                except Malformed as error:
                    user, mark, rest = options[key].rpartition("@")  # a password is not repeated
                    self._option(key.replace("_", "-"), f"...@{rest}" if user and mark else rest, str(error))
        for field, key, known in (
            ("home", "home", _HOMES),
            ("view", "view", _VIEWS),
        ):
            value = options.get(field)
            if value:
                if value not in known:
                    self._option(key, value, f"expected {', '.join(known)}{closest(value, known)}")
                self.scalars[key] = value
        if options.get("review"):
            if options.get("live"):
                self._option("review", options["review"], "--live says that nothing is reviewed")
            self.scalars["workspace"] = "review"
            self.scalars["change_set"] = options["review"].removeprefix(NEW_CHANGE_SET)
        elif options.get("live"):
            self.scalars["workspace"] = "live"
        if options.get("ssl_insecure"):
            self.scalars["ssl_insecure"] = True
            self.warnings.append("command line: ssl_insecure: no upstream certificate is verified")
        if options.get("trace"):
            self.trace["mode"] = options["trace"]

    def _docker_options(self, words: Sequence[str]) -> None:
        """``--arg``, each of them one word of ``docker run``; line 0, as options have it, and its number as column."""
        placed = [(Scalar("command line", 0, number, word, True), word) for number, word in enumerate(words, 1)]
        try:
            self._docker_arguments("args", placed)
        except PolicyError as error:
            number = int(error.where.rpartition(":")[2])
            self._option("arg", words[number - 1], error.cause.removeprefix("args: "))

    def _option_path(self, text: str) -> str:
        path = grammar.expand_home(text, self.home)
        return path if path.startswith("/") else f"{self.directory}/{path}"

    # ------------------------------------------------------------ result

    def result(self, sources: Sequence[Source], options: MappingOf[str, Any]) -> Result:
        """Put the levels together."""
        import hashlib

        def joined(name: str) -> tuple[Any, ...]:
            return tuple(item for level in _ORDER for item in getattr(self.levels[level], name))

        for name, key in (("expose", "outside"), ("connect", "inside")):
            taken: dict[int, PortRule] = {}
            for rule in joined(name):
                first = taken.setdefault(getattr(rule, key), rule)
                if (first.inside, first.outside) != (rule.inside, rule.outside):
                    raise PolicyError(
                        "read the policy",
                        f"ports.{name}: port {getattr(rule, key)} is given two meanings, here and by {first.origin}",
                        where=f"{rule.origin.file}:{rule.origin.line}:1" if rule.origin.line else rule.origin.file,
                    )
        read = {name for name, _ in self.seen}
        for name, other in self.instead:
            if other in read:
                self.warnings.append(
                    f'the preset "{name}" is meant instead of "{other}", which opens more; leave that out'
                )
        digest = hashlib.sha256("\0".join(self.digested).encode("utf-8", "surrogateescape")).hexdigest()
        policy = Policy(
            allow=joined("allow"),
            deny=joined("deny"),
            paths=joined("paths"),
            mounts=joined("mounts"),
            unix_sockets=joined("sockets"),
            expose=joined("expose"),
            connect=joined("connect"),
            env=joined("env"),
            secrets=joined("secrets"),
            masks=joined("masks"),
            signing=joined("signing"),
            limits=Limits(**self.limits),
            trace=TraceRule(**self.trace),
            profiles=tuple(self.profile_names),
            state_dirs=tuple(name[:-1] for name in self.state if name.endswith("/")),
            state_files=tuple(name for name in self.state if not name.endswith("/")),
            extra_ca=joined("extra_ca"),
            file_rules=tuple(self.files) if self.has_files else None,
            levels=tuple(self.read),
            digest=digest,
            **self.scalars,
        )
        if self.has_files and policy.view != "host":
            raise PolicyError("read the policy", "files are rules over the host's tree", fix=("add view: host",))
        if policy.open_sockets and policy.view != "host":
            cause = f"unix_sockets: {_ALL} opens those of the host's tree"
            raise PolicyError("read the policy", cause, fix=("add view: host", "name the sockets that are needed"))
        return Result(policy, tuple(self.warnings), tuple(self.widening), tuple(sorted(self.variables.items())))


def _refuse(place: Placed | None, cause: str) -> NoReturn:
    if place is not None:
        place.refuse(cause)
    raise PolicyError("read the policy", cause)


# Keys of Membrane's file format, whose template has them without a value: as if they were not there.  Of any other key
# an empty value is refused, since it is more likely a line that was lost than a default.
_MAY_BE_EMPTY = frozenset(["allow", "deny", "ignore", "readonly", "mounts", "args", "dns_resolver", "ssl_insecure"])

# Each key: its name in messages, its spellings, the method that reads it.
_KEYS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("presets", ("presets",), "presets"),
    ("profiles", ("profiles",), "wanted"),
    ("allow", ("allow",), "hosts"),
    ("deny", ("deny",), "hosts"),
    ("ignore", ("ignore", "hide", "sealed"), "patterns"),
    ("readonly", ("readonly",), "patterns"),
    ("mounts", ("mounts",), "mounts"),
    ("files", ("files",), "files"),
    ("unix_sockets", ("unix_sockets",), "sockets"),
    ("ports", ("ports",), "ports"),
    ("env", ("env",), "env"),
    ("limits", ("limits",), "limit_keys"),
    ("secrets", ("secrets",), "secret_rules"),
    ("masks", ("masks",), "masks"),
    ("signing", ("signing",), "signing"),
    ("trace", ("trace",), "trace_keys"),
    ("args", ("args",), "args"),
    ("extra_ca", ("extra_ca",), "extra_ca"),
    ("dns_resolver", ("dns_resolver",), "text"),
    ("upstream_proxy", ("upstream_proxy",), "text"),
    ("ssl_insecure", ("ssl_insecure",), "ssl_insecure"),
    ("home", ("home",), "choice"),
    ("view", ("view",), "choice"),
    ("git_config", ("git_config",), "open"),
    ("hard_links", ("hard_links",), "choice"),
    ("user_namespaces", ("user_namespaces",), "open"),
    ("workspace", ("workspace",), "choice"),
)
