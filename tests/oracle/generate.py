"""Writes random allocator traces for oracle.py; the same seed gives the same trace.

    python generate.py --count N --first SEED --dir DIR [--steps N] [--profile NAME]

A profile sets what a trace is about: a setting of PYTORCH_ALLOC_CONF, streams, private pools, memory that runs out, a
training-like loop. `any` chooses one of the others for each seed.

Two things never happen in a generated trace, because PyTorch 2.14.1 corrupts its own memory there: a MemPool that dies with
live blocks under expandable segments, and a max_split_size_mb that changes at run time (traces/undefined_*.jsonl do both).
Nor are two blocks freed in one capture while other streams use them: they come back in the order of their pointers.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Json = dict[str, Any]

MIB = 1 << 20
CAPACITIES_MIB = [96, 160, 256, 400, 777, 1024, 2048, 4096]
# Around every limit of the allocator: 512 B, 1 MiB, 2 MiB, 10 MiB, 20 MiB, 200 MiB.
LIMIT_SIZES = [
    1,
    511,
    512,
    513,
    1024,
    MIB - 512,
    MIB - 1,
    MIB,
    MIB + 1,
    MIB + 512,
    2 * MIB - 1,
    2 * MIB,
    2 * MIB + 1,
    10 * MIB - 512,
    10 * MIB - 1,
    10 * MIB,
    10 * MIB + 1,
    19 * MIB,
    20 * MIB - 1,
    20 * MIB,
    20 * MIB + 1,
    21 * MIB,
    22 * MIB,
    40 * MIB,
    200 * MIB,
    200 * MIB + 1,
]
PROFILES = [
    "default",
    "expandable",
    "maxsplit",
    "roundup",
    "gc",
    "fraction",
    "largeseg",
    "streams",
    "pools",
    "mixed",
    "oomheavy",
    "loop",
    "reject",
    "capture",
]
# Profiles that use expandable segments in half of their traces.
MAYBE_EXPANDABLE = {
    "streams",
    "pools",
    "mixed",
    "oomheavy",
    "loop",
    "largeseg",
    "fraction",
    "roundup",
    "gc",
    "reject",
    "capture",
}
CAPTURED_STREAM = 1
ROUNDUPS = [
    "2",
    "4",
    "8",
    "16",
    "[256:1,512:2,1024:4,>:8]",
    "[1:4,64:8,256:2,>:1]",
]


@dataclass(frozen=True)
class Pool:
    """A MemPool of the trace."""

    name: str
    use_on_oom: bool


@dataclass
class Generator:
    """Makes one trace."""

    seed: int
    steps: int
    profile: str
    ops: list[Json] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        if self.profile == "any":
            self.profile = self.random.choice(PROFILES)
        self.capacity = self.random.choice(CAPACITIES_MIB) * MIB
        self.expandable = self.profile == "expandable" or (
            self.profile in MAYBE_EXPANDABLE and self._chance(0.5)
        )
        self.stream_count = 1
        self.most_pools = 0
        self.config: Json = {
            "op": "config",
            "capacity": self.capacity,
            "devices": 1,
            "conf": "",
            "events": "auto",
            "seed": self.seed,
            "profile": self.profile,
        }
        self.live: dict[int, tuple[int, str | None]] = {}
        self.live_bytes = 0
        self.next_id = 0
        self.pools: dict[str, Pool] = {}
        self.pools_made = 0
        self.capturing: str | None = None
        self.graphs: list[str] = []
        self.graphs_made = 0
        self.has_deferred = False
        self.used_elsewhere: set[int] = set()

    def trace(self) -> list[Json]:
        """The config and `steps` ops."""
        self._choose_settings()
        self.ops = [self.config]
        if self.profile == "loop":
            self._training_loop()
        else:
            self._random_walk()
        ops = self.ops[: self.steps + 1]
        captures = [op for op in ops if op["op"] in ("capture_begin", "capture_end")]
        if captures and captures[-1]["op"] == "capture_begin":
            ops.append({"op": "capture_end", "graph": captures[-1]["graph"]})
        return ops

    # Settings.

    def _choose_settings(self) -> None:
        mixed = self.profile == "mixed"
        conf = ["expandable_segments:True"] if self.expandable else []
        large_segment = 20
        if self.profile == "largeseg" or (mixed and self._chance(0.3)):
            large_segment = self.random.choice([12, 20, 22, 30, 32, 64, 128])
            conf.append(f"large_segment_size_mb:{large_segment}")
        if self.profile == "maxsplit" or (mixed and self._chance(0.4)):
            size = self.random.choice([20, 21, 32, 64, 128, 200])
            conf.append(f"max_split_size_mb:{max(large_segment, size)}")
            if self._chance(0.4):
                slack = self.random.choice([20, 21, 40, 60])
                conf.append(f"max_non_split_rounding_mb:{max(large_segment, slack)}")
        if self.profile == "roundup" or (mixed and self._chance(0.4)):
            conf.append(f"roundup_power2_divisions:{self.random.choice(ROUNDUPS)}")
        if self.profile == "gc" or (mixed and self._chance(0.3)):
            threshold = self.random.choice(["0.2", "0.4", "0.6", "0.8", "0.95"])
            conf.append(f"garbage_collection_threshold:{threshold}")
            self.config["fraction"] = self.random.choice([0.5, 0.7, 0.9, 0.999])
        if self.profile == "fraction":
            self.config["fraction"] = self.random.choice([0.3, 0.5, 0.75, 0.9])
        if self.profile == "reject":
            conf.append("throw_on_cudamalloc_oom:True")
            conf.append(f"per_process_memory_fraction:{self.random.choice(['0.4', '0.7', '1.0'])}")
        if self.profile == "capture" and self._chance(0.5):
            conf.append("graph_capture_record_stream_reuse:True")
        if self.profile in ("streams", "mixed", "capture") or self._chance(0.25):
            self.stream_count = self.random.randint(2, 4)
            self.config["events"] = self.random.choice(["auto", "manual", "manual"])
        if self.profile == "pools" or (mixed and self._chance(0.5)):
            self.most_pools = 3
        self.random.shuffle(conf)
        self.config["conf"] = ",".join(conf)

    # Sizes.

    def _size(self, capacity: int) -> int:
        r = self.random
        x = r.random()
        if x < 0.22:
            size = r.randint(1, 2048)
        elif x < 0.45:
            size = int(2 ** r.uniform(11, 20))
        elif x < 0.60:
            size = r.choice(LIMIT_SIZES)
        elif x < 0.78:
            size = int(r.uniform(1, 10) * MIB)
        elif x < 0.96:
            size = int(2 ** r.uniform(23.3, 27.6))
        else:
            size = int(r.uniform(200, 1200) * MIB)
        if self._chance(0.5) and size > 4096:
            size -= size % 512
        most = int(capacity * (1.1 if self._chance(0.03) else 0.45))
        return max(1, min(size, most))

    # A training-like loop: forward allocates and keeps, backward frees in reverse with temporaries.

    def _training_loop(self) -> None:
        r = self.random
        layers = [self._size(self.capacity // 4) for _ in range(r.randint(4, 12))]
        while len(self.ops) <= self.steps:
            scale = r.choice([1.0, 1.0, r.uniform(0.7, 1.3)])
            kept: list[int] = []
            for layer in layers:
                for factor in (1, r.choice([0.5, 2, 4])):
                    kept.append(self._alloc(max(1, int(layer * scale * factor))))
                    if self._chance(0.4):
                        self._free(kept.pop(r.randrange(len(kept))))
            for block in reversed(kept):
                gradient = self._alloc(max(1, int(r.choice(layers) * scale)))
                self._free(block)
                self._free(gradient)
            if self._chance(0.15):
                self._add("empty_cache")

    # A random walk around a target of live bytes.

    def _random_walk(self) -> None:
        r = self.random
        palette = [self._size(self.capacity) for _ in range(r.randint(8, 40))]
        fullness = r.uniform(0.9, 1.6) if self.profile == "oomheavy" else r.uniform(0.3, 1.15)
        target = self.capacity * fullness
        while len(self.ops) <= self.steps:
            x = r.random()
            if x < 0.93:
                if not self.live or self._chance(0.62 if self.live_bytes < target else 0.30):
                    self._walk_alloc(palette)
                else:
                    ids = list(self.live)
                    self._walk_free(r.choice([ids[-1], ids[0], r.choice(ids), r.choice(ids)]))
            elif x < 0.96 and self.stream_count > 1 and self.live:
                block = r.choice(list(self.live))
                self.used_elsewhere.add(block)
                self._add("record_stream", id=block, stream=self._stream())
            elif x < 0.975 and self.stream_count > 1:
                kind = r.choice(["complete", "sync", "sync_all"])
                self._add(kind, **({} if kind == "sync_all" else {"stream": self._stream()}))
            elif x < 0.982:
                self._add("empty_cache")
            elif x < 0.99 and self.profile == "capture":
                self._walk_captures()
            elif x < 0.99 and self.most_pools > 0:
                self._walk_pools()
            elif x < 0.993 and self.profile in ("fraction", "gc", "mixed", "reject"):
                self._add("set_fraction", fraction=r.choice([0.4, 0.6, 0.8, 0.95, 1.0]))
            elif x < 0.996 and self.profile in ("oomheavy", "mixed"):
                taken = r.choice([0, self.capacity // 8, self.capacity // 4])
                self._add("set_external", bytes=taken)
            elif x < 0.998 and self.profile == "mixed":
                self._walk_conf()
            elif x >= 0.998:
                self._add(r.choice(["reset_peak", "reset_accumulated"]))

    def _walk_alloc(self, palette: Sequence[int]) -> None:
        size = self.random.choice(palette) if self._chance(0.6) else self._size(self.capacity)
        stream = 0 if self._chance(0.5) else self._stream()
        # CUDA forbids what an allocation on another stream would do meanwhile: querying events.
        if self.capturing is not None:
            stream = CAPTURED_STREAM
        pool = None
        if self.pools and self._chance(0.35):
            pool = self.random.choice(sorted(self.pools))
        self._alloc(size, stream, pool)

    def _walk_free(self, block: int) -> None:
        if self.capturing is not None and block in self.used_elsewhere:
            if self.has_deferred:
                return
            self.has_deferred = True
        self._free(block)

    def _walk_captures(self) -> None:
        if self.capturing is None:
            if self.graphs and not self.expandable and self._chance(0.3):
                self._add("graph_reset", graph=self.graphs.pop(0))
                return
            self.graphs_made += 1
            self.capturing = f"g{self.graphs_made}"
            shared = self.random.choice(self.graphs) if self.graphs and self._chance(0.4) else None
            in_pool = {} if shared is None else {"pool": shared}
            self._add("capture_begin", graph=self.capturing, stream=CAPTURED_STREAM, **in_pool)
            return
        kind = self.random.choice(["capture_node", "capture_wait", "capture_end"])
        if kind == "capture_node":
            self._add("capture_node", stream=self._stream())
        elif kind == "capture_wait":
            self._add("capture_wait", stream=self._stream(1), on=CAPTURED_STREAM)
            self._add("capture_wait", stream=CAPTURED_STREAM, on=self.ops[-1]["stream"])
        else:
            self._add("capture_end", graph=self.capturing)
            self.graphs.append(self.capturing)
            self.capturing = None
            self.has_deferred = False

    def _walk_conf(self) -> None:
        if "max_split" in self.config["conf"]:
            return
        choices = [
            "expandable_segments:True",
            "expandable_segments:False",
            "garbage_collection_threshold:0.5",
            self.config["conf"] or "expandable_segments:False",
        ]
        self._add("set_conf", conf=self.random.choice(choices))

    def _walk_pools(self) -> None:
        if len(self.pools) < self.most_pools and self._chance(0.7):
            self.pools_made += 1
            pool = Pool(f"p{self.pools_made}", use_on_oom=self._chance(0.4))
            self.pools[pool.name] = pool
            self._add(
                "pool_new", pool=pool.name, no_split=self._chance(0.25), use_on_oom=pool.use_on_oom
            )
        elif self.pools:
            pool = self.pools[self.random.choice(sorted(self.pools))]
            # Its blocks may have been lent to anybody.
            if pool.use_on_oom and self.live:
                return
            if self.expandable or self._chance(0.5):
                for block in [i for i, (_, name) in self.live.items() if name == pool.name]:
                    self._free(block)
                if self.expandable and self.config["events"] == "manual":
                    self._add("sync_all")
            self._add("pool_del", pool=pool.name)
            del self.pools[pool.name]

    # Single ops.

    def _alloc(self, size: int, stream: int = 0, pool: str | None = None) -> int:
        self.next_id += 1
        in_pool = {} if pool is None else {"pool": pool}
        self._add("alloc", id=self.next_id, size=size, stream=stream, **in_pool)
        self.live[self.next_id] = (size, pool)
        self.live_bytes += size
        return self.next_id

    def _free(self, block: int) -> None:
        size, _ = self.live.pop(block)
        self.live_bytes -= size
        self._add("free", id=block)

    def _add(self, op: str, **fields: Any) -> None:
        self.ops.append({"op": op, **fields})

    def _stream(self, first: int = 0) -> int:
        return self.random.randrange(first, max(self.stream_count, first + 1))

    def _chance(self, probability: float) -> bool:
        return self.random.random() < probability


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description="Write random allocator traces.")
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--first", type=int, default=0, metavar="SEED")
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--profile", choices=["any", *PROFILES], default="any")
    arguments = parser.parse_args()
    arguments.dir.mkdir(parents=True, exist_ok=True)
    for seed in range(arguments.first, arguments.first + arguments.count):
        ops = Generator(seed, arguments.steps, arguments.profile).trace()
        path = arguments.dir / f"{arguments.profile}_{seed:06d}.jsonl"
        path.write_text("".join(json.dumps(op) + "\n" for op in ops), encoding="utf-8")


if __name__ == "__main__":
    main()
