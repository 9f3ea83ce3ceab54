"""Transformers' training steps in Flax and torch: timed on demand, or compiled for a TPU slice.

`train_step.py`, `gpu_step.py` and `tpu_step.py` start this file in the peer's environment (see
setup_peer.sh), with an option for each field of `Job`:

    DIR/bin/python benchmarks/peer_step.py --framework=flax --batch=32 --length=128
    < RESULT {"framework": "flax", "parameters": 11267900, "loss": 10.99, ...}
    > 10
    < RESULT {"seconds": 4.2031, ...}
    DIR/bin/python benchmarks/peer_step.py --framework=flax --topology=v5e:2x2 --directory=OUT

The step is what the library's users run: loss of its own training example over all positions with
the label -100 ignored, next-sentence loss, gradients clipped at norm 1, AdamW, dropout. If
transformers has a class with an objective's loss, that class is used; if not (ELECTRA's two models
in one step, SpanBERT's boundaries, distillation), the loss is that of the released code. For a TPU
it is the `train_step` of the Flax example, which does not clip, with the tanh form of gelu.
The module level needs NumPy alone, since ours imports this file.
"""

# pyright: reportMissingImports=false
# transformers with Flax models lives in the peer's environment alone.

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import peer
import report

IGNORED_LABEL = -100
FIRST_WORD_ID = 999  # ids below are [PAD], [unused] and the specials of the released vocabularies
MASK_ID = 103  # [MASK] of the released vocabularies
# Objectives whose rows may have padding: both sides leave it out of their losses.
WITH_PADDING = ("bert", "roberta", "modernbert", "deberta", "albert")
WARM_UP_STEPS = 3
LEARNING_RATE, WEIGHT_DECAY, CLIP_NORM = 1e-4, 0.01, 1.0
COMPILE_MODES = ("none", "default", "max-autotune", "max-autotune-no-cudagraphs")
# Source: Devlin et al. 2019, section 3. Per size: layers, hidden size, heads, intermediate size.
# "tiny" is for trying the programs.
SIZES = {"base": (12, 768, 12, 3072), "large": (24, 1024, 16, 4096), "tiny": (2, 128, 2, 512)}
ALBERT_EMBEDDING_SIZE = 128
# Clark et al. 2020, table 6, and google-research/electra, configure_pretraining.py.
GENERATOR_SHARE, DISCRIMINATOR_WEIGHT, HEAD_SIZE = 4, 50.0, 64
# facebookresearch/SpanBERT, fairseq/modules/span_boundary: embeddings of places in a span.
MAX_SPAN, PLACE_SIZE = 15, 200
# transformers, examples/research_projects/distillation, README.
SOFT_WEIGHT, HARD_WEIGHT, COSINE_WEIGHT, TEMPERATURE = 5.0, 2.0, 1.0, 2.0
DATA = "data"  # the mesh axis that splits the batch
NORMS = ("layernorm", "layer_norm", "ln")  # as the Flax example looks for them

Batch = Mapping[str, Any]
Loss = Callable[[Batch], Any]


@dataclasses.dataclass(frozen=True)
class Job:
    """The model and batch to time; the defaults are BERT-mini at 32 x 128.

    `fill` is the share of the positions that hold tokens, the rest being padding at the ends of the
    rows.
    """

    framework: str = "flax"
    hidden_size: int = 256
    num_layers: int = 4
    num_heads: int = 4
    intermediate_size: int = 1024
    vocab_size: int = 30522
    batch: int = 32
    length: int = 128
    predictions: int = 20
    dtype: str = "float32"
    dropout: float = 0.1
    torch_compile: str = "none"
    objective: str = "bert"
    fill: float = 1.0
    seed: int = 0

    @property
    def flags(self) -> list[str]:
        """The options of the command line that make it, but for its framework."""
        fields = dataclasses.asdict(self).items()
        return [f"--{name}={value}" for name, value in fields if name != "framework"]


@dataclasses.dataclass(frozen=True)
class Trainer:
    """A compiled or ready step: `run(n)` makes n updates, waits for them, returns the last loss."""

    run: Callable[[int], float]
    parameters: int
    versions: dict[str, str]


def random_batch(job: Job) -> dict[str, np.ndarray]:
    """Returns a batch of random words with the feature names of BERT records, by its seed.

    Words are masked in rows of any length alike: what lies in the padding has no weight.
    """
    rng = np.random.default_rng([job.seed, job.batch, job.length])
    shape = (job.batch, job.length)
    first_word = min(FIRST_WORD_ID, job.vocab_size // 2)
    ids = rng.integers(first_word, job.vocab_size, shape)
    order = rng.permuted(np.tile(np.arange(1, job.length), (job.batch, 1)), axis=1)
    positions = np.sort(order[:, : job.predictions], axis=1)
    masked_ids = rng.integers(first_word, job.vocab_size, positions.shape)
    pair_labels = rng.integers(0, 2, (job.batch, 1))
    lengths = _lengths(job, rng)[:, None]
    mask = np.arange(job.length) < lengths
    segments = (np.arange(job.length) >= job.length // 2) & mask
    return {
        "input_ids": np.where(mask, ids, 0).astype(np.int32),
        "input_mask": mask.astype(np.int32),
        "segment_ids": segments.astype(np.int32),
        "masked_lm_positions": positions.astype(np.int32),
        "masked_lm_ids": masked_ids.astype(np.int32),
        "masked_lm_weights": (positions < lengths).astype(np.float32),
        "next_sentence_labels": pair_labels.astype(np.int32),
    }


def _lengths(job: Job, rng: np.random.Generator) -> np.ndarray:
    """Returns the tokens of each row: as far below the mean as above it, all full where it is 1."""
    spread = min(job.fill, 1 - job.fill)
    shares = rng.permutation(np.linspace(job.fill - spread, job.fill + spread, job.batch))
    return np.clip(np.rint(shares * job.length), 2, job.length).astype(np.int32)


def dense_labels(batch: Batch) -> np.ndarray:
    """Returns a label per position [batch, length], -100 where nothing is to be predicted."""
    labels = np.full(batch["input_ids"].shape, IGNORED_LABEL, np.int32)
    asked = np.where(batch["masked_lm_weights"] > 0, batch["masked_lm_ids"], IGNORED_LABEL)
    np.put_along_axis(labels, batch["masked_lm_positions"], asked, axis=1)
    return labels


def sizes_of(job: Job) -> dict[str, Any]:
    """Returns the fields of a transformers configuration that all encoders of BERT's shape have."""
    return {
        "vocab_size": job.vocab_size,
        "hidden_size": job.hidden_size,
        "num_hidden_layers": job.num_layers,
        "num_attention_heads": job.num_heads,
        "intermediate_size": job.intermediate_size,
        "hidden_dropout_prob": job.dropout,
        "attention_probs_dropout_prob": job.dropout,
        "max_position_embeddings": max(512, job.length),
        "attn_implementation": "sdpa",
    }


def _inputs(batch: Batch) -> dict[str, Any]:
    return {"input_ids": batch["input_ids"], "attention_mask": batch["input_mask"]}


def _with_pairs(model: Any, pair_labels: str) -> tuple[Any, Loss]:
    """Returns a model that computes the losses of masked tokens and of pairs itself."""

    def loss(batch: Batch) -> Any:
        return model(
            **_inputs(batch),
            token_type_ids=batch["segment_ids"],
            labels=batch["labels"],
            **{pair_labels: batch["next_sentence_labels"]},
        ).loss

    return model, loss


def bert(job: Job) -> tuple[Any, Loss]:
    """BertForPreTraining: masked tokens and the next sentence."""
    import transformers

    config = transformers.BertConfig(**sizes_of(job))
    return _with_pairs(transformers.BertForPreTraining(config), "next_sentence_label")


def roberta(job: Job) -> tuple[Any, Loss]:
    """RobertaForMaskedLM."""
    import transformers

    sizes = sizes_of(job)
    sizes["max_position_embeddings"] += 2
    config = transformers.RobertaConfig(**sizes, type_vocab_size=1, layer_norm_eps=1e-5)
    model = transformers.RobertaForMaskedLM(config)
    return model, lambda batch: model(**_inputs(batch), labels=batch["labels"]).loss


def modernbert(job: Job) -> tuple[Any, Loss]:
    """ModernBertForMaskedLM, without dropout, windows of 64 to each side in two of three layers."""
    import transformers

    sizes = sizes_of(job)
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
        del sizes[name]
    # Its padding would be an id that a smaller vocabulary lacks.
    ids = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
    ids |= dict.fromkeys(("cls_token_id", "sep_token_id"))
    model = transformers.ModernBertForMaskedLM(transformers.ModernBertConfig(**sizes, **ids))
    return model, lambda batch: model(**_inputs(batch), labels=batch["labels"]).loss


def deberta(job: Job) -> tuple[Any, Loss]:
    """DebertaV2ForMaskedLM with the relative attention of DeBERTa-v3."""
    import transformers

    config = transformers.DebertaV2Config(
        **(sizes_of(job) | {"attn_implementation": "eager"}),  # it has no other
        type_vocab_size=0,
        layer_norm_eps=1e-7,
        relative_attention=True,
        position_buckets=256,
        pos_att_type=["p2c", "c2p"],
        share_att_key=True,
        norm_rel_ebd="layer_norm",
        position_biased_input=False,
    )
    model = transformers.DebertaV2ForMaskedLM(config)
    return model, lambda batch: model(**_inputs(batch), labels=batch["labels"]).loss


def albert(job: Job) -> tuple[Any, Loss]:
    """AlbertForPreTraining: masked tokens and the order of sentences."""
    import transformers

    config = transformers.AlbertConfig(
        **sizes_of(job), embedding_size=ALBERT_EMBEDDING_SIZE, hidden_act="gelu_new"
    )
    return _with_pairs(transformers.AlbertForPreTraining(config), "sentence_order_label")


def electra(job: Job) -> tuple[Any, Loss]:
    """ElectraForMaskedLM fills masks, ElectraForPreTraining judges what it sampled."""
    import torch
    import transformers

    sizes = sizes_of(job)
    generator_size = job.hidden_size // GENERATOR_SHARE
    smaller = sizes | {
        "hidden_size": generator_size,
        "num_attention_heads": max(1, generator_size // HEAD_SIZE),
        "intermediate_size": 4 * generator_size,
    }
    generator, discriminator = (
        model(transformers.ElectraConfig(**fields, embedding_size=job.hidden_size))
        for model, fields in (
            (transformers.ElectraForMaskedLM, smaller),
            (transformers.ElectraForPreTraining, sizes),
        )
    )
    generator.electra.embeddings = discriminator.electra.embeddings
    generator.tie_weights()

    def loss(batch: Batch) -> Any:
        is_masked = batch["labels"] >= 0
        masked = batch["input_ids"].masked_fill(is_masked, MASK_ID)
        mask = batch["input_mask"]
        filled = generator(input_ids=masked, attention_mask=mask, labels=batch["labels"])
        with torch.no_grad():
            noise = torch.rand_like(filled.logits).clamp_(1e-9, 1 - 1e-7)
            sampled = (filled.logits - torch.log(-torch.log(noise))).argmax(-1)
        judged = torch.where(is_masked, sampled, batch["input_ids"])
        original = torch.where(is_masked, batch["labels"], batch["input_ids"])
        told = discriminator(
            input_ids=judged, attention_mask=mask, labels=(judged != original).long()
        )
        return filled.loss + DISCRIMINATOR_WEIGHT * told.loss

    return torch.nn.ModuleList([generator, discriminator]), loss


def spanbert(job: Job) -> tuple[Any, Loss]:
    """BertForMaskedLM, and the head that predicts a token from the two next to its span."""
    import torch
    import transformers

    model = transformers.BertForMaskedLM(
        transformers.BertConfig(**sizes_of(job), type_vocab_size=1)
    )

    def layer(inputs: int) -> list[Any]:
        size = job.hidden_size
        return [torch.nn.Linear(inputs, size), torch.nn.GELU(), torch.nn.LayerNorm(size)]

    head = torch.nn.ModuleDict(
        {
            "place": torch.nn.Embedding(MAX_SPAN, PLACE_SIZE),
            "dense": torch.nn.Sequential(
                *layer(2 * job.hidden_size + PLACE_SIZE), *layer(job.hidden_size)
            ),
        }
    )
    bias = torch.nn.Parameter(torch.zeros(job.vocab_size))
    head.register_parameter("bias", bias)

    def loss(batch: Batch) -> Any:
        made = model(**_inputs(batch), labels=batch["labels"], output_hidden_states=True)
        states, positions = made.hidden_states[-1], batch["masked_lm_positions"]
        sides = [
            states.gather(
                1, places.clamp(0, job.length - 1)[..., None].expand(-1, -1, states.shape[-1])
            )
            for places in (positions - 1, positions + 1)
        ]
        place = head["place"](torch.zeros_like(positions))  # random masks are spans of one token
        told = head["dense"](torch.cat([*sides, place], -1))
        logits = told @ model.get_input_embeddings().weight.T + bias
        boundary = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), batch["masked_lm_ids"].flatten()
        )
        return made.loss + boundary

    return torch.nn.ModuleList([model, head]), loss


def left_to_right(job: Job) -> tuple[Any, Loss]:
    """BertLMHeadModel as a decoder: the next token at every position."""
    import transformers

    config = transformers.BertConfig(**sizes_of(job), is_decoder=True)
    model = transformers.BertLMHeadModel(config)

    def loss(batch: Batch) -> Any:
        return model(**_inputs(batch), labels=batch["input_ids"], use_cache=False).loss

    return model, loss


def distilbert(job: Job) -> tuple[Any, Loss]:
    """DistilBertForMaskedLM of half the layers, taught by BertForMaskedLM."""
    import torch
    import transformers

    functional = torch.nn.functional
    sizes = sizes_of(job)
    teacher = transformers.BertForMaskedLM(transformers.BertConfig(**sizes)).eval()
    teacher.requires_grad_(False)
    student = transformers.DistilBertForMaskedLM(
        transformers.DistilBertConfig(
            vocab_size=job.vocab_size,
            dim=job.hidden_size,
            n_layers=job.num_layers // 2,
            n_heads=job.num_heads,
            hidden_dim=job.intermediate_size,
            dropout=job.dropout,
            attention_dropout=job.dropout,
            **{name: sizes[name] for name in ("max_position_embeddings", "attn_implementation")},
        )
    )

    def loss(batch: Batch) -> Any:
        made = student(**_inputs(batch), labels=batch["labels"], output_hidden_states=True)
        with torch.no_grad():
            taught = teacher(**_inputs(batch), output_hidden_states=True)
        soft = functional.kl_div(
            functional.log_softmax(made.logits.flatten(0, 1) / TEMPERATURE, -1),
            functional.softmax(taught.logits.flatten(0, 1) / TEMPERATURE, -1),
            reduction="batchmean",
        )
        angle = 1 - functional.cosine_similarity(
            made.hidden_states[-1], taught.hidden_states[-1], dim=-1
        )
        soft = soft * TEMPERATURE**2
        return SOFT_WEIGHT * soft + HARD_WEIGHT * made.loss + COSINE_WEIGHT * angle.mean()

    return torch.nn.ModuleList([student, teacher]), loss


# Name -> what makes its models of a job, and the loss of a batch of tensors.
OBJECTIVES: dict[str, Callable[[Job], tuple[Any, Loss]]] = {
    it.__name__: it
    for it in (
        *(bert, roberta, modernbert, deberta, albert),
        *(electra, spanbert, left_to_right, distilbert),
    )
}


def build_flax(job: Job, batch: Batch) -> Trainer:
    """Returns the step of FlaxBertForPreTraining: one jitted call, its state donated.

    Raises:
      ValueError: if the job has another objective than BERT's.
    """
    if job.objective != "bert":
        raise ValueError(f"--objective={job.objective} needs --peers=torch: flax has BERT's alone")
    import jax
    import jax.numpy as jnp
    import optax
    import transformers

    model = transformers.FlaxBertForPreTraining(
        transformers.BertConfig(**sizes_of(job)),
        input_shape=(1, job.length),
        seed=job.seed,
        dtype=jnp.dtype(job.dtype),
    )
    optimizer = optax.chain(
        optax.clip_by_global_norm(CLIP_NORM),
        optax.adamw(LEARNING_RATE, weight_decay=WEIGHT_DECAY),
    )
    inputs = {
        "input_ids": jnp.asarray(batch["input_ids"]),
        "attention_mask": jnp.asarray(batch["input_mask"]),
        "token_type_ids": jnp.asarray(batch["segment_ids"]),
    }
    labels = jnp.asarray(dense_labels(batch))
    next_sentence_labels = jnp.asarray(batch["next_sentence_labels"][:, 0])

    def update(state, inputs, labels, next_sentence_labels):
        key, dropout_key = jax.random.split(state["key"])

        def loss_of(params):
            outputs = model(**inputs, params=params, dropout_rng=dropout_key, train=True)
            mlm, pair = loss_sums(outputs, labels, next_sentence_labels)
            return mlm / (labels > 0).sum() + pair / job.batch

        loss, gradients = jax.value_and_grad(loss_of)(state["params"])
        updates, opt_state = optimizer.update(gradients, state["opt_state"], state["params"])
        params = optax.apply_updates(state["params"], updates)
        return {"params": params, "opt_state": opt_state, "key": key}, loss

    state = {"params": model.params, "opt_state": optimizer.init(model.params)}
    state["key"] = jax.random.key(job.seed)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(model.params))
    step = jax.jit(update, donate_argnums=0)

    def run(steps: int) -> float:
        nonlocal state
        loss = jnp.nan
        for _ in range(steps):
            state, loss = step(state, inputs, labels, next_sentence_labels)
        jax.block_until_ready(state)
        return float(loss)

    return Trainer(
        run, parameters, report.versions("transformers", "jax", "jaxlib", "flax", "optax")
    )


def build_torch(job: Job, batch: Batch) -> Trainer:
    """Returns the step of transformers' models in torch, with the loss of the job's objective."""
    import torch

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    torch.manual_seed(job.seed)
    device = "cpu"
    if torch.cuda.is_available():
        device = "cuda"
        torch.set_float32_matmul_precision("high")
    model, loss_of = OBJECTIVES[job.objective](job)
    model.to(device)
    if job.torch_compile != "none":
        model.compile(mode=None if job.torch_compile == "default" else job.torch_compile)
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    # On CPU the fused form and the foreach form measure alike.
    optimizer = torch.optim.AdamW(learning, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=True)
    features = {
        **batch,
        "labels": dense_labels(batch),
        "next_sentence_labels": batch["next_sentence_labels"][:, 0],
    }
    inputs = {name: torch.tensor(value, device=device).long() for name, value in features.items()}
    low_precision = torch.autocast(device, torch.bfloat16, enabled=job.dtype == "bfloat16")

    def run(steps: int) -> float:
        loss = torch.tensor(float("nan"))
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=True)
            with low_precision:
                loss = loss_of(inputs)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(learning, CLIP_NORM)
            optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()
        return float(loss.detach())

    parameters = sum(parameter.numel() for parameter in learning)
    return Trainer(run, parameters, report.versions("transformers", "torch"))


def loss_sums(outputs: Any, labels: Any, next_sentence_labels: Any) -> tuple[Any, Any]:
    """Returns the sums of both losses over this device's rows.

    Source: transformers v4.57.6, examples/flax/language-modeling/run_mlm_flax.py, `train_step`:
    one-hot cross-entropy at every position, kept where there is a label. The example has no
    next-sentence loss; that of FlaxBertForPreTraining's second output is added.
    """
    import jax
    import jax.numpy as jnp
    import optax

    logits = outputs.prediction_logits
    is_label = jnp.where(labels > 0, 1.0, 0.0)
    one_hot = jax.nn.one_hot(labels, logits.shape[-1])
    mlm = (optax.softmax_cross_entropy(logits, one_hot) * is_label).sum()
    pair = optax.softmax_cross_entropy_with_integer_labels(
        outputs.seq_relationship_logits, next_sentence_labels
    )
    return mlm, pair.sum()


def make_optimizer() -> Any:
    """Returns optax's AdamW, without decay on biases and LayerNorm, as the example makes it."""
    import optax
    from flax import traverse_util

    def decayed(params: Any) -> Any:
        flat = traverse_util.flatten_dict(params)
        is_norm = {path: any(name in "".join(path[-2:]).lower() for name in NORMS) for path in flat}
        return traverse_util.unflatten_dict(
            {path: path[-1] != "bias" and not is_norm[path] for path in flat}
        )

    return optax.adamw(LEARNING_RATE, weight_decay=WEIGHT_DECAY, mask=decayed)


def device_step(model: Any, optimizer: Any, batch_size: int) -> Any:
    """Returns the example's `train_step` as one device runs it, with its own dropout key.

    Gradients are summed over devices before they are divided by the number of labels, as there.
    """
    import jax
    import jax.numpy as jnp
    import optax

    def step(state: dict[str, Any], batch: dict[str, Any], dropout_keys: Any) -> Any:
        dropout_key, new_key = jax.random.split(dropout_keys[0])
        num_labels = jax.lax.psum(jnp.where(batch["labels"] > 0, 1.0, 0.0).sum(), DATA)

        def loss_of(params: Any) -> Any:
            outputs = model(
                batch["input_ids"],
                attention_mask=batch["attention_mask"],
                token_type_ids=batch["token_type_ids"],
                params=params,
                dropout_rng=dropout_key,
                train=True,
            )
            mlm, pair = loss_sums(outputs, batch["labels"], batch["next_sentence_labels"])
            return mlm / num_labels + pair / batch_size

        loss, gradients = jax.value_and_grad(loss_of)(state["params"])
        loss, gradients = jax.lax.psum((loss, gradients), DATA)
        updates, opt_state = optimizer.update(gradients, state["opt_state"], state["params"])
        params = optax.apply_updates(state["params"], updates)
        return {"params": params, "opt_state": opt_state}, loss, new_key[None]

    return step


def lower(job: Job, topology: str) -> Any:
    """Returns the lowered step over a data-parallel mesh of the slice's devices, state donated.

    The example calls `jax.pmap`; `jax.shard_map` over one axis is the same program in one `jit`.
    """
    import jax
    import jax.numpy as jnp
    import transformers
    from flax import core
    from jax.experimental import topologies
    from jax.sharding import NamedSharding, PartitionSpec

    slice_ = topologies.get_topology_desc(platform="tpu", topology_name=topology)
    mesh = jax.sharding.Mesh(np.asarray(slice_.devices), (DATA,))
    rows = PartitionSpec(DATA)
    model = transformers.FlaxBertForPreTraining(
        transformers.BertConfig(**sizes_of(job), hidden_act="gelu_new"),
        input_shape=(1, job.length),
        dtype=jnp.dtype(job.dtype),
        _do_init=False,
    )
    params = core.unfreeze(model.params_shape_tree)
    optimizer = make_optimizer()
    state = {"params": params, "opt_state": jax.eval_shape(optimizer.init, params)}
    names = ("input_ids", "attention_mask", "token_type_ids", "labels")
    batch = {name: jax.ShapeDtypeStruct((job.batch, job.length), np.int32) for name in names}
    batch["next_sentence_labels"] = jax.ShapeDtypeStruct((job.batch,), np.int32)

    def place(tree: Any, spec: Any) -> Any:
        where = NamedSharding(mesh, spec)
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where), tree
        )

    step = jax.shard_map(
        device_step(model, optimizer, job.batch),
        mesh=mesh,
        in_specs=(PartitionSpec(), rows, rows),
        out_specs=(PartitionSpec(), PartitionSpec(), rows),
        check_vma=False,
    )
    keys = jax.ShapeDtypeStruct((mesh.size, 2), np.uint32)
    return jax.jit(step, donate_argnums=(0, 2)).lower(
        place(state, PartitionSpec()), place(batch, rows), place(keys, rows)
    )


def prepare_process() -> None:
    """Makes JAX compile for TPUs that are not there: to be called before JAX is imported."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    # Nothing is run on a TPU here, so another process may compile at the same time.
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")


def shape(job: Job, topology: str) -> dict[str, Any]:
    """Returns what tells compiled steps apart."""
    names = ("batch", "length", "num_layers", "hidden_size")
    return {"topology": topology, **{name: getattr(job, name) for name in names}}


def save(
    path: pathlib.Path,
    of: Mapping[str, Any],
    lowered: Any,
    package: str,
) -> None:
    """Compiles and writes PATH.hlo.txt and PATH.json: `of`, the compiler's numbers per device."""
    started = time.perf_counter()
    compiled = lowered.compile()
    seconds = time.perf_counter() - started
    facts = {
        "shape": dict(of),
        "peak_bytes": compiled.memory_analysis().peak_memory_in_bytes,
        "bytes_accessed": compiled.cost_analysis().get("bytes accessed"),
        "compile_seconds": round(seconds, 1),
        "versions": report.versions(package, "jax", "jaxlib", "flax", "optax", "libtpu"),
    }
    path.with_name(f"{path.name}.hlo.txt").write_text(compiled.as_text())
    path.with_name(f"{path.name}.json").write_text(json.dumps(facts, indent=2) + "\n")


def jax_device() -> dict[str, Any]:
    """Returns "gpu" or "cpu", the device's name, and its peak memory in bytes if that is known."""
    import jax

    device = jax.devices()[0]
    peak_bytes = (device.memory_stats() or {}).get("peak_bytes_in_use")
    return {"platform": device.platform, "device": device.device_kind, "peak_bytes": peak_bytes}


def torch_device() -> dict[str, Any]:
    """Returns `jax_device` of torch."""
    import torch

    platform, name, peak_bytes = "cpu", f"cpu, {torch.get_num_threads()} threads", None
    if torch.cuda.is_available():
        platform, name = "gpu", torch.cuda.get_device_name()
        peak_bytes = torch.cuda.max_memory_allocated()
    return {"platform": platform, "device": name, "peak_bytes": peak_bytes}


Build = Callable[[Job, Batch], Trainer]
FRAMEWORKS: dict[str, Build] = {"flax": build_flax, "torch": build_torch}


def serve(job: Job, build: Build, device: str) -> None:
    """Warms up, tells of the step, then answers a number of steps with the seconds they took.

    Raises:
      RuntimeError: if there is another kind of device than asked.
    """
    started = time.perf_counter()
    device_of = torch_device if job.framework == "torch" else jax_device
    found = device_of()
    if device not in ("", found["platform"]):
        raise RuntimeError(
            f"{job.framework} has {found['device']}, asked is a {device}: install it with CUDA, or "
            "try the script with --device=cpu --sizes=tiny"
        )
    trainer = build(job, random_batch(job))
    loss = trainer.run(WARM_UP_STEPS)
    peer.tell(
        **dataclasses.asdict(job),
        **found,
        loss=loss,
        parameters=trainer.parameters,
        versions=trainer.versions,
        start_seconds=time.perf_counter() - started,
    )

    def timed(steps: int) -> dict[str, Any]:
        begun = time.perf_counter()
        trainer.run(steps)
        seconds = time.perf_counter() - begun
        return {"seconds": seconds, "peak_bytes": device_of()["peak_bytes"]}

    peer.serve(timed)


def main(arguments: Sequence[str], frameworks: Mapping[str, Build] = FRAMEWORKS) -> None:
    """Serves the step of the command line, or compiles it for a slice."""
    parser = argparse.ArgumentParser(description="See the head of this file.")
    choices = {
        "framework": tuple(frameworks),
        "dtype": ("float32", "bfloat16"),
        "torch_compile": COMPILE_MODES,
        "objective": tuple(OBJECTIVES),
    }
    for field in dataclasses.fields(Job):
        kind, allowed = type(field.default), choices.get(field.name)
        parser.add_argument(f"--{field.name}", type=kind, default=field.default, choices=allowed)
    parser.add_argument("--device", default="", help="gpu or cpu, where it must be this")
    parser.add_argument("--topology", help="libtpu's name of a slice to compile for")
    parser.add_argument("--directory", type=pathlib.Path, help="for the compiled step")
    options = parser.parse_args(arguments)
    job = Job(**{field.name: getattr(options, field.name) for field in dataclasses.fields(Job)})
    if not 0 < job.fill <= 1 or (job.fill < 1 and job.objective not in WITH_PADDING):
        parser.error(
            f"--fill is {job.fill}; it must be in (0, 1], and 1 unless --objective is one of "
            f"{', '.join(WITH_PADDING)}: the others' losses here do not tell padding apart"
        )
    if not options.topology:
        serve(job, frameworks[job.framework], options.device)
        return
    prepare_process()
    of, lowered = shape(job, options.topology), lower(job, options.topology)
    save(options.directory / "transformers", of, lowered, "transformers")


if __name__ == "__main__":
    main(sys.argv[1:])
