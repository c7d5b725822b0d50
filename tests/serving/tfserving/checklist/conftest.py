"""Servers of ``timonel-model-server`` with real SavedModels; each is started once."""

from __future__ import annotations

import shutil

import grpc
import numpy as np
import pytest

from tests.serving.tfserving import saved_models
from tests.serving.tfserving.checklist.harness import (
    HALF,
    KERAS,
    MODULE,
    Process,
    config,
    predict_request,
)


@pytest.fixture(scope="package")
def exported(tmp_path_factory):
    """The models' folders, below one."""
    folder = tmp_path_factory.mktemp("models")
    saved_models.half_plus_two(folder / HALF / "00000123")
    saved_models.module(folder / MODULE / "7")
    saved_models.keras(folder / KERAS / "1")
    return folder


@pytest.fixture(scope="package")
def server(exported, tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    labels = 'version_labels { key: "stable" value: 123 }'
    (folder / "models.config").write_text(
        config(exported, (HALF, labels), (MODULE, ""), (KERAS, ""))
    )
    (folder / "monitoring.config").write_text("prometheus_config { enable: true }")
    arguments = [
        f"--model_config_file={folder}/models.config",
        f"--monitoring_config_file={folder}/monitoring.config",
        "--allow_version_labels_for_unavailable_models",
        "--tensorflow_session_parallelism=1",
        "--enable_grpc_healthcheck_service",
    ]
    with Process(folder, *arguments) as started:
        yield started


@pytest.fixture(scope="package")
def stubs(server):
    from tensorflow_serving.apis import model_service_pb2_grpc, prediction_service_pb2_grpc

    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        yield (
            prediction_service_pb2_grpc.PredictionServiceStub(channel),
            model_service_pb2_grpc.ModelServiceStub(channel),
        )


@pytest.fixture(scope="package")
def changing(exported, tmp_path_factory):
    """A server whose models, versions and labels tests change; one at a time."""
    folder = tmp_path_factory.mktemp("changing")
    shutil.copytree(exported / HALF / "00000123", folder / HALF / "1")
    (folder / "models.config").write_text(config(folder, (HALF, "")))
    arguments = [
        f"--model_config_file={folder}/models.config",
        "--max_num_load_retries=0",
        "--file_system_poll_wait_seconds=1",
        "--rest_api_enable_cors_support",
        "--enable_signature_method_name_check=true",
        "--enable_serialization_as_tensor_content=true",
    ]
    with Process(folder, *arguments) as started:
        yield started


@pytest.fixture
def reload(changing):
    from tensorflow_serving.apis import model_service_pb2_grpc

    with grpc.insecure_channel(f"unix:{changing.folder}/{changing.port}.sock") as channel:
        yield model_service_pb2_grpc.ModelServiceStub(channel).HandleReloadConfigRequest


@pytest.fixture(scope="package")
def batching(exported, tmp_path_factory):
    """A server that batches, whose model has warm-up requests."""
    from tensorflow_serving.apis import prediction_log_pb2

    from timonel.data.records import frame

    folder = tmp_path_factory.mktemp("batching")
    shutil.copytree(exported / HALF / "00000123", folder / HALF / "1")
    log = prediction_log_pb2.PredictionLog()
    log.predict_log.request.CopyFrom(predict_request("other", x=np.float32([[1]])))
    extra = folder / HALF / "1" / "assets.extra"
    extra.mkdir()
    (extra / "tf_serving_warmup_requests").write_bytes(
        b"".join(b"".join(frame(log.SerializeToString())) for _ in range(3))
    )
    (folder / "batching.config").write_text(
        "max_batch_size { value: 4 }\nbatch_timeout_micros { value: 50000 }\n"
        "allowed_batch_sizes: 2\nallowed_batch_sizes: 4\n"
    )
    (folder / "monitoring.config").write_text('prometheus_config { enable: true path: "/m" }')
    arguments = [
        "--enable_batching",
        f"--batching_parameters_file={folder}/batching.config",
        f"--monitoring_config_file={folder}/monitoring.config",
        f"--model_name={HALF}",
        f"--model_base_path={folder}/{HALF}",
    ]
    with Process(folder, *arguments) as started:
        yield started
