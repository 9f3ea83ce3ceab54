import collections
import dataclasses
import pathlib

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies

from bertjax.data import masking, record_files, records
from data_pipelines.building import blocks, shards, store
from data_pipelines.documents import sources
from data_pipelines.objectives import base, packed_sentences, pairing
from data_pipelines.reports import used_tokens
from tests.data_pipelines import decoded
from tests.data_pipelines.conftest import PAIRS

LENGTH, MOST = 32, 4


@hypothesis.settings(deadline=None, derandomize=True, max_examples=50)
@hypothesis.given(
    strategies.lists(strategies.integers(0, 1000), min_size=1, max_size=30),
    strategies.integers(1, 40),
)
def test_shares_are_a_partition_of_every_block_and_shards_are_equal_to_one(counts, num_shards):
    counts = np.array(counts)
    pieces = np.array([shards.shares(counts, shard, num_shards) for shard in range(num_shards)])
    begin, end = pieces[:, 0], pieces[:, 1]
    # One shard's piece begins where that of the shard before ends.
    np.testing.assert_array_equal(begin[0], 0)
    np.testing.assert_array_equal(begin[1:], end[:-1])
    np.testing.assert_array_equal(end[-1], counts)
    sizes = (end - begin).sum(axis=1)
    assert (end >= begin).all() and np.ptp(sizes) <= 1


@pytest.fixture(scope="module")
def new_job(text_file, vocabulary_directory, tmp_path_factory):
    """A function that makes the job of a corpus of four blocks, the third of them empty."""
    text = pathlib.Path(text_file).read_text()
    documents = [
        sources.Document(f"{number}", one) for number, one in enumerate(text.split("\n\n"))
    ]
    parts = [documents[:50], documents[50:90], [], documents[90:]]
    vocabulary = blocks.Vocabulary.of(vocabulary_directory, None)

    def made(mask="token", **changes):
        fields = PAIRS | {"dupe_factor": 2, "random_seed": 5} | changes
        if fields["packing"] == base.BEST_FIT:
            fields["max_sequences_per_row"] = MOST
        scratch = tmp_path_factory.mktemp("scratch")
        kept = store.Store(scratch, token_dtype=np.dtype(np.uint16))
        separate = fields.get("packing") == "full_sentences"
        for part in parts:
            how = blocks.Tokenization(vocabulary, "rules", separate)
            kept.append("", blocks.tokenize(part, how))
        return shards.Job(
            scratch=str(scratch),
            directory=str(tmp_path_factory.mktemp("records")),
            vocabulary=vocabulary,
            pairs=base.PairOptions(max_seq_length=LENGTH, **fields),
            masking=None if mask == "none" else masking.MaskingOptions(0.15, 5, mask),
            block_documents=kept.block_documents(),
        )

    return made


def paired(job):
    return np.array([shards.pair_block(index, job).examples for index in range(job.num_blocks)])


def all_features(job, num_shards, counts):
    batches = [
        batch
        for shard in range(num_shards)
        for batch in shards.feature_batches(job, shard, num_shards, counts)
    ]
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def text_of(ids):
    return "," + ",".join(map(str, ids)) + ","


@pytest.mark.parametrize(
    ("mask", "pair_objective"),
    [("none", "nsp"), ("token", "sop")],
)
def test_pairs_are_text_of_the_corpus_as_their_label_says(
    new_job, vocabulary, mask, pair_objective
):
    job = new_job(mask, pair_objective=pair_objective)
    batch = all_features(job, 3, paired(job))
    corpus = text_of(store.open_corpus(pathlib.Path(job.scratch), np.dtype(np.uint16)).tokens)
    ids, labels = decoded.restored(batch), batch[records.PAIR_FEATURE]
    assert labels.shape == (len(ids), 1) and 0.4 < labels.mean() < 0.9
    place, lengths = np.arange(LENGTH), batch["input_mask"].sum(axis=1)
    np.testing.assert_array_equal(batch["input_mask"], place < lengths[:, None])
    assert (ids[:, 0] == vocabulary.cls_id).all()
    assert (ids[batch["input_mask"] == 0] == vocabulary.pad_id).all()
    whole = swapped = 0
    for row, segments, label in zip(ids, batch["segment_ids"], labels[:, 0], strict=True):
        first, second = np.flatnonzero(row == vocabulary.sep_id)
        np.testing.assert_array_equal(segments, (place > first) & (place <= second))
        a, b = text_of(row[1:first]), text_of(row[first + 1 : second])
        assert a in corpus and b in corpus
        is_whole = second < LENGTH - 1
        whole += is_whole and label == 0
        swapped += is_whole and label == 1 and b + a[1:] in corpus
        if is_whole and label == 0:
            assert a + b[1:] in corpus
    assert whole > 10
    assert swapped > 10 if pair_objective == "sop" else swapped == 0


@pytest.mark.parametrize("packing", packed_sentences.PACKINGS)
def test_packed_rows_hold_every_token_once_in_each_pass(new_job, vocabulary, packing):
    job = new_job("none", pair_objective="none", packing=packing)
    batch = all_features(job, 3, paired(job))
    names = records.PACKED_TOKEN_FEATURES if job.pairs.is_packed else records.TOKEN_FEATURES
    assert set(batch) == set(names) and not batch["segment_ids"].any()
    corpus = store.open_corpus(pathlib.Path(job.scratch), np.dtype(np.uint16)).tokens
    stored = np.bincount(batch["input_ids"].ravel(), minlength=vocabulary.vocab_size)
    wanted = 2 * np.bincount(corpus, minlength=vocabulary.vocab_size)
    stored[list(vocabulary.special_ids)] = wanted[list(vocabulary.special_ids)] = 0
    np.testing.assert_array_equal(stored, wanted)
    separators = (batch["input_ids"] == vocabulary.sep_id).sum(axis=1)
    if job.pairs.is_packed:
        np.testing.assert_array_equal(separators, batch["sequence_ids"].max(axis=1))
    else:
        assert (separators.max() > 1) == (packing == "full_sentences")
    assert not (batch["input_ids"] == vocabulary.mask_id).any()


@pytest.mark.parametrize("pair_objective", ["nsp", "none"])
def test_packed_rows_hold_the_examples_of_plain_ones_whole(new_job, pair_objective):
    plain = new_job("none", pair_objective=pair_objective, short_seq_prob=1.0)
    # The same spans; with best_fit `none` would cut other ones.
    packing = {"packing": base.BEST_FIT, "max_sequences_per_row": MOST}
    packed = dataclasses.replace(plain, pairs=dataclasses.replace(plain.pairs, **packing))
    counts = paired(plain)
    apart, rows = all_features(plain, 3, counts), all_features(packed, 3, counts)
    with_labels = pair_objective == "nsp"
    wanted, found = collections.Counter(), collections.Counter()
    for row, length in enumerate(apart["input_mask"].sum(axis=1).tolist()):
        label = apart[records.PAIR_FEATURE][row, 0] if with_labels else 0
        ids, segments = (apart[name][row, :length] for name in ("input_ids", "segment_ids"))
        wanted[ids.tobytes(), segments.tobytes(), int(label)] += 1
    fewer = 0
    for row, numbers in enumerate(rows["sequence_ids"]):
        real = np.count_nonzero(numbers)
        assert (np.diff(numbers[:real]) >= 0).all() and not numbers[real:].any()
        for number in range(1, numbers.max() + 1):
            label = rows[records.PAIR_FEATURE][row, number - 1] if with_labels else 0
            ids, segments = (
                rows[name][row, numbers == number] for name in ("input_ids", "segment_ids")
            )
            found[ids.tobytes(), segments.tobytes(), int(label)] += 1
        fewer += numbers.max() < MOST
    assert found == wanted and fewer > 0
    assert len(rows["input_ids"]) < len(apart["input_ids"])


def test_every_shard_has_examples_of_every_block_well_mixed(new_job, monkeypatch):
    monkeypatch.setattr(shards, "row_batches", lambda job, shard, tokens, spans: spans)
    job = new_job()
    counts = paired(job)
    ends = store.open_corpus(pathlib.Path(job.scratch), np.dtype(np.uint16))
    first_tokens = ends.sentence_starts[ends.document_starts[list(job.block_documents)]]
    seen = []
    for shard in range(4):
        begin = shards.feature_batches(job, shard, 4, counts)["begin_a"]
        block = np.searchsorted(first_tokens, begin, side="right") - 1
        assert set(block) == {0, 1, 3}
        # Wherever the shard's piece of a block lies, its text is from all over the block.
        assert np.ptp(begin[block == 0]) > 0.8 * first_tokens[1]
        # As mixed as by chance: neighbours are of one block no more often than any two rows.
        shares = np.bincount(block) / len(block)
        assert abs((block[1:] == block[:-1]).mean() - (shares**2).sum()) < 0.12
        assert abs(np.corrcoef(begin[1:], begin[:-1])[0, 1]) < 0.25
        seen.append(begin)
    assert counts[2] == 0 and sum(map(len, seen)) == counts.sum()


def test_counts_are_those_of_the_examples(new_job, monkeypatch):
    job = new_job(balanced_nsp=True)
    found = [shards.pair_block(index, job) for index in range(job.num_blocks)]
    corpus = store.open_corpus(pathlib.Path(job.scratch), np.dtype(np.uint16))
    total = shards.PairTotals.of(found, len(corpus.tokens))
    labels = all_features(job, 2, paired(job))[records.PAIR_FEATURE]
    assert total.examples == len(labels) and total.random == labels.sum() == len(labels) / 2
    used = np.zeros(len(corpus.tokens), bool)
    for path in pathlib.Path(job.scratch).rglob("*.npy"):
        for span in np.load(path):
            for segment in ("a", "b"):
                begin = span[f"begin_{segment}"]
                used[begin : begin + span[f"length_{segment}"]] = True
    assert 0.3 < used.mean() < 1
    assert total.statistics("none") == {"used_token_share": used.mean()}
    # In a larger corpus some positions stand for all.
    monkeypatch.setattr(used_tokens, "MAX_SAMPLED", 500)
    job = new_job(balanced_nsp=True)
    sampled = [shards.pair_block(index, job) for index in range(job.num_blocks)]
    estimate = shards.PairTotals.of(sampled, len(used)).used_share
    assert estimate == used[:: used_tokens.step(len(used))].mean() != used.mean()
    assert total.statistics("nsp") == {
        "used_token_share": total.used_share,
        "forced_random_share": total.forced_random / total.examples,
        "dropped_pair_share": total.dropped / (total.examples + total.dropped),
    }
    assert 0 < total.forced_random < total.random and total.dropped > 0


def test_what_is_finished_is_not_made_again(new_job, monkeypatch):
    job = new_job()
    counts = paired(job)
    once = [shards.write(index, job, 2, counts) for index in range(2)]
    path = pathlib.Path(job.directory) / record_files.shard_name(0, 2)
    content = path.read_bytes()

    def never(*args, **kwargs):
        raise AssertionError("made again")

    with monkeypatch.context() as patched:
        patched.setattr(shards, "feature_batches", never)
        patched.setattr(pairing, "draft", never)
        np.testing.assert_array_equal(paired(job), counts)
        again = [shards.write(index, job, 2, counts) for index in range(2)]
    assert [one.shard for one in again] == [one.shard for one in once]
    assert [one.tally.to_json() for one in again] == [one.tally.to_json() for one in once]
    # Each is made again, the same, if its file or its notes are missing.
    path.unlink()
    assert shards.write(0, job, 2, counts).shard == once[0].shard and path.read_bytes() == content
    # Or if what they hold is not what was written: by a byte, or as JSON.
    notes = pathlib.Path(job.scratch) / f"{path.name}.json"
    for changed, of in ((path, content[:-1] + b"?"), (notes, b'{"shard": '), (notes, b"{}")):
        changed.write_bytes(of)
        assert shards.write(0, job, 2, counts).shard == once[0].shard
        assert path.read_bytes() == content
    pairs = pathlib.Path(job.scratch) / "pairs-000000.npy"
    drawn = pairs.read_bytes()
    pairs.write_bytes(drawn[:-1] + b"?")
    np.testing.assert_array_equal(paired(job), counts)
    assert pairs.read_bytes() == drawn
