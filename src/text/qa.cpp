#include "text/qa.h"

#include "base/error.h"

namespace fwpkm {
namespace {

constexpr const char* kTag = "questions";

std::string name_of(std::filesystem::path path) {
  path = path.filename();
  while (path.has_extension()) {
    path = path.stem();
  }
  return path.string();
}

// The text of a list's element.
std::string element(const JsonLines& lines, const nlohmann::json& list, size_t i, const char* key,
                    bool empty_allowed) {
  lines.check(list[i].is_string(), "\"{}\" number {} is not a text", key, i + 1);
  auto text = list[i].get<std::string>();
  lines.check(empty_allowed || text.find_first_not_of(" \t\n\v\f\r") != text.npos,
              "\"{}\" number {} is empty", key, i + 1);
  return text;
}

}  // namespace

QaReader::QaReader(const std::filesystem::path& path) : lines_(path, kTag), path_(path) {}

bool QaReader::next(QaDocument* document) {
  nlohmann::json object;
  if (!lines_.next(&object)) {
    require(documents_ > 0, kTag, "'{}' holds no document", path_.string());
    return false;
  }
  QaDocument d;
  d.task = name_of(path_);
  if (object.contains("context")) {
    d.context = lines_.text(object, "context");
    if (object.contains("dataset")) {
      d.task = lines_.text(object, "dataset");
    }
    const nlohmann::json& answers = lines_.list(object, "answers");
    d.questions.push_back(
        {lines_.text(object, "input", true), element(lines_, answers, 0, "answers", false)});
  } else {
    lines_.check(object.contains("instructions"),
                 "neither a line of LongBench (context, input, answers) nor of L-Eval (input, "
                 "instructions, outputs)");
    d.context = lines_.text(object, "input");
    const nlohmann::json& questions = lines_.list(object, "instructions");
    const nlohmann::json& answers = lines_.list(object, "outputs");
    lines_.check(questions.size() == answers.size(), "there are {} instructions, but {} outputs",
                 questions.size(), answers.size());
    for (size_t i = 0; i < questions.size(); ++i) {
      d.questions.push_back({element(lines_, questions, i, "instructions", false),
                             element(lines_, answers, i, "outputs", false)});
    }
  }
  *document = std::move(d);
  ++documents_;
  return true;
}

}  // namespace fwpkm
