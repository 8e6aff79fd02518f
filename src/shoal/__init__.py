"""Shoal: discover the categories in a partly labeled image collection."""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# Public name -> the module that defines it. Names are imported on first use, so that `shoal --help` and readers of run
# folders start without torch. `__all__` is checked against this by a test.
_HOMES = {
    "UNLABELED": "shoal.arrays",
    "Accuracy": "shoal.clustering.matching",
    "Comparison": "shoal.discovery.comparison.comparison_result",
    "DiscoveredRun": "shoal.discovery.discovered_run",
    "MeanShiftClustering": "shoal.clustering.estimators",
    "Reporter": "shoal.discovery.reporter",
    "Row": "shoal.discovery.comparison.comparison_result",
    "ShoalError": "shoal.errors",
    "Tree": "shoal.clustering.tree",
    "WardClustering": "shoal.clustering.estimators",
    "compare": "shoal.discovery.comparison.compare",
    "discover": "shoal.discovery.api",
    "estimate_n_clusters": "shoal.clustering.n_clusters",
    "gcd_accuracy": "shoal.clustering.matching",
    "load": "shoal.discovery.api",
    "refine": "shoal.discovery.api",
    "ward_linkage": "shoal.clustering.ward",
}

__all__ = [
    "UNLABELED",
    "Accuracy",
    "Comparison",
    "DiscoveredRun",
    "MeanShiftClustering",
    "Reporter",
    "Row",
    "ShoalError",
    "Tree",
    "WardClustering",
    "compare",
    "discover",
    "estimate_n_clusters",
    "gcd_accuracy",
    "load",
    "refine",
    "ward_linkage",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'shoal' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
