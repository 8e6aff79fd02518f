import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shoal.cli.main import app


def run(*arguments: str) -> tuple[int, str, str]:
    found = CliRunner().invoke(app, ["datasets", *arguments])
    return found.exit_code, found.stdout, found.stderr


def test_list_shows_counts_and_terms_and_names_the_next_command() -> None:
    code, text, _ = run("list")
    assert code == 0
    row = next(line for line in text.splitlines() if line.startswith("cub "))
    assert row.split()[:6] == ["cub", "5,994", "5,794", "200", "100", "1,498"]
    assert "non-commercial research only" in row
    assert text.endswith(
        "Next: shoal datasets prepare NAME ROOT says where to get one and unpacks it.\n"
    )


def test_list_as_json_holds_every_benchmark() -> None:
    found = json.loads(run("list", "--json")[1])
    assert len(found) == 7
    assert (found["cub"]["n_labeled"], found["cub"]["n_unlabeled"]) == (1_498, 4_496)


def test_verify_of_an_empty_folder_exits_with_3_and_names_what_is_missing(tmp_path: Path) -> None:
    code, text, error = run("verify", "cifar100", str(tmp_path))
    assert code == 3
    assert "MISSING  train.bin" in text
    assert "MISSING  test.bin" in text
    assert f"Next: shoal datasets prepare cifar100 {tmp_path}" in text
    assert error == ""


def test_verify_as_json_is_one_object(tmp_path: Path) -> None:
    code, text, _ = run("verify", "cifar100", str(tmp_path), "--json")
    found = json.loads(text)
    assert code == 3
    assert found["is_complete"] is False
    assert found["parts"][0]["missing"] == ["train.bin"]


def test_a_broken_download_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(b"no archive")
    code, text, error = run("prepare", "cifar10", str(tmp_path))
    assert (code, text) == (3, "")
    assert len(error.splitlines()) == 1
    code, text, error = run("verify", "cifar10", str(tmp_path))
    assert code == 3
    assert "BAD      " in text
    assert error == "checking cifar-10-binary.tar.gz …\n"


def test_prepare_says_where_to_fetch_and_exits_with_3(tmp_path: Path) -> None:
    code, text, _ = run("prepare", "cifar10", str(tmp_path))
    assert code == 3
    assert "to fetch: cifar-10-binary.tar.gz" in text
    assert "https://www.cs.toronto.edu/~kriz/cifar.html" in text
    found = json.loads(run("prepare", "cifar10", str(tmp_path), "--json")[1])
    assert found["to_fetch"][0] == "to fetch: cifar-10-binary.tar.gz"


@pytest.mark.parametrize("command", ["verify", "prepare"])
def test_user_errors_are_one_line_with_their_exit_code(command: str, tmp_path: Path) -> None:
    code, text, error = run(command, "cubb", str(tmp_path))
    assert (code, text) == (2, "")
    assert error.startswith("error: no benchmark 'cubb'; did you mean 'cub'?")
    code, text, error = run(command, "cub", str(tmp_path / "absent"))
    assert (code, text) == (3, "")
    assert "no such folder" in error


@pytest.mark.data
@pytest.mark.parametrize("name", ["cub", "cifar100"])
def test_the_real_archives_verify_as_complete(name: str, data_dir: Path) -> None:
    code, text, _ = run("verify", name, str(data_dir))
    assert code == 0
    assert text.endswith("Complete.\n")
