"""Scores of generated texts: exact match, and the numbers of sacrebleu and rouge-score.

BLEU and chrF are sacrebleu's with its defaults (Post 2018), from 0 to 100, BLEU with any of its
tokenizers; ROUGE is the mean F of rouge-score with stemming, from 0 to 1, as its command computes
it.
"""

from __future__ import annotations

import dataclasses
import functools
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
TOKENIZER = "13a"  # sacrebleu's default
OPTION = "config.finetuning.bleu_tokenizer"
TAKE_CHRF = "take chrf, as --config.finetuning.text_scores=\"('chrf',)\""


@dataclasses.dataclass(frozen=True)
class Score:
    """A score of predictions and references; a call warns of references that it does not read.

    `unread` returns a sentence on these, "" without any.
    """

    compute: Callable[[Texts, Texts], float]
    unread: Callable[[Texts], str] = lambda references: ""

    def __call__(self, predictions: Texts, references: Texts) -> float:
        if sentence := self.unread(references):
            logging.warning("%s", sentence)
        return self.compute(predictions, references)


def exact_match(predictions: Texts, references: Texts) -> float:
    """Returns the share of texts that equal their references except for white space at the ends."""
    hits = [
        one.strip() == other.strip() for one, other in zip(predictions, references, strict=True)
    ]
    return sum(hits) / max(len(hits), 1)


def chrf(predictions: Texts, references: Texts) -> float:
    """Returns sacrebleu's corpus chrF2."""
    return _package("sacrebleu").corpus_chrf([*predictions], [[*references]]).score


def bleu_by(tokenizer: str) -> Score:
    """Returns sacrebleu's corpus BLEU of words by one of its tokenizers."""

    def compute(predictions: Texts, references: Texts) -> float:
        return _bleu_metric(tokenizer).corpus_score([*predictions], [[*references]]).score

    def unread(references: Texts) -> str:
        words = _bleu_metric(tokenizer).tokenizer
        short = sum(len(words(it).split()) < BLEU_WORDS for it in references)
        if not short:
            return ""
        return (
            f"{short} of {len(references)} references have fewer than {BLEU_WORDS} words by BLEU's "
            f"tokenizer {tokenizer}, and may score 0 whatever is predicted: {TAKE_CHRF}, or in a "
            f"script without spaces a tokenizer for it, as --{OPTION}=zh or =char"
        )

    return Score(compute, unread)


bleu = bleu_by(TOKENIZER)


def signature(tokenizer: str = TOKENIZER) -> str:
    """Returns sacrebleu's signature of BLEU."""
    metric = _bleu_metric(tokenizer)
    metric.corpus_score(["a text"], [["a text"]])
    return str(metric.get_signature())


@functools.cache  # a tokenizer may read megabytes
def _bleu_metric(tokenizer: str) -> Any:
    """Returns the metric; ValueError with what its tokenizer lacks."""
    metric = _package("sacrebleu.metrics").BLEU
    if tokenizer not in metric.TOKENIZERS:
        raise faults.unknown(OPTION, tokenizer, metric.TOKENIZERS)
    home = _package("sacrebleu.utils").SACREBLEU_DIR
    if tokenizer != TOKENIZER:
        logging.info("BLEU's tokenizer is %s; if it has a model it is in %s", tokenizer, home)
    try:
        # Texts stand as the vocabulary spells them, which `force` does not warn of.
        return metric(tokenize=tokenizer, force=True)
    except OSError as error:
        raise ValueError(
            f"{OPTION} is {tokenizer!r}, whose model sacrebleu downloads or reads in {home}, which "
            f'failed ({error}): where there is a network run python -c "from sacrebleu.metrics '
            f"import BLEU; BLEU(tokenize='{tokenizer}')\", and copy {home} to this machine"
        ) from error
    except (RuntimeError, ImportError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{OPTION} is {tokenizer!r}, which lacks something: {reason}") from error


def _rouge(name: str) -> Score:
    def compute(predictions: Texts, references: Texts) -> float:
        scorer = _package("rouge_score.rouge_scorer").RougeScorer([name], use_stemmer=True)
        pairs = zip(references, predictions, strict=True)
        values = [scorer.score(reference, it)[name].fmeasure for reference, it in pairs]
        return sum(values) / max(len(values), 1)

    def unread(references: Texts) -> str:
        letters = [it for text in references for it in text.lower() if it.isalnum()]
        share = sum(not _READ_BY_ROUGE.match(it) for it in letters) / max(len(letters), 1)
        if share <= MOST_UNREAD:
            return ""
        return (
            f"ROUGE does not count {share:.1%} of the letters of the references: rouge-score "
            f"reads a to z and digits alone. For other scripts {TAKE_CHRF}"
        )

    return Score(compute, unread)


# Name in config.finetuning -> the score.
SCORES: dict[str, Score] = {
    "exact_match": Score(exact_match),
    "bleu": bleu,
    "chrf": Score(chrf),
    **{name: _rouge(name) for name in ("rouge1", "rouge2", "rougeL")},
}


def chosen(names: Sequence[str], tokenizer: str = TOKENIZER) -> dict[str, Score]:
    """Returns scores by name; each computes the score of a text once.

    Raises:
      ValueError: if a name is not known, or BLEU's tokenizer is not, or lacks something.
      ImportError: if a score's package is not installed, naming the extra.
    """
    scores = {}
    for name in names:
        if name not in SCORES:
            raise faults.unknown("config.finetuning.text_scores", name, SCORES)
        scores[name] = bleu_by(tokenizer) if name == "bleu" else SCORES[name]
        scores[name].compute(["a text of words"], ["a text of words"])
    return scores


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        title = name.partition(".")[0].replace("_", "-")
        raise ImportError(
            f"a score of config.finetuning.text_scores needs {title}, which is not installed: "
            "pip install -e '.[generation]'"
        ) from error
