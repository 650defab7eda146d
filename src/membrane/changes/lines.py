"""Which lines two texts have in common, in time that is bounded whatever they hold.

Theory of operation
-------------------
The beginning and the end that are the same are cut off.  Lines that are in both texts exactly once, in the longest
order that both share (patience), cut what is left into pieces, which are treated the same way.  A piece without such
lines is compared by the greedy algorithm of Myers, "An O(ND) Difference Algorithm and Its Variations" (1986), up to
``MOST_STEPS`` differences.  Each look at a line counts; when ``WORK`` times the lines of both texts are spent, what is
left is taken for wholly replaced.  The result is then longer than it must be, and never wrong.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import TypeAlias

    Edit: TypeAlias = tuple[int, int, int, int]

MOST_STEPS = 256  # differences within one piece
WORK = 64  # looks at each line, on an average
LEAST = 100_000  # looks that any two texts get
CONTEXT = 3  # lines around a difference (diff(1), -u)


def matches(old: Sequence[bytes], new: Sequence[bytes]) -> list[tuple[int, int, int]]:
    """(position in ``old``, in ``new``, length) of runs of lines that stay, in order, without overlap."""
    numbers: dict[bytes, int] = {}
    a = [numbers.setdefault(line, len(numbers)) for line in old]
    b = [numbers.setdefault(line, len(numbers)) for line in new]
    left = LEAST + WORK * (len(a) + len(b))
    out: list[tuple[int, int, int]] = []
    todo = [(0, len(a), 0, len(b))]
    while todo:
        a0, a1, b0, b1 = todo.pop()
        start = 0
        while a0 + start < a1 and b0 + start < b1 and a[a0 + start] == b[b0 + start]:
            start += 1
        if start:
            out.append((a0, b0, start))
            a0, b0 = a0 + start, b0 + start
        end = 0
        while a0 < a1 - end and b0 < b1 - end and a[a1 - end - 1] == b[b1 - end - 1]:
            end += 1
        if end:
            a1, b1 = a1 - end, b1 - end
            out.append((a1, b1, end))
        left -= start + end + (a1 - a0) + (b1 - b0)
        if a0 == a1 or b0 == b1 or left < 0:
            continue
        anchors = _anchors(a, b, a0, a1, b0, b1)
        if anchors:
            at, bt = a0, b0
            for i, j in anchors:
                todo.append((at, i, bt, j))
                out.append((i, j, 1))
                at, bt = i + 1, j + 1
            todo.append((at, a1, bt, b1))
            continue
        found, spent = _greedy(a[a0:a1], b[b0:b1], min(MOST_STEPS, left // (a1 - a0 + b1 - b0) + 1))
        left -= spent
        out += [(a0 + i, b0 + j, length) for i, j, length in found]
    out.sort()
    joined: list[tuple[int, int, int]] = []
    for i, j, length in out:
        if joined and joined[-1][0] + joined[-1][2] == i and joined[-1][1] + joined[-1][2] == j:
            joined[-1] = (joined[-1][0], joined[-1][1], joined[-1][2] + length)
        else:
            joined.append((i, j, length))
    return joined


def _anchors(a: list[int], b: list[int], a0: int, a1: int, b0: int, b1: int) -> list[tuple[int, int]]:
    """Lines that both pieces have once, in the longest increasing sequence."""
    from bisect import bisect_left

    seen_a: dict[int, int] = {}
    for i in range(a0, a1):
        seen_a[a[i]] = -1 if a[i] in seen_a else i
    seen_b: dict[int, int] = {}
    for j in range(b0, b1):
        seen_b[b[j]] = -1 if b[j] in seen_b else j
    pairs = [(i, seen_b[line]) for line, i in seen_a.items() if i >= 0 and seen_b.get(line, -1) >= 0]
    pairs.sort()
    ends: list[int] = []
    last: list[int] = []
    before: list[int] = []
    for number, (_i, j) in enumerate(pairs):
        at = bisect_left(ends, j)
        before.append(last[at - 1] if at else -1)
        if at == len(ends):
            ends.append(j)
            last.append(number)
        else:
            ends[at], last[at] = j, number
    out = []
    number = last[-1] if last else -1
    while number >= 0:
        out.append(pairs[number])
        number = before[number]
    return out[::-1]


def _greedy(a: list[int], b: list[int], most: int) -> tuple[list[tuple[int, int, int]], int]:
    """Myers: (runs that stay, looks that it took); no runs when there are more than ``most`` differences."""
    n, m = len(a), len(b)
    reach = {1: 0}
    trace: list[dict[int, int]] = []
    spent = 0
    for step in range(min(most, n + m) + 1):
        trace.append(dict(reach))
        for k in range(-step, step + 1, 2):
            down = k == -step or (k != step and reach.get(k - 1, -1) < reach.get(k + 1, -1))
            x = reach.get(k + 1, 0) if down else reach.get(k - 1, 0) + 1
            y = x - k
            while x < n and y < m and a[x] == b[y]:
                x, y = x + 1, y + 1
                spent += 1
            spent += 1
            reach[k] = x
            if x >= n and y >= m:
                return _walked(trace, n, m), spent
    return [], spent


def _walked(trace: list[dict[int, int]], x: int, y: int) -> list[tuple[int, int, int]]:
    out = []
    for step in range(len(trace) - 1, -1, -1):
        reach = trace[step]
        k = x - y
        down = k == -step or (k != step and reach.get(k - 1, -1) < reach.get(k + 1, -1))
        before_k = k + 1 if down else k - 1
        before_x = reach.get(before_k, 0)
        before_y = before_x - before_k
        start = before_x if down else before_x + 1
        if step == 0:
            start = 0
        if x > start:
            out.append((start, start - k, x - start))
        x, y = before_x, before_y
    return out[::-1]


def edits(old: Sequence[bytes], new: Sequence[bytes]) -> list[Edit]:
    """Where the two differ, in order: ``old[a0:a1]`` became ``new[b0:b1]``; at least one line stays between two."""
    out: list[Edit] = []
    at = bt = 0
    for i, j, length in (*matches(old, new), (len(old), len(new), 0)):
        if i > at or j > bt:
            out.append((at, i, bt, j))
        at, bt = i + length, j + length
    return out


def near(found: Sequence[Edit]) -> list[list[Edit]]:
    """Edits in groups: those of one hunk of a unified diff, whose contexts meet."""
    out: list[list[Edit]] = []
    for edit in found:
        if out and edit[0] - out[-1][-1][1] <= 2 * CONTEXT:
            out[-1].append(edit)
        else:
            out.append([edit])
    return out


def hunks(old: Sequence[bytes], new: Sequence[bytes]) -> Iterator[bytes]:
    """The hunks of a unified diff (POSIX diff, "Diff -u Output Format"); lines are with their newlines."""
    for group in near(edits(old, new)):
        yield from unified(old, new, group, max(0, group[0][0] - CONTEXT), min(len(old), group[-1][1] + CONTEXT))


def unified(old: Sequence[bytes], new: Sequence[bytes], group: Sequence[Edit], a0: int, a1: int) -> Iterator[bytes]:
    """One hunk in pieces, the first is its head: the edits ``group`` within the lines ``old[a0:a1]``."""
    b0, b1 = group[0][2] - (group[0][0] - a0), group[-1][3] + (a1 - group[-1][1])
    yield f"@@ -{_range(a0, a1)} +{_range(b0, b1)} @@\n".encode()
    at = a0
    for i0, i1, j0, j1 in group:
        yield from (_line(b" ", line) for line in old[at:i0])
        yield from (_line(b"-", line) for line in old[i0:i1])
        yield from (_line(b"+", line) for line in new[j0:j1])
        at = i1
    yield from (_line(b" ", line) for line in old[at:a1])


def _range(start: int, end: int) -> str:
    if end - start == 1:
        return str(start + 1)
    return f"{start + 1 if end > start else start},{end - start}"


def _line(sign: bytes, line: bytes) -> bytes:
    return sign + line if line.endswith(b"\n") else sign + line + b"\n\\ No newline at end of file\n"


def split(data: bytes) -> list[bytes]:
    """The lines of a text with their newlines; the last may have none."""
    lines = data.split(b"\n")
    out = [line + b"\n" for line in lines[:-1]]
    if lines[-1]:
        out.append(lines[-1])
    return out
