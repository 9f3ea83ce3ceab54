"""Exports of every family and head, and what another version of transformers says as it loads them.

    python -m tests.interop.exports write DIR      # with bertjax: a small random model of each
    OTHER/bin/python tests/interop/exports.py load DIR   # with any transformers and torch

`load` needs neither bertjax nor JAX. It prints a line for each export, and ends with 1 if a key is
missing or unexpected, the class is another than config.json says, something was logged or warned
of, the tokenizer is another, or numbers are not finite.
"""

import argparse
import json
import logging
import pathlib
import sys
import warnings
from collections.abc import Collection

# Head -> how transformers finds its class; BERT and ALBERT pretrain two heads, ELECTRA its own.
AUTO = {
    "pretraining": "AutoModelForPreTraining",
    "replaced_tokens": "AutoModelForPreTraining",
    "masked_lm": "AutoModelForMaskedLM",
    "none": "AutoModel",
    "next_sentence": "AutoModelForNextSentencePrediction",
    "sequence_classification": "AutoModelForSequenceClassification",
    "token_classification": "AutoModelForTokenClassification",
    "question_answering": "AutoModelForQuestionAnswering",
    "multiple_choice": "AutoModelForMultipleChoice",
}
TEXT = "w1 w2 w3"


def write(directory: pathlib.Path, model_types: Collection[str] = ()) -> None:
    """Writes DIR/FAMILY/HEAD of these families, or all, and the ids of TEXT beside each."""
    import dataclasses

    from bertjax.convert import families, formats
    from tests.convert import weights

    for family in map(families.named, model_types or families.FAMILIES):
        config, vocabulary = small(family, max_position_embeddings=16)
        for head in family.architectures:
            made = weights.make(head, config=config, vocabulary=vocabulary)
            made = dataclasses.replace(made, model_type=family.model_type)
            target = directory / family.model_type / head
            target.parent.mkdir(parents=True, exist_ok=True)
            formats.write(made, target, format="huggingface")
            facts = {"head": head, "ids": list(vocabulary.encode(TEXT))}
            (target / "wanted.json").write_text(json.dumps(facts))


def small(family, *, max_position_embeddings: int):
    """Returns small sizes of a family of weights, and a vocabulary of its kind."""
    import dataclasses

    from bertjax import models
    from tests import small_byte_bpe, small_records
    from tests.convert.families import test_families

    is_bytes = family.traits.get("position_offset", 0) > 0
    vocabulary = small_byte_bpe.vocabulary() if is_bytes else small_records.vocabulary()
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


def faults(directory: pathlib.Path) -> list[str]:
    """Returns what this process's transformers finds wrong with an export."""
    import torch
    import transformers

    wanted = json.loads((directory / "wanted.json").read_text())
    heard: list[str] = []
    listener = logging.Handler()
    listener.emit = lambda record: heard.append(record.getMessage())
    logger = logging.getLogger("transformers")
    logger.addHandler(listener)
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            auto = getattr(transformers, AUTO[wanted["head"]])
            model, report = auto.from_pretrained(directory, output_loading_info=True)
            tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
            ids = tokenizer(TEXT, add_special_tokens=False)["input_ids"]
            tokens = torch.tensor([tokenizer(TEXT)["input_ids"]])
            inputs = tokens[:, None] if wanted["head"] == "multiple_choice" else tokens
            with torch.no_grad():
                numbers = model.eval()(input_ids=inputs)[0]
    finally:
        logger.removeHandler(listener)
    found = [f"{kind}: {sorted(keys)}" for kind, keys in report.items() if keys]
    found += [f"logged: {message}" for message in heard]
    found += [f"warned: {each.message}" for each in warned]
    if type(model).__name__ != model.config.architectures[0]:
        found.append(f"class {type(model).__name__}, config.json has {model.config.architectures}")
    if ids != wanted["ids"]:
        found.append(f"ids of {TEXT!r}: {ids}, ours {wanted['ids']}")
    if not torch.isfinite(numbers).all():
        found.append("numbers that are not finite")
    return found


def load(directory: pathlib.Path) -> int:
    """Prints what is wrong with each export; returns how many are."""
    import transformers

    wrong = 0
    exports = sorted(path.parent for path in directory.glob("*/*/wanted.json"))
    for export in exports:
        if not is_known(export):
            print(f"{export.parent.name} {export.name}: no such class in this version")
            continue
        found = faults(export)
        wrong += bool(found)
        print(f"{export.parent.name} {export.name}: {'; '.join(found) or 'nothing wrong'}")
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
    return int(load(options.directory) > 0)


if __name__ == "__main__":
    sys.exit(main())
