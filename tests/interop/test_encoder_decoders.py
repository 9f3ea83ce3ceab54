"""Encoder-decoders compared with transformers: logits, losses, gradients, searches and exports."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.convert import formats, generation_config, names
from bertjax.models import decoder_sharing, generation, parameters
from bertjax.tasks import base
from tests import lazily
from tests.convert import outputs

torch = lazily.imported("torch")
transformers = lazily.imported("transformers")

pytestmark = [
    pytest.mark.usefixtures("quick_runs", "one_device", "heard"),
    # A sentence about the loss, with every loss.
    pytest.mark.filterwarnings("ignore:Version v4.12.0 introduces a better way:FutureWarning"),
]

PAD, START, END, FIRST, VOCAB_SIZE = 0, 2, 3, 5, 61
LENGTH, TARGET = 9, 12
SIZES = {
    **{"vocab_size": VOCAB_SIZE, "hidden_size": 32, "num_attention_heads": 4},
    **{"intermediate_size": 37, "num_hidden_layers": 2, "max_position_embeddings": 40},
}


def of_bart(shares, kind="bart"):
    """Their BART, whose decoder is smaller than its encoder."""
    names = {"hidden_size": "d_model", "intermediate_size": "encoder_ffn_dim"}
    names |= {"num_attention_heads": "encoder_attention_heads"}
    names |= {"num_hidden_layers": "encoder_layers"}
    config = transformers.BartConfig(
        **{names.get(name, name): value for name, value in SIZES.items()},
        **{"decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 24},
        **{"pad_token_id": 1, "forced_eos_token_id": None, "bos_token_id": 0},
        **{"decoder_start_token_id": END, "eos_token_id": END},
    )
    model = transformers.BartForConditionalGeneration(config)
    randomize(model)
    model.final_logits_bias[0] = torch.randn(VOCAB_SIZE)
    model.final_logits_bias[0, END] += 2.0
    return model.eval()


def of_berts(shares, kind="bert", **sizes):
    """Their model of two encoders; what is shared is equal in both."""
    make = transformers.CONFIG_MAPPING[kind]
    ends = {"decoder_start_token_id": START, "pad_token_id": PAD, "eos_token_id": END}
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(
        make(**SIZES), make(**SIZES | sizes), **ends
    )
    model = transformers.EncoderDecoderModel(config)
    randomize(model)
    head = model.decoder.cls.predictions if kind == "bert" else model.decoder.lm_head
    head.bias.data[END] += 2.0  # so that some targets end
    tie(model.encoder, model.decoder.bert, shares)
    return model.eval()


def randomize(model):
    """Weights far from zero, and from those of a fresh model."""
    torch.manual_seed(7)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape) * 0.25
            parameter.copy_(1 + noise if path.lower().endswith("norm.weight") else noise)


def tie(encoder, decoder, shares):
    if shares == "words":
        table = encoder.embeddings.word_embeddings
        decoder.embeddings.word_embeddings.load_state_dict(table.state_dict())
    if shares in ("embeddings", "layers"):
        decoder.embeddings.load_state_dict(encoder.embeddings.state_dict())
    if shares == "layers":
        decoder.encoder.load_state_dict(encoder.encoder.state_dict(), strict=False)


MODELS = {"bart": of_bart}  # the others are pairs of encoders


def rows_of(count, pad=PAD, start=START):
    """Sources and labels, padded at their ends; the first ones are full."""
    rng = np.random.default_rng(0)

    def drawn(length):
        lengths = np.array([[length], *rng.integers(3, length + 1, (count - 1, 1))])
        mask = (np.arange(length) < lengths).astype(np.int32)
        ids = rng.integers(FIRST, VOCAB_SIZE, mask.shape)
        return np.where(mask != 0, ids, pad).astype(np.int32), mask

    (ids, mask), (labels, scored) = drawn(LENGTH), drawn(TARGET)
    shifted = np.pad(labels, ((0, 0), (1, 0)), constant_values=start)[:, :-1]
    rows = {"input_ids": ids, "input_mask": mask, "target_ids": shifted, "target_mask": scored}
    return rows, np.where(scored != 0, labels, -100)


def their_inputs(rows):
    names = {"input_ids": "input_ids", "attention_mask": "input_mask"}
    return {theirs: torch.tensor(rows[ours]).long() for theirs, ours in names.items()}


@pytest.mark.parametrize(
    ("kind", "shares"),
    [
        *(("bert", it) for it in decoder_sharing.LACKING),
        *(("bert-generation", "embeddings"), ("bart", "words")),
    ],
)
def test_logits_losses_and_gradients_are_theirs(tmp_path, kind, shares):
    theirs = MODELS.get(kind, of_berts)(shares, kind)
    theirs.save_pretrained(tmp_path / "hf")
    read = formats.read(tmp_path / "hf")
    assert (read.head, read.shares) == ("sequence_to_sequence", shares)
    assert read.model_type in (kind, f"{kind}-encoder-decoder")
    rows, labels = rows_of(6, theirs.config.pad_token_id, read.start_id)
    out = theirs(**their_inputs(rows), labels=torch.tensor(labels).long())
    out.loss.backward()
    graph, params = outputs.module_of(read)
    batch = jax.tree.map(jnp.asarray, rows)

    def objective(params):
        logits = parameters.merge(graph, params)(batch)
        losses = base.cross_entropy(logits, jnp.maximum(labels, 0))
        return (losses * (labels >= 0)).sum() / (labels >= 0).sum(), logits

    (loss, logits), gradient = jax.jit(jax.value_and_grad(objective, has_aux=True))(params)
    np.testing.assert_allclose(loss, out.loss.item(), rtol=1e-5)
    real = rows["target_mask"] != 0
    expected = out.logits.detach().numpy()[real]
    np.testing.assert_allclose(np.asarray(logits)[real], expected, rtol=1e-5, atol=1e-5)
    gradients = {
        path: it.grad.numpy() for path, it in theirs.named_parameters() if it.grad is not None
    }
    table, family = read.family.tensors, read.family
    summed = names.to_ours(gradients, table, ignored=family.ignored, spelling=family.spelling)
    for path in [*summed]:
        if path not in read.params:  # what is shared gets the sum of both
            summed[path.replace("decoder", "encoder", 1)] += summed.pop(path)
    ours = parameters.flat(gradient)
    if kind == "bart":  # its bias is a buffer there
        del ours["mlm_head.bias"]
    assert ours.keys() == summed.keys()
    for path, array in ours.items():
        tolerance = 1e-5 * max(np.abs(summed[path]).max(), 1.0)
        np.testing.assert_allclose(array, summed[path], atol=tolerance, err_msg=path)


def until_end(row):
    """Behind the end theirs pads with the end, where the id of padding is 0."""
    row = [int(token) for token in row]
    return row[: row.index(END) + 1] if END in row else row


def their_search(model, rows, search):
    """Ids until the end and scores of all beams, [batch, beams]; without their start token."""
    options = {"num_beams": search.beams, "num_return_sequences": search.beams}
    if search.beams > 1:
        options |= {"length_penalty": search.length_penalty}
        options |= {"early_stopping": search.early_stopping}
    with torch.no_grad():
        out = model.generate(
            **their_inputs(rows),
            **options,
            max_length=search.max_length + 1,
            no_repeat_ngram_size=search.no_repeat_ngram,
            min_new_tokens=search.min_new_tokens,
            do_sample=False,
            return_dict_in_generate=True,
            output_scores=True,
        )
    targets = [until_end(row) for row in out.sequences[:, 1:]]
    if search.beams > 1:
        return targets, out.sequences_scores.numpy()
    steps = model.compute_transition_scores(out.sequences, out.scores, normalize_logits=True)
    pairs = zip(steps.numpy(), targets, strict=True)
    return targets, np.array([row[: len(target)].sum() for row, target in pairs])


def assert_same_search(theirs, read, rows, **options):
    """Returns the first targets, which are those of transformers with their scores."""
    ends = {"start_id": read.start_id, "end_id": read.end_id}
    ends["pad_id"] = theirs.config.pad_token_id
    search = generation.Search(**ends, max_length=TARGET, **options)
    graph, params = outputs.module_of(read)
    batch = jax.tree.map(jnp.asarray, {name: rows[name] for name in ("input_ids", "input_mask")})
    search_all = jax.jit(
        lambda params: generation.generate(parameters.merge(graph, params), batch, search)
    )
    found = search_all(params)
    targets, scores = their_search(theirs, rows, search)
    ids = np.asarray(found.ids)
    assert [until_end(row) for row in ids.reshape(-1, TARGET)] == targets
    np.testing.assert_allclose(np.ravel(found.scores), scores, rtol=1e-5, atol=1e-5)
    return [until_end(row) for row in ids[:, 0]]


BEAMS = [
    {"beams": 4, "length_penalty": penalty, "early_stopping": early}
    for penalty in (0.6, 1.0, 2.0)
    for early in (True, False, "never")
]
LATE = {"min_new_tokens": 4}
QUICK = [(LATE, 0), (BEAMS[0], 0), (BEAMS[8] | LATE, 3)]
ALL = [(options, size) for options in ({}, LATE, *BEAMS) for size in (0, 3)]


@pytest.mark.parametrize(
    ("count", "options", "size"),
    [
        *((24, *case) for case in QUICK),
        *(pytest.param(200, *case, marks=pytest.mark.slow) for case in QUICK),
        *(pytest.param(200, *case, marks=pytest.mark.weekly) for case in ALL if case not in QUICK),
    ],
)
def test_searches_find_their_targets_with_their_scores(tmp_path, count, options, size):
    theirs = of_berts("none")
    theirs.save_pretrained(tmp_path / "hf")
    rows, _ = rows_of(count)
    read = formats.read(tmp_path / "hf")
    targets = assert_same_search(theirs, read, rows, **options, no_repeat_ngram=size)
    # The test is one: targets differ, some end and some are cut.
    assert len({tuple(target) for target in targets}) > count / 4
    assert 0 < sum(END in target for target in targets) < count


def test_beams_of_a_bart_are_theirs_and_its_body_alone_is_read(tmp_path):
    """Its export: test_families.py."""
    theirs = of_bart("words")
    theirs.save_pretrained(tmp_path / "hf")
    read = formats.read(tmp_path / "hf")
    assert (read.start_id, read.end_id, read.unused) == (END, END, ())
    rows, _ = rows_of(24, 1, END)
    assert_same_search(theirs, read, rows, beams=4, no_repeat_ngram=3)
    # Released files are those of a model without a head: no bias, and other names.
    theirs.model.save_pretrained(tmp_path / "bare")
    bare = formats.read(tmp_path / "bare")
    assert bare.head == "sequence_to_sequence" and not bare.params["mlm_head.bias"].any()
    for path, array in read.params.items():
        if path != "mlm_head.bias":
            np.testing.assert_array_equal(bare.params[path], array)


def test_an_export_is_their_model_and_has_its_ends(tmp_path, heard):
    """Without a vocabulary; test_families.py has one with its tokenizer."""
    theirs = of_berts("none", num_hidden_layers=1, intermediate_size=24)
    theirs.save_pretrained(tmp_path / "hf")
    read = formats.read(tmp_path / "hf")
    assert set(read.unused) == {f"encoder.pooler.dense.{it}" for it in ("weight", "bias")}
    formats.write(read, tmp_path / "run", format="bertjax")
    formats.write(formats.read(tmp_path / "run"), tmp_path / "again", format="huggingface")
    heard.clear()
    rows, _ = rows_of(3)
    inputs = {**their_inputs(rows), "decoder_input_ids": torch.tensor(rows["target_ids"]).long()}
    with torch.no_grad():
        expected = theirs(**inputs).logits
        for name in ("EncoderDecoderModel", "AutoModelForSeq2SeqLM"):
            model, report = getattr(transformers, name).from_pretrained(
                tmp_path / "again", output_loading_info=True
            )
            assert heard.messages == [] and not any(report.values())
            torch.testing.assert_close(model.eval()(**inputs).logits, expected)
        # The ends are found in config.json.
        made = model.generate(**their_inputs(rows), max_length=6)
    assert made[:, 0].tolist() == [START] * 3 and model.generation_config.eos_token_id == END
    back = formats.read(tmp_path / "again")
    assert (back.config, back.decoder) == (read.config, read.decoder)
    assert (back.start_id, back.end_id) == (START, END)


@pytest.mark.parametrize(
    "options",
    [{}, {"beams": 4, "early_stopping": "never", "length_penalty": 2.0, **LATE}],
    ids=["greedy", "beams"],
)
def test_an_export_finds_our_targets_without_an_option(tmp_path, options):
    """A search goes into an export, and comes back from a file that transformers wrote."""
    saved = of_berts("none")
    saved.save_pretrained(tmp_path / "hf")
    chosen = {"beams": 1, "length_penalty": 1.0, "early_stopping": "false", "no_repeat_ngram": 3}
    chosen |= {"max_target_length": TARGET, "min_new_tokens": 0, **options}
    read = dataclasses.replace(
        formats.read(tmp_path / "hf"), generation=generation_config.of_options(chosen)
    )
    formats.write(read, tmp_path / "again", format="huggingface")
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "again")
    rows, _ = rows_of(24)
    with torch.no_grad():
        found = theirs.eval().generate(**their_inputs(rows))
    ours = assert_same_search(saved, read, rows, **options, no_repeat_ngram=3)
    assert [until_end(row) for row in found[:, 1:]] == ours
    theirs.save_pretrained(tmp_path / "released")
    back = generation_config.options(formats.read(tmp_path / "released").generation)
    assert chosen | back == chosen and back["max_target_length"] == TARGET


def test_the_encoder_alone_is_a_bert_with_their_pooler(tmp_path, heard):
    theirs = of_berts("none")
    theirs.save_pretrained(tmp_path / "hf")
    encoder = formats.read(tmp_path / "hf", head="none")
    assert (encoder.head, encoder.model_type, encoder.decoder) == ("none", "bert", None)
    formats.write(encoder, tmp_path / "encoder", format="huggingface")
    heard.clear()
    model = transformers.AutoModel.from_pretrained(tmp_path / "encoder")
    assert heard.messages == []
    for path, tensor in theirs.encoder.state_dict().items():
        torch.testing.assert_close(model.state_dict()[path], tensor, rtol=0, atol=0)
