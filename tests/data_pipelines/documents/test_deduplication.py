import numpy as np
import pytest

from data_pipelines import build
from data_pipelines.documents import deduplication, sources
from data_pipelines.reports import report
from tests.data_pipelines import conftest, decoded


def test_the_first_of_equal_hashes_is_new_in_whatever_parts_they_come():
    rng = np.random.default_rng(0)
    seen, known = deduplication.Seen(), set()
    for size in (1, 7, 0, 300, 2, 2, 50, 1000, 3, 1):
        hashes = rng.integers(0, 900, size, np.uint64)
        expected = [one not in known and not known.add(one) for one in hashes.tolist()]
        assert seen.add(hashes).tolist() == expected


def records_of(tmp_path, vocabulary, text, name, **changes):
    """The shards of a build, as bytes, and its manifest."""
    path, output = tmp_path / "text.txt", tmp_path / name
    path.write_text(text)
    manifest = build.build(conftest.options(path, vocabulary, output, **changes))
    return decoded.files(output, "*.tfrecord*"), manifest


@pytest.mark.slow
def test_records_without_copies_are_those_of_a_text_without_them(
    tmp_path, vocabulary_directory, monkeypatch
):
    monkeypatch.setattr(deduplication, "BATCH_CHARACTERS", 2000)
    monkeypatch.setattr("data_pipelines.building.blocks.BLOCK_CHARACTERS", 3000)
    documents = conftest.made_up_text(40).split("\n\n")
    menu, short = "Kalo miren tus vor pe sha dim gol.", "Ka lo."
    spaced = [one.replace(" ", "  ", 3) for one in documents[::2]]
    copied = "\n\n".join([*documents, *spaced, *documents[:5]])
    with_menus = [f"{menu}\n{one}\n{short}" for one in documents]
    without = [with_menus[0], *(f"{one}\n{short}" for one in documents[1:])]
    lines = {"lines": 40, "emptied documents": 1}
    for rule, workers, text, clean, counts in (
        ("documents", 1, copied, "\n\n".join(documents), {"documents": 25}),
        ("lines", 2, "\n\n".join([*with_menus, menu]), "\n\n".join(without), lines),
    ):
        expected, _ = records_of(tmp_path, vocabulary_directory, clean, f"{rule}-clean")
        flags = {"deduplicate": rule, "num_workers": workers}
        shards, manifest = records_of(tmp_path, vocabulary_directory, text, rule, **flags)
        assert shards == expected
        assert manifest.statistics["removed_copies"] == counts
        shown = "\n".join(report.lines(manifest)).split("copies removed")[1]
        assert f"{counts[rule]} {rule}" in shown
        _, manifest = records_of(tmp_path, vocabulary_directory, text, f"{rule}-all")
        assert f"--deduplicate={rule}" in " ".join(report.lines(manifest))


def test_lines_of_markup_are_not_removed():
    units = [sources.Unit("wikipedia", "dump.xml", 1)]
    assert "dump.xml are markup" in (deduplication.fault("lines", units) or "")
    assert deduplication.fault("documents", units) is None
