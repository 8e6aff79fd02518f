import sys
from pathlib import Path

import pytest

from commands import shoal


def test_a_healthy_machine_is_told_so() -> None:
    run = shoal("doctor")
    assert run.exit_code == 0, run.stdout
    assert run.stdout.endswith("Everything shoal needs is here. Next: shoal demo\n")
    for what in ("python", "torch", "device", "free memory"):
        assert f"ok   {what}" in run.stdout


def test_a_torchvision_made_for_another_torch_is_detected_and_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package of that name which fails on import, as a mismatched build does."""
    (tmp_path / "torchvision.py").write_text(
        "raise RuntimeError('operator torchvision::nms does not exist')"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(
        sys.modules, "torchvision", raising=False
    )  # an encoder loaded by another test bars it
    run = shoal("doctor")
    assert run.exit_code == 4
    assert "BAD  torchvision" in run.stdout
    assert "operator torchvision::nms does not exist" in run.stdout
    assert "pip uninstall torchvision" in run.stdout
