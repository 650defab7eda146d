"""What a Dockerfile copies of its directory, and whether that has changed."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "host"))
from image_layout import archive, image, layer

from membrane.errors import HostError
from membrane.run import imagebuild, imagecontext, images, imagestore
from membrane.run.imagecontext import content, copied, stamp
from membrane.ui.images import DOCKERFILE

WHOLE = None


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('FROM a\nRUN echo COPY x y\nENV COPY=1\nCMD ["COPY", "x"]\n', []),
        ("COPY a b /to\n", ["a", "b"]),
        ("copy ./a//b/ /to\n  Add /c ../../d /to\n", ["a/b", "c", "d"]),
        ('COPY ["a  b", "c", "/to"]', ["a  b", "c"]),
        ("COPY package*.json lock? /to", ["package*.json", "lock?"]),
        ("COPY src/*/x.py src/?.py /to", ["src", "src/?.py"]),
        ("COPY --chown=1:1 --chmod=755 --link a /to", ["a"]),
        ("COPY --from=build a /to\nCOPY --chown=1 --from=0 b /to", []),
        ("ADD https://a.example/x git@b.example:y z /to", ["https:/a.example/x", "git@b.example:y", "z"]),
        ("ADD own://x /to", ["own:/x"]),  # no address to docker
        ("CO\\\nPY \\\n# about it\n\n  a \\\n /to", ["a"]),
        ("COPY a /to\r\nCOPY b /to\r\n", ["a", "b"]),
        ("# syntax=docker/dockerfile:1\nCOPY a /to", ["a"]),
        ("ONBUILD COPY a /to", []),
        ("RUN --mount=type=cache,target=/x --mount=id=k,type=secret make", []),
        ("RUN --mount=type=cache,target=/x --mount=target=/y make", WHOLE),
        ("RUN --mount=type=bind,target=/y make", WHOLE),
        ("COPY . /to", WHOLE),
        ("COPY a/.. /to", WHOLE),
        ("COPY */x /to", WHOLE),
        ("COPY a[bc] /to", WHOLE),
        ("COPY $A /to", WHOLE),
        ("COPY a\\ b /to", WHOLE),
        ("COPY 'a' /to", WHOLE),
        ('COPY ["a", 1]', WHOLE),
        ('COPY ["a", ', WHOLE),
        pytest.param("COPY " + "[" * 100_000, WHOLE, id="deep"),
        ("COPY a", WHOLE),
        ("COPY", WHOLE),
        ("COPY --parents a /to", WHOLE),
        ("COPY --exclude=x a /to", WHOLE),
        ("RUN <<E\nCOPY x y\nE\n", WHOLE),
        ("# escape=`\nRUN x `\nCOPY a b", WHOLE),
        ("# syntax=example.com/other\nFROM a", WHOLE),
        ("# syntax=example.com/docker/dockerfile\nFROM a", WHOLE),
        ("# syntax = docker.io/docker/dockerfile:1@sha256:0\nCOPY a /to", ["a"]),
        ("\ufeff# escape=`\nFROM x\nCOPY a `\n b /to", WHOLE),
        ("RUN echo \\\\\nCOPY a /to", WHOLE),  # no continuation elsewhere
        ("COPY a\u00a0b /to", WHOLE),
        ("RUN x\x0cCOPY a /to", WHOLE),
    ],
)
def test_names_that_are_copied_are_known_or_all_count(text: str, names: list[str] | None) -> None:
    assert copied(text) == names


def test_the_recipe_that_is_written_takes_nothing_of_its_directory() -> None:
    assert copied(DOCKERFILE) == []
    assert copied(DOCKERFILE.replace("#COPY", "COPY").replace("#RUN", "RUN")) == ["requirements.txt"]


@pytest.fixture
def context(tmp_path: Path) -> Path:
    place = tmp_path / "context"
    (place / "src" / "deep").mkdir(parents=True)
    for name in ("a", "b.txt", "c.txt", "src/x", "src/deep/y", "src/deep/z.log"):
        (place / name).write_text(name)
    (place / "link").symlink_to("src")
    write(place, "FROM scratch\nCOPY a *.txt src /to/\n")
    return place


def write(place: Path, text: str) -> str:
    (place / "Dockerfile").write_text(text)
    return f"{place}/Dockerfile"


def same(context: Path, change: Callable[[], object]) -> tuple[bool, bool]:
    """Whether the stamp and the content are what they were, after a change."""
    path = f"{context}/Dockerfile"
    before = stamp(path), content(path)
    assert before == (stamp(path), content(path)) and before[1]  # the control
    change()
    return before[0] == stamp(path), before[1] == content(path)


def replaced(path: Path) -> None:
    """The same name, bytes and mode in another file."""
    shutil.copyfile(path, f"{path}.new")
    os.rename(f"{path}.new", path)


@pytest.mark.parametrize(
    ("change", "stamped", "unchanged"),
    [
        (lambda c: (c / "a").write_text("A"), False, False),
        (lambda c: (c / "d.txt").write_text(""), False, False),
        (lambda c: (c / "c.txt").unlink(), False, False),
        (lambda c: (c / "src/deep/y").write_text("Y" * 9), False, False),
        (lambda c: (c / "src/deep/y").chmod(0o700), False, False),
        (lambda c: (c / "src/new").mkdir(), False, False),
        (lambda c: (c / "src/l").symlink_to("x"), False, False),
        (lambda c: write(c, "FROM scratch\nCOPY a *.txt src /other/\n"), False, False),
        (lambda c: replaced(c / "src/deep/y"), False, True),
        (lambda c: (c / "beside").write_text("x"), True, True),
        (lambda c: write(c, (c / "Dockerfile").read_text()), True, True),
    ],
)
def test_what_is_copied_counts_and_nothing_else(
    context: Path, change: Callable[[Path], object], stamped: bool, unchanged: bool
) -> None:
    assert same(context, lambda: change(context)) == (stamped, unchanged)


def test_what_is_left_out_in_plain_words_does_not_count(context: Path) -> None:
    write(context, "COPY . /to\n")
    (context / ".dockerignore").write_text("# comment\n\nsrc/x\n/c.txt/\n**/y\n*.log\n")
    for name in ("src/x", "c.txt", "src/deep/y"):
        assert same(context, lambda name=name: (context / name).write_text("changed")) == (True, True), name  # type: ignore[misc]
    for name in ("b.txt", "src/deep/z.log"):  # the second by a pattern: a build too many
        assert same(context, lambda name=name: (context / name).write_text("changed")) == (False, False), name  # type: ignore[misc]
    assert same(context, lambda: (context / ".dockerignore").write_text("src\n!src/x\n")) == (False, False)
    assert same(context, lambda: (context / "src/x").write_text("taken back")) == (False, False)
    (context / ".dockerignore").write_text("src/x\n")
    for name in (".containerignore", "Dockerfile.dockerignore", "Dockerfile.containerignore"):
        (context / name).write_text("nothing\n")
        assert same(context, lambda: (context / "src/x").write_text("once more")) == (False, False), name
        (context / name).unlink()  # an engine that reads this list does not leave it out
        (context / "src/x").write_text("before")
    assert same(context, lambda: (context / "src/x").write_text("left out")) == (True, True)


@pytest.mark.parametrize("text", ["COPY link /to", "COPY link/x /to", "COPY link/* /to"])
def test_a_link_on_the_way_makes_the_whole_directory_count(context: Path, text: str) -> None:
    write(context, text)
    assert same(context, lambda: (context / "src/x").write_text("changed")) == (False, False)
    assert same(context, lambda: (context / "unrelated").write_text("x")) == (False, False)


def test_what_commands_make_there_is_not_followed_and_bounded(
    context: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x").write_text("x")
    (context / "src" / "out").symlink_to(outside)
    os.mkfifo(context / "src" / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{context}/src/socket")
    path = write(context, "COPY . /to")
    assert same(context, lambda: (outside / "x").write_text("changed")) == (True, True)
    good = content(path)
    with monkeypatch.context() as patch:
        patch.setattr(imagecontext, "MOST_NAMES", 5)
        assert content(path) == "" and stamp(path) != stamp(path)
    with monkeypatch.context() as patch:
        patch.setattr(imagecontext, "MOST_BYTES", 5)
        assert content(path) == "" and stamp(path) == stamp(path)
    with monkeypatch.context() as patch:
        patch.setattr(imagecontext, "MOST_DEPTH", 1)
        assert content(path) == ""
    assert content(path) == good
    write(context, "COPY *q /to\n" * 5)  # each is looked for among all names
    assert content(path)
    with monkeypatch.context() as patch:
        patch.setattr(imagecontext, "MOST_NAMES", 20)
        assert content(path) == ""
    (context / "Dockerfile").write_bytes(b"COPY \xff /to\n")
    assert content(path) == ""
    write(context, "COPY . /to")
    os.rename(path, f"{path}.real")
    os.symlink("Dockerfile.real", path)
    assert content(path) == "" and stamp(path) != stamp(path)
    assert content(f"{context}/absent") == ""


def test_it_is_built_again_when_what_it_copies_has_changed(
    context: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a stand-in for the engine, whose image holds what is copied."""
    state, path = str(tmp_path / "state"), f"{context}/Dockerfile"
    reference = f"dockerfile:{path}"
    built: list[str] = []

    meanwhile = [""]

    def build(_path: str, _platform: str, made: str, *_more: object) -> bool:
        before = (context / "a").read_text()
        if meanwhile[0]:
            (context / "a").write_text(meanwhile[0])
        built.append((context / "a").read_text())
        if meanwhile[0]:
            (context / "a").write_text(before)
        archive(image(tmp_path / f"image{len(built)}", layer(("a", built[-1].encode()))), Path(made))
        return False

    monkeypatch.setattr(imagebuild, "build", build)
    lines: list[str] = []

    def held() -> tuple[str, int]:
        """What a run sees of the file, and how often something was built."""
        use = images.need(state, reference, lambda: imagestore.pull(state, reference, lines.append, again=False))
        kept = images.record_of(images.place_of(state), use.digest)
        use.end()
        assert kept is not None
        return (Path(state) / "images/layers" / kept.layers[0] / "a").read_text(), len(built)

    assert held() == ("a", 1) and held() == ("a", 1)
    (context / "a").write_text("new")
    assert held() == ("new", 2)
    (context / "beside").write_text("x")
    replaced(context / "a")
    assert images.find(state, reference) is None
    assert held() == ("new", 2) and images.find(state, reference) is not None  # and its files are not read again
    assert imagestore.pull(state, reference).digest and len(built) == 3  # asked for
    assert not any("every start" in line for line in lines)
    # A command changes what is copied while it is built, and back: the image is not taken for one of what is there.
    meanwhile[0] = "evil"
    assert imagestore.pull(state, reference).digest and built[3:] == ["evil"]
    meanwhile[0] = ""
    assert held() == ("new", 5) and held() == ("new", 5)
    del built[3:]
    monkeypatch.setattr(imagecontext, "MOST_NAMES", 2)
    assert held() == ("new", 4) and held() == ("new", 5)
    assert "every start" in lines[-2], lines
    monkeypatch.setattr(imagebuild, "build", lambda *_words: (_ for _ in ()).throw(HostError("build", "no")))
    with pytest.raises(HostError):  # what cannot be judged is not taken for what it was
        held()


OWN = ["FROM base", "COPY  a /to", "RUN --mount=type=cache,target=/x make", "RUN echo COPY x"]


@pytest.mark.parametrize(
    ("line", "by_trigger"),
    [
        ("STEP 2/4: COPY . /app", True),
        ("[1/2] STEP 2/4: ADD x /app", True),
        ("no end of line beforeSTEP 2/4: COPY . /app", True),
        ("STEP 2/4: RUN --mount=type=bind,target=/y make", True),
        ("# Executing 2 build triggers", True),
        ("# Executing 1 build trigger", True),
        ("#7 [2/3] COPY . /app", True),
        ("#7 [build 2/3] copy . /app", True),
        ("STEP 2/4: COPY a /to", False),
        ("#7 [2/3] COPY a /to", False),
        ("STEP 3/4: RUN --mount=type=cache,target=/x make", False),
        ("STEP 4/4: RUN echo COPY x", False),
        ("STEP 2/4: RUN other", False),
        ("STEP 1/4: FROM base", False),
        ("COPY . /app", False),
    ],
)
def test_an_engine_says_that_it_takes_files_for_an_image_in_from(line: str, by_trigger: bool) -> None:
    assert imagebuild.triggered(line, OWN) == by_trigger
    assert not imagebuild.triggered(line, None)  # all counts anyway


def test_all_of_the_directory_counts_where_an_image_in_from_took_files(
    context: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a stand-in for the engine; the base loses its triggers at the end, and what lies beside counts no more."""
    state, reference = str(tmp_path / "state"), f"dockerfile:{context}/Dockerfile"
    took, built = [True], list[str]()

    def build(_path: str, _platform: str, made: str, *_more: object) -> bool:
        beside = context / "beside"
        built.append(beside.read_text() if beside.exists() else "")
        archive(image(tmp_path / f"image{len(built)}", layer(("a", built[-1].encode()))), Path(made))
        return took[0]

    monkeypatch.setattr(imagebuild, "build", build)

    def held() -> tuple[str, int]:
        images.need(state, reference, lambda: imagestore.pull(state, reference, again=False)).end()
        return built[-1], len(built)

    # Only after the first build is it known; the second one begins with a look at all, the engine has it in its cache.
    assert [held() for _ in range(3)] == [("", 1), ("", 2), ("", 2)]
    (context / "beside").write_text("x")
    assert [held() for _ in range(2)] == [("x", 3), ("x", 3)]
    replaced(context / "beside")
    assert images.find(state, reference) is None and held() == ("x", 3)
    took[0] = False
    write(context, "FROM other\nCOPY a /to\n")
    assert [held() for _ in range(3)] == [("x", 4), ("x", 5), ("x", 5)]
    (context / "beside").write_text("y")
    assert held() == ("x", 5)
