"""A strict reader of YAML documents in which every value knows its line and column.

Theory of operation
-------------------
The parser's events are turned into a small tree of ``Scalar``, ``Sequence`` and ``Mapping`` without recursion in C and
without YAML's type guessing: a value is its text, and who wants a number parses that.  What has no use in a policy
and can only surprise is refused: anchors and aliases (they also make small files expand without end), tags, several
documents, duplicate keys, nesting deeper than ``DEEPEST``.

``Mapping.take`` hands out each key once; ``Mapping.finish`` refuses the keys that were not taken, naming the closest
one.
"""

from __future__ import annotations

from ..errors import PolicyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any, NoReturn, TypeAlias

    Node: TypeAlias = "Scalar | Sequence | Mapping"

_FEW = 16  # keys that a message lists
DEEPEST = 16  # nesting of collections; the policy grammar needs 6
_NULLS = frozenset(["", "~", "null", "Null", "NULL"])  # YAML 1.1 null, as a plain scalar
_TRUE = frozenset(["true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"])
_FALSE = frozenset(["false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"])


def closest(word: str, known: Iterable[str]) -> str:
    """``; did you mean "..."?`` for the known word that ``word`` most likely stands for, or nothing."""
    import difflib

    found = difflib.get_close_matches(word.lower(), tuple(known), n=1, cutoff=0.6)
    return f'; did you mean "{found[0]}"?' if found else ""


class Placed:
    """Something at a line and column (1-based) of a file."""

    __slots__ = ("column", "file", "line")
    kind = ""

    @property
    def last_line(self) -> int:
        """The line in which it ends, without a closing bracket."""
        return self.line

    def __init__(self, file: str, line: int, column: int) -> None:
        self.file, self.line, self.column = file, line, column

    def refuse(self, cause: str) -> NoReturn:
        """Raise ``PolicyError`` with ``file:line:column: cause``."""
        raise PolicyError("read the policy", cause, where=f"{self.file}:{self.line}:{self.column}")

    # Each of these returns the node as the wanted kind, or refuses it with what was found and what was expected.

    def scalar(self, what: str) -> Scalar:
        self.refuse(f"{what} is {self.kind}; expected a single value")

    def sequence(self, what: str) -> Sequence:
        self.refuse(f"{what} is {self.kind}; expected a list: [{what_example(self)}]")

    def mapping(self, what: str) -> Mapping:
        self.refuse(f"{what} is {self.kind}; expected keys and values")


def what_example(node: object) -> str:
    """The found scalar again, as the only item of the list that was expected."""
    return node.text if isinstance(node, Scalar) and node.text else "..."


class Scalar(Placed):
    """One value; ``plain``: written without quotes."""

    __slots__ = ("_last_line", "plain", "text")
    kind = "a single value"

    def __init__(self, file: str, line: int, column: int, text: str, plain: bool, last_line: int = 0) -> None:
        super().__init__(file, line, column)
        self.text, self.plain = text, plain
        self._last_line = max(line, last_line)

    @property
    def last_line(self) -> int:
        return self._last_line

    @property
    def null(self) -> bool:
        return self.plain and self.text in _NULLS

    def scalar(self, what: str) -> Scalar:
        if self.null:
            self.refuse(f"{what} is empty")
        return self

    def sequence(self, what: str) -> Sequence:
        if self.null:
            self.refuse(f"{what} is empty; expected a list, [] for none")
        return super().sequence(what)

    def mapping(self, what: str) -> Mapping:
        if self.null:
            self.refuse(f"{what} is empty; expected keys and values")
        return super().mapping(what)

    def string(self, what: str) -> str:
        """The text, which must not be empty."""
        if not self.scalar(what).text:
            self.refuse(f"{what} is empty")
        return self.text

    def boolean(self, what: str) -> bool:
        """``true`` or ``false``, also YAML 1.1's other spellings, unquoted."""
        if self.plain and self.text in _TRUE:
            return True
        if not self.plain or self.text not in _FALSE:
            self.refuse(f"{what} is {self.text!r}; expected true or false")
        return False

    def choice(self, what: str, known: tuple[str, ...]) -> str:
        """One of ``known``."""
        if self.string(what) not in known:
            self.refuse(f"{what} is {self.text!r}; expected {', '.join(known)}{closest(self.text, known)}")
        return self.text


class Sequence(Placed):
    """A list."""

    __slots__ = ("items",)
    kind = "a list"

    def __init__(self, file: str, line: int, column: int) -> None:
        super().__init__(file, line, column)
        self.items: list[Node] = []

    @property
    def last_line(self) -> int:
        return self.items[-1].last_line if self.items else self.line

    def sequence(self, what: str) -> Sequence:
        return self

    def strings(self, what: str) -> Iterator[tuple[Scalar, str]]:
        """Each item and its text; an item that is empty or no single value is refused."""
        for item in self.items:
            scalar = item.scalar(f"an entry of {what}")
            yield scalar, scalar.string(f"an entry of {what}")


class Mapping(Placed):
    """Keys and values, in order."""

    __slots__ = ("_last", "known", "pairs")
    kind = "a mapping"

    def __init__(self, file: str, line: int, column: int) -> None:
        super().__init__(file, line, column)
        self.pairs: dict[str, tuple[Scalar, Node]] = {}
        self.known: list[str] = []
        self._last: Node | None = None

    @property
    def last_line(self) -> int:
        return self._last.last_line if self._last is not None else self.line

    def add(self, key: Scalar, value: Node) -> None:
        """Append a pair."""
        self.pairs[key.text] = key, value
        self._last = value

    def mapping(self, what: str) -> Mapping:
        return self

    def take(self, *names: str) -> tuple[str, Node] | None:
        """The value of the one of ``names`` that is present; two names of one thing are refused."""
        self.known += names
        present = [name for name in names if name in self.pairs]
        if not present:
            return None
        if len(present) > 1:
            second = max((self.pairs[name][0] for name in present), key=lambda key: (key.line, key.column))
            second.refuse(f'"{present[0]}" and "{present[1]}" are the same; give one of them')
        return present[0], self.pairs.pop(present[0])[1]

    def parts(self, what: str, *names: str) -> dict[str, Node]:
        """The values of those of ``names`` that are there; every other key is refused."""
        found = {name: taken[1] for name in names if (taken := self.take(name))}
        self.finish(what)
        return found

    def finish(self, what: str) -> None:
        """Refuse the keys that were not taken."""
        for name, (key, _value) in self.pairs.items():
            hint = closest(name, self.known)
            if not hint and len(self.known) <= _FEW:
                hint = f"; known are {', '.join(sorted(self.known))}"
            key.refuse(f'unknown key "{name}" in {what}{hint}')


def named(node: Node, what: str) -> list[tuple[str, tuple[str, ...], Placed]]:
    """The items of a list of names, of which one may have a list of its own: ``[NAME, {NAME: [TEXT, ...]}]``."""
    found: list[tuple[str, tuple[str, ...], Placed]] = []
    for item in node.sequence(what).items:
        if isinstance(item, Mapping):
            for name, (_, value) in item.pairs.items():
                texts = tuple(text for _, text in value.sequence(name).strings(name))
                if not texts:
                    value.refuse(f"{name} is an empty list")
                found.append((name, texts, item))
        else:
            found.append((item.scalar(f"an entry of {what}").string(f"an entry of {what}"), (), item))
    return found


def split_lines(text: str) -> list[str]:
    """Split where YAML 1.1 counts lines, so that line numbers fit: also at CR, NEL, LS and PS."""
    for mark in ("\r\n", "\r", "\x85", "\u2028", "\u2029"):
        text = text.replace(mark, "\n")
    return text.split("\n")


def parse(text: str, file: str) -> Mapping | Sequence | Scalar | None:
    """Read one document; ``None`` when it is empty.

    Raises:
        PolicyError: with file, line and column.
    """
    import yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return _tree(yaml.parse(text, Loader=loader), file)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else file
        cause = error.problem or "it is not YAML"
        if "alias" in str(error):
            cause += '; quote a value that begins with "*"'
        elif "cannot start any token" in cause:
            cause += "; indent with spaces" if _char_at(text, mark) == "\t" else "; quote this value"
        raise PolicyError("read the policy", cause, where=where) from None
    except UnicodeError:
        raise PolicyError("read the policy", "it contains half a surrogate pair", where=file) from None
    except yaml.YAMLError as error:  # ReaderError: a character that YAML does not allow
        raise PolicyError("read the policy", str(error).splitlines()[0], where=file) from None


def _char_at(text: str, mark: Any) -> str:
    line = split_lines(text)[mark.line : mark.line + 1] if mark else []
    return line[0][mark.column : mark.column + 1] if line else ""


def _tree(events: Iterable[Any], file: str) -> Node | None:
    import yaml

    root: Node | None = None
    stack: list[tuple[Sequence | Mapping, list[Scalar]]] = []  # open collections; of a mapping, the key that waits
    documents = 0

    def place(event: Any) -> tuple[str, int, int]:
        return file, event.start_mark.line + 1, event.start_mark.column + 1

    def attach(node: Node) -> None:
        nonlocal root
        if not stack:
            root = node
            return
        parent, waiting = stack[-1]
        if isinstance(parent, Sequence):
            parent.items.append(node)
        elif not waiting:
            waiting.append(node.scalar("a key"))
            if waiting[0].text in parent.pairs:
                first = parent.pairs[waiting[0].text][0]
                node.refuse(f'the key "{waiting[0].text}" is given twice; first in line {first.line}')
        else:
            parent.add(waiting.pop(), node)

    for event in events:
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                Sequence(*place(event)).refuse("a second document begins here; a policy is one document")
        elif isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            Sequence(*place(event)).refuse(
                'anchors and aliases are not used in a policy; quote a value that begins with "*" or "&"'
            )
        elif isinstance(event, (yaml.ScalarEvent, yaml.CollectionStartEvent)):
            # "!" alone only says "not plain"; the quotes say that already.
            if event.tag not in (None, "!"):
                Sequence(*place(event)).refuse(
                    f'the tag {event.tag} is not used in a policy; quote a value that begins with "!"'
                )
            if isinstance(event, yaml.ScalarEvent):
                mark: Any = event.end_mark  # at the start of the next line after a block scalar
                end = mark.line + (mark.column > 0)
                attach(Scalar(*place(event), event.value, not event.style, end))
                continue
            node = (Sequence if isinstance(event, yaml.SequenceStartEvent) else Mapping)(*place(event))
            if len(stack) >= DEEPEST:
                node.refuse(f"collections are nested deeper than {DEEPEST}")
            attach(node)
            stack.append((node, []))
        elif isinstance(event, yaml.CollectionEndEvent):
            stack.pop()
    return None if isinstance(root, Scalar) and root.null else root
