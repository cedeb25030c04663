"""Checks of a distributed plan that are left out.

Whether all ranks agree on it: the check gathers every rank's answer and compares; over a pretended process group it would compare with
nothing. Whether the regions of any two ranks overlap: minutes of plain Python on hundreds of ranks, for what the job itself
finds out when it starts.
"""

from __future__ import annotations

from memtracker_sidecar.replacements import Replacements

from .interface import Need, holder_of

_FLEX_SHARD = "torchtitan.distributed.flex_shard"
CHECKS = (
    *(
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
    ),
    Need(
        f"{_FLEX_SHARD}._optimizer_reshard_schedule",
        "_validate_disjoint_regions_in_bounds",
        "compares the regions of every two ranks (DistMuon)",
        required=False,
    ),
)


def install(replacements: Replacements) -> None:
    """Every check passes."""
    for check in CHECKS:
        found = holder_of(check.module, check.attribute)
        if found is not None:
            replacements.set(*found, lambda *_, **__: None, check.purpose)
