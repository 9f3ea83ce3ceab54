"""Scores of a saved model on labelled data: every example once, on any number of devices.

python -m bertjax.evaluate --checkpoint=WORKDIR --data=RECORDS
python -m bertjax.evaluate --checkpoint=FINETUNED_WORKDIR --data=FILE
python -m bertjax.evaluate --checkpoint=FINETUNED_WORKDIR --data=en=FILE,zh=FILE
python -m bertjax.evaluate --checkpoint=WORKDIR --pairs=PAIRS
python -m bertjax.evaluate --checkpoint=WORKDIR --parallel=SOURCE,TARGET

A pretrained model is scored on a record directory, a finetuned one on files like its training
files. On minimal pairs such as BLiMP's the score is the share of pairs whose right sentence is the
likelier one, on parallel texts the share of texts whose nearest text is the translation.
"""

from __future__ import annotations

if __name__ == "__main__":
    from bertjax.cli import command_line, programs  # what follows takes seconds to import

    command_line.parse(programs.Evaluate, __doc__)

import dataclasses
import functools
import json
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from absl import logging
from etils import epath

from bertjax import inference, jobs
from bertjax.checks import table
from bertjax.cli import command_line, programs
from bertjax.data import contents, masking, minimal_pairs, parallel_texts, records
from bertjax.inference import encoding, likelihood
from bertjax.jobs import held_out
from bertjax.models import embedding_sharing, parameters
from bertjax.options import faults
from bertjax.scores import baselines, parallel
from bertjax.scores import minimal_pairs as pair_scores
from bertjax.tasks import base as tasks
from bertjax.tokenization import unknown_tokens
from bertjax.training import evaluation, state
from bertjax.workdirs import reader


def chance_levels(
    record_set: records.RecordSet, batches: jobs.Batches, trained: contents.RecordSummary | None
) -> dict[str, float]:
    """Returns the scores of predictions by frequency alone on the masked tokens of `batches`.

    The frequencies come from the training data, if they are known: `unigram_loss` (nats) and
    `most_frequent_token_accuracy`. Otherwise they come from the scored tokens themselves. Their
    entropy, `unigram_entropy`, is lower than any model without context can reach, by far if there
    are few tokens.
    """
    counts = np.zeros(record_set.manifest.tokenizer["vocab_size"], np.int64)
    for batch in batches:
        masked_ids = batch["masked_lm_ids"][batch["masked_lm_weights"] > 0]
        counts += np.bincount(masked_ids, minlength=len(counts))
    if trained is not None:
        return held_out.unigram_scores(trained, counts)
    logging.warning(
        "The frequencies of the text that was trained on are not known (converted weights, or no "
        "contents.npz): unigram_entropy is that of the %s scored tokens themselves, which is lower "
        "than what those frequencies would score on them", f"{counts.sum():,}",
    )  # fmt: skip
    entropy, share = masking.unigram_baseline(counts)
    return {"unigram_entropy": entropy, "most_frequent_token_accuracy": share}


def evaluate_checkpoint(
    workdir: epath.PathLike,
    data: str,
    *,
    batch_size: int,
    step: str | int = "newest",
    chance: bool = False,
    language: str = "",
) -> dict[str, Any]:
    """Returns the scores of a checkpoint's model on `data`, the step and the number of examples.

    `data` is a path, or the files of a finetuned model by name: NAME=FILE,NAME=FILE. With several
    evaluation sets, such as MNLI's two, a score is "set/score"; named files also have means,
    "mean/score". `chance` adds `chance_levels` on records. `language` is the one of a file, "" the
    language that the model was finetuned in.

    Raises:
      FileNotFoundError: if there is no checkpoint, no manifest or no file.
      ValueError: if the data does not fit the model, or its losses are not finite.
    """
    mesh = inference.all_devices()
    saved = reader.read(workdir, step=step, mesh=mesh)
    saved.config.finetuning.lora_rank = 0  # merged
    job = jobs.evaluating(saved, data, language)
    batch_size = -(-batch_size // mesh.size) * mesh.size
    graphdef, shapes = tasks.abstract_model(job.task)
    params = _task_params(saved, shapes)
    with jax.set_mesh(mesh):
        with_answers = job.evaluation.scorer is not None
        run = functools.partial(state.evaluate_step, job.task, graphdef, with_answers=with_answers)
        evaluate_step = jax.jit(run)
        shared = {"mesh": mesh, "batch_size": batch_size}
        scores: dict[str, Any] = {}
        for name in job.evaluation.sets:
            tuned = evaluation.thresholds(job, next(iter(scores.values()), {}))
            scores[name] = evaluation.evaluate_set(
                job, name, evaluate_step, params, **shared, tuned=tuned
            )
    for name, values in scores.items():
        if (number := values.pop(baselines.ONLY_CLASS, None)) is not None:
            labels = saved.config.finetuning.labels
            logging.warning("%s", table.one_class(name, number, labels))
    examples = {name: {"examples": job.data.num_examples(name)} for name in scores}
    scored = {"step": saved.step, **_flat(examples), **_flat(evaluation.with_mean(job, scores))}
    scored |= job.evaluation.scorer.notes if job.evaluation.scorer else {}
    losses = {name: value for name, value in scored.items() if name.endswith("loss")}
    inference.check_numbers(losses, f"{data} (loss {losses})")
    has_masks = saved.config.pretraining.masking != "none"
    is_known = bool(job.evaluation.chance or job.evaluation.averaged)
    if chance and not with_answers and has_masks and not is_known:
        record_set = records.open(data)
        if record_set.manifest.tokenizer:
            (name,) = scores
            batches = job.data.evaluation_batches(name, batch_size=batch_size, rows=None)
            scored |= chance_levels(record_set, batches, held_out.training_contents(saved))
    return scored


def _task_params(saved: reader.Workdir, shapes: parameters.Params) -> parameters.Params:
    """Returns the parameters that the task has.

    Converted weights may have more, such as the pooler of TensorFlow's.
    """
    expected = parameters.flat(shapes)
    values = embedding_sharing.as_stored(parameters.flat(saved.params), expected)
    if missing := sorted({name.split(".")[0] for name in expected if name not in values}):
        raise ValueError(
            f"{saved.directory} has no {' and no '.join(missing)}, which the objective "
            f"{saved.config.pretraining.objective!r} needs to be evaluated on records"
        )
    return parameters.nested({name: values[name] for name in expected})


def evaluate_pairs(
    workdir: epath.PathLike,
    pairs: epath.PathLike,
    *,
    batch_size: int,
    step: str | int = "newest",
    masking: str = "token",
    reading: str = "",
    language: str = "",
) -> dict[str, Any]:
    """Returns how often no wrong text scores higher by a pretrained model than the right one.

    `pairs` is a file of one of `data.minimal_pairs.FORMATS`, or a directory of such files.
    `accuracy` is the mean over `paradigms` or `phenomena`, as the format says; `phenomena` are {}
    if it names none. A tie is right; `ties` counts them. `pairs` is the number of comparisons,
    `chance` the accuracy of scores at random.

    Raises:
      FileNotFoundError: if there is no checkpoint or no such file.
      ValueError: if the file holds something else, or a text is too long for the model; as
        `inference.in_language` and `likelihood.scores`.
    """
    form, comparisons = minimal_pairs.read(pairs)
    model = inference.load(workdir, step=step, language=language)
    texts = [text for one in comparisons for text in one.texts]
    log_likelihoods = []
    options: dict[str, Any] = {"masking": masking, "reading": reading, "batch_size": batch_size}
    scores = likelihood.scores(model, texts, **options)
    for text, score in zip(texts, scores, strict=True):
        if isinstance(score, likelihood.NoScore):
            raise ValueError(f"{pairs}: {''.join(text)!r:.60} cannot be scored: {score.fault}")
        log_likelihoods.append(score.log_likelihood)
    in_order = iter(log_likelihoods)
    scored = pair_scores.accuracy(
        [[next(in_order) for _ in one.texts] for one in comparisons],
        [one.paradigm for one in comparisons],
        [one.phenomenon for one in comparisons],
        minimal_pairs.FORMATS[form].groups,
    )
    if scored.ties:
        logging.warning(
            "%d of %d pairs are ties, which count as right: their texts may have the same tokens, "
            "[UNK] for what the vocabulary lacks", scored.ties, len(comparisons),
        )  # fmt: skip
    return {"pairs": len(comparisons), **dataclasses.asdict(scored)}


def evaluate_parallel(
    workdir: epath.PathLike,
    paths: str,
    *,
    batch_size: int,
    step: str | int = "newest",
    language: str = "",
) -> dict[str, Any]:
    """Returns how often the nearest vector is the translation's, for each layer and both ways.

    Vectors are means of the tokens, without a prompt; longer texts than the model reads are cut.
    `source_to_target` and `target_to_source` are P@1 by cosine at `layer`, the one after the middle
    (7 of 12), and `by_layer` has all, with 0 for the embeddings: cosine and margin, both ways.
    `language` names both for a model with embeddings of languages, "fr,en".

    Source: XTREME (Hu et al. 2020), scripts/run_tatoeba.sh.

    Raises:
      FileNotFoundError: if there is no checkpoint or no such file.
      ValueError: as `parallel_texts.read`, for other than two languages, or if a vector is not
        finite.
    """
    names = language.split(",") if language else ["", ""]
    if len(names) != 2:
        raise faults.wrong("--language", language, "SOURCE,TARGET for --parallel")
    texts = parallel_texts.read(paths)
    model = inference.load(workdir, step=step)
    models = [inference.in_language(model, name.strip()) for name in names]
    asked = {"pooling": "mean", "normalize": False, "prompt": "", "dims": 0, "truncate": True}
    options = encoding.options_for(model, layers="all", **asked)
    vectors = []
    for of_side, side in zip(models, texts, strict=True):
        counted = unknown_tokens.UnknownTokens(model.vocabulary.unk_id)
        tokens = encoding.tokenize(model, side, options)
        tokens.count_unknown(counted)
        counted.warn(f"the texts of {paths}")
        found = encoding.vectors(of_side, tokens, options, batch_size=batch_size)
        depth = len(model.module().encoder.uses)
        vectors.append(np.split(found, depth + 1, axis=1))
    by_layer = {}
    for layer, (source, target) in enumerate(zip(*vectors, strict=True)):
        for measure, (there, back) in parallel.retrieval(source, target).items():
            by_layer[f"{layer} {measure}, source to target"] = there
            by_layer[f"{layer} {measure}, target to source"] = back
    layer = (len(vectors[0]) - 1) // 2 + 1
    return {
        "pairs": len(texts[0]),
        "layer": layer,
        "source_to_target": by_layer[f"{layer} cosine, source to target"],
        "target_to_source": by_layer[f"{layer} cosine, target to source"],
        "chance": 1 / len(texts[0]),
        "by_layer": by_layer,
    }


def _flat(by_set: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the values by name; with several sets the name is "set/name"."""
    return {
        (name if len(by_set) == 1 else f"{each}/{name}"): value
        for each, values in by_set.items()
        for name, value in values.items()
    }


def main(options: programs.Evaluate) -> None:
    """Prints a checkpoint's scores, and on one host what chance would score."""
    shared: dict[str, Any] = {"batch_size": options.batch_size, "step": options.step}
    shared["language"] = options.language
    if options.pairs is not None:
        shared |= {"masking": options.masking or "token", "reading": options.reading}
        scores = evaluate_pairs(options.checkpoint, options.pairs, **shared)
    elif options.parallel is not None:
        scores = evaluate_parallel(options.checkpoint, options.parallel, **shared)
    elif options.data is not None:
        shared["chance"] = jax.process_count() == 1
        scores = evaluate_checkpoint(options.checkpoint, options.data, **shared)
    if options.json:
        print(json.dumps(scores))
        return
    by_set = _by_set(scores)
    scores = {name: value for name, value in scores.items() if "/" not in name}
    groups = {name: values for name, values in scores.items() if isinstance(values, dict)}
    width = max([30, *(len(name) + 2 for values in groups.values() for name in values)])
    for name, value in scores.items():
        if name not in groups:
            print(_line(name, value, width))
    for group, values in groups.items():
        if values:
            print(f"{group}:")
        for name, value in values.items():
            print(_line(f"  {name}", value, width))
    if by_set:
        print(evaluation.table(by_set))


def _by_set(scores: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the values of names "set/score" by set."""
    by_set: dict[str, dict[str, Any]] = {}
    for name, value in scores.items():
        if "/" in name:
            each, _, metric = name.partition("/")
            by_set.setdefault(each, {})[metric] = value
    return by_set


def _line(name: str, value: float | str, width: int) -> str:
    shown = f"{value:,}" if isinstance(value, int) else value
    shown = f"{value:,.4f}" if isinstance(value, float) else shown
    return f"{name:{width}} {shown}"


if __name__ == "__main__":
    command_line.run(main)
