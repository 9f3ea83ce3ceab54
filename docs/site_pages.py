"""The hook of mkdocs.yml: pages that lie outside of docs/, those written here, and links.

The same Markdown is right on GitHub and on the site: a link names a file of the repository, and
here it becomes the page that is made of this file, or leads to the file at GitHub.
"""

from __future__ import annotations

import ast
import pathlib
import posixpath
import re
from typing import Any

ROOT = pathlib.Path(__file__).parents[1]

# File of the repository -> page of the site; those of docs/ keep their names.
OUTSIDE = {
    "README.md": "index.md",
    "launch/README.md": "launch.md",
    "benchmarks/README.md": "benchmarks.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
}

# Page -> its title and the modules whose public names it explains. Nothing is imported.
API = {
    "api/python.md": ("bertjax.run and bertjax.load", ["bertjax.interactive"]),
    "api/models.md": ("bertjax.models", ["bertjax.models"]),
    "api/inference.md": ("bertjax.inference", ["bertjax.inference"]),
    "api/recipes.md": ("bertjax.recipes", ["bertjax.recipes"]),
    "api/pictures.md": ("bertjax.pictures", ["bertjax.interactive.pictures"]),
    "api/writers.md": ("Writers of your own", ["bertjax.training.run_writers"]),
}

RECIPES = "recipes.md"
LINK = re.compile(r"(!?)\[([^\]\n]*)\]\(([^)#\s]*)(#[^)\s]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Returns the files of docs/ with those that lie elsewhere and those that are written here."""
    from mkdocs.structure import files as mkdocs_files  # who only reads the tables needs no mkdocs

    made = {page: (ROOT / source).read_text(encoding="utf-8") for source, page in OUTSIDE.items()}
    made |= {page: api_page(title, modules) for page, (title, modules) in API.items()}
    made[RECIPES] = recipes_page()
    for page, text in made.items():
        files.append(mkdocs_files.File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Returns a page whose links lead to pages of the site."""
    if page.file.src_uri == OUTSIDE["CHANGELOG.md"]:  # it has all words, but explains none
        page.meta["search"] = {"boost": 0.1}
    if page.file.src_uri == RECIPES or page.file.src_uri in API:
        return markdown
    return linked(markdown, page.file.src_uri, config.repo_url)


def on_post_build(config: Any) -> None:
    """Checks that the pages of the API show every public name.

    Raises:
      ValueError: if one is not there; mkdocstrings leaves out names without a docstring.
    """
    for page, (_, modules) in API.items():
        file = pathlib.Path(config.site_dir) / page.removesuffix(".md") / "index.html"
        shown = file.read_text(encoding="utf-8")
        names = [f"{module}.{name}" for module in modules for name in public_names(module)]
        missing = [name for name in names if f'id="{name}"' not in shown]
        if missing:
            raise ValueError(f"{page} lacks {', '.join(missing)}: do they have docstrings?")


def public_names(module: str) -> list[str]:
    """Returns `__all__` of a module, which is not imported."""
    path = ROOT.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    raise ValueError(f"{file} has no __all__")


def linked(markdown: str, page: str, repository: str) -> str:
    """Returns the Markdown of a page, its links to files of the repository turned to the site's.

    A link to a file without a page leads to the repository.

    Raises:
      ValueError: if a link leads to a file that is not there.
    """
    sources = {made: source for source, made in OUTSIDE.items()}
    source = sources.get(page, f"docs/{page}")

    def replaced(match: re.Match[str]) -> str:
        picture, text, target, anchor = match.groups(default="")
        if not target or "://" in target:
            return match[0]
        file = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        found = page_of(file)
        if found is None:
            if not (ROOT / file).exists():
                raise ValueError(f"{source} links to {target}; there is no file {file}")
            return f"{picture}[{text}]({repository}/blob/main/{file}{anchor})"
        relative = posixpath.relpath(found, posixpath.dirname(page) or ".")
        return f"{picture}[{text}]({relative}{anchor})"

    return LINK.sub(replaced, markdown)


def page_of(source: str) -> str | None:
    """Returns the page that a file of the repository becomes, None if it becomes none."""
    if source in OUTSIDE:
        return OUTSIDE[source]
    is_there = source.startswith("docs/") and (ROOT / source).is_file()
    return source.removeprefix("docs/") if is_there else None


def api_page(title: str, modules: list[str]) -> str:
    """Returns the page of some modules, as mkdocstrings reads it."""
    return "\n\n".join([f"# {title}", *(f"::: {module}" for module in modules)]) + "\n"


def recipes_page() -> str:
    """Returns what each recipe says of itself, after the table of planned time and price."""
    plan = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
    table = plan.partition("<!-- plan_recipes: begin -->")[2].partition("<!-- plan_recipes: end")[0]
    if not table:
        raise ValueError("docs/scaling.md has no table between the marks plan_recipes")
    parts = [
        "# Recipes",
        "`--config=NAME` takes one of them, from any folder. [Training](training.md#recipes) has "
        "sizes and steps side by side.",
        "## Planned time and price",
        table.strip(),
    ]
    for path in sorted((ROOT / "configs").glob("[!_]*.py")):
        said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        first, _, rest = said.partition("\n")
        parts += [f"## {path.stem}", first, f"```text\n{rest.strip()}\n```"]
    return "\n\n".join(parts) + "\n"
