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


def test_ignore_holds_beside_files(box: Box) -> None:
    (box.workspace / "token.key").write_text("hidden")
    (box.workspace / "plain").write_text("shown")
    box.allow(view="host", files={"allow_write": ["."]}, ignore=["*.key"])
    done = box.run("--", "sh", "-c", "cat plain; cat token.key")
    assert done.returncode != 0 and done.stdout == "shown", done
    assert box.run("check", "token.key").returncode == 1 and box.run("check", "plain").returncode == 0


def test_what_files_would_drop_stops_the_run(box: Box) -> None:
    box.allow(view="host", files={}, ignore=["*.key"])
    done = box.run("--", "true")
    assert done.returncode == 78 and "deny_read" in done.stderr
    box.allow(view="host", files={}, mounts=[{"path": "/usr"}])
    done = box.run("--", "true")
    assert done.returncode == 78 and "allow_write" in done.stderr
