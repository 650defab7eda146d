"""F: a protected file that was judged benign and is written through a mapping, of which inotify(7) does not tell."""

from __future__ import annotations

import pytest
from escape_box import Box


@pytest.mark.guard_alone
def test_F24_a_configuration_that_is_written_through_a_mapping(box: Box) -> None:
    script = r"""
import mmap
good, evil = (b"[core]\n\t%s\n" % line for line in (b"repositoryformatversion = 0", b"fsmonitor = /tmp/evil-program"))
size = max(len(good), len(evil))
maps = {}
for name in ("benign", "evil", "witness"):
    os.makedirs(name + "/.git/objects"); os.makedirs(name + "/.git/refs")
    with open(name + "/.git/HEAD", "w") as file: file.write("ref: refs/heads/main\n")
    fd = os.open(name + "/.git/config", os.O_RDWR | os.O_CREAT, 0o644)
    os.write(fd, good.ljust(size, b"\n"))
    maps[name] = mmap.mmap(fd, size)
    maps[name][:] = good.ljust(size, b"\n")  # the page is dirty: the next write changes no time stamp either
def gone(name):
    return wait_for(lambda: not os.path.exists(name + "/.git/config"))
os.write(os.open("witness/.git/config", os.O_WRONLY), evil.ljust(size, b"\n"))
say("written", gone("witness"))  # so the others have been judged as well
say("judged", os.path.exists("evil/.git/config"))
maps["evil"][:] = evil.ljust(size, b"\n")
say("mapped", gone("evil"))
say("benign", os.path.exists("benign/.git/config"))
"""
    assert box.attack(script) == {"written": "ok", "judged": True, "mapped": "ok", "benign": True}
    assert box.moved() == {"witness/.git/config", "evil/.git/config"}
