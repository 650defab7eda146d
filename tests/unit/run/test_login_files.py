"""Log-in files: which are shown, and how renewed tokens are written to them."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest

from membrane.errors import HostError
from membrane.gateway.messages import Renewed
from membrane.plan.model import HostFacts
from membrane.plan.mounts import LOGINS
from membrane.policy.model import MaskRule, Origin, Policy
from membrane.run.homes import make_link
from membrane.run.logins import Renewals, shown

HERE = Origin("built-in", "profile a", 1)
CLAUDE = {"claudeAiOauth": {"accessToken": "a-old", "refreshToken": "r-old", "expiresAt": 1, "scopes": ["x"]}, "o": "r"}


def policy(home: Path) -> Policy:
    mask = MaskRule(f"file:{home}/.a/login", ("a.example",), HERE, login=True)
    return Policy(masks=(mask,), profiles=("a",), state_dirs=(".a/",))


def facts(home: Path) -> HostFacts:
    return HostFacts(1, 1, "me", False, str(home), f"{home}/.membrane", "/w", "box", (("HOME", str(home)),))


def test_it_is_shown_where_it_is_and_the_sandbox_has_none(tmp_path: Path) -> None:
    assert shown(policy(tmp_path), facts(tmp_path)) == (policy(tmp_path).replace(masks=()), {})
    (tmp_path / ".a").mkdir()
    (tmp_path / ".a" / "login").write_text("{}")
    assert shown(policy(tmp_path), facts(tmp_path)) == (
        policy(tmp_path), {f"{tmp_path}/.a/login": f"{tmp_path}/.a/login"}
    )  # fmt: skip
    own = tmp_path / ".membrane" / "agents" / "a" / ".a" / "login"
    own.parent.mkdir(parents=True)
    own.write_text("")
    assert shown(policy(tmp_path), facts(tmp_path))[1], "the place of an earlier copy"
    own.write_text("mine")
    assert shown(policy(tmp_path), facts(tmp_path)) == (policy(tmp_path).replace(masks=()), {})
    own.write_text("")
    (tmp_path / ".a" / "login").rename(tmp_path / "out")
    shown(policy(tmp_path), facts(tmp_path))
    assert own.exists(), "to look changes nothing"
    shown(policy(tmp_path), facts(tmp_path), tidy=True)
    assert not own.exists(), "an empty file is an error for some"
    (tmp_path / "out").rename(tmp_path / ".a" / "login")
    own.symlink_to("/etc/passwd")
    assert shown(policy(tmp_path), facts(tmp_path))[1] == {}


def test_a_file_that_is_replaced_is_behind_a_link(tmp_path: Path) -> None:
    """Its place is the run's own; what the agent has put there instead stays, and so does what is not ours."""
    (tmp_path / ".a").mkdir()
    (tmp_path / ".a" / "login").write_text("{}")
    plain = policy(tmp_path)
    replaced = plain.replace(masks=(plain.masks[0].replace(replaced=True),))
    agent = tmp_path / ".membrane" / "agents" / "a"
    own, place = agent / ".a" / "login", f"{LOGINS}/.a-login"
    own.parent.mkdir(parents=True)
    own.write_text("")
    assert shown(replaced, facts(tmp_path))[1] == {f"{tmp_path}/.a/login": place}
    assert not make_link(str(agent), ".a/login", place), "in the place of an empty file"
    assert own.readlink() == Path(place)
    assert not make_link(str(agent), ".a/login", place)
    assert shown(replaced, facts(tmp_path))[1] == {f"{tmp_path}/.a/login": place}
    own.unlink()
    assert make_link(str(agent), ".a/login", place)
    (tmp_path / ".a" / "login").rename(tmp_path / "out")
    shown(replaced, facts(tmp_path), tidy=True)
    assert not own.is_symlink(), "no link that leads nowhere stays"
    (tmp_path / "out").rename(tmp_path / ".a" / "login")
    own.symlink_to("/etc/passwd")
    assert shown(replaced, facts(tmp_path))[1] == {}
    assert not make_link(str(agent), ".a/login", place) and own.readlink() == Path("/etc/passwd")


def test_no_link_is_made_over_a_link_of_the_agents(tmp_path: Path) -> None:
    agent, other = tmp_path / "agent", tmp_path / "other"
    agent.mkdir()
    other.mkdir()
    (agent / ".a").symlink_to(other)
    with pytest.raises(HostError):
        make_link(str(agent), ".a/login", f"{LOGINS}/.a-login")
    assert not list(other.iterdir())
    (agent / ".a").unlink()
    (agent / ".a").mkdir()
    assert make_link(str(agent), ".a/login", f"{LOGINS}/.a-login"), "the control"


def renewed(login: str, *tokens: tuple[str, str, str], lasts: int = 60) -> Renewed:
    members, names, values = zip(*tokens, strict=True)
    return Renewed(login, members, names, values, lasts)


def test_new_tokens_are_written_in_place_and_the_rest_stays(tmp_path: Path) -> None:
    path = tmp_path / "login"
    path.write_text(json.dumps(CLAUDE))
    path.chmod(0o600)
    number, warnings = path.stat().st_ino, list[str]()
    renewals = Renewals({"f#1": (str(path), "r-old")}, warnings.append)
    renewals.take(renewed("f#1", ("access_token", "n1", 'a"\\new'), ("refresh_token", "n2", "r-newer-and-longer")))
    kept = json.loads(path.read_text())
    assert kept["claudeAiOauth"]["accessToken"] == 'a"\\new'
    assert kept["claudeAiOauth"]["refreshToken"] == "r-newer-and-longer"
    assert kept["claudeAiOauth"]["expiresAt"] > 1 and kept["claudeAiOauth"]["scopes"] == ["x"] and kept["o"] == "r"
    assert (path.stat().st_ino, path.stat().st_mode & 0o777) == (number, 0o600)
    renewals.take(renewed("n2", ("access_token", "n3", "a"), ("refresh_token", "n4", "r")))
    assert json.loads(path.read_text())["claudeAiOauth"]["refreshToken"] == "r", "shorter, and by its new name"
    assert not warnings


def test_what_somebody_else_renewed_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "login"
    path.write_text(json.dumps(CLAUDE).replace("r-old", "r-else"))
    before, warnings = path.read_text(), list[str]()
    Renewals({"f#1": (str(path), "r-old")}, warnings.append).take(renewed("f#1", ("access_token", "n", "a-new")))
    assert path.read_text() == before
    assert len(warnings) == 1 and "holds another one" in warnings[0] and "a-new" not in warnings[0]


def test_a_file_that_is_gone_or_a_link_is_said(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text(json.dumps(CLAUDE))
    (tmp_path / "link").symlink_to(target)
    warnings: list[str] = []
    for name in ("link", "gone"):
        Renewals({"f": (str(tmp_path / name), "r-old")}, warnings.append).take(renewed("f", ("access_token", "n", "a")))
    assert len(warnings) == 2 and "a-old" in target.read_text()


def test_an_unknown_login_is_nothing() -> None:
    Renewals({}, lambda text: None).take(renewed("x", ("access_token", "n", "a")))


def test_where_there_is_no_room_for_the_new_tokens_the_old_log_in_stays_whole(tmp_path: Path) -> None:
    path, warnings = tmp_path / "login", list[str]()
    path.write_text(json.dumps(CLAUDE))
    before = path.read_bytes()
    renewals = Renewals({"f#1": (str(path), "r-old")}, warnings.append)
    new = renewed("f#1", ("refresh_token", "f#1", "r" * 1000))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 100, hard))  # pwrite(2) is short there, and the next EFBIG
    try:
        renewals.take(new)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before and "log in again" in warnings[0]
    renewals = Renewals({"f#1": (str(path), "r-old")}, warnings.append)
    renewals.take(new)  # the control: with room they are written
    assert json.loads(path.read_text())["claudeAiOauth"]["refreshToken"] == "r" * 1000 and len(warnings) == 1
