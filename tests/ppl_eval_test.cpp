#include "eval/ppl.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "base/error.h"
#include "eval/continual.h"
#include "session_models.h"
#include "temp_dir.h"

namespace fwpkm {
namespace {

using nlohmann::json;

json bytes_model(json changes = json::object()) {
  changes["vocab_size"] = 257;
  json model = memory_model(changes);
  model["fwpkm"]["chunk"] = 8;
  return model;
}

// What a model expects next, by hand: the loss of `token` after what the session has read.
double loss_of(const Session& session, int32_t token) {
  const std::vector<double> logits = session.logits();
  const double most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const double x : logits) {
    sum += std::exp(x - most);
  }
  return std::log(sum) + most - logits[static_cast<size_t>(token)];
}

class PplEval : public testing::Test {
 protected:
  PplEval() {
    write_text_atomic(path("a.txt"),
                      "The blue door opens.\n<|endoftext|>\nNobody knows who painted the red "
                      "bridge last winter, or why.\n<|endoftext|>\nx\n");
    for (const std::string document :
         {"The blue door opens.\n",
          "Nobody knows who painted the red bridge last winter, or why.\n", "x\n"}) {
      documents_.push_back(bytes_->encode(document));
      documents_.back().push_back(bytes_->end_of_text());
    }
  }
  std::string path(const std::string& name) const { return (dir_ / name).string(); }
  json evaluate(const std::vector<std::shared_ptr<const Model>>& models, const PplOptions& options,
                const std::string& out = "",
                const std::function<void(double, int64_t)>& progress = {}) const {
    DocumentTokens data({path("a.txt")}, bytes_);
    EvalFolder folder(out, {{"kind", "ppl"}});
    return evaluate_ppl(models, &data, options, &folder, progress);
  }
  int64_t tokens() const {
    int64_t count = 0;
    for (const auto& document : documents_) {
      count += std::ssize(document);
    }
    return count;
  }

  TempDir dir_;
  std::shared_ptr<const Tokenizer> bytes_ = load_tokenizer("bytes");
  std::vector<std::vector<int32_t>> documents_;
  std::shared_ptr<const Model> model_ = session_model(bytes_model(), Device::reference());
  std::shared_ptr<const Model> other_ =
      session_model(bytes_model({{"layout", "gdn+swa"}}), Device::reference(), 41);
};

PplOptions options_of(ResetAt memory, ResetAt mixers, bool freeze = false) {
  PplOptions options;
  options.reader = {.memory = memory, .mixers = mixers, .segment = 10, .freeze = freeze};
  options.window = 32;
  options.every = 16;
  return options;
}

TEST_F(PplEval, NumbersAreThoseOfASlowReader) {
  for (const ResetAt memory : {ResetAt::kNever, ResetAt::kDocument, ResetAt::kSegment}) {
    for (const ResetAt mixers : {ResetAt::kNever, ResetAt::kDocument, ResetAt::kSegment}) {
      for (const bool freeze : {false, true}) {
        SCOPED_TRACE(fmt::format("{} {} {}", reset_name(memory), reset_name(mixers), freeze));
        const json got = evaluate({model_}, options_of(memory, mixers, freeze));
        ASSERT_EQ(got.at("tokens"), tokens());
        Session slow(model_);
        int32_t last = bytes_->end_of_text();
        slow.feed({&last, 1}, false);
        int64_t read = 0;
        double sum = 0;
        std::vector<std::array<double, 3>> points;  // document, position, perplexity
        for (size_t d = 0; d < documents_.size(); ++d) {
          double own = 0;
          for (size_t t = 0; t < documents_[d].size(); ++t) {
            const auto due = [&](ResetAt at) {
              return read > 0 && ((at == ResetAt::kDocument && t == 0) ||
                                  (at == ResetAt::kSegment && read % 10 == 0));
            };
            if (due(memory)) {
              slow.reset_memory();
            }
            if (due(mixers)) {
              slow.reset_tokens();
              slow.feed({&last, 1}, false);
            }
            last = documents_[d][t];
            own += loss_of(slow, last);
            slow.feed({&last, 1}, !freeze);
            ++read;
            if ((t + 1) % 16 == 0) {
              points.push_back({static_cast<double>(d), static_cast<double>(t + 1),
                                std::exp(own / static_cast<double>(t + 1))});
            }
          }
          sum += own;
          const json& document = got.at("documents").at(d);
          const auto length = static_cast<double>(documents_[d].size());
          EXPECT_EQ(document.at("tokens"), documents_[d].size());
          EXPECT_NEAR(document.at("loss").at(0).get<double>(), own / length, 1e-9);
          EXPECT_NEAR(document.at("ppl").at(0).get<double>(), std::exp(own / length), 1e-6);
        }
        const json& model = got.at("models").at(0);
        EXPECT_NEAR(model.at("loss").get<double>(), sum / static_cast<double>(read), 1e-9);
        EXPECT_NEAR(model.at("ppl").get<double>(), std::exp(sum / static_cast<double>(read)), 1e-6);
        ASSERT_EQ(got.at("curves").size(), points.size());
        for (size_t i = 0; i < points.size(); ++i) {
          for (size_t j = 0; j < 3; ++j) {
            EXPECT_NEAR(got.at("curves").at(i).at(j).get<double>(), points[i][j], 1e-6);
          }
        }
      }
    }
  }
}

// Reads and gates of each window, counted in arrays over all slots, token by token.
TEST_F(PplEval, StatisticsAreThoseOfThePattern) {
  const json got = evaluate({model_}, options_of(ResetAt::kNever, ResetAt::kNever));
  const ModelConfig& config = model_->config();
  const int64_t slots = config.fwpkm.slots();
  std::map<int, std::vector<double>> uses;   // of this window
  std::map<int, std::vector<double>> gates;  // of all tokens
  Session slow(model_);
  const int32_t end = bytes_->end_of_text();
  slow.feed({&end, 1}, false);
  const Watch watch = {.losses = {}, .memory = [&](const MemoryRecord& record, auto) {
                         if (record.gates) {
                           gates[record.layer].push_back(to_host(record.gates.view())[0]);
                         }
                         if (record.fwpkm.slots && !record.update) {
                           auto& list = uses[record.layer];
                           list.resize(static_cast<size_t>(slots));
                           const View& view = record.fwpkm.slots.view();
                           for (int64_t i = 0; i < view.size(); ++i) {
                             list[static_cast<size_t>(view.ptr<int32_t>()[i])] += 1;
                           }
                         }
                       }};
  int64_t read = 0;
  size_t window = 0;
  for (const auto& document : documents_) {
    for (const int32_t token : document) {
      slow.feed({&token, 1}, true, watch);
      if (++read % 32 != 0 && read != tokens()) {
        continue;
      }
      const json& row = got.at("models").at(0).at("windows").at(window++);
      EXPECT_EQ(row.at("end"), read);
      for (const int layer : config.fwpkm.layers) {
        double reads = 0, used = 0, shared = 0, kld = 0;
        for (const double n : uses[layer]) {
          reads += n;
          used += n > 0 ? 1 : 0;
          shared += n > 1 ? n : 0;
        }
        for (const double n : uses[layer]) {
          kld += n > 0 ? n / reads * std::log(n / reads * static_cast<double>(slots)) : 0;
        }
        const json& memory = row.at("memory").at(std::to_string(layer));
        EXPECT_NEAR(memory.at("collision").get<double>(), shared / reads, 1e-12);
        EXPECT_NEAR(memory.at("coverage").get<double>(), used / static_cast<double>(slots), 1e-12);
        EXPECT_NEAR(memory.at("kld").get<double>(), kld, 1e-9);
      }
      uses.clear();
    }
  }
  EXPECT_EQ(got.at("models").at(0).at("windows").size(), window);
  for (const auto& [layer, list] : gates) {
    ASSERT_EQ(std::ssize(list), tokens());
    std::array<double, 10> bins{};
    double sum = 0;
    for (const double g : list) {
      sum += g;
      bins[std::min<size_t>(9, static_cast<size_t>(g * 10))] += 1.0 / static_cast<double>(tokens());
    }
    const json& gate = got.at("models").at(0).at("gates").at(std::to_string(layer));
    EXPECT_NEAR(gate.at("gate").get<double>(), sum / static_cast<double>(tokens()), 1e-12);
    for (size_t i = 0; i < bins.size(); ++i) {
      EXPECT_NEAR(gate.at("bins").at(i).get<double>(), bins[i], 1e-12) << i;
    }
  }
}

TEST_F(PplEval, TwoModelsReadAsEachAlone) {
  const PplOptions options = options_of(ResetAt::kNever, ResetAt::kNever);
  const json both = evaluate({model_, other_}, options);
  for (size_t m = 0; m < 2; ++m) {
    const json one = evaluate({m == 0 ? model_ : other_}, options);
    EXPECT_EQ(both.at("models").at(m), one.at("models").at(0));
    EXPECT_EQ(both.at("documents").at(1).at("loss").at(m),
              one.at("documents").at(1).at("loss").at(0));
    EXPECT_EQ(both.at("curves").at(1).at(2 + m), one.at("curves").at(1).at(2));
  }
}

// Stopped at any place, it goes on to the same result.
TEST_F(PplEval, GoesOnWhereItStopped) {
  struct Stop {};
  for (const ResetAt reset : {ResetAt::kNever, ResetAt::kDocument, ResetAt::kSegment}) {
    const PplOptions options = options_of(reset, reset);
    const json whole = evaluate({model_, other_}, options);
    for (const int64_t stop : {1, 33, 64, 80}) {
      const std::string out = path(fmt::format("{}-{}", reset_name(reset), stop));
      EXPECT_THROW(evaluate({model_, other_}, options, out,
                            [&](double, int64_t tokens) {
                              if (tokens >= stop) {
                                throw Stop();
                              }
                            }),
                   Stop);
      EXPECT_EQ(evaluate({model_, other_}, options, out), whole) << stop;
      EXPECT_EQ(evaluate({model_, other_}, options, out), whole) << "done already";
    }
  }
}

TEST_F(PplEval, ReadsNoMoreThanAsked) {
  PplOptions options = options_of(ResetAt::kNever, ResetAt::kNever);
  options.tokens = 40;
  const json some = evaluate({model_}, options);
  EXPECT_EQ(some.at("tokens"), 40);
  EXPECT_EQ(some.at("documents").size(), 2u);
  DocumentTokens endless({"builtin"}, bytes_);
  EvalFolder none("", {{"kind", "ppl"}});
  options.tokens = 0;
  EXPECT_THROW(evaluate_ppl(std::vector{model_}, &endless, options, &none), Error);
}

// A token never changes what was expected before it, whatever the layers and the mode.
TEST_F(PplEval, NoTokenChangesTheLossesBeforeIt) {
  std::vector<TinyModel> models = tiny_models();
  for (const TinyModel& model : memory_models()) {
    models.push_back(model);
  }
  const auto tokens = tiny_tokens(30, 23, 5);
  const auto losses = [&](const std::shared_ptr<const Model>& model, const ReaderSettings& settings,
                          const std::vector<int32_t>& text) {
    Reader reader(Session(model), settings, 0);
    std::vector<double> all;
    for (size_t at = 0; at < text.size();) {
      const size_t count = std::min<size_t>(
          {static_cast<size_t>(std::min<int64_t>(reader.room(), 7)), text.size() - at});
      DocumentTokens::Piece piece;
      piece.starts = at == 0 || at == 14;
      piece.tokens.assign(text.begin() + static_cast<ptrdiff_t>(at),
                          text.begin() + static_cast<ptrdiff_t>(at + count));
      for (const double loss : reader.read(piece)) {
        all.push_back(loss);
      }
      at += count;
    }
    return all;
  };
  for (const TinyModel& each : models) {
    const auto model = session_model(each.json, Device::reference());
    for (const ResetAt reset : {ResetAt::kNever, ResetAt::kDocument, ResetAt::kSegment}) {
      for (const bool freeze : {false, true}) {
        const ReaderSettings settings = {
            .memory = reset, .mixers = reset, .segment = 11, .freeze = freeze};
        const std::vector<double> before = losses(model, settings, tokens);
        for (const size_t at : {3u, 12u, 21u}) {
          std::vector<int32_t> changed = tokens;
          changed[at] = (changed[at] + 5) % 23;
          const std::vector<double> after = losses(model, settings, changed);
          for (size_t t = 0; t < at; ++t) {
            ASSERT_EQ(before[t], after[t]) << each.name << " token " << t << " of " << at;
          }
          EXPECT_NE(before[at], after[at]);
          EXPECT_NE(before[at + 1], after[at + 1]);
        }
      }
    }
  }
}

class ContinualEval : public PplEval {
 protected:
  ContinualEval() {
    for (const std::string name : {"law", "math", "sea"}) {
      std::filesystem::create_directories(dir_ / "domains" / name);
      for (const std::string part : {"adapt", "eval"}) {
        std::string text;
        for (int i = 0; i < 6; ++i) {
          text += name + " " + part + " has words of its own. ";
        }
        write_text_atomic(dir_ / "domains" / name / (part + ".txt"), text);
      }
    }
  }
  json continual(const std::string& out = "",
                 const std::function<void(double, const std::string&)>& progress = {}) const {
    EvalFolder folder(out, {{"kind", "continual"}});
    return evaluate_continual(model_, bytes_, find_domains(path("domains")), options_, &folder,
                              progress);
  }
  ContinualOptions options_ = {.adapt_tokens = 100, .test_tokens = 60, .segment = 0};
};

TEST_F(ContinualEval, NumbersAreThoseOfASlowReader) {
  const json got = continual();
  EXPECT_EQ(got.at("domains"), json({"law", "math", "sea"}));
  const std::vector<Domain> domains = find_domains(path("domains"));
  const auto text = [&](const std::string& file, size_t limit) {
    std::vector<int32_t> tokens = bytes_->encode(read_text(file));
    tokens.push_back(bytes_->end_of_text());
    tokens.resize(std::min(tokens.size(), limit));
    return tokens;
  };
  const int32_t end = bytes_->end_of_text();
  Session slow(model_);
  for (size_t stage = 0; stage <= domains.size(); ++stage) {
    if (stage > 0) {
      slow.reset_tokens();
      slow.feed({&end, 1}, false);
      slow.feed(text(domains[stage - 1].adapt[0], 100));
      slow.flush();
    }
    for (size_t d = 0; d < domains.size(); ++d) {
      Session test = slow.fork();
      test.reset_tokens();
      test.feed({&end, 1}, false);
      double sum = 0;
      const std::vector<int32_t> tokens = text(domains[d].test[0], 60);
      for (const int32_t token : tokens) {
        sum += loss_of(test, token);
        test.feed({&token, 1}, false);
      }
      const double mean = sum / static_cast<double>(tokens.size());
      EXPECT_NEAR(got.at("loss").at(stage).at(d).get<double>(), mean, 1e-9) << stage << " " << d;
      EXPECT_NEAR(got.at("change").at(stage).at(d).get<double>(),
                  mean - got.at("loss").at(0).at(d).get<double>(), 1e-9);
    }
  }
}

TEST_F(ContinualEval, GoesOnWhereItStopped) {
  struct Stop {};
  const json whole = continual();
  for (int stop = 0; stop < 16; stop += 1) {
    const std::string out = path(fmt::format("stop-{}", stop));
    int calls = 0;
    try {
      continual(out, [&](double, const std::string&) {
        if (calls++ == stop) {
          throw Stop();
        }
      });
    } catch (const Stop&) {
    }
    EXPECT_EQ(continual(out), whole) << stop;
    EXPECT_EQ(continual(out), whole) << "done already";
  }
}

TEST(Retention, IsTheShareThatIsLeft) {
  // Gains right after: 1.0 and 0.5; left at the end: 0.25 and 0.5. The last domain does not count.
  EXPECT_DOUBLE_EQ(*retention({{4, 3, 2}, {3, 3, 2}, {3.5, 2.5, 2}, {3.75, 2.5, 1}}), 0.5);
  EXPECT_FALSE(retention({{4, 3}, {4, 3}, {4, 2}}).has_value());
  EXPECT_FALSE(retention({{4}, {3}}).has_value());
}

TEST_F(ContinualEval, FoldersThatAreNotDomainsAreRefused) {
  EXPECT_THROW(find_domains(path("nothing")), Error);
  std::filesystem::create_directories(dir_ / "half" / "x");
  EXPECT_THROW(find_domains(path("half")), Error);
  write_text_atomic(dir_ / "half" / "x" / "adapt.txt", "a");
  EXPECT_THROW(find_domains(path("half")), Error);
}

}  // namespace
}  // namespace fwpkm
