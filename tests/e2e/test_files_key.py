"""``files`` in a policy of our own: rules over the host's tree."""

from __future__ import annotations

from world.box import Box


def test_files_of_a_policy_bind(box: Box) -> None:
    box.allow(view="host", files={"deny_read": ["secret"], "allow_write": ["made"]})
    (box.workspace / "secret").write_text("hidden")
    (box.workspace / "made").mkdir()
    done = box.run("--", "sh", "-c", "echo x > made/f && echo written; echo x > here || cat secret || cat made/f")
    assert done.stdout == "written\nx\n", done
    assert (box.workspace / "made" / "f").read_text() == "x\n" and not (box.workspace / "here").exists()
    answer = box.run("check", "secret")
    assert answer.returncode == 1 and 'deny-read "secret"' in answer.stdout


def test_files_without_the_view_of_the_host_stop_the_run(box: Box) -> None:
    box.allow(files={"allow_write": ["."]})
    done = box.run("--", "true")
    assert done.returncode == 78 and "view: host" in done.stderr
