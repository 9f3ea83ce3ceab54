"""Claims about what a run notices: skipped steps, divergence, exact averages, faults that begin."""

import dataclasses
import types

import jax
import numpy as np
import pytest

from bertjax.tasks import metrics
from bertjax.training import monitor, state

PHASE = monitor.PhaseFacts(tokens_per_step=2048, flops_per_step=1e9)
NEXT_PHASE = dataclasses.replace(PHASE, tokens_per_step=4096)
POSITIONS = np.stack([np.full(10, 3), np.arange(40, 50)], axis=1)


class Lines:
    """Stands for the writer: keeps what it is given."""

    def __init__(self):
        self.scalar_lines, self.progress_lines = {}, {}
        self.notes = []

    def lines(self):
        return list(self.scalar_lines.values())

    def note(self, text):
        self.notes.append(text)

    def scalars(self, step, values):
        self.scalar_lines[step] = dict(values)

    def progress(self, step, values):
        self.progress_lines[step] = dict(values)


def make_monitor(*, last_checkpoint=None, progress=None, begun=None, **changes):
    options = {
        "objectives": {"mlm_loss": 1.0, "nsp_loss": 1.0},
        "log_every_steps": 4,
        "last_step": 1_000,
        "max_skipped_steps": 3,
        "plateau_check_step": 0,
        "peak_flops": None,
    } | changes
    lines = Lines()
    watch = monitor.Monitor(
        monitor.MonitorOptions(**options),
        lines,
        progress or monitor.Progress(),
        lambda: last_checkpoint,
        begun,
    )
    return watch, lines


def report(*, loss=1.0, weight=1.0, pair_loss=0.5, finite=True):
    means = {
        "mlm_loss": metrics.Mean(np.float32(loss * weight), np.float32(weight)),
        "nsp_loss": metrics.Mean(np.float32(pair_loss * 8), np.float32(8)),
    }
    return state.StepReport(means, np.float32(1e-3), np.float32(2.5), np.bool_(finite))


def run(watch, reports, first_step=1, phase=PHASE):
    for step, one in enumerate(reports, start=first_step):
        watch.submit(step, one, POSITIONS, phase)
    watch.flush()


BAD, GOOD = report(loss=np.nan, finite=False), report()


def test_the_last_step_has_a_line_of_what_came_since_the_line_before():
    watch, lines = make_monitor(last_step=102)
    run(watch, [GOOD] * 4 + [report(loss=2.0), report(loss=4.0)], first_step=97)
    assert list(lines.scalar_lines) == [100, 102]
    assert lines.scalar_lines[102]["train/mlm_loss"] == 3.0


def test_a_short_run_has_a_curve_and_a_long_one_the_lines_of_its_options():
    lines_of = {}
    for last_step, every in ((60, 100), (60, 2), (7, 100), (2_000, 100), (2_100, 100)):
        watch, lines = make_monitor(last_step=last_step, log_every_steps=every)
        run(watch, [GOOD] * last_step)
        lines_of[last_step, every] = [*lines.scalar_lines]
    assert lines_of[60, 100] == [1, *range(3, 61, 3)]
    assert lines_of[60, 2] == [*range(2, 61, 2)]
    assert lines_of[7, 100] == [*range(1, 8)]
    assert lines_of[2_000, 100] == [*range(100, 2_001, 100)]
    assert lines_of[2_100, 100] == [*range(100, 2_101, 100)]


def test_skipped_steps_are_counted_in_a_row_and_in_all():
    watch, lines = make_monitor()
    run(watch, [BAD, BAD, GOOD, BAD, BAD, GOOD, BAD, BAD])
    assert watch.progress.skipped == monitor.Skipped(in_a_row=2, total=6)
    assert [it["train/skipped_steps"] for it in lines.scalar_lines.values()] == [3, 6]


@pytest.mark.parametrize(
    ("last_checkpoint", "words"),
    [
        (None, "no checkpoint yet"),
        (0, "checkpoint: step 0. A run"),
        (50, "the newest checkpoint: step 50. A run diverges before"),
        (61, "checkpoint: step 61. A run"),
        (63, "the newest checkpoint: step 63, with the parameters of step 61"),
    ],
)
def test_too_many_skipped_steps_in_a_row_stop_the_run_and_say_where(last_checkpoint, words):
    watch, _ = make_monitor(last_checkpoint=last_checkpoint)
    with pytest.raises(monitor.DivergedError, match=f"finite loss was 61; .*{words}") as caught:
        run(watch, [GOOD, BAD, BAD, BAD], first_step=61)
    message = str(caught.value)
    assert "3 steps in a row up to step 64" in message
    assert "(shard:index) 3:40, 3:41, 3:42, 3:43, 3:44, 3:45, 3:46, 3:47, ..." in message
    assert "good" not in message and "config.max_skipped_steps" in message


def test_a_resumed_run_goes_on_counting():
    watch, _ = make_monitor(progress=monitor.Progress(monitor.Skipped(in_a_row=2, total=9)))
    with pytest.raises(monitor.DivergedError, match="3 steps in a row up to step 101"):
        run(watch, [BAD], first_step=101)
    assert watch.progress.skipped.total == 10


def test_averages_over_an_interval_are_weighted_means_of_its_finite_steps():
    rng = np.random.default_rng(0)
    losses, weights = rng.uniform(1, 9, 12), rng.integers(1, 40, 12)
    finite = np.array([1, 1, 0, 1, 1, 1, 1, 1, 0, 0, 1, 1], bool)
    watch, lines = make_monitor()
    run(
        watch,
        [
            report(loss=loss if ok else np.nan, weight=weight, finite=ok)
            for loss, weight, ok in zip(losses, weights, finite, strict=True)
        ],
    )
    assert sorted(lines.scalar_lines) == [4, 8, 12]
    for end in (4, 8, 12):
        window = slice(end - 4, end)
        expected = np.average(losses[window], weights=weights[window] * finite[window])
        line = lines.scalar_lines[end]
        np.testing.assert_allclose(line["train/mlm_loss"], expected, rtol=1e-6)
        np.testing.assert_allclose(line["train/nsp_loss"], 0.5, rtol=1e-6)
        np.testing.assert_allclose(line["train/loss"], expected + 0.5, rtol=1e-6)
        assert lines.progress_lines[end] == line


def test_the_steps_before_the_first_line_are_shown():
    watch, lines = make_monitor()
    run(watch, [report(loss=2.0), report(loss=4.0), *[GOOD] * 7])
    assert list(lines.progress_lines) == [1, 2, 3, 4, 8] and list(lines.scalar_lines) == [4, 8]
    assert lines.progress_lines[2]["train/loss"] == 3.5


def test_the_loss_of_a_line_is_the_sum_that_is_minimized():
    watch, lines = make_monitor(log_every_steps=2, objectives={"mlm_loss": 1.0, "nsp_loss": 0.25})
    run(watch, [report(loss=3.0, pair_loss=0.8)] * 2 + [BAD] * 2)
    assert lines.scalar_lines[2]["train/loss"] == pytest.approx(3.0 + 0.25 * 0.8)
    assert np.isnan(lines.scalar_lines[4]["train/loss"])
    assert lines.scalar_lines[4]["train/skipped_steps"] == 2


def test_steps_without_a_target_are_counted_and_give_no_nan(caplog):
    nothing = report(loss=0.0, weight=0.0)
    watch, lines = make_monitor(log_every_steps=2)
    run(watch, [GOOD, nothing, nothing, nothing, GOOD, GOOD])
    found = [lines.scalar_lines[step] for step in (2, 4, 6)]
    assert [line["train/steps_without_targets"] for line in found] == [1, 3, 3]
    assert [line.get("train/loss") for line in found] == [1.5, None, 1.5]
    assert "train/mlm_loss" not in found[1] and found[1]["train/nsp_loss"] == 0.5
    assert not np.isnan([value for line in found for value in line.values()]).any()
    assert caplog.text.count("Step 2 had nothing to predict for mlm_loss") == 1
    resumed = monitor.Progress.of_meta(watch.progress.to_meta())
    assert resumed.skipped.untaught == 3
    watch, lines = make_monitor()
    run(watch, [GOOD] * 4)
    assert "train/steps_without_targets" not in lines.scalar_lines[4]


def test_the_line_carries_the_numbers_of_its_step_and_utilization_where_the_peak_is_known():
    watch, lines = make_monitor(peak_flops=1e15)
    run(watch, [GOOD] * 8)
    line = lines.scalar_lines[8]
    assert line["train/learning_rate"] == pytest.approx(1e-3)
    assert line["train/grad_norm"] == 2.5
    assert line["perf/tokens_per_second"] * line["perf/step_seconds"] == pytest.approx(2048)
    utilization = 1e9 / line["perf/step_seconds"] / 1e15
    assert line["perf/model_flop_utilization"] == pytest.approx(utilization)
    unknown, lines = make_monitor()
    run(unknown, [GOOD] * 8)
    assert "perf/model_flop_utilization" not in lines.scalar_lines[8]


def clocked(monkeypatch, *seconds, **options):
    """A monitor whose clock shows these seconds, one at each look."""
    clock = types.SimpleNamespace(perf_counter=iter(seconds).__next__)
    monkeypatch.setattr(monitor, "time", clock)
    return make_monitor(**options)


def test_time_in_a_pause_is_no_step_time(monkeypatch):
    watch, lines = clocked(monkeypatch, 1.0, 2.0, 6.0, 10.0, 110.0, log_every_steps=2)
    run(watch, [GOOD, GOOD])  # starts at 1, writes at 2
    with watch.paused():  # 6 to 10
        pass
    run(watch, [GOOD, GOOD], first_step=3)  # writes at 110
    assert lines.scalar_lines[2]["perf/step_seconds"] == 1.0
    assert lines.scalar_lines[4]["perf/step_seconds"] == (108 - 4) / 2


def test_the_first_step_of_a_shape_is_not_timed_and_later_ones_are(monkeypatch):
    """Length buckets alternate; each is compiled once, and its own tokens are counted."""
    watch, lines = clocked(monkeypatch, 1.0, 2.0, 3.0, 7.0, log_every_steps=4)
    for step, phase in enumerate([PHASE, NEXT_PHASE, PHASE, NEXT_PHASE], start=1):
        watch.submit(step, GOOD, POSITIONS, phase)
    watch.flush()  # compiled at 1 and 2, written at 3
    assert lines.scalar_lines[4]["perf/step_seconds"] == (3.0 - 2.0) / 2
    assert lines.scalar_lines[4]["perf/tokens_per_second"] == 2048 + 4096


def test_padding_is_no_real_token(monkeypatch):
    watch, lines = clocked(monkeypatch, 1.0, 3.0, log_every_steps=3)
    for step, fill in enumerate([1.0, 0.75, 1.0], start=1):
        watch.submit(step, GOOD, POSITIONS, PHASE, fill)
    watch.flush()  # the first step compiles, up to 1
    assert lines.scalar_lines[3]["perf/tokens_per_second"] == 2048
    assert lines.scalar_lines[3]["perf/real_tokens_per_second"] == 1.75 * 2048 / 2


def test_examples_of_finetuning_are_named_by_their_numbers():
    watch, _ = make_monitor(max_skipped_steps=1)
    watch.submit(1, BAD, np.arange(5, 15), PHASE)
    with pytest.raises(monitor.DivergedError, match=r"examples 5, 6, 7, 8, 9, 10, 11, 12, \.\.\."):
        watch.flush()


def test_a_mark_is_of_the_first_step_with_its_words_and_is_known_before_the_next(monkeypatch):
    fetched = []
    device_get = jax.device_get
    monkeypatch.setattr(jax, "device_get", lambda it: fetched.append(it) or device_get(it))
    begun = monitor.Progress(words=5_000, word_marks={5_000: 7})
    watch, lines = make_monitor(
        progress=begun, word_marks=(5_000, 9_001, 9_002, 20_000), epochs=lambda step: step / 8
    )
    marked, waited = [], []
    for step in range(8, 13):
        one = dataclasses.replace(report(), words=np.int32(2_001))
        watch.submit(step, one, POSITIONS, PHASE)
        marked.append(watch.reaches_mark(step))
        waited.append(any(it is one for it in fetched))
    assert marked == [False, True, False, False, False]  # at 7,001, 9,002, 11,003, ... words
    assert waited == [False, True, False, False, False]  # 2,048 tokens may be as many words
    watch.flush()
    assert watch.progress.words == 15_005
    assert watch.progress.word_marks == {5_000: 7, 9_001: 9, 9_002: 9}
    assert monitor.Progress.of_meta(watch.progress.to_meta()) == dataclasses.replace(
        watch.progress, means=monitor.Progress.of_meta(watch.progress.to_meta()).means
    )
    assert lines.scalar_lines[12]["train/words"] == 15_005
    assert lines.scalar_lines[12]["train/epochs"] == 1.5


def test_a_report_is_fetched_one_step_late(monkeypatch):
    fetched = []
    original = jax.device_get
    monkeypatch.setattr(jax, "device_get", lambda tree: fetched.append(tree) or original(tree))
    watch, lines = make_monitor(log_every_steps=1)
    reports = [report(loss=step) for step in range(1, 4)]
    for step, one in enumerate(reports, start=1):
        watch.submit(step, one, POSITIONS, PHASE)
        assert fetched == reports[: step - 1]
        assert sorted(lines.scalar_lines) == list(range(1, step))
    watch.flush()
    watch.flush()  # there is nothing left to fetch
    assert fetched == reports and sorted(lines.scalar_lines) == [1, 2, 3]


def test_what_compiles_is_reported_once_for_each_batch_shape_and_taken_off_when_it_ran():
    begun = set()
    watch, lines = make_monitor(begun=begun)
    for step, phase in {0: PHASE, 1: PHASE, 2: NEXT_PHASE, 3: PHASE}.items():
        watch.begin(step, phase)
        watch.submit(step + 1, report(), POSITIONS, phase)
    watch.flush()
    first, second = "compiling step 1, 2,048 tokens", "compiling step 3, 4,096 tokens"
    begun_at_1, ended, took, begun_at_3, _, taken_off = lines.notes
    assert (begun_at_1, begun_at_3, taken_off) == (first, second, "")
    assert ended.endswith("s, step 1 runs")
    assert took.startswith("step 1 took ") and "999 more take" in took
    again, lines = make_monitor(begun=begun)  # another training of this process
    again.begin(0, PHASE)
    assert lines.notes == []


def test_a_fault_is_warned_of_each_time_it_appears_but_not_at_the_end(caplog):
    """The log of a run's end has all faults."""

    def faults(lines):
        loss = lines[-1]["train/mlm_loss"]
        return [("high", f"loss is {loss:g}")] if loss > 2 else []

    for check_step, at_steps in ((1, ["At step 2, high: loss is 3", "At step 5, high: loss is 4"]),
                                 (0, [])):  # fmt: skip
        caplog.clear()
        watch, _ = make_monitor(
            faults=faults, plateau_check_step=check_step, log_every_steps=1, last_step=7
        )
        run(watch, [report(loss=loss) for loss in (1.0, 3.0, 3.5, 1.0, 4.0, 1.0, 5.0)])
        assert caplog.messages == at_steps


def test_the_scores_of_an_evaluation_are_checked_at_once(caplog):
    watch, lines = make_monitor(faults=lambda lines: [("low", str(len(lines)))],
                                plateau_check_step=1)  # fmt: skip
    lines.scalars(7, {"eval/heldout/mlm_loss": 1.0})
    watch.evaluated(7)
    assert caplog.messages == ["At step 7, low: 1"]
