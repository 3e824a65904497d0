// A table of values on a GPU from one training step to the next, in the form that costs a step
// least. While it is open nobody but the op, given rows(), can make sense of the table.
//
// Where rows are: a step writes new rows, and backward needs the old ones beside them. They are not
// copied into the table afterwards. The rows of the table and those of the log are one set of
// places, each slot has one of them, and what a step leaves behind is free for the rows of the
// next.
//
// What rows are: where activations are bf16, the numbers of a row rounded to bf16, then the lower
// 16 bits of each, from which the numbers themselves follow. Who reads takes the first half of the
// bytes, who writes both: nothing is lost.
#pragma once

#include "ops/fwpkm/fwpkm.h"

namespace fwpkm {

class FwpkmStore {
 public:
  // For the table `values`, which must outlive this, of calls with these settings. Rows of a table
  // that is not on the card (`far`) keep their places, or they would come and go with the log's.
  FwpkmStore(Pool& pool, const View& values, const FwpkmSettings& settings, bool far);

  // Rows of the log that a call needs here; 0 where it has a log of its own: where each sequence
  // has a memory of its own, whose rows nobody keeps, and where rows keep their places.
  int64_t log_rows(int64_t batch, int64_t time) const;

  bool is_open() const { return open_; }
  int64_t capacity() const { return rows_.log ? rows_.log.dim(0) : 0; }
  // Takes the table as it is and gives it its form, with room for that many new rows. If that is
  // more than before, new memory is taken for them: what was recorded with the old is void.
  void open(int64_t log_rows);
  // What the op wants to know.
  const FwpkmRows& rows() const { return rows_; }
  // Keeps what a call wrote to the log that is here; after its backward.
  void adopt(const FwpkmResult& result);
  // Makes it a plain table again.
  void settle();
  // Memory beside the table.
  size_t bytes() const;
  // What it will be for calls of that size, but for the log: rows that a call writes take memory
  // with a store and without.
  static int64_t planned_bytes(const FwpkmSettings& settings, const Shape& values, int64_t batch,
                               int64_t time);
  // Rows that a call wrote elsewhere, as floats.
  Tensor plain(Run& run, const Tensor& rows) const;

 private:
  void lay_out();

  Pool& pool_;
  View values_;
  FwpkmSettings settings_;
  FwpkmRows rows_;
  Tensor sorted_;  // room for some columns of all slots
  bool far_;
  bool open_ = false;
};

// The kernels of it.
struct FwpkmStoreCuda {
  // Numbers the places: of slots, and of rows of the log.
  static void number(const View& places, const View& free);
  // Rows of `values` to halves, and back.
  static void halve(const View& values);
  static void join(const View& values);
  // Each slot that was written gets the place of its last row, whose number in the log gets the
  // slot's old one.
  static void adopt(const FwpkmResult& result, const View& places, const View& free);
  // Rows to their own places; `some`: [slots, any number of columns that go at a time].
  static void sort(const View& values, const View& log, const View& places, const View& some);
};

}  // namespace fwpkm
