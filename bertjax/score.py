"""Pseudo-log-likelihoods of the lines of standard input, or of sequences, by a pretrained model.

python -m bertjax.score --checkpoint=WORKDIR < lines.txt > scores.jsonl
python -m bertjax.score --checkpoint=WORKDIR --input=proteins.fasta.gz > scores.jsonl

Each line gives a JSON object with its pseudo-log-likelihood in nats and its number of tokens:
{"score": -31.4, "tokens": 9, "unknown_rate": 0.0}, with the share of [UNK] among them, and its "id"
if it has one. The sum is lower for longer texts; divide it by the tokens to compare texts of
unequal length. A line that is too long gives an "error"; then the exit code is 1.
"""

from __future__ import annotations

if __name__ == "__main__":
    from bertjax.cli import command_line, programs  # what follows takes seconds to import

    command_line.parse(programs.Score, __doc__)

import itertools
import json
import sys
from typing import Any

from bertjax import inference
from bertjax.cli import command_line, programs
from bertjax.data import text_lines
from bertjax.inference import likelihood
from bertjax.tokenization import unknown_tokens


def main(options: programs.Score) -> None:
    """Scores standard input on standard output."""
    model = inference.load(options.checkpoint, step=options.step, language=options.language)
    lines = text_lines.given(options.input, model.vocabulary)
    outcome = "each has the score 0, of 0 tokens"
    lines, again = itertools.tee(text_lines.with_remark(lines, outcome, model.vocabulary))
    texts = (line.text for line in again)
    chosen: dict[str, Any] = {"masking": options.masking, "reading": options.reading}
    scores = likelihood.scores(model, texts, batch_size=options.batch_size, **chosen)
    count = errors = 0
    for count, (score, line) in enumerate(zip(scores, lines, strict=False), start=1):
        answer: dict[str, Any] = {"id": line.id} if line.id else {}
        if isinstance(score, likelihood.NoScore):
            errors += 1
            answer["error"] = f"line {count}: {score.fault}"
        else:
            answer |= {"score": score.log_likelihood, "tokens": score.num_tokens}
            answer[unknown_tokens.KEY] = score.unknown_rate
        print(json.dumps(answer))
    if errors:
        sys.stdout.flush()
        sys.exit(
            f"bertjax: {errors} of {count} lines could not be scored; the answer to each has an "
            "'error' that says why"
        )


if __name__ == "__main__":
    command_line.run(main)
