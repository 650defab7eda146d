"""smolagents: the Python that the model writes runs in a sandbox, in one interpreter that keeps its variables.

    python examples/smol_agent.py "how many lines have the files here?"

A line of JSON goes into the interpreter for each piece of code, a line comes out.  What comes out is made by the
model's code: it is read as data, and never unpickled.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from smolagents import CodeAgent, OpenAIModel, Tool
from smolagents.local_python_executor import CodeOutput, InterpreterError, PythonExecutor
from smolagents.tools import get_tools_definition_code

from membrane import PIPE, Policy, Sandbox

INTERPRETER = """
import contextlib, io, json, os, sys, traceback
class Final(BaseException):  # no "except Exception" of the model's code holds it up
    pass
def final_answer(answer):
    raise Final(answer)
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what a child of the code prints does not get between the answers
names = {"__name__": "__main__", "final_answer": final_answer}
for line in sys.stdin:
    logs, error, final = io.StringIO(), None, []
    with contextlib.redirect_stdout(logs):
        try:
            exec(json.loads(line), names)
        except Final as raised:
            final = list(raised.args)
        except BaseException:
            error = traceback.format_exc(limit=-1)
    print(json.dumps([logs.getvalue(), error, final], default=str), file=answers, flush=True)
"""


class SandboxExecutor(PythonExecutor):
    """Runs code in an interpreter in an open sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.process = sandbox.popen(["python3", "-c", INTERPRETER], stdin=PIPE, stdout=PIPE)

    def send_variables(self, variables: dict[str, Any]) -> None:
        self(f"import json; globals().update(json.loads({json.dumps(variables)!r}))")

    def send_tools(self, tools: dict[str, Tool]) -> None:
        self(get_tools_definition_code({name: tool for name, tool in tools.items() if name != "final_answer"}))

    def __call__(self, code_action: str) -> CodeOutput:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(code_action).encode() + b"\n")
        answer = self.process.stdout.readline()
        if not answer:
            raise InterpreterError("the interpreter has ended")
        logs, error, final = json.loads(answer)
        if error is not None:
            raise InterpreterError(f"{logs}\n{error}")
        return CodeOutput(final[0] if final else None, str(logs), bool(final))


def main(prompt: str) -> None:
    with Sandbox(Policy()) as sandbox:
        model = OpenAIModel("gpt-5.1")
        agent = CodeAgent([], model, executor=SandboxExecutor(sandbox), additional_authorized_imports=["*"])
        print("answer:", agent.run(prompt))


if __name__ == "__main__":
    main(sys.argv[1])
