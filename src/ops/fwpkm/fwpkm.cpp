#include "ops/fwpkm/fwpkm.h"

#include "ops/fwpkm/reference.h"

namespace fwpkm {

const Op kFwpkm = {
    .name = "fwpkm",
    .reference_f64 = {&fwpkm_forward_reference<double>, &fwpkm_backward_reference<double>},
    .reference_f32 = {&fwpkm_forward_reference<float>, &fwpkm_backward_reference<float>},
    .cpu = {&fwpkm_forward_cpu, &fwpkm_backward_cpu, &fwpkm_workspace_cpu},
    .cuda = FWPKM_CUDA_KERNELS(&fwpkm_forward_cuda, &fwpkm_backward_cuda, &fwpkm_workspace_cuda),
    .late = true,
};

FwpkmSizes::FwpkmSizes(const FwpkmSettings& settings, const Shape& q, const Shape& keys,
                       const Shape& values)
    : set(settings),
      batch(q[0]),
      time(q[1]),
      heads(settings.heads),
      k(settings.topk),
      n(settings.n_subkeys),
      half(keys[1]),
      dv(values[1]) {
  row = heads * 2 * half;
  reads = heads * k;
  books = heads * 2;
  chunks = (time + set.chunk - 1) / set.chunk;
  owners = set.shared ? 1 : batch;
  const int64_t slots = n * n, together = set.shared ? batch : 1;
  chain_cap = std::min(slots, together * time * reads);
  log_cap = 0;
  for (int64_t c = 0; c < chunks && set.write; ++c) {
    log_cap += std::min(slots, together * writers(c) * reads);
  }
}

namespace {

void require_shapes(const Tensor& q, const Tensor& v, const Tensor& g, const Tensor& keys,
                    const Tensor& values, const FwpkmSettings& s) {
  const char* name = kFwpkm.name;
  require(s.heads >= 1 && s.n_subkeys >= 1 && s.topk >= 1 && s.topk <= s.n_subkeys, name,
          "needs heads >= 1 and 1 <= topk <= n_subkeys, but heads={}, topk={}, n_subkeys={}",
          s.heads, s.topk, s.n_subkeys);
  require(s.n_subkeys <= 46340, name, "n_subkeys={} makes more slots than 32 bits can count",
          s.n_subkeys);
  require(s.chunk >= 1 && s.lookahead >= 0 && s.bptt_chunks >= 0, name,
          "needs chunk >= 1 and lookahead >= 0, but chunk={}, lookahead={}", s.chunk, s.lookahead);
  const int64_t n = s.n_subkeys;
  require(keys.view().rank() == 2 && keys.dim(0) == s.heads * 2 * n, name,
          "keys must be [heads*2*n_subkeys, dk/2] = [{}, ..], not {}", s.heads * 2 * n,
          keys.shape().str());
  require(values.view().rank() == 2 && values.dim(0) == n * n, name,
          "values must be [n_subkeys^2, dv] = [{}, ..], not {}", n * n, values.shape().str());
  require(q.view().rank() == 3 && q.dim(2) == s.heads * 2 * keys.dim(1), name,
          "q must be [B, T, {}], not {}", s.heads * 2 * keys.dim(1), q.shape().str());
  require(v ? v.shape() == Shape({q.dim(0), q.dim(1), values.dim(1)}) : !s.write, name,
          "v must be [{}, {}, {}], not {}", q.dim(0), q.dim(1), values.dim(1),
          v ? v.shape().str() : "empty");
  require(!g || g.shape() == Shape({q.dim(0), q.dim(1)}), name, "g must be [{}, {}], not {}",
          q.dim(0), q.dim(1), g ? g.shape().str() : "");
  for (const Tensor* t : {&q, &v, &keys}) {
    if (*t) {
      require(t->view().contiguous(), name, "{} must be contiguous", t->view().name);
    }
  }
  require(
      values.view().contiguous() || (values.view().stride(0) == 0 && values.view().stride(1) == 1),
      name, "values must be contiguous, or one row for all slots");
  require(!g || g.view().contiguous(), name, "g must be contiguous");
}

void require_stored(Device device, const FwpkmRows& stored, const OverlayViews& overlay,
                    const FwpkmSizes& s) {
  const char* name = kFwpkm.name;
  require(!stored.halved || can_halve_rows(s.set, s.dv, device), name,
          "rows of {} numbers cannot lie in halves here", s.dv);
  if (!stored.log) {
    return;
  }
  require(device.kind == DeviceKind::kCuda && s.set.shared && s.set.write && !s.set.late_values &&
              !overlay,
          name, "only a shared memory on a GPU, without an overlay, can be in a store");
  require(stored.log.dim(0) >= s.log_cap && stored.log.dim(1) == s.dv &&
              stored.free.dim(0) >= s.log_cap && stored.places.dim(0) == s.n * s.n,
          name, "the store has room for {} new rows, not {}", stored.log.dim(0), s.log_cap);
}

}  // namespace

bool can_halve_rows(const FwpkmSettings& settings, int64_t dv, Device device) {
  constexpr int64_t kMost = 8192;  // numbers that a block turns into halves
  return device.kind == DeviceKind::kCuda && device.real == DType::kBF16 && dv % 8 == 0 &&
         dv <= kMost && settings.heads * settings.topk <= kFwpkmFewReads && settings.addr_loss &&
         !settings.late_values;
}

int64_t FwpkmSizes::group_bytes() const {
  const int64_t tokens = batch * time,
                selections = set.write && moves_keys() ? tokens * books * k : 0;
  const auto bytes = [](int64_t count, int64_t size) { return (count * size + 63) / 64 * 64; };
  const int64_t sorted = bytes(set.write ? tokens * reads : 0, 8) + bytes(selections, 8) +
                         bytes(selections > 0 ? chunks * books * (n + 1) : 0, 4);
  return sorted + (set.addr_loss ? bytes(selections, 4) +
                                       2 * bytes(selections > 0 ? chunks * marginals() * n : 0, 4)
                                 : 0);
}

FwpkmResult fwpkm_memory(Run& run, const Tensor& q, const Tensor& v, const Tensor& g,
                         const Tensor& keys, const Tensor& values, const FwpkmSettings& given,
                         const OverlayViews& overlay, const FwpkmSelection& selection,
                         const FwpkmRows& stored) {
  FwpkmSettings settings = given;
  settings.halved = stored.halved;
  require_shapes(q, v, g, keys, values, settings);
  const FwpkmSizes s(settings, q.shape(), keys.shape(), values.shape());
  require(s.batch * s.time * s.reads * 2 <= INT32_MAX &&
              s.owners * std::max(s.chain_cap, s.log_cap) <= INT32_MAX,
          kFwpkm.name, "{} rows of {} tokens with {} reads each are too many for one call", s.batch,
          s.time, s.reads);
  require(!overlay || (overlay.directory.shape() == Shape({s.owners, s.n}) &&
                       overlay.pages.dim(1) == s.n && overlay.rows.dim(1) == s.dv),
          kFwpkm.name, "the overlay is for {} owners, not {}",
          overlay ? overlay.directory.dim(0) : 0, s.owners);
  require_stored(run.device(), stored, overlay, s);

  FwpkmResult r;
  const Shape per_read = {s.batch, s.time, s.reads};
  const Shape per_sub = {s.batch, s.time, s.heads, 2, s.k};
  r.output = run.make("fwpkm.y", {s.batch, s.time, s.dv});
  r.slots = run.make("fwpkm.slots", per_read, DType::kI32);
  r.weights = run.make("fwpkm.weights", per_read, run.wide());
  r.losses = run.make("fwpkm.losses", {s.batch, s.time}, run.wide());
  r.addressing = run.make("fwpkm.addressing", {s.chunks}, run.wide());
  r.selection.ids = run.make("fwpkm.ids", per_sub, DType::kI32);
  r.selection.picks = run.make("fwpkm.picks", {s.batch, s.time, s.heads, s.k}, DType::kI32);
  if (settings.write) {
    r.keys = run.make("fwpkm.keys", keys.shape(), run.wide());
    r.rows = stored.log ? stored.log
                        : run.make("fwpkm.rows", {std::max<int64_t>(1, s.owners * s.log_cap), s.dv},
                                   run.wide());
    r.writes = run.make("fwpkm.writes", {s.owners * s.chain_cap, 3}, DType::kI32);
    r.counts = run.make("fwpkm.counts", {s.owners}, DType::kI32);
  }
  // For backward: nothing is saved where there is none. Key rows that a chunk moves: at most all,
  // at most one for each selection.
  std::vector<Tensor> saved(FwpkmSaved::count);
  if (run.recording()) {
    int64_t key_rows = 1;
    for (int64_t c = 0; c < s.chunks && settings.write && s.moves_keys(); ++c) {
      key_rows += std::min(s.books * s.n, s.batch * (s.end(c) - s.begin(c)) * s.books * s.k);
    }
    saved[FwpkmSaved::scores] = run.make("fwpkm.scores", per_sub, run.wide());
    saved[FwpkmSaved::share] = run.make("fwpkm.share", per_read, run.wide());
    saved[FwpkmSaved::source] = run.make("fwpkm.source", per_read, DType::kI32);
    saved[FwpkmSaved::chain] = run.make("fwpkm.chain", per_read, DType::kI32);
    saved[FwpkmSaved::key_rows] = run.make("fwpkm.key_rows", {key_rows, s.half}, run.wide());
    saved[FwpkmSaved::key_starts] = run.make("fwpkm.key_starts", {s.chunks + 1}, DType::kI32);
    if (run.device().kind == DeviceKind::kCuda && settings.write) {
      saved[FwpkmSaved::groups] = run.make("fwpkm.groups", {s.group_bytes() / 4}, DType::kI32);
    }
  }
  std::vector<Tensor> out = {r.output,     r.slots,         r.weights,         r.losses,
                             r.addressing, r.selection.ids, r.selection.picks, r.keys,
                             r.rows,       r.writes,        r.counts};
  run.call(kFwpkm,
           {q, v, g, keys, values, selection.ids, selection.picks, overlay.directory, overlay.pages,
            overlay.rows, stored.places, stored.free},
           out, saved, settings);
  for (size_t i = 1; i < out.size(); ++i) {
    if (out[i]) {
      out[i].node()->wants_grad = false;
    }
  }
  return r;
}

}  // namespace fwpkm
