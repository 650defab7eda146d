"""IP literals in every form that a URL parser reads, made canonical.

A proxy is asked for what a client typed: ``127.1`` or ``2130706433`` must be judged as the address that they are.
Rules and captured connections never hold such forms (``hosts.parse_address`` refuses them).
"""

from __future__ import annotations

from .hosts import format_address, parse_address
from .model import Malformed


def canonical_address(text: str) -> str:
    """An IP literal in any form that the WHATWG URL rules read (host parser, IPv4 number) -> its canonical text.

    ``127.1``, ``0x7f.0.0.1`` and ``2130706433`` are 127.0.0.1; an IPv4-mapped IPv6 address is the IPv4 one.
    Empty for everything that is no literal.
    """
    if ":" in text:
        bare = text[1:-1] if text[:1] == "[" and text[-1:] == "]" else text
        if "%" in bare:
            return ""
        try:
            version, value = parse_address(bare)
        except Malformed:
            return ""
        if version == 6 and value >> 32 == 0xFFFF:
            version, value = 4, value & 0xFFFF_FFFF
        return format_address(version, value)
    parts = text.split(".")
    if len(parts) > 1 and not parts[-1]:
        parts.pop()
    if not 0 < len(parts) <= 4:
        return ""
    numbers: list[int] = []
    for part in parts:
        low = part.lower()
        base, digits = (16, low[2:] or "0") if low.startswith("0x") else (10, low)
        if base == 10 and len(low) > 1 and low[0] == "0":
            base, digits = 8, low[1:]
        allowed = {8: "01234567", 10: "0123456789", 16: "0123456789abcdef"}[base]
        if not digits or len(digits) > 16 or any(char not in allowed for char in digits):
            return ""
        numbers.append(int(digits, base))
    if any(number > 255 for number in numbers[:-1]) or numbers[-1] >= 256 ** (5 - len(numbers)):
        return ""
    value = numbers[-1] + sum(number << 8 * (3 - index) for index, number in enumerate(numbers[:-1]))
    return format_address(4, value)
