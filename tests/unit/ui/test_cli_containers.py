"""What ``membrane setup container`` prints: texts that their readers take, and no right too many."""

from __future__ import annotations

import json

import pytest
import yaml

from membrane.ui import containers


def test_the_profile_allows_what_a_run_needs_and_keeps_the_default() -> None:
    profile = json.loads(containers.text("seccomp"))
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    allowed = {
        name
        for rule in profile["syscalls"]
        if rule["action"] == "SCMP_ACT_ALLOW" and not rule.get("includes") and not rule.get("args")
        for name in rule["names"]
    }
    assert {"unshare", "mount", "umount2", "pivot_root", "setns", "clone"} <= allowed
    assert not {"bpf", "kexec_load", "init_module", "open_by_handle_at", "reboot", "ptrace_x"} & allowed


@pytest.mark.parametrize("kind", containers.KINDS)
def test_no_text_is_privileged(kind: str) -> None:
    text = containers.text(kind)
    assert "privileged:" not in text and "--privileged" not in text and "docker.sock" not in text
    assert "cap_add" not in text and "--cap-add" not in text


@pytest.mark.parametrize("kind", ["compose", "kubernetes", "github"])
def test_yaml_is_yaml(kind: str) -> None:
    assert isinstance(yaml.safe_load(containers.text(kind)), dict)


def test_gitlab_s_is_toml_and_the_dev_container_s_json() -> None:
    import tomllib

    options = tomllib.loads(containers.text("gitlab"))["runners"]["docker"]["security_opt"]
    assert options == ["seccomp:unconfined", "systempaths:unconfined"]
    lines = [line for line in containers.text("devcontainer").splitlines() if not line.startswith("//")]
    assert json.loads("{" + "\n".join(lines) + "}")["remoteUser"] == "vscode"
