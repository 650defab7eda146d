"""Events from the kernel by eBPF: what happened, with results, for a caller who is root (or has the capabilities).

Theory of operation
-------------------
One set of programs and maps serves every sandbox of the machine.  They are loaded once per boot and pinned in a BPF
file system, in a directory that only root can enter: ``/sys/fs/bpf/membrane`` where systemd has mounted one, else one
of our own on ``/run/membrane/bpf``.  (A mount in a private mount namespace would vanish with the first tracer, and the
programs with it.)  Pinned programs that are attached to nothing cost nothing.

They are attached while at least one tracer lives.  The attachments are not pinned: each tracer holds descriptors of
the same four links, which it finds by their numbers, so the kernel detaches them when the last tracer is gone, however
it died.  A lock file orders this.

A sandbox has a slot: two rings, a setting, counters.  Its owner holds a lock on the slot's file; a slot that no process
holds is emptied by the next tracer, or by ``collect``.  Membership carries the number of the sandbox, so processes of
a slot's earlier sandbox are no sandbox's.

A plain user has the sets that root gave to him with ``membrane setup tracing`` (``grant``): whole ones with their
rings, one for each of his sandboxes at a time, which trace his own processes only.  He attaches them himself.

Without a place to pin (no CAP_SYS_ADMIN, a read-only ``/run``) a tracer loads a set for itself alone: the same events,
a moment later.

``drain`` copies what is in the rings, behind a record that says what time it is, and before one that says what was
lost; ``decode`` reads that.

``prepare`` needs CAP_BPF and CAP_PERFMON, and to share CAP_SYS_ADMIN; everything after it CAP_BPF alone, so a tracer
gives the others up in between.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import struct
import time

from .. import clock
from ..bpf import programs
from ..errors import HostError
from ..host import syscalls as sc
from ..host.facts import CAP_SYS_ADMIN, effective_capabilities
from ..record import spans
from ..value import Value
from .permission import CAP_BPF, GRANTED, missing_capabilities, why_not
from .pins import PREFIX, STATE, SYSTEM_BPFFS, Lock, Unlocked, bpffs, cloexec, lock_of, place_of, remove_pins

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Final

OBJECT: Final = os.path.join(os.path.dirname(os.path.dirname(__file__)), "bpf", "trace.bpf.o")

SLOTS: Final = 128  # bpf/wire.h
ATTACHED: Final = ("on_sys_exit", "on_fork", "on_exec", "on_exit")
# Maps that a tracer holds: those used from here, and the tail calls, which the kernel takes out of their array when
# neither a pin nor a descriptor of it is left (kernel/bpf/arraymap.c, prog_array_map_clear).
_KEPT: Final = ("slots", "seeds", "control", "counted", "rings", "seen", "cgroups", "members", "handlers")
_LAST: Final = "control"  # pinned last: its name says that the set is whole

# Bytes of the rings: what must be kept, and the bulk of opens.  With many sandboxes at once they are smaller.
KEEP, BULK = 4 << 20, 16 << 20
KEEP_OF_MANY, BULK_OF_MANY = 1 << 20, 4 << 20
MANY = 8

# Slots whose rings are pinned beside the programs and stay when their tracer ends: to make and to free them takes
# 20 ms, most of it waiting for RCU.  They are 20 MB of the kernel's memory.
STAYING = 1

RINGS: Final = ("ring-keep", "ring-bulk")  # pinned, of a set with one slot's; what must be kept, and the bulk

_SEE_NOISE, _SEE_REPEATS = 1, 2
_SLOT = struct.Struct("<QQQQQIIII")  # trace.bpf.c, struct slot
_WORDS = _SLOT.size // 8
_POPULATION, _KEPT_BYTES, _BULK_BYTES = 2, 3, 4  # among them
_PLACE = struct.Struct("<QII")
_SEED = struct.Struct("<II")
_OPENED = struct.Struct("<QQIIII")  # id, inode, device, name, flags, process
_REPEATS = struct.Struct("<QQ")
_COUNTERS = 16
_LOST_KINDS, _REPEATED, _EVENTS = 8, 9, 10
_LOOK_AT_LOSSES_EVERY = 1.0  # s
_AGAIN = 250_000_000  # ns after a drain that found something; more than QUIET in trace.bpf.c


class Scope(Value):
    """Whose calls are traced.

    ``pid``: the process that will become the command, waiting to be released, as the caller's pid namespace counts;
    its children are followed.  ``cgroup``: number (inode) of a version 2 cgroup whose members are traced too, from
    their next fork or exec on; 0: none.  ``noise``: also opens and execs that found nothing.  ``repeats``: every open.
    """

    pid: int
    cgroup: int = 0
    noise: bool = False
    repeats: bool = False


def best_source() -> EbpfSource | str:
    """The kernel's events, or why this caller cannot have them here."""
    if not os.path.exists(OBJECT):
        return "this installation has no tracing programs: it was built without a compiler for them (clang, ziglang)"
    if sc.MACHINE != "x86_64":
        return f"the tracing programs are for x86_64, this is {sc.MACHINE}"
    if why := why_not():
        return why
    source = EbpfSource()
    try:
        source.prepare()
    except HostError as error:
        source.close()
        return error.headline()
    return source


class EbpfSource:
    """One sandbox's events.

    ``state`` and ``system``: where the shared set is kept, other than the defaults only in tests; ``keep`` and
    ``bulk``: bytes of the rings.
    """

    name = "ebpf"

    def __init__(
        self,
        *,
        state: str = STATE,
        system: str = SYSTEM_BPFFS,
        granted: str = GRANTED,
        shared: bool = True,
        keep: int = 0,
        bulk: int = 0,
    ) -> None:
        self._state, self._system, self._shared = state, system, shared
        self._granted = os.path.join(granted, str(os.geteuid()))
        self._sizes = keep, bulk
        self._set = programs.Loaded()
        self._links: list[int] = []
        self._joined = False  # the links are shared
        self._directory = ""  # of the pins of a shared set
        self._rings: list[programs.Ring] = []
        self._epoll: select.epoll | None = None
        self._timer = -1
        self._slot, self._slot_lock, self._id = -1, -1, 0
        self._cgroup = 0
        self._lost = [0] * _LOST_KINDS  # reported in the spans
        self._answered = [0] * _LOST_KINDS  # reported by losses()
        self.ended = False  # no process of the sandbox is left; seen by drain
        self.written = 0  # events that the kernel wrote, when the counters were last looked at
        self._reported_repeats = 0
        self._looked_at = 0.0
        self._looked_boot = 0
        self._processors = 0
        self._before = [0] * _COUNTERS  # of the slot's counters, when we began
        self._slots: programs.Words | None = None
        self._finished: list[Callable[[], int]] = []  # for each ring: the position up to which records are finished

    # ------------------------------------------------------------ life

    def prepare(self) -> None:
        """Load the programs, or take those that are pinned, and attach them.

        Raises:
            HostError: the kernel refused; nothing is left attached.
        """
        if self._links:
            return
        try:
            if not self._prepare_shared():
                self._shared = False
                if missing_capabilities() and os.path.isdir(self._granted):
                    self._take_granted()
                else:
                    self._set = load_programs()
                self._links = [programs.attach(self._set.programs[name]) for name in ATTACHED]
        except HostError:
            self.close()
            raise
        except OSError as error:
            self.close()
            raise programs.refused("attach the tracing programs", error) from None
        self._processors = _possible_processors()

    def reserve(self) -> None:
        """Take a slot and give it rings: what ``open`` does first, and the long part (the kernel waits for RCU).

        Raises:
            HostError: the programs cannot be loaded, or there are too many sandboxes.
        """
        self.prepare()
        if self._slot >= 0:
            return
        try:
            if self._shared:
                collect(self._state, self._system, opened=self._set)
            self._claim()
            self._take_rings()
        except HostError:
            self.close()
            raise
        except OSError as error:
            self.close()
            raise programs.refused("trace the command", error) from None

    def open(self, scope: Scope) -> None:
        """Begin with the process that waits to be released.

        Raises:
            HostError: as ``reserve``, or the process cannot be followed.
        """
        self.reserve()
        try:
            self._begin(scope)
        except HostError:
            self.close()
            raise
        except OSError as error:
            self.close()
            raise programs.refused("trace the command", error, f"pid {scope.pid}") from None

    def fileno(self) -> int:
        """Readable when it is time to ``drain``.

        The kernel wakes us for the first event after a pause, and when a ring is a quarter full; for what comes in
        between there is a timer, which runs while there are events.  Without events no process wakes up.
        """
        assert self._epoll is not None
        return self._epoll.fileno()

    def drain(self, write: Callable[[bytes], object]) -> int:
        """Copy what is in the rings to ``write``, one call with one piece for ``decode``: the number of bytes.

        What ``write`` raises is passed on, and the records stay.
        """
        assert self._epoll is not None
        self._epoll.poll(0)  # edge-triggered: the wake-up is taken, whatever is written from now on
        pieces = [ring.ready(finished) for ring, finished in zip(self._rings, self._finished, strict=True)]
        now = time.monotonic()
        own: list[bytes] = []
        if now - self._looked_at >= _LOOK_AT_LOSSES_EVERY or (not self.ended and not self.alive()):
            self._looked_at = now
            own = self._own_records()
        length = sum(map(len, pieces))
        if not length and not own:
            return 0
        sc.timerfd_settime(self._timer, _AGAIN)
        piece = b"".join([spans.clock_record(clock.offset_of_the_kernel()), *pieces, *own])
        write(piece)
        for ring, taken in zip(self._rings, pieces, strict=True):
            ring.release(len(taken))
            taken.release()
        return len(piece)

    @property
    def needs_capability(self) -> bool:
        """What follows ``reserve`` needs CAP_BPF, and it is held; a user's granted set needs none."""
        return bool(effective_capabilities() >> CAP_BPF & 1)

    def timeout(self) -> float | None:
        """None: ``fileno`` covers everything, a timer is part of it."""
        return None

    def finish(self, write: Callable[[bytes], object]) -> None:
        """No process of the sandbox is left, or the record ends here: the last of everything, losses and repeats."""
        self._looked_at = 0.0
        while self.drain(write):
            pass

    def losses(self) -> dict[str, int]:
        """What was lost since the last question, by kind.  The spans say it too: it is for who cannot read them."""
        counts = self._counters()[:_LOST_KINDS]
        more = {spans.LOST_KINDS[kind]: counts[kind] - before for kind, before in enumerate(self._answered)}
        self._answered = counts
        return {kind: count for kind, count in more.items() if count}

    def alive(self) -> int:
        """Processes of the sandbox that are alive and seen; 0 before the first one was released."""
        return self._slots[_WORDS * self._slot + _POPULATION] if self._slots is not None else 0

    def close(self) -> None:
        """End it.  The programs are detached when this was the last tracer."""
        if self._slot >= 0:
            try:
                _release(self._set, self._slot)
                if self._cgroup:
                    self._unwatch_cgroup()
            except OSError:
                pass  # the next tracer finds the slot without an owner
            self._slot = -1
        for ring in self._rings:
            ring.close()
        self._rings = []
        self._finished = []
        if self._slots is not None:
            self._slots.close()
            self._slots = None
        if self._epoll is not None:
            self._epoll.close()
            self._epoll = None
        if self._timer >= 0:
            os.close(self._timer)
            self._timer = -1
        if self._links:
            # While the last holder's links are taken off, no other process may attach the same programs: for that time
            # every event would come twice.
            with self._detaching():
                for fd in self._links:
                    os.close(fd)
            self._links = []
        self._set.close()
        if self._slot_lock >= 0:
            os.close(self._slot_lock)
            self._slot_lock = -1

    # ------------------------------------------------------------ programs

    def _detaching(self) -> Lock | Unlocked:
        if not self._joined:
            return Unlocked()
        try:
            return Lock(self._state)
        except (OSError, HostError):
            return Unlocked()  # the state is gone: no process finds these links any more

    def _prepare_shared(self) -> bool:
        """False: there is no place to pin here, or no right to."""
        if not self._shared or not effective_capabilities() >> CAP_SYS_ADMIN & 1:
            return False
        try:
            lock = Lock(self._state)
        except OSError:
            return False
        with lock:
            try:
                place = bpffs(self._state, self._system)
            except OSError:
                return False
            self._share(place)
        return True

    def _share(self, place: str) -> None:
        """Under the lock: the pinned set, made if there is none, and the links of those who trace already."""
        own = identity()
        directory = os.path.join(place, own)
        try:
            self._reuse(directory)
        except FileNotFoundError:
            for other in os.listdir(place):  # half made, or another version's: who uses it holds it
                if other.startswith(PREFIX):
                    remove_pins(os.path.join(place, other))
            self._set = load_programs()
            os.mkdir(directory, 0o700)
            for name in ATTACHED:
                programs.pin(self._set.programs[name], f"{directory}/{name}")
            for name in sorted(self._set.maps, key=lambda name: name == _LAST):
                programs.pin(self._set.maps[name].fd, f"{directory}/{name}")
        self._joined, self._directory = True, directory
        self._join(os.path.join(self._state, f"links-{own}"))

    def _reuse(self, directory: str) -> None:
        specs = _specs()
        self._set = programs.Loaded()
        try:
            for name in (_LAST, *(name for name in _KEPT if name != _LAST)):
                self._set.maps[name] = programs.Map(programs.reuse(f"{directory}/{name}"), specs[name])
            for name in ATTACHED:
                self._set.programs[name] = programs.reuse(f"{directory}/{name}")
        except OSError:
            self._set.close()
            raise

    def _take_granted(self) -> None:
        """A set of this user that no other tracer of his has."""
        own = identity()
        names = [name for name in sorted(os.listdir(self._granted)) if name.startswith(own)]
        if not names:
            raise HostError(
                "use the tracing programs of this user",
                "they are of another version of membrane",
                target=self._granted,
                fix=("sudo membrane setup tracing",),
            )
        specs = _specs()
        for name in names:
            directory = os.path.join(self._granted, name)
            lock = os.open(lock_of(directory), os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                continue
            self._slot_lock = lock
            for kind, read_only in (
                ("slots", False),
                ("seeds", False),
                ("control", False),
                ("counted", True),
                ("seen", True),
            ):
                self._set.maps[kind] = programs.Map(
                    programs.reuse(f"{directory}/{kind}", read_only=read_only), specs[kind]
                )
            for program in ATTACHED:
                self._set.programs[program] = programs.reuse(f"{directory}/{program}")
            for ring, size in zip(RINGS, (KEEP_OF_MANY, BULK_OF_MANY), strict=True):
                self._rings.append(programs.Ring(programs.reuse(f"{directory}/{ring}"), size))
            return
        raise HostError(
            "trace the command",
            f"all {len(names)} sets of tracing programs of this user are in use",
            fix=("--no-trace",),
        )

    def _join(self, path: str) -> None:
        """Hold the links that are there, make those that are not, and write down their numbers."""
        numbers = _numbers(path)
        joined = []
        for name in ATTACHED:
            program = self._set.programs[name]
            wanted, _tag = programs.program_info(program)
            link = -1
            try:
                link = programs.link_by_id(numbers.get(name, 0))
                if programs.link_info(link)[1] != wanted:
                    os.close(link)
                    link = -1
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.EAGAIN, errno.EINVAL):
                    raise
            if link < 0:
                link = programs.attach(program)
            self._links.append(link)
            joined.append(f"{name} {programs.link_info(link)[0]}\n")
        text = "".join(joined).encode()
        # Whole or not at all: who finds no numbers attaches a second time.
        fd = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, text)
        finally:
            os.close(fd)
        os.rename(f"{path}.new", path)

    # ------------------------------------------------------------ one sandbox

    def _claim(self) -> None:
        """A slot that no process has."""
        if not self._shared:
            self._slot = 0
            return
        directory = os.path.join(self._state, "slots")
        os.makedirs(directory, 0o700, exist_ok=True)
        for number in range(SLOTS):
            fd = os.open(os.path.join(directory, str(number)), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                continue
            self._slot, self._slot_lock = number, fd
            return
        raise HostError(
            "trace the command", f"{SLOTS} sandboxes are traced already", fix=("end one of them", "use --no-trace")
        )

    def _take_rings(self) -> None:
        maps, slot = self._set.maps, self._slot
        # The slot has an owner from now on: ``collect`` looks at this.
        self._id = clock.since_boot()
        maps["slots"].set(struct.pack("<I", slot), _SLOT.pack(self._id, *[0] * 8))
        if not self._rings:  # else they are granted, and in their places
            default = (KEEP_OF_MANY, BULK_OF_MANY) if slot >= MANY else (KEEP, BULK)
            sizes = tuple(wanted or size for wanted, size in zip(self._sizes, default, strict=True))
            stay = self._directory and slot < STAYING and sizes == default
            pins = [f"{self._directory}/{name}" for name in RINGS] if stay else []
            if not pins or not self._take_staying(pins, sizes):
                self._rings = [programs.Ring(programs.create_ring(size), size) for size in sizes]
                rows = zip(self._places(), self._rings, strict=True)
                maps["rings"].set_many([(place, struct.pack("<I", ring.fd)) for place, ring in rows])
                for path, ring in zip(pins, self._rings, strict=bool(pins)):
                    if os.path.exists(path):
                        os.unlink(path)
                    programs.pin(ring.fd, path)
        for ring in self._rings:
            left = ring.ready()  # of the last tracer
            ring.release(len(left))
            left.release()

    def _places(self) -> list[bytes]:
        return [struct.pack("<I", 2 * self._slot + number) for number in (0, 1)]

    def _take_staying(self, pins: list[str], sizes: tuple[int, ...]) -> bool:
        """The rings that an earlier tracer left for us; false: they are not there, or not in their places."""
        try:
            self._rings = [programs.Ring(programs.reuse(path), size) for path, size in zip(pins, sizes, strict=True)]
        except FileNotFoundError:
            pass
        found = [self._set.maps["rings"].get(place) for place in self._places()] if self._rings else []
        if found and found == [struct.pack("<I", programs.map_number(ring.fd)) for ring in self._rings]:
            return True
        for ring in self._rings:
            ring.close()
        self._rings = []
        return False

    def _begin(self, scope: Scope) -> None:
        maps, slot = self._set.maps, self._slot
        keep, bulk = (ring.size for ring in self._rings)
        key = struct.pack("<I", slot)
        self._looked_boot = clock.since_boot()
        self._before = self._raw_counters()
        flags = (_SEE_NOISE if scope.noise else 0) | (_SEE_REPEATS if scope.repeats else 0)
        words = self._slots = programs.Words(maps["slots"].fd, _SLOT.size * SLOTS)
        first = _WORDS * slot
        self._finished = [
            _sum(words, first + place, ring.written)
            for ring, place in zip(self._rings, (_KEPT_BYTES, _BULK_BYTES), strict=True)
        ]
        maps["slots"].set(key, _SLOT.pack(self._id, 0, 0, 0, 0, flags, keep // 4, 0, bulk // 4))
        self._epoll = select.epoll()
        self._timer = sc.timerfd_create()
        for fd in (self._timer, *(ring.fd for ring in self._rings)):
            self._epoll.register(fd, select.EPOLLIN | select.EPOLLET)
        place = _PLACE.pack(self._id, slot, 0)
        with Lock(self._state) if self._shared else Unlocked():
            if scope.cgroup:
                maps["cgroups"].set(struct.pack("<Q", scope.cgroup), place)
                self._cgroup = scope.cgroup
                _count_cgroups(maps)
            self._plant(scope.pid)

    def follow(self, pid: int) -> None:
        """Trace one more process, which waits to be released, and its descendants; ``pid`` as in ``Scope``."""
        with Lock(self._state) if self._shared else Unlocked():
            self._plant(pid)

    def _plant(self, pid: int) -> None:
        maps = self._set.maps
        namespace = os.stat("/proc/self/ns/pid").st_ino
        maps["seeds"].set(_SEED.pack(namespace, pid), _PLACE.pack(self._id, self._slot, 0))
        _add(maps["control"], 0, 1)

    def _unwatch_cgroup(self) -> None:
        with Lock(self._state) if self._shared else Unlocked():
            self._set.maps["cgroups"].delete(struct.pack("<Q", self._cgroup))
            _count_cgroups(self._set.maps)

    def _raw_counters(self) -> list[int]:
        """Of the slot, whichever sandbox had it."""
        data = self._set.maps["counted"].get(struct.pack("<I", self._slot), 8 * _COUNTERS * self._processors)
        totals = [0] * _COUNTERS
        for values in struct.iter_unpack(f"<{_COUNTERS}Q", data or b""):
            totals = [a + b for a, b in zip(totals, values, strict=True)]
        return totals

    def _counters(self) -> list[int]:
        return [now - before for now, before in zip(self._raw_counters(), self._before, strict=True)]

    def _own_records(self) -> list[bytes]:
        """What was lost since the last time, and, when no process is left, the counts of repeated opens."""
        counts = self._counters()
        self.written = counts[_EVENTS]
        now = clock.since_boot()
        out = []
        for kind in range(_LOST_KINDS):
            if counts[kind] > self._lost[kind]:
                out.append(spans.lost_record(kind, counts[kind] - self._lost[kind], self._looked_boot, now))
        self._lost = counts[:_LOST_KINDS]
        self._looked_boot = now
        if not counts[_EVENTS] or self.alive():
            return out
        self.ended = True
        if counts[_REPEATED] != self._reported_repeats:
            self._reported_repeats = counts[_REPEATED]
            out += self._repeats(now)
        return out

    def _repeats(self, now: int) -> list[bytes]:
        """Of all sandboxes' opens those of ours, which are found in C."""
        keys, values = self._set.maps["seen"].contents()
        wanted, size, step = self._id.to_bytes(8, "little"), _OPENED.size, _REPEATS.size
        find, key, value, record = keys.find, _OPENED.unpack_from, _REPEATS.unpack_from, spans.repeated_record
        out = []
        at = find(wanted)
        while at >= 0:
            if at % size:
                at = find(wanted, at + 1)
                continue
            _written, count = value(values, at // size * step)
            if count:
                _owner, inode, device, _name, flags, process = key(keys, at)
                out.append(record(device, inode, flags, process, count, now))
            at = find(wanted, at + size)
        return out


def _sum(words: programs.Words, place: int, begun: int) -> Callable[[], int]:
    return lambda: begun + words[place]


def load_programs() -> programs.Loaded:
    """The programs and maps of our object file, with the table of calls.

    Raises:
        HostError: the file cannot be read, or the kernel refused.
    """
    try:
        with open(OBJECT, "rb", opener=cloexec) as file:
            source = programs.ObjectFile(file.read())
    except (OSError, ValueError) as error:
        cause = error.strerror if isinstance(error, OSError) else str(error)
        raise HostError("read the tracing programs", cause or "", target=OBJECT) from None
    from ..record import calls  # once per boot

    loaded = programs.load(source, programs.kernel_types())
    loaded.maps["calls"].set_many(calls.rows())
    for number, name in calls.HANDLERS.items():
        loaded.maps["handlers"].set(struct.pack("<I", number), struct.pack("<I", loaded.programs[name]))
    return loaded


# ---------------------------------------------------------------- what is shared


def collect(state: str = STATE, system: str = SYSTEM_BPFFS, *, opened: programs.Loaded | None = None) -> int:
    """Empty the slots whose tracers are gone: how many there were.  For root; without a pinned set: 0.

    Raises:
        OSError: as bpf(2).
    """
    loaded = opened or programs.Loaded()
    found = 0
    try:
        if opened is None:
            try:
                directory = os.path.join(place_of(state, system), identity())
                specs = _specs()
                for name in ("rings", "slots", "seeds", "control"):
                    loaded.maps[name] = programs.Map(programs.reuse(f"{directory}/{name}"), specs[name])
            except OSError:
                return 0
        words = programs.Words(loaded.maps["slots"].fd, _SLOT.size * SLOTS)
        taken = [number for number in range(SLOTS) if words[_WORDS * number]]
        words.close()
        for number in taken:
            try:
                fd = os.open(os.path.join(state, "slots", str(number)), os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:
                fd = -1
            try:
                if fd >= 0:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _release(loaded, number)
                found += 1
            except BlockingIOError:
                continue
            finally:
                if fd >= 0:
                    os.close(fd)
        with Lock(state):
            _forget_seeds(loaded)
    finally:
        if opened is None:
            loaded.close()
    return found


def _release(loaded: programs.Loaded, slot: int) -> None:
    """The slot is free: no events any more, its rings are freed."""
    loaded.maps["slots"].set(struct.pack("<I", slot), bytes(_SLOT.size))
    if "rings" in loaded.maps and slot >= STAYING:  # a granted set keeps its own
        loaded.maps["rings"].delete_many([struct.pack("<I", 2 * slot), struct.pack("<I", 2 * slot + 1)])


def _forget_seeds(loaded: programs.Loaded) -> None:
    """Seeds of sandboxes that are gone; while any seed waits, every system call of the machine is looked at longer."""
    seeds, control, slots = loaded.maps["seeds"], loaded.maps["control"], loaded.maps["slots"]
    left = 0
    for key in list(seeds.keys()):
        value = seeds.get(key)
        if value is None:
            continue
        number, slot, _pad = _PLACE.unpack(value)
        owner = slots.get(struct.pack("<I", slot))
        if owner and _SLOT.unpack(owner)[0] == number:
            left += 1
        else:
            seeds.delete(key)
    if not left:
        control.set(struct.pack("<I", 0), control.get(struct.pack("<I", 1)) or bytes(8))


def _add(control: programs.Map, index: int, amount: int) -> None:
    key = struct.pack("<I", index)
    (value,) = struct.unpack("<Q", control.get(key) or bytes(8))
    control.set(key, struct.pack("<Q", value + amount))


def _count_cgroups(maps: dict[str, programs.Map]) -> None:
    maps["control"].set(struct.pack("<I", 2), struct.pack("<Q", len(list(maps["cgroups"].keys()))))


def identity() -> str:
    """A name for exactly this object file: another version's pins are not ours."""
    from _blake2 import blake2b  # hashlib loads OpenSSL, which takes longer than all the rest

    try:
        with open(OBJECT, "rb", opener=cloexec) as file:
            digest = blake2b(file.read(), digest_size=8).hexdigest()
    except OSError as error:
        raise HostError("read the tracing programs", error.strerror or "", target=OBJECT) from None
    return PREFIX + digest


def _specs() -> dict[str, programs.MapSpec]:
    """Sizes of the maps that are used from here, as trace.bpf.c declares them (a test compares)."""
    sizes = {
        "slots": (4, _SLOT.size, SLOTS),
        "seeds": (_SEED.size, _PLACE.size, SLOTS),
        "control": (4, 8, 4),
        "counted": (4, 8 * _COUNTERS, SLOTS),
        "rings": (4, 4, 2 * SLOTS),
        "seen": (_OPENED.size, _REPEATS.size, 16384),
        "cgroups": (8, _PLACE.size, SLOTS),
        "members": (4, 32, 65536),
        "handlers": (4, 4, 16),
    }
    return {
        name: programs.MapSpec(name, {"key_size": key, "value_size": value, "max_entries": entries}, None)
        for name, (key, value, entries) in sizes.items()
    }


def _numbers(path: str) -> dict[str, int]:
    try:
        with open(path, opener=cloexec) as file:
            return {name: int(number) for name, number in (line.split() for line in file)}
    except (OSError, ValueError):
        return {}


def _possible_processors() -> int:
    """How many values a per-processor map has: /sys/devices/system/cpu/possible, ``0-3`` or ``0``."""
    with open("/sys/devices/system/cpu/possible", opener=cloexec) as file:
        return int(file.read().strip().rpartition("-")[2].rpartition(",")[2]) + 1
