#include "text/corpus.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "text/byte_source.h"
#include "text/utf8.h"

namespace fwpkm {
namespace {

namespace fs = std::filesystem;

constexpr size_t kReadBytes = 256u << 10;
constexpr std::string_view kKinds = ".txt, .text, .jsonl or .ndjson, each perhaps with .gz or .zst";

enum class Kind { unknown, text, json_lines };

Kind kind_of(fs::path path) {
  if (path.extension() == ".gz" || path.extension() == ".zst") {
    path.replace_extension();
  }
  const std::string extension = path.extension().string();
  if (extension == ".txt" || extension == ".text") {
    return Kind::text;
  }
  return extension == ".jsonl" || extension == ".ndjson" ? Kind::json_lines : Kind::unknown;
}

SourceFile describe(const fs::path& path) {
  struct stat status {};
  require(::stat(path.c_str(), &status) == 0, "corpus",
          "cannot read '{}'; check the path and its permissions", path.string());
  return {path.string(), static_cast<uint64_t>(status.st_size),
          int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec};
}

std::vector<fs::path> files_below(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  fs::recursive_directory_iterator at(folder, error), end;
  while (!error && at != end) {
    if (at->is_regular_file(error)) {
      found.push_back(at->path());
    }
    at.increment(error);
  }
  require(!error, "corpus", "cannot list '{}': {}; check its permissions", folder.string(),
          error.message());
  std::sort(found.begin(), found.end(),
            [](const fs::path& a, const fs::path& b) { return a.native() < b.native(); });
  return found;
}

}  // namespace

std::vector<SourceFile> list_sources(const std::vector<std::string>& paths,
                                     std::vector<std::string>* skipped) {
  require(!paths.empty(), "corpus", "no files are given; give files or folders of {}", kKinds);
  std::vector<SourceFile> files;
  for (const std::string& path : paths) {
    require(fs::exists(path), "corpus", "'{}' does not exist; check the path", path);
    if (!fs::is_directory(path)) {
      require(kind_of(path) != Kind::unknown, "corpus",
              "'{}' is of no known kind; its name must end in {}", path, kKinds);
      files.push_back(describe(path));
      continue;
    }
    const size_t before = files.size();
    const std::vector<fs::path> below = files_below(path);
    for (const fs::path& file : below) {
      if (kind_of(file) != Kind::unknown) {
        files.push_back(describe(file));
      } else if (skipped != nullptr) {
        skipped->push_back(file.string());
      }
    }
    require(files.size() > before, "corpus",
            "none of the {} files in the folder '{}' can be used; their names must end in {}",
            below.size(), path, kKinds);
  }
  return files;
}

size_t cut_text(std::string_view text, size_t limit) {
  if (text.size() <= limit) {
    return text.size();
  }
  // Best after a line's end that more blank lines do not follow: tokenizers join those.
  size_t any_line = 0, space = 0;
  for (size_t i = limit; i > 0; --i) {
    if (text[i - 1] == '\n') {
      if (text[i] != '\n' && text[i] != '\r') {
        return i;
      }
      any_line = std::max(any_line, i);
    } else if (space == 0 && text[i] == ' ' && text[i - 1] != ' ') {
      space = i;
    }
  }
  if (any_line > 0 || space > 0) {
    return any_line > 0 ? any_line : space;
  }
  size_t cut = limit;
  while (cut > 1 && is_utf8_continuation(text[cut])) {
    --cut;
  }
  return cut;
}

// One file: a buffer of checked text, from which documents are taken.
class DocumentReader::OpenFile {
 public:
  OpenFile(const SourceFile& file, const ReaderLimits& limits)
      : path_(file.path),
        kind_(kind_of(file.path)),
        limits_(limits),
        bytes_(open_bytes(file.path)),
        check_("'" + file.path + "'") {
    fill(3);
    if (rest().starts_with("\xef\xbb\xbf")) {  // a byte order mark is not text
      at_ = 3;
    }
  }

  uint64_t consumed() const { return bytes_->consumed(); }

  // The next piece; `inside` says whether its document began before. False at the end.
  bool next(TextPiece& piece, bool inside) {
    return kind_ == Kind::text ? next_text(piece, inside) : next_json(piece);
  }

 private:
  std::string_view rest() const { return std::string_view(buffer_).substr(at_); }

  // Makes the buffer hold `size` bytes more than were used, unless the file ends before.
  void fill(size_t size) {
    if (ended_ || buffer_.size() - at_ >= size) {
      return;
    }
    buffer_.erase(0, at_);
    at_ = 0;
    while (!ended_ && buffer_.size() < size) {
      const size_t old = buffer_.size();
      buffer_.resize(old + kReadBytes);
      const size_t got = bytes_->read({buffer_.data() + old, kReadBytes});
      buffer_.resize(old + got);
      check_.feed(std::string_view(buffer_).substr(old));
      if (got == 0) {
        check_.finish();
        ended_ = true;
      }
    }
  }

  // A separator line that starts within the first `limit` bytes: its place and length.
  std::pair<size_t, size_t> find_separator(std::string_view text, size_t limit) const {
    for (size_t at = text.find(kDocumentSeparator); at <= limit;
         at = text.find(kDocumentSeparator, at + 1)) {
      const bool line_start = at == 0 ? line_start_ : text[at - 1] == '\n';
      std::string_view after = text.substr(at + kDocumentSeparator.size());
      size_t length = kDocumentSeparator.size();
      if (after.starts_with('\r')) {
        after.remove_prefix(1);
        ++length;
      }
      if (line_start && (after.empty() || after.front() == '\n')) {
        return {at, length + (after.empty() ? 0 : 1)};
      }
    }
    return {text.npos, 0};
  }

  bool next_text(TextPiece& piece, bool inside) {
    while (true) {
      const size_t limit = limits_.piece_bytes;
      fill(limit + kDocumentSeparator.size() + 3);
      const std::string_view text = rest();
      if (text.empty()) {
        piece.text.clear();
        piece.ends_document = true;
        return inside;
      }
      const auto [separator, length] =
          find_separator(text.substr(0, limit + kDocumentSeparator.size() + 3), limit);
      if (separator != text.npos) {
        piece.text = text.substr(0, separator);
        piece.ends_document = true;
        at_ += separator + length;
        line_start_ = true;
        if (piece.text.empty() && !inside) {
          continue;
        }
        return true;
      }
      const size_t cut = cut_text(text, limit);
      piece.text = text.substr(0, cut);
      piece.ends_document = cut == text.size();  // then the file has ended
      at_ += cut;
      line_start_ = piece.text.back() == '\n';
      return true;
    }
  }

  bool next_json(TextPiece& piece) {
    while (document_at_ == document_.size()) {
      if (!next_document()) {
        return false;
      }
    }
    const std::string_view text = std::string_view(document_).substr(document_at_);
    const size_t cut = cut_text(text, limits_.piece_bytes);
    piece.text = text.substr(0, cut);
    piece.ends_document = cut == text.size();
    document_at_ += cut;
    return true;
  }

  // Takes a line of JSON and its text. False at the file's end.
  bool next_document() {
    size_t end = 0, searched = 0;
    while ((end = rest().find('\n', searched)) == std::string_view::npos && !ended_) {
      searched = rest().size();
      require(searched <= limits_.json_line_bytes, "corpus",
              "'{}' line {} is longer than {} MB, the most for a line of JSON; put long documents "
              "into .txt files, which have no such limit",
              path_, line_, limits_.json_line_bytes >> 20);
      fill(searched + 1);
    }
    if (rest().empty()) {
      return false;
    }
    const std::string_view line = rest().substr(0, end);
    document_ = text_of(line);
    document_at_ = 0;
    at_ += line.size() + (end == std::string_view::npos ? 0 : 1);
    ++line_;
    return true;
  }

  std::string text_of(std::string_view line) const {
    if (line.find_first_not_of(" \t\r") == line.npos) {
      return "";
    }
    nlohmann::json json;
    try {
      json = nlohmann::json::parse(line);
    } catch (const nlohmann::json::exception& error) {
      fail("corpus", "'{}' line {} is not valid JSON: {}; put one object on each line", path_,
           line_, error.what());
    }
    const bool found = json.is_object() && json.contains("text") && json["text"].is_string();
    require(found, "corpus",
            "'{}' line {} has no string \"text\"; each line must be an object as in "
            "{{\"text\": \"...\"}}",
            path_, line_);
    return std::move(json["text"].get_ref<std::string&>());
  }

  std::string path_;
  Kind kind_;
  ReaderLimits limits_;
  std::unique_ptr<ByteSource> bytes_;
  Utf8Check check_;
  std::string buffer_;
  size_t at_ = 0;
  bool ended_ = false;
  bool line_start_ = true;
  uint64_t line_ = 1;  // of JSON
  std::string document_;
  size_t document_at_ = 0;
};

DocumentReader::DocumentReader(std::vector<SourceFile> files, ReaderLimits limits)
    : files_(std::move(files)), limits_(limits) {
  require(limits_.piece_bytes >= 4, "corpus", "piece_bytes={} must be at least 4",
          limits_.piece_bytes);
  for (const SourceFile& file : files_) {
    total_bytes_ += file.bytes;
  }
}

DocumentReader::~DocumentReader() = default;

bool DocumentReader::next_anywhere(TextPiece& piece) {
  while (true) {
    if (file_ == nullptr) {
      if (next_file_ == files_.size()) {
        return false;
      }
      if (files_[next_file_].bytes > 0) {
        file_ = std::make_unique<OpenFile>(files_[next_file_], limits_);
      }
      ++next_file_;
      continue;
    }
    if (file_->next(piece, inside_)) {
      return true;
    }
    finished_bytes_ += file_->consumed();
    file_.reset();
  }
}

bool DocumentReader::next(TextPiece& piece) {
  if (!next_anywhere(piece)) {
    require(documents_ > 0, "corpus",
            "the corpus is empty: there is no document in {} ({} files); give files with text",
            files_.empty() ? "it" : "'" + files_.front().path + "'", files_.size());
    return false;
  }
  piece.starts_document = !inside_;
  inside_ = !piece.ends_document;
  documents_ += piece.ends_document ? 1 : 0;
  text_bytes_ += piece.text.size();
  return true;
}

double DocumentReader::fraction() const {
  const uint64_t done = finished_bytes_ + (file_ == nullptr ? 0 : file_->consumed());
  return total_bytes_ == 0 ? 1.0 : static_cast<double>(done) / static_cast<double>(total_bytes_);
}

}  // namespace fwpkm
