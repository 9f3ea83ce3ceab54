"""A pretrained model fills [MASK] in sentences.

python -m bertjax.fill_mask --checkpoint=WORKDIR "The [MASK] statement is used to ..."
python -m bertjax.fill_mask --checkpoint=WORKDIR --input=masked.fasta    # sequences with <mask>
"""

from __future__ import annotations

if __name__ == "__main__":
    from bertjax.cli import command_line, programs  # what follows takes seconds to import

    command_line.parse(programs.FillMask, __doc__)

import functools
import json
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from absl import logging

from bertjax import inference
from bertjax.cli import command_line, programs
from bertjax.data import text_lines
from bertjax.models import parameters
from bertjax.tokenization import letters, unknown_tokens

# Where masks at most this number of places of a text, and one without any text, have predictions
# whose total variation distance is below CONTEXT_DISTANCE, the model reads no context. Models at
# the unigram loss have up to 0.11, babylm-mini at least 0.49 in lines of all languages of glibc.
CONTEXT_PLACES, CONTEXT_DISTANCE = 8, 0.2


def fill_mask(
    model: inference.TrainedModel, text: str, *, num_candidates: int = 5
) -> list[list[dict[str, Any]]]:
    """Returns, for each [MASK] of `text` in order, its best tokens with probabilities, best first.

    Every mask is filled alone, while the others stay [MASK].

    Raises:
      ValueError: if the model has no masked-token head, there is no [MASK], the text is longer
        than the model can read, or the probabilities are not finite.
    """
    if not model.fills_masks:
        raise ValueError(
            "the model has no masked-token head (mlm_head), so it fills no masks; "
            "`python -m bertjax.encode` gives the features of its encoder"
        )
    tokens = model.vocabulary.encode_with_masks(text)
    batch = inference.single_segment_batch([tokens], model)
    positions = np.flatnonzero(batch["input_ids"][0] == model.vocabulary.mask_id)
    if not len(positions):
        raise ValueError(f"there is no [MASK] in {text!r:.200}; write [MASK] in place of a token")
    probabilities, ids = _best(
        model.params,
        batch,
        positions[None],
        graphdef=model.graphdef,
        num_tokens=model.vocabulary.vocab_size,
        num_candidates=num_candidates,
    )
    inference.check_numbers(probabilities, repr(text))
    return [
        [
            {"token": model.vocabulary.surface(int(token_id)), "probability": float(probability)}
            for probability, token_id in zip(*candidates, strict=True)
        ]
        for candidates in zip(np.asarray(probabilities), np.asarray(ids), strict=True)
    ]


@functools.partial(jax.jit, static_argnames=("graphdef", "num_tokens", "num_candidates"))
def _best(
    params: Any, batch: Any, positions: Any, *, graphdef: Any, num_tokens: int, num_candidates: int
) -> Any:
    module = parameters.merge(graphdef, params)
    probabilities = jax.nn.softmax(module.masked_logits(batch, positions)[0], axis=-1)
    # A model may have more outputs than its vocabulary has tokens.
    return jax.lax.top_k(probabilities[:, :num_tokens], min(num_candidates, num_tokens))


def ignores_context(model: inference.TrainedModel, text: str) -> bool:
    """Returns whether the model predicts nearly the same at every place of a text, and without it.

    False for a text of fewer than two tokens, and for letters: proteins and DNA say little of what
    a letter is, so that the predictions of a good model vary little.
    """
    tokens = model.vocabulary.encode_with_masks(text)
    if len(tokens) < 2 or model.vocabulary.describe().get(letters.FIELD):
        return False
    places = np.unique(np.linspace(0, len(tokens) - 1, CONTEXT_PLACES).round().astype(int))
    mask = model.vocabulary.mask_id
    rows = [[*tokens[:place], mask, *tokens[place + 1 :]] for place in places]
    batch = inference.single_segment_batch([*rows, [mask]], model)
    positions = np.append(places, 0)[:, None] + 1  # behind [CLS]
    found = np.asarray(_probabilities(model.params, batch, positions, graphdef=model.graphdef))
    distances = np.abs(found - found[:, None]).sum(axis=-1) / 2
    return bool(distances.max() < CONTEXT_DISTANCE)


@functools.partial(jax.jit, static_argnames=("graphdef",))
def _probabilities(params: Any, batch: Any, positions: Any, *, graphdef: Any) -> Any:
    module = parameters.merge(graphdef, params)
    return jax.nn.softmax(module.masked_logits(batch, positions)[:, 0], axis=-1)


def filled(parts: Sequence[str], masks: Sequence[Sequence[dict[str, Any]]]) -> str:
    """Returns the `parts` of a text between its masks, the best token for each as **token**."""
    first, *others = parts
    best = (_marked(candidates[0]["token"]) for candidates in masks)
    return first + "".join(token + part for token, part in zip(best, others, strict=True))


def _marked(token: str) -> str:
    shown = token.strip()
    return token.replace(shown, f"**{shown}**") if shown else f"**{ascii(token)}**"


def main(options: programs.FillMask) -> None:
    """Fills the masks of every sentence on the command line, or of files."""
    chosen = {"step": options.step, "language": options.language}
    model = inference.load(options.checkpoint, **chosen, generator=True)
    lines = text_lines.numbered(options.sentences)
    if options.input:
        lines = text_lines.given(options.input, model.vocabulary)
        lines = text_lines.with_remark(lines, "there is no [MASK] in them")
    for number, line in enumerate(lines):
        masks = fill_mask(model, line.text, num_candidates=options.num_candidates)
        parts = model.vocabulary.split_at_masks(line.text)
        counted = unknown_tokens.UnknownTokens(model.vocabulary.unk_id)
        share = counted.add(model.vocabulary.encode_with_masks(line.text))
        counted.warn()
        letters.warn(letters.unknown("".join(parts), model.vocabulary))
        if number == 0 and ignores_context(model, line.text):
            logging.warning(
                "the model has learnt nothing yet: it predicts nearly the same tokens at every "
                "place of this text and without it, as if it knew only how frequent each token is; "
                "train it longer or on more text"
            )
        answer = {"id": line.id} if line.id else {}
        answer |= {"text": line.text, "masks": masks, unknown_tokens.KEY: share}
        print(json.dumps(answer) if options.json else _table(parts, masks, line.id))


def _table(parts: Sequence[str], masks: Sequence[Sequence[dict[str, Any]]], id: str) -> str:
    lines = [f"{id}: " * bool(id) + filled(parts, masks)]
    for number, candidates in enumerate(masks, start=1):
        shown = "  ".join(
            f"{c['token'].strip() or ascii(c['token'])} {c['probability']:.3f}" for c in candidates
        )
        lines.append(f"  mask {number}:  {shown}")
    return "\n".join(lines)


if __name__ == "__main__":
    command_line.run(main)
