// What the GPU itself can do, measured.
#pragma once

#include "bench/products.h"
#include "tensor/dtype.h"

namespace fwpkm {

// GFLOP/s over one step's products in this type, as best_product_rate on the CPU; gradients of
// weights are summed in float. Without a GPU an error.
double gpu_product_rate(const std::vector<Product>& products, int repeats, DType real);
// Bytes per second, read and written together, of the best of a few large copies on the GPU.
double gpu_copy_rate();

}  // namespace fwpkm
