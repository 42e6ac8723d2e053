from __future__ import annotations

import sys
import time

import pytest

from repairability import progress


def test_silent_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(progress.track(range(3), "x")) == [0, 1, 2]
    assert capsys.readouterr() == ("", "")


def test_a_bar_on_a_terminal_after_a_while(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(progress, "_PATIENCE", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    for _ in progress.track(range(3), "measuring", 3):
        time.sleep(0.01)
    assert "measuring" in capsys.readouterr().err


def test_quick_work_shows_none(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert len(list(progress.track(range(3), "measuring", 3))) == 3
    assert capsys.readouterr().err == ""


def test_a_live_bar_is_told_how_far_things_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with progress.live("sweeping") as update:
        update(1, 3, "failed 1")
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress.live("sweeping") as update:
        update(1, 3, "failed 1")
    shown = capsys.readouterr().err
    assert "sweeping" in shown
    assert "failed 1" in shown
