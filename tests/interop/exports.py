"""Exports of every family and head, and what another version of transformers says as it loads them.

    python -m tests.interop.exports write DIR      # with bertjax: a small random model of each
    OTHER/bin/python tests/interop/exports.py load DIR   # with any transformers and torch

`load` needs neither bertjax nor JAX. It prints a line for each export, and ends with 1 if a key is
missing or unexpected, the class is another than config.json says, something was logged or warned
of, the tokenizer is another, numbers are not finite, or masked-token logits are not ours.
"""

import argparse
import json
import logging
import pathlib
import sys
import warnings

# Head -> how transformers finds its class; BERT and ALBERT pretrain two heads, ELECTRA its own.
AUTO = {
    "pretraining": "AutoModelForPreTraining",
    "replaced_tokens": "AutoModelForPreTraining",
    "causal_lm": "AutoModelForCausalLM",
    "masked_lm": "AutoModelForMaskedLM",
    "none": "AutoModel",
    "next_sentence": "AutoModelForNextSentencePrediction",
    "sequence_classification": "AutoModelForSequenceClassification",
    "token_classification": "AutoModelForTokenClassification",
    "question_answering": "AutoModelForQuestionAnswering",
    "multiple_choice": "AutoModelForMultipleChoice",
}
TEXT = "w1 w2 w3"
POSITIONS = 16


def make(family, head):
    """Returns a small random model of a family of weights with a head."""
    import dataclasses

    from tests.convert import weights

    config, vocabulary = small(family, max_position_embeddings=POSITIONS)
    made = weights.make(head, config=config, vocabulary=vocabulary)
    return dataclasses.replace(made, model_type=family.model_type)


def write_facts(made, directory: pathlib.Path, **facts) -> None:
    """Writes the values that `load` expects into the directory of an export."""
    facts |= {"head": made.head, "ids": list(made.vocabulary.encode(TEXT))}
    (directory / "expected.json").write_text(json.dumps(facts))


def logits_of(made) -> list:
    """Returns our masked-token logits for TEXT, in the first of the languages if it has any."""
    import numpy as np
    from flax import nnx

    from bertjax.models import parameters
    from bertjax.tasks import pretraining

    def make():
        return pretraining.PretrainingModel(made.config, pair_loss="none", rngs=nnx.Rngs(0))

    graphdef, _ = parameters.split(nnx.eval_shape(make))
    model = parameters.merge(graphdef, parameters.nested(dict(made.params)))
    known = made.vocabulary
    ids = np.array([[known.cls_id, *known.encode(TEXT), known.sep_id]], np.int32)
    rows = {"input_ids": ids, "input_mask": np.ones_like(ids), "language": np.zeros(1, np.int32)}
    return np.asarray(model.mlm_logits(model.encoder(rows), np.arange(ids.size)[None])).tolist()


def write(directory: pathlib.Path) -> None:
    """Writes DIR/FAMILY/HEAD of all families and heads."""
    from bertjax.convert import families, formats

    for family in families.FAMILIES.values():
        for head in family.architectures:
            target = directory / family.model_type / head
            target.parent.mkdir(parents=True, exist_ok=True)
            made = make(family, head)
            formats.write(made, target, format="huggingface")
            facts = {"logits": logits_of(made)} if head == "masked_lm" else {}
            write_facts(made, target, **facts)


def small(family, *, max_position_embeddings: int):
    """Returns small sizes of a family of weights, and a vocabulary of its kind."""
    import dataclasses

    from bertjax import models
    from tests import small_byte_bpe, small_records
    from tests.convert.families import test_families
    from tests.data_pipelines import test_train_vocabulary

    is_bytes = family.traits.get("position_offset", 0) > 0
    vocabulary = small_byte_bpe.vocabulary() if is_bytes else small_records.vocabulary()
    if family.tokenizer.pieces:
        vocabulary = test_train_vocabulary.trained(
            small_records.WORDS, kind="sentencepiece", special_tokens=family.model_type, size=90
        )
    config = models.EncoderConfig(
        vocab_size=vocabulary.vocab_size,
        hidden_size=12,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=20,
        max_position_embeddings=max_position_embeddings,
    )
    # ALBERT of version 4 cannot compute with layers in a row.
    return dataclasses.replace(test_families.sized(config, family), inner_group_num=1), vocabulary


def is_known(directory: pathlib.Path) -> bool:
    """Returns whether this process's transformers has the class; the first ModernBERT lacked two.

    Whatever its modules and torch say of each other is said here, as they are imported.
    """
    import transformers

    fields = json.loads((directory / "config.json").read_text())
    return hasattr(transformers, fields["architectures"][0])


def load(directory: pathlib.Path):
    """Returns the model and tokenizer of an export, and this process's complaints about them."""
    import torch
    import transformers

    expected = json.loads((directory / "expected.json").read_text())
    complaints: list[str] = []
    listener = logging.Handler()
    listener.emit = lambda record: complaints.append(f"logged: {record.getMessage()}")
    logger = logging.getLogger("transformers")
    logger.addHandler(listener)
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            auto = getattr(transformers, AUTO[expected["head"]])
            model, report = auto.from_pretrained(directory, output_loading_info=True)
            tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
            ids = tokenizer(TEXT, add_special_tokens=False)["input_ids"]
            inputs = dict(tokenizer(TEXT, TEXT, return_tensors="pt"))
            if expected["head"] == "multiple_choice":
                inputs = {name: rows[:, None] for name, rows in inputs.items()}
            with torch.no_grad():
                outputs = model.eval()(**inputs)[0]
                if "logits" in expected:
                    row = tokenizer(TEXT, return_tensors="pt")["input_ids"]
                    languages = (
                        {"langs": torch.zeros_like(row)} if "lang_id" in vars(model.config) else {}
                    )
                    logits = model(input_ids=row, **languages).logits
                    difference = (logits - torch.tensor(expected["logits"])).abs().max().item()
                    complaints += [f"logits are off by {difference}"] if difference > 1e-4 else []
    finally:
        logger.removeHandler(listener)
    complaints += [f"{kind}: {sorted(keys)}" for kind, keys in report.items() if keys]
    complaints += [f"warned: {each.message}" for each in warned]
    if type(model).__name__ != model.config.architectures[0]:
        name = type(model).__name__
        complaints.append(f"class {name}, config.json has {model.config.architectures}")
    if ids != expected["ids"]:
        complaints.append(f"ids of {TEXT!r}: {ids}, ours {expected['ids']}")
    if not torch.isfinite(outputs).all():
        complaints.append("numbers that are not finite")
    return model, tokenizer, complaints


def load_all(directory: pathlib.Path) -> int:
    """Prints the complaints about each export; returns the number of exports with any."""
    import transformers

    wrong = 0
    exports = sorted(path.parent for path in directory.glob("*/*/expected.json"))
    for export in exports:
        if not is_known(export):
            print(f"{export.parent.name} {export.name}: no such class in this version")
            continue
        _, _, complaints = load(export)
        wrong += bool(complaints)
        print(f"{export.parent.name} {export.name}: {'; '.join(complaints) or 'nothing wrong'}")
    print(f"transformers {transformers.__version__}: {len(exports)} exports, {wrong} with faults")
    return wrong


def main() -> int:
    """Writes or loads, as asked."""
    parser = argparse.ArgumentParser(description="See the head of this file.")
    parser.add_argument("action", choices=("write", "load"))
    parser.add_argument("directory", type=pathlib.Path)
    options = parser.parse_args()
    if options.action == "write":
        write(options.directory)
        return 0
    return int(load_all(options.directory) > 0)


if __name__ == "__main__":
    sys.exit(main())
