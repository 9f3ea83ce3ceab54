"""Whether every answer of SQuAD's own file comes back from its tokens, character by character.

    python benchmarks/squad_answers.py --file=dev-v1.1.json --vocabulary=vocab.txt [--version_2]

Cuts the file's contexts into windows as `configs/squad.py` does, finds the tokens of every
annotator's answer in every window that holds it, and takes the characters of these tokens from the
context. An answer that begins or ends inside a token ("Japan" of "Japanese") cannot come back from
whole tokens and is counted apart. Fails if any other does not come back, or fits in no window.
"""

from __future__ import annotations

import argparse
import collections
import sys
from collections.abc import Sequence

from bertjax.data import tokenizer as tokenizers
from bertjax.data.finetuning import squad

EXACT = "come back as the original string"
INSIDE_A_TOKEN = "begin or end inside a token"
WRONG = "do not come back"
IN_NO_WINDOW = "fit in no window"


def outcome(question: squad.Question, answer: squad.Answer, windows: Sequence[squad.Window]) -> str:
    """Returns what becomes of an answer in the windows of its question."""
    context, end = windows[0].context, answer.start + len(answer.text)
    if answer.start not in context.starts or end not in context.ends:
        return INSIDE_A_TOKEN
    recovered = set()
    for window in windows:
        first, last = window.positions(answer)
        if (first, last) != (0, 0):
            shift = window.begin - window.context_position
            recovered.add((int(context.starts[first + shift]), int(context.ends[last + shift])))
    if not recovered:
        return IN_NO_WINDOW
    return EXACT if recovered == {(answer.start, end)} else WRONG


def main() -> int:
    """Prints the counts; returns 1 if an answer that could come back does not."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--file", required=True, help="An official JSON file, or one in gzip.")
    parser.add_argument("--vocabulary", required=True, help="vocab.txt or a tokenizer's folder.")
    parser.add_argument("--version_2", action="store_true", help="Questions may be unanswerable.")
    options = parser.parse_args()
    questions = squad.read(options.file, version_2=options.version_2)
    by_question: dict[int, list[squad.Window]] = collections.defaultdict(list)
    for window in squad.windows(questions, tokenizers.load(options.vocabulary)):
        by_question[window.question].append(window)
    outcomes = collections.Counter(
        outcome(question, answer, by_question[place])
        for place, question in enumerate(questions)
        for answer in question.answers
    )
    print(f"{len(questions):,} questions, {sum(map(len, by_question.values())):,} windows")
    for name in (EXACT, INSIDE_A_TOKEN, IN_NO_WINDOW, WRONG):
        print(f"{outcomes[name]:>8,} of {outcomes.total():,} answers {name}")
    return int(bool(outcomes[WRONG] or outcomes[IN_NO_WINDOW]))


if __name__ == "__main__":
    sys.exit(main())
