"""Claude Agent SDK: every Bash command of the agent runs in one sandbox.

    python examples/claude_agent.py "run the tests and mend what fails"

A PreToolUse hook replaces each command by one that enters the sandbox (``wrap``).  The agent itself runs outside: it
needs its API and its own files.  So it is offered no other tool, and the hook refuses them: they would act outside.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
from typing import Any

from claude_agent_sdk import ClaudeAgentOptions, HookMatcher, ResultMessage, query

from membrane import AsyncSandbox, Event, Policy


def decision(word: str, **more: Any) -> dict[str, Any]:
    return {"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": word, **more}}


def show_refusal(event: Event) -> None:
    if event.kind == "AccessDenied":
        print(f"refused: {event.data['reason']}; {event.data.get('hint') or ''}", file=sys.stderr)


async def main(prompt: str) -> None:
    policy = Policy().allow("pypi.org", "files.pythonhosted.org")
    async with AsyncSandbox(policy, on_event=show_refusal) as sandbox:

        async def enter(call: Any, _tool_use: str | None, _context: Any) -> Any:
            if call["tool_name"] != "Bash":
                return decision("deny", permissionDecisionReason="only Bash runs in the sandbox")
            given = call["tool_input"]
            argv = await sandbox.wrap(["/bin/bash", "-c", given["command"]], cwd=sandbox.workspace)
            return decision("allow", updatedInput={**given, "command": shlex.join(argv)})

        options = ClaudeAgentOptions(
            tools=["Bash"],
            hooks={"PreToolUse": [HookMatcher(hooks=[enter])]},
            setting_sources=[],  # no hooks or permissions from files in the project
            cwd=sandbox.workspace,
        )
        async for message in query(prompt=prompt, options=options):
            if isinstance(message, ResultMessage):
                print(message.result)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
