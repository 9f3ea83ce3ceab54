"""Parameter counts equal the papers' for every recipe."""

import importlib

import jax
import pytest

from bertjax.jobs import pretraining
from bertjax.tasks import base as tasks_base

# Encoder with pooler. Base and Large: Devlin et al. 2019 (110 M, 340 M), exactly as in the released
# checkpoints; the small ones: Turc et al. 2019, table 1 (4.4, 11.3, 29.1, 41.7 M rounded there,
# which count the heads too). ALBERT: as transformers counts AlbertModel.
COUNTS = {
    "bert_tiny": 4_385_920,
    "bert_mini": 11_170_560,
    "bert_small": 28_763_648,
    "bert_medium": 41_373_184,
    "bert_base": 109_482_240,
    "bert_large": 335_141_888,
    "albert_base": 11_683_584,
    "albert_large": 17_683_968,
    "albert_xlarge": 58_724_864,
    "albert_xxlarge": 222_595_584,
}

# With the heads of pretraining, as transformers counts AlbertForPreTraining of these sizes.
WITH_HEADS = {
    "albert_base": 11_813_810,
    "albert_large": 17_847_474,
    "albert_xlarge": 59_021_490,
    "albert_xxlarge": 223_158_450,
}


@pytest.mark.parametrize("recipe", COUNTS)
def test_encoder_with_pooler_has_the_papers_number_of_parameters(recipe):
    config = importlib.import_module(f"configs.{recipe}").get_config()
    with config.unlocked():
        config.model.dtype = "float32"
    _, params = tasks_base.abstract_model(pretraining.pretraining_task(config))
    leaves = jax.tree.leaves([params["encoder"], params["pooler"]])
    assert sum(leaf.size for leaf in leaves) == COUNTS[recipe]
    if recipe in WITH_HEADS:
        assert sum(leaf.size for leaf in jax.tree.leaves(params)) == WITH_HEADS[recipe]
