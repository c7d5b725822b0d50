"""Messages of descriptors in text files."""

from __future__ import annotations

import pytest
from google.protobuf import descriptor_pool, text_format

from timonel.serving.protos.described import config_message


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("SSLConfig", {1: "server_key", 2: "server_cert", 3: "custom_ca", 4: "client_verify"}),
        ("MonitoringConfig", {1: "prometheus_config"}),
        ("PrometheusConfig", {1: "enable", 2: "path"}),
    ],
)
def test_fields_have_tensorflow_servings_numbers(name, fields):
    descriptor = config_message(name).DESCRIPTOR
    assert descriptor.full_name == f"tensorflow.serving.{name}"
    assert {each.number: each.name for each in descriptor.fields} == fields


def test_a_text_is_parsed_without_the_shared_pool():
    text = 'max_batch_size { value: 8 } thread_pool_name { value: "t" } allowed_batch_sizes: [4, 8]'
    message = text_format.Parse(text, config_message("BatchingParameters")())
    assert (message.max_batch_size.value, message.thread_pool_name.value) == (8, "t")
    assert list(message.allowed_batch_sizes) == [4, 8]
    assert not message.HasField("batch_timeout_micros")
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindFileByName("timonel/config.proto")
