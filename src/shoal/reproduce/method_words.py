"""What is said of each method under a table: its losses, its head, where K comes from."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shoal.methods import dccl, gcd, gpc, pim
from shoal.methods.cms import CmsSettings
from shoal.methods.gcd import GcdSettings
from shoal.methods.promptcal import PromptCalSettings
from shoal.methods.simgcd import SimGcdSettings
from shoal.methods.uno import UnoSettings

PUBLISHED_STARTS = 100
"""Starts of semi-supervised k-means in the released code of GCD."""


def _nothing(settings: Any) -> str:
    return ""


@dataclass(frozen=True, kw_only=True)
class MethodWords:
    """A method in a few words, by its settings."""

    losses: Callable[[Any], str]
    head: Callable[[Any], str]
    """The head, or the classifier."""
    released: str
    """What the protocol 'reference' takes from the released code."""
    number: Callable[[Any], str] = _nothing
    """How the method finds K, where it does that itself and not by the rule of `inference` on labeled images."""
    number_remark: str = ""
    """What is added where K is found by that rule."""
    starts: Callable[[Any], str] = _nothing
    """How often k-means starts, where there is one."""


def _cms_losses(settings: CmsSettings) -> str:
    loss = settings.loss
    kind = "paper's" if loss.denominator == "paper" else "released code's"
    norm = "detached" if loss.detach_norm else "plain"
    seen = "z" if loss.supervised_input == "shifted" else "v"
    return (
        f"{kind} denominators, norm of z {norm}, {seen} in the supervised loss, "
        f"bank of {settings.bank}"
    )


def _gcd_losses(settings: GcdSettings) -> str:
    kind = "paper's" if settings.loss.denominator == "paper" else "released code's"
    return f"InfoNCE and supervised contrastive, {kind} denominator of the latter"


def _discarded_head(settings: GcdSettings) -> str:
    return f"{settings.head.in_words()}, discarded after training"


def _starts(settings: GcdSettings) -> str:
    published = "as" if settings.n_init == PUBLISHED_STARTS else f"{PUBLISHED_STARTS}"
    return f"{settings.n_init} starts ({published} in GCD's released code)"


def _searched(counted_by: str) -> Callable[[GcdSettings], str]:
    return lambda settings: counted_by if settings.search_n_clusters else ""


def _promptcal_head(settings: PromptCalSettings) -> str:
    return f"{_discarded_head(settings)}; prompts, or a learned border"


def _simgcd_head(settings: SimGcdSettings) -> str:
    return f"classifier of K outputs; {settings.head.in_words()} for the contrastive losses"


def _uno_head(settings: UnoSettings) -> str:
    return f"best of {settings.n_heads} classifiers of K outputs, as many finer ones beside them"


def _always(text: str) -> Callable[[Any], str]:
    return lambda settings: text


_BEFORE_TRAINING = _always("on frozen features, before training")

_WORDS = {
    "cms": MethodWords(
        losses=_cms_losses,
        head=lambda settings: str(settings.head.in_words()),
        released="CMS: the released code's losses, head and bank, as listed below, its views, gradients not cut",
    ),
    "gcd": MethodWords(
        losses=_gcd_losses,
        head=_discarded_head,
        number=_searched(gcd.COUNTED_BY),
        number_remark="not by GCD's k-means on frozen features",
        starts=_starts,
        released="GCD: its own losses and head, the released code's views, gradients not cut",
    ),
    "dccl": MethodWords(
        losses=lambda settings: f"{_gcd_losses(settings)}; cross-entropy with concepts",
        head=_discarded_head,
        number=_searched(dccl.COUNTED_BY),
        starts=_starts,
        released="DCCL: its own losses and head, the released code's views, gradients not cut",
    ),
    "gpc": MethodWords(
        losses=lambda settings: f"{_gcd_losses(settings)}; cross-entropy with prototypes",
        head=_discarded_head,
        number=_searched(gpc.COUNTED_BY),
        starts=_starts,
        released="GPC: its own losses and head, the released code's views, gradients not cut",
    ),
    "pim": MethodWords(
        losses=_gcd_losses,
        head=lambda settings: f"{_discarded_head(settings)}; then a linear classifier",
        number=_searched(pim.COUNTED_BY),
        starts=_starts,
        released="PIM: GCD's losses and head, the released code's views, gradients not cut",
    ),
    "simgcd": MethodWords(
        losses=_always(
            "self-distillation, mean entropy and cross-entropy; InfoNCE and supervised contrastive"
        ),
        head=_simgcd_head,
        number=_BEFORE_TRAINING,
        released="SimGCD: its own losses and heads, the released code's views, gradients not cut",
    ),
    "orca": MethodWords(
        losses=_always(
            "cross-entropy with an uncertainty adaptive margin, alike pairs, mean entropy"
        ),
        head=_always("classifier of K outputs"),
        number=_BEFORE_TRAINING,
        released="ORCA: its own losses and classifier, the released code's views, gradients not cut",
    ),
    "uno": MethodWords(
        losses=_always("swapped predictions with Sinkhorn's targets and given labels"),
        head=_uno_head,
        number=_BEFORE_TRAINING,
        released="UNO+: its own losses and heads (no code was released), GCD's views, gradients not cut",
    ),
    "rankstats": MethodWords(
        losses=_always("cross-entropy, pairs by rank statistics, consistency of views"),
        head=_always("classifier of K outputs"),
        number=_BEFORE_TRAINING,
        released="RankStats+: its own losses and classifier (no code was released), GCD's views, gradients not cut",
    ),
    "promptcal": MethodWords(
        losses=_always(
            "InfoNCE and supervised contrastive, then with the positives of an affinity graph"
        ),
        head=_promptcal_head,
        number=_searched(gcd.COUNTED_BY),
        number_remark="not by k-means",
        starts=_starts,
        released="PromptCAL: its own losses, prompts and heads, the released code's views, gradients not cut",
    ),
    "agglomerative": MethodWords(
        losses=_always("none, nothing is trained"),
        head=_always("none"),
        released="frozen features: K by given labels",
    ),
}


def words_of(method: str) -> MethodWords:
    """Look up what is said of a method, by its name."""
    return _WORDS[method]
