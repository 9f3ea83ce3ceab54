"""Parameter counts equal the papers' for every recipe."""

import jax
import pytest

from bertjax import recipes
from bertjax.jobs import pretraining
from bertjax.models import embedding_sharing
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
    "albert:base": 11_683_584,
    "albert:large": 17_683_968,
    "albert:xlarge": 58_724_864,
    "albert:xxlarge": 222_595_584,
}

# With the heads of pretraining, as transformers counts AlbertForPreTraining of these sizes.
WITH_HEADS = {
    "albert:base": 11_813_810,
    "albert:large": 17_847_474,
    "albert:xlarge": 59_021_490,
    "albert:xxlarge": 223_158_450,
}


# Without a pair loss, as transformers counts RobertaForMaskedLM; the sizes of its kin are in
# their config.json.
MMBERT = {"vocab_size": 256_000}
MASKED_LM = [
    ("roberta:base", {}, 124_697_433),
    pytest.param("roberta:large", {}, 355_412_057, marks=pytest.mark.slow),
    ("roberta:base", {"vocab_size": 250_002}, 278_295_186),  # xlm-roberta-base
    ("roberta:base", {"vocab_size": 32_005}, 110_655_493),  # camembert-base
    ("roberta:base", {"num_hidden_layers": 6}, 82_170_201),  # distilroberta-base
    ("distilbert_base", {}, 66_985_530),
    # As transformers counts ModernBertForMaskedLM of these sizes.
    ("modernbert:base", {}, 149_655_232),
    pytest.param("modernbert:large", {}, 395_881_664, marks=pytest.mark.slow),
    ("ettin:17m", {}, 16_913_600),
    ("ettin:32m", {}, 32_081_344),
    ("ettin:68m", {}, 68_457_664),
    pytest.param("ettin:150m", {}, 149_655_232, marks=pytest.mark.slow),
    pytest.param("ettin:400m", {}, 395_881_664, marks=pytest.mark.slow),
    pytest.param("ettin:1b", {}, 1_031_314_112, marks=pytest.mark.slow),
    pytest.param("modernbert:base", MMBERT, 307_786_240, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("recipe", "sizes", "count"), MASKED_LM)
def test_encoder_with_masked_token_head_has_the_papers_number_of_parameters(recipe, sizes, count):
    config = recipes.load(recipe)
    with config.unlocked():
        config.model.update(dtype="float32", **sizes)
    _, params = tasks_base.abstract_model(pretraining.pretraining_task(config))
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == count


@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(name, marks=pytest.mark.slow if count > 3e8 else ())
        for name, count in COUNTS.items()
    ],
)
def test_encoder_with_pooler_has_the_papers_number_of_parameters(recipe):
    config = recipes.load(recipe)
    with config.unlocked():
        config.model.dtype = "float32"
    _, params = tasks_base.abstract_model(pretraining.pretraining_task(config))
    leaves = jax.tree.leaves([params["encoder"], params["pooler"]])
    assert sum(leaf.size for leaf in leaves) == COUNTS[recipe]
    if recipe in WITH_HEADS:
        assert sum(leaf.size for leaf in jax.tree.leaves(params)) == WITH_HEADS[recipe]


# As transformers counts BertForMaskedLM of the cased vocabulary, and the head beside it: 15 x 200
# numbers of offsets, two dense layers with LayerNorm, a bias for each entry.
SPANBERT_COUNTS = {
    "spanbert:base": (108_340_804, 3_000 + (1_736 + 768 + 6) * 768 + 28_996),
    "spanbert:large": (333_610_308, 3_000 + (2_248 + 1_024 + 6) * 1_024 + 28_996),
}


@pytest.mark.parametrize(
    "recipe", ["spanbert:base", pytest.param("spanbert:large", marks=pytest.mark.slow)]
)
def test_spanbert_is_a_bert_without_a_pooler_and_its_head(recipe):
    config = recipes.load(recipe)
    with config.unlocked():
        config.model.dtype = "float32"
    _, params = tasks_base.abstract_model(pretraining.pretraining_task(config))
    head = sum(leaf.size for leaf in jax.tree.leaves(params.pop("sbo_head")))
    assert (sum(leaf.size for leaf in jax.tree.leaves(params)), head) == SPANBERT_COUNTS[recipe]


# Discriminator, generator, and both with what they share counted once; Clark et al. 2020. The first
# two as transformers counts ElectraForPreTraining and ElectraForMaskedLM of the released models;
# "small++" is the one that was released as electra-small.
ELECTRA_COUNTS = {
    "small": (13_549_057, 4_620_026, 14_196_219),
    "small++": (13_549_057, 13_546_682, 23_122_875),
    "base": (109_483_009, 33_740_602, 119_386_427),
    "large": (335_142_913, 51_295_290, 354_655_291),
}
SLOW_ELECTRAS = ("small++", "base", "large")


@pytest.mark.parametrize(
    "size", ["small", *(pytest.param(size, marks=pytest.mark.slow) for size in SLOW_ELECTRAS)]
)
def test_electras_have_the_released_numbers_of_parameters(size):
    config = recipes.load(f"electra:{size.removesuffix('++')}")
    config.model.dtype = "float32"
    if size == "small++":
        config.pretraining.generator.hidden_size = config.model.hidden_size
    _, params = tasks_base.abstract_model(pretraining.pretraining_task(config))
    whole = jax.eval_shape(embedding_sharing.apart, params)
    generator = whole.pop("generator")
    counts = (sum(leaf.size for leaf in jax.tree.leaves(it)) for it in (whole, generator, params))
    assert tuple(counts) == ELECTRA_COUNTS[size]
