"""Ray: the best of N attempts, each in a fork of one base that a worker opens by its name.

    python examples/best_of_ray.py 'python3 -m unittest -q' 'first attempt' 'second attempt' ...

As ``best_of.py``, with Ray's workers in the place of threads: a change set is a name, so it goes to a worker of this
machine as text.  Ray ends a worker with SIGKILL: its sandbox ends with it, and the change set is as it was written.
"""

from __future__ import annotations

import sys
from pathlib import Path

import ray

from membrane import Policy, Sandbox


@ray.remote(num_cpus=1)
def attempted(workspace: str, name: str, line: str, test: str) -> tuple[int, int]:
    """(exit status of the test, number of names that were changed)."""
    with Sandbox(Policy(), workspace=workspace, review=name) as fork:
        fork.shell(line, timeout=600)
        changed = len(fork.changes())
        fork.checkpoint("tried")
        code = fork.shell(test, timeout=600).exit_code
    fork.restore("tried")
    return code, changed


def main(test: str, attempts: list[str]) -> int:
    workspace = str(Path.cwd())
    with Sandbox(Policy(), review=True) as base:
        forks = [base.fork() for _ in attempts]
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100 << 20, log_to_driver=False)
    told = ray.get(
        [attempted.remote(workspace, fork.change_set, line, test) for fork, line in zip(forks, attempts, strict=True)]
    )
    ray.shutdown()
    passing = [(changed, number) for number, (code, changed) in enumerate(told) if code == 0]
    print(f"attempts {len(told)}, passing {len(passing)}")
    if passing:
        report = forks[min(passing)[1]].apply()
        print("kept:", *(ascii(change.path) for change in report.applied))
    for each in (base, *forks):
        each.discard()
    return 0 if passing else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
