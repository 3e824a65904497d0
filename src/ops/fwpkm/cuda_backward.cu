#include "ops/fwpkm/cuda_backward.cuh"

#include <optional>

#include "tensor/profile.h"

namespace fwpkm {
namespace {

// Where backward keeps its intermediate results.
struct BackwardWork {
  FwpkmLists lists{};
  size_t bytes = 0;

  BackwardWork(const FwpkmCall& call, FwpkmBack* back, const OpArgs& args, void* workspace) {
    Carver carver(workspace), from_forward(args.saved[FwpkmSaved::groups].data);
    const int64_t all = int64_t{call.batch} * call.time, subs = int64_t{call.books} * call.k;
    const int64_t chunk = call.batch * longest_span(call);
    const int64_t chains = call.write ? call.owners * call.chain_cap : 0;
    const FwpkmKept kept(&from_forward, call);
    lists.take(&carver, call, kept, true);
    back->dvalues = take_reals(&carver, call, chains * call.dv);
    back->live = carver.take<uint8_t>(chains);
    back->errors = take_reals(&carver, call, chunk * call.dv);
    back->dreads = take_reals(&carver, call, chunk * call.dv);
    back->dw = carver.take<float>(all * call.reads);
    back->ds = carver.take<float>(all * subs);
    back->kept_chunks = queries_together(call);
    if (call.keys_move) {
      const int64_t marginals = int64_t{call.marginals} * call.n;
      back->dkeys =
          carver.take<float>((back->kept_chunks + 1) * int64_t{call.books} * call.n * call.half);
      back->gam = carver.take<float>(chunk * subs);
      back->p = kept.p;
      back->push = carver.take<float>(all * subs);
      back->pbar = kept.pbar;
      back->slope = kept.slope;
      back->dpbar = carver.take<float>(marginals);
      back->along = carver.take<float>(chunk * call.reads);
      back->dalong = carver.take<float>(chunk * call.reads);
    }
    bytes = carver.used();
  }
};

// Runs all chunks as two chains of kernels. Chain V, of the values, never asks for anything of
// chain K, of the keys, but where the memory loss moves the keys; so V has a stream of its own. K
// waits for V in each chunk, and its blocks, which are few, come first: else it would fall behind
// and go on alone when V is done. What the two share:
//   dw                  V writes it, each chunk in its own place; K's through_scores waits for
//                       through_values of the chunk
//   inputs, saved       only read
// All else in FwpkmBack and all gradients belong to one of the chains: dv, dg, dvalues, live,
// errors and dreads to V, the rest to K. While phases are timed there is one stream, and the order
// in which kernels are queued is right for that, too.
class TwoChains {
 public:
  TwoChains(const OpArgs& args, const FwpkmCall& call, const FwpkmLists& lists, FwpkmBack* back)
      : s_(args), call_(call), lists_(lists), back_(*back) {
    apart_ = call.chunks > 1 && (call.addr_loss || !call.keys_move);
  }

  void run() {
    if (apart_) {
      SideStream::fork(Side::kLong);
    }
    for (int c = call_.chunks - 1; c >= 0; --c) {
      const FwpkmSpan span(call_, c);
      const FwpkmGroups groups = lists_.of(call_, span);
      enter(c);
      if (back_.keys_live) {
        keys([&] { before_values(span, groups); });
      }
      const bool first = c == call_.chunks - 1 || cut_after(c);  // after a fork, or no kernel
      values([&] { through_values(call_, span, back_, static_cast<float>(s_.step(c)), !first); });
      if (c == call_.chunks - 1 && c > 0 && call_.keys_move && call_.addr_loss) {
        keys([&] { push_all(call_, back_); });
      }
      follow();
      keys([&] {
        through_scores(call_, span, back_);
        queries(c);
      });
      if (back_.last) {
        continue;
      }
      values([&] { to_earlier_values(call_, span, groups, back_); });
      if (call_.keys_move) {
        keys([&] { to_earlier_keys(call_, span, lists_, back_); });
        back_.keys_live = true;
      }
    }
    follow();
  }

 private:
  template <typename Part>
  void values(Part&& part) {
    Profile::phase(FwpkmPhases::backward_values, [&] {
      std::optional<SideStream> side;
      if (apart_) {
        side.emplace(Side::kLong);
      }
      part();
    });
  }
  template <typename Part>
  void keys(Part&& part) {
    Profile::phase(FwpkmPhases::backward_keys, part);
  }
  // K goes on when V has done what it was given until now.
  void follow() const {
    if (apart_) {
      SideStream::join(Side::kLong);
    }
  }

  bool cut_after(int64_t c) const {
    return s_.set.bptt_chunks > 0 && (c + 1) % s_.set.bptt_chunks == 0;
  }
  void enter(int c) {
    if (c == call_.chunks - 1 || cut_after(c)) {  // no gradient of fast weights from here on
      back_.keys_live = false;
      values([&] { cut_values(); });
    }
    back_.last = c == 0 || cut_after(c - 1) || !call_.write;
    back_.late = s_.set.late_values && c == 0 && call_.write;
    back_.memory = back_.keys_live && !call_.addr_loss;
  }
  void cut_values() const {
    const int64_t chains = call_.write ? call_.owners * call_.chain_cap : 0;
    if (chains > 0) {
      check_cuda(cudaMemsetAsync(back_.live, 0, static_cast<size_t>(chains), this_stream()),
                 "fwpkm clearing gradients");
    }
  }
  void before_values(const FwpkmSpan& span, const FwpkmGroups& groups) const {
    if (back_.memory) {
      FwpkmFound found{};
      found.errors = back_.errors;
      found.along = back_.along;
      found.push = back_.push;
      find_pushes(call_, span, found);
    }
    if (call_.addr_loss) {
      find_dpbar(call_, span, groups, back_);
    }
  }
  // Queries wait until there are as many chunks of them as go together.
  void queries(int c) {
    queries_.first = c;
    queries_.live = queries_.live << 1 | (back_.keys_live ? 1 : 0);
    if (++queries_.count == back_.kept_chunks || c == 0) {
      to_queries(call_, lists_, back_, queries_);
      queries_ = {};
    }
  }

  FwpkmSizes s_;
  const FwpkmCall& call_;
  const FwpkmLists& lists_;
  FwpkmBack& back_;
  FwpkmQueries queries_;
  bool apart_;
};

}  // namespace

FwpkmBack::FwpkmBack(const OpArgs& args) : dy_rows(args.dout[FwpkmOut::y]) {
  dy = args.dout[FwpkmOut::y].data;
  dq = args.din[FwpkmIn::q].data;
  dv = args.din[FwpkmIn::v].data;
  dg = args.din[FwpkmIn::g].ptr<float>();
  add_q = args.accumulate[FwpkmIn::q];
  add_v = args.accumulate[FwpkmIn::v];
  add_g = args.accumulate[FwpkmIn::g];
}

void fwpkm_backward_cuda(const OpArgs& args) {
  FwpkmCall call(args);
  call.keys = args.in[FwpkmIn::keys].ptr<float>();
  FwpkmBack back(args);
  const BackwardWork work(call, &back, args, args.workspace);
  if (call.batch == 0 || call.chunks == 0) {
    return;
  }
  TwoChains(args, call, work.lists, &back).run();
}

size_t fwpkm_backward_bytes(const OpArgs& args) {
  FwpkmBack back(args);
  return BackwardWork(FwpkmCall(args), &back, args, nullptr).bytes;
}

}  // namespace fwpkm
