// Features of Megatron-LM that need more than its plain layers, each through one small job on the checkout that
// MEMTRACKER_MEGATRON names. TransformerEngine's Python package has to be in the environment of the traces.

import { join } from 'node:path';
import { beforeAll, describe, expect, test } from 'vitest';
import { EVENTS } from '../../src/protocol/events.ts';
import { readTrace } from '../../src/trace/reader.ts';
import type { Trace } from '../../src/trace/trace.ts';
import { memtracker, temporaryFolder } from './memtracker.ts';

const checkout = process.env.MEMTRACKER_MEGATRON;

const words = (text: string) => text.split(/\s+/).filter((word) => word !== '');

const COMMON = words(`
  --micro-batch-size 2 --global-batch-size 16 --train-iters 10 --lr 1e-4 --min-lr 1e-5 --lr-decay-iters 100 --bf16
  --tokenizer-type NullTokenizer --vocab-size 1000 --mock-data --split 100,0,0 --eval-iters 0
  --log-memory-to-tensorboard --tensorboard-log-interval 1 --hidden-size 256 --num-attention-heads 4`);

const GPT = words(`pretrain_gpt.py ${COMMON.join(' ')}
  --num-layers 2 --seq-length 256 --max-position-embeddings 256 --transformer-impl transformer_engine
  --tensor-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer --disable-bias-linear --swiglu
  --position-embedding-type rope`);

const EXPERTS =
  words(`--num-experts 8 --moe-router-topk 2 --moe-grouped-gemm --moe-router-dtype fp32
  --expert-model-parallel-size 4`);

const FSDP = words(`pretrain_gpt.py ${COMMON.join(' ')}
  --num-layers 2 --seq-length 256 --max-position-embeddings 256 --transformer-impl transformer_engine
  --use-megatron-fsdp --use-distributed-optimizer --no-gradient-accumulation-fusion`);

interface Job {
  readonly feature: string;
  readonly gpu?: string;
  readonly env?: Readonly<Record<string, string>>;
  readonly argv: readonly string[];
  /** Of memtracker. */
  readonly options?: readonly string[];
  /** What only this feature leaves in a trace. */
  readonly expects?: (trace: Trace) => void;
}

function graphPools(trace: Trace): number {
  return trace.rare.filter((event) => event.type === 'pool_create' && event.kind === 'graph')
    .length;
}

function externalBytes(trace: Trace): Map<string, number> {
  return new Map(
    trace.rare.flatMap((event) =>
      event.type === 'external_alloc' ? [[event.external, event.bytes]] : [],
    ),
  );
}

function moduleNames(trace: Trace): string {
  return trace.modules.map((module) => module?.name ?? '').join(' ');
}

function bytesOf(trace: Trace, operator: string): Set<number> {
  const { length, op, bytes } = trace.events;
  const found = Array.from({ length }, (_, row) => row).filter(
    (row) => trace.strings[op[row]] === operator,
  );
  return new Set(found.map((row) => bytes[row]));
}

/** Bytes of the GPU's storages that are live before an event. */
function liveAt(trace: Trace, row: number): number {
  const { code, subject, bytes, device } = trace.events;
  const gpu = trace.devices.find((one) => one?.type === 'cuda')?.id;
  const live = new Map<number, number>();
  for (let event = 0; event < row; event++) {
    if (code[event] === EVENTS.alloc.code && device[event] === gpu) {
      live.set(subject[event], bytes[event]);
    } else if (code[event] === EVENTS.resize.code && live.has(subject[event])) {
      live.set(subject[event], bytes[event]);
    } else if (code[event] === EVENTS.free.code) live.delete(subject[event]);
  }
  return [...live.values()].reduce((sum, size) => sum + size, 0);
}

/** Live bytes before and after the first phase of a name. */
function aroundFirst(trace: Trace, name: string): [number, number] {
  const phase = trace.phases.find((one) => one?.name === name);
  if (phase === undefined) throw new Error(`no phase ${name}`);
  return [liveAt(trace, phase.beginEvent), liveAt(trace, phase.endEvent)];
}

const JOBS: readonly Job[] = [
  {
    feature: 'CUDA graphs of TransformerEngine',
    argv: [...GPT, ...words('--cuda-graph-impl transformer_engine --te-rng-tracker')],
    expects: (trace) => expect(graphPools(trace)).toBeGreaterThan(0),
  },
  {
    feature: "Megatron's own CUDA graphs",
    argv: [...GPT, ...words('--cuda-graph-impl local --cuda-graph-modules attn --te-rng-tracker')],
    expects: (trace) => expect(graphPools(trace)).toBeGreaterThan(0),
  },
  {
    feature: 'the flex dispatcher over DeepEP',
    argv: [
      ...GPT,
      ...EXPERTS,
      ...words('--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend deepep'),
    ],
    expects: (trace) => {
      // Printed by DeepEP 1.2.1's csrc/config.hpp, compiled, for eight ranks and tokens of 512 bytes; 160 bytes of pointers
      // and signals stand behind it, and 32 MiB of workspace beside it (csrc/deep_ep.cpp).
      expect(externalBytes(trace).get('deep_ep.1.nvlink')).toBe(52_594_304 + 160);
      expect(externalBytes(trace).get('deep_ep.1.workspace')).toBe(32 * 2 ** 20);
    },
  },
  {
    feature: 'the flex dispatcher over HybridEP',
    argv: [
      ...GPT,
      ...EXPERTS,
      ...words('--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep'),
    ],
    // Tokens of all eight ranks, at least 512 of each, 256 values of two bytes (csrc/hybrid_ep/buffer/intranode.cu, config.cuh).
    expects: (trace) =>
      expect(externalBytes(trace).get('hybrid_ep.1.combine tokens')).toBe(512 * 8 * 256 * 2),
  },
  {
    // DeepSeek-V3's layout. The first stage gets back the gradient of what it sent, [256 / 2, 2, 256] values of two bytes; in a job
    // with such a stage its shape arrives as a tensor (megatron/core/pipeline_parallel/p2p_communication.py, _communicate_shapes).
    feature: 'a pipeline stage for multi-token prediction alone',
    options: ['--rank', '0'],
    argv: [
      ...GPT,
      ...words('--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout Et|t|m|L'),
      ...words('--mtp-num-layers 1 --untie-embeddings-and-output-weights'),
    ],
    expects: (trace) => {
      const received = trace.events.bytes.filter(
        (_, row) => trace.phases[trace.events.phase[row]]?.name === 'p2p',
      );
      expect([...received]).toContain(128 * 2 * 256 * 2);
    },
  },
  {
    feature: 'FP8 with delayed scaling and gathered FP8 parameters',
    argv: [...GPT, ...words('--fp8-format hybrid --fp8-recipe delayed --fp8-param-gather')],
  },
  {
    feature: 'FP8 in blocks',
    argv: [...GPT, ...words('--fp8-format e4m3 --fp8-recipe blockwise')],
  },
  {
    feature: 'MXFP8',
    gpu: 'gb200-186gb',
    argv: [...GPT, ...words('--fp8-format e4m3 --fp8-recipe mxfp8')],
    // Inductor measures a kernel's configurations and flushes the L2 cache of a GB200 between them (MrHuff/fp4-fa4, edde9bc,
    // test_cuda_hardware_identity_records_the_physical_training_device: 135,266,304 bytes).
    expects: (trace) => expect(trace.events.bytes).toContain(135_266_304),
  },
  {
    feature: 'fine-grained activation offloading of outputs that are computed again',
    env: { NVTE_CPU_OFFLOAD_V1: '1' },
    argv: [
      ...GPT,
      ...EXPERTS,
      ...words(`--moe-token-dispatcher-type alltoall --multi-latent-attention --attention-backend unfused --manual-gc
        --recompute-granularity selective --recompute-modules mla_up_proj --min-offloaded-tensor-size 1024
        --fine-grained-activation-offloading --offload-modules core_attn attn_proj`),
    ],
    // Measured (gpt3_moe_mcore_te_tp2_pp2_ep4_etp1_no_mtp_no_a2a_ovlp_fine_grained_offloading, H100): 4,313,446,912 bytes
    // after step 1, 4,313,448,448 after steps 2 to 50.
    expects: (trace) => {
      const logs = trace.phases.filter((phase) => phase?.name === 'memory_log');
      const [first, second] = logs.map((phase) => liveAt(trace, phase?.beginEvent ?? 0));
      expect(Math.abs(second - first)).toBeLessThanOrEqual(4096);
    },
  },
  {
    feature: 'layers whose activations TransformerEngine offloads',
    argv: [
      ...GPT,
      ...words('--seq-length 1024 --max-position-embeddings 1024 --cpu-offloading-num-layers 1'),
    ],
    // What fc1 gives: 1024 x 2 tokens; Megatron's default with --swiglu for 256 is two times 640 values, here over two ranks.
    expects: (trace) => {
      const { length, code, bytes, device } = trace.events;
      const host = trace.devices.find((one) => one?.type === 'cpu')?.id;
      const sizes = Array.from({ length }, (_, row) => row)
        .filter((row) => code[row] === EVENTS.alloc.code && device[row] === host)
        .map((row) => bytes[row]);
      expect(sizes).toContain(2048 * 640 * 2);
    },
  },
  {
    feature: 'an evaluation after each step but the last',
    options: ['--option', 'evaluation=1'],
    argv: GPT,
    expects: (trace) =>
      expect(trace.phases.filter((phase) => phase?.name === 'evaluation')).toHaveLength(1),
  },
  {
    feature: 'Megatron-FSDP that shards the optimizer state alone, and checks its gradients',
    argv: [...FSDP, ...words('--data-parallel-sharding-strategy optim')],
  },
  {
    feature: 'Megatron-FSDP',
    argv: [...FSDP, '--init-model-with-meta-device'],
    expects: (trace) => {
      const [before, after] = aroundFirst(trace, 'optimizer/update');
      expect(after).toBeGreaterThan(before);
    },
  },
  {
    feature: 'Megatron-FSDP that looks for a checkpoint',
    argv: [...FSDP, '--load', '/checkpoints/of/this/run'],
    // Measured (gpt3_mcore_te_tp2_zp_z3_resume_fsdp_dtensor_1node, GB200): the peak after step 1 is that of all 100 steps, so
    // the first update makes no state.
    expects: (trace) => {
      const [before, after] = aroundFirst(trace, 'optimizer/update');
      expect(after).toBe(before);
    },
  },
  {
    feature: 'Megatron-FSDP with optimizer state over the outer group',
    argv: [
      ...FSDP,
      ...words('--num-distributed-optimizer-instances 2 --outer-dp-sharding-strategy optim'),
    ],
  },
  {
    feature: 'NVFP4',
    gpu: 'gb200-186gb',
    argv: [...GPT, ...words('--fp4-format e2m1 --fp4-recipe nvfp4')],
    // The 256 x 256 values of this rank's part of the sequence, half a byte each, and a scale for sixteen of them.
    expects: (trace) => {
      const bytes = bytesOf(trace, 'transformer_engine_torch::rmsnorm_fwd');
      for (const name of ['layernorm_fwd', 'quantize', 'split_quantize']) {
        for (const size of bytesOf(trace, `transformer_engine_torch::${name}`)) bytes.add(size);
      }
      expect(bytes).toContain((256 * 256) / 2);
      expect(bytes).toContain((256 * 256) / 16);
    },
  },
  {
    feature: 'tensor-parallel communication overlap',
    argv: [...GPT, '--tp-comm-overlap'],
    expects: (trace) =>
      expect([...externalBytes(trace).keys()].some((name) => name.startsWith('userbuffers.'))).toBe(
        true,
      ),
  },
  {
    feature: 'T5',
    argv: words(`examples/t5/pretrain_t5.py ${COMMON.join(' ')} --encoder-num-layers 2 --decoder-num-layers 2
      --encoder-seq-length 256 --decoder-seq-length 64 --max-position-embeddings 256
      --transformer-impl transformer_engine --attention-backend unfused`),
    expects: (trace) => expect(moduleNames(trace)).toMatch(/encoder.*decoder/),
  },
  {
    feature: 'an image and text model',
    argv: words(`pretrain_vlm.py ${COMMON.join(' ')} --num-layers 2 --seq-length 128 --max-position-embeddings 1024
      --img-h 112 --img-w 112 --patch-dim 14 --transformer-impl transformer_engine`),
    expects: (trace) => expect(moduleNames(trace)).toContain('vision_projection'),
  },
];

beforeAll(() => {
  if (checkout === undefined) {
    console.warn('SKIPPED: MEMTRACKER_MEGATRON names no Megatron-LM checkout');
  }
});

describe.skipIf(checkout === undefined)('a real Megatron-LM runs', () => {
  test.each(JOBS)(
    '$feature',
    async ({ gpu = 'h100-80gb', env = {}, options = [], argv, expects }) => {
      const out = join(temporaryFolder(), 'run.mtrace');
      const job = ['--framework', 'megatron', '--checkout', checkout ?? '', '--gpu', gpu];
      const rank = ['--world', '8', '--rank', '7', ...options, '--out', out];
      const result = await memtracker(['trace', '-q', ...job, ...rank, '--', ...argv], { env });
      // Assumptions (answers to questions about values) make it 2.
      expect([0, 2], result.stderr).toContain(result.exitCode);
      const trace = await readTrace(out);
      expect(trace.integrity).toEqual({ complete: true, faults: [], status: 'done' });
      expect(trace.phases.filter((phase) => phase?.name === 'memory_log')).toHaveLength(2);
      expects?.(trace);
    },
    600_000,
  );
});
