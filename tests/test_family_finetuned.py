"""Families finetuned for kinds of data sets: what moves, the predictions, and the export."""

import dataclasses
import json
import re

import jax
import numpy as np
import pytest

from bertjax import inference, jobs, models, train
from bertjax.convert import __main__ as program
from bertjax.convert import formats, workdir
from bertjax.convert.families import deberta_v2, eurobert, modernbert, mpnet, nomic_bert
from bertjax.models import embedding_sharing, parameters
from bertjax.tasks import base as tasks_base
from bertjax.tokenization import sentence_piece
from bertjax.training import optim, warm_start
from tests import marks, programs, small_byte_bpe, small_datasets, small_records, small_tokenizers
from tests.convert import weights
from tests.data_pipelines import test_train_vocabulary
from tests.tokenization import test_sentence_piece

pytestmark = [pytest.mark.usefixtures("one_device", "quick_runs"), pytest.mark.slow]

SIZES = models.EncoderConfig(
    vocab_size=1,  # that of the vocabulary
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=24,
    max_position_embeddings=48,
)


@dataclasses.dataclass(frozen=True)
class Family:
    """A pretrained model; `exported_as` is the model_type that transformers reads."""

    exported_as: str
    head: str
    fields: dict
    vocabulary: str = "wordpiece"
    unused: int = 0  # rows of the table of words behind the vocabulary


FAMILIES = {
    "roberta": Family(
        *("roberta", "masked_lm"),
        {"position_offset": 2, "type_vocab_size": 1, "layer_norm_eps": 1e-5},
        "byte_bpe",
    ),
    "xlm-roberta": Family(
        *("xlm-roberta", "masked_lm"),
        {"position_offset": 2, "type_vocab_size": 1, "layer_norm_eps": 1e-5},
        "xlm-roberta",
    ),
    "albert": Family(
        *("albert", "pretraining"),
        {"embedding_size": 12, "num_hidden_groups": 1, "hidden_act": "gelu_tanh"},
        "sentencepiece",
    ),
    "electra": Family("electra", "replaced_tokens", {"embedding_size": 12, "pooler_act": "gelu"}),
    "spanbert": Family("bert", "masked_lm", {}),
    "modernbert": Family(
        *("modernbert", "masked_lm"),
        {
            **modernbert.FAMILY.traits,
            **{"window": 3, "global_every": 2, "rotary_base": 100.0, "layer_norm_eps": 1e-5},
        },
        "byte_bpe",
    ),
    "deberta-v2": Family(
        *("deberta-v2", "masked_lm"),
        {
            **deberta_v2.FAMILY.traits,
            **{"position_embedding": "none", "type_vocab_size": 0, "layer_norm_eps": 1e-7},
            **{"relative_buckets": 8, "relative_span": 24},
        },
        **{"vocabulary": "spm", "unused": 99},
    ),
    "mpnet": Family(
        "mpnet", "masked_lm", {**mpnet.FAMILY.traits, "layer_norm_eps": 1e-5}, "mpnet", unused=3
    ),
    "nomic_bert": Family("nomic_bert", "masked_lm", nomic_bert.FAMILY.traits),
    "eurobert": Family(
        *("eurobert", "masked_lm"),
        {**eurobert.FAMILY.traits, "num_key_value_heads": 1, "layer_norm_eps": 1e-5},
        "byte_bpe",
    ),
    "distilbert": Family("distilbert", "masked_lm", {"type_vocab_size": 0, "pooler_act": "relu"}),
    "left_to_right": Family("", "masked_lm", {"left_to_right": True}),
}
VOCABULARIES = {
    "wordpiece": small_records.vocabulary,
    "byte_bpe": lambda: small_byte_bpe.vocabulary(size=400),
    "sentencepiece": lambda: sentence_piece.SentencePieceTokenizer(
        test_sentence_piece.model(lines=[" ".join(small_records.WORDS)], **test_sentence_piece.BERT)
    ),
    "spm": lambda: sentence_piece.SentencePieceTokenizer(
        test_sentence_piece.model(
            lines=[" ".join(small_records.WORDS)], **test_sentence_piece.DEBERTA
        )
    ),
    "mpnet": lambda: small_tokenizers.mpnet(small_records.WORDS),
    "xlm-roberta": lambda: test_train_vocabulary.trained(
        small_records.WORDS, kind="sentencepiece", special_tokens="xlm-roberta", size=90
    ),
}

# Kind -> the head of its export, and lines to answer with what each answer must hold.
KINDS = {
    "conll": ("token_classification", [{"words": ["w10", "w0", "w1"]}, {"words": ["w2"]}]),
    "squad_v1": (
        "question_answering",
        [{"question": "w7 w6", "context": c} for c in ("w20, (W21) w0 w1 w22", "w9 w0  w1")],
    ),
    "swag": (
        "multiple_choice",
        [{"context": "w10 w11", "endings": ["w0 w1", "w3 w7", "w4 w7", "w5 w7 w8"]}],
    ),
}
# What reads a model that looks to the left; choices have no pooling.
ENDS = {"regression": {"finetuning.pooling": "last"}, "swag": {"finetuning.bilstm_size": 6}}

RATE, DECAY, HEAD = 1e-3, 0.25, 3.0
# Ways of training: low-rank updates alone, or words frozen and rates by depth.
TRAINED = {
    "lora": {"finetuning.lora_rank": 2},
    "by_depth": {
        "optimizer.layer_decay": DECAY,
        "optimizer.head_multiplier": HEAD,
        "optimizer.frozen": (r"encoder\.embeddings\.word\..*",),
    },
}


def write_source(directory, family):
    """Writes random weights of a family with its own kind of vocabulary."""
    vocabulary = VOCABULARIES[family.vocabulary]()
    rows = vocabulary.vocab_size + family.unused
    config = dataclasses.replace(SIZES, vocab_size=rows, **family.fields)
    generator = None
    if family.head == "replaced_tokens":
        generator = dataclasses.replace(config, hidden_size=8, intermediate_size=16)
    made = weights.make(
        family.head,
        **{"config": config, "vocabulary": vocabulary, "generator": generator},
        **{"scale": 0.1, "norm_scale": 1.0},
    )
    params = dict(made.params)
    for path in [path for path in params if path.startswith("encoder.embeddings.")]:
        if generator and path.split(".")[2] in embedding_sharing.SHARED:
            params[f"generator.{path}"] = params[path]
    workdir.write(dataclasses.replace(made, params=params), directory)


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    root = tmp_path_factory.mktemp("families")
    for name, family in FAMILIES.items():
        write_source(root / name, family)
    return root


def multiplier(name, how, family):
    """Returns the factor of the learning rate, by definition."""
    if how == "lora":
        return 0.0 if name.startswith("encoder.") else 1.0
    if name.startswith(("encoder.embeddings.", "encoder.relative.")):
        return 0.0 if ".word." in name else DECAY**3
    if layer := re.match(r"encoder\.layers\.(\d)", name):
        shared = "num_hidden_groups" in family.fields
        return (DECAY + DECAY**2) / 2 if shared else DECAY ** (2 - int(layer[1]))
    return 1.0 if name.startswith(("pooler.", "encoder.final_norm.")) else HEAD


def make_config(directory, sources, name, kind, how):
    changes = {
        **{"finetuning.num_epochs": 1.0, "finetuning.length_buckets": False},
        **{"finetuning.max_seq_length": 48, "optimizer.weight_decay": 0.0},
        **{"schedule.name": "constant", "schedule.peak_learning_rate": RATE},
        **{"schedule.warmup_share": 0.0, "schedule.warmup_steps": 0},
        **(ENDS.get(kind, {}) if name == "left_to_right" else {}),
    }
    config = small_datasets.make_config(directory, kind, sources / name, **changes, **TRAINED[how])
    config.finetuning.update(eval_file="", test_file="")
    return config


# Each family once and each kind twice at least: heads on [CLS], a last token, tokens and pairs.
SLOW = {
    *(("roberta", "table"), ("electra", "conll"), ("modernbert", "swag"), ("eurobert", "conll")),
    *(("albert", "regression"), ("deberta-v2", "squad_v1")),
}
STARTS = [
    *(("roberta", "table"), ("albert", "regression"), ("electra", "conll")),
    *(("spanbert", "squad_v1"), ("modernbert", "swag"), ("distilbert", "table")),
    *(("left_to_right", "regression"), ("left_to_right", "swag"), ("modernbert", "conll")),
    *(("electra", "squad_v1"), ("albert", "swag"), ("nomic_bert", "conll")),
    ("nomic_bert", "squad_v1"),  # without a class for spans there
    *(("deberta-v2", "table"), ("deberta-v2", "squad_v1"), ("mpnet", "swag"), ("mpnet", "conll")),
    *(("eurobert", "table"), ("eurobert", "conll"), ("eurobert", "swag")),
]


@pytest.mark.parametrize(
    ("name", "kind"), marks.cases(STARTS, slow=[it for it in STARTS if it in SLOW])
)
def test_a_kind_starts_from_a_family_and_moves_what_it_shall(tmp_path, sources, name, kind):
    """All but the steps themselves; the vocabulary makes the rows."""
    for how in TRAINED:
        config = make_config(tmp_path / how, sources, name, kind, how)
        job = jobs.JOBS["finetuning"].open(config)
        rows = next(job.data.train_batches(job.phases[0], start_step=0, rows=None))
        assert (rows["input_mask"].sum(axis=-1) > 4).all()
        graphdef, params = tasks_base.abstract_model(job.task)
        begun = warm_start.of_job(job, params)
        assert begun is not None
        assert {path.split(".")[0] for path in begun.fresh} <= {
            *("classifier", "span_head", "lstm", "lora"),
            *(() if name == "albert" else ("pooler",)),  # which alone is pretrained with one
        }
        uses = parameters.layer_uses(graphdef, params)
        rates = optim.rate_multipliers(optim.OptimizerOptions(**config.optimizer), params, uses)
        patterns = (*config.optimizer.frozen, *job.task.frozen)
        frozen = parameters.flat(optim.frozen_parameters(patterns, params))
        for path, rate in parameters.flat(rates).items():
            assert (0.0 if frozen[path] else rate) == multiplier(path, how, FAMILIES[name]), path


def check_answer(kind, line, answer):
    match kind:
        case "conll":
            assert len(answer["tags"]) == len(line["words"])
        case "squad_v1":
            assert answer["answer"] and answer["answer"] in line["context"]
        case "swag":
            assert answer["choice"] in range(4) and len(answer["probabilities"]) == 4


# A softmax does not see what is added to all of its numbers. LoRA's A has no gradient until B has
# moved.
UNMOVED = ("attention.key.bias", "a.kernel")
UNMOVED_IN = {
    "squad_v1": ("span_head.bias", "layers.1.output_norm.bias"),
    "swag": ("classifier.bias",),
}
# Whole runs take long. These have offsets of pieces, shared layers and low ranks; texts are learnt
# in test_finetuning_run.py.
RUNS = [
    ("xlm-roberta", "squad_v1", "by_depth"),
    ("albert", "conll", "by_depth"),
    ("electra", "swag", "lora"),
    ("deberta-v2", "squad_v1", "lora"),
    ("mpnet", "conll", "by_depth"),
    ("eurobert", "conll", "lora"),
]


@pytest.mark.parametrize(
    ("name", "kind", "how"), marks.cases(RUNS, slow=[it for it in RUNS if it[:2] in SLOW])
)
def test_what_shall_move_moves_and_predict_answers(tmp_path, sources, name, kind, how):
    family, (head, lines) = FAMILIES[name], KINDS[kind]
    config = make_config(tmp_path / "data", sources, name, kind, how)
    run = train.prepare(config, tmp_path / "run")
    assert run.job.last_step == 2
    with jax.set_mesh(run.mesh):
        begun = warm_start.of_job(run.job, run.abstract_state.params)
        assert begun is not None
        start = parameters.flat(warm_start.apply(begun, run.init(run.step_inputs.seed)).params)
        start = jax.device_get(start)
    last = jax.device_get(parameters.flat(train.execute(run, tmp_path / "run").params))
    source = formats.read(sources / name).params
    assert {path for path in start if path.startswith("encoder.")} <= source.keys()
    faults = {}
    for path, value in last.items():
        moved = np.abs(value - start[path]).max() / (2 * RATE)
        wanted = multiplier(path, how, family)
        if wanted and path.endswith((*UNMOVED, *UNMOVED_IN.get(kind, ()))):
            continue
        # Adam's first step is the rate itself, its second at most that.
        if not 0.27 * wanted <= moved <= 1.05 * wanted:
            faults[path] = f"{moved:.4g} of the rate, not {wanted:.4g}"
    assert not faults

    encoder = inference.load_finetuned(tmp_path / "run").task.encoder
    assert encoder.pooler_act == family.fields.get("pooler_act", "tanh")
    done = programs.succeed(
        *("bertjax.predict", f"--checkpoint={tmp_path / 'run'}", "--batch_size=8"),
        lines=tuple(map(json.dumps, lines)),
    )
    for line, answer in zip(lines, done.lines, strict=True):
        check_answer(kind, line, answer)
    program.convert(tmp_path / "run", tmp_path / "hf")
    found = formats.read(tmp_path / "hf")
    assert (found.head, found.family.model_type) == (head, family.exported_as)
    assert found.config.vocab_size == found.vocabulary.vocab_size + family.unused


def test_a_model_that_looks_to_the_left_has_no_format_of_others(tmp_path, sources):
    with pytest.raises(ValueError, match=r"left_to_right|cannot be converted"):
        program.convert(sources / "left_to_right", tmp_path / "hf")
