"""Shows how a vocabulary tokenizes a text: the tokens, the text that comes back, the losses.

python -m data_pipelines.inspect_vocabulary VOCABULARY "a text"
python -m data_pipelines.inspect_vocabulary vocab.txt "a text" --nodo_lower_case
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from bertjax.cli import command_line
from bertjax.tokenization import token_ids, tokenizer
from data_pipelines.reports import losses


@dataclasses.dataclass(frozen=True)
class Options:
    """A vocabulary and a text."""

    vocabulary: str = command_line.option(
        "a vocabulary file, or a directory that holds one", positional=True
    )
    text: str = command_line.option("the text", positional=True)
    do_lower_case: bool | None = command_line.option(
        "whether the text is lower-cased; unset: as the vocabulary says", default=None
    )


def lines(vocabulary: tokenizer.Tokenizer, text: str) -> Iterator[str]:
    """Yields the vocabulary's rules, the tokens of the text and its losses, a line each."""
    described = vocabulary.describe()
    others = ("kind", "vocab_size", "sha256", "merges_sha256")
    rules = ", ".join(f"{name} {value}" for name, value in described.items() if name not in others)
    yield f"vocabulary  {described['vocab_size']:,} entries, {described['kind']}: {rules}"
    columns = (column.tolist() for column in vocabulary.encode_with_offsets(text))
    placed = list(zip(*columns, strict=True))
    ids = [token_id for token_id, _, _ in placed]
    yield f"tokens      {' '.join(map(vocabulary.token, ids))}"
    yield f"ids         {' '.join(map(str, ids))}"
    yield f"comes back  {vocabulary.decode(ids)}"
    yield f"size        {len(ids)} tokens, {len(text) / max(len(ids), 1):.1f} characters each"
    yield from (f"lost        {loss}" for loss in _losses(vocabulary, text, placed))


def _losses(
    vocabulary: tokenizer.Tokenizer, text: str, placed: list[tuple[int, int, int]]
) -> Iterator[str]:
    unknown = [text[start:end] for token_id, start, end in placed if token_id == vocabulary.unk_id]
    if unknown:
        name, shown = vocabulary.token(vocabulary.unk_id), ", ".join(dict.fromkeys(unknown))
        yield f"{len(unknown)} of {len(placed)} tokens are {name}: {shown}"
    lost = losses.LostMarks.of(vocabulary)
    if lost:
        lost.add(text)
    if lost and lost.changed:
        yield losses.described(lost.changed / lost.words, lost.changes)
    covered = {place for _, start, end in placed for place in range(start, end)}
    missing = (one for place, one in enumerate(text) if place not in covered)
    left_out = dict.fromkeys(one for one in missing if not one.isspace())
    if left_out:
        yield f"characters without a token: {', '.join(f'U+{ord(one):04X}' for one in left_out)}"
    if not (unknown or left_out or (lost and lost.changed)):
        yield "nothing" + (" but case" if vocabulary.lowercase else "")


def main(options: Options) -> None:
    """Prints how the vocabulary tokenizes the text."""
    vocabulary = tokenizer.load(options.vocabulary, lowercase=options.do_lower_case)
    command_line.print_report(*lines(vocabulary, token_ids.without_surrogates(options.text)))


if __name__ == "__main__":
    command_line.parse(Options, __doc__)
    command_line.run(main)
