"""The needs that objectives have of records; a row of `tasks.OBJECTIVES` lists its own.

Each function yields a sentence if records with a manifest lack it; `options` is
config.pretraining.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from bertjax.data import records, sequence_rows, translations

Need = Callable[[records.Manifest, Any], Iterator[str]]


def one_text_a_sequence(manifest: records.Manifest, options: Any) -> Iterator[str]:
    """No translations: the positions of a second text begin anew."""
    if translations.are_in(manifest):
        yield (
            "they hold texts with their translations, whose positions begin anew, and rows of "
            f"config.pretraining.objective={options.objective!r} are read from left to right by "
            "position: take objective=masked_tokens, or leave out the records of "
            f"{', '.join(filter(translations.are_named, manifest.languages))}"
        )


def two_segments(manifest: records.Manifest, options: Any) -> Iterator[str]:
    """All rows have two segments: pairs, or texts with their translations."""
    are_translations = all(map(translations.are_named, manifest.languages))
    if manifest.pair_objective == "none" and not are_translations:
        yield (
            "their rows have one segment, and with config.pretraining.objective="
            f"{options.objective!r} a second one is read after a first: rebuild them with "
            "--pair_objective=nsp or sop, or take records of translations"
        )


def one_sequence_a_row(manifest: records.Manifest, options: Any) -> Iterator[str]:
    """No packed rows: a decoder sees the states of a whole row."""
    if manifest.is_packed:
        yield (
            "their rows hold several sequences, and with config.pretraining.objective="
            f"{options.objective!r} the decoder sees one source a row: rebuild them without "
            "--packing=best_fit"
        )


def ends_of_sentences(manifest: records.Manifest, options: Any) -> Iterator[str]:
    """The ends of sentences, where config.pretraining.sequence_rows reads them."""
    reads_them = sequence_rows.SEQUENCE_ROWS[options.sequence_rows].reads_sentences
    if reads_them and records.SENTENCES_FEATURE not in manifest.features:
        yield (
            "they do not say where sentences end, and config.pretraining.sequence_rows="
            f"{options.sequence_rows!r} exchanges sentences: rebuild them with --sentence_ends"
        )
