"""The preset files: they are valid, narrow, and do what their comments say."""

from __future__ import annotations

from pathlib import Path

import pytest

import membrane.policy
from membrane.errors import PolicyError
from membrane.policy import keys
from membrane.policy.decide import decide
from membrane.policy.load import Source, load
from membrane.policy.model import Allow, HttpRequest, NameQuery, PathAccess

DIRECTORY = Path(membrane.policy.__file__).parent / "presets"
PRESETS = {str(path.relative_to(DIRECTORY))[:-5]: path.read_text() for path in DIRECTORY.rglob("*.yaml")}
PROFILES = sorted(name.removeprefix("profiles/") for name in PRESETS if name.startswith("profiles/"))
AGENTS = ["aider", "amp", "claude", "codex", "cursor-agent", "gemini", "goose", "opencode"]
# Hosts where anybody can leave or fetch anything, resolvers, and telemetry: never in a preset.
EXFILTRATION = [
    "cloudflare-dns.com",
    "dns.google",
    "storage.googleapis.com",
    "sentry.io",
    "statsig.com",
    "statsig.anthropic.com",
    "gist.github.com",
    "upload.pypi.org",
    "s3.amazonaws.com",
    "sts.amazonaws.com",
]


@pytest.mark.parametrize("name", sorted(name for name in PRESETS if "/" not in name))
def test_preset_is_valid_and_narrow(name: str) -> None:
    wanted = f"{{{name}: [me/mine]}}" if "\nargument: " in PRESETS[name] else name
    result = load([Source("user", "u", f"presets: [{wanted}]")], presets=PRESETS)
    assert result.warnings == ()
    assert result.policy.allow
    for rule in result.policy.allow:
        assert rule.kind == "host", "no wildcards"
        assert rule.ports, "a port for every host"
        assert all(port.protocol == "tcp" and port.first == port.last for port in rule.ports)
        assert rule.host not in EXFILTRATION
    assert PRESETS[name].startswith("# "), "says why"


@pytest.mark.parametrize("name", PROFILES)
def test_profile_is_valid_and_narrow(name: str) -> None:
    result = load([Source("user", "u", "presets: []")], presets=PRESETS, command=name, home="/home/me")
    policy = result.policy
    assert policy.profiles == (name,)
    assert policy.allow
    assert policy.state_dirs
    assert any(rule.value is None for rule in policy.env)
    assert all(rule.kind == "host" and rule.ports and rule.host not in EXFILTRATION for rule in policy.allow)
    assert PRESETS[f"profiles/{name}"].startswith("# "), "says why"


def ask(policy: object, *requests: str) -> list[bool]:
    """Of each ``METHOD https://host/path``: is it allowed?"""
    answers = []
    for text in requests:
        method, url = text.split(" ")
        host, _, path = url.removeprefix("https://").partition("/")
        verdict = decide(policy, HttpRequest(host, 443, "https", method, f"/{path}"))  # type: ignore[arg-type]
        answers.append(isinstance(verdict, Allow))
    return answers


READS = (
    "GET https://github.com/a/b/info/refs",
    "POST https://github.com/a/b.git/git-upload-pack",
    "POST https://github.com/a/b/git-upload-pack",
    "GET https://github.com/a/b/releases/download/v1/x.tgz",
    "GET https://raw.githubusercontent.com/a/b/main/x",
    "GET https://api.github.com/repos/a/b/issues",
)
PUSHES = (
    "POST https://github.com/me/mine/git-receive-pack",
    "POST https://github.com/me/mine.git/git-receive-pack",
    "POST https://github.com/me/mine.git/info/lfs/objects/batch",
    "POST https://github.com/me/mine.git/info/lfs/locks/verify",
    "POST https://api.github.com/repos/me/mine/pulls",
    "PATCH https://api.github.com/repos/me/mine/issues/1",
    "POST https://uploads.github.com/repos/me/mine/releases/1/assets",
    "POST https://lfs.github.com/me/mine/objects/abc/verify",
)
NEVER = (
    "DELETE https://api.github.com/repos/me/mine",
    "PATCH https://api.github.com/repos/me/mine",
    "POST https://api.github.com/repos/me/mine/forks",
    "POST https://api.github.com/repos/me/mine/hooks",
    "POST https://api.github.com/repos/me/mine/transfer",
    "PUT https://api.github.com/repos/me/mine/collaborators/x",
    "PUT https://api.github.com/repos/me/mine/actions/secrets/x",
    "POST https://api.github.com/gists",
    "POST https://api.github.com/graphql",
    "POST https://github.com/me/mine/settings",
)


def test_github_read_writes_nothing() -> None:
    policy = load([Source("user", "u", "presets: [github-read]")], presets=PRESETS).policy
    assert all(ask(policy, *READS))
    assert ask(policy, *PUSHES, *NEVER) == [text == PUSHES[2] for text in (*PUSHES, *NEVER)]
    assert not any(ask(policy, "PUT https://github-cloud.s3.amazonaws.com/alambic/media/1/a"))


def test_github_push_writes_to_the_named_repositories_only() -> None:
    text = "presets: [{github-push: [me/mine, me/second]}]"
    policy = load([Source("user", "u", text)], presets=PRESETS).policy
    assert all(ask(policy, *READS, *PUSHES))
    assert all(ask(policy, *(text.replace("me/mine", "me/second") for text in PUSHES)))
    assert not any(ask(policy, *NEVER))
    for other in ("me/min", "me/mine2", "me/mine.github.io", "you/mine", "you/me/mine"):
        assert not any(ask(policy, *(text.replace("me/mine", other) for text in PUSHES))), other


def test_gitlab_push_writes_to_the_named_projects_only() -> None:
    text = "presets: [{gitlab-push: [group/sub/project]}]"
    policy = load([Source("user", "u", text)], presets=PRESETS).policy
    push = "POST https://gitlab.com/group/sub/project.git/git-receive-pack"
    lfs = "PUT https://gitlab.com/group/sub/project.git/gitlab-lfs/objects/abc/5"
    assert all(ask(policy, push, lfs, "POST https://gitlab.com/x/y/z.git/git-upload-pack"))
    assert not any(ask(policy, push.replace("project", "other"), lfs.replace("sub", "other")))
    assert not any(ask(policy, "POST https://gitlab.com/api/graphql", "PUT https://gitlab.com/group/sub/project"))
    api = "https://gitlab.com/api/v4/projects/group%2Fsub%2Fproject"
    other = "https://gitlab.com/api/v4/projects/group%2Fsub%2Fother"
    assert all(ask(policy, f"GET {api}", f"POST {api}/merge_requests", f"PUT {api}/issues/1", f"GET {other}"))
    assert all(ask(policy, f"POST {api}/repository/commits", f"DELETE {api}/repository/branches/x"))
    writes = [
        f"POST {other}/merge_requests",
        f"PUT {api}",
        f"DELETE {api}",
        f"POST {api}/hooks",
        f"PUT {api}/variables/A",
    ]
    assert not any(
        ask(policy, *writes, f"POST {api}%2Fx/issues", "POST https://gitlab.com/group%2Fsub%2Fproject/issues")
    )
    read = load([Source("user", "u", "presets: [gitlab-read]")], presets=PRESETS).policy
    assert ask(read, f"GET {other}/issues", f"POST {api}/issues") == [True, False]
    assert ask(read, "POST https://gitlab.com/x/y/z.git/git-upload-pack", push, lfs) == [True, False, False]


@pytest.mark.parametrize(
    ("preset", "allowed", "refused"),
    [
        ("pypi", "GET https://pypi.org/simple/x/", "POST https://pypi.org/legacy/"),
        ("npm", "GET https://registry.npmjs.org/x", "PUT https://registry.npmjs.org/x"),
        ("npm", "POST https://registry.npmjs.org/-/npm/v1/security/advisories/bulk", "PUT https://registry.npmjs.org/-/user/org.couchdb.user:x"),
        ("cargo", "GET https://index.crates.io/se/rd/serde", "PUT https://crates.io/api/v1/crates/new"),
        ("docker-hub", "POST https://auth.docker.io/token", "POST https://registry-1.docker.io/v2/me/x/blobs/uploads/"),
        ("docker-hub", "GET https://registry-1.docker.io/v2/library/debian/manifests/latest", "PUT https://registry-1.docker.io/v2/me/x/manifests/1"),
    ],
)  # fmt: skip
def test_registries_are_for_reading(preset: str, allowed: str, refused: str) -> None:
    policy = load([Source("user", "u", f"presets: [{preset}]")], presets=PRESETS).policy
    assert ask(policy, allowed, refused) == [True, False]


@pytest.mark.parametrize(
    ("wanted", "cause"),
    [
        ("github-push", "needs what it is for: {github-push: [owner/repo]}"),
        ("{github-read: [a/b]}", "is for nothing in particular"),
        ("{github-push: []}", "is an empty list"),
        ("{github-push: a/b}", "a list"),
        ("{github-push: [a]}", "'a' is not a repository; expected owner/repo"),
        ("{github-push: [a/b/c]}", "expected owner/repo"),
        ("{github-push: [a/../b]}", "expected owner/repo"),
        ("{github-push: ['a/*']}", "expected owner/repo"),
        ("{github-push: ['{repository}/x']}", "expected owner/repo"),
        ("{github-push: [a/b.git]}", "write a/b"),
        ("{gitlab-push: [a/..]}", "expected group/.../project"),
        ("{github-pull: [a/b]}", 'did you mean "github-push"'),
    ],
)
def test_an_argument_is_refused(wanted: str, cause: str) -> None:
    for level in ("user", "project"):
        with pytest.raises(PolicyError) as caught:
            load([Source(level, "f", f"presets: [{wanted}]")], presets=PRESETS)  # type: ignore[arg-type]
        assert cause in str(caught.value)
        assert caught.value.where.startswith("f:1:")


def test_an_argument_on_the_command_line() -> None:
    options = {"presets": ("github-push=me/mine,me/second",)}
    policy = load([Source("user", "u", "presets: []")], presets=PRESETS, options=options).policy
    assert all(ask(policy, *PUSHES))
    with pytest.raises(PolicyError, match="needs what it is for"):
        load([], presets=PRESETS, options={"presets": ("github-push",)})


def test_a_preset_beside_one_that_opens_more_is_told() -> None:
    result = load([Source("user", "u", "presets: [default, github-read]")], presets=PRESETS)
    (warning,) = result.warnings
    assert '"github-read" is meant instead of "git-hosts"' in warning


def test_a_project_s_preset_with_an_argument_widens() -> None:
    text = "presets: [{github-push: [me/mine]}]"
    result = load(
        [Source("user", "u", "presets: [{github-push: [me/second]}]"), Source("project", "p", text)], presets=PRESETS
    )
    assert [(each.key, each.line) for each in result.widening] == [("presets", 1)]
    same = load([Source("user", "u", text), Source("project", "p", text)], presets=PRESETS)
    assert same.widening == ()


def test_the_promised_agents_are_there() -> None:
    assert PROFILES == AGENTS


@pytest.fixture(scope="module")
def default() -> object:
    return load([], presets=PRESETS).policy


@pytest.mark.parametrize(
    ("path", "visible"),
    [
        (".env", False),
        ("app/.env", False),
        (".env.local", False),
        (".env.production", False),
        (".env.example", True),
        ("app/.env.sample", True),
        (".env.template", True),
        (".env.test", True),
        (".envrc", True),
        ("environment", True),
        (".env/bin/python", True),  # a virtual environment of that name
        ("keys/id_ed25519", False),
        ("keys/id_ed25519.pub", True),
        (".netrc", False),
        ("tests/cert.pem", True),
        (".git/HEAD", True),
        (".npmrc", True),
    ],
)
def test_default_files(default: object, path: str, visible: bool) -> None:
    for operation in ("read", "write"):
        verdict = decide(default, PathAccess(path, operation))  # type: ignore[arg-type]
        assert isinstance(verdict, Allow) is visible


@pytest.mark.parametrize("name", ["pypi.org", "registry.npmjs.org", "github.com", "api.anthropic.com", "crates.io"])
def test_default_hosts(default: object, name: str) -> None:
    assert isinstance(decide(default, NameQuery(name)), Allow)  # type: ignore[arg-type]


def test_template_is_valid_as_it_is_and_with_every_line_in_force() -> None:
    template = keys.template()
    plain = load([Source("user", "u", template)], presets=PRESETS).policy
    assert plain.replace(levels=(), digest="") == load([], presets=PRESETS).policy.replace(levels=(), digest="")
    lines = []
    for line in template.split("\n"):
        prose = line.startswith("# ") and line[2:3] != " "
        lines.append(line if prose or not line.startswith("#") else line[1:])
    full = load(
        [Source("user", "u", "\n".join(lines), "/d")], presets=PRESETS, environ={"SSH_AUTH_SOCK": "/run/a"}, home="/h"
    ).policy
    assert [rule.host for rule in full.deny] == ["tracker.example"]
    assert full.limits.pids == 2000
    assert full.unix_sockets[0].path == "/run/a"


def test_the_docs_list_what_each_list_opens_without_a_policy() -> None:
    """The table of ``docs/policy.md`` is what a run without any file of yours allows, list by list; this prints it."""
    opened: dict[str, list[str]] = {}
    for rule in load([], presets=PRESETS).policy.allow:
        name = str(rule.origin).partition(":")[0].split()[-1]
        ports = [span.first for span in rule.ports]
        assert 443 in ports and {*ports} <= {80, 443}
        opened.setdefault(name, []).append(f"`{rule.host}`{'' if ports == [443] else ' (and port 80)'}")
    table = ["| list | opens, on port 443 |", "| --- | --- |"]
    table += [f"| `{name}` | {', '.join(hosts)} |" for name, hosts in opened.items()]
    text = (Path(__file__).parents[3] / "docs" / "policy.md").read_text(encoding="utf-8")
    assert "\n".join(table) in text, "\n".join(table)
