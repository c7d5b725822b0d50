from __future__ import annotations

from concurrent.futures import Future

import pytest

from tests.serving.protocols.tfs_grpc.conftest import refusal, running
from timonel.serving.protos.messages import (
    get_model_status_pb2,
    model_management_pb2,
    predict_pb2,
)
from timonel.serving.settings.auth import (
    AccessSettings,
    TlsSettings,
    tensorflow_serving_access,
)
from timonel.serving.status import Code, StatusError
from timonel.serving.telemetry.monitor import Monitor

COUNT = "/tensorflow/serving/request_count"


class Configurator:
    """Keeps what it was given, and is done when told so."""

    def __init__(self, error=None):
        self.models = ()
        self.error = error
        self.done: list[Future[None]] = []

    def reconfigure(self, models):
        self.models = models
        self.done.append(Future())
        if self.error is not None:
            self.done[-1].set_exception(self.error)
        return self.done[-1]


def reload_request(*names):
    request = model_management_pb2.ReloadConfigRequest()
    request.config.model_config_list.SetInParent()
    for name in names:
        request.config.model_config_list.config.add(
            name=name, base_path=f"/models/{name}", model_platform="tensorflow"
        )
    return request


def test_status(served):
    request = get_model_status_pb2.GetModelStatusRequest()
    assert refusal(served.GetModelStatus, request) == ("INVALID_ARGUMENT", "Missing ModelSpec")
    request.model_spec.SetInParent()
    assert refusal(served.GetModelStatus, request) == (
        "NOT_FOUND",
        "Could not find any versions of model ",
    )
    request.model_spec.name = "m"
    request.model_spec.version_label = "whatever"
    found = served.GetModelStatus(request).model_version_status
    states = get_model_status_pb2.ModelVersionStatus.State
    assert [(entry.version, states.Name(entry.state)) for entry in found] == [
        (3, "AVAILABLE"),
        (4, "AVAILABLE"),
    ]
    request.model_spec.version.value = 5
    assert refusal(served.GetModelStatus, request) == (
        "NOT_FOUND",
        "Could not find version 5 of model m",
    )


def test_reload_waits_and_tells_how_far_counters_went_up():
    configurator, monitor = Configurator(), Monitor()
    with running(configurator=configurator, monitor=monitor) as client:
        request = reload_request("a", "b")
        request.metric_names.extend([COUNT, "/no/such/metric"])
        call = client.HandleReloadConfigRequest.future(request)
        while not configurator.done:
            assert not call.done()
        # A failed request counts as well.
        assert refusal(client.Predict, predict_pb2.PredictRequest())
        configurator.done[0].set_result(None)
        response = call.result()
    assert [model.name for model in configurator.models] == ["a", "b"]
    assert (response.status.error_code, response.status.error_message) == (0, "")
    assert [(entry.name, entry.int64_value_increase) for entry in response.metric] == [(COUNT, 1)]


def test_a_reload_that_is_not_waited_for_any_more_is_left():
    configurator = Configurator()
    with running(configurator=configurator) as client:
        assert refusal(client.HandleReloadConfigRequest, reload_request("a"), timeout=0.2)[0] == (
            "DEADLINE_EXCEEDED"
        )
    assert configurator.done[0].cancelled()


def test_reload_refusals():
    request = model_management_pb2.ReloadConfigRequest()
    unsupported = (
        "INVALID_ARGUMENT",
        (
            "ServerModelConfig type not supported by HandleReloadConfigRequest. "
            "Only ModelConfigList is currently supported"
        ),
    )
    with running(configurator=Configurator()) as client:
        assert refusal(client.HandleReloadConfigRequest, request) == unsupported
        request.config.custom_model_config.SetInParent()
        assert refusal(client.HandleReloadConfigRequest, request) == unsupported
        assert refusal(client.HandleReloadConfigRequest, reload_request("a", "a")) == (
            "INVALID_ARGUMENT",
            "Illegal to list model a multiple times in config list",
        )
    with running(configurator=Configurator(StatusError(Code.UNKNOWN, "no"))) as client:
        assert refusal(client.HandleReloadConfigRequest, reload_request("a")) == ("UNKNOWN", "no")


def test_a_server_may_refuse_to_take_models_from_clients():
    with running(configurator=None) as client:
        code, message = refusal(client.HandleReloadConfigRequest, reload_request("m"))
    assert code == "PERMISSION_DENIED"
    assert "--allow-reload" in message


@pytest.mark.parametrize(
    ("access", "takes"),
    [
        (AccessSettings(), False),
        (AccessSettings(open_reload=True), True),
        (AccessSettings(api_keys="keys.json"), True),
        (AccessSettings(tls=TlsSettings(certificate="c", key="k")), False),
        (AccessSettings(tls=TlsSettings(certificate="c", key="k", client_ca="a")), True),
        (tensorflow_serving_access(), True),
    ],
)
def test_only_servers_that_ask_who_it_is_take_models_by_default(access, takes):
    assert access.takes_reloads is takes
