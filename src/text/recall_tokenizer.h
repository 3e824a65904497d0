// Words for the tokens of the recall corpus (text/recall.h), so that a model trained on it can be
// told facts and asked for them:
//   fact ba ke heron.    fact mo li lantern.    ask ba ke?
// Keys are syllables, values English words; both lists go on as far as the settings ask. Text is
// words separated by white space and any of . , ? ; decoding puts one space between words. End of
// text has no word. Anything else is an error that tells where it stands.
#pragma once

#include <memory>
#include <string>

#include "text/recall.h"
#include "text/tokenizer.h"

namespace fwpkm {

// Of the settings only `keys` and `values` count.
std::shared_ptr<const Tokenizer> recall_tokenizer(const RecallSettings& settings = {});

// "recall", or "recall:keys=32,values=16" where either may be left out.
bool is_recall_spec(std::string_view spec);
std::shared_ptr<const Tokenizer> recall_tokenizer_of(std::string_view spec);

}  // namespace fwpkm
