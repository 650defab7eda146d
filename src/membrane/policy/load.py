"""Files and options in, one policy out.

Theory of operation
-------------------
``load`` takes the texts (``Source``), the preset files and the options; it reads no file itself.  The rules of each
level are collected by the field of ``Policy`` that they belong to; at the end they are concatenated in the order
built-in, user, project, command line, so that a preset pulled in by a project file cannot come after what the user
wrote.  Scalars: the later level wins.  Which keys and options there are, and which method reads each, is in ``keys``;
what a key says is read by ``reading``, the value of an option here.

A key of a project file *widens* when it can let the run do more than the levels before it: those lines are returned as
``Widening`` and the caller decides whether they are approved.  Nothing is dropped in silence: either the whole file
holds, or the run does not start.

Every error is a ``PolicyError`` with file, line and column.
"""

from __future__ import annotations

from ..errors import PolicyError
from ..value import Value
from . import document, grammar, keys
from .contradictions import check, check_mounts, check_review
from .document import Mapping, Scalar, closest
from .globs import Pattern
from .model import IMAGE_PATHS, Limits, Malformed, Origin, PathRule, Policy, PortRule, SocketRule, TraceRule
from .reading import ALL, LISTS, ORDER, TRACE_MODES, Reader, Widening, chosen_value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping as MappingOf
    from collections.abc import Sequence
    from typing import Any, NoReturn

    from .document import Node, Placed
    from .keys import Key, Option
    from .model import Level, PathEffect

DEFAULT_PRESETS = ("default",)
_TYPED = Origin("command line", "command line")
NEW_CHANGE_SET = ":new"  # of --review without a name; no change set can be called that


class Source(Value):
    """One file: its level, its path for messages, its text, and the directory that its relative paths start from."""

    level: Level
    file: str
    text: str
    directory: str = ""


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


class _Loader(Reader):
    """Collects levels and scalars; one use."""

    def __init__(self, presets: MappingOf[str, str], environ: MappingOf[str, str], home: str, no_presets: bool) -> None:
        super().__init__(environ, home)
        self.presets = presets
        self.wanted_profiles: list[str] = []
        self.profile_names: list[str] = []
        self.state: list[str] = []
        self.shown: list[str] = []
        self.read: list[str] = []  # what was read, in order
        self.digested: list[str] = []
        self.seen: set[tuple[str, tuple[str, ...]]] = set()  # presets that were read, with their arguments
        self.instead: list[tuple[str, str]] = []  # presets that were read, and those they are meant instead of
        self.no_presets = no_presets
        self.no_hosts = False  # the agent profile that the command's name chooses opens none

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

    def _option(self, name: str, value: str, cause: str) -> NoReturn:
        raise PolicyError("read the options", f"--{name} {value!r}: {cause}")

    # ------------------------------------------------------------ keys

    def _top(self, top: Mapping) -> None:
        self.said = {}
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
        for name, program in keys.ELSEWHERE.items():
            if found := top.pairs.get(name):
                found[0].refuse(f'"{name}" is a setting of {program[0]}: membrane config import {program[1]} FILE')
        top.finish("a policy")
        check(self.levels[self.level], self.file)
        check_review(self.said)

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
        check_mounts(self.levels[self.level]["mounts"], self.file)
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
        grammar.check_pattern(text, self.home)
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

    def _typed_containers(self, key: Key, option: Option, text: str) -> None:
        self.scalars[key.name] = "nested"

    def _typed_review(self, key: Key, option: Option, text: str) -> None:
        if self.given.get("live"):
            self._option(option.name, text, "--live says that nothing is reviewed")
        self.scalars[key.name] = "review"
        self.scalars["change_set"] = text.removeprefix(NEW_CHANGE_SET)

    def _typed_live(self, key: Key, _option: Option, _given: bool) -> None:
        self.scalars[key.name] = "live"

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

    def _typed_image(self, key: Key, _option: Option, text: str) -> None:
        if text == grammar.NO_IMAGE:
            self.scalars |= {key.name: "", "platform": ""}
            return
        kind, rest = grammar.parse_image(text)
        self.scalars[key.name] = f"{kind}:{self._option_path(rest)}" if kind in IMAGE_PATHS else text

    def _typed_choice(self, key: Key, option: Option, text: str) -> None:
        if text not in key.choices:
            self._option(option.name, text, f"expected {', '.join(key.choices)}{closest(text, key.choices)}")
        name, value = chosen_value(key, text)
        self.scalars[name] = value

    def _typed_ssl_insecure(self, key: Key, _option: Option, _given: bool) -> None:
        self.scalars[key.name] = True
        self.warnings.append("command line: ssl_insecure: no upstream certificate is verified")

    def _typed_trace(self, _key: Key, option: Option, text: str) -> None:
        if text not in TRACE_MODES:
            self._option(option.name, text, f"expected {', '.join(TRACE_MODES)}{closest(text, TRACE_MODES)}")
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
            return tuple(item for level in ORDER for item in self.levels[level][name])

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
                    f'the preset "{name}" is meant instead of "{other}", which opens more; leave that out: '
                    "presets in config.yaml lists what is in force, --no-presets begins with none"
                )
        digest = hashlib.sha256("\0".join(self.digested).encode("utf-8", "surrogateescape")).hexdigest()
        rules = {name: joined(name) for name in LISTS}
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
            cause = f"unix_sockets: {ALL} opens those of the host's tree"
            raise PolicyError("read the policy", cause, fix=("add view: host", "name the sockets that are needed"))
        return Result(policy, tuple(self.warnings), tuple(self.widening), tuple(sorted(self.variables.items())))


def _refuse(place: Placed | None, cause: str) -> NoReturn:
    if place is not None:
        place.refuse(cause)
    raise PolicyError("read the policy", cause)
