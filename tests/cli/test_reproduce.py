import json

import pytest
from typer.testing import CliRunner, Result

from shoal.cli.main import app

run = CliRunner().invoke


def test_without_arguments_the_tables_are_listed():
    found = run(app, ["reproduce"])
    assert found.exit_code == 0
    assert "Components: CMS in training" in found.stdout
    assert len(json.loads(run(app, ["reproduce", "--json"]).stdout)) == 16


@pytest.mark.parametrize(
    "arguments",
    [
        "18 --root cub=x",
        "1",
        "1 --root cub",
        "1 --root cubs=x",
        "1 --root cub=x --root cub=y",
        "1 --root cub=x --seeds zero",
        "1 --root cub=x --seeds 0,1,0",
        "1 --root cub=x --seeds 99999999999999999999",
        "1 --root cub=x --set epochs",
        "1 --root cub=x --encoder efficientnet-lite2 --set training.speed=1",
        "1 --root cub=x --set training.lr=[1",
        "1 --root cub=x --set n_tail_block=3",
        "12 14 --root cub=x --set n_init=9",
        "1 --root cub=x --set agglomerative.n_init=9",
        "13 --root cub=x --set inference.shift.alpha=0.1",
        "1 --root cub=x --set training.seed=1",
        "1 --root cub=x --set cms.training.seed=1",
        "1 --root cub=x --set n_clusters=9",
        "1 --root cub=x --set encoder=dino",
        "1 --root cub=x --set training.epochs=2 --epochs 3",
        "1 14 --root cub=x --set loss.supervised_weight=1",
        "1 --root cub=x --set training=5 --epochs 1",
        "1 --root cub=x --set gcd.training.lr=0",
        "1 --root cub=x --protocol papr",
        "1 --root cub=x --seeds ,",
    ],
)
def test_user_errors_are_one_line(tmp_path, arguments: str) -> None:
    found = reproduce(*arguments.split(), "--out", str(tmp_path / "out"))
    assert found.exit_code == 2, found.output
    assert len(found.stderr.splitlines()) == 1


def test_a_missing_folder_is_named(tmp_path) -> None:
    found = reproduce("1", "--root", "cub=/no/such", "--out", str(tmp_path / "out"))
    assert found.exit_code == 3, found.output
    assert "/no/such" in found.stderr
    assert len(found.stderr.splitlines()) == 1


def reproduce(*words: str) -> Result:
    return run(app, ["reproduce", *words, "--device", "cpu"])
