"""Versions that grow, are cut, replaced and removed on disk while clients ask."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.serving.hardening.harness import (
    SIZE,
    GrpcClient,
    RestClient,
    Usage,
    asking,
    publish,
    serving,
    settled,
    states,
)
from tests.serving.hardening.page import note
from tests.waiting import until

pytestmark = pytest.mark.soak

SWAPS = 200


def clients(server, each=2):
    return [make(server) for make in (RestClient, GrpcClient) for _ in range(each)]


def test_hot_swaps(workspace, m):
    with serving(workspace, "m") as server, asking(*clients(server)) as told:
        until(lambda: told.asked > 100)
        before = Usage.of(server)
        top = 1
        for step in range(SWAPS):
            if step % 4 == 3:
                # Roll back by delete.
                shutil.rmtree(m / str(top))
                top -= 1
            else:
                top += 1
                publish(m, top, factor=1 + top % 5)
            until(lambda top=top: states(server).get(top) == "AVAILABLE")
        until(lambda: list(states(server).values()).count("AVAILABLE") == 1)
        after = settled(server, before)
    assert told.failed == {}
    assert told.values.keys() == {1.0, 2.0, 3.0, 4.0, 5.0}
    assert after.processes == before.processes
    assert after.descriptors <= before.descriptors + 4
    assert after.mib < before.mib * 1.1 + 8
    note(
        f"{SWAPS} hot swaps and roll-backs, 4 clients",
        f"{told.asked} requests, 0 failed; p99 {told.p99_ms():.0f} ms; {before} before, "
        f"{after} after",
    )


def test_a_version_that_grows_slowly_is_loaded_once_it_is_whole(workspace, m):
    with serving(workspace, "m") as server, asking(*clients(server)) as told:
        for number in range(2, 6):
            version = m / str(number)
            (version / "variables").mkdir(parents=True)
            grown = told.asked
            with (version / "variables" / "data").open("wb", buffering=0) as data:
                for _ in range(SIZE):
                    data.write(b"\0")
                    until(lambda grown=grown: told.asked > grown)
                    grown = told.asked
            (version / "saved_model.pb").write_text(f"{number} {SIZE}")
            until(lambda number=number: states(server).get(number) == "AVAILABLE")
        assert "Cannot load" not in server.logs()
    assert told.failed == {}
    assert told.values.keys() == {1.0, 2.0, 3.0, 4.0, 5.0}
    note("4 versions written byte by byte", f"{told.asked} requests")


def test_versions_that_are_cut_replaced_and_removed(workspace, m):
    publish(m, 2, marked=False)
    with serving(workspace, "m") as server, asking(*clients(server)) as told:
        for number in range(2, 12):
            until(lambda number=number: states(server).get(number) == "AVAILABLE")
            # What is loaded does not look at its files again.
            os.truncate(m / str(number) / "variables" / "data", 1)
            (m / str(number) / "saved_model.pb").write_text("nonsense")
            shutil.rmtree(m / str(number))
            publish(m, number, factor=number, marked=False)
            # One that is cut before it was loaded costs nobody anything, and is loaded when mended.
            torn = m / str(number + 1)
            (torn / "variables").mkdir(parents=True)
            (torn / "saved_model.pb").write_text(f"{number + 1} {SIZE}")
            (torn / "variables" / "data").write_bytes(bytes(SIZE - 1))
            until(lambda number=number: states(server).get(number + 1) == "END")
            (torn / "variables" / "data").write_bytes(bytes(SIZE))
        until(lambda: states(server).get(12) == "AVAILABLE")
        # All at once: versions that are removed one by one are unloaded.
        m.rename(m.with_name("removed"))
        until(lambda: ": cannot read" in server.logs())
        asked = told.asked
        until(lambda: told.asked > asked + 100)
    assert told.failed == {}
    note(
        "10 versions cut, replaced, removed; then the folder",
        f"{told.asked} requests, 0 failed",
    )


def test_names_that_come_and_go_at_random(workspace, m):
    """Files for versions, links that lead nowhere or to themselves, pipes."""
    with serving(workspace, "m") as server, asking(*clients(server, each=1)) as told:
        for step in range(60):
            number = 100 + step
            kind = step % 5
            path = m / str(number)
            if kind == 0:
                path.write_text("a file")
            elif kind == 1:
                path.symlink_to(m / "nowhere")
            elif kind == 2:
                path.symlink_to(path)
            elif kind == 3:
                (path / "saved_model.pb").mkdir(parents=True)
            else:
                os.mkfifo(path)
            asked = told.asked
            until(lambda asked=asked: told.asked > asked + 20)
            if step % 2:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        publish(m, 1000)
        until(lambda: states(server).get(1000) == "AVAILABLE")
    assert told.failed == {}
    note("60 names that are no versions, fifos and loops among them", f"{told.asked} requests")
