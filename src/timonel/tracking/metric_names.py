"""What the name of a metric tells about its values. Pure."""

from __future__ import annotations

import re

_SMALLER = re.compile(
    r"loss|err|mae|mape|ms[el]|divergence|entropy|perplexity|hinge|poisson|log_?cosh|distance|false|"
    r"latency|deviance|brier|(?<![a-z])(fid|[wc]er$)"
)
_LARGER = re.compile(
    r"acc|auc|auroc|precision|recall|sensitivity|specificity|f_?measure|f1|f_?beta|io_?u|dice|"
    r"jaccard|r2|score|similarity|bleu|rouge|ndcg|mrr|reward|return|true_|(?<![a-z])map(?![a-z])"
)


def is_larger_better(metric: str) -> bool | None:
    """Tell from a metric's name whether larger values are better; None if it does not show."""
    name = metric.lower()
    if _SMALLER.search(name):
        return False
    return True if _LARGER.search(name) else None
