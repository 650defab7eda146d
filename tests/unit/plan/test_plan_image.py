"""What an image says of its use, as the plan takes it."""

from __future__ import annotations

import pytest

from membrane.plan import image
from membrane.plan.build import build, identity
from membrane.plan.model import File, HostFacts, ImageFacts, SandboxPlan, SystemLayer
from membrane.policy.model import EnvRule, Origin, Policy

FACTS = ImageFacts(
    reference="tool:1",
    digest="sha256:1",
    layers=1,
    trees=(),
    passwd=b"root:x:0:0::/:/bin/sh\napp:x:70:71::/:\n\xff:x:1:1::/:\nbad:x:-1:99999999999:\n:::\n12x:x:3:3::\n",
    group=b"staff:x:50:\nbad:x:x:\n",
)


@pytest.mark.parametrize(
    ("user", "ids"),
    [
        ("", (0, 0)),
        ("root", (0, 0)),
        ("app", (70, 71)),
        ("70", (70, 71)),
        ("app:staff", (70, 50)),
        ("70:9", (70, 9)),
        ("12345", (12345, 0)),
        ("bad", None),
        ("app:bad", None),
        ("app:none", None),
        ("no one", None),
        ("-1", None),
        ("4294967294", (4294967294, 0)),
        ("4294967295", None),
        ("\u0661", None),  # a digit elsewhere
    ],
)
def test_a_user_is_found_in_the_images_own_files(user: str, ids: tuple[int, int] | None) -> None:
    assert image.who(FACTS.replace(user=user)) == ids


@pytest.mark.parametrize(
    ("said", "number"),
    [
        *(("", 15), ("SIGQUIT", 3), ("quit", 3), ("3", 3), ("SIGWINCH", 28), ("SIGRTMIN+3", 37), ("RTMIN", 34)),
        *(
            ("SIGNONE", 0),
            ("0", 0),
            ("-9", 0),
            ("65", 0),
            ("RTMIN+x", 0),
            ("RTMIN+99", 0),
            ("SIG3", 0),
            ("1" * 5000, 0),
        ),
    ],
)
def test_a_signal_is_a_name_or_a_number(said: str, number: int) -> None:
    assert image.stop_signal(FACTS.replace(stop=said)) == number


PLAIN = HostFacts(1000, 1001, "u", False, "/home/u", "/home/u/.membrane", "/home/u/w", "box", (("USER", "u"),))
ROOT = HostFacts(0, 0, "root", True, "/root", "/root/.membrane", "/root/w", "box", (("USER", "root"),))


def planned(user: str, facts: HostFacts = PLAIN, **keys: object) -> SandboxPlan:
    policy = Policy(image="tool:1").replace(**keys)
    return build(policy, facts.replace(image=FACTS.replace(user=user)))


def files(plan: SandboxPlan) -> dict[str, list[bytes]]:
    return {op.target: op.content.splitlines() for op in plan.mounts if isinstance(op, File)}


def said(plan: SandboxPlan) -> tuple[str, str]:
    return next(((each.status, each.mechanisms[0]) for each in plan.bindings if each.rule == "image: user"), ("", ""))


@pytest.mark.parametrize("facts", [PLAIN, ROOT])
@pytest.mark.parametrize(
    ("user", "ids", "names"),
    [
        ("app", (70, 71), ("app", "app")),
        ("app:staff", (70, 50), ("app", "staff")),
        ("12345", (12345, 0), ("", "")),
    ],
)
def test_the_image_names_who_the_caller_is_inside(
    facts: HostFacts, user: str, ids: tuple[int, int], names: tuple[str, str]
) -> None:
    plan, own = planned(user, facts), "u" if facts.uid else "user"
    assert plan.ids == plan.image_user == ids
    assert (plan.uid, plan.gid) == (facts.uid, facts.gid)  # the kernel's are as without
    assert identity(plan).startswith(f"uid {ids[0]} as kuid ")
    name, group = names[0] or own, names[1] or own
    rows = files(plan)
    assert rows["/etc/passwd"][0] == f"{name}:x:{ids[0]}:{ids[1]}:{name}:{facts.home}:/bin/sh".encode()
    assert rows["/etc/group"][0] == f"{group}:x:{ids[1]}:".encode()
    assert sum(row.startswith(f"{name}:".encode()) for row in rows["/etc/passwd"]) == 1
    environment = dict(plan.environment)
    assert environment["USER"] == environment["LOGNAME"] == name and environment["HOME"] == facts.home
    assert said(plan) == (
        "bound",
        f"{user}: uid {ids[0]} and gid {ids[1]}, which are the caller's outside and own its files",
    )
    explicit = planned(user, facts, env=(EnvRule("USER", None, Origin("user", "config.yaml", 1)),))
    assert dict(explicit.environment)["USER"] == facts.user


@pytest.mark.parametrize(
    ("user", "facts", "keys", "status"),
    [
        ("", PLAIN, {}, ""),
        ("1000:1001", PLAIN, {}, ""),
        ("root", ROOT, {}, ""),
        ("root", PLAIN, {}, "partial"),  # one id has none of root's rights
        ("root:staff", PLAIN, {}, "partial"),
        ("bad", PLAIN, {}, "partial"),
        ("app", ROOT, {"containers": "nested"}, "partial"),
        ("app", ROOT.replace(system=SystemLayer("/root/.membrane/system/k/0")), {"system": "writable"}, "partial"),
    ],
)
def test_else_the_caller_is_who_he_is_and_that_is_said(
    user: str, facts: HostFacts, keys: dict[str, object], status: str
) -> None:
    plan = planned(user, facts, **keys)
    assert plan.image_user is None and plan.ids == (facts.uid, facts.gid)
    assert said(plan)[0] == status


def test_root_may_have_another_group() -> None:
    plan = planned("root:staff", ROOT)
    assert plan.ids == (0, 50) and files(plan)["/etc/group"][0] == b"staff:x:50:"
    assert files(plan)["/etc/passwd"][0] == b"root:x:0:50:root:/root:/bin/sh"


@pytest.mark.parametrize(
    ("user", "groups"),
    [
        ("app", ["docker", "audio"]),
        ("70", ["docker", "audio"]),
        ("app:docker", []),
        ("70:5", []),
        ("other", []),
        ("", []),
    ],
)
def test_the_other_groups_of_its_user_are_named_and_not_set(user: str, groups: list[str]) -> None:
    file = b"docker:x:27:app,u\nsix:x:64:x,apple\naudio:x:63:app\nbad\napp:x:70:\n"
    known = b"app:x:70:70::/:/bin/sh\nother:x:71:71::/:/bin/sh\n"
    found = FACTS.replace(user=user, passwd=known, group=file)
    plan = build(Policy(image="tool:1"), PLAIN.replace(image=found))
    rows = [row for row in plan.bindings if row.rule == "image: other groups of its user"]
    assert [row.status for row in rows] == ["partial"] * bool(groups)
    assert all(row.mechanisms[0].startswith(", ".join(groups)) for row in rows)
