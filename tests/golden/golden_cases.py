"""The fixed policies and host facts whose plans are kept as text, and how a plan is written down.

Theory of operation
-------------------
``build`` is pure, so one (policy, facts) pair gives one plan on every machine.  Each case is such a pair; ``render``
writes the whole plan, one line per operation, and ``refusals`` writes every error of ``refuse`` as a person sees it.
A change of a plan is then a change of a text that somebody reads.  ``update.py`` writes the files again.
"""

from __future__ import annotations

from pathlib import Path

from membrane.errors import PolicyError
from membrane.plan.build import build
from membrane.plan.model import (
    Bind,
    DeviceFact,
    Devices,
    Directory,
    File,
    FoundFile,
    HostFacts,
    ImageFacts,
    ImageTree,
    Layer,
    Listen,
    Mask,
    Overlay,
    Pin,
    Proc,
    ReadOnly,
    Repository,
    Reviewed,
    SandboxPlan,
    ScanHit,
    SocketFact,
    Symlink,
    SystemLayer,
    Tmpfs,
)
from membrane.plan.mounts import as_found, workspace
from membrane.policy.model import (
    DeviceRule,
    EnvRule,
    FileRule,
    HostRule,
    HttpRule,
    Limits,
    MountRule,
    Network,
    Origin,
    PathRule,
    Policy,
    PortRange,
    PortRule,
    SecretRule,
    SocketRule,
)

DIRECTORY = Path(__file__).parent
REFUSALS = "refusals"

# ---------------------------------------------------------------- host facts

MERGED = (("/bin", "/usr/bin"), ("/sbin", "/usr/sbin"), ("/lib", "/usr/lib"), ("/lib64", "/usr/lib64"))
DEBIAN = frozenset(
    (
        *("/usr", "/etc", "/opt", "/bin", "/sbin", "/lib", "/lib64", "/etc/resolv.conf", "/etc/hosts", "/usr/local"),
        *("/etc/shadow", "/etc/sudoers.d", "/etc/ssl/private", "/var/lib/dpkg", "/sys/devices/system/cpu"),
    )
)
ENVIRON = (
    ("PATH", "/usr/local/bin:/usr/bin:/bin"),
    ("TERM", "xterm-256color"),
    ("LANG", "en_US.UTF-8"),
    ("LC_TIME", "de_DE.UTF-8"),
    ("AWS_SECRET_ACCESS_KEY", "only where a rule passes AWS_*"),
    ("LD_PRELOAD", "/must/not/be/passed.so"),
    ("HTTPS_PROXY", "http://must.not.be.passed:3128"),
)
USER = HostFacts(
    uid=1000,
    gid=1000,
    user="dev",
    root=False,
    home="/home/dev",
    state="/home/dev/.membrane",
    workspace="/home/dev/project",
    hostname="box",
    environ=ENVIRON,
    existing=DEBIAN,
    links=MERGED,
)
ROOT = USER.replace(uid=0, gid=0, user="root", root=True, home="/root", state="/root/.membrane", workspace="/srv/app")


def facts_with_path(path: str, *existing: str, links: tuple[tuple[str, str], ...] = (), **changes: object) -> HostFacts:
    """``USER`` with another PATH and more things on the disk."""
    environ = tuple((name, path if name == "PATH" else value) for name, value in ENVIRON)
    return USER.replace(environ=environ, existing=DEBIAN | set(existing), links=MERGED + links, **changes)


# ---------------------------------------------------------------- policies

HERE = Origin("user", "config.yaml", 3)
PROJECT = Origin("project", ".membrane.yaml", 7)
OPTION = Origin("command line", "command line")
HTTPS = (PortRange("tcp", 443, 443),)


def host(name: str, ports: tuple[PortRange, ...] = HTTPS, **more: object) -> HostRule:
    return HostRule(name, HERE, "host", name, ports=ports, **more)


DEFAULT = Policy(
    allow=(
        host("pypi.org"),
        HostRule("*.github.com", HERE, "wildcard", "github.com"),
        HostRule("10.0.0.7", PROJECT, "network", network=Network(4, 0x0A000007, 32), ports=(PortRange("udp", 53, 54),)),
    ),
    deny=(host("tracker.example", ()),),
    paths=(PathRule(".env", HERE, "hide"), PathRule("/dist", PROJECT, "readonly")),
    env=(EnvRule("AWS_*", None, HERE), EnvRule("CI", "1", HERE)),
)
PLAIN = Policy()
URL = host("api.example.com", http=(HttpRule(("GET",), ("/v1",)),)).replace(text="https://api.example.com/v1")
SOME_HITS = (
    ScanHit("src/deep/.env", "hide", False),
    ScanHit(".env", "hide", False),
    ScanHit("secrets", "hide", True),
    ScanHit("dist", "readonly", True),
    ScanHit(".git/hooks", "protect", True),
    ScanHit(".git/config", "protect", False),
    ScanHit(".mcp.json", "protect", False, link=True),
)

Case = tuple[Policy, HostFacts]
CHANGES = "/home/dev/.membrane/changes"
REVIEWED = Reviewed("fix", (f"{CHANGES}/.layers/0000000a/upper", f"{CHANGES}/fix/masks"), f"{CHANGES}/.layers/0000000b")
REVIEW = DEFAULT.replace(workspace="review", change_set="fix")
REVIEWS = USER.replace(reviewed=REVIEWED)
SHARED = Repository(
    (("/home/dev/main/.git", "rw"), ("/home/dev/main/.git/worktrees/third", "ro")),
    own="/home/dev/main/.git/worktrees/project",
)
LINKED = USER.replace(
    repository=SHARED,
    reviewed=REVIEWED.replace(
        repository="/home/dev/main/.git",
        git_lowers=(f"{CHANGES}/.layers/0000000a/git/upper",),
        git_layer=f"{CHANGES}/.layers/0000000b/git",
    ),
)
CASES: dict[str, Case] = {
    "user-default": (DEFAULT, USER),
    "root": (DEFAULT, ROOT),
    "root-system": (
        PLAIN.replace(system="persistent", mounts=(MountRule("/srv/data", "rw", OPTION, target="/opt/a/data"),)),
        ROOT.replace(
            system=SystemLayer("/root/.membrane/system/app-0/0", ("/usr/local",)), bound=("/opt/service/socket",)
        ),
    ),
    "review": (REVIEW.replace(mounts=(MountRule("/srv/data", "rw", HERE),)), REVIEWS),
    "review-root-view-host": (REVIEW.replace(view="host"), ROOT.replace(reviewed=REVIEWED)),
    "review-linked": (as_found(REVIEW, LINKED)[0], LINKED),
    "view-host": (PLAIN.replace(view="host"), USER),
    "view-host-root": (PLAIN.replace(view="host"), ROOT),
    "view-host-open-files": (
        PLAIN.replace(
            view="host",
            open_files=True,
            file_rules=(
                FileRule("allow-write", "/", "every file", HERE),
                FileRule("deny-read", "/k/key", "/k/key", HERE),
            ),
            file_base="/home/dev/project",
        ),
        USER.replace(
            runtime=(("/run/docker.sock", ""), ("/run/lock", ""), ("/run/shm", "/dev/shm"), ("/run/user", "")),
            bound=("/run/docker.sock", "/srv/x.sock"),
            files=(
                FoundFile("allow-write", "/", "/", True),
                FoundFile("deny-read", "/k/key", "/k/key", False),
            ),
        ),
    ),
    "view-host-open-sockets": (
        PLAIN.replace(view="host", open_sockets=True, user_namespaces=True),
        USER.replace(bound=("/run/docker.sock", "/run/user/1000/gnupg/S.gpg-agent", "/srv/x.sock")),
    ),
    "home-ephemeral": (PLAIN.replace(home="ephemeral", limits=Limits(disk=1 << 30)), USER),
    "home-shared": (PLAIN.replace(home="shared"), USER),
    "mounts": (
        PLAIN.replace(
            mounts=(
                MountRule("../lib", "rw", HERE),  # inside the repository, which is read-only: the inner rule decides
                MountRule("/lib/firmware", "ro", HERE),
                MountRule("/srv/data", "rw", OPTION, target="/data"),
                MountRule("/home/dev/notes", "rw", HERE),
                MountRule("/etc", "ro", HERE),
                MountRule("", "ro", PROJECT, git_root=True),
            )
        ),
        USER.replace(workspace="/home/dev/repo/service", git_root="/home/dev/repo"),
    ),
    "mount-git-root-is-workspace": (
        PLAIN.replace(mounts=(MountRule("", "ro", PROJECT, git_root=True),)),
        USER.replace(git_root="/home/dev/project"),
    ),
    "mount-below-home": (
        PLAIN.replace(
            mounts=(MountRule("/home/dev/data/deep/x", "rw", HERE), MountRule("/home/dev/data/y", "ro", HERE))
        ),
        USER,
    ),
    "mount-git-root-ro": (
        PLAIN.replace(mounts=(MountRule("", "ro", HERE, git_root=True), MountRule("../.git", "rw", HERE))),
        USER.replace(workspace="/home/dev/repo/service", git_root="/home/dev/repo"),
    ),
    "mount-git-of-worktree-above": (
        PLAIN.replace(mounts=(MountRule("../../.git", "rw", HERE),)),
        USER.replace(workspace="/home/dev/repo/trees/one", git_root="/home/dev/repo/trees/one"),
    ),
    "mount-git-read-only": (
        PLAIN.replace(mounts=(MountRule("../.git", "ro", HERE),)),
        USER.replace(workspace="/home/dev/repo/service", git_root="/home/dev/repo"),
    ),
    "mount-holds-workspace": (
        PLAIN.replace(mounts=(MountRule("..", "ro", HERE),)),
        USER.replace(workspace="/srv/all/project"),
    ),
    "mount-names-credentials": (
        PLAIN.replace(mounts=(MountRule("/etc/ssl/private/mine", "ro", HERE, target="/etc/ssl/private/mine"),)),
        USER,
    ),
    "workspace-in-tmp": (PLAIN, USER.replace(workspace="/tmp/try")),
    "workspace-in-top-directory": (PLAIN, USER.replace(workspace="/build/app")),
    "workspace-in-usr": (PLAIN, USER.replace(workspace="/usr/src/linux")),
    "path-venv-and-home-bin": (
        PLAIN,
        facts_with_path(
            "/home/dev/venvs/a/bin:/home/dev/bin:/home/dev/.local/bin:/home/dev/tools:/opt/x/bin:/usr/bin",
            *("/home/dev/venvs/a", "/home/dev/venvs/a/bin", "/home/dev/venvs/a/pyvenv.cfg", "/home/dev/venvs/a/lib"),
            *("/home/dev/bin", "/home/dev/lib", "/home/dev/.local/bin", "/home/dev/.local/lib", "/home/dev/tools"),
        ),
    ),
    "path-tmp-venv": (
        PLAIN,
        facts_with_path(
            "/tmp/venv/bin:/srv/tool/bin:/usr/bin",
            *("/tmp/venv", "/tmp/venv/bin", "/tmp/venv/pyvenv.cfg", "/srv/tool", "/srv/tool/bin"),
        ),
    ),
    # Nothing of these may appear: relative, above the home or the workspace, shared places, our own state.
    "path-that-must-not-open": (
        PLAIN,
        facts_with_path(
            ":.:bin:../bin:/srv/all/x/../y:/:/home:/home/:/home//:/home/dev:/srv/all:/srv/all/project/bin:/tmp:/run:"
            "/run/user/1000:/proc/self/cwd:/dev/shm/x:/var:/home/dev/.membrane:/home/dev/.membrane/homes/bin:/usr/bin",
            *("/home", "/home/dev", "/srv/all", "/srv/all/project/bin", "/srv/all/project/lib", "/tmp", "/run"),
            *("/run/user/1000", "/proc/self/cwd", "/dev/shm/x", "/var", "/home/dev/.membrane"),
            *("/home/dev/.membrane/homes/bin", "/home/dev/.membrane/homes/lib"),
            workspace="/srv/all/project",
        ),
    ),
    # Only the last one may appear: a link is judged by where it leads.
    "path-links": (
        PLAIN,
        facts_with_path(
            "/home/dev/a:/home/dev/b:/home/dev/c:/home/dev/current/bin:/home/dev/e:/run/user/1000/fnm/1/bin",
            *("/home/dev/a", "/home/dev/b", "/home/dev/c", "/home/dev/e", "/home/dev/current"),
            *("/home/dev/current/bin", "/home/dev/current/lib"),
            *("/run/user/1000/fnm/1", "/run/user/1000/fnm/1/bin", "/run/user/1000/fnm/1/lib"),
            links=(
                ("/home/dev/a", "/home/dev/.ssh"),
                ("/home/dev/b", "/home/dev/project/bin"),
                ("/home/dev/c", "/"),
                ("/home/dev/current", "/home/dev/project"),
                ("/home/dev/e", "/etc/ssl/private"),
                ("/run/user/1000/fnm/1", "/home/dev/.local/share/fnm/node-versions/v22/installation"),
            ),
        ),
    ),
    "resolv-conf-link-to-run": (
        PLAIN,
        USER.replace(links=(*MERGED, ("/etc/resolv.conf", "/run/systemd/resolve/stub-resolv.conf"))),
    ),
    "resolv-conf-link-to-var-run": (
        PLAIN,
        USER.replace(links=(*MERGED, ("/etc/resolv.conf", "/var/run/NetworkManager/resolv.conf"))),
    ),
    "resolv-conf-link-elsewhere": (PLAIN, USER.replace(links=(*MERGED, ("/etc/resolv.conf", "/mnt/wsl/resolv.conf")))),
    "resolv-conf-absent": (PLAIN, USER.replace(existing=DEBIAN - {"/etc/resolv.conf", "/etc/hosts"})),
    "not-merged-usr": (PLAIN, USER.replace(links=())),
    "home-is-root-directory": (
        PLAIN,
        USER.replace(uid=65534, gid=65534, user="", home="/tmp/home", state="/srv/state", workspace="/srv/app"),
    ),
    "expose": (PLAIN.replace(expose=(PortRule(3000, 13000, HERE),)), USER),
    "unix-sockets": (
        PLAIN.replace(
            unix_sockets=(
                SocketRule("/run/postgresql/.s.PGSQL.5432", HERE),
                SocketRule("/var/run/x", HERE, "ssh-agent", ("key",)),
            )
        ),
        USER.replace(sockets=(SocketFact("/var/run/x", "/run/real", "stream", 0),)),
    ),
    "profile-with-state": (
        PLAIN.replace(profiles=("opencode",), state_dirs=(".opencode", ".local/share/opencode")),
        USER.replace(existing=DEBIAN | {"/home/dev/.opencode/bin"}),
    ),
    "profile-ephemeral": (
        PLAIN.replace(profiles=("claude",), state_dirs=(".claude",), home="ephemeral"),
        USER,
    ),
    "limits": (PLAIN.replace(limits=Limits(1 << 30, 100, 60, 600, 1024, 1 << 20, 1 << 24)), USER),
    "connect": (PLAIN.replace(connect=(PortRule(5432, 15432, HERE),)), USER),
    "inspection": (
        PLAIN.replace(
            allow=(URL, host("a.example", (), inspect=True, insecure=True)),
            deny=(URL.replace(text="http://api.example.com/v1", scheme="http"),),
            env=(EnvRule("CURL_CA_BUNDLE", "/home/dev/own.pem", HERE),),
        ),
        USER.replace(
            existing=DEBIAN
            | {"/etc/ssl/certs/ca-certificates.crt", "/etc/ssl/cert.pem", "/etc/ssl/ca-bundle.pem"}
            | {"/etc/ssl/certs/java/cacerts", "/etc/pki/java/cacerts"},
            links=(
                *MERGED,
                ("/etc/ssl/cert.pem", "/etc/ssl/certs/ca-certificates.crt"),
                ("/etc/ssl/ca-bundle.pem", "/var/lib/ca-certificates/ca-bundle.pem"),
                ("/etc/pki/java/cacerts", "/etc/pki/ca-trust/extracted/java/cacerts"),
            ),
        ),
    ),
    "secret": (
        PLAIN.replace(
            allow=(host("api.example.com"),),
            secrets=(SecretRule("TOKEN", "env:T", ("https://api.example.com/v1",), "authorization: Bearer {}", HERE),),
        ),
        USER,
    ),
    "inspection-no-bundle": (
        PLAIN.replace(deny=(URL,), env=(EnvRule("JAVA_TOOL_OPTIONS", "-Xmx1g", HERE),)),
        USER,
    ),
    "extra-ca": (
        PLAIN.replace(extra_ca=("/etc/ca.pem",), ssl_insecure=True),
        USER.replace(existing=DEBIAN | {"/etc/ssl/certs/ca-certificates.crt"}),
    ),
    "image": (
        DEFAULT.replace(image="docker.io/library/tool:1", deny=(URL,)),
        USER.replace(
            existing=frozenset(("/usr", "/bin", "/etc", "/etc/pki/tls/certs/ca-bundle.crt")),
            links=(("/bin", "/usr/bin"),),
            layers="/s/layers/.once/0",
            image=ImageFacts(
                reference="docker.io/library/tool:1",
                digest="sha256:" + "a" * 64,
                layers=2,
                trees=(
                    ImageTree("/bin", "link", ("usr/bin",)),
                    ImageTree("/etc", "directory", ("/s/images/layers/sha256-1/etc", "/s/images/empty")),
                    ImageTree("/init", "file", ("/s/images/layers/sha256-1/init",)),
                    ImageTree("/usr", "directory", ("/s/2/usr", "/s/1/usr", "/s/images/empty")),
                    ImageTree("/var", "expanded", ()),
                    ImageTree("/var/lib", "directory", ("/s/1/var/lib", "/s/images/empty")),
                ),
                environ=("PATH=/opt/tool", "HOME=/evil", "TERM=image", "TOOL=1"),
                entrypoint=("/init",),
                user="app",
                directory="/app",
                begins="/usr/app",
                volumes=(ImageTree("/data", "directory", ("/s/1/data", "/s/images/empty")),),
                refused=("/etc",),
                stop="SIGQUIT",
                passwd=b"root:x:0:0::/:/bin/sh\ndev:x:7:7::/:/bin/evil\nother:x:1000:1::/:/bin/evil\n",
                bundle="/s/1/etc/pki/tls/certs/ca-bundle.crt",
            ),
        ),
    ),
    "devices": (
        PLAIN.replace(devices=(DeviceRule("gpu", HERE), DeviceRule("kvm", PROJECT))),
        USER.replace(
            devices=(
                DeviceFact("gpu", "/dev/dri/renderD128", "226:128", "/sys/devices/pci0000:00/0000:00:02.0/drm/render"),
                DeviceFact("kvm", "/dev/kvm", "10:232", "/sys/devices/virtual/misc/kvm"),
            )
        ),
    ),
}

# ---------------------------------------------------------------- refusals


def _mount(path: str, target: str = "", *, mode: str = "ro", git_root: bool = False) -> Policy:
    return PLAIN.replace(mounts=(MountRule(path, mode, PROJECT, git_root, target),))


def _socket(path: str, adapter: str = "") -> Policy:
    return PLAIN.replace(unix_sockets=(SocketRule(path, HERE, adapter),))


_APP = USER.replace(workspace="/srv/all/project")
REFUSED: dict[str, Case] = {
    "workspace is /": (PLAIN, USER.replace(workspace="/")),
    "workspace is the home": (PLAIN, USER.replace(workspace="/home/dev")),
    "workspace holds the home": (PLAIN, USER.replace(workspace="/home")),
    "workspace in the state": (PLAIN, USER.replace(workspace="/home/dev/.membrane/homes/x")),
    "workspace holds the state": (PLAIN, USER.replace(workspace="/srv/a", state="/srv/a/state")),
    "workspace is /tmp": (PLAIN, USER.replace(workspace="/tmp")),
    "workspace is /etc": (PLAIN, ROOT.replace(workspace="/etc")),
    "workspace is the runtime directory": (PLAIN, USER.replace(workspace="/run/user/1000")),
    "rule with insecure": (PLAIN.replace(allow=(host("a.example", insecure=True),)), USER),
    "secret for many hosts": (
        PLAIN.replace(secrets=(SecretRule("token", "env:T", ("*.a.example",), "authorization: Bearer {}", HERE),)),
        USER,
    ),
    "git directory without the files": (
        PLAIN.replace(mounts=(MountRule("../.git", "rw", HERE),)),
        USER.replace(workspace="/home/dev/repo/service", git_root="/home/dev/repo"),
    ),
    "git directory without the files, by a pointer": (
        PLAIN.replace(mounts=(MountRule("/home/dev/main/.git", "rw", HERE), MountRule("../.git", "ro", PROJECT))),
        USER.replace(
            workspace="/home/dev/tree/service",
            git_root="/home/dev/tree",
            pointers=frozenset({"/home/dev/tree/.git"}),
        ),
    ),
    "home with the host's view": (PLAIN.replace(view="host", home="ephemeral"), USER),
    "image that is not here": (PLAIN.replace(image="tool:1"), USER),
    "image with the host's view": (PLAIN.replace(image="tool:1", view="host"), USER),
    "socket adapter that opens nothing": (_socket("/run/docker.sock", "docker"), USER),
    "socket that is a file": (
        _socket("/run/x"),
        USER.replace(sockets=(SocketFact("/run/x", "/run/x", "not a socket"),)),
    ),
    "socket for datagrams": (
        _socket("/dev/log"),
        USER.replace(sockets=(SocketFact("/dev/log", "/dev/log", "datagram"),)),
    ),
    "socket without a service": (_socket("/run/x"), USER.replace(sockets=(SocketFact("/run/x", "/run/x", "dead"),))),
    "socket of somebody else": (
        _socket("/run/x"),
        USER.replace(sockets=(SocketFact("/run/x", "/run/x", "forbidden"),)),
    ),
    "socket that leads into the workspace": (
        _socket("/run/x"),
        USER.replace(sockets=(SocketFact("/run/x", "/home/dev/project/s", "stream"),)),
    ),
    "socket with two meanings": (
        PLAIN.replace(unix_sockets=(SocketRule("/run/a", HERE, "ssh-agent"), SocketRule("/var/run/a", HERE))),
        USER,
    ),
    "device that is not there": (PLAIN.replace(devices=(DeviceRule("kvm", HERE),)), USER),
    "socket is a shared place": (_socket("/run"), USER),
    "socket is the home": (_socket("/home/dev"), USER),
    "socket in the state": (_socket("/home/dev/.membrane/run/x"), USER),
    "socket in a mount that can be written": (
        _socket("/srv/data/x.sock").replace(mounts=(MountRule("/srv/data", "rw", HERE),)),
        USER.replace(sockets=(SocketFact("/srv/data/x.sock", "/srv/data/x.sock", "stream"),)),
    ),
    "socket in the workspace": (_socket("/home/dev/project/x.sock"), USER),
    "mount without a repository": (_mount("", git_root=True), USER),
    "mount of /": (_mount("/"), USER),
    "mount at /": (_mount("/srv/data", "/"), USER),
    "mount of /, written otherwise": (_mount("/srv/../"), USER),
    "mount of the home": (_mount("/home/dev"), USER),
    "mount in the state": (_mount("/home/dev/.membrane/trusted.yaml", mode="rw"), USER),
    "mount over the state": (_mount("/srv/data", "/home/dev/.membrane"), USER),
    "mount over our masks": (_mount("/run"), USER),
    "mount over our masks, by a link": (_mount("/srv/data", "/var/run"), USER),
    "socket is a shared place, by a link": (_socket("/var/run"), USER),
    "mount in /proc": (_mount("/srv/data", "/proc/x"), USER),
    "mount over /dev": (_mount("/dev"), USER),
    "mount in the workspace": (_mount("vendor"), USER),
    "mount of the workspace": (_mount("."), USER),
    "mount into the workspace": (_mount("../lib", "/home/dev/project/lib"), USER),
    "mount of what holds the workspace, elsewhere": (_mount("..", "/mnt/all"), _APP),
    "review without a change set": (REVIEW, USER),
    "review with rules over the host's tree": (
        REVIEW.replace(view="host", paths=(), file_rules=(FileRule("allow-write", "/srv/w", "/srv/w", HERE),)),
        REVIEWS,
    ),
    "review of a set that was made without a repository elsewhere": (REVIEW, REVIEWS.replace(repository=SHARED)),
    "review of a work tree that lies in its repository": (
        REVIEW,
        LINKED.replace(
            workspace="/srv/all/project",
            repository=Repository((("/srv/all", "rw"),), own="/srv/all/worktrees/project"),
        ),
    ),
    "review of a work tree of a repository that is the home": (
        REVIEW,
        LINKED.replace(repository=Repository((("/home/dev", "rw"),), own="/home/dev/worktrees/project")),
    ),
    "review of a work tree of too many": (
        REVIEW,
        LINKED.replace(repository=Repository((*SHARED.shown, ("/home/dev/main/.git/worktrees/project", "rw")))),
    ),
    "review beside a writable mount of the repository": (
        REVIEW.replace(mounts=(MountRule("/home/dev/main/.git/hooks", "rw", HERE),)),
        LINKED,
    ),
    "review below a writable mount": (
        REVIEW.replace(mounts=(MountRule("..", "rw", HERE),)),
        _APP.replace(reviewed=REVIEWED),
    ),
    "a system layer of a plain user": (PLAIN.replace(system="writable"), USER),
    "a system layer without a place": (PLAIN.replace(system="writable"), ROOT),
    "too many UDP ports": (PLAIN.replace(allow=(host("a.example", (PortRange("udp", 1000, 1256),)),)), USER),
}

# ---------------------------------------------------------------- as text


def _flags(**flags: bool) -> str:
    return "".join(f" {name}" for name, on in flags.items() if on)


def _operation(op: object) -> str:
    if isinstance(op, Bind):
        where = op.target if op.source == op.target else f"{op.target} from {op.source}"
        flags = _flags(own=op.own, make=op.make, optional=op.optional, device=op.device)
        return f"bind {'rw' if op.writable else 'ro'} {where}{flags}" + (f"  # {op.origin}" if op.origin else "")
    if isinstance(op, Overlay):
        lowers, flags = " ".join(op.lowers), _flags(own=op.own, make=op.make, system=op.system, closed=op.closed)
        flags += f" hidden: {' '.join(op.hidden)}" if op.hidden else ""
        flags += f" names: {' '.join(op.names)}" if op.names else ""
        return f"overlay {op.target} of {lowers} changes to {op.layer or 'nowhere'}{flags}  # {op.origin}"
    if isinstance(op, Tmpfs):
        return f"tmpfs {op.target} {op.mode:04o}" + (f" size={op.size}" if op.size else "")
    if isinstance(op, Directory):
        return f"directory {op.target} {op.mode:04o}"
    if isinstance(op, File):
        return f"file {op.target} {op.mode:04o}{_flags(bind=op.bind)} {op.content!r}"
    if isinstance(op, Symlink):
        return f"symlink {op.target} to {op.to}"
    if isinstance(op, Layer):
        return f"layer {op.target} with {' '.join(op.names)}"
    if isinstance(op, Listen):
        where = f"{op.target} to {op.source}"
        return f"listen {where} of {op.owner} number {op.number}{_flags(make=op.make)}  # {op.origin}"
    if isinstance(op, Mask):
        return f"mask {'directory' if op.directory else 'file'} {op.target}"
    if isinstance(op, ReadOnly):
        return f"readonly {op.target}{_flags(link=op.link)}  # {op.origin}"
    if isinstance(op, Pin):
        return f"pin {op.target}"
    if isinstance(op, Proc):
        return f"proc {op.target}{_flags(freeze_settings=op.freeze_settings)}"
    assert isinstance(op, Devices), op
    return f"devices {op.target}"


def render(plan: SandboxPlan) -> str:
    """The whole plan, one line per item."""
    user = f"uid {plan.uid} gid {plan.gid}" + (f" as kuid {plan.base_kuid}.." if plan.base_kuid else "")
    network, hardening = plan.network, plan.hardening
    lines = [f"workspace {plan.workspace}", f"cwd {plan.cwd}", user]
    lines += [f"store {path}" for path in plan.stores]
    lines += [_operation(op) for op in plan.mounts]
    lines.append(f"network {network.mode} ipv6={network.ipv6} udp={network.udp_ports} tcp={network.tcp_ports}")
    lines += [f"landlock writable {path}" for path in hardening.landlock_writable]
    if hardening.capabilities:
        lines.append(f"capabilities {hardening.capabilities:#x}")
    lines.append(f"hardening landlock={hardening.landlock} nested={hardening.nested} {hardening.limits!r}")
    if plan.inspect:
        lines.append("certificate authority of the session")
    lines += [f"trust {path}" for path in plan.trust]
    lines += [f"trust of Java {path}" for path in plan.java_trust]
    lines += [f"environment {name}={value}" for name, value in plan.environment]
    lines += [f"rule {b.rule!r} ({b.origin}): {b.status} by {', '.join(b.mechanisms)}" for b in plan.bindings]
    return "\n".join(lines) + "\n"


def refusals() -> str:
    """Every error of ``build``, as it is printed."""
    out = []
    for name, (policy, facts) in REFUSED.items():
        try:
            build(policy, facts)
        except PolicyError as error:
            out += [f"[{name}]", *error.lines(), ""]
        else:
            raise AssertionError(f"{name}: was not refused")
    return "\n".join(out)


def texts() -> dict[str, str]:
    """What each golden file must hold, by its name without the ending."""
    out = {name: render(build(policy, facts)) for name, (policy, facts) in CASES.items()}
    pins = ("src", "src/deep", ".git")
    out["workspace-operations"] = "".join(
        f"{_operation(op)}\n" for op in workspace("/home/dev/project", SOME_HITS, pins)
    )
    out[REFUSALS] = refusals()
    return out


def path_of(name: str) -> Path:
    return DIRECTORY / f"{name}.txt"
