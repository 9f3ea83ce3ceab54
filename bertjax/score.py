"""Pseudo-log-likelihoods of the lines of standard input by a pretrained model.

python -m bertjax.score --checkpoint=WORKDIR < lines.txt > scores.jsonl

Each line gives a JSON object with its pseudo-log-likelihood in nats and its number of tokens:
{"score": -31.4, "tokens": 9, "unknown_rate": 0.0}, with the share of [UNK] among them. The sum is
lower for longer texts; divide it by the tokens to compare texts of unequal length. A line that is
too long gives an "error"; then the exit code is 1.
`inference.likelihood` defines the score.
"""

from __future__ import annotations

if __name__ == "__main__":
    from bertjax.cli import command_line, programs  # what follows takes seconds to import

    command_line.parse(programs.Score, __doc__)

import json
import sys
from typing import Any

from bertjax import inference
from bertjax.cli import command_line, programs
from bertjax.data import text_lines
from bertjax.files import tables
from bertjax.inference import likelihood
from bertjax.tokenization import unknown_tokens


def main(options: programs.Score) -> None:
    """Scores standard input on standard output."""
    model = inference.load(options.checkpoint, step=options.step, language=options.language)
    lines = text_lines.numbered(tables.text_lines_of(sys.stdin.buffer, "standard input"))
    outcome = "each has the score 0, of 0 tokens"
    texts = (line.text for line in text_lines.with_remark(lines, outcome))
    chosen: dict[str, Any] = {"masking": options.masking, "reading": options.reading}
    scores = likelihood.scores(model, texts, batch_size=options.batch_size, **chosen)
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
    command_line.run(main)
