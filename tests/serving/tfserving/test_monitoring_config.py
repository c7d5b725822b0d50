from __future__ import annotations

import pytest

from timonel.serving.settings import METRICS_PATH
from timonel.serving.status import StatusError
from timonel.serving.tfserving.monitoring_config import metrics_path_from


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("prometheus_config { enable: true }", METRICS_PATH),
        ('prometheus_config { enable: true path: "/metrics" }', "/metrics"),
        ('prometheus_config { path: "/metrics" }', None),
        ("", None),
    ],
)
def test_the_file_says_where_metrics_are(text, path):
    assert metrics_path_from(text, "m.txt") == path


def test_what_is_no_text_proto_is_refused():
    with pytest.raises(StatusError) as caught:
        metrics_path_from("prometheus { }", "/etc/m.txt")
    assert str(caught.value) == "INVALID_ARGUMENT: Invalid protobuf file: '/etc/m.txt'"
