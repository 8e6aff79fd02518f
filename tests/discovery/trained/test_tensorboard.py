import sys
import types

import pytest

from shoal.discovery.trained.training_job import event_writer
from shoal.errors import MissingError


def test_a_missing_package_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingError):
        event_writer(tmp_path)


def test_every_number_of_a_row_is_written_under_its_epoch(tmp_path, monkeypatch):
    written = []

    class Writer:
        def __init__(self, folder):
            assert folder == str(tmp_path)

        def add_scalar(self, name, value, step):
            written.append((name, value, step))

        def flush(self):
            written.append("flushed")

    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    event_writer(tmp_path)({"epoch": 3, "loss": 0.5, "validation_accuracy": None, "n_clusters": 7})
    assert written == [("loss", 0.5, 3), ("n_clusters", 7, 3), "flushed"]
