"""Whether every answer of SQuAD's own file comes back from its tokens, character by character.

    python benchmarks/squad_answers.py --file=dev-v1.1.json --vocabulary=vocab.txt [--version_2]

Cuts the file's contexts into windows as `configs/squad.py` does, finds the tokens of every
annotator's answer in every window that holds it, and takes the characters of these tokens from the
context. An answer that begins or ends inside a word ("Japan" of "Japanese") may do so in a token;
where it does not come back it is counted apart. Fails if any other does not, or fits in no window.
"""

from __future__ import annotations

import argparse
import collections
import string
import sys
import unicodedata
from collections.abc import Sequence

from bertjax.finetuning import squad_files
from bertjax.tokenization import tokenizer as tokenizers

EXACT = "come back as the original string"
INSIDE_A_WORD = "do not, but begin or end inside a word"
WRONG = "do not come back"
IN_NO_WINDOW = "fit in no window"


def outcome(
    question: squad_files.Question,
    answer: squad_files.Answer,
    windows: Sequence[squad_files.Window],
) -> str:
    """Returns what becomes of an answer in the windows of its question."""
    recovered = set()
    for window in windows:
        first, last = window.positions(answer)
        if (first, last) != (0, 0):
            shift = window.begin - window.context_position
            start, end = window.context.starts[first + shift], window.context.ends[last + shift]
            recovered.add((int(start), question.context[start:end]))
    if not recovered:
        return IN_NO_WINDOW
    if recovered == {(answer.start, answer.text)}:
        return EXACT
    ends = (answer.start, answer.start + len(answer.text))
    return INSIDE_A_WORD if any(splits_a_word(question.context, end) for end in ends) else WRONG


def splits_a_word(context: str, place: int) -> bool:
    """Returns whether a word of BERT's goes on over the place, by its rules and not our tokenizer.

    Spaces and punctuation end a word, the pound sign of "£20,980" does not. Source:
    google-research/bert, tokenization.py, _is_punctuation.
    """
    around = context[place - 1 : place + 1] if place else ""
    return len(around) == 2 and not any(
        it.isspace() or it in string.punctuation or unicodedata.category(it).startswith("P")
        for it in around
    )


def main() -> int:
    """Prints the counts; returns 1 if an answer that could come back does not."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--file", required=True, help="An official JSON file, or one in gzip.")
    parser.add_argument("--vocabulary", required=True, help="vocab.txt or a tokenizer's folder.")
    parser.add_argument("--version_2", action="store_true", help="Questions may be unanswerable.")
    options = parser.parse_args()
    questions = squad_files.read_questions(options.file, version_2=options.version_2)
    by_question = collections.defaultdict(list)
    for window in squad_files.windows(questions, tokenizers.load(options.vocabulary)):
        by_question[window.question].append(window)
    outcomes = collections.Counter(
        outcome(question, answer, by_question[place])
        for place, question in enumerate(questions)
        for answer in question.answers
    )
    print(f"{len(questions):,} questions, {sum(map(len, by_question.values())):,} windows")
    for name in (EXACT, INSIDE_A_WORD, IN_NO_WINDOW, WRONG):
        print(f"{outcomes[name]:>8,} of {outcomes.total():,} answers {name}")
    return int(bool(outcomes[WRONG] or outcomes[IN_NO_WINDOW]))


if __name__ == "__main__":
    sys.exit(main())
