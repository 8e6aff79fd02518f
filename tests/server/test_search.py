"""What the page is offered, looked up without a server."""

from pathlib import Path

import numpy as np
import pytest

from shoal.review.actions import Action
from shoal.review.review import Review
from shoal.server import search
from shoal.server.search import Search
from small_runs import write_small


def test_pairs_put_apart_leave_room_for_the_next_until_none_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = tuple(f"novel-{number:03d}" for number in range(1, 9))
    run = write_small(
        tmp_path / "run", ids=tuple(np.repeat(np.arange(8), 10).tolist()), names=names
    )
    review = Review(run)
    found = Search(review)
    near = {(pair["a"], pair["b"]) for pair in found.merges()}
    monkeypatch.setattr(search, "MAX_MERGES", 3)
    assert len(near) > 10
    while pairs := [(pair["a"], pair["b"]) for pair in found.merges()]:
        offered = [pair for pair in pairs if tuple(sorted(pair)) not in review.state.distinct]
        if not offered:
            break
        assert len(offered) <= 3
        for pair in offered:
            review.act(lambda _, pair=pair: Action(kind="distinct", categories=pair), by="ann")
    assert {tuple(sorted(pair)) for pair in near} <= review.state.distinct
    assert set(pairs) >= near  # the page can still show them


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
