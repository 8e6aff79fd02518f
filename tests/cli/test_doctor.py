import sys
from pathlib import Path

import pytest

from commands import shoal


def test_a_complete_installation_passes() -> None:
    run = shoal("doctor")
    assert run.exit_code == 0, run.stdout
    assert run.stdout.endswith("Next: shoal demo\n")
    for what in ("python", "torch", "device", "free memory"):
        assert f"ok   {what}" in run.stdout


def test_a_torchvision_built_for_another_torch_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fake torchvision fails on import, as a mismatched build does."""
    (tmp_path / "torchvision.py").write_text(
        "raise RuntimeError('operator torchvision::nms does not exist')"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(
        sys.modules, "torchvision", raising=False
    )  # another test may have imported the real one
    run = shoal("doctor")
    assert run.exit_code == 4
    assert "BAD  torchvision" in run.stdout
    assert "operator torchvision::nms does not exist" in run.stdout
    assert "pip uninstall torchvision" in run.stdout
