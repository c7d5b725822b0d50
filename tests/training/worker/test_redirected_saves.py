"""Saving outside the chief, with the real Kerases: nothing appears at the script's own paths."""

from __future__ import annotations

import importlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from timonel.training.cluster import Cluster
from timonel.training.worker import redirected_saves
from timonel.training.worker.redirected_saves import SavedCopies
from timonel.training.worker.state import callback_state

pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file"),
]


@pytest.fixture(params=["keras", "tf_keras"])
def keras(request):
    return importlib.import_module(request.param)


@pytest.fixture
def here(tmp_path, monkeypatch):
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def task(tmp_path):
    return tmp_path / "task" / "scratch"


def model_of(keras):
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2)])
    model.compile("sgd", keras.losses.MeanSquaredError())
    return model


def same(model, other):
    pairs = zip(model.get_weights(), other.get_weights(), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


def names_in(folder: Path):
    return sorted(str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file())


def test_models_are_saved_and_loaded_in_the_scratch_folder(keras, here, task):
    model = model_of(keras)
    with redirected_saves.redirected(keras, task):
        model.save("a.keras")
        model.save(filepath=Path("deep/b.keras"))
        keras.models.save_model(model, "c.h5")
        model.save_weights("d.weights.h5")
        for path in ("a.keras", here / "deep" / "b.keras", "c.h5"):
            assert same(model, keras.models.load_model(path))
        other = model_of(keras)
        other.load_weights("d.weights.h5")
        assert same(model, other)
        assert names_in(here) == []
        assert len(names_in(task)) == 4
    assert not task.exists()
    model.save("a.keras")
    assert names_in(here) == ["a.keras"]


def test_what_the_task_has_not_saved_is_read_where_it_is(keras, here, task):
    model = model_of(keras)
    model.save("a.keras")
    with redirected_saves.redirected(keras, task):
        assert same(model, keras.models.load_model("a.keras"))
        changed = model_of(keras)
        changed.save("a.keras")
        assert same(changed, keras.models.load_model("a.keras"))
    assert same(model, keras.models.load_model("a.keras"))


def test_saved_models_and_checkpoints(here, task):
    import keras
    import tensorflow as tf

    module = tf.Module()
    module.v = tf.Variable(1.0)
    with redirected_saves.redirected(keras, task):
        tf.saved_model.save(module, "exported")
        assert tf.saved_model.load("exported").v == 1
        model_of(keras).export("served", verbose=False)
        manager = tf.train.CheckpointManager(tf.train.Checkpoint(v=module.v), "kept", max_to_keep=1)
        for value in range(3):
            module.v.assign(value)
            path = manager.save()
        assert path == manager.latest_checkpoint == "kept/ckpt-3"
        module.v.assign(9)
        tf.train.Checkpoint(v=module.v).restore(path).assert_consumed()
        assert module.v == 2
        prefix = tf.train.Checkpoint(v=module.v).write(str(here / "one"))
        assert prefix == str(here / "one")
        assert names_in(here) == []


def test_a_worker_lists_and_deletes_checkpoints_in_its_scratch_folder(here, task):
    """The chief has saved once, and is late with its second checkpoint."""
    import keras
    import tensorflow as tf

    kept, v = str(here / "kept"), tf.Variable(0.0)

    def manager():
        return tf.train.CheckpointManager(tf.train.Checkpoint(v=v), kept, max_to_keep=1)

    chief = manager().save()
    before = {name: (here / name).read_bytes() for name in names_in(here)}
    with redirected_saves.redirected(keras, task):
        worker = manager()
        assert tf.train.latest_checkpoint(kept) == worker.latest_checkpoint == chief
        v.assign(2)
        second = worker.save(checkpoint_number=2)
        assert second == f"{kept}/ckpt-2"
        assert tf.train.latest_checkpoint(kept) == second
        assert list(tf.train.get_checkpoint_state(kept).all_model_checkpoint_paths) == [second]
        assert manager().checkpoints == [second]
        worker.save(checkpoint_number=3)
        v.assign(9)
        tf.train.Checkpoint(v=v).restore(tf.train.latest_checkpoint(kept)).assert_consumed()
        assert v == 2
        assert {name: (here / name).read_bytes() for name in names_in(here)} == before
        held = {Path(name).name for name in names_in(task)}
        assert held == {"checkpoint", "ckpt-3.index", "ckpt-3.data-00000-of-00001"}
        with redirected_saves.suspended():
            assert tf.train.latest_checkpoint(kept) == chief
    assert tf.train.latest_checkpoint(kept) == chief


def test_a_plain_checkpoint_leaves_the_real_list_alone(here, task):
    import keras
    import tensorflow as tf

    saved = tf.train.Checkpoint(v=tf.Variable(0.0))
    with redirected_saves.redirected(keras, task):
        assert saved.save("kept/a") == tf.train.latest_checkpoint("kept") == "kept/a-1"
    assert names_in(here) == []
    assert tf.train.latest_checkpoint("kept") is None


def test_files_that_are_open_are_the_scripts_own_business(here, task):
    import keras

    with redirected_saves.redirected(keras, task):
        opened = io.BytesIO()
        assert SavedCopies(task).for_writing(opened) is opened


def test_callbacks_write_to_the_scratch_folder(keras, here, task):
    x, y = np.ones((4, 3), np.float32), np.ones((4, 2), np.float32)
    callbacks = [
        keras.callbacks.CSVLogger("log.csv"),
        keras.callbacks.ModelCheckpoint("kept/{epoch}.keras"),
        keras.callbacks.BackupAndRestore("backup/", delete_checkpoint=False),
    ]
    model = model_of(keras)
    with redirected_saves.redirected(keras, task):
        if keras.__name__ == "tf_keras":
            callbacks.pop()  # keeps tasks apart by the strategy
        with redirected_saves.redirected_callbacks(keras, callbacks):
            model.fit(x, y, epochs=2, verbose=0, callbacks=callbacks)
            own = vars(callbacks[0])["filename"]
            callbacks[0].filename = "the chief's"
            saved, _ = callback_state.capture(callbacks)
            callbacks[0].filename = own
            callback_state.restore(callbacks, saved)
            assert vars(callbacks[0])["filename"] == own
        assert callbacks[0].filename == "log.csv"
        assert same(model, keras.models.load_model("kept/2.keras"))
        written = " ".join(names_in(task))
        assert "log.csv" in written
        if keras.__name__ == "keras":
            assert "backup/latest.weights.h5" in written
            assert callbacks[-1].backup_dir == "backup/"
    assert names_in(here) == []


def test_tensorboard_has_a_folder_for_each_task(here, task):
    import keras

    board = keras.callbacks.TensorBoard("board")
    with redirected_saves.redirected(keras, task):
        with redirected_saves.redirected_callbacks(keras, [board]):
            assert Path(board.log_dir).is_relative_to(task)
        assert board.log_dir == "board"


def test_a_backup_is_restored_by_every_task_and_changed_by_none(here, task):
    import keras

    x, y = np.ones((4, 3), np.float32), np.ones((4, 2), np.float32)
    model = model_of(keras)
    backup = keras.callbacks.BackupAndRestore("backup", delete_checkpoint=False)
    model.fit(x, y, epochs=1, verbose=0, callbacks=[backup])
    before = {name: (here / name).read_bytes() for name in names_in(here)}
    again = [keras.callbacks.BackupAndRestore("backup")]
    with (
        redirected_saves.redirected(keras, task),
        redirected_saves.redirected_callbacks(keras, again),
    ):
        history = model_of(keras).fit(x, y, epochs=3, verbose=0, callbacks=again)
    assert history.epoch == [1, 2]
    assert {name: (here / name).read_bytes() for name in names_in(here)} == before


def test_old_copies_are_deleted_beyond_the_budget(here, task, monkeypatch):
    monkeypatch.setattr(redirected_saves, "_BUDGET_BYTES", 25)
    found = SavedCopies(task)
    for name in ("ckpt-1", "ckpt-10", "ckpt-2"):
        copy = Path(found.for_writing(name))
        for suffix in (".index", ".data-0"):
            copy.with_name(copy.name + suffix).write_bytes(b"12345")
        found.note_written(copy)
    kept = [name for name in ("ckpt-1", "ckpt-10", "ckpt-2") if found.for_reading(name) != name]
    assert kept == ["ckpt-10", "ckpt-2"]


def test_a_copy_of_another_name_is_not_read(here, task):
    found = SavedCopies(task)
    copy = Path(found.for_writing("final.keras"))
    copy.write_bytes(b"1")
    found.note_written(copy)
    assert found.for_reading("final") == "final"
    assert found.for_reading("final.keras") == str(copy)


@pytest.mark.parametrize("path", ["gs://bucket/model.keras", "/absolute/m.keras", "../up.keras"])
def test_every_path_has_a_copy_of_its_own(here, task, path):
    found = SavedCopies(task)
    copy = Path(found.for_writing(path))
    assert copy.is_relative_to(task)
    assert copy.parent.is_dir()
    assert found.for_writing(str(copy)) == str(copy)
    assert copy != Path(found.for_writing("model.keras"))


TASKS = {"chief": ("localhost:1",), "worker": ("localhost:2",)}
ORIGINAL = tf.data.Dataset.cache


@pytest.fixture(autouse=True)
def _original_cache() -> Iterator[None]:
    yield
    tf.data.Dataset.cache = ORIGINAL


def numbers(place: Path) -> Any:
    return tf.data.Dataset.range(4).cache(str(place))


def test_what_a_killed_task_was_writing_is_written_anew(tmp_path: Path) -> None:
    lock = tmp_path / "c_0.lockfile"
    lock.touch()
    redirected_saves.separate_caches(Cluster(TASKS, "chief", 0, generation=1))
    with pytest.raises(tf.errors.AlreadyExistsError, match="lockfile already exists"):
        list(numbers(tmp_path / "c"))  # a first generation's may be somebody else's
    lock.touch()
    redirected_saves.separate_caches(Cluster(TASKS, "chief", 0, generation=2))
    assert list(numbers(tmp_path / "c").as_numpy_iterator()) == [0, 1, 2, 3]
    assert list(numbers(tmp_path / "c").as_numpy_iterator()) == [0, 1, 2, 3]


def test_each_task_has_a_file_of_its_own(tmp_path: Path) -> None:
    begun = iter(numbers(tmp_path / "c"))
    next(begun)
    redirected_saves.separate_caches(Cluster(TASKS, "worker", 0))
    assert len(list(numbers(tmp_path / "c"))) == 4
    assert (tmp_path / "c-worker-0.index").exists()
    assert len(list(tf.data.Dataset.range(3).cache())) == 3
