"""Two encoders that share embeddings, as ELECTRA's: what is kept of them, and both made whole.

The parameters of such a module hold the encoder that is learnt for use, its discriminator, at
`encoder`, and the other one at `generator.encoder`. NNX modules share nothing: a tie is made
anew, by `apart`, wherever the two are used. To training it is a function of the parameters, whose
gradient is that of the tie; a reader of a workdir gets two models that do not need each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx

from bertjax.models import parameters

GENERATOR = "generator"  # where a module has the model whose encoder stands at generator.encoder

# Source: google-research/electra, model/modeling.py: the scope electra/embeddings is entered by
# both, and holds the LayerNorm as well. Each has a projection of its own.
SHARED = ("word", "position", "segment", "language", "norm")
# Source: microsoft/DeBERTa, rtd_task.py. (Its models have no segments; it shares no LayerNorm.)
DISENTANGLED = ("word", "position")

# Siblings of an encoder with an output bias for each entry of the vocabulary.
_HEADS = ("mlm_head", "lm_head", "sbo_head")

_OURS, _THEIRS = "encoder.embeddings", f"{GENERATOR}.encoder.embeddings"


def delta(name: str) -> str:
    """Returns what the table is called that is added to a generator's."""
    return f"{name}_delta"


def vocabulary_parameters(params: Mapping[str, Any]) -> set[str]:
    """Returns the paths of nested parameters that have a row for each entry of the vocabulary.

    They are the word embeddings and the output biases of the encoders that are there.
    """
    paths = parameters.encoder_paths(params)
    tables = ("word", delta("word"))
    names = {f"{path}.embeddings.{name}.embedding" for path in paths for name in tables}
    names |= {f"{parameters.beside(path, head)}.bias" for path in paths for head in _HEADS}
    return names & parameters.flat(params).keys()


def _share(ours: nnx.Module, theirs: nnx.Module, rngs: nnx.Rngs) -> None:
    del ours, rngs
    for name in SHARED:
        if hasattr(theirs, name):  # not every encoder has segments or languages
            delattr(theirs, name)


def _disentangle(ours: nnx.Module, theirs: nnx.Module, rngs: nnx.Rngs) -> None:
    del theirs
    for name in DISENTANGLED:
        rows, width = getattr(ours, name).embedding.shape
        zeros = nnx.initializers.zeros_init()
        setattr(ours, delta(name), nnx.Embed(rows, width, embedding_init=zeros, rngs=rngs))
        delattr(ours, name)


# Name -> what it takes away from the embeddings of two encoders that are whole. `shared`: one set
# of embeddings, which gets the sum of both gradients. `gradient_disentangled`: the discriminator's
# tables are the generator's, which get no gradient from it, plus a table of its own that starts at
# zero (He et al. 2023, DeBERTaV3, section 3.2).
SHARINGS: dict[str, Callable[[Any, Any, nnx.Rngs], None]] = {
    "shared": _share,
    "separate": lambda ours, theirs, rngs: None,
    "gradient_disentangled": _disentangle,
}


def apart(params: Mapping[str, Any]) -> parameters.Params:
    """Returns the nested parameters with the embeddings of both encoders whole.

    Parameters whose embeddings are whole already, and those of one encoder, stay as they are.
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
            whole[f"{_OURS}.{name}.embedding"] = table + added
    return parameters.nested(whole)


def as_stored(whole: Mapping[str, Any], paths: Mapping[str, Any]) -> dict[str, Any]:
    """Returns parameters by their paths as the module with these `paths` stores them.

    `whole` are those of two whole encoders, as from `apart`, or of one, whose tables a generator
    without any then begins with.
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
    """Returns the paths of the generator's embeddings, of two whole encoders, if all are copies.

    () where one of them differs.
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
