import json

import pytest
from typer.testing import CliRunner, Result

from shoal.cli.main import app

run = CliRunner().invoke


def test_without_a_table_they_are_listed():
    found = run(app, ["reproduce"])
    assert found.exit_code == 0
    assert "Components: CMS in training" in found.stdout
    assert len(json.loads(run(app, ["reproduce", "--json"]).stdout)) == 20


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
        "1 --root cub=x --set gcd.training.lr=100.0",
        "1 --root cub=x --protocol papr",
        "1 --root cub=x --input-size -5",
        "1 --root cub=x --input-size 0",
        "2 16 --root cub=x --validation-share 0.4",
        "1 --root cub=x --validation-share 0.4 --protocol reference",
    ],
)
def test_what_a_user_got_wrong_is_one_line(tmp_path, arguments: str) -> None:
    found = reproduce(*arguments.split(), "--out", str(tmp_path / "out"))
    assert found.exit_code == 2, found.output
    assert len(found.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "flags", ["--validation-share 0.4", "--encoder efficientnet-lite2"], ids=str
)
def test_a_folder_that_is_not_there_is_named(tmp_path, flags: str) -> None:
    where = ["--root", "cub=/no/such", "--out", str(tmp_path / "out")]
    found = reproduce("1", *where, *flags.split())
    assert found.exit_code == 3, found.output
    assert "/no/such" in found.stderr
    assert len(found.stderr.splitlines()) == 1


def reproduce(*words: str) -> Result:
    return run(app, ["reproduce", *words, "--device", "cpu"])
