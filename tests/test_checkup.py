from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import repairability as rp
from networks import Residual, small_net
from repairability.cli import app
from test_sacred import complete_state, same

IMAGES = torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Odd(nn.Module):
    """Something of everything that is not pruned."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 6)
        self.memory = nn.LSTM(6, 6, batch_first=True)
        self.norm = nn.LayerNorm(6)
        self.up, self.down = nn.Linear(6, 12), nn.Linear(12, 6)
        self.aside = nn.Linear(6, 6)
        self.tied = nn.Linear(6, 20, bias=False)
        self.tied.weight = self.words.weight
        self.last = nn.Linear(6, 2)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.norm(self.memory(self.words(ids))[0])
        return self.last(self.down(self.up(x).relu())[:, -1])


def test_every_parameter_has_a_row_and_a_reason() -> None:
    model, ids = Odd(), torch.randint(0, 20, (8, 5))
    before = complete_state(model)
    found = rp.doctor(model, ids)
    assert same(complete_state(model), before)
    rows = {row.name: row for row in found.rows}
    assert sum(row.share for row in found.rows) == pytest.approx(1)
    assert {name for name, row in rows.items() if row.pruned} == {"up", "down"}
    assert rows["up"].calls == 1
    assert rows["words.weight"].why == "an embedding is looked up, not multiplied by"
    assert "recurrent" in rows["memory.weight_ih_l0"].why
    assert rows["norm.weight"].why == "a normalisation's"
    assert rows["aside"].why == "the model never reaches it on these samples"
    assert rows["last"].why == "skipped"
    assert all(row.why for row in found.rows if not row.pruned)
    assert found.prunable == 144
    assert any("may be pruned" in note for note in found.notes)


def test_norms_calls_recipes_and_there_and_back() -> None:
    found = rp.doctor(Residual(), IMAGES)
    rows = {row.name: row for row in found.rows}
    assert rows["conv1"].norm == "bn1"
    assert [row.recipe for row in found.recipes] == list(rp.RECIPES)
    for row in found.recipes:
        known = rp.RECIPES[row.recipe]
        assert (row.rule, row.score, row.repair) == (known.rule, known.score, known.repair)
    assert all(recipe.seconds > 0 and recipe.megabytes > 0 for recipe in found.recipes)
    (paper,) = rp.doctor(Residual(), IMAGES, recipes=["paper"]).recipes
    assert any("bn recalibrates 5 BatchNorm layers" in does for does in paper.does)
    assert rp.Checkup.from_json(found.to_json()) == found
    assert "estimates" in str(found)


def test_a_recipe_of_ones_own_is_estimated_too() -> None:
    """A rule on the curves of a refit solves the same least squares once more."""
    plain = rp.Recipe("erk", "second_order", "reconstruct", name="mine")
    measured = plain.with_parts(rule="residual")
    once, twice = rp.doctor(Residual(), IMAGES, recipes=[plain, measured]).recipes
    assert (once.recipe, twice.recipe) == ("mine", "mine with rule residual")
    assert twice.seconds == pytest.approx(2 * once.seconds)
    with pytest.raises(rp.InputError, match="unknown recipe 'papers'; did you mean paper"):
        rp.doctor(Residual(), IMAGES, recipes=["papers"])


def test_where_nothing_can_be_pruned_it_says_so() -> None:
    found = rp.doctor(nn.Sequential(nn.Linear(4, 2)), torch.randn(8, 4))
    assert found.layers == 0
    assert found.recipes == ()
    assert any("nothing is left to prune" in note for note in found.notes)


def test_an_output_that_cannot_be_compared_is_said() -> None:
    class Boxes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = small_net()

        def forward(self, x: Tensor) -> list[dict[str, Tensor]]:
            return [{"boxes": box} for box in self.net(x)]

    assert "output= must pick" in rp.doctor(Boxes(), IMAGES).output


def test_the_verb(tmp_path: object) -> None:
    answer = CliRunner().invoke(app, ["doctor", "digits", "--json"])
    assert answer.exit_code == 0, answer.output
    content = json.loads(answer.stdout)
    assert content["layers"] == 14
    assert content["coverage"] == pytest.approx(0.978, abs=1e-3)
    bad = CliRunner().invoke(app, ["doctor", "digits", "--samples", "0"])
    assert bad.exit_code == 2
    strange = CliRunner().invoke(app, ["doctor", "digits", "--image-size", "1", "--types", "lstm"])
    assert strange.exit_code == 2
    assert "unknown layer type 'lstm'" in strange.output
