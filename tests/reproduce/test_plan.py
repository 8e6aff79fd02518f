import pytest

from shoal.data.benchmarks import BENCHMARKS
from shoal.errors import UsageError
from shoal.reproduce.experiments import EXPERIMENTS, get_experiment
from shoal.reproduce.plan import ReproduceOptions, check_changes, make_cell

ALL_ROWS = [(experiment, row) for experiment in EXPERIMENTS.values() for row in experiment.rows]


@pytest.mark.parametrize(("experiment", "row"), ALL_ROWS, ids=lambda value: value.name)
def test_every_row_has_settings_for_every_benchmark_with_the_papers_encoder(experiment, row):
    for dataset in BENCHMARKS:
        cell = make_cell(experiment, row, dataset, 3, ReproduceOptions())
        assert cell.settings.encoder == experiment.encoder == cell.clustering_settings.encoder
        for name, value in row.changes.items():
            found = cell.settings
            for part in name.split("."):
                found = getattr(found, part)
            assert found == value
        if row.method != "agglomerative":
            assert cell.settings.training.seed == 3
            assert cell.settings.n_tail_blocks == 1


def cell_of(table, row_name, dataset="cub", seed=0, options=None):
    experiment = get_experiment(table)
    row = next(row for row in experiment.rows if row.name == row_name)
    return make_cell(experiment, row, dataset, seed, options or ReproduceOptions())


def test_the_same_work_has_one_key_whatever_the_table():
    full = cell_of("1", "CMS, K given")
    for table, row in (
        ("4", "(5) CMS, IMS"),
        ("5", "kNN"),
        ("11", "v"),
        ("12", "8"),
        ("13", "0.5"),
        ("14", "0.35"),
    ):
        assert cell_of(table, row).key == full.key


def test_different_work_has_different_keys():
    full = cell_of("1", "CMS, K given")
    others = [
        cell_of("1", "CMS, K estimated"),
        cell_of("1", "CMS, K given", seed=1),
        cell_of("1", "CMS, K given", dataset="cars"),
        cell_of("1", "CMS, K given", options=ReproduceOptions(changes={"training.epochs": 7})),
        cell_of("1", "CMS, K given", options=ReproduceOptions(protocol="reference")),
        cell_of("2", "CMS, K given"),
        cell_of("4", "(3) CMS, SSK"),
        cell_of("4", "(4) CMS, 1-step"),
        cell_of("15", "CMS, K given"),
        cell_of("iterations", "shifts-0"),
    ]
    keys = [cell.key for cell in [full, *others]]
    assert len(set(keys)) == len(keys)


def test_given_and_estimated_k_and_both_clusterings_share_a_training():
    full = cell_of("1", "CMS, K given")
    for other in (
        cell_of("1", "CMS, K estimated"),
        cell_of("4", "(3) CMS, SSK"),
        cell_of("4", "(4) CMS, 1-step"),
        cell_of("iterations", "shifts-0"),
    ):
        assert other.training_key == full.training_key
    for other in (cell_of("1", "GCD, K given"), cell_of("3", "CMS*"), cell_of("2", "CMS, K given")):
        assert other.training_key != full.training_key


def test_the_released_codes_protocol_is_part_of_every_identity_and_name():
    options = ReproduceOptions(protocol="reference")
    for experiment, row in ALL_ROWS:
        papers, released = (
            make_cell(experiment, row, "cub", 0, each) for each in (ReproduceOptions(), options)
        )
        assert papers.training_key != released.training_key
        assert papers.key != released.key
        assert "_reference_" in released.key
        assert "reference" not in papers.key
        assert not papers.sees_hidden_labels
        assert released.sees_hidden_labels == (
            row.method != "agglomerative" and row.setup != "unsupervised"
        )


def test_the_released_codes_settings_come_after_the_recipe_and_before_the_users():
    cell = cell_of(
        "1",
        "CMS, K given",
        options=ReproduceOptions(protocol="reference", changes={"head.kind": "paper"}),
    )
    assert (cell.settings.bank, cell.settings.loss.detach_norm) == ("views", True)
    assert cell.settings.head.kind == "paper"
    assert cell.validation_share == 0
    assert (
        cell_of(
            "2", "CMS, K given", options=ReproduceOptions(protocol="reference")
        ).validation_share
        == 0.1
    )


def test_a_classifier_that_chooses_its_snapshot_by_validation_images_has_some():
    options = ReproduceOptions(changes={"simgcd.training.snapshot": "best"})
    assert cell_of("1", "SimGCD, K given", options=options).validation_share == 0.2
    assert cell_of("2", "ORCA, K given").validation_share == 0.1, "as published"


@pytest.mark.parametrize(("method", "is_trained_with_k"), [("GPC", True), ("CMS", False)])
def test_gpc_alone_has_two_trainings_if_k_is_given_and_estimated(method, is_trained_with_k):
    given, estimated = (cell_of("1", f"{method}, K {source}") for source in ("given", "estimated"))
    assert (given.training_key != estimated.training_key) == is_trained_with_k


def test_a_change_of_the_user_comes_before_that_of_the_row():
    cell = cell_of(
        "12",
        "16",
        options=ReproduceOptions(changes={"inference.shift.n_neighbors": 3, "training.epochs": 5}),
    )
    assert cell.settings.inference.shift.n_neighbors == 16
    assert cell.settings.training.epochs == 5


def test_a_setting_that_no_row_of_the_tables_has_is_refused_and_that_of_one_is_not():
    options = ReproduceOptions(changes={"n_init": 100})
    with pytest.raises(UsageError, match="n_init"):
        check_changes([get_experiment("12")], options)
    with pytest.raises(UsageError, match=r"gcd\.loss\.temperature"):
        check_changes(
            [get_experiment("12")], ReproduceOptions(changes={"gcd.loss.temperature": 1.0})
        )
    check_changes([get_experiment("12"), get_experiment("4")], options)
    check_changes([get_experiment("12")], ReproduceOptions(changes={"cms.loss.temperature": 1.0}))
