"""Models whose tokenizer.json only the library reads, in the programs: from download to export."""

import pytest

from bertjax import models, train
from bertjax.convert import families, formats
from bertjax.tokenization import tokenizer
from tests import programs, small_datasets, small_tokenizers
from tests.convert import weights
from tests.convert.families import test_families

pytestmark = pytest.mark.usefixtures("one_device", "quick_runs")
LINES = [line for line in small_tokenizers.LINES for _ in range(8)]


def download(directory, shape):
    """Writes weights of transformers with a tokenizer of a shape; returns the tokenizer."""
    model_type = small_tokenizers.write(directory / "tokenizer", shape)
    vocabulary = tokenizer.load(directory / "tokenizer")
    config = test_families.sized(sizes_of(vocabulary), families.named(model_type))
    made = weights.make("masked_lm", config=config, vocabulary=vocabulary)
    formats.write(made, directory / "weights", format="huggingface")
    return vocabulary


def sizes_of(vocabulary):
    """Returns sizes for texts of 48 tokens."""
    return models.EncoderConfig(
        vocab_size=vocabulary.vocab_size + 3,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=64,
    )


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["ModernBERT", "multilingual-e5", "WhitespaceSplit"])
def test_every_program_reads_text_and_the_export_has_the_same_file(tmp_path, shape):
    known = download(tmp_path, shape)
    source, mask = tmp_path / "weights", known.token(known.mask_id)
    filled = programs.run("bertjax.fill_mask", f"--checkpoint={source}", "--json", f"a {mask} 東京")
    assert not filled.error and len(filled.lines[0]["masks"]) == 1
    found = programs.run("bertjax.encode", f"--checkpoint={source}", lines=("the runner", "東京"))
    assert not found.error
    scored = programs.run("bertjax.score", f"--checkpoint={source}", lines=("the runner ran",))
    assert not scored.error and len(scored.lines) == 1

    (tmp_path / "corpus.txt").write_text("\n\n".join(LINES))
    built = programs.run(
        "data_pipelines.build", f"--input={tmp_path / 'corpus.txt'}", f"--vocabulary={source}",
        f"--output={tmp_path / 'records'}", "--max_seq_length=32", "--num_shards=2",
        "--num_workers=2", "--mask=whole_word",
    )  # fmt: skip
    assert not built.error
    assert tokenizer.load(tmp_path / "records").describe() == known.describe()

    changes = {"finetuning.num_epochs": 1.0}
    config = small_datasets.make_config(tmp_path / "data", "table", source, **changes)
    train.train(config, tmp_path / "run")
    predicted = programs.run(
        "bertjax.predict", f"--checkpoint={tmp_path / 'run'}", lines=('{"text": "w1 東京"}',)
    )
    assert not predicted.error and predicted.lines[0]["label"].startswith("class")
    done = programs.run(
        "bertjax.convert", f"--from={tmp_path / 'run'}", f"--to={tmp_path / 'out'}", "--license=mit"
    )
    assert not done.error
    came = (tmp_path / "tokenizer" / "tokenizer.json").read_bytes()
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == came
    again = programs.run(
        "bertjax.predict", f"--checkpoint={tmp_path / 'out'}", lines=('{"text": "w1 東京"}',)
    )
    assert again.lines == predicted.lines
