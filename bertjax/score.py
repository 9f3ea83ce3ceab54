"""Pseudo-log-likelihoods of the lines of standard input by a pretrained model.

python -m bertjax.score --checkpoint=WORKDIR < lines.txt > scores.jsonl

Each line gives a JSON object with its pseudo-log-likelihood in nats and its number of tokens:
{"score": -31.4, "tokens": 9, "unknown_rate": 0.0}, with the share of [UNK] among them. The sum is
lower for longer texts; divide it by the tokens to compare texts of unequal length. A line that is
too long gives an "error"; then the exit code is 1.
`inference.likelihood` defines the score.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from absl import flags

from bertjax import inference
from bertjax.cli import command_line, program_flags
from bertjax.data import sentence_rows, text_lines
from bertjax.files import tables
from bertjax.inference import likelihood
from bertjax.tokenization import unknown_tokens


def _define_flags() -> None:
    inference.define_flags("Workdir of a pretraining run.")
    flags.DEFINE_enum(
        "masking", "token", list(sentence_rows.MASKINGS),
        "What is masked: one token at a time, or with it the rest of its word.",
    )  # fmt: skip
    likelihood.define_reading()
    program_flags.DEFINE_batch_size(64, "Rows at a time, one for each token, over all devices.")


def main(argv: list[str]) -> None:
    """Scores standard input on standard output."""
    if len(argv) > 1:
        raise ValueError(f"{argv[1]!r} is not a flag; give the lines on standard input: < FILE")
    options = flags.FLAGS
    model = inference.load(options.checkpoint, step=options.step, language=options.language)
    lines = text_lines.numbered(tables.text_lines_of(sys.stdin.buffer, "standard input"))
    outcome = "each has the score 0, of 0 tokens"
    texts = (line.text for line in text_lines.with_remark(lines, outcome))
    names = ("masking", "reading", "batch_size")
    chosen: dict[str, Any] = {name: options[name].value for name in names}
    scores = likelihood.scores(model, texts, **chosen)
    count = errors = 0
    for count, score in enumerate(scores, start=1):
        if isinstance(score, likelihood.NoScore):
            errors += 1
            print(json.dumps({"error": f"line {count}: {score.fault}"}))
        else:
            answer = {"score": score.log_likelihood, "tokens": score.num_tokens}
            print(json.dumps(answer | {unknown_tokens.KEY: score.unknown_rate}))
    if errors:
        sys.stdout.flush()
        sys.exit(
            f"bertjax: {errors} of {count} lines could not be scored; the answer to each has an "
            "'error' that says why"
        )


if __name__ == "__main__":
    _define_flags()
    command_line.run(main)
