// Makes C++ of CUDA sources, for the emulator: launches, asm statements and shared memory whose
// size a launch tells. Everything else is the same in both.
//   translate FROM TO
#include <filesystem>
#include <fstream>
#include <iostream>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

// Goes through text from `at` on and calls fn(position, depth of brackets) for every character
// outside of strings, until it returns true; -> that position.
template <typename Fn>
size_t scan(const std::string& text, size_t at, Fn&& fn) {
  int depth = 0;
  for (size_t i = at; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') {
      for (++i; i < text.size() && text[i] != '"'; ++i) {
        i += text[i] == '\\' ? 1 : 0;
      }
      continue;
    }
    depth += c == '(' || c == '[' || c == '{' ? 1 : 0;
    depth -= c == ')' || c == ']' || c == '}' ? 1 : 0;
    if (fn(i, depth)) {
      return i;
    }
  }
  throw std::runtime_error("brackets do not match");
}
size_t closing(const std::string& text, size_t open) {
  return scan(text, open, [](size_t, int depth) { return depth == 0; });
}
// Parts of a text between separators outside of brackets and strings.
std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  const std::string whole = text + separator;
  size_t begin = 0;
  while (begin < whole.size()) {
    const size_t end = scan(
        whole, begin, [&](size_t i, int depth) { return depth == 0 && whole[i] == separator; });
    parts.push_back(whole.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}
bool is_space(const std::string& text) {
  return text.find_first_not_of(" \t\n") == std::string::npos;
}

// kernel<<<config>>>( becomes launch(Config(config), [=](auto... args) { kernel(args...); })(
std::string translate_launches(std::string text) {
  for (size_t open = text.find("<<<"); open != std::string::npos; open = text.find("<<<")) {
    size_t begin = open;
    for (int depth = 0; begin > 0; --begin) {
      const char before = text[begin - 1];
      depth += before == '>' ? 1 : before == '<' ? -1 : 0;
      const bool ends = std::string_view(";{}) \n").find(before) != std::string_view::npos;
      if (depth == 0 && ends && !is_space(text.substr(begin, open - begin))) {
        break;
      }
    }
    const size_t close = text.find(">>>", open);
    const std::string kernel = text.substr(begin, open - begin);
    const std::string config = text.substr(open + 3, close - open - 3);
    text.replace(begin, close + 3 - begin,
                 "emulated::launch(emulated::Config(" + config +
                     "), [=](auto... emulated_args) { " + kernel + "(emulated_args...); })");
  }
  return text;
}

// The instruction of an asm statement as the name of a function.
std::string function_of(const std::string& strings) {
  std::string code;
  static const std::regex literal("\"((?:[^\"\\\\]|\\\\.)*)\"");
  for (std::sregex_iterator it(strings.begin(), strings.end(), literal), end; it != end; ++it) {
    code += (*it)[1].str();
  }
  // Of a block, what follows its declarations.
  static const std::regex of_block(R"((?:\{\\n)?(?: *\.reg [^;]*;\\n)* *([a-z0-9_.:A-Z]*))");
  std::smatch found;
  std::regex_search(code, found, of_block);
  std::string name = "asm_";
  for (const char c : found[1].str()) {
    name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  }
  return name;
}

std::string translate_asm(std::string text) {
  static const std::regex word(R"(\basm(?: volatile)?\s*\()");
  std::smatch found;
  size_t from = 0;
  while (std::regex_search(text.cbegin() + static_cast<std::ptrdiff_t>(from), text.cend(), found,
                           word)) {
    const size_t begin = from + static_cast<size_t>(found.position(0));
    const size_t open = begin + static_cast<size_t>(found.length(0)) - 1;
    const size_t close = closing(text, open);
    const std::vector<std::string> parts = split(text.substr(open + 1, close - open - 1), ':');
    std::string operands;
    for (size_t i = 1; i < std::min<size_t>(parts.size(), 3); ++i) {
      for (const std::string& operand : split(parts[i], ',')) {
        if (!is_space(operand)) {
          operands += (operands.empty() ? "" : ", ") + operand.substr(operand.find('('));
        }
      }
    }
    const std::string call = "emulated::" + function_of(parts[0]) + "(" + operands + ")";
    text.replace(begin, close + 1 - begin, call);
    from = begin + call.size();
  }
  return text;
}

std::string translate_shared(const std::string& text) {
  static const std::regex dynamic(
      R"(extern __shared__ (?:__align__\(\d+\) )?([\w: ]+?) (\w+)\[\];)");
  static const std::regex aligned(R"(__shared__ (alignas\(\d+\)) )");
  // A name that the standard library uses for attributes, so that it cannot be a macro.
  static const std::regex apart("__noinline__ ");
  std::string all = std::regex_replace(text, dynamic,
                                       "$1* $2 = reinterpret_cast<$1*>(emulated::dynamic_memory);");
  all = std::regex_replace(all, aligned, "$1 __shared__ ");
  return std::regex_replace(all, apart, "");
}

void translate(const fs::path& from, const fs::path& to) {
  std::ifstream file(from);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) {
    throw std::runtime_error("cannot read it");
  }
  const std::string body = translate_asm(translate_launches(translate_shared(text.str())));
  const bool source = from.extension() == ".cu";
  const std::string begin = source ? "#include \"emulator.h\"\n" : "";
  fs::create_directories(to.parent_path());
  std::ofstream result(to);
  result << begin << "#line 1 \"" << from.string() << "\"\n" << body;
  if (!result.flush()) {
    throw std::runtime_error("cannot write " + to.string());
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: translate FROM TO\n";
    return 2;
  }
  try {
    translate(argv[1], argv[2]);
  } catch (const std::exception& e) {
    std::cerr << "[translate] " << argv[1] << ": " << e.what() << '\n';
    return 1;
  }
  return 0;
}
