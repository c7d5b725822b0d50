"""Import of the modules that use tensorflow-model-optimization, without its effects on others."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace

import pytest


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Functions of the modules under test."""
    if importlib.util.find_spec("tensorflow_model_optimization") is None:
        pytest.skip("tensorflow-model-optimization is not installed")
    import tensorflow as tf

    # It sets TF_USE_LEGACY_KERAS, and tf.keras is what that says when it is first used.
    assert tf.keras.version().startswith("3.")
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "0")
    from timonel.training.quantize_aware.fake_quantization import calibrate, quantized
    from timonel.training.quantize_aware.legacy_model import rebuild

    return SimpleNamespace(calibrate=calibrate, quantized=quantized, rebuild=rebuild)
