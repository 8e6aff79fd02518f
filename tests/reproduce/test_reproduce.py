"""Every table and figure from end to end, on the stand-in; cells are shared, as they are in use."""

import csv
import io
import json
import re
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from shoal.errors import DataError, UnknownName, UsageError
from shoal.methods.catalog import get_method
from shoal.reproduce import runner as runner_module
from shoal.reproduce import stage
from shoal.reproduce.catalog import EXPERIMENTS, get_experiment
from shoal.reproduce.reproduce import reproduce_with
from shoal.reproduce.runner import Runner, cells_of

TABLES = [name for name, experiment in EXPERIMENTS.items() if not experiment.is_figure]
FIGURES = [name for name, experiment in EXPERIMENTS.items() if experiment.is_figure]


PROTOCOLS = {"paper": "", "reference": "_reference"}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", TABLES)
def test_the_table_runs_and_every_row_of_ours_has_a_number(run, folder, stand_in, name, protocol):
    found = run(name, options=replace(stand_in.options, protocol=protocol))
    assert found.n_missing == 0
    stem = f"table{name}{PROTOCOLS[protocol]}"
    assert f"protocol '{protocol}'" in found.text
    assert ("HIDDEN labels" in found.text) == (protocol == "reference" and name != "7")
    rows = get_experiment(name).rows
    of_row = {row.name: [r for r in found.records if r["row"] == row.name] for row in rows}
    for row in rows:
        assert of_row[row.name]
        assert all((r["ours"] is not None) == (row.method is not None) for r in of_row[row.name])
        assert all(np.isfinite(r["ours"]) for r in of_row[row.name] if r["ours"] is not None)
        assert all(r["protocol"] == protocol for r in of_row[row.name])
    assert {file.suffix for file in found.files} == {".md", ".tex", ".csv"}
    lines = list(csv.DictReader(io.StringIO((folder / f"{stem}.csv").read_text())))
    assert len(lines) == len(found.records)
    assert (folder / f"{stem}.md").read_text() == found.text
    numbers = len(found.records) // len(rows)
    check_latex((folder / f"{stem}.tex").read_text(), n_columns=1 + numbers, n_rows=len(rows))


def check_latex(text, n_columns, n_rows):
    """What a LaTeX compiler asks of a table: ASCII, closed braces, as many cells in each row as there are columns."""
    lines = [line for line in text.splitlines() if not line.startswith("%")]
    printed = "\n".join(lines)
    assert printed.isascii()
    assert printed.count("{") == printed.count("}")
    assert printed.count("$") % 2 == 0
    assert lines[0] == f"\\begin{{tabular}}{{l{'c' * (n_columns - 1)}}}"
    assert [lines[1], lines[4], lines[-1]] == ["\\toprule", "\\midrule", "\\end{tabular}"]
    body = lines[5 : lines.index("\\bottomrule")]
    assert len(body) == n_rows
    for line in [lines[3], *body]:
        assert line.endswith(" \\\\")
        assert line.count("&") == n_columns - 1
        assert not re.search(r"(?<!\\)[%_#^~]", line)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", FIGURES)
def test_the_figure_is_drawn(run, stand_in, name, protocol):
    found = run(name, options=replace(stand_in.options, protocol=protocol))
    assert found.n_missing == 0
    assert [file.name for file in found.files] == [f"figure_{name}_cub{PROTOCOLS[protocol]}.svg"]
    drawing = found.files[0].read_text()
    assert "<svg" in drawing
    assert ("by hidden labels" in drawing) == (protocol == "reference")


def test_the_papers_number_stands_beside_ours(run):
    found = run("1")
    row = next(r for r in found.records if r["row"] == "CMS, K given" and r["column"] == "All")
    assert row["paper"] == 68.2
    assert f"{row['ours']:.1f} (68.2)" in found.text
    quoted = next(r for r in found.records if r["row"] == "SimGCD, K given" and r["column"] == "All")
    assert (quoted["ours"], quoted["paper"]) == (None, 60.3)


def test_a_cell_says_which_split_and_how_many_images_it_was_made_with(run, folder, stand_in):
    run("12")
    for file in (folder / "cells").glob("*.json"):
        found = json.loads(file.read_text())
        assert found["split_sha256"] == stand_in.split.sha256
        assert found["images"] == 120


def test_cells_and_tables_say_which_rule_decided_on_k(run, folder):
    """Ten labels per known class suffice for 'balance'; of the two set aside for validation even 'median' says no."""
    text, *_ = [run(table).text for table in ("1", "2", "3")]
    rules = {}
    for file in (folder / "cells").glob("cub_*.json"):
        found = json.loads(file.read_text())
        if "rule" in found and found["cell"]["protocol"] == "paper" and "lite" in found["cell"]["settings"]["encoder"]:
            rules.setdefault((found["cell"]["method"], found["cell"]["n_clusters"]), set()).add(found["rule"])
    assert rules == {
        **{(method, "given"): {None} for method in ("agglomerative", "gcd", "cms")},
        **{(method, "estimated"): {"gap"} for method in ("gcd", "cms")},
        ("agglomerative", "estimated"): {"balance"},
    }
    assert "rule 'balance' (decided by 'gap') on labeled validation images (GCD, K estimated | CMS, K est" in text
    assert "rule 'balance' on all given labels (Agglomerative, K estimated)" in text
    assert "(decided by 'gap')" in (folder / "table1.tex").read_text()
    row = next(r for r in run("1").records if r["row"] == "CMS, K estimated")
    assert row["k_rule"] == "rule 'balance' (decided by 'gap') on labeled validation images"


def test_a_cell_that_does_not_keep_its_rule_is_read_and_the_table_says_so(run, tmp_path):
    run("15", out=tmp_path)
    (file,) = (tmp_path / "cells").glob("*.json")
    old = json.loads(file.read_text())
    assert old.pop("rule") == "gap"
    file.write_text(json.dumps(old))
    found = run("15", out=tmp_path)
    assert found.n_missing == 0
    assert "rule 'balance' (which one decided was not kept) on labeled validation images" in found.text


def test_finished_cells_are_not_run_again(run, monkeypatch):
    run("4")

    def refuse(self, cells):
        raise AssertionError("ran again")

    monkeypatch.setattr(Runner, "_run_group", refuse)
    assert run("4").n_missing == 0


def test_cells_of_other_images_are_not_taken_for_these(run, tmp_path, monkeypatch, stand_in):
    run("12", out=tmp_path)
    monkeypatch.setattr(runner_module, "read_names_sha256", lambda dataset, root: "others")
    with pytest.raises(UsageError, match="was made with other images \\(120\\) than nowhere holds; give another --out"):
        run("12", out=tmp_path)


def test_tables_share_cells_and_cells_share_trainings(tmp_path, monkeypatch, stand_in):
    """Tables 1 and 4 are 14 rows of ours, 11 different cells, and 3 things to learn: frozen, GCD and CMS."""
    learned = []

    def counting(name):
        info = get_method(name)

        def represent(*args, **kwargs):
            learned.append(name)
            return info.represent(*args, **kwargs)

        return replace(info, represent=represent)

    monkeypatch.setattr(runner_module, "get_method", counting)
    runner = Runner({"cub": Path("nowhere")}, tmp_path, device=torch.device("cpu"))
    tables = [get_experiment(name) for name in ("1", "4")]
    cells = [cell for table in tables for cell in cells_of(table, ["cub"], [0], stand_in.options)]
    assert len(cells) == 14
    assert len(runner.run_cells(cells)) == len(list((tmp_path / "cells").glob("*.json"))) == 11
    assert sorted(learned) == ["agglomerative", "cms", "gcd"]
    assert all(reproduce_with(runner, table, [0], stand_in.options).n_missing == 0 for table in tables)
    assert len(learned) == 3
    runner.close()


def test_images_are_read_once_for_all_tables_of_a_runner(tmp_path, stand_in, tiny):
    before = len(tiny["reads"])
    runner = Runner({"cub": Path("nowhere")}, tmp_path, device=torch.device("cpu"))
    for name in ("1", "12"):
        reproduce_with(runner, get_experiment(name), [0], stand_in.options)
    runner.close()
    assert tiny["reads"][before:] == [("cub", "train")]


def test_a_cut_off_table_goes_on_where_it_was(run, tmp_path, stand_in):
    """Time is up after the first training: what is done is kept, and the rest is run by the next call."""
    told = []
    runner = Runner({"cub": Path("nowhere")}, tmp_path, device=torch.device("cpu"), tell=told.append)
    runner.until = time.monotonic() + 1000
    runner.longest["cub"] = 0.0
    original = Runner._run_group

    def first_only(self, cells):
        original(self, cells)
        self.until = time.monotonic()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Runner, "_run_group", first_only)
        partial = reproduce_with(runner, get_experiment("12"), [0], stand_in.options)
    runner.close()
    assert partial.n_missing == 2
    assert "–" in partial.text
    assert any("left out for want of time" in text for text in told)
    kept = {file: file.stat().st_mtime_ns for file in (tmp_path / "cells").glob("*.json")}
    assert len(kept) == 1
    whole = run("12", out=tmp_path)
    assert whole.n_missing == 0
    assert all(file.stat().st_mtime_ns == changed for file, changed in kept.items())


def test_seeds_give_a_mean_and_a_spread_and_frozen_features_need_one_seed_only(run, tmp_path):
    found = run("1", out=tmp_path, seeds=(0, 1))
    ours = {r["row"]: r for r in found.records if r["column"] == "All" and r["ours"] is not None}
    assert ours["CMS, K given"]["n_seeds"] == ours["GCD, K given"]["n_seeds"] == 2
    assert ours["CMS, K given"]["spread"] is not None
    assert ours["Agglomerative, K given"]["n_seeds"] == 1
    assert ours["Agglomerative, K given"]["spread"] is None
    results = [json.loads(file.read_text()) for file in (tmp_path / "cells").glob("cub_cms_cms_given_*.json")]
    assert sorted(r["cell"]["settings"]["training"]["seed"] for r in results) == [0, 1]
    mean = np.mean([r["accuracy"]["all"] for r in results])
    assert ours["CMS, K given"]["ours"] == pytest.approx(mean)


def scrambling(read, parts=("train", "test")):
    """A reader of benchmarks whose hidden labels are shuffled in some parts."""

    def scrambled(name, root, *, part="train", seed=0):
        benchmark = read(name, root, part=part, seed=seed)
        if part not in parts:
            return benchmark
        truth = benchmark.truth
        hidden = benchmark.collection.labels == -1
        labels = truth.labels.copy()
        labels[hidden] = np.random.default_rng(6).permutation(labels[hidden])
        return replace(benchmark, truth=replace(truth, labels=labels))

    return scrambled


def choices(folder):
    chosen = {}
    for file in (folder / "cells").glob("*.json"):
        found = json.loads(file.read_text())
        chosen[file.name] = [found[k] for k in ("n_clusters", "n_shifts", "epoch", "validation", "labeled_accuracies")]
    return chosen


@pytest.mark.parametrize("table", ["2", "3"])
def test_scrambled_hidden_labels_change_no_choice_in_the_other_tables(run, tmp_path, monkeypatch, stand_in, table):
    run(table, out=tmp_path / "true")
    monkeypatch.setattr(stage, "read_benchmark", scrambling(stand_in.read))
    run(table, out=tmp_path / "scrambled")
    assert choices(tmp_path / "true") == choices(tmp_path / "scrambled")


@pytest.mark.parametrize(("table", "parts"), [("1", ("test",)), ("2", ("train",)), ("3", ("test",))])
def test_the_released_codes_protocol_does_look_at_hidden_labels(run, tmp_path, monkeypatch, stand_in, table, parts):
    """The counterpart: what is chosen depends on hidden labels of the test part, inductively of the training part."""
    options = replace(stand_in.options, protocol="reference")
    run(table, out=tmp_path / "true", options=options)
    monkeypatch.setattr(stage, "read_benchmark", scrambling(stand_in.read, parts))
    run(table, out=tmp_path / "scrambled", options=options)
    before, after = choices(tmp_path / "true"), choices(tmp_path / "scrambled")
    assert before.keys() == after.keys()
    trained = {name for name in before if "_agglomerative_" not in name}
    assert {name for name in before if before[name][3] != after[name][3]} == trained
    assert any(before[name][:3] != after[name][:3] for name in trained), "K, the shifts or the epoch is another"
    for name in before:
        assert json.loads((tmp_path / "true" / "cells" / name).read_text())["hidden_labels_chose"] == (name in trained)


def test_scrambled_hidden_labels_change_no_choice(run, tmp_path, monkeypatch, stand_in):
    """K, snapshot, shifts and what they were chosen by are the same, whatever the truth is; only scores differ."""
    run("1", out=tmp_path / "true")
    monkeypatch.setattr(stage, "read_benchmark", scrambling(stand_in.read))
    run("1", out=tmp_path / "scrambled")
    assert choices(tmp_path / "true") == choices(tmp_path / "scrambled")
    accuracy = [
        json.loads(next((tmp_path / name / "cells").glob("cub_cms_cms_given_*")).read_text())["accuracy"]["all"]
        for name in ("true", "scrambled")
    ]
    assert accuracy[0] > accuracy[1]


def test_the_inductive_setup_scores_the_test_part_only(run, tiny, folder):
    run("14", out=folder / "inductive")
    assert ("cub", "test") in tiny["reads"]
    found = [json.loads(file.read_text()) for file in (folder / "inductive" / "cells").glob("*.json")]
    inductive = [result for result in found if result["cell"]["setup"] == "inductive"]
    assert {result["cell"]["validation_share"] for result in inductive} == {0.1}
    assert all(result["accuracy"]["all"] > 50 for result in inductive)


def test_the_two_protocols_lie_side_by_side_in_one_folder(run, tmp_path, stand_in):
    papers = run("12", out=tmp_path)
    released = run("12", out=tmp_path, options=replace(stand_in.options, protocol="reference"))
    assert not set(papers.files) & set(released.files)
    assert papers.files[0].read_text() == papers.text
    assert len(list((tmp_path / "cells").glob("*_reference_*.json"))) == 3
    assert len(list((tmp_path / "cells").glob("*.json"))) == 6


def test_what_cannot_be_run_is_refused(run, tmp_path):
    with pytest.raises(UnknownName, match="no table or figure '16'"):
        run("16")
    with pytest.raises(UnknownName, match="no benchmark 'cubs'; did you mean 'cub'"):
        run("1", roots={"cubs": "nowhere"})
    with pytest.raises(UsageError, match="no dataset or no seed"):
        run("1", seeds=())


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"cell": {}}', "3"])
def test_a_broken_cell_says_what_to_do_before_anything_is_run(run, tmp_path, stand_in, monkeypatch, content):
    cells = cells_of(get_experiment("12"), ["cub"], [0], stand_in.options)
    (tmp_path / "cells").mkdir()
    (tmp_path / "cells" / f"{cells[-1].key}.json").write_text(content)
    monkeypatch.setattr(Runner, "_run_group", lambda self, group: pytest.fail("ran"))
    with pytest.raises(DataError, match="delete it to run it again"):
        run("12", out=tmp_path)


@pytest.mark.parametrize(
    ("table", "protocol", "parts"),
    [("1", "paper", {"train"}), ("2", "paper", {"train", "test"}), ("1", "reference", {"train", "test"})],
)
def test_folders_are_looked_at_before_the_first_training(run, tmp_path, stand_in, monkeypatch, table, protocol, parts):
    asked = set()
    monkeypatch.setattr(Runner, "_run_group", lambda self, group: None)
    monkeypatch.setattr(runner_module, "check_part", lambda dataset, root, part: asked.add((dataset, part)))
    roots = {"cub": "here", "cars": "there"}
    run(table, out=tmp_path, roots=roots, options=replace(stand_in.options, protocol=protocol))
    assert asked == {(dataset, part) for dataset in roots for part in parts}


def test_runners_that_share_a_folder_decode_and_run_the_trunk_once_and_find_the_same(tmp_path, stand_in, monkeypatch):
    options = replace(stand_in.options, changes={**stand_in.options.changes, "training.views.pool": 2})
    cells = [cell for cell in cells_of(get_experiment("1"), ["cub"], [0], options) if cell.method == "cms"]
    (tmp_path / "shared").mkdir()
    found, made = {}, {}
    for out, folder in (("alone", None), ("first", tmp_path / "shared"), ("second", tmp_path / "shared")):
        made[out] = counted(monkeypatch, "load_pixels", "cache_tokens", "pool_views")
        runner = Runner({"cub": Path("nowhere")}, tmp_path / out, device=torch.device("cpu"), shared=folder)
        found[out] = [result["accuracy"] for result in runner.run_cells(cells).values()]
        runner.close()
        monkeypatch.undo()
    assert found["alone"] == found["first"] == found["second"]
    assert made["alone"] == made["first"] == {"load_pixels": 1, "cache_tokens": 1, "pool_views": 1}
    assert made["second"] == {}


def counted(monkeypatch, *names):
    """How often these functions of the stage are called from now on."""
    calls = Counter()

    def counting(name, original):
        def call(*args, **kwargs):
            calls[name] += 1
            return original(*args, **kwargs)

        return call

    for name in names:
        monkeypatch.setattr(stage, name, counting(name, getattr(stage, name)))
    return calls


def test_small_images_are_enlarged_to_what_the_encoder_crops_from(tmp_path):
    """CIFAR's 32 px would leave a ViT four tokens: everybody enlarges to 256 px and crops 224."""
    images = stage.Stage("cifar100", tmp_path, device=torch.device("cpu"), input_size=224, scratch=tmp_path).train
    assert tuple(images.pixels.shape[1:]) == (256, 256, 3)


def test_an_image_that_cannot_be_decoded_is_left_out_by_every_runner_of_a_shared_folder(tmp_path, monkeypatch):
    original = stage.load_pixels

    def without_the_first(collection, size, **options):
        found = original(collection, size, **options)
        return replace(found, rows=found.rows[1:], names=found.names[1:], index=found.index[1:])

    monkeypatch.setattr(stage, "load_pixels", without_the_first)
    arguments = {"device": torch.device("cpu"), "input_size": 14, "scratch": tmp_path}
    alone = stage.Stage("cub", tmp_path, **arguments).train
    for images in [stage.Stage("cub", tmp_path, shared=tmp_path, **arguments).train for _ in range(2)]:
        assert images.n_skipped == alone.n_skipped == 1
        assert torch.equal(torch.as_tensor(images.pixels), torch.as_tensor(alone.pixels))
        assert np.array_equal(images.truth, alone.truth)
