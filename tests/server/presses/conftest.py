"""A page whose actions may be refused."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from chromium import Page
from served import Served


@pytest.fixture
def page(opened: Callable[..., AbstractContextManager[Page]], server: Served) -> Iterator[Page]:
    """A page on a separate run; the browser may log refusals, but no other errors."""
    with opened(server) as found:
        yield found
        refusals = ("400 (Bad Request)", "409 (Conflict)")
        assert [line for line in found.complaints() if not line.endswith(refusals)] == []
