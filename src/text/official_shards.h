// Tokens that the authors' code encoded.
//   NAME.bin   the tokens of all documents, one after the other, little-endian: 2 bytes each if the
//              vocabulary has at most 65536, else 4
//   NAME.idx   text, a line for each document: its tokens, and where it starts in the other file in
//   bytes
// The files name no tokenizer. The width of a token follows from the two files' sizes.
#pragma once

#include <filesystem>
#include <memory>

#include "text/shards.h"

namespace fwpkm {

// `path` is NAME, NAME.bin or NAME.idx. `vocab_size` is 0 where it is not known; tokens outside it
// are errors when they are read.
std::shared_ptr<const TokenStore> open_official(const std::filesystem::path& path,
                                                int64_t vocab_size);

}  // namespace fwpkm
