// A block for each piece of a parameter, whatever parameter it is of: the pieces are in a table.
#include <cmath>

#include "ops/common/device.cuh"
#include "tensor/cuda.h"
#include "tensor/profile.h"
#include "train/adamw_gpu.h"

namespace fwpkm {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kPiece = 16384;
// Late pieces must not be in the way of what runs beside them: small ones end soon, and memory that
// they do not use keeps all but a few away from each SM. Those are enough to keep memory busy.
constexpr int64_t kLatePiece = 2048;
constexpr size_t kLateShared = 48 << 10;

struct Piece {
  float* weight;
  const void* grad;  // of floats or bf16
  float *first, *second;
  bf16* half;             // or null
  const double* squares;  // of the whole parameter (AdamWGpu::Part)
  int32_t turn, turns;    // it adds up those that are `turns` apart
  int32_t size;
  bool decay, half_grad;
};

struct Numbers {
  float beta1, beta2, eps, keep, step, second_scale, gradient_scale, clip;
};

// What finish_kernel found.
struct Found {
  double norm;
  float scale;  // of gradients
  bool finite;
};

// Sums over a block of kThreads, for its first thread.
__device__ double block_sum_double(double x) {
  __shared__ double parts[kThreads];
  parts[threadIdx.x] = x;
  __syncthreads();
  for (int step = kThreads / 2; step > 0; step /= 2) {
    if (static_cast<int>(threadIdx.x) < step) {
      parts[threadIdx.x] += parts[threadIdx.x + step];
    }
    __syncthreads();
  }
  return parts[0];
}

// fn with the piece's gradient in its type.
template <typename Fn>
__device__ void with_gradient(const Piece& piece, Fn&& fn) {
  if (piece.half_grad) {
    fn(static_cast<const bf16*>(piece.grad));
  } else {
    fn(static_cast<const float*>(piece.grad));
  }
}

__global__ void squares_kernel(const Piece* pieces, double* partial) {
  const Piece piece = pieces[blockIdx.x];
  double sum = 0;
  const auto sums = piece.squares != nullptr ? static_cast<int64_t>(piece.squares[0]) : 0;
  for (int64_t i = piece.turn + int64_t{threadIdx.x} * piece.turns; i < sums;
       i += int64_t{kThreads} * piece.turns) {
    sum += piece.squares[1 + i];
  }
  // Parameters begin at whole cache lines: all but their ends can be taken four at a time.
  const int size = sums > 0 ? 0 : piece.size, whole = size / 4;
  with_gradient(piece, [&](const auto* grad) {
    const auto square = [](float g) { return static_cast<double>(g) * g; };
#pragma unroll 4
    for (int i = threadIdx.x; i < whole; i += kThreads) {
      float g[4];
      load_run(grad + 4 * i, g);
      sum += square(g[0]) + square(g[1]) + square(g[2]) + square(g[3]);
    }
    for (int i = 4 * whole + threadIdx.x; i < size; i += kThreads) {
      sum += square(to_float(grad[i]));
    }
  });
  sum = block_sum_double(sum);
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = sum;
  }
}

// One block.
__global__ void finish_kernel(const double* partial, int64_t count, const Numbers* numbers,
                              Found* found) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) {
    sum += partial[i];
  }
  sum = block_sum_double(sum);
  if (threadIdx.x == 0) {
    const double norm = sqrt(sum), clip = static_cast<double>(numbers->clip);
    found->norm = norm;
    found->finite = isfinite(norm);
    found->scale = static_cast<float>(static_cast<double>(numbers->gradient_scale) *
                                      (clip > 0 && norm > clip ? clip / (norm + 1e-6) : 1.0));
  }
}

struct Update {
  Numbers c;
  float keep, scale;

  __device__ float operator()(float weight, float grad, float* first, float* second) const {
    const float g = grad * scale;
    *first = c.beta1 * *first + (1 - c.beta1) * g;
    *second = c.beta2 * *second + (1 - c.beta2) * g * g;
    return keep * weight - c.step * *first / (sqrtf(*second) * c.second_scale + c.eps);
  }
};

template <typename Grad>
__device__ void update_piece(const Piece& piece, const Grad* grad, const Update& update) {
  const int whole = piece.size / 4;
#pragma unroll 2
  for (int i = 4 * threadIdx.x; i < 4 * whole; i += 4 * kThreads) {
    float w[4], g[4], m[4], v[4];
    load_run(piece.weight + i, w);
    load_run(grad + i, g);
    load_run(piece.first + i, m);
    load_run(piece.second + i, v);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      w[k] = update(w[k], g[k], &m[k], &v[k]);
    }
    store_run(piece.weight + i, w);
    store_run(piece.first + i, m);
    store_run(piece.second + i, v);
    if (piece.half != nullptr) {
      store_run(piece.half + i, w);
    }
  }
  for (int i = 4 * whole + threadIdx.x; i < piece.size; i += kThreads) {
    const float w = update(piece.weight[i], to_float(grad[i]), piece.first + i, piece.second + i);
    piece.weight[i] = w;
    if (piece.half != nullptr) {
      piece.half[i] = from_float<bf16>(w);
    }
  }
}

__global__ void update_kernel(const Piece* pieces, const Numbers* numbers, const Found* found) {
  const Piece piece = pieces[blockIdx.x];
  if (!found->finite) {
    return;
  }
  const Numbers c = *numbers;
  const Update update = {c, piece.decay ? c.keep : 1.0f, found->scale};
  with_gradient(piece, [&](const auto* grad) { update_piece(piece, grad, update); });
}

template <typename T>
T* allocate(int64_t count) {
  void* data = cuda::allocate(static_cast<size_t>(std::max<int64_t>(1, count)) * sizeof(T));
  require(data != nullptr, "memory", "the GPU has no memory left for the optimizer");
  return static_cast<T*>(data);
}
template <typename T>
void release(T* data, int64_t count) {
  cuda::release(data, static_cast<size_t>(std::max<int64_t>(1, count)) * sizeof(T));
}

// Pieces of parameters, on the GPU.
struct Pieces {
  int64_t count = 0;
  Piece* all = nullptr;

  Pieces() = default;
  Pieces(const Pieces&) = delete;
  Pieces& operator=(const Pieces&) = delete;
  ~Pieces() { release(all, count); }

  void put(const std::vector<Piece>& pieces) {
    if (pieces.empty()) {
      return;
    }
    count = static_cast<int64_t>(pieces.size());
    all = allocate<Piece>(count);
    cuda::copy_in(all, pieces.data(), pieces.size() * sizeof(Piece));
  }
};

void cut(const AdamWGpu::Part& part, int64_t length, std::vector<Piece>* pieces) {
  const auto turns = static_cast<int32_t>(ceil_div(part.weight.size(), length));
  const auto* grad = static_cast<const std::byte*>(part.grad.data);
  const auto width = static_cast<int64_t>(dtype_size(part.grad.dtype));
  for (int64_t begin = 0; begin < part.weight.size(); begin += length) {
    pieces->push_back({part.weight.ptr<float>() + begin, grad + begin * width,
                       part.first.ptr<float>() + begin, part.second.ptr<float>() + begin,
                       part.half ? part.half.ptr<bf16>() + begin : nullptr, part.squares,
                       static_cast<int32_t>(begin / length), turns,
                       static_cast<int32_t>(std::min(length, part.weight.size() - begin)),
                       part.decay, part.grad.dtype == DType::kBF16});
  }
}

}  // namespace

struct AdamWGpu::Memory {
  Pieces pieces;      // of all parts, first those that are not late
  int64_t early = 0;  // as many are those
  Pieces late;        // smaller ones of the others
  double* partial = nullptr;
  Numbers *numbers = nullptr, *staged = nullptr;  // the second in memory of the host
  Found *found = nullptr, *seen = nullptr;
  cudaStream_t beside = nullptr;  // where late parts are updated
  cudaEvent_t updated = nullptr;

  ~Memory() {
    release(partial, pieces.count);
    release(numbers, 1);
    release(found, 1);
    cuda::release_pinned(staged);
    cuda::release_pinned(seen);
    if (beside != nullptr) {
      cudaStreamDestroy(beside);
    }
    if (updated != nullptr) {
      cudaEventDestroy(updated);
    }
  }
};

AdamWGpu::AdamWGpu(const std::vector<Part>& parts) : memory_(std::make_unique<Memory>()) {
  std::vector<Piece> all, late, smaller;
  for (const Part& part : parts) {
    cut(part, kPiece, part.late ? &late : &all);
    if (part.late) {
      cut(part, kLatePiece, &smaller);
    }
  }
  Memory& m = *memory_;
  m.early = static_cast<int64_t>(all.size());
  all.insert(all.end(), late.begin(), late.end());
  m.pieces.put(all);
  m.late.put(smaller);
  if (m.late.count > 0) {
    int least = 0, greatest = 0;
    check_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest), "asking for priorities");
    check_cuda(cudaStreamCreateWithPriority(&m.beside, cudaStreamNonBlocking, least),
               "making a stream");
    check_cuda(cudaEventCreateWithFlags(&m.updated, cudaEventDisableTiming), "making an event");
    check_cuda(cudaEventRecord(m.updated, m.beside), "ordering streams");
  }
  m.partial = allocate<double>(m.pieces.count);
  m.numbers = allocate<Numbers>(1);
  m.found = allocate<Found>(1);
  m.staged = static_cast<Numbers*>(cuda::allocate_pinned(sizeof(Numbers)));
  m.seen = static_cast<Found*>(cuda::allocate_pinned(sizeof(Found)));
  require(m.staged != nullptr && m.seen != nullptr, "memory", "no pinned memory is left");
  send(AdamWConstants(), 0);
}

AdamWGpu::~AdamWGpu() = default;

void AdamWGpu::send(const AdamWConstants& c, double clip) {
  *memory_->staged = {static_cast<float>(c.beta1),
                      static_cast<float>(c.beta2),
                      static_cast<float>(c.eps),
                      static_cast<float>(c.keep),
                      static_cast<float>(c.step),
                      static_cast<float>(c.second_scale),
                      static_cast<float>(c.gradient_scale),
                      static_cast<float>(clip)};
  await_late();  // it reads the numbers before
  cuda::send(memory_->numbers, memory_->staged, sizeof(Numbers));
}

void AdamWGpu::enqueue_norm() {
  const Memory& m = *memory_;
  if (m.pieces.count > 0) {
    squares_kernel<<<static_cast<unsigned>(m.pieces.count), kThreads, 0, this_stream()>>>(
        m.pieces.all, m.partial);
    check_launch("adamw squares");
  }
  finish_kernel<<<1, kThreads, 0, this_stream()>>>(m.partial, m.pieces.count, m.numbers, m.found);
  check_launch("adamw norm");
  cuda::fetch(m.seen, m.found, sizeof(Found));
}

void AdamWGpu::enqueue_update() {
  const Memory& m = *memory_;
  if (m.early > 0) {
    update_kernel<<<static_cast<unsigned>(m.early), kThreads, 0, this_stream()>>>(
        m.pieces.all, m.numbers, m.found);
    check_launch("adamw");
  }
}

void AdamWGpu::start_late() {
  const Memory& m = *memory_;
  if (m.late.count == 0) {
    return;
  }
  // No graph that waits for the event may be under way when it is recorded again.
  cuda::synchronize();
  const cudaStream_t stream = Profile::waiting() ? this_stream() : m.beside;
  update_kernel<<<static_cast<unsigned>(m.late.count), kThreads, kLateShared, stream>>>(
      m.late.all, m.numbers, m.found);
  check_launch("adamw late");
  check_cuda(cudaEventRecord(m.updated, stream), "ordering streams");
}

void AdamWGpu::await_late() const {
  if (memory_->late.count == 0) {
    return;
  }
  cudaStreamCaptureStatus status{};
  check_cuda(cudaStreamIsCapturing(this_stream(), &status), "ordering streams");
  // The event is recorded outside of graphs.
  const unsigned flags =
      status == cudaStreamCaptureStatusNone ? cudaEventWaitDefault : cudaEventWaitExternal;
  check_cuda(cudaStreamWaitEvent(this_stream(), memory_->updated, flags), "ordering streams");
}

double AdamWGpu::norm() const {
  cuda::synchronize();
  return memory_->seen->norm;
}

}  // namespace fwpkm
