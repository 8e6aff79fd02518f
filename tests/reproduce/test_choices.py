from dataclasses import replace

import pytest

from shoal.reproduce.choices import choices_of, grouped
from shoal.reproduce.experiment import ReproduceOptions
from shoal.reproduce.paper_experiments import get_experiment
from shoal.reproduce.plan import make_cell, make_plan
from shoal.reproduce.result_table import to_csv, to_latex, to_markdown
from shoal.reproduce.table_building import build_table

OFFLINE = ReproduceOptions(encoder="efficientnet-lite2")


def chosen(table, row_name, options=OFFLINE, decided=()):
    experiment = get_experiment(table)
    row = next(row for row in experiment.rows if row.name == row_name)
    return choices_of(make_cell(experiment, row, "cub", 0, options), decided)


def test_the_papers_encoder_has_the_papers_losses_and_the_offline_one_those_of_the_released_code():
    papers = chosen("1", "CMS, K given", ReproduceOptions())
    offline = chosen("1", "CMS, K given")
    assert (
        papers.losses
        == "paper's denominators, norm of z plain, v in the supervised loss, bank of images"
    )
    assert (
        offline.losses
        == "released code's denominators, norm of z detached, v in the supervised loss, bank of images"
    )
    assert papers.head == offline.head == "paper"
    released = chosen("1", "CMS, K given", replace(OFFLINE, protocol="reference"))
    assert released.head == "bottleneck of 256 (released code)"


def test_the_head_on_clip_is_said_to_take_other_numbers_than_the_papers():
    text = "paper, on the 768 numbers of CLIP's class token (the paper's: the 512 after its projection)"
    assert chosen("15", "CMS, K given", ReproduceOptions()).head == text
    gcds = text.replace("paper,", "bottleneck of 256 (released code), discarded after training,", 1)
    assert chosen("15", "GCD, K given", ReproduceOptions()).head == gcds
    assert chosen("15", "CMS, K given").head == "paper", (
        "with another encoder there is no such difference"
    )


def test_where_k_comes_from():
    assert chosen("1", "CMS, K given").k_rule == "given"
    assert (
        chosen("1", "CMS, K estimated").k_rule
        == "Shoal's rule 'pairs' on labeled validation images"
    )
    assert (
        chosen("1", "CMS, K estimated", ReproduceOptions()).k_rule
        == "the paper's rule on labeled validation images"
    )
    assert (
        chosen("1", "Agglomerative, K estimated").k_rule
        == "Shoal's rule 'pairs' on all given labels"
    )
    gcds = chosen("1", "GCD, K estimated").k_rule
    assert gcds.startswith("highest accuracy of k-means, started once, on frozen features")
    by_rule = replace(OFFLINE, changes={"gcd.search_n_clusters": False})
    gcds = chosen("1", "GCD, K estimated", by_rule).k_rule
    assert (
        gcds
        == "Shoal's rule 'pairs' on labeled validation images, not by GCD's k-means on frozen features"
    )
    shifted = chosen("1", "Agglomerative + IMS, K estimated").k_rule
    assert shifted == "Shoal's rule 'pairs' on all given labels after 1 shift"
    hidden = chosen("1", "CMS, K estimated", ReproduceOptions(protocol="reference"))
    assert "HIDDEN labels" in hidden.k_rule
    assert "HIDDEN labels" in hidden.snapshot


@pytest.mark.parametrize(
    ("decided", "text"),
    [
        (["pairs", "pairs"], "Shoal's rule 'pairs' on labeled validation images"),
        (["median"], "Shoal's rule 'pairs' (decided by 'median') on labeled validation images"),
        (
            ["median", "gap", "median"],
            "Shoal's rule 'pairs' (decided by 'gap' and 'median') on labeled validation images",
        ),
        (
            [None],
            "Shoal's rule 'pairs' (which one decided was not kept) on labeled validation images",
        ),
        (
            ["median", None],
            "Shoal's rule 'pairs' (decided by 'median'; which one decided was not kept) on labeled validation images",
        ),
    ],
)
def test_the_rule_that_decided_is_named_where_labels_were_too_few_for_the_one_asked_for(
    decided, text
):
    assert chosen("1", "CMS, K estimated", decided=decided).k_rule == text


def test_the_papers_rule_is_never_replaced_and_a_given_k_has_none():
    assert (
        chosen("1", "CMS, K estimated", ReproduceOptions(), [None]).k_rule
        == "the paper's rule on labeled validation images"
    )
    assert chosen("1", "CMS, K given", decided=[None]).k_rule == "given"
    hidden = chosen("1", "CMS, K estimated", replace(OFFLINE, protocol="reference"), [None])
    assert hidden.k_rule == "highest accuracy on known classes by HIDDEN labels"


def test_which_snapshot_is_kept():
    assert (
        chosen("1", "CMS, K given").snapshot == "best epoch by labeled validation images over all K"
    )
    assert chosen("3", "CMS*").snapshot == "best epoch by labeled validation images at the given K"
    released = replace(OFFLINE, protocol="reference")
    assert chosen("3", "CMS", released).snapshot == "best epoch by HIDDEN labels over all K"
    assert chosen("3", "CMS*", released).snapshot == "best epoch by HIDDEN labels at the given K"
    assert chosen("7", "CMS").snapshot == "last epoch"
    assert chosen("1", "Agglomerative, K given").snapshot == "none"
    last = ReproduceOptions(encoder="efficientnet-lite2", changes={"training.snapshot": "last"})
    assert chosen("1", "CMS, K given", last).snapshot == "last epoch"


def test_rows_that_choose_alike_are_named_together_and_all_of_them_not_at_all():
    rows = {
        name: chosen("1", name) for name in ("GCD, K given", "CMS, K given", "CMS, K estimated")
    }
    assert (
        grouped(rows, "snapshot") == "Snapshot: best epoch by labeled validation images over all K"
    )
    assert grouped(rows, "k_rule").startswith(
        "K: given (GCD, K given | CMS, K given); Shoal's rule 'pairs' on labeled"
    )


def test_every_form_of_a_table_says_what_was_chosen():
    table = build_table(make_plan(get_experiment("14"), ["cub"], (0,), OFFLINE), {})
    text = (
        "released code's denominators, norm of z detached, v in the supervised loss, bank of images"
    )
    assert f"- Losses: {text}." in to_markdown(table).splitlines()
    printed = [line for line in to_latex(table).splitlines() if not line.startswith("%")]
    assert any(f"Losses: {text}." in line for line in printed)
    assert sum("Snapshot: best epoch" in line for line in printed) == 1
    assert all(text in line for line in to_csv(table).splitlines()[1:])
    assert (
        to_csv(table)
        .splitlines()[0]
        .endswith(",losses,head,k_rule,snapshot,kmeans,epochs,input_size")
    )


def test_datasets_are_named_where_they_differ_in_a_choice():
    both = build_table(make_plan(get_experiment("14"), ["cub", "imagenet100"], (0,), OFFLINE), {})
    assert all(note.startswith(("Losses", "Head", "K", "Snapshot")) for note in both.choice_notes)
    assert len(both.choice_notes) == 4
    own = {
        (row, "cub"): replace(found, head="none")
        for (row, name), found in both.choices.items()
        if name == "cub"
    }
    notes = replace(both, choices=both.choices | own).choice_notes
    assert "CUB-200-2011: Head: none." in notes
    assert "ImageNet-100: Head: paper." in notes
