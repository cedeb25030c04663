"""Checks that all ranks agree on a plan, where the other ranks do not exist to say so.

A check gathers every rank's answer and compares; over a pretended process group it would compare with nothing.
"""

from __future__ import annotations

from memtracker_sidecar.replacements import Replacements

from .interface import Need, holder_of

_FLEX_SHARD = "torchtitan.distributed.flex_shard"
CHECKS = tuple(
    Need(
        f"{_FLEX_SHARD}.{module}",
        "_validate_bucket_plans_across_ranks",
        "compares the bucket plans of a distributed optimizer (DistMuon)",
        required=False,
    )
    for module in (
        "_optimizer_reshard_schedule",
        "dist_muon",
    )  # where it is made, and where it is used
)


def install(replacements: Replacements) -> None:
    """Every check passes: ranks of one job run the same code on the same config."""
    for check in CHECKS:
        found = holder_of(check.module, check.attribute)
        if found is not None:
            replacements.set(*found, lambda *_, **__: None, check.purpose)
