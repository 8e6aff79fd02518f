import json

from typer.testing import CliRunner

from shoal.cli.main import app


def test_the_list_says_what_is_here_and_where_weights_come_from() -> None:
    run = CliRunner().invoke(app, ["encoders", "list"])
    assert run.exit_code == 0, run.stderr
    default = next(line for line in run.stdout.splitlines() if line.startswith("efficientnet-lite2"))
    assert "yes" in default
    assert "224 px" in default
    assert "ImageNet-1k with its labels" in default
    assert run.stdout.endswith("The default is efficientnet-lite2. Next: shoal discover photos/ --encoder NAME\n")


def test_json_has_a_row_per_encoder() -> None:
    rows = json.loads(CliRunner().invoke(app, ["encoders", "list", "--json"]).stdout)["encoders"]
    assert {"efficientnet-lite2", "dino-vitb16", "clip-vitb16"} <= {row["name"] for row in rows}
    assert [row["name"] for row in rows if row["is_default"]] == ["efficientnet-lite2"]
