from __future__ import annotations

import subprocess
import sys

import pytest

from tests.serving.manager.model_configs import config_of
from timonel.serving.manager.model_config import (
    first_models,
    models_from,
    next_models,
    parse_model_config,
    reloaded_models,
)
from timonel.serving.protos.text import TextProtoError
from timonel.serving.settings.models import (
    Every,
    Latest,
    ModelSettings,
    RequestLogSettings,
    Specific,
)
from timonel.serving.status import Code, StatusError

LOGGED = (
    'logging_config {{ log_collector_config {{ type: "tfrecord" filename_prefix: "/logs/m" }} '
    "sampling_config {{ sampling_rate: {rate} }} }}"
)


def model(text="", name="m", base="/m", platform='model_platform: "tensorflow"'):
    return f'config {{ name: "{name}" base_path: "{base}" {platform} {text} }}'


def models(*texts):
    return models_from(parse("model_config_list { " + " ".join(texts) + " }"))


def parse(text):
    return parse_model_config(text, "/etc/models.config")


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("", Latest()),
        ("model_version_policy {}", Latest()),
        ("model_version_policy { latest {} }", Latest()),
        ("model_version_policy { latest { num_versions: 0 } }", Latest()),
        ("model_version_policy { latest { num_versions: 3 } }", Latest(count=3)),
        ("model_version_policy { all {} }", Every()),
        (
            "model_version_policy { specific { versions: 42 versions: 7 } }",
            Specific(versions=(42, 7)),
        ),
        ("model_version_policy { specific {} }", Specific(versions=())),
    ],
)
def test_policies(text, policy):
    assert models(model(text)) == (ModelSettings(name="m", base_path="/m", policy=policy),)


def test_requests_are_logged_where_asked():
    (logged,) = models(model(LOGGED.format(rate=0.25)))
    assert logged.request_log == RequestLogSettings(filename_prefix="/logs/m", sampling_rate=0.25)


def test_labels():
    text = 'version_labels { key: "stable" value: 1 } version_labels { key: "also" value: 1 }'
    assert models(model(text))[0].labels == {"stable": 1, "also": 1}


@pytest.mark.parametrize("base", ["/m", "s3://bucket/m", "gs://b/m", "file:///m"])
def test_absolute_paths_and_addresses(base):
    assert models(model(base=base))[0].base_path == base


def test_the_old_way_to_name_the_platform():
    assert models(model(platform="model_type: TENSORFLOW"))[0].platform == "tensorflow"
    assert models(model(platform="model_type: OTHER"))[0].platform == "other"


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([model(), model()], "Illegal to list model m multiple times in config list"),
        (
            [model(base="models/m")],
            "Expected model m to have an absolute path or URI; got base_path()=models/m",
        ),
        ([model(base="")], "Expected model m to have an absolute path or URI; got base_path()="),
        (
            [model(base="s3://")],
            "The base path of model m is invalid: 's3://' has no bucket or path after the scheme",
        ),
        (
            [model(platform="")],
            (
                "Illegal setting neither ModelServerConfig::model_type (deprecated) nor "
                "ModelServerConfig::model_platform, model name is m"
            ),
        ),
        (
            [model(platform='model_type: TENSORFLOW model_platform: "tensorflow"')],
            (
                "Illegal setting both ModelServerConfig::model_type (deprecated) and "
                "ModelServerConfig::model_platform, model name is m"
            ),
        ),
        ([model("logging_config {}")], "No request-logger-creator provided."),
        (
            [model('logging_config { log_collector_config { type: "x" filename_prefix: "/l" } }')],
            "No request-logger-creator provided.",
        ),
        ([model(LOGGED.format(rate=1.5))], "Expected sampling_rate to be from 0 to 1; was 1.5"),
        ([model(name="")], "Expected a model's name in ModelConfig, got none."),
    ],
)
def test_refusals(texts, message):
    with pytest.raises(StatusError) as caught:
        models(*texts)
    assert (caught.value.code, caught.value.message) == (Code.INVALID_ARGUMENT, message)


def test_a_text_that_is_no_proto_is_told_as_the_parser_of_tensorflow_serving_does():
    with pytest.raises(TextProtoError) as caught:
        parse('model_config_list {\n  config { nme: "m" }\n}')
    assert str(caught.value) == ("INVALID_ARGUMENT: Invalid protobuf file: '/etc/models.config'")
    assert caught.value.diagnosis == (
        "Error parsing text-format tensorflow.serving.ModelServerConfig: 2:12: Message type "
        '"tensorflow.serving.ModelConfig" has no field named "nme".'
    )


def test_an_empty_configuration_starts_with_no_models_and_replaces_none():
    assert first_models(parse("")) == ()
    assert first_models(parse("model_config_list {}")) == ()
    assert next_models(parse("model_config_list {}")) == ()
    for text in ("", "custom_model_config {}"):
        with pytest.raises(StatusError, match="Cannot transition to requested config") as caught:
            next_models(parse(text))
        assert caught.value.code is Code.FAILED_PRECONDITION
    with pytest.raises(StatusError, match="does not yet support custom model config"):
        first_models(parse("custom_model_config {}"))


@pytest.mark.process
def test_tensorflow_is_not_imported():
    modules = "timonel.serving.manager.model_config, timonel.serving.manager.manager"
    code = f"import sys, {modules}; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_clients_keep_request_logs_but_choose_none():
    log = RequestLogSettings(filename_prefix="/logs/a", sampling_rate=0.5)
    present = (ModelSettings(name="a", base_path="/a", request_log=log),)
    kept = (*present, ModelSettings(name="b", base_path="/b"))
    assert reloaded_models(config_of(*kept), present) == kept
    for other in (
        ModelSettings(name="b", base_path="/b", request_log=log),
        present[0].model_copy(
            update={"request_log": log.model_copy(update={"filename_prefix": "/etc/x"})}
        ),
    ):
        with pytest.raises(StatusError, match="No request-logger-creator provided") as caught:
            reloaded_models(config_of(other), present)
        assert caught.value.code is Code.INVALID_ARGUMENT


def test_clients_do_not_move_models_that_are_trusted():
    present = (ModelSettings(name="a", base_path="/a"), ModelSettings(name="b", base_path="/b"))
    moved = (present[0], ModelSettings(name="b", base_path="/elsewhere"))
    assert reloaded_models(config_of(*moved), present, {"a"}) == moved
    for trusted in ({"b"}, {"*"}):
        assert reloaded_models(config_of(*present), present, trusted) == present
        with pytest.raises(
            StatusError, match="Model b is trusted at its present base path"
        ) as caught:
            reloaded_models(config_of(*moved), present, trusted)
        assert caught.value.code is Code.PERMISSION_DENIED
