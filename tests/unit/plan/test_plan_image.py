"""What an image says of its use, as the plan takes it."""

from __future__ import annotations

import pytest

from membrane.plan import image
from membrane.plan.model import ImageFacts

FACTS = ImageFacts(
    reference="tool:1",
    digest="sha256:1",
    layers=1,
    trees=(),
    passwd=b"root:x:0:0::/:/bin/sh\napp:x:70:71::/:\n\xff:x:1:1::/:\nbad:x:-1:99999999999:\n:::\n12x:x:3:3::\n",
    group=b"staff:x:50:\nbad:x:x:\n",
)


@pytest.mark.parametrize(
    ("user", "ids"),
    [
        ("", (0, 0)),
        ("root", (0, 0)),
        ("app", (70, 71)),
        ("70", (70, 71)),
        ("app:staff", (70, 50)),
        ("70:9", (70, 9)),
        ("12345", (12345, 0)),
        ("bad", None),
        ("app:bad", None),
        ("app:none", None),
        ("no one", None),
        ("-1", None),
        ("4294967294", (4294967294, 0)),
        ("4294967295", None),
        ("\u0661", None),  # a digit elsewhere
    ],
)
def test_a_user_is_found_in_the_images_own_files(user: str, ids: tuple[int, int] | None) -> None:
    assert image.who(FACTS.replace(user=user)) == ids


@pytest.mark.parametrize(
    ("said", "number"),
    [
        *(("", 15), ("SIGQUIT", 3), ("quit", 3), ("3", 3), ("SIGWINCH", 28), ("SIGRTMIN+3", 37), ("RTMIN", 34)),
        *(
            ("SIGNONE", 0),
            ("0", 0),
            ("-9", 0),
            ("65", 0),
            ("RTMIN+x", 0),
            ("RTMIN+99", 0),
            ("SIG3", 0),
            ("1" * 5000, 0),
        ),
    ],
)
def test_a_signal_is_a_name_or_a_number(said: str, number: int) -> None:
    assert image.stop_signal(FACTS.replace(stop=said)) == number
