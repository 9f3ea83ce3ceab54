"""Texts from the lines of standard input, by a model that was finetuned on pairs of texts.

python -m bertjax.generate --checkpoint=WORKDIR --beams=4 < lines.txt > texts.jsonl

Each line gives a JSON object with the best text and its score in nats: {"text": "mean", "score":
-1.3, "unknown_rate": 0.0}. With --outputs=N the next best ones, or with --sample further draws, are
a list of such objects under "others".
"""

from __future__ import annotations

if __name__ == "__main__":
    from bertjax.cli import command_line, programs  # what follows takes seconds to import

    command_line.parse(programs.Generate, __doc__)

import dataclasses
import functools
import itertools
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx
from jaxtyping import PRNGKeyArray

from bertjax import inference
from bertjax.cli import command_line, programs
from bertjax.data import padding, text_lines
from bertjax.files import tables
from bertjax.finetuning import batches, feature_sets, sequences
from bertjax.models import generation, parameters
from bertjax.options import faults
from bertjax.tasks import prediction
from bertjax.tokenization import unknown_tokens

CHUNK_BATCHES = 16  # batches of texts that are read ahead and sorted by length
LINE, DRAW = "line", "draw"  # in a batch: the numbers of a row's text and of its draw


@functools.partial(jax.jit, static_argnums=(0, 1))
def _step(
    search: generation.Search,
    graphdef: nnx.GraphDef,
    key: PRNGKeyArray,
    params: parameters.Params,
    batch: Mapping[str, Any],
) -> dict[str, Any]:
    """Returns the texts found for a batch, as `prediction.predict_step` returns predictions."""
    model, keys = parameters.merge(graphdef, params), None
    if search.sampling:
        of_lines = jax.vmap(jax.random.fold_in, (None, 0))(key, batch[LINE])
        keys = jax.vmap(jax.random.fold_in)(of_lines, batch[DRAW])
    found = generation.generate(model, batch, search, keys=keys)
    places = batch["record_positions"]
    return {"ids": found.ids, "scores": found.scores, "record_positions": places}


def generate(
    model: inference.FinetunedModel,
    texts: Iterable[str],
    *,
    outputs: int = 1,
    seed: int = 0,
    batch_size: int = 32,
    **searched: Any,
) -> Iterator[list[dict[str, Any]]]:
    """Yields the `outputs` best texts of each text, or as many draws: "text" and "score".

    `searched` are fields of `generation.Search`; the others are as in the training, or as the
    released model's files have them. A text
    longer than the model reads loses its end. A draw depends on the seed, the number of its text
    and its own number alone.

    Raises:
      ValueError: if the model generates no texts, the search is not possible, or it has fewer
        results than `outputs`.
    """
    task = model.task
    if not isinstance(task, sequences.Sequences):
        raise ValueError(
            f"the model was finetuned on the data set {model.options.dataset!r}; to generate texts "
            "it must have been on 'sequences': --config=bert2bert"
        )
    search = generation.changed(task.search, **searched)
    longest = task.encoder.max_position_embeddings
    if search.max_length > longest and task.encoder.position_embedding == "learnt":
        raise faults.wrong("max_length", search.max_length, f"at most the {longest} of the decoder")
    if outputs < 1 or outputs > search.beams and not search.sampling:
        must = f"from 1 to the {search.beams} of beams"
        raise faults.wrong("outputs", outputs, must, "any number of draws goes with sampling")
    draws, texts = outputs if search.sampling else 1, iter(texts)
    step = functools.partial(_step, search, model.graphdef, jax.random.key(seed))
    for first in itertools.count(0, CHUNK_BATCHES * batch_size):
        chunk = list(itertools.islice(texts, CHUNK_BATCHES * batch_size))
        if not chunk:
            return
        found = _of_chunk(model, step, chunk, first, draws, batch_size)
        for row in range(len(chunk)):
            yield [it for draw in range(draws) for it in found[row * draws + draw]][:outputs]


def _of_chunk(
    model: inference.FinetunedModel,
    step: prediction.PredictStep,
    texts: list[str],
    first: int,
    draws: int,
    batch_size: int,
) -> list[list[dict[str, Any]]]:
    """Returns the targets of each text and draw, the best first; `first` is the first's number."""
    scorer = model.kind.open(model.options, model.own_vocabulary)
    assert isinstance(scorer, sequences.SequenceScorer)
    examples = [feature_sets.TextExample((it,), None, "") for it in texts for _ in range(draws)]
    lines = np.arange(first, first + len(texts), dtype=np.int32)
    numbers = {
        LINE: np.repeat(lines, draws),
        DRAW: np.tile(np.arange(draws, dtype=np.int32), len(texts)),
    }
    rows = dataclasses.replace(scorer.reader.rows(examples), columns=numbers)
    longest, mesh = model.options.max_seq_length, model.mesh
    buckets = padding.default_buckets(longest) if model.options.length_buckets else (longest,)
    size = -(-batch_size // mesh.size) * mesh.size
    of_rows = batches.evaluation_batches(rows, batch_size=size, buckets=buckets)
    with jax.set_mesh(mesh):
        found = prediction.predict(step, model.params, of_rows, mesh=mesh, global_batch_size=size)
    inference.check_numbers(found["scores"], f"the texts from {first + 1} to {first + len(texts)}")
    return [
        [
            {"text": scorer.text(ids), "score": score}
            for ids, score in zip(of_row, scores, strict=True)
        ]
        for of_row, scores in zip(found["ids"].tolist(), found["scores"].tolist(), strict=True)
    ]


def main(options: programs.Generate) -> None:
    """Generates a text for each line of standard input."""
    chosen = {"step": options.step, "language": options.language}
    model = inference.load_finetuned(options.checkpoint, **chosen)
    given = command_line.subset(programs.Search, options).items()
    searched = {name: value for name, value in given if value is not None}
    if options.early_stopping is not None:
        searched["early_stopping"] = generation.EARLY_STOPPING[options.early_stopping]
    lines = text_lines.numbered(tables.text_lines_of(sys.stdin.buffer, "standard input"))
    lines = text_lines.with_remark(lines, "each gets a text all the same")
    texts, sources = itertools.tee(line.text for line in lines)
    shared = {"outputs": options.outputs, "seed": options.seed, "batch_size": options.batch_size}
    counted = unknown_tokens.UnknownTokens(model.vocabulary.unk_id)
    for number, found in enumerate(generate(model, texts, **shared, **searched), start=1):
        ids, _ = model.vocabulary.encode_flat([next(sources)])
        best, *others = found
        best |= {unknown_tokens.KEY: counted.add(ids, f"line {number}")}
        print(json.dumps(best | ({"others": others} if others else {}), ensure_ascii=False))
    counted.warn()


if __name__ == "__main__":
    command_line.run(main)
