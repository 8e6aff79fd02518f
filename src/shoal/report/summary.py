"""The run in words."""

from collections import Counter

from shoal.checksums import digest_rows
from shoal.report.certainty import how_sure
from shoal.review.actions import STATUSES
from shoal.review.reviewed_run import ReviewedRun
from shoal.runs import UNSURE_BELOW
from shoal.text import shown
from shoal.words import AVERAGE_LINKAGE, count, duration, first_few, percent, plural

MAX_NAMED = 5
"""How many categories a sentence lists."""


def sentences(run: ReviewedRun) -> list[str]:
    """Say what was found, how certain it is, and how it was made."""
    said = [
        _found(run),
        _reviewed(run),
        _empty(run, is_novel=False),
        _empty(run, is_novel=True),
        _unsure(run),
        how_sure(run),
        _training(run),
    ]
    if run.has("shifts.json") and run.json("shifts").get("linkage_method") == "average":
        said.append(f"{AVERAGE_LINKAGE[0].upper()}{AVERAGE_LINKAGE[1:]}.")
    if run.skipped:
        said.append(f"{count(len(run.skipped), 'file')} could not be read; skipped.csv says why.")
    return list(filter(None, said))


def _found(run: ReviewedRun) -> str:
    known = f"{count(run.n_known, 'category')} {plural(run.n_known, 'was')} known from labels"
    is_new = f"{plural(run.n_novel, 'is')} likely new"
    if run.n_known and run.n_novel:
        return f"{known}; {run.n_novel:,} {is_new}."
    if run.n_known:
        return f"{known}."
    if run.n_novel:
        return f"{count(run.n_novel, 'category')} {is_new}."
    return "No category was found."


def _reviewed(run: ReviewedRun) -> str:
    """Say how much people have decided; a review of another answer is named."""
    if run.review is not None:
        n_by_status = Counter(run.column("status"))
        counts = [f"{n_by_status[one]:,} {one}" for one in STATUSES[1:] if n_by_status[one]]
        return f"Reviewed: {', '.join(counts) or 'names or categories were changed'}."
    if run.has("review.jsonl"):
        return "A review of another answer is there; `shoal review` replays it."
    return ""


def _empty(run: ReviewedRun, *, is_novel: bool) -> str:
    """Name the categories without images, which are not counted."""
    empty = [shown(c.category) for c in run.categories if not c.size and c.is_novel == is_novel]
    n = len(empty)
    if not n:
        return ""
    what = f"{count(n, 'known category')} got no image"
    if is_novel:
        what = f"{count(n, 'novel category')} {plural(n, 'has')} no image left"
    return f"{what} ({first_few(empty, MAX_NAMED)}) and {plural(n, 'is')} not counted."


def _unsure(run: ReviewedRun) -> str:
    n = int(run.is_unsure.sum())
    if n:
        limit = f"confidence below {UNSURE_BELOW}, or possibly new"
        said = f"{count(n, 'image')} {plural(n, 'is')} uncertain ({limit})."
    else:
        said = f"Every image has a confidence of at least {UNSURE_BELOW}."
    if not run.json("calibration")["is_calibrated"]:
        said += " There are too few labels to check confidence, so none is above 0.95."
    return said


def _training(run: ReviewedRun) -> str:
    """Say whether training was stopped early, and whether it helped, where held-out labels tell."""
    said = []
    stopped = run.provenance.get("stopped_early")
    if stopped:
        which = "Training"
        if run.provenance.get("trial_epochs"):
            which = "Training again, with all labels,"
        said.append(f"{which} was stopped after {stopped['epochs']} of {stopped['of']} epochs.")
    if run.has("choice.json"):
        choice = run.json("choice")
        labels = count(int(choice["n_images"]), "label")
        frozen = percent(float(choice["accuracy"]["frozen"]))
        trained = percent(float(choice["accuracy"]["trained"]))
        test = "significant"
        if choice["kept"] == "frozen":
            test = "not significant"
        said.append(
            f"Held-out accuracy on {labels}: {frozen} frozen, {trained} trained ({test}). "
            f"The {choice['kept']} result was kept."
        )
    elif stopped and not run.has("model.json"):
        said.append("The answer is the one without training.")
    return " ".join(said)


def accuracy_note(run: ReviewedRun) -> str:
    """Say what accuracy was measured on."""
    accuracy = run.json("accuracy")
    images = count(int(accuracy["n_images"]), "image")
    note = f"Accuracy against the given truth, {images} of {count(accuracy['n_classes'], 'class')}"
    if accuracy.get("categories") not in (None, digest_rows(run.category_ids)):
        note += ", before the review changed categories; `shoal evaluate` scores them now"
    return note


def facts(run: ReviewedRun) -> dict[str, str]:
    """What was run, and how: value by name."""
    provenance = run.provenance
    seconds = provenance.get("seconds")
    found = {
        "Encoder": provenance.get("encoder"),
        "Trained for": _epochs(run),
        "Seed": provenance["seed"],
        "Device": provenance["device"],
        "Time": None if seconds is None else duration(float(seconds)),
        "Started": str(provenance["started"])[:16].replace("T", " "),  # 2026-11-15 02:24
        "Images from": provenance.get("root"),
        "Command": provenance["command"],
        "Shoal": provenance["packages"].get("shoal"),
        "Run folder": run.path.name,
    }
    return {name: shown(str(value)) for name, value in found.items() if value not in (None, "")}


def _epochs(run: ReviewedRun) -> str:
    """How long a run was trained, and whether that was stopped before its end."""
    n_epochs = len(run.metrics)
    n_trial = run.provenance.get("trial_epochs")
    stopped = run.provenance.get("stopped_early")
    if stopped and n_trial:
        return f"{count(n_trial, 'epoch')}; training again, with all labels, was stopped early"
    if stopped:
        n_epochs = n_epochs or stopped["epochs"]
        return f"{count(n_epochs, 'epoch')}; stopped early, {stopped['of']} were planned"
    if not n_epochs:
        return "not trained in this run"
    if n_trial:
        trial = f"{count(n_trial, 'epoch')} with some labels kept from it"
        return f"{trial}, then {count(n_epochs, 'epoch')} with all"
    return count(n_epochs, "epoch")
