import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shoal.cli.main import app
from shoal.encoders.catalog import ENCODERS


def test_the_list_says_what_is_here_and_where_weights_come_from() -> None:
    run = CliRunner().invoke(app, ["encoders", "list"])
    assert run.exit_code == 0, run.stderr
    default = next(
        line for line in run.stdout.splitlines() if line.startswith("efficientnet-lite2")
    )
    assert "yes" in default
    assert "224 px" in default
    assert "ImageNet-1k with its labels" in default
    assert run.stdout.endswith(
        "The default is efficientnet-lite2. Next: shoal discover photos/ --encoder NAME\n"
    )


def test_the_list_names_the_authors_file_and_where_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_WEIGHTS", str(tmp_path))
    said = CliRunner().invoke(app, ["encoders", "list"]).stdout
    paper = next(line for line in said.splitlines() if line.startswith("dino-vitb16"))
    assert "hub facebook/dino-vitb16, or dino_vitbase16_pretrain.pth " in paper
    assert (
        f"A .pth file, or a folder saved by transformers under the encoder's name, goes into {tmp_path}\n"
        in said
    )


def test_json_has_a_row_per_encoder() -> None:
    rows = json.loads(CliRunner().invoke(app, ["encoders", "list", "--json"]).stdout)["encoders"]
    assert {"efficientnet-lite2", "dino-vitb16", "clip-vitb16"} <= {row["name"] for row in rows}
    assert [row["name"] for row in rows if row["is_default"]] == ["efficientnet-lite2"]
    assert {row["name"]: row["weights_from"] for row in rows} == {
        name: info.source for name, info in ENCODERS.items()
    }
