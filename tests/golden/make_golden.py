"""Writes the small models of this folder, with what transformers computes from them.

    pip install -e '.[interop]' && python tests/golden/make_golden.py [FOLDER ...]

Each folder is as transformers would save it (weights drawn at random, wider than at a model's
initialization, so that nothing is near zero), and `golden.npz` holds the inputs, every output of
the float64 model in evaluation mode and, for pretraining, the gradients of the loss by their names.
Made with torch 2.13.0 and transformers 5.23.0; run it again only to change the models.
"""

from __future__ import annotations

import pathlib
import shutil
import sys

import numpy as np
import torch
import transformers

HERE = pathlib.Path(__file__).parent
# The place of a model is its seed.
SEEDS = (
    *("pretraining", "masked_lm", "none", "sequence_classification", "token_classification"),
    *("question_answering", "multiple_choice", "next_sentence"),
)
BATCH, LENGTH, CHOICES, PREDICTIONS = 3, 11, 2, 4
SIZES = {
    "vocab_size": 60,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "max_position_embeddings": 14,
}

# Folder -> class, fields of its config, type of the weights; float32 goes to safetensors, and
# float16 and bfloat16 to pytorch_model.bin.
MODELS = {
    "pretraining": (transformers.BertForPreTraining, {}, torch.float32),
    "masked_lm": (transformers.BertForMaskedLM, {"hidden_act": "gelu_new"}, torch.float16),
    "none": (transformers.BertModel, {"hidden_act": "relu"}, torch.bfloat16),
    "next_sentence": (transformers.BertForNextSentencePrediction, {}, torch.float32),
    "sequence_classification": (
        transformers.BertForSequenceClassification,
        {"id2label": {0: "no", 1: "perhaps", 2: "yes"}},
        torch.float32,
    ),
    "token_classification": (
        transformers.BertForTokenClassification,
        {"num_labels": 5},
        torch.float32,
    ),
    "question_answering": (transformers.BertForQuestionAnswering, {}, torch.float32),
    "multiple_choice": (transformers.BertForMultipleChoice, {}, torch.float32),
}


def make_inputs(rng: np.random.Generator, *outer: int) -> dict[str, np.ndarray]:
    """Returns sequences of unequal lengths with two segments; padding only beyond them."""
    shape = (*outer, LENGTH)
    lengths = rng.integers(6, LENGTH + 1, (*outer, 1))
    lengths.flat[0] = LENGTH
    is_real = np.arange(LENGTH) < lengths
    is_second = np.arange(LENGTH) >= lengths // 2
    return {
        "input_ids": np.where(is_real, rng.integers(1, SIZES["vocab_size"], shape), 0),
        "attention_mask": is_real.astype(np.int64),
        "token_type_ids": (is_real & is_second).astype(np.int64),
    }


def make_targets(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Returns masked positions, fewer in each row than in the one before, and pair labels."""
    positions = [np.sort(rng.permutation(6)[:PREDICTIONS]) for _ in range(BATCH)]
    weights = np.arange(PREDICTIONS) < np.array([[4], [3], [1]])
    return {
        "masked_lm_positions": np.where(weights, positions, 0),
        "masked_lm_ids": np.where(weights, rng.integers(1, 60, (BATCH, PREDICTIONS)), 0),
        "masked_lm_weights": weights.astype(np.float32),
        "next_sentence_labels": np.array([0, 1, 1]),
    }


def torch_labels(targets: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    labels = np.full((BATCH, LENGTH), -100)
    for row in range(BATCH):
        count = int(targets["masked_lm_weights"][row].sum())
        positions = targets["masked_lm_positions"][row, :count]
        labels[row, positions] = targets["masked_lm_ids"][row, :count]
    return {
        "labels": torch.tensor(labels),
        "next_sentence_label": torch.tensor(targets["next_sentence_labels"]),
    }


def randomize(model: torch.nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator) * 0.2
            parameter.copy_(1 + noise if name.endswith("LayerNorm.weight") else noise)


def save(model: transformers.PreTrainedModel, folder: pathlib.Path, dtype: torch.dtype) -> None:
    model.to(dtype).save_pretrained(folder)
    for path in folder.iterdir():
        path.chmod(0o644)
    if dtype != torch.float32:
        (folder / "model.safetensors").unlink()
        torch.save(model.state_dict(), folder / "pytorch_model.bin")


def make(name: str, seed: int) -> None:
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    make_model, fields, dtype = MODELS[name]
    model = make_model(transformers.BertConfig(**SIZES, **fields)).eval()
    randomize(model, seed)
    save(model, folder, dtype)
    model.double()
    rng = np.random.default_rng(seed)
    outer = (BATCH, CHOICES) if name == "multiple_choice" else (BATCH,)
    golden = make_inputs(rng, *outer)
    inputs = {key: torch.tensor(values) for key, values in golden.items()}
    targets = {}
    if name == "pretraining":
        targets = make_targets(rng)
        inputs |= torch_labels(targets)
    outputs = dict(model(**inputs, output_hidden_states=True, return_dict=True))
    states = outputs.pop("hidden_states")
    golden |= targets | {f"hidden_states_{n}": s for n, s in enumerate(states)} | outputs
    if name == "pretraining":
        outputs["loss"].backward()
        for parameter_name, parameter in model.named_parameters():
            golden[f"gradient {parameter_name}"] = parameter.grad
    golden = {key: to_numpy(values) for key, values in golden.items()}
    np.savez_compressed(folder / "golden.npz", **golden)


def to_numpy(values: torch.Tensor | np.ndarray) -> np.ndarray:
    if isinstance(values, torch.Tensor):
        values = values.detach().numpy()
    return values.astype(np.float32) if values.dtype == np.float64 else values


if __name__ == "__main__":
    for model_name in sys.argv[1:] or MODELS:
        make(model_name, SEEDS.index(model_name))
