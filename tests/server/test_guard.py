"""Requests that are refused: other host names, origins and sites, no token, too much data."""

import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from served import Served, as_bits, served
from shoal.server.guard import MAX_BODY, Access
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
    assert b"Open the address that `shoal review` printed" in body
    assert server.ask(path, headers={"Cookie": f"shoal-{server.port}=wrong"})[0] == 403
    assert server.ask("/?token=wrong", headers={"Cookie": None})[0] == 403


def test_the_printed_address_gives_a_cookie_that_scripts_and_other_sites_do_not_get(
    server: Served,
) -> None:
    status, body, headers = server.ask(f"/?token={server.token}", headers={"Cookie": None})
    assert (status, body, headers["location"]) == (303, b"", "/")
    cookie, *attributes = headers["set-cookie"].split("; ")
    assert cookie == f"shoal-{server.port}={server.token}"
    assert set(attributes) == {"Path=/", "HttpOnly", "SameSite=lax"}


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
    """DNS rebinding: a name that resolves to this machine would share the attacker's origin."""
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
    """A browser sends the cookies of 127.0.0.1 to all ports."""
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
    """Two tunnels may lead to servers on the same port of two machines, whose cookies must have
    different names.
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
    with suppress(ConnectionError):  # the server stops reading at the limit
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
    assert status in (400, 409)
    assert b"error" in answer


@pytest.mark.parametrize(
    "fields",
    [
        {"action": "confirm"},
        {"action": "confirm", "rows": []},
        {"action": "confirm", "rows": [12]},
        {"action": "confirm", "images": [0]},
        {"action": "confirm", "images": "é"},
        {"action": "confirm", "images": "AAA"},
        {"action": "assign", "rows": [0], "category": 77},
        {"action": "create", "rows": [0], "name": "a\u202eb"},
        {"action": "merge", "categories": [0], "into": 0},
        {"action": "split", "category": 0, "parts": [{"images": as_bits([5]), "name": "x"}]},
        {"action": "split", "category": 2, "parts": []},
        {
            "action": "split",
            "category": 0,
            "parts": [
                {"images": as_bits([0, 1]), "name": "x"},
                {"images": as_bits([1]), "name": "y"},
            ],
        },
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
        assert (status, body) == (403, b"This review is read-only.")
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
def test_on_every_address_the_browser_here_gets_one_that_works(host: str, here: str) -> None:
    access = Access(host=host, port=80)
    assert access.local_url == f"http://{here}:80/?token={access.token}"


def test_a_method_without_a_body_is_not_allowed_rather_than_too_long(server: Served) -> None:
    csrf = server.json("/api/run")["csrf"]
    headers = {"Origin": f"http://127.0.0.1:{server.port}", "X-Shoal-Csrf": csrf}
    assert server.ask("/api/act", "DELETE", headers=headers)[0] == 405
