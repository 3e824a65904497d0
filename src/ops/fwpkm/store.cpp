#include "ops/fwpkm/store.h"

namespace fwpkm {

bool FwpkmStore::can_halve(const FwpkmSettings& settings, int64_t dv, Device device) {
  return device.kind == DeviceKind::kCuda && device.real == DType::kBF16 && dv % 8 == 0 &&
         settings.heads * settings.topk <= kFwpkmFewReads && settings.addr_loss &&
         !settings.late_values;
}

FwpkmStore::FwpkmStore(Pool& pool, const View& values, const FwpkmSettings& settings, bool far)
    : pool_(pool), values_(values), settings_(settings), far_(far) {
  rows_.halved = can_halve(settings, values.dim(1), pool.device());
}

int64_t FwpkmStore::log_rows(int64_t batch, int64_t time) const {
  const FwpkmSizes sizes(settings_, {batch, time, 0}, {0, 0}, values_.shape);
  return settings_.shared && !far_ ? sizes.log_cap : 0;
}

#ifdef FWPKM_CUDA
void FwpkmStore::open(int64_t log_rows) {
  require(!open_, "fwpkm", "the store is open");
  if (log_rows > capacity()) {
    rows_.log = rows_.places = rows_.free = Tensor();
    Run run(pool_);
    rows_.log = run.make_kept("fwpkm.log", {log_rows, values_.dim(1)}, run.wide());
    rows_.places = run.make_kept("fwpkm.places", {values_.dim(0)}, DType::kI32);
    rows_.free = run.make_kept("fwpkm.free", {log_rows}, DType::kI32);
  }
  if (rows_.log) {
    FwpkmStoreCuda::number(rows_.places.view(), rows_.free.view());
  }
  if (rows_.halved) {
    FwpkmStoreCuda::halve(values_);
  }
  open_ = true;
}

void FwpkmStore::adopt(const FwpkmResult& result) {
  FwpkmStoreCuda::adopt(result, rows_.places.view(), rows_.free.view());
}

void FwpkmStore::settle() {
  if (!open_) {
    return;
  }
  open_ = false;
  if (rows_.log) {
    constexpr int64_t kColumns = 32;
    Run run(pool_);
    const Tensor some =
        run.make("fwpkm.sorted", {values_.dim(0), std::min(kColumns, values_.dim(1))}, run.wide());
    FwpkmStoreCuda::sort(values_, rows_.log.view(), rows_.places.view(), some.view());
  }
  if (rows_.halved) {
    FwpkmStoreCuda::join(values_);
  }
}

Tensor FwpkmStore::plain(Run& run, const Tensor& rows) const {
  const Tensor copy = run.make("fwpkm.plain", rows.shape(), run.wide());
  copy_view(rows.view(), copy.view());
  if (rows_.halved) {
    FwpkmStoreCuda::join(copy.view());
  }
  return copy;
}
#else
void FwpkmStore::open(int64_t) {
  fail("fwpkm", "a store needs a GPU");
}
void FwpkmStore::adopt(const FwpkmResult&) {}
void FwpkmStore::settle() {}
Tensor FwpkmStore::plain(Run&, const Tensor& rows) const {
  return rows;
}
#endif

}  // namespace fwpkm
