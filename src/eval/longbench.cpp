#include "eval/longbench.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>

#include "base/error.h"
#include "base/hash.h"
#include "eval/folder.h"
#include "text/qa.h"

namespace fwpkm {
namespace {

using nlohmann::json;

constexpr const char* kTag = "longbench";
constexpr std::string_view kPlace = "{question}";

struct Document {
  int64_t number = 0;  // over all files
  QaDocument text;
  std::vector<int32_t> tokens;  // of the context, perhaps without its middle
  int64_t cut = 0;
};

// Documents of all files, in order.
class Documents {
 public:
  Documents(const LongbenchOptions& options, const Tokenizer& tokenizer)
      : options_(options), tokenizer_(tokenizer) {}

  bool next(Document* document) {
    while (true) {
      if (reader_ == nullptr) {
        if (file_ == options_.data.size()) {
          return false;
        }
        reader_ = std::make_unique<QaReader>(options_.data[file_++]);
        of_file_ = 0;
      }
      QaDocument text;
      if (!reader_->next(&text)) {
        const uint64_t hash = reader_->hash();
        hash_ = hash_bytes(&hash, sizeof(hash), hash_);
        reader_.reset();
      } else if (options_.samples == 0 || of_file_ < options_.samples) {
        ++of_file_;
        document->number = number_++;
        document->text = std::move(text);
        encode(document);
        return true;
      }
    }
  }
  uint64_t hash() const { return hash_; }  // of what was read to its end

 private:
  void encode(Document* d) const {
    d->tokens = tokenizer_.encode(d->text.context);
    require(!d->tokens.empty(), kTag, "document {} of task {} has no tokens", d->number + 1,
            d->text.task);
    const int64_t count = std::ssize(d->tokens), keep = options_.max_tokens;
    d->cut = keep > 0 && count > keep ? count - keep : 0;
    const auto front = d->tokens.begin() + (keep + 1) / 2;
    if (d->cut > 0) {
      d->tokens.erase(front, front + d->cut);
    }
  }

  const LongbenchOptions& options_;
  const Tokenizer& tokenizer_;
  std::unique_ptr<QaReader> reader_;
  size_t file_ = 0;
  int64_t of_file_ = 0, number_ = 0;
  uint64_t hash_ = 0;
};

class Evaluation {
 public:
  Evaluation(const ModelWithChunk& open, const Tokenizer& tokenizer, const json& about,
             const LongbenchOptions& options,
             const std::function<void(double, const std::string&)>& progress)
      : open_(open),
        tokenizer_(tokenizer),
        options_(options),
        progress_(progress),
        place_(options.prompt.find(kPlace)) {
    require(
        place_ != std::string::npos && options.prompt.find(kPlace, place_ + 1) == std::string::npos,
        kTag, "the template must hold {} once, but it is '{}'", kPlace, options.prompt);
    require(options.batch > 0, kTag, "batch={} must be at least 1", options.batch);
    Documents documents(options, tokenizer);
    for (Document d; documents.next(&d); ++count_) {
      total_ += std::ssize(d.tokens);
      longest_ = std::max(longest_, std::ssize(d.tokens));
    }
    folder_.emplace(options.out, about_all(about, documents.hash()), options.start_over);
  }

  json run() {
    const bool learns = !options_.freeze && learns_by_reading(open_(0)->config());
    model_ = open_(!learns ? 0 : options_.chunk > 0 ? options_.chunk : longest_ + 1);
    const int64_t known = std::ssize(folder_->done());
    for (const json& line : folder_->done()) {
      read_ += line.at("tokens").get<int64_t>();
    }
    Documents documents(options_, tokenizer_);
    std::vector<Document> batch;
    for (Document d; documents.next(&d);) {
      if (d.number < known) {
        continue;
      }
      batch.push_back(std::move(d));
      if (std::ssize(batch) == options_.batch) {
        evaluate(&batch);
      }
    }
    if (!batch.empty()) {
      evaluate(&batch);
    }
    return folder_->finish(result());
  }

 private:
  json about_all(const json& about, uint64_t hash) const {
    json files = json::array();
    for (const auto& path : options_.data) {
      files.push_back(path.filename().string());
    }
    const auto or_text = [](int64_t number, const char* text) {
      return number > 0 ? json(number) : json(text);
    };
    return {{"kind", "longbench"},
            {"models", {about}},
            {"data", {{"files", files}, {"hash", fmt::format("{:016x}", hash)}}},
            {"settings",
             {{"template", options_.prompt},
              {"freeze", options_.freeze},
              {"chunk", or_text(options_.chunk, "context")},
              {"max_tokens", or_text(options_.max_tokens, "all")},
              {"samples", or_text(options_.samples, "all")}}}};
  }

  std::string prompt_of(const std::string& question) const {
    std::string text = options_.prompt;
    return text.replace(place_, kPlace.size(), question);
  }

  void evaluate(std::vector<Document>* batch) {
    std::vector<Session> sessions;
    std::vector<std::vector<int32_t>> contexts;
    for (Document& d : *batch) {
      sessions.emplace_back(model_, SessionSettings{.history = false});
      contexts.push_back(std::move(d.tokens));
    }
    read_together(sessions, contexts, !options_.freeze, [&](int64_t tokens) {
      read_ += tokens;
      if (progress_) {
        progress_(static_cast<double>(read_) / static_cast<double>(total_),
                  fmt::format("{} of {} documents done", folder_->done().size(), count_));
      }
    });
    for (size_t i = 0; i < batch->size(); ++i) {
      if (!options_.freeze) {
        sessions[i].flush();
      }
      const Document& d = (*batch)[i];
      json line = {{"task", d.text.task},
                   {"tokens", std::ssize(contexts[i])},
                   {"cut", d.cut},
                   {"questions", ask(sessions[i], d.text)}};
      folder_->add(std::move(line));
    }
    batch->clear();
    free_scratch(*model_);
  }

  // The questions on a document, a few at a time: a fork may have a large attention cache of its
  // own.
  json ask(const Session& session, const QaDocument& document) const {
    json answers = json::array();
    const auto count = document.questions.size(), step = static_cast<size_t>(options_.batch);
    for (size_t begin = 0; begin < count; begin += step) {
      std::vector<Session> forks;
      std::vector<std::vector<int32_t>> questions, texts;
      for (size_t i = begin; i < std::min(count, begin + step); ++i) {
        const auto& q = document.questions[i];
        Prompt prompt = encode_prompt(tokenizer_, prompt_of(q.question), {&q.answer, 1});
        forks.push_back(session.fork());
        questions.push_back(std::move(prompt.read));
        texts.push_back(std::move(prompt.answers[0]));
      }
      read_together(forks, questions, false);
      for (const std::vector<double>& losses : losses_of(forks, texts)) {
        double sum = 0;
        for (const double loss : losses) {
          sum += loss;
        }
        answers.push_back({{"tokens", std::ssize(losses)}, {"nll", sum}});
      }
    }
    return answers;
  }

  json result() const {
    struct Sum {
      int64_t documents = 0, questions = 0, answer_tokens = 0, context_tokens = 0, cut_tokens = 0;
      double nll = 0;

      json numbers() const {
        const double mean = nll / static_cast<double>(answer_tokens);
        return {{"documents", documents},         {"questions", questions},
                {"answer_tokens", answer_tokens}, {"nll", mean},
                {"perplexity", std::exp(mean)},   {"context_tokens", context_tokens},
                {"cut_tokens", cut_tokens}};
      }
    };
    std::map<std::string, Sum> tasks;
    Sum all;
    for (const json& line : folder_->done()) {
      for (Sum* sum : {&tasks[line.at("task").get<std::string>()], &all}) {
        ++sum->documents;
        sum->context_tokens += line.at("tokens").get<int64_t>();
        sum->cut_tokens += line.at("cut").get<int64_t>();
        for (const json& question : line.at("questions")) {
          ++sum->questions;
          sum->answer_tokens += question.at("tokens").get<int64_t>();
          sum->nll += question.at("nll").get<double>();
        }
      }
    }
    json list = json::array();
    for (const auto& [name, sum] : tasks) {
      list.push_back(sum.numbers());
      list.back()["task"] = name;
    }
    return {{"tasks", list}, {"all", all.numbers()}};
  }

  const ModelWithChunk& open_;
  const Tokenizer& tokenizer_;
  const LongbenchOptions& options_;
  const std::function<void(double, const std::string&)>& progress_;
  size_t place_;  // of the question in the template
  int64_t count_ = 0, total_ = 0, longest_ = 0, read_ = 0;
  std::optional<EvalFolder> folder_;
  std::shared_ptr<const Model> model_;
};

}  // namespace

json evaluate_longbench(const ModelWithChunk& open, const Tokenizer& tokenizer, const json& about,
                        const LongbenchOptions& options,
                        const std::function<void(double done, const std::string& note)>& progress) {
  return Evaluation(open, tokenizer, about, options, progress).run();
}

}  // namespace fwpkm
