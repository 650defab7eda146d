"""The table of keys: nothing that a key needs is left out, and what is written about it elsewhere agrees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import membrane
from membrane.errors import PolicyError
from membrane.plan.build import bindings
from membrane.policy import codec, grammar, keys, load, written
from membrane.policy.keys import BY_NAME, FIELDS, KEYS, OPTIONS, Field, Key, Option
from membrane.policy.load import Result, Source, _Loader
from membrane.policy.model import Limits, Policy, PortRule
from membrane.ui import show

PACKAGE = Path(membrane.__file__).parent
DOCS = (Path(__file__).parents[3] / "docs" / "policy.md").read_text()
_BEFORE, _, _AFTER = DOCS.partition("\n### Every key\n")
TABLE, _, _AFTER = _AFTER.partition("\n### ")
PROSE = _BEFORE + _AFTER

# Fields of a policy that no key fills: a profile, a face or the loader does.
INSIDE = {
    *("state_dirs", "state_files", "state_shown"),  # ``state`` of an agent profile
    *("socket_proxy", "socket_proxied", "authority", "offer_proxy"),  # settings of sandbox-runtime
    "file_base",  # the workspace
    *("levels", "digest"),
}

# Ways to read a key that fills nothing itself.
NOT_WRITTEN = {"absent"}

# For each key: texts of a file, and whether each of them widens.
EXAMPLES: dict[str, list[tuple[str, bool]]] = {
    "presets": [("presets: [more]", True)],
    "allow": [("allow: [a.test]", True)],
    "deny": [("deny: [a.test]", False)],
    "ignore": [("ignore: [x]", False), ("ignore: ['!x']", True), ("hide: [{path: x, show: names}]", True)],
    "readonly": [("readonly: [x]", False), ("readonly: ['!x']", True)],
    "mounts": [("mounts: [{path: /x}]", True)],
    "files": [
        ("view: host\nfiles: {deny_read: [/x]}", False),
        ("view: host\nfiles: {deny_write: [/x]}", False),
        ("view: host\nfiles: {allow_read: [/x]}", True),
        ("view: host\nfiles: {allow_write: [/x]}", True),
        ("view: host\nfiles: unconfined", True),
    ],
    "unix_sockets": [("unix_sockets: [/x]", True), ("view: host\nunix_sockets: all", True)],
    "ports": [("ports: {expose: [1]}", True), ("ports: {connect: [1]}", True)],
    "env": [("env: {pass: [A]}", True), ("env: {set: {A: b}}", True)],
    "devices": [("devices: [kvm]", True)],
    "secrets": [("secrets: [{name: A, from: env, to: [a.test]}]", True)],
    "masks": [("masks: [{env: A, to: [a.test]}]", True)],
    "signing": [("signing: [{key_id: A, secret: B}]", True)],
    "git_config": [("git_config: protected", False), ("git_config: writable", True)],
    "user_namespaces": [("user_namespaces: refused", False), ("user_namespaces: allowed", True)],
    "containers": [("containers: none", False), ("containers: nested", False)],
    "system": [("system: read-only", False), ("system: writable", False), ("system: persistent", False)],
    "image": [("image: a", True), ("image: 'oci:/x'", True)],
    "platform": [("platform: linux/arm64", True)],
    "limits": [("limits: {pids: 4}", False), ("limits: {pids: 6}", True), ("limits: {pids: 0}", True)],
    "args": [
        ("args: [--pids-limit=4, --cpus, '2', -c9]", False),
        ("args: [-e, A=1]", True),
        ("args: [--ulimit=core=1]", True),
        ("args: [-l, a=b]", True),
    ],
    "home": [("home: ephemeral", False), ("home: workspace", False), ("home: shared", True)],
    "view": [("view: project", False), ("view: host", True)],
    "backend": [
        ("backend: native", False),
        ("backend: docker", False),
        ("backend: auto", False),
        ("backend: landlock", False),
    ],
    "hard_links": [("hard_links: refuse", False), ("hard_links: warn", True)],
    "dns_resolver": [("dns_resolver: 192.0.2.1", True)],
    "upstream_proxy": [("upstream_proxy: env", True)],
    "extra_ca": [("extra_ca: [x]", True)],
    "ssl_insecure": [("ssl_insecure: false", False), ("ssl_insecure: true", True)],
    "trace": [
        *(("trace: {mode: required}", False), ("trace: {mode: off}", True), ("trace: {mode: auto}", True)),
        *(("trace: {max_size: 1G}", True), ("trace: {keep: 2}", True), ("trace: {http: full}", True)),
    ],
    "profiles": [("profiles: [agent]", True)],
    "workspace": [("workspace: review", False)],
    "apply": [("workspace: review\napply: never", False), ("workspace: review\napply: all", False)],
}

# For each option that is read: what is typed, and the file that says the same.
TYPED: dict[str, tuple[Any, str]] = {
    "presets": (("more",), "presets: [more]"),
    "allow": (("a.test:1", "**"), "allow: ['a.test:1', '**']"),
    "deny": (("a.test",), "deny: [a.test]"),
    "ignore": (("x", "!y"), "ignore: [x, '!y']"),
    "sealed": (("x",), "sealed: [x]"),
    "readonly": (("x",), "readonly: [x]"),
    "mounts": (("~/x:/y:rw",), "mounts: [{path: ~/x, target: /y, mode: rw}]"),
    "env": (("A", "B=1"), "env: {pass: [A], set: {B: '1'}}"),
    "devices": (("fuse", "gpu"), "devices: [fuse, gpu]"),
    "containers": (True, "containers: nested"),
    "review": (":new", "workspace: review"),
    "live": (True, "workspace: live"),
    "apply": ("safe", "apply: safe"),
    "system": ("persistent", "system: persistent"),
    "image": ("oci:~/x", "image: 'oci:~/x'"),
    "platform": ("linux/aarch64/v8", "platform: linux/arm64"),
    "limits": (("pids=9", "memory=1G"), "limits: {pids: 9, memory: 1G}"),
    "args": (("-e", "A=1", "-m2g", "--cpus=2"), "args: [-e, A=1, -m2g, --cpus, '2']"),
    "unix_sockets": (("~/x",), "unix_sockets: [~/x]"),
    "expose": (("1:2",), "ports: {expose: ['1:2']}"),
    "connect": (("1:2",), "ports: {connect: ['1:2']}"),
    "extra_ca": (("x",), "extra_ca: [x]"),
    "dns_resolver": ("192.0.2.1:53", "dns_resolver: 192.0.2.1:53"),
    "upstream_proxy": ("env", "upstream_proxy: env"),
    "ssl_insecure": (True, "ssl_insecure: true"),
    "home": ("shared", "home: shared"),
    "view": ("host", "view: host"),
    "backend": ("landlock", "backend: landlock"),
    "trace": ("off", "trace: {mode: off}"),
}
WRONG = {
    "presets": "none",
    "allow": "*.com",
    "deny": "a/b",
    **dict.fromkeys(("ignore", "sealed", "readonly"), "a//b"),
    "mounts": "a:b:c:d",
    "env": "=",
    "image": "-a",
    "platform": "windows/amd64",
    "limits": "pids=x",
    "args": "--privileged",
    **dict.fromkeys(("unix_sockets", "extra_ca"), "~me/x"),
    "expose": "0",
    "connect": "x",
    "dns_resolver": "a.test",
    "upstream_proxy": "ftp://x",
    "home": "mine",
    "system": "yes",
    "apply": "some",
    "view": "all",
    "backend": "qemu",
    "trace": "require",
}
PRESETS = {
    "default": "",
    "more": "allow: [more.test]\n",
    "profiles/agent": "command: [agent]\nallow: [agent.test]\n",
}


def read(text: str, level: Any = "user", before: str = "", **options: Any) -> Result:
    files = [Source("user", "u", before), Source(level, "f", text, "/dir")]
    options = {**options, "directory": "/dir"} if options else {}
    return load.load(files, presets=PRESETS, options=options, home="/home/u", environ={})


def bare(value: Any) -> Any:
    """Rules without the places where they were written."""
    if isinstance(value, tuple):
        return tuple(bare(item) for item in value)
    if hasattr(value, "origin"):
        return tuple(getattr(value, name) for name in value.field_names if name != "origin")
    return value


def lacks(key: Key) -> list[str]:
    """What a row of the table does not have, of what a key needs."""
    found = [] if hasattr(_Loader, f"_{key.read}") else [f"load._Loader._{key.read}"]
    found += [] if key.read in NOT_WRITTEN or hasattr(written, f"write_{key.read}") else [f"written.write_{key.read}"]
    found += [] if key.name in EXAMPLES else ["an example in this test"]
    found += [] if line(key) in TABLE.splitlines() else [f"docs/policy.md: {line(key)}"]
    said = any(text in PROSE for text in (f"`{key.name}`", f"`{key.name}:", f"\n{key.name}:"))
    found += [] if said else [f"docs/policy.md: what {key.name} means"]
    found += [f"docs/policy.md: `{choice}`" for choice in key.choices if f"`{choice}`" not in PROSE]
    if key.template and f"\n#{key.name}:" not in f"\n{key.template}":
        found.append("its name in its template")
    if key.read == "text" and not callable(getattr(grammar, key.parse, None)):
        found.append(f"grammar.{key.parse}")
    if key.read == "choice" and len(key.choices) < 2:
        found.append("choices")
    if key.read in ("choice", "text") and not key.fields:
        found.append("a field")
    for field in key.fields:
        found += lacks_field(field)
    for option in key.options:
        if option.read and not hasattr(_Loader, f"_typed_{option.read}"):
            found.append(f"load._Loader._typed_{option.read}")
        if option.read and option.key not in TYPED:
            found.append(f"an example of --{option.name} in this test")
        if option.values and set(option.values) != set(key.choices):
            found.append(f"choices of --{option.name}")
    return found


def lacks_field(field: Field) -> list[str]:
    if field.name not in Policy.field_names:
        return [f"model.Policy.{field.name}"]
    found = (
        [] if field.label or field.name == "profiles" else [f"a label for {field.name}"]
    )  # profiles: their files are
    if field.kind is not None and isinstance(Policy.__dict__[field.name], tuple) and field.kind not in codec.KINDS:
        found.append(f"codec.KINDS: {field.kind.__name__}")
    if field.bound is None:
        module = PACKAGE / field.by
        if not field.by or not module.is_file() or f".{field.name}" not in module.read_text():
            found.append(f"what binds {field.name}")
    return found


def line(key: Key) -> str:
    """The row of docs/policy.md."""
    names = ", ".join(f"`{name}`" for name in (key.name, *key.others))
    typed = ", ".join(f"`--{option.name}`" for option in key.options if option.scope == "policy")
    return f"| {names} | {typed} | {key.widens} |"


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name)
def test_a_key_lacks_nothing(key: Key) -> None:
    assert lacks(key) == []


def test_what_a_key_lacks_is_found() -> None:
    def lacking(key: Key) -> str:
        return "\n".join(lacks(key))

    empty = lacking(Key("new_key", "new", (Field("new_field"),), choices=("low", "tight"), template="#other: 1\n"))
    for what in (
        "_Loader._new",
        "written.write_new",
        "an example",
        "| `new_key` |",
        "new_key means",
        "`tight`",
        "template",
        "model.Policy.new_field",
    ):
        assert what in empty, what
    assert "choices" in lacking(Key("new_key", "choice"))
    assert "grammar.parse_new" in lacking(Key("new_key", "text", (Field("home"),), parse="parse_new"))
    assert "a label for home" in lacking(Key("new_key", "text", (Field("home"),)))
    for field in (Field("home", "home"), Field("home", "home", by="host/seccomp.py"), Field("home", "home", by="x.py")):
        assert "what binds home" in lacks_field(field)
    assert "codec" in "\n".join(lacks_field(Field("expose", "expose", kind=Source, by="x.py")))
    wrong = Option("new-option", "files", "", metavar="X", read="new", values=("a", "b"))
    for what in ("_typed_new", "an example of --new-option", "choices of --new-option"):
        assert what in lacking(Key("home", "choice", options=(wrong,), choices=("b", "c"))), what
    assert lacking(BY_NAME["home"]) == ""


def test_every_field_of_a_policy_is_of_a_key_or_said_to_be_of_none() -> None:
    held = {field.name for field in FIELDS}
    assert held.isdisjoint(INSIDE)
    assert held | INSIDE == set(Policy.field_names)
    assert set(EXAMPLES) == set(BY_NAME)
    assert all(not key.fields for key in KEYS if key.read in NOT_WRITTEN)
    assert set(TYPED) == {option.key for option in OPTIONS if option.read}
    assert tuple(grammar.LIMITS) == tuple(keys.LIMITS) == Limits.field_names


def test_names_stand_for_one_thing() -> None:
    spellings = [name for key in KEYS for name in (key.name, *key.others)]
    assert len(set(spellings)) == len(spellings)
    for names in ([option.name for option in OPTIONS], [option.key for option in OPTIONS]):
        assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("name", "text", "widens"), [(name, *case) for name, cases in EXAMPLES.items() for case in cases]
)
def test_what_a_key_widens_is_what_its_row_says(name: str, text: str, widens: bool) -> None:
    before = "limits: {pids: 5}\nhard_links: refuse\nworkspace: review\napply: all\n"
    before += "containers: nested\nsystem: persistent\nbackend: landlock\n"
    widening = [each.key.partition(".")[0] for each in read(text, "project", before).widening]
    assert (name in widening) is widens
    assert not read(text, "user", before).widening
    assert bool(BY_NAME[name].widens) is any(wide for _, wide in EXAMPLES[name])


@pytest.mark.parametrize(("name", "text"), [(name, case[0]) for name, cases in EXAMPLES.items() for case in cases])
def test_what_a_key_says_is_kept_shown_and_bound(name: str, text: str) -> None:
    policy = read(text).policy
    assert codec.restore(codec.dump(policy)) == policy
    shown = {line.split()[0] for line in show.policy(policy, "/home/u")}
    bound = {binding.rule for binding in bindings(policy)}
    changed = [field for field in BY_NAME[name].fields if getattr(policy, field.name) != getattr(Policy(), field.name)]
    for field in changed:
        assert not field.label or field.label in shown
        for item in keys.items(policy, field):
            assert field.bound is None or field.bound(item)[0] in bound


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, cases in EXAMPLES.items() for text, _ in cases])
def test_what_a_key_says_is_written_and_read_again(name: str, text: str) -> None:
    policy = read(text).policy
    again = read(written.in_force(policy)).policy
    assert (again == policy) is False, "the places are others"
    for field in FIELDS:
        if field.name != "profiles":  # their rules are written, and their names as a comment
            assert bare(getattr(again, field.name)) == bare(shown(field.name, getattr(policy, field.name))), field.name


def shown(name: str, value: Any) -> Any:
    """What of it the command may know."""
    if name == "env":
        return tuple(rule.replace(value=rule.value and "") for rule in value)
    return tuple(rule.replace(source=f"env:{rule.name}") for rule in value) if name == "secrets" else value


def test_every_field_of_a_key_is_in_an_example() -> None:
    """What no example says was not written and read again."""
    said = {
        name
        for cases in EXAMPLES.values()
        for text, _ in cases
        for name in Policy.field_names
        if getattr(read(text).policy, name) != getattr(Policy(), name)
    }
    assert {field.name for field in FIELDS} <= said | {"change_set"}  # the name of a set is of --review alone


@pytest.mark.parametrize("name", TYPED)
def test_an_option_says_what_its_key_says(name: str) -> None:
    value, text = TYPED[name]
    typed, written = read("", **{name: value}), read(text)
    assert "command line" in typed.policy.levels
    for field in Policy.field_names:
        if field not in ("levels", "digest"):
            assert bare(getattr(typed.policy, field)) == bare(getattr(written.policy, field)), field
    assert [each.partition(": ")[2] for each in typed.warnings] == [
        each.partition(": ")[2] for each in written.warnings
    ]
    assert read("").policy.replace(digest="") != typed.policy.replace(digest="")


@pytest.mark.parametrize("name", WRONG)
def test_an_option_that_is_wrong_is_named(name: str) -> None:
    row = next(option for option in OPTIONS if option.key == name)
    with pytest.raises(PolicyError) as caught:
        read("", **{name: (WRONG[name],) if row.repeatable else WRONG[name]})
    assert f"--{row.name} " in caught.value.headline()


def test_a_policy_of_other_options_has_another_digest() -> None:
    one, other = (read("", deny=(host,)).policy.digest for host in ("a.test", "b.test"))
    assert one != other and one == read("", deny=("a.test",)).policy.digest


def test_deny_takes_what_allow_does_not() -> None:
    assert read("", deny=("host.internal",)).policy.deny
    with pytest.raises(PolicyError, match="needs ports"):
        read("", allow=("host.internal",))


def test_an_option_that_is_none_is_not_left_out_in_silence() -> None:
    with pytest.raises(TypeError, match="denny"):
        read("", denny=("a.test",))


def test_a_limit_is_of_the_option_that_names_it() -> None:
    """Beside ``--limit`` a word of docker run says less; in a file the later key wins."""
    assert read("", limits=("memory=1G",), args=("-m2g",)).policy.limits.memory == 1 << 30
    assert read("limits: {memory: 4G}", args=("-m2g",)).policy.limits.memory == 2 << 30
    assert read("args: [-m2g]\nlimits: {memory: 1G}").policy.limits.memory == 2 << 30


def test_an_option_of_a_choice_that_sets_a_flag_sets_it_for_the_wider_one_only() -> None:
    """No key has one today; the tighter word, as text, would be true."""
    row, option = BY_NAME["git_config"], Option("git-config", "files", "")
    for text, value in (("protected", False), ("writable", True)):
        loader = _Loader(PRESETS, {}, "", False)
        loader._typed_choice(row, option, text)
        assert loader.scalars == {"open_git_config": value}


def test_the_trees_of_this_machine_can_be_asked_for() -> None:
    said = read("image: tool\nplatform: linux/s390x\n").policy
    assert (said.image, said.platform) == ("tool", "linux/s390x")
    typed = read("image: tool\nplatform: linux/s390x\n", image="host:").policy
    assert (typed.image, typed.platform) == ("", "")


def test_rules_are_listed_in_the_order_of_the_table() -> None:
    policy = read("ports: {expose: [1], connect: [2]}\nallow: [a.test]\nlimits: {pids: 3}\nignore: [x]").policy
    assert [rule.rule.split()[0] for rule in bindings(policy)] == ["allow", "hide", "expose", "connect", "limit"]
    assert keys.rule_text(policy.allow[0]) == "a.test"
    assert keys.rule_text(PortRule(1, 2, policy.allow[0].origin)) == "ports inside 1, outside 2"
    assert keys.rule_text(None) == ""


def test_the_table_in_the_documents_has_no_row_too_many() -> None:
    table = [each for each in TABLE.splitlines() if each.startswith("| `")]
    assert table == [line(key) for key in KEYS], "\n".join(line(key) for key in KEYS)
