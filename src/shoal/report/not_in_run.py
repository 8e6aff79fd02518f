"""The error for a figure that a run cannot fill."""

from shoal.errors import DataError


class NotInRun(DataError):
    """Something that the run does not contain; the message is shown in its place."""
