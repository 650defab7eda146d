"""A JVM trusts the session's authority, in the key store that it looks into by itself and in the one we name."""

from __future__ import annotations

import pytest
from world.box import Box

STREAM = "https://stream.test:8444"
FETCH = """
import java.net.URI;
import java.net.http.*;

class Fetch {
    public static void main(String[] urls) throws Exception {
        HttpClient client = HttpClient.newHttpClient();
        for (String url : urls) {
            HttpRequest request = HttpRequest.newBuilder(URI.create(url)).build();
            System.out.println(client.send(request, HttpResponse.BodyHandlers.ofString()).statusCode());
        }
    }
}
"""


@pytest.mark.needs_tool("javac")
def test_java_is_judged_by_request(box: Box) -> None:
    box.allow({"dest": STREAM, "http": [{"methods": ["GET"], "paths": ["/a"]}]})
    (box.workspace / "Fetch.java").write_text(FETCH)
    assert box.outside("javac", "Fetch.java").returncode == 0
    script = f"""
    java -XX:TieredStopAtLevel=1 Fetch {STREAM}/a {STREAM}/b
    java -XX:TieredStopAtLevel=1 -Djavax.net.ssl.trustStore=/run/.membrane/certificates.jks Fetch {STREAM}/a
    """
    done = box.run(f"--extra-ca={box.world.ca}", f"--events={box.events_path}", "--", "bash", "-c", script)
    assert done.stdout.split() == ["200", "403", "200"], done
    assert "Picked up" not in done.stderr, "the JVM says nothing of its own"
    requests = [(event["path"], event["verdict"]) for event in box.events("RequestSeen")]
    assert requests == [("/a", "allow"), ("/b", "deny"), ("/a", "allow")]
