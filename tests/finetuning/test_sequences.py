"""Texts from texts: rows, losses, files, scores, and a training from an encoder's weights."""

import dataclasses
import json
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

import bertjax
from bertjax import config as config_lib
from bertjax import evaluate, generate, inference, predict, train
from bertjax.convert import __main__ as convert
from bertjax.convert import formats
from bertjax.finetuning import sequences
from bertjax.jobs import finetuning
from bertjax.models import decoder, generation, parameters
from bertjax.scores import baselines, generated
from bertjax.tasks import base
from bertjax.training import config_faults, warm_start
from tests import conftest, small_datasets, small_modules, small_records

PAIRS = [("w1 w2 w3", "w2 w1"), ("w4", "w5 w6 w7 w8 w9"), ("w7 w8", "w8")]


def reader_of(tmp_path, **options):
    found = config_lib.default_config().finetuning
    found.update(dataset="sequences", max_seq_length=16, max_target_length=5, **options)
    return sequences.SequenceReader(found, small_records.vocabulary())


def table(path, pairs=PAIRS):
    rows = [f"{source},{target}" for source, target in pairs]
    path.write_text("\n".join(["text,target", *rows]) + "\n")
    return str(path)


def test_a_decoder_reads_the_start_and_the_target_and_predicts_what_follows(tmp_path, caplog):
    reader = reader_of(tmp_path, train_file=table(tmp_path / "a.csv"))
    known, features = reader.tokenizer, reader.features("train")
    ids = [known.encode(target) for _, target in PAIRS]
    inputs, labels = (features.columns[name] for name in ("target_ids", "labels"))
    assert inputs[0].tolist() == [known.cls_id, *ids[0], known.pad_id, known.pad_id]
    assert labels[0].tolist() == [*ids[0], known.sep_id, -1, -1]
    # A target that is cut has the token that follows as its last label, not the end.
    assert inputs[1].tolist() == [known.cls_id, *ids[1][:4]]
    assert labels[1].tolist() == ids[1]
    assert "1 of 3 targets have more than 4 tokens" in caplog.text
    assert features.tokens["input_ids"][0].tolist() == [
        known.cls_id, *known.encode(PAIRS[0][0]), known.sep_id,
    ]  # fmt: skip
    assert reader.decided["target_specials"] == (known.cls_id, known.sep_id, known.pad_id)


def test_the_loss_has_a_share_of_the_uniform_distribution_and_its_gradient():
    """The mean over tokens in float64; the second row counts for nothing."""
    search = generation.Search(1, 2, max_length=4)
    sizes = dataclasses.replace(conftest.TINY, num_hidden_layers=1)
    task = sequences.Sequences(sizes, search, label_smoothing=0.1)
    rng = np.random.default_rng(0)
    labels = np.array([[5, 6, 2, -1], [7, 2, -1, -1], [8, 9, 10, 2]], np.int32)
    batch = {
        "input_ids": jnp.asarray(rng.integers(5, 90, (3, 6)), jnp.int32),
        "input_mask": jnp.ones((3, 6), jnp.int32),
        "target_ids": jnp.asarray(rng.integers(5, 90, (3, 4)), jnp.int32),
        "labels": jnp.asarray(labels),
        "example_weights": jnp.asarray([1.0, 0.0, 1.0]),
    }
    graphdef, params = parameters.split(small_modules.made(task.init))

    def ours(head, params, batch):
        model = parameters.merge(graphdef, {**params, "mlm_head": head})
        means = task.loss(model, batch, key=None)["loss"]
        return means.total, (means, task.evaluate(model, batch)["loss"])

    def formula(head, params, batch):
        mask = (batch["labels"] >= 0).astype(jnp.int32)
        model = parameters.merge(graphdef, {**params, "mlm_head": head})
        logits = model({**batch, "target_mask": mask})
        smooth = 0.9 * jax.nn.one_hot(labels, logits.shape[-1]) + 0.1 / logits.shape[-1]
        weights = (mask * batch["example_weights"][:, None])[..., None]
        return -(smooth * jax.nn.log_softmax(logits) * weights).sum(), logits

    @jax.jit
    def both(params, batch):
        head = params["mlm_head"]
        return [jax.grad(it, has_aux=True)(head, params, batch) for it in (ours, formula)]

    (gradient, (mean, scored)), (expected_gradient, logits) = both(params, batch)
    shares = scipy.special.log_softmax(np.asarray(logits, np.float64), axis=-1)
    expected, plain, weight = 0.0, 0.0, 0
    for row in (0, 2):
        for at, label in enumerate(labels[row]):
            if label >= 0:
                plain -= shares[row, at, label]
                expected -= 0.9 * shares[row, at, label] + 0.1 * shares[row, at].mean()
                weight += 1
    np.testing.assert_allclose(mean.total, expected, rtol=1e-5)
    assert mean.weight == weight == task.weights(batch)["loss"]
    np.testing.assert_allclose(scored.total, plain, rtol=1e-5)
    for one, other in zip(*map(jax.tree.leaves, (gradient, expected_gradient)), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


def test_two_files_of_lines_are_pairs(tmp_path):
    sources, targets = tmp_path / "a.en", tmp_path / "a.fr"
    sources.write_bytes("\ufeffw1 \u2028 w2\r\nw3\r\n".encode())
    targets.write_text("w2\nw4")
    reader = reader_of(tmp_path, train_file=f"{sources},{targets}")
    texts = [example.texts for example in reader.examples("train")]
    assert texts == [("w1 \u2028 w2", "w2"), ("w3", "w4")]
    for target, more, fault in (
        (b"w2\n\n", "", r"a\.fr:2: the line is empty"),
        (b"w2\n", "", r"a\.en has 2 lines and .*a\.fr 1;"),
        (b"w2\n\xe9\n", "", r"a\.fr:2: it is not UTF-8"),
        (b"w2\n", ",c", "names 3 files"),
    ):
        targets.write_bytes(target)
        with pytest.raises(ValueError, match=fault):
            reader_of(tmp_path, train_file=f"{sources},{targets}{more}").examples("train")
    (tmp_path / "a.csv").write_text("text,label\nw1,w2\n")
    with pytest.raises(ValueError, match="there is no column 'target'"):
        reader_of(tmp_path, train_file=str(tmp_path / "a.csv")).examples("train")


def test_scores_are_those_of_their_packages():
    import sacrebleu
    from rouge_score import rouge_scorer

    predictions = ["the cat sat on the mat", "a dog", "running fast"]
    references = ["the cat sat on a mat", "a dog", "he runs fast"]
    found = {name: of(predictions, references) for name, of in generated.SCORES.items()}
    assert found["exact_match"] == pytest.approx(1 / 3)
    assert found["bleu"] == sacrebleu.corpus_bleu(predictions, [references]).score
    assert found["chrf"] == sacrebleu.corpus_chrf(predictions, [references]).score
    scorer = rouge_scorer.RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True)
    for name in ("rouge1", "rouge2", "rougeL"):
        each = [
            scorer.score(r, p)[name].fmeasure for p, r in zip(predictions, references, strict=True)
        ]
        assert found[name] == pytest.approx(np.mean(each))


def test_words_that_the_vocabulary_cannot_spell_are_never_predicted(tmp_path, caplog):
    known = small_records.vocabulary()
    word = known.token(60)
    (tmp_path / "a.csv").write_text(f"text,target\n{word},{word} цветок {word}\n{word},{word}\n")
    reader = reader_of(tmp_path, train_file=str(tmp_path / "a.csv"))
    scorer = sequences.SequenceScorer(reader)
    ids = known.encode_batch([f"{word} цветок {word}", word])
    rows = np.full((2, 5), known.sep_id)
    for row, it in zip(rows, ids, strict=True):
        row[: len(it)] = it
    assert scorer.scores("train", {"predictions": rows})["exact_match"] == 0.5
    reader.features("train")  # before the training
    assert "1 of 2 targets (50.0%" in caplog.text and "цветок" in caplog.text


def test_texts_that_rouge_cannot_read_are_warned_of(caplog):
    assert generated.SCORES["rougeL"](["एक घर", "a"], ["एक घर", "a"]) == 0.5
    assert "ROUGE does not count" in caplog.text
    caplog.clear()
    scores = generated.SCORES["rouge1"](["кот спит 2024"], ["правительство утвердило бюджет 2024"])
    assert scores == 1.0 and "87.5% of the letters" in caplog.text
    caplog.clear()
    assert generated.SCORES["rouge1"](["a naïve text of many words"] * 2, ["a naïve text"] * 2)
    assert "('chrf',)" in caplog.text
    caplog.clear()
    generated.SCORES["rouge1"](["plain"], ["plain words, and one é: " + "plain " * 20])
    assert not caplog.text


@pytest.mark.parametrize(("text", "is_short"), [("read the file", True), ("今天天气很好", True),
                                                ("read the whole file", False)])  # fmt: skip
def test_texts_too_short_for_bleu_are_warned_of(caplog, text, is_short):
    generated.SCORES["bleu"]([text], [text])
    assert ("fewer than 4 words" in caplog.text) == is_short


def scorer_of(tmp_path, rows, **options):
    (tmp_path / "a.csv").write_text("\n".join(["text,target", *rows]))
    return sequences.SequenceScorer(
        reader_of(tmp_path, train_file=str(tmp_path / "a.csv"), **options)
    )


def all_of(scorer, text):
    """The scores of predicting one text for all."""
    ids = scorer.reader.tokenizer.encode_batch([text])[0]
    return scorer.scores("train", {"predictions": np.array([ids] * 3)})


def test_what_scores_do_not_read_is_said_once_a_run_with_the_signature(tmp_path, caplog):
    caplog.set_level("INFO", logger="absl")
    scores = ("bleu", "rouge1", "rouge2", "exact_match")
    scorer = scorer_of(tmp_path, ["w1,w2", "w1,дом", "w1,w3"], text_scores=scores)
    for _ in range(2):
        all_of(scorer, "w2")
    for said in ("bleu_tokenizer=zh", "ROUGE does not count", "|tok:13a|"):
        assert len([it for it in caplog.messages if said in it]) == 1, said
    assert all("a.csv" in it for it in caplog.messages if "3 references" in it)


def test_scores_have_rules_that_learn_nothing_as_baselines(tmp_path):
    rows = ["w1 w2 w3,w1", "w4 w5,w4", "w6 w7,w9"]
    scores = all_of(scorer_of(tmp_path, rows, text_scores=("exact_match", "chrf")), "w9")
    assert scores["exact_match"] == scores["most_frequent_exact_match"] == pytest.approx(1 / 3)
    assert scores["first_words_exact_match"] == pytest.approx(2 / 3)
    assert scores["source_exact_match"] == 0
    assert 0 < scores["source_chrf"] < scores["first_words_chrf"] < 100
    assert baselines.best(scores)["chrf"] == "first_words_chrf"
    (name,) = (it for it in baselines.not_better(scores) if it == "chrf")
    assert "first_words_chrf" in baselines.not_better(scores)[name]


def test_bleu_takes_a_tokenizer_of_sacrebleu(tmp_path):
    scorer = scorer_of(tmp_path, ["w1,дом", "w2,дом"], text_scores=("bleu",), bleu_tokenizer="char")
    assert "|tok:char|" in scorer.notes["bleu_signature"]
    zh = generated.chosen(["bleu"], "zh")["bleu"]
    text = ["今天天气很好"]
    assert zh.compute(text, text) == pytest.approx(100) and not zh.unread(text)
    assert generated.bleu.compute(text, text) == 0 and generated.bleu.unread(text)


def test_what_a_tokenizer_of_bleu_lacks_is_named_before_training(tmp_path, monkeypatch):
    config = small_datasets.make_config(tmp_path, "sequences", tmp_path)

    def fault(tokenizer, scores=("bleu",)):
        config.finetuning.update(text_scores=scores, bleu_tokenizer=tokenizer)
        with pytest.raises(ValueError, match="bleu_tokenizer") as caught:
            config_faults.validate(config)
        return str(caught.value)

    assert "'13b'; known are none, zh" in fault("13b")
    assert "without bleu" in fault("zh", ("chrf",))
    from sacrebleu.metrics import bleu

    def failing(error):
        def tokenizer(name):
            raise error

        generated._bleu_metric.cache_clear()
        monkeypatch.setattr(bleu, "_get_tokenizer", tokenizer)

    failing(RuntimeError("needs\n pip install sacrebleu[ja]"))
    assert "needs pip install sacrebleu[ja]" in fault("ja-mecab")
    failing(OSError("no network"))
    assert "no network" in fault("flores200") and "BLEU(tokenize='flores200')" in fault("flores200")


def test_faults_of_options_are_all_named(tmp_path, monkeypatch):
    config = small_datasets.make_config(tmp_path, "sequences", tmp_path)
    config.finetuning.update(
        shares="half", label_smoothing=1.0, max_target_length=1, text_scores=("bleu", "meteor")
    )
    config.finetuning.update(beams=1, length_penalty=0.5)
    with pytest.raises(ValueError) as caught:
        config_faults.validate(config)
    for part in (
        "shares is 'half'; known are none, words, embeddings, layers",
        "label_smoothing is 1.0",
        "max_target_length is 1",
        "config.finetuning.text_scores is 'meteor'",
        "length_penalty is 0.5, but only beams above 1 reads it",
    ):
        assert part in str(caught.value)
    config.finetuning.update(
        shares="none", label_smoothing=0.0, max_target_length=8, length_penalty=1.0
    )
    config.finetuning.text_scores = ("chrf",)

    def lacking(name):
        raise ImportError(name)

    monkeypatch.setattr(generated, "importlib", types.SimpleNamespace(import_module=lacking))
    with pytest.raises(ValueError, match=r"sacrebleu.*not installed.*'\.\[generation\]'"):
        config_faults.validate(config)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    root = tmp_path_factory.mktemp("sequences")
    source = small_datasets.write_source(root / "source")
    config = small_datasets.make_config(root / "data", "sequences", source)
    config.finetuning.update(num_epochs=30.0, text_scores=("chrf", "exact_match", "bleu"))
    config.evaluation.every_steps = 10
    config.mesh.data = -1
    config.global_batch_size = config.evaluation.global_batch_size = small_datasets.EXAMPLES
    train.train(config, root / "run")
    return root


def start_of(config):
    """The weights that a job starts from."""
    job = finetuning.open_job(config)
    return warm_start.of_job(job, base.abstract_model(job.task)[1])


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
@pytest.mark.parametrize("shares", decoder.SHARED)
def test_a_decoder_begins_as_the_encoder_of_the_weights(trained, shares):
    config = small_datasets.make_config(trained / "again", "sequences", trained / "source")
    config.finetuning.shares = shares
    start = start_of(config)
    for name in ("query.kernel", "output.bias"):
        theirs = start.values[f"encoder.layers.1.attention.{name}"]
        if shares != "layers":
            ours = start.values[f"decoder.layers.1.attention.{name}"]
            np.testing.assert_array_equal(ours, theirs)
    assert "mlm_head.bias" in start.values
    assert {name.partition(".0.")[0].partition(".1.")[0] for name in start.fresh} == {
        "decoder.cross"
    }


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
def test_a_decoder_begins_as_another_encoder(trained, caplog):
    first = trained / "source"
    second = small_datasets.write_source(trained / "second", seed=1)
    config = small_datasets.make_config(trained / "two", "sequences", first)
    config.finetuning.decoder_from = str(second)
    with pytest.raises(ValueError, match=r"has its encoder's embeddings: say .*shares=none"):
        config_faults.validate(config)
    config.finetuning.shares = "none"
    start = start_of(config)
    assert {name.split(".")[1] for name in start.fresh} == {"cross"}
    one, other = (formats.read(it).params for it in (first, second))
    for name, value in start.values.items():
        expected = one if name.startswith("encoder.") else other
        path = name.replace("decoder.", "encoder.", 1)
        np.testing.assert_array_equal(value, expected[path], err_msg=name)
    name = "encoder.layers.0.attention.query.kernel"
    assert not np.array_equal(one[name], other[name])
    config.finetuning.decoder_from = str(
        small_datasets.write_source(trained / "wide", hidden_size=48)
    )
    with pytest.raises(ValueError, match=r"decoder_from, .* must have the sizes[\s\S]*hidden_size"):
        start_of(config)


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
def test_a_training_learns_its_pairs_and_its_programs_agree(trained):
    lines = [json.loads(it) for it in (trained / "run" / "metrics.jsonl").read_text().splitlines()]
    evaluated = [it for it in lines if "eval/dev/chrf" in it]
    assert evaluated[-1]["eval/dev/loss"] < evaluated[0]["eval/dev/loss"] < np.log(95)
    texts = (trained / "run" / "predictions" / "test.txt").read_text().splitlines()
    assert len(texts) == small_datasets.EXAMPLES

    scores = evaluate.evaluate_checkpoint(
        str(trained / "run"), str(trained / "data" / "train.csv"), batch_size=8
    )
    assert scores["chrf"] == pytest.approx(evaluated[-1]["eval/dev/chrf"])
    assert scores["source_chrf"] == pytest.approx(evaluated[-1]["eval/dev/source_chrf"])
    assert "|tok:13a|" in evaluate._line("bleu_signature", scores["bleu_signature"], 30)

    model = inference.load_finetuned(trained / "run")
    sources = [" ".join(words) for words in small_datasets.sentences(7)]
    told = [*predict.predict(model, [{"text": it} for it in sources], batch_size=8)]
    assert [it["text"] for it in told] == texts
    made = [*generate.generate(model, iter(sources), batch_size=4)]
    assert [found[0]["text"] for found in made] == texts
    found = bertjax.load(trained / "run").generate(sources[:2], beams=3, outputs=2)
    assert [len(it) for it in found] == [2, 2]
    assert found[0][0]["score"] >= found[0][1]["score"]


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
def test_draws_depend_on_the_seed_and_the_number_of_the_text_alone(trained):
    model = inference.load_finetuned(trained / "run")
    sources = [" ".join(words) for words in small_datasets.sentences(8, 5)]
    asked = {"outputs": 3, "sampling": True, "temperature": 3.0}

    def drawn(**options):
        found = generate.generate(model, sources, **asked, **options)
        return [[it["text"] for it in of_text] for of_text in found]

    first = drawn()
    assert drawn(batch_size=2) == first
    fewer = generate.generate(model, sources, **{**asked, "outputs": 1})
    assert [it[0]["text"] for it in fewer] == [it[0] for it in first]
    assert [len(it) for it in first] == [3] * 5 and drawn(seed=1) != first
    assert len({text for of_text in first for text in of_text}) > 3


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
def test_what_generates_no_texts_is_refused(trained, tmp_path):
    model = inference.load_finetuned(trained / "run")
    with pytest.raises(ValueError, match="outputs is 2; it must be from 1 to the 1 of beams"):
        next(generate.generate(model, ["w1"], outputs=2))
    with pytest.raises(ValueError, match="max_length is 99; it must be at most"):
        next(generate.generate(model, ["w1"], max_length=99))
    with pytest.raises(ValueError, match="give a list of texts"):
        bertjax.load(trained / "run").generate("w1")


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
def test_an_export_comes_back_and_generates_the_same(trained, tmp_path):
    convert.convert(trained / "run", tmp_path / "exported")
    config = json.loads((tmp_path / "exported" / "config.json").read_text())
    assert config["architectures"] == ["EncoderDecoderModel"]
    convert.convert(tmp_path / "exported", tmp_path / "back", format="bertjax")
    sources = [" ".join(words) for words in small_datasets.sentences(7)]
    ours, theirs = (
        [*generate.generate(inference.load_finetuned(it), sources, beams=2)]
        for it in (trained / "run", tmp_path / "back")
    )
    assert [it[0]["text"] for it in ours] == [it[0]["text"] for it in theirs]
