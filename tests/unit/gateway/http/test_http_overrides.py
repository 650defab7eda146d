"""Fields and parameters by which a server takes another method or path, in every spelling."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from membrane.gateway.http.overrides import BadOverride, kind_of, readings
from membrane.gateway.http.requests import Admitted, Bound, Gate, Refused
from membrane.policy.decide import Decider
from membrane.policy.grammar import host_rule
from membrane.policy.model import Allow, HttpRequest, Origin, Policy

METHODS = [
    "X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override", "X-Method", "HTTP-Method", "X-Original-Method",
    "X-Forwarded-Method", "X_HTTP_METHOD_OVERRIDE", "X.HTTP.Method.Override", "X~HTTP~Method", "X!Http|Method^Override",
    "Method-Override", "HTTP_X_HTTP_METHOD_OVERRIDE", "X-Request-Method", "_method",
    "X-HttpMethod", "X-HTTP-MethodOverride", "xhttpmethodoverride", "X-MethodOverride",
]  # fmt: skip
PATHS = [
    "X-Original-URL", "X-Original-URI", "X-Rewrite-URL", "X-Override-URL", "X~Original~URL", "X_ORIGINAL_URL",
    "X-Envoy-Original-Path", "X-Forwarded-Uri", "X-Forwarded-Path", "X-Forwarded-Url", "X-Replaced-Path", "Path-Info",
    "PATH_INFO", "X-Path-Info", "Request-URI", "X-Request-Uri", "X-WAWS-Unencoded-URL", "X-Matched-Path",
    "X-Invoke-Path", "X-Real-Path", "REDIRECT_URL", "Document-URI", "X-Orig-Path",
    "X-OriginalUrl", "X-UrlRewrite", "XRewriteURL", "X-ForwardedPath",
]  # fmt: skip
PREFIXES = [
    "SCRIPT_NAME", "Script-Name", "X-Script-Name", "X-Forwarded-Prefix", "X.Forwarded.Prefix", "X-Forwarded-Context",
    "X-Original-Prefix",
]  # fmt: skip
HARMLESS = [
    "Access-Control-Request-Method", "X-Stainless-Helper-Method", "X-Forwarded-For", "X-Request-Id",
    "X-Amz-Copy-Source-Range", "X-Requested-With", "Upgrade-Insecure-Requests", "Next-Url", "Content-Location",
    "Referer", "Accept", "User-Agent", "X-Amz-Target", "X-Copy-From-Account", "Server", "X-Docker-Host",
    "X-Amz-Website-Redirect-Location", "X-Goog-Request-Params", "Origin", "X-Goog-User-Project-Override",
    "Content-Type", "Authorization", "X-Real-IP", "Proxy-Connection", "X-GitHub-Api-Version", "Sec-Fetch-Mode",
    "X-Upload-Content-Length", "Git-Protocol", "SOAPAction", "X-B3-TraceId",
]  # fmt: skip
HOSTS = [
    "X-Forwarded-Host", "X_FORWARDED_HOST", "HTTP_X_FORWARDED_HOST", "X-Host", "X.Original.Host",
    "X-HTTP-Host-Override", "X-Forwarded-Server", "X-Real-Host", "X-Rewrite-Host", "X-ForwardedHost", "X-Proxy-Host",
    "X-Original-Authority",
]  # fmt: skip
RULE = host_rule("https://a.test/v1/", Origin("library", "t"), http=((("POST", "GET"), ()),))


def ask(
    name: str = "", value: str = "", *, path: str = "/v1/x", method: str = "POST", rule: object = RULE
) -> Admitted | Refused:
    gate = Gate(Bound("a.test", 443, "https"), Decider(Policy(allow=(rule,))).decide)  # type: ignore[arg-type]
    names, values = ([name.lower().encode()], [value.encode()]) if name else ([], [])
    found = gate.judge(method.encode(), path.encode(), b"a.test", names, values, body=False)
    assert isinstance(found, Admitted | Refused)
    return found


@pytest.mark.parametrize("name", METHODS)
def test_a_method_in_a_field_must_be_allowed_too(name: str) -> None:
    assert kind_of(name.lower().encode()) == "method"
    assert isinstance(ask(name, "GET"), Admitted)
    refused = ask(name, "DELETE")
    assert isinstance(refused, Refused) and refused.verdict.reason == "method not allowed"
    malformed = ask(name, "GET, DELETE")
    assert isinstance(malformed, Refused) and malformed.status == 400


@pytest.mark.parametrize("name", PATHS)
def test_a_path_in_a_field_must_be_allowed_too(name: str) -> None:
    assert kind_of(name.lower().encode()) == "path"
    for value in ("/v1/y", "https://a.test/v1/y?z=1"):
        assert isinstance(ask(name, value), Admitted), value
    for value in ("/admin", "/v1/../admin", "https://a.test/admin", "//admin"):
        refused = ask(name, value)
        assert isinstance(refused, Refused) and refused.verdict.reason == "path not allowed", value
    for value in ("/v1/%2fadmin", "v1/y", "", "https://b.test/v1/y"):
        malformed = ask(name, value)
        assert isinstance(malformed, Refused) and malformed.status == 400, value


@pytest.mark.parametrize("name", PREFIXES)
def test_a_prefix_in_a_field_leads_nowhere_else(name: str) -> None:
    assert kind_of(name.lower().encode()) == "prefix"
    assert isinstance(ask(name, ""), Admitted)
    assert isinstance(ask(name, "/"), Admitted)
    # gunicorn cuts it out wherever it stands, and it need not be a whole segment
    for value, path in [
        ("/v1", "/v1/admin/users"),
        ("v1", "/v1/admin"),
        ("/v1/x", "/v1/x/admin"),
        ("/v1%2Fx", "/v1/y"),
    ]:
        refused = ask(name, value, path=path)
        assert isinstance(refused, Refused), value
    assert isinstance(ask(name, "/v1/a", path="/v1/a/v1/b"), Admitted), "what is left is allowed as well"


@pytest.mark.parametrize("name", HARMLESS)
def test_other_fields_override_nothing(name: str) -> None:
    assert kind_of(name.lower().encode()) == ""
    assert isinstance(ask(name, "DELETE"), Admitted)
    assert isinstance(ask(name, "/admin"), Admitted)


@pytest.mark.parametrize("name", HOSTS)
def test_a_host_in_a_field_must_be_allowed_too(name: str) -> None:
    """Rails serves the host of X-Forwarded-Host; others do where they were told that a proxy is there."""
    assert kind_of(name.lower().encode()) == "host"
    for value in ("a.test", "A.test:8080", "a.test., a.test"):
        assert isinstance(ask(name, value), Admitted), value
    for value in ("b.test", "a.test, b.test", "10.0.0.1", "[::1]:80", "b.test:443", "127.0.0.1:443"):
        refused = ask(name, value)
        assert isinstance(refused, Refused) and refused.status == 403, value
        assert refused.verdict.hint.startswith("a field of the request names the host ")
    for value in ("", "https://b.test/", "a b", "127.1", "b.test,,", "user@b.test", "a.test/../", "\xe9.test"):
        malformed = ask(name, value)
        assert isinstance(malformed, Refused) and malformed.status == 400, value


@pytest.mark.parametrize(
    ("value", "status"),
    [
        ("for=192.0.2.60;proto=http;by=203.0.113.43", 0),
        ("for=192.0.2.60; Host = a.test", 0),
        ('host="A.test:80", for=x', 0),
        ('for="_a;b";host="b.test:80"', 403),
        ("host=a.test, host=b.test", 403),
        ("host=a.test;HOST=b.test", 403),
        ('host="b\\.test"', 400),
    ],
)
def test_a_host_of_forwarded_must_be_allowed_too(value: str, status: int) -> None:
    found = ask("Forwarded", value)
    assert (found.status if isinstance(found, Refused) else 0) == status


@pytest.mark.parametrize("name", ["X-Accel-Mapping", "X_Accel_Mapping", "X-Sendfile-Type"])
def test_what_a_front_end_says_to_its_server_is_malformed(name: str) -> None:
    refused = ask(name, "/v1/=/internal/")
    assert isinstance(refused, Refused) and refused.status == 400


def test_the_host_of_the_connection_is_no_override() -> None:
    assert isinstance(ask("Host", "a.test"), Admitted)


SOURCES = [
    "X-Amz-Copy-Source", "x_amz_copy_source", "X-Goog-Copy-Source", "X-Ms-Copy-Source", "X-Copy-From",
    "X-Object-Manifest", "x-oss-symlink-target",
]  # fmt: skip


@pytest.mark.parametrize("name", SOURCES)
def test_what_is_copied_must_be_allowed_to_be_read(name: str) -> None:
    for value in ("/v1/y", "v1/y?versionId=7", "/v1/a%20b", "v1%2Fy", "https://a.test/v1/y?sig=1", "//v1/y"):
        assert isinstance(ask(name, value), Admitted), value
    for value in ("/admin/y", "admin/y", "admin%2Fy", "v1/../admin", "https://a.test/admin", "http://a.test/v1/y",
                  "https://b.test/v1/y", "https://a.test:8443/v1/y", "https://[::1]/v1/y"):  # fmt: skip
        refused = ask(name, value)
        assert isinstance(refused, Refused) and refused.status == 403, value
    for value in ("ftp://a.test/v1/y", "https://user@a.test/v1/y", "v1/%00", "https://a.test/v1/%2fy"):
        malformed = ask(name, value)
        assert isinstance(malformed, Refused) and malformed.status == 400, value
    only_writes = host_rule("https://a.test/v1/", Origin("library", "t"), http=((("POST",), ()),))
    assert isinstance(ask(name, "/v1/y", rule=only_writes), Refused)


def test_what_is_moved_must_be_allowed_to_be_removed() -> None:
    assert isinstance(ask("x-ms-rename-source", "/v1/y"), Refused)
    more = host_rule("https://a.test/v1/", Origin("library", "t"), http=((("POST", "GET", "DELETE"), ()),))
    assert isinstance(ask("x-ms-rename-source", "/v1/y", rule=more), Admitted)
    assert isinstance(ask("x-ms-rename-source", "/v2/y", rule=more), Refused)


def test_without_methods_and_paths_a_field_takes_nothing_away() -> None:
    whole = host_rule("https://a.test", Origin("library", "t"), inspect=True)
    assert isinstance(ask("X-Original-URL", "/admin", rule=whole), Admitted)
    assert isinstance(ask("X-HTTP-Method-Override", "DELETE", rule=whole), Admitted)


def test_where_a_copy_goes_must_be_allowed_too() -> None:
    rule = host_rule("https://a.test/v1/", Origin("library", "t"))
    assert isinstance(ask("Destination", "https://a.test/v1/y", method="MOVE", rule=rule), Admitted)
    assert isinstance(ask("Destination", "https://a.test/admin", method="PUT", rule=rule), Admitted)
    assert isinstance(ask("Destination", "https://a.test/admin", method="MOVE", rule=rule), Refused)
    assert isinstance(ask("Destination", "/admin", method="COPY", rule=rule), Refused)


TOGETHER = (
    {"methods": ("POST", "DELETE"), "paths": ("/tmp",)},
    {"methods": ("POST", "MOVE", "GET"), "paths": ("/v1",)},
)


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"X-HTTP-Method-Override": "DELETE", "X-Original-URL": "/v1/y"}, "/tmp/x"),
        ({"X-Original-URL": "/v1/y", "X-HTTP-Method-Override": "DELETE"}, "/tmp/x"),
        ({"X-Original-URL": "/v1/y"}, "/tmp/x?_method=DELETE"),
        ({"X-HTTP-Method-Override": "MOVE", "Destination": "/tmp/y"}, "/v1/x"),
        ({"Destination": "/admin"}, "/v1/x?_method=MOVE"),
    ],
)
def test_fields_are_read_together(fields: dict[str, str], path: str) -> None:
    """Each alone asks for what is allowed; a server that obeys two serves what is not."""
    rules = tuple(
        host_rule("https://a.test", Origin("library", "t"), http=((each["methods"], each["paths"]),))
        for each in TOGETHER
    )
    gate = Gate(Bound("a.test", 443, "https"), Decider(Policy(allow=rules)).decide)

    def judged(chosen: dict[str, str], target: str) -> int:
        names, values = [name.lower().encode() for name in chosen], [value.encode() for value in chosen.values()]
        found = gate.judge(b"POST", target.encode(), b"a.test", names, values, body=False)
        return found.status if isinstance(found, Refused) else 0

    for name, value in fields.items():
        assert judged({name: value}, path.partition("?")[0]) == 0
    assert judged({}, path) == 0
    assert judged(fields, path) == 403


def test_too_many_fields_that_go_together_are_malformed() -> None:
    whole = host_rule("https://a.test", Origin("library", "t"), inspect=True)
    gate = Gate(Bound("a.test", 443, "https"), Decider(Policy(allow=(whole,))).decide)
    names = [b"x-original-url"] * 9 + [b"x-http-method"] * 9
    values = [b"/%d" % at for at in range(9)] + [b"M%d" % at for at in range(9)]
    assert isinstance(gate.judge(b"POST", b"/", b"a.test", names[5:10], values[5:10], body=False), Admitted)
    found = gate.judge(b"POST", b"/", b"a.test", names, values, body=False)
    assert isinstance(found, Refused) and found.status == 400
    hosts = [",".join(f"h{at}.test" for at in range(17)).encode()]
    found = gate.judge(b"POST", b"/", b"a.test", [b"x-forwarded-host"], hosts, body=False)
    assert isinstance(found, Refused) and found.status == 400


def test_the_same_again_costs_no_more_judgements() -> None:
    """Hundreds of fields that say the same, or the same in other words, are one reading each."""
    asked: list[HttpRequest] = []

    def decide(request: HttpRequest) -> Allow:
        asked.append(request)
        return Allow(None, "test")

    names = [b"x-original-url"] * 80 + [b"x-forwarded-host"] * 80 + [b"script-name"] * 80
    values = [b"/y", b"//y", b"/./y", b"/z/../y"] * 20 + [b"b.test, B.test:80, b.test."] * 80 + [b"/"] * 80
    gate = Gate(Bound("a.test", 443, "https"), decide)
    assert isinstance(gate.judge(b"POST", b"/v1/x", b"a.test", names, values, body=False), Admitted)
    assert len(asked) == 4


SPELLINGS = [
    "_method=DELETE", ".method=DELETE", "+_method=DELETE", "%20_method=DELETE", "_method%00=DELETE", "%2Emethod=DELETE",
    "%20%20.method=DELETE", "_method[]=DELETE", "_method[=DELETE", "_METHOD=delete", "a=b;_method=DELETE",
    "_method%00x=DELETE", "%5fmethod=DELETE", "X-HTTP-Method-Override=DELETE", "x.http.method.override=DELETE",
    "X_HTTP_METHOD=DELETE", "$httpMethod=DELETE", "%24httpMethod=DELETE", "+method=DELETE&_method=DELETE",
    "_method=+DELETE", "method_override=DELETE", "x-method=DELETE", "xHttpMethodOverride=DELETE", "_httpMethod=DELETE",
    "_method+=DELETE", "[method=DELETE", "-method=DELETE",
]  # fmt: skip


@pytest.mark.parametrize("query", SPELLINGS)
def test_a_method_in_the_query_must_be_allowed_too(query: str) -> None:
    refused = ask(path=f"/v1/x?{query}")
    assert isinstance(refused, Refused) and refused.verdict.reason == "method not allowed"
    assert isinstance(ask(path=f"/v1/x?{query.replace('DELETE', 'GET').replace('delete', 'get')}"), Admitted)


OTHERS = ["method=DELETE", "a_method=DELETE", "x=_method", "my.method=DELETE", "_methods=DELETE", "http_method=DELETE"]


@pytest.mark.parametrize("query", OTHERS)
def test_another_parameter_is_none(query: str) -> None:
    assert isinstance(ask(path=f"/v1/x?{query}"), Admitted)


NAME = st.sampled_from([*METHODS, *PATHS, *PREFIXES, *HARMLESS])
VALUE = st.text("/v1.%2fadmin?;:GETPOSDL ", max_size=12)


@given(NAME, VALUE, st.sampled_from("!#$%&'*+.^_`|~-"))
def test_a_field_never_widens_and_its_spelling_does_not_matter(name: str, value: str, separator: str) -> None:
    plain = ask(path="/admin")
    assert isinstance(plain, Refused)
    assert isinstance(ask(name, value, path="/admin"), Refused), "no field makes a refused request an allowed one"
    other = name.replace("-", separator).replace("_", separator)
    assert kind_of(other.lower().encode()) == kind_of(name.lower().encode())
    assert type(ask(name, value)) is type(ask(other, value))


@given(st.binary(max_size=24), st.binary(max_size=24), st.binary(max_size=24))
def test_anything_is_read_or_refused(name: bytes, value: bytes, query: bytes) -> None:
    request = HttpRequest("a.test", 443, "https", "POST", "/v1/x")
    for kind in (b"x-original-url", b"script_name", b"x-http-method", b"x-override", name.lower()):
        try:
            found = readings(request, [kind], [value], b"?" + query)
        except BadOverride:
            continue
        assert all(each.path.startswith("/") and each.method for each in found)
