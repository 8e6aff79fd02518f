"""How long something will still take, by a clock that the tests set, and who is told when."""

import os
import subprocess
import sys

import pytest

from shoal.discovery.reporter import Reporter, stderr_reporter
from shoal.progress import FIRST_LINE_S, LINE_S, Outlook, Pace, about, lines, show


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_speed_is_measured_from_the_first_report_on_so_that_a_slow_start_does_not_count(
    clock,
) -> None:
    pace = Pace(clock=clock)
    assert pace.seconds_left == 0.0
    clock.now += 500  # something is compiled
    pace.update(10, 110)
    assert pace.seconds_left is None
    clock.now += 10
    pace.update(20, 110)
    assert pace.seconds_left == pytest.approx(90)
    assert pace.in_words() == "20 of 110, about 2 minutes left"


def test_what_was_done_by_an_earlier_run_does_not_count_as_speed(clock) -> None:
    pace = Pace(clock=clock)
    pace.update(90, 100)
    clock.now += 3
    pace.update(91, 100)
    assert pace.seconds_left == pytest.approx(27)


def test_a_machine_that_becomes_slower_is_noticed(clock) -> None:
    pace = Pace(clock=clock)
    for done in range(100):  # one a second
        pace.update(done, 1000)
        clock.now += 1
    for done in range(100, 140):  # one in ten seconds
        pace.update(done, 1000)
        clock.now += 10
    assert pace.seconds_left == pytest.approx(861 * 10, rel=0.1)


def test_an_expectation_serves_until_something_is_measured_and_what_follows_is_added(clock) -> None:
    pace = Pace(Outlook("views", unit_s=0.5, then_s=1000), clock)
    pace.update(0, 200)
    assert pace.seconds_left == pytest.approx(1100)
    for done in range(1, 101):
        clock.now += 0.5
        pace.update(done, 200)
    assert pace.seconds_left == pytest.approx(1050)
    clock.now += 50
    pace.update(200, 200)
    assert (pace.seconds_left, pace.in_words()) == (
        pytest.approx(1000),
        "200 of 200 views, about 17 minutes left in all",
    )


@pytest.mark.parametrize("factor", [20, 1 / 20])
def test_ten_seconds_correct_an_expectation_that_is_wrong_by_far_to_a_factor_of_two(
    clock, factor
) -> None:
    pace = Pace(Outlook("steps", unit_s=0.1, then_s=100), clock)
    pace.update(0, 100_000)
    clock.now += 10
    done = round(10 / (0.1 * factor))
    pace.update(done, 100_000)
    left = factor * (0.1 * (100_000 - done) + 100)
    assert left / 2 < pace.seconds_left < 2 * left


def test_what_follows_is_expected_to_be_as_slow_as_what_is_measured(clock) -> None:
    """A machine that others use too is slow at everything: a training must not seem to take longer at its end."""
    pace = Pace(Outlook("views", unit_s=0.5, then_s=1000), clock)
    for done in range(0, 2001):
        pace.update(done, 2000)
        clock.now += 2
        if done == 1000:
            assert pace.seconds_left == pytest.approx(4 * (1000 * 0.5 + 1000), rel=0.1)
    assert pace.seconds_left == pytest.approx(4 * 1000, rel=0.1)


def test_lines_come_after_a_few_seconds_and_then_every_minute(clock) -> None:
    told = []
    with lines("embedding images", Outlook("images"), told.append, clock) as update:
        for second in range(200):
            clock.now = 100.0 + second
            update(second, 1000)
    assert len(told) == 1 + int((199 - FIRST_LINE_S) // LINE_S)
    assert told[0] == "embedding images: 5 of 1,000 images, about 17 minutes left"
    assert told[1] == "embedding images: 65 of 1,000 images, about 16 minutes left"


def test_what_is_over_at_once_has_no_line(clock) -> None:
    told = []
    with lines("decoding images", Outlook(), told.append, clock) as update:
        clock.now += 100
        update(7, 7)
    assert told == []


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (1, "a few seconds"),
        (12, "about 12 seconds"),
        (44, "about 40 seconds"),
        (100, "about 2 minutes"),
        (1500, "about 25 minutes"),
        (7800, "about 2 h 10 min"),
    ],
)
def test_a_span_is_said_as_one_would_say_it(seconds, words) -> None:
    assert about(seconds) == words


def test_a_second_listener_hears_how_something_goes_on(clock, monkeypatch) -> None:
    monkeypatch.setattr("shoal.progress.FIRST_LINE_S", 0.0)
    first = []
    second = []
    reporter = Reporter(first.append).also_to(second.append)
    with reporter.progress("training", Outlook("steps", unit_s=60.0)) as update:
        update(1, 10)
    assert (first, second) == ([], ["training …", "training: 1 of 10 steps, about 9 minutes left"])


def test_off_a_terminal_a_line_tells_how_something_goes_on(monkeypatch) -> None:
    monkeypatch.setattr("shoal.progress.FIRST_LINE_S", 0.0)
    said: list[str] = []
    with show("training", Outlook("steps", unit_s=60.0), said.append) as update:
        update(1, 10)
    assert said == ["training …", "training: 1 of 10 steps, about 9 minutes left"]


DRAW = """
from shoal.progress import Outlook, show
with show("training", Outlook("steps", unit_s=60.0), print) as update:
    update(1, 10)
"""


@pytest.mark.skipif(os.name != "posix", reason="needs a pseudoterminal")
def test_on_a_terminal_a_bar_is_drawn_with_its_unit_and_the_time_left() -> None:
    ours, theirs = os.openpty()
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen(
        [sys.executable, "-c", DRAW], stdout=subprocess.PIPE, stderr=theirs, env=env
    ) as process:
        os.close(theirs)
        drawn = _read_all(ours)
        assert process.communicate() == (b"", None)
    os.close(ours)
    assert "training" in drawn
    assert "━" in drawn
    assert "1 of 10 steps, about 9 minutes left" in drawn


def _read_all(terminal: int) -> str:
    """What is drawn until nobody holds the other end any more."""
    found = b""
    while True:
        try:
            part = os.read(terminal, 4096)
        except OSError:  # Linux says so that the other end is closed
            part = b""
        if not part:
            return found.decode()
        found += part


def test_a_caller_from_python_sees_on_stderr_what_begins(capsys) -> None:
    reporter = stderr_reporter()
    reporter.say("hello\x1b]0;owned\x07")
    with reporter.progress("decoding images") as update:
        update(1, 1)
    assert capsys.readouterr() == ("", "hello␛]0;owned␇\ndecoding images …\n")
