"""What one key of a policy file says, as rules.

Theory of operation
-------------------
``Reader`` has a method for each way in which a key is read, named by the rows of ``keys`` (``_NAME``).  Each takes the
key and the node behind it and adds what it says to the rules of the level, the scalars or the limits.  ``load`` puts
files and levels together, and knows which file is being read.

A key of a project file *widens* when it can let the run do more than the levels before it: the place is added to
``Reader.widening`` as a ``Widening``.

Every error is a ``PolicyError`` with file, line and column.
"""

from __future__ import annotations

from ..value import Value
from . import grammar, keys
from .contradictions import check_mounts
from .document import Mapping, Scalar
from .globs import MOST_EXPRESSIONS, Pattern
from .hosts import HOST_INTERNAL
from .model import (
    IMAGE_PATHS,
    CarrierOption,
    DeviceRule,
    EnvRule,
    Malformed,
    MaskRule,
    MountRule,
    Origin,
    PathRule,
    Policy,
    SecretRule,
    SigningRule,
    SocketRule,
)
from .sockets import SERVICES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from collections.abc import Mapping as MappingOf
    from typing import Any, ParamSpec, TypeVar

    from .document import Node, Placed
    from .keys import Key
    from .model import FileEffect, FileRule, HostRule, Level, PathEffect, PortRange, RuleBudget

    T = TypeVar("T")
    P = ParamSpec("P")

ORDER: tuple[Level, ...] = ("built-in", "user", "project", "command line", "library")
TRACE_MODES = ("auto", "off", "full", "required")
ALL, _UNCONFINED = "all", "unconfined"  # of unix_sockets, of files
_FILE_EFFECTS: dict[str, FileEffect] = {
    "deny_read": "deny-read",
    "allow_read": "allow-read",
    "allow_write": "allow-write",
    "deny_write": "deny-write",
}
_WIDE = {4: 8, 6: 16}  # a shorter prefix than this contains private ranges beside public ones
# Fields of which every level adds to what is there.
LISTS = tuple(field.name for field in keys.FIELDS if type(Policy.__dict__[field.name]) is tuple)


class Widening(Value):
    """A place in a project file that lets the run do more."""

    key: str  # dotted, such as "allow" or "env.pass"
    line: int
    text: str  # the source lines without indentation, and the value where escapes hide it; not escaped


class Reader:
    """Collects what keys say."""

    def __init__(self, environ: MappingOf[str, str], home: str) -> None:
        self.environ, self.home = environ, home
        # The rules of each level, in the order of its sources, by field of ``Policy``.
        self.levels: dict[Level, dict[str, list[Any]]] = {level: {name: [] for name in LISTS} for level in ORDER}
        self.scalars: dict[str, Any] = {}
        self.said: dict[str, Scalar] = {}  # choices of the file that is read
        self.limits: dict[str, int] = {}
        self.given: MappingOf[str, Any] = {}  # the options, while they are read
        self.trace: dict[str, Any] = {}
        self._expressions = 0  # patterns that take a regular expression, of all files
        self.files: list[FileRule] = []
        self.has_files = False
        self.warnings: list[str] = []
        self.widening: list[Widening] = []
        self.variables: dict[str, str | None] = {}
        # Of the file that is being read:
        self.level: Level = "built-in"
        self.file = ""
        self.directory = ""
        self.lines: list[str] = []
        self.arguments: tuple[str, ...] = ()  # what "{repository}" in a path of the preset stands for

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

    # ------------------------------------------------------------ lists and mappings

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
        elif grammar.is_own_loopback(rule):
            port = f":{rule.ports[0].first}" if rule.ports else " with a port"
            self.warnings.append(
                f'{rule.origin}: "{rule.text}" is the loopback of the sandbox itself, which needs no rule; '
                f"this machine's is {HOST_INTERNAL}{port}"
            )

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
            self._checked(scalar, f'the pattern "{text}"', grammar.check_pattern, text, self.home)
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
        if isinstance(node, Scalar) and node.text == ALL:
            self._widens(key, node)
            self.warnings.append(f"{self._origin(node)}: unix_sockets: {ALL}: docker's socket is the whole machine")
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
        check_mounts(self.levels[self.level]["mounts"], self.file)

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
                elif kind == "carrier":
                    if not value.startswith(tuple(f"{name}=" for name in dockerargs.BOUNDS)):
                        self._widens(key, item)
                    word = self._checked(item, key, dockerargs.carrier, value)
                    level["carrier_options"].append(CarrierOption(word, origin))
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
                "replaced",
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
            replaced = "replaced" in nodes and nodes["replaced"].scalar("replaced").boolean("replaced")
            if replaced and not login:
                item.refuse('"replaced" is for a log-in: it needs "login: true"')
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
                    replaced,
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
            mode = taken[1].scalar("trace.mode").choice("trace.mode", TRACE_MODES)
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

    def _image(self, key: str, node: Node) -> None:
        text = node.scalar(key).string(key)
        self._widens(key, node)
        kind, rest = self._checked(node, key, grammar.parse_image, text)
        if kind == "dockerfile" and self.level == "project":
            # To build is to run engines, and that is what ``containers`` says.
            node.refuse(f"{key}: a project's file cannot have an image built; say --image {text}, or config.yaml")
        if kind in IMAGE_PATHS:
            path = self._checked(node, key, grammar.expand_home, rest, self.home)
            text = f"{kind}:{path if path.startswith('/') else f'{self.directory}/{path}'}"
        self.scalars[key] = text

    def _ssl_insecure(self, key: str, node: Node) -> None:
        value = node.scalar(key).boolean(key)
        if value:
            self._widens(key, node)
            self.warnings.append(f"{self._origin(node)}: ssl_insecure: no upstream certificate is verified")
        self.scalars[key] = value

    def _choice(self, key: str, node: Node) -> None:
        row = keys.BY_NAME[key]
        text = node.scalar(key).choice(key, row.choices)
        self.said[key] = node.scalar(key)
        name, value = chosen_value(row, text)
        before = self.scalars.get(name, Policy.__dict__[name])
        if value is True or (isinstance(value, str) and row.choices.index(value) > row.choices.index(before)):
            if row.tightens and self.level == "project":
                node.refuse(f"{key}: {before} is in force, and a project's file may only make it tighter than that")
            self._widens(key, node)
        self.scalars[name] = value


def chosen_value(key: Key, text: str) -> tuple[str, str | bool]:
    """The field of a choice and its value; where that is a flag, anything but the tightest choice sets it."""
    name = key.fields[0].name
    return name, text != key.choices[0] if isinstance(Policy.__dict__[name], bool) else text
