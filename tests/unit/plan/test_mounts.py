"""Single decisions of the mount plan; whole plans are in tests/golden."""

from __future__ import annotations

import pytest

from membrane.plan import toolchains
from membrane.plan.model import Bind, File, HostFacts, Mask, Overlay, Pin, ReadOnly, ScanHit
from membrane.plan.mounts import (
    absolute,
    base,
    candidates,
    home_store,
    in_view,
    inside,
    path_trees,
    places,
    prefix_marks,
    workspace,
    workspace_key,
)
from membrane.policy.model import MountRule, Origin, Policy

HERE = Origin("user", "config.yaml", 1)
FACTS = HostFacts(
    uid=1000,
    gid=1000,
    user="dev",
    root=False,
    home="/home/dev",
    state="/home/dev/.membrane",
    workspace="/home/dev/project",
    hostname="box",
    environ=(("PATH", "/usr/bin"),),
    existing=frozenset(("/usr", "/etc")),
    links=(("/bin", "/usr/bin"),),
)


@pytest.mark.parametrize(
    ("path", "tree", "expected"),
    [
        ("/a", "/a", True),
        ("/a/b", "/a", True),
        ("/ab", "/a", False),
        ("/a", "/a/b", False),
        ("/", "/", True),
        ("/a", "/", True),
        ("/", "/a", False),
    ],
)
def test_inside(path: str, tree: str, expected: bool) -> None:
    assert inside(path, tree) is expected


@pytest.mark.parametrize(
    ("variable", "trees"),
    [
        ("", ()),
        (":::", ()),
        ("/usr/bin:/usr/bin/:/usr//bin", ("/usr/bin",)),
        (".:bin:./bin:../bin:~/bin", ()),
        ("/a/../b:/a/./b:/..", ()),
        ("/:///", ()),
        ("/home/dev:/home/dev/:/home//dev", ()),  # the home as a whole, however it is written
        ("/home/dev/bin", ("/home/dev/bin",)),
        ("/a b:/c\n", ("/a b", "/c\n")),
    ],
)
def test_path_entries(variable: str, trees: tuple[str, ...]) -> None:
    assert path_trees(variable, "/home/dev") == trees


def test_a_prefix_is_looked_for_beside_bin_only_and_never_at_the_top() -> None:
    assert prefix_marks("/opt/x/bin") == ("/opt/x/pyvenv.cfg", "/opt/x/lib")
    assert prefix_marks("/opt/x/sbin") == ("/opt/x/pyvenv.cfg", "/opt/x/lib")
    assert prefix_marks("/opt/x/tools") == ()
    assert prefix_marks("/usr/bin") == prefix_marks("/bin") == ()


def test_candidates_hold_all_that_a_plan_asks_for_and_the_ancestors_of_path_entries() -> None:
    known = candidates("/home/dev", "/srv/tool/bin:/usr/bin")
    assert {"/usr", "/etc/resolv.conf", "/home/dev/.cargo/bin", "/srv/tool/bin", "/srv/tool/pyvenv.cfg"} <= set(known)
    assert {"/srv", "/srv/tool"} <= set(known)  # they may be links


@pytest.mark.parametrize(
    ("path", "here", "expected"),
    [
        ("../lib", "/home/dev/project", "/home/dev/lib"),
        (".", "/w", "/w"),
        ("../../../..", "/w", "/"),
        ("/a//b/./c/..", "/w", "/a/b"),
    ],
)
def test_absolute(path: str, here: str, expected: str) -> None:
    assert absolute(path, here) == expected


def test_targets_go_through_the_links_that_the_view_makes() -> None:
    assert in_view("/var/run/docker.sock", FACTS) == "/run/docker.sock"
    assert in_view("/bin/x", FACTS) == "/usr/bin/x"
    assert in_view("/var/runner", FACTS) == "/var/runner"


def test_places_of_a_mount() -> None:
    assert places(MountRule("../lib", "ro", HERE), FACTS) == ("/home/dev/lib", "/home/dev/lib")
    assert places(MountRule("/a", "ro", HERE, target="/b/../c"), FACTS) == ("/a", "/c")
    assert places(MountRule("", "ro", HERE, git_root=True), FACTS.replace(git_root="/home/dev")) == (
        "/home/dev",
        "/home/dev",
    )
    assert places(MountRule("", "ro", HERE, git_root=True), FACTS) == ("", "")


def test_home_store_follows_the_policy() -> None:
    state = FACTS.state
    assert home_store(Policy(home="shared"), FACTS) == f"{state}/home"
    assert home_store(Policy(home="ephemeral"), FACTS) == ""
    assert home_store(Policy(view="host"), FACTS) == ""
    assert home_store(Policy(), FACTS) == f"{state}/homes/{workspace_key('/home/dev/project')}"


def test_two_workspaces_never_share_a_home_and_names_are_safe_file_names() -> None:
    paths = ["/a/x", "/b/x", "/a/x ", "/a/" + "x" * 255, "/a/\udcff", "/a/..x", "/a/é\n", "/a/é\t", "/"]
    keys = [workspace_key(path) for path in paths]
    assert len(set(keys)) == len(paths)
    for key in keys:
        assert key.isascii() and key.isprintable() and "/" not in key and len(key) <= 60, key


def test_toolchains_hold_no_dot_dot_and_no_credentials() -> None:
    assert len(set(toolchains.NAMES)) == len(toolchains.NAMES)
    for name in toolchains.NAMES:
        parts = name.split("/")
        assert not {"", ".", "..", ".ssh", ".aws", ".gnupg", ".config", ".cargo", ".netrc"} & {parts[-1]}, name
        assert parts[0] not in (".ssh", ".aws", ".gnupg", ".config", ".kube", ".docker"), name


LAYERED = FACTS.replace(existing=FACTS.existing | {"/home/dev/sdk", "/home/dev/.nvm"}, layers="/home/dev/.membrane/l")


def test_a_toolchain_is_written_in_a_layer_and_read_where_nothing_else_lies_in_it() -> None:
    plain = Policy()

    def kinds(policy: Policy = plain, **changes: object) -> dict[str, str]:
        ops = base(policy, LAYERED.replace(**changes))
        found = {op.target: type(op).__name__ for op in ops if getattr(op, "origin", "") == "toolchain"}
        assert not [op for op in ops if isinstance(op, Bind) and op.writable and op.target in found]
        return {path.rpartition("/")[2]: kind for path, kind in found.items()}

    both = {"sdk": "Overlay", ".nvm": "Overlay"}
    assert kinds() == both
    assert kinds(Policy(home="ephemeral")) == both
    bound = {**both, "sdk": "Bind"}
    assert kinds(workspace="/home/dev/sdk/project") == bound  # pins are made of binds
    assert kinds(Policy(mounts=(MountRule("/srv/x", "rw", HERE, target="/home/dev/sdk/x"),))) == bound
    assert kinds(links=(*FACTS.links, ("/home/dev/sdk", "/opt/sdk"))) == bound
    assert kinds(mounted=frozenset(["/home/dev/sdk/deep"])) == bound
    assert kinds(state="/home/dev/sdk/state") == bound
    assert kinds(layers="") == {"sdk": "Bind", ".nvm": "Bind"}
    layers = [op.layer for op in base(Policy(), LAYERED) if isinstance(op, Overlay)]
    assert layers == ["/home/dev/.membrane/l/.nvm", "/home/dev/.membrane/l/sdk"]
    assert len({name.replace("/", "-") for name in toolchains.NAMES}) == len(toolchains.NAMES)


def test_sockets_and_credentials_in_a_toolchain_are_covered_whatever_it_is_mounted_by() -> None:
    keys = "/home/dev/.dotnet/corefx"
    there = LAYERED.existing | {"/home/dev/.dotnet", keys}
    facts = LAYERED.replace(bound=("/home/dev/sdk/a/service", "/home/dev/sdkman/service"), existing=there)
    covered = {op.target: op.covered for op in base(Policy(), facts) if isinstance(op, Overlay)}
    service = ("/home/dev/sdk/a/service",)
    assert covered == {"/home/dev/sdk": service, "/home/dev/.nvm": (), "/home/dev/.dotnet": (keys,)}
    opened = [op.covered for op in base(Policy(open_sockets=True), facts) if isinstance(op, Overlay)]
    assert sorted(opened) == [(), (), (keys,)]
    masks = [op.target for op in base(Policy(), facts.replace(layers="")) if isinstance(op, Mask)]
    assert [path for path in masks if path.startswith("/home")] == [keys, *service]
    named = Policy(mounts=(MountRule(keys, "ro", HERE),))
    assert keys not in [op.target for op in base(named, facts) if isinstance(op, Mask)]
    assert {f"/home/dev/{name}" for name in toolchains.SECRETS} <= set(candidates("/home/dev", ""))
    for name in toolchains.SECRETS:
        assert any(name.startswith(f"{tree}/") for tree in toolchains.NAMES), name


def test_a_mount_point_in_a_host_tree_is_never_made() -> None:
    policy = Policy(mounts=(MountRule("/srv/data", "rw", HERE), MountRule("/srv/data/new", "ro", HERE)))
    made = {op.target: op.make for op in base(policy, FACTS) if isinstance(op, Bind)}
    assert made["/srv/data"] is True  # in the private root
    assert made["/srv/data/new"] is False  # in a tree of the host


def test_the_inner_of_two_mounts_wins_whatever_their_order() -> None:
    outer, inner = MountRule("/srv", "ro", HERE), MountRule("/srv/data", "rw", HERE)
    for rules in ((outer, inner), (inner, outer)):
        targets = [op.target for op in base(Policy(mounts=rules), FACTS) if isinstance(op, Bind)]
        assert targets.index("/srv") < targets.index("/srv/data")


def test_masks_stand_after_every_mount_so_that_none_uncovers_them() -> None:
    facts = FACTS.replace(existing=FACTS.existing | {"/etc/shadow", "/etc/docker"})
    ops = base(Policy(mounts=(MountRule("/etc", "rw", HERE),)), facts)
    kinds = [type(op) for op in ops]
    assert [(op.target, op.directory) for op in ops if isinstance(op, Mask)] == [
        ("/etc/shadow", False),
        ("/etc/docker", True),
    ]
    assert Bind not in kinds[kinds.index(Mask) :]


def test_a_credential_that_a_rule_names_is_shown() -> None:
    facts = FACTS.replace(existing=FACTS.existing | {"/etc/shadow", "/etc/ssl/private"})
    ops = base(Policy(mounts=(MountRule("/etc/ssl/private", "ro", HERE),)), facts)
    assert [op.target for op in ops if isinstance(op, Mask)] == ["/etc/shadow"]


@pytest.mark.parametrize(
    ("leads_to", "view", "target", "bind"),
    [
        ("/etc/resolv.conf", "project", "/etc/resolv.conf", True),
        ("/run/systemd/resolve/stub-resolv.conf", "project", "/run/systemd/resolve/stub-resolv.conf", False),
        ("/var/run/resolv.conf", "project", "/run/resolv.conf", False),
        ("/usr/lib/resolv.conf", "project", "/usr/lib/resolv.conf", True),
        ("/mnt/wsl/resolv.conf", "project", "/mnt/wsl/resolv.conf", False),
        ("/mnt/wsl/resolv.conf", "host", "/mnt/wsl/resolv.conf", True),
        ("/run/resolv.conf", "host", "/run/resolv.conf", False),
    ],
)
def test_resolver_file_is_ours_wherever_the_link_leads(leads_to: str, view: str, target: str, bind: bool) -> None:
    links = () if leads_to == "/etc/resolv.conf" else (("/etc/resolv.conf", leads_to),)
    facts = FACTS.replace(existing=FACTS.existing | {"/etc/resolv.conf"}, links=links)
    (file,) = [op for op in base(Policy(view=view), facts) if isinstance(op, File)]  # type: ignore[arg-type]
    assert (file.target, file.bind) == (target, bind)
    assert file.content.startswith(b"nameserver 198.18.0.1\n")


def test_our_own_state_is_masked_where_a_tree_would_show_it() -> None:
    def state_masks(policy: Policy, facts: HostFacts) -> list[str]:
        return [op.target for op in base(policy, facts) if isinstance(op, Mask) and "state" in op.origin]

    assert state_masks(Policy(), FACTS) == []  # below the home, which is not the real one
    assert state_masks(Policy(view="host"), FACTS) == ["/home/dev/.membrane"]
    assert state_masks(Policy(), FACTS.replace(state="/opt/membrane")) == ["/opt/membrane"]


def test_workspace_operations_in_order() -> None:
    hits = (
        ScanHit("b/.env", "hide", False),
        ScanHit("a", "readonly", True),
        ScanHit(".git/hooks", "protect", True),
        ScanHit(".mcp.json", "protect", False, link=True),
    )
    assert workspace("/w", hits, ("b", ".git")) == (
        Pin("/w/b"),
        Pin("/w/.git"),
        ReadOnly("/w/.mcp.json", True, "protect"),
        ReadOnly("/w/a", False, "readonly"),
        ReadOnly("/w/.git/hooks", False, "protect"),
        Mask("/w/b/.env", False, link=False),
    )
    assert workspace("/w", (), ()) == ()
