"""Whether a version in a bucket is complete."""

from __future__ import annotations

import pytest

from timonel.serving.manager.buckets.listing import is_complete
from timonel.storage.blobs import Blob

SHARDS = ["variables/variables.data-00000-of-00002", "variables/variables.data-00001-of-00002"]
INDEX = "variables/variables.index"


@pytest.mark.parametrize(
    ("names", "complete"),
    [
        ([], False),
        (["saved_model.pb"], True),
        (["saved_model.pb", INDEX], False),
        (["saved_model.pb", *SHARDS], False),
        (["saved_model.pb", INDEX, SHARDS[1]], False),
        (["saved_model.pb", INDEX, *SHARDS], True),
        (["model.py"], True),
        ([INDEX, *SHARDS], False),
        (["assets.extra/timonel.json"], False),
    ],
)
def test_a_version_needs_all_its_shards(names, complete):
    assert is_complete([Blob(name, 1, "x") for name in names]) is complete
