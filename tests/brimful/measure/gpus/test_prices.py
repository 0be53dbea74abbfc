"""What an hour of a card costs: defaults with sources, and a user's own file."""

import pytest

from brimful.errors import UsageError
from brimful.measure.gpus import CARDS
from brimful.measure.gpus.prices import keep, prices
from brimful.values import Source


def test_every_default_is_of_a_card_of_the_catalogue_assumed_and_has_a_source(tmp_path):
    found = prices(tmp_path)
    assert set(found) <= {gpu.key for gpu in CARDS} and len(found) > 20
    assert all(
        one.source is Source.ASSUMED and (one.note or "").startswith("https://")
        for one in found.values()
    )


def test_a_users_own_price_takes_the_place_of_the_default_from_then_on(tmp_path):
    file, home = tmp_path / "mine.toml", tmp_path / "home"
    file.write_text(
        'date = "2026-11"\nL4 = 0.5\n\n[a100-80gb]\nper_hour = 1.5\nsource = "my cloud"\n'
    )
    before = prices(home)
    kept = keep(file, home)
    assert kept.is_file() and kept.parent == home
    found = prices(home)
    assert (found["l4"].value, found["a100-80gb"].value, found["a100-80gb"].note) == (
        0.5,
        1.5,
        "my cloud",
    )
    assert found["l4"].note == "prices.toml, 2026-11"
    assert found["t4"] == before["t4"]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("l44 = 1", "there is no card 'l44'"),
        ("l4 = 0", "l4: 0 is no price"),
        ("l4 = -0.5", "l4: -0.5 is no price"),
        ("l4 = true", "l4: True is no price"),
        ('l4 = "0.5"', "l4: '0.5' is no price"),
        ("l4 = nan", "l4: nan is no price"),
        ("[l4]\nperhour = 1", "l4: 'perhour' is no field"),
        ("[l4]\nsource = 'x'", "l4: it has no per_hour"),
        ("l4 = = 1", "is no price file"),
    ],
)
def test_a_price_file_with_a_mistake_is_refused_by_name_and_nothing_is_kept(tmp_path, text, named):
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(UsageError) as refused:
        keep(file, tmp_path / "home")
    assert named in str(refused.value) and refused.value.suggestion
    assert not (tmp_path / "home").exists()


def test_a_price_file_that_is_not_there_is_a_sentence(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        keep(tmp_path / "none.toml", tmp_path)
