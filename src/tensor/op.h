// What an op is: a name and, per device, a forward and a backward kernel of one call shape.
#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <span>
#include <type_traits>

#include "tensor/view.h"

namespace fwpkm {

// Up to 128 bytes of plain settings that travel with a call.
class Attributes {
 public:
  Attributes() = default;
  template <typename T>
  requires(std::is_trivially_copyable_v<T> && !std::is_same_v<T, Attributes>)
      Attributes(const T& value) {  // NOLINT: settings convert silently on purpose
    static_assert(sizeof(T) <= sizeof(bytes_));
    std::memcpy(bytes_, &value, sizeof(T));
  }
  template <typename T>
  T get() const {
    T value;
    std::memcpy(&value, bytes_, sizeof(T));
    return value;
  }

 private:
  alignas(16) std::byte bytes_[128] = {};
};

// One call of a kernel. Kernels take views, never own and never allocate.
//
// The gradient contract: backward either overwrites or adds to each gradient in `din`, as the
// input's entry in `accumulate` says. The tape asks for overwriting where an activation is reached
// first and for adding afterwards; gradients of parameters are always added to. An empty view in
// `din` means that nobody wants that gradient.
struct OpArgs {
  std::span<const View> in;     // inputs; an optional one may be empty
  std::span<const View> out;    // outputs: written by forward, and still there in backward
  std::span<const View> saved;  // left by forward for backward; empty views without a tape
  std::span<const View> state;  // read and written in place by forward; not differentiated
  std::span<const View> dout;   // backward: gradients of the outputs; empty where none arrived
  std::span<const View> din;    // backward: gradients of the inputs
  std::span<const bool> accumulate;
  Attributes attributes;
  void* workspace = nullptr;  // as many bytes as Op::workspace asked for, aligned to 64
  bool late = false;          // forward: Op::late, and backward will come

  template <typename T>
  T attr() const {
    return attributes.get<T>();
  }
};

// The kernels of a device that is not in every build.
#ifdef FWPKM_CUDA
#define FWPKM_CUDA_KERNELS(...) \
  { __VA_ARGS__ }
#else
#define FWPKM_CUDA_KERNELS(...) \
  {}
#endif

using Kernel = void (*)(const OpArgs&);
using WorkspaceSize = size_t (*)(const OpArgs&, bool backward);

struct Kernels {
  Kernel forward = nullptr;
  Kernel backward = nullptr;
  WorkspaceSize workspace = nullptr;  // bytes; none if null
};

struct Op {
  const char* name;
  Kernels reference_f64;
  Kernels reference_f32;
  Kernels cpu;
  Kernels cuda;
  // Input whose gradient is exactly the gradient of output 0 (a residual), or -1. The tape then
  // lets both share memory where it can; the kernel skips that input when they do.
  int pass_through = -1;
  // On a GPU, forward may leave work beside that of the thread (SideStream::leave) if all that is
  // to come before backward needs nothing of it: its workspace stays until then.
  bool late = false;

  // The kernels for a device and type; a missing one fails by name.
  const Kernels& kernels(DeviceKind device, DType real) const;
};

}  // namespace fwpkm
