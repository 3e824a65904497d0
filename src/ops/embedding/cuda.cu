// A warp for each row; backward as row_sums.cuh says.
#include "ops/common/row_sums.cuh"
#include "ops/embedding/embedding.h"

namespace fwpkm {
namespace {

constexpr int kThreads = 256;

// Rows of whole units, each of one or more numbers: they are only copied.
template <typename Unit>
__global__ void forward_kernel(const int32_t* ids, const Unit* table, Unit* y, int64_t tokens,
                               int64_t units) {
  constexpr int kBatch = 4;
  const int64_t token = blockIdx.x * int64_t{kThreads / 32} + threadIdx.x / 32;
  if (token >= tokens) {
    return;
  }
  const Unit* from = table + ids[token] * units;
  Unit* to = y + token * units;
  for (int64_t first = threadIdx.x % 32; first < units; first += 32 * kBatch) {
    Unit held[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (first + 32 * i < units) {
        held[i] = from[first + 32 * i];
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (first + 32 * i < units) {
        to[first + 32 * i] = held[i];
      }
    }
  }
}

template <typename Unit>
void copy_rows(const View& ids, const View& table, const View& y) {
  const int64_t tokens = ids.size();
  const auto bytes = table.dim(1) * static_cast<int64_t>(dtype_size(table.dtype));
  forward_kernel<<<static_cast<unsigned>(ceil_div(tokens, kThreads / 32)), kThreads, 0,
                   this_stream()>>>(ids.ptr<int32_t>(), static_cast<const Unit*>(table.data),
                                    static_cast<Unit*>(y.data), tokens,
                                    bytes / static_cast<int64_t>(sizeof(Unit)));
  check_launch("embedding");
}

template <typename T>
void backward(const OpArgs& args, const RowSumPlan& sums) {
  const View &dy = args.dout[0], &dtable = args.din[1];
  const RowSumTerms<T> terms = {.rows = dy.ptr<T>(),
                                .row_at = FastRows(dy),
                                .sharing = FastDivisor(1),
                                .weights = nullptr,
                                .to = dtable.ptr<float>(),
                                .limit = dtable.dim(0),
                                .add = args.accumulate[1]};
  if (in_runs_of(4, {dy, dtable})) {
    add_shared_rows<RowSumOfFour, false>(sums, terms, "embedding backward");
  } else {
    add_shared_rows<RowSumOfOne, false>(sums, terms, "embedding backward");
  }
}

}  // namespace

void embedding_forward_cuda(const OpArgs& args) {
  const View &ids = args.in[0], &table = args.in[1], &y = args.out[0];
  if (y.size() == 0) {
    return;
  }
  require(table.dtype == y.dtype, "embedding", "the table holds {}, but {} is asked for",
          dtype_name(table.dtype), dtype_name(y.dtype));
  const auto size = static_cast<int64_t>(dtype_size(y.dtype));
  if (in_runs_of(16 / size, {table, y})) {
    copy_rows<uint4>(ids, table, y);
  } else if (size == 4) {
    copy_rows<uint32_t>(ids, table, y);
  } else {
    copy_rows<uint16_t>(ids, table, y);
  }
}

void embedding_backward_cuda(const OpArgs& args) {
  if (!args.din[1]) {
    return;
  }
  const View &ids = args.in[0], &table = args.in[1];
  if (ids.size() == 0 || table.size() == 0) {
    if (!args.accumulate[1]) {
      fill_zero(args.din[1]);
    }
    return;
  }
  Carver carver(args.workspace);
  const RowSumPlan sums(ids.size(), table.dim(1), carver);
  sort_places(sums, ids.ptr<int32_t>(), table.dim(0), "embedding sort");
  with_real(args.dout[0], [&]<typename T>(T*) { backward<T>(args, sums); });
}

size_t embedding_workspace_cuda(const OpArgs& args, bool backward) {
  if (!backward) {
    return 0;
  }
  Carver carver(nullptr);
  const RowSumPlan sums(args.in[0].shape.size(), args.in[1].dim(1), carver);
  return carver.used();
}

}  // namespace fwpkm
