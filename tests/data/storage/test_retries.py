"""How often is asked again, and what is not."""

import pytest

from shoal.data.storage.retries import LOST, Lost, Tries, tried
from shoal.errors import UsageError

QUICK = Tries(n_tries=3, wait_s=0)


class Store:
    """Fails a number of times, then answers."""

    def __init__(self, n_failures: int, error: Exception) -> None:
        self.n_failures = n_failures
        self.error = error
        self.n_asked = 0

    def ask(self) -> str:
        self.n_asked += 1
        if self.n_asked <= self.n_failures:
            raise self.error
        return "found"


def test_a_connection_that_fails_less_often_than_it_may_gives_the_answer() -> None:
    store = Store(2, ConnectionResetError("reset by peer"))
    assert tried(store.ask, QUICK) == "found"
    assert store.n_asked == 3


def test_a_connection_that_fails_as_often_as_it_may_is_lost_with_the_last_reason() -> None:
    store = Store(3, TimeoutError())
    with pytest.raises(Lost, match=rf"^{LOST} \(tried 3 times\): TimeoutError$"):
        tried(store.ask, QUICK)
    assert store.n_asked == 3


class Answer(Exception):
    """As aiohttp has it, of a web server."""

    def __init__(self, status: int) -> None:
        self.status = status


@pytest.mark.parametrize(
    "error", [FileNotFoundError("x"), PermissionError("x"), ValueError("x"), Answer(403)]
)
def test_what_trying_again_does_not_change_is_asked_once(error: Exception) -> None:
    store = Store(9, error)
    with pytest.raises(type(error)):
        tried(store.ask, QUICK)
    assert store.n_asked == 1


@pytest.mark.parametrize("status", [500, 503, 429, 408])
def test_a_server_that_is_busy_is_asked_again(status: int) -> None:
    assert tried(Store(2, Answer(status)).ask, QUICK) == "found"


def test_waits_double(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("shoal.data.storage.retries.time.sleep", waits.append)
    with pytest.raises(Lost):
        tried(Store(9, OSError("x")).ask, Tries(n_tries=4, wait_s=0.5))
    assert waits == [0.5, 1.0, 2.0]


def test_the_environment_says_how_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_TRIES", "7")
    monkeypatch.setenv("SHOAL_TRY_WAIT_S", "0.25")
    assert Tries.from_environment() == Tries(n_tries=7, wait_s=0.25)
    monkeypatch.setenv("SHOAL_TRIES", "0")
    with pytest.raises(UsageError, match="SHOAL_TRIES: found '0', expected a number of 1 or more"):
        Tries.from_environment()
