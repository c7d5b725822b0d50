"""Whether a request fits a signature: by the names of its inputs and outputs. Pure.

Wordings are TensorFlow Serving's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from timonel.serving.runtimes.base import Array, Signature
from timonel.serving.status import invalid_argument


def chosen_outputs(signature: Signature, output_filter: Sequence[str]) -> list[str]:
    """Return the names of the outputs that a request wants; none named means all.

    Raises:
        StatusError: There is no such output, or one is named twice.
    """
    if not output_filter:
        return list(signature.outputs)
    chosen: list[str] = []
    for alias in output_filter:
        if alias not in signature.outputs:
            raise invalid_argument(
                f"output tensor alias not found in signature: {alias} "
                f"Outputs expected to be in the set {{{_names(signature.outputs)}}}."
            )
        if alias in chosen:
            raise invalid_argument(f"duplicate output tensor alias: {alias}")
        chosen.append(alias)
    return chosen


def complete_inputs(signature: Signature, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
    """Return a request's inputs with the defaults of those that it leaves out.

    Raises:
        StatusError: One without a default is missing, or there are others.
    """
    if inputs.keys() == signature.inputs.keys():
        return inputs
    check_inputs(signature, inputs.keys())
    defaults = signature.defaults
    return {name: inputs[name] if name in inputs else defaults[name] for name in signature.inputs}


def check_inputs(signature: Signature, given: AbstractSet[str]) -> None:
    """Refuse a request by the names of its inputs; those with a default may be left out.

    Raises:
        StatusError: One is missing, or there are others.
    """
    expected, defaults = signature.inputs, signature.defaults
    missing, extra = expected.keys() - given, given - expected.keys()
    if len(given) > len(expected) or (len(given) < len(expected) and not defaults):
        raise invalid_argument(
            f"input size does not match signature: {len(given)}!={len(expected)} "
            f"len({{{_names(given)}}}) != len({{{_names(expected)}}}). "
            f"Sent extra: {{{_names(extra)}}}. Missing but required: {{{_names(missing)}}}."
        )
    for alias in sorted(missing - defaults.keys()):
        raise invalid_argument(
            f"Signature input alias: {alias}(feed name: {expected[alias].tensor}) not found in "
            "request and no default value provided. Inputs expected to be in the request "
            f"{{{_names(given)}}}, or default input alias set: {_names(defaults)}"
        )
    if extra:
        used = _names(given & expected.keys())
        raise invalid_argument(
            f"Inputs contains invalid name. Used request inputs: {used}, "
            f"request input: {_names(given)}"
        )


def _names(names: Iterable[str]) -> str:
    return ",".join(sorted(names))
