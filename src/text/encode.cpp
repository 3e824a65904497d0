#include "text/encode.h"

#include <exception>
#include <memory>

#include "base/error.h"
#include "base/file.h"
#include "base/json_fields.h"
#include "base/parallel.h"
#include "text/corpus.h"

namespace fwpkm {
namespace {

namespace fs = std::filesystem;

// Text that is encoded at a time, and pieces of it.
constexpr size_t kBatchBytes = 4u << 20, kBatchPieces = 4096;

void make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  require(!error, "encode", "cannot make the folder '{}': {}; choose another with --out",
          folder.string(), error.message());
  require(fs::is_directory(folder), "encode", "'{}' is not a folder; choose another with --out",
          folder.string());
}

void remove_old(const fs::path& folder) {
  fs::remove(folder / kIndexFile);  // first: without it nothing here counts as complete
  fs::remove(folder / kUnfinishedFile);
  for (size_t i = 0; fs::remove(folder / ShardIndex::shard_name(i)); ++i) {
  }
}

// What is done so far, and for which settings: the text may not change between two attempts.
class Journal {
 public:
  Journal(const fs::path& folder, ShardIndex index, const std::vector<SourceFile>& files)
      : folder_(folder), index_(std::move(index)) {
    for (const SourceFile& file : files) {
      modified_.push_back(file.modified_ns);
    }
  }

  ShardIndex& index() { return index_; }

  // True if the folder is complete for these settings already.
  bool load() {
    const fs::path complete = folder_ / kIndexFile, unfinished = folder_ / kUnfinishedFile;
    if (fs::exists(complete)) {
      const ShardIndex old = ShardIndex::from_json(read_json_file(complete), complete.string());
      require(
          same_settings(old), "encode",
          "'{}' holds another corpus, or one encoded with other settings; choose another folder "
          "with --out, or replace it with --restart",
          folder_.string());
      index_ = old;
      require(good_shards(old) == old.shards.size(), "encode",
              "'{}' is damaged; encode it again with --restart", folder_.string());
      return true;
    }
    if (fs::exists(unfinished)) {
      const nlohmann::json json = read_json_file(unfinished);
      const ShardIndex old = ShardIndex::from_json(json, unfinished.string());
      if (old.shards.empty()) {
        return false;
      }
      require(same_settings(old) && json.value("modified_ns", nlohmann::json()) == modified_,
              "encode",
              "'{}' holds the beginning of another encoding, or the text has changed since; choose "
              "another "
              "folder with --out, or begin again with --restart",
              folder_.string());
      const size_t good = good_shards(old);
      for (size_t i = 0; i < good; ++i) {
        add(old.shards[i].summary);
      }
    }
    return false;
  }

  void add(const ShardSummary& summary) {
    index_.shards.push_back({ShardIndex::shard_name(index_.shards.size()), summary});
    index_.tokens += summary.tokens;
    index_.documents += summary.documents;
  }

  void save_unfinished() const {
    nlohmann::json json = index_.to_json();
    json["modified_ns"] = modified_;
    write_text_atomic(folder_ / kUnfinishedFile, json.dump(1) + "\n");
  }

  void finish(uint64_t text_bytes) {
    index_.text_bytes = text_bytes;
    write_text_atomic(folder_ / kIndexFile, index_.to_json().dump(1) + "\n");
    std::error_code ignored;
    fs::remove(folder_ / kUnfinishedFile, ignored);
  }

 private:
  bool same_settings(const ShardIndex& old) const {
    return old.format == index_.format && old.sources == index_.sources &&
           old.shard_bytes == index_.shard_bytes;
  }
  // How many of the first shards are there and whole.
  size_t good_shards(const ShardIndex& old) const {
    size_t good = 0;
    for (const ShardIndex::Shard& shard : old.shards) {
      try {
        const ShardFile file(folder_ / shard.file);
        if (file.summary() != shard.summary || file.format() != index_.format) {
          break;
        }
      } catch (const Error&) {
        break;
      }
      ++good;
    }
    return good;
  }

  fs::path folder_;
  ShardIndex index_;
  std::vector<int64_t> modified_;
};

struct Batch {
  std::vector<TextPiece> pieces;
  std::vector<int64_t> documents;  // which one each piece belongs to, from 0
  std::vector<std::vector<int32_t>> tokens;
};

bool read_batch(DocumentReader& reader, int64_t skip_documents, Batch& batch) {
  batch.pieces.clear();
  batch.documents.clear();
  size_t bytes = 0;
  TextPiece piece;
  while (bytes < kBatchBytes && batch.pieces.size() < kBatchPieces) {
    const int64_t document = reader.documents();
    if (!reader.next(piece)) {
      break;
    }
    if (document >= skip_documents) {
      bytes += piece.text.size();
      batch.pieces.push_back(std::move(piece));
      batch.documents.push_back(document);
    }
  }
  return !batch.pieces.empty();
}

void encode_batch(const Tokenizer& tokenizer, Batch& batch) {
  batch.tokens.resize(batch.pieces.size());
  std::vector<std::exception_ptr> errors(batch.pieces.size());
  parallel_items(static_cast<int64_t>(batch.pieces.size()), [&](int64_t item) {
    const auto i = static_cast<size_t>(item);
    try {
      const TextPiece& piece = batch.pieces[i];
      batch.tokens[i] = tokenizer.encode(piece.text, !piece.starts_document);
    } catch (...) {
      errors[i] = std::current_exception();
    }
  });
  for (size_t i = 0; i < errors.size(); ++i) {
    try {
      if (errors[i] != nullptr) {
        std::rethrow_exception(errors[i]);
      }
    } catch (const Error& error) {
      fail("encode", "document {}{}: {}", batch.documents[i] + 1,
           batch.pieces[i].starts_document ? "" : ", in a piece past its start", error.what());
    }
  }
}

// Cuts the stream of documents into shards.
class ShardedOutput {
 public:
  ShardedOutput(const fs::path& folder, Journal& journal) : folder_(folder), journal_(journal) {}

  void add(const Batch& batch) {
    for (size_t i = 0; i < batch.pieces.size(); ++i) {
      if (shard_ == nullptr) {
        const size_t number = journal_.index().shards.size();
        shard_ = std::make_unique<ShardWriter>(folder_ / ShardIndex::shard_name(number),
                                               journal_.index().format);
      }
      shard_->add(batch.tokens[i]);
      if (batch.pieces[i].ends_document) {
        shard_->end_document();
        if (shard_->token_bytes_written() >= journal_.index().shard_bytes) {
          close();
        }
      }
    }
  }

  void close() {
    if (shard_ != nullptr) {
      journal_.add(shard_->commit());
      shard_.reset();
      journal_.save_unfinished();
    }
  }

 private:
  fs::path folder_;
  Journal& journal_;
  std::unique_ptr<ShardWriter> shard_;
};

}  // namespace

EncodeResult encode_corpus(const EncodeSettings& settings, const Tokenizer& tokenizer,
                           const std::function<void(const EncodeProgress&)>& progress) {
  require(settings.shard_bytes > 0, "encode", "shard_bytes={} must be above 0",
          settings.shard_bytes);
  EncodeResult result;
  const std::vector<SourceFile> files = list_sources(settings.inputs, &result.skipped);
  ShardIndex index;
  index.format = TokenFormat::of(tokenizer);
  index.shard_bytes = settings.shard_bytes;
  for (const SourceFile& file : files) {
    index.sources.push_back({file.path, file.bytes});
  }
  const fs::path folder = settings.out;
  make_folder(folder);
  FileLock lock;
  require(lock.take(folder), "encode",
          "another process is encoding into {}; wait for it or choose another --out",
          folder.string());
  if (settings.restart) {
    remove_old(folder);
  }
  Journal journal(folder, index, files);
  const bool complete = journal.load();
  result.resumed_documents = journal.index().documents;
  if (!complete) {
    const std::string model = tokenizer.model_bytes();
    if (!model.empty()) {
      write_text_atomic(folder / kTokenizerFile, model);
    } else {
      fs::remove(folder / kTokenizerFile);
    }
    journal.save_unfinished();
    DocumentReader reader(files);
    ShardedOutput output(folder, journal);
    Batch batch;
    while (read_batch(reader, result.resumed_documents, batch)) {
      encode_batch(tokenizer, batch);
      output.add(batch);
      for (const TextPiece& piece : batch.pieces) {
        result.encoded_bytes += piece.text.size();
      }
      if (progress) {
        progress({reader.fraction(), result.encoded_bytes});
      }
    }
    output.close();
    journal.finish(reader.text_bytes());
  }
  result.tokens = journal.index().tokens;
  result.documents = journal.index().documents;
  result.shards = static_cast<int64_t>(journal.index().shards.size());
  result.text_bytes = journal.index().text_bytes;
  return result;
}

}  // namespace fwpkm
