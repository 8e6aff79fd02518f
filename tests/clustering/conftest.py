"""Which way a tree is linked."""

import pytest


@pytest.fixture
def many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Link few and tied rows as if they were many and were not: by lists and scans."""
    monkeypatch.setattr("shoal.clustering.ward.linkage.FEW_PRODUCTS", 0)
    monkeypatch.setattr("shoal.clustering.ward.linkage.MAX_TIED", 0)
