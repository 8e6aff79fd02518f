"""Arrays in the cache."""

import numpy as np

from shoal.arrays import read_cached, write_cached


def test_an_array_is_read_by_its_key_unless_its_file_is_damaged(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path))
    array = np.arange(12, dtype=np.float16).reshape(3, 2, 2)
    assert read_cached("views", "key") is None
    write_cached("views", "key", array)
    np.testing.assert_array_equal(read_cached("views", "key"), array)
    assert read_cached("views", "other") is None
    (file,) = tmp_path.glob("views/*/*.npy")
    file.write_bytes(file.read_bytes()[:-1])
    assert read_cached("views", "key") is None


def test_parts_of_an_array_are_read_by_their_numbers(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path))
    for part in (1, 10):
        write_cached("views", "key", np.full(2, part), part)
    assert read_cached("views", "key") is None
    assert read_cached("views", "key", 1).tolist() == [1, 1]
    assert read_cached("views", "key", 10).tolist() == [10, 10]


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "file"))
    (tmp_path / "file").touch()
    write_cached("views", "key", np.zeros(3))
    assert read_cached("views", "key") is None
