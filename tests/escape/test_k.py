"""Processes and the kernel (rows K01 to K30)."""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from escape_box import MEMBRANE, PYTHON, SECONDS, TOOLS, Box

PTRACE, VM_READ, VM_WRITE, KCMP = "(101, 117)", "(310, 270)", "(311, 271)", "(312, 272)"


def test_K01_other_processes(box: Box) -> None:
    script = f"""
import time
child = os.fork()
if child == 0:
    time.sleep(30); os._exit(0)
buffer = ctypes.create_string_buffer(16)
vector = (ctypes.c_uint64 * 2)(ctypes.addressof(buffer), 16)
def reach(pid, name):
    attempt(name + " attach", lambda: syscall({PTRACE}, 16, pid, 0, 0))
    if _results[name + " attach"] == "ok":
        os.waitpid(pid, 0); syscall({PTRACE}, 17, pid, 0, 0)
    attempt(name + " readv", lambda: syscall({VM_READ}, pid, vector, 1, vector, 1, 0))
    attempt(name + " writev", lambda: syscall({VM_WRITE}, pid, vector, 1, vector, 1, 0))
    attempt(name + " kcmp", lambda: syscall({KCMP}, os.getpid(), pid, 0, 0, 0))
    attempt(name + " kill", lambda: os.kill(pid, 0))
reach(child, "child"); reach(HOST, "host")
if HOST != 1: reach(1, "init")
os.kill(child, 9)
"""
    other = subprocess.Popen(["sleep", "60"])
    try:
        found = box.attack(script.replace("HOST", str(other.pid)))
        control = box.control(script.replace("HOST", str(other.pid)).replace("reach(1, ", "0 and reach(1, "))
    finally:
        other.kill()
        other.wait()
    assert found["child attach"] == found["child readv"] == "ok"  # its own are its business
    assert control["child attach"] == control["host kill"] == "ok"
    assert {found[f"host {how}"] for how in ("attach", "readv", "writev", "kill")} == {"ESRCH"}
    assert {found[f"init {how}"] for how in ("attach", "readv", "writev")} <= {"EPERM"}
    assert found["child kcmp"] == found["host kcmp"] == "EPERM"


def test_K01_pid_1_can_not_be_stopped_or_killed(box: Box) -> None:
    script = """
import signal, time
for number in range(1, 65):
    try:
        os.kill(1, number)
    except OSError:
        pass
fd = os.pidfd_open(1)
attempt("pidfd", lambda: signal.pidfd_send_signal(fd, signal.SIGKILL))
state = open("/proc/1/stat").read().rpartition(")")[2].split()[0]
say("state", state in "SR")
child = os.fork()
if child == 0:
    time.sleep(60); os._exit(0)
attempt("kill all", lambda: os.kill(-1, signal.SIGCONT))
attempt("control", lambda: (os.kill(child, 9), os.waitpid(child, 0))[0])
"""
    assert box.attack(script) == {
        "pidfd": "EPERM",  # Landlock, from ABI 6 on; the kernel would drop it, as any signal to the first process
        "state": True,
        "kill all": "ok",
        "control": "ok",
    }
    done = box.run("sh", "-c", "sleep 60 & kill -9 -1; echo alone; exit 7")  # all but pid 1 and the sender
    assert (done.returncode, done.stdout) == (7, "alone\n")


def test_K01_secrets_of_pid_1(box: Box) -> None:
    names = ("environ", "mem", "auxv", "maps", "fd", "map_files", "root", "cwd", "exe", "stack", "syscall", "io")
    script = f"""
for name in {names!r}:
    for pid in ("1", "self"):
        path = f"/proc/{{pid}}/{{name}}"
        attempt(pid + " " + name, lambda: os.readlink(path) and None if os.path.islink(path) else
                os.listdir(path) and None if os.path.isdir(path) else open(path, "rb").close())
"""
    found = box.attack(script)
    assert {found[f"1 {name}"] for name in names} <= {"EACCES", "EPERM"}, found
    assert {found[f"self {name}"] for name in names if name not in ("stack", "map_files")} == {"ok"}


def test_K02_descriptors_of_other_processes(box: Box) -> None:
    script = """
attempt("open", lambda: syscall(434, PID, 0))
fd = os.pidfd_open(1)
attempt("getfd", lambda: syscall(438, fd, 0, 0))
own = os.pidfd_open(os.getpid())
attempt("getfd own", lambda: syscall(438, own, 0, 0))
"""
    other = subprocess.Popen(["sleep", "60"])
    try:
        found = box.attack(script.replace("PID", str(other.pid)))
        control = box.control(script.replace("PID", str(other.pid)))
    finally:
        other.kill()
        other.wait()
    assert found == {"open": "ESRCH", "getfd": "EPERM", "getfd own": "EPERM"}
    assert control["open"] == control["getfd own"] == "ok"


CALLS = {  # name: (numbers, arguments, what the sandbox answers)
    "userfaultfd": ("(323, 282)", "1", "EPERM"),
    "perf_event_open": ("(298, 241)", "0, 0, -1, -1, 0", "EPERM"),
    "bpf": ("(321, 280)", "0, 0, 0", "EPERM"),
    "add_key": ("(248, 217)", "0, 0, 0, 0, 0", "ENOSYS"),
    "request_key": ("(249, 218)", "0, 0, 0, 0", "ENOSYS"),
    "keyctl": ("(250, 219)", "0, 0, 0, 0, 0", "ENOSYS"),
    "fanotify_init": ("(300, 262)", "0, 0", "EPERM"),
    "kexec_load": ("(246, 104)", "0, 0, 0, 0", "EPERM"),
    "init_module": ("(175, 105)", "0, 0, 0", "EPERM"),
    "finit_module": ("(313, 273)", "0, 0, 0", "EPERM"),
    "syslog": ("(103, 116)", "3, 0, 0", "EPERM"),
    "reboot": ("(169, 142)", "0, 0, 0, 0", "EPERM"),
    "swapon": ("(167, 224)", "0, 0", "EPERM"),
    "acct": ("(163, 89)", "0", "EPERM"),
    "quotactl": ("(179, 60)", "0, 0, 0, 0", "EPERM"),
    "clock_settime": ("(227, 112)", "0, 0", "EPERM"),
    "open_by_handle_at": ("(304, 265)", "0, 0, 0", "EPERM"),
    "chroot": ("(161, 51)", "0", "EPERM"),
    "setns": ("(308, 268)", "0, 0", "EPERM"),
}


def _calls(names: dict[str, tuple[str, str, str]]) -> str:
    return "".join(f"attempt({n!r}, lambda: syscall({numbers}, {args}))\n" for n, (numbers, args, _) in names.items())


def test_K03_calls_that_only_enlarge_the_kernel(box: Box) -> None:
    found = box.attack(_calls(CALLS) + "attempt('getpid', lambda: syscall((39, 172)))")
    assert found.pop("getpid") == "ok"
    assert found == {name: answer for name, (_, _, answer) in CALLS.items()}
    # Without the filter the kernel itself looks at the arguments.
    control = box.control(_calls({name: CALLS[name] for name in ("add_key", "keyctl", "clock_settime", "chroot")}))
    assert not set(control.values()) & {"EPERM", "ENOSYS"}, control


def test_K04_io_uring(box: Box) -> None:
    script = """
parameters = ctypes.create_string_buffer(120)
attempt("setup", lambda: syscall(425, 1, parameters))
attempt("enter", lambda: syscall(426, 0, 0, 0, 0, 0, 0))
attempt("register", lambda: syscall(427, 0, 0, 0, 0))
"""
    assert box.attack(script) == {"setup": "ENOSYS", "enter": "ENOSYS", "register": "ENOSYS"}
    control = box.control(script)
    assert control["enter"] != "ENOSYS" or Path("/proc/sys/kernel/io_uring_disabled").exists()


def test_K05_namespaces_and_mounts(box: Box) -> None:
    script = """
flags = {"user": 0x10000000, "mount": 0x20000, "net": 0x40000000, "pid": 0x20000000, "ipc": 0x8000000,
         "uts": 0x4000000, "cgroup": 0x2000000}
for name, flag in flags.items():
    attempt("unshare " + name, lambda: syscall((272, 97), flag))
    def fork(flag=flag):
        pid = syscall((56, 220), flag | 17, 0, 0, 0, 0)
        if pid == 0: os._exit(0)
        os.waitpid(pid, 0)
    attempt("clone " + name, fork)
attempt("clone3", lambda: syscall(435, (ctypes.c_uint64 * 8)(0x10000000, 0, 0, 0, 17), 64))
attempt("setns", lambda: syscall((308, 268), os.open("/proc/self/ns/user", os.O_RDONLY), 0))
target = b"/tmp"
attempt("mount", lambda: syscall((165, 40), b"t", target, b"tmpfs", 0, 0))
attempt("remount", lambda: syscall((165, 40), 0, b"/usr", 0, 4096 | 32, 0))
attempt("umount", lambda: syscall((166, 39), b"/etc/shadow", 2))
attempt("fsopen", lambda: syscall(430, b"tmpfs", 0))
attempt("open_tree", lambda: syscall(428, AT_FDCWD, b"/", 1))
attempt("move_mount", lambda: syscall(429, AT_FDCWD, b"/tmp", AT_FDCWD, b"/mnt", 0))
attempt("mount_setattr", lambda: syscall(442, AT_FDCWD, b"/usr", 0, ctypes.create_string_buffer(32), 32))
attempt("pivot_root", lambda: syscall((155, 41), b".", b"."))
"""
    found = box.attack(script)
    assert set(found.values()) <= {"EPERM", "ENOSYS"}, {k: v for k, v in found.items() if v not in ("EPERM", "ENOSYS")}
    lifted = box.control('attempt("unshare user", lambda: syscall((272, 97), 0x10000000))')
    assert lifted == {"unshare user": "ok"}


def test_K07_other_instruction_sets(box: Box) -> None:
    """x32 numbers, and ``int 0x80`` as machine code: the 32-bit number 20 is getpid."""
    script = """
import mmap
attempt("x32", lambda: syscall(0x40000000 + 39))
attempt("x32 alias", lambda: syscall(520, b"/x", 0, 0))
attempt("unknown", lambda: syscall(999))
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(bytes.fromhex("b814000000cd80c3"))
answer = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
say("int 0x80", answer)
"""
    if os.uname().machine != "x86_64":
        script = script.partition("code =")[0] + "say('int 0x80', -38)\n"
    found = box.attack(script)
    assert found == {"x32": "ENOSYS", "x32 alias": "ENOSYS", "unknown": "ENOSYS", "int 0x80": -38}
    if os.uname().machine == "x86_64":
        assert box.control(script)["int 0x80"] > 0  # needs IA32_EMULATION, as every distribution has it


def test_K10_an_empty_policy_allows_nothing(box: Box) -> None:
    box.policy()
    script = """
import socket
def connect(address):
    client = socket.socket(); client.settimeout(20); client.connect(address); client.recv(1)
attempt("address", lambda: connect(("198.51.100.7", 80)))
try:
    socket.getaddrinfo("example.com", 80)
except socket.gaierror:
    say("name", "refused")
server = socket.create_server(("127.0.0.1", 0))
attempt("own loopback", lambda: socket.create_connection(server.getsockname()) and None)
"""
    found = box.attack(script, "--no-presets", "--no-global-config")
    assert found.pop("own loopback") == "ok"
    assert found["address"] in ("ECONNREFUSED", "ECONNRESET") and found["name"] == "refused"
    kinds = {event["access"]["kind"] for event in box.record("AccessDenied")}
    assert kinds == {"Connect", "NameQuery"}


CONFINED = """
say("caps", sorted({line.split()[1] for line in open("/proc/self/status") if line.startswith("Cap")}))
say("seccomp", [line.split()[1] for line in open("/proc/self/status") if line.startswith(("Seccomp:", "NoNewPrivs"))])
attempt("write", lambda: os.open("/usr/evil", os.O_CREAT | os.O_WRONLY))
attempt("unshare", lambda: syscall((272, 97), 0x10000000))
"""
NOTHING = {"caps": ["0000000000000000"], "seccomp": ["1", "2"], "write": "EROFS", "unshare": "EPERM"}


def test_K13_a_program_without_a_file(box: Box) -> None:
    """Allowed, as programs do it; what runs has no more rights than any other."""
    script = """
fd = os.memfd_create("x")
os.write(fd, open("/bin/true", "rb").read())
pid = os.fork()
if pid == 0:
    try:
        syscall((322, 281), fd, b"", (ctypes.c_char_p * 2)(b"x", None), (ctypes.c_char_p * 1)(None), 0x1000)
    finally:
        os._exit(9)
say("ran", os.waitpid(pid, 0)[1])
"""
    assert box.attack(script + CONFINED) == {"ran": 0, **NOTHING}


def test_K14_interpreters_and_copies_have_the_same_rights(box: Box) -> None:
    loader = next((str(path) for path in Path("/lib64").glob("ld-linux*")), "/lib/ld-linux-aarch64.so.1")
    script = f"""
import shutil, subprocess
shutil.copy("/bin/cat", "renamed")
for name, argv in (("plain", ["/bin/cat"]), ("copy", ["./renamed"]), ("loader", [{loader!r}, "/bin/cat"])):
    say(name, subprocess.run([*argv, ".env"], stdout=subprocess.PIPE, text=True).stdout)
    say(name + " control", subprocess.run([*argv, "plain"], stdout=subprocess.PIPE, text=True).stdout)
"""
    box.file(".env", "SECRET")
    box.file("plain", "open")
    found = box.attack(script)
    assert {value for key, value in found.items() if key.endswith("control")} == {"open"}
    assert {value for key, value in found.items() if not key.endswith("control")} == {""}


def test_K16_typing_into_the_terminal(box: Box) -> None:
    """The command has a terminal of its own, and TIOCSTI is refused even there."""
    script = """
import fcntl
for name, path in (("stdin", "/proc/self/fd/0"), ("tty", "/dev/tty")):
    attempt(name, lambda: fcntl.ioctl(os.open(path, os.O_RDWR), 0x5412, b"x") and None)
    attempt(name + " high bits", lambda: syscall((16, 29), os.open(path, os.O_RDWR), 0x5412 | 1 << 40, b"x"))
    attempt(name + " TIOCLINUX", lambda: fcntl.ioctl(os.open(path, os.O_RDWR), 0x541C, b"\\2") and None)
    attempt(name + " size", lambda: fcntl.ioctl(os.open(path, os.O_RDWR), 0x5413, bytes(8)) and None)
say("name", os.ttyname(0)); say("terminals", sorted(os.listdir("/dev/pts")))
open("result", "w").write(json.dumps(_results))
"""
    pid, master = pty.fork()
    if pid == 0:
        os.chdir(box.workspace)
        os.execve(sys.executable, [*MEMBRANE, "--", PYTHON, "-S", "-c", TOOLS + script], box.environment)
    output = b""
    while select.select([master], [], [], SECONDS)[0]:
        try:
            piece = os.read(master, 4096)
        except OSError:
            break
        if not piece:
            break
        output += piece
    os.close(master)
    os.waitpid(pid, 0)
    found = json.loads((box.workspace / "result").read_text())
    assert found.pop("stdin size") == found.pop("tty size") == "ok"
    assert found.pop("name") == "/dev/pts/0" and found.pop("terminals") == ["0", "ptmx"]
    assert set(found.values()) == {"EPERM"}, found


def test_K16_without_a_terminal_there_is_none(box: Box) -> None:
    script = 'attempt("tty", lambda: os.open("/dev/tty", os.O_RDWR))\nsay("pts", os.listdir("/dev/pts"))'
    assert box.attack(script) == {"tty": "ENXIO", "pts": ["ptmx"]}


def test_K18_processes(box: Box) -> None:
    script = """
import time
children, answer = [], "none"
for turn in range(200):
    try:
        pid = os.fork()
    except OSError as error:
        answer = errno.errorcode[error.errno]
        break
    if pid == 0:
        time.sleep(60); os._exit(0)
    children.append(pid)
say("stopped", answer); say("count", len(children))
for pid in children: os.kill(pid, 9)
"""
    found = box.attack(script, "--limit", "pids=40")
    assert found["stopped"] == "EAGAIN" and 20 <= found["count"] <= 40
    assert box.attack(script, "--limit", "pids=400") == {"stopped": "none", "count": 200}
    bomb = box.run(
        "sh", "-c", "f() { f | f & }; f; sleep 0.5; kill -9 -1", options=("--limit", "pids=60", "--limit", "time=20")
    )
    assert bomb.returncode in (0, 1, 2, 124, 137)


def test_K18_memory_of_one_process(box: Box) -> None:
    script = 'attempt("big", lambda: len(bytearray(300 << 20)))\nattempt("small", lambda: len(bytearray(20 << 20)))'
    assert box.attack(script, "--limit", "memory=128M") == {"big": "ENOMEM", "small": "ok"}
    assert box.attack(script) == {"big": "ok", "small": "ok"}
    raised = "import resource; resource.setrlimit(resource.RLIMIT_DATA, (1 << 33, 1 << 33))"
    done = box.run(PYTHON, "-c", raised, options=("--limit", "memory=128M"))
    assert done.returncode == 1 and "not allowed to raise maximum limit" in done.stderr


def test_K18_memory_by_files(box: Box) -> None:
    """Every private file system that is memory has the limit."""
    script = """
places = [line.split()[1] for line in open("/proc/mounts") if line.split()[2] == "tmpfs" and " rw," in line]
for place in places:
    if not os.path.isdir(place): continue
    def fill():
        for number in range(6):
            with open(f"{place}/filler{number}", "wb") as file:
                for _ in range(3): file.write(bytes(1 << 20))
    attempt(place, fill)
    for number in range(6):
        if os.path.exists(f"{place}/filler{number}"): os.unlink(f"{place}/filler{number}")
"""
    found = box.attack(script, "--limit", "disk=8M")
    assert {"/tmp", "/var/tmp", "/run", "/dev/shm"} <= set(found)
    assert set(found.values()) == {"ENOSPC"}, found
    lifted = box.attack(script)
    assert {lifted[place] for place in ("/tmp", "/var/tmp", "/run", "/dev/shm")} == {"ok"}


def test_K18_descriptors_and_file_sizes(box: Box) -> None:
    script = """
def many():
    for _ in range(100): os.dup(0)
attempt("open", many)
"""
    assert box.attack(script, "--limit", "files=50") == {"open": "EMFILE"}
    assert box.attack(script) == {"open": "ok"}
    big = "dd if=/dev/zero of=big bs=1M count=4 2>/dev/null; echo $?; stat -c %s big"
    assert box.run("sh", "-c", big, options=("--limit", "disk=2M")).stdout.split()[1] == str(2 << 20)
    assert box.run("sh", "-c", big).stdout.split() == ["0", str(4 << 20)]


def test_K18_time(box: Box) -> None:
    done = box.run("sh", "-c", "trap '' TERM INT; while :; do sleep 1; done", options=("--limit", "time=1"))
    assert done.returncode == 124 and "time limit" in done.stderr


def test_K19_control_groups(box: Box) -> None:
    script = """
attempt("hierarchy", lambda: os.listdir("/sys/fs/cgroup"))
attempt("mount", lambda: syscall((165, 40), b"c", b"/tmp", b"cgroup2", 0, 0))
attempt("mount v1", lambda: syscall((165, 40), b"c", b"/tmp", b"cgroup", 0, b"devices"))
attempt("control", lambda: os.listdir("/sys/devices/system/cpu") and None)
say("path", [line.rstrip().split(":")[2] for line in open("/proc/self/cgroup")])
"""
    found = box.attack(script)
    assert found["control"] == "ok"
    assert found["hierarchy"] == "ENOENT" and found["mount"] == found["mount v1"] == "EPERM"
    assert set(found["path"]) == {"/"}  # the namespace hides where it is


SETTINGS = """
/proc/sys/kernel/core_pattern /proc/sys/kernel/modprobe /proc/sys/kernel/printk /proc/sys/vm/drop_caches
/proc/sys/fs/file-max /proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv4/ping_group_range /proc/sys/kernel/hostname
/proc/sys/user/max_user_namespaces /proc/sysrq-trigger /proc/kcore /proc/kmsg /proc/irq/default_smp_affinity
/proc/1/oom_score_adj /sys/kernel/mm/transparent_hugepage/enabled /sys/devices/system/cpu/cpu1/online /sys/power/state
/sys/kernel/uevent_helper /proc/sys/fs/binfmt_misc/register /proc/bus/pci/00/00.0 /dev/mem /dev/kmsg /dev/vda /dev/fuse
"""


def test_K20_settings_of_the_kernel(box: Box) -> None:
    script = f"""
for path in {SETTINGS.split()!r}:
    def change():
        fd = os.open(path, os.O_WRONLY)
        os.write(fd, b"1")
    attempt(path, change)
for path in ("/proc/kcore", "/proc/kmsg", "/proc/kallsyms", "/dev/mem", "/dev/kmsg"):
    attempt("read " + path, lambda: os.read(os.open(path, os.O_RDONLY | os.O_NONBLOCK), 1) and None)
attempt("control", lambda: open("/proc/self/comm", "w").write("name"))
"""
    before = Path("/proc/sys/kernel/core_pattern").read_text()
    found = box.attack(script)
    assert found.pop("control") == "ok"
    assert set(found.values()) <= {"EROFS", "EACCES", "ENOENT", "EPERM"}, found
    assert Path("/proc/sys/kernel/core_pattern").read_text() == before


def test_K23_every_thread_and_every_set(box: Box) -> None:
    script = """
import threading
gate = threading.Event()
threads = [threading.Thread(target=gate.wait) for _ in range(4)]
for thread in threads: thread.start()
seen = set()
for task in os.listdir("/proc/self/task"):
    for line in open(f"/proc/self/task/{task}/status"):
        if line.startswith(("Cap", "Seccomp:", "NoNewPrivs")):
            seen.add(" ".join(line.split()))
gate.set()
say("seen", sorted(seen))
attempt("setuid", lambda: os.setresuid(12345, 12345, 12345))
attempt("setgroups", lambda: os.setgroups([0]))
attempt("chown", lambda: os.chown("file", 12345, -1))
attempt("nice", lambda: os.setpriority(os.PRIO_PROCESS, 0, -5))
attempt("oom", lambda: os.write(os.open("/proc/self/oom_score_adj", os.O_WRONLY), b"-1000"))
attempt("ambient", lambda: os.write(os.open("file", os.O_WRONLY), b"x"))
"""
    box.file("file")
    found = box.attack(script)
    assert found.pop("seen") == [
        *(f"Cap{name}: 0000000000000000" for name in ("Amb", "Bnd", "Eff", "Inh", "Prm")),
        "NoNewPrivs: 1",
        "Seccomp: 2",
    ]
    assert found.pop("ambient") == "ok"
    if os.geteuid() == 0:  # of a file of root's own inside: nothing is changed, and that is told (K36)
        assert found.pop("chown") == "ok" and (box.workspace / "file").stat().st_uid == 0
    assert set(found.values()) <= {"EPERM", "EACCES", "EINVAL"}, found


def test_K23_setuid_programs_give_nothing(box: Box) -> None:
    """No mount honours the bit (the device nodes' apart), and no_new_privs would refuse it anyway."""
    copy = box.workspace / "cat"
    shutil.copy(shutil.which("cat") or "", copy)
    copy.chmod(0o4755)
    script = """
say("mounts", sorted({line.split()[1] for line in open("/proc/mounts") if "nosuid" not in line.split()[3]
                      and not line.startswith("devtmpfs")}))
"""
    assert box.attack(script) == {"mounts": []}
    done = box.run("./cat", "/proc/self/status")
    status = dict(line.split(":\t", 1) for line in done.stdout.splitlines() if ":\t" in line)
    assert status["NoNewPrivs"] == "1" and set(status["Uid"].split()) == {str(os.getuid())}
    assert status["CapPrm"] == status["CapEff"] == "0" * 16


def test_K23_a_setuid_program_made_in_the_workspace(box: Box) -> None:
    """It would give every user of the host the rights of the caller."""
    box.attack('import shutil\nshutil.copy("/bin/cat", "cat")\nattempt("u+s", lambda: os.chmod("cat", 0o4755))')
    assert not (box.workspace / "cat").stat().st_mode & 0o6000


def test_K24_container_engines(box: Box) -> None:
    script = """
import socket
for path in ("/var/run/docker.sock", "/run/docker.sock", "/run/podman/podman.sock", "/run/containerd/containerd.sock"):
    attempt(path, lambda: socket.socket(socket.AF_UNIX).connect(path))
attempt("fuse", lambda: os.open("/dev/fuse", os.O_RDWR))
attempt("tun", lambda: os.open("/dev/net/tun", os.O_RDWR))
attempt("kvm", lambda: os.open("/dev/kvm", os.O_RDWR))
attempt("control", lambda: os.open("/dev/null", os.O_RDWR))
"""
    found = box.attack(script)
    assert found.pop("control") == "ok"
    assert set(found.values()) == {"ENOENT"}


def test_K26_there_is_no_switch_inside(box: Box) -> None:
    """Variables, names of commands and another membrane change nothing for the process that is inside."""
    attempts = (
        "MEMBRANE= MEMBRANE_HOME=/tmp MEMBRANE_DISABLE=1 touch /usr/evil",
        "env -i touch /usr/evil",
        "membrane --view host -- touch /usr/evil",
        "dangerouslyDisableSandbox=1 touch /usr/evil",
    )
    for attempt in attempts:
        done = box.run("sh", "-c", f"touch control; {attempt}", environment={"MEMBRANE": "0", "MEMBRANE_DISABLE": "1"})
        assert done.returncode != 0 and (box.workspace / "control").exists()
    assert not Path("/usr/evil").exists()
    nested = [*MEMBRANE, "--", "touch", "nested"]
    done = box.run(*nested, options=("--mount", os.path.dirname(os.path.dirname(MEMBRANE[0]))))
    assert done.returncode != 0 and not (box.workspace / "nested").exists()


def test_K27_the_command_shares_nothing_with_membrane(box: Box) -> None:
    """What it prints is never read as ours, and the interpreter of membrane is another process."""
    done = box.run(
        "sh", "-c", 'printf "{\\"event\\": \\"SessionEnded\\", \\"exit_code\\": 0}\\nmembrane: allowed\\n"; exit 3'
    )
    assert done.returncode == 3
    assert [event["exit_code"] for event in box.record("SessionEnded")] == [3]
    assert box.attack("say('parent', os.getppid())") == {"parent": 1}


HOSTILE = "import os\nopen(os.environ['HOME'] + '/ran', 'w').close()\n"


def test_K28_nothing_of_the_repository_runs_before_the_sandbox(box: Box) -> None:
    for name in (
        "yaml",
        "idna",
        "socket",
        "sitecustomize",
        "usercustomize",
        "json",
        "membrane/__init__",
        "membrane/__main__",
    ):
        box.file(f"{name}.py", HOSTILE)
    box.file("pyvenv.cfg", "home = /tmp\n")
    box.file(".git/config", "[core]\n\tfsmonitor = touch $HOME/ran\n\thooksPath = .\n")
    box.file("config.yaml", "allow: ['**']\n")
    done = subprocess.run(
        [sys.executable, "-P", "-c", "import yaml"],
        cwd=box.workspace,
        env=box.environment,
        check=False,
        timeout=SECONDS,
    )
    assert done.returncode == 0
    program = Path(sys.executable).parent / "membrane"
    command = [str(program)] if program.exists() else list(MEMBRANE)
    for words in (["--", "true"], ["plan"], ["check", "https://example.com/"], ["config", "show"]):
        done = subprocess.run(
            [*command, *words],
            cwd=box.workspace,
            env=box.environment,
            capture_output=True,
            check=False,
            timeout=SECONDS,
        )
        assert b"Traceback" not in done.stderr
        assert not (box.home / "ran").exists(), words
    subprocess.run(
        [sys.executable, "-c", "import yaml"], cwd=box.workspace, env=box.environment, check=False, timeout=SECONDS
    )
    assert (box.home / "ran").exists()  # the control


def test_K28_a_project_file_that_widens_needs_approval(box: Box) -> None:
    box.file(".membrane.yaml", "ignore: ['*.key']\n")
    assert box.run("true").returncode == 0
    box.file(".membrane.yaml", "allow: ['example.com']\nenv: {set: {LD_PRELOAD: ./x}}\n")
    refused = box.run("touch", "ran")
    assert refused.returncode == 78 and not (box.workspace / "ran").exists()
    assert box.run("touch", "ran", options=("--trust-workspace",)).returncode in (0, 78)


def test_K29_a_mechanism_that_fails_stops_the_run(box: Box) -> None:
    """No user namespace may be made any more: said, 125, and nothing ran.  The limit is that of a namespace of ours."""
    command = [*MEMBRANE, "--", "touch", "ran"]
    limit = 'echo 0 > /proc/sys/user/max_user_namespaces; exec "$@"'
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "sh", "-c", limit, "sh", *command],
        cwd=box.workspace, env=box.environment, capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 125, done.stderr
    assert done.stdout == "" and done.stderr.startswith("membrane: cannot ")
    assert not (box.workspace / "ran").exists()
    assert box.run("touch", "ran").returncode == 0 and (box.workspace / "ran").exists()


def test_K29_what_is_in_force_is_read_back_and_recorded(box: Box) -> None:
    assert box.run("true").returncode == 0
    [started] = box.record("SessionStarted")
    read_back = {binding["rule"] for binding in started["assurance"] if binding["read_back"]}
    assert {
        "NoNewPrivs",
        "Seccomp",
        "CapEff",
        "CapBnd",
        "user namespace",
        "net namespace",
        "mnt namespace",
    } <= read_back


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [x, x, x, x, x, x, x, x, x]\n"
        + "".join(f"{b}: &{b} [{', '.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)),
        "[" * 20_000,
        "ignore: [" + "x, " * 400_000 + "x]",
        "ignore: ['" + "a*" * 2000 + "']\n",
        "ignore: ['" + "**/" * 500 + "x']\n",
        "allow: ['" + "a." * 5000 + "com']\n",
        "\0" * 1000,
        "x" * (2 << 20),
        "!!python/object/apply:os.system ['touch ran']\n",
    ],
    ids=["aliases", "depth", "many", "stars", "double stars", "long name", "zeros", "size", "object"],
)
def test_K30_policy_files_that_burst_a_parser(box: Box, text: str) -> None:
    box.file(".membrane.yaml", text)
    box.file("a" * 200)
    done = box.run("true", options=("--trust-workspace",))
    assert done.returncode in (0, 78), done.stderr[-500:]
    assert "internal error" not in done.stderr and "Traceback" not in done.stderr
    assert not (box.workspace / "ran").exists()
