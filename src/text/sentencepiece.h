// SentencePiece models as tokenizers.
#pragma once

#include <memory>
#include <string>

#include "text/tokenizer.h"

namespace fwpkm {

std::shared_ptr<const Tokenizer> load_sentencepiece(const std::string& path);

}  // namespace fwpkm
