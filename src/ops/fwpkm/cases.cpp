#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/random.h"
#include "ops/fwpkm/store.h"
#include "ops/fwpkm/written.h"
#include "ops/registry.h"

namespace fwpkm {
namespace {

struct Sizes {
  int64_t batch, time, dk, dv;
  bool gate = true;
  bool overlay = false;  // some rows lie over the table
  bool frozen = true;    // a drawn selection instead of the best sub-keys
  bool one_row = false;  // all slots start from the first row
};

// Any k different sub-keys of each codebook, and any k different pairs of them.
FwpkmSelection draw_selection(Run& run, const Sizes& z, const FwpkmSettings& s,
                              uint64_t stream = 0) {
  Random random(9, stream);
  const auto draw = [&](int64_t limit, std::vector<int32_t>* to) {
    std::vector<int32_t> all(static_cast<size_t>(limit));
    std::iota(all.begin(), all.end(), 0);
    for (int64_t i = 0; i < s.topk; ++i) {
      std::swap(all[i], all[i + random.below(limit - i)]);
      to->push_back(all[i]);
    }
  };
  std::vector<int32_t> ids, picks;
  for (int64_t i = 0; i < z.batch * z.time * s.heads; ++i) {
    draw(s.n_subkeys, &ids);
    draw(s.n_subkeys, &ids);
    draw(int64_t{s.topk} * s.topk, &picks);
  }
  return {run.from_host("ids", {z.batch, z.time, s.heads, 2, s.topk}, ids),
          run.from_host("picks", {z.batch, z.time, s.heads, s.topk}, picks)};
}

// Every third slot, by owner, has a row of its own.
OverlayViews make_overlay(Run& run, const Sizes& z, const FwpkmSettings& s) {
  const int64_t owners = s.shared ? 1 : z.batch, n = s.n_subkeys;
  std::vector<int32_t> directory, pages;
  std::vector<double> rows;
  const Random random(10, 0);
  for (int64_t o = 0; o < owners; ++o) {
    for (int64_t p = 0; p < n; ++p) {
      if (p % 4 == 3) {
        directory.push_back(-1);
        continue;
      }
      directory.push_back(static_cast<int32_t>(pages.size()) / static_cast<int32_t>(n));
      for (int64_t i = 0; i < n; ++i) {
        if ((o + p + i) % 3 != 0) {
          pages.push_back(-1);
          continue;
        }
        pages.push_back(static_cast<int32_t>(rows.size()) / static_cast<int32_t>(z.dv));
        for (int64_t c = 0; c < z.dv; ++c) {
          rows.push_back(static_cast<float>(random.normal_at(rows.size())));
        }
      }
    }
  }
  OverlayViews overlay;
  overlay.directory = run.from_host("directory", {owners, n}, directory);
  overlay.pages = run.from_host("pages", {static_cast<int64_t>(pages.size()) / n, n}, pages);
  overlay.rows = run.from_host("rows", {static_cast<int64_t>(rows.size()) / z.dv, z.dv}, rows);
  return overlay;
}

// What each owner wrote: [owners, n*n, dv], zero where it wrote nothing.
Tensor written(Run& run, const FwpkmResult& r, int64_t slots) {
  const int64_t owners = r.counts.dim(0), cap = r.writes.dim(0) / owners, dv = r.rows.dim(1);
  const std::vector<double> rows = to_host(r.rows.view());
  std::vector<double> table(static_cast<size_t>(owners * slots * dv));
  const std::vector<int32_t> writes = ints_to_host(r.writes.view()),
                             counts = ints_to_host(r.counts.view());
  for (int64_t o = 0; o < owners; ++o) {
    for (int64_t i = 0; i < counts[static_cast<size_t>(o)]; ++i) {
      const int32_t* write = writes.data() + (o * cap + i) * 3;
      require(write[0] == o, "fwpkm", "a write of owner {} stands with those of {}", write[0], o);
      for (int64_t c = 0; c < dv && write[2] >= 0; ++c) {
        table[(o * slots + write[1]) * dv + c] = rows[write[2] * dv + c];
      }
    }
  }
  return run.from_host("written", {owners, slots, dv}, table);
}

std::string describe(const Sizes& z, const FwpkmSettings& s) {
  std::string name = fmt::format("B={},T={},C={},L={},H={},n={},k={},dk={},dv={}", z.batch, z.time,
                                 s.chunk, s.lookahead, s.heads, s.n_subkeys, s.topk, z.dk, z.dv);
  const auto add = [&](bool on, const char* text) { name += on ? text : ""; };
  add(s.shared, ",shared");
  add(s.dot, ",dot");
  add(s.rewrite, ",rewrite");
  add(s.official, ",official");
  add(!s.addr_loss, ",no addressing");
  add(s.addr_loss && s.addr_weight == 0, ",still keys");
  if (s.addr_weight != 0 && s.addr_weight != 1) {
    name += fmt::format(",addr={}", s.addr_weight);
  }
  if (s.step != s.heads * s.topk) {
    name += fmt::format(",step={}", s.step);
  }
  add(!s.write, ",read only");
  add(!s.last_write, ",forgotten");
  add(s.bptt_chunks > 0, ",truncated");
  add(!z.gate, ",no gate");
  add(z.overlay, ",overlay");
  add(!z.frozen, ",selected");
  add(z.one_row, ",one row");
  return name;
}

Case make(const Sizes& z, const FwpkmSettings& s) {
  const int64_t slots = int64_t{s.n_subkeys} * s.n_subkeys;
  Case c;
  c.name = describe(z, s);
  c.inputs = {{"q", {z.batch, z.time, s.heads * z.dk}},
              {"v", {z.batch, z.time, z.dv}},
              {"g", {z.batch, z.time}, Draw::kUnit},
              {"keys", {int64_t{s.heads} * 2 * s.n_subkeys, z.dk / 2}},
              {"values", {slots, z.dv}}};
  if (!z.gate) {
    c.inputs[2].shape = Shape();
  }
  if (!s.write && s.shared) {
    c.inputs[1].shape = Shape();
  }
  c.inputs[3].grad = c.inputs[4].grad = false;
  c.build = [=](Run& run, const std::vector<Tensor>& in) {
    View values = in[4].view();
    values.strides[0] = z.one_row ? 0 : z.dv;
    const FwpkmResult r = fwpkm_memory(run, in[0], in[1], in[2], in[3], Tensor::constant(values), s,
                                       z.overlay ? make_overlay(run, z, s) : OverlayViews(),
                                       z.frozen ? draw_selection(run, z, s) : FwpkmSelection());
    std::vector<Tensor> outputs = {r.output, r.slots,      r.weights,
                                   r.losses, r.addressing, r.selection.ids};
    if (s.write) {
      outputs.push_back(r.keys);
    }
    if (s.write && s.last_write) {
      outputs.push_back(written(run, r, slots));
    }
    return outputs;
  };
  c.grad_step = z.frozen ? 1e-4 : 1e-6;
  return c;
}

// A table that is in a store where there is one: written by one call, then read and written by the
// next, which is the one that is checked; or, with `kept`, the table after that.
Case make_stored(const Sizes& z, const FwpkmSettings& s, bool kept) {
  Case c = make(z, s);
  c.name += kept ? ",stored,kept" : ",stored";
  if (kept) {
    c.inputs[0].grad = c.inputs[1].grad = c.inputs[2].grad = false;
  }
  c.build = [=](Run& run, const std::vector<Tensor>& in) {
    const Tensor table = run.make("table", in[4].shape(), run.wide());
    copy_view(in[4].view(), table.view());
    FwpkmStore store(run.pool(), table.view(), s, false);
    const bool stores = run.device().kind == DeviceKind::kCuda;
    if (stores) {
      store.open(store.log_rows(z.batch, z.time));
    }
    const auto keep = [&](const FwpkmResult& r) {
      if (s.shared && stores) {
        store.adopt(r);
      } else if (s.shared) {
        put_written(r, table.view());
      }
    };
    // The first call has inputs of its own: gradients are the second one's.
    Run before(run.pool());
    const auto draw = [&](int input) {
      const Random random(11, static_cast<uint64_t>(input));
      std::vector<double> numbers(static_cast<size_t>(in[input].view().size()));
      for (size_t i = 0; i < numbers.size(); ++i) {
        numbers[i] = std::floor(8 * random.uniform_at(i)) / 8;  // exact in 16 bits, too
      }
      return before.from_host("drawn", in[input].shape(), numbers, in[input].view().dtype);
    };
    keep(fwpkm_memory(before, draw(0), draw(1), draw(2), in[3], table, s, {},
                      draw_selection(before, z, s, 1), store.rows()));
    FwpkmResult r =
        fwpkm_memory(run, in[0], in[1], in[2], in[3], table, s, {},
                     z.frozen ? draw_selection(run, z, s) : FwpkmSelection(), store.rows());
    if (!kept) {
      return std::vector<Tensor>{r.output, r.weights, r.losses, r.keys};
    }
    keep(r);
    if (stores) {
      store.settle();
    }
    if (s.shared) {
      return std::vector<Tensor>{table};
    }
    r.rows = store.plain(run, r.rows);
    return std::vector<Tensor>{table, written(run, r, table.dim(0))};
  };
  return c;
}

FwpkmSettings settings(int32_t heads, int32_t n, int32_t k, int64_t chunk, int32_t lookahead,
                       bool shared) {
  FwpkmSettings s;
  s.heads = heads;
  s.n_subkeys = n;
  s.topk = k;
  s.chunk = chunk;
  s.lookahead = lookahead;
  s.shared = shared;
  s.step = heads * k;
  return s;
}

}  // namespace

std::vector<Case> fwpkm_cases() {
  std::vector<Case> cases;
  const auto add = [&](const Sizes& z, const FwpkmSettings& s) { cases.push_back(make(z, s)); };

  // Sizes: every chunk length, lookahead, number of heads, rows and sub-keys, shared or not.
  int turn = 0;
  for (const int64_t chunk : {1, 2, 7, 63, 64, 65}) {
    for (const int32_t lookahead : {0, 1, 4}) {
      const bool shared = turn % 2 == 0;
      const int32_t n = std::array{2, 8, 17}[turn % 3], heads = turn % 4 == 1 ? 4 : 1;
      const int64_t time = chunk < 10 ? 2 * chunk + 11 : 2 * chunk + 5;
      const int64_t batch = turn % 5 < 3 ? 3 : 1;
      add({batch, time, 8, 5},
          settings(heads, n, std::array{1, 2, 4}[turn % 3], chunk, lookahead, shared));
      add({4 - batch, time, 6, 9},
          settings(5 - heads, 17, 17 - 4 * (turn % 4), chunk, lookahead, !shared));
      ++turn;
    }
  }
  // Switches, one at a time and some together.
  const Sizes z = {2, 21, 12, 10};
  for (const bool shared : {false, true}) {
    const FwpkmSettings base = settings(2, 9, 4, 6, 1, shared);
    const auto with = [&](auto&& change, Sizes sizes) {
      FwpkmSettings s = base;
      change(s);
      add(sizes, s);
    };
    Sizes ungated = z, over = z, selected = z, one_row = z;
    one_row.overlay = one_row.one_row = true;
    ungated.gate = false;
    over.overlay = true;
    selected.frozen = false;
    with([](FwpkmSettings&) {}, z);
    with([](FwpkmSettings&) {}, ungated);
    with([](FwpkmSettings&) {}, over);
    with([](FwpkmSettings&) {}, selected);
    with([](FwpkmSettings&) {}, one_row);
    with(
        [](FwpkmSettings& s) {
          s.dot = true;
          s.addr_weight = 0.3;
        },
        z);
    with([](FwpkmSettings& s) { s.rewrite = true; }, z);
    with([](FwpkmSettings& s) { s.step = 0.7; }, z);
    with([](FwpkmSettings& s) { s.official = true; }, z);
    with([](FwpkmSettings& s) { s.addr_weight = 0; }, z);
    with([](FwpkmSettings& s) { s.addr_weight = 2.5; }, z);
    with([](FwpkmSettings& s) { s.addr_loss = false; }, z);
    with(
        [](FwpkmSettings& s) {
          s.addr_loss = false;
          s.dot = true;
        },
        over);
    with(
        [](FwpkmSettings& s) {
          s.addr_loss = false;
          s.official = s.rewrite = true;
        },
        ungated);
    with([](FwpkmSettings& s) { s.write = false; }, over);
    with([](FwpkmSettings& s) { s.last_write = false; }, over);
    with(
        [](FwpkmSettings& s) {
          s.addr_loss = false;
          s.step = 1.5;
        },
        selected);
    with(
        [](FwpkmSettings& s) {
          s.chunk = 2;
          s.official = true;
          s.lookahead = 2;
        },
        z);
  }
  // Selected by search, ugly widths.
  for (const auto& [n, k] : {std::pair{2, 2}, std::pair{17, 5}, std::pair{40, 8}}) {
    add({1, 37, 2 * (n % 7) + 2, n, true, false, false}, settings(1, n, k, 9, 1, false));
    add({3, 20, 34, 33, true, true, false}, settings(4, n, k, 64, 4, true));
  }
  // As many slots as the paper's.
  add({1, 6, 16, 3, true, false, false}, settings(1, 512, 8, 2, 1, false));
  // Only some of the gradients are wanted.
  for (size_t wanted = 0; wanted < 3; ++wanted) {
    Case c = make(z, settings(1, 9, 4, 6, 1, false));
    c.name += fmt::format(",only {}", c.inputs[wanted].name);
    for (size_t i = 0; i < 3; ++i) {
      c.inputs[i].grad = i == wanted;
    }
    cases.push_back(c);
  }
  // Sizes for which a GPU multiplies and selects in one kernel: tiles of tokens and units of
  // sub-keys that are not full; then crowded sub-keys, a third of them equal to others.
  for (const bool shared : {false, true}) {
    FwpkmSettings dots = settings(1, 40, 8, 70, 1, shared);
    dots.dot = true;
    add({1, 75, 64, 4, true, false, false}, dots);
    add({2, 40, 64, 8, true, false, false}, settings(1, 9, 4, 13, 1, shared));
    FwpkmSettings by_error = settings(1, 9, 4, 13, 1, shared);
    by_error.addr_loss = false;
    add({2, 40, 64, 8, true, false, false}, by_error);
    add({2, 100, 192, 4, true, true, false}, settings(3, 33, 5, 100, 1, shared));
    add({1, 140, 320, 4, true, false, false}, settings(1, 257, 8, 130, 1, shared));
    add({1, 70, 512, 4, true, false, false}, settings(1, 512, 8, 70, 1, shared));
    for (const auto& [centres, half] :
         {std::pair<int64_t, int64_t>{1, 256}, {16, 256}, {100, 256}, {1, 64}}) {
      FwpkmSettings s = settings(1, 512, 8, 64, 1, shared);
      s.dot = centres == 16;
      Case crowded = make({1, 70, 2 * half, 4, true, false, false}, s);
      crowded.name += fmt::format(",{} centres", centres);
      crowded.grad_tolerance = 1e-3;  // a step that changes no selection is a small one
      crowded.build = [=, many = centres, width = half, build = crowded.build](
                          Run& run, const std::vector<Tensor>& in) {
        const Random centre(5, 0), apart(6, 0);
        std::vector<double> keys(static_cast<size_t>(1024 * width));
        for (int64_t i = 0; i < 1024 * width; ++i) {
          const int64_t row = i / width;
          const double off = row % 3 == 0 || many == 1 ? 0.0 : 1e-4 * apart.normal_at(i);
          keys[i] = static_cast<float>(centre.normal_at(row % many * width + i % width) + off);
        }
        std::vector<Tensor> with = in;
        with[3] = run.from_host("keys", {1024, width}, keys);
        return build(run, with);
      };
      cases.push_back(crowded);
    }
  }
  // Many tokens in a chunk: that share few sub-keys, and that have more than a GPU's block threads.
  add({2, 640, 64, 4, true, false, false}, settings(1, 5, 3, 300, 1, true));
  add({2, 310, 16, 3, true, false, false}, settings(1, 3, 2, 300, 1, true));
  add({2, 310, 16, 3, true, false, false}, settings(1, 600, 3, 155, 1, true));
  // Tables in a store: rows in halves (a warp takes 512 columns at a time: widths of which it has
  // all, or some of the first or second half) and not; slots that a call reads more than 32 times;
  // chains by slot and by hash.
  for (const bool shared : {false, true}) {
    for (const bool kept : {false, true}) {
      const auto stored = [&](const Sizes& sizes, const FwpkmSettings& s) {
        cases.push_back(make_stored(sizes, s, kept));
      };
      stored({2, 40, 64, 8, true, false, false}, settings(1, 9, 4, 13, 1, shared));
      stored({3, 21, 12, 8}, settings(2, 9, 4, 6, 2, shared));
      stored({2, 21, 12, 10}, settings(2, 9, 4, 6, 1, shared));
      stored({1, 19, 8, 264}, settings(1, 9, 4, 7, 1, shared));
      stored({2, 40, 8, 512}, settings(1, 7, 4, 13, 1, shared));
      stored({1, 19, 8, 520}, settings(1, 40, 8, 7, 1, shared));
      stored({1, 19, 8, 1024}, settings(1, 9, 4, 7, 1, shared));
      stored({2, 150, 16, 1032}, settings(1, 3, 3, 70, 1, shared));
      FwpkmSettings by_error = settings(1, 9, 4, 13, 1, shared);
      by_error.addr_loss = false;
      stored({2, 40, 64, 8}, by_error);
      FwpkmSettings rewrite = settings(1, 17, 8, 16, 0, shared);
      rewrite.rewrite = true;
      stored({2, 40, 8, 24}, rewrite);
      // As many reads as kernels of whole rows are made for.
      stored({2, 40, 8, 512, true, false, false}, settings(1, 17, 8, 13, 1, shared));
      stored({1, 13, 8, 1024}, settings(2, 17, 4, 7, 1, shared));
      rewrite.n_subkeys = 9;
      stored({2, 21, 8, 512}, rewrite);
    }
  }
  // The paper's sizes but for n = 512, whose table fills half a gigabyte.
  for (const bool shared : {false, true}) {
    Case perf = make({1, 2048, 512, 512, true, false, false}, settings(1, 128, 8, 512, 1, shared));
    perf.name = "perf:" + perf.name;
    perf.perf = true;
    perf.build = [=](Run& run, const std::vector<Tensor>& in) {
      return std::vector<Tensor>{
          fwpkm_memory(run, in[0], in[1], in[2], in[3], in[4], settings(1, 128, 8, 512, 1, shared))
              .output};
    };
    perf.flops = 2.0 * 2048 * 256 * 256;
    perf.bytes = 2048.0 * 8 * 512 * 4 * 3;
    cases.push_back(perf);
  }
  return cases;
}

}  // namespace fwpkm
