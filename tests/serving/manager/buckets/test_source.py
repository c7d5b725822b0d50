"""Versions in a bucket: found, downloaded, kept, and what happens when the bucket fails."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil

import pytest

from tests.serving.manager.buckets.conftest import Rig
from tests.serving.manager.test_manager import Rig as FolderRig
from tests.serving.manager.test_manager import publish
from tests.waiting import until
from timonel.errors import ServingError
from timonel.serving.manager.catalogue import ModelSpec
from timonel.serving.manager.plan import VersionState, VersionStatus
from timonel.serving.settings.models import Aliased
from timonel.serving.status import Code
from timonel.storage import digest_tree
from timonel.storage.aliases import Aliases
from timonel.storage.bucket_errors import UnavailableError
from timonel.storage.object_store import ObjectStore


def entries(cache):
    return sorted(path.name.partition("-")[0] for path in cache.glob("*/[0-9]*"))


def told(rig, number):
    known = {status.number: status for status in rig.catalogue.known("m")}
    return known.get(number, VersionStatus(number, VersionState.START))


def test_versions_come_and_go_with_the_bucket(s3, cache):
    s3.version(1)
    s3.version(2)
    with Rig(s3, cache) as rig:
        rig.loader.wait_until_settled()
        assert rig.ask() == (2, 2.0)
        assert entries(cache) == ["2"], "what is not wanted is not downloaded"
        s3.version(3)
        rig.until(lambda: rig.states() == {2: VersionState.END, 3: VersionState.AVAILABLE})
        assert rig.ask() == (3, 3.0)
        reads = s3.proxy.downloads.total()
        s3.drop(3)
        rig.until(lambda: rig.states() == {2: VersionState.AVAILABLE, 3: VersionState.END})
        assert rig.ask() == (2, 2.0)
        assert s3.proxy.downloads.total() == reads, "it was in the cache"
    assert rig.runtime.attempts[-1].parts[-2:] == ("m", "2")


def test_an_alias_in_a_bucket_decides_what_is_served(s3, cache, impatient):
    s3.version(1)
    s3.version(2)
    aliases = Aliases(s3.uri)
    aliases.move("champion", 1)
    with Rig(s3, cache, Aliased(alias="champion")) as rig:
        rig.loader.wait_until_settled()
        assert rig.ask(ModelSpec("m", label="champion")) == (1, 1.0)
        assert entries(cache) == ["1"]
        aliases.move("champion", 2)
        rig.serves(2)
        s3.proxy.fault = lambda *_: "cut"
        rig.until(lambda: rig.loader._managed["m"].source._problem is not None)
        assert rig.ask(ModelSpec("m", label="champion")) == (2, 2.0)


@pytest.mark.soak
def test_in_the_long_run_a_look_is_one_request(s3, cache):
    for number in range(1, 30):
        s3.version(number)
    with Rig(s3, cache, poll_s=0.05) as rig:
        rig.loader.wait_until_settled()
        s3.proxy.seen.clear()
        until(lambda: len(s3.proxy.seen) >= 8)
        assert {path.partition("delimiter=")[2][:3] for _, path, _ in s3.proxy.seen} == {"%2F"}
        assert len(s3.proxy.lists()) == len(s3.proxy.seen)


@pytest.mark.soak
def test_a_half_uploaded_version_is_waited_for(s3, cache):
    s3.version(1)
    with Rig(s3, cache) as rig:
        rig.loader.wait_until_settled()
        s3.put(2, "variables/variables.index", b"i")
        s3.put(2, "variables/variables.data-00001-of-00002", b"1")
        s3.version(2)
        looks = len(s3.proxy.lists())
        until(lambda: len(s3.proxy.lists()) > looks + 6)
        assert rig.states() == {1: VersionState.AVAILABLE}
        assert all("/m/1/" in path for path in s3.proxy.downloads)
        s3.put(2, "variables/variables.data-00000-of-00002", b"0")
        rig.serves(2)


def test_a_download_that_is_cut_off_goes_on_with_the_objects_that_it_lacks(s3, cache, impatient):
    content = os.urandom(1_000_000)
    s3.version(1)
    with Rig(s3, cache, retry_s=0.3) as rig:
        rig.loader.wait_until_settled()
        s3.proxy.fault = lambda method, path, _: "cut" if path.endswith("broken") else None
        s3.version(2, blob=content, broken=b"x" * 100_000)
        rig.until(lambda: rig.states().get(2) == VersionState.END)
        assert told(rig, 2).code is Code.UNAVAILABLE
        assert rig.ask() == (1, 1.0)
        until((next(cache.glob("*/part-2")) / "content" / "blob").is_file)
        s3.proxy.fault = lambda *_: None
        s3.proxy.seen.clear()
        rig.serves(2)
        names = {path.rpartition("/")[2] for method, path, _ in s3.proxy.seen if method == "GET"}
        assert "broken" in names
        assert "blob" not in names
        assert (rig.runtime.attempts[-1] / "blob").read_bytes() == content


def test_an_object_that_is_replaced_during_the_download_is_taken_whole(s3, cache):
    old, new = b"o" * 500_000, b"n" * 500_000
    done = []

    def replace(method, path):
        if path.endswith("blob") and method == "GET" and not done:
            done.append(True)
            s3.put(1, "blob", new)

    s3.proxy.before = replace
    s3.version(1, blob=old)
    with Rig(s3, cache) as rig:
        rig.loader.wait_until_settled()
        assert done
        assert (rig.runtime.attempts[-1] / "blob").read_bytes() == new
    assert len(rig.runtime.attempts) == 1


def test_bytes_that_arrive_changed_are_fetched_again(s3, cache):
    done = []

    def flip(method, path, what):
        if path.endswith("saved_model.pb") and method == "GET" and not done:
            done.append(True)
            return "flip"
        return None

    s3.proxy.fault = flip
    s3.version(1, factor=12)
    with Rig(s3, cache) as rig:
        rig.loader.wait_until_settled()
        assert rig.ask() == (1, 12.0)
    assert done


@pytest.mark.soak
@pytest.mark.parametrize("fault", ["hang", "503"])
def test_a_bucket_that_fails_keeps_what_serves_and_holds_up_no_other_model(
    s3, cache, tmp_path, fault, caplog, impatient
):
    s3.version(1)
    base = tmp_path / "other"
    publish(base, 1)
    with Rig(s3, cache) as rig, FolderRig(base) as other:
        rig.loader.wait_until_settled()
        models = (*rig.loader.models, other.loader.models[0].model_copy(update={"name": "other"}))
        rig.loader.reconfigure(models).result(60)
        s3.proxy.fault = lambda *_: fault
        s3.version(2)
        until(lambda: "keeping the loaded versions" in caplog.text)
        publish(base, 2)
        rig.until(lambda: 2 in rig.catalogue.loaded("other"))
        assert rig.ask() == (1, 1.0)
        s3.proxy.fault = lambda *_: None
        s3.proxy.over.set()
        rig.serves(2)
    assert caplog.text.count("keeping the loaded versions") < 4


@pytest.mark.soak
@pytest.mark.parametrize("fault", ["hang", "503"])
def test_without_its_bucket_a_server_starts_from_the_cache_and_says_so(
    s3, cache, fault, caplog, impatient
):
    s3.version(1)
    s3.version(2)
    with Rig(s3, cache) as rig:
        rig.loader.wait_until_settled()
    s3.proxy.fault = lambda *_: fault
    with Rig(s3, cache) as rig:
        rig.loader.wait_until_settled()
        assert rig.ask() == (2, 2.0)
        assert "serving cached versions of the last listing: 2" in caplog.text
        s3.proxy.fault = lambda *_: None
        s3.proxy.over.set()
        s3.version(3)
        rig.serves(3)
    s3.proxy.fault = lambda *_: "503"
    shutil.rmtree(cache)
    with Rig(s3, cache) as rig, pytest.raises(ServingError, match="Cannot list s3://"):
        rig.loader.wait_until_settled()


def test_what_the_cache_has_of_the_last_listing_is_served_without_the_bucket(
    memory, cache, caplog, monkeypatch
):
    listed, gone = ObjectStore.children, []

    def children(store):
        if gone:
            raise UnavailableError(f"cannot list {store.uri}: gone")
        return listed(store)

    monkeypatch.setattr(ObjectStore, "children", children)
    memory.version(1)
    memory.version(2)
    with Rig(memory, cache) as rig:
        rig.loader.wait_until_settled()
    gone.append(True)
    with Rig(memory, cache) as rig:
        rig.loader.wait_until_settled()
        assert rig.ask() == (2, 2.0)
        assert "gone; serving cached versions of the last listing: 2" in caplog.text
        gone.clear()
        memory.version(3)
        rig.serves(3)
        assert "can be listed again" in caplog.text


def test_a_damaged_entry_is_fetched_again(memory, cache, caplog):
    memory.version(1, blob=b"x" * 200_000)
    with Rig(memory, cache) as rig:
        rig.loader.wait_until_settled()
    (blob,) = cache.glob("*/1-*/m/1/blob")
    status = blob.stat()
    blob.write_bytes(b"x" * 199_999 + b"y")
    os.utime(blob, ns=(status.st_atime_ns, status.st_mtime_ns))
    with Rig(memory, cache) as rig:
        rig.loader.wait_until_settled()
        assert (rig.runtime.attempts[0] / "blob").read_bytes() == b"x" * 200_000
    assert "from the cache: blob has changed" in caplog.text


def test_a_version_with_a_digest_of_its_own_is_held_to_it(memory, cache, tmp_path):
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "saved_model.pb").write_text("2")
    (folder / "other").write_text("more")
    mark = f'{{"digest": "{digest_tree(folder)}"}}'.encode()
    memory.version(1)
    with Rig(memory, cache) as rig:
        rig.loader.wait_until_settled()
        memory.put(2, "assets.extra/timonel.json", mark)
        memory.put(2, "assets.extra/tf_serving_warmup_requests", b"")
        memory.put(2, "saved_model.pb", b"2")
        rig.until(lambda: told(rig, 2).code is Code.DATA_LOSS)
        assert "does not have its published digest" in told(rig, 2).message
        memory.put(2, "other", b"more")
        rig.serves(2)


@pytest.mark.soak
def test_what_nobody_uses_makes_room_least_recently_used_first(memory, cache):
    size = 100_000
    with Rig(memory, cache, model_cache_size=3 * size + 50_000) as rig:
        for number in range(1, 6):
            memory.version(number, blob=bytes(size))
            rig.serves(number)
        assert entries(cache) == ["3", "4", "5"]
    with Rig(memory, cache, model_cache_size=0) as rig:
        rig.loader.wait_until_settled()
        memory.version(6, blob=bytes(size))
        rig.serves(6)
        # The fifth was in use while room was made.
        assert entries(cache) == ["5", "6"]


def test_a_full_disk_keeps_what_serves_and_goes_on_when_there_is_room(memory, small_disk):
    memory.version(1)
    with Rig(memory, small_disk) as rig:
        rig.loader.wait_until_settled()
        memory.version(2, blob=os.urandom(100_000))
        rig.until(lambda: rig.states().get(2) is VersionState.END)
        assert told(rig, 2).code is Code.RESOURCE_EXHAUSTED
        assert "has no room for" in told(rig, 2).message
        assert rig.ask() == (1, 1.0)
        memory.drop(2)
        memory.version(2, blob=os.urandom(10_000))
        rig.serves(2)


@pytest.mark.soak
def test_servers_that_share_a_cache_download_once(s3, cache):
    s3.version(1, blob=os.urandom(300_000))
    with Rig(s3, cache) as one, Rig(s3, cache) as other:
        one.loader.wait_until_settled()
        other.loader.wait_until_settled()
        assert one.runtime.attempts == other.runtime.attempts
    assert [count for path, count in s3.proxy.downloads.items() if path.endswith("blob")] == [1]


def test_a_version_that_another_server_has_just_finished_is_not_fetched_again(memory, cache):
    memory.version(1)
    with Rig(memory, cache) as rig:
        rig.loader.wait_until_settled()
    (entry,) = cache.glob("*/1-*")
    lock = os.open(entry, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    before = entry.stat().st_ino
    with Rig(memory, cache) as rig:
        until((entry.parent / "part-1").is_dir)
        assert rig.states() == {1: VersionState.LOADING}
        os.close(lock)
        rig.serves(1)
    assert entry.stat().st_ino == before


def test_what_would_leave_the_folder_is_skipped(memory, cache, tmp_path, caplog):
    memory.version(1)
    memory.fs.store[f"/{memory.root}/2/../../../../evil"] = memory.fs.store[
        f"/{memory.root}/1/saved_model.pb"
    ]
    try:
        with Rig(memory, cache) as rig:
            until(lambda: "its name cannot be that of a file" in caplog.text)
            rig.loader.wait_until_settled()
            assert rig.ask() == (1, 1.0)
    finally:
        memory.fs.store.pop(f"/{memory.root}/2/../../../../evil")
    assert not list(tmp_path.rglob("evil"))


def test_a_place_without_versions_is_told(memory, cache):
    with (
        Rig(memory, cache) as rig,
        pytest.raises(ServingError, match=r"Cannot list memory://.*: it is empty"),
    ):
        rig.loader.wait_until_settled()


def test_a_stop_does_not_wait_for_a_bucket(s3, cache):
    s3.version(1)
    s3.version(2, blob=bytes(500_000))
    hung = []

    def hang(method, path, what):
        if path.endswith("blob"):
            hung.append(path)
            return "hang"
        return None

    s3.proxy.fault = hang
    with Rig(s3, cache) as rig:
        until(lambda: hung, 60)
        rig.loader.stop()
        assert rig.states()[2] in {VersionState.LOADING, VersionState.END}


@pytest.fixture(autouse=True)
def logged(caplog):
    caplog.set_level(logging.INFO, "timonel.serving")
