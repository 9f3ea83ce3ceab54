from __future__ import annotations

import pytest

from bertjax.plan import prices, topologies


@pytest.mark.parametrize("generation", [name for name in topologies.known() if name != "tpu7x"])
def test_spot_is_cheaper_than_on_demand_and_both_name_date_and_source(generation):
    spot, on_demand = (prices.price(generation, spot=spot) for spot in (True, False))
    assert spot and on_demand
    assert 0 < spot.dollars_per_chip_hour < on_demand.dollars_per_chip_hour
    for price in (spot, on_demand):
        assert price.date and price.source and price.note


def test_prices_are_by_the_chip_although_machines_are_listed():
    """v5p-8 is a machine of 4 chips (8 TensorCores) for $16.80, v6e-4 one of 4 for $10.80."""
    machines = {"v5p-8": 16.80, "v6e-4": 10.80, "v2-8": 4.50, "v5e-1": 1.20}
    for name, dollars in machines.items():
        machine = topologies.parse(name)
        price = prices.price(machine.generation, spot=False)
        assert price and machine.num_chips * price.dollars_per_chip_hour == pytest.approx(dollars)


@pytest.mark.parametrize("spot", [True, False])
@pytest.mark.parametrize("generation", ["tpu7x", "gpu", ""])
def test_what_the_catalog_lacks_has_no_price(generation, spot):
    assert prices.price(generation, spot=spot) is None
