"""The image ``membrane-carrier``, made of this machine's own files: there is no registry to build it from."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import membrane
from membrane.plan.carrier import IMAGE
from world.docker import Engine

TOOLS = (
    *("bash", "sh", "cat", "ls", "env", "id", "grep", "sleep", "touch", "head", "stat", "stty", "rm", "mkdir", "git"),
    *("ps", "readlink", "curl", "tty"),
)
PACKAGES = ("cryptography", "yaml", "_yaml", "dns", "hpack", "idna", "publicsuffixlist", "cffi", "_cffi_backend*")


def build(daemon: Engine) -> None:
    """Import it into a daemon."""
    root = daemon.directory / "carrier"
    for name in (
        "usr/bin",
        "usr/lib64",
        "etc/ssl/certs",
        "tmp",
        "proc",
        "sys",
        "dev",
        "root",
        "home",
        "run",
        "var/tmp",
    ):
        (root / name).mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name.replace('sbin', 'bin')}")
    python = Path(sys.base_prefix)
    standard = Path(sysconfig.get_path("stdlib"))
    binary = (python / "bin" / f"python3.{sys.version_info.minor}").resolve()
    own = root / binary.relative_to("/")
    own.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(binary, own)
    place = root / standard.relative_to("/")
    skipped = shutil.ignore_patterns("__pycache__", "test", "tests", "site-packages", "dist-packages", "idlelib")
    shutil.copytree(standard, place, symlinks=True, ignore=skipped, dirs_exist_ok=True)
    packages = root / "opt"
    packages.mkdir()
    site = Path(sysconfig.get_path("purelib"))
    for pattern in PACKAGES:
        for found in site.glob(pattern):
            (shutil.copytree if found.is_dir() else shutil.copy2)(found, packages / found.name)
    shutil.copytree(Path(membrane.__file__).parent, packages / "membrane", ignore=shutil.ignore_patterns("*.c"))
    sites = place / "site-packages" if "site-packages" in str(site) and python != Path("/usr") else None
    sites = sites or root / "usr/lib/python3/dist-packages"
    sites.mkdir(parents=True, exist_ok=True)
    (sites / "carrier.pth").write_text("/opt\n")
    if not (root / "usr/bin/python3").exists():
        (root / "usr/bin/python3").symlink_to(binary)
    path = "/usr/bin:/bin:/usr/sbin:/sbin:/usr/local/bin"
    for tool in TOOLS:
        found = shutil.which(tool, path=path)
        assert found is not None, tool
        shutil.copy2(Path(found).resolve(), root / "usr/bin" / tool)
    agent = shutil.which("claude")  # mounted by its test, with the libraries of the image
    extra = [Path(agent).resolve()] if agent else []
    _libraries(root, [*extra, own, *(root / "usr/bin").iterdir(), *place.rglob("*.so"), *packages.rglob("*.so")])
    for name in ("passwd", "group", "nsswitch.conf"):
        shutil.copy2(f"/etc/{name}", root / "etc" / name)
    archive = daemon.directory / "carrier.tar"
    subprocess.run(["tar", "-C", root, "-cf", archive, "."], check=True)
    shutil.rmtree(root)
    done = daemon.docker("import", str(archive), IMAGE)
    assert done.returncode == 0, done
    archive.unlink()


def _libraries(root: Path, programs: list[Path]) -> None:
    """Each shared library at the path where the loader found it."""
    done = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False)
    for line in set(done.stdout.splitlines()):
        words = line.split()
        named = [word for word in words if word.startswith("/") and not word.endswith(":")]
        if not named or not line.startswith("\t"):
            continue
        place = root / named[-1].lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.exists():
            shutil.copy2(Path(named[-1]).resolve(), place)
