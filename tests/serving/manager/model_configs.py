"""Write a ModelServerConfig, as clients do."""

from __future__ import annotations

from timonel.serving.protos.messages import model_server_config_pb2


def config_of(*models):
    """Convert models with default version policies."""
    config = model_server_config_pb2.ModelServerConfig()
    config.model_config_list.SetInParent()
    for model in models:
        entry = config.model_config_list.config.add(
            name=model.name, base_path=model.base_path, model_platform=model.platform
        )
        if model.request_log is not None:
            collector = entry.logging_config.log_collector_config
            collector.type = "tfrecord"
            collector.filename_prefix = model.request_log.filename_prefix
            entry.logging_config.sampling_config.sampling_rate = model.request_log.sampling_rate
    return config
