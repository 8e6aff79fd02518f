"""Pages on which a refusal is expected."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from chromium import Page
from served import Served


@pytest.fixture
def page(opened: Callable[..., AbstractContextManager[Page]], server: Served) -> Iterator[Page]:
    """A page on a run of its own; the browser may complain of nothing but a refusal."""
    with opened(server) as found:
        yield found
        refusals = ("400 (Bad Request)", "409 (Conflict)")
        assert [line for line in found.complaints() if not line.endswith(refusals)] == []
