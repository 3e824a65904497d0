// Small corpora for tests: text that looks like prose, and files of every kind.
#pragma once

#include <zlib.h>
#include <zstd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/random.h"
#include "text/corpus.h"

namespace fwpkm {

// Lines of made-up words, about `bytes` long, with some characters that are not ASCII.
inline std::string made_up_text(size_t bytes, uint64_t seed) {
  static const std::vector<std::string> syllables = {"ba", "ne",  "lor", "ti", "sum", "é",
                                                     "ka", "ort", "in",  "ö",  "ves", "und",
                                                     "ra", "中",  "pel", "o"};
  Random random(seed);
  std::string text;
  while (text.size() < bytes) {
    const int64_t words = 3 + random.below(12);
    for (int64_t word = 0; word < words; ++word) {
      text += word == 0 ? "" : " ";
      for (int64_t i = 1 + random.below(3); i > 0; --i) {
        text +=
            syllables[static_cast<size_t>(random.below(static_cast<int64_t>(syllables.size())))];
      }
    }
    text += random.below(9) == 0 ? ".\n\n" : ",\n";
  }
  return text;
}

inline std::string gzip(const std::string& text) {
  z_stream stream{};
  require(::deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK, "test",
          "zlib");
  std::string out(::deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  require(::deflate(&stream, Z_FINISH) == Z_STREAM_END, "test", "zlib");
  out.resize(stream.total_out);
  ::deflateEnd(&stream);
  return out;
}

inline std::string zstd(const std::string& text, int window_log = 0) {
  ZSTD_CCtx* context = ::ZSTD_createCCtx();
  ::ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);  // as the zstd program does
  if (window_log > 0) {
    ::ZSTD_CCtx_setParameter(context, ZSTD_c_enableLongDistanceMatching, 1);
    ::ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, window_log);
    ::ZSTD_CCtx_setParameter(context, ZSTD_c_contentSizeFlag, 0);
  }
  // Streamed, so that the frame asks for the whole window.
  std::string out(::ZSTD_compressBound(text.size()) + 1024, '\0');
  ZSTD_inBuffer input{text.data(), text.size(), 0};
  ZSTD_outBuffer output{out.data(), out.size(), 0};
  ::ZSTD_compressStream2(context, &output, &input, ZSTD_e_continue);
  require(::ZSTD_compressStream2(context, &output, &input, ZSTD_e_end) == 0, "test", "zstd");
  ::ZSTD_freeCCtx(context);
  out.resize(output.pos);
  return out;
}

// All documents, whole.
inline std::vector<std::string> all_documents(const std::vector<std::string>& paths,
                                              ReaderLimits limits = {}) {
  DocumentReader reader(list_sources(paths), limits);
  std::vector<std::string> documents;
  TextPiece piece;
  while (reader.next(piece)) {
    if (piece.starts_document) {
      documents.emplace_back();
    }
    documents.back() += piece.text;
  }
  return documents;
}

}  // namespace fwpkm
