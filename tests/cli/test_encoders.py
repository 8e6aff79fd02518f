import json

from typer.testing import CliRunner

from shoal.cli.main import app
from shoal.encoders.catalog import ENCODERS


def test_json_has_a_row_per_encoder() -> None:
    rows = json.loads(CliRunner().invoke(app, ["encoders", "list", "--json"]).stdout)["encoders"]
    assert {"efficientnet-lite2", "dino-vitb16", "clip-vitb16"} <= {row["name"] for row in rows}
    assert [row["name"] for row in rows if row["is_default"]] == ["efficientnet-lite2"]
    assert {row["name"]: row["weights_from"] for row in rows} == {
        name: info.source for name, info in ENCODERS.items()
    }
