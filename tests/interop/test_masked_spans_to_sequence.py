"""Losses and gradients of MASS's and BART's rows, compared with transformers' BART."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bertjax.convert import families, formats, names, pretrained, workdir
from bertjax.data import sequence_rows
from bertjax.models import decoder_sharing, parameters
from bertjax.tasks import masked_spans_to_sequence
from tests import lazily, small_modules, small_sequences
from tests.conftest import TINY
from tests.convert import weights

torch = lazily.imported("torch")
transformers = lazily.imported("transformers")

# As BART has it.
CONFIG = dataclasses.replace(TINY, **families.named("bart").traits)
MASS = dataclasses.replace(CONFIG, position_offset=0, initializer="truncated_normal")
IGNORED = -100


def of_torch(params, directory):
    """Their BART with our parameters; each of its stacks has embeddings of its own."""
    made = pretrained.Pretrained(
        config=CONFIG,
        decoder=CONFIG,
        params=decoder_sharing.with_sharing(params, "words"),
        vocabulary=None,
        head="sequence_to_sequence",
        labels={},
        source="a test",
        start_id=2,
        end_id=2,
        model_type="bart",
    )
    formats.write(made, directory, format="huggingface")
    model = transformers.BartForConditionalGeneration.from_pretrained(
        directory, attn_implementation="eager"
    )
    model = model.double().eval()
    model.final_logits_bias.requires_grad_(True)
    for it in model.modules():
        if isinstance(it, torch.nn.Embedding):
            it.padding_idx = None  # here padding has another id, which nothing sees
    return model, made.family


def loss_of_torch(model, batch):
    """Their mean cross-entropy, with the positions and the source that the decoder is to see."""
    batch = {name: torch.tensor(np.asarray(it)) for name, it in batch.items()}
    states = model.model.encoder(batch["input_ids"], batch["input_mask"]).last_hidden_state
    target = batch["target_ids"]
    embedded = model.model.shared(target)
    if "target_positions" in batch:  # theirs count from 0, so the difference is given
        table = model.model.decoder.embed_positions.weight
        places = torch.arange(target.shape[1])[None]
        embedded = embedded + table[batch["target_positions"] + 2] - table[places + 2]
    is_asked = (batch["target_mask"] != 0) & (batch["example_weights"][:, None] != 0)
    return model(
        encoder_outputs=transformers.modeling_outputs.BaseModelOutput(states),
        attention_mask=batch.get("source_mask", batch["input_mask"]),
        decoder_inputs_embeds=embedded,
        decoder_attention_mask=batch["target_mask"],
        labels=torch.where(is_asked, batch["target_labels"], IGNORED).long(),
    ).loss


@pytest.mark.parametrize("rows", sequence_rows.SEQUENCE_ROWS)
def test_losses_and_gradients_are_theirs(tmp_path, rows):
    task = masked_spans_to_sequence.MaskedSpansToSequence(CONFIG, rows)
    graphdef, params = parameters.split(small_modules.made(task.init))
    batch = small_sequences.batch(rows, CONFIG.vocab_size, rows=6)

    def objective(params):
        mean = task.loss(parameters.merge(graphdef, params), batch, key=None)["lm_loss"]
        return mean.total / mean.weight

    loss, gradient = jax.jit(jax.value_and_grad(objective))(params)
    theirs, family = of_torch(jax.tree.map(np.asarray, parameters.flat(params)), tmp_path / "hf")
    expected = loss_of_torch(theirs, batch)
    expected.backward()
    np.testing.assert_allclose(loss, expected.item(), atol=1e-5)
    found = {path: it.grad.numpy() for path, it in theirs.named_parameters() if it.grad is not None}
    found["final_logits_bias"] = theirs.final_logits_bias.grad.numpy()
    found = names.to_ours(found, family.tensors, spelling=family.spelling)
    gradient = parameters.flat(gradient)
    for path in found.keys() - gradient.keys():  # shared parameters get the sum of both
        found[path.replace("decoder", "encoder", 1)] += found.pop(path)
    assert gradient.keys() == found.keys()
    for path, leaf in gradient.items():
        np.testing.assert_allclose(leaf, found[path], atol=1e-5, err_msg=path)
        assert path.endswith("key.bias") or np.abs(found[path]).max() > 1e-4, path


def test_a_run_of_mass_is_an_encoder_decoder_of_theirs(tmp_path):
    """transformers lacks a class MASS: its BertGenerations have the same logits."""
    made = weights.make("sequence_to_sequence", config=MASS)
    workdir.write(made, tmp_path / "run")
    formats.write(formats.read(tmp_path / "run"), tmp_path / "export", format="huggingface")
    theirs = transformers.EncoderDecoderModel.from_pretrained(
        tmp_path / "export", attn_implementation="eager"
    ).eval()
    assert type(theirs.decoder).__name__ == "BertGenerationDecoder"
    batch = small_sequences.batch("mass", MASS.vocab_size, rows=6)
    task = masked_spans_to_sequence.MaskedSpansToSequence(made.config)
    graphdef, _ = parameters.split(nnx.eval_shape(lambda: task.init(nnx.Rngs(0))))
    params = parameters.nested(jax.tree.map(jnp.asarray, dict(made.params)))
    ours = jax.jit(lambda params: parameters.merge(graphdef, params)(batch))(params)
    batch = {name: torch.tensor(np.asarray(it)) for name, it in batch.items()}
    with torch.no_grad():
        states = theirs.encoder(batch["input_ids"], batch["input_mask"]).last_hidden_state
        logits = theirs.decoder(
            batch["target_ids"],
            attention_mask=batch["target_mask"],
            position_ids=batch["target_positions"],
            encoder_hidden_states=states,
            encoder_attention_mask=batch["source_mask"],
        ).logits
    is_asked = np.asarray(batch["target_mask"]) != 0
    np.testing.assert_allclose(np.asarray(ours)[is_asked], logits.numpy()[is_asked], atol=1e-4)
