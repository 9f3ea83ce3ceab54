"""Scores of generated texts: exact match, and the numbers of sacrebleu and rouge-score.

BLEU and chrF are sacrebleu's with its defaults (Post 2018), from 0 to 100; ROUGE is the mean F of
rouge-score with stemming, from 0 to 1, as its command computes it.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Sequence
from typing import Any

from absl import logging

from bertjax.options import faults

Texts = Sequence[str]
_READ_BY_ROUGE = re.compile("[a-z0-9]")
MOST_UNREAD = 0.05  # of the letters and digits of references
BLEU_WORDS = 4


def exact_match(predictions: Texts, references: Texts) -> float:
    """Returns the share of texts that equal their references except for white space at the ends."""
    hits = [
        one.strip() == other.strip() for one, other in zip(predictions, references, strict=True)
    ]
    return sum(hits) / max(len(hits), 1)


def bleu(predictions: Texts, references: Texts) -> float:
    """Returns sacrebleu's corpus BLEU, and logs its signature."""
    if short := sum(len(it.split()) < BLEU_WORDS for it in references):
        logging.warning(
            "%d of %d references have fewer than %d words, as BLEU counts; short texts, and those "
            "of scripts without spaces, may score 0 whatever they are: take chrf",
            short, len(references), BLEU_WORDS,
        )  # fmt: skip
    metric = _package("sacrebleu.metrics").BLEU()
    score = metric.corpus_score([*predictions], [[*references]]).score
    logging.info("BLEU: %s", metric.get_signature())
    return score


def chrf(predictions: Texts, references: Texts) -> float:
    """Returns sacrebleu's corpus chrF2."""
    return _package("sacrebleu").corpus_chrf([*predictions], [[*references]]).score


def _rouge(name: str) -> Callable[[Texts, Texts], float]:
    def score(predictions: Texts, references: Texts) -> float:
        scorer = _package("rouge_score.rouge_scorer").RougeScorer([name], use_stemmer=True)
        letters = [it for text in references for it in text.lower() if it.isalnum()]
        unread = sum(not _READ_BY_ROUGE.match(it) for it in letters) / max(len(letters), 1)
        if unread > MOST_UNREAD:
            logging.warning(
                "%s does not count %.1f%% of the letters of the references: rouge-score reads a to "
                "z and digits alone. Take chrf for other scripts", name, 100 * unread,
            )  # fmt: skip
        pairs = zip(references, predictions, strict=True)
        values = [scorer.score(reference, it)[name].fmeasure for reference, it in pairs]
        return sum(values) / max(len(values), 1)

    return score


# Name in config.finetuning -> the score of predictions and references.
SCORES: dict[str, Callable[[Texts, Texts], float]] = {
    "exact_match": exact_match,
    "bleu": bleu,
    "chrf": chrf,
    **{name: _rouge(name) for name in ("rouge1", "rouge2", "rougeL")},
}


def check(names: Sequence[str]) -> None:
    """Computes each score of a text once.

    Raises:
      ValueError: if a name is not known.
      ImportError: if a score's package is not installed, naming the extra.
    """
    for name in names:
        if name not in SCORES:
            raise faults.unknown("the score", name, SCORES)
        SCORES[name](["a text of words"], ["a text of words"])


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        title = name.partition(".")[0].replace("_", "-")
        raise ImportError(
            f"a score of config.finetuning.text_scores needs {title}, which is not installed: "
            "pip install -e '.[generation]'"
        ) from error
