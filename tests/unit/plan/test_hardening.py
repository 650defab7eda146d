"""The environment of the command, its limits and its writable paths."""

from __future__ import annotations

import pytest

from membrane.plan.hardening import NEVER_BY_PATTERN, WRITABLE_SCRATCH, environment, plan_hardening
from membrane.plan.model import HostFacts
from membrane.policy.model import EnvRule, Limits, MountRule, Origin, Policy, SocketRule

HERE = Origin("user", "config.yaml", 1)


def facts(**environ: str) -> HostFacts:
    return HostFacts(1000, 1000, "dev", False, "/home/dev", "/s", "/w", "box", tuple(environ.items()), git_root="/g")


def made(policy: Policy, host: HostFacts) -> dict[str, str]:
    return dict(environment(policy, host, host.home))


def test_from_nothing() -> None:
    assert made(Policy(), facts()) == {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": "/home/dev",
        "PWD": "/w",
        "MEMBRANE": "1",
        "USER": "dev",
        "LOGNAME": "dev",
        "UV_LINK_MODE": "copy",
    }


def test_only_the_short_list_is_inherited() -> None:
    host = facts(
        PATH="/x", TERM="t", LC_ALL="C", LANG="l", AWS_SECRET_ACCESS_KEY="k", GITHUB_TOKEN="g", LCX="n", TERMINFO="n"
    )
    result = made(Policy(), host)
    assert {name: result[name] for name in ("PATH", "TERM", "LC_ALL", "LANG")} == {
        "PATH": "/x",
        "TERM": "t",
        "LC_ALL": "C",
        "LANG": "l",
    }
    assert not {"AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "LCX", "TERMINFO"} & set(result)


def test_home_and_pwd_are_the_sandbox_s_whatever_the_caller_says() -> None:
    result = made(Policy(), facts(HOME="/root", PWD="/elsewhere", OLDPWD="/x"))
    assert (result["HOME"], result["PWD"]) == ("/home/dev", "/w")
    assert "OLDPWD" not in result


@pytest.mark.parametrize("name", NEVER_BY_PATTERN)
def test_dangerous_names_need_their_exact_name(name: str) -> None:
    host = facts(**{name: "value"})
    for pattern in ("*", name[:3] + "*", name + "*"):
        assert name not in made(Policy(env=(EnvRule(pattern, None, HERE),)), host)
    assert made(Policy(env=(EnvRule(name, None, HERE),)), host)[name] == "value"


def test_a_pattern_passes_the_rest() -> None:
    result = made(Policy(env=(EnvRule("AWS_*", None, HERE),)), facts(AWS_REGION="r", AWSX="n"))
    assert result["AWS_REGION"] == "r" and "AWSX" not in result


def test_set_beats_pass_and_the_last_set_wins() -> None:
    rules = (EnvRule("A", None, HERE), EnvRule("A", "1", HERE), EnvRule("A", "2", HERE), EnvRule("PATH", "/p", HERE))
    assert {k: v for k, v in made(Policy(env=rules), facts(A="0")).items() if k in ("A", "PATH")} == {
        "A": "2",
        "PATH": "/p",
    }


def test_a_set_name_is_not_a_pattern() -> None:
    result = made(Policy(env=(EnvRule("A*", "1", HERE),)), facts(AB="0"))
    assert "AB" not in result


def test_writable_paths() -> None:
    policy = Policy(
        mounts=(
            MountRule("/ro", "ro", HERE),
            MountRule("../rw", "rw", HERE),
            MountRule("/a", "rw", HERE, target="/b"),
            MountRule("", "rw", HERE, git_root=True),
        ),
        unix_sockets=(SocketRule("/var/run/s", HERE),),
        limits=Limits(pids=5),
    )
    plan = plan_hardening(policy, facts(), "/home/dev")
    assert plan.landlock_writable == (*WRITABLE_SCRATCH, "/w", "/home/dev", "/rw", "/b", "/g", "/run/s")
    assert plan.limits == Limits(pids=5)
    assert (plan.landlock, plan.nested) == (True, False)


def test_the_host_s_view_has_no_writable_home() -> None:
    assert "/home/dev" not in plan_hardening(Policy(view="host"), facts(), "/home/dev").landlock_writable


def test_tar_of_a_root_caller_keeps_its_own_owner_unless_something_else_is_said() -> None:
    root = facts(TAR_OPTIONS="--xattrs").replace(uid=0, root=True)
    assert "TAR_OPTIONS" not in made(Policy(), facts(TAR_OPTIONS="--xattrs"))
    assert made(Policy(), root)["TAR_OPTIONS"] == "--no-same-owner"
    assert made(Policy(), root.replace(root=False))["TAR_OPTIONS"] == "--no-same-owner"
    assert made(Policy(env=(EnvRule("TAR_OPTIONS", None, HERE),)), root)["TAR_OPTIONS"] == "--xattrs"
    assert made(Policy(env=(EnvRule("TAR_OPTIONS", "", HERE),)), root)["TAR_OPTIONS"] == ""


def test_uv_copies_where_home_and_workspace_are_two_mounts() -> None:
    theirs = facts(UV_LINK_MODE="symlink")
    assert made(Policy(), theirs)["UV_LINK_MODE"] == "copy"
    assert made(Policy(env=(EnvRule("UV_LINK_MODE", None, HERE),)), theirs)["UV_LINK_MODE"] == "symlink"
    assert made(Policy(env=(EnvRule("UV_LINK_MODE", "clone", HERE),)), theirs)["UV_LINK_MODE"] == "clone"
    assert "UV_LINK_MODE" not in made(Policy(view="host"), theirs)
