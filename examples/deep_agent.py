"""LangChain deepagents: a sandbox backend, for its shell tool and its file tools alike.

    python examples/deep_agent.py "write a report of this directory to report.md"

``BaseSandbox`` reads, lists and searches by commands in the sandbox; so a path that is hidden from commands is hidden
from the file tools as well.
"""

from __future__ import annotations

import sys

from deepagents import create_deep_agent
from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse
from deepagents.backends.sandbox import BaseSandbox
from langchain_anthropic import ChatAnthropic

from membrane import Policy, Sandbox

SECONDS = 120
STORE = 'mkdir -p "$(dirname -- "$1")" && cat > "$1"'


class MembraneBackend(BaseSandbox):
    """Commands and files of an open sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox

    @property
    def id(self) -> str:
        return self.sandbox.id

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        result = self.sandbox.shell(command, timeout=timeout or SECONDS)
        refused = "".join(f"refused by the sandbox: {each.target}: {each.reason}\n" for each in result.denied)
        return ExecuteResponse(result.stdout + result.stderr + refused, result.exit_code, result.truncated)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        answers = []
        for path, content in files:
            result = self.sandbox.run(["/bin/sh", "-c", STORE, "sh", path], input=content, timeout=SECONDS)
            answers.append(FileUploadResponse(path, result.stderr.strip() or None))
        return answers

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        answers = []
        for path in paths:
            result = self.sandbox.run(["cat", "--", path], timeout=SECONDS)
            content = result.stdout_bytes if result.exit_code == 0 else None
            answers.append(FileDownloadResponse(path, content, None if content is not None else "file_not_found"))
        return answers


def main(prompt: str) -> None:
    with Sandbox(Policy().allow("pypi.org", "files.pythonhosted.org")) as sandbox:
        instructions = f"You work in {sandbox.workspace}."
        model = ChatAnthropic(model_name="claude-sonnet-4-5")
        agent = create_deep_agent(model, system_prompt=instructions, backend=MembraneBackend(sandbox))
        answer = agent.invoke({"messages": [{"role": "user", "content": prompt}]})
        print(answer["messages"][-1].text)


if __name__ == "__main__":
    main(sys.argv[1])
