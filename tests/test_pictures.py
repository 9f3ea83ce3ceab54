"""Pictures show what they are given: heads, counts of records, points in a plane, curves."""

import io
import json
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib import font_manager, ft2font

from bertjax import pictures
from bertjax.interactive import fonts
from tests import small_records


def saved(picture):
    """The picture as SVG, which it can be written as."""
    content = io.StringIO()
    picture.savefig(content, format="svg")
    return content.getvalue()


def test_each_head_has_its_map_and_the_tokens_their_names():
    weights = np.random.default_rng(0).dirichlet(np.ones(3), size=(5, 3))
    picture = pictures.attention_heads(["[CLS]", "a", "[SEP]"], weights)
    assert len(picture.axes) == 5
    for axes, expected in zip(picture.axes, weights, strict=True):
        np.testing.assert_array_equal(axes.images[0].get_array(), expected)
        assert [it.get_text() for it in axes.get_yticklabels()] == ["[CLS]", "a", "[SEP]"]
    assert saved(picture).startswith("<?xml")


@pytest.mark.parametrize("shape", [(2, 4, 3, 3), (4, 3, 2), (4, 2, 2)])
def test_weights_of_other_tokens_or_of_all_layers_are_an_error(shape):
    with pytest.raises(ValueError, match=r"3 tokens need \(heads, 3, 3\): give one layer"):
        pictures.attention_heads(["a", "b", "c"], np.zeros(shape))


def counted(axes: Any) -> float:
    return sum(bar.get_height() for bar in axes.patches)


@pytest.mark.parametrize("static", [True, False])
def test_the_histograms_count_every_example(tmp_path, static):
    directory = small_records.write(tmp_path / "records", counts=(24, 16), is_masked=static)
    picture = pictures.record_lengths(directory)
    assert [axes.get_title() for axes in picture.axes] == [
        "tokens of an example", *["masked tokens of an example"] * static
    ]  # fmt: skip
    for axes in picture.axes:
        assert counted(axes) == 40
    few = pictures.record_lengths(directory, examples=7).axes[0]
    assert counted(few) == 7


def test_two_dimensions_keep_the_distances_of_what_lies_in_a_plane():
    rng = np.random.default_rng(0)
    basis, _ = np.linalg.qr(rng.normal(size=(6, 2)))
    plane = rng.normal(size=(9, 2)) * [3, 1]
    points, shares = pictures.two_dimensions((plane @ basis.T + 5).astype(np.float32))
    np.testing.assert_allclose(distances(points), distances(plane), atol=1e-5)
    assert shares[0] > shares[1] and shares.sum() == pytest.approx(1)


def distances(points):
    return np.linalg.norm(points[:, None] - points[None], axis=-1)


def test_points_have_the_colours_of_their_labels_and_their_texts():
    vectors = np.random.default_rng(0).normal(size=(4, 8))
    picture = pictures.embeddings(vectors, labels=["b", "a", "b", "b"], texts=["w", "x", "y", "z"])
    axes: Any = picture.axes[0]
    assert [it.get_text() for it in axes.get_legend().get_texts()] == ["b", "a"]
    assert [len(np.asarray(it.get_offsets())) for it in axes.collections] == [3, 1]
    assert [it.get_text() for it in axes.texts] == ["w", "x", "y", "z"]
    points, _ = pictures.two_dimensions(vectors)
    np.testing.assert_allclose(np.asarray(axes.collections[1].get_offsets())[0], points[1])
    (all_of_them,) = pictures.embeddings(vectors).axes[0].collections
    assert len(np.asarray(all_of_them.get_offsets())) == 4


@pytest.mark.parametrize(
    ("vectors", "options", "fault"),
    [
        (np.zeros((2, 4)), {}, "there are 2 vectors; a plane needs at least three"),
        (np.ones((3, 4)), {}, "the vectors are all the same"),
        (np.eye(3), {"labels": ["a"]}, "labels has 1 items; give one for each of the 3 vectors"),
        (np.eye(3), {"texts": list("abcd")}, "texts has 4 items; give one for each of the 3"),
    ],
)
def test_what_cannot_be_drawn_is_an_error(vectors, options, fault):
    with pytest.raises(ValueError, match=fault):
        pictures.embeddings(vectors, **options)


def test_the_curves_of_a_run_are_those_of_its_metrics(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"metrics\.jsonl does not exist; give the workdir"):
        pictures.curves(tmp_path)
    lines = [{"step": step, "train/loss": 5.0 - step} for step in (1, 2, 3)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (drawn,) = pictures.curves(tmp_path).axes[0].lines
    np.testing.assert_array_equal(drawn.get_ydata(), [4, 3, 2])


def characters_of(name):
    return set(ft2font.FT2Font(font_manager.findfont(name)).get_charmap())


def test_tokens_of_any_script_get_a_font_that_is_there_or_a_line_that_says_which(
    caplog, monkeypatch
):
    usual = fonts.families(["plain", "ünï"])
    assert usual == matplotlib.rcParams["font.family"] and not caplog.records
    others = characters_of("STIXGeneral") - characters_of("DejaVu Sans")
    rare = chr(min(code for code in others if chr(code).isprintable()))
    weights = np.full((1, 2, 2), 0.5)
    for picture in (
        pictures.attention_heads([rare, "b"], weights),
        pictures.embeddings(np.eye(3), labels=["a", "b", rare], texts=[rare, "b", "c"]),
    ):
        picture.savefig(io.BytesIO(), format="png")  # a missing glyph would be a warning
    assert not caplog.records
    monkeypatch.setattr(fonts, "_characters", lambda path: frozenset(range(128)))
    for text, package in (
        ("漢", "cjk"),
        ("か", "cjk"),
        ("한", "cjk"),
        ("क", "core"),
        ("ก", "core"),
    ):
        caplog.clear()
        fonts.families([f"a{text}"])
        assert f"such as {text} (U+{ord(text):04X})" in caplog.text
        assert f"apt install fonts-noto-{package}" in caplog.text
