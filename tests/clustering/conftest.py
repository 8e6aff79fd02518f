"""A fixture that selects how a tree is linked."""

import pytest


@pytest.fixture
def many_rows(monkeypatch):
    """Link small or tied inputs with neighbor lists and scans, like large inputs without ties."""
    monkeypatch.setattr("shoal.clustering.ward.linkage.FEW_PRODUCTS", 0)
    monkeypatch.setattr("shoal.clustering.ward.linkage.MAX_TIED", 0)
