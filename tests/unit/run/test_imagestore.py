"""Images from a registry: a real one (docker-registry), with an authority and an account of its own."""

from __future__ import annotations

import base64
import http.client
import http.server
import json
import os
import pty
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "host"))
from image_layout import ARCHITECTURE, image, layer

from membrane.errors import HostError
from membrane.run import images, imagestore

pytestmark = [pytest.mark.needs_tool("docker-registry"), pytest.mark.needs_tool("skopeo")]
SECONDS = 60
ACCOUNT = "me:pa55"
HTPASSWD = "me:$2b$04$hUZigGNZk2yt2CViE99qoulB6LZEldxT/EhOEEAOtxn7V5pNUnvCS\n"  # bcrypt of that
ONE, TWO = layer(("a", b"1")), layer(("b", b"2"))


@contextmanager
def registry(place: Path, options: str = "") -> Iterator[tuple[int, Path]]:
    """A registry of this test: its port on 127.0.0.1 and its log."""
    place.mkdir()
    (place / "config.yml").write_text(
        f"version: 0.1\nlog: {{level: info}}\nstorage: {{filesystem: {{rootdirectory: {place}/data}}}}\n"
        f"http:\n  addr: 127.0.0.1:0\n{options}"
    )
    log = place / "log"
    with log.open("wb") as out:
        words = ["docker-registry", "serve", str(place / "config.yml")]
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        until = time.monotonic() + SECONDS
        while (found := re.search(r"listening on 127\.0\.0\.1:(\d+)", log.read_text())) is None:
            assert process.poll() is None and time.monotonic() < until, log.read_text()
            time.sleep(0.01)
        yield int(found[1]), log
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The caller's home, with what skopeo reads of it."""
    place = tmp_path / "home"
    (place / ".config/containers").mkdir(parents=True)
    (place / ".config/containers/policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
    monkeypatch.setenv("HOME", str(place))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place))  # else credentials of /run/containers
    for name in ("XDG_CONFIG_HOME", "DOCKER_CONFIG", "REGISTRY_AUTH_FILE"):
        monkeypatch.delenv(name, raising=False)
    return place


def plain(home: Path, port: int) -> None:
    """Let skopeo speak to it without TLS, as a person would."""
    text = f'[[registry]]\nlocation = "localhost:{port}"\ninsecure = true\n'
    (home / ".config/containers/registries.conf").write_text(text)


def push(layout: Path, name: str, *options: str) -> None:
    words = ["skopeo", "copy", "--dest-tls-verify=false", *options, f"oci:{layout}", f"docker://{name}"]
    subprocess.run(words, check=True, capture_output=True, timeout=SECONDS)


def test_an_image_of_a_registry_is_asked_for_once_and_again_by_pull(home: Path, tmp_path: Path) -> None:
    """A run needs no registry once it is here; what a tag stands for is what it stood for, until ``image pull``."""
    state = str(tmp_path / "state")
    with registry(tmp_path / "registry") as (port, log):
        plain(home, port)
        name = f"localhost:{port}/me/tool:1"
        push(image(tmp_path / "image", ONE), name)
        first = imagestore.pull(state, name)
        asked = log.read_text().count("skopeo")
        images.need(state, name, lambda: pytest.fail("it is here")).end()
        push(image(tmp_path / "image", ONE, TWO), name)
        assert images.find(state, name) == first
        assert log.read_text().count("skopeo") > asked  # the control: what is asked is in the log
        second = imagestore.pull(state, name)
        assert len(second.layers) == 2
    assert images.find(state, name) == second  # the registry is gone
    with pytest.raises(HostError, match="onnect") as caught:
        imagestore.pull(state, name)
    assert "level=" not in caught.value.cause and '\\"' not in caught.value.cause, caught.value.cause
    assert images.find(state, name) == second  # and a pull that fails takes nothing away


def test_layers_that_are_compressed_otherwise_are_read(home: Path, tmp_path: Path) -> None:
    with registry(tmp_path / "registry") as (port, _log):
        plain(home, port)
        name = f"localhost:{port}/tool"
        push(image(tmp_path / "image", ONE, TWO), name, "--dest-compress-format=zstd")
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)) as to:
            to.request(
                "GET", "/v2/tool/manifests/latest", headers={"Accept": "application/vnd.oci.image.manifest.v1+json"}
            )
            assert b"tar+zstd" in to.getresponse().read()  # the control
        kept = imagestore.pull(str(tmp_path / "state"), name)
    assert [os.listdir(tmp_path / "state/images/layers" / each) for each in kept.layers] == [["a"], ["b"]]


def test_the_callers_account_and_authority_are_used_outside(home: Path, tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    make += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(make, check=True, capture_output=True)
    (tmp_path / "htpasswd").write_text(HTPASSWD)
    options = f"  tls: {{certificate: {certificate}, key: {key}}}\n"
    options += f"auth: {{htpasswd: {{realm: test, path: {tmp_path}/htpasswd}}}}\n"
    state = str(tmp_path / "state")
    with registry(tmp_path / "registry", options) as (port, _log):
        name = f"localhost:{port}/tool"
        push(image(tmp_path / "image", ONE), name, f"--dest-creds={ACCOUNT}")
        with pytest.raises(HostError, match="certificate"):
            imagestore.pull(state, name)
        trusted = home / f".config/containers/certs.d/localhost:{port}/ca.crt"
        trusted.parent.mkdir(parents=True)
        trusted.write_bytes(certificate.read_bytes())
        with pytest.raises(HostError, match=r"authentication required|unauthorized"):
            imagestore.pull(state, name)
        (home / ".docker").mkdir()
        given = {"auths": {f"localhost:{port}": {"auth": base64.b64encode(ACCOUNT.encode()).decode()}}}
        (home / ".docker/config.json").write_text(json.dumps(given))
        kept = imagestore.pull(state, name)
    assert len(kept.layers) == 1
    for path in (tmp_path / "state").rglob("*"):
        assert not path.is_file() or b"pa55" not in path.read_bytes()


def blobs(layout: Path) -> list[str]:
    """The digests of the layers of a layout, as they are there."""
    (manifest,) = (data for path in layout.glob("blobs/sha256/*") if b'"layers":' in (data := path.read_bytes()))
    return [each["digest"].removeprefix("sha256:") for each in json.loads(manifest)["layers"]]


def test_of_a_tag_for_several_machines_the_wanted_image_comes(home: Path, tmp_path: Path) -> None:
    other = "s390x" if ARCHITECTURE == "riscv64" else "riscv64"
    state = str(tmp_path / "state")
    with registry(tmp_path / "registry") as (port, _log):
        plain(home, port)
        name, entries = f"localhost:{port}/tool", []
        for number, machine in enumerate((ARCHITECTURE, other)):
            layout = image(tmp_path / machine, layer((machine, b"")), architecture=machine)
            push(layout, f"{name}:{number}")
            (entry,) = json.loads((layout / "index.json").read_text())["manifests"]
            entries.append({**entry, "platform": {"os": "linux", "architecture": machine}})
        kind = "application/vnd.oci.image.index.v1+json"
        body = json.dumps({"schemaVersion": 2, "mediaType": kind, "manifests": entries})
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)) as to:
            to.request("PUT", "/v2/tool/manifests/latest", body, {"Content-Type": kind})
            assert to.getresponse().status == 201
        for platform, machine in (("", ARCHITECTURE), (f"linux/{other}", other)):
            kept = imagestore.pull(state, name, platform=platform)
            assert kept.said.platform == f"linux/{machine}"
            assert os.listdir(f"{state}/images/layers/{kept.layers[0]}") == [machine]
        with pytest.raises(HostError, match="linux"):
            imagestore.pull(state, name, platform="linux/mips64le")
        with pytest.raises(HostError, match=f"image {name}:0: it is made for linux/{ARCHITECTURE}, not for"):
            imagestore.pull(state, f"{name}:0", platform=f"linux/{other}")


class Gate(http.server.ThreadingHTTPServer):
    """In front of a registry: ``closed`` is the blob that is refused, once every other one has come to ``place``."""

    closed = ""
    others: frozenset[str] = frozenset()
    place = Path()

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Through)
        self.behind = port
        self.asked: list[str] = []


class _Through(http.server.BaseHTTPRequestHandler):
    server: Gate

    def do_GET(self) -> None:
        gate, blob = self.server, self.path.rpartition("sha256:")[2]
        gate.asked.append(blob)
        if gate.closed and blob == gate.closed:
            until = time.monotonic() + SECONDS
            while time.monotonic() < until and not all(
                list(gate.place.glob(f"*/blobs/sha256/{x}")) for x in gate.others
            ):
                time.sleep(0.01)
            self.send_error(404, "\x1b]0;title\x07")
            return
        accepted = {name: self.headers[name] for name in ("Accept",) if self.headers[name]}
        with closing(http.client.HTTPConnection("127.0.0.1", gate.behind, timeout=SECONDS)) as behind:
            behind.request("GET", self.path, headers=accepted)
            answer = behind.getresponse()
            data = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "date"):
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    do_HEAD = do_GET

    def log_message(self, *_words: object) -> None:
        return None


@pytest.fixture
def gate(home: Path, tmp_path: Path) -> Iterator[Gate]:
    with registry(tmp_path / "registry") as (port, _log), Gate(port) as made:
        plain(home, made.server_port)
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def test_a_broken_fetch_goes_on_with_the_layers_that_have_come(gate: Gate, tmp_path: Path) -> None:
    layout, state = image(tmp_path / "image", ONE, TWO), tmp_path / "state"
    push(layout, f"localhost:{gate.behind}/tool")
    one, two = blobs(layout)
    gate.closed, gate.others, gate.place = two, frozenset((one,)), state / "images" / "fetching"
    name = f"localhost:{gate.server_port}/tool"
    with pytest.raises(HostError) as caught:
        imagestore.pull(str(state), name)
    assert any("goes on" in fix for fix in caught.value.fix)
    assert gate.asked.count(one) == 1
    gate.closed = ""
    assert len(imagestore.pull(str(state), name).layers) == 2
    assert gate.asked.count(one) == 1 and gate.asked.count(two) >= 2
    assert not list(gate.place.iterdir())


def test_what_came_with_other_bytes_is_not_gone_on_with(gate: Gate, tmp_path: Path) -> None:
    """skopeo looks at the name of a blob that is there, we at its bytes: the next fetch begins anew, as after prune."""
    layout, state = image(tmp_path / "image", ONE, TWO), tmp_path / "state"
    push(layout, f"localhost:{gate.behind}/tool")
    one, two = blobs(layout)
    gate.closed, gate.others, gate.place = two, frozenset((one,)), state / "images" / "fetching"
    name = f"localhost:{gate.server_port}/tool"
    with pytest.raises(HostError):
        imagestore.pull(str(state), name)
    (blob,) = gate.place.glob(f"*/blobs/sha256/{one}")
    blob.write_bytes(blob.read_bytes()[:-8])  # as a machine that lost its power leaves it
    gate.closed = ""
    with pytest.raises(HostError, match="too early"):
        imagestore.pull(str(state), name)
    assert not list(gate.place.iterdir()) and images.find(str(state), name) is None
    assert len(imagestore.pull(str(state), name).layers) == 2
    gate.closed = two
    with pytest.raises(HostError):
        imagestore.pull(str(state), f"{name}:latest")
    assert list(gate.place.iterdir())
    imagestore.prune(str(state))
    assert not gate.place.exists()


def test_a_terminal_sees_how_far_it_is_and_no_escape_sequence_of_a_registry(gate: Gate, tmp_path: Path) -> None:
    layout, state = image(tmp_path / "image", ONE, TWO), tmp_path / "state"
    push(layout, f"localhost:{gate.behind}/tool")
    _one, two = blobs(layout)
    name = f"localhost:{gate.server_port}/tool"

    def shown() -> str:
        """What a person sees of ``membrane image pull``."""
        pid, fd = pty.fork()
        if pid == 0:
            os.environ["MEMBRANE_HOME"] = str(state)
            os.execv(sys.executable, [sys.executable, "-m", "membrane", "image", "pull", name])
        out = b""
        try:
            while data := os.read(fd, 1 << 16):
                out += data
        except OSError:
            pass  # EIO: the other end is closed
        os.close(fd)
        os.waitpid(pid, 0)
        return out.decode()

    gate.closed = two
    refused = shown()
    assert "404" in refused and "\x1b]" not in refused and "\x07" not in refused, refused
    gate.closed = ""
    assert "layer 2 of 2" in shown()


@pytest.mark.parametrize("place", ["workspace", "mounted", "elsewhere"])
@pytest.mark.parametrize("name", ["skopeo", "helper"])
def test_no_program_of_the_workspace_fetches_an_image(
    place: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither what is called nor what that calls by name; an activated environment puts PATH first (the control)."""
    ran = tmp_path / "ran"
    real = tmp_path / "bin"
    planted = tmp_path / place / "bin"
    for directory in (tmp_path / "workspace", real, planted):
        directory.mkdir(parents=True, exist_ok=True)
    (real / "skopeo").write_text("#!/bin/sh\nhelper\nexit 1\n")
    (real / "helper").write_text("#!/bin/sh\n")
    (planted / name).write_text(f"#!/bin/sh\ntouch {ran}\nexit 1\n")
    for path in (real / "skopeo", real / "helper", planted / name):
        path.chmod(0o755)
    monkeypatch.chdir(tmp_path / "workspace")
    link = tmp_path / "link"
    link.symlink_to(planted)
    for first in (planted, link, *([Path("bin")] if place == "workspace" else [])):
        ran.unlink(missing_ok=True)
        monkeypatch.setenv("PATH", f"{first}:{real}:/usr/bin:/bin")
        with pytest.raises(HostError, match="skopeo ended with 1"):
            imagestore.pull(str(tmp_path / "state"), "localhost:1/x", writable=[f"{tmp_path}/mounted"])
        assert ran.exists() is (place == "elsewhere")
