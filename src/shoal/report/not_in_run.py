"""What a page or figure says where a run does not hold what it draws."""

from shoal.errors import DataError


class NotInRun(DataError):
    """Something this run does not hold; the message is the sentence that stands in its place."""
