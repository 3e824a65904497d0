#include "eval/continual.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include "base/error.h"

namespace fwpkm {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

// Lets a reader read a text to its end; -> the mean loss.
double read_all(Reader* reader, DocumentTokens* data, int64_t limit,
                const std::function<void(double)>& progress) {
  DocumentTokens::Piece piece;
  double sum = 0;
  int64_t tokens = 0;
  while (limit == 0 || tokens < limit) {
    int64_t most = std::min<int64_t>(reader->room(), 4096);
    most = limit > 0 ? std::min(most, limit - tokens) : most;
    if (!data->next(&piece, most)) {
      break;
    }
    for (const double loss : reader->read(piece)) {
      sum += loss;
    }
    tokens += std::ssize(piece.tokens);
    progress(limit > 0 ? static_cast<double>(tokens) / static_cast<double>(limit)
                       : data->fraction());
  }
  require(tokens > 0, "eval", "there is no token to read in the data");
  return sum / static_cast<double>(tokens);
}

fs::path state_path(const EvalFolder& folder, size_t stage) {
  return folder.path() / fmt::format("stage-{}.session", stage);
}

}  // namespace

std::vector<Domain> find_domains(const std::string& folder) {
  require(fs::is_directory(folder), "eval",
          "{} is not a folder; give one whose folders hold adapt.* and eval.*", folder);
  std::map<std::string, Domain> found;
  for (const auto& below : fs::directory_iterator(folder)) {
    if (!below.is_directory()) {
      continue;
    }
    Domain domain;
    domain.name = below.path().filename().string();
    for (const auto& file : fs::directory_iterator(below.path())) {
      const std::string name = file.path().filename().string();
      if (name == "adapt" || name.starts_with("adapt.")) {
        domain.adapt.push_back(file.path().string());
      } else if (name == "eval" || name.starts_with("eval.")) {
        domain.test.push_back(file.path().string());
      }
    }
    require(domain.adapt.empty() == domain.test.empty(), "eval",
            "{} has only one of adapt.* and eval.*", below.path().string());
    if (!domain.adapt.empty()) {
      std::sort(domain.adapt.begin(), domain.adapt.end());
      std::sort(domain.test.begin(), domain.test.end());
      found[domain.name] = domain;
    }
  }
  require(!found.empty(), "eval", "no folder in {} holds adapt.* and eval.*", folder);
  std::vector<Domain> domains;
  for (auto& [name, domain] : found) {
    domains.push_back(std::move(domain));
  }
  return domains;
}

json ContinualOptions::json() const {
  return {{"adapt_tokens", adapt_tokens}, {"test_tokens", test_tokens}, {"segment", segment}};
}

std::optional<double> retention(const std::vector<std::vector<double>>& loss) {
  double gained = 0, left = 0;
  for (size_t d = 0; d + 2 < loss.size(); ++d) {
    gained += loss[0][d] - loss[d + 1][d];
    left += loss[0][d] - loss.back()[d];
  }
  return gained > 0 ? std::optional(left / gained) : std::nullopt;
}

json evaluate_continual(const std::shared_ptr<const Model>& model,
                        const std::shared_ptr<const Tokenizer>& tokenizer,
                        const std::vector<Domain>& domains, const ContinualOptions& options,
                        EvalFolder* folder,
                        const std::function<void(double, const std::string&)>& progress) {
  require(!domains.empty(), "eval", "there is no domain");
  ReaderSettings settings;
  settings.mixers = options.segment > 0 ? ResetAt::kSegment : ResetAt::kNever;
  settings.segment = std::max<int64_t>(1, options.segment);
  const size_t count = domains.size(), rounds = (count + 1) * (count + 1) - 1;
  size_t round = 0;
  const auto show = [&](const std::string& note) {
    return [&, note](double done) {
      if (progress) {
        progress((static_cast<double>(round) + done) / static_cast<double>(rounds), note);
      }
    };
  };

  // A line for each test. The state after an adaptation is kept until the next one is done.
  Session session(model, {.seed = 1, .history = false});
  const auto adapt = [&](const Domain& domain) {
    DocumentTokens data(domain.adapt, tokenizer);
    session.reset_tokens();
    Reader reader(std::move(session), settings, tokenizer->end_of_text());
    read_all(&reader, &data, options.adapt_tokens, show("adapts to " + domain.name));
    session = std::move(reader.session());
    session.flush();
  };
  const size_t open = folder->done().size() / count;  // the first stage whose tests are not done
  size_t at = 0;
  std::vector<std::vector<double>> loss;
  for (size_t stage = 0; stage <= count; ++stage) {
    if (stage > 0 && stage >= open) {
      const fs::path state = state_path(*folder, stage), before = state_path(*folder, stage - 1);
      if (folder->keeps() && fs::exists(state)) {
        session = Session::load(model, state);
      } else {
        if (stage == open && stage > 1) {
          session = Session::load(model, before);
        }
        adapt(domains[stage - 1]);
      }
      if (folder->keeps()) {
        session.save(state);
        fs::remove(before);
      }
    }
    round += stage > 0 ? 1 : 0;
    loss.emplace_back();
    for (size_t d = 0; d < count; ++d, ++round, ++at) {
      if (at < folder->done().size()) {
        loss.back().push_back(folder->done()[at].at("loss").get<double>());
        continue;
      }
      DocumentTokens data(domains[d].test, tokenizer);
      Session fork = session.fork();
      fork.reset_tokens();
      ReaderSettings quiet = settings;
      quiet.freeze = true;
      Reader reader(std::move(fork), quiet, tokenizer->end_of_text());
      loss.back().push_back(
          read_all(&reader, &data, options.test_tokens, show("tests " + domains[d].name)));
      folder->add({{"stage", stage}, {"domain", domains[d].name}, {"loss", loss.back().back()}});
    }
  }
  if (folder->keeps()) {
    fs::remove(state_path(*folder, count));
  }
  json result = {{"domains", json::array()}, {"loss", loss}, {"change", json::array()}};
  for (const Domain& domain : domains) {
    result["domains"].push_back(domain.name);
  }
  for (const std::vector<double>& row : loss) {
    json change = json::array();
    for (size_t d = 0; d < count; ++d) {
      change.push_back(row[d] - loss[0][d]);
    }
    result["change"].push_back(std::move(change));
  }
  const auto share = retention(loss);
  result["retention"] = share ? json(*share) : json();
  return result;
}

}  // namespace fwpkm
