"""Batching around the real runtime."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from timonel.models.schema import WARMUP_FILE
from timonel.serving.batching.row_independence import Independence, prove_independence
from timonel.serving.batching.runtime import BatchingRuntime, batched
from timonel.serving.runtimes.saved_model import as_warmup_file
from timonel.serving.runtimes.tensorflow import TensorFlowRuntime
from timonel.serving.settings import RuntimeSettings
from timonel.serving.settings.batching import AdaptiveBatching, BatchingParameters
from timonel.serving.status import StatusError
from timonel.testing.runtimes import RuntimeContract

SETTINGS = RuntimeSettings(intra_op_threads=1, inter_op_threads=1)


class TestContract(RuntimeContract):
    @pytest.fixture
    def runtime(self):
        return BatchingRuntime(TensorFlowRuntime(), AdaptiveBatching(slots=2))

    @pytest.fixture
    def version(self, exports):
        return exports / "doubler"


def load(exports, name, settings, observe=None):
    model = TensorFlowRuntime().load(exports / name, SETTINGS)
    return batched(model, settings, observe)


@pytest.mark.parametrize(
    ("name", "independence"),
    [
        ("dense", Independence.INDEPENDENT),
        ("table", Independence.INDEPENDENT),
        ("versioned-2", Independence.INDEPENDENT),
        ("doubler", Independence.INDEPENDENT),
        ("images", Independence.UNKNOWN),
        ("shapes", Independence.DEPENDENT),
    ],
)
def test_what_may_go_together_is_found_by_trying(exports, name, independence):
    model = TensorFlowRuntime().load(exports / name, SETTINGS)
    assert prove_independence(model, model.signatures["serving_default"]) is independence
    model.close()


def test_images_are_batched_at_once_where_there_are_warm_up_requests(exports, png, tmp_path):
    version = shutil.copytree(exports / "images", tmp_path / "1")
    rows = np.array([png(), png(white=False)], dtype=object)
    (version / WARMUP_FILE).parent.mkdir()
    (version / WARMUP_FILE).write_bytes(
        as_warmup_file(
            [
                ("serving_default", {"image_bytes": rows[:1]}),
                ("serving_default", {"other": rows}),
                ("unknown", {"image_bytes": rows}),
                ("serving_default", {"image_bytes": rows}),
            ]
        )
    )
    observed = []
    runtime = BatchingRuntime(TensorFlowRuntime(), AdaptiveBatching(), lambda _: observed.append)
    model = runtime.load(version, SETTINGS)
    model.run("serving_default", {"image_bytes": rows})
    model.close()
    assert [batch.rows for batch in observed] == [2]


def test_images_are_batched_once_one_was_seen(exports, png):
    observed = []
    model = load(exports, "images", AdaptiveBatching(), observed.append)
    images = {"image_bytes": np.array([png()], dtype=object)}
    for _ in range(2):
        assert model.run("serving_default", images)["label"].tolist() == [b"dog"]
    model.close()
    assert [batch.rows for batch in observed] == [1], "the first one was computed apart"


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        AdaptiveBatching(slots=1),
        BatchingParameters(
            max_batch_size=8,
            allowed_batch_sizes=(2, 4, 8),
            batch_timeout_micros=1000,
            num_batch_threads=1,
            max_enqueued_batches=100,
        ),
    ],
    ids=["adaptive", "parameters"],
)
def test_answers_are_those_of_each_request_alone(exports, settings):
    observed = []
    plain = TensorFlowRuntime().load(exports / "dense", SETTINGS)
    model = load(exports, "dense", settings, observed.append)
    generator = np.random.default_rng(0)
    requests = [{"x": generator.random((1 + n % 3, 8, 8, 2), dtype=np.float32)} for n in range(120)]
    together = threading.Barrier(8)

    def client(mine):
        together.wait()
        return [model.run("serving_default", request)["scores"] for request in mine]

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(client, [requests[n::8] for n in range(8)]))
    for first, scores in enumerate(answers):
        for request, score in zip(requests[first::8], scores, strict=True):
            expected = plain.run("serving_default", request)["scores"]
            np.testing.assert_allclose(score, expected, rtol=1e-5)
    assert sum(each.rows for each in observed) == sum(len(r["x"]) for r in requests)
    plain.close()
    model.close()


def test_strings_go_together_and_an_image_that_is_none_fails_alone(exports, png):
    model = load(exports, "images", AdaptiveBatching(slots=1))
    model.run("serving_default", {"image_bytes": np.array([png()], dtype=object)})
    for _ in range(3):
        model._policy.computed("serving_default", 1, 1.0)
        model._policy.computed("serving_default", 8, 1.0)
    bodies = [png(), b"none", png(white=False)]
    futures = [
        model.submit("serving_default", {"image_bytes": np.array([body], dtype=object)})
        for body in bodies
    ]
    assert futures[0].result(20)["label"].tolist() == [b"dog"]
    with pytest.raises(StatusError, match="Unknown image file format"):
        futures[1].result(20)
    assert futures[2].result(20)["label"].tolist() == [b"cat"]
    model.close()
