"""Google Cloud Storage through gcsfs, against a stand-in for the service."""

from __future__ import annotations

import os

import fsspec.config
import pytest

from tests.serving.manager.buckets.conftest import Place, Rig
from tests.serving.manager.buckets.gcs import Store
from timonel.serving.manager.plan import VersionState


@pytest.fixture
def gcs(monkeypatch):
    files = pytest.importorskip("gcsfs.core").GCSFileSystem
    store = Store()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", store.url)
    # As FSSPEC_GS_TOKEN=anon does in a process of its own.
    monkeypatch.setitem(fsspec.config.conf, "gs", {"token": "anon"})
    files.clear_instance_cache()
    yield store
    files.clear_instance_cache()
    store.close()


def test_versions_come_from_google_cloud_storage(gcs, cache):
    content = os.urandom(200_000)
    for number in (1, 2):
        gcs.put("b", f"models/m/{number}/variables/variables.index", b"i")
        gcs.put("b", f"models/m/{number}/variables/variables.data-00000-of-00001", content)
        gcs.put("b", f"models/m/{number}/saved_model.pb", str(number).encode())
    with Rig(Place("gs://b/models/m", None, None), cache) as rig:
        rig.loader.wait_until_settled()
        assert rig.ask() == (2, 2.0)
        (found,) = rig.runtime.attempts
        assert (found / "variables/variables.data-00000-of-00001").read_bytes() == content
        gcs.put("b", "models/m/3/saved_model.pb", b"3")
        rig.until(lambda: rig.states() == {2: VersionState.END, 3: VersionState.AVAILABLE})
