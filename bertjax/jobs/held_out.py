"""Checks that the records of an evaluation are held out; computes the scores of chance.

Pretraining jobs use it when they are opened. `data.overlaps` compares the records.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import ml_collections
import numpy as np
from absl import logging
from etils import epath
from jaxtyping import Int

from bertjax.data import contents, masking, overlaps, records, value_masking
from bertjax.workdirs import reader

# The loss of a token varies by two or three nats, so its mean over this number by about 0.04.
FEW_TOKENS = 5_000


def chance(
    trained: contents.RecordSummary | None, evaluated: records.RecordSet | None
) -> dict[str, float]:
    """Returns the scores of answers without reading, {} where the counts of a side are unknown."""
    if trained is None or evaluated is None or evaluated.contents is None:
        return {}
    return unigram_scores(trained, evaluated.contents.token_counts)


def unigram_scores(
    trained: contents.RecordSummary, counts: Int[np.ndarray, " vocabulary"]
) -> dict[str, float]:
    """Returns `unigram_loss` (nats) and `most_frequent_token_accuracy` over `counts` of tokens.

    The predicted distribution is always the frequencies in the training text.
    """
    loss, accuracy = masking.unigram_scores(trained.token_counts, counts)
    return {"unigram_loss": loss, "most_frequent_token_accuracy": accuracy}


def of_columns(
    columns: Sequence[int],
    training: value_masking.Donors,
    batches: Iterable[Mapping[str, Any]],
    error: Callable[[Any], Any],
) -> dict[str, float]:
    """Returns the losses of hidden cells by means and frequencies of the training values' columns.

    They are `mean_loss` by `error` and `mean_mae` of numbers, `frequencies_loss` (nats) of
    categories. `columns` are the numbers of categories, 0 for a column of numbers.
    """
    hidden: list[list[np.ndarray]] = [[] for _ in columns]
    for batch in batches:
        is_scored = batch["hidden"] * batch["example_weights"][:, None] > 0
        for at, parts in enumerate(hidden):
            parts.append(batch["values"][is_scored[:, at], at, 0])
    losses = collections.defaultdict(list)
    for at, count in enumerate(columns):
        values, observed = (it[:, at, 0] for it in training)
        trained, cells = values[observed != 0], np.concatenate(hidden[at])
        if not len(trained) or not len(cells):
            continue
        if count:
            of_both = (np.bincount(it.astype(np.int64), minlength=count) for it in (trained, cells))
            loss, _ = masking.unigram_scores(*of_both)
            losses["frequencies_loss"].append(np.full(len(cells), loss))
        else:
            errors = cells - trained.mean(dtype=np.float64)
            losses["mean_loss"].append(np.asarray(error(errors), np.float64))
            losses["mean_mae"].append(np.abs(errors))
    return {name: float(np.concatenate(parts).mean()) for name, parts in losses.items()}


def tokens_per_byte(evaluated: records.RecordSet | None) -> float | None:
    """Returns the tokens of a byte of the records' text, None if the bytes were not counted."""
    statistics = evaluated.manifest.statistics if evaluated else {}
    num_bytes, tokens = statistics.get("bytes"), statistics.get("tokens")
    return tokens / num_bytes if num_bytes and tokens else None


def check(
    config: ml_collections.ConfigDict,
    trained: Collection[records.RecordSet],
    evaluated: records.RecordSet,
    *,
    is_new: bool,
) -> None:
    """Warns of held-out records that are trained on.

    A run that has begun goes on, since evaluation does not affect what it learns.
    """
    of_each = (overlaps.find(record_set, evaluated) for record_set in trained)
    reasons = {overlap.text: overlap for overlap in of_each if overlap}
    worst = next((overlap for overlap in reasons.values() if overlap.is_most), None)
    if worst and is_new and not config.data.eval_may_overlap:
        raise ValueError(
            f"config.data.eval_dir is not held out: {worst.text}. Scores on it say nothing of text "
            f"that the model has not seen: {overlaps.REMEDY}. To score a model on what it "
            "trains on, say --config.data.eval_may_overlap"
        )
    for text in reasons:
        logging.warning("config.data.eval_dir is not held out: %s; %s", text, overlaps.REMEDY)
    of_text = [each for each in (*trained, evaluated) if each.manifest.tokenizer]
    summaries = {each.directory: each.contents for each in of_text}
    if not reasons:
        _warn_of_unknown_documents(summaries)
    if uncounted := [directory for directory, made_of in summaries.items() if made_of is None]:
        logging.warning(
            "There is no unigram_loss, because the tokens of %s are not counted; `python -m "
            "data_pipelines.inspect_records DIR --recount` does it", _named(uncounted),
        )  # fmt: skip
    warn_of_few_tokens(config, evaluated)


def check_evaluated(trained: reader.Description, evaluated: records.RecordSet) -> None:
    """Warns of records that a saved model was trained on, as far as its workdir shows."""
    overlap = None
    if evaluated.manifest.digest in trained.identity("manifests").values():
        fault = f"{evaluated.directory} holds the very records that it was trained on"
        overlap = overlaps.Overlap(fault, 1.0)
    else:
        records_read = reader.training_records(trained).values()
        of_dirs = (overlaps.find(each, evaluated) for each in records_read)
        overlap = next(filter(None, of_dirs), None) or _by_documents(trained, evaluated)
    if overlap:
        logging.warning(
            "These records are not held out for %s: %s. Scores on them say little of text that it "
            "has not seen; %s", trained.directory, overlap.text, overlaps.REMEDY,
        )  # fmt: skip
    elif evaluated.manifest.tokenizer:
        summaries = {trained.directory: training_contents(trained)}
        _warn_of_unknown_documents(summaries | {evaluated.directory: evaluated.contents})
    warn_of_few_tokens(trained.config, evaluated)


def _warn_of_unknown_documents(
    summaries: Mapping[epath.Path, contents.RecordSummary | None],
) -> None:
    """Warns if the documents of a directory are unknown, so that none could be compared."""
    if without := [name for name, it in summaries.items() if not it or it.documents is None]:
        logging.warning(
            "Could not check whether held-out documents are also in the training records: those of "
            "%s are not known. Records that data_pipelines.build writes hold the hashes of their "
            "documents; adopted records do not", _named(without),
        )  # fmt: skip


def _named(directories: Iterable[epath.Path]) -> str:
    return " and ".join(map(str, directories))


def warn_of_few_tokens(config: ml_collections.ConfigDict, evaluated: records.RecordSet) -> None:
    """Warns if there are too few tokens for a certain score."""
    tokens = held_out_tokens(config, evaluated)
    if tokens is not None and tokens < FEW_TOKENS:
        logging.warning(
            "%s has about %s masked tokens to score: a loss over so few is uncertain by about %.2f "
            "nats. Hold out more documents (--heldout_fraction)%s",
            evaluated.directory, f"{tokens:,}", 2.5 / np.sqrt(max(tokens, 1)),
            ", or raise config.evaluation.max_batches" if config.evaluation.max_batches else "",
        )  # fmt: skip


def held_out_tokens(config: ml_collections.ConfigDict, evaluated: records.RecordSet) -> int | None:
    """Returns the approximate number of tokens that an evaluation scores, None if it is unknown."""
    manifest = evaluated.manifest
    tokens = manifest.statistics.get("unigram_tokens")
    if tokens is None:
        return None
    share = config.evaluation.masked_lm_prob or config.pretraining.masked_lm_prob
    share = 1.0 if manifest.has_static_masks else share
    read = config.evaluation.max_batches * config.evaluation.global_batch_size
    if read:
        share *= min(1.0, read / manifest.num_examples)
    return round(tokens * share)


def training_contents(trained: reader.Description) -> contents.RecordSummary | None:
    """Returns the data of a run, from its workdir, or else from records that still lie there."""
    summary = contents.load(trained.directory / reader.TRAINING_DATA_DIRECTORY)
    return summary or united(reader.training_records(trained).values())


def united(record_sets: Iterable[records.RecordSet]) -> contents.RecordSummary | None:
    """Returns the contents of several record sets together, None unless all are known."""
    summary: contents.RecordSummary | None = None
    for record_set in {one.directory: one for one in record_sets}.values():
        if record_set.contents is None:
            return None
        summary = summary.merged(record_set.contents) if summary else record_set.contents
    return summary


def _by_documents(
    trained: reader.Description, evaluated: records.RecordSet
) -> overlaps.Overlap | None:
    known, own = training_contents(trained), evaluated.contents
    if not known or not own or known.documents is None or own.documents is None:
        return None
    return overlaps.shared_documents(evaluated, own.documents.share_in(known.documents))
