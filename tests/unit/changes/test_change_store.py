"""Change sets on disk: names, locks, the workspace they belong to, layers that are shared and never written again."""

from __future__ import annotations

import marshal
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from membrane.changes import store
from membrane.changes.cell import Masks
from membrane.changes.removal import remove_tree
from membrane.changes.review import opened
from membrane.changes.store import ChangeSet, ChangeSetError, Checkpoint, Held, InUse, NameTaken, NotThere
from membrane.errors import HostError
from started import Started


@pytest.fixture
def state(tmp_path: Path) -> str:
    return str(tmp_path / "state")


@pytest.fixture
def workspace(tmp_path: Path) -> str:
    path = tmp_path / "ws"
    path.mkdir()
    return str(path)


def begin(state: str, workspace: str, name: str = "one") -> Held:
    return store.begin(state, name, workspace, "a run (session s1)", "s1")


def layers(state: str) -> set[str]:
    return set(os.listdir(f"{state}/changes/{store.POOL}"))


def put(held: Held, name: str, text: str = "x") -> None:
    Path(held.top, "upper", name).write_text(text)


def holds(held: Held) -> list[list[str]]:
    return [sorted(os.listdir(upper)) for upper in held.uppers]


def test_the_start_of_a_run_does_not_wait_for_the_disk(
    state: str, workspace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A set that is new holds nothing, and what a run writes is not on the disk at once either."""
    waited: list[int] = []
    monkeypatch.setattr(os, "fsync", waited.append)
    with begin(state, workspace) as held:
        assert waited == []
        held.checkpoint("a")  # the control: what a person keeps
        assert len(waited) == 1
    with begin(state, workspace) as held:
        assert len(waited) == 1
        held.fork("two")
        assert len(waited) > 1


def test_a_set_is_made_private_continued_and_found(state: str, workspace: str) -> None:
    os.chmod(workspace, 0o751)
    with begin(state, workspace) as held:
        put(held, "a")
        assert stat.S_IMODE(os.stat(held.uppers[-1]).st_mode) == 0o751  # it is the overlay's root
        assert held.meta.inode == os.stat(workspace).st_ino
    for path in (f"{state}/changes", f"{state}/changes/one", f"{state}/changes/{store.POOL}"):
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o700
    with begin(state, workspace) as again:
        assert holds(again) == [["a"]]
        assert again.meta.session == "s1"
    assert [each.name for each in store.list_sets(state)] == ["one"]


@pytest.mark.parametrize("name", ["", ".", "..", "-a", ".a", "a/b", "a b", "a" * 65, "é", "a\n", "a\0"])
def test_names_that_cannot_be_one(state: str, workspace: str, name: str) -> None:
    with pytest.raises(ChangeSetError) as caught:
        begin(state, workspace, name)
    assert caught.value.exit_code == 78
    assert not os.path.exists(state)
    begin(state, workspace, "a" * 64).close()  # the control


def test_a_second_one_is_refused_with_what_holds_it(state: str, workspace: str) -> None:
    with begin(state, workspace), pytest.raises(InUse, match=r"in use by a run \(session s1\)") as caught:
        begin(state, workspace)
    assert any("wait" in line for line in caught.value.lines())
    begin(state, workspace).close()  # the control: it was given back


def test_who_is_killed_leaves_no_lock(state: str, workspace: str) -> None:
    code = (
        "import os, sys\nfrom membrane.changes import store\n"
        "held = store.begin(*sys.argv[1:4], 'a run', 's')\nprint('held', flush=True)\nsys.stdin.read()\n"
    )
    argv = [sys.executable, "-c", code, state, "one", workspace]
    with Started(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        assert store.in_use(state, "one") == "a run"
        with pytest.raises(InUse):
            begin(state, workspace)
        child.kill()
        child.wait()
    assert store.in_use(state, "one") == ""
    begin(state, workspace).close()


def test_a_set_belongs_to_one_workspace(state: str, workspace: str, tmp_path: Path) -> None:
    begin(state, workspace).close()
    (tmp_path / "other").mkdir()
    with pytest.raises(ChangeSetError, match=f"belongs to {workspace}, not to {tmp_path}/other"):
        begin(state, str(tmp_path / "other"))
    os.rename(workspace, f"{workspace}.old")
    os.mkdir(workspace)
    with pytest.raises(ChangeSetError, match="is another directory than the one"):
        begin(state, workspace)
    os.rmdir(workspace)
    os.rename(f"{workspace}.old", workspace)
    begin(state, workspace).close()  # the control; and no refusal kept the lock


def test_paths_that_are_not_utf_8_come_back(state: str, tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/w\xff")
    os.mkdir(path)
    begin(state, path).close()
    assert store.read(state, "one").workspace == path


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        marshal.dumps(None),
        marshal.dumps({}),
        marshal.dumps({"format": 2}),
        marshal.dumps({"format": 1, "name": "one"}),
        store.encode(ChangeSet("other", "/w", 1, 2, 3, "", ("0123abcd",))),
        store.encode(ChangeSet("one", "/w", 1, 2, 3, "", ("0123abcd",))).replace(b"0123abcd", b"../../..x"[:8]),
    ],
)
def test_what_is_no_change_set_is_said_and_can_be_discarded(state: str, workspace: str, data: bytes) -> None:
    begin(state, workspace).close()
    Path(state, "changes", "one", "meta").write_bytes(data)
    with pytest.raises(ChangeSetError, match=r"meta cannot be used"):
        begin(state, workspace)
    assert store.list_sets(state) == []
    kept = layers(state)
    begin(state, workspace, "two").close()
    with store.take(state, "two", "a test") as held:
        held.discard()
    assert kept <= layers(state)  # the broken one may name any layer
    store.discard(state, "one", "a test")
    assert layers(state) == set()


def test_layers_with_other_names_are_no_layers() -> None:
    good = ChangeSet("a", "/w", 1, 2, 3, "", ("0123abcd",))
    assert store.decode(store.encode(good)) == good
    for ids in ((), ("../../..",), ("0123ABCD",), ("0123abcd",) * (store.MOST_LAYERS + 1)):
        with pytest.raises(ValueError, match="layers"):
            good.replace(layers=ids)
        with pytest.raises(ValueError, match="layers"):
            good.replace(checkpoints=(Checkpoint("x", ids, 1),))


def test_discard_takes_the_set_and_its_layers(state: str, workspace: str) -> None:
    with begin(state, workspace) as held:
        put(held, "a")
        deep = Path(held.top, "upper")
        for _ in range(40):
            deep = deep / ("d" * 200)  # longer than PATH_MAX as a whole
            if len(str(deep)) < 4000:
                deep.mkdir()
        os.chmod(Path(held.top, "upper", "d" * 200), 0)
        os.mkdir(Path(held.top, "work", "work"), 0)
        os.symlink("/usr", Path(held.top, "upper", "link"))
        held.discard()
        with pytest.raises(NotThere):
            store.take(state, "one", "a test")
    assert sorted(os.listdir(f"{state}/changes")) == [store.POOL]
    assert layers(state) == set()
    with pytest.raises(NotThere):
        store.discard(state, "one", "a test")


def test_a_set_in_use_is_not_discarded(state: str, workspace: str) -> None:
    with begin(state, workspace), pytest.raises(InUse):
        store.discard(state, "one", "a test")
    assert store.read(state, "one")


def test_a_checkpoint_freezes_and_restore_goes_back_and_forth(state: str, workspace: str) -> None:
    with begin(state, workspace) as held:
        put(held, "a")
        held.checkpoint("first")
        frozen = held.uppers[0]
        put(held, "b")
        held.checkpoint("second")
        put(held, "c")
        assert holds(held) == [["a"], ["b"], ["c"]]
        held.restore("first")
        assert holds(held) == [["a"], []]
        assert held.uppers[0] == frozen
        held.restore("second")
        assert holds(held) == [["a"], ["b"], []]
        # What restore took away first is one step back; it was replaced by the state before the second restore.
        assert [each.label for each in held.meta.checkpoints] == ["first", "second", store.BEFORE_RESTORE]
        with pytest.raises(ChangeSetError, match="has no checkpoint 'third'"):
            held.restore("third")
        with pytest.raises(ChangeSetError, match="has a checkpoint 'first' already"):
            held.checkpoint("first")
    with begin(state, workspace) as again:  # on disk as well
        assert holds(again) == [["a"], ["b"], []]


def test_what_was_not_frozen_comes_back_from_before_restore(state: str, workspace: str) -> None:
    with begin(state, workspace) as held:
        held.checkpoint("empty")
        put(held, "a")
        held.restore("empty")
        assert not any(holds(held))
        held.restore(store.BEFORE_RESTORE)
        assert ["a"] in holds(held)


def test_a_fork_shares_frozen_layers_and_outlives_the_first(state: str, workspace: str) -> None:
    with begin(state, workspace) as held:
        put(held, "a")
        held.fork("two")
        put(held, "b")
        with store.take(state, "two", "a test") as two:
            assert two.meta.fork_of == "one"
            assert holds(two) == [["a"], []]
            assert two.uppers[0] == held.uppers[0]
            assert two.top != held.top
            put(two, "c")
        assert holds(held) == [["a"], ["b"]]
        with pytest.raises(NameTaken):
            held.fork("two")
        assert holds(held) == [["a"], ["b"]]
        held.discard()
    with begin(state, workspace, "two") as two:
        assert holds(two) == [["a"], ["c"]]
        two.empty()
        assert holds(two) == [[]]
    assert len(layers(state)) == 1


def test_too_many_layers_are_refused(state: str, workspace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MOST_LAYERS", 3)
    with begin(state, workspace) as held:
        for number in range(2):
            put(held, "a", str(number))
            held.checkpoint(f"n{number}")
        put(held, "a", "last")
        with pytest.raises(ChangeSetError, match="would have 4 layers"):
            held.checkpoint("n2")
        with pytest.raises(ChangeSetError, match="would have 4 layers"):
            held.fork("two")
        assert len(held.meta.layers) == 3  # as before
        held.restore("n0")
        with pytest.raises(ChangeSetError, match="would have 4 layers"):
            held.restore(store.BEFORE_RESTORE)
        assert len(held.meta.layers) == 2


def test_a_fork_has_the_hidden_names_of_the_first(state: str, workspace: str) -> None:
    """Else what the command deleted of the empty file there would delete the host's, which a rule hid."""
    for name in (".env", "plain"):
        Path(workspace, name).write_text("s")
    with begin(state, workspace) as held:
        os.mkdir(f"{held.path}/{store.MASKS}", 0o700)
        masks = Masks(f"{held.path}/{store.MASKS}", workspace)
        masks.add(".env", "file")
        masks.add("d/keys", "directory")
        masks.add("d/gone")
        for name in (".env", "plain"):
            os.mknod(f"{held.top}/upper/{name}", stat.S_IFCHR)
        held.fork("two")
        held.discard()
    with store.take(state, "two", "a test") as two:
        with opened(two) as (engine, copy):
            assert [change.path for change in engine.changes()] == ["plain"]
            assert copy.is_hidden("d/keys") and copy.is_hidden("d/gone") and not copy.is_hidden("d")
        remove_tree(f"{two.path}/{store.MASKS}")
        with opened(two) as (engine, _copy):  # the control
            assert [change.path for change in engine.changes()] == [".env", "plain"]


def test_a_fork_that_fails_freezes_and_leaves_nothing(
    state: str, workspace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with begin(state, workspace) as held:
        put(held, "a")

        def fail(*_: object, **_by_name: object) -> Held:
            # By now nobody writes what the new one would have had as frozen.
            assert held.meta.layers[-1] != first
            raise OSError(28, "No space left on device")

        first = held.meta.layers[-1]
        monkeypatch.setattr(store, "_make", fail)
        with pytest.raises(OSError, match="No space"):
            held.fork("two")
        assert holds(held) == [["a"], []]
        assert layers(state) == set(held.meta.layers)


def test_two_that_make_one_name_get_one_set(state: str, workspace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = store.take

    def late(*args: str) -> Held:
        monkeypatch.setattr(store, "take", real)
        begin(state, workspace).close()  # the other one is faster
        raise NotThere("use the change set", "there was none")

    monkeypatch.setattr(store, "take", late)
    with begin(state, workspace):
        assert len(layers(state)) == 1


def test_who_comes_after_one_that_was_killed_waits_for_what_it_ran(
    state: str, workspace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Started(["cat"], stdin=subprocess.PIPE) as last:
        code = (
            "import os, sys\nfrom membrane.changes import store\n"
            "held = store.begin(*sys.argv[1:4], 'a run', 's')\nheld.keep_until((int(sys.argv[4]), 1 << 22))\n"
            "os.kill(os.getpid(), 9)\n"
        )
        subprocess.run([sys.executable, "-c", code, state, "one", workspace, str(last.pid)], check=False)
        assert store.in_use(state, "one") == ""
        monkeypatch.setattr(store, "LONGEST_WAIT", 0.05)
        with pytest.raises(InUse, match=f"its process {last.pid} has not ended"):
            begin(state, workspace)
        last.communicate()
    begin(state, workspace).close()
    assert os.path.getsize(f"{state}/changes/one/lock") == 0


def test_a_number_that_is_another_process_by_now_is_not_waited_for(state: str, workspace: str) -> None:
    begin(state, workspace).close()
    Path(state, "changes", "one", "lock").write_text(f"a run\n{os.getpid()} 1\nx y\n\n999999999 7\n")
    begin(state, workspace).close()


def test_what_was_half_made_or_half_removed_goes(state: str, workspace: str) -> None:
    assert store.collect(state) == 0
    with begin(state, workspace) as held:
        held.checkpoint("kept")
    place = Path(state, "changes")
    kept = layers(state)
    for name in (".gone-1/upper/deep", ".new-1", f"{store.POOL}/0badc0de/upper", f"{store.POOL}/0badc0de.7"):
        (place / name).mkdir(parents=True)
    (place / "foreign").mkdir()  # no set, and not ours
    assert store.collect(state) == 2  # which may name any layer
    (place / "foreign").rmdir()
    assert store.collect(state) == 2
    assert sorted(os.listdir(place)) == [store.POOL, "one"]
    assert layers(state) == kept


def test_a_layer_that_is_mounted_is_copied_for_a_checkpoint_and_a_fork(state: str, workspace: str) -> None:
    with begin(state, workspace) as held:
        put(held, "a", "one")
        top = held.top
        held.checkpoint("empty-handed", mounted=lambda: None)
        put(held, "a", "two")  # as a mounted overlay goes on
        fork = held.fork("two", mounted=lambda: None)
        assert held.top == top and held.meta.layers == (os.path.basename(top),)
        frozen = store.uppers(state, held.meta.checkpoints[0].layers)
        assert Path(frozen[-1], "a").read_text() == "one"
        put(held, "a", "three")
        assert [Path(upper, "a").read_text() for upper in store.uppers(state, fork.layers[:-1])] == ["two"]
        assert not [name for name in os.listdir(held.path) if name.startswith(store.COPYING)]
        held.restore("empty-handed")
        assert holds(held) == [["a"], []]


def test_a_copy_that_is_not_confirmed_is_none(state: str, workspace: str) -> None:
    def refuse() -> None:
        raise HostError("hold", "one went on")

    with begin(state, workspace) as held:
        put(held, "a")
        before = layers(state)
        with pytest.raises(HostError, match="one went on"):
            held.checkpoint("c", mounted=refuse)
        with pytest.raises(HostError, match="one went on"):
            held.fork("two", mounted=refuse)
        assert layers(state) == before and not held.meta.checkpoints
        assert sorted(os.listdir(f"{state}/changes")) == [store.POOL, "one"]
        # What one that was killed has left is in nobody's way.
        os.makedirs(f"{held.path}/{store.COPYING}0/upper/x")
        held.checkpoint("c", mounted=lambda: None)
        held.forget_copies()
        assert holds(held) == [["a"]]
        assert not [name for name in os.listdir(held.path) if name.startswith(store.COPYING)]


def test_one_descriptor_of_a_lock_may_be_left(state: str, workspace: str) -> None:
    with begin(state, workspace) as held:
        other = Held(state, "one", os.dup(held.fd))
        other.update(session="s2")
        other.leave()
        assert store.in_use(state, "one") == "a run (session s1)"
        held.look_again()
        assert held.meta.session == "s2"


def test_a_checkpoint_beside_a_run(state: str, workspace: str) -> None:
    with begin(state, workspace) as held:
        put(held, "a", "one")
        with pytest.raises(InUse):  # it is not known what runs
            store.beside(state, "one")
        with Started(["sleep", "1000"]) as process:
            held.keep_until((process.pid,))
            other, processes = store.beside(state, "one")
            assert processes == (process.pid,)
            with begin(state, workspace, "two"):
                other.checkpoint("c", mounted=lambda: None)
            # Two at once do not lose each other's.
            third, _ = store.beside(state, "one")
            other.checkpoint("d", mounted=lambda: third.checkpoint("e", mounted=lambda: None) and None)
            with pytest.raises(ChangeSetError, match="already"):
                third.checkpoint("d", mounted=lambda: None)
            third.leave()
            other.leave()
            process.kill()
        assert not held.is_empty
        assert [each.label for each in held.meta.checkpoints] == ["c", "e", "d"]

        # What it was copied from is another one's by now.
        def restored() -> None:
            other = Held(state, "one", os.dup(held.fd))
            other.restore("c")
            other.leave()

        with pytest.raises(InUse, match="changed meanwhile"):
            held.checkpoint("f", mounted=restored)
        assert [name for name in os.listdir(held.path) if name.startswith(store.COPYING)] == []
    with pytest.raises(InUse):
        store.beside(state, "one")
