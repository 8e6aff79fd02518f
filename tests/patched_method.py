"""A method that learns in another way than it does, for tests."""

import copy


def with_represent(method, represent):
    """A copy of a method whose `represent` is another function."""
    patched = copy.copy(method)
    object.__setattr__(patched, "represent", represent)
    return patched
