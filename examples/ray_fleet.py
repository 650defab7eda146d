"""Ray: many sandboxed jobs over a cluster, one sandbox for each worker.

    python examples/ray_fleet.py 100

Ray schedules; an actor holds an open sandbox, so a job costs one command and not one start.  Each job has its own
process and mount namespaces and its own /tmp.  Ray ends an actor with SIGKILL: its sandbox ends with it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import ray
from ray.util import ActorPool

from membrane import Policy, Sandbox

JOB = 'test ! -e /tmp/seen && touch /tmp/seen && echo "$1" > "result-$1"; curl -sS -m 5 https://example.com/'
WORKERS = 2


@ray.remote(num_cpus=1)
class Worker:
    """A sandbox in a process of Ray's."""

    def __init__(self, workspace: str) -> None:
        self.sandbox = Sandbox(Policy(), workspace=workspace).open()

    def job(self, number: int) -> tuple[int, int, list[str]]:
        result = self.sandbox.run(["/bin/sh", "-c", JOB, "job", str(number)], timeout=60)
        return number, result.exit_code, [refused.target for refused in result.denied]


def main(jobs: int) -> None:
    ray.init(num_cpus=WORKERS, include_dashboard=False, object_store_memory=100 << 20, log_to_driver=False)
    pool = ActorPool([Worker.remote(str(Path.cwd())) for _ in range(WORKERS)])
    ended = list(pool.map_unordered(lambda worker, number: worker.job.remote(number), range(jobs)))
    made = [number for number, _code, _refused in ended if Path(f"result-{number}").read_text() == f"{number}\n"]
    refused = [number for number, code, targets in ended if code and "example.com" in targets]
    print(f"jobs {len(ended)}, results {len(made)}, refused example.com {len(refused)}")
    ray.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]))
