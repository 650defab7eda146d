"""Who is logged in to an agent outside is logged in inside: no token is seen there, and it is renewed as always."""

from __future__ import annotations

import json
import os
import shlex
import time
from pathlib import Path
from typing import Any

import pytest
from test_claude import AGENT_PATIENCE, CLAUDE, CLAUDE_ENVIRONMENT, options, path_with
from world.box import Box
from world.model_apis import jwt

ACCESS, REFRESH = "sk-ant-oat01-" + "A1b2C3d4" * 12, "sk-ant-ort01-" + "Z9y8X7w6" * 12
FAR = 4102444800000
NO_KEY = {name: value for name, value in CLAUDE_ENVIRONMENT.items() if name != "ANTHROPIC_API_KEY"}


def claude_login(box: Box, expires: int = FAR) -> Path:
    path = box.home / ".claude" / ".credentials.json"
    path.parent.mkdir()
    oauth: dict[str, Any] = {"accessToken": ACCESS, "refreshToken": REFRESH, "expiresAt": expires}
    oauth |= {"scopes": ["user:inference", "user:profile"], "subscriptionType": "max"}
    path.write_text(json.dumps({"claudeAiOauth": oauth}, separators=(",", ":")))
    path.chmod(0o600)
    return path


BACKENDS = pytest.mark.parametrize("backend", ["native", "landlock"])


@BACKENDS
def test_the_copy_has_placeholders_and_is_the_commands(box: Box, backend: str) -> None:
    path = claude_login(box)
    chosen = ("--no-trace", f"--backend={backend}", "--profile=claude")
    before = path.read_text()
    script = "cat ~/.claude/.credentials.json; echo x >> ~/.claude/.credentials.json && echo; echo written; env"
    done = box.run(*chosen, "--", "sh", "-c", script)
    assert done.returncode == 0 and "written" in done.stdout, done
    assert done.stderr == f"membrane: your log-in in {path} is used from now on; the command sees placeholders\n"
    assert box.run(*chosen, "--", "true").stderr == "", "once"
    shown = json.loads(done.stdout.splitlines()[0])["claudeAiOauth"]
    assert shown["subscriptionType"] == "max" and shown["expiresAt"] == FAR
    assert len(shown["accessToken"]) == len(ACCESS) and shown["accessToken"].startswith("sk-ant-oat01-")
    assert ACCESS not in done.stdout and REFRESH not in done.stdout
    assert path.read_text() == before
    assert "x" not in box.run(*chosen, "--", "sh", "-c", "tail -c2 ~/.claude/.credentials.json").stdout
    own = box.state / "agents" / "claude" / ".claude" / ".credentials.json"
    assert own.read_bytes() == b"", "no placeholder is kept either"


def test_a_log_in_of_the_sandbox_stays(box: Box) -> None:
    """And who is not logged in outside gets nothing."""
    assert "cannot open" in box.run("--profile=claude", "--", "sh", "-c", "< ~/.claude/.credentials.json").stderr
    box.run("--profile=claude", "--", "sh", "-c", "echo own > ~/.claude/.credentials.json")
    claude_login(box)
    assert box.run("--profile=claude", "--", "sh", "-c", "cat ~/.claude/.credentials.json").stdout == "own\n"


def test_another_profile_shows_none(box: Box) -> None:
    claude_login(box)
    done = box.run("--profile=codex", "--", "sh", "-c", "cat ~/.claude/.credentials.json")
    assert "No such file" in done.stderr


def claude(box: Box, backend: str = "native") -> Any:
    arguments = [*options(NO_KEY), f"--extra-ca={box.world.ca}", f"--events={box.events_path}", "--", *CLAUDE]
    done = box.run(f"--backend={backend}", *arguments, env=path_with("claude"), timeout=AGENT_PATIENCE)
    assert done.returncode == 0, done
    return done


@pytest.mark.needs_tool("claude")
@BACKENDS
def test_claude_code_is_logged_in(box: Box, backend: str) -> None:
    claude_login(box)
    before = len(box.world.model_calls())
    claude(box, backend)
    calls = box.world.model_calls(api="messages")
    assert calls and {call["authorization"] for call in box.world.model_calls()[before:]} == {f"Bearer {ACCESS}"}
    assert ACCESS not in box.events_path.read_text()


@pytest.mark.needs_tool("claude")
@BACKENDS
def test_claude_code_renews_it(box: Box, backend: str) -> None:
    """The token has ended: the real refresh token goes up, the new ones are written outside and are not seen inside."""
    path = claude_login(box, expires=1000)
    before = len(box.world.model_calls())
    claude(box, backend)
    calls = box.world.model_calls()[before:]
    asked = [call["asked"] for call in calls if call["api"] == "tokens"]
    assert [each["refresh_token"] for each in asked] == [REFRESH]
    kept = json.loads(path.read_text())["claudeAiOauth"]
    assert kept["accessToken"].startswith("sk-ant-oat01-Access9") and kept["refreshToken"].startswith(
        "sk-ant-ort01-Fresh"
    )
    assert kept["expiresAt"] > 1000 and kept["subscriptionType"] == "max"
    assert {call["authorization"] for call in calls if call["api"] == "messages"} == {f"Bearer {kept['accessToken']}"}
    text = box.events_path.read_text()
    assert kept["accessToken"] not in text and kept["refreshToken"] not in text


READ_REFRESH = """python3 -c '
import json, os
print(json.load(open(os.path.expanduser("~/.claude/.credentials.json")))["claudeAiOauth"]["refreshToken"])'"""
READ = """
token=$(python3 -c '
import json, os
print(json.load(open(os.path.expanduser("~/.claude/.credentials.json")))["claudeAiOauth"]["accessToken"])')
curl -sS -o /dev/null https://api.anthropic.com/v1/messages -H "authorization: Bearer $token" -d '{}'
"""
CODEX = (
    *("codex", "exec", "--skip-git-repo-check", "-mgpt-5", "-cmodel_provider=own"),
    '-cmodel_providers.own={name="own",base_url="https://chatgpt.com/backend-api/codex",'
    'wire_api="responses",requires_openai_auth=true}',
    "do it",
)
RENEW = """
curl -sS -w '\\n%{http_code}\\n' https://platform.claude.com/v1/oauth/token -H 'content-type: application/json' -d "$(
python3 -c '
import json, os
login = json.load(open(os.path.expanduser("~/.claude/.credentials.json")))["claudeAiOauth"]
print(json.dumps({"grant_type": "refresh_token", "refresh_token": login["refreshToken"], "client_id": "c"}))')"
"""


def test_new_tokens_are_placeholders_inside(box: Box) -> None:
    path = claude_login(box)
    arguments = ["--profile=claude", f"--extra-ca={box.world.ca}", "--", "sh", "-c", f"{RENEW}{READ}"]
    done = box.run(*arguments)
    answer, status = done.stdout.splitlines()
    kept = json.loads(path.read_text())["claudeAiOauth"]
    assert status == "200" and kept["refreshToken"].startswith("sk-ant-ort01-Fresh7x"), done
    shown = json.loads(answer)
    assert len(shown["access_token"]) == len(kept["accessToken"])
    for value in (ACCESS, REFRESH, kept["accessToken"], kept["refreshToken"], "Fresh7x", "Access9"):
        assert value not in done.stdout + done.stderr
    assert box.world.model_calls(api="messages")[-1]["authorization"] == f"Bearer {ACCESS}", "the old one stays good"


# The person's file must never get somebody else's log-in, and nothing else may carry the token up.
ATTACKS = {
    "another token, and ours beside it": '{"grant_type": "refresh_token", "refresh_token": "THEIRS", "scope": "OURS"}',
    "two of them": '{"grant_type": "refresh_token", "refresh_token": "THEIRS", "refresh_token": "OURS"}',
    "two, one escaped": '{"grant_type": "refresh_token", "refresh\\u005ftoken": "OURS", "refresh_token": "THEIRS"}',
    "another member": '{"grant_type": "refresh_token", "refresh_token": "OURS", "redirect_uri": "https://x.test"}',
    "another grant": '{"grant_type": "authorization_code", "refresh_token": "OURS"}',
    "a list": '[{"grant_type": "refresh_token", "refresh_token": "OURS"}]',
}


@pytest.mark.parametrize("name", ATTACKS)
def test_only_a_plain_renewal_gets_the_token(box: Box, name: str) -> None:
    path = claude_login(box)
    before, calls = path.read_text(), len(box.world.model_calls(api="tokens"))
    theirs = "sk-ant-ort01-" + "T5h6E7i8" * 12
    (box.workspace / "body").write_text(ATTACKS[name].replace("THEIRS", theirs))
    script = f"""
    ours=$({READ_REFRESH})
    sed -i "s/OURS/$ours/" body
    curl -sS https://platform.claude.com/v1/oauth/token -H 'content-type: application/json' -d @body
    """
    done = box.run("--profile=claude", f"--extra-ca={box.world.ca}", "--", "sh", "-c", script)
    assert path.read_text() == before, done
    asked = [call["asked"] for call in box.world.model_calls(api="tokens")[calls:]]
    assert asked and REFRESH not in json.dumps(asked)


def test_the_token_goes_to_its_endpoint_only(box: Box) -> None:
    """Another path, a query, another content type, another host: the placeholder goes up as it is."""
    claude_login(box)
    calls = len(box.world.model_calls())
    wheres = ("platform.claude.com/v1/oauth/token?x=1", "platform.claude.com/v1/other", "api.anthropic.com/v1/messages")
    curls = [RENEW.replace("platform.claude.com/v1/oauth/token", where) for where in wheres]
    curls.append(RENEW.replace("application/json", "text/plain"))
    done = box.run("--profile=claude", f"--extra-ca={box.world.ca}", "--", "sh", "-c", "\n".join(curls))
    assert done.returncode == 0, done
    assert REFRESH not in json.dumps(box.world.model_calls()[calls:])


def codex_login(box: Box, expires: int = FAR // 1000) -> Path:
    path = box.home / ".codex" / "auth.json"
    path.parent.mkdir()
    tokens = {
        "id_token": jwt("id0"),
        "access_token": jwt("access0", expires),
        "refresh_token": "rt.0" + "Old7Tok3" * 12,
    }
    tokens["account_id"] = "account-1"
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    path.write_text(json.dumps({"OPENAI_API_KEY": None, "tokens": tokens, "last_refresh": now}, indent=2))
    path.chmod(0o600)
    return path


@pytest.mark.needs_tool("codex")
def test_codex_is_logged_in(box: Box) -> None:
    path = codex_login(box)
    text, before = path.read_text(), len(box.world.model_calls())
    arguments = [f"--extra-ca={box.world.ca}", f"--events={box.events_path}", "--"]
    done = box.run(*arguments, *CODEX, env=path_with("codex"), timeout=AGENT_PATIENCE)
    assert done.returncode == 0, done
    calls = box.world.model_calls()[before:]
    token = json.loads(text)["tokens"]["access_token"]
    assert {call["authorization"] for call in calls if call["api"] == "responses"} == {f"Bearer {token}"}
    assert not [call for call in calls if call["api"] == "tokens"]
    assert token.rpartition(".")[2] not in box.events_path.read_text()
    assert path.read_text() == text
    shown = box.run("--profile=codex", "--", "sh", "-c", "cat ~/.codex/auth.json").stdout
    inside, outside = json.loads(shown)["tokens"], json.loads(text)["tokens"]
    assert inside["account_id"] == outside["account_id"]
    for name in ("id_token", "access_token"):
        assert inside[name].rpartition(".")[0] == outside[name].rpartition(".")[0], "Codex reads the claims"
        assert inside[name].rpartition(".")[2] != outside[name].rpartition(".")[2]
    assert inside["refresh_token"] != outside["refresh_token"]


@pytest.mark.needs_tool("codex")
@BACKENDS
def test_codex_renews_it(box: Box, backend: str) -> None:
    """It renames a new file over its own; the tokens in that are placeholders, and good for the rest of the run."""
    path = codex_login(box, expires=1000)
    before = len(box.world.model_calls())
    arguments = [f"--backend={backend}", f"--extra-ca={box.world.ca}", f"--events={box.events_path}"]
    arguments += ["--profile=codex", "--"]
    words = " ".join(shlex.quote(word) for word in CODEX)
    script = f"{words} && cat ~/.codex/auth.json"
    done = box.run(*arguments, "sh", "-c", script, env=path_with("codex"), timeout=AGENT_PATIENCE)
    assert done.returncode == 0, done
    calls = box.world.model_calls()[before:]
    asked = [call["asked"] for call in calls if call["api"] == "tokens"]
    assert [each["refresh_token"] for each in asked] == ["rt.0" + "Old7Tok3" * 12]
    kept = json.loads(path.read_text())["tokens"]
    assert kept["refresh_token"].startswith("rt.") and "Fresh7x" in kept["refresh_token"]
    assert kept["account_id"] == "account-1"
    assert {call["authorization"] for call in calls if call["api"] == "responses"} == {f"Bearer {kept['access_token']}"}
    shown = json.loads(done.stdout[done.stdout.index('{\n  "OPENAI') :])["tokens"]
    for name in ("id_token", "access_token"):
        assert shown[name].rpartition(".")[0] == kept[name].rpartition(".")[0], "the new one"
        assert shown[name] != kept[name]
    assert shown["refresh_token"] != kept["refresh_token"]
    text = box.events_path.read_text() + done.stdout + done.stderr
    for value in (kept["access_token"].rpartition(".")[2], kept["refresh_token"], "Old7Tok3"):
        assert value not in text
    own = box.state / "agents" / "codex" / ".codex" / "auth.json"
    assert own.is_symlink() and not own.exists(), "no placeholder is kept"


REPLACE = """
import os, sys
path = os.path.realpath(os.path.expanduser(sys.argv[1]))
open(path + ".new", "w").write("new")
try:
    os.replace(path + ".new", path)
except OSError as error:
    print(error.strerror)
print(open(os.path.expanduser(sys.argv[1])).read()[:3])
"""


def test_the_copy_of_a_log_in_that_is_replaced_is_one_runs_own(box: Box) -> None:
    """The control is the other kind of copy, a mount point."""
    path = codex_login(box)
    text = path.read_text()
    done = box.run("--profile=codex", "--", "python3", "-c", REPLACE, "~/.codex/auth.json")
    assert done.stdout == "new\n", done
    assert path.read_text() == text
    again = box.run("--profile=codex", "--", "sh", "-c", "cat ~/.codex/auth.json; ls -A /run/.membrane-logins")
    assert json.loads(again.stdout[: again.stdout.rindex("}") + 1])["tokens"]["account_id"] == "account-1"
    assert again.stdout.endswith("}.codex-auth.json\n")
    claude_login(box)
    control = box.run("--profile=claude", "--", "python3", "-c", REPLACE, "~/.claude/.credentials.json")
    assert control.stdout.splitlines() == ["Device or resource busy", '{"c'], control
    none = box.run("--profile=claude", "--", "ls", "-A", "/run/.membrane-logins")
    assert none.returncode, none


def test_without_mounts_the_copy_is_in_a_directory_of_the_run_which_one_run_at_a_time_has(
    box: Box,
) -> None:
    path = codex_login(box)
    text = path.read_text()
    chosen = ("--no-trace", "--backend=landlock", "--profile=codex", "--")
    done = box.run(*chosen, "python3", "-c", REPLACE, "~/.codex/auth.json")
    assert (done.stdout, done.stderr.count("the command sees placeholders")) == ("new\n", 1), done
    script = "cat ~/.codex/auth.json; ls -A $(dirname $(readlink ~/.codex/auth.json)); echo own > ~/.codex/own"
    again = box.run(*chosen, "sh", "-c", script)
    assert again.stdout.endswith("}.codex-auth.json\n") and not again.stderr, again
    shown, tokens = json.loads(again.stdout[: again.stdout.rindex("}") + 1])["tokens"], json.loads(text)["tokens"]
    assert shown["account_id"] == "account-1" and path.read_text() == text
    assert not {shown[name] for name in tokens if "token" in name} & set(tokens.values())
    own = box.state / "agents" / "codex" / ".codex"
    assert (own / "own").read_text() == "own\n"
    assert (own / "auth.json").is_symlink() and not (own / "auth.json").exists(), "no placeholder is kept"
    # Natively the link is made anew; and back.
    native = box.run("--no-trace", "--profile=codex", "--", "sh", "-c", "cat ~/.codex/auth.json")
    assert '"account-1"' in native.stdout and os.readlink(own / "auth.json") == "/run/.membrane-logins/.codex-auth.json"
    other = Path(f"/tmp/.membrane-{os.getpid()}-other/logins")
    other.mkdir(parents=True)
    try:
        (own / "auth.json").unlink()
        (own / "auth.json").symlink_to(other / ".codex-auth.json")
        refused = box.run(*chosen, "true")
        assert refused.returncode == 125 and "another run of the agent has it" in refused.stderr, refused
    finally:
        other.rmdir()
        other.parent.rmdir()
    assert '"account-1"' in box.run(*chosen, "sh", "-c", "cat ~/.codex/auth.json").stdout


def test_what_you_told_the_agent_for_all_projects_is_read_only(box: Box) -> None:
    place = box.home / ".claude"
    (place / "commands").mkdir(parents=True)
    (place / "CLAUDE.md").write_text("Use tabs.\n")
    (place / "commands" / "ship.md").write_text("ship it\n")
    (place / "settings.json").write_text('{"hooks": {}}')
    script = (
        """cd ~/.claude; cat CLAUDE.md commands/ship.md; ls; echo x >> CLAUDE.md; rm commands/ship.md; mkdir rules/x"""
    )
    done = box.run("--profile=claude", "--", "sh", "-c", script)
    assert done.stdout.startswith("Use tabs.\nship it\n") and "settings.json" not in done.stdout
    assert done.stderr.count("Read-only file system") >= 2, done
    assert (place / "CLAUDE.md").read_text() == "Use tabs.\n" and (place / "commands" / "ship.md").exists()
    assert "Use tabs." not in box.run("--profile=codex", "--", "sh", "-c", "cat ~/.claude/CLAUDE.md").stdout


def test_a_link_chooses_nothing_that_is_shown(box: Box) -> None:
    """An agent that could write there once, by a rule, would have made it."""
    secret = box.home / "secret"
    secret.mkdir()
    (secret / "file").write_text(json.dumps({"key": "k" * 50, "name": "host-secret"}))
    place = box.home / ".claude"
    place.mkdir()
    (place / ".credentials.json").symlink_to(secret / "file")
    (place / "CLAUDE.md").symlink_to(secret / "file")
    (place / "commands").symlink_to(secret)
    script = "cat ~/.claude/.credentials.json ~/.claude/CLAUDE.md ~/.claude/commands/*; true"
    assert "host-secret" not in box.run("--profile=claude", "--", "sh", "-c", script).stdout
    control = box.outside("sh", "-c", script)
    assert control.stdout.count("host-secret") == 3
