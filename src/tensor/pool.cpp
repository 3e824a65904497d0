#include "tensor/pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <cassert>
#include <cstdlib>
#include <cstring>
#include <new>

#include "tensor/cuda.h"

namespace fwpkm {
namespace {

constexpr size_t kAlign = 64;
// Requests are rounded up to this, so that sizes that differ a little share blocks.
constexpr size_t kGranule = 4096;
constexpr size_t kHugePage = size_t{2} << 20;

// Memory of a device; null if there is none left.
void* system_allocate(DeviceKind device, size_t bytes) {
  if (device == DeviceKind::kCuda) {
    return cuda::allocate(bytes);
  }
  // Large blocks start on a huge page and ask for huge pages: tables and weights are read all
  // over, and page walks would cost more than the reads.
  const bool huge = bytes >= 2 * kHugePage;
  void* data = nullptr;
  if (posix_memalign(&data, huge ? kHugePage : kAlign, bytes) != 0) {
    return nullptr;
  }
  if (huge) {
    madvise(data, bytes, MADV_HUGEPAGE);  // advice only; failing changes nothing
  }
  return data;
}

void system_free(DeviceKind device, void* data, size_t bytes) {
  if (device == DeviceKind::kCuda) {
    cuda::release(data, bytes);
  } else {
    std::free(data);
  }
}

void fill_bytes(DeviceKind device, void* data, int byte, size_t bytes) {
  if (device == DeviceKind::kCuda) {
    cuda::fill(data, byte, bytes);
  } else {
    std::memset(data, byte, bytes);
  }
}

size_t rounded(size_t bytes) {
  const size_t unit = bytes < kGranule ? kAlign : kGranule;
  return std::max(kAlign, (bytes + unit - 1) / unit * unit);
}

double mib(size_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

}  // namespace

Device Device::parse(const std::string& name, DType cuda_real) {
  if (name == "reference") {
    return reference();
  }
  if (name == "cpu") {
    return cpu();
  }
  if (name == "plain") {
    return plain();
  }
  DType real = cuda_real;
  if (name == "cuda:f32") {
    real = DType::kF32;
  } else if (name == "cuda:bf16") {
    real = DType::kBF16;
  } else {
    require(name == "cuda", "device",
            "there is no device '{}'; use cpu, cuda, cuda:f32, cuda:bf16, reference or plain",
            name);
  }
  require(cuda::built(), "device",
          "this build has no CUDA backend; use --device cpu or --device reference");
  if (cuda::devices() == 0) {
    fmt::print(stderr, "note: there is no GPU that can be used; running on the CPU\n");
    return cpu();
  }
  return cuda(real);
}

Block::~Block() {
  if (pool_ != nullptr) {
    pool_->release(data_, bytes_);
  } else {
    system_free(device_, data_, bytes_);
  }
}

void Block::zero() {
  fill_bytes(device_, data_, 0, bytes_);
}

Pool::~Pool() {
  trim();
}

std::shared_ptr<Block> Pool::allocate(size_t bytes) {
  const size_t size = rounded(bytes);
  void* data = nullptr;
  // The closest returned block that fits without wasting more than an eighth of it.
  auto it = free_.lower_bound(size);
  while (it != free_.end() && it->second.empty() && it->first <= size + size / 8) {
    ++it;
  }
  size_t got = size;
  if (it != free_.end() && !it->second.empty() && it->first <= size + size / 8) {
    got = it->first;
    data = it->second.back();
    it->second.pop_back();
  } else {
    if (dry_) {
      data = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      data = data == MAP_FAILED ? nullptr : data;
    } else {
      data = system_allocate(device_.kind, size);
    }
    if (data == nullptr) {
      throw OutOfMemory(fmt::format(
          "[memory] out of memory asking for {:.1f} MiB ({:.1f} MiB are in use); use a smaller "
          "batch or a shorter sequence",
          mib(size), mib(used_)));
    }
    held_ += size;
  }
  used_ += got;
  peak_ = std::max(peak_, used_);
  if (poison_ && !dry_) {
    fill_bytes(device_.kind, data, 0xff, got);
  }
  return std::make_shared<Block>(this, device_.kind, data, got);
}

std::shared_ptr<Block> Pool::allocate_kept(size_t bytes) {
  if (dry_) {
    return allocate(bytes);
  }
  const size_t size = rounded(bytes);
  void* data = system_allocate(device_.kind, size);
  if (data == nullptr) {
    throw OutOfMemory(
        fmt::format("[memory] out of memory asking for {:.1f} MiB of a stream's state", mib(size)));
  }
  if (poison_) {
    fill_bytes(device_.kind, data, 0xff, size);
  }
  return std::make_shared<Block>(nullptr, device_.kind, data, size);
}

void Pool::release(void* data, size_t bytes) {
  used_ -= bytes;
  free_[bytes].push_back(data);
}

void Pool::trim() {
  for (auto& [bytes, blocks] : free_) {
    for (void* block : blocks) {
      if (dry_) {
        munmap(block, bytes);
      } else {
        system_free(device_.kind, block, bytes);
      }
      held_ -= bytes;
    }
    blocks.clear();
  }
}

std::unique_ptr<Pool> PoolSet::take() {
  const std::lock_guard lock(mutex_);
  if (idle_.empty()) {
    return std::make_unique<Pool>(device_);
  }
  std::unique_ptr<Pool> pool = std::move(idle_.back());
  idle_.pop_back();
  return pool;
}

void PoolSet::give_back(std::unique_ptr<Pool> pool) {
  // A block that comes back later would change a pool that another thread has by then.
  assert(pool->used_bytes() == 0 && "tensors must go before the loan of their pool ends");
  if (device_.kind == DeviceKind::kCuda) {
    cuda::synchronize();  // the next thread has a stream of its own
  }
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(pool));
}

}  // namespace fwpkm
