"""A pruned model in one file, dense or sparse: written, read, described, made into the other format."""

from repairability.checkpoints.about import FileInfo
from repairability.checkpoints.checkpoint import Checkpoint, load, save_checkpoint
from repairability.checkpoints.content import FORMATS, SPARSE, check_format, format_of, read_content, write_content
from repairability.checkpoints.sparse import DENSE, EXACT, VALUES

__all__ = [
    "DENSE",
    "EXACT",
    "FORMATS",
    "SPARSE",
    "VALUES",
    "Checkpoint",
    "FileInfo",
    "check_format",
    "format_of",
    "load",
    "read_content",
    "save_checkpoint",
    "write_content",
]
