"""Features of this machine -> findings."""

from __future__ import annotations

import json

import pytest

from membrane.plan.model import Support
from membrane.ui import doctor, show
from membrane.ui.doctor import Finding, as_data, findings, ready

YES = Support("yes")


def no(why: str, fix: str = "") -> Support:
    return Support("no", why, fix)


ROWS = [
    ("native", "user namespaces", YES),
    ("native", "network namespaces", YES),
    ("native", "Landlock ABI 7", YES),
    ("native", "seccomp notify", YES),
    ("tracing", "BTF", YES),
    ("tracing", "eBPF", no("needs CAP_BPF and CAP_PERFMON", "sudo membrane setup tracing")),
]


def test_text() -> None:
    assert show.doctor(findings(ROWS)) == [
        "native      ok      user namespaces, network namespaces, Landlock ABI 7, seccomp notify",
        "tracing     partly  eBPF: needs CAP_BPF and CAP_PERFMON; seccomp notify works",
        "              works: BTF",
        "              fix: sudo membrane setup tracing",
    ]


def test_ready_needs_only_the_native_backend() -> None:
    assert ready(ROWS)


@pytest.mark.parametrize("state", ["no", "unknown"])
@pytest.mark.parametrize("feature", ["user namespaces", "network namespaces", "a feature made tomorrow"])
def test_a_feature_without_a_substitute_is_needed(feature: str, state: str) -> None:
    broken = ("native", feature, Support("no" if state == "no" else "unknown", "EPERM", "sudo sysctl x=1"))
    rows = [row for row in ROWS if row[1] != feature] + [broken]
    assert not ready(rows)
    native = findings(rows)[0]
    assert (native.state, native.fixes) == ("missing", ("sudo sysctl x=1",))
    assert "EPERM" in native.text


@pytest.mark.parametrize(("group", "feature"), sorted(doctor.SUBSTITUTES))
def test_a_substitute_makes_it_partly(group: str, feature: str) -> None:
    rows = [*(row for row in ROWS if row[1] != feature), (group, f"{feature} 1", no("ENOENT"))]
    assert ready(rows)
    native = findings(rows)[0]
    assert native.state == "partly"
    assert doctor.SUBSTITUTES[group, feature] in native.text


def test_tracing_is_missing_without_its_stand_in() -> None:
    rows = [row for row in ROWS if row[1] != "seccomp notify"]
    assert [finding.state for finding in findings(rows)] == ["ok", "missing"]


PROBED = [
    ("native", "seccomp notify", YES),
    ("tracing", "eBPF programs (CAP_BPF, CAP_PERFMON)", no("EPERM", "run as root")),
    ("tracing", "BTF", YES),
    ("tracing", "ring buffer", no("EPERM", "run as root")),
]


def test_the_sources_of_the_record_are_named() -> None:
    def text(rows: list[doctor.Row], why: str, *, permitted: bool, built: bool = True) -> list[str]:
        return show.doctor(findings(doctor.with_sources(rows, why, permitted=permitted, built=built)))[1:]

    works = [(group, name, YES) for group, name, _support in PROBED]
    assert text(works, "", permitted=True) == ["tracing     ok      eBPF, seccomp notification, BTF"]
    # Root gave this user a set: that he cannot load one himself is nobody's business.
    assert text(PROBED, "", permitted=True) == text(works, "", permitted=True)
    assert text(PROBED, "eBPF tracing needs CAP_BPF", permitted=False) == [
        "tracing     partly  eBPF: needs CAP_BPF; seccomp notify works",
        "              works: seccomp notification, BTF",
        "              fix: sudo membrane setup tracing",
    ]
    not_built = text(works, "built without a compiler", permitted=True, built=False)
    assert "built without a compiler" in not_built[0] and "clang" in not_built[-1]
    refused = text(PROBED[:3], "load the map slots: EPERM", permitted=True)
    assert "EPERM" in refused[0] and refused[-1] == "              fix: run as root"


def test_every_name_that_is_known_here_is_probed() -> None:
    from membrane.host import probe

    probed = [(row[0], row[1]) for row in probe._PROBES]
    for group, start in [*doctor.SUBSTITUTES, *doctor.STANDS_IN.values()]:
        assert any(of == group and name.startswith(start) for of, name in probed), start


def test_no_answer_about_native_is_not_ready() -> None:
    assert not ready([])
    assert not ready(ROWS[4:])


def test_unknown_is_never_taken_for_yes() -> None:
    [finding] = findings([("macos", "seatbelt", Support("unknown"))])
    assert finding == Finding("macos", "missing", "seatbelt: could not be tried (no cause given)")


def test_groups_keep_their_order_and_new_ones_come_last() -> None:
    rows = [("macos", "seatbelt", YES), *reversed(ROWS)]
    assert [finding.group for finding in findings(rows)] == ["native", "tracing", "macos"]


def test_one_fix_is_said_once() -> None:
    rows = [("native", name, no("EPERM", "sudo x")) for name in ("a", "b")]
    assert findings(rows)[0].fixes == ("sudo x",)


def test_json() -> None:
    data = json.loads(show.as_json(as_data(ROWS[4:6])))
    assert data == {
        "ready": False,
        "features": [
            {"feature": "BTF", "group": "tracing", "support": "yes", "why": "", "fix": ""},
            {
                "feature": "eBPF",
                "group": "tracing",
                "support": "no",
                "why": "needs CAP_BPF and CAP_PERFMON",
                "fix": "sudo membrane setup tracing",
            },
        ],
    }
