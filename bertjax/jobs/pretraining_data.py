"""The data of pretraining: batches of records or of random tokens, masked as they are read."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import ml_collections
import numpy as np
from etils import epath
from jaxtyping import Int

from bertjax import tasks
from bertjax.data import (
    masking,
    mixtures,
    padding,
    records,
    sequence_rows,
    streams,
    synthetic,
    translations,
    value_masking,
)
from bertjax.files import opening
from bertjax.jobs import base, lengths, minimal_pairs
from bertjax.models import encoder_config
from bertjax.options import faults as faults_lib
from bertjax.tokenization import tokenizer

HELD_OUT, PAIRS = "heldout", "pairs"


@dataclasses.dataclass(frozen=True)
class PretrainingData(base.Data):
    """Record directories, or random tokens, for each phase.

    `evaluation_sets` are held out, one for each language if there are several; `pairs` are
    config.evaluation.pairs_file. `manifests` describe records that a plan does not read.
    """

    phases: tuple[lengths.Phase, ...] = ()
    train_sets: Mapping[str, records.RecordSet] = dataclasses.field(default_factory=dict)
    evaluation_sets: Mapping[str, records.RecordSet] = dataclasses.field(default_factory=dict)
    pairs: minimal_pairs.PairSet | None = None
    manifests: Mapping[str, records.Manifest] = dataclasses.field(default_factory=dict)

    def identity(self) -> dict[str, Any]:
        hashes = (it.manifest.tokenizer_sha256 for it in self.train_sets.values())
        return {
            "manifests": {name: it.manifest.digest for name, it in self.train_sets.items()},
            "tokenizer_sha256": next(hashes, None),
        }

    def train_batches(
        self, phase: lengths.Phase, *, start_step: int, rows: range | None
    ) -> base.Batches:
        data = self.config.data
        seed = lengths.seed(self.config.seed, phase)
        step_in_phase = start_step - phase.first_step + phase.steps_before
        if data.source == "synthetic":
            features = self._features(phase)
            # Masked tokens are drawn, whether they are read or not: so all objectives see the same.
            masked = records.mask_features(self._predictions(phase))
            batches = synthetic.train_batches(
                {**masked, **features},
                global_batch_size=phase.global_batch_size,
                max_seq_length=phase.max_seq_length,
                vocab_size=self.config.model.vocab_size,
                seed=seed,
                start_step=step_in_phase,
                rows=rows,
            )
            unread = masked.keys() - features.keys()
            return ({name: it[name] for name in it.keys() - unread} for it in batches)
        record_set = self.train_sets[phase.name]
        order = streams.Order(
            phase.global_batch_size,
            seed,
            max_streams=data.max_streams,
            shuffle_buffer_size=data.shuffle_buffer_size,
            ramp_from=phase.ramp_from,
            buckets=self._buckets(phase),
            shares=tuple(self._shares(phase).values()),
        )
        batches = streams.train_batches(
            record_set,
            order,
            start_step=step_in_phase,
            rows_before=phase.rows_until(start_step),
            rows=rows,
            draw_masks=draw_masks(
                record_set, self.config.pretraining, _largest_rate(phase), is_training=True
            ),
            mask_rate=_rate_by_step(phase),
        )
        return self._with_languages(batches, record_set.manifest)

    def evaluation_batches(
        self, name: str = HELD_OUT, *, batch_size: int, rows: range | None
    ) -> base.Batches:
        if name == PAIRS and self.pairs:
            return self.pairs.batches(batch_size=batch_size, rows=rows)
        record_set = self.evaluation_sets.get(name)
        if record_set is None:
            must = "a directory of records to evaluate on"
            raise faults_lib.wrong("config.data.eval_dir", self.config.data.eval_dir, must)
        batches = record_batches(
            record_set,
            self.config.pretraining,
            batch_size=batch_size,
            rows=rows,
            masked_lm_prob=self.config.evaluation.masked_lm_prob,
            training=self.config.data.train_dir,
        )
        return self._with_languages(batches, record_set.manifest)

    def _shares(self, phase: lengths.Phase) -> dict[str, float]:
        """Returns the share of each language of a phase's records, {} if they are in one."""
        manifest, options = self._manifest(phase), self.config.phases[phase.name]
        if manifest is None or not manifest.is_mixture:
            return {}
        return mixtures.of_manifest(manifest, options.language_alpha, options.languages)

    def _with_languages(self, batches: base.Batches, manifest: records.Manifest) -> base.Batches:
        """Yields the batches with the features that follow from the languages of their rows.

        They are the language of each row or token, if the model reads it, and the positions of
        translations.
        """
        has_two, is_read = translations.are_in(manifest), self.config.model.language_embeddings
        if not has_two and not is_read:
            yield from batches
            return
        numbers = self._language_numbers(manifest) if is_read else None
        for batch in batches:
            added = {records.POSITIONS_FEATURE: translations.positions(batch)} if has_two else {}
            if numbers is not None:
                # Rows that fill a batch are copies of the first record.
                of_rows = numbers[np.maximum(batch["record_positions"][:, 0], 0)]
                added[records.LANGUAGE_FEATURE] = (
                    translations.token_languages(of_rows, batch) if has_two else of_rows[:, 0]
                )
            yield batch | added

    def _language_numbers(self, manifest: records.Manifest) -> Int[np.ndarray, "shards 2"]:
        """Returns the languages of the first and the second text in the rows of each shard."""
        numbers = np.zeros((len(manifest.shards), 2), np.int32)
        for name in manifest.languages:
            places = [self.config.data.languages.index(it) for it in translations.languages(name)]
            numbers[manifest.shards_of(name)] = places[0], places[-1]
        return numbers

    def _languages(self, phase: lengths.Phase) -> Mapping[str, mixtures.Part]:
        manifest = self._manifest(phase)
        if manifest is None or not manifest.languages:
            return {}
        stretches = [it for it in self.phases if it.name == phase.name]
        positions = sum(it.num_steps * it.tokens_per_step for it in stretches)
        tokens = positions * manifest.statistics.get("fill", 1.0)
        shares = self._shares(phase) or dict.fromkeys(manifest.languages, 1.0)
        return mixtures.parts(manifest.languages, shares, tokens)

    def of_phase(self, phase: lengths.Phase) -> base.PhaseData:
        record_set, manifest = self.train_sets.get(phase.name), self._manifest(phase)
        statistics = record_set.manifest.statistics if record_set else {}
        return base.PhaseData(
            lengths=self._buckets(phase) or (phase.max_seq_length,),
            num_examples=record_set.manifest.num_examples if record_set else None,
            fill=manifest.statistics.get("fill") if manifest else None,
            unigram_entropy=statistics.get("unigram_entropy"),
            languages=self._languages(phase),
        )

    def num_examples(self, name: str = HELD_OUT) -> int:
        if name == PAIRS and self.pairs:
            return len(self.pairs.pairs)
        record_set = self.evaluation_sets.get(name)
        return record_set.manifest.num_examples if record_set else 0

    def abstract_batch(self, phase: lengths.Phase) -> dict[str, jax.ShapeDtypeStruct]:
        features = {
            **self._features(phase),
            "input_mask": records.Feature((records.LENGTH,)),
            "example_weights": records.Feature((), "float32"),
        }
        return {
            name: jax.ShapeDtypeStruct(
                (phase.global_batch_size, *feature.sizes(phase.max_seq_length)), feature.dtype
            )
            for name, feature in sorted(features.items())
        }

    def _features(self, phase: lengths.Phase) -> dict[str, records.Feature]:
        """Returns the features of a phase's batches, stored or drawn as they are read.

        Without a manifest they are those that the model reads: values, or text as the released
        script writes it. A model with embeddings of languages reads the language of each row.
        """
        options, manifest = self.config.pretraining, self._manifest(phase)
        features = dict(value_masking.features(manifest) if manifest else self._read_features())
        by_token = (records.LENGTH,) if manifest and translations.are_in(manifest) else ()
        if by_token:
            features[records.POSITIONS_FEATURE] = records.Feature(by_token)
        if self.config.model.language_embeddings:
            features[records.LANGUAGE_FEATURE] = records.Feature(by_token)
        for name in records.READ_BY_DRAWS:
            features.pop(name, None)
        if tasks.OBJECTIVES[options.objective].reads_sequences:
            made = sequence_rows.SEQUENCE_ROWS[options.sequence_rows]
            features |= made.features(phase.max_seq_length)
        elif options.masking != "none" and records.VALUES_FEATURE in features:
            features |= records.hidden_features(features, options.exchanged_cells)
        elif options.masking != "none":
            features |= records.mask_features(self._predictions(phase))
        if options.pair_loss == "none":
            features.pop(records.PAIR_FEATURE, None)
        elif manifest is None:
            features |= records.text_features(pair_objective=options.pair_loss)
        return features

    def _read_features(self) -> dict[str, records.Feature]:
        if self.config.model.embeddings not in encoder_config.OF_TOKENS:
            return records.value_features(self.config.model.value_width or 1)
        return records.text_features()

    def _predictions(self, phase: lengths.Phase) -> int:
        manifest = self._manifest(phase)
        if manifest is not None and manifest.has_static_masks:
            return manifest.max_predictions_per_seq
        sequences = manifest.max_sequences_per_row if manifest else 0
        return _masking_options(
            self.config.pretraining, phase.max_seq_length, sequences, _largest_rate(phase)
        ).max_predictions_per_seq

    def _buckets(self, phase: lengths.Phase) -> tuple[int, ...]:
        """Returns the lengths that batches are cut to, none where they are not."""
        is_cut = self.config.data.length_buckets
        return padding.default_buckets(phase.max_seq_length) if is_cut else ()

    def _manifest(self, phase: lengths.Phase) -> records.Manifest | None:
        record_set = self.train_sets.get(phase.name)
        return record_set.manifest if record_set else self.manifests.get(phase.name)


def record_batches(
    record_set: records.RecordSet,
    options: ml_collections.ConfigDict,
    *,
    batch_size: int,
    rows: range | None = None,
    masked_lm_prob: float = 0.0,
    training: str = "",
) -> base.Batches:
    """Yields every example of a record set once; `options` is config.pretraining.

    Masks that are not stored are drawn the same way each time, at the rate `masked_lm_prob`
    (0: the rate of `options`). Cells are exchanged with the values that lie with the records, or
    for records of new data in the directory `training`.
    """
    return streams.evaluation_batches(
        record_set,
        batch_size=batch_size,
        rows=rows,
        draw_masks=draw_masks(record_set, options, masked_lm_prob, training=training),
    )


def draw_masks(
    record_set: records.RecordSet,
    options: ml_collections.ConfigDict,
    masked_lm_prob: float = 0.0,
    *,
    is_training: bool = False,
    training: str = "",
) -> Callable[..., Any] | None:
    """Returns the function that masks a batch of `record_set`; None where its masks are stored.

    For an encoder with a decoder it makes sources and targets of the rows.

    It masks at the rate `masked_lm_prob` (0: the rate of `options`, config.pretraining), or at a
    lower one that a call gives, with the same number of places for predictions.
    """
    if record_set.manifest.has_static_masks or options.masking == "none":
        return None
    manifest = record_set.manifest
    if records.VALUES_FEATURE in value_masking.features(manifest):
        chosen = value_masking.Options(
            masked_lm_prob or options.masked_lm_prob,
            options.mask_strategy,
            options.exchanged_cells,
            options.least_crop if is_training else 1.0,
            options.flips and is_training,
        )
        donors = _donors(record_set, training) if chosen.exchanges else None
        return value_masking.drawer(chosen, donors, value_masking.scaling_of(manifest))
    vocabulary = tokenizer.load(record_set.directory)
    if tasks.OBJECTIVES[options.objective].reads_sequences:
        return sequence_rows.drawer(options.sequence_rows, vocabulary)
    largest = _masking_options(
        options, manifest.max_seq_length, manifest.max_sequences_per_row, masked_lm_prob
    )
    masks = functools.partial(
        masking.mask_tokens,
        vocab_size=vocabulary.vocab_size,
        mask_id=vocabulary.mask_id,
        special_ids=vocabulary.special_ids,
        continues_word=vocabulary.continues_word,
    )

    def draw(
        batch: dict[str, np.ndarray], rng: np.random.Generator, masked_lm_prob: float | None = None
    ) -> dict[str, np.ndarray]:
        chosen = largest
        if masked_lm_prob is not None:
            chosen = dataclasses.replace(largest, masked_lm_prob=masked_lm_prob)
        sequences, words = records.sequence_ids(batch), batch.get(records.WORDS_FEATURE)
        return masks(batch["input_ids"], sequences, rng=rng, options=chosen, stored_words=words)

    return draw


def _donors(record_set: records.RecordSet, training: str) -> value_masking.Donors:
    found = training_values(record_set.directory, training)
    if found is None:
        raise ValueError(
            "config.pretraining.exchanged_cells is True, but there are no values to exchange with, "
            f"{value_masking.DONORS_FILE}, in {record_set.directory} or in the training records, "
            f"{training or 'which are not known'}: build the records again"
        )
    return found


def training_values(*directories: epath.PathLike) -> value_masking.Donors | None:
    """Returns the training values that the first of these record directories with any stores."""
    for directory in directories:
        path = epath.Path(directory) / value_masking.DONORS_FILE
        if directory and path.exists():
            return _read_donors(path, records.Manifest.load(directory))
    return None


def _read_donors(path: epath.Path, manifest: records.Manifest) -> value_masking.Donors:
    arrays = opening.read_arrays(path)
    values, observed = (arrays.get(name, np.zeros(0)) for name in ("values", "observed"))
    shape = manifest.features[records.VALUES_FEATURE].sizes(manifest.max_seq_length)
    fits = values.shape == observed.shape == (len(values), *shape) and len(values)
    if not fits or values.dtype.kind != "f" or not np.isfinite(values).all():
        raise ValueError(
            f"{path} has values of the shape {values.shape} and observed of {observed.shape}; they "
            f"must be finite numbers [rows, {shape[0]}, {shape[-1]}]: build the records again"
        )
    return values, observed


def _largest_rate(phase: lengths.Phase) -> float:
    return phase.mask_rate.largest if phase.mask_rate else 0.0


def _rate_by_step(phase: lengths.Phase) -> Callable[[int], float] | None:
    """Returns the mask rate as a function of the phase's step; None if it is the config's."""
    rate, begun = phase.mask_rate, phase.first_step - phase.steps_before
    return None if rate is None else lambda step: rate.at(begun + step)


def _masking_options(
    options: ml_collections.ConfigDict,
    max_seq_length: int,
    max_sequences_per_row: int,
    masked_lm_prob: float = 0.0,
) -> masking.MaskingOptions:
    rate = masked_lm_prob or options.masked_lm_prob
    predictions = options.max_predictions_per_seq or masking.default_max_predictions(
        max_seq_length, rate, max_sequences_per_row
    )
    return masking.MaskingOptions(
        masked_lm_prob=rate,
        max_predictions_per_seq=predictions,
        strategy=options.mask_strategy,
        mask_share=options.mask_share,
        keep_share=options.keep_share,
    )
