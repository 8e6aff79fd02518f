"""A library caller finds it in the log; the command line hears everything."""

import logging

from shoal.discovery.reporter import Reporter


def test_nothing_is_printed_and_the_log_has_it(capsys, caplog) -> None:
    reporter = Reporter()
    with caplog.at_level(logging.INFO, logger="shoal"):
        reporter.say("hello\x1b]0;owned")
        reporter.detail("a trifle")
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("INFO", "hello␛]0;owned")
    ]
    with caplog.at_level(logging.DEBUG, logger="shoal"):
        reporter.detail("a trifle\x1b]0;owned")
    assert caplog.records[-1].message == "a trifle␛]0;owned"
    with reporter.progress("working") as progress:
        progress(1, 2)
    assert capsys.readouterr() == ("", "")


def test_a_note_is_a_warning(caplog) -> None:
    with caplog.at_level(logging.INFO, logger="shoal"):
        Reporter().say("note: 1 of 2 images was 100 % black")
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("WARNING", "note: 1 of 2 images was 100 % black")
    ]


def test_a_second_listener_hears_lines_and_details_too() -> None:
    first = []
    second = []
    reporter = Reporter(first.append, detail=lambda text: None).also_to(second.append)
    reporter.say("hello")
    reporter.detail("a trifle")
    assert (first, second) == (["hello"], ["hello", "a trifle"])
