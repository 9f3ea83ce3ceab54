"""What README, docs and the site name exists: options, files, flags, links, messages, recipes."""

import ast
import functools
import pathlib
import posixpath
import re
import runpy
import types

import numpy as np
import pytest
import yaml

from bertjax import __main__ as console
from bertjax import config as config_lib
from bertjax import recipes, tasks
from bertjax.convert import families

ROOT = pathlib.Path(__file__).parents[1]
SITE = types.SimpleNamespace(**runpy.run_path(str(ROOT / "docs" / "site_pages.py")))
# Source -> page of the site.
PAGES = {**SITE.OUTSIDE, **{f"docs/{it.name}": it.name for it in ROOT.glob("docs/*.md")}}
FOLDERS = "bertjax|data_pipelines|configs|launch|benchmarks|docs|tests|notebooks"
# Other texts for people: what the site shows of recipes, pages for Colab, the card of the model.
TEXTS = [
    *sorted(ROOT.glob("configs/[!_]*.py")),
    *sorted(ROOT.glob("notebooks/*.ipynb")),
    *sorted(ROOT.glob("bertjax/weights/*/README.md")),
    *sorted(ROOT.glob("launch/*.sh")),
]
# Names that look like ours: files of BERT's code and of our programs' outputs, and data or machines
# in front of a colon.
OTHER_FILES = ("create_pretraining_data.py", "glue.md")
OTHER_PREFIXES = re.compile(r"tfds|v\d\w*|\d+")
PICTURE = r"!\[([^\]\n]*)\]\(([^)\s]+)\)"
GAP = "\N{HORIZONTAL ELLIPSIS}"  # a value in a message


@functools.cache
def text_of(source):
    """The text of a page without HTML comments."""
    text = (ROOT / source).read_text(encoding="utf-8")
    return re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)


def sources(*folders):
    return [it.read_text("utf-8") for name in folders for it in sorted((ROOT / name).rglob("*.py"))]


@functools.cache
def flag_names():
    """The flags of all programs: ours, the benchmarks' and Beam's."""
    programs = "\n".join(sources("bertjax", "data_pipelines", "benchmarks"))
    defined = re.findall(r"DEFINE_\w+\(\s*\"(\w+)\"", programs)
    defined += re.findall(
        r"^    (\w+): .*(?:command_line\.option|_batch_size|_recipe)\(", programs, flags=re.M
    )
    defined += re.findall(r"flag=\"(\w+)\"", programs)
    defined += re.findall(r"\"--(\w+)", programs)
    for benchmark in sources("benchmarks"):  # some take a dataclass's fields or a table's keys
        defined += re.findall(r"^    (\w+): (?:str|int|float) = ", benchmark, flags=re.M)
        defined += re.findall(r"^    \"(\w+)\": [A-Z]\w+\(", benchmark, flags=re.M)
    from apache_beam.options import pipeline_options  # a second to import

    beam = pipeline_options.PipelineOptions([]).get_all_options()
    return {"help", "verbosity", "task", *defined, *beam}  # --task is optimum-cli's


@functools.cache
def option_names():
    names = {name for name, _ in config_lib.flatten(config_lib.default_config())}
    names |= {name.rsplit(".", depth)[0] for name in names for depth in (1, 2)}
    phases = ("phase2", "phase3")
    names |= {f"phases.{it}.{name}" for it in phases for name in config_lib.phase_config()}
    return names | {f"phases.{it}" for it in phases}


@functools.cache
def anchors(source):
    """The anchors of a page's headings, as GitHub and mkdocs.yml make them."""
    text = re.sub(r"^```.*?^```", "", text_of(source), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    shown = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings]
    return {re.sub(r"[^\w -]", "", it).strip().replace(" ", "-") for it in shown}


def dead_anchors(links, folder="."):
    """The links (page, anchor) to headings that no page has; pages are seen from a folder."""
    dead = []
    for target, anchor in links:
        page = posixpath.normpath(posixpath.join(folder, target))
        if anchor and page in PAGES and anchor.removeprefix("#") not in anchors(page):
            dead.append(f"{page}{anchor}")
    return dead


@functools.cache
def file_names():
    """Every file of the repository by its name."""
    folders = [it for it in ROOT.iterdir() if it.is_dir() and it.name in FOLDERS.split("|")]
    files = [it for folder in folders for it in folder.rglob("*.*")]
    return {it.name for it in [*files, *ROOT.glob("*.*"), *ROOT.glob(".ci/*")]}


@functools.cache
def is_recipe(name):
    try:
        recipes.load(name)
    except (FileNotFoundError, ValueError):
        return False
    return True


def missing(text):
    """What a text names and nobody has: options, recipes, files, modules and flags."""
    parts = (missing_options, missing_recipes, missing_paths, missing_flags)
    return set().union(*(part(text) for part in parts))


def missing_options(text):
    groups = "|".join({name.split(".")[0] for name in option_names() if "." in name})
    options = re.findall(r"(?:--|`)config\.([a-z_0-9]+(?:\.[a-z_0-9]+)*)", text)
    options += re.findall(r"(?<![\w./])config\.([a-z_0-9]+(?:\.[a-z_0-9]+)+)\b(?!\()", text)
    options += re.findall(rf"`((?:{groups})(?:\.[a-z_0-9]+)+)[`=]", text)
    others = {"json", "py", *vars(config_lib)}  # config.json, config.py and what the module holds
    options = {it for it in options if not it.endswith((".json", ".safetensors"))}
    return {it for it in options if it.split(".")[0] not in others} - option_names()


def missing_recipes(text):
    named = re.findall(r"`(?:--config=)?(\w+:[a-z0-9]\w*)`", text)
    named = [it for it in named if not OTHER_PREFIXES.fullmatch(it.split(":")[0])]
    named += re.findall(r"--config=([a-z][\w/:.]*\w)", text)
    return {it for it in named if "NAME" not in it and not is_recipe(it)}


def missing_paths(text):
    paths = re.findall(rf"(?<![\w/.-])((?:{FOLDERS})/[\w/.-]*\w)", text)
    paths += [
        "/".join(module.split("."))
        for module in re.findall(r"python -m ((?:bertjax|data_pipelines)(?:\.\w+)+)", text)
    ]
    paths = {
        it for it in paths
        if "NAME" not in it and not (ROOT / it).exists() and not (ROOT / f"{it}.py").exists()
    }  # fmt: skip
    files = re.findall(rf"`(?!(?:{FOLDERS})/)([\w./-]+\.(?:py|sh|md|ya?ml|toml|ipynb))`", text)
    known = {*OTHER_FILES, "NAME.py", *file_names()}
    return paths | {it for it in files if it.split("/")[-1] not in known}


def missing_flags(text):
    joined = re.sub(r"\\\n\s*", " ", text)
    names = "|".join(console.programs())
    command = rf"(?:python -m (?:bertjax|data_pipelines)\.\w+|\bbertjax (?:{names})\b)"
    spans = re.findall(rf"`(--[^`\n]*)`|{command}([^`\n]*)", joined)
    flags = re.findall(r"(?<!\S)\[?--([a-z_]+)(?![\w.])", " ".join(map(" ".join, spans)))
    return {it for it in flags if not {it, it.removeprefix("no")} & flag_names()}


@pytest.mark.parametrize("source", sorted(PAGES))
def test_what_a_page_names_exists(source):
    assert missing(text_of(source)) == set()
    SITE.linked(text_of(source), PAGES[source], "")  # an error where a link leads nowhere
    links = [
        (it[2] or pathlib.Path(source).name, it[3]) for it in SITE.LINK.findall(text_of(source))
    ]
    assert dead_anchors(links, posixpath.dirname(source)) == []


@pytest.mark.parametrize("path", TEXTS, ids=lambda it: it.stem)
def test_what_other_texts_for_people_name_exists(path):
    text = path.read_text("utf-8")
    assert missing(text.replace("bertjax/launch/", "launch/")) == set()  # in the folder of a clone


def test_pages_and_anchors_that_the_code_names_exist():
    links = []
    for text in [*sources("bertjax", "data_pipelines"), *(it.read_text("utf-8") for it in TEXTS)]:
        links += re.findall(r"\b((?:docs|launch|benchmarks)/\w+\.md|README\.md)(#[\w-]+)?", text)
    assert len(links) > 20
    assert {page for page, _ in links} - {*PAGES} == set()
    assert dead_anchors(links) == []
    assert dead_anchors([("docs/data.md", "#the-fromat")]) == ["docs/data.md#the-fromat"]


# Things that texts count, and numbers in words.
COUNTS = {
    "recipes": len(recipes.names()),
    "families": len(families.FAMILIES),
    "programs": len(console.programs()),
}
WORDS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def wrong_counts(text):
    """Claims such as "9 recipes" and "all nine families" that are not the code's number.

    A text that means a part says so by a word between: "two small recipes".
    """
    numbers = {word: number for number, word in enumerate(WORDS, 2)}
    claims = re.findall(rf"\b(\d+|{'|'.join(WORDS)})\s+({'|'.join(COUNTS)})\b", text.lower())
    return [
        f"{number} {things}"
        for number, things in claims
        if COUNTS[things] != (numbers[number] if number in numbers else int(number))
    ]


def test_the_counts_of_recipes_families_and_programs_are_the_codes():
    others = [ROOT / "setup.py", ROOT / "mkdocs.yml", *TEXTS]
    texts = [*map(text_of, PAGES), *(it.read_text("utf-8") for it in others)]
    assert [wrong for text in texts for wrong in wrong_counts(text)] == []
    assert wrong_counts("all nine families, 37\nrecipes and two small recipes") == [
        "nine families",
        "37 recipes",
    ]
    assert wrong_counts(f"its {COUNTS['recipes']} recipes") == []


def test_a_name_that_does_not_exist_is_found():
    for text, names in [
        ("--config.optimizer.weight_decay=0 --config.optimizer.decay=0", "optimizer.decay"),
        ("`configs/bert_base.py` and `configs/bert_huge.py`", "configs/bert_huge.py"),
        ("python -m bertjax.train and python -m bertjax.train_all", "bertjax/train_all"),
        ("python -m data_pipelines.build --input=x \\\n  --length_of=128", "length_of"),
        (
            "`--config.mode=3`, config.model.width and `model.remat_all`",
            "mode model.width model.remat_all",
        ),
        ("`albert:huge`, `etin:17m`, `ettin:17m`, `tfds:glue`", "albert:huge etin:17m"),
        ("--config=bert_bse and --config=configs/bert_base.py", "bert_bse"),
        ("`units.py`, `cloud_tpu.sh` and `tokenization/NAME.py`", "units.py"),
        ("bertjax start --input=x --hour=2", "hour"),
        ("`--nodo_lower_case`, `--lower_case`, `--distributed`", "lower_case"),
    ]:
        assert missing(text) == {*names.split()}


def test_a_link_leads_to_the_page_of_the_site_or_to_the_file_at_github():
    text = "[a](docs/data.md#the-format) [b](notebooks/install.py) [c](https://x.y) [d](#here)"
    assert SITE.linked(text, "index.md", "https://here") == (
        "[a](data.md#the-format) [b](https://here/blob/main/notebooks/install.py) "
        "[c](https://x.y) [d](#here)"
    )
    assert SITE.linked("[a](../launch/README.md)", "training.md", "") == "[a](launch.md)"
    with pytest.raises(ValueError, match="README.md links to docs/datta.md; there is no file"):
        SITE.linked("[data](docs/datta.md)", "index.md", "https://here")


def test_every_recipe_is_in_the_table_of_recipes_and_on_the_site_with_its_price():
    cells = "".join(re.findall(r"^\| (`configs/[^|]*) \|", text_of("docs/training.md"), re.M))
    assert sorted(re.findall(r"`(?:configs/)?(\w+)\.py`", cells)) == recipes.names()
    page = SITE.recipes_page()
    assert re.findall(r"^## (\w+)$", page, re.M) == recipes.names()
    assert re.search(r"^\| `bert_large` \| v5e-16 ", page, re.M)


def test_every_objective_is_in_the_table_of_options():
    lines = text_of("docs/training.md").splitlines()
    (row,) = [line for line in lines if line.startswith("| `config.pretraining.objective`")]
    assert not [name for name in tasks.OBJECTIVES if f"`{name}`" not in row]


def test_the_navigation_has_every_page_and_the_modules_of_the_api_are_there():
    class Loader(yaml.SafeLoader):
        """Leaves Python's tags to mkdocs."""

    Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)
    settings = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader)
    listed = re.findall(r"[\w/]+\.md", str(settings["nav"]))
    assert sorted(listed) == sorted([*PAGES.values(), *SITE.API, SITE.RECIPES])
    modules = [name for _, names in SITE.API.values() for name in names]
    assert missing(" ".join(f"python -m {name}" for name in modules)) == set()
    # One address of the repository, in all places.
    address = settings["repo_url"]
    assert f'REPOSITORY = "{address}"' in (ROOT / "setup.py").read_text(encoding="utf-8")
    for path in [ROOT / "README.md", *ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("docs/*.md")]:
        text = path.read_text(encoding="utf-8")
        badges = re.findall(r"colab\.research\.google\.com/github/([\w-]+/[\w-]+)/blob", text)
        badges += re.findall(r"https://github\.com/(bertjax/[\w-]+)", text)
        assert set(badges) <= {address.removeprefix("https://github.com/")}


def pages_behind(source):
    """The pages that a page links to, on GitHub as on the site."""
    links = [it[2] for it in SITE.LINK.findall(text_of(source))]
    folder = posixpath.dirname(source)
    return {posixpath.normpath(posixpath.join(folder, it)) for it in links} & {*PAGES}


def test_every_page_is_two_clicks_from_the_first_one():
    first = pages_behind("README.md")
    second = {page for source in first for page in pages_behind(source)}
    assert {*PAGES} - {"README.md"} - first - second == set()


def test_every_picture_has_a_text_that_says_what_it_shows():
    texts = {path: text_of(path) for path in PAGES}
    for path in TEXTS:
        texts[str(path.relative_to(ROOT))] = path.read_text("utf-8")
    pictures = [(path, *it) for path, text in texts.items() for it in re.findall(PICTURE, text)]
    assert len(pictures) > 5
    assert [(path, target) for path, said, target in pictures if len(said.split()) < 3] == []
    assert not [path for path, text in texts.items() if re.search(r"<img\b", text)]


@functools.cache
def messages():
    """All texts of the source, with GAP in place of values."""
    texts = [it.read_text(encoding="utf-8") for it in sorted(ROOT.glob("launch/*.sh"))]
    for source in sources("bertjax", "data_pipelines"):
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(re.sub(r"%[\d.]*[sdrfg]", GAP, node.value))
            elif isinstance(node, ast.JoinedStr):
                parts = [getattr(part, "value", None) for part in node.values]
                texts.append("".join(x if isinstance(x, str) else GAP for x in parts))
    return "\n".join(re.sub(r"\\\n\s*|\" \"|\"\s+\\\s*\"", "", text) for text in texts)


def is_written(message):
    """Whether one text of the source has the parts of a message, in their order."""
    parts = [re.escape(part.strip()) for part in message.split("...") if len(part.strip()) > 2]
    return re.search("[^\n]*?".join(parts), messages()) is not None


def test_every_message_of_the_troubleshooting_page_is_one_of_the_code():
    rows = re.findall(
        r"^\| `(.+)`(?: \(of \w+\))? \| .+ \|$", text_of("docs/troubleshooting.md"), re.M
    )
    assert len(rows) > 45
    assert [it for it in rows if not is_written(it)] == []
    assert not is_written("is not a flag. Did you ... meen")


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
def test_a_modality_of_the_users_is_learnt_in_sixty_lines(tmp_path, monkeypatch, capsys):
    (block,) = re.findall(r"```python\n(.*?)```", text_of("docs/beyond_text.md"), flags=re.DOTALL)
    assert block.count("\n") <= 60
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "example"}
    exec(compile(block, "docs/beyond_text.md", "exec"), names)
    scores = names["done"].scores
    assert scores["eval/heldout/value_loss"] < 0.5 * scores["eval/heldout/mean_loss"]
    assert names["tuned"].scores["eval/dev/accuracy"] > 0.9
    assert "(5, 32)" in capsys.readouterr().out


@pytest.mark.slow
def test_the_example_of_the_readme_runs_and_learns(capsys):
    (block,) = re.findall(r"```python\n(.*?)```", text_of("README.md"), flags=re.DOTALL)
    names = {"__name__": "readme"}
    exec(compile(block, "README.md", "exec"), names)
    assert np.log(2) > names["loss"] > 0  # below what a coin scores on two classes
    assert "loss of the last step" in capsys.readouterr().out


def test_documents_print_what_the_gate_runs():
    script = (ROOT / ".ci/run").read_text("utf-8").replace("\\\n", " ")
    calls = re.findall(r"^documented (\S+)\s+(['\"])((?:(?!\2).)+)\2", script, re.MULTILINE)
    assert len(calls) > 4
    for document, _, command in calls:
        lines = map(str.strip, (ROOT / document).read_text("utf-8").splitlines())
        assert command in lines, f"{document} does not print: {command}"
