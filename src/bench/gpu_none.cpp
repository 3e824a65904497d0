// A build without CUDA.
#include "base/error.h"
#include "bench/gpu.h"

namespace fwpkm {

double gpu_product_rate(const std::vector<Product>&, int, DType) {
  fail("bench", "this build has no CUDA backend");
}
double gpu_copy_rate() {
  fail("bench", "this build has no CUDA backend");
}

}  // namespace fwpkm
