r"""Retrieval of translations after MLM and after MLM with TLM, by transformers' XLMWithLMHeadModel.

    python benchmarks/translations.py --aligned=DIR --texts=TEXTS
    python benchmarks/translations.py --texts=TEXTS --vocabulary=VOCABULARY --seed=0 --translations

The first writes the verses of the languages of DIR (`LANGUAGE.tsv.xz`, `chapter:verse TAB text`)
into TEXTS: a document for each chapter (en.txt), pairs with English (en+fr.tsv), and 500 verses
held out (held.en). The second trains on them, half of the rows translations if it is said, and
prints P@1 of the held-out verses in percent, English to the other and back, by layer. Rows, sizes,
optimizer and updates are those of the commands in benchmarks/README.md, which train ours.
"""

from __future__ import annotations

import json
import pathlib
import random

import aligned
import numpy as np
import torch
import transformers
from absl import app, flags

from bertjax.tokenization import tokenizer

LANGUAGES = ("en", "fr", "ru", "tr", "zh")
HELD_OUT = 500
LENGTH, ROWS, STEPS, WARMUP_STEPS, PEAK = 96, 32, 1000, 100, 2e-3
MASK_RATE, MASK_SHARE, KEEP_SHARE = 0.15, 0.8, 0.1

_ALIGNED = flags.DEFINE_string("aligned", None, "The verses to write as texts.")
_TEXTS = flags.DEFINE_string("texts", None, "The directory of the texts.", required=True)
_VOCABULARY = flags.DEFINE_string("vocabulary", None, "The vocabulary of the model to train.")
_SEED = flags.DEFINE_integer("seed", 0, "Of the initial values, the rows and the masks.")
_TRANSLATIONS = flags.DEFINE_bool("translations", False, "Half of the rows are translations.")
_THREADS = flags.DEFINE_integer("threads", 1, "Of torch.")


def write_texts(data: pathlib.Path, texts: pathlib.Path) -> None:
    """Writes documents, pairs and held-out verses; verses that a language lacks are left out."""
    verses = {
        language: {
            key: " ".join(text.split()) for key, text in aligned.read_verses(data, language).items()
        }
        for language in LANGUAGES
    }
    keys = [key for key in verses["en"] if all(verses[it].get(key) for it in LANGUAGES)]
    held_out = set(random.Random(0).sample(keys, HELD_OUT))
    trained = [key for key in keys if key not in held_out]
    texts.mkdir(parents=True, exist_ok=True)
    for language in LANGUAGES:
        chapters: dict[str, list[str]] = {}
        for key in trained:
            chapters.setdefault(key.split(":")[0], []).append(verses[language][key])
        documents = "\n\n".join("\n".join(chapter) for chapter in chapters.values())
        (texts / f"{language}.txt").write_text(documents + "\n", encoding="utf-8")
        lines = [verses[language][key] for key in keys if key in held_out]
        (texts / f"held.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")
        if language != "en":
            pairs = (f"{verses['en'][key]}\t{verses[language][key]}\n" for key in trained)
            (texts / f"en+{language}.tsv").write_text("".join(pairs), encoding="utf-8")


class Rows:
    """Rows of one text, by the tokens of the languages, and of translations."""

    def __init__(self, texts: pathlib.Path, known: tokenizer.Tokenizer, seed: int):
        self._known, self._rng = known, np.random.default_rng(seed)
        self._alone = {it: self._cut((texts / f"{it}.txt").read_text("utf-8")) for it in LANGUAGES}
        self._pairs = {
            it: [
                [known.encode(text)[: (LENGTH - 3) // 2] for text in line.split("\t")]
                for line in (texts / f"en+{it}.tsv").read_text("utf-8").splitlines()
            ]
            for it in LANGUAGES[1:]
        }
        tokens = np.array([sum(map(len, self._alone[it])) for it in LANGUAGES], float)
        self._shares = tokens / tokens.sum()

    def _cut(self, text: str) -> list[list[int]]:
        rows = []
        for document in text.split("\n\n"):
            row: list[int] = []
            for ids in map(self._known.encode, document.splitlines()):
                if row and len(row) + len(ids) > LENGTH - 2:
                    rows.append(row[: LENGTH - 2])
                    row = []
                row = row + ids
            rows += [row[: LENGTH - 2]] if row else []
        return rows

    def batch(self, *, translations: bool) -> dict[str, np.ndarray]:
        """Returns ids, positions, languages and what is real, [ROWS, LENGTH]."""
        rows = [self._row(translations and self._rng.random() < 0.5) for _ in range(ROWS)]
        batch = {
            name: np.array([row[number] for row in rows])
            for number, name in enumerate(("ids", "positions", "languages", "real"))
        }
        return batch | self._masked(batch)

    def _row(self, is_pair: bool) -> tuple[list[int], ...]:
        known = self._known
        if is_pair:
            language = int(self._rng.integers(1, len(LANGUAGES)))
            pairs = self._pairs[LANGUAGES[language]]
            first, second = pairs[self._rng.integers(len(pairs))]
            ids = [known.cls_id, *first, known.sep_id, *second, known.sep_id]
            positions = [*range(len(first) + 2), *range(1, len(second) + 2)]
            languages = [0] * (len(first) + 2) + [language] * (len(second) + 1)
        else:
            language = int(self._rng.choice(len(LANGUAGES), p=self._shares))
            rows = self._alone[LANGUAGES[language]]
            ids = [known.cls_id, *rows[self._rng.integers(len(rows))], known.sep_id]
            positions, languages = list(range(len(ids))), [language] * len(ids)
        rest = [0] * (LENGTH - len(ids))
        padding = [known.pad_id] * len(rest)
        return ids + padding, positions + rest, languages + rest, [1] * len(ids) + rest

    def _masked(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        ids, rng = batch["ids"], self._rng
        chosen = np.zeros_like(ids, bool)
        maskable = (batch["real"] == 1) & ~np.isin(ids, self._known.special_ids)
        for row, real in enumerate(batch["real"].sum(axis=1)):
            count = max(1, round(MASK_RATE * real))
            chosen[row, rng.choice(np.flatnonzero(maskable[row]), count, replace=False)] = True
        dice, drawn = rng.random(ids.shape), rng.integers(0, self._known.vocab_size, ids.shape)
        masked = np.where(chosen & (dice < MASK_SHARE), self._known.mask_id, ids)
        masked = np.where(chosen & (dice >= MASK_SHARE + KEEP_SHARE), drawn, masked)
        return {"masked": masked, "chosen": chosen}


def new_model(known: tokenizer.Tokenizer) -> transformers.XLMWithLMHeadModel:
    """Returns a model with random weights, of the sizes of ours."""
    config = transformers.XLMConfig(
        **{"vocab_size": known.vocab_size, "emb_dim": 128, "n_layers": 2, "n_heads": 4},
        **{"dropout": 0.0, "attention_dropout": 0.0, "n_langs": len(LANGUAGES)},
        **{"embed_init_std": 0.02, "init_std": 0.02, "pad_index": known.pad_id},
    )
    return transformers.XLMWithLMHeadModel(config)


def train(model: transformers.XLMWithLMHeadModel, rows: Rows, *, translations: bool) -> None:
    """Trains by AdamW with bertjax's numbers; biases and norms do not decay."""
    matrices = [it for it in model.parameters() if it.ndim > 1]
    others = [it for it in model.parameters() if it.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.999), eps=1e-6)
    for step in range(STEPS):
        warm = (step + 1) / WARMUP_STEPS
        rate = PEAK * min(warm, (STEPS - step) / (STEPS - WARMUP_STEPS))
        for group in optimizer.param_groups:
            group["lr"] = rate
        batch = {
            name: torch.tensor(it) for name, it in rows.batch(translations=translations).items()
        }
        hidden = model.transformer(
            batch["masked"],
            attention_mask=batch["real"],
            langs=batch["languages"],
            position_ids=batch["positions"],
        )[0]
        logits = model.pred_layer.proj(hidden[batch["chosen"]])
        loss = torch.nn.functional.cross_entropy(logits, batch["ids"][batch["chosen"]])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 99:
            print(f"step {step + 1}: loss {loss.item():.3f}", flush=True)


def vectors(
    model: transformers.XLMWithLMHeadModel, known: tokenizer.Tokenizer, path: pathlib.Path
) -> list[torch.Tensor]:
    """Returns unit vectors of the lines of a file, [lines, width], after each layer."""
    language, layers = LANGUAGES.index(path.suffix[1:]), []
    for line in path.read_text("utf-8").splitlines():
        ids = torch.tensor([[known.cls_id, *known.encode(line), known.sep_id]])[:, :512]
        with torch.no_grad():
            states = model.transformer(
                ids, langs=torch.full_like(ids, language), output_hidden_states=True
            ).hidden_states
        layers.append(torch.stack([state[0].mean(dim=0) for state in states]))
    return list(torch.nn.functional.normalize(torch.stack(layers, dim=1), dim=-1))


def main(_: list[str]) -> None:
    """Writes the texts, or trains on them and prints the scores."""
    texts = pathlib.Path(_TEXTS.value)
    if _ALIGNED.value:
        write_texts(pathlib.Path(_ALIGNED.value), texts)
        return
    torch.set_num_threads(_THREADS.value)
    torch.manual_seed(_SEED.value)
    known = tokenizer.load(_VOCABULARY.value)
    model = new_model(known)
    train(model, Rows(texts, known, _SEED.value), translations=_TRANSLATIONS.value)
    model.eval()
    of_each = {it: vectors(model, known, texts / f"held.{it}") for it in LANGUAGES}
    numbers = torch.arange(HELD_OUT)
    for language in LANGUAGES[1:]:
        scores = {}
        for layer, (one, other) in enumerate(zip(of_each["en"], of_each[language], strict=True)):
            near = one @ other.T
            both = (near.argmax(dim=1) == numbers, near.argmax(dim=0) == numbers)
            scores[layer] = [round(100 * it.float().mean().item(), 1) for it in both]
        print(f"en-{language}: {json.dumps(scores)}", flush=True)


if __name__ == "__main__":
    app.run(main)
