// Owners of tensor memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "tensor/view.h"

namespace fwpkm {

// A device to run on: where memory comes from and which float type its tensors have.
struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  DType real = DType::kF32;

  static Device reference() { return {DeviceKind::kReference, DType::kF64}; }
  // The scalar reference code in float: the plain implementation that fast kernels are judged by.
  static Device plain() { return {DeviceKind::kReference, DType::kF32}; }
  static Device cpu() { return {DeviceKind::kCpu, DType::kF32}; }
  static Device cuda(DType real) { return {DeviceKind::kCuda, real}; }
  // "reference", "plain", "cpu", "cuda:f32", "cuda:bf16", or "cuda", which means `cuda_real`. An
  // error names the devices of this build. Without a GPU, cuda is the CPU, and a note says so.
  static Device parse(const std::string& name, DType cuda_real = DType::kBF16);

  // The type of what must not be rounded to 16 bits where activations are: statistics, decays,
  // states, losses, gradients of parameters.
  DType wide() const { return real == DType::kBF16 ? DType::kF32 : real; }
};

class Pool;

// A block of a pool, which goes back to it when the last owner lets go; or, without a pool, of the
// system's.
class Block {
 public:
  Block(Pool* pool, DeviceKind device, void* data, size_t bytes)
      : pool_(pool), device_(device), data_(data), bytes_(bytes) {}
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  void zero();

 private:
  Pool* pool_;
  DeviceKind device_;
  void* data_;
  size_t bytes_;
};

// Hands out aligned blocks and keeps returned ones for the next request of the same size, so that
// a training step allocates nothing after the first. Not thread-safe: one pool per run.
class Pool {
 public:
  explicit Pool(Device device) : device_(device) {}
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  std::shared_ptr<Block> allocate(size_t bytes);
  // A block that is not the pool's, but the owners' alone: it may outlive the pool, and be let go
  // in any thread. For what is kept over many runs.
  std::shared_ptr<Block> allocate_kept(size_t bytes);
  Device device() const { return device_; }
  // Fill new blocks with NaN, so that a kernel that leaves an output unwritten is found.
  void set_poison(bool on) { poison_ = on; }
  // Only count: runs on this pool skip all kernels, and blocks are address space that nobody
  // touches. For planning memory; to be set before the first block is asked for.
  void set_dry(bool on) { dry_ = on; }
  bool dry() const { return dry_; }
  size_t used_bytes() const { return used_; }
  size_t held_bytes() const { return held_; }
  size_t peak_bytes() const { return peak_; }
  // Gives unused blocks back to the system.
  void trim();

 private:
  friend class Block;
  void release(void* data, size_t bytes);

  Device device_;
  std::map<size_t, std::vector<void*>> free_;
  size_t used_ = 0;
  size_t held_ = 0;
  size_t peak_ = 0;
  bool poison_ = false;
  bool dry_ = false;
};

// Pools to run on, lent to whoever asks; from any thread.
class PoolSet {
 public:
  explicit PoolSet(Device device) : device_(device) {}

  // A pool that nobody else has; goes back to the set when the loan ends.
  class Loan {
   public:
    explicit Loan(PoolSet& set) : set_(set), pool_(set.take()) {}
    ~Loan() { set_.give_back(std::move(pool_)); }
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;
    Pool& operator*() const { return *pool_; }

   private:
    PoolSet& set_;
    std::unique_ptr<Pool> pool_;
  };

 private:
  std::unique_ptr<Pool> take();
  void give_back(std::unique_ptr<Pool> pool);

  Device device_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Pool>> idle_;
};

}  // namespace fwpkm
