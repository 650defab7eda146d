"""A process of a test, which ends with it: where an assertion fails beside a command that runs for ever, else the test
would wait for that command and not fail."""

from __future__ import annotations

import subprocess
from types import TracebackType
from typing import Any


class Started(subprocess.Popen[Any]):
    """As a context: killed when the block ends with an exception."""

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            self.kill()
        super().__exit__(kind, value, traceback)
