from __future__ import annotations

import pytest

from timonel.serving.manager.managed_model import Unavailable
from timonel.serving.manager.reload import admit, unavailable
from timonel.serving.settings.models import ModelSettings
from timonel.serving.status import Code, StatusError


def model(name="m", platform="tensorflow", **labels):
    return ModelSettings(name=name, base_path=f"/{name}", labels=labels, platform=platform)


def refusal(present, wanted, available, *, labels_may_wait=False):
    try:
        admit(present, wanted, available, labels_may_wait=labels_may_wait)
    except StatusError as error:
        return error.code, error.message
    return None


NOT_THERE = (
    Code.FAILED_PRECONDITION,
    (
        "Request to assign label to version 2 of model m, which is not currently available for "
        "inference"
    ),
)


@pytest.mark.parametrize(
    ("before", "wanted", "available", "strict", "lenient"),
    [
        pytest.param({}, {"a": 2}, {2}, None, None, id="a new one on what serves"),
        pytest.param({}, {"a": 2}, {1}, NOT_THERE, None, id="a new one on what does not"),
        pytest.param({"a": 2}, {"a": 2}, {1}, NOT_THERE, None, id="unmoved, gone since"),
        pytest.param({"a": 1}, {"a": 2}, {1, 2}, None, None, id="moved to what serves"),
        pytest.param({"a": 1}, {"a": 2}, {1}, NOT_THERE, NOT_THERE, id="moved to what does not"),
        pytest.param({"a": 1}, {"b": 2}, {1}, NOT_THERE, None, id="replaced by a new one"),
        pytest.param({"a": 1}, {}, {1}, None, None, id="taken away"),
        pytest.param({}, {"a": 1, "b": 1}, {1}, None, None, id="two on one version"),
    ],
)
def test_labels(before, wanted, available, strict, lenient):
    present, new = [model(**before)], [model(**wanted)]
    assert refusal(present, new, {"m": available}) == strict
    assert refusal(present, new, {"m": available}, labels_may_wait=True) == lenient


def test_names_and_platforms():
    assert refusal([], [model(), model()], {}) == (
        Code.INVALID_ARGUMENT,
        "Illegal to list model m multiple times in config list",
    )
    assert refusal([], [model(platform="caffe")], {}) == (
        Code.INVALID_ARGUMENT,
        "Model m requests unsupported platform caffe",
    )
    assert refusal([model()], [model(platform="caffe")], {}) == (
        Code.INVALID_ARGUMENT,
        (
            "Illegal to change a model's platform. For model m platform was tensorflow and new "
            "platform requested is caffe"
        ),
    )


def test_the_words_for_what_did_not_become_available():
    failures = [
        Unavailable("a", 3, StatusError(Code.NOT_FOUND, "no model")),
        Unavailable("b", None, StatusError(Code.NOT_FOUND, "found no version")),
    ]
    assert str(unavailable(failures[:1], "servable")) == (
        "UNKNOWN: 1 servable(s) did not become available: "
        "{{{name: a version: 3} due to error: NOT_FOUND: no model}, }"
    )
    assert unavailable(failures, "model").message == (
        "2 model(s) did not become available: {{{name: a version: 3} due to error: NOT_FOUND: no "
        "model}, {{name: b} due to error: NOT_FOUND: found no version}, }"
    )
