"""Network cases of sandbox-runtime's own tests (integration, update-config, mux-proxy), against local origins."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from srt_box import SrtBox
from world import names

CURL = "curl -sS -m 20"


def test_listed_host_http(box: SrtBox) -> None:
    box.settings({"allowedDomains": ["example.com"]})
    done = box.shell(f"{CURL} -o /dev/null -w '%{{http_code}}' http://example.com/")
    assert done.stdout == "200", done


def test_unlisted_host_http_says_blocked_by_network_allowlist(box: SrtBox) -> None:
    box.settings({"allowedDomains": ["example.com"]})
    done = box.shell(f"{CURL} -w '%{{http_code}}' http://google.com/")
    assert "blocked by network allowlist" in done.stdout and done.stdout.endswith("403"), done
    assert not box.world.requests(host="google.com", scheme="http")


def test_listed_host_https(box: SrtBox) -> None:
    box.settings({"allowedDomains": ["example.com"]})
    done = box.shell(f"{CURL} --cacert {box.world.ca} -o /dev/null -w '%{{http_code}}' https://example.com/")
    assert done.stdout == "200", done


def test_unlisted_host_https_is_refused_by_the_proxy(box: SrtBox) -> None:
    box.settings({"allowedDomains": ["example.com"]})
    done = box.shell(f"{CURL} --cacert {box.world.ca} https://google.com/")
    assert done.returncode == 56 and "403" in done.stderr, done  # CURLE_RECV_ERROR: CONNECT was answered with 403


@pytest.mark.parametrize(
    ("host", "code"), [("api.github.com", "200"), ("github.com", "403"), ("google.com", "403")], ids=str
)
def test_wildcard_matches_subdomains_only(box: SrtBox, host: str, code: str) -> None:
    box.settings({"allowedDomains": ["*.github.com"]})
    done = box.shell(f"{CURL} -o /dev/null -w '%{{http_code}}' http://{host}/")
    assert done.stdout == code, done


@pytest.mark.needs_tool("nginx")
def test_an_upload_in_chunks_has_one_coding(box: SrtBox) -> None:
    """nginx answers 400 to ``Transfer-Encoding`` twice (the control), which no intermediary should send."""
    box.settings({"allowedDomains": ["nginx.test"]})
    coding = "-H 'Transfer-Encoding: chunked'"
    line = f"{CURL} -w ' %{{http_code}}' {coding} --data-binary x http://nginx.test:8448/up"
    assert box.shell(line).stdout == "POST /up HTTP/1.1\n 200"
    script = (
        "import socket\n"
        "with socket.create_connection(('nginx.test', 8448), 20) as sock:\n"
        "    sock.sendall(b'POST / HTTP/1.1\\r\\nHost: nginx.test\\r\\n' + b'Transfer-Encoding: chunked\\r\\n' * 2"
        " + b'\\r\\n0\\r\\n\\r\\n')\n"
        "    print(sock.recv(12))"
    )
    assert box.world.run(["python3", "-c", script]).stdout == "b'HTTP/1.1 400'\n"


def test_wildcard_does_not_match_an_evil_suffix(box: SrtBox) -> None:
    box.settings({"allowedDomains": ["*.example.com"]})
    done = box.shell(f"{CURL} -o /dev/null -w '%{{http_code}}' http://notexample.com/")
    assert done.stdout == "403", done


def test_deny_wins(box: SrtBox) -> None:
    box.settings({"allowedDomains": ["*.example.com"], "deniedDomains": ["deep.sub.example.com"]})
    line = f"{CURL} -o /dev/null -w '%{{http_code}} ' http://www.example.com/ http://deep.sub.example.com/"
    assert box.shell(line).stdout.split()[-1] == "403"
    assert box.shell(f"{CURL} -o /dev/null -w '%{{http_code}}' http://www.example.com/").stdout == "200"


def test_star_denies_all(box: SrtBox) -> None:
    box.settings({"allowedDomains": ["example.com"], "deniedDomains": ["*"]})
    assert box.shell(f"{CURL} -o /dev/null -w '%{{http_code}}' http://example.com/").stdout == "403"


def test_port_of_an_entry(box: SrtBox) -> None:
    box.settings({"allowedDomains": ["stream.test:8080"]})
    line = f"{CURL} -o /dev/null -w '%{{http_code}}' http://stream.test:"
    assert box.shell(line + "8080/").stdout == "200"
    assert box.shell(line + "8081/").stdout == "403"


def test_raw_ip_is_blocked(box: SrtBox) -> None:
    box.settings({"allowedDomains": ["example.com"]})
    done = box.shell(f"{CURL} -o /dev/null -w '%{{http_code}}' http://{names.address('google.com')}/")
    assert done.stdout == "403", done


def test_listed_ip_literal(box: SrtBox) -> None:
    address = names.address("example.com")
    box.settings({"allowedDomains": [address]})
    done = box.shell(f"{CURL} -o /dev/null -w '%{{http_code}}' -H 'Host: example.com' http://{address}/")
    assert done.stdout == "200", done


def test_decimal_ip_is_judged_as_the_address(box: SrtBox) -> None:
    import ipaddress

    number = int(ipaddress.ip_address(names.address("example.com")))
    box.settings({"allowedDomains": ["google.com"]})
    script = (
        "import os, socket, sys; host, port = os.environ['HTTP_PROXY'].rpartition('@')[2].removeprefix('http://')"
        ".rsplit(':', 1); s = socket.create_connection((host, int(port)));"
        "s.sendall(f'CONNECT {sys.argv[1]}:80 HTTP/1.1\\r\\n\\r\\n'.encode()); print(s.recv(200)[:12])"
    )
    done = box.srt("-s", str(box.settings_path), "--", "python3", "-c", script, str(number))
    assert "403" in done.stdout or "407" in done.stdout, done


def test_empty_allowed_domains_block_http_https_and_dns_but_not_files(box: SrtBox) -> None:
    box.settings({"allowedDomains": []})
    assert box.shell(f"{CURL} -o /dev/null -w '%{{http_code}}' http://example.com/").stdout == "403"
    assert box.shell(f"{CURL} https://example.com/").returncode != 0
    assert box.shell("getent ahosts example.com").returncode != 0
    assert box.shell("echo fine > f && cat f").stdout == "fine\n"


def test_direct_connection_without_the_proxy_does_not_get_out(box: SrtBox) -> None:
    box.settings({"allowedDomains": ["example.com"]})
    line = f"{CURL} --noproxy '*' -o /dev/null -w '%{{http_code}}' http://{names.address('google.com')}/"
    done = box.shell(line)
    assert done.stdout in ("000", "403"), done
    assert not box.world.requests(host=names.address("google.com"))


@pytest.mark.ours
def test_direct_connection_is_captured_and_judged_by_name(box: SrtBox) -> None:
    box.settings({"allowedDomains": ["example.com"]})
    line = f"{CURL} --noproxy '*' -o /dev/null -w '%{{http_code}}' http://example.com/"
    assert box.shell(line).stdout == "200"


def test_name_that_resolves_to_loopback_is_refused(box: SrtBox) -> None:
    box.settings({"allowedDomains": ["loopback.test"]})
    done = box.shell(f"{CURL} -o /dev/null -w '%{{http_code}}' http://loopback.test:{names.DEV_PORT}/")
    assert done.stdout in ("403", "502"), done


def test_localhost_entry_reaches_the_host_through_the_proxy(box: SrtBox) -> None:
    box.settings({"allowedDomains": [f"localhost:{names.DEV_PORT}"]})
    line = f"{CURL} --noproxy '' http://localhost:"
    assert box.shell(f"{line}{names.DEV_PORT}/").stdout == names.DEV_BODY
    assert "blocked by network allowlist" in box.shell(f"{line}{names.LAN_PORT}/").stdout


def test_socks_with_remote_names(box: SrtBox) -> None:
    box.settings({"allowedDomains": ["example.com"]})
    line = f"{CURL} --noproxy '' -x ${{FTP_PROXY}} -o /dev/null -w '%{{http_code}}' http://"
    assert box.shell(line + "example.com/").stdout == "200"
    refused = box.shell(line + "google.com/")
    assert refused.returncode == 97 and refused.stdout == "000", refused  # CURLE_PROXY


@pytest.mark.ours
def test_socks_password_is_taken_and_a_refusal_is_reply_2(box: SrtBox) -> None:
    script = (
        "import socket; s=socket.create_connection(('198.18.0.1', 1080)); s.sendall(b'\\5\\1\\2'); print(s.recv(2));"
        "s.sendall(b'\\1\\1u\\1p'); print(s.recv(2)); n=b'google.com';"
        "s.sendall(b'\\5\\1\\0\\3'+bytes([len(n)])+n+b'\\0\\x50'); print(s.recv(10)[1])"
    )
    done = box.srt("-s", str(box.settings_path), "python3", "-c", script)
    assert done.stdout.splitlines() == ["b'\\x05\\x02'", "b'\\x01\\x00'", "2"], done


@pytest.mark.ours
@pytest.mark.parametrize(
    "request_line", ["CONNECT google.com:0", "CONNECT google.com:70000", "CONNECT google.com", "GET /", "GET ftp://x/"]
)
def test_malformed_proxy_requests_are_400(box: SrtBox, request_line: str) -> None:
    script = (
        "import socket,sys; s=socket.create_connection(('198.18.0.1', 3128));"
        "s.sendall(sys.argv[1].encode()+b' HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n'); print(s.recv(12).decode())"
    )
    done = box.srt("-s", str(box.settings_path), "python3", "-c", script, request_line)
    assert done.stdout.strip() == "HTTP/1.1 400", done


@pytest.mark.ours
def test_second_plain_request_of_a_client_connection_reaches_nobody(box: SrtBox) -> None:
    """The first is for an allowed host; the second one, to another host, is not sent to it."""
    box.settings({"allowedDomains": ["example.com"]})
    script = (
        "import socket; s=socket.create_connection(('198.18.0.1', 3128)); n=b'\\r\\n';"
        "s.sendall(b'GET http://example.com/get?first HTTP/1.1'+n+b'Host: evil'+n+b'Proxy-Authorization: x'+n+n"
        "+b'GET http://google.com/get?second HTTP/1.1'+n+n); d=b'';\n"
        "while c:=s.recv(65536): d+=c\n"
        "print(d.count(b'HTTP/1.1 '), d[:12])"
    )
    done = box.srt("-s", str(box.settings_path), "python3", "-c", script)
    assert done.stdout.split()[0] == "1" and "200" in done.stdout, done
    seen = box.world.requests(host="example.com")
    assert any("first" in str(each) for each in seen) and not any("second" in str(each) for each in seen)
    assert not any("evil" in str(each) for each in seen)


def test_post_with_a_body_through_the_proxy(box: SrtBox) -> None:
    box.settings({"allowedDomains": ["httpbin.org"]})
    done = box.shell(f"{CURL} -d hello=world http://httpbin.org/post")
    assert '"hello": "world"' in done.stdout, done


def test_proxy_variables(box: SrtBox) -> None:
    done = box.shell("env")
    found = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "GRPC_PROXY"):
        assert found[name].startswith("http://") and found[name.lower()] == found[name]
    assert found["FTP_PROXY"].startswith("socks5h://")
    assert {"localhost", "127.0.0.1", "::1"} <= set(found["NO_PROXY"].split(","))
    assert ".local" not in found["NO_PROXY"]
    assert found["SANDBOX_RUNTIME"] == "1"


@pytest.mark.ours
def test_reason_of_a_denied_domain_is_in_the_violations(box: SrtBox) -> None:
    import json

    box.settings({"deniedDomains": ["google.com"], "deniedDomainReasons": {"google.com": "ask the team"}})
    log = box.directory / "violations"
    done = box.srt("-s", str(box.settings_path), "--violations", str(log), "-c", f"{CURL} http://google.com/")
    assert "blocked by network allowlist" in done.stdout
    records = [json.loads(line) for line in log.read_text().splitlines()]
    (record,) = [each for each in records if "network" in each["line"]]
    assert record["line"] == "deny network-outbound google.com:80 (ask the team)"
    assert record["command"] == f"{CURL} http://google.com/" and record["timestamp"].endswith("Z")


def test_tls_is_terminated_with_the_authority_of_the_caller(box: SrtBox) -> None:
    certificate, key = box.home / "ca.pem", box.home / "ca.key"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=of the caller"]
    extension = ["-addext", "basicConstraints=critical,CA:TRUE"]
    subprocess.run([*make, *extension, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    terminate = {"caCertPath": str(certificate), "caKeyPath": "~/ca.key", "extraCaCertPaths": [str(box.world.ca)]}
    box.settings({"allowedDomains": ["example.com"], "tlsTerminate": terminate}, {"denyRead": []})
    shown = box.shell(
        f"{CURL} --cacert {certificate} -o /dev/null -w '%{{http_code}}\\n' https://example.com/; "
        f"{CURL} -o /dev/null -w '%{{http_code}}\\n' https://example.com/; "  # the variables name it as well
        f"head -n 1 {certificate}; cat {key}; echo $?"
    )
    assert shown.stdout.splitlines()[:3] == ["200", "200", "-----BEGIN CERTIFICATE-----"], shown
    assert "PRIVATE" not in shown.stdout + shown.stderr and shown.stdout.splitlines()[-1] == "1", shown


@pytest.mark.ours
def test_an_authority_that_is_none_stops_the_run(box: SrtBox) -> None:
    for name in ("ca.pem", "ca.key"):
        (box.home / name).write_text("-----BEGIN CERTIFICATE-----\n-----BEGIN PRIVATE KEY-----\n")
    terminate = {"caCertPath": "~/ca.pem", "caKeyPath": "~/ca.key"}
    box.settings({"allowedDomains": ["example.com"], "tlsTerminate": terminate})
    done = box.shell("echo ran")
    assert done.returncode not in (0, 1) and done.stdout == "" and "authority" in done.stderr, done


_PROXY = """
import os, socket, sys, threading
def pump(a, b):
    while data := a.recv(65536): b.sendall(data)
    b.shutdown(socket.SHUT_WR)
def serve(client):
    head = b""
    while b"\\r\\n\\r\\n" not in head: head += client.recv(4096)
    method, target, _ = head.split(b"\\r\\n")[0].decode().split(" ")
    open(sys.argv[2], "a").write(f"{method} {target}\\n")
    host, _, port = target.rpartition(":")
    server = socket.create_connection((host, int(port)))
    client.sendall(b"HTTP/1.1 200 OK\\r\\n\\r\\n")
    threading.Thread(target=pump, args=(client, server), daemon=True).start()
    pump(server, client)
listener = socket.socket(socket.AF_UNIX); listener.bind(sys.argv[1]); listener.listen()
print("up", flush=True)
def run():
    while True: threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
threading.Thread(target=run, daemon=True).start()
sys.stdin.read()
"""


def test_mitm_proxy_gets_its_domains_and_no_other(box: SrtBox) -> None:
    directory = Path(tempfile.mkdtemp(prefix="mb-"))  # short: sun_path has 108 bytes
    path, log = directory / "proxy", directory / "log"
    log.touch()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    proxy = box.world.popen(["/usr/bin/python3", "-c", _PROXY, str(path), str(log)], **pipes)
    try:
        assert proxy.stdout is not None and proxy.stdout.readline() == b"up\n"
        mitm = {"socketPath": str(path), "domains": ["example.com"]}
        box.settings({"allowedDomains": ["example.com", "www.example.com"], "mitmProxy": mitm})
        ask = f"{CURL} --cacert {box.world.ca} -o /dev/null -w '%{{http_code}}\\n'"
        urls = ("https://example.com/", "http://example.com/", "https://www.example.com/", "http://google.com/")
        done = box.shell("; ".join(f"{ask} {url}" for url in urls))
        assert done.stdout.split() == ["200", "200", "200", "403"], done
        assert sorted(log.read_text().splitlines()) == ["CONNECT example.com:443", "CONNECT example.com:80"]
    finally:
        proxy.communicate(timeout=60)
        shutil.rmtree(directory)
