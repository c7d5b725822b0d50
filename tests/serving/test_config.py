from __future__ import annotations

import pytest
from pydantic import ValidationError

from timonel.serving.config import Latest, ModelSettings, ServerSettings, Specific

MODEL = ModelSettings(name="m", base_path="/models/m")


def test_settings_travel_as_json():
    settings = ServerSettings(
        models=(MODEL, ModelSettings(name="n", base_path="/n", policy=Specific(versions=(1,)))),
        grpc_port=None,
        drain_s="2m",
    )
    assert ServerSettings.model_validate_json(settings.model_dump_json()) == settings
    assert settings.drain_s == 120
    assert settings.models[0].policy == Latest()


@pytest.mark.parametrize(
    "wrong",
    [
        {"models": (MODEL, MODEL)},
        {"models": (MODEL,), "rest_port": 65536},
        {"models": (MODEL,), "compute_threads": 0},
        {"models": (MODEL,), "unknown": 1},
    ],
)
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(ValidationError):
        ServerSettings(**wrong)
