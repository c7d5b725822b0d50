from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from timonel.engines.agent.heartbeat import Heartbeat, read_beat, read_progress, steps_of


def watched(
    heartbeat: Heartbeat,
    seconds: int,
    beat: int | None,
    progress: str | None = None,
    begin: int = 0,
) -> list[str | None]:
    """Look once a second at a task that gives the same signs all the time."""
    return [heartbeat.observe(float(now), beat, progress) for now in range(begin, begin + seconds)]


def test_a_beat_that_stops_is_noticed_after_its_timeout() -> None:
    heartbeat = Heartbeat(hang_timeout_s=8)
    assert set(watched(heartbeat, 9, beat=1)) == {None}
    assert heartbeat.observe(9, 1, None) == "no sign of life for 9.0 s"
    assert heartbeat.observe(10, 2, None) is None


def test_steps_that_stop_are_noticed_while_the_heart_beats() -> None:
    heartbeat = Heartbeat(hang_timeout_s=8, stall_timeout_s=5)
    assert [heartbeat.observe(float(now), now + 1, "17") for now in range(6)] == [None] * 6
    assert heartbeat.observe(6, 9, "17") == "no step for 6.0 s, the last was 17"
    assert heartbeat.observe(7, 10, "3") is None


def test_who_gave_no_sign_yet_is_not_watched() -> None:
    heartbeat = Heartbeat(hang_timeout_s=1, stall_timeout_s=1)
    assert set(watched(heartbeat, 20, beat=None)) == {None}
    assert set(watched(heartbeat, 20, beat=None, progress="", begin=20)) == {None}


def test_work_without_steps_is_not_a_stall() -> None:
    heartbeat = Heartbeat(stall_timeout_s=2)
    watched(heartbeat, 2, beat=1, progress="12")
    assert set(watched(heartbeat, 20, beat=1, progress="12 resting", begin=2)) == {None}
    assert set(watched(heartbeat, 2, beat=1, progress="12", begin=22)) == {None}


def test_a_watcher_that_was_held_up_itself_starts_anew() -> None:
    heartbeat = Heartbeat(hang_timeout_s=8, stall_timeout_s=8)
    watched(heartbeat, 5, beat=1, progress="1")
    assert heartbeat.observe(4000, 1, "1") is None
    assert heartbeat.silent_s(4000) == 5
    assert heartbeat.observe(4003, 1, "1") is None
    assert heartbeat.observe(4004, 1, "1") is not None


def test_who_computes_is_alive_without_a_beat() -> None:
    heartbeat = Heartbeat(hang_timeout_s=8)
    assert {heartbeat.observe(float(now), 1, None, cpu_s=now * 0.5) for now in range(30)} == {None}
    # Threads that only wait take some processor time as well.
    found = [heartbeat.observe(float(now), 1, None, cpu_s=15 + now * 0.05) for now in range(30, 45)]
    assert found[-1] is not None


@given(
    st.floats(0.1, 100),
    st.lists(st.tuples(st.floats(0.01, 1), st.booleans()), min_size=1, max_size=60),
)
def test_a_task_that_beats_often_enough_is_never_hung(
    timeout_s: float, looks: list[tuple[float, bool]]
) -> None:
    heartbeat = Heartbeat(hang_timeout_s=timeout_s)
    now, beat, beaten_at = 0.0, 1, 0.0
    heartbeat.observe(now, beat, None)
    for passed_s, beats in looks:
        now += passed_s * timeout_s / 4
        if beats:
            beat, beaten_at = beat + 1, now
        verdict = heartbeat.observe(now, beat, None)
        # Times are sums of floats.
        assert verdict is None or now - beaten_at > timeout_s * 0.999


def test_what_a_task_says_is_read_from_its_folder(tmp_path: Path) -> None:
    assert read_beat(tmp_path) is None
    assert read_progress(tmp_path) is None
    (tmp_path / "alive").touch()
    (tmp_path / "progress").write_text("120 resting\n")
    assert read_beat(tmp_path)
    assert steps_of(read_progress(tmp_path)) == 120
    assert [steps_of(text) for text in (None, "", "many", "3.5")] == [None, None, None, 3.5]
