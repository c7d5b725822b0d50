from __future__ import annotations

import pytest
from pydantic import ValidationError

from timonel.serving import launch, serve, serve_settings
from timonel.serving.settings.models import Latest, ModelSettings, Specific
from timonel.serving.settings.runtime import default_op_threads
from timonel.serving.settings.server import ServerSettings

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


@pytest.mark.parametrize(("cores", "expected"), [(1, 1), (2, 1), (3, 0), (64, 0)])
def test_operations_have_one_thread_where_cores_are_few(monkeypatch, cores, expected):
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS", raising=False)
    monkeypatch.setattr("timonel.serving.settings.runtime.cores", lambda: cores)
    assert default_op_threads() == expected
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "2")
    assert default_op_threads() == 0  # as the environment says


@pytest.mark.parametrize(("given", "expected"), [({}, 7), ({"op_threads": 3}, 3),
                                                 ({"op_threads": 0}, 0)])  # fmt: skip
def test_threads_of_operations_are_as_asked(monkeypatch, tmp_path, given, expected):
    class LaunchedError(Exception):
        pass

    def launched(settings, place, **_):
        raise LaunchedError(settings)

    monkeypatch.setattr(launch, "launch", launched)
    monkeypatch.setattr(serve_settings, "default_op_threads", lambda: 7)
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "saved_model.pb").touch()
    with pytest.raises(LaunchedError) as caught:
        serve(tmp_path / "m", workspace=tmp_path, **given)
    assert caught.value.args[0].runtime.intra_op_threads == expected
