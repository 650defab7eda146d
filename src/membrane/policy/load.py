"""Files and options in, one policy out.

Theory of operation
-------------------
``load`` takes the texts (``Source``), the preset files and the options; it reads no file itself.  The rules of each
level are collected by the field of ``Policy`` that they belong to; at the end they are concatenated in the order
built-in, user, project, command line, so that a preset pulled in by a project file cannot come after what the user
wrote.  Scalars: the later level wins.  Which keys and options there are, and which method reads each, is in ``keys``.

A key of a project file *widens* when it can let the run do more than the levels before it: those lines are returned as
``Widening`` and whoever calls decides whether they are approved.  Nothing is dropped in silence: either the whole file
holds, or the run does not start.

Every error is a ``PolicyError`` with file, line and column.

One file of over 800 lines: one method for each kind of key, one for each kind of option.
"""

from __future__ import annotations

from ..errors import PolicyError
from ..value import Value
from . import document, grammar, keys
from .contradictions import hidden_anyway, mounted_at, named, refused, takes_back
from .document import Mapping, Scalar, closest
from .globs import MOST_EXPRESSIONS, Pattern
from .model import (
    DeviceRule,
    EnvRule,
    HostRule,
    Limits,
    Malformed,
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
    from .keys import Key, Option
    from .model import FileEffect, FileRule, Level, PathEffect

    T = TypeVar("T")
    P = ParamSpec("P")

DEFAULT_PRESETS = ("default",)
_TYPED = Origin("command line", "command line")
_ORDER: tuple[Level, ...] = ("built-in", "user", "project", "command line", "library")
_TRACE_MODES = ("auto", "off", "full", "required")
_ALL, _UNCONFINED = "all", "unconfined"  # of unix_sockets, of files
_FILE_EFFECTS: dict[str, FileEffect] = {
    "deny_read": "deny-read",
    "allow_read": "allow-read",
    "allow_write": "allow-write",
    "deny_write": "deny-write",
}
_WIDE = {4: 8, 6: 16}  # a shorter prefix than this contains private ranges beside public ones
# Fields of which every level adds to what is there.
_LISTS = tuple(field.name for field in keys.FIELDS if type(Policy.__dict__[field.name]) is tuple)


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
        options: the command line's level (``settings.Given``), and the directory that its relative paths start from.
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
        # The rules of each level, in the order of its sources, by field of ``Policy``.
        self.levels: dict[Level, dict[str, list[Any]]] = {level: {name: [] for name in _LISTS} for level in _ORDER}
        self.scalars: dict[str, Any] = {}
        self.limits: dict[str, int] = {}
        self.given: MappingOf[str, Any] = {}  # the options, while they are read
        self.trace: dict[str, Any] = {}
        self.wanted_profiles: list[str] = []
        self._expressions = 0  # patterns that take a regular expression, of all files
        self.profile_names: list[str] = []
        self.state: list[str] = []
        self.shown: list[str] = []
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
        self.levels["built-in"]["allow"].clear()
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
                before = len(self.levels["built-in"]["allow"])
                self._read(Source("built-in", f"profile {name}", self.presets[f"profiles/{name}"]), None)
                if self.no_hosts and name == chosen:
                    del self.levels["built-in"]["allow"][before:]

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
        for key in keys.KEYS:
            taken = top.take(key.name, *key.others)
            if taken and not (key.may_be_empty and isinstance(taken[1], Scalar) and taken[1].null):
                getattr(self, f"_{key.read}")(key.name, taken[1])
        if self.file.startswith("profile "):
            top.take("command")  # read by ``profiles``
            taken = top.take("state")
            if taken:
                self._below_home("state", taken[1], self.state)
            taken = top.take("show")
            if taken:
                self._below_home("show", taken[1], self.shown)
        top.finish("a policy")
        self._contradictions(top)

    def _presets(self, key: str, node: Node) -> None:
        named = document.named(node, key)
        if self.level == "project" and not named:
            self.forget_hosts()
        for name, arguments, item in named:
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
        rules = self.levels[self.level][key]
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
        names = ("dest", "ports", "http", "insecure", "inspect", "budget", "protocol")
        given = node.mapping(what).parts(what, *names)
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
        taken = node.mapping("budget").parts("budget", "upload", "requests", "rate")
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
        item = node.mapping("an entry of http").parts("an entry of http", "methods", "paths")
        if not item:
            node.refuse('an entry of http is empty; expected "methods" or "paths"')
        methods_text = self._filled("methods", item["methods"]) if "methods" in item else []
        for scalar, text in methods_text:
            self._checked(scalar, f'"{text}"', grammar.parse_method, text)
        paths_text = self._filled("paths", item["paths"]) if "paths" in item else []
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
            self.levels[self.level]["paths"].append(PathRule(text, self._origin(item), effect, best_effort, show_names))

    def _mounts(self, key: str, node: Node) -> None:
        for item in node.sequence(key).items:
            entry = item.mapping(f"an entry of {key}, such as {{path: ../lib, mode: ro}},")
            given = entry.parts(f"an entry of {key}", "path", "type", "mode", "target")
            access: Any = given["mode"].scalar("mode").choice("mode", ("ro", "rw")) if "mode" in given else "ro"
            self._widens(key, item)
            origin = self._origin(item)
            if "type" in given:
                given["type"].scalar("type").choice("type", ("git-root",))
                if "path" in given or "target" in given:
                    item.refuse('"type: git-root" finds its own path; "path" and "target" do not belong to it')
                self.levels[self.level]["mounts"].append(MountRule("", access, origin, git_root=True))
                continue
            if "path" not in given:
                item.refuse(f'an entry of {key} needs "path" or "type: git-root"')
            source = given["path"].scalar("path").string("path")
            at = given["target"].scalar("target").string("target") if "target" in given else ""
            rule = self._checked(given["path"], "path", grammar.mount_rule, source, at, access, origin, self.home)
            self.levels[self.level]["mounts"].append(rule)

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
                given = item.parts(f"an entry of {key}", "path", "as", "allow")
                if "path" not in given:
                    item.refuse(f'an entry of {key} has no "path"')
                scalar = given["path"]
                adapter = given["as"].scalar("as").choice("as", tuple(SERVICES)) if "as" in given else ""
                allow = tuple(text for _, text in self._filled("allow", given["allow"])) if "allow" in given else ()
                if allow and not adapter:
                    item.refuse('"allow" needs an adapter that understands it, such as "as: ssh-agent"')
            text = scalar.scalar(f"an entry of {key}").string(f"an entry of {key}")
            self._widens(key, item)
            place = self._checked(scalar, "the socket", self._socket_path, text)
            self.levels[self.level]["unix_sockets"].append(SocketRule(place, self._origin(item), adapter, allow))

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
                rules = self.levels[self.level][name]
                for item, text in taken[1].sequence(name).strings(f"{key}.{name}"):
                    self._widens(f"{key}.{name}", item)
                    origin, expose = self._origin(item), name == "expose"
                    what = f"{key}.{name}"
                    rules.append(self._checked(item, what, grammar.parse_port_pair, text, origin, expose=expose))
        entry.finish(key)

    def _env(self, key: str, node: Node) -> None:
        entry = node.mapping(key)
        rules = self.levels[self.level]["env"]
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

    def _devices(self, key: str, node: Node) -> None:
        for item, _ in node.sequence(key).strings(key):
            self._widens(key, item)
            self._device(item.choice(f"an entry of {key}", keys.BY_NAME[key].choices), self._origin(item))

    def _device(self, name: Any, origin: Origin) -> None:
        if all(rule.name != name for level in self.levels.values() for rule in level["devices"]):
            self.levels[self.level]["devices"].append(DeviceRule(name, origin))

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
                    level["env"].append(self._checked(item, key, grammar.parse_env, value, origin))
                elif kind == "mount":
                    self._widens(key, item)
                    source, target, mode = self._checked(item, key, dockerargs.volume, value, workspace, self.home)
                    rule = self._checked(item, key, grammar.mount_rule, source, target, mode, origin, self.home)
                    level["mounts"].append(rule)
                else:
                    name, value = dockerargs.limit(kind, value)
                    number = self._checked(item, key, grammar.LIMITS[name], value)
                    if not any(text.startswith(f"{name}=") for text in self.given.get("limits", ())):  # an option wins
                        self._limit(name, number, key, item)
        except dockerargs.Misplaced as error:
            assert isinstance(error.place, Scalar)
            error.place.refuse(f"{key}: {error}")

    def _secret_rules(self, key: str, node: Node) -> None:
        what = f"an entry of {key}"
        for item in node.sequence(key).items:
            entry = item.mapping(what)
            self._widens(key, item)
            nodes = entry.parts(what, "name", "from", "to", "header", "query")
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
            self.levels[self.level]["secrets"].append(SecretRule(name, source, tuple(to), header, self._origin(item)))

    def _secret_source(self, node: Node, name: str) -> str:
        if isinstance(node, Scalar):
            return self._checked(node, "from", grammar.parse_secret_source, node.string("from"), name)
        given = node.mapping("from").parts("from", "command")
        if not given:
            node.refuse(f"from is {grammar.VALUE_SOURCES}")
        return "command:" + "\0".join(text for _, text in self._filled("command", given["command"]))

    def _masks(self, key: str, node: Node) -> None:
        from .masking import compiled

        what = f"an entry of {key}"
        for item in node.sequence(key).items:
            entry = item.mapping(what)
            self._widens(key, item)
            names = (
                "file",
                "env",
                "to",
                "extract",
                "decode",
                "claims",
                "duplicates",
                "unmatched",
                "header",
                "login",
                "renew",
            )
            nodes = entry.parts(what, *names)
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
            renew = []
            for scalar, url in self._filled("renew", nodes["renew"]) if "renew" in nodes else ():
                self._checked(scalar, f'"{url}"', grammar.destinations, (url,))
                renew.append(url)
            login = "login" in nodes and nodes["login"].scalar("login").boolean("login")
            if login and kind == "env":
                item.refuse('"login" is for a file')
            if renew and not login:
                item.refuse('"renew" is for a log-in: it needs "login: true"')
            source, origin = f"{kind}:{place}", self._origin(item)
            self.levels[self.level]["masks"].append(
                MaskRule(
                    source,
                    tuple(to),
                    origin,
                    extract,
                    decode,
                    claims,
                    duplicates,
                    unmatched,
                    header,
                    login,
                    tuple(renew),
                )
            )

    def _signing(self, key: str, node: Node) -> None:
        what = f"an entry of {key}"
        for item in node.sequence(key).items:
            entry = item.mapping(what)
            self._widens(key, item)
            names = [node.scalar(name).string(name) for name, node in entry.parts(what, "key_id", "secret").items()]
            if len(names) != 2:
                item.refuse(f'{what} is {{key_id: NAME, secret: NAME}}, two names of "secrets"')
            self.levels[self.level]["signing"].append(SigningRule(names[0], names[1], self._origin(item)))

    def _trace_keys(self, key: str, node: Node) -> None:
        entry = node.mapping(key)
        taken = entry.take("mode")
        if taken:
            mode = taken[1].scalar("trace.mode").choice("trace.mode", _TRACE_MODES)
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

    def _absent(self, key: str, node: Node) -> None:
        """A key of other versions: who relies on it is told, and nothing is run without it."""
        if node.scalar(key).choice(key, ("live", "cow")) == "cow":
            node.refuse("workspace: cow is not available in this version; use workspace: live, or leave it out")

    def _extra_ca(self, key: str, node: Node) -> None:
        for item, text in node.sequence(key).strings(key):
            self._widens(key, item)
            path = self._checked(item, key, grammar.expand_home, text, self.home)
            self.levels[self.level]["extra_ca"].append(path if path.startswith("/") else f"{self.directory}/{path}")

    def _below_home(self, key: str, node: Node, into: list[str]) -> None:
        for item, text in node.sequence(key).strings(key):
            if text.startswith("/") or not {"", ".", ".."}.isdisjoint(text.removesuffix("/").split("/")):
                item.refuse(f"{key} {text!r} is not a path below the home directory")
            into.append(text)

    # ------------------------------------------------------------ scalars

    def _text(self, key: str, node: Node) -> None:
        text = node.scalar(key).string(key)
        self._widens(key, node)
        self.scalars[key] = self._checked(node, key, getattr(grammar, keys.BY_NAME[key].parse), text)

    def _ssl_insecure(self, key: str, node: Node) -> None:
        value = node.scalar(key).boolean(key)
        if value:
            self._widens(key, node)
            self.warnings.append(f"{self._origin(node)}: ssl_insecure: no upstream certificate is verified")
        self.scalars[key] = value

    def _choice(self, key: str, node: Node) -> None:
        row = keys.BY_NAME[key]
        text = node.scalar(key).choice(key, row.choices)
        name, value = _chosen(row, text)
        before = self.scalars.get(name, Policy.__dict__[name])
        if value is True or (isinstance(value, str) and row.choices.index(value) > row.choices.index(before)):
            self._widens(key, node)
        self.scalars[name] = value

    # ------------------------------------------------------------ contradictions

    def _contradictions(self, top: Mapping) -> None:
        """Refuse two entries of one file of which one takes back the other."""
        level = self.levels[self.level]

        def here(rules: Sequence[Any]) -> list[Any]:
            return [rule for rule in rules if rule.origin.file == self.file]

        def refuse(rule: Any, cause: str) -> NoReturn:
            raise PolicyError("read the policy", cause, where=f"{self.file}:{rule.origin.line}:1")

        allowed = {named(rule): rule for rule in here(level["allow"])}
        for rule in here(level["deny"]):
            other = allowed.get(named(rule))
            if other is not None and takes_back(refused([rule]), other):
                refuse(rule, f'deny "{rule.text}" takes back all of allow "{other.text}" in line {other.origin.line}')
        hidden = hidden_anyway(here(level["paths"]))
        for path in here(level["paths"]):
            if path.effect == "readonly" and path.text in hidden:
                refuse(
                    path, f'the pattern "{path.text}" is readonly, and ignored in line {hidden[path.text].origin.line}'
                )
        passed = {rule.name: rule.origin.line for rule in here(level["env"]) if rule.value is None}
        for env in here(level["env"]):
            if env.value is not None and env.name in passed:
                refuse(env, f"{env.name} is set, and passed in line {passed[env.name]}")
        self._mounted_once()

    def _mounted_once(self) -> None:
        """Refuse two mounts of one file, or of the command line, that differ in their mode only."""
        mounts: dict[tuple[str, str, bool], MountRule] = {}
        for mount in self.levels[self.level]["mounts"]:
            if mount.origin.file != self.file:
                continue
            first = mounts.setdefault(mounted_at(mount), mount)
            if first.mode != mount.mode:
                what = mount.path or "git-root"
                before = f"{first.mode} in line {first.origin.line}" if first.origin.line else f"{first.mode} as well"
                where = f"{self.file}:{mount.origin.line}:1" if mount.origin.line else self.file
                raise PolicyError("read the policy", f'"{what}" is mounted {mount.mode}, and {before}', where=where)

    # ------------------------------------------------------------ options

    def options(self, options: MappingOf[str, Any]) -> None:
        """Read the command line's level.

        Raises:
            TypeError: there is no such option; what it was to refuse must not be left out in silence.
        """
        unknown = options.keys() - {option.key for option in keys.OPTIONS} - {"directory"}
        if unknown:
            raise TypeError(f"there is no option {sorted(unknown)[0]!r}")
        self.level, self.file, self.directory = "command line", "command line", options.get("directory", "")
        if any(value for name, value in options.items() if name != "directory"):
            self.read.append("command line")
            self.digested += [f"{name}={value!r}" for name, value in sorted(options.items())]
        self.given = options
        for key in keys.KEYS:
            for option in key.options:
                values = options.get(option.key)
                if not values or not option.read:
                    continue
                read = getattr(self, f"_typed_{option.read}")
                for text in values if option.repeatable and option.read != "args" else (values,):
                    try:
                        read(key, option, text)
                    except Malformed as error:
                        self._option(option.name, text, str(error))
        self._mounted_once()
        self.given = {}

    def _typed_preset(self, _key: Key, option: Option, text: str) -> None:
        name, equals, arguments = text.partition("=")
        try:
            self.preset(name, None, tuple(arguments.split(",")) if equals else ())
        except PolicyError as error:
            self._option(option.name, text, error.cause)

    def _typed_host(self, key: Key, _option: Option, text: str) -> None:
        rule = grammar.host_rule(text, _TYPED, deny=key.name == "deny")
        self.levels[self.level][key.name].append(rule)
        if key.name == "allow":
            self._warn_if_wide(rule)

    def _typed_pattern(self, key: Key, _option: Option, text: str) -> None:
        Pattern(text)  # which refuses what is none
        effect: PathEffect = "readonly" if key.name == "readonly" else "hide"
        self.levels[self.level]["paths"].append(PathRule(text, _TYPED, effect))

    def _typed_mount(self, _key: Key, _option: Option, text: str) -> None:
        self.levels[self.level]["mounts"].append(grammar.parse_mount(text, _TYPED, self.home))

    def _typed_variable(self, _key: Key, _option: Option, text: str) -> None:
        self.levels[self.level]["env"].append(grammar.parse_env(text, _TYPED))

    def _typed_device(self, _key: Key, option: Option, text: str) -> None:
        if text not in option.values:
            raise Malformed(f"expected {', '.join(option.values)}{closest(text, option.values)}")
        self._device(text, _TYPED)

    def _typed_port(self, _key: Key, option: Option, text: str) -> None:
        rule = grammar.parse_port_pair(text, _TYPED, expose=option.key == "expose")
        self.levels[self.level][option.key].append(rule)

    def _typed_socket(self, _key: Key, _option: Option, text: str) -> None:
        self.levels[self.level]["unix_sockets"].append(SocketRule(self._option_path(text), _TYPED))

    def _typed_extra_ca(self, _key: Key, _option: Option, text: str) -> None:
        self.levels[self.level]["extra_ca"].append(self._option_path(text))

    def _typed_limit(self, _key: Key, _option: Option, text: str) -> None:
        name, value = grammar.parse_limit(text)
        self.limits[name] = value

    def _typed_text(self, key: Key, option: Option, text: str) -> None:
        try:
            self.scalars[key.name] = getattr(grammar, key.parse)(text)
        except Malformed as error:
            user, mark, rest = text.rpartition("@")  # a password is not repeated
            self._option(option.name, f"...@{rest}" if user and mark else rest, str(error))

    def _typed_choice(self, key: Key, option: Option, text: str) -> None:
        if text not in key.choices:
            self._option(option.name, text, f"expected {', '.join(key.choices)}{closest(text, key.choices)}")
        name, value = _chosen(key, text)
        self.scalars[name] = value

    def _typed_ssl_insecure(self, key: Key, _option: Option, _given: bool) -> None:
        self.scalars[key.name] = True
        self.warnings.append("command line: ssl_insecure: no upstream certificate is verified")

    def _typed_trace(self, _key: Key, option: Option, text: str) -> None:
        if text not in _TRACE_MODES:
            self._option(option.name, text, f"expected {', '.join(_TRACE_MODES)}{closest(text, _TRACE_MODES)}")
        self.trace["mode"] = text

    def _typed_args(self, key: Key, option: Option, words: Sequence[str]) -> None:
        """``--arg``, each of them one word of ``docker run``; line 0, as options have it, and its number as column."""
        placed = [(Scalar("command line", 0, number, word, True), word) for number, word in enumerate(words, 1)]
        try:
            self._docker_arguments(key.name, placed)
        except PolicyError as error:
            number = int(error.where.rpartition(":")[2])
            self._option(option.name, words[number - 1], error.cause.removeprefix("args: "))

    def _option_path(self, text: str) -> str:
        path = grammar.expand_home(text, self.home)
        return path if path.startswith("/") else f"{self.directory}/{path}"

    # ------------------------------------------------------------ result

    def result(self, sources: Sequence[Source], options: MappingOf[str, Any]) -> Result:
        """Put the levels together."""
        import hashlib

        def joined(name: str) -> tuple[Any, ...]:
            return tuple(item for level in _ORDER for item in self.levels[level][name])

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
        rules = {name: joined(name) for name in _LISTS}
        rules["profiles"] = tuple(self.profile_names)
        policy = Policy(
            limits=Limits(**self.limits),
            trace=TraceRule(**self.trace),
            state_dirs=tuple(name[:-1] for name in self.state if name.endswith("/")),
            state_files=tuple(name for name in self.state if not name.endswith("/")),
            state_shown=tuple(name.rstrip("/") for name in self.shown),
            file_rules=tuple(self.files) if self.has_files else None,
            levels=tuple(self.read),
            digest=digest,
            **{**rules, **self.scalars},
        )
        if self.has_files and policy.view != "host":
            raise PolicyError("read the policy", "files are rules over the host's tree", fix=("add view: host",))
        if policy.open_sockets and policy.view != "host":
            cause = f"unix_sockets: {_ALL} opens those of the host's tree"
            raise PolicyError("read the policy", cause, fix=("add view: host", "name the sockets that are needed"))
        return Result(policy, tuple(self.warnings), tuple(self.widening), tuple(sorted(self.variables.items())))


def _chosen(key: Key, text: str) -> tuple[str, str | bool]:
    """The field of a choice and its value; where that is a flag, anything but the tightest choice sets it."""
    name = key.fields[0].name
    return name, text != key.choices[0] if isinstance(Policy.__dict__[name], bool) else text


def _refuse(place: Placed | None, cause: str) -> NoReturn:
    if place is not None:
        place.refuse(cause)
    raise PolicyError("read the policy", cause)
