"""The pictures that an epoch is timed on: cheap to make, the same every time, and no two alike."""

import numpy as np


def test_every_picture_is_different_and_made_again_is_the_same(load_script):
    setup = load_script("epoch_setup")
    made = setup.pictures(setup.REHEARSAL)
    assert made.shape == (240, 64, 64, 3)
    assert len(np.unique(made.reshape(len(made), -1), axis=0)) == len(made)
    assert np.array_equal(made, setup.pictures(setup.REHEARSAL))


def test_pictures_of_one_class_are_more_alike_than_others(load_script):
    setup = load_script("epoch_setup")
    classes = setup.make_classes(setup.REHEARSAL)
    made = setup.pictures(setup.REHEARSAL).reshape(240, -1).astype(float)
    apart = np.linalg.norm(made[:, None, ::97] - made[None, :, ::97], axis=2)
    is_same = (classes[:, None] == classes) & ~np.eye(240, dtype=bool)
    assert apart[is_same].mean() < 0.9 * apart[classes[:, None] != classes].mean()


def test_there_is_a_file_for_every_picture(load_script, tmp_path):
    setup = load_script("epoch_setup")
    made = setup.pictures(setup.REHEARSAL)[:20]
    load_script("straightforward").write_jpegs(tmp_path, made)
    assert len({file.read_bytes() for file in tmp_path.iterdir()}) == 20
