"""Reporters: the log in Python, and further listeners."""

import logging

from shoal.discovery.reporter import Reporter


def test_messages_are_logged_and_not_printed(capsys, caplog) -> None:
    reporter = Reporter()
    with caplog.at_level(logging.INFO, logger="shoal"):
        reporter.report("hello\x1b]0;owned")
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


def test_notes_are_logged_as_warnings(caplog) -> None:
    with caplog.at_level(logging.INFO, logger="shoal"):
        Reporter().report("note: 1 of 2 images was 100 % black")
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("WARNING", "note: 1 of 2 images was 100 % black")
    ]
