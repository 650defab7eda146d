"""A program that uses the library, for mypy --strict alone: every type that a user writes down is the right one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from membrane import (
    PIPE,
    AllowOnce,
    Answer,
    AsyncProcess,
    AsyncSandbox,
    Change,
    Decision,
    Denied,
    Deny,
    Event,
    Poisoned,
    Policy,
    PolicyError,
    Process,
    Question,
    Report,
    Result,
    ReviewedChange,
    Sandbox,
    Stats,
)


def ask(question: Question) -> Answer:
    return AllowOnce if question.kind == "connection" and question.host.endswith(".test") else Deny


async def ask_later(question: Question) -> Answer:
    return ask(question)


def seen(event: Event) -> None:
    print(event.kind, event.data["time"])


def use() -> str:
    policy: Policy = Policy.from_dict({"allow": ["x.test"]}).deny("y.test").hide("*.pem").readonly("frozen/")
    decision: Decision = policy.decide("https://x.test/", "POST")
    with Sandbox(policy, on_ask=ask, on_event=seen) as sandbox:
        result: Result = sandbox.run(["true"], input=b"x", timeout=3, env={"A": "b"})
        refusals: tuple[Denied, ...] = result.denied
        changes: tuple[Change, ...] = result.changes
        with sandbox.popen(["cat"], stdin=PIPE, stdout=PIPE) as process:
            one: Process = process
            assert process.stdout is not None
            data: bytes = process.stdout.read()
        words: list[str] = sandbox.wrap(["true"])
        stats: Stats = sandbox.stats()
        events: Iterator[Event] = sandbox.events()
        try:
            sandbox.update(policy.allow("z.test"))
        except PolicyError as error:
            fix: tuple[str, ...] = error.fix
            print(fix)
    with Sandbox(policy, review="mine") as reviewed:
        reviewed.checkpoint("one")
        fork: Sandbox = reviewed.fork()
        found: tuple[ReviewedChange, ...] = fork.changes()
        try:
            report: Report = reviewed.apply((each.path for each in found), refuse="all")
        except Poisoned as error:
            paths: tuple[tuple[str, str], ...] = error.paths
            print(paths)
        print(report.applied, reviewed.diff().decode())
    print(decision.allowed, refusals, changes, one.pid, data, words, stats.commands, next(events).kind)
    return result.stdout


async def use_asyncio() -> int:
    async with AsyncSandbox(on_ask=ask_later, persistent=True) as sandbox:
        process: AsyncProcess = await sandbox.popen(["cat"], stdin=PIPE)
        stream: AsyncIterator[Event] = sandbox.events()
        async for event in stream:
            print(event.source)
        code: int | None = process.returncode
        return code or (await sandbox.shell("exit 3")).exit_code
