"""Which way a tree is linked."""

import pytest


@pytest.fixture
def many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Link few rows as if they were many: by lists, scans and the table."""
    monkeypatch.setattr("shoal.clustering.ward.linkage.FEW_PRODUCTS", 0)
