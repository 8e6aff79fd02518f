import os
import pickle

import pytest
import torch

from shoal.encoders.weights import read_weights
from shoal.errors import MissingError

WEIGHTS = {"a.weight": torch.arange(6.0).view(2, 3), "a.bias": torch.ones(2)}


def same(found, expected):
    return found.keys() == expected.keys() and all(
        torch.equal(found[name], expected[name]) for name in expected
    )


def test_torch_files_are_read(tmp_path):
    torch.save(WEIGHTS, tmp_path / "w.pth")
    assert same(read_weights(tmp_path / "w.pth"), WEIGHTS)


class Bomb:
    """A pickle that creates a folder when it is loaded unsafely."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("way", ["torch", "pickle"])
def test_a_file_that_runs_code_is_refused_and_runs_nothing(tmp_path, way):
    file = tmp_path / "w.pth"
    trace = tmp_path / "it-ran"
    content = {"a.weight": Bomb(trace)}
    if way == "torch":
        torch.save(content, file)
    else:
        file.write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(MissingError):
        read_weights(file)
    assert not trace.exists()
    torch.load(file, weights_only=False) if way == "torch" else pickle.loads(file.read_bytes())
    assert trace.is_dir(), "the file must be a working attack, or this test proves nothing"


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_file_cut_short_is_refused(tmp_path, share):
    file = tmp_path / "w.pth"
    torch.save(WEIGHTS, file)
    content = file.read_bytes()
    file.write_bytes(content[: int(share * len(content))])
    with pytest.raises(MissingError):
        read_weights(file)
