from __future__ import annotations

import contextlib

import numpy as np
import pytest

from timonel.serving.batching.scheduling import scheduled
from timonel.serving.inference.flow import Call
from timonel.serving.manager.catalogue import Catalogue, ModelSpec, Servable
from timonel.serving.manager.plan import VersionState, VersionStatus
from timonel.serving.runtimes.base import LoadedModel
from timonel.serving.signature import Signature, TensorSpec
from timonel.serving.status import Code, StatusError

ONE = np.ones(1, np.float32)


def spec(name):
    return TensorSpec(f"{name}:0", "DT_FLOAT", (-1,))


class Sums(LoadedModel):
    """Adds up whatever it is given."""

    def __init__(self, defaults=()):
        self.signatures = {
            "serving_default": Signature(
                "serving_default",
                inputs={"a": spec("in_a"), "b": spec("in_b")},
                outputs={"sum": spec("sum"), "product": spec("product")},
                defaults=dict.fromkeys(defaults, ONE),
            )
        }

    def run(self, signature, inputs, outputs=None):
        if inputs["a"][0] < 0:
            raise ZeroDivisionError("a defect")
        values = {"sum": inputs["a"] + inputs["b"], "product": inputs["a"] * inputs["b"]}
        return {name: values[name] for name in outputs or values}

    def close(self):
        pass


def catalogue_of(model):
    catalogue = Catalogue({"m": {}, "other": {}})
    status = (VersionStatus(3, VersionState.AVAILABLE),)
    catalogue.publish("m", {3: Servable("m", 3, scheduled(model), ("cat", "dog"))}, status)
    return catalogue


def test_a_label_of_the_configuration_wins_over_an_alias():
    catalogue = Catalogue({"m": {"stable": 1}})
    servables = {number: Servable("m", number, scheduled(Sums())) for number in (1, 2)}
    catalogue.publish("m", servables, (), aliases={"stable": 2, "canary": 2})
    for label, number in {"stable": 1, "canary": 2}.items():
        assert catalogue.acquire(ModelSpec("m", label=label)).version == number
        assert catalogue.version_labels("m")[label] == number


def predict(inputs, output_filter=(), defaults=()):
    with contextlib.closing(Call(catalogue_of(Sums(defaults)).acquire(ModelSpec("m")))) as call:
        return call.predict(call.signature(""), inputs, output_filter)


def test_outputs_can_be_chosen():
    assert predict({"a": ONE, "b": ONE}).keys() == {"sum", "product"}
    assert list(predict({"a": ONE, "b": ONE}, ["product"])) == ["product"]


def test_defaults_stand_in_for_what_is_left_out():
    assert predict({"a": 2 * ONE}, defaults=["b"])["sum"] == [3.0]


@pytest.mark.parametrize(
    ("inputs", "defaults", "output_filter", "code", "message"),
    [
        (
            {"a": ONE},
            (),
            (),
            Code.INVALID_ARGUMENT,
            (
                "input size does not match signature: 1!=2 len({a}) != len({a,b}). "
                "Sent extra: {}. Missing but required: {b}."
            ),
        ),
        (
            {"a": ONE, "b": ONE, "c": ONE},
            ("b",),
            (),
            Code.INVALID_ARGUMENT,
            (
                "input size does not match signature: 3!=2 len({a,b,c}) != len({a,b}). "
                "Sent extra: {c}. Missing but required: {}."
            ),
        ),
        (
            {"a": ONE, "x": ONE},
            (),
            (),
            Code.INVALID_ARGUMENT,
            (
                "Signature input alias: b(feed name: in_b:0) not found in request and no default "
                "value provided. Inputs expected to be in the request {a,x}, or default input "
                "alias set: "
            ),
        ),
        (
            {"a": ONE, "x": ONE},
            ("b",),
            (),
            Code.INVALID_ARGUMENT,
            "Inputs contains invalid name. Used request inputs: a, request input: a,x",
        ),
        (
            {"a": ONE, "b": ONE},
            (),
            ["mean"],
            Code.INVALID_ARGUMENT,
            (
                "output tensor alias not found in signature: mean Outputs expected to be in the "
                "set {product,sum}."
            ),
        ),
        (
            {"a": ONE, "b": ONE},
            (),
            ["sum", "sum"],
            Code.INVALID_ARGUMENT,
            "duplicate output tensor alias: sum",
        ),
        ({"a": -ONE, "b": ONE}, (), (), Code.INTERNAL, "ZeroDivisionError: a defect"),
    ],
)
def test_what_does_not_fit_is_worded_as_in_tensorflow_serving(
    inputs, defaults, output_filter, code, message
):
    with pytest.raises(StatusError) as caught:
        predict(inputs, output_filter, defaults)
    assert (caught.value.code, caught.value.message) == (code, message)


def test_an_unknown_signature_is_a_failed_precondition():
    with contextlib.closing(Call(catalogue_of(Sums()).acquire(ModelSpec("m")))) as call:
        assert call.find("nope") is None
        with pytest.raises(StatusError) as caught:
            call.signature("nope")
    assert str(caught.value) == 'FAILED_PRECONDITION: Serving signature key "nope" not found.'


def test_status_metadata_and_what_is_not_ready():
    catalogue = catalogue_of(Sums())
    assert (
        catalogue.statuses("m", 3)
        == catalogue.statuses("m")
        == (VersionStatus(3, VersionState.AVAILABLE),)
    )
    metadata = catalogue.metadata(ModelSpec("m"))
    assert (metadata.name, metadata.version) == ("m", 3)
    assert catalogue.names == ("m", "other")
    assert catalogue.known("other") == ()
    assert catalogue.loaded("m")[3].labels == ("cat", "dog")
    assert catalogue.unready() == ["other"]
    for name, version, message in [
        ("m", 4, "Could not find version 4 of model m"),
        ("other", None, "Could not find any versions of model other"),
        ("nope", 1, "Could not find any versions of model nope"),
    ]:
        with pytest.raises(StatusError, match=message):
            catalogue.statuses(name, version)


def test_a_code_is_found_by_its_number():
    assert {code: code.name for code in Code}[5] == "NOT_FOUND"
    assert {int(code) for code in Code} == set(Code)


def test_the_operation_that_initializes_a_model_is_no_signature_for_clients():
    model = Sums()
    model.signatures["__saved_model_init_op"] = Signature("__saved_model_init_op", {}, {})
    with contextlib.closing(Call(catalogue_of(model).acquire(ModelSpec("m")))) as call:
        assert call.find("__saved_model_init_op") is None
        with pytest.raises(StatusError, match="not found"):
            call.signature("__saved_model_init_op")


def test_shapes_are_checked_before_a_model_runs():
    with pytest.raises(StatusError, match="Input b has the wrong shape"):
        predict({"a": ONE, "b": np.ones((1, 1), np.float32)})


def test_a_column_without_its_second_dimension_is_answered_without_it():
    model = Sums()
    column = TensorSpec("a:0", "DT_FLOAT", (-1, 1))
    model.signatures["serving_default"] = Signature(
        "serving_default", {"a": column, "b": column}, {"sum": column, "product": column}
    )
    with contextlib.closing(Call(catalogue_of(model).acquire(ModelSpec("m")))) as call:
        inputs = {"a": np.array([1, 2], np.float32), "b": np.array([[3], [4]], np.float32)}
        outputs = call.predict(call.signature(""), inputs)
    np.testing.assert_array_equal(outputs["sum"], [4, 6])
    np.testing.assert_array_equal(outputs["product"], [3, 8])
