"""Who gets nothing: other names, other origins, other sites, no token, too much."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from served import Served, served
from shoal.server.guard import MAX_BODY, Access, Guard
from small_runs import write_small


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    run = write_small(tmp_path_factory.mktemp("guard") / "run")
    with served(run.path) as found:
        found.csrf = found.json("/api/run")["csrf"]
        yield found


PATHS = (
    "/",
    "/static/main.js",
    "/api/run",
    "/api/columns",
    "/api/images?rows=0",
    "/thumbnails?rows=0",
    "/image/0",
)


@pytest.mark.parametrize("path", PATHS)
def test_nothing_is_told_without_the_token(server: Served, path: str) -> None:
    status, body, _ = server.ask(path, headers={"Cookie": None})
    assert status == 403
    assert body.endswith(
        b"it has the token. A page that was open before shows the same again once it is loaded "
        b"anew."
    )
    assert server.ask(path, headers={"Cookie": f"shoal-{server.port}=wrong"})[0] == 403
    assert server.ask("/?token=wrong", headers={"Cookie": None})[0] == 403


def test_the_printed_address_gives_a_cookie_that_scripts_and_other_sites_do_not_get(
    server: Served,
) -> None:
    status, body, headers = server.ask(f"/?token={server.token}", headers={"Cookie": None})
    assert (status, body, headers["location"]) == (303, b"", "/")
    assert (
        headers["set-cookie"]
        == f"shoal-{server.port}={server.token}; Path=/; HttpOnly; SameSite=Lax"
    )


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:80",
        "127.0.0.1.evil.example",
        "",
        "localhost.evil",
        "[",
        "127.0.0.1:x",
    ],
)
def test_another_name_for_this_machine_is_refused(server: Served, host: str) -> None:
    """An attacker's name that was made to point here has the attacker's page in the same origin."""
    assert server.ask("/api/run", headers={"Host": host})[0] in (400, 421)


@pytest.mark.parametrize(
    "other",
    [
        'settings={"dark":true}',
        "name=two words",
        "place=Zürich",
        "list[0]=1",
        "a/b=1",
        'open="quote',
        "alone",
        "=",
        "",
        "a==b",
        "expires",
    ],
)
def test_cookies_of_other_programs_on_this_machine_shut_nobody_out(
    server: Served, other: str
) -> None:
    """A browser sends the cookies of 127.0.0.1 to each of its ports."""
    ours = f"shoal-{server.port}={server.token}"
    for cookies in (f"{other}; {ours}", f"{ours}; {other}", f"{other};{ours};{other}"):
        assert server.ask("/api/run", headers={"Cookie": cookies})[0] == 200, cookies
    assert server.ask("/api/run", headers={"Cookie": f"{other}; x{ours}"})[0] == 403


@pytest.mark.parametrize(
    ("host", "port"), [("localhost:9001", 9001), ("[::1]:9002", 9002), ("127.0.0.1", 80)]
)
def test_the_cookie_has_the_port_that_the_browser_sees(
    server: Served, host: str, port: int
) -> None:
    """Behind two tunnels are two servers on the same port of two machines: their cookies must
    not be one.
    """
    given = server.ask(f"/?token={server.token}", headers={"Cookie": None, "Host": host})[2][
        "set-cookie"
    ]
    assert given.startswith(f"shoal-{port}={server.token};")
    cookies = f"shoal-{port}={server.token}; shoal-{server.port}=another-server's"
    assert server.ask("/api/run", headers={"Cookie": cookies, "Host": host})[0] == 200
    assert server.ask("/api/run", headers={"Host": host})[0] == 403


def rename(server: Served, headers: dict[str, str | None]) -> int:
    body = {"action": "rename", "category": 0, "name": "x", "by": "eve", "base": 99}
    return server.ask("/api/act", "POST", body, headers)[0]


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": None},
        {"X-Shoal-Csrf": None},
        {"X-Shoal-Csrf": "guess"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Cookie": None},
    ],
)
def test_a_change_comes_from_this_page_or_not_at_all(
    server: Served, headers: dict[str, str | None]
) -> None:
    assert rename(server, headers) == 403
    assert server.json("/api/run")["seq"] == 0


def test_an_image_on_another_site_reads_nothing(server: Served) -> None:
    assert server.ask("/image/0", headers={"Sec-Fetch-Site": "cross-site"})[0] == 403


def test_what_a_browser_may_do_with_the_page_is_said_with_every_answer(server: Served) -> None:
    for path in (*PATHS, "/nothing"):
        headers = server.ask(path)[2]
        policy = headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"


def test_bodies_and_headers_are_bounded(server: Served) -> None:
    with suppress(ConnectionError):  # of what is too long the rest is not read
        assert server.ask("/api/run", headers={"X-Long": "x" * (1 << 17)})[0] == 400
    assert server.ask("/api/act", "POST", b"", {"Content-Length": str(MAX_BODY + 1)})[0] == 413
    assert (
        server.ask(
            "/api/act", "POST", b"", {"Content-Length": None, "Transfer-Encoding": "chunked"}
        )[0]
        == 413
    )
    assert server.ask("/api/images?rows=" + ",".join(["1"] * 300))[0] == 400


@pytest.mark.parametrize(
    "path",
    [
        "/static/../guard.py",
        "/static/..%2f..%2fguard.py",
        "/static/%2e%2e/app.py",
        "/static/secrets.txt",
        "/image/-1",
        "/image/12",
        "/image/99999999999999999999",
        "/image/..%2f..%2fetc%2fpasswd",
        "/../../etc/passwd",
    ],
)
def test_no_other_file_is_served(server: Served, path: str) -> None:
    assert server.ask(path)[0] in (400, 404)


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{", b"1", b'{"base": 0}', b'{"action": "rename", "base": true}', b"[" * 9999],
)
def test_a_request_that_makes_no_sense_is_a_sentence(server: Served, body: bytes) -> None:
    status, answer, _ = server.ask("/api/act", "POST", body)
    assert status == 400
    assert b"error" in answer


@pytest.mark.parametrize(
    "fields",
    [
        {"action": "confirm"},
        {"action": "confirm", "rows": []},
        {"action": "confirm", "rows": [12]},
        {"action": "confirm", "rows": [-1]},
        {"action": "confirm", "rows": [0.0]},
        {"action": "confirm", "rows": [True]},
        {"action": "confirm", "rows": [0, 0]},
        {"action": "confirm", "rows": "0"},
        {"action": "assign", "rows": [0], "category": 77},
        {"action": "create", "rows": [0], "name": "a\u202eb"},
        {"action": "merge", "categories": [0], "into": 0},
        {"action": "split", "category": 0, "parts": [{"rows": [5], "name": "x"}]},
        {"action": "undo"},
        {"action": "undo", "of": 1},
        {"action": "start"},
    ],
)
def test_actions_that_make_no_sense_change_nothing(server: Served, fields: dict) -> None:
    status, answer = server.act(**fields)
    assert status in (400, 409)
    assert answer["error"]
    assert server.json("/api/run")["seq"] == 0


def test_reading_only_changes_nothing(tmp_path: Path) -> None:
    run = write_small(tmp_path / "run")
    with served(run.path, "--read-only") as server:
        assert server.json("/api/run")["read_only"]
        server.csrf = server.json("/api/run")["csrf"]
        status, body, _ = server.ask(
            "/api/act", "POST", {"action": "rename", "category": 0, "name": "x", "base": 0}
        )
        assert (status, body) == (403, b"This review is open for reading only.")
    assert not run.has("review.jsonl")


def test_on_another_address_the_name_of_the_machine_counts_and_no_other() -> None:
    access = Access(host="0.0.0.0", port=80)
    assert not access.is_loopback
    assert access.url.startswith(f"http://{socket.gethostname()}:80/?token=")
    assert access.knows_host("192.168.1.7")
    assert access.knows_host(socket.gethostname())
    assert not access.knows_host("evil.example")
    assert Access(host="::1", port=80).is_loopback


@pytest.mark.parametrize(
    ("host", "here"),
    [("0.0.0.0", "127.0.0.1"), ("0", "127.0.0.1"), ("::", "[::1]"), ("::0", "[::1]")],
)
def test_on_every_address_the_browser_here_and_others_get_one_that_works(
    host: str, here: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the name of a machine is known in a network, the machine does not know."""
    access = Access(host=host, port=80)
    assert access.url_once == f"http://{here}:80/?once={access.once.secret}"
    shown = "fd00::7" if ":" in host else "10.0.0.7"
    monkeypatch.setattr("shoal.server.guard._own_address", lambda host: shown)
    name = f"[{shown}]" if ":" in shown else shown
    assert access.url_by_address == f"http://{name}:80/?token={access.token}"
    monkeypatch.setattr("shoal.server.guard._own_address", lambda host: "")
    assert access.url_by_address == "", "there is no network"
    assert Access(host="10.0.0.7", port=80).url_by_address == "", (
        "it is in the address that is printed"
    )


def test_what_is_sent_after_the_key_was_taken_back_does_not_arrive() -> None:
    """The headers of a change came in time, its body when the browser had asked with the key."""
    access = Access(host="127.0.0.1", port=80)
    assert access.once.opens(access.once.secret, "")
    seen: list[str] = []
    given = {
        "host": "127.0.0.1:80",
        "origin": "http://127.0.0.1:80",
        "cookie": f"shoal-80={access.once.cookie}",
        "x-shoal-csrf": access.csrf,
        "content-length": "2",
    }
    headers = [(name.encode(), value.encode()) for name, value in given.items()]
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/api/act",
        "query_string": b"",
        "headers": headers,
    }

    async def handle(scope, receive, send) -> None:
        seen.append((await receive())["type"])

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}"}

    async def receive_late() -> dict[str, Any]:
        access.once.opens(access.once.secret, "")
        return await receive()

    async def send(message: Any) -> None:
        raise AssertionError(message)

    for arrives in (receive, receive_late):
        asyncio.run(Guard(handle, access)(scope, arrives, send))  # type: ignore[arg-type]
    assert seen == ["http.request", "http.disconnect"]
