"""``membrane image``: the images of ``--image`` that are in our state."""

from __future__ import annotations

import os

from ..errors import PolicyError
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
    """Run ``ls``, ``pull``, ``rm`` or ``prune``.

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
