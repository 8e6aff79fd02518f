"""Estimates of the remaining time, by a clock that the tests set, and when they are reported."""

import os
import re
import subprocess
import sys
from contextlib import contextmanager

import pytest

from shoal.discovery.reporter import Reporter, default_reporter
from shoal.progress import FIRST_LINE_S, LINE_S, about, show


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def lines(what, unit, reported, clock, after=0.0):
    log = reported.append
    with show(what, unit, log, after=after, has_bar=False, clock=clock) as update:
        assert reported.pop() == f"{what} …"
        yield update


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_speed_is_measured_from_the_first_report_on_so_that_a_slow_start_does_not_count(
    clock,
) -> None:
    reported = []
    with lines("training", "steps", reported, clock) as update:
        clock.now += 500  # loading, or work done by an earlier run
        update(10, 110)
        assert reported == []
        clock.now += 10
        update(20, 110)
    assert reported == ["training: 20 of 110 steps, about 1.5 minutes left"]


def test_a_pause_and_the_work_that_follows_count(clock) -> None:
    reported = []
    with lines("training", "steps", reported, clock, after=30.0) as update:
        for done in range(5):
            update(done, 85)
            clock.now += 1
        clock.now += 5  # validation
        update(4, 85)
        assert reported == []
        update(5, 85)
    assert reported == ["training: 5 of 85 steps, about 3.5 minutes left"]  # 80 steps of 2.25 s


def test_a_machine_that_becomes_slower_is_noticed(clock) -> None:
    reported = []
    with lines("training", "", reported, clock) as update:
        for done in range(100):  # one per second
            update(done, 1000)
            clock.now += 1
        for done in range(100, 140):  # one per ten seconds
            update(done, 1000)
            clock.now += 10
    assert reported[0].endswith(f", {about(995)} left")
    assert reported[-1].endswith(f", {about(10 * (1000 - 135))} left")


def test_lines_come_after_a_few_seconds_and_then_every_minute(clock) -> None:
    reported = []
    with lines("embedding images", "images", reported, clock) as update:
        for second in range(200):
            clock.now = 100.0 + second
            update(second, 1000)
    assert len(reported) == 1 + int((199 - FIRST_LINE_S) // LINE_S)
    assert reported[0] == "embedding images: 5 of 1,000 images, about 17 minutes left"
    assert reported[1] == "embedding images: 65 of 1,000 images, about 16 minutes left"


def test_what_is_over_at_once_has_no_line(clock) -> None:
    reported = []
    with lines("decoding images", "images", reported, clock) as update:
        clock.now += 100
        update(7, 7)
    assert reported == []


def test_a_second_listener_hears_how_something_goes_on(monkeypatch) -> None:
    monkeypatch.setattr("shoal.progress.FIRST_LINE_S", 0.0)
    first = []
    second = []
    reporter = Reporter(first.append).also_to(second.append)
    with reporter.progress("training", "steps") as update:
        update(1, 10)
        update(2, 10)
    assert first == []
    peak = second.pop()
    assert second == ["training …"]
    assert re.fullmatch(r"training: peak memory \d+\.\d\d GB so far", peak)


DRAW = """
from shoal.progress import show
with show("training", "steps", print) as update:
    update(1, 10)
"""


@pytest.mark.skipif(os.name != "posix", reason="needs a pseudoterminal")
def test_on_a_terminal_a_bar_is_drawn_with_its_unit() -> None:
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
    assert "steps" in drawn


def _read_all(terminal: int) -> str:
    """Return all output to a terminal until its other end is closed."""
    found = b""
    while True:
        try:
            part = os.read(terminal, 4096)
        except OSError:  # Linux raises this once the other end is closed
            part = b""
        if not part:
            return found.decode()
        found += part


def test_off_a_terminal_it_is_said_what_begins(capsys) -> None:
    reporter = default_reporter(verbose=True)
    reporter.report("hello\x1b]0;owned\x07")
    with reporter.progress("decoding images") as update:
        update(1, 1)
    assert capsys.readouterr() == ("", "hello␛]0;owned␇\ndecoding images …\n")
    reported: list[str] = []
    with show("training", "steps", reported.append) as update:
        update(1, 10)
    assert reported == ["training …"]
