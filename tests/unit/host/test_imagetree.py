"""What the layers of an image show together: as overlayfs does, and links lead nowhere but within it."""

from __future__ import annotations

from pathlib import Path

import pytest
from image_layout import image, layer

from membrane.host import imagetree
from membrane.host.imagefiles import read
from membrane.host.imagetree import BadImage, Tree


def tree(tmp_path: Path, *layers: bytes) -> Tree:
    (tmp_path / "layers").mkdir()
    (tmp_path / "empty").mkdir()
    found = read(str(image(tmp_path / "image", *layers)), str(tmp_path / "layers"))
    return Tree([str(tmp_path / "layers" / name) for name in found.layers], str(tmp_path / "empty"))


def test_upper_layers_go_before_lower_ones(tmp_path: Path) -> None:
    low = layer(("a/x", b"low"), ("a/y", b"low"), ("b/x", b"low"), ("c", b"low"), ("d/x", b"low"), ("e", "a"))
    high = layer(
        ("a/x", b"high"), ("b/.wh..wh..opq", b""), ("b/z", b"high"), (".wh.c", b""), ("d", "a"), ("e/new", b"")
    )
    found = tree(tmp_path, low, high)
    assert Path(found.find("/a/x")[2][0]).read_text() == "high"
    assert Path(found.find("/a/y")[2][0]).read_text() == "low"
    assert [found.find(path)[1] for path in ("/b/x", "/b/z", "/c")] == ["", "file", ""]
    assert found.find("/d/y")[:2] == ("/a/y", "file")  # a link in the place of a directory
    assert found.find("/e/new")[1] == "file" and found.find("/e/x")[1] == ""  # a directory in the place of a link


def test_an_opaque_root_hides_all_layers_below(tmp_path: Path) -> None:
    low, high = layer(("a/x", b"low"), ("b", b"low")), layer((".wh..wh..opq", b""), ("a/y", b"high"))
    found = tree(tmp_path, low, high, layer(("c", b"top")))
    assert [found.find(path)[1] for path in ("/a/x", "/b", "/a/y", "/c")] == ["", "", "file", "file"]
    assert [each.path for each in found.trees((), ())] == ["/a", "/c"]


def test_a_directory_of_any_number_of_names_is_not_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = tree(tmp_path, layer(("a/1", b""), ("b", b""), ("c", b"")), layer((".wh.d", b""), (".wh.e", b"")))
    assert len(found.trees((), ())) == 3
    monkeypatch.setattr(imagetree, "MOST_NAMES", 4)
    with pytest.raises(BadImage, match="more than 4 names"):
        found.trees((), ())


def test_links_stay_within_the_image(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("outside")
    found = tree(
        tmp_path,
        layer(
            *(("up", "../../../../../../../../../etc/x"), ("out", str(tmp_path / "outside")), ("etc/x", b"inside")),
            *(("one", "two"), ("two", "one"), ("dir", "/etc/."), ("etc/self", "../dir/./self2"), ("etc/self2", b"")),
        ),
    )
    assert found.find("/up")[:2] == ("/etc/x", "file")
    assert found.find("/out")[1] == "" and (tmp_path / "outside").exists()
    assert found.find("/one")[1] == ""
    assert found.find("/dir/self")[:2] == ("/etc/self2", "file")
    assert found.find("/etc/x/below")[1] == "" and found.find("/..")[0] == "/"


def test_a_name_that_no_directory_has_is_nothing(tmp_path: Path) -> None:
    found = tree(tmp_path, layer(("etc/passwd", "n" * 300), ("long", "d/" * 2000), ("etc/group", b"")))
    assert [found.find(path)[1] for path in ("/etc/passwd", "/long", "/" + "n" * 300, "/x" * 4000)] == [""] * 4
    assert found.find("/etc/group")[1] == "file"


def test_what_has_something_else_below_it_is_taken_apart(tmp_path: Path) -> None:
    found = tree(
        tmp_path,
        layer(
            ("usr/bin/x", b""), ("home/a/f", b""), ("home/me/f", b""), ("srv", "usr"), ("proc/x", b""), ("init", b"")
        ),
    )
    trees = {each.path: each.kind for each in found.trees(("/home/me", "/srv/work", "/proc"), ("/etc",))}
    assert trees == {"/home": "expanded", "/home/a": "directory", "/init": "file", "/usr": "directory"}
    usr = next(each for each in found.trees((), ()) if each.path == "/usr")
    assert usr.sources[-1] == str(tmp_path / "empty")  # overlayfs takes no single layer


@pytest.mark.parametrize("etc", ["/home/me", b"a file"])
def test_a_directory_of_ours_that_is_none_in_the_image_ends_the_run(tmp_path: Path, etc: str | bytes) -> None:
    with pytest.raises(BadImage, match="no directory"):
        tree(tmp_path, layer(("etc", etc))).trees((), ("/etc",))


def test_too_many_trees_are_refused(tmp_path: Path) -> None:
    found = tree(tmp_path, layer(*((f"home/{number}", b"") for number in range(501))))
    with pytest.raises(BadImage, match="more than 500 mounts"):
        found.trees(("/home/me",), ())
    assert len(found.trees((), ())) == 1


def test_too_many_descriptors_are_refused(tmp_path: Path) -> None:
    names = [(f"d{number}/x", b"") for number in range(50)]
    found = tree(tmp_path, *(layer(*names, (f"mark{each}", b"")) for each in range(16)))
    with pytest.raises(BadImage, match="put together"):
        found.trees((), ())
    assert len(tree_of_fewer(tmp_path / "fewer", names)) == 51


def tree_of_fewer(place: Path, names: list[tuple[str, bytes]]) -> list[object]:
    place.mkdir()
    return list(tree(place, layer(*names, ("mark", b""))).trees((), ()))
