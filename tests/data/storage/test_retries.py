"""Which requests are retried, and how often."""

import pytest

from shoal.data.storage import with_retries


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setenv("SHOAL_TRIES", "3")
    monkeypatch.setenv("SHOAL_TRY_WAIT_S", "0")


class Store:
    """Fails a number of times, then succeeds."""

    def __init__(self, n_failures, error):
        self.n_failures = n_failures
        self.error = error
        self.n_asked = 0

    def ask(self):
        self.n_asked += 1
        if self.n_asked <= self.n_failures:
            raise self.error
        return "found"


class Answer(Exception):
    """An HTTP error like aiohttp's."""

    def __init__(self, status):
        self.status = status


@pytest.mark.parametrize(
    "error", [FileNotFoundError("x"), PermissionError("x"), ValueError("x"), Answer(403)]
)
def test_what_trying_again_does_not_change_is_asked_once(error):
    store = Store(9, error)
    with pytest.raises(type(error)):
        with_retries(store.ask)
    assert store.n_asked == 1


@pytest.mark.parametrize("status", [500, 503, 429, 408])
def test_a_server_that_is_busy_is_asked_again(status):
    assert with_retries(Store(2, Answer(status)).ask) == "found"


def test_ctrl_c_is_not_tried_again():
    store = Store(9, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        with_retries(store.ask)
    assert store.n_asked == 1
