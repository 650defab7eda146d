"""``membrane.Policy``, and the names and signatures of the library."""

from __future__ import annotations

import inspect
import typing
from pathlib import Path

import pytest

import membrane
from membrane import Policy, PolicyError

SURFACE = Path(__file__).parent / "library_surface.txt"


def members(kind: type) -> dict[str, object]:
    """Its attributes, those of a part of the library that it inherits among them."""
    own = [each for each in kind.__mro__[1:] if each.__module__.startswith("membrane.api.")]
    return {part: member for each in (*reversed(own), kind) for part, member in vars(each).items()}


def surface() -> str:
    """Every public name with its signature, one a line."""
    lines = []
    for name in sorted(membrane.__all__):
        value = getattr(membrane, name)
        if not inspect.isclass(value):
            lines.append(f"{name} = {value!r}")
            continue
        lines.append(f"class {name}{inspect.signature(value) if name not in ERRORS else ''}")
        for part, member in sorted(members(value).items()):
            if part.startswith("_") and part not in ("__enter__", "__aenter__"):
                continue
            if isinstance(member, property):
                lines.append(f"    {part}: property")
            elif isinstance(member, classmethod):
                lines.append(f"    {part}{inspect.signature(member.__func__)}")
            elif inspect.isfunction(member):
                lines.append(f"    {part}{inspect.signature(member)}")
    return "\n".join(lines) + "\n"


ERRORS = ("HostError", "InternalError", "MembraneError", "PolicyError")


def test_the_surface_is_as_pinned() -> None:
    """A change here is a change for every user: it belongs in the changelog."""
    assert surface() == SURFACE.read_text()


def test_everything_public_is_annotated() -> None:
    for name in membrane.__all__:
        value = getattr(membrane, name)
        if not inspect.isclass(value) or name in ERRORS:
            continue
        for part, member in members(value).items():
            function = member.__func__ if isinstance(member, classmethod) else member
            if part.startswith("_") or not inspect.isfunction(function):
                continue
            parameters = [each for each in inspect.signature(function).parameters if each not in ("self", "cls")]
            assert set(parameters) <= set(function.__annotations__), f"{name}.{part}"
            assert "return" in function.__annotations__, f"{name}.{part}"
            assert function.__doc__, f"{name}.{part} is not described"
    assert (Path(membrane.__file__).parent / "py.typed").exists()


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        membrane.Nonsense  # noqa: B018
    assert set(membrane.__all__) <= set(dir(membrane))


def test_nothing_is_allowed_by_nothing() -> None:
    decision = Policy().decide("example.com:443")
    assert not decision.allowed and decision.reason == "name not allowed"


def test_methods_make_another_policy() -> None:
    one = Policy()
    two = one.allow("example.com")
    assert not one.decide("example.com").allowed and two.decide("example.com").allowed
    three = two.deny("example.com")
    assert not three.decide("example.com").allowed and two.decide("example.com").allowed
    assert len({one, two, three, Policy()}) == 3
    assert len({each.rules.digest for each in (one, two, three)}) == 3
    assert "allow=1" in repr(two)
    assert str(two.rules.allow[0].origin) == "Policy.allow"


def test_paths(tmp_path: Path) -> None:
    policy = Policy().hide("*.key").readonly("frozen/")
    assert policy.decide("./a.key", workspace=tmp_path).reason == "hidden"
    assert policy.decide("./other", workspace=tmp_path).allowed
    (tmp_path / "frozen").mkdir()
    assert policy.decide("./frozen/x", "read", workspace=tmp_path).allowed
    assert policy.decide("./frozen/x", "write", workspace=tmp_path).reason == "read-only"


def test_data() -> None:
    policy = Policy.from_dict({"allow": ["example.com", {"dest": "http://api.test/", "http": [{"methods": ["GET"]}]}]})
    assert policy.decide("http://api.test/x").allowed
    assert policy.decide("http://api.test/x", "POST").reason == "method not allowed"
    assert not policy.decide("pypi.org").allowed, "no preset but those that are named"
    assert Policy.from_dict({"presets": ["pypi"]}).decide("pypi.org:443").allowed


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        ({"alow": []}, "alow"),
        ({"allow": ["exa mple"]}, "exa mple"),
        ({"allow": [object()]}, "not plain data"),
        ({"presets": ["no-such"]}, "no-such"),
        ({"limits": {"memory": "many"}}, "many"),
    ],
)
def test_wrong_data_is_refused_with_its_place(data: dict[str, typing.Any], cause: str) -> None:
    with pytest.raises(PolicyError, match=cause):
        Policy.from_dict(data)


@pytest.mark.parametrize("text", ["", "a b", "https://", "1.2.3.4/99", "x:99999"])
def test_wrong_rules_are_refused(text: str) -> None:
    with pytest.raises(PolicyError, match=r"^allow "):
        Policy().allow(text)
    with pytest.raises(PolicyError, match="it is not a string"):
        Policy().allow(7)  # type: ignore[arg-type]


def test_load_is_what_the_command_line_would_use(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "MEMBRANE_HOME": str(tmp_path / "state"), "PATH": "/usr/bin"}
    workspace = tmp_path / "work"
    workspace.mkdir()
    usual = Policy.load(workspace, environ=environ)
    assert usual.decide("pypi.org:443").allowed, "a built-in preset"
    bare = Policy.load(workspace, environ=environ, no_presets=True, allow=["example.com"])
    assert bare.decide("example.com").allowed and not bare.decide("pypi.org:443").allowed
    (workspace / ".membrane.yaml").write_text("allow: [wider.test]\n")
    with pytest.raises(PolicyError, match="widens"):
        Policy.load(workspace, environ=environ)
    assert Policy.load(workspace, environ=environ, trust_workspace=True).decide("wider.test").allowed
    with pytest.raises(PolicyError, match="no option 'alow'"):
        Policy.load(workspace, environ=environ, alow=["x"])
    with pytest.raises(PolicyError, match="sequence of strings"):
        Policy.load(workspace, environ=environ, allow="example.com")
