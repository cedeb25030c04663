// `memtracker fit --init`: a commented specification to start from.

const HEAD = `# memtracker fit specification. Check it with: memtracker fit THIS_FILE
# Schema for editors: docs/fit-spec.schema.json
version: 1
`;

const TAIL = `
world: {nodes: 1, gpus_per_node: 8}   # or a number of ranks
gpu: h100-80gb                        # memtracker gpus lists the names; bytes (80GB) work too
steps: 2                              # optimizer state arrives in the first step, the peak stands in the second
ranks: auto                           # one rank for each role that can differ; or all, or [0, 7]
margin: 2GiB                          # to leave free; or a share of the capacity: 5%

# allocator: expandable_segments:True # PYTORCH_ALLOC_CONF of the real job
# nccl: {version: 2.27.5, topology: dgx-h100}
# environment: {NCCL_NVLS_ENABLE: "0"}

# What else lives on the device. Every field is required, so that nothing is hidden.
# external:
#   - name: monitoring agent
#     category: other
#     bytes: 300MiB
#     lifetime: persistent
#     evidence: assumed
#     provenance: nvidia-smi on an idle node
`;

const FRAMEWORKS: Readonly<Record<string, string>> = {
  torchtitan: `framework: torchtitan
checkout: ../torchtitan
# Exactly what you would write after "python -m torchtitan.train".
arguments: --module llama3 --config llama3_8b
${TAIL}
# Every combination is judged. Keys: gpu, world, nodes, allocator, margin, nccl.version, nccl.topology, options.NAME,
# env.NAME, or an argument of the framework.
matrix:
  gpu: [h100-80gb, h200-141gb]
  # "activation-checkpoint:": [none, selective, full]
`,
  megatron: `framework: megatron
checkout: ../Megatron-LM
# The script and exactly what you would write after it.
arguments: >-
  pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096
  --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 128 --bf16
  --tensor-model-parallel-size 2 --use-distributed-optimizer --train-iters 10 --lr 1e-4
  --tokenizer-type NullTokenizer --vocab-size 32000
${TAIL}
matrix:
  --micro-batch-size: [1, 2]
`,
  script: `framework: script
# The script and its arguments.
arguments: train.py --batch-size 8
${TAIL}
matrix:
  --batch-size: [8, 16]
`,
};

export const TEMPLATE_NAMES = Object.keys(FRAMEWORKS);

/** The text of a specification for a framework; undefined for one without a template. */
export function specTemplate(framework: string): string | undefined {
  const body = FRAMEWORKS[framework];
  return body === undefined ? undefined : `${HEAD}${body}`;
}
