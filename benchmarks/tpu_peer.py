"""Transformers' BERT in Flax, its training step compiled for a TPU slice that need not be there.

`tpu_step.py` starts this file in the peer's own virtual environment (see setup_peer.sh) and reads
what it leaves in the directory:

    DIR/bin/python benchmarks/tpu_peer.py --topology=v5e:2x2 --layers=2 --directory=OUT
    OUT/transformers.hlo.txt  the optimized program, with the compiler's cycle estimates
    OUT/transformers.json     memory, bytes, versions

The step is what the library's users ran: FlaxBertForPreTraining in bfloat16 on float32 parameters
and the `train_step` of its training example. The module level needs the standard library alone, so
that ours can import `Shape` and `save` from here.
"""

# pyright: reportMissingImports=false
# transformers with Flax models lives in the peer's environment alone.

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import time
from collections.abc import Mapping
from importlib import metadata
from typing import Any

NAME = "transformers"
LEARNING_RATE = 1e-4
WEIGHT_DECAY = 0.01
DATA = "data"  # the mesh axis that splits the batch
NORMS = ("layernorm", "layer_norm", "ln")  # as the example looks for them
VOCAB_SIZE = 30522
# Source: Devlin et al. 2019, section 3. Per size: layers, hidden size, heads, intermediate size.
# "tiny" is for trying the programs.
SIZES = {"base": (12, 768, 12, 3072), "large": (24, 1024, 16, 4096), "tiny": (2, 128, 2, 512)}


@dataclasses.dataclass(frozen=True)
class Shape:
    """The step to compile on both sides. `topology` is libtpu's name; `batch_size` is global."""

    topology: str = "v5e:2x2"
    batch_size: int = 256
    length: int = 128
    layers: int = 12
    size: str = "base"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds an option per field of `Shape`."""
    parser.add_argument("--topology", default="v5e:2x2", help="libtpu's name of the slice")
    parser.add_argument("--batch_size", type=int, default=256, help="sequences, of all devices")
    parser.add_argument("--length", type=int, default=128, help="tokens a sequence")
    parser.add_argument("--layers", type=int, help="instead of the size's own number")
    parser.add_argument("--size", choices=tuple(SIZES), default="base")


def shape_of(options: argparse.Namespace) -> Shape:
    """Returns the shape that the options of `add_arguments` ask for."""
    layers = options.layers or SIZES[options.size][0]
    return Shape(options.topology, options.batch_size, options.length, layers, options.size)


def prepare_process() -> None:
    """Makes JAX compile for TPUs that are not there: to be called before JAX is imported."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    # Nothing is run on a TPU here, so another process may compile at the same time.
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")


def bert_config(shape: Shape) -> Any:
    """Returns the transformers configuration, with the tanh form of gelu."""
    import transformers

    _, hidden_size, num_heads, intermediate_size = SIZES[shape.size]
    return transformers.BertConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=hidden_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=num_heads,
        intermediate_size=intermediate_size,
        hidden_act="gelu_new",
        max_position_embeddings=max(512, shape.length),
    )


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


def lower(shape: Shape) -> Any:
    """Returns the lowered step over a data-parallel mesh of the slice's devices, state donated.

    The example calls `jax.pmap`; `jax.shard_map` over one axis is the same program in one `jit`.
    """
    import jax
    import jax.numpy as jnp
    import numpy as np
    import transformers
    from jax.experimental import topologies
    from jax.sharding import NamedSharding, PartitionSpec

    slice_ = topologies.get_topology_desc(platform="tpu", topology_name=shape.topology)
    mesh = jax.sharding.Mesh(np.asarray(slice_.devices), (DATA,))
    rows = PartitionSpec(DATA)
    model = transformers.FlaxBertForPreTraining(
        bert_config(shape), input_shape=(1, shape.length), dtype=jnp.bfloat16, _do_init=False
    )
    params = transformers_params(model)
    optimizer = make_optimizer()
    state = {"params": params, "opt_state": jax.eval_shape(optimizer.init, params)}

    def place(tree: Any, spec: Any) -> Any:
        where = NamedSharding(mesh, spec)
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where), tree
        )

    step = jax.shard_map(
        device_step(model, optimizer, shape.batch_size),
        mesh=mesh,
        in_specs=(PartitionSpec(), rows, rows),
        out_specs=(PartitionSpec(), PartitionSpec(), rows),
        check_vma=False,
    )
    keys = jax.ShapeDtypeStruct((mesh.size, 2), np.uint32)
    return jax.jit(step, donate_argnums=(0, 2)).lower(
        place(state, PartitionSpec()), place(batch_shapes(shape), rows), place(keys, rows)
    )


def transformers_params(model: Any) -> Any:
    """Returns the shapes of the model's parameters as a plain dict."""
    from flax import core

    return core.unfreeze(model.params_shape_tree)


def batch_shapes(shape: Shape) -> dict[str, Any]:
    """Returns the shapes of the batch with the example's names and int32 values."""
    import jax
    import numpy as np

    tokens = jax.ShapeDtypeStruct((shape.batch_size, shape.length), np.int32)
    by_row = jax.ShapeDtypeStruct((shape.batch_size,), np.int32)
    names = ("input_ids", "attention_mask", "token_type_ids", "labels")
    return {name: tokens for name in names} | {"next_sentence_labels": by_row}


def save(
    name: str,
    shape: Shape,
    lowered: Any,
    directory: pathlib.Path,
    *,
    packages: tuple[str, ...],
    compiler_options: Mapping[str, str] | None = None,
) -> None:
    """Compiles and writes NAME.hlo.txt and NAME.json, the compiler's own numbers, per device."""
    started = time.perf_counter()
    compiled = lowered.compile(dict(compiler_options) if compiler_options else None)
    seconds = time.perf_counter() - started
    memory = compiled.memory_analysis()
    facts = {
        "shape": dataclasses.asdict(shape),
        "peak_bytes": memory.peak_memory_in_bytes,
        "argument_bytes": memory.argument_size_in_bytes,
        "output_bytes": memory.output_size_in_bytes,
        "aliased_bytes": memory.alias_size_in_bytes,
        "temporary_bytes": memory.temp_size_in_bytes,
        "code_bytes": memory.generated_code_size_in_bytes,
        "bytes_accessed": compiled.cost_analysis().get("bytes accessed"),
        "compile_seconds": round(seconds, 1),
        "versions": {package: metadata.version(package) for package in packages},
    }
    (directory / f"{name}.hlo.txt").write_text(compiled.as_text())
    (directory / f"{name}.json").write_text(json.dumps(facts, indent=2) + "\n")


def main() -> None:
    """Compiles the asked step and saves what the compiler says of it."""
    parser = argparse.ArgumentParser(description="See the head of this file.")
    add_arguments(parser)
    parser.add_argument("--directory", type=pathlib.Path, required=True, help="for the results")
    options = parser.parse_args()
    prepare_process()
    options.directory.mkdir(parents=True, exist_ok=True)
    packages = ("transformers", "jax", "jaxlib", "flax", "optax", "libtpu")
    shape = shape_of(options)
    save(NAME, shape, lower(shape), options.directory, packages=packages)


if __name__ == "__main__":
    main()
