"""Shoal: discover the categories in a partly labeled image collection."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what a type checker sees; at run time names are imported on first use
    from shoal.arrays import UNLABELED
    from shoal.clustering.estimators import MeanShiftClustering, WardClustering
    from shoal.clustering.matching import Accuracy, gcd_accuracy
    from shoal.clustering.n_clusters import estimate_n_clusters
    from shoal.clustering.tree import Tree
    from shoal.clustering.ward import ward_linkage
    from shoal.discovery.api import discover, load, refine
    from shoal.discovery.comparison.compare import compare
    from shoal.discovery.comparison.evaluation import Comparison, Row
    from shoal.discovery.discovered_run import DiscoveredRun
    from shoal.discovery.reporter import Reporter
    from shoal.errors import ShoalError

__version__ = "0.1.0"

# Public name -> the module that defines it. Names are imported on first use, so that `shoal --help`
# and readers of run folders start without torch. `__all__` is checked against this by a test.
_MODULES = {
    "UNLABELED": "shoal.arrays",
    "Accuracy": "shoal.clustering.matching",
    "Comparison": "shoal.discovery.comparison.evaluation",
    "DiscoveredRun": "shoal.discovery.discovered_run",
    "MeanShiftClustering": "shoal.clustering.estimators",
    "Reporter": "shoal.discovery.reporter",
    "Row": "shoal.discovery.comparison.evaluation",
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


if not TYPE_CHECKING:  # a checker that sees __getattr__ accepts every name

    def __getattr__(name: str) -> object:
        if name in _MODULES:
            return getattr(import_module(_MODULES[name]), name)
        raise AttributeError(f"module 'shoal' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
