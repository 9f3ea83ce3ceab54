import numpy as np
import pytest

from bertjax import evaluate, inference
from bertjax.convert import workdir as workdirs
from bertjax.inference import encoding
from bertjax.scores import parallel
from bertjax.tokenization import tokenizer
from tests import programs, small_records
from tests.convert import weights

WAYS = ("source to target", "target to source")
SOURCE = [f"w{n} w{n + 1}" for n in range(20)]
TARGET = [f"w{n + 1} w{n} w{n % 3 + 25}" for n in range(20)]


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("parallel")
    vocabulary = tokenizer.WordPieceTokenizer([*small_records.SPECIALS, *small_records.WORDS])
    workdirs.write(weights.make(vocabulary=vocabulary), directory)
    return directory


def test_each_layer_is_scored_by_its_own_vectors(workdir, tmp_path):
    for name, texts in (("source", SOURCE), ("target", TARGET)):
        (tmp_path / name).write_text("\n".join(texts))
    paths = f"{tmp_path / 'source'},{tmp_path / 'target'}"
    found = evaluate.evaluate_parallel(workdir, paths, batch_size=8)
    model = inference.load(workdir)
    depth = (len(found["by_layer"]) // 4) - 1
    assert depth == len(model.module().encoder.uses) and found["layer"] == depth // 2 + 1
    for layers, number in (("embeddings", 0), ("last", depth)):
        options = encoding.options_for(model, layers=layers, pooling="mean")
        vectors = [
            encoding.vectors(model, encoding.tokenize(model, texts, options), options)
            for texts in (SOURCE, TARGET)
        ]
        for measure, ways in parallel.retrieval(*vectors).items():
            names = (f"{number} {measure}, {way}" for way in WAYS)
            assert tuple(found["by_layer"][name] for name in names) == ways
    assert found["source_to_target"] == found["by_layer"][f"{found['layer']} cosine, {WAYS[0]}"]
    assert 0.05 < found["target_to_source"] < 1.0 and found["chance"] == 1 / 20
    where = (f"--checkpoint={workdir}", f"--parallel={paths}")
    assert programs.succeed("bertjax.evaluate", *where, "--json").lines == [found]
    same = f"{tmp_path / 'source'},{tmp_path / 'source'}"
    equal = evaluate.evaluate_parallel(workdir, same, batch_size=8)["by_layer"].values()
    assert np.array_equal([*equal], np.ones(len(equal)))


def test_one_kind_of_data_is_asked_for(workdir):
    arguments = (f"--checkpoint={workdir}", "--parallel=a,b", "--data=c")
    ended = programs.run("bertjax.evaluate", *arguments)
    assert "give one of --data (records or a labelled file), --pairs and --parallel" in ended.error
