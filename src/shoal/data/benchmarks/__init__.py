"""The seven benchmarks of generalized category discovery, with their published splits."""

from shoal.data.benchmarks.benchmark import (
    BENCHMARKS,
    Benchmark,
    BenchmarkFacts,
    ClassSplit,
    Part,
    Verification,
    get_facts,
    load_split,
    read_benchmark,
    verify,
)
