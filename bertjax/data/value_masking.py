"""Which positions of rows of values are hidden, and what cells of tables are exchanged for.

Positions are chosen by the maskers of `masking`: single ones, groups that the records store with
`continues_word` (a channel, a column of several positions), or runs. Only a position with observed
values is hidden.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable

import numpy as np
from jaxtyping import Float, Int

from bertjax.data import masking, pictures, records

DONORS_FILE = "donors.npz"
# Statistics of a manifest that say what a value means.
MEANINGS = ("columns", "channels", "patch", "channel_means", "channel_deviations")
# Training values of every position, drawn from in place of hidden ones: [rows, length, width], and
# which of them were observed.
Donors = tuple[Float[np.ndarray, "rows length width"], Int[np.ndarray, "rows length width"]]


@dataclasses.dataclass(frozen=True)
class Options:
    """The share of the observed positions to hide, the masker, and whether cells are exchanged.

    Of pixels, `least_crop` is the least area of a crop, 1.0 for none, and `flips` mirrors half of
    the pictures.
    """

    share: float
    strategy: str = "token"
    exchanges: bool = False
    least_crop: float = 1.0
    flips: bool = False


def draw(
    batch: dict[str, np.ndarray],
    rng: np.random.Generator,
    options: Options,
    donors: Donors | None = None,
    scaling: pictures.Scaling | None = None,
) -> dict[str, np.ndarray]:
    """Returns `hidden` [batch, length], 1 where values are to be predicted; and `shown_values`.

    `shown_values` are there if the hidden cells are exchanged for a value of the same position in
    another row of the training data, each by a draw of its own; a cell whose donor was not observed
    stays as it is. round(share x observed positions) of a row are hidden, at least one. From
    pixels it makes `values` and `observed` first, by `scaling`.
    """
    if scaling is None:
        return _drawn(batch, rng, options, donors)
    pixels = batch[records.PIXELS_FEATURE]
    pixels = pictures.cropped(pixels, rng, least=options.least_crop, flips=options.flips)
    values, observed = scaling.patches(pixels)
    made = {records.VALUES_FEATURE: values, records.OBSERVED_FEATURE: observed}
    return {**made, **_drawn(batch | made, rng, options, donors)}


def _drawn(
    batch: dict[str, np.ndarray],
    rng: np.random.Generator,
    options: Options,
    donors: Donors | None,
) -> dict[str, np.ndarray]:
    observed = observed_positions(batch)
    continues = np.zeros_like(observed)
    masker = masking.MASKERS[options.strategy]
    if masker.needs_words and records.WORDS_FEATURE in batch:
        stored = batch[records.WORDS_FEATURE][:, 1:] != 0
        continues[:, 1:] = stored & observed[:, 1:] & observed[:, :-1]
    numbers = np.rint(observed.sum(axis=1) * options.share).astype(np.int64)
    numbers = np.minimum(np.maximum(numbers, 1), observed.sum(axis=1))
    hidden = masker.choose(observed, continues, numbers, rng)
    drawn = {records.HIDDEN_FEATURE: hidden.astype(np.int32)}
    if options.exchanges:
        assert donors is not None
        drawn[records.SHOWN_FEATURE] = _exchanged(
            batch[records.VALUES_FEATURE], hidden, donors, rng
        )
    return drawn


def observed_positions(batch: dict[str, np.ndarray]) -> np.ndarray:
    """Returns which positions [batch, length] have an observed value."""
    is_real = batch["input_mask"] != 0
    if records.OBSERVED_FEATURE not in batch:
        return is_real
    return is_real & (batch[records.OBSERVED_FEATURE] != 0).any(axis=-1)


def shown(scaling: pictures.Scaling | None) -> Callable[..., dict[str, np.ndarray]]:
    """Returns a draw that hides nothing: it makes `values` of pixels, and `observed` of all."""

    def of_batch(batch: dict[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
        del rng
        made = {}
        if scaling is not None:
            values, observed = scaling.patches(batch[records.PIXELS_FEATURE])
            made = {records.VALUES_FEATURE: values, records.OBSERVED_FEATURE: observed}
        elif records.OBSERVED_FEATURE not in batch:
            made = {records.OBSERVED_FEATURE: np.ones_like(batch[records.VALUES_FEATURE], np.int32)}
        return made

    return of_batch


def scaling_of(manifest: records.Manifest) -> pictures.Scaling | None:
    """Returns how the pixels of records become values; None where they hold none."""
    if records.PIXELS_FEATURE not in manifest.features:
        return None
    kept = manifest.statistics
    means, deviations = kept["channel_means"], kept["channel_deviations"]
    return pictures.Scaling(
        int(kept["patch"]), tuple(means), tuple(deviations), grid_rows(manifest)
    )


def grid_rows(manifest: records.Manifest) -> int:
    """Returns the number of rows of patches in pictures; 0 where these are squares."""
    if records.PIXELS_FEATURE not in manifest.features:
        return 0
    height, width, _ = map(int, manifest.features[records.PIXELS_FEATURE].shape)
    return 0 if height == width else height // int(manifest.statistics["patch"])


def features(manifest: records.Manifest) -> records.Features:
    """Returns the features of a batch before anything is hidden: of pixels, their values."""
    scaling = scaling_of(manifest)
    if scaling is None:
        return manifest.features
    channels = manifest.features[records.PIXELS_FEATURE].shape[-1]
    others = {k: v for k, v in manifest.features.items() if k != records.PIXELS_FEATURE}
    return {**others, **records.value_features(scaling.patch**2 * int(channels))}


def meaning(manifest: records.Manifest) -> str:
    """Returns a hash of what values mean: columns or channels, and their scaling."""
    said = {name: manifest.statistics.get(name) for name in MEANINGS}
    if rows := grid_rows(manifest):
        said["grid_rows"] = rows
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]


def described(manifest: records.Manifest) -> str:
    """Returns the names of columns or channels, and `meaning`, as a run stores them."""
    names = {
        kind: [it["name"] for it in manifest.statistics.get(kind) or ()]
        for kind in ("columns", "channels")
    }
    return json.dumps({**names, "meaning": meaning(manifest)}, ensure_ascii=False)


def check(stored: str, record_set: records.RecordSet, trained: str = "the training set") -> None:
    """Raises a ValueError if records mean other values than `stored`, what `described` returned.

    Nothing is checked where a model stores nothing, as converted weights.
    """
    if stored and json.loads(stored)["meaning"] != meaning(record_set.manifest):
        raise ValueError(
            f"the columns, channels or scaling of {record_set.directory} differ from those of "
            f"{trained}: build it with --like=DIR, DIR the records that the model was trained on"
        )


def other_columns(stored: str, manifest: records.Manifest) -> list[str]:
    """Returns the columns of tables that are in only one of two records, "" for another order."""
    if not stored:
        return []
    before, now = json.loads(stored)["columns"], json.loads(described(manifest))["columns"]
    return sorted({*before} ^ {*now}) or ([""] if before != now else [])


def drawer(
    options: Options,
    donors: Donors | None = None,
    scaling: pictures.Scaling | None = None,
) -> Callable[..., dict[str, np.ndarray]]:
    """Returns `draw` as streams call it: a `masked_lm_prob` is the share of this step."""

    def of_batch(
        batch: dict[str, np.ndarray], rng: np.random.Generator, masked_lm_prob: float | None = None
    ) -> dict[str, np.ndarray]:
        share = options.share if masked_lm_prob is None else masked_lm_prob
        return draw(batch, rng, dataclasses.replace(options, share=share), donors, scaling)

    return of_batch


def _exchanged(
    values: Float[np.ndarray, "batch length width"],
    hidden: np.ndarray,
    donors: Donors,
    rng: np.random.Generator,
) -> np.ndarray:
    of_donors, observed = donors
    rows = rng.integers(0, len(of_donors), size=hidden.shape)
    places = np.arange(hidden.shape[1])[None]
    is_taken = hidden[..., None] & (observed[rows, places] != 0)
    return np.where(is_taken, of_donors[rows, places], values).astype(np.float32)
