"""Another objective with an option of its own is one module and one row: here they are."""

import dataclasses
import sys

import pytest
from absl import flags

from bertjax import config as config_lib
from bertjax import jobs, tasks
from bertjax.cli import command_line, recipe_flag
from bertjax.options.option import ABOVE_0, Option
from bertjax.tasks import pretraining
from bertjax.training import config_faults

# The module: a task, its options, and how it is made.
OPTIONS = {"warmth": Option(1.0, "warm_tokens: factor on the loss", ABOVE_0)}


@dataclasses.dataclass(frozen=True)
class WarmTokens(pretraining.Pretraining):
    """Masked tokens, whose loss counts `warmth` times."""

    warmth: float = 1.0

    @property
    def objectives(self):
        return {name: self.warmth * weight for name, weight in super().objectives.items()}


def of_options(sizes, options):
    return WarmTokens(sizes, pair_loss=options.pair_loss, warmth=options.warmth)


@pytest.fixture(autouse=True)
def row(monkeypatch):
    monkeypatch.setitem(
        tasks.OBJECTIVES, "warm_tokens", tasks.Objective(of_options, options=OPTIONS)
    )


def make_config(**changes):
    config = config_lib.default_config()
    config.data.train_dir = "records"
    config.model.update(vocab_size=90, dtype="float32")
    config.pretraining.update(objective="warm_tokens", **changes)
    return config


def test_the_task_reads_the_option_and_a_saved_config_without_it_has_its_default():
    config = make_config(warmth=2.0)
    config_faults.validate(config)
    task = jobs.JOBS["pretraining"].task(config)
    assert task.objectives == {"mlm_loss": 2.0, "nsp_loss": 2.0}
    saved = config.to_dict()
    del saved["pretraining"]["warmth"]
    assert config_lib.completed(saved)["pretraining"]["warmth"] == 1.0


def test_the_command_line_sets_the_option_and_help_explains_it(monkeypatch):
    arguments = ["program", "--config=smoke", "--config.pretraining.warmth=3"]
    monkeypatch.setattr(sys, "argv", arguments)
    values = flags.FlagValues()
    recipe_flag.define(flag_values=values)
    values(arguments)
    assert values.config.pretraining.warmth == 3.0
    monkeypatch.setattr(command_line.flags, "FLAGS", values)
    (line,) = command_line._help("warmth")
    assert "--config.pretraining.warmth=1.0" in line and line.endswith(
        "warm_tokens: factor on the loss"
    )


def test_a_value_out_of_range_and_an_objective_that_does_not_read_it_are_faults():
    with pytest.raises(ValueError, match=r"pretraining\.warmth is 0.0; it must be above 0"):
        config_faults.validate(make_config(warmth=0.0))
    config = make_config(warmth=2.0)
    config.pretraining.objective = "masked_tokens"
    with pytest.raises(ValueError, match=r"warmth is 2.0, but .* only 'warm_tokens' reads it"):
        config_faults.validate(config)
