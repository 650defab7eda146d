"""Numbers of system calls: those of the kernel's headers, and those that another test writes down by itself."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
import test_seccomp

from membrane.host.numbers import AARCH64, COLUMNS, I386, NUMBERS, X86_64
from membrane.record import calls

# Of the C library's package, of a cross compiler's, and of the compiler that ``hatch_build.py`` uses.
ZIG = importlib.util.find_spec("ziglang")
ZIG_HEADERS = Path(next(iter(ZIG.submodule_search_locations or [""])) if ZIG else "") / "lib/libc/include"
HEADERS = {
    X86_64: ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", ZIG_HEADERS / "x86-linux-any/asm/unistd_64.h"),
    AARCH64: ("/usr/aarch64-linux-gnu/include/asm/unistd_64.h", ZIG_HEADERS / "aarch64-linux-any/asm/unistd_64.h"),
    I386: ("/usr/include/x86_64-linux-gnu/asm/unistd_32.h", ZIG_HEADERS / "x86-linux-any/asm/unistd_32.h"),
}
WITH_WIDE_IDS = {"chown": "chown32", "fchown": "fchown32", "lchown": "lchown32"}  # in the 32-bit table


@pytest.mark.parametrize("column", HEADERS, ids=["x86_64", "aarch64", "i386"])
def test_the_table_has_the_numbers_of_the_kernels_headers(column: int) -> None:
    for header in filter(Path.exists, map(Path, HEADERS[column])):
        found = {name: int(number) for name, number in re.findall(r"#define __NR_(\w+)\s+(\d+)", header.read_text())}
        assert len(found) > 250, header
        for name, row in NUMBERS.items():
            number = found.get(WITH_WIDE_IDS.get(name, name) if column == I386 else name, -1)
            if row[column] <= max(found.values()):  # else the headers are older than the call
                assert row[column] == number, (header, name)


@pytest.mark.parametrize("column", HEADERS, ids=["x86_64", "aarch64", "i386"])
def test_no_two_calls_have_one_number(column: int) -> None:
    numbers = [row[column] for row in NUMBERS.values() if row[column] >= 0]
    assert len(set(numbers)) == len(numbers) and max(numbers) < calls.COMPAT
    assert all(len(row) == 3 for row in NUMBERS.values())


@pytest.mark.parametrize("machine", test_seccomp.MACHINES)
def test_the_table_has_the_numbers_that_the_test_of_the_filter_writes_down(machine: str) -> None:
    for name in NUMBERS.keys() & test_seccomp.NR.keys():
        number = NUMBERS[name][COLUMNS[machine]]
        assert (number if number >= 0 else None) == test_seccomp.number_of(name, machine), name


def test_a_number_on_the_wire_is_one_call() -> None:
    assert calls.NAMES[NUMBERS["openat"][X86_64]] == calls.NAMES[calls.COMPAT + NUMBERS["openat"][I386]] == "openat"
    assert len(calls.NAMES) == len(calls.rows()) == 2 * len(set(calls.NAMES.values()))
