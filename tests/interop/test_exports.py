"""Claims about the exports of every family and head, as the installed transformers loads them."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from bertjax.convert import families  # noqa: E402
from tests.interop import exports  # noqa: E402


@pytest.mark.slow
def test_every_family_and_head_loads_without_a_word(tmp_path):
    transformers.utils.logging.disable_progress_bar()
    exports.write(tmp_path)
    found = {
        f"{family.model_type} {head}": exports.faults(tmp_path / family.model_type / head)
        for family in families.FAMILIES.values()
        for head in family.architectures
    }
    assert {name: faults for name, faults in found.items() if faults} == {}
    assert len(found) >= 46


def test_faults_of_an_export_are_told(tmp_path):
    """A key that is missing is seen, so that the claim above can fail."""
    exports.write(tmp_path, model_types=("distilbert",))
    target = tmp_path / "distilbert" / "masked_lm"
    transformers.DistilBertModel.from_pretrained(target).save_pretrained(target)
    assert any("missing_keys" in fault for fault in exports.faults(target))
