import logging

import pytest

from bertjax.data import progress


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, logger="absl")
    return lambda: [record.getMessage() for record in caplog.records]


def test_time_left_counts_the_steps_since_the_last_line(lines, monkeypatch):
    clock = iter([100.0, 120.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    shown = progress.Progress("step", 1000, start=500, log_every_seconds=10.0)
    shown.show(600, lambda: "a")
    shown.show(610, lambda: "b")
    assert lines() == ["step 600/1000: a", "step 610/1000 [13:00 left]: b"]


def test_lines_are_rare_but_the_first_and_the_last_are_shown(lines):
    with progress.Progress("pairing", 50, unit=" blocks", log_every_seconds=1000.0) as shown:
        for count in range(51):
            shown.show(count, lambda: "a")
    assert lines() == ["pairing 0/50 blocks: a", "pairing 50/50 blocks [00:00 left]: a"]


def test_without_a_known_total_neither_total_nor_time_left_is_claimed(lines, monkeypatch):
    clock = iter([0.0, 20.0, 29.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with progress.Progress(
        "tokenizing", 0, unit="B", is_scaled=True, log_every_seconds=10.0
    ) as shown:
        for count in (1_000_000, 2_000_000, 3_000_000):  # no count is the last one
            shown.show(count, lambda: "a")
    assert lines() == ["tokenizing 1.00MB: a", "tokenizing 2.00MB: a"]


def test_on_a_terminal_it_is_a_bar(monkeypatch, capsys):
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: True, raising=False)
    with progress.Progress("tokenizing", 0, unit="B", is_scaled=True) as shown:
        shown.show(1_500_000, lambda: "3 documents")
    assert "tokenizing 1.50M/?B [" in (drawn := capsys.readouterr().err)
    assert drawn.rstrip().endswith("3 documents]")
