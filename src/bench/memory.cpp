#include "bench/memory.h"

#include <algorithm>
#include <memory>
#include <numeric>

#include "base/machine.h"
#include "base/parallel.h"
#include "base/random.h"
#include "base/timer.h"
#include "check/check.h"
#include "ops/fwpkm/fwpkm.h"
#include "tensor/profile.h"
#include "tensor/tape.h"

namespace fwpkm {
namespace {

constexpr double kNoise = 0.1;  // of queries, in parts of a sub-key's spread

// to[begin..end) = numbers around zero with the given spread, by their index.
void fill(float* to, int64_t begin, int64_t end, double spread, uint64_t stream) {
  const Random random(3, stream);
  const auto scale = static_cast<float>(spread * std::sqrt(12.0) * 0x1.0p-32);
  parallel_ranges((end - begin + 1) / 2, 1 << 16, [&](int64_t first, int64_t last) {
    for (int64_t pair = first; pair < last; ++pair) {
      const uint64_t bits = random.bits_at(static_cast<uint64_t>(begin / 2 + pair));
      const int64_t at = begin + 2 * pair;
      to[at] = scale * static_cast<float>(static_cast<int32_t>(bits));
      if (at + 1 < end) {
        to[at + 1] = scale * static_cast<float>(static_cast<int32_t>(bits >> 32));
      }
    }
  });
}

std::vector<float> drawn(int64_t count, double spread, uint64_t stream) {
  std::vector<float> values(static_cast<size_t>(count));
  fill(values.data(), 0, count, spread, stream);
  return values;
}

// Puts numbers of the host into a tensor, whatever its type and device.
void put(const Tensor& t, const std::vector<float>& values) {
  copy_from_host(t.view(), std::vector<double>(values.begin(), values.end()));
}

// One size of table, as a contestant.
struct Contestant {
  int64_t n = 0;
  FwpkmSettings settings;
  Tensor q, keys, values;
  std::vector<float> host_keys;
  MemoryBenchRow row;
  double forward_seconds = 0, backward_seconds = 0;  // of the last pass
  std::vector<double> read, write, backward, value_write, value_backward;
  std::vector<double> whole_forward, whole_backward;
};

class MemoryBench {
 public:
  MemoryBench(const MemoryBenchOptions& options, Pool& pool)
      : options_(options), pool_(pool), run_(pool), time_(options.chunks * options.chunk) {
    const int64_t most = *std::max_element(options.subkeys.begin(), options.subkeys.end());
    table_ = run_.make("values", {most * most, options.dv}, run_.wide());
    v_ = wanted(run_.make("v", {options.batch, time_, options.dv}));
    g_ = wanted(run_.make("g", {options.batch, time_}, run_.wide()));
    dy_ = run_.make("dy", {options.batch, time_, options.dv});
    for (const int64_t n : options.subkeys) {
      Contestant who;
      who.n = who.row.n_subkeys = n;
      who.settings.n_subkeys = static_cast<int32_t>(n);
      who.settings.topk = options.topk;
      who.settings.step = options.topk;
      who.settings.chunk = options.chunk;
      who.settings.lookahead = options.lookahead;
      who.settings.shared = options.shared;
      who.q = wanted(run_.make("q", {options.batch, time_, options.dk}));
      who.keys = run_.make("keys", {2 * n, options.dk / 2}, run_.wide());
      who.values = Tensor::constant(table_.view().slice(0, 0, n * n));
      contestants_.push_back(std::move(who));
    }
  }

  std::vector<Contestant>& contestants() { return contestants_; }
  size_t runs() const { return contestants_.size() * static_cast<size_t>(options_.runs + 1); }

  void start() {
    put(v_, drawn(v_.view().size(), 1, 1));
    put(dy_, drawn(dy_.view().size(), 1, 2));
    const Random random(3, 4);
    std::vector<float> gates;
    for (int64_t t = 0; t < options_.batch * time_; ++t) {
      gates.push_back(static_cast<float>(random.uniform_at(static_cast<uint64_t>(t))));
    }
    put(g_, gates);
    for (Contestant& who : contestants_) {
      who.host_keys = drawn(who.keys.view().size(), key_spread(), 5);
      put(who.keys, who.host_keys);
    }
  }

  // Rows up to those of this size are there and touched afterwards.
  void grow_table(const Contestant& who) {
    const int64_t end = who.n * who.n * options_.dv;
    const double spread = 1 / std::sqrt(double(options_.dv));
    if (!on_gpu()) {
      fill(table_.view().ptr<float>(), std::min(filled_, end), end, spread, 6);
      filled_ = std::max(filled_, end);
      return;
    }
    constexpr int64_t kPiece = int64_t{1} << 24;
    std::vector<float> piece;
    for (; filled_ < end; filled_ += std::ssize(piece)) {
      piece = drawn(std::min(kPiece, end - filled_), spread, 6 + static_cast<uint64_t>(filled_));
      cuda::copy_in(table_.view().ptr<float>() + filled_, piece.data(),
                    piece.size() * sizeof(float));
    }
  }

  // Queries beside slots that are drawn from all, others in each round.
  void draw_queries(Contestant& who, int round) {
    const int64_t half = options_.dk / 2;
    const Random random(3, 100 + static_cast<uint64_t>(round));
    std::vector<float> q =
        drawn(who.q.view().size(), kNoise * key_spread(), 1000 + static_cast<uint64_t>(round));
    for (int64_t book = 0; book < 2 * options_.batch * time_; ++book) {  // by token, then codebook
      const double at = random.uniform_at(static_cast<uint64_t>(book));
      const int64_t key = book % 2 * who.n + static_cast<int64_t>(at * double(who.n));
      for (int64_t i = 0; i < half; ++i) {
        q[static_cast<size_t>(book * half + i)] +=
            who.host_keys[static_cast<size_t>(key * half + i)];
      }
    }
    put(who.q, q);
  }

  void pass(Contestant& who) {
    const auto now = [&] {
      if (on_gpu() && !pool_.dry()) {
        cuda::synchronize();
      }
      return now_seconds();
    };
    for (const Tensor* t : {&who.q, &v_, &g_}) {
      t->node()->grad = View();
      t->node()->grad_storage.reset();
      t->node()->grad_written = false;
    }
    Tape tape;
    Run run(pool_, &tape);
    // The tape holds what backward needs; everything else may go.
    const double start = now();
    const Tensor y = fwpkm_memory(run, who.q, v_, g_, who.keys, who.values, who.settings).output;
    const double middle = now();
    tape.backward(pool_, y, dy_);
    who.forward_seconds = middle - start;
    who.backward_seconds = now() - middle;
  }

  void timed_pass(Contestant& who) {
    const double tokens = static_cast<double>(options_.batch * time_);
    pass(who);
    who.whole_forward.push_back(1e6 * who.forward_seconds / tokens);
    who.whole_backward.push_back(1e6 * who.backward_seconds / tokens);
    const Profile profile(on_gpu());
    pass(who);
    const auto us = [&](double ms) { return 1e3 * ms / tokens; };
    const auto phase = [&](const char* name) {
      const auto it = profile.phases().find(name);
      require(it != profile.phases().end(), "bench", "the kernels did not report {}", name);
      return us(it->second);
    };
    using P = FwpkmPhases;
    who.read.push_back(phase(P::read));
    who.write.push_back(phase(P::write_values) + phase(P::write_keys));
    who.value_write.push_back(phase(P::write_values));
    who.backward.push_back(us(profile.times().at(kFwpkm.name).backward_ms));
    who.value_backward.push_back(phase(P::backward_values));
  }

 private:
  static Tensor wanted(Tensor t) {
    t.node()->wants_grad = true;
    return t;
  }
  bool on_gpu() const { return options_.device.kind == DeviceKind::kCuda; }
  // Sub-keys are uniform within 1/sqrt(dk), as they start in a model.
  double key_spread() const { return 1 / std::sqrt(3.0 * static_cast<double>(options_.dk)); }

  MemoryBenchOptions options_;
  Pool& pool_;
  Run run_;
  int64_t time_;
  int64_t filled_ = 0;  // numbers of the table
  Tensor table_, v_, g_, dy_;
  std::vector<Contestant> contestants_;
};

// No number from a red check.
void require_sound_op(Device device) {
  for (const CheckResult& r : check_values({kFwpkm.name, "", device, 1})) {
    require(r.ok, "bench", "nothing was timed, because `fwpkm check {}` fails in case '{}': {}",
            r.op, r.name, r.detail);
  }
}

// A rehearsal in which nothing is computed says how much memory it takes.
void require_memory(const MemoryBenchOptions& options) {
  Pool pool(options.device);
  pool.set_dry(true);
  MemoryBench bench(options, pool);
  for (Contestant& who : bench.contestants()) {
    bench.pass(who);
  }
  const auto needed = static_cast<int64_t>(pool.held_bytes());
  const int64_t available = options.device.kind == DeviceKind::kCuda
                                ? static_cast<int64_t>(cuda::free_bytes())
                                : available_memory();
  require(needed < available, "bench",
          "n_subkeys={} needs {} MiB, but only {} MiB of memory are free; leave the largest out "
          "of --subkeys",
          *std::max_element(options.subkeys.begin(), options.subkeys.end()), needed >> 20,
          available >> 20);
}

}  // namespace

std::vector<MemoryBenchRow> bench_memory(const MemoryBenchOptions& options,
                                         const BenchProgress& progress) {
  require(!options.subkeys.empty() && options.runs >= 1, "bench", "there is nothing to time");
  for (const int64_t n : options.subkeys) {
    require(n >= options.topk && n <= 46340, "bench",
            "n_subkeys={} is not between {} (the slots read) and 46340", n, options.topk);
  }
  require_memory(options);
  progress("checking the op", 0);
  require_sound_op(options.device);

  Pool pool(options.device);
  MemoryBench bench(options, pool);
  bench.start();
  std::vector<Contestant>& all = bench.contestants();
  std::vector<size_t> order(all.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return all[a].n < all[b].n; });
  size_t done = 0;
  for (int round = 0; round <= options.runs; ++round) {  // the first warms up
    for (const size_t i : order) {
      Contestant& who = all[i];
      progress(fmt::format("n_subkeys {}: {}", who.n,
                           round == 0 ? std::string("filling the table")
                                      : fmt::format("run {} of {}", round, options.runs)),
               static_cast<double>(++done) / static_cast<double>(bench.runs() + 1));
      bench.grow_table(who);
      bench.draw_queries(who, round);
      if (round > 0) {
        bench.timed_pass(who);
      } else {
        bench.pass(who);
        const bool gpu = options.device.kind == DeviceKind::kCuda;
        who.row.rss_mb = (gpu ? static_cast<double>(pool.held_bytes())
                              : static_cast<double>(resident_memory())) /
                         (1 << 20);
      }
    }
  }
  std::vector<MemoryBenchRow> rows;
  for (Contestant& who : all) {
    who.row.read_us = median(who.read);
    who.row.write_us = median(who.write);
    who.row.backward_us = median(who.backward);
    who.row.value_write_us = median(who.value_write);
    who.row.value_backward_us = median(who.value_backward);
    who.row.whole_forward_us = median(who.whole_forward);
    who.row.whole_backward_us = median(who.whole_backward);
    rows.push_back(who.row);
  }
  progress("done", 1);
  return rows;
}

}  // namespace fwpkm
