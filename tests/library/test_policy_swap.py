"""Other rules while a command asks without a pause: no moment has neither, and none more than both (row O13)."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

from membrane import Policy, Sandbox

UPDATES = 60
ASKING = """
import json, os, socket
answered = {}
rounds = 0
while not os.path.exists("stop"):
    rounds += 1
    if rounds == 20:
        open("asking", "w").close()
    for name in ("both.example", "even.example", "odd.example", "never.example", "tracker.both.example"):
        try:
            socket.getaddrinfo(name, 443, socket.AF_INET, socket.SOCK_STREAM)
            told = "yes"
        except socket.gaierror:
            told = "no"
        answered.setdefault(name, {}).setdefault(told, 0)
        answered[name][told] += 1
print(json.dumps([rounds, answered]))
"""


def test_no_moment_is_open_while_rules_are_exchanged(workspace: Path, environ: dict[str, str]) -> None:
    common = Policy().allow("both.example").allow("*.both.example").deny("tracker.both.example")
    even, odd = common.allow("even.example"), common.allow("odd.example")
    told: list[Any] = []
    with Sandbox(even, workspace=workspace, environ=environ) as sandbox:
        asking = threading.Thread(target=lambda: told.append(sandbox.run(["/usr/bin/python3", "-S", "-c", ASKING])))
        asking.start()
        try:
            for number in range(UPDATES):
                sandbox.update(odd if number % 2 == 0 else even)
                if number == 0:
                    assert sandbox.shell("while [ ! -e asking ]; do :; done").exit_code == 0
        finally:
            assert sandbox.shell("touch stop").exit_code == 0
            asking.join()
    assert told[0].exit_code == 0, told[0].stderr
    rounds, answered = json.loads(told[0].stdout)
    assert rounds >= 20
    assert answered["both.example"] == {"yes": rounds}
    assert answered["never.example"] == answered["tracker.both.example"] == {"no": rounds}
    # The control: both sets of rules were in force while it asked.
    assert sum(set(answered[name]) == {"yes", "no"} for name in ("even.example", "odd.example")) >= 1, answered
