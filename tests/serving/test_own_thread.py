from __future__ import annotations

import gc
import threading
import time
from pathlib import Path

import pytest

from timonel.serving.own_thread import in_own_thread
from timonel.serving.runtimes.base import LoadedModel
from timonel.serving.status import StatusError, not_found

FOLDER = Path("m", "1")


class Remembering(LoadedModel):
    """Knows who loaded it."""

    def __init__(self, path):
        self.signatures = {}
        self.path = path
        self.thread = threading.current_thread()

    def run(self, signature, inputs, outputs=None):
        return {}

    def close(self):
        pass


def ended(thread):
    thread.join(10)
    return not thread.is_alive()


def test_a_version_is_loaded_in_a_thread_that_lasts_as_long_as_it_does():
    model = in_own_thread(Remembering)(FOLDER)
    thread = model.thread
    assert model.path == FOLDER
    assert thread is not threading.current_thread()
    model.close()
    time.sleep(0.1)
    assert thread.is_alive()
    del model
    assert ended(thread)


def test_a_version_that_refers_to_itself_ends_its_thread_when_it_is_collected():
    model = in_own_thread(Remembering)(FOLDER)
    thread = model.thread
    model.itself = model
    del model
    gc.collect()
    assert ended(thread)


def test_versions_that_are_in_memory_together_have_different_threads():
    load = in_own_thread(Remembering)
    models = [load(FOLDER) for _ in range(3)]
    assert len({model.thread for model in models}) == 3


def test_a_load_that_fails_leaves_no_thread():
    seen = []

    def load(path):
        seen.append(threading.current_thread())
        raise not_found(f"nothing in {path}")

    with pytest.raises(StatusError, match="nothing in m/1"):
        in_own_thread(load)(FOLDER)
    assert ended(seen[0])
