"""``membrane setup container``: the options with which a container of yours carries the boundary, and our image.

Theory of operation
-------------------
A container forbids two things that a run needs.  Its seccomp filter allows no user namespace, no mount and no
pivot_root: the profile here is moby's own default (``profiles/seccomp/default.json``, Apache License 2.0) with these
calls allowed, which the kernel admits only within a user namespace of the caller's.  And it covers parts of /proc, so
that the kernel refuses a new proc(5) there (fs/namespace.c, ``mount_too_revealing``): ``systempaths=unconfined``
uncovers them.  No capability is needed, and nothing is privileged.  Each text below was tried where it says so.
"""

from __future__ import annotations

import os

from ..errors import HostError
from ..plan.carrier import IMAGE
from ..run.installed import VERSION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

PROFILE: Final = "membrane-seccomp.json"  # the name under which the texts expect the profile
_HEAD: Final = f"membrane setup container seccomp > {PROFILE}"
TEXTS: Final[dict[str, str]] = {
    "docker": f"""\
{_HEAD}
docker run --security-opt seccomp={PROFILE} --security-opt systempaths=unconfined --user 1000:1000 IMAGE ...
""",
    "compose": f"""\
# {_HEAD}
services:
  agent:
    user: "1000:1000"
    security_opt:
      - seccomp:{PROFILE}
      - systempaths:unconfined
""",
    "podman": """\
podman run --security-opt unmask=ALL --user 1000:1000 IMAGE ...
""",
    "kubernetes": f"""\
# {_HEAD}, and on each node: /var/lib/kubelet/seccomp/{PROFILE}
spec:
  hostUsers: false
  securityContext:
    runAsUser: 1000
    runAsGroup: 1000
    seccompProfile: {{type: Localhost, localhostProfile: {PROFILE}}}
  containers:
    - name: agent
      securityContext: {{procMount: Unmasked, allowPrivilegeEscalation: false, capabilities: {{drop: [ALL]}}}}
""",
    "github": """\
# A job in a container: the profile cannot be named there, it would have to be on the runner already.
container:
  image: IMAGE
  options: --security-opt seccomp=unconfined --security-opt systempaths=unconfined
""",
    "gitlab": """\
# config.toml of the runner
[runners.docker]
  security_opt = ["seccomp:unconfined", "systempaths:unconfined"]
""",
    "devcontainer": f"""\
// {_HEAD.replace(PROFILE, ".devcontainer/" + PROFILE)}
"runArgs": [
  "--security-opt", "seccomp=${{localWorkspaceFolder}}/.devcontainer/{PROFILE}",
  "--security-opt", "systempaths=unconfined"
],
"remoteUser": "vscode"
""",
}
# Its tag is ``plan.carrier.IMAGE``.
DOCKERFILE: Final = f"""\
# The system that the command sees with --backend docker: add what it needs, and build it again.
#   membrane setup container dockerfile > Dockerfile
#   docker build --tag {IMAGE} - < Dockerfile
FROM python:3.12-slim
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates curl git less procps ripgrep \\
    && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir membrane-sandbox=={VERSION}
"""
TEXTS["dockerfile"] = DOCKERFILE
KINDS: Final = ("seccomp", *TEXTS)


def text(kind: str) -> str:
    """What to print for one of ``KINDS``.

    Raises:
        HostError: the profile is not part of this installation.
    """
    if kind != "seccomp":
        return TEXTS[kind]
    path = os.path.join(os.path.dirname(__file__), "container-seccomp.json")
    try:
        with open(path) as file:
            return file.read()
    except OSError as error:
        raise HostError("print the profile", error.strerror or "", target=path) from None
