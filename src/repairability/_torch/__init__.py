"""All borrowing of a model: it is unwrapped, copied, run in a shadow of its own; what is borrowed beside it (the random
state, threads) returns in `finally`.
"""

from repairability._torch.copies import (
    Sums,
    batch_norms,
    copy_of,
    is_lazy,
    masked_names,
    normalises_by_batch,
    same_sums,
    state_digest,
    state_sums,
    unwrapped,
)
from repairability._torch.devices import device_of
from repairability._torch.finite import broken_tensors, check_finite, check_output, holds_nan, is_finite
from repairability._torch.modes import (
    channels_last_,
    differentiating_,
    evaluating,
    evaluation_mode_,
    recalibrating_,
    training_,
)
from repairability._torch.moves import PLAIN_NORMS, Move, moves_of
from repairability._torch.random_state import MOST_SEED, Draws, generator_of, reset_weights_, seeded
from repairability._torch.threads import MOST_THREADS, alone, take_threads, threads, workers

__all__ = [
    "MOST_SEED",
    "MOST_THREADS",
    "PLAIN_NORMS",
    "Draws",
    "Move",
    "Sums",
    "alone",
    "batch_norms",
    "broken_tensors",
    "channels_last_",
    "check_finite",
    "check_output",
    "copy_of",
    "device_of",
    "differentiating_",
    "evaluating",
    "evaluation_mode_",
    "generator_of",
    "holds_nan",
    "is_finite",
    "is_lazy",
    "masked_names",
    "moves_of",
    "normalises_by_batch",
    "recalibrating_",
    "reset_weights_",
    "same_sums",
    "seeded",
    "state_digest",
    "state_sums",
    "take_threads",
    "threads",
    "training_",
    "unwrapped",
    "workers",
]
