"""gitignore(5) patterns for names and paths of files.

Theory of operation
-------------------
A pattern is translated once.  Most are a name, or a name with one star at an end, and are matched without a regular
expression; the others become one each, with the grammar of git's wildmatch.c.  A ``PatternSet`` joins neighbours of
one sign into a group: a set of names, their ends, and two expressions; the last pattern that matches decides, so the
groups are tried from the end.

In an expression every star but the last takes the leftmost fit (an atomic group): matching stays linear in the name
for hostile patterns.  A pattern that can never match, which git ignores in silence, is an error with its cause.
"""

from __future__ import annotations

from .model import Malformed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


class PatternError(Malformed):
    """A gitignore pattern that can never mean what it says."""


_CLASSES = {  # POSIX character classes of gitignore brackets (git wildmatch.c), ASCII as in the C locale
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "blank": " \\t",
    "cntrl": "\\x00-\\x1f\\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": "!-\\/:-@\\[-`{-~",
    "space": " \\t-\\r",
    "upper": "A-Z",
    "xdigit": "0-9A-Fa-f",
}
_LONGEST_PATTERN = 4096  # characters; PATH_MAX
# Patterns of a policy that are more than a name or a name with one star: each is tried with each name of the workspace,
# at a third of a microsecond.
MOST_EXPRESSIONS = 2000


def _literal(char: str) -> str:
    return char if char.isalnum() or char == "_" else f"\\{char}" if char.isascii() else char


def _bracket(text: str, at: int) -> tuple[str, int]:
    """Translate the bracket expression whose ``[`` is at ``at``; return its regex and the index after it.

    The grammar is that of git's wildmatch.c: ``]`` first is literal, ``!`` and ``^`` negate, a backslash quotes.
    """
    index = at + 1
    negated = text[index : index + 1] in ("!", "^")
    index += negated
    items: list[str] = []
    previous = ""
    first = True
    while True:
        if index >= len(text):
            raise PatternError("a bracket is not closed")
        char = text[index]
        if char == "]" and not first:
            break
        first = False
        if char == "-" and previous and text[index + 1 : index + 2] not in ("", "]"):
            index += 1
            last = text[index]
            if last == "\\":
                index += 1
                last = text[index : index + 1]
                if not last:
                    raise PatternError("a bracket is not closed")
            if last < previous:
                raise PatternError(f"the range {previous}-{last} in a bracket is empty")
            items[-1] = f"{_literal(previous)}-{_literal(last)}"
            previous = ""
        elif char == "[" and text[index + 1 : index + 2] == ":":
            end = text.find(":]", index + 2)
            name = text[index + 2 : end] if end > 0 else ""
            if name not in _CLASSES:
                raise PatternError(f"unknown character class [:{name}:]")
            items.append(_CLASSES[name])
            index = end + 1
            previous = ""
        else:
            if char == "\\":
                index += 1
                char = text[index : index + 1]
                if not char:
                    raise PatternError("a bracket is not closed")
            items.append(_literal(char))
            previous = char
        index += 1
    body = "".join(items)
    return (f"[^/{body}]" if negated else f"[{body}]"), index + 1


def _segment(text: str) -> tuple[str, str | None]:
    """Translate one path segment; return its regex and, when it has no wildcard, the literal it stands for.

    Every star but the last becomes an atomic group that takes the leftmost fit: what follows a star has a fixed
    length, so an earlier fit is never worse, and matching stays linear for hostile patterns.
    """
    fixed = [""]
    literal: list[str] | None = []
    index = 0
    while index < len(text):
        char = text[index]
        index += 1
        if char == "*":
            literal = None
            if index < 2 or text[index - 2] != "*" or fixed[-1]:
                fixed.append("")
        elif char == "?":
            literal = None
            fixed[-1] += "[^/]"
        elif char == "[":
            literal = None
            part, index = _bracket(text, index - 1)
            fixed[-1] += part
        else:
            if char == "\\":
                char = text[index : index + 1]
                index += 1
                if not char:
                    raise PatternError("it ends in a lone backslash")
            fixed[-1] += _literal(char)
            if literal is not None:
                literal.append(char)
    head, *rest = fixed
    regex = head
    if rest:
        regex += "".join(f"(?>[^/]*?{part})" for part in rest[:-1]) + "[^/]*" + rest[-1]
    return regex, None if literal is None else "".join(literal)


def split_pattern(text: str) -> list[str]:
    """Split at the slashes; one inside a bracket or after a backslash cannot match anything (wildmatch.c)."""
    segments = [""]
    index = 0
    while index < len(text):
        char = text[index]
        if char == "/":
            segments.append("")
            index += 1
            continue
        end = index + 1
        if char == "[":
            end = _bracket(text, index)[1]
        elif char == "\\":
            end = index + 2
        if "/" in text[index:end]:
            raise PatternError("a slash is quoted or inside a bracket")
        segments[-1] += text[index:end]
        index = end
    return segments


class Pattern:
    """One gitignore(5) pattern, translated.

    ``by_name``: it is matched against the last component at any depth, else against the whole relative path.
    ``literal``: the name it stands for when it has no wildcard; ``ends``: what is before and after its only one,
    a star.  Such patterns need no ``re``, which takes 8 ms to load.
    """

    __slots__ = ("_compiled", "by_name", "directories_only", "ends", "literal", "negated", "regex")

    def __init__(self, text: str) -> None:
        """Translate ``text``.

        Raises:
            PatternError: the pattern can never match, or means nothing to git.
        """
        if len(text) > _LONGEST_PATTERN:
            raise PatternError(f"it is longer than {_LONGEST_PATTERN} characters")
        if "\0" in text:
            raise PatternError("it contains a NUL")
        while text.endswith(" ") and not text.endswith("\\ "):
            text = text[:-1]
        if text.startswith("#"):
            raise PatternError('it is a comment; write "\\#" for a name that starts with "#"')
        self.negated = text.startswith("!")
        if self.negated:
            text = text[1:]
        self.directories_only = text.endswith("/")
        if self.directories_only:
            text = text[:-1]
        if not text.strip("/"):
            raise PatternError("it is empty")
        anchored = "/" in text
        segments = split_pattern(text)
        if anchored and not segments[0]:
            segments = segments[1:]
        if "" in segments:
            raise PatternError("it has an empty path segment")
        if "." in segments or ".." in segments:
            raise PatternError('it has a "." or ".." segment, which never matches')
        while len(segments) > 1 and segments[0] == segments[1] == "**":
            del segments[0]
        if len(segments) == 2 and segments[0] == "**":
            segments, anchored = segments[1:], False
        self.literal: str | None = None
        self.ends: tuple[str, str] | None = None
        self.by_name = not anchored
        if self.by_name:
            self.regex, self.literal = _segment(segments[0])
            before, star, after = segments[0].partition("*")
            if star and not any(char in before + after for char in "*?[\\"):
                self.ends = before, after
        else:
            self.regex = self._path(segments)
        self._compiled: Callable[[str], object] | None = None

    @property
    def is_expression(self) -> bool:
        """Does it take a regular expression to match it?"""
        return self.literal is None and self.ends is None

    def matches(self, name: str, relpath: str, is_dir: bool) -> bool:
        """Does the pattern match this one entry, its ``!`` left aside?  Arguments as ``PatternSet.match``."""
        if self.directories_only and not is_dir:
            return False
        if self._compiled is None:
            import re

            self._compiled = re.compile(self.regex, re.S).fullmatch
        return self._compiled(name if self.by_name else relpath) is not None

    @staticmethod
    def _path(segments: list[str]) -> str:
        """``**`` between slashes is any number of directories; all but the last take the leftmost fit."""
        runs: list[list[str]] = [[]]
        for segment in segments[:-1]:
            if segment == "**":
                runs.append([])
            else:
                runs[-1].append(_segment(segment)[0] + "/")
        runs[-1].append("(?s:.+)" if segments[-1] == "**" else _segment(segments[-1])[0])
        head, *rest = ["".join(run) for run in runs]
        if not rest:
            return head
        middle = "".join(f"(?>(?:[^/]+/)*?{run})" for run in rest[:-1] if run)
        return f"{head}{middle}(?:[^/]+/)*{rest[-1]}"


class _Group:
    """Consecutive patterns of one sign, matched as a set of names, their ends and two regexes."""

    __slots__ = ("ends", "names", "negated", "path", "prefixes", "regex", "suffixes")

    def __init__(self, patterns: Iterable[Pattern], negated: bool) -> None:
        names, by_name, by_path = set(), [], []
        ends: list[tuple[str, str]] = []
        for pattern in patterns:
            if not pattern.by_name:
                by_path.append(pattern.regex)
            elif pattern.literal is not None:
                names.add(pattern.literal)
            elif pattern.ends is not None:
                ends.append(pattern.ends)
            else:
                by_name.append(pattern.regex)

        def combined(parts: list[str]) -> Callable[[str], object] | None:
            if not parts:
                return None
            import re

            return re.compile("|".join(f"(?:{part})" for part in parts), re.S).fullmatch

        self.negated = negated
        self.names = frozenset(names)
        self.prefixes = tuple(before for before, after in ends if not after)
        self.suffixes = tuple(after for before, after in ends if after and not before)
        self.ends = tuple(pair for pair in ends if all(pair))
        self.regex = combined(by_name)
        self.path = combined(by_path)

    def match(self, name: str, relpath: str) -> bool:
        return (
            name in self.names
            or name.endswith(self.suffixes)
            or name.startswith(self.prefixes)
            or (bool(self.ends) and self._has_ends(name))
            or (self.regex is not None and self.regex(name) is not None)
            or (self.path is not None and self.path(relpath) is not None)
        )

    def _has_ends(self, name: str) -> bool:
        length = len(name)
        return any(
            length >= len(before) + len(after) and name.startswith(before) and name.endswith(after)
            for before, after in self.ends
        )


class PatternSet:
    """A list of gitignore(5) patterns; the last one that matches decides.

    ``by_name``: no pattern looks at the path, so ``relpath`` may be left empty.
    """

    __slots__ = ("_directories", "_files", "by_name")

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        self.by_name = all(pattern.by_name for pattern in patterns)
        self._files = self._groups([pattern for pattern in patterns if not pattern.directories_only])
        self._directories = self._groups(patterns)

    @staticmethod
    def _groups(patterns: Sequence[Pattern]) -> tuple[_Group, ...]:
        """Runs of one sign, last first: the first group that matches holds the last matching pattern."""
        runs: list[list[Pattern]] = []
        for pattern in patterns:
            if runs and runs[-1][0].negated == pattern.negated:
                runs[-1].append(pattern)
            else:
                runs.append([pattern])
        if runs and runs[0][0].negated:
            del runs[0]  # nothing before it that it could take back
        return tuple(_Group(run, run[0].negated) for run in reversed(runs))

    def match(self, name: str, relpath: str, is_dir: bool) -> bool:
        """Does the set match this one entry?

        Args:
            name: the last component, undecodable bytes as surrogate escapes.
            relpath: the path relative to the root of the patterns, without a leading slash.
            is_dir: it is a directory itself (a symbolic link is not, as in git).

        What is below a matching directory is not looked at here: the caller prunes or walks the parents.
        """
        for group in self._directories if is_dir else self._files:
            if group.match(name, relpath):
                return not group.negated
        return False

    def match_either(self, name: str, relpath: str) -> bool:
        """Does the set match this entry as a file or as a directory?"""
        for group in self._directories:  # all patterns: where none matches, neither does
            if group.match(name, relpath):
                return not group.negated or self.match(name, relpath, False)
        return False


def compile_patterns(patterns: Sequence[str]) -> PatternSet:
    """Compile gitignore(5) patterns: ``!``, anchoring, ``**``, trailing ``/``, brackets, escapes.

    One wildcard character matches one character of the decoded name (git counts bytes).

    Raises:
        PatternError: a pattern that can never match (git would ignore it in silence).
    """
    return PatternSet([Pattern(text) for text in patterns])
