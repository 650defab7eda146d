"""Package managers behind rules about requests: cargo, apt and a client of container registries, each as it is.

What reads passes, what writes is refused, and the registries of the world see no more than that.
"""

from __future__ import annotations

import subprocess

import pytest
from world.box import Box
from world.inspected import denied, no_crash, requests, run, url_rule


def shell(box: Box, script: str, *options: str) -> subprocess.CompletedProcess[str]:
    return run(box, "bash", "-c", script, *options, timeout=120)


@pytest.mark.needs_tool("/usr/bin/cargo")
def test_cargo_reads_and_may_not_publish(box: Box) -> None:
    box.policy("presets: [cargo]\n")
    script = """
    export PATH=/usr/bin:/bin CARGO_HOME=$PWD/cargo CARGO_NET_RETRY=0
    mkdir -p app/src && cd app
    printf '[package]\\nname = "app"\\nversion = "0.1.0"\\nedition = "2021"\\n' >Cargo.toml
    printf 'license = "MIT"\\ndescription = "x"\\n' >>Cargo.toml
    printf '[dependencies]\\ndemo-pkg = "1"\\n' >>Cargo.toml
    echo 'fn main() { println!("{}", demo_pkg::NAME); }' >src/main.rs
    cargo --quiet fetch && grep -A1 'name = "demo-pkg"' Cargo.lock && ls $CARGO_HOME/registry/src/*/demo-pkg-1.0.0/src
    cargo publish --token t --no-verify --allow-dirty 2>&1; echo "status $?"
    """
    done = shell(box, script)
    assert done.stdout.splitlines()[:3] == ['name = "demo-pkg"', 'version = "1.0.0"', "lib.rs"], done
    assert "blocked by membrane" in done.stdout and "method not allowed" in done.stdout, done
    assert done.stdout.splitlines()[-1] != "status 0"
    assert ("PUT", "/api/v1/crates/new", 403, "deny") in requests(box)
    assert ("GET", "/crates/demo-pkg/1.0.0/download", 200, "allow") in requests(box)
    assert set(denied(box)) == {"method not allowed"}
    assert not box.world.requests(host="crates.io", method="PUT")
    no_crash(box)


@pytest.mark.needs_tool("apt-get")
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_apt_takes_what_the_paths_allow(box: Box, scheme: str) -> None:
    box.allow(url_rule(f"{scheme}://deb.debian.org/debian/", "GET", paths=["dists", "pool"]))
    script = f"""
    mkdir -p etc state/lists/partial cache/archives/partial home
    echo 'deb [trusted=yes] {scheme}://deb.debian.org/debian stable main' >etc/sources.list
    cat >apt.conf <<END
    Dir::Etc "$PWD/etc"; Dir::State "$PWD/state"; Dir::Cache "$PWD/cache"; Dir::State::status "/dev/null";
    Dir::Etc::parts "none"; APT::Sandbox::User ""; APT::Architecture "amd64"; APT::Architectures {{ "amd64"; }};
    Acquire::Retries "0"; Acquire::Languages "none";
END
    export APT_CONFIG=$PWD/apt.conf
    apt-get -q update 2>&1 && apt-get -q download demo-pkg 2>&1 && dpkg-deb --field demo-pkg_1.0_all.deb Package
    """
    done = shell(box, script)
    assert done.stdout.splitlines()[-1] == "demo-pkg", done
    seen = requests(box)
    assert ("GET", "/debian/dists/stable/main/binary-amd64/Packages", 200, "allow") in seen
    assert ("GET", "/debian/pool/demo-pkg_1.0_all.deb", 200, "allow") in seen
    assert set(denied(box)) <= {"service record of HTTP"}  # apt asks for SRV records first
    box.events_path.unlink()
    box.allow(url_rule(f"{scheme}://deb.debian.org/debian/", "GET", paths=["dists"]))
    done = shell(box, f"rm -rf demo* apt.conf; {script}")
    assert "403  Forbidden" in done.stdout and not done.stdout.endswith("demo-pkg\n"), done
    assert ("GET", "/debian/pool/demo-pkg_1.0_all.deb", 403, "deny") in requests(box)
    assert set(denied(box)) - {"service record of HTTP"} == {"path not allowed"}
    no_crash(box)


@pytest.mark.needs_tool("skopeo")
def test_images_are_pulled_and_not_pushed(box: Box) -> None:
    """skopeo, whose registry client podman and buildah share; the token and the layers come from other hosts."""
    box.policy("presets: [docker-hub]\n")
    script = """
    image=docker://docker.io/library/demo:latest
    skopeo --command-timeout 60s copy --quiet --override-os linux --override-arch amd64 $image dir:pulled
    for layer in pulled/*; do tar -xzOf $layer demo 2>/dev/null; done
    skopeo --command-timeout 60s copy --quiet dir:pulled docker://docker.io/me/demo:latest 2>&1; echo "status $?"
    """
    done = shell(box, script)
    content, *said, status = done.stdout.splitlines()
    assert content == "demo", done
    assert status != "status 0" and any("403" in line for line in said), done
    assert ("POST", "method not allowed") in [
        (event["access"].get("method"), event["reason"]) for event in box.events("AccessDenied")
    ]
    assert {event["host"] for event in box.events("RequestSeen") if event["verdict"] == "allow"} == {
        "registry-1.docker.io", "auth.docker.io", "production.cloudflare.docker.com",
    }  # fmt: skip
    assert not [
        each for each in box.world.requests(host="registry-1.docker.io") if each["method"] not in ("GET", "HEAD")
    ]
    no_crash(box)


@pytest.mark.needs_tool("npm")
def test_npm_packages_with_a_scope(box: Box) -> None:
    """npm asks for ``/@world%2fdemo-pkg``: one path, spelled by the preset, and no other way of writing it passes."""
    box.policy("presets: [npm]\n")
    registry = "https://registry.npmjs.org"
    done = shell(
        box,
        f"""
        npm view --fetch-retries=0 @world/demo-pkg version
        for path in @world%2Fdemo-pkg @world%2F..%2Fdemo-pkg x%2Fdemo-pkg @world%2F%2Fdemo-pkg; do
            curl -sS -o /dev/null -w '%{{http_code}} ' {registry}/$path
        done
        curl -sS -o /dev/null -w '%{{http_code}}' -X PUT {registry}/@world%2Fdemo-pkg
        """,
    )
    assert done.stdout.split() == ["1.0.0", "200", "400", "400", "400", "403"], done
    assert ("GET", "/@world%2Fdemo-pkg", 200, "allow") in requests(box)
    no_crash(box)


def test_the_api_of_a_gitlab_project_by_its_path(box: Box) -> None:
    box.policy("presets: [{gitlab-push: [group/sub/project]}]\n")
    api = "https://gitlab.com/api/v4/projects"
    ours, others = f"{api}/group%2Fsub%2Fproject", f"{api}/you%2Fyours"
    before = len(box.world.requests(host="gitlab.com"))
    done = shell(
        box,
        f"""
        ask() {{ curl -sS -o /dev/null -w '%{{http_code}} ' -X "$1" "$2"; }}
        ask POST {ours}/merge_requests; ask GET {others}/issues
        ask POST {others}/merge_requests; ask POST {ours}/hooks; ask DELETE {ours}; ask POST {ours}%2F..%2Fother/issues
        """,
    )
    passed, refused = done.stdout.split()[:2], done.stdout.split()[2:]
    assert refused == ["403", "403", "403", "400"] and not {"403", "400"} & set(passed), done
    arrived = {(each["method"], each["path"]) for each in box.world.requests(host="gitlab.com")[before:]}
    wanted = {("POST", "group%2Fsub%2Fproject/merge_requests"), ("GET", "you%2Fyours/issues")}
    assert arrived == {(method, f"/api/v4/projects/{path}") for method, path in wanted}
    no_crash(box)
