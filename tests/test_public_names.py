import shoal


def test_all_is_exactly_what_can_be_imported() -> None:
    assert sorted(shoal.__all__) == sorted(shoal._MODULES)
    for name in shoal.__all__:
        assert getattr(shoal, name) is not None
    assert dir(shoal) == sorted([*shoal.__all__, "__version__"])


def test_the_version_is_the_installed_one() -> None:
    from importlib.metadata import version

    assert shoal.__version__ == version("shoal")
