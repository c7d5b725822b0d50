"""API keys: made, recognised, kept as hashes, followed in their file."""

from __future__ import annotations

import hashlib
import json
import threading

import pytest

from timonel.errors import CorruptError, NotFoundError
from timonel.serving.auth.keys import (
    Keyring,
    change_entries,
    from_body,
    new_key,
    read_entries,
    to_body,
    watched_keys,
)
from timonel.serving.auth.reloaded_file import LOOK_S
from timonel.serving.settings.auth import Right


def test_a_key_is_recognised_until_it_expires():
    key, entry = new_key("ci", now=100.0, expires=200.0)
    ring = Keyring([entry])
    assert ring.recognise(key, 199.9) == Right.USE
    assert ring.recognise(key, 200.0) is None


def test_keys_are_long_and_never_the_same():
    keys = {new_key("n", now=0.0)[0] for _ in range(50)}
    assert len(keys) == 50
    assert all(len(key.split("_", 2)[2]) >= 43 for key in keys)


def test_what_is_no_key():
    key, entry = new_key("ci", now=0.0)
    _, other = new_key("ci", now=0.0)
    ring = Keyring([entry, other])
    start, _, secret = key.rpartition("_")
    wrong = [
        "", "tml_", key[:-1], key + "x", f"{start}_", secret, key.removeprefix("tml_"),
        f"tml_{other.id}_{secret}", "tml_nobody_x", "\udc80", f"{start}_\udc80",
        f"tml_{entry.id}_{entry.sha256}",
    ]  # fmt: skip
    assert [text for text in wrong if ring.recognise(text, 0.0)] == []
    assert ring.recognise(key, 0.0)


def test_the_file_holds_hashes_only(tmp_path):
    path = tmp_path / "keys.json"
    key, entry = new_key("ci", now=1.0)
    change_entries(path, lambda entries: [*entries, entry])
    text = path.read_text()
    secret = key.split("_", 2)[2]
    assert secret not in text
    assert path.stat().st_mode & 0o777 == 0o600
    content = json.loads(text)
    assert (content["kind"], content["format"]) == ("api-keys", 2)
    stored = content["keys"][0]
    assert stored["sha256"] == hashlib.sha256(f"{stored['salt']}:{secret}".encode()).hexdigest()
    assert read_entries(path) == (entry,)


def test_entries_survive_being_written():
    entries = (
        new_key("a", now=1.0, expires=2.0)[1],
        new_key("b", Right.ADMIN, now=3.0)[1],
    )
    assert from_body(json.loads(json.dumps(to_body(entries))), "x") == entries


def _bodies():
    good = to_body([new_key("a", now=1.0)[1]])["keys"][0]
    yield {}
    yield {"keys": None}
    yield {"keys": [3]}
    yield {"keys": [good, good]}
    for change in (
        {"id": ""}, {"id": 3}, {"name": None}, {"right": "all"}, {"sha256": None},
        {"sha256": "zz"}, {"sha256": "00"}, {"salt": None}, {"expires": "x"},
        {"salt": None, "sha256": None, "certificate": "robot.example"},
    ):  # fmt: skip
        yield {"keys": [good | change]}


@pytest.mark.parametrize("body", list(_bodies()))
def test_damaged_files_are_refused(body):
    with pytest.raises(CorruptError, match=r"keys\.json holds"):
        from_body(body, "keys.json")


def test_two_who_add_keys_at_once_both_keep_theirs(tmp_path):
    path = tmp_path / "keys.json"

    def add(number):
        entry = new_key(str(number), now=0.0)[1]
        change_entries(path, lambda entries: [*entries, entry])

    threads = [threading.Thread(target=add, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {entry.name for entry in read_entries(path)} == set(map(str, range(8)))


def test_a_server_follows_the_file(tmp_path, caplog):
    path = tmp_path / "keys.json"
    with pytest.raises(NotFoundError):
        watched_keys(path)
    key, entry = new_key("ci", now=0.0)
    change_entries(path, lambda _: [entry])
    watched = watched_keys(path)
    now = 0.0

    def is_known():
        nonlocal now
        now += LOOK_S
        return watched.refreshed(now).recognise(key, 0.0) is not None

    assert is_known()
    change_entries(path, lambda _: [])
    assert watched.refreshed(now).recognise(key, 0.0), "looked again within a second"
    assert not is_known()
    change_entries(path, lambda _: [entry])
    assert is_known()
    path.write_text("torn")
    assert is_known()
    assert "the previous ones stay valid" in caplog.text
    path.write_text("")
    assert not is_known()
    path.unlink()
    assert not is_known()


def test_a_file_of_an_endpoint_is_refused_with_the_cure(tmp_path):
    path = tmp_path / "keys.txt"
    path.write_text("shop=0123456789abcdef\n")
    with pytest.raises(CorruptError, match="client=key are for 'timonel deploy'") as caught:
        read_entries(path)
    assert "make one with 'timonel keys create NAME --file FILE'" in str(caught.value)
    assert "0123456789abcdef" not in str(caught.value)
