// cuBLAS and cuBLASLt that succeed and do nothing, for running eager PyTorch code on the fake CUDA: what ATen allocates
// around a matrix product is real, the product is not computed. Preloaded after libfakecuda.so.

#include <string.h>

#define NO_OP(name) \
  int name(void) { return 0; }

// BLAS-like routines, handles and modes.
// clang-format off
  NO_OP(cublasCaxpy_v2) NO_OP(cublasCcopy_v2) NO_OP(cublasCdotc_v2) NO_OP(cublasCdotu_v2)
  NO_OP(cublasCgelsBatched) NO_OP(cublasCgemmBatched) NO_OP(cublasCgemmStridedBatched)
  NO_OP(cublasCgemm_v2) NO_OP(cublasCgemv_v2) NO_OP(cublasCgeqrfBatched) NO_OP(cublasCgerc_v2)
  NO_OP(cublasCgeru_v2) NO_OP(cublasCgetrfBatched) NO_OP(cublasCgetrsBatched)
  NO_OP(cublasChemm_v2) NO_OP(cublasChemv_v2) NO_OP(cublasCher2_v2) NO_OP(cublasCher2k_v2)
  NO_OP(cublasCher_v2) NO_OP(cublasCherk_v2) NO_OP(cublasCrot_v2) NO_OP(cublasCrotg_v2)
  NO_OP(cublasCscal_v2) NO_OP(cublasCsrot_v2) NO_OP(cublasCsscal_v2) NO_OP(cublasCswap_v2)
  NO_OP(cublasCsymm_v2) NO_OP(cublasCsymv_v2) NO_OP(cublasCsyr2_v2) NO_OP(cublasCsyr2k_v2)
  NO_OP(cublasCsyr_v2) NO_OP(cublasCsyrk_v2) NO_OP(cublasCtrmm_v2) NO_OP(cublasCtrmv_v2)
  NO_OP(cublasCtrsmBatched) NO_OP(cublasCtrsm_v2) NO_OP(cublasCtrsv_v2) NO_OP(cublasDasum_v2)
  NO_OP(cublasDaxpy_v2) NO_OP(cublasDcopy_v2) NO_OP(cublasDdot_v2) NO_OP(cublasDestroy_v2)
  NO_OP(cublasDgelsBatched) NO_OP(cublasDgemmBatched) NO_OP(cublasDgemmStridedBatched)
  NO_OP(cublasDgemm_v2) NO_OP(cublasDgemv_v2) NO_OP(cublasDgeqrfBatched) NO_OP(cublasDger_v2)
  NO_OP(cublasDgetrfBatched) NO_OP(cublasDgetrsBatched) NO_OP(cublasDnrm2_v2) NO_OP(cublasDotEx)
  NO_OP(cublasDrot_v2) NO_OP(cublasDrotg_v2) NO_OP(cublasDrotm_v2) NO_OP(cublasDrotmg_v2)
  NO_OP(cublasDscal_v2) NO_OP(cublasDswap_v2) NO_OP(cublasDsymm_v2) NO_OP(cublasDsymv_v2)
  NO_OP(cublasDsyr2_v2) NO_OP(cublasDsyr2k_v2) NO_OP(cublasDsyr_v2) NO_OP(cublasDsyrk_v2)
  NO_OP(cublasDtrmm_v2) NO_OP(cublasDtrmv_v2) NO_OP(cublasDtrsmBatched) NO_OP(cublasDtrsm_v2)
  NO_OP(cublasDtrsv_v2) NO_OP(cublasDzasum_v2) NO_OP(cublasDznrm2_v2) NO_OP(cublasGemmEx)
  NO_OP(cublasGemmStridedBatchedEx) NO_OP(cublasGetMatrixAsync) NO_OP(cublasGetVectorAsync)
  NO_OP(cublasIcamax_v2) NO_OP(cublasIcamin_v2) NO_OP(cublasIdamax_v2) NO_OP(cublasIdamin_v2)
  NO_OP(cublasIsamax_v2) NO_OP(cublasIsamin_v2) NO_OP(cublasIzamax_v2) NO_OP(cublasIzamin_v2)
  NO_OP(cublasSasum_v2) NO_OP(cublasSaxpy_v2) NO_OP(cublasScasum_v2) NO_OP(cublasScnrm2_v2)
  NO_OP(cublasScopy_v2) NO_OP(cublasSdot_v2) NO_OP(cublasSetMathMode) NO_OP(cublasSetMatrixAsync)
  NO_OP(cublasSetPointerMode_v2) NO_OP(cublasSetSmCountTarget) NO_OP(cublasSetStream_v2)
  NO_OP(cublasSetVectorAsync) NO_OP(cublasSetWorkspace_v2) NO_OP(cublasSgelsBatched)
  NO_OP(cublasSgemmBatched) NO_OP(cublasSgemmEx) NO_OP(cublasSgemmStridedBatched)
  NO_OP(cublasSgemm_v2) NO_OP(cublasSgemv_v2) NO_OP(cublasSgeqrfBatched) NO_OP(cublasSger_v2)
  NO_OP(cublasSgetrfBatched) NO_OP(cublasSgetrsBatched) NO_OP(cublasSnrm2_v2) NO_OP(cublasSrot_v2)
  NO_OP(cublasSrotg_v2) NO_OP(cublasSrotm_v2) NO_OP(cublasSrotmg_v2) NO_OP(cublasSscal_v2)
  NO_OP(cublasSswap_v2) NO_OP(cublasSsymm_v2) NO_OP(cublasSsymv_v2) NO_OP(cublasSsyr2_v2)
  NO_OP(cublasSsyr2k_v2) NO_OP(cublasSsyr_v2) NO_OP(cublasSsyrk_v2) NO_OP(cublasStrmm_v2)
  NO_OP(cublasStrmv_v2) NO_OP(cublasStrsmBatched) NO_OP(cublasStrsm_v2) NO_OP(cublasStrsv_v2)
  NO_OP(cublasZaxpy_v2) NO_OP(cublasZcopy_v2) NO_OP(cublasZdotc_v2) NO_OP(cublasZdotu_v2)
  NO_OP(cublasZdrot_v2) NO_OP(cublasZdscal_v2) NO_OP(cublasZgelsBatched) NO_OP(cublasZgemmBatched)
  NO_OP(cublasZgemmStridedBatched) NO_OP(cublasZgemm_v2) NO_OP(cublasZgemv_v2)
  NO_OP(cublasZgeqrfBatched) NO_OP(cublasZgerc_v2) NO_OP(cublasZgeru_v2)
  NO_OP(cublasZgetrfBatched) NO_OP(cublasZgetrsBatched) NO_OP(cublasZhemm_v2)
  NO_OP(cublasZhemv_v2) NO_OP(cublasZher2_v2) NO_OP(cublasZher2k_v2) NO_OP(cublasZher_v2)
  NO_OP(cublasZherk_v2) NO_OP(cublasZrot_v2) NO_OP(cublasZrotg_v2) NO_OP(cublasZscal_v2)
  NO_OP(cublasZswap_v2) NO_OP(cublasZsymm_v2) NO_OP(cublasZsymv_v2) NO_OP(cublasZsyr2_v2)
  NO_OP(cublasZsyr2k_v2) NO_OP(cublasZsyr_v2) NO_OP(cublasZsyrk_v2) NO_OP(cublasZtrmm_v2)
  NO_OP(cublasZtrmv_v2) NO_OP(cublasZtrsmBatched) NO_OP(cublasZtrsm_v2) NO_OP(cublasZtrsv_v2)

  NO_OP(cublasLtMatmul) NO_OP(cublasLtMatmulAlgoCheck) NO_OP(cublasLtMatmulAlgoConfigGetAttribute)
  NO_OP(cublasLtMatmulAlgoConfigSetAttribute) NO_OP(cublasLtMatmulAlgoInit)
  NO_OP(cublasLtMatmulDescDestroy) NO_OP(cublasLtMatmulDescSetAttribute)
  NO_OP(cublasLtMatmulPreferenceDestroy) NO_OP(cublasLtMatmulPreferenceSetAttribute)
  NO_OP(cublasLtMatrixLayoutDestroy) NO_OP(cublasLtMatrixLayoutSetAttribute)
// clang-format on

// Handles are any pointer that is not null.

#define MAKES_HANDLE(name, value) \
  int name(void** handle) {       \
    *handle = (void*)(value);     \
    return 0;                     \
  }

// cuBLAS handles differ: PyTorch keeps a workspace for each handle and stream, and each thread has a handle of its own.
int cublasCreate_v2(void** handle) {
  static unsigned long created;
  *handle = (void*)(0x10000 + 0x1000 * __sync_fetch_and_add(&created, 1));
  return 0;
}
MAKES_HANDLE(cublasLtMatmulDescCreate, 0x610)
MAKES_HANDLE(cublasLtMatrixLayoutCreate, 0x620)
MAKES_HANDLE(cublasLtMatmulPreferenceCreate, 0x630)

int cublasGetMathMode(void* handle, int* mode) {
  (void)handle;
  *mode = 0;
  return 0;
}
int cublasGetPointerMode_v2(void* handle, int* mode) {
  (void)handle;
  *mode = 0;
  return 0;
}
unsigned long cublasLtGetVersion(void) { return 130100; }

// sizeof(cublasLtMatmulHeuristicResult_t): an algorithm of 64 bytes, the workspace size, status, waves, reserved.
enum { kHeuristicResultBytes = 64 + 8 + 4 + 4 + 4 * 4 };

// One algorithm that needs no workspace.
int cublasLtMatmulAlgoGetHeuristic(void* handle, void* operation, void* a, void* b, void* c, void* d,
                                   void* preference, int wanted, void* results, int* found) {
  (void)handle, (void)operation, (void)a, (void)b, (void)c, (void)d, (void)preference;
  if (wanted > 0) memset(results, 0, kHeuristicResultBytes);
  *found = wanted > 0;
  return 0;
}
