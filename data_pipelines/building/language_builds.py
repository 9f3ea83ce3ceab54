"""Records in several languages: a directory of each, and a manifest over them.

Pairs, packed rows and shards never mix languages, and each language has a health report of its own.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging
from etils import epath

from bertjax.data import contents, masking, records
from bertjax.files import directories
from bertjax.tokenization import tokenizer
from data_pipelines.building import builders
from data_pipelines.building.options import Options
from data_pipelines.documents import languages, sentences, sources
from data_pipelines.partial_output import PartialOutput

# Writes the records of options and units into `output.records`, with all that belongs to them.
Make = Callable[[Options, Sequence[sources.Unit], PartialOutput], records.Manifest]

# Figures of all languages together: sums, and means over what is counted in another figure.
_SUMS = (
    *("documents", "empty_documents", "sentences", "sentence_cuts", "tokens", "words"),
    *("characters", "bytes", "examples", "sequences", "unigram_tokens", "masked_tokens"),
)
_MEANS = {
    "unknown_rate": "tokens",
    "used_token_share": "tokens",
    "fill": "examples",
    "example_unknown_rate": "examples",
}


def units_by_language(
    units: Sequence[sources.Unit], options: Options, directory: epath.Path
) -> dict[str, list[sources.Unit]]:
    """Returns the units of each language, by name; {"": units} where they have no names.

    Where a column of tables holds the language, their texts are copied into `directory`.
    """
    if options.language_field:
        units = sources.by_field(units, options.reading, options.language_field, directory)
    named = {unit.location: unit.language or options.language for unit in units}
    if any(named.values()) and (without := [place for place, it in named.items() if not it]):
        raise ValueError(
            f"the input names languages, but none of {directories.described(without)}: name each "
            "as INPUT=LANGUAGE, or those without one by --language"
        )
    pairs = [place for place, name in named.items() if languages.is_pair(name)]
    if pairs and options.pair_objective != "none":
        raise ValueError(
            f"pair_objective is {options.pair_objective!r}, but {directories.described(pairs)} "
            "holds texts with their translations, whose pairs have no label: use "
            "--pair_objective=none, or leave them out"
        )
    spellings = {name.casefold(): name for name in named.values()}
    if len(spellings) < len(set(named.values())):
        names = ", ".join(sorted(set(named.values())))
        raise ValueError(f"the input names languages that differ in case alone: {names}")
    found: dict[str, list[sources.Unit]] = {name: [] for name in sorted(set(named.values()))}
    for unit in units:
        found[named[unit.location]].append(unit)
    return found or {"": []}


def in_language(options: Options, language: str) -> Options:
    """Returns the options for text in a language, "" if it is unknown."""
    splitter = options.sentence_splitter
    if languages.is_pair(language):
        splitter = "lines"  # of which one is the translation of the other
    if splitter == "sentencex" and language:
        code = re.split("[-_]", language)[0].lower()
        known = code in sentences.SENTENCEX_LANGUAGES.split()
        splitter = f"{splitter}:{code}" if known else "rules"
        if not known:
            logging.info("sentencex has no rules for %s: its sentences end by ours", language)
    return dataclasses.replace(options, language=language, sentence_splitter=splitter)


def figures(
    language: str, statistics: Mapping[str, Any], shards: Sequence[records.Shard]
) -> dict[str, dict[str, int]]:
    """Returns the entry of a language in a manifest, {} where it is unknown."""
    if not language:
        return {}
    counted = {name: statistics.get(name, 0) for name in ("documents", "tokens", "bytes")}
    return {language: counted | {"examples": sum(shard.examples for shard in shards)}}


def build(
    of_languages: Mapping[str, Sequence[sources.Unit]],
    options: Options,
    output: PartialOutput,
    make: Make,
    vocabulary: tokenizer.Tokenizer,
) -> records.Manifest:
    """Writes records of each language, and the manifest and vocabulary of all, into an output.

    Languages that an unfinished build has completed are kept. One without a document is left out,
    with a warning.
    """
    manifests, faults, empty = {}, [], []
    for name, units in of_languages.items():
        try:
            manifests[name] = _of_language(in_language(options, name), units, output, make)
        except builders.NoDocumentsError as error:
            more = ", ..." * (len(units) > 1)
            empty.append(f"{name}: {error} ({units[0].location}{more})")
        except ValueError as error:
            faults.append(f"{name}: {error}")
    if faults or not manifests:
        faults += empty
        raise ValueError(
            f"{len(faults)} of the {len(of_languages)} languages give no records, and nothing is "
            "written:\n  " + "\n  ".join(faults)
        )
    if empty:
        logging.warning("Languages without a document are left out:\n  %s", "\n  ".join(empty))
    manifest = _over(manifests, options, output.records, vocabulary)
    for part in (vocabulary, manifest):
        part.save(output.records)
    return manifest


def _of_language(
    options: Options, units: Sequence[sources.Unit], output: PartialOutput, make: Make
) -> records.Manifest:
    directory = output.records / options.language
    if directories.format_of(directory) == "records":
        return records.Manifest.load(directory)
    logging.info("Language %s: %d inputs", options.language, len(units))
    with PartialOutput(directory, scratch=options.scratch) as own:
        own.begin(options.content(), options.content())
        manifest = make(options, units, own)
        own.publish()
    return manifest


def _over(
    manifests: Mapping[str, records.Manifest],
    options: Options,
    directory: epath.Path,
    vocabulary: tokenizer.Tokenizer,
) -> records.Manifest:
    """Returns the manifest of all languages, and saves their counts of tokens."""
    shards, listed = [], {}
    for name, manifest in manifests.items():
        shards += [
            dataclasses.replace(shard, file=f"{name}/{shard.file}") for shard in manifest.shards
        ]
        listed |= manifest.languages
    first = next(iter(manifests.values()))
    summaries = [contents.load(directory / name) for name in manifests]
    summary = None
    for one in summaries:
        summary = summary.merged(one) if summary and one else one
    statistics = _together([it.statistics for it in manifests.values()])
    if summary is not None:
        summary.save(directory)
        counts = summary.token_counts
        entropy, most = masking.unigram_baseline(counts)
        ordinary = len(counts) - len(vocabulary.special_ids)
        used = float(np.count_nonzero(counts)) / ordinary
        statistics |= {"unigram_entropy": entropy, "most_frequent_token_share": most}
        statistics |= {"vocabulary_used_share": used}
    return dataclasses.replace(
        first,
        shards=tuple(shards),
        statistics=statistics,
        languages=listed,
        arguments=options.content(),
    )


def _together(statistics: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the figures that several parts have together, of those that all have."""
    together: dict[str, Any] = {
        name: sum(part[name] for part in statistics)
        for name in _SUMS
        if all(name in part for part in statistics)
    }
    for name, by in _MEANS.items():
        if by in together and all(name in part for part in statistics):
            total = sum(part[name] * part[by] for part in statistics)
            together[name] = total / max(together[by], 1)
    return together
