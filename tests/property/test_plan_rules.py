"""The rules of ``plan.mounts`` and ``plan.hardening`` for any policy and host."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from membrane.errors import PolicyError
from membrane.plan import toolchains
from membrane.plan.build import build
from membrane.plan.hardening import NEVER_BY_PATTERN, PASSED, UV_COPIES, environment
from membrane.plan.model import (
    Bind,
    Devices,
    Directory,
    File,
    HostFacts,
    Mask,
    Overlay,
    Pin,
    Proc,
    ReadOnly,
    ScanHit,
    Symlink,
    Tmpfs,
)
from membrane.plan.mounts import (
    ETC_SECRET_FILES,
    ETC_SECRET_TREES,
    SYSTEM_TREES,
    absolute,
    candidates,
    inside,
    path_trees,
    workspace,
)
from membrane.policy.model import EnvRule, Limits, MountRule, Origin, Policy, SocketRule

if TYPE_CHECKING:
    from membrane.plan.model import MountOp

HERE = Origin("user", "config.yaml", 1)

# Few names, so that paths meet; ".." and doubled slashes in what people write.
PART = st.sampled_from(("a", "b", "bin", "lib", "home", "dev", "usr", "etc", "tmp", "run", "ab", ".ssh", "proj"))
PATH = st.lists(PART, min_size=1, max_size=5).map(lambda parts: "/" + "/".join(parts))
WRITTEN = st.lists(PART | st.sampled_from(("..", ".", "")), min_size=1, max_size=6).map("/".join)
ANY_PATH = PATH | st.just("/")


@given(ANY_PATH, ANY_PATH)
def test_inside_is_the_relation_of_paths(path: str, tree: str) -> None:
    assert inside(path, tree) == (posixpath.commonpath((path, tree)) == tree)


@given(ANY_PATH, PART)
def test_inside_knows_borders_of_names(tree: str, name: str) -> None:
    below = posixpath.join(tree, name)
    assert inside(tree, tree) and inside(below, tree) and inside(below, "/")
    assert not inside(tree, below)
    assert tree == "/" or not inside(tree + name, tree)


@given(ANY_PATH, ANY_PATH, ANY_PATH)
def test_inside_is_transitive(a: str, b: str, c: str) -> None:
    if inside(a, b) and inside(b, c):
        assert inside(a, c)
    if inside(a, b) and inside(b, a):
        assert a == b


@given(WRITTEN | WRITTEN.map(lambda text: "/" + text), ANY_PATH)
def test_absolute_is_the_normal_path(text: str, here: str) -> None:
    wanted = posixpath.normpath(posixpath.join(here, text))
    assert absolute(text, here) == "/" + wanted.lstrip("/")  # POSIX lets "//a" stand
    assert absolute(absolute(text, here), "/") == absolute(text, here)


# ---------------------------------------------------------------- facts and policies

HOME = st.sampled_from(("/home/dev", "/root", "/a/b", "/tmp/home", "/usr/home"))


@st.composite
def facts(draw: st.DrawFn) -> HostFacts:
    home = draw(HOME)
    work = draw(PATH | st.sampled_from((f"{home}/proj", f"{home}/a/b", "/tmp/proj", "/work", "/usr/proj")))
    state = draw(st.sampled_from((f"{home}/.membrane", "/a/state", "/srv/m")))
    entries = draw(
        st.lists(PATH | WRITTEN | st.sampled_from((home, work, state, f"{home}/bin", "/usr/bin")), max_size=8)
    )
    variable = ":".join(entries)
    known = candidates(home, variable)
    from_path = [path for path in known if any(inside(tree, path) for tree in path_trees(variable, home))]
    existing = set(draw(st.sampled_from(((), known, from_path, known[::2], known[1::3]))))
    linked = draw(st.sets(st.sampled_from(sorted(existing)), max_size=3)) if existing else set()
    to = PATH | st.sampled_from((home, work, state, f"{home}/.ssh", "/", "/run/user/1000", "/etc/ssl/private"))
    uid = draw(st.sampled_from((0, 1000)))
    return HostFacts(
        uid=uid,
        gid=uid,
        user="dev",
        root=uid == 0,
        home=home,
        state=state,
        workspace=work,
        hostname="box",
        environ=(("PATH", variable), ("TERM", "dumb")),
        existing=frozenset(existing),
        links=tuple((path, draw(to)) for path in sorted(linked)),
        git_root=draw(st.sampled_from(("", work, work.rpartition("/")[0] or "/"))),
        layers=draw(st.sampled_from(("", f"{state}/layers/key/0"))),
        mounted=frozenset(draw(st.sets(PATH, max_size=1))),
    )


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    mode = st.sampled_from(("ro", "rw"))
    rules = draw(
        st.lists(
            st.builds(lambda p, m, t: MountRule(p, m, HERE, target=t), PATH | WRITTEN, mode, PATH | st.just(""))
            | st.builds(lambda m: MountRule("", m, HERE, git_root=True), mode),
            max_size=4,
        )
    )
    return Policy(
        mounts=tuple(rules),
        unix_sockets=tuple(SocketRule(path, HERE) for path in draw(st.lists(PATH, max_size=2))),
        home=draw(st.sampled_from(("workspace", "shared", "ephemeral"))),
        view=draw(st.sampled_from(("project", "project", "host"))),
        profiles=("claude",),
        state_dirs=tuple(draw(st.sets(st.sampled_from((".claude", ".opencode", ".cargo", ".local/share/x"))))),
        limits=Limits(disk=draw(st.sampled_from((0, 1 << 20)))),
    )


def plan_of(policy: Policy, host: HostFacts) -> tuple[MountOp, ...] | None:
    """The mounts that are really planned: a refused run has none."""
    try:
        return build(policy, host).mounts
    except PolicyError:
        return None


def cover_of(path: str, before: tuple[MountOp, ...]) -> MountOp | None:
    """The mount that a path lies in, after these operations; None: the private root."""
    for op in reversed(before):
        if isinstance(op, (Bind, Tmpfs, Devices, Proc)) and inside(path, op.target):
            return op
    return None


def is_private(cover: MountOp | None, host: HostFacts) -> bool:
    """Whether something made there is made in a tmpfs of ours or in our own state."""
    return cover is None or not isinstance(cover, Bind) or inside(cover.source, host.state)


@given(policies(), facts())
def test_rule_1_no_mount_point_is_made_in_a_host_tree(policy: Policy, host: HostFacts) -> None:
    ops = plan_of(policy, host)
    for index, op in enumerate(ops or ()):
        if isinstance(op, Bind) and op.make:
            assert is_private(cover_of(op.target, ops[:index]), host), op
        elif isinstance(op, (Directory, Symlink)) or (isinstance(op, File) and not op.bind):
            cover = cover_of(op.target, ops[:index])
            # A file beside a tree that is shown: never where the host would keep it.
            assert is_private(cover, host) or not cover.writable, op


@given(policies(), facts())
def test_rule_1_what_makes_mount_points_comes_before_every_writable_host_tree(policy: Policy, host: HostFacts) -> None:
    ops = plan_of(policy, host) or ()
    writable = [op.target for op in ops if isinstance(op, Bind) and op.writable and not inside(op.source, host.state)]
    for index, op in enumerate(ops):
        if isinstance(op, (Tmpfs, Directory, File, Symlink, Devices, Proc)):
            cover = cover_of(op.target, ops[:index])
            assert not (isinstance(cover, Bind) and cover.target in writable and cover.writable), op


@given(policies(), facts())
def test_rule_2_of_the_home_only_toolchains_and_path_trees_are_shown_and_never_writable(
    policy: Policy, host: HostFacts
) -> None:
    if policy.view == "host":
        return
    trees = path_trees(dict(host.environ)["PATH"], host.home)
    for op in plan_of(policy, host) or ():
        if isinstance(op, Overlay):
            assert op.lowers == (op.target,) and inside(op.layer, f"{host.layers}") and op.layer != host.layers, op
            assert any(op.target == f"{host.home}/{name}" for name in toolchains.NAMES), op
            assert not any(inside(path, op.target) for path in (host.workspace, host.state, *host.mounted)), op
        if not isinstance(op, Bind) or op.origin in (str(HERE), "workspace") or inside(op.source, host.state):
            continue
        assert not op.writable, op
        # A home below a system tree is covered by our own one at the same path.
        assert not inside(host.home, op.source) or op.source in SYSTEM_TREES, op
        if inside(op.source, host.home):
            toolchain = any(op.source == f"{host.home}/{name}" for name in toolchains.NAMES)
            assert toolchain or any(inside(tree, op.source) for tree in trees), op


@given(policies(), facts())
def test_the_real_home_and_our_state_are_never_what_the_command_finds_there(policy: Policy, host: HostFacts) -> None:
    ops = plan_of(policy, host)
    if ops is None:
        return
    # (mount rules that hold the home are refused where the state is below it; elsewhere they are the user's word)
    ruled = any(isinstance(op, Bind) and op.origin == str(HERE) for op in ops)
    if policy.view == "project" and not ruled:
        cover = cover_of(host.home, ops)
        assert isinstance(cover, Tmpfs) or (isinstance(cover, Bind) and inside(cover.source, host.state)), cover
    cover = cover_of(host.state, ops)
    if isinstance(cover, Bind) and inside(host.state, cover.source):
        assert any(isinstance(op, Mask) and op.target == host.state for op in ops)


@given(policies(), facts())
def test_path_and_links_never_show_the_workspace_the_home_or_the_state_elsewhere(
    policy: Policy, host: HostFacts
) -> None:
    links = dict(host.links)
    for op in plan_of(policy, host) or ():
        if not isinstance(op, Bind) or op.origin or op.target == "/" or inside(op.source, host.state):
            continue
        if op.source in SYSTEM_TREES or not any(
            inside(t, op.source) for t in path_trees(dict(host.environ)["PATH"], "")
        ):
            continue
        leads_to = next(
            (links[path] + op.source[len(path) :] for path in _upwards(op.source) if path in links), op.source
        )
        for kept in (host.home, host.workspace, host.state):
            assert not inside(kept, leads_to), op


def _upwards(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(len(parts), 1, -1)]


@given(policies(), facts())
def test_masks_over_credentials_are_not_covered_by_a_later_tree(policy: Policy, host: HostFacts) -> None:
    ops = plan_of(policy, host)
    if ops is None:
        return
    targets = [op.target for op in ops if isinstance(op, Bind) and op.origin]
    links = dict(host.links)
    for secret in (*ETC_SECRET_FILES, *ETC_SECRET_TREES):
        if secret not in host.existing or any(inside(target, secret) for target in targets):
            continue
        index = next(i for i, op in enumerate(ops) if isinstance(op, Mask) and op.target == links.get(secret, secret))
        assert not any(isinstance(op, (Bind, Tmpfs)) for op in ops[index:])


@given(policies(), facts())
def test_base_asks_only_for_candidates(policy: Policy, host: HostFacts) -> None:
    """What does not exist on the host is not mounted, except what a rule names."""
    for op in plan_of(policy, host) or ():
        if isinstance(op, Bind) and not op.origin and op.target != "/" and not inside(op.source, host.state):
            assert op.source in host.existing, op


@given(policies(), facts())
def test_the_same_input_gives_the_same_plan(policy: Policy, host: HostFacts) -> None:
    assert plan_of(policy, host) == plan_of(policy, host)


# ---------------------------------------------------------------- inside the workspace

RELATIVE = st.lists(PART, min_size=1, max_size=4).map("/".join)
HITS = st.lists(
    st.builds(ScanHit, RELATIVE, st.sampled_from(("hide", "readonly", "protect")), st.booleans(), st.booleans()),
    max_size=12,
)


@given(ANY_PATH, HITS, st.lists(RELATIVE, max_size=6))
def test_pins_come_first_and_masks_last(root: str, hits: list[ScanHit], pins: list[str]) -> None:
    ops = workspace(root, hits, pins)
    kinds = [(Pin, ReadOnly, Mask).index(type(op)) for op in ops]
    assert kinds == sorted(kinds)
    assert len(ops) == len(hits) + len(pins)
    assert all(inside(op.target, root) and op.target != root and "//" not in op.target for op in ops)
    assert [op.target for op in ops[: len(pins)]] == [posixpath.join(root, pin) for pin in pins]


@given(HITS)
def test_outer_names_are_bound_before_inner_ones(hits: list[ScanHit]) -> None:
    for kind in (ReadOnly, Mask):
        depths = [op.target.count("/") for op in workspace("/w", hits, ()) if isinstance(op, kind)]
        assert depths == sorted(depths)


@given(HITS, st.randoms())
def test_the_order_of_the_scan_does_not_matter(hits: list[ScanHit], random: object) -> None:
    mixed = list({hit.path: hit for hit in hits}.values())
    again = list(mixed)
    random.shuffle(again)  # type: ignore[attr-defined]
    assert workspace("/w", mixed, ()) == workspace("/w", again, ())


# ---------------------------------------------------------------- environment

NAME = st.sampled_from((*NEVER_BY_PATTERN, *PASSED, "AWS_KEY", "LD_X", "HTTP_X", "MY", "LC_ALL", "HOME", "MEMBRANE"))
RULE_NAME = NAME | NAME.map(lambda name: name[:3] + "*") | st.just("*")


@given(
    st.dictionaries(NAME, st.text(max_size=5), max_size=12),
    st.lists(st.builds(EnvRule, RULE_NAME, st.none() | st.text(max_size=3), st.just(HERE)), max_size=5),
)
def test_dangerous_names_are_inherited_only_when_they_are_named_exactly(
    environ: dict[str, str], rules: list[EnvRule]
) -> None:
    rules = [rule for rule in rules if rule.value is None or not rule.name.endswith("*")]
    host = HostFacts(1000, 1000, "dev", False, "/home/dev", "/s", "/w", "box", tuple(environ.items()))
    result = dict(environment(Policy(env=tuple(rules)), host, host.home))
    named = {rule.name for rule in rules}
    assert not [name for name in result if name in NEVER_BY_PATTERN and name not in named]
    for name, value in result.items():
        fixed = {rule.value for rule in rules if rule.name == name and rule.value is not None}
        own = name in ("HOME", "PWD", "MEMBRANE", "PATH", "USER", "LOGNAME") or (name, value) == UV_COPIES
        assert value == environ.get(name) or value in fixed or own, name
    # Whatever is inherited was asked for, by the short list or by a rule.
    patterns = [*PASSED, *(rule.name for rule in rules)]
    for name in set(result) & set(environ):
        assert any(name == p or (p.endswith("*") and name.startswith(p[:-1])) for p in patterns) or name in (
            "HOME",
            "MEMBRANE",
        )


@given(st.dictionaries(NAME, st.text(max_size=5), max_size=12))
def test_without_rules_only_the_short_list_is_inherited(environ: dict[str, str]) -> None:
    host = HostFacts(1000, 1000, "", False, "/home/dev", "/s", "/w", "box", tuple(environ.items()))
    result = dict(environment(Policy(), host, host.home))
    assert set(result) - {"HOME", "PWD", "MEMBRANE", "PATH", UV_COPIES[0]} <= {
        name for name in environ if name in PASSED or name.startswith("LC_")
    }
    assert (result["HOME"], result["PWD"], result["MEMBRANE"]) == ("/home/dev", "/w", "1")
