"""``membrane image``: the images of ``--image`` that are in our state."""

from __future__ import annotations

import os

from ..errors import HostError, PolicyError
from ..escaping import escape
from ..policy import grammar
from ..policy.model import IMAGE_PATHS, Malformed
from ..run import imagestore
from . import show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .options import Invocation


def main(invocation: Invocation, state: str, say: Callable[[str], None]) -> int:
    """Run ``ls``, ``pull``, ``rm``, ``prune`` or ``init``.

    Raises:
        PolicyError: what was typed names no image.
        HostError: the image cannot be had, or is not here.
    """
    action, *rest = invocation.words
    if action == "ls":
        return _list(invocation, state)
    if action == "prune":
        count = imagestore.prune(state, say)
        print(f"removed {count} image{'' if count == 1 else 's'}")
        return 0
    if action == "init":
        return _init(rest[0])
    reference = _reference(rest[0])
    if action == "rm":
        imagestore.remove(state, reference, say)
        return 0
    try:
        platform = grammar.parse_platform(text) if (text := invocation.last("platform")) else ""
    except Malformed as error:
        raise PolicyError("choose a platform", str(error), target=text) from None
    kept = imagestore.pull(state, reference, say, platform=platform)
    print(f"{escape(reference)} {kept.digest}, {len(kept.layers)} layers")
    return 0


def _reference(text: str) -> str:
    """What was typed, as a policy would have it: paths absolute."""
    try:
        kind, rest = grammar.parse_image(text)
        if kind in IMAGE_PATHS:
            rest = grammar.expand_home(rest, os.environ.get("HOME", ""))
    except Malformed as error:
        raise PolicyError("name an image", str(error), target=text) from None
    return f"{kind}:{os.path.join(os.getcwd(), rest)}" if kind in IMAGE_PATHS else text


DOCKERFILE = """\
# An image for work on a project: membrane --image dockerfile:FILE -- COMMAND builds it once, in a sandbox, and runs
# COMMAND in it; after a change of this file, or of what it copies, it is built again.  What it fetches is behind your
# rules: presets of registries and package archives are on by default.
FROM docker.io/library/debian:12-slim

RUN apt-get update && apt-get install --yes --no-install-recommends \\
        bash build-essential ca-certificates curl fd-find file git jq less make openssh-client patch procps \\
        python3 python3-pip python3-venv ripgrep tree unzip xz-utils \\
    && rm -rf /var/lib/apt/lists/*

# Node.js, for agents and tools of npm.
#RUN apt-get update && apt-get install --yes --no-install-recommends nodejs npm && rm -rf /var/lib/apt/lists/*
#RUN npm install --global @anthropic-ai/claude-code

# What your project needs.
#COPY requirements.txt /tmp/
#RUN pip install --break-system-packages --requirement /tmp/requirements.txt

ENV LANG=C.UTF-8
CMD ["bash"]
"""


def _init(path: str) -> int:
    """Write a Dockerfile that is to be edited; one that is there stays."""
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(DOCKERFILE)
    except OSError as error:
        raise HostError("write a Dockerfile", error.strerror or "", target=path) from None
    print(f"{escape(path)} is written; edit it, then: membrane --image dockerfile:{escape(path)}")
    return 0


def _list(invocation: Invocation, state: str) -> int:
    found = imagestore.images(state)
    if invocation.has("json"):
        rows = [
            {"name": kept.reference, "digest": kept.digest, "layers": len(kept.layers), "platform": kept.said.platform}
            for kept in found
        ]
        print(show.as_json({"images": rows}))
        return 0
    if not found:
        print("there is no image; membrane --image REF -- COMMAND fetches one")
        return 0
    table = [("NAME", "PLATFORM", "IMAGE", "LAYERS", "SIZE")]
    for kept in found:
        size = f"{imagestore.size(state, kept) / 1_000_000:.1f} MB"
        table.append(
            (
                escape(kept.reference) or "(none)",
                escape(kept.said.platform),
                kept.digest[7:19],
                str(len(kept.layers)),
                size,
            )
        )
    for line in show.table(table, ""):
        print(line)
    return 0
