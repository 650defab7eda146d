"""The option table and the parser of the run path."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from membrane.policy import keys
from membrane.ui import options
from membrane.ui.options import COMMANDS, OPTIONS, RUN, UsageError, help_text, options_of, parse


@pytest.mark.parametrize(
    "spelling",
    [["-a", "h.example"], ["-ah.example"], ["-a=h.example"], ["--allow", "h.example"], ["--allow=h.example"]],
    ids=" ".join,
)
def test_five_spellings_mean_the_same(spelling: list[str]) -> None:
    found = parse([*spelling, "--", "true"])
    assert found.given == {"allow": ("h.example",)}
    assert found.words == ("true",)


@pytest.mark.parametrize(
    ("argv", "given_", "words"),
    [
        ([], {}, ()),
        (["--"], {}, ()),
        (["true"], {}, ("true",)),
        (["python3", "-c", "print(1)"], {}, ("python3", "-c", "print(1)")),
        (["-q", "--", "-a", "x"], {"quiet": ("",)}, ("-a", "x")),
        (["-q", "ls", "--", "-a"], {"quiet": ("",)}, ("ls", "--", "-a")),
        (["--", "--", "x"], {}, ("--", "x")),
        (["-a", "x", "-a", "y", "ls"], {"allow": ("x", "y")}, ("ls",)),
        (["--env", "A=b=c", "ls"], {"env": ("A=b=c",)}, ("ls",)),
        (["--env=A=", "ls"], {"env": ("A=",)}, ("ls",)),
        (["--home", "shared", "--home=ephemeral", "ls"], {"home": ("shared", "ephemeral")}, ("ls",)),
        (["--events", "-", "ls"], {"events": ("-",)}, ("ls",)),
        (["--env=--x=1", "ls"], {"env": ("--x=1",)}, ("ls",)),
        (["-i=-x", "ls"], {"ignore": ("-x",)}, ("ls",)),
        (["-a", "a=b", "ls"], {"allow": ("a=b",)}, ("ls",)),
        (["--arg", "-e", "--arg", "A=b", "--", "ls"], {"arg": ("-e", "A=b")}, ("ls",)),
        (["--reset"], {"reset": ("cid",)}, ()),
        (["--reset=ci", "--yes"], {"reset": ("ci",), "yes": ("",)}, ()),
        (["--reset", "ci"], {"reset": ("cid",)}, ("ci",)),
        (["-"], {}, ("-",)),
        ([""], {}, ("",)),
        (["-q", "", "-a"], {"quiet": ("",)}, ("", "-a")),
    ],
)
def test_run_line(argv: list[str], given_: dict[str, tuple[str, ...]], words: tuple[str, ...]) -> None:
    found = parse(argv)
    assert (found.command, found.given, found.words) == (RUN, given_, words)


@pytest.mark.parametrize("name", [command.name for command in COMMANDS])
def test_a_subcommand_is_only_the_first_word(name: str) -> None:
    assert parse(["--", name]).command is RUN
    assert parse(["--", name]).words == (name,)
    assert parse(["-q", name]).words == (name,)
    assert parse([name, "--help"]).command.name == name


def test_run_is_the_same_as_nothing() -> None:
    assert parse(["run", "-a", "x", "ps", "-q"]) == parse(["-a", "x", "ps", "-q"])


@pytest.mark.parametrize(
    ("argv", "words", "given_"),
    [
        (["check", "https://h/", "-X", "POST"], ("https://h/",), {"method": ("POST",)}),
        (["check", "-XPOST", "--json", "h"], ("h",), {"method": ("POST",), "json": ("",)}),
        (["check", "h", "-a", "h"], ("h",), {"allow": ("h",)}),
        (["check", "--", "-odd"], ("-odd",), {}),
        (["plan", "--json", "-a", "h", "ls", "--json"], ("ls", "--json"), {"json": ("",), "allow": ("h",)}),
        (["config", "show", "--json"], ("show",), {"json": ("",)}),
        (["completion", "zsh"], ("zsh",), {}),
        (["trust"], (), {}),
        (["trust", "."], (".",), {}),
        (["ps", "--json"], (), {"json": ("",)}),
    ],
)
def test_subcommand_line(argv: list[str], words: tuple[str, ...], given_: dict[str, tuple[str, ...]]) -> None:
    found = parse(argv)
    assert (found.command.name, found.words, found.given) == (argv[0], words, given_)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--alow", "x"], "unknown option --alow; did you mean --allow?"),
        (["--allows=x"], "unknown option --allows; did you mean --allow?"),
        (["--allo", "x"], "unknown option --allo; did you mean --allow?"),
        (["--sess", "x"], "unknown option --sess; did you mean --session-id-file?"),
        (["--zzzzzz"], "unknown option --zzzzzz"),
        (["-z"], "unknown option -z"),
        (["-X", "GET"], "unknown option -X; it is an option of membrane check"),
        (
            ["--json"],
            "unknown option --json; "
            "it is an option of membrane check, plan, doctor, ps, gc, changes, diff, apply, config, image, trace",
        ),
        (["-a"], "option -a needs a value (HOST)"),
        (["-a", "--", "ls"], "option -a needs a value (HOST)"),
        (["-a", "-q", "ls"], "option -a needs a value (HOST); write -a=-q if that is it"),
        (["--allow="], "option --allow needs a value: --allow=HOST"),
        (["--allow", ""], "option --allow needs a value: --allow=HOST"),
        (["-a="], "option -a needs a value: -a=HOST"),
        (["--reset="], "option --reset needs a value: --reset=cid"),
        (["--quiet=yes"], "option --quiet takes no value (found '--quiet=yes')"),
        (["-qa", "x"], "option -q takes no value (found '-qa')"),
        (
            ["--home", "shred"],
            "option --home is one of workspace, shared, ephemeral, not 'shred'; did you mean shared?",
        ),
        (["--launcher", "bwrap"], "unknown option --launcher"),
        (["--workspace=cow"], "unknown option --workspace; did you mean --trust-workspace?"),
        (["--no-update", "ls"], "unknown option --no-update; nothing here updates itself: leave it out"),
        (
            ["-it", "ubuntu", "bash"],
            "-it is an option of docker run: on a terminal the command gets one of its own, so leave it out",
        ),
        (
            ["start", "-itd", "x"],
            "-itd is an option of docker run: on a terminal the command gets one of its own, so leave it out",
        ),
        (
            ["-ti", "x"],
            "-ti is an option of docker run: on a terminal the command gets one of its own, so leave it out",
        ),
        (["--rm", "-v", "a:b", "x"], "unknown option --rm; nothing of a run is left: leave it out"),
        (["start", "--trace"], "unknown option --trace; every session is recorded: leave it out"),
        (["--system", "--", "ls"], "option --system needs a value (read-only|writable|persistent)"),
        (["--home="], "option --home needs a value: --home=workspace|shared|ephemeral"),
        (["--arg", "--", "ls"], "option --arg needs a value (WORD)"),
        (["discard"], "usage: membrane discard NAME"),
        (["check"], "membrane check needs a target"),
        (["check", "a", "b"], "membrane check does not take 'b'"),
        (["doctor", "now"], "membrane doctor does not take 'now'"),
        (
            ["doctor", "-a", "h"],
            "unknown option -a; it is an option of membrane run, check, plan, start, config, learn",
        ),
        (["trust", "a", "b"], "membrane trust does not take 'b'"),
        (["check", "--list", "x"], "membrane check --list takes no target and no method"),
        (["check", "--list", "-X", "GET"], "membrane check --list takes no target and no method"),
        (["config"], "membrane config needs one of: show, path, init, import"),
        (["config", "edit"], "membrane config needs one of: show, path, init, import"),
        (["completion", "tcsh"], "membrane completion needs one of: bash, zsh, fish, man"),
        (["ps", "--reset"], "unknown option --reset; it is an option of membrane run"),
    ],
)
def test_usage_errors_name_the_word_and_exit_2(argv: list[str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(argv)
    assert caught.value.headline() == message
    assert caught.value.exit_code == 2


# An option line without the command: every option with a value in each of its spellings.
_FLAGS = [o for o in options_of(RUN) if not o.metavar]
_VALUED = [o for o in options_of(RUN) if o.metavar and not o.optional]
_WORD = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


@st.composite
def _option_words(draw: st.DrawFn) -> list[str]:
    option = draw(st.sampled_from([*_FLAGS, *_VALUED]))
    name = draw(st.sampled_from([f"--{option.name}", *([f"-{option.short}"] if option.short else [])]))
    if not option.metavar:
        return [name]
    value = draw(st.sampled_from(option.values)) if option.values else draw(_WORD)
    if value.startswith("-") and value != "-":
        return [f"{name}={value}"]
    return draw(st.sampled_from([[name, value], [f"{name}={value}"]]))


@given(
    st.lists(_option_words(), max_size=5),
    _WORD.filter(lambda word: not (word.startswith("-") and len(word) > 1)),
    st.lists(st.text(max_size=8) | st.sampled_from(["--", "-a", "--allow", "--help", "-q", "--debug"]), max_size=6),
)
def test_nothing_after_the_first_word_is_consumed(line: list[list[str]], first: str, rest: list[str]) -> None:
    argv = [word for words in line for word in words]
    if not argv and first in {command.name for command in COMMANDS}:
        argv = ["-q"]
    command = parse([*argv, first, *rest])
    assert command.words == (first, *rest)
    assert command.given == parse([*argv, "--", *rest]).given
    assert parse([*argv, "--", *rest]).words == tuple(rest)


@given(st.lists(st.text(max_size=6) | st.sampled_from(["--", "-a", "--home", "-X", "check", "run", "--reset=c"])))
def test_any_line_is_understood_or_refused(argv: list[str]) -> None:
    try:
        found = parse(argv)
    except UsageError as error:
        assert error.headline()
    else:
        # What was taken as an option stood before the command.
        assert tuple(argv[len(argv) - len(found.words) :]) == found.words or found.command.words != "command"


# ---------------------------------------------------------------- the table


def test_every_policy_option_is_one_of_the_table_of_keys() -> None:
    rows = [option for option in OPTIONS if option.scope == "policy"]
    assert rows == [option for option in keys.OPTIONS if option.scope == "policy"]
    for option in rows:  # what a program gives for it: texts, one text, or True
        assert not option.repeatable or option.metavar, option.name


def test_every_run_option_is_a_field_of_the_session() -> None:
    from membrane.run import prepare

    rows = [option for option in OPTIONS if option.scope == "run"]
    assert {option.key for option in rows} <= set(prepare.RunOptions.field_names)


def test_fields_have_the_types_that_settings_takes() -> None:
    found = parse(["-a", "x", "-a", "y", "--home", "shared", "--no-profile", "--events", "f", "-q", "ls"])
    assert found.fields("policy") == {"allow": ("x", "y"), "home": "shared", "no_profile": True}
    assert found.fields("run") == {"events": "f", "quiet": True}


def test_names_are_unique_in_every_command() -> None:
    for command in COMMANDS:
        rows = options_of(command)
        names = [option.name for option in rows] + [option.short for option in rows if option.short]
        assert len(names) == len(set(names)), command.name


def test_every_example_is_understood() -> None:
    import shlex

    examples = [option.example for option in OPTIONS]
    examples += [example for command in COMMANDS for example in command.example]
    for example in examples:
        words = shlex.split(example.partition(" > ")[0])
        if words[0] == "membrane":
            parse(words[1:])


# ---------------------------------------------------------------- help


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_help_fits_one_screen(command: options.Command) -> None:
    lines = help_text(command).splitlines()
    assert len(lines) <= 50
    assert max(map(len, lines)) <= options.WIDTH
    assert lines[0].startswith("usage: membrane")
    assert any(line.startswith("  membrane") or "membrane completion" in line for line in lines[1:3])
    rows = [line for line in lines if line[10:14].strip(" -") == "" and "--" in line[10:22]]
    headings = [row[:10].strip() for row in rows if row[:10].strip()]
    assert len(headings) == len(set(headings)) and headings[-1] == "membrane", headings


def test_help_of_a_subcommand_names_all_of_its_own_options() -> None:
    for command in COMMANDS[1:]:
        text = help_text(command)
        assert not [name for name in command.options if f"--{name}" not in text], command.name


def test_help_names_every_common_option_and_subcommand() -> None:
    text = help_text(RUN)
    for option in options_of(RUN):
        assert (f"--{option.name}" in text) is not option.rare, option.name
    for command in COMMANDS[1:]:
        assert (f"\n  {command.name} " in text) is not command.rare, command.name


@pytest.mark.parametrize(
    ("typed", "advice"),
    [
        ("-v", "--mount SOURCE:TARGET"),
        ("-e", "--env NAME=VALUE"),
        ("-p", "--expose INSIDE:OUTSIDE"),
        ("-d", "membrane start NAME -- COMMAND"),
        ("--memory", "--limit memory=4G"),
        ("--network", "--no-presets"),
        ("-V", "membrane --version"),
    ],
)
def test_an_option_of_docker_run_is_told_what_is_meant(typed: str, advice: str) -> None:
    with pytest.raises(UsageError, match=f"unknown option {typed}$") as refused:
        parse([typed, "x", "--", "true"])
    assert refused.value.fix[0].startswith(advice)


def test_a_pattern_that_looks_like_docker_can_be_written() -> None:
    for words in (["-i=t", "x"], ["-i", "t", "x"], ["--ignore=t", "x"]):
        assert parse(words).given["ignore"] == ("t",)
    assert parse(["-itmp", "x"]).given["ignore"] == ("tmp",), "the control: a value may be attached"
    with pytest.raises(UsageError) as refused:
        parse(["-it", "x"])
    assert refused.value.fix[1].startswith("-i=t ")
