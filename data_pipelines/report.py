"""The health report of records: what is counted while they are written or read, and its words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from bertjax.data import masking, records, tokenizer
from data_pipelines import examples


class Tally:
    """Counts over batches of finished rows; `statistics()` are the shares that follow."""

    def __init__(self, vocabulary: tokenizer.Tokenizer):
        self._vocabulary = vocabulary
        self._examples = self._places = self._real_tokens = self._unknown_tokens = 0
        self._random_pairs = self._pairs = 0
        self._masked_tokens = self._mask_tokens = self._kept_tokens = 0
        self._target_counts = np.zeros(vocabulary.vocab_size, np.int64)

    def add(self, batch: Mapping[str, np.ndarray]) -> None:
        """Counts a batch of rows; all arrays begin with the batch dimension."""
        ids, real = batch["input_ids"], batch["input_mask"] != 0
        self._examples += len(ids)
        self._places += ids.size
        self._real_tokens += int(real.sum())
        self._unknown_tokens += int((real & (ids == self._vocabulary.unk_id)).sum())
        if records.PAIR_FEATURE in batch:
            self._pairs += len(ids)
            self._random_pairs += int(batch[records.PAIR_FEATURE].sum())
        if "masked_lm_ids" in batch:
            used = batch["masked_lm_weights"] > 0
            targets = batch["masked_lm_ids"][used]
            shown = np.take_along_axis(ids, batch["masked_lm_positions"], axis=1)[used]
            self._masked_tokens += len(targets)
            self._mask_tokens += int((shown == self._vocabulary.mask_id).sum())
            self._kept_tokens += int((shown == targets).sum())
        else:
            targets = ids[real & ~np.isin(ids, self._vocabulary.special_ids)]
        self._target_counts += np.bincount(targets, minlength=len(self._target_counts))

    def statistics(self) -> dict[str, Any]:
        """Returns the counts and shares of everything added.

        `unigram_entropy` (nats) and `most_frequent_token_share` are of the masked tokens, or of
        all that could be masked where no masks are stored.
        """
        targets = int(self._target_counts.sum())
        entropy, share = masking.unigram_baseline(self._target_counts) if targets else (0.0, 0.0)
        found = {
            "examples": self._examples,
            "fill": self._real_tokens / max(self._places, 1),
            "example_unknown_rate": self._unknown_tokens / max(self._real_tokens, 1),
            "unigram_entropy": entropy,
            "most_frequent_token_share": share,
            "most_frequent_token": self._vocabulary.token(int(self._target_counts.argmax())),
        }
        if self._pairs:
            found["random_pair_share"] = self._random_pairs / self._pairs
        if self._masked_tokens:
            found["masked_tokens"] = targets
            found["masked_share"] = targets / self._real_tokens
            found["masked_as_mask_share"] = self._mask_tokens / targets
            found["masked_kept_share"] = self._kept_tokens / targets
        return found


def corpus_statistics(corpus: examples.Corpus, vocabulary: tokenizer.Tokenizer) -> dict[str, Any]:
    """Returns what is known of the text before examples are made of it."""
    return {
        "documents": corpus.num_documents,
        "sentences": corpus.num_sentences,
        "tokens": len(corpus.tokens),
        "unknown_rate": float((corpus.tokens == vocabulary.unk_id).mean()),
    }


_UNITS = {"unigram_entropy": "nats"}


def lines(manifest: records.Manifest) -> Iterator[str]:
    """Yields the report of a record directory, line by line."""
    yield f"{'shards':28}{len(manifest.shards):,}"
    yield f"{'size':28}{sum(shard.bytes for shard in manifest.shards) / 1e6:,.1f} MB"
    yield f"{'max_seq_length':28}{manifest.max_seq_length}"
    masks = manifest.max_predictions_per_seq or "drawn while training"
    yield f"{'max_predictions_per_seq':28}{masks}"
    yield f"{'pair_objective':28}{manifest.pair_objective}"
    described = manifest.tokenizer
    yield f"{'vocabulary':28}{described['vocab_size']:,} entries, {described['kind']}"
    for name, value in manifest.statistics.items():
        if isinstance(value, int):
            text = f"{value:,}"
        elif isinstance(value, float):
            unit = _UNITS.get(name)
            text = f"{value:.4f} {unit}" if unit else f"{value:.2%}"
        else:
            text = str(value)
        yield f"{name:28}{text}"
