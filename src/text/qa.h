// Questions on long documents, from JSON lines (.jsonl, also with .gz or .zst) of two kinds, told
// apart by their keys:
//
//   LongBench   context, input (the question), answers, dataset
//   L-Eval      input (the document), instructions (questions), outputs (answers)
//
// Other keys are passed over. A document is held at a time; errors name the line.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "text/json_lines.h"

namespace fwpkm {

struct QaDocument {
  std::string task;  // "dataset" of the line, or else the file's name without its endings
  std::string context;
  struct Question {
    std::string question;  // may be empty in LongBench
    std::string answer;    // the first that is given
  };
  std::vector<Question> questions;
};

class QaReader {
 public:
  explicit QaReader(const std::filesystem::path& path);
  // False at the end. A file without a document is an error then.
  bool next(QaDocument* document);
  uint64_t hash() const { return lines_.hash(); }

 private:
  JsonLines lines_;
  std::filesystem::path path_;
  int64_t documents_ = 0;
};

}  // namespace fwpkm
