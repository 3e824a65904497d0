#include <algorithm>
#include <bit>
#include <optional>

#include "ops/fwpkm/cuda_backward.cuh"
#include "ops/fwpkm/cuda_write.cuh"
#include "tensor/profile.h"

namespace fwpkm {
namespace {

// Where forward keeps its intermediate results; fills in what the call misses.
struct ForwardWork {
  FwpkmProducts products{};
  FwpkmLists lists{};
  FwpkmFound found{};
  FwpkmMarginals marginals{};
  FwpkmTally tally{};
  size_t bytes = 0, map_bytes = 0;

  ForwardWork(FwpkmCall* call, const OpArgs& args, void* workspace) {
    Carver carver(workspace), for_backward(args.saved[FwpkmSaved::groups].data);
    const bool saved = static_cast<bool>(args.saved[FwpkmSaved::scores]);
    const int64_t all = int64_t{call->batch} * call->time, subs = int64_t{call->books} * call->k;
    const int64_t chunk = call->batch * longest_span(*call);
    if (!saved) {
      call->scores = carver.take<float>(all * subs);
      call->share = carver.take<float>(all * call->reads);
      call->source = carver.take<int32_t>(all * call->reads);
      call->chain = carver.take<int32_t>(all * call->reads);
    }
    products.take(&carver, *call);
    const FwpkmKept kept(saved && call->write ? &for_backward : &carver, *call);
    require(!saved ||
                for_backward.used() <= static_cast<size_t>(args.saved[FwpkmSaved::groups].bytes()),
            "fwpkm", "the groups need {} bytes, not {}", for_backward.used(),
            args.saved[FwpkmSaved::groups].bytes());
    lists.take(&carver, *call, kept, false);
    if (call->write) {
      found.errors = take_reals(&carver, *call, chunk * call->dv);
      found.coefficients = carver.take<float>(chunk * call->reads);
      take_map(&carver, call);
    }
    if (call->keys_move) {
      const int64_t tiles = tiles_of(FwpkmSpan(*call, 0));
      tally.counts = carver.take<uint8_t>(call->books * tiles * call->n);
      tally.before = carver.take<uint8_t>(chunk * subs);
    }
    if (call->keys_move && call->addr_loss) {
      marginals = {kept.p, kept.pbar, kept.slope};
      tally.sums = carver.take<unsigned long long>(int64_t{call->marginals} * call->n);
    } else if (call->keys_move) {
      found.push = carver.take<float>(all * subs);
      found.along = carver.take<float>(chunk * call->reads);
    }
    bytes = carver.used();
  }

 private:
  // Entries for twice as many chains as there can be; none where a chain is a slot.
  void take_map(Carver* carver, FwpkmCall* call) {
    if (call->chain_cap < int64_t{call->n} * call->n) {
      const auto entries = std::bit_ceil(static_cast<uint32_t>(2 * call->chain_cap + 2));
      call->map_mask = entries - 1;
      map_bytes = static_cast<size_t>(call->owners) * entries * sizeof(int2);
      call->map = reinterpret_cast<int2*>(carver->take<std::byte>(static_cast<int64_t>(map_bytes)));
    }
  }
};

// Nothing is written yet, and the old sub-keys of each chunk have their place.
__global__ void __launch_bounds__(kFwpkmThreads)
    start_kernel(FwpkmCall call, int64_t key_rows, unsigned long long* sums) {
  const int64_t i = blockIdx.x * int64_t{kFwpkmThreads} + threadIdx.x;
  if (sums != nullptr && i < call.marginals * call.n) {
    sums[i] = 0;
  }
  if (i < call.chunks) {
    call.addressing[i] = 0;
  }
  if (call.key_starts != nullptr && i <= call.chunks) {
    call.key_starts[i] = static_cast<int32_t>(min(i * call.key_step, key_rows));
  }
  if (!call.write) {
    return;
  }
  if (i < call.owners) {
    call.counts[i] = static_cast<int32_t>(call.chain_cap);
  }
  if (i < call.owners * call.chain_cap) {
    call.writes[i * 3] = static_cast<int32_t>(i / call.chain_cap);
    call.writes[i * 3 + 1] = call.map == nullptr ? static_cast<int32_t>(i % call.chain_cap) : 0;
    call.writes[i * 3 + 2] = -1;
  }
}

void start(const FwpkmCall& call, const ForwardWork& work, const OpArgs& args) {
  const int64_t chains = call.write ? call.owners * call.chain_cap : 0;
  const int64_t items =
      std::max({chains, int64_t{call.owners}, int64_t{call.chunks} + 1,
                work.tally.sums == nullptr ? 0 : int64_t{call.marginals} * call.n});
  const View& kept = args.saved[FwpkmSaved::key_rows];
  Profile::phase(call.write ? FwpkmPhases::write_values : FwpkmPhases::read, [&] {
    start_kernel<<<static_cast<unsigned>(ceil_div(items, kFwpkmThreads)), kFwpkmThreads, 0,
                   this_stream()>>>(call, kept ? kept.dim(0) - 1 : 0, work.tally.sums);
    check_launch("fwpkm starting");
    if (work.map_bytes > 0) {
      check_cuda(cudaMemsetAsync(call.map, 0xff, work.map_bytes, this_stream()), "fwpkm starting");
    }
  });
  if (call.write) {
    const View& keys = args.in[FwpkmIn::keys];
    Profile::phase(FwpkmPhases::write_keys, [&] {
      check_cuda(cudaMemcpyAsync(call.moved, keys.data, static_cast<size_t>(keys.bytes()),
                                 cudaMemcpyDeviceToDevice, this_stream()),
                 "fwpkm copying keys");
    });
  }
}

// Runs `part` on another stream, or, if that is not wanted, on the first.
template <typename Part>
void run_beside(bool beside, Side side, Part&& part) {
  std::optional<SideStream> stream;
  if (beside) {
    stream.emplace(side);
  }
  part();
}

// Whether values can be left to other streams: selections and keys then never depend on them. Of
// what they share, the first stream only writes slots and sums of scores (in `weights`), each chunk
// its own, before it forks for who reads them. All else that Side::kLong reads or writes (weights,
// sources, chains, shares, y, losses, errors, coefficients, the log, the map) is touched there
// alone until it is joined, and lists of reads, each chunk its own, by Side::kShort before.
bool values_apart(const FwpkmCall& call) {
  const bool pushed_by_values = call.keys_move && !call.addr_loss;
  return !pushed_by_values && (call.keys_move || call.chunks > 1);
}

// Groups the reads of a chunk while their rows are read; then writes, if `wanted`.
void write(const FwpkmCall& call, const ForwardWork& work, const FwpkmSpan& span, bool apart,
           bool wanted) {
  Profile::phase(FwpkmPhases::write_values, [&] {
    run_beside(apart, Side::kShort, [&] { group_reads(call, work.lists, span); });
    if (!wanted) {
      return;
    }
    run_beside(apart, Side::kLong, [&] {
      if (apart) {
        SideStream::join(Side::kShort);
      }
      write_values(call, span, work.lists.of(call, span), work.found);
    });
  });
}

}  // namespace

FwpkmCall::FwpkmCall(const OpArgs& args) {
  const FwpkmSizes s(args);
  const auto in = [&](int i) -> const View& { return args.in[i]; };
  const auto out = [&](int i) -> const View& { return args.out[i]; };
  const auto saved = [&](int i) -> const View& { return args.saved[i]; };
  const auto number = [](int64_t x) { return static_cast<int>(x); };
  batch = number(s.batch);
  time = number(s.time);
  chunk = number(std::min<int64_t>(s.set.chunk, INT32_MAX));
  chunks = number(s.chunks);
  lookahead = s.set.lookahead;
  heads = number(s.heads);
  k = number(s.k);
  n = number(s.n);
  half = number(s.half);
  dv = number(s.dv);
  row = number(s.row);
  reads = number(s.reads);
  books = number(s.books);
  marginals = number(s.marginals());
  owners = number(s.owners);
  chain_cap = s.chain_cap;
  log_cap = s.log_cap;
  dot = s.set.dot;
  official = s.set.official;
  rewrite = s.set.rewrite;
  shared = s.set.shared;
  addr_loss = s.set.addr_loss;
  write = s.set.write;
  keys_move = write && s.moves_keys();
  addr_weight = static_cast<float>(s.set.addr_weight);
  const int64_t together = s.set.shared ? s.batch : 1;
  const int64_t writers = std::max<int64_t>(0, s.set.chunk - lookahead);
  log_step = std::min(s.n * s.n, together * std::min(writers, s.time) * s.reads);
  key_step = keys_move
                 ? std::min(s.books * s.n, s.batch * std::min(s.set.chunk, s.time) * s.books * s.k)
                 : 0;

  const auto numbers = [](const View& view) { return view.ptr<float>(); };
  q = in(FwpkmIn::q).data;
  v = in(FwpkmIn::v).data;
  g = numbers(in(FwpkmIn::g));
  table = numbers(in(FwpkmIn::values));
  table_stride = in(FwpkmIn::values).stride(0);
  overlay = numbers(in(FwpkmIn::rows));
  given_ids = in(FwpkmIn::ids).ptr<int32_t>();
  given_picks = in(FwpkmIn::picks).ptr<int32_t>();
  directory = in(FwpkmIn::directory).ptr<int32_t>();
  pages = in(FwpkmIn::pages).ptr<int32_t>();
  y = out(FwpkmOut::y).data;
  slots = out(FwpkmOut::slots).ptr<int32_t>();
  weights = numbers(out(FwpkmOut::weights));
  losses = numbers(out(FwpkmOut::losses));
  addressing = numbers(out(FwpkmOut::addressing));
  ids = out(FwpkmOut::ids).ptr<int32_t>();
  picks = out(FwpkmOut::picks).ptr<int32_t>();
  moved = numbers(out(FwpkmOut::keys));
  keys = write ? moved : numbers(in(FwpkmIn::keys));
  log = numbers(out(FwpkmOut::rows));
  writes = out(FwpkmOut::writes).ptr<int32_t>();
  counts = out(FwpkmOut::counts).ptr<int32_t>();
  scores = numbers(saved(FwpkmSaved::scores));
  share = numbers(saved(FwpkmSaved::share));
  source = saved(FwpkmSaved::source).ptr<int32_t>();
  chain = saved(FwpkmSaved::chain).ptr<int32_t>();
  key_rows = numbers(saved(FwpkmSaved::key_rows));
  key_starts = saved(FwpkmSaved::key_starts).ptr<int32_t>();
  places = in(FwpkmIn::places).ptr<int32_t>();
  free = in(FwpkmIn::free).ptr<int32_t>();
  halved = s.set.halved;
  map = nullptr;
  map_mask = 0;

  narrow = in(FwpkmIn::q).dtype == DType::kBF16;
  wide = half % 4 == 0 &&
         in_runs_of(4, {in(FwpkmIn::q), in(FwpkmIn::v), in(FwpkmIn::keys), in(FwpkmIn::values),
                        in(FwpkmIn::rows), out(FwpkmOut::y), out(FwpkmOut::keys),
                        out(FwpkmOut::rows), saved(FwpkmSaved::key_rows)});
  for (size_t i = 0; i < 3 && i < args.din.size(); ++i) {
    wide = wide && (i == FwpkmIn::g || in_runs_of(4, {args.din[i]}));
  }
  wide = wide && (args.dout.empty() || in_runs_of(4, {args.dout[FwpkmOut::y]}));
  require(!halved || (narrow && table_stride == dv &&
                      in_runs_of(8, {in(FwpkmIn::v), out(FwpkmOut::y), in(FwpkmIn::values),
                                     out(FwpkmOut::rows)}) &&
                      (args.din.empty() || in_runs_of(8, {args.din[FwpkmIn::v]})) &&
                      (args.dout.empty() || in_runs_of(8, {args.dout[FwpkmOut::y]}))),
          "fwpkm", "rows in halves need aligned tensors of bf16");
}

void fwpkm_forward_cuda(const OpArgs& args) {
  const FwpkmSizes s(args);
  FwpkmCall call(args);
  const ForwardWork work(&call, args, args.workspace);
  start(call, work, args);
  if (call.batch == 0 || call.chunks == 0) {
    return;
  }
  const bool apart = values_apart(call), leaves = apart && args.late;
  for (int c = 0; c < call.chunks; ++c) {
    const FwpkmSpan span(call, c);
    const bool left = leaves && c + 1 == call.chunks;
    const auto step = static_cast<float>(s.step(c));
    Profile::phase(FwpkmPhases::read, [&] {
      select_slots(call, work.products, span, c == 0, work.marginals.p, work.tally);
    });
    if (apart) {
      SideStream::fork(Side::kLong);
      SideStream::fork(Side::kShort);
    }
    run_beside(apart, Side::kLong, [&] {
      Profile::phase(FwpkmPhases::read, [&] { read_values(call, span, work.found, step); });
    });
    if (left) {
      SideStream::join(Side::kLong);  // y is there; what the last chunk writes nobody waits for
    }
    if (call.write) {
      write(call, work, span, apart, c + 1 < call.chunks || s.set.last_write || s.set.late_values);
    }
    if (call.keys_move) {
      Profile::phase(FwpkmPhases::write_keys, [&] {
        const FwpkmGroups groups = work.lists.of(call, span);
        const FwpkmMarginals marginals = work.marginals.of(call, span);
        run_beside(left, Side::kShort, [&] {
          group_selections(call, groups, span, work.tally, marginals, !left);
          move_keys(call, span, groups, work.found, marginals, work.products);
        });
      });
    }
  }
  if (leaves) {
    SideStream::leave();
  } else if (apart) {
    SideStream::join(Side::kLong);
    SideStream::join(Side::kShort);
  }
}

size_t fwpkm_workspace_cuda(const OpArgs& args, bool backward) {
  if (backward) {
    return fwpkm_backward_bytes(args);
  }
  FwpkmCall call(args);
  return ForwardWork(&call, args, nullptr).bytes;
}

}  // namespace fwpkm
