"""What the page is offered, looked up without a server."""

from pathlib import Path

import numpy as np

from shoal.review.review import Review
from shoal.server.search import Search
from small_runs import write_small


def test_images_are_compared_in_float32_where_a_large_run_has_them_in_float16(
    tmp_path: Path,
) -> None:
    x = np.random.default_rng(0).normal(size=(80, 64)).astype(np.float16)
    found = []
    for name, dtype in (("half", np.float16), ("single", np.float32)):
        run = write_small(tmp_path / name, ids=(0,) * 80, names=("novel-001",))
        run.write_array("embeddings", x.astype(dtype))
        found.append(Search(Review(run)).likeness(x[3].astype(np.float64)))
    assert found[0].dtype == np.float32
    np.testing.assert_allclose(found[0], found[1], atol=1e-6)
