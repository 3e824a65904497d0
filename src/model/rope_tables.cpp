#include "model/rope_tables.h"

#include <algorithm>

namespace fwpkm {
namespace {

// Some rows of a table that others may look at too: a node of its own on the same memory.
Tensor rows_of(const Tensor& table, int64_t first, int64_t count) {
  auto node = std::make_shared<Node>();
  node->value = table.view().slice(0, first, first + count);
  node->storage = table.node()->storage;
  return Tensor(std::move(node));
}

}  // namespace

std::pair<Tensor, Tensor> RopeTables::at(Run& run, const RopeSettings& settings, int64_t first,
                                         int64_t count) {
  const int64_t width = rotary_dims(settings) / 2, end = first + count;
  std::vector<double> cos, sin;
  if (end > kMost || run.pool().dry()) {
    rope_table(settings, first, count, &cos, &sin);
    const Shape shape = {count, width};
    const Tensor c = run.from_host("cos", shape, cos);
    return {c, run.from_host("sin", shape, sin)};
  }
  const std::lock_guard lock(mutex_);
  if (!cos_ || cos_.dim(0) < end) {
    const int64_t length = std::min(kMost, std::max(end, cos_ ? 2 * cos_.dim(0) : 0));
    rope_table(settings, 0, length, &cos, &sin);
    const Shape shape = {length, width};
    const Tensor c = run.make_kept("cos", shape, run.wide());
    const Tensor s = run.make_kept("sin", shape, run.wide());
    copy_from_host(c.view(), cos);
    copy_from_host(s.view(), sin);
    cos_ = c;
    sin_ = s;
  }
  return {rows_of(cos_, first, count), rows_of(sin_, first, count)};
}

}  // namespace fwpkm
