"""The seven benchmarks of generalized category discovery, with their published splits."""

from shoal.data.benchmarks.benchmark import Benchmark, Verification, read_benchmark, verify
from shoal.data.benchmarks.official_images import (
    BENCHMARKS,
    BenchmarkFacts,
    ClassSplit,
    Part,
    get_facts,
    load_split,
)
