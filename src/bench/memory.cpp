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

void fill(const Tensor& t, double spread, uint64_t stream) {
  fill(t.view().ptr<float>(), 0, t.view().size(), spread, stream);
}

// One size of table, as a contestant.
struct Contestant {
  int64_t n = 0;
  FwpkmSettings settings;
  Tensor q, keys, values;
  MemoryBenchRow row;
  std::vector<double> read, write, backward, value_write, value_backward;
};

class MemoryBench {
 public:
  MemoryBench(const MemoryBenchOptions& options, Pool& pool)
      : options_(options), pool_(pool), run_(pool), time_(options.chunks * options.chunk) {
    const int64_t most = *std::max_element(options.subkeys.begin(), options.subkeys.end());
    table_ = run_.make("values", {most * most, options.dv});
    v_ = wanted(run_.make("v", {1, time_, options.dv}));
    g_ = wanted(run_.make("g", {1, time_}));
    dy_ = run_.make("dy", {1, time_, options.dv});
    for (const int64_t n : options.subkeys) {
      Contestant who;
      who.n = who.row.n_subkeys = n;
      who.settings.n_subkeys = static_cast<int32_t>(n);
      who.settings.topk = options.topk;
      who.settings.step = options.topk;
      who.settings.chunk = options.chunk;
      who.settings.lookahead = options.lookahead;
      who.q = wanted(run_.make("q", {1, time_, options.dk}));
      who.keys = run_.make("keys", {2 * n, options.dk / 2});
      who.values = Tensor::constant(table_.view().slice(0, 0, n * n));
      contestants_.push_back(std::move(who));
    }
  }

  std::vector<Contestant>& contestants() { return contestants_; }
  size_t runs() const { return contestants_.size() * static_cast<size_t>(options_.runs + 1); }

  void start() {
    fill(v_, 1, 1);
    fill(dy_, 1, 2);
    const Random random(3, 4);
    for (int64_t t = 0; t < time_; ++t) {
      g_.view().ptr<float>()[t] = static_cast<float>(random.uniform_at(static_cast<uint64_t>(t)));
    }
    for (Contestant& who : contestants_) {
      fill(who.keys, key_spread(), 5);
    }
  }

  // Rows up to those of this size are there and touched afterwards.
  void grow_table(const Contestant& who) {
    const int64_t end = who.n * who.n * options_.dv;
    if (end > filled_) {
      fill(table_.view().ptr<float>(), filled_, end, 1 / std::sqrt(double(options_.dv)), 6);
      filled_ = end;
    }
  }

  // Queries beside slots that are drawn from all, others in each round.
  void draw_queries(Contestant& who, int round) {
    const int64_t half = options_.dk / 2;
    const Random random(3, 100 + static_cast<uint64_t>(round));
    fill(who.q, kNoise * key_spread(), 1000 + static_cast<uint64_t>(round));
    float* q = who.q.view().ptr<float>();
    const float* keys = who.keys.view().ptr<float>();
    for (int64_t book = 0; book < 2 * time_; ++book) {  // by token, then codebook
      const double drawn = random.uniform_at(static_cast<uint64_t>(book));
      const int64_t key = book % 2 * who.n + static_cast<int64_t>(drawn * double(who.n));
      for (int64_t i = 0; i < half; ++i) {
        q[book * half + i] += keys[key * half + i];
      }
    }
  }

  void pass(Contestant& who) {
    for (const Tensor* t : {&who.q, &v_, &g_}) {
      t->node()->grad = View();
      t->node()->grad_storage.reset();
      t->node()->grad_written = false;
    }
    Tape tape;
    Run run(pool_, &tape);
    // The tape holds what backward needs; everything else may go.
    const Tensor y = fwpkm_memory(run, who.q, v_, g_, who.keys, who.values, who.settings).output;
    tape.backward(pool_, y, dy_);
  }

  void timed_pass(Contestant& who) {
    const Profile profile;
    pass(who);
    const auto us = [&](double ms) { return 1e3 * ms / static_cast<double>(time_); };
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
void require_sound_op() {
  for (const CheckResult& r : check_values({kFwpkm.name, "", Device::cpu(), 1})) {
    require(r.ok, "bench", "nothing was timed, because `fwpkm check {}` fails in case '{}': {}",
            r.op, r.name, r.detail);
  }
}

// A rehearsal in which nothing is computed says how much memory it takes.
void require_memory(const MemoryBenchOptions& options) {
  Pool pool(Device::cpu());
  pool.set_dry(true);
  MemoryBench bench(options, pool);
  for (Contestant& who : bench.contestants()) {
    bench.pass(who);
  }
  const auto needed = static_cast<int64_t>(pool.held_bytes()), available = available_memory();
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
  require_sound_op();

  Pool pool(Device::cpu());
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
        who.row.rss_mb = static_cast<double>(resident_memory()) / (1 << 20);
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
    rows.push_back(who.row);
  }
  progress("done", 1);
  return rows;
}

}  // namespace fwpkm
