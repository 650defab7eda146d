"""``credentials`` of the settings: placeholders inside, values at ``injectHosts`` only, and nowhere else.

The origin shows what reached it in its own record, which no sandbox sees.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import time
import uuid
from pathlib import Path
from typing import Any

import botocore.auth
import botocore.awsrequest
import botocore.credentials
import pytest
from srt_box import OTHER, SrtBox

ASK = "curl -sS --max-time 20 -o /dev/null -w '%{http_code}\\n'"


def token() -> str:
    """A credential of this test alone, so that the record of the world shows whose it was."""
    return f"ghp_{uuid.uuid4().hex}"


@pytest.fixture
def held(box: SrtBox) -> SrtBox:
    terminate(box, {})
    return box


def terminate(box: SrtBox, credentials: dict[str, Any], *hosts: str, **more: Any) -> None:
    """Settings that terminate TLS for ``example.com``, ``google.com`` and ``httpbin.org``."""
    allowed = [*(hosts or ("example.com", "google.com", "httpbin.org"))]
    network = {
        "allowedDomains": allowed,
        "deniedDomains": [],
        "tlsTerminate": {"extraCaCertPaths": [str(box.world.ca)]},
    }
    box.settings(network, more.pop("files", None), credentials=credentials, **more)


def file_entry(path: Path, *hosts: str, **more: Any) -> dict[str, Any]:
    entry = {"path": str(path), "mode": "mask", **more}
    return {"files": [{**entry, "injectHosts": list(hosts)} if hosts else entry]}


def arrived(box: SrtBox, host: str, field: str) -> bool:
    """Did a request with this value of a header field reach ``host``?"""
    proof = hashlib.sha256(field.encode()).hexdigest()
    return any(proof in request["fields"].values() for request in box.world.requests(host=host))


# ---------------------------------------------------------------- a whole file


def test_whole_file_is_a_placeholder_inside_and_the_value_at_inject_hosts(held: SrtBox) -> None:
    value, secret = token(), held.home / "token"
    secret.write_text(value)
    terminate(held, file_entry(secret, "example.com"))
    done = held.shell(
        f'cat {secret}; echo; {ASK} -H "Authorization: Bearer $(cat {secret})" https://example.com/masked; '
        f'{ASK} -H "X-Any-Token: $(cat {secret})" https://example.com/masked'
    )
    shown, *codes = done.stdout.split()
    assert codes == ["200", "200"] and shown != value, done
    assert arrived(held, "example.com", f"Bearer {value}") and arrived(held, "example.com", value)
    assert not arrived(held, "example.com", shown) and secret.read_text() == value


@pytest.mark.ours
def test_whole_file_has_its_shape(held: SrtBox) -> None:
    """Length, known prefix and white space; nobody else may read the copy; within Basic too."""
    value, secret = token(), held.home / "token"
    secret.write_text(f"{value}\n")
    secret.chmod(0o600)
    terminate(held, file_entry(secret, "example.com"))
    done = held.shell(
        f'stat -c "%a %u" {secret}; cat {secret}; {ASK} -u "user:$(cat {secret})" https://example.com/basic'
    )
    mode, uid, shown, code = done.stdout.split()
    assert mode == "400" and uid == str(os.getuid()) and code == "200", done
    assert shown != value and len(shown) == len(value) and shown.startswith("ghp_"), done
    assert arrived(held, "example.com", f"Basic {base64.b64encode(f'user:{value}'.encode()).decode()}")


def test_value_never_goes_to_another_host(held: SrtBox) -> None:
    value, secret = token(), held.home / "token"
    secret.write_text(value)
    terminate(held, file_entry(secret, "example.com"))
    done = held.shell(
        f'{ASK} -H "X-Any-Token: $(cat {secret})" https://google.com/; '
        f'{ASK} -H "X-Any-Token: $(cat {secret})" http://example.com/; '
        f"{ASK} https://google.com/{secret.name}"
    )
    # Without TLS nothing is put in, so what arrives is the placeholder; with TLS ours lets not even that go.
    assert done.stdout.split() == ["200" if OTHER else "403", "200", "200"], done
    assert not arrived(held, "google.com", value) and not arrived(held, "example.com", value)


@pytest.mark.ours
@pytest.mark.parametrize(
    "field",
    [
        "X-Amz-Meta-Token",
        "User-Agent",
        "X-Any",
        "Cache-Control",
        "Expires",
        "Referer",
        "X_Goog_Meta_Note",
        "Content-Disposition",
    ],
)
def test_value_is_not_put_where_a_server_publishes_it(held: SrtBox, field: str) -> None:
    value, secret = token(), held.home / "token"
    secret.write_text(value)
    terminate(held, file_entry(secret, "example.com"))
    done = held.shell(f'{ASK} -H "{field}: $(cat {secret})" https://example.com/published')
    assert done.stdout.split() == ["403"] and not arrived(held, "example.com", value), done


@pytest.mark.ours
def test_reflection_and_content_do_not_launder(held: SrtBox) -> None:
    """A destination that shows what it was sent shows the placeholder; content is not rewritten at all."""
    value, secret = token(), held.home / "token"
    secret.write_text(value)
    terminate(held, file_entry(secret, "httpbin.org"))
    done = held.shell(
        f'curl -sS --max-time 20 -H "X-Any-Token: $(cat {secret})" https://httpbin.org/headers; cat {secret}; echo; '
        f"curl -sS --max-time 20 -H 'Content-Type: text/plain' --data-binary @{secret} https://httpbin.org/anything"
    )
    assert value not in done.stdout, done
    assert arrived(held, "httpbin.org", value)  # positive control: it was put in, and shown
    shown = next(line for line in done.stdout.splitlines() if line.startswith("ghp_"))
    assert f'"X-Any-Token": "{shown}"' in done.stdout and f'"data": "{shown}"' in done.stdout, done


@pytest.mark.ours
def test_value_is_nowhere_inside(held: SrtBox) -> None:
    """Not in /proc, in no mount table, at no other path of the file, and not after a rename of what is above it."""
    value = token()
    directory = held.work / "config"
    directory.mkdir()
    secret = directory / "token"
    secret.write_text(value)
    os.link(secret, held.outside / "control")  # what the search must find: the same file elsewhere
    terminate(held, file_entry(secret, "example.com"))
    done = held.shell(
        f"grep -c {value[4:]} {held.outside}/control; "
        f"cat /proc/self/mountinfo /proc/*/environ /proc/*/cmdline /proc/*/maps 2>/dev/null | grep -a -c {value[4:]} ; "
        f"mv {secret} {secret}2; rm -f {secret}; echo x > {secret}; ln {secret} {held.work}/again; "
        f"mv {directory} {held.work}/moved; cat {held.work}/*/token {held.work}/again; "
        "grep -a -r -s -l " + value[4:] + f" {held.work} {held.home} /run /tmp/claude /dev/shm; true"
    )
    # The two command lines of this shell hold what is looked for themselves.
    assert done.stdout.splitlines()[0] == "1", done
    assert value not in done.stdout and str(held.work) not in done.stdout.replace("Permission", ""), done


@pytest.mark.ours
def test_what_leads_to_a_masked_file_by_another_name_is_not_opened(held: SrtBox) -> None:
    """A link that allowRead opens at its own name would show the file a second time."""
    directory, denied = held.outside / "real", held.outside / "denied"
    directory.mkdir(), denied.mkdir()
    value = token()
    (directory / "token").write_text(value)
    (denied / "link").symlink_to(directory)
    files = {"denyRead": [str(denied)], "allowRead": [str(denied / "link")]}
    terminate(held, {}, files=files)
    assert held.shell(f"cat {denied}/link/token").stdout == value  # positive control: nothing is masked
    terminate(held, file_entry(directory / "token", "example.com"), files=files)
    done = held.shell(f"cat {denied}/link/token {directory}/token")
    assert value not in done.stdout and done.stdout.startswith("ghp_") and "is not opened" in done.stderr, done
    files["denyRead"].append(str(directory / "token"))
    terminate(held, {}, files=files)
    assert held.shell(f"cat {denied}/link/token {directory}/token").stdout == ""


@pytest.mark.ours
def test_an_earlier_run_does_not_choose_the_file(held: SrtBox) -> None:
    """Neither by a link in the place of a directory, nor by moving a directory there."""
    value, other = token(), token()
    for name, text in (("config", value), ("secret", other)):
        (held.work / name).mkdir()
        (held.work / name / "token").write_text(text)
    entries = [
        {"path": str(held.work / name / "token"), "mode": "mask", "injectHosts": [host]}
        for name, host in (("config", "example.com"), ("secret", "google.com"))
    ]
    terminate(held, {"files": entries})
    done = held.shell("mv config gone; mv secret config; rm -rf config; ls -d config secret")
    assert done.stdout.split() == ["config", "secret"] and done.stderr.count("busy") >= 3, done
    (held.work / "config").rename(held.work / "gone")
    (held.work / "config").symlink_to("secret")
    done = held.shell("echo ran")
    assert done.returncode == 78 and "which the command can make" in done.stderr and done.stdout == "", done


@pytest.mark.ours
def test_a_file_that_is_replaced_outside_is_hidden(held: SrtBox) -> None:
    value, secret = token(), held.home / "token"
    secret.write_text(value)
    terminate(held, file_entry(secret, "example.com"))
    script = (
        "import sys, time\n"
        "print(open(sys.argv[1]).read(), flush=True); sys.stdin.readline()\n"
        "deadline = time.monotonic() + 60\n"
        "while time.monotonic() < deadline:\n"
        "    try: open(sys.argv[1]).read()\n"
        "    except PermissionError: print('hidden', flush=True); break\n"
        "    time.sleep(0.01)"
    )
    arguments = ("-s", str(held.settings_path), "/usr/bin/python3", "-c", script, str(secret))
    with held.popen(*arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline().startswith(b"ghp_")
        fresh = held.home / "token.new"
        fresh.write_text(token())
        fresh.rename(secret)
        process.stdin.write(b"go\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"hidden\n"


@pytest.mark.ours
def test_a_masked_file_that_appears_later_is_hidden(held: SrtBox) -> None:
    secret = held.work / "later"
    terminate(held, file_entry(secret, "example.com"))
    line = f"echo {token()} > {secret}; for i in $(seq 600); do cat {secret} 2>/dev/null || break; sleep 0.05; done"
    done = held.shell(f"{line}; cat {secret} || echo hidden")
    assert done.stdout.endswith("hidden\n"), done


@pytest.mark.ours
def test_record_and_debug_output_do_not_tell(held: SrtBox) -> None:
    value, secret = token(), held.home / "token"
    secret.write_text(value)
    terminate(held, file_entry(secret, "example.com"))
    log = held.directory / "violations"
    arguments = ("-d", "-s", str(held.settings_path), "--violations", str(log), "-c")
    done = held.srt(
        *arguments, f'{ASK} -H "A-Token: $(cat {secret})" https://google.com/$(cat {secret}); {ASK} https://google.com/'
    )
    assert done.stdout.split() == ["403", "200"], done
    told = done.stderr + log.read_text()
    told += "".join(
        path.read_text(errors="replace") for path in (held.directory / "state").rglob("*") if path.is_file()
    )
    assert value not in told and "credentials" not in log.read_text()


# ---------------------------------------------------------------- extract


def test_extract_masks_captures_and_leaves_the_rest(held: SrtBox) -> None:
    one, two, secret = token(), token(), held.home / "config"
    text = f"machine a.test login joe password {one}\nmachine example.com login joe password {two}\n# {one}\n"
    secret.write_text(text)
    entry = file_entry(secret, "example.com", extract=r"password (\S+)")
    terminate(held, entry)
    second = f"$(sed -n 's/.*example.*password //p' {secret})"
    done = held.shell(f'cat {secret}; {ASK} -H "X-Any-Token: {second}" https://example.com/extract')
    *lines, code = done.stdout.splitlines()
    shown = [line.split()[-1] for line in lines]
    assert code == "200" and shown[0] not in (one, two) and shown[1] not in (one, two) and shown[2] == one, done
    assert lines[0] == text.splitlines()[0].replace(one, shown[0])
    assert arrived(held, "example.com", two)
    entry["files"][0]["maskDuplicates"] = True
    terminate(held, entry)
    assert one not in held.shell(f"cat {secret}").stdout


def test_extract_that_matches_nothing(held: SrtBox) -> None:
    secret = held.home / "config"
    secret.write_text("nothing here")
    for what, output in (("warn", "nothing here"), ("deny", ""), ("error", "")):
        terminate(held, file_entry(secret, "example.com", extract="password (x+)", onExtractNoMatch=what))
        done = held.shell(f"cat {secret} || true; echo ran")
        assert done.stdout == ("" if what == "error" else f"{output}ran\n"), (what, done)
        assert (done.returncode != 0) == (what == "error"), (what, done)
        if not OTHER:
            assert done.returncode in (0, 78) and ("nothing in it is found" in done.stderr) == (what != "deny")


def test_variables_are_masked_whole_and_in_part(held: SrtBox) -> None:
    whole, part = token(), token()
    credentials = {
        "envVars": [
            {"name": "TOKEN", "mode": "mask", "injectHosts": ["example.com"]},
            {"name": "URL", "mode": "mask", "injectHosts": ["example.com"], "extract": ":([^:@]+)@"},
            {"name": "ABSENT", "mode": "mask", "injectHosts": ["example.com"]},
        ]
    }
    terminate(held, credentials)
    done = held.shell(
        'echo "$TOKEN ${ABSENT-unset} $URL"; p=${URL#*:}; p=${p%@*}; '
        f'{ASK} -H "A-Token: $TOKEN" -H "B-Token: $p" https://example.com/variables',
        env={"TOKEN": whole, "URL": f"joe:{part}@db.test/x"},
    )
    shown, absent, url, code = done.stdout.split()
    assert code == "200" and absent == "unset" and shown != whole, done
    assert url.startswith("joe:") and url.endswith("@db.test/x") and part not in url
    assert OTHER or (len(shown) == len(whole) and url.startswith("joe:ghp_"))
    assert arrived(held, "example.com", whole) and arrived(held, "example.com", part)


def _jwt(claims: dict[str, Any]) -> str:
    def part(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    return ".".join(
        (part(b'{"alg":"HS256","typ":"JWT"}'), part(json.dumps(claims).encode()), part(uuid.uuid4().bytes * 2))
    )


def test_tokens_are_decoded(held: SrtBox) -> None:
    jwt = _jwt({"iss": "https://issuer.test", "sub": "joe@secret.test", "exp": 1})
    claim = token()
    other = _jwt({"iss": "https://issuer.test", "key": claim, "n": {"key": "inner-key-stays"}})
    secret = held.home / "tokens"
    secret.write_text(f"a={jwt}\nb=eyJub3.a.token\n")
    more = held.home / "other"
    more.write_text(other)
    files = [
        {"path": str(secret), "mode": "mask", "injectHosts": ["example.com"], "decode": "jwt"},
        {"path": str(more), "mode": "mask", "injectHosts": ["example.com"], "decode": "jwt", "maskClaims": ["key"]},
    ]
    terminate(held, {"files": files})
    decode = (
        "import base64, json, sys; p = sys.argv[1].split('.')[1]; "
        "print(json.dumps(json.loads(base64.urlsafe_b64decode(p + '=' * (-len(p) % 4)))))"
    )
    done = held.shell(
        f'cat {secret}; t=$(sed -n s/^a=//p {secret}); python3 -c "{decode}" "$t"; o=$(cat {more}); '
        f'python3 -c "{decode}" "$o"; {ASK} -H "A-Token: $t" -H "B-Token: $o" https://example.com/jwt'
    )
    first, second, whole, claims, code = done.stdout.splitlines()
    assert code == "200" and second == "b=eyJub3.a.token" and first != f"a={jwt}", done
    assert OTHER or len(first) == len(jwt) + 2
    assert "secret.test" not in whole and json.loads(whole)["exp"] > 4_000_000_000
    seen = json.loads(claims)
    assert seen["iss"] == "https://issuer.test" and seen["n"] == {"key": "inner-key-stays"} and seen["key"] != claim
    assert arrived(held, "example.com", jwt) and arrived(held, "example.com", other)


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"extract": "("}, "not a regular expression"),
        ({"extract": "abc"}, "group"),
        ({"injectHosts": ["not-allowed.test"]}, "not in network.allowedDomains"),
        ({"injectHosts": []}, "empty"),
        ({"maskClaims": ["a"]}, "decode"),
        ({"path": "~/dir/"}, "directory"),
        ({"injectHost": ["example.com"]}, "unknown key"),
    ],
    ids=["extract", "no group", "host", "empty hosts", "claims", "directory", "typo"],
)
def test_credentials_are_checked(held: SrtBox, entry: dict[str, Any], message: str) -> None:
    terminate(held, {"files": [{"path": "~/x", "mode": "mask", **entry}]})
    done = held.shell("echo ran")
    assert done.returncode == 1 and (OTHER or message in done.stderr) and done.stdout == "", done


@pytest.mark.ours
@pytest.mark.parametrize("value", ["short", "two words of text", "a" * 9000], ids=["short", "words", "long"])
def test_what_can_not_be_masked_stops_the_run(held: SrtBox, value: str) -> None:
    secret = held.home / "token"
    secret.write_text(value)
    terminate(held, file_entry(secret, "example.com"))
    done = held.shell("echo ran")
    assert done.returncode == 78 and done.stdout == "" and value not in done.stderr, done


@pytest.mark.ours
def test_wildcards_take_hosts_below_them(held: SrtBox) -> None:
    value, secret = token(), held.home / "token"
    secret.write_text(value)
    terminate(held, file_entry(secret), "*.example.com", "example.com")  # by default all of them
    terminate(held, file_entry(secret, "*.example.com"), "*.example.com", "example.com")
    line = "; ".join(
        f'{ASK} -H "A-Token: $(cat {secret})" https://{host}/wild' for host in ("www.example.com", "example.com")
    )
    done = held.shell(line)
    assert done.stdout.split() == ["200", "403"], done
    assert arrived(held, "www.example.com", value) and not arrived(held, "example.com", value)


@pytest.mark.ours
def test_masks_hold_with_the_file_rules_disabled(held: SrtBox) -> None:
    value, secret = token(), held.home / "token"
    secret.write_text(value)
    terminate(held, file_entry(secret, "example.com"), files={"disabled": True})
    done = held.shell(
        f'cat {secret}; mv {secret} {secret}2; rm -f {secret}; {ASK} -H "A-Token: $(cat {secret})" https://example.com/d'
    )
    assert value not in done.stdout and done.stdout.endswith("200\n"), done
    assert secret.read_text() == value and arrived(held, "example.com", value)


# ---------------------------------------------------------------- AWS access keys


def signed(key_id: str, secret: str, method: str, url: str, body: str, at: float, **fields: str) -> str:
    """The field that botocore makes for a request with these fields at a time."""
    date = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(at))
    headers = {"X-Amz-Date": date, **{name.replace("_", "-"): value for name, value in fields.items()}}
    request = botocore.awsrequest.AWSRequest(method, url, data=body.encode(), headers=headers)
    auth = botocore.auth.SigV4Auth(botocore.credentials.Credentials(key_id, secret), "sts", "eu-central-1")
    request.context["timestamp"] = date
    signature = auth.signature(auth.string_to_sign(request, auth.canonical_request(request)), request)
    names, scope = auth.signed_headers(auth.headers_to_sign(request)), auth.credential_scope(request)
    return f"AWS4-HMAC-SHA256 Credential={key_id}/{scope}, SignedHeaders={names}, Signature={signature}"


def pair() -> dict[str, str]:
    """A key of this test alone."""
    noise = uuid.uuid4().hex.upper()
    return {"AWS_ACCESS_KEY_ID": f"AKIA{noise[:16]}", "AWS_SECRET_ACCESS_KEY": f"wJal/XUt+{noise}"[:40]}


def masked(*names: str, **more: Any) -> dict[str, Any]:
    variables = [{"name": name, "mode": "mask", "injectHosts": ["example.com"]} for name in names]
    return {"envVars": variables, **more}


@pytest.mark.parametrize("names", [("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), ("OWN_ID", "OWN_SECRET")])
def test_requests_are_signed_again(held: SrtBox, names: tuple[str, str]) -> None:
    """By the usual variables, and by those that ``awsPairs`` names."""
    environ = dict(zip(names, pair().values(), strict=True))
    key_id, secret = environ.values()
    explicit = {"awsPairs": [{"accessKeyIdVar": names[0], "secretAccessKeyVar": names[1]}]}
    terminate(held, masked(*names, **({} if names[0].startswith("AWS") else explicit)))
    ask = f'{ASK} --aws-sigv4 aws:amz:eu-central-1:sts -u "${names[0]}:${names[1]}"'
    began = int(time.time())
    done = held.shell(
        f"echo ${names[0]} ${names[1]}; {ask} https://example.com/?Action=A; "
        f"{ask} -H Content-Type:text/plain -d Action=B https://example.com/; {ask} https://google.com/; "
        f"{ask} -H 'X-Amz-Content-Sha256: STREAMING-AWS4-HMAC-SHA256-PAYLOAD' -d x https://example.com/",
        env=environ,
    )
    shown_id, shown_secret, *codes = done.stdout.split()
    assert codes == ["200", "200", "200" if OTHER else "403", "403"], done
    assert shown_id != key_id and shown_secret != secret
    at = range(began - 1, int(time.time()) + 2)
    asked = [signed(key_id, secret, "GET", "https://example.com/?Action=A", "", second) for second in at]
    typed = {"Content_Type": "text/plain"}
    posted = [signed(key_id, secret, "POST", "https://example.com/", "Action=B", second, **typed) for second in at]
    assert any(arrived(held, "example.com", field) for field in asked)
    assert any(arrived(held, "example.com", field) for field in posted)
    if not OTHER:  # what signs goes nowhere itself, not even to the hosts of the key
        lines = (f'{ASK} -H "A-Token: ${name}" https://example.com/' for name in names)
        assert held.shell("; ".join(lines), env=environ).stdout.split() == ["200", "403"]
    # Positive control: without the mask the client's own signature arrives.
    terminate(held, {})
    assert held.shell(f"{ask} https://example.com/?Action=A", env=environ).stdout.split() == ["200"]


@pytest.mark.ours
def test_a_secret_key_without_its_id_is_warned_of(held: SrtBox) -> None:
    terminate(held, masked("AWS_SECRET_ACCESS_KEY"))
    done = held.shell("echo ran", env=pair())
    assert done.stdout == "ran\n" and "AWS_ACCESS_KEY_ID is not" in done.stderr, done


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"awsPairs": [{"accessKeyIdVar": "A"}]}, "required"),
        ({"awsPairs": [{"accessKeyIdVar": "A", "secretAccessKeyVar": "NOT_MASKED"}]}, "masked whole"),
        ({"sigv4": {"streaming": "maybe"}}, "expected one of"),
        ({"sigv4": {"stream": "deny"}}, "unknown key"),
    ],
    ids=["no secret", "not masked", "policy", "typo"],
)
def test_pairs_are_checked(held: SrtBox, more: dict[str, Any], message: str) -> None:
    terminate(held, masked("A", **more))
    done = held.shell("echo ran")
    assert done.returncode == 1 and (OTHER or message in done.stderr), done
