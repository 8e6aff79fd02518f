"""If a training run fails or collapses, the others continue, and the table reports it."""

import json
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from patched_method import with_represent
from shoal.cli.main import app
from shoal.errors import DataError, MissingError, ShoalError, UsageError
from shoal.methods import method
from shoal.methods.registry import get_method
from shoal.reproduce import runner as runner_module

REASON = "epoch 2: loss is not a finite number; lower lr"


def patch_represent(monkeypatch, name, represent):
    """Replace the function with which a method trains."""
    patched = {name: with_represent(get_method(name), represent)}
    monkeypatch.setattr(
        runner_module, "get_method", lambda asked: patched.get(asked) or get_method(asked)
    )


def failing(monkeypatch, method, error):
    """Let `represent`, the first half of a method, raise an error; return a list that grows with
    each call."""
    asked = []

    def represent(*args, **kwargs):
        asked.append(method)
        raise error

    patch_represent(monkeypatch, method, represent)
    return asked


def with_embeddings(monkeypatch, method, change):
    """Change the embeddings that a method returns."""

    def represent(*args, **kwargs):
        learned = get_method(method).represent(*args, **kwargs)
        return replace(learned, embeddings=change(learned.embeddings))

    patch_represent(monkeypatch, method, represent)


def test_the_other_cells_are_run_and_the_next_call_tries_the_missing_one_again(
    run, tmp_path, monkeypatch
):
    logged = []
    with monkeypatch.context() as patch:
        asked = failing(patch, "gcd", ShoalError(REASON))
        found = run("1", out=tmp_path, log=logged.append)
    assert asked == ["gcd"], "once for the two cells of the training run"
    ours = {r["row"]: r for r in found.records if r["column"] == "All"}
    assert ours["GCD, K given"]["ours"] is ours["GCD, K estimated"]["ours"] is None
    assert ours["CMS, K given"]["ours"] is not None
    assert len(found.failures) == 2
    assert "| GCD, K given | – (51.3) | – (56.6) | – (48.7) |" in found.text
    assert REASON in ours["GCD, K given"]["remarks"]
    assert REASON not in (ours["CMS, K given"]["remarks"] or "")
    for suffix in ("md", "csv"):
        assert REASON in (tmp_path / f"table1.{suffix}").read_text()
    assert any(text.startswith("failed: cub_gcd_gcd_given_") and REASON in text for text in logged)
    again = run("1", out=tmp_path)
    assert not again.failures
    assert REASON not in again.text


def test_a_clustering_that_fails_takes_only_its_own_cell(run, tmp_path, monkeypatch):
    def fail(*given):
        raise DataError("found NaN")

    monkeypatch.setattr(runner_module, "cluster_after", fail)
    found = run("4", out=tmp_path)
    missing = {r["row"] for r in found.records if r["ours"] is None}
    assert missing == {"(4) CMS, 1-step"}
    assert "failed, found NaN." in found.text


@pytest.mark.slow
@pytest.mark.parametrize(
    "error",
    [
        KeyboardInterrupt(),
        MissingError("no weights"),
        MemoryError(),
        OSError(28, "No space left on device"),
        torch.OutOfMemoryError("CUDA out of memory"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_the_next_training_would_end_in_too_ends_the_call(run, tmp_path, monkeypatch, error):
    asked = failing(monkeypatch, "gcd", error)
    with pytest.raises(type(error)):
        run("1", out=tmp_path)
    assert asked == ["gcd"]


def test_with_nothing_else_to_show_the_error_is_raised(run, tmp_path, monkeypatch):
    failing(monkeypatch, "cms", UsageError("n_neighbors: too many"))
    with pytest.raises(UsageError):
        run("14", out=tmp_path)


@pytest.mark.slow
def test_the_command_ends_with_1_after_writing_the_tables(tmp_path, monkeypatch, stand_in):
    failing(monkeypatch, "gcd", ShoalError(REASON))
    small = [f"--set={name}={value}" for name, value in stand_in.options.changes.items()]
    command = "reproduce 1 --root cub=x --encoder efficientnet-lite0 --input-size 14 --device cpu"
    found = CliRunner().invoke(app, [*command.split(), "--out", str(tmp_path), *small, "--json"])
    assert found.exit_code == 1, found.output
    output = json.loads(found.stdout)
    assert set(output["failed"].values()) == {REASON}
    assert len(output["failed"]) == 2
    assert (tmp_path / "table1.md").exists()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["gcd", "cms"])
def test_a_collapsed_training_is_named_under_the_table_and_in_its_cell(
    run, tmp_path, monkeypatch, method
):
    """All embeddings are almost equal, with or without a bank; cells of the other methods have no
    warning."""

    def collapse(embeddings):
        noise = torch.randn(embeddings.shape, generator=torch.Generator().manual_seed(0))
        return torch.nn.functional.normalize(embeddings[:1] + 1e-4 * noise, dim=1)

    with_embeddings(monkeypatch, method, collapse)
    found = run("1", out=tmp_path)
    title = method.upper()
    warned = [
        line for line in found.text.splitlines() if "training seems to have collapsed" in line
    ]
    assert [line.split(":")[0] for line in warned] == [
        f"- {title}, K {source}, CUB-200-2011, seed 0" for source in ("given", "estimated")
    ]
    for file in (tmp_path / "cells").glob("*.json"):
        cell = json.loads(file.read_text())
        if cell["cell"]["method"] == "agglomerative":
            assert cell["collapse"] is None
        else:
            is_collapsed = cell["cell"]["method"] == method
            assert (cell["collapse"]["mean_cosine"] > 0.999) == is_collapsed
            assert (cell["collapse"]["warning"] is not None) == is_collapsed


def test_a_training_too_far_gone_to_be_clustered_is_left_out(run, tmp_path, monkeypatch):
    """All embeddings are equal, so no cut has as many clusters as there are classes."""

    def first_of_all(embeddings):
        return embeddings[:1].expand_as(embeddings).contiguous()

    with_embeddings(monkeypatch, "cms", first_of_all)
    found = run("1", out=tmp_path)
    (note,) = [line for line in found.text.splitlines() if line.startswith("- CMS, K given")]
    assert "distinct" in note


def test_images_too_small_for_the_encoder_are_said_to_be_of_which_dataset_and_why(
    run, tmp_path, monkeypatch
):
    """The features of all images are zero, like those of efficientnet-lite2 at 32 px."""

    class Nothing(torch.nn.Module):
        def forward(self, images):
            return torch.zeros(len(images), 16)

    def load(name, **options):
        encoder = runner_module.load_encoder(name, **options)
        if "n_tail_blocks" not in options:  # the frozen encoder
            encoder.tail.finish = Nothing()
        return encoder

    monkeypatch.setattr(method, "load_encoder", load)
    found = run("1", out=tmp_path)
    assert "CUB-200-2011: failed, train-000, " in found.text
    frozen, trained = (
        {r["ours"] is None for r in found.records if r["row"] == f"{name}, K given"}
        for name in ("Agglomerative", "CMS")
    )
    assert (frozen, trained) == ({True}, {False})
