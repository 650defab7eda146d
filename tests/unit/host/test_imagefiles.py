"""Images in the OCI image layout: bytes that are others than their digests say are not taken."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import image_layout
import pytest

from membrane.host.imagefiles import read, read_archive
from membrane.host.imagetree import BadImage
from membrane.host.unpack import BadLayer


def put(image: Path, data: bytes) -> dict[str, Any]:
    digits = hashlib.sha256(data).hexdigest()
    (image / "blobs/sha256").mkdir(parents=True, exist_ok=True)
    (image / "blobs/sha256" / digits).write_bytes(data)
    return {"mediaType": "x", "digest": f"sha256:{digits}", "size": len(data)}


def image(tmp_path: Path, diff_id: str = "") -> tuple[Path, dict[str, dict[str, Any]]]:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("file"))
    place = tmp_path / "image"
    layer = put(place, gzip.compress(out.getvalue()))
    ids = [diff_id or f"sha256:{hashlib.sha256(out.getvalue()).hexdigest()}"]
    config = put(place, json.dumps({"rootfs": {"diff_ids": ids}, "config": {"Env": ["PATH=/bin"]}}).encode())
    manifest = put(place, json.dumps({"config": config, "layers": [layer]}).encode())
    (place / "index.json").write_text(json.dumps({"manifests": [manifest]}))
    (tmp_path / "layers").mkdir(parents=True)
    return place, {"layer": layer, "config": config, "manifest": manifest}


def test_an_image_is_read(tmp_path: Path) -> None:
    place, parts = image(tmp_path)
    found = read(str(place), str(tmp_path / "layers"))
    assert (found.digest, found.environ) == (parts["config"]["digest"], ("PATH=/bin",))
    assert [os.listdir(tmp_path / "layers" / layer) for layer in found.layers] == [["file"]]


@pytest.mark.parametrize("part", ["config", "manifest", "layer"])
@pytest.mark.parametrize("how", ["bytes", "link", "fifo", "missing"])
def test_other_bytes_are_refused(tmp_path: Path, part: str, how: str) -> None:
    place, parts = image(tmp_path)
    blob = place / "blobs/sha256" / parts[part]["digest"][7:]
    kept = blob.read_bytes()
    blob.unlink()
    if how == "bytes":
        blob.write_bytes(gzip.compress(b"\0" * 10240) if part == "layer" else kept + b" ")
    elif how == "link":
        (tmp_path / "same").write_bytes(kept)
        blob.symlink_to(tmp_path / "same")
    elif how == "fifo":
        os.mkfifo(blob)
    with pytest.raises((BadImage, BadLayer)):
        read(str(place), str(tmp_path / "layers"))
    assert os.listdir(tmp_path / "layers") == []


def test_a_layer_that_the_configuration_does_not_name_is_refused(tmp_path: Path) -> None:
    place, _parts = image(tmp_path, "sha256:" + "0" * 64)
    with pytest.raises(BadLayer, match="its bytes are"):
        read(str(place), str(tmp_path / "layers"))


@pytest.mark.parametrize(
    "index", ["[]", "{", "{}", '{"manifests": []}', '{"manifests": [{"digest": "../x"}]}', "[" * 99999]
)
def test_what_is_no_image_is_refused(tmp_path: Path, index: str) -> None:
    place, _parts = image(tmp_path)
    (place / "index.json").write_text(index)
    with pytest.raises(BadImage):
        read(str(place), str(tmp_path / "layers"))
    with pytest.raises(BadImage, match="No such file") as caught:
        read(str(tmp_path / "absent"), str(tmp_path / "layers"))
    assert "skopeo copy" in caught.value.fix[0]


def test_an_archive_of_a_root_directory_is_named_as_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "root.tar").write_bytes(image_layout.layer(("bin", None), ("bin/sh", b"x")))
    with pytest.raises(BadImage, match=r"neither index\.json nor manifest\.json") as caught:
        read_archive(str(tmp_path / "root.tar"), str(tmp_path / "layers"))
    assert "docker import FILE NAME" in caught.value.fix[0]


def test_an_archive_keeps_little_of_its_headers(tmp_path: Path) -> None:
    """A header may say how long it is, and a name how long it is: neither is read whole, nor are many kept."""
    good = image_layout.archive(image(tmp_path)[0], tmp_path / "good.tar").read_bytes()
    long = tarfile.TarInfo("././@LongLink")
    long.type, long.size = tarfile.GNUTYPE_LONGNAME, 1 << 40
    name = tarfile.TarInfo("n" * 5000)
    shared = tarfile.TarInfo.create_pax_global_header({"comment": "x" * 100_000})
    for first in (long.tobuf(tarfile.GNU_FORMAT), name.tobuf(tarfile.GNU_FORMAT), shared * 40):
        (tmp_path / "bad.tar").write_bytes(first + good)
        with pytest.raises(BadImage):
            read_archive(str(tmp_path / "bad.tar"), str(tmp_path / "layers"))
        assert os.listdir(tmp_path / "layers") == []
    (tmp_path / "good.tar").write_bytes(shared + good)  # the control
    assert read_archive(str(tmp_path / "good.tar"), str(tmp_path / "layers")).layers


PLATFORMS = ("linux/amd64", "linux/amd64/v3", "linux/arm/v6", "linux/arm/v7", "linux/arm64/v8", "windows/amd64")


@pytest.mark.parametrize(
    ("asked", "chosen"),
    [
        ("linux/amd64", "linux/amd64"),
        ("linux/amd64/v3", "linux/amd64/v3"),
        ("linux/arm", "linux/arm/v7"),  # the best that is there, where no variant was asked for
        ("linux/arm/v6", "linux/arm/v6"),
        ("linux/arm64", "linux/arm64/v8"),
        *(("linux/arm/v5", ""), ("linux/amd64/v2", ""), ("linux/riscv64", "")),
    ],
)
def test_of_an_index_the_platform_is_chosen(tmp_path: Path, asked: str, chosen: str) -> None:
    place, parts = image(tmp_path)
    config, manifest = (
        json.loads((place / "blobs/sha256" / parts[name]["digest"][7:]).read_bytes()) for name in ("config", "manifest")
    )
    entries = []
    for full in PLATFORMS:
        said = dict(zip(("os", "architecture", "variant"), full.split("/"), strict=False))
        made = put(place, json.dumps({**config, **said, "config": {"Env": [f"IS={full}"]}}).encode())
        entries.append({**put(place, json.dumps({**manifest, "config": made}).encode()), "platform": said})
    attested = {**parts["manifest"], "platform": {"os": "unknown", "architecture": "unknown"}}
    (place / "index.json").write_text(json.dumps({"manifests": [*entries, attested]}))
    if not chosen:
        with pytest.raises(BadImage, match=f"0 images for {asked}; it has some for linux/amd64, linux/arm"):
            read(str(place), str(tmp_path / "layers"), asked)
        return
    found = read(str(place), str(tmp_path / "layers"), asked)
    assert (found.environ, found.platform) == ((f"IS={chosen}",), chosen)


def test_a_configuration_for_another_machine_is_refused(tmp_path: Path) -> None:
    """Of an entry that does not say what it is for, as in most layouts, the configuration is asked."""
    for number, (said, fits) in enumerate(
        (
            ({"os": "linux", "architecture": "s390x"}, False),
            ({"os": "windows", "architecture": "amd64"}, False),
            ({"os": "linux", "architecture": "\x1b[2J"}, False),
            ({"os": "linux", "architecture": "amd64", "variant": "v2"}, True),
            ({}, True),
        )
    ):
        place, parts = image(tmp_path / str(number))
        config = json.loads((place / "blobs/sha256" / parts["config"]["digest"][7:]).read_bytes())
        manifest = json.loads((place / "blobs/sha256" / parts["manifest"]["digest"][7:]).read_bytes())
        made = put(place, json.dumps({**config, **said}).encode())
        entry = put(place, json.dumps({**manifest, "config": made}).encode())
        (place / "index.json").write_text(json.dumps({"manifests": [entry]}))
        if fits:
            assert read(str(place), str(tmp_path / str(number) / "layers"), "linux/amd64").layers
            continue
        with pytest.raises(BadImage, match=r"it is made for|document"):
            read(str(place), str(tmp_path / str(number) / "layers"), "linux/amd64")
