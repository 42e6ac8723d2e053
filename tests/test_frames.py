from __future__ import annotations

from repairability._frames import frame_of


def test_rows_become_a_frame() -> None:
    frame = frame_of([{"a": 1, "b": "x"}, {"a": 2, "b": "y"}])
    assert frame["a"].tolist() == [1, 2]
    assert list(frame.columns) == ["a", "b"]
