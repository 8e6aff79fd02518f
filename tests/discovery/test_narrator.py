"""A library caller hears nothing; the command line hears everything."""

from contextlib import contextmanager

from shoal.discovery.narrator import Narrator


def test_nobody_is_told_anything_unless_asked(capsys) -> None:
    narrator = Narrator()
    narrator.say("hello")
    with narrator.bar("working") as progress:
        progress(1, 2)
    assert capsys.readouterr() == ("", "")


def test_what_is_said_and_done_reaches_the_given_callables() -> None:
    heard = []

    @contextmanager
    def bar(what):
        heard.append(what)
        yield lambda done, total: heard.append((done, total))

    narrator = Narrator(heard.append, bar)
    narrator.say("hello")
    with narrator.bar("working") as progress:
        progress(1, 2)
    assert heard == ["hello", "working", (1, 2)]
