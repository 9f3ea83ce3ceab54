"""ELECTRA through the programs: pretrained, scored, used, continued."""

import jax
import numpy as np
import pytest

from bertjax import encode, evaluate, fill_mask, inference, recipes, train
from bertjax.convert import workdir
from bertjax.inference import likelihood
from bertjax.workdirs import scalars
from tests import small_records

pytestmark = [pytest.mark.usefixtures("one_device", "quick_runs"), pytest.mark.slow]


def make_config(directory, **changes):
    config = recipes.load("electra:base")
    config.update_from_flattened_dict(
        {
            **{
                "data.train_dir": str(directory / "train"),
                "data.eval_dir": str(directory / "eval"),
            },
            **{"model.vocab_size": 0, "model.hidden_size": 32, "model.embedding_size": 16},
            **{"model.num_hidden_layers": 1, "model.num_attention_heads": 2},
            **{"mesh.data": -1, "pretraining.max_predictions_per_seq": 0},
            **{"model.intermediate_size": 48, "model.max_position_embeddings": 40},
            **{"pretraining.masking": "static", "pretraining.mask_share": 0.8},
            **{"pretraining.keep_share": 0.1, "pretraining.generator.hidden_size": 12},
            **{"global_batch_size": 8, "evaluation.global_batch_size": 8},
            **{"phases.phase1.num_steps": 6, "phases.phase1.max_seq_length": 16},
            **{"schedule.warmup_steps": 2, "evaluation.every_steps": 6, "log_every_steps": 1},
            **changes,
        }
    )
    return config


@pytest.fixture(scope="module")
def records_of_words(tmp_path_factory):
    root = tmp_path_factory.mktemp("electra_records")
    small_records.write(root / "train", max_seq_length=16, documents=range(90))
    held_out = {"documents": range(90, 100), "counts": (13,), "seed": 2}
    small_records.write(root / "eval", max_seq_length=16, **held_out)
    return root


def test_all_programs_use_a_pretrained_run(records_of_words, tmp_path):
    config = make_config(
        records_of_words, **{"pretraining.generator.embeddings": "gradient_disentangled"}
    )
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text(
        '{"sentence_good": "w1 w2", "sentence_bad": "w2 w1"}\n'
        '{"sentence_good": "w3", "sentence_bad": "w4 w5 w6"}\n'
    )
    config.evaluation.pairs_file = str(pairs)
    whole = train.train(config, tmp_path / "whole")
    found = workdir.read(tmp_path / "whole")
    kept = whole.params["encoder"]["embeddings"]["word_delta"]["embedding"]
    theirs = whole.params["generator"]["encoder"]["embeddings"]["word"]["embedding"]
    made = found.params["encoder.embeddings.word.embedding"]
    np.testing.assert_array_equal(made, kept + theirs)
    assert (found.head, found.family.model_type) == ("replaced_tokens", "electra")

    scores = evaluate.evaluate_checkpoint(
        tmp_path / "whole", str(records_of_words / "eval"), batch_size=8
    )
    other = evaluate.evaluate_checkpoint(
        tmp_path / "whole", str(records_of_words / "eval"), batch_size=5
    )
    assert scores.keys() >= {"mlm_loss", "discriminator_loss", "discriminator_auc"}
    assert scores == pytest.approx(other, rel=1e-4, nan_ok=True)

    # The discriminator's judgement of pairs is the same in the run and of what it left.
    told = scalars.read(tmp_path / "whole" / scalars.FILE)
    accuracy = [line["eval/pairs/accuracy"] for line in told if "eval/pairs/accuracy" in line]
    judged = evaluate.evaluate_pairs(tmp_path / "whole", pairs, batch_size=4)
    assert accuracy == [judged["accuracy"]]

    model = inference.load(tmp_path / "whole")
    assert encode.encode(model, ["w1 w2"])["features"].shape == (1, 32)
    (score,) = likelihood.scores(model, ["w1 w2"])
    assert score.log_likelihood < 0
    generator = inference.load(tmp_path / "whole", generator=True)
    assert len(fill_mask.fill_mask(generator, "w1 [MASK]")[0]) == 5
    # Another run starts from both: the same tables, the same losses before any step.
    config.init_from = str(tmp_path / "whole")
    config.schedule.peak_learning_rate = 0.0
    config.phases.phase1.num_steps = 1
    again = train.train(config, tmp_path / "again")
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-7), again.params, whole.params
    )
