"""The site of docs/: every page can be reached, every link leads somewhere."""

import pathlib
import re
import runpy
import types

import pytest
import yaml

ROOT = pathlib.Path(__file__).parents[1]
HOOK = types.SimpleNamespace(**runpy.run_path(str(ROOT / "docs" / "site_pages.py")))
OURS = {**HOOK.OUTSIDE, **{f"docs/{it.name}": it.name for it in ROOT.glob("docs/*.md")}}


@pytest.fixture(scope="module")
def settings():
    class Loader(yaml.SafeLoader):
        """Leaves what Python makes of a tag to mkdocs."""

    Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)
    return yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader)


def listed(part):
    """Returns the pages of a part of the navigation."""
    if isinstance(part, str):
        return [part]
    values = part.values() if isinstance(part, dict) else part
    return [page for value in values for page in listed(value)]


def test_every_page_stands_once_in_the_navigation(settings):
    pages = listed(settings["nav"])
    assert sorted(pages) == sorted([*OURS.values(), *HOOK.API, HOOK.RECIPES])


@pytest.mark.parametrize("source", sorted(OURS))
def test_a_link_leads_to_a_page_or_to_the_repository(source, settings):
    text = (ROOT / source).read_text(encoding="utf-8")
    made = HOOK.linked(text, OURS[source], settings["repo_url"])
    for target in re.findall(r"\]\(([^)#\s]+)", made):
        page = (pathlib.PurePosixPath(OURS[source]).parent / target).as_posix()
        at_home = target.startswith(f"{settings['repo_url']}/blob/main/")
        assert "://" in target or page in OURS.values() or (ROOT / "docs" / page).is_file(), target
        assert not at_home or (ROOT / target.partition("/blob/main/")[2]).exists()


def test_a_link_to_no_file_is_an_error():
    with pytest.raises(ValueError, match="README.md links to docs/datta.md; there is no file"):
        HOOK.linked("[data](docs/datta.md)", "index.md", "https://here")


def test_links_are_those_of_github_and_of_the_site():
    text = "[a](docs/data.md#the-format) [b](notebooks/install.py) [c](https://x.y) [d](#here)"
    assert HOOK.linked(text, "index.md", "https://here") == (
        "[a](data.md#the-format) [b](https://here/blob/main/notebooks/install.py) "
        "[c](https://x.y) [d](#here)"
    )
    assert HOOK.linked("[a](../launch/README.md)", "training.md", "") == "[a](launch.md)"
    assert HOOK.linked("[a](../docs/data.md)", "launch.md", "") == "[a](data.md)"


def test_the_page_of_recipes_has_all_of_them_and_what_they_cost():
    page = HOOK.recipes_page()
    names = {path.stem for path in ROOT.glob("configs/[!_]*.py")}
    assert set(re.findall(r"^## (\w+)$", page, re.M)) == names
    assert re.search(r"^\| `bert_large` \| v5e-16 ", page, re.M)


def test_the_modules_whose_names_are_explained_are_there():
    for _, modules in HOOK.API.values():
        for name in modules:
            path = ROOT / name.replace(".", "/")
            assert path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def test_there_is_one_address_of_the_repository(settings):
    address = settings["repo_url"]
    assert f'url="{address}"' in (ROOT / "setup.py").read_text(encoding="utf-8")
    owner = address.removeprefix("https://github.com/")
    for path in [ROOT / "README.md", *ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("docs/*.md")]:
        text = path.read_text(encoding="utf-8")
        badges = re.findall(r"colab\.research\.google\.com/github/([\w-]+/[\w-]+)/blob", text)
        assert set(badges) <= {owner}
        assert set(re.findall(r"https://github\.com/bertjax/[\w-]+", text)) <= {address}
