#include "ops/fwpkm/written.h"

#include <cstring>

namespace fwpkm {

void put_written(const FwpkmResult& r, const View& values) {
#ifdef FWPKM_CUDA
  if (values.device == DeviceKind::kCuda) {
    put_written_cuda(r, values);
    return;
  }
#endif
  auto* table = static_cast<std::byte*>(values.data);
  for_written(r, [&](int64_t, int32_t slot, const std::byte* row, size_t bytes) {
    std::memcpy(table + static_cast<size_t>(slot) * bytes, row, bytes);
  });
}

}  // namespace fwpkm
