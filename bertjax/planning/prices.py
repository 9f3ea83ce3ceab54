"""What a TPU chip costs by the hour; one table, which `--price_per_chip_hour` overrides.

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


def _on_demand(dollars: float, note: str = _ON_DEMAND_NOTE) -> Price:
    return Price(dollars, "2026-11", _CATALOG, note)


def _spot(dollars: float, highest: float | None = None) -> Price:
    elsewhere = f"; up to ${highest} in other US regions" if highest else ""
    return Price(dollars, "2026-11", _CATALOG, _SPOT_NOTE + elsewhere)


# The catalog lists whole machines; per chip that is v2-8 $4.50 / 4, v3-8 $8.00 / 4,
# v4-8 $12.88 / 4, v5litepod-1 $1.20, v5p-8 $16.80 / 4, v6e-4 $10.80 / 4. No row for tpu7x.
_ON_DEMAND = {
    "v2": _on_demand(1.125),
    "v3": _on_demand(2.00),
    "v4": _on_demand(3.22),
    "v5e": _on_demand(1.20, _ON_DEMAND_NOTE + "; $1.56 in europe-west4"),
    "v5p": _on_demand(4.20),
    "v6e": _on_demand(2.70, _ON_DEMAND_NOTE + "; $2.97 in Europe"),
}
_SPOT = {
    "v2": _spot(0.34),
    "v3": _spot(0.51),
    "v4": _spot(0.92),
    "v5e": _spot(0.245, 0.60),
    "v5p": _spot(0.84, 1.68),
    "v6e": _spot(0.54, 1.35),
}


def price(generation: str, *, spot: bool) -> Price | None:
    """Returns the price of a generation ("v5e", ...), None where the catalog has none (tpu7x)."""
    return (_SPOT if spot else _ON_DEMAND).get(generation)
