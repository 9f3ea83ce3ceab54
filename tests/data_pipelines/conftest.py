"""A small corpus of made-up English and a vocabulary for it; a corpus of numbered tokens."""

import numpy as np
import pytest

from bertjax.tokenization import tokenizer
from data_pipelines.building.options import Options
from data_pipelines.objectives import examples

# The pairs of BERT, once over the corpus.
PAIRS = {
    "pair_objective": "nsp",
    "packing": "doc_sentences",
    "balanced_nsp": False,
    "short_seq_prob": 0.1,
    "dupe_factor": 1,
    "random_seed": 3,
}


def options(text, vocabulary, output, **changes) -> Options:
    """Options of a small build in this process."""
    sizes = {"max_seq_length": 32, "dupe_factor": 1, "num_workers": 1}
    fields = {"input": str(text), "vocabulary": vocabulary, "output": str(output)}
    return Options(**fields | sizes | changes)


SYLLABLES = ["ka", "lo", "mi", "ren", "tus", "vor", "pe", "sha", "dim", "gol"]


def made_up_text(num_documents: int, seed: int = 0) -> str:
    """Documents of paragraphs of sentences, blank lines between them."""
    rng = np.random.default_rng(seed)
    words = ["".join(rng.choice(SYLLABLES, size=rng.integers(1, 4))) for _ in range(150)]

    def sentence() -> str:
        chosen = rng.choice(words, size=rng.integers(3, 14))
        return " ".join(chosen).capitalize() + "."

    def paragraph() -> str:
        return " ".join(sentence() for _ in range(rng.integers(1, 6)))

    return "\n\n".join(
        "\n".join(paragraph() for _ in range(rng.integers(1, 5))) for _ in range(num_documents)
    )


@pytest.fixture(scope="session")
def text_file(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("corpus") / "text.txt"
    path.write_text(made_up_text(120), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="session")
def vocabulary_directory(tmp_path_factory) -> str:
    directory = tmp_path_factory.mktemp("vocabulary")
    pieces = [*SYLLABLES, *"abcdefghijklmnopqrstuvwxyz"]
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    entries = [*specials, ".", *pieces, *(f"##{piece}" for piece in pieces)]
    (directory / "vocab.txt").write_text("\n".join(entries) + "\n")
    tokenizer.load(directory).save(directory)
    return str(directory)


@pytest.fixture(scope="session")
def vocabulary(vocabulary_directory) -> tokenizer.Tokenizer:
    return tokenizer.load(vocabulary_directory)


def corpus_of(documents) -> examples.Corpus:
    """Documents of sentences of token ids, none of them empty, as a corpus."""
    documents = list(documents)
    sentences = [sentence for document in documents for sentence in document]
    tokens = [token for sentence in sentences for token in sentence]
    return examples.Corpus(
        tokens=np.array(tokens, np.int32),
        sentence_starts=examples.starts([len(sentence) for sentence in sentences]),
        document_starts=examples.starts([len(document) for document in documents]),
    )


@pytest.fixture(scope="session")
def numbered_corpus() -> examples.Corpus:
    """Sixty documents of 1 to 14 sentences; every token is its own position in the corpus."""
    rng = np.random.default_rng(0)
    documents, token = [], 0
    for _ in range(60):
        document = []
        for length in rng.integers(1, 40, size=rng.integers(1, 15)):
            document.append(range(token, token + length))
            token += length
        documents.append(document)
    return corpus_of(documents)
