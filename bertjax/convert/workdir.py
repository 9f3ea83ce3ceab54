"""Reads the weights of a workdir, and writes a workdir from weights of other formats.

A converted workdir has a checkpoint at step 0, so `fill_mask`, `encode`, `evaluate` and
config.init_from read it like a run's. It cannot be resumed: it has no optimizer state, and the
training loop says so.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from etils import epath

import bertjax
from bertjax import config as config_lib
from bertjax.convert import generation_config, heads, pretrained
from bertjax.data import records, value_masking
from bertjax.models import embedding_sharing, encoder, parameters, sentence_vectors
from bertjax.tasks import masked_autoencoder, replaced_tokens
from bertjax.workdirs import checkpoint, reader


def read(path: epath.PathLike, *, step: str | int = "newest") -> pretrained.Pretrained:
    """Returns a checkpoint of a workdir, of any mesh and dtype."""
    return weights_of(reader.read(path, step=step))


def describe(path: epath.PathLike) -> pretrained.Description:
    """Returns the description of a workdir's model, without reading parameters."""
    description = reader.describe(path)
    if description is None:
        raise FileNotFoundError(f"{epath.Path(path)} has no readable checkpoint")
    sizes = encoder.EncoderConfig(**description.config.model)
    named = tuple(description.config.data.languages)
    return pretrained.Description(sizes, description.vocabulary, _source(description), named)


def read_sentence_vectors(path: epath.PathLike) -> sentence_vectors.SentenceVectors | None:
    """Returns the sentence vectors of a workdir's model, None if it was not trained for them."""
    description = reader.describe(path)
    return None if description is None else sentence_vectors_of(description)


def weights_of(workdir: reader.Workdir) -> pretrained.Pretrained:
    """Returns a workdir's model as the writers of all formats take it."""
    flat = {path: np.asarray(leaf) for path, leaf in parameters.flat(workdir.params).items()}
    sizes, generator = encoder.EncoderConfig(**workdir.config.model), None
    if embedding_sharing.GENERATOR in workdir.params:
        generator = replaced_tokens.generator_config(sizes, workdir.config.pretraining.generator)
    decoder = _decoder(workdir, sizes)
    sentence = sentence_vectors_of(workdir)
    if sentence is not None:
        unused = tuple(path for path in flat if not heads.belongs(path, "none"))
        fields = {"head": "none", "labels": {}, "unused": unused}
        flat = {path: leaf for path, leaf in flat.items() if path not in unused}
    else:
        is_finetuned = workdir.config.task == "finetuning"
        fields = (
            _finetuned(workdir)
            if is_finetuned
            else _pretrained_fields(workdir.meta, flat, workdir.config.pretraining)
        )
    return pretrained.Pretrained(
        config=sizes,
        params=flat,
        vocabulary=workdir.vocabulary,
        source=_source(workdir),
        generator=generator,
        decoder=decoder,
        sentence=sentence,
        languages=tuple(workdir.config.data.languages),
        model_type=workdir.meta.get("converted", {}).get("model_type", ""),
        manifest=_manifest(workdir.directory / reader.TRAINING_DATA_DIRECTORY),
        **fields,
    )


def as_workdir(weights: pretrained.Pretrained, directory: epath.PathLike) -> reader.Workdir:
    """Returns weights as the workdir that they would be converted into."""
    meta = _meta(weights)
    return reader.Workdir(
        config=reader.config_of(meta, 0),
        meta=meta,
        step=0,
        vocabulary=weights.vocabulary,
        directory=epath.Path(directory),
        params=parameters.nested(weights.params),
    )


def sentence_vectors_of(description: reader.Description) -> sentence_vectors.SentenceVectors | None:
    """Returns the sentence vectors of a model, None if it was not trained for them."""
    options = description.config.finetuning
    if description.config.task == "finetuning" and options.dataset == "embeddings":
        return sentence_vectors.SentenceVectors(
            pooling=options.pooling,
            normalize=options.normalize,
            prompts={"query": options.query_prompt, "document": options.document_prompt},
            max_seq_length=options.max_seq_length,
            matryoshka_dims=tuple(options.matryoshka_dims),
            projections=sentence_vectors.projections_of(options.projections),
        )
    stored = description.meta.get("converted", {}).get("sentence_vectors")
    if not stored:
        return None
    projections = (sentence_vectors.Projection(**it) for it in stored.get("projections", ()))
    lists = {"matryoshka_dims": tuple(stored["matryoshka_dims"]), "projections": tuple(projections)}
    return sentence_vectors.SentenceVectors(**{**stored, **lists})


def write(
    weights: pretrained.Pretrained, directory: epath.PathLike, card: str | None = None
) -> None:
    """Writes a checkpoint at step 0, its config, vocabulary and README.md into `directory`."""
    directory = epath.Path(directory)
    meta = _meta(weights)
    reader.write_config(meta["config"], directory)
    if weights.vocabulary is not None:
        weights.vocabulary.save(directory / reader.VOCABULARY_DIRECTORY)
    if card is not None:
        (directory / "README.md").write_text(card)
    if weights.manifest is not None:
        weights.manifest.save(directory / reader.TRAINING_DATA_DIRECTORY)
    with checkpoint.Checkpointer(directory, checkpoint.RetentionOptions()) as checkpointer:
        checkpointer.save_params(parameters.nested(weights.params), meta)


def _manifest(directory: epath.Path) -> records.Manifest | None:
    """Returns the manifest that a run on records of values has kept, None without one."""
    return (
        records.Manifest.load(directory) if (directory / records.MANIFEST_FILE).exists() else None
    )


def _source(description: reader.Description) -> str:
    return f"{description.directory} (bertjax workdir, step {description.step})"


def _decoder(
    workdir: reader.Workdir, encoder_sizes: encoder.EncoderConfig
) -> encoder.EncoderConfig | None:
    """Returns the sizes of the decoder, None without one.

    A decoder of sequences has the encoder's sizes, unless the checkpoint has others.
    """
    if "decoder" not in workdir.params:
        return None
    if "value_head" in workdir.params:
        return masked_autoencoder.of_options(encoder_sizes, workdir.config.pretraining).decoder
    places = ("converted", "finetuned")
    stored = [
        workdir.meta[it]["decoder"] for it in places if workdir.meta.get(it, {}).get("decoder")
    ]
    return dataclasses.replace(encoder_sizes, **(stored[0] if stored else {}))


def _pretrained_fields(
    meta: Mapping[str, Any], params: Mapping[str, np.ndarray], pretraining: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the fields of `Pretrained` about the head of converted or pretrained weights."""
    converted = meta.get("converted", {})
    head = converted.get("head") or heads.of_paths(params)
    labels = {int(label): name for label, name in converted.get("labels", {}).items()}
    defaults = {"is_regression": False, "is_multi_label": False, "pooling": "cls"}
    return {
        "head": head,
        "labels": pretrained.named_labels(labels, params, head),
        "is_shifted": pretraining["objective"] == heads.HEADS[head].shifted_objective,
        "objective": {name: pretraining[name] for name in heads.HEADS[head].trained_by},
        **{name: converted.get(name, default) for name, default in defaults.items()},
        **{name: converted.get(name) for name in ("start_id", "end_id")},
        "generation": converted.get("generation", {}),
    }


def _finetuned(trained: reader.Workdir) -> dict[str, Any]:
    """Returns the fields of `Pretrained` about the head of finetuned weights."""
    if "finetuned" not in trained.meta:
        raise ValueError(
            f"{trained.directory} was finetuned, but its checkpoint does not name the head: "
            "finetune again into a new workdir, or use it with `python -m bertjax.predict`"
        )
    options = trained.config.finetuning
    # transformers' name for a regression's output.
    labels = {0: "LABEL_0"} if options.is_regression else dict(enumerate(options.labels))
    head = trained.meta["finetuned"]["head"]
    is_of_targets = head == "sequence_to_sequence"
    return {
        "labels": labels,
        "is_regression": options.is_regression,
        "is_multi_label": options.is_multi_label,
        "pooling": options.pooling if head == "sequence_classification" else "cls",
        "generation": generation_config.of_options(options) if is_of_targets else {},
        # head, export_fault; of sequences also start_id and end_id
        **{name: it for name, it in trained.meta["finetuned"].items() if name != "decoder"},
    }


def _meta(weights: pretrained.Pretrained) -> dict[str, Any]:
    config = config_lib.default_config()
    config.model.update(
        {name: getattr(weights.config, name) for name in config.model if name != "dtype"}
    )
    config.model.dtype = "float32"
    config.data.languages = weights.languages
    if weights.manifest is not None:
        config.data.value_meaning = value_masking.described(weights.manifest)
    head = heads.HEADS[weights.head]
    config.pretraining.update({"pair_loss": "none", **head.options, **weights.objective})
    if weights.is_shifted:
        config.pretraining.objective = head.shifted_objective
    if weights.head == "masked_autoencoder" and weights.decoder is not None:
        config.pretraining.decoder.update(
            {name: getattr(weights.decoder, name) for name in masked_autoencoder.DECODER_SIZES}
        )
    if weights.generator is not None:
        generator, copies = config.pretraining.generator, embedding_sharing.copies(weights.params)
        names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
        generator.update({name: getattr(weights.generator, name) for name in names})
        generator.embeddings = "shared" if copies else "separate"
    vocabulary = weights.vocabulary
    return {
        "config": config.to_dict(),
        "identity": {
            "manifests": {},
            "tokenizer_sha256": vocabulary.describe()["sha256"] if vocabulary else None,
        },
        "skipped": {},
        "versions": {"bertjax": bertjax.__version__},
        "converted": {
            "head": weights.head,
            "labels": {str(label): name for label, name in weights.labels.items()},
            "is_regression": weights.is_regression,
            "is_multi_label": weights.is_multi_label,
            "model_type": weights.model_type,
            "pooling": weights.pooling,
            "sentence_vectors": weights.sentence and dataclasses.asdict(weights.sentence),
            "decoder": weights.decoder and dataclasses.asdict(weights.decoder),
            "start_id": weights.start_id,
            "end_id": weights.end_id,
            "generation": dict(weights.generation),
            "source": weights.source,
        },
    }
