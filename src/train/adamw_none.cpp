// A build without CUDA: nobody makes one of these.
#include "train/adamw_gpu.h"

namespace fwpkm {

struct AdamWGpu::Memory {};

AdamWGpu::AdamWGpu(const std::vector<Part>&) {
  fail("adamw", "this build has no CUDA backend");
}
AdamWGpu::~AdamWGpu() = default;
void AdamWGpu::send(const AdamWConstants&, double) {}
void AdamWGpu::enqueue_norm() {}
void AdamWGpu::enqueue_update() {}
void AdamWGpu::start_late() {}
void AdamWGpu::await_late() const {}
double AdamWGpu::norm() const {
  return 0;
}

}  // namespace fwpkm
