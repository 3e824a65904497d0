#include "ops/fwpkm/cuda_write.cuh"

#include "ops/fwpkm/cuda_rows.cuh"

namespace fwpkm {
namespace {

// Gives a slot that was never read before its chain: the number of its first read.
__device__ int first_chain(const FwpkmCall& call, int owner, int slot, int64_t first) {
  const int64_t before = static_cast<int64_t>(owner) * call.time * call.reads;
  const auto chain = static_cast<int>(owner * call.chain_cap + first - before);
  add_chain(call, owner, slot, chain);
  call.writes[static_cast<int64_t>(chain) * 3 + 1] = slot;
  return chain;
}

// The row of the log that a slot gets; `first`: the place of its first read that writes.
__device__ int new_row(const FwpkmCall& call, const SortedSpan& span, int owner, int slot,
                       int first) {
  const int each = span.writers * call.reads;  // writing reads of a row of the batch
  const int64_t slots = static_cast<int64_t>(call.n) * call.n;
  int64_t row = slot;
  if (slots > static_cast<int64_t>(call.shared ? call.batch : 1) * each) {
    const int j = span.number_of(first);
    row = (call.shared ? static_cast<int64_t>(span.row(j)) * each : 0) + span.step(j) * call.reads +
          span.rank_of(first);
  }
  return static_cast<int>(owner * call.log_cap + span.number * call.log_step + row);
}

__device__ float share_of(const FwpkmCall& call, int reads, int writing) {
  return 1.0f / static_cast<float>(max(1, call.official ? reads : writing));
}

// Chain and share of a read.
__device__ void keep_read(const FwpkmCall& call, int64_t read, int chain, bool writes,
                          float share) {
  call.chain[read] = chain;
  if (writes) {
    call.share[read] = share;
  }
}

// A slot that is written: its row, and where the new one goes.
struct WrittenSlot {
  const float* from;
  float* to;
};
// An error that is added to it, times `scale`.
struct alignas(16) ErrorTerm {
  const void* row;
  float scale;
  int last;  // of its slot
};
// What a warp has in shared memory: the slots of a window in their order, and all their errors.
struct WindowWrites {
  WrittenSlot slots[kFwpkmWindow];
  ErrorTerm errors[32];
};

// Writes slots, each its row and then its errors in their order. The next slot's row and the next
// error are on their way meanwhile. The work of a warp.
template <typename T, int kRun, ValueRows kValues, bool kWhole>
__device__ void write_slots(const WindowWrites& writes, int slots, int errors, int dv) {
  constexpr int kGroups = kFwpkmGroups<kRun>;
  const WrittenSlot* const slots_end = writes.slots + slots;
  const ErrorTerm* const errors_end = writes.errors + errors;
  const int lane = threadIdx.x % 32;
  const int width = __shfl_sync(kWholeWarp, dv, 0);  // an argument would be loaded at each use
  for (int first = 0; first < width; first += kGroups * 32 * kRun) {
    const int c = first + lane * kRun;
    const auto for_columns = [&](auto&& fn) { for_runs_at<kRun, kWhole>(c, width, fn); };
    RowPart<T, kRun, kValues> value[kGroups] = {};
    RowPart<T, kRun> error[kGroups] = {};
    float scale = 0;  // of that error, as in its term
    int last = 0;
    const auto fetch_value = [&](const WrittenSlot* slot) {
      if (slot < slots_end) {
        const float* row = global_pointer(slot->from);
        for_columns([&](int g, int column) { value[g].load(row, true, column, width); });
      }
    };
    const auto fetch_error = [&](const ErrorTerm* term) {
      if (term < errors_end) {
        scale = term->scale;
        last = term->last;
        const void* row = global_pointer(term->row);
        for_columns([&](int g, int column) { error[g].load(row, false, column, width); });
      }
    };
    const ErrorTerm* term = writes.errors;
    fetch_value(writes.slots);
    fetch_error(term);
    for (const WrittenSlot* slot = writes.slots; slot < slots_end; ++slot) {
      float sum[kGroups][kRun];
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        value[g].get(true, sum[g]);
#pragma unroll
        for (int i = 0; i < kRun; ++i) {
          sum[g][i] += 0.0f;  // as in a sum that begins with 0: no -0
        }
      }
      bool more;
      do {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
          float row[kRun];
          error[g].get(false, row);
          add_run(scale, row, sum[g]);
        }
        more = last == 0;
        fetch_error(++term);
      } while (more);
      // Only now, or it would come to other registers and be copied.
      fetch_value(slot + 1);
      if constexpr (kValues == ValueRows::kHalves) {
        tame_nans(sum);
      }
      float* to = global_pointer(slot->to);
      for_columns([&](int g, int column) { put_part<kValues>(to, column, width, sum[g]); });
    }
  }
}

// The slots that begin in a window and end in sight of its warp.
template <typename T, int kRun, ValueRows kValues, bool kWhole>
__device__ void write_window(const FwpkmCall& call, const SortedSpan& span, const FwpkmFound& found,
                             const SlotWindow& window, WindowWrites* shared) {
  const int lane = threadIdx.x % 32, slot = id_of(window.element);
  const bool here = window.group != 0, heads = here && lane == window.head();
  const int place = here ? place_of(window.element) : 0, j = span.number_of(place);
  const int owner = call.shared ? 0 : span.row(j);
  const int64_t read = read_at(call, span, place);
  const bool writes = here && span.writes(j);
  int chain = 0, source = 0;
  if (heads) {
    chain = call.chain[read];
    source = call.source[read];
  }
  const float coefficient = writes ? found.coefficients[place] : 0.0f;
  const unsigned all_writing = __ballot_sync(kWholeWarp, writes);
  const unsigned writing = all_writing & window.group;
  const int row = __shfl_sync(kWholeWarp, new_row(call, span, owner, slot, place),
                              writing == 0 ? 0 : __ffs(writing) - 1);
  if (heads && chain < 0) {
    chain = first_chain(call, owner, slot, read);
  }
  if (heads && writing != 0) {
    call.writes[static_cast<int64_t>(chain) * 3 + 2] = row;
  }
  chain = __shfl_sync(kWholeWarp, chain, window.head());
  const float share = share_of(call, __popc(window.group), __popc(writing));
  if (here) {
    keep_read(call, read, chain, writes, share);
  }
  const bool begins = heads && writing != 0;
  const unsigned all_begins = __ballot_sync(kWholeWarp, begins), below = (1u << lane) - 1;
  if (begins) {
    shared->slots[__popc(all_begins & below)] = {value_row(call, source, slot), log_row(call, row)};
  }
  if (writes) {
    const bool last = (writing & ~below) == 1u << lane;
    ErrorTerm* term = &shared->errors[__popc(all_writing & below)];
    term->row = row_of<T>(call, found.errors, j);
    term->scale = coefficient * share;
    term->last = last ? 1 : 0;
  }
  __syncwarp();
  write_slots<T, kRun, kValues, kWhole>(*shared, __popc(all_begins), __popc(all_writing), call.dv);
}

// A slot that is left to the block.
struct LongWrite {
  const uint64_t* list;
  const float* from;
  float* to;
  float share;
  int count, first_writing;
};

// Prepares it. Nothing is to be written if the count stays 0.
__device__ void leave_slot(const FwpkmCall& call, const SortedSpan& span, const SlotReads& reads,
                           LongWrite* rest) {
  const int lane = threadIdx.x % 32;
  const int64_t first = read_at(call, span, reads.first);
  const float* from = value_row(call, call.source[first], reads.slot);
  const float share = share_of(call, reads.count, reads.writing);
  const int row = new_row(call, span, reads.owner, reads.slot, reads.first_writing);
  int chain = call.chain[first];
  __syncwarp();  // all lanes have the chain before one changes it
  if (lane == 0) {
    chain = chain < 0 ? first_chain(call, reads.owner, reads.slot, first) : chain;
    if (reads.writing > 0) {
      call.writes[static_cast<int64_t>(chain) * 3 + 2] = row;
      *rest = {reads.list, from, log_row(call, row), share, reads.count, reads.first_writing};
    }
  }
  chain = __shfl_sync(kWholeWarp, chain, 0);
  for (int i = lane; i < reads.count; i += 32) {
    const int place = reads.place(i);
    keep_read(call, read_at(call, span, place), chain, span.writes(span.number_of(place)), share);
  }
}

// Each warp has a window of the sorted reads.
template <typename T, int kRun, ValueRows kValues, bool kWhole>
__global__ void __launch_bounds__(kFwpkmThreads, kWhole ? 4 : 3)
    write_kernel(FwpkmCall call, SortedSpan span, FwpkmGroups groups, FwpkmFound found) {
  __shared__ WindowWrites windows[kFwpkmWarps];
  __shared__ LongWrite rests[kFwpkmWarps];  // a long slot is the last one to begin in its window
  const int warp = threadIdx.x / 32;
  const int item = (blockIdx.x * kFwpkmWarps + warp) * kFwpkmWindow;
  if (threadIdx.x % 32 == 0) {
    rests[warp].count = 0;
  }
  __syncwarp();
  bool left = false;
  if (item < span.count * call.reads) {
    const SlotWindow window(call, span, groups.reads, item);
    left = window.left >= 0;
    if (left) {
      leave_slot(call, span, slot_reads(span, groups.reads, window.left), &rests[warp]);
    }
    write_window<T, kRun, kValues, kWhole>(call, span, found, window, &windows[warp]);
  }
  if (!__syncthreads_or(left)) {
    return;
  }
  for (const LongWrite& rest : rests) {
    if (rest.count == 0) {
      continue;
    }
    sum_many<T, kRun, kValues>(rest.from, rest.to, call.dv, rest.count, [&](int i, float* scale) {
      // Those that write nothing have no error; another's, times 0, stands in.
      const int place = place_of(rest.list[i]);
      const bool writes = span.writes(span.number_of(place));
      *scale = writes ? found.coefficients[place] * rest.share : 0.0f;
      return row_of<T>(call, found.errors, span.number_of(writes ? place : rest.first_writing));
    });
  }
}

}  // namespace

void write_values(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmGroups& groups,
                  const FwpkmFound& found) {
  with_value_rows(call, [&]<typename T, typename Run, typename Halved>(T*, Run, Halved) {
    constexpr auto kValues = Halved::value ? ValueRows::kHalves : ValueRows::kFloats;
    with_whole<Run::value>(call.dv, [&]<typename Whole>(Whole) {
      launch(false, &write_kernel<T, Run::value, kValues, Whole::value>, window_blocks(call, span),
             kFwpkmThreads, 0, "fwpkm writing values", call, SortedSpan(call, span), groups, found);
    });
  });
}

}  // namespace fwpkm
