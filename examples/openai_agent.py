"""OpenAI Agents SDK: the model's shell is a sandbox.

    python examples/openai_agent.py "which of the scripts here do not parse?"

``ShellTool`` hands over the lines that the model wants to run; several calls may come at once, and do run at once.
What was refused is told to the model with the output, so that it does not try in vain.
"""

from __future__ import annotations

import asyncio
import sys

from agents import Agent, Runner, ShellCallOutcome, ShellCommandOutput, ShellCommandRequest, ShellResult, ShellTool

from membrane import AsyncSandbox, Policy

SECONDS = 120.0  # for one line, unless the model asks for less


def shell_of(sandbox: AsyncSandbox) -> ShellTool:
    async def run(line: str, seconds: float) -> ShellCommandOutput:
        result = await sandbox.shell(line, timeout=seconds)
        refused = "".join(f"refused by the sandbox: {each.target}: {each.reason}\n" for each in result.denied)
        outcome = ShellCallOutcome("timeout" if result.timed_out else "exit", result.exit_code)
        return ShellCommandOutput(result.stdout, result.stderr + refused, outcome, line)

    async def execute(request: ShellCommandRequest) -> ShellResult:
        action = request.data.action
        seconds = min(action.timeout_ms / 1000 if action.timeout_ms else SECONDS, SECONDS)
        outputs = [await run(line, seconds) for line in action.commands]
        return ShellResult(outputs, action.max_output_length)

    return ShellTool(executor=execute)


async def main(prompt: str) -> None:
    policy = Policy().allow("pypi.org", "files.pythonhosted.org")
    async with AsyncSandbox(policy) as sandbox:
        agent = Agent("Shell", instructions="Use the shell.", model="gpt-5.1", tools=[shell_of(sandbox)])
        result = await Runner.run(agent, prompt)
        print(result.final_output)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
