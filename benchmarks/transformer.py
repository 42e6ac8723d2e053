"""A small transformer, trained on the spot, and what is left of it when its linear layers are pruned: test perplexity.

    python benchmarks/transformer.py [--steps N] [--cache DIR] [--sparsities 0.5,0.7,0.8,0.9] [--write]

A character-level GPT learns Python's own manual (`pydoc_data.topics`, each paragraph once; the last tenth is the test
text): ten minutes on one CPU thread. Training can be stopped in any way and goes on where it was; a finished
network is loaded. The text, and so the network, is that of the Python version. --write renews docs/transformer.md.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import math
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes
from torch import Tensor, nn
from torch.nn import functional as F

import repairability as rp
from repairability._files import write_atomically
from repairability.evaluation import Perplexity
from repairability.progress import track
from repairability.provenance import provenance
from repairability.report.markup import to_markdown
from repairability.tables import Table, percent

ROOT = Path(__file__).resolve().parents[1]
CONTEXT, WIDTH, HEADS, BLOCKS, DROPOUT = 128, 128, 4, 4, 0.1
STEPS, WARMUP, BATCH, RATE, DECAY, SEED = 2000, 100, 32, 2e-3, 0.1, 0
KEEP_EVERY = 100  # steps between two states on the disk
SEQUENCES = 1024  # of CONTEXT characters, for calibration
DRAWS = (1_000_000, 1_000_001, 1_000_002)  # the seeds they are drawn by, of no training step
TYPES = ("linear",)  # of layers to prune; the head, the last one, is never among them
RECIPES = (
    ("uniform", "magnitude", "none"),
    ("rr", "magnitude", "cr+bn"),
    ("uniform", "second_order", "reconstruct-all"),
    ("erk", "second_order", "reconstruct-all"),
    ("global", "second_order", "reconstruct-all"),
)


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        n, length, _ = x.shape
        heads = self.qkv(x).view(n, length, 3, HEADS, WIDTH // HEADS)
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)  # each [n, heads, length, width of a head]
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.proj(mixed.transpose(1, 2).reshape(n, length, WIDTH))
        return out


class Block(nn.Module):
    """Attention and an MLP, each behind its LayerNorm and beside a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm1(x)))
        out: Tensor = x + self.dropout(self.mlp(self.norm2(x)))
        return out


class GPT(nn.Module):
    """Ids [n, length <= CONTEXT] to the logits of the next ones [n, length, size of the vocabulary]."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(vocabulary, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.dropout = nn.Dropout(DROPOUT)
        self.blocks = nn.Sequential(*(Block() for _ in range(BLOCKS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, vocabulary, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:  # GPT-2's: what ends on a shortcut starts smaller
                ends = name.endswith(("proj.weight", "mlp.2.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * BLOCKS) if ends else 0.02)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.dropout(self.characters(ids) + self.positions.weight[: ids.shape[1]])
        logits: Tensor = self.head(self.norm(self.blocks(x)))
        return logits


@dataclass(frozen=True)
class Text:
    """The manual as ids [characters]; id 0 stands for whatever the training text does not hold."""

    train: Tensor
    test: Tensor
    vocabulary: int
    digest: str

    @classmethod
    def manual(cls) -> Text:
        """Every paragraph once: topics repeat each other, and the test text must not be known from the training."""
        paragraphs = (paragraph for name in sorted(topics) for paragraph in topics[name].split("\n\n"))
        text = "\n\n".join(dict.fromkeys(paragraphs))
        cut = len(text) * 9 // 10
        index = {character: i for i, character in enumerate(sorted(set(text[:cut])), 1)}
        ids = torch.tensor([index.get(character, 0) for character in text])
        return cls(ids[:cut], ids[cut:], len(index) + 1, hashlib.sha256(text.encode()).hexdigest()[:12])

    def draw(self, count: int, seed: int) -> Tensor:
        """Stretches of the training text [count, CONTEXT + 1], from anywhere in it."""
        generator = torch.Generator().manual_seed(seed)
        starts = torch.randint(len(self.train) - CONTEXT, (count, 1), generator=generator)
        return self.train[starts + torch.arange(CONTEXT + 1)]

    def test_batches(self) -> list[tuple[Tensor, Tensor]]:
        """The whole test text in stretches side by side: (ids, next ids), each [n, CONTEXT]."""
        count = (len(self.test) - 1) // CONTEXT
        ids, following = (self.test[i : i + count * CONTEXT].view(count, CONTEXT) for i in (0, 1))
        return list(zip(ids.split(64), following.split(64), strict=True))  # type: ignore[no-untyped-call]


def perplexity(model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> float:
    """Per character, by hand: what `rp.evaluate` must agree with."""
    model.eval()
    with torch.no_grad():
        losses = [F.cross_entropy(model(ids).flatten(0, 1), then.flatten(), reduction="sum") for ids, then in batches]
    return math.exp(float(sum(losses)) / sum(then.numel() for _, then in batches))


def trained(text: Text, steps: int, cache: Path) -> tuple[GPT, str]:
    """The network, from the cache if it was trained before, and how it was trained."""
    recipe = (text.digest, CONTEXT, WIDTH, HEADS, BLOCKS, DROPOUT, steps, WARMUP, BATCH, RATE, DECAY, SEED)
    name = "gpt-" + hashlib.sha256(repr(recipe).encode()).hexdigest()[:12]
    file, partial = cache / f"{name}.safetensors", cache / f"{name}.partial.pt"
    torch.manual_seed(SEED)
    model = GPT(text.vocabulary)
    if not file.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        seconds = train_(model, text, steps, partial)
        how = f"{steps:,} steps of {BATCH} sequences in {seconds:.0f} s, {torch.get_num_threads()} threads, seed {SEED}"
        write_atomically(file, to_bytes(dict(model.state_dict()), {"trained": how}))
        partial.unlink(missing_ok=True)
    model.load_state_dict(load_file(file))
    with safe_open(file, "pt") as content:
        return model.eval(), content.metadata()["trained"]


def train_(model: GPT, text: Text, steps: int, partial: Path) -> float:
    """AdamW, its rate warmed up and then let down along a cosine; the seconds it took, those of earlier runs included.

    `partial` keeps weights, moments, step and seconds. A step's characters and dropout come from its own seed, so a
    run that was stopped goes on to the same network.
    """
    matrices = [parameter for parameter in model.parameters() if parameter.dim() == 2]
    others = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.99))
    first, seconds = 0, 0.0
    if partial.is_file():
        state = torch.load(partial, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first, seconds = state["step"], state["seconds"]
    start = time.perf_counter() - seconds
    model.train()
    for step in track(range(first, steps), f"training from step {first}", steps - first):
        for group in optimizer.param_groups:
            group["lr"] = rate(step, steps)
        torch.manual_seed(SEED + step)
        stretches = text.draw(BATCH, SEED + step)
        loss = F.cross_entropy(model(stretches[:, :-1]).flatten(0, 1), stretches[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % KEEP_EVERY == 0:
            content, spent = io.BytesIO(), time.perf_counter() - start
            whole = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**whole, "step": step + 1, "seconds": spent}, content)
            write_atomically(partial, content.getvalue())
    return time.perf_counter() - start


def rate(step: int, steps: int) -> float:
    """Up in a line, then down to a hundredth along a cosine."""
    if step < WARMUP:
        return RATE * (step + 1) / WARMUP
    way = (step - WARMUP) / max(1, steps - WARMUP)
    return RATE * (0.01 + 0.99 * (1 + math.cos(math.pi * way)) / 2)


def scored(model: nn.Module, text: Text) -> float:
    """Test perplexity per character, by the library."""
    return float(rp.evaluate(model, text.test_batches(), metric=Perplexity()).values["perplexity"])


def pruned(model: GPT, text: Text, recipe: tuple[str, str, str], sparsities: list[float]) -> tuple[str, ...]:
    """A recipe's row: perplexity at each sparsity, mean ± sd over the calibration draws, and seconds a pruning.

    A cell names the mean sparsity that was reached where it is not the target.
    """
    rule, score, repair = recipe
    options = {"over": "prunable"} if rule == "global" else {}  # or its target would count the dense head too
    config = rp.PruneConfig(types=TYPES, options=options)
    cells, seconds = [], []
    for s in sparsities:
        found, reached = [], []
        for seed in DRAWS:
            ids = text.draw(SEQUENCES, seed)[:, :-1]
            start = time.perf_counter()
            result = rp.prune(model, ids, sparsity=s, rule=rule, score=score, repair=repair, config=config)
            seconds.append(time.perf_counter() - start)
            found.append(scored(result.model, text))
            reached.append(result.sparsity)
        beside = f" (at {percent(statistics.mean(reached))})" if max(abs(x - s) for x in reached) > 5e-4 else ""
        cells.append(f"{statistics.mean(found):.2f} ± {statistics.stdev(found):.2f}{beside}")
    return (*recipe, *cells, f"{statistics.median(seconds):.1f}")


def page(model: GPT, text: Text, how: str, sparsities: list[float]) -> str:
    """The table with all that its figures hang on, as Markdown."""
    layers, facts = rp.prunable_layers(model, types=TYPES), provenance()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    caption = (
        f"Test perplexity per character; dense: {scored(model, text):.3f}. Sparsity is over the {layers.total:,} "
        f"weights of the {len(layers)} linear layers in the blocks, of {parameters:,} parameters in all; head, "
        f"embeddings, norms and biases lose none. Mean ± sample standard deviation over {len(DRAWS)} calibration draws "
        f"(seeds {', '.join(map(str, DRAWS))}) of {SEQUENCES:,} sequences of {CONTEXT} characters to train on. "
        f"Seconds: the median of a row's prunings, without the evaluation. Text: pydoc_data.topics of Python "
        f"{facts['python']} ({text.digest}), each paragraph once, {len(text.train):,} characters to train on and "
        f"{len(text.test):,} to test on, in stretches of {CONTEXT}. Training: {how}. Commit: {facts['commit']}. "
        f"Hardware: {facts['hardware']}, torch {facts['torch']}."
    )
    columns = ("rule", "score", "repair", *(f"{100 * s:g} %" for s in sparsities), "seconds")
    title = f"A character-level GPT ({BLOCKS} blocks, width {WIDTH}), pruned without retraining"
    rows = [pruned(model, text, recipe, sparsities) for recipe in RECIPES]
    return to_markdown(Table(columns, rows, title, caption))


ABOUT = """\
A small language model, trained from nothing by `python benchmarks/transformer.py`, which then prunes it and, with
`--write`, wrote this page. Its norms are LayerNorms, so of the paper's repair only the scaling of filters acts."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small transformer once, prune it, print the perplexities.")
    parser.add_argument("--steps", type=int, default=STEPS, help="of training; another number is another network")
    parser.add_argument("--cache", type=Path, default=ROOT / ".cache" / "transformer", help="where networks are kept")
    parser.add_argument("--sparsities", default="0.5,0.7,0.8,0.9", help="with commas between; none: only train")
    parser.add_argument("--write", action="store_true", help="write the page to docs/transformer.md too")
    given = parser.parse_args()
    text = Text.manual()
    model, how = trained(text, given.steps, given.cache)
    print(f"dense: test perplexity {perplexity(model, text.test_batches()):.3f} per character; {how}")
    sparsities = [float(s) for s in given.sparsities.split(",") if s]
    if not sparsities:
        return
    content = page(model, text, how, sparsities)
    print(content)
    if given.write:
        write_atomically(ROOT / "docs" / "transformer.md", f"# A transformer\n\n{ABOUT}\n\n{content}")


if __name__ == "__main__":
    main()
