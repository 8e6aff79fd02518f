from shoal.report.summary import facts, sentences
from shoal.review.reviewed_run import ReviewedRun
from shoal.runs import Run


def test_a_whole_run_in_words(digits: Run) -> None:
    run = ReviewedRun.of(digits)
    said = sentences(run)
    n_novel = len(digits.categories) - 6
    assert said[0] == f"6 categories were known from labels; {n_novel} are likely new."
    assert "1 file could not be read" in said[-1]
    about = facts(run)
    assert about["Encoder"] == "pixels"
    assert about["Trained for"] == "8 epochs"
    assert about["Seed"] == "7"
    assert about["Time"] == "2 min 05 s"
