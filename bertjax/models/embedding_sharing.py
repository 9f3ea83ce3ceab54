"""Two encoders that share embeddings, as ELECTRA's: the stored parameters, and both encoders whole.

The parameters hold the discriminator, which is the model to use, at `encoder`, and the generator at
`generator.encoder`. NNX modules share nothing: `apart` makes the tie wherever the two are used. In
training it is a function of the parameters, with the gradient of the tie; a reader of a workdir
gets two independent models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from bertjax.models import parameters

GENERATOR = "generator"  # the path of the model whose encoder is at generator.encoder

# Source: google-research/electra, model/modeling.py: both enter the scope electra/embeddings, which
# holds the LayerNorm as well. Each has its own projection.
SHARED = ("word", "position", "segment", "language", "norm")
# Source: microsoft/DeBERTa, rtd_task.py. (Its models have no segments; it shares no LayerNorm.)
DISENTANGLED = ("word", "position")

# Siblings of an encoder with an output bias for each entry of the vocabulary.
_HEADS = ("mlm_head", "lm_head", "sbo_head")

_OURS, _THEIRS = "encoder.embeddings", f"{GENERATOR}.encoder.embeddings"


def delta(name: str) -> str:
    """Returns the name of the table that is added to the generator's."""
    return f"{name}_delta"


def vocabulary_parameters(params: Mapping[str, Any]) -> set[str]:
    """Returns the paths of nested parameters that have a row for each entry of the vocabulary.

    They are the word embeddings, and the heads' biases or own tables, of all encoders.
    """
    paths = parameters.encoder_paths(params)
    tables = ("word", delta("word"))
    names = {f"{path}.embeddings.{name}.embedding" for path in paths for name in tables}
    of_heads = [parameters.beside(path, head) for path in paths for head in _HEADS]
    names |= {f"{head}.{name}" for head in of_heads for name in ("bias", "output.embedding")}
    return names & parameters.flat(params).keys()


def _share(ours: nnx.Module, theirs: nnx.Module, rngs: nnx.Rngs) -> None:
    del ours, rngs
    for name in SHARED:
        if hasattr(theirs, name):  # not every encoder has segments or languages
            delattr(theirs, name)


def _disentangle(ours: nnx.Module, theirs: nnx.Module, rngs: nnx.Rngs) -> None:
    del theirs
    for name in DISENTANGLED:
        if not hasattr(ours, name):  # positions by distance have no table
            continue
        table, zeros = getattr(ours, name), nnx.initializers.zeros_init()
        added = type(table)(*table.embedding.shape, embedding_init=zeros, rngs=rngs)
        setattr(ours, delta(name), added)
        delattr(ours, name)


# Name -> the function that removes the shared embeddings from two whole encoders. `shared`: one set
# of embeddings, which gets the sum of both gradients. `gradient_disentangled`: a table of the
# discriminator is the generator's, which gets no gradient from it, plus a table that starts at zero
# (He et al. 2023, DeBERTaV3, section 3.2).
SHARINGS: dict[str, Callable[[Any, Any, nnx.Rngs], None]] = {
    "shared": _share,
    "separate": lambda ours, theirs, rngs: None,
    "gradient_disentangled": _disentangle,
}


def apart(params: Mapping[str, Any]) -> parameters.Params:
    """Returns the nested parameters with the embeddings of both encoders whole.

    Parameters of one encoder, and whole embeddings, do not change.
    """
    if GENERATOR not in params:
        return dict(params)
    whole = parameters.flat(params)
    for name in SHARED:
        if _under(whole, f"{_THEIRS}.{name}"):
            continue
        for path, leaf in _under(whole, f"{_OURS}.{name}").items():
            whole[path.replace(_OURS, _THEIRS, 1)] = leaf
    for name in DISENTANGLED:
        added = whole.pop(f"{_OURS}.{delta(name)}.embedding", None)
        if added is not None:
            table = jax.lax.stop_gradient(whole[f"{_THEIRS}.{name}.embedding"])
            # Each device may have its own copy of the generator's table.
            whole[f"{_OURS}.{name}.embedding"] = table + jnp.broadcast_to(added, table.shape)
    return parameters.nested(whole)


class WordsOfBoth(nnx.Module):
    """The discriminator's words by `gradient_disentangled`: both tables are looked up.

    Their sum, which `apart` makes, has the same rows and is as large as the vocabulary.
    """

    def __init__(self, generators: nnx.Embed, added: nnx.Embed):
        self.generators, self.added = generators, added

    def __call__(self, ids: Int[Array, "batch length"]) -> Float[Array, "batch length width"]:
        return jax.lax.stop_gradient(self.generators(ids)) + self.added(ids)


def as_stored(whole: Mapping[str, Any], paths: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parameters by path of the module with these `paths`; the inverse of `apart`.

    `whole` has two whole encoders, or one, from whose tables a generator then starts.
    """
    stored = dict(whole)
    for name in DISENTANGLED:
        ours, theirs = (f"{path}.{name}.embedding" for path in (_OURS, _THEIRS))
        added = f"{_OURS}.{delta(name)}.embedding"
        if added in paths and ours in stored:
            stored.setdefault(theirs, stored[ours])
            stored[added] = stored.pop(ours) - stored[theirs]
    return stored


def copies(params: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the paths of the generator's embeddings if all equal the encoder's, () otherwise.

    The parameters are of two whole encoders.
    """
    pairs = {
        path: path.replace(_THEIRS, _OURS, 1)
        for name in SHARED
        for path in _under(params, f"{_THEIRS}.{name}")
    }
    are_same = all(np.array_equal(params[it], params[ours]) for it, ours in pairs.items())
    return tuple(pairs) if are_same else ()


def _under(params: Mapping[str, Any], path: str) -> dict[str, Any]:
    return {name: leaf for name, leaf in params.items() if name.startswith(f"{path}.")}
