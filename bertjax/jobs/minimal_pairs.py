"""Minimal pairs as an evaluation set of pretraining: how often the right sentence is likelier.

BLiMP, Warstadt et al. 2020, with the pseudo-log-likelihoods of Salazar et al. 2020. The objective
defines the rows of a sentence and their scores (`tasks.base.ScoresSentences`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from absl import logging
from etils import epath

from bertjax.data import languages, minimal_pairs, sentence_rows
from bertjax.scores import minimal_pairs as pair_scores
from bertjax.tokenization import tokenizer

MASKING = "token"
WIDTH = 16  # rows are padded to a multiple of it


class PairSet:
    """The rows of a file of pairs, and the scores of their log-likelihoods."""

    def __init__(
        self,
        path: epath.PathLike,
        vocabulary: tokenizer.Tokenizer,
        *,
        rows: str,
        max_length: int,
        left_to_right: bool = False,
        most_of_paradigm: int = 0,
        language: int | None = None,
    ):
        """Reads the pairs; `rows` is a key of `sentence_rows.ROWS`.

        The rows of a model that reads from `left_to_right` have no [SEP], which it would score.

        Of each paradigm the first `most_of_paradigm` are taken, 0: all. `language` is the number of
        their language, for a model that reads it.
        """
        form, pairs = minimal_pairs.read(path)
        if form != minimal_pairs.SENTENCES:
            raise ValueError(
                f"config.evaluation.pairs_file is {str(path)!r}, whose texts have contexts; a run "
                "scores whole sentences (sentence_good, sentence_bad): score its checkpoints with "
                "`python -m bertjax.evaluate --pairs`"
            )
        self.pairs = minimal_pairs.first_of_each(pairs, most_of_paradigm)
        sentences = [text for pair in self.pairs for _, text in pair.texts]
        self._sequences = vocabulary.encode_batch(sentences)
        for text, ids in zip(sentences, self._sequences, strict=True):
            if len(ids) + 2 > max_length:
                raise ValueError(
                    f"{path}: {text!r:.60} has {len(ids) + 2} tokens with [CLS] and [SEP]; the "
                    f"model reads at most {max_length}: leave the pair out"
                )
        same = sum(a == b for a, b in zip(self._sequences[::2], self._sequences[1::2], strict=True))
        if same:
            logging.warning(
                "The sentences of %d of %d pairs of %s have the same tokens: a tie, which counts "
                "as right. The vocabulary has no entries for what they differ in",
                same, len(self.pairs), path,
            )  # fmt: skip
        self._vocabulary = vocabulary
        self._rows = sentence_rows.ROWS[rows]
        self._language = language
        self._has_sep = not left_to_right

    def batches(self, *, batch_size: int, rows: range | None) -> Iterator[dict[str, np.ndarray]]:
        """Yields every row of every sentence once, rows of one width together.

        `record_positions` number the rows in the order of the sentences, as `scores` has them.
        """
        firsts = np.cumsum([0, *self._num_rows])
        by_width: dict[int, list[int]] = {}
        for sentence, ids in enumerate(self._sequences):
            by_width.setdefault(-(-(len(ids) + 2) // WIDTH) * WIDTH, []).append(sentence)
        own = slice(rows.start, rows.stop) if rows is not None else slice(None)
        for width, sentences in sorted(by_width.items()):
            numbered = (
                (number, row)
                for it in sentences
                for number, row in enumerate(self._rows_of(self._sequences[it]), firsts[it])
            )
            shape = {"size": batch_size, "length": width, "width": self._rows.width(width)}
            while part := list(itertools.islice(numbered, batch_size)):
                batch = sentence_rows.batch(
                    [row for _, row in part], self._vocabulary, **shape, has_sep=self._has_sep
                )
                places = np.full(batch_size, -1, np.int64)
                places[: len(part)] = [number for number, _ in part]
                whole = languages.with_language(batch, self._language)
                whole |= {"record_positions": places}
                yield {name: values[own] for name, values in whole.items()}

    def scores(self, outputs: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Returns the accuracy over paradigms, and of each phenomenon that the file names.

        `outputs` has "log_likelihood", a number for each row.
        """
        num_rows = self._num_rows
        sums = np.zeros(len(num_rows))
        of_rows = np.repeat(np.arange(len(num_rows)), num_rows)
        np.add.at(sums, of_rows, outputs["log_likelihood"].astype(np.float64))
        accuracies = pair_scores.accuracy(
            sums.reshape(-1, 2).tolist(),
            [pair.paradigm for pair in self.pairs],
            [pair.phenomenon for pair in self.pairs],
        )
        of_phenomena = {f"accuracy_{name}": value for name, value in accuracies.phenomena.items()}
        shown = {"ties": float(accuracies.ties), "chance": accuracies.chance}
        return {"accuracy": accuracies.accuracy, **shown, **of_phenomena}

    def _rows_of(self, ids: Sequence[int]) -> Iterator[sentence_rows.Row]:
        return self._rows.of(self._vocabulary, ids, range(len(ids)), MASKING)

    @property
    def _num_rows(self) -> list[int]:
        return [self._rows.count(len(ids)) for ids in self._sequences]
