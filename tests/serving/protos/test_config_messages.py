"""Messages of configuration files."""

from __future__ import annotations

import pytest
from google.protobuf import descriptor_pool, text_format

from timonel.serving.protos.config_messages import FIELDS, config_message


@pytest.mark.parametrize("name", FIELDS)
def test_fields_have_the_numbers_and_types_of_the_table(name):
    descriptor = config_message(name).DESCRIPTOR
    assert descriptor.full_name == f"tensorflow.serving.{name}"
    assert [each.number for each in descriptor.fields] == [*range(1, len(FIELDS[name]) + 1)]
    for field, text in zip(descriptor.fields, FIELDS[name], strict=True):
        *label, kind, wanted = text.split()
        assert field.name == wanted
        assert field.is_repeated is (label == ["repeated"])
        if "." in kind:
            assert field.message_type.full_name == kind


def test_a_text_is_parsed_without_the_shared_pool():
    text = 'max_batch_size { value: 8 } thread_pool_name { value: "t" } allowed_batch_sizes: [4, 8]'
    message = text_format.Parse(text, config_message("BatchingParameters")())
    assert (message.max_batch_size.value, message.thread_pool_name.value) == (8, "t")
    assert list(message.allowed_batch_sizes) == [4, 8]
    assert not message.HasField("batch_timeout_micros")
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindFileByName("timonel/config.proto")
