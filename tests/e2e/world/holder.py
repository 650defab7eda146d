"""The process that holds a world: ``python holder.py DIRECTORY``; ends, with all of the world, when its parent does.

Theory of operation
-------------------
Two network namespaces are joined by a veth pair and by nothing else::

    host (membrane runs here)                       internet (no uplink)
      lo 127.0.0.0/8: resolver, dev server            every address of both families is local (AnyIP):
      eth0 10.77.0.2/24 fd77::2/64  ---- veth ----      DNS, HTTP, TLS, SSH banner, redis, git, echo, proxies
      default via 10.77.0.1, fd77::1

As root only the network, mount and pid namespaces are new, so membrane is really root there.  As a plain user a
user namespace that maps the user to itself comes first.  The servers live in a pid namespace whose first process
dies with this one.  When all servers listen, one line ``ready PID`` goes to stdout: the process to join.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import linux
import names

HOST_SETUP = f"""
link set lo up
link add eth0 type veth peer name up0
link set up0 netns /proc/self/fd/{{internet}}
addr add {names.HOST4}/24 dev eth0
addr add {names.HOST6}/64 dev eth0 nodad
link set eth0 up
route add default via {names.ROUTER4}
"""
INTERNET_SETUP = f"""
link set lo up
addr add {names.ROUTER4}/24 dev up0
addr add {names.ROUTER6}/64 dev up0 nodad
link set up0 up
route add local default dev lo table main
route add unreachable {names.UNREACHABLE4}
-6 route add local default dev lo table main
"""
LAST_SETUP = f"-6 route add default via {names.ROUTER6}\n"


def ip(batch: str, *fds: int) -> None:
    for line in batch.strip().splitlines():
        subprocess.run(["ip", *line.split()], check=True, pass_fds=fds)


def map_self() -> None:
    uid, gid = os.getuid(), os.getgid()
    linux.unshare(linux.CLONE_NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def own_network() -> int:
    linux.unshare(linux.CLONE_NEWNET)
    return os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def own_etc(directory: str) -> None:
    linux.unshare(linux.CLONE_NEWNS)
    linux.mount("none", "/", linux.MS_REC | linux.MS_SLAVE)
    files = {
        "/etc/resolv.conf": f"nameserver {names.RESOLVER}\noptions timeout:2 attempts:2\n",
        "/etc/hosts": "127.0.0.1 localhost\n::1 localhost ip6-localhost\n",
        "/etc/nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nservices: files\n",
    }
    for path, text in files.items():
        source = f"{directory}/{os.path.basename(path)}"
        with open(source, "w") as file:
            file.write(text)
        os.chmod(source, 0o644)
        if os.path.exists(path):
            linux.mount(source, os.path.realpath(path), linux.MS_BIND)


def serve(module: str, directory: str, network: int) -> None:
    """Fork a server process in ``network``; return when it listens."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        try:
            os.close(reader)
            linux.die_with_parent(signal.SIGKILL)
            linux.setns(network, linux.CLONE_NEWNET)
            __import__(module).start(directory)
            os.write(writer, b"x")
            os.close(writer)
            while True:
                signal.pause()
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(writer)
    if os.read(reader, 1) != b"x":
        raise SystemExit(f"{module} did not start; its traceback is above")
    os.close(reader)


def first(directory: str) -> None:
    """The first process of the world's pid namespace."""
    linux.die_with_parent(signal.SIGKILL)
    own_etc(directory)
    internet = own_network()
    host = own_network()
    if os.getuid():
        linux.keep_capabilities_over_exec()
    ip(HOST_SETUP.format(internet=internet), internet)
    linux.setns(internet, linux.CLONE_NEWNET)
    ip(INTERNET_SETUP)
    with open("/proc/sys/net/ipv4/ip_forward", "w") as file:  # a host that does not route says nothing about "no route"
        file.write("1")
    linux.setns(host, linux.CLONE_NEWNET)
    ip(LAST_SETUP)
    serve("origins", directory, internet)
    serve("hostside", directory, host)
    print("up", flush=True)
    while True:
        try:
            os.wait()
        except ChildProcessError:
            signal.pause()


def main(directory: str) -> None:
    if os.getuid():
        map_self()
    linux.unshare(linux.CLONE_NEWPID)
    linux.die_with_parent(signal.SIGKILL)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(writer, 1)
        os.close(writer)
        os.close(reader)
        try:
            first(directory)
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(writer)
    if os.read(reader, 2) == b"up":
        print(f"ready {pid}", flush=True)
    os.waitpid(pid, 0)


if __name__ == "__main__":
    main(sys.argv[1])
