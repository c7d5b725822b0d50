from __future__ import annotations

import contextlib
import logging
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.contracts.runtimes import FakeRuntime
from tests.waiting import until
from timonel.errors import ServingError
from timonel.serving.batching.scheduling import scheduled
from timonel.serving.inference.flow import Call
from timonel.serving.manager.catalogue import Catalogue, ModelSpec
from timonel.serving.manager.manager import ModelManager
from timonel.serving.manager.plan import VersionState
from timonel.serving.manager.sources import PUBLISHED_MARK, version_folders
from timonel.serving.runtimes.base import VersionFolder
from timonel.serving.settings.models import Aliased, Latest, LoadSettings, ModelSettings
from timonel.serving.settings.runtime import RuntimeSettings
from timonel.serving.status import Code, StatusError
from timonel.storage.aliases import Aliases

FAST = LoadSettings(poll_s=0.01, settle_s=0.02, max_retries=2, retry_s=0.02)
SPEC = ModelSpec("m")


def publish(base, number, factor=None, *, published=True):
    """Make a version appear by a rename, as timonel does."""
    aside = base / f".tmp-{number}"
    aside.mkdir(parents=True)
    (aside / "saved_model.pb").write_text(str(number if factor is None else factor))
    if published:
        (aside / PUBLISHED_MARK).parent.mkdir()
        (aside / PUBLISHED_MARK).write_text("{}")
    aside.rename(base / str(number))
    return base / str(number)


class Rig:
    """A loader over one folder, with the fake runtime."""

    def __init__(self, base, runtime=None, settings=FAST, policy=None, *, labelled=False):
        self.base = base
        self.runtime = runtime or FakeRuntime()
        self.catalogue = Catalogue()
        self.loader = ModelManager(
            [
                ModelSettings(
                    name="m",
                    base_path=str(base),
                    policy=policy or Latest(),
                    labels={"stable": 1} if labelled else {},
                )
            ],
            lambda version: scheduled(self.runtime.load(version.folder, RuntimeSettings())),
            settings,
            self.catalogue,
        )

    def __enter__(self):
        self.loader.start()
        return self

    def __exit__(self, *_):
        self.loader.stop()

    def ask(self, spec=SPEC):
        with contextlib.closing(Call(self.catalogue.acquire(spec))) as call:
            outputs = call.predict(call.signature(""), {"x": np.ones(1, np.float32)})
            return call.version, float(outputs["y"][0])

    def until(self, condition, timeout_s=10.0):
        until(condition, timeout_s, seen=lambda: self.catalogue.known("m"))

    def serving(self):
        return sorted(self.catalogue.loaded("m"))

    def states(self):
        return {s.number: s.state for s in self.catalogue.known("m")}


@pytest.fixture
def base(tmp_path):
    return tmp_path / "models" / "m"


def test_the_newest_is_loaded_then_swapped_then_rolled_back(base):
    publish(base, 1)
    publish(base, 2)
    with Rig(base) as rig:
        rig.loader.wait_until_settled()
        assert rig.ask() == (2, 2.0)
        publish(base, 3)
        rig.until(lambda: rig.states() == {2: VersionState.END, 3: VersionState.AVAILABLE})
        assert rig.ask() == (3, 3.0)
        shutil.rmtree(base / "3")
        rig.until(lambda: rig.states() == {2: VersionState.AVAILABLE, 3: VersionState.END})
        assert rig.ask() == (2, 2.0)
    assert all(model.closed.is_set() for model in rig.runtime.loaded)


def test_requests_by_number_and_label(base):
    publish(base, 1)
    with Rig(base, labelled=True) as rig:
        rig.loader.wait_until_settled()
        assert rig.ask(ModelSpec("m", version=1)) == (1, 1.0)
        assert rig.ask(ModelSpec("m", label="stable")) == (1, 1.0)
        for spec, code, message in [
            (ModelSpec("m", 7), Code.NOT_FOUND, "Servable not found for request: Specific(m, 7)"),
            (ModelSpec("x"), Code.NOT_FOUND, "Servable not found for request: Latest(x)"),
            (
                ModelSpec("m", label="new"),
                Code.INVALID_ARGUMENT,
                "Unrecognized servable version label: new",
            ),
        ]:
            with pytest.raises(StatusError) as caught:
                rig.ask(spec)
            assert (caught.value.code, caught.value.message) == (code, message)


def test_no_request_fails_while_versions_come_and_go(base):
    publish(base, 1)
    stop = threading.Event()

    def client():
        seen = set()
        while not stop.is_set():
            version, answer = rig.ask()
            assert version == answer
            seen.add(version)
        return seen

    with Rig(base) as rig, ThreadPoolExecutor(3) as pool:
        rig.loader.wait_until_settled()
        clients = [pool.submit(client) for _ in range(3)]
        try:
            for number in range(2, 12):
                publish(base, number)
                rig.until(lambda number=number: rig.serving() == [number])
            for number in range(11, 1, -1):
                shutil.rmtree(base / str(number))
                rig.until(lambda number=number: rig.serving() == [number - 1])
        finally:
            stop.set()
        assert {n for c in clients for n in c.result()} >= set(range(1, 12))


def test_an_alias_decides_what_is_served_and_no_request_fails_when_it_moves(base):
    for number in (1, 2, 3):
        publish(base, number)
    aliases = Aliases(base)
    aliases.move("champion", 1)
    aliases.move("candidate", 3)
    stop = threading.Event()

    def client(label):
        seen = []
        while not stop.is_set():
            version, answer = rig.ask(ModelSpec("m", label=label))
            assert version == answer
            if version not in seen[-1:]:
                seen.append(version)
        return seen

    with (
        Rig(base, policy=Aliased(alias="champion")) as rig,
        ThreadPoolExecutor(2) as pool,
    ):
        rig.loader.wait_until_settled()
        clients = [pool.submit(client, label) for label in (None, "champion")]
        try:
            assert rig.serving() == [1]
            publish(base, 4)
            aliases.move("candidate", 4)
            time.sleep(0.1)
            assert rig.serving() == [1]
            for number in (2, 4, 1):
                aliases.move("champion", number)
                rig.until(lambda number=number: rig.serving() == [number])
                assert rig.ask() == (number, float(number))
        finally:
            stop.set()
        for each in clients:
            assert each.result()[-1] == 1
        aliases.move("champion", None)
        rig.until(lambda: rig.loader._managed["m"].problem is not None)
        assert "found no alias champion" in rig.loader._managed["m"].problem
        assert rig.ask() == (1, 1.0)


def test_the_newest_and_each_version_with_an_alias_are_served(base):
    for number in (1, 2, 3):
        publish(base, number)
    aliases = Aliases(base)
    aliases.move("champion", 1)
    with Rig(base) as rig:
        rig.loader.wait_until_settled()
        rig.until(lambda: rig.serving() == [1, 3])
        assert rig.ask() == (3, 3.0)
        assert rig.ask(ModelSpec("m", label="champion")) == (1, 1.0)
        aliases.move("champion", 2)
        rig.until(lambda: rig.serving() == [2, 3])
        assert rig.ask(ModelSpec("m", label="champion")) == (2, 2.0)
        aliases.move("champion", None)
        rig.until(lambda: rig.serving() == [3])
        with pytest.raises(StatusError, match="Unrecognized servable version label"):
            rig.ask(ModelSpec("m", label="champion"))


def test_a_broken_version_does_not_get_an_alias_away_from_one_that_serves(base):
    publish(base, 1)
    publish(base, 2, "broken")
    aliases = Aliases(base)
    aliases.move("champion", 1)
    with Rig(base, policy=Aliased(alias="champion")) as rig:
        rig.loader.wait_until_settled()
        aliases.move("champion", 2)
        rig.until(lambda: rig.states().get(2) is VersionState.END)
        assert rig.ask(ModelSpec("m", label="champion")) == (1, 1.0)


def test_a_start_with_an_unknown_alias_tells_it(base):
    publish(base, 1)
    with (
        Rig(base, policy=Aliased(alias="best")) as rig,
        pytest.raises(ServingError, match="found no alias best"),
    ):
        rig.loader.wait_until_settled()


def test_an_old_version_stays_until_its_last_request_has_ended(base):
    publish(base, 1)
    with Rig(base) as rig:
        rig.loader.wait_until_settled()
        with contextlib.closing(Call(rig.catalogue.acquire(SPEC))) as call:
            publish(base, 2)
            rig.until(
                lambda: rig.states() == {1: VersionState.UNLOADING, 2: VersionState.AVAILABLE}
            )
            assert rig.ask() == (2, 2.0)
            assert not rig.runtime.loaded[0].closed.is_set()
            outputs = call.predict(call.signature(""), {"x": np.ones(1, np.float32)})
            assert outputs["y"] == [1.0]
        rig.until(lambda: rig.states()[1] is VersionState.END)
        assert rig.runtime.loaded[0].closed.is_set()


def test_a_broken_version_is_told_once_and_the_older_one_keeps_serving(base, caplog):
    publish(base, 1)
    with Rig(base) as rig, caplog.at_level(logging.ERROR):
        rig.loader.wait_until_settled()
        broken = publish(base, 2, "no number")
        rig.until(lambda: rig.states().get(2) is VersionState.END)
        time.sleep(0.1)
        assert rig.ask() == (1, 1.0)
        told = [record.getMessage() for record in caplog.records]
        assert len(told) == 1
        assert "Cannot load version 2 of model m: damaged model in" in told[0]
        assert rig.catalogue.statuses("m", 2)[0].code is Code.DATA_LOSS
        (broken / "saved_model.pb").write_text("2")
        rig.until(lambda: rig.serving() == [2])
        assert rig.catalogue.statuses("m", 2)[0].code is Code.OK


def test_files_that_cannot_be_read_are_told_without_a_traceback(base, caplog):
    def fail(path):
        raise IsADirectoryError(21, "Is a directory", str(path / "saved_model.pb"))

    publish(base, 1)
    with Rig(base, FakeRuntime(fail)) as rig, caplog.at_level(logging.ERROR):
        rig.until(lambda: caplog.records)
        assert "Cannot load version 1 of model m: IsADirectoryError" in caplog.messages[0]
        assert not any(record.exc_info for record in caplog.records)


def test_a_failure_that_may_pass_is_tried_again(base):
    failures = [StatusError(Code.RESOURCE_EXHAUSTED, "no memory"), MemoryError("none left")]

    def fail(path):
        if failures:
            raise failures.pop()

    publish(base, 1)
    with Rig(base, FakeRuntime(fail)) as rig:
        rig.loader.wait_until_settled()
        assert rig.ask() == (1, 1.0)
    assert len(rig.runtime.attempts) == 3


def test_retries_end(base):
    def fail(path):
        raise StatusError(Code.UNAVAILABLE, "not now")

    publish(base, 1)
    with Rig(base, FakeRuntime(fail)) as rig:
        with pytest.raises(ServingError, match="Version 1 of model m cannot be loaded: not now"):
            rig.loader.wait_until_settled()
        time.sleep(0.1)
    assert len(rig.runtime.attempts) == 1 + FAST.max_retries


def test_a_foreign_version_is_loaded_once_it_is_whole(base):
    publish(base, 1)
    # Longer than a busy machine takes from one write to the next.
    with Rig(base, settings=FAST.model_copy(update={"settle_s": 1.0})) as rig:
        rig.loader.wait_until_settled()
        folder = base / "2"
        folder.mkdir()
        for size in range(1, 11):
            (folder / "data").write_bytes(b"x" * size)
            time.sleep(0.01)
        (folder / "saved_model.pb").write_text("2")
        rig.until(lambda: rig.serving() == [2])
    assert rig.runtime.attempts.count(folder) == 1


def test_a_start_tells_that_it_waits_for_a_version_that_keeps_changing(base, caplog, monkeypatch):
    monkeypatch.setattr("timonel.serving.manager.managed_model._CHANGING_S", 0.1)
    folder = publish(base, 3, published=False)
    with Rig(base, settings=FAST.model_copy(update={"settle_s": 0.2})) as rig:
        deadline = time.monotonic() + 60
        while "keep changing" not in caplog.text and time.monotonic() < deadline:
            with (folder / "data").open("ab") as file:
                file.write(b"x")
            time.sleep(0.01)
        expected = (
            f"the files of version 3 in {base} keep changing; it is loaded once they have not "
            "changed for 0.2 s"
        )
        assert f"Model m: {expected}; waiting for a version." in caplog.text
        assert rig.serving() == []
        rig.loader.wait_until_settled()
        assert rig.serving() == [3]
    assert caplog.text.count("keep changing") == 1


def test_start_beside_a_broken_newest_serves_the_one_before(base):
    publish(base, 1)
    publish(base, 2, "no number")
    with Rig(base) as rig:
        rig.loader.wait_until_settled()
        assert rig.ask() == (1, 1.0)


def test_several_versions_can_serve(base):
    for number in (1, 2, 3):
        publish(base, number)
    with Rig(base, policy=Latest(count=2)) as rig:
        rig.until(lambda: rig.serving() == [2, 3])
        assert rig.ask() == (3, 3.0)
        assert rig.ask(ModelSpec("m", 2)) == (2, 2.0)


def test_a_folder_that_goes_away_takes_nothing_with_it(base, caplog):
    publish(base, 1)
    with Rig(base) as rig:
        rig.loader.wait_until_settled()
        base.rename(base.with_name("gone"))
        time.sleep(0.1)
        assert rig.ask() == (1, 1.0)
        assert len([r for r in caplog.records if "cannot read " in r.message]) == 1


def test_an_emptied_folder_unloads(base):
    publish(base, 1)
    with Rig(base) as rig:
        rig.loader.wait_until_settled()
        shutil.rmtree(base / "1")
        rig.until(lambda: rig.states() == {1: VersionState.END})
        assert rig.catalogue.unready() == ["m"]


def test_a_version_that_comes_back_is_loaded_again(base):
    publish(base, 1)
    with Rig(base) as rig:
        rig.loader.wait_until_settled()
        shutil.rmtree(base / "1")
        rig.until(lambda: rig.states() == {1: VersionState.END})
        publish(base, 1, 5)
        rig.until(lambda: rig.serving() == [1])
        assert rig.ask() == (1, 5.0)


@pytest.mark.parametrize(
    ("content", "message"),
    [("no number", "damaged model"), (None, "no model in")],
)
def test_nothing_that_can_be_loaded_is_told_at_start(base, content, message):
    folder = publish(base, 1, content)
    if content is None:
        (folder / "saved_model.pb").unlink()
    with Rig(base) as rig, pytest.raises(ServingError, match=message) as caught:
        rig.loader.wait_until_settled()
    assert "Version 1 of model m cannot be loaded" in caught.value.message


def test_a_missing_folder_is_told_at_start(base):
    with Rig(base) as rig, pytest.raises(ServingError, match="cannot read "):
        rig.loader.wait_until_settled()


def test_ended_versions_do_not_pile_up(base):
    publish(base, 1)
    with Rig(base) as rig:
        rig.loader.wait_until_settled()
        for number in range(2, 45):
            publish(base, number)
            rig.until(lambda number=number: rig.serving() == [number])
            shutil.rmtree(base / str(number - 1))
        rig.until(lambda: len(rig.states()) <= 34)


class HungFolder:
    """Listings of one folder that block, as those of a dead network file system."""

    def __init__(self, monkeypatch, folder):
        self.released = threading.Event()
        self.listings = []

        def list_folder(base):
            if base == folder:
                self.listings.append(base)
                self.released.wait(60)
            return version_folders(base)

        monkeypatch.setattr("timonel.serving.manager.sources.version_folders", list_folder)
        monkeypatch.setattr("timonel.serving.manager.managed_model.SLOW_S", 0.2)


@pytest.fixture
def hung(monkeypatch, tmp_path):
    folder = HungFolder(monkeypatch, tmp_path / "models" / "hung")
    yield folder
    folder.released.set()


def test_a_folder_that_hangs_holds_up_its_own_model_only(base, hung, caplog):
    publish(base, 1)
    with Rig(base) as rig:
        models = [*rig.loader.models, ModelSettings(name="h", base_path=str(base.parent / "hung"))]
        with pytest.raises(StatusError, match="hung has not ended after"):
            rig.loader.reconfigure(models).result(10)
        publish(base, 2)
        rig.until(lambda: rig.serving() == [2])
        assert rig.catalogue.unready() == ["h"]
        assert len(hung.listings) == 1
        assert len([r for r in caplog.records if "Model h: reading" in r.message]) == 1
        publish(base.parent / "hung", 5)
        hung.released.set()
        rig.until(
            lambda: rig.ask(ModelSpec("h")) == (5, 5.0) if not rig.catalogue.unready() else False
        )


def test_a_start_with_a_folder_that_hangs_only_ends_with_an_error(base, hung):
    with Rig(base.parent / "hung") as rig, pytest.raises(ServingError, match="has not ended after"):
        rig.loader.wait_until_settled()


def test_a_model_moves_away_from_a_folder_that_hangs(base, hung):
    publish(base, 1)
    with Rig(base.parent / "hung") as rig:
        until(lambda: hung.listings, 10)
        rig.loader.reconfigure([ModelSettings(name="m", base_path=str(base))]).result(10)
        rig.until(lambda: rig.serving() == [1])
        hung.released.set()
        time.sleep(0.1)
        assert rig.serving() == [1]


def test_models_of_one_folder_are_loaded_each_under_its_name(base):
    publish(base, 1)
    loaded = []
    with Rig(base) as rig:
        load = rig.loader._load
        rig.loader._load = lambda version: (loaded.append(version), load(version))[1]
        models = [ModelSettings(name=name, base_path=str(base)) for name in ("m", "n")]
        rig.loader.reconfigure(models).result(10)
        rig.until(lambda: len(loaded) >= 1)
        assert VersionFolder("n", 1, str(base / "1"), base / "1") in loaded
