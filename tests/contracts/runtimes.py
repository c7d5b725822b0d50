"""Contract tests for runtimes, and a fake runtime without TensorFlow.

To check your own runtime, derive from `RuntimeContract` in a test module and provide the fixtures
``runtime`` and ``version``: a folder with a model whose ``serving_default`` takes ``x``, float32
[-1, 2], and returns ``doubled`` = 2x and ``text``, one string per row.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from timonel.serving.runtimes.base import LoadedModel, Runtime
from timonel.serving.settings.runtime import RuntimeSettings
from timonel.serving.signature import DEFAULT_SIGNATURE, STRING, Array, Signature, TensorSpec
from timonel.serving.status import Code, StatusError

_X = np.array([[1.0, 2.0], [3.0, 4.0]], dtype=np.float32)


class RuntimeContract:
    """Contract tests for runtimes."""

    @pytest.fixture
    def model(self, runtime: Runtime, version: Path) -> Iterator[LoadedModel]:
        """Load the contract's model."""
        loaded = runtime.load(version, RuntimeSettings(intra_op_threads=1, inter_op_threads=1))
        yield loaded
        loaded.close()

    def test_signatures_have_names_types_and_shapes(self, model: LoadedModel) -> None:
        signature = model.signatures[DEFAULT_SIGNATURE]
        assert signature.name == DEFAULT_SIGNATURE
        assert {n: (s.dtype, s.shape) for n, s in signature.inputs.items()} == {
            "x": ("DT_FLOAT", (-1, 2))
        }
        assert {n: s.dtype for n, s in signature.outputs.items()} == {
            "doubled": "DT_FLOAT",
            "text": STRING,
        }

    def test_run_gives_every_output_in_its_own_type(self, model: LoadedModel) -> None:
        outputs = model.run(DEFAULT_SIGNATURE, {"x": _X})
        assert outputs.keys() == {"doubled", "text"}
        assert outputs["doubled"].dtype == np.float32
        np.testing.assert_array_equal(outputs["doubled"], 2 * _X)
        assert outputs["text"].dtype == object
        assert all(isinstance(text, bytes) for text in outputs["text"])

    def test_run_gives_only_the_outputs_asked_for(self, model: LoadedModel) -> None:
        assert model.run(DEFAULT_SIGNATURE, {"x": _X}, ["text"]).keys() == {"text"}

    def test_a_batch_of_none_is_computed(self, model: LoadedModel) -> None:
        outputs = model.run(DEFAULT_SIGNATURE, {"x": _X[:0]})
        assert outputs["doubled"].shape == (0, 2)

    def test_inputs_are_left_as_they_are(self, model: LoadedModel) -> None:
        given = _X.copy()
        model.run(DEFAULT_SIGNATURE, {"x": given})
        np.testing.assert_array_equal(given, _X)

    @pytest.mark.parametrize(
        "wrong", [_X.astype(np.float64), np.array([b"a"], dtype=object)], ids=["double", "string"]
    )
    def test_a_wrong_type_is_an_invalid_argument(self, model: LoadedModel, wrong: Array) -> None:
        with pytest.raises(StatusError) as caught:
            model.run(DEFAULT_SIGNATURE, {"x": wrong})
        assert caught.value.code is Code.INVALID_ARGUMENT
        assert caught.value.message

    def test_threads_may_run_at_the_same_time(self, model: LoadedModel) -> None:
        def call(factor: int) -> bool:
            outputs = model.run(DEFAULT_SIGNATURE, {"x": _X * factor})
            return bool((outputs["doubled"] == 2 * factor * _X).all())

        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(call, range(100)))

    def test_versions_are_apart(self, runtime: Runtime, version: Path, model: LoadedModel) -> None:
        other = runtime.load(version, RuntimeSettings())
        other.close()
        np.testing.assert_array_equal(model.run(DEFAULT_SIGNATURE, {"x": _X})["doubled"], 2 * _X)

    def test_a_folder_without_a_model_is_not_found(self, runtime: Runtime, tmp_path: Path) -> None:
        with pytest.raises(StatusError) as caught:
            runtime.load(tmp_path, RuntimeSettings())
        assert caught.value.code is Code.NOT_FOUND


class FakeModel(LoadedModel):
    """Multiplies ``x`` by a factor, after ``x[0] - 1`` seconds."""

    def __init__(self, factor: float) -> None:
        self.factor = factor
        self.closed = threading.Event()
        self.signatures = {
            DEFAULT_SIGNATURE: Signature(
                DEFAULT_SIGNATURE,
                inputs={"x": TensorSpec("x:0", "DT_FLOAT", (-1,))},
                outputs={"y": TensorSpec("y:0", "DT_FLOAT", (-1,))},
            )
        }

    def run(
        self, signature: str, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None
    ) -> dict[str, Array]:
        assert not self.closed.is_set(), "run after close"
        assert signature in self.signatures
        assert set(outputs or ()) <= {"y"}
        time.sleep(max(0.0, float(inputs["x"].flat[0]) - 1))
        return {"y": inputs["x"] * np.float32(self.factor)}

    def close(self) -> None:
        assert not self.closed.is_set(), "closed twice"
        self.closed.set()


class FakeRuntime(Runtime):
    """Reads a version's factor, a number as text in its ``saved_model.pb``.

    Args:
        before_load: Called with the folder before each load; the load raises its exceptions.
    """

    name = "fake"

    def __init__(self, before_load: Callable[[Path], None] | None = None) -> None:
        self.loaded: list[FakeModel] = []
        self.attempts: list[Path] = []
        self._before_load = before_load

    def load(self, path: Path, settings: RuntimeSettings) -> LoadedModel:
        assert isinstance(settings, RuntimeSettings)
        self.attempts.append(path)
        if self._before_load is not None:
            self._before_load(path)
        try:
            factor = float((path / "saved_model.pb").read_text())
        except FileNotFoundError as error:
            raise StatusError(Code.NOT_FOUND, f"no model in {path}") from error
        except ValueError as error:
            raise StatusError(Code.DATA_LOSS, f"damaged model in {path}") from error
        model = FakeModel(factor)
        self.loaded.append(model)
        return model
