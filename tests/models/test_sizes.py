"""Parameter counts equal the papers' for every recipe."""

import jax
import numpy as np
import pytest

from bertjax import recipes
from bertjax.jobs import pretraining
from bertjax.models import embedding_sharing
from bertjax.tasks import base as tasks_base


def size(tree):
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def with_pooler(params):
    return size([params["encoder"], params["pooler"]])


def with_pooler_and_heads(params):
    return with_pooler(params), size(params)


def spanbert(params):
    head = size(params.pop("sbo_head"))
    return size(params), head


def electra(params):
    """Discriminator, generator, and both with what they share counted once."""
    whole = jax.eval_shape(embedding_sharing.apart, params)
    generator = size(whole.pop("generator"))
    return size(whole), generator, size(params)


# Encoder with pooler. Base and Large: Devlin et al. 2019 (110 M, 340 M), exactly as in the released
# checkpoints; the small ones: Turc et al. 2019, table 1 (4.4, 11.3, 29.1, 41.7 M rounded there,
# which count the heads too).
COUNTS = [
    ("bert_tiny", with_pooler, 4_385_920),
    ("bert_mini", with_pooler, 11_170_560),
    ("bert_small", with_pooler, 28_763_648),
    ("bert_medium", with_pooler, 41_373_184),
    ("bert_base", with_pooler, 109_482_240),
    ("bert_large", with_pooler, 335_141_888),
    # As transformers counts BertModel of bert-base-multilingual-cased and bert-base-chinese.
    ("mbert", with_pooler, 177_853_440),
    ("bert_chinese_wwm", with_pooler, 102_267_648),
    # As transformers counts AlbertModel and AlbertForPreTraining.
    ("albert:base", with_pooler_and_heads, (11_683_584, 11_813_810)),
    ("albert:large", with_pooler_and_heads, (17_683_968, 17_847_474)),
    ("albert:xlarge", with_pooler_and_heads, (58_724_864, 59_021_490)),
    ("albert:xxlarge", with_pooler_and_heads, (222_595_584, 223_158_450)),
    # As transformers counts RobertaForMaskedLM; the sizes of its kin are in their config.json.
    ("roberta:base", size, 124_697_433),
    ("roberta:large", size, 355_412_057),
    ("xlm_r:base", size, 278_295_186),
    ("xlm_r:large", size, 560_142_482),
    ("camembert", size, 110_655_493),
    ("roberta:base num_hidden_layers=6", size, 82_170_201),  # distilroberta-base
    ("distilbert_base", size, 66_985_530),
    # As transformers counts ModernBertForMaskedLM.
    ("modernbert:base", size, 149_655_232),
    ("modernbert:large", size, 395_881_664),
    ("mmbert:base", size, 307_786_240),
    ("mmbert:small", size, 140_897_536),
    ("ettin:17m", size, 16_913_600),
    ("ettin:32m", size, 32_081_344),
    ("ettin:68m", size, 68_457_664),
    ("ettin:150m", size, 149_655_232),
    ("ettin:400m", size, 395_881_664),
    ("ettin:1b", size, 1_031_314_112),
    # MASS-summarization/README.md: 123 M. As transformers counts a BartForConditionalGeneration of
    # these sizes whose stacks have one embedding: the words, 512 places, 12 layers, a bias.
    ("mass:base", size, (30_522 + 512 + 2) * 768 + 12 * 7_087_872 + 6 * 2_363_904 + 30_522),
    # As transformers counts EsmForMaskedLM, without the head of contacts: a number of each head of
    # each layer, and a bias.
    ("esm2:8m", size, 7_512_474 - (6 * 20 + 1)),
    ("esm2:35m", size, 33_501_394 - (12 * 20 + 1)),
    ("esm2:150m", size, 148_140_154 - (30 * 20 + 1)),
    ("esm2:650m", size, 651_043_254 - (33 * 20 + 1)),
    ("esm2:3b", size, 2_839_005_634 - (36 * 40 + 1)),
    # As transformers counts BertForMaskedLM of the cased vocabulary, and the head beside it: 15 x
    # 200 numbers of offsets, two dense layers with LayerNorm, a bias for each entry.
    ("spanbert:base", spanbert, (108_340_804, 3_000 + (1_736 + 768 + 6) * 768 + 28_996)),
    ("spanbert:large", spanbert, (333_610_308, 3_000 + (2_248 + 1_024 + 6) * 1_024 + 28_996)),
    # Clark et al. 2020; as transformers counts ElectraForPreTraining and ElectraForMaskedLM of the
    # released models. The one released as electra-small has the generator of its own width.
    ("electra:small", electra, (13_549_057, 4_620_026, 14_196_219)),
    ("electra:small generator=256", electra, (13_549_057, 13_546_682, 23_122_875)),
    ("electra:base", electra, (109_483_009, 33_740_602, 119_386_427)),
    ("electra:large", electra, (335_142_913, 51_295_290, 354_655_291)),
    # As transformers counts DebertaV2Model, with the head of replaced tokens, h^2 + 4h + 1, and
    # DebertaV2ForMaskedLM, with a table of 512 positions; the discriminator has a table of words.
    ("deberta_v3:xsmall", electra, (70_682_112 + 148_993, 60_508_644, 131_339_749)),
    ("deberta_v3:small", electra, (141_304_320 + 592_897, 121_154_148, 263_051_365)),
    ("deberta_v3:base", electra, (183_831_552 + 592_897, 142_417_764, 326_842_213)),
    ("deberta_v3:large", electra, (434_012_160 + 1_052_673, 284_561_508, 719_626_341)),
]


@pytest.mark.parametrize(("recipe", "count", "expected"), COUNTS)
def test_recipes_have_the_numbers_of_parameters_of_the_papers(recipe, count, expected):
    """From two and three layers: each further layer adds as many parameters as the third."""
    name, *changes = recipe.split()
    config = recipes.load(name)
    with config.unlocked():
        config.model.dtype = "float32"
        for change in changes:
            option, _, value = change.partition("=")
            place = config.pretraining.generator if option == "generator" else config.model
            place["hidden_size" if option == "generator" else option] = int(value)
    depth, counts = config.model.num_hidden_layers, []
    for layers in (2, 3):
        config.model.num_hidden_layers = layers
        _, params = tasks_base.abstract_model(pretraining.pretraining_task(config))
        counts.append(np.array(count(params)))
    two, three = counts
    np.testing.assert_array_equal(two + (depth - 2) * (three - two), expected)
