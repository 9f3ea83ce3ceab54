"""English to French on aligned verses: the pairs, and transformers' EncoderDecoderModel in torch.

    python -m benchmarks.aligned prepare --data=DATA --output=DIR
    python -m benchmarks.aligned peer --data=DIR --weights=EXPORT --seed=0

`benchmarks/aligned.sh` runs both, and ours. DATA has en.tsv.xz and fr.tsv.xz of npm's quran-json, a
verse `chapter:verse TAB text` a line. Every twentieth verse is held out, another twentieth tests;
those whose source is that of another verse, too, are left out of both. The peer, which needs torch,
begins encoder and decoder with the weights of a BERT, as `bert2bert:separate` does. Batches, number
of updates, rates and searches are those of our run; what it prints are scores of the test verses.
"""

# torch and transformers are in an environment of their own.
# pyright: reportMissingImports=false

from __future__ import annotations

import argparse
import collections
import csv
import json
import lzma
import pathlib
from typing import Any

import numpy as np

from bertjax.scores import generated

PARTS = {0: "dev", 10: "test"}  # of the numbers of verses, modulo 20
SCORES = ("bleu", "chrf")


def read_verses(data: pathlib.Path, language: str) -> dict[str, str]:
    """Returns the verses of a language by chapter and number."""
    with lzma.open(data / f"{language}.tsv.xz", "rt", encoding="utf-8") as file:
        return dict(line.rstrip("\n").split("\t", 1) for line in file)


def prepare(data: pathlib.Path, output: pathlib.Path) -> None:
    """Writes the pairs of each part, and the texts of the training part for pretraining.

    A document is a chapter in one language, so no row of pretraining holds a verse and its
    translation.
    """
    output.mkdir(parents=True, exist_ok=True)
    english, french = (read_verses(data, language) for language in ("en", "fr"))
    verses = [verse for verse in english if verse in french]
    times = collections.Counter(english[verse] for verse in verses)
    parts: dict[str, list[tuple[str, str]]] = {"train": [], "dev": [], "test": []}
    documents = collections.defaultdict(list)
    for number, verse in enumerate(verses):
        name, pair = PARTS.get(number % 20, "train"), (english[verse], french[verse])
        if name == "train" or times[english[verse]] == 1:
            parts[name].append(pair)
        if name == "train":
            for language, text in enumerate(pair):
                documents[language, verse.split(":")[0]].append(text)
    for name, rows in parts.items():
        print(f"{name}: {len(rows):,} pairs")
        with open(output / f"{name}.csv", "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("text", "target"), *rows])
    blocks = ("\n".join(lines) + "\n" for lines in documents.values())
    (output / "texts.txt").write_text("\n".join(blocks), encoding="utf-8")


def read(path: pathlib.Path) -> tuple[list[str], list[str]]:
    """Returns the sources and the targets of a part."""
    with open(path, newline="", encoding="utf-8") as file:
        rows = [*csv.DictReader(file)]
    return [row["text"] for row in rows], [row["target"] for row in rows]


def peer(options: argparse.Namespace) -> dict[str, float]:
    """Returns the scores of an EncoderDecoderModel after as many updates as ours."""
    import torch
    import transformers

    generated.chosen(SCORES)
    torch.manual_seed(options.seed)
    transformers.logging.set_verbosity_error()
    known = transformers.AutoTokenizer.from_pretrained(options.weights)
    model = transformers.EncoderDecoderModel.from_encoder_decoder_pretrained(
        options.weights, options.weights
    )
    model.config.decoder_start_token_id = known.cls_token_id
    model.config.pad_token_id = known.pad_token_id
    updates = _learn(model, known, options)
    sources, targets = read(options.data / "test.csv")
    found = _found(model, known, sources, options)
    # A reference is spelled as the vocabulary spells it, as in our scores.
    references = known.batch_decode(known(targets)["input_ids"], skip_special_tokens=True)
    scores = {name: generated.SCORES[name](found, references) for name in SCORES}
    return scores | {"updates": updates}


def _rows(known: Any, texts: list[str], length: int) -> list[list[int]]:
    return known(texts, truncation=True, max_length=length)["input_ids"]


def _padded(rows: list[list[int]], value: int) -> Any:
    import torch

    most = max(map(len, rows))
    return torch.tensor([row + [value] * (most - len(row)) for row in rows])


def _learn(model: Any, known: Any, options: argparse.Namespace) -> int:
    """Trains the model and returns the number of updates."""
    import torch

    texts = read(options.data / "train.csv")
    inputs, labels = (_rows(known, it, options.length) for it in texts)
    updates = options.epochs * len(inputs) // options.batch
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=options.rate, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01
    )
    warm_up = round(0.1 * updates)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda n: min((n + 1) / warm_up, max(updates - n, 0) / (updates - warm_up))
    )
    rng, order = np.random.default_rng(options.seed), np.zeros(0, int)
    model.train()
    for _ in range(updates):
        if len(order) < options.batch:
            order = np.concatenate([order, rng.permutation(len(inputs))])
        chosen, order = order[: options.batch], order[options.batch :]
        ids = _padded([inputs[n] for n in chosen], known.pad_token_id)
        asked = _padded([labels[n][1:] for n in chosen], -100)  # without [CLS], which begins
        mask = (ids != known.pad_token_id).long()
        loss = model(input_ids=ids, attention_mask=mask, labels=asked).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return updates


def _found(model: Any, known: Any, sources: list[str], options: argparse.Namespace) -> list[str]:
    """Returns the targets that a search with four beams finds."""
    import torch

    model.eval()
    found: list[str] = []
    search = {"num_beams": 4, "do_sample": False, "max_length": options.length}
    search |= {"eos_token_id": known.sep_token_id, "pad_token_id": known.pad_token_id}
    search["decoder_start_token_id"] = known.cls_token_id
    for begin in range(0, len(sources), options.batch):
        rows = _rows(known, sources[begin : begin + options.batch], options.length)
        ids = _padded(rows, known.pad_token_id)
        mask = (ids != known.pad_token_id).long()
        with torch.inference_mode():
            out = model.generate(inputs=ids, attention_mask=mask, **search)
        found += known.batch_decode(out, skip_special_tokens=True)
    return found


def main() -> None:
    """Prepares, or trains and scores the peer."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("prepare", "peer"))
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--weights", help="a BERT, exported for transformers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--rate", type=float, default=1e-3)
    options = parser.parse_args()
    if options.what == "prepare":
        prepare(options.data, options.output)
    else:
        print(json.dumps(peer(options)))


if __name__ == "__main__":
    main()
