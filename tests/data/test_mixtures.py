import dataclasses
import itertools

import numpy as np
import pytest

from bertjax.data import mixtures, records
from tests.data import test_streams as plain

# Tokens of mmBERT's first phase by language: statistics/language_counts.csv of JHU-CLSP/mmBERT,
# commit 108ffb3, column `pretrain`.
MMBERT = (
    "eng 686423109477 rus 115435806777 cmn 103720292223 code 102006710251 spa 89770162637 deu "
    "87337285702 fra 79794431733 jpn 58625517493 ita 57312567533 por 46894429074 nld 37153917482 "
    "pol 36514762641 ind 32468401525 kor 28395431813 tur 24911024070 fas 23255069621 ces "
    "22679268398 ron 22361702990 vie 22206126246 arb 21212425415 nob 20925047379 hun 20200200728 "
    "dan 19172736615 swe 18608769024 tha 18209344688 ukr 17472489195 ell 16417908793 fin "
    "14853068396 bul 12894322204 slk 12182141119 hrv 11312355157 hin 9995437569 lit 8762417832 "
    "heb 8315613128 slv 7928219171 ekk 7037982864 ben 6482177579 zsm 6299942426 lvs 6150049033 "
    "azj 4750590422 urd 3627338877 tam 3067539668 kaz 2993899636 afr 2662761651 fil 2594565250 "
    "mkd 2577181825 mar 2575163657 npi 2500423044 kat 2494262076 glg 2218144607 tel 2085498015 "
    "mal 2027825033 mya 1836717720 guj 1741402478 khk 1669194774 khm 1382715819 swh 1278170699 "
    "sin 1202542316 gle 979857982 pbt 865919461 xho 189777311 "
)
SHARES = (0.6, 0.1, 0.3)
COUNTS = {"de": (7, 5, 9, 6, 8, 5, 4, 11), "eo": (3,), "fr": (6, 6, 6, 6)}


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    """Records in three languages, with another number of shards each."""
    directory = tmp_path_factory.mktemp("mixture")
    shards, languages = [], {}
    for number, (name, counts) in enumerate(COUNTS.items()):

        def example(shard, place, predictions, length, number=number):
            return plain.example(10 * number + shard, place, predictions, length)

        one = plain.write(directory / name, counts=counts, example=example)
        shards += [
            dataclasses.replace(shard, file=f"{name}/{shard.file}") for shard in one.manifest.shards
        ]
        figures = dict.fromkeys(("documents", "tokens", "bytes"), 100 * sum(counts))
        languages[name] = figures | {"examples": sum(counts)}
    whole = dataclasses.replace(one.manifest, shards=tuple(shards), languages=languages)
    whole.save(directory)
    return records.open(directory)


@pytest.fixture
def memory(request, mixture, monkeypatch):
    """The languages that are read whole; a single shard, as of Esperanto, would be one stream."""
    sizes = [
        sum(mixture.manifest.shards[it].bytes for it in mixture.manifest.shards_of(name))
        for name in getattr(request, "param", "eo fr").split()
    ]
    monkeypatch.setattr(mixtures, "IN_MEMORY_BYTES", max(sizes) + 1)
    monkeypatch.setattr(mixtures, "BLOCK", 16)
    monkeypatch.setattr(mixtures, "PART", 5)


def read(record_set, steps, **options):
    return plain.read(record_set, steps, **{"shares": SHARES} | options)


def languages_of(batches):
    """The number of each row's language, which its tokens tell."""
    return np.stack([batch["input_ids"][:, 1] - 100 for batch in batches]) // 10


def test_shares_are_those_of_the_papers_formula():
    sizes = {"en": 900, "de": 90, "eo": 10}
    for alpha, expected in (
        (1.0, (0.9, 0.09, 0.01)),
        (0.7, (0.805, 0.161, 0.034)),
        (0.5, (0.703, 0.222, 0.074)),
        (0.3, (0.568, 0.285, 0.147)),
        (0.0, (1 / 3, 1 / 3, 1 / 3)),
    ):
        found = mixtures.shares(sizes, alpha)
        np.testing.assert_allclose(list(found.values()), expected, atol=6e-4)
    by_hand = mixtures.shares({**sizes, "code": 5000}, 0.5, "code=0.1, *")
    rest = {name: share / 0.9 for name, share in by_hand.items() if name != "code"}
    assert by_hand["code"] == 0.1
    assert rest == pytest.approx(mixtures.shares(sizes, 0.5))
    assert mixtures.shares(sizes, 1.0, "de, eo") == pytest.approx({"en": 0, "de": 0.9, "eo": 0.1})


@pytest.mark.parametrize(
    ("listed", "told"),
    [
        ("en=2", "'en=2' gives no share"),
        ("en=0", "gives no share"),
        ("en=half", "gives no share"),
        ("*=0.5, en", "gives no share"),
        ("en, en", "names en twice"),
        ("en, fr", "the records have no fr: they have en, de"),
        ("en=0.5", "the languages without one are none"),
        ("en=0.7, de=0.7", "are 1.4 together"),
        ("en=0.4, de=0.6, *", None),
    ],
)
def test_a_list_that_gives_no_shares_is_refused(listed, told):
    if told is None:
        assert mixtures.shares({"en": 9, "de": 1}, 0.3, listed) == {"en": 0.4, "de": 0.6}
        return
    with pytest.raises(ValueError, match=f"languages is {listed!r}".replace("*", r"\*")) as caught:
        mixtures.shares({"en": 9, "de": 1}, 0.3, listed)
    assert told in str(caught.value)


def test_a_million_draws_follow_shares_that_are_given_by_hand():
    fields = "".join(MMBERT).split()
    counts = dict(zip(fields[::2], map(int, fields[1::2]), strict=True))
    total = sum(counts.values())
    listed = ", ".join(f"{name}={count / total!r}" for name, count in counts.items())
    shares = mixtures.shares(dict.fromkeys(counts, 1), 0.3, listed)
    number = 1_000_000
    drawn = sum(
        mixtures.Draws(tuple(shares.values()), (7, stream)).before(number // 32)
        for stream in range(32)
    )
    expected = np.array(list(shares.values())) * drawn.sum()
    large = expected > 0.05 * number
    assert drawn.sum() == number and large.sum() > 3
    np.testing.assert_allclose(drawn[large], expected[large], rtol=0.01)
    # The 0.999 quantile of chi-square with 60 degrees of freedom.
    assert len(counts) == 61 and ((drawn - expected) ** 2 / expected).sum() < 99.6


def test_rows_before_a_row_are_those_that_were_drawn():
    draws = mixtures.Draws(SHARES, (1, 2))
    parts = 3 * mixtures.BLOCK // mixtures.PART
    drawn = np.concatenate(list(itertools.islice(draws.from_row(0), parts)))
    for row in (0, 1, mixtures.BLOCK - 1, mixtures.BLOCK, 2 * mixtures.BLOCK + 5):
        np.testing.assert_array_equal(draws.before(row), np.bincount(drawn[:row], minlength=3))
        rest = np.concatenate(list(itertools.islice(draws.from_row(row), 2)))[:9]
        np.testing.assert_array_equal(rest, drawn[row : row + 9])


def test_all_streams_together_read_each_example_in_memory_once_an_epoch():
    turns = mixtures.InTurn(10, 4, (3,))
    read_in_order = np.stack([turns.examples(stream, np.arange(25)) for stream in range(4)], 1)
    epochs = read_in_order.reshape(10, 10)
    np.testing.assert_array_equal(np.sort(epochs, axis=1), np.tile(np.arange(10), (10, 1)))
    assert len({tuple(epoch) for epoch in epochs.tolist()}) == 10


@pytest.mark.parametrize("memory", ["eo fr", "de eo fr"], indirect=True)
def test_a_mixed_batch_is_a_function_of_seed_and_step_on_any_hosts(mixture, memory):
    whole = read(mixture, 24, draw_masks=plain.draw_masks)
    for step in (7, 21):
        resumed = read(mixture, 3, start_step=step, draw_masks=plain.draw_masks)
        plain.assert_same_batches(resumed, whole[step : step + 3])
    parts = [
        read(mixture, 3, start_step=5, rows=rows, draw_masks=plain.draw_masks)
        for rows in plain.host_rows(2)
    ]
    plain.assert_same_batches(plain.join_hosts(parts), whole[5:8])
    other = read(mixture, 3, seed=2)
    assert (languages_of(other) != languages_of(whole[:3])).any()


@pytest.mark.usefixtures("memory")
def test_languages_have_their_shares_and_each_its_examples_in_turn(mixture):
    batches = read(mixture, 150)
    found = np.bincount(languages_of(batches).ravel(), minlength=3) / (150 * plain.BATCH_SIZE)
    np.testing.assert_allclose(found, SHARES, atol=0.04)
    seen = np.concatenate([batch["record_positions"] for batch in batches])
    for number, (name, counts) in enumerate(COUNTS.items()):
        own = seen[languages_of(batches).ravel() == number]
        places, times = np.unique(own, axis=0, return_counts=True)
        assert set(places[:, 0]) == set(mixture.manifest.shards_of(name))
        assert len(places) == sum(counts) and times.min() >= len(own) // sum(counts) // 2
    left_out = read(mixture, 20, shares=(0.5, 0.0, 0.5))
    assert set(languages_of(left_out).ravel()) == {0, 2}


@pytest.mark.usefixtures("memory")
def test_mixed_batches_that_grow_read_on_where_smaller_ones_stopped(mixture):
    growing = read(mixture, 3, ramp_from=8)
    growing += read(mixture, 3, start_step=3, rows_before=24, global_batch_size=16, ramp_from=8)

    def by_stream(batches):
        blocks = [np.split(batch["record_positions"], plain.STREAMS) for batch in batches]
        return [np.concatenate([block[it] for block in blocks]) for it in range(plain.STREAMS)]

    np.testing.assert_array_equal(by_stream(growing), by_stream(read(mixture, 9)))


def test_a_damaged_shard_of_a_language_in_memory_is_named(tmp_path):
    one = plain.write(tmp_path / "de", counts=(4,))
    two = plain.write(tmp_path / "fr", counts=(4,))
    shards = [
        dataclasses.replace(it.manifest.shards[0], file=f"{it.directory.name}/shard-0.tfrecord")
        for it in (one, two)
    ]
    figures = {"documents": 1, "tokens": 9, "bytes": 9, "examples": 4}
    languages = {"de": figures, "fr": figures}
    dataclasses.replace(one.manifest, shards=tuple(shards), languages=languages).save(tmp_path)
    damaged = tmp_path / "fr" / "shard-0.tfrecord"
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(bytes(content))
    with pytest.raises(ValueError, match="fr/shard-0.tfrecord cannot be read"):
        read(records.open(tmp_path), 1, shares=(0.5, 0.5))
    with pytest.raises(ValueError, match="are not those that"):
        damaged.write_bytes(bytes(content[:-1]))
        manifest = records.Manifest.load(tmp_path / "fr")
        short = dataclasses.replace(manifest.shards[0], bytes=len(content) - 1)
        dataclasses.replace(manifest, shards=(short,)).save(tmp_path / "fr")
        records.RecordSet(two.directory.parent, records.Manifest.load(tmp_path)).of_language("fr")


def test_a_language_read_too_often_is_warned_of():
    languages = {"en": {"tokens": 1000}, "eo": {"tokens": 10}}
    parts = mixtures.parts(languages, {"en": 0.9, "eo": 0.1}, 2000.0)
    assert str(parts["eo"]) == "10.00%, 200 tokens, 20.00 times its text"
    assert "(eo 20.0)" in mixtures.warning(parts)
    assert not mixtures.warning(mixtures.parts(languages, {"en": 0.99, "eo": 0.01}, 2000.0))
    assert not mixtures.warning(mixtures.parts({"en": {"tokens": 10}}, {"en": 1.0}, 2000.0))
