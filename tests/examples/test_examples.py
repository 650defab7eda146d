"""Each program of ``examples/``, as its user runs it, with a stand-in for the model.

Every test has the same two halves: what the example is for has happened, seen from outside; and what the policy does
not allow has not, although the same line does it without the sandbox (``test_the_control``).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from model_server import LAST, ModelServer
from place import EXAMPLES, Place

pytestmark = pytest.mark.needs_kernel("network namespaces")

MADE = "echo hello > made.txt; cat made.txt"


def attempt(place: Place, server: ModelServer) -> str:
    """A line that reads a file which is not in the workspace, and asks a server which no rule names."""
    return f"cat {place.secret}; echo cat=$?; curl -sS -m 5 -o /dev/null {server.url}/; echo curl=$?"


def refused(place: Place, told: str) -> None:
    """The model was told that both failed, and nothing else."""
    assert "cat=1" in told, told
    assert "curl=7" in told, told
    assert Place.SECRET not in told


def made(place: Place) -> None:
    assert (place.workspace / "made.txt").read_text() == "hello\n"


def test_the_control(place: Place, model: Callable[..., ModelServer]) -> None:
    done = place.run("/bin/sh", "-c", attempt(place, model()))
    assert done.stdout == f"{Place.SECRET}cat=0\ncurl=0\n", done


@pytest.mark.needs_package("claude_agent_sdk")
def test_claude_agent_sdk(place: Place, model: Callable[..., ModelServer]) -> None:
    server = model()
    server.script = (
        ("Bash", {"command": MADE, "description": "a step"}),
        ("Bash", {"command": attempt(place, server), "description": "a step"}),
        ("Bash", {"command": "getent hosts example.com; echo getent=$?", "description": "a step"}),
        ("Write", {"file_path": str(place.workspace / "written.txt"), "content": "past the sandbox\n"}),
    )
    done = place.python(
        "claude_agent.py",
        "do it",
        ANTHROPIC_BASE_URL=server.url,
        ANTHROPIC_API_KEY="not-a-key",
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
        DISABLE_AUTOUPDATER="1",
    )
    assert done.returncode == 0, done
    assert LAST in done.stdout, done
    first, second, third, fourth = server.told
    assert "hello" in first
    made(place)
    refused(place, second)
    assert "getent=2" in third
    assert "refused: name not allowed" in done.stderr, done
    assert "written" not in fourth
    assert not (place.workspace / "written.txt").exists()


@pytest.mark.needs_package("agents")
def test_openai_agents_sdk(place: Place, model: Callable[..., ModelServer]) -> None:
    server = model()
    lines = [attempt(place, server), "curl -sS -m 5 http://example.com/"]
    server.script = (("shell_call", {"commands": [MADE]}), ("shell_call", {"commands": lines}))
    done = place.python(
        "openai_agent.py",
        "do it",
        OPENAI_BASE_URL=f"{server.url}/v1",
        OPENAI_API_KEY="not-a-key",
        OPENAI_AGENTS_DISABLE_TRACING="1",
    )
    assert done.returncode == 0, done
    assert done.stdout == f"{LAST}\n", done
    first, second = server.told
    assert "hello" in first
    made(place)
    refused(place, second)
    assert "refused by the sandbox: example.com: name not allowed" in second


@pytest.mark.needs_package("deepagents")
def test_deepagents(place: Place, model: Callable[..., ModelServer]) -> None:
    server = model()
    made_path = place.workspace / "made.txt"
    server.script = (
        ("write_file", {"file_path": str(made_path), "content": "hello\n"}),
        ("edit_file", {"file_path": str(made_path), "old_string": "hello", "new_string": "hello you"}),
        ("execute", {"command": f"{attempt(place, server)}; curl -sS -m 5 http://example.com/"}),
        ("read_file", {"file_path": str(place.secret)}),
        ("read_file", {"file_path": str(made_path)}),
        ("write_file", {"file_path": str(place.secret.with_name("new.txt")), "content": "x"}),
    )
    done = place.python("deep_agent.py", "do it", ANTHROPIC_BASE_URL=server.url, ANTHROPIC_API_KEY="not-a-key")
    assert done.returncode == 0, done
    assert done.stdout == f"{LAST}\n", done
    assert made_path.read_text() == "hello you\n"
    refused(place, server.told[2])
    assert "refused by the sandbox: example.com: name not allowed" in server.told[2]
    assert "not" in server.told[3]
    assert Place.SECRET not in server.told[3]
    assert "hello you" in server.told[4]
    assert not place.secret.with_name("new.txt").exists()


@pytest.mark.needs_package("smolagents")
def test_smolagents(place: Place, model: Callable[..., ModelServer]) -> None:
    server = model()
    steps = (
        'lines = ["hello"]\nopen("made.txt", "w").write(lines[0] + "\\n")\nprint("stored", lines)',
        f"import subprocess\nlines.append(subprocess.getoutput({attempt(place, server)!r}))\nprint(lines[1])",
        'import urllib.request\nurllib.request.urlopen("http://example.com/", timeout=5)',
        'final_answer({"made": open("made.txt").read(), "steps": len(lines)})',
    )
    server.script = tuple(("text", {"text": f"Thought: next\n<code>\n{step}\n</code>"}) for step in steps)
    done = place.python("smol_agent.py", "do it", OPENAI_BASE_URL=f"{server.url}/v1", OPENAI_API_KEY="not-a-key")
    assert done.returncode == 0, done
    assert "answer: {'made': 'hello\\n', 'steps': 2}" in done.stdout, done
    made(place)
    first, second, third = server.told
    assert "stored ['hello']" in first
    refused(place, second)
    assert "URLError" in third


def test_the_pytest_fixture(place: Place) -> None:
    done = place.run(
        *("python", "-m", "pytest", "-v", "-p", "no:cacheprovider", "--basetemp", place.home / "t"),
        *("--rootdir", EXAMPLES / "pytest_fixture", "-c", "/dev/null", EXAMPLES / "pytest_fixture"),
    )
    assert done.returncode == 0, done
    assert "3 passed" in done.stdout
    assert "test_it_works_in_its_directory_and_does_not_call_home PASSED" in done.stdout


JUDGE = """import unittest
from sums import total
class Sums(unittest.TestCase):
    def test_it(self): self.assertEqual(total([1, 2]), 3)
"""
FIX = "echo 'def total(numbers): return sum(numbers)' > sums.py"
ATTEMPTS = (
    "echo 'def total(numbers): return 4' > sums.py",  # wrong
    f"{FIX}; echo more > notes; mkdir .vscode; echo '{{}}' > .vscode/tasks.json",  # right, with more than was asked for
    f"{FIX}; rm -rf __pycache__",  # right
    "echo > tests/test_sums.py",  # it makes the judge say yes
)


def to_be_fixed(place: Place) -> dict[str, str]:
    """A project whose test fails; what there is, by path."""
    (place.workspace / "tests").mkdir()
    (place.workspace / "tests" / "test_sums.py").write_text(JUDGE)
    (place.workspace / "sums.py").write_text("def total(numbers): return 0\n")
    return contents(place)


def contents(place: Place) -> dict[str, str]:
    files = [path for path in place.workspace.rglob("*") if path.is_file()]
    return {str(path.relative_to(place.workspace)): path.read_text() for path in files}


TEST = "/usr/bin/python3 -B -m unittest -q tests.test_sums"


@pytest.mark.needs_kernel("overlayfs in a user namespace")
def test_the_best_of_three(place: Place) -> None:
    before = to_be_fixed(place)
    done = place.python("best_of.py", "tests", TEST, *ATTEMPTS)
    assert done.returncode == 0, done
    assert done.stdout.count("exit 0") == 2 and "it changed tests" in done.stdout, done
    assert done.stdout.endswith("kept: 'sums.py'\n"), done
    assert contents(place) == {**before, "sums.py": "def total(numbers): return sum(numbers)\n"}
    left = [path.name for path in (place.home / ".membrane" / "changes").iterdir()]
    assert not [name for name in left if not name.startswith(".")], "a set is left"  # no name of a set begins so
    assert not list((place.home / ".membrane" / "changes" / ".layers").iterdir())


@pytest.mark.needs_kernel("overlayfs in a user namespace")
def test_what_is_written_while_it_is_judged_does_not_come(place: Place) -> None:
    """The test runs the attempt's code: that could change the judge after it was looked at."""
    before = to_be_fixed(place)
    lines = ("open('tests/test_sums.py', 'a').write('planted')", "open('more', 'w')", "def total(n): return sum(n)", "")
    code = "\\n".join(lines)
    done = place.python("best_of.py", "tests", f"{TEST}; code=$?; cat more && exit $code", f'printf "{code}" > sums.py')
    assert done.returncode == 0 and done.stdout.endswith("exit 0, 1 names changed\nkept: 'sums.py'\n"), done
    assert contents(place) == {**before, "sums.py": "\n".join(lines)}


@pytest.mark.needs_kernel("overlayfs in a user namespace")
def test_where_none_passes_nothing_is_kept(place: Place) -> None:
    before = to_be_fixed(place)
    done = place.python("best_of.py", "tests", TEST, ATTEMPTS[0], ATTEMPTS[3])
    assert done.returncode == 1, done
    assert contents(place) == before


@pytest.mark.needs_kernel("overlayfs in a user namespace")
def test_the_pytest_fixture_of_a_clean_tree(place: Place) -> None:
    (place.workspace / "mine.txt").write_text("mine\n")
    done = place.run(
        *("python", "-m", "pytest", "-v", "-p", "no:cacheprovider", "--basetemp", place.home / "t"),
        *("--rootdir", EXAMPLES / "pytest_clean_tree", "-c", "/dev/null", EXAMPLES / "pytest_clean_tree"),
    )
    assert done.returncode == 0, done
    assert "2 passed" in done.stdout
    assert contents(place) == {"mine.txt": "mine\n"}
    assert [path.name for path in place.workspace.iterdir()] == ["mine.txt"]


@pytest.mark.alone
@pytest.mark.needs_package("ray")
@pytest.mark.needs_kernel("overlayfs in a user namespace")
def test_the_best_of_three_on_ray(place: Place, short_directory: Path) -> None:
    before = to_be_fixed(place)
    environment = {"RAY_TMPDIR": str(short_directory), "RAY_USAGE_STATS_ENABLED": "0"}
    done = place.python("best_of_ray.py", TEST, *ATTEMPTS[:3], **environment)
    assert done.returncode == 0, done
    assert done.stdout == "attempts 3, passing 2\nkept: 'sums.py'\n", done
    assert contents(place) == {**before, "sums.py": "def total(numbers): return sum(numbers)\n"}


@pytest.mark.needs_tool("parallel")
def test_the_gnu_parallel_fleet(place: Place) -> None:
    jobs = 12
    lines = [f"line '{number}' $(id) ; x" for number in range(1, jobs + 1)]
    (place.workspace / "lines").write_text("".join(f"{line}\n" for line in lines))
    job = f"tr a-z A-Z < input > result; ls .. ; cat {place.secret} ../joblog; curl -sS -m 5 http://example.com/"
    script = 'exec "$1" fleet "$2" < lines'
    (place.workspace / "fleet").mkdir()
    done = place.run("/bin/sh", "-c", script, "sh", EXAMPLES / "parallel_fleet.sh", job)
    assert done.returncode == jobs, done  # curl's, of each
    fleet = place.workspace / "fleet"
    results = [(fleet / str(number) / "result").read_text() for number in range(1, jobs + 1)]
    assert results == [f"{line.upper()}\n" for line in lines]
    assert done.stderr.count("Could not resolve host: example.com") == jobs
    assert Place.SECRET not in done.stdout
    joblog = (fleet / "joblog").read_text().splitlines()
    assert [row.split("\t")[6] for row in joblog[1:]] == ["6"] * jobs
    assert sorted(done.stdout.split()) == sorted(str(number) for number in range(1, jobs + 1))


@pytest.mark.alone
@pytest.mark.needs_package("ray")
def test_a_hundred_jobs_on_ray(place: Place, short_directory: Path) -> None:
    done = place.python("ray_fleet.py", "100", RAY_TMPDIR=str(short_directory), RAY_USAGE_STATS_ENABLED="0")
    assert done.returncode == 0, done
    assert done.stdout == "jobs 100, results 100, refused example.com 100\n", done
    results = {path.name: path.read_text() for path in place.workspace.iterdir()}
    assert results == {f"result-{number}": f"{number}\n" for number in range(100)}
