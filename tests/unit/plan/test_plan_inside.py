"""The plan of a sandbox without namespaces: what stands for a mount, and what is refused."""

from __future__ import annotations

import pytest

from membrane.errors import PolicyError
from membrane.plan.inside import HOME, build
from membrane.plan.model import Bind, HostFacts, Symlink
from membrane.policy.model import MaskRule, Origin, Policy

FACTS = HostFacts(
    home="/home/dev",
    workspace="/home/dev/w",
    state="/home/dev/.membrane",
    uid=1000,
    gid=1000,
    user="dev",
    root=False,
    hostname="box",
    environ=(),
    existing=frozenset({"/usr", "/etc", "/home/dev/.claude/CLAUDE.md"}),
)
AGENT = Policy(
    backend="landlock",
    profiles=("claude",),
    state_dirs=(".claude", ".local/share/x"),
    state_files=(".claude.json",),
    state_shown=(".claude/CLAUDE.md",),
)


@pytest.mark.parametrize("home", ["workspace", "shared", "ephemeral"])
def test_the_state_of_an_agent_is_reached_by_links_in_the_home(home: str) -> None:
    plan = build(AGENT.replace(home=home), FACTS)
    own = dict(plan.environment)["HOME"]
    assert own == HOME if home == "ephemeral" else own.endswith(".landlock"), own
    kept = "/home/dev/.membrane/agents/claude"
    links = {op.target: op.to for op in plan.mounts if isinstance(op, Symlink)}
    assert links == {f"{own}/{name}": f"{kept}/{name}" for name in AGENT.state_dirs}
    binds = {op.source: op.writable for op in plan.mounts if isinstance(op, Bind)}
    assert all(binds[each] for each in links.values()) and "/home/dev/.claude/CLAUDE.md" not in binds
    assert all(op.source == op.target for op in plan.mounts if isinstance(op, Bind))
    said = [each.mechanisms for each in plan.bindings if each.rule == "agent profile"]
    assert said == [("not shown: .claude/CLAUDE.md of your home",)]


def test_the_native_home_is_another_one() -> None:
    """Links stand in the one where the other has mount points."""
    homes = {dict(build(AGENT.replace(home=each), FACTS).environment)["HOME"] for each in ("workspace", "shared")}
    assert len(homes) == 2 and not homes & {"/home/dev/.membrane/home", "/home/dev"}


def test_what_only_a_mount_binds_is_refused() -> None:
    with pytest.raises(PolicyError, match="view: host"):
        build(Policy(backend="landlock", view="host"), FACTS)


def test_a_masked_file_is_bound() -> None:
    rule = MaskRule("file:/home/dev/w/token", ("https://a.example",), Origin("user", "config.yaml", 1))
    policy = Policy(backend="landlock", masks=(rule,))
    [said] = [each for each in build(policy, FACTS).bindings if each.rule.startswith("mask ")]
    assert said.status == "partial" and "opens a copy" in said.mechanisms[0] and said.mechanisms[1:]
