"""Division of batches that fail."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.batch.model import BatchModel, default_batch_size
from timonel.batch.plan import PredictionSpec
from timonel.batch.readers import Rows
from timonel.errors import InputError, ModelError
from timonel.serving.runtimes.base import LoadedModel, Runtime
from timonel.serving.settings.runtime import RuntimeSettings
from timonel.serving.signature import Array, Signature, TensorSpec
from timonel.serving.status import Code, StatusError


def signature(
    shape: tuple[int, ...] = (-1,), dtype: str = "DT_FLOAT", name: str = "x"
) -> Signature:
    return Signature(
        "serving_default",
        {name: TensorSpec("x", dtype, shape)},
        {"y": TensorSpec("y", dtype, None)},
    )


class Fragile(LoadedModel):
    """A model that rejects some numbers, and whose process dies of others."""

    def __init__(self, rejected: set[float], deadly: set[float]) -> None:
        self.signatures = {"serving_default": signature()}
        self.rejected, self.deadly = rejected, deadly
        self.deaths = 0

    @property
    def restarts(self) -> int:
        return self.deaths

    def run(
        self, signature: str, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None
    ) -> dict[str, Array]:
        numbers = set(inputs["x"].tolist())
        if numbers & self.deadly:
            self.deaths += 1
            raise StatusError(Code.UNAVAILABLE, "was killed by SIGSEGV")
        if numbers & self.rejected:
            raise StatusError(Code.INVALID_ARGUMENT, "rejected")
        return {"y": inputs["x"] * 2}

    def close(self) -> None:
        pass


class Fragiles(Runtime):
    name = "fragile"

    def __init__(self, model: Fragile) -> None:
        self.model = model

    def load(self, path: Path, settings: object) -> Fragile:
        return self.model


def opened(model: Fragile) -> BatchModel:
    job = PredictionSpec("m", 1, "m", "id", "serving_default", 1, "jsonl", {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("timonel.batch.model.ChildRuntime", lambda *_, **__: Fragiles(model))
        return BatchModel(job, Path("log"))


def test_what_the_model_may_do_is_passed_to_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[RuntimeSettings] = []

    class Recording(Fragiles):
        def load(self, path: Path, settings: RuntimeSettings) -> Fragile:  # type: ignore[override]
            loaded.append(settings)
            return self.model

    monkeypatch.setattr(
        "timonel.batch.model.ChildRuntime", lambda *_, **__: Recording(Fragile(set(), set()))
    )
    trust: dict[str, tuple[str, ...]] = {"allow_ops": ("ReadFile",), "op_libraries": ("x",)}
    job = PredictionSpec("m", 1, "m", "id", "serving_default", 1, "jsonl", {}, **trust)  # type: ignore[arg-type]
    BatchModel(job, Path("log")).close()
    assert loaded[0].allow_ops == {"*": ("ReadFile",)}
    assert loaded[0].op_libraries == ("x",)


def rows(numbers: Sequence[float]) -> Rows:
    return Rows([str(i) for i in range(len(numbers))], {"x": list(numbers)})


@given(
    st.lists(st.integers(0, 20), max_size=40),
    st.sets(st.integers(0, 20), max_size=4),
    st.sets(st.integers(0, 20), max_size=2),
)
def test_only_the_rows_at_fault_fail(numbers: list[int], rejected: set, deadly: set) -> None:
    model = opened(Fragile(rejected, deadly))
    model._crashes = -10_000
    predicted, failures = model.predict(rows(numbers))
    found = {
        key: float(value)
        for each in predicted
        for key, value in zip(each.rows.keys, each.outputs["y"], strict=True)
    }
    bad = rejected | deadly
    assert found == {str(i): 2.0 * n for i, n in enumerate(numbers) if n not in bad}
    assert [key for key, _ in failures] == [str(i) for i, n in enumerate(numbers) if n in bad]
    assert all(("SIGSEGV" in reason) == (numbers[int(key)] in deadly) for key, reason in failures)


def test_batches_of_several_threads_survive_a_death() -> None:
    fragile = Fragile(set(), {5.0})
    model = opened(fragile)
    found: list[int] = []

    def predict(start: int) -> None:
        predicted, failures = model.predict(rows([float(start + i) for i in range(8)]))
        found.append(sum(len(each.rows) for each in predicted) + 100 * len(failures))

    threads = [threading.Thread(target=predict, args=(start,)) for start in (0, 10, 20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [8, 8, 107]


def test_a_model_that_always_dies_ends_the_job() -> None:
    model = opened(Fragile(set(), {float(i) for i in range(100)}))
    with pytest.raises(ModelError, match=r"process of m died 41 times: was killed by SIGSEGV"):
        model.predict(rows([float(i) for i in range(100)]))


def test_an_output_without_rows_is_refused() -> None:
    fragile = Fragile(set(), set())
    model = opened(fragile)
    fragile.run = lambda *_, **__: {"y": np.float32(1.0)}  # type: ignore[method-assign]
    with pytest.raises(ModelError, match=r"output y of m has the shape \[\] for 2 rows"):
        model.predict(rows([1.0, 2.0]))


@pytest.mark.parametrize(
    ("found", "rows"),
    [
        (signature((-1,), "DT_STRING", "image_bytes"), 32),
        (signature((-1,)), 1024),
        (signature((-1, 224, 224, 3)), 1),
        (signature((-1, 64)), 1024),
        (signature((-1, 1000)), 256),
    ],
)
def test_the_default_size_of_a_batch(found: Signature, rows: int) -> None:
    assert default_batch_size(found) == rows


def test_a_fixed_batch_size_is_refused() -> None:
    fragile = Fragile(set(), set())
    fragile.signatures = {"serving_default": signature((4, 2))}
    with pytest.raises(InputError, match="takes batches of exactly 4 rows"):
        opened(fragile)
