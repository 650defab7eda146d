"""What is printed from the option table besides --help: shell completions, the man page, the README table.

Theory of operation
-------------------
Each function is pure: table in, text out.  A completion script finds the start of the wrapped command by the same
rule as the parser (``--``, or the first word that is not an option or the value of one) and hands everything after
it to the shell's own completion of that command.
"""

from __future__ import annotations

from ..errors import EX_CONFIG, EX_WRAPPER
from ..policy.keys import Option
from .options import COMMANDS, OPTIONS, RUN, Command, options_of, synopsis

_NAMES = tuple(command.name for command in COMMANDS)


def script(shell: str) -> str:
    """The completion script for ``bash``, ``zsh`` or ``fish``; the man page for ``man``."""
    return {"bash": bash, "zsh": zsh, "fish": fish, "man": man_page}[shell]()


def _spellings(option: Option) -> list[str]:
    return [*([f"-{option.short}"] if option.short else []), f"--{option.name}"]


# ---------------------------------------------------------------- bash


def _bash_values(option: Option) -> str:
    if option.values:
        return f"compgen -W '{' '.join(option.values)}' -- \"$cur\""
    how = {"file": "-f", "host": "-A hostname", "env": "-e"}.get(option.completes)
    return f'compgen {how} -- "$cur"' if how else ""


def bash() -> str:
    """A completion function for bash 4 and later; bash-completion is used for the wrapped command when present."""
    valued = [
        spelling for option in OPTIONS if option.metavar and not option.optional for spelling in _spellings(option)
    ]
    lines = [
        "# bash completion for membrane, printed by: membrane completion bash",
        "_membrane() {",
        '    local cur=${COMP_WORDS[COMP_CWORD]} prev="" sub=run start=0 i=1',
        "    ((COMP_CWORD > 0)) && prev=${COMP_WORDS[COMP_CWORD-1]}",
        "    COMPREPLY=()",
        "    # bash splits --name=value at the equals sign",
        '    if [[ $cur == "=" ]]; then',
        '        cur=""',
        '    elif [[ $prev == "=" ]] && ((COMP_CWORD > 1)); then',
        "        prev=${COMP_WORDS[COMP_CWORD-2]}",
        "    fi",
        "    if ((COMP_CWORD > 1)); then",
        "        case ${COMP_WORDS[1]} in",
        f"            {'|'.join(_NAMES)}) sub=${{COMP_WORDS[1]}}; i=2 ;;",
        "        esac",
        "    fi",
        "    while ((i < COMP_CWORD)); do",
        "        case ${COMP_WORDS[i]} in",
        "            --) start=$((i + 1)); break ;;",
        f"            {'|'.join(valued)})",
        '                [[ ${COMP_WORDS[i+1]} == "=" ]] && ((i++))',
        "                ((i++)) ;;",
        "            -*|=) ;;",
        "            *) start=$i; break ;;",
        "        esac",
        "        ((i++))",
        "    done",
        "    if ((start)); then",
        "        case $sub in",
    ]
    wraps = "|".join(command.name for command in COMMANDS if command.words == "command")
    lines += [
        f"            {wraps})",
        "                if declare -F _command_offset >/dev/null; then",
        '                    _command_offset "$start"',
        "                elif ((start == COMP_CWORD)); then",
        '                    mapfile -t COMPREPLY < <(compgen -c -- "$cur")',
        "                else",
        '                    mapfile -t COMPREPLY < <(compgen -f -- "$cur")',
        "                fi",
        "                return ;;",
        "        esac",
        "    fi",
        "    case $prev in",
    ]
    for option in OPTIONS:
        values = _bash_values(option)
        if values:
            lines.append(f"        {'|'.join(_spellings(option))}) mapfile -t COMPREPLY < <({values}); return ;;")
        elif option.metavar and not option.optional:
            lines.append(f"        {'|'.join(_spellings(option))}) return ;;")
    lines += ["    esac", "    case $sub in"]
    for command in COMMANDS:
        words = [spelling for option in options_of(command) for spelling in _spellings(option)] + list(command.choices)
        choose = f"compgen -W '{' '.join(words)}'"
        if command.words == "command":
            first = f"-W '{' '.join(_NAMES)}' " if command is RUN else ""
            lines += [
                f"        {command.name})",
                "            if [[ $cur == -* ]]; then",
                f'                mapfile -t COMPREPLY < <({choose} -- "$cur")',
                "            elif ((COMP_CWORD == 1)); then",
                f'                mapfile -t COMPREPLY < <(compgen {first}-c -- "$cur")',
                "            else",
                '                mapfile -t COMPREPLY < <(compgen -c -- "$cur")',
                "            fi ;;",
            ]
        else:
            files = {"target": " -f", "directory": " -d"}.get(command.words, "")
            lines.append(f'        {command.name}) mapfile -t COMPREPLY < <({choose}{files} -- "$cur") ;;')
    lines += ["    esac", "}", "complete -F _membrane membrane"]
    return "\n".join(lines) + "\n"


# ---------------------------------------------------------------- zsh


def _zsh_quote(text: str) -> str:
    """Inside '...' of an _arguments specification: brackets and colons are its syntax."""
    for char in "\\[]:":
        text = text.replace(char, "\\" + char)
    return text.replace("'", "'\\''")


def _zsh_spec(option: Option) -> str:
    if option.values:
        action = f"({' '.join(option.values)})"
    else:
        action = {"file": "_files", "host": "_hosts", "env": "_parameters -g '*export*'"}.get(option.completes, " ")
    action = action.replace("'", "'\\''")
    value = f":{_zsh_quote(option.metavar)}:{action}" if option.metavar else ""
    if option.optional:
        value = ":" + value
    long = f"--{option.name}{'=-' if option.optional else '=' if option.metavar else ''}"
    names = f"{{-{option.short}{'+' if option.metavar else ''},{long}}}" if option.short else long
    once = "*" if option.repeatable else f"({' '.join(_spellings(option))})" if option.short else ""
    head = f"'{once}'" if once else ""
    return f"{head}{names}'[{_zsh_quote(option.help)}]{value}'"


def zsh() -> str:
    """A completion function for zsh; install as _membrane in $fpath, or source it."""
    lines = ["#compdef membrane", "# zsh completion for membrane, printed by: membrane completion zsh", "_membrane() {"]
    lines += ["  local -a subcommands", "  subcommands=("]
    lines += [f"    '{_zsh_quote(command.name)}:{_zsh_quote(command.help)}'" for command in COMMANDS]
    lines += [
        "  )",
        "  if (( CURRENT == 2 )) && [[ $words[CURRENT] != -* ]]; then",
        "    _alternative 'subcommands:subcommand:{_describe subcommand subcommands}' \\",
        "      'commands:command:_command_names -e'",
        "    return",
        "  fi",
        "  case $words[2] in",
    ]
    for command in (*COMMANDS[1:], RUN):
        pattern = command.name if command is not RUN else "*"
        lines.append(f"    {pattern})")
        lines.append(
            "      [[ $words[2] == run ]] && { shift words; (( CURRENT-- )) }"
            if command is RUN
            else "      shift words; (( CURRENT-- ))"
        )
        stop = "-A '-*' " if command.words == "command" else ""
        lines.append(f"      _arguments -S {stop}\\")
        lines += [f"        {_zsh_spec(option)} \\" for option in options_of(command)]
        lines.append(f"        {_zsh_words(command)} ;;")
    lines += ["  esac", "}", "if [[ $funcstack[1] == _membrane ]]; then", '  _membrane "$@"', "else"]
    lines += ["  compdef _membrane membrane", "fi"]
    return "\n".join(lines) + "\n"


def _zsh_words(command: Command) -> str:
    if command.words == "command":
        return "'(-)1:command:_command_names -e' '*::argument:_normal'"
    if command.choices:
        return f"'1:which:({' '.join(command.choices)})'"
    return {"target": "'1:target:_files'", "directory": "'1:directory:_files -/'"}.get(command.words, "")


# ---------------------------------------------------------------- fish


def _fish_quote(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")


def _fish_option(option: Option, condition: str) -> str:
    parts = [f"complete -c membrane -n '{condition}' -l {option.name}"]
    if option.short:
        parts.append(f"-s {option.short}")
    if option.values:
        parts.append(f"-x -a '{' '.join(option.values)}'")
    elif option.completes == "file":
        parts.append("-r -F")
    elif option.completes == "host":
        parts.append("-x -a '(__fish_print_hostnames)'")
    elif option.completes == "env":
        parts.append("-x -a '(set -nx)'")
    elif option.metavar and not option.optional:
        parts.append("-x")
    return f"{' '.join(parts)} -d '{_fish_quote(option.help)}'"


def fish() -> str:
    """Completions for fish 3 and later."""
    valued = [
        spelling for option in OPTIONS if option.metavar and not option.optional for spelling in _spellings(option)
    ]
    lines = [
        "# fish completion for membrane, printed by: membrane completion fish",
        "function __membrane_start --description 'print the index of the first word that is not an option, or 0'",
        "    set -l words (commandline -opc)",
        "    set -l i 2",
        f'    if contains -- "$words[2]" {" ".join(_NAMES)}',
        "        set i 3",
        "    end",
        "    while test $i -le (count $words)",
        "        switch $words[$i]",
        "            case --",
        "                echo (math $i + 1)",
        "                return",
        f"            case {' '.join(valued)}",
        "                set i (math $i + 1)",
        "            case '-*'",
        "            case '*'",
        "                echo $i",
        "                return",
        "        end",
        "        set i (math $i + 1)",
        "    end",
        "    echo 0",
        "end",
        "function __membrane_sub --description 'is this the subcommand, and are its options still being typed?'",
        "    set -l words (commandline -opc)",
        "    set -l sub run",
        f'    if contains -- "$words[2]" {" ".join(_NAMES)}',
        "        set sub $words[2]",
        "    end",
        "    test $sub = $argv[1]; or return 1",
        f"    contains -- $sub {' '.join(c.name for c in COMMANDS if c.words != 'command')}; and return 0",
        "    test (__membrane_start) -eq 0",
        "end",
        "function __membrane_first --description 'is the first word being typed?'",
        "    test (count (commandline -opc)) -eq 1",
        "end",
        "function __membrane_command --description 'complete the wrapped command'",
        "    set -l start (__membrane_start)",
        "    set -l words (commandline -opc)",
        "    set -l token (commandline -ct)",
        "    if test $start -gt 0 -a $start -le (count $words)",
        "        complete -C (string join ' ' -- (string escape -- $words[$start..-1]) $token'')",
        "    else if not string match -q -- '-*' $token",
        "        complete -C $token''",
        "    end",
        "end",
        "complete -c membrane -f",
    ]
    for command in COMMANDS:
        lines.append(f"complete -c membrane -n __membrane_first -a {command.name} -d '{_fish_quote(command.help)}'")
    for command in COMMANDS:
        condition = f"__membrane_sub {command.name}"
        lines += [_fish_option(option, condition) for option in options_of(command)]
        if command.choices:
            lines.append(f"complete -c membrane -n '{condition}' -x -a '{' '.join(command.choices)}'")
        elif command.words in ("target", "directory"):
            lines.append(f"complete -c membrane -n '{condition}' -F")
    others = " ".join(command.name for command in COMMANDS if command.words != "command")
    lines.append(
        f"complete -c membrane -n 'not contains -- (commandline -opc)[2] {others}' -x -a '(__membrane_command)'"
    )
    return "\n".join(lines) + "\n"


# ---------------------------------------------------------------- man page

EXIT_STATUS: tuple[tuple[str, str], ...] = (
    ("the command's", "the command ran; 128+N when signal N ended it"),
    ("0, 1, 2", "of check: allow, deny, ask"),
    ("2", "the command line cannot be understood"),
    (str(EX_CONFIG), "the policy is wrong, or a rule of it cannot be bound; nothing was started"),
    (str(EX_WRAPPER), "membrane itself failed"),
    ("126, 127", "the command cannot be executed, was not found"),
    ("130", "interrupted before the command was started"),
)

FILES: tuple[tuple[str, str], ...] = (
    ("$MEMBRANE_HOME", "state directory, default ~/.membrane"),
    ("$MEMBRANE_HOME/config.yaml", "the user's policy; written from a commented template, never overwritten"),
    (".membrane.yaml", "the project's policy, in the workspace; it widens nothing until it is trusted"),
    ("$MEMBRANE_HOME/trusted.yaml", "which project files were approved, by path and SHA-256"),
)


def _roff(text: str) -> str:
    """Text for groff_man(7): hyphens are minus signs, a leading dot or quote is no request."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text[:1] in (".", "'") else text


def _roff_rows(rows: tuple[tuple[str, str], ...]) -> list[str]:
    out = []
    for term, text in rows:
        out += [".TP", f".B {_roff(term)}", _roff(text)]
    return out


def man_page() -> str:
    """membrane(1) in groff_man(7)."""
    lines = [
        '.TH MEMBRANE 1 "" "membrane" "User Commands"',
        ".SH NAME",
        "membrane \\- run a command behind a boundary for network and files",
        ".SH SYNOPSIS",
        ".B membrane",
        "[\\fIOPTIONS\\fR] [\\-\\-] [\\fICOMMAND\\fR ...]",
    ]
    for command in COMMANDS:
        lines += [".br", f".B membrane {command.name}", _roff(command.usage)]
    lines += [
        ".SH DESCRIPTION",
        "The command reaches only the hosts, ports and requests that the policy allows, and sees and writes only the",
        "files that it allows.  Everything else is refused, and every refusal is reported.",
        "Options stop at \\-\\- or at the first word that is not an option: no option of the command is ever read.",
        "A subcommand is recognised only as the very first word; \\fBmembrane \\-\\- ps\\fR runs ps.",
        "Without a command an interactive shell is started.",
        ".SH OPTIONS",
    ]
    group = ""
    for option in OPTIONS:
        if option.group != group:
            group = option.group
            lines.append(f'.SS "{group}"')
        many = "  May be given several times." if option.repeatable else ""
        lines += [".TP", f".B {_roff(synopsis(option))}", f"{_roff(option.help)}.{many}"]
        lines += [".br", f"Example: {_roff(option.example)}"]
    lines.append(".SH SUBCOMMANDS")
    for command in COMMANDS:
        lines += [".TP", f".B {command.name} {_roff(command.usage)}", f"{_roff(command.help)}."]
        for example in command.example:
            lines += [".br", f"Example: {_roff(example)}"]
    lines += [".SH EXIT STATUS", *_roff_rows(EXIT_STATUS), ".SH FILES", *_roff_rows(FILES)]
    return "\n".join(lines) + "\n"
