"""The data that the server sends to the page, and actions that reach the other pages."""

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from served import Served, as_bits, as_lists, served, unpacked
from shoal.review import verbs
from shoal.review.review import Review
from shoal.runs import Run
from shoal.server.page_data import packed
from small_runs import write_small


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return write_small(tmp_path / "run")


@pytest.fixture
def server(run: Run) -> Iterator[Served]:
    with served(run.path) as found:
        yield found


def status_of(server: Served) -> list[int]:
    n = server.json("/api/run")["n_images"]
    body = server.ask("/api/columns")[1]
    return list(body[4 + 16 * n : 4 + 17 * n])


def test_an_action_is_on_the_disk_when_it_is_answered(server: Served, run: Run) -> None:
    status, answer = server.act("confirm", rows=[0, 1, 6])
    assert status == 200
    assert (answer["seq"], answer["rows"], answer["status"]) == (1, [0, 1, 6], [1, 1, 1])
    assert answer["undo"] == "confirm 3 images (gull, novel-001)"
    server.kill()
    state = Review(run).state
    assert state.status.tolist() == [1, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0]
    assert (state.actions[0].by, state.actions[0].kind) == ("ann", "confirm")


def test_many_images_are_decided_at_once(tmp_path: Path) -> None:
    """Neighboring images of 1,100 are in different categories of 4; all images but one are
    confirmed, by row.
    """
    many = write_small(tmp_path / "many", ids=(0, 1, 2, 3) * 275)
    rows = np.setdiff1d(np.arange(1100), [7]).tolist()
    with served(many.path) as server:
        status, answer = server.act("confirm", rows=rows)
        assert (status, answer["undo"]) == (
            200,
            "confirm 1,099 images (gull, heron, novel-001, …)",
        )
        assert (answer["rows"], set(answer["status"])) == (rows, {1})
        assert set(server.act("undo")[1]["status"]) == {0}
        rejected = server.act("reject", rows=rows)[1]
        assert (set(rejected["status"]), set(rejected["category"])) == ({2}, {-1})
        back = server.act("undo")[1]
        assert back["category"] == [row % 4 for row in rows]
        since = as_lists(server.json("/api/changes?since=0"))
        assert since["category"] == back["category"]  # covers all actions, not only the last one
    lines = (many.path / "review.jsonl").read_text().splitlines()
    groups = json.loads(lines[1])["groups"]
    assert [group["category"] for group in groups] == [0, 1, 2, 3]
    assert groups[3]["images"][:2] == ["03.png", "11.png"]


def test_every_kind_of_action(server: Served) -> None:
    for action, fields in (
        ("reject", {"rows": [2]}),
        ("flag", {"rows": [2, 3]}),
        ("assign", {"rows": [2], "category": 1}),
        ("create", {"rows": [9], "name": "tern"}),
        ("rename", {"category": 4, "name": "common tern"}),
        ("merge", {"categories": [4], "into": 3}),
        (
            "split",
            {"category": 3, "parts": [{"images": as_bits([9, 10]), "name": "skua"}]},
        ),
        ("distinct", {"categories": [0, 1]}),
        ("batch", {"actions": [{"action": "rename", "category": 2, "name": "teal"}]}),
        ("undo", {}),
        ("redo", {}),
        ("undo", {"of": 1}),
    ):
        status, answer = server.act(action, **fields)
        if action == "undo" and fields:
            assert status == 409
            assert "depends on it" in answer["error"]
        else:
            assert status == 200, answer
    names = {category["name"]: category for category in server.json("/api/run")["categories"]}
    assert names["common tern"]["into"] == 3
    assert names["skua"]["novel"]
    assert [entry["action"] for entry in server.json("/api/run")["entries"]][-2:] == [
        "undo",
        "redo",
    ]


@pytest.mark.parametrize("actions", ["rename", [0], [{}], [{"action": "undo", "of": 1}], []])
def test_a_batch_of_anything_but_renames_and_merges_is_refused(
    server: Served, actions: object
) -> None:
    status, answer = server.act("batch", actions=actions)
    assert status == 409
    assert answer["error"].startswith(("batch: ", "action: "))


def test_what_somebody_else_changed_meanwhile_is_refused_and_told(server: Served) -> None:
    server.act("reject", rows=[6], by="bob")
    status, answer = server.act("confirm", rows=[6, 7], base=0)
    assert (status, answer["rows"]) == (409, [6])
    assert answer["error"] == "confirm: an image has no category; move it to one first"
    status, answer = server.act("assign", rows=[6, 7], category=0, base=0)
    assert status == 409
    assert "reject by bob (action 1) changed this" in answer["error"]
    assert (answer["rows"], answer["category"]) == ([6], [-1])
    assert server.act("assign", rows=[6, 7], category=0, base=1)[0] == 200


def test_a_window_hears_of_another_process(server: Served, run: Run) -> None:
    heard: list[dict] = []
    listener = threading.Thread(target=lambda: heard.append(server.json("/api/changes?since=0")))
    listener.start()
    Review(run).act(verbs.rename, "gull", "tern", by="bob")
    listener.join(30)
    assert heard[0]["categories"][0]["name"] == "tern"
    assert heard[0]["entries"][0]["words"] == "rename (tern)"


def test_a_log_that_somebody_damages_meanwhile_is_a_sentence(server: Served, run: Run) -> None:
    server.act("confirm", rows=[0])
    with (run.path / "review.jsonl").open("a") as file:
        file.write("garbage\n")
    status, body, _ = server.ask("/api/changes?since=1")
    assert (status, b"review.jsonl, line 3: expected JSON" in body) == (400, True)
    assert server.act("confirm", base=1, rows=[1])[0] == 400
    assert server.ask("/api/run")[0] == 400


def test_two_servers_share_one_log(server: Served, run: Run) -> None:
    with served(run.path) as other:
        assert server.act("confirm", rows=[0])[0] == 200
        assert other.act("confirm", rows=[1], by="bob", base=0)[0] == 200
        assert other.act("reject", rows=[0], by="bob", base=0)[0] == 409
        assert server.act("confirm", rows=[2], base=1)[1]["rows"] == [1, 2]
    assert status_of(server) == [1, 1, 1, *[0] * 9]


def test_columns_hold_order_category_label_status_and_confidence(server: Served, run: Run) -> None:
    body = server.ask("/api/columns")[1]
    n = 12
    order, category, given, around = (
        np.frombuffer(body, "<i4", n, 4 + 4 * n * at) for at in range(4)
    )
    assert order.tolist() == list(range(n))  # outlier scores increase with the row
    assert category.tolist() == [row.category_id for row in run.assignments]
    assert given.tolist() == [0, -1, -1, 1, *[-1] * 8]
    assert around.tolist() == given.tolist()
    assert body[4 + 17 * n] == round(0.9 * 250)


def test_similar_images_candidates_and_parts(server: Served) -> None:
    assert set(server.json("/api/similar?row=6")["rows"][:3]) == {6, 7, 8}
    assert server.json("/api/similar?row=6")["rows"][0] == 6
    server.act("reject", rows=[7])
    server.act("confirm", rows=[6, 8])
    found = server.json("/api/candidates?category=2")["rows"]
    assert 7 not in found  # a reviewer rejected it from this category
    assert 0 not in found  # it has a given label
    server.act("merge", categories=[3], into=2)
    parts = server.json("/api/parts?category=2&parts=2")["parts"]
    assert sorted(map(sorted, parts)) == [[6, 8], [9, 10, 11]]
    assert "expected 2 to 5" in json.loads(server.ask("/api/parts?category=2&parts=9")[1])["error"]
    assert server.ask("/api/parts?category=77&parts=2")[0] == 400


def test_rejected_images_are_candidates_of_other_categories(server: Served) -> None:
    server.act("reject", rows=[7])
    server.act("flag", rows=[8])
    assert {6, 7, 8} & set(server.json("/api/candidates?category=3")["rows"]) == {
        6,
        7,
    }  # 8 is flagged for a reviewer


def test_merges_are_suggested_where_two_look_like_one(tmp_path: Path) -> None:
    ids = tuple(np.repeat([0, 1, 2, 3], 20).tolist())
    run = write_small(tmp_path / "near", ids=ids)
    x = np.array(run.array("embeddings"))
    x[60:] = x[40:60] + np.random.default_rng(1).normal(size=(20, 8), scale=0.05)
    run.write_array("embeddings", x.astype(np.float32))
    with served(run.path) as server:
        first, *others = server.json("/api/merges")
        assert ({first["a"], first["b"]}, first["alike"]) == ({2, 3}, True)
        assert first["separation"] < 3.5 < others[0]["separation"]
        assert not any(pair["alike"] for pair in others)
        server.act("merge", categories=[3], into=2)
        assert [pair["alike"] for pair in server.json("/api/merges")] == [False, False]


def test_paths_and_images_in_words(server: Served) -> None:
    assert server.json("/api/paths?text=1.PNG") == [1, 11]
    server.act("reject", rows=[6])
    image = server.json("/api/images?rows=6")[0]
    assert (image["path"], image["found"], image["status"], image["by"]) == (
        "06.png",
        "novel-001",
        "rejected",
        "ann",
    )
    assert image["rejected"] == ["novel-001"]


def test_a_path_finds_every_image_that_has_it(run: Run) -> None:
    first = run.assignments[0]
    n_images = 20_001
    run.write_assignments([replace(first, path=f"{row}.png") for row in range(n_images)])
    run.write_array("embeddings", np.ones((n_images, 8), np.float32))
    with served(run.path) as server:
        found = server.json("/api/paths?text=.PNG")
    assert found == [*range(n_images)]


def test_the_map_holds_a_place_for_every_image(server: Served) -> None:
    found = [server.json(f"/api/map{query}") for query in ("", "?layout=tsne", "")]
    assert found[1] == found[2]  # t-SNE is the default once it is computed
    for layout, points in zip(("pca", "tsne"), found, strict=False):
        assert (points["layout"], points["rows"]) == (layout, [*range(12)])
        x = np.array(points["x"])
        y = np.array(points["y"])
        assert {x.min(), y.min(), x.max(), y.max()} == {0, 65535}
        assert np.hypot(x[6] - x[7], y[6] - y[7]) < np.hypot(x[6] - x[0], y[6] - y[0])


@pytest.mark.parametrize("numbers", [[], [5], [0, 1, 2, 7, 9], [3, 3, 3, -1, -1, 0], [4, 2, 0]])
def test_packed_numbers_are_the_same_when_unpacked(numbers: list[int]) -> None:
    assert unpacked(packed(np.array(numbers, np.int64))).tolist() == numbers
