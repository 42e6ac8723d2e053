from __future__ import annotations

from pathlib import Path

import pytest
import torch

from repairability import evaluate, load_data, training
from repairability.training import cache_folder, digits_network, train_


def test_the_digits_network_learns_and_is_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "DIGITS_EPOCHS", 2)
    data = load_data("digits")
    state = torch.get_rng_state()
    model = digits_network(data, cache=tmp_path)
    assert evaluate(model, data.test.batches()).top1 > 0.6
    assert not model.training
    assert torch.equal(torch.get_rng_state(), state)
    monkeypatch.setattr(training, "train_", lambda *_, **__: pytest.fail("trained again"))
    again = digits_network(data, cache=tmp_path)
    assert all(torch.equal(v, again.state_dict()[k]) for k, v in model.state_dict().items())


def test_training_is_reproducible() -> None:
    from repairability import create_model

    data = load_data("digits")
    models = [create_model("digits", seed=1) for _ in range(2)]
    for model in models:
        train_(model, data, epochs=1, seed=3)
    one, two = (m.state_dict() for m in models)
    assert all(torch.equal(one[k], two[k]) for k in one)


def test_the_cache_follows_the_users_wish(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "repairability"
