"""The record as people look at it: the full screen on a terminal, the page in a browser."""

from __future__ import annotations

import subprocess

from world.box import Box

PATIENCE = 60.0


def test_watching_on_a_terminal_is_a_full_screen_view(box: Box) -> None:
    script = "mkdir early; echo ready; read line; mkdir late"
    with box.popen("--", "sh", "-c", script, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as run:
        assert run.stdin is not None and run.stdout is not None
        assert run.stdout.readline() == b"ready\n"
        with box.terminal("trace", "watch", rows=40, columns=140) as terminal:
            terminal.expect(r"\x1b\[\?1049h", PATIENCE)  # the alternate screen
            terminal.expect("early", PATIENCE)
            run.stdin.write(b"\n")
            run.stdin.flush()
            terminal.expect("late", PATIENCE)
            terminal.expect("the session has ended", PATIENCE)
            terminal.send("q")
            assert terminal.wait(PATIENCE) == 0
            assert b"\x1b[?1049l" in terminal.seen
            assert terminal.attributes() == terminal.original
        assert run.wait(PATIENCE) == 0
