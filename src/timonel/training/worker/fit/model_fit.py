"""Replace ``Model.fit`` of the script's Keras; reject that of the other Keras.

Which of the two a script uses is determined from its text before it starts. If that is wrong,
training would silently be neither distributed nor saved.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NoReturn

from timonel.errors import SpecError
from timonel.training.worker.late_import import call_after_import
from timonel.training.worker.state.checkpoint_format import Progress

_OTHER = {"keras": "tf_keras", "tf_keras": "keras"}
_SWITCH = {"keras": "TF_USE_LEGACY_KERAS=1", "tf_keras": "TF_USE_LEGACY_KERAS=0"}


def replace_method(
    owner: Any, name: str, call: Callable[[Callable[..., Any], Any, dict[str, Any]], Any]
) -> None:
    """Replace a model's method; ``call`` gets the bound original, model, and arguments by name."""
    original = getattr(owner, name)
    signature = inspect.signature(original)

    @functools.wraps(original)
    def method(model: Any, *args: Any, **kwargs: Any) -> Any:
        arguments = dict(signature.bind(model, *args, **kwargs).arguments)
        del arguments[next(iter(signature.parameters))]
        arguments |= arguments.pop("kwargs", {})
        return call(functools.partial(original, model), model, arguments)

    setattr(owner, name, method)


def recall(history: Any, progress: Progress) -> None:
    """Prepend the epochs of earlier generations to a ``History``, once."""
    if not progress.epochs or progress.epochs[0] in history.epoch:
        return
    history.epoch[:0] = progress.epochs
    for name, values in progress.history.items():
        history.history[name] = [*values, *history.history.get(name, [])]


def replayed_history(keras: Any, model: Any, progress: Progress) -> Any:
    """Return the ``History`` of a ``fit`` call that finished elsewhere, and set it on the model."""
    history = keras.callbacks.History()
    history.set_model(model)
    history.set_params({"verbose": 0, "epochs": progress.next_epoch, "steps": None})
    history.on_train_begin()
    recall(history, progress)
    model.history = history
    return history


def reject_other_keras(wrapped: str) -> None:
    """Make ``Model.fit`` of the Keras that the job does not wrap fail, imported or not."""
    call_after_import(_OTHER[wrapped], lambda other: _guard(other, wrapped))


def _guard(other: Any, wrapped: str) -> None:
    def fit(_model: object, *_args: object, **_kwargs: object) -> NoReturn:
        raise SpecError(
            f"the script calls fit of {other.__name__}, but this job trains with {wrapped}",
            hint=f"import only one of the two in the script, or set {_SWITCH[wrapped]} for the job",
        )

    other.Model.fit = fit
