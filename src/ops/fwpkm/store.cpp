#include "ops/fwpkm/store.h"

namespace fwpkm {
namespace {

constexpr int64_t kSorted = 16;  // columns that are sorted at a time

}  // namespace

FwpkmStore::FwpkmStore(Pool& pool, const View& values, const FwpkmSettings& settings, bool far)
    : pool_(pool), values_(values), settings_(settings), far_(far) {
  rows_.halved = can_halve_rows(settings, values.dim(1), pool.device());
}

int64_t FwpkmStore::log_rows(int64_t batch, int64_t time) const {
  const FwpkmSizes sizes(settings_, {batch, time, 0}, {0, 0}, values_.shape);
  return settings_.shared && !far_ ? sizes.log_cap : 0;
}

void FwpkmStore::open(int64_t log_rows) {
  require(pool_.device().kind == DeviceKind::kCuda, "fwpkm", "only a GPU has stores");
  require(!open_, "fwpkm", "the store is open already");
  require(values_.dim(0) + log_rows <= INT32_MAX, "fwpkm",
          "{} slots and {} new rows are more places than 32 bits can count", values_.dim(0),
          log_rows);
  if (log_rows > capacity()) {
    rows_.log = rows_.places = rows_.free = sorted_ = Tensor();
    Run run(pool_);
    rows_.log = run.make_kept("fwpkm.log", {log_rows, values_.dim(1)}, run.wide());
    rows_.places = run.make_kept("fwpkm.places", {values_.dim(0)}, DType::kI32);
    rows_.free = run.make_kept("fwpkm.free", {log_rows}, DType::kI32);
    // Now, not when it is needed: a table that cannot be settled would be lost.
    sorted_ = run.make_kept("fwpkm.sorted", {values_.dim(0), std::min(kSorted, values_.dim(1))},
                            run.wide());
  }
  lay_out();
  open_ = true;
}

size_t FwpkmStore::bytes() const {
  int64_t sum = 0;
  for (const Tensor* t : {&rows_.log, &rows_.places, &rows_.free, &sorted_}) {
    sum += *t ? t->view().bytes() : 0;
  }
  return static_cast<size_t>(sum);
}

int64_t FwpkmStore::planned_bytes(const FwpkmSettings& settings, const Shape& values, int64_t batch,
                                  int64_t time) {
  if (!settings.shared) {
    return 0;
  }
  const FwpkmSizes sizes(settings, {batch, time, 0}, {0, 0}, values);
  const int64_t slots = values.dims[0], columns = std::min(kSorted, values.dims[1]);
  return slots * columns * static_cast<int64_t>(sizeof(float)) +
         (slots + sizes.log_cap) * static_cast<int64_t>(sizeof(int32_t));
}

#ifdef FWPKM_CUDA
void FwpkmStore::lay_out() {
  if (rows_.log) {
    FwpkmStoreCuda::number(rows_.places.view(), rows_.free.view());
  }
  if (rows_.halved) {
    FwpkmStoreCuda::halve(values_);
  }
}

void FwpkmStore::adopt(const FwpkmResult& result) {
  FwpkmStoreCuda::adopt(result, rows_.places.view(), rows_.free.view());
}

void FwpkmStore::settle() {
  if (!open_) {
    return;
  }
  if (rows_.log) {
    FwpkmStoreCuda::sort(values_, rows_.log.view(), rows_.places.view(), sorted_.view());
  }
  if (rows_.halved) {
    FwpkmStoreCuda::join(values_);
  }
  open_ = false;
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
// Nobody gets this far: there is no GPU to be opened on.
void FwpkmStore::lay_out() {}
void FwpkmStore::adopt(const FwpkmResult&) {}
void FwpkmStore::settle() {}
Tensor FwpkmStore::plain(Run&, const Tensor& rows) const {
  return rows;
}
#endif

}  // namespace fwpkm
