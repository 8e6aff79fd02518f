"""What a discovery after a review has changed: categories that stayed, came and went, and images that moved."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.review.decisions import Decisions
from shoal.review.run_tables import RunTables
from shoal.words import count, first_few, plural

MAX_LISTED = 5
"""How many categories are named in words."""


def compare_answers(source: Path, decisions: Decisions, answer: RunTables, misfits: Sequence[str]) -> dict[str, Any]:
    """The content of changes.json: the reviewed categories beside those of the new answer, by id."""
    before, now = decisions.categories, dict(zip(answer.paths, answer.category_ids.tolist(), strict=True))
    names = {**decisions.names, **{c.category_id: c.category for c in answer.categories}}
    both = [(path, before.get(path), number) for path, number in now.items()]
    moved = [(path, old, new) for path, old, new in both if old is not None and old != new]
    sizes_before, sizes = Counter(before.values()), Counter(now.values())
    same = Counter(new for _, old, new in both if old == new)
    filled = [number for number in names if sizes_before[number] or sizes[number]]
    kept_out = {path: sorted(ids) for path, ids in sorted(decisions.apart.items()) if path in now}
    return {
        "review_of": str(source),
        "n_labels": sum(map(bool, answer.columns["label_given"])),
        "n_decided": sum(path in now for path in decisions.labels),
        "became_known": [decisions.names[number] for number in decisions.became_known],
        "n_categories": {"before": sum(n > 0 for n in sizes_before.values()), "now": len(sizes)},
        "kept": [
            {**_category(names, number), "before": sizes_before[number], "now": sizes[number], "same": same[number]}
            for number in filled
            if sizes_before[number] and sizes[number]
        ],
        "new": [{**_category(names, n), "now": sizes[n]} for n in filled if not sizes_before[n]],
        "gone": [{**_category(names, n), "before": sizes_before[n]} for n in filled if not sizes[n]],
        "n_moved": len(moved),
        "n_placed": sum(old is None for _, old, _ in both),
        "n_images": len(now),
        "n_kept_out": len(kept_out),
        "does_not_fit": list(misfits),
        "moved": [{"path": path, "from": old, "to": new} for path, old, new in moved],
        "cannot_links": kept_out,
    }


def in_words(changes: Mapping[str, Any]) -> list[str]:
    """What changed, for a person to read."""
    became = [{"category": name} for name in changes["became_known"]]
    taken = [f"{count(changes['n_decided'], 'image')} labeled by people"]
    taken += [f"{count(changes['n_kept_out'], 'image')} kept out of categories"] if changes["n_kept_out"] else []
    taken += [f"{count(len(became), 'novel category')} known now ({_listed(became)})"] if became else []
    n, lines = changes["n_moved"], [f"from the review: {', '.join(taken)}"]
    moved = f"of {count(changes['n_images'], 'image')} {n:,} {plural(n, 'is')} in another category than before"
    placed = f", {changes['n_placed']:,} had none" if changes["n_placed"] else ""
    lines.append(f"{moved}{placed}; categories: {len(changes['kept']):,} stayed")
    for what, said in (("new", "new"), ("gone", "gone")):
        if changes[what]:
            lines[-1] += f", {len(changes[what]):,} {said} ({_listed(changes[what])})"
    if misfits := changes["does_not_fit"]:
        n = len(misfits)
        more = f"; {n - 1:,} more in changes.json" if n > 1 else ""
        lines.append(f"note: {count(n, 'action')} of the review no longer {plural(n, 'fits')}: {misfits[0]}{more}")
    return lines


def _category(names: Mapping[int, str], number: int) -> dict[str, Any]:
    return {"category_id": number, "category": names[number]}


def _listed(categories: Sequence[Mapping[str, Any]]) -> str:
    return first_few([one["category"] for one in categories], MAX_LISTED)
