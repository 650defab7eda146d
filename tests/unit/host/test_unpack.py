"""Layers of images that a stranger made: each attack beside what is taken."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import stat
import subprocess
import tarfile
from pathlib import Path

import pytest

from membrane.host import unpack as module
from membrane.host.unpack import BadLayer, keep


def entry(name: str, kind: bytes = tarfile.REGTYPE, to: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, to, mode
    return info


def layer(*entries: tuple[tarfile.TarInfo, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for info, content in entries:
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def kept(tmp_path: Path, plain: bytes, sent: bytes = b"", zstd: str = "") -> Path:
    digest = f"sha256:{hashlib.sha256(plain).hexdigest()}"
    return Path(keep(io.BytesIO(sent or plain), str(tmp_path), digest, zstd))


def refused(tmp_path: Path, plain: bytes, says: str, sent: bytes = b"", zstd: str = "") -> None:
    with pytest.raises(BadLayer, match=says):
        kept(tmp_path, plain, sent, zstd)
    assert os.listdir(tmp_path) == []


DIRECTORY, LINK, HARD = tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE


@pytest.mark.parametrize("packed", [False, True])
def test_what_is_good_is_unpacked_once(tmp_path: Path, packed: bool) -> None:
    plain = layer(
        (entry("./", DIRECTORY, mode=0o755), b""),
        (entry("usr/bin", DIRECTORY, mode=0o755), b""),
        (entry("bin", LINK, "usr/bin"), b""),
        (entry("./bin/tool", mode=0o755), b"x" * 200_000),
        (entry("usr/bin/again", HARD, "bin/tool"), b""),
    )
    place = kept(tmp_path, plain, gzip.compress(plain[:1000]) + gzip.compress(plain[1000:]) if packed else b"")
    assert (place / "usr/bin/tool").read_bytes() == b"x" * 200_000
    assert (place / "usr/bin/tool").stat().st_mode == stat.S_IFREG | 0o755
    assert (place / "usr/bin/again").samefile(place / "usr/bin/tool")
    assert os.readlink(place / "bin") == "usr/bin"
    assert kept(tmp_path, plain, b"not read again") == place
    assert os.listdir(tmp_path) == [place.name]


@pytest.mark.parametrize("name", ["../out", "a/../../out", "/../out", "a/" * 65 + "x", "n" * 256])
def test_a_name_that_cannot_be_meant_is_refused(tmp_path: Path, name: str) -> None:
    refused(tmp_path, layer((entry("good"), b"x"), (entry(name), b"x")), "a name")


@pytest.mark.parametrize("above", ["/", "../../..", "absolute"])
def test_a_link_that_leads_out_is_looked_up_below_the_layer(tmp_path: Path, above: str) -> None:
    outside, layers = tmp_path / "outside", tmp_path / "layers"
    outside.mkdir()
    layers.mkdir()
    to = str(outside) if above == "absolute" else f"{above}{outside}"
    plain = layer((entry("way", LINK, to), b""), (entry("way/file"), b"x"))
    with pytest.raises(BadLayer, match="on the way") as caught:
        kept(layers, plain)
    assert caught.value.exit_code == 125
    assert os.listdir(outside) == []
    assert os.listdir(layers) == []
    inner = kept(
        layers,
        layer(
            (entry(str(outside)[1:], DIRECTORY, mode=0o755), b""),
            (entry("way", LINK, to), b""),
            (entry("way/file"), b"x"),
        ),
    )
    assert (inner / str(outside)[1:] / "file").read_bytes() == b"x"
    assert os.listdir(outside) == []
    # The same way of a stranger's program is real: a plain open follows it.
    (tmp_path / "way").symlink_to(outside)
    (tmp_path / "way/file").write_bytes(b"x")
    assert os.listdir(outside) == ["file"]


def test_a_name_from_the_root_is_one_of_the_layer(tmp_path: Path) -> None:
    """Images of Nix have such names; engines take them so."""
    outside, layers = tmp_path / "outside", tmp_path / "layers"
    outside.write_bytes(b"ours")
    layers.mkdir()
    own = str(outside)
    place = kept(
        layers,
        layer(
            (entry("//nix/store/tool"), b"x"),
            (entry("/nix/again", HARD, "/nix/store/tool"), b""),
            (entry(own), b"theirs"),
            (entry(f"{own}.link", HARD, own), b""),
            (entry("/.wh.gone"), b""),
        ),
    )
    assert (place / "nix/again").samefile(place / "nix/store/tool")
    assert (place / own[1:]).read_bytes() == (place / f"{own[1:]}.link").read_bytes() == b"theirs"
    assert stat.S_ISCHR((place / "gone").lstat().st_mode)
    assert outside.read_bytes() == b"ours" and sorted(os.listdir(tmp_path)) == ["layers", "outside"]


def test_what_aufs_kept_for_itself_is_left_out(tmp_path: Path) -> None:
    names = [".wh..wh.aufs", ".wh..wh.plnk", ".wh..wh.orph/file", "directory/.wh..wh..opq", "file"]
    entries = [(entry(name), b"") for name in names]
    found = tmp_path / "root"
    found.mkdir()
    root = os.open(found, os.O_RDONLY | os.O_DIRECTORY)
    try:
        assert module.unpack(io.BytesIO(layer(*entries)), root)[1] == 3
    finally:
        os.close(root)
    assert sorted(os.listdir(found)) == ["directory", "file"]
    assert os.getxattr(found / "directory", "user.overlay.opaque") == b"y"


def test_the_last_name_is_replaced_and_not_followed(tmp_path: Path) -> None:
    outside, layers = tmp_path / "outside", tmp_path / "layers"
    outside.write_bytes(b"ours")
    layers.mkdir()
    place = kept(layers, layer((entry("file", LINK, str(outside)), b""), (entry("file"), b"theirs")))
    assert outside.read_bytes() == b"ours"
    assert not (place / "file").is_symlink()


@pytest.mark.parametrize(
    "to", ["/etc/passwd", "/../etc/passwd", "../../etc/passwd", "missing", "way/passwd", "directory"]
)
def test_a_hard_link_leads_to_a_file_of_the_layer(tmp_path: Path, to: str) -> None:
    plain = layer(
        (entry("way", LINK, "/etc"), b""), (entry("directory", DIRECTORY, mode=0o755), b""), (entry("h", HARD, to), b"")
    )
    refused(tmp_path, plain, "a hard link|leads out")


def test_whiteouts_hide_what_is_below_and_nothing_of_their_layer(tmp_path: Path) -> None:
    place = kept(
        tmp_path,
        layer(
            (entry("mine"), b"x"),
            (entry(".wh.mine"), b""),
            (entry(".wh.gone"), b""),
            (entry("new/.wh..wh..opq"), b""),
            (entry(".wh.tree"), b""),
            (entry("tree/file"), b"x"),
        ),
    )
    gone = (place / "gone").lstat()
    assert (stat.S_ISCHR(gone.st_mode), gone.st_rdev) == (True, 0)
    assert (place / "mine").read_bytes() == b"x"
    assert os.getxattr(place / "new", "user.overlay.opaque") == b"y"
    assert os.getxattr(place / "tree", "user.overlay.opaque") == b"y"


@pytest.mark.parametrize("name", [".wh.", ".wh...", ".wh.."])
def test_a_whiteout_of_no_name_is_refused(tmp_path: Path, name: str) -> None:
    refused(tmp_path, layer((entry(f"directory/{name}"), b"")), "whiteout")


def test_devices_set_ids_and_attributes_are_not_taken(tmp_path: Path) -> None:
    program = entry("program", mode=0o6755)
    program.pax_headers = {"SCHILY.xattr.user.overlay.redirect": "/etc", "SCHILY.xattr.security.capability": "x"}
    place = kept(
        tmp_path,
        layer(
            (entry("null", tarfile.CHRTYPE), b""),
            (entry("disk", tarfile.BLKTYPE), b""),
            (entry("pipe", tarfile.FIFOTYPE), b""),
            (program, b"x"),
            (entry("shared", DIRECTORY, mode=0o7777), b""),
        ),
    )
    assert sorted(os.listdir(place)) == ["program", "shared"]
    assert (place / "program").stat().st_mode == stat.S_IFREG | 0o755
    assert (place / "shared").stat().st_mode == stat.S_IFDIR | 0o1777
    assert os.listxattr(place / "program") == []
    assert (place / "program").stat().st_uid == os.geteuid()


def test_bytes_of_another_digest_are_not_kept(tmp_path: Path) -> None:
    plain = layer((entry("file"), b"x"))
    refused(tmp_path, plain, "its bytes are", plain + b"\0")
    with pytest.raises(BadLayer, match="its digest"):
        keep(io.BytesIO(plain), str(tmp_path), "sha256:../" + "0" * 61)
    assert kept(tmp_path, plain).is_dir()


def test_work_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = layer((entry("one"), b""), (entry("two"), b"\0" * 5_000_000))
    long = entry("one")
    long.pax_headers = {"comment": "x" * (module.MOST_HEADER + 1)}
    refused(tmp_path, layer((long, b"")), "the headers")
    sparse = bytearray(entry("x", tarfile.GNUTYPE_SPARSE).tobuf(tarfile.GNU_FORMAT))
    sparse[482] = 1  # its map goes on in further blocks (GNU tar, sparse_header.isextended)
    sparse[148:156] = b"%06o\0 " % tarfile.calc_chksums(bytes(sparse))[0]  # type: ignore[attr-defined]
    block = (b"%011o\0" % 1) * 42
    refused(tmp_path, bytes(sparse) + block.ljust(504, b"\0") + b"\0" * 8, "no archive|kind")
    refused(tmp_path, bytes(sparse) + (block + b"\1" + b"\0" * 7) * 3000, "the headers")
    header = entry("x", tarfile.XHDTYPE).tobuf(tarfile.USTAR_FORMAT)
    refused(tmp_path, header * 5000, "cannot|RecursionError|ReadError|no archive")
    some = tarfile.TarInfo.create_pax_global_header({"comment": "x" * (module.MOST_HEADER // 4)})
    refused(tmp_path, b"".join(some.replace(b"comment", b"comm%03d" % n) + plain[:512] for n in range(8)), "global")
    assert kept(tmp_path, some * 2 + plain).is_dir()
    shutil.rmtree(kept(tmp_path, some * 2 + plain))
    packed = gzip.compress(plain)
    refused(tmp_path, plain, "end too early", packed[:-20])
    refused(tmp_path, plain, "ends within a file|no archive", plain[:100_000])
    for bound, value, says in (
        ("MOST_ENTRIES", 1, "entries"),
        ("MOST_BYTES", 1_000_000, "bytes"),
        ("FREE_BYTES", 1000, "times"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, bound, value)
            refused(tmp_path, plain, says, packed)
    assert kept(tmp_path, plain, packed).is_dir()


SKIPPABLE = b"\x50\x2a\x4d\x18\x04\0\0\0size"  # RFC 8878, 3.1.2
PLAIN = layer((entry("one"), b"\0" * 5_000_000), (entry("two"), os.urandom(300_000)))


def zstd() -> str:
    return shutil.which("zstd") or ""


def packed(plain: bytes) -> bytes:
    return subprocess.run(["zstd", "-1"], input=plain, capture_output=True, check=True).stdout


@pytest.mark.needs_tool("zstd")
def test_zstd_is_read_by_the_program_that_is_installed(tmp_path: Path) -> None:
    frames = [packed(PLAIN[:200_000]), SKIPPABLE, packed(PLAIN[200_000:])]
    place = kept(tmp_path, PLAIN, b"".join(frames), zstd())
    assert (place / "one").stat().st_size == 5_000_000
    shutil.rmtree(place)
    assert kept(tmp_path, PLAIN, SKIPPABLE + b"".join(frames), zstd()).is_dir()  # as pzstd begins


def test_without_zstd_it_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(BadLayer, match="zstd is not installed") as caught:
        kept(tmp_path, PLAIN, b"\x28\xb5\x2f\xfd" + PLAIN)
    assert "apt install zstd" in caught.value.fix and os.listdir(tmp_path) == []
    refused(tmp_path, PLAIN, "cannot be started", SKIPPABLE, str(tmp_path / "absent"))


@pytest.mark.needs_tool("zstd")
def test_what_zstd_makes_of_a_layer_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = packed(PLAIN)
    refused(tmp_path, PLAIN, "cannot read it", whole[:-20], zstd())
    refused(tmp_path, PLAIN, "cannot read it", whole[:4] + b"\xff" * 5000, zstd())
    refused(tmp_path, PLAIN, "its bytes are", packed(PLAIN + b"\0"), zstd())
    # A window of 1 GiB is what only --long=30 makes (3.1.1.1.2); the program's own bound refuses it.
    refused(tmp_path, PLAIN, "cannot read it", whole[:4] + b"\x00\xa0" + b"\0" * 5000, zstd())
    for bound, value, says in (("MOST_ENTRIES", 1, "entries"), ("MOST_BYTES", 1_000_000, "bytes")):
        with monkeypatch.context() as patch:
            patch.setattr(module, bound, value)
            refused(tmp_path, PLAIN, says, whole, zstd())
    bomb = layer((entry("zeros"), b"\0" * 40_000_000))
    sent = packed(bomb)
    assert len(sent) < 10_000
    refused(tmp_path, bomb, "times", sent, zstd())
    monkeypatch.setattr(module, "MOST_RATIO", 1_000_000)  # the control
    assert kept(tmp_path, bomb, sent, zstd()).is_dir()


def test_a_program_that_is_silent_or_fails_ends_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, layers = tmp_path / "zstd", tmp_path / "layers"
    layers.mkdir()
    monkeypatch.setattr(module, "_SILENCE", 0.2)
    sent = b"\x28\xb5\x2f\xfd" + b"x" * 1_000_000
    for script, says in (
        ("exec sleep 1000", "neither takes nor gives"),
        ("exec 0<&-; exec sleep 1000", "neither takes nor gives"),
        ("exit 3", "status 3"),
        ("ulimit -f; ulimit -c", "no archive|its bytes|ends"),
    ):
        program.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n")
        program.chmod(0o755)
        refused(layers, PLAIN, says, sent, str(program))
