"""What the name of a metric tells about its values. Pure."""

from __future__ import annotations

import re

_CAMEL = re.compile(r"(?<=[a-z\d])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def _words(pattern: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![a-z])(?:{pattern})(?![a-z])")


_SMALLER = _words(
    r"(log_?)?loss(es)?|err|errors?|[sw]?mape|(med|r)?mae|n?r?msl?e|(kl_?)?divergence|kld|"
    r"(cross_?)?entropy|perplexity|hinge|poisson|log_?cosh|distance|false|latency|deviance|brier|"
    r"fid|[wc]er|inaccuracy"
)
_LARGER = _words(
    r"acc|accuracy|(roc|pr)?_?auc|auroc|precision|recall|sensitivity|specificity|f_?measure|"
    r"f1(score)?|f_?beta|m?(ean)?_?io_?u|dice|jaccard|r2(score)?|similarity|bleu|rouge|ndcg|mrr|"
    r"rewards?|returns?|true|m_?ap"
)
_SCORE = _words("f?scores?")
_HEAD = re.compile(r"(?<![a-z])(loss|err|error)(_rate)?[_\d]*$")
"""The word that the others describe: a loss of F1 is a loss."""
_CHANGE = _words("drop|decrease|reduction|increase|improvement|gap|delta|diff|difference|change")
_NEGATIVE = re.compile(r"(?<![a-z])(?<!true_)(?<!false_)neg_")


def is_larger_better(metric: str) -> bool | None:
    """Tell from a metric's words whether larger values are better; None if they do not agree."""
    name = re.sub(r"[\W_]+", "_", _CAMEL.sub("_", metric)).lower()
    is_smaller, is_larger = bool(_SMALLER.search(name)), bool(_LARGER.search(name))
    if _CHANGE.search(name):
        return None
    if is_smaller and is_larger and not _HEAD.search(name):
        return None
    if not (is_smaller or is_larger or _SCORE.search(name)):
        return None
    return is_smaller == bool(_NEGATIVE.search(name))
