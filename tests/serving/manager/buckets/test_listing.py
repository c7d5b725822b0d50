"""Whether a version in a bucket is complete."""

from __future__ import annotations

import pytest

from timonel.serving.manager.buckets.listing import is_complete
from timonel.serving.manager.buckets.source import BucketVersion, VersionStates
from timonel.storage.blobs import Blob, fingerprint

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


def test_a_version_settles_over_two_looks_that_agree():
    states = VersionStates(1.0)
    blobs = (Blob("saved_model.pb", 1, "a"),)
    states.listed(1, blobs, 0.0)
    assert not states[1].complete
    states.listed(1, blobs, 0.9)
    assert not states[1].complete
    states.listed(1, blobs, 1.0)
    assert states.complete([1, 2]) == {1: fingerprint(blobs)}
    states.listed(1, (Blob("saved_model.pb", 1, "b"),), 5.0)
    assert not states[1].complete
    states.cached(2, "f")
    assert states[2].complete
    states.keep([2])
    assert states[1] == BucketVersion()
