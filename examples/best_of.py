"""Best of N: attempts run at once, each in a fork of one base, and a test is the judge.

    python examples/best_of.py tests 'python3 -m unittest -q' 'claude -p "fix it"' 'codex exec "fix it"' ...

The words are: a directory that no attempt may change, the test, and the attempts, each a line of shell.  Every attempt
has a copy-on-write view of the directory that you are in, a network and a record of its own.  What passes with the
fewest changed files is put in place, without what programs outside would execute or obey, and without what was written
while it was judged: the test runs the attempt's code.  The others are discarded.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor

from membrane import Policy, Sandbox

SECONDS = 600.0  # for an attempt


def attempted(fork: Sandbox, line: str, test: str, judges: str) -> tuple[bool, str]:
    """(does it pass?, what is said of it)."""
    with fork:
        fork.shell(line, timeout=SECONDS)
        # A command that has ended leaves nothing running that could disturb the judge.
        names = [change.path for change in fork.changes()]
        if any(f"{name}/".startswith(f"{judges}/") for name in names):
            return False, f"it changed {judges}"
        fork.checkpoint("tried")
        result = fork.shell(test, timeout=SECONDS)
    fork.restore("tried")
    return result.exit_code == 0, f"exit {result.exit_code}, {len(names)} names changed"


def main(judges: str, test: str, attempts: list[str]) -> int:
    policy = Policy.load()
    with Sandbox(policy, review=True) as base:  # what all of them need would be made here, once
        forks = [base.fork() for _ in attempts]
    count = len(forks)
    with ThreadPoolExecutor(count) as pool:
        told = list(pool.map(attempted, forks, attempts, [test] * count, [judges] * count))
    for line, (_passes, said) in zip(attempts, told, strict=True):
        print(f"{line}: {said}")
    passing = [fork for fork, (passes, _said) in zip(forks, told, strict=True) if passes]
    if passing:
        report = min(passing, key=lambda fork: len(fork.changes())).apply()
        print("kept:", *(ascii(change.path) for change in report.applied))
        for change, why in report.refused:
            print(f"not put in place: {change.path!a} ({why!a})")
    for each in (base, *forks):
        each.discard()
    return 0 if passing else 1


if __name__ == "__main__":
    sys.exit(main(os.path.normpath(sys.argv[1]), sys.argv[2], sys.argv[3:]))
