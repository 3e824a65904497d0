#include "memory/gpu_rows.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "ops/common/device.cuh"
#include "tensor/cuda.h"

namespace fwpkm::gpu_rows {
namespace {

constexpr int kThreads = 256;

// Pinned memory of a thread that lists go through; it serves again when all copies are done.
class Staging {
 public:
  static Staging& mine() {
    thread_local Staging one;
    return one;
  }
  ~Staging() {
    if (data_ != nullptr) {
      cuda::release_pinned(data_);  // fails where the driver is gone already, with everything
    }
  }
  void send(void* to, const void* host, size_t bytes) {
    if (bytes > kMost) {
      cuda::copy_in(to, host, bytes);
      return;
    }
    if (data_ == nullptr) {
      data_ = static_cast<std::byte*>(cuda::allocate_pinned(kMost));
      require(data_ != nullptr, "memory", "no pinned memory is left ({} bytes asked for)", kMost);
    }
    if (used_ + bytes > kMost) {
      cuda::synchronize();
      used_ = 0;
    }
    std::memcpy(data_ + used_, host, bytes);
    cuda::send(to, data_ + used_, bytes);
    used_ += (bytes + 15) / 16 * 16;
  }

 private:
  static constexpr size_t kMost = size_t{8} << 20;
  std::byte* data_ = nullptr;
  size_t used_ = 0;
};

// A list of the host on the GPU, for the kernel that comes next.
template <typename T>
class Sent {
 public:
  explicit Sent(std::span<const T> list)
      : bytes_(std::max<size_t>(4096, std::bit_ceil(list.size_bytes()))),
        data_(static_cast<T*>(cuda::allocate(bytes_))) {
    require(data_ != nullptr, "memory", "the GPU has no memory left for a list of {} bytes",
            list.size_bytes());
    Staging::mine().send(data_, list.data(), list.size_bytes());
  }
  ~Sent() { cuda::release(data_, bytes_); }
  Sent(const Sent&) = delete;
  Sent& operator=(const Sent&) = delete;
  const T* data() const { return data_; }

 private:
  size_t bytes_;
  T* data_;
};

// A warp for each row.
template <typename T>
__global__ void copy_kernel(const T* from, T* to, int64_t width, const Move* moves, int64_t count) {
  const int64_t i = (blockIdx.x * int64_t{kThreads} + threadIdx.x) / 32;
  if (i >= count) {
    return;
  }
  const Move move = moves[i];
  from += move.from * width;
  to += move.to * width;
  for (int64_t c = threadIdx.x % 32; c < width; c += 32) {
    to[c] = from[c];
  }
}

// A block for each page.
__global__ void clear_kernel(int32_t* pages, int64_t n, const int32_t* numbers) {
  int32_t* page = pages + numbers[blockIdx.x] * n;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) {
    page[i] = -1;
  }
}

__global__ void change_kernel(int32_t* pages, int64_t n, const Change* changes, int64_t count) {
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (i < count) {
    pages[changes[i].page * n + changes[i].place] = changes[i].row;
  }
}

unsigned blocks(size_t items, int each) {
  return static_cast<unsigned>(ceil_div(static_cast<int64_t>(items), each));
}

}  // namespace

void copy(const void* from, void* to, size_t row_bytes, std::span<const Move> moves) {
  if (moves.empty()) {
    return;
  }
  const Sent<Move> list(moves);
  const auto launch = [&]<typename T>(T*) {
    copy_kernel<T><<<blocks(moves.size(), kThreads / 32), kThreads, 0, this_stream()>>>(
        static_cast<const T*>(from), static_cast<T*>(to),
        static_cast<int64_t>(row_bytes / sizeof(T)), list.data(),
        static_cast<int64_t>(moves.size()));
    check_launch("copying rows of a memory");
  };
  const auto both = reinterpret_cast<uintptr_t>(from) | reinterpret_cast<uintptr_t>(to) | row_bytes;
  if (both % sizeof(uint4) == 0) {
    launch(static_cast<uint4*>(nullptr));
  } else {
    launch(static_cast<uint32_t*>(nullptr));
  }
}

void clear_pages(int32_t* pages, int64_t n, std::span<const int32_t> numbers) {
  if (!numbers.empty()) {
    const Sent<int32_t> list(numbers);
    clear_kernel<<<blocks(numbers.size(), 1), kThreads, 0, this_stream()>>>(pages, n, list.data());
    check_launch("clearing pages of a memory");
  }
}

void change_pages(int32_t* pages, int64_t n, std::span<const Change> changes) {
  if (!changes.empty()) {
    const Sent<Change> list(changes);
    change_kernel<<<blocks(changes.size(), kThreads), kThreads, 0, this_stream()>>>(
        pages, n, list.data(), static_cast<int64_t>(changes.size()));
    check_launch("changing pages of a memory");
  }
}

void send(void* to, const void* host, size_t bytes) {
  Staging::mine().send(to, host, bytes);
}

}  // namespace fwpkm::gpu_rows
