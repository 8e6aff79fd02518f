"""The answers of a discovery: the first one without training, the trained one, and which of them is the run's.

The first one is kept inside the run as a run of its own while training goes on, to be looked at, exported and assigned
to like any run. In the end the answer that stands is the run, and the other one is kept inside it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shoal.arrays import Floats, Ints
from shoal.data.collection import Collection
from shoal.discovery.outputs import Found
from shoal.discovery.settings import DiscoverySettings
from shoal.discovery.writing import name_categories, write_found, write_report
from shoal.methods.catalog import get_method
from shoal.methods.method import Discovery, Representation
from shoal.report.words import likely
from shoal.runs import ANSWERS, Run

FROZEN, TRAINED = ANSWERS
IN_WORDS = {FROZEN: "the first answer, without training,", TRAINED: "the trained answer"}


@dataclass(frozen=True, eq=False, kw_only=True)
class Answer:
    """What was found with the encoder as it comes, or as it was trained."""

    name: str
    """'frozen' or 'trained'."""
    discovery: Discovery
    found: Found
    counted_on: Floats | None = None
    """(N, D) the embeddings that K was estimated on, where they are others."""

    def in_words(self) -> str:
        """What was found, and how sure the number of categories is where it was estimated."""
        words, estimate = self.found.in_words(), self.discovery.estimate
        return f"{words}; {likely(estimate.n_clusters, estimate.interval)}" if estimate is not None else words

    def write(self, run: Run, settings: DiscoverySettings, repeats: Sequence[int] = ()) -> None:
        """Write tables and arrays; `repeats` are what repetitions of the estimate of K gave."""
        shift = settings.shift
        n_neighbors, alpha = shift.n_neighbors, shift.alpha
        write_found(run, self.found, self.discovery, n_neighbors=n_neighbors, alpha=alpha, repeats=repeats)


def cluster(
    learned: Representation, labels: Ints, settings: DiscoverySettings, n_clusters: int | None = None
) -> Discovery:
    """Put images into clusters by the second half of the method, with every label there is."""
    return get_method(settings.method).cluster(
        learned,
        labels,
        settings.of_method,
        n_clusters=settings.n_clusters or n_clusters,
        device=learned.embeddings.device,
    )


def make_answer(
    name: str,
    discovery: Discovery,
    collection: Collection,
    settings: DiscoverySettings,
    unseen: Ints | None = None,
) -> Answer:
    """Turn clusters into named categories; `unseen` are the labeled images whose labels training did not see."""
    about = collection.names, collection.labels, collection.classes
    found = name_categories(discovery, *about, n_neighbors=settings.shift.n_neighbors, unseen=unseen)
    return Answer(name=name, discovery=discovery, found=found)


def keep_answer(run: Run, answer: Answer, settings: DiscoverySettings) -> Run:
    """Write an answer as a finished run of its own with its report, inside the run whose thumbnails it shares."""
    other = Run.create(run.path / answer.name, force=True)
    told, origin = replace(settings, train=answer.name == TRAINED), run.provenance
    about = {name: origin[name] for name in ("root", "folders", "encoder", "fingerprint") if name in origin}
    other.start(told, seed=settings.seed, device=origin["device"], command=origin["command"], **about)
    answer.write(other, settings)
    if answer.name == TRAINED:
        run.keep_model(other)
    for part in ("thumbnails.zip", "skipped.csv", *(("metrics.jsonl",) if answer.name == TRAINED else ())):
        if run.has(part):
            run.share(part, other)
    given = answer.found.given
    other.finish(n_images=len(given), n_labeled=int((given >= 0).sum()))
    write_report(other)
    return other
