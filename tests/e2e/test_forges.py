"""Presets of forges and registries, seen by git and npm against ``git http-backend`` and a small registry."""

from __future__ import annotations

import subprocess

import pytest
from world.box import Box
from world.names import CONFUSING

pytestmark = pytest.mark.needs_tool("git")

# "push REPOSITORY BRANCH" from a clone of hello.git; the status of git, and what it says, on stdout.
PUSH = """
push() {
    git push -q "$1" "HEAD:refs/heads/$2" 2>&1; echo "status $?"
}
git clone -q "$1/me/mine.git" tree && cd tree
git -c user.name=a -c user.email=a@b commit -q --allow-empty -m pushed
git fetch -q "$1/you/yours.git" main && echo fetched
"""


def run(box: Box, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    options = (f"--extra-ca={box.world.ca}", f"--events={box.events_path}")
    return box.run(*options, "--", "bash", "-c", script, "bash", *arguments)


def branches(box: Box, url: str) -> set[str]:
    """The branches that the server has."""
    done = box.outside("git", "ls-remote", "--heads", url, env={"GIT_SSL_CAINFO": str(box.world.ca)})
    assert done.returncode == 0, done
    return {line.rpartition("/")[2] for line in done.stdout.splitlines()}


def denied(box: Box) -> list[tuple[str, str, str]]:
    events = box.events("AccessDenied")
    return [(event["access"].get("method"), event["access"].get("path"), event["reason"]) for event in events]


@pytest.mark.parametrize(("preset", "forge"), [("github-read", "github.com"), ("gitlab-read", "gitlab.com")])
def test_reading_presets_clone_and_fetch_and_refuse_a_push(box: Box, preset: str, forge: str) -> None:
    url, branch = f"https://{forge}", box.workspace.parent.name
    box.policy(f"presets: [{preset}]\n")
    done = run(box, f'{PUSH} push "$1/me/mine.git" {branch}', url)
    fetched, *said, status = done.stdout.splitlines()
    assert fetched == "fetched", done
    assert status == "status 128", done
    assert said[0] == "remote: blocked by membrane: method not allowed", done
    assert f'"{url}/me/mine.git/git-receive-pack"' in said[1]
    assert said[-1].startswith("fatal: ") and said[-1].endswith("403")
    assert "/me/mine.git/info/refs" in done.stderr, "membrane says what was refused"
    assert branch not in branches(box, f"{url}/me/mine.git")
    assert denied(box) == [("GET", "/me/mine.git/info/refs", "method not allowed")]


@pytest.mark.parametrize(
    ("preset", "forge", "mine"),
    [("github-push", "github.com", "me/mine"), ("gitlab-push", "gitlab.com", "group/sub/project")],
)
def test_pushing_presets_push_to_the_named_repository_only(box: Box, preset: str, forge: str, mine: str) -> None:
    url, branch = f"https://{forge}", box.workspace.parent.name
    box.policy(f"presets: [{{{preset}: [{mine}]}}]\n")
    done = run(box, f'{PUSH} push "$1/{mine}.git" {branch}; push "$1/you/yours.git" {branch}', url)
    lines = done.stdout.splitlines()
    assert lines[:2] == ["fetched", "status 0"], done
    assert lines[-1] == "status 128" and lines[2].startswith("remote: blocked by membrane: "), done
    assert branch in branches(box, f"{url}/{mine}.git")
    assert branch not in branches(box, f"{url}/you/yours.git")
    assert [entry[:2] for entry in denied(box)] == [("GET", "/you/yours.git/info/refs")]


# Other spellings of you/yours, some of which begin like what is allowed.
SPELLINGS = (
    "you%2Fyours.git",
    "/you//yours.git",
    "me/mine.git/../../you/yours.git",
    "me/mine.git/git-receive-pack/../../../you/yours.git",
    "group/sub/project.git/%2e%2e/%2e%2e/%2e%2e/you/yours.git",
    "you/yours.git/git-upload-pack/..",
    "%79ou/yours.git",
)
PUSH_TO_EACH = """
url=$1 branch=$2; shift 2
cd "$(mktemp -d)" && git clone -q "$url/you/yours.git" .
git -c user.name=a -c user.email=a@b commit -q --allow-empty -m exfiltrated
for path; do git push -q "$url/$path" "HEAD:refs/heads/$branch" >&2; echo "status $?"; done
"""


@pytest.mark.parametrize(
    ("preset", "forge"),
    [
        ("github-read", "github.com"),
        ("github-push: [me/mine]", "github.com"),
        ("gitlab-read", "gitlab.com"),
        ("gitlab-push: [group/sub/project, me/mine]", "gitlab.com"),
    ],
)
def test_no_name_of_a_group_or_a_project_leads_a_push_astray(box: Box, preset: str, forge: str) -> None:
    url, branch = f"https://{forge}", box.workspace.parent.name
    foreign = [*(name.replace("%", "%25") + ".git" for name in CONFUSING), *SPELLINGS]
    box.policy(f"presets: [{{{preset}}}]\n" if ":" in preset else f"presets: [{preset}]\n")
    done = run(box, PUSH_TO_EACH, url, branch, *foreign)
    assert "status 0" not in done.stdout.splitlines(), done
    assert done.stdout.count("status 128") == len(foreign), done
    for name in ("you/yours", *CONFUSING):
        assert branch not in branches(box, f"{url}/{name.replace('%', '%25')}.git"), name
    # The control: they are there, and take a push, where the host is open as a whole.
    box.policy(f"allow: ['{forge}:443']\n")
    names = [name.replace("%", "%25") + ".git" for name in CONFUSING]
    done = run(box, PUSH_TO_EACH, url, branch, *names)
    assert done.stdout.splitlines() == ["status 0"] * len(names), done


ASK = """
url=$1; shift
for path; do curl -s -o /dev/null -w '%{http_code}\\n' -X POST --data '{}' "$url/$path"; done
"""


@pytest.mark.parametrize(("preset", "forge"), [("github-read", "github.com"), ("gitlab-read", "gitlab.com")])
def test_a_reading_preset_asks_for_lfs_objects_and_makes_no_file(box: Box, preset: str, forge: str) -> None:
    box.policy(f"presets: [{preset}]\n")
    refused = [
        "api/v4/projects/1/repository/files/git-upload-pack",
        "api/v4/projects/1/repository/files/x.git/git-upload-pack",
        "you/yours/-/create/main/x.git/git-upload-pack",
        "you/yours/-/create/main/x.git/info/lfs/objects/batch",
        "you/yours.git/info/lfs/objects/batch/x",
        "you/yours.git/info/lfs/locks",
    ]
    done = run(box, ASK, f"https://{forge}", *refused, "you/yours.git/info/lfs/objects/batch")
    # The batch call goes up; git's server has no LFS.
    assert done.stdout.splitlines() == ["403"] * len(refused) + ["404"], done


@pytest.mark.needs_tool("npm")
def test_npm_reads_and_may_not_publish(box: Box) -> None:
    box.policy("presets: [npm]\n")
    package = '{"name": "demo-pkg", "version": "2.0.0"}'
    script = f"""
    npm view --fetch-retries=0 demo-pkg version
    mkdir user && cd user && npm install --no-audit --no-fund --silent --fetch-retries=0 demo-pkg >&2
    node -p 'require("demo-pkg")'
    mkdir ../mine && cd ../mine && echo '{package}' > package.json
    npm config set //registry.npmjs.org/:_authToken=token
    npm publish --fetch-retries=0 2>&1; echo "status $?"
    """
    done = run(box, script)
    version, module, *said, status = done.stdout.splitlines()
    assert (version, module) == ("1.0.0", "demo"), done
    assert status != "status 0" and any("403" in line for line in said), done
    assert ("PUT", "/demo-pkg", "method not allowed") in denied(box)
    assert not box.world.requests(method="PUT", host="registry.npmjs.org")
