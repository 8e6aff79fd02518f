import pytest

from shoal import errors


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.ShoalError, 1),
        (errors.Diverged, 1),
        (errors.UsageError, 2),
        (errors.DataError, 3),
        (errors.MissingError, 4),
    ],
)
def test_each_kind_of_error_has_its_exit_code(kind: type[errors.ShoalError], code: int) -> None:
    assert kind.exit_code == code


def test_bad_arguments_and_bad_data_are_value_errors_as_scikit_learn_expects() -> None:
    assert issubclass(errors.UsageError, ValueError)
    assert issubclass(errors.DataError, ValueError)
    assert not issubclass(errors.MissingError, ValueError)


def test_messages_name_python_arguments_except_on_the_command_line() -> None:
    error = errors.UsageError(
        "give --resume, --no-train or another --n-clusters; see `shoal --help`"
    )
    assert str(error) == "give resume=True, train=False or another n_clusters; see `shoal --help`"
    with errors.command_line():
        assert "--resume" in str(error)
    assert "--resume" not in str(error)
