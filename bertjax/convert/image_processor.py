"""preprocessor_config.json: how processors of transformers make values of a picture of 8 bits."""

from __future__ import annotations

import json
import math
from typing import Any

from absl import logging
from etils import epath
from PIL import Image

from bertjax import models
from bertjax.convert import names
from bertjax.data import records, value_statistics
from bertjax.files import json_text

FILE = "preprocessor_config.json"
# ViTImageProcessor of version 4 has no shortest edge; this class is the same in versions 4 and 5.
CLASS = "BitImageProcessor"


def fields(manifest: records.Manifest) -> dict[str, Any]:
    """Returns the fields of the file for records of pictures, which `pictures.resized` cuts."""
    size, _, channels = manifest.features[records.PIXELS_FEATURE].shape
    return {
        "image_processor_type": CLASS,
        "do_convert_rgb": channels == 3,
        "do_resize": True,
        "size": {"shortest_edge": size},
        "resample": int(Image.Resampling.BICUBIC),
        "do_center_crop": True,
        "crop_size": {"height": size, "width": size},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": manifest.statistics["channel_means"],
        "image_std": manifest.statistics["channel_deviations"],
    }


def write(manifest: records.Manifest, directory: epath.Path) -> None:
    """Writes the file for records of pictures."""
    (directory / FILE).write_text(json.dumps(fields(manifest), indent=2, sort_keys=True) + "\n")


def read(directory: epath.Path, config: models.EncoderConfig) -> records.Manifest | None:
    """Returns a manifest with the scaling of the file, as of records without shards; None without.

    Warns of another size, cut or filter than records have.
    """
    path, length = directory / FILE, config.max_position_embeddings
    if not path.exists():
        logging.warning("%s does not exist: nothing says how pixels were scaled", path)
        return None
    given = json_text.read_object(path)
    patch, channels = names.patch_sides(config.value_width)
    shape = (*[patch * math.isqrt(length - 1)] * 2, channels)
    scales = [given.get(name, 0.5) for name in ("image_mean", "image_std")]
    scales = [it if isinstance(it, list) else [it] * channels for it in scales]  # one for all
    if not given.get("do_normalize", True):
        scales = [[0.0] * channels, [1.0] * channels]
    statistics = {"patch": patch, "channel_means": scales[0], "channel_deviations": scales[1]}
    stated = {"statistics": statistics, "max_seq_length": length}
    stated |= {"features": {records.PIXELS_FEATURE: [[*shape], "uint8"]}}
    if found := {*map(str, value_statistics.faults(stated))}:
        raise ValueError(f"{path}, image_mean and image_std: {'; '.join(sorted(found))}")
    features = {records.PIXELS_FEATURE: records.Feature(shape, "uint8")}
    manifest = records.Manifest(
        {}, length, 0, 0.0, "none", (), 0, {}, statistics, features=features
    )
    expected = {it: value for it, value in fields(manifest).items() if not it.startswith("image_")}
    if others := {it: given[it] for it in expected if given.get(it, expected[it]) != expected[it]}:
        logging.warning(
            "%s has %s, and the pictures of records are made with %s", path, others,
            {it: expected[it] for it in others},
        )  # fmt: skip
    return manifest
