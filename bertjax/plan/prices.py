"""The prices of a TPU chip by the hour; one table, which `--price_per_chip_hour` overrides.

Google charges by the chip for every generation, although names of v2 to v5p count TensorCores.
"""

from __future__ import annotations

import dataclasses

_CATALOG = "skypilot-org/skypilot-catalog, catalogs/v8/gcp/vms.csv at commit 006059e0"
_ON_DEMAND_NOTE = "list price in US regions, taken from a catalog that carries no date of its own"
_SPOT_NOTE = "in us-central1, or where the generation is offered in the US; spot prices change"


@dataclasses.dataclass(frozen=True)
class Price:
    """US dollars per chip and hour; `date` is when the source was read, `note` how sure it is."""

    dollars_per_chip_hour: float
    date: str
    source: str
    note: str


# Generation -> (dollars, what else the note says) on demand, and on spot. The catalog lists whole
# machines; per chip that is v2-8 $4.50 / 4, v3-8 $8.00 / 4, v4-8 $12.88 / 4, v5litepod-1 $1.20,
# v5p-8 $16.80 / 4, v6e-4 $10.80 / 4. No row for tpu7x.
_DOLLARS = {
    "v2": ((1.125, ""), (0.34, "")),
    "v3": ((2.00, ""), (0.51, "")),
    "v4": ((3.22, ""), (0.92, "")),
    "v5e": ((1.20, "; $1.56 in europe-west4"), (0.245, "; up to $0.6 in other US regions")),
    "v5p": ((4.20, ""), (0.84, "; up to $1.68 in other US regions")),
    "v6e": ((2.70, "; $2.97 in Europe"), (0.54, "; up to $1.35 in other US regions")),
}


def price(generation: str, *, spot: bool) -> Price | None:
    """Returns the price of a generation ("v5e", ...), None where the catalog has none (tpu7x)."""
    if generation not in _DOLLARS:
        return None
    dollars, more = _DOLLARS[generation][spot]
    return Price(dollars, "2026-11", _CATALOG, (_SPOT_NOTE if spot else _ON_DEMAND_NOTE) + more)
