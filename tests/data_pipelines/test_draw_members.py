"""Members of clusters: one a pass, all before one comes again, on one side of a split."""

import collections

import pytest

from data_pipelines import draw_members
from data_pipelines.documents import sources

CLUSTERS = {
    f"c{n}": [f"{'ACDEFGHIKL'[n % 10]}{'M' * m}K" for m in range(1 + n % 5)] for n in range(100)
}


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "members.tsv"
    lines = ["cluster\tsequence"]
    lines += [f"{name}\t{it}" for name, members in CLUSTERS.items() for it in members]
    path.write_text("\n".join(lines) + "\n")
    return path


def options(table, **changes):
    given = {"output": str(table.parent / "members.fasta"), "passes": 3}
    return draw_members.Options(input=str(table), **(given | changes))


def test_each_pass_has_one_member_of_each_cluster_and_none_again_before_all(table):
    counts = draw_members.draw(options(table))
    assert counts == draw_members.Counts(100, sum(map(len, CLUSTERS.values())), 300)
    drawn = collections.defaultdict(list)
    for document in sources.documents(str(table.parent / "members.fasta")):
        drawn[document.id.split("#")[0]].append(document.text)
    assert drawn.keys() == CLUSTERS.keys()
    for name, members in CLUSTERS.items():
        assert len(drawn[name]) == 3 and {*drawn[name]} <= {*members}
        assert len({*drawn[name]}) == min(3, len(members))
    firsts = {
        CLUSTERS[name].index(texts[0]) for name, texts in drawn.items() if len(CLUSTERS[name]) == 5
    }
    assert len(firsts) > 2  # by chance, not by place


def test_members_of_a_cluster_are_on_one_side_of_a_split(table):
    draw_members.draw(options(table))
    sides = [
        {
            document.id.split("#")[0]
            for document in sources.documents(
                str(table.parent / "members.fasta"),
                sources.Reading(split=split, heldout_fraction=0.4),
            )
        }
        for split in ("train", "heldout")
    ]
    assert all(len(side) > 20 for side in sides) and not sides[0] & sides[1]


def test_the_same_seed_gives_the_same_file_and_another_another(table):
    files = {}
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        draw_members.draw(options(table, output=str(table.parent / name), seed=seed))
        files[name] = (table.parent / name).read_bytes()
    assert files["a"] == files["b"] != files["c"]


def test_what_is_no_table_of_clusters_is_named(table):
    with pytest.raises(ValueError, match=r"members.tsv:2 has no 'family' or no 'sequence'"):
        draw_members.draw(options(table, cluster_column="family"))
    draw_members.draw(options(table))
    with pytest.raises(FileExistsError, match="exists; choose another name"):
        draw_members.draw(options(table))
    with table.open("a") as file:
        file.write("c0\tAK\n")
    with pytest.raises(ValueError, match="the cluster 'c0' stands in two places"):
        draw_members.draw(options(table, overwrite=True))
    assert (table.parent / "members.fasta").read_text().count(">") == 300  # the one before stays
