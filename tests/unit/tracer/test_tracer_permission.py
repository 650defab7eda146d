"""Who may have the kernel's events: by capability, or by root's grant."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from membrane.tracer import permission

ADMIN, PERFMON, BPF = 1 << 21, 1 << 38, 1 << 39  # <linux/capability.h>


@pytest.mark.parametrize(
    ("held", "missing"),
    [
        (ADMIN, []),
        (PERFMON | BPF, []),
        (PERFMON, ["CAP_BPF"]),
        (BPF, ["CAP_PERFMON"]),
        (0, ["CAP_PERFMON", "CAP_BPF"]),
        (~(ADMIN | BPF), ["CAP_BPF"]),
    ],
)
def test_what_is_missing(monkeypatch: pytest.MonkeyPatch, held: int, missing: list[str]) -> None:
    monkeypatch.setattr(permission, "effective_capabilities", lambda: held)
    assert permission.missing_capabilities() == missing


def test_a_grant_stands_for_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(permission, "effective_capabilities", lambda: 0)
    monkeypatch.setattr(permission, "GRANTED", str(tmp_path))
    assert "CAP_PERFMON and CAP_BPF" in permission.why_not() and "membrane setup tracing" in permission.why_not()
    (tmp_path / str(os.geteuid())).mkdir()
    assert permission.why_not() == ""
