"""``membrane mcp``: servers of the Model Context Protocol behind the boundary, and a small server of our own.

Theory of operation
-------------------
``wrap`` rewrites the file that lists a client's servers (``.mcp.json``: ``mcpServers``, or ``servers``): each command
``C A...`` becomes ``membrane --quiet --env NAME... -- C A...``.  Variables that the entry sets are passed on by name.
Nothing else of the file is touched, a server that is wrapped already stays, and the file is replaced as a whole or not
at all.  Servers behind a URL run elsewhere and are only reported.

``serve`` offers ``run_command``, ``check`` and ``read_trace`` over stdio on the official ``mcp`` SDK.  A command runs
as any other: ``membrane -- COMMAND`` in the directory of the server, under the policy that is in force there.  What a
record holds comes from inside: it is escaped again, and an answer is bounded whatever the record is.
"""

from __future__ import annotations

import json
import os
import sys

from ..errors import HostError, PolicyError
from ..escaping import visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_LONGEST = 4 << 20  # bytes
_SECTIONS = ("mcpServers", "servers")
_LONGEST_OUTPUT = 256 << 10  # bytes of each stream that ``run_command`` returns
_MOST_SECONDS = 3600.0
_MOST_EVENTS = 500  # of one ``read_trace``
_LONGEST_ANSWER = 256 << 10  # characters of JSON of its events
_LONGEST_TEXT = 4096  # characters of one string in them
_DEEPEST = 12
_MOST_PROBLEMS = 20


def wrapped(server: dict[str, Any]) -> dict[str, Any] | None:
    """The entry of one server behind the boundary; ``None`` when it is already, or has no command.

    Raises:
        ValueError: it is not an entry of this format.
    """
    command, arguments, environment = server.get("command"), server.get("args", []), server.get("env", {})
    if command is None:
        return None
    if not isinstance(command, str) or not command:
        raise ValueError("command is not a string")
    if not isinstance(arguments, list) or not all(isinstance(each, str) for each in arguments):
        raise ValueError("args is not an array of strings")
    if not isinstance(environment, dict):
        raise ValueError("env is not an object")
    if os.path.basename(command) == "membrane":
        return None
    options = ["--quiet", *(f"--env={name}" for name in environment)]
    return {**server, "command": "membrane", "args": [*options, "--", command, *arguments]}


def wrap(path: str) -> list[str]:
    """Rewrite the file; what was done, one line for each server.

    Raises:
        HostError: it cannot be read or replaced.
        PolicyError: it is not a list of servers.
    """
    place = os.path.realpath(path)
    try:
        with open(place, "rb") as file:
            data = file.read(_LONGEST + 1)
    except OSError as error:
        raise HostError("read the servers", error.strerror or "", target=path) from None
    try:
        text = data.decode()
        content: Any = json.loads(text) if len(data) <= _LONGEST else None
    except ValueError as error:
        raise PolicyError("read the servers", f"it is not JSON: {error}", where=path) from None
    sections = [name for name in _SECTIONS if isinstance(content, dict) and isinstance(content.get(name), dict)]
    if not sections:
        raise PolicyError("read the servers", f"it has no object {' or '.join(_SECTIONS)}", where=path)
    lines: list[str] = []
    changed = False
    for section in sections:
        for name, server in content[section].items():
            if not isinstance(server, dict):
                raise PolicyError("read the servers", f"{section}.{name} is not an object", where=path)
            try:
                new = wrapped(server)
            except ValueError as error:
                raise PolicyError("read the servers", f"{section}.{name}: {error}", where=path) from None
            if new is not None:
                content[section][name] = new
                changed = True
                lines.append(f"{visible(name)}: now behind the boundary")
            elif "command" in server:
                lines.append(f"{visible(name)}: was behind the boundary already")
            else:
                lines.append(f"{visible(name)}: runs elsewhere, left as it is")
    if changed:
        _replace(place, json.dumps(content, indent=_indent(text), ensure_ascii=False) + "\n")
    return lines


def _indent(text: str) -> int | str:
    """The indentation of the file: that of its first indented line."""
    for line in text.splitlines():
        space = line[: len(line) - len(line.lstrip())]
        if space:
            return "\t" if space[0] == "\t" else len(space)
    return 2


def _replace(place: str, text: str) -> None:
    """Write the whole file beside the old one and put it in its place (rename(2)); owner's mode is kept."""
    made = f"{place}.{os.urandom(4).hex()}"
    try:
        mode = os.stat(place).st_mode & 0o777
        fd = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with open(fd, "wb") as file:
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
                os.fchmod(file.fileno(), mode)
            os.rename(made, place)
        except BaseException:
            os.unlink(made)
            raise
    except OSError as error:
        raise HostError("write the servers", error.strerror or "", target=place) from None


# ---------------------------------------------------------------- our own server


def serve() -> int:
    """Serve over stdio until the client closes.

    Raises:
        HostError: the SDK is not installed.
    """
    try:
        from mcp.server.mcpserver import MCPServer
    except ImportError:
        raise HostError("serve", "the mcp SDK is not installed", fix=("pip install 'membrane-sandbox[mcp]'",)) from None
    server = MCPServer("membrane")

    async def run_command(command: list[str], timeout: float = 60.0) -> dict[str, object]:
        """Run a command behind the boundary: only allowed hosts and files are reached.

        Args:
            command: program and arguments; no shell reads them.
            timeout: seconds after which it is ended, at most 3600.
        """
        return await _run_command(command, timeout)

    def check(target: str, method: str = "") -> dict[str, object]:
        """Ask whether a host, host:port, URL, address or path is allowed, and by which rule.

        Args:
            target: what to ask about.
            method: of a URL (GET if empty); read or write for a path.
        """
        return _check(target, method)

    def read_trace(
        session: str = "@last", kind: str = "", denied: bool = False, host: str = "", path: str = "", skip: int = 0
    ) -> dict[str, object]:
        """Read the record of a run: what it did, where it connected, what was refused.  At most 500 events at once.

        Args:
            session: an id, the beginning of one, @last of this workspace, or @2 for the one before.
            kind: only events of this name, or of names that begin so: file, process, conn, access.
            denied: only what was refused.
            host: only this host; *.example.com for those below.
            path: only paths that this glob matches.
            skip: leave out so many events at the beginning: "next" of the answer before.
        """
        return _read_trace(session, kind, denied, host, path, skip)

    server.add_tool(run_command)
    server.add_tool(check)
    server.add_tool(read_trace)
    server.run("stdio")
    return 0


def _argv(*arguments: str) -> list[str]:
    """This membrane, whatever is in PATH."""
    return [sys.executable, "-P", "-m", "membrane", *arguments]


async def _run_command(command: Sequence[str], timeout: float) -> dict[str, object]:
    import asyncio
    import subprocess

    if not command or not 0 < timeout <= _MOST_SECONDS:
        raise ValueError("a command, and a timeout of more than 0 and at most 3600 seconds, are needed")
    process = await asyncio.create_subprocess_exec(
        *_argv("--", *command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stderr is not None
    reading = asyncio.gather(_head(process.stdout), _head(process.stderr))
    timed_out = False
    try:
        async with asyncio.timeout(timeout):
            (out, out_cut), (err, err_cut) = await asyncio.shield(reading)
            await process.wait()
    except TimeoutError:
        timed_out = True
        process.kill()  # the sandbox dies with it
        (out, out_cut), (err, err_cut) = await reading
        await process.wait()
    except BaseException:
        process.kill()
        await process.wait()
        raise
    status = process.returncode or 0
    return {
        "exit_code": status if status >= 0 else 128 - status,
        "timed_out": timed_out,
        "stdout": out,
        "stderr": err,
        "truncated": out_cut or err_cut,
    }


async def _head(stream: Any) -> tuple[str, bool]:
    """The beginning of a stream, and whether there was more; all of it is read."""
    kept = bytearray()
    total = 0
    while data := await stream.read(65536):
        total += len(data)
        kept += data[: _LONGEST_OUTPUT - len(kept)]
    return kept.decode("utf-8", "replace"), total > _LONGEST_OUTPUT


def _check(target: str, method: str) -> dict[str, object]:
    import subprocess

    argv = _argv("check", "--json", *([f"--method={method}"] if method else []), "--", target)
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        return {"error": done.stderr.strip()[-2000:] or f"check ended with status {done.returncode}"}
    return dict(answer)


def _read_trace(session: str, kind: str, denied: bool, host: str, path: str, skip: int) -> dict[str, object]:
    from ..host.facts import state_dir
    from ..record import joining, query, reader
    from ..run.project import here

    if skip < 0:
        raise ValueError("skip is not negative")
    try:
        entry = reader.find(state_dir(os.environ), session, here())
    except PolicyError as error:
        return {"error": visible(str(error))}
    record = reader.Record(entry.path)
    wanted = query.Filter(kinds=(kind,) if kind else (), denied=denied, host=host, path=path)
    events: list[Any] = []
    size = seen = 0
    more = False
    for event in query.chosen(joining.joined(record.events()), wanted):
        seen += 1
        if seen <= skip:
            continue
        shown = _bounded(event.data, _DEEPEST)
        length = len(json.dumps(shown))
        if length > _LONGEST_ANSWER:  # one event alone: its name and time are left
            shown = {name: shown[name] for name in ("event", "time")} | {"left_out": length}
            length = len(json.dumps(shown))
        if len(events) == _MOST_EVENTS or size + length > _LONGEST_ANSWER:
            more = True
            break
        events.append(shown)
        size += length
    return {
        "session": entry.id,
        "running": entry.running,
        "events": events,
        "next": skip + len(events) if more else None,
        "problems": [visible(problem)[:_LONGEST_TEXT] for problem in record.problems[:_MOST_PROBLEMS]],
    }


def _bounded(value: Any, depth: int) -> Any:
    """A JSON value whose strings are safe to show, long ones cut; below ``depth`` levels nothing is left."""
    if isinstance(value, str):
        text = visible(value[:_LONGEST_TEXT])
        return text if len(value) <= _LONGEST_TEXT else text + "..."
    if not isinstance(value, (dict, list)):
        return value
    if not depth:
        return "..."
    if isinstance(value, list):
        return [_bounded(each, depth - 1) for each in value]
    return {visible(name[:_LONGEST_TEXT]): _bounded(each, depth - 1) for name, each in value.items()}
