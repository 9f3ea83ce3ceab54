"""Options that an objective cannot use are named with their value before anything is read."""

import pytest

from bertjax import config as config_lib
from bertjax.training import config_faults

# Objective -> the options that it needs.
UNPAIRED = {"pretraining.pair_loss": "none"}
DYNAMIC = {"pretraining.masking": "dynamic"}
NEXT = {
    "pretraining.masking": "none",
    "model.left_to_right": True,
    "checkpoint.best_metric": "lm_loss",
}
OBJECTIVES = {
    "masked_tokens": {},
    "next_token": UNPAIRED | NEXT,
    "masked_spans_to_sequence": UNPAIRED | DYNAMIC | {"checkpoint.best_metric": "lm_loss"},
    "hybrid": UNPAIRED,
    "prefix_rows": {},
    "replaced_tokens": UNPAIRED | {"model.hidden_size": 128, "model.num_attention_heads": 2},
    "span_boundary": UNPAIRED | DYNAMIC | {"pretraining.mask_strategy": "span"},
}
FAULTS = {
    "masked_tokens": [
        ({"pretraining.masking": "none"}, "masking is 'none', but the objective 'masked_tokens'"),
        ({"pretraining.sequence_rows": "bart"}, "sequence_rows is 'bart', but .*'masked_tokens'"),
        ({"pretraining.causal_share": 0.3}, "causal_share is 0.3, but .*'masked_tokens'"),
        ({"pretraining.prefix_share": 0.5}, "prefix_share is 0.5, but .*'masked_tokens'"),
        ({"model.replaced_head": "with_first"}, "replaced_head is 'with_first'.*nothing reads it"),
        ({"model.relative_buckets": 8}, "relative_buckets is 8.*nothing reads it"),
        ({"model.mask_decoder": True}, "mask_decoder is True.*nothing reads it"),
    ],
    "next_token": [
        ({"model.left_to_right": False}, "left_to_right is False.*must be True"),
        ({"pretraining.masking": "dynamic"}, "masking is 'dynamic'.*must be 'none'"),
        ({"pretraining.pair_loss": "nsp"}, "pair_loss is 'nsp'.*must be 'none'"),
        ({"checkpoint.best_metric": "mlm_loss"}, "best_metric is 'mlm_loss'.*'lm_loss'"),
    ],
    "masked_spans_to_sequence": [
        ({"pretraining.masking": "static"}, "masking is 'static'.*must be 'dynamic'"),
        ({"pretraining.pair_loss": "nsp"}, "pair_loss is 'nsp'.*must be 'none'"),
        ({"model.left_to_right": True}, "left_to_right is True.*must be False"),
        ({"model.language_embeddings": 3}, "language_embeddings is 3.*must be 0"),
        ({"model.num_hidden_groups": 1}, "num_hidden_groups is 1.*0"),
        ({"model.inner_group_num": 2}, "inner_group_num is 2.*must be 1"),
        ({"model.embeddings": "patches"}, "embeddings is 'patches'.*'learnt' or .*'token_dropout'"),
        ({"checkpoint.best_metric": "mlm_loss"}, "best_metric is 'mlm_loss'.*'lm_loss'"),
        ({"pretraining.sequence_rows": "t5"}, "sequence_rows is 't5'; known are mass, bart"),
        ({"pretraining.masked_lm_prob": 0.3}, "masked_lm_prob is 0.3, but .*reads no masks"),
        ({"phases.phase1.masked_lm_prob": 0.3}, "masked_lm_prob is 0.3, but .*reads no masks"),
    ],
    "hybrid": [
        ({"pretraining.causal_share": 1.0}, "causal_share is 1.0"),
        ({"pretraining.hybrid_mean": "row"}, "hybrid_mean is 'row'; known are rows, tokens"),
        ({"pretraining.pair_loss": "nsp"}, "pair_loss is 'nsp'.*must be 'none'"),
        ({"model.left_to_right": True}, "left_to_right is True.*must be False"),
    ],
    "prefix_rows": [
        ({"pretraining.prefix_share": 1.0}, "prefix_share is 1.0"),
        ({"model.window": 8}, "window is 8.*must be 0"),
        ({"model.left_to_right": True}, "left_to_right is True.*must be False"),
    ],
    "replaced_tokens": [
        ({"pretraining.pair_loss": "nsp"}, "pair_loss is 'nsp'.*must be 'none'"),
        ({"pretraining.discriminator_weight": 0.0}, "discriminator_weight is 0.0; .*above 0"),
        ({"pretraining.generator.temperature": 0.0}, "temperature is 0.0; .*above 0"),
        ({"pretraining.generator.hidden_size": -1}, "generator.hidden_size is -1; .*at least 0"),
        ({"pretraining.generator.num_attention_heads": 3}, "generator describes no .*size is 32"),
        ({"pretraining.generator.embeddings": "tied"}, "embeddings is 'tied'; known are shared"),
    ],
    "span_boundary": [
        ({"pretraining.mask_strategy": "token"}, "mask_strategy is 'token'.*must be 'span'"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_an_option_that_does_not_fit_its_objective_is_named_with_its_value(objective):
    def made(changes):
        config = config_lib.default_config()
        config.data.update(train_dir="train", eval_dir="heldout")
        config.pretraining.objective = objective
        config.update_from_flattened_dict(OBJECTIVES[objective] | changes)
        return config

    config_faults.validate(made({}))
    for changes, fault in FAULTS[objective]:
        with pytest.raises(ValueError, match=fault):
            config_faults.validate(made(changes))
