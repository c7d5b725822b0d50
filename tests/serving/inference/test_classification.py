from __future__ import annotations

import numpy as np
import pytest

from timonel.serving.inference import classification
from timonel.serving.inference.classification import MultiInferenceTask, serialized
from timonel.serving.signature import CLASSIFY, DEFAULT_SIGNATURE, REGRESS, Signature, TensorSpec
from timonel.serving.status import Code, StatusError

LABELS = np.array([[b"cat", b"dog"], [b"dog", b"cat"]], dtype=object)
SCORES = np.array([[0.75, 0.25], [0.5, 0.5]], np.float32)
EXAMPLES = [b"1", b"2"]


class Model:
    """Gives what it was made with, and keeps what it was asked."""

    def __init__(self, inputs=("inputs",), method="", tensor="x:0", **outputs):
        self.outputs = outputs
        self.asked = []
        self.signatures = {
            DEFAULT_SIGNATURE: Signature(
                DEFAULT_SIGNATURE,
                inputs={name: TensorSpec(tensor, "DT_STRING", (-1,)) for name in inputs},
                outputs={name: TensorSpec(f"{name}:0", "DT_FLOAT") for name in outputs},
                method_name=method,
            )
        }

    def find(self, name):
        return self.signatures.get(name or DEFAULT_SIGNATURE)

    def answer(self, question):
        signature, inputs, outputs = question.run
        self.asked.append((signature.name, inputs["inputs"].tolist(), outputs))
        return question.read({name: self.outputs[name] for name in outputs})


def classify(model, *args, **options):
    return model.answer(classification.prepare(model, CLASSIFY, *args, **options))


def regress(model, *args, **options):
    return model.answer(classification.prepare(model, REGRESS, *args, **options))


def infer(model, *args):
    return [model.answer(question) for question in classification.infer(model, *args)]


def refusal(work):
    with pytest.raises(StatusError) as caught:
        work()
    return caught.value.code, caught.value.message


def test_the_context_stands_before_each_example():
    assert serialized([b"a", b"b"]).tolist() == [b"a", b"b"]
    assert serialized([b"a", b"b"], b"c").tolist() == [b"ca", b"cb"]
    assert refusal(lambda: serialized([], b"c")) == (Code.INVALID_ARGUMENT, "Input is empty.")


def test_the_copies_of_a_context_have_a_limit(monkeypatch):
    monkeypatch.setattr(classification, "MAX_CONTEXT_BYTES", 20)
    assert len(serialized([b""] * 2, b"c" * 10)) == 2
    code, message = refusal(lambda: serialized([b""] * 3, b"c" * 10))
    assert code is Code.INVALID_ARGUMENT
    assert message.startswith("The copies of the context for 3 examples have 30 bytes; the limit")


def test_classes_have_labels_and_scores():
    model = Model(classes=LABELS, scores=SCORES)
    rows = classify(model, "", EXAMPLES)
    assert rows == [[(b"cat", 0.75), (b"dog", 0.25)], [(b"dog", 0.5), (b"cat", 0.5)]]
    assert model.asked == [(DEFAULT_SIGNATURE, [b"1", b"2"], ["classes", "scores"])]


def test_either_may_be_missing():
    assert classify(Model(scores=SCORES), "", EXAMPLES)[0] == [(b"", 0.75), (b"", 0.25)]
    assert classify(Model(classes=LABELS), "", EXAMPLES)[0] == [(b"cat", 0), (b"dog", 0)]
    # Two outputs, one of them of another name: that one is not fetched.
    both = Model(classes=LABELS, other=SCORES)
    assert classify(both, "", EXAMPLES)[0] == [(b"cat", 0), (b"dog", 0)]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Model(inputs=("inputs", "b"), scores=SCORES), "Expected one input Tensor."),
        (Model(), "Expected one or two output Tensors, found 0"),
        (Model(a=1, b=2, c=3), "Expected one or two output Tensors, found 3"),
        (Model(inputs=("x",), scores=SCORES), "No classification inputs found in SignatureDef: "),
        (Model(x=SCORES), "Expected classification signature outputs to contain at least one of "),
        (
            Model(scores=SCORES[0]),
            "Expected Tensor shape: [batch_size num_classes] but got [2]",
        ),
        (
            Model(scores=SCORES.astype(np.float64)),
            "Expected scores Tensor of DT_FLOAT. Got: DT_DOUBLE",
        ),
        (Model(classes=SCORES), "Expected classes Tensor of DT_STRING. Got: DT_FLOAT"),
        (Model(scores=SCORES[:1]), "Expected scores output batch size of 2. Got: 1"),
        (Model(classes=LABELS[:1]), "Expected classes output batch size of 2. Got: 1"),
        (
            Model(classes=LABELS, scores=SCORES[:, :1]),
            "Tensors class and score should match in dim_size(1). Got 2 vs. 1",
        ),
    ],
)
def test_what_is_no_classifier(model, message):
    code, found = refusal(lambda: classify(model, "", EXAMPLES))
    assert code is Code.INVALID_ARGUMENT
    assert found.startswith(message)
    assert found == message or message.endswith(("of ", ": "))


@pytest.mark.parametrize("values", [np.array([1, 2], np.float32), np.array([[1], [2]], np.float32)])
def test_regressions_are_a_vector(values):
    assert regress(Model(outputs=values), "", EXAMPLES).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Model(inputs=(), outputs=SCORES), "Expected one input Tensor."),
        (Model(outputs=SCORES, scores=SCORES), "Expected one output Tensor."),
        (Model(inputs=("x",), outputs=SCORES), "No regression inputs found in SignatureDef: "),
        (Model(scores=SCORES), "No regression outputs found in SignatureDef: "),
        (
            Model(outputs=SCORES),
            (
                "Expected output Tensor shape to be either [batch_size] or [batch_size, 1] "
                "but got [2,2]"
            ),
        ),
        (
            Model(outputs=SCORES[0, :1]),
            "Input batch size did not match output batch size: 2 vs. 1",
        ),
        (
            Model(outputs=np.array([1, 2])),
            "Expected output Tensor of DT_FLOAT.  Got: DT_INT64",
        ),
    ],
)
def test_what_is_no_regression(model, message):
    code, found = refusal(lambda: regress(model, "", EXAMPLES))
    assert code is Code.INVALID_ARGUMENT
    assert found.startswith(message)
    assert found == message or message.endswith(": ")


@pytest.mark.parametrize("method", [classify, regress])
def test_an_unknown_signature(method):
    for name, shown in (("s", "s"), ("", DEFAULT_SIGNATURE)):
        model = Model()
        model.signatures.clear()
        expected = f"No signature was found with the name: {shown}"
        assert refusal(lambda m=model, n=name: method(m, n, EXAMPLES)) == (
            Code.INVALID_ARGUMENT,
            expected,
        )


def test_the_method_is_compared_only_if_asked():
    model = Model(method=CLASSIFY, outputs=np.zeros(2, np.float32))
    regress(model, "", EXAMPLES)
    assert refusal(lambda: regress(model, "", EXAMPLES, check_method=True))[1] == (
        f"Expected regression signature method_name to be {REGRESS}. Was: {CLASSIFY}"
    )
    assert refusal(lambda: classify(Model(), "", EXAMPLES, check_method=True))[1] == (
        f"Expected classification signature method_name to be {CLASSIFY}. Was: "
    )


def heads():
    """A model of three signatures; one has an input tensor of its own, as TensorFlow 2 exports."""
    model = Model(classes=LABELS, scores=SCORES, outputs=np.zeros(2, np.float32))
    inputs = {"inputs": TensorSpec("x:0", "DT_STRING", (-1,))}
    scores = {name: TensorSpec(f"{name}:0", "DT_FLOAT") for name in ("classes", "scores")}
    values = {"outputs": TensorSpec("o:0", "DT_FLOAT")}
    elsewhere = {"inputs": TensorSpec("y:0", "DT_STRING", (-1,))}
    model.signatures = {
        DEFAULT_SIGNATURE: Signature(DEFAULT_SIGNATURE, inputs, scores),
        "r": Signature("r", inputs, values),
        "elsewhere": Signature("elsewhere", elsewhere, values),
    }
    return model


def test_several_tasks_on_the_same_examples():
    tasks = [MultiInferenceTask("m", "r", REGRESS), MultiInferenceTask("m", "", CLASSIFY)]
    values, classes = infer(heads(), tasks, [b"1", b"2"], b"c")
    assert values.tolist() == [0, 0]
    assert classes[0][0] == (b"cat", 0.75)


def test_every_input_tensor_is_fed_the_same_examples():
    tasks = [MultiInferenceTask("m", "r", REGRESS), MultiInferenceTask("m", "elsewhere", REGRESS)]
    first, second = infer(heads(), tasks, [b"1", b"2"])
    assert first.tolist() == second.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("tasks", "code", "message"),
    [
        ([("", "", CLASSIFY)], "INVALID_ARGUMENT", "Found ModelSpec with an empty model name."),
        (
            [("m", "", CLASSIFY), ("n", "r", REGRESS)],
            "INVALID_ARGUMENT",
            "All ModelSpecs in a MultiInferenceRequest must access the same model name.",
        ),
        (
            [("m", "", CLASSIFY), ("m", DEFAULT_SIGNATURE, REGRESS)],
            "INVALID_ARGUMENT",
            f"Duplicate evaluation of signature: {DEFAULT_SIGNATURE}",
        ),
        (
            [("m", "s", CLASSIFY)],
            "INVALID_ARGUMENT",
            "Requested signature not found in model graph: s",
        ),
        (
            [("m", "", "predict")],
            "UNIMPLEMENTED",
            "Unsupported signature method_name: predict",
        ),
        ([("m", "r", CLASSIFY)], "INVALID_ARGUMENT", None),
    ],
)
def test_tasks_that_do_not_go_together(tasks, code, message):
    model = heads()
    found_code, found = refusal(
        lambda: infer(model, [MultiInferenceTask(*t) for t in tasks], [b"1", b"2"])
    )
    assert found_code.name == code
    assert message in (None, found)
    assert not model.asked


def test_an_empty_input_is_told_after_the_tasks():
    assert (
        refusal(lambda: infer(heads(), [MultiInferenceTask("m", "r", REGRESS)], []))[1]
        == "Input is empty."
    )
