"""The settings and the policy that ``docs/srt.md`` shows are ones."""

from __future__ import annotations

import re

import pytest
from srt_box import SrtBox
from world.box import ROOT

from membrane.policy.load import Source, load

TEXT = (ROOT / "docs" / "srt.md").read_text()


@pytest.mark.ours
def test_settings_of_the_document_run(box: SrtBox) -> None:
    found = re.search(r"```json\n(.*?)```", TEXT, re.S)
    assert found
    box.settings_path.write_text(found[1])
    done = box.shell("echo x > f; echo y > a.pem; curl -s -o /dev/null -w '%{http_code}' http://gist.github.com/")
    assert done.stdout == "403", done
    assert (box.work / "f").read_text() == "x\n"


@pytest.mark.ours
def test_policy_of_the_document_is_read() -> None:
    found = re.search(r"```yaml\n(.*?)```", TEXT, re.S)
    assert found
    policy = load([Source("user", "docs/srt.md", found[1])], presets={"default": ""}, home="/home/u").policy
    assert [rule.effect for rule in policy.file_rules or ()] == ["deny-read", "deny-read", "allow-write", "deny-write"]
