"""Configurations that are replaced while a loader works, with the fake runtime."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time

import numpy as np
import pytest

from tests.contracts.runtimes import FakeRuntime
from tests.serving.manager.model_configs import config_of
from tests.serving.manager.test_manager import publish
from tests.waiting import until
from timonel.serving.batching.scheduling import scheduled
from timonel.serving.inference.flow import Call
from timonel.serving.manager.catalogue import Catalogue, ModelSpec
from timonel.serving.manager.manager import ModelManager
from timonel.serving.manager.model_config import ConfigFollower
from timonel.serving.manager.plan import VersionState
from timonel.serving.manager.reload import UnservableError
from timonel.serving.settings.models import Every, Latest, LoadSettings, ModelSettings, Specific
from timonel.serving.settings.runtime import RuntimeSettings
from timonel.serving.status import Code, StatusError

FAST = {"poll_s": 0.01, "settle_s": 0.02, "max_retries": 2, "retry_s": 0.02}
STRICT = {
    **FAST,
    "fail_fast": True,
    "as_tfserving": True,
    "labels_may_wait": False,
}
ONCE = {**STRICT, "poll_s": 0}


class Rig:
    """A loader over several folders."""

    def __init__(self, root, *models, runtime=None, **settings):
        self.root = root
        self.runtime = runtime or FakeRuntime()
        self.catalogue = Catalogue()
        self.loader = ModelManager(
            [self.model(each) if isinstance(each, str) else each for each in models],
            lambda version: scheduled(self.runtime.load(version.folder, RuntimeSettings())),
            LoadSettings(**(settings or FAST)),
            self.catalogue,
        )

    def model(self, name, base=None, policy=None, **labels):
        return ModelSettings(
            name=name,
            base_path=str(base or self.root / name),
            policy=policy or Latest(),
            labels=labels,
        )

    def __enter__(self):
        self.loader.start()
        self.loader.wait_until_settled()
        return self

    def __exit__(self, *_):
        self.loader.stop()

    def apply(self, *models):
        listed = [self.model(each) if isinstance(each, str) else each for each in models]
        return self.loader.reconfigure(listed).result(timeout=20)

    def ask(self, name, version=None, label=None):
        with contextlib.closing(
            Call(self.catalogue.acquire(ModelSpec(name, version, label)))
        ) as call:
            outputs = call.predict(call.signature(""), {"x": np.ones(1, np.float32)})
            return call.version, float(outputs["y"][0])

    def states(self, name):
        return {s.number: s.state for s in self.catalogue.known(name)}

    def until(self, condition):
        until(condition, seen=lambda: self.catalogue.known("a"))


@pytest.fixture
def root(tmp_path):
    for name in ("a", "b"):
        for number in (1, 2):
            publish(tmp_path / name, number)
    return tmp_path


def test_the_new_list_replaces_the_old_one(root):
    with Rig(root, "a") as rig:
        rig.apply("b")
        assert rig.ask("b") == (2, 2.0)
        rig.until(lambda: rig.states("a") == {2: VersionState.END})
        assert list(rig.catalogue.names) == ["b"]
        assert rig.catalogue.unready() == []
        assert [model.name for model in rig.loader.models] == ["b"]
        with pytest.raises(StatusError, match="Latest"):
            rig.ask("a")
        assert rig.runtime.loaded[0].closed.is_set()
        rig.apply("a", "b")
        assert rig.ask("a") == (2, 2.0)
        rig.apply()
        assert rig.catalogue.names == ()
    assert all(model.closed.is_set() for model in rig.runtime.loaded)


def test_policies_and_paths_of_a_model_change_while_it_serves(root):
    with Rig(root, "a") as rig:
        rig.apply(rig.model("a", policy=Every()))
        rig.until(lambda: rig.states("a") == {1: VersionState.AVAILABLE, 2: VersionState.AVAILABLE})
        rig.apply(rig.model("a", policy=Specific(versions=(1, 9))))
        rig.until(lambda: rig.states("a") == {1: VersionState.AVAILABLE, 2: VersionState.END})
        publish(root / "other", 1, 7)
        publish(root / "other", 3, 8)
        rig.apply(rig.model("a", root / "other", policy=Every()))
        rig.until(lambda: rig.states("a").get(3) is VersionState.AVAILABLE)
        # The same number under another path is not loaded anew, as in TensorFlow Serving.
        assert rig.ask("a", 1) == (1, 1.0)
        assert rig.ask("a", 3) == (3, 8.0)


def test_labels_move_at_one_stroke_and_only_to_what_serves(root):
    with Rig(root, "a", **STRICT) as rig:
        rig.apply(rig.model("a", policy=Every()))
        rig.until(lambda: len(rig.catalogue.loaded("a")) == 2)
        rig.apply(rig.model("a", policy=Every(), stable=1, canary=2))
        assert rig.ask("a", label="stable") == (1, 1.0)
        with pytest.raises(StatusError, match="version 3 of model a, which is not") as caught:
            rig.apply(rig.model("a", policy=Every(), stable=3, canary=1), "b")
        assert caught.value.code is Code.FAILED_PRECONDITION
        assert rig.ask("a", label="canary") == (2, 2.0)
        assert list(rig.catalogue.names) == ["a"]
        rig.apply(rig.model("a", policy=Every(), stable=2))
        assert rig.ask("a", label="stable") == (2, 2.0)
        with pytest.raises(StatusError, match="Unrecognized servable version label: canary"):
            rig.ask("a", label="canary")


def test_labels_at_the_start_are_refused_unless_they_may_wait(root):
    labelled = Rig(root).model("a", policy=Every(), stable=1)
    with pytest.raises(StatusError, match="which is not currently available"):
        Rig(root, labelled, **STRICT).loader.start()
    with Rig(root, labelled, **{**STRICT, "labels_may_wait": True}) as rig:
        rig.until(lambda: len(rig.catalogue.loaded("a")) == 2)
        assert rig.ask("a", label="stable") == (1, 1.0)


def test_what_a_label_names_is_kept_in_memory(root):
    with Rig(root, "a") as rig:
        rig.apply(rig.model("a", stable=1))
        rig.until(lambda: rig.states("a") == {1: VersionState.AVAILABLE, 2: VersionState.AVAILABLE})
        publish(root / "a", 3)
        # As in TensorFlow Serving, 2 may go before 3 is there: 1 is served as well.
        rig.until(lambda: rig.states("a").get(2) is VersionState.END)
        rig.until(lambda: rig.states("a").get(3) is VersionState.AVAILABLE)
        assert rig.ask("a", label="stable") == (1, 1.0)
        assert rig.ask("a") == (3, 3.0)


def test_a_new_model_that_cannot_be_loaded_is_told_and_the_others_serve(root):
    publish(root / "bad", 5, "no number")
    with Rig(root, "a", **STRICT) as rig:
        with pytest.raises(StatusError) as caught:
            rig.apply("bad", "a", "b")
        assert caught.value.code is Code.UNKNOWN
        assert caught.value.message == (
            "1 model(s) did not become available: {{{name: bad version: 5} due to error: "
            "DATA_LOSS: damaged model in .../5}, }"
        )
        assert len(rig.runtime.attempts) == 1 + 1 + 1 + STRICT["max_retries"]
        assert rig.ask("a")
        assert rig.ask("b")


def test_one_bad_path_stops_nobody(root):
    with Rig(root, "a", **STRICT) as rig:
        waiting = rig.loader.reconfigure([rig.model("gone"), rig.model("a"), rig.model("b")])
        rig.until(lambda: rig.catalogue.unready() == ["gone"])
        publish(root / "a", 3)
        rig.until(lambda: rig.states("a").get(2) is VersionState.END)
        assert rig.ask("a") == (3, 3.0)
        assert not waiting.done()
        publish(root / "gone", 1)
        assert waiting.result(timeout=10) is None


def test_a_wait_ends_with_the_model_it_is_for(root):
    with Rig(root, "a", **STRICT) as rig:
        waiting = rig.loader.reconfigure([rig.model("gone"), rig.model("a")])
        rig.apply("a")
        assert waiting.result(timeout=10) is None
        given_up = rig.loader.reconfigure([rig.model("gone"), rig.model("a")])
        assert given_up.cancel()
        left = rig.loader.reconfigure([rig.model("gone"), rig.model("lost"), rig.model("a")])
    with pytest.raises(StatusError, match="The server is stopping"):
        left.result(timeout=10)
    with pytest.raises(StatusError, match="The server is stopping"):
        rig.apply("a")


def test_with_a_poll_period_of_zero_nothing_is_found_by_itself_and_nothing_hangs(root):
    with Rig(root, "a", **ONCE) as rig:
        publish(root / "a", 3)
        time.sleep(0.1)
        assert rig.ask("a") == (2, 2.0)
        rig.apply("a", "b")
        assert rig.ask("b") == (2, 2.0)
        rig.until(lambda: rig.ask("a") == (3, 3.0))
        with pytest.raises(StatusError, match=r"1 model\(s\) did not become available: .*gone"):
            rig.apply("a", "gone")


def test_with_a_poll_period_of_zero_a_retry_comes_in_its_time(root):
    failures = [StatusError(Code.INTERNAL, "once"), StatusError(Code.INTERNAL, "twice")]

    def fail(path):
        if failures:
            raise failures.pop()

    with Rig(root, "a", runtime=FakeRuntime(fail), **ONCE) as rig:
        assert rig.ask("a") == (2, 2.0)
        assert len(rig.runtime.attempts) == 3


def test_a_broken_newest_version_at_the_start_has_no_stand_in_where_tensorflow_serving_has_none(
    root,
):
    publish(root / "a", 3, "no number")
    rig = Rig(root, "a", "b", **STRICT)
    rig.loader.start()
    with pytest.raises(UnservableError) as caught:
        rig.loader.wait_until_settled()
    assert [(f.name, f.version, f.error.code) for f in caught.value.failures] == [
        ("a", 3, Code.DATA_LOSS)
    ]
    rig.loader.stop()


def test_resource_preserving_never_has_two_versions_in_memory(root):
    class Counting(FakeRuntime):
        def load(self, path, settings):
            in_memory = [m for m in self.loaded if not m.closed.is_set()]
            assert not [m for m in in_memory if m.factor < 10]
            return super().load(path, settings)

    with Rig(root, "a", runtime=Counting(), resource_preserving=("a",), **FAST) as rig:
        assert rig.ask("a") == (2, 2.0)
        for number in (3, 4):
            publish(root / "a", number)
            rig.until(lambda number=number: list(rig.catalogue.loaded("a")) == [number])
        publish(root / "a", 5, "no number")
        rig.until(lambda: rig.states("a").get(5) is VersionState.END)
        rig.until(lambda: list(rig.catalogue.loaded("a")) == [4])
        shutil.rmtree(root / "a" / "4")
        rig.until(lambda: list(rig.catalogue.loaded("a")) == [2] or 3 in rig.catalogue.loaded("a"))


def test_a_model_that_retries_holds_nobody_up(root):
    def fail(path):
        if path.parent.name == "a" and path.name == "3":
            raise StatusError(Code.INTERNAL, "not now")

    settings = {**STRICT, "retry_s": 60, "threads": 1}
    with Rig(root, "a", "b", runtime=FakeRuntime(fail), **settings) as rig:
        publish(root / "a", 3)
        rig.until(
            lambda: rig.states("a").get(3) is VersionState.LOADING and len(rig.runtime.attempts) > 2
        )
        publish(root / "b", 3)
        rig.until(lambda: rig.states("b") == {2: VersionState.END, 3: VersionState.AVAILABLE})
        assert rig.ask("a") == (2, 2.0)
        shutil.rmtree(root / "a" / "3")
        rig.until(lambda: rig.states("a").get(3) is VersionState.END)


def test_what_is_replaced_under_its_number_is_not_noticed_until_it_was_away(root):
    with Rig(root, "a") as rig:
        (root / "a" / "2" / "saved_model.pb").write_text("7")
        time.sleep(0.1)
        assert rig.ask("a") == (2, 2.0)
        (root / "a" / "2").rename(root / "a" / "two")
        rig.until(lambda: rig.ask("a") == (1, 1.0))
        rig.until(lambda: rig.states("a")[2] is VersionState.END)
        (root / "a" / "two").rename(root / "a" / "00002")
        rig.until(lambda: rig.ask("a") == (2, 7.0))


def test_requests_never_fail_while_configurations_come_and_go(root):
    with Rig(root, rig_model := "a") as rig:
        stop = threading.Event()
        failures = []

        def client():
            while not stop.is_set():
                try:
                    version, answer = rig.ask(rig_model)
                    assert version == answer
                except Exception as error:
                    failures.append(error)

        threads = [threading.Thread(target=client) for _ in range(2)]
        for thread in threads:
            thread.start()
        for turn in range(30):
            policy = [Latest(), Every(), Specific(versions=(1,))][turn % 3]
            rig.apply(rig.model("a", policy=policy), *(["b"] if turn % 2 else []))
            time.sleep(0.02)
        stop.set()
        for thread in threads:
            thread.join()
        assert failures == []


def test_a_file_is_followed_and_a_bad_one_changes_nothing(root, tmp_path, caplog):
    path = tmp_path / "models.config"
    with Rig(root, "a") as rig, ConfigFollower(str(path), 0.01, rig.loader.reconfigure):
        rig.until(lambda: "No such file" in caplog.text)
        path.write_text(str(config_of(rig.model("a"), rig.model("b"))))
        rig.until(lambda: rig.catalogue.loaded("b"))
        for bad in ("model_config_list { nonsense", "", str(config_of()).strip() + "x"):
            path.write_text(bad)
            time.sleep(0.05)
            assert list(rig.catalogue.names) == ["a", "b"]
        assert "Error parsing text-format tensorflow.serving.ModelServerConfig" in caplog.text
        path.write_text(str(config_of(rig.model("b"))))
        rig.until(lambda: list(rig.catalogue.names) == ["b"])
    told = [r for r in caplog.records if "No such file" in r.getMessage()]
    assert len(told) == 1


class Stuck(FakeRuntime):
    """Loads of version 7 hang until `go`, as on a pipe."""

    def __init__(self):
        self.go = threading.Event()
        super().__init__(lambda path: self.go.wait() if path.name == "7" else None)


@pytest.fixture
def stuck():
    runtime = Stuck()
    yield runtime
    runtime.go.set()


def test_loads_that_never_end_fail_and_keep_no_other_from_being_loaded(root, stuck, caplog):
    settings = {**FAST, "threads": 2, "load_timeout_s": 0.2, "max_retries": 5}
    with Rig(root, "a", "b", runtime=stuck, **settings) as rig:
        for name in ("a", "b"):
            publish(root / name, 7)
        rig.until(lambda: all(rig.states(n).get(7) is VersionState.END for n in ("a", "b")))
        found = [status for name in ("a", "b") for status in rig.catalogue.statuses(name, 7)]
        assert {status.code for status in found} == {Code.DEADLINE_EXCEEDED}
        text = "the load has not ended after 0.2 s, its time limit; such loads: "
        assert sorted(status.message for status in found) == [f"{text}1", f"{text}2"]
        publish(root / "a", 8)
        rig.until(lambda: list(rig.catalogue.loaded("a")) == [8])
        shutil.rmtree(root / "b" / "7")
        publish(root / "b", 3)
        rig.until(lambda: list(rig.catalogue.loaded("b")) == [3])
        # A thread that hangs is not joined by others like it.
        assert [path.name for path in stuck.attempts].count("7") == 2
        assert sum("Cannot load version 7" in each for each in caplog.messages) == 2
        assert "; raise the time limit." in caplog.text


def test_a_load_that_ends_after_its_limit_serves_if_its_version_is_still_there(root, stuck):
    with Rig(root, "a", "b", runtime=stuck, **FAST, load_timeout_s=0.1) as rig:
        for name in ("a", "b"):
            publish(root / name, 7)
        rig.until(lambda: all(rig.states(n).get(7) is VersionState.END for n in ("a", "b")))
        rig.apply("a")
        stuck.go.set()
        rig.until(lambda: list(rig.catalogue.loaded("a")) == [7])
        assert rig.catalogue.statuses("a", 7)[0].code is Code.OK
        assert list(rig.catalogue.names) == ["a"]
        rig.until(lambda: [m.factor for m in stuck.loaded if not m.closed.is_set()] == [7.0])
        assert rig.catalogue.loaded("b") == {}


def test_the_start_waits_neither_for_retries_nor_for_missing_folders(root, caplog):
    def fail(path):
        if path.parent.name == "b":
            raise StatusError(Code.UNAVAILABLE, "not now")

    settings = {**FAST, "retry_s": 3600}
    with Rig(root, "a", "b", "none", runtime=FakeRuntime(fail), **settings) as rig:
        assert rig.ask("a") == (2, 2.0)
        assert rig.catalogue.unready() == ["b", "none"]
        assert rig.catalogue.statuses("b", 2)[0].message == "not now"
        with pytest.raises(
            StatusError, match=r"versions of model none: cannot read \.\.\./none: No "
        ):
            rig.catalogue.statuses("none")
        assert "Serving without b, none." in caplog.messages
        publish(root / "none", 1)
        rig.until(lambda: rig.catalogue.unready() == ["b"])


def test_nothing_to_serve_or_fail_fast_ends_the_start(root):
    shutil.rmtree(root / "b")
    for names, settings in ((("b",), FAST), (("a", "b"), {**FAST, "fail_fast": True})):
        rig = Rig(root, *names, **settings)
        rig.loader.start()
        with pytest.raises(UnservableError, match=r"cannot read .*/b"):
            rig.loader.wait_until_settled()
        rig.loader.stop()


def test_neither_a_load_nor_a_request_that_hangs_keeps_the_server_from_stopping(root, stuck):
    with Rig(root, "a", "b", runtime=stuck, **FAST) as rig:
        publish(root / "a", 7)
        rig.until(lambda: rig.states("a").get(7) is VersionState.LOADING)
        with contextlib.closing(Call(rig.catalogue.acquire(ModelSpec("b")))):
            began = time.monotonic()
            rig.loader.stop(0.2)
            assert time.monotonic() - began < 5
            assert sorted(m.closed.is_set() for m in stuck.loaded) == [False, True]
