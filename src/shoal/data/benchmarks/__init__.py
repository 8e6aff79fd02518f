"""The seven benchmarks of generalized category discovery, with their published splits."""

from shoal.data.benchmarks.benchmark import Benchmark, read_benchmark
from shoal.data.benchmarks.preparation import Verification, prepare, verify
from shoal.data.benchmarks.published_facts import BENCHMARKS, BenchmarkFacts, Part, get_facts
from shoal.data.benchmarks.split import ClassSplit, load_split

__all__ = [
    "BENCHMARKS",
    "Benchmark",
    "BenchmarkFacts",
    "ClassSplit",
    "Part",
    "Verification",
    "get_facts",
    "load_split",
    "prepare",
    "read_benchmark",
    "verify",
]
