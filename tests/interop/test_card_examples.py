"""Claims about the code of model cards: for every head it runs in transformers."""

import contextlib
import io

import pytest

from bertjax.convert import card_examples, formats, heads
from tests.interop import exports

# A head -> the first family that has it.
FAMILIES = {head: it for it in reversed(exports.FAMILIES) for head in it.architectures}
pytestmark = pytest.mark.filterwarnings("ignore:Using the model-agnostic default")


def printed(directory):
    """Runs the example of a card and returns its output."""
    card = (directory / "README.md").read_text()
    code = card.split("```python\n")[1].split("```")[0].replace("PATH", str(directory))
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(code, "README.md", "exec"), {})
    return output.getvalue()


def test_every_head_has_an_example():
    assert card_examples.USES.keys() == heads.HEADS.keys()


@pytest.mark.parametrize(("head", "family"), [*FAMILIES.items()], ids=FAMILIES)
def test_the_code_of_a_card_runs(tmp_path, head, family):
    pytest.importorskip("transformers")
    made = exports.make(family, head, max_position_embeddings=64)
    formats.write(made, tmp_path / "model", format="huggingface")
    assert printed(tmp_path / "model")
