import json
from pathlib import Path

import pytest

from commands import shoal


def run(*arguments: str) -> tuple[int, str, str]:
    found = shoal("datasets", *arguments)
    return found.exit_code, found.stdout, found.stderr


def test_verify_as_json_is_one_object(tmp_path: Path) -> None:
    code, text, _ = run("verify", "cifar100", str(tmp_path), "--json")
    found = json.loads(text)
    assert code == 3
    assert found["is_complete"] is False
    assert found["parts"][0]["missing"] == ["train.bin"]


def test_user_errors_are_one_line_with_their_exit_code(tmp_path: Path) -> None:
    code, text, error = run("verify", "cubb", str(tmp_path))
    assert (code, text) == (2, "")
    assert error.startswith("error: no benchmark 'cubb'; did you mean 'cub'?")
    code, text, error = run("verify", "cub", str(tmp_path / "absent"))
    assert (code, text) == (3, "")
    assert "no such folder" in error


@pytest.mark.data
@pytest.mark.parametrize("name", ["cub", "cifar100"])
def test_the_real_archives_verify_as_complete(name: str, data_dir: Path) -> None:
    code, text, _ = run("verify", name, str(data_dir))
    assert code == 0
    assert text.endswith("Complete.\n")
