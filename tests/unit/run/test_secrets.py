"""Where the values of secrets come from, and what is said when they are not there."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest

from membrane.errors import PolicyError
from membrane.policy.load import Source, load
from membrane.policy.model import Policy
from membrane.run import secrets

VALUE = "sk-ant-REALa1b2c3d4e5f6g7h8i9"


def policy(source: str) -> Policy:
    text = f"secrets: [{{name: API_KEY, from: {source}, to: [a.test]}}]"
    return load([Source("user", "config.yaml", text)], presets={"default": ""}).policy


def value(source: str, **environ: str) -> Any:
    ((name, found, placeholder, header, destinations),) = secrets.gather(policy(source), environ, ())
    assert (name, header, destinations) == ("API_KEY", "authorization", [["https", "a.test", 443, "/"]])
    assert len(placeholder) == len(found) and placeholder != found
    return found.decode()


class NoKeyringError(RuntimeError):
    """As ``keyring.errors.NoKeyringError``."""


@pytest.fixture
def keyring(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The part of the library that is used."""
    library, errors = types.ModuleType("keyring"), types.ModuleType("keyring.errors")
    entries: dict[tuple[str, str], str] = {("api.test/v1", "me"): VALUE}
    library.get_password = lambda service, user: entries.get((service, user))  # type: ignore[attr-defined]
    errors.NoKeyringError = NoKeyringError  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "keyring", library)
    monkeypatch.setitem(sys.modules, "keyring.errors", errors)
    return library


def test_the_variable_of_the_same_name() -> None:
    assert policy("env").secrets[0].source == "env:API_KEY"
    assert value("env", API_KEY=VALUE) == VALUE
    assert value("env:OTHER", OTHER=VALUE) == VALUE
    with pytest.raises(PolicyError, match="variable API_KEY is not set") as failed:
        value("env", OTHER=VALUE)
    assert failed.value.fix == ("export API_KEY=VALUE",)
    assert failed.value.exit_code == 78, "as of every rule that cannot be bound"
    assert "config.yaml:1: cannot read the secret API_KEY" in failed.value.headline()


def test_a_file_and_a_program(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"{VALUE}\n")
    assert value(f"'file:{tmp_path}/key'") == VALUE
    assert value(f"{{command: [cat, '{tmp_path}/key']}}") == VALUE
    with pytest.raises(PolicyError, match="No such file"):
        value(f"'file:{tmp_path}/none'")
    with pytest.raises(PolicyError, match="status 1"):
        value(f"{{command: [cat, '{tmp_path}/none']}}")


def test_a_keyring(keyring: Any) -> None:
    assert value("keyring:api.test/v1/me") == VALUE, "the user is what follows the last slash"
    with pytest.raises(PolicyError, match=r"no password of you for api\.test/v1"):
        value("keyring:api.test/v1/you")


def test_without_the_keyring_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)  # an import of it fails
    with pytest.raises(PolicyError) as caught:
        value("keyring:api.test/me")
    assert caught.value.exit_code == 78
    assert "API_KEY: the keyring library is not installed" in caught.value.cause
    assert caught.value.fix[0] == "pip install 'membrane-sandbox[keyring]'"
    assert "config.yaml:1" in caught.value.where


@pytest.mark.parametrize(
    ("raised", "cause"),
    [(NoKeyringError("none"), "there is no keyring"), (OSError(VALUE), "OSError")],
)
def test_a_keyring_that_fails(keyring: Any, raised: Exception, cause: str) -> None:
    def get_password(service: str, user: str) -> str:
        raise raised

    keyring.get_password = get_password
    with pytest.raises(PolicyError, match=cause) as caught:
        value("keyring:api.test/me")
    assert VALUE not in "".join(caught.value.lines()), "what a backend says may hold the value"
    assert caught.value.exit_code == 78


def test_a_name_is_one_of_a_variable() -> None:
    with pytest.raises(PolicyError, match="not the name of an environment variable"):
        load([Source("user", "f", "secrets: [{name: 'A=B', from: env, to: [a.test]}]")], presets={"default": ""})
