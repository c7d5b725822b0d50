"""Own lines in files to which several processes append."""

from __future__ import annotations

from timonel.engines.kubernetes.files.lines import missing_lines


def test_own_lines_are_found_among_equal_lines() -> None:
    # Of two equal lines of this process, one has arrived.
    assert missing_lines([b"a\na\n"], b"a\na\n", b"b\na\n") == (b"a\n", [(2, 4)])
    # The equal line that has arrived is that of another process.
    assert missing_lines([b"a\n"], b"a\nb\na\n", b"a\nb\n") == (b"a\n", [])
    assert missing_lines([b"a", b"b"], b"abc\n", b"a\nc\nb") == (b"", [(0, 2), (4, 5)])
