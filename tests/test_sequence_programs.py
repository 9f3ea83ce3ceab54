"""A downloaded ESM-2 in the programs: sequences of FASTA with their names, as people have them."""

import gzip
import io
import json

import numpy as np
import pytest
from pyarrow import parquet

from bertjax import models, train
from bertjax.convert import families, formats
from bertjax.tokenization import letters, library_tokenizer
from tests import programs, small_datasets
from tests.convert import weights
from tests.convert.families import test_families

pytestmark = pytest.mark.usefixtures("one_device", "quick_runs")
FASTA = ">sp|P1 first\nMKTAYI\nAKQR\n>P2\n1 acdef*\n>P3\nMKJTA\n"
SEQUENCES = {"sp|P1": "MKTAYIAKQR", "P2": "ACDEF", "P3": "MKJTA"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Weights as a download has them, with vocab.txt and without tokenizer_config.json."""
    path = tmp_path_factory.mktemp("esm") / "weights"
    known = library_tokenizer.of_letters(letters.entries("esm2", ""), {})
    sizes = models.EncoderConfig(
        vocab_size=33, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=24, max_position_embeddings=24,
    )  # fmt: skip
    config = test_families.sized(sizes, families.named("esm"))
    made = weights.make("masked_lm", config=config, vocabulary=known)
    formats.write(made, path, format="huggingface")
    for file in ("tokenizer_config.json", "tokenizer.json", "special_tokens_map.json"):
        (path / file).unlink(missing_ok=True)
    return path


@pytest.fixture
def file(tmp_path):
    (tmp_path / "a.faa.gz").write_bytes(gzip.compress(FASTA.encode()))
    return tmp_path / "a.faa.gz"


def arrays(done):
    assert not done.error
    with np.load(io.BytesIO(done.output)) as archive:
        return dict(archive)


def test_encode_gives_a_vector_and_a_name_for_each_sequence(folder, file, tmp_path, caplog):
    flags = ("bertjax.encode", f"--checkpoint={folder}", "--pooling=mean")
    of_file = arrays(programs.run(*flags, f"--input={file}"))
    assert of_file["ids"].tolist() == [*SEQUENCES] and len(of_file["features"]) == 3
    assert "Letters read as unknown: 'J' 1" in caplog.text
    of_stream = arrays(programs.run(*flags, raw=b"\xef\xbb\xbf" + FASTA.encode()))
    of_lines = arrays(programs.run(*flags, lines=tuple(SEQUENCES.values())))
    assert "ids" not in of_lines
    for other in (of_stream, of_lines):
        np.testing.assert_array_equal(of_file["features"], other["features"])
    programs.succeed(*flags, f"--input={file}", f"--output={tmp_path / 'v'}", "--format=parquet")
    table = parquet.read_table(tmp_path / "v" / "vectors-00000.parquet").to_pydict()
    assert dict(zip(table["id"], table["text"], strict=True)) == SEQUENCES
    np.testing.assert_array_equal(np.array(table["vector"], np.float32), of_file["features"])


def test_a_long_sequence_is_cut_if_truncate_says_so(folder, tmp_path):
    (tmp_path / "a.fasta").write_text(f">long\n{'MKTAY' * 9}\n>cut\n{('MKTAY' * 9)[:22]}\n")
    flags = ("bertjax.encode", f"--checkpoint={folder}", f"--input={tmp_path / 'a.fasta'}")
    done = programs.run(*flags)
    assert "text 1 has 47 tokens" in done.error and "--truncate" in done.error and not done.output
    cut = arrays(programs.run(*flags, "--truncate"))["features"]
    np.testing.assert_allclose(cut[0], cut[1], rtol=1e-5)
    scored = programs.run("bertjax.score", f"--checkpoint={folder}", *flags[2:])
    assert [{*line} - {"error"} for line in scored.lines][0] == {"id"} and scored.error


def test_score_and_fill_mask_name_the_sequences(folder, file, tmp_path):
    flags = ("bertjax.score", f"--checkpoint={folder}")
    named = programs.succeed(*flags, f"--input={file}").lines
    plain = programs.succeed(*flags, lines=tuple(SEQUENCES.values())).lines
    assert [it.pop("id") for it in named] == [*SEQUENCES] and named == plain
    (tmp_path / "a.fa").write_text(">a\nmkt<mask>ayi\n>b\nMKT[MASK]\nAYI\n")
    flags = ("bertjax.fill_mask", f"--checkpoint={folder}", "--json")
    first, second = programs.succeed(*flags, f"--input={tmp_path / 'a.fa'}").lines
    argument = programs.succeed(*flags, "mkt [MASK] AYI").lines[0]
    assert (first["id"], second["id"]) == ("a", "b")
    assert first["masks"] == second["masks"] == argument["masks"]
    assert "--input" in programs.run(*flags).error


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.fa", FASTA.encode("utf-16"), "a.fa is not UTF-8 text; it looks like utf-16"),
        ("a.fa", b"MKT\n", "a.fa:1 is 'MKT', before any header"),
        ("a.fa", FASTA.encode() + b"@r\nACGT\n+\nII\n", "a.fa:8 begins a record of FASTQ"),
        ("a.fa.gz", gzip.compress(FASTA.encode() * 99, mtime=0)[:-9], "a.fa.gz is damaged"),
        ("a.fa", b"", "there are no texts"),
    ],
)
def test_what_holds_no_sequences_ends_in_a_line(folder, tmp_path, caplog, name, content, message):
    (tmp_path / name).write_bytes(content)
    for program in ("bertjax.encode", "bertjax.score"):
        flags = (f"--checkpoint={folder}", f"--input={tmp_path / name}")
        done = programs.run(program, *flags)
        assert "\n" not in done.error and not done.output
        assert message in done.error or "holds no texts" in caplog.text


def test_a_build_refuses_fasta_for_a_vocabulary_with_small_letters(file, tmp_path):
    entries = ["<cls>", "<pad>", "<eos>", "<unk>", "Ma", "<mask>"]
    library_tokenizer.of_letters(entries, {}).save(tmp_path / "v")
    flags = (f"--input={file}", f"--vocabulary={tmp_path / 'v'}", f"--output={tmp_path / 'r'}")
    assert (
        "is FASTA, which is read as capitals" in programs.run("data_pipelines.build", *flags).error
    )
    (tmp_path / "a.txt").write_text(FASTA)
    flags = (f"--input={tmp_path / 'a.txt'}", *flags[1:])
    assert "a.txt looks like FASTA" in programs.run("data_pipelines.build", *flags).error


@pytest.mark.parametrize("dataset", [pytest.param("table", marks=pytest.mark.slow), "conll"])
def test_predict_reads_a_sequence_as_a_text_or_as_its_residues(folder, file, tmp_path, dataset):
    config = small_datasets.make_config(tmp_path / "data", dataset, folder)
    config.finetuning.update(num_epochs=1.0, max_seq_length=24)
    train.train(config, tmp_path / "run")
    flags = ("bertjax.predict", f"--checkpoint={tmp_path / 'run'}")
    answers = programs.succeed(*flags, f"--input={file}").lines
    assert [it["id"] for it in answers] == [*SEQUENCES]
    lines = (
        json.dumps({"id": name, "text": text, "words": [*text]}) for name, text in SEQUENCES.items()
    )
    assert answers == programs.succeed(*flags, lines=tuple(lines)).lines
    if dataset == "conll":
        assert [len(it["tags"]) for it in answers] == [10, 5, 5]
