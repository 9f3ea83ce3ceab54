"""The comparison of objectives at equal compute: `python -m benchmarks.objectives`."""

import dataclasses
import json
import sys

import numpy as np
import pytest

from benchmarks import objectives, pretraining_rows, report, workshop
from bertjax import config as config_lib
from bertjax import train
from bertjax.data import records
from bertjax.jobs import pretraining
from bertjax.training import config_faults, preemption
from tests import programs, stopping

pytestmark = pytest.mark.usefixtures("quick_runs")
SETTINGS = pretraining_rows.Settings()
PATHS = ["--corpus=text", "--heldout=text", "--pairs=pairs", "--glue=glue"]
ALL_ROWS = {**pretraining_rows.ROWS, **pretraining_rows.MODERN_ROWS}


def config_of(row):
    config = pretraining_rows.config_of(row, SETTINGS)
    config.data.train_dir = "records"
    return config


@pytest.mark.parametrize("name", ALL_ROWS)
def test_the_options_of_each_row_go_together(name):
    config_faults.validate(config_of(ALL_ROWS[name]))


def differing(one, other):
    pairs = zip(*(config_lib.flatten(config_of(row)) for row in (one, other)), strict=True)
    return {name: own for (name, own), (_, others) in pairs if own != others}


def test_a_modern_row_without_a_piece_has_berts_there_and_nothing_else():
    bert, modern = (pretraining_rows.MODERN_ROWS[name] for name in ("bert_2018", "modern"))
    for name, piece in pretraining_rows.PIECES.items():
        row = pretraining_rows.MODERN_ROWS[f"modern_without_{name}"]
        lost = differing(row, modern)
        assert lost.keys() == {*piece.options, *piece.of_settings}
        assert not lost.keys() & differing(row, bert).keys()
        assert (row.records == modern.records) == (not piece.records)
    records = pretraining_rows.RECORDS
    unpacked = records[pretraining_rows.MODERN_ROWS["modern_without_packing"].records]
    assert {**unpacked, "packing": "best_fit"} == records[modern.records]


def test_the_gated_feed_forward_has_about_as_many_parameters():
    for width in (16, 128, 256, 768):
        settings = dataclasses.replace(SETTINGS, hidden_size=width)
        assert abs(3 * settings.gated_intermediate_size - 8 * width) <= 3 * 4
        assert settings.gated_intermediate_size % 8 == 0


def flops_of_step(name):
    config = config_of(pretraining_rows.ROWS[name])
    config.model.vocab_size = SETTINGS.vocab_size
    config.model.dtype = "float32"
    task = pretraining.pretraining_task(config)
    return task.train_flops(SETTINGS.batch_size, SETTINGS.max_seq_length, 10)


def test_rows_have_the_steps_that_one_budget_pays_for():
    flops = {name: flops_of_step(name) for name in ("bert", "albert", "left_to_right", "electra")}
    assert flops["left_to_right"] > flops["bert"]
    for own in flops.values():
        steps = pretraining_rows.steps_within(SETTINGS.budget, own)
        assert abs(steps * own - SETTINGS.budget) <= own / 2
    with pytest.raises(ValueError, match=r"--budget is 4 FLOPs, but a step takes 10; give more"):
        pretraining_rows.steps_within(4.0, 10.0)


@pytest.mark.parametrize(
    ("shares", "cell"),
    [
        ([0.5, 0.6, 0.55, 0.75], "60.0 (50.0 to 75.0)"),
        ([0.5], "50.0"),
        ([None, 0.5, 0.7], "60.0 (50.0 to 70.0, 1 no number)"),
        ([None], "-, 1 no number"),
        ([], "-"),
    ],
)
def test_a_cell_has_the_mean_and_both_ends_of_all_seeds(shares, cell):
    found = [{"rte": {"values": shares[:2]}}, {"rte": {"values": shares[2:]}}, {"sst2": {}}]
    assert objectives.spread(objectives.scores_of(found, "rte")) == cell


def test_the_sample_of_pairs_bears_on_one_pretraining_and_its_spread_on_several():
    scored = {"accuracy": 0.5, "pairs": 100}
    assert objectives.pairs_cell([scored]) == "50.0 ± 5.0"
    assert objectives.pairs_cell([scored, {**scored, "accuracy": 0.6}]) == "55.0 (50.0 to 60.0)"


def test_the_table_has_a_line_for_each_row_that_is_there():
    done = {"parameters": 1000, "steps": 20, "flops": 3e12}
    done["scores"] = {"mlm_loss": 6.0, "unigram_loss": 6.5}
    found = {"bert": [{"pretrained": done, "pairs": {"accuracy": 0.5, "pairs": 100}}]}
    lines = objectives.equal_compute(pretraining_rows.ROWS, found, ["cola"]).splitlines()
    assert len(lines) == 3 and len({line.count("|") for line in lines}) == 1
    for cell in ("1,000", "20", "3.00e+12", "50.0 ± 5.0", "-", "mlm 6.00 (chance 6.50)"):
        assert f" {cell} |" in lines[-1]


def test_losses_of_one_text_stand_beside_that_of_modern_pretraining_by_pretraining():
    def seed(loss, **more):
        done = {"parameters": 1000, "steps": 20, "flops": 3e12, "tokens": 4000}
        held_out = {"mlm_loss": loss, "unigram_loss": 6.75}
        return {"pretrained": done, "held_out": held_out, **more}

    rows = pretraining_rows.MODERN_ROWS
    found = {
        "bert_2018": [seed(6.5, rte={"values": [0.5, 0.6]})],
        "modern": [seed(6.0), seed(7.0)],
        "modern_without_rotary": [seed(6.25), seed(6.5)],
        "modern_without_gated": [{"pretrained": seed(0.0)["pretrained"]}],
    }
    lines = objectives.modern(rows, found, ["rte"]).splitlines()
    shared = "1,000 | 20 | 3.00e+12 | 4,000"
    assert lines[2:] == [
        f"| BERT of 2018 | {shared} | 6.500 | +0.500 | 55.0 (50.0 to 60.0) |",
        f"| modern | {shared} | 6.500 (6.000 to 7.000) |  | - |",
        f"| modern, learnt positions | {shared} | 6.375 (6.250 to 6.500) | "
        "-0.125 (-0.500 to +0.250) | - |",
        f"| modern, plain feed-forward | {shared} | - | - | - |",
        "| tokens' frequencies |  |  |  |  | 6.750 |  |  |",
    ]


def test_a_workdir_of_other_settings_is_refused_and_may_be_given_a_path_later(tmp_path):
    def begin(**changes):
        shop = workshop.Workshop(str(tmp_path), dataclasses.replace(SETTINGS, **changes))
        shop.begin()

    begin()
    with pytest.raises(ValueError, match=r"--batch_size is 7; there it is 32\nGive those to go on"):
        begin(batch_size=7)
    path = tmp_path / workshop.SETTINGS_FILE
    kept = json.loads(path.read_text())
    del kept["batch_size"]  # of a version that did not have it yet
    path.write_text(json.dumps(kept))
    begin(glue="glue")
    assert workshop.Workshop.existing(str(tmp_path)).settings.glue == "glue"
    with pytest.raises(ValueError, match="--glue is ''; there it is 'glue'"):
        begin()


def test_work_done_with_other_options_is_refused(tmp_path):
    shop = workshop.Workshop(str(tmp_path), SETTINGS)
    row, where = pretraining_rows.ROWS["bert"], shop.of_row("bert", 0)
    where.mkdir(parents=True)
    workshop.finish({"made_of": row.made_of}, where, "pretrained")
    workshop.finish({"made_of": {}, "values": [0.5]}, where, "cola")
    shop.pretrain("bert", row, 0)
    shop.finetune("bert", 0, "cola", {}, 1)
    changed = dataclasses.replace(row, options={"pretraining.masked_lm_prob": 0.2})
    with pytest.raises(ValueError, match=r"pretrained.json was made with .*prob': 0.2} now"):
        shop.pretrain("bert", changed, 0)
    assert objectives.results(shop, {"bert": row}).keys() == {"bert"}
    with pytest.raises(ValueError, match=r"pretrained.json was made with .*prob': 0.2} now"):
        objectives.results(shop, {"bert": changed})  # --only_table shows no stale row
    with pytest.raises(ValueError, match=r"cola.json was made with {}, and would be made with {"):
        shop.finetune("bert", 0, "cola", {"finetuning.pooling": "mean"}, 1)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--rows=bert,nsp"], "--rows has nsp; known are bert, no_nsp"),
        (["--tasks=cola,mnlii"], "--tasks has mnlii; known are mnli"),
        (["--glue="], "what is read must be given: --glue: the directory"),
        (["--modern", "--rows=bert"], "--rows has bert; known are bert_2018, modern, modern_with"),
    ],
)
def test_wrong_options_are_refused(flags, message, capsys):
    with pytest.raises(SystemExit):
        objectives.parse(["--workdir=x", *PATHS, *flags])
    assert message in capsys.readouterr().err


def test_the_page_has_a_place_for_each_table():
    page = objectives.PAGE.read_text()
    for name in objectives.COMPARISONS:
        assert f"<!-- {name}: begin -->" in page and f"<!-- {name}: end -->" in page


def test_a_table_takes_the_place_of_the_one_before(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- t: begin -->\nold\n<!-- t: end -->\nb\n")
    report.write_marked(page, "t", "new")
    assert page.read_text() == "a\n<!-- t: begin -->\nnew\n<!-- t: end -->\nb\n"
    with pytest.raises(ValueError, match="has no place for the table: <!-- u: begin -->"):
        report.write_marked(page, "u", "new")


# Two rows from text to the table.


@pytest.fixture
def in_this_process(monkeypatch):
    """Runs the programs of data_pipelines here, where their libraries are imported already."""

    start = workshop.subprocess.run

    def run(command, **options):
        if command[:2] != [sys.executable, "-m"]:
            return start(command, **options)
        return programs.succeed(*command[2:])

    monkeypatch.setattr(workshop.subprocess, "run", run)


def write_data(directory):
    """Writes novels, minimal pairs and a CoLA of a small language; returns the flags of all."""
    text = "the a old young man woman dog cat saw heard loved lost house garden"
    words = text.split(" ")
    rng = np.random.default_rng(0)
    documents = [
        "".join(f"{' '.join(rng.choice(words, 9))}.\n" for _ in range(12)) for _ in range(30)
    ]
    (directory / "train.txt").write_text("\n".join(documents[:24]))
    (directory / "heldout.txt").write_text("\n".join(documents[24:]))
    pairs = [
        {"sentence_good": f"the {noun} saw", "sentence_bad": f"the saw {noun}", "UID": uid}
        for uid in ("first", "second")
        for noun in ("man", "dog", "cat")
    ]
    (directory / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    cola = directory / "glue" / "CoLA"
    cola.mkdir(parents=True)
    rows = [f"x\t{n % 2}\t\tthe {'man saw' if n % 2 else 'saw man'}\n" for n in range(40)]
    (cola / "train.tsv").write_text("".join(rows))
    (cola / "dev.tsv").write_text("".join(rows[:10]))
    paths = {"corpus": "train.txt", "heldout": "heldout.txt"}
    paths |= {"pairs": "pairs.jsonl", "glue": "glue"}
    return [f"--{name}={directory / path}" for name, path in paths.items()]


SMALL_MODEL = [
    *("--vocab_size=90", "--hidden_size=16", "--num_layers=1", "--num_heads=2", "--batch_size=8"),
    *("--max_seq_length=16", "--budget=4e7", "--narrow_embedding_size=8", "--heldout_sequences=8"),
]
SMALL = [
    *(*SMALL_MODEL, "--pairs_per_paradigm=2", "--most_examples=40"),
    *("--seeds=1", "--tasks=cola", "--finetuning_epochs=1", "--rows=bert,masks_30"),
]


@pytest.mark.slow
@pytest.mark.usefixtures("one_device", "in_this_process")
def test_what_is_done_is_not_done_again_whatever_interrupts(tmp_path, monkeypatch, capsys):
    argv = [f"--workdir={tmp_path / 'run'}", *write_data(tmp_path), *SMALL]
    rows = tmp_path / "run" / "rows"
    with stopping.signal_after(3):
        assert objectives.main(argv) == preemption.EXIT_CODE
    assert not [*rows.glob("*/*/pretrained.json")]
    begun = json.loads((rows / "bert/seed_0/pretraining/config.json").read_text())

    first_steps = []
    submit = train.monitor.Monitor.submit
    monkeypatch.setattr(
        train.monitor.Monitor,
        "submit",
        lambda self, step, *rest: (first_steps.append(step), submit(self, step, *rest))[1],
    )
    assert objectives.main(argv) == 0
    assert first_steps[0] == 4  # it went on
    assert json.loads((rows / "bert/seed_0/pretraining/config.json").read_text()) == begun
    shown = capsys.readouterr().out
    (bert,) = [line for line in shown.splitlines() if line.startswith("| BERT")]
    (more_masks,) = [line for line in shown.splitlines() if line.startswith("| 30% masks")]
    for path in rows.glob("*/*/pretrained.json"):
        done = json.loads(path.read_text())
        assert abs(done["flops"] - 4e7) <= done["flops"] / done["steps"] / 2
    assert " - |" not in bert + more_masks  # every cell has its score

    def never(*_, **__):
        raise AssertionError("done twice")

    for module, name in (
        (workshop.train, "train"),
        (workshop.evaluate, "evaluate_pairs"),
        (workshop.interactive, "run"),
        (workshop.subprocess, "run"),
    ):
        monkeypatch.setattr(module, name, never)
    assert objectives.main(argv) == 0
    table = [line for line in shown.splitlines() if line.startswith("|")]
    assert table == [it for it in capsys.readouterr().out.splitlines() if it.startswith("|")]
    assert objectives.main([*argv, "--batch_size=32"]) == 1
    assert "--batch_size is 32; there it is 8" in capsys.readouterr().err
    assert objectives.main([f"--workdir={tmp_path / 'run'}", "--only_table", "--tasks=cola"]) == 0


@pytest.mark.weekly
@pytest.mark.usefixtures("one_device", "in_this_process")
def test_modern_rows_are_scored_on_the_same_masked_text(tmp_path, monkeypatch, capsys):
    rows = ("bert_2018", "modern")
    flags = ["--modern", f"--rows={','.join(rows)}", "--tasks=", *SMALL_MODEL]
    argv = [f"--workdir={tmp_path / 'run'}", *write_data(tmp_path), *flags]
    scored = []
    evaluate = workshop.evaluate.evaluate_checkpoint
    monkeypatch.setattr(
        workshop.evaluate,
        "evaluate_checkpoint",
        lambda run, data, **rest: (scored.append((run, data)), evaluate(run, data, **rest))[1],
    )
    assert objectives.main(argv) == objectives.main(argv) == 0
    done = tmp_path / "run" / "rows"
    assert [run for run, _ in scored] == [done / f"{row}/seed_0/pretraining" for row in rows]
    (held_out,) = {data for _, data in scored}
    manifest = records.Manifest.load(held_out)
    assert manifest.has_static_masks and manifest.arguments["masked_lm_prob"] == 0.15
    own = {row: json.loads((done / row / "seed_0/held_out.json").read_text()) for row in rows}
    assert {it["examples"] for it in own.values()} == {manifest.num_examples}
    losses = {row: it["mlm_loss"] for row, it in own.items()}
    table = [it for it in capsys.readouterr().out.splitlines() if it.startswith("|")]
    above = losses["bert_2018"] - losses["modern"]
    assert f"| {losses['bert_2018']:.3f} | {above:+.3f} |" in table[2]
