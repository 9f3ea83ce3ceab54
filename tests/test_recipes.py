"""Claims about where a recipe is found, and what is said of one that is not there."""

import importlib
import pathlib
import sys

import pytest
from absl import flags

from bertjax import recipes
from bertjax.cli import recipe_flag

CONFIGS = pathlib.Path(__file__).parents[1] / "configs"
OF_MINE = """
from bertjax.config import default_config

def get_config(size="3"):
    config = default_config()
    config.seed = int(size)
    return config
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """A folder that holds no recipe, as a notebook's."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_recipe_is_found_from_any_folder_by_name_and_by_path():
    path = CONFIGS / "bert_base.py"
    for recipe in ("bert_base", "bert_base.py", "configs/bert_base.py", str(path)):
        assert recipes.find(recipe) == path
        config = recipes.load(recipe)
        assert config.is_locked and config.mesh.data == 4


def test_every_file_of_configs_is_in_the_table_with_a_description():
    table = recipes.table()
    assert list(table) == recipes.names()
    assert set(table) == {path.stem for path in CONFIGS.glob("*.py")}
    assert table["smoke"].startswith("A minute on a laptop: two layers of 64 on random tokens")
    assert all(table.values())


def test_what_follows_the_colon_is_the_recipes_argument():
    for recipe, options in {
        "glue:stsb": {"dataset": "glue", "name": "stsb"},
        "configs/squad.py:v2": {"dataset": "squad", "name": "v2", "num_epochs": 2.0},
        "conll:feature_based": {"dataset": "conll", "feature_based": True},
        "classification:regression": {"dataset": "table", "is_regression": True},
        "embeddings:simcse": {"dataset": "embeddings", "loss": "simcse", "max_seq_length": 32},
    }.items():
        assert options.items() <= recipes.load(recipe).finetuning.to_dict().items()
    with pytest.raises(ValueError, match="smoke takes no argument, but 'large' follows"):
        recipes.load("smoke:large")
    for name in "albert", "classification", "conll", "embeddings", "ettin", "roberta", "squad":
        with pytest.raises(ValueError, match=r"is 'huge'; known are \w+, \w+"):
            recipes.load(f"{name}:huge")


def test_a_family_is_one_file_of_several_sizes():
    base = dict.fromkeys(
        ("albert", "electra", "mmbert", "modernbert", "roberta", "spanbert", "xlm_r"), "base"
    )
    for family, usual in (base | {"ettin": "150m"}).items():
        sizes = importlib.import_module(f"configs.{family}").SIZES
        configs = {size: recipes.load(f"{family}:{size}") for size in sizes}
        assert recipes.load(family) == configs[usual]
        widths = {(it.model.num_hidden_layers, it.model.hidden_size) for it in configs.values()}
        assert len(widths) == len(sizes) > 1


def test_a_file_that_is_there_comes_before_a_recipe_of_its_name(elsewhere):
    for name in ("mine.py", "bert_base.py", "configs/bert_base.py"):
        path = elsewhere / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(OF_MINE)
        assert recipes.load(name).seed == recipes.load(str(path)).seed == 3
        assert recipes.load(f"{name}:7").seed == 7


def test_an_unknown_recipe_is_an_error_that_lists_the_known():
    for recipe in ("bert_bas", "other/bert_base.py", "configs/bert_bas.py", "glu:rte"):
        with pytest.raises(FileNotFoundError) as caught:
            recipes.load(recipe)
        assert f"no recipe {recipe.split(':')[0]}:" in str(caught.value)
        assert ", ".join(recipes.names()) in str(caught.value)
    with pytest.raises(FileNotFoundError, match=r"Did you mean bert_mini\?"):
        recipes.load("bert_mnii")
    with pytest.raises(ValueError, match=r"'xlrge'; known are .*Did you mean xlarge\?"):
        recipes.load("albert:xlrge")


def test_a_misspelt_option_of_a_recipe_is_named_with_the_one_that_may_be_meant(tmp_path):
    path = tmp_path / "mine.py"
    for line, message in [
        ("config.seedz = 1", "config.seedz is not an option. Did you mean config.seed?"),
        (
            "config.model.update(hiden_size=1)",
            "Did you mean config.model.hidden_size?",
        ),
        ("config['lerning'] = 1", "config.lerning is not an option"),
    ]:
        path.write_text(
            "from bertjax.config import default_config\n"
            f"def get_config():\n    config = default_config()\n    {line}\n    return config\n"
        )
        with pytest.raises(AttributeError) as caught:
            recipes.load(str(path))
        assert str(caught.value).endswith(message) and len(str(caught.value)) < 300


def test_a_flag_has_a_default_recipe_and_options_after_it(monkeypatch):
    def parsed(*arguments):
        values = flags.FlagValues()
        monkeypatch.setattr(sys, "argv", ["program", *arguments])  # where ml_collections looks
        recipe_flag.define("glue", values)
        values(sys.argv)
        return values.config

    assert parsed().finetuning.name == "rte"
    assert parsed("--config.seed=5").seed == 5
    assert parsed("--config=glue:cola", "--config.seed=5").finetuning.name == "cola"
