import pytest

from bertjax.options import faults

TABLE = {"learnt": 1, "rotary": 2, "none": 3}


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (faults.wrong("config.seeds", 0, "at least 1"), "config.seeds is 0; it must be at least 1"),
        (
            faults.wrong("--size", "x", "a number", "give --size=8"),
            "--size is 'x'; it must be a number: give --size=8",
        ),
        (
            faults.unread("config.a", 3, "the layer has no window", 0),
            "config.a is 3, but the layer has no window: leave it at 0",
        ),
        (
            faults.unknown("layer", "lerant", TABLE),
            "layer is 'lerant'; known are learnt, rotary, none. Did you mean learnt?",
        ),
        (faults.unknown("layer", "x", {}), "layer is 'x'; known are none"),
    ],
)
def test_a_message_names_option_value_and_what_to_do(fault, message):
    assert isinstance(fault, ValueError)
    assert str(fault) == message


def test_a_long_value_is_cut_in_its_middle():
    message = str(faults.wrong("a", "x" * 10_000, "short"))
    assert len(message) < 300
    assert message.endswith("x'; it must be short")


def test_all_faults_are_reported_at_once():
    faults.check("the config cannot be used", [])
    with pytest.raises(ValueError, match="^the config cannot be used:\n  a is 1; .*\n  b$"):
        faults.check("the config cannot be used", [faults.wrong("a", 1, "at least 2"), "b"])
