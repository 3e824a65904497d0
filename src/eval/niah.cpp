#include "eval/niah.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "base/error.h"
#include "eval/folder.h"
#include "text/haystack.h"

namespace fwpkm {
namespace {

using nlohmann::json;

constexpr const char* kTag = "needles";
// Contexts that are read at a time have about so many tokens together.
constexpr int64_t kBatchTokens = 32'768, kMostAtATime = 8;
// More tokens than the value has bytes, for a model that begins with white space.
constexpr size_t kSpareTokens = 4;

// What a first pass over the file finds.
struct Plan {
  std::map<int64_t, int64_t> samples, longest;  // by length: how many, and tokens of the longest
  std::set<int64_t> chosen;                     // numbers of lines, from 0
  int64_t tokens = 0;
  uint64_t hash = 0;
  double guess_exact = 0, guess_candidate = 0;

  int64_t longest_of_all() const {
    int64_t most = 0;
    for (const auto& [length, tokens] : longest) {
      most = std::max(most, tokens);
    }
    return most;
  }
};

Plan make_plan(const NiahOptions& options, const Tokenizer& tokenizer) {
  const auto& readings = options.readings;
  require(!readings.empty() && *std::min_element(readings.begin(), readings.end()) > 0, kTag,
          "numbers of readings must be given, and be at least 1");
  require(!options.carry || options.batch <= 1, kTag,
          "batch={} cannot be with memories that are carried from sample to sample", options.batch);
  Plan plan;
  HaystackReader reader(options.data);
  Haystack h;
  for (int64_t number = 0; reader.next(&h); ++number) {
    if (options.samples > 0 && plan.samples[h.length] == options.samples) {
      continue;
    }
    const auto tokens = static_cast<int64_t>(tokenizer.encode(h.context).size());
    ++plan.samples[h.length];
    plan.longest[h.length] = std::max(plan.longest[h.length], tokens);
    plan.chosen.insert(number);
    plan.tokens += tokens;
    plan.guess_exact += std::pow(10.0, -static_cast<double>(h.answer.size()));
    plan.guess_candidate += 1 / static_cast<double>(h.needles.size());
  }
  require(!plan.chosen.empty(), kTag, "'{}' holds no haystack; `fwpkm data niah` makes some",
          options.data.string());
  plan.guess_exact /= static_cast<double>(plan.chosen.size());
  plan.guess_candidate /= static_cast<double>(plan.chosen.size());
  plan.hash = reader.hash();
  return plan;
}

struct Sample {
  int64_t number = 0;
  Haystack haystack;
  Prompt prompt;
  json answers = json::array();
};

std::vector<Session> fork_all(std::span<const Session> sessions) {
  std::vector<Session> forks;
  for (const Session& session : sessions) {
    forks.push_back(session.fork());
  }
  return forks;
}

// What the sessions say next, each as long as its sample's answer. White space in front is left
// out.
std::vector<std::string> say_greedily(std::vector<Session> sessions,
                                      std::span<const Sample> samples,
                                      const std::shared_ptr<const Tokenizer>& tokenizer) {
  struct Talk {
    StreamDecoder decoder;
    std::string said;
    bool ended = false;
  };
  std::vector<Talk> talks(sessions.size(), Talk{StreamDecoder(tokenizer), {}, false});
  size_t longest = 0;
  for (const Sample& sample : samples) {
    longest = std::max(longest, sample.haystack.answer.size());
  }
  for (size_t step = 0; step < longest + kSpareTokens; ++step) {
    std::vector<Session*> live;
    std::vector<std::vector<int32_t>> tokens;
    for (size_t i = 0; i < sessions.size(); ++i) {
      Talk& talk = talks[i];
      if (talk.ended || talk.said.size() >= samples[i].haystack.answer.size()) {
        continue;
      }
      const int32_t token = sample_token(sessions[i].logits(), {.temperature = 0}, 0);
      talk.ended = token == tokenizer->end_of_text();
      if (!talk.ended) {
        talk.said += talk.decoder.push(token);
        talk.said.erase(0, std::min(talk.said.find_first_not_of(" \t\n\v\f\r"), talk.said.size()));
        live.push_back(&sessions[i]);
        tokens.push_back({token});
      }
    }
    const std::vector<std::span<const int32_t>> spans(tokens.begin(), tokens.end());
    Session::feed_together(live, spans, false);
  }
  std::vector<std::string> said;
  for (Talk& talk : talks) {
    said.push_back(talk.said + talk.decoder.finish());
  }
  return said;
}

// For each sample, how unlikely the value of each of its needles is as an answer.
std::vector<std::vector<double>> candidate_losses(std::span<const Session> sessions,
                                                  std::span<const Sample> samples) {
  std::vector<std::vector<double>> losses(samples.size());
  size_t most = 0;
  for (const Sample& sample : samples) {
    most = std::max(most, sample.prompt.answers.size());
  }
  // One candidate of each sample at a time: a fork may have a large attention cache of its own.
  for (size_t c = 0; c < most; ++c) {
    std::vector<Session> forks = fork_all(sessions);
    std::vector<std::vector<int32_t>> texts;
    for (const Sample& sample : samples) {
      const auto& answers = sample.prompt.answers;
      texts.push_back(c < answers.size() ? answers[c] : std::vector<int32_t>());
    }
    const auto each = losses_of(forks, texts);
    for (size_t i = 0; i < samples.size(); ++i) {
      if (c < samples[i].prompt.answers.size()) {
        double sum = 0;
        for (const double loss : each[i]) {
          sum += loss;
        }
        losses[i].push_back(sum);
      }
    }
  }
  return losses;
}

// Asks forks of the sessions; what they answer goes to the samples.
void ask(std::span<const Session> sessions, std::span<Sample> samples, int64_t readings,
         const std::shared_ptr<const Tokenizer>& tokenizer) {
  std::vector<Session> asked = fork_all(sessions);
  std::vector<std::vector<int32_t>> questions;
  for (const Sample& sample : samples) {
    questions.push_back(sample.prompt.read);
  }
  read_together(asked, questions, false);
  const auto losses = candidate_losses(asked, samples);
  const auto said = say_greedily(std::move(asked), samples, tokenizer);
  for (size_t i = 0; i < samples.size(); ++i) {
    const Haystack& h = samples[i].haystack;
    const auto own = static_cast<size_t>(&h.asked() - h.needles.data());
    const NiahScore score = judge_answer(said[i], h.answer, losses[i], own);
    samples[i].answers.push_back({{"readings", readings},
                                  {"said", said[i]},
                                  {"exact", score.exact},
                                  {"digit", score.digit},
                                  {"candidate", score.candidate},
                                  {"losses", losses[i]}});
  }
}

class Evaluation {
 public:
  Evaluation(const ModelWithChunk& open, std::shared_ptr<const Tokenizer> tokenizer,
             const json& about, const NiahOptions& options,
             const std::function<void(double, const std::string&)>& progress)
      : open_(open),
        tokenizer_(std::move(tokenizer)),
        options_(options),
        progress_(progress),
        plan_(make_plan(options, *tokenizer_)),
        folder_(options.out, about_all(about), options.start_over),
        learns_(!options.freeze && learns_by_reading(open_(0)->config())) {
    readings_.insert(options.readings.begin(), options.readings.end());
  }

  json run() {
    if (options_.carry) {
      go_on_carrying();
    }
    std::set<int64_t> done;
    for (const json& line : folder_.done()) {
      done.insert(line.at("sample").get<int64_t>());
      read_ += line.at("tokens").get<int64_t>() * passes();
    }
    HaystackReader reader(options_.data);
    std::vector<Sample> batch;
    Sample sample;
    for (; reader.next(&sample.haystack); ++sample.number) {
      if (!plan_.chosen.contains(sample.number) || done.contains(sample.number)) {
        continue;
      }
      if (!batch.empty() && (batch[0].haystack.length != sample.haystack.length ||
                             std::ssize(batch) == batch_size(batch[0].haystack.length))) {
        evaluate(&batch);
      }
      batch.push_back(sample);
    }
    if (!batch.empty()) {
      evaluate(&batch);
    }
    return folder_.finish(result());
  }

 private:
  json about_all(const json& about) const {
    return {{"kind", "niah"},
            {"models", {about}},
            {"data",
             {{"file", options_.data.filename().string()},
              {"hash", fmt::format("{:016x}", plan_.hash)}}},
            {"settings",
             {{"readings", options_.readings},
              {"freeze", options_.freeze},
              {"carry", options_.carry},
              {"chunk", options_.chunk > 0 ? json(options_.chunk) : json("haystack")},
              {"samples", options_.samples > 0 ? json(options_.samples) : json("all")}}}};
  }

  // Where nothing can be learned, all readings are the same.
  int64_t passes() const { return learns_ ? *readings_.rbegin() : 1; }

  int64_t batch_size(int64_t length) const {
    if (options_.carry || options_.batch > 0) {
      return std::max<int64_t>(1, options_.batch);
    }
    return std::clamp<int64_t>(kBatchTokens / plan_.longest.at(length), 1, kMostAtATime);
  }

  // The model for contexts of a length.
  const std::shared_ptr<const Model>& model_for(int64_t length) {
    const int64_t longest = options_.carry ? plan_.longest_of_all() : plan_.longest.at(length);
    const int64_t chunk = !learns_ ? 0 : options_.chunk > 0 ? options_.chunk : longest + 1;
    if (model_ == nullptr || chunk != chunk_) {
      model_ = nullptr;  // the old one goes before a new one comes
      model_ = open_(chunk);
      chunk_ = chunk;
    }
    return model_;
  }

  std::filesystem::path carried_file() const { return options_.out / "carried.session"; }

  // The session of a carried evaluation that was stopped, at the last sample it was saved after.
  void go_on_carrying() {
    if (!folder_.keeps()) {
      return;
    }
    size_t known = 0;
    if (!folder_.done().empty() && std::filesystem::exists(carried_file())) {
      known = std::stoul(Session::load_about(carried_file()).at("samples"));
    }
    if (known == 0 || known > folder_.done().size()) {
      folder_.keep_lines(0);
      std::filesystem::remove(carried_file());
      return;
    }
    folder_.keep_lines(known);
    carried_.push_back(Session::load(model_for(0), carried_file()));
  }

  void evaluate(std::vector<Sample>* batch) {
    const int64_t length = (*batch)[0].haystack.length;
    const auto& model = model_for(length);
    std::vector<Session> fresh;
    std::vector<Session>& sessions = options_.carry ? carried_ : fresh;
    std::vector<std::vector<int32_t>> contexts;
    for (Sample& sample : *batch) {
      contexts.push_back(tokenizer_->encode(sample.haystack.context));
      std::vector<std::string> values;
      for (const Needle& needle : sample.haystack.needles) {
        values.push_back(needle.value);
      }
      sample.prompt = encode_prompt(*tokenizer_, sample.haystack.question, values);
      if (!options_.carry || sessions.empty()) {
        sessions.emplace_back(model, SessionSettings{.history = false});
      }
    }
    for (int64_t reading = 1; reading <= passes(); ++reading) {
      for (Session& session : sessions) {
        session.reset_tokens();
      }
      read_together(sessions, contexts, !options_.freeze,
                    [&](int64_t tokens) { report(tokens, length, reading); });
      for (Session& session : sessions) {
        if (!options_.freeze) {
          session.flush();
        }
      }
      if (readings_.contains(reading)) {
        ask(sessions, *batch, reading, tokenizer_);
      }
    }
    if (!learns_) {
      ask_once_for_all(sessions, batch);
    }
    for (size_t i = 0; i < batch->size(); ++i) {
      const Sample& sample = (*batch)[i];
      folder_.add({{"sample", sample.number},
                   {"length", length},
                   {"tokens", std::ssize(contexts[i])},
                   {"depth", sample.haystack.asked().depth},
                   {"answers", sample.answers}});
    }
    if (options_.carry && folder_.keeps()) {
      carried_[0].save(carried_file(), {{"samples", std::to_string(folder_.done().size())}});
    }
    batch->clear();
    free_scratch(*model);
  }

  void ask_once_for_all(std::span<const Session> sessions, std::vector<Sample>* batch) {
    if (!readings_.contains(1)) {
      ask(sessions, *batch, 1, tokenizer_);
    }
    for (Sample& sample : *batch) {
      json first = sample.answers.at(0);
      sample.answers = json::array();
      for (const int64_t readings : readings_) {
        first["readings"] = readings;
        sample.answers.push_back(first);
      }
    }
  }

  void report(int64_t tokens, int64_t length, int64_t reading) {
    read_ += tokens;
    if (progress_) {
      progress_(static_cast<double>(read_) / static_cast<double>(plan_.tokens * passes()),
                fmt::format("length {}, reading {}, {} of {} samples done", length, reading,
                            folder_.done().size(), plan_.chosen.size()));
    }
  }

  json result() const {
    struct Sum {
      int64_t samples = 0;
      double exact = 0, digit = 0, candidate = 0;
    };
    std::map<std::tuple<int64_t, int64_t, int>, Sum> sums;  // by length, readings, bin or -1
    for (const json& line : folder_.done()) {
      const int bin =
          std::min(kDepthBins - 1, static_cast<int>(line.at("depth").get<double>() * kDepthBins));
      for (const json& answer : line.at("answers")) {
        for (const int b : {-1, bin}) {
          Sum& sum =
              sums[{line.at("length").get<int64_t>(), answer.at("readings").get<int64_t>(), b}];
          ++sum.samples;
          sum.exact += answer.at("exact").get<bool>() ? 1 : 0;
          sum.digit += answer.at("digit").get<double>();
          sum.candidate += answer.at("candidate").get<bool>() ? 1 : 0;
        }
      }
    }
    json groups = json::array();
    for (const auto& [key, sum] : sums) {
      const auto& [length, readings, bin] = key;
      const auto count = static_cast<double>(sum.samples);
      groups.push_back({{"length", length},
                        {"readings", readings},
                        {"depth_bin", bin < 0 ? json(nullptr) : json(bin)},
                        {"samples", sum.samples},
                        {"exact", sum.exact / count},
                        {"digit", sum.digit / count},
                        {"candidate", sum.candidate / count}});
    }
    return {{"groups", groups},
            {"guess",
             {{"exact", plan_.guess_exact}, {"digit", 0.1}, {"candidate", plan_.guess_candidate}}}};
  }

  const ModelWithChunk& open_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  const NiahOptions& options_;
  const std::function<void(double, const std::string&)>& progress_;
  Plan plan_;
  EvalFolder folder_;
  bool learns_;
  std::set<int64_t> readings_;
  std::shared_ptr<const Model> model_;
  int64_t chunk_ = 0;
  std::vector<Session> carried_;  // one, once it has begun
  int64_t read_ = 0;
};

}  // namespace

NiahScore judge_answer(std::string_view said, std::string_view answer,
                       std::span<const double> losses, size_t own) {
  NiahScore score;
  for (size_t i = 0; i < answer.size(); ++i) {
    score.digit += i < said.size() && said[i] == answer[i] ? 1 : 0;
  }
  score.digit /= static_cast<double>(answer.size());
  score.exact = said.starts_with(answer);
  score.candidate = true;
  for (size_t c = 0; c < losses.size(); ++c) {
    score.candidate = score.candidate && (c == own || losses[own] < losses[c]);
  }
  return score;
}

json evaluate_niah(const ModelWithChunk& open, const std::shared_ptr<const Tokenizer>& tokenizer,
                   const json& about, const NiahOptions& options,
                   const std::function<void(double done, const std::string& note)>& progress) {
  return Evaluation(open, tokenizer, about, options, progress).run();
}

}  // namespace fwpkm
