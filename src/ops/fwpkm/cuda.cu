#include <algorithm>
#include <bit>

#include "ops/fwpkm/cuda_backward.cuh"
#include "ops/fwpkm/cuda_write.cuh"

namespace fwpkm {
namespace {

int64_t longest_span(const FwpkmCall& call) {
  return std::min(call.time, call.chunk);
}

// Where forward keeps its intermediate results; fills in what the call misses.
struct ForwardWork {
  FwpkmProducts products{};
  FwpkmLists lists{};
  FwpkmFound found{};
  FwpkmKeyWork keys{};
  size_t bytes = 0, map_bytes = 0;

  ForwardWork(FwpkmCall* call, bool saved, void* workspace) {
    Carver carver(workspace);
    const int64_t all = int64_t{call->batch} * call->time, subs = int64_t{call->books} * call->k;
    const int64_t chunk = call->batch * longest_span(*call);
    if (!saved) {
      call->scores = carver.take<float>(all * subs);
      call->share = carver.take<float>(all * call->reads);
      call->source = carver.take<int32_t>(all * call->reads);
      call->chain = carver.take<int32_t>(all * call->reads);
    }
    products.take(&carver, *call);
    lists.take(&carver, *call, call->write, call->keys_move, false);
    if (call->write) {
      found.errors = carver.take<float>(chunk * call->dv);
      found.coefficients = carver.take<float>(chunk * call->reads);
      take_map(&carver, call);
    }
    if (call->keys_move) {
      take_keys(&carver, *call, all * subs, chunk);
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
  void take_keys(Carver* carver, const FwpkmCall& call, int64_t selections, int64_t chunk) {
    if (call.addr_loss) {
      found.p = carver->take<float>(selections);
      keys.pbar = carver->take<float>(int64_t{call.marginals} * call.n);
      keys.slope = carver->take<float>(int64_t{call.marginals} * call.n);
    } else {
      found.push = carver->take<float>(selections);
      found.along = carver->take<float>(chunk * call.reads);
    }
    keys.parts =
        carver->take<float>(call.books * key_part_rows(call, FwpkmSpan(call, 0)) * call.half);
  }
};

struct BackwardWork {
  FwpkmLists lists{};
  size_t bytes = 0;

  BackwardWork(const FwpkmCall& call, FwpkmBack* back, void* workspace) {
    Carver carver(workspace);
    const int64_t all = int64_t{call.batch} * call.time, subs = int64_t{call.books} * call.k;
    const int64_t chunk = call.batch * longest_span(call);
    const int64_t chains = call.write ? call.owners * call.chain_cap : 0;
    lists.take(&carver, call, call.write && call.chunks > 1, call.keys_move, true);
    back->dvalues = carver.take<float>(chains * call.dv);
    back->live = carver.take<uint8_t>(chains);
    back->errors = carver.take<float>(chunk * call.dv);
    back->dreads = carver.take<float>(chunk * call.dv);
    back->dw = carver.take<float>(chunk * call.reads);
    back->ds = carver.take<float>(chunk * subs);
    if (call.keys_move) {
      const int64_t marginals = int64_t{call.marginals} * call.n;
      back->dkeys = carver.take<float>(int64_t{call.books} * call.n * call.half);
      back->gam = carver.take<float>(chunk * subs);
      back->p = carver.take<float>(all * subs);
      back->push = carver.take<float>(all * subs);
      back->pbar = carver.take<float>(call.chunks * marginals);
      back->slope = carver.take<float>(call.chunks * marginals);
      back->dpbar = carver.take<float>(marginals);
      back->along = carver.take<float>(chunk * call.reads);
      back->dalong = carver.take<float>(chunk * call.reads);
      back->parts =
          carver.take<float>(call.books * key_part_rows(call, FwpkmSpan(call, 0)) * call.half);
    }
    bytes = carver.used();
  }
};

// Nothing is written yet, and the old sub-keys of each chunk have their place.
__global__ void __launch_bounds__(kFwpkmThreads) start_kernel(FwpkmCall call, int64_t key_rows) {
  const int64_t i = blockIdx.x * int64_t{kFwpkmThreads} + threadIdx.x;
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
  const int64_t items = std::max<int64_t>(std::max<int64_t>(chains, call.owners), call.chunks + 1);
  const View& kept = args.saved[FwpkmSaved::key_rows];
  start_kernel<<<static_cast<unsigned>(ceil_div(items, kFwpkmThreads)), kFwpkmThreads, 0,
                 this_stream()>>>(call, kept ? kept.dim(0) - 1 : 0);
  check_launch("fwpkm starting");
  if (!call.write) {
    return;
  }
  const View& keys = args.in[FwpkmIn::keys];
  check_cuda(cudaMemcpyAsync(call.moved, keys.data, static_cast<size_t>(keys.bytes()),
                             cudaMemcpyDeviceToDevice, this_stream()),
             "fwpkm copying keys");
  if (work.map_bytes > 0) {
    check_cuda(cudaMemsetAsync(call.map, 0xff, work.map_bytes, this_stream()), "fwpkm starting");
  }
}

// No gradient of fast weights from here on.
void cut(const FwpkmCall& call, FwpkmBack* back) {
  back->keys_live = false;
  if (call.keys_move) {
    const int64_t keys = int64_t{call.books} * call.n * call.half;
    check_cuda(
        cudaMemsetAsync(back->dkeys, 0, static_cast<size_t>(keys) * sizeof(float), this_stream()),
        "fwpkm clearing gradients");
  }
  if (call.write) {
    check_cuda(cudaMemsetAsync(back->live, 0, static_cast<size_t>(call.owners * call.chain_cap),
                               this_stream()),
               "fwpkm clearing gradients");
  }
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
}

FwpkmBack::FwpkmBack(const OpArgs& args) : dy_rows(args.dout[FwpkmOut::y]) {
  dy = args.dout[FwpkmOut::y].data;
  dq = args.din[FwpkmIn::q].data;
  dv = args.din[FwpkmIn::v].data;
  dg = args.din[FwpkmIn::g].ptr<float>();
  add_q = args.accumulate[FwpkmIn::q];
  add_v = args.accumulate[FwpkmIn::v];
  add_g = args.accumulate[FwpkmIn::g];
}

void fwpkm_forward_cuda(const OpArgs& args) {
  const FwpkmSizes s(args);
  FwpkmCall call(args);
  const ForwardWork work(&call, static_cast<bool>(args.saved[FwpkmSaved::scores]), args.workspace);
  start(call, work, args);
  for (int c = 0; c < call.chunks && call.batch > 0; ++c) {
    const FwpkmSpan span(call, c);
    select_slots(call, work.products, span, c == 0 || call.keys_move, work.found.p);
    read_values(call, span, work.lists, work.found, static_cast<float>(s.step(c)));
    if (!call.write) {
      continue;
    }
    merge_tiles(call, work.lists, span, 1);
    const FwpkmGroups groups = work.lists.of(call, span);
    write_values(call, span, groups, work.found, work.keys);
    if (call.keys_move) {
      move_keys(call, span, groups, work.found, work.keys);
    }
  }
}

void fwpkm_backward_cuda(const OpArgs& args) {
  const FwpkmSizes s(args);
  FwpkmCall call(args);
  call.keys = args.in[FwpkmIn::keys].ptr<float>();
  FwpkmBack back(args);
  const BackwardWork work(call, &back, args.workspace);
  if (call.batch == 0 || call.chunks == 0) {
    return;
  }
  const auto cut_after = [&](int64_t c) {
    return s.set.bptt_chunks > 0 && (c + 1) % s.set.bptt_chunks == 0;
  };
  group_all(call, work.lists);
  if (call.keys_move && call.addr_loss && call.chunks > 1) {
    push_all(call, work.lists, back);
  }
  for (int c = call.chunks - 1; c >= 0; --c) {
    const FwpkmSpan span(call, c);
    const FwpkmGroups groups = work.lists.of(call, span);
    if (c == call.chunks - 1 || cut_after(c)) {
      cut(call, &back);
    }
    back.last = c == 0 || cut_after(c - 1) || !call.write;
    back.late = s.set.late_values && c == 0 && call.write;
    back.memory = back.keys_live && !call.addr_loss;
    if (back.memory) {
      FwpkmFound found{};
      found.errors = back.errors;
      found.along = back.along;
      found.push = back.push;
      find_pushes(call, span, found);
    }
    if (back.keys_live) {
      find_gam(call, span, groups, back);
    }
    through_tokens(call, span, groups, back, static_cast<float>(s.step(c)));
    if (!back.last) {
      to_earlier(call, span, groups, back);
      back.keys_live = call.keys_move;
    }
  }
}

size_t fwpkm_workspace_cuda(const OpArgs& args, bool backward) {
  FwpkmCall call(args);
  if (backward) {
    FwpkmBack back(args);
    return BackwardWork(call, &back, nullptr).bytes;
  }
  return ForwardWork(&call, static_cast<bool>(args.saved[FwpkmSaved::scores]), nullptr).bytes;
}

}  // namespace fwpkm
