from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from headrace.data.packs import GROUP, Catalogue
from headrace.errors import RecipeError, UsageError
from headrace.recipe import DomainSpec
from tasks_support import Numbers


class NumberPack:
    def __init__(self, *names: str) -> None:
        self._names = names
        self.opened: list[str] = []
        self.closed = 0

    def names(self) -> list[str]:
        return list(self._names)

    def open(self, name: str) -> Numbers:
        self.opened.append(name)
        return Numbers(name)

    def close(self) -> None:
        self.closed += 1


many = NumberPack("many/one", "many/two", "many/three", "many/four")
single = NumberPack("single")
stray = NumberPack("elsewhere/one")
nothing = object()


def catalogue(**points: str) -> Catalogue:
    found = points or {"many": f"{__name__}:many", "single": f"{__name__}:single"}
    return Catalogue(EntryPoint(name, value, GROUP) for name, value in found.items())


def weights(specs: list[DomainSpec]) -> dict[str, float]:
    return {spec.name: spec.weight for spec in specs}


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])


def test_installed_packs_are_found() -> None:
    with Catalogue() as installed:
        names = installed.names()
        assert "arithmetic" in names
        assert sum(name.startswith("rg/") for name in names) == 104
        assert installed.open("arithmetic") is installed.open("arithmetic")


def test_names_cost_no_process_and_no_import_of_the_library_behind_them() -> None:
    code = (
        "import sys\n"
        "from headrace.data import Catalogue\n"
        "c = Catalogue()\n"
        "assert len(c.names()) > 100 and c.open('rg/dice').tiers > 0\n"
        "assert 'reasoning_gym' not in sys.modules and 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_pattern_shares_its_weight_evenly_among_its_matches() -> None:
    specs = [DomainSpec(name="many/*", weight=2.0, first_tier=1), DomainSpec(name="single")]
    resolved = catalogue().resolve(specs)
    assert weights(resolved) == {
        "many/four": 0.5,
        "many/one": 0.5,
        "many/three": 0.5,
        "many/two": 0.5,
        "single": 1.0,
    }
    assert [spec.first_tier for spec in resolved] == [1, 1, 1, 1, 0]
    assert weights(catalogue().resolve([DomainSpec(name="*/t*")])) == {
        "many/three": 0.5,
        "many/two": 0.5,
    }


def test_a_domain_named_exactly_is_left_out_of_the_pattern() -> None:
    specs = [DomainSpec(name="many/*", weight=3.0), DomainSpec(name="many/two", weight=5.0)]
    assert weights(catalogue().resolve(specs)) == {
        "many/four": 1.0,
        "many/one": 1.0,
        "many/three": 1.0,
        "many/two": 5.0,
    }


def test_a_domain_of_two_patterns_is_refused() -> None:
    specs = [DomainSpec(name="many/*"), DomainSpec(name="many/t*")]
    with pytest.raises(RecipeError, match="two entries name many/three"):
        catalogue().resolve(specs)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("singel", "single"),
        ("many/tow", "many/two"),
        ("mani/two", "many/two"),
        ("many/tree*", "many/three"),
        ("many", "many"),
    ],
)
def test_an_unknown_name_or_pattern_is_an_error_that_names_the_nearest(
    name: str, nearest: str
) -> None:
    with pytest.raises(RecipeError, match="no domain") as caught:
        catalogue().resolve([DomainSpec(name=name)])
    assert caught.value.hint == f"did you mean {nearest}?"
    if "*" not in name:
        with pytest.raises(RecipeError, match="no domain"):
            catalogue().open(name)


def test_without_any_pack_the_hint_says_so() -> None:
    with pytest.raises(RecipeError) as caught:
        Catalogue([]).open("arithmetic")
    assert caught.value.hint == "no task pack is installed"


def test_a_broken_pack_hurts_only_those_who_ask_for_it(tmp_path: Path) -> None:
    broken = catalogue(many=f"{__name__}:many", bad="no_such_module:pack", gone=f"{__name__}:gone")
    assert broken.open("many/one").name == "many/one"
    assert len(broken.resolve([DomainSpec(name="many/*")])) == 4
    with pytest.raises(RecipeError, match="no domain named"):
        broken.open("many/six")
    for name in ("bad/one", "gone"):
        with pytest.raises(UsageError, match=r"task pack '(bad|gone)' cannot be imported"):
            broken.open(name)
    with pytest.raises(UsageError, match="cannot be imported"):
        broken.names()
    with pytest.raises(UsageError, match="cannot be imported"):
        broken.resolve([DomainSpec(name="*")])


def test_a_pack_must_be_a_pack_and_keep_to_its_name() -> None:
    with pytest.raises(UsageError, match="'odd' is no pack"):
        catalogue(odd=f"{__name__}:nothing").open("odd")
    with pytest.raises(UsageError, match="'stray' offers a domain named 'elsewhere/one'"):
        catalogue(stray=f"{__name__}:stray").names()


def test_closing_closes_the_packs_that_were_opened_once() -> None:
    many.closed = single.closed = 0
    with catalogue() as opened:
        opened.open("single")
    opened.close()
    assert (many.closed, single.closed) == (0, 1)
