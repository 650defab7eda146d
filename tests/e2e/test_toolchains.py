"""Package managers of the user, where the caller has used them before."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from world.box import Box


def wheel(directory: Path, version: str) -> Path:
    """A distribution with one module and one program (PyPA binary distribution format 1.0)."""
    info = f"sample-{version}.dist-info"
    files = {
        "sample.py": f"def main():\n    print({version!r})\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: sample\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\nsample-tool = sample:main\n",
    }
    path = directory / f"sample-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as made:
        for name, text in files.items():
            made.writestr(name, text)
        made.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD")))
    return path


@pytest.mark.needs_tool("pip3")
def test_pip_upgrades_and_removes_inside_what_the_caller_installed(box: Box) -> None:
    """It renames and removes what is the caller's outside; the next run has what this one installed."""
    old, new = wheel(box.workspace, "1.0"), wheel(box.workspace, "2.0")
    install = "pip3 --disable-pip-version-check install -q --user --no-index --break-system-packages"
    tool = "~/.local/bin/sample-tool"
    if box.outside("sh", "-c", f"{install} {old}").returncode:  # a pip that knows no such option
        install = install.replace(" --break-system-packages", "")
        assert box.outside("sh", "-c", f"{install} {old}").returncode == 0
    # pip renames a directory of which it removes everything, and a mount point cannot be renamed (EBUSY).
    (box.home / ".local" / "bin" / "other").write_text("")
    first = box.run("--", "sh", "-c", f"{tool} && {install} --upgrade {new} && {tool}")
    assert (first.returncode, first.stdout) == (0, "1.0\n2.0\n"), first
    assert box.run("--", "sh", "-c", tool).stdout == "2.0\n"
    removal = install.replace("install -q --user --no-index", "uninstall -q -y")
    gone = box.run("--", "sh", "-c", f"{removal} sample; ls {tool}")
    assert gone.returncode == 2 and "No such file" in gone.stderr, gone
    assert box.outside("sh", "-c", tool).stdout == "1.0\n"  # the caller's is as it was


def test_a_toolchain_that_can_have_no_layer_is_told_at_the_start(box: Box) -> None:
    """In the sandbox's home an earlier run made a file where the caller has a directory now."""
    assert box.run("--", "sh", "-c", "echo x > ~/.cargo").returncode == 0
    tool = box.home / ".cargo" / "bin" / "tool"
    tool.parent.mkdir(parents=True)
    tool.write_text("")
    first = box.run("--", "true")
    assert first.returncode == 0
    [line] = first.stderr.splitlines()
    assert f"{tool.parent}: left out: something else is there" in line, line
    assert box.run("--", "true").stderr == ""  # once
    assert box.run("--", "sh", "-c", "rm ~/.cargo").returncode == 0
    control = box.run("--", "ls", str(tool))
    assert (control.returncode, control.stderr) == (0, ""), control


@pytest.mark.parametrize("options", [(), ("--review", "--apply", "all")], ids=["live", "review"])
def test_from_a_directory_that_is_closed_to_all_others(box: Box, options: tuple[str, ...]) -> None:
    """What a root caller owns is closed to the id that mounts the layers; the current directory is where it stands."""
    tool = box.home / ".cargo" / "bin" / "tool"
    tool.parent.mkdir(parents=True)
    tool.write_text("")
    box.workspace.chmod(0o700)
    done = box.run(*options, "--", "sh", "-c", f"touch made {tool} && ls -d {tool}", cwd=box.workspace)
    assert (done.returncode, done.stdout) == (0, f"{tool}\n"), done
    assert (box.workspace / "made").exists()
