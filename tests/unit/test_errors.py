"""What a person reads when something fails, and the exit status that goes with it."""

from __future__ import annotations

import copy
import pickle

import pytest

from membrane.errors import (
    EX_CONFIG,
    EX_WRAPPER,
    Conflict,
    HostError,
    InternalError,
    MembraneError,
    Poisoned,
    PolicyError,
)


def test_headline_names_what_was_tried_on_what_and_why() -> None:
    error = HostError("open the events file", "Permission denied", target="/root/e.json")
    assert error.headline() == "cannot open the events file /root/e.json: Permission denied"
    assert str(error) == error.headline()


def test_headline_without_a_target() -> None:
    assert HostError("make a user namespace", "EPERM").headline() == "cannot make a user namespace: EPERM"


def test_advice_is_one_line_each_and_the_first_says_try() -> None:
    error = HostError("make a user namespace", "EPERM", fix=("first", "second", "third"))
    assert error.lines() == ["cannot make a user namespace: EPERM", "  try: first", "  or:  second", "  or:  third"]
    assert HostError("x", "y").lines() == ["cannot x: y"]


def test_policy_error_is_printed_as_a_compiler_does() -> None:
    error = PolicyError("read the policy", 'unknown key "port"', where=".membrane.yaml:4:5", fix=("ports",))
    assert error.lines() == ['.membrane.yaml:4:5: unknown key "port"', "  try: ports"]
    assert PolicyError("read the options", "--allow 'x y': not a host").headline() == "--allow 'x y': not a host"


@pytest.mark.parametrize(
    ("kind", "status"),
    [(PolicyError, EX_CONFIG), (HostError, EX_WRAPPER), (InternalError, EX_WRAPPER)],
)
def test_exit_status_says_whose_fault_it_is(kind: type[MembraneError], status: int) -> None:
    error = kind("try", "cause")
    assert error.exit_code == status
    assert isinstance(error, MembraneError)


def test_statuses_are_those_of_sysexits_and_env() -> None:
    assert (EX_CONFIG, EX_WRAPPER) == (78, 125)


def test_every_part_is_kept_as_data() -> None:
    error = HostError("a", "b", target="c", fix=("d",), where="e")
    assert (error.tried, error.cause, error.target, error.fix, error.where) == ("a", "b", "c", ("d",), "e")


@pytest.mark.parametrize("kind", [MembraneError, PolicyError, HostError, InternalError, Conflict, Poisoned])
def test_an_error_is_whole_after_pickle_and_copy(kind: type[MembraneError]) -> None:
    """A worker of ``ProcessPoolExecutor`` sends its errors so; one that cannot be made again ends the whole pool."""
    error = kind("put the changes in place", "a cause", target="a target", fix=("first", "second"), where="f:1:2")
    if isinstance(error, Conflict | Poisoned):
        error.paths = (("a", "why"),)
    for again in (*(pickle.loads(pickle.dumps(error, version)) for version in range(6)), copy.copy(error)):
        assert type(again) is kind
        assert again.lines() == error.lines() and str(again) == str(error) and again.args == error.args
        assert vars(again) == vars(error)
