"""Losses and gradients of MASS's and BART's rows, compared with transformers' BART."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bertjax.convert import formats, workdir
from bertjax.data import sequence_rows
from bertjax.models import parameters
from bertjax.tasks import masked_spans_to_sequence
from tests import lazily, small_modules, small_sequences
from tests.conftest import TINY
from tests.convert import weights

torch = lazily.imported("torch")
transformers = lazily.imported("transformers")

# As BART has it: no segments, a head that is the table of words and a bias.
CONFIG = dataclasses.replace(TINY, type_vocab_size=0, mlm_transform=False, layer_norm_eps=1e-5)
ATTENTION = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}
IGNORED = -100


def of_layer(ours, theirs, is_decoder):
    """The paths of a layer of ours, and the names of theirs."""
    pairs = {
        **{f"attention.{one}": f"self_attn.{other}" for one, other in ATTENTION.items()},
        **{"attention_norm": "self_attn_layer_norm", "output_norm": "final_layer_norm"},
        **{"intermediate": "fc1", "output": "fc2"},
    }
    made = {f"{ours}.{one}": f"{theirs}.{other}" for one, other in pairs.items()}
    if is_decoder:
        cross = ours.replace("layers", "cross")
        for one, other in ATTENTION.items():
            made[f"{cross}.attention.{one}"] = f"{theirs}.encoder_attn.{other}"
        made[f"{cross}.norm"] = f"{theirs}.encoder_attn_layer_norm"
    return made


def names():
    """Our paths without their last name, and their names, several for what two stacks share."""
    made = {
        "encoder.embeddings.norm": ("encoder.layernorm_embedding", "decoder.layernorm_embedding")
    }
    for side in ("encoder", "decoder"):
        for number in range(CONFIG.num_hidden_layers):
            path = f"{side}.layers.{number}"
            layer = of_layer(path, path, side == "decoder")
            made |= {one: (other,) for one, other in layer.items()}
    return made


def tensors(flat):
    """Our arrays under their names, and how to add theirs up to ours."""
    made, back = {}, {}
    for path, array in flat.items():
        stem, _, leaf = path.rpartition(".")
        array = np.asarray(array)
        if path == "encoder.embeddings.word.embedding":
            of = {"shared.weight": array}
        elif path == "encoder.embeddings.position.embedding":
            rows = np.concatenate([np.zeros_like(array[:2]), array])  # two rows that none reads
            of = {f"{side}.embed_positions.weight": rows for side in ("encoder", "decoder")}
        elif path == "mlm_head.bias":
            of = {"final_logits_bias": array[None]}
        else:
            last = {"kernel": "weight", "scale": "weight", "bias": "bias"}[leaf]
            turned = array.T if leaf == "kernel" else array
            of = {f"{it}.{last}": turned for it in names()[stem]}
        made |= of
        back[path] = tuple(of)
    return made, back


def ours_of(gradients, path, theirs):
    total = sum(gradients[name] for name in theirs)
    if path.endswith("kernel"):
        return total.T
    return (
        total[2:]
        if "position" in path
        else total.reshape(total.shape[-1:])
        if "head" in path
        else total
    )


def of_torch(made):
    config = transformers.BartConfig(
        **{"vocab_size": CONFIG.vocab_size, "d_model": CONFIG.hidden_size, "dropout": 0.0},
        **{"encoder_layers": CONFIG.num_hidden_layers, "encoder_ffn_dim": CONFIG.intermediate_size},
        **{"decoder_layers": CONFIG.num_hidden_layers, "decoder_ffn_dim": CONFIG.intermediate_size},
        **{"encoder_attention_heads": CONFIG.num_attention_heads, "attention_dropout": 0.0},
        **{"decoder_attention_heads": CONFIG.num_attention_heads, "activation_dropout": 0.0},
        **{"max_position_embeddings": CONFIG.max_position_embeddings, "pad_token_id": 0},
        **{"bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2},
        attn_implementation="eager",
    )
    model = transformers.BartForConditionalGeneration(config).double().eval()
    given = {
        k if k == "final_logits_bias" else f"model.{k}": torch.tensor(v) for k, v in made.items()
    }
    missing, unexpected = model.load_state_dict(given, strict=False)
    assert not unexpected and all("embed_tokens" in it or "lm_head" in it for it in missing)
    model.final_logits_bias.requires_grad_(True)
    return model


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
def test_losses_and_gradients_are_theirs(rows):
    task = masked_spans_to_sequence.MaskedSpansToSequence(CONFIG, rows)
    graphdef, params = parameters.split(small_modules.made(task.init))
    batch = small_sequences.batch(rows, CONFIG.vocab_size, rows=6)

    def objective(params):
        mean = task.loss(parameters.merge(graphdef, params), batch, key=None)["lm_loss"]
        return mean.total / mean.weight

    loss, gradient = jax.value_and_grad(objective)(jax.tree.map(jnp.asarray, params))
    made, back = tensors({k: np.float64(v) for k, v in parameters.flat(params).items()})
    theirs = of_torch(made)
    expected = loss_of_torch(theirs, batch)
    expected.backward()
    np.testing.assert_allclose(loss, expected.item(), atol=1e-5)
    found = {
        name.removeprefix("model."): it.grad.numpy()
        for name, it in [
            *theirs.named_parameters(),
            ("final_logits_bias", theirs.final_logits_bias),
        ]
        if it.grad is not None
    }
    for path, leaf in parameters.flat(gradient).items():
        expected = ours_of(found, path, back[path])
        np.testing.assert_allclose(leaf, expected, atol=1e-5, err_msg=path)
        assert path.endswith("key.bias") or np.abs(expected).max() > 1e-4, path


def test_a_run_of_mass_is_an_encoder_decoder_of_theirs(tmp_path):
    """transformers lacks a class MASS: its BertGenerations have the same logits."""
    made = weights.make("sequence_to_sequence", config=CONFIG)
    workdir.write(made, tmp_path / "run")
    formats.write(formats.read(tmp_path / "run"), tmp_path / "export", format="huggingface")
    theirs = transformers.EncoderDecoderModel.from_pretrained(
        tmp_path / "export", attn_implementation="eager"
    ).eval()
    assert type(theirs.decoder).__name__ == "BertGenerationDecoder"
    batch = small_sequences.batch("mass", CONFIG.vocab_size, rows=6)
    task = masked_spans_to_sequence.MaskedSpansToSequence(made.config)
    graphdef, _ = parameters.split(nnx.eval_shape(lambda: task.init(nnx.Rngs(0))))
    params = parameters.nested(jax.tree.map(jnp.asarray, dict(made.params)))
    ours = parameters.merge(graphdef, params)(batch)
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
