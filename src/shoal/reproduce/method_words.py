"""What is said of each method under a table: its losses, its head, where K comes from."""

from dataclasses import dataclass

from shoal.methods import dccl, gcd, gpc, pim
from shoal.methods.cms import CmsSettings
from shoal.methods.gcd import GcdSettings
from shoal.methods.method import MethodSettings
from shoal.methods.simgcd import SimGcdSettings
from shoal.methods.uno import UnoSettings

PUBLISHED_STARTS = 100
"""Starts of semi-supervised k-means in the released code of GCD."""


@dataclass(frozen=True, kw_only=True)
class MethodWords:
    """A method in a few words."""

    losses: str
    head: str
    """The head, or the classifier."""
    number: str = ""
    """How the method finds K, where it does that itself and not by the rule of `inference`."""
    starts: str = ""
    """How often k-means starts, where there is one."""


CLASSIFIERS = {
    "simgcd": "self-distillation, mean entropy and cross-entropy; "
    "InfoNCE and supervised contrastive",
    "orca": "cross-entropy with an uncertainty adaptive margin, alike pairs, mean entropy",
    "uno": "swapped predictions with Sinkhorn's targets and given labels",
    "rankstats": "cross-entropy, pairs by rank statistics, consistency of views",
}
"""The losses of methods with a classifier."""


def words_of(method: str, settings: MethodSettings) -> MethodWords:
    """Say of a method, by its name, what its settings make it do."""
    if method in CLASSIFIERS:
        head = "classifier of K outputs"
        if isinstance(settings, SimGcdSettings):
            head += f"; {settings.head.in_words()} for the contrastive losses"
        elif isinstance(settings, UnoSettings):
            head = f"best of {settings.n_heads} classifiers of K outputs, as many finer ones beside"
        return MethodWords(
            losses=CLASSIFIERS[method], head=head, number="on frozen features, before training"
        )
    if isinstance(settings, GcdSettings):
        return _words_of_gcd(method, settings)
    if isinstance(settings, CmsSettings):
        norm = "detached" if settings.loss.detach_norm else "plain"
        seen = "z" if settings.loss.supervised_input == "shifted" else "v"
        return MethodWords(
            losses=f"{_whose(settings.loss.denominator)} denominators, norm of z {norm}, "
            f"{seen} in the supervised loss, bank of {settings.bank}",
            head=settings.head.in_words(),
        )
    return MethodWords(losses="none, nothing is trained", head="none")


def _words_of_gcd(method: str, settings: GcdSettings) -> MethodWords:
    """Those of GCD and of the methods that add to its losses."""
    whose = _whose(settings.loss.denominator)
    losses = f"InfoNCE and supervised contrastive, {whose} denominator of the latter"
    head = f"{settings.head.in_words()}, discarded after training"
    number = gcd.COUNTED_BY
    if method == "dccl":
        losses += "; cross-entropy with concepts"
        number = dccl.COUNTED_BY
    elif method == "gpc":
        losses += "; cross-entropy with prototypes"
        number = gpc.COUNTED_BY
    elif method == "pim":
        head += "; then a linear classifier"
        number = pim.COUNTED_BY
    elif method == "promptcal":
        losses += "; then with the positives of an affinity graph"
        head += "; prompts, or a learned border"
    starts = f"{settings.n_init} starts"
    if settings.n_init != PUBLISHED_STARTS:
        starts += f" ({PUBLISHED_STARTS} in GCD's released code)"
    return MethodWords(
        losses=losses,
        head=head,
        number=number if settings.search_n_clusters else "",
        starts=starts,
    )


def _whose(denominator: str) -> str:
    return "paper's" if denominator == "paper" else "released code's"
