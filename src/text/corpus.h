// Documents from files: plain text, JSON lines, folders of them, also compressed.
//
//   .txt .text       a line that holds only <|endoftext|> separates documents
//   .jsonl .ndjson   a JSON object per line; its string "text" is a document
//   + .gz or .zst    the same, compressed
//   a folder         all such files below it, by path
//
// A file's end is a document's end. Documents without a single byte are passed over.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace fwpkm {

inline constexpr std::string_view kDocumentSeparator = "<|endoftext|>";

struct SourceFile {
  std::string path;
  uint64_t bytes = 0;       // as it lies on disk
  int64_t modified_ns = 0;  // when it was changed last
};

// The files that `paths` stand for. Files of other kinds inside folders go to `skipped`; given by
// name, or if nothing usable is there at all, they are an error.
std::vector<SourceFile> list_sources(const std::vector<std::string>& paths,
                                     std::vector<std::string>* skipped = nullptr);

// A part of a document. Cuts inside a document fall after a line's end where there is one, else
// before a space, else between characters; where they fall depends on the text alone.
struct TextPiece {
  std::string text;
  bool starts_document = false;
  bool ends_document = false;
};

struct ReaderLimits {
  size_t piece_bytes = 64u << 10;      // the most text that a piece holds
  size_t json_line_bytes = 64u << 20;  // lines of JSON are held whole
};

// Streams documents piece by piece: memory does not grow with documents or files. All text is
// checked to be UTF-8; messages name file, line and byte.
class DocumentReader {
 public:
  explicit DocumentReader(std::vector<SourceFile> files, ReaderLimits limits = {});
  ~DocumentReader();
  DocumentReader(const DocumentReader&) = delete;
  DocumentReader& operator=(const DocumentReader&) = delete;

  // False at the end. A corpus without any document is an error then.
  bool next(TextPiece& piece);

  int64_t documents() const { return documents_; }  // that have ended
  uint64_t text_bytes() const { return text_bytes_; }
  // How much of the files, as they lie on disk, has been read: 0 to 1.
  double fraction() const;

 private:
  class OpenFile;
  bool next_anywhere(TextPiece& piece);

  std::vector<SourceFile> files_;
  ReaderLimits limits_;
  size_t next_file_ = 0;
  std::unique_ptr<OpenFile> file_;
  bool inside_ = false;  // a document that has begun and not ended
  int64_t documents_ = 0;
  uint64_t text_bytes_ = 0;
  uint64_t finished_bytes_ = 0, total_bytes_ = 0;
};

// Where to cut `text` so that the front has at most `limit` bytes (see TextPiece); all of it where
// it fits. Needs limit >= 4.
size_t cut_text(std::string_view text, size_t limit);

}  // namespace fwpkm
