"""Claims about the model card: what the run tells stands in it, and nothing else."""

import dataclasses
import json

import huggingface_hub
import jax
import pytest

from bertjax.convert import model_card, workdir
from bertjax.workdirs import reader
from configs import smoke
from tests import small_records, small_runs
from tests.convert import weights


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run before its first step, evaluated."""
    root = tmp_path_factory.mktemp("card")
    config = smoke.get_config()
    config.data.source = "records"
    config.data.train_dir = str(small_records.write(root / "secret_train"))
    config.model.update(vocab_size=0, hidden_size=32, num_hidden_layers=2, intermediate_size=64)
    config.model.num_attention_heads = 4
    config.global_batch_size = 8
    config.phases.phase1.update(num_steps=2, max_seq_length=16)
    config.schedule.update(peak_learning_rate=3e-3, warmup_steps=1)
    with pytest.MonkeyPatch.context() as monkeypatch:
        devices = jax.local_devices()[:1]
        monkeypatch.setattr(jax, "devices", lambda: devices)
        small_runs.untrained(config, root / "run")
    line = {"step": 0, "eval/heldout/mlm_loss": 4.5, "eval/heldout/unigram_loss": 4.25}
    (root / "run" / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    return root / "run"


def test_a_card_tells_the_recipe_the_data_and_the_scores(run):
    found = reader.read(run)
    made, told = workdir.weights_of(found), model_card.read_run(found)
    card = model_card.text(made, run=told, license="Apache-2.0")
    for fact in (
        *("license: apache-2.0", "pipeline_tag: fill-mask", "Step 0 of 2"),
        *("| phase1 | 2 | 8 | 16 |", "peak 0.003 after 1 steps"),
        "168 examples of 16 tokens in 4 shards",
        "On held-out records, at step 0.",
        "| heldout/mlm_loss | 4.5000 | unigram_loss 4.2500 |",
    ):
        assert fact in card, card
    assert "heldout/unigram_loss" not in card and "_share" not in card
    heads = [line for line in card.splitlines() if line.startswith("#")]
    assert heads[1:] == ["## Use", "## Scores", "## Data", "## License", "## Training", "## Sizes"]
    assert "secret" not in card  # no path of the machine


def test_the_languages_of_the_records_stand_in_the_header(run):
    found = reader.read(run)
    made, told = workdir.weights_of(found), model_card.read_run(found)
    assert "language:" not in model_card.text(made, run=told).split("---")[1]
    (phase, manifest), *_ = told.manifests.items()
    named = dataclasses.replace(manifest, languages={"no": {}, "de": {}, "my language": {}})
    told = dataclasses.replace(told, manifests={phase: named})
    card = huggingface_hub.ModelCard(model_card.text(made, run=told, license="A: b"))
    assert card.data.language == ["de", "no"] and card.data.license_name == "A: b"
    assert "Language: de, my language, no." in card.content


def test_other_records_at_the_same_place_are_not_described(run):
    data = run.parent / "secret_train"
    manifest = (data / "manifest.json").read_text()
    (data / "manifest.json").write_text(manifest.replace('"seed": 0', '"seed": 1'))
    card = model_card.text(workdir.read(run), run=model_card.read_run(reader.read(run)))
    (data / "manifest.json").write_text(manifest)
    assert "missing" in card and "168 examples" not in card
    assert "No license was given" in card and "license:" not in card


def test_converted_weights_have_no_training_to_tell(tmp_path):
    workdir.write(weights.make("question_answering"), tmp_path / "run")
    assert model_card.read_run(reader.read(tmp_path / "run")) is None
    card = model_card.text(weights.make("question_answering"), license="Ask: me first")
    assert "pipeline_tag: question-answering" in card and "## Training" not in card
    assert 'license: other\nlicense_name: "Ask: me first"\n---\n' in card


def test_many_labels_are_cut_and_numbers_have_none():
    made = weights.make("sequence_classification")
    many = dataclasses.replace(made, labels={it: f"class\n{it}" for it in range(99)})
    card = model_card.text(many)
    assert "`class 0`, `class 1`," in card and "... (99 in all)" in card and "class 50" not in card
    assert "labels" not in model_card.text(dataclasses.replace(made, is_regression=True))


def test_a_card_tells_who_taught_the_model():
    config = smoke.get_config()
    run = model_card.Run(config, 2, {}, {}, None, teacher_sha256="abc123")
    assert "abc123" not in model_card.text(weights.make("masked_lm"), run=run)
    config.distillation.update(teacher="/secret/teacher", soft_weight=4.0)
    card = model_card.text(weights.make("masked_lm"), run=run)
    assert "- taught: by the weights with SHA-256 `abc123`" in card
    assert "soft targets 4 at temperature 2, labels 2, cosine 1" in card and "secret" not in card
