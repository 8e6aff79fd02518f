import json

import pytest
from typer.testing import CliRunner

from shoal.cli.main import app

run = CliRunner().invoke


def test_without_a_table_they_are_listed():
    found = run(app, ["reproduce"])
    assert found.exit_code == 0
    assert "Components: CMS in training" in found.stdout
    assert len(json.loads(run(app, ["reproduce", "--json"]).stdout)) == 20


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["18", "--root", "cub=x"], 2, "no table or figure '18'"),
        (["1"], 2, "no folder of images; give one of cifar100"),
        (["1", "--root", "cub"], 2, "--root: found 'cub', expected DATASET=FOLDER"),
        (["1", "--root", "cubs=x"], 2, "no benchmark 'cubs'"),
        (["1", "--root", "cub=x", "--seeds", "zero"], 2, "--seeds: found 'zero'"),
        (
            ["1", "--root", "cub=x", "--set", "epochs"],
            2,
            "--set: found 'epochs', expected NAME=VALUE",
        ),
        (
            [
                "1",
                "--root",
                "cub=x",
                "--encoder",
                "efficientnet-lite2",
                "--set",
                "training.speed=1",
            ],
            2,
            "unknown setting",
        ),
        (
            ["1", "--root", "cub=x", "--set", "training.lr=[1"],
            2,
            "--set training.lr: found '[1', expected a number",
        ),
        (["1", "--root", "cub=x", "--set", "n_tail_block=3"], 2, "did you mean 'n_tail_blocks'?"),
        (
            ["12", "14", "--root", "cub=x", "--set", "n_init=9"],
            2,
            "no row of what is run (12, 14) has this setting",
        ),
        (
            ["1", "--root", "cub=x", "--set", "agglomerative.n_init=9"],
            2,
            "unknown setting 'n_init'",
        ),
        (
            ["13", "--root", "cub=x", "--set", "inference.shift.alpha=0.1"],
            2,
            "Table 13 sets it row by row",
        ),
        (
            ["1", "--root", "cub=x", "--protocol", "papr"],
            2,
            "no protocol 'papr'; did you mean 'paper'",
        ),
        (["1", "--root", "cub=x", "--seeds", "0,1,0"], 2, "--seeds: found 0 more than once"),
        (
            ["1", "--root", "cub=x", "--root", "cub=y"],
            2,
            "--root cub: found more than once, expected once",
        ),
        (
            ["1", "--root", "cub=x", "--set", "training.seed=1"],
            2,
            "the seeds of a table are given by --seeds",
        ),
        (
            ["1", "--root", "cub=x", "--set", "cms.training.seed=1"],
            2,
            "the seeds of a table are given by --seeds",
        ),
        (
            ["1", "--root", "cub=x", "--set", "n_clusters=9"],
            2,
            "say whether K is given or estimated",
        ),
        (
            ["1", "--root", "cub=x", "--set", "encoder=dino"],
            2,
            "the encoder of a table is given by --encoder",
        ),
        (
            ["1", "--root", "cub=x", "--set", "training.epochs=2", "--epochs", "3"],
            2,
            "training.epochs: found more than once",
        ),
        (
            ["1", "14", "--root", "cub=x", "--set", "loss.supervised_weight=1"],
            2,
            "Table 14 sets it row by row",
        ),
        (["1", "18", "--root", "cub=x"], 2, "8, 9, 10, 11, 12, 13, 14, 15, 16, 17, iterations"),
        (
            ["1", "--root", "cub=x", "--set", "training=5", "--epochs", "1"],
            2,
            "training: found 5 for a group of settings, expected one of them by name, as in training.epochs",
        ),
        (
            ["1", "--root", "cub=x", "--seeds", "99999999999999999999"],
            2,
            "seed: found 99999999999999999999, expected a whole number from 0 to 4294967295",
        ),
        (
            ["1", "--root", "cub=x", "--input-size", "-5"],
            2,
            "--input-size: found -5, expected a number of pixels",
        ),
        (
            ["1", "--root", "cub=x", "--input-size", "0"],
            2,
            "--input-size: found 0, expected a number of pixels",
        ),
        (
            ["1", "--root", "cub=x", "--set", "gcd.training.lr=100.0"],
            2,
            "lr: found 100.0, expected a number above 0 and below 100",
        ),
        (
            ["2", "16", "--root", "cub=x", "--validation-share", "0.4"],
            2,
            "--validation-share: no row of what is run (2, 16) takes it",
        ),
        (
            ["1", "--root", "cub=x", "--validation-share", "0.4", "--protocol", "reference"],
            2,
            "--validation-share: no row of what is run (1) takes it",
        ),
        (["1", "2", "--root", "cub=/no/such", "--validation-share", "0.4"], 3, "/no/such"),
        (["1", "--root", "cub=/no/such", "--encoder", "efficientnet-lite2"], 3, "/no/such"),
    ],
)
def test_what_a_user_got_wrong_is_one_line(tmp_path, arguments, code, message):
    found = run(app, ["reproduce", *arguments, "--out", str(tmp_path / "out"), "--device", "cpu"])
    assert found.exit_code == code, found.output
    assert message in found.output
    assert "Traceback" not in found.output
    assert len(found.stderr.splitlines()) == 1
